"""`typing`: questions about type hints, which never change."""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..source import ConstSource
from ..variables.base import NotConstant, VariableTracker
from ..variables.registry import Handler, handles

if TYPE_CHECKING:
    from ..symbolic_convert import Translator


def _of_a_hint(function: Callable[[Any], Any]) -> Handler:
    def handler(tx: Translator, args: list[VariableTracker], kwargs: dict[str, Any]) -> Any:
        if len(args) != 1 or kwargs:
            return NotImplemented
        try:
            hint = args[0].as_python_constant()
        except NotConstant:
            return NotImplemented
        result = function(hint)
        return tx.wrap(result, ConstSource(result, f"{function.__name__}({hint!r})"))

    return handler


for _function in (typing.get_origin, typing.get_args):
    handles(_function)(_of_a_hint(_function))
