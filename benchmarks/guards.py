"""What guards cost per call, in nanoseconds.

    python benchmarks/guards.py [--layers 24] [--repeats 15]

The guards are those that compiling a decoder's forward would collect: of every module its class,
its own dict, `training`, its hooks, and the method that is called; of every parameter all that
TENSOR_MATCH compares. Each figure is the minimum over repeats, less that of a program without
guards. Prints a table and checks nothing.
"""

from __future__ import annotations

import argparse
import sys
import time
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from minidynamo.guards import Check, GuardSet  # noqa: E402
from minidynamo.source import (  # noqa: E402
    ClassAttrSource,
    FuncCodeSource,
    GlobalSource,
    InstanceAttrSource,
    InstanceDictSource,
    LocalSource,
    ModuleItemSource,
    Source,
    TypeSource,
)

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.q = nn.Linear(width, width)
        self.k = nn.Linear(width, width, bias=False)
        self.v = nn.Linear(width, width)
        self.out = nn.Linear(width, width, bias=False)
        self.drop = nn.Dropout(0.0)
        self.heads = 4

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(self.out(self.q(x) + self.k(x) + self.v(x))) / self.heads


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, bias=False)
        self.attention = Attention(width)
        self.norm2 = nn.LayerNorm(width, bias=False)
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Decoder(nn.Module):
    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(width) for _ in range(layers))
        self.step = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def guard_module(
    guards: GuardSet, source: Source, module: nn.Module, fetch: list[Source]
) -> None:
    """Guards of one module and of all below it."""
    guards.add(source, Check.TYPE_IS, type(module))
    guards.add(InstanceDictSource(source), Check.DICT_LACKS, "forward")
    guards.add(InstanceAttrSource(source, "training"), Check.CONST_EQ, module.training)
    for hooks in HOOKS:
        guards.add(InstanceAttrSource(source, hooks), Check.LEN_EQ, 0)
    forward = ClassAttrSource(TypeSource(source), "forward")
    guards.add(forward, Check.ID_IS, type(module).forward)
    guards.add(FuncCodeSource(forward), Check.ID_IS, type(module).forward.__code__)
    for name, parameter in module._parameters.items():
        parameter_source = ModuleItemSource(source, "_parameters", name)
        if parameter is None:
            guards.add(parameter_source, Check.IS_NONE)
            continue
        guards.add(parameter_source, Check.TENSOR_MATCH, parameter)
        fetch.append(parameter_source)
    for name, child in module._modules.items():
        assert child is not None
        guard_module(guards, ModuleItemSource(source, "_modules", name), child, fetch)


def decoder_guards(model: nn.Module, x: torch.Tensor) -> tuple[GuardSet, list[Source]]:
    """All guards of model(x), and the sources of its parameters."""
    guards, fetch = GuardSet(), []
    guard_module(guards, LocalSource("self"), model, fetch)
    guards.add(LocalSource("x"), Check.TENSOR_MATCH, x)
    guards.add(None, Check.GLOBAL_STATE)
    return guards, fetch


def minimum(body: Callable[[], Any], repeats: int) -> float:
    """Nanoseconds of one call of `body`, the least of `repeats` measurements."""
    timer = timeit.Timer(body)
    number = max(10, int(2e-3 / max(timer.timeit(3) / 3, 1e-8)))
    return min(timer.repeat(repeats, number)) / number * 1e9


def small_programs() -> dict[str, tuple[GuardSet, Callable[..., Any], list[Any], list[Source]]]:
    """Guards of small functions: name -> (guards, function, arguments, objects to fetch)."""

    def function(x: Any, y: Any = None) -> Any: ...

    x, y = LocalSource("x"), LocalSource("y")
    tensor = torch.ones(8)
    rows: dict[str, list[tuple[Source | None, Check, Any]]] = {
        "torch's global state": [(None, Check.GLOBAL_STATE, None)],
        "one tensor": [(x, Check.TENSOR_MATCH, tensor)],
        "one tensor, global state, a global": [
            (x, Check.TENSOR_MATCH, tensor),
            (None, Check.GLOBAL_STATE, None),
            (GlobalSource("torch"), Check.ID_IS, torch),
        ],
        "two tensors and that they differ": [
            (x, Check.TENSOR_MATCH, tensor),
            (y, Check.TENSOR_MATCH, tensor),
            (x, Check.NOT_ALIAS, y),
        ],
    }
    table = {}
    for name, guards in rows.items():
        guard_set = GuardSet()
        for guard in guards:
            guard_set.add(*guard)
        table[name] = (guard_set, function, [tensor, torch.ones(8)], [])
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    forward = Decoder.forward
    model = Decoder(options.layers, 16)
    x = torch.ones(2, 16)
    arguments = [model, x]
    empty = GuardSet().build(forward.__code__)
    base = minimum(lambda: empty.check(arguments, forward), options.repeats)

    def report(name: str, body: Callable[[], Any]) -> None:
        print(f"{name:58s} {minimum(body, options.repeats) - base:10.0f}")

    guards, fetch = decoder_guards(model, x)
    start = time.perf_counter()
    program = guards.build(forward.__code__, fetch)
    build = time.perf_counter() - start
    print(f"{'guards of':58s} {'ns/call':>10s}")
    for name, (small, function, values, wanted) in small_programs().items():
        small_program = small.build(function.__code__, wanted)
        report(name, lambda p=small_program, v=values, f=function: p.check(v, f))
    modules = sum(1 for _ in model.modules())
    print(f"decoder: {modules} modules, {len(fetch)} parameters, {len(guards)} guards")
    report("  unchanged", lambda: program.check(arguments, forward))
    unfetched = decoder_guards(model, x)[0].build(forward.__code__)
    report("  unchanged, parameters not fetched", lambda: unfetched.check(arguments, forward))

    def store() -> Any:
        model.__dict__["step"] += 1
        return program.check(arguments, forward)

    report("  an unguarded attribute of the root stored before each call", store)
    other = Decoder(options.layers, 16)
    calls = iter([model, other] * 10_000_000)
    report("  two models in turn", lambda: program.check([next(calls), x], forward))
    model.layers[-1].eval()
    report("  the last layer in eval mode: fails", lambda: program.check(arguments, forward))
    print(f"building that program: {build * 1e3:.1f} ms; {program.statistics}")


if __name__ == "__main__":
    main()
