// One run of a program: inputs in, steps, outputs out.
#include "plan.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <sys/mman.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/object_ptr.h>

#include <cstdlib>

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

// The graph was traced below autograd and autocast, and runs there: nothing it makes has a grad_fn,
// nothing is cast a second time.
const DispatchKeySet kExcluded =
    c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset;

constexpr size_t kHugePage = 2 * 1024 * 1024;
constexpr size_t kAlignment = 64;

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

// What a slot's users need of a tensor that is there already.
void place(int32_t slot, const at::Tensor& tensor, bool written, const SlotInfo& info,
           RunState& state) {
  state.refs[slot] = &tensor;
  if (info.needs_data) {
    c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
    void* data = written ? impl->mutable_data() : const_cast<void*>(impl->data());
    TORCH_CHECK_VALUE(data != nullptr || impl->numel() == 0,
                      "the memory of a tensor that the compiled graph reads was freed");
    state.data[slot] = data;
  }
}

// The same values in memory of their own, in the same layout.
at::Tensor materialize(const at::Tensor& tensor) {
  c10::impl::ExcludeDispatchKeyGuard below_autograd(kExcluded);
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

// Sets up input slots from Python objects; the layouts are checked when all symbols are known.
class Inputs {
 public:
  Inputs(const Program& program, RunState& state, PyObject* const* args, bool owned)
      : program_(program), state_(state), args_(args), owned_(owned) {}

  void take() {
    for (size_t i = 0; i < program_.inputs.size(); ++i) {
      if (program_.inputs[i].kind == InputKind::Int) {
        take_integer(i);
      } else {
        TORCH_CHECK_TYPE(THPVariable_Check(args_[i]), "input ", program_.inputs[i].name,
                         " of the compiled graph must be a tensor, not ", Py_TYPE(args_[i])->tp_name);
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
    for (size_t i = 0; i < program_.constants.size(); ++i) {
      auto slot = static_cast<int32_t>(program_.inputs.size() + i);
      place(slot, program_.constants[i], false, program_.slots[slot], state_);
    }
  }

 private:
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
    if (!rest.empty() || input.written) {
      refuse(input, tensor, program_, state_);
    }
    state_.holds_inputs = true;
    state_.tensors[slot] = materialize(tensor);
    return &state_.tensors[slot];
  }

  const Program& program_;
  RunState& state_;
  PyObject* const* args_;
  bool owned_;
};

PyObject* output_object(const Output& output, const Program& program, RunState& state,
                        PyObject* const* args) {
  if (output.kind == Output::Kind::Object) {
    return Py_NewRef(output.object);
  }
  if (output.kind == Output::Kind::Expression) {
    return PyLong_FromLongLong(program.expression(output.index, state));
  }
  SlotKind kind = program.slots[output.index].kind;
  if (args != nullptr && (kind == SlotKind::Integer || kind == SlotKind::Input)) {
    return Py_NewRef(args[output.index]);
  }
  if (kind == SlotKind::Integer) {
    return PyLong_FromLongLong(state.integers[output.index]);
  }
  if (kind == SlotKind::Value && output.last) {
    return THPVariable_Wrap(std::move(state.tensors[output.index]));
  }
  return THPVariable_Wrap(*state.refs[output.index]);
}

PyObject* build_outputs(const Program& program, RunState& state, PyObject* const* args,
                        bool single) {
  if (single) {
    PyObject* result = output_object(program.outputs[0], program, state, args);
    if (result == nullptr) {
      throw python_error();
    }
    return result;
  }
  THPObjectPtr tuple(PyTuple_New(static_cast<Py_ssize_t>(program.outputs.size())));
  for (size_t i = 0; i < program.outputs.size(); ++i) {
    PyObject* item =
        tuple ? output_object(program.outputs[i], program, state, args) : nullptr;
    if (item == nullptr) {
      throw python_error();
    }
    PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(i), item);
  }
  return tuple.release();
}

void run_steps(const Program& program, RunState& state, bool owns_inputs) {
  for (const Step& step : program.steps) {
    run_step(step, program, state);
    for (int32_t slot : step.dead) {
      state.tensors[slot].reset();
    }
    if (owns_inputs) {
      for (int32_t slot : step.dead_inputs) {
        state.tensors[slot].reset();
      }
    }
  }
}

// Lets other Python threads run for a scope.
class NoGil {
 public:
  NoGil() : thread_(PyEval_SaveThread()) {}
  ~NoGil() { PyEval_RestoreThread(thread_); }
  NoGil(const NoGil&) = delete;
  NoGil& operator=(const NoGil&) = delete;

 private:
  PyThreadState* thread_;
};

// Kernels start as many threads as OpenMP thinks this thread wants: torch tells it once a thread.
void prepare_thread() {
  static thread_local bool prepared = false;
  if (!prepared) {
    at::get_num_threads();
    prepared = true;
  }
}

void* current_stream(int device) {
  static PyObject* function = nullptr;
  if (function == nullptr) {
    THPObjectPtr module(PyImport_ImportModule("torch._C"));
    function =
        module ? PyObject_GetAttrString(module, "_cuda_getCurrentRawStream") : nullptr;
    if (function == nullptr) {
      throw python_error();
    }
  }
  THPObjectPtr index(PyLong_FromLong(device));
  THPObjectPtr stream(index ? PyObject_CallOneArg(function, index) : nullptr);
  void* result = stream ? PyLong_AsVoidPtr(stream) : nullptr;
  if (PyErr_Occurred() != nullptr) {
    throw python_error();
  }
  return result;
}

std::shared_ptr<void> allocate_arena(size_t nbytes) {
  if (nbytes == 0) {
    return nullptr;
  }
  size_t alignment = nbytes >= kHugePage ? kHugePage : kAlignment;
  void* memory = nullptr;
  TORCH_CHECK(posix_memalign(&memory, alignment, nbytes) == 0,
              "can't allocate memory: a compiled graph needs ", nbytes, " bytes at once");
  if (nbytes >= kHugePage) {
    madvise(memory, nbytes / kHugePage * kHugePage, MADV_HUGEPAGE);  // a hint, may be refused
  }
  return std::shared_ptr<void>(memory, std::free);
}

// A storage inside the arena that keeps the arena alive.
c10::Storage storage_in(const std::shared_ptr<void>& arena, size_t offset, size_t nbytes) {
  auto* holder = new std::shared_ptr<void>(arena);
  auto release = [](void* context) { delete static_cast<std::shared_ptr<void>*>(context); };
  c10::DataPtr data(static_cast<char*>(arena.get()) + offset, holder, release, c10::kCPU);
  return c10::Storage(c10::Storage::use_byte_size_t(), static_cast<int64_t>(nbytes), std::move(data),
                      nullptr, /*resizable=*/false);
}

void keep_tensor(int32_t slot, const Program& program, RunState& state) {
  const SlotInfo& info = program.slots[slot];
  const MemoryGroup& group = program.groups[info.group];
  c10::Storage& storage = state.storages[info.group];
  if (!storage) {
    storage = storage_in(state.arena, group.offset, group.nbytes);
  }
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), DispatchKeySet(DispatchKey::CPU),
      c10::scalarTypeToTypeMeta(info.layout.dtype));
  auto itemsize = static_cast<int64_t>(c10::elementSize(info.layout.dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(
      info.layout.fixed_size, info.layout.fixed_stride, info.byte_offset / itemsize);
  state.tensors[slot] = std::move(tensor);
}

}  // namespace

std::unique_ptr<RunState> make_state(const Program& program) {
  c10::InferenceMode normal(false);  // what is kept may be used in either mode
  auto state = std::make_unique<RunState>();
  size_t n_slots = program.slots.size();
  state->data.resize(n_slots, nullptr);
  state->refs.resize(n_slots, nullptr);
  state->tensors.resize(n_slots);
  state->integers.resize(program.inputs.size(), 0);
  state->symbols.resize(program.n_symbols, 0);
  state->expressions.resize(program.expressions.size(), 0);
  state->pointers.resize(program.max_args, nullptr);
  state->launch_values.resize(program.tritons.empty() ? 0 : program.max_args);
  state->storages.resize(program.groups.size());
  state->arena = allocate_arena(program.arena_bytes);
  for (int32_t slot : program.kept_tensors) {
    keep_tensor(slot, program, *state);
  }
  for (size_t slot = 0; slot < n_slots; ++slot) {
    const SlotInfo& info = program.slots[slot];
    state->refs[slot] = &state->tensors[slot];
    if (info.kind == SlotKind::Planned) {
      state->data[slot] = static_cast<char*>(state->arena.get()) + program.groups[info.group].offset +
                          info.byte_offset;
    }
  }
  return state;
}

bool is_reusable(const Program& program, const RunState& state) {
  for (int32_t slot : program.kept_tensors) {
    if (state.tensors[slot].use_count() != 1) {
      return false;
    }
  }
  for (size_t group = 0; group < state.storages.size(); ++group) {
    if (state.storages[group] && state.storages[group].use_count() != program.groups[group].kept + 1) {
      return false;
    }
  }
  return true;
}

void clear_state(const Program& program, RunState& state) {
  for (int32_t slot : program.owned_slots) {
    state.tensors[slot].reset();
  }
  state.holds_inputs = false;
}

PyObject* run_program(const Program& program, RunState& state, PyObject* const* args,
                      PyObject* list, bool single) {
  Inputs(program, state, args, list != nullptr).take();
  if (list != nullptr) {
    args = nullptr;
    if (PyList_SetSlice(list, 0, PyList_GET_SIZE(list), nullptr) < 0) {
      throw python_error();
    }
  }
  for (int32_t slot : program.mutated_inputs) {
    state.refs[slot]->unsafeGetTensorImpl()->bump_version();
  }
  if (program.runs_kernels) {
    prepare_thread();
  }
  if (program.cuda_device != kNone) {
    state.stream = current_stream(program.cuda_device);
  }
  {
    std::optional<c10::impl::ExcludeDispatchKeyGuard> below_autograd;
    if (program.dispatches) {
      below_autograd.emplace(kExcluded);
    }
    std::optional<NoGil> no_gil;
    if (program.releases_gil) {
      no_gil.emplace();
    }
    run_steps(program, state, list != nullptr);
  }
  PyObject* result = build_outputs(program, state, args, single);
  if (state.holds_inputs) {
    clear_state(program, state);
  }
  return result;
}

}  // namespace minidynamo
