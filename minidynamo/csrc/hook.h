// What the files of the frame hook share. Everything here runs under the GIL.
#ifndef MINIDYNAMO_HOOK_H
#define MINIDYNAMO_HOOK_H

#include "compat.h"

// A compile configuration: what may be compiled how is the callback's to say.
typedef struct {
  PyObject_HEAD
  PyObject* callback;  // NULL only after the collector cleared it
  PyObject* weakrefs;
  char run_only;  // use what is compiled, never ask
} MdRegion;

typedef struct MdCodeState MdCodeState;

// One compiled variant of a code object: run `code` when `guards` hold.
typedef struct {
  PyObject_HEAD
  PyObject* guards;     // GuardProgram, a callable, or None
  PyCodeObject* code;
  PyObject* data;       // the compiler's own
  PyCodeObject* call_code;  // `code` with only positional parameters, made when first needed
  MdCodeState* owner;   // the state whose list holds this entry, or NULL
  Py_ssize_t hits;
  int nargs;            // slots of localsplus that are arguments
  char valid;
  char needs_hook;
  char inputs_slot;
  char cached;          // some CompiledFunction has made a function for it
} MdEntry;

// The entries of one region on one code object, most recently hit first.
typedef struct MdRegionState {
  struct MdRegionState* next;
  MdRegion* region;  // borrowed: a dying region removes its states
  MdEntry** entries;
  Py_ssize_t count;
  Py_ssize_t capacity;
  unsigned version;  // changes with every change of the list
  char skip;         // an MdSkip: whether the callback is asked on a miss
} MdRegionState;

// MD_ONCE is an answer only: this call runs as with MD_SKIP_RECURSIVE, the next one is asked for.
typedef enum {
  MD_ASK = 0,
  MD_SKIP = 1,
  MD_SKIP_RECURSIVE = 2,
  MD_GENERATED = 3,
  MD_SKIP_RUN_ONLY = 4,  // below the frame what is compiled is used, and nothing is asked
  MD_ONCE = 5
} MdSkip;

// What hangs on a code object (co_extra).
struct MdCodeState {
  MdCodeState* next;  // registry of all states
  MdCodeState* previous;
  PyCodeObject* code;  // borrowed: the state dies with it
  MdRegionState* regions;
  char skip;  // an MdSkip for every region
};

// Result of generated code that ends by calling another function; also a call under way.
typedef struct {
  PyObject_VAR_HEAD
  PyObject* fn;
  PyObject* args[1];
} MdTailCall;

typedef struct {
  MdRegion* region;     // strong; NULL: nothing is offered in this thread
  PyObject* expected;   // borrowed: the function that we call right now, whose frame comes next
  MdTailCall* pending;  // borrowed: its arguments, when it is called for a TailCall
  MdFrame* passed_on;   // the frame that we handed to the evaluator that was there before ours
  int quiet;            // > 0 while guards run Python code
  int run_only;         // > 0 below a frame that was left for good (MD_SKIP_RUN_ONLY)
  char* stack_soft;     // C stack bounds, see stack.c; NULL until first asked
  char* stack_hard;
  char* stack_end;
} MdThread;

// Looked up once in each entry point and handed on: a look-up costs some nanoseconds.
extern _Thread_local MdThread md_thread;

extern PyTypeObject MdRegion_Type;
extern PyTypeObject MdEntry_Type;
extern PyTypeObject MdFrameInfo_Type;
extern PyTypeObject MdTailCall_Type;
extern PyTypeObject MdCompiled_Type;

// region.c -----------------------------------------------------------------------------------
int md_init_region(PyObject* module);
// Makes `region` (or NULL) this thread's current one; returns the former, owned by the caller,
// for md_region_restore, which takes it back. Installs and removes the evaluator as needed.
MdRegion* md_region_switch(MdThread* thread, MdRegion* region);
void md_region_restore(MdThread* thread, MdRegion* former);
// Whether frames go to our evaluator first.
int md_evaluator_is_ours(void);
// Removes the evaluator when it is installed but no thread is in a region.
void md_evaluator_expire(void);
// The evaluator that was installed before ours.
extern _PyFrameEvalFunction md_former_evaluator;

// code_state.c -------------------------------------------------------------------------------
int md_init_code_state(PyObject* module);
extern Py_ssize_t md_extra_index;
static inline MdCodeState* md_state_get(PyCodeObject* code) {
  return (MdCodeState*)md_code_extra(code, md_extra_index);
}
MdCodeState* md_state_ensure(PyCodeObject* code);  // NULL with an error set
MdRegionState* md_region_state_get(MdCodeState* state, MdRegion* region);
MdRegionState* md_region_state_ensure(MdCodeState* state, MdRegion* region);
int md_state_add(MdCodeState* state, MdRegion* region, MdEntry* entry);
PyObject* md_region_state_list(MdRegionState* state);
void md_states_forget_region(MdRegion* region);
// The first entry whose guards hold, as a new reference, moved to the front; NULL on a miss.
// `tried` counts the entries whose guards failed. The caller holds func, its code, the arguments
// and the region.
MdEntry* md_lookup(MdRegionState* state, PyObject* const* localsplus, PyFunctionObject* func,
                   PyObject** fetched, Py_ssize_t* tried);

// entry.c ------------------------------------------------------------------------------------
int md_init_entry(PyObject* module);
// Runs an entry's guards: 1 and `fetched` (new reference or NULL), or 0. Reports errors itself.
int md_entry_check(MdEntry* entry, PyObject* const* localsplus, PyFunctionObject* func,
                   PyObject** fetched);
// 0 when the entry's code can stand in for `code`, else -1 with a TypeError.
int md_entry_fits(MdEntry* entry, PyCodeObject* code);
// A function that runs the entry when called with all arguments positionally (and `fetched`
// last, for an entry with an inputs slot), with the surroundings of `func`.
PyObject* md_entry_function(MdEntry* entry, PyFunctionObject* func);
static inline int md_code_nargs(PyCodeObject* code) {
  return code->co_argcount + code->co_kwonlyargcount + ((code->co_flags & CO_VARARGS) != 0) +
         ((code->co_flags & CO_VARKEYWORDS) != 0);
}
#define MD_GENERATOR_FLAGS (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR)

// frame_info.c -------------------------------------------------------------------------------
int md_init_frame_info(PyObject* module);
PyObject* md_frame_info_new(PyFunctionObject* func, PyCodeObject* code,
                            PyObject* const* localsplus, MdRegion* region,
                            MdRegionState* state, Py_ssize_t failed);

// tail_call.c --------------------------------------------------------------------------------
int md_init_tail_call(PyObject* module);
// Takes what generated code returned; while that is a TailCall, makes the call.
PyObject* md_tail_loop(MdThread* thread, PyObject* result);
// Drops what a call under way holds: its frame has references of its own.
void md_tail_call_release(MdTailCall* call);
static inline int md_is_tail_call(PyObject* result) {
  return result != NULL && Py_IS_TYPE(result, &MdTailCall_Type);
}

// stack.c ------------------------------------------------------------------------------------
// With an evaluator installed a call from Python to Python takes C stack, without one it takes
// none, so a program's recursion limit says nothing of what we may use.
enum { MD_ROOM_NONE, MD_ROOM_LOW, MD_ROOM_FINE };
void md_measure_stack(MdThread* thread);
static inline int md_stack_room(MdThread* thread) {
  char* here = (char*)__builtin_frame_address(0);
  if (thread->stack_end == NULL) {
    md_measure_stack(thread);
  }
  if (here >= thread->stack_soft || here > thread->stack_end) {
    return MD_ROOM_FINE;
  }
  return here >= thread->stack_hard ? MD_ROOM_LOW : MD_ROOM_NONE;
}

// eval_frame.c -------------------------------------------------------------------------------
PyObject* md_eval_frame(PyThreadState* ts, MdFrame* frame, int throwflag);
// What calling a plain function runs (CPython does not export it).
extern vectorcallfunc md_function_vectorcall;

// stance.c -----------------------------------------------------------------------------------
int md_init_stance(PyObject* module);
// Whether nothing compiled is used and nothing is asked, in any thread.
int md_is_eager_forced(void);

// callable.c ---------------------------------------------------------------------------------
int md_init_callable(PyObject* module);
// Makes every CompiledFunction forget the function it made for this entry.
void md_callables_forget(MdEntry* entry);

// module_call.c ------------------------------------------------------------------------------
int md_init_module_call(void);
// What was found out about the class of an nn.Module; valid while its version tag stays.
typedef struct {
  PyTypeObject* type;
  unsigned version;
  PyObject* forward;  // borrowed from the class
} MdModuleClass;
// What calling an object does: known->forward(object, ...) and nothing else, as an nn.Module without
// hooks does; that amid forward hooks; or something else, or not certain (no error is set).
typedef enum { MD_OTHER_CALL, MD_FORWARD_CALL, MD_HOOKED_CALL } MdModuleCall;
// within: what happens inside of object._call_impl, which may be compiled as the instance's call.
MdModuleCall md_module_call(PyObject* object, MdModuleClass* known, int within);
// Whether it is the method `_call_impl`, as torch defines it, of an nn.Module.
int md_is_module_call_impl(PyObject* fn);
// torch_state.cpp: whether torch.jit.trace records in this thread.
int md_torch_is_tracing(void);

#endif
