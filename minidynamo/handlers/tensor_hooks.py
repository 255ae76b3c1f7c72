"""Hooks of tensors.

`register_hook` on tensors that the graph makes: the hook becomes a graph of its own. The node
registers it for real, in eager as under AOTAutograd, whose backward graph then contains what the
hook does. A hook must not change what is outside of it; else eager registers it.

On inputs of the graph, registering is a side effect, made behind the graph: whatever the hook does
is run by the backward pass, as in eager.
"""

from __future__ import annotations

import functools
from collections import deque
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch.utils.hooks import RemovableHandle

from .._C import disabled
from ..side_effects import Mutation, is_full
from ..subgraphs import add_submodule
from ..variables.base import LazyVariable, VariableTracker, unsupported
from ..variables.bodies import TracedBody, new_tensor, trace_body
from ..variables.constant import ConstantVariable
from ..variables.deques import DequeVariable
from ..variables.dicts import DictVariable
from ..variables.functions import CellVariable, MethodOfVariable, UserFunctionVariable
from ..variables.lists import ListVariable
from ..variables.reach import reached
from ..variables.sets import SetVariable
from ..variables.tensor import TensorVariable, tensor_method

if TYPE_CHECKING:
    from torch.fx.node import Node

    from ..codegen import PyCodegen
    from ..output_graph import GraphInput
    from ..subgraphs import Body
    from ..symbolic_convert import Translator

Args = list[VariableTracker]
Kwargs = dict[str, VariableTracker]


_CONTAINERS = (ListVariable, DictVariable, SetVariable, DequeVariable)


def _reads_containers(tx: Translator, hook: VariableTracker) -> bool:
    """Whether a hook refers to what others may change until the backward pass runs it."""
    todo: list[Any] = []
    for item in reached(tx, [hook]):
        if isinstance(item, _CONTAINERS):
            return True
        if isinstance(item, UserFunctionVariable):
            todo.append(item.fn)
        elif isinstance(item, LazyVariable):
            todo.append(item.value)
        elif isinstance(item, CellVariable) and item.real is not None and is_full(item.real):
            todo.append(item.real.cell_contents)
    known = set[int]()
    while todo:
        value = todo.pop()
        if isinstance(value, (list, dict, set, deque)):
            return True
        if id(value) in known:
            continue
        known.add(id(value))
        if isinstance(value, MethodType):
            todo += [value.__func__, value.__self__]
        elif isinstance(value, functools.partial):
            todo += [value.func, *value.args, *value.keywords.values()]
        elif isinstance(value, FunctionType):
            todo += [cell.cell_contents for cell in value.__closure__ or () if is_full(cell)]
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
    is_plain = output.body is None and not output.transform_levels and self.fake.is_leaf
    if self.source is None or not is_plain or len(args) != 1 or kwargs:
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
    if _reads_containers(tx, args[0]):
        _refuse(self, "the hook refers to a list, a dict or a set, which may change meanwhile")
    with output.fake_mode, torch.no_grad():
        gradient = torch.empty_like(self.fake)

    def run(body: Body) -> VariableTracker:
        return tx.call_function(args[0], [new_tensor(tx, body, gradient)], {})

    traced = trace_body(tx, "register_hook", run)
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
    # A hook is seen by the operations behind it.
    tx.output.side_effects.version += 1
    return node


def _refuse(tensor: TensorVariable, why: str) -> NoReturn:
    unsupported("autograd call", f"{tensor.describe()}.register_hook()", why)
