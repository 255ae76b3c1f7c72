"""Plans for CUDA tensors, made without a GPU: from fake tensors to launches of real cubins."""

import pytest

pytest.importorskip("triton")

import torch
import torch.fx
from torch._subclasses.fake_tensor import FakeTensorMode

from minidynamo.inductor.capture import capture_inference
from minidynamo.inductor.codegen import triton_steps
from minidynamo.inductor.codegen.assemble import PlanAssembler
from minidynamo.inductor.codegen.plan import (
    Alloc,
    Extern,
    KernelCall,
    Plan,
    Ref,
    TritonLaunch,
)
from minidynamo.inductor.decompositions import decomposition_table
from minidynamo.inductor.graph import GraphLowering
from minidynamo.inductor.passes.devices import bring_to_gpu
from minidynamo.inductor.runtime.triton_launch import Target
from minidynamo.inductor.scheduler import schedule


@pytest.fixture
def gpu_lowering(monkeypatch):
    """What `compile_fx` would run on a machine with a GPU: a function from `fn` and fake inputs,
    each a size, a device and perhaps a dtype, to its plan.
    """

    def plan(fn, *inputs):
        mode = FakeTensorMode()
        with mode:
            fakes = [torch.empty(i[0], device=i[1], dtype=(*i, None)[2]) for i in inputs]
        graph = capture_inference(
            torch.fx.symbolic_trace(fn), fakes, mode, decomposition_table()
        )
        bring_to_gpu(graph)
        lowered = GraphLowering(graph).run()
        return PlanAssembler(lowered, 1).build(schedule(lowered))

    return plan


def plan_of(fn, *sizes):
    """The plan of `fn` for CUDA tensors of these sizes, and the inputs that must be aligned."""
    mode = FakeTensorMode()
    with mode:
        inputs = [torch.empty(size, device="cuda") for size in sizes]
    graph = capture_inference(torch.fx.symbolic_trace(fn), inputs, mode, decomposition_table())
    lowered = GraphLowering(graph).run()
    assembler = PlanAssembler(lowered, 1)
    plan = assembler.build(schedule(lowered))
    return plan, [i for i, item in enumerate(plan.inputs) if item.alignment > 1]


@pytest.fixture(autouse=True)
def hopper(monkeypatch):
    monkeypatch.setattr(triton_steps, "device_target", lambda device: Target("cuda", 90))


def test_launches():
    class Block(torch.nn.Module):
        def forward(self, x, w):
            return torch.softmax(x @ w, -1) * 2, x

    plan, aligned = plan_of(Block(), (64, 32), (32, 300))
    product, launch = [s for s in plan.steps if isinstance(s, (Extern, TritonLaunch))]
    assert product.op == "aten::mm" and launch.device.startswith("cuda")
    assert launch.grid == (64, 1, 1) and launch.num_warps in (1, 2, 4)
    assert [kind for kind, _ in launch.args] == ["ptr", "null", "null"]  # in place
    assert launch.args[0] == ("ptr", Ref(launch.writes[0]))
    with open(launch.cubin, "rb") as file:
        assert file.read(4) == b"\x7fELF"
    assert {step.device[:4] for step in plan.steps if isinstance(step, Alloc)} == {"cuda"}
    assert [kernel.language for kernel in plan.kernels] == ["triton"]
    assert aligned == []  # the inputs go to the matrix product and back to the caller
    assert Plan.from_dict(plan.to_dict()) == plan


def test_large_products_are_atens():
    def product(x, w):
        return x @ w + 1

    plan, _ = plan_of(product, (512, 512), (512, 512))
    assert [s.op for s in plan.steps if isinstance(s, Extern)] == ["aten::mm"]


def test_one_kernel_is_compiled_once():
    def twice(x):
        return torch.softmax(torch.softmax(x, -1), -1)

    plan, aligned = plan_of(twice, (300, 3000))
    launches = [step for step in plan.steps if isinstance(step, TritonLaunch)]
    assert len({launch.cubin for launch in launches}) == len(plan.kernels)
    assert aligned == [0]


def launch_count(fn, *sizes):
    plan, _ = plan_of(fn, *sizes)
    launches = [step for step in plan.steps if isinstance(step, TritonLaunch)]
    assert {launch.kernel for launch in launches} <= {kernel.symbol for kernel in plan.kernels}
    return len(launches)


def test_small_kernels_are_launched_together():
    def unlike(x, y, z):
        return x + 1, (y * 2).sum(-1), z.relu().t() - 1

    assert launch_count(unlike, (300,), (70, 90), (40, 50)) == 1
    assert launch_count(lambda x: (x.sum(0), x.sum(0).sum()), (30, 50)) == 2
    assert launch_count(lambda x, y: (x + 1, y + 1), (1 << 11, 1 << 10), (1 << 22,)) == 2


def _launched(plan):
    """What the plan runs, with the devices of the tensors that kernels take."""
    devices = {slot: item.device for slot, item in enumerate(plan.inputs)}
    found = []
    for step in plan.steps:
        if isinstance(step, Alloc):
            devices[step.slot] = step.device
        elif isinstance(step, Extern):
            found.append(step.op)
        elif isinstance(step, TritonLaunch):
            slots = [value.slot for kind, value in step.args if kind == "ptr"]
            found.append({devices.get(slot, "extern") for slot in slots})
        elif isinstance(step, KernelCall):
            found.append("cpu")
    return found


def test_numbers_in_cpu_tensors_are_brought_to_the_gpu(gpu_lowering):
    def step(x, s):
        return x / (1 - 0.9**s), x * s + s, s + 1

    plan = gpu_lowering(step, ((64, 64), "cuda"), ((), "cpu"))
    ran = _launched(plan)
    assert ran.count("aten::_to_copy") == 2 and ran.count("cpu") >= 1
    launches = [item for item in ran if isinstance(item, set)]
    assert launches and all("cpu" not in devices for devices in launches)


def test_tensors_on_the_cpu_alone_stay_there(gpu_lowering):
    plan = gpu_lowering(lambda x, y: (x + 1, y * 2), ((64,), "cuda"), ((64,), "cpu"))
    assert sorted(map(str, _launched(plan))) == ["cpu", "{'cuda:0'}"]


def test_a_few_pieces_are_put_together_inside_of_one_kernel(gpu_lowering):
    def joined(a, b, c):
        return torch.cat([a, b * 2, c], 1).relu()

    shapes = [((32, n), "cuda") for n in (8, 5, 3)]
    assert len(_launched(gpu_lowering(joined, *shapes))) == 1


def test_random_state_may_be_on_either_device(gpu_lowering):
    """Seeds that attention gives for its backward; its fake implementation has them on the GPU."""
    state = (2,), "cuda", torch.int64
    passed_on = gpu_lowering(lambda x, state: (x + 1, state), ((64,), "cuda"), state)
    assert [item.size for item in passed_on.inputs] == [(64,), None]
    read = gpu_lowering(lambda x, state: (x + 1, state + 1), ((64,), "cuda"), state)
    assert [item.size for item in read.inputs] == [(64,), (2,)]


def test_numbers_in_constants_are_text_in_gpu_kernels(gpu_lowering):
    plan = gpu_lowering(lambda x: torch.add(x, torch.tensor(1.5)), ((64, 64), "cuda"))
    assert not any(isinstance(step, Extern) for step in plan.steps) and not plan.constants
