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

import weakref
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import torch
import torch.fx
from torch._C._autograd import CreationMeta as _Creation
from torch._C._autograd import _get_creation_meta as _creation
from torch._guards import TracingContext, tracing
from torch.fx import Node
from torch.utils._pytree import tree_leaves

from minidynamo import _C
from minidynamo.inductor import metrics
from minidynamo.inductor.eager_saves import together, watched
from minidynamo.inductor.gradients import WRITTEN
from minidynamo.inductor.overlaps import storage_of
from minidynamo.inductor.partial_backward import (
    MOST_COMPILED,
    BackwardParts,
    Filling,
    Missing,
    Needs,
    Part,
    Taking,
    has_torchs_gradients,
    prune,
)
from minidynamo.inductor.passes.simplify import may_share_memory
from minidynamo.inductor.replay import Replay, autocast_states, can_replay, code_of, is_of_torch

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

    compile_backward: makes a callable (of one list) of a backward graph. gm: the graph itself.
    """

    def __init__(self, compile_backward: Compiler, gm: torch.fx.GraphModule) -> None:
        self._compile_backward = compile_backward
        self._replayed: torch.fx.GraphModule | None = gm
        self._is_linear = has_torchs_gradients(gm)
        self._autocast = autocast_states()
        self._replay: Replay | None = None
        self._spec: dict[str, Any] | None = None
        self._module: torch.fx.GraphModule | None = None
        self._is_copy = False
        self._needs: Needs | None = None
        self._context: TracingContext | None = None
        self._forward: Any = None
        self._backward: Callable[[list[Any]], Any] | None = None
        self._n_compiled = 0
        self._graph: weakref.ref[Any] | None = None
        self._recorder: Any = None
        self.parts = BackwardParts((), self.make_part)

    def record_in(
        self,
        recorder: Any,
    ) -> None:
        """recorder: a `stored_steps.Recorder`, told of what becomes a plan."""
        self._recorder = recorder if recorder.take(self) else None

    def note_backward(
        self,
        backward: torch.fx.GraphModule,
        *,
        is_copy: bool,
    ) -> None:
        """The backward graph as it was cut, when the forward graph is about to be compiled, or the
        copy that AOTAutograd has made to be compiled; the latter is of no interest where a node of
        our own joins the two.
        """
        if self._spec is not None:
            return
        self._context = TracingContext.try_get()
        self._module, self._is_copy = backward, is_copy
        self._needs = Needs(backward.graph, self._is_linear)
        self.parts = BackwardParts(self._needs.tangents, self.make_part)

    def note_forward(
        self,
        forward: torch.fx.GraphModule,
        inputs: Sequence[Any],
        kept: Sequence[int],
    ) -> None:
        """The same, where a node of our own may join the two.

        kept: positions of inputs that are written to and whose version counters stay.
        """
        if self._context is None or self._needs is None:
            return
        metadata = self._context.fw_metadata
        if _is_plain(metadata, forward, inputs):
            self._spec = _describe(metadata, forward, self._needs)
        if self._spec is not None:
            self._spec["kept"] = list(kept)
            self._spec["parts"] = _parts(self._replayed, self._spec["differentiable"])
            self._watch(forward)
            if self._replayed is not None and can_replay(metadata, forward):
                positions = self._spec["differentiable"], self._spec["gradients"]
                self._replay = Replay(code_of(self._replayed), self._autocast, *positions)
        self._replayed = None

    def _watch(
        self,
        forward: torch.fx.GraphModule,
    ) -> None:
        """What eager saves that the backward graph does not read, but for what this graph itself
        writes to; and which outputs share what eager saves.
        """
        spec, gm = self._spec, self._replayed
        assert spec is not None
        if gm is None or gm.meta.get(WRITTEN) is None:
            tangents = list(range(len(spec["tangents"])))
            spec.update(watched=[], together=[tangents for _ in tangents])
            return
        (output,) = forward.graph.find_nodes(op="output")
        results, n_outputs = output.args[0], spec["outputs"]
        known = {(kind, i) for kind, _, i, _ in spec["arguments"]}
        known.update((kind.replace("result", "output"), i) for _, kind, i in spec["shared"])
        saved = set(results[n_outputs:])
        known.update(
            ("output", i) for i, node in enumerate(results[:n_outputs]) if node in saved
        )
        written = (*gm.meta[WRITTEN], *spec["kept"], *spec["moved"])
        known.update(("input", i) for i in written)
        spec["watched"] = watched(gm, spec["differentiable"], known)
        spec["together"] = together(gm, spec["differentiable"])

    def note_compiled(self, compiled: Callable[..., Any]) -> None:
        """The forward graph, compiled."""
        if isinstance(compiled, Boxed) and isinstance(compiled.compiled, _C.PlanExecutor):
            self._forward = compiled.compiled

    def whole(self) -> Callable[[list[Any]], Any]:
        """The backward graph for all tangents, compiled."""
        return self.parts.part(frozenset())

    def attach(self, wrapped: Callable[..., Any]) -> Callable[..., Any]:
        """The callable of the whole graph. wrapped: AOTAutograd's."""
        if self._spec is None or self._forward is None:
            return wrapped
        graph = _C.DifferentiableGraph(wrapped)
        self._graph = weakref.ref(graph)
        self._arm()
        return graph

    def _arm(self) -> None:
        graph = None if self._graph is None else self._graph()
        if graph is None or self._spec is None:
            return
        backward = self._backward or self._first
        backward = backward.call if isinstance(backward, Boxed) else backward
        graph.arm(self._spec, self._forward, backward, self.parts, self._replay)

    def _first(self, inputs: list[Any]) -> Any:
        return self.whole()(inputs)

    def make_part(
        self,
        missing: Missing,
    ) -> Part:
        """Compiles the backward graph for some missing tangents (none: the whole graph)."""
        module, needs = self._module, self._needs
        assert module is not None and needs is not None
        if missing and not needs.is_prunable:
            return Filling(self.whole(), needs, missing)
        part, kept = module, None
        if missing:
            part, kept = prune(module, needs, missing)
        elif len(needs.tangents) > 1 or not self._is_copy:
            # AOTAutograd may yet ask for the same graph, or others of its parts are to come.
            part = _copied(module)
        self._n_compiled += 1
        if self._n_compiled > MOST_COMPILED:
            metrics.increment("uncompiled_graphs")
            compiled: Any = Boxed(_C.disabled(part.forward))
        else:
            values = [node.meta["val"] for node in part.graph.find_nodes(op="placeholder")]
            with tracing(self._context), torch.no_grad(), torch._C._DisableAutocast():
                compiled = self._compile_backward(part, values)
        if self._spec is not None and self._recorder is not None:
            self._recorder.save(self._spec, self._forward, self._replay is not None)
            self._recorder.save_part(missing, kept, compiled)
        if kept is not None:
            return Taking(compiled, kept)
        self._backward = compiled
        if len(needs.tangents) < 2:
            self._module = None
        self._arm()
        return compiled  # type: ignore[no-any-return]


def _copied(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A copy with the same constants: AOTAutograd may ask while a mode for fake tensors is on,
    which has no copy of a real one.
    """
    constants = [value for value in vars(module).values() if isinstance(value, torch.Tensor)]
    held = (*constants, *module.parameters(), *module.buffers())
    return deepcopy(module, {id(tensor): tensor for tensor in held})


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
    return is_of_torch(forward)


def _describe(
    metadata: Any, forward: torch.fx.GraphModule, needs: Needs
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
    order = [int(needs.given[i].name.removeprefix("tangents_")) - 1 for i in needs.tangents]
    for place, node in enumerate(needs.given):
        value = node.meta.get("val")
        if node.name.startswith("tangents_"):
            number = int(node.name.removeprefix("tangents_")) - 1
            arguments.append(("tangent", False, number, [number]))
        elif node.name in position:
            kind, index = position[node.name]
            wanted = [order[i] for i in needs.of_position(place)]
            arguments.append((kind, not isinstance(value, torch.Tensor), index, wanted))
        else:
            return None
    tangents = [_tangent(meta.memory_format) for meta in metadata.subclass_tangent_meta]
    gradients = needs.results
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


def _parts(
    gm: torch.fx.GraphModule | None,
    differentiable: Sequence[int],
) -> list[tuple[int, str, int]]:
    """The outputs that are one of several views that an operator gives at once, which AOTAutograd
    takes for tensors of their own: of which input, or the first output of the same memory.

    gm: the graph of torch's functions that the front end captured.
    """
    if gm is None:
        return []
    (output,) = gm.graph.find_nodes(op="output")
    leaves = tree_leaves(output.args)
    places = [("input", i, n) for i, n in enumerate(gm.graph.find_nodes(op="placeholder"))]
    places += [("output", i, leaves[i]) for i in differentiable]
    of_memory: dict[int, tuple[str, int]] = {}
    found = []
    for kind, i, node in places:
        value = node.meta.get("example_value") if isinstance(node, Node) else None
        if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
            continue
        origin = of_memory.setdefault(storage_of(value), (kind, i))
        is_part = value._is_view() and _creation(value) == _Creation.MULTI_OUTPUT_NODE
        if kind == "output" and is_part:
            found.append((i, *origin))
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
