"""Integers as 32-bit values where they fit.

Positions are int64. When all that is done with one is arithmetic whose results fit, comparing it
and converting it, int32 gives the same result and twice the lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import torch

from minidynamo.inductor.loop_body import LoopBody, Node
from minidynamo.inductor.symbolic import upper

_LIMIT = 1 << 31
_COMPARISONS = frozenset(["eq", "ne", "lt", "le", "gt", "ge"])
_SMALL = (torch.bool, torch.int8, torch.uint8, torch.int16, torch.int32)
Range = tuple[int, int] | None


def _range(node: Node, ranges: Sequence[Range], nodes: Sequence[Node]) -> Range:
    """The smallest and the largest value of an int64 node.

    None where that is not known: numbers from memory may be anything, and so may what is computed
    of them.
    """
    if node.dtype != torch.int64:
        return None
    if node.op == "constant":
        return (node.value, node.value) if isinstance(node.value, int) else None
    if node.op == "index_expr":
        assert node.index is not None
        high, low = upper(node.index), upper(-node.index)
        known = high is not None and low is not None and high.is_const and low.is_const
        return (-low.const, high.const) if known else None  # type: ignore[union-attr]
    if node.op == "cast":
        source = nodes[node.args[0]].dtype
        if source not in _SMALL:
            return None
        return (0, 1) if source == torch.bool else _limits(source)
    rule = _RULES.get(node.op)
    args = [ranges[arg] for arg in (node.args[1:] if node.op == "where" else node.args)]
    if rule is None or any(arg is None for arg in args):
        return None
    ends = list(rule(*args))
    return min(ends), max(ends)


def _limits(dtype: torch.dtype) -> tuple[int, int]:
    return torch.iinfo(dtype).min, torch.iinfo(dtype).max


def _sum(x: tuple[int, int], y: tuple[int, int]) -> list[int]:
    """The ends of x + y."""
    smallest = x[0] + y[0]
    largest = x[1] + y[1]
    return [smallest, largest]


def _negative(x: tuple[int, int]) -> tuple[int, int]:
    """The ends of -x, the smaller one first."""
    low, high = x
    return -high, -low


def _absolute(x: tuple[int, int]) -> list[int]:
    """Values among which are the ends of |x|: 0 may be one, which does no harm."""
    return [0, *map(abs, x)]


def _products(x: tuple[int, int], y: tuple[int, int]) -> list[int]:
    """The ends of x * y are products of ends."""
    return [a * b for a in x for b in y]


# Operation -> values among which are the smallest and the largest result.
_RULES: dict[str, Callable[..., Iterable[int]]] = {
    "add": _sum,
    "sub": lambda x, y: _sum(x, _negative(y)),
    "mul": _products,
    "neg": _negative,
    "abs": _absolute,
    "maximum": lambda x, y: map(max, x, y),
    "minimum": lambda x, y: map(min, x, y),
    "where": lambda x, y: (*x, *y),
}


def _fits(bounds: Range) -> bool:
    # One less than the smallest int32 has: its absolute value is none.
    return bounds is not None and bounds[0] > -_LIMIT and bounds[1] < _LIMIT


def narrow_integers(body: LoopBody) -> LoopBody:
    """The body with int32 in place of int64 for such values.

    Where one operand of a comparison, or of arithmetic, stays wide, the others do, and so does
    what somebody else wants as it is: a store, a reduction.
    """
    nodes = body.nodes
    ranges: list[Range] = []
    for node in nodes:
        ranges.append(_range(node, ranges, nodes))
    narrow = {position for position, bounds in enumerate(ranges) if _fits(bounds)}
    while narrow:
        wrong: set[int] = set()
        for position, node in enumerate(nodes):
            # An address takes any integer.
            operands = node.args if node.buffer is not None else node.operands()
            wide = any(
                nodes[arg].dtype == torch.int64 and arg not in narrow for arg in operands
            )
            if position in narrow and wide:
                wrong.add(position)
            stays = position in narrow or node.op in _COMPARISONS
            if wide or not (stays or (node.op == "cast" and not node.index)):
                wrong.update(arg for arg in operands if arg in narrow)
        if not wrong:
            break
        narrow -= wrong
    if not narrow:
        return body
    changed = [
        replace(node, dtype=torch.int32) if position in narrow else node
        for position, node in enumerate(nodes)
    ]
    return LoopBody(body.iters, body.reduces, changed)
