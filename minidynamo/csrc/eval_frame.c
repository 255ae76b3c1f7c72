#define PY_SSIZE_T_CLEAN
#include <Python.h>

int md_init_eval_frame(PyObject* module) {
  return PyModule_AddIntConstant(module, "hook", 1);
}
