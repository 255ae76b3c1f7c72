"""Exceptions of the traced program: `ExceptionVariable(cls, args)`."""

from __future__ import annotations

import builtins
import types
from operator import is_
from typing import TYPE_CHECKING, Any

from ..exc import Unsupported
from ..interruptions import pass_on
from ..side_effects import DELETED, Mutation
from ..source import AttrSource
from .base import VariableTracker, unsupported
from .builtin_object import (
    NONE,
    BuiltinObject,
    builtin_method,
    construct,
    follows_base,
    is_none,
    type_name,
)
from .constant import ConstantVariable
from .registry import wraps_instances
from .services import EXCEPTION_BUILDER

if TYPE_CHECKING:
    from ..bytecode.instruction import Instruction
    from ..codegen import PyCodegen
    from ..source import Source
    from ..symbolic_convert import Translator

_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE
_LINKS = ("__cause__", "__context__")
_OS_SLOTS = ("errno", "strerror", "filename", "filename2")
# Exceptions whose __init__ keeps more than `args`, by the attribute and the position it comes from.
_FIELDS: dict[tuple[type, str], int] = {(StopIteration, "value"): 0, (SystemExit, "code"): 0}
# Classes with further C state, which is not traced.
OPAQUE_EXCEPTIONS = (OSError, SyntaxError, UnicodeError, BaseExceptionGroup)
# Classes whose __init__ sets more than `args`.
_WITH_STATE = (
    *OPAQUE_EXCEPTIONS,
    ImportError,
    NameError,
    AttributeError,
    StopIteration,
    SystemExit,
)


class ExceptionVariable(BuiltinObject):
    """An exception object; `__cause__` and other attributes are in the side-effect log."""

    def __init__(
        self,
        cls: type[BaseException],
        args: list[VariableTracker],
        *,
        source: Source | None = None,
        mutation: Mutation = Mutation.NEW,
        real: Any = None,
        sample: BaseException | None = None,
        made_with: tuple[list[VariableTracker], dict[str, Any]] | None = None,
    ) -> None:
        """sample: one like it, for what it keeps beside `args`; made_with: its arguments if these
        are others than `args`, and constant keywords.
        """
        super().__init__(cls, source=source, mutation=mutation, real=real)
        self.args = args
        self.sample = sample
        self.made_with = made_with or (None, {})

    def describe(self) -> str:
        if self.source is not None:
            return self.source.name
        shown = [arg.realize() for arg in self.args]
        texts = [str(a.value) if isinstance(a, ConstantVariable) else repr(a) for a in shown]
        return f"{self.cls.__name__}: {', '.join(texts)}"

    def getattr(self, tx: Translator, name: str) -> VariableTracker:
        if name == "args":
            return tx.wrap_items(tuple, self.args)
        stored = tx.output.side_effects.load_attr(self, name)
        if isinstance(stored, VariableTracker):
            return stored
        if self.source is not None and (name in _LINKS or name == "__suppress_context__"):
            return tx.wrap(getattr(self.real, name), AttrSource(self.source, name))
        if name in _LINKS:
            return NONE
        if name == "__suppress_context__":
            return ConstantVariable(False)
        for (class_, field), position in _FIELDS.items():
            if name == field and issubclass(self.cls, class_):
                if self.source is not None:
                    return tx.wrap(getattr(self.real, name), AttrSource(self.source, name))
                return self.args[position] if self.args else NONE
        if name == "__traceback__" and (self.source is None or self.raised_at is not None):
            return NONE if self.raised_at is None else traceback_of(self)
        if name == "__traceback__":
            unsupported("exception attribute", name, f"{name!r} of exceptions is not traced")
        return super().getattr(tx, name)

    def load_slot(self, tx: Translator, descriptor: Any) -> VariableTracker:
        name = descriptor.__name__
        if self.source is not None:
            return tx.wrap(getattr(self.real, name), AttrSource(self.source, name))
        if self.sample is None:
            unsupported("exception attribute", name, f"{name!r} of exceptions is not traced")
        return tx.wrap_constant(getattr(self.sample, name))

    def load_getset(self, tx: Translator, descriptor: Any) -> VariableTracker:
        if descriptor.__name__ == "characters_written":
            return self.load_slot(tx, descriptor)
        return super().load_getset(tx, descriptor)

    def setattr(
        self,
        tx: Translator,
        name: str,
        value: VariableTracker,
    ) -> None:
        effects = tx.output.side_effects
        if name == "args":
            self.set_args(tx, value.realize().unpack(tx))
        elif name in _LINKS:
            kind = value.python_type()
            if kind is not type(None) and not issubclass(kind, BaseException):
                text = f"exception {name[2:-2]} must be None or derive from BaseException"
                tx.raise_observed(TypeError, text)
            effects.store_attr(self, name, value)
            if name == "__cause__":
                effects.store_attr(self, "__suppress_context__", ConstantVariable(True))
        elif name == "__suppress_context__":
            if value.python_type() is not bool:
                tx.raise_observed(TypeError, "attribute value type must be bool")
            effects.store_attr(self, name, value)
        elif name == "__traceback__":
            self.set_traceback(tx, value)
        else:
            super().setattr(tx, name, value)

    def store_in_c(
        self,
        tx: Translator,
        descriptor: Any,
        value: VariableTracker | None,
    ) -> None:
        name = getattr(descriptor, "__name__", "")
        is_known = isinstance(self.sample, OSError) and name in _OS_SLOTS
        is_known = is_known and not _is_kept(self.cls, self.args)
        if is_known and value is not None and value.realize().is_python_constant():
            tx.output.side_effects.store_attr(self, name, value)
            return
        super().store_in_c(tx, descriptor, value)

    def delattr(self, tx: Translator, name: str) -> None:
        if name in ("args", "__traceback__", *_LINKS):
            tx.raise_observed(TypeError, f"{name} may not be deleted")
        if name == "__suppress_context__":
            tx.raise_observed(TypeError, "can't delete numeric/char attribute")
        if isinstance(tx.output.side_effects.load_attr(self, name), VariableTracker):
            self.delete_item(tx, name)
        else:
            super().delattr(tx, name)

    def set_traceback(self, tx: Translator, traceback: VariableTracker) -> None:
        """Its own is nothing new: who looks at it makes the program raise for real. So it is with
        one of another exception, which was raised earlier.
        """
        if traceback.python_type() not in (types.TracebackType, types.NoneType):
            tx.raise_observed(TypeError, "__traceback__ must be a traceback or None")
        own = isinstance(traceback, TracebackVariable) and traceback.made_at == self.raised_at
        is_fresh = self.source is None and self.raised_at is None
        if is_fresh and isinstance(traceback, TracebackVariable) and traceback.made_at:
            self.raised_at = traceback.made_at
            self.traceback: VariableTracker | None = traceback
            return
        if self.source is None and is_none(traceback):
            self.raised_at = None  # as of one that was not raised yet
            return
        if not own or self.raised_at is None:
            unsupported("exception attribute", "__traceback__", "tracebacks are not traced")
        self.traceback = traceback

    def present_sample(self, tx: Translator) -> BaseException:
        """The sample, with the slots that the traced code has set."""
        stored = tx.output.side_effects.stored_attrs(self)
        changed = {name: stored[name] for name in _OS_SLOTS if name in stored}
        sample = self.sample
        if changed and sample is not None and self.made_with[0] is not None:
            values = [item.as_python_constant() for item in self.made_with[0]]
            sample = _new_exception(type(sample), tuple(values), self.made_with[1])
            for name, value in changed.items():
                setattr(sample, name, value.as_python_constant())  # type: ignore[union-attr]
        return sample  # type: ignore[return-value]

    def set_args(self, tx: Translator, args: list[VariableTracker]) -> None:
        """`BaseException.args = args`."""
        if self.sample is not None:
            unsupported("attribute store", "args", "its class keeps more than args")
        tx.output.side_effects.mutate(self)
        self.args = args

    def has_instance_dict(self) -> bool:
        return True

    def hash_key(self, tx: Translator) -> Any:
        return self.identity()

    def truth(self, tx: Translator) -> bool:
        defined = [self.lookup(name) for name in ("__bool__", "__len__")]
        return True if defined == [None, None] else super().truth(tx)

    def reconstruct(self, codegen: PyCodegen) -> None:
        given, named = self.made_with
        if codegen.can_break:
            self.check_traceback()

        def push_args() -> None:
            args = self.args if given is None else given
            codegen.sequence(args)
            codegen.emit("BUILD_TUPLE", len(args))

        construct(
            codegen, _new_exception, lambda: codegen.load_const(self.cls), push_args, named
        )
        stored = codegen.side_effects.stored_attrs(self)
        if stored:
            codegen.save_temp(self)
        for name, value in stored.items():
            if value is not DELETED:
                codegen(value)  # type: ignore[arg-type]
                self.apply_setattr(codegen, name)

    def check_traceback(self) -> None:
        """To be called if it is seen outside: what the traced code raised gets a traceback by being
        raised by eager.
        """
        if self.raised_at is None:
            return
        why = "an exception that was raised leaves the graph: its traceback is eager's"
        reason = Unsupported("exception", repr(self), why)
        reason.made_at = self.raised_at  # type: ignore[attr-defined]
        raise reason

    def push_contents(self, codegen: PyCodegen) -> None:
        codegen.sequence(self.args)
        codegen.emit("BUILD_TUPLE", len(self.args))

    def apply_contents(self, codegen: PyCodegen) -> None:
        codegen.emit("LOAD_FAST", codegen.preload(self))
        codegen.emit("STORE_ATTR", "args")


class TracebackVariable(VariableTracker):
    """The traceback of an exception that the traced code raised: it does not exist."""

    def __init__(self, raised_at: int | None) -> None:
        super().__init__()
        self.made_at = raised_at

    def python_type(self) -> type:
        return types.TracebackType

    def truth(self, tx: Translator) -> bool:
        return True


def traceback_of(error: VariableTracker) -> TracebackVariable:
    """The traceback of an exception that the traced code raised: one object a raise."""
    known = getattr(error, "traceback", None)
    if known is None or known.made_at != error.raised_at:
        known = TracebackVariable(error.raised_at)
        error.traceback = known  # type: ignore[attr-defined]
    return known


def extend_traceback(inst: Instruction, error: VariableTracker) -> None:
    """`PyTraceBack_Here`: what is raised by an instruction, or passes a frame's call, gets a new
    object for its traceback.
    """
    if inst.opname != "RERAISE" and (inst.opname, inst.arg) != ("RAISE_VARARGS", 0):
        error.traceback = None  # type: ignore[attr-defined]


def _new_exception(
    cls: type[BaseException],
    args: tuple[Any, ...],
    named: dict[str, Any],
) -> BaseException:
    """The exception without the `__init__` that Python subclasses define: it was traced."""
    base: Any = next(c for c in cls.__mro__ if not c.__flags__ & _HEAP_TYPE)
    result = base.__new__(cls, *args, **named)
    base.__init__(result, *args, **named)
    return result


def build_exception(tx: Any, error: BaseException) -> VariableTracker:
    """The traced value of an exception that Python raised while the tracer computed."""
    pass_on(error)
    args = [tx.wrap_constant(arg) for arg in error.args]
    sample = error.with_traceback(None) if isinstance(error, OPAQUE_EXCEPTIONS) else None
    made = ExceptionVariable(type(error), args, sample=sample)
    for name, value in vars(error).items():
        tx.output.side_effects.store_attr(made, name, tx.wrap_constant(value))
    return made


def exception_with_state(
    tx: Any,
    cls: Any,
    args: list[VariableTracker],
    kwargs: dict[str, VariableTracker],
) -> VariableTracker:
    """`cls(*args, **kwargs)` of a class that keeps more than `args` (Python's own, or derived from
    OSError): it is made of constants.
    """
    if _is_filled_by_init(cls):
        args, kwargs = [], {}
    sample, named = _sample(tx, cls, args, kwargs)
    own = _own_args(tx, sample, args)
    return ExceptionVariable(type(sample), own, sample=sample, made_with=(args, named))


def _own_args(
    tx: Translator,
    sample: BaseException,
    args: list[VariableTracker],
) -> list[VariableTracker]:
    """What such an exception has for its `args`."""
    if _is_kept(type(sample), args):
        return args
    return [tx.wrap_constant(arg) for arg in sample.args]


def _is_kept(
    cls: type,
    args: list[VariableTracker],
) -> bool:
    """Whether it is the one argument of an OSError, which sets none of its other attributes."""
    return issubclass(cls, OSError) and [arg.is_python_constant() for arg in args] == [False]


def _sample(
    tx: Translator,
    cls: Any,
    args: list[VariableTracker],
    kwargs: dict[str, VariableTracker],
) -> tuple[BaseException, dict[str, Any]]:
    """One that is made so (without the program's `__init__`), and the keywords."""
    is_own = cls.__flags__ & _HEAP_TYPE
    args = [NONE] if not kwargs and _is_kept(cls, args) else args
    given = [*args, *kwargs.values()]
    if not all(item.is_python_constant() for item in given) or (
        is_own and not issubclass(cls, OSError)
    ):
        unsupported("exception class", cls.__name__, f"making a {cls.__name__} is not traced")
    values = tuple(item.as_python_constant() for item in args)
    named = {name: item.as_python_constant() for name, item in kwargs.items()}
    try:
        if is_own:
            return _new_exception(cls, values, named), named
        return cls(*values, **named), named
    except Exception as error:
        tx.raise_observed(type(error), *error.args)


def _is_filled_by_init(cls: Any) -> bool:
    """`oserror_use_init`: whether `OSError.__new__` leaves the arguments to `__init__`."""
    if not issubclass(cls, OSError):
        return False
    owners = [
        next(c for c in cls.__mro__ if name in vars(c)) for name in ("__init__", "__new__")
    ]
    return [bool(owner.__flags__ & _HEAP_TYPE) for owner in owners] == [True, False]


EXCEPTION_BUILDER.append(build_exception)
BUILTIN_EXCEPTIONS = tuple(
    value
    for value in vars(builtins).values()
    if isinstance(value, type) and issubclass(value, BaseException)
)
follows_base(*(class_ for class_ in BUILTIN_EXCEPTIONS if class_ is not BaseException))


def set_context(
    tx: Translator,
    error: VariableTracker,
    handled: VariableTracker,
) -> None:
    """`_PyErr_SetObject`: `error` was raised while `handled` was being handled."""
    effects = tx.output.side_effects
    if not isinstance(error, ExceptionVariable) or not isinstance(handled, ExceptionVariable):
        return
    if error is handled:
        return
    context: Any = handled
    seen = set()
    while isinstance(context, ExceptionVariable) and context not in seen:
        seen.add(context)
        following = context.getattr(tx, "__context__").realize()
        if following is error:
            effects.store_attr(context, "__context__", NONE)
            break
        context = following
    effects.store_attr(error, "__context__", handled)


def stop_iteration_error(tx: Translator, error: VariableTracker) -> VariableTracker:
    """What a generator raises that ends with `error`: for StopIteration another one (PEP 479)."""
    if not issubclass(error.python_type(), StopIteration):
        return error
    replaced = tx.wrap_exception(RuntimeError("generator raised StopIteration"))
    replaced.raised_at = tx.last_step()
    for link in _LINKS:
        replaced.setattr(tx, link, error)
    return replaced


def first_raise(tx: Translator, error: VariableTracker) -> int | None:
    """The first step at which the traced code raised `error`, its causes or its contexts."""
    steps, seen, pending = [], set(), [error]
    while pending:
        value = pending.pop().realize()
        if isinstance(value, ExceptionVariable) and value not in seen:
            seen.add(value)
            steps += [] if value.raised_at is None else [value.raised_at]
            stored = tx.output.side_effects.stored_attrs(value)
            links = [stored.get(name) for name in _LINKS]
            pending += [link for link in links if isinstance(link, VariableTracker)]
    return min(steps, default=None)


@wraps_instances(BaseException)
def _wrap_exception(tx: Translator, value: BaseException, source: Source) -> VariableTracker:
    tx.guard(source, "TYPE_IS", type(value))
    args = tx.wrap(value.args, AttrSource(source, "args")).unpack(tx)
    return ExceptionVariable(
        type(value), args, source=source, mutation=Mutation.EXISTING, real=value
    )


@builtin_method(BaseException, "__init__")
def _exception_init(
    tx: Translator,
    self: ExceptionVariable,
    /,
    *args: VariableTracker,
    **named: VariableTracker,
) -> None:
    given = self.made_with[0] or []
    if self.sample is not None and len(given) == len(args) and all(map(is_, given, args)):
        return  # its `__new__` has done that
    if named:
        unsupported("call does not fit", "__init__", "eager will raise the TypeError")
    if self.sample is not None and _is_filled_by_init(self.cls):
        self.sample, _ = _sample(tx, self.cls, list(args), {})
        self.made_with = list(args), {}
        tx.output.side_effects.mutate(self)
        self.args = _own_args(tx, self.sample, list(args))
        return
    if self.source is not None and issubclass(self.cls, _WITH_STATE):
        unsupported("exception class", self.cls.__name__, "its __init__ does more than args")
    self.set_args(tx, list(args))


@builtin_method(BaseException, "__str__")
def _exception_str(tx: Translator, self: ExceptionVariable, /) -> VariableTracker:
    if issubclass(self.cls, OPAQUE_EXCEPTIONS) and self.source is not None:
        unsupported("exception attribute", "__str__", "it shows what is not in its args")
    if self.sample is not None and not _is_kept(self.cls, self.args):
        return ConstantVariable(str(self.present_sample(tx)))
    if issubclass(self.cls, UnicodeError):
        values = [arg.realize().as_python_constant() for arg in self.args]
        return tx.fold(lambda: str(self.cls(*values)), (), {})
    if not self.args:
        return ConstantVariable("")
    shown: VariableTracker = tx.wrap_items(tuple, self.args)
    if len(self.args) == 1:
        shown = self.args[0].realize()
    function = repr if issubclass(self.cls, KeyError) and len(self.args) == 1 else str
    return tx.call_function(tx.wrap_constant(function), [shown], {})


@builtin_method(BaseException, "__repr__")
def _exception_repr(tx: Translator, self: ExceptionVariable, /) -> VariableTracker:
    shown = [tx.call_function(tx.wrap_constant(repr), [arg.realize()], {}) for arg in self.args]
    texts = [text.as_python_constant() for text in shown]
    return ConstantVariable(f"{self.cls.__name__}({', '.join(texts)})")


@builtin_method(BaseException, "with_traceback")
def _exception_with_traceback(
    tx: Translator,
    self: ExceptionVariable,
    traceback: VariableTracker,
    /,
) -> VariableTracker:
    unraised = self.source is None and self.raised_at is None
    if not (unraised and isinstance(traceback, ConstantVariable) and traceback.value is None):
        self.set_traceback(tx, traceback)
    return self


@builtin_method(BaseException, "add_note")
def _exception_add_note(
    tx: Translator,
    self: ExceptionVariable,
    note: VariableTracker,
    /,
) -> None:
    if not issubclass(note.python_type(), str):
        kind = type_name(note.python_type())
        tx.raise_observed(TypeError, f"note must be a str, not {kind!r}")
    stored = tx.output.side_effects.load_attr(self, "__notes__")
    if not isinstance(stored, VariableTracker):
        if self.source is not None:
            unsupported(
                "exception attribute", "__notes__", "notes of this exception are not traced"
            )
        stored = tx.wrap_items(list, [])
        tx.output.side_effects.store_attr(self, "__notes__", stored)
    if not issubclass(stored.python_type(), list):
        tx.raise_observed(TypeError, "Cannot add note: __notes__ is not a list")
    stored.call_method(tx, "append", [note], {})
