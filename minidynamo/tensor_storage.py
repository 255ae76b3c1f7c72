"""What graphs may do to the shape of tensors that they are given."""

from __future__ import annotations

import types
from typing import Any

import torch
from torch.fx.node import Node
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from .exc import Unsupported
from .source import AttrSource, Source
from .symbolic_contexts import wrapped_tensors

_RESTRIDING = frozenset(
    "t_ transpose_ swapaxes_ swapdims_ squeeze_ unsqueeze_ as_strided_".split()
)
# AOTAutograd makes them functional for constant sizes alone, of memory made in the graph.
_RESIZING = frozenset({"resize_", "resize_as_", "_resize_output_"})
# It loses what shares memory after these.
_MOVING = frozenset({"set_", "set_data"})


class Restrided:
    """Inputs that operations of the graph gave another shape in place, with the one they had."""

    def __init__(self) -> None:
        self.geometry: dict[Node, tuple[Any, ...]] = {}

    def concerns(self, target: Any, args: tuple[Any, ...]) -> bool:
        """Whether a call changes the shape of a tensor from outside.

        Raises Unsupported where it resizes among symbolic sizes or memory from outside, and where
        it gives a tensor other memory.
        """
        name = _name_of(target)
        given = args[0] if args else None
        if name in _MOVING:
            raise Unsupported("tensor storage", name, "it works on the tensor's memory itself")
        if name in _RESIZING and any(map(_has_symbolic_sizes, args)):
            raise Unsupported("tensor storage", name, "it resizes among symbolic sizes")
        if name in _RESIZING and isinstance(given, Node) and _is_of_input(given):
            raise Unsupported("tensor storage", name, "it resizes memory from outside")
        is_given = isinstance(given, Node) and given.op == "placeholder"
        return name in _RESTRIDING and is_given

    def add(self, node: Node, is_possible: bool) -> None:
        """To be called before; raises Unsupported where backends could not deal with it."""
        fake = node.meta["example_value"]
        if not is_possible or fake.requires_grad:
            raise Unsupported(
                "tensor storage", node.name, "the shape of a tensor from outside changes"
            )
        geometry = (tuple(fake.shape), fake.stride(), fake.storage_offset())
        self.geometry.setdefault(node, geometry)

    def restore(self) -> None:
        """The fake inputs as at entry: a graph is compiled for these."""
        for node, geometry in self.geometry.items():
            fake = node.meta["example_value"]
            with torch.autograd._unsafe_preserve_version_counter(fake):
                fake.as_strided_(*geometry)


def _name_of(target: Any) -> str:
    """Of a method, function or operator of torch; "" for those of programs, whatever their name."""
    if isinstance(target, str):
        return target
    operator = getattr(target, "_qualified_op_name", None)  # of a packet
    if isinstance(target, torch._ops.OpOverload):
        operator = target.name()
    if operator is not None and not operator.startswith("aten::"):
        return ""
    if isinstance(target, types.FunctionType):
        return ""
    name: str = getattr(target, "__name__", "")
    return name.partition(".")[0]


def _is_of_input(node: Node) -> bool:
    """Whether the memory of its tensor is that of an input of the graph."""
    memory = _memory_of(node)
    inputs = node.graph.find_nodes(op="placeholder")
    return memory is not None and any(_memory_of(given) == memory for given in inputs)


def _memory_of(node: Node) -> int | None:
    value = node.meta.get("example_value")
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    return value.untyped_storage()._cdata


def _has_symbolic_sizes(arg: Any) -> bool:
    value = arg.meta.get("example_value") if isinstance(arg, Node) else arg
    sizes = value.shape if isinstance(value, torch.Tensor) else value
    sizes = sizes if isinstance(sizes, (tuple, list)) else (sizes,)
    return any(isinstance(size, (torch.SymInt, Node)) for size in sizes)


def memory_leaves(
    source: Source, value: Any, is_mutated: bool
) -> list[tuple[Source, Any, bool]]:
    """A tensor, or those that it wraps, each as (source, tensor, is it written to)."""
    if not is_traceable_wrapper_subclass(value):
        return [(source, value, is_mutated)]
    parts = ((AttrSource(source, name), part) for name, part in wrapped_tensors(value))
    return [leaf for part in parts for leaf in memory_leaves(*part, is_mutated)]
