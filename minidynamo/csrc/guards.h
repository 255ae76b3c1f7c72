// What the frame hook knows of guard programs (guards.cpp).
#ifndef MINIDYNAMO_GUARDS_H
#define MINIDYNAMO_GUARDS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#ifdef __cplusplus
extern "C" {
#endif

// Adds the type GuardProgram to the module. 0, or -1 with an exception set.
int md_init_guards(PyObject* module);

// Whether an object that `program` compares with has died: it can not pass any more.
int md_guard_is_dead(PyObject* program);

// Whether `object` is a GuardProgram.
int md_guard_program_check(PyObject* object);

// Runs `program` (a GuardProgram) on the arguments of a call.
//   localsplus: the arguments as CPython lays them out at the entry of a frame of func's code:
//     co_argcount, then keyword-only ones, then *args, then **kwargs; borrowed, raw values also
//     for arguments that are cells. A vectorcall argument array of a full positional call is one.
//   fetched: on success a new reference to the tuple that the program collected, or NULL when the
//     program collects nothing. Untouched otherwise.
// Returns 1 when all guards hold, 0 when one does not, -1 with an exception set.
// Some checks run Python code: whoever calls holds references to all that is passed.
int md_guard_check(PyObject* program, PyObject* const* localsplus, PyFunctionObject* func,
                   PyObject** fetched);

#ifdef __cplusplus
}
#endif

#endif
