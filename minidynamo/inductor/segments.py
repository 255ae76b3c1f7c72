"""Graphs with numbers that depend on data, symbolic floats, or operators with graphs of their own:
compiled piece by piece.

A plan's sizes come from its inputs. So an operator whose result has a size or number of its own
(`nonzero`, `item`), arithmetic on symbolic floats, and assertions about them run as they are,
between compiled pieces: `split(graph)` assigns each node to a level, odd ones compiled, even ones
run, and `Segments` calls them in turn. Tensor operators take symbolic floats as 0-d tensors.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import sympy
import torch
import torch.fx
from torch.fx import Node

from minidynamo import _C
from minidynamo.inductor.assertions import ASSERT_SIZES, gives_asserted_sizes
from minidynamo.inductor.branches import DRAWS, is_higher_order
from minidynamo.inductor.lowering.promotion import compute_type
from minidynamo.inductor.size_floats import WITH_TENSOR, takes_tensor
from minidynamo.inductor.sizes import (
    depends_on_data,
    is_composed,
    is_in_plans,
    numbers_of,
)
from minidynamo.inductor.symbolic import Undecided

aten = torch.ops.aten

Compile = Callable[[torch.fx.GraphModule], Callable[..., Any]]
_FLOATS = (torch.SymFloat, torch.SymBool)
_FOR_SIZES = "for_sizes"


def needs_segments(graph: torch.fx.GraphModule) -> bool:
    """Whether a plan of the whole graph would lack numbers that only running it gives."""
    _mark_floats_for_sizes(graph.graph)
    nodes = [node for node in graph.graph.nodes if _FOR_SIZES not in node.meta]
    values = [node.meta.get("val") for node in nodes]
    has_numbers = any(isinstance(value, _FLOATS) for value in values) or _symbols(values)
    return bool(has_numbers) or any(map(_is_called, nodes))


def _is_called(node: Node) -> bool:
    """Whether it runs between pieces whatever its values are."""
    return is_higher_order(node) or gives_asserted_sizes(node)


def _mark_floats_for_sizes(graph: torch.fx.Graph) -> None:
    """Note floats that sizes alone are computed from, which plans do by themselves."""
    made = [node for node in graph.nodes if node.op == "call_function"]
    composed = {n for n in made if is_composed(_value(n), map(_value, n.all_input_nodes))}
    found = {node for node in made if _is_float(node) and not _symbols([_value(node)])}
    found -= composed
    sizes = {node for node in made if is_in_plans(_value(node))}
    while True:
        floats = {
            node
            for node in found
            if all(user in found or user in sizes for user in node.users)
            and all(arg in found for arg in node.all_input_nodes if _is_float(arg))
        }
        if len(floats) == len(found):
            break
        found = floats
    for node in found:
        node.meta[_FOR_SIZES] = True


def _value(node: Any) -> Any:
    return node.meta.get("val") if isinstance(node, Node) else node


def _is_float(node: Node) -> bool:
    return isinstance(_value(node), torch.SymFloat)


def _is_number(node: Node) -> bool:
    """Whether it computes a size from others: either kind of level has what it takes."""
    return all(isinstance(_value(n), torch.SymInt) for n in (node, *node.all_input_nodes))


def _symbols(values: Iterable[Any]) -> set[Any]:
    """The symbols of numbers that depend on data."""
    expressions = {number.node.expr for value in values for number in numbers_of(value)}
    symbols = {symbol for expression in expressions for symbol in expression.free_symbols}
    return {symbol for symbol in symbols if depends_on_data(symbol)}


def _is_run(node: Node) -> bool:
    """Whether it makes or takes what plans do not have."""
    if node.op != "call_function":
        return False
    if node.target is operator.getitem:
        return _is_run(node.args[0])  # type: ignore[arg-type]
    if _FOR_SIZES in node.meta:
        return False
    if is_higher_order(node):
        return True
    given = [_value(arg) for arg in node.all_input_nodes if _FOR_SIZES not in arg.meta]
    if any(isinstance(value, _FLOATS) for value in (_value(node), *given)):
        return True
    if node.target in (
        aten.sym_constrain_range.default,
        aten.sym_constrain_range_for_size.default,
        aten.sym_storage_offset.default,  # of a view at a position that depends on data
        ASSERT_SIZES,
    ):
        return True
    return gives_asserted_sizes(node) or bool(_symbols([_value(node)]) - _symbols(given))


# -- floats as tensors -----------------------------------------------------------------------------


def _floats_to_tensors(graph: torch.fx.Graph) -> None:
    """Give operators that can take them 0-d tensors for symbolic floats."""
    made: dict[tuple[Node, torch.dtype], Node] = {}
    for node in list(graph.nodes):
        if not takes_tensor(node):
            continue
        number, fake = node.args[1], node.meta["val"]
        assert isinstance(number, Node)
        key = number, compute_type(fake.dtype)
        if key not in made:
            made[key] = _as_tensor(graph, number, key[1], fake)
        node.update_arg(1, made[key])
        node.target = WITH_TENSOR[node.target]


def _as_tensor(
    graph: torch.fx.Graph,
    number: Node,
    dtype: torch.dtype,
    like: torch.Tensor,
) -> Node:
    options = {"dtype": dtype, "device": like.device}
    following = number.next
    while following.op == "placeholder":
        following = following.next
    with graph.inserting_before(following):
        node = graph.call_function(_float_tensor, (number,), options)
    node.meta["val"] = like.new_empty((), dtype=dtype)
    return node


def _float_tensor(number: float, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """The number rounded to `dtype`: to infinity, which `scalar_tensor` refuses, if it is large."""
    is_large = abs(number) > torch.finfo(dtype).max
    made = torch.scalar_tensor(
        number,
        dtype=torch.float64 if is_large else dtype,
        device=device,
    )
    return made.to(dtype) if is_large else made


# -- levels ----------------------------------------------------------------------------------------


def _levels(graph: torch.fx.Graph) -> list[list[Node]]:
    """The nodes of each level, in order; those of odd levels can be compiled.

    Draws of random numbers stay in order, and a write comes after all that is before it, and before
    all that is after it.

    Raises:
        Undecided: the order of effects would change.
    """
    level: dict[Node, int] = {}
    found: list[list[Node]] = []
    draws, barrier = 0, 0
    for node in graph.nodes:
        if node.op in ("placeholder", "get_attr", "output"):
            level[node] = -1
            continue
        tags = getattr(node.target, "tags", ())
        schema = getattr(node.target, "_schema", None)
        kind = 0 if _is_run(node) else 1
        given = node.all_input_nodes
        at = max([barrier, *(level[arg] for arg in given)])
        draw = torch.Tag.nondeterministic_seeded in tags or DRAWS in node.meta
        write = schema is not None and schema.is_mutable
        if write:
            at = max([at, *level.values()])
        elif draw:
            at = max(at, draws)
        fits = at % 2 == kind or (_is_number(node) and any(level[a] == at for a in given))
        level[node] = at if fits else at + 1
        if write and _reads_elsewhere(node, level):
            level[node] += 2
        draws = max(draws, level[node]) if draw else draws
        barrier = level[node] if write else barrier
        while len(found) <= level[node]:
            found.append([])
        found[level[node]].append(node)
    return found


def _reads_elsewhere(
    write: Node,
    level: dict[Node, int],
) -> bool:
    """Whether the piece that a write would be in reads a view, made by another piece, of what is
    written to: a piece does not know that tensors handed to it share memory.

    Raises:
        Undecided: the write reads such a view itself, or something behind it does.
    """
    target = write.args[0]
    if not isinstance(target, Node) or target.op != "placeholder":
        raise Undecided(f"the order of {write.target} among pieces of a graph")
    for view in _views_of(target, write):
        behind = [view, *view.users]
        if view in write.all_input_nodes or any(node not in level for node in behind):
            raise Undecided(f"a view of {target}, which is written to")
        is_read = any(level[user] == level[write] for user in view.users)
        if level[view] != level[write] and is_read:
            return True
    return False


def _views_of(
    node: Node,
    write: Node,
) -> Iterator[Node]:
    """What may share the memory of a node's tensor, but for the result of `write`."""
    for user in node.users:
        schema = getattr(user.target, "_schema", None)
        returns = [] if schema is None else schema.returns
        if user is write or user.op == "output":
            continue
        if schema is None or any(value.alias_info is not None for value in returns):
            yield user
            yield from _views_of(user, write)


def split(
    graph: torch.fx.GraphModule,
    compile_piece: Compile,
) -> Segments:
    """The graph as compiled pieces and operators between them. Raises Undecided."""
    _floats_to_tensors(graph.graph)
    levels = [(n % 2 == 1, nodes) for n, nodes in enumerate(_levels(graph.graph)) if nodes]
    inputs = _inputs(graph.graph, levels)
    pieces = []
    for position, (is_compiled, nodes) in enumerate(levels):
        inside, given = set(nodes), inputs[position]
        wanted = {node for later in inputs[position + 1 :] for node in later}
        results = [n for n in nodes if n in wanted or not inside.issuperset(n.users)]
        module = _module(graph, nodes, given, results)
        # What runs may be Python of torch's: it is not for the frame hook.
        has_tensors = any(not isinstance(_value(n), (int, torch.SymInt)) for n in nodes)
        has_kernels = (
            is_compiled and has_tensors
        )  # sizes are read of whatever an operator gives
        call = compile_piece(module) if has_kernels else _C.disabled(module.forward)
        given = [node for node in given if node.op != "get_attr"]
        dense = [
            (place, _dense_order(node))
            for place, node in enumerate(given)
            if is_compiled and isinstance(_value(node), torch.Tensor) and not _is_exact(node)
        ]
        pieces.append((call, given, results, dense))
    return Segments(graph, pieces)


def _inputs(
    graph: torch.fx.Graph,
    levels: Sequence[tuple[bool, list[Node]]],
) -> list[list[Node]]:
    """What each piece is given."""
    before = list(graph.find_nodes(op="placeholder"))
    inputs = []
    for is_compiled, nodes in levels:
        inside = set(nodes)
        operands = (arg for node in nodes for arg in node.all_input_nodes)
        given = list(dict.fromkeys(arg for arg in operands if arg not in inside))
        inputs.append([*given, *_sizes_unknown(before, nodes, given)] if is_compiled else given)
        before += nodes
    return inputs


def _sizes_unknown(
    before: Sequence[Node],
    nodes: Sequence[Node],
    given: Sequence[Node],
) -> list[Node]:
    """The numbers before a piece that it needs besides what it is given."""
    values = [_value(node) for node in (*nodes, *given)]
    needed = {symbol for value in values for n in numbers_of(value) for symbol in _free(n)}
    shown = {n.node.expr for node in given for n in numbers_of(_value(node))}
    found: dict[Any, Node] = {}
    for node in before:
        number = _value(node)
        if isinstance(number, torch.SymInt) and number.node.expr in needed - shown:
            found.setdefault(number.node.expr, node)
    return [node for node in found.values() if node not in given]


def _free(number: Any) -> Iterable[Any]:
    symbols: Iterable[Any] = number.node.expr.free_symbols
    return symbols


def _module(
    graph: torch.fx.GraphModule,
    nodes: Sequence[Node],
    given: Sequence[Node],
    results: Any,
) -> torch.fx.GraphModule:
    piece = torch.fx.Graph()
    copies: dict[Node, Node] = {}
    for node in given:
        if node.op != "get_attr":
            copies[node] = piece.placeholder(node.name)
            copies[node].meta = dict(node.meta)
    for node in given:
        if node.op == "get_attr":
            copies[node] = piece.node_copy(node)
    for node in nodes:
        copies[node] = piece.node_copy(node, copies.__getitem__)
    piece.output(tuple(copies[node] for node in results))
    return torch.fx.GraphModule(graph, piece)


def _is_exact(node: Node) -> bool:
    """Whether a tensor is laid out as its fake tensor is: not what an operator may lay out as it
    likes, but a view of memory that is known is.
    """
    if not _is_run(node):
        return True
    schema = getattr(node.target, "_schema", None)
    is_view = schema is not None and any(r.alias_info is not None for r in schema.returns)
    return is_view and isinstance(node.args[0], Node) and _is_exact(node.args[0])


def _dense_order(node: Node) -> tuple[int, ...]:
    """The dimensions of a fake result from the outermost to the innermost. The operator may lay out
    its result otherwise, pieces are compiled for this order.
    """
    fake = _value(node)
    order: list[int] = []
    expected: Any = 1
    while len(order) < fake.dim():
        left = (dim for dim in reversed(range(fake.dim())) if dim not in order)
        dim = next((dim for dim in left if _is_same(fake.stride(dim), expected)), None)
        if dim is None:
            raise Undecided(f"the strides of {node}")
        order.insert(0, dim)
        expected = expected * fake.shape[dim]
    return tuple(order)


def _laid_out(
    tensor: torch.Tensor,
    order: tuple[int, ...],
) -> torch.Tensor:
    if order == tuple(range(len(order))):
        return tensor.contiguous()
    inverse = sorted(range(len(order)), key=order.__getitem__)
    return tensor.permute(order).contiguous().permute(inverse)


def _is_same(
    a: Any,
    b: Any,
) -> bool:
    """Whether two steps are equal, if no size is 0."""
    first, second = (getattr(getattr(n, "node", None), "expr", n) for n in (a, b))
    return bool(_of_some(first) == _of_some(second))


def _of_some(step: Any) -> Any:
    is_number = not isinstance(step, sympy.Basic)
    return step if is_number else step.replace(_is_size_or_one, lambda size: size.args[1])


def _is_size_or_one(part: Any) -> bool:
    return type(part).__name__ == "Max" and part.args[0] == 1 and len(part.args) == 2


class Segments:
    """Calls the pieces in turn."""

    def __init__(
        self,
        graph: torch.fx.GraphModule,
        pieces: Sequence[Any],
    ) -> None:
        nodes = list(graph.graph.nodes)
        slots = {node: position for position, node in enumerate(nodes)}
        self._size = len(nodes)
        self._placeholders = [slots[n] for n in nodes if n.op == "placeholder"]
        self._pieces = [
            (
                call,
                [slots[n] for n in given],
                [slots[n] for n in results],
                dense,
            )
            for call, given, results, dense in pieces
        ]
        self._constants = [
            (slots[n], operator.attrgetter(str(n.target))(graph))
            for n in nodes
            if n.op == "get_attr"
        ]
        self._outputs = [
            (slots[value], None) if isinstance(value, Node) else (None, value)
            for value in nodes[-1].args[0]
        ]

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        values: list[Any] = [None] * self._size
        for slot, value in zip(self._placeholders, inputs, strict=True):
            values[slot] = value
        for slot, value in self._constants:
            values[slot] = value
        for call, given, results, dense in self._pieces:
            args = [values[slot] for slot in given]
            for position, order in dense:
                args[position] = _laid_out(args[position], order)
            for slot, value in zip(results, call(*args), strict=True):
                values[slot] = value
        return tuple(other if slot is None else values[slot] for slot, other in self._outputs)
