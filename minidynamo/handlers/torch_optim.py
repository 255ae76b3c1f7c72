"""Optimizers: their lazily made state, and the functions that work on lists of tensors."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.optim

from ..variables.base import VariableTracker, unsupported
from ..variables.constant import ConstantVariable
from ..variables.functions import UserFunctionVariable
from ..variables.registry import handles
from ..variables.tensor import TensorVariable

if TYPE_CHECKING:
    from ..symbolic_convert import Translator

Args = list[VariableTracker]
Kwargs = dict[str, VariableTracker]

# -- state -----------------------------------------------------------------------------------------


def _makers_of_state() -> set[Any]:
    """`_init_group` of every optimizer of torch: makes the state of the parameters that have none,
    and fills the lists it is given. Where torch.compile was used before, the classes have wrappers
    of these functions, which are looked through.
    """
    kinds = [kind for kind in vars(torch.optim).values() if inspect.isclass(kind)]
    makers = {vars(kind)["_init_group"] for kind in kinds if "_init_group" in vars(kind)}
    return makers | set(map(inspect.unwrap, makers))


def _init_group(tx: Translator, args: Args, kwargs: Kwargs) -> Any:
    """Make missing state now instead of in the graph, then trace the call as it is.

    The first step would otherwise have a graph of its own. Making the state is what the call is
    about to do anyway, and doing it twice is the same as once. Of the first group's call also that
    of the others, which the step comes to: what is traced until then asks for it.
    """
    effects = tx.output.side_effects
    optimizer, group = effects.real_of(args[0]), effects.real_of(args[1])
    if not isinstance(optimizer, torch.optim.Optimizer) or not isinstance(group, dict):
        return NotImplemented
    changed = [v for v in effects.pending_contents() if not v.is_global_state]
    if effects.variable_of(optimizer.state) is not None or changed:
        return NotImplemented  # what was traced so far was about the state as it is
    groups = optimizer.param_groups
    others = groups[1:] if group is groups[0] else []
    for each in (group, *filter(_has_plain_gradients, others)):
        if any(p.grad is not None and p not in optimizer.state for p in each["params"]):
            lists: list[list[Any]] = [[] for _ in args[2:]]
            type(optimizer)._init_group(optimizer, each, *lists)  # type: ignore[attr-defined]
    return NotImplemented


def _has_plain_gradients(group: dict[str, Any]) -> bool:
    """Whether no optimizer refuses them."""
    grads = [p.grad for p in group["params"] if p.grad is not None]
    return all(grad.layout is torch.strided and not grad.is_complex() for grad in grads)


for _maker in _makers_of_state():
    handles(_maker)(_init_group)


# -- lists of tensors ------------------------------------------------------------------------------


def _addcdiv_by_list(tensors: Any, first: Any, second: Any, scalars: Any) -> Any:
    factors = torch._foreach_mul(first, list(scalars))
    return torch._foreach_addcdiv_(tensors, factors, second)


def _addcmul_by_list(tensors: Any, first: Any, second: Any, scalars: Any) -> Any:
    factors = torch._foreach_mul(first, list(scalars))
    return torch._foreach_addcmul_(tensors, factors, second)


# A tensor of scalars is read by these operators, which no graph can do: the products are made
# first.
_BY_LIST: dict[Any, Any] = {
    torch._foreach_addcdiv_: _addcdiv_by_list,
    torch._foreach_addcmul_: _addcmul_by_list,
}


def _lerp(tensors: Any, ends: Any, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple([t.lerp(e, weight) for t, e in zip(tensors, ends, strict=True)])


def _lerp_(tensors: Any, ends: Any, weight: torch.Tensor) -> Any:
    for tensor, end in zip(tensors, ends, strict=True):
        tensor.lerp_(end, weight)
    return tensors


def _pow(base: torch.Tensor, exponents: Any) -> tuple[torch.Tensor, ...]:
    return tuple([torch.pow(base, exponent) for exponent in exponents])


# The same for one number, by the position of the tensor that has it.
_BY_TENSOR: dict[Any, tuple[int, Any]] = {
    torch._foreach_lerp: (2, _lerp),
    torch._foreach_lerp_: (2, _lerp_),
    torch._foreach_pow: (0, _pow),
}


def _with_tensor_of_number(target: Any) -> None:
    position, function = _BY_TENSOR[target]

    def handler(tx: Translator, args: Args, kwargs: Kwargs) -> Any:
        number = args[position].realize() if len(args) > position and not kwargs else None
        if not isinstance(number, TensorVariable) or number.fake.dim():
            return NotImplemented
        others = args[1 - min(position, 1)].unpack(tx)
        kinds = {item.realize().fake.dtype for item in others}  # type: ignore[attr-defined]
        if kinds != {number.fake.dtype}:
            return NotImplemented  # a number promotes otherwise than a tensor
        return tx.inline(UserFunctionVariable(function), args, {})

    handles(target)(handler)


for _target in _BY_TENSOR:
    _with_tensor_of_number(_target)


def _has_tensors(scalars: VariableTracker) -> bool:
    """Whether it is a tensor or a list of tensors where numbers are expected."""
    items = getattr(scalars, "items", None)
    parts = items if isinstance(items, list) else [scalars]
    return any(isinstance(part.realize(), TensorVariable) for part in parts)


def _with_tensor_of_scalars(target: Any) -> None:
    def handler(tx: Translator, args: Args, kwargs: Kwargs) -> Any:
        if len(args) != 4 or kwargs or not _has_tensors(args[3].realize()):
            return NotImplemented
        return tx.inline(UserFunctionVariable(_BY_LIST[target]), args, {})

    handles(target)(handler)


for _target in _BY_LIST:
    _with_tensor_of_scalars(_target)


@handles(torch._C._group_tensors_by_device_and_dtype)
def group_tensors(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
    """(device, dtype) -> (lists of tensors, positions), by the first list."""
    with_indices = kwargs.get("with_indices", args[1] if len(args) > 1 else None)
    columns = [column.realize().unpack(tx) for column in args[0].unpack(tx)]
    rows: dict[tuple[Any, Any], list[int]] = {}
    for position, item in enumerate(columns[0]):
        tensor = item.realize()
        if not isinstance(tensor, TensorVariable):
            unsupported(
                "grouping of tensors", repr(tensor), "the first list has no tensor there"
            )
        rows.setdefault((tensor.fake.device, tensor.fake.dtype), []).append(position)
    keys, values = [], []
    for (device, dtype), positions in rows.items():
        lists = [
            tx.wrap_items(list, [column[p] for p in positions] if column else [])
            for column in columns
        ]
        wanted = positions if with_indices is not None and with_indices.truth(tx) else []
        indices = tx.wrap_items(list, [ConstantVariable(p) for p in wanted])
        keys.append(tx.wrap_items(tuple, [tx.wrap_constant(device), tx.wrap_constant(dtype)]))
        values.append(tx.wrap_items(tuple, [tx.wrap_items(list, lists), indices]))
    pairs = [tx.wrap_items(tuple, pair) for pair in zip(keys, values, strict=True)]
    return tx.call_function(tx.wrap_constant(dict), [tx.wrap_items(list, pairs)], {})


# -- fused steps -----------------------------------------------------------------------------------


def _adam_step(decoupled: bool) -> Callable[..., None]:
    """One step of Adam (Kingma and Ba, 2015) or AdamW (Loshchilov and Hutter, 2019) on lists."""

    def step(
        params: Any, grads: Any, averages: Any, squares: Any, largest: Any, steps: Any, /, *,
        lr: Any, beta1: float, beta2: float, weight_decay: float, eps: float,
        amsgrad: bool, maximize: bool, grad_scale: None = None, found_inf: None = None,
    ) -> None:  # fmt: skip
        for i, (p, m, v) in enumerate(zip(params, averages, squares)):  # noqa: B905
            g = -grads[i] if maximize else grads[i]
            if weight_decay != 0 and decoupled:
                p.mul_(1 - lr * weight_decay)
            elif weight_decay != 0:
                g = g + weight_decay * p
            m.lerp_(g, 1 - beta1)
            v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
            if amsgrad:
                largest[i].copy_(torch.maximum(largest[i], v))
                v = largest[i]
            scale = (1 - beta2 ** steps[i]).sqrt()
            p.sub_(lr / (1 - beta1 ** steps[i]) * m / (v.sqrt() / scale + eps))

    return step


def _sgd_step(
    params: Any, grads: Any, buffers: Any, /, *,
    weight_decay: float, momentum: float, lr: Any, dampening: float, nesterov: bool,
    maximize: bool, is_first_step: bool, grad_scale: None = None, found_inf: None = None,
) -> None:  # fmt: skip
    """One step of gradient descent with momentum (Sutskever et al., 2013) on lists."""
    for i, p in enumerate(params):
        g = -grads[i] if maximize else grads[i]
        if weight_decay != 0:
            g = g + weight_decay * p
        if momentum != 0:
            if is_first_step:
                buffers[i].copy_(g)
            else:
                buffers[i].mul_(momentum).add_(g, alpha=1 - dampening)
            g = g + momentum * buffers[i] if nesterov else buffers[i]
        p.sub_(lr * g)


def _adagrad_step(
    params: Any, grads: Any, sums: Any, steps: Any, /, *,
    lr: Any, lr_decay: float, weight_decay: float, eps: float,
    maximize: bool, grad_scale: None = None, found_inf: None = None,
) -> None:  # fmt: skip
    """One step of Adagrad (Duchi et al., 2011) on lists."""
    for i, (p, total) in enumerate(zip(params, sums)):  # noqa: B905
        g = -grads[i] if maximize else grads[i]
        if weight_decay != 0:
            g = g + weight_decay * p
        total.addcmul_(g, g)
        p.sub_(lr / (1 + (steps[i] - 1) * lr_decay) * g / (total.sqrt() + eps))


# One operator for all parameters: it can't be made functional where one of its lists is empty, and
# taken apart it fuses with what surrounds it.
_FUSED_STEPS: dict[Any, Any] = {
    torch._fused_adagrad_: _adagrad_step,
    torch._fused_adam_: _adam_step(decoupled=False),
    torch._fused_adamw_: _adam_step(decoupled=True),
    torch._fused_sgd_: _sgd_step,
}


def _fused_step(target: Any) -> None:
    def handler(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
        for name in ("grad_scale", "found_inf"):
            value = kwargs.get(name)
            if value is not None and not isinstance(value.realize(), ConstantVariable):
                explanation = f"{name} makes the step depend on data"
                unsupported("fused optimizer", target.__name__, explanation)
        return tx.inline(UserFunctionVariable(_FUSED_STEPS[target]), args, kwargs)

    handles(target)(handler)


for _target in _FUSED_STEPS:
    _fused_step(_target)


# -- steps that look at numbers in tensors ---------------------------------------------------------


def _as_capturable(function: Any) -> None:
    """These have a form for CUDA graphs, in which no tensor's data are asked for."""

    def handler(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
        capturable = {**kwargs, "capturable": ConstantVariable(True)}
        return tx.inline(UserFunctionVariable(function), args, capturable)

    handles(function)(handler)


for _kind in ("asgd", "radam"):
    for _form in ("_single_tensor_", "_multi_tensor_"):
        _as_capturable(getattr(importlib.import_module(f"torch.optim.{_kind}"), _form + _kind))


def _adafactor_step(
    params: Any, grads: Any, rows: Any, columns: Any, variances: Any, steps: Any,
    grad_scale: None, found_inf: None, *, d: float, lr: Any, beta2_decay: float,
    weight_decay: float, eps1: Any, eps2: float, maximize: bool, has_complex: bool,
) -> None:  # fmt: skip
    """One step of Adafactor (Shazeer and Stern, 2018) on lists, without numbers out of tensors."""
    for i, p in enumerate(params):
        g = -grads[i] if maximize else grads[i]
        tiny = torch.finfo(p.dtype).eps if eps1 is None else eps1
        steps[i].add_(1)
        step = steps[i].double()
        share = (step**beta2_decay).to(p.dtype)
        norm = p.norm(2).double() / p.numel() ** 0.5
        rate = norm.clamp(min=eps2) * torch.minimum(step**-0.5, torch.full_like(step, lr))
        if weight_decay != 0:
            p.mul_(1 - lr * weight_decay)
        if g.dim() > 1:
            row, column = rows[i], columns[i]
            row.lerp_(g.norm(dim=-1, keepdim=True).square() / g.size(-1), share)
            column.lerp_(g.norm(dim=-2, keepdim=True).square() / g.size(-2), share)
            scale = (row @ column) / row.mean(dim=-2, keepdim=True).clamp(min=tiny)
        else:
            scale = variances[i].lerp_(g * g, share)
        update = scale.clamp(min=tiny * tiny).rsqrt() * g
        divisor = (update.norm(2).double() / (update.numel() ** 0.5 * d)).clamp(min=1.0)
        p.sub_(update * (rate / divisor).to(p.dtype))


_ADAFACTOR: Any = _adafactor_step


def _adafactor(tx: Translator, args: Args, kwargs: Kwargs) -> Any:
    given = dict(zip(("grad_scale", "found_inf"), args[6:], strict=False)) | kwargs
    names = ("grad_scale", "found_inf")
    if any(not isinstance(given[name].realize(), ConstantVariable) for name in names):
        return NotImplemented
    return tx.inline(UserFunctionVariable(_ADAFACTOR), args, kwargs)


_module = importlib.import_module("torch.optim._adafactor")
for _name in ("_single_tensor_adafactor", "_multi_tensor_adafactor"):
    handles(getattr(_module, _name))(_adafactor)
