"""Classes as values: attributes, calling, metaclasses, super, stores to classes, Python modules."""

from __future__ import annotations

import abc
import enum
import functools
import math
import sys
import types
import typing
from collections.abc import Callable

import pytest
import torch
from testing import assert_same, check, check_recompiles

import minidynamo

X = torch.arange(6.0).reshape(2, 3)


class Base:
    tag = "base"
    registry: typing.ClassVar[list] = []

    def __init__(self, x):
        self.x = x

    def value(self):
        return self.x + 1

    @classmethod
    def make(cls, x):
        return cls(x)

    @property
    def kind(self):
        return self.tag


class Left(Base):
    def __init__(self, x, extra=2):
        super().__init__(x)
        self.extra = extra

    def value(self):
        return super().value() * 2

    @property
    def kind(self):
        return "left of " + super().kind


class Right(Base):
    tag = "right"

    def value(self):
        return super().value() * 3


class Diamond(Left, Right):
    def value(self):
        return super(Left, self).value() + super().value()

    @classmethod
    def make(cls, x):
        return super().make(x + 1)


class Cached:
    def __new__(cls, x, *rest):
        self = super().__new__(cls)
        self.made = len(rest)
        return self

    def __init__(self, x, *rest):
        self.x = x


class Elsewhere:
    """`__new__` that returns something else: `__init__` does not run."""

    def __new__(cls, x):
        return [x]

    def __init__(self, x):
        raise AssertionError


class Meta(type):
    def __call__(cls, *args):
        made = super().__call__(*args)
        made.by_meta = cls.prefix
        return made

    @property
    def prefix(cls):
        return cls.__name__ + "!"

    def __getitem__(cls, item):
        return item + 1


class WithMeta(metaclass=Meta):
    def __init__(self, x):
        self.x = x


class Abstract(abc.ABC):
    @abc.abstractmethod
    def f(self, x): ...

    def g(self, x):
        return self.f(x) + 1


class Concrete(Abstract):
    def f(self, x):
        return x * 3


class Generic(typing.Generic[typing.TypeVar("T")]):
    def __init__(self, x):
        self.x = x


class Named(typing.NamedTuple):
    a: torch.Tensor
    b: int = 3

    def both(self):
        return self.a + self.b


def test_class_attributes():
    def fn(x):
        return x + len(Base.tag) + len(Left.tag) + len(Right.tag), Left.__name__, Left.__mro__

    check(fn, X, fullgraph=True)


def test_super():
    def fn(x):
        d = Diamond(x)
        return d.value(), Diamond.make(x).x, d.kind, isinstance(d, Right), type(d) is Diamond

    check(fn, X, fullgraph=True)


def test_super_objects_of_the_frame():
    def fn(found, x):
        given = found.value() if not isinstance(found.__self__, type) else found.make(x).x
        same = [found.__self_class__, found.__thisclass__, type(found), bool(found)]
        return given, same, found

    one, other = Diamond(X), Diamond(X + 1)
    compiled = minidynamo.compile(fn, backend="eager", fullgraph=True)
    for found in (
        super(Diamond, one),
        super(Left, one),
        super(Left, other),
        super(Diamond, Diamond),
        super(Diamond, other),
    ):
        (given, same, back), expected = compiled(found, X), fn(found, X)
        assert torch.equal(given, expected[0]) and same == expected[1] and back is found


def test_a_super_object_sees_what_becomes_of_its_class(monkeypatch):
    def fn(found, x):
        return found.value() + x

    found = super(Left, Left(X))
    compiled = minidynamo.compile(fn, backend="eager", fullgraph=True)
    assert torch.equal(compiled(found, X), fn(found, X))
    monkeypatch.setattr(Base, "value", lambda self: self.x * 100)
    assert torch.equal(compiled(found, X), X * 101)


def test_a_super_object_that_is_not_bound():
    def fn(found, x):
        return x + 1, found

    found = super(Left)
    assert minidynamo.compile(fn, backend="eager", fullgraph=True)(found, X)[1] is found


def test_new():
    def fn(x):
        c = Cached(x, 1, 2)
        return c.x + c.made, Elsewhere(x)

    check(fn, X, fullgraph=True)


Kind = typing.TypeVar("Kind")


class Subscripted:
    def __class_getitem__(cls, key):
        return cls, key


class Plain:
    pass


def test_subscripts_of_classes():
    """A type variable in a list is no constant, nor is a tensor."""

    def hints(x):
        def wrapper(func: Callable[[Kind], typing.Any]) -> Callable[[Kind], Kind]:
            return func + 1

        return wrapper(x), dict[str, list[Kind]], Callable[[Kind], int], type[Kind], x * 2

    def refused(x, cls):
        try:
            return cls[x]
        except TypeError as error:
            return x + 1, str(error)

    with minidynamo.config.patch(nested_graph_breaks=False):
        check(hints, X, fullgraph=True, graphs=1, ops=2)
        check(lambda x: Subscripted[x][1] + 1, X, fullgraph=True, graphs=1)
        for cls in (Plain, torch.Tensor):
            check(refused, X, cls, fullgraph=True, graphs=1)


def test_instances_of_the_names_in_typing():
    def fn(x, value):
        try:
            found = [isinstance(value, kind) for kind in (typing.Mapping, typing.Sized)]
            return x + 1, found, isinstance(x, typing.Hashable)
        except TypeError as error:
            return x + 2, str(error)

    for value in ({"x": X}, [X], 3):
        check(fn, X, value, fullgraph=True)


class WithProxies(metaclass=torch.fx.ProxyableClassMeta):
    def __init__(self, x, scale=2):
        self.x, self.scale = x, scale


def test_instances_that_tracers_of_fx_may_record():
    def fn(x):
        made = WithProxies(x, scale=3)
        return made.x * made.scale, type(made), made

    check(fn, X, fullgraph=True, graphs=1)


def test_metaclass():
    def fn(x):
        made = WithMeta(x)
        return made.x + WithMeta[2], made.by_meta, isinstance(made, WithMeta)

    check(fn, X, fullgraph=True)


def test_abstract_and_generic_classes():
    def fn(x):
        return Concrete().g(x), Generic(x).x + 1, Generic[int](x).x

    check(fn, X, graphs=None)
    check(lambda x: Concrete().g(x), X, fullgraph=True)


def test_abstract_class_is_not_made():
    def fn(x):
        return Abstract(), x + 1

    check(fn, X, graphs=None)


def test_wrong_arguments_raise():
    def fn(x):
        y = x + 1
        return Base(), y

    check(fn, X, graphs=None)


def test_namedtuple_class():
    def fn(x):
        n = Named(x)
        return n.both() + n.b, n._replace(b=5).both(), n

    check(fn, X, fullgraph=True)


def collected(*args):
    return args


class Whole(int):
    pass


def test_members_lack_what_their_class_can():
    """The metaclass has __len__, __iter__ and __or__; the members have none of them."""

    def fn(x):
        y = x + 2 * Level.HIGH * Level.LOW, Level.HIGH * Whole(3), [1] * Level.HIGH
        texts = []
        for use in (
            len,
            iter,
            lambda member: Whole(1) | member,
            lambda member: member | Whole(1),
        ):
            try:
                use(Doubled.ONE)
            except TypeError as error:
                texts.append(str(error))
        return y, texts

    check(fn, X, fullgraph=True)

    def unpacking(x):
        try:
            return collected(*Level.HIGH)
        except TypeError as error:
            return x + 1, str(error)

    check(unpacking, X, graphs=1)


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Doubled(enum.Enum):
    ONE = 1


class Logging(enum.Enum):
    def _generate_next_value_(name, start, count, last_values):
        made.append(name)
        return name


made = []


def test_enum_whose_values_the_program_makes():
    def fn(x):
        return x + 1, Logging("Logged", "A B").A.value

    check(fn, X, graphs=None)
    made.clear()
    minidynamo.compile(fn, backend="eager")(X)
    assert made == ["A", "B"]


def test_local_class_instances():
    class Local:
        def f(self, x):
            return x + 2

    def fn(x):
        return Local().f(x)

    check(fn, X, fullgraph=True)


def test_class_body_breaks():
    def fn(x):
        y = x + 1

        class Inner:
            def f(self):
                return y

        return Inner().f() + 1

    check(fn, X, graphs=None)


def test_store_to_class():
    class Local:
        count = 0

    def fn(x):
        Local.count += 1
        Local.fresh = x + 1
        return Local().fresh * Local.count

    def change(i):
        Local.count = 0
        if hasattr(Local, "fresh"):
            del Local.fresh

    def run(x):
        change(0)
        result = fn(x)
        return result, Local.count, Local.fresh

    check(run, X, graphs=None)


def test_class_list_mutated():
    def fn(x):
        Base.registry.append(3)
        n = len(Base.registry)
        Base.registry.clear()
        return x + n

    check(fn, X, fullgraph=True)


def test_classes_as_values():
    def fn(x, cls):
        table = {Left: 1, Right: 2}
        return cls(x).value() + table[cls], cls is Left, cls == Left, issubclass(cls, Base)

    check(fn, X, Left, fullgraph=True)
    check_recompiles(fn, [(X, Left), (X, Right), (X, Left)], graphs=2)


def test_isinstance_and_type():
    def fn(x, v):
        kinds = isinstance(v, Base), isinstance(v, (int, Left)), isinstance(x, torch.Tensor)
        return x + sum(kinds), type(v).__name__, type(x), v.__class__ is type(v)

    check(fn, X, Left(1), fullgraph=True)


def test_bound_method_of_class_passed_on():
    def fn(x):
        make = Left.make
        return make(x).value(), [f(x).x for f in (Base.make, Right.make)]

    check(fn, X, fullgraph=True)


def test_module_attributes():
    def fn(x):
        return torch.sin(x) + math.pi + torch.nn.functional.relu(x), types.__name__

    check(fn, X, fullgraph=True)


def test_module_variable_changes():
    module = types.ModuleType("settings")
    module.factor = 2

    def change(i):
        module.factor = [2, 2, 3][i]

    check_recompiles(lambda x: x * module.factor, [(X,)] * 3, graphs=2, change=change)


def test_store_to_module():
    module = types.ModuleType("settings")
    module.factor = 2

    def fn(x):
        module.factor = 5
        module.other = x + 1
        del module.other
        return x * module.factor, hasattr(module, "other")

    check(fn, X, graphs=None)


def test_imports_inside():
    def fn(x):
        import math as m
        from os import path

        return x + m.floor(2.5), path.basename("a/b")

    check(fn, X, fullgraph=True)


def test_modules_of_packages_that_are_not_loaded(tmp_path, monkeypatch):
    """`from package import module` imports the module, at a break; what is missing is eager's
    ImportError.
    """
    package = tmp_path / "a_package_of_modules"
    package.mkdir()
    (package / "__init__.py").write_text("KNOWN = 1\n")
    (package / "part.py").write_text("VALUE = 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    def fn(x):
        import a_package_of_modules.part  # noqa: F401
        from a_package_of_modules import KNOWN, part

        return x * KNOWN + part.VALUE

    def deeper(x):
        def find():
            from a_package_of_modules import KNOWN, part

            return KNOWN + part.VALUE

        return x + find()

    def missing(x):
        from a_package_of_modules import KNOWN, nothing

        return x + KNOWN + nothing

    for function in (deeper, fn):
        compiled = minidynamo.compile(function, backend="eager")
        try:
            for _ in range(3):
                torch.testing.assert_close(compiled(X), X + (4 if function is deeper else 3))
        finally:
            for name in ("a_package_of_modules", "a_package_of_modules.part"):
                del sys.modules[name]
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        minidynamo.compile(missing, backend="eager")(X)
    del sys.modules["a_package_of_modules"]


def test_classes_patched_and_restored_while_compiling():
    """Tracers patch nn.Module while a backend runs; what they put back costs no recompilation."""
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU())
    compiles = []

    def backend(gm, example_inputs):
        compiles.append(gm)
        torch.fx.symbolic_trace(torch.nn.Linear(2, 2))
        return gm.forward

    compiled = minidynamo.compile(module, backend=backend)
    x = torch.randn(2, 4)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), module(x))
    assert len(compiles) == 1


def test_unions_of_types():
    def fn(x, v):
        kinds = isinstance(v, Left | Right), isinstance(x, torch.Tensor | None)
        alias = list[int] | tuple[int, ...]
        return x + 1, kinds, alias == list[int] | tuple[int, ...]

    check(fn, X, Left(1), fullgraph=True)


def test_unions_of_what_typing_has():
    hints = typing.List, typing.Optional[int], typing.NoReturn, typing.TypeVar("T")  # noqa: UP006, UP045

    def fn(x):
        made = [
            repr(union)
            for hint in hints
            for union in (hint | None, str | hint, hint | list[int], hint | typing.Any)
        ]

        def inner(a: typing.Optional[int] | str = None) -> typing.List | None:  # noqa: UP006, UP045
            return a

        same = {hints[1]: 1}[int | None], hash(hints[1]) == hash(int | None)
        return x + 1, made, same, repr(inner.__annotations__)

    check(fn, X, graphs=1)


def test_classmethod_of_another_descriptor():
    """Whether a classmethod binds a property depends on the CPython."""

    class Base:
        size = 2

        @classmethod
        @property
        def width(cls):
            return cls.size

        @classmethod
        @functools.lru_cache
        def depth(cls):
            return 3

    class Derived(Base):
        size = 5

    def f(a, kind):
        width = kind.width
        return a * (width if isinstance(width, int) else 1) + kind.depth()

    for kind in (Base, Derived, Base()):
        check(f, torch.ones(3), kind, graphs=None)


class Compared(type):
    def __eq__(cls, other):
        return cls is other


class Unhashable(metaclass=Compared):
    part = 3

    def __init__(self, count=2):
        self.count = count


def test_classes_that_cannot_be_hashed():
    def fn(x):
        made = Unhashable(4)
        return x * made.count, isinstance(made, Unhashable), [int, Unhashable].index(Unhashable)

    check(fn, X, fullgraph=True)


T = typing.TypeVar("T")


class Stack(typing.Generic[T]):
    def __init__(self, *items: T) -> None:
        self.items = list(items)


class Shape(abc.ABC):
    @abc.abstractmethod
    def area(self): ...

    @abc.abstractmethod
    def name(self): ...


class Titled(Shape):
    def name(self):
        return "named"


class Square(Titled):
    def area(self):
        return 4


class Stubborn(typing.Generic[T]):
    def __setattr__(self, name, value):
        raise ValueError(name)


def test_generic_classes_whose_objects_refuse_attributes():
    def fn(x):
        try:
            return x + 1, type(Stubborn[int]()) is Stubborn
        except ValueError as error:
            return x + 2, str(error)

    check(fn, X, fullgraph=True)


def test_generic_classes_with_a_subscript_make_objects():
    def fn(x):
        made = Stack[int](x, 1)
        try:
            typing.List[int]()  # noqa: UP006
        except TypeError as error:
            return made.items, type(made) is Stack, made, str(error)

    compiled = minidynamo.compile(fn, backend="eager")
    a = torch.arange(3.0)
    want, got = fn(a), compiled(a)
    assert_same((want[:2], want[3]), (got[:2], got[3]))
    assert got[2].__orig_class__ == Stack[int]

    def whole(x):
        return Stack[int](x + 1).items

    check(whole, a, fullgraph=True)


def test_abstract_classes_make_no_objects():
    def fn(x):
        found = []
        for kind in (Shape, Titled, Square):
            try:
                found.append(kind().area())
            except TypeError as error:
                found.append(str(error))
        return x + 1, found

    check(fn, torch.arange(3.0), fullgraph=True)
