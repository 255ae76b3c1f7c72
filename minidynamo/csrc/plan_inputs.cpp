// A call's inputs: their types and layouts are checked, then they are put where the steps look.
#include "plan.h"

#include <ATen/ops/empty_strided.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>

namespace minidynamo {

namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;

// Tensors whose memory is not what their sizes and strides say.
constexpr DispatchKeySet kNotPlain = DispatchKeySet({
    DispatchKey::Python,
    DispatchKey::Sparse,
    DispatchKey::SparseCsr,
    DispatchKey::Quantized,
    DispatchKey::NestedTensor,
    DispatchKey::ZeroTensor,
    DispatchKey::Functionalize,
    DispatchKey::FuncTorchBatched,
    DispatchKey::FuncTorchGradWrapper,
    DispatchKey::Conjugate,
    DispatchKey::Negative,
});
constexpr DispatchKeySet kLazyBits = DispatchKeySet({DispatchKey::Conjugate, DispatchKey::Negative});

std::string describe(const InputSpec& input, const Program& program, const RunState& state) {
  std::string text = std::string(c10::toString(input.layout.dtype)) + " size (";
  for (const auto* numbers : {&input.layout.size, &input.layout.stride}) {
    for (size_t i = 0; i < numbers->size(); ++i) {
      text += (i > 0 ? ", " : "") + std::to_string(program.number((*numbers)[i], state));
    }
    text += numbers == &input.layout.size ? ") stride (" : ") on ";
  }
  return text + input.device.str();
}

[[noreturn]] void refuse(const InputSpec& input, const at::Tensor& tensor, const Program& program,
                         const RunState& state) {
  TORCH_CHECK_TYPE(!tensor.unsafeGetTensorImpl()->key_set().has_any(kNotPlain), "input ", input.name,
                   " of the compiled graph must be a plain dense tensor, not ",
                   tensor.toString());
  TORCH_CHECK_VALUE(false, "input ", input.name, " of the compiled graph must be ",
                    describe(input, program, state), "; it is ",
                    c10::toString(tensor.scalar_type()), " size ", tensor.sizes(), " stride ",
                    tensor.strides(), " on ", tensor.device());
}

bool sizes_match(const Layout& layout, const c10::TensorImpl* impl, const Program& program,
                 const RunState& state) {
  c10::IntArrayRef size = impl->sizes();
  c10::IntArrayRef stride = impl->strides();
  if (size.size() != layout.size.size()) {
    return false;
  }
  bool empty = false;
  bool strides_match = true;
  for (size_t i = 0; i < size.size(); ++i) {
    if (size[i] != program.number(layout.size[i], state)) {
      return false;
    }
    empty |= size[i] == 0;
    strides_match &= size[i] == 1 || stride[i] == program.number(layout.stride[i], state);
  }
  return strides_match || empty;
}

void place_data(int32_t slot, const at::Tensor& tensor, bool written, RunState& state) {
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  void* data = written ? impl->mutable_data() : const_cast<void*>(impl->data());
  TORCH_CHECK_VALUE(data != nullptr || impl->numel() == 0,
                    "the memory of a tensor that the compiled graph reads was freed");
  state.data[slot] = data;
}

// What a slot's users need of a tensor that is there already.
void place(int32_t slot, const at::Tensor& tensor, bool written, const SlotInfo& info,
           RunState& state) {
  state.refs[slot] = &tensor;
  if (info.needs_data) {
    place_data(slot, tensor, written, state);
  }
}

// The same values in memory of their own, in the same layout.
at::Tensor materialize(const at::Tensor& tensor) {
  c10::impl::ExcludeDispatchKeyGuard below_autograd(excluded_keys());
  at::Tensor once = tensor;  // without the dimensions that repeat an element
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    if (tensor.stride(dim) == 0 && tensor.size(dim) > 1) {
      once = once.narrow(dim, 0, 1);
    }
  }
  at::Tensor copy = at::empty_strided(once.sizes(), once.strides(), tensor.options());
  copy.copy_(once);
  return copy.as_strided(tensor.sizes(), tensor.strides());
}

bool is_aligned(const at::Tensor& tensor, uint32_t alignment) {
  return alignment == 1 ||
         reinterpret_cast<uintptr_t>(tensor.unsafeGetTensorImpl()->data()) % alignment == 0;
}

// Sets up input slots from Python objects; the layouts are checked when all symbols are known.
class Inputs {
 public:
  Inputs(const Program& program, RunState& state, PyObject* const* args, bool owned)
      : program_(program), state_(state), args_(args), owned_(owned) {}

  void take() {
    if (program_.only_fixed_inputs && !owned_) {
      take_fixed();
    } else {
      take_any();
    }
    for (size_t i = 0; i < program_.constants.size(); ++i) {
      auto slot = static_cast<int32_t>(program_.inputs.size() + i);
      place(slot, program_.constants[i], false, program_.slots[slot], state_);
    }
  }

 private:
  // Nearly all calls: one comparison of compact records, then the general path where it failed.
  void take_fixed() {
    for (size_t i = 0; i < program_.fixed_inputs.size(); ++i) {
      const FixedInput& input = program_.fixed_inputs[i];
      if (THPVariable_CheckExact(args_[i])) {
        const at::Tensor& tensor = THPVariable_Unpack(args_[i]);
        if (matches(input, tensor.unsafeGetTensorImpl()) && is_aligned(tensor, input.alignment)) {
          state_.refs[i] = &tensor;
          if (input.needs_data) {
            place_data(static_cast<int32_t>(i), tensor, input.written, state_);
          }
          continue;
        }
      }
      check_tensor(i);
      take_tensor(i);
    }
  }

  bool matches(const FixedInput& input, const c10::TensorImpl* impl) const {
    if (impl->key_set().has_any(kNotPlain) || impl->dtype() != input.dtype ||
        impl->device() != input.device) {
      return false;
    }
    c10::IntArrayRef size = impl->sizes();
    const int64_t* numbers = program_.fixed_numbers.data() + input.numbers;
    return size.size() == input.dim && std::equal(size.begin(), size.end(), numbers) &&
           std::equal(numbers + input.dim, numbers + 2 * input.dim, impl->strides().data());
  }

  void take_any() {
    for (size_t i = 0; i < program_.inputs.size(); ++i) {
      if (program_.inputs[i].kind == InputKind::Int) {
        take_integer(i);
      } else {
        check_tensor(i);
      }
    }
    if (program_.n_symbols != 0) {
      take_symbols();
    }
    for (size_t i = 0; i < program_.inputs.size(); ++i) {
      if (program_.inputs[i].kind == InputKind::Tensor) {
        take_tensor(i);
      }
    }
  }

  void check_tensor(size_t i) {
    TORCH_CHECK_TYPE(THPVariable_Check(args_[i]), "input ", program_.inputs[i].name,
                     " of the compiled graph must be a tensor, not ", Py_TYPE(args_[i])->tp_name);
  }

  void take_integer(size_t i) {
    PyObject* value = args_[i];
    TORCH_CHECK_TYPE(PyLong_Check(value) && !PyBool_Check(value), "input ", program_.inputs[i].name,
                     " of the compiled graph must be an int, not ", Py_TYPE(value)->tp_name);
    state_.integers[i] = PyLong_AsLongLong(value);
    if (state_.integers[i] == -1 && PyErr_Occurred() != nullptr) {
      throw python_error();
    }
  }

  void take_symbols() {
    for (const SymbolSource& source : program_.symbol_sources) {
      state_.symbols[source.symbol] = symbol(source);
    }
    for (size_t i = 0; i < program_.expressions.size(); ++i) {
      if (!program_.expressions[i].late) {
        state_.expressions[i] = evaluate(program_.expressions[i], state_.symbols.data());
      }
    }
  }

  int64_t symbol(const SymbolSource& source) {
    if (source.what == SymbolSource::What::Value) {
      return state_.integers[source.slot];
    }
    const at::Tensor& tensor = THPVariable_Unpack(args_[source.slot]);
    if (source.what == SymbolSource::What::Offset) {
      return tensor.storage_offset();
    }
    TORCH_CHECK_VALUE(source.dim >= 0 && source.dim < tensor.dim(), "input ",
                      program_.inputs[source.slot].name, " of the compiled graph has ", tensor.dim(),
                      " dimensions only");
    return source.what == SymbolSource::What::Size ? tensor.size(source.dim)
                                                   : tensor.stride(source.dim);
  }

  void take_tensor(size_t i) {
    const InputSpec& input = program_.inputs[i];
    auto slot = static_cast<int32_t>(i);
    const at::Tensor* tensor = &THPVariable_Unpack(args_[i]);
    if (input.has_layout) {
      const c10::TensorImpl* impl = tensor->unsafeGetTensorImpl();
      if (impl->key_set().has_any(kNotPlain)) {
        tensor = plain(slot, *tensor);
        impl = tensor->unsafeGetTensorImpl();
      }
      bool device_matches = input.device.has_index() ? impl->device() == input.device
                                                     : impl->device_type() == input.device.type();
      if (!device_matches || impl->dtype() != c10::scalarTypeToTypeMeta(input.layout.dtype) ||
          !sizes_match(input.layout, impl, program_, state_)) {
        refuse(input, *tensor, program_, state_);
      }
      if (!is_aligned(*tensor, input.alignment)) {
        tensor = copied(slot, *tensor);
      }
    }
    if (owned_) {
      state_.holds_inputs = true;
      state_.tensors[slot] = *tensor;
      tensor = &state_.tensors[slot];
    }
    place(slot, *tensor, input.written, program_.slots[slot], state_);
  }

  // Kernels read memory as it is: a lazy conjugate or negative is carried out first.
  const at::Tensor* plain(int32_t slot, const at::Tensor& tensor) {
    const InputSpec& input = program_.inputs[slot];
    DispatchKeySet rest = tensor.unsafeGetTensorImpl()->key_set() & (kNotPlain - kLazyBits);
    if (!rest.empty()) {
      refuse(input, tensor, program_, state_);
    }
    return program_.slots[slot].needs_data ? copied(slot, tensor) : &tensor;
  }

  const at::Tensor* copied(int32_t slot, at::Tensor original) {
    state_.holds_inputs = true;
    state_.tensors[slot] = materialize(original);
    state_.copies.push_back({slot, std::move(original), state_.tensors[slot]});
    return &state_.tensors[slot];
  }

  const Program& program_;
  RunState& state_;
  PyObject* const* args_;
  bool owned_;
};

}  // namespace

DispatchKeySet excluded_keys() {
  // Where functionalization is on in the thread, operators would give tensors without memory.
  return c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset |
         DispatchKeySet(DispatchKey::Functionalize);
}

void take_inputs(const Program& program, RunState& state, PyObject* const* args, bool owned) {
  state.copies.clear();
  Inputs(program, state, args, owned).take();
}

void return_inputs(const Program& program, RunState& state) {
  c10::impl::ExcludeDispatchKeyGuard below_autograd(excluded_keys());
  for (AlignedCopy& item : state.copies) {
    if (program.inputs[item.slot].written) {
      item.original.copy_(item.copy);
    }
    state.tensors[item.slot] = std::move(item.original);
    state.refs[item.slot] = &state.tensors[item.slot];
  }
  state.copies.clear();
}

}  // namespace minidynamo
