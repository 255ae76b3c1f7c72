"""Tensors that an attribute makes parameters or buffers, whatever their class."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .base import ObservedException, VariableTracker

if TYPE_CHECKING:
    from ..symbolic_convert import Translator

_MARKS = {torch.nn.Parameter: "_is_param", torch.nn.Buffer: "_is_buffer"}


def is_attribute_error(error: ObservedException) -> bool:
    """Whether the program's exception is one."""
    return issubclass(error.value.python_type(), AttributeError)


def is_marked(
    tx: Translator,
    value: VariableTracker,
    cls: type,
) -> bool:
    """Whether a tensor of another class has the attribute that makes it an instance of `cls`."""
    mark = _MARKS.get(cls)
    kind = value.python_type()
    if mark is None or kind is cls or not issubclass(kind, torch.Tensor):
        return False
    try:
        return tx.getattr(value, mark).realize().truth(tx)
    except ObservedException as error:
        if not is_attribute_error(error):
            raise
        return False
