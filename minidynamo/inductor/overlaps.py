"""Writes whose meaning functional graphs lose.

`refusal(gm)` finds what eager refuses, or does in the order of memory: an operation that writes to
memory which it reads in another shape (`x[1:] = x[:-1]`), or to several elements in one place (an
expanded tensor). Such a graph runs as it was captured.

`with_eager_strides(gm)` is about operations whose functional form lays its result out otherwise
than what they write to: `x.op_()` is written `x.copy_(x.op())`, and `op(x, out=y)` is
`y.copy_(op(x))`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
import torch.fx
from torch._C import _functorch
from torch._prims_common import is_contiguous_or_false
from torch.fx.experimental.symbolic_shapes import guard_or_false, statically_known_true
from torch.fx.node import Node, map_arg
from torch.utils._pytree import tree_leaves

from minidynamo.inductor.assertions import keep_assertions
from minidynamo.inductor.detached import gains_history
from minidynamo.inductor.grad_modes import escaping_view
from minidynamo.inductor.stale_views import (
    LAID_OUT_ANEW,
    has_other_bits,
    hooked_view,
    stale_view,
    storage_of,
    within,
)

# Element by element: what they write may be what they read.
_POINTWISE = frozenset(
    "add_ sub_ mul_ div_ pow_ copy_ eq_ ne_ lt_ le_ gt_ ge_ maximum_ minimum_ fmod_ remainder_"
    " addcmul_ addcdiv_ lerp_ atan2_ hypot_ copysign_ logical_and_ logical_or_ logical_xor_"
    " bitwise_and_ bitwise_or_ bitwise_xor_ true_divide_ divide_ multiply_ subtract_ clamp_"
    " clamp_min_ clamp_max_ masked_fill_ iadd isub imul itruediv ifloordiv imod ipow iand ior"
    " ixor setitem".split()
)
# What they add to may be what they write to.
_ADDING = frozenset("addmm baddbmm addmv addr".split())
_OPERATORS = frozenset(
    "iadd isub imul imatmul itruediv ifloordiv imod ipow iand ior ixor ilshift irshift".split()
)
RESHAPING = LAID_OUT_ANEW | frozenset("resize_ resize_as_ set_ detach_ requires_grad_".split())
_SPARSE = {
    torch.sparse_coo,
    torch.sparse_csr,
    torch.sparse_csc,
    torch.sparse_bsr,
    torch.sparse_bsc,
}
# What they give lies in the memory of what they take, which functional forms know nothing of.
_UNTOLD_VIEWS = frozenset("unsafe_chunk unsafe_split unsafe_split_with_sizes".split())
_LARGE = 1 << 16  # elements; above it, places are not compared one by one


# State that operators look at when they run, and that compiled graphs do not change.
_FOR_WHAT_FOLLOWS = (
    torch.set_deterministic_debug_mode,
    torch._C._set_float32_matmul_precision,
)


def refusal(
    gm: torch.fx.GraphModule,
) -> str:
    """Why the graph has to run as it is; "" if nothing is against compiling it."""
    reason = escaping_view(gm) or keep_assertions(gm) or _sparse_with_history(gm)
    reason = reason or stale_view(gm) or hooked_view(gm)
    if reason:
        return reason
    laid = [node for node in map(_moved_input, gm.graph.nodes) if node is not None]
    moved = set(map(storage_of, _tensors(laid)))
    gapped: set[Node] = set()
    for node in gm.graph.nodes:
        if not node.op.startswith("call_"):
            continue
        if node.target in _FOR_WHAT_FOLLOWS or (
            node.target is torch._C._set_cublas_allow_tf32 and _is_on_gpu(gm)
        ):
            return f"{node} is for what runs behind it"
        if node.kwargs.get("requires_grad") is True:
            return f"{node} is a leaf of autograd"
        name = call_name(node)
        if gains_history(node):
            return f"{node} is detached, and has a history after a write"
        if _is_gapped(node, name, gapped):
            gapped.add(node)
        if name in _UNTOLD_VIEWS and _is_written_or_given_out(gm, node):
            return f"{node} shares memory that is written to, or leaves the graph"
        if name == "as_strided" and _is_gradient_to_input(gm, node):
            return f"{node} is differentiated: where its input lies in its storage may change"
        if not gapped.isdisjoint(_written_nodes(node, name)):
            return f"{node} writes through windows with gaps, or that overlap"
        written_parts = _tensors(_written_nodes(node, name)) if moved else []
        if name not in RESHAPING and not moved.isdisjoint(map(storage_of, written_parts)):
            # What comes out of a functional form may have the layout that the input had before.
            return f"{node} writes to an input that is laid out anew"
        if "foreach" in name and name.endswith("_") and _lists_collide(node):
            return f"{node} writes to a list whose tensors share memory"
        if isinstance(node.kwargs.get("out"), (tuple, list)) and _changes_out(node):
            return f"{node} gives its results another layout than out= has"
        if any(has_other_bits(gm, written) for written, _ in _writes_of_program(node)):
            return f"{node} writes to memory that is of another dtype elsewhere"
        for written, others in _writes(node, name):
            if "out" in node.kwargs and not (written.is_contiguous() or _is_copied(node)):
                return f"{node} writes to a tensor that is not contiguous"
            if _is_repeated(written):
                return f"{node} writes several elements to one place"
            if any(_collide(written, other, name) for other in others) and not _is_itself(node):
                return f"{node} writes to memory that it reads in another shape"
        for written, others in _writes_of_program(node):
            if any(_collide(written, other, "") for other in others):
                return f"{node} writes to memory that it was given twice"
    return ""


def _is_on_gpu(gm: torch.fx.GraphModule) -> bool:
    return any(tensor.is_cuda for tensor in _tensors(list(gm.graph.nodes)))


def _sparse_with_history(gm: torch.fx.GraphModule) -> str:
    """The functional form of a sparse tensor has no memory for autograd to follow: what is made
    dense of it would lose its gradient, and what is compressed would end the process.
    """
    parts = [part for part in gm.modules() if isinstance(part, torch.fx.GraphModule)]
    for node in (node for part in parts for node in part.graph.nodes):
        for value in tree_leaves(_value(node)):
            is_tensor = isinstance(value, torch.Tensor) and value.requires_grad
            if is_tensor and value.layout in _SPARSE:
                return f"{node} is a sparse tensor that autograd follows"
    return ""


def _moved_input(node: Node) -> Node | None:
    """The input whose own sizes or strides the call changes."""
    if node.op != "call_method" or node.target not in RESHAPING - {"detach_", "requires_grad_"}:
        return None
    base = node.args[0]
    while isinstance(base, Node) and base.op == "call_method" and is_in_place(str(base.target)):
        base = base.args[0]
    is_input = isinstance(base, Node) and base.op == "placeholder"
    return base if is_input else None  # type: ignore[return-value]


def _is_gapped(node: Node, name: str, gapped: set[Node]) -> bool:
    """Whether it is a view of windows (`unfold`) that leave elements out, or a view of such: a
    write through it is functionalized as if there were zeros between and behind the windows. Or one
    (`as_strided`) that has elements in one place, which would all be written, some with old values.
    """
    base = node.args[0] if node.args else None
    if name == "as_strided":
        view = _value(node)
        return _is_repeated(view) if _is_static(view) else not is_contiguous_or_false(view)
    if node.target in ("unfold", torch.Tensor.unfold):
        if not _is_written(node.graph, node):
            return False  # whether the windows cover a symbolic size would be a guard
        length, size, step = map_arg(_window(*node.args, **node.kwargs), _value)
        is_covered = statically_known_true(step <= size)
        return not (is_covered and guard_or_false((length - size) % step == 0))
    if not isinstance(base, Node) or base not in gapped:
        return False
    # Of several views (`unbind`) too, of which an item is taken.
    ours, bases = (set(map(storage_of, _tensors(of))) for of in (node, base))
    return not ours.isdisjoint(bases)


def _is_written_or_given_out(gm: torch.fx.GraphModule, node: Node) -> bool:
    (output,) = gm.graph.find_nodes(op="output")
    return _is_written(gm.graph, node) or _shares_memory(node, output.all_input_nodes)


def _is_written(graph: torch.fx.Graph, node: Node) -> bool:
    return any(_shares_memory(node, _written_nodes(n, call_name(n))) for n in graph.nodes)


def _shares_memory(node: Node, others: list[Node]) -> bool:
    memory = set(map(storage_of, _tensors([node])))
    return not memory.isdisjoint(map(storage_of, _tensors(others)))


def _is_gradient_to_input(gm: torch.fx.GraphModule, node: Node) -> bool:
    value = _value(node)
    inputs = gm.graph.find_nodes(op="placeholder")
    return value.requires_grad and any(
        storage_of(value) == storage_of(given) for given in _tensors(inputs)
    )


def _window(x: Node, dimension: int, size: Any, step: Any) -> tuple[Any, Any, Any]:
    shape = _value(x).shape
    return shape[dimension] if shape else 1, size, step


def _written_nodes(node: Node, name: str) -> list[Node]:
    written = [node.kwargs.get("out")]
    if is_in_place(name) and node.args:
        written.append(node.args[0])
    return [item for item in tree_leaves(written) if isinstance(item, Node)]


def with_eager_strides(
    gm: torch.fx.GraphModule,
) -> torch.fx.GraphModule:
    """`gm`, or a copy in which results of operations in place have the strides of eager."""
    found = {node.name for node in gm.graph.nodes if _changes_strides(node)}
    copied_out = {
        node.name for node in gm.graph.nodes if "out" in node.kwargs and _changes_out(node)
    }
    if not (found or copied_out):
        return gm
    graph = torch.fx.Graph()
    copied: dict[Node, Node] = {}
    for node in gm.graph.nodes:
        copied[node] = graph.node_copy(node, lambda n: copied[n])
        functional = copied[node]
        if node.name in copied_out:
            written = functional.kwargs["out"]
            functional.kwargs = {k: v for k, v in functional.kwargs.items() if k != "out"}
            functional.meta = {}
            copied[node] = graph.call_method("copy_", (written, functional))
            copied[node].meta = dict(node.meta)
        if node.name not in found:
            continue
        functional.target = str(node.target)[:-1]
        functional.meta = {}
        written = copied[node.args[0]]
        if _value(node.args[0]).requires_grad:
            # A gradient may need what the operation reads, which is written over.
            with graph.inserting_before(functional):
                before = graph.call_method("clone", (written,))
            functional.replace_input_with(written, before)
        copied[node] = graph.call_method("copy_", (written, functional))
        copied[node].meta = dict(node.meta)
    changed = torch.fx.GraphModule(gm, graph)
    changed.meta.update(gm.meta)
    return changed


def _is_copied(node: Node) -> bool:
    return isinstance(node.kwargs["out"], Node) and bool(_results_for_out(node))


def _changes_out(node: Node) -> bool:
    """Whether the functional form of a call with `out=` lays its results out in another way, or
    gives its argument itself.
    """
    read = {storage_of(tensor) for tensor in _tensors(node.args)}
    return any(
        storage_of(new) in read or not _are_equal(new.stride(), out.stride())
        for out, new in _results_for_out(node)
    )


def _results_for_out(node: Node) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Tensors that a call gets as `out=`, each with what the call gives without, where that may be
    copied: no gradient is wanted, and no tensor is made larger.
    """
    if node.op != "call_function" or "out" not in node.kwargs:
        return []
    kwargs = {k: v for k, v in node.kwargs.items() if k != "out"}
    given, written = (_tensors(part) for part in ((node.args, kwargs), node.kwargs["out"]))
    if not given or any(t.requires_grad for t in (*written, *given)):
        return []
    try:
        found = node.target(*map_arg(node.args, _value), **map_arg(kwargs, _value))  # type: ignore[operator]
    except (RuntimeError, TypeError):
        return []
    results = _tensors(found)
    if len(results) != len(written):
        return []
    pairs = list(zip(written, results, strict=True))
    fit = all(new.dim() == out.dim() and _are_equal(new.shape, out.shape) for out, new in pairs)
    return pairs if fit else []


def call_name(
    node: Node,
) -> str:
    """The name of the function or method that a node calls."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    # `operator.or_` is no method in place.
    is_operator = getattr(node.target, "__module__", None) == "_operator"
    return name.rstrip("_") if is_operator else name.partition(".")[0]


def is_in_place(
    name: str,
) -> bool:
    """Whether a call of this name changes its first argument."""
    is_method = name.endswith("_") and not name.endswith("__")
    return is_method or name in _OPERATORS or name == "setitem"


def _writes(
    node: Node,
    name: str,
) -> Iterator[tuple[torch.Tensor, list[torch.Tensor]]]:
    """The tensors that a call writes to, each with what it reads besides."""
    if "out" in node.kwargs:
        given = _tensors((node.args, {k: v for k, v in node.kwargs.items() if k != "out"}))
        for written in _tensors(node.kwargs["out"]):
            first = name in _ADDING and bool(node.args) and _adds_to(node.args[0], written)
            yield written, given[1:] if first else given
        return
    if not is_in_place(name) or name in RESHAPING or "foreach" in name:
        return
    written = _value(node.args[0]) if node.args else None
    if not isinstance(written, torch.Tensor):
        return
    rest = [*node.args[1:], *node.kwargs.values()]
    if name == "setitem":
        part = _part(written, rest[0])
        # A subscript of positions is `index_put_`.
        yield (
            (part, _tensors(rest[1:]))
            if part is not None
            else (within(written), _tensors(rest))
        )
    else:
        yield within(written), _tensors(rest)


def _adds_to(argument: Any, written: torch.Tensor) -> bool:
    """Whether `op(argument, .., out=written)` is `argument.op_(..)`."""
    added = _value(argument)
    return (
        isinstance(added, torch.Tensor)
        and storage_of(added) == storage_of(written)
        and _geometry(added) == _geometry(written)
    )


def _writes_of_program(node: Node) -> Iterator[tuple[torch.Tensor, list[torch.Tensor]]]:
    """The tensors that an operator of the program writes to, each with the others that it is given:
    made functional, it would see those as they were.
    """
    op = node.target
    if isinstance(op, torch._ops.OpOverloadPacket) and len(op.overloads()) == 1:
        op = getattr(op, op.overloads()[0])
    if not isinstance(op, torch._ops.OpOverload) or not op._schema.is_mutable:
        return
    if op.namespace in ("aten", "prims", "prim"):
        return
    positional = dict(enumerate(node.args))
    given: list[tuple[torch.Tensor, bool]] = []
    for place, argument in enumerate(op._schema.arguments):
        is_write = argument.alias_info is not None and argument.alias_info.is_write
        value = node.kwargs.get(argument.name, positional.get(place))
        given += [(tensor, is_write) for tensor in _tensors(value)]
    for place, (tensor, is_write) in enumerate(given):
        if is_write:
            yield tensor, [other for at, (other, _) in enumerate(given) if at != place]


def _is_itself(
    node: Node,
) -> bool:
    """Whether it is `x.copy_(x)` with `x` taken twice from the same place (`y[n:] += 1`): one that
    depends on data, so that this is not seen of the two tensors.
    """
    if node.target != "copy_" or len(node.args) < 2:
        return False
    calls = [
        (arg.target, arg.args, arg.kwargs) if isinstance(arg, Node) else None
        for arg in node.args[:2]
    ]
    is_known = all(arg.op == "call_function" for arg in node.args[:2] if isinstance(arg, Node))
    return calls[0] is not None and is_known and calls[0] == calls[1]


def _part(
    tensor: torch.Tensor,
    key: Any,
) -> torch.Tensor | None:
    """`tensor[key]` for a subscript that gives a view, of plain tensors."""
    key = map_arg(key, _value)
    while _functorch.is_gradtrackingtensor(tensor):
        tensor = _functorch.get_unwrapped(tensor)  # of the same dimensions
    if within(tensor) is not tensor:
        return None
    parts = key if isinstance(key, tuple) else (key,)
    plain = (int, slice, type(None), type(Ellipsis), torch.SymInt)
    if not all(isinstance(p, plain) and not isinstance(p, bool) for p in parts):
        return None
    hidden = tensor.ndim - sum(p is not None and p is not Ellipsis for p in parts)
    part, dim = tensor, 0
    for p in parts:
        if p is Ellipsis:
            dim += hidden
        elif p is None:
            part, dim = part.unsqueeze(dim), dim + 1
        elif isinstance(p, slice):
            part, dim = part[(slice(None),) * dim + (p,)], dim + 1
        else:
            part = part.select(dim, p)  # a subscript would make a symbolic number a constant
    return part


def _value(
    argument: Any,
) -> Any:
    return argument.meta.get("example_value") if isinstance(argument, Node) else argument


def _tensors(
    arguments: Any,
) -> list[torch.Tensor]:
    values = tree_leaves(map_arg(arguments, _value))
    return [within(value) for value in values if _is_strided(value)]


def _is_strided(
    value: Any,
) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided


def _is_static(
    tensor: torch.Tensor,
) -> bool:
    numbers = (*tensor.shape, *tensor.stride(), tensor.storage_offset())
    return all(type(number) is int for number in numbers)


def _is_repeated(
    tensor: torch.Tensor,
) -> bool:
    """Whether two elements are, or may be, in one place."""
    if not _is_strided(tensor):
        return False
    if not _is_static(tensor):
        pairs = zip(tensor.shape, tensor.stride(), strict=True)
        return any(type(step) is int and step == 0 and size != 1 for size, step in pairs)
    if tensor.numel() < 2:
        return False
    reach = 0
    for step, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and step <= reach:
            return True
        reach += (size - 1) * step
    return False


def _collide(
    written: torch.Tensor,
    other: torch.Tensor,
    name: str,
) -> bool:
    if not _is_strided(written) or storage_of(written) != storage_of(other):
        return False
    if _geometry(written) == _geometry(other):
        return not ({name, f"{name}_"} & _POINTWISE or _is_elementwise(name))  # with `out`
    if not (_is_static(written) and _is_static(other)):
        return not _known_apart(written, other)
    if not written.numel() or not other.numel() or written.itemsize != other.itemsize:
        return bool(written.numel() and other.numel())
    (first, last), (other_first, other_last) = _span(written), _span(other)
    if last < other_first or other_last < first:
        return False
    step = math.gcd(*_steps(written), *_steps(other))
    if step and (first - other_first) % step:
        return False  # columns of one matrix
    if max(written.numel(), other.numel()) > _LARGE:
        return True
    return not _places(written).isdisjoint(_places(other))


@cache
def _is_elementwise(name: str) -> bool:
    packet = getattr(torch.ops.aten, name.rstrip("_"), None)
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        return False
    return any(torch.Tag.pointwise in getattr(packet, o).tags for o in packet.overloads())


def _known_apart(
    written: torch.Tensor,
    other: torch.Tensor,
) -> bool:
    """Whether no place of one is one of the other's, whatever the symbolic sizes: modulo some
    step, what is between the two is more than either reaches by its steps of no multiple of it.
    """
    if written.itemsize != other.itemsize:
        return False
    distance = other.storage_offset() - written.storage_offset()
    for unit in (*written.stride(), *other.stride()):
        if not statically_known_true(unit > 0):
            continue
        rest = distance % unit
        below = statically_known_true(_reach(written, unit) < rest)
        if below and statically_known_true(rest < unit - _reach(other, unit)):
            return True
    is_before = statically_known_true(_reach(written) < distance)
    return is_before or statically_known_true(_reach(other) < -distance)


def _reach(
    tensor: torch.Tensor,
    unit: Any = None,
) -> Any:
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return sum(
        (size - 1) * step
        for size, step in pairs
        if unit is None or not statically_known_true(step % unit == 0)
    )


def _lists_collide(
    node: Node,
) -> bool:
    """Whether a write to one tensor of a list changes what is read or written after it."""
    lists = [map_arg(given, _value) for given in node.args if isinstance(given, (list, tuple))]
    sharing: dict[int, list[tuple[int, int, torch.Tensor]]] = {}
    for position, values in enumerate(lists):
        for index, value in enumerate(values):
            if _is_strided(value):
                sharing.setdefault(storage_of(value), []).append((position, index, value))
    for group in sharing.values():
        for _, index, written in (item for item in group if item[0] == 0):
            for position, later, other in group:
                is_operand = position > 0 and later == index
                if (later > index or is_operand) and _collide(
                    written, other, "add_" if is_operand else ""
                ):
                    return True
    return False


def _geometry(
    tensor: torch.Tensor,
) -> str:
    return f"{tuple(tensor.shape)} {tensor.stride()} {tensor.storage_offset()} {tensor.dtype}"


def _span(
    tensor: torch.Tensor,
) -> tuple[int, int]:
    first = tensor.storage_offset()
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return first, first + sum((size - 1) * step for size, step in pairs)


def _steps(
    tensor: torch.Tensor,
) -> list[int]:
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return [step for size, step in pairs if size > 1]


def _places(
    tensor: torch.Tensor,
) -> set[int]:
    places = {tensor.storage_offset()}
    for size, step in zip(tensor.shape, tensor.stride(), strict=True):
        places = {place + i * step for place in places for i in range(size)}
    return places


def _changes_strides(
    node: Node,
) -> bool:
    """Whether the functional form of a method in place lays its result out in another way."""
    name = str(node.target)
    if node.op != "call_method" or not name.endswith("_") or name.endswith("__"):
        return False
    tensor = _value(node.args[0])
    functional = getattr(torch.Tensor, name[:-1], None)
    is_apart = _is_strided(tensor) and not is_contiguous_or_false(tensor)
    if not is_apart or functional is None or name in RESHAPING:
        return False
    try:
        with torch.no_grad():
            result = functional(*map_arg(node.args, _value), **map_arg(node.kwargs, _value))
    except (RuntimeError, TypeError):
        return False
    if not isinstance(result, torch.Tensor) or result.dim() != tensor.dim():
        return False
    same = _are_equal(result.stride(), tensor.stride())
    return not same and result.dtype == tensor.dtype and _are_equal(result.shape, tensor.shape)


def _are_equal(left: tuple[Any, ...], right: tuple[Any, ...]) -> bool:
    """Whether it is known, where numbers depend on data."""
    return all(statically_known_true(a == b) for a, b in zip(left, right, strict=True))


assert all(hasattr(operator, name) for name in _OPERATORS)
