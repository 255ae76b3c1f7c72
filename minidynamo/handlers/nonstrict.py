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
from torch.nn.utils import stateless
from torch.utils import _pytree as pytree

from ..markers import Decision, call_on_leaves, set_decision
from ..variables.base import NotConstant, VariableTracker, unsupported
from ..variables.functions import UserFunctionVariable
from ..variables.nn_module import NNModuleVariable
from ..variables.opaque import check_reads
from ..variables.registry import handles

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


def _target(
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
        specs.append(made) if not specs else None
        return results

    call.__name__ = call.__qualname__ = getattr(function, "__name__", "nonstrict")
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
    target = _target(function.as_python_constant(), _real_spec(tx, spec), modules, specs)
    tx.output.fake_mode.allow_non_fake_inputs = True  # backends trace with the mode, too
    made = tx.call_operation(target, leaves, {})
    return tx.wrap_items(tuple, [made, tx.wrap_held(specs[0], "how the result is made")])
