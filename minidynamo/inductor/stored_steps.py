"""Forward and backward passes on disk: a graph that is differentiated is looked up before
AOTAutograd sees it.

    name = step_key(gm, inputs)         # None: this graph is not kept
    record = load_step(name)            # what `Recorder.save` stored, or None
    call = stored_call(record, gm, compile_again)

AOTAutograd traces a graph several times and divides it; importing it takes a second. What comes of
that for a graph whose forward and backward are joined by a node of our own (differentiable.py) is
little: how the two are tied, and the names of their plans, which are on disk already (plan_store).
The key is the text of the graph that was captured, with the geometry of its inputs, and all flags
of this process that torch's functions look at. Kept are graphs of torch's functions and methods
on plain tensors of known sizes that lie on memory of their own. A call that is not ordinary, and
one whose plans are gone, compiles the graph after all.
"""

from __future__ import annotations

import json
import os
import sys
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import _lru_cache_wrapper, cache
from pathlib import Path
from typing import Any

import torch
import torch.fx
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._functorch import config as functorch_config
from torch._guards import TracingContext, tracing

from minidynamo import _C, events
from minidynamo.compile_lock import compiling
from minidynamo.inductor import config, metrics, trace
from minidynamo.inductor.differentiable import Boxed, Joined
from minidynamo.inductor.gradients import WRITTEN
from minidynamo.inductor.partial_backward import BackwardParts, Missing, Part, Taking
from minidynamo.inductor.replay import Replay, autocast_states, code_of
from minidynamo.inductor.runtime import plan_store
from minidynamo.inductor.runtime.cache import content_key, plan_cache

__all__ = ["Recorder", "load_step", "step_key", "stored_call"]

# Notes on nodes that say nothing of what is computed.
_REMARKS = {
    "example_value",
    "module_state",
    "nn_module_stack",
    "seen",
    "source_fn_stack",
    "stack_trace",
    "step",
    "user_stack",
    "writes",
}
# What only compiling tells.
_DETAILS = (
    events.AotGraphEvent,
    events.FusionEvent,
    events.KernelEvent,
    events.OutputCodeEvent,
    events.ScheduleEvent,
    events.StageEvent,
)
_TORCH, _TYPING = (
    os.path.dirname(torch.__file__) + os.sep,
    ("typing.py", "typing_extensions.py"),
)
_HOMES = (
    torch,
    torch.Tensor,
    torch.functional,
    torch.nn.functional,
    torch.special,
    torch.linalg,
    torch.fft,
    torch._C._nn,
)
_OWN = "minidynamo.inductor."
_Again = Callable[[Sequence[Any], "Recorder"], Callable[..., Any]]


# -- the key ---------------------------------------------------------------------------------------


class _Texts(plan_store.Texts):
    """Writes down a graph of torch's functions."""

    def lines(self, gm: torch.fx.GraphModule) -> Iterator[str]:
        """One line a node."""
        for position, node in enumerate(gm.graph.nodes):
            self.number[node] = position
            is_opaque = not node.meta.keys() <= _REMARKS or node.op in (
                "get_attr",
                "call_module",
            )
            value = node.meta.get("example_value")
            if is_opaque or isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
                raise plan_store.NotKept
            target = _name(node.target) if node.op == "call_function" else str(node.target)
            target = target if node.op.startswith("call") else ""
            yield f"{node.op} {target} {self.text(node.args)} {self.text(node.kwargs)}"

    def text(self, value: Any) -> str:
        """As for aten graphs, but lists and tuples index differently, and tensors are inputs."""
        if isinstance(value, list):
            return f"[{', '.join(map(self.text, value))}]"
        if isinstance(value, slice):
            return f"slice{self.text((value.start, value.stop, value.step))}"
        if value is Ellipsis:
            return "..."
        if isinstance(value, torch.Tensor):
            raise plan_store.NotKept
        return super().text(value)

    def given(self, value: Any) -> str:
        """An input, with all that autograd asks of it."""
        is_plain = type(value) in (torch.Tensor, torch.nn.Parameter)
        if not is_plain or is_functorch_wrapped_tensor(value) or value.is_nested:
            raise plan_store.NotKept
        if value.is_inference() or value.is_conj() or value.is_neg() or value.is_quantized:
            raise plan_store.NotKept
        kinds = (type(value).__name__, value.requires_grad, value.is_leaf, value._is_view())
        return f"{self.geometry(value)} {kinds}"


def _name(target: Any) -> str:
    """Where the function is found; only torch's own and ours are known by their names."""
    if isinstance(target, torch._ops.OpOverload) and target.namespace in ("aten", "prims"):
        return str(target)
    module, name = getattr(target, "__module__", None), _own_name(target)
    if module == "_operator":
        module = "operator"
    if not isinstance(module, str) or not isinstance(name, str):
        raise plan_store.NotKept
    if module.startswith("torch._VariableFunctionsClass") or name.startswith("_Variable"):
        module, name = "torch", name.rpartition(".")[2]
    if not (module in ("operator", "math", "torch") or module.startswith(("torch.", _OWN))):
        raise plan_store.NotKept
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not target:
        raise plan_store.NotKept
    return f"{module}.{name}"


def step_key(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> str | None:
    """The name of all that the passes of `gm` depend on, or None where that is not known."""
    is_watched = any(map(events.wants, _DETAILS)) or config.trace_enabled
    is_watched = is_watched or config.schedule_only or config.fallback_by_default
    is_differentiated = torch.is_grad_enabled() and any(
        isinstance(x, torch.Tensor) and x.requires_grad for x in inputs
    )
    modes = torch._C._len_torch_dispatch_stack() + torch._C._len_torch_function_stack()
    if is_watched or not is_differentiated or modes or TracingContext.try_get() is None:
        return None
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True) or ()
    if any(isinstance(hook, torch.fx.GraphModule) for hook in hooks):
        return None
    texts = _Texts()
    try:
        lines = [*_functions(), *texts.lines(gm), *map(texts.given, inputs)]
    except plan_store.NotKept:
        return None
    memory = {x.untyped_storage()._cdata for x in inputs}
    if len(memory) < len(inputs):
        return None
    values = [*inputs, *(node.meta.get("example_value") for node in gm.graph.nodes)]
    written = str(sorted(gm.meta.get(WRITTEN, {}).items()))
    place = [plan_store.versions(), _stamp(), *plan_store.devices(values)]
    return content_key("step", *place, *_state(), written, *lines)


def _functions() -> Iterator[str]:
    """What functions torch's own call by name: a program may have put others in their place."""
    for home in _HOMES:
        for name, value in sorted(vars(home).items()):
            if callable(value) and not isinstance(value, type):
                if not _is_known(value):
                    raise plan_store.NotKept
                yield f"{name} {_own_name(value)}"


def _own_name(value: Any) -> Any:
    """Of functions that functions make, such as max_pool2d, the one that they were given."""
    name = getattr(value, "__qualname__", None)
    return getattr(value, "__name__", name) if "<locals>" in str(name) else name


def _is_known(value: Any) -> bool:
    """Whether its name tells what a callable does."""
    if isinstance(value, types.MethodType):
        value = value.__func__
    elif isinstance(value, _lru_cache_wrapper):
        value = value.__wrapped__
    if isinstance(value, types.FunctionType):
        file = value.__code__.co_filename
        return file.startswith(_TORCH) or os.path.basename(file) in _TYPING
    home = type(value).__module__.partition(".")[0]
    return home in ("torch", "typing", "typing_extensions", "types", "builtins")


@cache
def _stamp() -> str:
    """Of the whole package: its front end makes the fake tensors that are traced."""
    return plan_store.stamp(Path(__file__).parents[1])


def _state() -> list[str]:
    """The flags of this process and thread that torch's functions, and the compiler, look at."""
    mkldnn, cuda, cudnn = torch.backends.mkldnn, torch.backends.cuda, torch.backends.cudnn
    einsum = torch.backends.opt_einsum
    attention = (
        cuda.flash_sdp_enabled(),
        cuda.mem_efficient_sdp_enabled(),
        cuda.math_sdp_enabled(),
        cuda.cudnn_sdp_enabled(),
    )
    state = [
        *autocast_states(),
        torch.is_autocast_cache_enabled(),
        torch.get_num_threads(),
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,
        torch.is_anomaly_enabled(),
        attention,
        (mkldnn.enabled, mkldnn.deterministic),
        (cudnn.enabled, cudnn.deterministic),
        (einsum.is_available(), einsum.enabled, einsum.strategy),
        torch.backends.mha.get_fastpath_enabled(),
    ]
    flags = [config.to_dict(), functorch_config.get_config_copy()]
    return [repr(state), *(json.dumps(f, sort_keys=True, default=str) for f in flags)]


# -- storing ---------------------------------------------------------------------------------------


class Recorder:
    """Stores what becomes known of one graph's passes. key: None stores nothing."""

    def __init__(self, key: str | None) -> None:
        self._key = key
        self._is_saved = False
        self.joined: Joined | None = None

    def take(self, joined: Joined) -> bool:
        """Whether to tell of `joined`'s passes."""
        self.joined = joined
        return self._key is not None

    def save(self, spec: Mapping[str, Any], forward: Any, replays: bool) -> None:
        """forward: the executor of its plan. Once is enough."""
        name = plan_store.name_of(forward)
        if self._key is None or name is None or self._is_saved:
            return
        self._is_saved = True
        record = {"spec": spec, "plan": name, "replays": replays}
        plan_cache().put(self._key, json.dumps(record), None)

    def save_part(self, missing: Missing, kept: Sequence[int] | None, compiled: Any) -> None:
        """A backward pass. kept: the positions of the inputs that it takes, or None: all."""
        plan = plan_store.name_of(compiled.compiled) if isinstance(compiled, Boxed) else None
        if self._key is not None and plan is not None:
            record = {"plan": plan, "kept": kept}
            plan_cache().put(_part_key(self._key, missing), json.dumps(record), None)


def _part_key(key: str, missing: Missing) -> str:
    return content_key("part", key, str(sorted(missing)))


def load_step(key: str | None) -> dict[str, Any] | None:
    """What was stored under that name."""
    if key is None:
        return None
    found = plan_cache().get(key)
    if events.wants(events.CacheEvent):
        events.emit(events.CacheEvent("step", key, found is not None))
    return None if found is None else json.loads(found.plan_json)


def load_part(key: str, missing: Missing) -> dict[str, Any] | None:
    """The backward pass for these missing tangents that was stored for the step of that name."""
    found = plan_cache().get(_part_key(key, missing))
    return None if found is None else json.loads(found.plan_json)


# -- calling ---------------------------------------------------------------------------------------


def stored_call(
    key: str, record: dict[str, Any], gm: torch.fx.GraphModule, compile_again: _Again
) -> Callable[..., Any] | None:
    """A callable of the graph, or None where its forward plan is gone.

    key: its name. compile_again: compiles the graph for inputs (fakes), by AOTAutograd, and tells
    a recorder.
    """
    forward = _executor(record["plan"])
    if forward is None:
        return None
    return _Stored(key, record, gm, forward, compile_again).graph()


def _executor(key: str) -> Any:
    found = plan_store.load(key)
    if found is None or found.constants:
        return None
    for name, count in found.counts.items():
        metrics.increment(name, count)
    executor = _C.PlanExecutor(found.plan, found.library, (), {})
    executor.runs_no_python = True
    return executor


def _spec(found: dict[str, Any]) -> dict[str, Any]:
    """As it was before it went through JSON, which knows no tuples."""
    tangents = [x if isinstance(x, str) else tuple(x) for x in found["tangents"]]
    rows = {
        name: [tuple(row) for row in found[name]] for name in ("arguments", "shared", "parts")
    }
    return {**found, **rows, "tangents": tangents}


class _Stored:
    """Ties stored plans together as `Joined` ties those that were just compiled."""

    def __init__(
        self,
        key: str,
        record: dict[str, Any],
        gm: torch.fx.GraphModule,
        forward: Any,
        compile_again: _Again,
    ) -> None:
        self._key = key
        self._spec = _spec(record["spec"])
        self._forward = forward
        self._compile_again = compile_again
        self._fakes = [n.meta["example_value"] for n in gm.graph.find_nodes(op="placeholder")]
        self._context = TracingContext.try_get()
        self._flags = config.to_dict()
        self._autocast = autocast_states()
        self._compiled: tuple[Callable[..., Any], Joined | None] | None = None
        rows = enumerate(self._spec["arguments"])
        tangents = [i for i, (kind, *_) in rows if kind == "tangent"]
        self._parts = BackwardParts(tangents, self._make_part)
        self._graph: weakref.ref[Any] | None = None
        self._replay = None
        if record["replays"]:
            positions = self._spec["differentiable"], self._spec["gradients"]
            self._replay = Replay(code_of(gm), self._autocast, *positions)

    def graph(self) -> Callable[..., Any]:
        """The callable. Its backward plan is read when it is first called."""
        graph = _C.DifferentiableGraph(self._whole)
        self._graph = weakref.ref(graph)
        graph.arm(self._spec, self._forward, self._first, self._parts, self._replay)
        return graph

    def _whole(self, *args: Any) -> Any:
        """A call that is not ordinary."""
        return self._again()[0](*args)

    def _first(self, inputs: list[Any]) -> Any:
        return self._parts.part(frozenset())(inputs)

    def _make_part(self, missing: Missing) -> Part:
        """The backward graph for some missing tangents. The graph's node calls the whole one
        itself from now on.
        """
        record = load_part(self._key, missing)
        executor = None if record is None else _executor(record["plan"])
        if record is None or executor is None:
            joined = self._again()[1]
            assert joined is not None
            return joined.parts.part(missing)
        boxed = Boxed(executor)
        if record["kept"] is not None:
            return Taking(boxed, record["kept"])
        graph = None if self._graph is None else self._graph()
        if graph is not None:
            graph.arm(self._spec, self._forward, boxed.call, self._parts, self._replay)
        return boxed

    def _again(self) -> tuple[Callable[..., Any], Joined | None]:
        """The graph compiled by AOTAutograd, in the state in which it was looked up."""
        with ExitStack() as stack:
            stack.enter_context(compiling())
            if self._compiled is None:
                stack.enter_context(config.patch(self._flags))
                stack.enter_context(trace.into(None))
                stack.enter_context(tracing(self._context))
                stack.enter_context(torch.enable_grad())
                for device, dtype, enabled in self._autocast:
                    stack.enter_context(torch.autocast(device, dtype, enabled))
                recorder = Recorder(self._key)
                compiled = self._compile_again(self._fakes, recorder)
                self._compiled = compiled, recorder.joined
            return self._compiled
