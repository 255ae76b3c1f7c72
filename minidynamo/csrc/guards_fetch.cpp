// How a node gets its object out of its parent's.
#include "guards_program.h"

#include <structmember.h>

namespace md {

namespace {

// Stands for the instance dict of objects that have none, within the program only: never changed.
PyObject* empty_dict() {
  static PyObject* empty = PyDict_New();
  return empty;
}

Result give(PyObject* found, PyObject** object) {
  *object = found;
  return found != nullptr ? kPass : kFail;
}

Result give_or_none(PyObject* found, PyObject** object) {
  *object = found != nullptr ? found : Py_None;
  return kPass;
}

Result instance_dict(Node& node, PyObject* base, PyObject** object) {
  if (PyType_Check(base)) {
    return kFail;  // classes keep their dict to themselves: that is what kClassAttr is for
  }
  bool wanted = node.reg >= 0;
  int found = md_instance_dict(base, wanted, object);
  if (found == MD_DICT_ABSENT) {
    return wanted ? kFail : give(empty_dict(), object);
  }
  return static_cast<Result>(found);
}

Result key_of_dict(Node& node, PyObject* dict, bool careful, PyObject** object) {
  if (careful) {
    *object = PyDict_GetItemWithError(dict, node.operand.get());
    return *object != nullptr ? kPass : PyErr_Occurred() ? kError : kFail;
  }
  int found = md_dict_find(dict, node.operand.get(), node.hash, object);
  return found == MD_DICT_HAZARD ? kCareful : static_cast<Result>(found);
}

Result dict_item(Node& node, PyObject* base, bool careful, PyObject** object) {
  if (!PyDict_Check(base)) {
    return kFail;
  }
  if (node.by_identity) {
    bool found = node.held.is_alive() && md_dict_find_identical(base, node.held.address(), object);
    return found ? kPass : kFail;
  }
  return key_of_dict(node, base, careful, object);
}

// Key or value by position. OrderedDict has an order of its own, to be had by iterating only.
Result dict_position(Node& node, PyObject* base, bool careful, PyObject** object, bool* owned) {
  if (!PyDict_Check(base) || node.index >= PyDict_GET_SIZE(base)) {
    return kFail;
  }
  PyObject *key = nullptr, *value = nullptr;
  if (PyODict_Check(base)) {
    if (!careful) {
      return kLater;
    }
    Ref keys(PySequence_List(base));
    if (!keys) {
      return kError;
    }
    key = PyList_GetItem(keys.get(), node.index);
    if (key == nullptr) {
      return kError;
    }
    value = node.op == Op::kDictKey ? key : PyDict_GetItemWithError(base, key);
    *owned = true;
    *object = Py_XNewRef(value);
    return value != nullptr ? kPass : PyErr_Occurred() ? kError : kFail;
  }
  Py_ssize_t position = 0;
  for (Py_ssize_t i = 0; i <= node.index; i++) {
    if (!PyDict_Next(base, &position, &key, &value)) {
      return kFail;
    }
  }
  return give(node.op == Op::kDictKey ? key : value, object);
}

Result sequence_item(Node& node, PyObject* base, bool is_right_type, PyObject** items,
                     PyObject** object) {
  if (!is_right_type) {
    return kFail;
  }
  Py_ssize_t size = Py_SIZE(base);
  Py_ssize_t index = node.index < 0 ? node.index + size : node.index;
  return index >= 0 && index < size ? give(items[index], object) : kFail;
}

Result list_item(Node& node, PyObject* base, PyObject** object) {
  bool right = PyList_Check(base);
  PyObject** items = right ? reinterpret_cast<PyListObject*>(base)->ob_item : nullptr;
  return sequence_item(node, base, right, items, object);
}

Result tuple_item(Node& node, PyObject* base, PyObject** object) {
  bool right = PyTuple_Check(base);
  PyObject** items = right ? reinterpret_cast<PyTupleObject*>(base)->ob_item : nullptr;
  return sequence_item(node, base, right, items, object);
}

// What a class itself defines. Where static types keep their dict differs between versions of
// CPython, but they inherit from one type only, so what that has not is their own.
Result own_attribute(Node& node, PyTypeObject* type, bool careful, PyObject** object) {
  if (type->tp_flags & Py_TPFLAGS_HEAPTYPE) {
    return key_of_dict(node, type->tp_dict, careful, object);
  }
  PyObject* found = _PyType_Lookup(type, node.operand.get());
  bool inherited =
      type->tp_base != nullptr && found == _PyType_Lookup(type->tp_base, node.operand.get());
  return inherited ? kFail : give(found, object);
}

// The attribute that `cls` finds behind a class in the MRO.
Result super_attribute(Node& node, PyObject* cls, bool careful, PyObject** object) {
  auto* type = reinterpret_cast<PyTypeObject*>(cls);
  if (!PyType_Check(cls) || type->tp_mro == nullptr || !node.held.is_alive()) {
    return kFail;
  }
  Ref mro = Ref::of(type->tp_mro);
  bool behind = false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(mro.get()); i++) {
    PyObject* base = PyTuple_GET_ITEM(mro.get(), i);
    if (behind) {
      Result result = own_attribute(node, reinterpret_cast<PyTypeObject*>(base), careful, object);
      if (result != kFail) {
        return result;
      }
    }
    behind = behind || base == node.held.address();
  }
  return kFail;
}

Result slot(Node& node, PyObject* base, PyObject** object) {
  auto* type = reinterpret_cast<PyTypeObject*>(node.held.address());
  if (!node.held.is_alive() || !PyObject_TypeCheck(base, type)) {
    return kFail;
  }
  PyObject* value = *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(base) + node.index);
  return node.property ? give_or_none(value, object) : give(value, object);
}

Result function_field(Node& node, PyObject* base, PyObject** object) {
  if (!PyFunction_Check(base)) {
    return kFail;
  }
  auto* function = reinterpret_cast<PyFunctionObject*>(base);
  switch (node.op) {
    case Op::kFuncCode:
      return give(function->func_code, object);
    case Op::kFuncGlobals:
      return give(function->func_globals, object);
    case Op::kFuncDefaults:
      return give_or_none(function->func_defaults, object);
    case Op::kFuncKwDefaults:
      return give_or_none(function->func_kwdefaults, object);
    default:
      return give_or_none(function->func_closure, object);
  }
}

Result method_self(PyObject* base, PyObject** object) {
  if (PyMethod_Check(base)) {
    return give(PyMethod_GET_SELF(base), object);
  }
  return PyCFunction_Check(base) ? give(PyCFunction_GET_SELF(base), object) : kFail;
}

Result referent(PyObject* base, PyObject** object) {
  if (!PyWeakref_CheckRef(base)) {
    return kFail;
  }
  PyObject* target = reinterpret_cast<PyWeakReference*>(base)->wr_object;
  return give(Py_REFCNT(target) > 0 ? target : Py_None, object);
}

Result tensor_int(Node& node, PyObject* base, PyObject** object, bool* owned) {
  int64_t value;
  Result result = tensor_property(base, node.property, node.index, true, &value);
  if (result != kPass) {
    return result;
  }
  *owned = true;
  *object = PyLong_FromLongLong(value);
  return *object != nullptr ? kPass : kError;
}

Result computed(PyObject* value, PyObject** object, bool* owned) {
  *owned = true;
  *object = value;
  return value != nullptr ? kPass : kError;
}

Result second_phase_fetch(Node& node, PyObject* base, PyObject** object, bool* owned) {
  switch (node.op) {
    case Op::kGetAttr:
      return computed(PyObject_GetAttr(base, node.operand.get()), object, owned);
    case Op::kCall:
      return computed(PyObject_CallOneArg(node.operand.get(), base), object, owned);
    default:
      return tensor_int(node, base, object, owned);
  }
}

}  // namespace

Result fetch_root(Walk& walk, Node& node, PyObject** object) {
  PyFunctionObject* func = walk.func;
  switch (node.op) {
    case Op::kLocal:
      return give(walk.localsplus[node.index], object);
    case Op::kGlobals:
      return give(func->func_globals, object);
    case Op::kBuiltins:
      return give(func->func_builtins, object);
    case Op::kClosureCell: {
      PyObject* closure = func->func_closure;
      bool there = closure != nullptr && node.index < PyTuple_GET_SIZE(closure);
      return there ? give(PyTuple_GET_ITEM(closure, node.index), object) : kFail;
    }
    default:
      if (!node.held.is_alive()) {
        walk.program.dead = true;
        return kFail;
      }
      return give(node.held.address(), object);
  }
}

Result fetch(Walk& walk, Node& node, PyObject* base, PyObject** object, bool* owned) {
  switch (node.op) {
    case Op::kInstanceDict:
      return instance_dict(node, base, object);
    case Op::kDictItem:
      return dict_item(node, base, walk.careful, object);
    case Op::kDictKey:
    case Op::kDictValue:
      return dict_position(node, base, walk.careful, object, owned);
    case Op::kListItem:
      return list_item(node, base, object);
    case Op::kTupleItem:
      return tuple_item(node, base, object);
    case Op::kType:
      return give(reinterpret_cast<PyObject*>(Py_TYPE(base)), object);
    case Op::kClassAttr: {
      auto* type = reinterpret_cast<PyTypeObject*>(base);
      return PyType_Check(base) ? give(_PyType_Lookup(type, node.operand.get()), object) : kFail;
    }
    case Op::kSuperAttr:
      return super_attribute(node, base, walk.careful, object);
    case Op::kSlot:
      return slot(node, base, object);
    case Op::kFuncCode:
    case Op::kFuncGlobals:
    case Op::kFuncDefaults:
    case Op::kFuncKwDefaults:
    case Op::kFuncClosure:
      return function_field(node, base, object);
    case Op::kMethodSelf:
      return method_self(base, object);
    case Op::kMethodFunc:
      return PyMethod_Check(base) ? give(PyMethod_GET_FUNCTION(base), object) : kFail;
    case Op::kCell:
      return PyCell_Check(base) ? give(PyCell_GET(base), object) : kFail;
    case Op::kWeakref:
      return referent(base, object);
    default:
      return walk.careful ? second_phase_fetch(node, base, object, owned) : kLater;
  }
}

}  // namespace md
