"""Hooks of tensors.

`register_hook` on tensors that the graph makes: the hook becomes a graph of its own. The node
registers it for real, in eager as under AOTAutograd, whose backward graph then contains what the
hook does. A hook must not change what is outside of it, nor refer to what others may change until
the backward pass; else eager registers it. With fullgraph it sees what is there when it is
registered, as under torch.compile, and a warning says so.

On inputs of the graph, registering is a side effect, made behind the graph: whatever the hook does
is run by the backward pass, as in eager.
"""

from __future__ import annotations

import dis
import functools
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
)
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch.utils.hooks import RemovableHandle

from .._C import disabled
from ..bytecode import instruction_index
from ..side_effects import Mutation, is_full
from ..subgraphs import add_submodule
from ..utils import warn_once
from ..variables.base import LazyVariable, VariableTracker, unsupported
from ..variables.bodies import TracedBody, new_tensor, trace_body
from ..variables.constant import ConstantVariable
from ..variables.deques import DequeVariable
from ..variables.dicts import DictVariable
from ..variables.functions import (
    BaseFunctionVariable,
    CellVariable,
    MethodOfVariable,
    UserFunctionVariable,
)
from ..variables.lists import ListVariable
from ..variables.reach import reached
from ..variables.sets import SetVariable
from ..variables.tensor import TensorVariable, is_leaf, tensor_method
from ..variables.user_defined import UserDefinedObjectVariable
from .functools_ import PartialVariable

if TYPE_CHECKING:
    from torch.fx.node import Node

    from ..codegen import PyCodegen
    from ..output_graph import GraphInput
    from ..subgraphs import Body
    from ..symbolic_convert import Translator

Args = list[VariableTracker]
Kwargs = dict[str, VariableTracker]


_CONTAINERS = (ListVariable, DictVariable, SetVariable, DequeVariable)
# Of objects that a program can reach, those of these types stay as they are.
_SETTLED = (
    *(bool, int, float, complex, str, bytes, type, range, slice, type(None), type(Ellipsis)),
    *(torch.Tensor, torch.dtype, torch.device, torch.memory_format, torch.layout),
    *(ModuleType, BuiltinFunctionType, MethodDescriptorType),
)
_CHANGES = "it does not see changes before the backward pass"
_BINDS = ("STORE_DEREF", "DELETE_DEREF")


def _may_change(tx: Translator, hook: VariableTracker) -> bool:
    """Whether a hook refers to what others may change until the backward pass runs it."""
    todo: list[Any] = []
    items = list(reached(tx, [hook]))
    # As those of real ones, whose dict nobody changes.
    keywords = [item.keywords for item in items if isinstance(item, PartialVariable)]
    owned = {id(part) for lazy in keywords for part in (lazy, lazy.realize())}
    for item in items:
        if id(item) in owned:
            todo += item.value.values() if isinstance(item, LazyVariable) else ()
        elif isinstance(item, (*_CONTAINERS, UserDefinedObjectVariable)):
            return True
        elif isinstance(item, CellVariable):
            if item.real is not None and is_full(item.real):
                todo.append(item.real.cell_contents)
        elif isinstance(item, UserFunctionVariable):
            todo.append(item.fn)
        elif isinstance(item, BaseFunctionVariable):
            todo += _globals_of(item.get_code(), item.get_globals())
        elif isinstance(item, LazyVariable):
            todo.append(item.value)
    known = set[int]()
    while todo:
        value = todo.pop()
        if id(value) in known or isinstance(value, _SETTLED):
            continue
        known.add(id(value))
        if isinstance(value, FunctionType):
            todo += [cell.cell_contents for cell in value.__closure__ or () if is_full(cell)]
            todo += _globals_of(value.__code__, value.__globals__)
        elif isinstance(value, MethodType):
            todo += [value.__func__, value.__self__]
        elif isinstance(value, functools.partial):
            todo += [value.func, *value.args, *value.keywords.values()]
        elif isinstance(value, (tuple, frozenset)):
            todo += value
        else:
            return True
    return False


def _globals_of(code: CodeType, values: dict[str, Any]) -> list[Any]:
    """What a program's function finds by name; torch's own have nothing that changes."""
    if str(values.get("__name__")).partition(".")[0] == "torch":
        return []
    return [values[name] for name in code.co_names if name in values]


def _binds_again(tx: Translator, hook: VariableTracker) -> bool:
    """Whether the traced code itself is known to change what a hook refers to."""
    cells = (item for item in reached(tx, [hook]) if isinstance(item, CellVariable))
    return any(_is_bound_again(tx, cell) for cell in cells)


def _is_bound_again(tx: Translator, cell: CellVariable) -> bool:
    """Whether the rest of a frame that made the cell, or a function in it, stores into it."""
    frame: Translator | None = tx
    while frame is not None:
        for name, own in frame.cells.items():
            if own is cell and (_stores_later(frame, name) or _stores_within(frame.code, name)):
                return True
        frame = frame.parent
    return False


def _stores_later(frame: Translator, name: str) -> bool:
    """Loops around what runs now begin again."""
    numbers = instruction_index(frame.code)
    start, end = frame.ip, -1
    while start != end:
        end = start
        later = frame.instructions[start:]
        start = min([start, *(numbers[i.target] for i in later if i.target is not None)])
    return any(i.opname in _BINDS and i.arg == name for i in frame.instructions[start:])


def _stores_within(code: CodeType, name: str) -> bool:
    """Whether functions that the code makes store into its variable."""
    for inner in code.co_consts:
        if isinstance(inner, CodeType) and name in inner.co_freevars:
            if any(
                i.opname in _BINDS and i.argval == name for i in dis.get_instructions(inner)
            ):
                return True
            if _stores_within(inner, name):
                return True
    return False


class HookHandleVariable(VariableTracker):
    """What `register_hook` returns. Where it leaves the graph, eager registers the hook."""

    def __init__(self, step: int, node: Node | None = None) -> None:
        """node: what registers the hook in the graph."""
        super().__init__()
        self.made_at = step
        self.node = node

    def python_type(self) -> type:
        return RemovableHandle

    def getattr(self, tx: Translator, name: str) -> VariableTracker:
        return MethodOfVariable(self, name) if name == "remove" else super().getattr(tx, name)

    def call_method(
        self, tx: Translator, name: str, args: Args, kwargs: Kwargs
    ) -> VariableTracker:
        if name != "remove" or args or kwargs:
            return super().call_method(tx, name, args, kwargs)
        tx.output.side_effects.note()
        self.remove(tx)
        return ConstantVariable(None)

    def remove(self, tx: Translator) -> None:
        if self.node is not None and not self.node._erased:
            tx.output.graph.erase_node(self.node)


class InputHookVariable(HookHandleVariable):
    """The same for an input of the graph: registered behind the graph, in order of the program."""

    def __init__(
        self, step: int, tensor: TensorVariable, item: GraphInput, method: str, hook: Any
    ) -> None:
        super().__init__(step)
        self.mutation = Mutation.NEW
        self.tensor = tensor
        self.item = item
        self.method = method
        self.hook = hook
        self.is_removed = False

    def remove(self, tx: Translator) -> None:
        self.is_removed = True

    def reconstruct(self, codegen: PyCodegen) -> None:
        if self.item.is_mutated:
            _refuse(
                self.tensor, "the graph writes to it, and the hook is for what it was before"
            )
        codegen.begin_call(disabled(_register))
        codegen(self.tensor)
        codegen(self.hook)
        codegen.load_const(self.method)
        codegen.load_const(self.is_removed)
        codegen.end_call(4)


def _register(tensor: torch.Tensor, hook: Any, method: str, is_removed: bool) -> Any:
    handle = getattr(tensor, method)(hook)
    if is_removed:
        handle.remove()
    return handle


def _call(
    module: torch.nn.Module,
    free: tuple[Any, ...],
    grad: torch.Tensor,
) -> torch.Tensor:
    return module(grad, *free)


def hooked(
    tensor: torch.Tensor,
    module: torch.nn.Module,
    *free: Any,
) -> None:
    """A node of the graph: `tensor.register_hook`, with a hook of (gradient, *free)."""
    tensor.register_hook(functools.partial(_call, module, free))


hooked.has_own_backward = True  # type: ignore[attr-defined]


def _hook_input(
    tx: Translator, tensor: TensorVariable, method: str, hook: VariableTracker
) -> VariableTracker:
    output = tx.output
    item = next((i for i in output.inputs if i.node is tensor.node), None)
    if item is None or item.is_mutated or not tensor.fake.requires_grad:
        _refuse(tensor, "it is a tensor from outside of the graph")
    handle = InputHookVariable(tx.last_step(), tensor, item, method, hook)
    output.side_effects.make(handle)
    return handle


@tensor_method("register_post_accumulate_grad_hook")
def register_post_accumulate_grad_hook(
    tx: Translator, self: TensorVariable, args: Args, kwargs: Kwargs
) -> VariableTracker:
    output = tx.output
    is_plain = output.body is None and not output.transform_levels
    if self.source is None or not is_plain or not is_leaf(tx, self) or len(args) != 1 or kwargs:
        _refuse(self, "the backward pass is run by eager")
    return _hook_input(tx, self, "register_post_accumulate_grad_hook", args[0])


@tensor_method("register_hook")
def register_hook(
    tx: Translator, self: TensorVariable, args: Args, kwargs: Kwargs
) -> VariableTracker:
    output = tx.output
    is_plain = output.body is None and not output.transform_levels
    if not is_plain or len(args) != 1 or kwargs:
        _refuse(self, "it is a tensor from outside of the graph")
    if self.source is not None:
        return _hook_input(tx, self, "register_hook", args[0])
    if not self.fake.requires_grad or self.fake.is_leaf:
        _refuse(self, "it has no gradient that the graph computes")
    if _binds_again(tx, args[0]) or (_may_change(tx, args[0]) and not output.options.fullgraph):
        _refuse(self, "the hook refers to what may change before the backward pass")
    with output.fake_mode, torch.no_grad():
        gradient = torch.empty_like(self.fake)

    def run(body: Body) -> VariableTracker:
        body.has_unknown_layouts = True
        return tx.call_function(args[0], [new_tensor(tx, body, gradient)], {})

    traced = trace_body(tx, "register_hook", run)
    if _may_change(tx, args[0]):
        name = self.describe()
        warn_once(
            f"a hook of {name} is captured with what it refers to as it is now: {_CHANGES}"
        )
    node = None
    if traced.shape == "*":
        node = _add(tx, self, traced, gradient)
    elif traced.shape != ("constant", "None"):
        _refuse(self, "the hook returns something else than a tensor or None")
    return HookHandleVariable(tx.last_step(), node)


def _add(
    tx: Translator, tensor: TensorVariable, traced: TracedBody, gradient: torch.Tensor
) -> Node:
    (result,) = traced.fakes
    if (result.shape, result.dtype) != (gradient.shape, gradient.dtype):
        _refuse(tensor, "the hook returns a gradient that does not fit")
    free = list(traced.body.lifted)
    body = traced.body.module(tx.output, traced.nodes(), free, is_single=True)
    module = add_submodule(tx.output, "hook", body)
    arguments = (tensor.node, module, *free)
    node = tx.output.add_known_node(hooked, arguments, {}, None, tx.user_stack())
    node.meta["step"] = tx.last_step()
    # A hook is seen by the operations behind it.
    tx.output.side_effects.version += 1
    return node


def _refuse(tensor: TensorVariable, why: str) -> NoReturn:
    unsupported("autograd call", f"{tensor.describe()}.register_hook()", why)
