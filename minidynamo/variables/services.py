"""What symbolic values ask of the interpreter: wrapping, folding, adding nodes, calling, raising.

`Services` is the base of `symbolic_convert.Translator`; values receive it as `tx`.
"""

from __future__ import annotations

import inspect
import operator
import traceback
import types
from collections.abc import Callable, Sequence, Sized
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from .. import markers, trace_rules
from ..exc import MinidynamoError, Unsupported, UserError
from ..guards import Check, starts_from
from ..source import AttrSource, ConstSource, ListItemSource
from ..trace_rules import Rule
from ..utils import class_dict
from . import builder, constant_calls, skipping, symint, type_questions
from .base import (
    MAX_ITEMS,
    AttributeOf,
    LazyVariable,
    NotConstant,
    ObservedException,
    VariableTracker,
    unsupported,
)
from .builtin_object import BuiltinObject
from .constant import ConstantVariable, is_inert, is_value, may_run_code
from .descriptors import GETTERS, bind, class_lookup
from .functions import BaseFunctionVariable, UserFunctionVariable
from .number_tensors import with_items
from .opaque import check_reads, with_fields
from .postponed import logging_call
from .raising import note_raising
from .registry import handler_of
from .tensor import TensorVariable, wrap_node

if TYPE_CHECKING:
    from ..output_graph import OutputGraph
    from ..source import Source

# Graph break kinds that a call of the user's markers gives.
_MARKED = {
    markers.Decision.DISALLOW: ("disallowed function", "it was passed to disallow_in_graph"),
    markers.Decision.DISABLE: ("disabled function", "it was passed to disable"),
    markers.Decision.DISABLE_SHALLOW: ("disabled function", "it was passed to disable"),
}

_C_METHODS = (types.MethodDescriptorType, types.WrapperDescriptorType)


class Services:
    """The tracer's operations on values. `output` is the graph under construction."""

    output: OutputGraph
    # The value whose call (or the AttributeOf whose getter) gives the running instruction's
    # result: a function called for it, with nothing to do afterwards, is resumed after a break.
    in_tail: VariableTracker | AttributeOf | None = None
    # The object that the running instruction pushes, whose `__init__` it calls, which returns None.
    made: VariableTracker | None = None

    # -- wrapping ---------------------------------------------------------------------------------

    def wrap(self, value: Any, source: Source) -> VariableTracker:
        """The value of an object of the frame, with its guards."""
        return builder.wrap(self, value, source)  # type: ignore[arg-type]

    def lazy(self, value: Any, source: Source) -> VariableTracker:
        """The same, but guards are added only when the value is looked at."""
        return LazyVariable(value, source, self.wrap, self.output.realized)

    def wrap_constant(self, value: Any) -> VariableTracker:
        """A value that the tracer computed."""
        return builder.from_python(self, value)  # type: ignore[arg-type]

    def wrap_held(self, value: Any, label: str) -> VariableTracker:
        """An object made while tracing that is the same in each call: the guards keep it alive."""
        if is_value(value):
            return self.wrap_constant(value)
        return self.wrap(value, ListItemSource(ConstSource([value], label), 0))

    def wrap_number(self, value: Any, **made: Any) -> VariableTracker:
        """A symbolic number."""
        return symint.wrap_number(self, value, **made)  # type: ignore[arg-type]

    def wrap_items(self, type_: type, items: Sequence[VariableTracker]) -> VariableTracker:
        """A new tuple, list, set, namedtuple ... (by `type_`) of traced items."""
        return SEQUENCE_BUILDERS[_sequence_family(type_)](self, type_, list(items))

    def ask_length(self, value: VariableTracker) -> None:
        """`PyObject_LengthHint`, where a class of the program answers it."""
        own = value.is_user_defined
        if isinstance(value, BuiltinObject):
            own = value.overrides("__len__") or value.overrides("__length_hint__")
            own = own or value.hints_length
        if own:
            self.call_function(self.wrap_constant(operator.length_hint), [value], {})

    def wrap_keywords(self, items: dict[str, VariableTracker]) -> VariableTracker:
        """A new dict with string keys."""
        return SEQUENCE_BUILDERS[dict](self, dict, items)

    def unpack_keywords(self, value: VariableTracker) -> dict[str, VariableTracker]:
        """The items of a mapping whose keys are strings, as `**value` gives them."""
        names = value.call_method(self, "keys", [], {}).unpack(self)  # type: ignore[arg-type]
        result = {}
        for name in names:
            key = name.realize()
            if not issubclass(key.python_type(), str):
                self.raise_observed(TypeError, "keywords must be strings")
            result[key.as_python_constant()] = value.getitem(self, key)  # type: ignore[arg-type]
        return result

    def sequence_iterator(self, items: Sequence[VariableTracker]) -> VariableTracker:
        """A new iterator over `items`."""
        return SEQUENCE_BUILDERS[iter](self, iter, list(items))

    def constant_iterator(self, sequence: Any) -> VariableTracker:
        """A new iterator over a constant str, bytes, range or tuple."""
        return SEQUENCE_BUILDERS["constant"](self, sequence)

    def constant_set(self, value: frozenset[Any]) -> VariableTracker:
        """A constant frozenset as traced one."""
        return SEQUENCE_BUILDERS["constant set"](self, value)

    def source_of(self, variable: VariableTracker, value: Any) -> Source:
        """The value's source, or one that holds the real object itself."""
        return variable.source if variable.source is not None else ConstSource(value)

    def guard(self, source: Source, kind: str, expected: Any = None) -> None:
        """Let the compiled code stand only while the check holds; `kind` names a `guards.Check`."""
        if not starts_from(source, self.output.side_effects.stand_ins):  # parts of this code
            self.output.guards.add(source, Check[kind], expected, self.user_stack)

    def user_stack(self) -> list[traceback.FrameSummary]:
        raise NotImplementedError

    def last_step(self) -> int:
        raise NotImplementedError

    # -- computing --------------------------------------------------------------------------------

    def fold(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Run `fn` on real values now; its exception is the traced program's."""
        try:
            result = fn(*args, **kwargs)
        except (MinidynamoError, RecursionError):
            raise
        except Exception as error:
            raise ObservedException(self.wrap_exception(error)) from error
        self.output.shapes.note_guards(self.user_stack)
        return self.wrap_constant(result)

    def wrap_exception(self, error: BaseException) -> VariableTracker:
        """The traced value of an exception that Python raised while the tracer
        computed something.
        """
        return EXCEPTION_BUILDER[0](self, error)

    def raise_observed(self, type_: type[BaseException], *args: Any) -> NoReturn:
        """Raise an exception of the traced program."""
        raise ObservedException(self.wrap_exception(type_(*args)))

    def as_proxy(self, value: VariableTracker) -> Any:
        return value.realize().as_argument(self).as_proxy()  # type: ignore[arg-type]

    def add_node(
        self, op: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> VariableTracker:
        """Add an operation to the graph and wrap its result."""
        stack = self.user_stack()
        asserted = self.output.shape_env.num_deferred_runtime_asserts
        try:
            node = self.output.create_node(op, target, args, kwargs, stack)
        except Unsupported as failure:
            if isinstance(
                failure.__cause__, TypeError
            ):  # flags of operators are Python's bools
                mended = symint.with_truths(self, (args, kwargs), failure)  # type: ignore[arg-type]
            else:
                mended = with_items(self, (op, target), (args, kwargs), failure)  # type: ignore[arg-type]
            args, kwargs = mended
            node = self.output.create_node(op, target, args, kwargs, stack)
        node.meta["step"] = self.last_step()
        note_raising(self, node, asserted)  # type: ignore[arg-type]
        if _is_inplace(op, target) or "out" in kwargs:
            self.output.side_effects.version += 1
            self.output.side_effects.check_choices()
        return wrap_node(self, node)  # type: ignore[arg-type]

    def wrap_node(self, node: Any) -> VariableTracker:
        """The value of a node that was added otherwise."""
        return wrap_node(self, node)  # type: ignore[arg-type]

    # -- calling ----------------------------------------------------------------------------------

    def get_described(self, descriptor: Any, holder: VariableTracker) -> VariableTracker:
        """`descriptor.__get__(holder)` for one of `GETTERS`."""
        name = descriptor.__name__
        cls = holder.python_type()
        found = next(
            (class_dict(base)[name] for base in cls.__mro__ if name in class_dict(base)), None
        )
        plain = cls.__getattribute__ in (object.__getattribute__, type.__getattribute__)
        if found is not descriptor or not (plain or isinstance(holder, TensorVariable)):
            what = f"{descriptor!r}.__get__({holder!r})"
            unsupported("call of an untraced function", what, f"{what} is not traced")
        return holder.getattr(self, name)  # type: ignore[arg-type]

    def call_function(
        self,
        fn: VariableTracker,
        args: list[VariableTracker],
        kwargs: dict[str, VariableTracker],
    ) -> VariableTracker:
        """Call a traced value with traced arguments."""
        fn = fn.realize()
        for answer in (logging_call, type_questions.answer_by_type):
            if (answered := answer(self, fn, args, kwargs)) is not None:  # type: ignore[arg-type]
                return answered
        if not fn.takes_lazy_args:
            args = [arg.realize() for arg in args]
            kwargs = {name: arg.realize() for name, arg in kwargs.items()}
        if self.output.shapes.is_empty or isinstance(fn, BaseFunctionVariable):
            return fn.call(self, args, kwargs)  # type: ignore[arg-type]
        return self._or_with_constants(lambda: fn.call(self, args, kwargs), args, kwargs)  # type: ignore[arg-type]

    def _or_with_constants(
        self,
        attempt: Callable[[], VariableTracker],
        args: list[VariableTracker],
        kwargs: dict[str, VariableTracker],
    ) -> VariableTracker:
        """The result of `attempt`; where that is not traced, once more with the symbolic numbers in
        the arguments as constants.
        """
        checkpoint = self.output.checkpoint()
        try:
            return attempt()
        except (Unsupported, NotConstant):
            numbers = symint.symbols_in([*args, *kwargs.values()])
            numbers = [number for number in numbers if not number.is_python_constant()]
            if not numbers or not self.output.can_rollback(checkpoint):
                raise
            self.output.rollback(checkpoint)
            for number in numbers:
                number.specialized(self)  # type: ignore[arg-type]
            args[:] = [self._constant_or_same(arg) for arg in args]
            kwargs.update({name: self._constant_or_same(arg) for name, arg in kwargs.items()})
        try:
            return attempt()
        except Unsupported as reason:
            reason.specialized_in_vain = True
            raise

    def _constant_or_same(
        self,
        value: VariableTracker,
    ) -> VariableTracker:
        """Texts and ints: guards on sums of floats add them in another order."""
        is_int = isinstance(value, symint.SymVariable) and value.python_type() is int
        if is_int or value.is_symbolic_text:
            return value.specialized(self)  # type: ignore[arg-type]
        return value

    def call_for(
        self,
        caller: VariableTracker | AttributeOf | None,
        fn: VariableTracker,
        args: list[VariableTracker],
        kwargs: dict[str, VariableTracker],
    ) -> VariableTracker:
        """`call_function`, where the result is what calling `caller` gives, and nothing follows."""
        fn = fn.realize()
        self.in_tail = fn if caller is not None and self.in_tail is caller else None
        return self.call_function(fn, args, kwargs)

    given_locals: VariableTracker | None = None

    def visible_locals(self) -> dict[str, VariableTracker | None]:
        raise NotImplementedError

    def inline(
        self,
        fn: BaseFunctionVariable,
        args: list[VariableTracker],
        kwargs: dict[str, VariableTracker],
    ) -> VariableTracker:
        raise NotImplementedError

    def call_python_function(
        self,
        fn: UserFunctionVariable,
        args: list[VariableTracker],
        kwargs: dict[str, VariableTracker],
    ) -> VariableTracker:
        """A call of a Python function: handler, graph node, inlining or break."""
        substitute = markers.substitute_of(fn.fn)
        if substitute is not None:
            return self.inline(UserFunctionVariable(substitute), args, kwargs)
        if trace_rules.is_operation(fn.fn) and self.is_overridden([*args, *kwargs.values()]):
            overridden = OVERRIDDEN_CALL[0](self, fn.fn, args, kwargs, body=fn)
            if overridden is not None:
                return overridden
        wrapped = trace_rules.wrapped_attribute(fn.fn)
        if wrapped is not None:
            source = AttrSource(self.source_of(fn, fn.fn), wrapped)
            return self.call_for(fn, self.wrap(getattr(fn.fn, wrapped), source), args, kwargs)
        handler = handler_of(fn.fn)
        rule = skipping.rule_of(self, fn.fn)  # type: ignore[arg-type]
        if handler is None and rule is Rule.INLINE:
            return self.inline(fn, args, kwargs)
        args = [arg.realize() for arg in args]
        kwargs = {name: arg.realize() for name, arg in kwargs.items()}
        if handler is not None and rule is Rule.INLINE:
            if self.output.overrides.has_modes:
                _refuse_below_modes(handler, fn.fn)
            in_tail, self.in_tail = self.in_tail, None
            result = handler(self, args, kwargs)  # type: ignore[arg-type]
            if result is not NotImplemented:
                return result
            self.in_tail = in_tail
            return self.inline(fn, args, kwargs)
        return self.call_real_callable(fn, fn.fn, args, kwargs)

    def is_overridden(self, values: Sequence[VariableTracker]) -> bool:
        """Whether a function of torch with these arguments goes to a `__torch_function__`."""
        return self.output.overrides.has_modes or has_subclass(values)

    def call_real_callable(
        self,
        fn: VariableTracker,
        value: Any,
        args: list[VariableTracker],
        kwargs: dict[str, VariableTracker],
    ) -> VariableTracker:
        """A call of a callable known by identity; arguments are realised."""
        substitute = markers.substitute_of(value)
        if substitute is not None:
            return self.inline(UserFunctionVariable(substitute), args, kwargs)
        asked = () if value is torch.as_tensor else (*args, *kwargs.values())  # by modes alone
        if _is_torch(value) and self.is_overridden(asked):
            overridden = OVERRIDDEN_CALL[0](self, value, args, kwargs)
            if overridden is not None:
                return overridden
        if self.output.shapes.is_empty:
            return self._call_callable(fn, value, args, kwargs)
        result = symint.symbolic_call(self, value, args, kwargs)  # type: ignore[arg-type]
        if result is not None:
            return result
        return self._or_with_constants(
            lambda: self._call_callable(fn, value, args, kwargs), args, kwargs
        )

    def _call_callable(
        self,
        fn: VariableTracker,
        value: Any,
        args: list[VariableTracker],
        kwargs: dict[str, VariableTracker],
    ) -> VariableTracker:
        if trace_rules.is_pure(value):
            folded = self._fold_pure(value, args, kwargs)
            if folded is not None:
                return folded
        handler = handler_of(value)
        if handler is not None and self.output.overrides.has_modes:
            _refuse_below_modes(handler, value)
        if handler is not None and markers.decision(value) is None:
            result = handler(self, args, kwargs)  # type: ignore[arg-type]
            if result is not NotImplemented:
                return result
        rule = skipping.rule_of(self, value)  # type: ignore[arg-type]
        if rule is Rule.CONSTANT:
            return constant_calls.call_once(self, value, args, kwargs)  # type: ignore[arg-type]
        if rule is Rule.GRAPH:
            if markers.decision(value) is markers.Decision.NONSTRICT:
                traced: Any = markers.call_nonstrictly
                return self.inline(UserFunctionVariable(traced), [fn, *args], kwargs)
            if isinstance(fn, UserFunctionVariable) and _has_callbacks(args, kwargs):
                return self.inline(fn, args, kwargs)
            return self.call_operation(value, args, kwargs)
        return self._call_bound(fn, value, args, kwargs)

    def _call_bound(
        self,
        fn: VariableTracker,
        value: Any,
        args: list[VariableTracker],
        kwargs: dict[str, VariableTracker],
    ) -> VariableTracker:
        """Methods of types (`list.append`, `torch.Tensor.add`) and of objects (`"".join`); else a
        break.
        """
        unbound = isinstance(value, _C_METHODS) and bool(args)
        if unbound and issubclass(args[0].python_type(), value.__objclass__):
            own = args[0].is_user_defined or args[0].overrides(value.__name__)
            own |= issubclass(args[0].python_type(), type)
            if isinstance(args[0], ConstantVariable):  # `int.__repr__(True)`
                own |= getattr(args[0].python_type(), value.__name__, value) is not value
            if own or isinstance(args[0], BuiltinObject):
                # Not what a subclass made of it, nor what a class has for its instances.
                return args[0].call_builtin(self, value, args[1:], kwargs)  # type: ignore[arg-type]
            return args[0].call_method(self, value.__name__, args[1:], kwargs)  # type: ignore[arg-type]
        receiver = getattr(value, "__self__", None)
        if isinstance(receiver, GETTERS) and value.__name__ == "__get__" and args:
            return self.get_described(receiver, args[0])
        if is_value(receiver) and (
            receiver is not None or isinstance(value, types.MethodWrapperType)
        ):
            bound = self.wrap_constant(receiver)
            return bound.call_method(self, value.__name__, args, kwargs)  # type: ignore[arg-type]
        said = markers.decision(value)
        name = getattr(value, "__qualname__", None) or repr(value)
        if said is markers.Decision.FORBID:
            raise UserError(f"{name}, passed to forbid_in_graph, is called in captured code")
        kind, why = _MARKED.get(said, ("", "")) if said else ("", "")
        module = getattr(value, "__module__", None)
        unsupported(
            kind or "call of an untraced function",
            f"{module}.{name}" if module else name,
            f"{name} is not traced: {why or 'it is not known to be free of side effects'}",
            ["move the call out of the compiled function, or accept the graph break"],
        )

    def _fold_pure(
        self, fn: Any, args: list[VariableTracker], kwargs: dict[str, VariableTracker]
    ) -> VariableTracker | None:
        """The result of a pure function on constants, or None: arguments that run code of the
        user are not folded; neither are results that may hold a list, whose identity counts.
        """
        constants = self.constants_of(args, kwargs)
        if constants is None:
            return None
        values = [*constants[0], *constants[1].values()]
        is_long = fn in _REPEATING and _is_long(values)
        if is_long or not all(map(is_inert, values)) or may_run_code(fn, values):
            return None
        try:
            result = self.fold(fn, *constants)
        except Unsupported:  # such as an array
            return None
        is_kept = isinstance(result, ConstantVariable) or all(map(is_value, values))
        return result if is_kept else None

    def constants_of(
        self, args: list[VariableTracker], kwargs: dict[str, VariableTracker]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """The arguments of a call, if all are known while tracing; else None."""
        try:
            return (
                tuple(arg.as_python_constant() for arg in args),
                {name: arg.as_python_constant() for name, arg in kwargs.items()},
            )
        except NotConstant:
            return None

    def call_operation(
        self,
        target: Callable[..., Any],
        args: list[VariableTracker],
        kwargs: dict[str, VariableTracker],
    ) -> VariableTracker:
        """`target(*args, **kwargs)` as one node of the graph."""
        check_reads(self, target)  # type: ignore[arg-type]
        target, args, kwargs = with_fields(self, target, args, kwargs)  # type: ignore[arg-type]
        proxies = tuple(self.as_proxy(arg) for arg in args)
        named = {name: self.as_proxy(arg) for name, arg in kwargs.items()}
        result = self.add_node("call_function", target, proxies, named)
        if _is_foreach_in_place(target):  # it returns the list itself
            return args[0] if args else kwargs["self"]
        return result

    # -- attributes of real objects ----------------------------------------------------------------

    def object_getattr(
        self, variable: VariableTracker, value: Any, name: str
    ) -> VariableTracker:
        """An attribute of a function, class or C object, read from the real object and guarded."""
        stored = self.output.side_effects.load_attr(variable, name)
        if isinstance(stored, VariableTracker):
            return stored
        try:
            # What only a `__getattr__` knows, as the overloads of an operator, is not found here.
            result = inspect.getattr_static(value, name, None)
            found = class_lookup(self, type(value), name)  # type: ignore[arg-type]
            if found is not None and found.raw is result and isinstance(result, _C_METHODS):
                # A bound C method is a new object each time: its function is what stays.
                return bind(self, found, variable, type(value))  # type: ignore[arg-type]
            result = getattr(value, name)
        except AttributeError as error:
            if variable.source is not None and hasattr(value, "__dict__"):
                self.guard(variable.source, "LACKS_ATTR", name)
            raise ObservedException(self.wrap_exception(error)) from None
        if variable.source is None:
            return self.wrap_constant(result)
        return self.wrap(result, AttrSource(variable.source, name))

    def tensor_getattr(self, variable: TensorVariable, name: str) -> VariableTracker:
        """Attributes of tensors beyond metadata: methods, user-set attributes, `grad`."""
        return TENSOR_GETATTR[0](self, variable, name)


def _has_callbacks(args: list[VariableTracker], kwargs: dict[str, VariableTracker]) -> bool:
    """Whether a function of torch gets something to call, which no node can hold."""
    return any(
        isinstance(arg, BaseFunctionVariable)
        or (
            arg.is_user_defined
            and any("__call__" in vars(c) for c in arg.python_type().__mro__)
        )
        for arg in (*args, *kwargs.values())
    )


# What torch calls below these is not traced call by call, as function modes see it.
_NOT_BELOW_MODES = tuple(
    f"minidynamo.handlers.{name}"
    for name in "autograd_function checkpointing functorch higher_order nn_modules numpy_"
    " torch_distributions torch_optim torch_parameters torch_rnn".split()
)
# Modes do not see how levels of `torch.func` are opened and tensors wrapped for them.
_UNSEEN_BY_MODES = ("torch._functorch.predispatch", "torch._C._functorch")


def _refuse_below_modes(handler: Callable[..., Any], value: Any) -> None:
    is_unseen = getattr(value, "__module__", None) in _UNSEEN_BY_MODES
    if is_unseen and value.__name__ not in ("_make_dual", "_unpack_dual"):
        return
    if handler.__module__ in _NOT_BELOW_MODES:
        name = getattr(value, "__qualname__", repr(value))
        unsupported("function mode", name, "a torch function mode sees what it calls")


def has_subclass(values: Sequence[VariableTracker]) -> bool:
    """Whether an argument, or an item of a list or tuple among them, has a `__torch_function__`
    that is traced.
    """
    for value in values:
        value = value.realize()
        if value.is_user_defined and hasattr(value.python_type(), "__torch_function__"):
            return True
        items = getattr(value, "items", None)
        if type(items) is list and items and has_subclass(items):
            return True
    return False


def _is_torch(value: Any) -> bool:
    is_method = isinstance(value, _C_METHODS) and issubclass(value.__objclass__, torch.Tensor)
    return is_method or trace_rules.is_operation(value)


def _is_inplace(op: str, target: Any) -> bool:
    name = target if op == "call_method" else getattr(target, "__name__", "")
    if name in ("setitem", "iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow"):
        return True
    if name in ("iand", "ior", "ixor", "ilshift", "irshift", "imatmul", "__setitem__"):
        return True
    return name.endswith("_") and not name.endswith("__")


def _is_foreach_in_place(target: Any) -> bool:
    """The operators of `torch.ops` return nothing."""
    name = getattr(target, "__name__", "")
    is_named = name.startswith("_foreach_") and name.endswith("_")
    return is_named and target is getattr(torch, name, None)


_REPEATING = (operator.mul, operator.imul)


def _is_long(values: list[Any]) -> bool:
    """Whether repeating a list, say, makes more of it than there may be while tracing."""
    times = [value for value in values if type(value) is int]
    sized = [value for value in values if isinstance(value, Sized)]
    return bool(times and sized) and len(sized[0]) * times[0] > MAX_ITEMS


def _sequence_family(type_: type) -> Any:
    for family in (tuple, list, set, frozenset, dict):
        if issubclass(type_, family):
            return family
    return type_


# Filled by the modules that own the types: family (or `iter`) -> builder(tx, type, items).
SEQUENCE_BUILDERS: dict[Any, Callable[..., VariableTracker]] = {}
EXCEPTION_BUILDER: list[Callable[..., VariableTracker]] = []
TENSOR_GETATTR: list[Callable[..., VariableTracker]] = []
OVERRIDDEN_CALL: list[Callable[..., VariableTracker | None]] = []

__all__ = ["EXCEPTION_BUILDER", "SEQUENCE_BUILDERS", "TENSOR_GETATTR", "Services", "torch"]
