// What a single object is asked.
#include "guards_program.h"

#include <cstring>

namespace md {

namespace {

bool same_bits(double a, double b) { return std::memcmp(&a, &b, sizeof a) == 0; }

// Comparison of two objects of the same type by their `==`, which runs no Python code.
Result equal_natively(PyObject* expected, PyObject* found) {
  int equal = PyObject_RichCompareBool(expected, found, Py_EQ);
  return equal < 0 ? kError : equal ? kPass : kFail;
}

Result tuples_equal(PyObject* expected, PyObject* found, bool careful) {
  Py_ssize_t size = PyTuple_GET_SIZE(expected);
  if (PyTuple_GET_SIZE(found) != size) {
    return kFail;
  }
  for (Py_ssize_t i = 0; i < size; i++) {
    Result result =
        constants_equal(PyTuple_GET_ITEM(expected, i), PyTuple_GET_ITEM(found, i), careful);
    if (result != kPass) {
      return result;
    }
  }
  return kPass;
}

Result slices_equal(PyObject* expected, PyObject* found, bool careful) {
  auto* a = reinterpret_cast<PySliceObject*>(expected);
  auto* b = reinterpret_cast<PySliceObject*>(found);
  PyObject* parts[3][2] = {{a->start, b->start}, {a->stop, b->stop}, {a->step, b->step}};
  for (auto& [want, have] : parts) {
    Result result = constants_equal(want, have, careful);
    if (result != kPass) {
      return result;
    }
  }
  return kPass;
}

// Sets hold no two equal members, so each member of one needs its like, types included, in the
// other; equal sets mostly have the same order. Iterating allocates: second phase only.
Result sets_equal(PyObject* expected, PyObject* found) {
  if (PySet_GET_SIZE(expected) != PySet_GET_SIZE(found)) {
    return kFail;
  }
  Ref wanted(PySequence_List(expected));
  Ref have(PySequence_List(found));
  if (!wanted || !have) {
    return kError;
  }
  Py_ssize_t size = PyList_GET_SIZE(have.get());
  for (Py_ssize_t i = 0; i < size; i++) {
    Result result = kFail;
    for (Py_ssize_t j = 0; j < size && result == kFail; j++) {
      result = constants_equal(PyList_GET_ITEM(wanted.get(), i),
                               PyList_GET_ITEM(have.get(), (i + j) % size), true);
    }
    if (result != kPass) {
      return result;
    }
  }
  return kPass;
}

// Types whose objects never change, and whose `==` between two of them is C code.
bool is_immutable(PyTypeObject* type) {
  return type == &PyLong_Type || type == &PyUnicode_Type || type == &PyBytes_Type ||
         type == &PyBool_Type || type == &PyFloat_Type || type == &PyComplex_Type ||
         type == &PyTuple_Type || type == &PyRange_Type || type == Py_TYPE(Py_None) ||
         type == Py_TYPE(Py_Ellipsis);
}

Result type_is(const Check& check, PyObject* object) {
  return reinterpret_cast<PyObject*>(Py_TYPE(object)) == check.held.address() ? kPass : kFail;
}

Result id_is(Walk& walk, const Check& check, PyObject* object) {
  if (object != check.held.address()) {
    return kFail;
  }
  if (!check.held.is_alive()) {
    walk.program.dead = true;
    return kFail;
  }
  return kPass;
}

// Of a container its own number of items, also where a subclass has a `__len__` that says another.
Result length_is(const Check& check, PyObject* object, bool careful) {
  Py_ssize_t size;
  if (PyTuple_Check(object) || PyList_Check(object)) {
    size = Py_SIZE(object);
  } else if (PyDict_Check(object)) {
    size = PyDict_GET_SIZE(object);
  } else if (PyAnySet_Check(object)) {
    size = PySet_GET_SIZE(object);
  } else if (PyUnicode_CheckExact(object)) {
    size = PyUnicode_GET_LENGTH(object);
  } else if (!careful) {
    return kLater;
  } else {
    size = PyObject_Size(object);
  }
  return size < 0 ? kError : size == check.size ? kPass : kFail;
}

Result truth_is(const Check& check, PyObject* object, bool careful) {
  PyTypeObject* type = Py_TYPE(object);
  bool native = is_immutable(type) || type == &PyList_Type || has_dict_length(object) ||
                PyAnySet_CheckExact(object);
  if (!native && !careful) {
    return kLater;
  }
  int truth = PyObject_IsTrue(object);
  return truth < 0 ? kError : truth == check.size ? kPass : kFail;
}

Result class_is_unchanged(const Check& check, PyObject* object) {
  if (!PyType_Check(object)) {
    return kFail;
  }
  auto* type = reinterpret_cast<PyTypeObject*>(object);
  return class_contents_hold(check.value.get(), type) ? kPass : kFail;
}

Result class_lacks(const Check& check, PyObject* object) {
  if (!PyType_Check(object)) {
    return kFail;
  }
  auto* type = reinterpret_cast<PyTypeObject*>(object);
  return _PyType_Lookup(type, check.value.get()) == nullptr ? kPass : kFail;
}

Result has_key(const Check& check, PyObject* object, bool careful) {
  PyObject* value;
  if (check.by_identity) {
    bool found =
        check.held.is_alive() && md_dict_find_identical(object, check.held.address(), &value);
    return found ? kPass : kFail;
  }
  if (careful) {
    value = PyDict_GetItemWithError(object, check.value.get());
    return value != nullptr ? kPass : PyErr_Occurred() ? kError : kFail;
  }
  int found = md_dict_find(object, check.value.get(), check.hash, &value);
  return found == MD_DICT_HAZARD ? kCareful : static_cast<Result>(found);
}

Result key_is(const Held& expected, PyObject* found) {
  if (!expected.is_alive()) {
    return kFail;
  }
  if (expected.address() == found) {
    return kPass;
  }
  Result result = constants_equal(expected.address(), found, false);
  return result == kLater ? kFail : result;  // other objects are compared by identity
}

// Keys of a dict whose order is not that of its storage.
Result ordered_keys_are(const std::vector<Held>& expected, PyObject* object) {
  Ref keys(PySequence_List(object));
  if (!keys) {
    return kError;
  }
  if (static_cast<size_t>(PyList_GET_SIZE(keys.get())) != expected.size()) {
    return kFail;
  }
  for (size_t i = 0; i < expected.size(); i++) {
    Result result = key_is(expected[i], PyList_GET_ITEM(keys.get(), static_cast<Py_ssize_t>(i)));
    if (result != kPass) {
      return result;
    }
  }
  return kPass;
}

Result keys_are(const Check& check, PyObject* object, bool careful) {
  if (!PyDict_Check(object)) {
    return kFail;
  }
  const std::vector<Held>& expected = check.keys;
  if (static_cast<size_t>(PyDict_GET_SIZE(object)) != expected.size()) {
    return kFail;
  }
  if (PyODict_Check(object)) {
    return careful ? ordered_keys_are(expected, object) : kLater;
  }
  Py_ssize_t position = 0;
  size_t i = 0;
  PyObject *key, *value;
  while (PyDict_Next(object, &position, &key, &value)) {
    Result result = i < expected.size() ? key_is(expected[i++], key) : kFail;
    if (result != kPass) {
      return result;
    }
  }
  return i == expected.size() ? kPass : kFail;
}

// Of a cell: whether it is full. That runs no code of the user.
Result has_attribute(const Check& check, PyObject* object, bool careful) {
  if (PyCell_Check(object)) {
    return PyCell_GET(object) != nullptr ? kPass : kFail;
  }
  if (!careful) {
    return kLater;
  }
  Ref value(PyObject_GetAttr(object, check.value.get()));
  if (value) {
    return kPass;
  }
  if (!PyErr_ExceptionMatches(PyExc_AttributeError)) {
    return kError;
  }
  PyErr_Clear();
  return kFail;
}

Result negated(Result result) {
  return result == kPass ? kFail : result == kFail ? kPass : result;
}

}  // namespace

Result constants_equal(PyObject* expected, PyObject* found, bool careful) {
  if (expected == found) {
    return kPass;
  }
  PyTypeObject* type = Py_TYPE(expected);
  if (Py_TYPE(found) != type) {
    return kFail;
  }
  if (type == &PyFloat_Type) {
    return same_bits(PyFloat_AS_DOUBLE(expected), PyFloat_AS_DOUBLE(found)) ? kPass : kFail;
  }
  if (type == &PyComplex_Type) {
    Py_complex a = PyComplex_AsCComplex(expected), b = PyComplex_AsCComplex(found);
    return same_bits(a.real, b.real) && same_bits(a.imag, b.imag) ? kPass : kFail;
  }
  if (PyTuple_Check(expected)) {  // torch.Size and named tuples too: by their items
    return tuples_equal(expected, found, careful);
  }
  if (type == &PySlice_Type) {
    return slices_equal(expected, found, careful);
  }
  if (is_immutable(type)) {
    return equal_natively(expected, found);
  }
  if (!careful) {
    return kLater;
  }
  return PyAnySet_Check(expected) ? sets_equal(expected, found) : equal_natively(expected, found);
}

namespace {

Result ask(Walk& walk, const Check& check, PyObject* object) {
  switch (check.kind) {
    case Kind::kTypeIs:
      return type_is(check, object);
    case Kind::kIdIs:
      return id_is(walk, check, object);
    case Kind::kIsNone:
      return object == Py_None ? kPass : kFail;
    case Kind::kNotNone:
      return object != Py_None ? kPass : kFail;
    case Kind::kBoolIs:
      return truth_is(check, object, walk.careful);
    case Kind::kTypeVersion:
      return class_is_unchanged(check, object);
    case Kind::kClassLacks:
      return class_lacks(check, object);
    case Kind::kLenEq:
      return length_is(check, object, walk.careful);
    case Kind::kDictHas:
      return PyDict_Check(object) ? has_key(check, object, walk.careful) : kFail;
    case Kind::kDictLacks:
      return PyDict_Check(object) ? negated(has_key(check, object, walk.careful)) : kFail;
    case Kind::kDictKeys:
      return keys_are(check, object, walk.careful);
    case Kind::kTensorMatch:
      return tensor_matches(*check.tensor, object, walk.dispatch, walk.careful);
    case Kind::kConstEq:
      return constants_equal(check.value.get(), object, walk.careful);
    case Kind::kHasAttr:
      return has_attribute(check, object, walk.careful);
    case Kind::kLacksAttr:
      return negated(has_attribute(check, object, walk.careful));
  }
  return kFail;
}

}  // namespace

Result after_exception() {
  if (!PyErr_ExceptionMatches(PyExc_Exception)) {
    return kError;
  }
  PyErr_Clear();
  return kFail;
}

Result run_check(Walk& walk, const Check& check, PyObject* object) {
  Result result = ask(walk, check, object);
  return result == kError ? after_exception() : result;
}

namespace {

// Whether the value of the object never changes, all the way down.
bool is_constant(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  if (type == &PyTuple_Type) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(object); i++) {
      if (!is_constant(PyTuple_GET_ITEM(object, i))) {
        return false;
      }
    }
    return true;
  }
  return is_immutable(type);
}

}  // namespace

bool is_settled(const Check& check, PyObject* object, bool same) {
  switch (check.kind) {
    case Kind::kIsNone:
    case Kind::kNotNone:
      return true;
    case Kind::kIdIs:
      return same || !check.held.is_weak();
    case Kind::kTypeIs:
      return same && keeps_type(Py_TYPE(object));
    case Kind::kConstEq:
      // The program holds the value, so nothing else can get its address.
      return (same || check.value.get() == object) && is_constant(object);
    case Kind::kBoolIs:
      return (same || PyBool_Check(object) || object == Py_None) && is_immutable(Py_TYPE(object));
    case Kind::kLenEq:
      return same && (PyTuple_CheckExact(object) || PyUnicode_CheckExact(object) ||
                      Py_TYPE(object) == &PyFrozenSet_Type);
    default:
      return false;
  }
}

}  // namespace md
