"""`tensor.untyped_storage()`: how large the memory of a tensor is. Other uses break the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from ..guards import Predicate
from ..output_graph import example_value
from ..variables.base import VariableTracker, unsupported
from ..variables.functions import MethodOfVariable
from ..variables.tensor import TensorVariable, tensor_method

if TYPE_CHECKING:
    from ..codegen import PyCodegen
    from ..output_graph import GraphInput
    from ..symbolic_convert import Translator

Args = list[VariableTracker]
Kwargs = dict[str, VariableTracker]


def _refuse(tensor: TensorVariable, name: str, why: str) -> Any:
    unsupported("tensor storage", f"{tensor.describe()}.untyped_storage().{name}", why)


def _n_bytes(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().nbytes()


def _is_whole(tensor: torch.Tensor) -> bool:
    return _n_bytes(tensor) == tensor.numel() * tensor.element_size()


class StorageVariable(VariableTracker):
    """The memory of a tensor, which is made out of the tensor wherever it leaves the graph."""

    def __init__(self, tensor: TensorVariable) -> None:
        super().__init__()
        self.tensor = tensor
        self.fake = tensor.fake.untyped_storage()

    def python_type(self) -> type:
        return torch.UntypedStorage

    def shares(self, tx: Translator, other: VariableTracker) -> bool | None:
        if not isinstance(other, StorageVariable):
            # A storage from outside may be this very one: torch keeps one object for each memory.
            is_storage = issubclass(other.python_type(), torch.UntypedStorage)
            return _refuse(self.tensor, "", "it may be another storage") if is_storage else None
        if self.fake is other.fake and len(self._inputs(tx)) < 2:
            return True
        return _refuse(self.tensor, "", "which tensors are on one storage is not known")

    def getattr(self, tx: Translator, name: str) -> VariableTracker:
        if name == "device":
            return self.tensor.getattr(tx, name)
        if callable(getattr(torch.UntypedStorage, name, None)):
            return MethodOfVariable(self, name)
        return _refuse(self.tensor, name, "it works on the tensor's memory itself")

    def call_method(
        self,
        tx: Translator,
        name: str,
        args: Args,
        kwargs: Kwargs,
    ) -> VariableTracker:
        if name in ("size", "nbytes", "__len__") and not args and not kwargs:
            return tx.wrap_constant(self._size(tx))
        return _refuse(self.tensor, f"{name}()", "it works on the tensor's memory itself")

    def _size(self, tx: Translator) -> Any:
        """In bytes. That of a tensor from outside may be anything: it is guarded."""
        size = self.fake.nbytes()
        item = self._input(tx)
        if item is None:
            return size
        real = _n_bytes(item.value)
        if isinstance(size, int):
            tx.guard(
                item.source,
                "PREDICATE",
                Predicate(lambda x: _n_bytes(x) == real, f"it is on {real} bytes"),
            )
            return real
        if not _is_whole(item.value):
            _refuse(self.tensor, "size()", "it is a part of memory of a symbolic size")
        tx.guard(item.source, "PREDICATE", Predicate(_is_whole, "it is all of its memory"))
        value = example_value(item.node)
        return value.numel() * value.element_size()

    def _input(self, tx: Translator) -> GraphInput | None:
        """The input of the graph whose memory it is."""
        items = self._inputs(tx)
        own = [item for item in items if item.node is self.tensor.node]
        if not own and len(items) > 1:
            _refuse(self.tensor, "size()", "which tensors are on one storage is not known")
        return next(iter(own or items), None)

    def _inputs(self, tx: Translator) -> list[GraphInput]:
        """Those that are on this storage in this call."""
        values = ((item, example_value(item.node)) for item in tx.output.inputs)
        return [
            item
            for item, value in values
            if isinstance(value, torch.Tensor)
            and value.layout is torch.strided
            and value.untyped_storage() is self.fake
        ]

    def reconstruct(self, codegen: PyCodegen) -> None:
        codegen.begin_call(torch.Tensor.untyped_storage)
        codegen(self.tensor)
        codegen.end_call(1)


@tensor_method("untyped_storage")
def untyped_storage(
    tx: Translator,
    self: TensorVariable,
    args: Args,
    kwargs: Kwargs,
) -> VariableTracker:
    output = tx.output
    is_plain = type(self) is TensorVariable and type(self.fake) in (
        FakeTensor,
        torch.nn.Parameter,
    )
    is_plain = is_plain and self.fake.layout is torch.strided and self.choice is None
    if not is_plain or output.transform_levels or output.body is not None or args or kwargs:
        _refuse(self, "", "it works on the tensor's memory itself")
    return StorageVariable(self)
