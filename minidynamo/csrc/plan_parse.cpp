// A plan's tables and steps, from dictionaries to a Program.
#include "plan_parse.h"

#include <ATen/Context.h>
#include <dlfcn.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <cstring>

namespace minidynamo {

namespace {

constexpr int64_t kFormatVersion = 2;
constexpr size_t kMaxSlots = 10'000'000;
// Below this many bytes of known work a run is too short for releasing the GIL to pay.
constexpr size_t kBytesWorthReleasing = 512 * 1024;

// The tables and steps of one plan, in order.
class PlanParser {
 public:
  PlanParser(Program& program, py::dict spec, py::sequence constants, py::dict callables)
      : program_(program), reader_(program), spec_(spec), constants_(constants),
        callables_(callables) {}

  void parse(const char* library) {
    if (plain_integer(spec_["version"], "version") != kFormatVersion) {
      fail("this is a plan of another format version");
    }
    int64_t n_slots = plain_integer(spec_["n_slots"], "n_slots");
    if (n_slots < 0 || n_slots > static_cast<int64_t>(kMaxSlots)) {
      fail("n_slots is out of range");
    }
    reader_.resize(n_slots);
    open_library(library);
    inputs();
    constants();
    symbols();
    input_layouts();
    steps();
    outputs();
    mutated_inputs();
    fixed_inputs();
    plan_memory(program_, reader_.uses, reader_.pinned);
    program_.releases_gil =
        may_wait_ || work_ >= kBytesWorthReleasing || !program_.expressions.empty();
  }

 private:
  void open_library(const char* library) {
    if (library == nullptr) {
      return;
    }
    program_.library = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (program_.library == nullptr) {
      throw std::runtime_error(std::string("cannot load the plan's kernels: ") + dlerror());
    }
  }

  void inputs() {
    int64_t slot = 0;
    for (py::handle item : sequence(spec_["inputs"])) {
      InputSpec input;
      input.name = item["name"].cast<std::string>();
      std::string kind = item["kind"].cast<std::string>();
      if (kind != "tensor" && kind != "int") {
        fail("input " + input.name + " is of unknown kind '" + kind + "'");
      }
      input.kind = kind == "int" ? InputKind::Int : InputKind::Tensor;
      input.device = c10::Device(item["device"].cast<std::string>());
      input.alignment = alignment(item["alignment"], input.name);
      reader_.define(py::int_(slot++),
                     kind == "int" ? SlotKind::Integer : SlotKind::Input);
      program_.inputs.push_back(std::move(input));
    }
  }

  uint32_t alignment(py::handle value, const std::string& name) {
    int64_t bytes = plain_integer(value, "alignment");
    if (bytes < 1 || bytes > 4096 || (bytes & (bytes - 1)) != 0) {
      fail("the alignment of input " + name + " must be a power of two up to 4096");
    }
    return static_cast<uint32_t>(bytes);
  }

  // After the symbols are known: sizes of inputs may be expressions.
  void input_layouts() {
    size_t index = 0;
    for (py::handle item : sequence(spec_["inputs"])) {
      InputSpec& input = program_.inputs[index++];
      if (input.kind != InputKind::Tensor || item["size"].is_none()) {
        continue;
      }
      input.layout = reader_.layout(item["size"], item["stride"], item["dtype"]);
      input.has_layout = true;
      work_ += input.layout.nbytes;
    }
  }

  void constants() {
    py::sequence specs = sequence(spec_["constants"]);
    if (specs.size() != constants_.size()) {
      fail("the plan has " + std::to_string(specs.size()) + " constants, " +
           std::to_string(constants_.size()) + " were given");
    }
    int64_t slot = static_cast<int64_t>(program_.inputs.size());
    for (size_t i = 0; i < specs.size(); ++i) {
      py::object item = constants_[i];
      if (!THPVariable_Check(item.ptr())) {
        throw py::type_error("constants must be tensors");
      }
      reader_.define(py::int_(slot++), SlotKind::Constant);
      at::Tensor constant = THPVariable_Unpack(item.ptr());
      if (constant.is_conj() || constant.is_neg()) {  // torch's modes would see these calls
        constant = constant.resolve_conj().resolve_neg();
      }
      program_.constants.push_back(std::move(constant));
      check_constant(specs[i], program_.constants.back());
    }
  }

  void check_constant(py::handle spec, const at::Tensor& tensor) {
    py::object stride = spec["stride"];
    bool contiguous = stride.is_none();
    Layout layout = reader_.layout(spec["size"], contiguous ? spec["size"] : stride, spec["dtype"]);
    bool same = tensor.scalar_type() == layout.dtype && tensor.sizes().equals(layout.fixed_size) &&
                (contiguous ? tensor.is_contiguous() : tensor.strides().equals(layout.fixed_stride));
    if (!layout.fixed || !same) {
      fail("constant " + spec["name"].cast<std::string>() + " is not what the plan expects");
    }
  }

  void symbols() {
    static const std::map<std::string, SymbolSource::What> names = {
        {"value", SymbolSource::What::Value},
        {"size", SymbolSource::What::Size},
        {"stride", SymbolSource::What::Stride},
        {"storage_offset", SymbolSource::What::Offset},
    };
    for (py::handle item : sequence(spec_["symbols"])) {
      auto what = names.find(item["what"].cast<std::string>());
      int64_t slot = plain_integer(item["slot"], "slot");
      std::string name = item["name"].cast<std::string>();
      if (what == names.end() || slot < 0 || slot >= static_cast<int64_t>(program_.inputs.size())) {
        fail("symbol " + name + " has no proper source");
      }
      bool is_value = what->second == SymbolSource::What::Value;
      if (is_value != (program_.inputs[slot].kind == InputKind::Int)) {
        fail("symbol " + name + " does not fit its input");
      }
      program_.symbol_sources.push_back({reader_.symbol(name, false), static_cast<int32_t>(slot),
                                         what->second, plain_integer(item["dim"], "dim")});
    }
  }

  void steps() {
    static const std::map<std::string, void (PlanParser::*)(py::dict)> parsers = {
        {"alloc", &PlanParser::alloc},   {"reuse", &PlanParser::reuse},
        {"as_strided", &PlanParser::view}, {"restride", &PlanParser::restride},
        {"kernel", &PlanParser::kernel}, {"extern", &PlanParser::extern_call},
        {"pycall", &PlanParser::pycall}, {"triton", &PlanParser::triton},
        {"free", &PlanParser::free},
    };
    size_t index = 0;
    for (py::handle item : sequence(spec_["steps"])) {
      std::string kind = item["step"].cast<std::string>();
      auto parser = parsers.find(kind);
      if (parser == parsers.end()) {
        fail("step " + std::to_string(index) + " is of unknown kind '" + kind + "'");
      }
      reader_.uses.emplace_back();
      try {
        (this->*parser->second)(py::reinterpret_borrow<py::dict>(item));
      } catch (py::builtin_exception& error) {
        fail("step " + std::to_string(index) + " (" + kind + "): " + error.what());
      } catch (std::invalid_argument& error) {
        fail("step " + std::to_string(index) + " (" + kind + "): " + error.what());
      }
      ++index;
    }
  }

  void add(StepKind kind, size_t index) {
    program_.steps.push_back(Step{.kind = kind, .index = static_cast<uint32_t>(index)});
  }

  void alloc(py::dict item) {
    AllocStep step;
    step.layout = reader_.layout(item["size"], item["stride"], item["dtype"]);
    step.device = c10::Device(item["device"].cast<std::string>());
    step.slot = reader_.define(item["slot"], SlotKind::Value);
    program_.dispatches |= !step.device.is_cpu();
    if (step.device.is_cuda()) {
      at::globalContext().lazyInitDevice(c10::kCUDA);  // before its allocator is asked for memory
    }
    work_ += step.layout.nbytes;
    program_.allocs.push_back(std::move(step));
    add(StepKind::Alloc, program_.allocs.size() - 1);
  }

  void reuse(py::dict item) {
    ReuseStep step;
    step.layout = reader_.layout(item["size"], item["stride"], item["dtype"]);
    step.source = reader_.read_tensor(item["source"], false);
    if (program_.slots[step.source].kind != SlotKind::Value) {
      fail("only memory that the plan made can be reused");
    }
    reader_.kill(step.source);
    step.slot = reader_.define(item["slot"], SlotKind::Value);
    program_.reuses.push_back(std::move(step));
    add(StepKind::Reuse, program_.reuses.size() - 1);
  }

  void view(py::dict item) {
    ViewStep step;
    step.layout = reader_.layout(item["size"], item["stride"], py::str("uint8"));
    step.base = reader_.read_tensor(item["base"], false);
    step.offset = reader_.size(item["offset"]);
    step.relative = item["relative"].cast<bool>();
    step.slot = reader_.define(item["slot"], SlotKind::Value);
    program_.views.push_back(std::move(step));
    add(StepKind::View, program_.views.size() - 1);
  }

  void restride(py::dict item) {
    RestrideStep step;
    step.layout = reader_.layout(item["size"], item["stride"], item["dtype"]);
    step.source = reader_.read_tensor(item["source"]);
    reader_.pin(step.source);
    step.slot = reader_.define(item["slot"], SlotKind::Value);
    program_.dispatches = true;
    program_.restrides.push_back(std::move(step));
    add(StepKind::Restride, program_.restrides.size() - 1);
  }

  // A slot whose pointer a kernel on `device` takes. Values are checked when they are made.
  int32_t pointer(py::handle slot, c10::DeviceType device) {
    int32_t index = reader_.read_tensor(slot, false);
    SlotInfo& info = program_.slots[index];
    bool fits = !info.needs_data || info.device_type == device;
    info.needs_data = true;
    info.device_type = device;
    if (info.kind == SlotKind::Input) {
      InputSpec& input = program_.inputs[index];
      if (!input.has_layout) {
        fail("a kernel reads input " + input.name + ", whose layout is not given");
      }
      fits &= input.device.type() == device;
    } else if (info.kind == SlotKind::Constant) {
      fits &= program_.constants[index - program_.inputs.size()].device().type() == device;
    }
    if (!fits) {
      fail("slot " + std::to_string(index) + " is not on the kernel's device");
    }
    return index;
  }

  void written(py::handle slots, const std::vector<int32_t>& args, std::vector<int32_t>& writes) {
    for (py::handle slot : sequence(slots)) {
      int64_t index = plain_integer(slot, "slot");
      if (std::find(args.begin(), args.end(), index) == args.end()) {
        fail("slot " + std::to_string(index) + " is written but is no argument");
      }
      if (program_.slots[index].kind == SlotKind::Constant) {
        fail("a constant is written");
      }
      if (program_.slots[index].kind == SlotKind::Input) {
        program_.inputs[index].written = true;
      }
      writes.push_back(static_cast<int32_t>(index));
    }
  }

  void kernel(py::dict item) {
    KernelStep step;
    step.name = item["kernel"].cast<std::string>();
    if (program_.library == nullptr) {
      fail("the plan has kernels but no library was given");
    }
    step.function =
        reinterpret_cast<KernelFunction>(dlsym(program_.library, step.name.c_str()));
    if (step.function == nullptr) {
      fail("the library has no kernel " + step.name);
    }
    for (py::handle slot : sequence(item["args"])) {
      step.args.push_back(pointer(slot, c10::kCPU));
    }
    if (item.contains("offsets")) {
      for (py::handle offset : sequence(item["offsets"])) {
        step.offsets.push_back(plain_integer(offset, "offset"));
      }
    }
    if (!step.offsets.empty() && step.offsets.size() != step.args.size()) {
      fail("kernel " + step.name + " has other arguments than offsets");
    }
    written(item["writes"], step.args, step.writes);
    for (py::handle value : sequence(item["sizes"])) {
      Size size = PyFloat_Check(value.ptr()) || PyDict_Check(value.ptr())
                      ? Size{double_bits(value), kNone}
                      : reader_.size(value);
      step.fixed &= size.expression == kNone;
      step.sizes.push_back(size);
      step.fixed_sizes.push_back(size.value);
    }
    for (py::handle failure : sequence(item["failures"])) {
      py::sequence pair = py::reinterpret_borrow<py::sequence>(failure);
      step.failures.push_back({pair[0].cast<std::string>(), pair[1].cast<std::string>()});
    }
    program_.runs_kernels = true;
    program_.max_args = std::max(program_.max_args, step.args.size());
    program_.kernels.push_back(std::move(step));
    add(StepKind::Kernel, program_.kernels.size() - 1);
  }

  static int64_t double_bits(py::handle value) {
    double number = plain_object(value).cast<double>();
    int64_t bits;
    std::memcpy(&bits, &number, sizeof bits);
    return bits;
  }

  void extern_call(py::dict item) {
    program_.externs.push_back(bind_extern(item, reader_));
    program_.dispatches = true;
    // Operators of others may wait for threads that want the GIL, as collectives do for those of
    // their process group.
    may_wait_ |= program_.externs.back().op.schema().getNamespace() != "aten";
    add(StepKind::Extern, program_.externs.size() - 1);
  }

  PyNode python_node(py::handle item) {
    PyNode node;
    py::object value;
    if (is_tagged(item, "ref", value)) {
      node.kind = PyNode::Kind::Slot;
      node.index = reader_.read(value);
      program_.slots[node.index].needs_tensor = true;
      reader_.pin(node.index);
    } else if (is_tagged(item, "expr", value)) {
      node.kind = PyNode::Kind::Expression;
      node.index = reader_.expression(value.cast<std::string>());
    } else if (is_dynamic(item)) {
      node.kind = PyNode::Kind::Tuple;
      for (py::handle element : sequence(item)) {
        node.items.push_back(python_node(element));
      }
    } else {
      node.object = reader_.keep(plain_object(item));
    }
    return node;
  }

  void pycall(py::dict item) {
    PyCallStep step;
    py::str name(item["callable"]);
    if (!callables_.contains(name)) {
      fail("no callable named " + name.cast<std::string>() + " was given");
    }
    step.function = reader_.keep(callables_[name]);
    for (py::handle arg : sequence(item["args"])) {
      step.args.push_back(python_node(arg));
    }
    py::dict keywords(item["kwargs"]);
    if (!keywords.empty()) {
      step.keywords = reader_.keep(py::tuple(py::list(keywords)));
      for (auto [key, value] : keywords) {
        step.args.push_back(python_node(value));
      }
    }
    step.outs = reader_.outs(item["outs"]);
    program_.runs_python = true;
    program_.dispatches = true;
    program_.pycalls.push_back(std::move(step));
    add(StepKind::PyCall, program_.pycalls.size() - 1);
  }

  TritonArg triton_arg(py::handle pair) {
    TritonArg arg;
    py::sequence parts = sequence(pair);
    if (parts.size() != 2) {
      fail("a launch argument is a pair");
    }
    std::string type = py::object(parts[0]).cast<std::string>();
    py::object value = parts[1];
    py::object inner;
    if (type == "ptr") {
      arg.kind = TritonArg::Kind::Pointer;
      if (!is_tagged(value, "ref", inner)) {
        fail("a ptr argument must be a slot");
      }
      arg.slot = pointer(inner, c10::kCUDA);
    } else if (type == "f32" || type == "f64") {
      arg.kind = type == "f32" ? TritonArg::Kind::Float32 : TritonArg::Kind::Float64;
      arg.number = plain_object(value).cast<double>();
    } else if (type[0] == 'i' || type[0] == 'u') {
      arg.kind = TritonArg::Kind::Integer;
      bool symbolic = is_tagged(value, "expr", inner);
      arg.integer = reader_.size(symbolic ? inner : value);
    } else if (type != "null") {
      fail("unknown argument type '" + type + "'");
    }
    return arg;
  }

  void triton(py::dict item) {
    TritonStep step;
    step.name = item["kernel"].cast<std::string>();
    c10::Device device(item["device"].cast<std::string>());
    if (!device.is_cuda()) {
      fail("GPU kernels run on CUDA devices only");
    }
    int index = device.index();
    if (!device.has_index()) {
      index = py::module_::import("torch").attr("cuda").attr("current_device")().cast<int>();
    }
    std::vector<int>& devices = program_.cuda_devices;
    auto known = std::find(devices.begin(), devices.end(), index);
    step.device = static_cast<size_t>(known - devices.begin());
    if (known == devices.end()) {
      devices.push_back(index);
    }
    auto grid = reader_.sizes(item["grid"]);
    if (grid.size() != 3) {
      fail("the grid must have three dimensions");
    }
    std::copy(grid.begin(), grid.end(), step.grid);
    step.threads = static_cast<unsigned>(32 * plain_integer(item["num_warps"], "num_warps"));
    std::vector<int32_t> slots;
    for (py::handle pair : sequence(item["args"])) {
      step.args.push_back(triton_arg(pair));
      slots.push_back(step.args.back().slot);
    }
    written(item["writes"], slots, step.writes);
    step.function = CudaFunction::load(item["cubin"].cast<std::string>(),
                                       item["function"].cast<std::string>(), index,
                                       static_cast<unsigned>(plain_integer(item["shared"], "shared")));
    program_.max_args = std::max(program_.max_args, step.args.size());
    program_.tritons.push_back(std::move(step));
    add(StepKind::Triton, program_.tritons.size() - 1);
  }

  // Lifetimes are found from the reads; a Free only says that nothing may come after it.
  void free(py::dict item) {
    reader_.uses.pop_back();
    for (py::handle slot : sequence(item["slots"])) {
      int64_t index = plain_integer(slot, "slot");
      reader_.kill(index);
    }
  }

  void outputs() {
    reader_.uses.emplace_back();
    py::object value;
    for (py::handle item : sequence(spec_["outputs"])) {
      Output output{Output::Kind::Object};
      if (is_tagged(item, "ref", value)) {
        output.kind = Output::Kind::Slot;
        output.index = reader_.read(value);
        program_.slots[output.index].needs_tensor = true;
        reader_.pin(output.index);
      } else if (is_tagged(item, "expr", value)) {
        output.kind = Output::Kind::Expression;
        output.index = reader_.expression(value.cast<std::string>());
      } else {
        output.object = reader_.keep(plain_object(item));
      }
      program_.outputs.push_back(output);
    }
    std::vector<bool> seen(program_.slots.size(), false);
    for (size_t i = program_.outputs.size(); i-- > 0;) {
      Output& output = program_.outputs[i];
      if (output.kind == Output::Kind::Slot) {
        output.last = !seen[output.index];
        seen[output.index] = true;
      }
    }
  }

  void mutated_inputs() {
    for (py::handle slot : sequence(spec_["mutated_inputs"])) {
      int64_t index = plain_integer(slot, "slot");
      if (index < 0 || index >= static_cast<int64_t>(program_.inputs.size()) ||
          program_.inputs[index].kind != InputKind::Tensor) {
        fail("mutated slot " + std::to_string(index) + " is no tensor input");
      }
      program_.inputs[index].written = true;
      program_.mutated_inputs.push_back(static_cast<int32_t>(index));
    }
  }

  void fixed_inputs() {
    for (size_t i = 0; i < program_.inputs.size(); ++i) {
      const InputSpec& input = program_.inputs[i];
      if (!input.has_layout || !input.layout.fixed) {
        program_.only_fixed_inputs = false;
        return;
      }
      FixedInput fixed;
      fixed.dtype = c10::scalarTypeToTypeMeta(input.layout.dtype);
      fixed.device = input.device;
      fixed.needs_data = program_.slots[i].needs_data;
      fixed.written = input.written;
      fixed.alignment = input.alignment;
      fixed.dim = static_cast<uint32_t>(input.layout.fixed_size.size());
      fixed.numbers = static_cast<uint32_t>(program_.fixed_numbers.size());
      for (const auto* numbers : {&input.layout.fixed_size, &input.layout.fixed_stride}) {
        program_.fixed_numbers.insert(program_.fixed_numbers.end(), numbers->begin(), numbers->end());
      }
      program_.fixed_inputs.push_back(fixed);
    }
  }

  Program& program_;
  SpecReader reader_;
  py::dict spec_;
  py::sequence constants_;
  py::dict callables_;
  size_t work_ = 0;  // known bytes
  bool may_wait_ = false;
};

}  // namespace

std::unique_ptr<Program> parse_program(PyObject* spec, const char* library, PyObject* constants,
                                       PyObject* callables, bool keeps_memory) {
  auto program = std::make_unique<Program>();
  program->keeps_memory = keeps_memory;
  PlanParser(*program, py::reinterpret_borrow<py::dict>(spec),
             py::reinterpret_borrow<py::sequence>(constants),
             py::reinterpret_borrow<py::dict>(callables))
      .parse(library);
  return program;
}

Program::~Program() {
  for (PyObject* object : objects) {
    Py_DECREF(object);
  }
  // Tensors made by kernels do not point into the library, so it may go.
  if (library != nullptr) {
    dlclose(library);
  }
}

}  // namespace minidynamo
