// Stand-ins for the parts that need torch, in a build of the frame hook alone
// (MINIDYNAMO_HOOK_ONLY=1, see setup.py): there are no guard programs and no plans.
#ifdef MINIDYNAMO_HOOK_ONLY

#include "guards.h"
#include "hook.h"

int md_init_guards(PyObject* module) { return 0; }

int md_init_plan(PyObject* module) { return 0; }

int md_init_differentiable(PyObject* module) { return 0; }

int md_guard_program_check(PyObject* object) { return 0; }

int md_guard_is_dead(PyObject* program) { return 0; }

int md_guard_check(PyObject* program, PyObject* const* localsplus, PyFunctionObject* func,
                   PyObject** fetched) {
  return 0;
}

// Not known: calls of modules take the long way.
int md_torch_is_tracing(void) { return 1; }

#endif
