"""`nonstrict_trace`: a call is one node on the leaves of its arguments, whatever holds them.

Flattening the arguments, and making the result of its leaves, is traced Python code (torch's
pytrees); in between lies `call_on_leaves`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch.utils import _pytree as pytree

from ..markers import call_on_leaves
from ..variables.base import NotConstant, VariableTracker, unsupported
from ..variables.opaque import check_reads
from ..variables.registry import handles

if TYPE_CHECKING:
    from ..symbolic_convert import Translator

Args = list[VariableTracker]
Kwargs = dict[str, VariableTracker]


def _target(function: Callable[..., Any], spec: Any, specs: list[Any]) -> Callable[..., Any]:
    """What the node calls. `specs` gets how the result is made of the list that it gives."""

    def call(*leaves: Any) -> Any:
        args, kwargs = pytree.tree_unflatten(list(leaves), spec)
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
    function, spec, leaves = args
    specs: list[Any] = []
    check_reads(tx, function.as_python_constant())
    target = _target(function.as_python_constant(), _real_spec(tx, spec), specs)
    made = tx.call_operation(target, leaves.unpack(tx), {})
    return tx.wrap_items(tuple, [made, tx.wrap_held(specs[0], "how the result is made")])
