"""The current CUDA device: `with torch.cuda.device(index)` is a setting like grad mode.

The classes are traced; here is what their functions do. Where the device that is asked for is the
current one, which is guarded, the graph does nothing.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import torch
from torch.cuda import _utils as cuda_utils

from .. import markers
from ..guards import Predicate
from ..source import ConstSource
from ..variables.base import VariableTracker
from ..variables.constant import ConstantVariable
from ..variables.contexts import GlobalStateVariable, Setting
from ..variables.registry import handles

if TYPE_CHECKING:
    from ..symbolic_convert import Translator

Args = list[VariableTracker]
Kwargs = dict[str, VariableTracker]

_DEVICE = Setting(
    "current CUDA device", torch.cuda.current_device, torch.cuda._maybe_exchange_device
)

for _class in (torch.cuda.device, torch.cuda.device_of):
    for _method in vars(_class).values():
        if isinstance(_method, types.FunctionType):
            markers.set_decision(_method, markers.Decision.INLINE)


def _current(tx: Translator) -> int:
    """The index of the device that is current in the program."""
    index: int = _DEVICE.get()
    if _DEVICE not in GlobalStateVariable.of(tx).changed:
        check = Predicate(lambda read: read() == index, f"{_DEVICE.name} is {index}")
        tx.guard(ConstSource(_DEVICE.read, _DEVICE.name), "PREDICATE", check)
    return index


@handles(*{id(f): f for f in (torch.cuda._exchange_device, _DEVICE.write)}.values())
def exchange_device(tx: Translator, args: Args, kwargs: Kwargs) -> Any:
    """Makes the device current and gives the index of the one before; negative ones are none."""
    index = args[0].as_python_constant()
    if index < 0:
        return ConstantVariable(-1)
    if not torch.cuda.is_available():
        return NotImplemented
    before = _current(tx)
    if index != before:
        GlobalStateVariable.of(tx).set(tx, _DEVICE, index)
    return ConstantVariable(before)


@handles(torch.cuda.current_device)
def current_device(tx: Translator, args: Args, kwargs: Kwargs) -> Any:
    return ConstantVariable(_current(tx)) if torch.cuda.is_available() else NotImplemented


@handles(torch.cuda.empty_cache)
def empty_cache(tx: Translator, args: Args, kwargs: Kwargs) -> Any:
    """Nothing where nothing has used CUDA yet; else a break: it happens between operators."""
    is_used = tx.call_function(tx.wrap_constant(torch.cuda.is_initialized), [], {})
    return NotImplemented if is_used.truth(tx) else ConstantVariable(None)


@handles(cuda_utils._get_device_index)
def device_index(tx: Translator, args: Args, kwargs: Kwargs) -> Any:
    """`(device, optional=False, allow_cpu=False)`."""
    values = [*args, *kwargs.values()]
    if not all(value.is_python_constant() for value in values):
        return NotImplemented
    device = args[0].as_python_constant() if args else None
    named = torch.device(device) if isinstance(device, str) else device
    if named is None or getattr(named, "index", 0) is None:  # that is the current one
        if not torch.cuda.is_available():
            return NotImplemented
        _current(tx)
    constants = {name: value.as_python_constant() for name, value in kwargs.items()}
    return tx.fold(
        cuda_utils._get_device_index, [a.as_python_constant() for a in args], constants
    )
