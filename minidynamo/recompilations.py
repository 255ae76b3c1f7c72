"""When a frame is compiled again: why nothing that was compiled fits a call (`failures`), and where
the versions end (`refusal`).
"""

from __future__ import annotations

import logging
import traceback
import types
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from . import config, events
from ._C import SKIP, SKIP_RUN_ONLY, entries
from .compile_options import GuardFail
from .exc import RecompileError, RecompileLimitExceeded
from .guards import Check, GuardFailure, GuardSet
from .remedies import remedy
from .resume_execution import base_code, has_captured, is_continuation
from .shape_history import history_of

if TYPE_CHECKING:
    from .compile_options import CompileOptions

log = logging.getLogger("minidynamo")
# After so many versions of a frame without any tensor operation, it is left alone.
MAX_EMPTY_VERSIONS = 3
# Versions with no more operations bring too little to be made for each name that a loop meets.
FEW_OPERATIONS = 16
FUTILE = "the parts between the graph breaks change each time, and hold few operations"


@dataclass(slots=True)
class EntryData:
    """What the compiler keeps with an entry.

    Attributes:
        guards: to explain failures.
        is_empty: whether it holds no graph; operations: how many its graph has.
        goes_on: whether it ends with a graph break.
        modules: the nn.Modules that it was compiled for.
    """

    guards: GuardSet
    is_empty: bool
    operations: int
    goes_on: bool
    modules: list[weakref.ref[torch.nn.Module]]


def failures(options: CompileOptions, frame: Any) -> list[str]:
    """Why the existing entries do not fit this call, one sentence each."""
    return _texts(options, frame, _failed_guards(frame))


def _failed_guards(frame: Any) -> list[GuardFailure | None]:
    """For each entry the guard that fails, None if none does: the entry was invalidated."""
    found = []
    for entry in frame.entries:
        data: EntryData = entry.data
        found.append(data.guards.explain_failure(entry.guards, frame))
        if entry.guards.dead:
            entry.valid = False  # what it compares with has died: it counts no longer
    return found


def _texts(
    options: CompileOptions, frame: Any, failed: Sequence[GuardFailure | None]
) -> list[str]:
    texts = []
    for failure in failed:
        if failure is None:
            texts.append("the entry was invalidated")
            continue
        hint = remedy(failure, options.dynamic, frame.f_locals)
        texts.append(f"{failure} ({hint})" if hint else str(failure))
    return texts


def refusal(options: CompileOptions, frame: Any) -> Any:
    """Report a recompilation; SKIP or SKIP_RUN_ONLY where there is to be none (once the limit is
    reached, with one warning), else None.
    """
    code: types.CodeType = frame.code
    failed = _failed_guards(frame)
    texts = _texts(options, frame, failed)
    if config.error_on_recompile:
        raise RecompileError(f"{code.co_qualname} would be recompiled: {texts[0]}")
    if events.wants(events.RecompileEvent):
        events.emit(events.RecompileEvent(code=code, failures=texts))
    empty = [entry for entry in frame.entries if entry.data.is_empty]
    if has_captured(code):
        # What follows a graph break may be worth it.
        empty = [entry for entry in empty if not entry.data.goes_on]
    if len(empty) >= MAX_EMPTY_VERSIONS:
        for entry in empty:
            entry.valid = False
        return SKIP
    if options.guard_fail_fn is not None:
        for text in texts:
            options.guard_fail_fn(GuardFail(text, code))
    if _is_futile(options, frame, failed):
        if events.wants(events.FrameEvent):
            events.emit(events.FrameEvent(code=code, outcome="skipped", reason=FUTILE))
        return SKIP
    reached = _limit_reached(options, frame)
    if reached is None:
        return None
    count, limit = reached
    message = (
        f"{code.co_qualname} ({code.co_filename}:{code.co_firstlineno}) was compiled"
        f" {count} times, which is config.{limit}; the guard that keeps"
        f" failing: {texts[0]}"
    )
    hints = [
        "MINIDYNAMO_LOGS=recompiles shows every recompilation and its reason",
        f"config.{limit} sets the limit",
    ]
    if options.fullgraph or config.fail_on_recompile_limit_hit:
        stack = [frame_of(code)]
        raise RecompileLimitExceeded(
            "recompile limit", context=message, hints=hints, user_stack=stack
        )
    log.warning(
        "%s. From now on it runs in eager where no compiled version fits. %s.",
        message,
        hints[0],
    )
    return SKIP_RUN_ONLY if config.skip_code_recursive_on_recompile_limit_hit else SKIP


def _is_futile(
    options: CompileOptions,
    frame: Any,
    failed: Sequence[GuardFailure | None],
) -> bool:
    """Whether what follows a graph break is to be left to eager, as the parts of its function were
    compiled again and again for few operations: a loop around breaks over names, say. Versions
    that become symbolic do not count, nor do those for other nn.Modules or another grad mode.
    """
    if not is_continuation(frame.code) or options.fullgraph:
        return False
    own = modules_of(frame)
    met = [
        (entry, failure)
        for entry, failure in zip(frame.entries, failed, strict=True)
        if entry.data.modules == own and not _is_of_state(failure)
    ]
    if not met or any(entry.data.operations > FEW_OPERATIONS for entry, _ in met):
        return False
    if len(met) == 1 and _may_become_symbolic(met[0][1]):
        return False
    history = history_of(base_code(frame.code))
    return history.count_again(options, tuple(own)) > _own_limit(options)


def _is_of_state(
    failure: GuardFailure | None,
) -> bool:
    return failure is not None and failure.guard.kind is Check.GLOBAL_STATE


def _may_become_symbolic(
    failure: GuardFailure | None,
) -> bool:
    if failure is None or failure.guard.kind in (Check.TENSOR_MATCH, Check.EXPR):
        return True
    return failure.guard.kind is Check.CONST_EQ and type(failure.found) in (int, float)


def _own_limit(
    options: CompileOptions,
) -> int:
    limit = options.recompile_limit
    return config.recompile_limit if limit is None else limit


def _limit_reached(options: CompileOptions, frame: Any) -> tuple[int, str] | None:
    """The number of versions and the name of the limit that it has reached, if any.

    Versions made for other nn.Modules than this call's count for the accumulated limit alone, which
    holds over all compile configurations.
    """
    total = sum(entry.valid for entry in entries(frame.code))
    if total >= config.accumulated_recompile_limit:
        return total, "accumulated_recompile_limit"
    own = modules_of(frame)
    count = sum(entry.valid and entry.data.modules == own for entry in frame.entries)
    limit = _own_limit(options)
    return (count, "recompile_limit") if count >= limit else None


def modules_of(frame: Any) -> list[weakref.ref[torch.nn.Module]]:
    """The modules among the frame's arguments."""
    values = frame.f_locals.values()
    return [_Identity(value) for value in values if issubclass(type(value), torch.nn.Module)]


class _Identity(weakref.ref[torch.nn.Module]):
    """A reference that equals another one to the same object; modules may define `__eq__`."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self() is other() and self() is not None

    def __hash__(self) -> int:
        return id(self())


def frame_of(code: types.CodeType) -> traceback.FrameSummary:
    """For errors about a function as a whole."""
    return traceback.FrameSummary(
        code.co_filename, code.co_firstlineno, code.co_name, lookup_line=False
    )
