"""`__torch_function__`: of torch function modes, tensor subclasses and other objects.

Which function torch would hand to it for an operator, a method, an attribute or a call is found out
by doing the same with probes: objects whose `__torch_function__` only notes what it is given.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from .base import VariableTracker, unsupported
from .constant import ConstantVariable
from .descriptors import class_lookup
from .functions import BaseFunctionVariable, CallableVariable, UserFunctionVariable
from .services import OVERRIDDEN_CALL
from .symint import SymVariable
from .tensor import TENSOR_ACCESS, TensorVariable

if TYPE_CHECKING:
    from ..symbolic_convert import Translator

Args = list[VariableTracker]
Kwargs = dict[str, VariableTracker]


class _Noted(Exception):
    """What a probe was given."""

    def __init__(self, *call: Any) -> None:
        super().__init__("noted")
        self.call = call


def _note(func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
    raise _Noted(func, args, kwargs)


class _Probe(torch.Tensor):
    """Stands for a subclass instance while torch decides what to call."""

    __torch_function__ = classmethod(  # type: ignore[assignment]
        lambda cls, *call: _note(*call)
    )


class _ObjectProbe:
    """Stands for an object that is no tensor."""

    __torch_function__ = classmethod(lambda cls, *call: _note(*call))


class _NotingMode(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _note(func, types, args, kwargs)


class _Number(int):
    """An int that is known again."""


def is_overriding(value: VariableTracker) -> bool:
    """Whether a value has a `__torch_function__` that is traced."""
    value = value.realize()
    return value.is_user_defined and hasattr(value.python_type(), "__torch_function__")


def overriding(values: Sequence[VariableTracker]) -> list[VariableTracker]:
    """The values with a `__torch_function__` among arguments, and in lists and tuples of them."""
    found: list[VariableTracker] = []
    for value in values:
        value = value.realize()
        if is_overriding(value):
            found.append(value)
        elif not isinstance(value, (TensorVariable, ConstantVariable)):
            items = getattr(value, "items", None)
            found += overriding(items) if isinstance(items, list) else []
    return found


def dispatch(
    tx: Translator,
    function: Callable[..., Any],
    args: Args,
    kwargs: Kwargs | None = None,
    *,
    body: BaseFunctionVariable | None = None,
) -> VariableTracker | None:
    """A call that modes and arguments may override; None if the function does not ask them. body: a
    function of torch written in Python; where it does not hand itself on, those that it calls do.
    """
    kwargs = kwargs or {}
    probes = _Probes()
    try:
        values = [probes.make(tx, arg) for arg in args]
        named = {name: probes.make(tx, value) for name, value in kwargs.items()}
    except _NoProbe as reason:
        if body is not None:
            return tx.inline(body, args, kwargs)
        unsupported("torch function override", str(reason), "an argument is not known")
    mode = _NotingMode() if tx.output.overrides.has_modes else contextlib.nullcontext()
    try:
        with torch._C._EnableTorchFunction(), mode:
            function(*values, **named)
    except _Noted as noted:
        func, noted_args, noted_kwargs = noted.call
    except Exception as error:
        text = f"{function!r}: {error}"
        unsupported("torch function override", text, "torch refuses the call")
    else:
        return None
    if body is not None and func is not function:
        return tx.inline(body, args, kwargs)
    given = tx.wrap_items(tuple, [probes.back(tx, item) for item in noted_args])
    keywords = {name: probes.back(tx, item) for name, item in (noted_kwargs or {}).items()}
    instances = overriding([*args, *kwargs.values()])
    return call_overrides(tx, function_value(func), instances, given, keywords)


def dispatched(
    tx: Translator,
    function: Callable[..., Any],
    args: Args,
    kwargs: Kwargs | None = None,
    *,
    body: BaseFunctionVariable | None = None,
) -> VariableTracker:
    """The same, where the function is known to ask."""
    result = dispatch(tx, function, args, kwargs, body=body)
    if result is None:
        text = repr(function)
        unsupported("torch function override", text, "no __torch_function__ is called for it")
    return result


class _NoProbe(Exception):
    """Nothing can stand for an argument."""


class _Probes:
    """What stands for the arguments of one call."""

    def __init__(self) -> None:
        self.known: dict[int, tuple[Any, VariableTracker]] = {}

    def make(self, tx: Translator, value: VariableTracker) -> Any:
        value = value.realize()
        if value.python_type() in (list, tuple) and not value.is_python_constant():
            return value.python_type()(self.make(tx, item) for item in value.unpack(tx))
        if isinstance(value, TensorVariable):
            made: Any = _empty(value.fake)
        elif is_overriding(value):
            plain = getattr(value, "plain", None)
            made = _ObjectProbe() if plain is None else _empty(plain.fake).as_subclass(_Probe)
        elif value.is_python_constant():
            return value.as_python_constant()
        elif isinstance(value, SymVariable) and value.python_type() is int:
            made = _Number(1)
        else:
            raise _NoProbe(repr(value))
        self.known[id(made)] = (made, value)
        return made

    def back(self, tx: Translator, item: Any) -> VariableTracker:
        if id(item) in self.known:
            return self.known[id(item)][1]
        if type(item) in (list, tuple):
            return tx.wrap_items(type(item), [self.back(tx, part) for part in item])
        return tx.wrap_constant(item)


def _empty(fake: torch.Tensor) -> torch.Tensor:
    shape = [int(size) if isinstance(size, int) else 2 for size in fake.shape]
    return torch.empty(shape, dtype=fake.dtype, device="meta")


def call_overrides(
    tx: Translator,
    func: VariableTracker,
    instances: list[VariableTracker],
    args: VariableTracker,
    kwargs: Kwargs,
) -> VariableTracker:
    """`handle_torch_function`: the innermost mode, without itself; else the classes of the
    arguments, subclasses before their bases, until one does not say NotImplemented.
    """
    output = tx.output
    first = {instance.python_type(): instance for instance in reversed(instances)}
    classes = _in_order(instances)
    kinds = tx.wrap_items(tuple, [tx.wrap_constant(cls) for cls in classes])
    call = [func, kinds, args, tx.wrap_keywords(kwargs)]
    if output.overrides.has_modes:
        mode = output.overrides.modes.pop()
        try:
            method = mode.getattr(tx, "__torch_function__")
            result = tx.call_function(method, call, {}).realize()
        finally:
            output.overrides.modes.append(mode)
        if not _is_not_implemented(result):
            return result
        classes = []
    for cls in classes:
        if output.overrides.are_subclasses_disabled and issubclass(cls, torch.Tensor):
            override: VariableTracker = CallableVariable(torch._C._disabled_torch_function_impl)
        else:
            override = _override(tx, cls, first[cls])
        result = tx.call_function(override, call, {}).realize()
        if not _is_not_implemented(result):
            return result
    unsupported("torch function override", repr(func), "all say NotImplemented")


def _override(
    tx: Translator,
    cls: type,
    instance: VariableTracker,
) -> VariableTracker:
    found = class_lookup(tx, cls, "__torch_function__")
    if found is not None and isinstance(found.raw, types.FunctionType):
        return instance.getattr(tx, "__torch_function__")
    return tx.wrap_constant(cls).getattr(tx, "__torch_function__")


def _in_order(instances: list[VariableTracker]) -> list[type]:
    classes: list[type] = []
    for cls in dict.fromkeys(instance.python_type() for instance in instances):
        bases = (i for i, other in enumerate(classes) if issubclass(cls, other))
        classes.insert(next(bases, len(classes)), cls)
    return classes


def _is_not_implemented(value: VariableTracker) -> bool:
    return value.is_python_constant() and value.as_python_constant() is NotImplemented


def function_value(func: Any) -> VariableTracker:
    """The function that `__torch_function__` is given, as a value."""
    if callable(func) and not hasattr(func, "__code__"):
        return CallableVariable(func)
    return UserFunctionVariable(func)


# -- tensors under modes ---------------------------------------------------------------------------


def access(
    tx: Translator,
    tensor: VariableTracker,
    name: str,
    args: Args,
    kwargs: Kwargs,
) -> VariableTracker:
    """A method, or an attribute (no arguments, `name` is no method), of a tensor under modes."""

    def method(probe: Any, *values: Any, **named: Any) -> Any:
        return getattr(probe, name)(*values, **named)

    known = getattr(torch.Tensor, name)
    if isinstance(known, types.FunctionType):
        body = UserFunctionVariable(known)
        return dispatched(tx, known, [tensor, *args], kwargs, body=body)
    if not callable(known):
        return dispatched(tx, lambda probe: getattr(probe, name), [tensor])
    return dispatched(tx, method, [tensor, *args], kwargs)


OVERRIDDEN_CALL.append(dispatch)
TENSOR_ACCESS.append(access)
