"""What code of the program may read, found by the names in it and in the code that it reaches by
them: where code runs before what the frame stored is written to objects.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ..bytecode import decode
from .contexts import GlobalStateVariable

if TYPE_CHECKING:
    from ..side_effects import SideEffects
    from .base import VariableTracker

# With more objects than these in reach it is taken for a reader of all of them.
_MOST = 40_000
_GLOBALS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
_ITEMS = {"STORE_SUBSCR": "__setitem__", "DELETE_SUBSCR": "__delitem__"}
# Who calls these may name an attribute by a text.
_BY_TEXT = {"getattr", "attrgetter", "vars", "__dict__", "globals"}
# Methods that nobody calls by name, but not those that make the object.
_UNNAMED = (
    "__call__ __getitem__ __getattr__ __getattribute__ __len__ __iter__ __next__ __bool__"
)
_UNNAMED += (
    " __contains__ __enter__ __exit__ __float__ __int__ __index__ __add__ __mul__ __sub__"
)
_CONTAINERS = (list, tuple, set, frozenset, dict)
_LEAVES = (int, float, complex, str, bytes, type(None), torch.Tensor, torch.dtype, torch.device)


class CodeReach:
    """The objects that the code of functions reaches by the names in it."""

    def __init__(self, functions: Sequence[Any]) -> None:
        # Of attributes, and of globals.
        self.names: set[str] = {"cell_contents"}
        self.globals: set[str] = set()
        self._seen: dict[int, Any] = {}
        # Globals of functions: what they hold is reached by name only.
        self._namespaces: dict[int, Any] = {}
        self.is_cut = False
        before = -1
        # A name that is found late may be an attribute of what was looked at before.
        while before != (before := len(self._seen) + len(self.names)):
            self._walk([*functions])
            self._walk(list(self._seen.values()))

    def reads(self, real: Any, names: Iterable[str] | None = None) -> bool:
        """Whether the code may look at the object `real` (at one of its attributes `names`)."""
        if real is None or self.is_cut:
            return self.is_cut
        if id(real) in self._namespaces:
            return not self.globals.isdisjoint(names or self.globals)
        return id(real) in self._seen and not self.names.isdisjoint(names or self.names)

    def first_read(
        self, effects: SideEffects, stores: Iterable[tuple[VariableTracker, Any]]
    ) -> str | None:
        """What of the log the code may read, of attributes only `stores`; None if nothing."""
        for variable, names in stores:
            if self.reads(_real(effects, variable), names):
                return ", ".join(map(str, names))
        for variable in effects.contents:
            if isinstance(variable, GlobalStateVariable):
                continue  # its changes are nodes of the graph, and are in force while tracing
            if self.reads(_real(effects, variable)):
                return repr(variable)
        return None

    def _walk(self, todo: list[Any]) -> None:
        again = {id(value) for value in todo}
        while todo and not self.is_cut:
            value = todo.pop()
            if isinstance(value, _LEAVES) or (
                id(value) in self._seen and id(value) not in again
            ):
                continue
            again.discard(id(value))
            self._seen[id(value)] = value
            self.is_cut = len(self._seen) > _MOST
            todo.extend(self._below(value))

    def _below(self, value: Any) -> Iterable[Any]:
        if isinstance(value, types.FunctionType):
            return self._of_function(value)
        if isinstance(value, types.CellType):
            return _contents([value])
        if isinstance(value, types.MethodType):
            return (value.__func__, value.__self__)
        if isinstance(value, functools.partial):
            return (value.func, value.args, value.keywords)
        if isinstance(value, (property, functools.cached_property)):
            return (getattr(value, "fget", None) or getattr(value, "func", None),)
        if isinstance(value, (staticmethod, classmethod)):
            return (value.__func__,)
        if isinstance(value, type):
            return self._of_class(value)
        below: list[Any] = [*value] if type(value) in _CONTAINERS else []
        if isinstance(value, dict):
            below = [*dict.keys(value), *dict.values(value)]
        return (*below, *self._of_instance(value))

    def _of_function(self, function: types.FunctionType) -> list[Any]:
        globals_ = function.__globals__
        cells = function.__closure__ or ()
        if _is_of_library(globals_.get("__name__")):
            return [*cells, getattr(function, "__wrapped__", None)]
        names, attributes = _names(function.__code__)
        self.names |= attributes
        self.globals |= names
        self._namespaces[id(globals_)] = globals_
        below = [globals_[name] for name in names if name in globals_]
        wrapped = getattr(function, "__wrapped__", None)
        return [*below, *cells, function.__defaults__, function.__kwdefaults__, wrapped]

    def _of_class(self, cls: type) -> list[Any]:
        bases = [base for base in cls.__mro__ if not _is_of_library(base.__module__)]
        unnamed = _UNNAMED.split()
        methods = [vars(base)[name] for base in bases for name in unnamed if name in vars(base)]
        return [item for base in bases for item in self._named(vars(base))] + methods

    def _of_instance(self, value: Any) -> list[Any]:
        if isinstance(value, types.ModuleType):
            return [] if _is_of_library(value.__name__) else self._named(vars(value))
        state = getattr(type(value), "__dictoffset__", 0) and object.__getattribute__(
            value, "__dict__"
        )
        below: list[Any] = self._named(state) if state else []
        if isinstance(value, torch.nn.Module):
            below += [value._parameters, value._buffers, value._modules]
        return [type(value), *below, *self._slots(value)]

    def _slots(self, value: Any) -> list[Any]:
        """What the slots of an object hold."""
        found = []
        for base in type(value).__mro__:
            for name, item in vars(base).items():
                if name in self.names and isinstance(item, types.MemberDescriptorType):
                    try:
                        found.append(item.__get__(value))
                    except AttributeError:  # an empty slot
                        continue
        return found

    def _named(self, items: Any) -> list[Any]:
        return [items[name] for name in self.names if name in items]


def _contents(cells: Iterable[types.CellType]) -> list[Any]:
    found = []
    for cell in cells:
        try:
            found.append(cell.cell_contents)
        except ValueError:  # an empty cell
            continue
    return found


@functools.lru_cache(maxsize=1024)
def _names(code: types.CodeType) -> tuple[set[str], set[str]]:
    """Names of globals, and of attributes, in the code and in what it defines."""
    loaded = [instruction for instruction in decode(code) if "LOAD" in instruction.opname]
    globals_: set[str] = {item.arg for item in loaded if item.opname in _GLOBALS}
    attributes = {item.arg for item in loaded if item.opname in _ATTRIBUTES}
    attributes |= set(code.co_names) - globals_
    attributes |= {_ITEMS[item.opname] for item in decode(code) if item.opname in _ITEMS}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            inner = _names(constant)
            globals_ |= inner[0]
            attributes |= inner[1]
        elif isinstance(constant, str) and _BY_TEXT & {*code.co_names}:
            attributes.add(constant)
    return globals_, attributes


def _real(effects: SideEffects, variable: VariableTracker) -> Any:
    """The object that a pending change is about, or None."""
    real = effects.real_of(variable)
    return getattr(variable, "dict", None) if real is None else real


@functools.cache
def _is_of_library(name: str | None) -> bool:
    """Whether code of the module knows nothing of the program's objects."""
    root = (name or "").split(".")[0]
    known = ("torch", "numpy", "triton", "minidynamo", "sympy", "mpmath")
    return root in known or root in sys.stdlib_module_names
