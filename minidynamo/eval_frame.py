"""The public entry points: `compile` and what steers it.

`compile(f)` returns a C callable of `_C` that checks the guards of what is compiled for `f` and
runs it, and otherwise runs `f` inside the region of its configuration, where every frame is offered
to the front end (convert_frame).
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, TypeVar

import torch

from . import _C, config, shape_history, trace_rules
from .backends.modes import validate_mode, validate_options
from .backends.registry import (
    BUILTIN_BACKENDS,
    backend_name,
    get_default_backend,
    lookup_backend,
)
from .compile_options import BackendFn, CompileOptions
from .exc import UserError
from .markers import Decision, set_decision
from .optimized_module import OptimizedModule
from .regions import forget_regions, live_regions, region_for, run_only
from .resume_execution import forget_breaks
from .shape_specs import attached_spec, checked_spec
from .stances import STANCES, Stance
from .stances import made_by as stances_made_by
from .stances import switch as switch_stance
from .utils import forget_warnings, known_names

__all__ = [
    "compile",
    "compile_",
    "disable",
    "optimize",
    "optimize_assert",
    "reset",
    "run",
    "set_stance",
]


F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Compiler:
    """The arguments of one `compile()`, applied to a function: also the decorator form.

    It can be pickled when the backend can, which is how an OptimizedModule is.
    """

    backend: str | BackendFn
    fullgraph: bool
    dynamic: bool | None
    mode: str | None
    options: Mapping[str, Any] | None
    recompile_limit: int | None = None
    isolate_recompiles: bool = False
    shapes_spec: Any = None
    guard_fail_fn: Callable[[Any], Any] | None = None

    def region(self) -> _C.Region:
        """The region that this and every equal configuration runs in."""
        options = CompileOptions(
            backend=lookup_backend(self.backend),
            backend_name=backend_name(self.backend),
            fullgraph=self.fullgraph,
            dynamic=self.dynamic,
            mode=self.mode,
            options=MappingProxyType(_without_filter(self.options)),
            recompile_limit=self.recompile_limit,
            owner=self if self.isolate_recompiles else None,
            guard_fail_fn=self.guard_fail_fn,
            guard_filter_fn=(self.options or {}).get(_FILTER),
            shapes_spec=self.shapes_spec,
        )
        shared = not self.isolate_recompiles and self.guard_fail_fn is None
        shared = shared and options.guard_filter_fn is None and self.shapes_spec is None
        return region_for(options, named_backend=shared and isinstance(self.backend, str))

    def __call__(self, model: Any) -> Any:
        _check_model(model)
        attached = attached_spec(model)
        if attached is not None:
            if self.shapes_spec is not None:
                raise ValueError(
                    "compile: give dynamic_shapes or decorate the function with dynamic_spec"
                )
            spec = checked_spec(attached, self.dynamic)
            return replace(self, shapes_spec=spec)._applied(model)
        return self._applied(model)

    def _applied(self, model: Any) -> Any:
        if isinstance(model, torch.nn.Module):
            return OptimizedModule(innermost(model), self.wrap)
        if isinstance(model, (staticmethod, classmethod)):
            return type(model)(self.wrap(model.__func__))
        if isinstance(model, type):
            return _with_calls("compile: model", model, self.wrap)
        return self.wrap(model)

    def for_torch(self) -> dict[str, Any]:
        """The arguments with which torch.compile, its front end before it, does the same."""
        backend = lookup_backend(self.backend)
        chosen = {"mode": self.mode, "options": self.options}
        given = {name: value for name, value in chosen.items() if value is not None}
        return {
            "backend": backend,
            "fullgraph": self.fullgraph,
            "dynamic": self.dynamic,
            **given,
        }

    def wrap(self, fn: Any) -> Any:
        """The C callable for a function or any other callable object."""
        fn = innermost(fn)
        compiled = _dressed(_C.compiled_function(with_frame(fn), self.region()), fn)
        compiled._torchdynamo_orig_callable = fn  # what torch.compile leaves, for who asks
        if isinstance(fn, torch.nn.Module):
            # Trainers give a model those columns of the data that `forward` names, if it tells.
            with contextlib.suppress(TypeError, ValueError):
                compiled.__signature__ = inspect.signature(fn.forward)
        return compiled


def _with_calls(name: str, cls: type, wrap: Callable[[Any], Any]) -> type:
    """As torch does, `wrap` the calls of the instances of a class; the class is returned."""
    call = inspect.getattr_static(cls, "__call__", None)
    if not isinstance(call, (types.FunctionType, _C.CompiledFunction)):
        raise TypeError(
            f"{name} is the class {cls.__qualname__}, whose instances cannot be "
            "called; give a function, a method or an instance"
        )
    setattr(cls, "__call__", wrap(call))  # noqa: B010  (typed as a method)
    return cls


def compile(
    model: Any = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | BackendFn | None = None,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    name: str | None = None,
    disable: bool = False,
    recompile_limit: int | None = None,
    isolate_recompiles: bool = False,
    dynamic_shapes: Any = None,
    shapes_spec: Any = None,
) -> Any:
    """Compile `model` when it is first called, and again when assumptions fail; as torch.compile.

    model: a function, method, callable object or nn.Module; a module gives an `OptimizedModule`,
    anything else a callable. Without it, a decorator.
    fullgraph: raise `Unsupported` where the graph would break. dynamic: None: sizes become symbolic
    when they change; True: at once; False: never. backend: a name (`list_backends()`, default
    "inductor", see `set_default_backend`) or a callable `(gm, example_inputs) -> callable`.
    mode, options: one or the other, see `list_mode_options()` and `list_options()`; the option
    guard_filter_fn(entries) says which guards are kept, at the caller's own risk. name: what this
    configuration is called; it has no effect. disable: return `model` as it is. recompile_limit: in
    place of `config.recompile_limit`. isolate_recompiles: share no compiled code with equal
    configurations. dynamic_shapes (shapes_spec in torch 2.13): in place of `dynamic`, a spec of
    torch.fx.experimental.dynamic_spec or a dict of them: which sizes and ints are symbolic;
    everything else is a constant. Without it, that of the decorator `dynamic_spec` there.
    Raises TypeError for an argument of the wrong type, InvalidBackend or UserError for unknown
    names.
    """
    _check_types(
        ("fullgraph", fullgraph, bool, "a bool"),
        ("dynamic", dynamic, (bool, type(None)), "True, False or None"),
        ("mode", mode, (str, type(None)), "a str or None"),
        ("options", options, (Mapping, type(None)), "a dict or None"),
        ("name", name, (str, type(None)), "a str or None"),
        ("disable", disable, bool, "a bool"),
        ("recompile_limit", recompile_limit, (int, type(None)), "an int or None"),
        ("isolate_recompiles", isolate_recompiles, bool, "a bool"),
    )
    _check_limit(recompile_limit)
    _check_flags()
    backend = get_default_backend() if backend is None else backend
    _check_names(backend, mode, options)
    given = backend, fullgraph, dynamic, mode, options, recompile_limit, isolate_recompiles
    if dynamic_shapes is not None and shapes_spec is not None:
        raise ValueError(
            "compile: dynamic_shapes and shapes_spec are two names of one argument"
        )
    spec = shapes_spec if dynamic_shapes is None else dynamic_shapes
    compiler = Compiler(*given, checked_spec(spec, dynamic))
    if disable or config.disable:
        return model if model is not None else _unchanged
    return compiler if model is None else compiler(model)


def _check_flags() -> None:
    if config.suppress_errors and config.fail_on_recompile_limit_hit:
        raise AssertionError(
            "config.suppress_errors and config.fail_on_recompile_limit_hit contradict each other"
        )


def _check_limit(limit: int | None) -> None:
    if limit is not None and (limit < 1 or limit is True):
        raise ValueError(f"compile: recompile_limit must be 1 or more, not {limit!r}")


def optimize(
    backend: str | BackendFn = "inductor",
    *,
    nopython: bool = False,
    dynamic: bool | None = None,
    disable: bool = False,
    guard_fail_fn: Callable[[Any], Any] | None = None,
    guard_filter_fn: Callable[[Any], Any] | None = None,
    recompile_limit: int | None = None,
    isolate_recompiles: bool = False,
) -> Callable[[Any], Any]:
    """torch._dynamo.optimize: `optimize(backend)(f)` is `compile(f, backend=backend)`.

    nopython: as fullgraph. guard_fail_fn: called with (reason, orig_code) for each compiled version
    that does not fit a call, before it is compiled again. guard_filter_fn: as the option of
    `compile`. The others are those of `compile`.
    """
    if guard_fail_fn is not None and not callable(guard_fail_fn):
        raise TypeError(f"optimize: guard_fail_fn must be callable, not {guard_fail_fn!r}")
    made = compile(
        backend=backend,
        fullgraph=nopython,
        dynamic=dynamic,
        options=None if guard_filter_fn is None else {_FILTER: guard_filter_fn},
        disable=disable,
        recompile_limit=recompile_limit,
        isolate_recompiles=isolate_recompiles,
    )
    return replace(made, guard_fail_fn=guard_fail_fn) if isinstance(made, Compiler) else made


def optimize_assert(
    backend: str | BackendFn = "inductor", **kwargs: Any
) -> Callable[[Any], Any]:
    """torch._dynamo.optimize_assert: `optimize(backend, nopython=True)`."""
    return optimize(backend, nopython=True, **kwargs)


def compile_(model: torch.nn.Module, **kwargs: Any) -> None:
    """Compile an nn.Module in place, as `nn.Module.compile` does; takes the arguments of `compile`.

    The module keeps its class, its structure and its `state_dict()`; calling it runs compiled code.
    Calling this again replaces the former configuration.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"compile_: model must be an nn.Module, not {_type_name(model)}")
    model = innermost(model)
    model._compiled_call_impl = compile(model._call_impl, **kwargs)  # type: ignore[assignment]


def _check_types(*rows: tuple[str, Any, Any, str], caller: str = "compile") -> None:
    for name, value, allowed, expected in rows:
        if not isinstance(value, allowed):
            found = f"{_type_name(value)} {value!r}"
            raise TypeError(f"{caller}: {name} must be {expected}, not {found}")


def _check_names(backend: Any, mode: str | None, options: Mapping[str, Any] | None) -> None:
    if mode is not None and options is not None:
        raise UserError("compile: give mode or options, not both")
    lookup_backend(backend)
    if isinstance(backend, str) and backend in BUILTIN_BACKENDS:
        validate_mode(mode)
    if backend == "inductor":
        validate_options(_without_filter(options))
    if not callable((options or {}).get(_FILTER, len)):
        raise UserError(f"compile: option {_FILTER} is a callable on a list of guards")


_FILTER = "guard_filter_fn"  # an option for all backends, which do not see it


def _without_filter(options: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: value for name, value in (options or {}).items() if name != _FILTER}


def _check_model(model: Any) -> None:
    if not callable(model) and not isinstance(model, classmethod):
        raise TypeError(f"compile: model must be callable, not {_type_name(model)} {model!r}")


def _type_name(value: object) -> str:
    return type(value).__qualname__


def _unchanged(model: Any) -> Any:
    return model


# What `disable(recursive=False)` leaves on the function that it makes: that one's id (decorators
# copy attributes) and what it was given.
_COPIED = "_minidynamo_copied"


def innermost(fn: Any) -> Any:
    """What `fn` was before `compile()` or `disable()` was applied to it, any number of times: the
    last of them decides.
    """
    while True:
        if isinstance(fn, _C.CompiledFunction):
            fn = fn.__wrapped__
        elif isinstance(fn, OptimizedModule) and isinstance(fn._compiled, _C.CompiledFunction):
            fn = fn._orig_mod
        elif isinstance(fn, types.FunctionType) and (given := _disabled(fn)) is not None:
            fn = given
        else:
            return fn


def _disabled(fn: types.FunctionType) -> Any:
    """What `fn` is a disabled copy of, or None; decorators may have copied the attributes."""
    left = fn.__dict__
    copy, given = left.get(_COPIED, (None, None))
    if copy == id(fn):
        return given
    is_of_torch = left.get("_torchdynamo_disable") and "_torchdynamo_orig_callable" in left
    if is_of_torch and left.get("_torchdynamo_wrapper_id") == id(fn):
        return left["_torchdynamo_orig_callable"]
    return None


def with_frame(fn: Any) -> Any:
    """`fn`, or a Python function calling it where it has no Python frame that could be captured,
    or one of a library, whose frames are captured only where others call it.
    """
    core = fn
    while isinstance(core, (functools.partial, types.MethodType)):
        core = core.func if isinstance(core, functools.partial) else core.__func__
    if isinstance(core, types.FunctionType):
        file = core.__code__.co_filename
        # What a decorator such as torch.no_grad() gives calls the program's own function.
        decorates = hasattr(core, "__wrapped__") and not trace_rules.is_transform_file(file)
        is_module_call = core is torch.nn.Module._call_impl  # `_C` knows how to call it
        if decorates or is_module_call or not trace_rules.is_skipped_file(file):
            return fn
    elif isinstance(core, (_C.CompiledFunction, torch.nn.Module)):
        return fn
    method = inspect.getattr_static(type(core), "__call__", None)
    has_frame = isinstance(method, types.FunctionType)
    if has_frame and not trace_rules.is_skipped_file(method.__code__.co_filename):
        return fn

    def call(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    # A code object of its own: compiled code, limits and skipping go by code object and file.
    name = getattr(fn, "__name__", "call")
    call.__code__ = call.__code__.replace(co_name=name, co_filename=f"<call of {name}>")
    call.__wrapped__ = fn  # type: ignore[attr-defined]
    return call


def _call_module(module: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
    return module(*args, **kwargs)


def _call_module_impl(module: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
    return module._call_impl(*args, **kwargs)


for _caller in (_call_module, _call_module_impl):
    _caller.__code__ = _caller.__code__.replace(co_filename=trace_rules.MODULE_CALLER)
_C.set_module_callers(_call_module, _call_module_impl)


def _dressed(wrapper: Any, fn: Any) -> Any:
    for name in functools.WRAPPER_ASSIGNMENTS:
        if hasattr(fn, name):
            setattr(wrapper, name, getattr(fn, name))
    own = getattr(fn, "__dict__", {}) if isinstance(fn, types.FunctionType) else {}
    wrapper.__dict__.update(
        {name: value for name, value in own.items() if name != "__wrapped__"}
    )
    return wrapper


def _copy_of(fn: types.FunctionType) -> types.FunctionType:
    """A function as `fn`, with a code object of its own."""
    code, cells = fn.__code__.replace(), fn.__closure__
    made = types.FunctionType(code, fn.__globals__, fn.__name__, fn.__defaults__, cells)
    made.__kwdefaults__ = fn.__kwdefaults__
    return _dressed(made, fn)


class _Disable:
    """`disable()` without a function: a decorator, or a context manager for the calling thread."""

    def __init__(self, recursive: bool, reason: str | None) -> None:
        self._recursive = recursive
        self._reason = reason
        self._former: list[Any] = []

    def __call__(self, fn: Any) -> Any:
        return disable(fn, self._recursive, reason=self._reason)

    def __enter__(self) -> None:
        self._former.append(_C.enter_region(None))

    def __exit__(self, *_exc: object) -> None:
        _C.leave_region(self._former.pop())


def disable(
    fn: Any = None,
    recursive: bool = True,
    *,
    reason: str | None = None,
    wrapping: bool = True,
) -> Any:
    """Run `fn` without compiling it; in a compiled caller its call is a graph break.

    recursive: nothing that it calls is compiled either. Otherwise `fn` is a Python function, a copy
    of it is returned, and what that calls may be compiled. reason: shown with the graph
    break. wrapping: has no effect; the wrapper keeps the name and the signature.
    Without `fn`: a decorator; also a context manager, inside of which nothing is compiled.
    """
    _check_types(
        ("recursive", recursive, bool, "a bool"),
        ("reason", reason, (str, type(None)), "a str or None"),
        ("wrapping", wrapping, bool, "a bool"),
        caller="disable",
    )
    if fn is None:
        return _Disable(recursive, reason)
    if not callable(fn):
        raise TypeError(f"disable: fn must be callable, not {_type_name(fn)} {fn!r}")
    fn = innermost(fn)
    if not recursive:
        function = getattr(fn, "__func__", fn)
        if not isinstance(function, types.FunctionType):
            raise TypeError(
                f"disable(recursive=False) takes a Python function, not {_type_name(fn)}"
            )
        shallow = _copy_of(function)
        _C.skip_code(shallow.__code__, False)
        set_decision(shallow, Decision.DISABLE_SHALLOW, reason)
        if isinstance(fn, types.MethodType):
            return types.MethodType(shallow, fn.__self__)
        setattr(shallow, _COPIED, (id(shallow), fn))
        return shallow
    if isinstance(fn, torch.nn.Module):
        return OptimizedModule(fn, _C.disabled)
    if isinstance(fn, type):
        return _with_calls("disable: fn", fn, functools.partial(disable, reason=reason))
    wrapper = _dressed(_C.disabled(fn), fn)
    set_decision(wrapper, Decision.DISABLE, reason)
    return wrapper


def run(fn: Any = None) -> Any:
    """Run `fn`, compiled before, with what is compiled; where nothing fits, in eager.

    fn: what `compile()` returned, or the function that was compiled (then in the region of the
    newest `compile()` that has code for it). Without `fn`, a decorator.
    """
    if fn is None:
        return run
    if not callable(fn):
        raise TypeError(f"run: fn must be callable, not {_type_name(fn)} {fn!r}")
    if isinstance(fn, OptimizedModule):
        return OptimizedModule(fn._orig_mod, _RunOnly(fn._compiled))
    inner = innermost(fn)
    return functools.update_wrapper(_RunOnly(fn)(inner), inner)


class _RunOnly:
    """Makes callables that run in the region of `compiled` and compile nothing."""

    def __init__(self, compiled: Any) -> None:
        self.region = getattr(compiled, "region", None)

    def __call__(self, fn: Any) -> Callable[..., Any]:
        def runner(*args: Any, **kwargs: Any) -> Any:
            region = self.region or _region_with_code(fn)
            if region is None:
                return fn(*args, **kwargs)
            with run_only(region):
                return _C.compiled_function(fn, region)(*args, **kwargs)

        runner.region = self.region  # type: ignore[attr-defined]
        runner.traced_as = fn  # type: ignore[attr-defined]
        return runner


def _region_with_code(fn: Any) -> Any:
    code = getattr(getattr(fn, "__func__", fn), "__code__", None)
    having = [region for region in live_regions() if code and _C.entries(code, region)]
    return having[-1] if having else None


def _stance_of(name: str, force_backend: Any) -> Stance:
    if name not in STANCES:
        known = known_names(name, STANCES)
        raise RuntimeError(f"set_stance: invalid stance {name!r}; {known}")
    backend = "aot_eager" if name == "aot_eager_then_compile" else force_backend
    if backend is None:
        return Stance(name)
    return Stance(name, lookup_backend(backend), backend_name(backend))


stances_made_by(_stance_of)


class set_stance:  # noqa: N801  (used as a function)
    """Change how every compiled function behaves, at once; as a context manager or decorator, for
    a block or for the calls of a function.

    "default": compile when needed. "force_eager": run what was compiled in eager.
    "eager_on_recompile": use what is compiled, else run in eager. "fail_on_recompile": use what is
    compiled, else raise RuntimeError. "eager_then_compile": a function's first call runs in eager,
    the second compiles with the sizes that differ dynamic; "aot_eager_then_compile": the first call
    compiles with that backend. force_backend (with "default" only): a name or a callable that takes
    the place of every backend; what others compiled is dropped. skip_guard_eval_unsafe has no
    effect: guards are always evaluated.
    What torch.compiler.set_stance chose counts while none is chosen here. Raises RuntimeError for
    an unknown stance.
    """

    def __init__(
        self,
        stance: str = "default",
        *,
        skip_guard_eval_unsafe: bool = False,
        force_backend: Any = None,
    ) -> None:
        _check_types(
            ("skip_guard_eval_unsafe", skip_guard_eval_unsafe, bool, "a bool"),
            caller="set_stance",
        )
        if force_backend is not None and stance != "default":
            raise RuntimeError(f"set_stance: force_backend goes with 'default', not {stance!r}")
        self._stance = _stance_of(stance, force_backend)
        self._former = switch_stance(self._stance)

    def __call__(self, fn: F) -> F:
        switch_stance(self._former)

        @functools.wraps(fn)
        def inner(*args: Any, **kwargs: Any) -> Any:
            former = switch_stance(self._stance)
            try:
                return fn(*args, **kwargs)
            finally:
                switch_stance(former)

        return inner  # type: ignore[return-value]

    def __enter__(self) -> None:
        switch_stance(self._stance)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: types.TracebackType | None,
    ) -> None:
        switch_stance(self._former)


def reset() -> None:
    """Forget everything that is compiled, and the one-time warnings."""
    _C.reset()
    forget_regions()
    shape_history.forget()
    forget_warnings()
    forget_breaks()
