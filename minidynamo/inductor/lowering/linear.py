"""Matrix products: a library's, where they are not as cheap as reading their operands.

ATen calls MKL for float32, which is slow on other vendors' processors with AVX-512: on an AMD EPYC
(Zen 5) its sgemm reaches half of what oneDNN's does, on one with AVX2 (Zen 3) it is the faster one.
oneDNN's operator takes strided operands and adds the bias on the way, but costs 10 microseconds a
call, so small products stay with ATen.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from minidynamo.inductor import config
from minidynamo.inductor.extern import as_rearrangement
from minidynamo.inductor.ir import Index, TensorValue, View
from minidynamo.inductor.loop_body import BodyBuilder, Value
from minidynamo.inductor.lowering.promotion import category, compute_type
from minidynamo.inductor.lowering.reductions import loads, reduce_node
from minidynamo.inductor.lowering.registry import DECLINED, register
from minidynamo.inductor.lowering.scalar import Scalar
from minidynamo.inductor.processors import has_instructions, has_onednn, is_mkl_slow
from minidynamo.inductor.size_hints import hint_of
from minidynamo.inductor.symbolic import ZERO, IntLike, contiguous_strides, product
from minidynamo.inductor.timing import fastest_times

if TYPE_CHECKING:
    from minidynamo.inductor.graph import GraphLowering

aten = torch.ops.aten
# Multiplications from which oneDNN's lower rate of overhead pays.
ONEDNN_WORK = 1 << 21
# Multiplications of a product (of each, in a batch) up to which sums in a kernel are faster than
# a library; where one operand is a vector, by whether the sums run along the matrix's memory.
SMALL_WORK = 1 << 12
VECTOR_WORK = {True: 1 << 18, False: 1 << 16}
# The same for 16 bits, which ATen adds up at a half to a hundredth of the rate.
NARROW_VECTOR_WORK = {True: 1 << 62, False: 1 << 24}
# Inputs and outputs of the linear layers that are sums for a single row (torch.compile's figure).
LAYER_SIZES = range(1, 17)


@cache
def measured_onednn(
    sizes: tuple[int, int, int],
    is_turned: bool,
    threads: int,
) -> bool:
    """Whether oneDNN multiplies (m, k) by (k, n) faster than ATen, float32; is_turned: the second
    operand is a transpose.
    """
    rows, inner, columns = sizes
    if 0 in sizes:
        return False
    with torch.no_grad(), torch.utils._python_dispatch._disable_current_modes():
        a, b = torch.rand(rows, inner), torch.rand(inner, columns)
        if is_turned:
            b = b.t().contiguous().t()
        out, weight = torch.empty(rows, columns), b.t()
        linear = torch.ops.mkldnn._linear_pointwise
        seconds = fastest_times(
            [
                lambda: torch.mm(a, b, out=out),
                lambda: linear(
                    a,
                    weight,
                    None,
                    "none",
                    [],
                    "",
                ),
            ]
        )
    return seconds[1] < seconds[0]


def _prefers_onednn(
    a: TensorValue,
    b: TensorValue,
    *rest: TensorValue,
) -> bool:
    if any(x.dtype != torch.float32 for x in (a, b, *rest)):
        return False
    if a.device.type != "cpu" or config.cpu_linear == "aten":
        return False
    if not has_onednn() or not torch.backends.mkldnn.enabled:
        return False
    sizes = (*a.size, b.size[1])
    if (
        config.max_autotune
        and config.cpu_linear == "auto"
        and all(isinstance(n, int) for n in sizes)
    ):
        return measured_onednn(sizes, b.stride[0] == 1, torch.get_num_threads())  # type: ignore[arg-type]
    if config.cpu_linear == "auto" and not is_mkl_slow():
        return False
    return hint_of(a.numel() * b.size[1]) >= ONEDNN_WORK


def _is_dense_matrix(
    g: GraphLowering,
    value: TensorValue,
) -> bool:
    """Whether what is passed has rows or columns without gaps; oneDNN refuses other strides."""
    view = value.data if isinstance(value.data, View) else as_rearrangement(g, value)
    if view is None:
        return True  # it gets memory of its own
    rows, columns = view.size
    first, second = view.stride
    if second == 1:
        return first == columns or _is_at_least(first, columns)
    return first == 1 and (second == rows or _is_at_least(second, rows))


def _without_gaps(
    g: GraphLowering,
    value: TensorValue,
) -> TensorValue:
    """A matrix whose rows or columns lie one after the other: of weights with gaps between them,
    parts of larger matrices, oneDNN's products take 1000 times as long.
    """
    view = value.data if isinstance(value.data, View) else as_rearrangement(g, value)
    if view is None:
        return value
    rows, columns = view.size
    if tuple(view.stride) in ((columns, 1), (1, rows)):
        return value
    value = g.copy(value, (columns, 1) if view.stride[1] == 1 else (1, rows))
    g.realize(value)  # else it is passed as the part that it is a copy of
    return value


def _is_at_least(
    step: IntLike,
    extent: IntLike,
) -> bool:
    return isinstance(step, int) and isinstance(extent, int) and step >= extent


def _linear(
    g: GraphLowering,
    a: TensorValue,
    b: TensorValue,
    bias: TensorValue | None,
) -> Any:
    if not _is_dense_matrix(g, a) or not _is_dense_matrix(g, b):
        return DECLINED
    b = _without_gaps(g, b)
    weight = g.reindexed(b, (b.size[1], b.size[0]), lambda index: [index[1], index[0]])
    op = torch.ops.mkldnn._linear_pointwise.default
    return g.extern(op, (a, weight, bias, "none", [], ""), {}, any_strides=True)


@register(aten.bmm.default)
def lower_bmm(
    g: GraphLowering,
    a: TensorValue,
    b: TensorValue,
) -> Any:
    """Rows times columns are sums, columns times rows are products: kernels, which join others."""
    result = _thin(g, a, b, signed=False)
    return _summed(g, a, b) if result is DECLINED else result


def _thin(
    g: GraphLowering,
    a: TensorValue,
    b: TensorValue,
    signed: bool,
) -> Any:
    """`signed`: a single product keeps a zero's sign (ATen adds all others to zero)."""
    plain = a.dtype == b.dtype and category(a.dtype) == 2 and a.device.type == "cpu"
    if not plain or 0 in (*a.size, *b.size):
        return DECLINED
    compute, last = compute_type(a.dtype), a.ndim - 1
    if a.size[-1] == 1:

        def inner(
            builder: BodyBuilder,
            index: Index,
        ) -> Value:
            row, column = [*index[:last], ZERO], [*index[: last - 1], ZERO, index[last]]
            left = Scalar(builder, builder.cast(a.load(builder, row), compute))
            right = Scalar(builder, builder.cast(b.load(builder, column), compute))
            return (left * right if signed else left * right + 0.0).value

        return g.lazy(inner, (a, b), cost=1)
    if a.size[-2] == 1 and b.size[-1] == 1:
        across = g.reindexed(b, a.size, lambda index: [*index[: last - 1], index[last], ZERO])
        products = g.computed(lambda x, y: x * y, (a, across), compute, a.size)
        return reduce_node(g, "sum", loads(products, compute), products, [last], compute)
    return DECLINED


def _is_summed(
    g: GraphLowering,
    a: TensorValue,
    b: TensorValue,
) -> bool:
    """Whether a kernel makes the sums of a product faster than a library.

    Measured on an AMD EPYC (Zen 3): batches of 3 x 3 matrices take a tenth of ATen's time, batches
    of matrices by vectors between that and a third. Single matrices by matrices are the library's,
    whose sums are eager's to the last bit. A single matrix by a vector is worth it while the call
    matters: from some size on MKL reads the matrix faster, most of all where the kernel would add
    up rows of memory. In 16 bits (Zen 5) a vector by a matrix takes a half of oneDNN's time for
    bfloat16, a tenth of ATen's for float16.
    """
    plain = a.dtype == b.dtype and category(a.dtype) == 2
    if not plain or a.device.type != "cpu" or 0 in (*a.size, *b.size):
        return False
    rows, inner, columns = a.size[-2], a.size[-1], b.size[-1]
    work = hint_of(product((rows, inner, columns)))
    is_batch, is_narrow = a.ndim == 3 and a.size[0] != 1, a.dtype.itemsize == 2
    if rows != 1 and columns != 1:
        fixed = all(isinstance(n, int) for n in (rows, inner, columns))
        is_rival = is_narrow and has_instructions(a.dtype) and _lies_along(g, b, -2)
        return is_batch and fixed and work <= (SMALL_WORK // 2 if is_rival else SMALL_WORK)
    if is_batch or work <= SMALL_WORK:
        return True
    if _is_computed_along(g, a, b):
        return True
    along = _lies_along(g, b, -2) if rows == 1 else _lies_along(g, a, -1)
    return work <= (NARROW_VECTOR_WORK if is_narrow else VECTOR_WORK)[along]


def _is_computed_along(
    g: GraphLowering,
    a: TensorValue,
    b: TensorValue,
) -> bool:
    """Whether a matrix that one vector is multiplied by is yet to be computed (from a weight in few
    bits, say), and the sums run along its memory: it need not be written.
    """
    if 1 not in (a.size[-2], b.size[-1]):
        return False
    matrix, dim = (b, -2) if a.size[-2] == 1 else (a, -1)
    if isinstance(matrix.data, View) or as_rearrangement(g, matrix) is not None:
        return False
    return matrix.layout[dim] == 1


def _lies_along(
    g: GraphLowering,
    matrix: TensorValue,
    dim: int,
) -> bool:
    view = matrix.data if isinstance(matrix.data, View) else as_rearrangement(g, matrix)
    return view is not None and view.stride[dim] == 1


def _summed(
    g: GraphLowering,
    a: TensorValue,
    b: TensorValue,
    bias: TensorValue | None = None,
) -> Any:
    """Each element as the sum of its products, and the bias of its column.

    What is dear to compute and used by several elements is computed before; the rest is computed
    where it is multiplied, so that a weight that is kept in few bits is read as that.
    """
    if not _is_summed(g, a, b):
        return DECLINED
    for value, uses in ((a, b.size[-1]), (b, a.size[-2])):
        if uses != 1:
            g.keep(value)
    compute, size = compute_type(a.dtype), (*a.size[:-1], b.size[-1], a.size[-1])
    left = g.reindexed(a, size, lambda index: [*index[:-2], index[-1]])
    right = g.reindexed(b, size, lambda index: [*index[:-3], index[-1], index[-2]])
    products = g.computed(lambda x, y: x * y, (left, right), compute, size)
    last = len(size) - 1
    if bias is None:
        return reduce_node(g, "sum", loads(products, compute), products, [last], compute)
    sums = g.reduce(
        "sum", loads(products, compute), size, [last], compute, origins=products.origins
    )

    def inner(
        builder: BodyBuilder,
        index: Index,
    ) -> Value:
        total = Scalar(builder, sums.load(builder, [*index, ZERO]))
        return (
            total + Scalar(builder, builder.cast(bias.load(builder, index[-1:]), compute))
        ).value

    return g.lazy(inner, (sums, bias), cost=1)


@register(aten.mv.default)
def lower_mv(
    g: GraphLowering,
    a: TensorValue,
    b: TensorValue,
) -> Any:
    """A matrix by a vector."""
    column = g.reindexed(b, (*b.size, 1), lambda index: index[:1])
    if not _is_summed(g, a, column):
        return DECLINED
    g.keep(b)
    compute, across = compute_type(a.dtype), g.reindexed(b, a.size, lambda index: index[1:])
    products = g.computed(lambda x, y: x * y, (a, across), compute, a.size)
    return reduce_node(g, "sum", loads(products, compute), products, [1], compute)


@register(aten.mm.default)
def lower_mm(
    g: GraphLowering,
    a: TensorValue,
    b: TensorValue,
) -> Any:
    result = _thin(g, a, b, signed=a.dtype in (torch.float32, torch.float64))
    if result is DECLINED and _is_vector_layer(g, a, b):
        result = _summed(g, a, b)
    if result is not DECLINED:
        return result
    return _linear(g, a, b, None) if _prefers_onednn(a, b) else DECLINED


@register(aten.addmm.default)
def lower_addmm(
    g: GraphLowering,
    bias: TensorValue,
    a: TensorValue,
    b: TensorValue,
    beta: Any = 1,
    alpha: Any = 1,
) -> Any:
    if beta != 1 or alpha != 1 or bias.size != (b.size[1],):
        return DECLINED
    result = DECLINED
    if bias.dtype == a.dtype and (_is_vector_layer(g, a, b) or _is_tiny_layer(a, b)):
        result = _summed(g, a, b, bias)
    if result is not DECLINED:
        return result
    return _linear(g, a, b, bias) if _prefers_onednn(a, b, bias) else DECLINED


def _is_vector_layer(
    g: GraphLowering,
    a: TensorValue,
    b: TensorValue,
) -> bool:
    """Whether it may be sums whatever its sizes are."""
    by_vector = 1 in (a.size[0], b.size[1])
    return by_vector and (a.dtype.itemsize == 2 or _is_computed_along(g, a, b))


def _is_tiny_layer(
    a: TensorValue,
    b: TensorValue,
) -> bool:
    return a.size[0] == 1 and all(n in LAYER_SIZES for n in b.size)


def lower_packed_linear(
    g: GraphLowering,
    x: TensorValue,
    *rest: Any,
) -> Any:
    """With a weight in oneDNN's layout (`freezing`)."""
    if not _is_dense_matrix(g, x):
        x = g.copy(x, contiguous_strides(x.size))
    op = torch.ops.mkldnn._linear_pointwise.default
    return g.extern(op, (x, *rest), {}, any_strides=True)


if has_onednn():
    register(torch.ops.mkldnn._linear_pointwise.default)(lower_packed_linear)
