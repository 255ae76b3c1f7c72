"""Images of convolutions on GPUs, laid out with channels last.

cuDNN's kernels for tensor cores work on channels-last memory; other images are turned on the way
in and out of each convolution, which costs up to a third of a network's time. Here the operands of
convolutions are cloned into that layout. What is computed from their results follows, as it would
in eager: the pass runs the operators behind them once more on fake tensors, and clones back what
has to be laid out as before: the graph's results, and operands of operators that are no kernels.

Where it pays was measured for torch.compile, whose figures these are (torch/_inductor/graph.py of
version 2.11): groups of several channels take 1.36 times as long, other convolutions 0.73 to 0.82.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from typing import Any

import torch
import torch.fx
from torch._prims_common import suggest_memory_format
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Node

from minidynamo.inductor import config
from minidynamo.inductor.lowering.registry import LOWERINGS
from minidynamo.inductor.passes.pooled_positions import COLLECT, POOL

aten = torch.ops.aten
# Of the operands of these, which are images.
_CONVOLUTIONS = {
    aten.convolution.default: (0,),
    aten.convolution_backward.default: (0, 1),
}
# Called as they are, or a loop, with operands of any strides.
_CALLED = {
    *_CONVOLUTIONS,
    aten.mm.default,
    aten.addmm.default,
    aten.bmm.default,
    aten.baddbmm.default,
    operator.getitem,
    POOL,
    COLLECT,
}
# Views of their first operand.
VIEWS = {
    aten.alias.default,
    aten.detach.default,
    aten.expand.default,
    aten.permute.default,
    aten.select.int,
    aten.slice.Tensor,
    aten.split.Tensor,
    aten.split_with_sizes.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.t.default,
    aten.transpose.int,
    aten.unbind.int,
    aten.unsqueeze.default,
    aten.view.default,
}
_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_HAS_CUDNN = torch._C._has_cudnn
# How long a convolution takes with channels last, of its time without.
_GROUPED, _OTHER, _SHRINKING, _SMALL = 1.358, 0.823, 0.725, 0.783
_FEW_CHANNELS = 64
# With more operators for each convolution, turning what they share costs more than it saves.
_MOST_OPERATORS = 300


def put_channels_last(
    gm: torch.fx.GraphModule,
    *,
    with_gradients: bool = False,
) -> None:
    """Lay out the images of a graph's convolutions anew, if that pays.

    with_gradients: it is a joint graph of forward and backward.
    """
    found = [node for node in gm.graph.nodes if node.target is aten.convolution.default]
    if found and _are_chosen(gm, found, with_gradients):
        _Layouts(gm, found[0].meta["val"].fake_mode).run()


def _are_chosen(
    gm: torch.fx.GraphModule,
    found: list[Node],
    with_gradients: bool,
) -> bool:
    operands = [node.meta["val"] for node in found]
    operands += [node.args[i].meta["val"] for node in found for i in (0, 1)]  # type: ignore[union-attr]
    if any(type(x) is not FakeTensor for x in operands):
        return False
    if any(type(size) is not int for x in operands for size in (*x.shape, *x.stride())):
        return False
    if config.force_layout_optimization:
        return True
    if not config.layout_optimization or not (_HAS_CUDNN and torch.backends.cudnn.enabled):
        return False
    if any(x.device.type != "cuda" or x.dtype not in _DTYPES for x in operands):
        return False
    if len(gm.graph.nodes) >= _MOST_OPERATORS * len(found):
        return False
    factors = [(_factor(node), _operations(node)) for node in found]
    if with_gradients:
        of_each = [factor for factor, _ in factors]
        is_small = all(factor == _SMALL for factor in of_each)
        return not is_small and not {_GROUPED, _SHRINKING} & set(of_each)
    return sum(f * n for f, n in factors) <= sum(n for _, n in factors)


def _factor(
    node: Node,
) -> float:
    """What its time is multiplied by."""
    outer, inner, *filters = node.args[1].meta["val"].shape  # type: ignore[union-attr]
    groups: Any = node.args[8]
    if groups > 1 and inner > 1:
        return _GROUPED
    if max(outer, inner) <= _FEW_CHANNELS:
        return _SMALL
    return _SHRINKING if outer * 2 <= inner and filters[0] > 1 else _OTHER


def _operations(
    node: Node,
) -> int:
    """Multiplications."""
    result, weight = node.meta["val"], node.args[1].meta["val"]  # type: ignore[union-attr]
    is_transposed = node.args[6]
    pixels = node.args[0].meta["val"] if is_transposed else result  # type: ignore[union-attr]
    return int(pixels.shape[0] * math.prod(pixels.shape[2:]) * math.prod(weight.shape))


class _Layouts:
    """The layouts of one graph's values as they change.

    moved: by node, its old value; restored: the nodes that have it again.
    """

    def __init__(
        self,
        gm: torch.fx.GraphModule,
        mode: Any,
    ) -> None:
        self._gm = gm
        self._mode = mode
        self._moved: dict[Node, Any] = {}
        self._restored: dict[Node, Node] = {}
        self._turned: dict[Node, Node] = {}

    def run(
        self,
    ) -> None:
        for node in list(self._gm.graph.nodes):
            if node.op == "output":
                self._restore_operands(node)
            elif node.op == "call_function":
                self._visit(node)

    def _visit(
        self,
        node: Node,
    ) -> None:
        for i in _CONVOLUTIONS.get(node.target, ()):
            self._turn(node, i)
        if node.target is aten.copy_.default or not self._is_concerned(node):
            return
        if not _is_free(node.target):
            self._restore_operands(node)
            return
        numbers: Any = node.args[1] if node.target is COLLECT else None
        if numbers is not None and _is_channels_last(numbers.meta["val"]):
            node.update_arg(len(node.args) - 1, True)
        try:
            value = self._value(node)
        except (RuntimeError, ValueError):
            # A view that memory of the new layout does not have.
            self._restore_operands(node)
            return
        if _strides(value) != _strides(node.meta["val"]):
            self._moved[node] = node.meta["val"]
            node.meta["val"] = value

    def _is_concerned(
        self,
        node: Node,
    ) -> bool:
        turned = self._turned.values()
        return any(given in self._moved or given in turned for given in node.all_input_nodes)

    def _value(
        self,
        node: Node,
    ) -> Any:
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
        with torch.no_grad(), self._mode:
            return node.target(*args, **kwargs)  # type: ignore[operator]

    def _turn(
        self,
        node: Node,
        position: int,
    ) -> None:
        image: Any = node.args[position]
        value = image.meta["val"]
        if value.dim() != 4 or value.is_contiguous(memory_format=torch.channels_last):
            return
        if image not in self._turned:
            self._turned[image] = self._clone(image, node, torch.channels_last)
        node.update_arg(position, self._turned[image])

    def _restore_operands(
        self,
        node: Node,
    ) -> None:
        given = [operand for operand in node.all_input_nodes if operand in self._moved]
        for operand in given:
            node.replace_input_with(operand, self._restore(operand, node))

    def _restore(
        self,
        moved: Node,
        before: Node,
    ) -> Node:
        """A node with the old layout. Views are views of what they were views of."""
        known = self._restored.get(moved)
        if known is not None:
            return known
        base = moved.all_input_nodes[0]
        if _is_view(moved):
            again = self._restore(base, before) if base in self._moved else base
            with self._gm.graph.inserting_before(before):
                made = self._gm.graph.node_copy(moved, lambda n: again if n is base else n)
            made.meta["val"] = self._moved[moved]
            made.meta.pop("partitioner_tag", None)  # it may be read by the backward pass alone
            self._restored[moved] = made
            return made
        made = self._clone(moved, before, torch.contiguous_format, self._moved[moved])
        self._restored[moved] = made
        return made

    def _clone(
        self, node: Node, before: Node, layout: torch.memory_format, like: Any = None
    ) -> Node:
        """like: a dense tensor; the clone has its strides, and not those of the layout."""
        order = None if like is None else _order(like)
        with self._gm.graph.inserting_before(before):
            if order is None or order == sorted(order):
                return self._call(aten.clone.default, (node,), {"memory_format": layout})
            turned = self._call(aten.permute.default, (node, order))
            dense = self._call(aten.clone.default, (turned,), {"memory_format": layout})
            back = [order.index(dim) for dim in range(len(order))]
            return self._call(aten.permute.default, (dense, back))

    def _call(
        self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
    ) -> Node:
        made = self._gm.graph.call_function(target, args, kwargs)
        made.meta["val"] = self._value(made)
        return made


def _is_channels_last(x: torch.Tensor) -> bool:
    return x.dim() == 4 and suggest_memory_format(x) is torch.channels_last


def _is_view(
    node: Node,
) -> bool:
    """Whether it is a view of its first operand, or such views."""
    if node.target is operator.getitem:
        return node.all_input_nodes[0].target in VIEWS
    return node.target in VIEWS


def _is_free(
    target: Any,
) -> bool:
    """Whether an operator may be given operands that are laid out otherwise."""
    if target in _CALLED or target in VIEWS:
        return True
    tags = getattr(target, "tags", ())
    if target not in LOWERINGS or torch.Tag.nondeterministic_seeded in tags:
        return False
    schema = target._schema
    shares = any(part.alias_info for part in (*schema.arguments, *schema.returns))
    return not (shares or "strided" in schema.name or schema.name.startswith("minidynamo::"))


def _tensors(
    value: Any,
) -> Iterator[torch.Tensor]:
    for part in value if isinstance(value, (tuple, list)) else (value,):
        if isinstance(part, torch.Tensor):
            yield part


def _strides(
    value: Any,
) -> list[tuple[int, ...]]:
    return [x.stride() for x in _tensors(value)]


def _order(
    like: torch.Tensor,
) -> list[int]:
    """Its dimensions from the outermost in memory to the innermost."""
    strides = like.stride()
    return sorted(range(like.dim()), key=lambda d: (-strides[d], d))
