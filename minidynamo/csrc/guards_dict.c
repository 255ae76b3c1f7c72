// See guards_dict.h.
#include "compat_dict.h"

#include "guards_dict.h"

// Whether comparing an object of this type with a constant runs no Python code.
static int is_plain(PyTypeObject* type) {
  return type == &PyUnicode_Type || type == &PyLong_Type || type == &PyBool_Type ||
         type == &PyFloat_Type || type == &PyBytes_Type || type == &PyComplex_Type ||
         type == &PyType_Type || type == &PyFunction_Type || type == &_PyNone_Type;
}

int md_dict_find(PyObject* dict, PyObject* key, Py_hash_t hash, PyObject** value) {
  PyDictKeysObject* keys = ((PyDictObject*)dict)->ma_keys;
  if (!DK_IS_UNICODE(keys)) {
    PyDictKeyEntry* entries = DK_ENTRIES(keys);
    for (Py_ssize_t i = 0; i < keys->dk_nentries; i++) {
      PyObject* other = entries[i].me_key;
      if (other != NULL && entries[i].me_hash == hash && other != key &&
          !is_plain(Py_TYPE(other))) {
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

PyObject** md_instance_dict_word(PyObject* object) { return md_dict_word(object); }

int md_instance_dict(PyObject* object, PyObject** dict) {
  PyObject** word = md_dict_word(object);
  if (word == NULL || PyType_Check(object)) {
    return MD_DICT_ABSENT;
  }
  if (*word == NULL || ((uintptr_t)*word & 1) != 0) {
    if ((Py_TYPE(object)->tp_flags & Py_TPFLAGS_MANAGED_DICT) == 0) {
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
    word = md_dict_word(object);
  }
  *dict = *word;
  return MD_DICT_FOUND;
}

int md_dict_make_versioned(PyObject* owner, PyObject* dict) {
  // Setting the very same dict detaches it from the object's inline values.
  if (owner != NULL && !md_dict_is_versioned(dict) &&
      PyObject_GenericSetDict(owner, dict, NULL) < 0) {
    PyErr_Clear();  // short of memory: the dict stays as it was
  }
  return md_dict_is_versioned(dict);
}

uint64_t* md_dict_version(PyObject* dict) {
  _Py_COMP_DIAG_PUSH
  _Py_COMP_DIAG_IGNORE_DEPR_DECLS
  return &((PyDictObject*)dict)->ma_version_tag;
  _Py_COMP_DIAG_POP
}
