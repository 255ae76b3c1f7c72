"""Values known while tracing: `ConstantVariable` holds the Python object itself.

Operations whose operands are all constants are done by Python itself, so they need no rows here.
"""

from __future__ import annotations

import datetime
import enum
import operator
import re
import types
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.torch_version import TorchVersion

from .. import trace_rules
from .base import NotConstant, ObservedException, VariableTracker, type_name, unsupported

if TYPE_CHECKING:
    from ..codegen import PyCodegen
    from ..source import Source
    from ..symbolic_convert import Translator

# Types whose objects are immutable and equal by value: their methods run while tracing.
VALUE_TYPES: tuple[type, ...] = (
    *trace_rules.NUMPY_SCALARS,
    int,
    float,
    bool,
    complex,
    str,
    bytes,
    type(None),
    type(Ellipsis),
    type(NotImplemented),
    range,
    slice,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    torch.finfo,
    torch.iinfo,
    torch.Size,
    TorchVersion,
    datetime.timedelta,
    re.Pattern,
    re.Match,
)


# Sets: a metaclass may say that its classes equal all others, but has hashes of its own.
_VALUE_TYPES = frozenset(VALUE_TYPES)
_NESTS = frozenset({tuple, frozenset, torch.Size})


def is_value(value: Any) -> bool:
    """Whether `value` is immutable through and through and known by its value alone."""
    kind = type(value)
    if kind in _NESTS:
        return all(is_value(item) for item in value)
    if kind is slice:
        return is_value((value.start, value.stop, value.step))
    if kind in _VALUE_TYPES or (issubclass(kind, enum.Enum) and _is_member(value)):
        return True
    return issubclass(kind, _PLACEMENTS) and _is_placement(kind)


def _is_placement(kind: type) -> bool:
    return kind.__name__ in _PLACEMENT_NAMES and is_of_library(kind.__module__)


def is_member_in_c(value: Any) -> bool:
    """Whether it is a member of an enum made in C++ (by pybind11): immutable. There is one object
    each, but for copies, as in modules that were copied.
    """
    return "__entries" in vars(type(value))


def _is_member(value: enum.Enum) -> bool:
    """Whether the object is complete: while its class is being made, it is an ordinary object."""
    name = vars(value).get("_name_")
    return name in type(value)._member_map_ or (
        isinstance(value, enum.Flag) and {"_value_", "_name_"} <= vars(value).keys()
    )


_IMMUTABLE_TYPE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE


def is_inert(value: Any) -> bool:
    """Whether no code of the user runs when a C function uses `value`."""
    if isinstance(value, type):
        return bool(value.__flags__ & _IMMUTABLE_TYPE)
    if type(value) is dict:
        return all(is_inert(key) and is_inert(item) for key, item in value.items())
    if type(value) in (list, tuple, set, frozenset):
        return all(map(is_inert, value))
    return is_value(value) or isinstance(value, (types.BuiltinFunctionType, types.UnionType))


LIBRARY = ("abc", "_abc", "builtins", "enum", "typing", "typing_extensions")


# How tensors of torch.distributed lie on the processes: `Shard(0)`, say. Their classes are torch's
# own, made where the program imports them, of a class in C.
_PLACEMENTS: tuple[type, ...] = ()
_PLACEMENT_NAMES = frozenset(("Shard", "Replicate", "Partial", "_StridedShard", "_MaskPartial"))
if torch.distributed.is_available():
    _PLACEMENTS = (torch._C._distributed.Placement,)


def is_of_library(module: str | None) -> bool:
    """Whether classes and functions of this module ask nothing that the program may change."""
    return module in LIBRARY or str(module).startswith("torch.")


def runs_code(value: Any, names: Iterable[str]) -> bool:
    """Whether `value` is a member of an enum whose class defines one of these special methods in
    Python; or a container of such, of which it is known only when they are compared and shown.
    """
    if type(value) in (tuple, list, set, frozenset):
        return any(runs_code(item, (*names, "__repr__")) for item in value)
    if type(value) is dict:
        return any(runs_code(pair, names) for pair in value.items())
    if not isinstance(value, enum.Enum):
        return False
    mro = [vars(base) for base in type(value).__mro__]
    found = [next((held[name] for held in mro if name in held), None) for name in names]
    written = (raw.__module__ for raw in found if isinstance(raw, types.FunctionType))
    return not all(map(is_of_library, written))


_SPECIAL_NAMES: dict[Any, str] = {
    **dict.fromkeys((repr, ascii), "repr"),
    **dict.fromkeys((bool, operator.truth, operator.not_), "bool len"),
    **dict.fromkeys((operator.lt, operator.gt), "lt gt"),
    **dict.fromkeys((operator.le, operator.ge), "le ge"),
    **{fn: fn.__name__ for fn in (str, hash, len, abs, round)},
    **{fn: f"{fn.__name__} index" for fn in (int, float, complex)},
    format: "format str",
    operator.ne: "ne eq",
    operator.mod: "mod rmod str repr int index",
    operator.contains: "contains eq",
}


_HOLDERS = (enum.Enum, tuple, list, dict, set, frozenset)


def _special_names(fn: Any) -> list[str]:
    """The special methods that a pure function may call."""
    names = _SPECIAL_NAMES.get(fn)
    if names is None:
        is_operator = getattr(fn, "__module__", None) == "_operator"
        name = fn.__name__.strip("_") if is_operator else ""
        names = f"{name} r{name}" if name else ""
    return [f"__{name}__" for name in names.split()]


def may_run_code(fn: Any, values: Sequence[Any]) -> bool:
    """Whether a pure function of these runs what classes of enums define in Python."""
    if not any(isinstance(value, _HOLDERS) for value in values):
        return False
    names = _special_names(fn)
    return bool(names) and any(runs_code(value, names) for value in values)


def _plain_number(value: Any) -> Any:
    """numpy's numbers, and sets of flags, as Python's numbers: operators take them alike, and
    graphs print them.
    """
    if type(value) is trace_rules.NUMPY_BOOL:
        unsupported("numpy call", repr(value), "a bool of numpy is a float to torch")
    if isinstance(value, trace_rules.NUMPY_SCALARS):
        return value.item()  # type: ignore[attr-defined]
    if isinstance(value, enum.IntFlag):
        return int(value)
    if type(value) is tuple:
        return tuple(map(_plain_number, value))
    if type(value) is slice:
        return slice(*map(_plain_number, (value.start, value.stop, value.step)))
    return value


def is_numpy_bool(value: VariableTracker) -> bool:
    """Whether the value is True or False of numpy, which torch takes as 1.0 or 0.0."""
    return isinstance(value, ConstantVariable) and type(value.value) is trace_rules.NUMPY_BOOL


def is_negative(value: VariableTracker) -> bool:
    """Whether the value is a real number below zero."""
    number: Any = value.value if isinstance(value, ConstantVariable) else None
    is_real = isinstance(number, (int, float, *trace_rules.NUMPY_SCALARS))
    return is_real and bool(operator.lt(number, 0))


# `format_string` of handlers/str_format.py.
FORMATTING: list[Callable[..., VariableTracker]] = []
_FORMATS = ("format", "format_map")
_NUMBERS = (int, float, complex)
_COMPARISONS = "__eq__ __ne__ __lt__ __le__ __gt__ __ge__".split()


def _refuses(value: Any, name: str, args: list[VariableTracker]) -> bool:
    """Whether an operator's method (`(5).__add__(tensor)`) gives NotImplemented for the operand."""
    is_text = type(value) is str and name in _COMPARISONS
    family = _NUMBERS if isinstance(value, _NUMBERS) else str if is_text else object
    plain = (name, name.replace("__r", "__", 1))
    is_operator = hasattr(value, name) and any(one in vars(operator) for one in plain)
    return is_operator and len(args) == 1 and not issubclass(args[0].python_type(), family)


# Attributes of enum members (`enums`): functions and properties of the user's class are traced.
ENUM_GETATTR: list[Callable[[Translator, ConstantVariable, str], VariableTracker]] = []


# What makes the hash key of a member whose class defines `__hash__` or `__eq__` (`user_keys`).
ENUM_KEY: list[Callable[[Translator, VariableTracker], Any]] = []
# Methods of constants that change what is outside of them, by type and name.
CONSTANT_METHODS: dict[tuple[type, str], Callable[..., VariableTracker]] = {}


# Types whose objects refuse to have an attribute set.
_REFUSING = (
    *(int, float, complex, bool, str, bytes, tuple, range, slice, torch.Size),
    *(type(None), type(...), type(NotImplemented), types.CodeType, re.Pattern),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)


class ConstantVariable(VariableTracker):
    """A constant of one of `VALUE_TYPES`, an enum member, or a tuple/frozenset of such."""

    def __init__(self, value: Any, *, source: Source | None = None) -> None:
        super().__init__(source=source)
        self.value = value

    def describe(self) -> str:
        if isinstance(self.value, enum.Enum):  # its repr may be code of the user
            return f"{type(self.value).__name__}.{self.value._name_}"
        if isinstance(self.value, int) and self.value.bit_length() > 1024:
            return f"<int of {self.value.bit_length()} bits>"
        return repr(self.value)

    def python_type(self) -> type:
        return type(self.value)

    def as_python_constant(self) -> Any:
        return self.value

    def as_proxy(self) -> Any:
        return _plain_number(self.value)

    def identity(self) -> Any:
        return self.value

    def hash_key(self, tx: Translator) -> Any:
        if runs_code(self.value, ("__hash__", "__eq__")):
            return ENUM_KEY[0](tx, self)
        return super().hash_key(tx)

    def is_compared_by_identity(self, other: VariableTracker) -> bool:
        return not (is_member_in_c(self.value) and other.is_python_constant())

    def getattr(self, tx: Translator, name: str) -> VariableTracker:
        if isinstance(self.value, enum.Enum):
            return ENUM_GETATTR[0](tx, self, name)
        return tx.fold(getattr, (self.value, name), {})

    def setattr(self, tx: Translator, name: str, value: VariableTracker) -> None:
        if type(self.value) not in _REFUSING:
            super().setattr(tx, name, value)
        tx.fold(setattr, (self.value, name, None), {})

    def delattr(self, tx: Translator, name: str) -> None:
        if type(self.value) not in _REFUSING:
            super().delattr(tx, name)
        tx.fold(delattr, (self.value, name), {})

    def call(
        self, tx: Translator, args: list[VariableTracker], kwargs: dict[str, VariableTracker]
    ) -> VariableTracker:
        if callable(self.value):
            return tx.call_function(self.getattr(tx, "__call__"), args, kwargs)
        tx.raise_observed(TypeError, f"'{type_name(type(self.value))}' object is not callable")

    def call_method(
        self,
        tx: Translator,
        name: str,
        args: list[VariableTracker],
        kwargs: dict[str, VariableTracker],
    ) -> VariableTracker:
        row = CONSTANT_METHODS.get((type(self.value), name))
        if row is not None:
            return row(tx, self, args)
        if name == "__iter__" and not args and not kwargs:
            return self.iter(tx)
        try:
            values = [arg.as_python_constant() for arg in args]
            named = {key: arg.as_python_constant() for key, arg in kwargs.items()}
        except NotConstant:
            return self._call_method_on_values(tx, name, args, kwargs)
        if not all(map(is_inert, (*values, *named.values()))):
            return self._call_method_on_values(tx, name, args, kwargs)
        return tx.fold(lambda *a, **k: getattr(self.value, name)(*a, **k), tuple(values), named)

    def _call_method_on_values(
        self, tx: Translator, name: str, args: list[VariableTracker], kwargs: Any
    ) -> VariableTracker:
        """The few methods of constants that take iterables of other values."""
        if name == "join" and isinstance(self.value, (str, bytes)) and len(args) == 1:
            kind = args[0].realize().python_type()
            if not (hasattr(kind, "__iter__") or hasattr(kind, "__getitem__")):
                tx.raise_observed(TypeError, "can only join an iterable")
            items = [item.realize() for item in args[0].each(tx, sized=True)]
            if not (
                args[0].python_type() is tuple or all(i.is_python_constant() for i in items)
            ):
                join = tx.wrap_constant(self.value.join)
                return tx.call_function(join, [tx.wrap_items(tuple, items)], {})
            plain = tx.wrap_constant(str.__str__)  # what a subclass says is not asked
            for place, item in enumerate(items):
                if issubclass(item.python_type(), str) and not item.is_python_constant():
                    items[place] = tx.call_function(plain, [item], {}).realize()
            parts = [item.as_python_constant() for item in items]
            return tx.fold(self.value.join, (parts,), {})
        if name in _FORMATS and isinstance(self.value, str):
            return FORMATTING[0](tx, str.__str__(self.value), name, args, kwargs)
        if name == "translate" and len(args) == 1 and args[0].python_type() is dict:
            args[0].unpack(tx)  # all keys are looked at
            table = args[0].realize()
            if not kwargs and table.is_python_constant():
                return tx.fold(self.value.translate, (table.as_python_constant(),), {})
        container = self.as_container(tx)
        if container is not None:
            return container.call_method(tx, name, args, kwargs)
        if _refuses(self.value, name, args):
            return ConstantVariable(NotImplemented)
        unsupported(
            "constant method",
            f"{type(self.value).__name__}.{name}",
            f"{self.value!r}.{name} is called with arguments that are not known while tracing",
        )

    def call_builtin(
        self,
        tx: Translator,
        raw: Any,
        args: list[VariableTracker],
        kwargs: dict[str, VariableTracker],
    ) -> VariableTracker:
        """`super().__add__(other)` of a member of an enum."""
        if raw.__name__ in _FORMATS and isinstance(self.value, str):
            return FORMATTING[0](tx, str.__str__(self.value), raw.__name__, args, kwargs)
        asks_back = raw.__name__ in ("__mod__", "__rmod__", "join")
        if raw.__objclass__ is object:
            asks_back = raw.__name__ not in ("__eq__", "__hash__")
        values = [arg.as_python_constant() for arg in args if arg.is_python_constant()]
        if asks_back or kwargs or len(values) < len(args) or not all(map(is_inert, values)):
            return super().call_builtin(tx, raw, args, kwargs)
        return tx.fold(raw, (self.value, *values), {})

    def overrides(self, name: str) -> bool:
        return runs_code(self.value, (name,)) if isinstance(self.value, enum.Enum) else False

    def truth(self, tx: Translator) -> bool:
        if self.value is NotImplemented:
            unsupported("branch", "NotImplemented", "its truth warns, or is an error")
        for name in ("__bool__", "__len__"):
            if self.overrides(name):
                return tx.call_function(self.getattr(tx, name), [], {}).truth(tx)
        return super().truth(tx)

    def as_container(self, tx: Translator) -> VariableTracker | None:
        """A tuple, range or frozenset as traced container, for operands that are no constants."""
        if not isinstance(self.value, (tuple, range, frozenset)):
            return None
        if type(self.value) is frozenset:
            return tx.constant_set(self.value)
        family = tuple if isinstance(self.value, range) else type(self.value)
        return tx.wrap_items(family, [tx.wrap_constant(item) for item in self.value])

    def getitem(self, tx: Translator, key: VariableTracker) -> VariableTracker:
        key = key.specialized(tx)
        container = None if key.is_python_constant() else self.as_container(tx)
        if isinstance(self.value, range) and key.python_type() is slice:
            container = None  # it gives a range
        if container is not None:
            return container.getitem(tx, key)
        if not key.is_python_constant():
            unsupported("subscript", f"{self!r}[{key!r}]", "it is not known while tracing")
        return tx.fold(operator.getitem, (self.value, key.as_python_constant()), {})

    def setitem(self, tx: Translator, key: VariableTracker, value: VariableTracker) -> None:
        tx.fold(operator.setitem, (self.value, 0, None), {})

    def delitem(self, tx: Translator, key: VariableTracker) -> None:
        tx.fold(operator.delitem, (self.value, 0), {})

    def length(self, tx: Translator) -> VariableTracker:
        if self.overrides("__len__"):
            return tx.call_function(self.getattr(tx, "__len__"), [], {})
        return tx.fold(len, (self.value,), {})

    def contains(self, tx: Translator, item: VariableTracker) -> VariableTracker:
        plain = item.is_python_constant() and not runs_code(
            (self.value, item.as_python_constant()), ("__eq__", "__hash__", "__contains__")
        )
        container = None if plain else self.as_container(tx)
        if container is not None:
            return container.contains(tx, item)
        if not item.is_python_constant():
            unsupported("contains", f"{item!r} in {self!r}", "it is not known while tracing")
        return tx.fold(operator.contains, (self.value, item.as_python_constant()), {})

    def iter(self, tx: Translator) -> VariableTracker:
        if isinstance(self.value, (str, bytes, range, tuple)):
            return tx.constant_iterator(self.value)
        try:
            items = list(self.value)
        except TypeError as error:
            raise ObservedException(tx.wrap_exception(error)) from None
        return tx.sequence_iterator([tx.wrap_constant(item) for item in items])

    def reconstruct(self, codegen: PyCodegen) -> None:
        codegen.load_const(self.value)
