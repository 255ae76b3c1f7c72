"""Programs called with changing sizes and numbers: results as in eager, and how often they compile.

A row: a function, the argument tuples of its calls, the number of graphs (that torch.compile makes
of it too, where the two agree).
"""
# ruff: noqa: E501  (one row, one line)

import math
from collections import namedtuple

import pytest
import torch
import torch.nn.functional as F
from testing import check_recompiles

import minidynamo


def rows(*sizes):
    return [(torch.randn(n, 3),) for n in sizes]


def with_number(*numbers):
    return [(torch.randn(6), n) for n in numbers]


def arithmetic(x):
    n = x.shape[0]
    return x + n, n * 2 + 1, n // 2, n % 3, -n, n - 1, n**2, n / 2, abs(n - 10), divmod(n, 3)


def in_place_arithmetic(x):
    n = x.size(0)
    n += 3
    n *= 2
    n -= 1
    n //= 2
    return x * n


def comparisons(x):
    n = x.shape[0]
    return n > 3, n >= 3, n < 100, n <= 100, n == 4, n != 4, not n, bool(n), 3 < n < 50


def branch(x):
    return x.sum(0) if x.shape[0] > 2 else x.prod(0)


def ternary_and_or(x):
    n = x.shape[0]
    return x * (n if n > 2 and n < 1000 else 1) + (0 if n > 2 or n == 1 else 1)


def extremes(x, y):
    a, b = x.shape[0], y.shape[0]
    return min(a, b), max(a, b), min(a, b, 7), max([a, b]), torch.zeros(max(a, b))


def converted(x):
    n = x.shape[0]
    return int(n), float(n), x * float(n), round(n / 3), int(n / 2), math.floor(n / 2)


def math_functions(x):
    n = x.shape[1] * x.shape[0]
    sizes = math.prod(x.shape), math.prod(iter([n, 2]), start=3)
    return x / math.sqrt(n), math.ceil(n / 7), math.trunc(n / 2), math.sqrt(n), sizes


def slices(x):
    n = x.shape[0]
    return (
        x[: n // 2],
        x[n // 2 :],
        x[n - 2],
        x[-2:],
        x[: n - 1, 1],
        x[..., : n - 1, 0],
        x[None, n - 1],
    )


def views(x):
    n, m = x.shape
    flat = x.view(n * m)
    return (
        flat.view(m, n),
        x.reshape(-1),
        x.unsqueeze(1).expand(n, 2, m),
        x.t().reshape(n, m),
        flat[: n * 2],
    )


def factories(x):
    n = x.shape[0]
    return (
        torch.arange(n),
        torch.zeros(n, 2),
        torch.ones(n).sum(),
        torch.full((n,), 2.5),
        x.new_empty(n).shape,
        torch.eye(n),
        torch.tril(torch.ones(n, n)),
    )


def questions(x):
    return (
        x.shape,
        x.size(),
        x.size(0),
        x.numel(),
        x.stride(),
        x.dim(),
        len(x),
        x.shape[0],
        x.size()[1],
        x.nbytes,
    )


def unpacked(x):
    n, m = x.shape
    a, *rest = x.size()
    return (
        n + m,
        a,
        rest,
        x.shape[-1],
        x.shape[:1],
        x.shape[::-1],
        x.shape + (n,),
        (*x.shape, 1),
        x.shape.numel(),
    )


def containers(x):
    n = x.shape[0]
    held = {"n": n, "list": [n, n + 1], "tuple": (n, [n * 2])}
    held["list"].append(n * 3)
    return held, sum(held["list"]), [i * n for i in (1, 2)], n in held["list"]


def inlined(x):
    def scale(t, by):
        return t * by

    def twice(k):
        return k * 2

    return scale(x, twice(x.shape[0])), twice(x.shape[0])


def closed_over(x):
    n = x.shape[0]

    def inner(t):
        return t + n

    return inner(x), inner


def keyword_and_default(x, by=2):
    return F.pad(x, (0, by)), F.layer_norm(x, x.shape[1:]), torch.sum(x, dim=0) / x.shape[0]


def functional(x):
    n = x.shape[0]
    return (
        F.interpolate(x[None], size=n + 1),
        F.one_hot(torch.arange(n), n + 1),
        torch.cat([x, torch.zeros(n, 3)]),
        torch.stack([x] * 2).view(2 * n, 3),
        x.split(n - 1),
        x.chunk(2),
        x.repeat(2, 1),
        torch.broadcast_to(x[0], (n, 3)),
    )


def duck(x, y):
    return x + y, x.shape == y.shape, x.shape[0] == y.shape[0]


def sym_functions(x):
    n = x.shape[0]
    return (
        torch.sym_max(n, 5),
        torch.sym_min(n, 5),
        torch.sym_float(n),
        torch.sym_int(n / 2),
        torch.sym_not(n > 3),
    )


def bitwise(x):
    n = x.shape[0]
    return n & 1, n | 8, n ^ 3, n << 1, n >> 1


def comprehension(x):
    n = x.shape[0]
    return [x * k for k in (n, n + 1)], {k: n for k in "ab"}, tuple(n + k for k in range(2))


Pair = namedtuple("Pair", "size value")


def named(x):
    return Pair(x.shape[0], x * 2)


def passed_through(x, n):
    return x, n


def number(x, n):
    return x * n + n, n + 1, n * 2.5


def number_as_size(x, n):
    return torch.zeros(n + 1), x[:n], x.repeat(n + 1), torch.arange(n)


def number_branches(x, n):
    return x + n if n >= 0 else x - n


def number_division(x, n):
    return x / n, 7 // n, 7 % n, n / 2


def fraction(x, s):
    return x * s, s * 2, s / 3 + 1, x.clamp(max=s), -s, s > 0


def fraction_of_size(x, s):
    return x * (s * x.shape[0]), x.shape[0] * s


def type_questions(x, n):
    return (
        isinstance(n, int),
        type(n) is int,
        isinstance(x.shape[0], int),
        isinstance(n, float),
        n is None,
    )


def intermediate(x):
    y = torch.cat([x, x[:1]])
    return y.shape[0], y.view(-1, 3).shape, y * y.shape[0], y.numel() // 3


def assertion(x):
    assert x.shape[0] > 1, f"too small: {x.shape[0]}"
    return x * 2


def method_calls(x):
    n = x.shape[0]
    return n.__add__(1), n.__mul__(2), n.real, n.numerator, n.conjugate(), n.__index__()


TWO = [
    (arithmetic, rows(4, 5, 7, 9)),
    (in_place_arithmetic, rows(4, 5, 7, 9)),
    (branch, rows(4, 5, 7, 9)),
    (ternary_and_or, rows(4, 5, 7, 9)),
    (converted, rows(4, 5, 7, 9)),
    (math_functions, rows(4, 5, 7, 9)),
    (slices, rows(4, 5, 7, 9)),
    (views, rows(4, 5, 7, 9)),
    (factories, rows(4, 5, 7, 9)),
    (questions, rows(4, 5, 7, 9)),
    (unpacked, rows(4, 5, 7, 9)),
    (containers, rows(4, 5, 7, 9)),
    (inlined, rows(4, 5, 7, 9)),
    (closed_over, rows(4, 5, 7, 9)),
    (keyword_and_default, rows(4, 5, 7, 9)),
    (sym_functions, rows(6, 7, 9, 11)),
    (bitwise, rows(4, 5, 7, 9)),
    (comprehension, rows(4, 5, 7, 9)),
    (named, rows(4, 5, 7, 9)),
    (intermediate, rows(4, 5, 7, 9)),
    (assertion, rows(4, 5, 7, 9)),
    (method_calls, rows(4, 5, 7, 9)),
    (passed_through, with_number(3, 4, 5)),
    (number, with_number(3, 4, 5, 0, 1, -2)),
    (number_as_size, with_number(3, 4, 5)),
    (number_branches, with_number(3, 4, 5, 0)),
    (number_division, with_number(3, 4, 5, 2)),
    (fraction, with_number(0.5, 0.75, 2.5)),
    (type_questions, with_number(3, 4, 5)),
    (extremes, [(torch.randn(a), torch.randn(b)) for a, b in ((3, 9), (4, 10), (5, 12))]),
    (duck, [(torch.randn(n), torch.randn(n)) for n in (3, 4, 5)]),
]


@pytest.mark.parametrize("fn, calls", TWO, ids=[fn.__name__ for fn, _ in TWO])
def test_two_compilations_are_enough(fn, calls):
    graphs = 0 if fn in NO_GRAPH else 2
    check_recompiles(fn, calls, graphs=graphs)


NO_GRAPH = {
    questions,
    unpacked,
    containers,
    sym_functions,
    bitwise,
    type_questions,
    passed_through,
    method_calls,
}


@pytest.mark.parametrize("fn, calls", TWO, ids=[fn.__name__ for fn, _ in TWO])
def test_symbolic_from_the_start(fn, calls):
    graphs = 0 if fn in NO_GRAPH else 1
    check_recompiles(fn, calls, graphs=graphs, dynamic=True)


@pytest.mark.parametrize("fn, calls", TWO[:12], ids=[fn.__name__ for fn, _ in TWO[:12]])
def test_never_symbolic(fn, calls):
    graphs = 0 if fn in NO_GRAPH else len(calls)
    check_recompiles(fn, calls, graphs=graphs, dynamic=False)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_dropout_that_hands_back_its_input(backend):
    def f(x):
        y = F.dropout(x, 0.5, False)
        y.add_(1)
        torch.ops.aten.dropout(x, 0.5, False).add_(1)
        return y, F.dropout(x, p=0.0), F.dropout(x, 0.5).shape

    for rows in (3, 5):
        compiled = minidynamo.compile(f, backend=backend, dynamic=True, fullgraph=True)
        x = torch.arange(rows, dtype=torch.float)
        result = compiled(x)
        assert result[0] is x
        assert result[1] is x
        assert torch.equal(x, torch.arange(2.0, rows + 2))


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.slope = torch.nn.LeakyReLU(0.25)
        self.table = torch.nn.Embedding(8, 4)
        self.factor = 0.5

    def forward(self, x):
        return self.slope(self.table(x)) * self.factor


def test_floats_of_torchs_modules_are_constants_until_they_change():
    model = Scaled()
    graphs = []

    def backend(gm, example_inputs):
        given = gm.graph.find_nodes(op="placeholder")
        values = [node.meta["example_value"] for node in given]
        graphs.append(sum(isinstance(value, torch.SymFloat) for value in values))
        return gm

    compiled = minidynamo.compile(model, backend=backend, dynamic=True, fullgraph=True)

    def check():
        for rows in (3, 5):
            x = torch.arange(rows)
            assert torch.equal(compiled(x), model(x))

    check()
    assert graphs == [1]
    for model.factor in (0.75, 2.5):
        check()
    assert graphs == [1]
    for model.slope.negative_slope in (0.5, 0.125, 3.0):
        check()
    assert graphs == [1, 2]
