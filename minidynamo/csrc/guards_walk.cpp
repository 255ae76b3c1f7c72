// Walks over a program's nodes: the first phase, the second, and the explanation of a failure.
#include "guards_program.h"

#include <algorithm>

namespace md {

namespace {

void note(Walk& walk, const char* what, int number, PyObject* found) {
  if (walk.failure != nullptr) {
    walk.failure->what = what;
    walk.failure->number = number;
    walk.failure->found = Ref::of(found);
  }
}

// Order in which children are tried: the one that failed last first, unless a failure is to be
// explained.
template <typename Visit>
Result each_child(Walk& walk, Node& node, Visit visit) {
  uint32_t count = static_cast<uint32_t>(node.children.size());
  uint32_t hot = walk.failure != nullptr ? 0 : node.hot;
  for (uint32_t i = 0; i < count; i++) {
    uint32_t chosen = i == 0 ? hot : i <= hot ? i - 1 : i;
    Result result = visit(*node.children[chosen]);
    if (result != kPass) {
      node.hot = chosen;
      return result;
    }
  }
  return kPass;
}

// In the second phase a register owns its object.
void set_register(Walk& walk, int reg, PyObject* object) {
  if (walk.careful) {
    Py_XSETREF(walk.registers[reg], Py_NewRef(object));
  } else {
    walk.registers[reg] = object;
  }
}

}  // namespace

Result walk_checks(Walk& walk, Node& node, PyObject* object) {
  for (const Check& check : node.checks) {
    Result result = run_check(walk, check, object);
    if (result == kLater) {
      walk.later.push_back({&node, &check, object});
    } else if (result != kPass) {
      note(walk, "check", check.number, object);
      return result;
    }
  }
  return kPass;
}

Result walk_child(Walk& walk, Node& child, PyObject* base) {
  PyObject* object = nullptr;
  bool owned = false;
  Result result = fetch(walk, child, base, &object, &owned);
  if (result == kError) {
    result = after_exception();
  }
  if (result == kLater) {
    walk.later.push_back({&child, nullptr, base});
    return kPass;
  }
  if (result != kPass) {
    note(walk, "fetch", child.number, base);
    return result;
  }
  if (!walk.careful) {
    return walk_node(walk, child, object);
  }
  Ref reference(owned ? object : Py_NewRef(object));
  return walk_node(walk, child, object);
}

Result walk_node(Walk& walk, Node& node, PyObject* object) {
  Result result = walk_checks(walk, node, object);
  if (result != kPass) {
    return result;
  }
  if (node.reg >= 0) {
    set_register(walk, node.reg, object);
  }
  return each_child(walk, node, [&](Node& child) { return walk_child(walk, child, object); });
}

namespace {

Result walk_root(Walk& walk, Root& root) {
  PyObject* object = nullptr;
  Result result = fetch_root(walk, *root.node, &object);
  if (result != kPass) {
    note(walk, "fetch", root.node->number, Py_None);
    return result;
  }
  if (walk.careful) {
    Ref reference = Ref::of(object);
    return walk_node(walk, *root.node, object);
  }
  bool snapshots = !root.node->children.empty();
  if (Snapshot* snapshot = snapshots ? root.snapshots.find(object) : nullptr) {
    result = run_snapshot(walk, *snapshot);
    if (result != kStale) {
      return result;
    }
    root.snapshots.drop(object);
  }
  walk.program.statistics.walks++;
  result = walk_node(walk, *root.node, object);
  if (result == kPass && snapshots && root.snapshots.passed(object)) {
    record_snapshot(walk, root, object);
  }
  return result;
}

Result walk_roots(Walk& walk) {
  Program& program = walk.program;
  uint32_t count = static_cast<uint32_t>(program.roots.size());
  uint32_t hot = walk.failure != nullptr ? 0 : program.hot_root;
  for (uint32_t i = 0; i < count; i++) {
    uint32_t chosen = i == 0 ? hot : i <= hot ? i - 1 : i;
    Result result = walk_root(walk, program.roots[chosen]);
    if (result != kPass) {
      program.hot_root = chosen;
      return result;
    }
  }
  return kPass;
}

Result walk_relations(Walk& walk, std::vector<Relation>& relations) {
  for (Relation& relation : relations) {
    Result result = run_relation(walk, relation);
    if (result == kPass) {
      continue;
    }
    if (result != kLater && walk.failure != nullptr) {
      Ref objects(PyTuple_New(static_cast<Py_ssize_t>(relation.regs.size())));
      if (!objects) {
        return kError;
      }
      for (size_t i = 0; i < relation.regs.size(); i++) {
        PyTuple_SET_ITEM(objects.get(), static_cast<Py_ssize_t>(i),
                         Py_NewRef(walk.registers[relation.regs[i]]));
      }
      note(walk, "relation", relation.number, objects.get());
    }
    return result;
  }
  return kPass;
}

bool types_are_alive(Program& program) {
  for (const Held& type : program.types) {
    if (!type.is_alive()) {
      program.dead = true;
      return false;
    }
  }
  return true;
}

bool has_died(const Check& check) {
  auto died = [](const Held& held) { return !held.is_alive(); };
  // That a dict lacks what has died stays true.
  return (check.kind != Kind::kDictLacks && died(check.held)) ||
         std::any_of(check.keys.begin(), check.keys.end(), died);
}

// Whether an object that it compares with has died: it never holds again.
bool has_died(const Program& program) {
  for (const auto& node : program.nodes) {
    if (!node->held.is_alive() ||
        std::any_of(node->checks.begin(), node->checks.end(),
                    [](const Check& check) { return has_died(check); })) {
      return true;
    }
  }
  return false;
}

// Registers that own their objects, for as long as Python code may run.
class OwnedRegisters {
 public:
  explicit OwnedRegisters(int count) : registers_(static_cast<size_t>(count), nullptr) {}
  ~OwnedRegisters() {
    for (PyObject* object : registers_) {
      Py_XDECREF(object);
    }
  }
  PyObject** data() { return registers_.data(); }

 private:
  std::vector<PyObject*> registers_;
};

Result give_fetched(const Program& program, PyObject** registers, PyObject** fetched) {
  size_t count = program.fetch.size();
  if (count == 0) {
    *fetched = nullptr;
    return kPass;
  }
  // Making the tuple may run the garbage collector, so the references are taken before.
  for (int reg : program.fetch) {
    Py_INCREF(registers[reg]);
  }
  PyObject* tuple = PyTuple_New(static_cast<Py_ssize_t>(count));
  for (size_t i = 0; i < count; i++) {
    PyObject* object = registers[program.fetch[i]];
    if (tuple != nullptr) {
      PyTuple_SET_ITEM(tuple, static_cast<Py_ssize_t>(i), object);
    } else {
      Py_DECREF(object);
    }
  }
  *fetched = tuple;
  return tuple != nullptr ? kPass : kError;
}

// What the first phase left over, then the relations, then the tuple.
Result run_second_phase(Walk& first, PyObject** fetched) {
  Program& program = first.program;
  program.statistics.second_phases++;
  OwnedRegisters registers(program.register_count);
  std::vector<Walk::Later> later = std::move(first.later);
  for (int i = 0; i < program.register_count; i++) {
    registers.data()[i] = Py_XNewRef(first.registers[i]);
  }
  std::vector<Ref> held;
  held.reserve(later.size());
  for (const Walk::Later& item : later) {
    held.push_back(Ref::of(item.object));
  }
  Walk walk{program, first.localsplus, first.func, registers.data(), first.dispatch, true};
  for (const Walk::Later& item : later) {
    Result result = item.check != nullptr ? run_check(walk, *item.check, item.object)
                                          : walk_child(walk, *item.node, item.object);
    if (result != kPass) {
      return result;
    }
  }
  Result result = walk_relations(walk, program.relations);
  return result == kPass ? give_fetched(program, registers.data(), fetched) : result;
}

Result run_carefully(Program& program, PyObject* const* localsplus, PyFunctionObject* func,
                     PyObject** fetched, Failure* failure) {
  program.statistics.careful_walks++;
  OwnedRegisters registers(program.register_count);
  Walk walk{program, localsplus, func, registers.data(), dispatch_state(), true, failure};
  Result result = walk_relations(walk, program.states);
  if (result == kPass) {
    result = walk_roots(walk);
  }
  if (result == kPass) {
    result = walk_relations(walk, program.relations);
  }
  return result == kPass && fetched != nullptr
             ? give_fetched(program, registers.data(), fetched)
             : result;
}

}  // namespace

Result run_program(Program& program, PyObject* const* localsplus, PyFunctionObject* func,
                   PyObject** fetched) {
  if (program.dead || !types_are_alive(program)) {
    return kFail;
  }
  Walk walk{program, localsplus, func, program.registers.data(), {}};
  if (program.may_defer) {
    std::fill(program.registers.begin(), program.registers.end(), nullptr);
  }
  if (program.uses_tensors || !program.states.empty()) {
    walk.dispatch = dispatch_state();
  }
  Result result = walk_relations(walk, program.states);
  if (result != kPass) {
    return result;
  }
  result = walk_roots(walk);
  if (result == kCareful) {
    return run_carefully(program, localsplus, func, fetched, nullptr);
  }
  if (result != kPass) {
    return result;
  }
  if (walk.later.empty()) {
    result = walk_relations(walk, program.relations);
    if (result != kLater) {
      return result == kPass ? give_fetched(program, walk.registers, fetched) : result;
    }
  }
  return run_second_phase(walk, fetched);
}

Result explain_program(Program& program, PyObject* const* localsplus, PyFunctionObject* func,
                       Failure& failure) {
  program.dead = program.dead || has_died(program);
  return run_carefully(program, localsplus, func, nullptr, &failure);
}

}  // namespace md
