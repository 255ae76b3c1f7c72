"""`dir`, names that are no plain texts, descriptors asked by hand or that refuse a store."""

from __future__ import annotations

import collections
import enum
import math
import types
from typing import Any

import torch
from testing import CountingBackend, assert_same, check, check_recompiles

import minidynamo


class Word(str):
    pass


class Label(str, enum.Enum):  # noqa: UP042  (StrEnum shows itself as the text)
    SCALE = "scale"


class Base:
    shared = 1


class Holder(Base):
    def __init__(self) -> None:
        self.scale = 3

    @property
    def twice(self) -> int:
        return self.scale * 2

    @staticmethod
    def more(value: int) -> int:
        return value + 1

    @classmethod
    def named(cls, value: int) -> tuple[str, int]:
        return cls.__name__, value

    def __deepcopy__(self, memo: Any) -> Holder:
        return self


class Listed:
    def __dir__(self) -> list[str]:
        return ["b", "a"]


HOLDER = Holder()
LINEAR = torch.nn.Linear(2, 2)
Pair = collections.namedtuple("Pair", "a b")  # noqa: PYI024


def test_names_of_subclasses_of_str() -> None:
    def fn(x: torch.Tensor) -> Any:
        made = Holder()
        delattr(made, Word("scale"))
        found = getattr(HOLDER, Word("scale")), getattr(HOLDER, Label.SCALE)
        return x + 1, found, hasattr(made, Word("scale")), getattr(made, Word("none"), 5)

    check(fn, torch.ones(2), fullgraph=True)


def test_dir() -> None:
    def fn(x: torch.Tensor) -> Any:
        made = Holder()
        made.later = 1  # type: ignore[attr-defined]
        del made.scale
        parts = [getattr(LINEAR, n) * x for n in dir(LINEAR) if n in ("bias", "weight")]
        return parts, dir(HOLDER), dir(Holder), dir(made), dir(Listed()), dir([]), dir(Label)

    check(fn, torch.ones(2), fullgraph=True)


def test_dir_with_names_that_change() -> None:
    holder = Holder()
    changes = (
        lambda: None,
        lambda: setattr(holder, "later", 1),
        lambda: setattr(Base, "added", 2),
    )

    def fn(x: torch.Tensor) -> Any:
        return x + 1, dir(holder)

    try:
        calls = [(torch.ones(2),)] * 3
        check_recompiles(fn, calls, 3, change=lambda i: changes[i](), fullgraph=True)
    finally:
        del Base.added  # type: ignore[attr-defined]


def test_default_factory_that_is_stored() -> None:
    def fn(x: torch.Tensor, given: Any) -> Any:
        given.default_factory = lambda: x + 1
        given["new"]
        given.default_factory = None
        made: Any = collections.defaultdict(int)
        made.default_factory = list
        made["a"].append(x)
        return x * 2, made, "gone" in given

    check(fn, torch.ones(2), collections.defaultdict(int, a=1), fullgraph=True)


def test_fields_of_tuples_cannot_be_stored() -> None:
    def fn(x: torch.Tensor) -> Any:
        pair, best = Pair(1, x), torch.max(x, 0)
        said = []
        for change in (
            lambda: setattr(pair, "a", 3),
            lambda: delattr(pair, "b"),
            lambda: setattr(best, "values", 3),
        ):
            try:
                change()
            except AttributeError as error:
                said.append(str(error))
        return said, x + 1

    check(fn, torch.ones(2), fullgraph=True)


def test_descriptors_asked_by_hand() -> None:
    def fn(x: torch.Tensor) -> Any:
        table = Holder.__dict__
        fields = Pair.a.__get__(Pair(1, x)), Pair.b.__get__((1, 2)), Pair.a.__get__(None, Pair)
        held = Holder.twice.__get__(HOLDER), Holder.twice.fget(HOLDER), Holder.twice.fset
        bound = table["more"].__get__(HOLDER)(1), table["named"].__get__(HOLDER)(1)
        return x + 1, fields[:2], fields[2] is Pair.a, held, bound, Pair.a.__doc__

    check(fn, torch.ones(2), fullgraph=True)


def test_names_in_modules():
    known = types.ModuleType("known")
    known.other = 1
    answering = types.ModuleType("answering")
    answering.__dir__ = lambda: ["z", "b"]

    def fn(x):
        known.added = 2
        names = dir(known)
        del known.added
        return x + len(dir(math)), names, dir(known), dir(answering), "sin" in dir(torch)

    x = torch.randn(3)
    counter = CountingBackend()
    compiled = minidynamo.compile(fn, backend=counter, fullgraph=True)
    assert_same(compiled(x), fn(x))
    assert_same(compiled(x), fn(x))
    assert len(counter.graphs) == 1
    known.more = 3
    assert_same(compiled(x), fn(x))
    answering.__dir__ = lambda: ["c"]
    assert_same(compiled(x), fn(x))
    assert len(counter.graphs) == 3


def test_dir_of_a_method_shows_what_its_function_keeps():
    def fn(x):
        def scale(self):
            return 3

        class Made:
            twice = scale

        scale.known = 7
        return x + 1, [name for name in dir(Made().twice) if name in ("known", "__self__")]

    check(fn, torch.randn(3), fullgraph=True)


class Marked:
    def method(self) -> None: ...


def test_dir_of_a_method_has_the_names_of_its_function(monkeypatch) -> None:
    def fn(x):
        return x + 1, [name for name in dir(Marked().method) if "mark" in name]

    compiled = minidynamo.compile(fn, backend="eager", fullgraph=True)
    assert compiled(torch.ones(2))[1] == []
    monkeypatch.setattr(Marked.method, "marked", 1, raising=False)
    assert compiled(torch.ones(2))[1] == ["marked"]


def test_the_text_of_a_module_that_the_frame_changed() -> None:
    module = types.ModuleType("module")

    def fn(x):
        module.other = 1
        before = repr(module)
        module.__file__ = "place.py"
        within = str(module)
        del module.__file__, module.other
        return x + 1, before, within, repr(module)

    check(fn, torch.ones(2))


def test_reading_makes_the_annotations_of_a_module() -> None:
    module = types.ModuleType("module")

    def fn(x):
        before = "__annotations__" in module.__dict__
        found = module.__annotations__
        after = "__annotations__" in module.__dict__
        del module.__annotations__
        return x + 1, before, found, after

    check(fn, torch.ones(2))
