// What each step of a plan does.
#include "plan.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/record_function.h>
#include <c10/core/Allocator.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/object_ptr.h>

#include <cstring>
#include <optional>

#include "plan_blocks.h"

namespace minidynamo {

namespace {

using Numbers = c10::SmallVector<int64_t, 8>;

Numbers numbers(const std::vector<Size>& sizes, const Program& program, const RunState& state) {
  Numbers result;
  for (const Size& size : sizes) {
    result.push_back(program.number(size, state));
    TORCH_CHECK_VALUE(result.back() >= 0, "a size or stride is negative: ", result.back());
  }
  return result;
}

// A tensor on new memory, yet without a size.
at::Tensor empty_bytes(size_t nbytes, c10::ScalarType dtype, c10::Device device) {
  c10::Storage storage(c10::Storage::use_byte_size_t(), static_cast<int64_t>(nbytes),
                       allocate_block(nbytes, device), c10::GetAllocator(device.type()),
                       /*resizable=*/true);
  return at::detail::make_tensor<c10::TensorImpl>(std::move(storage), plain_keys(device),
                                                  c10::scalarTypeToTypeMeta(dtype));
}

void check_inside(const c10::Storage& storage, c10::IntArrayRef size, c10::IntArrayRef stride,
                  size_t itemsize, int64_t offset) {
  TORCH_CHECK(offset >= 0, "the offset of a view is negative: ", offset);
  size_t needed = at::detail::computeStorageNbytes(size, stride, itemsize, offset);
  TORCH_CHECK(needed <= storage.nbytes() || c10::multiply_integers(size) == 0,
              "a view of size ", size, " and stride ", stride, " at offset ", offset,
              " does not fit in a storage of ", storage.nbytes(), " bytes");
}

// A tensor on the storage of `base`.
at::Tensor make_view(const at::Tensor& base, c10::ScalarType dtype, c10::IntArrayRef size,
                     c10::IntArrayRef stride, int64_t offset) {
  check_inside(base.storage(), size, stride, c10::elementSize(dtype), offset);
  at::Tensor view = at::detail::make_tensor<c10::TensorImpl>(
      c10::TensorImpl::VIEW, c10::Storage(base.storage()), base.key_set(),
      c10::scalarTypeToTypeMeta(dtype));
  view.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride, offset);
  return view;
}

void run_alloc(const AllocStep& step, const Program& program, RunState& state) {
  set_tensor(step.slot, allocate(step.layout, step.device, program, state), program, state);
}

void run_reuse(const ReuseStep& step, const Program& program, RunState& state) {
  at::Tensor source = std::move(state.tensors[step.source]);
  Numbers size = numbers(step.layout.size, program, state);
  Numbers stride = numbers(step.layout.stride, program, state);
  int64_t bytes = source.storage_offset() * static_cast<int64_t>(source.itemsize());
  auto itemsize = static_cast<int64_t>(c10::elementSize(step.layout.dtype));
  TORCH_CHECK_VALUE(bytes % itemsize == 0, "reused memory is not aligned for its new dtype");
  set_tensor(step.slot, make_view(source, step.layout.dtype, size, stride, bytes / itemsize), program,
             state);
}

void run_view(const ViewStep& step, bool tracked, const Program& program, RunState& state) {
  const at::Tensor& base = *state.refs[step.base];
  Numbers size = numbers(step.layout.size, program, state);
  Numbers stride = numbers(step.layout.stride, program, state);
  int64_t offset = program.number(step.offset, state) + (step.relative ? base.storage_offset() : 0);
  if (tracked) {
    check_inside(base.storage(), size, stride, base.itemsize(), offset);
    set_tensor(step.slot, at::as_strided(base, size, stride, offset), program, state);
    return;
  }
  at::Tensor view = make_view(base, base.scalar_type(), size, stride, offset);
  if (!base.is_inference()) {
    // Autograd notices writes to the base between the forward and the backward pass.
    view.unsafeGetTensorImpl()->set_version_counter(
        base.unsafeGetTensorImpl()->version_counter());
  }
  set_tensor(step.slot, std::move(view), program, state);
}

// As inductor/runtime/triton_launch.py has it.
constexpr uintptr_t kGpuAlignment = 16;

bool same_strides(const at::Tensor& tensor, const Numbers& stride) {
  for (size_t i = 0; i < stride.size(); ++i) {
    if (tensor.size(i) != 1 && tensor.stride(i) != stride[i]) {
      return tensor.numel() == 0;
    }
  }
  return true;
}

void run_restride(const RestrideStep& step, const Program& program, RunState& state) {
  const at::Tensor& source = *state.refs[step.source];
  Numbers size = numbers(step.layout.size, program, state);
  Numbers stride = numbers(step.layout.stride, program, state);
  TORCH_CHECK_VALUE(source.defined() && source.sizes() == c10::IntArrayRef(size) &&
                        source.scalar_type() == step.layout.dtype,
                    "an operator was expected to give ", c10::toString(step.layout.dtype),
                    c10::IntArrayRef(size), " but gave ",
                    source.defined() ? c10::toString(source.scalar_type()) : "nothing",
                    source.defined() ? source.sizes() : c10::IntArrayRef());
  // slice_scatter and its kin keep their argument's offset: GPU kernels count on 16 bytes.
  bool in_place = source.is_cpu() || source.numel() == 0 ||
                  reinterpret_cast<uintptr_t>(source.const_data_ptr()) % kGpuAlignment == 0;
  if (in_place && same_strides(source, stride)) {
    set_tensor(step.slot, at::Tensor(source), program, state);
    return;
  }
  at::Tensor copy = at::empty_strided(size, stride, source.options());
  copy.copy_(source);
  set_tensor(step.slot, std::move(copy), program, state);
}

// Shows a kernel to the profiler, where one listens.
class Profiled {
 public:
  explicit Profiled(const std::string& name) {
    auto callbacks = at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION);
    if (callbacks.has_value()) {
      guard_.emplace(std::move(*callbacks));
      guard_->before(name);
    }
  }

 private:
  std::optional<at::RecordFunction> guard_;
};

// A check in a kernel failed: what eager raises.
void raise_failure(const KernelStep& step, const int64_t* failure) {
  size_t position = static_cast<size_t>(failure[0] - 1);
  if (position >= step.failures.size()) {
    TORCH_CHECK(false, "kernel ", step.name, ": check ", failure[0], " failed");
  }
  const Failure& what = step.failures[position];
  std::string message = what.message;
  if (size_t hole = message.find("{}"); hole != std::string::npos) {
    message.replace(hole, 2, std::to_string(failure[1]));
  }
  TORCH_CHECK_INDEX(what.type != "IndexError", message);
  TORCH_CHECK_VALUE(what.type != "ValueError", message);
  TORCH_CHECK(false, message);
}

void run_kernel(const KernelStep& step, const Program& program, RunState& state) {
  void** pointers = state.pointers.data();
  for (size_t i = 0; i < step.args.size(); ++i) {
    pointers[i] = state.data[step.args[i]];
  }
  for (size_t i = 0; i < step.offsets.size(); ++i) {
    pointers[i] = static_cast<char*>(pointers[i]) + step.offsets[i];
  }
  Profiled profiled(step.name);
  int64_t failure[2] = {0, 0};
  if (step.fixed) {
    step.function(pointers, step.fixed_sizes.data(), failure);
  } else {
    Numbers sizes;
    for (const Size& size : step.sizes) {
      sizes.push_back(program.number(size, state));
    }
    step.function(pointers, sizes.data(), failure);
  }
  if (failure[0] != 0) {
    raise_failure(step, failure);
  }
}

void run_triton(const TritonStep& step, const Program& program, RunState& state) {
  LaunchValue* values = state.launch_values.data();
  void** params = state.pointers.data();
  for (size_t i = 0; i < step.args.size(); ++i) {
    const TritonArg& arg = step.args[i];
    switch (arg.kind) {
      case TritonArg::Kind::Pointer:
        values[i].pointer = state.data[arg.slot];
        break;
      case TritonArg::Kind::Integer:  // little endian: the low bytes are the narrower integer
        values[i].integer = program.number(arg.integer, state);
        break;
      case TritonArg::Kind::Float32:
        values[i].float32 = static_cast<float>(arg.number);
        break;
      case TritonArg::Kind::Float64:
        values[i].float64 = arg.number;
        break;
      case TritonArg::Kind::Null:
        values[i].pointer = nullptr;
        break;
    }
    params[i] = &values[i];
  }
  unsigned grid[3];
  for (int i = 0; i < 3; ++i) {
    int64_t blocks = program.number(step.grid[i], state);
    TORCH_CHECK_VALUE(blocks >= 0 && blocks <= INT32_MAX, "a grid of ", blocks, " blocks");
    grid[i] = static_cast<unsigned>(blocks);
  }
  Profiled profiled(step.name);
  step.function->launch(grid, step.threads, state.streams[step.device], params);
}

// --- Python -----------------------------------------------------------------------------------

THPObjectPtr python_value(const PyNode& node, const Program& program, const RunState& state) {
  switch (node.kind) {
    case PyNode::Kind::Object:
      return THPObjectPtr(Py_NewRef(node.object));
    case PyNode::Kind::Expression:
      return THPObjectPtr(PyLong_FromLongLong(program.expression(node.index, state)));
    case PyNode::Kind::Slot:
      if (program.slots[node.index].kind == SlotKind::Integer) {
        return THPObjectPtr(PyLong_FromLongLong(state.integers[node.index]));
      }
      return THPObjectPtr(THPVariable_Wrap(*state.refs[node.index]));
    case PyNode::Kind::Tuple:
      break;
  }
  THPObjectPtr tuple(PyTuple_New(static_cast<Py_ssize_t>(node.items.size())));
  for (size_t i = 0; tuple && i < node.items.size(); ++i) {
    THPObjectPtr item = python_value(node.items[i], program, state);
    if (!item) {
      return item;
    }
    PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(i), item.release());
  }
  return tuple;
}

void store_object(const OutNode& out, PyObject* value, const Program& program, RunState& state);

void store_objects(const std::vector<OutNode>& outs, PyObject* values, const Program& program,
                   RunState& state) {
  THPObjectPtr fast(PySequence_Fast(values, "a plan's callable must return a tuple or list here"));
  if (!fast) {
    throw python_error();
  }
  TORCH_CHECK_VALUE(PySequence_Fast_GET_SIZE(fast.get()) == static_cast<Py_ssize_t>(outs.size()),
                    "a plan's callable returned ", PySequence_Fast_GET_SIZE(fast.get()),
                    " values, expected ", outs.size());
  for (size_t i = 0; i < outs.size(); ++i) {
    store_object(outs[i], PySequence_Fast_GET_ITEM(fast.get(), static_cast<Py_ssize_t>(i)), program,
                 state);
  }
}

void store_object(const OutNode& out, PyObject* value, const Program& program, RunState& state) {
  switch (out.kind) {
    case OutNode::Kind::Drop:
      return;
    case OutNode::Kind::List:
      store_objects(out.items, value, program, state);
      return;
    case OutNode::Kind::Symbol:
      state.symbols[out.index] = PyLong_AsLongLong(value);
      if (PyErr_Occurred() != nullptr) {
        throw python_error();
      }
      return;
    case OutNode::Kind::Slot:
      TORCH_CHECK_TYPE(THPVariable_Check(value), "a plan's callable returned ",
                       Py_TYPE(value)->tp_name, ", expected a tensor");
      set_tensor(out.index, at::Tensor(THPVariable_Unpack(value)), program, state);
  }
}

void run_pycall(const PyCallStep& step, const Program& program, RunState& state) {
  pybind11::gil_scoped_acquire gil;
  std::vector<THPObjectPtr> owned;
  std::vector<PyObject*> args;
  for (const PyNode& node : step.args) {
    owned.push_back(python_value(node, program, state));
    if (!owned.back()) {
      throw python_error();
    }
    args.push_back(owned.back().get());
  }
  size_t keywords = step.keywords == nullptr ? 0 : PyTuple_GET_SIZE(step.keywords);
  THPObjectPtr result(
      PyObject_Vectorcall(step.function, args.data(), args.size() - keywords, step.keywords));
  if (!result) {
    throw python_error();
  }
  if (step.outs.size() == 1) {
    store_object(step.outs[0], result, program, state);
  } else if (!step.outs.empty()) {
    store_objects(step.outs, result, program, state);
  }
}

}  // namespace

at::Tensor allocate(const Layout& layout, c10::Device device, const Program& program,
                    const RunState& state) {
  bool direct = device.is_cpu() || (device.is_cuda() && device.has_index());
  if (direct && layout.fixed) {
    at::Tensor tensor = empty_bytes(layout.nbytes, layout.dtype, device);
    c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
    if (layout.contiguous) {
      impl->set_sizes_contiguous(layout.fixed_size);
    } else {
      impl->set_sizes_and_strides(layout.fixed_size, layout.fixed_stride);
    }
    return tensor;
  }
  Numbers size = numbers(layout.size, program, state);
  Numbers stride = numbers(layout.stride, program, state);
  if (!direct) {
    return at::empty_strided(size, stride, c10::TensorOptions(device).dtype(layout.dtype));
  }
  size_t nbytes = at::detail::computeStorageNbytes(size, stride, c10::elementSize(layout.dtype));
  at::Tensor tensor = empty_bytes(nbytes, layout.dtype, device);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride);
  return tensor;
}

void set_tensor(int32_t slot, at::Tensor&& tensor, const Program& program, RunState& state) {
  const SlotInfo& info = program.slots[slot];
  if (info.needs_data) {
    TORCH_CHECK_VALUE(tensor.defined() && tensor.device().type() == info.device_type,
                      "slot ", slot, " should hold a tensor on ", info.device_type, " but holds ",
                      tensor.defined() ? tensor.toString() : "nothing");
    if (tensor.is_conj() || tensor.is_neg()) {
      tensor = tensor.resolve_conj().resolve_neg();
    }
    state.data[slot] = tensor.mutable_data_ptr();
  }
  state.tensors[slot] = std::move(tensor);
}

void store_result(const OutNode& out, c10::IValue&& value, const Program& program,
                  RunState& state) {
  switch (out.kind) {
    case OutNode::Kind::Drop:
      return;
    case OutNode::Kind::Symbol:
      state.symbols[out.index] = value.isBool() ? value.toBool() : value.toInt();
      return;
    case OutNode::Kind::Slot:
      TORCH_CHECK_TYPE(value.isTensor() || value.isNone(), "an operator returned ", value.tagKind(),
                       ", expected a tensor");
      set_tensor(out.index, value.isNone() ? at::Tensor() : std::move(value).toTensor(), program,
                 state);
      return;
    case OutNode::Kind::List: {
      auto list = value.toList();
      TORCH_CHECK_VALUE(list.size() == out.items.size(), "an operator returned ", list.size(),
                        " values, expected ", out.items.size());
      for (size_t i = 0; i < out.items.size(); ++i) {
        store_result(out.items[i], c10::IValue(list.get(i)), program, state);
      }
    }
  }
}

void run_step(const Step& step, const Program& program, RunState& state) {
  std::optional<ViewTracking> tracking;
  if (step.tracked) {
    tracking.emplace();
  }
  switch (step.kind) {
    case StepKind::Alloc:
      return run_alloc(program.allocs[step.index], program, state);
    case StepKind::Reuse:
      return run_reuse(program.reuses[step.index], program, state);
    case StepKind::View:
      return run_view(program.views[step.index], step.tracked, program, state);
    case StepKind::Restride:
      return run_restride(program.restrides[step.index], program, state);
    case StepKind::Kernel:
      return run_kernel(program.kernels[step.index], program, state);
    case StepKind::Extern:
      return run_extern(program.externs[step.index], program, state);
    case StepKind::PyCall:
      return run_pycall(program.pycalls[step.index], program, state);
    case StepKind::Triton:
      return run_triton(program.tritons[step.index], program, state);
  }
}

}  // namespace minidynamo
