// The extension module minidynamo._C: each part adds its own types and functions to it.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern "C" {
int md_init_eval_frame(PyObject* module);
int md_init_guards(PyObject* module);
int md_init_plan(PyObject* module);
int md_init_differentiable(PyObject* module);
}

static PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT,
    "minidynamo._C",
    "The native part of minidynamo: frame hook, guard programs, plan executor.",
    -1,
    nullptr,
    nullptr,
    nullptr,
    nullptr,
    nullptr,
};

PyMODINIT_FUNC PyInit__C(void) {
  PyObject* module = PyModule_Create(&module_def);
  if (module == nullptr) {
    return nullptr;
  }
  if (md_init_eval_frame(module) < 0 || md_init_guards(module) < 0 || md_init_plan(module) < 0 ||
      md_init_differentiable(module) < 0) {
    Py_DECREF(module);
    return nullptr;
  }
  return module;
}
