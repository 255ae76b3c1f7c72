"""Types of the native extension: what `csrc/` offers to Python."""

from collections.abc import Callable, Sequence
from types import CodeType, FunctionType
from typing import Any

class Region:
    """One compile configuration; the callback is asked for frames that have no fitting entry."""

    callback: Callable[[FrameInfo], Any]
    run_only: bool
    def __init__(self, callback: Callable[[FrameInfo], Any]) -> None: ...

class FrameInfo:
    """A frame that is about to run, as the callback sees it."""

    code: CodeType
    func: FunctionType
    f_locals: dict[str, Any]
    globals: dict[str, Any]
    builtins: dict[str, Any]
    closure: tuple[Any, ...] | None
    region: Region
    entries: list[Entry]
    failed: int

class Entry:
    """One compiled variant of a code object."""

    guards: Any
    code: CodeType
    hits: int
    valid: bool
    data: Any
    needs_hook: bool
    inputs_slot: bool
    def __init__(
        self, guards: Any, code: CodeType, *, needs_hook: bool = True, inputs_slot: bool = False
    ) -> None: ...

class CompiledFunction:
    """A callable that runs another one inside a region, or (region None) outside of all."""

    __wrapped__: Any
    region: Region | None
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

class TailCall:
    """What generated code returns to have another function called in its place."""

SKIP: Any
SKIP_RECURSIVE: Any
ONCE: Any
SKIP_RUN_ONLY: Any

def set_module_callers(call: Callable[..., Any], call_impl: Callable[..., Any]) -> None: ...
def compiled_function(fn: Any, region: Region) -> CompiledFunction: ...
def disabled(fn: Any) -> CompiledFunction: ...
def force_eager(flag: bool) -> None: ...
def follow_stance(names: dict[str, Any], listener: Callable[[Any], Any]) -> None: ...
def enter_region(region: Region | None) -> Any: ...
def leave_region(previous: Any) -> None: ...
def current_region() -> Region | None: ...
def on_made_code(callback: Callable[[CodeType], Any] | None) -> None: ...
def skip_code(code: CodeType, recursive: bool) -> None: ...
def entries(code: CodeType, region: Region | None = None) -> list[Entry]: ...
def tail_call(fn: Any, *args: Any) -> TailCall: ...
def reset() -> None: ...
def active_count() -> int: ...
def is_installed() -> bool: ...
def __getattr__(name: str) -> Any: ...

class PlanExecutor:
    """Runs a plan on positional tensors and ints; returns the tuple of outputs, or the only one."""

    info: dict[str, Any]
    boxed: BoxedPlan
    runs_no_python: bool
    key: str | None
    def __init__(
        self,
        spec: dict[str, Any],
        library: str | None = None,
        constants: Sequence[Any] = (),
        callables: dict[str, Callable[..., Any]] = ...,
        single: bool = False,
        keep_memory: bool = True,
    ) -> None: ...
    def __call__(self, *args: Any) -> Any: ...
    def track_views(self) -> None: ...

class BoxedPlan:
    """The same plan on one list of inputs, which it empties."""

    _boxed_call: bool
    executor: PlanExecutor
    def __call__(self, inputs: list[Any], /) -> Any: ...

def plan_memory_limit(nbytes: int | None, /) -> int: ...
def plan_memory_kept() -> tuple[int, int]: ...

class DifferentiableGraph:
    """A compiled graph with a backward graph, joined by a node of autograd."""

    is_armed: bool
    def __init__(self, wrapped: Callable[..., Any], /) -> None: ...
    def arm(
        self,
        spec: dict[str, Any],
        forward: PlanExecutor,
        backward: Callable[[list[Any]], Any],
        partial: Callable[[list[Any]], Any],
        replay: Callable[[list[Any], list[Any]], list[Any]] | None,
        /,
    ) -> None: ...
    def __call__(self, *args: Any) -> Any: ...
