// Reading dicts without running code of the user, for the guard programs.
#ifndef MINIDYNAMO_GUARDS_DICT_H
#define MINIDYNAMO_GUARDS_DICT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { MD_DICT_ABSENT = 0, MD_DICT_FOUND = 1, MD_DICT_HAZARD = 2, MD_DICT_ERROR = -1 };

// Stands for the hash of a key whose hash or == may run Python code: always a hazard.
#define MD_DICT_CAREFUL ((Py_hash_t)-1)

// Looks `key`, an exact str, number or the like, up in a dict's storage; *value is borrowed.
// MD_DICT_HAZARD: nothing was done, because a comparison with some key might run Python code.
int md_dict_find(PyObject* dict, PyObject* key, Py_hash_t hash, PyObject** value);

// The same for any key, found by identity. Never a hazard or an error.
int md_dict_find_identical(PyObject* dict, PyObject* key, PyObject** value);

// The instance dict of an object, without a run of the garbage collector. *dict is borrowed.
// Attributes that are not in a dict yet are moved to one. MD_DICT_ABSENT for objects that have none,
// and unless it is `wanted` for those that could have one but have no attributes yet.
int md_instance_dict(PyObject* object, int wanted, PyObject** dict);

// Where the object keeps the pointer to the instance dict that md_instance_dict gave, or NULL.
PyObject** md_instance_dict_word(PyObject* object);

// Whether the dict's version changes with its items, whichever way they change. Where it takes no
// more than moving the attributes out of the object `owner` (or NULL), that is done before.
int md_dict_make_versioned(PyObject* owner, PyObject* dict);

uint64_t* md_dict_version(PyObject* dict);

#ifdef __cplusplus
}
#endif

#endif
