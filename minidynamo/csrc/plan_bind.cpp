// An extern step, bound to its operator's schema: each argument a ready value or a recipe for one.
#include "plan_parse.h"

#include <torch/csrc/jit/python/pybind_utils.h>

namespace minidynamo {

namespace {

c10::TypePtr without_optional(c10::TypePtr type) {
  if (auto optional = type->cast<c10::OptionalType>()) {
    return optional->getElementType();
  }
  return type;
}

// Operators of torch itself keep no reference to their arguments, and say in their schema when a
// result shares memory with one, but for a few, and for sparse tensors, which hold the indices and
// values that they are made of. Composite ones may return an argument without saying so, and about
// those of other libraries nothing is known.
bool keeps_nothing(const c10::OperatorHandle& op) {
  static const std::vector<std::string> known = {"aten",  "mkldnn",    "mkl",       "onednn",
                                                 "prims", "quantized", "minidynamo"};
  static const std::vector<std::string> silent = {"aten::_unsafe_view", "aten::lift",
                                                  "aten::native_dropout"};
  auto name_space = op.operator_name().getNamespace();
  bool ours = name_space && std::any_of(known.begin(), known.end(), [&](const std::string& name) {
                return name_space.value() == name.c_str();
              });
  const std::string& full_name = op.operator_name().name;
  if (!ours || full_name.find("sparse") != std::string::npos ||
      std::find(silent.begin(), silent.end(), full_name) != silent.end() ||
      op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) {
    return false;
  }
  const c10::FunctionSchema& schema = op.schema();
  for (const c10::Argument& argument : schema.arguments()) {
    if (argument.alias_info() != nullptr && !argument.is_out()) {
      return false;
    }
  }
  return true;
}

class ExternBinder {
 public:
  ExternBinder(SpecReader& reader, const c10::OperatorHandle& op)
      : reader_(reader), pins_(!keeps_nothing(op)) {}

  std::vector<int32_t> written;  // slots among the arguments that the operator writes into

  ArgNode bind(const c10::Argument& argument, py::handle item) {
    try {
      writes_ = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
      // A number for a tensor, as Python gives it: it does not decide the dtype of what is computed.
      bool is_tensor = argument.real_type()->kind() == c10::TypeKind::TensorType;
      torch::jit::ToIValueAllowNumbersAsTensors guard(is_tensor);
      return node(item, argument.real_type());
    } catch (std::exception& error) {
      fail("argument '" + argument.name() + "': " + error.what());
    }
  }

 private:
  ArgNode node(py::handle item, const c10::TypePtr& type) {
    ArgNode result;
    if (!is_dynamic(item)) {
      result.value = torch::jit::toIValue(plain_object(item), type);
      return result;
    }
    c10::TypePtr inner = without_optional(type);
    py::object value;
    if (is_tagged(item, "ref", value)) {
      return slot(value, inner);
    }
    if (is_tagged(item, "expr", value)) {
      require_number(inner);
      result.kind = ArgNode::Kind::Expression;
      result.index = reader_.expression(value.cast<std::string>());
      return result;
    }
    return list(item, inner);
  }

  static void require_number(const c10::TypePtr& type) {
    if (type->kind() != c10::TypeKind::IntType && type->kind() != c10::TypeKind::SymIntType &&
        type->kind() != c10::TypeKind::NumberType) {
      fail("an integer cannot be passed as " + type->str());
    }
  }

  ArgNode slot(py::handle value, const c10::TypePtr& type) {
    ArgNode result;
    result.index = reader_.read(value);
    SlotInfo& info = reader_.program.slots[result.index];
    if (info.kind == SlotKind::Integer) {
      require_number(type);
      result.kind = ArgNode::Kind::Integer;
      return result;
    }
    if (type->kind() != c10::TypeKind::TensorType) {
      fail("a tensor cannot be passed as " + type->str());
    }
    info.needs_tensor = true;
    if (writes_) {
      written.push_back(result.index);
      if (info.kind == SlotKind::Input) {
        reader_.program.inputs[result.index].written = true;
      }
    }
    if (pins_) {
      reader_.pin(result.index);
    }
    result.kind = ArgNode::Kind::Slot;
    return result;
  }

  ArgNode list(py::handle items, const c10::TypePtr& type) {
    auto list_type = type->cast<c10::ListType>();
    if (!list_type) {
      fail("a list cannot be passed as " + type->str());
    }
    c10::TypePtr element = list_type->getElementType();
    bool optional = element->kind() == c10::TypeKind::OptionalType;
    ArgNode result;
    if (without_optional(element)->kind() == c10::TypeKind::TensorType) {
      result.kind = optional ? ArgNode::Kind::OptionalTensors : ArgNode::Kind::Tensors;
    } else {
      require_number(element);
      result.kind = ArgNode::Kind::Integers;
    }
    for (py::handle item : sequence(items)) {
      result.items.push_back(node(item, element));
    }
    return result;
  }

  SpecReader& reader_;
  bool pins_;
  bool writes_ = false;
};

py::handle find_argument(const c10::Argument& argument, size_t position, const py::list& args,
                         const py::dict& kwargs, size_t& used) {
  if (!argument.kwarg_only() && position < args.size()) {
    return PyList_GET_ITEM(args.ptr(), static_cast<Py_ssize_t>(position));
  }
  PyObject* found = PyDict_GetItemString(kwargs.ptr(), argument.name().c_str());
  used += found != nullptr;
  return found;
}

}  // namespace

ExternStep bind_extern(py::dict item, SpecReader& reader) {
  std::string name = item["op"].cast<std::string>();
  std::string overload = item["overload"].cast<std::string>();
  auto op = c10::Dispatcher::singleton().findSchema({name, overload});
  if (!op) {
    fail("there is no operator " + name + (overload.empty() ? "" : "." + overload));
  }
  const c10::FunctionSchema& schema = op->schema();
  ExternStep step{*op};
  py::list args(item["args"]);
  py::dict kwargs(item["kwargs"]);
  ExternBinder binder(reader, *op);
  size_t positional = 0;
  size_t used = 0;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    positional += !argument.kwarg_only();
    py::handle value = find_argument(argument, i, args, kwargs, used);
    if (value) {
      step.args.push_back(binder.bind(argument, value));
    } else if (argument.default_value()) {
      step.args.emplace_back();
      step.args.back().value = *argument.default_value();
    } else {
      fail(name + " needs argument '" + argument.name() + "'");
    }
  }
  if (args.size() > positional || used != kwargs.size()) {
    fail(name + " got arguments that its schema does not have");
  }
  step.written = std::move(binder.written);
  step.outs = reader.outs(item["outs"]);
  if (step.outs.size() != schema.returns().size()) {
    fail(name + " returns " + std::to_string(schema.returns().size()) + " values, the step takes " +
         std::to_string(step.outs.size()));
  }
  step.typed = find_typed_call(step);
  return step;
}

}  // namespace minidynamo
