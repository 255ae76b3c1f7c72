// TailCall: generated code that goes on in another function returns tail_call(fn, *args), and
// whoever ran that code makes the call. So a chain of any length has constant depth.
#include "hook.h"

static PyObject* tail_call(PyObject* module, PyObject* const* args, Py_ssize_t nargs) {
  if (nargs < 1 || !PyCallable_Check(args[0])) {
    PyErr_SetString(PyExc_TypeError, "tail_call(fn, *args): fn must be callable");
    return NULL;
  }
  MdTailCall* self = PyObject_GC_NewVar(MdTailCall, &MdTailCall_Type, nargs - 1);
  if (self == NULL) {
    return NULL;
  }
  self->fn = Py_NewRef(args[0]);
  for (Py_ssize_t i = 1; i < nargs; i++) {
    self->args[i - 1] = Py_NewRef(args[i]);
  }
  PyObject_GC_Track(self);
  return (PyObject*)self;
}

void md_tail_call_release(MdTailCall* call) {
  for (Py_ssize_t i = 0; i < Py_SIZE(call); i++) {
    Py_CLEAR(call->args[i]);
  }
}

// The hook recognises the frame of the call by `expected` and hands a further TailCall back to
// here. No frame can come between: a call without *args or **kwargs that fills all parameters
// runs nothing before its own frame. Other calls are made the ordinary way, one level deeper.
static int is_simple_call(MdTailCall* call) {
  PyFunctionObject* fn = (PyFunctionObject*)call->fn;
  if (!PyFunction_Check(call->fn) || fn->vectorcall != md_function_vectorcall ||
      !md_evaluator_is_ours()) {
    return 0;
  }
  PyCodeObject* code = (PyCodeObject*)fn->func_code;
  return code->co_argcount == Py_SIZE(call) && md_code_nargs(code) == code->co_argcount;
}

PyObject* md_tail_loop(MdThread* thread, PyObject* result) {
  while (md_is_tail_call(result)) {
    MdTailCall* call = (MdTailCall*)result;
    if (is_simple_call(call)) {
      thread->expected = call->fn;
      thread->pending = call;
    }
    result = PyObject_Vectorcall(call->fn, call->args, Py_SIZE(call), NULL);
    thread->expected = NULL;
    thread->pending = NULL;
    Py_DECREF(call);
  }
  return result;
}

static int tail_call_traverse(MdTailCall* self, visitproc visit, void* arg) {
  Py_VISIT(self->fn);
  for (Py_ssize_t i = 0; i < Py_SIZE(self); i++) {
    Py_VISIT(self->args[i]);
  }
  return 0;
}

static int tail_call_clear(MdTailCall* self) {
  md_tail_call_release(self);
  return 0;
}

static void tail_call_dealloc(MdTailCall* self) {
  PyObject_GC_UnTrack(self);
  md_tail_call_release(self);
  Py_DECREF(self->fn);
  PyObject_GC_Del(self);
}

PyTypeObject MdTailCall_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "minidynamo._C.TailCall",
    .tp_doc = "What generated code returns to go on in another function.",
    .tp_basicsize = offsetof(MdTailCall, args),
    .tp_itemsize = sizeof(PyObject*),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = (destructor)tail_call_dealloc,
    .tp_traverse = (traverseproc)tail_call_traverse,
    .tp_clear = (inquiry)tail_call_clear,
};

static PyMethodDef functions[] = {
    {"tail_call", (PyCFunction)(void (*)(void))tail_call, METH_FASTCALL,
     "tail_call(fn, *args): for generated code alone, as the value that it returns"},
    {NULL}};

int md_init_tail_call(PyObject* module) {
  if (PyModule_AddType(module, &MdTailCall_Type) < 0) {
    return -1;
  }
  return PyModule_AddFunctions(module, functions);
}
