"""What Triton's interpreter lacks: libdevice, and functions of `triton_prefix.py` that it runs
slowly or inexactly.

The interpreter's tensors hold a numpy array and Triton's dtype; bfloat16 is kept as its bits. Here
such an array becomes a torch tensor over the same memory, torch computes, and the result goes
back.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

_LIBDEVICE: dict[str, Callable[..., torch.Tensor]] = {
    **{
        name: getattr(torch, name)
        for name in [
            "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "pow", "sin", "cos", "tan",
            "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh",
            "erf", "erfc", "lgamma", "hypot", "nextafter", "copysign", "trunc", "fmod",
        ]
    },
    "rint": torch.round,
    "fast_dividef": torch.div,
}  # fmt: skip


def _to_torch(value: Any) -> torch.Tensor:
    import numpy

    return torch.from_numpy(numpy.ascontiguousarray(value.handle.data))


def _from_torch(result: torch.Tensor, dtype: Any, like: Any) -> Any:
    """An interpreter's tensor with these elements; a number where `like` is one."""
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    kind = tl.block_type(dtype, list(result.shape)) if like.type.is_block() else dtype
    return tl.core.tensor(TensorHandle(result.numpy(), dtype), kind)


def _elementwise(function: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        like = next((arg for arg in args if arg.type.is_block()), args[0])
        return _from_torch(function(*map(_to_torch, args)), args[0].dtype.scalar, like)

    return run


def _to_bfloat16(value: Any) -> Any:
    import triton.language as tl

    bits = _to_torch(value).to(torch.bfloat16).view(torch.uint16)
    return _from_torch(bits, tl.bfloat16, value)


def _from_bfloat16(value: Any) -> Any:
    import triton.language as tl

    result = _to_torch(value).view(torch.bfloat16).to(torch.float32)
    return _from_torch(result, tl.float32, value)


def _reduction(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any], Any]:
    def run(value: Any) -> Any:
        return _from_torch(function(_to_torch(value)), value.dtype.scalar, value)

    return run


def _first_extreme(largest: bool) -> Callable[[Any, Any], Any]:
    """The smallest of the positions where the extreme value, or a NaN, is."""

    def run(value: Any, index: Any) -> Any:
        x, places = _to_torch(value), _to_torch(index)
        extreme = x.amax(1, True) if largest else x.amin(1, True)
        hits = x.isnan() | (x == extreme)
        behind = torch.iinfo(places.dtype).max
        return _from_torch(
            places.masked_fill(~hits, behind).amin(1, True), index.dtype.scalar, index
        )

    return run


def _check(value: Any, good: Any, failure: str) -> Any:
    """`value` where it is good; raises what an eager operator raises for the first that is not."""
    x, fine = torch.broadcast_tensors(_to_torch(value), _to_torch(good))
    if not bool(fine.all()):
        kind, _, text = failure.partition(": ")
        message = text.replace("{}", str(x[~fine][0].item()))
        raise {"IndexError": IndexError, "ValueError": ValueError}.get(kind, RuntimeError)(
            message
        )
    return value


def _philox(number: int) -> Callable[[Any, Any], Any]:
    """Word `number` of Philox 4x32-10."""

    def word(seed: torch.Tensor, counter: torch.Tensor) -> torch.Tensor:
        low = 0xFFFFFFFF
        k0, k1 = seed & low, (seed >> 32) & low
        c0, c1 = counter & low, (counter >> 32) & low
        c2 = c3 = torch.zeros_like(c0)
        for _ in range(10):
            a, b = c0 * 0xD2511F53, c2 * 0xCD9E8D57
            c0, c2 = ((b >> 32) & low) ^ c1 ^ k0, ((a >> 32) & low) ^ c3 ^ k1
            c1, c3 = b & low, a & low
            k0, k1 = (k0 + 0x9E3779B9) & low, (k1 + 0xBB67AE85) & low
        return (c0, c1, c2, c3)[number].to(torch.int32)

    def run(seed: Any, counter: Any) -> Any:
        import triton.language as tl

        like = counter if counter.type.is_block() else seed
        return _from_torch(word(_to_torch(seed), _to_torch(counter)), tl.int32, like)

    return run


def interpreter_namespace() -> dict[str, Any]:
    """Names of a kernel's namespace that are different under the interpreter."""
    return {
        "libdevice": SimpleNamespace(
            **{name: _elementwise(function) for name, function in _LIBDEVICE.items()}
        ),
        "check": _check,
        **{f"philox{number}": _philox(number) for number in range(4)},
        "from_bfloat16": _from_bfloat16,
        "to_bfloat16": _to_bfloat16,
        "logaddexp": _elementwise(torch.logaddexp),
        "scan_sum": _reduction(lambda x: x.cumsum(1, dtype=x.dtype)),
        "scan_prod": _reduction(lambda x: x.cumprod(1, dtype=x.dtype)),
        "scan_max": _reduction(lambda x: x.cummax(1)[0]),
        "scan_min": _reduction(lambda x: x.cummin(1)[0]),
        "scan_logaddexp": _reduction(lambda x: x.logcumsumexp(1)),
        "reduce_sum": _reduction(lambda x: x.sum(1, keepdim=True, dtype=x.dtype)),
        "reduce_prod": _reduction(lambda x: x.prod(1, keepdim=True, dtype=x.dtype)),
        "reduce_max": _reduction(lambda x: x.amax(1, True)),
        "reduce_min": _reduction(lambda x: x.amin(1, True)),
        "reduce_any": _reduction(lambda x: x.any(1, True)),
        "reduce_all": _reduction(lambda x: x.all(1, True)),
        "reduce_argmax": _first_extreme(True),
        "reduce_argmin": _first_extreme(False),
    }
