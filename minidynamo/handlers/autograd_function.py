"""`torch.autograd.Function`: `apply` becomes one node if both halves trace without side effects.

Where no gradient is wanted, `forward` is traced into the graph like any function. Otherwise forward
and backward are traced on trial into graphs of their own, which collects the guards of what they
read and refuses what changes state outside; the node then calls the class's own `apply`, whose two
halves the backend traces as autograd runs them. Where the class's own code would not see what the
trace saw (arguments that no graph can hold, tensors from elsewhere, state that the frame has
changed and that is stored only behind the graph), the node runs the traced halves.

Under vmap a class that has a rule of its own is only asked for that: it is what is tried then.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch._C import _functorch
from torch._functorch.autograd_function import VmapInfo
from torch._functorch.pyfunctorch import VmapInterpreter
from torch.autograd.function import FunctionCtx, _is_setup_context_defined
from torch.fx.node import Node, map_aggregate

from .. import markers
from ..exc import Unsupported
from ..output_graph import example_value
from ..subgraphs import Body, add_submodule, scope
from ..variables.base import VariableTracker, unsupported
from ..variables.bodies import new_tensor, trace_body
from ..variables.builtin_object import NONE, is_none
from ..variables.classes import ClassVariable, new_object
from ..variables.constant import ConstantVariable
from ..variables.contexts import GlobalStateVariable, without_gradients
from ..variables.opaque import check_reads, first_read
from ..variables.put_back import Changes
from ..variables.reach import reached
from ..variables.registry import handles
from ..variables.tensor import TensorVariable
from ..variables.transforms import OpenLevel
from .function_nodes import apply_of, run_halves
from .returned_inputs import check_setup, outputs_of, without_inputs

if TYPE_CHECKING:
    from ..symbolic_convert import Translator

Values = list[VariableTracker]
Kwargs = dict[str, VariableTracker]

# The context's own methods only store what they are given.
for _name in (
    "save_for_backward",
    "save_for_forward",
    "mark_dirty",
    "mark_non_differentiable",
    "set_materialize_grads",
):
    markers.set_decision(getattr(FunctionCtx, _name), markers.Decision.INLINE)


_apply = vars(torch.autograd.Function)["apply"]
# Before, `apply` of C refused keywords.
_TAKES_KEYWORDS = torch.__version__ >= (2, 13)


# A class method; from torch 2.14 on it is one of C.
@handles(getattr(_apply, "__func__", _apply))
def function_apply(
    tx: Translator,
    args: Values,
    kwargs: Kwargs,
) -> Any:
    """`cls.apply(*args)`."""
    cls, values = args[0], args[1:]
    if not isinstance(cls, ClassVariable) or (kwargs and not _TAKES_KEYWORDS):
        return NotImplemented
    if any(isinstance(c, OpenLevel) and c.kind.is_forward for c in tx.output.open_contexts):
        _refuse(cls, "its jvp is called by eager")
    values = _positional(tx, cls, values, kwargs)
    if markers.decision(cls.value) is markers.Decision.ALLOW:
        check_reads(tx, cls.value)
        return tx.call_operation(apply_of(cls.value), values, {})
    if _has_own_rule(tx, cls):
        return _call_by_rule(tx, cls, values)
    wanted = [isinstance(v, TensorVariable) and _requires_grad(v.fake) for v in values]
    if not (torch.is_grad_enabled() and any(wanted)):
        result, context = _forward(tx, cls, values, [False] * len(values))
        dirty = tx.output.side_effects.load_attr(context, "dirty_tensors")
        kept = dirty.realize().unpack(tx) if isinstance(dirty, VariableTracker) else []
        inputs = [value for value in values if not any(value is item for item in kept)]
        if _has_setup(cls):
            check_setup(tx, context, result, inputs)
        return without_inputs(tx, result, inputs)
    traced = _try_out(tx, cls, values, wanted)
    _check_memory(tx, cls, traced)
    is_plain = all(
        isinstance(item, TensorVariable) or item.is_python_constant()
        for item in outputs_of(tx, traced.result)
    )
    if is_plain and not traced.mutated and _sees_the_same(tx, cls, values, traced.forward):
        return tx.call_operation(apply_of(cls.value), values, {})
    return _call_traced(tx, cls, values, traced)


def _refuse(
    cls: ClassVariable,
    why: str,
) -> NoReturn:
    unsupported("autograd function", cls.value.__qualname__, why)


def _positional(
    tx: Translator,
    cls: ClassVariable,
    values: Values,
    kwargs: Kwargs,
) -> Values:
    """The arguments as `apply` hands them on: by position; with defaults where the context is
    made by setup_context.
    """
    if not (kwargs or _has_setup(cls)):
        return values
    if not _has_setup(cls):
        return _named(tx, cls, values, kwargs)
    forward = cls.value.forward  # type: ignore[attr-defined]
    parameters = inspect.signature(forward).parameters
    required = [p.replace(default=p.empty) for p in parameters.values()]
    if any(p.kind in (p.KEYWORD_ONLY, p.VAR_KEYWORD) for p in required):
        _refuse(cls, "its forward takes arguments by keyword only")
    try:
        inspect.signature(forward).bind(*values, **kwargs)
    except TypeError as error:
        tx.raise_observed(TypeError, *error.args)
    bound = inspect.Signature(required).bind_partial(*values, **kwargs)
    optional = [p.name for p in parameters.values() if p.default is not p.empty]
    missing = [name for name in optional if name not in bound.arguments]
    if not (missing or kwargs):
        return values
    is_plain = inspect.isfunction(forward) and not hasattr(forward, "__wrapped__")
    if not is_plain or hasattr(forward, "__signature__"):
        _refuse(cls, "its forward is wrapped, and not called with all of its arguments")
    if missing:
        defaults = cls.getattr(tx, "forward").getattr(tx, "__defaults__").unpack(tx)
        kept = dict(zip(optional, defaults, strict=True))
        bound.arguments.update((name, kept[name]) for name in missing)
    return list(bound.args)


def _named(
    tx: Translator,
    cls: ClassVariable,
    values: Values,
    kwargs: Kwargs,
) -> Values:
    """`apply` of C finds the places of keywords in the code of forward, and takes no defaults."""
    code = getattr(cls.value.forward, "__code__", None)  # type: ignore[attr-defined]
    if code is None or code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS):
        _refuse(cls, "its forward is called with keywords")
    names = code.co_varnames[1 : code.co_argcount]
    places = names[len(values) : len(values) + len(kwargs)]
    if set(places) != set(kwargs):
        _refuse(cls, "the keywords do not fit its forward")
    return [*values, *(kwargs[name] for name in places)]


def _has_own_rule(
    tx: Translator,
    cls: ClassVariable,
) -> bool:
    """Whether the class is asked for its rule for vmap. Raises Unsupported where eager raises."""
    levels = _functorch.get_interpreter_stack() or []
    if not any(level.key() == _functorch.TransformType.Vmap for level in levels):
        return False
    if not _has_setup(cls):
        _refuse(cls, "vmap needs its setup_context")
    is_made = cls.getattr(tx, "generate_vmap_rule").realize().truth(tx)
    cls.getattr(tx, "vmap").realize()
    is_own = cls.value.vmap is not torch.autograd.Function.vmap  # type: ignore[attr-defined]
    if is_made == is_own:
        _refuse(cls, "vmap needs either its rule or generate_vmap_rule")
    return is_own


def _call_by_rule(
    tx: Translator,
    cls: ClassVariable,
    values: Values,
) -> VariableTracker:
    """The rule is traced on trial, as the halves are elsewhere."""
    top = _functorch.peek_interpreter_stack()
    if top.key() != _functorch.TransformType.Vmap:
        _refuse(cls, "its rule for vmap is called below of another transform")
    level = VmapInterpreter(top)
    parts = [_unbatched(cls, value, level.level()) for value in values]
    if all(dim is None for _, dim in parts):
        _refuse(cls, "vmap does not go over any of its arguments")
    info = VmapInfo(level.batch_size(), level.randomness())
    if type(info.batch_size) is not int:
        _refuse(cls, "its rule for vmap is given a symbolic size")
    dims = tx.wrap_items(
        tuple,
        [ConstantVariable(dim) for _, dim in parts],
    )
    first = tx.wrap_items(
        VmapInfo,
        [ConstantVariable(item) for item in info],
    )

    def call(body: Body) -> VariableTracker:
        given = [
            new_tensor(tx, body, part) if part is not None else value
            for (part, _), value in zip(parts, values, strict=True)
        ]
        return tx.call_function(cls.getattr(tx, "vmap"), [first, dims, *given], {})

    traced = trace_body(tx, "vmap", call)
    if not _sees_the_same(tx, cls, values, traced.body):
        _refuse(cls, "its rule for vmap reads what no node can give it")
    return tx.call_operation(apply_of(cls.value), values, {})


def _unbatched(
    cls: ClassVariable,
    value: VariableTracker,
    level: int,
) -> tuple[torch.Tensor | None, int | None]:
    """What a rule for vmap is given for an argument (None: what it is), and its dimension."""
    if isinstance(value, TensorVariable):
        fake = value.fake
        if _functorch.is_batchedtensor(fake) and _functorch.maybe_get_level(fake) == level:
            return _functorch.get_unwrapped(fake), _functorch.maybe_get_bdim(fake)
        return fake, None
    if not value.is_python_constant():
        _refuse(cls, "its rule for vmap is given other objects than tensors")
    return None, None


def _requires_grad(fake: torch.Tensor) -> bool:
    """Whether a gradient is wanted, at any level of torch.func: vmap hides what is below."""
    while not fake.requires_grad:
        if not torch._C._functorch.is_functorch_wrapped_tensor(fake):
            return False
        fake = torch._C._functorch.get_unwrapped(fake)
    return True


def _has_setup(cls: ClassVariable) -> bool:
    """Whether forward gets no context: then setup_context fills it."""
    return _is_setup_context_defined(cls.value.setup_context)  # type: ignore[attr-defined]


def _forward(
    tx: Translator,
    cls: ClassVariable,
    values: Values,
    wanted: list[bool],
) -> tuple[VariableTracker, VariableTracker]:
    """Trace forward (and setup_context) as `apply` does, in no-grad mode: (result, context)."""
    context = new_object(tx, FunctionCtx)
    needs = tx.wrap_items(tuple, [ConstantVariable(want) for want in wanted])
    context.setattr(tx, "needs_input_grad", needs)
    with without_gradients(tx):
        return _call_forward(tx, cls, context, values), context


def _call_forward(
    tx: Translator,
    cls: ClassVariable,
    context: VariableTracker,
    values: Values,
) -> VariableTracker:
    forward = cls.getattr(tx, "forward")
    if not _has_setup(cls):
        return tx.call_function(forward, [context, *values], {}).realize()
    result = tx.call_function(forward, values, {}).realize()
    arguments = [context, tx.wrap_items(tuple, values), result]
    tx.call_function(cls.getattr(tx, "setup_context"), arguments, {})
    return result


@dataclass
class _Halves:
    """What was traced: the graphs, the result and the context of forward, the gradients that
    backward returned; `mutated`: what forward changed that had existed before.
    """

    forward: Body
    backward: Body
    result: VariableTracker
    context: VariableTracker
    grads: list[VariableTracker]
    mutated: list[VariableTracker]


def _try_out(
    tx: Translator,
    cls: ClassVariable,
    values: Values,
    wanted: list[bool],
) -> _Halves:
    """Trace both halves into graphs of their own. Raises Unsupported where that fails."""
    effects, output = tx.output.side_effects, tx.output
    effects.version += 1
    with Changes(tx) as changes, torch.no_grad(), scope(output) as forward:
        result, context = _forward(tx, cls, values, wanted)
        saved = effects.load_attr(context, "to_save")
        if not isinstance(saved, VariableTracker):
            saved = tx.wrap_items(tuple, [])
        context.setattr(tx, "saved_tensors", saved)
        mutated = [v for v in changes.lasting() if not isinstance(v, GlobalStateVariable)]
        with scope(output) as backward, Changes(tx, changes) as later:
            given = [_gradient(tx, backward, item) for item in outputs_of(tx, result)]
            name = "backward" if "vjp" not in vars(cls.value) else "vjp"
            found = tx.call_function(cls.getattr(tx, name), [context, *given], {}).realize()
            if not all(isinstance(v, GlobalStateVariable) for v in later.lasting()):
                _refuse(cls, "its backward changes state outside of itself")
    grads = [item.realize() for item in outputs_of(tx, found)]
    return _Halves(forward, backward, result, context, grads, mutated)


def _check_memory(
    tx: Translator,
    cls: ClassVariable,
    traced: _Halves,
) -> None:
    """AOTAutograd writes a second time where an output shares its memory with an argument that
    forward writes to, and does not mark as dirty; and where an output is a view of another one, its
    gradient goes there, and not to backward. What is marked needs a gradient after the call.
    """
    dirty = tx.output.side_effects.load_attr(traced.context, "dirty_tensors")
    marked = dirty.unpack(tx) if isinstance(dirty, VariableTracker) else []
    given = {v: example_value(v) for v in traced.forward.lifted.values()}
    written = {
        fake.untyped_storage()._cdata
        for node, fake in given.items()
        if _is_plain(fake) and traced.forward.wrote_to(node)
    }
    outputs = [
        item
        for item in outputs_of(tx, traced.result)
        if isinstance(item, TensorVariable) and _is_plain(item.fake)
    ]
    for item in outputs:
        is_marked = any(item is other.realize() for other in marked)
        if not is_marked and item.fake.untyped_storage()._cdata in written:
            _refuse(cls, "it returns memory of an argument that it writes to")
        if is_marked and not item.fake.requires_grad:
            _refuse(cls, "it writes to an argument that had no gradient, and has one then")
        base = item.fake._base
        if base is not None and any(base is other.fake for other in outputs):
            _refuse(cls, "it returns a tensor and a view of that")


def _is_plain(fake: Any) -> bool:
    """Whether it is a tensor with memory of its own to ask for."""
    is_strided = isinstance(fake, torch.Tensor) and fake.layout is torch.strided
    return is_strided and not _functorch.is_functorch_wrapped_tensor(fake)


def _gradient(
    tx: Translator,
    body: Body,
    item: VariableTracker,
) -> VariableTracker:
    """What backward is given for an output."""
    if not isinstance(item, TensorVariable):
        return NONE
    with tx.output.fake_mode:
        return new_tensor(tx, body, torch.zeros_like(item.fake))


def _halves_of(cls: Any) -> list[Any]:
    names = ("forward", "setup_context", "backward", "vjp", "vmap")
    return [cls, *(inspect.getattr_static(cls, name) for name in names)]


def _sees_the_same(
    tx: Translator,
    cls: ClassVariable,
    values: Values,
    body: Body,
) -> bool:
    """Whether the class's own code, run by the graph, finds what the trace found."""
    if first_read(tx, cls.value, _halves_of) is not None:
        return False
    given: set[Any] = set()
    for value in values:
        try:
            leaves: list[Any] = []
            map_aggregate(tx.as_proxy(value), leaves.append)
        except Unsupported:
            return False
        if any(map(callable, leaves)):
            return False
        given.update(leaf for leaf in leaves if isinstance(leaf, Node))
    given = set(_here(tx, list(given)))
    return all(
        node in given or not isinstance(example_value(node), torch.Tensor)
        for node in body.lifted
    )


def _here(
    tx: Translator,
    nodes: list[Node],
) -> list[Node]:
    """The nodes as the graph under construction has them."""
    body = tx.output.body
    return nodes if body is None else [body.local(node) for node in nodes]


def _call_traced(
    tx: Translator,
    cls: ClassVariable,
    values: Values,
    traced: _Halves,
) -> VariableTracker:
    """A node that runs the traced halves. Gradients go to the arguments that are tensors."""
    _check_halves(tx, cls, values, traced)
    output, forward, backward = tx.output, traced.forward, traced.backward
    outputs = outputs_of(tx, traced.result)
    tensors = [item for item in outputs if isinstance(item, TensorVariable)]
    kept = _kept_tensors(tx, cls, traced)
    results = [forward.local(item.as_proxy()) for item in (*tensors, *kept)]
    named = tx.output.side_effects.load_attr(traced.context, "non_differentiable")
    unmarked = named.unpack(tx) if isinstance(named, VariableTracker) else []
    plain = tuple(
        i for i, item in enumerate(tensors) if any(item is m.realize() for m in unmarked)
    )
    plain += tuple(range(len(tensors), len(results)))
    given = {
        index: _here(tx, [value.as_proxy()])[0]
        for index, value in enumerate(values)
        if isinstance(value, TensorVariable)
    }
    pairs = [
        (given[index], backward.local(grad.as_proxy()))
        for index, grad in enumerate(traced.grads)
        if index in given and not is_none(grad)
    ]
    saved = list(backward.lifted)
    operands = list(dict.fromkeys((*given.values(), *forward.lifted)))
    first = forward.module(output, [*results, *saved], operands)
    second = backward.module(output, [grad for _, grad in pairs], saved)
    halves = (
        add_submodule(output, "forward_body", first),
        add_submodule(output, "backward_body", second),
    )
    slots = tuple(operands.index(node) for node, _ in pairs)
    counts = (len(tensors), len(results))
    args = (*halves, counts, plain, slots, _checked(tx, traced, saved), *operands)
    made = tx.add_node("call_function", run_halves, args, {}).unpack(tx)
    pairs_made = zip((*tensors, *kept), made, strict=True)
    held = iter([_stand_for(tx, old, new.realize(), forward) for old, new in pairs_made])
    items = [next(held) if isinstance(item, TensorVariable) else item for item in outputs]
    return tx.wrap_items(tuple, items) if traced.result.python_type() is tuple else items[0]


def _checked(
    tx: Translator,
    traced: _Halves,
    saved: list[Node],
) -> tuple[int, ...]:
    """Which of what backward is given were passed to save_for_backward: autograd refuses those
    that are written to in between, and no others.
    """
    lifted = traced.forward.lifted
    named = tx.output.side_effects.load_attr(traced.context, "to_save")
    items = named.unpack(tx) if isinstance(named, VariableTracker) else []
    nodes = [i.node for i in map(_realized, items) if isinstance(i, TensorVariable)]
    given = {lifted.get(node, node) for node in nodes}
    return tuple(i for i, node in enumerate(saved) if lifted.get(node, node) in given)


def _realized(item: VariableTracker) -> VariableTracker:
    return item.realize()


def _kept_tensors(
    tx: Translator,
    cls: ClassVariable,
    traced: _Halves,
) -> list[TensorVariable]:
    """The tensors of forward, other than its results, that lead to the program: what it stored
    outside, and objects that it returns, hold them. They have no gradient.
    """
    outputs = outputs_of(tx, traced.result)
    others = [item for item in outputs if not isinstance(item, TensorVariable)]
    starts = [*others, *traced.mutated]
    stored = map(tx.output.side_effects.stored_attrs, starts)
    found, nodes = [], set()
    for value in reached(tx, [*starts, *stored]):
        if isinstance(value, Node) and value.graph is traced.forward.graph:
            nodes.add(value)
        if isinstance(value, TensorVariable) and value.node.graph is traced.forward.graph:
            found.append(value)
    kept = [value for value in found if not any(value is item for item in outputs)]
    if nodes - {value.node for value in found}:
        _refuse(cls, "it keeps what it computed outside of itself")
    memory = [example_value(node) for node in traced.forward.lifted.values()]
    memory += [item.fake for item in outputs if isinstance(item, TensorVariable)]
    for value in kept:
        if value.anchor is not None or value.choice is not None or not _is_plain(value.fake):
            _refuse(cls, "it keeps a tensor that stands for several")
        own = value.fake.untyped_storage()._cdata
        if any(_is_plain(fake) and fake.untyped_storage()._cdata == own for fake in memory):
            _refuse(cls, "it keeps a view outside of itself")
        memory.append(value.fake)
    return kept


def _stand_for(
    tx: Translator,
    old: TensorVariable,
    new: VariableTracker,
    forward: Body,
) -> TensorVariable:
    """The value of a result: what leads to a tensor of forward leads to that then."""
    assert isinstance(new, TensorVariable)
    if old.node.graph is not forward.graph:
        return new
    old.node = new.node
    tx.output.side_effects.track(new.fake, old)
    return old


def _check_halves(
    tx: Translator,
    cls: ClassVariable,
    values: Values,
    traced: _Halves,
) -> None:
    """Raises Unsupported for what `run_halves` does not do."""
    load = tx.output.side_effects.load_attr
    materialize = load(traced.context, "materialize_grads")
    outputs = outputs_of(tx, traced.result)
    if not any(isinstance(item, TensorVariable) for item in outputs):
        _refuse(cls, "it returns no tensor")
    if load(traced.context, "dirty_tensors") is not None:
        _refuse(cls, "it writes to its arguments")
    if isinstance(materialize, VariableTracker) and not materialize.truth(tx):
        _refuse(cls, "its backward is given None")
    if len(traced.grads) != len(values):
        _refuse(cls, "its backward returns another number of gradients")
    if not all(isinstance(grad, TensorVariable) or is_none(grad) for grad in traced.grads):
        _refuse(cls, "its backward returns no tensors")
    if torch._C._functorch.peek_interpreter_stack() is not None:
        _refuse(cls, "it is called inside of a transform of torch.func")
    for body in (traced.forward, traced.backward):
        for node in (*body.parameters, *body.lifted.values()):
            if isinstance(example_value(node), torch.Tensor) and body.wrote_to(node):
                _refuse(cls, "it writes to a tensor that it is given")
