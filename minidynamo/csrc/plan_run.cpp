// One run of a program: inputs in, steps, outputs out.
#include "plan.h"

#include <ATen/Parallel.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/object_ptr.h>


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
    // Where the tensor has a Python object already, wrapping it leaves it where it is.
    at::Tensor tensor = std::move(state.tensors[output.index]);
    return THPVariable_Wrap(std::move(tensor));
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

}  // namespace

void clear_state(const Program& program, RunState& state) {
  for (int32_t slot : program.owned_slots) {
    state.tensors[slot].reset();
  }
  state.holds_inputs = false;
  state.copies.clear();
  if (!program.keeps_memory) {
    detach_memory(program, state);
  }
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
    for (const AlignedCopy& item : state.copies) {
      if (item.slot == slot) {
        item.original.unsafeGetTensorImpl()->bump_version();
      }
    }
  }
  if (program.runs_kernels) {
    prepare_thread();
  }
  if (!program.keeps_memory) {
    attach_memory(program, state);
  }
  state.streams.clear();
  for (int device : program.cuda_devices) {
    state.streams.push_back(current_stream(device));
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
  if (!state.copies.empty()) {
    return_inputs(program, state);
  }
  PyObject* result = build_outputs(program, state, args, single);
  if (state.holds_inputs || !program.keeps_memory) {
    clear_state(program, state);
  }
  return result;
}

}  // namespace minidynamo
