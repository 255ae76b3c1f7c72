"""Arithmetic of symbolic sizes is computed once and looked up after that: with the same answers."""

import itertools
import operator

import pytest
import torch
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

import minidynamo
from minidynamo.remembered_sizes import SizeNode
from minidynamo.shape_env import ExactShapeEnv

OPERATIONS = [operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod]
OPERATIONS += [operator.eq, operator.ne, operator.gt, operator.lt, operator.le, operator.ge]
OPERATIONS += [torch.sym_max, torch.sym_min, operator.truediv]


def sizes(env, *hints):
    """One symbolic size for each hint."""
    found = []
    for i, hint in enumerate(hints):
        source = torch._dynamo.source.ConstantSource(f"n{i}")
        symbol = env.create_symbol(hint, source, dynamic_dim=DimDynamic.DYNAMIC)
        found.append(env.create_symintnode(symbol, hint=hint, source=source))
    return found


def operands(env):
    s, t = sizes(env, 12, 7)
    return [s, t, s * 2, s + t, 3, 1]


@pytest.mark.parametrize("op", OPERATIONS, ids=lambda op: op.__name__)
def test_the_answers_are_those_of_torch(op):
    plain, quick = operands(ShapeEnv()), operands(ExactShapeEnv())
    pairs = zip(
        itertools.product(plain, repeat=2), itertools.product(quick, repeat=2), strict=True
    )
    for (a, b), (x, y) in pairs:
        if type(a) is int and type(b) is int:
            continue
        first, again = op(x, y), op(x, y)
        expected = op(a, b)
        for found in (first, again):
            assert type(found) is type(expected)
            if isinstance(expected, (torch.SymInt, torch.SymFloat, torch.SymBool)):
                assert found.node.expr == expected.node.expr
                assert found.node.hint == expected.node.hint
                assert type(found.node.hint) is type(expected.node.hint)
                assert found.node.pytype is expected.node.pytype
            else:
                assert found == expected


def test_an_answer_is_computed_once():
    env = ExactShapeEnv()
    s, t = sizes(env, 12, 7)
    first = s * t + 1
    known = dict(env.results)
    again = s * t + 1
    assert known and env.results == known
    assert type(again.node) is SizeNode and again.node is not first.node
    assert again.node.expr == first.node.expr


def test_what_is_learnt_later_counts():
    env = ExactShapeEnv()
    s, t = sizes(env, 12, 12)
    difference, product = s - t, s * t
    assert difference.node.maybe_as_int() is None
    assert s == t  # a guard: one symbol stands for both
    assert (s - t).node.maybe_as_int() == 0 == difference.node.maybe_as_int()
    assert product.node.expr == (s * s).node.expr == (t * t).node.expr


def test_of_equal_numbers_of_two_types_each_has_its_own():
    (s,) = sizes(ExactShapeEnv(), 12)
    assert type((s + 1).node.hint) is int
    assert type((torch.sym_float(s) + 1).node.hint) is float
    assert type((s + 1).node.hint) is int


def test_programs_of_sizes():
    def fn(x, y):
        rows = x.shape[0] * 2 // y.shape[0]
        z = x.reshape(-1) if rows > 3 else x.flatten() * 2
        return z.unflatten(0, (x.shape[1], x.shape[0])) + y.sum() * rows, rows

    run = minidynamo.compile(fn, dynamic=True, fullgraph=True, backend="eager")
    for n, m, k in [(6, 4, 2), (6, 5, 2), (3, 4, 3), (8, 4, 2), (9, 9, 9)]:
        x, y = torch.randn(n, m), torch.randn(k)
        torch.testing.assert_close(run(x, y), fn(x, y))
