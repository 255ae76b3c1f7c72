"""Functions of symbolic numbers that the ShapeEnv does not compute: new symbols, no constants."""

from __future__ import annotations

import math
import operator

import pytest
import torch
from testing import CountingBackend, assert_same, check_recompiles

import minidynamo

X = torch.ones(4, 2)
FLOATS = (2.5, 3.5, 4.75, 5.9, 7.25, 9.1)
PROGRAMS = {
    "floordiv": lambda x, f: x * (f // 2) + 7 // f,
    "mod": lambda x, f: x + f % 2,
    "pow": lambda x, f: x * f**2 + 2**f,
    "round": lambda x, f: x * round(f) + round(f, 1),
    "divmod": lambda x, f: x * divmod(f, 2)[1],
    "exp": lambda x, f: x * math.exp(f) + math.log(f),
    "chain": lambda x, f: x * ((f * 3 + 1) % 2.5) ** 0.5,
    "of both": lambda x, f: x * math.pow(f, f),
    "returned": lambda x, f: (x + 1, f % 2, round(f)),
    "branch": lambda x, f: x + 1 if f // 2 >= 1 else x - 1,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_floats(name):
    calls = [(X, value) for value in FLOATS]
    check_recompiles(PROGRAMS[name], calls, graphs=2)


def test_sizes():
    def fn(x):
        return x * math.log(x.shape[0]) + math.pow(x.shape[0], 0.5)

    calls = [(torch.ones(n, 2),) for n in (3, 4, 5, 9)]
    check_recompiles(fn, calls, graphs=1, dynamic=True)


@pytest.mark.parametrize("to_int", [int, math.floor, math.ceil])
def test_sizes_of_results_that_were_cut_by_floats(to_int):
    """What is asked of such a size is computed from the inputs' sizes anew."""

    def fn(x):
        longer = torch.cat([x[: to_int(0.4 * x.shape[0])], x])
        return longer.narrow(0, 0, to_int(0.3 * longer.shape[0])) + longer.shape[0]

    calls = [(torch.arange(float(n)),) for n in (9, 14, 23, 40)]
    check_recompiles(fn, calls, graphs=1, dynamic=True)
    compiled = minidynamo.compile(fn, dynamic=True)
    for (x,) in calls:
        assert torch.equal(compiled(x), fn(x))


def test_branch_that_goes_the_other_way():
    calls = [(X, value) for value in (4.5, 5.5, 1.5, 6.5)]
    check_recompiles(PROGRAMS["branch"], calls, graphs=3)


@pytest.mark.parametrize("name", ["floordiv", "mod", "exp"])
def test_values_that_are_errors_or_special(name):
    """The place itself raises, or gives what is no symbol."""
    special = (0.0, -0.0, -1.0, 1e308, math.inf, math.nan, 4.0)
    calls = [(X, value) for value in (*FLOATS[:3], *special)]
    check_recompiles(PROGRAMS[name], calls, graphs=None)


PAIRS = ((0.3, 2.0), (0.4, 2.5), (0.45, 3.5), (0.9, 4.25), (0.1, 1.5))
POWERS = {
    "both": (lambda x, f, g: x * f**g, 2),
    "decay": (lambda x, f, g: x * (1 - f**g) ** 0.5 / (1 + g**-f), 2),
    "product": (lambda x, f, g: x * pow(f * g, 2), 2),
    "difference": (lambda x, f, g: x * (f - g) ** 2 + (f - g) ** -1, 2),
    "largest": (lambda x, f, g: x * max(f * 0.1, g) ** 3, 2),
    "branch": (lambda x, f, g: x * 3 if f**g > 0.1 else x * 4, 3),
    "returned": (lambda x, f, g: (x + 1, f**g, (f + g) ** 2), 2),
    "of math": (lambda x, f, g: x * math.exp(f * g), 2),
}


@pytest.mark.parametrize("name", POWERS)
def test_powers_of_two_floats(name):
    fn, graphs = POWERS[name]
    check_recompiles(fn, [(X, *pair) for pair in PAIRS], graphs=graphs)
    check_recompiles(fn, [(X, *pair) for pair in PAIRS], graphs=graphs, fullgraph=True)


TWO_FLOATS = {
    "mod": lambda x, f, g: x * (f % g),
    "floordiv": lambda x, f, g: x * (f // g) + 1,
    "divmod": lambda x, f, g: [x + part for part in divmod(f, g)],
    "round": lambda x, f, g: x * round(f + g, 1),
    "math": lambda x, f, g: x * math.atan2(f, g) + math.fmod(f, g) * math.hypot(f, g, 2.0),
    "nested": lambda x, f, g: x * ((f % g) // (g - 1.25)) + math.floor(f % g * 10),
    "answer": lambda x, f, g: x * 2 if math.isclose(f, g) else x * 3,
    "returned": lambda x, f, g: (x + 1, f % g, f // g),
    "behind a break": lambda x, f, g: (x * (f % g), print(end=""), x - f % g)[::2],
}


@pytest.mark.parametrize("name", TWO_FLOATS)
def test_functions_of_two_floats(name):
    graphs = 4 if name == "behind a break" else 2
    calls = [(X, *pair) for pair in PAIRS]
    check_recompiles(TWO_FLOATS[name], calls, graphs=graphs)
    special = [
        (0.5, 0.0),
        (-1.5, 2.5),
        (math.inf, 2.0),
        (0.5, math.nan),
        (0.5, 0.25),
        (1e308, 1e-9),
    ]
    check_recompiles(TWO_FLOATS[name], [*calls, *((X, *pair) for pair in special)], graphs=None)


def test_branches_on_functions_of_two_floats():
    def fn(x, f, g):
        return x + 1 if f % g > 0.35 else x - 1

    check_recompiles(fn, [(X, *pair) for pair in PAIRS], graphs=3)


@pytest.mark.parametrize("name", ["mod", "nested"])
def test_functions_of_two_floats_are_compiled_beside_parameters(name):
    """The inputs of such a graph are not all fetched by its guards."""

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(2, 3)

        def forward(self, x, f, g):
            return TWO_FLOATS[name](self.linear(x), f, g)

    model = Model()
    compiled = minidynamo.compile(model, fullgraph=True)
    for pair in PAIRS:
        torch.testing.assert_close(compiled(X, *pair), model(X, *pair))


@pytest.mark.parametrize("name", ["both", "difference", "decay", "returned"])
def test_powers_that_are_errors_or_special(name):
    """Complex results, divisions by zero, overflows."""
    others = [(-0.5, 2.0), (-0.5, 2.5), (0.0, 1.5), (0.0, -1.5), (2.5, 2.5), (1e200, 2.5)]
    others += [(-3.0, -3.0), (1e-300, -4.5), (0.5, 0.25)]
    check_recompiles(POWERS[name][0], [(X, *pair) for pair in (*PAIRS, *others)], graphs=None)


@pytest.mark.parametrize("name", ["both", "difference", "product"])
def test_powers_are_compiled(name):
    fn, _ = POWERS[name]
    compiled = minidynamo.compile(fn, fullgraph=True)
    for pair in PAIRS:
        torch.testing.assert_close(compiled(X, *pair), fn(X, *pair))


def test_product_as_a_constant():
    """Where the value itself is needed, what it is computed from is fixed too."""

    def fn(x, f, g):
        return x * f, {f * g: 1}

    check_recompiles(fn, [(X, *pair) for pair in PAIRS], graphs=5, fullgraph=True)


SIZES = {
    "quotient": lambda x: int(96 / x.shape[0] * 2),
    "rounded up": lambda x: x.shape[0] // 2 * 3 % 5 + math.ceil(x.shape[1] / 2),
    "to zero": lambda x: 10 + math.trunc(-x.shape[0] / 3),
    "decimals": lambda x: int(round(96 / x.shape[0], 1) * 3) + round(x.shape[1] / 4),
    "magnitude": lambda x: int(abs(3.5 - x.shape[0]) * 2),
    "power": lambda x: 2 ** (x.shape[0] - 3),
    "angle": lambda x: 1 + int(math.atan(x.shape[0]) * 7),
}


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("name", SIZES)
def test_sizes_as_data(name, backend):
    """A size of a result is computed in the graph from the sizes that it was made of."""

    def fn(x):
        made = torch.ones(SIZES[name](x))
        return torch.tensor([made.shape[0], made.shape[0] + 1]), made * 2

    minidynamo.reset()
    counter = CountingBackend(backend=backend)
    compiled = minidynamo.compile(fn, backend=counter, dynamic=True)
    for shape in ((7, 9), (9, 6), (5, 13)):
        assert_same(fn(torch.ones(shape)), compiled(torch.ones(shape)))
    assert len(counter.graphs) == 1


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_negative_quotients_are_cut_to_zero(backend):
    """torch's own simplification takes `trunc(a / b)` for `a // b`."""

    def fn(x):
        parts = math.trunc(x.shape[0] / -3), int(1 - x.shape[0] / 4), int((2 - x.shape[0]) / 3)
        return [x * part for part in parts], x + 1 if math.trunc(-x.shape[0] / 3) == -2 else x

    minidynamo.reset()
    counter = CountingBackend(backend=backend)
    compiled = minidynamo.compile(fn, backend=counter, dynamic=True)
    for size in (7, 8, 9, 10, 5):
        assert_same(fn(torch.ones(size)), compiled(torch.ones(size)))
    assert len(counter.graphs) == 2  # the branch is taken or not


EXTREMES = {
    "of a shape": lambda x: x * max(x.shape),
    "of a list": lambda x: x * min([x.shape[0], x.shape[1], 12]),
    "of a generator": lambda x: x * max(2 * size for size in x.shape),
    "of floats": lambda x: x * min(size / 3 for size in x.shape),
}


@pytest.mark.parametrize("name", EXTREMES)
def test_extremes_of_iterables_are_no_branches(name):
    calls = [(torch.ones(shape),) for shape in ((7, 9), (9, 6), (5, 13), (20, 19))]
    check_recompiles(EXTREMES[name], calls, graphs=1, dynamic=True)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("numbers", [(5, 7, -3, -2), (5.5, 7.5, -3.5, -2.0)])
def test_powers_of_numbers_that_become_constants(backend, numbers):
    """Behind the power the number is asked for itself: then the graph holds a negative constant."""

    def fn(x, number, exponent):
        power = number**exponent
        y = x * power
        return y, power, {number: 1}, math.comb(exponent, 2)

    compiled = minidynamo.compile(fn, backend=backend)
    for number in numbers:
        for exponent in (2, 3, 4):
            assert_same(fn(X, number, exponent), compiled(X, number, exponent))


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_numbers_of_constants_alone(backend):
    def fn(x, a, b):
        total = (a * 3 + b // 2) ** 2 - b % 3
        y = x * total + a / (b + 1)
        return y, total, {a, b}

    counter = CountingBackend(backend=backend)
    compiled = minidynamo.compile(fn, backend=counter)
    for a, b in ((4, 5), (6, -7), (-8, 9), (-8, 9)):
        assert_same(fn(X, a, b), compiled(X, a, b))
    assert len(counter.graphs) == 3
    names = [node.name for graph in counter.graphs for node in graph.graph.nodes]
    assert not any("pow" in name or "mod" in name for name in names), names


COMPARED = {
    "less": lambda n: (n | 1) < (n | 1),
    "greater": lambda n: (n ^ 3) > (n ^ 3),
    "at least": lambda n: (n & 6) >= (n & 6),
    "at most": lambda n: (n | 1) * 2 <= (n | 1) + (n | 1),
    "of sums": lambda n: (n | 1) * 2 < (n | 1) + (n | 1),
    "other": lambda n: math.sqrt(n) != math.sqrt(n),
    "of roots": lambda n: math.sqrt(n) > math.sqrt(n),
    "in a number": lambda n: int((n | 1) > (n | 1)) > 0,
    "different": lambda n: (n | 1) > (n ^ 3),
    "truth values": lambda n: (n > 2) == ((n | 1) < 8),
    "equal truth values": lambda n: (n > 7) != (n > 7),
}


@pytest.mark.parametrize("kind", COMPARED)
@pytest.mark.parametrize("dynamic", [None, True])
def test_comparisons_of_equal_numbers(kind, dynamic):
    """torch's ShapeEnv holds all of them for true."""

    def fn(x, n):
        return x * 2 if COMPARED[kind](n) else x + 1

    compiled = minidynamo.compile(fn, backend="eager", dynamic=dynamic)
    for n in (5, 6, 9, 12):
        assert_same(fn(X, n), compiled(X, n))


# -- questions about a float that changes ----------------------------------------------------------


QUESTIONS = {
    "bool": (lambda x, a: x * 2 if a else x + 1, 0.0),
    "not": (lambda x, a: x * 2 if not a else x + 1, 0.0),
    "isnan": (lambda x, a: x + 1 if math.isnan(a) else x * a, math.nan),
    "itself": (lambda x, a: x + 1 if a != a else x * a, math.nan),
    "of a part of itself": (lambda x, a: x * a if a + 1 > a else x + 1, math.inf),
    "minus itself": (lambda x, a: x * a if a - a == 0 else x + 1, math.inf),
    "by itself": (lambda x, a: x * a if a / a == 1 else x + 1, -math.inf),
    "isinf": (lambda x, a: x + 1 if math.isinf(a) else x * a, -math.inf),
    "isfinite": (lambda x, a: x * a if math.isfinite(a) else x + 1, math.inf),
    "isclose": (lambda x, a: x * a if not math.isclose(a, 8.0) else x + 1, 8.0),
    "is_integer": (lambda x, a: x * a if not a.is_integer() else x + 1, 4.0),
    "of a sum": (lambda x, a: x * a if not (a * 2 + 1).is_integer() else x + 1, 4.5),
}


@pytest.mark.parametrize("kind", QUESTIONS)
def test_questions_about_a_float_that_changes(kind):
    fn, other = QUESTIONS[kind]
    x = torch.arange(3.0)
    calls = [(x, a) for a in (0.375, 0.7, 1.3, 2.75, -3.1)]
    check_recompiles(fn, calls, graphs=2)
    check_recompiles(fn, [*calls, (x, other), calls[-1], (x, other)], graphs=3)


def test_nothing_of_an_infinite_float_is_no_number():
    def fn(x, a):
        return x * a if a * 0 == 0 else x + 1

    compiled = minidynamo.compile(fn, backend="eager", dynamic=True)
    for a in (0.375, -0.7, 1.3, math.inf, math.nan, 2.75, -math.inf):
        assert_same(compiled(X, a), fn(X, a))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_floats_that_are_too_large_for_a_tensor_dtype_are_infinite(dtype):
    """As scalars in kernels they are rounded, where `torch.scalar_tensor` refuses them."""

    def fn(x, f):
        return x * f + 1, x / f, f * 2

    compiled = minidynamo.compile(fn, fullgraph=True)
    for value in (1.5, 2.5, 1e89, -1e300, math.inf, 3.25, 3.4028235e38):
        given = X.to(dtype), value
        torch.testing.assert_close(compiled(*given), fn(*given))


def test_sums_of_floats_that_became_known():
    """sympy adds them in another order, which changes the last bit."""

    def fn(x, a, b, low, high):
        y = low + (high - low) * (1 + math.cos(math.pi * a / b)) / 2
        z = a * 0.1 + high * 3 + low - a / 7
        found = {a: 1, b: 2, low: 3, high: 4}
        return x * y, y.hex(), z.hex(), found

    compiled = minidynamo.compile(fn, backend="eager", dynamic=True)
    for a in (0.9, 1.3, 17.2):
        given = (torch.ones(2), a, 20.0, 1e-10, 0.3)
        assert_same(compiled(*given), fn(*given))


@pytest.mark.parametrize("compare", [operator.eq, operator.lt, operator.ge])
def test_sums_that_differ_in_their_order_are_compared(compare):
    def fn(x, a, b, c):
        return x + 1 if compare(a * 0.1 + b + c, a * 0.1 + (b + c)) else x - 1

    compiled = minidynamo.compile(fn, backend="eager", dynamic=True)
    for given in [(1.0, 2.0, 3.0), (1.3, 0.1, 1e-10), (0.3, 0.7, 0.1), (17.2, 0.3, 0.6)]:
        assert torch.equal(compiled(torch.ones(2), *given), fn(torch.ones(2), *given))


@pytest.mark.parametrize("numbers", [(1.5, 2.5, 3.5), (2, 3, 4)])
def test_the_class_of_a_symbolic_number(numbers):
    def fn(x, n):
        names = {float: "a float", int: "an int"}
        return x * n, n.__class__ is type(n), n.__class__.__name__, names[n.__class__]

    minidynamo.reset()
    counter = CountingBackend()
    compiled = minidynamo.compile(fn, backend=counter, fullgraph=True)
    for n in numbers:
        assert_same(compiled(torch.ones(2), n), fn(torch.ones(2), n))
    assert len(counter.graphs) == 2  # the first number is a constant
