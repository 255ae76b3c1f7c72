"""Numbers that the program reads out of tensors that it is given (`n.item()`), with fullgraph.

They are results of the graph of which nothing is known, which serves all values. Where tracing
fails for that (a branch on one, a list that is indexed by it) the attempt starts over, and they are
symbols whose place is the input's one item: what is asked about these becomes guards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._C import _functorch
from torch.fx.node import Node

from ..exc import DataDependentError, Unsupported
from ..output_graph import example_value
from ..source import CallSource, Source
from .base import VariableTracker
from .constant import ConstantVariable

if TYPE_CHECKING:
    from ..output_graph import GraphInput
    from ..symbolic_convert import Translator

_DTYPES = (torch.int64, torch.float64)  # those that torch.compile reads
_KINDS = ("data-dependent branch", "data-dependent value")


class Learnt(dict[int, Unsupported]):
    """What attempts at a frame learnt: before which steps the graph has to break, and why.

    asked: places of inputs whose number was read; read: those that are symbols now.
    """

    def __init__(self) -> None:
        super().__init__()
        self.asked: set[Source] = set()
        self.read: set[Source] = set()

    def solve(
        self,
        error: Unsupported,
    ) -> None:
        """Have another attempt read numbers of inputs; raises an error that this does not help."""
        is_about_data = isinstance(error, DataDependentError) or error.kind in _KINDS
        if not is_about_data or self.asked <= self.read:
            raise error
        self.read |= self.asked
        self.clear()


def number_of_input(
    tx: Translator,
    node: Node,
) -> VariableTracker | None:
    """The symbol for the number in an input of the graph; None where it is not to be read."""
    if not tx.output.options.fullgraph:
        return None
    given = next((i for i in tx.output.inputs if i.node is node), None)
    if given is None or not _may_be_read(tx, given):
        return None
    learnt: Any = tx.root.breaks
    learnt.asked.add(given.source)
    if given.source not in learnt.read:
        return None
    place = CallSource(given.source, _item, "{base}.item()")
    value = given.value.item()
    number = tx.output.shapes.computed_number(value, place, tx.user_stack())
    if number is None:
        tx.guard(place, "CONST_EQ", value)  # tells 0.0 from -0.0
        return ConstantVariable(value)
    return tx.wrap_number(number)


def _item(tensor: Any) -> Any:
    """None for what the tensor's own guard refuses."""
    is_number = isinstance(tensor, torch.Tensor) and not tensor.dim()
    return tensor.item() if is_number and tensor.device.type == "cpu" else None


def _may_be_read(
    tx: Translator,
    given: GraphInput,
) -> bool:
    """Whether it is what it was at entry: the graph has not written to its memory."""
    value, fake = given.value, example_value(given.node)
    if type(value) is not torch.Tensor or fake.dim() or fake.dtype not in _DTYPES:
        return False
    if value.device.type != "cpu" or value.layout is not torch.strided:
        return False
    if _functorch.is_functorch_wrapped_tensor(value):
        return False
    memory = value.untyped_storage().data_ptr()
    return not any(
        other.is_mutated and memory == other.value.untyped_storage().data_ptr()
        for other in tx.output.inputs
        if isinstance(other.value, torch.Tensor) and other.value.layout is torch.strided
    )
