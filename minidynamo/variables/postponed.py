"""Calls of logging functions that the flags move behind the graph, or leave out.

`config.reorderable_logging_functions`: a call is recorded and made after the graph, in the order of
the program; what it is given is taken as it is then. `config.ignore_logging_functions` and
`ignore_logger_methods`: the call is left out and gives None.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from .. import config
from .._C import disabled
from ..side_effects import Mutation
from .base import VariableTracker, unsupported
from .constant import ConstantVariable
from .functions import (
    BoundMethodVariable,
    CallableVariable,
    MethodOfVariable,
    UserFunctionVariable,
)
from .symint import SymVariable
from .tensor import TensorVariable

if TYPE_CHECKING:
    from ..codegen import PyCodegen
    from ..symbolic_convert import Translator

Args = list[VariableTracker]
Kwargs = dict[str, VariableTracker]


class PostponedCall(VariableTracker):
    """One call; it is replayed as the mutation of a container of its own would be."""

    needs_preload = False

    def __init__(self, function: Callable[..., Any], args: Args, kwargs: Kwargs) -> None:
        super().__init__(mutation=Mutation.EXISTING)
        self.function = function
        self.args = args
        self.kwargs = kwargs

    def describe(self) -> str:
        return f"{getattr(self.function, '__name__', self.function)}(...)"

    def push_contents(self, codegen: PyCodegen) -> None:
        """All arguments as one tuple."""
        values = [*self.args, *self.kwargs.values()]
        codegen.sequence(values)
        codegen.emit("BUILD_TUPLE", len(values))

    def apply_contents(self, codegen: PyCodegen) -> None:
        function, n_args, names = self.function, len(self.args), tuple(self.kwargs)

        def call(values: tuple[Any, ...]) -> None:
            function(*values[:n_args], **dict(zip(names, values[n_args:], strict=True)))

        values = codegen.new_local()
        codegen.emit("STORE_FAST", values)
        codegen.begin_call(disabled(call))
        codegen.emit("LOAD_FAST", values)
        codegen.end_call(1)
        codegen.emit("POP_TOP")


class PostponedText(VariableTracker):
    """A formatted string with tensors in it, which only a postponed call may be given.

    parts: a text, or a tensor (or a text of symbolic numbers) and its format.
    """

    owns_operators = True

    def __init__(self, parts: list[str | tuple[VariableTracker, Any]]) -> None:
        super().__init__()
        self.parts: list[str | tuple[VariableTracker, Any]] = []
        for part in parts:
            if isinstance(part, str) and self.parts and isinstance(self.parts[-1], str):
                self.parts[-1] += part
            else:
                self.parts.append(part)

    def describe(self) -> str:
        return "a string with a tensor in it"

    def python_type(self) -> type:
        return str

    def operate(
        self,
        tx: Translator,
        function: Callable[..., Any],
        args: Args,
    ) -> VariableTracker:
        """`text + text`, and whether a text is itself."""
        if function in (operator.eq, operator.ne):
            texts = [arg.realize() for arg in args]
            pieces = [text.parts for text in texts if isinstance(text, PostponedText)]
            if len(pieces) == 2 and pieces[0] == pieces[1]:
                return ConstantVariable(function is operator.eq)
        is_sum = function in (operator.add, operator.iadd)
        if is_sum and all(arg.realize().python_type() is str for arg in args):
            whole = joined_texts([arg.realize() for arg in args])
            assert whole is not None
            return whole
        return super().operate(tx, function, args)


class PrintedText(PostponedText):
    """The same as argument of such a call, or of tensors that nothing changes, or with addresses of
    objects: made behind the graph.
    """

    def reconstruct(self, codegen: PyCodegen) -> None:
        tensors = [part[0] for part in self.parts if not isinstance(part, str)]
        pieces = [part if isinstance(part, str) else (part[1],) for part in self.parts]

        def text(*values: Any) -> str:
            rest = iter(values)
            made = (p if isinstance(p, str) else _shown(next(rest), p[0]) for p in pieces)
            return "".join(made)

        codegen.begin_call(disabled(text))
        codegen.sequence(tensors)
        codegen.end_call(len(tensors))

    def getattr(self, tx: Translator, name: str) -> VariableTracker:
        if name in ("startswith", "endswith"):
            return MethodOfVariable(self, name)
        return super().getattr(tx, name)

    def call_method(
        self, tx: Translator, name: str, args: Args, kwargs: Kwargs
    ) -> VariableTracker:
        given = [arg.realize() for arg in args]
        if name == "__contains__" and len(given) == 1:
            return self.contains(tx, given[0])
        if name in ("startswith", "endswith") and len(given) == 1 and _is_text(given[0]):
            part, end = given[0].as_python_constant(), self.parts[-(name == "endswith")]
            known = end if isinstance(end, str) else ""
            if getattr(known, name)(part):
                return ConstantVariable(True)
            if known and not getattr(part, name)(known):
                return ConstantVariable(False)
        unsupported("attribute", f"{self!r}.{name}", "its text is not known while tracing")

    def contains(self, tx: Translator, item: VariableTracker) -> VariableTracker:
        """What does not depend on the addresses in it, and on tensors."""
        item = item.realize()
        if not _is_text(item):
            return self.call_method(tx, "the contents", [item], {})
        part, known = item.as_python_constant(), [p for p in self.parts if isinstance(p, str)]
        if any(part in text for text in known):
            return ConstantVariable(True)
        match self.parts:
            case [str(left), (_, spec), str(right)] if spec is ADDRESS:
                if not _may_span(left, part, right):
                    return ConstantVariable(False)
        return self.call_method(tx, "the contents", [item], {})

    def getitem(self, tx: Translator, key: VariableTracker) -> VariableTracker:
        """Of its beginning."""
        key, begin = key.realize(), self.parts[0]
        if isinstance(begin, str) and key.is_python_constant():
            match key.as_python_constant():
                case slice(start=None | int() as start, stop=int(stop), step=None):
                    if (start or 0) >= 0 and 0 <= stop <= len(begin):
                        return ConstantVariable(begin[start:stop])
        return super().getitem(tx, key)


# Instead of a format: the digits of the object's address.
ADDRESS = object()


def _shown(value: Any, spec: Any) -> str:
    return f"{id(value):x}" if spec is ADDRESS else format(value, spec)


def _is_text(value: VariableTracker) -> bool:
    return value.is_python_constant() and type(value.as_python_constant()) is str


def _may_span(left: str, part: str, right: str) -> bool:
    """Whether the text may lie in `left`, an address and `right` so that it has digits of the
    address.
    """
    for begin in range(len(part)):
        for end in range(begin + 1, len(part) + 1):
            is_address = set(part[begin:end]) <= {*"0123456789abcdef"}
            if is_address and left.endswith(part[:begin]) and right.startswith(part[end:]):
                return True
    return False


def postponed_text(tx: Translator, value: VariableTracker, spec: str) -> PostponedText | None:
    """`format(value, spec)` of a tensor: of one number, made behind the graph if it is needed at
    all; of others, for functions whose calls are postponed.
    """
    if isinstance(value, PrintedText) and not spec:
        return value
    if not isinstance(value, TensorVariable):
        return None
    output = tx.output
    is_inside = output.body is not None or output.transform_levels
    if type(value) is TensorVariable and not (
        value.fake.dim() or value.fake.is_meta or is_inside
    ):
        detached = value.call_method(tx, "detach", [], {})
        copy = tx.call_operation(torch.clone, [detached], {})
        assert isinstance(copy, TensorVariable)
        # Left out of the graph if nothing needs the text.
        detached.as_proxy().meta["for_text"] = copy.node.meta["for_text"] = True
        return PrintedText([(copy, spec)])
    return PostponedText([(value, spec)]) if config.reorderable_logging_functions else None


def joined_texts(values: Args) -> PostponedText | None:
    """The pieces of an f-string as one, if one of them is postponed."""
    if not any(isinstance(value, PostponedText) for value in values):
        return None
    parts: list[str | tuple[VariableTracker, Any]] = []
    made: type[PostponedText] = PrintedText
    for value in values:
        if isinstance(value, PostponedText):
            parts += value.parts
            made = made if isinstance(value, PrintedText) else PostponedText
        elif value.is_python_constant():
            parts.append(value.as_python_constant())
        else:
            parts.append((value, ""))
    return made(parts)


def joined(tx: Translator, values: Args) -> VariableTracker:
    """The pieces of an f-string as one text."""
    text: VariableTracker | None = joined_texts(values)
    if text is None:
        join = "".join
        text = tx.call_function(tx.wrap_constant(join), [tx.wrap_items(tuple, values)], {})
    return text


def logging_call(
    tx: Translator, fn: VariableTracker, args: Args, kwargs: Kwargs
) -> VariableTracker | None:
    """The result of a call that a flag is about; None for every other call."""
    methods, functions = config.ignore_logger_methods, config.ignore_logging_functions
    reordered = config.reorderable_logging_functions
    if not (methods or functions or reordered):
        return None
    spellings = _spellings(tx, fn)
    if any(spelling in methods or spelling in functions for spelling in spellings):
        return ConstantVariable(None)
    function = next((item for item in spellings if item in reordered), None)
    if function is None:
        return None
    values = [value.realize() for value in (*args, *kwargs.values())]
    if not all(map(_is_plain, values)):
        return None
    args, kwargs = [_printed(v) for v in args], {k: _printed(v) for k, v in kwargs.items()}
    if isinstance(fn, BoundMethodVariable) and not isinstance(function, types.MethodType):
        args = [fn.receiver, *args]
    call = PostponedCall(function, args, kwargs)
    tx.output.side_effects.mutate(call)
    return ConstantVariable(None)


def _spellings(tx: Translator, fn: VariableTracker) -> list[Any]:
    """The real objects that the flags may name `fn` by."""
    if isinstance(fn, CallableVariable):
        return [fn.value]
    if isinstance(fn, UserFunctionVariable):
        return [fn.fn]
    if not isinstance(fn, BoundMethodVariable):
        return []
    function, receiver = fn.function.realize(), fn.receiver.realize()
    real = tx.output.side_effects.real_of(receiver)
    if not isinstance(function, UserFunctionVariable) or real is None:
        return []
    return [types.MethodType(function.fn, real), function.fn]


def _is_plain(value: VariableTracker) -> bool:
    """Whether the value will be the same behind the graph, or is the tensor itself."""
    if isinstance(value, (TensorVariable, SymVariable, PostponedText)):
        return True
    return value.is_python_constant()


def _printed(value: VariableTracker) -> VariableTracker:
    value = value.realize()
    return PrintedText(value.parts) if isinstance(value, PostponedText) else value
