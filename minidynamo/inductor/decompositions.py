"""Which operators are taken apart before lowering: torch's decompositions, less what we lower or
call whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
import torch._decomp
from torch._C import DispatchKey
from torch._decomp.decompositions import upsample_compute_output_size
from torch._prims_common import suggest_memory_format
from torch.fx.experimental.symbolic_shapes import statically_known_true

from minidynamo.inductor.lowering.composites import takes_parameters
from minidynamo.inductor.lowering.registry import LOWERINGS
from minidynamo.inductor.margin_losses import MARGIN_LOSSES
from minidynamo.inductor.quantized import is_loaded, quantized_decompositions
from minidynamo.inductor.sizes import has_symbols

aten = torch.ops.aten

# Beyond torch's core set: operators that fuse well when taken apart.
_EXTRA = [
    aten.addmv,
    aten.as_strided_copy,
    aten.dist,
    aten.linalg_vector_norm,
    aten.narrow_copy,
    aten.permute_copy,
    aten.unbind_copy,
    aten.upsample_bicubic2d,
    aten.upsample_trilinear3d,
    aten.view_copy,
    aten._euclidean_dist,
    aten.embedding_dense_backward,
    aten.native_batch_norm_backward,
    aten.native_group_norm_backward,
    aten.native_dropout_backward,
]
_NEAREST = ("upsample_nearest", "_upsample_nearest_exact")
# Composite operators of which other rows speak, and those that are so in Python alone.
_COMPOSITE = [
    aten.native_channel_shuffle.default,
    aten.nll_loss.default,
    *[getattr(aten, f"{kind}{d}d").default for kind in _NEAREST for d in (1, 2, 3)],
]
# Operators that a library does better, that draw random numbers as eager does, or that test their
# indices.
_WHOLE = [
    aten._scaled_dot_product_flash_attention_for_cpu,
    aten._scaled_dot_product_flash_attention_for_cpu_backward,
    aten.addmm,
    aten.baddbmm,
    aten.bmm,
    aten.convolution_backward,
    aten.grid_sampler_2d,
    aten.embedding_dense_backward,
    aten.index_select,
    aten.max_pool2d_with_indices_backward,
    aten.mm,
    aten.mv,
    aten.native_dropout,
    aten.upsample_bilinear2d,
    aten.upsample_nearest2d,
    aten.upsample_nearest2d_backward,
    aten.upsample_bilinear2d_backward,
    aten.bernoulli,
    aten.multinomial,
    aten.randn_like,
    aten.rand_like,
    aten.normal_functional,
    aten.uniform,
    aten.lstm,
    aten.gru,
    aten.triu_indices,
    aten.tril_indices,
]
# Where there is a backward: what is lowered whole otherwise, but whose parts the backward can
# compute again (from a row's statistics), so that results need not be kept beside inputs.
_RECOMPUTED = [
    aten.native_layer_norm,
    aten.native_group_norm,
    aten._fused_rms_norm,
    aten.hardswish,
    aten.log_sigmoid_forward,
    aten.log_sigmoid_backward,
    aten._log_softmax,
    aten._log_softmax_backward_data,
    aten.threshold_backward,
    aten.hardtanh_backward,
    aten.leaky_relu_backward,
]


# Operators whose results are laid out as their first argument is; decompositions give rows.
_LAID_OUT = [
    aten.channel_shuffle.default,
    aten.native_channel_shuffle.default,
]


# Operators with a gradient of their own, on the CPU.
_WITH_GRADIENT = [
    aten.softshrink.default,
    aten.upsample_nearest2d.default,
    aten.upsample_nearest2d.vec,
    aten.upsample_bilinear2d.default,
    aten.upsample_bilinear2d.vec,
]


_GRADIENTS_OF_MEANS = [
    aten.mse_loss_backward.default,
    aten.smooth_l1_loss_backward.default,
    aten.huber_loss_backward.default,
]


# Interpolation whose positions are computed for each element.
_INTERPOLATED = [
    aten.upsample_bicubic2d.default,
    aten.upsample_trilinear3d.default,
]


def _is_bad_nll(
    x: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    *_rest: Any,
) -> bool:
    known = x.dtype.is_floating_point and target.dtype in (torch.int64, torch.uint8)
    return not known or (weight is not None and weight.dtype != x.dtype)


def _is_bad_addmv(
    x: torch.Tensor,
    matrix: torch.Tensor,
    *_rest: Any,
    **_factors: Any,
) -> bool:
    """Only a single element is added to every row."""
    fitting = (1, matrix.shape[0])
    return x.dim() > 1 or not any(statically_known_true(x.numel() == n) for n in fitting)


def _is_bad_celu(x: torch.Tensor, alpha: Any = 1.0) -> bool:
    return isinstance(alpha, (int, float)) and alpha == 0


def _is_bad_norm(x: torch.Tensor, *args: Any) -> bool:
    parameters = [arg for arg in args if isinstance(arg, torch.Tensor)]
    return not takes_parameters(x, *parameters)


def _is_empty_plane(x: torch.Tensor, size: Sequence[Any], *_rest: Any) -> bool:
    return any(type(extent) is int and not extent for extent in (*x.shape[2:], *size))


def _is_cut_off(x: torch.Tensor, *_factors: Any, value: Any = 1) -> bool:
    return isinstance(value, float) and not (x.is_floating_point() or x.is_complex())


# Whether eager refuses arguments that the decomposition takes, or the other way round: such calls
# stay whole, and eager says what is wrong.
_REFUSED: dict[Any, Callable[..., bool]] = {
    aten.smooth_l1_loss.default: lambda x, y, reduction=1, beta=1.0: beta < 0,
    aten.addcmul_.default: _is_cut_off,
    aten.addmv.default: _is_bad_addmv,
    aten.celu.default: _is_bad_celu,
    aten.celu_.default: _is_bad_celu,
    aten.nll_loss.default: _is_bad_nll,
    aten.nll_loss_forward.default: _is_bad_nll,
    aten.nll_loss2d_forward.default: _is_bad_nll,
    aten.upsample_bicubic2d.default: _is_empty_plane,
    aten.upsample_trilinear3d.default: _is_empty_plane,
}


def _of_any(decompose: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The gradient of a mean, also that of no elements, by whose number it would be divided."""

    def run(grad: torch.Tensor, x: torch.Tensor, *args: Any) -> torch.Tensor:
        if any(type(extent) is int and not extent for extent in x.shape):
            return torch.zeros_like(x)
        return decompose(grad, x, *args)

    return run


def _unless(refused: Callable[..., bool], decompose: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        return NotImplemented if refused(*args, **kwargs) else decompose(*args, **kwargs)

    return run


# Their ends may be on a GPU and the result on the CPU, or the other way round.
_SPACED = [
    getattr(getattr(aten, name), f"{start}_{end}")
    for name in ("linspace", "logspace")
    for start, end in (("Tensor", "Tensor"), ("Tensor", "Scalar"), ("Scalar", "Tensor"))
]


def _brought_together(decompose: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """With numbers that are tensors on the result's device."""

    def run(*args: Any, **kwargs: Any) -> torch.Tensor:
        device = kwargs.get("device") or torch.device("cpu")
        moved = [x.to(device) if isinstance(x, torch.Tensor) else x for x in args]
        return decompose(*moved, **kwargs)

    return run


def _laid_out(decompose: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def run(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        result = decompose(x, *args, **kwargs)
        return result.contiguous(memory_format=suggest_memory_format(x))

    return run


def _in_rows(decompose: Callable[..., tuple[torch.Tensor, ...]]) -> Callable[..., Any]:
    def run(*args: Any) -> tuple[torch.Tensor, ...]:
        first, *rest = decompose(*args)
        return first.contiguous(), *rest

    return run


def _roll(
    x: torch.Tensor,
    shifts: Sequence[int],
    dims: Sequence[int] = (),
) -> torch.Tensor:
    """As eager concatenates two parts, whose layout the result has; rows are rolled whole."""
    layout = suggest_memory_format(x)
    if layout == torch.contiguous_format:
        return NotImplemented
    if not dims or not x.numel():
        return NotImplemented
    for shift, dim in zip(shifts, dims, strict=True):
        size = x.shape[dim]
        start = -shift % size
        first = x.narrow(dim, start, size - start)
        second = x.narrow(dim, 0, start)
        x = torch.cat((first, second), dim)
    return x


def _ldexp(x: torch.Tensor, exponent: torch.Tensor) -> torch.Tensor:
    """A whole power of two may be infinite, or zero, where the product is neither."""
    if x.is_floating_point() and not (exponent.is_floating_point() or exponent.is_complex()):
        return NotImplemented
    return x * torch.pow(2.0, exponent)


def _index_fill(
    x: torch.Tensor,
    dim: int,
    index: torch.Tensor,
    value: Any,
) -> torch.Tensor:
    """Negative positions count from the end, which `index_copy` knows nothing of."""
    if index.dtype != torch.int64 or index.dim() > 1 or not x.dim():
        return NotImplemented
    if not isinstance(value, torch.Tensor):
        value = torch.scalar_tensor(value, dtype=x.dtype, device=x.device)
    elif value.dim() or value.device != x.device:
        return NotImplemented
    places = [None] * (dim % x.dim())
    result: torch.Tensor = aten.index_put.default(
        x,
        [*places, index],
        value.to(x.dtype),
    )
    return result


def _random_from(
    x: torch.Tensor,
    low: int,
    high: int | None,
    *,
    generator: Any = None,
) -> torch.Tensor:
    """By the overload that begins at 0: the name of this one is no name in the text of a graph."""
    is_float = x.dtype.is_floating_point
    lowest, highest = -(1 << 63), (1 << 63) - 1
    if is_float:
        least = round(1 / torch.finfo(x.dtype).eps) * 2
    elif x.dtype == torch.bool:
        lowest, least = 0, 1
    else:
        info = torch.iinfo(x.dtype)
        lowest, highest, least = info.min, info.max, info.max
    end = least + 1 if high is None else high
    options = {"generator": generator}
    if low < lowest or end - 1 > highest:  # eager's refusal
        return aten.random.to(x, min(max(end, highest + 2), (1 << 63) - 1), **options)
    if end - low >= 1 << 63:
        return NotImplemented
    if not low:
        return aten.random.to(x, end, **options)
    wide = torch.empty_like(x, dtype=torch.int64)
    drawn = aten.random.to(wide, end - low, **options)
    return (drawn + low).to(x.dtype)


def _max_unpool2d(x: torch.Tensor, *args: Any) -> torch.Tensor:
    """Laid out as its first argument is, which its meta function does not say."""
    layout = suggest_memory_format(x)
    if layout == torch.contiguous_format:
        return NotImplemented
    return aten.max_unpool2d(x.contiguous(), *args).contiguous(memory_format=layout)


def _embedding_bag(
    weight: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    *options: Any,
) -> Any:
    """Sums of bfloat16 rows: which bag an index is in is not told by the kernel, though the meta
    function says so; gradients need it.
    """
    if weight.dtype != torch.bfloat16 or weight.device.type != "cpu" or mode != 0:
        return NotImplemented
    args = (weight, indices, offsets, scale_grad_by_freq, mode, *options)
    results = aten._embedding_bag_forward_only.default(*args)
    order = torch.arange(indices.shape[0], dtype=offsets.dtype, device=indices.device)
    bags = torch.searchsorted(offsets, order, right=True).to(offsets.dtype) - 1
    counts = offsets.new_zeros(results[0].shape[:1])
    return results[0], bags, counts, counts.clone()


def _addr(decompose: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Of 16 bits each product is rounded, as the operator does on the CPU."""

    def run(
        x: torch.Tensor,
        a: torch.Tensor,
        b: torch.Tensor,
        *,
        beta: float = 1,
        alpha: float = 1,
    ) -> torch.Tensor:
        dtype = x.dtype
        if {dtype, a.dtype, b.dtype} - {dtype} or dtype.itemsize != 2 or x.device.type != "cpu":
            return decompose(x, a, b, beta=beta, alpha=alpha)
        if not dtype.is_floating_point or beta == 0:
            return decompose(x, a, b, beta=beta, alpha=alpha)
        own_beta, own_alpha = (torch.tensor(v, dtype=dtype).item() for v in (beta, alpha))
        scaled = (a.float() * own_alpha).to(dtype).float()
        product = (scaled.unsqueeze(1) * b.float()).to(dtype).float()
        kept = (x.float() * own_beta).to(dtype).float()
        return (kept + product).to(dtype)

    return run


def _isin(decompose: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Many elements are sorted, and then searched by halves, which NaN at the end leads astray: it
    is taken for infinity, which is looked for by itself.
    """

    def run(x: torch.Tensor, given: torch.Tensor, **options: Any) -> torch.Tensor:
        is_few = statically_known_true(given.numel() < 10)  # compared one by one
        if is_few or not given.is_floating_point() or options.get("assume_unique"):
            return decompose(x, given, **options)
        infinity = float("inf")
        found = decompose(x, torch.where(given.isnan(), infinity, given), **options)
        is_known = (x != infinity) | (given == infinity).any()
        return found | ~is_known if options.get("invert") else found & is_known

    return run


def _of_known_sizes(decompose: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Of floats, and where sizes are numbers: symbolic ones make long expressions of positions, and
    eager interpolates integers in fixed point.
    """

    def run(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if has_symbols((x, *args)) or not x.dtype.is_floating_point:
            return NotImplemented
        return decompose(x, *args, **kwargs)

    return run


def times_repeated(wanted: Any, given: Any) -> int:
    """How often (1, 2, 4, ...) elements are repeated, whatever the symbolic sizes; else 0."""
    powers = (1 << shift for shift in range(7))
    return next((n for n in powers if statically_known_true(wanted == given * n)), 0)


def _nearest(
    x: torch.Tensor,
    size: Sequence[int] | None,
    scales: Sequence[float] | None,
) -> torch.Tensor:
    """An operator of sizes: those of symbolic ones are multiples where scales are integers."""
    wanted = upsample_compute_output_size(x.size(), size, scales)
    result: torch.Tensor = aten.upsample_nearest2d.default(x, wanted, *(scales or ()))
    return result


def _bilinear(
    x: torch.Tensor,
    size: Sequence[int] | None,
    align_corners: bool,
    scales: Sequence[float] | None,
) -> torch.Tensor:
    """As `_nearest`."""
    wanted = upsample_compute_output_size(x.size(), size, scales)
    result: torch.Tensor = aten.upsample_bilinear2d.default(
        x, wanted, align_corners, *(scales or ())
    )
    return result


def _nearest_backward(
    gradient: torch.Tensor,
    size: Sequence[int],
    given: Sequence[int],
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> torch.Tensor:
    """Where elements were repeated 1, 2, 4, .. times, a gradient is the sum over the copies."""
    if not statically_known_true(gradient.numel() > 0):
        return NotImplemented
    times = [times_repeated(*pair) for pair in zip(size, given[2:], strict=True)]
    for n, scale in zip(times, (scales_h, scales_w), strict=True):
        plain = scale in (None, n) or (n <= 2 and gradient.device.type == "cpu")
        if not n or not plain:
            return NotImplemented
    layout = suggest_memory_format(gradient)
    parts = (
        gradient.float().unflatten(3, (given[3], times[1])).unflatten(2, (given[2], times[0]))
    )
    summed = parts.sum((3, 5)).to(gradient.dtype)
    return summed.contiguous(memory_format=layout)


def _softshrink_backward(
    gradient: torch.Tensor,
    x: torch.Tensor,
    limit: float,
) -> torch.Tensor:
    """Taken apart since its meta function knows no symbolic sizes."""
    return torch.where((x >= -limit) & (x <= limit), 0, gradient)


_OF_SYMBOLIC_SIZES: dict[Any, Any] = {
    aten.softshrink.default: None,
    aten.upsample_nearest2d.default: None,
    aten.upsample_nearest2d.vec: _nearest,
}
# The meta functions of these operators' gradients know no symbolic sizes.
_OF_SYMBOLIC_SIZES_WITHOUT_GRADIENT: dict[Any, Any] = {
    aten.upsample_bilinear2d.default: None,
    aten.upsample_bilinear2d.vec: _bilinear,
}


@contextmanager
def before_autograd(inputs: Sequence[Any]) -> Iterator[None]:
    """Within, autograd sees interpolation on the CPU as operators. Otherwise torch takes it apart
    before, into reads at computed positions, whose gradient is a scatter: the operators' own is
    several times as fast. `softshrink` keeps its gradient at NaN. And it sees our margin losses.
    """
    tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
    if has_symbols(inputs) or any(x.device.type != "cpu" for x in tensors):
        kernels = _OF_SYMBOLIC_SIZES if all(x.device.type == "cpu" for x in tensors) else {}
        if kernels and not any(x.requires_grad for x in tensors):
            kernels = kernels | _OF_SYMBOLIC_SIZES_WITHOUT_GRADIENT
    else:
        kernels = dict.fromkeys(_WITH_GRADIENT)
    with _in_place_of_torchs({**MARGIN_LOSSES, **kernels}):
        yield


@contextmanager
def _in_place_of_torchs(kernels: Mapping[Any, Any]) -> Iterator[None]:
    """Within, operators have these decompositions before autograd; None: they stay whole."""
    keys = DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd
    taken = [
        (op, key, op.py_kernels.pop(key))
        for op in kernels
        for key in keys
        if key in op.py_kernels
    ]
    for op, key, _ in taken:
        if kernels[op] is not None:
            op.py_kernels[key] = kernels[op]
    for op in kernels:
        op._dispatch_cache.clear()
    try:
        yield
    finally:
        for op, key, kernel in taken:
            op.py_kernels[key] = kernel
            op._dispatch_cache.clear()


def _parts(op: Any) -> Callable[..., Any]:
    return op.py_kernels.get(torch._C.DispatchKey.CompositeImplicitAutograd, op.decompose)


def decomposition_table() -> dict[Any, Callable[..., Any]]:
    """Operator overload -> decomposition, for AOTAutograd and for `capture`."""
    return _table(is_loaded())


@cache
def _table(with_quantized: bool) -> dict[Any, Callable[..., Any]]:
    # Not core_aten_decompositions(), which looks through every operator there is for composite ones
    # (0.1 s): those are taken apart where they are met.
    table = dict(torch._decomp._core_aten_decompositions_post_autograd())
    table.update({op: _parts(op) for op in _COMPOSITE})
    table.update(torch._decomp.get_decompositions(_EXTRA))
    table.update({op: _laid_out(table[op]) for op in _LAID_OUT if op in table})
    table.update({op: _brought_together(table[op]) for op in _SPACED if op in table})
    table.update({op: _of_known_sizes(table[op]) for op in _INTERPOLATED})
    table.update({op: _unless(refused, table[op]) for op, refused in _REFUSED.items()})
    table.update({op: _of_any(table[op]) for op in _GRADIENTS_OF_MEANS})
    table[aten.isin.Tensor_Tensor] = _isin(table[aten.isin.Tensor_Tensor])
    table[aten.addr.default] = _addr(table[aten.addr.default])
    table.update(MARGIN_LOSSES)
    whole = {getattr(op, name) for op in _WHOLE for name in op.overloads()}
    table = {op: fn for op, fn in table.items() if op not in LOWERINGS and op not in whole}
    if with_quantized:
        table.update(quantized_decompositions())
    return {
        **table,
        aten.ldexp.Tensor: _ldexp,
        aten.softshrink_backward.default: _softshrink_backward,
        aten.roll.default: _roll,
        getattr(aten.random, "from"): _random_from,
        aten.max_unpool2d.default: _max_unpool2d,
        aten.index_fill.int_Scalar: _index_fill,
        aten.index_fill.int_Tensor: _index_fill,
        aten._embedding_bag.default: _embedding_bag,
    }


def training_decompositions() -> dict[Any, Callable[..., Any]]:
    """The same for graphs that are split into forward and backward."""
    return _training_table(is_loaded())


@cache
def _training_table(with_quantized: bool) -> dict[Any, Callable[..., Any]]:
    recomputed = torch._decomp.get_decompositions(_RECOMPUTED)
    for op in (aten.native_layer_norm.default, aten.native_group_norm.default):
        recomputed[op] = _unless(_is_bad_norm, recomputed[op])
    log_sigmoid = aten.log_sigmoid_forward.default
    recomputed[log_sigmoid] = _in_rows(recomputed[log_sigmoid])
    return {**_table(with_quantized), **recomputed}
