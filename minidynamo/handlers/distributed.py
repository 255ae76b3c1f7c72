"""Who this process is: its rank, how many there are, its place in a group or a device mesh.

What these functions give is guarded by asking again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ..guards import Predicate
from ..source import AttrSource, ConstSource, Source
from ..variables.base import VariableTracker
from ..variables.constant import ConstantVariable
from ..variables.registry import handles
from ..variables.user_defined import OpaqueVariable, UserDefinedObjectVariable

if TYPE_CHECKING:
    from ..symbolic_convert import Translator

Args = list[VariableTracker]
Kwargs = dict[str, VariableTracker]


def _asked(function: Callable[..., Any]) -> None:
    """`function(of, *constants)`: `of` is an object from outside, or None, or not given."""

    def handler(tx: Translator, args: Args, kwargs: Kwargs) -> Any:
        named = dict(kwargs)
        of = args[0] if args else named.pop("group", ConstantVariable(None))
        rest = [*args[1:], *named.values()]
        if not all(value.is_python_constant() for value in rest):
            return NotImplemented
        given = [value.as_python_constant() for value in args[1:]]
        options = {name: value.as_python_constant() for name, value in named.items()}
        found = _real(tx, of.realize(), function.__name__)
        if found is None:
            return NotImplemented
        real, source = found

        def ask(of: Any) -> Any:
            return function(of, *given, **options)

        text = ", ".join(map(repr, (*given, *options.items())))
        return _answer(tx, ask, real, source, f"{function.__qualname__}({text})")

    handles(function)(handler)


def _answer(
    tx: Translator, ask: Callable[[Any], Any], real: Any, source: Source, call: str
) -> Any:
    if not dist.is_initialized():
        return NotImplemented  # most raise
    try:
        answer = ask(real)
    except (ValueError, RuntimeError):
        return NotImplemented  # eager raises it
    if type(answer) not in (int, str):
        return NotImplemented

    def is_unchanged(now: Any) -> bool:
        return dist.is_initialized() and bool(ask(now) == answer)

    tx.guard(
        source, "PREDICATE", Predicate(is_unchanged, f"{call} is {answer} of {source.name}")
    )
    return ConstantVariable(answer)


def _real(tx: Translator, of: VariableTracker, name: str) -> tuple[Any, Source] | None:
    """The object that is asked about, and its source; None where it is not known."""
    if of.is_python_constant() and of.as_python_constant() is None:
        return None, ConstSource(None, f"torch.distributed: {name}")
    if not isinstance(of, (OpaqueVariable, UserDefinedObjectVariable)) or of.source is None:
        return None
    if of.value is None or tx.output.side_effects.stored_attrs(of):
        return None
    return of.value, of.source


def _world(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
    """`torch.distributed.group.WORLD`, the group of all processes."""
    source = AttrSource(ConstSource(dist.group, "torch.distributed.group"), "WORLD")
    return tx.wrap(dist.group.WORLD, source)


if dist.is_available():
    _Mesh = torch.distributed.device_mesh.DeviceMesh
    for _function in (
        dist.get_rank,
        dist.get_world_size,
        dist.get_backend,
        _Mesh.size,
        _Mesh.get_rank,
        _Mesh.get_local_rank,
        vars(_Mesh)["ndim"].fget,
        vars(_Mesh)["device_type"].fget,
    ):
        _asked(_function)
    handles(vars(type(dist.group))["WORLD"].fget)(_world)
