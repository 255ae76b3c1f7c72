"""Writing in place: a kernel's output takes the memory of a buffer that nobody reads afterwards.

    steps = with_reuse(steps, buffers, kept)    # `Kernel.reuses` says what took whose memory

A cache line that was just read is written without being fetched again, another buffer less goes
through the caches, and less memory is held at a time. An output of a kernel takes the place of what
the kernel reads if

    that is memory of the plan's own (no input, constant or output, nothing that an operator might
        have kept), and no later step reads it or a view of it
    both have the same dtype and as much memory (their sizes may differ: products of matrices see
    batches of rows as one)
    the kernel writes all of the output, and every element of the other is read only at the point
        that writes its place, and before

On a GPU that point is one thread's: those that Triton lets load the same element store nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

import torch

from minidynamo.inductor.codegen.kernel import Kernel, KernelSpec
from minidynamo.inductor.dependencies import roots, writes_of
from minidynamo.inductor.extern import SILENT_ALIASES
from minidynamo.inductor.fusion import is_injective, reads_overwritten
from minidynamo.inductor.ir import Buffer, ExternOp
from minidynamo.inductor.loop_body import LoopBody
from minidynamo.inductor.symbolic import as_expr

Steps = Sequence[Kernel | ExternOp]
# Operators of these libraries hold no argument after the call and say which results share memory
# with one, but for the composite ones and `SILENT_ALIASES`.
LIBRARIES = ("aten", "mkldnn", "mkl", "onednn", "prims", "quantized", "minidynamo")
# Their results have as much memory around them as the argument that they are a copy of.
ROOMY = (
    "aten::slice_scatter",
    "aten::select_scatter",
    "aten::diagonal_scatter",
    "aten::as_strided_scatter",
)


def with_reuse(
    steps: Steps,
    buffers: Mapping[str, Buffer],
    kept: Set[str],
) -> list[Kernel | ExternOp]:
    """The steps, kernels writing in place where that is possible. kept: buffers that outlive the
    graph.
    """
    uses = _Uses(steps, buffers, kept)
    result: list[Kernel | ExternOp] = []
    for at, step in enumerate(steps):
        result.append(_in_place(step, at, uses) if isinstance(step, Kernel) else step)
    return result


class _Uses:
    """When buffers are used last, and which never may be written over."""

    def __init__(
        self,
        steps: Steps,
        buffers: Mapping[str, Buffer],
        kept: Set[str],
    ) -> None:
        self.last: dict[str, int] = {}
        self.writers: Counter[str] = Counter()
        self.kept = set(kept)
        for at, step in enumerate(steps):
            if isinstance(step, Kernel):
                touched = {buffer.name for buffer in step.buffers}
                pairs = zip(step.buffers, step.spec.args, strict=True)
                self.writers.update(buffer.name for buffer, arg in pairs if arg.role != "in")
            else:
                touched = step.reads() | writes_of(step)
                self.writers.update(writes_of(step))
                if step.op._schema.name in ROOMY:
                    self.kept |= writes_of(step)
                if _may_keep(step):
                    self.kept |= {r.name for n in touched for r in roots(buffers[n])}
            for name in touched:
                self.last.update((root.name, at) for root in roots(buffers[name]))

    def is_dead_after(
        self,
        buffer: Buffer,
        at: int,
    ) -> bool:
        """Whether step `at` is the last that may look at this memory."""
        own = buffer.kind in ("computed", "extern") and not buffer.alias_of
        return own and buffer.name not in self.kept and self.last[buffer.name] == at


def _may_keep(step: ExternOp) -> bool:
    """Whether an operator may hold its arguments, or return one, without saying so.

    A sparse tensor holds the indices and values that it is made of.
    """
    schema = step.op._schema
    composite = torch._C.DispatchKey.CompositeImplicitAutograd
    known = schema.name.partition("::")[0] in LIBRARIES and step.op not in SILENT_ALIASES
    if not known or "sparse" in schema.name:
        return True
    return step.op.has_kernel_for_dispatch_key(composite)


def _in_place(
    kernel: Kernel,
    at: int,
    uses: _Uses,
) -> Kernel:
    spec = kernel.spec
    if any(node.op == "scatter" for node in spec.body.nodes):
        return kernel
    taken: dict[int, int] = {}
    for out, arg in enumerate(spec.args):
        target = kernel.buffers[out]
        if arg.role != "out" or target.kind != "computed" or uses.writers[target.name] > 1:
            continue
        for source, other in enumerate(spec.args):
            if (
                other.role == "in"
                and source not in taken.values()
                and _same_memory(kernel.buffers[source], target)
                and uses.is_dead_after(kernel.buffers[source], at)
                and _point_by_point(spec.body, other.name, arg.name)
            ):
                taken[out] = source
                break
    return _merged(kernel, taken) if taken else kernel


def _same_memory(a: Buffer, b: Buffer) -> bool:
    same = a.dtype == b.dtype and a.device == b.device
    return same and as_expr(a.extent()) == as_expr(b.extent())


def _point_by_point(
    body: LoopBody,
    source: str,
    target: str,
) -> bool:
    """Whether what is stored to `target` may lie where `source` does."""
    loads = [p for p, node in enumerate(body.nodes) if node.buffer == source]
    stores = [p for p, node in enumerate(body.nodes) if node.buffer == target]
    if len(stores) != 1 or max(loads) > stores[0]:
        return False
    index = body.nodes[stores[0]].index
    assert index is not None
    # A store of rows' results happens once a row, every other one at each point.
    symbols = [*body.iters, *(body.reduces if body.levels()[stores[0]] else ())]
    if any(body.nodes[p].index != index for p in loads) or not is_injective(index, symbols):
        return False
    return not reads_overwritten(body.rename_buffers({target: source}))


def _merged(kernel: Kernel, taken: Mapping[int, int]) -> Kernel:
    """The kernel with one argument for each pair of an output and what it takes the place of."""
    spec, owners = kernel.spec, {source: out for out, source in taken.items()}
    rest = [place for place in range(len(spec.args)) if place not in taken]
    names = {spec.args[place].name: f"a{new}" for new, place in enumerate(rest)}
    names |= {
        spec.args[out].name: names[spec.args[source].name] for out, source in taken.items()
    }
    args = tuple(
        replace(
            spec.args[place],
            name=names[spec.args[place].name],
            role="inout" if place in owners else spec.args[place].role,
        )
        for place in rest
    )
    body = spec.body.rename_buffers(names)
    buffers = tuple(kernel.buffers[owners.get(place, place)] for place in rest)
    pairs = tuple(
        (kernel.buffers[out], kernel.buffers[source]) for out, source in taken.items()
    )
    new = KernelSpec(body, args, spec.sizes, spec.device, spec.origins)
    return replace(kernel, spec=new, buffers=buffers, reuses=pairs)
