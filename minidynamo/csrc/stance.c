// Whether compiled functions run in eager for now: as set_stance chose here, or in torch, which
// keeps its choice in a name of a module and tells nobody.
#include "guards_dict.h"
#include "hook.h"

static char forced_eager;
// The names of torch's module, its stance when it was last looked at, and whom another is told.
static PyObject* names;
static uint64_t names_version;  // of the dict when it was last looked at
static PyObject* seen;
static PyObject* listener;
static PyObject* key;

static void tell(PyObject* stance) {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyObject* former = seen;
  seen = Py_NewRef(stance);
  Py_XDECREF(former);
  md_thread.quiet++;
  PyObject* result = PyObject_CallOneArg(listener, stance);
  md_thread.quiet--;
  if (result == NULL) {
    PyErr_WriteUnraisable(listener);
  }
  Py_XDECREF(result);
  PyErr_Restore(type, value, traceback);
}

int md_is_eager_forced(void) {
  if (names != NULL && *md_dict_version(names) != names_version) {
    names_version = *md_dict_version(names);
    PyObject* stance = PyDict_GetItem(names, key);
    if (stance != seen && stance != NULL) {
      tell(stance);
    }
  }
  return forced_eager;
}

static PyObject* force_eager(PyObject* module, PyObject* flag) {
  int truth = PyObject_IsTrue(flag);
  if (truth < 0) {
    return NULL;
  }
  forced_eager = (char)truth;
  Py_RETURN_NONE;
}

static PyObject* follow_stance(PyObject* module, PyObject* const* args, Py_ssize_t nargs) {
  if (nargs != 2 || !PyDict_Check(args[0]) || !PyCallable_Check(args[1])) {
    PyErr_SetString(PyExc_TypeError, "follow_stance: expected a dict and a callable");
    return NULL;
  }
  Py_XSETREF(listener, Py_NewRef(args[1]));
  Py_XSETREF(names, Py_NewRef(args[0]));
  names_version = 0;
  md_is_eager_forced();
  Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"force_eager", force_eager, METH_O,
     "force_eager(flag): compiled functions run what they were made of, in all threads"},
    {"follow_stance", (PyCFunction)(void (*)(void))follow_stance, METH_FASTCALL,
     "follow_stance(names, listener): call listener(names['_stance']), now and where a compiled "
     "function is called after it was bound to another object"},
    {NULL}};

int md_init_stance(PyObject* module) {
  key = PyUnicode_InternFromString("_stance");
  return key == NULL ? -1 : PyModule_AddFunctions(module, functions);
}
