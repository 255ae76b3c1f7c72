"""What eager refuses of the arguments of operators, and torch's rules for fake tensors let pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

aten = torch.ops.aten


def _check_dimension(x: torch.Tensor, dim: int) -> None:
    most = max(x.dim(), 1)
    if not -most <= dim < most:
        text = f"expected to be in range of [{-most}, {most - 1}], but got {dim}"
        raise IndexError(f"Dimension out of range ({text})")


def _softmax(x: torch.Tensor, dim: int, _half_to_float: bool) -> None:
    _check_dimension(x, dim)


def _sort(x: torch.Tensor, dim: int = -1, _descending: bool = False) -> None:
    _check_dimension(x, dim)


def _stable_sort(
    x: torch.Tensor, *, stable: Any, dim: int = -1, descending: bool = False
) -> None:
    _check_dimension(x, dim)


def _probability(x: torch.Tensor, p: float = 0.5, *, generator: Any = None) -> None:
    if type(p) in (int, float) and not 0 <= p <= 1:
        raise RuntimeError(f"a probability is expected to be in [0, 1], but got p={p}")


def _check_interval(low: Any, high: Any, is_empty: bool) -> None:
    if all(type(bound) in (int, float) for bound in (low, high)) and is_empty:
        raise RuntimeError(
            f"'from' is expected to be less than 'to', but got from={low}, to={high}"
        )


def _uniform(x: torch.Tensor, low: Any = 0, high: Any = 1, *, generator: Any = None) -> None:
    _check_interval(low, high, low > high)


def _integers_below(x: torch.Tensor, high: Any, **_options: Any) -> None:
    _check_interval(0, high, high <= 0)


def _integers(x: torch.Tensor, low: Any, high: Any, **_options: Any) -> None:
    if high is not None:
        _check_interval(low, high, high <= low)


def _largest(name: str, x: torch.Tensor, dim: Any) -> None:
    """Where there are rows, but of no element, torch's rules raise."""
    if type(dim) is not int or not -x.dim() <= dim < x.dim():
        return
    text = f"{name}(): Expected reduction dim {dim % x.dim()} to have non-zero size."
    if type(x.shape[dim]) is int and x.shape[dim] == 0:
        raise IndexError(text)
    _check_found(x.shape[dim], text)


def _largest_of_all(
    name: str,
    x: torch.Tensor,
) -> None:
    where = "dim to be specified for input.numel() == 0"
    _check_found(x.numel(), f"{name}(): Expected reduction {where}")


def _check_found(
    count: Any,
    text: str,
) -> None:
    """The graph asserts that there are elements, if their number depends on data."""
    if isinstance(count, torch.SymInt) and not count.node.has_hint():
        torch._check(count != 0, lambda: text)


def _same_type(text: str, *tensors: torch.Tensor) -> None:
    """`text` begins what eager says on CPUs where the types differ."""
    kinds = [str(tensor.dtype).removeprefix("torch.") for tensor in tensors]
    if len(set(kinds)) > 1 and tensors[0].device.type == "cpu":
        raise RuntimeError(f"{text}, but got {' and '.join(kinds)}")


def _mm(a: torch.Tensor, b: torch.Tensor) -> None:
    _same_type("expected m1 and m2 to have the same dtype", a, b)


def _addmm(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, **_factors: Any) -> None:
    _same_type("mat1 and mat2 must have the same dtype", a, b)
    _same_type("self and mat2 must have the same dtype", x, b)


def _addmv(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, **_factors: Any) -> None:
    _same_type("addmv input tensors must have the same dtype", x, a, b)


def _mv(a: torch.Tensor, b: torch.Tensor) -> None:
    _same_type("addmv input tensors must have the same dtype", b, a, b)


def _two_alike(a: torch.Tensor, b: torch.Tensor, *_rest: Any, **_named: Any) -> None:
    _same_type("expected scalar types to be the same", a, b)


def _heaviside(a: torch.Tensor, b: torch.Tensor) -> None:
    _same_type("heaviside is not yet implemented for tensors with different dtypes.", a, b)


def _norm(x: torch.Tensor, *rest: Any, **_named: Any) -> None:
    """On CPUs the parameters are like the input, or float32 beside 16 bits."""
    kinds = {tensor.dtype for tensor in rest if isinstance(tensor, torch.Tensor)}
    is_mixed = x.dtype in (torch.float16, torch.bfloat16) and kinds == {torch.float32}
    if kinds and kinds != {x.dtype} and not is_mixed and x.device.type == "cpu":
        names = ", ".join(sorted(str(kind) for kind in kinds))
        raise RuntimeError(f"mixed dtype (CPU): parameters of {names} for {x.dtype}")


def _index_put(
    x: torch.Tensor, indices: Any, values: torch.Tensor, *_rest: Any, **_named: Any
) -> None:
    masks = all(index is None or index.dtype in (torch.bool, torch.uint8) for index in indices)
    if values.dtype != x.dtype and not (masks and values.numel() == 1):
        text = "Index put requires the source and destination dtypes match"
        raise RuntimeError(f"{text}, got {x.dtype} and {values.dtype}")


def _margin_loss(x: torch.Tensor, target: torch.Tensor, *_rest: Any, **_named: Any) -> None:
    if target.dtype != torch.int64 and x.device.type == "cpu":
        raise RuntimeError(f"expected scalar type Long but found {target.dtype}")


# Operator -> a function of its arguments, which raises what eager would, if not in its words.
CHECKS: dict[Any, Callable[..., None]] = {
    aten._softmax.default: _softmax,
    aten.sort.default: _sort,
    aten.sort.stable: _stable_sort,
    aten.bernoulli.p: _probability,
    aten.bernoulli_.float: _probability,
    aten.uniform_.default: _uniform,
    aten.random_.to: _integers_below,
    getattr(aten.random_, "from"): _integers,
    aten.randint_like.default: _integers_below,
    aten.randint_like.low_dtype: _integers,
    aten.max.dim: lambda x, dim, *_rest: _largest("max", x, dim),
    aten.min.dim: lambda x, dim, *_rest: _largest("min", x, dim),
    aten.max.default: lambda x: _largest_of_all("max", x),
    aten.min.default: lambda x: _largest_of_all("min", x),
    aten.median.dim: lambda x, dim, *_rest: _largest("median", x, dim),
    aten.nanmedian.dim: lambda x, dim, *_rest: _largest("median", x, dim),
    aten.mm.default: _mm,
    aten.addmm.default: _addmm,
    aten.mv.default: _mv,
    aten.addmv.default: _addmv,
    aten.addbmm.default: _addmm,
    aten.linalg_cross.default: _two_alike,
    aten._cdist_forward.default: _two_alike,
    aten.grid_sampler_2d.default: _two_alike,
    aten.grid_sampler_3d.default: _two_alike,
    aten.heaviside.default: _heaviside,
    aten.heaviside_.default: _heaviside,
    aten.native_layer_norm.default: _norm,
    aten.native_group_norm.default: _norm,
    aten.native_batch_norm.default: _norm,
    aten._native_batch_norm_legit.default: _norm,
    aten._native_batch_norm_legit.no_stats: _norm,
    aten._batch_norm_with_update.default: _norm,
    aten._batch_norm_no_update.default: _norm,
    aten.index_put.default: _index_put,
    aten.index_put_.default: _index_put,
    aten.multi_margin_loss.default: _margin_loss,
    aten.multilabel_margin_loss_forward.default: _margin_loss,
    aten.mode.default: lambda x, dim=-1, *_rest: _largest("mode", x, dim),
}

# Operators in place that refuse to write where elements share memory, beside those on elements.
_WRITERS = {
    getattr(aten, name)
    for name in "addbmm_ addmm_ baddbmm_ bernoulli_ cauchy_ copy_ cumprod_ cumsum_ eq_ "
    "exponential_ floor_divide_ ge_ geometric_ gt_ index_add_ le_ log_normal_ lt_ ne_ normal_ "
    "random_ scatter_ scatter_add_ uniform_".split()
}

# Those that write to several elements in one place all the same, and those that may share memory
# with what they read.
_CARELESS = {aten.conj_physical_}
_READ_FIRST = {aten.addbmm_, aten.addmm_, aten.ldexp_}


@cache
def element_writer(func: Any) -> str:
    """The name of the argument that the operator writes element by element, if it does."""
    if not isinstance(func, torch._ops.OpOverload):
        return ""
    packet = func.overloadpacket
    is_one = torch.Tag.pointwise in func.tags or packet in _WRITERS
    if not is_one or packet in _CARELESS:
        return ""
    named = [a.name for a in func._schema.arguments if a.alias_info and a.alias_info.is_write]
    return named[0] if len(named) == 1 else ""


def _extent(x: torch.Tensor) -> tuple[int, int] | None:
    """Where its elements begin and end, if they lie without gaps and their places are known.
    Guards are on the answer.
    """
    numbers = (*x.shape, *x.stride(), x.storage_offset())
    if any(type(n) is not int and not n.node.has_hint() for n in numbers):
        return None
    wanted = 1
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size != 1 and stride != wanted:
            return None
        wanted *= size
    return x.storage_offset(), x.storage_offset() + x.numel()


def check_memory(func: Any, x: torch.Tensor, operands: Sequence[Any]) -> None:
    """Raises what eager does where several elements of `x`, which is written, are one, or where
    it shares a part of its memory with an operand.
    """
    if x.layout != torch.strided or _is_empty(x):
        return
    sizes = zip(x.shape, x.stride(), strict=True)
    # Eager is asked for its words.
    if any(type(stride) is int and stride == 0 and _is_several(n) for n, stride in sizes):
        torch.zeros(1).expand(2).add_(1)
    for other in () if func.overloadpacket in _READ_FIRST else operands:
        if not isinstance(other, torch.Tensor) or other is x or other.layout != torch.strided:
            continue
        if _is_empty(other):
            continue
        if other.untyped_storage()._cdata != x.untyped_storage()._cdata:
            continue
        written, read = _extent(x), _extent(other)
        if written is None or read is None or other.dtype != x.dtype:
            continue
        apart = read[1] <= written[0] or written[1] <= read[0]
        if not apart and (read != written or other.stride() != x.stride()):
            numbers = torch.zeros(3)
            numbers[:2].add_(numbers[1:])


def _is_empty(x: torch.Tensor) -> bool:
    return any(type(size) is int and size == 0 for size in x.shape)


def _is_several(size: Any) -> bool:
    return size > 1 if type(size) is int else size.node.maybe_as_int() not in (None, 0, 1)
