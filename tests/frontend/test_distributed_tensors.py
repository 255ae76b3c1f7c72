"""Tensors that lie on several processes (DTensor). The group is a pretended one of two processes,
whose collectives exchange nothing: both sides do the same with it.
"""

import pytest
import torch
import torch.distributed as dist
from testing import CountingBackend, assert_same
from torch import nn

import minidynamo
from minidynamo.inductor import metrics

pytestmark = pytest.mark.skipif(not dist.is_gloo_available(), reason="torch lacks gloo")
BACKENDS = ("eager", "aot_eager", "inductor")


@pytest.fixture
def mesh():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    minidynamo.reset()
    yield init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    dist.destroy_process_group()


@pytest.fixture
def dtensors(mesh):
    from torch.distributed import tensor

    return tensor


def placed(tensors, mesh, value, placement):
    return tensors.DTensor.from_local(value, mesh, [placement], run_check=False)


def values(*shape, seed=0, grad=False):
    made = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return made.requires_grad_(grad)


def shown(value):
    """What there is to see of a result."""
    if isinstance(value, (tuple, list)):
        return [shown(item) for item in value]
    if not isinstance(value, torch.Tensor):
        return value
    if hasattr(value, "wait"):  # eager's collectives may still run, graphs wait for theirs
        return shown(value.wait().clone().requires_grad_(value.requires_grad))
    row = [type(value).__name__, value.shape, value.stride(), value.dtype, value.requires_grad]
    if hasattr(value, "_local_tensor"):
        placement = repr(value.placements), str(value.device_mesh)
        return [*row, placement, shown(value._local_tensor.detach())]
    return [*row, value.detach()]


def outcome(function, args):
    """Results and gradients."""
    try:
        result = function(*args)
    except Exception as error:
        return type(error)
    results = result if isinstance(result, (tuple, list)) else [result]
    tracked = [r for r in results if isinstance(r, torch.Tensor) and r.requires_grad]
    given = [a for a in args if isinstance(a, torch.Tensor) and a.requires_grad]
    local = [r.to_local() if hasattr(r, "to_local") else r for r in tracked]
    total = sum(part.square().sum() for part in local)
    grads = torch.autograd.grad(total, given, allow_unused=True) if tracked and given else ()
    return shown(result), shown(grads)


def agree(function, calls, *, graphs, backend="eager", **options):
    counter = CountingBackend(backend=backend)
    metrics.reset()
    compiled = minidynamo.compile(function, backend=counter, fullgraph=True, **options)
    for args in calls:
        assert_same(outcome(compiled, args), outcome(function, args))
    assert len(counter.graphs) == graphs
    assert metrics.uncompiled_graphs == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_operators(mesh, dtensors, backend):
    def function(x):
        return x * x + 2, x.sum(0), x.t() @ x

    shard, replicate = dtensors.Shard, dtensors.Replicate
    calls = [(placed(dtensors, mesh, values(4, 4), shard(0)),)] * 2
    calls += [(placed(dtensors, mesh, values(4, 4), shard(1)),)]
    calls += [(placed(dtensors, mesh, values(4, 4), replicate()),)]
    agree(function, calls, graphs=3, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_training(mesh, dtensors, backend):
    def function(x, w):
        y = (x @ w).relu()
        return y, (y * 2).to_local()

    def call(seed):
        x = placed(dtensors, mesh, values(4, 4, seed=seed, grad=True), dtensors.Shard(0))
        return x, placed(dtensors, mesh, values(4, 6, grad=True), dtensors.Replicate())

    agree(function, [call(1), call(2)], graphs=1, backend=backend)


def test_sizes(mesh, dtensors):
    """In torch 2.11 the metadata of a DTensor hold its sizes."""
    has_sizes = (
        "device_mesh"
        not in placed(dtensors, mesh, values(2, 4), dtensors.Shard(0)).__tensor_flatten__()[0]
    )
    rows = [placed(dtensors, mesh, values(n, 4), dtensors.Shard(0)) for n in (4, 6, 8, 10)]
    calls = [(x,) for x in rows]

    def function(x):
        return x * x.shape[0] + x.numel(), x.to_local().shape[0], x.size(0), x.ndim

    agree(function, calls, graphs=4 if has_sizes else 2)
    minidynamo.reset()
    agree(lambda x: x.sin() + 1, calls, graphs=4 if has_sizes else 2, backend="inductor")


@pytest.mark.parametrize("backend", BACKENDS)
def test_made_inside(mesh, dtensors, backend):
    def function(x):
        made = dtensors.DTensor.from_local(x, mesh, [dtensors.Shard(0)], run_check=False)
        return made * 2, made.sin().to_local()

    def by_names(x, d):
        placements = [dtensors.Shard(d)]
        return dtensors.DTensor.from_local(x, device_mesh=mesh, placements=placements) + 1

    calls = [(values(3, 2, grad=True),), (values(3, 2, grad=True, seed=1),), (values(3, 2),)]
    agree(function, calls, graphs=2, backend=backend)
    agree(by_names, [(values(3, 2), 0), (values(3, 2), 0)], graphs=1, backend=backend)


def test_sizes_of_what_is_made(mesh, dtensors):
    def function(x):
        made = dtensors.DTensor.from_local(
            x, mesh, [dtensors.Replicate()], shape=x.shape, stride=x.stride()
        )
        return made.to_local() + 2

    calls = [(values(n, 6, grad=True),) for n in (4, 5, 7)]
    agree(function, calls, graphs=2, backend="aot_eager")


@pytest.mark.parametrize("backend", BACKENDS)
def test_redistribution(mesh, dtensors, backend):
    """A pretended all_gather takes the own part for the others'."""

    def function(x):
        whole = torch.mul(x, x).redistribute(x.device_mesh, [dtensors.Replicate()])
        later = x.redistribute(placements=[dtensors.Replicate()], async_op=True).to_local()
        return whole.to_local().shape, (later * 2).shape, x.full_tensor().shape

    x = placed(dtensors, mesh, values(4, 4, grad=True), dtensors.Shard(0))
    agree(function, [(x,), (x,)], graphs=1, backend=backend)


def test_placements_are_constants(mesh, dtensors):
    def function(x, placement):
        if placement.is_shard():
            x = x + placement.dim
        if placement.is_shard(dim=1) or placement.is_replicate():
            x = x * 2
        names = repr(placement), hash(placement) == hash(dtensors.Shard(1))
        return (
            x,
            names,
            placement in (dtensors.Shard(0),),
            isinstance(placement, type(placement)),
        )

    kinds = (dtensors.Shard(0), dtensors.Shard(1), dtensors.Replicate(), dtensors.Partial())
    calls = [(values(3), placement) for placement in (*kinds, dtensors.Shard(0))]
    agree(function, calls, graphs=3)  # that of a Partial has no operator
    agree(lambda x, d: (x, dtensors.Shard(d)), [(values(3), 1)], graphs=0)


def test_attributes(mesh, dtensors):
    def function(x):
        between = x * 2
        if between.placements[0].is_shard():
            return between._local_tensor + 2, between.placements, x.device_mesh.size()
        return between._local_tensor + 3, x.placements == between.placements

    def kind(x):
        return x + 1 if isinstance(x, dtensors.DTensor) else x - 1

    shard = placed(dtensors, mesh, values(4), dtensors.Shard(0))
    replicate = placed(dtensors, mesh, values(4), dtensors.Replicate())
    agree(function, [(shard,), (replicate,), (shard,)], graphs=2)
    agree(kind, [(shard,), (values(4),), (shard,)], graphs=2)


def test_mesh(mesh, dtensors):
    def function(x, mesh):
        count = mesh.size() + mesh.size(0) + mesh.size(mesh_dim=0) + mesh.ndim
        x = x + mesh.get_local_rank() + mesh["tp"].get_rank()
        return x * count, mesh.get_coordinate(), mesh.shape, mesh.mesh_dim_names

    def group(x, mesh):
        return x + 1, mesh.get_group() is mesh.get_group(), mesh.device_type, mesh == mesh

    agree(function, [(values(3), mesh)] * 2, graphs=1)
    agree(group, [(values(3), mesh)] * 2, graphs=1)
    with pytest.raises(minidynamo.exc.Unsupported, match="DeviceMesh"):
        minidynamo.compile(lambda x, mesh: x + mesh.mesh, fullgraph=True)(values(2), mesh)


def test_equal_meshes_are_one(mesh, dtensors):
    from torch.distributed.device_mesh import DeviceMesh

    def function(x, mesh, placement):
        return dtensors.DTensor.from_local(x, mesh, [placement], run_check=False)

    def new():
        return DeviceMesh("cpu", torch.arange(2))

    kinds = (dtensors.Shard(1), dtensors.Shard(1), dtensors.Partial(), dtensors.Partial())
    agree(function, [(values(4, 4), new(), kind) for kind in kinds], graphs=2)
    minidynamo.reset()
    others = DeviceMesh("cpu", torch.arange(1)), new()
    agree(function, [(values(4, 4), mesh, kinds[0]) for mesh in others], graphs=2)


def test_hooks(mesh, dtensors):
    """Those of `parallelize_module`, and one of the program."""
    from torch.distributed.tensor import parallel

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)

        def forward(self, x):
            return self.down(torch.relu(self.up(x)))

    plan = {"up": parallel.ColwiseParallel(), "down": parallel.RowwiseParallel()}
    torch.manual_seed(0)
    with torch.no_grad():
        model = parallel.parallelize_module(Model(), mesh, plan)
    counter = CountingBackend(backend="aot_eager")
    compiled = minidynamo.compile(model, backend=counter, fullgraph=True)
    for _ in range(2):
        compiled(values(3, 4)).sum().backward()
    assert len(counter.graphs) == 1
    assert type(model.up.weight.grad) is dtensors.DTensor
    assert model.up.weight.grad.placements == (dtensors.Shard(0),)

    def hook(module, args, result):
        local = result.to_local(grad_placements=result.placements) + 2
        return dtensors.DTensor.from_local(local, mesh, result.placements, run_check=False)

    linear = nn.Linear(4, 4)
    linear.register_forward_hook(hook)
    for name, value in list(linear.named_parameters()):
        whole = placed(dtensors, mesh, value.detach(), dtensors.Replicate())
        setattr(linear, name, nn.Parameter(whole))
    x = placed(dtensors, mesh, values(2, 4), dtensors.Replicate())
    agree(linear, [(x,), (x,)], graphs=1, backend="inductor")


def test_embedding_of_distributed_rows(mesh, dtensors):
    """What it gives is placed with a mask, the data of one call."""
    from torch.distributed.tensor import parallel

    style = parallel.RowwiseParallel(input_layouts=dtensors.Replicate())
    embedding = parallel.parallelize_module(nn.Embedding(20, 8), mesh, style)
    agree(embedding, [(torch.arange(12) % n,) for n in (20, 7)], graphs=1, backend="inductor")
    with torch.no_grad():
        rows = placed(dtensors, mesh, torch.arange(6), dtensors.Replicate())

        def masked():
            return nn.functional.embedding(rows, embedding.weight)

        def whole(x):
            return x.redistribute(placements=[dtensors.Replicate()]) * 2

        compiled = minidynamo.compile(whole, backend="eager")
        for _ in range(2):
            assert_same(shown(compiled(masked())), shown(whole(masked())))
        with pytest.raises(minidynamo.exc.Unsupported, match="holds tensors"):
            minidynamo.compile(whole, fullgraph=True)(masked())


@torch.compiler.allow_in_graph
def count(x, mesh, placements, *, last=None):
    return x * mesh.size() + sum(p.is_shard() for p in placements) + (last is not None)


def test_arguments_of_functions_in_graphs(mesh, dtensors):
    """The text of a graph cannot name a mesh or a placement."""

    def function(x, mesh, placement):
        return count(x, mesh, [placement, dtensors.Shard(1)], last=placement)

    kinds = (dtensors.Shard(0), dtensors.Shard(0), dtensors.Replicate())
    agree(function, [(values(3), mesh, kind) for kind in kinds], graphs=2, backend="inductor")


def test_views_of_inputs(mesh, dtensors):
    """AOTAutograd would make them by `as_strided`, which DTensors refuse."""

    def function(x):
        return x.t(), x.view(-1, 2, 2), x.unsqueeze(0), x * 2

    x = placed(dtensors, mesh, values(4, 4), dtensors.Shard(0))
    compiled = minidynamo.compile(function, fullgraph=True)
    for _ in range(2):
        assert_same(outcome(compiled, (x,)), outcome(function, (x,)))
    assert compiled(x)[0]._local_tensor.data_ptr() == x._local_tensor.data_ptr()


def test_writes(mesh, dtensors):
    def function(x):
        x.add_(1)
        return x * 2

    def new():
        return (placed(dtensors, mesh, values(4, 4), dtensors.Shard(0)),)

    for backend in BACKENDS:
        minidynamo.reset()
        compiled = minidynamo.compile(function, backend=backend, fullgraph=True)
        for _ in range(2):
            (given,), (expected,) = new(), new()
            version = given._version
            assert_same(shown(compiled(given)), shown(function(expected)))
            assert_same(shown(given), shown(expected))
            assert given._version - version == 1


def test_results_of_collectives(mesh, dtensors):
    """Those that still run are waited for; the operator that does it has no gradient."""

    def pending(grad):
        x = placed(dtensors, mesh, values(4, 4, grad=grad), dtensors.Shard(0))
        return (x.redistribute(placements=[dtensors.Replicate()], async_op=True).to_local(),)

    def function(x):
        return x.sin().sin()

    compiled = minidynamo.compile(function, backend="aot_eager", fullgraph=True)
    for _ in range(2):
        assert compiled(*pending(False)).shape == (8, 4)
    breaking = minidynamo.compile(function, backend="aot_eager")
    (x,) = pending(True)
    assert torch.autograd.grad(breaking(x).sum(), x)[0].shape == (8, 4)


def test_what_breaks(mesh, dtensors):
    """Communication while the values are made, and tensors of one process among the others."""

    def distribute(x):
        return dtensors.distribute_tensor(x, mesh, [dtensors.Replicate()]) * 2

    def mixed(x, y):
        try:
            return x + y
        except RuntimeError as error:
            return "mixed" in str(error)

    x = placed(dtensors, mesh, values(4, 4), dtensors.Shard(0))
    for function, args in ((distribute, (values(4, 4),)), (mixed, (x, values(8, 4)))):
        compiled = minidynamo.compile(function, backend="eager")
        for _ in range(2):
            assert_same(outcome(compiled, args), outcome(function, args))
