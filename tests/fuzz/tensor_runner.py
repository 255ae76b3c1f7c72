"""One program of tensor operations: values, gradients, writes and aliases have to be eager's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from tensor_programs import SIZES, TensorProgram, namespace

import minidynamo

# Of the largest value, beside ten times eager's own error against float64.
ROUNDING = {torch.bfloat16: 3e-2, torch.float16: 1e-2, torch.float32: 1e-4, torch.float64: 1e-9}


def run(program: TensorProgram, compile_: Callable[[Any], Any]) -> list[Any]:
    """For each sizes' call: an error, or outputs, inputs and gradients, and who shares memory."""
    space = namespace({})
    exec(compile(program.text, "<program>", "exec"), space)
    function = compile_(space["fn"])
    return [call(function, program, sizes) for sizes in SIZES]


def call(function: Any, program: TensorProgram, sizes: dict[str, int]) -> Any:
    torch.manual_seed(1)
    space = namespace(sizes)
    for source in program.inputs:
        exec(source, space)
    inputs = [space[f"x{index}"] for index in range(len(program.inputs))]
    leaves = [x for x in inputs if x.is_floating_point()] if program.trains else []
    for leaf in leaves:
        leaf.requires_grad_()
    try:
        outputs = function(*inputs)
        losses = [out.double().sum() for out in outputs if out.requires_grad]
        if losses:
            torch.stack(losses).sum().backward()
    except Exception as error:
        return type(error)
    tensors = [*outputs, *inputs]
    grads = [leaf.grad for leaf in leaves]
    shared = [
        [a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr() for b in tensors]
        for a in tensors
        if a.numel()
    ]
    facts = [(t.dtype, tuple(t.shape), t.requires_grad, t.storage_offset()) for t in tensors]
    return (facts, shared, [grad is None for grad in grads]), [*tensors, *grads]


def difference(program: TensorProgram, cpu_backend: str = "cpp") -> str | None:
    """None where eager and compiled agree, else what differs."""
    options = {"cpu_backend": cpu_backend}
    minidynamo.reset()
    expected = run(program, lambda fn: fn)
    found = run(program, partial(minidynamo.compile, dynamic=program.dynamic, options=options))
    exact = run(program.in_double(), lambda fn: fn)
    for index, (left, right, double) in enumerate(zip(expected, found, exact, strict=True)):
        if isinstance(left, type):
            continue  # what raises may be of no use to any result, and left out
        if isinstance(right, type):
            return f"call {index} raises {right}"
        if left[0] != right[0]:
            return f"facts of call {index}:\n  eager:    {left[0]}\n  compiled: {right[0]}"
        references = left[1] if isinstance(double, type) else double[1]
        for number, tensors in enumerate(zip(left[1], right[1], references, strict=True)):
            # Of infinite gradients, one way to add them up gives inf and another NaN.
            all_values = number < len(left[0][0])
            what = None if tensors[0] is None else values_differ(*tensors, all_values)
            if what is not None:
                return f"tensor {number} of call {index}: {what}"
    return None


def values_differ(
    a: torch.Tensor, b: torch.Tensor, reference: torch.Tensor, infinite_too: bool
) -> str | None:
    a, b = a.detach(), b.detach()
    exact = reference.detach().double()
    if exact.shape != a.shape:
        exact = a.double()
    x, y = a.double(), b.double()
    if not a.is_floating_point():
        wrong = x != y
    else:
        finite = x.isfinite() & exact.isfinite()
        own = torch.where(finite, x - exact, 0).abs()
        scale = torch.where(finite, x, 0).abs()
        most = own.amax() if own.numel() else 0
        largest = scale.amax() if scale.numel() else 0
        wrong = finite & ~((x - y).abs() <= 10 * most + ROUNDING[a.dtype] * (largest + 1e-2))
        same = (x == y) | (x.isnan() & y.isnan())
        settled = (x == exact) | (x.isnan() & exact.isnan())
        if infinite_too:
            wrong |= ~finite & settled & ~same
    if not bool(wrong.any()):
        return None
    at = tuple(int(i) for i in wrong.nonzero()[0])
    return (
        f"{int(wrong.sum())} of {x.numel()} at {at}:\n  eager:    {a[at]}\n  compiled: {b[at]}"
    )
