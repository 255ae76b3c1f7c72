"""Operators of `quantized_decomposed`, taken apart into arithmetic that fuses.

What torch.ao and torchao's pt2e flow write into graphs: quantisation, and back, of a tensor, of
each channel, of each row. They are Python functions that a call runs operator by operator; one for
a whole tensor reads its scale with `.item()`. The library's operators exist once
`torch.ao.quantization.fx._decomposed` was imported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor


def is_loaded() -> bool:
    """Whether the operators are registered."""
    return "torch.ao.quantization.fx._decomposed" in sys.modules


def _bounds(x: Tensor, low: int, high: int, dtype: torch.dtype) -> Tensor:
    return x.clamp(low, high).to(dtype)


def _quantize(
    x: Tensor,
    scale: Any,
    zero_point: Any,
    low: int,
    high: int,
    dtype: torch.dtype,
) -> Tensor:
    """To the nearest multiple of the scale, as eager multiplies by the scale's inverse."""
    if isinstance(scale, Tensor):
        if not x.dim() or scale.numel() != 1 or zero_point.numel() != 1:
            return NotImplemented
        scale, zero_point = scale.reshape(()), zero_point.reshape(())
    return _bounds((x.float() * (1.0 / scale)).round() + zero_point, low, high, dtype)


def _dequantize(
    x: Tensor,
    scale: Any,
    zero_point: Any,
    low: int,
    high: int,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    if isinstance(scale, Tensor):
        if not x.dim() or scale.numel() != 1 or zero_point.numel() != 1:
            return NotImplemented
        scale, zero_point = scale.reshape(()), zero_point.reshape(())
    return (x.to(out_dtype or torch.float32) - zero_point) * scale


def _of_rows(values: Tensor, x: Tensor) -> Tensor:
    return values.view(-1, *[1] * (x.dim() - 1))


def _quantize_channels(
    x: Tensor,
    scales: Tensor,
    zero_points: Tensor,
    axis: int,
    low: int,
    high: int,
    dtype: torch.dtype,
) -> Tensor:
    """Channels come first meanwhile, which decides how the result is laid out."""
    rows = x.float().transpose(0, axis)
    scaled = (rows * (1.0 / _of_rows(scales, x))).round() + _of_rows(zero_points, x)
    return _bounds(scaled, low, high, dtype).transpose(0, axis)


def _dequantize_channels(
    x: Tensor,
    scales: Tensor,
    zero_points: Tensor | None,
    axis: int,
    low: int,
    high: int,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    rows = x.transpose(0, axis)
    if zero_points is not None:
        rows = rows - _of_rows(zero_points, x)
    rows = (rows * _of_rows(scales, x)).to(out_dtype or torch.float32)
    return rows.transpose(0, axis)


def _quantize_rows(
    x: Tensor,
    scales: Tensor,
    zero_points: Tensor,
    low: int,
    high: int,
    dtype: torch.dtype,
) -> Tensor:
    return _bounds((x * (1.0 / scales) + zero_points).round(), low, high, dtype)


def _dequantize_rows(
    x: Tensor,
    scales: Tensor,
    zero_points: Tensor,
    low: int,
    high: int,
    dtype: torch.dtype,
    output_dtype: torch.dtype = torch.float32,
) -> Tensor:
    return ((x - zero_points) * scales).to(output_dtype)


_PARTS: dict[tuple[str, str], tuple[Callable[..., Tensor], Callable[..., Tensor]]] = {
    ("per_tensor", "default"): (_quantize, _dequantize),
    ("per_tensor", "tensor"): (_quantize, _dequantize),
    ("per_channel", "default"): (_quantize_channels, _dequantize_channels),
    ("per_token", "default"): (_quantize_rows, _dequantize_rows),
}


@cache
def quantized_decompositions() -> dict[Any, Callable[..., Tensor]]:
    """Operator overload -> decomposition, of the library once it `is_loaded`."""
    library = torch.ops.quantized_decomposed
    table = {}
    for (of, overload), parts in _PARTS.items():
        for name, part in zip((f"quantize_{of}", f"dequantize_{of}"), parts, strict=True):
            table[getattr(getattr(library, name), overload)] = part
    return table
