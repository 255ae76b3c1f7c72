"""`compile(dynamic_shapes=...)`: the user says which sizes and ints of the arguments are symbolic.

A spec (torch.fx.experimental.dynamic_spec, torch 2.13 and newer) tells it by the parameters' names:
a `TensorSpec` has an entry for each dimension, `DictSpec`, `SeqSpec` and `ObjectSpec` lead into
containers. A variable is a size of which nothing is known but its range; where it stands twice the
two are equal; an expression over variables is a size that is computed from theirs; an int is a size
that has to be that, None any constant. What a spec does not speak of is a constant.

What it says is checked when a graph is compiled, and is a guard of the graph: a call that does not
fit it compiles again, and raises UserError.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from importlib import import_module
from types import CodeType, FunctionType, MethodType
from typing import Any

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
)

from .exc import UserError
from .source import (
    AttrSource,
    DictItemSource,
    InstanceAttrSource,
    ListItemSource,
    LocalSource,
    ModuleItemSource,
    SlotSource,
    Source,
    TupleItemSource,
)
from .symbolic_contexts import static_context

UNBACKED = getattr(DimDynamic, "UNBACKED", None) or DimDynamic.SIZE_LIKE_UNBACKED
_UID = re.compile(r"#\d+")


def checked_spec(
    spec: Any,
    dynamic: bool | None,
) -> Any:
    """A ShapesSpec of what `compile` was given. Raises TypeError for anything else, ValueError
    where `dynamic` was given, too.
    """
    if spec is None:
        return None
    if dynamic is not None:
        raise ValueError(
            "compile: give either dynamic or dynamic_shapes, which tells what is dynamic"
        )
    try:
        specs = import_module("torch.fx.experimental.dynamic_spec")
    except ImportError:
        raise UserError("compile: dynamic_shapes needs torch 2.13 or newer") from None
    if isinstance(spec, (specs.ParamsSpec, dict)):
        return specs.ShapesSpec(spec)
    if not isinstance(spec, specs.ShapesSpec):
        kinds = "a ShapesSpec, a ParamsSpec, a dict or None"
        raise TypeError(f"compile: dynamic_shapes must be {kinds}, not {type(spec).__name__}")
    return spec


def attached_spec(model: Any) -> Any:
    """What the decorator `dynamic_spec` of torch 2.14 said of a function or a module's forward."""
    function = model.forward if isinstance(model, torch.nn.Module) else model
    known = isinstance(function, (FunctionType, MethodType))
    return getattr(function, "_dynamic_spec", None) if known else None


class SpecifiedShapes:
    """What a spec says about one frame. code: the frame's; env: where its symbols are made."""

    def __init__(
        self,
        spec: Any,
        code: CodeType,
        env: ShapeEnv,
    ) -> None:
        self._env = env
        self._roots = _roots(spec._params, code)
        # Of the spec's symbols, those of the frame, and their values in this call.
        self._symbols: dict[sympy.Symbol, Any] = {}
        self._values: dict[sympy.Symbol, int] = {}
        # Expressions that have to hold, as soon as all of their symbols are known.
        self._pending: list[tuple[Any, str]] = []
        self._is_used = False
        for assumption in spec.assumptions:
            expr = assumption.node.expr
            self._pending.append((expr, f"the assumption {_pretty(expr)}"))

    def leaf(
        self,
        source: Source,
    ) -> Any:
        """What the spec says about what is at `source`; None where it says nothing.

        Raises UserError where the spec describes something else there.
        """
        path = _path(source)
        if path is None or path[0] not in self._roots:
            return None
        found = self._roots[path[0]]
        for step in path[1:]:
            if found is None:
                return None
            found = _entry(found, step, source)
        if found is not None and type(found).__name__ in _ENTRIES:
            raise UserError(
                f"dynamic_shapes: {source.name} has no entries, its spec is a {found}"
            )
        return found

    def context(
        self,
        value: torch.Tensor,
        source: Source,
    ) -> tuple[StatelessSymbolicContext[..., Any] | None, frozenset[int]]:
        """Which dimensions of a tensor are symbolic, as `FakeTensorMode.from_tensor` takes it (None
        if none is), and as a set.
        """
        dims = self._dims(value, source)
        found = frozenset(i for i, dim in enumerate(dims) if isinstance(dim, torch.SymInt))
        if not found:
            return None, found
        base = value._base
        context: StatelessSymbolicContext[..., Any] = StatelessSymbolicContext(
            dynamic_sizes=[
                UNBACKED if i in found else DimDynamic.STATIC for i in range(value.dim())
            ],
            view_base_context=None if base is None else static_context(base),
        )
        return context, found

    def _dims(
        self,
        value: torch.Tensor,
        source: Source,
    ) -> list[Any]:
        spec = self.leaf(source)
        if spec is None:
            return [None] * value.dim()
        if not hasattr(spec, "_specs"):
            raise UserError(f"dynamic_shapes: {source.name} is a tensor, its spec is {spec!r}")
        if len(spec) != value.dim():
            counts = f"has {value.dim()} dimensions, its spec has {len(spec)}"
            raise UserError(f"dynamic_shapes: {source.name} {counts}")
        for dim, (wanted, size) in enumerate(zip(spec, value.shape, strict=True)):
            if type(wanted) is int and wanted != size:
                place = f"{source.name}.size({dim})"
                raise UserError(f"dynamic_shapes: {place} is {size}, its spec is {wanted}")
        return list(spec)

    def note_size(
        self,
        value: torch.Tensor,
        size: Any,
        dim: int,
        source: Source,
    ) -> None:
        """What the spec says about a symbolic size holds from the start."""
        name = f"{source.name}.size({dim})"
        self._bind(self._dims(value, source)[dim], size, value.shape[dim], name)

    def is_symbolic(
        self,
        value: float,
        source: Source,
    ) -> bool:
        """Whether a number of the frame is to be a symbol. Raises UserError where it is another
        than the spec says.
        """
        spec = self.leaf(source)
        if hasattr(spec, "_specs"):
            raise UserError(f"dynamic_shapes: {source.name} is a number, its spec a TensorSpec")
        if type(spec) is int and spec != value:
            raise UserError(f"dynamic_shapes: {source.name} is {value}, its spec is {spec}")
        return isinstance(spec, torch.SymInt) and type(value) is int

    def note_number(
        self,
        value: int,
        number: Any,
        source: Source,
    ) -> None:
        """As `note_size`."""
        self._bind(self.leaf(source), number, value, source.name)

    def _bind(
        self,
        spec: Any,
        number: Any,
        value: int,
        name: str,
    ) -> None:
        self._is_used = True
        symbol = getattr(spec, "sympy_sym", None)
        if symbol is None:
            expr = spec.node.expr
            own = sympy.Symbol(name, integer=True)
            self._symbols[own], self._values[own] = number, value
            self._pending.append((sympy.Eq(own, expr), f"{name} == {_pretty(expr)}"))
        elif symbol in self._symbols:
            if self._values[symbol] != value:
                other = f"another {spec.name} is {self._values[symbol]}"
                raise UserError(f"dynamic_shapes: {name} is {value}, {other}")
            torch._check(number == self._symbols[symbol])
        else:
            self._symbols[symbol], self._values[symbol] = number, value
            low, high = spec.min, spec.max
            if (low is not None and value < low) or (high is not None and value > high):
                raise UserError(f"dynamic_shapes: {name} is {value}, not in [{low}, {high}]")
            if low is not None:
                torch._check(number >= low)
            if high is not None:
                torch._check(number <= high)
        if getattr(spec, "optimization_hint", None) is not None:
            hints: dict[Any, int] = getattr(self._env, "var_to_hint_override", {})
            hints[number.node.expr] = spec.optimization_hint
        self._settle()

    def _settle(
        self,
    ) -> None:
        """Checks what can be checked by now."""
        known = {symbol: number.node.expr for symbol, number in self._symbols.items()}
        for row in list(self._pending):
            expr, text = row
            if not expr.free_symbols <= known.keys():
                continue
            self._pending.remove(row)
            holds = expr.subs(self._values)
            if holds != True:  # noqa: E712 (of sympy)
                values = ", ".join(f"{_pretty(s)} = {v}" for s, v in self._values.items())
                raise UserError(f"dynamic_shapes: {text} does not hold, {values}")
            torch._check(self._env.create_symboolnode(expr.xreplace(known)))

    def finish(
        self,
    ) -> None:
        """Raises UserError where the spec speaks of variables that stand nowhere alone."""
        if not self._pending or not self._is_used:
            return
        lines = [text for _, text in self._pending]
        free = set[Any]().union(*(expr.free_symbols for expr, _ in self._pending))
        names = ", ".join(sorted(_pretty(symbol) for symbol in free - self._symbols.keys()))
        why = f"cannot be checked: {names} must be an entry of its own"
        raise UserError(f"dynamic_shapes: {'; '.join(lines)} {why}")


def _pretty(
    expr: Any,
) -> str:
    return _UID.sub("", str(expr))


def _roots(
    params: Any,
    code: CodeType,
) -> Mapping[str, Any]:
    """The spec of each of the frame's arguments, by name."""
    if params is None:
        return {}
    found = dict(params._named_args)
    count = code.co_argcount + code.co_kwonlyargcount
    if code.co_flags & inspect.CO_VARARGS:
        if params._varargs is not None:
            found[code.co_varnames[count]] = params._varargs
        count += 1
    if code.co_flags & inspect.CO_VARKEYWORDS and params._varkw is not None:
        found[code.co_varnames[count]] = params._varkw
    return found


class _Attribute(str):
    """A step of a path that is an attribute."""

    __slots__ = ()


def _path(
    source: Source,
) -> list[Any] | None:
    """The name of the argument that a source starts from and what leads on: attributes and keys.
    None of other sources.
    """
    steps: list[Any] = []
    at: Any = source
    while not isinstance(at, LocalSource):
        match at:
            case AttrSource() | InstanceAttrSource():
                steps.append(_Attribute(at.attribute))
            case SlotSource():
                steps.append(_Attribute(at.descriptor.__name__))
            case ModuleItemSource():
                steps.append(_Attribute(at.key))
            case ListItemSource() | TupleItemSource():
                steps.append(at.index)
            case DictItemSource():
                steps.append(at.key)
            case _:
                return None
        at = at.base
    return [at.local, *reversed(steps)]


def _of_attribute(
    spec: Any,
    step: Any,
) -> Any:
    if not isinstance(step, _Attribute):
        raise KeyError(step)
    return spec._fields.get(str(step))


def _of_key(
    spec: Any,
    step: Any,
) -> Any:
    if isinstance(step, _Attribute):
        raise KeyError(step)
    return (spec if isinstance(spec, dict) else spec._entries).get(step)


def _of_index(
    spec: Any,
    step: Any,
) -> Any:
    entries = spec if isinstance(spec, list) else spec._entries
    if type(step) is not int:
        raise KeyError(step)
    return entries[step] if 0 <= step < len(entries) else None


# How a container's spec leads on, by its type.
_ENTRIES: Mapping[str, Callable[[Any, Any], Any]] = {
    "ObjectSpec": _of_attribute,
    "DictSpec": _of_key,
    "dict": _of_key,
    "SeqSpec": _of_index,
    "list": _of_index,
}


def _entry(
    spec: Any,
    step: Any,
    source: Source,
) -> Any:
    kind = type(spec).__name__
    try:
        return _ENTRIES[kind](spec, step)
    except KeyError:
        raise UserError(
            f"dynamic_shapes: {source.name} is reached by {step!r}, where the spec is a {kind}"
        ) from None
