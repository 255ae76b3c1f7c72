// The Python side of plans: the types PlanExecutor and BoxedPlan, and the memory that idle
// executors may keep.
#include "plan.h"

#include <pybind11/pybind11.h>
#include <structmember.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

#include "plan_blocks.h"

namespace minidynamo {

namespace py = pybind11;

namespace {

struct PlanExecutor {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyObject* dict;
  PyObject* weakrefs;
  Program* program;
  std::vector<std::unique_ptr<RunState>>* idle;
  bool single;
};

struct BoxedPlan {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyObject* dict;
  PlanExecutor* executor;
};

PyTypeObject* executor_type = nullptr;
PyTypeObject* boxed_type = nullptr;

// --- run states between runs ------------------------------------------------------------------
// All under the GIL. The least recently used state goes when the arenas of all idle states together
// pass the limit of the pool of blocks; its arena then goes to that pool.

struct IdleMemory {
  std::vector<PlanExecutor*> executors;
  size_t bytes = 0;
  size_t limit = pool_limit();
  uint64_t clock = 0;
};

IdleMemory& idle_memory() {
  static IdleMemory instance;
  return instance;
}

void drop_oldest() {
  IdleMemory& memory = idle_memory();
  PlanExecutor* oldest = nullptr;
  for (PlanExecutor* executor : memory.executors) {
    bool candidate = !executor->idle->empty() && executor->program->kept_bytes() > 0;
    if (candidate && (oldest == nullptr || executor->idle->front()->last_use <
                                               oldest->idle->front()->last_use)) {
      oldest = executor;
    }
  }
  if (oldest == nullptr) {
    return;
  }
  memory.bytes -= oldest->program->kept_bytes();
  std::unique_ptr<RunState> state = std::move(oldest->idle->front());
  oldest->idle->erase(oldest->idle->begin());
}

std::unique_ptr<RunState> take_state(PlanExecutor* self) {
  if (self->idle->empty()) {
    return make_state(*self->program);
  }
  std::unique_ptr<RunState> state = std::move(self->idle->back());
  self->idle->pop_back();
  idle_memory().bytes -= self->program->kept_bytes();
  return state;
}

void give_back(PlanExecutor* self, std::unique_ptr<RunState> state) {
  if (!is_reusable(*self->program, *state)) {
    return;  // what escaped keeps its memory alive
  }
  IdleMemory& memory = idle_memory();
  state->last_use = ++memory.clock;
  memory.bytes += self->program->kept_bytes();
  self->idle->push_back(std::move(state));
  while (memory.bytes > memory.limit) {
    drop_oldest();
  }
}

PyObject* run(PlanExecutor* self, PyObject* const* args, PyObject* list) {
  std::unique_ptr<RunState> state = take_state(self);
  PyObject* result;
  try {
    result = run_program(*self->program, *state, args, list, self->single);
  } catch (...) {
    clear_state(*self->program, *state);
    give_back(self, std::move(state));
    throw;
  }
  give_back(self, std::move(state));
  return result;
}

bool check_count(PlanExecutor* self, Py_ssize_t count) {
  if (self->program == nullptr) {
    PyErr_SetString(PyExc_RuntimeError, "the compiled graph was cleared by the garbage collector");
    return false;
  }
  auto expected = static_cast<Py_ssize_t>(self->program->inputs.size());
  if (count != expected) {
    PyErr_Format(PyExc_TypeError, "the compiled graph takes %zd inputs, %zd were given", expected,
                 count);
  }
  return count == expected;
}

bool check_keywords(PyObject* names) {
  bool none = names == nullptr || PyTuple_GET_SIZE(names) == 0;
  if (!none) {
    PyErr_SetString(PyExc_TypeError, "a compiled graph takes positional inputs only");
  }
  return none;
}

// --- PlanExecutor -----------------------------------------------------------------------------

PyObject* executor_call(PyObject* object, PyObject* const* args, size_t flags, PyObject* names) {
  HANDLE_TH_ERRORS
  auto* self = reinterpret_cast<PlanExecutor*>(object);
  if (!check_keywords(names) || !check_count(self, PyVectorcall_NARGS(flags))) {
    return nullptr;
  }
  return run(self, args, nullptr);
  END_HANDLE_TH_ERRORS
}

PyObject* executor_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"spec", "library", "constants", "callables", "single",
                                "keep_memory", nullptr};
  PyObject* spec = nullptr;
  const char* library = nullptr;
  PyObject* constants = nullptr;
  PyObject* callables = nullptr;
  int single = 0;
  int keep_memory = 1;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!|zOO!pp:PlanExecutor",
                                   const_cast<char**>(names), &PyDict_Type, &spec, &library,
                                   &constants, &PyDict_Type, &callables, &single, &keep_memory)) {
    return nullptr;
  }
  HANDLE_TH_ERRORS
  try {
    py::object no_constants = py::tuple();
    py::object no_callables = py::dict();
    std::unique_ptr<Program> program =
        parse_program(spec, library, constants != nullptr ? constants : no_constants.ptr(),
                      callables != nullptr ? callables : no_callables.ptr(), keep_memory != 0);
    if (single != 0 && program->outputs.size() != 1) {
      throw py::value_error("a plan with one output is needed for single=True");
    }
    auto* self = reinterpret_cast<PlanExecutor*>(type->tp_alloc(type, 0));
    if (self == nullptr) {
      return nullptr;
    }
    self->vectorcall = executor_call;
    self->program = program.release();
    self->idle = new std::vector<std::unique_ptr<RunState>>();
    self->single = single != 0;
    idle_memory().executors.push_back(self);
    return reinterpret_cast<PyObject*>(self);
  } catch (py::builtin_exception& error) {
    error.set_error();
    return nullptr;
  }
  END_HANDLE_TH_ERRORS
}

int executor_traverse(PyObject* object, visitproc visit, void* arg) {
  auto* self = reinterpret_cast<PlanExecutor*>(object);
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(self->dict);
  if (self->program != nullptr) {
    for (PyObject* item : self->program->objects) {
      Py_VISIT(item);
    }
  }
  return 0;
}

// Leaves an executor that can only be dropped, or refuse to run.
int executor_clear(PyObject* object) {
  auto* self = reinterpret_cast<PlanExecutor*>(object);
  Py_CLEAR(self->dict);
  if (self->program != nullptr) {
    IdleMemory& memory = idle_memory();
    memory.bytes -= self->idle->size() * self->program->kept_bytes();
    std::erase(memory.executors, self);
    std::unique_ptr<std::vector<std::unique_ptr<RunState>>> idle(std::exchange(self->idle, nullptr));
    std::unique_ptr<Program> program(std::exchange(self->program, nullptr));
  }
  return 0;
}

void executor_dealloc(PyObject* object) {
  auto* self = reinterpret_cast<PlanExecutor*>(object);
  PyTypeObject* type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  if (self->weakrefs != nullptr) {
    PyObject_ClearWeakRefs(object);
  }
  executor_clear(object);
  type->tp_free(object);
  Py_DECREF(type);
}

PyObject* executor_boxed(PyObject* object, void*);

PyObject* executor_info(PyObject* object, void*) {
  HANDLE_TH_ERRORS
  auto* self = reinterpret_cast<PlanExecutor*>(object);
  if (!check_count(self, static_cast<Py_ssize_t>(self->program ? self->program->inputs.size() : 0))) {
    return nullptr;
  }
  const Program& program = *self->program;
  auto planned = std::count_if(program.slots.begin(), program.slots.end(), [](const SlotInfo& slot) {
    return slot.kind == SlotKind::Planned;
  });
  auto typed = std::count_if(program.externs.begin(), program.externs.end(),
                             [](const ExternStep& step) { return step.typed != nullptr; });
  py::dict info;
  info["inputs"] = program.inputs.size();
  info["outputs"] = program.outputs.size();
  info["steps"] = program.steps.size();
  info["planned_slots"] = planned;
  info["arena_bytes"] = std::accumulate(
      program.arenas.begin(), program.arenas.end(), size_t{0},
      [](size_t total, const Arena& arena) { return total + arena.nbytes; });
  info["typed_calls"] = typed;
  info["releases_gil"] = program.releases_gil;
  info["idle_states"] = self->idle->size();
  return info.release().ptr();
  END_HANDLE_TH_ERRORS
}

PyObject* executor_track_views(PyObject* object, PyObject*) {
  HANDLE_TH_ERRORS
  track_views(*reinterpret_cast<PlanExecutor*>(object)->program);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyMethodDef executor_methods[] = {
    {"track_views", executor_track_views, METH_NOARGS,
     "track_views()\n--\n\n"
     "From now on results that share memory are views for autograd: for graphs that no wrapper\n"
     "stands around."},
    {nullptr, nullptr, 0, nullptr},
};

PyGetSetDef executor_getset[] = {
    {"boxed", executor_boxed, nullptr,
     "The same plan as a callable of one list of inputs, which it empties; each input is dropped "
     "after its last use.",
     nullptr},
    {"info", executor_info, nullptr, "What the executor made of the plan, as a dictionary.", nullptr},
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyMemberDef executor_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(PlanExecutor, vectorcall), READONLY, nullptr},
    {"__dictoffset__", T_PYSSIZET, offsetof(PlanExecutor, dict), READONLY, nullptr},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(PlanExecutor, weakrefs), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

const char executor_doc[] =
    "PlanExecutor(spec, library=None, constants=(), callables={}, single=False, keep_memory=True)\n--\n\n"
    "Runs a plan: called with the inputs (tensors and ints, positional) it returns the tuple of\n"
    "outputs, or the only output with single=True. Results carry no grad history.\n\n"
    "spec: Plan.to_dict(). library: path of the shared library of its kernels. constants: tensors\n"
    "for its constants, in order. callables: name -> callable of its PyCall steps.\n"
    "keep_memory: whether planned CPU memory stays allocated between calls.\n"
    "Raises ValueError or TypeError for a wrong plan and for inputs that do not fit it; what a\n"
    "step raises passes through, and the executor can be called again.";

PyType_Slot executor_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(executor_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(executor_dealloc)},
    {Py_tp_traverse, reinterpret_cast<void*>(executor_traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(executor_clear)},
    {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
    {Py_tp_getset, executor_getset},
    {Py_tp_methods, executor_methods},
    {Py_tp_members, executor_members},
    {Py_tp_doc, const_cast<char*>(executor_doc)},
    {0, nullptr},
};

PyType_Spec executor_spec = {
    "minidynamo._C.PlanExecutor", sizeof(PlanExecutor), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL, executor_slots};

// --- BoxedPlan --------------------------------------------------------------------------------

PyObject* boxed_call(PyObject* object, PyObject* const* args, size_t flags, PyObject* names) {
  HANDLE_TH_ERRORS
  auto* self = reinterpret_cast<BoxedPlan*>(object);
  Py_ssize_t count = PyVectorcall_NARGS(flags);
  if (!check_keywords(names)) {
    return nullptr;
  }
  if (count != 1 || !PyList_Check(args[0])) {
    PyErr_SetString(PyExc_TypeError, "a boxed plan takes one list of inputs");
    return nullptr;
  }
  PyObject* list = args[0];
  if (!check_count(self->executor, PyList_GET_SIZE(list))) {
    return nullptr;
  }
  return run(self->executor, PySequence_Fast_ITEMS(list), list);
  END_HANDLE_TH_ERRORS
}

PyObject* executor_boxed(PyObject* object, void*) {
  auto* boxed = reinterpret_cast<BoxedPlan*>(boxed_type->tp_alloc(boxed_type, 0));
  if (boxed != nullptr) {
    boxed->vectorcall = boxed_call;
    boxed->executor = reinterpret_cast<PlanExecutor*>(Py_NewRef(object));
  }
  return reinterpret_cast<PyObject*>(boxed);
}

int boxed_traverse(PyObject* object, visitproc visit, void* arg) {
  auto* self = reinterpret_cast<BoxedPlan*>(object);
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(self->dict);
  Py_VISIT(self->executor);
  return 0;
}

int boxed_clear(PyObject* object) {
  Py_CLEAR(reinterpret_cast<BoxedPlan*>(object)->dict);
  return 0;
}

void boxed_dealloc(PyObject* object) {
  auto* self = reinterpret_cast<BoxedPlan*>(object);
  PyTypeObject* type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  Py_CLEAR(self->dict);
  Py_CLEAR(self->executor);
  type->tp_free(object);
  Py_DECREF(type);
}

// AOTAutograd asks for this attribute: the callable takes one list and empties it.
PyObject* boxed_flag(PyObject*, void*) {
  Py_RETURN_TRUE;
}

PyObject* boxed_executor(PyObject* object, void*) {
  return Py_NewRef(reinterpret_cast<PyObject*>(reinterpret_cast<BoxedPlan*>(object)->executor));
}

PyGetSetDef boxed_getset[] = {
    {"_boxed_call", boxed_flag, nullptr, "True: inputs come in one list, which is emptied.", nullptr},
    {"executor", boxed_executor, nullptr, "The PlanExecutor.", nullptr},
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyMemberDef boxed_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(BoxedPlan, vectorcall), READONLY, nullptr},
    {"__dictoffset__", T_PYSSIZET, offsetof(BoxedPlan, dict), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyType_Slot boxed_slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(boxed_dealloc)},
    {Py_tp_traverse, reinterpret_cast<void*>(boxed_traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(boxed_clear)},
    {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
    {Py_tp_getset, boxed_getset},
    {Py_tp_members, boxed_members},
    {Py_tp_doc, const_cast<char*>("A PlanExecutor called with one list of inputs.")},
    {0, nullptr},
};

PyType_Spec boxed_spec = {"minidynamo._C.BoxedPlan", sizeof(BoxedPlan), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
                              Py_TPFLAGS_DISALLOW_INSTANTIATION,
                          boxed_slots};

// --- the module -------------------------------------------------------------------------------

PyObject* plan_memory_limit(PyObject*, PyObject* value) {
  IdleMemory& memory = idle_memory();
  size_t before = memory.limit;
  if (value != Py_None) {
    size_t limit = PyLong_AsSize_t(value);
    if (PyErr_Occurred() != nullptr) {
      return nullptr;
    }
    memory.limit = limit;
    while (memory.bytes > memory.limit) {
      drop_oldest();
    }
    limit_pool(limit);
  }
  return PyLong_FromSize_t(before);
}

PyObject* plan_memory_kept(PyObject*, PyObject*) {
  return Py_BuildValue("nn", static_cast<Py_ssize_t>(idle_memory().bytes),
                       static_cast<Py_ssize_t>(pooled_bytes()));
}

PyMethodDef functions[] = {
    {"plan_memory_limit", plan_memory_limit, METH_O,
     "plan_memory_limit(nbytes | None) -> previous\n--\n\n"
     "How many bytes executors may keep for their next call, all together, and as many again may\n"
     "wait in the pool of freed blocks. At first: a sixteenth of the machine's memory, at least\n"
     "256 MiB and at most 4 GiB. None changes nothing."},
    {"plan_memory_kept", plan_memory_kept, METH_NOARGS,
     "plan_memory_kept() -> (arenas, pool)\n--\n\nBytes that are kept now."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

}  // namespace minidynamo

extern "C" int md_init_plan(PyObject* module) {
  using namespace minidynamo;
  executor_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&executor_spec));
  boxed_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&boxed_spec));
  if (executor_type == nullptr || boxed_type == nullptr ||
      PyModule_AddType(module, executor_type) < 0 || PyModule_AddType(module, boxed_type) < 0) {
    return -1;
  }
  return PyModule_AddFunctions(module, functions);
}
