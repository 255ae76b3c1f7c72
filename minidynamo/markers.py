"""What the user said about functions and tensors, kept where every layer can read it.

Functions: `allow_in_graph`, `disallow_in_graph`, `assume_constant_result`, `force_inline` and
`disable` write a decision here; the front end asks `decision(fn)`. A function is known by identity;
the table forgets it when it dies (one without weak references it keeps alive).
Tensors: `mark_dynamic` and the like use the attribute names of torch's own functions, so marks made
with either count.
`graph_break` and `is_compiling` are ordinary functions here; the front end knows them by identity.
"""

from __future__ import annotations

import enum
import functools
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from . import _C
from .exc import UserError
from .utils import dropping

__all__ = [
    "Decision",
    "break_errors",
    "criteria",
    "set_substitute",
    "skip_frame",
    "step_unsupported",
    "substitute_of",
    "traced_blocks",
    "traced_codes",
    "allow_in_graph",
    "assume_constant_result",
    "decision",
    "decision_reason",
    "disallow_in_graph",
    "dynamic_dims",
    "dynamic_range",
    "enforced_dims",
    "force_inline",
    "graph_break",
    "is_compiling",
    "is_dynamo_compiling",
    "made_nonstrict",
    "mark_dynamic",
    "mark_static",
    "mark_static_address",
    "mark_unbacked",
    "maybe_dynamic_dims",
    "maybe_mark_dynamic",
    "set_decision",
    "shape_id",
    "static_dims",
    "unbacked_dims",
    "unbacked_range",
]

F = TypeVar("F", bound=Callable[..., Any])


class Decision(enum.Enum):
    """How a call of a marked function is captured."""

    ALLOW = "allow_in_graph"  # one node of the graph, its inside is not looked at
    NONSTRICT = "nonstrict_trace"  # the same, of the leaves of arguments and result
    DISALLOW = "disallow_in_graph"  # always a graph break
    CONSTANT = "assume_constant_result"  # called while tracing; the result is a constant
    INLINE = "force_inline"  # traced through, also where the rules would skip it
    FORBID = "forbid_in_graph"  # an error
    DISABLE = "disable"  # a graph break, and nothing below it is compiled
    DISABLE_SHALLOW = "disable(recursive=False)"  # a graph break; what it calls may be compiled


# What torch's own assume_constant_result leaves on a function.
_TORCH_CONSTANT = "_dynamo_marked_constant"
_WRAPPER_ID = "_torchdynamo_wrapper_id"
# Where torch's compiler, if the program imported it, keeps the ids of functions it was told about.
_TORCH_TABLES = (
    ("_nonstrict_trace_callable_ids", Decision.NONSTRICT),
    ("_leaf_function_ids", Decision.NONSTRICT),
    ("_allowed_callable_ids", Decision.ALLOW),
    ("_disallowed_callable_ids", Decision.DISALLOW),
)
_TORCH_NAMES = "torch._dynamo.decorators", "torch._dynamo.utils"
# What is traced: error_on_graph_break sets a flag, which is read, override_cudagraphs none, or (in
# torch 2.14) one that nobody reads.
_BLOCKS = "ErrorOnGraphBreakDecoratorContextManager", "CudagraphOverrideContextManager"
_TORCH_TRACED = {
    "error_on_graph_break",
    "override_cudagraphs",
    "_get_error_on_graph_break",
    "_set_error_on_graph_break",
    "_get_cudagraph_override",
    "_set_cudagraph_override",
    *(f"{block}.{m}" for block in _BLOCKS for m in ("__init__", "__enter__", "__exit__")),
}
# Of nested error_on_graph_break, the innermost last: traced code changes it as it would any list.
break_errors: list[bool] = []
# Of nested dont_skip_tracing, likewise, and the codes of functions that it decorates.
traced_blocks: list[bool] = []
traced_codes: weakref.WeakSet[types.CodeType] = weakref.WeakSet()

_substitutes: dict[int, tuple[Callable[..., Any], types.FunctionType]] = {}
_decisions: dict[int, tuple[Callable[[], Any], Decision, str]] = {}


def set_decision(fn: Any, choice: Decision, reason: str | None = None) -> None:
    """Record `choice` for the object `fn`, in place of an earlier one, and the user's reason."""
    if not callable(fn):
        raise TypeError(f"{choice.value} takes a callable, not {type(fn).__name__} {fn!r}")
    key = id(fn)
    try:
        holder: Callable[[], Any] = weakref.ref(fn, dropping(_decisions, key))
    except TypeError:

        def holder() -> Any:
            return fn

    _decisions[key] = (holder, choice, reason or "")


def call_strictly(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Traced code in place of a function compiled with fullgraph: graph breaks are errors there."""
    break_errors.append(True)
    try:
        return function(*args, **kwargs)
    finally:
        break_errors.pop()


def call_on_leaves(
    function: Callable[..., Any], spec: pytree.TreeSpec, leaves: list[Any]
) -> tuple[list[Any], pytree.TreeSpec]:
    """The leaves and the TreeSpec of a call's result; the front end makes it one node."""
    args, kwargs = pytree.tree_unflatten(leaves, spec)
    return pytree.tree_flatten(function(*args, **kwargs))


def call_nonstrictly(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Traced code in place of a call of a function that is `Decision.NONSTRICT`."""
    leaves, spec = pytree.tree_flatten((args, kwargs))
    results, made = call_on_leaves(function, spec, leaves)
    return pytree.tree_unflatten(results, made)


for _function in (call_strictly, call_on_leaves, call_nonstrictly):
    set_decision(_function, Decision.INLINE)


def made_nonstrict(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that calls `function` and is `Decision.NONSTRICT`."""

    @functools.wraps(function)
    def traced(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    set_decision(traced, Decision.NONSTRICT)
    return traced


def decision(fn: Any) -> Decision | None:
    """What was decided about the object `fn` (compared by identity), or None.

    A bound method has the decision of its function.
    """
    return _row(fn)[0]


def decision_reason(fn: Any) -> str:
    """The reason that the user gave with the decision, or ""."""
    return _row(fn)[1]


def _row(fn: Any) -> tuple[Decision | None, str]:
    for candidate in (fn, fn.__func__ if isinstance(fn, types.MethodType) else None):
        row = _decisions.get(id(candidate))
        if row is not None and row[0]() is candidate:
            return row[1:]
        said = _said_to_torch(candidate)
        if said is not None:
            return said, ""
    return None, ""


def _said_to_torch(fn: Any) -> Decision | None:
    """What torch's own decorators of the same purposes left, on the function or in its tables."""
    if isinstance(fn, types.FunctionType):
        left = fn.__dict__
        # functools.wraps copies what is left; the wrapper's id tells a copy.
        is_own = left.get(_WRAPPER_ID, id(fn)) == id(fn)
        if "_torchdynamo_disable" in left and is_own and not _is_of_optimizers(fn):
            is_deep = left.get("_torchdynamo_disable_recursive", False)
            return Decision.DISABLE if is_deep else Decision.DISABLE_SHALLOW
        if _TORCH_CONSTANT in left:
            return Decision.CONSTANT
    module = getattr(fn, "__module__", None)
    if module in _TORCH_NAMES and getattr(fn, "__qualname__", None) in _TORCH_TRACED:
        return Decision.INLINE
    if module in ("torch._dynamo.decorators", "torch.backends.cuda"):
        return None  # torch lists functions of its own, too, which have handlers here
    rules = sys.modules.get("torch._dynamo.trace_rules")
    for table, said in _TORCH_TABLES if rules is not None and fn is not None else ():
        ids = getattr(getattr(rules, table, None), "function_ids", None)
        if ids and id(fn) in ids:
            return said
    return None


def _is_of_optimizers(fn: types.FunctionType) -> bool:
    """torch.compile's first use disables what it does not trace of torch.optim, which is traced
    here.
    """
    return str(fn.__module__).startswith("torch.optim.")


def set_substitute(original: Callable[..., Any], traceable: types.FunctionType) -> None:
    """Let captured code that calls `original` trace `traceable` (for good)."""
    _substitutes[id(original)] = (original, traceable)


def substitute_of(fn: Any) -> types.FunctionType | None:
    """The function that is traced for `fn`, or None."""
    row = _substitutes.get(id(fn)) if _substitutes else None
    return None if row is None else row[1]


def _mark(fn: Any, choice: Decision) -> Any:
    if isinstance(fn, (list, tuple)):
        return [_mark(item, choice) for item in fn]
    # A bound method is made anew at each access: the function is what lasts.
    set_decision(fn.__func__ if isinstance(fn, types.MethodType) else fn, choice)
    return fn


def allow_in_graph(fn: F) -> F:
    """Put calls of `fn` (or of each in a list) into the graph as one node, without looking inside.

    As in torch, that `fn` is safe to trace later (no Python side effects) is the caller's promise.
    """
    return _mark(fn, Decision.ALLOW)


def disallow_in_graph(fn: F) -> F:
    """Break the graph at each call of `fn` (or of each in a list)."""
    return _mark(fn, Decision.DISALLOW)


def assume_constant_result(fn: F) -> F:
    """Call `fn` once while tracing, with the tensors of that call, and take its result as a
    constant.
    """
    return _mark(fn, Decision.CONSTANT)


def force_inline(fn: F) -> F:
    """Trace through `fn` also where the rules for its module would skip it."""
    return _mark(fn, Decision.INLINE)


def graph_break(msg: str = "") -> None:
    """End the graph here when compiling; in eager nothing happens. `msg` appears as the reason."""


def step_unsupported(msg: str = "") -> None:
    """The same, and the rest of the function is left to eager; what it calls is not."""


def skip_frame(msg: str = "") -> None:
    """Let eager run the frame that is being captured, now and later; in eager nothing happens."""


def is_compiling() -> bool:
    """False in eager; the front end puts True in its place."""
    return False


def is_dynamo_compiling() -> bool:
    """The same: no other compiler asks it."""
    return False


_DYNAMIC, _WEAK, _STATIC = (
    "_dynamo_dynamic_indices",
    "_dynamo_weak_dynamic_indices",
    "_dynamo_static_indices",
)
_RANGE = "_dynamo_dynamic_range"
_UNBACKED = "_dynamo_unbacked_indices"
_STRICT = "_dynamo_strict_unbacked_indices"
_BOUNDS, _SHAPE_IDS = "_dynamo_unbacked_bounds", "_dynamo_shape_ids"
_CRITERIA = "_specialize_on"
# What AOTAutograd leaves on results whose sizes were symbolic.
_PROPAGATED = "_dynamo_propagated_dynamic_indices"


class DimRange(NamedTuple):
    """Bounds of one dimension; torch's own marks have the same three attributes."""

    dim: int
    min: int | None
    max: int | None


def _dims(t: Any, index: Any, what: str) -> list[int]:
    if not isinstance(t, torch.Tensor):
        raise TypeError(f"{what} takes a tensor, not {type(t).__name__}")
    dims = index if isinstance(index, (list, tuple)) else [index]
    for dim in dims:
        if isinstance(dim, bool) or not isinstance(dim, int):
            raise TypeError(f"{what}: a dimension is an int, not {type(dim).__name__} {dim!r}")
        if not -t.dim() <= dim < t.dim():
            raise IndexError(f"{what}: dimension {dim} of a tensor with {t.dim()} dimensions")
    return [dim % t.dim() for dim in dims]


def _parts_alike(t: torch.Tensor) -> list[torch.Tensor]:
    """The tensors that a wrapper holds, of as many dimensions: they are marked with it."""
    if not is_traceable_wrapper_subclass(t):
        return []
    parts = [getattr(t, name) for name in t.__tensor_flatten__()[0]]
    tensors = [part for part in parts if isinstance(part, torch.Tensor)]
    return [part for part in tensors if part.dim() == t.dim()]


def _check_bounds(what: str, **bounds: Any) -> None:
    for name, value in bounds.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            kind = type(value).__name__
            raise TypeError(f"{what}: {name} must be an int or None, not {kind} {value!r}")
    low, high = bounds["min"], bounds["max"]
    if low is not None and high is not None and low > high:
        raise UserError(f"{what}: min={low} is above max={high}")


def _add(
    t: torch.Tensor, attribute: str, dims: Iterable[int], remove_from: Sequence[str]
) -> None:
    setattr(t, attribute, {*getattr(t, attribute, ()), *dims})
    for other in remove_from:
        if hasattr(t, other):
            setattr(t, other, getattr(t, other) - set(dims))
    t._minidynamo_marks = marks_of(t)  # type: ignore[attr-defined]
    _C.note_marks()


def marks_of(t: torch.Tensor) -> int:
    """The marks of all dimensions as bits, which guards compare."""
    marks = 0
    for place, attribute in enumerate((_DYNAMIC, _WEAK, _STATIC, _UNBACKED, _STRICT)):
        for dim in getattr(t, attribute, ()):
            marks |= 1 << 12 * place + dim % t.dim() % 12
    return marks


def _set_criteria(t: torch.Tensor, dims: list[int], checks: Any, what: str) -> None:
    if not isinstance(checks, (list, tuple, type(None))):
        raise TypeError(f"{what}: specialize_on must be a list of functions, not {checks!r}")
    for check in checks or ():
        if not callable(check):
            raise TypeError(f"{what}: specialize_on takes functions of a size, not {check!r}")
    if checks or hasattr(t, _CRITERIA):
        kept = getattr(t, _CRITERIA, {})
        setattr(t, _CRITERIA, {**kept, **dict.fromkeys(dims, list(checks or ()))})


def mark_dynamic(
    t: Any,
    index: Any,
    *,
    hint_override: int | None = None,
    min: int | None = None,
    max: int | None = None,
    specialize_on: Sequence[Callable[..., Any]] | None = None,
) -> None:
    """Make the size of dimension `index` (int, list, tuple) symbolic at the first compilation.

    Specialising it is then an error (sizes 0 and 1 are excepted), and `min` and `max` bound it.
    specialize_on: functions of a size; sizes for which one gives True (the first, of several) get
    compiled code of their own, made at the first call with such a size.
    hint_override: a size that torch.compile tunes for; it has no effect here.
    Raises TypeError or IndexError for a bad index.
    """
    dims = _dims(t, index, "mark_dynamic")
    for part in _parts_alike(t):
        mark_dynamic(part, dims, min=min, max=max)
    _check_bounds("mark_dynamic", hint_override=hint_override, min=min, max=max)
    _add(t, _DYNAMIC, dims, (_STATIC,))
    _set_criteria(t, dims, specialize_on, "mark_dynamic")
    kept = {row for row in getattr(t, _RANGE, ()) if row.dim % t.dim() not in dims}
    setattr(t, _RANGE, kept | {DimRange(dim, min, max) for dim in dims})
    t._dynamo_hint_overrides = getattr(
        t, "_dynamo_hint_overrides", {}
    )  # torch's own looks there


def maybe_mark_dynamic(t: Any, index: Any) -> None:
    """As `mark_dynamic`, but the dimension may still be specialised without an error."""
    dims = _dims(t, index, "maybe_mark_dynamic")
    for part in _parts_alike(t):
        maybe_mark_dynamic(part, dims)
    _add(t, _WEAK, dims, (_STATIC,))


def mark_unbacked(
    t: Any,
    index: Any,
    hint_override: int | None = None,
    strict: bool = False,
    specialize_on: Sequence[Callable[..., Any]] | None = None,
    shape_id: str | None = None,
    min: int | None = None,
    max: int | None = None,
) -> None:
    """Make the size of dimension `index` a symbol without a value: 0 and 1 are like other sizes.

    A branch on it breaks the graph (`torch._check` tells what holds). strict: making it a constant
    is an error. Dimensions with one `shape_id` have equal sizes; `min` and `max` bound them.
    hint_override, specialize_on: as of `mark_dynamic`.
    Raises TypeError or IndexError for a bad index, UserError where `t` is out of the bounds.
    """
    dims = _dims(t, index, "mark_unbacked")
    _check_bounds("mark_unbacked", hint_override=hint_override, min=min, max=max)
    if not isinstance(strict, bool):
        raise TypeError(f"mark_unbacked: strict must be a bool, not {strict!r}")
    if not isinstance(shape_id, (str, type(None))):
        raise TypeError(f"mark_unbacked: shape_id must be a str or None, not {shape_id!r}")
    for dim in dims:
        size = t.shape[dim]
        if (min is not None and size < min) or (max is not None and size > max):
            raise UserError(f"mark_unbacked: size {size} is not in [{min}, {max}]")
        if min is not None or max is not None:
            setattr(t, _BOUNDS, {**getattr(t, _BOUNDS, {}), dim: (min, max)})
        if shape_id is not None:
            setattr(t, _SHAPE_IDS, {**getattr(t, _SHAPE_IDS, {}), dim: shape_id})
    _add(t, _UNBACKED, dims, (_STATIC,))
    _set_criteria(t, dims, specialize_on, "mark_unbacked")
    if strict:
        _add(t, _STRICT, dims, ())


def mark_static(t: Any, index: Any = None) -> Any:
    """Keep the size of dimension `index` (default: all) a constant, also when it changes.

    Given a class of nn.Module instead, keep the int attributes of its instances constants; it is
    returned, so this is a decorator.
    """
    if isinstance(t, type) and issubclass(t, torch.nn.Module):
        t._dynamo_marked_static = True  # type: ignore[attr-defined]
        return t
    if index is None and isinstance(t, torch.Tensor):
        index = list(range(t.dim()))
    for part in _parts_alike(t):
        mark_static(part, index)
    _add(t, _STATIC, _dims(t, index, "mark_static"), (_DYNAMIC, _WEAK, _UNBACKED, _STRICT))
    return None


def mark_static_address(t: Any, guard: bool = False) -> None:
    """Promise that `t` keeps its data pointer from call to call; with `guard`, code compiled for it
    runs for no other tensor.
    """
    if not isinstance(t, torch.Tensor):
        raise TypeError(f"mark_static_address takes a tensor, not {type(t).__name__}")
    if not isinstance(guard, bool):
        raise TypeError(f"mark_static_address: guard must be a bool, not {guard!r}")
    t._dynamo_static_input_type = "guarded" if guard else "unguarded"  # type: ignore[attr-defined]


def is_address_guarded(t: torch.Tensor) -> bool:
    """Whether `mark_static_address(t, guard=True)` was called, ours or torch's."""
    return getattr(t, "_dynamo_static_input_type", None) == "guarded"


def _read(t: torch.Tensor, attribute: str) -> frozenset[int]:
    return frozenset(dim % t.dim() for dim in getattr(t, attribute, ()) if t.dim())


def dynamic_dims(t: torch.Tensor) -> frozenset[int]:
    """Dimensions marked dynamic, by us or by torch."""
    return _read(t, _DYNAMIC)


def maybe_dynamic_dims(t: torch.Tensor) -> frozenset[int]:
    """Dimensions that may be dynamic if possible."""
    return _read(t, _WEAK) | _read(t, _PROPAGATED)


def unbacked_dims(t: torch.Tensor) -> frozenset[int]:
    """Dimensions marked unbacked."""
    return _read(t, _UNBACKED) | _read(t, _STRICT)


def enforced_dims(t: torch.Tensor) -> frozenset[int]:
    """Dimensions that may not become constants."""
    return dynamic_dims(t) | _read(t, _STRICT)


def unbacked_range(t: torch.Tensor, dim: int) -> tuple[int | None, int | None]:
    """The (min, max) given to `mark_unbacked` for `dim`; None where not given."""
    return getattr(t, _BOUNDS, {}).get(dim, (None, None))


def criteria(t: torch.Tensor) -> dict[int, list[Callable[..., Any]]]:
    """Functions of the size of a dimension, by dimension: where to compile code of its own."""
    return {dim % t.dim(): rows for dim, rows in getattr(t, _CRITERIA, {}).items() if rows}


def shape_id(t: torch.Tensor, dim: int) -> str | None:
    """The name that dimensions of the same unbacked size share."""
    return getattr(t, _SHAPE_IDS, {}).get(dim)


def static_dims(t: torch.Tensor) -> frozenset[int]:
    """Dimensions marked static."""
    return _read(t, _STATIC)


def dynamic_range(t: torch.Tensor, dim: int) -> tuple[int | None, int | None]:
    """The (min, max) given to `mark_dynamic` for `dim`; None where not given."""
    for row in getattr(t, _RANGE, ()):
        if row.dim % t.dim() == dim:
            return row.min, row.max
    return None, None
