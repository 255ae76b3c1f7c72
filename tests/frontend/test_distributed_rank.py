"""What a process is told about its group, and exchanges, while its code is captured."""

import datetime
import subprocess
import sys
import threading
import time

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional_collectives
from testing import CountingBackend, assert_same, outcome
from torch.distributed.device_mesh import init_device_mesh

import minidynamo
from minidynamo.inductor.utils import run_and_get_code

pytestmark = pytest.mark.skipif(not dist.is_gloo_available(), reason="torch lacks gloo")
X = torch.arange(4.0)


@pytest.fixture
def group(tmp_path):
    """A group of this process alone."""
    dist.init_process_group(
        "gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1
    )
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def places(x):
    if dist.get_rank() == 0:
        x = x + 1
    size = dist.get_world_size(dist.group.WORLD) + dist.get_world_size(group=None)
    return x * size, dist.get_backend()


def test_rank_and_size(group):
    counter = CountingBackend()
    compiled = minidynamo.compile(places, backend=counter, fullgraph=True)
    for _ in range(2):
        assert_same(compiled(X), places(X))
    assert len(counter.graphs) == 1


def test_without_a_group_eager_raises(group):
    counter = CountingBackend()
    compiled = minidynamo.compile(places, backend=counter)
    assert_same(compiled(X), places(X))
    dist.destroy_process_group()
    with pytest.raises(ValueError, match="not been initialized"):
        compiled(X)
    assert len(counter.graphs) == 1


def test_device_mesh(group):
    def place(x, mesh):
        at = mesh.get_local_rank(0) + mesh.get_rank() + mesh.size() + mesh.size(0)
        return x * mesh.ndim + at, mesh.device_type

    counter = CountingBackend()
    compiled = minidynamo.compile(place, backend=counter, fullgraph=True)
    meshes = [init_device_mesh("cpu", sizes) for sizes in ((1,), (1, 1))]
    for graphs, mesh in enumerate(meshes, start=1):
        for _ in range(2):
            assert_same(compiled(X, mesh), place(X, mesh))
        assert len(counter.graphs) == graphs


def test_methods_of_groups(group):
    def place(x, group):
        return x * group.size() + group.rank(), group.name(), group.group_name

    counter = CountingBackend()
    compiled = minidynamo.compile(place, backend=counter, fullgraph=True)
    for graphs, given in enumerate((dist.group.WORLD, dist.new_group([0])), start=1):
        for _ in range(2):
            assert_same(compiled(X, given), place(X, given))
        assert len(counter.graphs) == graphs


def reduces(x):
    y = x * 2
    done = dist.all_reduce(y), dist.all_reduce(y[1:], op=dist.ReduceOp.MAX)
    return y + 1, done


def gathers(x):
    parts, whole = [torch.empty_like(x)], torch.empty(4)
    dist.all_gather(parts, x * 2)
    dist.all_gather_into_tensor(whole, x.sin(), group=dist.group.WORLD)
    return parts[0] + whole


def scatters(x):
    part = torch.empty(4)
    dist.reduce_scatter_tensor(part, x * 2, dist.ReduceOp.PRODUCT)
    return part.cos()


def functional(x):
    y = functional_collectives.all_reduce(x * 2, "sum", dist.group.WORLD)
    z = functional_collectives.all_gather_tensor(y.sin(), 0, dist.group.WORLD)
    return y + z


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("fn", [reduces, gathers, scatters, functional])
def test_collectives(group, fn, backend):
    counter = CountingBackend(backend=backend)
    compiled = minidynamo.compile(fn, backend=counter, fullgraph=True)
    for x in (X, X + 1):
        assert_same(compiled(x), fn(x))
    assert len(counter.graphs) == 1
    assert any("c10d_functional" in str(node.target) for node in counter.graphs[0].graph.nodes)


def test_a_collective_whose_result_nobody_wants_is_called(group):
    """Other processes may want it. Two that are equal are two."""

    def fn(x):
        y = functional_collectives.all_reduce(x * 2, "sum", dist.group.WORLD)
        functional_collectives.all_reduce(x * 2, "sum", dist.group.WORLD)
        functional_collectives.all_gather_tensor(x, 0, dist.group.WORLD)
        return y + 1

    result, (code,) = run_and_get_code(minidynamo.compile(fn, fullgraph=True), X)
    assert_same(result, X * 2 + 1)
    assert code.count("= _c10d_functional.all_reduce(") == 2
    assert code.count("_c10d_functional.wait_tensor(") >= 3


PARTNER = """
import pathlib, sys, time
import torch, torch.distributed as dist
folder = pathlib.Path(sys.argv[1])
store = dist.FileStore(str(folder / "store"), 2)
dist.init_process_group("gloo", store=store, rank=1, world_size=2)
for name in ("first", "second"):
    while not (folder / name).exists():
        time.sleep(0.01)
    dist.all_reduce(torch.ones(4))
dist.destroy_process_group()
"""


def test_other_threads_run_while_a_collective_waits(tmp_path):
    """The partner comes when another thread of this process has told it to."""

    def fn(x):
        y = x * 2
        dist.all_reduce(y)
        return y + 1

    def tell(name):
        time.sleep(0.3)
        (tmp_path / name).touch()

    partner = subprocess.Popen([sys.executable, "-c", PARTNER, str(tmp_path)])
    try:
        dist.init_process_group(
            "gloo",
            store=dist.FileStore(str(tmp_path / "store"), 2),
            rank=0,
            world_size=2,
            timeout=datetime.timedelta(seconds=60),
        )
        compiled = minidynamo.compile(fn, fullgraph=True)
        for name in ("first", "second"):
            thread = threading.Thread(target=tell, args=(name,))
            thread.start()
            assert_same(compiled(X), X * 2 + 2)
            thread.join()
        assert partner.wait(60) == 0
    finally:
        partner.kill()
        partner.wait()
        if dist.is_initialized():
            dist.destroy_process_group()


def waits(x):
    y = x * 2
    work = dist.all_reduce(y, async_op=True)
    work.wait()
    return y + 1


def strided(x):
    y = torch.stack((x, x))[:, ::2]
    dist.all_reduce(y)
    return y + 1


def stacks(x):
    whole = torch.empty(1, 4)  # (processes, ...) is taken as well as (processes * 4)
    dist.all_gather_into_tensor(whole, x)
    return whole


@pytest.mark.parametrize("fn", [waits, strided, stacks])
def test_what_stays_in_eager(group, fn):
    compiled = minidynamo.compile(fn, backend="eager")
    for _ in range(2):
        assert_same(outcome(compiled, (X,), {}), outcome(fn, (X,), {}))
    with pytest.raises(minidynamo.exc.Unsupported):
        minidynamo.compile(fn, backend="eager", fullgraph=True)(X)


def test_autograd_passes_over_a_collective_as_in_eager(group):
    weight = torch.ones(4, requires_grad=True)

    def fn(x):
        y = x * weight
        with torch.no_grad():
            z = y.clone()
            dist.all_reduce(z)
        return (y * z).sum()

    counter = CountingBackend(backend="aot_eager")
    compiled = minidynamo.compile(fn, backend=counter, fullgraph=True)
    (want,) = torch.autograd.grad(fn(X), weight)
    (got,) = torch.autograd.grad(compiled(X), weight)
    assert torch.equal(got, want) and len(counter.graphs) == 1


def test_the_number_of_an_operation_is_none(group):
    def fn(x):
        dist.all_reduce(x, 7)  # equal to dist.ReduceOp.BXOR, with the same hash

    for call in (fn, minidynamo.compile(fn, backend="eager")):
        with pytest.raises(TypeError, match="incompatible function arguments"):
            call(X.clone())
