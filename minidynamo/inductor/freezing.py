"""The option `freezing`: what depends on parameters and buffers alone is computed once.

    frozen = freeze(graph, inputs, frozen_positions)    # None: nothing to gain
    call = FrozenCall(frozen, compiled)                 # compiled: of frozen.graph

The aten graph is split in two. `prepare` takes the parameters and returns what depends on them and
nothing else: weights that batch norm is folded into, weights packed as oneDNN wants them. `graph`
takes those besides its own inputs. A call looks whether the parameters are the same objects at the
same versions as before, and prepares anew where they are not, so an optimizer's step or
`load_state_dict` is seen; writes through `.data` are not. Only without gradients, as there.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from torch._subclasses.fake_tensor import FakeTensor

from minidynamo.inductor.lowering.linear import has_onednn
from minidynamo.inductor.passes.narrow_products import widen_products
from minidynamo.inductor.passes.simplify import is_pure, remove_dead_nodes
from minidynamo.inductor.sizes import has_symbols

aten = torch.ops.aten
# A row by a matrix is bound by memory, which float32 weights take as much of when packed.
_LEAST_ROWS = 4
_BATCH_NORMS = {
    # Positions of weight, bias, mean, variance and eps.
    aten._native_batch_norm_legit_no_training.default: (1, 2, 3, 4, 6),
    aten.native_batch_norm.default: (1, 2, 3, 4, 7),
    aten._native_batch_norm_legit.default: (1, 2, 3, 4, 7),
}
_PACKED_TYPES = (torch.float32, torch.bfloat16)


@dataclass(frozen=True)
class Frozen:
    """A graph in two parts.

    Attributes:
        prepare: takes the inputs at `positions`; returns what `graph` takes behind all inputs.
        graph: the rest.
        positions: of the inputs that stay as they are.
    """

    prepare: torch.fx.GraphModule
    graph: torch.fx.GraphModule
    positions: tuple[int, ...]


class FrozenCall:
    """The compiled graph with its prepared values."""

    def __init__(self, frozen: Frozen, compiled: Callable[..., Any]) -> None:
        self._frozen = frozen
        self._compiled = compiled
        # Weak references to the inputs that were prepared, their versions, and what came out.
        self._state: tuple[list[Any], list[int], Sequence[Any]] = ([], [], ())

    def __call__(self, *args: Any) -> Any:
        given = [args[position] for position in self._frozen.positions]
        references, versions, values = self._state
        known = len(references) == len(given) and all(
            reference() is tensor and version == tensor._version
            for reference, version, tensor in zip(references, versions, given, strict=True)
        )
        if not known:
            versions = [tensor._version for tensor in given]
            with torch.no_grad(), torch._C._DisableAutocast():
                values = self._frozen.prepare(*given)
            self._state = ([weakref.ref(tensor) for tensor in given], versions, values)
        return self._compiled(*args, *values)


def frozen_positions(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> list[int]:
    """Inputs that are parameters, or that the front end knows to be parameters or buffers."""
    found = []
    nodes = gm.graph.find_nodes(op="placeholder")
    for position, (node, value) in enumerate(zip(nodes, inputs, strict=True)):
        is_state = isinstance(value, torch.nn.Parameter) or node.meta.get("module_state", False)
        is_real = isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor)
        # Inference tensors have no version that tells of writes.
        if is_state and is_real and not value.is_inference() and value.layout == torch.strided:
            found.append(position)
    return found


def freeze(graph: torch.fx.GraphModule, positions: Sequence[int]) -> Frozen | None:
    """Split an aten graph without mutation; None where nothing depends on the inputs at
    `positions` alone.
    """
    if not positions or has_symbols([node.meta.get("val") for node in graph.graph.nodes]):
        return None
    widen_products(graph)
    inputs = graph.graph.find_nodes(op="placeholder")
    constants = _Constants([inputs[position] for position in positions])
    for node in graph.graph.nodes:
        constants.visit(node)
    for node in list(graph.graph.nodes):
        _fold_batch_norm(graph.graph, node, constants)
    remove_dead_nodes(graph)
    for node in list(graph.graph.nodes):
        _pack_convolution(graph.graph, node, constants)
        _pack_linear(graph.graph, node, constants)
    remove_dead_nodes(graph)
    hoisted = [node for node in graph.graph.nodes if constants.is_hoisted(node)]
    if not hoisted:
        return None
    prepare, used = _prepare_graph(
        graph,
        hoisted,
        inputs,
        positions,
    )
    last = inputs[-1]
    for number, node in enumerate(hoisted):
        with graph.graph.inserting_after(last):
            last = graph.graph.placeholder(f"frozen{number}")
        last.meta = dict(node.meta)
        node.replace_all_uses_with(last)
    remove_dead_nodes(graph)
    graph.recompile()
    return Frozen(prepare, graph, used)


class _Constants:
    """Nodes that depend on frozen inputs alone; `computed`: and are no mere views of those."""

    def __init__(self, inputs: Sequence[torch.fx.Node]) -> None:
        self.known = set(inputs)
        self.computed: set[torch.fx.Node] = set()

    def visit(self, node: torch.fx.Node) -> None:
        """Find out about a node whose operands are known."""
        if node.op != "call_function" or not is_pure(node):
            return
        if not isinstance(node.meta.get("val"), torch.Tensor):
            return
        operands = node.all_input_nodes
        if operands and all(operand in self.known for operand in operands):
            self.known.add(node)
            if not _is_view(node) or any(operand in self.computed for operand in operands):
                self.computed.add(node)

    def is_hoisted(self, node: torch.fx.Node) -> bool:
        """Whether the node is computed beforehand and handed to the rest of the graph."""
        if node not in self.computed or _is_returned(node):
            return False
        return any(user not in self.computed or _is_returned(user) for user in node.users)


def _is_view(node: torch.fx.Node) -> bool:
    if not isinstance(node.target, torch._ops.OpOverload):
        return True
    return any(result.alias_info is not None for result in node.target._schema.returns)


def _is_returned(node: torch.fx.Node) -> bool:
    """Whether the caller gets the node's memory: it is made anew in each call then."""
    return any(
        user.op == "output" or (_is_view(user) and _is_returned(user)) for user in node.users
    )


def _prepare_graph(
    graph: torch.fx.GraphModule,
    results: Sequence[torch.fx.Node],
    inputs: Sequence[torch.fx.Node],
    positions: Sequence[int],
) -> tuple[torch.fx.GraphModule, tuple[int, ...]]:
    """A module that computes `results`, and the positions of the inputs that it takes."""
    needed = set(results)
    for node in reversed(graph.graph.nodes):
        if node in needed:
            needed.update(node.all_input_nodes)
    used = [position for position in positions if inputs[position] in needed]
    new = torch.fx.Graph()
    copied = {inputs[p]: new.placeholder(f"arg{p}") for p in used}
    for node in graph.graph.nodes:
        if node in needed and node.op == "call_function":
            copied[node] = new.node_copy(node, copied.__getitem__)
    new.output(tuple(copied[node] for node in results))
    return torch.fx.GraphModule(torch.nn.Module(), new), tuple(used)


class _Writer:
    """Adds operators before a node, with their fake results."""

    def __init__(
        self, graph: torch.fx.Graph, before: torch.fx.Node, constants: _Constants
    ) -> None:
        self.graph, self.before, self.constants = graph, before, constants

    def call(self, op: Any, *args: Any) -> torch.fx.Node:
        """`op(*args)`; its fake result is worked out."""
        with self.graph.inserting_before(self.before):
            node = self.graph.call_function(op, args)
        fakes = torch.fx.node.map_arg(args, lambda n: n.meta["val"])
        node.meta = {**_origin(self.before), "val": op(*fakes)}
        self.constants.visit(node)
        return node

    def packed(self, op: Any, weight: torch.fx.Node, *args: Any) -> torch.fx.Node:
        """A weight in a layout of oneDNN's own; its fake has the sizes of the plain one."""
        with self.graph.inserting_before(self.before):
            node = self.graph.call_function(op, (weight, *args))
        node.meta = {**_origin(self.before), "val": weight.meta["val"], "opaque": True}
        self.constants.known.add(node)
        self.constants.computed.add(node)
        return node


def _origin(node: torch.fx.Node) -> dict[str, Any]:
    return {key: node.meta[key] for key in ("origin", "stack_trace") if key in node.meta}


def _same_type(*nodes: Any) -> bool:
    """Whether all (None aside) are floats of one dtype."""
    dtypes = {node.meta["val"].dtype for node in nodes if node is not None}
    return len(dtypes) == 1 and dtypes <= {torch.float32, torch.float64}


def _fold_batch_norm(graph: torch.fx.Graph, norm: torch.fx.Node, constants: _Constants) -> None:
    """Batch norm of a convolution's result, in inference: a convolution with another weight and
    bias.
    """
    places = _BATCH_NORMS.get(norm.target)
    if places is None or norm.kwargs or (len(norm.args) == 8 and norm.args[5] is not False):
        return
    conv: Any = norm.args[0]
    if conv.target is not aten.convolution.default or len(conv.users) != 1:
        return
    gamma, beta, mean, variance, eps = (norm.args[place] for place in places)
    kernel, bias = conv.args[1:3]
    tensors = [
        kernel,
        bias,
        gamma,
        beta,
        mean,
        variance,
    ]
    if mean is None or variance is None or conv.args[6]:
        return
    if any(t is not None and t not in constants.known for t in tensors):
        return
    used = [user for user in norm.users if user.args[1] != 0 and user.users]
    if used or not _same_type(conv, *tensors):
        return
    write = _Writer(graph, conv, constants).call
    scale = write(aten.rsqrt.default, write(aten.add.Scalar, variance, eps))
    if gamma is not None:
        scale = write(aten.mul.Tensor, scale, gamma)
    sizes = [-1] + [1] * (kernel.meta["val"].dim() - 1)
    new_kernel = write(aten.mul.Tensor, kernel, write(aten.view.default, scale, sizes))
    shift = write(aten.neg.default, mean)
    if bias is not None:
        shift = write(aten.add.Tensor, bias, shift)
    shift = write(aten.mul.Tensor, shift, scale)
    if beta is not None:
        shift = write(aten.add.Tensor, shift, beta)
    with graph.inserting_before(conv):
        folded = graph.call_function(
            conv.target, (conv.args[0], new_kernel, shift, *conv.args[3:])
        )
    folded.meta = {**_origin(norm), "val": conv.meta["val"]}
    for user in list(norm.users):
        if user.args[1] == 0:
            user.replace_all_uses_with(folded)


def _can_pack(weight: Any, x: Any, constants: _Constants) -> bool:
    if not isinstance(weight, torch.fx.Node) or weight not in constants.known:
        return False
    fakes = (weight.meta["val"], x.meta["val"])
    cpu = all(f.device.type == "cpu" and f.dtype in _PACKED_TYPES for f in fakes)
    same = fakes[0].dtype == fakes[1].dtype and 0 not in (*fakes[0].shape, *fakes[1].shape)
    narrow = fakes[0].dtype == torch.bfloat16
    return cpu and same and has_onednn() and (not narrow or _knows_bfloat16())


def _knows_bfloat16() -> bool:
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _pack_convolution(graph: torch.fx.Graph, conv: Any, constants: _Constants) -> None:
    """A convolution of two dimensions, with its weight as oneDNN wants it."""
    if conv.target is not aten.convolution.default:
        return
    x, weight, bias, stride, padding, dilation, transposed = conv.args[:7]
    groups = conv.args[8]
    if transposed or x in constants.known or not _can_pack(weight, x, constants):
        return
    size = list(x.meta["val"].shape)
    if len(size) != 4 or bias is not None and bias.meta["val"].dtype != x.meta["val"].dtype:
        return
    pairs = [
        list(pair) if len(pair) == 2 else list(pair) * 2 for pair in (padding, stride, dilation)
    ]
    ops = torch.ops.mkldnn
    pack = ops._reorder_convolution_weight.default
    packed = _Writer(graph, conv, constants).packed(pack, weight, *pairs, groups, size)
    with graph.inserting_before(conv):
        new = graph.call_function(
            ops._convolution_pointwise.default,
            (
                x,
                packed,
                bias,
                *pairs,
                groups,
                "none",
                [],
                "",
            ),
        )
    new.meta = {**_origin(conv), "val": conv.meta["val"]}
    conv.replace_all_uses_with(new)
    graph.erase_node(conv)


def _pack_linear(graph: torch.fx.Graph, product: Any, constants: _Constants) -> None:
    """A matrix product with the transpose of a weight, with that as oneDNN wants it."""
    if product.target not in (aten.mm.default, aten.addmm.default) or product.kwargs:
        return
    bias, (x, turned) = None, product.args[-2:]
    if product.target is aten.addmm.default:
        bias = product.args[0]
        if len(product.args) != 3 or bias.meta["val"].dim() != 1:
            return
        if (
            bias not in constants.known
            or bias.meta["val"].shape[0] != turned.meta["val"].shape[1]
        ):
            return
    if x in constants.known or not _can_pack(turned, x, constants):
        return
    rows = x.meta["val"].shape[0]
    if x.meta["val"].dtype == torch.float32 and rows < _LEAST_ROWS:
        return
    if bias is not None and bias.meta["val"].dtype != x.meta["val"].dtype:
        return
    ops = torch.ops.mkldnn
    writer = _Writer(graph, product, constants)
    weight = writer.call(aten.permute.default, turned, [1, 0])
    weight = writer.call(aten.clone.default, weight)
    packed = writer.packed(ops._reorder_linear_weight.default, weight, rows)
    with graph.inserting_before(product):
        new = graph.call_function(
            ops._linear_pointwise.default,
            (
                x,
                packed,
                bias,
                "none",
                [],
                "",
            ),
        )
    new.meta = {**_origin(product), "val": product.meta["val"]}
    product.replace_all_uses_with(new)
    graph.erase_node(product)
