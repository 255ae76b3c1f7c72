"""CUDA graphs of plans (`config.triton_cudagraphs`): what a plan launches is recorded once, and
replayed by one launch.

    call = graphed(executor, plan)  # in place of the executor; runs it as it is where it must

The first calls run as they are. They show which inputs stay where they are (parameters, what a
recorded forward gives its backward): those are read in place, and every call compares their
addresses. The others are copied into memory of the recording.

Results lie in memory that the next replay overwrites. So before each, it is asked whether the last
results still live: then this call runs without the recording, and from then on the results that do
are copied out of it. Another stream, a recording of the program's own, or another thread in the
middle of a call make a call run without it, too.
"""

from __future__ import annotations

import logging
import re
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from minidynamo import _C
from minidynamo.inductor import metrics

log = logging.getLogger("minidynamo.inductor")

# The call that is recorded at first: a backward waits for what its recorded forward saves. Later
# ones, up to the last, where addresses have not settled.
FIRST_CALL = {"inference": 3, "forward": 3, "backward": 5}
LAST_CALL = 8
MOST_RECORDINGS = 8
# They wait for the GPU, or do what a replay would not do again.
_WAITING = re.compile(
    "linalg|cholesky|svd|eig|lu_|qr|lstsq|triangular|inverse|multinomial|nonzero|unique|equal"
    "|_local_scalar_dense|_assert|index_put|masked_select|masked_scatter|histc|bincount|ctc_loss"
    "|repeat_interleave|pack_padded|segment_reduce|rnn|lstm|gru|pin_memory"
)
_TAGS = ("dynamic_output_shape", "data_dependent_output", "cudagraph_unsafe")


def graphed(
    executor: Any, plan: Mapping[str, Any], constants: Sequence[torch.Tensor], kind: str
) -> Any:
    """The executor, or what replays its plan, where that can be a CUDA graph.

    kind: of the plan's graph, `inference`, `forward` or `backward`.
    """
    reason = _refusal(plan, constants)
    if reason:
        log.info("no CUDA graph: %s", reason)
        return executor
    return GraphedPlan(executor, plan, constants, FIRST_CALL[kind])


# -- which plans -----------------------------------------------------------------------------------


def _refusal(plan: Mapping[str, Any], constants: Sequence[torch.Tensor]) -> str:
    """Why a plan has no recording; "" if it may have."""
    if any(item["kind"] != "tensor" for item in plan["inputs"]) or plan["symbols"]:
        return "its sizes are symbolic"
    devices = {item["device"] for item in plan["inputs"] if item.get("device")}
    devices |= {str(tensor.device) for tensor in constants}
    devices |= set(_devices(plan["steps"]))
    if len(devices) != 1 or not next(iter(devices)).startswith("cuda:"):
        return f"its devices are {sorted(devices)}"
    if not any(step["step"] in ("triton", "extern") for step in plan["steps"]):
        return "it launches nothing"
    return next(filter(None, map(_why_not, plan["steps"])), "")


def _devices(value: Any) -> Iterator[str]:
    """Every device that is named."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key == "device" and isinstance(item, str):
                yield item
            else:
                yield from _devices(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _devices(item)


def _why_not(step: Mapping[str, Any]) -> str:
    if step["step"] in ("pycall", "kernel"):
        return f"a {step['step']} runs on the CPU"
    if step["step"] != "extern":
        return ""
    op = _operator(step)
    tags = {str(tag).rpartition(".")[2] for tag in op.tags}
    waits = _WAITING.search(op._schema.name.partition("::")[2]) or tags & {*_TAGS}
    return f"{step['op']} may wait for the GPU" if waits or op.namespace != "aten" else ""


def _operator(step: Mapping[str, Any]) -> Any:
    namespace, _, name = step["op"].partition("::")
    packet = getattr(getattr(torch.ops, namespace), name)
    return getattr(packet, step["overload"] or "default")


def _written_inputs(plan: Mapping[str, Any]) -> set[int]:
    """Slots of the inputs that some step writes to, or may."""
    base: dict[int, int] = {}
    found: set[int] = set()
    for step in plan["steps"]:
        if "base" in step or "source" in step:
            base[step["slot"]] = step.get("base", step.get("source"))
        found.update(step.get("writes", ()))
        if step["step"] == "extern":
            given = zip(_operator(step)._schema.arguments, step["args"], strict=False)
            named = {a.name: a for a in _operator(step)._schema.arguments}
            pairs = [*given, *((named[key], value) for key, value in step["kwargs"].items())]
            for argument, value in pairs:
                if argument.alias_info is not None and argument.alias_info.is_write:
                    found.update(_slots(value))
    for slot in list(found):
        while slot in base:
            slot = base[slot]
            found.add(slot)
    return {*found, *plan["mutated_inputs"]} & {*range(len(plan["inputs"]))}


def _given_outputs(plan: Mapping[str, Any]) -> dict[int, int]:
    """Outputs that are inputs or parts of them: position -> slot."""
    slots = _from_inputs(plan)
    outputs = [list(_slots(value)) for value in plan["outputs"]]
    return {i: slot[0] for i, slot in enumerate(outputs) if slot and slot[0] in slots}


def _from_inputs(plan: Mapping[str, Any]) -> set[int]:
    """Slots of inputs, and of parts of them."""
    found = {*range(len(plan["inputs"]))}
    for step in plan["steps"]:
        if step["step"] == "as_strided" and step["base"] in found:
            found.add(step["slot"])
    return found


def _parts_plan(plan: Mapping[str, Any], given: Mapping[int, int]) -> dict[str, Any]:
    """What is left of a plan for these outputs."""
    slots = _from_inputs(plan)
    steps = [step for step in plan["steps"] if step["step"] == "as_strided"]
    steps = [step for step in steps if step["base"] in slots]
    outputs = [{"ref": slot} for slot in given.values()]
    return {**plan, "steps": steps, "outputs": outputs, "constants": [], "mutated_inputs": []}


def _slots(value: Any) -> Iterator[int]:
    if isinstance(value, Mapping) and "ref" in value:
        yield value["ref"]
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _slots(item)


# -- recordings ------------------------------------------------------------------------------------


@dataclass(slots=True)
class Recording:
    """A CUDA graph and its memory.

    Attributes:
        copies: memory of its own for inputs that move, by their positions.
        places: addresses of the inputs when it was made.
        outputs: what it writes; None where a result is an input, or a part of one.
        storages: of the outputs: its address, and how many references it has when nobody else
            holds a result.
        state: what has to be the same at a replay.
    """

    graph: torch.cuda.CUDAGraph
    copies: dict[int, torch.Tensor]
    places: list[int]
    outputs: list[Any]
    state: tuple[Any, ...]
    storages: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        count = torch._C._storage_Use_Count
        addresses = [_storage(value) for value in self.outputs]
        self.storages = [(at, count(at) if at else 0) for at in addresses]

    def held(self) -> list[int]:
        """Positions of the outputs that somebody still has."""
        count = torch._C._storage_Use_Count
        return [
            i
            for i, (storage, usual) in enumerate(self.storages)
            if usual and count(storage) != usual
        ]


def _storage(value: Any) -> int:
    """The address of a tensor's storage, of its description that is; 0 for what is no tensor."""
    return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else 0


def _below_autograd() -> Any:
    """As plans run: nothing here is differentiated, or counts as a view."""
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)
    for key in ("AutogradCUDA", "AutogradCPU", "AutogradOther"):
        keys = keys | torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
    return torch._C._ExcludeDispatchKeyGuard(keys)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    size, stride = tensor.size(), tensor.stride()
    made = torch.empty_strided(size, stride, dtype=tensor.dtype, device=tensor.device)
    return made.copy_(tensor)


class GraphedPlan:
    """A plan's executor that records and replays, called as the executor is.

    Attributes:
        recording: the current one, if any.
        given_up: why there will be none; "" while there may.
        copied: positions of results that outlive a call.
    """

    runs_no_python = False

    def __init__(
        self,
        executor: Any,
        plan: Mapping[str, Any],
        constants: Sequence[torch.Tensor],
        first: int,
    ) -> None:
        self.executor, self.first = executor, first
        self.device = torch.device(next(_devices((plan["inputs"], plan["steps"]))))
        self.written = _written_inputs(plan)
        self.versions = [*plan["mutated_inputs"]]
        self.constants = constants
        self.given = _given_outputs(plan)
        self.parts = _C.PlanExecutor(_parts_plan(plan, self.given), None, (), {})
        self.recording: Recording | None = None
        self.calls = self.recordings = 0
        self.given_up = ""
        self.copied: set[int] = set()
        self._missed = False
        self._places: list[int] = []
        self._moved: set[int] = set()
        self._lock = threading.Lock()

    def __call__(self, *inputs: Any) -> Any:
        return self._run(list(inputs))

    @property
    def boxed(self) -> Any:
        """By AOTAutograd's calling convention."""
        return self._run

    def _run(self, inputs: list[Any]) -> Any:
        if self.given_up or not self._lock.acquire(blocking=False):
            return self.executor.boxed(inputs)
        try:
            with torch.cuda.device(self.device), _below_autograd():
                results = self._attempt(inputs)
        finally:
            self._lock.release()
        if results is None:
            return self.executor.boxed(inputs)
        inputs.clear()
        return results

    def _attempt(self, inputs: list[Any]) -> tuple[Any, ...] | None:
        """The results by a recording; None where there is none for this call."""
        is_elsewhere = any(tensor.device != self.device for tensor in inputs)
        if is_elsewhere or torch.cuda.is_current_stream_capturing():
            return None
        places = [tensor.data_ptr() for tensor in inputs]
        before, self._places = self._places, places
        moved = {i for i, (a, b) in enumerate(zip(before, places, strict=False)) if a != b}
        settled, self._moved = moved == self._moved, moved
        if self.recording is not None:
            return self._replay(self.recording, inputs, places)
        self.calls += 1
        if self.calls == self.first - 1:
            return self._watched(inputs)
        if self.calls < self.first or not (settled or self.calls >= LAST_CALL):
            return None
        return self._record(inputs, moved)

    def _watched(self, inputs: list[Any]) -> tuple[Any, ...]:
        """A call as it is, that tells whether something in it waits for the GPU."""
        mode = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                results: tuple[Any, ...] = self.executor(*inputs)
            finally:
                torch.cuda.set_sync_debug_mode(mode)
        for item in found:
            if "synchronizing CUDA operation" in str(item.message):
                self._give_up("something in it waits for the GPU")
            elif "prototype feature" not in str(item.message):
                warnings.warn_explicit(item.message, item.category, item.filename, item.lineno)
        return results

    def _give_up(self, reason: str) -> None:
        log.info("no CUDA graph: %s", reason)
        self.given_up, self.recording = reason, None

    def _state(self) -> tuple[Any, ...]:
        stream = torch._C._cuda_getCurrentRawStream(self.device.index)
        return stream, torch.is_inference_mode_enabled()

    # -- recording ---------------------------------------------------------------------------------
    def _record(self, inputs: list[Any], moving: set[int]) -> tuple[Any, ...] | None:
        overlaps = any(torch._debug_has_internal_overlap(inputs[i]) == 1 for i in moving)
        if moving & self.written or overlaps or self.recordings == MOST_RECORDINGS:
            self._give_up("inputs move that are written to, overlap themselves, or ever others")
            return None
        self.recordings += 1
        metrics.increment("cudagraph_recordings")
        copies = {i: _copy(inputs[i]) for i in moving}
        own = [copies.get(i, tensor) for i, tensor in enumerate(inputs)]
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(self.device)
        torch._C._cuda_clearCublasWorkspaces()  # those of the recording are to be its own
        try:
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                results = self.executor(*own)
        except RuntimeError as error:
            self._give_up(f"recording it failed: {error}")
            return None
        finally:
            torch._C._cuda_clearCublasWorkspaces()
        outputs = [None if i in self.given else value for i, value in enumerate(results)]
        del results
        if {*map(_storage, outputs)} & {*map(_storage, (*own, *self.constants))}:
            self._give_up("a result is a constant, or shares memory with an input")
            return None
        recording = Recording(graph, copies, self._places, outputs, self._state())
        self.recording, self.calls = recording, self.first
        return self._outputs_of_replay(recording, inputs)

    def _outputs_of_replay(self, recording: Recording, inputs: list[Any]) -> tuple[Any, ...]:
        recording.graph.replay()
        metrics.increment("cudagraph_replays")
        alias = torch.ops.aten.alias.default
        results = [*recording.outputs]
        for i, value in enumerate(recording.outputs):
            if isinstance(value, torch.Tensor):
                results[i] = _copy(value) if i in self.copied else alias(value)
        if self.given:
            for i, value in zip(self.given, self.parts(*inputs), strict=True):
                results[i] = value
        return tuple(results)

    # -- replaying ---------------------------------------------------------------------------------
    def _replay(
        self, recording: Recording, inputs: list[Any], places: list[int]
    ) -> tuple[Any, ...] | None:
        if recording.state != self._state():
            return None
        held = recording.held()
        if held:
            if self.copied.issuperset(held):  # for good, it seems
                self.recording = None
            self.copied.update(held)
            return None
        pairs = enumerate(zip(recording.places, places, strict=True))
        missed = any(a != b and i not in recording.copies for i, (a, b) in pairs)
        if missed and self._missed:  # not for once
            self.recording = None
        self._missed = missed
        if missed:
            return None
        for i, own in recording.copies.items():
            own.copy_(inputs[i])
        for i in self.versions:
            torch.autograd.graph.increment_version(inputs[i])
        return self._outputs_of_replay(recording, inputs)
