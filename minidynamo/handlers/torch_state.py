"""Reading and changing torch's global state: grad mode, autocast, inference mode and the like."""

from __future__ import annotations

import abc
import types
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from .. import markers
from ..exc import SkipFrame
from ..guards import Predicate
from ..source import ConstSource
from ..variables.base import VariableTracker, unsupported
from ..variables.constant import ConstantVariable
from ..variables.contexts import (
    AUTOCAST_CACHE,
    DEFAULT_DTYPE,
    DETERMINISM,
    GRAD_MODE,
    PRODUCT_PRECISION,
    SDP_SETTINGS,
    TF32_PRODUCTS,
    GlobalStateVariable,
    InferenceGuardVariable,
    Setting,
    autocast_dtype,
    autocast_enabled,
)
from ..variables.registry import Handler, handles, handles_named
from ..variables.tensor import TensorVariable

if TYPE_CHECKING:
    from ..symbolic_convert import Translator

Args = list[VariableTracker]
Kwargs = dict[str, VariableTracker]
NONE = ConstantVariable(None)

# What these give is part of the GLOBAL_STATE guard of every graph, or never changes in a process.
_READS = (
    torch.is_grad_enabled,
    torch.is_inference_mode_enabled,
    torch.is_autocast_enabled,
    torch.is_autocast_cpu_enabled,
    torch.amp.autocast_mode.is_autocast_available,
    torch._C._is_autocast_available,
    torch._C._is_any_autocast_enabled,
    torch.get_default_dtype,
    torch.get_default_device,
    torch.are_deterministic_algorithms_enabled,
    torch.is_deterministic_algorithms_warn_only_enabled,
    torch.get_float32_matmul_precision,
    torch._C._get_cublas_allow_tf32,
    torch.get_num_threads,
    torch.cuda.is_available,
    torch.cuda.device_count,
    torch.cuda.is_bf16_supported,
    torch.cuda.get_device_capability,
    torch.backends.cuda.is_built,
    torch.backends.cuda.is_flash_attention_available,
    torch.backends.mps.is_available,
    torch.backends.mps.is_built,
    torch.xpu.is_available,
    torch.mtia.is_available,
    torch.distributed.is_available,
    *(
        getattr(torch.distributed, f"is_{name}")
        for name in "nccl_available gloo_available mpi_available torchelastic_launched".split()
        if hasattr(torch.distributed, f"is_{name}")
    ),
    torch.cuda.amp.common.amp_definitely_not_available,
)
# What these give is guarded by asking again.
_GUARDED_READS = (
    torch._C._get_cudnn_enabled,
    torch._C._get_cudnn_benchmark,
    torch._C._get_cudnn_deterministic,
    torch._C._get_cudnn_allow_tf32,
    torch._C._get_mkldnn_enabled,
    torch._C._get_nnpack_enabled,
    torch.is_anomaly_enabled,
    torch.is_anomaly_check_nan_enabled,
    torch.distributed.is_initialized,
    torch.cuda.is_initialized,
    torch.fx._symbolic_trace.is_fx_tracing,
    torch.fx._symbolic_trace.is_fx_symbolic_tracing,
    torch.autograd._is_checkpoint_valid,
    abc.get_cache_token,  # functools.singledispatch looks whether a class was registered
)
# Settings of autocast, of which GLOBAL_STATE has those of devices for which it is on.
_SETTINGS: dict[Callable[..., Any], Callable[..., Setting]] = {
    torch.is_autocast_cache_enabled: lambda: AUTOCAST_CACHE,
    torch.get_autocast_dtype: autocast_dtype,
    torch.get_autocast_cpu_dtype: lambda: autocast_dtype("cpu"),
    torch.get_autocast_gpu_dtype: lambda: autocast_dtype("cuda"),
}
# What tells whether the program runs in eager, is compiled or exported: the answers while
# compiling.
_CONSTANTS: tuple[tuple[Callable[..., Any], Any], ...] = (
    (torch.jit.is_scripting, False),
    (torch.jit.is_tracing, False),
    (torch._C._get_tracing_state, None),
    (torch._C._is_tracing, False),
    (torch.compiler.is_dynamo_compiling, True),
    (torch.compiler.is_exporting, False),
    (torch._utils.is_compiling, True),
    (markers.is_compiling, True),
    (markers.is_dynamo_compiling, True),
)


def _constants(args: Args, kwargs: Kwargs) -> tuple[list[Any], dict[str, Any]]:
    named = {name: value.as_python_constant() for name, value in kwargs.items()}
    return [arg.as_python_constant() for arg in args], named


def _read(
    function: Callable[..., Any],
) -> None:
    def handler(
        tx: Translator,
        args: Args,
        kwargs: Kwargs,
    ) -> VariableTracker:
        return tx.fold(function, *_constants(args, kwargs))

    handles(function)(handler)


def _read_guarded(
    function: Callable[[], Any],
) -> None:
    text = f"{function.__module__}.{function.__name__}() is unchanged"

    def handler(
        tx: Translator,
        args: Args,
        kwargs: Kwargs,
    ) -> VariableTracker:
        value = function()
        check = Predicate(lambda function: function() == value, text)
        tx.guard(ConstSource(function, function.__name__), "PREDICATE", check)
        return ConstantVariable(value)

    handles(function)(handler)


def _read_setting(
    function: Callable[..., Any],
    setting_of: Callable[..., Setting],
) -> None:
    def handler(
        tx: Translator,
        args: Args,
        kwargs: Kwargs,
    ) -> VariableTracker:
        constants, named = _constants(args, kwargs)
        result = tx.fold(function, constants, named)
        setting = setting_of(*constants, *named.values())
        if not GlobalStateVariable.has_changed(tx, setting):
            value, text = setting.get(), f"the {setting.name} is unchanged"
            check = Predicate(lambda setting: setting.get() == value, text)
            tx.guard(ConstSource(setting, setting.name), "PREDICATE", check)
        return result

    handles(function)(handler)


def _unique(
    functions: tuple[Callable[..., Any], ...],
) -> list[Callable[..., Any]]:
    return list({id(function): function for function in functions}.values())


for _function in _unique(_READS):
    _read(_function)
for _function in _unique(_GUARDED_READS):
    _read_guarded(_function)
for _function, _setting_of in _SETTINGS.items():
    _read_setting(_function, _setting_of)


@handles(torch.compiler.is_compiling)
@handles_named("torch._dynamo.external_utils.is_compiling")
def is_compiling(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> VariableTracker:
    """True, but for nn.Module's own code: it leaves out hooks that eager calls after an error."""
    tx.output.is_told_apart = True
    return ConstantVariable(tx.code is not torch.nn.Module._call_impl.__code__)


def _constant(
    function: Callable[..., Any],
    value: Any,
) -> None:
    def handler(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
        tx.output.is_told_apart |= value is True
        return ConstantVariable(value)

    handles(function)(handler)


for _function, _value in {id(f): (f, v) for f, v in _CONSTANTS}.values():
    _constant(_function, _value)


handles_named("torch.onnx.is_in_onnx_export")(lambda tx, args, kwargs: ConstantVariable(False))


# -- changes ---------------------------------------------------------------------------------------


def _set(
    tx: Translator,
    setting: Setting,
    value: VariableTracker,
) -> VariableTracker:
    if tx.output.overrides.has_modes:
        unsupported("function mode", setting.name, "a torch function mode may see the change")
    GlobalStateVariable.of(tx).set(tx, setting, value.as_python_constant())
    return NONE


@handles(torch._C._set_grad_enabled)
def set_grad_enabled(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> VariableTracker:
    return _set(tx, GRAD_MODE, args[0])


@handles(torch._C._set_default_dtype)
def set_default_dtype(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> VariableTracker:
    return _set(tx, DEFAULT_DTYPE, args[0])


@handles(torch._C._set_cublas_allow_tf32)
def set_cublas_allow_tf32(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
    return _set(tx, TF32_PRODUCTS, args[0])


@handles(torch._C._set_float32_matmul_precision)
def set_float32_matmul_precision(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
    return _set(tx, PRODUCT_PRECISION, args[0])


@handles(torch._C._set_deterministic_algorithms)
def set_deterministic_algorithms(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
    """`(mode, *, warn_only=False)`."""
    warns = "warn_only" in kwargs and kwargs["warn_only"].as_python_constant()
    mode = (1 if warns else 2) if args[0].as_python_constant() else 0
    return _set(tx, DETERMINISM, ConstantVariable(mode))


@handles(torch.set_autocast_enabled)
def set_autocast_enabled(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> VariableTracker:
    """`(device_type, enabled)`; the old form with `enabled` alone is about CUDA."""
    device = args[0].as_python_constant() if len(args) == 2 else "cuda"
    return _set(tx, autocast_enabled(device), args[-1])


@handles(torch.set_autocast_dtype)
def set_autocast_dtype(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> VariableTracker:
    return _set(tx, autocast_dtype(args[0].as_python_constant()), args[1])


@handles(torch.set_autocast_cache_enabled)
def set_autocast_cache_enabled(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
    return _set(tx, AUTOCAST_CACHE, args[0])


@handles(torch.autocast_increment_nesting)
def autocast_increment_nesting(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
    return GlobalStateVariable.of(tx).change_nesting(tx, 1)


@handles(torch.autocast_decrement_nesting)
def autocast_decrement_nesting(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
    return GlobalStateVariable.of(tx).change_nesting(tx, -1)


@handles(torch.amp.autocast.__init__)
def autocast_init(tx: Translator, args: Args, kwargs: Kwargs) -> Any:
    """Constants make a real one, which also warns of devices that are missing, once a trace."""
    self, *rest = args
    if not all(value.is_python_constant() for value in (*rest, *kwargs.values())):
        return NotImplemented
    named = {key: value.as_python_constant() for key, value in kwargs.items()}
    try:
        made = torch.amp.autocast(*(value.as_python_constant() for value in rest), **named)
    except (TypeError, ValueError, RuntimeError, Warning):  # the program sees how it is raised
        return NotImplemented
    for name, value in vars(made).items():
        self.setattr(tx, name, tx.wrap_constant(value))
    return NONE


@handles(torch.cuda.amp.autocast.__new__, torch.cpu.amp.autocast.__new__)
def deprecated_autocast(tx: Translator, args: Args, kwargs: Kwargs) -> Any:
    """What it adds to `object.__new__` is the advice to use torch.amp, given once a trace."""
    advice = vars(args[0].as_python_constant()).get("__deprecated__")
    try:
        if advice:
            warnings.warn(advice, FutureWarning, stacklevel=4)
    except FutureWarning:  # eager raises it
        return NotImplemented
    return tx.call_function(tx.wrap_constant(object.__new__), args[:1], {})


@handles(torch.clear_autocast_cache)
def clear_autocast_cache(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
    tx.output.side_effects.version += 1
    tx.output.add_state_node(torch.clear_autocast_cache)
    torch.clear_autocast_cache()
    return NONE


def _attention_setting(setting: Setting) -> Handler:
    """Registers what reads and writes a setting; returns the former."""
    text = f"{setting.name} is unchanged"

    def read(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
        value = setting.get()
        if setting not in GlobalStateVariable.of(tx).changed:
            check = Predicate(lambda function: function() == value, text)
            tx.guard(ConstSource(setting.read, setting.name), "PREDICATE", check)
        if isinstance(value, list):
            return tx.wrap_items(list, [ConstantVariable(item) for item in value])
        return ConstantVariable(value)

    def write(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
        read(tx, [], {})
        return _set(tx, setting, args[0])

    handles(setting.read)(read)
    handles(setting.write)(write)
    return read


_ATTENTION_READERS = list(map(_attention_setting, SDP_SETTINGS))


def guard_attention_settings(tx: Translator) -> None:
    """What is traced depends on which kernels of attention are enabled."""
    for read in _ATTENTION_READERS:
        read(tx, [], {})


@handles(torch._C._InferenceMode)
def inference_mode(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
    return InferenceGuardVariable(args[0].as_python_constant())


# -- torch's own compiler --------------------------------------------------------------------------


@handles(torch.compiler.cudagraph_mark_step_begin)
def mark_step(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
    """Nothing here: a step ends with the call of a compiled function."""
    return NONE


@handles_named("torch.compile", "minidynamo.eval_frame.compile")
def torch_compile(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> VariableTracker:
    """What is compiled already gains nothing; without a function it is a decorator."""
    given = dict(kwargs)
    model = args[0] if args else given.get("model")
    if model is None or (model.is_python_constant() and model.as_python_constant() is None):
        return tx.wrap_constant(_unchanged)
    kind = model.python_type()
    if kind not in (types.FunctionType, types.MethodType):
        unsupported("call of an untraced function", "compile", f"of a {kind.__name__}")
    return model


def _unchanged(model: Any) -> Any:
    return model


markers.set_decision(_unchanged, markers.Decision.INLINE)

# -- calls that always end the graph ---------------------------------------------------------------


@handles(markers.mark_static)
@handles_named("torch._dynamo.decorators.mark_static")
def mark_static(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> VariableTracker:
    """In captured code: the sizes become constants now."""
    given = dict(zip(("t", "index"), args, strict=False)) | kwargs
    tensor = given["t"].realize()
    if not isinstance(tensor, TensorVariable):
        unsupported("marker", repr(tensor), "mark_static of what is no tensor of the graph")
    index = given["index"].as_python_constant() if "index" in given else None
    dims = range(tensor.fake.dim()) if index is None else index
    for dim in (dims,) if isinstance(dims, int) else dims:
        size = tensor.call_method(tx, "size", [ConstantVariable(dim)], {})
        size.realize().specialized(tx)
    return NONE


@handles_named(
    "torch._dynamo.decorators.override_optimization_hint",
    "minidynamo.decorators.override_optimization_hint",
)
def override_optimization_hint(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
    """Nothing that tells sizes apart, so nothing happens; the types are checked as in eager."""
    given = [*args, *(kwargs[name] for name in ("x", "val") if name in kwargs)]
    kinds = [value.realize().python_type() for value in given]
    if kinds != [int, int]:
        unsupported("marker", "override_optimization_hint", "it takes a size and an int")
    return NONE


@handles(markers.skip_frame)
@handles_named("torch._dynamo.decorators.skip_frame")
def skip_frame(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
    raise SkipFrame(_message(args, kwargs) or "the program called skip_frame()")


@handles(markers.graph_break)
@handles_named("torch._dynamo.decorators.graph_break")
def graph_break(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
    said = _message(args, kwargs)
    unsupported("graph_break()", said, said or "the program called graph_break()")


@handles(markers.step_unsupported)
@handles_named("torch._dynamo.decorators.step_unsupported")
def step_unsupported(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
    said = _message(args, kwargs)
    unsupported("step_unsupported()", said, said or "the program called step_unsupported()")


def _message(args: Args, kwargs: Kwargs) -> str:
    message = args[0] if args else kwargs.get("msg")
    if message is None:
        return ""
    return str(message.as_python_constant())
