// What a class and its bases held at some time: for TYPE_VERSION, when the version of the class has
// changed. Tracers patch classes and put back what was there; that must not cost a recompile.
#include "guards_program.h"

#include <algorithm>

namespace md {

namespace {

// Objects that are made of functions but cannot be held weakly: their parts are.
const char* const kPropertyParts[] = {"fget", "fset", "fdel", nullptr};
const char* const kMethodParts[] = {"__func__", nullptr};

const char* const* parts_of(PyTypeObject* type) {
  if (type == &PyProperty_Type) {
    return kPropertyParts;
  }
  return type == &PyStaticMethod_Type || type == &PyClassMethod_Type ? kMethodParts : nullptr;
}

bool is_descriptor(PyTypeObject* type) {
  return type == &PyGetSetDescr_Type || type == &PyMemberDescr_Type;
}

const void* descriptor_definition(PyObject* descriptor) {
  return Py_TYPE(descriptor) == &PyGetSetDescr_Type
             ? static_cast<const void*>(reinterpret_cast<PyGetSetDescrObject*>(descriptor)->d_getset)
             : reinterpret_cast<PyMemberDescrObject*>(descriptor)->d_member;
}

// torch._dynamo puts functions of its own before two of torch.nn.Module's when it first compiles
// something: they note which instances are made, and do what they did. (A third attribute says so.)
bool is_tagging(PyObject* name, PyObject* value) {
  static PyObject* const tagger = PyUnicode_InternFromString("torch._dynamo.mutation_guard");
  if (value == Py_False) {
    return PyUnicode_CompareWithASCIIString(name, "___needs_generation_tag_patch") == 0;
  }
  if (!PyFunction_Check(value) || (PyUnicode_CompareWithASCIIString(name, "__init__") != 0 &&
                                   PyUnicode_CompareWithASCIIString(name, "__setstate__") != 0)) {
    return false;
  }
  PyObject* module = PyFunction_GetModule(value);
  return module != nullptr && PyUnicode_Check(module) && PyUnicode_Compare(module, tagger) == 0;
}

Py_ssize_t count_tagging(PyObject* dict) {
  Py_ssize_t position = 0, count = 0;
  PyObject *name, *value;
  while (PyDict_Next(dict, &position, &name, &value)) {
    count += value == Py_False && is_tagging(name, value);
  }
  return count;
}

// One attribute of one class. An entry must not keep the class alive: what refers to it is known by
// its address and by more that a new object at this address would not share.
class Attribute {
 public:
  bool capture(PyObject* name, PyObject* value) {
    name_ = Ref::of(name);
    address_ = value;
    type_ = Py_TYPE(value);
    if (const char* const* parts = parts_of(type_)) {
      return capture_parts(parts, value);
    }
    if (is_descriptor(type_)) {
      definition_ = descriptor_definition(value);
      return true;
    }
    if (type_ == &PyDict_Type) {
      version_ = *md_dict_version(value);
      return true;
    }
    held_.emplace_back();
    return held_.back().hold(value);
  }

  bool holds(PyObject* dict) const {
    PyObject* found = nullptr;
    if (md_dict_find_identical(dict, name_.get(), &found) != MD_DICT_FOUND || found != address_ ||
        Py_TYPE(found) != type_) {
      return false;
    }
    if (const char* const* parts = parts_of(type_)) {
      return parts_hold(parts, found);
    }
    if (is_descriptor(type_)) {
      return definition_ == descriptor_definition(found);
    }
    return type_ == &PyDict_Type ? version_ == *md_dict_version(found) : held_[0].is_alive();
  }

  // Whether torch._dynamo's own function, which calls it, has taken its place.
  bool is_tagged(PyObject* dict) const {
    PyObject* found = nullptr;
    if (type_ != &PyFunction_Type || !held_[0].is_alive() ||
        md_dict_find_identical(dict, name_.get(), &found) != MD_DICT_FOUND ||
        !PyFunction_Check(found) || !is_tagging(name_.get(), found)) {
      return false;
    }
    PyObject* cells = PyFunction_GetClosure(found);
    for (Py_ssize_t i = 0; cells != nullptr && i < PyTuple_GET_SIZE(cells); i++) {
      PyObject* cell = PyTuple_GET_ITEM(cells, i);
      if (PyCell_Check(cell) && PyCell_GET(cell) == address_) {
        return true;
      }
    }
    return false;
  }

  int visit(visitproc visit, void* arg) const {
    Py_VISIT(name_.get());
    for (const Held& held : held_) {
      Py_VISIT(held.owned());
    }
    return 0;
  }

 private:
  bool capture_parts(const char* const* parts, PyObject* value) {
    for (; *parts != nullptr; parts++) {
      Ref part(PyObject_GetAttrString(value, *parts));
      held_.emplace_back();
      if (!part || !held_.back().hold(part.get())) {
        return false;
      }
    }
    return true;
  }

  bool parts_hold(const char* const* parts, PyObject* value) const {
    for (size_t i = 0; parts[i] != nullptr; i++) {
      Ref part(PyObject_GetAttrString(value, parts[i]));
      if (part.get() != held_[i].address() || !held_[i].is_alive()) {
        PyErr_Clear();
        return false;
      }
    }
    return true;
  }

  Ref name_;
  PyObject* address_ = nullptr;
  PyTypeObject* type_ = nullptr;
  const void* definition_ = nullptr;
  uint64_t version_ = 0;
  std::vector<Held> held_;
};

// What Python itself puts into a class when it is first asked for: the names of slots (copy.copy
// and pickle do), and annotations where there are none.
bool is_filled_in(PyObject* name, PyObject* value) {
  if (!PyUnicode_CheckExact(name)) {
    return false;
  }
  return PyUnicode_CompareWithASCIIString(name, "__slotnames__") == 0 ||
         (PyUnicode_CompareWithASCIIString(name, "__annotations__") == 0 &&
          PyDict_CheckExact(value) && PyDict_GET_SIZE(value) == 0);
}

Py_ssize_t count_filled_in(PyObject* dict) {
  Py_ssize_t position = 0, count = 0;
  PyObject *name, *value;
  while (PyDict_Next(dict, &position, &name, &value)) {
    count += is_filled_in(name, value);
  }
  return count;
}

// A class of the MRO. Static types can not be changed, and keep no dict where we could look.
struct ClassDict {
  Held cls;
  std::vector<Attribute> attributes;

  bool capture(PyTypeObject* type) {
    if (!cls.hold(reinterpret_cast<PyObject*>(type))) {
      return false;
    }
    Py_ssize_t position = 0;
    PyObject *name, *value;
    while (is_heap_type(type) && PyDict_Next(type->tp_dict, &position, &name, &value)) {
      if (is_filled_in(name, value)) {
        continue;
      }
      attributes.emplace_back();
      if (!attributes.back().capture(name, value)) {
        return false;
      }
    }
    return true;
  }

  bool holds(PyTypeObject* type) const {
    if (reinterpret_cast<PyObject*>(type) != cls.address() || !cls.is_alive()) {
      return false;
    }
    if (!is_heap_type(type)) {
      return true;
    }
    auto is_there = [&](const Attribute& item) {
      return item.holds(type->tp_dict) || item.is_tagged(type->tp_dict);
    };
    Py_ssize_t size = PyDict_GET_SIZE(type->tp_dict) - count_filled_in(type->tp_dict);
    Py_ssize_t known = attributes.size();
    return (size == known || size - count_tagging(type->tp_dict) == known) &&
           std::all_of(attributes.begin(), attributes.end(), is_there);
  }

  static bool is_heap_type(PyTypeObject* type) {
    return (type->tp_flags & Py_TPFLAGS_HEAPTYPE) != 0;
  }
};

}  // namespace

struct ClassContents {
  unsigned version = 0;  // with which all was last seen to be as it was; 0: none
  std::vector<ClassDict> classes;
};

namespace {

struct ClassContentsObject {
  PyObject_HEAD
  ClassContents* contents;
};

unsigned version_of(PyTypeObject* type) {
  // A lookup makes CPython give the class a version, if it has none.
  static PyObject* name = PyUnicode_InternFromString("__doc__");
  _PyType_Lookup(type, name);
  return type->tp_version_tag;
}

bool capture(ClassContents& contents, PyTypeObject* type) {
  contents.version = version_of(type);
  Ref mro = Ref::of(type->tp_mro);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(mro.get()); i++) {
    contents.classes.emplace_back();
    auto* base = reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(mro.get(), i));
    if (!contents.classes.back().capture(base)) {
      return false;
    }
  }
  return true;
}

PyObject* contents_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"cls", nullptr};
  PyObject* cls;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!:ClassContents", const_cast<char**>(names),
                                   &PyType_Type, &cls)) {
    return nullptr;
  }
  auto contents = std::make_unique<ClassContents>();
  if (!capture(*contents, reinterpret_cast<PyTypeObject*>(cls))) {
    return nullptr;
  }
  PyObject* self = type->tp_alloc(type, 0);
  if (self != nullptr) {
    reinterpret_cast<ClassContentsObject*>(self)->contents = contents.release();
  }
  return self;
}

int contents_traverse(PyObject* self, visitproc visit, void* arg) {
  ClassContents* contents = reinterpret_cast<ClassContentsObject*>(self)->contents;
  for (size_t i = 0; contents != nullptr && i < contents->classes.size(); i++) {
    Py_VISIT(contents->classes[i].cls.owned());
    for (const Attribute& attribute : contents->classes[i].attributes) {
      if (int stop = attribute.visit(visit, arg)) {
        return stop;
      }
    }
  }
  return 0;
}

int contents_clear(PyObject* self) {
  ClassContents* contents = reinterpret_cast<ClassContentsObject*>(self)->contents;
  reinterpret_cast<ClassContentsObject*>(self)->contents = nullptr;
  delete contents;
  return 0;
}

void contents_dealloc(PyObject* self) {
  PyObject_GC_UnTrack(self);
  contents_clear(self);
  Py_TYPE(self)->tp_free(self);
}

PyTypeObject make_type() {
  PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
  type.tp_name = "minidynamo._C.ClassContents";
  type.tp_basicsize = sizeof(ClassContentsObject);
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC;
  type.tp_doc = "ClassContents(cls): the attributes of a class and its bases as they are now.";
  type.tp_new = contents_new;
  type.tp_dealloc = contents_dealloc;
  type.tp_traverse = contents_traverse;
  type.tp_clear = contents_clear;
  return type;
}

PyTypeObject ClassContentsType = make_type();

PyObject* type_version(PyObject*, PyObject* object) {
  if (!PyType_Check(object)) {
    PyErr_SetString(PyExc_TypeError, "type_version() takes a class");
    return nullptr;
  }
  return PyLong_FromUnsignedLong(version_of(reinterpret_cast<PyTypeObject*>(object)));
}

PyMethodDef kFunctions[] = {
    {"type_version", type_version, METH_O,
     "type_version(cls) -> int: changes with every store to the class or a base; 0: not known."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

bool is_class_contents(PyObject* object) { return Py_TYPE(object) == &ClassContentsType; }

bool class_contents_hold(PyObject* self, PyTypeObject* type) {
  ClassContents* contents = reinterpret_cast<ClassContentsObject*>(self)->contents;
  if (contents == nullptr) {
    return false;
  }
  if (type->tp_version_tag != 0 && type->tp_version_tag == contents->version) {
    return true;
  }
  PyObject* mro = type->tp_mro;
  size_t count = contents->classes.size();
  if (mro == nullptr || static_cast<size_t>(PyTuple_GET_SIZE(mro)) != count) {
    return false;
  }
  for (size_t i = 0; i < count; i++) {
    PyObject* base = PyTuple_GET_ITEM(mro, static_cast<Py_ssize_t>(i));
    if (!contents->classes[i].holds(reinterpret_cast<PyTypeObject*>(base))) {
      return false;
    }
  }
  contents->version = version_of(type);
  return true;
}

int init_class_contents(PyObject* module) {
  int added = PyModule_AddType(module, &ClassContentsType);
  return added < 0 ? -1 : PyModule_AddFunctions(module, kFunctions);
}

}  // namespace md
