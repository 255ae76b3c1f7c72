"""What torch is told of tensors of the frame when it makes fakes of them.

A symbolic context says which sizes are symbolic; a source where the tensor comes from; it
comes back with the symbols that torch makes for it (`place_of`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch._guards
from torch.fx.experimental.symbolic_shapes import (
    ConstraintViolationError,
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
    StrictMinMaxConstraint,
    SubclassSymbolicContext,
)
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.singleton_int import SingletonInt
from torch.utils._sympy.value_ranges import ValueRanges

from . import listed_sources, markers
from .exc import UserError
from .source import AttrSource, CallSource, ConstSource, Source, TensorPropertySource


class ConstraintViolation(UserError, ConstraintViolationError):
    """A dimension marked dynamic became a constant, or got other bounds; torch's error too."""


@dataclass(frozen=True, eq=False)
class TorchSource(torch._guards.Source):
    """One of our sources as torch's ShapeEnv wants them: it needs the name."""

    source: Source

    def __hash__(self) -> int:
        return hash(self.source)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TorchSource) and other.source == self.source

    @property
    def _name_template(self) -> str:
        return self.source.name

    @functools.cached_property
    def guard_source(self) -> Any:
        return torch._guards.GuardSource.LOCAL


def unbacked_dims(value: torch.Tensor, source: Source) -> frozenset[int]:
    """The dimensions whose sizes the user marked, or listed, to be unknown while tracing."""
    listed = listed_sources.is_unbacked(source.name)
    return frozenset(range(value.dim())) if listed else markers.unbacked_dims(value)


def wrapped_tensors(value: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    """The tensors that one wraps, by name. What else `__tensor_flatten__` names, such as the mesh
    of devices of a DTensor, is left out.
    """
    names = value.__tensor_flatten__()[0]  # type: ignore[attr-defined]
    parts = [(name, getattr(value, name)) for name in names]
    return [(name, part) for name, part in parts if isinstance(part, torch.Tensor)]


def static_context(
    value: torch.Tensor,
    *,
    outer_only: bool = False,
) -> Any:
    """All sizes are constants. outer_only: without those of the tensors that it wraps."""
    base = value._base
    plain: StatelessSymbolicContext[..., Any] = StatelessSymbolicContext(
        dynamic_sizes=[DimDynamic.STATIC] * value.dim(),
        view_base_context=None if base is None else static_context(base),
    )
    if outer_only or not is_traceable_wrapper_subclass(value):
        return plain
    inner = {name: static_context(part) for name, part in wrapped_tensors(value)}
    return of_wrapper(plain, inner, ConstSource(None))


def of_wrapper(
    outer: StatelessSymbolicContext[..., Any],
    inner: dict[str, Any],
    source: Source,
) -> SubclassSymbolicContext:
    """The context of a tensor that wraps others, by the names of these."""
    fields = "dynamic_sizes dynamic_strides constraint_sizes constraint_strides"
    own = {name: getattr(outer, name) for name in (*fields.split(), "view_base_context")}
    return SubclassSymbolicContext(
        **own, tensor_source=TorchSource(source), inner_contexts=inner
    )


def parts_of(source: Source, value: torch.Tensor) -> list[tuple[Source, torch.Tensor]]:
    """A tensor, or those that it wraps, with their sources."""
    if not is_traceable_wrapper_subclass(value):
        return [(source, value)]
    parts = [parts_of(AttrSource(source, name), part) for name, part in wrapped_tensors(value)]
    return [leaf for part in parts for leaf in part]


def constraint_of(value: torch.Tensor, dim: int, dynamic: frozenset[int]) -> Any:
    """The range that the user gave with `mark_dynamic`; None without one. Raises
    ConstraintViolation where the size is out of it.
    """
    low, high = markers.dynamic_range(value, dim)
    if dim not in dynamic or (low is None and high is None) or value.shape[dim] in (0, 1):
        return None
    size = value.shape[dim]
    if (low is not None and size < low) or (high is not None and size > high):
        raise ConstraintViolation(f"mark_dynamic: size {size} is not in [{low}, {high}]")
    upper = int_oo if high is None else high
    return StrictMinMaxConstraint(
        vr=ValueRanges(max(low or 0, 2), upper),  # type: ignore[arg-type]
        warn_only=False,
    )


def nested_context(
    value: torch.Tensor,
    inside: Sequence[DimDynamic] | None = None,
) -> StatelessSymbolicContext[..., Any]:
    """Of a nested tensor itself: its sizes follow from those of the tensors inside. inside: which
    of the values' sizes are symbolic; those of a tensor that it is a view of are, too.
    """
    base = value._base

    def moving(
        sizes: Sequence[DimDynamic],
        of_base: Any = None,
    ) -> Any:
        return StatelessSymbolicContext(
            dynamic_sizes=list(sizes),
            view_base_context=of_base,
        )

    dynamic = [DimDynamic.DYNAMIC] * value.dim()
    if base is None:
        return moving(dynamic)
    sizes = [DimDynamic.DYNAMIC] * base.dim()
    if inside is not None and base.shape == value._values.shape:  # type: ignore[attr-defined]
        ragged = value._ragged_idx - 1  # type: ignore[attr-defined]
        sizes = [
            old if dim == ragged else new
            for dim, (old, new) in enumerate(zip(sizes, inside, strict=True))
        ]
    return moving(dynamic, moving(sizes))


def places(source: Source, fake: torch.Tensor) -> Iterator[tuple[Source, Any]]:
    """Where the numbers of a tensor's geometry are, and those that its fake has for them."""
    for dim, size in enumerate(fake.shape):
        yield TensorPropertySource(source, "size", dim), size
    for dim, stride in enumerate(fake.stride()):
        yield TensorPropertySource(source, "stride", dim), stride
    yield TensorPropertySource(source, "storage_offset"), fake.storage_offset()


def places_of_gradient(
    source: Source, fake: torch.Tensor
) -> Iterator[tuple[Source, torch.SymInt | int]]:
    """Sizes that the fake of a tensor's gradient has, which torch makes along with the tensor's:
    they are the tensor's own, also where there is no gradient any more.
    """
    grad = fake.grad if fake.is_leaf else None
    for dim, size in enumerate(() if grad is None else grad.shape):
        yield TensorPropertySource(source, "size", dim), size


@functools.cache
def _reader(prop: str, dim: int) -> Any:
    return lambda nested: getattr(nested, prop)()[dim]


def place_in_nested(place: TensorPropertySource) -> Source:
    """A size or a stride of a nested tensor, which C++ does not know."""
    if place.dim is None:
        return CallSource(place.base, torch.Tensor.storage_offset, f"{place.name}")
    return CallSource(place.base, _reader(place.prop, place.dim), f"{place.name}")


def hint_of(known: Any) -> Any:
    """The int of this call that a symbol stands for."""
    if isinstance(known, SingletonInt):
        return torch._C._get_nested_int(known._val, known._coeff)
    return None if known is None else int(known)


def is_ragged_symbol(env: ShapeEnv, symbol: Any) -> bool:
    """Whether a symbol stands for a nested int."""
    return isinstance(env.backed_var_to_val.get(symbol), SingletonInt)


def is_ragged(number: Any) -> bool:
    """Whether a symbolic number depends on a nested int."""
    node = number.node
    if node.is_nested_int():
        return True
    return any(is_ragged_symbol(node.shape_env, symbol) for symbol in node.expr.free_symbols)


def place_of(known_as: Any) -> Source | None:
    """Our source for one that torch made of ours; None for those of values that it computed."""
    if isinstance(known_as, TorchSource):
        return known_as.source
    base = place_of(known_as.base) if hasattr(known_as, "base") else None
    if base is not None and hasattr(known_as, "prop"):
        return TensorPropertySource(base, known_as.prop.name.lower(), known_as.idx)
    return AttrSource(base, known_as.member) if base is not None else None


def between(found: Any) -> str:
    """A range of sizes in words."""
    if not is_bound(found.upper):
        return f"{found.lower} or more"
    return f"between {found.lower} and {found.upper}"


def is_bound(value: Any) -> bool:
    """Whether an end of a range of sizes is a number."""
    return bool(value.is_Integer) and value not in (int_oo, -int_oo)
