// Snapshots: what makes an unchanged model cost next to nothing. See Snapshot in guards_program.h.
#include "guards_program.h"

#include <algorithm>

namespace md {

namespace {

// A node whose changes made the snapshot stale this often is walked on every call from then on.
constexpr int kMaxMisses = 16;

// A root has as many snapshots at most; one that was not used for this many calls makes way.
constexpr size_t kMaxSnapshots = 64;
constexpr uint64_t kUnused = 4 * kMaxSnapshots;

template <typename T>
uint64_t as_word(T* pointer) {
  return reinterpret_cast<uintptr_t>(pointer);
}

bool is_class_op(Op op) { return op == Op::kClassAttr || op == Op::kSuperAttr; }

bool is_dict_op(Op op) {
  return op == Op::kDictItem || op == Op::kDictKey || op == Op::kDictValue;
}

// Instance dicts and globals: CPython lets nothing but a dict be there.
bool is_dict_for_sure(Op op) {
  return op == Op::kInstanceDict || op == Op::kGlobals || op == Op::kBuiltins ||
         op == Op::kFuncGlobals;
}

// Records one tree while all its guards are known to hold, so what was fetched can be fetched again.
class Recorder {
 public:
  Recorder(Walk& walk, Snapshot& snapshot) : walk_(walk), snapshot_(snapshot) {}

  // `same`: words recorded before prove that the object is the very same, not just its address.
  void record(Node& node, PyObject* object, bool same) {
    entry(node) = Snapshot::Entry{object, Py_TYPE(object)};
    if (is_tensor_leaf(node)) {
      entry(node).tensor_at = static_cast<int>(snapshot_.tensors.size());
      snapshot_.tensors.push_back({object, node.checks[0].tensor.get(), &node});
    } else if (node.misses >= kMaxMisses || !is_versionable(node)) {
      run(node, true);
    } else {
      expand(node, object, same);
    }
  }

 private:
  Snapshot::Entry& entry(const Node& node) { return snapshot_.entries[node.place]; }
  PyObject* object_of(const Node& node) { return entry(node).object; }

  static bool is_tensor_leaf(const Node& node) {
    return node.children.empty() && node.checks.size() == 1 &&
           node.checks[0].kind == Kind::kTensorMatch;
  }

  // Whether a dict whose items matter says when they change.
  bool is_versionable(const Node& node) {
    PyObject* object = object_of(node);
    bool of_instance = node.op == Op::kInstanceDict;
    return !PyDict_Check(object) ||
           md_dict_make_versioned(of_instance ? object_of(*node.parent) : nullptr, object);
  }

  void word(Node& node, const void* where, uint64_t value, bool version = false) {
    snapshot_.words.push_back({reinterpret_cast<uintptr_t>(where), value});
    snapshot_.owners.push_back({&node, version});
    entry(node).expanded = true;
  }

  void pointer(Node& node, const void* where) {
    word(node, where, as_word(*static_cast<void* const*>(where)));
  }

  void run(Node& node, bool subtree) {
    entry(node).run_at = static_cast<int>(snapshot_.runs.size());
    entry(node).expanded |= !subtree;
    snapshot_.runs.push_back({&node, object_of(node), subtree});
  }

  void edge(Node& child, PyObject* parent) {
    entry(child) = Snapshot::Entry{};
    snapshot_.edges.push_back({&child, parent});
  }

  void expand(Node& node, PyObject* object, bool same) {
    entry(node).expanded = !node.children.empty();
    if (node.reg >= 0) {
      entry(node).capture_at = static_cast<int>(snapshot_.captures.size());
      snapshot_.captures.push_back({node.reg, object});
    }
    if (relies_on_version(node, object)) {
      if (!same && !is_dict_for_sure(node.op)) {
        pointer(node, &object->ob_type);
      }
      word(node, md_dict_version(object), *md_dict_version(object), true);
      same = true;  // no two dicts ever had the same version
    }
    bool type_is_known = same && keeps_type(Py_TYPE(object));
    if (!type_is_known && relies_on_type(node, object, same)) {
      pointer(node, &object->ob_type);
    }
    bool tagged = relies_on_tag(node) && class_version(node, object);
    item_words(node, object);
    record_checks(node, object, same, tagged);
    for (Node* child : node.children) {
      record_child(node, object, *child, tagged);
    }
  }

  static bool is_answered_by_version(const Check& check, PyObject* object) {
    if (check.kind == Kind::kDictHas || check.kind == Kind::kDictLacks) {
      return true;
    }
    return (check.kind == Kind::kDictKeys && !PyODict_Check(object)) ||
           ((check.kind == Kind::kLenEq || check.kind == Kind::kBoolIs) &&
            has_dict_length(object));
  }

  // Items of an OrderedDict by position are fetched by iterating: see fetch().
  static bool is_versioned_item(const Node& child, PyObject* object) {
    return is_dict_op(child.op) && (child.op == Op::kDictItem || !PyODict_Check(object));
  }

  static bool relies_on_version(const Node& node, PyObject* object) {
    for (const Check& check : node.checks) {
      if (is_answered_by_version(check, object)) {
        return true;
      }
    }
    for (const Node* child : node.children) {
      if (is_versioned_item(*child, object)) {
        return true;
      }
    }
    return false;
  }

  static bool relies_on_type(const Node& node, PyObject* object, bool same) {
    if (!node.children.empty()) {
      return true;
    }
    for (const Check& check : node.checks) {
      if (!is_settled(check, object, same) && check.kind != Kind::kIdIs) {
        return true;
      }
    }
    return false;
  }

  static bool relies_on_tag(const Node& node) {
    for (const Check& check : node.checks) {
      if (check.kind == Kind::kTypeVersion || check.kind == Kind::kClassLacks) {
        return true;
      }
    }
    for (const Node* child : node.children) {
      if (is_class_op(child->op)) {
        return true;
      }
    }
    return false;
  }

  bool class_version(Node& node, PyObject* object) {
    auto* type = reinterpret_cast<PyTypeObject*>(object);
    if (type->tp_version_tag == 0) {
      return false;
    }
    auto where = reinterpret_cast<uintptr_t>(&type->tp_version_tag) | 1;
    word(node, reinterpret_cast<void*>(where), type->tp_version_tag, true);
    return true;
  }

  // Size and, of a list, place of the items, if some are children.
  void item_words(Node& node, PyObject* object) {
    for (const Node* child : node.children) {
      if (child->op != Op::kListItem && child->op != Op::kTupleItem) {
        continue;
      }
      auto* sized = reinterpret_cast<PyVarObject*>(object);
      word(node, &sized->ob_size, static_cast<uint64_t>(sized->ob_size));
      if (child->op == Op::kListItem) {
        pointer(node, &reinterpret_cast<PyListObject*>(object)->ob_item);
      }
      return;
    }
  }

  void record_checks(Node& node, PyObject* object, bool same, bool tagged) {
    bool others = false;
    for (const Check& check : node.checks) {
      bool by_words = is_settled(check, object, same) || check.kind == Kind::kTypeIs ||
                      (tagged && (check.kind == Kind::kTypeVersion ||
                                  check.kind == Kind::kClassLacks)) ||
                      is_answered_by_version(check, object);
      if (check.kind == Kind::kIdIs && !by_words) {
        pointer(node, check.held.referent_word());
      } else {
        others = others || !by_words;
      }
    }
    if (others) {
      run(node, false);
    }
  }

  // `tagged`: the version of the class `node` was recorded.
  void record_child(Node& node, PyObject* object, Node& child, bool tagged) {
    if (is_versioned_item(child, object) || (is_class_op(child.op) && tagged)) {
      return record_fetched(child, object, true);
    }
    if (child.op == Op::kInstanceDict) {
      PyObject** where = md_instance_dict_word(object);
      if (where != nullptr) {
        pointer(node, where);
      }
      return record_fetched(child, object, where == nullptr);
    }
    if (child.op == Op::kType) {
      return record_fetched(child, object, false);  // the type's word was recorded
    }
    if (const void* where = field_address(child, object)) {
      pointer(node, where);
      return record_fetched(child, object, false);
    }
    edge(child, object);
  }

  void record_fetched(Node& child, PyObject* parent, bool same) {
    PyObject* object = nullptr;
    bool owned = false;
    if (fetch(walk_, child, parent, &object, &owned) == kPass && !owned) {
      record(child, object, same);
    } else {
      edge(child, parent);
    }
  }

  static const void* item_address(PyObject** items, const Node& child, PyObject* object) {
    return &items[child.index < 0 ? child.index + Py_SIZE(object) : child.index];
  }

  // Where `object` keeps the pointer that `child` fetches, or NULL.
  static const void* field_address(const Node& child, PyObject* object) {
    auto* function = reinterpret_cast<PyFunctionObject*>(object);
    switch (child.op) {
      case Op::kListItem:
        return item_address(reinterpret_cast<PyListObject*>(object)->ob_item, child, object);
      case Op::kTupleItem:
        return item_address(reinterpret_cast<PyTupleObject*>(object)->ob_item, child, object);
      case Op::kSlot:
        return reinterpret_cast<char*>(object) + child.index;
      case Op::kFuncCode:
        return &function->func_code;
      case Op::kFuncGlobals:
        return &function->func_globals;
      case Op::kFuncDefaults:
        return &function->func_defaults;
      case Op::kFuncKwDefaults:
        return &function->func_kwdefaults;
      case Op::kFuncClosure:
        return &function->func_closure;
      case Op::kMethodSelf:
        return PyMethod_Check(object)
                   ? static_cast<const void*>(&reinterpret_cast<PyMethodObject*>(object)->im_self)
                   : &reinterpret_cast<PyCFunctionObject*>(object)->m_self;
      case Op::kMethodFunc:
        return &reinterpret_cast<PyMethodObject*>(object)->im_func;
      case Op::kCell:
        return &reinterpret_cast<PyCellObject*>(object)->ob_ref;
      case Op::kWeakref:
        return &reinterpret_cast<PyWeakReference*>(object)->wr_object;
      default:
        return nullptr;
    }
  }

  Walk& walk_;
  Snapshot& snapshot_;
};

// A version differs: looks at the dict's or class's items again. When they are what they were, or
// something else just as good, the snapshot is brought up to date.
class Repair {
 public:
  Repair(Walk& walk, Snapshot& snapshot) : walk_(walk), snapshot_(snapshot) {}

  Result run(Node& node, Word& word) {
    walk_.program.statistics.repairs++;
    PyObject* object = entry(node).object;
    Result result = walk_checks(walk_, node, object);
    bool of_dict = PyDict_Check(object);
    for (size_t i = 0; i < node.children.size() && result == kPass; i++) {
      Node& child = *node.children[i];
      bool concerned = of_dict ? is_dict_op(child.op) : is_class_op(child.op);
      if (concerned && entry(child).object != nullptr) {
        result = recheck(child, object);
      }
    }
    if (result != kPass) {
      return result;
    }
    if (of_dict) {
      word.value = *md_dict_version(object);
      return kPass;
    }
    word.value = reinterpret_cast<PyTypeObject*>(object)->tp_version_tag;
    return word.value != 0 ? kPass : kStale;
  }

 private:
  Snapshot::Entry& entry(const Node& node) { return snapshot_.entries[node.place]; }

  Result recheck(Node& child, PyObject* parent) {
    PyObject* found = nullptr;
    bool owned = false;
    Result result = fetch(walk_, child, parent, &found, &owned);
    if (result != kPass) {
      return result;
    }
    Snapshot::Entry& known = entry(child);
    if (known.tensor_at >= 0) {
      snapshot_.tensors[static_cast<size_t>(known.tensor_at)].object = found;
    } else if (known.run_at >= 0 && snapshot_.runs[static_cast<size_t>(known.run_at)].subtree) {
      snapshot_.runs[static_cast<size_t>(known.run_at)].object = found;
    } else if (known.expanded && (found != known.object || Py_TYPE(found) != known.type)) {
      child.misses++;
      return kStale;
    } else {
      result = recheck_settled(child, known, found);
    }
    known.object = found;
    known.type = Py_TYPE(found);
    return result;
  }

  // A child whose checks were settled as long as it was the very same object.
  Result recheck_settled(Node& child, const Snapshot::Entry& known, PyObject* found) {
    for (const Check& check : child.checks) {
      Result result = run_check(walk_, check, found);
      if (result == kFail || result == kError || result == kCareful) {
        return result;
      }
      // Of an expanded child, which is the same still, the other checks are among the runs.
      if (!known.expanded && !is_settled(check, found, true)) {
        return kStale;
      }
    }
    if (known.capture_at >= 0) {
      snapshot_.captures[static_cast<size_t>(known.capture_at)].object = found;
    }
    return kPass;
  }

  Walk& walk_;
  Snapshot& snapshot_;
};

inline bool holds(const Word& word) {
  if (word.where & 1) {
    return *reinterpret_cast<const uint32_t*>(word.where - 1) == word.value;
  }
  return *reinterpret_cast<const uint64_t*>(word.where) == word.value;
}

Result check_words(Walk& walk, Snapshot& snapshot) {
  Word* words = snapshot.words.data();
  size_t count = snapshot.words.size();
  for (size_t i = 0; i < count; i++) {
    if (holds(words[i])) [[likely]] {
      continue;
    }
    WordOwner owner = snapshot.owners[i];
    if (!owner.version) {
      owner.node->misses++;
      return kStale;
    }
    Result result = Repair(walk, snapshot).run(*owner.node, words[i]);
    if (result != kPass) {
      return result;
    }
  }
  return kPass;
}

}  // namespace

size_t Snapshots::index_of(PyObject* object) const {
  auto place = std::find(objects_.begin(), objects_.end(), object);
  return static_cast<size_t>(place - objects_.begin());
}

Snapshot* Snapshots::find(PyObject* object) {
  time_++;
  size_t index = index_of(object);
  if (index == objects_.size()) {
    return nullptr;
  }
  slots_[index].used = time_;
  return slots_[index].snapshot.get();
}

bool Snapshots::passed(PyObject* object) {
  if (index_of(object) < objects_.size()) {
    return true;
  }
  if (objects_.size() < kMaxSnapshots) {
    objects_.push_back(object);
    slots_.push_back({time_, nullptr});
    return false;
  }
  auto older = [](const Slot& a, const Slot& b) { return a.used < b.used; };
  auto oldest = std::min_element(slots_.begin(), slots_.end(), older);
  if (oldest->used + kUnused < time_) {
    objects_[static_cast<size_t>(oldest - slots_.begin())] = object;
    *oldest = {time_, nullptr};
  }
  return false;
}

Snapshot& Snapshots::renew(PyObject* object) {
  Slot& slot = slots_[index_of(object)];
  slot.snapshot = std::make_unique<Snapshot>();
  return *slot.snapshot;
}

void Snapshots::drop(PyObject* object) { slots_[index_of(object)].snapshot.reset(); }

void record_snapshot(Walk& walk, Root& root, PyObject* object) {
  Snapshot& snapshot = root.snapshots.renew(object);
  snapshot.entries.resize(root.node_count);
  Recorder(walk, snapshot).record(*root.node, object, root.node->op == Op::kConst);
  snapshot.words.shrink_to_fit();
  snapshot.owners.shrink_to_fit();
  walk.program.statistics.recordings++;
}

Result run_snapshot(Walk& walk, Snapshot& snapshot) {
  Result result = check_words(walk, snapshot);
  if (result != kPass) {
    return result;
  }
  result = run_tensors(walk, snapshot.tensors);
  if (result != kPass) {
    return result;
  }
  for (const Snapshot::Capture& capture : snapshot.captures) {
    walk.registers[capture.reg] = capture.object;
  }
  for (const Snapshot::Run& run : snapshot.runs) {
    result = run.subtree ? walk_node(walk, *run.node, run.object)
                         : walk_checks(walk, *run.node, run.object);
    if (result != kPass) {
      return result;
    }
  }
  for (const Snapshot::Edge& edge : snapshot.edges) {
    result = walk_child(walk, *edge.child, edge.parent);
    if (result != kPass) {
      return result;
    }
  }
  return kPass;
}

}  // namespace md
