// Tensors as the guard programs see them: metadata only, straight from the TensorImpl.
#include "guards_program.h"

#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/Layout.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <c10/core/DispatchKeySet.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstring>

namespace md {

// What TENSOR_MATCH compares; see TensorSpec in guard_checks.py.
struct TensorSpec {
  PyTypeObject* type;
  uint64_t keys;
  caffe2::TypeMeta dtype;
  c10::Device device{c10::kCPU};
  c10::Layout layout;
  bool requires_grad;
  bool has_strides;
  uint64_t marks;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
};

namespace {

// Whether the program ever marked dimensions of a tensor, and where mark_dynamic and the like keep
// what they said; see markers.py.
bool marks_are_used = false;
PyObject* marks_name = nullptr;

// Whether the tensor has no marks but those that were known when it was compiled.
bool marks_match(uint64_t expected, PyObject* object) {
  PyObject* found = _PyObject_GenericGetAttrWithDict(object, marks_name, nullptr, 1);
  if (found == nullptr) {
    PyErr_Clear();
    return true;
  }
  uint64_t marks = PyLong_Check(found) ? PyLong_AsUnsignedLongLongMask(found) : 0;
  Py_DECREF(found);
  return (marks & ~expected) == 0;
}

constexpr int64_t kAny = -1;

// Reading metadata of such tensors may run Python code; or they may have another layout than
// strided. All are functionality keys, so one bit each.
const uint64_t kUnusualKeys =
    c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::FuncTorchBatched,
                         c10::DispatchKey::FuncTorchGradWrapper, c10::DispatchKey::Functionalize,
                         c10::DispatchKey::Sparse, c10::DispatchKey::SparseCsr,
                         c10::DispatchKey::MkldnnCPU, c10::DispatchKey::NestedTensor})
        .raw_repr();

inline bool matches(const std::vector<int64_t>& expected, c10::IntArrayRef found) {
  size_t count = found.size();
  bool same = expected.size() == count;
  for (size_t i = 0; i < count && same; i++) {
    same = expected[i] == found[i] || expected[i] == kAny;
  }
  return same;
}

// Of tensors whose class answers for its sizes: a nested tensor has symbolic ones alone.
bool matches(const std::vector<int64_t>& expected, c10::SymIntArrayRef found) {
  size_t count = found.size();
  bool same = expected.size() == count;
  for (size_t i = 0; i < count && same; i++) {
    same = expected[i] == kAny || found[i].maybe_as_int() == expected[i];
  }
  return same;
}

const c10::TensorImpl& unpack(PyObject* object) {
  return *THPVariable_Unpack(object).unsafeGetTensorImpl();
}

[[gnu::always_inline]] inline bool metadata_matches(const TensorSpec& spec,
                                                    const c10::TensorImpl& tensor,
                                                    bool unusual) {
  const auto* meta = static_cast<const torch::autograd::AutogradMeta*>(tensor.autograd_meta());
  if (meta != nullptr && meta->fw_grad_ != nullptr && !meta->fw_grad_->empty()) {
    return false;  // a dual number of forward-mode AD
  }
  if (tensor.dtype() != spec.dtype || tensor.device() != spec.device ||
      tensor.requires_grad() != spec.requires_grad) {
    return false;
  }
  if ((unusual ? tensor.layout() : c10::kStrided) != spec.layout) {
    return false;
  }
  if (unusual) {
    return matches(spec.sizes, tensor.sym_sizes()) &&
           (!spec.has_strides || matches(spec.strides, tensor.sym_strides()));
  }
  return matches(spec.sizes, tensor.sizes()) &&
         (!spec.has_strides || matches(spec.strides, tensor.strides()));
}

// For tensors whose accessors may raise or run Python code.
Result metadata_matches_carefully(const TensorSpec& spec, PyObject* object) {
  HANDLE_TH_ERRORS
  return metadata_matches(spec, unpack(object), true) ? kPass : kFail;
  END_HANDLE_TH_ERRORS_RET(kError)
}

inline Result match(const TensorSpec& spec, PyObject* object, const DispatchState& dispatch,
                    bool careful) {
  if (Py_TYPE(object) != spec.type) {
    return kFail;
  }
  if (marks_are_used && !marks_match(spec.marks, object)) {
    return kFail;
  }
  const c10::TensorImpl& tensor = unpack(object);
  uint64_t own = tensor.key_set().raw_repr();
  if (((own | dispatch.included) & ~dispatch.excluded) != spec.keys) {
    return kFail;
  }
  if (careful) {
    return metadata_matches_carefully(spec, object);
  }
  if (own & kUnusualKeys) {
    return kLater;
  }
  return metadata_matches(spec, tensor, false) ? kPass : kFail;
}

bool parse_sizes(PyObject* tuple, std::vector<int64_t>& sizes) {
  if (!PyTuple_Check(tuple)) {
    PyErr_SetString(PyExc_TypeError, "sizes and strides of a tensor spec are tuples");
    return false;
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) {
    PyObject* item = PyTuple_GET_ITEM(tuple, i);
    int64_t size = item == Py_None ? kAny : PyLong_AsLongLong(item);
    if (size == -1 && PyErr_Occurred()) {
      return false;
    }
    sizes.push_back(size);
  }
  return true;
}

// Whether it has this dimension, counted from the end where it is negative.
bool find_dimension(int64_t dim, size_t count, size_t* index) {
  int64_t found = dim < 0 ? dim + static_cast<int64_t>(count) : dim;
  *index = static_cast<size_t>(found);
  return found >= 0 && *index < count;
}

Result read_property(const c10::TensorImpl& tensor, int property, int64_t dim, int64_t* value) {
  if (property == kStorageOffset) {
    *value = tensor.storage_offset();
    return kPass;
  }
  c10::IntArrayRef all = property == kSize ? tensor.sizes() : tensor.strides();
  size_t index = 0;
  if (!find_dimension(dim, all.size(), &index)) {
    return kFail;
  }
  *value = all[index];
  return kPass;
}

Result read_symbolic(const c10::TensorImpl& tensor, int property, int64_t dim, int64_t* value) {
  c10::SymInt found = 0;
  if (property == kStorageOffset) {
    found = tensor.sym_storage_offset();
  } else {
    c10::SymIntArrayRef all = property == kSize ? tensor.sym_sizes() : tensor.sym_strides();
    size_t index = 0;
    if (!find_dimension(dim, all.size(), &index)) {
      return kFail;
    }
    found = all[index];
  }
  std::optional<int64_t> number = found.maybe_as_int();
  *value = number.value_or(0);
  return number ? kPass : kFail;
}

Result read_property_carefully(PyObject* object, int property, int64_t dim, int64_t* value) {
  HANDLE_TH_ERRORS
  return read_symbolic(unpack(object), property, dim, value);
  END_HANDLE_TH_ERRORS_RET(kError)
}

bool is_tensor(PyObject* object) {
  return PyObject_TypeCheck(object, reinterpret_cast<PyTypeObject*>(THPVariableClass));
}

PyObject* tensor_key_set(PyObject*, PyObject* object) {
  if (!is_tensor(object)) {
    PyErr_SetString(PyExc_TypeError, "tensor_key_set() takes a tensor");
    return nullptr;
  }
  return PyLong_FromUnsignedLongLong(unpack(object).key_set().raw_repr());
}

PyObject* key_set_names(PyObject*, PyObject* number) {
  HANDLE_TH_ERRORS
  uint64_t keys = PyLong_AsUnsignedLongLong(number);
  if (PyErr_Occurred()) {
    return nullptr;
  }
  std::string names;
  for (int bit = 0; bit < 64; bit++) {
    if ((keys >> bit & 1) == 0) {
      continue;
    }
    // The low bits are backends, the others functionalities.
    bool backend = bit < c10::num_backends;
    names += names.empty() ? "" : ", ";
    names += backend ? c10::toString(static_cast<c10::BackendComponent>(bit + 1))
                     : c10::toString(static_cast<c10::DispatchKey>(bit + 1 - c10::num_backends));
  }
  return PyUnicode_FromStringAndSize(names.data(), static_cast<Py_ssize_t>(names.size()));
  END_HANDLE_TH_ERRORS
}

PyObject* note_marks(PyObject*, PyObject*) {
  marks_are_used = true;
  Py_RETURN_NONE;
}

PyMethodDef kFunctions[] = {
    {"note_marks", note_marks, METH_NOARGS,
     "note_marks(): from now on guards look at the attribute _minidynamo_marks of tensors."},
    {"tensor_key_set", tensor_key_set, METH_O,
     "tensor_key_set(tensor) -> int: its dispatch keys, as c10::DispatchKeySet.raw_repr()."},
    {"key_set_names", key_set_names, METH_O,
     "key_set_names(keys) -> str: the names of the bits of such a number."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

std::shared_ptr<TensorSpec> parse_tensor_spec(PyObject* fields) {
  auto spec = std::make_shared<TensorSpec>();
  PyObject *type, *dtype, *device, *layout, *sizes, *strides;
  int requires_grad;
  unsigned long long keys, marks;
  if (!PyArg_ParseTuple(fields, "O!KOOOpOOK", &PyType_Type, &type, &keys, &dtype, &device,
                        &layout, &requires_grad, &sizes, &strides, &marks)) {
    return nullptr;
  }
  spec->type = reinterpret_cast<PyTypeObject*>(type);
  bool right = THPDtype_Check(dtype) && THPDevice_Check(device) && THPLayout_Check(layout) &&
               PyType_IsSubtype(spec->type, reinterpret_cast<PyTypeObject*>(THPVariableClass));
  if (!right) {
    PyErr_SetString(PyExc_TypeError, "a tensor spec needs a type, dtype, device and layout");
    return nullptr;
  }
  spec->keys = keys;
  spec->marks = marks;
  spec->dtype = c10::scalarTypeToTypeMeta(reinterpret_cast<THPDtype*>(dtype)->scalar_type);
  spec->device = reinterpret_cast<THPDevice*>(device)->device;
  spec->layout = reinterpret_cast<THPLayout*>(layout)->layout;
  spec->requires_grad = requires_grad;
  spec->has_strides = strides != Py_None;
  if (!parse_sizes(sizes, spec->sizes) ||
      (spec->has_strides && !parse_sizes(strides, spec->strides))) {
    return nullptr;
  }
  return spec;
}

PyTypeObject* tensor_spec_type(const TensorSpec& spec) { return spec.type; }

bool tensor_specs_equal(const TensorSpec& a, const TensorSpec& b) {
  return a.type == b.type && a.keys == b.keys && a.dtype == b.dtype && a.device == b.device &&
         a.layout == b.layout && a.requires_grad == b.requires_grad &&
         a.has_strides == b.has_strides && a.marks == b.marks && a.sizes == b.sizes && a.strides == b.strides;
}

Result tensor_matches(const TensorSpec& spec, PyObject* object, const DispatchState& dispatch,
                      bool careful) {
  return match(spec, object, dispatch, careful);
}

Result run_tensors(Walk& walk, const std::vector<Snapshot::TensorRun>& tensors) {
  for (const Snapshot::TensorRun& run : tensors) {
    Result result = match(*run.spec, run.object, walk.dispatch, false);
    if (result == kLater) {
      walk.later.push_back({run.node, &run.node->checks[0], run.object});
    } else if (result != kPass) {
      return result;
    }
    if (run.node->reg >= 0) {
      walk.registers[run.node->reg] = run.object;
    }
  }
  return kPass;
}

bool parse_tensor_property(const char* name, int* property) {
  const char* names[] = {"size", "stride", "storage_offset"};
  for (int i = 0; i < 3; i++) {
    if (std::strcmp(name, names[i]) == 0) {
      *property = i;
      return true;
    }
  }
  PyErr_Format(PyExc_ValueError, "unknown property %s of a tensor", name);
  return false;
}

Result tensor_property(PyObject* object, int property, int64_t dim, bool careful,
                       int64_t* value) {
  if (!is_tensor(object)) {
    return kFail;
  }
  if (careful) {
    return read_property_carefully(object, property, dim, value);
  }
  const c10::TensorImpl& tensor = unpack(object);
  if (tensor.key_set().raw_repr() & kUnusualKeys) {
    return kLater;
  }
  return read_property(tensor, property, dim, value);
}

MemoryRange memory_range(PyObject* object) {
  MemoryRange range;
  if (!is_tensor(object)) {
    return range;
  }
  const c10::TensorImpl& tensor = unpack(object);
  if ((tensor.key_set().raw_repr() & kUnusualKeys) || !tensor.has_storage() ||
      tensor.numel() == 0) {
    return range;
  }
  int64_t last = 0;
  for (int64_t dim = 0; dim < tensor.dim(); dim++) {
    last += (tensor.size(dim) - 1) * tensor.stride(dim);
  }
  range.storage = tensor.storage().unsafeGetStorageImpl();
  range.offset = tensor.storage_offset();
  range.start = reinterpret_cast<uintptr_t>(tensor.storage().data()) +
                static_cast<uintptr_t>(range.offset) * tensor.itemsize();
  range.end = range.start + static_cast<uintptr_t>(last + 1) * tensor.itemsize();
  return range;
}

DispatchState dispatch_state() {
  c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
  // Excluding takes no backend away, but the bits of those that a guard named stay behind it.
  return {keys.included_.raw_repr(), keys.excluded_.raw_repr() & ~c10::full_backend_mask};
}

int init_tensor_functions(PyObject* module) {
  marks_name = PyUnicode_InternFromString("_minidynamo_marks");
  return marks_name == nullptr ? -1 : PyModule_AddFunctions(module, kFunctions);
}

}  // namespace md
