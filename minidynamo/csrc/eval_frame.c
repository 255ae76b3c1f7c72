// The PEP 523 evaluator: looks up what is compiled for a frame that is about to run, runs that in
// place of it, or asks the region's callback.
#include "hook.h"

vectorcallfunc md_function_vectorcall;
static PyCodeObject* stub_code;  // no locals, returns None; see md_frame_discard

// The callback's answers that are not entries --------------------------------------------------

typedef struct {
  PyObject_HEAD
  const char* name;
  MdSkip skip;
} Answer;

static PyObject* answer_repr(Answer* self) { return PyUnicode_FromString(self->name); }

static PyTypeObject Answer_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "minidynamo._C.Answer",
    .tp_doc = "What a Region's callback can say without compiling.",
    .tp_basicsize = sizeof(Answer),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_repr = (reprfunc)answer_repr,
};

static int add_answer(PyObject* module, const char* name, MdSkip skip) {
  Answer* answer = PyObject_New(Answer, &Answer_Type);
  if (answer == NULL) {
    return -1;
  }
  answer->name = name;
  answer->skip = skip;
  int status = PyModule_AddObjectRef(module, name, (PyObject*)answer);
  Py_DECREF(answer);
  return status;
}

// Running frames ------------------------------------------------------------------------------

// One frame that is about to run.
typedef struct {
  PyThreadState* ts;
  MdThread* thread;
  MdFrame* frame;    // gone, from 3.12 on, once it has been run
  MdRegion* region;  // the region it is offered in; strong while Python code may run
  int through;       // it is itself the call for a TailCall: that loop makes the next call too
} Offer;

// The frame's own code, callees offered as the region in force says.
static PyObject* run_original(PyThreadState* ts, MdThread* thread, MdFrame* frame,
                              int throwflag) {
  if (md_stack_room(thread) == MD_ROOM_NONE && !throwflag) {
    return md_eval_exhausted(ts, frame);
  }
  MdFrame* outer = thread->passed_on;
  thread->passed_on = md_former_evaluator != _PyEval_EvalFrameDefault ? frame : NULL;
  md_lend_recursion(ts);
  PyObject* result = md_former_evaluator(ts, frame, throwflag);
  md_take_recursion(ts);
  thread->passed_on = outer;
  return result;
}

// The frame's own code, and nothing below it is offered.
static PyObject* run_outside(PyThreadState* ts, MdThread* thread, MdFrame* frame) {
  MdRegion* former = md_region_switch(thread, NULL);
  PyObject* result = run_original(ts, thread, frame, 0);
  md_region_restore(thread, former);
  return result;
}

static PyObject* run_declined(Offer* offer, MdSkip skip) {
  if (skip == MD_SKIP_RECURSIVE || skip == MD_ONCE) {
    return run_outside(offer->ts, offer->thread, offer->frame);
  }
  MdThread* thread = offer->thread;
  thread->run_only += skip == MD_SKIP_RUN_ONLY;
  PyObject* result = run_original(offer->ts, thread, offer->frame, 0);
  thread->run_only -= skip == MD_SKIP_RUN_ONLY;
  return result;
}

static PyObject* run_generated(PyThreadState* ts, MdFrame* frame) {
  md_lend_recursion(ts);
  PyObject* result = _PyEval_EvalFrameDefault(ts, frame, 0);
  md_take_recursion(ts);
  return result;
}

static void discard(Offer* offer) { md_frame_discard(offer->ts, offer->frame, stub_code); }

// Fallback where the frame cannot become a frame of the entry's code: generators, whose frame
// moves into an object sized by the original code, and a full chunk of the data stack.
static PyObject* call_entry(Offer* offer, MdEntry* entry, PyObject* fetched) {
  PyObject* result = NULL;
  PyObject* function = md_entry_function(entry, md_frame_func(offer->frame));
  if (function != NULL) {
    // The slot after the arguments is a local or stack slot, and empty: the frame has not run.
    PyObject** args = offer->frame->localsplus;
    int nargs = entry->nargs;
    PyObject* kept = args[nargs];
    if (entry->inputs_slot) {
      args[nargs] = fetched;
    }
    result = PyObject_Vectorcall(function, args, nargs + entry->inputs_slot, NULL);
    args[nargs] = kept;
    Py_DECREF(function);
  }
  Py_XDECREF(fetched);
  discard(offer);
  return result;
}

static PyObject* swap_and_run(Offer* offer, MdEntry* entry, PyObject* fetched) {
  MdFrame* frame = offer->frame;
  int flags = md_frame_code(frame)->co_flags | entry->code->co_flags;
  if ((flags & MD_GENERATOR_FLAGS) ||
      !md_frame_swap(offer->ts, frame, entry->code, entry->nargs)) {
    return call_entry(offer, entry, fetched);
  }
  if (entry->inputs_slot) {
    frame->localsplus[entry->nargs] = fetched;
  }
  PyObject* result = run_generated(offer->ts, frame);
  if (md_is_tail_call(result)) {
    md_frame_returned(frame);
  }
  return result;
}

// Takes the references to `entry` and `fetched`.
static PyObject* run_entry(Offer* offer, MdEntry* entry, PyObject* fetched) {
  MdThread* thread = offer->thread;
  PyObject* result;
  if (entry->needs_hook) {
    result = swap_and_run(offer, entry, fetched);  // may enter and leave regions for good
  } else {
    MdRegion* hidden = thread->region;
    thread->region = NULL;  // the evaluator stays: code that calls little pays little for it
    result = swap_and_run(offer, entry, fetched);
    thread->region = hidden;
  }
  Py_DECREF(entry);
  return offer->through ? result : md_tail_loop(thread, result);
}

// Asking the callback --------------------------------------------------------------------------

static PyObject* ask_callback(Offer* offer, MdRegionState* list, Py_ssize_t failed) {
  MdFrame* frame = offer->frame;
  PyObject* info = md_frame_info_new(md_frame_func(frame), md_frame_code(frame),
                                     frame->localsplus, offer->region, list, failed);
  if (info == NULL) {
    return NULL;
  }
  PyObject* callback = Py_NewRef(offer->region->callback);
  MdRegion* former = md_region_switch(offer->thread, NULL);
  PyObject* answer = PyObject_CallOneArg(callback, info);
  md_region_restore(offer->thread, former);
  Py_DECREF(callback);
  Py_DECREF(info);
  return answer;
}

// Puts a new entry on the frame's code. 1 when it serves this very call too, 0 when its guards
// do not hold for it, -1 with an exception set.
static int install_entry(Offer* offer, MdEntry* entry, PyObject** fetched) {
  PyCodeObject* code = md_frame_code(offer->frame);
  if (md_entry_fits(entry, code) < 0) {
    return -1;
  }
  MdCodeState* state = md_state_ensure(code);
  if (state == NULL || md_state_add(state, offer->region, entry) < 0) {
    return -1;
  }
  PyFunctionObject* func = md_frame_func(offer->frame);
  if (!md_entry_check(entry, offer->frame->localsplus, func, fetched)) {
    return 0;
  }
  entry->hits++;
  return 1;
}

static int remember_skip(Offer* offer, MdSkip skip) {
  MdCodeState* state = md_state_ensure(md_frame_code(offer->frame));
  MdRegionState* list = state != NULL ? md_region_state_ensure(state, offer->region) : NULL;
  if (list == NULL) {
    return -1;
  }
  list->skip = (char)skip;
  return 0;
}

static PyObject* run_answer(Offer* offer, PyObject* answer) {
  if (answer == Py_None) {
    return run_declined(offer, MD_ASK);
  }
  if (Py_IS_TYPE(answer, &Answer_Type)) {
    MdSkip skip = ((Answer*)answer)->skip;
    if (skip == MD_ONCE || remember_skip(offer, skip) == 0) {
      return run_declined(offer, skip);
    }
  } else if (Py_IS_TYPE(answer, &MdEntry_Type)) {
    PyObject* fetched = NULL;
    int serves = install_entry(offer, (MdEntry*)answer, &fetched);
    if (serves > 0 && !md_is_tracing(offer->ts)) {
      return run_entry(offer, (MdEntry*)Py_NewRef(answer), fetched);
    }
    Py_XDECREF(fetched);
    if (serves >= 0) {
      return run_declined(offer, MD_ASK);
    }
  } else if (PyTuple_CheckExact(answer) && PyTuple_GET_SIZE(answer) == 1 &&
             Py_IS_TYPE(PyTuple_GET_ITEM(answer, 0), &MdEntry_Type)) {
    // For this call alone: neither installed nor checked.
    MdEntry* entry = (MdEntry*)PyTuple_GET_ITEM(answer, 0);
    if (md_entry_fits(entry, md_frame_code(offer->frame)) == 0) {
      return run_entry(offer, (MdEntry*)Py_NewRef(entry), NULL);
    }
  } else {
    PyErr_Format(PyExc_TypeError, "a Region's callback must return an Entry, (Entry,), SKIP, "
                 "SKIP_RECURSIVE, SKIP_RUN_ONLY, ONCE or None, not %.100s",
                 Py_TYPE(answer)->tp_name);
  }
  discard(offer);
  return NULL;
}

static PyObject* compile_and_run(Offer* offer, MdRegionState* list, Py_ssize_t failed) {
  if (offer->region->run_only || offer->thread->run_only || offer->region->callback == NULL) {
    return run_declined(offer, MD_ASK);
  }
  PyObject* answer = ask_callback(offer, list, failed);
  if (answer == NULL) {
    discard(offer);
    return NULL;
  }
  PyObject* result = run_answer(offer, answer);
  Py_DECREF(answer);
  return result;
}

// The evaluator --------------------------------------------------------------------------------

// A frame that this thread's region may have something compiled for.
static PyObject* run_offered(Offer* offer) {
  PyFunctionObject* func = md_frame_func(offer->frame);
  MdCodeState* state = md_state_get(md_frame_code(offer->frame));
  MdRegionState* list = NULL;
  MdSkip skip = MD_ASK;
  Py_ssize_t failed = 0;
  if (state != NULL) {
    list = md_region_state_get(state, offer->region);
    skip = (MdSkip)state->skip;
  }
  if (list != NULL && skip == MD_ASK) {
    PyObject* fetched;
    MdEntry* entry = md_lookup(list, offer->frame->localsplus, func, &fetched, &failed);
    if (entry != NULL) {
      return run_entry(offer, entry, fetched);
    }
    skip = (MdSkip)list->skip;
  }
  return skip == MD_ASK ? compile_and_run(offer, list, failed) : run_declined(offer, skip);
}

PyObject* md_eval_frame(PyThreadState* ts, MdFrame* frame, int throwflag) {
  MdThread* thread = &md_thread;
  if (thread->passed_on == frame) {
    // The other tool took ours for the one before its own, too: end the circle here.
    return _PyEval_EvalFrameDefault(ts, frame, throwflag);
  }
  Offer offer = {ts, thread, frame, thread->region, 0};
  if (thread->expected != NULL && thread->expected == (PyObject*)md_frame_func(frame)) {
    thread->expected = NULL;
    if (thread->pending == NULL) {
      return run_generated(ts, frame);
    }
    md_tail_call_release(thread->pending);
    thread->pending = NULL;
    offer.through = 1;
  }
  if (offer.region == NULL) {
    md_evaluator_expire();
    return run_original(ts, thread, frame, throwflag);
  }
  if (throwflag || thread->quiet || !md_frame_on_stack(frame) ||
      !(md_frame_code(frame)->co_flags & CO_OPTIMIZED) || md_is_tracing(ts) ||
      md_is_eager_forced()) {
    return run_original(ts, thread, frame, throwflag);
  }
  if (md_stack_room(thread) != MD_ROOM_FINE) {
    return run_outside(ts, thread, frame);
  }
  Py_INCREF(offer.region);
  PyObject* result = run_offered(&offer);
  Py_DECREF(offer.region);
  return result;
}

// Initialisation -------------------------------------------------------------------------------

// A function that returns None without a RESUME, so that running it runs nothing of anybody.
static const char stub_source[] =
    "import opcode\n"
    "def stub(): pass\n"
    "stub.__code__ = stub.__code__.replace(\n"
    "    co_code=bytes([opcode.opmap['LOAD_CONST'], 0, opcode.opmap['RETURN_VALUE'], 0]),\n"
    "    co_consts=(None,), co_stacksize=1, co_linetable=b'', co_exceptiontable=b'')\n";

static int make_stub(void) {
  PyObject* scope = PyDict_New();
  PyObject* done = NULL;
  PyObject* stub = NULL;
  if (scope != NULL) {
    done = PyRun_String(stub_source, Py_file_input, scope, scope);
  }
  if (done != NULL) {
    stub = PyDict_GetItemString(scope, "stub");
    stub_code = (PyCodeObject*)Py_NewRef(PyFunction_GET_CODE(stub));
    md_function_vectorcall = ((PyFunctionObject*)stub)->vectorcall;
  }
  Py_XDECREF(done);
  Py_XDECREF(scope);
  return done != NULL ? 0 : -1;
}

int md_init_eval_frame(PyObject* module) {
  if (make_stub() < 0 || PyType_Ready(&Answer_Type) < 0 ||
      add_answer(module, "SKIP", MD_SKIP) < 0 ||
      add_answer(module, "SKIP_RECURSIVE", MD_SKIP_RECURSIVE) < 0 ||
      add_answer(module, "SKIP_RUN_ONLY", MD_SKIP_RUN_ONLY) < 0 ||
      add_answer(module, "ONCE", MD_ONCE) < 0) {
    return -1;
  }
  if (md_init_code_state(module) < 0 || md_init_region(module) < 0 || md_init_entry(module) < 0 ||
      md_init_frame_info(module) < 0 || md_init_tail_call(module) < 0 ||
      md_init_stance(module) < 0) {
    return -1;
  }
  return md_init_callable(module);
}
