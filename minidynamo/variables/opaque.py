"""Functions that are a node of the graph without being looked at: those of `allow_in_graph` and
`nonstrict_trace`, operators of `torch.library.custom_op`.

The node runs in the graph, and what the frame stored in objects is written behind it. So where such
a function may read what the frame has changed, the graph ends in front of its call. What it may
read is found by the names in its code, and in the code that it reaches by them.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch._library.custom_ops import OPDEFS, CustomOpDef

from .. import trace_rules
from .base import VariableTracker, unsupported
from .code_reach import CodeReach
from .device_meshes import is_place
from .functions import CellVariable
from .user_defined import UserDefinedObjectVariable

if TYPE_CHECKING:
    from ..side_effects import SideEffects
    from ..symbolic_convert import Translator


def check_reads(tx: Translator, target: Callable[..., Any]) -> None:
    """To be called before a call of `target` becomes a node. Raises Unsupported if it may read
    what the frame changed.
    """
    found = None if _is_of_torch(target) else first_read(tx, target, _implementations)
    if found is not None:
        _refuse(target, found)


def first_read(
    tx: Translator,
    target: Any,
    implementations: Callable[[Any], list[Any]],
) -> str | None:
    """What the frame changed that the code of `target` may read, or None."""
    effects = tx.output.side_effects
    stores = [pair for pair in effects.pending_attributes() if not _is_unread(effects, pair[0])]
    if not (stores or effects.contents):
        return None
    if id(target) not in effects.reaches:
        effects.reaches[id(target)] = target, CodeReach(implementations(target))
    found: CodeReach = effects.reaches[id(target)][1]
    return found.first_read(effects, stores)


def _is_unread(effects: SideEffects, variable: VariableTracker) -> bool:
    """Whether it is a cell that the frame made, to which only leads what else the frame made and
    stored, or what autocast notes in itself when it is entered, to be read when it is left.
    """
    if isinstance(variable, CellVariable):
        return variable.real is None
    return isinstance(effects.real_of(variable), torch.amp.autocast)


def _is_of_torch(target: Any) -> bool:
    """Whether `target` is surely no function of the program."""
    if isinstance(target, torch._ops.OpOverload):
        return target.namespace in ("aten", "prims")
    return isinstance(target, types.BuiltinFunctionType) or (
        trace_rules.is_operation(target) and not isinstance(target, torch._ops.OpOverloadPacket)
    )


def _refuse(target: Callable[..., Any], what: str) -> None:
    name = getattr(target, "__qualname__", None) or repr(target)
    unsupported(
        "changed state",
        f"{name}: {what}",
        "the function may read what the frame has changed, and stores behind the graph",
        ["give it what it needs as arguments, or accept the graph break"],
    )


def _implementations(target: Any) -> list[Any]:
    """What runs when `target` is called."""
    if isinstance(target, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        name = getattr(target, "_qualified_op_name", None) or target._schema.name
        definition = OPDEFS.get(name)
        return [] if definition is None else _implementations(definition)
    if isinstance(target, CustomOpDef):
        functions = (target._init_fn, target._backward_fn, target._setup_context_fn)
        return [*functions, *target._backend_fns.values()]
    return [target]


# -- objects as arguments -------------------------------------------------------------------------

Rebuild = Callable[[Any], Any]


def with_fields(
    tx: Translator,
    target: Callable[..., Any],
    args: list[VariableTracker],
    kwargs: dict[str, VariableTracker],
) -> tuple[Callable[..., Any], list[VariableTracker], dict[str, VariableTracker]]:
    """The call with frozen dataclasses among its arguments, and named tuples of more than plain
    values, given as tuples of their fields, from which the node makes them again: a graph holds
    tensors and plain values only, and its text shows what a named tuple holds by `repr`. Meshes of
    devices, and placements on them, are held by the node itself.
    """
    if not any(map(_is_made_again, (*args, *kwargs.values()))):
        return target, args, kwargs
    given = [_fields_of(tx, arg) for arg in args]
    named = {name: _fields_of(tx, arg) for name, arg in kwargs.items()}

    def call(*values: Any, **others: Any) -> Any:
        made = [rebuild(value) for (_, rebuild), value in zip(given, values, strict=True)]
        options = {}
        for name, value in others.items():
            _, rebuild = named[name]
            options[name] = rebuild(value)
        return target(*made, **options)

    call.__name__ = getattr(target, "__name__", "call")
    call.__qualname__ = call.__name__
    values = [value for value, _ in given]
    others = {name: value for name, (value, _) in named.items()}
    return call, values, others


def _is_made_again(value: Any) -> bool:
    value = value.realize()
    if _has_places(value):
        return True
    if not _is_named_tuple(value):
        return _is_frozen(value)
    return not all(_has_plain_text(item.realize()) for item in value.items)


def _has_places(value: VariableTracker) -> bool:
    """Whether it is a mesh or a placement, or a list of these."""
    if not value.is_python_constant():
        return False
    found = value.as_python_constant()
    items = found if isinstance(found, (list, tuple)) else (found,)
    return any(map(is_place, items))


def _is_frozen(value: VariableTracker) -> TypeGuard[UserDefinedObjectVariable]:
    if not isinstance(value, UserDefinedObjectVariable):
        return False
    params = getattr(value.cls, "__dataclass_params__", None)
    return params is not None and params.frozen


def _is_named_tuple(value: Any) -> bool:
    cls = value.python_type()
    return issubclass(cls, tuple) and hasattr(cls, "_fields")


def _has_plain_text(value: VariableTracker) -> bool:
    """Whether `repr` of what stands for it in a graph makes the same again."""
    plain = (types.NoneType, int, float, complex, bool, str, bytes, torch.Size)
    cls = value.python_type()
    return cls in plain or issubclass(cls, torch.Tensor)


def _fields_of(tx: Translator, value: Any) -> tuple[VariableTracker, Rebuild]:
    value = value.realize()
    if _has_places(value):
        place = value.as_python_constant()
        return tx.wrap_constant(None), lambda given: place
    if _is_named_tuple(value):
        items, rebuilds = _all_fields(tx, value.items)
        cls = value.cls
        return tx.wrap_items(tuple, items), lambda given: tuple.__new__(
            cls, [inner(item) for inner, item in zip(rebuilds, given, strict=True)]
        )
    if not _is_frozen(value):
        return value, lambda given: given
    cls = value.python_type()
    names = [field.name for field in dataclasses.fields(cls)]
    items, rebuilds = _all_fields(tx, [tx.getattr(value, name) for name in names])

    def rebuild(given: tuple[Any, ...]) -> Any:
        made: Any = object.__new__(cls)
        for name, inner, item in zip(names, rebuilds, given, strict=True):
            object.__setattr__(made, name, inner(item))
        return made

    return tx.wrap_items(tuple, items), rebuild


def _all_fields(
    tx: Translator, values: list[VariableTracker]
) -> tuple[list[VariableTracker], list[Rebuild]]:
    found = [_fields_of(tx, value) for value in values]
    return [value for value, _ in found], [rebuild for _, rebuild in found]
