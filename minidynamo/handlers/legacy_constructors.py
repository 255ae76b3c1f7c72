"""The legacy constructors of tensors: `torch.FloatTensor([1, 2])`, `torch.Tensor(2, 3)`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..variables.base import VariableTracker, unsupported
from ..variables.registry import handles
from ..variables.tensor import TensorVariable

if TYPE_CHECKING:
    from ..symbolic_convert import Translator

Args = list[VariableTracker]
Kwargs = dict[str, VariableTracker]


def _legacy(kind: Any, dtype: torch.dtype | None) -> None:
    def handler(
        tx: Translator,
        args: Args,
        kwargs: Kwargs,
    ) -> VariableTracker:
        wanted = {"dtype": dtype or torch.get_default_dtype(), "device": "cpu"}
        data = args[0] if len(args) == 1 and not kwargs else None
        if data is not None and data.python_type() in (list, tuple):
            return tx.call_function(
                tx.wrap_constant(torch.tensor),
                [data],
                {name: tx.wrap_constant(value) for name, value in wanted.items()},
            )
        if isinstance(data, TensorVariable) and _is_of(data, dtype):
            return tx.add_node("call_function", torch.ops.aten.alias.default, (data.node,), {})
        sizes = [arg.as_python_constant() for arg in args if arg.python_type() is int]
        if kwargs or len(sizes) < len(args):
            unsupported("legacy constructor", repr(kind), "its arguments are no sizes")
        return tx.add_node("call_function", torch.empty, (tuple(sizes) or (0,),), wanted)

    handles(kind)(handler)


def _is_of(data: TensorVariable, dtype: torch.dtype | None) -> bool:
    """Whether a legacy constructor takes the tensor: it gives another of the same memory."""
    fake = data.fake
    is_kind = dtype is None or (fake.dtype, fake.device.type) == (dtype, "cpu")
    return is_kind and fake.layout is torch.strided and data.python_type() is torch.Tensor


_LEGACY = {
    "Float": torch.float32,
    "Double": torch.float64,
    "Half": torch.float16,
    "BFloat16": torch.bfloat16,
    "Long": torch.int64,
    "Int": torch.int32,
    "Short": torch.int16,
    "Char": torch.int8,
    "Byte": torch.uint8,
    "Bool": torch.bool,
}
_legacy(torch.Tensor, None)
for _name, _dtype in _LEGACY.items():
    _legacy(getattr(torch, f"{_name}Tensor"), _dtype)
