// CompiledFunction: what compile() and disable() return. It enters its region and calls the
// function; where an entry fits already, it calls that without any hook.
#include "hook.h"

#include <structmember.h>

#define CACHED_FUNCTIONS 8
#define MAX_BOUND 48  // more parameters than this: the hook binds and looks up

typedef struct MdCompiled {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyObject* fn;
  MdRegion* region;  // NULL: runs fn outside all regions
  PyObject* dict;
  PyObject* weakrefs;
  struct MdCompiled* next;  // ring of all live ones
  struct MdCompiled* previous;
  char is_call_impl;  // fn is the `_call_impl` of an nn.Module
  MdModuleClass module_class;
  unsigned next_slot;
  struct {
    MdEntry* entry;  // borrowed: a dropped entry is forgotten here
    PyObject* function;
  } cache[CACHED_FUNCTIONS];
} MdCompiled;

static MdCompiled ring;
// Functions of (module, *args, **kwargs) that call an nn.Module with hooks, and its `_call_impl`:
// one frame for all that it runs.
static PyObject* module_callers[2];

// Functions for entries --------------------------------------------------------------------------

// They are kept here and not on the entry, since they hold the globals and the closure of fn:
// the collector sees a CompiledFunction, but not what hangs on a code object.
static PyObject* cached_function(MdCompiled* self, MdEntry* entry, PyFunctionObject* func) {
  unsigned slot = 0;
  while (slot < CACHED_FUNCTIONS && self->cache[slot].entry != entry) {
    slot++;
  }
  if (slot < CACHED_FUNCTIONS) {
    PyFunctionObject* made = (PyFunctionObject*)self->cache[slot].function;
    if (made->func_globals == func->func_globals && made->func_builtins == func->func_builtins &&
        (made->func_closure == func->func_closure || made->func_closure == NULL)) {
      return Py_NewRef((PyObject*)made);
    }
  } else {
    slot = self->next_slot;
    self->next_slot = (slot + 1) % CACHED_FUNCTIONS;
  }
  PyObject* made = md_entry_function(entry, func);
  // Not for an entry that its guards' code dropped, nor where the function's present name matters.
  if (made != NULL && entry->owner != NULL && !(entry->code->co_flags & MD_GENERATOR_FLAGS)) {
    PyObject* former = self->cache[slot].function;
    self->cache[slot].entry = entry;
    self->cache[slot].function = Py_NewRef(made);
    entry->cached = 1;
    Py_XDECREF(former);
  }
  return made;
}

void md_callables_forget(MdEntry* entry) {
  if (!entry->cached) {
    return;
  }
  entry->cached = 0;
  for (MdCompiled* self = ring.next; self != &ring; self = self->next) {
    for (int i = 0; i < CACHED_FUNCTIONS; i++) {
      if (self->cache[i].entry == entry) {
        self->cache[i].entry = NULL;
        Py_CLEAR(self->cache[i].function);
      }
    }
  }
}

// Binding ------------------------------------------------------------------------------------

static int bind_keywords(PyCodeObject* code, PyObject* const* values, PyObject* kwnames,
                         PyObject** bound) {
  int last = code->co_argcount + code->co_kwonlyargcount;
  for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(kwnames); k++) {
    PyObject* name = PyTuple_GET_ITEM(kwnames, k);
    int i = code->co_posonlyargcount;
    while (i < last && PyTuple_GET_ITEM(code->co_localsplusnames, i) != name) {
      i++;
    }
    if (i == last || bound[i] != NULL) {
      return 0;
    }
    bound[i] = values[k];
  }
  return 1;
}

static int bind_defaults(PyFunctionObject* func, PyCodeObject* code, PyObject** bound) {
  PyObject* defaults = func->func_defaults;
  Py_ssize_t count = defaults != NULL ? PyTuple_GET_SIZE(defaults) : 0;
  int last = code->co_argcount + code->co_kwonlyargcount;
  for (int i = 0; i < last; i++) {
    if (bound[i] != NULL) {
      continue;
    }
    Py_ssize_t offset = i - (code->co_argcount - count);
    if (i < code->co_argcount) {
      bound[i] = offset >= 0 ? PyTuple_GET_ITEM(defaults, offset) : NULL;
    } else if (func->func_kwdefaults != NULL) {
      PyObject* name = PyTuple_GET_ITEM(code->co_localsplusnames, i);
      bound[i] = PyDict_GetItemWithError(func->func_kwdefaults, name);
    }
    if (bound[i] == NULL) {
      PyErr_Clear();
      return 0;
    }
  }
  return 1;
}

// Lays a call's arguments out as the frame would. 0 where the call is not that simple, or wrong:
// CPython then binds it, and raises what is to be raised.
static int bind(PyFunctionObject* func, PyObject* self, PyObject* const* args, Py_ssize_t nargs,
                PyObject* kwnames, PyObject** bound) {
  PyCodeObject* code = (PyCodeObject*)func->func_code;
  int total = code->co_argcount + code->co_kwonlyargcount;
  int shift = self != NULL;
  if (total > MAX_BOUND || total != md_code_nargs(code) || nargs + shift > code->co_argcount) {
    return 0;
  }
  memset(bound, 0, (total + 1) * sizeof(PyObject*));
  if (self != NULL) {
    bound[0] = self;
  }
  memcpy(bound + shift, args, nargs * sizeof(PyObject*));
  if (kwnames != NULL && !bind_keywords(code, args + nargs, kwnames, bound)) {
    return 0;
  }
  return bind_defaults(func, code, bound);
}

// Direct dispatch ------------------------------------------------------------------------------

// The function's own frame need not be looked up in the hook, if one is installed. It comes first:
// the call is positional and full.
static PyObject* call_generated(MdThread* thread, PyObject* function, PyObject* const* args,
                                size_t nargs) {
  thread->expected = thread->region != NULL ? function : NULL;
  PyObject* result = md_function_vectorcall(function, args, nargs, NULL);
  thread->expected = NULL;
  return result;
}

// Runs an entry on its arguments (with the fetched tuple in place already).
static PyObject* run_entry(MdThread* thread, MdCompiled* self, MdEntry* entry,
                           PyFunctionObject* func, PyObject* const* args, size_t nargs) {
  PyObject* function = cached_function(self, entry, func);
  if (function == NULL) {
    return NULL;
  }
  PyObject* result;
  if (!entry->needs_hook) {
    MdRegion* hidden = thread->region;
    thread->region = NULL;
    result = call_generated(thread, function, args, nargs);
    thread->region = hidden;
    if (md_is_tail_call(result)) {
      MdRegion* former = md_region_switch(thread, self->region);
      result = md_tail_loop(thread, result);
      md_region_restore(thread, former);
    }
  } else if (thread->region == self->region) {
    result = md_tail_loop(thread, call_generated(thread, function, args, nargs));
  } else {
    // One region for all of it: the code may leave it in one part and come back in a later one.
    MdRegion* former = md_region_switch(thread, self->region);
    result = md_tail_loop(thread, call_generated(thread, function, args, nargs));
    md_region_restore(thread, former);
  }
  Py_DECREF(function);
  return result;
}

static MdRegionState* entries_of(MdCompiled* self, PyFunctionObject* func) {
  MdCodeState* state = md_state_get((PyCodeObject*)func->func_code);
  MdRegionState* list = NULL;
  if (state != NULL && state->skip == MD_ASK) {
    list = md_region_state_get(state, self->region);
  }
  return list != NULL && list->count > 0 ? list : NULL;
}

// The call's arguments are the caller's array, in full and in order.
static int dispatch_array(MdThread* thread, MdCompiled* self, MdRegionState* list,
                          PyFunctionObject* func, PyObject* const* args, Py_ssize_t nargs,
                          PyObject** result) {
  PyObject* code = Py_NewRef(func->func_code);
  PyObject* fetched;
  Py_ssize_t tried;
  MdEntry* entry = md_lookup(list, args, func, &fetched, &tried);
  Py_DECREF(code);
  if (entry == NULL) {
    return 0;
  }
  if (!entry->inputs_slot) {
    *result = run_entry(thread, self, entry, func, args, nargs);
  } else {
    PyObject* longer[MAX_BOUND + 1];
    memcpy(longer, args, nargs * sizeof(PyObject*));
    longer[nargs] = fetched;
    *result = run_entry(thread, self, entry, func, longer, nargs + 1);
    Py_DECREF(fetched);
  }
  Py_DECREF(entry);
  return 1;
}

static int dispatch_bound(MdThread* thread, MdCompiled* self, MdRegionState* list,
                          PyFunctionObject* func, PyObject* receiver, PyObject* const* args,
                          Py_ssize_t nargs, PyObject* kwnames, PyObject** result) {
  PyObject* bound[MAX_BOUND + 1];
  if (!bind(func, receiver, args, nargs, kwnames, bound)) {
    return 0;
  }
  // Defaults may be replaced while guards run Python code.
  int total = md_code_nargs((PyCodeObject*)func->func_code);
  for (int i = 0; i < total; i++) {
    Py_INCREF(bound[i]);
  }
  int done = dispatch_array(thread, self, list, func, bound, total, result);
  for (int i = 0; i < total; i++) {
    Py_DECREF(bound[i]);
  }
  return done;
}

// Calls func(receiver, ...) through the entry that fits. 0 when there is none.
static int dispatch(MdThread* thread, MdCompiled* self, PyFunctionObject* func,
                    PyObject* receiver, PyObject* const* args, Py_ssize_t nargs,
                    PyObject* kwnames, PyObject** result) {
  MdRegionState* list = entries_of(self, func);
  if (list == NULL) {
    return 0;
  }
  PyCodeObject* code = (PyCodeObject*)func->func_code;
  if (kwnames == NULL && receiver == NULL && nargs == code->co_argcount &&
      nargs <= MAX_BOUND && md_code_nargs(code) == nargs) {
    return dispatch_array(thread, self, list, func, args, nargs, result);
  }
  return dispatch_bound(thread, self, list, func, receiver, args, nargs, kwnames, result);
}

// Calling --------------------------------------------------------------------------------------

// The same for an nn.Module: its forward, or what calls it where it has hooks.
static PyFunctionObject* resolve_module(MdCompiled* self, PyObject* module) {
  switch (md_module_call(module, &self->module_class, self->is_call_impl)) {
    case MD_FORWARD_CALL:
      return (PyFunctionObject*)self->module_class.forward;
    case MD_HOOKED_CALL:
      return (PyFunctionObject*)module_callers[(int)self->is_call_impl];
    default:
      return NULL;
  }
}

// The function that a call runs, and the object in front of its arguments; NULL where that is
// not plain to see.
static PyFunctionObject* resolve(MdCompiled* self, PyObject** receiver) {
  PyObject* fn = self->fn;
  *receiver = NULL;
  if (PyFunction_Check(fn)) {
    return (PyFunctionObject*)fn;
  }
  if (Py_IS_TYPE(fn, &PyMethod_Type) && !self->is_call_impl) {
    *receiver = PyMethod_GET_SELF(fn);
    PyObject* func = PyMethod_GET_FUNCTION(fn);
    return PyFunction_Check(func) ? (PyFunctionObject*)func : NULL;
  }
  *receiver = self->is_call_impl ? PyMethod_GET_SELF(fn) : fn;
  return resolve_module(self, *receiver);
}

static PyObject* call_in_region(MdThread* thread, MdCompiled* self, PyObject* fn,
                                PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  MdRegion* former = md_region_switch(thread, md_is_eager_forced() ? NULL : self->region);
  int run_only = thread->run_only;
  thread->run_only = former == self->region ? run_only : 0;
  PyObject* result = PyObject_Vectorcall(fn, args, nargsf, kwnames);
  thread->run_only = run_only;
  md_region_restore(thread, former);
  return result;
}

static PyObject* call_normally(MdThread* thread, MdCompiled* self, PyFunctionObject* func,
                               PyObject* receiver, PyObject* const* args, size_t nargsf,
                               PyObject* kwnames) {
  if (func == NULL || PyFunction_Check(self->fn) ||
      (PyMethod_Check(self->fn) && !self->is_call_impl)) {
    return call_in_region(thread, self, self->fn, args, nargsf, kwnames);
  }
  // An nn.Module whose call is its forward: the first frame offered is the user's.
  PyObject* method = PyMethod_New((PyObject*)func, receiver);
  if (method == NULL) {
    return NULL;
  }
  PyObject* result = call_in_region(thread, self, method, args, nargsf, kwnames);
  Py_DECREF(method);
  return result;
}

static PyObject* compiled_call(PyObject* object, PyObject* const* args, size_t nargsf,
                               PyObject* kwnames) {
  MdCompiled* self = (MdCompiled*)object;
  MdThread* thread = &md_thread;
  PyThreadState* ts = PyThreadState_Get();
  if (md_stack_room(thread) == MD_ROOM_NONE) {
    PyErr_SetString(PyExc_RecursionError, "maximum recursion depth exceeded: no C stack is left");
    return NULL;
  }
  PyObject* result = NULL;
  PyObject* receiver = NULL;
  md_lend_recursion(ts);
  if (self->region == NULL || md_is_tracing(ts) || md_is_eager_forced()) {
    result = call_in_region(thread, self, self->fn, args, nargsf, kwnames);
  } else {
    PyFunctionObject* func = (PyFunctionObject*)Py_XNewRef((PyObject*)resolve(self, &receiver));
    if (func == NULL || !dispatch(thread, self, func, receiver, args, PyVectorcall_NARGS(nargsf),
                                  kwnames, &result)) {
      result = call_normally(thread, self, func, receiver, args, nargsf, kwnames);
    }
    Py_XDECREF(func);
  }
  md_take_recursion(ts);
  return result;
}

// The type -------------------------------------------------------------------------------------

static PyObject* make_compiled(PyObject* fn, MdRegion* region) {
  if (!PyCallable_Check(fn)) {
    PyErr_Format(PyExc_TypeError, "expected a callable, not %.100s", Py_TYPE(fn)->tp_name);
    return NULL;
  }
  MdCompiled* self = (MdCompiled*)MdCompiled_Type.tp_alloc(&MdCompiled_Type, 0);
  if (self != NULL) {
    self->vectorcall = compiled_call;
    self->fn = Py_NewRef(fn);
    self->region = (MdRegion*)Py_XNewRef((PyObject*)region);
    self->is_call_impl = (char)md_is_module_call_impl(fn);
    self->next = ring.next;
    self->previous = &ring;
    ring.next->previous = self;
    ring.next = self;
  }
  return (PyObject*)self;
}

static int compiled_traverse(MdCompiled* self, visitproc visit, void* arg) {
  Py_VISIT(self->fn);
  Py_VISIT(self->region);
  Py_VISIT(self->dict);
  for (int i = 0; i < CACHED_FUNCTIONS; i++) {
    Py_VISIT(self->cache[i].function);
  }
  return 0;
}

// fn and region stay: a CompiledFunction is never half there for a call, and a cycle through
// them has something else that can be cleared.
static int compiled_clear(MdCompiled* self) {
  Py_CLEAR(self->dict);
  for (int i = 0; i < CACHED_FUNCTIONS; i++) {
    self->cache[i].entry = NULL;
    Py_CLEAR(self->cache[i].function);
  }
  return 0;
}

static void compiled_dealloc(MdCompiled* self) {
  PyObject_GC_UnTrack(self);
  self->previous->next = self->next;
  self->next->previous = self->previous;
  if (self->weakrefs != NULL) {
    PyObject_ClearWeakRefs((PyObject*)self);
  }
  compiled_clear(self);
  Py_CLEAR(self->fn);
  Py_CLEAR(self->region);
  Py_TYPE(self)->tp_free((PyObject*)self);
}

static PyObject* compiled_get(PyObject* self, PyObject* object, PyObject* type) {
  if (object == NULL || object == Py_None) {
    return Py_NewRef(self);
  }
  return PyMethod_New(self, object);
}

static PyObject* compiled_repr(MdCompiled* self) {
  return PyUnicode_FromFormat(self->region != NULL ? "<compiled %R>" : "<disabled %R>", self->fn);
}

// Like functions, which a deep copy shares; a method or module is copied and compiled afresh.
static PyObject* compiled_deepcopy(MdCompiled* self, PyObject* memo) {
  if (PyFunction_Check(self->fn)) {
    return Py_NewRef((PyObject*)self);
  }
  PyObject* module = PyImport_ImportModule("copy");
  PyObject* fn = NULL;
  PyObject* result = NULL;
  if (module != NULL) {
    fn = PyObject_CallMethod(module, "deepcopy", "OO", self->fn, memo);
  }
  if (fn != NULL) {
    result = make_compiled(fn, self->region);
  }
  if (result != NULL && self->dict != NULL) {
    ((MdCompiled*)result)->dict = PyDict_Copy(self->dict);
    if (((MdCompiled*)result)->dict == NULL) {
      Py_CLEAR(result);
    }
  }
  Py_XDECREF(module);
  Py_XDECREF(fn);
  return result;
}

// The callable given, unless functools.update_wrapper named another one.
static PyObject* compiled_wrapped(MdCompiled* self, void* closure) {
  PyObject* named = NULL;
  if (self->dict != NULL) {
    named = PyDict_GetItemString(self->dict, "__wrapped__");
  }
  return Py_NewRef(named != NULL ? named : self->fn);
}

static int compiled_set_wrapped(MdCompiled* self, PyObject* value, void* closure) {
  PyObject* dict = PyObject_GenericGetDict((PyObject*)self, NULL);
  if (dict == NULL) {
    return -1;
  }
  int status = value != NULL ? PyDict_SetItemString(dict, "__wrapped__", value)
                             : PyDict_DelItemString(dict, "__wrapped__");
  Py_DECREF(dict);
  return status;
}

static PyMemberDef compiled_members[] = {
    {"region", T_OBJECT, offsetof(MdCompiled, region), READONLY, "its Region, or None"},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(MdCompiled, vectorcall), READONLY, NULL},
    {NULL}};

// As functions are pickled: by name, which has to be that of this object.
static PyObject* compiled_reduce(PyObject* self, PyObject* unused) {
  return PyObject_GetAttrString(self, "__qualname__");
}

// The code that a call begins with, as who looks for argument names asks for it.
static PyObject* compiled_code(MdCompiled* self, void* closure) {
  PyObject* code = PyObject_GetAttrString(self->fn, "__code__");
  if (code == NULL && PyErr_ExceptionMatches(PyExc_AttributeError)) {
    PyErr_Clear();
    PyObject* forward = PyObject_GetAttrString(self->fn, "forward");
    code = forward != NULL ? PyObject_GetAttrString(forward, "__code__") : NULL;
    Py_XDECREF(forward);
  }
  return code;
}

static PyMethodDef compiled_methods[] = {
    {"__deepcopy__", (PyCFunction)compiled_deepcopy, METH_O, NULL},
    {"__reduce__", compiled_reduce, METH_NOARGS, NULL},
    {NULL}};

static PyGetSetDef compiled_getset[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {"__code__", (getter)compiled_code, NULL, NULL, NULL},
    {"__wrapped__", (getter)compiled_wrapped, (setter)compiled_set_wrapped, NULL, NULL},
    {NULL}};

PyTypeObject MdCompiled_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "minidynamo._C.CompiledFunction",
    .tp_doc = "A callable that runs another one inside a Region.",
    .tp_basicsize = sizeof(MdCompiled),
    .tp_vectorcall_offset = offsetof(MdCompiled, vectorcall),
    .tp_weaklistoffset = offsetof(MdCompiled, weakrefs),
    .tp_dictoffset = offsetof(MdCompiled, dict),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
                Py_TPFLAGS_METHOD_DESCRIPTOR | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_call = PyVectorcall_Call,
    .tp_repr = (reprfunc)compiled_repr,
    .tp_dealloc = (destructor)compiled_dealloc,
    .tp_traverse = (traverseproc)compiled_traverse,
    .tp_clear = (inquiry)compiled_clear,
    .tp_descr_get = compiled_get,
    .tp_members = compiled_members,
    .tp_methods = compiled_methods,
    .tp_getset = compiled_getset,
};

static PyObject* compiled_function(PyObject* module, PyObject* const* args, Py_ssize_t nargs) {
  if (nargs != 2 || !Py_IS_TYPE(args[1], &MdRegion_Type)) {
    PyErr_SetString(PyExc_TypeError, "compiled_function(fn, region): region must be a Region");
    return NULL;
  }
  return make_compiled(args[0], (MdRegion*)args[1]);
}

static PyObject* disabled(PyObject* module, PyObject* fn) { return make_compiled(fn, NULL); }

static PyObject* set_module_callers(PyObject* module, PyObject* const* args, Py_ssize_t nargs) {
  if (nargs != 2 || !PyFunction_Check(args[0]) || !PyFunction_Check(args[1])) {
    PyErr_SetString(PyExc_TypeError, "set_module_callers: expected two Python functions");
    return NULL;
  }
  for (int i = 0; i < 2; i++) {
    Py_XSETREF(module_callers[i], Py_NewRef(args[i]));
  }
  Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"compiled_function", (PyCFunction)(void (*)(void))compiled_function, METH_FASTCALL,
     "compiled_function(fn, region) -> CompiledFunction: fn, run inside the region"},
    {"disabled", disabled, METH_O,
     "disabled(fn) -> CompiledFunction: fn, run outside all regions"},
    {"set_module_callers", (PyCFunction)(void (*)(void))set_module_callers, METH_FASTCALL,
     "set_module_callers(call, call_impl): functions of (module, *args, **kwargs) that call "
     "nn.Modules with hooks, and their _call_impl"},
    {NULL}};

int md_init_callable(PyObject* module) {
  ring.next = ring.previous = &ring;
  if (md_init_module_call() < 0 || PyModule_AddType(module, &MdCompiled_Type) < 0) {
    return -1;
  }
  return PyModule_AddFunctions(module, functions);
}
