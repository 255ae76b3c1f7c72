"""`super()`: attributes looked up behind a class in the MRO of an object's class."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from ..source import AttrSource
from ..utils import class_dict
from .base import VariableTracker, unsupported
from .builtin_object import type_name
from .classes import ClassVariable
from .descriptors import ClassAttribute, bind, guard_class
from .registry import handles, wraps
from .user_defined import OpaqueVariable

if TYPE_CHECKING:
    from ..codegen import PyCodegen
    from ..source import Source
    from ..symbolic_convert import Translator


class SuperVariable(VariableTracker):
    """`super(after, receiver)`."""

    def __init__(
        self, after: type, receiver: VariableTracker, *, source: Source | None = None
    ) -> None:
        super().__init__(source=source)
        self.after = after
        self.receiver = receiver
        # `super(C, cls)` in class methods and __new__ binds to the class itself.
        is_class = isinstance(receiver, ClassVariable) and issubclass(receiver.value, after)
        self.of_class = is_class
        self.start: type = receiver.value if is_class else receiver.python_type()  # type: ignore

    def describe(self) -> str:
        return f"super({self.after.__qualname__}, {self.receiver.describe()})"

    def python_type(self) -> type:
        return super

    def truth(
        self,
        tx: Translator,
    ) -> bool:
        return True

    def getattr(
        self,
        tx: Translator,
        name: str,
    ) -> VariableTracker:
        """`super_getattro`; `__class__` is that of the super object."""
        guard_class(tx, self.start)
        mro = self.start.__mro__
        for owner in mro[mro.index(self.after) + 1 :] if name != "__class__" else ():
            known = tx.output.side_effects.variable_of(owner)
            if known is not None and tx.output.side_effects.load_attr(known, name) is not None:
                unsupported(
                    "super", f"{self!r}.{name}", "the attribute was stored while tracing"
                )
            if name in class_dict(owner):
                found = ClassAttribute(name, owner, owner, class_dict(owner)[name])
                guard_class(tx, owner)
                instance = None if self.of_class else self.receiver
                return bind(tx, found, instance, self.start).realize()
        tx.raise_observed(AttributeError, f"'super' object has no attribute '{name}'")

    def call_method(
        self,
        tx: Translator,
        name: str,
        args: list[VariableTracker],
        kwargs: dict[str, VariableTracker],
    ) -> VariableTracker:
        return tx.call_function(self.getattr(tx, name), args, kwargs)

    def reconstruct(
        self,
        codegen: PyCodegen,
    ) -> None:
        codegen.begin_call(super)
        codegen.load_const(self.after)
        codegen(self.receiver)
        codegen.end_call(2)


@wraps(super)
def wrap_super(
    tx: Translator,
    value: Any,
    source: Source,
) -> VariableTracker:
    """A super object of the frame: what it is bound to, and behind which class it looks."""
    receiver = value.__self__
    tx.guard(source, "TYPE_IS", super)
    if receiver is None or receiver is not _BOUND_TO.__get__(value):
        return OpaqueVariable(value, source=source)  # not bound, or a class hides to what
    tx.guard(AttrSource(source, "__thisclass__"), "ID_IS", value.__thisclass__)
    bound = tx.wrap(receiver, AttrSource(source, "__self__"))
    return SuperVariable(value.__thisclass__, bound, source=source)


_BOUND_TO: Any = vars(super)["__self__"]


@handles(super)
def builtin_super(
    tx: Translator, args: list[VariableTracker], kwargs: dict[str, VariableTracker]
) -> VariableTracker:
    """With two arguments, or none in a method: then class and object are those of the frame."""
    if not args:
        args = _of_frame(tx)
    if len(args) != 2 or kwargs:
        unsupported(
            "super", "super() with one argument", "unbound super objects are not traced"
        )
    after, receiver = args[0].realize(), args[1].realize()
    if not isinstance(after, ClassVariable):
        kind = type_name(after.python_type())
        tx.raise_observed(TypeError, f"super() argument 1 must be a type, not {kind}")
    fits = issubclass(receiver.python_type(), after.value) or (
        isinstance(receiver, ClassVariable) and issubclass(receiver.value, after.value)
    )
    if not fits:
        text = "super(type, obj): obj must be an instance or subtype of type"
        tx.raise_observed(TypeError, text)
    return SuperVariable(after.value, receiver)


def _of_frame(tx: Translator) -> list[VariableTracker]:
    """`__class__` and the first argument of the function that is interpreted."""
    code = tx.code
    has_arguments = code.co_argcount > 0 or code.co_flags & inspect.CO_VARARGS
    cell = tx.cells.get("__class__")
    after = cell.load(tx) if cell is not None else None
    if after is None or not has_arguments:
        tx.raise_observed(RuntimeError, "super(): no arguments")
    first = code.co_varnames[0]
    receiver = tx.cells[first].load(tx) if first in tx.cells else tx.locals.get(first)
    if receiver is None:
        tx.raise_observed(RuntimeError, "super(): arg[0] deleted")
    if not code.co_argcount:
        receiver = receiver.unpack(tx)[0]
    return [after, receiver]
