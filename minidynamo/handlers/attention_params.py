"""`torch.backends.cuda.SDPAParams`, and which attention kernels torch would take for them.

Attention biases ask (`torch.nn.attention.bias`). The answer follows from the dtypes, devices and
sizes of the tensors and from torch's settings of attention kernels, all of which are guarded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch._C import _SDPAParams as SDPAParams

from ..variables.base import VariableTracker, unsupported
from ..variables.classes import CONSTRUCTORS
from ..variables.constant import ConstantVariable
from ..variables.registry import handles
from ..variables.tensor import TensorVariable
from .torch_state import guard_attention_settings

if TYPE_CHECKING:
    from ..codegen import PyCodegen
    from ..symbolic_convert import Translator
    from ..variables.classes import ClassVariable

Args = list[VariableTracker]
Kwargs = dict[str, VariableTracker]
# In the order in which they are given.
FIELDS = ("query", "key", "value", "attn_mask", "dropout", "is_causal", "enable_gqa")


class AttentionParamsVariable(VariableTracker):
    """One that the traced code made; it never changes."""

    def __init__(self, fields: dict[str, VariableTracker]) -> None:
        super().__init__()
        self.fields = fields

    def python_type(self) -> type:
        return SDPAParams

    def truth(self, tx: Translator) -> bool:
        return True

    def getattr(self, tx: Translator, name: str) -> VariableTracker:
        return self.fields[name] if name in self.fields else super().getattr(tx, name)

    def fake(self) -> Any:
        """One of the fake tensors."""
        values = [self.fields[name].realize() for name in FIELDS]
        return SDPAParams(
            *(
                v.fake if isinstance(v, TensorVariable) else v.as_python_constant()
                for v in values
            )
        )

    def reconstruct(self, codegen: PyCodegen) -> None:
        codegen.begin_call(SDPAParams)
        for name in FIELDS:
            codegen(self.fields[name])
        codegen.end_call(len(FIELDS))


def _make(
    tx: Translator, cls: ClassVariable, args: Args, kwargs: Kwargs
) -> AttentionParamsVariable:
    values = [value.realize() for value in args]
    if kwargs or len(values) != len(FIELDS):
        unsupported("call does not fit", "SDPAParams", "eager will raise the TypeError")
    for value in values:
        if type(value) is not TensorVariable and not value.is_python_constant():
            unsupported("attention parameters", repr(value), "it is no tensor or constant")
    return AttentionParamsVariable(dict(zip(FIELDS, values, strict=True)))


def _answers(function: Callable[..., bool]) -> None:
    def answer(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
        """torch's answer for fake tensors."""
        params = args[0].realize()
        if not isinstance(params, AttentionParamsVariable):
            return NotImplemented  # type: ignore[return-value]
        guard_attention_settings(tx)
        flags = [flag.as_python_constant() for flag in (*args[1:], *kwargs.values())]
        return ConstantVariable(function(params.fake(), *flags))

    handles(function)(answer)


for _function in (
    torch._C._can_use_flash_attention,
    torch._C._can_use_mem_efficient_attention,
    torch._C._can_use_cudnn_attention,
    torch.backends.cuda.can_use_flash_attention,
    torch.backends.cuda.can_use_efficient_attention,
    torch.backends.cuda.can_use_cudnn_attention,
):
    _answers(_function)


CONSTRUCTORS.append((SDPAParams, _make))
