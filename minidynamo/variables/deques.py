"""collections.deque."""

from __future__ import annotations

import collections
import functools
import operator
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from ..side_effects import Mutation
from ..source import AttrSource, CallSource
from .base import NotConstant, ObservedException, VariableTracker, unsupported
from .builtin_object import (
    NONE,
    NOT_IMPLEMENTED,
    BuiltinObject,
    apply_with,
    builtin_method,
    class_variable,
    construct,
    index_of,
    is_none,
    observed,
    rich_equal,
    type_name,
)
from .constant import ConstantVariable
from .exceptions import ExceptionVariable
from .registry import wraps, wraps_instances
from .services import SEQUENCE_BUILDERS

if TYPE_CHECKING:
    from ..codegen import PyCodegen
    from ..source import Source
    from ..symbolic_convert import Translator

_deque = collections.deque


class DequeVariable(BuiltinObject):
    """A deque; `version` grows with each change, which ends the iterators over it."""

    def __init__(
        self,
        items: list[VariableTracker],
        maxlen: int | None,
        cls: type = _deque,
        *,
        source: Source | None = None,
        mutation: Mutation = Mutation.NEW,
        real: Any = None,
    ) -> None:
        super().__init__(cls, source=source, mutation=mutation, real=real)
        self.items = _deque(items, maxlen)
        self.version = 0

    def change(self, tx: Translator) -> _deque[VariableTracker]:
        """The items, about to be mutated."""
        self.version += 1
        return self.change_in_place(tx)

    def change_in_place(self, tx: Translator) -> _deque[VariableTracker]:
        """The items, about to be replaced by as many others, which ends no iterator."""
        tx.output.side_effects.mutate(self)
        return self.items

    def equal_items(
        self, tx: Translator, item: VariableTracker, start: int = 0, stop: int | None = None
    ) -> Iterator[bool]:
        """Whether the items equal `item`, one after the other. Comparing must not change the
        deque.
        """
        version = self.version
        for own in list(self.items)[start:stop]:
            yield rich_equal(tx, own, item)
            if self.version != version:
                tx.raise_observed(RuntimeError, "deque mutated during iteration")

    def unpack(self, tx: Translator) -> list[VariableTracker]:
        return super().unpack(tx) if self.overrides("__iter__") else list(self.items)

    def as_python_constant(self) -> Any:
        raise NotConstant(self)

    def getattr(self, tx: Translator, name: str) -> VariableTracker:
        if name == "maxlen":
            return ConstantVariable(self.items.maxlen)
        return super().getattr(tx, name)

    def push_contents(self, codegen: PyCodegen) -> None:
        codegen.sequence(list(self.items))
        codegen.emit("BUILD_LIST", len(self.items))

    def reconstruct(self, codegen: PyCodegen) -> None:
        construct(
            codegen,
            _new_deque,
            lambda: codegen.load_const(self.cls),
            lambda: self.push_contents(codegen),
            self.items.maxlen,
        )
        self.reconstruct_attributes(codegen)

    is_fillable = True

    def push_empty(self, codegen: PyCodegen) -> None:
        cls, length = self.cls, self.items.maxlen
        construct(codegen, _new_deque, lambda: codegen.load_const(cls), (), length)

    def apply_contents(self, codegen: PyCodegen) -> None:
        apply_with(codegen, self, _replace_items if self.version else _assign_items)


def _new_deque(cls: type, items: list[Any], maxlen: int | None) -> Any:
    result: Any = _deque.__new__(cls)
    _deque.__init__(result, items, maxlen)
    return result


def _replace_items(real: _deque[Any], items: list[Any]) -> None:
    _deque.clear(real)
    _deque.extend(real, items)


def _assign_items(real: _deque[Any], items: list[Any]) -> None:
    for index, item in enumerate(items):
        _deque.__setitem__(real, index, item)


@functools.lru_cache(maxsize=1024)
def _item_at(index: int) -> Callable[[Any], Any]:
    return operator.itemgetter(index)


@wraps(_deque)
@wraps_instances(_deque)
def wrap_deque(tx: Translator, value: _deque[Any], source: Source) -> VariableTracker:
    """A deque of the frame."""
    tx.guard(source, "TYPE_IS", type(value))
    tx.guard(source, "LEN_EQ", len(value))
    tx.guard(AttrSource(source, "maxlen"), "CONST_EQ", value.maxlen)
    items = [
        tx.lazy(item, CallSource(source, _item_at(index), f"{{base}}[{index}]"))
        for index, item in enumerate(_deque.__iter__(value))
    ]
    return DequeVariable(
        items,
        value.maxlen,
        type(value),
        source=source,
        mutation=Mutation.EXISTING,
        real=value,
    )


@builtin_method(_deque, "__reduce_ex__")
def _reduce_ex(
    tx: Translator, self: DequeVariable, protocol: VariableTracker, /
) -> VariableTracker:
    """`deque_reduce`, for copy.deepcopy."""
    if self.cls is not _deque:
        unsupported("deque method", "__reduce_ex__", "it is a subclass of deque")
    limit = ConstantVariable(self.items.maxlen)
    empty = [] if limit.value is None else [tx.wrap_items(tuple, []), limit]
    parts = [tx.wrap_constant(self.cls), tx.wrap_items(tuple, empty), ConstantVariable(None)]
    return tx.wrap_items(tuple, [*parts, self.iter(tx)])


@builtin_method(_deque, "__init__")
def _init(
    tx: Translator,
    self: DequeVariable,
    iterable: VariableTracker | None = None,
    maxlen: VariableTracker = NONE,
) -> None:
    items = [] if iterable is None else iterable.unpack(tx)
    if not is_none(maxlen) and not hasattr(maxlen.python_type(), "__index__"):
        tx.raise_observed(TypeError, "an integer is required")
    size = None if is_none(maxlen) else index_of(tx, maxlen)
    if size != self.items.maxlen and self.mutation is Mutation.EXISTING:
        unsupported("deque method", "__init__", "it changes the maxlen of an existing deque")
    self.change(tx)
    with observed(tx):
        self.items = _deque(items, size)


@builtin_method(_deque, "__len__")
def _len(tx: Translator, self: DequeVariable, /) -> VariableTracker:
    return ConstantVariable(len(self.items))


@builtin_method(_deque, "__iter__")
def _iter(tx: Translator, self: DequeVariable, /) -> VariableTracker:
    return SEQUENCE_BUILDERS["deque"](tx, self, False)


@builtin_method(_deque, "__reversed__")
def _reversed(tx: Translator, self: DequeVariable, /) -> VariableTracker:
    return SEQUENCE_BUILDERS["deque"](tx, self, True)


@builtin_method(_deque, "append", lazy=True)
def _append(tx: Translator, self: DequeVariable, item: VariableTracker, /) -> None:
    self.change(tx).append(item)


@builtin_method(_deque, "appendleft", lazy=True)
def _appendleft(tx: Translator, self: DequeVariable, item: VariableTracker, /) -> None:
    self.change(tx).appendleft(item)


@builtin_method(_deque, "extend")
def _extend(tx: Translator, self: DequeVariable, iterable: VariableTracker, /) -> None:
    for item in iterable.each(tx):
        self.change(tx).append(item)


@builtin_method(_deque, "__iadd__")
def _iadd(tx: Translator, self: DequeVariable, iterable: VariableTracker, /) -> VariableTracker:
    _extend(tx, self, iterable)
    return self


@builtin_method(_deque, "extendleft")
def _extendleft(tx: Translator, self: DequeVariable, iterable: VariableTracker, /) -> None:
    for item in iterable.each(tx):
        self.change(tx).appendleft(item)


@builtin_method(_deque, "pop")
def _pop(tx: Translator, self: DequeVariable, /) -> VariableTracker:
    with observed(tx):
        return self.change(tx).pop()


@builtin_method(_deque, "popleft")
def _popleft(tx: Translator, self: DequeVariable, /) -> VariableTracker:
    with observed(tx):
        return self.change(tx).popleft()


@builtin_method(_deque, "clear")
def _clear(tx: Translator, self: DequeVariable, /) -> None:
    self.change(tx).clear()


@builtin_method(_deque, "rotate")
def _rotate(
    tx: Translator, self: DequeVariable, steps: VariableTracker | None = None, /
) -> None:
    count = 1 if steps is None else index_of(tx, steps)
    self.change(tx).rotate(count)


@builtin_method(_deque, "reverse")
def _reverse(tx: Translator, self: DequeVariable, /) -> None:
    self.change_in_place(tx).reverse()


@builtin_method(_deque, "insert", lazy=True)
def _insert(
    tx: Translator,
    self: DequeVariable,
    index: VariableTracker,
    item: VariableTracker,
    /,
) -> None:
    position = index_of(tx, index)
    with observed(tx):
        self.change(tx).insert(position, item)


def _raise_missing(tx: Translator, item: VariableTracker) -> NoReturn:
    shown = tx.call_function(tx.wrap_constant(repr), [item], {})
    text = tx.call_operator(operator.add, [shown, ConstantVariable(" is not in deque")])
    raise ObservedException(ExceptionVariable(ValueError, [text]))


@builtin_method(_deque, "remove")
def _remove(tx: Translator, self: DequeVariable, item: VariableTracker, /) -> None:
    version = self.version
    for index, own in enumerate(list(self.items)):
        found = rich_equal(tx, own, item)
        if self.version != version:
            tx.raise_observed(IndexError, "deque mutated during iteration")
        if found:
            del self.change(tx)[index]
            return
    _raise_missing(tx, item)


@builtin_method(_deque, "copy", "__copy__")
def _copy(tx: Translator, self: DequeVariable, /) -> VariableTracker:
    return _copy_of(tx, self)


def _copy_of(tx: Translator, self: DequeVariable) -> DequeVariable:
    """`deque_copy`: a subclass is called, with the deque."""
    bound = self.items.maxlen
    if self.cls is _deque:
        return DequeVariable(list(self.items), bound)
    more = [] if bound is None else [ConstantVariable(bound)]
    made = tx.call_function(class_variable(tx, self.cls), [self, *more], {}).realize()
    if not isinstance(made, DequeVariable):
        own, kind = type_name(self.cls), type_name(made.python_type())
        tx.raise_observed(TypeError, f"{own}() must return a deque, not {kind}")
    return made


@builtin_method(_deque, "__getitem__")
def _getitem(tx: Translator, self: DequeVariable, key: VariableTracker, /) -> VariableTracker:
    index = _index(tx, key)
    with observed(tx):
        return self.items[index]


def _index(tx: Translator, key: VariableTracker) -> int:
    if not hasattr(key.python_type(), "__index__"):
        kind = type_name(key.python_type())
        tx.raise_observed(TypeError, f"sequence index must be integer, not '{kind}'")
    return index_of(tx, key)


@builtin_method(_deque, "__setitem__")
def _setitem(
    tx: Translator,
    self: DequeVariable,
    key: VariableTracker,
    value: VariableTracker,
    /,
) -> None:
    index = _index(tx, key)
    with observed(tx):
        self.change_in_place(tx)[index] = value


@builtin_method(_deque, "__delitem__")
def _delitem(tx: Translator, self: DequeVariable, key: VariableTracker, /) -> None:
    index = _index(tx, key)
    with observed(tx):
        del self.change(tx)[index]


@builtin_method(_deque, "__contains__")
def _contains(tx: Translator, self: DequeVariable, item: VariableTracker, /) -> VariableTracker:
    return ConstantVariable(any(self.equal_items(tx, item)))


@builtin_method(_deque, "count")
def _count(tx: Translator, self: DequeVariable, item: VariableTracker, /) -> VariableTracker:
    return ConstantVariable(sum(self.equal_items(tx, item)))


def _compare(name: str) -> Callable[..., VariableTracker]:
    def row(tx: Translator, self: DequeVariable, other: VariableTracker, /) -> VariableTracker:
        if not isinstance(other, DequeVariable):
            return NOT_IMPLEMENTED
        left, right = (
            tx.wrap_items(list, list(self.items)),
            tx.wrap_items(list, list(other.items)),
        )
        return left.call_method(tx, name, [right], {})

    return row


for _name in ("__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__"):
    builtin_method(_deque, _name)(_compare(_name))


@builtin_method(_deque, "index")
def _find(
    tx: Translator,
    self: DequeVariable,
    item: VariableTracker,
    /,
    *bounds: VariableTracker,
) -> VariableTracker:
    start, stop = ([index_of(tx, bound) for bound in bounds] + [0, sys.maxsize][len(bounds) :])[
        :2
    ]
    start, stop, _ = slice(start, stop).indices(len(self.items))
    for index, found in enumerate(self.equal_items(tx, item, start, stop), start):
        if found:
            return ConstantVariable(index)
    _raise_missing(tx, item)


@builtin_method(_deque, "__add__")
def _add(tx: Translator, self: DequeVariable, other: VariableTracker, /) -> VariableTracker:
    if not isinstance(other, DequeVariable):
        kind = type_name(other.python_type())
        tx.raise_observed(TypeError, f'can only concatenate deque (not "{kind}") to deque')
    made = _copy_of(tx, self)
    _extend(tx, made, other)
    return made


@builtin_method(_deque, "__mul__", "__rmul__")
def _mul(tx: Translator, self: DequeVariable, count: VariableTracker, /) -> VariableTracker:
    times = index_of(tx, count)
    made = _copy_of(tx, self)
    _repeat(tx, made, times)
    return made


@builtin_method(_deque, "__imul__")
def _imul(tx: Translator, self: DequeVariable, count: VariableTracker, /) -> VariableTracker:
    _repeat(tx, self, index_of(tx, count))
    return self


def _repeat(tx: Translator, self: DequeVariable, times: int) -> None:
    """`deque_inplace_repeat`: what is appended is asked of the iterator, if it is not one item."""
    own = list(self.items)
    if times == 1 or not own:
        return
    more = self.unpack(tx) if len(own) > 1 and times > 1 else own
    self.change(tx).clear()
    self.items.extend([*own, *more * (times - 1)] if times > 0 else [])
