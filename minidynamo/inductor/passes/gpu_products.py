"""Matrix products and convolutions on GPUs, as their libraries are fast at them.

*Sizes.* Products of 16-bit numbers run on tensor cores, whose loads take 16 bytes: where rows of an
operand or of the result are not a multiple of that long (a vocabulary of 50257 words), cuBLAS falls
back on kernels with a third or a seventh of the rate, whatever the stride between rows is. Operands
are padded with zeros, which the kernels that compute them write along, and results are sliced.

*Biases.* cuDNN adds none: eager adds it in a kernel of its own, which here joins what follows. In
float32 cuBLAS adds them, but chooses among fewer kernels then; there, too, they join what follows.
In 16 bits a bias that is added later would be added to a rounded product, so those stay.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.fx
from torch.fx import Node

from minidynamo.inductor import config
from minidynamo.inductor.extern import PRODUCTS
from minidynamo.inductor.lowering.registry import LOWERINGS
from minidynamo.inductor.passes.image_layouts import VIEWS
from minidynamo.inductor.passes.narrow_products import call, hint
from minidynamo.inductor.passes.simplify import remove_dead_nodes

aten = torch.ops.aten
_PADDED = {
    aten.mm.default: 0,
    aten.addmm.default: 1,
    aten.bmm.default: 0,
}  # position of the first
_NARROW = (torch.float16, torch.bfloat16)
_ALIGNED = 8  # elements of two bytes
_TURNING = (aten.permute.default, aten.t.default, aten.transpose.int)
_CALLED = PRODUCTS | {aten.convolution.default, aten.convolution_backward.default}


class _Rates(NamedTuple):
    """Operations a second of odd sizes, of other sizes that are not aligned, and of aligned ones;
    bytes a second.
    """

    odd: float
    even: float
    aligned: float
    memory: float


# Measured on an H200: products of (4096, 768) by (768, 50257), (.., 50258) and (.., 50264). Of
# older GPUs it is only known that no kernel for tensor cores takes odd sizes.
_HOPPER = _Rates(9.5e13, 2.45e14, 6e14, 3.5e12)
_OLDER = _Rates(5e13, 2e14, 2e14, 1.5e12)
_CALL = 4e-6  # seconds of another kernel


def align_products(
    gm: torch.fx.GraphModule,
) -> None:
    """Pad the products of a graph whose sizes tensor cores cannot load, where that pays."""
    if not config.shape_padding:
        return
    padding = _Padding(gm)
    for node in list(gm.graph.nodes):
        if node.target in _PADDED:
            padding.visit(node)
    if padding.known:
        remove_dead_nodes(gm)


class _Padding:
    def __init__(
        self,
        gm: torch.fx.GraphModule,
    ) -> None:
        self._graph = gm.graph
        self.known: dict[tuple[Node, tuple[int, ...]], Node] = {}

    def visit(
        self,
        node: Node,
    ) -> None:
        first = _PADDED[node.target]
        a, b = node.args[first : first + 2]  # type: ignore[misc]
        if first and node.args[0].meta["val"].dim() != 1:  # type: ignore[union-attr]
            return
        pads = _missing(a.meta["val"], b.meta["val"])  # type: ignore[union-attr]
        if not any(pads) or not (config.force_shape_pad or _pays(node, a, b, pads)):  # type: ignore[arg-type]
            return
        rows, inner, columns = pads
        batch = (0,) * (node.meta["val"].dim() - 2)
        with node.meta["val"].fake_mode:
            operands = [
                self._padded(a, (*batch, rows, inner), node),
                self._padded(b, (*batch, inner, columns), node),
            ]
            if first:
                operands.insert(0, self._padded(node.args[0], (columns,), node))
            product = call(self._graph, node, node.target, *operands, **node.kwargs)
            result = self._cut(node, product, rows, columns)
        result.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(result)
        self._graph.erase_node(node)

    def _cut(
        self,
        node: Node,
        product: Node,
        rows: int,
        columns: int,
    ) -> Node:
        """What was asked for of the padded product, laid out as that."""
        result, size = product, node.meta["val"].shape
        for dim, pad in ((-2, rows), (-1, columns)):
            if pad:
                result = call(
                    self._graph, node, aten.slice.Tensor, result, len(size) + dim, 0, size[dim]
                )
        if result.meta["val"].is_contiguous():
            return result
        layout = torch.contiguous_format
        return call(self._graph, node, aten.clone.default, result, memory_format=layout)

    def _padded(
        self,
        given: Any,
        pads: tuple[int, ...],
        before: Node,
    ) -> Node:
        """The operand with so many zeros behind each dimension; a transpose is one of the padded,
        which several products may read.
        """
        if not any(pads):
            return given
        known = self.known.get((given, pads))
        if known is not None:
            return known
        if given.target in _TURNING:
            order = _order(given)
            base = [0] * len(pads)
            for position, dim in enumerate(order):
                base[dim] = pads[position]
            turned = self._padded(given.args[0], tuple(base), before)
            made = call(self._graph, before, aten.permute.default, turned, order)
        else:
            amounts = [n for pad in reversed(pads) for n in (0, pad)]
            made = call(self._graph, before, aten.constant_pad_nd.default, given, amounts)
        self.known[given, pads] = made
        return made


def _order(
    node: Node,
) -> list[int]:
    """The dimensions of the base that a transpose shows."""
    dims = node.meta["val"].dim()
    if node.target is aten.permute.default:
        return [dim % dims for dim in node.args[1]]  # type: ignore[union-attr]
    order = list(range(dims))
    first, second = (0, 1) if node.target is aten.t.default else node.args[1:3]
    if dims > 1:
        order[first], order[second] = order[second], order[first]  # type: ignore[index]
    return order


def _missing(
    a: torch.Tensor,
    b: torch.Tensor,
) -> tuple[int, int, int]:
    """Elements that rows, inner dimension and columns of a product lack to be loaded in wholes:
    those of them that lie side by side in an operand or in the result.
    """
    if a.dtype not in _NARROW:
        return 0, 0, 0
    by_rows = [type(step) is int and step == 1 for step in (a.stride(-1), b.stride(-1))]
    sizes = (
        0 if by_rows[0] else a.shape[-2],
        a.shape[-1] if by_rows[0] or not by_rows[1] else 0,
        b.shape[-1],
    )
    if any(type(size) is not int for size in sizes):
        return 0, 0, 0
    rows, inner, columns = (-size % _ALIGNED for size in sizes)
    return rows, inner, columns


def _pays(
    node: Node,
    a: Node,
    b: Node,
    pads: tuple[int, int, int],
) -> bool:
    """Whether the product takes longer than the padded one, and the copies that it needs."""
    result = node.meta["val"]
    if result.device.type != "cuda":
        return False
    is_older = torch.cuda.get_device_capability(result.device) < (9, 0)
    rates = _OLDER if is_older else _HOPPER
    elements = {n: hint(n.meta["val"].numel()) for n in (node, a, b)}
    operations = 2 * elements[node] * hint(a.meta["val"].shape[-1])
    is_odd = any(pad % 2 for pad in pads)
    least = 2 * sum(elements.values()) / rates.memory
    before = max(operations / (rates.odd if is_odd else rates.even), least)
    after = max(operations / rates.aligned, least)
    for operand, is_padded in ((a, pads[0] or pads[1]), (b, pads[1] or pads[2])):
        if is_padded and not _is_computed(operand):
            after += _CALL + 4 * elements[operand] / rates.memory
    if pads[2] and not _feeds_kernels(node):
        after += _CALL + 4 * elements[node] / rates.memory
    return after < 0.9 * before


def _is_computed(
    node: Node,
) -> bool:
    """Whether a kernel computes it, or what it is a view of, for such products alone."""
    if not all(user.target in _PADDED or user.target in VIEWS for user in node.users):
        return False
    if node.target in VIEWS:
        return _is_computed(node.args[0])  # type: ignore[arg-type]
    return node.target in LOWERINGS and node.target not in _CALLED


def _feeds_kernels(
    node: Node,
) -> bool:
    """Whether kernels read the node's value, or views of it, and nothing else does."""
    for user in node.users:
        if user.target in VIEWS:
            if not _feeds_kernels(user):
                return False
        elif user.target not in LOWERINGS or user.target in _CALLED:
            return False
    return bool(node.users)


def add_biases_later(
    gm: torch.fx.GraphModule,
) -> None:
    """Take the biases out of convolutions on GPUs, and of float32 products that kernels read."""
    graph = gm.graph
    for node in graph.find_nodes(op="call_function", target=aten.convolution.default):
        _take_from_convolution(graph, node)
    for node in graph.find_nodes(op="call_function", target=aten.addmm.default):
        _take_from_product(graph, node)


def _is_on_gpu(
    value: torch.Tensor,
) -> bool:
    return value.device.type == "cuda"


def _take_from_convolution(
    graph: torch.fx.Graph,
    node: Node,
) -> None:
    bias, groups = node.args[2], node.args[8]
    value = node.meta["val"]
    if not isinstance(bias, Node) or not _is_on_gpu(value):
        return
    # Depthwise ones may be kernels of torch's own, which round a sum that has the bias in it.
    is_own = value.dtype in _NARROW and groups != 1
    if is_own or value.dtype.is_complex or not torch.backends.cudnn.enabled:
        return
    with value.fake_mode:
        without = (*node.args[:2], None, *node.args[3:])
        plain = call(graph, node, node.target, *without)
    _add(graph, node, plain, bias, value.dim() - 2)


def _take_from_product(
    graph: torch.fx.Graph,
    node: Node,
) -> None:
    bias, *operands = node.args
    value = node.meta["val"]
    if len(operands) != 2 or node.kwargs or not _is_on_gpu(value):
        return
    if value.dtype not in (torch.float32, torch.float64) or not _feeds_kernels(node):
        return
    with value.fake_mode:
        plain = call(graph, node, aten.mm.default, *operands)
    _add(graph, node, plain, bias, 0)  # type: ignore[arg-type]


def _add(
    graph: torch.fx.Graph,
    node: Node,
    plain: Node,
    bias: Node,
    behind: int,
) -> None:
    """behind: dimensions that follow the bias's."""
    value = node.meta["val"]
    with value.fake_mode:
        for _ in range(behind):
            bias = call(graph, node, aten.unsqueeze.default, bias, -1)
        total = call(graph, node, aten.add.Tensor, plain, bias)
    node.replace_all_uses_with(total)
    graph.erase_node(node)
