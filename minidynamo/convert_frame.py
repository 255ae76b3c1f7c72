"""From an offered frame to a cache entry: `make_callback` gives the function that the hook calls on
a miss.

One attempt interprets the frame (`symbolic_convert`); where it stops the frame is finished by
`graph_breaks`. An attempt that learns too late that it has to stop is repeated from the start with
what was learnt.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch._C._dynamo import eval_frame as torch_frames
from torch.autograd import forward_ad

from . import config, events, recompilations, stances, trace_rules
from ._C import ONCE, SKIP, SKIP_RECURSIVE, Entry, entries, on_made_code
from .compile_lock import compiling
from .draws import kept_seeds
from .exc import (
    InternalError,
    MinidynamoError,
    NoCompiler,
    RunInEager,
    SkipFrame,
    TorchRuntimeError,
    Unsupported,
)
from .finalizers import collect_since, collections_of_old
from .function_modes import are_traceable, has_modes, is_next_call_skipped, set_aside
from .graph_breaks import CompiledFrame, are_breaks_errors, finish_break, finish_return
from .guard_filter import filter_guards
from .guards import Check, GuardSet, check_new_entry
from .interruptions import depth_of_modes, leave_modes, pass_on
from .opcodes.control import LOOP_GOES_ON
from .open_blocks import calls_program_for_saved
from .output_graph import OutputGraph
from .recompilations import EntryData, frame_of, modules_of
from .resume_execution import failing, is_continuation, loop_item, note_capture
from .shape_history import History, history_of
from .source import (
    DictItemSource,
    GlobalsSource,
    ListItemSource,
    LocalSource,
    Source,
    TupleItemSource,
)
from .symbolic_convert import GraphBreak, RestartTracing, RootTranslator, Translator
from .utils import counters
from .variables.function_modes import enter_modes
from .variables.input_numbers import Learnt

if TYPE_CHECKING:
    from .compile_options import CompileOptions

log = logging.getLogger("minidynamo")
MAX_ATTEMPTS = 64

# What torch.compile does with the compiler's own code and with generated code: nothing.
_NOT_FOR_TORCH = torch_frames._FrameExecStrategy(
    torch_frames._FrameAction.SKIP, torch_frames._FrameAction.DEFAULT
)


def _hide_from_torch(code: types.CodeType) -> None:
    """torch.compile neither captures what we made nor what that calls."""
    torch_frames.set_code_exec_strategy(code, _NOT_FOR_TORCH)


on_made_code(_hide_from_torch)


def make_callback(options: CompileOptions) -> Callable[[Any], Any]:
    """The callback for a `_C.Region`: FrameInfo -> Entry, SKIP or None."""

    def callback(frame: Any) -> Any:
        # Where torch.compile calls compiled code, it is not to compile the compiler.
        former, depth = torch_frames.set_eval_frame(None), depth_of_modes()
        try:
            return _answer_alone(options, frame)
        except BaseException as error:
            leave_modes(depth)
            if not is_continuation(frame.code):
                raise
            # The frame is in the middle of the program's `with` and `try` blocks.
            return _failing_entry(frame, error)
        finally:
            torch_frames.set_eval_frame(former)

    _hide_from_torch(callback.__code__)
    callback.fullgraph = options.fullgraph  # type: ignore[attr-defined]
    return callback


def _failing_entry(frame: Any, error: BaseException) -> tuple[Any]:
    """An answer for this call alone: it raises `error` where the program goes on."""
    code = failing(frame.code, error, frame.f_locals)
    return (Entry(GuardSet().build(frame.code, []), code, needs_hook=False),)


def _answer_alone(options: CompileOptions, frame: Any) -> Any:
    """The answer, while no other thread compiles. Where one made a version of this code since this
    call found none, it runs in eager, and the next one will find it.
    """
    with compiling() as alone:
        known, made = frame.entries, entries(frame.code, frame.region)
        if not alone or len(made) > len(known) or _is_on_its_way(frame):
            return ONCE
        answer = _answer(options, frame)
        if isinstance(answer, Entry):
            _newest[:] = _key(frame), weakref.ref(answer.code), *_now()
        return answer


# The newest version: for which code and region, its code, and which thread asked for it when. That
# thread may not have come to put it on the list.
_newest: list[Any] = [(0, 0), lambda: None, 0, 0.0]
_UNTIL_LISTED = 1.0  # seconds


def _key(frame: Any) -> tuple[int, int]:
    return id(frame.code), id(frame.region)


def _now() -> tuple[int, float]:
    return threading.get_ident(), time.monotonic()


def _is_on_its_way(frame: Any) -> bool:
    (key, code, asker, answered), (thread, now) = _newest, _now()
    if key != _key(frame) or asker == thread or now - answered > _UNTIL_LISTED:
        return False
    return code() not in (None, *(entry.code for entry in frame.entries))


def _answer(options: CompileOptions, frame: Any) -> Any:
    code = frame.code
    if not is_continuation(code):
        reason = trace_rules.skip_code(code, frame.globals.get("__name__"))
        if reason is not None:
            _emit_frame(code, "skipped", reason)
            return SKIP_RECURSIVE if trace_rules.is_disabling(code) else SKIP
    elif calls_program_for_saved(frame):
        return SKIP
    if _is_below_a_tracer() or trace_rules.has_distributed_hooks(frame):
        return None
    caller = sys._getframe(2).f_back
    if caller is not None and trace_rules.is_disabling_call(caller.f_code):
        return None
    stance = stances.current()
    if stance.name != "default" and _stays_eager(stance.name, options, frame):
        return None
    refusal = recompilations.refusal(options, frame) if frame.entries else None
    if refusal is not None:
        return refusal
    return _compiled(_with_backend(options, stance, frame), frame)


def _compiled(options: CompileOptions, frame: Any) -> Any:
    """The entry, or what is done where compiling fails."""
    code = frame.code
    _emit_frame(code, "start")
    try:
        return _convert(options, frame)
    except SkipFrame as skip:
        _emit_frame(code, "skipped", str(skip))
        return ONCE if has_modes() else SKIP
    except RunInEager as reason:
        _emit_frame(code, "eager", str(reason))
        return ONCE
    except MinidynamoError as error:
        if not error.user_stack:
            error.user_stack = [frame_of(code)]
        _emit_frame(code, "failed", str(error))
        if not options.fullgraph and _is_for_want_of_a_compiler(error):
            return SKIP
        if not config.suppress_errors or isinstance(error, Unsupported):
            if isinstance(error, (Unsupported, TorchRuntimeError)) and not config.verbose:
                _forget_tracer(error)
            raise
        _warn("minidynamo failed on %s, which runs in eager: %s", code, error)
        return SKIP
    except Exception as error:
        pass_on(error)
        _emit_frame(code, "failed", str(error))
        if config.raise_internal_errors or (options.fullgraph and not config.suppress_errors):
            raise
        _warn("a bug of minidynamo: it failed on %s, which runs in eager: %r", code, error)
        return SKIP


def _is_for_want_of_a_compiler(error: MinidynamoError) -> bool:
    """Whether there is no compiler for the kernels, which is warned about."""
    cause = getattr(error, "inner_exception", None)
    if isinstance(cause, NoCompiler):
        cause.warn()
        return True
    return False


def _warn(text: str, code: types.CodeType, error: Exception) -> None:
    log.warning(text, code.co_qualname, error, exc_info=config.verbose)


def _is_below_a_tracer() -> bool:
    """Inside of a torch.func transform, of a level of forward-mode AD, or of a tracer: such calls
    are left alone.
    """
    return (
        not are_traceable()
        or is_next_call_skipped()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._is_tracing()
        or forward_ad._current_level >= 0
    )


def _emit_frame(code: types.CodeType, outcome: str, reason: str = "") -> None:
    if events.wants(events.FrameEvent):
        events.emit(events.FrameEvent(code=code, outcome=outcome, reason=reason))


# -- stances ---------------------------------------------------------------------------------------


def _stays_eager(stance: str, options: CompileOptions, frame: Any) -> bool:
    """Whether the stance leaves this call, which nothing compiled fits, to eager."""
    code: types.CodeType = frame.code
    if stance == "fail_on_recompile":
        if not frame.entries and not any(map(_may_hold_tensors, frame.f_locals.values())):
            return True
        failures = "".join(f"\n- {text}" for text in recompilations.failures(options, frame))
        raise RuntimeError(
            "Detected recompile when the stance is 'fail_on_recompile': "
            f"{code.co_qualname} ({code.co_filename}:{code.co_firstlineno}){failures}"
        )
    if stance != "eager_then_compile":
        return stance in ("eager_on_recompile", "force_eager")
    history = history_of(code)
    if history.ran_in_eager:
        return False
    history.ran_in_eager = True
    for name, value in frame.f_locals.items():
        _record(history, LocalSource(name), value)
    return True


def _record(history: History, source: Source, value: Any, around: tuple[Any, ...] = ()) -> None:
    """What a call in eager saw: tensors and numbers, also those in plain containers.

    around: the containers that the value is in; one that contains itself is looked at once.
    """
    if isinstance(value, torch.Tensor):
        history.tensor(source.name, value)
    elif type(value) in (int, float):
        history.number(source.name, value)
    elif any(value is container for container in around):
        return
    elif type(value) in (list, tuple):
        item = ListItemSource if type(value) is list else TupleItemSource
        for index, part in enumerate(value):
            _record(history, item(source, index), part, (*around, value))
    elif type(value) is dict:
        for key, part in value.items():
            if isinstance(key, (str, int)):
                _record(history, DictItemSource(source, key), part, (*around, value))


def _may_hold_tensors(value: object) -> bool:
    return isinstance(value, (torch.Tensor, torch.nn.Module, list, tuple, dict))


def _with_backend(
    options: CompileOptions, stance: stances.Stance, frame: Any
) -> CompileOptions:
    later = stance.name == "aot_eager_then_compile" and frame.entries
    if stance.backend is None or later:
        return options
    return replace(options, backend=stance.backend, backend_name=stance.backend_name)


# -- converting ------------------------------------------------------------------------------------


def _convert(options: CompileOptions, frame: Any) -> Any:
    """One frame to an Entry. Raises Unsupported (fullgraph), SkipFrame, or a compiler error."""
    breaks = Learnt()
    around = sys.exception()
    counters["frames"]["total"] += 1
    for _ in range(MAX_ATTEMPTS):
        try:
            guards = GuardSet()
            with set_aside() as modes, _kept_global_state(), events.timed("frame"):
                entry = _attempt(options, frame, guards, modes, breaks, around)
            if config.check_new_guards:
                check_new_entry(frame, entry)
            return entry
        except RestartTracing as restart:
            breaks[restart.step] = restart.reason
            _drop_tracebacks(restart, around)
            _drop_tracebacks(restart.reason, around)
        except Unsupported as error:
            breaks.solve(error)
    raise InternalError(f"{frame.code.co_qualname}: analysis did not settle")


def _attempt(
    options: CompileOptions,
    frame: Any,
    guards: GuardSet,
    modes: list[Any],
    breaks: dict[int, Unsupported],
    around: BaseException | None,
) -> Any:
    old, output = collections_of_old(), OutputGraph(options, frame.code, guards)
    output.shapes.loop_item = loop_item(frame.code)
    try:
        return _capture(options, frame, output, modes, breaks, around)
    finally:
        for context in reversed(output.open_contexts):
            context.abandon()
        meets_finalizers = output.side_effects.meets_finalizers
        output.release()
        if meets_finalizers:
            collect_since(old)


def _capture(
    options: CompileOptions,
    frame: Any,
    output: OutputGraph,
    modes: list[Any],
    breaks: dict[int, Unsupported],
    around: BaseException | None,
) -> Any:
    tx = RootTranslator(output, frame, breaks)
    tx.around = around
    tx.guard(GlobalsSource(), "ID_IS", frame.globals)
    output.guards.add(None, Check.GLOBAL_STATE)
    try:
        enter_modes(tx, modes)
        value = tx.run()
    except GraphBreak as stop:
        _report_break(output, stop.reason)
        _drop_tracebacks(stop.reason, around)
        _drop_tracebacks(stop, around)
        innermost = stop.frame
        goes_on = stop.reason.kind != "step_unsupported()"
        finish = functools.partial(finish_break, tx, innermost, goes_on=goes_on)
        compiled = _finished(options, tx, finish, innermost)
        return _make_entry(frame, output, compiled, goes_on=True)
    compiled = _finished(options, tx, lambda: finish_return(tx, value))
    return _make_entry(frame, output, compiled, goes_on=False)


def _finished(
    options: CompileOptions,
    tx: RootTranslator,
    finish: Callable[[], CompiledFrame],
    innermost: Translator | None = None,
) -> CompiledFrame:
    """`finish()`. A value that can't be rebuilt outside the graph lets the graph end where it was
    made; else a break in `innermost` is tried in its caller; else the frame is left to eager.
    """
    try:
        return finish()
    except Unsupported as reason:
        made_at = getattr(reason, "made_at", None)
        if made_at is not None and made_at not in tx.breaks:
            raise RestartTracing(made_at, reason) from reason
        caller = innermost.parent if innermost is not None else None
        if caller is not None and caller.step_number not in tx.breaks:
            raise RestartTracing(caller.step_number, reason) from reason
        _report_break(tx.output, reason)
        raise SkipFrame(f"{reason.kind}: {reason.context}") from reason
    except RecursionError:
        raise SkipFrame("a nest of values is too deep to be rebuilt") from None


def _drop_tracebacks(error: BaseException | None, around: BaseException | None) -> None:
    """Tracebacks of errors that were handled keep the tracer's frames, and so
    the program's objects. `around`: the program's own exception, in whose handler this runs.
    """
    while error is not None and error is not around and error.__traceback__ is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def _forget_tracer(error: MinidynamoError) -> None:
    """What the program gets does not lead to the tracer's frames, whose locals lead back to it."""
    error.__traceback__ = None
    while isinstance(error.__context__, GraphBreak):
        error.__context__ = error.__context__.__context__


def _report_break(output: OutputGraph, reason: Unsupported) -> None:
    """A graph break is an error with fullgraph, except where the program itself raises."""
    if reason.kind in ("exception", LOOP_GOES_ON):
        return
    if are_breaks_errors(output):
        cause = reason.__cause__
        if reason.kind == "operator raised" and not isinstance(cause, NotImplementedError):
            raise TorchRuntimeError(reason.context, user_stack=reason.user_stack) from cause
        raise reason if reason.hints else _with_hint(reason)
    counters["graph_break"][reason.message] += 1
    if events.wants(events.GraphBreakEvent):
        events.emit(
            events.GraphBreakEvent(
                kind=reason.kind,
                reason=reason.explanation or reason.kind,
                context=reason.context,
                hints=reason.hints,
                user_stack=reason.user_stack,
            )
        )


def _with_hint(reason: Unsupported) -> Unsupported:
    hint = "move it out of the compiled function, or compile without fullgraph=True"
    hinted = type(reason)(
        reason.kind, reason.context, reason.explanation, [hint], user_stack=reason.user_stack
    )
    hinted.__cause__ = reason.__cause__
    return hinted


def _make_entry(
    frame: Any, output: OutputGraph, compiled: CompiledFrame, *, goes_on: bool
) -> Any:
    is_empty = output.is_empty()
    if not is_empty:
        note_capture(frame.code)
    guards = output.guards
    output.add_alias_guards()
    output.shapes.add_guards(guards)
    is_original = is_empty and not goes_on and output.side_effects.is_empty()
    is_original = is_original and not output.is_told_apart
    code = frame.code if is_original else compiled.code
    fetch = [] if code is frame.code else compiled.fetch
    if not is_original:
        _hide_from_torch(code)
    if output.options.guard_filter_fn is not None:
        values = {v.source: real for real, v in output.side_effects.tracked() if v.source}
        values.update({item.source: item.value for item in output.inputs})
        filter_guards(guards, output.options.guard_filter_fn, values)
    program = guards.build(frame.code, fetch)
    entry = Entry(
        program,
        code,
        needs_hook=compiled.needs_hook,
        inputs_slot=bool(fetch),
    )
    entry.data = EntryData(guards, is_empty, output.op_count, goes_on, modules_of(frame))
    if events.wants(events.GuardEvent):
        events.emit(events.GuardEvent(code=frame.code, guards=guards.describe()))
    if events.wants(events.BytecodeEvent):
        events.emit(events.BytecodeEvent(original=frame.code, modified=code))
    counters["frames"]["ok"] += 1
    _emit_frame(frame.code, "compiled")
    return entry


@contextlib.contextmanager
def _kept_global_state() -> Iterator[None]:
    """Tracing changes grad mode, autocast and random states as the program does; here they come
    back.
    """
    grad = torch.is_grad_enabled()
    autocast = {
        d: (torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda")
    }
    cache = torch.is_autocast_cache_enabled()
    # What tracing saves for backward passes is none of the program's.
    has_hooks = torch._C._autograd._saved_tensors_hooks_is_enabled()
    if has_hooks:
        torch._C._autograd._push_saved_tensors_default_hooks(_same, _same)
    try:
        with kept_seeds():
            yield
    finally:
        if has_hooks:
            torch._C._autograd._pop_saved_tensors_default_hooks()
        torch._C._set_grad_enabled(grad)
        for device, (enabled, dtype) in autocast.items():
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)
        torch.set_autocast_cache_enabled(cache)


def _same(value: Any) -> Any:
    return value
