// The Python type DifferentiableGraph.
#include "differentiable.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <structmember.h>
#include <torch/csrc/Exceptions.h>

#include <cstddef>
#include <string>
#include <tuple>
#include <utility>

namespace minidynamo {

namespace py = pybind11;

namespace {

std::vector<size_t> positions(const py::dict& spec, const char* name) {
  return spec[name].cast<std::vector<size_t>>();
}

c10::MemoryFormat memory_format(const std::string& name) {
  if (name == "channels_last") {
    return c10::MemoryFormat::ChannelsLast;
  }
  if (name == "channels_last_3d") {
    return c10::MemoryFormat::ChannelsLast3d;
  }
  if (name != "contiguous_format") {
    throw py::value_error("tangents: no memory format " + name);
  }
  return c10::MemoryFormat::Contiguous;
}

void check_below(const std::vector<size_t>& values, size_t limit, const char* name) {
  for (size_t value : values) {
    if (value >= limit) {
      throw py::value_error(std::string(name) + ": " + std::to_string(value) + " is not below " +
                            std::to_string(limit));
    }
  }
}

// What is known of the tensors that are saved, or that eager would save.
void parse_saves(const py::dict& spec, size_t results, Layouts& layouts) {
  for (py::handle item : spec["shared"]) {
    auto [result, kind, index] = item.cast<std::tuple<size_t, std::string, size_t>>();
    bool of_input = kind == "input";
    check_below({result}, results, "shared");
    check_below({index}, of_input ? layouts.inputs : results, "shared");
    layouts.shared.push_back({result, of_input, index});
  }
  for (py::handle item : spec["parts"]) {
    auto [output, kind, index] = item.cast<std::tuple<size_t, std::string, size_t>>();
    bool of_input = kind == "input";
    check_below({output}, layouts.outputs, "parts");
    check_below({index}, of_input ? layouts.inputs : layouts.outputs, "parts");
    layouts.parts.push_back({output, of_input, index});
  }
  for (py::handle item : spec["watched"]) {
    auto [kind, index, tangents] =
        item.cast<std::tuple<std::string, size_t, std::vector<size_t>>>();
    bool of_input = kind == "input";
    check_below({index}, of_input ? layouts.inputs : layouts.outputs, "watched");
    check_below(tangents, layouts.tangents.size(), "watched");
    layouts.watched.push_back({of_input, index, std::move(tangents)});
  }
  layouts.together = spec["together"].cast<std::vector<std::vector<size_t>>>();
  if (layouts.together.size() != layouts.tangents.size()) {
    throw py::value_error("together: one row is needed for each tangent");
  }
  for (const std::vector<size_t>& row : layouts.together) {
    check_below(row, layouts.tangents.size(), "together");
  }
}

std::shared_ptr<Layouts> parse(const py::dict& spec) {
  auto layouts = std::make_shared<Layouts>();
  layouts->inputs = spec["inputs"].cast<size_t>();
  layouts->outputs = spec["outputs"].cast<size_t>();
  auto results = spec["results"].cast<size_t>();
  layouts->deterministic = spec["deterministic"].cast<bool>();
  layouts->differentiable = positions(spec, "differentiable");
  layouts->gradients = positions(spec, "gradients");
  layouts->moved = positions(spec, "moved");
  layouts->kept = positions(spec, "kept");
  check_below({layouts->outputs}, results + 1, "outputs");
  check_below(layouts->differentiable, layouts->outputs, "differentiable");
  check_below(layouts->gradients, layouts->inputs, "gradients");
  check_below(layouts->moved, layouts->inputs, "moved");
  check_below(layouts->kept, layouts->inputs, "kept");
  for (py::handle item : spec["tangents"]) {
    Tangent tangent;
    if (py::isinstance<py::str>(item)) {
      tangent.any = true;
      tangent.format = memory_format(item.cast<std::string>());
    } else {
      std::tie(tangent.size, tangent.stride) =
          item.cast<std::pair<std::vector<int64_t>, std::vector<int64_t>>>();
    }
    layouts->tangents.push_back(std::move(tangent));
  }
  if (layouts->tangents.size() != layouts->differentiable.size()) {
    throw py::value_error("tangents: one is needed for each differentiable output");
  }
  for (py::handle item : spec["arguments"]) {
    auto [kind, number, index, tangents] =
        item.cast<std::tuple<std::string, bool, size_t, std::vector<size_t>>>();
    Argument::Kind of = kind == "input"    ? Argument::Kind::Input
                        : kind == "result" ? Argument::Kind::Result
                                           : Argument::Kind::Tangent;
    size_t limit = of == Argument::Kind::Input    ? layouts->inputs
                   : of == Argument::Kind::Result ? results
                                                  : layouts->tangents.size();
    check_below({index}, limit, "arguments");
    check_below(tangents, layouts->tangents.size(), "arguments");
    layouts->arguments.push_back({of, number, index, std::move(tangents)});
  }
  parse_saves(spec, results, *layouts);
  return layouts;
}

PyObject* graph_new(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject* wrapped;
  if (!PyArg_ParseTuple(args, "O:DifferentiableGraph", &wrapped)) {
    return nullptr;
  }
  auto* self = reinterpret_cast<DifferentiableGraph*>(type->tp_alloc(type, 0));
  if (self != nullptr) {
    self->vectorcall = differentiable_call;
    self->wrapped = Py_NewRef(wrapped);
    self->layouts = new std::shared_ptr<Layouts>();
  }
  return reinterpret_cast<PyObject*>(self);
}

PyObject* graph_arm(PyObject* object, PyObject* args) {
  auto* self = reinterpret_cast<DifferentiableGraph*>(object);
  PyObject* spec;
  PyObject* forward;
  PyObject* backward;
  PyObject* partial;
  PyObject* replay;
  if (!PyArg_ParseTuple(args, "O!OOOO:arm", &PyDict_Type, &spec, &forward, &backward, &partial,
                        &replay)) {
    return nullptr;
  }
  HANDLE_TH_ERRORS
  try {
    *self->layouts = parse(py::reinterpret_borrow<py::dict>(spec));
  } catch (py::builtin_exception& error) {
    error.set_error();
    return nullptr;
  }
  Py_XSETREF(self->backward, Py_NewRef(backward));
  Py_XSETREF(self->partial, Py_NewRef(partial));
  Py_XSETREF(self->replay, Py_NewRef(replay));
  Py_XSETREF(self->forward, Py_NewRef(forward));
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* graph_is_armed(PyObject* object, void*) {
  return PyBool_FromLong(reinterpret_cast<DifferentiableGraph*>(object)->forward != nullptr);
}

int graph_traverse(PyObject* object, visitproc visit, void* arg) {
  auto* self = reinterpret_cast<DifferentiableGraph*>(object);
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(self->dict);
  Py_VISIT(self->wrapped);
  Py_VISIT(self->forward);
  Py_VISIT(self->backward);
  Py_VISIT(self->partial);
  Py_VISIT(self->replay);
  return 0;
}

int graph_clear(PyObject* object) {
  auto* self = reinterpret_cast<DifferentiableGraph*>(object);
  delete std::exchange(self->layouts, nullptr);
  Py_CLEAR(self->dict);
  Py_CLEAR(self->wrapped);
  Py_CLEAR(self->forward);
  Py_CLEAR(self->backward);
  Py_CLEAR(self->partial);
  Py_CLEAR(self->replay);
  return 0;
}

void graph_dealloc(PyObject* object) {
  auto* self = reinterpret_cast<DifferentiableGraph*>(object);
  PyTypeObject* type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  if (self->weakrefs != nullptr) {
    PyObject_ClearWeakRefs(object);
  }
  graph_clear(object);
  type->tp_free(object);
  Py_DECREF(type);
}

PyMethodDef graph_methods[] = {
    {"arm", graph_arm, METH_VARARGS,
     "arm(spec, forward, backward, partial, replay)\n--\n\n"
     "From now on calls run these: the PlanExecutor of the forward graph, and what takes the list of\n"
     "the backward graph's inputs (`partial` where some tangents are None). replay: what takes the\n"
     "inputs and the tangents and gives gradients that have a history, or None. spec: how inputs and\n"
     "outputs are tied, see minidynamo/inductor/differentiable.py. Raises ValueError for a wrong one."},
    {nullptr, nullptr, 0, nullptr},
};

PyGetSetDef graph_getset[] = {
    {"is_armed", graph_is_armed, nullptr, "Whether calls run the compiled graphs themselves.", nullptr},
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyMemberDef graph_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(DifferentiableGraph, vectorcall), READONLY, nullptr},
    {"__dictoffset__", T_PYSSIZET, offsetof(DifferentiableGraph, dict), READONLY, nullptr},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(DifferentiableGraph, weakrefs), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

const char graph_doc[] =
    "DifferentiableGraph(wrapped)\n--\n\n"
    "A compiled graph with a backward graph. Called with the inputs it returns the tuple of outputs,\n"
    "which know one node of autograd. Until `arm`, and where a call is not an ordinary one, it calls\n"
    "`wrapped`.";

PyType_Slot graph_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(graph_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(graph_dealloc)},
    {Py_tp_traverse, reinterpret_cast<void*>(graph_traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(graph_clear)},
    {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
    {Py_tp_methods, graph_methods},
    {Py_tp_getset, graph_getset},
    {Py_tp_members, graph_members},
    {Py_tp_doc, const_cast<char*>(graph_doc)},
    {0, nullptr},
};

PyType_Spec graph_spec = {
    "minidynamo._C.DifferentiableGraph", sizeof(DifferentiableGraph), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL, graph_slots};

}  // namespace

}  // namespace minidynamo

extern "C" int md_init_differentiable(PyObject* module) {
  PyObject* type = PyType_FromSpec(&minidynamo::graph_spec);
  if (type == nullptr) {
    return -1;
  }
  int failed = PyModule_AddObjectRef(module, "DifferentiableGraph", type);
  Py_DECREF(type);
  return failed;
}
