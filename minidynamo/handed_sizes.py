"""What a graph break hands over with symbolic sizes is symbolic in the continuation from the start.

    note_handed(code, {"x": value, "n": number})    # code: a continuation; its arguments

Without it a continuation that is first reached when the frame's sizes are symbolic (by another
branch, say) would take them for constants, and be compiled once more for the next size.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any

import torch

from .shape_env import constant_of
from .shape_history import History, history_of
from .source import ListItemSource, LocalSource, Source, TupleItemSource
from .variables.base import LazyVariable, VariableTracker
from .variables.lists import ListVariable, SequenceVariable, TupleVariable
from .variables.symint import SymVariable
from .variables.tensor import TensorVariable


def note_handed(code: types.CodeType, values: Mapping[str, VariableTracker]) -> None:
    """Record in the history of `code` which sizes and numbers of its arguments are symbolic."""
    history = history_of(code)
    for name, value in values.items():
        _note(history, LocalSource(name), value)


def _note(history: History, source: Source, value: VariableTracker) -> None:
    if isinstance(value, LazyVariable):
        if not value.is_realized:
            return
        value = value.realize()
    if isinstance(value, TensorVariable):
        if value.fake.layout is torch.strided and not value.fake.is_nested:
            history.expect_tensor(source.name, [_known(size) for size in value.fake.shape])
    elif isinstance(value, SymVariable):
        if _known(value.value) is None:
            history.expect_number(source.name)
    elif isinstance(value, SequenceVariable) and type(value) in (ListVariable, TupleVariable):
        item = ListItemSource if type(value) is ListVariable else TupleItemSource
        for index, part in enumerate(value.items):
            if not isinstance(part, SequenceVariable):
                _note(history, item(source, index), part)


def _known(number: Any) -> Any:
    """None if it is symbolic."""
    if isinstance(number, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return constant_of(number)
    return number
