"""`nonstrict_trace`: a call is one node on the leaves of its arguments, whatever holds them.

Flattening the arguments, and making the result of its leaves, is traced Python code (torch's
pytrees); in between lies `call_on_leaves`. A module among the leaves is given as its parameters and
buffers. Other tensors that the function reaches are constants. So it is with torch's own
`nonstrict_trace` and `leaf_function`.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.nn.utils import stateless
from torch.utils import _pytree as pytree

from ..markers import Decision, call_on_leaves, made_nonstrict, set_decision
from ..variables.base import NotConstant, VariableTracker, unsupported
from ..variables.functions import UserFunctionVariable
from ..variables.nn_module import NNModuleVariable
from ..variables.opaque import check_reads
from ..variables.registry import handles, handles_named

if TYPE_CHECKING:
    from ..symbolic_convert import Translator

Args = list[VariableTracker]
Kwargs = dict[str, VariableTracker]


Modules = dict[int, tuple[torch.nn.Module, list[str]]]  # by the leaves that they are


def _tensors_of(module: torch.nn.Module) -> list[torch.Tensor]:
    """Traced: what a module is given as."""
    return [*module.parameters(), *module.buffers()]


set_decision(_tensors_of, Decision.INLINE)
_traced_tensors: Any = _tensors_of


def _names_of(module: torch.nn.Module) -> list[str]:
    """The names of `_tensors_of(module)`."""
    return [name for name, _ in (*module.named_parameters(), *module.named_buffers())]


@contextlib.contextmanager
def _given(leaves: list[Any], modules: Modules) -> Iterator[list[Any]]:
    """The leaves as the function knows them: with the modules, which hold what is given."""
    known = list(leaves)
    with contextlib.ExitStack() as stack:
        for place, (module, names) in modules.items():
            tensors = dict(zip(names, leaves[place], strict=True))
            known[place] = module
            stack.enter_context(
                stateless._reparametrize_module(module, tensors, tie_weights=True)
            )
        yield known


def _bind_sizes(tx: Translator, results: list[Any]) -> None:
    """Sizes that only data tells come from the node: leaf functions make them unannounced."""
    output = tx.output
    sized = [r for r in results if isinstance(r, (torch.Tensor, torch.SymInt, torch.SymFloat))]
    known = (*output.unbacked, *output.shapes.sources)
    pending = output.shape_env.pending_fresh_unbacked_symbols
    made = free_unbacked_symbols(sized).difference(known, pending)
    pending.extend(symbol for symbol in made if not output.draws.has(symbol))


def _target(
    tx: Translator,
    function: Callable[..., Any],
    spec: Any,
    modules: Modules,
    specs: list[Any],
) -> Callable[..., Any]:
    """What the node calls. `specs` gets how the result is made of the list that it gives."""

    def call(*leaves: Any) -> Any:
        with _given(list(leaves), modules) as known:
            args, kwargs = pytree.tree_unflatten(known, spec)
            results, made = pytree.tree_flatten(function(*args, **kwargs))
        if not specs:  # the call that the tracer makes
            specs.append(made)
            _bind_sizes(tx, results)
        if made != specs[0]:
            what = f"{name} output structure mismatch: expected {specs[0]}, got {made}"
            raise AssertionError(what)
        return results

    name = call.__name__ = call.__qualname__ = getattr(function, "__name__", "nonstrict")
    return call


def _real_spec(tx: Translator, value: VariableTracker) -> Any:
    """The TreeSpec that a traced one stands for."""
    value = value.realize()
    kind = value.python_type()
    real = tx.output.side_effects.real_of(value)
    if real is not None and value.source is not None:
        tx.guard(value.source, "ID_IS", real)
        return real
    fields = [field.name for field in dataclasses.fields(kind) if field.init]
    found: list[Any] = []
    for name in fields:
        item = value.getattr(tx, name).realize()
        if "children" in name:
            found.append([_real_spec(tx, child) for child in item.unpack(tx)])
            continue
        try:
            found.append(item.as_python_constant())
        except NotConstant:
            unsupported(
                "argument of a nonstrict function", repr(item), "a node has no constant"
            )
    return kind(*found)


@handles(call_on_leaves)
def on_leaves(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
    """`(function, spec, leaves)`: the leaves of the result, and its TreeSpec."""
    function, spec, flat = args
    specs: list[Any] = []
    check_reads(tx, function.as_python_constant())
    leaves = [leaf.realize() for leaf in flat.unpack(tx)]
    modules: Modules = {}
    for place, leaf in enumerate(leaves):
        module = tx.output.side_effects.real_of(leaf)
        if isinstance(leaf, NNModuleVariable) and isinstance(module, torch.nn.Module):
            if leaf.source is not None:
                tx.guard(leaf.source, "ID_IS", module)
            modules[place] = module, _names_of(module)
            leaves[place] = tx.inline(UserFunctionVariable(_traced_tensors), [leaf], {})
    target = _target(
        tx,
        function.as_python_constant(),
        _real_spec(tx, spec),
        modules,
        specs,
    )
    tx.output.fake_mode.allow_non_fake_inputs = True  # backends trace with the mode, too
    made = tx.call_operation(target, leaves, {})
    return tx.wrap_items(tuple, [made, tx.wrap_held(specs[0], "how the result is made")])


@handles_named(
    "minidynamo.decorators.nonstrict_trace",
    "torch._dynamo.decorators.nonstrict_trace",
)
def decorate(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
    """The decorator in captured code, of a function that was there before."""
    given = {**dict(zip(("traceable_fn",), args, strict=False)), **kwargs}
    function = given["traceable_fn"].realize()
    if len(given) > 1 or not function.is_python_constant():
        why = "it is given a function that the captured code makes"
        unsupported("call of an untraced function", "nonstrict_trace", why)
    return tx.wrap_held(made_nonstrict(function.as_python_constant()), "a nonstrict function")
