"""Recurrent layers: their operators can't be differentiated in a graph. In training the graph
breaks around them; with `fullgraph` they are captured step by step.

Without gradients they are nodes. What has no kernel for the whole sequence is taken apart then, a
step behind the other: a few steps take a fraction of eager's time, many take long to compile, and a
number of steps that changes is compiled for each value. Around these the graph breaks, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import PackedSequence

from .. import markers
from ..variables.base import VariableTracker, unsupported
from ..variables.functions import UserFunctionVariable
from ..variables.registry import Handler, handles
from ..variables.tensor import TensorVariable

if TYPE_CHECKING:
    from ..symbolic_convert import Translator

_VF = torch._C._VariableFunctions
# Steps, over all layers and directions, that are taken apart.
MOST_STEPS = 128


def _needs_grad(values: list[VariableTracker]) -> bool:
    flat = [v.realize() for v in values]
    tensors = [v for v in flat if isinstance(v, TensorVariable)]
    nested = [v for v in flat if v.python_type() in (tuple, list)]
    inner = [getattr(v, "items", []) for v in nested]
    return any(t.fake.requires_grad for t in tensors) or any(map(_needs_grad, inner))


# A step takes what the input contributes, the state, the weights and bias of the state, and the
# projection; it gives the new state, whose first part is the output.


@markers.force_inline
def _lstm_step(
    x: Any,
    state: Any,
    weight: Any,
    bias: Any,
    projection: Any,
) -> Any:
    """Hochreiter and Schmidhuber (1997), with the projection of Sak et al. (2014)."""
    i, f, g, o = (x + F.linear(state[0], weight, bias)).chunk(4, 1)
    c = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
    h = o.sigmoid() * c.tanh()
    return h if projection is None else F.linear(h, projection), c


@markers.force_inline
def _gru_step(
    x: Any,
    state: Any,
    weight: Any,
    bias: Any,
    projection: Any,
) -> Any:
    """Cho et al. (2014), with the reset gate behind the product as in cuDNN."""
    (h,) = state
    x_r, x_z, x_n = x.chunk(3, 1)
    h_r, h_z, h_n = F.linear(h, weight, bias).chunk(3, 1)
    n = (x_n + (x_r + h_r).sigmoid() * h_n).tanh()
    return ((h - n) * (x_z + h_z).sigmoid() + n,)


@markers.force_inline
def _tanh_step(
    x: Any,
    state: Any,
    weight: Any,
    bias: Any,
    projection: Any,
) -> Any:
    return ((x + F.linear(state[0], weight, bias)).tanh(),)


@markers.force_inline
def _relu_step(
    x: Any,
    state: Any,
    weight: Any,
    bias: Any,
    projection: Any,
) -> Any:
    return ((x + F.linear(state[0], weight, bias)).relu(),)


@markers.force_inline
def _layer(step: Any, x: Any, state: Any, weights: Any, has_biases: bool, reverse: bool) -> Any:
    """One direction of one layer over (length, batch, features): the outputs, the last state."""
    biases = weights[2:4] if has_biases else (None, None)
    projection = weights[-1] if len(weights) % 2 else None
    outputs = []
    items = F.linear(x, weights[0], biases[0]).unbind(0)
    for item in reversed(items) if reverse else items:
        state = step(item, state, weights[1], biases[1], projection)
        outputs.append(state[0])
    return torch.stack(outputs[::-1] if reverse else outputs), state


@markers.force_inline
def _layers(
    step: Any,
    x: Any,
    states: Any,
    params: Any,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Any:
    """What the operators of the recurrent layers compute: the outputs, and of each part of the
    state the last ones, stacked.
    """
    x = x.transpose(0, 1) if batch_first else x
    directions = 2 if bidirectional else 1
    each = len(params) // (num_layers * directions)
    last = []
    for layer in range(num_layers):
        outputs = []
        for k in range(layer * directions, (layer + 1) * directions):
            state = tuple([part[k] for part in states])
            weights = params[k * each : (k + 1) * each]
            out, state = _layer(step, x, state, weights, has_biases, k % directions == 1)
            outputs.append(out)
            last.append(state)
        x = torch.cat(outputs, -1) if bidirectional else outputs[0]
        if dropout and train and layer < num_layers - 1:
            x = F.dropout(x, dropout)
    x = x.transpose(0, 1) if batch_first else x
    return x, *[torch.stack([state[i] for state in last]) for i in range(len(states))]


def _lstm(x: Any, states: Any, *args: Any) -> Any:
    return _layers(_lstm_step, x, states, *args)


def _gru(x: Any, state: Any, *args: Any) -> Any:
    return _layers(_gru_step, x, (state,), *args)


def _rnn_tanh(x: Any, state: Any, *args: Any) -> Any:
    return _layers(_tanh_step, x, (state,), *args)


def _rnn_relu(x: Any, state: Any, *args: Any) -> Any:
    return _layers(_relu_step, x, (state,), *args)


def _has_kernel(target: Any, tensors: list[torch.Tensor], per_layer: int) -> bool:
    """Whether an operator does a whole sequence: oneDNN's, an LSTM without projection."""
    return (
        target is _VF.lstm
        and per_layer % 2 == 0
        and torch._C._get_mkldnn_enabled()
        and not tensors[0].requires_grad
        and all(t.device.type == "cpu" for t in tensors)
        and all(t.dtype in (torch.float32, torch.bfloat16) for t in tensors)
    )


def _refuse_many_steps(target: Any, args: list[Any]) -> None:
    """args: the input, the state or states, the parameters, has_biases, num_layers, dropout, train,
    bidirectional, batch_first.
    """
    x, parameters = args[0].realize(), [v.realize() for v in args[2].realize().items]
    layers, bidirectional, batch_first = (args[i].as_python_constant() for i in (4, 7, 8))
    tensors = [v.fake for v in (x, *parameters)]
    runs = layers * (2 if bidirectional else 1)
    if _has_kernel(target, tensors, len(parameters) // runs):
        return
    steps = x.fake.shape[1 if batch_first else 0]
    if isinstance(steps, torch.SymInt) and steps.node.maybe_as_int() is None:
        why = "their number changes"
    elif x.fake.device.type != "cpu":
        why = "the device has a kernel for all of them"
    elif steps * runs > MOST_STEPS:
        why = f"there are {steps * runs}"
    else:
        return
    unsupported(
        "recurrent layer with many steps",
        target.__name__,
        f"torch.{target.__name__} is compiled for one small number of steps, and {why}",
        ["accept the graph break, or compile with fullgraph=True"],
    )


def _recurrent(target: Any, by_steps: Any) -> Handler:
    def handler(tx: Translator, args: list[Any], kwargs: dict[str, Any]) -> VariableTracker:
        # Packed sequences come as data and batch sizes, with the parameters in another place.
        is_plain = not kwargs and len(args) == 9 and not _is_packed(args)
        fullgraph = tx.output.options.fullgraph
        if not (torch.is_grad_enabled() and _needs_grad(args)):
            if is_plain and not fullgraph:
                _refuse_many_steps(target, args)
            return tx.call_operation(target, args, kwargs)
        if fullgraph and is_plain:
            return tx.inline(UserFunctionVariable(by_steps), args, kwargs)
        unsupported(
            "recurrent layer in training",
            target.__name__,
            f"AOTAutograd can't differentiate torch.{target.__name__} inside a graph",
            ["leave the recurrent layer to eager, or run under torch.no_grad()"],
        )

    return handler


def _refuse_packed(tx: Translator, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if any(value.realize().python_type() is PackedSequence for value in args[1:]):
        unsupported(
            "recurrent layer of a packed sequence",
            "PackedSequence",
            "how many sequences there are at each step is data",
            ["leave the recurrent layer to eager, or give it the padded sequences"],
        )
    return NotImplemented


for _layer_class in (torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN):
    handles(_layer_class.forward)(_refuse_packed)


def _is_packed(args: list[Any]) -> bool:
    return not issubclass(args[2].realize().python_type(), (list, tuple))


for _row in (_lstm, _gru, _rnn_tanh, _rnn_relu):
    _target = getattr(_VF, _row.__name__[1:])
    handles(_target)(_recurrent(_target, _row))
