"""Models under DistributedDataParallel and FSDP: two processes, gloo, on this machine."""

import os
import tempfile

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import minidynamo
from minidynamo import events
from minidynamo.data_parallel import Writes, bucket_of_nodes, keep_writes_together
from minidynamo.inductor import metrics

needs_gloo = pytest.mark.skipif(not dist.is_gloo_available(), reason="torch lacks gloo")


def stack():
    torch.manual_seed(0)
    return nn.Sequential(*[m for _ in range(4) for m in (nn.Linear(64, 64), nn.ReLU())])


def normalised():
    """With running statistics, activations in place, and a residual that is added in place."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.norm = nn.Linear(64, 64), nn.BatchNorm1d(64)

        def forward(self, x):
            y = self.norm(self.linear(x))
            y += x
            return torch.relu_(y)

    torch.manual_seed(0)
    return nn.Sequential(*[Block() for _ in range(4)])


def train(wrapped, comp, rank):
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    step, losses = comp(wrapped), []
    for i in range(4):
        x = torch.randn(8, 64, generator=torch.Generator().manual_seed(2 * i + rank))
        optimizer.zero_grad()
        loss = step(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


def compare(wrap, rank, backend, stack=stack):
    """Losses of both runs agree; returns the numbers of graphs, pieces and breaks."""
    minidynamo.reset()  # else another model of the same structure brings its compiled code along
    want = train(wrap(stack()), lambda module: module, rank)
    seen = {
        kind: [] for kind in (events.GraphEvent, events.AotGraphEvent, events.GraphBreakEvent)
    }
    with (
        events.subscribe(seen[events.GraphEvent].append, events.GraphEvent),
        events.subscribe(seen[events.AotGraphEvent].append, events.AotGraphEvent),
        events.subscribe(seen[events.GraphBreakEvent].append, events.GraphBreakEvent),
    ):
        got = train(wrap(stack()), lambda m: minidynamo.compile(m, backend=backend), rank)
    torch.testing.assert_close(got, want)
    forwards = [e for e in seen[events.AotGraphEvent] if e.kind == "forward"]
    return len(seen[events.GraphEvent]), len(forwards), len(seen[events.GraphBreakEvent])


def ddp(rank):
    def buckets(module):
        return DistributedDataParallel(module, bucket_cap_mb=0.02)

    assert compare(buckets, rank, "aot_eager") == (1, 2, 0)
    assert compare(buckets, rank, "inductor") == (1, 2, 0)
    assert compare(DistributedDataParallel, rank, "inductor") == (1, 1, 0)
    assert compare(buckets, rank, "inductor", normalised) == (1, 2, 0)
    with minidynamo.config.patch(optimize_ddp=False):
        assert compare(buckets, rank, "inductor") == (1, 1, 0)


def weights_are_equal(rank):
    model = DistributedDataParallel(stack(), bucket_cap_mb=0.02)
    train(model, minidynamo.compile, rank)
    flat = nn.utils.parameters_to_vector(model.parameters()).detach()
    others = [torch.empty_like(flat) for _ in range(2)]
    dist.all_gather(others, flat)
    assert torch.equal(*others)


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(64, 64) for _ in range(4)])

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(checkpoint(layer, x, use_reentrant=False))
        return x


def checkpointed():
    torch.manual_seed(0)
    return Checkpointed()


def ddp_of_checkpoints(rank):
    def buckets(module):
        return DistributedDataParallel(module, bucket_cap_mb=0.02)

    assert compare(buckets, rank, "aot_eager", checkpointed) == (1, 2, 0)


def fsdp(rank):
    def shards(module):
        for layer in module[::2]:
            fully_shard(layer)
        return fully_shard(module)

    graphs, _, _ = compare(shards, rank, "inductor")
    assert graphs >= 1


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(64, 32), nn.Linear(32, 64)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


def of_blocks(rank, wrap, comp):
    """Losses and weights of a model with two blocks that `wrap` changes each."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), *[wrap(Block(), comp) for _ in range(2)])
    fully_shard(model)
    losses = train(model, lambda module: module, rank)
    return losses, [parameter.full_tensor().detach() for parameter in model.parameters()]


def compiled_in_place(module, comp):
    if comp is not None:
        minidynamo.compile_(module, backend=comp, fullgraph=True)
    return fully_shard(module)


def compiled_first(module, comp):
    if comp is not None:
        module = minidynamo.compile(module, backend=comp, fullgraph=True)
    return fully_shard(module)


def checkpointed_first(module, comp):
    return compiled_in_place(checkpoint_wrapper(module), comp)


def fsdp_of_compiled_blocks(rank):
    """FSDP's hooks run around the compiled blocks, which share one graph."""
    for wrap in (compiled_in_place, compiled_first, checkpointed_first):
        minidynamo.reset()
        want, graphs = of_blocks(rank, wrap, None), []
        with events.subscribe(graphs.append, events.GraphEvent):
            torch.testing.assert_close(of_blocks(rank, wrap, "aot_eager"), want)
        assert len(graphs) == 1


class Mixed(nn.Module):
    """With an embedding, norms, and attention over the heads of this process."""

    def __init__(self):
        super().__init__()
        self.rows, self.norm = nn.Embedding(64, 64), nn.LayerNorm(64)
        self.qkv = nn.ModuleList([nn.Linear(64, 64) for _ in range(3)])
        self.out, self.block = nn.Linear(64, 64), Block()

    def forward(self, x):
        x = self.rows((x * 8).long().abs() % 64).mean(1)
        y = self.norm(x).unsqueeze(0)
        q, k, v = (f(y).unflatten(-1, (-1, 16)).transpose(1, 2) for f in self.qkv)
        y = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.block(x + self.out(y).squeeze(0))


def mixed():
    torch.manual_seed(0)
    return Mixed()


def tensor_parallel(rank):
    """Linear layers divided among the processes, with and without FSDP around them."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, parallel

    columns, rows = parallel.ColwiseParallel(), parallel.RowwiseParallel()
    plan = {
        "rows": parallel.RowwiseParallel(input_layouts=Replicate()),
        **{f"qkv.{i}": columns for i in range(3)},
        **{"out": rows, "block.up": columns, "block.down": rows},
    }

    def divided(module):
        return parallel.parallelize_module(module, init_device_mesh("cpu", (2,)), plan)

    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))

    def sharded(module):
        return fully_shard(
            parallel.parallelize_module(module, mesh["tp"], plan), mesh=mesh["dp"]
        )

    whole = train(mixed(), lambda module: module, 0)
    torch.testing.assert_close(train(divided(mixed()), lambda module: module, 0), whole)
    # One seed for both: each has the whole batch.
    for wrap in (divided, sharded):
        for backend in ("aot_eager", "inductor"):
            metrics.reset()
            assert compare(wrap, 0, backend, mixed) == (1, 1, 0)
            assert metrics.uncompiled_graphs == 0


def fsdp_without_sync(rank):
    """Gradients that are not reduced yet are of another size than the parameters they are of."""
    model = FullyShardedDataParallel(
        stack(), device_id=torch.device("cpu"), use_orig_params=True
    )
    results = []
    for comp in (lambda module: module, minidynamo.compile):
        step = comp(model)
        model.zero_grad()
        x = torch.ones(8, 64) * rank
        for _ in range(2):
            with model.no_sync():
                step(x).sum().backward()
        step(x).sum().backward()
        results.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    torch.testing.assert_close(*results)


def _worker(rank, programs, folder):
    torch.set_num_threads(1)
    os.environ["MINIDYNAMO_CACHE_DIR"] = os.path.join(folder, "cache")
    store = dist.FileStore(os.path.join(folder, "store"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    try:
        for program in programs:
            program(rank)
    finally:
        dist.destroy_process_group()


@needs_gloo
@pytest.mark.parametrize(
    "programs",
    [
        (ddp, weights_are_equal, ddp_of_checkpoints),
        (fsdp, fsdp_of_compiled_blocks, fsdp_without_sync, tensor_parallel),
    ],
    ids=["ddp", "fsdp"],
)
def test_two_processes(programs):
    """One pair of processes runs them all: its start costs more than they do."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_worker, (programs, folder), nprocs=2)


class TestBuckets:
    def graph(self, model, x):
        kept = []

        def backend(gm, inputs):
            kept.append((gm, inputs))
            return gm.forward

        minidynamo.compile(model, backend=backend)(x)
        return kept[0]

    def test_fill_from_the_end(self):
        gm, inputs = self.graph(stack(), torch.ones(2, 64))
        size = 65 * 64 * 4
        pieces = bucket_of_nodes(gm, inputs, size, 2 * size)
        assert list(pieces.values()) == [0, 0, 1, 1, 1, 1, 2, 2]

    def test_one_bucket(self):
        gm, inputs = self.graph(stack(), torch.ones(2, 64))
        assert set(bucket_of_nodes(gm, inputs, 1 << 20, 1 << 20).values()) == {0}

    def test_no_parameters(self):
        gm, inputs = self.graph(lambda x: x.sin().cos(), torch.ones(2, requires_grad=True))
        assert set(bucket_of_nodes(gm, inputs, 1, 1).values()) == {0}


class TestWrites:
    def pieces(self, calls):
        """calls: (piece, target, positions of arguments) of a graph of one input."""
        graph = torch.fx.Graph()
        nodes = [graph.placeholder("x")]
        nodes[0].meta["example_value"] = torch.ones(4)
        pieces = {}
        for piece, target, args in calls:
            given = [nodes[i] for i in args]
            writes = Writes(given)
            value = target(*(n.meta["example_value"] for n in given))
            node = graph.call_function(target, tuple(given))
            node.meta.update(example_value=value, writes=writes.memory())
            nodes.append(node)
            pieces[node] = piece
        return list(keep_writes_together(pieces).values())

    def test_nothing_written(self):
        calls = [(0, torch.sin, [0]), (1, torch.cos, [1]), (2, torch.add, [1, 2])]
        assert self.pieces(calls) == [0, 1, 2]

    def test_a_write_where_the_memory_is_made(self):
        calls = [(0, torch.sin, [0]), (0, torch.relu_, [1]), (1, torch.cos, [2])]
        assert self.pieces(calls) == [0, 0, 1]

    def test_a_write_to_what_another_piece_made(self):
        calls = [(0, torch.sin, [0]), (1, torch.relu_, [1]), (2, torch.cos, [2])]
        assert self.pieces(calls) == [0, 0, 1]

    def test_a_write_through_a_view(self):
        view = torch.t
        calls = [
            (0, view, [0]),
            (1, torch.sin, [0]),
            (2, torch.relu_, [1]),
            (3, torch.cos, [0]),
        ]
        assert self.pieces(calls) == [0, 0, 0, 1]
