"""Higher-order operators: cond, scan, map, foreach_map (while_loop: `while_loops.py`).

The functions they take are traced into graphs of their own (`variables/bodies.py`), whose free
tensors become further operands of the operator.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch._higher_order_ops._invoke_quant import invoke_quant_packed
from torch._higher_order_ops.cond import _merge_output
from torch._higher_order_ops.hints_wrap import hints_wrapper
from torch._higher_order_ops.out_dtype import out_dtype
from torch._higher_order_ops.print import print as hop_print
from torch._higher_order_ops.strict_mode import strict_mode_op
from torch._higher_order_ops.wrap import dynamo_bypassing_wrapper, wrap
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.node import Node, map_arg

from ..output_graph import example_value
from ..subgraphs import add_submodule
from ..variables.base import VariableTracker, unsupported
from ..variables.bodies import (
    TracedBody,
    add_call,
    are_same,
    flatten,
    fresh_results,
    new_number,
    new_tensor,
    require_grad,
    trace_body,
)
from ..variables.constant import ConstantVariable
from ..variables.functions import UserFunctionVariable
from ..variables.registry import handles
from ..variables.symint import SymVariable
from ..variables.tensor import TensorVariable

if TYPE_CHECKING:
    from ..symbolic_convert import Translator

Args = list[VariableTracker]
Kwargs = dict[str, VariableTracker]


def in_order(args: Args, kwargs: Kwargs, names: str, *defaults: Any) -> list[Any]:
    """The arguments of a call in the order of `names`; those not given are taken of `defaults`."""
    wanted = names.split()
    given = dict(zip(wanted, args, strict=False))
    if len(args) > len(wanted) or set(given) & set(kwargs):
        unsupported("arguments", names, "eager will raise the error")
    given |= kwargs
    for name, value in zip(wanted[len(wanted) - len(defaults) :], defaults, strict=True):
        given.setdefault(name, value)
    if set(given) != set(wanted):
        unsupported("arguments", names, f"the arguments are {sorted(given)}, not {wanted}")
    return [given[name] for name in wanted]


def free_nodes(bodies: Sequence[TracedBody]) -> list[Node]:
    """The nodes outside that bodies use, each once."""
    return list(dict.fromkeys(node for traced in bodies for node in traced.body.lifted))


def operands_of(tx: Translator, free: Sequence[Node]) -> tuple[Node, ...]:
    """The nodes as the graph under construction has them."""
    body = tx.output.body
    return map_arg(tuple(free), body.local) if body is not None else tuple(free)


def has_gradients(nodes: Sequence[Any]) -> bool:
    values = [example_value(node) for node in nodes if isinstance(node, Node)]
    return torch.is_grad_enabled() and any(
        isinstance(value, torch.Tensor) and value.requires_grad for value in values
    )


def meta_of(fake: Any) -> tuple[Any, ...]:
    return fake.shape, fake.dtype, fake.device, fake.layout


def _strides(fake: torch.Tensor) -> list[Any]:
    """Those that say where items are."""
    pairs = zip(fake.stride(), fake.shape, strict=True)
    return [stride for stride, size in pairs if type(size) is not int or size > 1]


def _described(fake: Any) -> str:
    if not isinstance(fake, torch.Tensor):
        return str(fake)
    return f"{str(fake.dtype).removeprefix('torch.')}{list(fake.shape)} on {fake.device}"


def module_of(tx: Translator, stem: str, traced: TracedBody, free: Sequence[Node]) -> Node:
    for node in free:
        if isinstance(example_value(node), (torch.SymFloat, torch.SymBool)):
            why = "its operands are tensors and integers"
            unsupported("symbolic size in a body", f"{stem}: {node}", why)
    return add_submodule(tx.output, stem, traced.body.module(tx.output, traced.nodes(), free))


def refuse_aliases(name: str, traced: TracedBody) -> None:
    """The results of these operators have to be new tensors, each another."""
    nodes = traced.nodes()
    nodes = [
        n for n in nodes if isinstance(n, Node) and isinstance(example_value(n), torch.Tensor)
    ]
    if len(set(nodes)) < len(nodes) or any(node.op == "placeholder" for node in nodes):
        unsupported(
            "aliasing in a body", name, f"a function given to {name} returns an operand"
        )


# -- cond ------------------------------------------------------------------------------------------


@handles(torch.cond, torch.ops.higher_order.cond)
def cond(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
    """With a condition known while tracing the branch is called, as torch.compile does; a question
    about sizes is decided, by a guard.
    """
    none = tx.wrap_items(tuple, [])
    pred, true_fn, false_fn, operands = in_order(
        args, kwargs, "pred true_fn false_fn operands", none
    )
    values = operands.unpack(tx)
    if isinstance(pred, SymVariable) and not pred.value.node.has_hint():
        kwargs = {"dtype": ConstantVariable(torch.bool)}
        pred = tx.call_operation(torch.scalar_tensor, [pred], kwargs)
    if not isinstance(pred, TensorVariable):
        return tx.call_function(true_fn if pred.truth(tx) else false_fn, values, {})
    if not all(_is_nest_of_tensors(tx, value) for value in values):
        unsupported("arguments", "torch.cond", "the operands are no nest of tensors")
    branches = _branches(tx, (true_fn, false_fn), values, integers=False)
    is_alike = _alike(branches)
    if not is_alike:
        branches = _branches(tx, (true_fn, false_fn), values, integers=True)
    free = free_nodes(branches)
    _refuse_shared_writes(branches, free)
    modules = [
        module_of(tx, stem, traced, free)
        for stem, traced in zip(("cond_true", "cond_false"), branches, strict=True)
    ]
    first = branches[0]
    fakes = first.fakes if is_alike else _merged(tx, branches)
    arguments = (tx.as_proxy(pred), *modules, operands_of(tx, free))
    results = fresh_results(tx, fakes, has_gradients(free), of_function=True)
    return first.rebuild(add_call(tx, torch.ops.higher_order.cond, arguments, {}, results))


def _branches(
    tx: Translator, functions: Sequence[VariableTracker], values: Args, *, integers: bool
) -> list[TracedBody]:
    # Without gradients the operator passes on what its branches write.
    is_plain = tx.output.body is None and not tx.output.transform_levels
    branches = [
        trace_body(
            tx,
            "torch.cond",
            lambda body, fn=fn: tx.call_function(fn, values, {}),  # type: ignore[misc]
            integers=integers,
            writes=is_plain and not torch.is_grad_enabled(),
        )
        for fn in functions
    ]
    for traced in branches:
        refuse_aliases("torch.cond", traced)
    return branches


def _refuse_shared_writes(branches: list[TracedBody], free: Sequence[Node]) -> None:
    """AOTAutograd does not see a write to one operand in another one."""
    bodies = [traced.body for traced in branches]
    if not any(body.wrote_to(node) for body in bodies for node in body.lifted.values()):
        return
    fakes = [example_value(node) for node in free]
    tensors = [fake for fake in fakes if isinstance(fake, torch.Tensor)]
    is_plain = all(
        type(fake) is FakeTensor and fake.layout is torch.strided for fake in tensors
    )
    memory = {fake.untyped_storage()._cdata for fake in tensors} if is_plain else ()
    if len(memory) < len(tensors):
        unsupported(
            "mutation in a body",
            "torch.cond",
            "a branch writes to a tensor whose memory another one has",
        )


def _alike(branches: list[TracedBody]) -> bool:
    first, second = branches
    metas = [[(meta_of(f), _strides(f)) for f in traced.fakes] for traced in branches]
    return first.shape == second.shape and are_same(*metas)


def _merged(tx: Translator, branches: list[TracedBody]) -> list[Any]:
    """What is known of the results of either branch: integers and sizes in which they differ
    depend on data.
    """
    first, second = branches
    given = [", ".join(map(_described, traced.fakes)) or "no tensor" for traced in branches]
    why = f"both have to return tensors that are alike: {given[0]} is not {given[1]}"
    mode = tx.output.fake_mode
    with torch.no_grad(), mode:
        try:
            if first.shape != second.shape:
                raise TypeError
            pairs = zip(first.fakes, second.fakes, strict=True)
            merged = [_merge_output(a, b, mode) for a, b in pairs]
        except (RuntimeError, AssertionError, TypeError, KeyError, ValueError):
            unsupported("branches differ", "torch.cond", why)
    for fake, pair in zip(merged, zip(first.fakes, second.fakes, strict=True), strict=True):
        if isinstance(fake, torch.Tensor):
            require_grad(fake, any(one.requires_grad for one in pair))
    return merged


def _is_nest_of_tensors(tx: Translator, value: VariableTracker) -> bool:
    """Whether eager takes it for an operand (sizes are numbers that it takes, too)."""
    value = value.realize()
    if isinstance(value, ConstantVariable):
        return type(value.as_python_constant()) is int
    if issubclass(value.python_type(), (tuple, list)):
        return all(_is_nest_of_tensors(tx, item) for item in value.unpack(tx))
    return True


# -- loops -----------------------------------------------------------------------------------------


def parameters_like(
    tx: Translator, body: Any, leaves: Sequence[VariableTracker]
) -> list[VariableTracker]:
    """Parameters of a body that are like these tensors and integers."""

    def parameter(leaf: VariableTracker) -> VariableTracker:
        if not isinstance(leaf, TensorVariable):
            return new_number(tx, body)
        with tx.output.fake_mode:
            fake = torch.empty_like(leaf.fake)
        return new_tensor(tx, body, fake)

    return [parameter(leaf) for leaf in leaves]


def _scan(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
    """(last carry, results of all steps)."""
    combine, init, xs, dim, reverse = in_order(
        args,
        kwargs,
        "combine_fn init xs dim reverse",
        ConstantVariable(0),
        ConstantVariable(False),
    )
    carry, rebuild_carry, shape = flatten(tx, init)
    items, rebuild_items, _ = flatten(tx, xs)
    flips = reverse.as_python_constant()
    at = _scanned_dim(dim, carry, items)
    items = [_moved(tx, leaf, at, 0) for leaf in items]
    if flips:
        items = [_flipped(tx, leaf) for leaf in items]

    def run(body: Any) -> VariableTracker:
        start = rebuild_carry(parameters_like(tx, body, carry))
        with tx.output.fake_mode:
            slices = [torch.empty_like(leaf.fake.select(0, 0)) for leaf in items]  # type: ignore[attr-defined]
        item = rebuild_items([new_tensor(tx, body, part) for part in slices])
        return tx.call_function(combine, [start, item], {})

    traced = trace_body(tx, "scan", run)
    refuse_aliases("scan", traced)
    free = free_nodes([traced])
    nodes = [leaf.as_proxy() for leaf in (*carry, *items)]
    count = len(carry)
    needs_grad = has_gradients([*nodes, *free])
    if needs_grad and not all(is_differentiable(leaf.fake) for leaf in carry):  # type: ignore[attr-defined]
        unsupported("scan in training", "scan", "torch has no backward pass for integers in it")
    before = [leaf.fake for leaf in carry]  # type: ignore[attr-defined]
    kinds = [[(meta_of(f), f.stride()) for f in fakes] for fakes in (before, traced.fakes)]
    if not are_same(kinds[0], kinds[1][:count]):
        unsupported("carried values differ", "scan", "the function has to return what it gets")
    if traced.shape[0] is not tuple or traced.shape[1][0] != shape:
        unsupported("carried values differ", "scan", "it has to return (carry, result)")
    length = items[0].fake.shape[0]  # type: ignore[attr-defined]
    alike = _scan_results(tx, traced, count, length, needs_grad)
    module = module_of(tx, "scan_body", traced, free)
    operands = (
        operands_of(tx, nodes[:count]),
        operands_of(tx, nodes[count:]),
        operands_of(tx, free),
    )
    fakes = fresh_results(tx, alike, needs_grad)
    arguments = (module, *map(list, operands[:2]), operands[2])
    results = add_call(tx, torch.ops.higher_order.scan, arguments, {}, fakes)
    if flips:
        results[count:] = [_flipped(tx, leaf) for leaf in results[count:]]
    if _moves_back():
        results[count:] = [_moved(tx, leaf, 0, at) for leaf in results[count:]]
    return traced.rebuild(results)


@functools.cache
def _moves_back() -> bool:
    """Whether this torch gives the stacked results along the dimension that was
    scanned; older ones give them along the first.
    """
    module = importlib.import_module("torch._higher_order_ops.scan")
    inner = module.scan.__code__.co_consts
    codes = [part for part in inner if isinstance(part, types.CodeType)]
    return any("movedim" in code.co_names for code in codes)


def _scanned_dim(dim: VariableTracker, carry: Args, items: Args) -> int:
    """The dimension that is scanned, counted from the first one.

    All tensors of xs must have it; where it counts from the last one, they
    have to agree about which that is.
    """
    at: int = dim.as_python_constant()
    dims = {leaf.fake.dim() for leaf in items}  # type: ignore[attr-defined]
    if not carry or not items or not all(-n <= at < n for n in dims):
        unsupported("arguments", "scan", "init and xs need tensors that have the dimension")
    if at < 0 and len(dims) > 1:
        unsupported("arguments", "scan", "a negative dimension is not the same for all of xs")
    return at % min(dims)


def _scan_results(
    tx: Translator,
    traced: TracedBody,
    count: int,
    length: int,
    needs_grad: bool,
) -> list[torch.Tensor]:
    """Fake values like those that the operator gives: the last of the `count`
    carried tensors, and the others stacked `length` times.
    """
    with tx.output.fake_mode, torch.no_grad():
        carried = [fake.detach() for fake in traced.fakes[:count]]
        stacked = [
            fake.expand(length, *fake.shape).contiguous() for fake in traced.fakes[count:]
        ]
    results = [*carried, *stacked]
    for fake in results:
        require_grad(fake, needs_grad and is_differentiable(fake))
    return results


def is_differentiable(fake: torch.Tensor) -> bool:
    return fake.is_floating_point() or fake.is_complex()


def _moved(tx: Translator, leaf: VariableTracker, source: int, target: int) -> VariableTracker:
    """A tensor with one dimension at another position."""
    if source == target or max(source, target) >= leaf.realize().fake.dim():  # type: ignore[attr-defined]
        return leaf
    places: Args = [ConstantVariable(source), ConstantVariable(target)]
    return leaf.realize().call_method(tx, "movedim", places, {})


def _flipped(tx: Translator, leaf: VariableTracker) -> VariableTracker:
    """A tensor with its first dimension turned round."""
    return leaf.realize().call_method(tx, "flip", [tx.wrap_constant((0,))], {})


def _map(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
    if kwargs or len(args) < 2:
        unsupported("arguments", "map", "keywords are not traced")
    function, mapped, *others = args
    leaves, rebuild_input, _ = flatten(tx, mapped)
    shapes = [leaf.fake.shape for leaf in leaves]  # type: ignore[attr-defined]
    length = shapes[0][0] if shapes and shapes[0] else 0
    if length == 0 or any(not shape or shape[0] != length for shape in shapes):
        unsupported("arguments", "map", "what is mapped over needs one common length")

    def run(body: Any) -> VariableTracker:
        with tx.output.fake_mode:
            slices = [torch.empty_like(leaf.fake.select(0, 0)) for leaf in leaves]  # type: ignore[attr-defined]
        for part, leaf in zip(slices, leaves, strict=True):
            require_grad(part, leaf.fake.requires_grad)  # type: ignore[attr-defined]
        item = rebuild_input([new_tensor(tx, body, part) for part in slices])
        return tx.call_function(function, [item, *others], {})

    traced = trace_body(tx, "map", run)
    refuse_aliases("map", traced)
    free = free_nodes([traced])
    module = module_of(tx, "map_body", traced, free)
    nodes = tuple(leaf.as_proxy() for leaf in leaves)
    with tx.output.fake_mode, torch.no_grad():
        stacked = [fake.expand(length, *fake.shape).contiguous() for fake in traced.fakes]
    needs_grad = has_gradients([*nodes, *free])
    for fake, part in zip(stacked, traced.fakes, strict=True):
        require_grad(fake, needs_grad and part.requires_grad)
    arguments = (module, operands_of(tx, nodes), operands_of(tx, free))
    results = fresh_results(tx, stacked, needs_grad, of_function=True)
    return traced.rebuild(add_call(tx, torch.ops.higher_order.map_impl, arguments, {}, results))


def _region(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
    """A `torch.compiler.nested_compile_region`: the marked function is traced through."""
    return tx.call_function(args[0], list(args[1:]), kwargs)


def _row_by_row(op: Any, *operands: Any) -> Any:
    rows = [o if isinstance(o, (list, tuple)) else itertools.repeat(o) for o in operands]
    if not any(isinstance(row, (list, tuple)) for row in rows):
        return op(*operands)
    results = []
    for row in zip(*rows, strict=False):
        results.append(op(*row))
    return results


_ROW_BY_ROW: Any = _row_by_row


def _foreach_map(tx: Translator, args: Args, kwargs: Kwargs) -> Any:
    """`foreach_map`: kernels join what calls for single tensors have in common."""
    return NotImplemented if kwargs else tx.inline(UserFunctionVariable(_ROW_BY_ROW), args, {})


def _in_graph(
    tx: Translator,
    target: Any,
    function: VariableTracker,
    values: Args,
    named: Kwargs,
    arrange: Callable[[Node, tuple[Node, ...]], tuple[Any, ...]],
    **options: Any,
) -> VariableTracker:
    """A call of `target` with the function as a graph; `arrange(module, operands)`: its arguments.

    What the function returns of what it is given stays outside.
    """
    name = target.name()

    def call(body: Any) -> VariableTracker:
        return tx.call_function(function, values, named)

    traced = trace_body(tx, name, call)
    nodes = computed_nodes(traced)
    if not nodes:
        return traced.rebuild(list(traced.results))
    free = free_nodes([traced])
    node = add_submodule(tx.output, f"{name}_body", traced.body.module(tx.output, nodes, free))
    fakes = fresh_results(tx, [example_value(n) for n in nodes], has_gradients(free))
    arguments = arrange(node, operands_of(tx, free))
    return given_back(traced, nodes, add_call(tx, target, arguments, options, fakes))


_WRAPPER = "bypassing_wrapper"


def computed_nodes(traced: TracedBody) -> list[Node]:
    """What the body returns of its own, each once."""
    return list(dict.fromkeys(n for n in traced.nodes() if n.op != "placeholder"))


def given_back(traced: TracedBody, nodes: Sequence[Node], values: Args) -> VariableTracker:
    """The result of the function, with the values of a call in place of the nodes."""
    outside = dict(zip(nodes, values, strict=True))
    pairs = zip(traced.nodes(), traced.results, strict=True)
    return traced.rebuild([outside.get(node, leaf) for node, leaf in pairs])


@handles(wrap)
def wrapped(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
    """The function with its arguments."""

    def arrange(module: Node, operands: tuple[Node, ...]) -> tuple[Any, ...]:
        return module, *operands

    return _in_graph(tx, wrap, args[0], args[1:], kwargs, arrange)


@handles(dynamo_bypassing_wrapper)
def bypassed(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
    """The function with its arguments as a graph; what wraps it is called with that, and may
    change all that the function returns.
    """
    wrapper = _known_function(tx, args[0])
    traced = trace_body(
        tx,
        "dynamo_bypassing_wrapper",
        lambda body: tx.call_function(args[1], args[2:], kwargs),
    )
    nodes = list(dict.fromkeys(traced.nodes()))
    if not nodes or not all(isinstance(node, Node) for node in nodes):
        unsupported("arguments", "dynamo_bypassing_wrapper", "the function returns no tensors")
    free = free_nodes([traced])
    module = traced.body.module(tx.output, nodes, free)
    module.meta[_WRAPPER] = wrapper
    node = add_submodule(tx.output, "bypassing_wrapper_body", module)
    fakes = fresh_results(tx, [example_value(n) for n in nodes], has_gradients(free))
    arguments = (_WRAPPER, node, *operands_of(tx, free))
    values = add_call(tx, dynamo_bypassing_wrapper, arguments, {}, fakes)
    return given_back(traced, nodes, values)


def _known_function(tx: Translator, value: VariableTracker) -> Any:
    """A function of the program, or a partial of one with constants."""
    value = value.realize()
    if value.python_type() is functools.partial:
        func, given, named = (value.getattr(tx, n) for n in ("func", "args", "keywords"))
        keywords = tx.unpack_keywords(named.realize())
        return functools.partial(
            _known_function(tx, func),
            *(_known_function(tx, item) for item in given.realize().unpack(tx)),
            **{name: _known_function(tx, item) for name, item in keywords.items()},
        )
    if not value.is_python_constant():
        unsupported("arguments", repr(value), "what wraps a function has to be known")
    return value.as_python_constant()


@handles(hints_wrapper)
def hinted(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
    """The function with a tuple of arguments, and notes for backends."""
    function, values, named, hints = in_order(args, kwargs, "body_fn args kwargs hints")
    notes = hints.realize()
    items = {name: v.realize() for name, v in tx.unpack_keywords(notes).items()}
    if not all(value.is_python_constant() for value in items.values()):
        unsupported("arguments", "hints_wrapper", "the hints are no constants")
    constants = {name: value.as_python_constant() for name, value in items.items()}
    if not all(isinstance(value, (int, float, str)) for value in constants.values()):
        unsupported("arguments", "hints_wrapper", "eager will raise the error")
    given = [value.realize() for value in values.unpack(tx)]
    is_flat = all(isinstance(value, (TensorVariable, ConstantVariable)) for value in given)
    if not is_flat or named.realize().unpack(tx):
        unsupported("arguments", "hints_wrapper", "eager will raise the error")

    def arrange(module: Node, operands: tuple[Node, ...]) -> tuple[Any, ...]:
        return module, operands, {}

    return _in_graph(tx, hints_wrapper, function, given, {}, arrange, hints=constants)


@handles(strict_mode_op)
def strict(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
    """The function with a tuple of arguments."""
    function, values = in_order(args, kwargs, "callable operands")
    given = [value.realize() for value in values.unpack(tx)]
    if not all(isinstance(value, (TensorVariable, ConstantVariable)) for value in given):
        unsupported("arguments", "strict_mode", "they are no flat tuple of tensors and numbers")
    return _in_graph(tx, strict_mode_op, function, given, {}, lambda body, free: (body, free))


def _register(path: str, handler: Callable[..., Any]) -> None:
    """The Python function that users call, where this torch has it."""
    module_name, _, name = path.rpartition(".")
    module = __import__(module_name, fromlist=[name])
    if hasattr(module, name):
        handles(getattr(module, name))(handler)


_register("torch._higher_order_ops.map.map", _map)
_register("torch._higher_order_ops.foreach_map.foreach_map", _foreach_map)
_register("torch._higher_order_ops.scan.scan", _scan)
_register("torch._higher_order_ops.invoke_subgraph.invoke_subgraph_placeholder", _region)


@handles(torch._higher_order_ops.InvokeQuant.__call__)
def _invoke_quant(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
    """`InvokeQuant(...)(function, *operands)`: the function is traced through, which is what it
    does in eager, where it does not take a `scheme`.
    """
    named = {name: value for name, value in kwargs.items() if name != "scheme"}
    return tx.call_function(args[1], list(args[2:]), named)


@handles(torch._higher_order_ops.BaseHOP.__call__, type(invoke_quant_packed).__call__)
def _operator(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
    """`operator(function, *operands, **options)`: the function is traced through."""
    return tx.call_function(args[1], list(args[2:]), {})


def _on_values(operator: Any) -> Callable[..., VariableTracker]:
    """Of an operator that takes no function: a node."""
    return lambda tx, args, kwargs: tx.call_operation(operator, args, kwargs)


for _plain in (out_dtype, hop_print):
    handles(_plain)(_on_values(_plain))
