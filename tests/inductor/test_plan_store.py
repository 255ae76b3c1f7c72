"""Compiled graphs on disk: when the plan of one is taken for another, and when not."""

import pytest
import torch
from inductor_testing import check, compiled

from minidynamo import config, events
from minidynamo.inductor import compile_plan as module
from minidynamo.inductor import metrics
from minidynamo.inductor.runtime import plan_store
from minidynamo.inductor.runtime.cache import store


@pytest.fixture(autouse=True)
def own_cache(tmp_path):
    with config.patch(cache_dir=str(tmp_path / "cache")):
        yield


@pytest.fixture
def compilations(monkeypatch):
    """Kinds of the graphs that were really compiled."""
    seen = []
    original = module.compile_plan

    def counted(graph, kind):
        seen.append(kind)
        return original(graph, kind)

    monkeypatch.setattr(module, "compile_plan", counted)
    return seen


def softmax(x, y):
    return torch.softmax(x * 2 + y, -1)


def test_the_second_compilation_reads_the_first(compilations):
    args = torch.randn(4, 33), torch.randn(33)
    for _ in range(2):
        metrics.reset()
        run = compiled(softmax, *args)
        torch.testing.assert_close(run(*args)[0], softmax(*args))
        assert metrics.generated_kernel_count == 1 and metrics.kernel_calls == 1
    assert compilations == ["inference"]


@pytest.mark.parametrize(
    "args",
    [
        (torch.randn(4, 34), torch.randn(34)),
        (torch.randn(33, 4).t(), torch.randn(33)),
        (torch.randn(4, 33).double(), torch.randn(33)),
        (torch.randn(4, 33), torch.randn(4, 1)),
    ],
)
def test_other_geometry_is_another_plan(compilations, args):
    compiled(softmax, torch.randn(4, 33), torch.randn(33))
    torch.testing.assert_close(compiled(softmax, *args)(*args)[0], softmax(*args))
    assert len(compilations) == 2


@pytest.mark.parametrize("options", [{"max_fusion_nodes": 3}, {"cpu_linear": "aten"}])
def test_other_flags_are_another_plan(compilations, options):
    args = torch.randn(4, 33), torch.randn(33)
    compiled(softmax, *args)
    compiled(softmax, *args, **options)
    assert len(compilations) == 2


def test_the_number_of_threads_is_part_of_the_key():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.empty(3, device="meta")
    graph.output((graph.call_function(torch.ops.aten.sin.default, (x,)),))
    graph = torch.fx.GraphModule({}, graph)
    assert plan_store.graph_key(graph, "inference", 1) != plan_store.graph_key(
        graph, "inference", 2
    )


def test_constants_are_given_anew(compilations):
    x = torch.randn(3)
    for value in (torch.randn(3), torch.randn(3)):

        def add(t, value=value):
            return t + value

        check(add, x)
    assert len(compilations) == 1


def test_forward_and_backward_are_kept(compilations):
    for _ in range(2):
        x = torch.randn(4, 8, requires_grad=True)
        y = torch.randn(8)
        compiled(softmax, x, y)(x, y)[0].pow(2).sum().backward()
        want = x.detach().clone().requires_grad_()
        softmax(want, y).pow(2).sum().backward()
        torch.testing.assert_close(x.grad, want.grad)
    assert sorted(compilations) == ["backward", "forward"]


def test_a_damaged_library_is_compiled_again(compilations):
    args = torch.randn(4, 33), torch.randn(33)
    compiled(softmax, *args)
    (library,) = (store().folder / "lib").iterdir()
    library.unlink()
    library.write_bytes(b"nonsense")
    torch.testing.assert_close(compiled(softmax, *args)(*args)[0], softmax(*args))
    assert len(compilations) == 2


def test_who_listens_to_the_compiler_gets_its_events(compilations):
    args = torch.randn(4, 33), torch.randn(33)
    compiled(softmax, *args)
    kernels = []
    with events.subscribe(kernels.append, events.KernelEvent):
        compiled(softmax, *args)
    assert len(kernels) == 1 and len(compilations) == 2


def test_what_cannot_be_kept(compilations):
    pytest.importorskip("triton")
    args = torch.randn(4, 33), torch.randn(33)
    for _ in range(2):
        compiled(softmax, *args, cpu_backend="triton")  # calls a Python function
    assert len(compilations) == 2
    graph = torch.fx.Graph()
    graph.output((graph.call_function(softmax, (graph.placeholder("x"), None)),))
    assert plan_store.graph_key(torch.fx.GraphModule({}, graph), "inference", 1) is None
