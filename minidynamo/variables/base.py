"""What every symbolic value is: `VariableTracker`, with one method for each slot of CPython's
object protocol.

The interpreter knows values only through these slots, named after the C level (`getattr`, `call`,
`getitem`, `richcompare`, ...). A slot that a class does not override raises
`Unsupported`, which becomes a graph break; a Python exception that the traced program would see is
raised with `raise_observed`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from ..exc import Unsupported
from ..side_effects import Mutation

if TYPE_CHECKING:
    from ..codegen import PyCodegen
    from ..source import Source
    from ..symbolic_convert import Translator


# More items than this are not looked at while tracing.
MAX_ITEMS = 1 << 18


class NotConstant(Exception):
    """`as_python_constant` was asked of a value that is not a constant."""


class ObservedException(Exception):
    """An exception of the traced program. `value` is the exception's VariableTracker;
    `is_chained`: whether it got its `__context__`.
    """

    def __init__(self, value: VariableTracker, *, is_chained: bool = False) -> None:
        super().__init__(value)
        self.value = value
        self.is_chained = is_chained


_IMMUTABLE_TYPE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE


def type_name(cls: type) -> str:
    """`tp_name`, as messages show it: with the module for classes of C outside of builtins."""
    in_module = cls.__flags__ & _IMMUTABLE_TYPE and cls.__module__ != "builtins"
    return f"{cls.__module__}.{cls.__qualname__}" if in_module else cls.__name__


def unsupported(
    kind: str, context: str, explanation: str = "", hints: Iterable[str] = ()
) -> NoReturn:
    """Raise `Unsupported`: the traced program does something that has to break the graph."""
    raise Unsupported(kind, context=context, explanation=explanation, hints=list(hints))


# What raises if objects of a type refuse an attribute's store or, of None, deletion
# (`refused_stores`).
REFUSE_STORE: list[Callable[[Translator, type, str, VariableTracker | None], None]] = []


class VariableTracker:
    """A value of the traced program.

    `source` says how to load it in the frame (None if the traced code made it);
    `mutation` whether and how mutations of it have to be replayed.
    """

    source: Source | None = None
    mutation: Mutation = Mutation.IMMUTABLE
    # The StopIteration that its `__next__` or `send` raised last.
    stopped_by: VariableTracker | None = None
    # The step of the outermost frame that made it, for values that can't be rebuilt after the
    # graph:
    # should one be needed there, the graph breaks at that step instead.
    made_at: int | None = None
    # The same of the step that raised it, for an exception that the traced code made.
    raised_at: int | None = None
    # True for what stands for torch's global state.
    is_global_state = False
    # True if `call` may be given lazily wrapped arguments (it only passes them on).
    takes_lazy_args = False
    # True for a text that is made of symbolic numbers.
    is_symbolic_text = False
    # True if the value does itself what Python's operators mean for it: then it has `operate`.
    owns_operators = False
    # True if the value's class decides about its slots: they are looked up along the class's MRO.
    is_user_defined = False

    # Later values have higher numbers.
    _numbers = itertools.count()
    number = -1

    def __init__(
        self, *, source: Source | None = None, mutation: Mutation | None = None
    ) -> None:
        self.number = next(VariableTracker._numbers)
        if source is not None:
            self.source = source
        if mutation is not None:
            self.mutation = mutation

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.describe()})"

    def describe(self) -> str:
        """One short phrase for messages: the user's expression where there is one."""
        return self.source.name if self.source is not None else ""

    def phrase(self) -> str:
        """The same where the phrase has to say what it is, if the program has no name for it."""
        return self.describe() or type(self).__name__.removesuffix("Variable").lower()

    # -- what it is -----------------------------------------------------------------------------

    def realize(self) -> VariableTracker:
        """The value itself; differs from `self` only for `LazyVariable`."""
        return self

    @property
    def as_index(self) -> VariableTracker:
        """What stands for the value in a subscript of a tensor."""
        return self

    def as_argument(self, tx: Translator) -> VariableTracker:
        """What stands for the value among the arguments of a node."""
        return self

    def specialized(self, tx: Translator) -> VariableTracker:
        """The value with a symbolic number made a constant (of this call, with a guard)."""
        return self

    def python_type(self) -> type:
        """The type that `type(value)` gives in the traced program."""
        unsupported("type of value", repr(self), f"the type of {self.phrase()} is not known")

    def method_constant(self, name: str) -> Any:
        """The bound method, of objects known by identity. Raises NotConstant for others."""
        raise NotConstant(self)

    def is_python_constant(self) -> bool:
        try:
            self.as_python_constant()
        except NotConstant:
            return False
        return True

    def as_python_constant(self) -> Any:
        """The Python object this value equals for sure. Raises NotConstant."""
        raise NotConstant(self)

    def as_proxy(self) -> Any:
        """The value as an argument of an FX node (Node, constant or nest of both)."""
        try:
            return self.as_python_constant()
        except NotConstant:
            unsupported(
                "value in graph",
                repr(self),
                f"{self.phrase()} can't be an argument of a graph operation",
            )

    def identity(self) -> Any:
        """An object whose `is` stands for the traced value's identity."""
        return self

    # -- the object protocol --------------------------------------------------------------------

    def getattr(self, tx: Translator, name: str) -> VariableTracker:
        """`PyObject_GetAttr`."""
        unsupported(
            "attribute",
            f"{self!r}.{name}",
            f"attribute {name!r} of {self.phrase()} is not traced",
        )

    def setattr(self, tx: Translator, name: str, value: VariableTracker) -> None:
        """`PyObject_SetAttr`."""
        REFUSE_STORE[0](tx, self.python_type(), name, value)
        unsupported(
            "attribute store", f"{self!r}.{name}", "attributes of this value can't be set"
        )

    def delattr(self, tx: Translator, name: str) -> None:
        """`PyObject_DelAttr`."""
        REFUSE_STORE[0](tx, self.python_type(), name, None)
        unsupported(
            "attribute delete", f"{self!r}.{name}", "attributes of this value can't be deleted"
        )

    def call(
        self, tx: Translator, args: list[VariableTracker], kwargs: dict[str, VariableTracker]
    ) -> VariableTracker:
        """`PyObject_Call`."""
        unsupported("call", repr(self), f"calling {self.phrase()} is not traced")

    def call_method(
        self,
        tx: Translator,
        name: str,
        args: list[VariableTracker],
        kwargs: dict[str, VariableTracker],
    ) -> VariableTracker:
        """`getattr(self, name)(*args, **kwargs)`, without making the bound method."""
        return self.getattr(tx, name).call(tx, args, kwargs)

    def call_builtin(
        self,
        tx: Translator,
        raw: Any,
        args: list[VariableTracker],
        kwargs: dict[str, VariableTracker],
    ) -> VariableTracker:
        """A call of `raw`, a C method of the value's type or of a base, on this value."""
        name = getattr(raw, "__qualname__", repr(raw))
        unsupported("builtin method", f"{name} of {self!r}", f"{name} is not traced")

    def load_slot(self, tx: Translator, descriptor: Any) -> VariableTracker:
        """What a member descriptor (`__slots__`, a field of a C struct) gives for this value."""
        unsupported("attribute", f"{self!r}.{descriptor.__name__}", "this slot is not traced")

    def load_getset(self, tx: Translator, descriptor: Any) -> VariableTracker:
        """What an attribute computed in C gives for this value."""
        unsupported("attribute", f"{self!r}.{descriptor.__name__}", "it is computed in C")

    def operate(
        self, tx: Translator, function: Callable[..., Any], args: list[VariableTracker]
    ) -> VariableTracker:
        """An operator of Python (a function of `operator`) with this value as one operand."""
        unsupported("operator", repr(self), f"{function.__name__} is not traced")

    def getitem(self, tx: Translator, key: VariableTracker) -> VariableTracker:
        """`PyObject_GetItem`."""
        self._require(tx, "__getitem__", "'{}' object is not subscriptable")
        return self.call_method(tx, "__getitem__", [key], {})

    def setitem(self, tx: Translator, key: VariableTracker, value: VariableTracker) -> None:
        """`PyObject_SetItem`."""
        self._require(tx, "__setitem__", "'{}' object does not support item assignment")
        self.call_method(tx, "__setitem__", [key, value], {})

    def delitem(self, tx: Translator, key: VariableTracker) -> None:
        """`PyObject_DelItem`."""
        self._require(tx, "__delitem__", "'{}' object does not support item deletion")
        self.call_method(tx, "__delitem__", [key], {})

    def length(self, tx: Translator) -> VariableTracker:
        """`PyObject_Size`."""
        self._require(tx, "__len__", "object of type '{}' has no len()")
        return self.call_method(tx, "__len__", [], {})

    def contains(self, tx: Translator, item: VariableTracker) -> VariableTracker:
        """`PySequence_Contains`."""
        kind = self._known_type()
        names = ("__contains__", "__iter__", "__getitem__")
        if kind is not None and not any(hasattr(kind, name) for name in names):
            tx.raise_observed(
                TypeError, f"argument of type '{type_name(kind)}' is not iterable"
            )
        return self.call_method(tx, "__contains__", [item], {})

    def _known_type(self) -> type | None:
        is_known = type(self).python_type is not VariableTracker.python_type
        return self.python_type() if is_known else None

    def lacks(self, name: str) -> bool:
        """Whether the type is known not to define the special method `name`."""
        kind = self._known_type()
        return kind is not None and not hasattr(kind, name)

    def _require(self, tx: Translator, name: str, text: str) -> None:
        """TypeError if the type does not define the special method `name`."""
        if self.lacks(name):
            tx.raise_observed(TypeError, text.format(type_name(self.python_type())))

    def iter(self, tx: Translator) -> VariableTracker:
        """`PyObject_GetIter`: a value whose `next` works."""
        kind = self.python_type()
        if not (hasattr(kind, "__iter__") or hasattr(kind, "__getitem__")):
            tx.raise_observed(TypeError, f"{type_name(kind)!r} object is not iterable")
        unsupported("iteration", repr(self), f"iterating over {self.phrase()} is not traced")

    def next(self, tx: Translator) -> VariableTracker | None:
        """`tp_iternext`: the next value, or None when exhausted."""
        unsupported(
            "iteration", repr(self), f"{self.phrase()} is not an iterator that can be traced"
        )

    def send(self, tx: Translator, value: VariableTracker) -> VariableTracker | None:
        """`PyIter_Send` with a value: the next value, or None when exhausted."""
        return self.until_stopped(lambda: self.call_method(tx, "send", [value], {}))

    def until_stopped(self, step: Callable[[], VariableTracker]) -> VariableTracker | None:
        """What a method gives that raises StopIteration at the end, then None."""
        try:
            return step()
        except ObservedException as error:
            if not issubclass(error.value.python_type(), StopIteration):
                raise
            self.stopped_by = error.value
            return None

    def returned_value(self, tx: Translator) -> VariableTracker:
        """What an exhausted iterator returned: what its StopIteration holds."""
        if self.stopped_by is None:
            why = "the value that this iterator returned is not known"
            unsupported("yield from", repr(self), why)
        return self.stopped_by.getattr(tx, "value")

    def overrides(self, name: str) -> bool:
        """Whether it is an instance of a Python subclass of a builtin class that defines `name`."""
        return False

    def truth(self, tx: Translator) -> bool:
        """`PyObject_IsTrue`, which must be decided while tracing."""
        try:
            return bool(self.as_python_constant())
        except NotConstant:
            unsupported(
                "branch", repr(self), f"the truth of {self.phrase()} is not known while tracing"
            )

    def hash_key(self, tx: Translator) -> Any:
        """A hashable Python object that equals another value's exactly when the values are equal.

        Used as key of traced dicts and sets. Raises `Unsupported` if unknown.
        """
        try:
            value = self.as_python_constant()
            hash(value)
        except (NotConstant, TypeError):
            unsupported(
                "hash", repr(self), f"{self.phrase()} can't be a dict key or set element here"
            )
        return value

    def is_compared_by_identity(self, other: VariableTracker) -> bool:
        """Whether its comparison with `other` is left to that of objects."""
        return False

    def compare(
        self, tx: Translator, method: str, other: VariableTracker
    ) -> VariableTracker | None:
        """`tp_richcompare` of a type that is not Python's to trace; None: it is not known."""
        return None

    def shares(self, tx: Translator, other: VariableTracker) -> bool | None:
        """Whether it is one object with `other`, made elsewhere; None: as `identity` says."""
        return None

    def hashed_as(self, tx: Translator) -> VariableTracker:
        """The value whose hash is its own."""
        return self

    def check_hashable(self, tx: Translator) -> None:
        """Raise what `hash` of it raises. A number need not be known for that."""
        self.hash_key(tx)

    def unpack(self, tx: Translator) -> list[VariableTracker]:
        """All items, as `list(value)` gives them. Items may be lazy."""
        return list(self._iterate(tx))

    def each(self, tx: Translator, *, sized: bool = False) -> Iterator[VariableTracker]:
        """The items one by one: code that gives the next sees what was done with the last.

        sized: who takes them asks for `operator.length_hint(value)`, as `list` does.
        """
        if self.runs_code():
            return self._iterate(tx, sized=sized)
        items = iter(self.unpack(tx))
        if sized:
            tx.ask_length(self)
        return items

    def _iterate(self, tx: Translator, *, sized: bool = False) -> Iterator[VariableTracker]:
        iterator = self.iter(tx)
        if sized:
            tx.ask_length(self)
        for _ in range(MAX_ITEMS):
            item = iterator.next(tx)
            if item is None:
                return
            yield item
        unsupported("long sequence", repr(self), f"it gives more than {MAX_ITEMS} items")

    def runs_code(self) -> bool:
        """Whether to go over the items may run code of the program."""
        has_items = type(self).unpack is not VariableTracker.unpack
        return not has_items and not self.is_python_constant()

    # Iterators (0) are replayed before the containers that they go over.
    replay_rank = 1

    # -- leaving the trace ----------------------------------------------------------------------

    def reconstruct(self, codegen: PyCodegen) -> None:
        """Emit code that pushes the real object. Called only for values without a source."""
        unsupported(
            "reconstruct", repr(self), f"{self.phrase()} can't be rebuilt outside the graph"
        )

    # Whether it can be made empty and filled later, and so may contain itself.
    is_fillable = False

    def reconstruct_filled(self, codegen: PyCodegen) -> None:
        """`reconstruct` of what contains itself: it is kept in a local before its contents are
        pushed.
        """
        self.reconstruct(codegen)

    # Whether the object has to be at hand in a local before mutations of it are written.
    needs_preload = True

    def push_contents(self, codegen: PyCodegen) -> None:
        """Push what `apply_contents` will pop: the new items of a mutated container."""
        unsupported(
            "mutation", repr(self), f"the mutation of {self.phrase()} can't be replayed"
        )

    def apply_contents(self, codegen: PyCodegen) -> None:
        """Replace the items of the real container (in a local, see `PyCodegen.preload`)."""
        unsupported(
            "mutation", repr(self), f"the mutation of {self.phrase()} can't be replayed"
        )

    def snapshot(self) -> Any:
        """What it holds, for `put_back`; None: not known."""
        return None

    def put_back(self, tx: Translator, snapshot: Any) -> bool:
        """Whether it holds again what it held; then that it changed is forgotten."""
        raise NotImplementedError

    def apply_setattr(self, codegen: PyCodegen, name: str) -> None:
        """The value is on the stack: pop it into attribute `name` of the real object."""
        codegen.emit("LOAD_FAST", codegen.preload(self))
        codegen.emit("STORE_ATTR", name)

    def apply_delattr(self, codegen: PyCodegen, name: str) -> None:
        """Delete attribute `name` of the real object."""
        codegen.emit("LOAD_FAST", codegen.preload(self))
        codegen.emit("DELETE_ATTR", name)


class LazyVariable(VariableTracker):
    """An object of the frame that nobody looked at yet: it has no guard until it is realised."""

    def __init__(
        self,
        value: Any,
        source: Source,
        wrap: Callable[[Any, Source], VariableTracker],
        realized: list[LazyVariable] | None = None,
    ):
        """realized: where it is noted when somebody looks at the value."""
        super().__init__(source=source)
        self.value = value
        self._wrap = wrap
        self._log = realized
        self._realized: VariableTracker | None = None

    def realize(self) -> VariableTracker:
        if self._realized is None:
            assert self.source is not None
            self._realized = self._wrap(self.value, self.source)
            if self._log is not None:
                self._log.append(self)
        return self._realized

    def forget(self) -> None:
        """Nobody looked at the value: the guards of that are withdrawn."""
        self._realized = None

    @property
    def is_realized(self) -> bool:
        return self._realized is not None

    def identity(self) -> Any:
        return self.realize().identity()


def _forwarder(name: str) -> Callable[..., Any]:
    def forward(self: LazyVariable, *args: Any) -> Any:
        return getattr(self.realize(), name)(*args)

    return forward


# Whoever asks a lazy value for what it is or does, looks at it.
for _name in (
    "python_type as_python_constant as_proxy getattr setattr delattr call"
    " call_method getitem setitem"
    " delitem length contains iter next send returned_value truth hash_key check_hashable"
    " unpack each runs_code".split()
):
    setattr(LazyVariable, _name, _forwarder(_name))


class AttributeOf:
    """Getting an attribute of `owner` (see `Services.in_tail`)."""

    def __init__(self, owner: VariableTracker) -> None:
        self.owner = owner


class NullVariable(VariableTracker):
    """The NULL that CALL sequences keep on the stack."""


NULL = NullVariable()
# What PUSH_EXC_INFO puts below the exception: what was being handled before.
HANDLED_EXCEPTION = NullVariable()


def is_same(first: VariableTracker, second: VariableTracker) -> bool:
    """Whether two values are one object, or constants that nothing tells apart."""
    old, new = first.realize(), second.realize()
    if old is new:
        return True
    if not (old.is_python_constant() and new.is_python_constant()):
        return False
    before, after = old.as_python_constant(), new.as_python_constant()
    return type(before) is type(after) and before == after and repr(before) == repr(after)
