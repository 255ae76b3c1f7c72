"""minidynamo: a frame-evaluation JIT compiler for PyTorch.

    import minidynamo
    fast = minidynamo.compile(model)         # as torch.compile
    print(minidynamo.explain(model)(x))      # graphs, breaks and their reasons, guards

Names, defaults and meanings follow torch.compile, torch._dynamo and torch._inductor.

What is listed in `_EXPORTS` is imported when it is first used: importing the package costs little,
and its parts that need no torch (`minidynamo.bytecode`) work without it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from . import config, exc, utils
from .collector import importing
from .events import set_logs

if TYPE_CHECKING:
    from . import callback, compiler, comptime, decorators, inductor, testing
    from .backends.modes import list_mode_options, list_options
    from .backends.registry import (
        get_default_backend,
        list_backends,
        lookup_backend,
        register_backend,
        set_default_backend,
    )
    from .callback import callback_handler, on_compile_end, on_compile_start
    from .decorators import (
        disable_nested_graph_breaks,
        dont_skip_tracing,
        error_on_graph_break,
        export,
        forbid_in_graph,
        is_dynamo_disable_recursive,
        nonstrict_trace,
        override_cudagraphs,
        override_optimization_hint,
        patch_dynamo_config,
        substitute_in_graph,
    )
    from .eval_frame import (
        compile,
        compile_,
        disable,
        optimize,
        optimize_assert,
        reset,
        run,
        set_stance,
    )
    from .explanation import ExplainOutput, explain
    from .markers import (
        allow_in_graph,
        assume_constant_result,
        disallow_in_graph,
        graph_break,
        is_compiling,
        is_dynamo_compiling,
        mark_dynamic,
        mark_static,
        mark_static_address,
        mark_unbacked,
        maybe_mark_dynamic,
        skip_frame,
        step_unsupported,
    )
    from .optimized_module import OptimizedModule
    from .support import is_dynamo_supported, is_inductor_supported

__version__ = "0.1.0"

# module -> the public names that come from it
_EXPORTS = {
    "backends.modes": ("list_mode_options", "list_options"),
    "backends.registry": (
        "get_default_backend",
        "list_backends",
        "lookup_backend",
        "register_backend",
        "set_default_backend",
    ),
    "decorators": (
        "disable_nested_graph_breaks",
        "dont_skip_tracing",
        "error_on_graph_break",
        "export",
        "forbid_in_graph",
        "is_dynamo_disable_recursive",
        "nonstrict_trace",
        "override_cudagraphs",
        "override_optimization_hint",
        "patch_dynamo_config",
        "substitute_in_graph",
    ),
    "eval_frame": (
        "compile",
        "compile_",
        "disable",
        "optimize",
        "optimize_assert",
        "reset",
        "run",
        "set_stance",
    ),
    "explanation": ("ExplainOutput", "explain"),
    "markers": (
        "allow_in_graph",
        "assume_constant_result",
        "disallow_in_graph",
        "graph_break",
        "is_compiling",
        "is_dynamo_compiling",
        "mark_dynamic",
        "mark_static",
        "mark_static_address",
        "mark_unbacked",
        "maybe_mark_dynamic",
        "skip_frame",
        "step_unsupported",
    ),
    "optimized_module": ("OptimizedModule",),
    "support": ("is_dynamo_supported", "is_inductor_supported"),
    "callback": ("callback_handler", "on_compile_end", "on_compile_start"),
}
# What torch._dynamo has besides, and what there is instead.
_ELSEWHERE = {
    "allow_c_slot": "substitute_in_graph() lets Python functions stand for those in C",
    "bytecode_debugger": "MINIDYNAMO_LOGS=bytecode shows the code that is made",
    "get_recursion_limit": "sys.getrecursionlimit() holds for the tracer, too",
    "register_hook_for_recompile_user_context": "events.subscribe() tells of recompilations",
    "replay": "frames are not recorded",
    "reset_recompile_user_contexts": "events.subscribe() tells of recompilations",
    "set_recursion_limit": "sys.setrecursionlimit() holds for the tracer, too",
}
_MODULE_OF = {name: module for module, names in _EXPORTS.items() for name in names}

__all__ = [
    "ExplainOutput",
    "OptimizedModule",
    "allow_in_graph",
    "assume_constant_result",
    "callback",
    "callback_handler",
    "compile",
    "compile_",
    "compiler",
    "comptime",
    "config",
    "decorators",
    "disable",
    "disable_nested_graph_breaks",
    "disallow_in_graph",
    "dont_skip_tracing",
    "error_on_graph_break",
    "exc",
    "explain",
    "export",
    "forbid_in_graph",
    "get_default_backend",
    "graph_break",
    "inductor",
    "is_compiling",
    "is_dynamo_compiling",
    "is_dynamo_disable_recursive",
    "is_dynamo_supported",
    "is_inductor_supported",
    "list_backends",
    "list_mode_options",
    "list_options",
    "lookup_backend",
    "mark_dynamic",
    "mark_static",
    "mark_static_address",
    "mark_unbacked",
    "maybe_mark_dynamic",
    "nonstrict_trace",
    "on_compile_end",
    "on_compile_start",
    "optimize",
    "optimize_assert",
    "override_cudagraphs",
    "override_optimization_hint",
    "patch_dynamo_config",
    "register_backend",
    "reset",
    "run",
    "set_default_backend",
    "set_logs",
    "set_stance",
    "skip_frame",
    "step_unsupported",
    "substitute_in_graph",
    "testing",
    "utils",
]


def __getattr__(name: str) -> Any:
    if name in ("callback", "compiler", "comptime", "decorators", "inductor", "testing"):
        return importlib.import_module(f".{name}", __name__)
    if name not in _MODULE_OF:
        where = f": {_ELSEWHERE[name]}" if name in _ELSEWHERE else ""
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{where}")
    with importing():
        value = getattr(importlib.import_module(f".{_MODULE_OF[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
