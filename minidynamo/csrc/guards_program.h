// A guard program: what the files guards*.cpp share. guards.h is what the frame hook sees.
//
// A program is a forest of nodes. A node fetches one object out of its parent's (or out of the
// call), asks its checks, and goes on to its children. A call is checked in two phases:
//
// 1. The first runs no code of the user, by construction: no Python call, no comparison that could
//    make one, no garbage collection. So nothing changes meanwhile, and borrowed references do.
//    Where an object was found unchanged in the call before, its subtree is not walked but
//    compared as a list of words in memory (see Snapshot).
// 2. What needs Python code (a real getattr, a predicate, ...) comes after it and holds references.
//
// Relations between objects (aliasing, expressions over sizes) come last.
#ifndef MINIDYNAMO_GUARDS_PROGRAM_H
#define MINIDYNAMO_GUARDS_PROGRAM_H

#include "guards.h"
#include "guards_dict.h"

#include <cstdint>
#include <memory>
#include <vector>

namespace md {

// Outcome of a check, a fetch, a walk.
enum Result : int8_t {
  kError = -1,   // an exception is set
  kFail = 0,
  kPass = 1,
  kLater = 2,    // first phase only: it might run code of the user
  kCareful = 3,  // first phase only: give it up, look at everything in the second way
  kStale = 4,    // snapshots only: the objects are others than those it was made of
};

// A strong reference.
class Ref {
 public:
  Ref() = default;
  explicit Ref(PyObject* stolen) : object_(stolen) {}
  static Ref of(PyObject* borrowed) { return Ref(Py_XNewRef(borrowed)); }
  Ref(Ref&& other) noexcept : object_(other.release()) {}
  Ref& operator=(Ref&& other) noexcept {
    PyObject* old = object_;
    object_ = other.release();
    Py_XDECREF(old);
    return *this;
  }
  ~Ref() { Py_XDECREF(object_); }
  PyObject* get() const { return object_; }
  PyObject* release() {
    PyObject* object = object_;
    object_ = nullptr;
    return object;
  }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_ = nullptr;
};

// An object to compare with: held weakly where it can be, so that compiled code keeps no module or
// class alive; strongly where it can not (constants, containers) or lives forever (static types).
class Held {
 public:
  bool hold(PyObject* object);  // false: an exception is set
  void keep(PyObject* object);  // strongly
  PyObject* address() const { return object_; }
  bool is_weak() const { return static_cast<bool>(weak_); }
  bool is_alive() const {
    if (!weak_) {
      return true;
    }
    PyObject* referent = *referent_word();
    return referent == object_ && Py_REFCNT(referent) > 0;
  }
  // The word of the weak reference that holds the object until it dies.
  PyObject** referent_word() const {
    return &reinterpret_cast<PyWeakReference*>(weak_.get())->wr_object;
  }
  PyObject* owned() const { return weak_ ? weak_.get() : strong_.get(); }

 private:
  PyObject* object_ = nullptr;
  Ref strong_;
  Ref weak_;
};

enum class Op : uint8_t {
  kLocal, kGlobals, kBuiltins, kClosureCell, kConst,
  kInstanceDict, kDictItem, kDictKey, kDictValue, kListItem, kTupleItem,
  kType, kClassAttr, kSuperAttr, kSlot,
  kFuncCode, kFuncGlobals, kFuncDefaults, kFuncKwDefaults, kFuncClosure,
  kMethodSelf, kMethodFunc, kCell, kWeakref,
  kGetAttr, kCall, kTensorInt,
};

// In the order in which a node asks them: cheap ones first.
enum class Kind : uint8_t {
  kTypeIs, kIdIs, kIsNone, kNotNone, kBoolIs, kTypeVersion, kClassLacks, kLenEq, kDictHas,
  kDictLacks, kDictKeys, kTensorMatch, kConstEq, kHasAttr, kLacksAttr,
};

enum class RelationKind : uint8_t { kGlobalState, kAlias, kNotAlias, kNotAliasedGroup, kMemoryLayout,
                                    kExpr, kPredicate };

struct TensorSpec;   // guards_tensor.cpp
struct GlobalState;  // guards_state.cpp
struct Program;
struct Node;

// The dispatch keys that the thread includes and excludes (of these, without the backends).
struct DispatchState {
  uint64_t included = 0;
  uint64_t excluded = 0;
};

struct Check {
  Kind kind;
  int number = 0;       // in the layout, for explanations
  Ref value;            // the constant, key, name, class contents to compare with
  Held held;            // the type, object or key by identity to compare with
  std::vector<Held> keys;    // of a dict, all of them
  Py_hash_t hash = 0;   // of a key
  bool by_identity = false;  // the key is to be found by identity
  int64_t size = 0;     // length, truth
  std::shared_ptr<TensorSpec> tensor;
};

struct Node {
  Op op;
  int number = 0;  // in the layout
  Node* parent = nullptr;
  Ref operand;     // name, key, function
  Held held;       // constant; key by identity; class of a slot or of super
  Py_hash_t hash = 0;
  bool by_identity = false;
  Py_ssize_t index = 0;  // of an argument, item, dimension; offset of a slot
  int property = 0;      // of kTensorInt; of kSlot: whether NULL stands for None
  int reg = -1;          // register that takes the object, or -1
  std::vector<Check> checks;
  std::vector<Node*> children;
  uint32_t hot = 0;      // the child that failed last: tried first

  size_t place = 0;  // among the nodes of its root
  int misses = 0;    // how often its changes made a snapshot stale
};

// -- snapshots -------------------------------------------------------------------------------------

// A word of memory that must still hold `value`. Bit 0 of `where`: it is a 32-bit word.
struct Word {
  uintptr_t where;
  uint64_t value;
};

// Whose change a word tells. `version`: of a dict or type, whose items are to be looked at again.
struct WordOwner {
  Node* node;
  bool version;
};

// What the tree of one root looked like when all its guards held: the words that it depends on,
// parents before children, so that each address is valid when the words before it are as they
// were. It says nothing else about an object than that its address was the same, unless
// - the dict or class that it was found in has the same version (versions are never used twice), or
// - a weak reference to it is alive.
// Whatever that does not settle is in the other lists and is done on every call.
struct Snapshot {
  struct TensorRun { PyObject* object; const TensorSpec* spec; Node* node; };
  struct Run { Node* node; PyObject* object; bool subtree; };  // else its own checks only
  struct Edge { Node* child; PyObject* parent; };              // fetch, then walk
  struct Capture { int reg; PyObject* object; };
  // What was recorded of one node.
  struct Entry {
    PyObject* object = nullptr;  // NULL: it is behind an edge
    PyTypeObject* type = nullptr;
    bool expanded = false;  // children, words or checks of its own depend on which object it is
    int tensor_at = -1;          // places in the lists, or -1
    int run_at = -1;
    int capture_at = -1;
  };

  std::vector<Word> words;
  std::vector<WordOwner> owners;
  std::vector<TensorRun> tensors;
  std::vector<Run> runs;
  std::vector<Edge> edges;
  std::vector<Capture> captures;
  std::vector<Entry> entries;
};

// The snapshots of a root, by the address of its object: code that serves the layers of a model in
// turn has one for each. An object gets its snapshot when it passes for the second time.
class Snapshots {
 public:
  Snapshot* find(PyObject* object);
  // Notes that `object` passed without a snapshot. Returns whether it is to have one now.
  bool passed(PyObject* object);
  Snapshot& renew(PyObject* object);  // after passed(): empty
  void drop(PyObject* object);        // it counts as seen still
  template <typename Visit>
  void each(Visit visit) const {
    for (const Slot& slot : slots_) {
      if (slot.snapshot) {
        visit(*slot.snapshot);
      }
    }
  }

 private:
  struct Slot {
    uint64_t used;  // time of the last use, counted in calls
    std::unique_ptr<Snapshot> snapshot;
  };
  size_t index_of(PyObject* object) const;

  std::vector<PyObject*> objects_;  // addresses only
  std::vector<Slot> slots_;
  uint64_t time_ = 0;
};

struct Root {
  Node* node;
  size_t node_count = 0;
  Snapshots snapshots;
};

// -- relations -------------------------------------------------------------------------------------

// One instruction of an expression in postfix order.
struct ExprStep {
  enum Code : uint8_t {
    kInt, kLoad, kTensor,
    kAdd, kSub, kMul, kFloorDiv, kMod, kPow, kMin, kMax,
    kEq, kNe, kLt, kLe, kGt, kGe, kAnd, kOr, kNot,
  } code;
  int64_t value = 0;  // constant; register
  int property = 0;
  int dim = 0;
};

// One tensor of a kMemoryLayout: what was found when the graph was compiled.
struct Placement {
  bool is_mutated;
  int group;  // tensors with the same number lay on one storage and overlapped; -1: on its own
  int64_t offset;  // storage offset in elements, compared for members of a group
};

// The bytes from the first to the last element of a tensor; start == end: none, or unknown.
struct MemoryRange {
  uintptr_t start = 0, end = 0;
  const void* storage = nullptr;
  int64_t offset = 0;

  bool operator==(const MemoryRange& other) const {
    return start == other.start && end == other.end && storage == other.storage &&
           offset == other.offset;
  }
};

struct Relation {
  RelationKind kind;
  int number = 0;
  std::vector<int> regs;
  std::vector<ExprStep> steps;
  Ref value;  // predicate, GlobalState object
  std::vector<PyObject*> passed;  // kNotAliasedGroup: addresses that were all different
  std::vector<Placement> placements;  // kMemoryLayout, as are the ranges that passed last
  std::vector<MemoryRange> ranges;
};

// -- programs --------------------------------------------------------------------------------------

struct Failure {
  const char* what = nullptr;  // "fetch", "check", "relation"
  int number = 0;
  Ref found;  // the object; a relation's objects as a tuple
};

struct Statistics {
  int64_t walks = 0, recordings = 0, repairs = 0, second_phases = 0, careful_walks = 0;
};

struct Program {
  std::vector<std::unique_ptr<Node>> nodes;
  std::vector<Root> roots;
  std::vector<Relation> states;     // those without objects: asked first
  std::vector<Relation> relations;
  std::vector<Held> types;          // classes compared with: they must be alive
  std::vector<std::shared_ptr<TensorSpec>> specs;
  std::vector<int> fetch;           // registers that make the fetched tuple
  std::vector<PyObject*> registers; // borrowed, of the first phase under way
  int register_count = 0;
  bool uses_tensors = false;
  bool may_defer = false;           // some registers may be left to the second phase
  bool dead = false;                // an object held weakly has died: never holds again
  uint32_t hot_root = 0;
  Ref layout;
  Statistics statistics;
};

// One check of a call.
struct Walk {
  Program& program;
  PyObject* const* localsplus;
  PyFunctionObject* func;
  PyObject** registers;
  DispatchState dispatch;
  bool careful = false;        // hold references, run Python code as needed
  Failure* failure = nullptr;  // where to say what failed; makes the order that of the layout
  struct Later {
    Node* node;
    const Check* check;  // or NULL: fetch `node` out of `object` and walk it
    PyObject* object;
  };
  std::vector<Later> later;
};

// guards_parse.cpp: NULL with an exception set for tables that make no sense.
std::unique_ptr<Program> parse_program(PyObject* nodes, PyObject* checks, PyObject* relations,
                                       PyObject* fetch);
int visit_references(Program& program, visitproc visit, void* arg);

// guards_check.cpp
// What an exception in code of the user makes of a guard: it fails (the program, when it runs, will
// meet the exception itself), unless it is a KeyboardInterrupt or the like.
Result after_exception();
Result run_check(Walk& walk, const Check& check, PyObject* object);
// Same type and equal, as CONST_EQ means it. kLater for types whose == is not known here.
Result constants_equal(PyObject* expected, PyObject* found, bool careful);
// Whether the check's answer can not change as long as the object is the very same (`same`:
// known; else only its address is).
bool is_settled(const Check& check, PyObject* object, bool same);
// Whether the objects of a type keep it: __class__ can be set on instances of heap types and on
// modules.
inline bool keeps_type(PyTypeObject* type) {
  return (type->tp_flags & Py_TPFLAGS_HEAPTYPE) == 0 && type != &PyModule_Type;
}
// Dicts whose len() is that of their storage.
inline bool has_dict_length(PyObject* object) {
  return PyDict_CheckExact(object) || PyODict_CheckExact(object);
}

// guards_fetch.cpp. *object is borrowed unless *owned.
Result fetch_root(Walk& walk, Node& node, PyObject** object);
Result fetch(Walk& walk, Node& node, PyObject* base, PyObject** object, bool* owned);

// guards_walk.cpp
Result walk_node(Walk& walk, Node& node, PyObject* object);
Result walk_checks(Walk& walk, Node& node, PyObject* object);
Result walk_child(Walk& walk, Node& child, PyObject* base);
// Runs a program; the meaning is that of md_guard_check, `failure` may be NULL.
Result run_program(Program& program, PyObject* const* localsplus, PyFunctionObject* func,
                   PyObject** fetched);
Result explain_program(Program& program, PyObject* const* localsplus, PyFunctionObject* func,
                       Failure& failure);

// guards_snapshot.cpp
Result run_snapshot(Walk& walk, Snapshot& snapshot);
void record_snapshot(Walk& walk, Root& root, PyObject* object);

// guards_relation.cpp
bool parse_expression(PyObject* postfix, size_t register_count, std::vector<ExprStep>& steps);
Result run_relation(Walk& walk, Relation& relation);

// guards_tensor.cpp
std::shared_ptr<TensorSpec> parse_tensor_spec(PyObject* fields);
PyTypeObject* tensor_spec_type(const TensorSpec& spec);
bool tensor_specs_equal(const TensorSpec& a, const TensorSpec& b);
Result run_tensors(Walk& walk, const std::vector<Snapshot::TensorRun>& tensors);
Result tensor_matches(const TensorSpec& spec, PyObject* object, const DispatchState& dispatch,
                      bool careful);
enum TensorProperty { kSize, kStride, kStorageOffset };
bool parse_tensor_property(const char* name, int* property);
MemoryRange memory_range(PyObject* object);
Result tensor_property(PyObject* object, int property, int64_t dim, bool careful, int64_t* value);
DispatchState dispatch_state();
int init_tensor_functions(PyObject* module);

// guards_class.cpp
int init_class_contents(PyObject* module);
bool is_class_contents(PyObject* object);
bool class_contents_hold(PyObject* contents, PyTypeObject* type);

// guards_state.cpp
int init_global_state(PyObject* module);
bool is_global_state(PyObject* object);
bool global_state_holds(PyObject* state, const DispatchState& dispatch);

}  // namespace md

#endif
