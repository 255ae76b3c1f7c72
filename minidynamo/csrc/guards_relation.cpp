// What is asked of several objects at once, or of none.
#include "guards_program.h"

#include <algorithm>
#include <cstring>
#include <unordered_set>

namespace md {

namespace {

struct OperatorName {
  const char* name;
  ExprStep::Code code;
};

const OperatorName kOperators[] = {
    {"+", ExprStep::kAdd},       {"-", ExprStep::kSub},  {"*", ExprStep::kMul},
    {"//", ExprStep::kFloorDiv}, {"%", ExprStep::kMod},  {"**", ExprStep::kPow},
    {"min", ExprStep::kMin},     {"max", ExprStep::kMax}, {"==", ExprStep::kEq},
    {"!=", ExprStep::kNe},       {"<", ExprStep::kLt},   {"<=", ExprStep::kLe},
    {">", ExprStep::kGt},        {">=", ExprStep::kGe},  {"and", ExprStep::kAnd},
    {"or", ExprStep::kOr},       {"not", ExprStep::kNot},
};

bool power(int64_t base, int64_t exponent, int64_t* result) {
  if (exponent < 0) {
    return false;
  }
  if (base >= -1 && base <= 1) {
    *result = exponent == 0 || (base == -1 && exponent % 2 == 0) ? 1 : base;
    return true;
  }
  *result = 1;
  for (; exponent > 0; exponent--) {
    if (__builtin_mul_overflow(*result, base, result)) {
      return false;
    }
  }
  return true;
}

int64_t floor_mod(int64_t a, int64_t b) {
  int64_t rest = b == -1 ? 0 : a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

bool floor_div(int64_t a, int64_t b, int64_t* result) {
  if (b == 0 || (a == INT64_MIN && b == -1)) {
    return false;
  }
  *result = a / b - (a % b != 0 && (a < 0) != (b < 0));
  return true;
}

// a op b; false on overflow or division by zero.
bool apply(ExprStep::Code code, int64_t a, int64_t b, int64_t* result) {
  switch (code) {
    case ExprStep::kAdd:
      return !__builtin_add_overflow(a, b, result);
    case ExprStep::kSub:
      return !__builtin_sub_overflow(a, b, result);
    case ExprStep::kMul:
      return !__builtin_mul_overflow(a, b, result);
    case ExprStep::kFloorDiv:
      return floor_div(a, b, result);
    case ExprStep::kMod:
      *result = b == 0 ? 0 : floor_mod(a, b);
      return b != 0;
    case ExprStep::kPow:
      return power(a, b, result);
    case ExprStep::kMin:
      *result = std::min(a, b);
      return true;
    case ExprStep::kMax:
      *result = std::max(a, b);
      return true;
    case ExprStep::kEq:
      *result = a == b;
      return true;
    case ExprStep::kNe:
      *result = a != b;
      return true;
    case ExprStep::kLt:
      *result = a < b;
      return true;
    case ExprStep::kLe:
      *result = a <= b;
      return true;
    case ExprStep::kGt:
      *result = a > b;
      return true;
    case ExprStep::kGe:
      *result = a >= b;
      return true;
    case ExprStep::kAnd:
      *result = a != 0 && b != 0;
      return true;
    default:
      *result = a != 0 || b != 0;
      return true;
  }
}

Result load_int(PyObject* object, int64_t* value) {
  if (!PyLong_Check(object)) {
    return kFail;
  }
  int overflow = 0;
  *value = PyLong_AsLongLongAndOverflow(object, &overflow);
  return overflow != 0 ? kFail : *value == -1 && PyErr_Occurred() ? kError : kPass;
}

Result run_expression(Walk& walk, const std::vector<ExprStep>& steps) {
  std::vector<int64_t> stack;
  stack.reserve(steps.size());
  for (const ExprStep& step : steps) {
    int64_t value = 0;
    Result result = kPass;
    if (step.code == ExprStep::kInt) {
      value = step.value;
    } else if (step.code == ExprStep::kLoad) {
      result = load_int(walk.registers[step.value], &value);
    } else if (step.code == ExprStep::kTensor) {
      result = tensor_property(walk.registers[step.value], step.property, step.dim, walk.careful,
                               &value);
    } else if (step.code == ExprStep::kNot) {
      value = stack.back() == 0;
      stack.pop_back();
    } else {
      int64_t right = stack.back();
      stack.pop_back();
      result = apply(step.code, stack.back(), right, &value) ? kPass : kFail;
      stack.pop_back();
    }
    if (result != kPass) {
      return result;
    }
    stack.push_back(value);
  }
  return stack.back() != 0 ? kPass : kFail;
}

// All objects different. The same addresses as in the last call that passed are so again.
Result are_distinct(Walk& walk, Relation& relation) {
  size_t count = relation.regs.size();
  std::vector<PyObject*>& passed = relation.passed;
  bool same = passed.size() == count;
  for (size_t i = 0; i < count && same; i++) {
    same = passed[i] == walk.registers[relation.regs[i]];
  }
  if (same) {
    return kPass;
  }
  std::unordered_set<PyObject*> seen;
  passed.clear();
  for (int reg : relation.regs) {
    if (!seen.insert(walk.registers[reg]).second) {
      passed.clear();
      return kFail;
    }
    passed.push_back(walk.registers[reg]);
  }
  return kPass;
}

// Whether the members of each group still lie as they did on one storage; their ranges become one.
bool groups_hold(const Relation& relation, std::vector<MemoryRange>& merged,
                 std::vector<bool>& is_mutated) {
  std::vector<size_t> leader;  // by number of the group
  for (size_t i = 0; i < merged.size(); i++) {
    const Placement& placement = relation.placements[i];
    is_mutated[i] = placement.is_mutated;
    if (placement.group < 0) {
      continue;
    }
    size_t group = static_cast<size_t>(placement.group);
    if (merged[i].offset != placement.offset) {
      return false;
    }
    if (group == leader.size()) {
      leader.push_back(i);
      continue;
    }
    MemoryRange& whole = merged[leader[group]];
    if (merged[i].storage != whole.storage) {
      return false;
    }
    whole.start = std::min(whole.start, merged[i].start);
    whole.end = std::max(whole.end, merged[i].end);
    is_mutated[leader[group]] = is_mutated[leader[group]] || placement.is_mutated;
    merged[i].end = merged[i].start = 0;
  }
  return true;
}

// No memory that is written is another tensor's too, but within the groups, which are laid out as
// they were. The same addresses as in the last call that passed need no second look.
Result memory_holds(Walk& walk, Relation& relation) {
  size_t count = relation.regs.size();
  std::vector<MemoryRange> found(count);
  for (size_t i = 0; i < count; i++) {
    found[i] = memory_range(walk.registers[relation.regs[i]]);
  }
  if (found == relation.ranges) {
    return kPass;
  }
  std::vector<MemoryRange> merged = found;
  std::vector<bool> is_mutated(count);
  if (!groups_hold(relation, merged, is_mutated)) {
    return kFail;
  }
  std::vector<size_t> order;
  for (size_t i = 0; i < count; i++) {
    if (merged[i].start != merged[i].end) {
      order.push_back(i);
    }
  }
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return merged[a].start < merged[b].start; });
  uintptr_t end = 0, end_of_mutated = 0;
  for (size_t i : order) {
    if (merged[i].start < (is_mutated[i] ? end : end_of_mutated)) {
      return kFail;
    }
    end = std::max(end, merged[i].end);
    end_of_mutated = is_mutated[i] ? std::max(end_of_mutated, merged[i].end) : end_of_mutated;
  }
  relation.ranges = std::move(found);
  return kPass;
}

Result ask_predicate(Walk& walk, Relation& relation) {
  if (!walk.careful) {
    return kLater;
  }
  std::vector<PyObject*> arguments;
  for (int reg : relation.regs) {
    arguments.push_back(walk.registers[reg]);
  }
  Ref function = Ref::of(relation.value.get());
  Ref answer(PyObject_Vectorcall(function.get(), arguments.data(), arguments.size(), nullptr));
  int truth = answer ? PyObject_IsTrue(answer.get()) : -1;
  return truth < 0 ? kError : truth ? kPass : kFail;
}

bool parse_step(PyObject* row, ExprStep& step) {
  const char* name = PyUnicode_AsUTF8(PyTuple_GET_ITEM(row, 0));
  if (name == nullptr) {
    return false;
  }
  if (std::strcmp(name, "int") == 0) {
    step.code = ExprStep::kInt;
    return PyArg_ParseTuple(row, "sL", &name, &step.value);
  }
  if (std::strcmp(name, "load") == 0) {
    step.code = ExprStep::kLoad;
    return PyArg_ParseTuple(row, "sL", &name, &step.value);
  }
  if (std::strcmp(name, "tensor") == 0) {
    const char* property;
    step.code = ExprStep::kTensor;
    return PyArg_ParseTuple(row, "sLsi", &name, &step.value, &property, &step.dim) &&
           parse_tensor_property(property, &step.property);
  }
  for (const OperatorName& entry : kOperators) {
    if (std::strcmp(name, entry.name) == 0) {
      step.code = entry.code;
      return true;
    }
  }
  PyErr_Format(PyExc_ValueError, "unknown operator %s in a guard expression", name);
  return false;
}

}  // namespace

bool parse_expression(PyObject* postfix, size_t register_count, std::vector<ExprStep>& steps) {
  if (!PyList_Check(postfix)) {
    PyErr_SetString(PyExc_TypeError, "a guard expression is a list of tuples");
    return false;
  }
  size_t depth = 0;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(postfix); i++) {
    PyObject* row = PyList_GET_ITEM(postfix, i);
    ExprStep step{};
    if (!PyTuple_Check(row) || PyTuple_GET_SIZE(row) == 0) {
      PyErr_SetString(PyExc_TypeError, "a guard expression is a list of tuples");
      return false;
    }
    if (!parse_step(row, step)) {
      return false;
    }
    bool reads = step.code == ExprStep::kLoad || step.code == ExprStep::kTensor;
    size_t taken = step.code == ExprStep::kInt || reads ? 0 : step.code == ExprStep::kNot ? 1 : 2;
    if (depth < taken || (reads && static_cast<uint64_t>(step.value) >= register_count)) {
      PyErr_SetString(PyExc_ValueError, "malformed guard expression");
      return false;
    }
    depth = depth - taken + 1;
    steps.push_back(step);
  }
  if (depth != 1) {
    PyErr_SetString(PyExc_ValueError, "malformed guard expression");
    return false;
  }
  return true;
}

Result run_relation(Walk& walk, Relation& relation) {
  switch (relation.kind) {
    case RelationKind::kGlobalState:
      return global_state_holds(relation.value.get(), walk.dispatch) ? kPass : kFail;
    case RelationKind::kAlias:
    case RelationKind::kNotAlias: {
      bool same = walk.registers[relation.regs[0]] == walk.registers[relation.regs[1]];
      return same == (relation.kind == RelationKind::kAlias) ? kPass : kFail;
    }
    case RelationKind::kNotAliasedGroup:
      return are_distinct(walk, relation);
    case RelationKind::kMemoryLayout:
      return memory_holds(walk, relation);
    case RelationKind::kExpr:
      return run_expression(walk, relation.steps);
    case RelationKind::kPredicate:
      return ask_predicate(walk, relation);
  }
  return kFail;
}

}  // namespace md
