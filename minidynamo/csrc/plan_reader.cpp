// The parser's view of slots, sizes, symbols and arguments.
#include "plan_parse.h"

#include <ATen/EmptyTensor.h>
#include <torch/csrc/Dtype.h>

#include <algorithm>

namespace minidynamo {

void fail(const std::string& message) {
  throw py::value_error(message);
}

int64_t plain_integer(py::handle value, const char* what) {
  if (!PyLong_Check(value.ptr()) || PyBool_Check(value.ptr())) {
    fail(std::string(what) + " must be an integer, not " + Py_TYPE(value.ptr())->tp_name);
  }
  return value.cast<int64_t>();
}

py::sequence sequence(py::handle value) {
  if (!PyList_Check(value.ptr()) && !PyTuple_Check(value.ptr())) {
    fail(std::string("a list is needed, not ") + Py_TYPE(value.ptr())->tp_name);
  }
  return py::reinterpret_borrow<py::sequence>(value);
}

namespace {

int deeper(int depth) {
  if (depth >= kMaxDepth) {
    fail("lists are nested too deeply");
  }
  return depth + 1;
}

}  // namespace

int32_t SpecReader::read(py::handle slot) {
  int64_t index = plain_integer(slot, "slot");
  if (index < 0 || index >= static_cast<int64_t>(program.slots.size()) ||
      program.slots[index].kind == SlotKind::Undefined || dead_[index]) {
    fail("slot " + std::to_string(index) + " has no value here");
  }
  if (!uses.empty()) {
    uses.back().reads.push_back(static_cast<int32_t>(index));
  }
  return static_cast<int32_t>(index);
}

int32_t SpecReader::read_tensor(py::handle slot, bool needs_tensor) {
  int32_t index = read(slot);
  SlotInfo& info = program.slots[index];
  if (info.kind == SlotKind::Integer) {
    fail("slot " + std::to_string(index) + " is no tensor");
  }
  info.needs_tensor |= needs_tensor;
  return index;
}

int32_t SpecReader::define(py::handle slot, SlotKind kind) {
  int64_t index = plain_integer(slot, "slot");
  if (index < 0 || index >= static_cast<int64_t>(program.slots.size())) {
    fail("slot " + std::to_string(index) + " is out of range");
  }
  SlotInfo& info = program.slots[index];
  if (info.kind != SlotKind::Undefined) {
    fail("slot " + std::to_string(index) + " gets a second value");
  }
  info.kind = kind;
  if (!uses.empty()) {
    uses.back().defines.push_back(static_cast<int32_t>(index));
  }
  return static_cast<int32_t>(index);
}

void SpecReader::resize(size_t n_slots) {
  program.slots.resize(n_slots);
  pinned.resize(n_slots, false);
  dead_.resize(n_slots, false);
}

void SpecReader::kill(int64_t slot) {
  if (slot < 0 || slot >= static_cast<int64_t>(program.slots.size()) ||
      program.slots[slot].kind == SlotKind::Undefined || dead_[slot]) {
    fail("slot " + std::to_string(slot) + " has no value here");
  }
  dead_[slot] = true;
}

Size SpecReader::size(py::handle value) {
  if (PyUnicode_Check(value.ptr())) {
    return Size{0, expression(value.cast<std::string>())};
  }
  return Size{plain_integer(value, "size"), kNone};
}

std::vector<Size> SpecReader::sizes(py::handle values) {
  std::vector<Size> result;
  for (py::handle value : sequence(values)) {
    result.push_back(size(value));
  }
  return result;
}

int32_t SpecReader::symbol(const std::string& name, bool late) {
  auto [position, inserted] = symbols_.emplace(name, static_cast<int64_t>(symbols_.size()));
  if (!inserted) {
    fail("symbol " + name + " is defined twice");
  }
  late_.push_back(late);
  program.n_symbols = symbols_.size();
  return static_cast<int32_t>(position->second);
}

int32_t SpecReader::expression(const std::string& text) {
  auto [position, inserted] =
      expression_ids_.emplace(text, static_cast<int32_t>(program.expressions.size()));
  if (inserted) {
    Expression parsed = parse_expression(text, symbols_);
    for (const ExprInstruction& instruction : parsed.code) {
      parsed.late |= instruction.op == ExprOp::Symbol && late_[instruction.value];
    }
    program.expressions.push_back(std::move(parsed));
  }
  return position->second;
}

c10::ScalarType SpecReader::dtype(py::handle name) {
  std::string key = name.cast<std::string>();
  auto found = dtypes_.find(key);
  if (found == dtypes_.end()) {
    py::object object = py::module_::import("torch").attr(key.c_str());
    if (!THPDtype_Check(object.ptr())) {
      fail("'" + key + "' is no dtype");
    }
    found = dtypes_.emplace(key, reinterpret_cast<THPDtype*>(object.ptr())->scalar_type).first;
  }
  return found->second;
}

Layout SpecReader::layout(py::handle size, py::handle stride, py::handle dtype_name) {
  Layout layout;
  layout.size = sizes(size);
  layout.stride = sizes(stride);
  layout.dtype = dtype(dtype_name);
  if (layout.size.size() != layout.stride.size()) {
    fail("as many strides as sizes are needed");
  }
  for (const auto* numbers : {&layout.size, &layout.stride}) {
    for (const Size& number : *numbers) {
      layout.fixed &= number.expression == kNone;
      if (number.value < 0) {
        fail("sizes and strides must not be negative");
      }
    }
  }
  if (!layout.fixed) {
    return layout;
  }
  int64_t expected = 1;
  layout.contiguous = true;
  for (size_t i = layout.size.size(); i-- > 0;) {
    layout.contiguous &= layout.stride[i].value == expected;
    if (__builtin_mul_overflow(expected, std::max<int64_t>(layout.size[i].value, 1), &expected)) {
      fail("the size is too large");
    }
  }
  for (size_t i = 0; i < layout.size.size(); ++i) {
    layout.fixed_size.push_back(layout.size[i].value);
    layout.fixed_stride.push_back(layout.stride[i].value);
  }
  layout.nbytes = at::detail::computeStorageNbytes(layout.fixed_size, layout.fixed_stride,
                                                   c10::elementSize(layout.dtype));
  return layout;
}

OutNode SpecReader::out(py::handle value, int depth) {
  OutNode node;
  py::object symbol_name;
  if (value.is_none()) {
    return node;
  }
  if (is_tagged(value, "define", symbol_name)) {
    node.kind = OutNode::Kind::Symbol;
    node.index = symbol(symbol_name.cast<std::string>(), true);
  } else if (PyLong_Check(value.ptr())) {
    node.kind = OutNode::Kind::Slot;
    node.index = define(value, SlotKind::Value);
  } else {
    node.kind = OutNode::Kind::List;
    node.items = outs(value, deeper(depth));
  }
  return node;
}

std::vector<OutNode> SpecReader::outs(py::handle values, int depth) {
  std::vector<OutNode> nodes;
  for (py::handle value : sequence(values)) {
    nodes.push_back(out(value, depth));
  }
  return nodes;
}

PyObject* SpecReader::keep(py::object object) {
  program.objects.push_back(object.release().ptr());
  return program.objects.back();
}

bool is_tagged(py::handle item, const char* tag, py::object& value) {
  if (!PyDict_Check(item.ptr())) {
    return false;
  }
  PyObject* found = PyDict_GetItemString(item.ptr(), tag);
  if (found == nullptr || PyDict_GET_SIZE(item.ptr()) != 1) {
    return false;
  }
  value = py::reinterpret_borrow<py::object>(found);
  return true;
}

bool is_dynamic(py::handle item, int depth) {
  py::object value;
  if (is_tagged(item, "ref", value) || is_tagged(item, "expr", value)) {
    return true;
  }
  if (PyList_Check(item.ptr()) || PyTuple_Check(item.ptr())) {
    for (py::handle element : sequence(item)) {
      if (is_dynamic(element, deeper(depth))) {
        return true;
      }
    }
  }
  return false;
}

py::object plain_object(py::handle item, int depth) {
  py::object value;
  if (PyList_Check(item.ptr()) || PyTuple_Check(item.ptr())) {
    py::list list;
    for (py::handle element : sequence(item)) {
      list.append(plain_object(element, deeper(depth)));
    }
    return std::move(list);
  }
  if (!PyDict_Check(item.ptr())) {
    return py::reinterpret_borrow<py::object>(item);
  }
  py::module_ torch = py::module_::import("torch");
  for (const char* tag : {"dtype", "layout", "memory_format"}) {
    if (is_tagged(item, tag, value)) {
      return torch.attr(value);
    }
  }
  if (is_tagged(item, "device", value)) {
    return torch.attr("device")(value);
  }
  if (is_tagged(item, "float", value)) {
    return py::float_(value);
  }
  if (is_tagged(item, "complex", value)) {
    py::sequence parts = sequence(value);
    if (parts.size() != 2) {
      fail("a complex number has two parts");
    }
    return py::module_::import("builtins")
        .attr("complex")(plain_object(parts[0], depth), plain_object(parts[1], depth));
  }
  fail("not an argument: " + py::repr(item).cast<std::string>());
}

}  // namespace minidynamo
