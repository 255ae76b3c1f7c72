"""Sources: where an object that the compiler met comes from.

A source says what the user would write for it (`name`), how generated code loads it (`emit_load`)
and how a guard program fetches it (`guard_step`). Sources are immutable; two built alike are equal.

A kind of source is a row: its fields, and in class variables its text, the op with which a guard
program gets it out of `base`, and the way of loading it (by a mixin, or a function to call).
"""

from __future__ import annotations

import functools
import itertools
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeVar, dataclass_transform

from . import source_calls as calls
from .bytecode import Instruction, current
from .constant_values import constant_key, constant_text


@dataclass(frozen=True, slots=True)
class LoadContext:
    """Where loading code will run: the names of the arguments that its code keeps in cells."""

    cells: frozenset[str] = frozenset()


class GuardStep(NamedTuple):
    """How a guard program fetches an object: apply `op` with `operand` to what `base` gives.

    base is None for roots. FETCH_OPS in guards.py explains the ops.
    """

    base: Source | None
    op: str
    operand: Any = None


class Source:
    """Base of all sources. Subclasses are frozen dataclasses; equality looks at their fields."""

    __slots__ = ("_hash", "_identity", "keeps_alive")
    __match_args__: ClassVar[tuple[str, ...]] = ()
    _hash: int
    _identity: tuple[Any, ...]  # what equality compares
    keeps_alive: bool  # it, or what it starts from, holds an object of the user's
    # The user's expression; {field} stands for a field's text, {base} for the base's name.
    text: ClassVar[str]
    op: ClassVar[str]

    def __post_init__(self) -> None:
        key = self._key()
        parts = [p.keeps_alive if isinstance(p, Source) else p[0] == "object" for p in key]
        object.__setattr__(self, "_identity", key)
        object.__setattr__(self, "_hash", hash((type(self), key)))
        object.__setattr__(self, "keeps_alive", True in parts)

    def _key(self) -> tuple[Any, ...]:
        fields = [getattr(self, name) for name in self.__match_args__]
        return tuple([f if isinstance(f, Source) else constant_key(f) for f in fields])

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(self) is not type(other) or not isinstance(other, Source):
            return NotImplemented
        return self._hash == other._hash and self._identity == other._identity

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name})"

    @property
    def name(self) -> str:
        """The user's expression for the object, as failure messages show it."""
        return self.text.format(
            **{field: self._text_of(field) for field in self.__match_args__}
        )

    def _text_of(self, field: str) -> str:
        value = getattr(self, field)
        if isinstance(value, Source):
            return value.name
        return value if isinstance(value, str) and field != "key" else constant_text(value)

    def emit_load(self, context: LoadContext | None = None) -> list[Instruction]:
        """Canonical instructions that push the object, in a frame of the guarded function."""
        raise NotImplementedError

    def guard_step(self) -> GuardStep:
        """How a guard program gets at the object: `op` on `base`, with the field that follows."""
        fields = [getattr(self, name) for name in self.__match_args__[:2]]
        return GuardStep(fields[0], self.op, *fields[1:])


S = TypeVar("S", bound=Source)


@dataclass_transform(frozen_default=True, eq_default=False)
def source(cls: type[S]) -> type[S]:
    """Make a frozen dataclass whose equality and repr are those of Source."""
    return dataclass(frozen=True, slots=True, eq=False, repr=False)(cls)


def _load_const(value: Any) -> Instruction:
    return Instruction("LOAD_CONST", value)


def _emit_call(function: Any, *args: list[Instruction]) -> list[Instruction]:
    return current.emit_call([_load_const(function)], list(itertools.chain(*args)), len(args))


# -- roots ----------------------------------------------------------------------------------------


class _RootSource(Source):
    """Loaded by one instruction, `load`, that names the variable."""

    __slots__ = ()
    load: ClassVar[str]

    def emit_load(self, context: LoadContext | None = None) -> list[Instruction]:
        return [Instruction(self.load, getattr(self, self.__match_args__[0]))]

    def guard_step(self) -> GuardStep:
        return GuardStep(
            None, self.op, *(getattr(self, name) for name in self.__match_args__[:1])
        )


@source
class LocalSource(_RootSource):
    """An argument of the frame, by name."""

    local: str
    text, op, load = "{local}", "LOCAL", "LOAD_FAST"

    def emit_load(self, context: LoadContext | None = None) -> list[Instruction]:
        in_cell = context is not None and self.local in context.cells
        return [Instruction("LOAD_DEREF" if in_cell else "LOAD_FAST", self.local)]


@source
class GlobalsSource(_RootSource):
    """The globals dict of the frame's function."""

    text, op = "globals()", "GLOBALS"

    def emit_load(self, context: LoadContext | None = None) -> list[Instruction]:
        return _emit_call(globals)


@source
class GlobalSource(_RootSource):
    """A global variable of the frame's function."""

    variable: str
    text, load = "{variable}", "LOAD_GLOBAL"

    def guard_step(self) -> GuardStep:
        return GuardStep(GlobalsSource(), "DICT_ITEM", self.variable)


@source
class BuiltinsSource(_RootSource):
    """The dict of builtins of the frame's function."""

    text, op = "vars(__builtins__)", "BUILTINS"

    def emit_load(self, context: LoadContext | None = None) -> list[Instruction]:
        return _emit_call(calls.builtins_of, _emit_call(globals))


@source
class BuiltinSource(_RootSource):
    """A builtin that no global hides (guard sets add the check that none does)."""

    variable: str
    text, load = "{variable}", "LOAD_GLOBAL"

    def guard_step(self) -> GuardStep:
        return GuardStep(BuiltinsSource(), "DICT_ITEM", self.variable)


@source
class CellSource(_RootSource):
    """The cell of a free variable of the frame's function."""

    variable: str
    text, op, load = "<cell of {variable}>", "CLOSURE_CELL", "LOAD_CLOSURE"


@source
class ClosureSource(_RootSource):
    """The value of a free variable of the frame's function."""

    variable: str
    text, load = "{variable}", "LOAD_DEREF"

    def guard_step(self) -> GuardStep:
        return GuardStep(CellSource(self.variable), "CELL")


@source
class ConstSource(_RootSource):
    """An object known when compiling. Guard programs hold it weakly where it allows that."""

    value: Any
    label: str = ""
    op, load = "CONST", "LOAD_CONST"

    def _key(self) -> tuple[Any, ...]:
        return (constant_key(self.value),)

    @property
    def name(self) -> str:
        return self.label or constant_text(self.value)


# -- attributes -----------------------------------------------------------------------------------


class _AttributeSource(Source):
    """Loaded as an ordinary attribute of `base`: a field or a class variable names it."""

    __slots__ = ()
    base: Source
    attribute: str

    @property
    def name(self) -> str:
        return f"{self.base.name}.{self.attribute}"

    def emit_load(self, context: LoadContext | None = None) -> list[Instruction]:
        return [*self.base.emit_load(context), Instruction("LOAD_ATTR", self.attribute)]


@source
class AttrSource(_AttributeSource):
    """`base.attribute` by a real getattr, which may run code of the user."""

    base: Source
    attribute: str
    op = "GETATTR"


@source
class InstanceAttrSource(_AttributeSource):
    """`base.__dict__[attribute]`, also for variables of Python modules.

    It is loaded as a plain attribute, so no data descriptor of the type may come first.
    """

    base: Source
    attribute: str

    def guard_step(self) -> GuardStep:
        return GuardStep(InstanceDictSource(self.base), "DICT_ITEM", self.attribute)


@source
class SlotSource(_AttributeSource):
    """What a member descriptor (`__slots__`, or a C struct's field) gives for `base`."""

    base: Source
    descriptor: types.MemberDescriptorType
    op = "SLOT"

    @property
    def attribute(self) -> str:  # type: ignore[override]
        return self.descriptor.__name__


def partial_source(base: Source, field: str) -> SlotSource:
    """A field of a functools.partial: "func", "args" or "keywords"."""
    return SlotSource(base, vars(functools.partial)[field])


@source
class FuncCodeSource(_AttributeSource):
    """The code object of a function."""

    base: Source
    attribute, op = "__code__", "FUNC_CODE"


@source
class FuncGlobalsSource(_AttributeSource):
    """The globals dict of a function."""

    base: Source
    attribute, op = "__globals__", "FUNC_GLOBALS"


@source
class FuncDefaultsTupleSource(_AttributeSource):
    """The defaults of a function: a tuple or None."""

    base: Source
    attribute, op = "__defaults__", "FUNC_DEFAULTS"


@source
class FuncKwDefaultsDictSource(_AttributeSource):
    """The keyword-only defaults of a function: a dict or None."""

    base: Source
    attribute, op = "__kwdefaults__", "FUNC_KWDEFAULTS"


@source
class FuncClosureTupleSource(_AttributeSource):
    """The closure of a function: a tuple of cells or None."""

    base: Source
    attribute, op = "__closure__", "FUNC_CLOSURE"


@source
class MethodSelfSource(_AttributeSource):
    """The object that a method, written in Python or C, is bound to."""

    base: Source
    attribute, op = "__self__", "METHOD_SELF"


@source
class MethodFuncSource(_AttributeSource):
    """The function of a bound method."""

    base: Source
    attribute, op = "__func__", "METHOD_FUNC"


@source
class CellContentsSource(_AttributeSource):
    """What a cell holds."""

    base: Source
    attribute, op = "cell_contents", "CELL"


# -- items ----------------------------------------------------------------------------------------


class _ItemSource(Source):
    """Loaded by subscripting what `guard_step` names as the base. raw: of an instance of a subclass
    of `kind` that has its own `__getitem__`; guard programs read the storage either way.
    """

    __slots__ = ()
    kind, raw = object, False

    def emit_load(self, context: LoadContext | None = None) -> list[Instruction]:
        container, _, key = self.guard_step()
        assert container is not None
        load = container.emit_load(context)
        if self.raw:
            return _emit_call(self.kind.__getitem__, load, [_load_const(key)])  # type: ignore
        return [*load, _load_const(key), Instruction("BINARY_SUBSCR")]


@source
class FuncDefaultsSource(_ItemSource):
    """One default of a function."""

    base: Source
    index: int
    text = "{base}.__defaults__[{index}]"

    def guard_step(self) -> GuardStep:
        return GuardStep(FuncDefaultsTupleSource(self.base), "TUPLE_ITEM", self.index)


@source
class FuncKwDefaultsSource(_ItemSource):
    """One keyword-only default of a function."""

    base: Source
    key: str
    text = "{base}.__kwdefaults__[{key}]"

    def guard_step(self) -> GuardStep:
        return GuardStep(FuncKwDefaultsDictSource(self.base), "DICT_ITEM", self.key)


@source
class FuncClosureCellSource(_ItemSource):
    """One cell of a function's closure."""

    base: Source
    index: int
    text = "{base}.__closure__[{index}]"

    def guard_step(self) -> GuardStep:
        return GuardStep(FuncClosureTupleSource(self.base), "TUPLE_ITEM", self.index)


@source
class ListItemSource(_ItemSource):
    """`base[index]` of a list; a negative index counts from the end."""

    base: Source
    index: int
    raw: bool = False
    text, op, kind = "{base}[{index}]", "LIST_ITEM", list


@source
class TupleItemSource(_ItemSource):
    """`base[index]` of a tuple or named tuple; a negative index counts from the end."""

    base: Source
    index: int
    raw: bool = False
    text, op, kind = "{base}[{index}]", "TUPLE_ITEM", tuple


@source
class DictItemSource(_ItemSource):
    """`base[key]` of a dict.

    A key that is no constant (one of CONSTANT_TYPES or a tuple of them) is looked for by identity.
    """

    base: Source
    key: Any
    raw: bool = False
    text, op, kind = "{base}[{key}]", "DICT_ITEM", dict


@source
class ModuleItemSource(_ItemSource):
    """An entry of one of an nn.Module's tables: `base.__dict__[table][key]`.

    table: "_parameters", "_buffers" or "_modules".
    """

    base: Source
    table: str
    key: str

    @property
    def name(self) -> str:
        if self.key.isidentifier():
            return f"{self.base.name}.{self.key}"
        key = self.key if self.key.isdecimal() else repr(self.key)
        return f"{self.base.name}[{key}]"

    def guard_step(self) -> GuardStep:
        tables = InstanceDictSource(self.base)
        return GuardStep(DictItemSource(tables, self.table), "DICT_ITEM", self.key)


# -- computed -------------------------------------------------------------------------------------


class _CallingSource(Source):
    """Loaded by calling `function` with what the fields give, `base` first."""

    __slots__ = ()
    base: Source
    function: Callable[..., Any]

    def emit_load(self, context: LoadContext | None = None) -> list[Instruction]:
        constants = [[_load_const(getattr(self, name))] for name in self.__match_args__[1:]]
        return _emit_call(self.function, self.base.emit_load(context), *constants)


@source
class TypeSource(_CallingSource):
    """`type(base)`."""

    base: Source
    text, op, function = "type({base})", "TYPE", type


@source
class ClassAttrSource(_CallingSource):
    """The raw attribute that the class `base` or one of its bases defines: no binding."""

    base: Source
    attribute: str
    text, op, function = "{base}.{attribute}", "CLASS_ATTR", staticmethod(calls.class_attribute)


@source
class SuperAttrSource(_CallingSource):
    """The raw attribute that `super(after, ...)` finds for objects of the class `base`."""

    base: Source
    attribute: str
    after: type
    text, function = "super({after}, {base}).{attribute}", staticmethod(calls.class_attribute)

    def guard_step(self) -> GuardStep:
        return GuardStep(self.base, "SUPER_ATTR", (self.attribute, self.after))


@source
class DictKeySource(_CallingSource):
    """The key at a position of a dict, in iteration order."""

    base: Source
    index: int
    text, op, function = "list({base})[{index}]", "DICT_KEY", staticmethod(calls.dict_key_at)


@source
class InstanceDictSource(_CallingSource):
    """The instance dict of `base`; guard programs see an empty one where there is none."""

    base: Source
    text, op, function = "{base}.__dict__", "INSTANCE_DICT", staticmethod(calls.instance_dict)


@source
class DictValueSource(_CallingSource):
    """The value at a position of a dict, in iteration order."""

    base: Source
    index: int
    text = "list({base}.values())[{index}]"
    op, function = "DICT_VALUE", staticmethod(calls.dict_value_at)


@source
class CallSource(_CallingSource):
    """`function(base)`: a function of the compiler's own without side effects; called each time.

    label: the text for messages, in which {base} stands for the base.
    """

    base: Source
    function: Callable[[Any], Any]
    label: str = ""
    op = "CALL"

    def _key(self) -> tuple[Any, ...]:
        return self.base, ("function", id(self.function))

    @property
    def name(self) -> str:
        label = self.label or f"{constant_text(self.function)}({{base}})"
        return label.format(base=self.base.name)

    def emit_load(self, context: LoadContext | None = None) -> list[Instruction]:
        return _emit_call(self.function, self.base.emit_load(context))


def iterator_sequence_source(base: Source) -> CallSource:
    """The object that the iterator `base` goes over (see `iterator_sequence`)."""
    return CallSource(base, calls.iterator_sequence, "<what {base} iterates>")


def iterator_index_source(base: Source) -> CallSource:
    """The position of the iterator `base` (see `iterator_index`)."""
    return CallSource(base, calls.iterator_index, "<position of {base}>")


@source
class WeakrefSource(Source):
    """`base()` of a weak reference: its object, or None when that is dead."""

    base: Source
    text, op = "{base}()", "WEAKREF"

    def emit_load(self, context: LoadContext | None = None) -> list[Instruction]:
        return current.emit_call(self.base.emit_load(context), [], 0)


@source
class TensorPropertySource(Source):
    """An int of a tensor: its size or stride in one dimension, or its storage offset.

    prop: "size", "stride", or "storage_offset" (whose dim is None).
    """

    base: Source
    prop: str
    dim: int | None = None

    @property
    def name(self) -> str:
        return f"{self.base.name}.{self.prop}({'' if self.dim is None else self.dim})"

    def emit_load(self, context: LoadContext | None = None) -> list[Instruction]:
        load_method = [*self.base.emit_load(context), Instruction("LOAD_ATTR", self.prop)]
        load_args = [] if self.dim is None else [_load_const(self.dim)]
        return current.emit_call(load_method, load_args, len(load_args))

    def guard_step(self) -> GuardStep:
        return GuardStep(self.base, "TENSOR_INT", (self.prop, self.dim))
