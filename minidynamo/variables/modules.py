"""Python modules as values: their variables are guarded one by one."""

from __future__ import annotations

import builtins
import importlib.util
import inspect
import sys
import types
from typing import TYPE_CHECKING, Any

from ..draws import lasting_seeds
from ..interruptions import pass_on
from ..side_effects import DELETED, Mutation
from ..source import (
    AttrSource,
    ConstSource,
    DictItemSource,
    InstanceAttrSource,
    InstanceDictSource,
)
from .base import ObservedException, VariableTracker, unsupported
from .builder import builds
from .descriptors import guard_class
from .globals_ import globals_of
from .registry import wraps, wraps_instances
from .user_defined import wrap_object

if TYPE_CHECKING:
    from ..source import Source
    from ..symbolic_convert import Translator

_PROTOCOL = ("__getattribute__", "__setattr__", "__delattr__", "__dict__")


class PythonModuleVariable(VariableTracker):
    """A module, known by identity."""

    def __init__(self, value: types.ModuleType, *, source: Source) -> None:
        super().__init__(source=source, mutation=Mutation.EXISTING)
        self.value = value

    def describe(self) -> str:
        return getattr(self.value, "__name__", "<module>")

    def python_type(self) -> type:
        return type(self.value)

    def as_python_constant(self) -> Any:
        return self.value

    def identity(self) -> Any:
        return self.value

    def hash_key(self, tx: Translator) -> Any:
        return self.value

    def truth(self, tx: Translator) -> bool:
        return True

    def holder(self, tx: Translator, name: str) -> VariableTracker:
        """Whose entry in the log the attribute is: that of the globals, or of the module itself
        where its type treats attributes in a way of its own.
        """
        own_way = type(self.value).__setattr__ is not types.ModuleType.__setattr__
        if own_way or self._is_property(name):
            return self
        assert self.source is not None
        return globals_of(tx, self.value.__dict__, InstanceDictSource(self.source))

    def getattr(self, tx: Translator, name: str) -> VariableTracker:
        stored = tx.output.side_effects.load_attr(self.holder(tx, name), name)
        if isinstance(stored, VariableTracker):
            return stored.realize()
        assert self.source is not None
        if (
            stored is not DELETED
            and name in self.value.__dict__
            and not self._is_property(name)
        ):
            return tx.wrap(self.value.__dict__[name], InstanceAttrSource(self.source, name))
        return self._computed(tx, name, stored is DELETED)

    def _is_property(self, name: str) -> bool:
        """Whether the module's type has such a property (torch.backends.cudnn.enabled)."""
        kind = type(self.value)
        found = (
            inspect.getattr_static(kind, name, None) if kind is not types.ModuleType else None
        )
        return hasattr(type(found), "__set__")

    def _computed(self, tx: Translator, name: str, deleted: bool) -> VariableTracker:
        """Names that the module's own `__getattr__` (lazy imports) or its type gives."""
        assert self.source is not None
        if name == "__annotations__":
            unsupported("attribute", name, "reading it would make it while tracing")
        try:
            if deleted:
                raise AttributeError(
                    f"module '{self.value.__name__}' has no attribute '{name}'"
                )
            value = getattr(self.value, name)
        except AttributeError as error:
            self._guard_lacks(tx, name)
            raise ObservedException(tx.wrap_exception(error)) from None
        except Exception as error:
            pass_on(error)
            unsupported("attribute", name, f"the module's __getattr__ raises {error!r}")
        if name in self.value.__dict__ and not self._is_property(name):
            return self.getattr(tx, name)
        return tx.wrap(value, AttrSource(self.source, name))

    def _guard_lacks(self, tx: Translator, name: str) -> None:
        """The module has no such name, nor another function that might give it."""
        assert self.source is not None
        tx.guard(self.source, "TYPE_IS", type(self.value))
        guard_class(tx, type(self.value))
        for absent in (name, "__getattr__"):
            if absent not in self.value.__dict__:
                tx.guard(InstanceDictSource(self.source), "DICT_LACKS", absent)
            elif absent != name:
                held = self.value.__dict__[absent]
                tx.guard(InstanceAttrSource(self.source, absent), "ID_IS", held)

    def setattr(self, tx: Translator, name: str, value: VariableTracker) -> None:
        _refuse_slot(name)
        if self._is_property(name):
            what = f"{self.describe()}.{name} = ..."
            unsupported(
                "module property", what, "operators may read when they run what it sets"
            )
        tx.output.side_effects.store_attr(self.holder(tx, name), name, value)

    def delattr(self, tx: Translator, name: str) -> None:
        _refuse_slot(name)
        if name == "__annotations__":
            unsupported("attribute store", name, "reading it makes it, deleting it does not")
        self.getattr(tx, name)
        existed = name in self.value.__dict__
        tx.output.side_effects.delete_attr(self.holder(tx, name), name, existed=existed)

    def call_method(
        self,
        tx: Translator,
        name: str,
        args: list[VariableTracker],
        kwargs: dict[str, VariableTracker],
    ) -> VariableTracker:
        return tx.call_function(self.getattr(tx, name), args, kwargs)


def _refuse_slot(name: str) -> None:
    if name in ("__dict__", "__class__"):
        unsupported("attribute store", name, "it is no variable of the module")


def _has_own_protocol(kind: type) -> bool:
    """Whether code of the program runs where an attribute is read or written."""
    defined = {name for base in kind.__mro__[:-2] for name in vars(base)}
    return not defined.isdisjoint(_PROTOCOL)


@wraps(types.ModuleType)
@wraps_instances(types.ModuleType)
def wrap_python_module(
    tx: Translator, value: types.ModuleType, source: Source
) -> VariableTracker:
    """A module of the frame. Torch's own types of modules have no side effects."""
    kind = type(value)
    if kind.__module__.partition(".")[0] != "torch" and _has_own_protocol(kind):
        return wrap_object(tx, value, source)
    tx.guard(source, "ID_IS", value)
    return PythonModuleVariable(value, source=source)


@builds(types.ModuleType)
def build_python_module(tx: Translator, value: types.ModuleType) -> VariableTracker:
    """A module that the tracer reached itself."""
    variable = PythonModuleVariable(value, source=ConstSource(value, value.__name__))
    return tx.output.side_effects.track(value, variable)


_import = builtins.__import__


def imported(
    tx: Translator, name: str, package: str | None, level: int, names: Any
) -> tuple[types.ModuleType, str]:
    """The module that the statement gives, and its name: the one that is named if the name is
    relative or something is taken from it, else its outermost package.
    """
    try:
        path = importlib.util.resolve_name("." * level + name, package) if level else name
    except ImportError:
        path = ""
    if sys.modules.get(path) is None:
        _import_now(tx, name, path)
    missing = [n for n in names or () if n != "*" and not hasattr(sys.modules[path], n)]
    if missing and hasattr(sys.modules[path], "__path__"):
        for part in missing:
            _import_now(tx, part, f"{path}.{part}")
    top = path if names or level else path.partition(".")[0]
    table = ConstSource(sys.modules, "sys.modules")
    for key in dict.fromkeys((path, top)):
        tx.guard(DictItemSource(table, key), "ID_IS", sys.modules[key])
    return sys.modules[top], top


def _import_now(tx: Translator, name: str, path: str) -> None:
    """A first import runs code. It is run while tracing, if it cannot see what the program did
    before; else, and where it fails, it breaks the graph.
    """
    output = tx.output
    may_see = not output.side_effects.is_empty() or output.draws.calls or output.overrides.modes
    fits = output.options.fullgraph or (output.body is None and not may_see)
    if path and builtins.__import__ is _import and fits:
        try:
            with lasting_seeds():
                importlib.import_module(path)
            return
        except Exception as error:
            pass_on(error)
    unsupported("import", name, f"module {name} is imported for the first time here")
