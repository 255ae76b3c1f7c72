"""`obj.__dict__` of a user-defined object: a live view of its attributes in the side-effect log.

Reading and writing single names goes to the object; whatever looks at all names works on a copy.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from ..side_effects import DELETED
from .base import VariableTracker, unsupported
from .constant import ConstantVariable
from .functions import MethodOfVariable
from .instance_state import InstanceState, has_setter, is_hidden, push_dict, slot_names

if TYPE_CHECKING:
    from ..codegen import PyCodegen
    from ..symbolic_convert import Translator

NONE = ConstantVariable(None)
_EQUALITIES = {"__eq__": operator.eq, "__ne__": operator.ne}
# "view" and "iterator": (tx, dict, kind) -> a value; see instance_views.
GOING_OVER: dict[str, Callable[..., VariableTracker]] = {}


class InstanceDictVariable(VariableTracker):
    """The instance dict of `owner`."""

    def __init__(self, owner: InstanceState) -> None:
        source = None if owner.source is None else owner.dict_source()
        super().__init__(source=source, mutation=owner.mutation)
        self.owner = owner

    def python_type(self) -> type:
        return dict

    def identity(self) -> Any:
        return self if self.owner.source is None else self.owner.dict

    def getattr(self, tx: Translator, name: str) -> VariableTracker:
        if not hasattr(dict, name):
            tx.raise_observed(AttributeError, f"'dict' object has no attribute '{name}'")
        return MethodOfVariable(self, name)

    # -- single names -----------------------------------------------------------------------------

    def load(
        self,
        tx: Translator,
        key: VariableTracker,
    ) -> VariableTracker | None:
        key = key.realize().specialized(tx)
        name = key.as_python_constant() if key.is_python_constant() else None
        if not isinstance(name, str) or self._lacks_slot(tx, name):
            return None
        return self.owner.load_instance(tx, name)

    def _lacks_slot(
        self,
        tx: Translator,
        name: str,
    ) -> bool:
        """Whether it is the name of a slot, which no item of the dict is."""
        owner = self.owner
        if name not in slot_names(owner.cls):
            return False
        if owner.dict is not None and owner.source is not None:
            if name in owner.dict:
                unsupported("instance dict", f"{self!r}[{name!r}]", "a slot has this name")
            tx.guard(owner.dict_source(), "DICT_LACKS", name)
        return True

    def getitem(
        self,
        tx: Translator,
        key: VariableTracker,
    ) -> VariableTracker:
        found = self.load(tx, key)
        if found is None:
            tx.raise_observed(KeyError, key.realize().specialized(tx).as_python_constant())
        return found

    def setitem(
        self,
        tx: Translator,
        key: VariableTracker,
        value: VariableTracker,
    ) -> None:
        name = key.realize().specialized(tx).as_python_constant()
        cls = self.owner.cls
        is_entry = isinstance(name, str) and (not has_setter(cls, name) or is_hidden(cls, name))
        if not is_entry:
            unsupported("attribute store", f"{self!r}[{name!r}]", "a descriptor has this name")
        self.owner.store_instance(tx, name, value)

    def delitem(
        self,
        tx: Translator,
        key: VariableTracker,
    ) -> None:
        key = key.realize().specialized(tx)
        self.getitem(tx, key)
        self.owner.delete_item(tx, key.as_python_constant())

    def contains(
        self,
        tx: Translator,
        item: VariableTracker,
    ) -> VariableTracker:
        name = item.realize().specialized(tx).as_python_constant()
        if not isinstance(name, str) or self._lacks_slot(tx, name):
            return ConstantVariable(False)
        return ConstantVariable(self.owner.has_stored(tx, name))

    # -- all names ---------------------------------------------------------------------------------

    def copy(self, tx: Translator) -> VariableTracker:
        """A new dict with the same items."""
        items = {}
        for name in self.owner.instance_names(tx):
            value = self.owner.load_instance(tx, name)
            assert value is not None
            items[name] = value
        return tx.wrap_keywords(items)

    def compare(
        self,
        tx: Translator,
        method: str,
        other: VariableTracker,
    ) -> VariableTracker | None:
        """`dict_richcompare`, of copies."""
        if method not in _EQUALITIES or not issubclass(other.python_type(), dict):
            return ConstantVariable(NotImplemented)
        return tx.call_operator(_EQUALITIES[method], [self.copy(tx), other]).realize()

    def length(self, tx: Translator) -> VariableTracker:
        return ConstantVariable(len(list(self.owner.instance_names(tx))))

    def truth(self, tx: Translator) -> bool:
        return bool(self.length(tx).as_python_constant())

    def iter(self, tx: Translator) -> VariableTracker:
        return GOING_OVER["iterator"](tx, self, "keys")

    def call_method(
        self,
        tx: Translator,
        name: str,
        args: list[VariableTracker],
        kwargs: dict[str, VariableTracker],
    ) -> VariableTracker:
        method = _METHODS.get(name)
        if method is not None and not (kwargs and name != "update"):
            return method(tx, self, *args, **kwargs)
        if name in _ON_COPY:
            return self.copy(tx).call_method(tx, name, args, kwargs)
        unsupported("dict method", f"{self!r}.{name}", f"__dict__.{name} is not traced")

    def reconstruct(self, codegen: PyCodegen) -> None:
        push_dict(codegen, self.owner.python_type(), lambda: codegen(self.owner))


class _NotFollowed:
    """What nobody keeps account of any more."""

    def __getattr__(self, name: str) -> NoReturn:
        unsupported(
            "instance dict", name, "its object was given another one by the traced code"
        )


class LostState(InstanceState):
    """What an object was before it was given another instance dict: it can be moved around."""

    def __init__(self, owner: InstanceState) -> None:
        super().__init__(source=owner.source, mutation=owner.mutation)
        self.cls, self.dict, self.given = owner.cls, owner.dict, _NotFollowed()


def _get(
    tx: Translator,
    self: InstanceDictVariable,
    key: VariableTracker,
    default: VariableTracker = NONE,
) -> VariableTracker:
    found = self.load(tx, key)
    return default if found is None else found


def _setdefault(
    tx: Translator,
    self: InstanceDictVariable,
    key: VariableTracker,
    default: VariableTracker = NONE,
) -> VariableTracker:
    found = self.load(tx, key)
    if found is None:
        self.setitem(tx, key.realize(), default)
        return default
    return found


def _pop(
    tx: Translator,
    self: InstanceDictVariable,
    key: VariableTracker,
    *default: VariableTracker,
) -> VariableTracker:
    if default and self.load(tx, key) is None:
        return default[0]
    found = self.getitem(tx, key.realize())
    self.delitem(tx, key.realize())
    return found


def _popitem(tx: Translator, self: InstanceDictVariable) -> VariableTracker:
    names = list(self.owner.instance_names(tx))
    if not names:
        tx.raise_observed(KeyError, "popitem(): dictionary is empty")
    key = ConstantVariable(names[-1])
    return tx.wrap_items(tuple, [key, _pop(tx, self, key)])


def _update(
    tx: Translator,
    self: InstanceDictVariable,
    *args: VariableTracker,
    **kwargs: VariableTracker,
) -> VariableTracker:
    items = {
        name: value for arg in args for name, value in tx.unpack_keywords(arg.realize()).items()
    }
    for name, value in {**items, **kwargs}.items():
        self.setitem(tx, ConstantVariable(name), value)
    return NONE


def _setitem(
    tx: Translator,
    self: InstanceDictVariable,
    key: VariableTracker,
    value: VariableTracker,
) -> VariableTracker:
    self.setitem(tx, key.realize(), value)
    return NONE


def _delitem(
    tx: Translator,
    self: InstanceDictVariable,
    key: VariableTracker,
) -> VariableTracker:
    self.delitem(tx, key.realize())
    return NONE


def _view(kind: str) -> Callable[..., VariableTracker]:
    return lambda tx, self: GOING_OVER["view"](tx, self, kind)


_METHODS: dict[str, Callable[..., VariableTracker]] = {
    "get": _get,
    "setdefault": _setdefault,
    "pop": _pop,
    "popitem": _popitem,
    "update": _update,
    "copy": lambda tx, self: self.copy(tx),
    "__getitem__": lambda tx, self, key: self.getitem(tx, key.realize()),
    "__setitem__": _setitem,
    "__delitem__": _delitem,
    "__contains__": lambda tx, self, key: self.contains(tx, key),
    "__len__": lambda tx, self: self.length(tx),
    "__iter__": lambda tx, self: self.iter(tx),
    "keys": _view("keys"),
    "values": _view("values"),
    "items": _view("items"),
}
# What only reads gives the same on a copy.
_ON_COPY = frozenset({"__eq__", "__ne__", "__or__", "__reversed__"})

__all__ = ["DELETED", "InstanceDictVariable"]
