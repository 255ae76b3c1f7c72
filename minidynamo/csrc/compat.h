// The one file that knows CPython versions: interpreter frames, recursion accounting, co_extra.
// Facts are from the headers of CPython 3.11, 3.12 and 3.13 (pycore_frame.h, pystate.h, ceval.h).
#ifndef MINIDYNAMO_COMPAT_H
#define MINIDYNAMO_COMPAT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#if PY_VERSION_HEX < 0x030B0000 || PY_VERSION_HEX >= 0x030E0000
#error "minidynamo supports CPython 3.11, 3.12 and 3.13"
#endif
#ifdef Py_GIL_DISABLED
#error "minidynamo does not support the free-threaded build of CPython"
#endif

#define MD_PY312 (PY_VERSION_HEX >= 0x030C0000)
#define MD_PY313 (PY_VERSION_HEX >= 0x030D0000)

#ifndef __cplusplus

#define Py_BUILD_CORE
#include <internal/pycore_code.h>
#include <internal/pycore_frame.h>
#undef Py_BUILD_CORE

#if MD_PY312
#define _PyEval_RequestCodeExtraIndex PyUnstable_Eval_RequestCodeExtraIndex
#define _PyCode_SetExtra PyUnstable_Code_SetExtra
#endif

#if MD_PY313
#define md_type_lookup(type, name) _PyType_LookupRef(type, name)
#else
#define md_type_lookup(type, name) Py_XNewRef(_PyType_Lookup(type, name))
#endif

typedef struct _PyInterpreterFrame MdFrame;

static inline PyCodeObject* md_frame_code(MdFrame* frame) {
#if MD_PY313
  return (PyCodeObject*)frame->f_executable;
#else
  return frame->f_code;
#endif
}

static inline PyFunctionObject* md_frame_func(MdFrame* frame) {
#if MD_PY312
  return (PyFunctionObject*)frame->f_funcobj;
#else
  return frame->f_func;
#endif
}

// Whether the frame lies on the thread's data stack: a call, not a resumed generator.
static inline int md_frame_on_stack(MdFrame* frame) {
  return frame->owner == FRAME_OWNED_BY_THREAD;
}

// What hangs on a code object under an index from _PyEval_RequestCodeExtraIndex, or NULL. The
// layout is that of _PyCodeObjectExtra (codeobject.c); the exported function takes longer.
static inline void* md_code_extra(PyCodeObject* code, Py_ssize_t index) {
  struct {
    Py_ssize_t size;
    void* extras[1];
  }* extra = code->co_extra;
  return extra != NULL && index < extra->size ? extra->extras[index] : NULL;
}

// Whether slot `i` of localsplus is a plain local variable, not a cell or free variable.
static inline int md_is_plain_local(PyCodeObject* code, int i) {
  _PyLocals_Kind kind = (_PyLocals_Kind)PyBytes_AS_STRING(code->co_localspluskinds)[i];
  return i < code->co_nlocals && !(kind & (CO_FAST_CELL | CO_FAST_FREE));
}

// Slots of PyObject* that a frame of `code` takes on the thread's data stack.
static inline Py_ssize_t md_frame_size(PyCodeObject* code) {
#if MD_PY312
  return code->co_framesize;
#else
  return code->co_nlocalsplus + code->co_stacksize + (Py_ssize_t)FRAME_SPECIALS_SIZE;
#endif
}

// Makes `frame`, which has not run yet, a frame of `code`, which takes the same arguments.
// `kept` slots of localsplus stay as they are. Returns 0, with the frame as it was, where
// the new frame does not fit in the data stack's chunk.
static inline int md_frame_swap(PyThreadState* ts, MdFrame* frame, PyCodeObject* code, int kept) {
  PyObject** base = (PyObject**)frame;
  PyCodeObject* old = md_frame_code(frame);
  Py_ssize_t size = md_frame_size(code);
  if (base + md_frame_size(old) != ts->datastack_top || base + size >= ts->datastack_limit) {
    return 0;
  }
  ts->datastack_top = base + size;
  for (int i = kept; i < code->co_nlocalsplus; i++) {
    frame->localsplus[i] = NULL;
  }
  frame->stacktop = code->co_nlocalsplus;
  Py_INCREF(code);
#if MD_PY313
  frame->f_executable = (PyObject*)code;
  frame->instr_ptr = _PyCode_CODE(code);
#else
  frame->f_code = code;
  frame->prev_instr = _PyCode_CODE(code) - 1;
#endif
  Py_DECREF(old);
  return 1;
}

// Drops the values of a frame's local variables. The frame is not running and no frame object
// has been made for it.
static inline void md_frame_release_locals(MdFrame* frame) {
  int count = md_frame_code(frame)->co_nlocalsplus;
  for (int i = 0; i < count; i++) {
    PyObject* value = frame->localsplus[i];
    frame->localsplus[i] = NULL;
    Py_XDECREF(value);
  }
}

// Drops the local variables of a frame that has returned, where it is still there: the evaluator
// pops its frame itself from 3.12 on, before that the caller does. A frame that somebody looks at
// through a frame object keeps them; one that only the frame itself refers to does not count.
static inline void md_frame_returned(MdFrame* frame) {
#if !MD_PY312
  if (frame->frame_obj == NULL || Py_REFCNT(frame->frame_obj) == 1) {
    md_frame_release_locals(frame);
  }
#else
  (void)frame;
#endif
}

// Disposes of a frame that will not be run: the evaluator's duty from 3.12 on. `stub` is a code
// object without locals that returns at once; running it makes CPython clear and pop the frame.
// Before 3.12 the caller does that. Keeps the exception that is set, if any.
static inline void md_frame_discard(PyThreadState* ts, MdFrame* frame, PyCodeObject* stub) {
#if MD_PY312
  PyObject* error = PyErr_GetRaisedException();
  md_frame_release_locals(frame);
  md_frame_swap(ts, frame, stub, 0);
  ts->py_recursion_remaining += 1;
  ts->c_recursion_remaining += 3;
  Py_XDECREF(_PyEval_EvalFrameDefault(ts, frame, 0));
  ts->py_recursion_remaining -= 1;
  ts->c_recursion_remaining -= 3;
  PyErr_SetRaisedException(error);
#else
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  md_frame_release_locals(frame);
  PyErr_Restore(type, value, traceback);
#endif
}

// Without an evaluator installed a call from Python to Python uses none of the C recursion limit
// that 3.12 brought; with one it uses this much, which we lend for the time of the call.
static inline void md_lend_recursion(PyThreadState* ts) {
#if MD_PY312
  ts->c_recursion_remaining += 2;
#endif
}

static inline void md_take_recursion(PyThreadState* ts) {
#if MD_PY312
  ts->c_recursion_remaining -= 2;
#endif
}

// Evaluates a frame with no recursion left, so that CPython raises its RecursionError.
static inline PyObject* md_eval_exhausted(PyThreadState* ts, MdFrame* frame) {
#if MD_PY312
  int* remaining = &ts->c_recursion_remaining;
#else
  int* remaining = &ts->recursion_remaining;
#endif
  int saved = *remaining;
  *remaining = 0;
  PyObject* result = _PyEval_EvalFrameDefault(ts, frame, 0);
  *remaining = saved;
  return result;
}

// Whether a trace function is set (sys.settrace) or a trace, profile or monitoring function runs.
static inline int md_is_tracing(PyThreadState* ts) {
  return ts->c_tracefunc != NULL || ts->tracing != 0;
}

#endif  // __cplusplus
#endif
