// Operator calls at run time: boxed for any operator, and by their C++ signature for the frequent
// ones, where boxing the arguments would cost as much as a small matrix product.
#include "plan.h"

#include <array>
#include <map>
#include <tuple>
#include <type_traits>
#include <utility>

namespace minidynamo {

namespace {

int64_t integer(const ArgNode& node, const Program& program, const RunState& state) {
  switch (node.kind) {
    case ArgNode::Kind::Integer:
      return state.integers[node.index];
    case ArgNode::Kind::Expression:
      return program.expression(node.index, state);
    default:
      return node.value.toInt();
  }
}

at::Tensor tensor_or_none(const ArgNode& node, const RunState& state) {
  if (node.kind == ArgNode::Kind::Slot) {
    return *state.refs[node.index];
  }
  return node.value.isNone() ? at::Tensor() : node.value.toTensor();
}

c10::IValue build(const ArgNode& node, const Program& program, const RunState& state) {
  switch (node.kind) {
    case ArgNode::Kind::Fixed:
      return node.value;
    case ArgNode::Kind::Slot:
      return *state.refs[node.index];
    case ArgNode::Kind::Integer:
    case ArgNode::Kind::Expression:
      return integer(node, program, state);
    case ArgNode::Kind::Tensors: {
      c10::List<at::Tensor> list;
      list.reserve(node.items.size());
      for (const ArgNode& item : node.items) {
        list.push_back(tensor_or_none(item, state));
      }
      return list;
    }
    case ArgNode::Kind::OptionalTensors: {
      c10::List<std::optional<at::Tensor>> list;
      list.reserve(node.items.size());
      for (const ArgNode& item : node.items) {
        at::Tensor tensor = tensor_or_none(item, state);
        list.push_back(tensor.defined() ? std::optional<at::Tensor>(std::move(tensor))
                                        : std::nullopt);
      }
      return list;
    }
    case ArgNode::Kind::Integers: {
      c10::List<int64_t> list;
      list.reserve(node.items.size());
      for (const ArgNode& item : node.items) {
        list.push_back(integer(item, program, state));
      }
      return list;
    }
  }
  TORCH_CHECK(false, "unknown argument kind");
}

// --- calls by signature -----------------------------------------------------------------------

// Value of one C++ parameter, alive for the call. Typed calls have Fixed and Slot arguments only.
template <class Parameter>
struct Holder {
  Holder(const ArgNode& node, const RunState&) : value(node.value.to<Parameter>()) {}
  Parameter get() { return value; }
  Parameter value;
};

template <>
struct Holder<const at::Tensor&> {
  Holder(const ArgNode& node, const RunState& state) : value(*state.refs[node.index]) {}
  const at::Tensor& get() { return value; }
  const at::Tensor& value;
};

template <>
struct Holder<at::Tensor&> {
  // An out argument: the slot is the plan's own, only the reference to it is read-only.
  Holder(const ArgNode& node, const RunState& state)
      : value(const_cast<at::Tensor&>(*state.refs[node.index])) {}
  at::Tensor& get() { return value; }
  at::Tensor& value;
};

template <>
struct Holder<const std::optional<at::Tensor>&> {
  Holder(const ArgNode& node, const RunState& state) {
    at::Tensor tensor = tensor_or_none(node, state);
    if (tensor.defined()) {
      value = std::move(tensor);
    }
  }
  const std::optional<at::Tensor>& get() { return value; }
  std::optional<at::Tensor> value;
};

template <>
struct Holder<const at::Scalar&> {
  Holder(const ArgNode& node, const RunState&) : value(node.value.toScalar()) {}
  const at::Scalar& get() { return value; }
  at::Scalar value;
};

template <>
struct Holder<c10::SymInt> {
  Holder(const ArgNode& node, const RunState&) : value(node.value.toInt()) {}
  c10::SymInt get() { return value; }
  c10::SymInt value;
};

template <>
struct Holder<c10::SymIntArrayRef> {
  Holder(const ArgNode& node, const RunState&) {
    for (int64_t item : node.value.toIntVector()) {
      value.emplace_back(item);
    }
  }
  c10::SymIntArrayRef get() { return value; }
  c10::SmallVector<c10::SymInt, 4> value;
};

template <>
struct Holder<at::OptionalSymIntArrayRef> {
  Holder(const ArgNode& node, const RunState& state) : defined(!node.value.isNone()) {
    if (defined) {
      items.emplace(node, state);
    }
  }
  at::OptionalSymIntArrayRef get() {
    return defined ? at::OptionalSymIntArrayRef(items->get()) : std::nullopt;
  }
  bool defined;
  std::optional<Holder<c10::SymIntArrayRef>> items;
};

template <size_t N>
struct Holder<std::array<bool, N>> {
  Holder(const ArgNode& node, const RunState&) {
    auto list = node.value.toBoolList();
    for (size_t i = 0; i < N; ++i) {
      value[i] = list.get(i);
    }
  }
  std::array<bool, N> get() { return value; }
  std::array<bool, N> value;
};

void store_tensor(const OutNode& out, at::Tensor&& tensor, const Program& program, RunState& state) {
  if (out.kind == OutNode::Kind::Slot) {
    set_tensor(out.index, std::move(tensor), program, state);
  }
}

template <class Result>
struct Store;

template <>
struct Store<at::Tensor> {
  static void store(at::Tensor&& result, const ExternStep& step, const Program& program,
                    RunState& state) {
    store_tensor(step.outs[0], std::move(result), program, state);
  }
};

template <>
struct Store<at::Tensor&> {
  static void store(at::Tensor& result, const ExternStep& step, const Program& program,
                    RunState& state) {
    store_tensor(step.outs[0], at::Tensor(result), program, state);
  }
};

template <class... Tensors>
struct Store<std::tuple<Tensors...>> {
  static void store(std::tuple<Tensors...>&& result, const ExternStep& step, const Program& program,
                    RunState& state) {
    size_t index = 0;
    std::apply(
        [&](Tensors&... tensors) {
          (store_tensor(step.outs[index++], std::move(tensors), program, state), ...);
        },
        result);
  }
};

template <class Signature>
struct Typed;

template <class Result, class... Parameters>
struct Typed<Result(Parameters...)> {
  static void call(const ExternStep& step, const Program& program, RunState& state) {
    call(step, program, state, std::index_sequence_for<Parameters...>());
  }

  template <size_t... I>
  static void call(const ExternStep& step, const Program& program, RunState& state,
                   std::index_sequence<I...>) {
    std::tuple<Holder<Parameters>...> holders{Holder<Parameters>(step.args[I], state)...};
    auto handle = step.op.typed<Result(Parameters...)>();
    Store<Result>::store(handle.call(std::get<I>(holders).get()...), step, program, state);
  }

  template <class Parameter>
  static bool fits(const ArgNode& arg) {
    bool tensor = std::is_same_v<std::decay_t<Parameter>, at::Tensor>;
    return !tensor || arg.kind == ArgNode::Kind::Slot;
  }

  static bool fits(const ExternStep& step) {
    size_t index = 0;
    if (step.args.size() != sizeof...(Parameters) ||
        !(fits<Parameters>(step.args[index++]) && ...)) {
      return false;
    }
    try {
      step.op.typed<Result(Parameters...)>();  // compares with the registered C++ signature
    } catch (const c10::Error&) {
      return false;
    }
    return true;
  }
};

struct TypedEntry {
  bool (*fits)(const ExternStep&);
  TypedCall call;
};

template <class Signature>
constexpr TypedEntry entry() {
  return {&Typed<Signature>::fits, &Typed<Signature>::call};
}

using T = at::Tensor;
using OptionalT = std::optional<at::Tensor>;
using Ints = c10::SymIntArrayRef;

const std::map<std::string, TypedEntry>& typed_entries() {
  static const std::map<std::string, TypedEntry> entries = {
      {"aten::mm", entry<T(const T&, const T&)>()},
      {"aten::mm.out", entry<T&(const T&, const T&, T&)>()},
      {"aten::bmm", entry<T(const T&, const T&)>()},
      {"aten::bmm.out", entry<T&(const T&, const T&, T&)>()},
      {"aten::addmm",
       entry<T(const T&, const T&, const T&, const at::Scalar&, const at::Scalar&)>()},
      {"aten::addmm.out",
       entry<T&(const T&, const T&, const T&, const at::Scalar&, const at::Scalar&, T&)>()},
      {"aten::baddbmm",
       entry<T(const T&, const T&, const T&, const at::Scalar&, const at::Scalar&)>()},
      {"aten::baddbmm.out",
       entry<T&(const T&, const T&, const T&, const at::Scalar&, const at::Scalar&, T&)>()},
      {"aten::convolution",
       entry<T(const T&, const T&, const OptionalT&, Ints, Ints, Ints, bool, Ints, c10::SymInt)>()},
      {"aten::convolution_backward",
       entry<std::tuple<T, T, T>(const T&, const T&, const T&, at::OptionalSymIntArrayRef, Ints, Ints,
                                 Ints, bool, Ints, c10::SymInt, std::array<bool, 3>)>()},
      {"aten::_scaled_dot_product_flash_attention_for_cpu",
       entry<std::tuple<T, T>(const T&, const T&, const T&, double, bool, const OptionalT&,
                              std::optional<double>)>()},
      {"aten::_scaled_dot_product_flash_attention_for_cpu_backward",
       entry<std::tuple<T, T, T>(const T&, const T&, const T&, const T&, const T&, const T&, double,
                                 bool, const OptionalT&, std::optional<double>)>()},
  };
  return entries;
}

}  // namespace

TypedCall find_typed_call(const ExternStep& step) {
  for (const ArgNode& arg : step.args) {
    if (arg.kind != ArgNode::Kind::Fixed && arg.kind != ArgNode::Kind::Slot) {
      return nullptr;
    }
  }
  const c10::OperatorName& name = step.op.operator_name();
  auto found = typed_entries().find(name.overload_name.empty() ? name.name
                                                               : name.name + "." + name.overload_name);
  return found != typed_entries().end() && found->second.fits(step) ? found->second.call : nullptr;
}

namespace {

void call_boxed(const ExternStep& step, const Program& program, RunState& state) {
  torch::jit::Stack stack;
  stack.reserve(std::max(step.args.size(), step.outs.size()));
  for (const ArgNode& arg : step.args) {
    stack.push_back(build(arg, program, state));
  }
  step.op.callBoxed(stack);
  for (size_t i = 0; i < step.outs.size(); ++i) {
    store_result(step.outs[i], std::move(stack[i]), program, state);
  }
}

}  // namespace

void run_extern(const ExternStep& step, const Program& program, RunState& state) {
  if (step.typed != nullptr) {
    step.typed(step, program, state);
  } else {
    call_boxed(step, program, state);
  }
  for (int32_t slot : step.written) {  // an out argument of another size is given other memory
    if (program.slots[slot].needs_data) {
      state.data[slot] = state.refs[slot]->mutable_data_ptr();
    }
  }
}

}  // namespace minidynamo
