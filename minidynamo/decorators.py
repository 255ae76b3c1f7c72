"""Decorators and context managers about what is captured, by the names of `torch._dynamo`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import torch

from . import config
from .eval_frame import disable, run, set_stance
from .exc import UserError
from .markers import (
    Decision,
    allow_in_graph,
    assume_constant_result,
    break_errors,
    decision,
    disallow_in_graph,
    graph_break,
    made_nonstrict,
    mark_dynamic,
    mark_static,
    mark_static_address,
    mark_unbacked,
    maybe_mark_dynamic,
    set_decision,
    set_substitute,
    skip_frame,
    step_unsupported,
    traced_blocks,
    traced_codes,
)

__all__ = [
    "allow_in_graph",
    "assume_constant_result",
    "disable",
    "disable_nested_graph_breaks",
    "disallow_in_graph",
    "dont_skip_tracing",
    "error_on_graph_break",
    "export",
    "forbid_in_graph",
    "graph_break",
    "is_dynamo_disable_recursive",
    "mark_dynamic",
    "mark_static",
    "mark_static_address",
    "mark_unbacked",
    "maybe_mark_dynamic",
    "nonstrict_trace",
    "override_cudagraphs",
    "override_optimization_hint",
    "patch_dynamo_config",
    "run",
    "set_stance",
    "skip_frame",
    "step_unsupported",
    "substitute_in_graph",
]

F = TypeVar("F", bound=Callable[..., Any])


def _check_callable(what: str, fn: Any) -> None:
    if not callable(fn):
        raise TypeError(f"{what} takes a callable, not {type(fn).__name__} {fn!r}")


def forbid_in_graph(fn: Any) -> Any:
    """Raise UserError where `fn` (or one of a list) is called in captured code."""
    if isinstance(fn, (list, tuple)):
        return [forbid_in_graph(item) for item in fn]
    set_decision(fn, Decision.FORBID)
    return fn


def nonstrict_trace(traceable_fn: F) -> F:
    """Put calls of what is returned into the graph as one node; AOTAutograd traces inside of it.

    Arguments and results are nests of tensors and constants: those of torch's pytrees, registered
    classes included. Arguments may be modules, too. `traceable_fn` is a function.
    """
    _check_callable("nonstrict_trace", traceable_fn)
    return made_nonstrict(traceable_fn)  # type: ignore[return-value]


def substitute_in_graph(
    original_fn: Callable[..., Any],
    *,
    can_constant_fold_through: bool = False,
    skip_signature_check: bool = False,
    is_embedded_type: bool = False,
) -> Callable[[F], F]:
    """A decorator: where captured code calls `original_fn`, which is not written in Python or not
    to be traced, the decorated function is traced. Eager is not changed.

    can_constant_fold_through: has no effect; constants are folded anyhow. skip_signature_check: the
    signatures may differ. Raises TypeError where they do.
    """
    _check_callable("substitute_in_graph", original_fn)
    if isinstance(original_fn, type) or is_embedded_type:
        name = getattr(original_fn, "__qualname__", original_fn)
        raise TypeError(f"substitute_in_graph takes a function, not the class {name}")

    def register(traceable_fn: F) -> F:
        if not inspect.isfunction(traceable_fn):
            kind = type(traceable_fn).__name__
            raise TypeError(f"substitute_in_graph decorates a Python function, not {kind}")
        if not skip_signature_check:
            _compare_signatures(original_fn, traceable_fn)
        set_substitute(original_fn, traceable_fn)
        return traceable_fn  # type: ignore[return-value]

    return register


def _compare_signatures(original: Callable[..., Any], substitute: Callable[..., Any]) -> None:
    try:
        wanted = inspect.signature(original)
    except ValueError:  # C functions without one
        return
    given = inspect.signature(substitute)
    rows = [_named_parameters(signature) for signature in (wanted, given)]
    if rows[0] != rows[1] and all(any(row) for row in rows):
        raise TypeError(
            f"Signature mismatch between {original} and {substitute}: {wanted} != {given};"
            " skip_signature_check=True allows it"
        )


def _named_parameters(signature: inspect.Signature) -> tuple[list[str], dict[str, Any]]:
    """The names that have an order, and the defaults; `*args` and `**kwargs` take whatever."""
    starred = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    named = [p for p in signature.parameters.values() if p.kind not in starred]
    ordered = [p.name for p in named if p.kind != inspect.Parameter.KEYWORD_ONLY]
    return ordered, {p.name: p.default for p in named}


def dont_skip_tracing(fn: Any = None) -> Any:
    """Trace through `fn`, and what it calls, also where that belongs to a library that is left to
    eager.

    Without `fn`, a decorator and a context manager: so it is with what the block calls.
    """
    if fn is None:
        return _TracedBlock()
    _check_callable("dont_skip_tracing", fn)
    set_decision(fn, Decision.INLINE)
    code = getattr(inspect.unwrap(fn), "__code__", None)
    if code is not None:
        traced_codes.add(code)
    return fn


class _TracedBlock:
    def __enter__(self) -> None:
        traced_blocks.append(True)

    def __exit__(self, *exc: object) -> None:
        traced_blocks.pop()

    def __call__(self, fn: F) -> F:
        return dont_skip_tracing(fn)  # type: ignore[no-any-return]


set_decision(dont_skip_tracing, Decision.INLINE)


class error_on_graph_break:  # noqa: N801  (used as a function)
    """Whether a graph break in a block, or in the calls of a decorated function, is an error.

    With compile(fullgraph=True) it always is.
    """

    def __init__(self, error_on_graph_break: bool) -> None:
        if not isinstance(error_on_graph_break, bool):
            found = f"{type(error_on_graph_break).__name__} {error_on_graph_break!r}"
            raise TypeError(
                f"error_on_graph_break: error_on_graph_break must be a bool, not {found}"
            )
        self.error = error_on_graph_break

    def __enter__(self) -> None:
        break_errors.append(self.error)

    def __exit__(self, *exc: object) -> None:
        break_errors.pop()

    def __call__(self, fn: F) -> F:
        _check_callable("error_on_graph_break", fn)
        return _within(self, fn)


def _within(manager: Any, fn: F) -> F:
    @functools.wraps(fn)
    def inner(*args: Any, **kwargs: Any) -> Any:
        with manager:
            return fn(*args, **kwargs)

    set_decision(inner, Decision.INLINE)
    return inner  # type: ignore[return-value]


class override_cudagraphs:  # noqa: N801  (used as a function)
    """A block, or a decorator: nothing changes, since there are no CUDA graphs yet."""

    def __init__(self, fwd: bool | None = None, bwd: bool | None = None) -> None:
        self.fwd, self.bwd = fwd, bwd

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exc: object) -> None:
        pass

    def __call__(self, fn: F) -> F:
        _check_callable("override_cudagraphs", fn)
        return _within(self, fn)


for _class in (_TracedBlock, error_on_graph_break, override_cudagraphs):
    for _name in {"__init__", "__enter__", "__exit__"} & vars(_class).keys():
        set_decision(vars(_class)[_name], Decision.INLINE)


def override_optimization_hint(x: Any, val: int) -> None:
    """What the compiler takes for a size that depends on data (a torch.SymInt), where it has to
    guess; nothing for an int. In captured code it is checked, and has no effect.
    """
    if not isinstance(val, int):
        raise TypeError(f"override_optimization_hint: val must be an int, not {val!r}")
    if isinstance(x, int):
        return
    if not isinstance(x, torch.SymInt):
        raise TypeError(f"override_optimization_hint: x must be a SymInt or an int, not {x!r}")
    shape_env, symbol = x.node.shape_env, x.node.expr
    if not (symbol.is_Symbol and shape_env.is_unbacked_symint(symbol)):
        raise ValueError(
            f"override_optimization_hint: {symbol} is no size that depends on data"
        )
    shape_env.var_to_hint_override[symbol] = val


def is_dynamo_disable_recursive(method: Callable[..., Any]) -> bool | None:
    """Whether `disable` left out what `method` calls, too; None if it is not disabled."""
    return _DISABLED.get(decision(method))


_DISABLED: dict[Decision | None, bool] = {
    Decision.DISABLE: True,
    Decision.DISABLE_SHALLOW: False,
}


def patch_dynamo_config(arg1: Any = None, arg2: Any = None, **kwargs: Any) -> Any:
    """`config.patch`: a context manager and decorator that sets flags for a block or for calls.

    Inside of captured code the graph breaks, and what follows is captured with the flags.
    """
    return config.patch(arg1, arg2, **kwargs)


def disable_nested_graph_breaks(fn: Any = None) -> Any:
    """Break graphs at the outermost call in a block, or in the calls of `fn`."""
    if fn is None:
        return config.patch(nested_graph_breaks=False)
    return config.patch(nested_graph_breaks=False)(fn)


def export(*args: Any, **kwargs: Any) -> NoReturn:
    """Not offered: raises UserError that names what is."""
    raise UserError(
        "minidynamo does not export graphs: use torch.export.export(module, args), or"
        " minidynamo.compile(f, fullgraph=True, backend=...) with a backend that keeps the graph"
    )
