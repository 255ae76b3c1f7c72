"""Methods of nn.Module that mostly do nothing: casts of what has the wanted dtype already; and the
first call of lazy modules.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from ..exc import RunInEager
from ..source import ModuleItemSource
from ..variables.base import VariableTracker, unsupported
from ..variables.nn_module import NNModuleVariable
from ..variables.registry import handles
from ..variables.tensor import TensorVariable

if TYPE_CHECKING:
    from ..symbolic_convert import Translator


def _tensors(tx: Translator, module: NNModuleVariable) -> Iterator[VariableTracker | None]:
    """Parameters and buffers of the module and those below; None where the tables are not known."""
    tables = module.tables(tx)
    children = module.children(tx)
    if tables is None or children is None:
        yield None
        return
    assert module.source is not None
    for kind, table in zip(("_parameters", "_buffers"), tables, strict=False):
        tx.guard(module.table_source(kind), "DICT_KEYS", tuple(table))
        for name, value in table.items():
            if value is not None:
                yield tx.wrap(value, ModuleItemSource(module.source, kind, name))
    for child in children:
        inner = child.realize()
        if isinstance(inner, NNModuleVariable):
            yield from _tensors(tx, inner)
        elif not inner.is_python_constant():
            yield None


def _refuse_others(made: torch.Tensor, tensor: torch.Tensor) -> None:
    """One break where eager makes other tensors of all parameters."""
    if (made.dtype, made.device, made.layout) != (tensor.dtype, tensor.device, tensor.layout):
        what = f"{tensor.dtype} on {tensor.device} to {made.dtype} on {made.device}"
        unsupported("module cast", what, "the module's tensors become others")


@handles(torch.nn.Module._apply)
def module_apply(tx: Translator, args: list[VariableTracker], kwargs: dict[str, Any]) -> Any:
    """`module.to(dtype)` and the like where each tensor stays the object that it is."""
    module = args[0]
    if len(args) != 2 or kwargs or not isinstance(module, NNModuleVariable):
        return NotImplemented
    function = args[1]
    checkpoint = tx.output.checkpoint()
    for tensor in _tensors(tx, module):
        made = None if tensor is None else tx.call_function(function, [tensor], {}).realize()
        if isinstance(made, TensorVariable) and isinstance(tensor, TensorVariable):
            _refuse_others(made.fake, tensor.fake)
        if tensor is None or made is not tensor or not tx.output.can_rollback(checkpoint):
            return NotImplemented
    tx.output.rollback(checkpoint)
    return module


@handles(torch.nn.modules.lazy.LazyModuleMixin._infer_parameters)
def infer_parameters(
    tx: Translator, args: list[VariableTracker], kwargs: dict[str, Any]
) -> Any:
    """The hook that makes a lazy module's parameters in its first call, and is gone afterwards."""
    raise RunInEager("a lazy module makes its parameters")
