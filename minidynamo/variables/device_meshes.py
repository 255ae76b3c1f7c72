"""Where the parts of a DTensor lie: meshes of processes, and how a tensor is placed on one.

A mesh is known by what it is equal by, and by the names of its groups, which collectives in graphs
hold. Placements (`Shard(0)`) are constants.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ..guards import Predicate
from .base import ObservedException, VariableTracker, unsupported
from .constant import ConstantVariable
from .functions import MethodOfVariable
from .registry import wraps

if TYPE_CHECKING:
    from ..source import Source
    from ..symbolic_convert import Translator

_KINDS: tuple[type, ...] = ()
if torch.distributed.is_available():
    _KINDS = (torch.distributed.device_mesh.DeviceMesh, torch._C._distributed.Placement)
_ATTRIBUTES = frozenset(("ndim", "shape", "device_type", "mesh_dim_names"))
# What they give follows from the mesh and this process.
_METHODS = frozenset(
    "size get_coordinate get_rank get_local_rank get_group __getitem__ __eq__ __ne__ __hash__"
    " _get_root_mesh _is_current_rank_part_of_mesh".split()
)


def real_mesh(mesh: Any) -> Any:
    """The mesh, of which fake tensors may hold a stand-in."""
    return getattr(mesh, "real_obj", mesh)


def is_place(value: Any) -> bool:
    """Whether it is a mesh, or a placement on one."""
    return _KINDS != () and isinstance(value, _KINDS)


def _same_mesh(mesh: Any) -> Callable[[Any], bool]:
    """A function that says whether another mesh is as this one is now."""
    mesh = real_mesh(mesh)
    groups = list(getattr(mesh, "_dim_group_names", ()))
    coordinate = mesh.get_coordinate()

    def is_same(now: Any) -> bool:
        return now is mesh or bool(
            now == mesh
            and list(getattr(now, "_dim_group_names", ())) == groups
            and now.get_coordinate() == coordinate
        )

    return is_same


def holds_data(placement: Any) -> bool:
    """Whether it is one of an embedding whose rows are distributed, with the mask of this call."""
    return type(placement).__name__ == "_MaskPartial"


def placement_guard(value: Any, source: Source) -> Predicate:
    """That a DTensor lies on the processes as it does now."""
    spec = value._spec
    if any(map(holds_data, spec.placements)):
        unsupported("distributed tensor", source.name, "its placement holds tensors")
    is_same_mesh = _same_mesh(spec.mesh)
    placements, order = spec.placements, getattr(spec, "shard_order", None)

    def check(now: Any) -> bool:
        found = now._spec
        return (
            found.placements == placements
            and getattr(found, "shard_order", None) == order
            and is_same_mesh(found.mesh)
        )

    return Predicate(check, f"{source.name} is placed as before")


class DeviceMeshVariable(ConstantVariable):
    """A mesh of processes."""

    def describe(self) -> str:
        return "a DeviceMesh"

    def truth(self, tx: Translator) -> bool:
        return True

    def getattr(self, tx: Translator, name: str) -> VariableTracker:
        if name in _ATTRIBUTES:
            return tx.fold(getattr, (self.value, name), {})
        if name in _METHODS:
            return MethodOfVariable(self, name)
        unsupported("device mesh", f"DeviceMesh.{name}", "this attribute is not traced")

    def call_method(
        self,
        tx: Translator,
        name: str,
        args: list[VariableTracker],
        kwargs: dict[str, VariableTracker],
    ) -> VariableTracker:
        if name not in _METHODS:
            unsupported("device mesh", f"DeviceMesh.{name}", "this method is not traced")
        known = tx.constants_of(args, kwargs)
        if known is None:
            unsupported("device mesh", f"DeviceMesh.{name}", "an argument is not known")
        values, named = known
        try:
            result = getattr(self.value, name)(*values, **named)
        except Exception as error:
            raise ObservedException(tx.wrap_exception(error)) from error
        if isinstance(result, list):
            return tx.wrap_items(list, [tx.wrap_constant(item) for item in result])
        return tx.wrap_held(result, f"{self.describe()}.{name}(...)")

    def getitem(self, tx: Translator, key: VariableTracker) -> VariableTracker:
        return self.call_method(tx, "__getitem__", [key], {})


if torch.distributed.is_available():

    @wraps(torch.distributed.device_mesh.DeviceMesh)
    def wrap_mesh(tx: Translator, value: Any, source: Source) -> VariableTracker:
        """A mesh of the frame; others that are equal are taken for it."""
        if not hasattr(value, "_layout"):
            unsupported("device mesh", source.name, "its `__init__` is not done")
        tx.guard(source, "TYPE_IS", type(value))
        check = Predicate(_same_mesh(value), f"{source.name} is the same mesh of devices")
        tx.guard(source, "PREDICATE", check)
        return DeviceMeshVariable(value, source=source)
