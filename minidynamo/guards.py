"""Guards: the conditions under which compiled code may run, collected, built and explained.

    guards = GuardSet()                                      # when the frame begins to be traced
    guards.add(source, Check.CONST_EQ, True, user_stack)     # whatever the trace relied upon
    program = guards.build(code, fetch=[weight_source])      # for Entry(program, ...)
    ok, fetched = program.check(arguments, function)
    failure = explain_failure(program, frame)                # str(failure): one sentence

The native program (csrc/guards.h) fetches every object once: sources form a tree. See FETCH_OPS for
how it gets from one to the next, and Check (guard_checks.py) for what it asks.
"""

from __future__ import annotations

import inspect
import os.path
import traceback
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any, NamedTuple, Protocol

import torch

from . import _C
from .constant_values import constant_key
from .exc import InternalError
from .guard_checks import ROWS, Check, MemoryLayout, Predicate, TensorSpec, named
from .guard_expr import read_objects, to_postfix
from .joined_sources import JoinedSource, asked_of
from .source import BuiltinSource, ConstSource, GlobalsSource, GuardStep, Source, TypeSource

__all__ = [
    "FETCH_OPS",
    "Check",
    "Guard",
    "GuardFailure",
    "GuardSet",
    "Predicate",
    "MemoryLayout",
    "TensorSpec",
    "explain_failure",
    "starts_from",
]

UserStack = Sequence[traceback.FrameSummary]

# How a guard program gets an object out of another, and what fails the guard besides a wrong type.
FETCH_OPS = {
    "LOCAL": "the argument in slot `operand` of the call",
    "GLOBALS": "the globals dict of the called function",
    "BUILTINS": "its dict of builtins",
    "CLOSURE_CELL": "cell number `operand` of its closure",
    "CONST": "the operand itself, held weakly where it can be; dead",
    "INSTANCE_DICT": "the instance dict, an empty dict if there is none",
    "DICT_ITEM": "the value under key `operand` in a dict's storage; absent",
    "DICT_KEY": "the key at a position of a dict; too short",
    "DICT_VALUE": "the value at a position of a dict; too short",
    "LIST_ITEM": "an item of a list; too short",
    "TUPLE_ITEM": "an item of a tuple; too short",
    "TYPE": "the type",
    "CLASS_ATTR": "the raw attribute that the class or its first base that has it defines; absent",
    "SUPER_ATTR": "the same, behind a given class in the MRO; absent",
    "SLOT": "what a member descriptor gives; unset",
    "FUNC_CODE": "a field of a function",
    "FUNC_GLOBALS": "a field of a function",
    "FUNC_DEFAULTS": "a field of a function; None if there are none",
    "FUNC_KWDEFAULTS": "a field of a function; None if there are none",
    "FUNC_CLOSURE": "a field of a function; None if there is none",
    "METHOD_SELF": "the object that a method is bound to",
    "METHOD_FUNC": "the function of a bound method",
    "CELL": "what a cell holds; empty",
    "WEAKREF": "the object of a weak reference, None if it is dead",
    "GETATTR": "a real getattr; it raises",
    "CALL": "operand(object); it raises",
    "TENSOR_INT": "a size, stride or the storage offset of a tensor, as an int; too few dimensions",
}

# Kinds that look at several objects at once (or at none); the program asks them last.
_RELATIONS = frozenset(
    {
        Check.ALIAS,
        Check.NOT_ALIAS,
        Check.NOT_ALIASED_GROUP,
        Check.MEMORY_LAYOUT,
        Check.PREDICATE,
        Check.EXPR,
        Check.GLOBAL_STATE,
    }
)


@dataclass(frozen=True, eq=False, slots=True)
class Guard:
    """One condition. user_stack: the user's frames, outermost first, that needed it."""

    source: Source | None
    kind: Check
    expected: Any = None
    user_stack: UserStack = ()

    @property
    def name(self) -> str:
        """The user's expression for the object, "" for a guard without one."""
        return self.source.name if self.source is not None else ""

    @property
    def where(self) -> str:
        """The line that needed it, as "model.py:12 in forward"; "" when that is not known."""
        if not self.user_stack:
            return ""
        frame = self.user_stack[-1]
        return f"{os.path.basename(frame.filename)}:{frame.lineno} in {frame.name}"

    def text(self) -> str:
        """What holds, and the line that needed it."""
        says = ROWS[self.kind].says(self.name, self.expected)
        return f"{says}  # {self.where}" if self.user_stack else says

    def detached(self) -> Guard:
        """A copy that still has its texts, but keeps no object alive."""
        source = named(self.source) if self.source is not None else None
        expected = ROWS[self.kind].kept(self.expected)
        if source is self.source and expected is self.expected:
            return self
        return Guard(source, self.kind, expected, self.user_stack)


@dataclass(frozen=True, eq=False)
class GuardFailure:
    """A guard that does not hold. `found`: the object that failed it (objects, of a relation)."""

    guard: Guard
    reason: str
    found: Any = None

    def __str__(self) -> str:
        needed = f", needed at {self.guard.where}" if self.guard.where else ""
        return self.reason + needed


class FrameLike(Protocol):
    """What explaining a failure needs of a frame: FrameInfo has it."""

    @property
    def code(self) -> CodeType: ...
    @property
    def func(self) -> Any: ...
    @property
    def f_locals(self) -> dict[str, Any]: ...


def argument_names(code: CodeType) -> tuple[str, ...]:
    """The arguments of a code object in the order of their slots."""
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & inspect.CO_VARARGS) + bool(
        code.co_flags & inspect.CO_VARKEYWORDS
    )
    return code.co_varnames[:count]


class Layout(NamedTuple):
    """What a program's numbers stand for: `program.layout`, kept for explanations."""

    checks: tuple[Guard, ...]
    relations: tuple[Guard, ...]
    # Of each node its source and the guard that wanted it first; None: it is only fetched.
    fetches: tuple[tuple[Source, Guard | None], ...]


class GuardSet:
    """The guards of one frame, in the order in which they were added, without repetitions.

    state: torch's global state at the entry of the frame, by default as it is now.
    """

    def __init__(self, state: Any = None) -> None:
        self.state = state or _C.GlobalState()
        self._guards: dict[Any, Guard] = {}
        self._classes: dict[int, tuple[type, Any]] = {}
        self._is_built = False

    def __len__(self) -> int:
        return len(self._guards)

    def __iter__(self) -> Iterator[Guard]:
        return iter(self._guards.values())

    def add(
        self,
        source: Source | None,
        kind: Check | str,
        expected: Any = None,
        user_stack: UserStack | Callable[[], UserStack] = (),
    ) -> None:
        """Demand `kind` of what `source` gives. An equal guard that is there already stays.

        user_stack: the program's frames, outermost first, or a function that gives them, which
        is called if the guard is new.

        A tensor as expected value of TENSOR_MATCH stands for TensorSpec.of(tensor), None of
        GLOBAL_STATE for the state at entry. Raises RuntimeError after `build`.
        """
        if self._is_built:
            raise RuntimeError("guards come before build()")
        kind = Check(kind)
        if kind is Check.TENSOR_MATCH and isinstance(expected, torch.Tensor):
            expected = TensorSpec.of(expected, state=self.state)
        elif kind is Check.GLOBAL_STATE and expected is None:
            expected = self.state
        elif kind is Check.TYPE_VERSION:
            expected = self._contents(expected)
        if isinstance(source, JoinedSource):
            expected = asked_of(source, kind, expected, ROWS[kind].says(source.name, expected))
            source, kind = None, Check.PREDICATE
        key = (source, kind, _expected_key(expected))
        if key not in self._guards:
            stack = user_stack() if callable(user_stack) else user_stack
            self._guards[key] = Guard(source, kind, expected, tuple(stack))

    def mark(self) -> int:
        """A point to which `rollback` can return."""
        return len(self._guards)

    def rollback(self, mark: int) -> None:
        """Forget the guards that were added since `mark`."""
        while len(self._guards) > mark:
            self._guards.popitem()

    def keep(self, chosen: Sequence[bool]) -> None:
        """Drop each guard for which `chosen`, in their order, has False."""
        rows = zip(list(self._guards.items()), chosen, strict=True)
        self._guards = {key: guard for (key, guard), is_kept in rows if is_kept}

    def describe(self) -> list[str]:
        """One line for each guard."""
        return [guard.text() for guard in self._guards.values()]

    def build(self, code: CodeType, fetch: Sequence[Source] = ()) -> Any:
        """The native program for frames of `code`; it collects the objects of `fetch` in a tuple.

        That ends the set: what it keeps is for `describe`, so that whoever keeps it keeps no class
        or module of the user alive. Raises ValueError for a source that is no argument or free
        variable of `code`, RuntimeError when the set was built before.
        """
        if self._is_built:
            raise RuntimeError("this guard set was built before")
        guards = list(self._guards.values())
        program = _Builder(code, guards).build(guards, fetch)
        self._is_built = True
        self._classes.clear()
        self._guards = {number: guard.detached() for number, guard in enumerate(guards)}
        return program

    def _contents(self, cls: type) -> Any:
        """What a class held when that was first asked."""
        key = id(cls)  # metaclasses may hash in their own way
        if key not in self._classes:
            self._classes[key] = cls, _C.ClassContents(cls)
        return self._classes[key][1]

    @staticmethod
    def explain_failure(program: Any, frame: FrameLike) -> GuardFailure | None:
        """The same as the function of this name."""
        return explain_failure(program, frame)


def starts_from(source: Source, objects: Container[int]) -> bool:
    """Whether it starts from one of the objects, by id."""
    if not objects:
        return False
    step = source.guard_step()
    while step.base is not None:
        source = step.base
        step = source.guard_step()
    if not isinstance(source, ConstSource):
        return False
    return id(source.value) in objects


def _expected_key(expected: Any) -> Any:
    if issubclass(type(expected), tuple):
        return tuple(_expected_key(item) for item in expected)
    if issubclass(type(expected), (Source, TensorSpec, MemoryLayout)):
        return expected
    return constant_key(expected)


class _Builder:
    """Numbers the nodes of the tree of sources and translates guards to the program's tables."""

    def __init__(self, code: CodeType, guards: Iterable[Guard]) -> None:
        self.slots = {name: slot for slot, name in enumerate(argument_names(code))}
        self.cells = {name: index for index, name in enumerate(code.co_freevars)}
        # Where the type of an object is guarded, its class is a constant: classes are asked once.
        self.types = {g.source: g.expected for g in guards if g.kind is Check.TYPE_IS}
        self.nodes: list[tuple[int, str, Any]] = []
        self.wanted: list[tuple[Source, Guard | None]] = []
        self.numbers: dict[Source, int] = {}
        self.builtins: dict[str, Guard | None] = {}

    def build(self, guards: list[Guard], fetch: Sequence[Source]) -> Any:
        checks = [guard for guard in guards if guard.kind not in _RELATIONS]
        relations = [guard for guard in guards if guard.kind in _RELATIONS]
        check_rows = [self._check_row(guard) for guard in checks]
        relation_rows = [self._relation_row(guard) for guard in relations]
        fetched = [self.node(source, None) for source in fetch]
        for name, wanted_by in self.builtins.items():
            stack = wanted_by.user_stack if wanted_by else ()
            checks.append(Guard(GlobalsSource(), Check.DICT_LACKS, name, stack))
            check_rows.append(self._check_row(checks[-1]))
        kept = {guard: guard.detached() for guard in (*checks, *relations)}
        layout = Layout(
            tuple(kept[guard] for guard in checks),
            tuple(kept[guard] for guard in relations),
            tuple((source, kept[guard] if guard else None) for source, guard in self.wanted),
        )
        return _C.GuardProgram(self.nodes, check_rows, relation_rows, fetched, layout)

    def node(self, source: Source, guard: Guard | None) -> int:
        number = self.numbers.get(source)
        if number is None:
            number = self.numbers[source] = self._new_node(source, guard)
        return number

    def _new_node(self, source: Source, guard: Guard | None) -> int:
        if isinstance(source, TypeSource) and source.base in self.types:
            return self.node(ConstSource(self.types[source.base]), guard)
        if isinstance(source, BuiltinSource):
            self.builtins.setdefault(source.variable, guard)
        step = source.guard_step()
        base = self.node(step.base, guard) if step.base is not None else -1
        if step.op not in FETCH_OPS:
            raise ValueError(f"unknown fetch op {step.op!r} of {source!r}")
        self.nodes.append((base, step.op, self._operand(source, step)))
        self.wanted.append((named(source), guard))
        return len(self.nodes) - 1

    def _operand(self, source: Source, step: GuardStep) -> Any:
        table = {"LOCAL": self.slots, "CLOSURE_CELL": self.cells}.get(step.op)
        if table is None:
            return step.operand
        if step.operand not in table:
            raise ValueError(f"{source!r} is no argument or free variable of the frame")
        return table[step.operand]

    def _check_row(self, guard: Guard) -> tuple[int, str, Any]:
        assert guard.source is not None, f"{guard.kind} needs a source"
        expected = guard.expected
        if type(expected) is TensorSpec:
            expected = tuple(getattr(expected, field) for field in TensorSpec.__slots__)
        return self.node(guard.source, guard), guard.kind.value, expected

    def _relation_row(self, guard: Guard) -> tuple[str, tuple[int, ...], Any]:
        sources = _members(guard)
        members = {source: index for index, source in enumerate(sources)}
        operand = guard.expected
        if guard.kind is Check.EXPR:
            operand = to_postfix(guard.expected, members)
        elif guard.kind is Check.PREDICATE:
            operand = guard.expected.function
        elif guard.kind is Check.MEMORY_LAYOUT:
            operand = guard.expected.placements
        nodes = tuple(self.node(source, guard) for source in sources)
        return guard.kind.value, nodes, operand


def _members(guard: Guard) -> list[Source]:
    """The sources of the objects that a relation looks at."""
    own = [guard.source] if guard.source is not None else []
    if guard.kind in (Check.ALIAS, Check.NOT_ALIAS):
        return [*own, guard.expected]
    if guard.kind is Check.NOT_ALIASED_GROUP:
        return list(guard.expected)
    if guard.kind is Check.MEMORY_LAYOUT:
        return list(guard.expected.sources)
    if guard.kind is Check.PREDICATE:
        return [*own, *guard.expected.others]
    return read_objects(guard.expected) if guard.kind is Check.EXPR else []


def explain_failure(program: Any, frame: FrameLike) -> GuardFailure | None:
    """Why `program` refuses `frame`, or None if it does not (any more)."""
    arguments = [frame.f_locals.get(name) for name in argument_names(frame.code)]
    failure = program.failure(arguments, frame.func)
    if failure is None:
        return None
    what, number, found = failure
    layout: Layout = program.layout
    if what == "fetch":
        source, wanted_by = layout.fetches[number]
        missing = f"{source.name} is no longer there"
        return GuardFailure(wanted_by or Guard(source, Check.NOT_NONE), missing, found)
    guard = (layout.checks if what == "check" else layout.relations)[number]
    if guard.kind is Check.EXPR:
        found = dict(zip(read_objects(guard.expected), found, strict=True))
    return GuardFailure(guard, ROWS[guard.kind].fails(guard.name, guard.expected, found), found)


def check_new_entry(frame: Any, entry: Any) -> None:
    """What was compiled for a call has to serve that call."""
    failure = entry.data.guards.explain_failure(entry.guards, frame)
    if failure is not None:
        name = frame.code.co_qualname
        raise InternalError(f"{name}: a new entry refuses the call it was made for: {failure}")
