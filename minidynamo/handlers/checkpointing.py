"""Activation checkpointing: `torch.utils.checkpoint.checkpoint`."""

from __future__ import annotations

import functools
import types
import warnings
from typing import TYPE_CHECKING, Any

import torch
import torch.utils.checkpoint

from ..output_graph import example_value
from ..subgraphs import add_submodule
from ..variables.base import VariableTracker, unsupported
from ..variables.bodies import add_call, fresh_results, trace_body
from ..variables.contexts import NONE, without_gradients
from ..variables.functions import BaseFunctionVariable
from ..variables.lists import ListVariable
from ..variables.nested_functions import NestedFunctionVariable
from ..variables.registry import handles
from ..variables.sets import SetVariable
from ..variables.tensor import TensorVariable
from ..variables.transforms import open_kinds
from .functools_ import PartialVariable
from .higher_order import computed_nodes, free_nodes, given_back, operands_of
from .returned_inputs import without_inputs

if TYPE_CHECKING:
    from ..symbolic_convert import Translator

Args = list[VariableTracker]
Kwargs = dict[str, VariableTracker]

_CHECKPOINT_OPTIONS = frozenset(
    "use_reentrant preserve_rng_state context_fn determinism_check debug early_stop".split()
)
# Where torch's operator looks for the option of that name.
_CONTEXT_FN = "_checkpoint_context_fn"


def checkpointed(module: torch.fx.GraphModule, *args: Any, **options: Any) -> Any:
    """A node of the graph: `torch.utils.checkpoint.checkpoint(module, *args, **options)`.

    Below a tracer (AOTAutograd) it is torch's operator that tags what is to be recomputed.
    """
    if torch._C._len_torch_dispatch_stack() == 0:
        if _CONTEXT_FN in module.meta:
            options["context_fn"] = module.meta[_CONTEXT_FN]
        return torch.utils.checkpoint.checkpoint(module, *args, use_reentrant=False, **options)
    return torch.ops.higher_order.tag_activation_checkpoint(module, *args)


@handles(torch.utils.checkpoint.checkpoint)
def checkpoint(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
    """Without gradients it is a call of the function, and where derivatives are computed along with
    the values: what stands for the results of a body has no tangents.
    """
    function, values = args[0], args[1:]
    options = {name: kwargs[name] for name in kwargs if name in _CHECKPOINT_OPTIONS}
    named = {name: value for name, value in kwargs.items() if name not in options}
    constants = {name: _real(tx, value) for name, value in options.items()}
    reentrant = constants.pop("use_reentrant", None)
    if reentrant is None:
        reentrant = _default_of_reentrant(tx)
    if reentrant and not (torch.is_grad_enabled() and any(map(_wants_grad, values))):
        return _never_differentiated(tx, function, values, named)
    kinds = open_kinds(tx)
    if any(kind.name == "grad" for kind in kinds):
        unsupported(
            "checkpoint", "torch.func.grad", "saved tensor hooks are refused inside of it"
        )
    if not torch.is_grad_enabled() or any(kind.is_forward for kind in kinds):
        return tx.call_function(function, values, named)
    traced = trace_body(
        tx, "checkpoint", lambda body: tx.call_function(function, values, named)
    )
    nodes, free = computed_nodes(traced), free_nodes([traced])
    if not nodes and not reentrant:
        return given_back(traced, [], [])
    if not nodes or not free:
        unsupported("checkpoint", "no operations", "the function computes nothing")
    body = traced.body.module(tx.output, nodes, free)
    if "context_fn" in constants:
        body.meta[_CONTEXT_FN] = constants.pop("context_fn")
    module = add_submodule(tx.output, "checkpoint_body", body)
    fakes = fresh_results(tx, [example_value(node) for node in nodes], needs_grad=True)
    operands = operands_of(tx, free)
    computed = add_call(tx, checkpointed, (module, *operands), constants, fakes)
    return given_back(traced, nodes, computed)


def _never_differentiated(
    tx: Translator,
    function: VariableTracker,
    values: Args,
    named: Kwargs,
) -> VariableTracker:
    """What `use_reentrant=True` is where no argument has a gradient: a call without gradients, also
    of a function that reads parameters, with eager's warning (while tracing).
    """
    if named:
        unsupported("reentrant checkpoint", " ".join(named), "eager refuses keywords")
    if not any(map(_wants_grad, values)):
        _warn(tx, "None of the inputs have requires_grad=True. Gradients will be None")
    with without_gradients(tx):
        result = tx.call_function(function, values, {}).realize()
    return without_inputs(tx, result, values)


def _warn(tx: Translator, text: str) -> None:
    frame = tx.user_stack()[-1]
    warnings.warn_explicit(text, UserWarning, frame.filename, frame.lineno or 0)


def _default_of_reentrant(tx: Translator) -> bool:
    """What eager takes where `use_reentrant` is not given, with its warning (while tracing)."""
    text = _warning_without_reentrant()
    if text is None:
        unsupported("checkpoint", "use_reentrant", "this torch wants it to be given")
    _warn(tx, text)
    return True


@functools.cache
def _warning_without_reentrant() -> str | None:
    """None: this torch raises, or takes another default."""
    leaf = torch.zeros(1, requires_grad=True)
    with warnings.catch_warnings(record=True) as caught, torch._C.DisableTorchFunction():
        warnings.simplefilter("always")
        try:
            torch.utils.checkpoint.checkpoint(torch.neg, leaf, preserve_rng_state=False)
        except (TypeError, ValueError, RuntimeError):
            return None
    texts = [str(warning.message) for warning in caught]
    return next((text for text in texts if "use_reentrant" in text), None)


def _real(tx: Translator, value: VariableTracker) -> Any:
    """The object that an option of checkpoint is."""
    value = value.realize()
    if isinstance(value, PartialVariable):
        keywords = tx.unpack_keywords(value.keywords.realize())
        named = {name: _real(tx, item) for name, item in keywords.items()}
        items = [_real(tx, item) for item in value.args]
        return functools.partial(_real(tx, value.function), *items, **named)
    if isinstance(value, SetVariable):
        items = value.unpack(tx)
        if all(item.realize().is_python_constant() for item in items):
            return value.python_type()([item.as_python_constant() for item in items])
    if isinstance(value, NestedFunctionVariable) and not value.dict:
        return _real_function(tx, value)
    if type(value) is ListVariable and value.python_type() is list:
        return [_real(tx, item) for item in value.unpack(tx)]
    if not value.is_python_constant():
        unsupported("checkpoint", repr(value), "the option is not known while tracing")
    return value.as_python_constant()


def _wants_grad(value: VariableTracker) -> bool:
    return isinstance(value, TensorVariable) and value.fake.requires_grad


def _real_function(tx: Translator, made: NestedFunctionVariable) -> Any:
    """A function like one that was made while tracing; it closes over functions at most, which
    close over nothing.
    """
    around = []
    for cell in made.cells:
        value = cell.load_if_any(tx)
        held = NONE if value is None else value.realize()
        is_closed = isinstance(held, NestedFunctionVariable) and held.cells
        if not isinstance(held, BaseFunctionVariable) or is_closed:
            unsupported("checkpoint", repr(made), "the option closes over what may change")
        around.append(types.CellType(_real(tx, held)))
    function = types.FunctionType(
        made.code,
        made.globals,
        made.name,
        tuple(_real(tx, value) for value in made.defaults(tx)),
        tuple(around),
    )
    function.__kwdefaults__ = {
        name: _real(tx, value) for name, value in made.kwdefaults(tx).items()
    }
    return function
