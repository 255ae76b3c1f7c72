// What differs between CPython versions in instance dicts and dict tables. It stands apart from
// compat.h because these internal headers want Py_BUILD_CORE to be defined before Python.h.
// Facts are from pycore_dict.h and pycore_object.h of CPython 3.11, 3.12 and 3.13.
#ifndef MINIDYNAMO_COMPAT_DICT_H
#define MINIDYNAMO_COMPAT_DICT_H

#define PY_SSIZE_T_CLEAN
#define Py_BUILD_CORE
#include <Python.h>
#include <internal/pycore_dict.h>
#undef Py_BUILD_CORE

// The word of an object that points to its instance dict: NULL, the dict, or, where the dict was
// not made yet, a pointer with its low bit set. NULL when objects of this type have no dict.
static inline PyObject** md_dict_word(PyObject* object) {
  if ((Py_TYPE(object)->tp_flags & Py_TPFLAGS_MANAGED_DICT) == 0) {
    return _PyObject_GetDictPtr(object);
  }
  return (PyObject**)object - 3;  // MANAGED_DICT_OFFSET, the same in all three
}

// Whether every change of the dict's items changes its ma_version_tag. Stores to attributes whose
// values lie inside the object (3.13) do not.
static inline int md_dict_is_versioned(PyObject* dict) {
#if PY_VERSION_HEX >= 0x030D0000
  PyDictValues* values = ((PyDictObject*)dict)->ma_values;
  return values == NULL || !values->embedded;
#else
  (void)dict;
  return 1;
#endif
}

#endif
