"""Gradients of filters of one channel each, on the CPU: computed on the layout that is fast.

    convolution_backward(g, x, w, ..., [True, True, True])
    ->  convolution_backward(g, x, w, ..., [True, False, False])
        convolution_backward(clone(g), clone(x), w, ..., [False, True, False])
        sum(g, [0, 2, 3])

What oneDNN takes for the gradients of filters of 5 x 5 and more depends on how images are laid out:
on rows 0.5 ns a multiplication; on channels-last memory 0.14 ns and a copy of the filters in which
each has 256 places for its one channel. Where that is more memory than the C library keeps (filters
of 7 x 7 for 768 channels: 37 MiB), its page faults take 15 times as long as all the rest.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping

import torch
import torch.fx

from minidynamo.inductor.passes.narrow_products import call, hint

aten = torch.ops.aten
BACKWARD = aten.convolution_backward.default
# Filters of fewer elements are fast on either layout.
LEAST_ELEMENTS, LEAST_MULTIPLICATIONS = 16, 1 << 17
# Nanoseconds for a multiplication, a byte of the copy of the filters (one that is kept, one that is
# not), and an element that is laid out anew.
ON_ROWS, ON_CHANNELS_LAST = 0.5, 0.14
KEPT_BYTE, FRESH_BYTE, TURNED = 0.03, 0.4, 0.6
PLACES, KEPT_BYTES = 1024, 32 << 20
# How much faster the other layout has to be, and how often the copy may hold the operands' memory.
GAIN, MOST_COPIED = 1.3, 4
FILTERS, BIAS = 1, 2  # positions of gradients


def lay_out_filters(
    gm: torch.fx.GraphModule,
) -> None:
    """Rewrite a graph's convolutions; see the module's docstring."""
    for node in gm.graph.find_nodes(op="call_function", target=BACKWARD):
        if _is_depthwise(node) and _gains(node):
            _divide(gm.graph, node)


def _is_depthwise(
    node: torch.fx.Node,
) -> bool:
    gradient, x, weight = _operands(node)
    _, _, dilation, transposed, _, groups, wanted = node.args[4:]
    if x.device.type != "cpu" or x.ndim != 4 or transposed or not wanted[FILTERS]:  # type: ignore[index]
        return False
    if any(type(size) is not int for size in weight.shape) or any(d != 1 for d in dilation):  # type: ignore[union-attr]
        return False
    return (
        {t.dtype for t in (gradient, x, weight)} == {torch.float32}
        and groups == weight.shape[0]
        and weight.shape[1] == 1
        and weight[0].numel() >= LEAST_ELEMENTS
        and weight.is_contiguous()
        and torch.backends.mkldnn.is_available()
    )


def _operands(
    node: torch.fx.Node,
) -> list[torch.Tensor]:
    """The gradient of the result, the image and the filters, as fake tensors."""
    return [operand.meta["val"] for operand in node.args[:3]]  # type: ignore[union-attr]


def _other_layout(
    x: torch.Tensor,
) -> torch.memory_format | None:
    """The one that `x` has not; None where it has neither, or both."""
    on_rows = _lies_in(x, torch.contiguous_format)
    if on_rows == _lies_in(x, torch.channels_last):
        return None
    return torch.channels_last if on_rows else torch.contiguous_format


def _lies_in(
    x: torch.Tensor,
    layout: torch.memory_format | None,
) -> bool:
    """Whether `x` has this layout in the call that is compiled for."""
    expected = 1
    for dim in (1, 3, 2, 0) if layout is torch.channels_last else (3, 2, 1, 0):
        size = hint(x.shape[dim])
        if size != 1 and hint(x.stride(dim)) != expected:
            return False
        expected *= size
    return True


def _gains(
    node: torch.fx.Node,
) -> bool:
    gradient, x, weight = _operands(node)
    work = _elements(gradient) * weight[0].numel()
    layout = _other_layout(x)
    if layout is None or work < LEAST_MULTIPLICATIONS:
        return False
    copy = PLACES * weight.numel()
    if layout == torch.channels_last and copy > MOST_COPIED * 4 * (
        _elements(x) + _elements(gradient)
    ):
        return False
    channels_last = work * ON_CHANNELS_LAST
    channels_last += copy * (KEPT_BYTE if copy <= KEPT_BYTES else FRESH_BYTE)
    costs = {torch.contiguous_format: work * ON_ROWS, torch.channels_last: channels_last}
    now = costs[_other_layout_of[layout]]
    turned = [_elements(t) for t in (x, gradient) if not _lies_in(t, layout)]
    return bool((costs[layout] + sum(turned) * TURNED) * GAIN < now)


def _elements(
    x: torch.Tensor,
) -> int:
    return math.prod(map(hint, x.shape))


_other_layout_of: Mapping[torch.memory_format, torch.memory_format] = {
    torch.contiguous_format: torch.channels_last,
    torch.channels_last: torch.contiguous_format,
}


def _divide(
    graph: torch.fx.Graph,
    node: torch.fx.Node,
) -> None:
    """The gradient of the filters by a call of its own. That of the bias is a sum: the operator
    would compute both.
    """
    image = _operands(node)[1]
    layout = _other_layout(image)
    *rest, wanted = node.args[3:]
    with image.fake_mode:  # type: ignore[attr-defined]
        turned = [_turned(graph, node, operand, layout) for operand in node.args[:2]]  # type: ignore[arg-type]
        only = [False, True, False]
        alone = call(graph, node, BACKWARD, *turned, node.args[2], *rest, only)
        for part in list(node.users):
            if part.meta["val"] is not None and part.args[1] == FILTERS:
                _replace(graph, part, call(graph, part, operator.getitem, alone, FILTERS))
            elif part.meta["val"] is not None and part.args[1] == BIAS:
                total = call(graph, part, aten.sum.dim_IntList, node.args[0], [0, 2, 3])
                _replace(graph, part, total)
            elif part.meta["val"] is None or not wanted[0]:  # type: ignore[index]
                part.replace_input_with(node, alone)
    if not wanted[0]:  # type: ignore[index]
        graph.erase_node(node)
        return
    node.args = (*node.args[:-1], [True, False, False])
    node.meta["val"] = (node.meta["val"][0], None, None)


def _turned(
    graph: torch.fx.Graph,
    before: torch.fx.Node,
    operand: torch.fx.Node,
    layout: torch.memory_format | None,
) -> torch.fx.Node:
    if _lies_in(operand.meta["val"], layout):
        return operand
    return call(graph, before, aten.clone.default, operand, memory_format=layout)


def _replace(
    graph: torch.fx.Graph,
    part: torch.fx.Node,
    made: torch.fx.Node,
) -> None:
    fake = part.meta["val"]
    if made.meta["val"].stride() != fake.stride():  # of dimensions of one element
        made = call(graph, part, aten.as_strided.default, made, fake.shape, fake.stride())
    part.replace_all_uses_with(made)
    graph.erase_node(part)
