"""Functions of numpy on arrays of `torch._numpy`, whose namesakes there have other values."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch._numpy as tnp


def _along(array: Any, axis: int | None) -> tuple[torch.Tensor, int]:
    """The tensor whose items along the dimension are looked at, and the dimension."""
    tensor = tnp.asarray(array).tensor
    if tensor.is_complex() or isinstance(axis, tuple):
        raise NotImplementedError("complex numbers, or several axes")
    return (tensor.flatten(), 0) if axis is None else (tensor, axis % tensor.dim())


def _keeping(result: torch.Tensor, array: Any, axis: int | None, dim: int) -> torch.Tensor:
    """The result with the dimension that was reduced, which is of size 1."""
    if axis is not None:
        return result.unsqueeze(dim)
    return result.reshape(result.shape + (1,) * tnp.asarray(array).tensor.dim())


def median(array: Any, axis: int | None = None, *, keepdims: bool = False) -> Any:
    """`numpy.median`: of an even number of items, the mean of the two in the middle."""
    tensor, dim = _along(array, axis)
    ordered, half = tensor.sort(dim).values, tensor.shape[dim] // 2
    start, length = (half, 1) if tensor.shape[dim] % 2 else (half - 1, 2)
    dtype = tensor.dtype if tensor.is_floating_point() else torch.float64
    result = ordered.narrow(dim, start, length).to(dtype).mean(dim)
    if tensor.is_floating_point():
        last = ordered.select(dim, -1)  # NaN, if there is one
        result = torch.where(last != last, last, result)
    return tnp.ndarray(_keeping(result, array, axis, dim) if keepdims else result)


def quantile(array: Any, q: Any, axis: int | None = None, *, keepdims: bool = False) -> Any:
    """`numpy.quantile`, interpolated linearly between the two nearest items. The place is a number
    of 64 bits; a number q has no part in the dtype of the result, which has q's dimensions first.
    """
    tensor, dim = _along(array, axis)
    is_float = tensor.is_floating_point()
    parts, is_number = tnp.asarray(q).tensor, isinstance(q, (int, float))
    ordered, last = tensor.sort(dim).values.movedim(dim, 0), tensor.shape[dim] - 1
    places = parts * last
    index = places.floor().to(torch.int64)
    result = ordered[index]
    if places.is_floating_point():
        following = ordered[(index + 1).clamp(max=last)]
        dtype = tensor.dtype if is_float and is_number else torch.float64
        shape = parts.shape + (1,) * (tensor.dim() - 1)
        share, difference = (places - index).reshape(shape), (following - result).to(dtype)
        after = result.to(dtype) + difference * share.to(dtype)
        before = following.to(dtype) - difference * (1 - share).to(dtype)
        result = torch.where(share >= 0.5, before, after)
    if is_float:
        greatest = ordered[-1].to(result.dtype)
        result = torch.where(greatest != greatest, greatest, result)
    return tnp.ndarray(_keeping(result, array, axis, dim + parts.dim()) if keepdims else result)


def percentile(array: Any, q: Any, axis: int | None = None, *, keepdims: bool = False) -> Any:
    """`numpy.percentile`: the quantile of a hundredth."""
    if isinstance(q, (int, float)):
        return quantile(array, q / 100, axis, keepdims=keepdims)
    parts = tnp.asarray(q).tensor.to(torch.float64) / 100
    return quantile(array, tnp.ndarray(parts), axis, keepdims=keepdims)


def angle(z: Any, deg: bool = False) -> Any:
    """`numpy.angle`: pi of negative numbers and of -0.0."""
    tensor = tnp.asarray(z).tensor
    if tensor.is_complex():
        result = torch.atan2(tensor.imag, tensor.real)
    else:
        dtype = {1: torch.float16, 2: torch.float32}.get(tensor.itemsize, torch.float64)
        real = tensor if tensor.is_floating_point() else tensor.to(dtype)
        result = torch.atan2(torch.zeros_like(real), real)
    factor = torch.tensor(180 / math.pi, dtype=result.dtype)
    return tnp.ndarray(result * factor if deg else result)


def heaviside(x: Any, y: Any) -> Any:
    """`numpy.heaviside`: NaN of NaN."""
    return tnp.where(tnp.not_equal(x, x), x, tnp.heaviside(x, y))
