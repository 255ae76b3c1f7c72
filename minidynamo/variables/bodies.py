"""Tracing of the functions that higher-order operators take, and of what they return."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.fx.experimental.symbolic_shapes import guard_or_false
from torch.fx.node import Node

from ..draws import unknown_number
from ..output_graph import example_value
from ..side_effects import Mutation
from ..subgraphs import Body, scope
from .base import VariableTracker, unsupported
from .constant import ConstantVariable
from .contexts import GlobalStateVariable
from .dicts import DictVariable
from .put_back import Changes
from .symint import SymVariable
from .tensor import TensorVariable, new_variable
from .user_defined import UserDefinedObjectVariable

if TYPE_CHECKING:
    from ..symbolic_convert import Translator

Rebuild = Callable[[list[VariableTracker]], VariableTracker]


@dataclass
class TracedBody:
    """A traced function: its graph, the tensors that it returns, and how to rebuild its result of
    them; `inputs`: the fake values of tensors that it uses or is given, with their versions.
    """

    body: Body
    results: list[VariableTracker]
    rebuild: Rebuild
    shape: Any

    def __post_init__(self) -> None:
        """To be made while its graph is under construction: numbers become part of it here."""
        proxies = [item.as_proxy() for item in self.results]
        self._nodes = [self.body.local(p) if isinstance(p, Node) else p for p in proxies]

    def nodes(self) -> list[Any]:
        """The results as values of the body's graph."""
        return self._nodes

    @property
    def fakes(self) -> list[torch.Tensor]:
        """Their fake values; of integers what they are."""
        return [_fake(item) for item in self.results]


def _fake(item: VariableTracker) -> Any:
    if isinstance(item, TensorVariable):
        return example_value(item.as_proxy())
    return item.value  # type: ignore[attr-defined]


def flatten(
    tx: Translator,
    value: VariableTracker,
    *,
    in_place: bool = False,
    integers: bool = False,
) -> tuple[list[VariableTracker], Rebuild, Any]:
    """The tensors in a nest of tuples, lists, dicts and constants; how to put others in their
    place; and a description of the nest. in_place: objects made in traced code belong to
    it, and get the others themselves; integers: they are like tensors.
    """
    value = value.realize()
    if isinstance(value, TensorVariable) or (integers and _is_integer(value)):
        return [value], lambda leaves: leaves[0], "*"
    if value.is_python_constant():
        constant = value.as_python_constant()
        return [], lambda leaves: value, ("constant", repr(constant))
    if isinstance(value, SymVariable) and tx.output.computed_from(value.value)[0] is not None:
        return [], lambda leaves: value, ("number", str(value.value))
    kind = value.python_type()
    is_object = isinstance(value, (DictVariable, UserDefinedObjectVariable))
    if in_place and is_object and kind is not dict and value.mutation is Mutation.NEW:
        return _flatten_object(tx, value, integers)
    if kind is dict:
        keys = [key.realize() for key in value.unpack(tx)]
        names = [key.as_python_constant() for key in keys]
        items = [value.getitem(tx, key) for key in keys]
        if not all(isinstance(name, str) for name in names):
            unsupported("result of a body", repr(value), "keys of dicts have to be strings")
        leaves, rebuilds, shape = _flatten_items(tx, items, in_place, integers)
        return (
            leaves,
            lambda new: tx.wrap_keywords(dict(zip(names, rebuilds(new), strict=True))),
            (dict, tuple(names), shape),
        )
    if issubclass(kind, (tuple, list)):
        leaves, rebuilds, shape = _flatten_items(tx, value.unpack(tx), in_place, integers)
        return leaves, lambda new: tx.wrap_items(kind, rebuilds(new)), (kind, shape)
    unsupported("result of a body", repr(value), "it is no nest of tuples, lists and dicts")


def keeps_bools(given: Any, returned: Any) -> bool:
    """Whether nests that `flatten` described have no constants, or the same ones, which are bools:
    those that the first step of a loop returns as they were are returned so by all.
    """
    constants = _constants_in(given)
    return not constants or (constants <= {"True", "False"} and given == returned)


def _constants_in(shape: Any) -> set[str]:
    if not isinstance(shape, tuple) or shape[:1] == ("constant",):
        return set(shape[1:]) if isinstance(shape, tuple) else set()
    return set[str]().union(*map(_constants_in, shape))


def _is_integer(value: VariableTracker) -> bool:
    return isinstance(value, (SymVariable, ConstantVariable)) and value.python_type() is int


def _flatten_items(
    tx: Translator,
    items: Sequence[VariableTracker],
    in_place: bool,
    integers: bool,
) -> tuple[Any, Any, Any]:
    parts = [flatten(tx, item, in_place=in_place, integers=integers) for item in items]
    counts = [len(leaves) for leaves, _, _ in parts]

    def rebuild(new: list[VariableTracker]) -> list[VariableTracker]:
        result, start = [], 0
        for (_, make, _), count in zip(parts, counts, strict=True):
            result.append(make(new[start : start + count]))
            start += count
        return result

    return (
        [leaf for leaves, _, _ in parts for leaf in leaves],
        rebuild,
        tuple(shape for _, _, shape in parts),
    )


def _flatten_object(tx: Translator, value: Any, integers: bool) -> tuple[Any, Any, Any]:
    """A new object: its attributes, and the values of a dict."""
    effects = tx.output.side_effects
    stored: dict[str, Any] = dict(effects.stored_attrs(value))
    entries = dict(value.entries) if isinstance(value, DictVariable) else {}
    items = [*stored.values(), *(pair[1] for pair in entries.values())]
    if value.is_visited or not all(isinstance(item, VariableTracker) for item in items):
        unsupported("result of a body", repr(value), "it contains itself")
    value.is_visited = True
    try:
        leaves, rebuilds, shape = _flatten_items(tx, items, in_place=True, integers=integers)
    finally:
        value.is_visited = False

    def rebuild(new: list[VariableTracker]) -> VariableTracker:
        made = iter(rebuilds(new))
        for name in stored:
            effects.store_attr(value, name, next(made))
        for key, _ in entries.values():
            value.put(tx, key, next(made))
        return value

    return leaves, rebuild, (value.python_type(), *stored, *map(repr, entries), shape)


def new_tensor(
    tx: Translator,
    body: Body,
    fake: torch.Tensor,
) -> TensorVariable:
    """A tensor that the operator gives to the body."""
    return new_variable(tx, body.parameter(fake))


def new_number(tx: Translator, body: Body) -> VariableTracker:
    """An integer that the operator gives to the body: nothing is known of it."""
    made = unknown_number(tx.output, int)
    node = body.parameter(made)
    tx.output.unbacked[made.node.expr] = node, ()
    return tx.wrap_node(node)


def trace_body(
    tx: Translator,
    name: str,
    call: Callable[[Body], VariableTracker],
    *,
    integers: bool = False,
    writes: bool = False,
) -> TracedBody:
    """`call(body)` with its operations in a graph of their own. integers: it returns these to the
    graph around. writes: it may write to tensors that it is given.

    Raises Unsupported where it changes what exists outside, or writes and must not.
    """
    known = len(tx.output.unbacked)
    with Changes(tx) as changes:
        with scope(tx.output) as body:
            result = call(body)
            leaves, rebuild, shape = flatten(tx, result, in_place=True, integers=integers)
            traced = TracedBody(body, leaves, rebuild, shape)
        if len(tx.output.unbacked) > known:
            tx.output.fake_mode.epoch += (
                1  # fake tensors remember numbers that only the body has
            )
        for variable in changes.lasting():
            if not isinstance(variable, GlobalStateVariable):
                unsupported(
                    "side effect in a body",
                    f"{name}: {variable!r}",
                    f"a function given to {name} changes what exists outside of it",
                    ["return the value instead"],
                )
    for node in (*body.parameters, *body.lifted.values()):
        fake = example_value(node)
        if not writes and isinstance(fake, torch.Tensor) and body.wrote_to(node):
            unsupported(
                "mutation in a body",
                f"{name}: {node}",
                f"a function given to {name} writes to a tensor from outside of it",
            )
    return traced


def are_same(
    left: Any,
    right: Any,
) -> bool:
    """Whether nests of what describes values are the same: sizes that depend on data only if that
    is known.
    """
    if isinstance(left, (tuple, list)):
        return len(left) == len(right) and all(map(are_same, left, right))
    return guard_or_false(left == right)


def fresh_results(
    tx: Translator,
    fakes: Sequence[Any],
    needs_grad: bool,
    *,
    of_function: bool = False,
) -> tuple[Any, ...]:
    """Fake values like those that a body returned, for the node that stands for its call; with
    `of_function` the call is an autograd function, whose results all require grad if one does.

    Inside of a transform they are copies: of the same levels, with the history outside of them.
    """
    is_wrapped = tx.output.transform_levels > 0
    with tx.output.fake_mode:
        return tuple(
            fake
            if not isinstance(fake, torch.Tensor)
            else fake.clone()
            if is_wrapped
            else _fresh(
                fake,
                needs_grad and (_may_require(fake) if of_function else fake.requires_grad),
            )
            for fake in fakes
        )


def _may_require(fake: torch.Tensor) -> bool:
    return fake.dtype.is_floating_point or fake.dtype.is_complex


def _fresh(fake: torch.Tensor, requires_grad: bool) -> torch.Tensor:
    with torch.no_grad():
        copy = torch.empty_strided(
            fake.shape, fake.stride(), dtype=fake.dtype, device=fake.device
        )
    return copy.requires_grad_().view_as(copy) if requires_grad else copy


def require_grad(fake: torch.Tensor, needs_grad: bool) -> torch.Tensor:
    """The fake value, which requires grad if it is to.

    It is asked for nothing else: inside of a transform of torch.func even
    `requires_grad_(False)` is an error.
    """
    if needs_grad and torch._C._functorch.peek_interpreter_stack() is not None:
        why = "inside of a transform of torch.func its results can't require grad"
        unsupported("higher-order operator", repr(fake), why)
    return fake.requires_grad_() if needs_grad else fake


def add_call(
    tx: Translator,
    target: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    values: tuple[Any, ...],
) -> list[VariableTracker]:
    """A node that calls a higher-order operator, with `values` as its results, and these."""
    node: Node = tx.output.add_known_node(target, args, kwargs, values, tx.user_stack())
    return tx.wrap_node(node).unpack(tx)  # type: ignore[arg-type]


__all__ = [
    "TracedBody",
    "add_call",
    "are_same",
    "flatten",
    "fresh_results",
    "keeps_bools",
    "require_grad",
    "new_number",
    "new_tensor",
    "trace_body",
]
