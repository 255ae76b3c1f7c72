"""Calls of functions that `assume_constant_result` marks: made while tracing, once and for all.

Tensors among the arguments are those of this call. What the graph computes of its inputs is
computed for the call; the user says that the result does not depend on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch.fx.node import Node, map_arg
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ..out_tensors import version_of
from ..output_graph import example_value
from .base import ObservedException, VariableTracker, unsupported
from .tensor import TensorVariable

if TYPE_CHECKING:
    from ..output_graph import OutputGraph
    from ..symbolic_convert import Translator


def call_once(
    tx: Translator,
    fn: Any,
    args: list[VariableTracker],
    kwargs: dict[str, VariableTracker],
) -> VariableTracker:
    """What `fn` gives now, for good; objects among the arguments are known by identity."""
    values = [_real(tx, fn, arg) for arg in args]
    named = {name: _real(tx, fn, arg) for name, arg in kwargs.items()}
    try:
        result = fn(*values, **named)
    except Exception as error:
        raise ObservedException(tx.wrap_exception(error)) from error
    _check_result(fn, result, [*values, *named.values()])
    held = tx.wrap_held(result, f"{fn.__qualname__}(...)").realize()
    if isinstance(held, TensorVariable):
        # Eager may give a new one each time: a write to it must not last.
        row = (tx.last_step(), held.fake, held.fake._version)  # type: ignore[attr-defined]
        tx.output.side_effects.choices.append(row)
    return held


def _refuse(fn: Any, what: str, why: str) -> NoReturn:
    unsupported("argument of a constant function", f"{fn.__qualname__}: {what}", why)


def _check_result(fn: Any, result: Any, arguments: list[Any]) -> None:
    """The result outlives the call: tensors that were given to it would be those of later calls,
    and gradients could flow once only.
    """
    given = {_memory_of(value) for value in arguments if isinstance(value, torch.Tensor)}
    for value in pytree.tree_leaves(result) if given else ():
        is_tensor = isinstance(value, torch.Tensor)
        if is_tensor and (_memory_of(value) in given or value.grad_fn is not None):
            why = "it has the memory of an argument, or is part of a graph of autograd"
            _refuse(fn, "its result", why)


def _memory_of(tensor: torch.Tensor) -> int:
    if tensor.layout is not torch.strided or is_traceable_wrapper_subclass(tensor):
        return id(tensor)
    return tensor.untyped_storage()._cdata


def _real(tx: Translator, fn: Any, argument: VariableTracker) -> Any:
    if argument.is_python_constant():
        return argument.as_python_constant()
    if isinstance(argument, TensorVariable):
        return _tensor_of_this_call(tx.output, fn, argument)
    effects = tx.output.side_effects
    real = effects.real_of(argument)
    if real is None or argument.source is None or not effects.is_empty():
        why = "only what exists before the graph, and is not changed by it, can be given"
        _refuse(fn, repr(argument), why)
    tx.guard(argument.source, "ID_IS", real)
    return real


def _tensor_of_this_call(
    output: OutputGraph, fn: Any, argument: TensorVariable
) -> torch.Tensor:
    inputs = {item.node: item for item in output.inputs}
    nodes = _needed(argument.node)
    versions = {0, *(item.version for item in inputs.values())}
    is_plain = output.body is None and not output.transform_levels
    if not is_plain or any(item.is_mutated for item in inputs.values()):
        _refuse(
            fn, repr(argument), "a tensor in a body or a transform, or one that is written to"
        )
    values: dict[Node, Any] = {}
    with torch.no_grad(), torch.random.fork_rng():
        for node in nodes:
            example = example_value(node)
            if node in inputs:
                values[node] = inputs[node].value
            elif node.op not in ("call_function", "call_method"):
                _refuse(fn, repr(argument), "it is no tensor that the graph computes")
            elif isinstance(example, torch.Tensor) and version_of(example) not in versions:
                _refuse(fn, repr(argument), "it is computed of one that is written to")
            else:
                values[node] = _run(fn, node, values)
    value = values[argument.node]
    if (type(value) is torch.Tensor) and value.dtype != argument.fake.dtype:
        _refuse(fn, repr(argument), "it is computed in a state of torch that the graph sets")
    return value  # type: ignore[no-any-return]


def _needed(node: Node) -> list[Node]:
    """A node and what it is computed of, in the graph's order."""
    needed, ahead = {node}, [node]
    while ahead:
        new = [n for n in ahead.pop().all_input_nodes if n not in needed]
        needed.update(new)
        ahead += new
    return [n for n in node.graph.nodes if n in needed]


def _run(fn: Any, node: Node, values: dict[Node, Any]) -> Any:
    args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
    numbers = (torch.SymInt, torch.SymFloat, torch.SymBool)
    hints = [v.node.hint for v in pytree.tree_leaves((args, kwargs)) if isinstance(v, numbers)]
    if None in hints:
        _refuse(fn, node.name, "it is computed of numbers that depend on data")
    args, kwargs = pytree.tree_map_only(numbers, lambda v: v.node.hint, (args, kwargs))
    if node.op == "call_method":
        return getattr(args[0], node.target)(*args[1:], **kwargs)
    return node.target(*args, **kwargs)  # type: ignore[operator]
