"""An autocast region in a graph is two operations: one that enters it and one that leaves it.

Traced code sets each piece of the state by itself, as the context manager does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.amp.autocast_mode import _enter_autocast, _exit_autocast
from torch.fx.node import Node

_SETS = (torch.set_autocast_enabled, torch.set_autocast_dtype)
_ENTER = (*_SETS, torch.autocast_increment_nesting, torch.set_autocast_cache_enabled)
_LEAVE = (torch.autocast_decrement_nesting, *_SETS, torch.set_autocast_cache_enabled)
_LEAVE_LAST = (_LEAVE[0], torch.clear_autocast_cache, *_LEAVE[1:])
_STATE = frozenset(_LEAVE_LAST) | {torch.autocast_increment_nesting}
Run = Sequence[Node]


def join_autocast(graph: torch.fx.Graph) -> None:
    """Replace what sets the state piece by piece, where it comes back to what it was."""
    for entered, left in _regions(graph):
        (device, enabled), (_, dtype), _, (cached,) = (node.args for node in entered)
        with graph.inserting_before(entered[0]):
            mode = _add(graph, _enter_autocast, device, dtype, enabled, cached)
        with graph.inserting_before(left[0]):
            _add(graph, _exit_autocast, mode)
        for node in (*entered, *left):
            graph.erase_node(node)


def _add(graph: torch.fx.Graph, target: Any, *args: Any) -> Node:
    node = graph.call_function(target, args)
    node.meta["example_value"] = None
    return node


def _regions(graph: torch.fx.Graph) -> list[tuple[Run, Run]]:
    """The nodes that enter and those that leave each; none if the state is set otherwise too."""
    nodes = list(graph.nodes)
    found: list[tuple[Run, Run]] = []
    entered: list[Run] = []
    at = 0
    while at < len(nodes):
        run = _run_at(nodes, at)
        if run is None and nodes[at].target in _STATE:
            return []
        if run is not None and run[0].target is _ENTER[0]:
            entered.append(run)
        elif run is not None:
            if not entered or not _puts_back(entered[-1], run):
                return []
            found.append((entered.pop(), run))
        at += len(run or "1")
    return [] if entered else found


def _run_at(nodes: list[Node], at: int) -> Run | None:
    for kind in (_ENTER, _LEAVE, _LEAVE_LAST):
        run = nodes[at : at + len(kind)]
        if tuple(node.target for node in run) == kind and not any(n.users for n in run):
            return run
    return None


def _puts_back(entered: Run, left: Run) -> bool:
    """Whether leaving sets what was there at the entry, on the same device."""
    before = {(n.target, n.args[:-1]): n.meta["mode_before"] for n in entered if n.args}
    after = {(n.target, n.args[:-1]): n.args[-1] for n in left if n.args}
    return before == after
