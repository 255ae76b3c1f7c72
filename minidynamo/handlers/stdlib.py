"""Functions of the standard library that have no effect while tracing."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import os
import pickle
import sys
import threading
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ..exc import Unsupported
from ..guards import Predicate
from ..side_effects import Mutation
from ..source import ConstSource
from ..variables.base import VariableTracker, unsupported
from ..variables.builtin_object import is_none
from ..variables.constant import ConstantVariable
from ..variables.contexts import ManagerVariable
from ..variables.dicts import DictVariable
from ..variables.exceptions import TracebackVariable
from ..variables.identity import IdVariable
from ..variables.lists import SequenceVariable
from ..variables.null_blocks import null_block
from ..variables.registry import handles
from ..variables.tensor import TensorVariable

if TYPE_CHECKING:
    from ..codegen import PyCodegen
    from ..symbolic_convert import Translator

Args = list[VariableTracker]
Kwargs = dict[str, VariableTracker]


@handles(threading.get_ident)
def get_ident(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> VariableTracker:
    """Which thread it is, is not known: only that it stays the same."""
    return IdVariable(None, "thread")


@handles(importlib.import_module)
def import_module(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> Any:
    """As the `import` statement does it."""
    given = {**dict(zip(("name", "package"), args, strict=False)), **kwargs}
    values = {name: value.realize() for name, value in given.items()}
    if not all(value.is_python_constant() for value in values.values()):
        return NotImplemented
    constants = {name: value.as_python_constant() for name, value in values.items()}
    try:
        resolved = importlib.util.resolve_name(constants["name"], constants.get("package"))
    except Exception:
        return NotImplemented
    return tx.import_name(resolved, 0, "*")


# Types whose objects copy.deepcopy gives back as they are, without asking its memo in effect.
_ATOMIC = frozenset({type(None), bool, int, float, complex, str, bytes, type, range})


def _may_have_parameters(
    module: torch.nn.Module,
) -> bool:
    """Whether the module or one below it has some, or is one that the frame is still making."""
    seen = {id(module)}
    todo = [module]
    for item in todo:
        own = object.__getattribute__(item, "__dict__")
        parameters, children = own.get("_parameters"), own.get("_modules")
        if parameters is None or children is None:
            return True
        if any(parameter is not None for parameter in parameters.values()):
            return True
        below = [child for child in children.values() if child is not None]
        todo += [child for child in below if id(child) not in seen]
        seen.update(map(id, below))
    return False


@handles(copy.deepcopy)
def deep_copy(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> Any:
    """Most of what is copied are constants; the rest is traced. A module's tensors are copied by
    eager: one graph break, at this call.
    """
    value = args[0] if args else None
    module = None if value is None else tx.output.side_effects.real_of(value)
    if isinstance(module, torch.nn.Module) and _may_have_parameters(module):
        unsupported("call of an untraced function", "copy.deepcopy", "it copies parameters")
    if isinstance(value, TensorVariable) and len(args) < 3 and not kwargs:
        memo = tx.wrap_keywords({}) if is_none(args[1] if args[1:] else None) else args[1]
        return value.call_method(tx, "__deepcopy__", [memo], {})
    if not isinstance(value, ConstantVariable) or value.python_type() not in _ATOMIC:
        return NotImplemented
    return value


# -- pickled constants -----------------------------------------------------------------------------

# What pickle writes once, and refers back to where the same object comes again.
_WRITTEN_ONCE = (str, bytes, tuple, list, dict)


def _is_told_by_values(value: Any, seen: list[Any]) -> bool:
    """Whether the pickle of a constant is the same for whatever equals it: whether two equal parts
    are one object is not known.
    """
    kind = type(value)
    if kind in (type(None), bool, int, float):
        return True
    if kind not in _WRITTEN_ONCE or any(type(one) is kind and one == value for one in seen):
        return False
    seen.append(value)
    parts = [*value, *value.values()] if kind is dict else value
    return kind in (str, bytes) or all(_is_told_by_values(part, seen) for part in parts)


def _is_tree(tx: Translator, value: VariableTracker, seen: list[VariableTracker]) -> bool:
    """Whether no container comes twice; the keys of dicts are guarded."""
    value = value.realize()
    if not isinstance(value, (DictVariable, SequenceVariable)):
        return True
    if any(value is one for one in seen):
        return False
    seen.append(value)
    if isinstance(value, SequenceVariable):
        return all(_is_tree(tx, item, seen) for item in value.items)
    value.guard_keys(tx)
    return all(_is_tree(tx, part, seen) for pair in value.entries.values() for part in pair)


@handles(pickle.dumps)
def pickle_dumps(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> Any:
    """Of constants, as caches have them that are asked for the arguments of a call."""
    if len(args) != 1 or kwargs or not _is_tree(tx, args[0], []):
        return NotImplemented
    if not args[0].realize().is_python_constant():
        return NotImplemented
    value = args[0].realize().as_python_constant()
    return (
        tx.fold(pickle.dumps, [value], {}) if _is_told_by_values(value, []) else NotImplemented
    )


# -- the environment -------------------------------------------------------------------------------


def _environment(tx: Translator, name: str) -> str | None:
    """A variable of the environment, guarded by asking again."""
    value = os.environ.get(name)
    check = Predicate(lambda environ: environ.get(name) == value, f"${name} is unchanged")
    tx.guard(ConstSource(os.environ, "os.environ"), "PREDICATE", check)
    return value


@handles(type(os.environ).__getitem__)
def environ_getitem(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> Any:
    """`os.environ[name]`; the other ways of reading it come down to this one."""
    if args[0].identity() is not os.environ:
        return NotImplemented
    name = args[1].as_python_constant()
    value = _environment(tx, name)
    if value is None:
        tx.raise_observed(KeyError, name)
    return ConstantVariable(value)


@handles(os.getenv)
def getenv(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> Any:
    """`os.getenv(name, default)`."""
    args = [*args, *kwargs.values()]
    value = _environment(tx, args[0].as_python_constant())
    if value is not None:
        return ConstantVariable(value)
    return args[1] if len(args) > 1 else ConstantVariable(None)


def _setting(function: Callable[[], Any]) -> None:
    """A setting of the interpreter, guarded by asking again."""

    @handles(function)
    def ask(tx: Translator, args: Args, kwargs: Kwargs) -> Any:
        if args or kwargs:
            return NotImplemented
        value = function()
        name = f"sys.{function.__name__}"
        check = Predicate(lambda asked: asked() == value, f"{name}() is {value!r}")
        tx.guard(ConstSource(function, name), "PREDICATE", check)
        return ConstantVariable(value)


for _function in (
    sys.get_int_max_str_digits,
    sys.getdefaultencoding,
    sys.getfilesystemencoding,
    sys.getrecursionlimit,
    sys.getswitchinterval,
):
    _setting(_function)

# -- exceptions that are being handled -------------------------------------------------------------


def nothing_handled(tx: Translator) -> None:
    """Neither by the traced frames nor around them."""
    if tx.root.around is not None:
        unsupported("handled exception", "sys.exc_info()", "a caller handles an exception")
    check = Predicate(lambda function: function() is None, "no exception is being handled")
    tx.guard(ConstSource(sys.exception, "sys.exception()"), "PREDICATE", check)


@handles(sys.exc_info)
def exc_info(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
    """`(type, value, traceback)` of the innermost exception that is being handled."""
    error = tx.handled_exception()
    if error is None:
        nothing_handled(tx)
        return tx.wrap_items(tuple, [ConstantVariable(None)] * 3)
    kind = tx.wrap_constant(error.python_type())
    return tx.wrap_items(tuple, [kind, error, tx.traceback_of(error)])


@handles(sys.exception)
def exception(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
    error = tx.handled_exception()
    if error is None:
        nothing_handled(tx)
    return ConstantVariable(None) if error is None else error


@handles(traceback.clear_frames)
def clear_frames(tx: Translator, args: Args, kwargs: Kwargs) -> Any:
    """Frames that the traced code has left have no locals any more."""
    of_trace = (
        len(args) == 1 and not kwargs and isinstance(args[0].realize(), TracebackVariable)
    )
    return ConstantVariable(None) if of_trace else NotImplemented


# -- contexts without an effect on results ---------------------------------------------------------


@handles(torch.autograd.profiler.record_function)
def record_function(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> VariableTracker:
    """A range of the profiler: while compiling it is an empty context."""
    return null_block(tx)


@handles(torch.autograd.profiler.record_function.__enter__)
def record_function_enter(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> VariableTracker:
    return args[0]


@handles(torch.autograd.profiler.record_function.__exit__)
def record_function_exit(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> VariableTracker:
    return ConstantVariable(None)


class ProfilerVariable(ManagerVariable):
    """A profiler that the traced code makes. While compiling it does nothing, as torch.compile has
    it; where more of it is used than its block, the graph ends before it and eager makes it.
    """

    def __init__(self, kind: type, made_at: int) -> None:
        super().__init__(mutation=Mutation.NEW)
        self.kind = kind
        self.made_at = made_at

    def python_type(self) -> type:
        return self.kind

    def call_method(
        self, tx: Translator, name: str, args: Args, kwargs: Kwargs
    ) -> VariableTracker:
        if name in ("__enter__", "__exit__"):
            return self if name == "__enter__" else ConstantVariable(None)
        return super().call_method(tx, name, args, kwargs)

    def reconstruct(self, codegen: PyCodegen) -> None:
        reason = Unsupported("profiler", self.kind.__qualname__, "it is used outside its block")
        reason.made_at = self.made_at  # type: ignore[attr-defined]
        raise reason


# The arguments that only say what is recorded.
_RECORDED = frozenset(
    "activities record_shapes profile_memory with_stack with_flops with_modules use_cpu".split()
)


def _profiler(kind: type) -> None:
    def make(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
        if args or not kwargs.keys() <= _RECORDED:
            unsupported("profiler", kind.__qualname__, "it may call functions of the program")
        return ProfilerVariable(kind, tx.last_step())

    handles(kind)(make)


_profiler(torch.profiler.profile)
_profiler(torch.autograd.profiler.profile)
