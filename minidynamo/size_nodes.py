"""Nodes of an FX graph that compute a symbolic number from nodes of its symbols."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.fx
from torch.fx.node import Node, map_arg
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.reference import PythonReferenceAnalysis

_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)


class NumberArithmetic(PythonReferenceAnalysis):
    """What Python's numbers compute, quotients too."""

    @staticmethod
    def int_truediv(a: Any, b: Any) -> Any:
        return a / b

    cos, sin, tan = map(staticmethod, (torch._sym_cos, torch._sym_sin, torch._sym_tan))
    cosh, sinh, tanh = map(staticmethod, (torch._sym_cosh, torch._sym_sinh, torch._sym_tanh))
    acos, asin, atan = map(staticmethod, (torch._sym_acos, torch._sym_asin, torch._sym_atan))


class NodeArithmetic(NumberArithmetic):
    """Appends what Python's numbers would compute; conversions need functions to do so."""

    @staticmethod
    def trunc_to_int(x: Any, dtype: Any) -> Any:
        return _node_of(torch.sym_int, x)

    @staticmethod
    def floor_to_int(x: Any, dtype: Any) -> Any:
        return _node_of(math.floor, x)

    @staticmethod
    def ceil_to_int(x: Any, dtype: Any) -> Any:
        return _node_of(math.ceil, x)

    @staticmethod
    def round_to_int(x: Any, dtype: Any) -> Any:
        return _node_of(round, x)

    @staticmethod
    def round_decimal(a: Any, b: Any) -> Any:
        return _node_of(round, a, b)

    @staticmethod
    def abs(x: Any) -> Any:
        return _node_of(abs, x)

    @staticmethod
    def to_dtype(x: Any, dtype: Any) -> Any:
        assert dtype == torch.float64, dtype
        return _node_of(torch.sym_float, x)


def _node_of(function: Any, x: Any, *args: Any) -> Any:
    if not isinstance(x, torch.fx.Proxy):
        return function(x, *args)
    return x.tracer.create_proxy("call_function", function, (x, *args), {})


def expression_node(
    graph: torch.fx.Graph, expr: Any, symbol_node: Callable[[Any], Node], key: str
) -> Node:
    """A node of the value of a sympy expression; the arithmetic is appended to the graph.

    symbol_node: the node of a symbol. key: where nodes keep their (symbolic) values in `meta`.
    """
    if expr.is_Symbol:
        return symbol_node(expr)
    tracer = torch.fx.proxy.GraphAppendingTracer(graph)
    symbols = {
        symbol: torch.fx.Proxy(symbol_node(symbol), tracer)
        for symbol in sorted(expr.free_symbols, key=str)
    }
    node = sympy_interp(NodeArithmetic, symbols, expr).node
    _note_value(node, key)
    return node


def _note_value(node: Node, key: str) -> None:
    if key not in node.meta:
        for arg in node.all_input_nodes:
            _note_value(arg, key)
        args = map_arg(node.args, lambda n: n.meta[key])
        node.meta[key] = node.target(*args)  # type: ignore[operator]


class SizeFunction:
    """The target of a node that computes a size from its symbols' values, through floats."""

    __name__ = "size"

    def __init__(self, expr: Any) -> None:
        self.expr = expr
        self.symbols = sorted(expr.free_symbols, key=str)

    def __call__(self, *values: int) -> int:
        known = dict(zip(self.symbols, values, strict=True))
        return int(sympy_interp(NumberArithmetic, known, self.expr))


def _fixed(number: Any) -> int | float:
    """The value of a symbolic number in this call, which becomes a guard."""
    return float(number) if isinstance(number, torch.SymFloat) else int(number)


def fold_numbers(graph: torch.fx.Graph) -> None:
    """Numbers that are made of constants alone, now that some symbols are, become constants. So do
    powers of a negative constant, which the ShapeEnv cannot bound: their exponents are guarded.
    """
    for node in list(graph.nodes):
        is_number = isinstance(node.meta.get("example_value"), _NUMBERS)
        if not is_number or getattr(node.target, "__module__", "") != "_operator":
            continue
        args = node.args
        if node.target is operator.pow and not isinstance(args[0], Node) and args[0] < 0:
            args = map_arg(args, lambda n: _fixed(n.meta["example_value"]))
        if any(isinstance(arg, Node) for arg in args):
            continue
        try:
            number = node.target(*args)
        except (ArithmeticError, ValueError):
            continue  # it raises where the graph runs
        if type(number) in (bool, int, float):
            for user in list(node.users):
                user.replace_input_with(node, number)
            graph.erase_node(node)
