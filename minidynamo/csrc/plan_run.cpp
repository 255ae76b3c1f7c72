// One run of a program: inputs in, steps, outputs out.
#include "plan.h"

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/object_ptr.h>

#include "plan_blocks.h"

namespace minidynamo {

namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;

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
  auto block = std::make_shared<c10::DataPtr>(allocate_block(nbytes));
  return std::shared_ptr<void>(block, block->get());
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
    const at::Tensor& tensor = state.tensors[slot];
    const Layout& layout = program.slots[slot].layout;
    bool untouched = tensor.use_count() == 1 && tensor.sizes().equals(layout.fixed_size) &&
                     tensor.strides().equals(layout.fixed_stride);
    if (!untouched) {
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
  take_inputs(program, state, args, list != nullptr);
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
      below_autograd.emplace(excluded_keys());
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
