"""Operators that must run once and in order, also if nobody wants their results."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.fx
from torch._library.simple_registry import singleton as registry
from torch.fx.node import _side_effectful_functions as kept_by_torch

from minidynamo.inductor import config

_FLAGS_OF_TORCH = "torch._inductor.config"
_COLLECTIVES = ("_c10d_functional", "_c10d_functional_autograd")
_WAITS = tuple(f"{namespace}::wait_tensor" for namespace in _COLLECTIVES)


def has_effect(op: Any) -> bool:
    """`op`: an OpOverload. Without results it is there to raise, or to act; a random one moves the
    generator on; other processes take part in a collective, also if only they want its result;
    others were registered as effectful, or told to `torch.fx.node.has_side_effect`.
    """
    return (
        not op._schema.returns
        or op.namespace in _COLLECTIVES
        or torch.Tag.nondeterministic_seeded in op.tags
        or registry.find(op._name).effect.effect is not None
        or op in kept_by_torch
    )


def is_wait(op: Any) -> bool:
    """Whether `op` waits for the collective that its operand comes from."""
    return isinstance(op, torch._ops.OpOverload) and op.name() in _WAITS


@contextmanager
def keeping_calls(gm: torch.fx.GraphModule) -> Iterator[None]:
    """Keeps AOTAutograd from dropping gm's calls of operators that give nothing."""
    called = {node.target for node in gm.graph.nodes if node.op == "call_function"}
    acting: set[Any] = set()
    for target in called - kept_by_torch:
        op = getattr(target, "default", target)
        if isinstance(op, torch._ops.OpOverload) and not op._schema.returns:
            acting.add(op)
    kept_by_torch.update(acting)
    try:
        yield
    finally:
        kept_by_torch.difference_update(acting)


@contextmanager
def keeping_draws() -> Iterator[None]:
    """Keeps AOTAutograd from dropping random numbers that nobody reads, where eager's are wanted:
    they move the generator on. torch.fx asks torch's flag of the same name whether to.
    """
    flags = sys.modules.get(_FLAGS_OF_TORCH)
    if flags is None or not config.fallback_random:
        yield
        return
    with flags.patch(fallback_random=True):
        yield


def drop_repeated(parts: tuple[torch.fx.GraphModule, torch.fx.GraphModule]) -> None:
    """Drops from the backward graph what acts in the forward graph already: torch's default
    partition copies what needs no more than is saved, and drops what nobody reads unless it acts.
    """
    forward, backward = parts
    done = {node.name for node in forward.graph.nodes if node.op == "call_function"}
    for node in reversed(backward.graph.nodes):
        if node.name in done and not node.users and node.is_impure():
            backward.graph.erase_node(node)
    backward.recompile()
