"""Backward passes that are given a part of the tangents.

AOTAutograd makes one backward graph for all outputs. Of an output that the loss does not use there
is no tangent; with zeros in its place the pass would do work for nothing, need what was written to
since, and give NaN where zero meets infinity: eager does not look behind such an output at all. So
for each set of missing tangents the graph is pruned: what depends on missing ones alone is zero
(torch's own gradients are linear in the tangents), and what only leads there is left out. Backward
functions of the program are given zeros, as by eager: they may make something else of them.

    needs = Needs(graph, has_torchs_gradients(gm)) # which tangents need what
    pruned, kept = prune(module, needs, missing)   # a graph module, and the inputs that it takes

`BackwardParts` is the callable for all sets; it has them compiled as they come up.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.fx
from torch.fx import Node
from torch.utils._pytree import tree_leaves

from minidynamo.compile_lock import compiling

Part = Callable[[list[Any]], Any]
Missing = frozenset[int]
# The graphs of further sets run operator by operator: a loop over many outputs, each with a pass of
# its own, would otherwise compile one for each.
MOST_COMPILED = 4
# Where the front end makes what stands for an autograd.Function in a graph.
_OF_FUNCTIONS = "minidynamo.handlers.function_nodes"


class Needs:
    """Which tangents make a difference to which values of a backward graph.

    is_linear: whether it is in the tangents. given: its placeholders. tangents: positions of the
    tangents among them. is_prunable: whether `prune` knows the graph's operators; where it does
    not, everything is needed for each tangent.
    """

    def __init__(
        self,
        graph: torch.fx.Graph,
        is_linear: bool,
    ) -> None:
        self.given: Sequence[Node] = graph.find_nodes(op="placeholder")
        self.tangents = [i for i, node in enumerate(self.given) if _is_tangent(node)]
        self._bits = {position: 1 << i for i, position in enumerate(self.tangents)}
        self._all = (1 << len(self.tangents)) - 1
        self._behind: dict[Node, int] = {}
        self._needed: dict[Node, int] = {}
        (output,) = graph.find_nodes(op="output")
        self.results: Sequence[Any] = tree_leaves(output.args)
        if len(self.tangents) > 1:
            self._follow(graph)
        self.is_prunable = len(self.tangents) > 1 and is_linear
        self.is_prunable = self.is_prunable and all(map(self._is_known, graph.nodes))

    def _follow(
        self,
        graph: torch.fx.Graph,
    ) -> None:
        behind, needed = self._behind, self._needed
        for position, node in enumerate(self.given):
            behind[node] = self._bits.get(position, 0)
        for node in graph.nodes:
            if node.op != "placeholder":
                behind[node] = 0
                for each in node.all_input_nodes:
                    behind[node] |= behind[each]
        for result in self.results:
            if isinstance(result, Node):
                needed[result] = behind[result] or self._all
        for node in reversed(graph.nodes):
            wanted = needed.get(node, 0) if node.op != "output" else 0
            for each in node.all_input_nodes if wanted else ():
                found = wanted & behind[each] if behind[each] else wanted
                needed[each] = needed.get(each, 0) | found

    def _is_known(
        self,
        node: Node,
    ) -> bool:
        """Whether the node may be left out, or given zeros for some of its inputs."""
        if node.op in ("placeholder", "output"):
            return True
        if isinstance(node.target, torch._ops.HigherOrderOperator) or node.is_impure():
            return False
        inputs = [each for each in node.all_input_nodes if self._behind[each]]
        if is_sum(node):
            return True
        mixed = (each for each in inputs if self._behind[each] != self._behind[node])
        return all(_can_be_zeros(each.meta.get("val")) for each in mixed)

    def of_position(
        self,
        position: int,
    ) -> list[int]:
        """The tangents that need a placeholder, by their positions among the tangents."""
        count = len(self.tangents)
        if not self.is_prunable:
            return list(range(count))
        needed = self._needed.get(self.given[position], 0)
        return [i for i in range(count) if needed >> i & 1]

    def is_zero(
        self,
        value: Any,
        missing: Collection[int],
    ) -> bool:
        """Whether a value depends on tangents, all of which are missing."""
        behind = self._behind[value] if isinstance(value, Node) else 0
        return behind != 0 and not behind & self._given(missing)

    def is_needed(
        self,
        node: Node,
        missing: Collection[int],
    ) -> bool:
        """Whether a gradient depends on a value when tangents are missing."""
        return bool(self._needed.get(node, 0) & self._given(missing))

    def _given(
        self,
        missing: Collection[int],
    ) -> int:
        return self._all & ~sum(self._bits[position] for position in missing)


def has_torchs_gradients(
    gm: torch.fx.GraphModule,
) -> bool:
    """Whether no node of a captured graph brings a backward function that the program wrote."""
    return all(map(_is_torchs, gm.graph.nodes))


def _is_torchs(
    node: Node,
) -> bool:
    target: Any = node.target
    if node.op != "call_function":
        return node.op != "call_module"
    if isinstance(target, torch._ops.HigherOrderOperator):
        return False
    if isinstance(target, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return str(target).partition(".")[0] in ("aten", "prims")
    if any(isinstance(value, types.FunctionType) for value in node.args):
        return False  # it is called
    home = getattr(target, "__module__", None) or "torch"
    is_known = home.partition(".")[0] in (
        "torch",
        "_operator",
        "builtins",
        "math",
        "minidynamo",
    )
    return is_known and home != _OF_FUNCTIONS


def _is_tangent(
    node: Node,
) -> bool:
    return "tangents" in node.name and isinstance(node.meta.get("val"), torch.Tensor)


def is_sum(
    node: Node,
) -> bool:
    """Whether a node adds two tensors that lie in memory as their sum does: where one is zero, it
    is the other.
    """
    if node.target is not torch.ops.aten.add.Tensor or len(node.args) != 2 or node.kwargs:
        return False
    values = [each.meta.get("val") for each in node.args if isinstance(each, Node)]
    places = {_geometry(value) for value in (*values, node.meta.get("val"))}
    return len(values) == 2 and len(places) == 1 and None not in places


def _geometry(
    value: Any,
) -> str | None:
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    place = value.stride(), value.storage_offset()
    return str((tuple(value.shape), *place, value.dtype, value.device))


def _can_be_zeros(
    value: Any,
) -> bool:
    sizes = value.shape if isinstance(value, torch.Tensor) else (None,)
    is_known = all(type(size) is int for size in sizes)
    return is_known and value.layout is torch.strided and not value.is_quantized


def prune(
    module: torch.fx.GraphModule,
    needs: Needs,
    missing: Missing,
) -> tuple[torch.fx.GraphModule, list[int]]:
    """The graph without what missing tangents alone lead to, and the positions of the inputs that
    it takes. Gradients that depend on no other tangent are None.
    """
    graph = torch.fx.Graph()
    copies: dict[Node, Node] = {}
    kept = []
    for position, node in enumerate(needs.given):
        # Numbers tell the values of symbols.
        is_number = not isinstance(node.meta.get("val"), torch.Tensor)
        if is_number or needs.is_needed(node, missing):
            copies[node] = graph.node_copy(node)
            kept.append(position)

    def copy_of(
        node: Node,
    ) -> Node:
        if node not in copies:
            copies[node] = _zeros_node(graph, node.meta["val"])
        return copies[node]

    for node in module.graph.nodes:
        if node.op in ("placeholder", "output") or not needs.is_needed(node, missing):
            continue
        zeros = [each for each in node.all_input_nodes if needs.is_zero(each, missing)]
        if len(zeros) == 1 and is_sum(node):
            (other,) = (each for each in node.all_input_nodes if each not in zeros)
            copies[node] = copies[other]
        else:
            copies[node] = graph.node_copy(node, copy_of)
    results = [None if needs.is_zero(each, missing) else each for each in needs.results]
    graph.output(
        tuple(copies[each] if isinstance(each, Node) else each for each in results),
    )
    return torch.fx.GraphModule(module, graph), kept


def _zeros_node(
    graph: torch.fx.Graph,
    wanted: torch.Tensor,
) -> Node:
    """Zeros of sizes that are known, with dimensions in the order of the strides."""
    order = sorted(range(wanted.dim()), key=wanted.stride, reverse=True)
    sizes = [wanted.shape[i] for i in order]
    options = {"dtype": wanted.dtype, "device": wanted.device, "pin_memory": False}
    back = [order.index(i) for i in range(wanted.dim())]
    full, permute = torch.ops.aten.full.default, torch.ops.aten.permute.default
    mode: Any = wanted.fake_mode  # type: ignore[attr-defined]
    with mode:
        value = full(sizes, 0, **options)
        turned = permute(value, back)
    made = graph.call_function(full, (sizes, 0), options)
    made.meta["val"] = value
    if order != sorted(order):
        made = graph.call_function(permute, (made, back))
        made.meta["val"] = turned
    return made


class Taking:
    """A compiled graph that takes some of the inputs, in one list."""

    def __init__(
        self,
        compiled: Callable[[list[Any]], Any],
        kept: Sequence[int],
    ) -> None:
        self.compiled = compiled
        self.kept = kept

    def __call__(
        self,
        inputs: list[Any],
    ) -> Any:
        given = [inputs[i] for i in self.kept]
        inputs.clear()
        return self.compiled(given)


class BackwardParts:
    """A backward graph, by AOTAutograd's calling convention, for tangents some of which are None.

    tangents: their positions among the inputs. make: has a graph for some missing ones compiled.
    """

    _boxed_call = True

    def __init__(
        self,
        tangents: Sequence[int],
        make: Callable[[Missing], Part],
    ) -> None:
        self._tangents = tangents
        self._make = make
        self._parts: dict[Missing, Part] = {}

    def __call__(
        self,
        inputs: list[Any],
    ) -> Any:
        return self.part(frozenset(i for i in self._tangents if inputs[i] is None))(inputs)

    def part(
        self,
        missing: Missing,
    ) -> Part:
        """What takes inputs with these tangents missing."""
        if missing not in self._parts:
            with compiling():
                if missing not in self._parts:
                    self._parts[missing] = self._make(missing)
        return self._parts[missing]


# -- graphs that are not pruned --------------------------------------------------------------------


class Geometry(NamedTuple):
    """Of a tensor."""

    shape: Sequence[Any]
    stride: Sequence[Any]
    dtype: torch.dtype
    device: torch.device


class Filling:
    """The whole graph with zeros for missing tangents; gradients of no other are None."""

    def __init__(
        self,
        compiled: Callable[[list[Any]], Any],
        needs: Needs,
        missing: Missing,
    ) -> None:
        self._compiled = compiled
        self._given = needs.given
        self._missing = {i: _geometry_of(needs.given[i].meta["val"]) for i in missing}
        self._unused = [
            i for i, each in enumerate(needs.results) if needs.is_zero(each, missing)
        ]

    def __call__(
        self,
        inputs: list[Any],
    ) -> Any:
        known = _sizes(self._given, inputs)
        for position, wanted in self._missing.items():
            inputs[position] = _zeros(wanted, known)
        results = list(self._compiled(inputs))
        for position in self._unused:
            results[position] = None
        return tuple(results)


def _geometry_of(
    value: torch.Tensor,
) -> Geometry:
    return Geometry(value.shape, value.stride(), value.dtype, value.device)


def _sizes(
    given: Sequence[Node],
    inputs: Sequence[Any],
) -> dict[Any, int]:
    """The values of the symbols that inputs show."""
    known: dict[Any, int] = {}
    for node, value in zip(given, inputs, strict=True):
        fake = node.meta.get("val")
        if isinstance(fake, torch.SymInt):
            known[fake.node.expr] = value
        elif isinstance(fake, torch.Tensor) and value is not None:
            for size, actual in zip(fake.shape, value.shape, strict=True):
                if isinstance(size, torch.SymInt):
                    known[size.node.expr] = actual
    return known


def _zeros(
    wanted: Geometry,
    known: Mapping[Any, int],
) -> torch.Tensor:
    def number(
        size: Any,
    ) -> int:
        return int(size.node.expr.xreplace(known)) if isinstance(size, torch.SymInt) else size

    sizes, strides = map(number, wanted.shape), map(number, wanted.stride)
    made = torch.empty_strided(
        tuple(sizes), tuple(strides), dtype=wanted.dtype, device=wanted.device
    )
    return made.zero_()
