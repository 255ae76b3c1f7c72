"""Processes: who this one is, and what they exchange.

Ranks, how many processes there are, the place in a group or a device mesh: what is given is guarded
by asking again. Collectives that write into tensors become torch's functional ones, whose results
are copied there; those that return a handle, or that autograd would pass over, stay in eager.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ..guards import Predicate
from ..source import AttrSource, ConstSource, Source
from ..variables.base import VariableTracker
from ..variables.constant import ConstantVariable
from ..variables.functions import UserFunctionVariable
from ..variables.registry import handles
from ..variables.tensor import TensorVariable
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
    """The object that is asked about, and its source; None where it is not known. None and the
    names of groups stand for themselves.
    """
    if of.is_python_constant():
        value = of.as_python_constant()
        return value, ConstSource(value, f"torch.distributed: {name}")
    if not isinstance(of, (OpaqueVariable, UserDefinedObjectVariable)) or of.source is None:
        return None
    if of.value is None or tx.output.side_effects.stored_attrs(of):
        return None
    return of.value, of.source


def _world(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
    """`torch.distributed.group.WORLD`, the group of all processes."""
    source = AttrSource(ConstSource(dist.group, "torch.distributed.group"), "WORLD")
    return tx.wrap(dist.group.WORLD, source)


# A collective that writes -> the function of torch.distributed._functional_collectives that does
# the same with operators of a graph, from arguments of the same names.
_FUNCTIONAL = {
    "all_reduce": "all_reduce_inplace",
    "all_gather": "all_gather_inplace",
    "all_gather_into_tensor": "all_gather_tensor_inplace",
    "_all_gather_base": "all_gather_tensor_inplace",
    "reduce_scatter_tensor": "reduce_scatter_tensor_inplace",
    "_reduce_scatter_base": "reduce_scatter_tensor_inplace",
    "all_to_all_single": "all_to_all_inplace",
}


def _collective(name: str) -> None:
    legacy = getattr(dist, name)
    signature = inspect.signature(legacy)

    def handler(tx: Translator, args: Args, kwargs: Kwargs) -> Any:
        functional = importlib.import_module("torch.distributed._functional_collectives")
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError:
            return NotImplemented  # eager raises it
        is_async = given.pop("async_op", ConstantVariable(False))
        if not (is_async.is_python_constant() and is_async.as_python_constant() is False):
            return NotImplemented
        if not _is_member(tx, given) or not _are_plain(tx, given):
            return NotImplemented
        if "op" in given:
            op = given["op"].as_python_constant() if given["op"].is_python_constant() else None
            known = functional.REDUCE_OP_TO_STR
            # The number of an operation is equal to it, and eager does not take it.
            if isinstance(op, int) or op not in known:
                return NotImplemented
            given["op"] = ConstantVariable(known[op])
        function = UserFunctionVariable(getattr(functional, _FUNCTIONAL[name]))
        tx.inline(function, [], given)
        return ConstantVariable(None)

    handles(legacy)(handler)


def _is_member(tx: Translator, given: Kwargs) -> bool:
    """Whether this process takes part: others get a warning, and nothing happens."""
    group = given.get("group", ConstantVariable(None)).realize()
    found = _real(tx, group, "group")
    return found is not None and dist.is_initialized() and dist.get_rank(found[0]) >= 0


def _are_plain(tx: Translator, given: Kwargs) -> bool:
    """Whether the tensors are such as the functional form treats alike: of real numbers, dense, of
    one dtype, of one shape where there is a list of them, else alike behind the first dimension,
    and of no interest to autograd.
    """
    lists = [v.realize().unpack(tx) for name, v in given.items() if name == "tensor_list"]
    values = [
        value.realize() for value in (*given.values(), *(v for row in lists for v in row))
    ]
    tensors = [value for value in values if isinstance(value, TensorVariable)]
    behind = 0 if lists else 1
    shapes = {(t.fake.dtype, t.fake.dim(), t.fake.shape[behind:]) for t in tensors}
    return len(shapes) < 2 and all(
        tensor.fake.is_contiguous()
        and not tensor.fake.is_complex()
        and not (tensor.fake.requires_grad and torch.is_grad_enabled())
        for tensor in tensors
    )


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
        dist.ProcessGroup.rank,
        dist.ProcessGroup.size,
        dist.ProcessGroup.name,
        vars(dist.ProcessGroup)["group_name"].fget,
        dist.distributed_c10d._get_group_size_by_name,
    ):
        _asked(getattr(_function, "__func__", _function))  # pybind11's may come wrapped
    for _name in _FUNCTIONAL:
        _collective(_name)
    handles(vars(type(dist.group))["WORLD"].fget)(_world)
