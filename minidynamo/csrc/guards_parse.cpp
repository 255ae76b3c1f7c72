// Makes a program of the tables that guards.py builds.
#include "guards_program.h"

#include <structmember.h>

#include <algorithm>
#include <cstring>

namespace md {

namespace {

template <typename T>
struct Named {
  const char* name;
  T value;
};

const Named<Op> kOps[] = {
    {"LOCAL", Op::kLocal},
    {"GLOBALS", Op::kGlobals},
    {"BUILTINS", Op::kBuiltins},
    {"CLOSURE_CELL", Op::kClosureCell},
    {"CONST", Op::kConst},
    {"INSTANCE_DICT", Op::kInstanceDict},
    {"DICT_ITEM", Op::kDictItem},
    {"DICT_KEY", Op::kDictKey},
    {"DICT_VALUE", Op::kDictValue},
    {"LIST_ITEM", Op::kListItem},
    {"TUPLE_ITEM", Op::kTupleItem},
    {"TYPE", Op::kType},
    {"CLASS_ATTR", Op::kClassAttr},
    {"SUPER_ATTR", Op::kSuperAttr},
    {"SLOT", Op::kSlot},
    {"FUNC_CODE", Op::kFuncCode},
    {"FUNC_GLOBALS", Op::kFuncGlobals},
    {"FUNC_DEFAULTS", Op::kFuncDefaults},
    {"FUNC_KWDEFAULTS", Op::kFuncKwDefaults},
    {"FUNC_CLOSURE", Op::kFuncClosure},
    {"METHOD_SELF", Op::kMethodSelf},
    {"METHOD_FUNC", Op::kMethodFunc},
    {"CELL", Op::kCell},
    {"WEAKREF", Op::kWeakref},
    {"GETATTR", Op::kGetAttr},
    {"CALL", Op::kCall},
    {"TENSOR_INT", Op::kTensorInt},
};

const Named<Kind> kKinds[] = {
    {"TYPE_IS", Kind::kTypeIs},         {"ID_IS", Kind::kIdIs},
    {"IS_NONE", Kind::kIsNone},         {"NOT_NONE", Kind::kNotNone},
    {"BOOL_IS", Kind::kBoolIs},         {"TYPE_VERSION", Kind::kTypeVersion},
    {"LEN_EQ", Kind::kLenEq},           {"DICT_HAS", Kind::kDictHas},
    {"DICT_LACKS", Kind::kDictLacks},   {"DICT_KEYS", Kind::kDictKeys},
    {"TENSOR_MATCH", Kind::kTensorMatch}, {"CONST_EQ", Kind::kConstEq},
    {"HAS_ATTR", Kind::kHasAttr},       {"LACKS_ATTR", Kind::kLacksAttr},
    {"CLASS_LACKS", Kind::kClassLacks},
};

const Named<RelationKind> kRelations[] = {
    {"GLOBAL_STATE", RelationKind::kGlobalState},
    {"ALIAS", RelationKind::kAlias},
    {"NOT_ALIAS", RelationKind::kNotAlias},
    {"NOT_ALIASED_GROUP", RelationKind::kNotAliasedGroup},
    {"MEMORY_LAYOUT", RelationKind::kMemoryLayout},
    {"EXPR", RelationKind::kExpr},
    {"PREDICATE", RelationKind::kPredicate},
};

template <typename T, size_t N>
bool find_name(const Named<T> (&table)[N], const char* name, T* value) {
  for (const Named<T>& entry : table) {
    if (std::strcmp(entry.name, name) == 0) {
      *value = entry.value;
      return true;
    }
  }
  PyErr_Format(PyExc_ValueError, "guard programs know no %s", name);
  return false;
}

bool refuse(const char* message) {
  PyErr_SetString(PyExc_ValueError, message);
  return false;
}

// Whether objects of this type are told apart by what they are.
bool is_compared_by_identity(PyTypeObject* type) {
  return type->tp_hash == PyBaseObject_Type.tp_hash &&
         type->tp_richcompare == PyBaseObject_Type.tp_richcompare;
}

// Whether it is a tuple, torch.Size or named tuple that is compared by its items.
bool is_tuple(PyObject* key) {
  PyTypeObject* type = Py_TYPE(key);
  return PyTuple_Check(key) && type->tp_hash == PyTuple_Type.tp_hash &&
         type->tp_richcompare == PyTuple_Type.tp_richcompare;
}

// Constants whose hash and == are C code, so that they can be looked up.
bool is_plain_key(PyObject* key) {
  if (is_tuple(key)) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(key); i++) {
      PyObject* item = PyTuple_GET_ITEM(key, i);
      if (!is_plain_key(item) && !is_compared_by_identity(Py_TYPE(item))) {
        return false;
      }
    }
    return true;
  }
  PyTypeObject* type = Py_TYPE(key);
  return type == &PyUnicode_Type || type == &PyLong_Type || type == &PyBool_Type ||
         type == &PyFloat_Type || type == &PyBytes_Type || type == &PyComplex_Type ||
         key == Py_None || key == Py_Ellipsis || key == Py_NotImplemented;
}

// Whether another object is never the same key: not so for the values that a type of C compares,
// such as torch.device, frozenset and slice.
bool is_identity_key(PyObject* key) {
  PyTypeObject* type = Py_TYPE(key);
  return !is_tuple(key) && ((type->tp_flags & Py_TPFLAGS_HEAPTYPE) != 0 || PyType_Check(key) ||
                            PyCFunction_Check(key) || is_compared_by_identity(type));
}

// What is looked up neither natively nor by identity has MD_DICT_CAREFUL for its hash.
bool parse_plain_key(PyObject* key, Ref& held, Py_hash_t* hash) {
  held = Ref::of(key);
  if (!is_plain_key(key)) {
    *hash = MD_DICT_CAREFUL;
    return true;
  }
  if (PyUnicode_CheckExact(key)) {
    PyObject* interned = held.release();
    PyUnicode_InternInPlace(&interned);
    held = Ref(interned);
  }
  *hash = PyObject_Hash(held.get());
  return *hash != -1;
}

bool parse_key(PyObject* key, Ref& value, Held& object, Py_hash_t* hash, bool* by_identity) {
  *by_identity = !is_plain_key(key) && is_identity_key(key);
  return *by_identity ? object.hold(key) : parse_plain_key(key, value, hash);
}

// The parameters of an optimizer are keys of its state: they may die before the compiled code.
bool parse_keys(PyObject* keys, std::vector<Held>& held) {
  if (!PyTuple_Check(keys)) {
    return refuse("DICT_KEYS wants a tuple");
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(keys); i++) {
    PyObject* key = PyTuple_GET_ITEM(keys, i);
    held.emplace_back();
    if (is_plain_key(key) || !is_identity_key(key)) {
      held.back().keep(key);
    } else if (!held.back().hold(key)) {
      return false;
    }
  }
  return true;
}

bool parse_name(PyObject* name, Ref& held) {
  if (!PyUnicode_CheckExact(name)) {
    return refuse("the name of an attribute is a str");
  }
  PyObject* interned = Py_NewRef(name);
  PyUnicode_InternInPlace(&interned);
  held = Ref(interned);
  return true;
}

bool parse_index(PyObject* number, Py_ssize_t* index) {
  *index = PyLong_AsSsize_t(number);
  return *index != -1 || !PyErr_Occurred();
}

bool parse_slot(PyObject* descriptor, Node& node) {
  if (Py_TYPE(descriptor) != &PyMemberDescr_Type) {
    return refuse("SLOT wants a member descriptor");
  }
  auto* member = reinterpret_cast<PyMemberDescrObject*>(descriptor);
  if (member->d_member->type != T_OBJECT && member->d_member->type != T_OBJECT_EX) {
    return refuse("SLOT wants a member that is an object");
  }
  node.index = member->d_member->offset;
  node.property = member->d_member->type == T_OBJECT;
  return node.held.hold(reinterpret_cast<PyObject*>(PyDescr_TYPE(member)));
}

bool parse_operand(Node& node, PyObject* operand) {
  switch (node.op) {
    case Op::kLocal:
    case Op::kClosureCell:
    case Op::kDictKey:
    case Op::kDictValue:
      return parse_index(operand, &node.index) && (node.index >= 0 || refuse("negative index"));
    case Op::kListItem:
    case Op::kTupleItem:
      return parse_index(operand, &node.index);
    case Op::kConst:
      return node.held.hold(operand);
    case Op::kDictItem:
      return parse_key(operand, node.operand, node.held, &node.hash, &node.by_identity);
    case Op::kClassAttr:
    case Op::kGetAttr:
      return parse_name(operand, node.operand);
    case Op::kSuperAttr: {
      PyObject *name, *after;
      return PyArg_ParseTuple(operand, "UO!", &name, &PyType_Type, &after) &&
             parse_plain_key(name, node.operand, &node.hash) &&
             node.held.hold(after);
    }
    case Op::kSlot:
      return parse_slot(operand, node);
    case Op::kCall:
      node.operand = Ref::of(operand);
      return PyCallable_Check(operand) || refuse("CALL wants a callable");
    case Op::kTensorInt: {
      const char* property;
      PyObject* dim;
      return PyArg_ParseTuple(operand, "sO", &property, &dim) &&
             parse_tensor_property(property, &node.property) &&
             (dim == Py_None || parse_index(dim, &node.index));
    }
    default:
      return operand == Py_None || refuse("this fetch op takes no operand");
  }
}

bool is_root(Op op) { return op <= Op::kConst; }

bool parse_node(Program& program, PyObject* row) {
  int base;
  const char* name;
  PyObject* operand;
  auto node = std::make_unique<Node>();
  if (!PyArg_ParseTuple(row, "isO", &base, &name, &operand) ||
      !find_name(kOps, name, &node->op)) {
    return false;
  }
  int number = static_cast<int>(program.nodes.size());
  if (base >= number || (base < 0) != is_root(node->op)) {
    return refuse("a node comes after its base, and roots have none");
  }
  node->number = number;
  if (!parse_operand(*node, operand)) {
    return false;
  }
  if (base < 0) {
    Root root;
    root.node = node.get();
    program.roots.push_back(std::move(root));
  } else {
    node->parent = program.nodes[static_cast<size_t>(base)].get();
    node->parent->children.push_back(node.get());
  }
  program.nodes.push_back(std::move(node));
  return true;
}

bool hold_type(Program& program, PyObject* type) {
  for (const Held& held : program.types) {
    if (held.address() == type) {
      return true;
    }
  }
  program.types.emplace_back();
  return program.types.back().hold(type);
}

// Equal specs are one: all parameters of a layer compare with the same few cache lines.
bool share_spec(Program& program, Check& check, PyObject* fields) {
  auto spec = parse_tensor_spec(fields);
  if (!spec || !hold_type(program, reinterpret_cast<PyObject*>(tensor_spec_type(*spec)))) {
    return false;
  }
  for (const auto& known : program.specs) {
    if (tensor_specs_equal(*known, *spec)) {
      check.tensor = known;
      return true;
    }
  }
  program.specs.push_back(spec);
  check.tensor = spec;
  program.uses_tensors = true;
  return true;
}

bool parse_size(PyObject* number, int64_t* size) {
  *size = PyLong_AsLongLong(number);
  return *size != -1 || !PyErr_Occurred();
}

bool parse_expected(Program& program, Check& check, PyObject* expected) {
  switch (check.kind) {
    case Kind::kTypeIs:
      if (!PyType_Check(expected)) {
        return refuse("TYPE_IS wants a type");
      }
      return check.held.hold(expected) && hold_type(program, expected);
    case Kind::kIdIs:
      return check.held.hold(expected);
    case Kind::kBoolIs:
    case Kind::kLenEq:
      return parse_size(expected, &check.size);
    case Kind::kDictHas:
    case Kind::kDictLacks:
      return parse_key(expected, check.value, check.held, &check.hash, &check.by_identity);
    case Kind::kDictKeys:
      return parse_keys(expected, check.keys);
    case Kind::kTensorMatch:
      return share_spec(program, check, expected);
    case Kind::kConstEq:
      check.value = Ref::of(expected);
      return true;
    case Kind::kTypeVersion:
      check.value = Ref::of(expected);
      return is_class_contents(expected) || refuse("TYPE_VERSION wants ClassContents");
    case Kind::kClassLacks:
    case Kind::kHasAttr:
    case Kind::kLacksAttr:
      return parse_name(expected, check.value);
    default:
      return true;
  }
}

Node* node_at(Program& program, int number) {
  if (number < 0 || static_cast<size_t>(number) >= program.nodes.size()) {
    refuse("no such node");
    return nullptr;
  }
  return program.nodes[static_cast<size_t>(number)].get();
}

bool parse_check(Program& program, PyObject* row, int number) {
  int node_number;
  const char* name;
  PyObject* expected;
  Check check{};
  check.number = number;
  if (!PyArg_ParseTuple(row, "isO", &node_number, &name, &expected) ||
      !find_name(kKinds, name, &check.kind) || !parse_expected(program, check, expected)) {
    return false;
  }
  Node* node = node_at(program, node_number);
  if (node == nullptr) {
    return false;
  }
  auto cheaper = [](const Check& a, const Check& b) { return a.kind < b.kind; };
  auto place = std::upper_bound(node->checks.begin(), node->checks.end(), check, cheaper);
  node->checks.insert(place, std::move(check));
  return true;
}

// The register that takes the object of a node, or -1 with an exception.
int register_of(Program& program, int number) {
  Node* node = node_at(program, number);
  if (node == nullptr) {
    return -1;
  }
  if (node->reg < 0) {
    node->reg = program.register_count++;
  }
  return node->reg;
}

bool parse_registers(Program& program, PyObject* numbers, std::vector<int>& regs) {
  Ref items(PySequence_Fast(numbers, "node numbers are a sequence"));
  if (!items) {
    return false;
  }
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(items.get()); i++) {
    long number = PyLong_AsLong(PySequence_Fast_GET_ITEM(items.get(), i));
    if (number == -1 && PyErr_Occurred()) {
      return false;
    }
    regs.push_back(register_of(program, static_cast<int>(number)));
    if (regs.back() < 0) {
      return false;
    }
  }
  return true;
}

// A tuple with (is mutated, group, storage offset) for each tensor.
bool parse_placements(Relation& relation, PyObject* value) {
  size_t count = relation.regs.size();
  if (!PyTuple_Check(value) || static_cast<size_t>(PyTuple_GET_SIZE(value)) != count) {
    return refuse("MEMORY_LAYOUT wants one tuple for each tensor");
  }
  for (size_t i = 0; i < count; i++) {
    int is_mutated, group;
    long long offset;
    PyObject* row = PyTuple_GET_ITEM(value, static_cast<Py_ssize_t>(i));
    if (!PyTuple_Check(row) || !PyArg_ParseTuple(row, "piL", &is_mutated, &group, &offset)) {
      return PyErr_Occurred() ? false : refuse("MEMORY_LAYOUT wants one tuple for each tensor");
    }
    relation.placements.push_back({is_mutated != 0, group, offset});
  }
  return true;
}

bool parse_relation_value(Relation& relation, PyObject* value) {
  switch (relation.kind) {
    case RelationKind::kGlobalState:
      relation.value = Ref::of(value);
      return is_global_state(value) || refuse("GLOBAL_STATE wants a GlobalState");
    case RelationKind::kExpr: {
      if (!parse_expression(value, relation.regs.size(), relation.steps)) {
        return false;
      }
      for (ExprStep& step : relation.steps) {
        if (step.code == ExprStep::kLoad || step.code == ExprStep::kTensor) {
          step.value = relation.regs[static_cast<size_t>(step.value)];
        }
      }
      return true;
    }
    case RelationKind::kPredicate:
      relation.value = Ref::of(value);
      return PyCallable_Check(value) || refuse("PREDICATE wants a callable");
    case RelationKind::kMemoryLayout:
      return parse_placements(relation, value);
    case RelationKind::kNotAliasedGroup:
      return true;
    default:
      return relation.regs.size() == 2 || refuse("ALIAS and NOT_ALIAS want two nodes");
  }
}

bool parse_relation(Program& program, PyObject* row, int number) {
  const char* name;
  PyObject *numbers, *value;
  Relation relation{};
  relation.number = number;
  if (!PyArg_ParseTuple(row, "sOO", &name, &numbers, &value) ||
      !find_name(kRelations, name, &relation.kind) ||
      !parse_registers(program, numbers, relation.regs) ||
      !parse_relation_value(relation, value)) {
    return false;
  }
  bool of_nothing = relation.kind == RelationKind::kGlobalState;
  (of_nothing ? program.states : program.relations).push_back(std::move(relation));
  return true;
}

template <typename Parse>
bool each_row(PyObject* rows, const char* what, Parse parse) {
  Ref items(PySequence_Fast(rows, what));
  if (!items) {
    return false;
  }
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(items.get()); i++) {
    PyObject* row = PySequence_Fast_GET_ITEM(items.get(), i);
    if (!PyTuple_Check(row)) {
      PyErr_SetString(PyExc_TypeError, what);
      return false;
    }
    if (!parse(row, static_cast<int>(i))) {
      return false;
    }
  }
  return true;
}

// Arguments that are only looked at themselves tell most calls apart, and cost least.
int root_cost(const Root& root) {
  return (root.node->op == Op::kLocal ? 0 : 2) + (root.node->children.empty() ? 0 : 1);
}

void number_places(Node& node, size_t& count) {
  node.place = count++;
  for (Node* child : node.children) {
    number_places(*child, count);
  }
}

bool may_defer(Op op) {
  return op >= Op::kGetAttr || op == Op::kDictKey || op == Op::kDictValue;
}

}  // namespace

void Held::keep(PyObject* object) {
  object_ = object;
  strong_ = Ref::of(object);
}

bool Held::hold(PyObject* object) {
  object_ = object;
  bool forever =
      PyType_Check(object) &&
      (reinterpret_cast<PyTypeObject*>(object)->tp_flags & Py_TPFLAGS_HEAPTYPE) == 0;
  if (forever || !PyType_SUPPORTS_WEAKREFS(Py_TYPE(object))) {
    strong_ = Ref::of(object);
    return true;
  }
  weak_ = Ref(PyWeakref_NewRef(object, nullptr));
  return static_cast<bool>(weak_);
}

std::unique_ptr<Program> parse_program(PyObject* nodes, PyObject* checks, PyObject* relations,
                                       PyObject* fetch) {
  auto program = std::make_unique<Program>();
  Program& p = *program;
  bool done =
      each_row(nodes, "nodes are tuples (base, op, operand)",
               [&](PyObject* row, int) { return parse_node(p, row); }) &&
      each_row(checks, "checks are tuples (node, kind, expected)",
               [&](PyObject* row, int number) { return parse_check(p, row, number); }) &&
      each_row(relations, "relations are tuples (kind, nodes, value)",
               [&](PyObject* row, int number) { return parse_relation(p, row, number); }) &&
      parse_registers(p, fetch, p.fetch);
  if (!done) {
    return nullptr;
  }
  auto cheaper = [](const Root& a, const Root& b) { return root_cost(a) < root_cost(b); };
  std::stable_sort(p.roots.begin(), p.roots.end(), cheaper);
  for (Root& root : p.roots) {
    number_places(*root.node, root.node_count);
  }
  for (const auto& node : p.nodes) {
    p.may_defer = p.may_defer || may_defer(node->op);
  }
  p.registers.assign(static_cast<size_t>(p.register_count), nullptr);
  return program;
}

int visit_references(Program& program, visitproc visit, void* arg) {
  for (const auto& node : program.nodes) {
    Py_VISIT(node->operand.get());
    Py_VISIT(node->held.owned());
    for (const Check& check : node->checks) {
      Py_VISIT(check.value.get());
      Py_VISIT(check.held.owned());
      for (const Held& key : check.keys) {
        Py_VISIT(key.owned());
      }
    }
  }
  for (const Relation& relation : program.relations) {
    Py_VISIT(relation.value.get());
  }
  for (const Held& type : program.types) {
    Py_VISIT(type.owned());
  }
  Py_VISIT(program.layout.get());
  return 0;
}

}  // namespace md
