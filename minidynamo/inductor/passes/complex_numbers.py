"""Complex numbers as pairs of real ones, which kernels compute with.

    mul(x, y)     ->     view_as_complex(stack([a * c - b * d, a * d + b * c], -1))

Loops know real numbers only. What an operator of a library takes or makes (a Fourier transform, a
product of matrices) is written and read as rows of pairs. The formulas are ATen's for the CPU, also
for infinities, NaNs and the signs of zeros; operators without one here stay calls.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
import torch.fx

from minidynamo.inductor.passes.complex_parts import Pair, Rule, Splitter, is_complex, is_shaped
from minidynamo.inductor.passes.narrow_products import to_dtype
from minidynamo.inductor.passes.simplify import is_fresh_memory, remove_dead_nodes

aten = torch.ops.aten


def split_complex(
    gm: torch.fx.GraphModule,
) -> None:
    """Rewrite a graph's complex operators; see the module's docstring."""
    if any(is_complex(node) for node in gm.graph.nodes):
        Splitter(gm.graph, _RULES, _VIEWS).run()
        remove_dead_nodes(gm)


# -- operators ------------------------------------------------------------------------------------
def _add(
    s: Splitter,
    node: torch.fx.Node,
) -> Pair | None:
    if node.kwargs or len(node.args) != 2:
        return None
    x, y = s.operands(*node.args)
    y = s.product((1.0, 0.0), y)  # as ATen, which adds alpha times the second
    return s.add(x[0], y[0]), s.add(x[1], y[1])


def _sub(
    s: Splitter,
    node: torch.fx.Node,
) -> Pair | None:
    if node.kwargs or len(node.args) != 2:
        return None
    return _difference(s, *s.operands(*node.args))


def _rsub(
    s: Splitter,
    node: torch.fx.Node,
) -> Pair | None:
    if node.kwargs or len(node.args) != 2:
        return None
    return _difference(s, *s.operands(*reversed(node.args)))


def _difference(
    s: Splitter,
    x: Pair,
    y: Pair,
) -> Pair:
    (a, b), (c, d) = x, y
    c, d = s.sub(s.neg(c), s.mul(d, 0.0)), s.add(s.neg(d), s.mul(c, 0.0))
    return s.add(a, c), s.add(b, d)


def _mul(
    s: Splitter,
    node: torch.fx.Node,
) -> Pair:
    return s.product(*s.operands(*node.args))


def _div(
    s: Splitter,
    node: torch.fx.Node,
) -> Pair | None:
    divisor = node.args[1]
    if node.kwargs or isinstance(divisor, complex):
        return None
    x, y = s.operands(*node.args)
    if isinstance(y[0], torch.fx.Node):
        is_real = isinstance(y[1], float) and str(y[1]) == "0.0"
        return s.quotient_by_real(x, y[0]) if is_real else s.quotient(x, y)
    return s.product(x, (1 / y[0], -0.0)) if y[0] != 0 and y[1] == 0 else None


def _reciprocal(
    s: Splitter,
    node: torch.fx.Node,
) -> Pair:
    (x,) = s.operands(*node.args)
    return s.quotient((s.number(1.0), s.number(0.0)), x)


def _square(
    s: Splitter,
    node: torch.fx.Node,
) -> Pair | None:
    if node.args[1] != 2:
        return None
    (x,) = s.operands(node.args[0])
    return s.product(x, x)


def _neg(
    s: Splitter,
    node: torch.fx.Node,
) -> Pair:
    ((a, b),) = s.operands(*node.args)
    return s.neg(a), s.neg(b)


def _conj(
    s: Splitter,
    node: torch.fx.Node,
) -> Pair:
    ((a, b),) = s.operands(*node.args)
    return a, s.neg(b)


def _abs(
    s: Splitter,
    node: torch.fx.Node,
) -> torch.fx.Node:
    (x,) = s.operands(*node.args)
    return s(aten.hypot.default, *s.tensors(x))


def _angle(
    s: Splitter,
    node: torch.fx.Node,
) -> torch.fx.Node:
    (x,) = s.operands(*node.args)
    return s(aten.atan2.default, *reversed(s.tensors(x)))


def _sgn(
    s: Splitter,
    node: torch.fx.Node,
) -> Pair:
    (x,) = s.operands(*node.args)
    parts = s.tensors(x)
    size = s(aten.hypot.default, *parts)
    is_zero = s(aten.eq.Scalar, size, 0.0)
    a, b = (s.where(is_zero, 0.0, s(aten.div.Tensor, part, size)) for part in parts)
    return a, b


def _exp(
    s: Splitter,
    node: torch.fx.Node,
) -> Pair:
    """Also where the angle is not finite, as std::exp."""
    (x,) = s.operands(*node.args)
    a, b = s.tensors(x)
    size = s(aten.exp.default, a)
    is_finite = s(aten.lt.Scalar, s(aten.abs.default, b), math.inf)
    is_none = s(aten.eq.Scalar, a, -math.inf)
    is_infinite = s(aten.eq.Scalar, a, math.inf)
    beyond = s.where(is_none, 0.0, s.where(is_infinite, math.inf, math.nan))
    re = s.where(is_finite, s.mul(size, s(aten.cos.default, b)), beyond)
    nothing = s.where(s(aten.lt.Scalar, b, 0.0), -0.0, 0.0)
    is_gone = s(aten.logical_and.default, is_none, s(aten.logical_not.default, is_finite))
    im = s.where(is_gone, nothing, s.mul(size, s(aten.sin.default, b)))
    return re, s.where(s(aten.eq.Scalar, b, 0.0), b, im)


def _complex(
    s: Splitter,
    node: torch.fx.Node,
) -> Pair | None:
    return _expanded(s, *node.args) if len(node.args) == 2 else None


def _polar(
    s: Splitter,
    node: torch.fx.Node,
) -> Pair:
    size, angle = node.args
    cos, sin = s(aten.cos.default, angle), s(aten.sin.default, angle)
    return s.mul(size, cos), s.mul(size, sin)  # type: ignore[arg-type]


def _expanded(
    s: Splitter,
    *parts: Any,
) -> Pair:
    shape = list(s.node.meta["val"].shape)
    if any(type(n) is not int for n in shape):
        re, im = parts
        return re, im
    a, b = (
        part if is_shaped(part, shape) else s(aten.expand.default, part, shape)
        for part in parts
    )
    return a, b


def _as_complex(
    s: Splitter,
    node: torch.fx.Node,
) -> Pair:
    return s.columns(node.args[0])  # type: ignore[arg-type]


def _as_real(
    s: Splitter,
    node: torch.fx.Node,
) -> torch.fx.Node | None:
    """Computed numbers, and views of them, are told apart where nobody else keeps their memory;
    others are looked at anyway.
    """
    given: Any = node.args[0]
    root, readers = given, len(given.users)
    while root in s.pairs and root not in s.computed and root.target in s.views:
        root = root.args[0]
        readers = max(readers, len(root.users))
    if root not in s.computed or (readers > 1 and is_fresh_memory(node)):
        return None
    return s.rows(s.pairs[given])


def _equal(
    op: Any,
    join: Any,
) -> Rule:
    def rule(s: Splitter, node: torch.fx.Node) -> torch.fx.Node | None:
        x, y = (s.parts(value) for value in node.args)
        if not all(isinstance(part, torch.fx.Node) for part in (*x, *y)):  # type: ignore[misc]
            return None
        return s(join, *(s(op, a, b) for a, b in zip(x, y, strict=True)))  # type: ignore[arg-type]

    return rule


def _sum(
    s: Splitter,
    node: torch.fx.Node,
) -> Pair | None:
    if node.kwargs or not is_complex(node.args[0]):
        return None
    (x,) = s.operands(node.args[0])
    a, b = (s(node.target, part, *node.args[1:]) for part in s.tensors(x))
    return a, b


def _mean(
    s: Splitter,
    node: torch.fx.Node,
) -> Pair | None:
    fake = node.args[0].meta["val"]  # type: ignore[union-attr]
    dims = node.args[1] if len(node.args) > 1 else None
    shape = fake.shape if not dims else [fake.shape[dim] for dim in dims]  # type: ignore[union-attr]
    if node.kwargs or any(type(n) is not int or n == 0 for n in shape) or not fake.dim():
        return None
    (x,) = s.operands(node.args[0])
    rest = (dims or list(range(fake.dim())), *node.args[2:])
    a, b = (s(aten.sum.dim_IntList, part, *rest) for part in s.tensors(x))
    return s.product((a, b), (1 / math.prod(shape), 0.0))


def _of_parts(
    *positions: int,
) -> Rule:
    """The same operator for both parts; `positions`: its arguments that are values."""

    def rule(s: Splitter, node: torch.fx.Node) -> Pair | None:
        made: list[torch.fx.Node] = []
        for part in (0, 1):
            args = list(node.args)
            for position in positions:
                value: Any = args[position]
                is_list = isinstance(value, (list, tuple))
                pairs = [s.tensors(s.operands(v)[0]) for v in (value if is_list else [value])]
                args[position] = [p[part] for p in pairs] if is_list else pairs[0][part]
            made.append(s(node.target, *args, **node.kwargs))
        return made[0], made[1]

    return rule


def _padded(
    s: Splitter,
    node: torch.fx.Node,
) -> Pair | None:
    return None if node.kwargs or any(node.args[2:]) else _of_parts(0)(s, node)


def _converted(
    s: Splitter,
    node: torch.fx.Node,
) -> Pair | None:
    return s.operands(node.args[0])[0] if is_complex(node) and _is_here(node) else None


def _is_here(
    node: torch.fx.Node,
) -> bool:
    """Whether an operator's result stays where its argument is."""
    given: Any = node.args[0]
    return bool(given.meta["val"].device == node.meta["val"].device)


def _copied(
    s: Splitter,
    node: torch.fx.Node,
) -> Pair | None:
    """`copy` and `fill` give what they are given second."""
    source: Any = node.args[1]
    if not is_complex(node) or source.meta["val"].device != node.meta["val"].device:
        return None
    return _expanded(s, *s.tensors(s.operands(source)[0]))


def _filled(
    size: int,
    number: float | None = None,
) -> Rule:
    """size: which argument says what is filled: its sizes, or a tensor that is alike; number: the
    argument behind it if None.
    """

    def rule(s: Splitter, node: torch.fx.Node) -> Pair | None:
        like: Any = node.args[size]
        value: Any = node.args[size + 1] if number is None else number
        if isinstance(value, torch.fx.Node):
            return None
        kwargs = {"dtype": s.real_dtype(), "device": node.meta["val"].device}
        if isinstance(like, torch.fx.Node):
            like, op = s.tensors(s.parts(like))[0], aten.full_like.default  # type: ignore[arg-type]
        else:
            op = aten.full.default
        a, b = (s(op, like, float(n), **kwargs) for n in (value.real, value.imag))
        return a, b

    return rule


def _unbound(
    s: Splitter,
    node: torch.fx.Node,
) -> Pair | None:
    """A slice of an `unbind`."""
    parts, position = node.args
    if parts.target is not aten.unbind.int:  # type: ignore[union-attr]
        return None
    base, dim = (*parts.args, 0)[:2]  # type: ignore[union-attr]
    pair = s.parts(base) if is_complex(base) else None
    if pair is None:
        return None
    a, b = (s(aten.select.int, part, dim, position) for part in s.tensors(pair))
    return a, b


_RULES: dict[Any, Rule] = {
    aten.add.Tensor: _add,
    aten.sub.Tensor: _sub,
    aten.rsub.Scalar: _rsub,
    aten.rsub.Tensor: _rsub,
    aten.mul.Tensor: _mul,
    aten.mul.Scalar: _mul,
    aten.div.Tensor: _div,
    aten.reciprocal.default: _reciprocal,
    aten.pow.Tensor_Scalar: _square,
    aten.neg.default: _neg,
    aten._conj.default: _conj,
    aten._conj_physical.default: _conj,
    aten.conj_physical.default: _conj,
    aten.abs.default: _abs,
    aten.angle.default: _angle,
    aten.sgn.default: _sgn,
    aten.exp.default: _exp,
    aten.complex.default: _complex,
    aten.polar.default: _polar,
    aten.view_as_complex.default: _as_complex,
    aten.view_as_real.default: _as_real,
    aten.eq.Tensor: _equal(aten.eq.Tensor, aten.logical_and.default),
    aten.ne.Tensor: _equal(aten.ne.Tensor, aten.logical_or.default),
    aten.sum.dim_IntList: _sum,
    aten.sum.default: _sum,
    aten.mean.dim: _mean,
    aten.mean.default: _mean,
    aten.where.self: _of_parts(1, 2),
    aten.clone.default: _of_parts(0),
    aten.cat.default: _of_parts(0),
    aten.slice_scatter.default: _of_parts(0, 1),
    aten.select_scatter.default: _of_parts(0, 1),
    aten.copy.default: _copied,
    aten.constant_pad_nd.default: _padded,
    to_dtype: _converted,
    aten._to_copy.default: _converted,
    aten.full.default: _filled(0),
    aten.full_like.default: _filled(0),
    aten.fill.Scalar: _filled(0),
    aten.fill.Tensor: _copied,
    aten.zeros.default: _filled(0, 0.0),
    aten.ones.default: _filled(0, 1.0),
    aten.zeros_like.default: _filled(0, 0.0),
    aten.ones_like.default: _filled(0, 1.0),
    aten.new_zeros.default: _filled(1, 0.0),
    aten.new_ones.default: _filled(1, 1.0),
    aten.new_full.default: _filled(1),
    operator.getitem: _unbound,
}
_MOVES = (
    aten.roll.default,
    aten.flip.default,
    aten.repeat.default,
    aten.index.Tensor,
    aten.gather.default,
    aten.index_select.default,
)
_LOOKS = (
    aten.alias.default,
    aten.detach.default,
    aten.expand.default,
    aten.permute.default,
    aten.transpose.int,
    aten.t.default,
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten.unsqueeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.squeeze.default,
    aten.slice.Tensor,
    aten.select.int,
    aten.unfold.default,
)
_RULES.update(dict.fromkeys((*_MOVES, *_LOOKS), _of_parts(0)))
# Whose results lie on the memory of their arguments.
_VIEWS = {*_LOOKS, aten._conj.default, aten.view_as_complex.default, operator.getitem}
