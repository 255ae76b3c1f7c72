// The type FrameInfo: what a region's callback learns of a frame that no entry could serve.
#include "hook.h"

#include <structmember.h>

typedef struct {
  PyObject_HEAD
  PyObject* code;
  PyObject* func;
  PyObject* f_locals;
  PyObject* globals;
  PyObject* builtins;
  PyObject* closure;
  PyObject* region;
  PyObject* entries;
  Py_ssize_t failed;
} FrameInfo;

static PyObject* arguments(PyCodeObject* code, PyObject* const* localsplus) {
  PyObject* result = PyDict_New();
  int count = md_code_nargs(code);
  for (int i = 0; result != NULL && i < count; i++) {
    PyObject* name = PyTuple_GET_ITEM(code->co_localsplusnames, i);
    if (localsplus[i] != NULL && PyDict_SetItem(result, name, localsplus[i]) < 0) {
      Py_CLEAR(result);
    }
  }
  return result;
}

PyObject* md_frame_info_new(PyFunctionObject* func, PyCodeObject* code,
                            PyObject* const* localsplus, MdRegion* region,
                            MdRegionState* state, Py_ssize_t failed) {
  FrameInfo* self = PyObject_GC_New(FrameInfo, &MdFrameInfo_Type);
  if (self == NULL) {
    return NULL;
  }
  self->code = Py_NewRef((PyObject*)code);
  self->func = Py_NewRef((PyObject*)func);
  self->globals = Py_NewRef(func->func_globals);
  self->builtins = Py_NewRef(func->func_builtins);
  self->closure = Py_NewRef(func->func_closure != NULL ? func->func_closure : Py_None);
  self->region = Py_NewRef((PyObject*)region);
  self->failed = failed;
  self->f_locals = NULL;
  self->entries = NULL;
  PyObject_GC_Track(self);
  self->f_locals = arguments(code, localsplus);
  self->entries = state != NULL ? md_region_state_list(state) : PyList_New(0);
  if (self->f_locals == NULL || self->entries == NULL) {
    Py_CLEAR(self);
  }
  return (PyObject*)self;
}

static int info_traverse(FrameInfo* self, visitproc visit, void* arg) {
  Py_VISIT(self->code);
  Py_VISIT(self->func);
  Py_VISIT(self->f_locals);
  Py_VISIT(self->globals);
  Py_VISIT(self->builtins);
  Py_VISIT(self->closure);
  Py_VISIT(self->region);
  Py_VISIT(self->entries);
  return 0;
}

static int info_clear(FrameInfo* self) {
  Py_CLEAR(self->code);
  Py_CLEAR(self->func);
  Py_CLEAR(self->f_locals);
  Py_CLEAR(self->globals);
  Py_CLEAR(self->builtins);
  Py_CLEAR(self->closure);
  Py_CLEAR(self->region);
  Py_CLEAR(self->entries);
  return 0;
}

static void info_dealloc(FrameInfo* self) {
  PyObject_GC_UnTrack(self);
  info_clear(self);
  PyObject_GC_Del(self);
}

#define FIELD(name, doc) {#name, T_OBJECT, offsetof(FrameInfo, name), READONLY, doc}

static PyMemberDef info_members[] = {
    FIELD(code, "the code object about to run"),
    FIELD(func, "the function whose call this is"),
    FIELD(f_locals, "dict from parameter name to argument, also where that becomes a cell"),
    FIELD(globals, "the function's globals"),
    FIELD(builtins, "the function's builtins"),
    FIELD(closure, "tuple of the function's cells, or None"),
    FIELD(region, "the Region that asks"),
    FIELD(entries, "list of this region's entries on the code, most recently hit first"),
    {"failed", T_PYSSIZET, offsetof(FrameInfo, failed), READONLY,
     "how many entries were tried and did not fit"},
    {NULL}};

PyTypeObject MdFrameInfo_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "minidynamo._C.FrameInfo",
    .tp_doc = "A frame about to run, as a Region's callback gets it.",
    .tp_basicsize = sizeof(FrameInfo),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = (destructor)info_dealloc,
    .tp_traverse = (traverseproc)info_traverse,
    .tp_clear = (inquiry)info_clear,
    .tp_members = info_members,
};

int md_init_frame_info(PyObject* module) { return PyModule_AddType(module, &MdFrameInfo_Type); }
