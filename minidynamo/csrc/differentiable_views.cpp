// What the tensors around a call of a DifferentiableGraph share with one another.
#include "differentiable.h"

#include <torch/csrc/autograd/VariableTypeUtils.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace minidynamo {

namespace ag = torch::autograd;

const at::Tensor& result_at(PyObject* results, size_t index) {
  PyObject* object = PyTuple_GET_ITEM(results, static_cast<Py_ssize_t>(index));
  TORCH_INTERNAL_ASSERT(THPVariable_Check(object), "result ", index, " is no tensor");
  return THPVariable_Unpack(object);
}

void share_versions(const Layouts& layouts, PyObject* const* args, PyObject* results) {
  for (const Shared& shared : layouts.shared) {
    const at::Tensor& saved = result_at(results, shared.result);
    const at::Tensor& origin = shared.of_input ? THPVariable_Unpack(args[shared.index])
                                               : result_at(results, shared.index);
    if (saved.unsafeGetTensorImpl() != origin.unsafeGetTensorImpl() && !origin.is_inference() &&
        saved.is_alias_of(origin)) {
      saved.unsafeGetTensorImpl()->set_version_counter(
          origin.unsafeGetTensorImpl()->version_counter());
    }
  }
}

void make_views(const Layouts& layouts, PyObject* const* args, PyObject* results) {
  std::vector<std::pair<size_t, at::Tensor>> bases;  // by the first output of the same memory
  for (const Part& part : layouts.parts) {
    const at::Tensor& output = result_at(results, part.output);
    at::Tensor base;
    if (part.of_input) {
      base = THPVariable_Unpack(args[part.index]);
    } else {
      auto found = std::find_if(bases.begin(), bases.end(),
                                [&](const auto& pair) { return pair.first == part.index; });
      if (found == bases.end()) {
        const at::Tensor& first = result_at(results, part.index);
        at::Tensor hidden = first.variable_data();
        hidden.unsafeGetTensorImpl()->set_version_counter(
            first.unsafeGetTensorImpl()->version_counter());
        found = bases.emplace(bases.end(), part.index, std::move(hidden));
      }
      base = found->second;
    }
    bool is_new = output.unsafeGetTensorImpl()->autograd_meta() == nullptr;
    if (is_new && output.is_alias_of(base)) {
      ag::as_view(base, output, true, true, nullptr, nullptr, ag::CreationMeta::MULTI_OUTPUT_NODE);
    }
  }
}

}  // namespace minidynamo
