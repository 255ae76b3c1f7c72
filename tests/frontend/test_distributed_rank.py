"""What a process is told about its group while its code is captured."""

import pytest
import torch
import torch.distributed as dist
from testing import CountingBackend, assert_same
from torch.distributed.device_mesh import init_device_mesh

import minidynamo

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
