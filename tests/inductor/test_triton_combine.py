"""Several small Triton kernels in one launch: which may be, and that all parts are done."""

from dataclasses import replace

import pytest

pytest.importorskip("triton")

import torch
from triton_testing import assemble, builder, kernel_of, run, same

from minidynamo.inductor.codegen.plan import Alloc, AsStrided, Extern, Ref, Reuse, TritonLaunch
from minidynamo.inductor.codegen.triton_combine import ANYWHERE, Launch, batches, joined
from minidynamo.inductor.symbolic import symbol_expr

F32 = torch.float32


def doubled(count, name="kernel"):
    b = builder((count,))
    index = symbol_expr(b.iters[0])
    b.store("a1", index, b.op("mul", b.load("a0", index, F32), b.constant(2.0, F32)), F32)
    kernel = kernel_of(b.finish(), [(F32, count, "in"), (F32, count, "out")])
    return renamed(kernel, name)


def summed(rows, length, name="kernel"):
    b = builder((rows,), (length,))
    x, r = symbol_expr(b.iters[0]), symbol_expr(b.reduces[0])
    b.store("a1", x, b.reduction("sum", b.load("a0", x * length + r, F32)), F32)
    kernel = kernel_of(b.finish(), [(F32, rows * length, "in"), (F32, rows, "out")])
    return renamed(kernel, name)


def renamed(kernel, name):
    source = kernel.source.replace(f"def {kernel.name}(", f"def {name}(")
    return replace(kernel, name=name, source=source)


def test_all_parts_are_done():
    parts = [doubled(5000, "k_a"), summed(30, 700, "k_b"), doubled(5000, "k_a")]
    kernel = joined(parts)
    assert kernel.grid.const == sum(part.grid.const for part in parts)
    assert kernel.writes == (1, 3, 5)
    x, y, z = torch.randn(5000), torch.randn(30, 700), torch.randn(5000)
    results = torch.full((5000,), 7.0), torch.full((30,), 7.0), torch.full((5000,), 7.0)
    run(kernel, x, results[0], y, results[1], z, results[2])
    same(results, (x * 2, y.sum(1), z * 2), rtol=1e-5, atol=1e-5)
    ptx = assemble(kernel)[-1]
    assert "ld.global.v4" in ptx  # alignment is known inside of the parts


def launch(reads, writes, points=64, kind="ptr", device="cuda:0"):
    """A launch that reads slots and writes (slot -> range)."""
    args = tuple((kind, Ref(slot)) for slot in (*reads, *writes))
    step = TritonLaunch("k", "k", "", device, (1, 1, 1), 4, 0, args, tuple(writes))
    return Launch(step, KERNEL, (), points, writes)


KERNEL = doubled(64)


def lengths(*items):
    """How long the batches are that these steps and launches are put into."""
    known = {id(item.step): item for item in items if isinstance(item, Launch)}
    steps = [item.step if isinstance(item, Launch) else item for item in items]
    return [len(item) if isinstance(item, list) else "-" for item in batches(steps, known)]


ALLOC = Alloc(9, (4,), (1,), "float32", "cuda:0")
VIEW = AsStrided(5, 1, (2,), (1,))
REUSE = Reuse(6, 0, (4,), (1,), "float32")
EXTERN = Extern("aten::mm", "", (), {}, (None,))


@pytest.mark.parametrize(
    "items, expected",
    [
        ([launch([0], {1: ANYWHERE}), ALLOC, launch([0], {9: ANYWHERE})], ["-", 2]),
        ([launch([0], {1: ANYWHERE}), launch([1], {2: ANYWHERE})], [1, 1]),
        ([launch([0], {1: ANYWHERE}), launch([2], {0: ANYWHERE})], [1, 1]),
        ([launch([0], {1: ANYWHERE}), launch([2], {1: ANYWHERE})], [1, 1]),
        ([launch([0], {1: (0, 3)}), launch([2], {1: (4, 7)})], [2]),
        ([launch([0], {1: (0, 4)}), launch([2], {1: (4, 7)})], [1, 1]),
        ([launch([0], {1: (0, 3)}), VIEW, launch([2], {5: (0, 1)})], ["-", 1, 1]),
        ([launch([0], {1: (0, 3)}), VIEW, launch([5], {2: ANYWHERE})], ["-", 1, 1]),
        ([launch([0], {1: (0, 3)}), REUSE, launch([2], {6: (0, 1)})], [1, "-", 1]),
        ([launch([2], {1: (0, 3)}), REUSE, launch([3], {6: (0, 1)})], ["-", 2]),
        ([launch([0], {1: (0, 3)}), EXTERN, launch([2], {3: (0, 1)})], [1, "-", 1]),
        ([launch([0], {1: (0, 3)}, 1 << 21), launch([2], {3: (0, 1)})], [1, 1]),
        ([launch([0], {1: (0, 3)}, None), launch([2], {3: (0, 1)})], [1, 1]),
        ([launch([0], {1: (0, 3)}), launch([2], {3: (0, 1)}, kind="i64")], [1, 1]),
        ([launch([0], {1: (0, 3)}), launch([2], {3: (0, 1)}, device="cuda:1")], [1, 1]),
        ([launch([0], {i: ANYWHERE}) for i in range(1, 151)], [64, 64, 22]),
    ],
)
def test_what_may_be_one_launch(items, expected):
    assert lengths(*items) == expected
