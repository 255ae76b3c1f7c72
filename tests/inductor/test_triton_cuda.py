"""Plans for CUDA tensors, made without a GPU: from fake tensors to launches of real cubins."""

import pytest

pytest.importorskip("triton")

import torch
import torch.fx
from torch._subclasses.fake_tensor import FakeTensorMode

from minidynamo.inductor.capture import capture_inference
from minidynamo.inductor.codegen import triton_steps
from minidynamo.inductor.codegen.assemble import PlanAssembler
from minidynamo.inductor.codegen.plan import Alloc, Extern, Plan, Ref, TritonLaunch
from minidynamo.inductor.decompositions import decomposition_table
from minidynamo.inductor.graph import GraphLowering
from minidynamo.inductor.runtime.triton_launch import Target
from minidynamo.inductor.scheduler import schedule


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
    assert [kind for kind, _ in launch.args] == ["ptr", "ptr", "null", "null"]
    assert launch.args[-3] == ("ptr", Ref(launch.writes[0]))
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
