"""What autograd sees of graphs that went through AOTAutograd, where that differs from eager.

Gradients are None for inputs that only unused outputs depend on. AOTAutograd's backward takes a
tangent for each output; for outputs that the loss does not use autograd makes zeros, and so
gradients are zeros where eager has None, which optimizers skip, and NaN where a zero meets an
infinity. Where there are several tangents the forward asks autograd for None instead of zeros, and
the backward graph is pruned (partial_backward.py).

Writes through `.data` do not move the version counters of inputs. AOTAutograd's epilogue writes to
the inputs themselves, so their counters are put back. It writes once, where the program may have
done so several times: counters move as often as in eager.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.fx
from torch._guards import TracingContext
from torch._subclasses.fake_tensor import get_plain_tensors
from torch.autograd.graph import increment_version
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from minidynamo.inductor.passed_objects import hold_objects_of_tangents
from minidynamo.inductor.replay import can_replay, is_of_torch
from minidynamo.inductor.sizes import has_symbols

# In the meta of a GraphModule: by position, how often it moves the version counter of an input.
WRITTEN = "written_inputs"
# And the positions of the leaves that autograd does not lead to from what the graph leaves.
UNREACHED = "unreached_leaves"
# So far back a graph's autograd node is looked for.
MOST_VIEWS = 16
# In the meta of a placeholder that the graph writes to: how often its version counter moves.
WRITES = "writes"


class Gradients:
    """One graph's.

    partition: how AOTAutograd divides the joint graph; written: by their positions, the inputs
    whose version counters it moves, and how often (None: not known); unreached: the leaves that
    autograd does not lead to; is_of_parts: whether it takes or gives tensors that wrap others,
    which AOTAutograd takes apart; gives_distributed: DTensors are among its results. draws: it
    gives other results when it runs again; writes: to
    inputs, or acts in a way that is not known.
    """

    def __init__(
        self,
        partition: Callable[..., Any],
        written: Mapping[int, int] | None,
        unreached: Sequence[int] = (),
        *,
        is_of_parts: bool = False,
        gives_distributed: bool = False,
    ) -> None:
        self._partition = partition
        self._written = written
        self._unseen: list[int] = []
        self._unreached = unreached
        self._without: list[int] = []
        self._repeated: dict[int, int] = {}
        self._are_several = False
        self._metadata: Any = None
        self.backward_module: torch.fx.GraphModule | None = None
        self.is_of_parts = is_of_parts
        self._gives_distributed = gives_distributed
        self.draws = False
        self.writes = False

    def partition(
        self,
        joint: torch.fx.GraphModule,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Divides the joint graph."""
        given = joint.graph.find_nodes(op="placeholder")
        self._are_several = sum("tangents" in node.name for node in given) > 1
        self._without = list(self._unreached)
        hold_objects_of_tangents(joint, kwargs["num_fwd_outputs"])
        forward, self.backward_module = self._partition(joint, *args, **kwargs)
        return forward, self.backward_module

    def note_metadata(
        self,
        graph: torch.fx.GraphModule,
        inputs: Sequence[Any],
    ) -> str:
        """To be called before the first graph is compiled: then torch tells what it found. Returns
        why the program cannot go this way, or "".
        """
        context = TracingContext.try_get()
        metadata = None if context is None else context.fw_metadata
        if metadata is None:
            return ""
        if any(info.mutates_data and info.mutates_metadata for info in metadata.input_info):
            # torch would take the offset of the new values' memory for the input's.
            return "an input is written to and laid out anew"
        if has_symbols(inputs) and _gives_part_of_written(metadata):
            # torch would take the offset that the part has in the new values' memory.
            return "a part of an input that is written to is a result"
        _copy_detached(metadata)
        # Kernels do not write to saved tensors: backward may run again (`retain_graph`).
        if metadata.bw_donated_idxs:
            metadata.bw_donated_idxs.clear()  # torch has the list in two places
        metadata.bw_donated_idxs = []
        if self.is_of_parts and not self._note_parts(metadata, graph):
            return "it writes, or calls operators of other libraries, while tensors wrap others"
        if self._gives_distributed and any(map(_is_view, metadata.output_info)):
            # AOTAutograd would make them by `as_strided`, which DTensors refuse.
            return "a result is a view, and DTensors are among the results"
        is_plain = not self.is_of_parts and _are_plain(metadata.subclass_tangent_meta)
        if self._are_several and is_plain:
            self._metadata = metadata
        self._without = [i for i in self._without if _can_be_detached(metadata, inputs, i)]
        return "" if self._written is None else self._note_writes(metadata, graph, inputs)

    def _note_parts(self, metadata: Any, graph: torch.fx.GraphModule) -> bool:
        """Whether a graph with tensors that wrap others is understood. In training, what writes, or
        may do more than give results, can neither run again for tangents of another class nor do
        without them.
        """
        # Collectives are the same in all processes, and may be repeated there.
        acts = not is_of_torch(graph, "_c10d_functional")
        self.draws = acts or not can_replay(metadata, graph)
        self.writes = acts or any(info.mutates_data for info in metadata.input_info)
        if self.backward_module is None or not self.writes:
            return True
        is_in_graph = not (
            metadata.mutated_inp_runtime_indices or metadata.num_intermediate_bases
        )
        return is_in_graph and not self._are_several

    def _note_writes(
        self, metadata: Any, graph: torch.fx.GraphModule, inputs: Sequence[Any]
    ) -> str:
        """How often the writes move version counters; why that is not known, or ""."""
        assert self._written is not None
        places = _places(inputs)
        infos = metadata.input_info
        is_written = any(info.mutates_data for info in infos) or bool(self._written)
        if len(infos) != len(places) and (is_written or not self.is_of_parts):
            return "memory of several inputs is written to without their knowledge"
        given = graph.graph.find_nodes(op="placeholder")
        for number, ((position, is_part), info) in enumerate(zip(places, infos, strict=False)):
            count = self._written.get(position, 0)
            if not info.mutates_data:
                laid_out = (
                    count - info.mutates_metadata
                )  # torch does it once, if that changes it
                if laid_out > 0 and not is_part:
                    if _is_shared(inputs, position):
                        return "an input is laid out anew that shares memory with another"
                    self._repeated[position] = laid_out
                continue
            if is_part:
                if not _is_in_graph(info) or len(given) != len(infos):
                    return "a part of a tensor that wraps others is written to behind the graph"
                # The wrapper around the graph moves the counter of the whole.
                given[number].meta[WRITES] = 0
                self._note_count(position, count)
                continue
            is_apart = info.mutations_hidden_from_autograd
            is_apart = is_apart or info.mutations_under_no_grad_or_inference_mode
            is_hidden = count == 0 or is_apart
            if is_hidden and _has_history(inputs[position]) and not _is_in_graph(info):
                return "a tensor with a history is written to without its knowledge"
            if count == 0 or not _is_in_graph(info):
                self._note_count(position, count)
            elif len(given) == len(infos):
                # The wrapper around the graph moves some of them itself.
                is_moved = number in metadata.mutated_graph_handled_indices_seen_by_autograd
                given[number].meta[WRITES] = count - is_moved
        return ""

    def _note_count(self, position: int, count: int) -> None:
        """torch moves the version counter of this input once."""
        if count:
            self._repeated[position] = count - 1
        elif position not in self._unseen:
            self._unseen.append(position)

    def of_forward(
        self,
        compiled: Callable[..., Any],
    ) -> Callable[..., Any]:
        """The callable of the whole graph, which tells autograd about its results."""
        if self._without:
            compiled = _detaching(compiled, self._without)
        if self._unseen:
            compiled = keeping_versions(compiled, self._unseen)
        for extra in range(1, max(self._repeated.values(), default=0) + 1):
            again = [i for i, count in self._repeated.items() if count >= extra]
            compiled = _moving_versions(compiled, again)
        metadata = self._metadata
        if metadata is None:
            return compiled

        def call(
            *args: Any,
        ) -> Any:
            results = compiled(*args)
            for value in (*results, *args):
                node = _made_by(metadata, value)
                if node is not None:
                    node.set_materialize_grads(False)
                    break
            return results

        return call

    @property
    def unseen(self) -> Sequence[int]:
        """The positions of inputs that are written to while their version counters stay."""
        return self._unseen

    @property
    def repeated(self) -> bool:
        """Whether `of_forward` moves version counters of inputs."""
        return bool(self._repeated)

    @property
    def some_may_be_none(self) -> bool:
        """Whether AOTAutograd's backward is given None for tangents of unused outputs."""
        return self._metadata is not None or self.is_of_parts


def _are_plain(tangents: Sequence[Any]) -> bool:
    """Whether none of the tangents is taken apart into several."""
    return all(type(meta).__name__ == "PlainTensorMeta" for meta in tangents)


def _places(inputs: Sequence[Any]) -> list[tuple[int, bool]]:
    """Of what AOTAutograd's graph takes the position among the inputs, and whether it is a part of
    one. It takes symbolic sizes of tensors that wrap others besides: then these are too few.
    """
    places = []
    for i, value in enumerate(inputs):
        is_wrapper = is_traceable_wrapper_subclass(value)
        n_parts = len(get_plain_tensors(value, out=[])) if is_wrapper else 1
        places += [(i, is_wrapper)] * n_parts
    return places


def _is_shared(inputs: Sequence[Any], position: int) -> bool:
    """Whether another input has the memory of this one."""
    plain = [x for x in inputs if isinstance(x, torch.Tensor) and x.layout is torch.strided]
    memory = [x.untyped_storage()._cdata for x in plain]
    return memory.count(inputs[position].untyped_storage()._cdata) > 1


def _can_be_detached(metadata: Any, inputs: Sequence[Any], position: int) -> bool:
    """Whether nobody sees it if a leaf comes without what autograd keeps of it."""
    infos = metadata.input_info
    given = [id(value) for value in inputs if isinstance(value, torch.Tensor)]
    if len(infos) != len(inputs) or len(set(given)) < len(given):
        return False
    is_given_back = any(out.base_idx == position for out in metadata.output_info)
    is_wrapped = any(map(is_traceable_wrapper_subclass, inputs))
    return not (infos[position].mutates_metadata or is_given_back or is_wrapped)


def _detaching(
    compiled: Callable[..., Any],
    positions: Sequence[int],
) -> Callable[..., Any]:
    """No gradient ever reaches these inputs: else autograd would call their hooks with None."""
    places = set(positions)

    def call(
        *args: Any,
    ) -> Any:
        return compiled(*(a.detach() if i in places else a for i, a in enumerate(args)))

    return call


def keeping_versions(
    compiled: Callable[..., Any],
    positions: Sequence[int],
) -> Callable[..., Any]:
    """`compiled`, whose writes to the inputs in these places do not move version counters."""

    def call(
        *args: Any,
    ) -> Any:
        kept = tuple(args[i] for i in positions if not args[i].is_inference())
        with torch.autograd._unsafe_preserve_version_counter(kept):
            return compiled(*args)

    return call


def _moving_versions(
    compiled: Callable[..., Any],
    positions: Sequence[int],
) -> Callable[..., Any]:
    def call(
        *args: Any,
    ) -> Any:
        results = compiled(*args)
        increment_version([args[i] for i in positions if not args[i].is_inference()])
        return results

    return call


def _has_history(
    value: Any,
) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad and not value.is_leaf


def _is_in_graph(
    info: Any,
) -> bool:
    """Whether the graph itself writes to the input, rather than what is called after it."""
    return bool(info.mutation_type.name == "MUTATED_IN_GRAPH")


def _made_by(
    metadata: Any,
    value: Any,
) -> Any:
    """The autograd node of the graph with these metadata, if the value is one of its results, a
    view of one, or was written over with one.
    """
    node = getattr(value, "grad_fn", None)
    for _ in range(MOST_VIEWS):
        made = getattr(getattr(node, "_forward_cls", None), "metadata", None)
        if node is None or made is metadata:
            return node
        before = node.next_functions
        node = before[-1][0] if before else None  # the last of CopyBackwards is what was copied
    return None


def _is_view(info: Any) -> bool:
    """Whether AOTAutograd makes a result from an input, or from another result."""
    return info.output_type.name.startswith("alias_of_")  # type: ignore[no-any-return]


def _gives_part_of_written(metadata: Any) -> bool:
    """Whether torch is to make a result anew as a part of an input that the graph writes to."""
    return any(
        info.output_type.name == "alias_of_input"
        and metadata.input_info[info.base_idx].mutates_data
        for info in metadata.output_info
    )


def _copy_detached(metadata: Any) -> None:
    """A result that is another one detached (`h, h.detach()`) lies as that does: where `h` is a
    view of something inside, torch would take the part of `h` that `h` is of it.
    """
    for i, info in enumerate(metadata.output_info):
        is_of_result = info.output_type.name == "alias_of_intermediate_base_is_user_output"
        if is_of_result and not info.requires_grad:
            metadata.output_info[i] = replace(info, view_meta_sequence=None)
