"""Graphs that take or give tensors which wrap others, where autograd gives them what they were not
compiled for.

AOTAutograd takes such tensors apart, and so has to know the class of every tangent beforehand: it
takes that of the output. A loss may give another one, or none at all for an output that it does not
use, and the compiled backward graph cannot be called. Then, and where the gradients are to be
differentiated themselves, the graph runs once more, operator by operator, and autograd
differentiates that; calls after one whose tangents were others run operator by operator altogether.

AOTAutograd makes an `autograd.Function` for each graph. Its `backward` is replaced by one that
looks at the tangents first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from minidynamo.inductor import metrics
from minidynamo.inductor.replay import Replay, autocast_states, code_of

# Outputs that have a tangent, and those that are made anew from an input.
_DIFFERENTIABLE = ("non_alias", "unsafe_view_alias", "custom_function_view")
_OF_INPUTS = ("alias_of_input", "is_input")
log = logging.getLogger("minidynamo.inductor")


class WrappedGraph:
    """The callable of a graph. compiled: AOTAutograd's; gm: the graph, of torch's functions; draws:
    whether it gives other results when it runs again; writes: it writes to inputs, or may act.
    """

    def __init__(
        self,
        compiled: Callable[..., Any],
        gm: torch.fx.GraphModule,
        *,
        draws: bool,
        writes: bool,
    ) -> None:
        self._compiled = compiled
        self._run = code_of(gm)
        self._draws = draws
        self._writes = writes
        self._autocast = autocast_states()
        self._tangents: _Tangents | None = None
        self._reason = ""

    def __call__(self, *args: Any) -> Any:
        if self._reason:
            return self._run(*args)
        results = self._compiled(*args)
        node = _node_of(results, args)
        if node is None:
            return results
        if self._tangents is None:
            self._tangents = _Tangents(node, args)
            reason = self._tangents.refusal(node, draws=self._draws)
            self._refuse(reason)
            if reason:
                return results if self._writes else self._run(*args)
            node._forward_cls.backward = staticmethod(self._backward(node._forward_cls))
        node.set_materialize_grads(False)
        node.inputs_of_call = _Inputs(args)
        return results

    def _backward(self, function: Any) -> Callable[..., Any]:
        """What autograd is to call with the node and a tangent, or None, for each of its outputs
        (newer torch: with a list of these). It returns a gradient, or None, for each input.
        """
        compiled = function.backward
        is_boxed = getattr(function, "boxed_grads_call", False)

        def backward(ctx: Any, *arguments: Any) -> Any:
            places, inputs = self._tangents, ctx.inputs_of_call
            assert places is not None
            tangents = arguments[0] if is_boxed else arguments
            given = [tangents[i] for i in places.outputs]
            is_other = not places.are_as_expected(given)
            has_history = torch.is_grad_enabled() or any(map(_is_batched, given))
            if is_other or has_history:
                return self._again(inputs.checked(), given, is_other=is_other)
            if not torch._C._autograd._get_current_graph_task_keep_graph():
                inputs.values = None
            return compiled(ctx, *arguments)

        return backward

    def _refuse(self, reason: str) -> None:
        """From now on the graph runs operator by operator, if there is a reason."""
        if reason and not self._reason:
            metrics.increment("uncompiled_graphs")
            log.info("a graph runs operator by operator: %s", reason)
            self._reason = reason

    def _again(self, args: Sequence[Any], tangents: Sequence[Any], *, is_other: bool) -> Any:
        """The gradients. is_other: for tangents that the compiled graph does not take."""
        places = self._tangents
        assert places is not None
        if is_other:
            self._refuse("gradients of its outputs are of another class or missing")
        if self._draws:
            raise RuntimeError(
                "gradients of a compiled graph that draws random numbers, writes to its inputs or "
                "calls operators of other libraries are of another class than its outputs, are "
                "missing, or are to be differentiated: it cannot run again for them"
            )
        replay = Replay(self._run, self._autocast, places.outputs, places.inputs)
        found = dict(zip(places.inputs, replay(list(args), list(tangents)), strict=True))
        return tuple(map(found.get, range(len(args))))


class _Tangents:
    """What AOTAutograd expects of a graph's tangents. outputs: the positions of those that have
    one; inputs: of the arguments that are tensors; may_be_none: its backward graph is pruned for
    those that are missing.
    """

    def __init__(self, node: Any, args: Sequence[Any]) -> None:
        function = node._forward_cls
        metadata = function.metadata
        self._infos = metadata.output_info
        self._is_functional = not (
            metadata.num_mutated_inp_runtime_indices or metadata.num_intermediate_bases
        )
        self._expected = metadata.subclass_tangent_meta
        self.outputs = [
            i
            for i, info in enumerate(self._infos)
            if info.output_type.name in _DIFFERENTIABLE
            and issubclass(info.raw_type, torch.Tensor)
            and info.requires_grad
        ]
        self.inputs = [i for i, value in enumerate(args) if isinstance(value, torch.Tensor)]
        apart = function.maybe_subclass_metadata
        grads = () if apart is None else apart.grad_input_metas or ()
        self.may_be_none = not any(map(_is_wrapper, (*self._expected, *grads)))

    def refusal(self, node: Any, *, draws: bool) -> str:
        """Why a backward pass would not know what it is given, or ""."""
        kinds = [info.output_type.name for info in self._infos if info.requires_grad]
        if not self._is_functional or any(
            kind not in (*_DIFFERENTIABLE, *_OF_INPUTS) for kind in kinds
        ):
            return (
                "it writes to tensors that wrap others, or gives views of what it makes of them"
            )
        if len(self._expected) != len(self.outputs):
            return "it has other tangents than outputs"
        if len(node._input_metadata) != len(self._infos):
            return "its node of autograd has other outputs"
        if len(node.next_functions) != len(self.inputs):
            return "its node of autograd has other inputs"
        if draws and len(self.outputs) > 1 and not self.may_be_none:
            return (
                "it draws random numbers, and gradients of some of its outputs may be missing"
            )
        return ""

    def are_as_expected(self, tangents: Sequence[Any]) -> bool:
        pairs = zip(tangents, self._expected, strict=True)
        return all(
            self.may_be_none if value is None else _is_of(value, meta) for value, meta in pairs
        )


class _Inputs:
    """Those of one call, for its backward pass. values: None when they were freed."""

    def __init__(self, values: Sequence[Any]) -> None:
        self.values: Sequence[Any] | None = values
        self._versions = list(map(_version, values))

    def checked(self) -> Sequence[Any]:
        """The values, if they are as they were."""
        if self.values is None:
            raise RuntimeError(
                "Trying to backward through the graph a second time (or directly access saved "
                "tensors after they have already been freed). Specify retain_graph=True if you "
                "need to backward through the graph a second time"
            )
        if list(map(_version, self.values)) != self._versions:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an "
                "inplace operation: an input of a compiled graph, which has to run again for these "
                "gradients"
            )
        return self.values


def _version(value: Any) -> int:
    is_counted = isinstance(value, torch.Tensor) and not value.is_inference()
    return value._version if is_counted else 0


def _is_batched(tangent: Any) -> bool:
    """Whether it is one of a vectorized pass."""
    is_tensor = isinstance(tangent, torch.Tensor)
    return is_tensor and torch._C._functorch.is_batchedtensor(tangent)


def _node_of(results: Sequence[Any], args: Sequence[Any]) -> Any:
    """AOTAutograd's node among the histories of the results, if there is one."""
    given = [value.grad_fn for value in args if isinstance(value, torch.Tensor)]
    for value in results:
        node = value.grad_fn if isinstance(value, torch.Tensor) else None
        function = getattr(node, "_forward_cls", None)
        if getattr(function, "metadata", None) is not None and node not in given:
            return node
    return None


def _is_wrapper(meta: Any) -> bool:
    """Whether AOTAutograd's description is of a tensor that wraps others."""
    return hasattr(meta, "original_subclass_type")


def _is_of(tangent: torch.Tensor, meta: Any) -> bool:
    """Whether AOTAutograd takes a tangent for what it was traced with, or can make that of it."""
    if hasattr(tangent, "__coerce_same_metadata_as_tangent__"):
        return True
    if not _is_wrapper(meta):
        return not is_traceable_wrapper_subclass(tangent)
    if type(tangent) is not meta.original_subclass_type:
        return False
    names, context = tangent.__tensor_flatten__()  # type: ignore[attr-defined]
    return bool(context == meta.meta) and all(
        _is_of(getattr(tangent, name), meta.attrs[name])
        for name in names
        if isinstance(getattr(tangent, name), torch.Tensor)
    )
