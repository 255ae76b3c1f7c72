"""The way through AOTAutograd, for graphs that are differentiated, mutate, or return views of
inputs.

`compile_aot(gm, inputs, compile_graph, decompositions)` returns a callable over gm's inputs.
AOTAutograd splits the graph into functional pieces (inference; or forward and backward), each of
which `compile_graph` makes a callable of, and wraps them with what replays mutations and aliases
and connects autograd.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.fx
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    UnsupportedOperatorException,
    get_plain_tensors,
)
from torch.utils._python_dispatch import (
    _get_current_dispatch_mode,
    _pop_mode_temporarily,
    is_traceable_wrapper_subclass,
)
from torch.utils._pytree import tree_leaves

from minidynamo import _C, events
from minidynamo.inductor import metrics
from minidynamo.inductor.branches import compile_branches, is_higher_order
from minidynamo.inductor.decompositions import before_autograd
from minidynamo.inductor.differentiable import Boxed, Joined
from minidynamo.inductor.eager_saves import unsaved_inputs
from minidynamo.inductor.effects import drop_repeated, keeping_calls, keeping_draws
from minidynamo.inductor.gradients import UNREACHED, WRITTEN, Gradients
from minidynamo.inductor.kept_results import (
    drop_detached,
    keep_overwritten,
    keep_random_numbers,
    keep_unsaved,
    not_to_be_saved,
    note_what_stays,
    takes_data,
)
from minidynamo.inductor.laid_out import LaidOut, as_conjugated
from minidynamo.inductor.partial_backward import Taking
from minidynamo.inductor.passed_objects import hold_real_objects, take_out_objects
from minidynamo.inductor.passes.image_layouts import put_channels_last
from minidynamo.inductor.passes.mutable_ops import inline_mutable_operators
from minidynamo.inductor.passes.norms_again import compute_norms_again
from minidynamo.inductor.passes.pooled_positions import keep_positions
from minidynamo.inductor.passes.simplify import merge_equal_nodes
from minidynamo.inductor.passes.untied_zeros import tie_zeros
from minidynamo.inductor.size_floats import make_tensors
from minidynamo.inductor.stored_steps import Recorder, load_step, step_key, stored_call
from minidynamo.inductor.wrapped_tangents import WrappedGraph
from minidynamo.inductor.written_parts import mixed_memory, reinterpreted, take_out
from minidynamo.interruptions import pass_on
from minidynamo.utils import is_distributed

# The shape of a gradient's parts depends on data, an operator has no fake implementation, or there
# are tensors of layouts that AOTAutograd does not know.
NOT_COMPILABLE = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
    NotImplementedError,
)
_TENSORIFY = "TENSORIFY_PYTHON_SCALARS"
CompileGraph = Callable[[torch.fx.GraphModule, str], Callable[..., Any]]
Decompositions = Mapping[Any, Callable[..., Any]]
Compilers = Mapping[str, Callable[[torch.fx.GraphModule, Sequence[Any]], Callable[..., Any]]]


class _Unwatched:
    """A compiled graph whose first call AOTAutograd does not watch for custom operators that share
    memory: inside of a dispatch mode, operators that conjugate lazily (linalg.pinv) are wrong.
    """

    _boxed_call = True

    def __init__(self, compiled: Callable[[list[Any]], Any]) -> None:
        self._compiled = compiled
        self._call: Callable[[list[Any]], Any] = self._first

    def _first(self, inputs: list[Any]) -> Any:
        self._call = self._compiled
        mode = _get_current_dispatch_mode()
        if type(mode).__name__ != "_AnalyzeCustomOpInputOutputMode":
            return self._compiled(inputs)
        with _pop_mode_temporarily():
            return self._compiled(inputs)

    def __call__(self, inputs: list[Any]) -> Any:
        return self._call(inputs)


def _has_complex(
    graph: torch.fx.GraphModule,
) -> bool:
    values = tree_leaves([node.meta.get("val") for node in graph.graph.nodes])
    return any(isinstance(v, torch.Tensor) and v.is_complex() for v in values)


def without_tokens(
    graph: torch.fx.GraphModule,
) -> None:
    """Operators with effects as plain calls: in program order, where lowering keeps them."""
    calls = [
        node
        for node in graph.graph.nodes
        if isinstance(node.target, torch._ops.HigherOrderOperator)
        and node.target.name() == "with_effects"
    ]
    for node in calls:
        _token, op, *args = node.args
        with graph.graph.inserting_before(node):
            call = graph.graph.call_function(op, tuple(args), node.kwargs)
        results = node.meta["val"][1:]
        schema = getattr(op, "_schema", None)
        is_one = schema is not None and len(schema.returns) == 1
        call.meta["val"] = results[0] if is_one else results or None
        for user in list(node.users):
            position = user.args[1]
            if position > 0 and is_one:
                user.replace_all_uses_with(call)
            elif position > 0:
                user.args = (call, position - 1)
    for node in reversed(list(graph.graph.nodes)):
        is_token = str(node.target) in (
            "prims._make_token.default",
            "prims._sink_tokens.default",
        )
        is_getitem = node.target is operator.getitem and node.args[0] in calls
        if is_token or is_getitem or node in calls:
            graph.graph.erase_node(node)
    if calls:
        graph.recompile()


@contextmanager
def floats_stay_numbers() -> Iterator[None]:
    """Keeps AOTAutograd from making tensors of symbolic floats: where it cannot, it asks torch's
    own front end to start over. The switch is an environment variable, read at every compilation.
    """
    former = os.environ.get(_TENSORIFY)
    os.environ[_TENSORIFY] = "0"
    try:
        yield
    finally:
        if former is None:
            del os.environ[_TENSORIFY]
        else:
            os.environ[_TENSORIFY] = former


class CannotTrace(Exception):
    """AOTAutograd cannot take the graph apart; operator by operator it runs."""


def _refusal(
    inputs: Sequence[Any],
    written: Collection[int],
) -> str:
    """Why AOTAutograd would get writes to inputs wrong; "" if it will not."""
    real = [(i, part) for i, value in enumerate(inputs) for part in _with_memory(value)]
    if any(_was_moved(tensor) for _, tensor in real):
        return "an input is a view whose memory was replaced"
    on_storage: dict[int, list[tuple[int, torch.Tensor]]] = {}
    for i, tensor in real:
        on_storage.setdefault(tensor.untyped_storage()._cdata, []).append((i, tensor))
    for tensor in [tensor for i, tensor in real if i in written]:
        if torch._debug_has_internal_overlap(tensor) == 1:
            return "an input that is written to overlaps itself"
        base = tensor._base
        if base is not None and base.requires_grad and base.is_leaf:
            return "an input that is written to is a view of a leaf"
        together = on_storage[tensor.untyped_storage()._cdata]
        for other in (t for _, t in together if t is not tensor):
            if tensor.requires_grad or other.requires_grad or _overlap(tensor, other):
                return "an input that is written to shares memory with another one"
        if sum(t is tensor for _, t in together) > 1:
            return "an input that is written to wraps a tensor that another one wraps"
    return ""


def _with_memory(value: Any) -> list[torch.Tensor]:
    """The tensor, or those that it wraps, as far as they have memory."""
    parts = (
        get_plain_tensors(value, out=[]) if is_traceable_wrapper_subclass(value) else [value]
    )
    return [part for part in parts if _has_memory(part)]


def _has_memory(
    value: Any,
) -> bool:
    if not isinstance(value, torch.Tensor) or isinstance(value, FakeTensor):
        return False
    python = torch._C._dispatch_keys(value).has(torch._C.DispatchKey.Python)
    return value.layout is torch.strided and not python


def _was_moved(
    tensor: torch.Tensor,
) -> bool:
    """Whether `.data` or `set_` gave a view memory that is not its base's: AOTAutograd takes it for
    a part of the base.
    """
    base = tensor._base
    if base is None or not _has_memory(base):
        return False
    return base.untyped_storage()._cdata != tensor.untyped_storage()._cdata


def _overlap(
    a: torch.Tensor,
    b: torch.Tensor,
) -> bool:
    """Whether the memory between the first and last elements of both meets."""
    (first, last), (other_first, other_last) = _span(a), _span(b)
    return first < other_last and other_first < last


def _span(
    tensor: torch.Tensor,
) -> tuple[int, int]:
    last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    start = tensor.storage_offset() * tensor.itemsize
    return start, start + (last + 1) * tensor.itemsize if tensor.numel() else start


def lie_apart(
    inputs: Sequence[Any],
) -> set[int]:
    """Positions of inputs whose storage others share, all of which lie before or behind them. With
    gradients on, views of what asks for them are none: autograd has to know of writes to these.
    """
    on_storage: dict[int, list[tuple[int, int, int]]] = {}
    for i, tensor in enumerate(inputs):
        if _has_memory(tensor):
            storage = tensor.untyped_storage()._cdata
            on_storage.setdefault(storage, []).append((*_span(tensor), i))
    found = set()
    for spans in on_storage.values():
        spans.sort()
        before = -1
        for (start, end, i), (after, _, _) in pairwise([*spans, (spans[-1][1], 0, 0)]):
            if before <= start and end <= after:
                found.add(i)
            before = max(before, end)
    bases = {i: inputs[i]._base for i in found if torch.is_grad_enabled()}
    return {i for i in found if bases.get(i) is None or not bases[i].requires_grad}


class _Pair:
    """The graphs that AOTAutograd makes of one, compiled. may_join: by a node of our own."""

    def __init__(
        self,
        compilers: Compilers,
        gradients: Gradients,
        gm: torch.fx.GraphModule,
        inputs: Sequence[Any],
        *,
        may_join: bool,
    ) -> None:
        self.joined = Joined(partial(self._compile, "backward"), gm)
        self.has_failed = False
        self._compilers = compilers
        self._gradients = gradients
        self._inputs = inputs
        self._may_join = may_join

    def _compile(self, kind: str, graph: torch.fx.GraphModule, given: Sequence[Any]) -> Any:
        hold_real_objects(graph)
        try:
            return self._compilers[kind](graph, given)
        except Exception:
            self.has_failed = True
            raise

    def _check(self, graph: torch.fx.GraphModule) -> None:
        reason = self._gradients.note_metadata(graph, self._inputs)
        if reason:
            raise CannotTrace(reason)

    def forget_inputs(self) -> None:
        """They are of one call; the pair lives until its backward graph is compiled, and longer."""
        self._inputs = ()

    def compile_forward(self, graph: torch.fx.GraphModule, given: Sequence[Any]) -> Any:
        self._check(graph)
        gradients = self._gradients
        if gradients.backward_module is not None:
            self.joined.note_backward(gradients.backward_module, is_copy=False)
            if self._may_join and not gradients.repeated:
                self.joined.note_forward(graph, self._inputs, gradients.unseen)
        compiled = self._compile("forward", graph, given)
        self.joined.note_compiled(compiled)
        return _Unwatched(compiled) if _has_complex(graph) else compiled

    def compile_inference(self, graph: torch.fx.GraphModule, given: Sequence[Any]) -> Any:
        self._check(graph)
        compiled = self._compile("inference", graph, given)
        return _Unwatched(compiled) if _has_complex(graph) else compiled

    def compile_backward(self, graph: torch.fx.GraphModule, given: Sequence[Any]) -> Any:
        """What AOTAutograd's own node calls."""
        joined = self.joined
        joined.note_backward(graph, is_copy=True)
        return joined.parts if self._gradients.some_may_be_none else joined.whole()


def make_aot(
    gm: torch.fx.GraphModule,
    inputs: Sequence[Any],
    compilers: Compilers,
    recorder: Recorder | None = None,
    **options: Any,
) -> Callable[..., Any]:
    """`aot_module_simplified` with its defects mended: gradients that eager leaves out are None.

    compilers: of the `forward`, `backward` and `inference` graph. recorder: is told what they give
    if it is the whole graph's. Raises CannotTrace where
    AOTAutograd fails, or would go wrong, and what a compiler raises as it is.
    """
    from torch._functorch.aot_autograd import aot_module_simplified

    tie_zeros(gm)
    written = gm.meta.get(WRITTEN)
    _check_inputs(gm, inputs)
    _forget_histories(gm, inputs)
    parts = take_out(gm, inputs)
    rest = gm if parts is None else parts.rest
    unreached = gm.meta.get(UNREACHED, ()) if parts is None else ()
    results = _results(gm)
    _check_views(rest, results)
    gradients = Gradients(
        options.pop("partition_fn"),
        written,
        unreached,
        is_of_parts=any(map(is_traceable_wrapper_subclass, (*inputs, *results))),
        gives_distributed=any(is_distributed(type(value)) for value in results),
    )
    may_join = not gradients.is_of_parts and all(value is not None for value in results)
    pair = _Pair(compilers, gradients, rest, inputs, may_join=may_join)
    if recorder is not None and parts is None:
        pair.joined.record_in(recorder)
    try:
        with before_autograd(inputs), _views_of_wrapped(gm):
            compiled = aot_module_simplified(
                rest,
                inputs,
                fw_compiler=pair.compile_forward,
                bw_compiler=pair.compile_backward,
                inference_compiler=pair.compile_inference,
                partition_fn=gradients.partition,
                **options,
            )
    except CannotTrace:
        raise
    except Exception as error:
        pass_on(error)
        if pair.has_failed:
            raise
        raise CannotTrace(f"{type(error).__name__}: {error}") from error
    pair.forget_inputs()
    compiled = pair.joined.attach(gradients.of_forward(compiled))
    if gradients.is_of_parts and gradients.backward_module is not None:
        compiled = WrappedGraph(compiled, rest, draws=gradients.draws, writes=gradients.writes)
    return compiled if parts is None else parts.attach(compiled)


def _check_views(gm: torch.fx.GraphModule, results: Sequence[Any]) -> None:
    if reinterpreted(gm) or mixed_memory(gm):
        raise CannotTrace("a view with symbolic sizes is of another kind than what it views")
    for value in results:
        # AOTAutograd ends with `_unsafe_view`, which nested tensors of two dimensions refuse.
        is_flat = isinstance(value, torch.Tensor) and value.is_nested and value.dim() == 2
        if is_flat and value.requires_grad and value._is_view():
            raise CannotTrace("a nested tensor that wraps one of a single dimension is a view")
    if _share_values(results):
        raise CannotTrace("a nested tensor and a view of its values are results")


def _share_values(results: Sequence[Any]) -> bool:
    """Whether a dense result is a view of what a computed nested one wraps: AOTAutograd would add
    the values to the results, and not find them.
    """
    found = [x for x in results if isinstance(x, torch.Tensor) and x.requires_grad]
    wrapped = {_memory(x._values) for x in found if x.is_nested and not x._is_view()}  # type: ignore[attr-defined]
    return any(not x.is_nested and x._is_view() and _memory(x) in wrapped for x in found)


def _memory(value: torch.Tensor) -> int:
    return value.untyped_storage()._cdata


def _views_of_wrapped(gm: torch.fx.GraphModule) -> Any:
    """Within, AOTAutograd makes results that are views of what a nested tensor wraps anew by
    `as_strided`: what it would replay ends in a `detach`.
    """
    from torch._functorch import config as functorch_config

    values = (node.meta.get("example_value") for node in gm.graph.nodes)
    has_nested = any(isinstance(value, torch.Tensor) and value.is_nested for value in values)
    return functorch_config.patch(view_replay_for_aliased_outputs=not has_nested)


def _forget_histories(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> None:
    """AOTAutograd starts from the fake inputs, of which the writes of the trace have left some with
    a history that the inputs have not.
    """
    for node, given in zip(gm.graph.find_nodes(op="placeholder"), inputs, strict=False):
        fake = node.meta.get("example_value")
        if not isinstance(fake, torch.Tensor) or not isinstance(given, torch.Tensor):
            continue
        if fake.requires_grad and not given.requires_grad and not fake._is_view():
            fake.detach_()


def _check_inputs(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> None:
    refusal = _refusal(inputs, gm.meta.get(WRITTEN) or ())
    if refusal:
        raise CannotTrace(refusal)


def _results(gm: torch.fx.GraphModule) -> list[Any]:
    """What the front end knows of the graph's results; None where it knows nothing."""
    (output,) = gm.graph.find_nodes(op="output")
    metas = [node.meta for node in output.all_input_nodes]
    return [meta.get("example_value", meta.get("val")) for meta in metas]


def _drop_unread(graph: torch.fx.GraphModule) -> list[int] | None:
    """Take from the inputs those that no plan takes, where nothing reads them. Returns the
    positions of the other inputs, or None if there is none of these.

    They come from nested tensors: ragged sizes are no numbers, but name a tensor of offsets, and
    the views that make such tensors take one without memory.
    """
    given = graph.graph.find_nodes(op="placeholder")
    if any(map(_is_without_memory, given)):
        graph.graph.eliminate_dead_code()
    dropped = {
        i
        for i, node in enumerate(given)
        if not node.users and (_is_ragged(node) or _is_without_memory(node))
    }
    for i in dropped:
        graph.graph.erase_node(given[i])
    if not dropped:
        return None
    graph.recompile()
    return [i for i in range(len(given)) if i not in dropped]


def _is_ragged(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.SymInt) and value.node.is_nested_int()


def _is_without_memory(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.device.type == "meta"


class _AtenCompiler:
    """Makes boxed callables of the graphs that AOTAutograd makes of one."""

    def __init__(self, compile_graph: CompileGraph, decompositions: Decompositions) -> None:
        self._compile_graph = compile_graph
        self._decompositions = decompositions
        self._forward_runs = False  # operator by operator, or has operators of graphs

    def of(self, kind: str) -> Callable[[torch.fx.GraphModule, Sequence[Any]], Boxed]:
        """What compiles the `forward`, `backward` or `inference` graph."""
        return lambda graph, _inputs: self._compile(graph, kind)

    def _compile(self, graph: torch.fx.GraphModule, kind: str) -> Boxed:
        if events.wants(events.AotGraphEvent):
            events.emit(events.AotGraphEvent(graph, kind))
        without_tokens(graph)
        inline_mutable_operators(graph)
        objects = take_out_objects(graph)
        kept = _drop_unread(graph)
        given = graph.graph.find_nodes(op="placeholder")
        has_branches = any(map(is_higher_order, graph.graph.nodes))
        compiled: Callable[..., Any]
        if has_branches and not compile_branches(
            graph, lambda branch: self._compile_graph(branch, kind), self._decompositions
        ):
            metrics.increment("uncompiled_graphs")
            compiled, runs = graph.forward, True
        else:
            compiled = self._compile_graph(graph, kind)
            runs = compiled == graph.forward
        if has_branches and runs:
            compiled = _C.disabled(compiled)
        if kind == "forward":
            self._forward_runs = runs or has_branches
        if kind == "backward" and self._forward_runs and not runs:
            compiled = LaidOut(given, compiled)
        if kind == "backward" and not runs:
            compiled = as_conjugated(given, compiled)
        boxed = Boxed(compiled)
        if kept is not None:
            boxed.compiled = boxed.call = Taking(boxed.call, kept)
        if objects is not None:
            boxed.compiled = boxed.call = objects.attach(boxed.call)
        return boxed


def compile_aot(
    gm: torch.fx.GraphModule,
    inputs: Sequence[Any],
    compile_graph: CompileGraph,
    decompositions: Decompositions,
) -> Callable[..., Any]:
    """A callable with gm's semantics whose functional graphs are made by `compile_graph`, or were
    in another process.
    """

    def compile_now(given: Sequence[Any], recorder: Recorder) -> Callable[..., Any]:
        return _compile_aot(gm, given, compile_graph, decompositions, recorder)

    _check_inputs(gm, inputs)
    key, stored = step_key(gm, inputs), None
    if key is not None and (record := load_step(key)) is not None:
        stored = stored_call(key, record, gm, compile_now)
    return compile_now(inputs, Recorder(key)) if stored is None else stored


def _compile_aot(
    gm: torch.fx.GraphModule,
    inputs: Sequence[Any],
    compile_graph: CompileGraph,
    decompositions: Decompositions,
    recorder: Recorder,
) -> Callable[..., Any]:
    from torch._functorch import config as functorch_config
    from torch._functorch.partitioners import (
        default_partition,
        min_cut_rematerialization_partition,
    )

    def partition(
        joint: torch.fx.GraphModule,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        keep_random_numbers(joint)
        drop_detached(joint)
        # In place of the partitioner's own pass, which takes two draws of some random operators
        # (randn_like, uniform, exponential, ...) for one.
        merge_equal_nodes(joint, not_to_be_saved(gm, joint, kwargs["num_fwd_outputs"]))
        keep_positions(joint)
        put_channels_last(joint, with_gradients=True)
        compute_norms_again(joint, kwargs["num_fwd_outputs"])
        make_tensors(joint)
        # The minimal cut never saves symbolic floats, not even those that the backward pass needs.
        if any(isinstance(n.meta.get("val"), torch.SymFloat) for n in joint.graph.nodes):
            parts = default_partition(joint, *args, **kwargs)
            drop_repeated(parts)
            return parts
        keep_overwritten(joint, gm.meta.get(WRITTEN, ()), hidden=takes_data(gm))
        keep_unsaved(joint, unsaved_inputs(gm))
        forward, backward = min_cut_rematerialization_partition(joint, *args, **kwargs)
        note_what_stays(forward, backward, kwargs["num_fwd_outputs"])
        return forward, backward

    compiler = _AtenCompiler(compile_graph, decompositions)

    # Tokens that order operators with effects are made in the graph, not passed in.
    with (
        events.timed("aot_autograd"),
        functorch_config.patch(unlift_effect_tokens=True, cse=False),
        floats_stay_numbers(),
        keeping_calls(gm),
        keeping_draws(),
    ):
        return make_aot(
            gm,
            inputs,
            {kind: compiler.of(kind) for kind in ("forward", "backward", "inference")},
            recorder,
            partition_fn=partition,
            decompositions=dict(decompositions),
            keep_inference_input_mutations=True,
        )
