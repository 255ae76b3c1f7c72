"""Functions that generated Triton kernels call.

This file is read as text and compiled by Triton, never imported (`runtime/triton_launch.py`). What
the interpreter does slowly or inexactly (`reduce_*`, `from_bfloat16`, `to_bfloat16`) is replaced
there by functions of the same meaning.
"""

import triton.language as tl
from triton.language.extra import libdevice


def floor_div(a, b):
    """floor(a / b) of integers."""
    quotient = a // b
    rest = a % b
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), quotient - 1, quotient)


def floor_mod(a, b):
    """a - floor(a / b) * b of integers."""
    rest = a % b
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


def float_mod(a, b):
    """a - floor(a / b) * b of floats, by way of the exact fmod."""
    rest = libdevice.fmod(a, b)
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


def from_bfloat16(a):
    """The float32 of the same value."""
    return a.to(tl.float32)


def to_bfloat16(a):
    """A float32 rounded to the nearest bfloat16, half to even."""
    return a.to(tl.bfloat16)


def check(value, good, failure: tl.constexpr):
    """`value`; 0 where it is not good, which stops the program where assertions are compiled in."""
    tl.device_assert(good, failure)
    return tl.where(good, value, 0)


def philox0(seed, counter):
    """Word 0 of Philox 4x32-10, as int32."""
    a, b, c, d = tl.randint4x(seed, counter)
    return a.to(tl.int32, bitcast=True)


def philox1(seed, counter):
    """Word 1."""
    a, b, c, d = tl.randint4x(seed, counter)
    return b.to(tl.int32, bitcast=True)


def philox2(seed, counter):
    """Word 2."""
    a, b, c, d = tl.randint4x(seed, counter)
    return c.to(tl.int32, bitcast=True)


def philox3(seed, counter):
    """Word 3."""
    a, b, c, d = tl.randint4x(seed, counter)
    return d.to(tl.int32, bitcast=True)


def logaddexp(a, b):
    """log(e ** a + e ** b) without overflow."""
    high, low = _max(a, b), _min(a, b)
    total = high + libdevice.log1p(libdevice.exp(low - high))
    return tl.where((low == high) & (tl.abs(high) == float("inf")), high, total)


def exp_sum_step(top, total, a):
    """The larger of `top` and `a`, and the sum of exponentials below it (`total`: below `top`)."""
    higher = _max(top, a)
    kept = tl.where(top == higher, total, total * libdevice.exp(top - higher))
    return higher, kept + tl.where(higher == float("-inf"), 0, libdevice.exp(a - higher))


def _sum(a, b):
    return a + b


def _prod(a, b):
    return a * b


def _or(a, b):
    return a | b


def _and(a, b):
    return a & b


def _max(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


def _min(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


def scan_sum(a):
    """The running sum along each row."""
    return tl.associative_scan(a, 1, _sum)


def scan_prod(a):
    """The running product along each row."""
    return tl.associative_scan(a, 1, _prod)


def scan_max(a):
    """The running maximum along each row."""
    return tl.associative_scan(a, 1, _max)


def scan_min(a):
    """The running minimum along each row."""
    return tl.associative_scan(a, 1, _min)


def scan_logaddexp(a):
    """The running logaddexp along each row."""
    return tl.associative_scan(a, 1, logaddexp)


def reduce_sum(a):
    """The sum of each row."""
    return tl.reduce(a, 1, _sum, keep_dims=True)


def only(a, chosen, nothing):
    """Of each row the one element that is chosen; adding `nothing` changes no number."""
    return reduce_sum(tl.where(chosen, a, nothing))


def reduce_prod(a):
    """The product of each row."""
    return tl.reduce(a, 1, _prod, keep_dims=True)


def reduce_max(a):
    """The largest of each row, NaN if there is one."""
    return tl.reduce(a, 1, _max, keep_dims=True)


def reduce_min(a):
    """The smallest of each row, NaN if there is one."""
    return tl.reduce(a, 1, _min, keep_dims=True)


def reduce_any(a):
    """Whether any of a row is true."""
    return tl.reduce(a.to(tl.int32), 1, _or, keep_dims=True) != 0


def reduce_all(a):
    """Whether all of a row are true."""
    return tl.reduce(a.to(tl.int32), 1, _and, keep_dims=True) != 0


def argmax_pick(value, index, other, at):
    """Of two candidates the larger, a NaN counting as largest; of equal ones the first."""
    nan = value != value
    other_nan = other != other
    better = (other > value) | (other_nan & (nan == 0))
    same = (other == value) | (other_nan & nan)
    take = better | (same & (at < index))
    return tl.where(take, other, value), tl.where(take, at, index)


def argmin_pick(value, index, other, at):
    """Of two candidates the smaller, a NaN counting as smallest; of equal ones the first."""
    nan = value != value
    other_nan = other != other
    better = (other < value) | (other_nan & (nan == 0))
    same = (other == value) | (other_nan & nan)
    take = better | (same & (at < index))
    return tl.where(take, other, value), tl.where(take, at, index)


def reduce_argmax(value, index):
    """The position of each row's first extreme element."""
    best, at = tl.reduce((value, index), 1, argmax_pick, keep_dims=True)
    return at


def reduce_argmin(value, index):
    """The position of each row's first extreme element."""
    best, at = tl.reduce((value, index), 1, argmin_pick, keep_dims=True)
    return at
