// The type Entry: guards, and the code to run when they hold.
#include "guards.h"
#include "hook.h"

#include <structmember.h>

static PyObject* empty_tuple;
static PyObject* replace_name;  // interned: other strings fill the type attribute cache

// Guards that are a Python callable are called with (tuple of the arguments, function); a tuple
// that they return is `fetched`, any other result is taken for its truth.
static int check_callable(PyObject* guards, int nargs, PyObject* const* localsplus,
                          PyFunctionObject* func, PyObject** fetched) {
  PyObject* values = PyTuple_New(nargs);
  if (values == NULL) {
    return -1;
  }
  for (int i = 0; i < nargs; i++) {
    PyTuple_SET_ITEM(values, i, Py_NewRef(localsplus[i]));
  }
  PyObject* result = PyObject_CallFunctionObjArgs(guards, values, (PyObject*)func, NULL);
  Py_DECREF(values);
  if (result == NULL) {
    return -1;
  }
  if (PyTuple_CheckExact(result)) {
    *fetched = result;
    return 1;
  }
  int truth = PyObject_IsTrue(result);
  Py_DECREF(result);
  return truth;
}

int md_entry_check(MdEntry* entry, PyObject* const* localsplus, PyFunctionObject* func,
                   PyObject** fetched) {
  *fetched = NULL;
  PyObject* guards = entry->guards;
  int holds = 1;
  if (guards != Py_None) {
    Py_INCREF(guards);
    md_thread.quiet++;
    if (md_guard_program_check(guards)) {
      holds = md_guard_check(guards, localsplus, func, fetched);
      if (holds == 0 && md_guard_is_dead(guards)) {
        entry->valid = 0;  // dropped at the next look
      }
    } else {
      holds = check_callable(guards, entry->nargs, localsplus, func, fetched);
    }
    if (holds < 0) {
      PyErr_WriteUnraisable(guards);
      holds = 0;
    }
    md_thread.quiet--;
    Py_DECREF(guards);
  }
  if (!holds) {
    Py_CLEAR(*fetched);
  } else if (!entry->inputs_slot) {
    Py_CLEAR(*fetched);
  } else if (*fetched == NULL) {
    *fetched = Py_NewRef(empty_tuple);
  }
  return holds;
}

static int free_variables_equal(PyCodeObject* a, PyCodeObject* b) {
  if (a->co_nfreevars != b->co_nfreevars) {
    return 0;
  }
  for (int i = 1; i <= a->co_nfreevars; i++) {
    PyObject* left = PyTuple_GET_ITEM(a->co_localsplusnames, a->co_nlocalsplus - i);
    PyObject* right = PyTuple_GET_ITEM(b->co_localsplusnames, b->co_nlocalsplus - i);
    if (left != right && PyUnicode_Compare(left, right) != 0) {
      return 0;
    }
  }
  return 1;
}

int md_entry_fits(MdEntry* entry, PyCodeObject* code) {
  PyCodeObject* own = entry->code;
  const int flags = CO_VARARGS | CO_VARKEYWORDS;
  const char* problem = NULL;
  if (own->co_argcount != code->co_argcount ||
      own->co_posonlyargcount != code->co_posonlyargcount ||
      own->co_kwonlyargcount != code->co_kwonlyargcount ||
      (own->co_flags & flags) != (code->co_flags & flags)) {
    problem = "its parameters differ";
  } else if (own->co_nfreevars != 0 && !free_variables_equal(own, code)) {
    problem = "its free variables are neither none nor the original's";
  } else if (entry->owner != NULL) {
    problem = "it is installed already";
  }
  if (problem != NULL) {
    PyErr_Format(PyExc_TypeError, "the entry's code cannot stand in for %U: %s",
                 code->co_qualname, problem);
    return -1;
  }
  return 0;
}

// What is told of every code object that is made here, or NULL.
static PyObject* made_callback = NULL;

static PyObject* on_made_code(PyObject* module, PyObject* callback) {
  Py_XSETREF(made_callback, callback == Py_None ? NULL : Py_NewRef(callback));
  Py_RETURN_NONE;
}

// The code with the same arguments, all positional. Marked, so that the hook does not offer it.
static PyCodeObject* make_call_code(MdEntry* entry) {
  PyCodeObject* code = entry->code;
  PyObject* replace = PyObject_GetAttr((PyObject*)code, replace_name);
  PyObject* fields = Py_BuildValue(
      "{s:i,s:i,s:i,s:i}", "co_argcount", entry->nargs + entry->inputs_slot, "co_posonlyargcount",
      0, "co_kwonlyargcount", 0, "co_flags", code->co_flags & ~(CO_VARARGS | CO_VARKEYWORDS));
  PyObject* made = NULL;
  if (replace != NULL && fields != NULL) {
    made = PyObject_Call(replace, empty_tuple, fields);
  }
  Py_XDECREF(replace);
  Py_XDECREF(fields);
  MdCodeState* state = made != NULL ? md_state_ensure((PyCodeObject*)made) : NULL;
  if (state == NULL) {
    Py_XDECREF(made);
    return NULL;
  }
  state->skip = MD_GENERATED;
  if (made_callback != NULL) {
    PyObject* answer = PyObject_CallOneArg(made_callback, made);
    if (answer == NULL) {
      Py_DECREF(made);
      return NULL;
    }
    Py_DECREF(answer);
  }
  return (PyCodeObject*)made;
}

PyObject* md_entry_function(MdEntry* entry, PyFunctionObject* func) {
  if (entry->call_code == NULL) {
    PyCodeObject* made = make_call_code(entry);
    if (made == NULL) {
      return NULL;
    }
    Py_XSETREF(entry->call_code, made);
  }
  PyObject* result = PyFunction_New((PyObject*)entry->call_code, func->func_globals);
  if (result == NULL) {
    return NULL;
  }
  PyFunctionObject* made = (PyFunctionObject*)result;
  Py_XSETREF(made->func_builtins, Py_XNewRef(func->func_builtins));
  // A generator takes its name from the function.
  Py_XSETREF(made->func_name, Py_XNewRef(func->func_name));
  Py_XSETREF(made->func_qualname, Py_XNewRef(func->func_qualname));
  if (entry->call_code->co_nfreevars != 0) {
    Py_XSETREF(made->func_closure, Py_XNewRef(func->func_closure));
  }
  return result;
}

// The type -------------------------------------------------------------------------------------

static int check_inputs_slot(PyCodeObject* code, int slot) {
  if (slot < code->co_nlocalsplus && md_is_plain_local(code, slot)) {
    return 0;
  }
  PyErr_Format(PyExc_ValueError,
               "Entry: inputs_slot needs a plain local variable after the %d arguments", slot);
  return -1;
}

static PyObject* entry_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static char* names[] = {"guards", "code", "needs_hook", "inputs_slot", NULL};
  PyObject *guards, *code;
  int needs_hook = 1;
  int inputs_slot = 0;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO!|$pp:Entry", names, &guards, &PyCode_Type,
                                   &code, &needs_hook, &inputs_slot)) {
    return NULL;
  }
  if (guards != Py_None && !md_guard_program_check(guards) && !PyCallable_Check(guards)) {
    PyErr_Format(PyExc_TypeError, "Entry: guards must be a GuardProgram, a callable or None, "
                 "not %.100s", Py_TYPE(guards)->tp_name);
    return NULL;
  }
  int nargs = md_code_nargs((PyCodeObject*)code);
  if (inputs_slot && check_inputs_slot((PyCodeObject*)code, nargs) < 0) {
    return NULL;
  }
  MdEntry* self = (MdEntry*)type->tp_alloc(type, 0);
  if (self != NULL) {
    self->guards = Py_NewRef(guards);
    self->code = (PyCodeObject*)Py_NewRef(code);
    self->data = Py_NewRef(Py_None);
    self->nargs = nargs;
    self->valid = 1;
    self->needs_hook = (char)needs_hook;
    self->inputs_slot = (char)inputs_slot;
  }
  return (PyObject*)self;
}

static int entry_traverse(MdEntry* self, visitproc visit, void* arg) {
  Py_VISIT(self->guards);
  Py_VISIT(self->code);
  Py_VISIT(self->data);
  Py_VISIT(self->call_code);
  return 0;
}

static int entry_clear(MdEntry* self) {
  // Guards and code stay in place: an entry is never half there for the hook.
  Py_CLEAR(self->data);
  return 0;
}

static void entry_dealloc(MdEntry* self) {
  PyObject_GC_UnTrack(self);
  Py_CLEAR(self->data);
  Py_CLEAR(self->guards);
  Py_CLEAR(self->code);
  Py_CLEAR(self->call_code);
  Py_TYPE(self)->tp_free((PyObject*)self);
}

static PyMemberDef entry_members[] = {
    {"guards", T_OBJECT, offsetof(MdEntry, guards), READONLY, "GuardProgram, callable or None"},
    {"code", T_OBJECT, offsetof(MdEntry, code), READONLY, "the code that runs on a hit"},
    {"data", T_OBJECT, offsetof(MdEntry, data), 0, "the compiler's own"},
    {"hits", T_PYSSIZET, offsetof(MdEntry, hits), 0, "how often it ran"},
    {"valid", T_BOOL, offsetof(MdEntry, valid), 0,
     "an entry set invalid is dropped when it is looked at next"},
    {"needs_hook", T_BOOL, offsetof(MdEntry, needs_hook), READONLY,
     "whether its code calls something that has to be offered"},
    {"inputs_slot", T_BOOL, offsetof(MdEntry, inputs_slot), READONLY,
     "whether the local after the arguments gets the tuple that the guards fetched"},
    {NULL}};

PyTypeObject MdEntry_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "minidynamo._C.Entry",
    .tp_doc = "Entry(guards, code, *, needs_hook=True, inputs_slot=False): one compiled variant "
              "of a code object.",
    .tp_basicsize = sizeof(MdEntry),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = entry_new,
    .tp_dealloc = (destructor)entry_dealloc,
    .tp_traverse = (traverseproc)entry_traverse,
    .tp_clear = (inquiry)entry_clear,
    .tp_members = entry_members,
};

static PyMethodDef entry_functions[] = {
    {"on_made_code", on_made_code, METH_O,
     "on_made_code(callable or None): call it with every code object that is made from an entry's"},
    {NULL}};

int md_init_entry(PyObject* module) {
  empty_tuple = PyTuple_New(0);
  replace_name = PyUnicode_InternFromString("replace");
  if (empty_tuple == NULL || replace_name == NULL) {
    return -1;
  }
  if (PyModule_AddFunctions(module, entry_functions) < 0) {
    return -1;
  }
  return PyModule_AddType(module, &MdEntry_Type);
}
