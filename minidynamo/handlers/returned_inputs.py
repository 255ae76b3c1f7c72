"""What `apply` of an autograd function gives where forward returns one of its inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..variables.base import VariableTracker, unsupported
from ..variables.tensor import TensorVariable
from ..variables.transforms import OpenLevel

if TYPE_CHECKING:
    from ..symbolic_convert import Translator

Values = list[VariableTracker]


def outputs_of(
    tx: Translator,
    result: VariableTracker,
) -> list[VariableTracker]:
    """`result` as autograd takes it apart."""
    if result.python_type() is tuple:
        return [item.realize() for item in result.unpack(tx)]
    return [result]


def without_inputs(tx: Translator, result: VariableTracker, values: Values) -> VariableTracker:
    """`apply` returns another tensor where forward returns an input that it does not mark as dirty:
    a view, but of what has a gradient, which nobody wants here, one without.
    """
    if isinstance(result, TensorVariable):
        if any(result is value for value in values):
            if _wants_detached(result):
                return result.node_method(tx, "detach", [], {})
            return result.node_method(tx, "view_as", [result], {})
        return result
    if result.python_type() is tuple:
        items = [without_inputs(tx, item.realize(), values) for item in result.unpack(tx)]
        return tx.wrap_items(tuple, items)
    return result


def _wants_detached(value: VariableTracker) -> bool:
    return isinstance(value, TensorVariable) and value.fake.requires_grad


def check_setup(
    tx: Translator,
    context: VariableTracker,
    result: VariableTracker,
    values: Values,
) -> None:
    """What a setup_context may not save, and what torch.func makes of an input that is returned."""
    returned = [out for out in outputs_of(tx, result) if any(out is value for value in values)]
    if not returned:
        return
    if any(isinstance(level, OpenLevel) for level in tx.output.open_contexts):
        unsupported("autograd function", repr(result), "an input is returned as it is")
    saved = tx.output.side_effects.load_attr(context, "to_save")
    kept = saved.realize().unpack(tx) if isinstance(saved, VariableTracker) else []
    views = [out for out in returned if not _wants_detached(out)]
    if any(item.realize() is out for item in kept for out in views):
        unsupported("autograd function", repr(result), "eager will raise the error")
