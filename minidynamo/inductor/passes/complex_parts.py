"""Complex numbers taken apart: what `complex_numbers` rewrites a graph with."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

import torch
import torch.fx
from torch._dispatch.python import enable_python_dispatcher
from torch.fx.experimental.symbolic_shapes import statically_known_true, sym_eq

from minidynamo.inductor.ir import OVERWRITTEN
from minidynamo.inductor.passes.narrow_products import call, to_dtype

aten = torch.ops.aten
Real: TypeAlias = torch.fx.Node | float
Pair: TypeAlias = tuple[Real, Real]


def is_complex(
    value: Any,
) -> bool:
    """Whether it is a node whose result are complex numbers that have parts."""
    fake = value.meta.get("val") if isinstance(value, torch.fx.Node) else None
    return isinstance(fake, torch.Tensor) and fake.dtype in (torch.complex64, torch.complex128)


class Splitter:
    """One graph's rewriting. Nodes are made in front of `anchor`, for `node`."""

    def __init__(
        self,
        graph: torch.fx.Graph,
        rules: Mapping[Any, Rule],
        views: Collection[Any],
    ) -> None:
        """rules: for operators; views: operators whose results lie on their arguments' memory."""
        self.graph = graph
        self.rules, self.views = rules, views
        self.pairs: dict[torch.fx.Node, Pair] = {}
        self.split: list[torch.fx.Node] = []
        # Computed numbers, with what followed them.
        self.computed: dict[torch.fx.Node, torch.fx.Node] = {}
        self.node = self.anchor = next(iter(graph.nodes))

    def run(
        self,
    ) -> None:
        for node in list(self.graph.nodes):
            if node.op == "call_function":
                self.visit(node)
        # Users before what they use: what only split nodes read is dead when its turn comes.
        dead: dict[torch.fx.Node, None] = {}
        for node in reversed(self.split):
            is_read = any(user not in dead for user in node.users)
            if is_read and node in self.computed:
                self.put_together(node, self.computed[node])
            if not is_read or node in self.computed:
                dead[node] = None
        for node in dead:
            self.graph.erase_node(node)

    def visit(
        self,
        node: torch.fx.Node,
    ) -> None:
        fake, rule = node.meta.get("val"), self.rules.get(node.target)
        inputs = [
            n for n in node.all_input_nodes if isinstance(n.meta.get("val"), torch.Tensor)
        ]
        complex_inputs = [n for n in inputs if n.meta["val"].is_complex()]
        if rule is None or not (complex_inputs or is_complex(node)) or OVERWRITTEN in node.meta:
            return
        if not isinstance(fake, torch.Tensor) or fake.is_neg() or fake.layout != torch.strided:
            return
        self.node, self.anchor = node, node.next
        if any(self.parts(n) is None for n in complex_inputs):
            return
        with fake.fake_mode, torch.no_grad(), enable_python_dispatcher():
            result = rule(self, node)
            if isinstance(result, tuple) and is_complex(node):
                self.take_pair(node, result)
            elif isinstance(result, torch.fx.Node):
                self.replace(node, result)

    def take_pair(
        self,
        node: torch.fx.Node,
        pair: Pair,
    ) -> None:
        shape = node.meta["val"].shape
        for part in pair:
            if not isinstance(part, float) and not is_shaped(part, shape):
                return
        if node.target not in self.views:
            pair = self.laid_out(pair[0]), self.laid_out(pair[1])
            self.computed[node] = self.anchor
        self.pairs[node] = pair
        self.split.append(node)

    def laid_out(
        self,
        part: Real,
    ) -> Real:
        """A part of the node with the node's strides, or those of one column of rows of two: views
        of these are possible alike.
        """
        fake = self.node.meta["val"]
        if isinstance(part, float):
            return part
        for step in (1, 2):
            strides = tuple(step * n for n in fake.stride())
            if statically_known_true(sym_eq(part.meta["val"].stride(), strides)):
                return part
        copy = self(aten.clone.default, part)
        copy.meta["val"] = fake.new_empty_strided(
            fake.shape, fake.stride(), dtype=self.real_dtype()
        )
        return copy

    def replace(
        self,
        node: torch.fx.Node,
        result: torch.fx.Node,
    ) -> None:
        fake, made = node.meta["val"], result.meta["val"]
        if made.dtype == fake.dtype and is_shaped(result, fake.shape):
            if not statically_known_true(sym_eq(made.stride(), fake.stride())):
                result = self(aten.clone.default, result)
                result.meta["val"] = fake
            node.replace_all_uses_with(result)
            self.split.append(node)

    def put_together(
        self,
        node: torch.fx.Node,
        anchor: torch.fx.Node,
    ) -> None:
        """What an operator that takes complex numbers reads in place of a computed node."""
        self.node, self.anchor, fake = node, anchor, node.meta["val"]
        with fake.fake_mode, torch.no_grad(), enable_python_dispatcher():
            rows = self.rows(self.pairs[node])
            strides = [2 * step for step in fake.stride()]
            rows.meta["val"] = fake.new_empty_strided(
                (*fake.shape, 2), (*strides, 1), dtype=fake.dtype.to_real()
            )
            whole = self(aten.view_as_complex.default, rows)
        whole.meta["val"] = fake
        node.replace_all_uses_with(whole)

    # -- nodes ------------------------------------------------------------------------------------
    def __call__(
        self,
        op: Any,
        *args: Any,
        **kwargs: Any,
    ) -> torch.fx.Node:
        made = call(self.graph, self.anchor, op, *args, **kwargs)
        made.meta = {**self.node.meta, "val": made.meta["val"]}
        return made

    def parts(
        self,
        value: Any,
    ) -> Pair | None:
        """The real and the imaginary part of an argument; None: they cannot be told apart."""
        if isinstance(value, complex):
            return value.real, value.imag
        if not isinstance(value, torch.fx.Node):
            return float(value), 0.0
        fake = value.meta.get("val")
        if isinstance(fake, (torch.SymInt, torch.SymFloat)):
            kwargs = {"dtype": self.real_dtype(), "device": self.node.meta["val"].device}
            return self(aten.scalar_tensor.default, value, **kwargs), 0.0
        if value in self.pairs or not fake.dtype.is_complex:
            return self.pairs.get(value, (value, 0.0))
        if not is_complex(value) or fake.layout != torch.strided or OVERWRITTEN in value.meta:
            return None
        with fake.fake_mode, torch.no_grad(), enable_python_dispatcher():
            seen = self(aten._conj.default, value) if fake.is_conj() else value
            pair = self.columns(self(aten.view_as_real.default, seen))
            if fake.is_conj():
                pair = pair[0], self.neg(pair[1])
        self.pairs[value] = pair
        return pair

    def operands(
        self,
        *values: Any,
    ) -> list[Pair]:
        """The parts of what an operator promotes to its result's dtype."""
        dtype = self.real_dtype()
        pairs = [self.parts(value) for value in values]
        return [(self.cast(re, dtype), self.cast(im, dtype)) for re, im in pairs]  # type: ignore[misc]

    def real_dtype(
        self,
    ) -> torch.dtype:
        dtype: torch.dtype = self.node.meta["val"].dtype
        return dtype.to_real() if dtype.is_complex else dtype

    def cast(
        self,
        part: Real,
        dtype: torch.dtype,
    ) -> Real:
        if isinstance(part, float) or part.meta["val"].dtype == dtype:
            return part
        return self(to_dtype, part, dtype)

    def columns(
        self,
        rows: torch.fx.Node,
    ) -> Pair:
        """The parts of numbers in rows of two."""
        return self.column(rows, 0), self.column(rows, 1)

    def column(
        self,
        rows: Any,
        position: int,
    ) -> torch.fx.Node:
        last = rows.meta["val"].dim() - 1
        while rows.target is aten.select_scatter.default and OVERWRITTEN not in rows.meta:
            base, source, dim, at = rows.args
            if dim % (last + 1) != last or type(at) is not int:
                break
            if at % 2 == position:
                return source  # type: ignore[no-any-return]
            rows = base
        return self(aten.select.int, rows, last, position)

    def rows(
        self,
        pair: Pair,
    ) -> torch.fx.Node:
        parts = [self(aten.unsqueeze.default, part, -1) for part in self.tensors(pair)]
        return self(aten.cat.default, parts, -1)

    def tensors(
        self,
        pair: Pair,
    ) -> tuple[torch.fx.Node, torch.fx.Node]:
        """The parts, numbers in the shape of the other part."""
        re, im = pair
        if isinstance(re, float):
            re = self(aten.full_like.default, im, re)
        if isinstance(im, float):
            im = self(aten.full_like.default, re, im)
        return re, im

    def number(
        self,
        value: float,
        dtype: torch.dtype | None = None,
    ) -> torch.fx.Node:
        device = self.node.meta["val"].device
        return self(
            aten.full.default, [], value, dtype=dtype or self.real_dtype(), device=device
        )

    def tensor(
        self,
        part: Real,
    ) -> torch.fx.Node:
        """A number as a tensor without dimensions."""
        return self.number(part) if isinstance(part, float) else part

    # -- arithmetic of parts ----------------------------------------------------------------------
    def add(
        self,
        x: Real,
        y: Real,
    ) -> Real:
        return self._commuted(operator.add, aten.add.Tensor, x, y)

    def sub(
        self,
        x: Real,
        y: Real,
    ) -> Real:
        if isinstance(x, float):
            return x - y if isinstance(y, float) else self(aten.rsub.Scalar, y, x)
        return self(aten.sub.Tensor, x, y)

    def mul(
        self,
        x: Real,
        y: Real,
    ) -> Real:
        return self._commuted(operator.mul, aten.mul.Tensor, x, y)

    def _commuted(
        self,
        combine: Callable[[float, float], float],
        op: Any,
        x: Real,
        y: Real,
    ) -> Real:
        """An operator whose operands may change places: it takes a tensor first."""
        if isinstance(x, float):
            return combine(x, y) if isinstance(y, float) else self(op, y, x)
        return self(op, x, y)

    def neg(
        self,
        x: Real,
    ) -> Real:
        return -x if isinstance(x, float) else self(aten.neg.default, x)

    def where(
        self,
        condition: torch.fx.Node,
        x: Real,
        y: Real,
    ) -> torch.fx.Node:
        x, y = self.tensor(x), self.tensor(y)
        return self(aten.where.self, condition, x, y)

    def product(
        self,
        x: Pair,
        y: Pair,
    ) -> Pair:
        (a, b), (c, d) = x, y
        re = self.sub(self.mul(a, c), self.mul(b, d))
        return re, self.add(self.mul(a, d), self.mul(b, c))

    def quotient(
        self,
        x: Pair,
        y: Pair,
    ) -> Pair:
        """By the larger part of the divisor first, as c10::complex divides (Smith, 1962)."""
        (a, b), (c, d) = x, self.tensors(y)
        wide, high = self(aten.abs.default, c), self(aten.abs.default, d)
        is_wide = self(aten.ge.Tensor, wide, high)
        ratio = self.where(is_wide, self(aten.div.Tensor, d, c), self(aten.div.Tensor, c, d))
        size = self.where(
            is_wide, self.add(c, self.mul(d, ratio)), self.add(self.mul(c, ratio), d)
        )
        return self._scaled(
            a, b, ratio, self(aten.reciprocal.default, size), (wide, high), is_wide
        )

    def _scaled(
        self,
        a: Real,
        b: Real,
        ratio: torch.fx.Node,
        scale: torch.fx.Node,
        sizes: tuple[torch.fx.Node, torch.fx.Node],
        is_wide: torch.fx.Node,
    ) -> Pair:
        by_ratio = self.mul(a, ratio), self.mul(b, ratio)
        re = self.where(is_wide, self.add(a, by_ratio[1]), self.add(by_ratio[0], b))
        im = self.where(is_wide, self.sub(b, by_ratio[0]), self.sub(by_ratio[1], a))
        is_zero = self(
            aten.logical_and.default, *(self(aten.eq.Scalar, size, 0.0) for size in sizes)
        )
        a, b = self.tensor(a), self.tensor(b)
        over_zero = [
            self(aten.div.Tensor, v, size) for v, size in zip((a, b), sizes, strict=True)
        ]
        return (
            self.where(is_zero, over_zero[0], self.mul(re, scale)),
            self.where(is_zero, over_zero[1], self.mul(im, scale)),
        )

    def quotient_by_real(
        self,
        x: Pair,
        divisor: torch.fx.Node,
    ) -> Pair:
        """`quotient`, where the divisor's imaginary part is zero."""
        a, b = x
        ratio = self(aten.div.Tensor, self.number(0.0), divisor)
        size = self.add(divisor, self.mul(ratio, 0.0))
        scale = self(aten.reciprocal.default, size)
        re, im = self.add(a, self.mul(b, ratio)), self.sub(b, self.mul(a, ratio))
        is_zero = self(aten.eq.Scalar, divisor, 0.0)
        first, second = (self.tensor(part) for part in (a, b))
        magnitude = self(aten.abs.default, divisor)
        return (
            self.where(is_zero, self(aten.div.Tensor, first, magnitude), self.mul(re, scale)),
            self.where(is_zero, self(aten.div.Tensor, second, magnitude), self.mul(im, scale)),
        )


def is_shaped(
    node: torch.fx.Node,
    shape: Sequence[Any],
) -> bool:
    """Whether a tensor is known to have these sizes."""
    return bool(statically_known_true(sym_eq(tuple(node.meta["val"].shape), tuple(shape))))


# Gives the parts of a node's result, or the result if it is real; None where it cannot.
Rule: TypeAlias = Callable[[Splitter, torch.fx.Node], Any]
