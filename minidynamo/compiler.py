"""The names of `torch.compiler`, with its meanings.

What is in here is in the package as well, under the same name, but for what has to do with guards
that a program leaves out (`guard_filter_fn`), with the cache and with numpy.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import torch
from torch.utils import _pytree as pytree

from . import config, markers
from .backends.registry import get_default_backend, list_backends, set_default_backend
from .decorators import nonstrict_trace, substitute_in_graph
from .eval_frame import compile, disable, reset, set_stance
from .inductor.runtime.artifacts import CacheInfo, load_cache_artifacts, save_cache_artifacts
from .markers import allow_in_graph, assume_constant_result, is_compiling, is_dynamo_compiling

__all__ = [
    "CacheInfo",
    "allow_in_graph",
    "assume_constant_result",
    "compile",
    "config",
    "cudagraph_mark_step_begin",
    "disable",
    "get_default_backend",
    "is_compiling",
    "is_dynamo_compiling",
    "is_exporting",
    "keep_portable_guards_unsafe",
    "keep_tensor_guards_unsafe",
    "list_backends",
    "load_cache_artifacts",
    "nested_compile_region",
    "nonstrict_trace",
    "reset",
    "save_cache_artifacts",
    "set_default_backend",
    "set_stance",
    "skip_all_guards_unsafe",
    "skip_guard_on_all_nn_modules_unsafe",
    "skip_guard_on_globals_unsafe",
    "skip_guard_on_inbuilt_nn_modules_unsafe",
    "substitute_in_graph",
    "wrap_numpy",
]

F = TypeVar("F", bound=Callable[..., Any])

# Torch's own: they look at nothing but the entries that a guard_filter_fn is given, or at what
# marks a function.
is_exporting = torch.compiler.is_exporting
nested_compile_region = torch.compiler.nested_compile_region
keep_tensor_guards_unsafe = torch.compiler.keep_tensor_guards_unsafe
skip_all_guards_unsafe = torch.compiler.skip_all_guards_unsafe
skip_guard_on_all_nn_modules_unsafe = torch.compiler.skip_guard_on_all_nn_modules_unsafe
skip_guard_on_globals_unsafe = torch.compiler.skip_guard_on_globals_unsafe
skip_guard_on_inbuilt_nn_modules_unsafe = torch.compiler.skip_guard_on_inbuilt_nn_modules_unsafe
keep_portable_guards_unsafe = torch.compiler.keep_portable_guards_unsafe

# What torch.compiler has besides, and what there is instead.
_ELSEWHERE = {
    "load_compiled_function": "compiled functions are not stored; save_cache_artifacts() is",
    "PrecompileError": "compiled functions are not stored; save_cache_artifacts() is",
    "precompile": "compiled functions are not stored; save_cache_artifacts() is",
    "set_enable_guard_collectives": "ranks compile independently of each other",
    "cudagraph_mark_warmup_incomplete": "there are no CUDA graphs yet",
}


def cudagraph_mark_step_begin() -> None:
    """Nothing: there are no CUDA graphs yet, whose memory a new step would free."""


def wrap_numpy(fn: F) -> F:
    """A function of tensors from one of numpy arrays; captured, it is made of torch's operators."""
    if not callable(fn):
        raise TypeError(f"wrap_numpy: fn must be callable, not {type(fn).__name__} {fn!r}")

    if importlib.util.find_spec("numpy") is None:
        return fn
    numpy = importlib.import_module("numpy")
    arrays = (numpy.ndarray, numpy.generic)

    @markers.force_inline
    def as_tensor(value: Any) -> Any:
        return torch.as_tensor(value) if isinstance(value, arrays) else value

    @functools.wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = pytree.tree_map_only(torch.Tensor, torch.Tensor.numpy, (args, kwargs))
        return pytree.tree_map(as_tensor, fn(*args, **kwargs))

    return wrapped  # type: ignore[return-value]


def __getattr__(name: str) -> NoReturn:
    where = f": {_ELSEWHERE[name]}" if name in _ELSEWHERE else ""
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{where}")
