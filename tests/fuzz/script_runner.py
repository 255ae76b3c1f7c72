"""One script (see scripts.py), run in eager and compiled: what it leaves has to agree.

Of every tensor that can be reached afterwards, results, arguments and what the arguments were made
of: values, dtype, shape, strides, whether it is a leaf or a view, gradients, which others share its
memory, and whether it was written to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from scripts import Script

import minidynamo
from minidynamo import events

# Beside float64's, see Script.
ROUNDING = {torch.bfloat16: 3e-2, torch.float16: 1e-2, torch.float32: 1e-4}
BACKENDS: dict[str, dict[str, Any]] = {
    "eager": {"backend": "eager"},
    "aot_eager": {"backend": "aot_eager"},
    "fast": {"options": {"schedule_only": True, "fallback_random": True}},
    "inductor": {"options": {"fallback_random": True}},
}

# What eager refuses to write to, or to use after a write: in functional graphs there is no such.
FORBIDDEN = ("is a view and ", "A view was created in", "refer to a single memory location")

# Of every script that was compiled.
graph_counts: list[int] = []


def run(setup: str, script: Script, compile_: Callable[[Any], Any]) -> list[Any]:
    """For each call facts and tensors."""
    space: dict[str, Any] = {}
    exec(setup, space)
    exec(compile(script.text, "<program>", "exec"), space)
    function = compile_(space["fn"])
    return [observe(function, *space["make"](number)) for number in range(script.calls)]


def observe(function: Any, arguments: list[Any], watched: list[Any]) -> Any:
    torch.manual_seed(1)
    given = list(tensors([arguments, watched]))
    before = [(tensor._version, tensor.detach().clone()) for tensor in given]
    error = None
    results: Any = []
    try:
        results = function(*arguments)
        losses = [
            (out.double() * weights(out)).sum()
            for out in tensors(results)
            if out.requires_grad and out.is_floating_point()
        ]
        if losses:
            torch.stack(losses).sum().backward()
    except Exception as raised:
        error = type(raised).__name__
        if any(words in str(raised) for words in FORBIDDEN):
            return FORBIDDEN
    written = [
        (tensor._version != old[0], is_changed(tensor, old[1]))
        for tensor, old in zip(given, before, strict=True)
    ]
    seen = [*tensors(results), *given]
    grads = [tensor.grad if is_leaf(tensor)[0] else None for tensor in seen]
    facts = {
        "error": error,
        "numbers": repr(plain([results, arguments])),
        "written": [] if error else written,
        "tensors": [describe(tensor) for tensor in seen],
        "grads": [None if grad is None else describe(grad) for grad in grads],
        "same": [[a is b for b in seen] for a in seen],
        "memory": [place(tensor, seen) for tensor in seen],
    }
    values = [*seen, *(grad for grad in grads if grad is not None)]
    return facts, [value.detach().clone() for value in values]


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """Those in nested containers and modules."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors(item)
    elif isinstance(value, dict):
        yield from tensors(list(value.values()))
    elif isinstance(value, torch.nn.Module):
        yield from value.parameters()
        yield from value.buffers()
    elif isinstance(value, torch.optim.Optimizer):
        yield from tensors(list(value.state.values()))


def plain(value: Any) -> Any:
    """The structure, with numbers as they are."""
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, *map(plain, value)]
    if isinstance(value, float):
        return "nan" if math.isnan(value) else f"{value:.9g}"
    if isinstance(value, torch.Tensor):
        return "tensor"
    return type(value).__name__, value if isinstance(value, (int, str)) else ""


def weights(out: torch.Tensor) -> torch.Tensor:
    return torch.arange(1, out.numel() + 1, dtype=torch.float64).reshape(out.shape) % 7


def describe(tensor: torch.Tensor) -> Any:
    sizes = tuple(tensor.shape)
    strides = [
        s for s, n in zip(tensor.stride(), sizes, strict=True) if n > 1 < math.prod(sizes)
    ]
    kind = type(tensor).__name__
    return kind, tensor.dtype, sizes, strides, is_leaf(tensor)


def is_leaf(tensor: torch.Tensor) -> tuple[bool, bool]:
    """Also whether it requires gradients; autograd itself refuses to say it of some views."""
    try:
        return tensor.is_leaf, tensor.requires_grad
    except RuntimeError:
        return False, False


def place(tensor: torch.Tensor, seen: list[torch.Tensor]) -> Any:
    """The first tensor with the same memory, and where this one starts in it."""
    if not tensor.numel():
        return None
    memory = tensor.untyped_storage().data_ptr()
    for index, other in enumerate(seen):
        if other.numel() and other.untyped_storage().data_ptr() == memory:
            return index, (tensor.data_ptr() - other.data_ptr()) if other is not tensor else 0
    return None


def difference(setup: str, script: Script, backend: str = "fast") -> str | None:
    """None where eager and compiled agree, else what differs."""
    minidynamo.reset()
    expected = run(setup, script, lambda fn: fn)
    options = {"dynamic": script.dynamic, **BACKENDS[backend]}
    graphs: list[events.GraphEvent] = []
    with events.subscribe(graphs.append, events.GraphEvent):
        found = run(setup, script, lambda fn: minidynamo.compile(fn, **options))
    graph_counts.append(len(graphs))
    for number, (left, right) in enumerate(zip(expected, found, strict=True)):
        if left is FORBIDDEN:
            continue
        if right is FORBIDDEN:
            return f"call {number} is refused when compiled"
        if left[0]["error"] and backend != "eager":
            continue  # what raises may be of no use to any result, and left out
        for what in left[0]:
            if not agree(what, left[0][what], right[0][what]):
                return (
                    f"{what} of call {number}:\n  eager:    {left[0][what]}\n"
                    f"  compiled: {right[0][what]}"
                )
        for index, (a, b) in enumerate(zip(left[1], right[1], strict=True)):
            if differs(a, b, script.rounding):
                return f"tensor {index} of call {number}:\n  eager:    {a}\n  compiled: {b}"
    return None


def agree(what: str, left: Any, right: Any) -> bool:
    """Versions: a write that changes nothing may be left out, but none be added."""
    if what != "written" or len(left) != len(right):
        return bool(left == right)
    return all(a[0] != a[1] or a == b for a, b in zip(left, right, strict=True))


def is_changed(tensor: torch.Tensor, before: torch.Tensor) -> bool:
    return tensor.shape != before.shape or not torch.equal(
        tensor.detach().nan_to_num(), before.nan_to_num()
    )


def differs(a: torch.Tensor, b: torch.Tensor, rounding: float) -> bool:
    if a.is_complex():
        a, b = torch.view_as_real(a.resolve_conj()), torch.view_as_real(b.resolve_conj())
    if not a.is_floating_point():
        return not torch.equal(a, b)
    if not rounding:
        other_sign = a.isfinite() & (a.signbit() != b.signbit())
        return bool(other_sign.any()) or not torch.allclose(a, b, 0, 0, equal_nan=True)
    finite = torch.where(a.isfinite(), a, 0).abs()
    most = max(1.0, float(finite.amax())) if a.numel() else 1.0
    atol = max(ROUNDING.get(a.dtype, 0), rounding) * most
    return not torch.allclose(a.double(), b.double(), rtol=0, atol=atol, equal_nan=True)
