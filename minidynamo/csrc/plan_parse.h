// Reading Plan.to_dict() with every check that keeps a wrong plan from crashing the process.
#ifndef MINIDYNAMO_PLAN_PARSE_H
#define MINIDYNAMO_PLAN_PARSE_H

#include "plan.h"

#include <pybind11/pybind11.h>

#include <map>

namespace minidynamo {

namespace py = pybind11;

// Throws the ValueError of a plan that is not well formed.
[[noreturn]] void fail(const std::string& message);
// An int that is no bool. Throws otherwise.
int64_t plain_integer(py::handle value, const char* what);

// A list or tuple, to iterate over. Throws otherwise.
py::sequence sequence(py::handle value);
// How deep argument trees may be.
constexpr int kMaxDepth = 16;

// The state of parsing one plan. All methods throw on bad data; the caller names the step.
class SpecReader {
 public:
  explicit SpecReader(Program& program) : program(program) {}

  Program& program;
  std::vector<SlotUses> uses;  // by step
  std::vector<bool> pinned;    // by slot: may not lie in the arena

  void resize(size_t n_slots);
  // A slot that must have a value: any, or a tensor. Counted as read by the current step.
  int32_t read(py::handle slot);
  int32_t read_tensor(py::handle slot, bool needs_tensor = true);
  // A new slot, given its value by the current step.
  int32_t define(py::handle slot, SlotKind kind);
  // Ends the life of a slot.
  void kill(int64_t slot);
  // The slot may be held by others after the step that reads it.
  void pin(int32_t slot) { pinned[slot] = true; }

  Size size(py::handle value);
  std::vector<Size> sizes(py::handle values);
  int32_t expression(const std::string& text);
  int32_t symbol(const std::string& name, bool late);
  c10::ScalarType dtype(py::handle name);
  Layout layout(py::handle size, py::handle stride, py::handle dtype);
  OutNode out(py::handle value, int depth = 0);
  std::vector<OutNode> outs(py::handle values, int depth = 0);
  // A Python object for an argument without slots and expressions; borrowed from the program.
  PyObject* keep(py::object object);

 private:
  SymbolIds symbols_;
  std::vector<bool> dead_;  // by slot
  std::vector<bool> late_;  // by symbol
  std::map<std::string, int32_t> expression_ids_;
  std::map<std::string, c10::ScalarType> dtypes_;
};

// Whether a dictionary of the argument tree is {tag: value}; then `value` is set.
bool is_tagged(py::handle item, const char* tag, py::object& value);
// The Python object that an argument stands for: numbers, strings, torch dtypes, devices, ...
py::object plain_object(py::handle item, int depth = 0);
// Whether an argument tree has slots or expressions in it.
bool is_dynamic(py::handle item, int depth = 0);

// plan_bind.cpp: an extern step of the spec, bound to its operator's schema.
ExternStep bind_extern(py::dict item, SpecReader& reader);

}  // namespace minidynamo

#endif
