"""inspect.signature and typing.get_type_hints of what is known while tracing."""

import functools
import inspect
import typing

import torch
from testing import check, check_recompiles

import minidynamo

x = torch.randn(3)


def one(a):
    return a + 1


def two(a, b=2, *rest, c):
    return a * b + c


class Holder:
    def method(self, a, b):
        return a * b


def test_signature_of_function():
    def f(a, g):
        names = inspect.signature(g).parameters
        return a * len(names), list(names)

    check(f, x, one)
    check(f, x, two)


def test_signature_of_bound_method():
    def f(a, holder):
        return a * len(inspect.signature(holder.method).parameters)

    check(f, x, Holder())


def test_another_function_recompiles():
    def f(a, g):
        return a * len(inspect.signature(g).parameters)

    check_recompiles(f, [(x, one), (x, two), (x, one)], graphs=2)


def test_signature_of_a_builtin_breaks():
    def f(a):
        return a * len(inspect.signature(len).parameters)

    check(f, x, graphs=None)


def test_parameters_are_an_ordered_proxy():
    def first(a, b=1): ...

    def second(b, a=1): ...

    def fn(x):
        parameters = inspect.signature(first).parameters
        try:
            parameters["c"] = 1
        except TypeError as error:
            text = str(error)
        other = inspect.signature(second).parameters
        return x + 1, text, parameters == other, type(parameters), list(parameters)

    check(fn, torch.ones(2), fullgraph=True)


class LikeAFunction:
    """What `inspect.signature` takes for a function, as those of Cython."""

    def __init__(self, function):
        for name in "__name__ __code__ __defaults__ __kwdefaults__ __annotations__".split():
            setattr(self, name, getattr(function, name))

    def __call__(self, *args):
        return args


def test_signature_of_an_object_like_a_function():
    def fn(a, function):
        return a + 1, str(inspect.signature(LikeAFunction(function)))

    check(fn, x, two, graphs=None)


def test_what_makes_a_signature_is_guarded():
    def target(a, b=1, *, c=2): ...

    def fn(a):
        return a + 1, str(inspect.signature(target)), inspect.getfullargspec(target).defaults

    compiled = minidynamo.compile(fn, backend="eager", recompile_limit=9)
    for name, value in {
        "__defaults__": (3,),
        "__kwdefaults__": {"c": 3},
        "__annotations__": {"a": int},
        "__wrapped__": one,
        "__signature__": inspect.Signature(),
    }.items():
        assert compiled(x)[1:] == fn(x)[1:]
        setattr(target, name, value)
        assert compiled(x)[1:] == fn(x)[1:], name
    del target.__signature__
    assert compiled(x)[1:] == fn(x)[1:]


class Made:
    def __init__(self, a, b=2, *rest):
        self.a = a


def test_signature_of_a_class():
    def f(a, cls):
        names = inspect.signature(cls).parameters
        return a * len(names), list(names)

    check(f, x, Made, fullgraph=True)


def test_another_init_recompiles(monkeypatch):
    def f(a):
        return a * len(inspect.signature(Made).parameters)

    def change(index):
        if index == 2:
            monkeypatch.setattr(Made, "__init__", lambda self, a: None)

    check_recompiles(f, [(x,), (x,), (x,)], graphs=2, change=change)


def annotated(
    a: int, b: "Made" = 3, *, c: list[Made] | None = None
) -> typing.Optional[Made]: ...


def test_texts_of_signatures():
    def fn(x):
        signature = inspect.signature(annotated)
        return x + 1, str(signature), repr(signature), str(signature.parameters["b"])

    check(fn, x, fullgraph=True)


# -- typing.get_type_hints -------------------------------------------------------------------------


class Hinted:
    a: int
    b: typing.Annotated[torch.Tensor, "weight"] = None


class HintedMore(Hinted):
    c: typing.Optional[int] = None  # noqa: UP045


class HintedByName:
    a: "Hinted"


def test_hints():
    def f(a, extras):
        hints = [
            typing.get_type_hints(kind, include_extras=extras) for kind in (two, HintedMore)
        ]
        hints[0]["new"] = 1
        return a + len(hints[1]), hints

    check(f, x, False, fullgraph=True)
    check(f, x, True, fullgraph=True)
    check(lambda a: (a + 1, list(typing.get_type_hints(HintedByName))), x, graphs=1)
    check(lambda a: (a + 1, typing.get_type_hints(3)), x, graphs=None)


def test_other_hints_are_another_graph():
    def change(number):
        Hinted.__annotations__["a"] = (int, int, float)[number]

    def f(a):
        return a + 1, typing.get_type_hints(HintedMore)

    check_recompiles(f, [(x,)] * 3, graphs=2, change=change, fullgraph=True)


def told(a):
    return a


told.__text_signature__ = "no signature"


def test_a_signature_that_is_refused_is_the_programs_error():
    def f(a):
        try:
            inspect.signature(told)
        except ValueError as error:
            return a + 1, str(error)

    check(f, x, fullgraph=True)


DEFAULT = [1]


def specified(a, /, b: int, c: "float" = 2, *rest, d, e=DEFAULT, f: str = "x", **named) -> list:
    return a


class Specified:
    def method(self, hook_args=None):
        return self

    @classmethod
    def of_class(cls, a, b=(1, 2)):
        return cls


def test_argument_specs():
    """`inspect.getfullargspec`: containers of its own at each call, with the program's objects."""

    def f(a, o):
        functions = [specified, o.method, Specified.of_class, Specified.method]
        specs = [inspect.getfullargspec(function) for function in functions]
        specs[0].args.append("new")
        specs[0].kwonlydefaults["e"].append(len(specs[1].args))
        shared = specs[0].kwonlydefaults["e"] is DEFAULT
        names = ["hook_args" in spec.args for spec in specs]
        del DEFAULT[1:]
        return (
            a + specs[0].kwonlydefaults["e"][0],
            names,
            shared,
            [tuple(spec) for spec in specs],
        )

    for _ in range(2):
        check(f, x, Specified(), graphs=1, fullgraph=True)
    check(lambda a: (a + 1, list(inspect.getfullargspec(specified).annotations)), x, graphs=1)


def test_argument_specs_that_are_refused():
    def f(a, what):
        try:
            return inspect.getfullargspec(what)
        except TypeError as error:
            return a + 1, str(error), type(error.__cause__)

    check(f, x, 3, graphs=None)
    check(f, x, told, graphs=None)


def test_other_functions_have_other_argument_specs():
    def f(a, what):
        return a + len(inspect.getfullargspec(what).args)

    calls = [(x, specified), (x, Specified.method), (x, specified)]
    check_recompiles(f, calls, graphs=2, fullgraph=True)


class Called:
    def __call__(self, a, *, by=2):
        return a * by


class CalledWithMore:
    def __call__(self, a, b):
        return a * b


def test_objects_that_are_called_have_the_signature_of_their_call():
    def f(a, what):
        spec = inspect.getfullargspec(what)
        return a * len(spec.args), str(inspect.signature(what)), spec.kwonlyargs

    linear = torch.nn.Linear(3, 3)
    check(f, x, Called(), graphs=1, fullgraph=True)
    check(lambda a: (linear(a), str(inspect.signature(linear))), x, graphs=1, fullgraph=True)
    says_itself = Called()
    says_itself.__signature__ = inspect.signature(one)
    check(f, x, says_itself, graphs=None)
    check_recompiles(f, [(x, Called()), (x, CalledWithMore()), (x, Called())], graphs=2)


def test_questions_about_any_object():
    def f(a, what):
        asked = (
            *(inspect.isabstract, inspect.isgetsetdescriptor, inspect.ismemberdescriptor),
            *(inspect.ismethodwrapper, inspect.isroutine, inspect.isgeneratorfunction),
            *(typing.get_origin, typing.get_args, typing.is_typeddict),
        )
        return a + 1, [question(what) for question in asked]

    for what in (x, torch.nn.Linear(1, 1), one, Called, 3, {"a": 1}):
        check(f, x, what, graphs=1, fullgraph=True)


def test_what_a_function_wraps():
    @functools.wraps(one)
    def wrapped(a):
        return one(a)

    def f(a, g):
        return inspect.unwrap(g)(a), inspect.unwrap(g) is g

    check_recompiles(f, [(x, wrapped), (x, one), (x, wrapped)], graphs=2)


def test_texts_of_documentation():
    def documented():
        """First line.

        And more.
        """

    check(lambda a: (a + 1, inspect.getdoc(documented)), x, graphs=1, fullgraph=True)
    check(lambda a: (a + 1, inspect.getdoc(3), inspect.getmro(Called)), x, graphs=1)


def test_a_function_that_wraps_itself():
    def wrapped(a):
        return a

    wrapped.__wrapped__ = wrapped

    def program(x):
        try:
            return x, str(inspect.signature(wrapped))
        except ValueError as error:
            return x + 1, type(error).__name__

    found = minidynamo.compile(program, backend="eager")(torch.ones(2))
    assert found[0].tolist() == [2.0, 2.0] and found[1] == "ValueError"
