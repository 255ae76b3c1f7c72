"""Symbolic numbers of a graph that is captured: which nodes compute them.

Sizes are computed from their expressions, by integer arithmetic. Floats are computed by the steps
of the program: an expression does not tell in which order it rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx
from torch.fx.node import Node

from minidynamo.inductor.sizes import has_floats, is_in_plans
from minidynamo.size_nodes import SizeFunction, expression_node

aten = torch.ops.aten


class NotCapturable(Exception):
    """The graph needs AOTAutograd; the message says why."""


class NumberNodes:
    """Appends nodes of symbolic numbers to a graph whose placeholders have their values as
    `meta["val"]`.
    """

    def __init__(self, graph: torch.fx.Graph) -> None:
        self.composes_floats = False  # so sizes of floats are not what their expressions are
        self._graph = graph
        self._symbols: dict[Any, Node] = {}
        self._steps: dict[int, tuple[torch.SymFloat, Callable[..., Any], Sequence[Any]]] = {}
        self._made: dict[int, Node] = {}

    def note(
        self,
        number: torch.SymFloat,
        function: Callable[..., Any],
        args: Sequence[Any],
    ) -> None:
        """`number` is what a step of the program gives, a function of numbers. `float()` of a float
        is no step: it gives the number itself.
        """
        if any(isinstance(arg, torch.SymFloat) and arg.node is number.node for arg in args):
            return
        self._steps.setdefault(id(number.node), (number, function, args))

    def node(
        self,
        number: torch.SymInt | torch.SymFloat,
    ) -> Node | int:
        """A node that computes a symbolic number, or the number, if that is known by now.

        Raises:
            NotCapturable: it depends on what no input tells, or on floats in an unknown way.
        """
        if isinstance(number, torch.SymFloat):
            return self._float_node(number)
        expr = number.node.expr
        if expr.is_Symbol:
            return self._symbol_node(expr)
        if expr.is_number and expr.is_integer:
            return int(expr)
        if not has_floats(expr):
            node = expression_node(self._graph, expr, self._symbol_node, "val")
        elif self.composes_floats or not is_in_plans(number):
            raise NotCapturable(f"a plan may not compute {expr} as the program does")
        else:
            compute = SizeFunction(expr)
            args = tuple(map(self._symbol_node, compute.symbols))
            node = self._graph.call_function(compute, args)
        node.meta["val"] = number
        return node

    def _float_node(
        self,
        number: torch.SymFloat,
    ) -> Node:
        key = id(number.node)
        if key not in self._made:
            if key not in self._steps:
                return self._given(number)
            _, function, args = self._steps[key]
            node = self._graph.call_function(function, tuple(map(self._operand, args)))
            node.meta["val"] = number
            self._made[key] = node
        return self._made[key]

    def _given(
        self,
        number: torch.SymFloat,
    ) -> Node:
        for node in self._graph.find_nodes(op="placeholder"):
            value = node.meta["val"]
            if isinstance(value, torch.SymFloat) and value.node is number.node:
                self._made[id(number.node)] = node
                return node
        raise NotCapturable(f"no step of the program gives {number}")

    def _operand(
        self,
        value: Any,
    ) -> Any:
        if isinstance(value, (torch.SymInt, torch.SymFloat)):
            return self.node(value)
        if isinstance(value, (int, float)):
            return value
        raise NotCapturable(f"a float of a {type(value).__name__}")

    def _symbol_node(
        self,
        symbol: Any,
    ) -> Node:
        if symbol not in self._symbols:
            for node in self._graph.find_nodes(op="placeholder"):
                self._bind_symbols(node)
        if symbol not in self._symbols:
            raise NotCapturable(f"no input gives the value of {symbol}")
        return self._symbols[symbol]

    def _bind_symbols(
        self,
        node: Node,
    ) -> None:
        value = node.meta["val"]
        if isinstance(value, torch.SymInt):
            self._symbols.setdefault(value.node.expr, node)
            return
        for dim, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            if isinstance(size, torch.SymInt) and size.node.expr not in self._symbols:
                size_of = self._graph.call_function(aten.sym_size.int, (node, dim))
                size_of.meta["val"] = size
                self._symbols[size.node.expr] = size_of
