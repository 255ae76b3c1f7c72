"""Index expressions: simplification is checked by evaluating both sides everywhere."""

import itertools
import random

import pytest

from minidynamo.inductor.symbolic import (
    FloorDiv,
    Mod,
    Symbol,
    as_expr,
    contiguous_strides,
    dot,
    floordiv,
    is_less,
    is_nonneg,
    loop_symbol,
    mod,
    symbol_expr,
    upper,
)

A, B, C = loop_symbol("a", 4), loop_symbol("b", 8), loop_symbol("c", 16)
a, b, c = map(symbol_expr, (A, B, C))


def evaluate(expr, values):
    total = expr.const
    for monomial, coeff in expr.terms.items():
        for atom in monomial:
            if isinstance(atom, FloorDiv):
                coeff *= evaluate(atom.num, values) // evaluate(atom.den, values)
            elif isinstance(atom, Mod):
                coeff *= evaluate(atom.num, values) % evaluate(atom.den, values)
            else:
                coeff *= values[atom]
        total += coeff
    return total


def points(*symbols):
    for values in itertools.product(*(range(s.size) for s in symbols)):
        yield dict(zip(symbols, values))


def test_reshape_round_trip_is_affine():
    flat = (a * 8 + b) * 16 + c
    assert flat // 16 == a * 8 + b
    assert flat % 16 == c
    assert flat // 128 == a
    assert (flat // 16) % 8 == b


def test_a_flat_loop_splits_and_recombines():
    i = symbol_expr(loop_symbol("i", 512))
    outer, middle, inner = i // 128, (i // 16) % 8, i % 16
    assert outer * 128 + middle * 16 + inner == i
    assert str(middle) == "((i // 16) % 8)"


def test_fine_terms_do_not_hinder_a_coarse_division():
    assert (16 * b + c) // 32 == b // 2
    assert (16 * b + c) % 32 == 16 * (b % 2) + c


def test_rows_of_a_symbolic_length_are_one_loop():
    n = symbol_expr(Symbol("n", lower=1))
    m, k = (symbol_expr(Symbol(name, lower=2)) for name in "mk")
    flat = symbol_expr(loop_symbol("r", n * m))
    assert mod(floordiv(flat, n), m) == floordiv(flat, n)
    assert mod(floordiv(flat, n), m) * n + mod(flat, n) == flat
    outer = b * n * m + flat
    assert mod(floordiv(outer, n), m) * n + mod(outer, n) == flat
    assert k * n * floordiv(flat, n) + k * mod(flat, n) == k * flat
    assert 2 * k * n * floordiv(flat, n) + k * mod(flat, n) != k * flat
    assert floordiv(as_expr(-1), n) == -1
    assert floordiv(n * m - 1, n) == m - 1
    # Too small a divisor to tell.
    assert floordiv(as_expr(-3), m) == symbol_expr(FloorDiv(as_expr(-3), m))
    assert mod(floordiv(flat, n), k) == symbol_expr(Mod(floordiv(flat, n), k))


def test_loop_variables_of_other_sizes_are_others():
    """Also inside of divisions, whose texts are equal: what is proven of one is not of another."""
    n = symbol_expr(Symbol("n", lower=2))
    short, long = (symbol_expr(loop_symbol("r", size)) for size in (3 * n, 3 * n * n))
    assert str(short // 3) == str(long // 3)
    assert short // 3 != long // 3
    assert len({short // 3, long // 3}) == 2
    assert mod(short // 3, n) == short // 3
    assert mod(long // 3, n) != long // 3
    assert is_less(short // 3, n) and not is_less(long // 3, n)


def test_size_symbols():
    s = symbol_expr(Symbol("s0", None, 2))
    row = symbol_expr(loop_symbol("row", s))
    assert (a * s + row) // s == a
    assert (a * s + row) % s == row
    assert is_less(row, s) and not is_less(row, s - 1)


def test_divisors_of_several_terms():
    """A row of n + 1 places among m such rows, as padding makes them."""
    n, m = (symbol_expr(Symbol(name, None, 2)) for name in ("s0", "s1"))
    row, place = (symbol_expr(loop_symbol(*own)) for own in (("row", m), ("place", n + 1)))
    plane = (n + 1) * m
    flat = a * plane + row * (n + 1) + place
    assert flat // plane == a
    assert flat % plane // (n + 1) == row
    assert flat % (n + 1) == place
    assert str(n // (n + 1)) == "0"


@pytest.mark.parametrize("seed", range(60))
def test_simplification_keeps_values_of_all_sizes(seed):
    rng = random.Random(seed)
    sizes = [Symbol(name, None, 2) for name in ("s0", "s1", "s2")]
    s, t, u = map(symbol_expr, sizes)
    extents = [rng.choice([3, s, t, s * u, t + 1, u * 2]) for _ in range(3)]
    loops = [loop_symbol(f"x{i}", extent) for i, extent in enumerate(extents)]
    expr = as_expr(rng.randint(0, 3)) + rng.choice([s, t * 0, u])
    for symbol in loops:
        step = rng.choice([1, extents[2], extents[2] * extents[1], s, t + 1, s * t + s])
        expr = expr + symbol_expr(symbol) * step
    den = as_expr(rng.choice([extents[2], extents[2] * extents[1], t + 1, s * t + s, s + u]))
    quotient, remainder = floordiv(expr, den), mod(expr, den)
    for _ in range(20):
        values = {size: rng.randint(2, 6) for size in sizes}
        values |= {x: rng.randrange(evaluate(as_expr(x.size), values)) for x in loops}
        whole, by = evaluate(expr, values), evaluate(den, values)
        assert evaluate(quotient, values) == whole // by
        assert evaluate(remainder, values) == whole % by


@pytest.mark.parametrize("seed", range(60))
def test_simplification_keeps_values(seed):
    rng = random.Random(seed)
    expr = as_expr(rng.randint(0, 9))
    for symbol in (a, b, c):
        expr = expr + symbol * rng.choice([0, 1, 2, 3, 4, 8, 16, 24])
    for _ in range(rng.randint(1, 3)):
        den = rng.choice([2, 3, 4, 6, 8, 16, 32, 48])
        before, after = expr, floordiv(expr, as_expr(den))
        if rng.random() < 0.5:
            after = mod(expr, as_expr(den))
            expected = [evaluate(before, p) % den for p in points(A, B, C)]
        else:
            expected = [evaluate(before, p) // den for p in points(A, B, C)]
        assert [evaluate(after, p) for p in points(A, B, C)] == expected
        expr = after + rng.choice([a, b, c, as_expr(1)]) * rng.choice([1, 2, 4])


def test_bounds():
    assert upper(a * 3 - b) == 9
    assert is_nonneg(a + b) and not is_nonneg(a - b)
    assert is_less(a * 8 + b, as_expr(32)) and not is_less(a * 8 + b, as_expr(31))


def test_coeff_and_subs():
    expr = a * 5 + b * 2 + 7
    assert expr.coeff(A) == 5 and expr.coeff(C) == 0
    assert (expr // 3).coeff(A) is None
    assert expr.subs({A: c + 1, B: 0}) == c * 5 + 12


def test_strides():
    assert contiguous_strides((2, 3, 4)) == (12, 4, 1)
    assert contiguous_strides((2, 0, 4)) == (4, 4, 1)
    assert dot([a, b], (8, 1), 3) == a * 8 + b + 3


def test_products_that_divide_are_in_parentheses():
    texts = [e.render_divisor(lambda atom: atom.name) for e in (a, a * b, a + 1, a * 2)]
    assert texts == ["a", "(a*b)", "(a + 1)", "(2*a)"]
    assert as_expr(3).render_divisor(lambda atom: atom.name) == "3"
