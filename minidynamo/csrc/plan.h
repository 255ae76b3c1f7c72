// The executor of plans (minidynamo/inductor/codegen/plan.py): what a plan becomes in memory.
//
// plan_parse.cpp   dictionaries -> Program, with every check that keeps a bad plan from crashing
// plan_reader.cpp  ... slots, sizes, symbols
// plan_bind.cpp    ... operators and their arguments
// plan_memory.cpp  lifetimes; which buffers lie in arenas
// plan_arena.cpp   run states and their arenas
// plan_blocks.cpp  the pool that large CPU memory comes from
// plan_extern.cpp  operator calls, boxed and by C++ signature
// plan_steps.cpp   what each step does
// plan_inputs.cpp  checks of a call's inputs
// plan_views.cpp   which results are views of others
// plan_run.cpp     inputs in, steps, outputs out
// plan_cuda.cpp    launches through the CUDA driver
// plan.cpp         the Python types
#ifndef MINIDYNAMO_PLAN_H
#define MINIDYNAMO_PLAN_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <memory>
#include <string>
#include <vector>

#include "plan_cuda.h"
#include "plan_expr.h"

namespace minidynamo {

constexpr int32_t kNone = -1;

// An integer of the plan: a constant, or the value of an expression.
struct Size {
  int64_t value = 0;
  int32_t expression = kNone;
};

// Size, stride and dtype of a tensor. `fixed` when nothing in it is symbolic; then numel and nbytes
// (of the smallest storage that holds it) are known.
struct Layout {
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<Size> size;
  std::vector<Size> stride;
  bool fixed = true;
  std::vector<int64_t> fixed_size;
  std::vector<int64_t> fixed_stride;
  bool contiguous = false;
  size_t nbytes = 0;
};

enum class InputKind : uint8_t { Tensor, Int };

struct InputSpec {
  std::string name;
  InputKind kind = InputKind::Tensor;
  c10::Device device = c10::kCPU;
  bool has_layout = false;
  bool written = false;  // by some step
  uint32_t alignment = 1;  // of its memory in bytes, a power of two; one that is not is copied
  Layout layout;
};

// What is compared at each call for an input whose layout is fixed; kept small and together.
struct FixedInput {
  caffe2::TypeMeta dtype;
  c10::Device device = c10::kCPU;
  bool needs_data = false;
  bool written = false;
  uint32_t alignment = 1;
  uint32_t dim = 0;
  uint32_t numbers = 0;  // where its sizes, then strides, lie in Program::fixed_numbers
};

struct SymbolSource {
  enum class What : uint8_t { Value, Size, Stride, Offset };
  int32_t symbol;
  int32_t slot;
  What what;
  int64_t dim;
};

// --- steps ------------------------------------------------------------------------------------

struct AllocStep {
  int32_t slot = kNone;
  c10::Device device = c10::kCPU;
  Layout layout;
};

struct ReuseStep {
  int32_t slot;
  int32_t source;
  Layout layout;
};

struct ViewStep {
  int32_t slot;
  int32_t base;
  Layout layout;  // dtype unused: the base's
  Size offset;
  bool relative;
};

struct RestrideStep {
  int32_t slot;
  int32_t source;
  Layout layout;
};

// A launch argument as the driver wants it: a pointer to its value.
struct TritonArg {
  enum class Kind : uint8_t { Pointer, Integer, Float32, Float64, Null };
  Kind kind = Kind::Null;
  int32_t slot = kNone;
  Size integer;
  double number = 0;
};

struct TritonStep {
  std::string name;
  const CudaFunction* function = nullptr;
  Size grid[3];
  unsigned threads = 0;
  size_t device = 0;  // in Program::cuda_devices
  std::vector<TritonArg> args;
  std::vector<int32_t> writes;
};

// A launch argument's value, where the driver can read it.
union LaunchValue {
  void* pointer;
  int64_t integer;
  float float32;
  double float64;
};

// A kernel that checks its data writes which check failed (from 1) and the value to `failure`.
using KernelFunction = void (*)(void** pointers, const int64_t* sizes, int64_t* failure);

// What to raise for a failed check: a Python exception's name, the text with {} for the value.
struct Failure {
  std::string type;
  std::string message;
};

struct KernelStep {
  KernelFunction function;
  std::string name;
  std::vector<int32_t> args;
  std::vector<int64_t> offsets;  // of the pointers, in bytes: none, or one for each argument
  std::vector<int32_t> writes;
  std::vector<Size> sizes;
  std::vector<int64_t> fixed_sizes;
  std::vector<Failure> failures;
  bool fixed = true;
};

// A node of an argument tree. Fixed nodes hold their value; the others build one at each call.
struct ArgNode {
  enum class Kind : uint8_t { Fixed, Slot, Integer, Expression, Tensors, OptionalTensors, Integers };
  Kind kind = Kind::Fixed;
  c10::IValue value;
  int32_t index = kNone;  // slot, or expression
  std::vector<ArgNode> items;
};

// Where a result goes: dropped, a slot, a symbol, or spread over a list.
struct OutNode {
  enum class Kind : uint8_t { Drop, Slot, Symbol, List };
  Kind kind = Kind::Drop;
  int32_t index = kNone;
  std::vector<OutNode> items;
};

struct ExternStep;
struct RunState;
class Program;
using TypedCall = void (*)(const ExternStep& step, const Program& program, RunState& state);

struct ExternStep {
  c10::OperatorHandle op;
  std::vector<ArgNode> args;
  std::vector<OutNode> outs;
  std::vector<int32_t> written;  // slots that it writes into and that kernels read
  TypedCall typed = nullptr;
};

// The Python form of an argument: an object, a slot, an expression, or a tuple to build.
struct PyNode {
  enum class Kind : uint8_t { Object, Slot, Expression, Tuple };
  Kind kind = Kind::Object;
  PyObject* object = nullptr;  // owned by the program's list of objects
  int32_t index = kNone;
  std::vector<PyNode> items;
};

struct PyCallStep {
  PyObject* function = nullptr;  // owned by the program's list of objects
  std::vector<PyNode> args;
  PyObject* keywords = nullptr;  // a tuple of names, or null
  std::vector<OutNode> outs;
};

enum class StepKind : uint8_t { Alloc, Reuse, View, Restride, Kernel, Extern, PyCall, Triton };

// A step: its kind, its place in the table of its kind, and the slots that nothing reads after it.
struct Step {
  StepKind kind;
  bool skipped = false;  // done once, when the memory was planned
  bool tracked = false;  // autograd shall know its result as a view
  uint32_t index;
  std::vector<int32_t> dead;
  std::vector<int32_t> dead_inputs;  // dropped only where the run owns its inputs
};

struct Output {
  enum class Kind : uint8_t { Slot, Expression, Object };
  Kind kind;
  int32_t index = kNone;
  PyObject* object = nullptr;  // owned by the program's list of objects
  bool last = false;           // no later output names the same slot
};

// --- slots ------------------------------------------------------------------------------------

enum class SlotKind : uint8_t {
  Undefined,
  Input,     // a tensor that the caller gave
  Integer,   // an int that the caller gave
  Constant,
  Value,     // a tensor made during the run
  Planned,   // memory in the arena, and a tensor of it that is kept where an operator needs one
};

struct SlotInfo {
  SlotKind kind = SlotKind::Undefined;
  bool needs_data = false;    // some kernel takes its pointer
  bool needs_tensor = false;  // some other step takes the tensor
  c10::DeviceType device_type = c10::kCPU;  // of those kernels
  int32_t group = kNone;      // Planned: index of its memory group
  int64_t byte_offset = 0;    // Planned: from the start of the group
  Layout layout;              // Planned
};

// Planned slots that share memory (a buffer, what reuses it, views of it).
struct MemoryGroup {
  size_t nbytes = 0;
  size_t offset = 0;
  int32_t first = 0;  // steps between which it is alive, both included
  int32_t last = 0;
  size_t kept = 0;  // tensors of it that a run state keeps
  int32_t arena = 0;
};

// The memory of all groups of one device.
struct Arena {
  c10::Device device;
  size_t nbytes;
};

// --- running ----------------------------------------------------------------------------------

// What stands in for an input whose memory begins where kernels do not expect it.
struct AlignedCopy {
  int32_t slot;
  at::Tensor original;
  at::Tensor copy;
};

// What one run at a time uses. Entries of constants and planned slots are set once.
struct RunState {
  std::vector<void*> data;               // by slot
  std::vector<const at::Tensor*> refs;   // by slot
  std::vector<at::Tensor> tensors;       // by slot: those that the run owns
  std::vector<int64_t> symbols;
  std::vector<int64_t> expressions;      // values of those that inputs determine
  std::vector<int64_t> integers;         // by slot: int inputs
  std::vector<c10::Storage> storages;    // by group: where a planned slot needs a tensor
  std::vector<std::shared_ptr<void>> arenas;
  std::vector<void*> pointers;           // arguments of the kernel that runs
  std::vector<LaunchValue> launch_values;
  bool holds_inputs = false;             // some of `tensors` are inputs
  std::vector<AlignedCopy> copies;       // in place of inputs
  uint64_t last_use = 0;
  std::vector<void*> streams;            // a CUstream for each of Program::cuda_devices
};

class Program {
 public:
  Program() = default;
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program();

  std::vector<InputSpec> inputs;
  std::vector<FixedInput> fixed_inputs;  // of all inputs, when only_fixed_inputs
  std::vector<int64_t> fixed_numbers;
  bool only_fixed_inputs = true;
  std::vector<at::Tensor> constants;
  std::vector<SymbolSource> symbol_sources;
  std::vector<Expression> expressions;
  size_t n_symbols = 0;
  std::vector<SlotInfo> slots;
  std::vector<Step> steps;
  std::vector<AllocStep> allocs;
  std::vector<ReuseStep> reuses;
  std::vector<ViewStep> views;
  std::vector<RestrideStep> restrides;
  std::vector<KernelStep> kernels;
  std::vector<ExternStep> externs;
  std::vector<PyCallStep> pycalls;
  std::vector<TritonStep> tritons;
  std::vector<Output> outputs;
  std::vector<int32_t> mutated_inputs;
  std::vector<MemoryGroup> groups;
  std::vector<int32_t> owned_slots;  // slots whose tensors a run owns
  std::vector<int32_t> planned_slots;
  std::vector<Arena> arenas;
  std::vector<PyObject*> objects;    // strong references
  std::string name = "plan";
  // Whether arenas stay with the run state between calls; else each call allocates them.
  bool keeps_memory = true;
  size_t max_args = 0;       // of a kernel
  bool dispatches = false;   // some step goes through the dispatcher
  bool runs_kernels = false;
  bool runs_python = false;
  std::vector<int> cuda_devices;  // of the launches
  bool releases_gil = false;
  void* library = nullptr;

  // Bytes that an idle run state holds.
  size_t kept_bytes() const {
    size_t total = 0;
    for (const Arena& arena : arenas) {
      total += keeps_memory ? arena.nbytes : 0;
    }
    return total;
  }
  int64_t number(const Size& size, const RunState& state) const {
    return size.expression == kNone ? size.value : expression(size.expression, state);
  }
  int64_t expression(int32_t index, const RunState& state) const {
    return expressions[index].late ? evaluate(expressions[index], state.symbols.data())
                                   : state.expressions[index];
  }
};

// plan_parse.cpp. `spec` is Plan.to_dict(), `library` a path or null, `constants` a sequence of
// tensors, `callables` a dictionary. Throws pybind11 and c10 errors.
// With `keeps_memory` false, arenas are given back after each call.
std::unique_ptr<Program> parse_program(PyObject* spec, const char* library, PyObject* constants,
                                       PyObject* callables, bool keeps_memory);

// plan_memory.cpp. The slots that each step reads and gives a value, as the parser met them.
struct SlotUses {
  std::vector<int32_t> reads;
  std::vector<int32_t> defines;
};
// Decides lifetimes and the arena. `pinned`: slots that may not lie in it.
void plan_memory(Program& program, const std::vector<SlotUses>& uses, std::vector<bool> pinned);

// plan_extern.cpp
void run_extern(const ExternStep& step, const Program& program, RunState& state);
TypedCall find_typed_call(const ExternStep& step);

// plan_steps.cpp
void run_step(const Step& step, const Program& program, RunState& state);
// Gives a slot its tensor, and its data pointer where kernels want it.
void set_tensor(int32_t slot, at::Tensor&& tensor, const Program& program, RunState& state);
// Puts a call's result where it belongs. Throws c10::Error when it is of another kind.
void store_result(const OutNode& out, c10::IValue&& value, const Program& program, RunState& state);
// The dispatch keys of an ordinary tensor.
inline c10::DispatchKeySet plain_keys(c10::Device device) {
  return c10::DispatchKeySet(device.is_cuda() ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU);
}
// An uninitialised tensor.
at::Tensor allocate(const Layout& layout, c10::Device device, const Program& program,
                    const RunState& state);

// plan_views.cpp
// Marks the steps that make views of memory of which the run returns several results: eager's share
// their version and, once one of them is written to, their history.
void track_views(Program& program);
// Where one lives, autograd takes notice of views.
class ViewTracking {
 public:
  ViewTracking();
  ~ViewTracking();
  ViewTracking(const ViewTracking&) = delete;
  ViewTracking& operator=(const ViewTracking&) = delete;

 private:
  bool excluded_;
};

// plan_inputs.cpp
// The graph was traced below autograd and autocast, and runs there: nothing it makes has a grad_fn,
// nothing is cast a second time.
c10::DispatchKeySet excluded_keys();
// Checks the inputs and sets their slots. The caller keeps `args` alive, or with `owned` the state
// holds references of its own. Throws TypeError and ValueError for what does not fit.
void take_inputs(const Program& program, RunState& state, PyObject* const* args, bool owned);
// Gives the inputs back for which copies stood in, with what was written to those.
void return_inputs(const Program& program, RunState& state);

// plan_arena.cpp
// The state of a new run; with its arenas, if those are kept.
std::unique_ptr<RunState> make_state(const Program& program);
// Gives planned slots their memory and tensors, and takes them away again.
void attach_memory(const Program& program, RunState& state);
void detach_memory(const Program& program, RunState& state);
// Whether what the state keeps is as it was and nothing else holds on to it: then another run may
// use it. (An out argument of the wrong size is resized before the error is raised.)
bool is_reusable(const Program& program, const RunState& state);

// plan_run.cpp
// Drops every tensor that a run left behind.
void clear_state(const Program& program, RunState& state);
// One run: checks `args` (as many as the program has inputs), runs the steps, and returns a new
// tuple, or with `single` the only output. The caller keeps `args` alive; but when `list`, the list
// that they are the items of, is given, it is emptied, and each input is dropped after its last use.
// Throws what a step throws.
PyObject* run_program(const Program& program, RunState& state, PyObject* const* args,
                      PyObject* list, bool single);

}  // namespace minidynamo

#endif
