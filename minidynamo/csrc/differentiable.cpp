// A call of a DifferentiableGraph, and its node of autograd.
#include "differentiable.h"

#include <ATen/Context.h>
#include <ATen/SavedTensorHooks.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/utils/object_ptr.h>

#include <algorithm>
#include <memory>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace minidynamo {

namespace py = pybind11;
namespace ag = torch::autograd;

namespace {

// Before torch 2.13 nodes are held by std::shared_ptr.
using NodePtr = decltype(ag::Edge::function);

template <typename T, typename... Args>
auto make_node(Args&&... args) {
  if constexpr (std::is_same_v<NodePtr, std::shared_ptr<ag::Node>>) {
    return std::shared_ptr<T>(new T(std::forward<Args>(args)...), [](T* node) { deleteNode(node); });
  } else {
    return c10::make_intrusive<T>(std::forward<Args>(args)...);
  }
}

constexpr const char* kInTransform =
    "It looks like you're trying to call a compiled backward function within vmap/grad/vjp, which isn't "
    "supported. Try wrapping vmap inside minidynamo.compile, or leave the backward function uncompiled.";
constexpr const char* kDeterminism =
    "This compiled backward function is being run with torch.use_deterministic_algorithms(True), but it "
    "was generated while torch.use_deterministic_algorithms(False) was set.";
constexpr const char* kTwice =
    "torch.compile with aot_autograd does not currently support double backward";

// The error that Python has set, for the engine to pass on to whoever called backward().
[[noreturn]] void raise_python_error() {
  python_error error;
  error.persist();
  throw error;
}

// Whether vmap, grad or another transform of torch.func is at work.
bool in_transform() {
  return c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerFrontMode);
}

// The tangent in the memory that the backward graph expects.
at::Tensor fit(const Tangent& expected, const at::Tensor& tensor) {
  if (expected.any) {
    return tensor.contiguous(expected.format);
  }
  if (tensor.strides() == c10::IntArrayRef(expected.stride) &&
      tensor.sizes() == c10::IntArrayRef(expected.size)) {
    return tensor;
  }
  at::Tensor copy = at::empty_strided(expected.size, expected.stride, tensor.options());
  return copy.copy_(tensor);
}

// An input of the forward graph, which the node does not keep alive, unless it is one number (a loss
// that other graphs gave).
struct Origin {
  explicit Origin(const at::Tensor& tensor)
      : tensor(tensor.getIntrusivePtr()),
        kept(tensor.numel() == 1 ? tensor : at::Tensor()),
        version(tensor.is_inference() ? 0 : tensor._version()) {}
  explicit Origin(PyObject* object)
      : tensor(at::Tensor().getIntrusivePtr()), number(py::reinterpret_borrow<py::object>(object)) {}

  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> tensor;
  at::Tensor kept;
  int64_t version = 0;
  py::object number;  // what is no tensor
};

// What eager would have saved, and its version counter: none where it has no memory of its own.
struct Watch {
  explicit Watch(const at::Tensor& tensor)
      : tensor(tensor.getIntrusivePtr()),
        counter(tensor.unsafeGetTensorImpl()->version_counter()),
        version(counter.enabled() ? counter.current_version() : 0) {}

  bool was_written() const { return counter.enabled() && counter.current_version() != version; }

  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> tensor;
  c10::VariableVersion counter;
  int64_t version;
};

class CompiledFunctionBackward : public ag::Node {
 public:
  CompiledFunctionBackward(DifferentiableGraph* graph, ag::edge_list&& edges)
      : ag::Node(std::move(edges)),
        layouts_(*graph->layouts),
        backward_(Py_NewRef(graph->backward)),
        partial_(Py_NewRef(graph->partial)),
        replay_(Py_NewRef(graph->replay)),
        over_(layouts_->tangents.size(), false) {}

  ~CompiledFunctionBackward() override {
    if (Py_IsInitialized() != 0) {
      py::gil_scoped_acquire gil;
      Py_CLEAR(backward_);
      Py_CLEAR(partial_);
      Py_CLEAR(replay_);
      numbers_.clear();
      origins_.clear();
    } else {
      // Nothing can be freed any more: the interpreter is ending.
      for (py::object& number : numbers_) {
        number.release();
      }
      for (Origin& origin : origins_) {
        origin.number.release();
      }
    }
  }

  std::string name() const override { return "CompiledFunctionBackward"; }

  // What no further pass may read: of outputs that share nothing with those whose passes are over,
  // eager has kept what it saved.
  void release_variables() override {
    size_t next_saved = 0;
    for (const Argument& argument : layouts_->arguments) {
      if (argument.kind == Argument::Kind::Tangent || argument.number) {
        continue;
      }
      if (next_saved == saved_.size()) {
        break;  // never filled
      }
      ag::SavedVariable& saved = saved_[next_saved++];
      if (are_over(argument.tangents)) {
        saved.reset_data();
      }
    }
    if (std::find(over_.begin(), over_.end(), false) == over_.end()) {
      for (Origin& origin : origins_) {
        origin.kept.reset();
      }
      watches_.clear();
    }
  }

  // Keeps what the backward graph reads. Outputs know their node already.
  void save(PyObject* const* inputs, PyObject* results) {
    saved_.reserve(layouts_->arguments.size());
    for (const Argument& argument : layouts_->arguments) {
      if (argument.kind == Argument::Kind::Tangent) {
        continue;
      }
      PyObject* object = argument.kind == Argument::Kind::Input
                             ? inputs[argument.index]
                             : PyTuple_GET_ITEM(results, argument.index);
      if (argument.number) {
        numbers_.push_back(py::reinterpret_borrow<py::object>(object));
        continue;
      }
      const at::Tensor& tensor = THPVariable_Unpack(object);
      bool is_output = tensor.requires_grad() && tensor.grad_fn().get() == this;
      saved_.emplace_back(tensor, is_output);
    }
    if (replay_ != Py_None) {
      note_origins(inputs);
    }
    if (layouts_->watched.empty() || at::SavedTensorDefaultHooks::get_hooks(true)) {
      return;  // what hooks keep, eager does not look at
    }
    watches_.reserve(layouts_->watched.size());
    for (const Watched& watched : layouts_->watched) {
      PyObject* object = watched.of_input
                             ? inputs[watched.index]
                             : PyTuple_GET_ITEM(results, static_cast<Py_ssize_t>(watched.index));
      watches_.emplace_back(THPVariable_Unpack(object));
    }
  }

  ag::variable_list apply(ag::variable_list&& tangents) override {
    py::gil_scoped_acquire gil;
    TORCH_CHECK(!in_transform(), kInTransform);
    TORCH_CHECK(layouts_->deterministic || !at::globalContext().deterministicAlgorithms(),
                kDeterminism);
    check_over(tangents);
    check_watches(tangents);
    bool differentiated = at::GradMode::is_enabled();
    ag::edge_list edges;
    if (differentiated || are_batched(tangents)) {
      if (THPObjectPtr inputs = unchanged_origins()) {
        return replay(inputs.get(), tangents);
      }
    }
    if (differentiated) {
      edges = next_edges();
      for (const at::Tensor& tangent : tangents) {
        if (tangent.defined() && tangent.requires_grad()) {
          edges.push_back(ag::impl::gradient_edge(tangent));
        }
      }
    }
    ag::variable_list gradients = run(std::move(tangents));
    if (differentiated) {
      auto refuses = make_node<ag::Error>(kTwice, std::move(edges));
      for (at::Tensor& gradient : gradients) {
        if (gradient.defined()) {
          // A tensor of its own: it may be a tangent or a saved one.
          gradient = gradient.variable_data();
          ag::set_history(gradient, refuses);
        }
      }
    }
    return gradients;
  }

 private:
  bool are_over(const std::vector<size_t>& tangents) const {
    return std::all_of(tangents.begin(), tangents.end(), [this](size_t i) { return over_[i]; });
  }

  // Raises eager's error where it would look again at what an earlier pass has let go of.
  void check_over(const ag::variable_list& tangents) const {
    for (size_t i = 0; i < over_.size(); ++i) {
      TORCH_CHECK(!over_[i] || !tangents.at(i).defined(), ag::ERR_BACKWARD_TWICE);
    }
  }

  // The pass behind these tangents reads nothing more.
  void finish(const std::vector<bool>& given) {
    if (ag::get_current_graph_task_keep_graph()) {
      return;
    }
    for (size_t i = 0; i < given.size(); ++i) {
      for (size_t other : layouts_->together[i]) {
        over_[other] = over_[other] || given[i];
      }
    }
    release_variables();
  }

  // Whether a vectorized pass (`is_grads_batched=True`) asks: kernels know no batched tensors.
  static bool are_batched(const ag::variable_list& tangents) {
    constexpr c10::DispatchKeySet batched(
        {c10::DispatchKey::Batched, c10::DispatchKey::FuncTorchBatched});
    return std::any_of(tangents.begin(), tangents.end(), [batched](const at::Tensor& tangent) {
      return tangent.defined() && tangent.key_set().has_any(batched);
    });
  }

  static std::vector<bool> defined(const ag::variable_list& tangents) {
    std::vector<bool> given;
    for (const at::Tensor& tangent : tangents) {
      given.push_back(tangent.defined());
    }
    return given;
  }

  // Raises eager's error where eager would have saved what was written to since. Of a part of the
  // gradients it need not look at all that it saved.
  void check_watches(const ag::variable_list& tangents) {
    for (size_t i = 0; i < watches_.size(); ++i) {
      if (!watches_[i].was_written()) {
        continue;
      }
      bool is_seen = false;
      for (size_t position : layouts_->watched[i].tangents) {
        is_seen |= tangents.at(position).defined();
      }
      for (size_t edge = 0; edge < num_outputs(); ++edge) {
        is_seen &= !next_edge(edge).is_valid() || task_should_compute_output(edge);
      }
      if (is_seen) {
        raise_written(watches_[i]);
      }
    }
  }

  [[noreturn]] static void raise_written(const Watch& watch) {
    std::ostringstream text;
    text << "one of the variables needed for gradient computation has been modified by an inplace "
            "operation: [";
    at::Tensor tensor(watch.tensor.lock());
    if (tensor.defined()) {
      text << tensor.toString() << ' ' << tensor.sizes();
    }
    text << "] is at version " << watch.counter.current_version() << "; expected version "
         << watch.version
         << " instead. Hint: enable anomaly detection to find the operation that failed to compute "
            "its gradient, with torch.autograd.set_detect_anomaly(True).";
    TORCH_CHECK(false, text.str());
  }

  void note_origins(PyObject* const* inputs) {
    origins_.reserve(layouts_->inputs);
    for (size_t i = 0; i < layouts_->inputs; ++i) {
      if (THPVariable_Check(inputs[i])) {
        origins_.emplace_back(THPVariable_Unpack(inputs[i]));
      } else {
        origins_.emplace_back(inputs[i]);
      }
    }
  }

  // The list of the forward graph's inputs; null where one is gone or was written to since.
  THPObjectPtr unchanged_origins() {
    if (origins_.empty()) {
      return THPObjectPtr();
    }
    THPObjectPtr list(PyList_New(static_cast<Py_ssize_t>(origins_.size())));
    if (!list) {
      raise_python_error();
    }
    for (size_t i = 0; i < origins_.size(); ++i) {
      PyObject* item;
      if (origins_[i].number) {
        item = Py_NewRef(origins_[i].number.ptr());
      } else {
        at::Tensor tensor(origins_[i].tensor.lock());
        if (!tensor.defined() ||
            (!tensor.is_inference() && origins_[i].version != tensor._version())) {
          return THPObjectPtr();
        }
        item = THPVariable_Wrap(std::move(tensor));
        if (item == nullptr) {
          raise_python_error();
        }
      }
      PyList_SET_ITEM(list.get(), static_cast<Py_ssize_t>(i), item);
    }
    return list;
  }

  // Gradients with a history, if grad mode asks for one.
  ag::variable_list replay(PyObject* inputs, const ag::variable_list& tangents) {
    THPObjectPtr list(PyList_New(static_cast<Py_ssize_t>(tangents.size())));
    if (!list) {
      raise_python_error();
    }
    for (size_t i = 0; i < tangents.size(); ++i) {
      PyObject* item = tangents[i].defined() ? THPVariable_Wrap(tangents[i]) : Py_NewRef(Py_None);
      if (item == nullptr) {
        raise_python_error();
      }
      PyList_SET_ITEM(list.get(), static_cast<Py_ssize_t>(i), item);
    }
    THPObjectPtr results(PyObject_CallFunctionObjArgs(replay_, inputs, list.get(), nullptr));
    if (!results) {
      raise_python_error();
    }
    TORCH_INTERNAL_ASSERT(PyList_CheckExact(results.get()) &&
                          PyList_GET_SIZE(results.get()) ==
                              static_cast<Py_ssize_t>(layouts_->gradients.size()));
    ag::variable_list gradients;
    for (size_t i = 0; i < layouts_->gradients.size(); ++i) {
      PyObject* item = PyList_GET_ITEM(results.get(), static_cast<Py_ssize_t>(i));
      gradients.push_back(item == Py_None ? at::Tensor() : THPVariable_Unpack(item));
    }
    finish(defined(tangents));
    return gradients;
  }

  ag::variable_list run(ag::variable_list&& tangents) {
    at::NoGradGuard no_grad;
    c10::impl::ExcludeDispatchKeyGuard below_autocast(c10::autocast_dispatch_keyset);
    std::vector<bool> given = defined(tangents);
    size_t count = std::count(given.begin(), given.end(), true);
    if (count == 0) {
      return ag::variable_list(layouts_->gradients.size());
    }
    THPObjectPtr list = arguments(std::move(tangents), given);
    bool all = count == given.size();
    THPObjectPtr results(PyObject_CallOneArg(all ? backward_ : partial_, list.get()));
    if (!results) {
      raise_python_error();
    }
    THPObjectPtr items(PySequence_Fast(results.get(), "a backward graph returns a sequence"));
    if (!items) {
      raise_python_error();
    }
    results = nullptr;
    TORCH_INTERNAL_ASSERT(PySequence_Fast_GET_SIZE(items.get()) ==
                          static_cast<Py_ssize_t>(layouts_->inputs));
    ag::variable_list gradients;
    gradients.reserve(layouts_->gradients.size());
    for (size_t position : layouts_->gradients) {
      PyObject* item = PySequence_Fast_GET_ITEM(items.get(), static_cast<Py_ssize_t>(position));
      gradients.push_back(item == Py_None ? at::Tensor() : THPVariable_Unpack(item));
    }
    return gradients;
  }

  // The list that the backward graph takes, with None for what it does not read. What was saved is
  // let go of here when nobody asked to keep it: the list holds it alone then, and the graph frees
  // it after its last use.
  THPObjectPtr arguments(ag::variable_list&& tangents, const std::vector<bool>& given) {
    THPObjectPtr list(PyList_New(static_cast<Py_ssize_t>(layouts_->arguments.size())));
    if (!list) {
      raise_python_error();
    }
    size_t next_saved = 0;
    Py_ssize_t place = 0;
    size_t next_number = 0;
    for (const Argument& argument : layouts_->arguments) {
      PyObject* item;
      if (argument.kind == Argument::Kind::Tangent) {
        at::Tensor tangent = std::move(tangents.at(argument.index));
        item = tangent.defined()
                   ? THPVariable_Wrap(fit(layouts_->tangents[argument.index], tangent))
                   : Py_NewRef(Py_None);
      } else if (argument.number) {
        item = Py_NewRef(numbers_[next_number++].ptr());
      } else {
        ag::SavedVariable& saved = saved_[next_saved++];
        bool is_read = std::any_of(argument.tangents.begin(), argument.tangents.end(),
                                   [&](size_t i) { return given[i]; });
        item = is_read ? THPVariable_Wrap(saved.unpack(getptr())) : Py_NewRef(Py_None);
      }
      if (item == nullptr) {
        raise_python_error();
      }
      PyList_SET_ITEM(list.get(), place++, item);
    }
    finish(given);
    return list;
  }

  std::shared_ptr<Layouts> layouts_;
  PyObject* backward_;
  PyObject* partial_;
  PyObject* replay_;
  std::vector<bool> over_;  // by tangent: what eager saved behind it is gone
  std::vector<Origin> origins_;
  std::vector<Watch> watches_;  // by `watched` of the layouts, until they are released
  std::vector<ag::SavedVariable> saved_;
  std::vector<py::object> numbers_;
};


// --- a call -----------------------------------------------------------------------------------

// Whether a call of these inputs is an ordinary one.
bool is_ordinary(const DifferentiableGraph* self, PyObject* const* args, Py_ssize_t count) {
  if (self->forward == nullptr || count != static_cast<Py_ssize_t>((*self->layouts)->inputs) ||
      in_transform() ||
      c10::impl::TorchDispatchModeTLS::any_modes_set()) {
    return false;
  }
  bool any = false;
  for (size_t position : (*self->layouts)->gradients) {
    if (!THPVariable_Check(args[position])) {
      return false;
    }
    const at::Tensor& tensor = THPVariable_Unpack(args[position]);
    if (tensor._fw_grad(0).defined()) {
      return false;
    }
    any |= tensor.requires_grad();
  }
  return any;
}

void connect(DifferentiableGraph* self, PyObject* const* args, PyObject* results) {
  const Layouts& layouts = **self->layouts;
  ag::edge_list edges;
  edges.reserve(layouts.gradients.size());
  for (size_t position : layouts.gradients) {
    const at::Tensor& tensor = THPVariable_Unpack(args[position]);
    edges.push_back(tensor.requires_grad() ? ag::impl::gradient_edge(tensor) : ag::Edge());
  }
  auto node = make_node<CompiledFunctionBackward>(self, std::move(edges));
  share_versions(layouts, args, results);
  for (size_t index : layouts.differentiable) {
    const at::Tensor& output = result_at(results, index);
    TORCH_INTERNAL_ASSERT(!output.requires_grad(), "output ", index, " has a history");
  }
  make_views(layouts, args, results);
  for (size_t index : layouts.differentiable) {
    ag::set_history(result_at(results, index), node);
  }
  node->save(args, results);
}

// Puts version counters back to what they were.
class KeptVersions {
 public:
  KeptVersions(const Layouts& layouts, PyObject* const* args) {
    for (size_t position : layouts.kept) {
      const at::Tensor& tensor = THPVariable_Unpack(args[position]);
      if (!tensor.is_inference()) {
        counters_.push_back(tensor.unsafeGetTensorImpl()->version_counter());
        versions_.push_back(counters_.back().current_version());
      }
    }
  }
  ~KeptVersions() {
    for (size_t i = 0; i < versions_.size(); ++i) {
      counters_[i].set_version(versions_[i]);
    }
  }
  KeptVersions(const KeptVersions&) = delete;
  KeptVersions& operator=(const KeptVersions&) = delete;

 private:
  std::vector<c10::VariableVersion> counters_;
  std::vector<int64_t> versions_;
};

}  // namespace

PyObject* differentiable_call(PyObject* object, PyObject* const* args, size_t flags,
                              PyObject* names) {
  HANDLE_TH_ERRORS
  auto* self = reinterpret_cast<DifferentiableGraph*>(object);
  if (self->layouts == nullptr) {
    PyErr_SetString(PyExc_RuntimeError, "the compiled graph was cleared by the garbage collector");
    return nullptr;
  }
  Py_ssize_t count = PyVectorcall_NARGS(flags);
  if (names != nullptr || !is_ordinary(self, args, count)) {
    return PyObject_Vectorcall(self->wrapped, args, flags, names);
  }
  const Layouts& layouts = **self->layouts;
  THPObjectPtr results;
  {
    KeptVersions kept(layouts, args);
    for (size_t position : layouts.moved) {
      THPVariable_Unpack(args[position]).unsafeGetTensorImpl()->bump_version();
    }
    at::NoGradGuard no_grad;
    results = PyObject_Vectorcall(self->forward, args, static_cast<size_t>(count), nullptr);
  }
  if (!results) {
    return nullptr;
  }
  TORCH_INTERNAL_ASSERT(PyTuple_CheckExact(results.get()));
  connect(self, args, results.get());
  return PyTuple_GetSlice(results.get(), 0, static_cast<Py_ssize_t>(layouts.outputs));
  END_HANDLE_TH_ERRORS
}

}  // namespace minidynamo
