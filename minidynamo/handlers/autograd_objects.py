"""Instances of `torch.autograd.Function`, which programs make to call `apply` on: `F().apply(x)`.

Torch warns of each of them; so does the generated code, behind the graph.
"""

from __future__ import annotations

import functools
import types
import warnings
from typing import TYPE_CHECKING, Any

import torch

from ..variables.base import VariableTracker
from ..variables.constant import ConstantVariable
from ..variables.postponed import PostponedCall
from ..variables.registry import handles
from ..variables.user_defined import UserDefinedObjectVariable

if TYPE_CHECKING:
    from ..codegen import PyCodegen
    from ..symbolic_convert import Translator

Args = list[VariableTracker]
Kwargs = dict[str, VariableTracker]

_NEW = torch.autograd.Function.__new__
_INIT = torch.autograd.Function.__init__


class FunctionObject(UserDefinedObjectVariable):
    """A new instance of a subclass of `torch.autograd.Function`."""

    def push_blank(self, codegen: PyCodegen) -> None:
        codegen.begin_call(_NEW)
        codegen.load_const(self.cls)
        codegen.end_call(1)


@handles(_NEW)
def new_function(tx: Translator, args: Args, kwargs: Kwargs) -> Any:
    """`_FunctionBase.__new__`, which looks at the class only."""
    cls = args[0].as_python_constant() if args and args[0].is_python_constant() else None
    if not isinstance(cls, type) or any("__del__" in vars(base) for base in cls.__mro__):
        return NotImplemented
    return FunctionObject(cls)


@handles(_INIT)
def init_function(tx: Translator, args: Args, kwargs: Kwargs) -> Any:
    """It only warns, at the line that makes the object."""
    instance = args[0].realize()
    if not isinstance(instance, FunctionObject):
        return NotImplemented
    text, category = _warning_of(instance.cls)
    place, module = tx.user_stack()[-1], tx.globals.get("__name__", "<unknown>")
    registry = tx.globals.setdefault("__warningregistry__", {})
    where = place.filename, place.lineno, module, registry
    warn = functools.partial(warnings.warn_explicit, text, category, *where)
    tx.output.side_effects.mutate(PostponedCall(warn, [], {}))
    return ConstantVariable(None)


def _warning_of(cls: type) -> tuple[str, type[Warning]]:
    """What torch's `__init__` warns of, without warning."""
    said: list[tuple[Any, ...]] = []
    quiet = types.SimpleNamespace(warn=lambda *args, **_options: said.append(args))
    init = types.FunctionType(_INIT.__code__, {**_INIT.__globals__, "warnings": quiet})
    init(_NEW(cls))
    ((text, category),) = said
    return text, category
