"""The kinds of guards: what each asks of an object, and how it says that this no longer holds.

`ROWS[Check.X]` is all that the compiler knows of a kind besides the native check itself
(csrc/guards_check.cpp): how an expected value is prepared when the guard is added, what the native
program gets of it, and two texts.
"""

from __future__ import annotations

import enum
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from . import _C, markers
from .constant_values import HeldWeakly, Shown, constant_text
from .guard_expr import Expr, expr_text, leaves
from .source import LocalSource, Source, TensorPropertySource

# (name, expected, found) -> why a guard does not hold.
Failure = Callable[[str, Any, Any], str]


class Check(enum.StrEnum):
    """What a guard asks; in parentheses the expected value. The names may be given as strings."""

    TYPE_IS = "TYPE_IS"  # type(x) is (type)
    ID_IS = "ID_IS"  # x is (object); held weakly where it can be, a dead one fails for good
    IS_NONE = "IS_NONE"  # x is None
    NOT_NONE = "NOT_NONE"  # x is not None
    BOOL_IS = "BOOL_IS"  # bool(x) is (bool)
    CONST_EQ = "CONST_EQ"  # same type, equal (value); floats by their bits, tuples item by item
    LEN_EQ = "LEN_EQ"  # len(x) == (int)
    DICT_KEYS = "DICT_KEYS"  # x has exactly the (keys), in this order
    DICT_HAS = "DICT_HAS"  # the storage of dict x has the (key)
    DICT_LACKS = "DICT_LACKS"  # it has not
    HAS_ATTR = "HAS_ATTR"  # hasattr(x, (name))
    LACKS_ATTR = "LACKS_ATTR"  # not hasattr(x, (name))
    TYPE_VERSION = "TYPE_VERSION"  # all attributes of the (class) x and its bases are the same
    CLASS_LACKS = "CLASS_LACKS"  # neither class x nor a base of it defines the (name)
    TENSOR_MATCH = "TENSOR_MATCH"  # x is like the (TensorSpec or tensor)
    ALIAS = "ALIAS"  # x is what the (source) gives
    NOT_ALIAS = "NOT_ALIAS"  # x is not what the (source) gives
    NOT_ALIASED_GROUP = "NOT_ALIASED_GROUP"  # the objects of the (sources) are all different
    MEMORY_LAYOUT = "MEMORY_LAYOUT"  # no tensor lies on one that is written, but as (it) says
    PREDICATE = "PREDICATE"  # a (Predicate) answers True: Python code, so the slow way
    EXPR = "EXPR"  # an (expression of guard_expr.py) over sizes and ints is true
    GLOBAL_STATE = "GLOBAL_STATE"  # grad mode, autocast, ... are as in the (GlobalState)


@dataclass(frozen=True, eq=False)
class Predicate:
    """`function(x, *others) -> bool`, x being the guard's own object if it has a source."""

    function: Callable[..., Any]
    text: str
    others: tuple[Source, ...] = ()


@dataclass(frozen=True, slots=True)
class MemoryLayout:
    """Which of some tensors lie on memory that the graph writes to.

    placements: for each source (is it written to; number of its group, -1 for none; storage offset
    in elements). The members of a group lie on one storage and overlap, one of them written to.
    """

    sources: tuple[Source, ...]
    placements: tuple[tuple[bool, int, int], ...]

    @property
    def is_shared(self) -> bool:
        """Whether two of them overlap where one is written to."""
        return any(group >= 0 for _, group, _ in self.placements)

    @classmethod
    def of(
        cls, sources: Sequence[Source], tensors: Sequence[torch.Tensor], mutated: Sequence[bool]
    ) -> MemoryLayout:
        """What is the case now."""
        ranges = [_memory_range(tensor) for tensor in tensors]
        placed = sorted((i for i in range(len(ranges)) if ranges[i]), key=lambda i: ranges[i])
        clusters: list[list[int]] = []
        end = 0
        for i in placed:
            if ranges[i][0] < end:
                clusters[-1].append(i)
            else:
                clusters.append([i])
            end = max(end, ranges[i][1])
        shared = [c for c in clusters if len(c) > 1 and any(mutated[i] for i in c)]
        firsts = sorted(min(cluster) for cluster in shared)
        group = {i: firsts.index(min(cluster)) for cluster in shared for i in cluster}
        placements = tuple(
            (
                bool(mutated[i]),
                group.get(i, -1),
                tensors[i].storage_offset() if i in group else 0,
            )
            for i in range(len(ranges))
        )
        return cls(tuple(sources), placements)


def _memory_range(tensor: torch.Tensor) -> tuple[int, ...]:
    """(first byte, byte after the last) of a tensor with strides; () for others."""
    python = torch._C._dispatch_keys(tensor).has(torch._C.DispatchKey.Python)
    if python or tensor.layout is not torch.strided or tensor.numel() == 0:
        return ()
    last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    start = tensor.data_ptr()
    return (start, start + (last + 1) * tensor.element_size())


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """What TENSOR_MATCH compares.

    keys: the dispatch keys as eager dispatch would see them (with what the thread includes and
    excludes), as c10::DispatchKeySet.raw_repr(); so conj, neg, inference, functorch and Python
    subclasses differ. sizes and strides: None stands for any; strides None: not compared.
    marks: those of `markers.marks_of`; others are new.
    """

    pytype: type
    keys: int
    dtype: torch.dtype
    device: torch.device
    layout: torch.layout
    requires_grad: bool
    sizes: tuple[int | None, ...]
    strides: tuple[int | None, ...] | None
    marks: int = 0

    @staticmethod
    def of(
        tensor: torch.Tensor,
        *,
        sizes: Sequence[int | None] | None = None,
        strides: Sequence[int | None] | None = None,
        any_strides: bool = False,
        state: Any = None,
    ) -> TensorSpec:
        """The spec that `tensor` matches, under the thread's dispatch state `state` (default: now).

        sizes, strides: what to compare instead of the tensor's own; any_strides: no strides.
        """
        state = state or _C.GlobalState()
        has_strides = tensor.layout is torch.strided and not tensor.is_nested
        own_strides = tensor.stride() if has_strides and not any_strides else None
        return TensorSpec(
            type(tensor),
            (_C.tensor_key_set(tensor) | state.included) & ~state.excluded,
            tensor.dtype,
            tensor.device,
            tensor.layout,
            tensor.requires_grad,
            tuple(tensor.shape if sizes is None else sizes),
            own_strides if strides is None else tuple(strides),
            markers.marks_of(tensor),
        )

    def text(self) -> str:
        """One phrase for lists of guards."""
        sizes = ", ".join("any" if size is None else str(size) for size in self.sizes)
        grad = ", requires_grad" if self.requires_grad else ""
        return f"{self.pytype.__name__} of {self.dtype}, ({sizes}), on {self.device}{grad}"


def _numbered(what: str, expected: Sequence[int | None], found: Sequence[int]) -> str:
    for dim, (want, have) in enumerate(zip(expected, found, strict=True)):
        if want is not None and want != have:
            return f"{what} mismatch at index {dim}. expected {want}, actual {have}"
    return ""


def _keys_text(expected: int, found: int) -> str:
    changes = [("lost", expected & ~found), ("gained", found & ~expected)]
    parts = [f"{verb} {_C.key_set_names(keys)}" for verb, keys in changes if keys]
    return f"dispatch keys: {', '.join(parts)}"


def tensor_difference(spec: TensorSpec, found: Any) -> str:
    """The first difference, or "". Of shapes in the words of torch.compile, which programs and
    tests look for: "size mismatch at index 0. expected 8, actual 9".
    """
    kind = type(found)
    if kind is not spec.pytype:
        return f"type: expected {spec.pytype.__name__}, found {kind.__name__}"
    for field in ("dtype", "device", "layout", "requires_grad"):
        want, have = getattr(spec, field), getattr(found, field)
        if want != have:
            return f"{field}: expected {want}, found {have}"
    if len(spec.sizes) != found.dim():
        return f"rank mismatch. expected {len(spec.sizes)}, actual {found.dim()}"
    text = _numbered("size", spec.sizes, found.shape)
    if not text and spec.strides is not None:
        text = _numbered("stride", spec.strides, found.stride())
    if not text:
        state = _C.GlobalState()
        keys = (_C.tensor_key_set(found) | state.included) & ~state.excluded
        text = _keys_text(spec.keys, keys) if keys != spec.keys else ""
    if not text and markers.marks_of(found) & ~spec.marks:
        text = "dimensions were marked since it was compiled"
    return text


def _tensor_failure(name: str, spec: TensorSpec, found: Any) -> str:
    return f"tensor {name!r} {tensor_difference(spec, found)}"


def _or_error(ask: Callable[[], Any]) -> str:
    """What `ask` gives, for a message about an object that may be of any kind now."""
    try:
        return str(ask())
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _of_dict(fails: Failure) -> Failure:
    def text(name: str, expected: Any, found: Any) -> str:
        if not isinstance(found, dict):
            return f"{name} ({constant_text(found)}) is no longer a dict"
        return fails(name, expected, found)

    return text


def _length_failure(name: str, size: int, found: Any) -> str:
    return f"length of {name}: expected {size}, found {_or_error(lambda: _length(found))}"


def _length(value: Any) -> int:
    """The number of items, of a container also where its class says another."""
    bases: tuple[Any, ...] = (tuple, list, dict, set, frozenset)
    for base in bases:
        if isinstance(value, base):
            return int(base.__len__(value))
    return len(value)


def _keys_failure(name: str, expected: tuple[Any, ...], found: dict[Any, Any]) -> str:
    alive = [key.reference() if isinstance(key, HeldWeakly) else key for key in expected]
    known = dict.fromkeys(alive)  # tensors as keys are found by identity
    added = [constant_text(key) for key in found if key not in known]
    removed = [
        constant_text(key)
        for key, real in zip(expected, alive, strict=True)
        if real not in found
    ]
    changes = [f"now has {', '.join(added)}"] if added else []
    changes += [f"no longer has {', '.join(removed)}"] if removed else []
    return f"{name} {' and '.join(changes) or 'has its keys in another order'}"


def _id_failure(name: str, expected: Any, found: Any) -> str:
    wanted, shown = constant_text(expected), constant_text(found)
    if wanted == shown:
        return f"{name} is no longer the same {type(found).__qualname__}"
    return f"{name} ({shown}) is no longer {wanted}"


def _group_failure(name: str, sources: tuple[Source, ...], found: Sequence[Any]) -> str:
    first: dict[int, str] = {}
    for source, value in zip(sources, found, strict=True):
        if id(value) in first:
            return f"{first[id(value)]} and {source.name} are now the same object"
        first[id(value)] = source.name
    return f"two of {', '.join(first.values())} were the same object"


def _value_of(leaf: Source, values: dict[Source, Any]) -> str:
    if not isinstance(leaf, TensorPropertySource):
        return constant_text(values[leaf])
    dims = () if leaf.dim is None else (leaf.dim,)
    return _or_error(lambda: getattr(values[leaf.base], leaf.prop)(*dims))


def _expr_failure(name: str, expression: Expr, found: dict[Source, Any]) -> str:
    known = {leaf: _value_of(leaf, found) for leaf in dict.fromkeys(leaves(expression))}
    values = ", ".join(f"{leaf.name} is {value}" for leaf, value in known.items())
    return f"{expr_text(expression)} no longer holds: {values}"


def named(source: Source) -> Source:
    """`source`, or where it keeps an object alive, one that has only its name."""
    return LocalSource(source.name) if source.keeps_alive else source


def _named_expr(expression: Expr) -> Expr:
    if isinstance(expression, TensorPropertySource):
        return TensorPropertySource(named(expression.base), expression.prop, expression.dim)
    if isinstance(expression, Source):
        return named(expression)
    if isinstance(expression, tuple):
        return (expression[0], *map(_named_expr, expression[1:]))
    return expression


def _state_failure(name: str, expected: Any, found: Any) -> str:
    current = _C.GlobalState()
    now = current.describe()
    changes = [
        f"{what}: expected {want}, found {now[what]}"
        for what, want in expected.describe().items()
        if want != now[what]
    ]
    if not changes and current.included != expected.included:
        changes = [f"of the thread, {_keys_text(expected.included, current.included)}"]
    if not changes and current.excluded != expected.excluded:
        changes = [f"excluded {_keys_text(expected.excluded, current.excluded)}"]
    return "; ".join(changes) or "the global state of torch was another"


@dataclass(frozen=True)
class Row:
    """One kind: texts get (name, expected[, found]); `found` is an object, or those of a relation.

    says: what holds. fails: why it does not. kept: what of the expected value the texts need after
    compiling (an entry must not keep alive what it only compares with).
    """

    says: Callable[[str, Any], str]
    fails: Failure
    kept: Callable[[Any], Any] = lambda expected: expected


def _shown(value: Any) -> Shown:
    return Shown(constant_text(value))


def _kept_key(key: Any) -> Any:
    """A key that is told apart by identity is held weakly."""
    kind = type(key)
    if not kind.__weakrefoffset__ or kind.__hash__ not in (
        object.__hash__,
        torch.Tensor.__hash__,
    ):
        return key
    return HeldWeakly(constant_text(key), weakref.ref(key))


def _kept_keys(keys: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(map(_kept_key, keys))


ROWS: dict[Check, Row] = {
    Check.TYPE_IS: Row(
        lambda name, kind: f"type({name}) is {constant_text(kind)}",
        lambda name, kind, found: (
            f"type({name}) ({constant_text(type(found))}) is no longer {constant_text(kind)}"
        ),
        kept=_shown,
    ),
    Check.ID_IS: Row(
        lambda name, value: f"{name} is {constant_text(value)}",
        _id_failure,
        kept=_shown,
    ),
    Check.IS_NONE: Row(
        lambda name, _: f"{name} is None",
        lambda name, _, found: f"{name} ({constant_text(found)}) is no longer None",
    ),
    Check.NOT_NONE: Row(
        lambda name, _: f"{name} is not None",
        lambda name, _, found: f"{name} is now None",
    ),
    Check.BOOL_IS: Row(
        lambda name, value: f"bool({name}) is {value}",
        lambda name, value, found: f"bool({name}) is no longer {value}",
    ),
    Check.CONST_EQ: Row(
        lambda name, value: f"{name} == {constant_text(value)}",
        lambda name, value, found: (
            f"{name} ({constant_text(found)}) is no longer {constant_text(value)}"
        ),
    ),
    Check.LEN_EQ: Row(
        lambda name, size: f"len({name}) == {size}",
        _length_failure,
    ),
    Check.DICT_KEYS: Row(
        lambda name, keys: f"list({name}) == {constant_text(keys)}",
        _of_dict(_keys_failure),
        kept=_kept_keys,
    ),
    Check.DICT_HAS: Row(
        lambda name, key: f"{constant_text(key)} in {name}",
        _of_dict(lambda name, key, found: f"{name} no longer has {constant_text(key)}"),
        kept=_kept_key,
    ),
    Check.DICT_LACKS: Row(
        lambda name, key: f"{constant_text(key)} not in {name}",
        _of_dict(lambda name, key, found: f"{name} now has {constant_text(key)}"),
        kept=_kept_key,
    ),
    Check.HAS_ATTR: Row(
        lambda name, attribute: f"hasattr({name}, {attribute!r})",
        lambda name, attribute, found: f"{name} no longer has the attribute {attribute!r}",
    ),
    Check.LACKS_ATTR: Row(
        lambda name, attribute: f"not hasattr({name}, {attribute!r})",
        lambda name, attribute, found: f"{name} now has the attribute {attribute!r}",
    ),
    Check.TYPE_VERSION: Row(
        lambda name, version: f"class {name} is unchanged",
        lambda name, version, found: f"class {name} or a base of it was changed",
    ),
    Check.CLASS_LACKS: Row(
        lambda name, attribute: f"class {name} does not define {attribute!r}",
        lambda name, attribute, found: f"class {name} now defines {attribute!r}",
    ),
    Check.TENSOR_MATCH: Row(lambda name, spec: f"{name}: {spec.text()}", _tensor_failure),
    Check.ALIAS: Row(
        lambda name, other: f"{name} is {other.name}",
        lambda name, other, found: f"{name} and {other.name} are no longer the same object",
        kept=named,
    ),
    Check.NOT_ALIAS: Row(
        lambda name, other: f"{name} is not {other.name}",
        lambda name, other, found: f"{name} and {other.name} are now the same object",
        kept=named,
    ),
    Check.NOT_ALIASED_GROUP: Row(
        lambda name, sources: f"{', '.join(s.name for s in sources)} are different objects",
        _group_failure,
        kept=lambda sources: tuple(named(source) for source in sources),
    ),
    Check.MEMORY_LAYOUT: Row(
        lambda name, layout: (
            f"{', '.join(s.name for s in layout.sources)}: what is written overlaps as it did"
        ),
        lambda name, layout, found: (
            f"{', '.join(s.name for s in layout.sources)} now overlap in memory in another way, "
            "and one of them is written to"
        ),
        kept=lambda layout: MemoryLayout(
            tuple(named(source) for source in layout.sources), layout.placements
        ),
    ),
    Check.PREDICATE: Row(
        lambda name, predicate: predicate.text,
        lambda name, predicate, found: f"{predicate.text} no longer holds",
        kept=lambda predicate: Predicate(bool, predicate.text),
    ),
    Check.EXPR: Row(
        lambda name, expression: expr_text(expression),
        _expr_failure,
        kept=_named_expr,
    ),
    Check.GLOBAL_STATE: Row(
        lambda name, state: "global state of torch is unchanged",
        _state_failure,
    ),
}
assert set(ROWS) == set(Check)
