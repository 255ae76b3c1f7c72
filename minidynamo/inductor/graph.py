"""Lowering an aten graph: `GraphLowering` walks the nodes and collects operations over named
buffers.

    lowered = GraphLowering(gm).run()  # .operations, .buffers, .outputs, .inputs, .constants

Lowerings (`lowering/`) call back: `g.pointwise`, `g.reduce`, `g.view`, `g.realize`, `g.extern`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.fx

from minidynamo.inductor import extern
from minidynamo.inductor.dependencies import roots
from minidynamo.inductor.graph_nodes import SUPPORTED_DTYPES, is_supported, uses
from minidynamo.inductor.ir import (
    Buffer,
    ComputedOp,
    Index,
    Inner,
    Lazy,
    Operation,
    Size,
    TensorValue,
    View,
    dense_strides,
    has_own_places,
    is_dense,
    loop_index,
)
from minidynamo.inductor.loop_body import BodyBuilder, Value
from minidynamo.inductor.lowering.promotion import as_stored, compute_type
from minidynamo.inductor.lowering.registry import DECLINED, LOWERINGS
from minidynamo.inductor.lowering.scalar import Scalar
from minidynamo.inductor.ops import REDUCTIONS
from minidynamo.inductor.origins import origin_of
from minidynamo.inductor.passes.in_place import in_place_nodes
from minidynamo.inductor.size_hints import hint_of
from minidynamo.inductor.sizes import Meta, SizeTable, distance, has_symbols, meta_of
from minidynamo.inductor.split_reductions import memory_order, split, strides_in_order
from minidynamo.inductor.symbolic import (
    ZERO,
    Expr,
    IntLike,
    Symbol,
    Undecided,
    contiguous_strides,
    dot,
    loop_symbol,
    product,
    symbol_expr,
)

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
# A value with several users is kept in memory when recomputing it costs at least this much, or
# takes more than one load.
REUSE_COST = 8
# An operand that is broadcast is kept when it costs this much and each element is used so many
# times: distances of points in space are of three differences.
BROADCAST_COST, BROADCAST_FACTOR = 6, 3
# To read an operand costs next to nothing where each element is used so many times.
FREE_FACTOR = 8


class GraphLowering:
    """State of lowering one graph.

    Attributes:
        node, meta: the graph node being lowered and the fake result that it has.
        operations: what was lowered so far, in order.
        buffers: by name.
        free_layout: whether intermediates may be laid out unlike in eager (in training, the
            backward graph expects eager's).
        outputs: after `run`, what the graph returns: `View`, number or None.
        written: by the input's name, the values that inputs have at the end.
        in_place: nodes that may write into the memory of their first operand, and what that is.
        env: the values of the nodes so far.
    """

    def __init__(self, gm: torch.fx.GraphModule, *, free_layout: bool = False) -> None:
        self.gm = gm
        self.free_layout = free_layout
        self.node: torch.fx.Node = next(iter(gm.graph.nodes))
        self.operations: list[Operation] = []
        self.buffers: dict[str, Buffer] = {}
        self.inputs: list[Buffer | None] = []
        self.constants: dict[str, torch.Tensor] = {}
        # Of each input, the numbers that it gives: ("value" | "size" | "stride", dim, number).
        self.input_numbers: list[list[tuple[str, int, IntLike]]] = []
        self.outputs: list[View | bool | int | float | None] = []
        # Where the graph has symbolic sizes, what these are in the compiler's own terms.
        self.sizes: SizeTable | None = None
        self.written: dict[str, TensorValue] = {}
        self.in_place: dict[torch.fx.Node, str] = {}
        self.env: dict[torch.fx.Node, Any] = {}
        self._names = 0
        if has_symbols([node.meta.get("val") for node in gm.graph.nodes]):
            self.sizes = SizeTable.of(gm)
        else:
            self.in_place = in_place_nodes(gm.graph, self._is_final_write)

    @property
    def meta(self) -> Any:
        return self._fake(self.node)

    def _fake(self, node: torch.fx.Node) -> Any:
        value = node.meta["val"]
        return value if self.sizes is None else meta_of(value, self.sizes)

    # -- the walk ----------------------------------------------------------------------------------
    def run(self) -> GraphLowering:
        for node in self.gm.graph.nodes:
            self.node = node
            if node.op == "placeholder":
                self.env[node] = self._placeholder(node)
                continue
            if self.sizes is not None:
                self.sizes.close()
            if node.op == "get_attr":
                self.env[node] = self._constant(node)
            elif node.op == "call_function":
                self.env[node] = self._call(node)
            else:
                assert node.op == "output", node.op
                self._output(node)
        return self

    def _placeholder(self, node: torch.fx.Node) -> Any:
        fake = node.meta["val"]
        if not isinstance(fake, torch.Tensor):
            self.inputs.append(None)
            number = fake if self.sizes is None else self.sizes.map(fake)
            self.input_numbers.append(
                [("value", 0, number)] if isinstance(number, Expr) else []
            )
            return number
        buffer = self.buffer_like(fake, f"in{len(self.inputs)}", "input")
        if node.meta.get("opaque"):
            buffer.stride = ()
        self.inputs.append(buffer)
        numbers = [("size", dim, number) for dim, number in enumerate(buffer.size)]
        numbers += [("stride", dim, number) for dim, number in enumerate(buffer.stride)]
        self.input_numbers.append([row for row in numbers if isinstance(row[2], Expr)])
        return self.whole(buffer)

    def _constant(self, node: torch.fx.Node) -> TensorValue:
        name = str(node.target)
        tensor = operator.attrgetter(name)(self.gm)
        buffer = self.buffer_like(tensor, f"const{len(self.constants)}", "constant")
        self.constants[buffer.name] = tensor
        return self.whole(buffer)

    def _call(self, node: torch.fx.Node) -> Any:
        if node.target is operator.getitem:
            base, index = node.args
            result = self.env[base][index]  # type: ignore[index]
            if isinstance(result, TensorValue):
                self._decide(result, uses(node, self._fake))
            return result
        if node.target is torch.ops.aten.copy_.default and self._is_final_write(node):
            target, value = (self.env[arg] for arg in node.args[:2])  # type: ignore[index]
            self.written[target.data.buffer.name] = value
            return None
        if isinstance(node.meta.get("val"), _SYMBOLIC):
            return self._number(node)
        args = torch.fx.node.map_arg(node.args, self.env.__getitem__)
        kwargs = torch.fx.node.map_arg(node.kwargs, self.env.__getitem__)
        if self.sizes is not None:
            args, kwargs = self.sizes.map(args), self.sizes.map(kwargs)
        lowering = LOWERINGS.get(node.target)
        result = DECLINED
        if lowering is not None and is_supported(node):
            result = self._lowered(lowering, args, kwargs)
        if result is DECLINED:
            return self.extern(node.target, args, kwargs)
        if isinstance(result, TensorValue):
            self._decide(result, uses(node, self._fake))
        return result

    def _number(self, node: torch.fx.Node) -> Any:
        """A node that computes a size, or a float that sizes alone are computed from."""
        value = node.meta["val"]
        return math.nan if isinstance(value, torch.SymFloat) else self.sizes.map(value)  # type: ignore[union-attr]

    def _lowered(self, lowering: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """The lowering's result; declined where it asks of symbolic sizes what is not known."""
        if self.sizes is None:
            return lowering(self, *args, **kwargs)
        operations, buffers = len(self.operations), set(self.buffers)
        try:
            return lowering(self, *args, **kwargs)
        except Undecided:
            del self.operations[operations:]
            for name in set(self.buffers) - buffers:
                del self.buffers[name]
            return DECLINED

    def _output(self, node: torch.fx.Node) -> None:
        first: dict[str, torch.fx.Node] = {}
        for arg in node.args[0]:  # type: ignore[union-attr]
            value = self.env[arg] if isinstance(arg, torch.fx.Node) else arg
            value = value if self.sizes is None else self.sizes.map(value)
            if isinstance(value, TensorValue):
                value = self.eager_layout(value)
                is_view = value.buffer.kind == "input" and arg.op != "placeholder"
                if first.setdefault(value.buffer.name, arg) is not arg or is_view:
                    value = replace(value, is_new=True)
            self.outputs.append(value)
        self._write_inputs()

    def _is_final_write(self, node: torch.fx.Node) -> bool:
        """Whether `x.copy_(value)` gives an input the value that it has at the end, as AOTAutograd
        writes what mutations come to.
        """
        target, value = node.args[:2]
        if node.users or not isinstance(target, torch.fx.Node) or target.op != "placeholder":
            return False
        if not isinstance(value, torch.fx.Node) or not is_supported(node):
            return False
        left, right = self._fake(target), self._fake(value)
        same = left.shape == right.shape and left.dtype == right.dtype
        sizes, strides = tuple(left.shape), tuple(left.stride())
        if not same or left.device != right.device:
            return False
        return is_dense(sizes, strides) and not any(node < user for user in target.users)

    def _write_inputs(self) -> None:
        """The last operations: inputs get their new values, when all else has read the old ones."""
        values = {name: self.realize(value) for name, value in self.written.items()}
        values = {k: v for k, v in values.items() if v.buffer.name != k or not v.is_whole()}
        for name, view in values.items():
            if any(root.name in self.written for root in roots(view.buffer)):
                buffer, strides = view.buffer, contiguous_strides(view.size)
                old = TensorValue(view, buffer.dtype, view.size, buffer.device, strides)
                values[name] = self.realize(self.copy(old, strides))
        for name, view in values.items():
            buffer = self.buffers[name]
            index, iters = loop_index(buffer.size, "x", buffer.stride)
            b = BodyBuilder(iters)
            b.store(name, dot(index, buffer.stride), view.load(b, index), buffer.dtype)
            self._append_computed(b, buffer, ("aten.copy_.default",))

    def eager_layout(self, value: TensorValue) -> View:
        """The value's memory with the strides that eager gives it, and the holes."""
        view = self.realize(value)
        if view.exact or value.dtype not in SUPPORTED_DTYPES:
            return view if view.exact else extern.relaid(self, view, value.layout)
        holes = has_own_places(value.size, value.layout)
        return self.realize(self.copy(value, value.layout), holes)

    def copy(self, value: TensorValue, stride: Size) -> TensorValue:
        """The same elements on memory of their own, with these strides."""
        data = Lazy(value.load, stride, 0, 1, ("copy",))
        return TensorValue(data, value.dtype, value.size, value.device, value.layout)

    def _decide(self, value: TensorValue, users: float) -> None:
        """Give a new value memory at once where recomputing it for each user would cost more."""
        data = value.data
        if not isinstance(data, Lazy):
            return
        shared = users > 1 and (data.cost >= REUSE_COST or data.reads > 1)
        if shared or data.is_large:
            self.realize(value)

    # -- buffers -----------------------------------------------------------------------------------
    def fresh(self, prefix: str = "t") -> str:
        self._names += 1
        return f"{prefix}{self._names - 1}"

    def buffer_like(self, fake: torch.Tensor, name: str, kind: str) -> Buffer:
        if self.sizes is not None and isinstance(fake, torch.Tensor):
            fake = Meta(fake, self.sizes)  # type: ignore[assignment]
        buffer = Buffer(
            name,
            fake.dtype,
            tuple(fake.shape),
            tuple(fake.stride()) if fake.layout == torch.strided else (),
            fake.device,
            kind,
        )
        self.buffers[name] = buffer
        return buffer

    def whole(self, buffer: Buffer) -> TensorValue:
        view = View(buffer, buffer.size, buffer.stride)
        return TensorValue(view, buffer.dtype, buffer.size, buffer.device, buffer.stride)

    # -- building values ---------------------------------------------------------------------------
    def lazy(
        self,
        inner: Inner,
        operands: Sequence[Any] = (),
        *,
        cost: int = 0,
        meta: torch.Tensor | None = None,
    ) -> TensorValue:
        """A value with the size and dtype of `meta` (default: of the node), computed by `inner`
        from `operands`.
        """
        fake = self.meta if meta is None else meta
        tensors = [value for value in operands if isinstance(value, TensorValue)]
        origins = dict.fromkeys(name for value in tensors for name in value.origins)
        origins[origin_of(self.node)] = None
        size, layout = tuple(fake.shape), tuple(fake.stride())
        data = Lazy(
            as_stored(inner, fake.dtype),
            _inherited_strides(tensors, size, layout),
            cost + sum(value.cost for value in tensors),
            sum(value.reads for value in tensors if not _is_small(value, size)),
            tuple(origins),
            depth=1 + max((value.depth for value in tensors), default=0),
        )
        return TensorValue(data, fake.dtype, size, fake.device, layout)

    def pointwise(
        self,
        fn: Callable[..., Scalar],
        operands: Sequence[Any],
        compute: torch.dtype | tuple[torch.dtype, ...],
        *,
        cost: int = 1,
        meta: torch.Tensor | None = None,
    ) -> TensorValue:
        """`fn` of the broadcast operands: tensor values and numbers, converted to `compute`; None
        is passed on.

        `compute` is one dtype for all or one for each. The result has the node's (or `meta`'s)
        dtype and size; float16 and bfloat16 are computed in float32.
        """
        fake = self.meta if meta is None else meta
        size = tuple(fake.shape)
        dtypes = compute if isinstance(compute, tuple) else (compute,) * len(operands)
        dtypes = tuple(map(compute_type, dtypes))
        result = compute_type(fake.dtype)
        self._keep_costly_broadcasts(operands, size)

        def inner(b: BodyBuilder, index: Index) -> Value:
            args = [
                _operand(b, value, index, size, dtype)
                for value, dtype in zip(operands, dtypes, strict=True)
            ]
            return b.cast(fn(*args).value, result)

        return self.lazy(inner, operands, cost=cost, meta=meta)

    def _keep_costly_broadcasts(self, operands: Sequence[Any], size: Size) -> None:
        for value in operands:
            if isinstance(value, TensorValue) and isinstance(value.data, Lazy):
                own = value.data.base or value  # an expanded tensor has all the elements itself
                is_used_often = _is_small(own, size, BROADCAST_FACTOR)
                if value.cost >= BROADCAST_COST and is_used_often and self.realize(own).exact:
                    self.realize(value)

    def view(self, base: TensorValue, reindex: Callable[[Index], Index]) -> TensorValue:
        """The node's result as a view of its first argument; `reindex` gives `base`'s index."""
        return self.view_like(base, reindex, self.meta)

    def view_like(
        self,
        base: TensorValue,
        reindex: Callable[[Index], Index],
        fake: torch.Tensor,
    ) -> TensorValue:
        """A view of `base`, the node's first argument, with the geometry of `fake`."""
        data, moved = base.data, self.moved(fake)
        size, stride = tuple(fake.shape), tuple(fake.stride())
        if isinstance(data, View) and data.exact:
            view = View(data.buffer, size, stride, data.offset + moved)
            return TensorValue(view, base.dtype, size, base.device, stride)

        def inner(b: BodyBuilder, index: Index) -> Value:
            return base.load(b, reindex(index))

        root, offset = base, moved
        if isinstance(data, Lazy) and data.base is not None:
            root, offset = data.base, data.offset + moved
        depth = base.depth + 1
        lazy = Lazy(inner, stride, base.cost, base.reads, base.origins, root, offset, depth)
        return TensorValue(lazy, base.dtype, size, base.device, stride)

    def moved(self, fake: torch.Tensor) -> IntLike:
        """How far behind the first element of the node's first argument that of `fake` lies."""
        return distance(fake, self._fake(self.node.args[0]))

    def reduce(
        self,
        kind: str,
        inner: Inner,
        size: Size,
        dims: Sequence[int],
        dtype: torch.dtype,
        *,
        origins: tuple[str, ...] = (),
        device: torch.device | None = None,
        layout: Size | None = None,
    ) -> TensorValue:
        """Reduce `inner` (an element for an index of `size`) over `dims`; the result has `keepdim`
        shape and memory. dtype: the result's; `inner`'s values decide what is accumulated in.
        layout: the strides of what `inner` reads most of.
        """
        where, names = device or self.meta_device(), (*origins, origin_of(self.node))
        inner, size, dims, layout = split(self, kind, inner, size, dims, where, names, layout)
        kept: Size = tuple(1 if d in dims else extent for d, extent in enumerate(size))
        order = memory_order(size, layout)
        index, iters = loop_index(kept, "x", strides_in_order(kept, order))
        full = list(index)
        reduces: list[Symbol] = []
        for d in order:
            if d in dims and size[d] != 1:
                reduces.append(loop_symbol(f"r{d}", size[d]))
                full[d] = symbol_expr(reduces[-1])
        b = BodyBuilder(iters, reduces if 0 not in size else ())
        if 0 in size:
            identity = REDUCTIONS[kind].identity or 0
            value = b.constant(identity if math.isfinite(identity) else 0, dtype)
        elif reduces:
            value = b.reduction(kind, inner(b, full))
        else:
            value = b.constant(0, dtype) if kind.startswith("arg") else inner(b, full)
        buffer = self._new_buffer(dtype, kept, contiguous_strides(kept), where)
        b.store(buffer.name, dot(index, buffer.stride), value, dtype)
        self._append_computed(b, buffer, names)
        return self.whole(buffer)

    def drop_dims(
        self,
        kept: TensorValue,
        dims: Sequence[int],
        finish: Callable[[Scalar], Scalar] | None,
        fake: torch.Tensor,
    ) -> TensorValue:
        """`finish(kept)` in the dtype and shape of `fake`, which may lack the dimensions `dims` (of
        extent 1).
        """
        dropped = set(dims) if fake.dim() != kept.ndim else set()
        result = compute_type(fake.dtype)

        def inner(b: BodyBuilder, index: Index) -> Value:
            rest = iter(index)
            own = [ZERO if d in dropped else next(rest) for d in range(kept.ndim)]
            value = kept.load(b, own)
            return b.cast(value if finish is None else finish(Scalar(b, value)).value, result)

        return self.lazy(inner, (kept,), cost=4 if finish else 0, meta=fake)

    def computed(
        self,
        fn: Callable[..., Scalar],
        operands: Sequence[TensorValue],
        dtype: torch.dtype,
        size: Size,
    ) -> TensorValue:
        """An intermediate of a lowering: `fn` of operands that have this size."""

        def inner(b: BodyBuilder, index: Index) -> Value:
            return fn(*(Scalar(b, b.cast(x.load(b, index), dtype)) for x in operands)).value

        stride = contiguous_strides(size)
        index, iters = loop_index(size, "x", stride)
        b = BodyBuilder(iters)
        inner(b, index)
        data = Lazy(inner, stride, *b.expense(), operands[0].origins)
        return TensorValue(data, dtype, size, operands[0].device, stride)

    def reindexed(
        self, base: TensorValue, size: Size, reindex: Callable[[Index], Index]
    ) -> TensorValue:
        """An intermediate of a lowering: `base` rearranged to `size`."""
        stride = contiguous_strides(size)

        def inner(b: BodyBuilder, index: Index) -> Value:
            return base.load(b, reindex(index))

        data = Lazy(inner, stride, base.cost, base.reads, base.origins)
        return TensorValue(data, base.dtype, size, base.device, stride)

    def assemble(self, pieces: Sequence[TensorValue], dim: int) -> TensorValue:
        """A new buffer for the result, its parts along `dim` written by an operation each."""
        fake = self.meta
        size, stride = tuple(fake.shape), dense_strides(tuple(fake.shape), tuple(fake.stride()))
        buffer = self._new_buffer(fake.dtype, size, stride, fake.device)
        first: IntLike = 0
        for piece in pieces:
            if any(extent == 0 for extent in piece.size):
                continue
            place = View(buffer, piece.size, stride, first * stride[dim])
            first = first + piece.size[dim]
            if extern.write_into(self, piece, place):
                continue
            index, iters = loop_index(piece.size, "x", stride)
            b = BodyBuilder(iters)
            value = b.cast(piece.load(b, index), compute_type(fake.dtype))
            b.store(buffer.name, dot(index, stride, place.offset), value, fake.dtype)
            self._append_computed(b, buffer, (*piece.origins, origin_of(self.node)))
        view = View(buffer, size, stride, exact=stride == tuple(fake.stride()))
        return TensorValue(view, fake.dtype, size, fake.device, tuple(fake.stride()))

    def keep(self, value: TensorValue) -> None:
        """Called by lowerings that read `value` several times: give it memory if recomputing it is
        dear.
        """
        self._decide(value, 2)

    def meta_device(self) -> torch.device:
        fake = self.node.meta["val"]
        outputs = [fake] if isinstance(fake, torch.Tensor) else fake
        return next(v.device for v in outputs if isinstance(v, torch.Tensor))

    # -- giving values memory ----------------------------------------------------------------------
    def realize(self, value: TensorValue, holes: bool = False) -> View:
        """The value's memory; a `Lazy` is computed into a new buffer or viewed in its base's."""
        data = value.data
        if isinstance(data, View):
            return data
        if data.base is not None:
            base = self.realize(data.base)
            if base.exact:
                offset = base.offset + data.offset
                value.data = View(base.buffer, value.size, data.stride, offset)
                return value.data
        stride = data.stride if holes else dense_strides(value.size, data.stride)
        buffer = self._new_buffer(value.dtype, value.size, stride, value.device)
        index, iters = loop_index(value.size, "x", stride)
        b = BodyBuilder(iters)
        b.store(buffer.name, dot(index, stride), data.inner(b, index), value.dtype)
        self._append_computed(b, buffer, data.origins)
        value.data = View(buffer, value.size, stride, exact=stride == value.layout)
        return value.data

    def strided(self, value: TensorValue) -> View:
        """The value's memory for a user that takes any strides: a pure rearrangement of memory is
        not copied.
        """
        if isinstance(value.data, Lazy) and value.data.cost <= 1 and value.data.reads == 1:
            view = extern.as_rearrangement(self, value)
            if view is not None:
                return view
        return self.realize(value)

    def _new_buffer(
        self, dtype: torch.dtype, size: Size, stride: Size, device: torch.device
    ) -> Buffer:
        buffer = Buffer(self.fresh(), dtype, size, stride, device)
        self.buffers[buffer.name] = buffer
        return buffer

    def _append_computed(
        self, b: BodyBuilder, buffer: Buffer, origins: tuple[str, ...]
    ) -> None:
        body = b.finish()
        if any(extent == 0 for extent in buffer.size):
            body.nodes.clear()
        name = f"op{len(self.operations)}"
        self.operations.append(ComputedOp(name, body, (buffer,), tuple(dict.fromkeys(origins))))

    def extern(
        self, op: Any, args: Sequence[Any], kwargs: dict[str, Any], *, any_strides: bool = False
    ) -> Any:
        """Call `op` through the dispatcher; its results are the node's (see `extern.call`)."""
        return extern.call(self, op, args, kwargs, any_strides)


def _is_small(value: TensorValue, size: Size, factor: int = FREE_FACTOR) -> bool:
    """Whether each element of an operand that is broadcast is used so many times."""
    return hint_of(value.numel()) * factor <= hint_of(product(size))


def _inherited_strides(tensors: Sequence[TensorValue], size: Size, layout: Size) -> Size:
    """Strides for a new value: those of an operand that is laid out unlike in eager, so that a
    layout chosen for one operator stays through the elementwise ones after it; else eager's.
    """
    for value in tensors:
        if value.size == size and value.stride != value.layout and is_dense(size, value.stride):
            return value.stride
    return layout


def _operand(b: BodyBuilder, value: Any, index: Index, size: Size, compute: torch.dtype) -> Any:
    """What a pointwise function is given for an operand at `index` of the broadcast `size`."""
    if isinstance(value, TensorValue):
        own = index[len(size) - value.ndim :]
        own = [ZERO if extent == 1 else i for extent, i in zip(value.size, own, strict=True)]
        return Scalar(b, b.cast(value.load(b, own), compute))
    if isinstance(value, (bool, int, float, Expr)):
        return Scalar(b, b.constant(value, compute))
    return value
