"""What a printer is given: one fused kernel, independent of the graph it came from.

`KernelSpec` is the contract between the scheduler and the printers. `codegen_cpp(spec)` and
`codegen_triton(spec)` turn it into source. Buffers are named `a0 .. an` by their position in the
argument list, so two places of a graph (two layers of a model) that do the same work give equal
specs, which are compiled once.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from minidynamo.inductor.ir import Buffer
from minidynamo.inductor.loop_body import LoopBody
from minidynamo.inductor.symbolic import IntLike, Symbol


@dataclass(frozen=True)
class KernelArg:
    """One pointer argument.

    Attributes:
        name: `a<position>`; what the body's loads and stores call the buffer. numel: elements that
        may be touched, counted from the pointer (offsets are part of the index expressions). role:
        `in`, `out` (fully or partly written, never read before) or `inout`.
    """

    name: str
    dtype: torch.dtype
    numel: IntLike
    role: str


def failure_texts(
    body: LoopBody,
) -> list[str]:
    """What the checks of a body may fail with; a kernel reports the position in this list."""
    return list(dict.fromkeys(str(node.value) for node in body.nodes if node.op == "check"))


@dataclass(frozen=True)
class KernelSpec:
    """One kernel: for all `body.iters` (in parallel), what `body` says; see `loop_body.py` for its
    reading.

    The loop symbols are already merged and ordered: `iters[-1]` (without reductions) or the symbol
    with the most unit-stride accesses is innermost; `body.reduces` are inside of all `iters`, in
    row-major order.

    Attributes:
        args: pointers, in call order; every buffer of the body is here exactly once and no two
        alias
            (an in-place update is one `inout` argument).
        sizes: names of size symbols (dynamic shapes) that the caller passes as int64, in order.
        Empty when static. device: `cpu` or `cuda`. origins: names of the graph's operators that
        this kernel does, for comments and logs; not part of the identity.
    """

    body: LoopBody
    args: tuple[KernelArg, ...]
    sizes: tuple[str, ...] = ()
    device: str = "cpu"
    origins: tuple[str, ...] = ()

    @property
    def iters(self) -> tuple[Symbol, ...]:
        return self.body.iters

    @property
    def reduces(self) -> tuple[Symbol, ...]:
        return self.body.reduces

    @cached_property
    def failures(self) -> tuple[tuple[str, str], ...]:
        """(exception, text) of the body's checks, each once, in order."""
        return tuple(tuple(text.split(": ", 1)) for text in failure_texts(self.body))  # type: ignore[misc]

    @cached_property
    def text(self) -> str:
        """The whole meaning as text: equal texts, equal kernels."""
        header = [f"device {self.device}", *(f"size {name}" for name in self.sizes)]
        header += [
            f"{arg.role} {arg.name}: {str(arg.dtype)[6:]}[{arg.numel}]" for arg in self.args
        ]
        return "\n".join([*header, self.body.text()])

    @cached_property
    def key(self) -> str:
        """Content hash of `text`."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:32]


def with_offsets(
    spec: KernelSpec,
) -> tuple[KernelSpec, tuple[int, ...]]:
    """The kernel with pointers that begin at the first element that it may touch for sure, and how
    far that is from the buffers' beginnings, in bytes: steps of an unrolled loop, which read and
    write slice after slice, are then one kernel. No offset: ().
    """
    least: dict[str, int] = {}
    for node in spec.body.nodes:
        if node.buffer is not None and node.index is not None:
            const = max(node.index.const, 0)
            least[node.buffer] = min(least.get(node.buffer, const), const)
    if not any(least.values()):
        return spec, ()
    nodes = [
        node
        if node.buffer is None or node.index is None
        else replace(node, index=node.index - least[node.buffer])
        for node in spec.body.nodes
    ]
    body = LoopBody(spec.body.iters, spec.body.reduces, nodes)
    offsets = (least.get(arg.name, 0) * arg.dtype.itemsize for arg in spec.args)
    return replace(spec, body=body), tuple(offsets)


@dataclass(eq=False, slots=True)
class Kernel:
    """A fused kernel in its place.

    Attributes:
        spec: what it computes.
        buffers: its arguments, in order.
        sizes: the size symbols that it is given.
        reuses: (new, old): outputs that take the memory of what the kernel is the last to read.
    """

    spec: KernelSpec
    buffers: tuple[Buffer, ...]
    sizes: tuple[Symbol, ...] = ()
    reuses: tuple[tuple[Buffer, Buffer], ...] = ()
