// The type GuardProgram, and what the frame hook calls.
#include "guards_program.h"

#include <new>

namespace {

struct ProgramObject {
  PyObject_HEAD
  md::Program* program;  // NULL after the garbage collector cleared it
};

extern PyTypeObject ProgramType;

md::Program* program_of(PyObject* self) { return reinterpret_cast<ProgramObject*>(self)->program; }

// Keeps C++ exceptions, which only running out of memory can bring, out of C.
template <typename Body>
int guarded(Body body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
    return -1;
  }
}

PyObject* program_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"nodes", "checks", "relations", "fetch", "layout", nullptr};
  PyObject *nodes, *checks, *relations, *fetch, *layout = Py_None;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOO|O:GuardProgram", const_cast<char**>(names),
                                   &nodes, &checks, &relations, &fetch, &layout)) {
    return nullptr;
  }
  PyObject* self = nullptr;
  guarded([&] {
    auto program = md::parse_program(nodes, checks, relations, fetch);
    if (!program) {
      return -1;
    }
    program->layout = md::Ref::of(layout);
    self = type->tp_alloc(type, 0);
    if (self != nullptr) {
      reinterpret_cast<ProgramObject*>(self)->program = program.release();
    }
    return 0;
  });
  return self;
}

int program_traverse(PyObject* self, visitproc visit, void* arg) {
  md::Program* program = program_of(self);
  return program != nullptr ? md::visit_references(*program, visit, arg) : 0;
}

int program_clear(PyObject* self) {
  md::Program* program = program_of(self);
  reinterpret_cast<ProgramObject*>(self)->program = nullptr;
  delete program;
  return 0;
}

void program_dealloc(PyObject* self) {
  PyObject_GC_UnTrack(self);
  program_clear(self);
  Py_TYPE(self)->tp_free(self);
}

// The arguments of check() and failure(): the values of localsplus (None cannot be told from an
// empty slot here) and the function.
struct Call {
  md::Ref arguments;
  PyFunctionObject* func = nullptr;

  bool parse(PyObject* args, const char* format) {
    PyObject *values, *function;
    if (!PyArg_ParseTuple(args, format, &values, &PyFunction_Type, &function)) {
      return false;
    }
    arguments = md::Ref(PySequence_Tuple(values));
    func = reinterpret_cast<PyFunctionObject*>(function);
    return static_cast<bool>(arguments);
  }

  bool suits(const md::Program& program) const {
    for (const md::Root& root : program.roots) {
      bool local = root.node->op == md::Op::kLocal;
      if (local && root.node->index >= PyTuple_GET_SIZE(arguments.get())) {
        PyErr_SetString(PyExc_ValueError, "the program reads more arguments than were given");
        return false;
      }
    }
    return true;
  }

  PyObject* const* localsplus() const {
    return reinterpret_cast<PyTupleObject*>(arguments.get())->ob_item;
  }
};

PyObject* program_check(PyObject* self, PyObject* args) {
  Call call;
  md::Program* program = program_of(self);
  if (!call.parse(args, "OO!:check") || program == nullptr || !call.suits(*program)) {
    return nullptr;
  }
  PyObject* fetched = nullptr;
  int passed = md_guard_check(self, call.localsplus(), call.func, &fetched);
  if (passed < 0) {
    return nullptr;
  }
  return Py_BuildValue("(NN)", PyBool_FromLong(passed),
                       fetched != nullptr ? fetched : Py_NewRef(Py_None));
}

PyObject* program_failure(PyObject* self, PyObject* args) {
  Call call;
  md::Program* program = program_of(self);
  if (!call.parse(args, "OO!:failure") || program == nullptr || !call.suits(*program)) {
    return nullptr;
  }
  md::Failure failure;
  int result = guarded([&] {
    return md::explain_program(*program, call.localsplus(), call.func, failure);
  });
  if (result < 0) {
    return nullptr;
  }
  if (failure.what == nullptr) {
    Py_RETURN_NONE;
  }
  return Py_BuildValue("(siN)", failure.what, failure.number, failure.found.release());
}

PyObject* program_layout(PyObject* self, void*) {
  md::Program* program = program_of(self);
  return Py_NewRef(program != nullptr ? program->layout.get() : Py_None);
}

PyObject* program_dead(PyObject* self, void*) {
  md::Program* program = program_of(self);
  return PyBool_FromLong(program == nullptr || program->dead);
}

PyObject* program_statistics(PyObject* self, void*) {
  md::Program* program = program_of(self);
  if (program == nullptr) {
    Py_RETURN_NONE;
  }
  long long words = 0, tensors = 0, runs = 0;
  for (const md::Root& root : program->roots) {
    root.snapshots.each([&](const md::Snapshot& snapshot) {
      words += static_cast<long long>(snapshot.words.size());
      tensors += static_cast<long long>(snapshot.tensors.size());
      runs += static_cast<long long>(snapshot.runs.size() + snapshot.edges.size());
    });
  }
  const md::Statistics& counts = program->statistics;
  return Py_BuildValue("{sn sL sL sL sL sL sL sL sL}", "nodes",
                       static_cast<Py_ssize_t>(program->nodes.size()), "words", words, "tensors",
                       tensors, "runs", runs, "walks", static_cast<long long>(counts.walks),
                       "recordings", static_cast<long long>(counts.recordings), "repairs",
                       static_cast<long long>(counts.repairs), "second_phases",
                       static_cast<long long>(counts.second_phases), "careful_walks",
                       static_cast<long long>(counts.careful_walks));
}

PyMethodDef kMethods[] = {
    {"check", program_check, METH_VARARGS,
     "check(arguments, function) -> (passed, fetched tuple or None): as for a call of function\n"
     "with the arguments in the order of its code's slots."},
    {"failure", program_failure, METH_VARARGS,
     "failure(arguments, function) -> (what, number, found) of the first guard that does not\n"
     "hold, or None. what: 'fetch' (number of the node; found: its base), 'check' (found: the\n"
     "object) or 'relation' (found: its objects)."},
    {nullptr, nullptr, 0, nullptr}};

PyGetSetDef kGetters[] = {
    {"layout", program_layout, nullptr, "What was passed as layout.", nullptr},
    {"dead", program_dead, nullptr,
     "Whether an object that it compares with has died: it will never pass again.", nullptr},
    {"statistics", program_statistics, nullptr, "Sizes and counts, for tests.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyTypeObject make_type() {
  PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
  type.tp_name = "minidynamo._C.GuardProgram";
  type.tp_basicsize = sizeof(ProgramObject);
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC;
  type.tp_doc =
      "GuardProgram(nodes, checks, relations, fetch, layout=None): see GuardSet.build.\n"
      "nodes: (base or -1, op, operand); checks: (node, kind, expected);\n"
      "relations: (kind, nodes, value); fetch: nodes.";
  type.tp_new = program_new;
  type.tp_dealloc = program_dealloc;
  type.tp_traverse = program_traverse;
  type.tp_clear = program_clear;
  type.tp_methods = kMethods;
  type.tp_getset = kGetters;
  return type;
}

PyTypeObject ProgramType = make_type();

}  // namespace

int md_guard_program_check(PyObject* object) { return Py_TYPE(object) == &ProgramType; }

int md_guard_is_dead(PyObject* program) {
  md::Program* p = program_of(program);
  return p == nullptr || p->dead;
}

int md_guard_check(PyObject* program, PyObject* const* localsplus, PyFunctionObject* func,
                   PyObject** fetched) {
  md::Program* p = program_of(program);
  if (p == nullptr) {
    return 0;
  }
  return guarded([&] { return md::run_program(*p, localsplus, func, fetched); });
}

int md_init_guards(PyObject* module) {
  if (PyModule_AddType(module, &ProgramType) < 0 || md::init_global_state(module) < 0 ||
      md::init_class_contents(module) < 0) {
    return -1;
  }
  return md::init_tensor_functions(module);
}
