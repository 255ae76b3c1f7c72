"""Callables of the traced program: Python functions (inlined), functions made inside, bound
methods, builtins.

How a real callable is treated is decided by `trace_rules.lookup`: a handler of the table, a node of
the
graph, inlining, or a graph break.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

from ..side_effects import DELETED, Mutation, is_full
from ..source import (
    CellContentsSource,
    FuncClosureCellSource,
    FuncDefaultsSource,
    FuncDefaultsTupleSource,
    FuncKwDefaultsSource,
)
from .base import NotConstant, ObservedException, VariableTracker
from .constant import ConstantVariable
from .identity import IdentityKey, guard_distinct

if TYPE_CHECKING:
    from ..codegen import PyCodegen
    from ..source import Source
    from ..symbolic_convert import Translator


class CellVariable(VariableTracker):
    """A closure cell. Its contents are the attribute `cell_contents` in the side-effect log.

    `root_name` is set for cells of the outermost frame: they are reached by name with *_DEREF.
    `real` is the cell object, if it existed before the frame.
    """

    def __init__(
        self,
        *,
        real: Any = None,
        source: Source | None = None,
        contents_source: Source | None = None,
        root_name: str | None = None,
    ) -> None:
        mutation = Mutation.EXISTING if source is not None or root_name else Mutation.NEW
        super().__init__(source=source, mutation=mutation)
        self.real = real
        self.contents_source = contents_source
        self.root_name = root_name
        # What the frame's own prologue puts into the cell (an argument), which needs no replay.
        self.initial: VariableTracker | None = None
        self.needs_preload = root_name is None

    def load(self, tx: Translator) -> VariableTracker | None:
        """The contents, or None if the cell is empty."""
        stored = tx.output.side_effects.load_attr(self, "cell_contents")
        if stored is DELETED:
            return None
        if isinstance(stored, VariableTracker):
            return stored
        if self.real is None:
            return self.initial
        if not is_full(self.real):
            self._guard_full(tx)
            return None
        assert self.contents_source is not None
        return tx.lazy(self.real.cell_contents, self.contents_source)

    def load_if_any(self, tx: Translator) -> VariableTracker | None:
        """The same, where the frame goes on if the cell is empty: it matters that it is not, even
        if nobody looks at what it holds.
        """
        if self.real is not None:
            self._guard_full(tx)
        return self.load(tx)

    def _guard_full(self, tx: Translator) -> None:
        assert self.source is not None
        kind = "HAS_ATTR" if is_full(self.real) else "LACKS_ATTR"
        tx.guard(self.source, kind, "cell_contents")

    def store(self, tx: Translator, value: VariableTracker) -> None:
        tx.output.side_effects.store_attr(self, "cell_contents", value)

    def delete(self, tx: Translator) -> None:
        is_full_now = self.real is not None and is_full(self.real)
        existed = self.initial is not None or is_full_now
        tx.output.side_effects.delete_attr(self, "cell_contents", existed=existed)

    def python_type(self) -> type:
        return types.CellType

    def getattr(self, tx: Translator, name: str) -> VariableTracker:
        if name != "cell_contents":
            return super().getattr(tx, name)
        value = self.load_if_any(tx)
        if value is None:
            tx.raise_observed(ValueError, "Cell is empty")
        return value

    def setattr(
        self,
        tx: Translator,
        name: str,
        value: VariableTracker,
    ) -> None:
        if name != "cell_contents":
            super().setattr(tx, name, value)
        self.store(tx, value)

    def reconstruct(self, codegen: PyCodegen) -> None:
        if self.root_name is not None:
            codegen.emit("LOAD_CLOSURE", self.root_name)
            return
        stored = codegen.side_effects.load_attr(self, "cell_contents")
        codegen.begin_call(types.CellType)
        codegen.end_call(0)
        codegen.save_temp(self)
        if isinstance(stored, VariableTracker):
            codegen(stored)
            self.apply_setattr(codegen, "cell_contents")

    def apply_setattr(self, codegen: PyCodegen, name: str) -> None:
        if self.root_name is not None:
            codegen.emit("STORE_DEREF", self.root_name)
        else:
            super().apply_setattr(codegen, name)

    def apply_delattr(self, codegen: PyCodegen, name: str) -> None:
        if self.root_name is not None:
            codegen.emit("DELETE_DEREF", self.root_name)
        else:
            super().apply_delattr(codegen, name)


class BaseFunctionVariable(VariableTracker):
    """What can be inlined: a code object with globals, defaults and closure."""

    takes_lazy_args = True
    # Where the body of a class puts its names.
    namespace: dict[str, VariableTracker] | None = None

    def get_code(self) -> types.CodeType:
        raise NotImplementedError

    def get_globals(self) -> dict[str, Any]:
        raise NotImplementedError

    def get_name(self) -> str:
        return self.get_code().co_name

    def defaults(self, tx: Translator) -> list[VariableTracker]:
        raise NotImplementedError

    def kwdefaults(self, tx: Translator) -> dict[str, VariableTracker]:
        raise NotImplementedError

    def closure(self, tx: Translator) -> list[CellVariable]:
        raise NotImplementedError

    def python_type(self) -> type:
        return types.FunctionType

    def describe(self) -> str:
        return super().describe() or self.get_name()

    def truth(self, tx: Translator) -> bool:
        return True

    def call(
        self,
        tx: Translator,
        args: list[VariableTracker],
        kwargs: dict[str, VariableTracker],
    ) -> VariableTracker:
        return tx.inline(self, args, kwargs)


class UserFunctionVariable(BaseFunctionVariable):
    """A Python function that exists outside the trace."""

    def __init__(
        self,
        fn: types.FunctionType,
        *,
        source: Source | None = None,
    ) -> None:
        super().__init__(source=source)
        self.fn = fn

    def get_code(self) -> types.CodeType:
        return self.fn.__code__

    def get_globals(self) -> dict[str, Any]:
        return self.fn.__globals__

    def as_python_constant(self) -> Any:
        return self.fn

    def identity(self) -> Any:
        return self.fn

    def defaults(self, tx: Translator) -> list[VariableTracker]:
        source = tx.source_of(self, self.fn)
        values = self.fn.__defaults__ or ()
        if values:  # counted from the end, they go to other parameters if there are more
            tx.guard(FuncDefaultsTupleSource(source), "LEN_EQ", len(values))
        return [tx.lazy(value, FuncDefaultsSource(source, i)) for i, value in enumerate(values)]

    def kwdefaults(self, tx: Translator) -> dict[str, VariableTracker]:
        source, own = tx.source_of(self, self.fn), self.fn.__kwdefaults__ or {}
        known = tx.output.side_effects.variable_of(own)
        if known is not None:  # the frame has looked at the dict, and may have changed it
            return tx.unpack_keywords(known)
        return {
            name: tx.lazy(value, FuncKwDefaultsSource(source, name))
            for name, value in own.items()
        }

    def closure(self, tx: Translator) -> list[CellVariable]:
        source = tx.source_of(self, self.fn)
        cells = []
        for index, cell in enumerate(self.fn.__closure__ or ()):
            known = tx.output.side_effects.variable_of(cell)
            if known is None:
                cell_source = FuncClosureCellSource(source, index)
                known = CellVariable(
                    real=cell,
                    source=cell_source,
                    contents_source=CellContentsSource(cell_source),
                )
                tx.output.side_effects.track(cell, known)
            assert isinstance(known, CellVariable)
            cells.append(known)
        return cells

    def getattr(self, tx: Translator, name: str) -> VariableTracker:
        return tx.object_getattr(self, self.fn, name)

    def call(
        self,
        tx: Translator,
        args: list[VariableTracker],
        kwargs: dict[str, VariableTracker],
    ) -> VariableTracker:
        return tx.call_python_function(self, args, kwargs)


class BoundMethodVariable(VariableTracker):
    """`function` bound to `receiver`; calling it passes the receiver first."""

    takes_lazy_args = True

    def __init__(
        self,
        function: VariableTracker,
        receiver: VariableTracker,
        *,
        source: Source | None = None,
    ) -> None:
        super().__init__(source=source)
        self.function = function
        self.receiver = receiver

    def describe(self) -> str:
        return super().describe() or f"{self.function.describe()} of {self.receiver.describe()}"

    def python_type(self) -> type:
        return types.MethodType

    def as_python_constant(self) -> Any:
        function = self.function.as_python_constant()
        if not callable(function):
            raise NotConstant(self)
        return types.MethodType(function, self.receiver.as_python_constant())

    def truth(self, tx: Translator) -> bool:
        return True

    def compare(
        self,
        tx: Translator,
        method: str,
        other: VariableTracker,
    ) -> VariableTracker | None:
        """`method_richcompare`: receivers are compared by identity."""
        if method not in ("__eq__", "__ne__") or other.python_type() is not types.MethodType:
            return ConstantVariable(NotImplemented)
        if not isinstance(other, BoundMethodVariable):
            return None
        same = tx.is_same(self.function, other.function)
        same = same and tx.is_same(self.receiver, other.receiver)
        return ConstantVariable(same is (method == "__eq__"))

    def hash_key(self, tx: Translator) -> Any:
        if self.is_python_constant():
            return super().hash_key(tx)
        guard_distinct(tx, self.receiver)
        return IdentityKey((id(self.function.identity()), id(self.receiver.identity())), self)

    def call(
        self,
        tx: Translator,
        args: list[VariableTracker],
        kwargs: dict[str, VariableTracker],
    ) -> VariableTracker:
        return tx.call_for(self, self.function, [self.receiver, *args], kwargs)

    def getattr(self, tx: Translator, name: str) -> VariableTracker:
        if name == "__self__":
            return self.receiver
        if name == "__func__":
            return self.function
        if name == "__call__":
            return self
        return self.function.getattr(tx, name)

    def reconstruct(self, codegen: PyCodegen) -> None:
        bases = self.function.python_type().__mro__
        is_callable = any("__call__" in vars(base) for base in bases)
        codegen.begin_call(types.MethodType if is_callable else _bound)
        codegen(self.function)
        codegen(self.receiver)
        codegen.end_call(2)


def _bound(function: Any, receiver: Any) -> Any:
    """A method; the function of a class method need be no callable."""
    return classmethod(function).__get__(None, receiver)


# What methods that types define in C become where they are bound.
_BOUND: dict[type, type] = {
    types.ClassMethodDescriptorType: types.BuiltinMethodType,
    types.MethodDescriptorType: types.BuiltinMethodType,
    types.WrapperDescriptorType: types.MethodWrapperType,
}


def bound_attribute(tx: Translator, raw: Any, owner: type, name: str) -> VariableTracker | None:
    """An attribute of such a method, bound to a class or to an object of the class `owner`; None
    where that is not known here.
    """
    bound = _BOUND.get(type(raw))
    if bound is None:
        return None
    if name in ("__doc__", "__text_signature__"):
        return ConstantVariable(getattr(raw, name))
    if bound is types.BuiltinMethodType and name == "__module__":
        return ConstantVariable(None)
    if name == "__qualname__":
        shown = owner if bound is types.BuiltinMethodType else raw.__objclass__
        return ConstantVariable(f"{shown.__qualname__}.{raw.__name__}")
    if not any(name in vars(c) for c in bound.__mro__):
        text = f"'{bound.__name__}' object has no attribute '{name}'"
        tx.raise_observed(AttributeError, text)
    return None


class MethodOfVariable(VariableTracker):
    """`receiver.name` of a builtin type, not looked at further until it is called."""

    def __init__(self, receiver: VariableTracker, name: str) -> None:
        super().__init__()
        self.receiver = receiver
        self.name = name

    def describe(self) -> str:
        return f"{self.receiver!r}.{self.name}"

    def python_type(self) -> type:
        return types.BuiltinMethodType

    def as_python_constant(self) -> Any:
        return self.receiver.method_constant(self.name)

    def getattr(self, tx: Translator, name: str) -> VariableTracker:
        if name == "__self__":
            return self.receiver
        if name == "__name__":
            return ConstantVariable(self.name)
        cls = self.receiver.python_type()
        classes = [c for c in cls.__mro__ if self.name in vars(c)]
        raw = vars(classes[0])[self.name] if classes else None
        found = None if issubclass(cls, type) else bound_attribute(tx, raw, cls, name)
        return super().getattr(tx, name) if found is None else found

    def truth(self, tx: Translator) -> bool:
        return True

    def call(
        self,
        tx: Translator,
        args: list[VariableTracker],
        kwargs: dict[str, VariableTracker],
    ) -> VariableTracker:
        return self.receiver.call_method(tx, self.name, args, kwargs)

    def reconstruct(self, codegen: PyCodegen) -> None:
        codegen(self.receiver)
        codegen.emit("LOAD_ATTR", self.name)


class CallableVariable(VariableTracker):
    """A real callable that is not a plain Python function: builtins, C
    functions, torch operators.
    """

    def __init__(self, value: Any, *, source: Source | None = None) -> None:
        super().__init__(source=source)
        self.value = value

    def describe(self) -> str:
        return getattr(self.value, "__qualname__", None) or repr(self.value)

    def python_type(self) -> type:
        return type(self.value)

    def as_python_constant(self) -> Any:
        return self.value

    def as_proxy(self) -> Any:
        return self.value

    def identity(self) -> Any:
        return self.value

    def truth(self, tx: Translator) -> bool:
        return True

    def getattr(self, tx: Translator, name: str) -> VariableTracker:
        return tx.object_getattr(self, self.value, name)

    def call(
        self,
        tx: Translator,
        args: list[VariableTracker],
        kwargs: dict[str, VariableTracker],
    ) -> VariableTracker:
        return tx.call_real_callable(self, self.value, args, kwargs)


__all__ = [
    "BaseFunctionVariable",
    "BoundMethodVariable",
    "CallableVariable",
    "CellVariable",
    "MethodOfVariable",
    "NotConstant",
    "ObservedException",
    "UserFunctionVariable",
]
