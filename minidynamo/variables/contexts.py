"""Global state of torch that the traced code changes: grad mode, autocast, inference mode.

A change is made for real while tracing (fake propagation has to see it) and becomes a state node of
the graph. The context managers of torch are traced as the Python classes they are; what is left at
the end of the region is a side effect: the graph puts the state back, and the generated code sets
it again. So a graph break inside a `with` block runs the rest of the block in the right state, and
the manager object that the block's end needs is an ordinary object with its attributes.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.grad_mode import _enter_inference_mode, _exit_inference_mode
from torch.utils._device import DeviceContext

from ..exc import Unsupported
from ..side_effects import Mutation
from ..source import ConstSource
from .base import VariableTracker, unsupported
from .constant import ConstantVariable
from .functions import MethodOfVariable

if TYPE_CHECKING:
    from ..codegen import PyCodegen
    from ..symbolic_convert import Translator

NONE = ConstantVariable(None)


@dataclass(frozen=True)
class Setting:
    """One piece of state: `write(*key, value)` sets what `read(*key)` gives."""

    name: str
    read: Callable[..., Any]
    write: Callable[..., Any]
    key: tuple[Any, ...] = ()

    def get(self) -> Any:
        return self.read(*self.key)

    def arguments(self, value: Any) -> tuple[Any, ...]:
        return (*self.key, value)


GRAD_MODE = Setting("grad mode", torch.is_grad_enabled, torch._C._set_grad_enabled)
FORWARD_GRAD_MODE = Setting(
    "forward grad mode", torch._C._is_fwd_grad_enabled, torch._C._set_fwd_grad_enabled
)
AUTOCAST_CACHE = Setting(
    "autocast cache", torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled
)


DETERMINISM = Setting(
    "deterministic algorithms",
    torch.get_deterministic_debug_mode,
    torch.set_deterministic_debug_mode,
)
TF32_PRODUCTS = Setting(
    "TF32 products", torch._C._get_cublas_allow_tf32, torch._C._set_cublas_allow_tf32
)
PRODUCT_PRECISION = Setting(
    "precision of products",
    torch._C._get_float32_matmul_precision,
    torch._C._set_float32_matmul_precision,
)
DEFAULT_DTYPE = Setting("default dtype", torch.get_default_dtype, torch._C._set_default_dtype)


def autocast_enabled(device: str) -> Setting:
    """Whether autocast is on for a device type."""
    return Setting("autocast", torch.is_autocast_enabled, torch.set_autocast_enabled, (device,))


@functools.cache
def autocast_dtype(device: str) -> Setting:
    """What autocast casts to on a device type."""
    return Setting(
        "autocast dtype", torch.get_autocast_dtype, torch.set_autocast_dtype, (device,)
    )


def _sdp(name: str) -> Setting:
    """Whether one kernel of scaled_dot_product_attention may be used."""
    read = getattr(torch._C, f"_get_{name}_sdp_enabled")
    return Setting(f"{name} attention", read, getattr(torch._C, f"_set_sdp_use_{name}"))


SDP_SETTINGS = (
    *map(_sdp, ("flash", "mem_efficient", "math", "cudnn", "overrideable")),
    Setting(
        "attention priority",
        torch._C._get_sdp_priority_order,
        torch._C._set_sdp_priority_order,
    ),
)


def _stack_size() -> int:
    return torch._C._len_torch_function_stack()


def _default_devices() -> tuple[torch.device, ...]:
    """The devices of `with torch.device(...)` blocks and of set_default_device, innermost last. A
    frame is only captured where there are no other function modes; a graph runs under torch's own
    while its gradients are traced.
    """
    modes = map(torch._C._get_function_stack_at, range(_stack_size()))
    return tuple(mode.device for mode in modes if isinstance(mode, DeviceContext))


def _set_default_devices(wanted: tuple[torch.device, ...]) -> None:
    now = _default_devices()
    same = 0
    while same < min(len(now), len(wanted)) and now[same] == wanted[same]:
        same += 1
    modes = [torch._C._pop_torch_function_stack() for _ in range(_stack_size())][::-1]
    kept = [mode for mode in modes if isinstance(mode, DeviceContext)][:same]
    # Those of torch, which it takes off itself, stay the innermost.
    others = [mode for mode in modes if not isinstance(mode, DeviceContext)]
    for mode in (*kept, *map(DeviceContext, wanted[same:]), *others):
        torch._C._push_on_torch_function_stack(mode)


def _default_device() -> torch.device | None:
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return None if context is None else context.device


DEFAULT_DEVICES = Setting("default devices", _default_devices, _set_default_devices)
DEFAULT_DEVICE = Setting("default device", _default_device, torch.set_default_device)


class GlobalStateVariable(VariableTracker):
    """The settings that the traced code changed: (value at entry, value now) of each."""

    needs_preload = False
    is_global_state = True

    def __init__(self) -> None:
        super().__init__(source=ConstSource(_STATE_KEY, "torch"), mutation=Mutation.EXISTING)
        self.changed: dict[Setting, tuple[Any, Any]] = {}
        # How often autocast regions were entered beyond those left.
        self.nesting = 0

    @staticmethod
    def of(tx: Translator) -> GlobalStateVariable:
        """The one of this graph."""
        effects = tx.output.side_effects
        known = effects.variable_of(_STATE_KEY)
        if known is None:
            known = effects.track(_STATE_KEY, GlobalStateVariable())
            # The last to be undone at a break: what is opened later lies above it.
            tx.output.open_contexts.insert(0, known)
        assert isinstance(known, GlobalStateVariable)
        return known

    @staticmethod
    def has_changed(tx: Translator, setting: Setting) -> bool:
        """Whether the traced code wrote to a setting."""
        known = tx.output.side_effects.variable_of(_STATE_KEY)
        return isinstance(known, GlobalStateVariable) and setting in known.changed

    def set(self, tx: Translator, setting: Setting, value: Any) -> None:
        before = setting.get()
        entry = self.changed.get(setting, (before, before))[0]
        tx.output.side_effects.mutate(self)
        node = tx.output.add_state_node(setting.write, *setting.arguments(value))
        node.meta["mode_before"] = before
        setting.write(*setting.arguments(value))
        self.changed[setting] = (entry, value)

    def change_nesting(self, tx: Translator, step: int) -> VariableTracker:
        """`autocast_increment_nesting` or its opposite; what it returns in eager."""
        tx.output.side_effects.mutate(self)
        tx.output.add_state_node(_NESTING[step])
        self.nesting += step
        return ConstantVariable(_current_nesting() + self.nesting)

    def _still_changed(self) -> list[tuple[Setting, Any, Any]]:
        return [(s, entry, now) for s, (entry, now) in self.changed.items() if entry != now]

    def leave_for_break(self, tx: Translator) -> None:
        """The region ends: the graph, and tracing, go back to the state at entry."""
        for setting, entry, _ in reversed(self._still_changed()):
            tx.output.add_state_node(setting.write, *setting.arguments(entry))
            setting.write(*setting.arguments(entry))
        for _ in range(abs(self.nesting)):
            tx.output.add_state_node(_NESTING[-1 if self.nesting > 0 else 1])

    def abandon(self) -> None:
        """Tracing is over, perhaps in the middle: set for real what was at entry."""
        for setting, (entry, _) in self.changed.items():
            setting.write(*setting.arguments(entry))

    def protect(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """A graph that raises at run time must leave the state as it was at entry."""
        settings = {setting: entry for setting, (entry, _) in self.changed.items()}

        def call(*args: Any) -> Any:
            nesting = _current_nesting()
            try:
                return compiled(*args)
            except BaseException:
                for setting, entry in settings.items():
                    setting.write(*setting.arguments(entry))
                while _current_nesting() > nesting:
                    if torch.autocast_decrement_nesting() == 0:
                        torch.clear_autocast_cache()
                raise

        return call

    def push_contents(self, codegen: PyCodegen) -> None:
        """Nothing: the values are constants."""

    def apply_contents(self, codegen: PyCodegen) -> None:
        for setting, _, now in self._still_changed():
            codegen.begin_call(setting.write)
            for argument in setting.arguments(now):
                codegen.load_const(argument)
            codegen.end_call(len(setting.key) + 1)
            codegen.emit("POP_TOP")
        for _ in range(abs(self.nesting)):
            codegen.begin_call(_NESTING[1 if self.nesting > 0 else -1])
            codegen.end_call(0)
            codegen.emit("POP_TOP")


_STATE_KEY = ("global state of torch",)
_NESTING = {1: torch.autocast_increment_nesting, -1: torch.autocast_decrement_nesting}


def _current_nesting() -> int:
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()


@contextlib.contextmanager
def without_gradients(tx: Translator) -> Iterator[None]:
    """What is traced inside is in no-grad mode."""
    state, was_on = GlobalStateVariable.of(tx), torch.is_grad_enabled()
    if was_on:
        state.set(tx, GRAD_MODE, False)
    try:
        yield
    finally:
        if was_on:
            state.set(tx, GRAD_MODE, True)


class ManagerVariable(VariableTracker):
    """A context manager: its two methods can be looked up."""

    def getattr(self, tx: Translator, name: str) -> VariableTracker:
        if name in ("__enter__", "__exit__"):
            return MethodOfVariable(self, name)
        return super().getattr(tx, name)


class BlockVariable(ManagerVariable):
    """One whose effect is on what is traced in its block: no graph ends inside.

    kind: of the graph break where one would have to.
    """

    kind = ""

    def __init__(self) -> None:
        super().__init__(mutation=Mutation.NEW)
        self.step: int | None = None

    def entered(self, tx: Translator) -> VariableTracker:
        """What `__enter__` gives."""
        return NONE

    def left(self, tx: Translator) -> None:
        """The block ends."""

    def call_method(
        self,
        tx: Translator,
        name: str,
        args: list[VariableTracker],
        kwargs: dict[str, VariableTracker],
    ) -> VariableTracker:
        tx.output.side_effects.version += 1
        if name == "__enter__" and self.step is None:
            self.step = tx.last_step()
            tx.output.open_contexts.append(self)
            return self.entered(tx)
        if name == "__exit__" and self in tx.output.open_contexts:
            tx.output.open_contexts.remove(self)
            self.left(tx)
            return NONE
        unsupported(self.kind, name, "the context manager is used in another way")

    def leave_for_break(self, tx: Translator) -> None:
        why = "the graph would have to end inside of the block"
        reason = Unsupported(self.kind, self.describe(), why)
        reason.made_at = self.step  # type: ignore[attr-defined]
        raise reason

    def abandon(self) -> None:
        """Nothing was changed for real."""

    def protect(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        return compiled


class InferenceGuardVariable(ManagerVariable):
    """`torch._C._InferenceMode(mode)`: the C object behind `torch.inference_mode`."""

    def __init__(self, mode: bool) -> None:
        super().__init__(mutation=Mutation.NEW)
        self.mode = mode
        self.real: Any = None
        self.node: Any = None
        self.is_open_at_end = False

    def python_type(self) -> type:
        return torch._C._InferenceMode

    def call_method(
        self,
        tx: Translator,
        name: str,
        args: list[VariableTracker],
        kwargs: dict[str, VariableTracker],
    ) -> VariableTracker:
        if name == "__enter__" and self.real is None:
            self._enter(tx)
        elif name == "__exit__" and self.real is not None:
            self._leave(tx)
            tx.output.open_contexts.remove(self)
        else:
            unsupported("inference mode", name, "its guard object is used in another way")
        return NONE

    def _enter(self, tx: Translator) -> None:
        GlobalStateVariable.of(tx)
        tx.output.side_effects.version += 1
        self.node = tx.output.add_state_node(_enter_inference_mode, self.mode)
        self.real = _enter_inference_mode(self.mode)
        tx.output.open_contexts.append(self)

    def _leave(self, tx: Translator) -> None:
        tx.output.side_effects.version += 1
        tx.output.add_state_node(_exit_inference_mode, self.node)
        _exit_inference_mode(self.real)
        self.real = None

    def leave_for_break(self, tx: Translator) -> None:
        self._leave(tx)
        self.is_open_at_end = True

    def abandon(self) -> None:
        """Tracing is over: leave inference mode for real."""
        if self.real is not None:
            _exit_inference_mode(self.real)
            self.real = None

    def protect(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """Nothing: the guard object of a graph that raises leaves with its frame."""
        return compiled

    def reconstruct(self, codegen: PyCodegen) -> None:
        make = _enter_inference_mode if self.is_open_at_end else torch._C._InferenceMode
        codegen.begin_call(make)
        codegen.load_const(self.mode)
        codegen.end_call(1)


class DisableTorchFunctionVariable(BlockVariable):
    """`torch._C.DisableTorchFunctionSubclass()`; `DisableTorchFunction()` is for modes too.

    The graph has plain tensors only, so nothing happens at run time.
    """

    kind = "function mode"

    def __init__(self, made: type) -> None:
        super().__init__()
        self.made = made
        self.former = (False, False)

    def describe(self) -> str:
        return self.made.__name__

    def python_type(self) -> type:
        return self.made

    def entered(self, tx: Translator) -> VariableTracker:
        overrides = tx.output.overrides
        self.former = (overrides.are_subclasses_disabled, overrides.are_modes_disabled)
        overrides.are_subclasses_disabled = True
        overrides.are_modes_disabled |= self.made is torch._C.DisableTorchFunction
        return NONE

    def left(self, tx: Translator) -> None:
        overrides = tx.output.overrides
        overrides.are_subclasses_disabled, overrides.are_modes_disabled = self.former
        self.step = None

    def reconstruct(self, codegen: PyCodegen) -> None:
        codegen.begin_call(self.made)
        codegen.end_call(0)
