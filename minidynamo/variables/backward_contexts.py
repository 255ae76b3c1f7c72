"""The `ctx` of a forward or backward function that is compiled itself, or called by a frame that
is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.autograd.function import BackwardCFunction

from ..source import AttrSource, Source
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
                tensors = self.value.saved_tensors
            except RuntimeError:
                unsupported("attribute", f"{self.describe()}.{name}", "eager raises the error")
            items = tx.wrap(tensors, AttrSource(self.source, name)).unpack(tx)
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
