"""Convolutions: called whole, on the layout that their library is fastest with.

oneDNN convolves channels-last memory without reordering it. With few channels the difference is an
order of magnitude (3 channels of 64 x 64: 4.4 ms against 0.3 ms on one core), and pooling gains as
much. A convolution therefore asks for its input channels-last where that is free (the input has no
memory yet, or has that layout already) or cheap (few channels), or where oneDNN's reordering costs
more than a copy (bfloat16, transposed convolutions, groups of few channels, and where each channel
has a filter of its own); its result, and what elementwise operators make of it, keep the layout.

Volumes gain where there are groups (0.2 to 0.9 of the time) and in bfloat16 (0.1 to 1.0), and lose
otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from minidynamo.inductor.ir import Lazy, Size, TensorValue
from minidynamo.inductor.lowering.registry import DECLINED, register

if TYPE_CHECKING:
    from minidynamo.inductor.graph import GraphLowering

aten = torch.ops.aten
FEW_CHANNELS, SMALL_FILTER = 16, 9
BLOCK = 16  # groups of whole blocks of channels are fast on either layout


def channels_last(size: Size) -> Size:
    """Strides of an image or a volume (N, C, ...) with the channels innermost."""
    strides: list[Any] = [size[1]]
    for extent in reversed(size[2:]):
        strides.append(strides[-1] * extent)
    return (strides.pop(), 1, *reversed(strides))


@cache
def _turns_cheaply() -> bool:
    """Whether oneDNN's large filters of single channels are for channels-last memory: on AVX2 those
    for blocks of channels are faster, reordering included.
    """
    return torch.backends.cpu.get_cpu_capability().startswith("AVX512")


def _wants_channels_last(
    g: GraphLowering,
    x: TensorValue,
    weight: TensorValue,
    step: Sequence[int],
    transposed: bool,
    groups: int,
) -> bool:
    if not g.free_layout or x.ndim not in (4, 5) or x.device.type != "cpu":
        return False
    if x.dtype not in (torch.float32, torch.bfloat16) or not all(
        isinstance(n, int) for n in x.size
    ):
        return False
    channels, filter_size = x.size[1], math.prod(weight.size[2:])
    if x.dtype is torch.bfloat16 and (groups == 1 or not transposed):
        return True
    if groups > 1 and (groups != channels or (x.ndim == 5 and filter_size > 1)):
        block = BLOCK // 2 if transposed and x.ndim == 4 and max(step) > 1 else BLOCK
        return filter_size > 1 and channels // groups % block != 0
    if transposed or x.ndim == 5:
        return x.ndim == 4 and groups == 1 and not _weight_is_large(g, x, weight)
    if 1 < channels <= FEW_CHANNELS and filter_size > 1:
        return True
    if groups == channels and (_turns_cheaply() or filter_size <= SMALL_FILTER):
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
    if (
        not _wants_channels_last(g, x, weight, rest[0], bool(rest[3]), rest[5])
        or x.numel() == 0
    ):
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
