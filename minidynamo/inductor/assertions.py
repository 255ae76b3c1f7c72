"""Numbers that depend on data and that an assertion ties to other numbers.

After `torch._check(n == 5)` a ShapeEnv takes `n` for 5. A graph that is traced again under it no
longer has the assertion, which is true there; so it is made one about a tensor first.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
import torch.fx
from torch.fx.node import Node

from minidynamo import _C
from minidynamo.inductor.sizes import depends_on_data, numbers_of
from minidynamo.size_nodes import expression_node

assert _C.__name__  # the extension registers the operator
ASSERT_SIZES = torch.ops.minidynamo.assert_sizes.default
_ASSERT_SCALAR = torch.ops.aten._assert_scalar.default
_KEY = "example_value"


def keep_assertions(gm: torch.fx.GraphModule) -> str:
    """Put assertions about tensors behind what gives such numbers: the item of a tensor is equal to
    the other number, which takes its place; a tensor has these sizes. "" if that is done, else the
    number for which it cannot be, in words.
    """
    graph = gm.graph
    known = _numbers_given(graph)
    makers = [node for node in graph.nodes if _is_maker(node)]
    for node in makers:
        value = node.meta[_KEY]
        is_size = isinstance(value, torch.Tensor) and value.layout is torch.strided
        is_told = all(_is_told(number, known) for number in numbers_of(value))
        if not is_told or not (is_size or node.target == "item"):
            return f"{node} depends on data and is asserted to be {value}"
    for node in makers:
        value = node.meta[_KEY]
        is_size = isinstance(value, torch.Tensor)
        with graph.inserting_before(node.next):
            sizes = value.shape if is_size else [value]
            expected = [_expected(graph, number, known) for number in sizes]
            (_assert_sizes if is_size else _assert_item)(graph, node, expected)
    for node in graph.find_nodes(op="call_function", target=_ASSERT_SCALAR) if makers else ():
        if _is_true(node.args[0]):
            graph.erase_node(node)
    gm.recompile()
    return ""


def _numbers_given(graph: torch.fx.Graph) -> dict[Any, Node]:
    """The inputs that are symbols."""
    inputs = graph.find_nodes(op="placeholder")
    values = ((node, node.meta.get(_KEY)) for node in inputs)
    return {value.node.expr: node for node, value in values if isinstance(value, torch.SymInt)}


def _is_maker(node: Node) -> bool:
    """Whether a node gives a number that is tied to others."""
    return bool(node.meta.get("unbacked_bindings")) and any(
        map(_is_tied, numbers_of(node.meta.get(_KEY)))
    )


def _is_tied(number: Any) -> bool:
    replaced = number.node.shape_env.replacements
    return any(s in replaced and depends_on_data(s) for s in number.node._expr.free_symbols)


def _is_told(number: Any, known: Collection[Any]) -> bool:
    """Whether inputs tell what the number is asserted to be."""
    return not _is_tied(number) or all(s in known for s in number.node.expr.free_symbols)


def _is_true(condition: Any) -> bool:
    value = condition.meta.get(_KEY) if isinstance(condition, Node) else condition
    return bool(value.node.expr == True if isinstance(value, torch.SymBool) else value)  # noqa: E712


def _assert_item(graph: torch.fx.Graph, node: Node, expected: Sequence[Any]) -> None:
    (number,) = expected
    is_equal = graph.call_function(torch.eq, (node.args[0], number))
    everywhere = graph.call_method("all", (is_equal,))
    text = f"Runtime assertion failed: {node} is not {node.meta[_KEY]}"
    graph.call_function(torch._assert_async, (everywhere, text))
    node.replace_all_uses_with(number)
    graph.erase_node(node)


def _assert_sizes(graph: torch.fx.Graph, node: Node, expected: Sequence[Any]) -> None:
    graph.call_function(ASSERT_SIZES, (node, [*expected]))


def _expected(graph: torch.fx.Graph, number: Any, known: Mapping[Any, Node]) -> Any:
    """A number that is known, or the node of it."""
    if not isinstance(number, torch.SymInt):
        return number
    expr = number.node.expr
    return (
        int(expr) if expr.is_number else expression_node(graph, expr, known.__getitem__, _KEY)
    )


def gives_asserted_sizes(node: Node) -> bool:
    """Whether a node's result has sizes that `ASSERT_SIZES` is about: what it has is only known
    when it ran.
    """
    return any(user.target is ASSERT_SIZES for user in node.users)
