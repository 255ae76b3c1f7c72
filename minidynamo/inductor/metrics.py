"""Counters of what the backend did, for tests and for people; `reset()` sets them to zero.

generated_kernel_count: kernels that plans call (equal ones counted once a graph);
generated_cpp_vec_kernel_count: those in C++ that work on vectors; kernel_calls: places where plans
call one; extern_calls: operators called through the dispatcher;
ir_nodes_pre_fusion: loop nests before fusion; compiled_graphs; capture_fallbacks: graphs that had
to take AOTAutograd; uncompiled_graphs: those that run node by
node, because of symbolic sizes or since they cannot be described without running them;
cudagraph_recordings, cudagraph_replays: of all graphs.
"""

from __future__ import annotations

generated_kernel_count = 0
generated_cpp_vec_kernel_count = 0
kernel_calls = 0
extern_calls = 0
ir_nodes_pre_fusion = 0
compiled_graphs = 0
capture_fallbacks = 0
uncompiled_graphs = 0
cudagraph_recordings = 0
cudagraph_replays = 0

_COUNTERS = (
    "generated_kernel_count",
    "generated_cpp_vec_kernel_count",
    "kernel_calls",
    "extern_calls",
    "ir_nodes_pre_fusion",
    "compiled_graphs",
    "capture_fallbacks",
    "uncompiled_graphs",
    "cudagraph_recordings",
    "cudagraph_replays",
)


def reset() -> None:
    """Set all counters to zero."""
    for name in _COUNTERS:
        globals()[name] = 0


def counts() -> dict[str, int]:
    """All counters by name."""
    return {name: globals()[name] for name in _COUNTERS}


def increment(name: str, by: int = 1) -> None:
    """Add to a counter of this module."""
    assert name in _COUNTERS, name
    globals()[name] += by
