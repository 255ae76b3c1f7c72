// DifferentiableGraph: a compiled forward and a compiled backward graph, joined by a node of
// autograd. What AOTAutograd's wrappers do in Python for every call, for graphs of plain tensors
// that write to nothing autograd knows of and return no views of inputs. Anything else that a call
// may meet (other modes, transforms, inputs without gradients) goes to the wrapped callable.
//
// differentiable.cpp       a call, and the node
// differentiable_views.cpp  version counters and views among its inputs and results
// differentiable_type.cpp  the Python type
#ifndef MINIDYNAMO_DIFFERENTIABLE_H
#define MINIDYNAMO_DIFFERENTIABLE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

namespace minidynamo {

// What the backward graph takes at one place.
struct Argument {
  enum class Kind : uint8_t { Input, Result, Tangent };
  Kind kind;
  bool number;   // no tensor
  size_t index;  // of the forward's input or result; of the tangent
  std::vector<size_t> tangents;  // without all of these nobody reads it
};

// The memory that the backward graph expects of a tangent.
struct Tangent {
  bool any = false;  // a memory format instead of strides
  c10::MemoryFormat format = c10::MemoryFormat::Contiguous;
  std::vector<int64_t> size;
  std::vector<int64_t> stride;
};

// A saved result that is a view: of which input or output it shares the version counter.
struct Shared {
  size_t result;
  bool of_input;
  size_t index;
};

// An output that is one of several views that an operator gave at once (`chunk`): to write to it, or
// to use it after a write to what it is a view of, is an error.
struct Part {
  size_t output;
  bool of_input;
  size_t index;  // of the input, or of the first of the outputs that share memory
};

// An input or output that eager would have saved. Of one of these tangents it would look at it.
struct Watched {
  bool of_input;
  size_t index;
  std::vector<size_t> tangents;
};

struct Layouts {
  size_t inputs = 0;
  size_t outputs = 0;                // results that the caller gets; the others are saved
  std::vector<size_t> differentiable;  // outputs, in the order of the tangents
  std::vector<size_t> gradients;       // inputs that get one, in order
  std::vector<Argument> arguments;
  std::vector<Tangent> tangents;
  std::vector<Shared> shared;
  std::vector<Part> parts;
  std::vector<Watched> watched;
  // By tangent: those that eager cannot take once this one was, unless the graph is retained.
  std::vector<std::vector<size_t>> together;
  std::vector<size_t> moved;  // inputs whose version counter a call moves
  std::vector<size_t> kept;   // inputs whose version counter stays, though they are written to
  bool deterministic = false;
};

struct DifferentiableGraph {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyObject* dict;
  PyObject* weakrefs;
  PyObject* wrapped;   // AOTAutograd's callable
  PyObject* forward;   // a PlanExecutor, or null until armed
  PyObject* backward;  // takes a list
  PyObject* partial;   // the same for tangents some of which are None
  PyObject* replay;    // takes inputs and tangents, gives gradients with a history; or None
  std::shared_ptr<Layouts>* layouts;
};

const at::Tensor& result_at(PyObject* results, size_t index);

// Saved views of inputs and outputs notice when those are written to.
void share_versions(const Layouts& layouts, PyObject* const* args, PyObject* results);

// Makes views of the outputs that are `parts`: of an input, or of memory that nobody else has.
void make_views(const Layouts& layouts, PyObject* const* args, PyObject* results);

// A call of a DifferentiableGraph, by the vectorcall protocol.
PyObject* differentiable_call(PyObject* object, PyObject* const* args, size_t flags, PyObject* names);

}  // namespace minidynamo

#endif
