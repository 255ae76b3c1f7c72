"""What would keep a guard on a size or a number from failing again.

    remedy(failure, dynamic, frame.f_locals)    # "" where nothing would, or nothing has to

The sentence stands behind the failed guard in the log of recompilations, in RecompileError and in
RecompileLimitExceeded.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import torch

from . import config, markers
from .guards import Check, Guard, GuardFailure
from .shape_history import may_be_counter
from .source import (
    ClosureSource,
    FuncDefaultsSource,
    FuncKwDefaultsSource,
    LocalSource,
    ModuleItemSource,
    Source,
    TensorPropertySource,
)
from .source_chains import chain, is_kept_by_class

_SIZE = re.compile(r" size mismatch at index (\d+)\. expected (\d+), actual (\d+)$")


def remedy(failure: GuardFailure, dynamic: bool | None, f_locals: Mapping[str, Any]) -> str:
    """One sentence, or "". dynamic: as in `compile`; f_locals: the arguments of the frame."""
    guard = failure.guard
    if guard.kind is Check.EXPR:
        return _of_condition(guard.expected)
    if guard.kind is Check.TENSOR_MATCH:
        match = _SIZE.search(failure.reason)
        return _of_size(failure, match, dynamic, f_locals) if match else ""
    if guard.kind is Check.CONST_EQ and type(guard.expected) in (int, float):
        is_number = type(failure.found) is type(guard.expected)
        return _of_number(failure, dynamic, f_locals) if is_number else ""
    return ""


def _of_condition(expression: Any) -> str:
    operator, *operands = expression
    is_bound = len(operands) == 2 and isinstance(operands[1], int)
    place = operands[0]
    if operator == "==" and is_bound and not isinstance(place, tuple):
        return "the program needs the value itself there"
    if operator != ">=" or not is_bound or operands[1] != 2:
        return ""
    is_size = isinstance(place, TensorPropertySource) and place.prop == "size"
    return _zero_or_one(place.base.name, place.dim) if is_size else ""


def _zero_or_one(name: str, dim: Any) -> str:
    return f"sizes of 0 and 1 are constants, unless mark_unbacked({name}, {dim})"


def _of_size(
    failure: GuardFailure,
    match: re.Match[str],
    dynamic: bool | None,
    f_locals: Mapping[str, Any],
) -> str:
    dim, *sizes = map(int, match.groups())
    name, tensor = failure.guard.name, failure.found
    if dim in markers.static_dims(tensor):
        return f"mark_static({name}, {dim}) keeps it constant"
    if _is_kept(tensor, failure.guard.source):
        kept = "sizes of parameters, buffers and torch's modules are constants"
        return f"{kept}, unless mark_dynamic({name}, {dim})"
    switched = _switched_off(dynamic)
    if switched:
        return f"{switched}; mark_dynamic({name}, {dim}) makes it symbolic"
    if not {0, 1}.isdisjoint(sizes):
        return _zero_or_one(name, dim)
    return (
        "it becomes symbolic now; "
        f"mark_dynamic({name}, {dim}) or dynamic=True would make it so at once"
    )


def _switched_off(dynamic: bool | None) -> str:
    if dynamic is False:
        return "dynamic=False keeps sizes and numbers constant"
    if not config.automatic_dynamic_shapes:
        return "config.automatic_dynamic_shapes is off"
    return ""


def _of_number(failure: GuardFailure, dynamic: bool | None, f_locals: Mapping[str, Any]) -> str:
    """The rules are those of `Shapes.number`."""
    guard, value = failure.guard, failure.found
    kind = type(value)
    if kind is int and config.specialize_int:
        return "config.specialize_int keeps ints constant"
    if kind is float and config.specialize_float:
        return "config.specialize_float keeps floats constant"
    if kind is float and (value == 0.0 or not math.isfinite(value)):
        return "0.0 and infinite floats are constants: pass it as a tensor"
    if kind is int and not _is_variable(guard.source):
        return "ints of globals and defaults are constants: pass it as an argument"
    is_counter = may_be_counter(guard.source, torch.nn.Module)
    keeps_ints = not config.allow_unspec_int_on_nn_module and not is_counter
    if kind is int and keeps_ints and _is_of_module(guard, f_locals):
        return "ints of nn.Modules are constants, unless config.allow_unspec_int_on_nn_module"
    switched = _switched_off(dynamic)
    if switched:
        return f"{switched}; pass it as a tensor"
    return "it becomes symbolic now; dynamic=True would make it so at once"


def _is_variable(source: Source | None) -> bool:
    links = list(chain(source))
    has_default = any(isinstance(x, (FuncDefaultsSource, FuncKwDefaultsSource)) for x in links)
    is_reached = isinstance(links[-1], (LocalSource, ClosureSource)) or is_kept_by_class(links)
    return not has_default and (is_reached or may_be_counter(source))


def _is_kept(tensor: torch.Tensor, source: Source | None) -> bool:
    tables = (x.table for x in chain(source) if isinstance(x, ModuleItemSource))
    is_held = isinstance(tensor, torch.nn.Parameter) or next(tables, "_modules") != "_modules"
    return is_held and config.force_parameter_static_shapes


def _is_of_module(guard: Guard, f_locals: Mapping[str, Any]) -> bool:
    root = list(chain(guard.source))[-1]
    held = f_locals.get(root.local) if isinstance(root, LocalSource) else None
    return isinstance(held, torch.nn.Module)
