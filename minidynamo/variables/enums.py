"""Members of enums: constants whose class is written in Python."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING

from ..source import AttrSource, ConstSource
from .base import ObservedException, VariableTracker, unsupported
from .constant import ENUM_GETATTR, ConstantVariable, is_value
from .descriptors import bind, class_lookup

if TYPE_CHECKING:
    from ..symbolic_convert import Translator

_TRACED = (types.FunctionType, property, classmethod, staticmethod)
_STORING = ("__setattr__", "__delattr__")
_FIXED = frozenset("_value_ _name_ _sort_order_ __objclass__".split())
_SHARED = (
    types.BuiltinFunctionType,
    types.MethodType,
    types.MethodWrapperType,
    type,
)


def _getattr(tx: Translator, self: ConstantVariable, name: str) -> VariableTracker:
    """Code of the user is traced; the rest (`name`, `value`, what is stored) is read now."""
    member, cls = self.value, type(self.value)
    source = ConstSource(member, str(member))
    found = class_lookup(tx, cls, name)
    if found is not None and type(found.raw) in _TRACED:
        return bind(tx, found, self, cls)
    try:
        value = getattr(member, name)
    except AttributeError as error:
        tx.guard(source, "LACKS_ATTR", name)
        raise ObservedException(tx.wrap_exception(error)) from None
    is_own = name in vars(member) and name not in _FIXED
    if isinstance(value, types.MethodWrapperType) and name in _STORING:
        unsupported("attribute store", f"{member!r}.{name}", "it is a member of an enum")
    if not is_own and (is_value(value) or isinstance(value, _SHARED)):
        return tx.wrap_constant(value)
    return tx.wrap(value, AttrSource(source, name))


ENUM_GETATTR.append(_getattr)
