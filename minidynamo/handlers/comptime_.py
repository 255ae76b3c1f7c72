"""`comptime`: functions of the program that look at the tracer while it runs."""

from __future__ import annotations

import builtins
import dis
import time
import traceback
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TextIO

import torch

from ..comptime import Comptime
from ..exc import MinidynamoError, UserError
from ..variables.base import NULL, LazyVariable, NotConstant, VariableTracker, unsupported
from ..variables.constant import ConstantVariable
from ..variables.functions import UserFunctionVariable
from ..variables.nested_functions import NestedFunctionVariable
from ..variables.registry import Handler, handles, handles_named
from ..variables.symint import SymVariable
from ..variables.tensor import TensorVariable

if TYPE_CHECKING:
    from ..symbolic_convert import Translator

Args = list[VariableTracker]
Kwargs = dict[str, VariableTracker]
NONE = ConstantVariable(None)


class ComptimeVar:
    """A value of the traced program, as far as it is known; `repr` says what it is."""

    def __init__(self, variable: VariableTracker, tx: Translator) -> None:
        self._variable = variable
        self._tx = tx

    def __repr__(self) -> str:
        variable = self._variable
        if variable is NULL:
            return "NULL"
        if isinstance(variable, LazyVariable) and not variable.is_realized:
            return (
                f"{type(variable.value).__qualname__} {variable.describe()}, not looked at yet"
            )
        variable = variable.realize()
        if isinstance(variable, TensorVariable):
            fake = variable.fake
            sizes = ", ".join(map(str, fake.shape))
            text = f"{str(fake.dtype).removeprefix('torch.')}[{sizes}] on {fake.device}"
            return f"{variable.python_type().__name__} {variable.describe()} {text}"
        if isinstance(variable, (SymVariable, ConstantVariable)):
            return f"{variable.python_type().__name__} {variable.describe()}"
        return repr(variable)

    def as_proxy(self) -> Any:
        """The node of the FX graph, or a nest of nodes and constants."""
        return self._variable.as_proxy()

    def is_proxy(self) -> bool:
        """Whether the value is a node of the graph."""
        return isinstance(self._variable.realize(), (TensorVariable, SymVariable))

    def as_fake(self) -> Any:
        """The fake tensor or symbolic number, for its dtype, sizes and so on. Not to be changed."""
        variable = self._variable.realize()
        if isinstance(variable, TensorVariable):
            return variable.fake
        if isinstance(variable, SymVariable):
            return variable.value
        raise UserError(f"comptime: {self!r} is neither a tensor nor a symbolic number")

    def size(self, dim: int | None = None) -> Any:
        """The size of a tensor, or of its dimension `dim`; it may be a SymInt."""
        return self.as_fake().size() if dim is None else self.as_fake().size(dim)

    def python_type(self) -> type:
        """What type() gives for the value."""
        return self._variable.python_type()

    def is_python_constant(self) -> bool:
        """Whether the value is known for sure."""
        return self._variable.is_python_constant()

    def as_python_constant(self) -> Any:
        """The value that is known for sure. Raises UserError for another."""
        try:
            return self._variable.as_python_constant()
        except NotConstant:
            raise UserError(f"comptime: {self!r} is no constant") from None

    def is_dynamic(self) -> bool:
        """Whether it is a number that is a symbol, or computed of symbols."""
        return isinstance(self._variable.realize(), SymVariable)

    def force_static(self) -> None:
        """Make a symbolic number a constant, with a guard. Raises UserError for other values."""
        variable = self._variable.realize()
        if not isinstance(variable, (SymVariable, ConstantVariable)):
            raise UserError(f"comptime: {self!r} is no number that could become a constant")
        variable.specialized(self._tx)


def _bound_locals(tx: Translator) -> dict[str, VariableTracker]:
    return {name: value for name, value in tx.visible_locals().items() if value is not None}


class ComptimeContext:
    """The tracer at one point of the program, in the function that called `comptime`.

    file: where the functions that print write to; None is stdout. stacklevel: so many callers
    further out, as far as they are in the captured frame.
    """

    def __init__(self, tx: Translator) -> None:
        self._tx = tx

    def _at(self, stacklevel: int) -> Translator:
        tx = self._tx
        for _ in range(stacklevel):
            if tx.parent is None:
                raise UserError(f"comptime: there is no caller {stacklevel} levels further out")
            tx = tx.parent
        return tx

    def parent(self) -> ComptimeContext:
        """The caller."""
        return ComptimeContext(self._at(1))

    def get_local(self, name: str, *, stacklevel: int = 0) -> ComptimeVar:
        """The local variable of that name. Raises UserError, with the bound names, for none."""
        tx = self._at(stacklevel)
        bound = _bound_locals(tx)
        if name not in bound:
            known = ", ".join(bound) or "(none)"
            raise UserError(f"comptime: no local {name!r} is bound here; bound: {known}")
        return ComptimeVar(bound[name], tx)

    def graph(self) -> torch.fx.Graph:
        """The FX graph as far as it is captured. Not to be changed."""
        return self._tx.output.graph

    def graph_break(self, msg: str = "") -> None:
        """End the graph here."""
        unsupported("graph_break()", msg, msg or "the program called comptime.graph_break()")

    def assert_static(self, val: ComptimeVar) -> None:
        """Raise AssertionError where the value is a symbolic number."""
        if val.is_dynamic():
            raise AssertionError(f"{val!r} is a symbol, not a constant")

    def print(self, val: Any, *, file: TextIO | None = None) -> None:
        """The value's repr."""
        print(repr(val), file=file)

    def print_graph(self, *, verbose: bool = True, file: TextIO | None = None) -> None:
        """The graph so far, as Python code; verbose: with types and sizes."""
        print(self.graph().python_code("self", verbose=verbose).src, file=file)

    def print_locals(self, *, file: TextIO | None = None, stacklevel: int = 0) -> None:
        """The local variables and what is known about them."""
        tx = self._at(stacklevel)
        for name, value in _bound_locals(tx).items():
            print(f"{name} = {ComptimeVar(value, tx)!r}", file=file)

    def print_value_stack(self, *, file: TextIO | None = None, stacklevel: int = 0) -> None:
        """What lies on the interpreter's stack, the top last."""
        tx = self._at(stacklevel)
        for value in tx.stack:
            print(f"- {ComptimeVar(value, tx)!r}", file=file)

    def print_guards(self, *, file: TextIO | None = None) -> None:
        """The guards so far, one line each."""
        print(*self._tx.output.guards.describe(), sep="\n", file=file)

    def print_bt(self, *, file: TextIO | None = None, stacklevel: int = 0) -> None:
        """The user's frames, from the frame that is captured inwards."""
        stack = traceback.StackSummary.from_list(self._at(stacklevel).user_stack())
        print("".join(stack.format()), file=file, end="")

    def print_disas(self, *, file: TextIO | None = None, stacklevel: int = 0) -> None:
        """The bytecode, with an arrow at the running instruction."""
        tx = self._at(stacklevel)
        print(dis.Bytecode(tx.code, current_offset=tx.current.offset).dis(), file=file, end="")

    def sleep(self, sec: float) -> None:
        """Let the compiler wait."""
        time.sleep(sec)


def _function_of(value: VariableTracker) -> Callable[[ComptimeContext], Any]:
    """The real function that the program gave. One that it made may not have a closure."""
    if isinstance(value, UserFunctionVariable):
        return value.as_python_constant()
    if isinstance(value, NestedFunctionVariable) and not value.cells:
        return types.FunctionType(value.code, value.globals, value.name)
    raise UserError(
        "comptime: fn must be a Python function without variables of the compiled function in"
        f" its closure, not {value!r}; ctx.get_local(name) gives the variables"
    )


def _run(tx: Translator, look: Callable[[ComptimeContext], Any]) -> VariableTracker:
    """Call it; what it raises is the user's to see, not a reason to leave the frame to eager."""
    try:
        look(ComptimeContext(tx))
    except MinidynamoError:
        raise
    except Exception as error:
        raise UserError(f"comptime: {type(error).__name__}: {error}") from error
    return NONE


def _handles(name: str) -> Callable[[Handler], Handler]:
    """Register for our function of that name and for torch's."""

    def register(handler: Handler) -> Handler:
        handles_named(f"torch._dynamo.comptime._Comptime.{name}")(handler)
        return handles(getattr(Comptime, name))(handler)

    return register


@_handles("__call__")
def comptime_call(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
    fn = args[0] if args else kwargs["fn"]
    return _run(tx, _function_of(fn.realize()))


def _value(tx: Translator, args: Args, kwargs: Kwargs, name: str) -> ComptimeVar:
    return ComptimeVar(args[0] if args else kwargs[name], tx)


@_handles("print")
def print_value(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
    return _run(tx, lambda ctx: ctx.print(_value(tx, args, kwargs, "e")))


@_handles("assert_static")
def assert_static(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
    return _run(tx, lambda ctx: ctx.assert_static(_value(tx, args, kwargs, "val")))


@_handles("force_static")
def force_static(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
    return _run(tx, lambda _: _value(tx, args, kwargs, "val").force_static())


@_handles("print_value_stack_and_return")
def print_stack_and_return(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
    level = kwargs.pop("stacklevel", None)
    given = {} if level is None else {"stacklevel": level.as_python_constant()}
    _run(tx, lambda ctx: ctx.print_value_stack(**given))
    return args[0] if args else kwargs["e"]


@_handles("breakpoint")
def open_debugger(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
    def stop(ctx: ComptimeContext) -> None:
        builtins.breakpoint()  # ctx: the tracer where the program called this

    return _run(tx, stop)


def _plain(name: str) -> None:
    """A method of the context that takes constants."""

    def handler(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
        values = [arg.as_python_constant() for arg in args]
        named = {key: value.as_python_constant() for key, value in kwargs.items()}
        return _run(tx, lambda ctx: getattr(ctx, name)(*values, **named))

    _handles(name)(handler)


for _name in (
    "print_locals print_value_stack print_graph print_guards print_bt print_disas"
    " graph_break sleep".split()
):
    _plain(_name)
