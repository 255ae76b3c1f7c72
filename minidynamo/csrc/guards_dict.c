// See guards_dict.h. The layout of dicts is internal to CPython; its header wants Py_BUILD_CORE to
// be defined before Python.h.
#define PY_SSIZE_T_CLEAN
#define Py_BUILD_CORE
#include <Python.h>
#include <internal/pycore_dict.h>
#undef Py_BUILD_CORE

#include "compat.h"
#include "guards_dict.h"

// The word of an object that points to its instance dict: NULL, the dict, or, where the dict was
// not made yet, a pointer with its low bit set. NULL when objects of this type have no dict.
static PyObject** dict_word(PyObject* object) {
  if ((Py_TYPE(object)->tp_flags & Py_TPFLAGS_MANAGED_DICT) == 0) {
    return _PyObject_GetDictPtr(object);
  }
  return (PyObject**)object - 3;  // MANAGED_DICT_OFFSET, the same from 3.11 to 3.13
}

// Whether every change of the dict's items changes its ma_version_tag. Stores to attributes whose
// values lie inside the object (3.13) do not.
static int is_versioned(PyObject* dict) {
#if MD_PY313
  PyDictValues* values = ((PyDictObject*)dict)->ma_values;
  return values == NULL || !values->embedded;
#else
  (void)dict;
  return 1;
#endif
}

// Whether comparing this object with a constant runs no Python code.
static int is_plain(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  if (PyTuple_Check(object) && type->tp_richcompare == PyTuple_Type.tp_richcompare) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(object); i++) {
      if (!is_plain(PyTuple_GET_ITEM(object, i))) {
        return 0;
      }
    }
    return 1;
  }
  return type == &PyUnicode_Type || type == &PyLong_Type || type == &PyBool_Type ||
         type == &PyFloat_Type || type == &PyBytes_Type || type == &PyComplex_Type ||
         type->tp_richcompare == PyBaseObject_Type.tp_richcompare || object == Py_None;
}

int md_dict_find(PyObject* dict, PyObject* key, Py_hash_t hash, PyObject** value) {
  if (hash == MD_DICT_CAREFUL) {
    return MD_DICT_HAZARD;
  }
  PyDictKeysObject* keys = ((PyDictObject*)dict)->ma_keys;
  if (!DK_IS_UNICODE(keys)) {
    PyDictKeyEntry* entries = DK_ENTRIES(keys);
    for (Py_ssize_t i = 0; i < keys->dk_nentries; i++) {
      PyObject* other = entries[i].me_key;
      if (other != NULL && entries[i].me_hash == hash && other != key &&
          !is_plain(other)) {
        return MD_DICT_HAZARD;
      }
    }
  }
  *value = _PyDict_GetItem_KnownHash(dict, key, hash);
  if (*value != NULL) {
    return MD_DICT_FOUND;
  }
  return PyErr_Occurred() ? MD_DICT_ERROR : MD_DICT_ABSENT;
}

int md_dict_find_identical(PyObject* dict, PyObject* key, PyObject** value) {
  Py_ssize_t position = 0;
  PyObject* found;
  while (PyDict_Next(dict, &position, &found, value)) {
    if (found == key) {
      return MD_DICT_FOUND;
    }
  }
  return MD_DICT_ABSENT;
}

PyObject** md_instance_dict_word(PyObject* object) { return dict_word(object); }

int md_instance_dict(PyObject* object, int wanted, PyObject** dict) {
  PyObject** word = dict_word(object);
  if (word == NULL || PyType_Check(object)) {
    return MD_DICT_ABSENT;
  }
  if (*word == NULL || ((uintptr_t)*word & 1) != 0) {
    if (!wanted && (Py_TYPE(object)->tp_flags & Py_TPFLAGS_MANAGED_DICT) == 0) {
      return MD_DICT_ABSENT;
    }
    int enabled = PyGC_Disable();
    PyObject* made = PyObject_GenericGetDict(object, NULL);
    if (enabled) {
      PyGC_Enable();
    }
    if (made == NULL) {
      return MD_DICT_ERROR;
    }
    Py_DECREF(made);
    word = dict_word(object);
  }
  *dict = *word;
  return MD_DICT_FOUND;
}

// Sets the instance dict that `owner` has already: that detaches it from the inline values. CPython's
// own setter, since the class may have a __setattr__.
static void detach(PyObject* owner, PyObject* dict) {
  static PyObject* name;
  if (name == NULL) {
    name = PyUnicode_InternFromString("__dict__");
  }
  PyObject* descriptor = name != NULL ? _PyType_Lookup(Py_TYPE(owner), name) : NULL;
  if (descriptor == NULL || Py_TYPE(descriptor) != &PyGetSetDescr_Type ||
      PyGetSetDescr_Type.tp_descr_set(descriptor, owner, dict) < 0) {
    PyErr_Clear();  // it stays as it was, and is looked at item by item
  }
}

int md_dict_make_versioned(PyObject* owner, PyObject* dict) {
  if (owner != NULL && !is_versioned(dict)) {
    detach(owner, dict);
  }
  return is_versioned(dict);
}

uint64_t* md_dict_version(PyObject* dict) {
  _Py_COMP_DIAG_PUSH
  _Py_COMP_DIAG_IGNORE_DEPR_DECLS
  return &((PyDictObject*)dict)->ma_version_tag;
  _Py_COMP_DIAG_POP
}
