"""A differentiable graph's two compiled halves, called through an autograd function of our own.

AOTAutograd wraps them in what any program may need: writes and views to be replayed, subclasses,
states of generators. That takes 20 microseconds for a pair of calls. Most graphs need none of it:

    call = DirectCall(inputs)
    call.begin(forward, metadata, keeps_none)  # when the forward half is compiled
    backward = call.complete(graph, backward)  # when the backward half is
    function = call.attach(wrapped)  # takes the short way where it can, the whole wrapper else

The first call goes through `wrapped`, which checks what operators of the user's do with memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx
from torch.utils._pytree import tree_leaves

Boxed = Callable[[list[Any]], Any]
_NO_DOUBLE_BACKWARD = (
    "torch.compile with aot_autograd does not currently support double backward: "
    "the gradients of a compiled graph have no gradients themselves"
)
_NOT_DETERMINISTIC = (
    "This compiled backward function is being run with torch.use_deterministic_algorithms(True), "
    "but it was previously generated during the forward function while "
    "torch.use_deterministic_algorithms(False) was set."
)
_IN_TRANSFORM = (
    "It looks like you're trying to call a compiled backward function within vmap/grad/vjp, which "
    "isn't supported. Try wrapping vmap inside compile(), or skip compiling the backward function."
)


class DirectCall:
    """One graph's. Flags of the process at its making count as those of its compilation."""

    def __init__(self, inputs: Sequence[Any]) -> None:
        self._forward: Boxed | None = None
        self._metadata: Any = None
        self._keeps_none = False
        self._count = len(inputs)
        self._made: type[torch.autograd.Function] | None = None
        # Hooks that are graphs are traced into both halves; autocast is off in their calls.
        hooks = torch._C._autograd._top_saved_tensors_default_hooks(True) or ()
        is_inlined = any(isinstance(hook, torch.fx.GraphModule) for hook in hooks)
        self._is_possible = not is_inlined and not torch._C._is_any_autocast_enabled()

    def begin(self, forward: Boxed, metadata: Any, keeps_none: bool) -> None:
        """The forward half is compiled.

        metadata: torch's of inputs and outputs; keeps_none: whether the backward half takes None
        for tangents of results that are not used.
        """
        self._forward, self._metadata, self._keeps_none = forward, metadata, keeps_none

    def complete(self, graph: torch.fx.GraphModule, backward: Boxed) -> Boxed:
        """The backward half is `graph`, compiled."""
        if self._forward is not None and self._is_possible and self._is_plain(graph):
            self._made = _function(self._forward, backward, self._metadata, self._keeps_none)
        return backward

    def _is_plain(self, graph: torch.fx.GraphModule) -> bool:
        """Whether outputs are new tensors and all that the halves pass on are tensors and sizes."""
        meta = self._metadata
        if meta is None:
            return False
        kinds = [*meta.subclass_inp_meta, *meta.subclass_fw_graph_out_meta]
        kinds += meta.subclass_tangent_meta
        unusual = (
            meta.tokens,
            meta.num_intermediate_bases,
            meta.num_backward_tokens,
            meta.num_graphsafe_rng_states,
            meta.is_rng_op_functionalized,
            meta.num_tensors_saved_with_no_vc_check,
            meta.num_opaque_objects_saved_for_bw,
            meta.indices_of_inputs_that_requires_grad_with_mutations_in_bw,
            meta.grad_enabled_mutation is not None,
            len(meta.input_info) != self._count,
            any(info.mutates_data or info.mutates_metadata for info in meta.input_info),
            not all(map(_is_new, meta.output_info)),
            any(type(kind).__name__ != "PlainTensorMeta" for kind in kinds),
        )
        if any(unusual):
            return False
        (output,) = graph.graph.find_nodes(op="output")
        grads = tree_leaves(output.args)
        names = [node.name for node in graph.graph.find_nodes(op="placeholder")]
        # Others are detached from the graph.
        connected = all(
            grad is not None or not info.requires_grad
            for grad, info in zip(grads, meta.input_info, strict=False)
        )
        tangents = sum("tangents" in name for name in names)
        counted = len(_differentiated(meta)) == len(meta.subclass_tangent_meta) == tangents
        return connected and counted and len(grads) == self._count

    def attach(self, wrapped: Callable[..., Any]) -> Callable[..., Any]:
        """The callable for both ways."""
        if self._forward is None or not self._is_possible:
            return wrapped

        function: type[torch.autograd.Function] | None = None

        def call(*args: Any) -> Any:
            nonlocal function
            if function is None or not torch.is_grad_enabled():
                results = wrapped(*args)
                function = self._made
                return results
            return function.apply(*args)

        return call


def _is_new(info: Any) -> bool:
    is_tensor = isinstance(info.raw_type, type) and issubclass(info.raw_type, torch.Tensor)
    return is_tensor and info.output_type.name in ("non_alias", "unsafe_view_alias")


def _differentiated(meta: Any) -> list[int]:
    """The outputs whose tangents the backward half takes."""
    return [
        position
        for position, info in enumerate(meta.output_info)
        if getattr(info, "requires_grad_for_backward", info.requires_grad)
    ]


def _as_traced(tangent: Any, meta: Any) -> Any:
    """A tangent in the layout that the backward half was compiled for."""
    if tangent is None:
        return None
    if type(tangent) is not torch.Tensor:
        from torch._functorch._aot_autograd.runtime_wrappers import AOTDispatchAutograd

        return AOTDispatchAutograd.process_runtime_tangent(tangent, meta)[0]
    layout = meta.memory_format
    if layout.memory_format is not None:
        return tangent.contiguous(memory_format=layout.memory_format)
    if tangent.shape == layout.size and tangent.stride() == layout.stride:
        return tangent
    laid_out = torch.empty_strided(
        layout.size, layout.stride, dtype=tangent.dtype, device=tangent.device
    )
    return laid_out.copy_(tangent)


class _Refusing(torch.autograd.Function):
    """Gradients that are connected with what they were computed from, but not differentiable."""

    @staticmethod
    def forward(ctx: Any, _anchor: Any, compute: Callable[[], Any], *_: Any) -> Any:
        return compute()

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise RuntimeError(_NO_DOUBLE_BACKWARD)


def _function(
    compiled_forward: Boxed,
    compiled_backward: Boxed,
    meta: Any,
    keeps_none: bool,
) -> type[torch.autograd.Function]:
    results = meta.num_outputs
    symbols = meta.num_symints_saved_for_bw
    fresh = list(meta.unsafe_view_out_indices)
    constant = [i for i, info in enumerate(meta.output_info) if not info.requires_grad]
    given = list(zip(_differentiated(meta), meta.subclass_tangent_meta, strict=True))
    unsafe_view = torch.ops.aten._unsafe_view.default

    class CompiledFunction(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            values = compiled_forward([*args])
            end = len(values) - symbols
            # A view that is saved would keep its base and what that was made by.
            saved = values[results:end]
            ctx.save_for_backward(*[v.detach() if v._is_view() else v for v in saved])
            ctx.symbols = values[end:]
            returned = [*values[:results]]
            for i in fresh:
                returned[i] = unsafe_view(returned[i], returned[i].shape)
            if constant:
                ctx.mark_non_differentiable(*[returned[i] for i in constant])
            ctx._materialize_non_diff_grads = False
            if keeps_none:
                ctx.set_materialize_grads(False)
            return tuple(returned)

        @staticmethod
        def backward(ctx: Any, *tangents: Any) -> Any:
            if torch._C._functorch.peek_interpreter_stack() is not None:
                raise RuntimeError(_IN_TRANSFORM)
            if not meta.deterministic and torch.are_deterministic_algorithms_enabled():
                raise RuntimeError(_NOT_DETERMINISTIC)
            values = [*ctx.symbols, *ctx.saved_tensors]
            values += [_as_traced(tangents[i], layout) for i, layout in given]
            ctx.maybe_clear_saved_tensors()
            if not torch.is_grad_enabled():
                return tuple(compiled_backward(values))
            anchor = torch.empty(0, requires_grad=True)
            return _Refusing.apply(anchor, lambda: tuple(compiled_backward(values)), *values)

    return CompiledFunction
