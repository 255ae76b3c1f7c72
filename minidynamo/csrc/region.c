// Regions: which compile configuration is in force in which thread, and the installation of the
// evaluator, which slows every Python call of the process and so is there only while some thread
// is in a region.
#include "hook.h"

#include <structmember.h>

_Thread_local MdThread md_thread;
_PyFrameEvalFunction md_former_evaluator = _PyEval_EvalFrameDefault;

static Py_ssize_t active_threads;  // threads whose current region is not NULL
static int installed;              // our evaluator was set and not yet taken away

static _PyFrameEvalFunction current_evaluator(void) {
  return _PyInterpreterState_GetEvalFrameFunc(PyInterpreterState_Get());
}

int md_evaluator_is_ours(void) { return installed && current_evaluator() == md_eval_frame; }

// Where another tool put its evaluator over ours it hands frames on to ours; installing ours once
// more would be a cycle. A tool that took ours away for good left the default one.
static void install_evaluator(void) {
  _PyFrameEvalFunction current = current_evaluator();
  if (installed && current != _PyEval_EvalFrameDefault) {
    return;
  }
  md_former_evaluator = current;
  _PyInterpreterState_SetEvalFrameFunc(PyInterpreterState_Get(), md_eval_frame);
  installed = 1;
}

static void remove_evaluator(void) {
  _PyFrameEvalFunction current = current_evaluator();
  if (current == md_eval_frame) {
    _PyInterpreterState_SetEvalFrameFunc(PyInterpreterState_Get(), md_former_evaluator);
  } else if (current != _PyEval_EvalFrameDefault) {
    return;  // another tool's is on top: ours expires when that has put it back
  }
  md_former_evaluator = _PyEval_EvalFrameDefault;
  installed = 0;
}

void md_evaluator_expire(void) {
  if (active_threads == 0 && installed) {
    remove_evaluator();
  }
}

static void count_thread(MdRegion* former, MdRegion* current) {
  if (former == NULL && current != NULL) {
    if (active_threads++ == 0) {
      install_evaluator();
    }
  } else if (former != NULL && current == NULL) {
    if (--active_threads == 0) {
      remove_evaluator();
    }
  }
}

MdRegion* md_region_switch(MdThread* thread, MdRegion* region) {
  MdRegion* former = thread->region;
  thread->region = (MdRegion*)Py_XNewRef((PyObject*)region);
  count_thread(former, region);
  return former;
}

void md_region_restore(MdThread* thread, MdRegion* former) {
  MdRegion* current = thread->region;
  thread->region = former;
  count_thread(current, former);
  Py_XDECREF((PyObject*)current);
}

// The type Region -------------------------------------------------------------------------------

static PyObject* region_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static char* names[] = {"callback", NULL};
  PyObject* callback;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:Region", names, &callback)) {
    return NULL;
  }
  if (!PyCallable_Check(callback)) {
    PyErr_SetString(PyExc_TypeError, "Region: the callback must be callable");
    return NULL;
  }
  MdRegion* self = (MdRegion*)type->tp_alloc(type, 0);
  if (self != NULL) {
    self->callback = Py_NewRef(callback);
  }
  return (PyObject*)self;
}

static int region_traverse(MdRegion* self, visitproc visit, void* arg) {
  Py_VISIT(self->callback);
  return 0;
}

static int region_clear(MdRegion* self) {
  Py_CLEAR(self->callback);
  return 0;
}

static void region_dealloc(MdRegion* self) {
  PyObject_GC_UnTrack(self);
  if (self->weakrefs != NULL) {
    PyObject_ClearWeakRefs((PyObject*)self);
  }
  md_states_forget_region(self);
  region_clear(self);
  Py_TYPE(self)->tp_free((PyObject*)self);
}

static PyMemberDef region_members[] = {
    {"callback", T_OBJECT, offsetof(MdRegion, callback), READONLY,
     "callback(frame: FrameInfo) -> Entry | (Entry,) | SKIP | SKIP_RECURSIVE | ONCE | None"},
    {"run_only", T_BOOL, offsetof(MdRegion, run_only), 0,
     "use the entries that exist and never call the callback"},
    {NULL}};

PyTypeObject MdRegion_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "minidynamo._C.Region",
    .tp_doc = "Region(callback): one compile configuration. Inside a region the frames of the "
              "calls that the thread makes are offered to the callback.",
    .tp_basicsize = sizeof(MdRegion),
    .tp_weaklistoffset = offsetof(MdRegion, weakrefs),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = region_new,
    .tp_dealloc = (destructor)region_dealloc,
    .tp_traverse = (traverseproc)region_traverse,
    .tp_clear = (inquiry)region_clear,
    .tp_members = region_members,
};

// Functions ------------------------------------------------------------------------------------

static int parse_region(PyObject* object, MdRegion** region) {
  if (object == Py_None) {
    *region = NULL;
    return 0;
  }
  if (!PyObject_TypeCheck(object, &MdRegion_Type)) {
    PyErr_Format(PyExc_TypeError, "expected a Region or None, not %.100s",
                 Py_TYPE(object)->tp_name);
    return -1;
  }
  *region = (MdRegion*)object;
  return 0;
}

static PyObject* enter_region(PyObject* module, PyObject* object) {
  MdRegion* region;
  if (parse_region(object, &region) < 0) {
    return NULL;
  }
  PyObject* former = (PyObject*)md_region_switch(&md_thread, region);
  return former != NULL ? former : Py_NewRef(Py_None);
}

static PyObject* leave_region(PyObject* module, PyObject* object) {
  MdRegion* region;
  if (parse_region(object, &region) < 0) {
    return NULL;
  }
  md_region_restore(&md_thread, (MdRegion*)Py_XNewRef((PyObject*)region));
  Py_RETURN_NONE;
}

static PyObject* current_region(PyObject* module, PyObject* unused) {
  PyObject* region = (PyObject*)md_thread.region;
  return Py_NewRef(region != NULL ? region : Py_None);
}

static PyObject* active_count(PyObject* module, PyObject* unused) {
  return PyLong_FromSsize_t(active_threads);
}

static PyObject* is_installed(PyObject* module, PyObject* unused) {
  return PyBool_FromLong(md_evaluator_is_ours());
}

static PyMethodDef region_functions[] = {
    {"enter_region", enter_region, METH_O,
     "enter_region(region | None) -> the region that was in force in this thread"},
    {"leave_region", leave_region, METH_O,
     "leave_region(previous): puts back what enter_region returned"},
    {"current_region", current_region, METH_NOARGS, "this thread's region, or None"},
    {"active_count", active_count, METH_NOARGS, "how many threads are in a region"},
    {"is_installed", is_installed, METH_NOARGS, "whether frames go to the frame hook now"},
    {NULL}};

int md_init_region(PyObject* module) {
  if (PyModule_AddType(module, &MdRegion_Type) < 0) {
    return -1;
  }
  return PyModule_AddFunctions(module, region_functions);
}
