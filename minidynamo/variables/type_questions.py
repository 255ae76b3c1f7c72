"""What is asked about the type alone of a number or text that nobody looked at: its value needs no
guard then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .base import LazyVariable, VariableTracker
from .classes import ClassVariable
from .constant import ConstantVariable
from .descriptors import class_variable
from .functions import CallableVariable

if TYPE_CHECKING:
    from ..symbolic_convert import Translator

_KINDS = (int, float, complex, bool, str, bytes)


def answer_by_type(
    tx: Translator,
    fn: VariableTracker,
    args: list[VariableTracker],
    kwargs: dict[str, VariableTracker],
) -> VariableTracker | None:
    """The result of isinstance, type or callable; None where more is to be looked at."""
    lazy = args[0] if args else None
    if kwargs or not isinstance(lazy, LazyVariable) or lazy.is_realized:
        return None
    if type(lazy.value) not in _KINDS or not isinstance(fn, (CallableVariable, ClassVariable)):
        return None
    result: VariableTracker
    match fn.value, args[1:]:
        case function, [] if function is type:
            result = class_variable(tx, type(lazy.value))
        case function, [] if function is callable:
            result = ConstantVariable(False)
        case function, [classes] if function is isinstance and _are_plain(classes.realize()):
            known = classes.realize().as_python_constant()
            result = ConstantVariable(isinstance(lazy.value, known))
        case _:
            return None
    assert lazy.source is not None
    tx.guard(lazy.source, "TYPE_IS", type(lazy.value))
    return result


def _are_plain(classes: VariableTracker) -> bool:
    """Whether they are classes that judge instances as `type` does."""
    if not classes.is_python_constant():
        return False
    known: Any = classes.as_python_constant()
    each = known if isinstance(known, tuple) else (known,)
    return all(type(item) is type or item is torch.Tensor for item in each)
