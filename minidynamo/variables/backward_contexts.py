"""The `ctx` of a forward or backward function that is compiled itself, or called by a frame that
is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import BackwardCFunction

from ..source import AttrSource, CallSource, Source
from .base import VariableTracker, unsupported
from .registry import wraps_instances
from .tensor import TensorVariable
from .user_defined import UserDefinedObjectVariable

if TYPE_CHECKING:
    from ..symbolic_convert import Translator


# What C keeps of an object that any store replaces; it is looked at when forward has ended.
_KEPT = frozenset(
    "needs_input_grad to_save saved_for_forward dirty_tensors non_differentiable".split()
)


def _saved_tensors(node: Any) -> tuple[torch.Tensor | None, ...]:
    """A node's saved tensors; for one whose tensors hooks of the program unpack, it raises:
    hooks run at each reading, and checkpoints refuse a second one.
    """
    if any(saved.unpack_hook is not None for saved in node._raw_saved_tensors):
        raise RuntimeError("hooks unpack what it saved")
    return node.saved_tensors


class BackwardContextVariable(UserDefinedObjectVariable):
    """A node of autograd's graph, made of an `autograd.Function`: what forward stored are its
    attributes; of what C keeps, the saved tensors and `needs_input_grad` are traced, and what
    forward says of its tensors is stored when the frame ends.
    """

    saved: list[VariableTracker] | None = None
    versions: list[int]

    def load_getset(self, tx: Translator, descriptor: Any) -> VariableTracker:
        name = descriptor.__name__
        stored = tx.output.side_effects.load_attr(self, name)
        if isinstance(stored, VariableTracker):
            return stored
        assert self.source is not None
        if name == "needs_input_grad":
            return tx.wrap(self.value.needs_input_grad, AttrSource(self.source, name))
        if name != "saved_tensors":
            return super().load_getset(tx, descriptor)
        if self.saved is None:
            try:
                tensors = _saved_tensors(self.value)
            except RuntimeError as error:
                unsupported(
                    "attribute", f"{self.describe()}.{name}", f"eager reads it: {error}"
                )
            source = CallSource(self.source, _saved_tensors, "{base}.saved_tensors")
            items = tx.wrap(tensors, source).unpack(tx)
            self.saved = [item.realize() for item in items]
            self.versions = self._versions()
        if self.versions != self._versions():
            unsupported("attribute", f"{self.describe()}.{name}", "eager raises the error")
        return tx.wrap_items(tuple, self.saved)  # another tuple each time

    def _versions(self) -> list[int]:
        tensors = [item for item in self.saved or () if isinstance(item, TensorVariable)]
        return [item.fake._version for item in tensors if not item.fake.is_inference()]

    def generic_setattr(self, tx: Translator, name: str, value: VariableTracker) -> None:
        value = value.realize()
        is_flag = value.is_python_constant() and type(value.as_python_constant()) is bool
        if name in _KEPT or name == "materialize_grads" and is_flag:
            tx.output.side_effects.store_attr(self, name, value)
        else:
            super().generic_setattr(tx, name, value)


@wraps_instances(BackwardCFunction)
def wrap_backward_context(tx: Translator, value: Any, source: Source) -> VariableTracker:
    """Its class is that of the function; the node is another in each backward pass."""
    tx.guard(source, "TYPE_IS", type(value))
    return BackwardContextVariable(type(value), value, source=source)
