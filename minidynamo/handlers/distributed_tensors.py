"""DTensors: tensors that lie on several processes, and the calls that make and move them.

What `DTensor.from_local`, `to_local`, `redistribute` and `full_tensor` do is one node each, which
holds the mesh and the placements: graphs hold tensors and numbers only. AOTAutograd takes the
DTensors of a graph apart: the backend sees local tensors, and torch's functional collectives.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ..utils import is_distributed
from ..variables.base import NotConstant, VariableTracker, unsupported
from ..variables.classes import CONSTRUCTORS, ClassVariable
from ..variables.constant import is_value
from ..variables.device_meshes import DeviceMeshVariable, holds_data, real_mesh
from ..variables.registry import handles_named
from ..variables.tensor import TensorVariable
from ..variables.wrapper_tensors import WrapperTensorVariable

if TYPE_CHECKING:
    from ..symbolic_convert import Translator

Args = list[VariableTracker]
Kwargs = dict[str, VariableTracker]
_MODULE = "torch.distributed.tensor._api"


class PlacedCall:
    """A call of a function of DTensors whose meshes and placements are known. constants: these
    arguments by name; names: of the tensors and sizes that it is given.
    """

    def __init__(
        self, function: Callable[..., Any], constants: dict[str, Any], names: tuple[str, ...]
    ) -> None:
        self._function = function
        self._constants = constants
        self._names = names
        self.__name__ = self.__qualname__ = function.__name__
        self.__module__ = __name__

    def __call__(self, tensor: torch.Tensor, *values: Any) -> Any:
        given = dict(zip(self._names, values, strict=True))
        return self._function(tensor, **self._constants, **given)


def _constant(value: VariableTracker) -> Any:
    """What is known of an argument. Raises NotConstant."""
    found = value.as_python_constant()
    items = found if isinstance(found, (list, tuple)) else (found,)
    if any(map(holds_data, items)):
        unsupported("distributed tensor", repr(value), "a placement holds tensors")
    if isinstance(value, DeviceMeshVariable) or all(map(is_value, items)):
        return found
    raise NotConstant


def _place(
    tx: Translator, function: Callable[..., Any], args: Args, kwargs: Kwargs
) -> VariableTracker:
    """One node for a call whose first argument is a tensor."""
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        return NotImplemented  # eager raises it
    tensor, *rest = bound.arguments.items()
    given = tensor[1].realize()
    if not isinstance(given, TensorVariable):
        return NotImplemented
    constants, others = {}, {}
    for name, value in rest:
        try:
            constants[name] = _constant(value.realize())
        except NotConstant:
            others[name] = value
    call = PlacedCall(function, constants, tuple(others))
    return tx.call_operation(call, [given, *others.values()], {})


def _is_dtensor(args: Args) -> bool:
    value = args[0].realize() if args else None
    return isinstance(value, WrapperTensorVariable) and is_distributed(value.python_type())


def _moves(*names: str) -> None:
    for name in names:

        def handler(tx: Translator, args: Args, kwargs: Kwargs, name: str = name) -> Any:
            if not _is_dtensor(args):
                return NotImplemented
            cls = args[0].realize().python_type()
            return _place(tx, getattr(cls, name), args, kwargs)

        handles_named(f"{_MODULE}.DTensor.{name}")(handler)


_moves("to_local", "redistribute", "full_tensor")


@handles_named(f"{_MODULE}.DTensor.from_local")
def _from_local(tx: Translator, args: Args, kwargs: Kwargs) -> Any:
    """A tensor of this process as part of a DTensor."""
    dtensor = torch.distributed.tensor.DTensor
    checks = kwargs.get("run_check")
    if checks is not None and checks.as_python_constant():
        unsupported(
            "distributed tensor", "DTensor.from_local(run_check=True)", "it communicates"
        )
    mesh = args[1] if len(args) > 1 else kwargs.get("device_mesh")
    if mesh is None or not isinstance(mesh.realize(), DeviceMeshVariable):
        unsupported("distributed tensor", "DTensor.from_local(...)", "its mesh is not named")
    return _place(tx, dtensor.from_local, args, kwargs)


@handles_named(f"{_MODULE}.DTensor.device_mesh")
def _device_mesh(tx: Translator, args: Args, kwargs: Kwargs) -> Any:
    if not _is_dtensor(args):
        return NotImplemented
    mesh = real_mesh(args[0].realize().fake._spec.mesh)  # type: ignore[attr-defined]
    return tx.wrap_held(mesh, "a mesh of devices")


@handles_named(f"{_MODULE}.DTensor.placements")
def _placements(tx: Translator, args: Args, kwargs: Kwargs) -> Any:
    if not _is_dtensor(args):
        return NotImplemented
    return tx.wrap_constant(args[0].realize().fake._spec.placements)  # type: ignore[attr-defined]


def _make_placement(
    tx: Translator, cls: ClassVariable, args: Args, kwargs: Kwargs
) -> VariableTracker:
    """`Shard(0)`, a constant."""
    known = tx.constants_of(args, kwargs)
    if known is None:
        unsupported("distributed tensor", cls.value.__name__, "an argument is not known")
    made = tx.fold(cls.value, *known)
    if not is_value(made.as_python_constant()):
        unsupported("distributed tensor", cls.value.__name__, "this placement is not traced")
    return made


if torch.distributed.is_available():
    CONSTRUCTORS.append((torch._C._distributed.Placement, _make_placement))
