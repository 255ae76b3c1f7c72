"""Small Triton kernels that have nothing to do with each other, in one launch.

    for item in batches(steps, launches):  # a step, or a list of launches
        kernel = joined([launch.kernel for launch in item])

A launch takes longer than a small kernel: the update of a parameter, or its part of a norm. Those
that follow each other in a plan become one kernel, whose programs are dealt out among the parts:
the first few do what the first part says, and so on. Allocations and views that stand between them
come before.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from minidynamo.inductor.codegen.kernel import KernelArg
from minidynamo.inductor.codegen.plan_steps import (
    Alloc,
    AsStrided,
    Ref,
    Reuse,
    Slot,
    TritonLaunch,
)
from minidynamo.inductor.codegen.triton import TritonKernel
from minidynamo.inductor.codegen.triton_tile import BUSY
from minidynamo.inductor.loop_body import LoopBody
from minidynamo.inductor.runtime.cache import content_key
from minidynamo.inductor.symbolic import Symbol, as_expr

# What has more points than this takes longer than its launch. A launch's arguments have room for
# 500 pointers; as the parts are compiled together, that takes the longer the more they are.
MOST_POINTS = 1 << 20
# Up to so many it does not matter how many warps reduce a row.
FEW_POINTS = 1 << 16
MOST_PARTS, MOST_POINTERS = 64, 200
# Elements of a tile, four for each of 128 threads: larger ones are not made.
LARGE_BLOCK = 512


Range = tuple[int, int]
ANYWHERE = (0, sys.maxsize)


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch of a kernel that is to be compiled.

    Attributes:
        aligned: positions of the pointers that will be multiples of 16.
        points: of its loops, None where a size is only known at run time.
        ranges: slot that it writes to -> first and last element that it may touch.
    """

    step: TritonLaunch
    kernel: TritonKernel
    aligned: tuple[int, ...]
    points: int | None = None
    ranges: Mapping[Slot, Range] = field(default_factory=dict)

    @property
    def compiled_as(self) -> tuple[Any, ...]:
        """What is compiled once."""
        return self.kernel.name, self.aligned, self.step.device

    @property
    def reads(self) -> set[Slot]:
        """Slots that it may read."""
        return {arg.slot for _, arg in self.step.args if isinstance(arg, Ref)} - {*self.ranges}

    @property
    def kind(self) -> Any:
        """What launches have in common that may be one; None for those that run alone."""
        is_fixed = all(kind == "ptr" for kind, _ in self.step.args)
        if self.points is None or self.points > MOST_POINTS or not is_fixed:
            return None
        is_tuned = "RBLOCK" in self.kernel.blocks and self.points > FEW_POINTS
        return self.step.device, self.kernel.num_warps if is_tuned else 0


@dataclass(slots=True)
class Batch:
    """Launches that may be one. `reads`, `writes`: the memory that they touch, by its slots."""

    launches: list[Launch] = field(default_factory=list)
    reads: set[Slot] = field(default_factory=set)
    writes: dict[Slot, list[Range]] = field(default_factory=dict)

    def takes(self, launch: Launch, root: Mapping[Slot, Slot]) -> bool:
        """Whether another launch may be done before, after or beside these."""
        if not self.launches or launch.kind is None or launch.kind != self.launches[0].kind:
            return False
        pointers = sum(len(item.step.args) for item in (*self.launches, launch))
        if len(self.launches) == MOST_PARTS or pointers > MOST_POINTERS:
            return False
        if any(root.get(slot, slot) in self.writes for slot in launch.reads):
            return False
        return not any(
            root.get(slot, slot) in self.reads or self._overlaps(slot, own, root)
            for slot, own in launch.ranges.items()
        )

    def _overlaps(self, slot: Slot, own: Range, root: Mapping[Slot, Slot]) -> bool:
        """Whether these write there, too; places in parts of a buffer are not compared."""
        known = self.writes.get(root.get(slot, slot), [])
        if slot in root and known:
            return True
        return any(own[0] <= last and first <= own[1] for first, last in known)

    def add(self, launch: Launch, root: Mapping[Slot, Slot]) -> None:
        self.launches.append(launch)
        self.reads |= {root.get(slot, slot) for slot in launch.reads}
        for slot, own in launch.ranges.items():
            place = ANYWHERE if slot in root else own
            self.writes.setdefault(root.get(slot, slot), []).append(place)


def batches(steps: Iterable[Any], launches: Mapping[int, Launch]) -> list[Any]:
    """The steps in an order that may be run, with lists of launches that may be one in place of
    launches.

    launches: by the ids of their steps.
    """
    found: list[Any] = []
    root: dict[Slot, Slot] = {}
    batch = Batch()

    def finish() -> None:
        nonlocal batch
        if batch.launches:
            found.append(batch.launches)
        batch = Batch()

    for step in steps:
        if isinstance(step, TritonLaunch):
            launch = launches[id(step)]
            if not batch.takes(launch, root):
                finish()
            batch.add(launch, root)
            continue
        if isinstance(step, AsStrided):
            root[step.slot] = root.get(step.base, step.base)
        elif isinstance(step, Reuse):
            root[step.slot] = root.get(step.source, step.source)
            if root[step.slot] in batch.reads or root[step.slot] in batch.writes:
                finish()
        elif not isinstance(step, Alloc):
            finish()
        found.append(step)
    finish()
    return found


def written_range(body: LoopBody, arg: KernelArg) -> Range:
    """First and last element of an argument that a body may touch."""
    if arg.role != "out":
        return ANYWHERE
    low, high = sys.maxsize, 0
    for node in body.nodes:
        if node.buffer != arg.name:
            continue
        assert node.index is not None
        first = last = node.index.const
        for monomial, factor in node.index.terms.items():
            size = monomial[0].size if isinstance(monomial[0], Symbol) else None
            if len(monomial) > 1 or not isinstance(size, int):
                return ANYWHERE
            first, last = (
                first + min(factor * (size - 1), 0),
                last + max(factor * (size - 1), 0),
            )
        low, high = min(low, first), max(high, last)
    return low, high


def _enlarged(part: TritonKernel, programs: int) -> TritonKernel:
    """An elementwise part with larger tiles, where the programs of all parts are more than enough
    to keep the GPU busy.
    """
    for factor in (4, 2):
        block = part.blocks.get("XBLOCK", 0) * factor
        fits = set(part.blocks) == {"XBLOCK"} and block <= LARGE_BLOCK
        if fits and programs >= factor * BUSY and part.grid.const % factor == 0:
            grid = as_expr(part.grid.const // factor)
            return replace(part, blocks={"XBLOCK": block}, grid=grid)
    return part


def joined(parts: Sequence[TritonKernel]) -> TritonKernel:
    """One kernel that does what these do, with their arguments one behind the other."""
    programs = sum(part.grid.const for part in parts)
    parts = [_enlarged(part, programs) for part in parts]
    functions = {part.name: _as_part(part) for part in parts}
    signature: dict[str, str] = {}
    body: list[str] = []
    writes: list[int] = []
    total = 0
    for number, part in enumerate(parts):
        names = {name: f"p{len(signature) + i}" for i, name in enumerate(part.signature)}
        blocks = [f"{name}={block}" for name, block in part.blocks.items()]
        start = f"pid - {total}" if total else "pid"
        writes += [len(signature) + position for position in part.writes]
        signature.update({names[name]: kind for name, kind in part.signature.items()})
        total += part.grid.const
        test = (
            "else" if number == len(parts) - 1 else f"{'el' if number else ''}if pid < {total}"
        )
        call = ", ".join([start, *names.values(), *blocks])
        body += [f"  {test}:", f"    {part.name}({call})"]
    text = "\n".join([*functions.values(), "  pid = tl.program_id(0)", *body])
    name = f"k_{content_key(text)[:16]}"
    head = f"def {name}({', '.join(signature)}):"
    source = "\n".join([*functions.values(), head, "  pid = tl.program_id(0)", *body, ""])
    warps = max(part.num_warps for part in parts)
    return TritonKernel(name, source, signature, {}, as_expr(total), tuple(writes), warps)


def _as_part(kernel: TritonKernel) -> str:
    """A kernel's text as a function of its program's number."""
    text = kernel.source.replace(f"def {kernel.name}(", f"def {kernel.name}(pid, ", 1)
    return text.replace("tl.program_id(0)", "pid")
