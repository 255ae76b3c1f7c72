"""Compiled forward and backward graphs joined by a node of autograd of our own.

AOTAutograd's run-time wrappers are an `autograd.Function` in Python around the two graphs: some
20 us a step. Most graphs need little of that: their inputs and outputs are plain tensors, they
write to nothing that autograd knows of, and return no views of inputs. For these
`_C.DifferentiableGraph` (csrc/differentiable.cpp) runs the forward plan, saves what the backward
graph reads, and gives the outputs their history, in C++. `Joined` finds out whether a graph is one
of them and describes it; every other graph, and every call that is not ordinary, goes through
AOTAutograd's callable as before.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx
from torch._guards import TracingContext, tracing
from torch.fx import Node
from torch.utils._pytree import tree_leaves

from minidynamo import _C
from minidynamo.inductor.eager_saves import Watched, watched
from minidynamo.inductor.gradients import WRITTEN, PartialBackward
from minidynamo.inductor.passes.simplify import may_share_memory
from minidynamo.inductor.replay import Replay, autocast_states, can_replay

PLAIN_OUTPUTS = ("non_alias", "unsafe_view_alias")
# Of AOTAutograd's metadata: what has to be empty, zero or None.
ABSENT = (
    "mutated_inp_runtime_indices",
    "num_outputs_aliased",
    "num_intermediate_bases",
    "tokens",
    "num_backward_tokens",
    "num_graphsafe_rng_states",
    "is_rng_op_functionalized",
    "grad_enabled_mutation",
    "indices_of_inputs_that_requires_grad_with_mutations_in_bw",
    "num_tensors_saved_with_no_vc_check",
    "num_opaque_objects_saved_for_bw",
)
Compiler = Callable[[torch.fx.GraphModule, Sequence[Any]], Any]


class Boxed:
    """A compiled graph by AOTAutograd's calling convention: one list of inputs, which the call may
    empty.
    """

    _boxed_call = True

    def __init__(self, compiled: Callable[..., Any]) -> None:
        boxed = getattr(compiled, "boxed", None)
        self.compiled = compiled
        self.call = boxed if boxed is not None else (lambda inputs: compiled(*inputs))

    def __call__(self, inputs: list[Any]) -> Any:
        return self.call(inputs)


class Joined:
    """One graph's forward and backward, as they become known while AOTAutograd compiles it.

    compile_backward: makes a callable (of one list) of the backward graph. gm: the graph itself.
    """

    def __init__(self, compile_backward: Compiler, gm: torch.fx.GraphModule) -> None:
        self._compile_backward = compile_backward
        self._replayed: torch.fx.GraphModule | None = gm
        self._autocast = autocast_states()
        self._replay: Replay | None = None
        self._spec: dict[str, Any] | None = None
        self._module: torch.fx.GraphModule | None = None
        self._context: TracingContext | None = None
        self._forward: Any = None
        self._backward: Callable[[list[Any]], Any] | None = None
        self._partial: PartialBackward | None = None
        self._graph: weakref.ref[Any] | None = None
        self._recorder: Any = None

    def record_in(
        self,
        recorder: Any,
    ) -> None:
        """recorder: a `stored_steps.Recorder`, told when both graphs are plans."""
        self._recorder = recorder if recorder.take(self) else None

    def note_parts(
        self,
        forward: torch.fx.GraphModule,
        backward: torch.fx.GraphModule,
        inputs: Sequence[Any],
        kept: Sequence[int],
    ) -> None:
        """To be called when the forward graph is about to be compiled. backward: as it was cut.

        kept: positions of inputs that are written to and whose version counters stay.
        """
        self._context = TracingContext.try_get()
        if self._context is None:
            return
        metadata = self._context.fw_metadata
        if _is_plain(metadata, forward, inputs):
            self._spec = _describe(metadata, forward, backward)
        if self._spec is not None:
            self._spec["kept"] = list(kept)
            self._spec["watched"] = self._watched(forward)
            self._module = backward
            if self._replayed is not None and can_replay(metadata, forward):
                positions = self._spec["differentiable"], self._spec["gradients"]
                self._replay = Replay(self._replayed, self._autocast, *positions)
        self._replayed = None

    def _watched(
        self,
        forward: torch.fx.GraphModule,
    ) -> list[Watched]:
        """What eager saves that the backward graph does not read, but for what this graph itself
        writes to.
        """
        spec, gm = self._spec, self._replayed
        if spec is None or gm is None or gm.meta.get(WRITTEN) is None:
            return []
        (output,) = forward.graph.find_nodes(op="output")
        results, n_outputs = output.args[0], spec["outputs"]
        known = {(kind, i) for kind, _, i in spec["arguments"]}
        known.update((kind.replace("result", "output"), i) for _, kind, i in spec["shared"])
        saved = set(results[n_outputs:])
        known.update(
            ("output", i) for i, node in enumerate(results[:n_outputs]) if node in saved
        )
        written = (*gm.meta[WRITTEN], *spec["kept"], *spec["moved"])
        known.update(("input", i) for i in written)
        return watched(gm, spec["differentiable"], known)

    def note_forward(self, compiled: Callable[..., Any]) -> None:
        """The forward graph, compiled."""
        if isinstance(compiled, Boxed) and isinstance(compiled.compiled, _C.PlanExecutor):
            self._forward = compiled.compiled

    def note_backward(self, graph: torch.fx.GraphModule, compiled: Callable[..., Any]) -> None:
        """The backward graph, and its callable of one list."""
        self._module = None
        self._partial = PartialBackward.of_graph(graph, compiled)
        self._backward = compiled
        if (
            self._spec is not None
            and self._recorder is not None
            and isinstance(compiled, Boxed)
        ):
            plans, replays = (self._forward, compiled.compiled), self._replay is not None
            self._recorder.save(self._spec, plans, self._partial, replays)
        self._recorder = None
        self._arm()

    @property
    def backward(self) -> Callable[[list[Any]], Any] | None:
        """The backward graph's callable, once it is compiled."""
        return self._backward

    @property
    def partial(self) -> PartialBackward | None:
        """The same for tangents some of which are None."""
        return self._partial

    def passes(self) -> tuple[Callable[[list[Any]], Any], PartialBackward]:
        """The compiled backward graph for all tangents, and for some."""
        self._compile()
        assert self._backward is not None and self._partial is not None
        return self._backward, self._partial

    def attach(self, wrapped: Callable[..., Any]) -> Callable[..., Any]:
        """The callable of the whole graph. wrapped: AOTAutograd's."""
        if self._spec is None or self._forward is None:
            self._module = None
            return wrapped
        graph = _C.DifferentiableGraph(wrapped)
        self._graph = weakref.ref(graph)
        self._arm()
        return graph

    def _arm(self) -> None:
        graph = None if self._graph is None else self._graph()
        if graph is None or self._spec is None:
            return
        if self._backward is not None:
            backward = self._backward
            backward = backward.call if isinstance(backward, Boxed) else backward
            graph.arm(self._spec, self._forward, backward, self._partial, self._replay)
        else:
            first = self._first, self._first_partial
            graph.arm(self._spec, self._forward, *first, self._replay)

    def _first(self, inputs: list[Any]) -> Any:
        return self.passes()[0](inputs)

    def _first_partial(self, inputs: list[Any]) -> Any:
        return self.passes()[1](inputs)

    def _compile(self) -> None:
        """Compiles the backward graph, when it is first called."""
        module = self._module
        if module is None:
            return
        values = [node.meta["val"] for node in module.graph.find_nodes(op="placeholder")]
        # AOTAutograd may yet ask for the same graph, and gets a copy then, too.
        module = copy.deepcopy(module)
        with tracing(self._context), torch.no_grad(), torch._C._DisableAutocast():
            self._compile_backward(module, values)


def _is_plain(metadata: Any, forward: torch.fx.GraphModule, inputs: Sequence[Any]) -> bool:
    given = forward.graph.find_nodes(op="placeholder")
    tensors = [id(value) for value in inputs if isinstance(value, torch.Tensor)]
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True) or ()
    if any(isinstance(hook, torch.fx.GraphModule) for hook in hooks):
        return False  # they are part of both graphs, and not to be called at run time
    is_known = len(inputs) == len(given) == len(metadata.input_info)
    if not is_known or len(set(tensors)) < len(tensors):
        return False
    if any(getattr(metadata, name, None) for name in ABSENT):
        return False
    if any(info.output_type.name not in PLAIN_OUTPUTS for info in metadata.output_info):
        return False
    for info in metadata.output_info:
        if (
            getattr(info, "requires_grad_for_backward", info.requires_grad)
            != info.requires_grad
        ):
            return False
    metas = [metadata.subclass_inp_meta, metadata.subclass_fw_graph_out_meta]
    metas.append(metadata.subclass_tangent_meta)
    if any(type(meta).__name__ != "PlainTensorMeta" for group in metas for meta in group):
        return False
    # Of operators that are not torch's own AOTAutograd checks the results.
    spaces = {getattr(node.target, "namespace", "") for node in forward.graph.nodes}
    return spaces <= {"", "aten", "prims", "minidynamo"}


def _describe(
    metadata: Any, forward: torch.fx.GraphModule, backward: torch.fx.GraphModule
) -> dict[str, Any] | None:
    """How the two graphs are tied, or None where the names do not tell."""
    given = [node.name for node in forward.graph.find_nodes(op="placeholder")]
    (output,) = forward.graph.find_nodes(op="output")
    results = list(output.args[0])
    n_outputs = len(metadata.output_info)
    position = {name: ("input", i) for i, name in enumerate(given)}
    for i, node in enumerate(results[n_outputs:], n_outputs):
        position.setdefault(node.name, ("result", i))
    outputs = list(enumerate(metadata.output_info))
    differentiable = [i for i, info in outputs if info.requires_grad]
    arguments = []
    for node in backward.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        if node.name.startswith("tangents_"):
            arguments.append(("tangent", False, int(node.name[len("tangents_") :]) - 1))
        elif node.name in position:
            kind, index = position[node.name]
            arguments.append((kind, not isinstance(value, torch.Tensor), index))
        else:
            return None
    tangents = [_tangent(meta.memory_format) for meta in metadata.subclass_tangent_meta]
    (output,) = backward.graph.find_nodes(op="output")
    gradients = tree_leaves(output.args)
    if len(tangents) != len(differentiable) or len(gradients) != len(given) or None in tangents:
        return None
    return {
        "inputs": len(given),
        "outputs": n_outputs,
        "results": len(results),
        "differentiable": differentiable,
        "gradients": [i for i, value in enumerate(gradients) if isinstance(value, Node)],
        "arguments": arguments,
        "tangents": tangents,
        "shared": _shared(results, n_outputs, given),
        "moved": list(metadata.mutated_graph_handled_indices_seen_by_autograd),
        "deterministic": metadata.deterministic is not False,
    }


def _tangent(
    expected: Any,
) -> Any:
    """The memory that the backward graph expects of a tangent: a format, or size and strides."""
    if expected is None:
        return None
    if expected.memory_format is not None:
        return str(expected.memory_format).removeprefix("torch.")
    return list(expected.size), list(expected.stride)


def _shared(
    results: Sequence[Any], n_outputs: int, given: Sequence[str]
) -> list[tuple[int, str, int]]:
    """The saved results that are views: of which input or output."""
    roots = {_root(node): ("result", i) for i, node in enumerate(results[:n_outputs])}
    roots.update({name: ("input", i) for i, name in enumerate(given)})
    found = []
    for i, node in enumerate(results[n_outputs:], n_outputs):
        if isinstance(node.meta.get("val"), torch.Tensor) and node.op != "placeholder":
            kind, index = roots.get(_root(node), ("", 0))
            if kind == "input" or (kind and results[index] is not node):
                found.append((i, kind, index))
    return found


def _root(
    node: Any,
) -> str:
    """The name of the node whose memory a node's value may share."""
    while isinstance(node, Node) and node.op == "call_function" and may_share_memory(node):
        if not node.all_input_nodes:
            break
        node = node.all_input_nodes[0]
    return node.name if isinstance(node, Node) else ""
