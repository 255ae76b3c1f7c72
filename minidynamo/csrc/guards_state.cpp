// The state of torch that compiled code depends on although no argument shows it: GLOBAL_STATE.
#include "guards_program.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/autocast_mode.h>
#include <c10/core/AutogradState.h>
#include <c10/core/DefaultDtype.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/PyInterpreter.h>

#include <optional>
#include <utility>

namespace md {

namespace {

using Functions = at::impl::PythonTorchFunctionTLS;

// The default device is that of the DeviceContext on the stack of function modes, if there is one.
PyObject* device_context_type() {
  static PyObject* type = nullptr;
  if (type == nullptr) {
    Ref module(PyImport_ImportModule("torch.utils._device"));
    type = module ? PyObject_GetAttrString(module.get(), "DeviceContext") : nullptr;
    if (type == nullptr) {
      throw python_error();
    }
  }
  return type;
}

// What a mode holds as its `device`, if it is a DeviceContext; else NULL.
PyObject* device_of(PyObject* mode) {
  static PyObject* name = PyUnicode_InternFromString("device");
  PyObject *dict, *device;
  bool is_context = reinterpret_cast<PyObject*>(Py_TYPE(mode)) == device_context_type();
  if (!is_context || md_instance_dict(mode, false, &dict) != MD_DICT_FOUND ||
      md_dict_find(dict, name, PyObject_Hash(name), &device) != MD_DICT_FOUND) {
    return nullptr;
  }
  return device;
}

bool same_device(PyObject* a, PyObject* b) {
  if (a == b || a == nullptr || b == nullptr) {
    return a == b;
  }
  return THPDevice_Check(a) && THPDevice_Check(b) &&
         reinterpret_cast<THPDevice*>(a)->device == reinterpret_cast<THPDevice*>(b)->device;
}

// Program-wide settings. The precisions of float32 matmuls are what
// torch.set_float32_matmul_precision sets; asking torch for its own word takes longer, and raises
// when its two interfaces for that were mixed.
struct Settings {
  at::ScalarType default_dtype;
  bool deterministic;
  bool deterministic_warn_only;
  bool fill_uninitialized;
  at::Float32Precision cuda_precision;
  at::Float32Precision cpu_precision;
  int threads;

  static Settings now() {
    const at::Context& context = at::globalContext();
    return {c10::get_default_dtype_as_scalartype(), context.deterministicAlgorithms(),
            context.deterministicAlgorithmsWarnOnly(),
            context.deterministicFillUninitializedMemory(),
            precision(context, at::Float32Backend::CUDA),
            precision(context, at::Float32Backend::MKLDNN), at::get_num_threads()};
  }

  bool operator==(const Settings&) const = default;

 private:
  // What was never set is the same as IEEE.
  static at::Float32Precision precision(const at::Context& context, at::Float32Backend backend) {
    at::Float32Precision found = context.float32Precision(backend, at::Float32Op::MATMUL);
    bool lower = found == at::Float32Precision::TF32 || found == at::Float32Precision::BF16;
    return lower ? found : at::Float32Precision::IEEE;
  }
};

// Modes of the thread, besides the dispatch keys that it includes and excludes (which show
// autocast, functorch, dispatch modes).
struct Modes {
  bool grad;
  bool inference;
  bool forward_grad;
  bool view_replay;
  int functions_disabled;
  int64_t function_modes;

  static Modes now() {
    const c10::AutogradState& autograd = c10::AutogradState::get_tls_state();
    return {autograd.get_grad_mode(),    autograd.get_inference_mode(),
            autograd.get_fw_grad_mode(), autograd.get_view_replay_enabled(),
            Functions::get_disabled_state(), Functions::stack_len()};
  }

  bool operator==(const Modes&) const = default;
};

struct Autocast {
  at::DeviceType device;
  at::ScalarType dtype;
};

struct FunctionMode {
  Held type;
  Ref device;

  bool capture(PyObject* mode) {
    device = Ref::of(device_of(mode));
    return type.hold(reinterpret_cast<PyObject*>(Py_TYPE(mode)));
  }

  bool is_like(PyObject* mode) const {
    return reinterpret_cast<PyObject*>(Py_TYPE(mode)) == type.address() && type.is_alive() &&
           same_device(device.get(), device_of(mode));
  }
};

PyObject* function_mode(size_t index) {
  return Functions::get_stack_at(static_cast<int64_t>(index))->ptr(getPyInterpreter());
}

}  // namespace

struct GlobalState {
  DispatchState dispatch;
  Modes modes;
  Settings settings;
  std::vector<Autocast> autocast;  // of the devices for which it is on
  bool autocast_cache;
  std::vector<FunctionMode> function_modes;

  static std::unique_ptr<GlobalState> now() {
    auto state = std::make_unique<GlobalState>();
    state->dispatch = dispatch_state();
    state->modes = Modes::now();
    state->settings = Settings::now();
    for (at::DeviceType device : at::autocast::_AUTOCAST_SUPPORTED_DEVICES) {
      if (at::autocast::is_autocast_enabled(device)) {
        state->autocast.push_back({device, at::autocast::get_autocast_dtype(device)});
      }
    }
    state->autocast_cache = at::autocast::is_autocast_cache_enabled();
    state->function_modes.resize(static_cast<size_t>(state->modes.function_modes));
    for (size_t i = 0; i < state->function_modes.size(); i++) {
      if (!state->function_modes[i].capture(function_mode(i))) {
        throw python_error();
      }
    }
    return state;
  }

  // `now`: the thread's dispatch keys.
  bool holds(const DispatchState& now) const {
    return now.included == dispatch.included && now.excluded == dispatch.excluded &&
           Modes::now() == modes && Settings::now() == settings &&
           (autocast.empty() || autocast_holds()) &&
           (function_modes.empty() || function_modes_hold());
  }

 private:
  bool autocast_holds() const {
    for (const Autocast& entry : autocast) {
      if (at::autocast::get_autocast_dtype(entry.device) != entry.dtype) {
        return false;
      }
    }
    return at::autocast::is_autocast_cache_enabled() == autocast_cache;
  }

  bool function_modes_hold() const {
    for (size_t i = 0; i < function_modes.size(); i++) {
      if (!function_modes[i].is_like(function_mode(i))) {
        return false;
      }
    }
    return true;
  }
};

namespace {

struct GlobalStateObject {
  PyObject_HEAD
  GlobalState* state;
};

extern PyTypeObject GlobalStateType;

GlobalState& state_of(PyObject* self) {
  return *reinterpret_cast<GlobalStateObject*>(self)->state;
}

PyObject* state_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  HANDLE_TH_ERRORS
  static char* names[] = {nullptr};
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, ":GlobalState", names)) {
    return nullptr;
  }
  std::unique_ptr<GlobalState> state = GlobalState::now();
  Ref self(type->tp_alloc(type, 0));
  if (!self) {
    return nullptr;
  }
  reinterpret_cast<GlobalStateObject*>(self.get())->state = state.release();
  return self.release();
  END_HANDLE_TH_ERRORS
}

void state_dealloc(PyObject* self) {
  delete reinterpret_cast<GlobalStateObject*>(self)->state;
  Py_TYPE(self)->tp_free(self);
}

PyObject* state_holds(PyObject* self, PyObject*) {
  HANDLE_TH_ERRORS
  return PyBool_FromLong(state_of(self).holds(dispatch_state()));
  END_HANDLE_TH_ERRORS
}

bool put(PyObject* dict, const char* name, PyObject* value) {
  Ref owned(value);
  return owned && PyDict_SetItemString(dict, name, owned.get()) == 0;
}

bool put(PyObject* dict, const char* name, const std::string& value) {
  return put(dict, name, PyUnicode_FromStringAndSize(value.data(),
                                                     static_cast<Py_ssize_t>(value.size())));
}

bool put(PyObject* dict, const char* name, bool value) {
  return put(dict, name, PyBool_FromLong(value));
}

std::string dtype_text(at::ScalarType dtype) {
  return torch::getTHPDtype(dtype)->name;
}

std::string autocast_text(const GlobalState& state) {
  std::string text;
  for (const Autocast& entry : state.autocast) {
    text += text.empty() ? "" : ", ";
    text += c10::DeviceTypeName(entry.device, true) + " to " + dtype_text(entry.dtype);
  }
  if (text.empty()) {
    return "off";
  }
  return text + (state.autocast_cache ? "" : ", without cache");
}

std::string function_modes_text(const GlobalState& state) {
  std::string text;
  for (const FunctionMode& mode : state.function_modes) {
    auto* type = reinterpret_cast<PyTypeObject*>(mode.type.address());
    text += text.empty() ? "" : ", ";
    text += mode.type.is_alive() ? type->tp_name : "(gone)";
  }
  return text.empty() ? "none" : text;
}

PyObject* default_device_text(const GlobalState& state) {
  for (const FunctionMode& mode : state.function_modes) {
    if (mode.device) {
      return PyObject_Str(mode.device.get());
    }
  }
  return Py_NewRef(Py_None);
}

PyObject* state_describe(PyObject* self, PyObject*) {
  HANDLE_TH_ERRORS
  const GlobalState& state = state_of(self);
  const char* disabled[] = {"enabled", "disabled for subclasses", "disabled"};
  Ref dict(PyDict_New());
  PyObject* d = dict.get();
  bool done =
      d != nullptr && put(d, "grad mode", state.modes.grad) &&
      put(d, "inference mode", state.modes.inference) &&
      put(d, "forward-mode grad", state.modes.forward_grad) &&
      put(d, "view replay", state.modes.view_replay) && put(d, "autocast", autocast_text(state)) &&
      put(d, "default dtype", dtype_text(state.settings.default_dtype)) &&
      put(d, "default device", default_device_text(state)) &&
      put(d, "deterministic algorithms", state.settings.deterministic) &&
      put(d, "deterministic algorithms only warn", state.settings.deterministic_warn_only) &&
      put(d, "deterministic fill of uninitialized memory", state.settings.fill_uninitialized) &&
      put(d, "float32 matmul precision on CUDA",
          at::precision2str(state.settings.cuda_precision)) &&
      put(d, "float32 matmul precision on CPU",
          at::precision2str(state.settings.cpu_precision)) &&
      put(d, "number of threads", PyLong_FromLong(state.settings.threads)) &&
      put(d, "__torch_function__", std::string(disabled[state.modes.functions_disabled])) &&
      put(d, "torch function modes", function_modes_text(state));
  return done ? dict.release() : nullptr;
  END_HANDLE_TH_ERRORS
}

PyObject* state_included(PyObject* self, void*) {
  return PyLong_FromUnsignedLongLong(state_of(self).dispatch.included);
}

PyObject* state_excluded(PyObject* self, void*) {
  return PyLong_FromUnsignedLongLong(state_of(self).dispatch.excluded);
}

PyMethodDef kMethods[] = {
    {"holds", state_holds, METH_NOARGS, "Whether the state is now as it was."},
    {"describe", state_describe, METH_NOARGS, "dict of what the state consists of, but for dispatch keys."},
    {nullptr, nullptr, 0, nullptr}};

PyGetSetDef kGetters[] = {
    {"included", state_included, nullptr, "Dispatch keys that the thread includes.", nullptr},
    {"excluded", state_excluded, nullptr, "Dispatch keys that it excludes.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyTypeObject make_type() {
  PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
  type.tp_name = "minidynamo._C.GlobalState";
  type.tp_basicsize = sizeof(GlobalStateObject);
  type.tp_flags = Py_TPFLAGS_DEFAULT;
  type.tp_doc = "GlobalState(): torch's modes and settings as they are in this thread now.";
  type.tp_new = state_new;
  type.tp_dealloc = state_dealloc;
  type.tp_methods = kMethods;
  type.tp_getset = kGetters;
  return type;
}

PyTypeObject GlobalStateType = make_type();

}  // namespace

bool is_global_state(PyObject* object) { return Py_TYPE(object) == &GlobalStateType; }

bool global_state_holds(PyObject* state, const DispatchState& dispatch) {
  return state_of(state).holds(dispatch);
}

int init_global_state(PyObject* module) { return PyModule_AddType(module, &GlobalStateType); }

}  // namespace md
