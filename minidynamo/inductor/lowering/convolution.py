"""Convolutions: called whole, on the layout that their library is fastest with.

oneDNN convolves channels-last memory without reordering it. With few channels the difference is an
order of magnitude (3 channels of 64 x 64: 4.4 ms against 0.3 ms on one core), and pooling gains as
much. A convolution therefore asks for its input channels-last where that is free (the input has no
memory yet, or has that layout already) or cheap (few channels), or where oneDNN's reordering costs
more than a copy (bfloat16, and where each channel has a filter of its own); its result, and what
elementwise operators make of it, keep the layout.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from minidynamo.inductor.ir import Lazy, Size, TensorValue
from minidynamo.inductor.lowering.registry import DECLINED, register

if TYPE_CHECKING:
    from minidynamo.inductor.graph import GraphLowering

aten = torch.ops.aten
FEW_CHANNELS, SMALL_FILTER = 16, 9


def channels_last(size: Size) -> Size:
    """Strides of a 4-dimensional tensor with the channels innermost."""
    _, channels, height, width = size
    return (channels * height * width, 1, channels * width, channels)


@cache
def _turns_cheaply() -> bool:
    """Whether oneDNN's large filters of single channels are for channels-last memory: on AVX2 those
    for blocks of channels are faster, reordering included.
    """
    return torch.backends.cpu.get_cpu_capability().startswith("AVX512")


def _wants_channels_last(
    g: GraphLowering, x: TensorValue, weight: TensorValue, transposed: bool, groups: int
) -> bool:
    if not g.free_layout or transposed or x.ndim != 4 or x.device.type != "cpu":
        return False
    if x.dtype not in (torch.float32, torch.bfloat16) or not all(
        isinstance(n, int) for n in x.size
    ):
        return False
    channels = x.size[1]
    if channels <= FEW_CHANNELS or x.dtype is torch.bfloat16:  # type: ignore[operator]
        return True
    if groups == channels and (_turns_cheaply() or math.prod(weight.size[2:]) <= SMALL_FILTER):
        return True
    return isinstance(x.data, Lazy) or x.stride == channels_last(x.size)


def _weight_is_large(g: GraphLowering, x: TensorValue, weight: TensorValue) -> bool:
    """Whether turning the weight costs more than channels-last pixels save."""
    is_turned = all(extent == 1 for extent in weight.size[2:])
    if is_turned or weight.stride == channels_last(weight.size):
        return False
    return weight.numel() > x.numel() + g.meta.numel()  # type: ignore[no-any-return, operator]


@register(aten.convolution.default)
def lower_convolution(
    g: GraphLowering,
    x: TensorValue,
    weight: Any,
    bias: Any,
    *rest: Any,
) -> Any:
    if not _wants_channels_last(g, x, weight, bool(rest[3]), rest[5]) or x.numel() == 0:
        return DECLINED
    stride = x.layout if _weight_is_large(g, x, weight) else channels_last(x.size)
    x = _laid_out(g, x, stride)
    return g.extern(aten.convolution.default, (x, weight, bias, *rest), {})


def _laid_out(g: GraphLowering, x: TensorValue, stride: Size) -> TensorValue:
    """`x` on memory of these strides."""
    if isinstance(x.data, Lazy) and x.data.base is None:
        x.data.stride = stride
        return x
    return x if x.stride == stride else g.copy(x, stride)


def lower_packed_convolution(g: GraphLowering, x: TensorValue, *rest: Any) -> Any:
    """With a weight in oneDNN's layout (`freezing`): channels-last in and out."""
    x = _laid_out(g, x, channels_last(x.size))
    return g.extern(torch.ops.mkldnn._convolution_pointwise.default, (x, *rest), {})


if torch.backends.mkldnn.is_available():
    register(torch.ops.mkldnn._convolution_pointwise.default)(lower_packed_convolution)
