"""Fake results of operators whose sizes are those of an argument.

torch runs such operators as dozens of others (a group norm as forty), each of which makes a tensor
and, where sizes are symbolic, asks whether they are equal: half of the time that a convolutional
network takes to trace. And where one of these has a number for an operand, torch 2.13 imports
torch.distributed, 0.2 s of a first call. Here `RESULTS` says what there is to know of them. It
speaks of dense rows of one floating-point dtype of 32 or 64 bits; everything else goes torch's way,
errors among them.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._prims_common import compute_elementwise_output_strides, suggest_memory_format
from torch._subclasses.fake_tensor import (
    FakeTensor,
    FakeTensorMode,
    in_kernel_invocation_manager,
)
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from .deferred_torch import fake_mode
from .fake_arguments import CHECKS, check_memory, element_writer

__all__ = ["forget_tensors", "sized_fake_mode"]

aten = torch.ops.aten
_DTYPES = (torch.float32, torch.float64)
# Shapes of the results after the first, which is like the first argument; None: not known here.
Shapes = Sequence[Sequence[Any]] | None


def _no_more(*_args: Any, **_kwargs: Any) -> Shapes:
    return ()


def _gelu(x: FakeTensor, *, approximate: str = "none") -> Shapes:
    return () if approximate in ("none", "tanh") else None


def _softmax(x: FakeTensor, dim: int, half_to_float: bool) -> Shapes:
    return None if half_to_float or not -x.dim() <= dim < x.dim() else ()


def _layer_norm(
    x: FakeTensor, shape: Sequence[Any], weight: Any, bias: Any, _eps: float
) -> Shapes:
    axis = x.dim() - len(shape)
    wanted = [_expr(size) for size in shape]
    for given in (x.shape[max(axis, 0) :], *(p.shape for p in (weight, bias) if p is not None)):
        if [_expr(size) for size in given] != wanted:
            return None
    stats = (*x.shape[:axis], *[1] * len(shape))
    return (stats, stats) if shape else None


def _group_norm(
    x: FakeTensor,
    _weight: Any,
    _bias: Any,
    batch: Any,
    channels: Any,
    _inner: Any,
    groups: Any,
    _eps: float,
) -> Shapes:
    if x.dim() < 2 or type(channels) is not int or type(groups) is not int or channels % groups:
        return None
    return (batch, groups), (batch, groups)


def _batch_norm(
    x: FakeTensor,
    weight: Any,
    bias: Any,
    mean: Any,
    var: Any,
    _momentum: float,
    _eps: float,
) -> Shapes:
    known = mean is not None and var is not None and x.dim() >= 2 and x.device.type == "cpu"
    tensors = [t for t in (weight, bias, mean, var) if t is not None]
    if not known or any([_expr(n) for n in t.shape] != [_expr(x.shape[1])] for t in tensors):
        return None
    return (0,), (0,)


RESULTS: dict[Any, Callable[..., Shapes]] = {
    aten.elu.default: _no_more,
    aten.gelu.default: _gelu,
    aten.hardsigmoid.default: _no_more,
    aten.hardswish.default: _no_more,
    aten.hardtanh.default: _no_more,
    aten.leaky_relu.default: _no_more,
    aten.mish.default: _no_more,
    aten.relu.default: _no_more,
    aten.silu.default: _no_more,
    aten._softmax.default: _softmax,
    aten._log_softmax.default: _softmax,
    aten._native_batch_norm_legit_no_training.default: _batch_norm,
    aten.native_group_norm.default: _group_norm,
    aten.native_layer_norm.default: _layer_norm,
}
# Their result is their first argument.
IN_PLACE = {
    aten.elu_.default,
    aten.gelu_.default,
    aten.hardsigmoid_.default,
    aten.hardswish_.default,
    aten.hardtanh_.default,
    aten.leaky_relu_.default,
    aten.mish_.default,
    aten.relu_.default,
    aten.silu_.default,
}

# Of floating-point tensors and numbers, their results have the sizes of the largest operand where
# the others' are its last ones.
POINTWISE = {
    getattr(getattr(aten, name), overload)
    for overload, names in {
        "default": "abs acos acosh asin asinh atan atan2 atanh ceil clamp_max clamp_min cos cosh "
        "erf erfc exp exp2 expm1 floor log log10 log1p log2 maximum minimum neg reciprocal round "
        "rsqrt sigmoid sign sin sinh sqrt tan tanh trunc",
        "Tensor": "add div mul sub",
        "Tensor_Scalar": "pow",
        "Tensor_Tensor": "pow",
    }.items()
    for name in names.split()
}
_POINTWISE_DTYPES = (*_DTYPES, torch.bfloat16, torch.float16)
_NUMBERS = (int, float, torch.SymInt, torch.SymFloat)
_NO_INTEGERS = (torch.SymFloat, torch.SymBool)


def _of_operands(*args: Any, **_options: Any) -> Sequence[int]:
    tensors = [
        torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")
        for x in args
        if isinstance(x, torch.Tensor)
    ]
    return compute_elementwise_output_strides(*torch.broadcast_tensors(*tensors))


def _of_rows(x: FakeTensor, *_rest: Any) -> Sequence[int]:
    return torch.empty(x.shape, device="meta").stride()


def _of_exponents(_base: Any, x: FakeTensor) -> Sequence[int]:
    return _of_rows(x)


def _of_drawn(*args: Any, **_options: Any) -> Sequence[int]:
    shapes = [x.shape for x in args if isinstance(x, torch.Tensor)]
    return torch.empty(torch.broadcast_shapes(*shapes), device="meta").stride()


_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def _of_images(x: FakeTensor, *_rest: Any) -> Sequence[int]:
    layout = suggest_memory_format(x)
    last, numbers = _LAST.get(x.dim()), (*x.shape, *x.stride())
    is_sized = last is not None and all(type(n) is int for n in numbers)
    if is_sized and not x.is_contiguous() and x.is_contiguous(memory_format=last):
        layout = last  # whatever the strides of single elements are
    return torch.empty(x.shape, device="meta", memory_format=layout).stride()


def _of_samples(x: FakeTensor, grid: FakeTensor, *_rest: Any) -> Sequence[int]:
    return torch.empty((*x.shape[:2], *grid.shape[1:-1]), device="meta").stride()


def _of_indexed(x: FakeTensor, indices: Sequence[FakeTensor | None]) -> Sequence[int] | None:
    """The first operand of the iteration is `x` with strides of 0 where it is indexed, the others
    are the indices (aten/src/ATen/native/TensorAdvancedIndexing.cpp).
    """
    given = [index for index in indices if index is not None]
    if not all(
        _is_sized(index) and index.dtype in (torch.int64, torch.int32) for index in given
    ):
        return None
    indexed = [d for d, index in enumerate(indices) if index is not None]
    rest = [d for d in range(x.dim()) if d not in indexed]
    is_one_run = indexed == list(range(indexed[0], indexed[-1] + 1))
    before = indexed[0] if is_one_run else 0
    views = [torch.empty_strided(i.shape, i.stride(), device="meta") for i in given]
    views = list(torch.broadcast_tensors(*views))
    count = views[0].dim()
    order = [*rest[:before], *[None] * count, *rest[before:]]
    shape = [1 if d is None else x.size(d) for d in order]
    strides = [0 if d is None else x.stride(d) for d in order]
    operands = [torch.empty_strided(shape, strides, device="meta")]
    operands += [v[(None,) * before + (..., *[None] * (len(rest) - before))] for v in views]
    return compute_elementwise_output_strides(*torch.broadcast_tensors(*operands))


# How eager lays out the first result of operators that torch's fake tensors run as others, whose
# results are laid out differently: another operand comes first, or dimensions stay transposed.
STRIDES: dict[Any, Callable[..., Sequence[int] | None]] = {
    aten.binary_cross_entropy.default: _of_operands,
    aten.copysign.Tensor: _of_operands,
    aten.div.Tensor_mode: _of_operands,
    aten.floor_divide.default: _of_operands,
    aten.grid_sampler_2d.default: _of_samples,
    aten.grid_sampler_3d.default: _of_samples,
    aten.heaviside.default: _of_operands,
    aten.index.Tensor: _of_indexed,
    aten.log_sigmoid_forward.default: _of_rows,
    aten.logaddexp.default: _of_operands,
    aten.logaddexp2.default: _of_operands,
    aten.logical_and.default: _of_operands,
    aten.logical_or.default: _of_operands,
    aten.logical_xor.default: _of_operands,
    aten.normal.Tensor_Tensor: _of_drawn,
    aten.normal.Tensor_float: _of_drawn,
    aten.normal.float_Tensor: _of_drawn,
    aten.poisson.default: _of_drawn,
    aten.pow.Scalar: _of_exponents,
    aten.rrelu_with_noise.default: _of_rows,
    aten.rrelu_with_noise_functional.default: _of_rows,
    aten.special_xlog1py.default: _of_operands,
    aten.xlogy.Tensor: _of_operands,
    aten.native_batch_norm.default: _of_images,
    aten._native_batch_norm_legit.default: _of_images,
    aten._native_batch_norm_legit.no_stats: _of_images,
    aten._native_batch_norm_legit_functional.default: _of_images,
    aten._native_batch_norm_legit_no_training.default: _of_images,
}


# Of which argument the result has the dtype, where torch's fake tensors promote them.
_DTYPES_OF = {
    aten.normal.Tensor_Tensor: 0,
    aten.normal.Tensor_float: 0,
    aten.normal.float_Tensor: 1,
}

# The layout is that of rows, or follows from the strides.
_OF_ANY_SIZES = (_of_images, _of_rows, _of_exponents)


def sized_fake_mode(**options: Any) -> FakeTensorMode:
    """torch's, with short ways for the operators of `RESULTS`, and where sizes are known with
    eager's layouts for those of `STRIDES`.

    No class of its own: up to torch 2.11 higher-order operators know what to do under a mode by its
    very type.
    """
    mode = fake_mode(**options)
    mode.dispatch = functools.partial(_dispatch, weakref.ref(mode))
    return mode


def forget_tensors(mode: FakeTensorMode) -> None:
    """Lets go of the weak references to the real tensors that fake ones were made of: with them
    torch.utils.swap_tensors refuses these, as module.to() and load_state_dict() may want it.
    """
    describer = mode.fake_tensor_converter.meta_converter.describer
    describer.lookup_tensor.clear()
    describer.lookup_storage.clear()


def _dispatch(
    itself: Callable[[], Any],
    func: Any,
    types: Sequence[type],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
) -> Any:
    mode = itself()
    if func is aten.std_mean.dim:
        # Met in inference mode; torch's function for symbolic sizes takes other arguments.
        with mode:
            return func.decompose(*args, **(kwargs or {}))
    if func in CHECKS:
        CHECKS[func](*args, **(kwargs or {}))
    written = element_writer(func)
    if written == "self":
        check_memory(func, args[0], args[1:])
    elif written and kwargs and written in kwargs:
        check_memory(func, kwargs[written], args)
    if func in POINTWISE:
        like = _operand_like(mode, func, args, kwargs)
        if like is not None:
            return _results(mode, like, ())
    elif (func in RESULTS or func in IN_PLACE) and _is_known(mode, args):
        shapes = RESULTS.get(func, _no_more)(*args, **(kwargs or {}))
        if shapes is not None:
            return args[0] if func in IN_PLACE else _results(mode, args[0], shapes)
    if func in (aten.view.default, aten._unsafe_view.default):
        geometry = _view_of_rows(args[0], args[1])
        if geometry is not None:
            strided = aten.as_strided.default
            return FakeTensorMode.dispatch(mode, strided, types, (args[0], *geometry), {})
    if func is aten.view.default:
        _check_view(mode, *args)
    elif func is aten.nansum.default and len(args) > 1 and not args[1]:
        # Eager sums over all dimensions if none are given, torch's rule for fake tensors over none.
        args = (args[0], None, *args[2:])
    is_unknown = _has_unknown_number((*args, *(kwargs or {}).values()))
    if is_unknown or _writes_to_lists(func):
        tensors = [x for x in tree_leaves((args, kwargs)) if type(x) is FakeTensor]
        known = sum(tensor.constant is not None for tensor in tensors)
        if known and (is_unknown or known < len(tensors)):
            return _without_constants(mode, tensors, func, types, args, kwargs or {})
    try:
        result = FakeTensorMode.dispatch(mode, func, types, args, kwargs or {})
    except RuntimeError:
        # Meta functions in C++ take no symbolic sizes, not even those that are constants by now.
        known = _with_known_sizes(mode, func, (args, kwargs or {}))
        if known is None:
            raise
        result = FakeTensorMode.dispatch(mode, func, types, *known)
    if func in _DTYPES_OF and result.dtype != args[_DTYPES_OF[func]].dtype:
        with mode:
            result = result.to(args[_DTYPES_OF[func]].dtype)
    return _relaid(mode, result, STRIDES[func](*args)) if _has_layout(func, args) else result


def _has_unknown_number(given: Sequence[Any]) -> bool:
    return any(
        type(value) in _NO_INTEGERS
        or (type(value) in (list, tuple) and any(type(each) in _NO_INTEGERS for each in value))
        for value in given
    )


@functools.cache
def _writes_to_lists(func: Any) -> bool:
    return str(func).startswith("aten._foreach_") and func._schema.is_mutable


def _without_constants(
    mode: FakeTensorMode,
    tensors: Sequence[FakeTensor],
    func: Any,
    types: Sequence[type],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    """torch computes results of tensors whose data it knows; a symbolic float would be NaN there,
    and a symbolic bool true. It forgets what is written to, but not what is written to in lists.
    """
    mode.invalidate_written_to_constants(func, tensors, args, kwargs)
    for written in args[0] if _writes_to_lists(func) else ():
        if written.constant is not None:
            mode.fake_tensor_converter.invalidate_constant_aliases(written.constant)
    known = [(tensor, tensor.constant) for tensor in tensors]
    for tensor in tensors:
        tensor.constant = None
    try:
        return FakeTensorMode.dispatch(mode, func, types, args, kwargs)
    finally:
        for tensor, constant in known:
            tensor.constant = constant


def _view_of_rows(x: torch.Tensor, shape: Sequence[Any]) -> tuple[list[Any], list[Any]] | None:
    """Sizes and strides of a view of symbolic sizes, guarded to have as many elements; None where
    torch has to find them: for memory of another order, and sizes that depend on data.

    torch takes a view apart dimension by dimension: the sizes of `x.view(h // 4, 4, w)` are
    `h // 4`, `h // (h // 4)` and `w` there. What is computed of these has no end.
    """
    symbolic = [n for n in (*x.shape, *shape) if isinstance(n, torch.SymInt)]
    if not symbolic or not all(n.node.has_hint() for n in symbolic):
        return None
    if type(x) is not FakeTensor or x.layout != torch.strided or not is_row_major(x):
        return None
    if not all(map(_hint, (*x.shape, *shape))) or not _has_as_many(x.shape, shape):
        return None
    steps: list[Any] = [1]
    for size in reversed(shape[1:]):
        steps.append(steps[-1] * (size if type(size) is not int else max(size, 1)))
    return list(shape), steps[::-1][: len(shape)]


def _hint(number: Any) -> int:
    return number if type(number) is int else int(number.node.hint)


def _has_as_many(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether two shapes have as many elements, group by group of dimensions that have in the
    call that is compiled for: what is said of each group, and not of all, tells more.
    """
    left, right = [*reversed(one)], [*reversed(other)]
    while left or right:
        a, b = left.pop() if left else 1, right.pop() if right else 1
        while _hint(a) != _hint(b):
            shorter = left if _hint(a) < _hint(b) else right
            if not shorter:
                return False
            if shorter is left:
                a = a * left.pop()
            else:
                b = b * right.pop()
        if a != b:
            return False
    return True


def _check_view(mode: FakeTensorMode, x: torch.Tensor, shape: Sequence[Any]) -> None:
    """Raises where there is no such view of `x`. torch's rule for fake tensors joins what lies on
    both sides of a dimension of size 1, whatever the strides are; it is right without these.
    """
    if type(x) is not FakeTensor or x.layout != torch.strided:
        return
    kept = [axis for axis, size in enumerate(x.shape) if type(size) is not int or size != 1]
    if 1 < len(kept) < x.dim() and not is_row_major(x):
        sizes, strides = ([numbers[axis] for axis in kept] for numbers in (x.shape, x.stride()))
        with mode:
            x.detach().as_strided(sizes, strides).view(shape)


def _with_known_sizes(mode: FakeTensorMode, func: Any, given: Any) -> Any:
    """The arguments with tensors of plain integers; None where sizes are not known, there are none
    that are symbolic, or the result is one of the arguments.
    """
    leaves, spec = tree_flatten(given)
    tensors = [x for x in leaves if isinstance(x, torch.Tensor) and x.layout == torch.strided]
    schema = getattr(func, "_schema", None)
    if schema is None or all(type(n) is int for x in tensors for n in (*x.shape, *x.stride())):
        return None
    if any(part.alias_info for part in (*schema.arguments, *schema.returns)):
        return None
    found = []
    for leaf in leaves:
        if any(leaf is tensor for tensor in tensors):
            shape, stride = (list(map(_constant, n)) for n in (leaf.shape, leaf.stride()))
            if None in shape or None in stride:
                return None
            with mode:
                leaf = torch.empty_strided(shape, stride, dtype=leaf.dtype, device=leaf.device)
        found.append(leaf)
    return tree_unflatten(found, spec)


def _constant(number: Any) -> int | None:
    known: int | None = number if type(number) is int else number.node.maybe_as_int()
    return known


def _has_layout(func: Any, args: Sequence[Any]) -> bool:
    rule = STRIDES.get(func)
    x = args[rule is _of_exponents] if rule in _OF_ANY_SIZES else None
    if isinstance(x, torch.Tensor) and _is_on_cpu(x) and not is_row_major(x):
        return True
    tensors = [x for x in args if isinstance(x, torch.Tensor)] if rule else []
    if rule is _of_samples:  # on any device
        return all(type(size) is int for x in tensors for size in x.shape)
    return bool(tensors) and all(map(_is_sized, tensors))


def _is_on_cpu(x: torch.Tensor) -> bool:
    return type(x) is FakeTensor and x.layout == torch.strided and x.fake_device.type == "cpu"


def _is_sized(x: torch.Tensor) -> bool:
    """Whether it is a fake tensor on the CPU whose sizes are known."""
    return _is_on_cpu(x) and all(type(size) is int for size in x.shape)


def _relaid(mode: FakeTensorMode, result: Any, stride: Sequence[int] | None) -> Any:
    first, *rest = result if isinstance(result, tuple) else (result,)
    if type(first) is not FakeTensor or stride is None:
        return result
    if list(map(_expr, first.stride())) == list(map(_expr, stride)):
        return result
    if first.dim() != len(stride):
        return result  # a loss that was reduced
    with in_kernel_invocation_manager(mode):
        value = torch.empty_strided(first.shape, stride, dtype=first.dtype, device="meta")
    moved = FakeTensor(mode, value, first.fake_device)
    return (moved, *rest) if isinstance(result, tuple) else moved


def _operand_like(
    mode: FakeTensorMode,
    func: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
) -> FakeTensor | None:
    """The operand of `POINTWISE` whose sizes and strides the result has; None if not known here."""
    numbers = list((kwargs or {}).values())
    if kwargs and set(kwargs) != {"alpha"}:
        return None
    largest, tensors = None, []
    for value in args:
        if type(value) is not FakeTensor:
            numbers.append(value)
            continue
        tensors.append(value)
        if largest is None or value.dim() > largest.dim():
            largest = value
    if largest is None or any(type(number) not in _NUMBERS for number in numbers):
        return None
    if largest.dtype not in _POINTWISE_DTYPES:
        return None
    known = mode, largest.fake_device, largest.dtype
    sizes = [_expr(size) for size in largest.shape]
    for tensor in tensors:
        if (
            (tensor.fake_mode, tensor.fake_device, tensor.dtype) != known
            or tensor.constant is not None
            or tensor.layout != torch.strided
            or not is_row_major(tensor)
        ):
            return None
        own = [_expr(size) for size in tensor.shape]
        if own != sizes[len(sizes) - len(own) :]:
            return None
    return largest


def _is_known(mode: FakeTensorMode, args: Sequence[Any]) -> bool:
    x = args[0]
    if type(x) is not FakeTensor:
        return False
    tensors = [value for value in args if isinstance(value, torch.Tensor)]
    return (
        x.dtype in _DTYPES
        and is_row_major(x)
        and all(
            type(t) is FakeTensor
            and (t.fake_mode, t.fake_device, t.dtype) == (mode, x.fake_device, x.dtype)
            and t.constant is None
            and t.layout == torch.strided
            for t in tensors
        )
    )


def _results(mode: FakeTensorMode, x: FakeTensor, shapes: Sequence[Sequence[Any]]) -> Any:
    with in_kernel_invocation_manager(mode):
        first = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")
        rest = [torch.empty(shape, dtype=x.dtype, device="meta") for shape in shapes]
    found = tuple(FakeTensor(mode, value, x.fake_device) for value in (first, *rest))
    return found if shapes else found[0]


def _expr(size: Any) -> Any:
    return size.node.expr if isinstance(size, torch.SymInt) else size


def is_row_major(x: torch.Tensor) -> bool:
    """Whether the strides say so, whatever the sizes are; nothing is asked of them."""
    shape, strides = x.shape, x.stride()
    if all(type(number) is int for number in (*shape, *strides)):
        return _follow(shape, strides)
    key = tuple(_expr(size) for size in shape), tuple(_expr(stride) for stride in strides)
    known = _ROW_MAJOR.get(key)
    if known is None:
        known = _ROW_MAJOR[key] = _follow(shape, strides)
        if len(_ROW_MAJOR) > _MOST_KNOWN:
            _ROW_MAJOR.clear()
    return known


def _follow(shape: Sequence[Any], strides: Sequence[Any]) -> bool:
    expected: set[Any] = {1}
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if _expr(stride) not in expected:
            return False
        expected = {_expr(stride * size), _expr(stride * torch.sym_max(size, 1))}
    return True


# By the expressions of sizes and strides: the answer is one about expressions.
_ROW_MAJOR: dict[Any, bool] = {}
_MOST_KNOWN = 4096
