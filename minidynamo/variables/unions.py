"""Types that are no classes: `int | str`, `list[int]`."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

from .base import VariableTracker
from .builder import builds
from .functions import CallableVariable
from .registry import wraps

if TYPE_CHECKING:
    from ..source import Source
    from ..symbolic_convert import Translator


@wraps(types.UnionType, types.GenericAlias)
def _wrap_union(tx: Translator, value: Any, source: Source) -> VariableTracker:
    tx.guard(source, "ID_IS", value)
    return CallableVariable(value, source=source)


@builds(types.UnionType, types.GenericAlias)
def _build_union(tx: Translator, value: Any) -> VariableTracker:
    return CallableVariable(value)
