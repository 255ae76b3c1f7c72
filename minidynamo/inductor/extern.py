"""Operators that are called through torch's dispatcher rather than lowered.

Every operator with any schema can be called: its tensors get memory, its results are buffers with
the strides that the fake tensors have. A few take operands of any strides; what is a mere
rearrangement of memory is then not copied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves, tree_map_only

from minidynamo import _C
from minidynamo.inductor.dependencies import roots
from minidynamo.inductor.effects import is_wait
from minidynamo.inductor.ir import (
    OVERWRITTEN,
    Buffer,
    ExternOp,
    Lazy,
    Size,
    TensorValue,
    View,
    loop_index,
)
from minidynamo.inductor.loop_body import BodyBuilder
from minidynamo.inductor.origins import origin_of
from minidynamo.inductor.passes.simplify import is_pure, may_share_memory
from minidynamo.inductor.size_hints import hint_of, is_size
from minidynamo.inductor.symbolic import (
    Expr,
    IntLike,
    contiguous_strides,
    is_nonneg,
    product,
)

if TYPE_CHECKING:
    from minidynamo.inductor.graph import GraphLowering

assert _C.__name__  # the extension registers the operator
ATTENTION = torch.ops.minidynamo.attention.default
# Matrix products, whose results are row-major whatever the operands' strides are.
PRODUCTS = {
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.bmm.default,
    torch.ops.aten.baddbmm.default,
}
# Those of two matrices.
PLANAR = {torch.ops.aten.mm.default, torch.ops.aten.addmm.default}
# Operators that take any strides: their operands are not copied into the layout that eager has.
# They may have any strides but the last, which must be 1, for those of the second set.
ANY_ROWS = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    ATTENTION,
}
ANY_STRIDES = PRODUCTS | ANY_ROWS
# Operators that take memory laid out unlike in eager, and give results laid out like that.
ANY_LAYOUT = {
    torch.ops.aten.convolution.default,
    torch.ops.aten.max_pool2d_with_indices.default,
    torch.ops.aten.avg_pool2d.default,
    torch.ops.aten._adaptive_avg_pool2d.default,
    torch.ops.aten.upsample_nearest2d.default,
    torch.ops.aten.upsample_bilinear2d.default,
}


# Operators that stand for one of eager's but lay their result out as they like.
OWN_LAYOUT = set()
if torch.backends.mkldnn.is_available():
    OWN_LAYOUT.add(torch.ops.mkldnn._convolution_pointwise.default)
ANY_LAYOUT |= OWN_LAYOUT


# Operators that may hand on their first operand's memory, though their schemas do not say so.
SILENT_ALIASES = {
    torch.ops.aten._unsafe_view.default,
    torch.ops.aten.lift.default,
    torch.ops.aten.native_dropout.default,
}


def _is_silent(op: Any) -> bool:
    return op in SILENT_ALIASES or is_wait(op)


def call(
    g: GraphLowering,
    op: Any,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    any_strides: bool = False,
) -> Any:
    """Call `op` through the dispatcher; its results are the node's.

    any_strides: `op` takes operands of any strides.
    """
    inputs: list[View] = []
    args, kwargs = _numbers_as_tensors(op, args, kwargs)
    take: Callable[[TensorValue], View]
    take = g.realize if op in ANY_LAYOUT and g.sizes is None else partial(_laid_out, g)
    if any(a.alias_info is not None for a in op._schema.arguments) or _is_silent(op):
        take = g.eager_layout
    elif torch.Tag.needs_contiguous_strides in op.tags:
        take = partial(_contiguous, g)
    if any_strides or (op in ANY_STRIDES and (g.sizes is None or op in PRODUCTS)):
        take = partial(_factor, g) if op in PRODUCTS else g.strided
    if take == g.strided and op in ANY_ROWS:
        take = partial(_rows, g)

    def realized(value: Any) -> Any:
        if isinstance(value, TensorValue):
            view = take(value)
            inputs.append(view)
            return view
        if isinstance(value, (tuple, list)):
            return type(value)(realized(item) for item in value)
        return value

    new_args = tuple(realized(arg) for arg in args)
    new_kwargs = {key: realized(arg) for key, arg in kwargs.items()}
    aliases = _aliased_inputs(op, new_args, new_kwargs)
    mutated = _mutated_inputs(op, new_args, new_kwargs)
    if mutated:
        compute_readers(g, mutated)
    eager = fake = g.node.meta.get("val")
    is_moved = op in OWN_LAYOUT or any(not view.exact for view in inputs)
    if is_moved and g.sizes is None:
        fake = _results_for(op, new_args, new_kwargs, fake)
    result = _results(g, fake, eager, aliases)
    returns = len(op._schema.returns)
    outputs = _buffers(result)
    g.operations.append(
        ExternOp(
            f"op{len(g.operations)}",
            op,
            new_args,
            new_kwargs,
            tuple(outputs) if returns > 1 else (outputs,) if returns else (),
            mutated,
            (origin_of(g.node, str(op)),),
            tuple(inputs),
        )
    )
    return result


def _numbers_as_tensors(
    op: Any, args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[Sequence[Any], dict[str, Any]]:
    """Symbolic numbers where the operator takes tensors, as tensors without dimensions: as little
    as a number do they decide the result's dtype, if that of other operands without dimensions is
    theirs, too.
    """
    tensors = [v for v in (*args, *kwargs.values()) if isinstance(v, TensorValue)]
    wanted = {a.name for a in op._schema.arguments if isinstance(a.type, torch.TensorType)}
    if not tensors or not any(isinstance(v, Expr) for v in (*args, *kwargs.values())):
        return args, kwargs
    first = tensors[0]
    integral = not (first.dtype.is_floating_point or first.dtype.is_complex)
    dtype = first.dtype if integral and first.dtype != torch.bool else torch.int64

    def tensor(name: str, value: Any) -> Any:
        if name not in wanted or not isinstance(value, Expr):
            return value
        data = Lazy(lambda b, index: b.cast(b.index_expr(value), dtype), ())
        return TensorValue(data, dtype, (), first.device, ())

    names = [argument.name for argument in op._schema.arguments]
    return (
        [tensor(name, value) for name, value in zip(names, args, strict=False)],
        {name: tensor(name, value) for name, value in kwargs.items()},
    )


def write_into(
    g: GraphLowering,
    value: TensorValue,
    place: View,
) -> bool:
    """Let the matrix product that a value is the result of write to this memory in its stead: a
    piece of what the node joins that nobody else reads. Whether it may.
    """
    pieces: Any = g.node.args[0]
    nodes = [node for node in g.node.all_input_nodes if g.env.get(node) is value]
    if len(nodes) != 1 or pieces.count(nodes[0]) != 1:
        return False
    if not isinstance(value.data, View) or not value.data.is_whole():
        return False
    own = value.data.buffer
    while nodes:  # what the piece is a view of, up to the product
        if any(len(node.users) != 1 for node in nodes):
            return False
        nodes = [given for given in nodes[0].all_input_nodes if _lies_in(g, given, own)]
    producer = None
    for operation in g.operations:
        if own.name in operation.reads():
            return False
        if isinstance(operation, ExternOp) and operation.outputs == (own,):
            producer = operation
    if producer is None or producer.place:
        return False
    if producer.op not in PRODUCTS or not _takes(producer.op, place):
        return False
    del g.buffers[own.name]
    at = g.operations.index(producer)
    g.operations[at] = replace(
        producer,
        outputs=(place.buffer,),
        place=place,
    )
    return True


def _lies_in(
    g: GraphLowering,
    node: torch.fx.Node,
    buffer: Buffer,
) -> bool:
    value = g.env.get(node)
    if not isinstance(value, TensorValue) or not isinstance(value.data, View):
        return False
    return value.data.buffer is buffer


def _takes(
    op: Any,
    place: View,
) -> bool:
    """Whether a product writes there directly: rows may have gaps, those of a batch may not."""
    if any(type(number) is not int for number in (*place.size, *place.stride, place.offset)):
        return False
    rows = contiguous_strides(place.size)
    return place.stride[1:] == rows[1:] if op in PLANAR else place.stride == rows


def relaid(
    g: GraphLowering,
    view: View,
    stride: Size,
) -> View:
    """A copy with these strides, of what kernels cannot read: the executor lays results out so."""
    buffer = Buffer(
        g.fresh(), view.buffer.dtype, view.size, stride, view.buffer.device, "extern"
    )
    g.buffers[buffer.name] = buffer
    op, name = torch.ops.aten.clone.default, f"op{len(g.operations)}"
    g.operations.append(ExternOp(name, op, (view,), {}, (buffer,), inputs=(view,)))
    return View(buffer, view.size, stride)


def _laid_out(
    g: GraphLowering,
    value: TensorValue,
) -> View:
    """The value's memory as eager lays it out; a copy that is laid out alike is not made."""
    if isinstance(value.data, Lazy) and value.data.cost <= 1 and value.data.reads == 1:
        view = as_rearrangement(g, value)
        if view is not None and view.stride == value.layout:
            return replace(view, exact=True)
    return g.eager_layout(value)


def compute_readers(
    g: GraphLowering,
    mutated: Sequence[str],
) -> None:
    """Give values memory that would be computed later, from buffers about to be overwritten, or
    that lie there.
    """
    memory = {root for name in mutated for root in roots(g.buffers[name])}
    for node in [n for n in g.env if any(user not in g.env for user in n.users)]:
        for value in tree_leaves(g.env[node]):
            _compute_reader(g, memory, value)
        is_own = node in g.in_place or OVERWRITTEN in node.meta
        if is_pure(node) and not may_share_memory(node) and not is_own:
            g.env[node] = tree_map_only(TensorValue, partial(_moved, g, memory), g.env[node])
    for name, value in g.written.items():  # at the end
        _compute_reader(g, memory, value)
        g.written[name] = _moved(g, memory, value)


def _compute_reader(
    g: GraphLowering,
    memory: Set[Buffer],
    value: Any,
) -> None:
    if not isinstance(value, TensorValue) or not isinstance(value.data, Lazy):
        return
    index, iters = loop_index(value.size, "x")
    b = BodyBuilder(iters)
    value.load(b, index)
    read = [g.buffers[node.buffer] for node in b.nodes_of("load") if node.buffer]
    if any(root in memory for buffer in read for root in roots(buffer)):
        g.realize(value)


def _moved(
    g: GraphLowering,
    memory: Set[Buffer],
    value: TensorValue,
) -> TensorValue:
    """A value that an operator handed on, on memory of its own if it lies in `memory`."""
    if not isinstance(value.data, View) or memory.isdisjoint(roots(value.data.buffer)):
        return value
    own = g.copy(value, value.layout)
    g.realize(own)
    return own


def _factor(
    g: GraphLowering,
    value: TensorValue,
) -> View:
    """The value's memory for a matrix product. What has to be computed for it on a GPU is written
    the way it is read: turned, where its columns lie side by side in what it is computed from.
    """
    if isinstance(value.data, Lazy) and value.device.type == "cuda" and g.sizes is None:
        view = as_rearrangement(g, value) if value.data.cost <= 1 else None
        base = value.data.base
        is_free = base is None or isinstance(base.data, Lazy)
        if view is None and is_free and _runs_down(g, value):
            turned = contiguous_strides((*value.size[:-2], value.size[-1], value.size[-2]))
            stride = (*turned[:-2], turned[-1], turned[-2])
            value.data = replace(value.data, stride=stride, base=None, offset=0)
    return g.strided(value)


def _runs_down(g: GraphLowering, value: TensorValue) -> bool:
    """Whether the largest of what a value is computed from goes down its columns."""
    if value.ndim < 2 or 1 in value.size[-2:] or value.layout != contiguous_strides(value.size):
        return False
    index, iters = loop_index(value.size, "x")
    b = BodyBuilder(iters)
    value.load(b, index)
    loads = [node for node in b.nodes_of("load") if node.buffer and node.index is not None]
    if not loads:
        return False
    sizes = {n: hint_of(product(g.buffers[n].size)) for n in (x.buffer for x in loads) if n}
    largest = max(loads, key=lambda node: sizes[str(node.buffer)])
    steps = []
    for i in index[-2:]:
        (monomial,) = i.terms
        steps.append(largest.index.coeff(monomial[0]))  # type: ignore[union-attr,arg-type]
    down, along = (step is not None and step.is_const and step.const == 1 for step in steps)
    return down and not along


def _contiguous(g: GraphLowering, value: TensorValue) -> View:
    """The value's memory, row by row."""
    view, rows = g.strided(value), contiguous_strides(value.size)
    return view if view.stride == rows else g.realize(g.copy(value, rows))


def _rows(g: GraphLowering, value: TensorValue) -> View:
    """The value's memory with neighbours along the last dimension side by side."""
    view = g.strided(value)
    if view.stride[-1] == 1 or view.size[-1] == 1:
        return view
    return g.realize(g.copy(value, contiguous_strides(value.size)))


def _results(g: GraphLowering, fake: Any, eager: Any, aliases: tuple[Buffer, ...]) -> Any:
    """Values for the results of an operator: `fake` as they will be, `eager` as eager has them."""
    if isinstance(fake, torch.Tensor):
        buffer = g.buffer_like(fake, g.fresh(), "extern")
        buffer.alias_of = aliases
        value = g.whole(buffer)
        if (
            fake is not eager
            and fake.layout == torch.strided
            and fake.stride() != eager.stride()
        ):
            value.data = View(buffer, buffer.size, buffer.stride, exact=False)
            value.layout = tuple(eager.stride())
        return value
    if isinstance(fake, (tuple, list)):
        pairs = zip(fake, eager, strict=True)
        return [_results(g, a, b, aliases) for a, b in pairs]
    return fake if g.sizes is None else g.sizes.map(fake)


def _results_for(op: Any, args: Any, kwargs: Any, eager: Any) -> Any:
    """The fake results of `op` for operands of these strides, which may differ from eager's."""
    tensor = eager if isinstance(eager, torch.Tensor) else eager[0]
    if not isinstance(tensor, FakeTensor):
        return eager

    def fake(value: Any) -> Any:
        if isinstance(value, View):
            buffer = value.buffer
            stride = value.stride if buffer.strided else contiguous_strides(value.size)
            return torch.empty_strided(
                value.size, stride, dtype=buffer.dtype, device=buffer.device
            )
        if isinstance(value, (tuple, list)):
            return type(value)(fake(item) for item in value)
        return value

    with tensor.fake_mode:
        return op(*fake(args), **{key: fake(value) for key, value in kwargs.items()})


def _buffers(result: Any) -> Any:
    """The output tree of an extern call: buffers where there are tensor values; a number (a number
    of tokens, say) is known when compiling and None.
    """
    if isinstance(result, TensorValue):
        assert isinstance(result.data, View)
        return result.data.buffer
    if isinstance(result, list):
        return tuple(_buffers(item) for item in result)
    assert result is None or isinstance(result, (int, float, Expr)), (
        f"an operator returns {result!r}"
    )
    return None


def as_rearrangement(g: GraphLowering, value: TensorValue) -> View | None:
    """`value` as a strided view of the buffer that it is a plain copy of, if it is one."""
    index, iters = loop_index(value.size, "x")
    b = BodyBuilder(iters)
    loaded = b.node(value.load(b, index))
    if loaded.op == "cast" and loaded.dtype == torch.float32 and value.dtype != torch.float32:
        loaded = b.node(loaded.args[0])
    if loaded.op != "load" or loaded.args or loaded.dtype != value.dtype:
        return None
    assert loaded.index is not None and loaded.buffer is not None
    strides: list[IntLike] = []
    rest = loaded.index
    for extent, i, default in zip(
        value.size, index, contiguous_strides(value.size), strict=True
    ):
        if extent == 1:
            strides.append(default)
            continue
        (monomial,) = i.terms
        factor = loaded.index.coeff(monomial[0])  # type: ignore[arg-type]
        if factor is None or any(not is_size(atom) for atom in factor.atoms()):
            return None
        if not is_nonneg(factor):
            return None  # a tensor's memory goes forwards, a flipped value's does not
        step: IntLike = factor.const if factor.is_const else factor
        strides.append(step)
        rest = rest - i * step
    if any(not is_size(atom) for atom in rest.atoms()):
        return None
    offset: IntLike = rest.const if rest.is_const else rest
    return View(g.buffers[loaded.buffer], value.size, tuple(strides), offset, exact=False)


def _schema_arguments(
    op: Any, args: Sequence[Any], kwargs: dict[str, Any]
) -> list[tuple[Any, Any]]:
    arguments = op._schema.arguments
    pairs = list(zip(arguments, args, strict=False))
    return pairs + [(a, kwargs[a.name]) for a in arguments if a.name in kwargs]


def _views(value: Any) -> list[View]:
    if isinstance(value, View):
        return [value]
    return (
        [v for item in value for v in _views(item)] if isinstance(value, (tuple, list)) else []
    )


def _aliased_inputs(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Buffer, ...]:
    """Buffers that the results of `op` may be views of."""
    found = [args[0].buffer] if _is_silent(op) else []
    for argument, value in _schema_arguments(op, args, kwargs):
        if argument.alias_info is not None:
            found += [view.buffer for view in _views(value)]
    return tuple(found)


def _mutated_inputs(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[str, ...]:
    found = []
    for argument, value in _schema_arguments(op, args, kwargs):
        if argument.alias_info is not None and argument.alias_info.is_write:
            found += [view.buffer.name for view in _views(value)]
    return tuple(found)
