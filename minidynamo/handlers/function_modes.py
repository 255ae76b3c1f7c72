"""Torch function modes: their stack, default devices, and switching `__torch_function__` off."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ..variables.base import VariableTracker, unsupported
from ..variables.constant import CONSTANT_METHODS, ConstantVariable
from ..variables.contexts import (
    DEFAULT_DEVICE,
    DEFAULT_DEVICES,
    DisableTorchFunctionVariable,
    GlobalStateVariable,
)
from ..variables.function_modes import FunctionModesVariable
from ..variables.registry import handles

if TYPE_CHECKING:
    from ..symbolic_convert import Translator

Args = list[VariableTracker]
Kwargs = dict[str, VariableTracker]
NONE = ConstantVariable(None)


@handles(torch._C._push_on_torch_function_stack)
def push_mode(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> VariableTracker:
    if not issubclass(args[0].python_type(), torch.overrides.TorchFunctionMode):
        unsupported("function mode", repr(args[0]), "it is no TorchFunctionMode")
    FunctionModesVariable.of(tx).push(tx, args[0])
    return NONE


@handles(torch._C._pop_torch_function_stack)
def pop_mode(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> VariableTracker:
    return FunctionModesVariable.of(tx).pop(tx)


def _devices() -> int:
    return len(DEFAULT_DEVICES.get())


@handles(torch._C._len_torch_function_stack)
def stack_length(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> VariableTracker:
    return ConstantVariable(_devices() + len(tx.output.overrides.modes))


@handles(torch._C._get_function_stack_at)
def mode_at(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> VariableTracker:
    index = args[0].as_python_constant() - _devices()
    if not 0 <= index < len(tx.output.overrides.modes):
        unsupported("function mode", f"number {index}", "it is a default device, or not there")
    return tx.output.overrides.modes[index]


def _answers(function: Callable[..., Any], answer: Callable[[Any], Any]) -> None:
    handles(function)(lambda tx, args, kwargs: ConstantVariable(answer(tx.output)))


_answers(
    torch._C._is_torch_function_mode_enabled,
    lambda output: (
        not output.overrides.are_modes_disabled and _devices() + len(output.overrides.modes) > 0
    ),
)
_answers(
    torch._C._is_torch_function_enabled,
    lambda output: not output.overrides.are_subclasses_disabled,
)
_answers(
    torch._C._is_torch_function_all_disabled, lambda output: output.overrides.are_modes_disabled
)


def _disables(kind: type) -> None:
    handles(kind)(lambda tx, args, kwargs: DisableTorchFunctionVariable(kind))


_disables(torch._C.DisableTorchFunctionSubclass)
_disables(torch._C.DisableTorchFunction)

# -- default devices -------------------------------------------------------------------------------


def _refuse_above_modes(tx: Translator) -> None:
    if tx.output.overrides.modes:
        unsupported("function mode", "torch.device", "a device inside of a torch function mode")


def _enter_device(tx: Translator, device: ConstantVariable, args: Args) -> VariableTracker:
    _refuse_above_modes(tx)
    state = GlobalStateVariable.of(tx)
    state.set(tx, DEFAULT_DEVICES, (*DEFAULT_DEVICES.get(), device.value))
    return device


def _leave_device(tx: Translator, device: ConstantVariable, args: Args) -> VariableTracker:
    _refuse_above_modes(tx)
    state = GlobalStateVariable.of(tx)
    state.set(tx, DEFAULT_DEVICES, DEFAULT_DEVICES.get()[:-1])
    return NONE


CONSTANT_METHODS[torch.device, "__enter__"] = _enter_device
CONSTANT_METHODS[torch.device, "__exit__"] = _leave_device


@handles(torch.set_default_device)
def set_default_device(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> VariableTracker:
    """The default is the outermost of the devices in force."""
    _refuse_above_modes(tx)
    if len(DEFAULT_DEVICES.get()) > (DEFAULT_DEVICE.get() is not None):
        what = "torch.set_default_device"
        unsupported("function mode", what, "it is called below a torch.device block")
    value = args[0] if args else kwargs["device"]
    GlobalStateVariable.of(tx).set(tx, DEFAULT_DEVICE, value.as_python_constant())
    return NONE
