"""How work is shared out on a GPU: which elements a program's threads read side by side, where long
reductions are cut, and which small kernels are not worth a launch.
"""

import pytest

pytest.importorskip("triton")

import torch
import torch.nn.functional as F
from inductor_testing import as_tuple, assert_same, compiled
from triton_testing import assemble

from minidynamo import events
from minidynamo.inductor.codegen import triton_steps, triton_tile
from minidynamo.inductor.codegen.triton import codegen_triton
from minidynamo.inductor.codegen.triton_tile import choose_tiling


def compiled_specs(monkeypatch, fn, *args):
    """The kernels of `fn`, and what calls them."""
    specs = []

    def keep(spec, symbol, *rest):
        specs.append(spec)
        return codegen_triton(spec, symbol, *rest)

    monkeypatch.setattr(triton_steps, "codegen_triton", keep)
    return specs, compiled(fn, *args, cpu_backend="triton")


def specs_of(monkeypatch, fn, *args, **tolerance):
    """The kernels of `fn`, run in Triton's interpreter and compared with eager."""
    specs, run = compiled_specs(monkeypatch, fn, *args)
    for left, right in zip(as_tuple(run(*args)), as_tuple(fn(*args)), strict=True):
        assert_same(left, right, **tolerance)
    return specs


CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def blocks(spec):
    return {axis.name: axis.block for axis in choose_tiling(spec).axes}


def test_rows_with_many_results_are_read_along(monkeypatch):
    """Stores of the results lie side by side, but there is only one for a whole row of loads."""
    x = torch.randn(256, 3000)
    fn = lambda x: (x.amax(-1), x.amin(-1), x.any(-1), x.sum(-1))  # noqa: E731
    (spec,) = specs_of(monkeypatch, fn, x, **CLOSE)
    assert blocks(spec) == {"x": 1, "r": 4096} and choose_tiling(spec).persistent


def test_columns_are_read_across(monkeypatch):
    x = torch.randn(300, 4096)
    (spec,) = specs_of(monkeypatch, lambda x: (x.amax(0), x.sum(0)), x, **CLOSE)
    assert blocks(spec) == {"x": 32, "r": 64}


def test_looked_up_rows_are_read_across(monkeypatch):
    table, places = torch.randn(50, 64), torch.randint(50, (100, 80))
    (spec,) = specs_of(monkeypatch, lambda t, i: t[i].sum(1), table, places, **CLOSE)
    assert blocks(spec) == {"x": 32, "r": 64}


def test_few_rows_get_more_threads(monkeypatch):
    (few,) = specs_of(monkeypatch, lambda x: x.amax(-1), torch.randn(8, 9000))
    (many,) = specs_of(monkeypatch, lambda x: x.amax(-1), torch.randn(1100, 1500))
    assert (blocks(few)["r"], choose_tiling(few).num_warps) == (8192, 16)
    assert (blocks(many)["r"], choose_tiling(many).num_warps) == (2048, 4)


def test_tiles_of_the_shortest_rows_are_not_small(monkeypatch):
    (spec,) = specs_of(monkeypatch, lambda x: x.prod(-1), torch.rand(1 << 16, 2))
    assert (blocks(spec), choose_tiling(spec).num_warps) == ({"x": 256, "r": 2}, 4)
    (spec,) = specs_of(monkeypatch, lambda x: x.prod(-1), torch.rand(1 << 14, 2))
    assert blocks(spec) == {"x": 64, "r": 2}
    (spec,) = specs_of(monkeypatch, lambda x: x.sum(-1), torch.rand(1 << 11, 32), **CLOSE)
    assert (blocks(spec), choose_tiling(spec).num_warps) == ({"x": 8, "r": 32}, 4)


def test_strided_reads_have_neighbouring_threads(monkeypatch):
    x = torch.randn(512, 1024)
    (pairs,) = specs_of(monkeypatch, lambda x: x[:, ::2] + x[:, 1::2], x)
    (windows,) = specs_of(monkeypatch, lambda x: F.avg_pool1d(x, 4), x)
    assert (blocks(pairs)["x"], choose_tiling(pairs).num_warps) == (512, 8)
    assert (blocks(windows)["x"], choose_tiling(windows).num_warps) == (256, 8)
    (few,) = specs_of(monkeypatch, lambda x: x[:, ::2] + x[:, 1::2], x[:64])
    assert (blocks(few)["x"], choose_tiling(few).num_warps) == (64, 2)


def test_columns_of_two_bytes_are_walked_in_longer_steps(monkeypatch):
    x = torch.randn(4096, 1024, dtype=torch.bfloat16)
    spec = compiled_specs(monkeypatch, lambda x: x.sum(0), x)[0][0]
    assert blocks(spec)["r"] == 64
    monkeypatch.setattr(triton_tile, "CACHED", 1 << 20)  # elements
    assert blocks(spec)["r"] == 128


def test_a_broadcast_is_no_transposition(monkeypatch):
    x, y = torch.randn(64, 1), torch.randn(64, 64)
    (spec,) = specs_of(monkeypatch, lambda x, y: x * y, x, y)
    assert list(blocks(spec)) == ["x"]
    (spec,) = specs_of(monkeypatch, lambda x, y: x * y + y.t(), x, y)
    assert list(blocks(spec)) == ["y", "x"]


def test_row_statistics_join_the_pieces_of_a_sum(monkeypatch):
    x, y = torch.randn(32, 2048), torch.randn(32, 2048)

    def fn(x, y):
        return F.kl_div(F.log_softmax(x, -1), F.softmax(y, -1), reduction="batchmean")

    assert len(specs_of(monkeypatch, fn, x, y, **CLOSE)) == 2


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: F.interpolate(x, scale_factor=1.5, mode="bilinear"),
        lambda x: F.interpolate(x, size=(5, 4), mode="bilinear", align_corners=True),
        lambda x: F.interpolate(x, size=(13, 7), mode="nearest"),
    ],
)
def test_positions_and_weights_are_computed_where_they_are_used(monkeypatch, fn):
    assert len(specs_of(monkeypatch, fn, torch.randn(2, 3, 9, 8), **CLOSE)) == 1


def test_a_small_kernel_becomes_part_of_its_reader(monkeypatch):
    notes = []
    with events.subscribe(lambda event: notes.extend(event.notes), events.ScheduleEvent):
        fn = lambda x: F.avg_pool2d(x.exp() * x.sin(), 2)  # noqa: E731
        specs = specs_of(monkeypatch, fn, torch.randn(2, 3, 8, 6), **CLOSE)
    assert len(specs) == 1
    assert any("computed again in 1 kernel " in note for note in notes)


def test_pooling_with_positions_and_gradients(monkeypatch):
    pool = torch.ops.minidynamo.pool_numbered.default
    collect = torch.ops.minidynamo.pool_collect.default

    def fn(x):
        maxima, numbers = pool(x, [3, 3], [2, 2], [1, 1], [1, 1], False)
        grad = collect(maxima, numbers, [2, 3, 9, 8], [3, 3], [2, 2], [1, 1], False, False)
        return maxima, numbers, grad, F.max_pool2d(x, 3, 2, 1, return_indices=True)[1]

    specs = specs_of(monkeypatch, fn, torch.randint(-3, 3, (2, 3, 9, 8)).float(), **CLOSE)
    for spec in specs:
        assemble(codegen_triton(spec, "kernel"))
