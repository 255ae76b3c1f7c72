"""The views of dicts: keys(), values() and items()."""

from __future__ import annotations

import collections
import gc
import operator
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..side_effects import Mutation
from ..source import CallSource
from .base import VariableTracker, unsupported
from .builtin_object import NOT_IMPLEMENTED, BuiltinObject, builtin_method, construct
from .constant import ConstantVariable
from .container_iterators import dict_iterator, entry_part
from .dicts import DictVariable
from .registry import wraps
from .sets import SetVariable, made_of, operand, set_like

if TYPE_CHECKING:
    from ..codegen import PyCodegen
    from ..source import Source
    from ..symbolic_convert import Translator

# -- views of dicts -------------------------------------------------------------------------------


class DictViewVariable(BuiltinObject):
    """`mapping.keys()`, `.values()` or `.items()`."""

    def __init__(
        self,
        mapping: DictVariable,
        kind: str,
    ) -> None:
        ordered = issubclass(mapping.cls, collections.OrderedDict)
        empty: dict[Any, Any] = collections.OrderedDict() if ordered else {}
        super().__init__(type(getattr(empty, kind)()), mutation=Mutation.NEW)
        self.mapping = mapping
        self.kind = kind

    def unpack(self, tx: Translator) -> list[VariableTracker]:
        self.mapping.guard_keys(tx)
        return [entry_part(tx, self.kind, entry) for entry in self.mapping.entries.values()]

    def load_getset(self, tx: Translator, descriptor: Any) -> VariableTracker:
        if descriptor.__name__ == "mapping":
            return MappingProxyVariable(self.mapping)
        return super().load_getset(tx, descriptor)

    def reconstruct(self, codegen: PyCodegen) -> None:
        construct(codegen, dict_view, self.mapping, self.kind)


def dict_view(mapping: Any, kind: str) -> Any:
    """Run by generated code: a view of a dict, whatever a subclass makes of it."""
    ordered = isinstance(mapping, collections.OrderedDict)
    return getattr(collections.OrderedDict if ordered else dict, kind)(mapping)


def _register_views() -> None:
    for kind in ("keys", "values", "items"):
        plain, ordered = (
            type(getattr({}, kind)()),
            type(getattr(collections.OrderedDict(), kind)()),
        )
        builtin_method(dict, kind)(_make_view(kind))
        follows_base_view(plain, ordered)


def _make_view(kind: str) -> Callable[..., VariableTracker]:
    def row(tx: Translator, self: DictVariable, /) -> VariableTracker:
        return DictViewVariable(self, kind)

    return row


def follows_base_view(plain: type, ordered: type) -> None:
    """The rows of one view type and of OrderedDict's."""
    types_ = (plain, ordered)

    def view_len(tx: Translator, self: DictViewVariable, /) -> VariableTracker:
        return self.mapping.length(tx)

    def view_iter(tx: Translator, self: DictViewVariable, /) -> VariableTracker:
        return dict_iterator(tx, self.mapping, self.kind, False)

    def view_reversed(tx: Translator, self: DictViewVariable, /) -> VariableTracker:
        return dict_iterator(tx, self.mapping, self.kind, True)

    builtin_method(types_, "__len__")(view_len)
    builtin_method(types_, "__iter__")(view_iter)
    builtin_method(types_, "__reversed__")(view_reversed)


_register_views()
_SET_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.items()))


@builtin_method(type({}.keys()), "__contains__")
def _keys_contains(
    tx: Translator,
    self: DictViewVariable,
    key: VariableTracker,
    /,
) -> VariableTracker:
    return self.mapping.contains(tx, key)


@builtin_method(type({}.items()), "__contains__")
def _items_contains(
    tx: Translator,
    self: DictViewVariable,
    item: VariableTracker,
    /,
) -> VariableTracker:
    if not issubclass(item.python_type(), tuple):
        return ConstantVariable(False)
    parts = item.unpack(tx)
    if len(parts) != 2 or not self.mapping.contains(tx, parts[0].realize()).truth(tx):
        return ConstantVariable(False)
    value = self.mapping.getitem(tx, parts[0].realize())
    return tx.wrap_items(list, [value]).contains(tx, parts[1].realize())


def _set_of(tx: Translator, value: VariableTracker) -> SetVariable:
    """`set(value)`; of the keys of a dict, CPython asks the dict."""
    if isinstance(value, DictViewVariable):
        is_asked = value.kind == "keys" and value.mapping.cls is dict
        value = value.mapping if is_asked else value
    return made_of(set, operand(tx, value))


def _register_view_algebra() -> None:
    for name, update in _UPDATES.items():
        for is_reflected in (False, True):
            row = _updated(update, is_reflected)
            builtin_method(_SET_VIEWS, f"__{'r' * is_reflected}{name}__")(row)
    for name in ("__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__", "isdisjoint"):
        builtin_method(_SET_VIEWS, name)(_as_sets(name))


# Operator -> the method that changes a set of the left operand.
_UPDATES = {
    "or": "update",
    "sub": "difference_update",
    "xor": "symmetric_difference_update",
}


def _updated(update: str, is_reflected: bool) -> Callable[..., VariableTracker]:
    def row(
        tx: Translator,
        self: DictViewVariable,
        other: VariableTracker,
        /,
    ) -> VariableTracker:
        left, right = (other, self) if is_reflected else (self, other)
        result = _set_of(tx, left)
        result.call_method(tx, update, [right], {})
        return result

    return row


@builtin_method(_SET_VIEWS, "__and__")
@builtin_method(_SET_VIEWS, "__rand__")
def _view_and(
    tx: Translator,
    self: DictViewVariable,
    other: VariableTracker,
    /,
) -> VariableTracker:
    """`_PyDictView_Intersect`: which of both is iterated decides over the order."""
    length = len(self.mapping.entries)
    if isinstance(other, SetVariable) and other.cls is set and length <= len(other.table):
        return other.call_method(tx, "intersection", [self], {})
    if isinstance(other, DictViewVariable) and other.kind != "values":
        other.mapping.guard_keys(tx)
        self.mapping.guard_keys(tx)
        if len(other.mapping.entries) > length:
            self, other = other, self
    result = SetVariable(set(), {}, set)
    for item in other.each(tx):
        if self.contains(tx, item).truth(tx):
            result.call_method(tx, "add", [item], {})
    return result


def _as_sets(name: str) -> Callable[..., VariableTracker]:
    def row(
        tx: Translator,
        self: DictViewVariable,
        other: VariableTracker,
        /,
    ) -> VariableTracker:
        is_view = isinstance(other, DictViewVariable) and other.kind != "values"
        if self.kind == "items" or (is_view and other.kind == "items"):  # type: ignore[attr-defined]
            return _compare_items(tx, name, self, other, is_view or set_like(other) is not None)
        if is_view:
            other = _set_of(tx, other)
        if name != "isdisjoint" and set_like(other) is None:
            return NOT_IMPLEMENTED
        return _set_of(tx, self).call_method(tx, name, [other], {})

    return row


def _compare_items(
    tx: Translator,
    name: str,
    self: VariableTracker,
    other: VariableTracker,
    is_set: bool,
) -> VariableTracker:
    """`dictview_richcompare`, `dictviews_isdisjoint`: values are not hashed but compared."""
    if name == "isdisjoint":
        found = any(self.contains(tx, item).truth(tx) for item in other.each(tx))
        return ConstantVariable(not found)
    if not is_set:
        return NOT_IMPLEMENTED
    inner, outer = (other, self) if name in ("__gt__", "__ge__") else (self, other)
    lengths = [view.length(tx).as_python_constant() for view in (inner, outer)]
    fits = _FITS.get(name, operator.eq)(*lengths)
    fits = fits and all(outer.contains(tx, item).truth(tx) for item in inner.each(tx))
    return ConstantVariable(fits is not (name == "__ne__"))


_FITS = {
    "__lt__": operator.lt,
    "__le__": operator.le,
    "__gt__": operator.lt,
    "__ge__": operator.le,
}
_register_view_algebra()


# -- views and proxies of the frame ---------------------------------------------------------------


def _viewed(view: Any) -> Any:
    """The dict of a view or of a mappingproxy."""
    return gc.get_referents(view)[0]


def _wrap_viewed(
    tx: Translator,
    value: Any,
    source: Source,
) -> DictVariable:
    tx.guard(source, "TYPE_IS", type(value))
    mapping = tx.wrap(_viewed(value), CallSource(source, _viewed, "<dict of {base}>"))
    if not isinstance(mapping, DictVariable):
        unsupported("view", source.name, "a view of this kind of mapping is not traced")
    return mapping


def _register_wrappers() -> None:
    empty: list[dict[Any, Any]] = [{}, collections.OrderedDict()]
    for mapping in empty:
        for kind in ("keys", "values", "items"):
            wraps(type(getattr(mapping, kind)()))(_view_wrapper(kind))


def _view_wrapper(kind: str) -> Callable[..., VariableTracker]:
    def wrap_view(
        tx: Translator,
        value: Any,
        source: Source,
    ) -> VariableTracker:
        view = DictViewVariable(_wrap_viewed(tx, value, source), kind)
        view.source, view.mutation = source, Mutation.IMMUTABLE
        return view

    return wrap_view


_register_wrappers()


class MappingProxyVariable(BuiltinObject):
    """types.MappingProxyType(mapping)."""

    def __init__(
        self,
        mapping: DictVariable,
        *,
        source: Source | None = None,
    ) -> None:
        super().__init__(types.MappingProxyType, source=source)
        self.mapping = mapping

    def unpack(self, tx: Translator) -> list[VariableTracker]:
        return self.mapping.unpack(tx)

    def reconstruct(self, codegen: PyCodegen) -> None:
        construct(codegen, types.MappingProxyType, self.mapping)


@wraps(types.MappingProxyType)
def _wrap_proxy(
    tx: Translator,
    value: Any,
    source: Source,
) -> VariableTracker:
    return MappingProxyVariable(_wrap_viewed(tx, value, source), source=source)


def _of_mapping(name: str) -> Callable[..., VariableTracker]:
    def row(
        tx: Translator,
        self: MappingProxyVariable,
        /,
        *args: VariableTracker,
    ) -> VariableTracker:
        others = [arg.mapping if isinstance(arg, MappingProxyVariable) else arg for arg in args]
        return self.mapping.call_method(tx, name, others, {})

    return row


for _name in (
    "__getitem__ __contains__ __len__ __iter__ __reversed__ get keys values items copy".split()
):
    builtin_method(types.MappingProxyType, _name)(_of_mapping(_name))


def _of_operator(
    operation: Callable[..., Any], reflected: bool
) -> Callable[..., VariableTracker]:
    """Comparisons and unions are whole operators of what is viewed, which ask the other one too."""

    def row(
        tx: Translator, self: MappingProxyVariable, other: VariableTracker, /
    ) -> VariableTracker:
        viewed = other.mapping if isinstance(other, MappingProxyVariable) else other
        operands = [self.mapping, viewed]
        return tx.call_function(
            tx.wrap_constant(operation), operands[::-1] if reflected else operands, {}
        )

    return row


for _name in "__eq__ __ne__ __lt__ __le__ __gt__ __ge__ __or__".split():
    builtin_method(types.MappingProxyType, _name)(_of_operator(getattr(operator, _name), False))
builtin_method(types.MappingProxyType, "__ror__")(_of_operator(operator.or_, True))
