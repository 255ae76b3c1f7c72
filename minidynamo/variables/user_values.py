"""Objects of the program's own subclasses of int, float and str.

Such an object is a value, which is guarded, in an object of a class written in Python: attributes
and what the class defines are traced as of any object, the C methods run on the value.
"""

from __future__ import annotations

import enum
import types
from typing import TYPE_CHECKING, Any

from ..constant_values import constant_key, constant_text
from ..guards import Predicate
from ..source import Source
from .base import VariableTracker, unsupported
from .constant import ConstantVariable
from .descriptors import class_lookup
from .registry import wraps_instances
from .tensor import TensorVariable
from .user_defined import UserDefinedObjectVariable, wrap_object

if TYPE_CHECKING:
    from ..codegen import PyCodegen
    from ..symbolic_convert import Translator

# How the value in an object is read; no code of the user runs.
_READ: dict[type, Any] = {int: int.__int__, float: float.__float__, str: str.__str__}
_IMMUTABLE_TYPE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE
# What a class may define without a change of what torch's functions do with its objects.
_HARMLESS = frozenset(
    "__new__ __init__ __repr__ __str__ __format__ __doc__ __getattribute__ __getnewargs__".split()
)
# C methods that ask the arguments, or the size of the object itself.
_NOT_OF_THE_VALUE = frozenset({"__sizeof__", "__getnewargs__"})
# What a template is filled in at, and where the parts of a text have the whole of it.
_MARKS = {"format": {*"{}"}, "format_map": {*"{}"}, "__mod__": {"%"}}
_REST = {"partition": 0, "rpartition": 2}
_COMPARISONS = frozenset("__lt__ __le__ __gt__ __ge__ __eq__ __ne__".split())


def value_family(cls: type) -> type | None:
    """int, float or str, where instances of `cls` are values of it with attributes at most."""
    if issubclass(cls, enum.Enum) or hasattr(cls, "__torch_function__"):
        return None
    for base in cls.__mro__:
        if base in _READ:
            return base
        if base.__flags__ & _IMMUTABLE_TYPE:
            return None
        if isinstance(vars(base).get("__new__"), types.BuiltinFunctionType):
            return None
    return None


class UserValueVariable(UserDefinedObjectVariable):
    """An object of class `cls` that holds the constant `base`, of the exact type `family`."""

    def __init__(
        self,
        cls: type,
        base: ConstantVariable,
        value: Any = None,
        *,
        source: Source | None = None,
    ) -> None:
        super().__init__(cls, value, source=source)
        self.base = base
        self.family = base.python_type()

    def overrides(self, name: str) -> bool:
        """Whether the class says itself what the special method does."""
        owner = next((base for base in self.cls.__mro__ if name in vars(base)), object)
        return not owner.__flags__ & _IMMUTABLE_TYPE

    def as_proxy(self) -> Any:
        """Torch takes these for the numbers and texts they are; Python code below may not."""
        for name in vars(self.family):
            if name not in _HARMLESS and self.overrides(name):
                what = f"{self.cls.__qualname__}.{name}"
                unsupported("value in graph", what, "torch may call this method of the class")
        return self.base.as_proxy()

    def getattr(self, tx: Translator, name: str) -> VariableTracker:
        """The families' own `__getattribute__` is the one of `object`."""
        if self.overrides("__getattribute__"):
            return super().getattr(tx, name)
        found = self.generic_getattr(tx, name)
        return (found or self.missing_attribute(tx, name)).realize()

    def load_getset(self, tx: Translator, descriptor: Any) -> VariableTracker:
        if descriptor.__objclass__ is self.family:  # real, imag, numerator ...
            return self.base.getattr(tx, descriptor.__name__)
        return super().load_getset(tx, descriptor)

    def call_builtin(
        self,
        tx: Translator,
        raw: Any,
        args: list[VariableTracker],
        kwargs: dict[str, VariableTracker],
    ) -> VariableTracker:
        name = raw.__name__
        if raw.__objclass__ is not self.family or name in _NOT_OF_THE_VALUE:
            return super().call_builtin(tx, raw, args, kwargs)
        args = [arg.realize() for arg in args]
        if name == "__getattribute__":
            attribute = args[0].as_python_constant()
            return self.generic_getattr(tx, attribute) or self.no_attribute(tx, attribute)
        if name == "__format__" and not args[0].as_python_constant():  # it asks `__str__`
            return tx.call_function(tx.wrap_constant(str), [self], {})
        if name == "__mod__" and self.family is str:
            return super().call_builtin(tx, raw, args, kwargs)
        args = [arg.base if isinstance(arg, UserValueVariable) else arg for arg in args]
        if len(args) == 1 and self._is_foreign(name, args[0]):
            return ConstantVariable(NotImplemented)
        return self.or_itself(tx, name, self.base.call_method(tx, name, args, kwargs))

    def or_itself(
        self,
        tx: Translator,
        name: str,
        result: VariableTracker,
    ) -> VariableTracker:
        """What a method of the value gives: of a text in which it finds nothing, CPython's gives
        the object.
        """
        if self.family is not str:
            return result
        text = self.base.value
        if name in _MARKS and text and _MARKS[name].isdisjoint(text):
            return self
        place = _REST.get(name)
        if place is None or result.as_python_constant()[place] != text:
            return result
        parts = list(map(tx.wrap_constant, result.as_python_constant()))
        parts[place] = self
        return tx.wrap_items(tuple, parts)

    def _is_foreign(self, name: str, other: VariableTracker) -> bool:
        """Whether an operator's slot does not know such an operand, whatever its value is."""
        is_slot = name in _COMPARISONS or (self.family is not str and name.startswith("__"))
        if not is_slot or name in ("__format__", "__round__"):
            return False
        kind = other.python_type()
        return isinstance(other, TensorVariable) or not issubclass(kind, (int, float, str))

    def iter(self, tx: Translator) -> VariableTracker:
        if self.family is str and not self.overrides("__iter__"):
            return self.base.iter(tx)
        return super().iter(tx)

    def push_blank(self, codegen: PyCodegen) -> None:
        codegen.begin_call(self.family.__new__)
        codegen.load_const(self.cls)
        codegen(self.base)
        codegen.end_call(2)


def new_value(tx: Translator, family: type, cls: type, args: Any, kwargs: Any) -> Any:
    """`family.__new__(cls, *args, **kwargs)`."""
    base = tx.call_function(tx.wrap_constant(family), list(args), kwargs).realize()
    if cls is family:
        return base
    if value_family(cls) is not family or not isinstance(base, ConstantVariable):
        unsupported("new object", cls.__qualname__, f"its {family.__name__} is not known")
    class_lookup(tx, cls, "__new__")  # guards the class
    return UserValueVariable(cls, base)


@wraps_instances(*_READ)
def _wrap_value(tx: Translator, value: Any, source: Source) -> VariableTracker:
    family = value_family(type(value))
    if family is None:
        return wrap_object(tx, value, source)
    read = _READ[family]
    base = read(value)
    key = constant_key(base)
    tx.guard(source, "TYPE_IS", type(value))
    check = Predicate(lambda v: constant_key(read(v)) == key, f"it is {constant_text(base)}")
    tx.guard(source, "PREDICATE", check)
    return UserValueVariable(type(value), ConstantVariable(base), value, source=source)
