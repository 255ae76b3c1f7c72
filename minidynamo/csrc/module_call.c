// Recognises calls of an nn.Module that come down to its forward: what torch's Module.__call__
// and Module._call_impl check on every call (torch/nn/modules/module.py), checked here in C.
#include "hook.h"

enum { FORWARD, CALL, WRAPPED_CALL_IMPL, CALL_IMPL, COMPILED_CALL_IMPL, GETATTRIBUTE, N_NAMES };
static PyObject* names[N_NAMES];
static const char* name_texts[N_NAMES] = {"forward",    "__call__",            "_wrapped_call_impl",
                                          "_call_impl", "_compiled_call_impl", "__getattribute__"};

// Backward hooks first.
enum { FORWARD_HOOKS = 2, N_HOOKS = 4, UNKNOWN = 100 };
static PyObject* hook_names[N_HOOKS];
static PyObject* global_hook_names[N_HOOKS];
static const char* hook_texts[N_HOOKS] = {"_backward_hooks", "_backward_pre_hooks",
                                          "_forward_hooks", "_forward_pre_hooks"};

int md_init_module_call(void) {
  for (int i = 0; i < N_NAMES; i++) {
    names[i] = PyUnicode_InternFromString(name_texts[i]);
    if (names[i] == NULL) {
      return -1;
    }
  }
  for (int i = 0; i < N_HOOKS; i++) {
    hook_names[i] = PyUnicode_InternFromString(hook_texts[i]);
    global_hook_names[i] = PyUnicode_FromFormat("_global%s", hook_texts[i]);
    if (hook_names[i] == NULL || global_hook_names[i] == NULL) {
      return -1;
    }
    PyUnicode_InternInPlace(&global_hook_names[i]);
  }
  return 0;
}

// The dict of the module that defines torch.nn.Module, borrowed, or NULL while it is not loaded.
static PyObject* torch_module_globals(void) {
  static PyObject* globals;
  if (globals == NULL) {
    PyObject* modules = PyImport_GetModuleDict();
    PyObject* module = PyDict_GetItemString(modules, "torch.nn.modules.module");
    if (module != NULL && PyModule_Check(module)) {
      globals = Py_NewRef(PyModule_GetDict(module));
    }
  }
  return globals;
}

// An attribute of a class, borrowed from it.
static PyObject* class_attribute(PyTypeObject* type, PyObject* name) {
  PyObject* value = md_type_lookup(type, name);
  Py_XDECREF(value);
  return value;
}

// Whether `value` is the function that torch defines under this qualified name.
static int is_torch_function(PyObject* value, PyObject* globals, const char* qualname) {
  if (value == NULL || !PyFunction_Check(value)) {
    return 0;
  }
  PyFunctionObject* function = (PyFunctionObject*)value;
  PyCodeObject* code = (PyCodeObject*)function->func_code;
  return function->func_globals == globals &&
         PyUnicode_CompareWithASCIIString(code->co_qualname, qualname) == 0;
}

// The class's forward when its instances are called the way torch.nn.Module defines.
static PyObject* plain_forward(PyTypeObject* type, PyObject* globals) {
  PyObject* module_class = PyDict_GetItemString(globals, "Module");
  if (module_class == NULL || !PyType_Check(module_class) ||
      !PyType_IsSubtype(type, (PyTypeObject*)module_class)) {
    return NULL;
  }
  PyObject* call = class_attribute(type, names[CALL]);
  PyObject* compiled = class_attribute(type, names[COMPILED_CALL_IMPL]);
  if (!is_torch_function(call, globals, "Module._wrapped_call_impl") ||
      call != class_attribute(type, names[WRAPPED_CALL_IMPL]) ||
      !is_torch_function(class_attribute(type, names[CALL_IMPL]), globals, "Module._call_impl") ||
      (compiled != NULL && compiled != Py_None) ||
      class_attribute(type, names[GETATTRIBUTE]) !=
          class_attribute(&PyBaseObject_Type, names[GETATTRIBUTE])) {
    return NULL;
  }
  for (int i = 0; i < N_HOOKS; i++) {
    if (class_attribute(type, hook_names[i]) != NULL) {
      return NULL;
    }
  }
  PyObject* forward = class_attribute(type, names[FORWARD]);
  return forward != NULL && PyFunction_Check(forward) ? forward : NULL;
}

// How many tables of hooks have an entry, of those from `first` on; UNKNOWN where one is missing.
static int filled_tables(PyObject* dict, PyObject** keys, int first, int last) {
  int filled = 0;
  for (int i = first; i < last; i++) {
    PyObject* hooks = PyDict_GetItemWithError(dict, keys[i]);
    if (hooks == NULL || !PyDict_Check(hooks)) {
      return UNKNOWN;
    }
    filled += PyDict_GET_SIZE(hooks) != 0;
  }
  return filled;
}

// Whether the instance's own attributes leave its class's way of being called as it is. Within the
// call that an instance was given in place of its own, that is not looked at.
static int is_called_as_its_class(PyObject* dict, int within) {
  PyObject* compiled = within ? NULL : PyDict_GetItemWithError(dict, names[COMPILED_CALL_IMPL]);
  return (compiled == NULL || compiled == Py_None) &&
         PyDict_GetItemWithError(dict, names[FORWARD]) == NULL;
}

static MdModuleCall instance_call(PyObject* object, PyObject* globals, int within) {
  PyObject* dict = PyObject_GenericGetDict(object, NULL);
  if (dict == NULL) {
    return MD_OTHER_CALL;
  }
  MdModuleCall call = MD_OTHER_CALL;
  if (is_called_as_its_class(dict, within) && filled_tables(dict, hook_names, 0, FORWARD_HOOKS) == 0 &&
      filled_tables(globals, global_hook_names, 0, FORWARD_HOOKS) == 0) {
    int filled = filled_tables(dict, hook_names, FORWARD_HOOKS, N_HOOKS) +
                 filled_tables(globals, global_hook_names, FORWARD_HOOKS, N_HOOKS);
    call = filled == 0 ? MD_FORWARD_CALL : filled < UNKNOWN ? MD_HOOKED_CALL : MD_OTHER_CALL;
  }
  Py_DECREF(dict);
  return call;
}

MdModuleCall md_module_call(PyObject* object, MdModuleClass* known, int within) {
  PyObject* globals = torch_module_globals();
  if (globals == NULL) {
    return MD_OTHER_CALL;
  }
  PyTypeObject* type = Py_TYPE(object);
  if (type != known->type || type->tp_version_tag != known->version || known->version == 0) {
    known->forward = plain_forward(type, globals);
    known->type = type;
    // The look-ups gave it one. CPython 3.13 gives a class no more than 1000: then it is looked at
    // each time.
    known->version = type->tp_version_tag;
  }
  MdModuleCall call = MD_OTHER_CALL;
  if (known->forward != NULL && !md_torch_is_tracing()) {
    call = instance_call(object, globals, within);
  }
  if (PyErr_Occurred()) {
    PyErr_Clear();  // a dict or key that cannot be read: not certain
    return MD_OTHER_CALL;
  }
  return call;
}

int md_is_module_call_impl(PyObject* fn) {
  PyObject* globals = torch_module_globals();
  return globals != NULL && Py_IS_TYPE(fn, &PyMethod_Type) &&
         is_torch_function(PyMethod_GET_FUNCTION(fn), globals, "Module._call_impl");
}
