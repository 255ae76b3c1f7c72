"""What a program sees of a bug in the compiler of its graphs: a warning, and eager's results."""

import logging
import signal

import pytest
import torch
from inductor_testing import assert_same

import minidynamo
from minidynamo.inductor import compile_plan, metrics

X = torch.linspace(-2, 2, 12).reshape(3, 4)


@pytest.fixture
def broken(monkeypatch, tmp_path):
    """Kernels of graphs of the kinds that the test adds cannot be made."""
    kinds = set()
    compile_plan_ = compile_plan.compile_plan

    def fails(graph, kind):
        if kind in kinds:
            raise KeyError("a bug")
        return compile_plan_(graph, kind)

    monkeypatch.setattr(compile_plan, "compile_plan", fails)
    with minidynamo.config.patch(raise_internal_errors=False, cache_dir=str(tmp_path)):
        yield kinds


def fn(x, w):
    return torch.softmax(x * w, -1).sum(0).cumsum(0)


@pytest.mark.parametrize("fullgraph", [False, True])
def test_a_graph_runs_operator_by_operator(broken, caplog, fullgraph):
    broken.add("inference")
    metrics.reset()
    compiled = minidynamo.compile(fn, fullgraph=fullgraph)
    with caplog.at_level(logging.WARNING, "minidynamo.inductor"):
        for x in (X + 1, X + 2):
            assert_same(compiled(x, X), fn(x, X))
    assert metrics.uncompiled_graphs == 1
    assert [r.getMessage() for r in caplog.records] == [
        "a bug of minidynamo: its compiler failed on a graph, which runs operator by operator: "
        "KeyError('a bug')"
    ]


@pytest.mark.parametrize("kind", ["forward", "backward"])
def test_one_of_the_graphs_of_training(broken, kind):
    broken.add(kind)
    metrics.reset()
    compiled = minidynamo.compile(fn)
    for _ in range(2):
        w, v = X.clone().requires_grad_(), X.clone().requires_grad_()
        want, got = fn(X + 1, w), compiled(X + 1, v)
        assert_same(got, want)
        want.square().sum().backward()
        got.square().sum().backward()
        assert_same(v.grad, w.grad)
    assert metrics.uncompiled_graphs == 1


def test_the_flag_raises_it(broken):
    broken.add("inference")
    with (
        minidynamo.config.patch(raise_internal_errors=True),
        pytest.raises(minidynamo.exc.BackendCompilerFailed, match="a bug"),
    ):
        minidynamo.compile(fn)(X, X)


def test_arguments_that_eager_refuses(broken):
    """What is wrong with them is for eager to say, whether it is seen in time or not."""

    def refused(x):
        return torch.softmax(x + 1, 5)

    for call in (refused, minidynamo.compile(refused)):
        with pytest.raises(
            IndexError, match=r"expected to be in range of \[-2, 1\], but got 5"
        ):
            call(X)


def test_errors_that_eager_raises_too_are_no_bugs(caplog):
    def fn(x, index):
        return x.exp()[index] + 1

    run, x = minidynamo.compile(fn), torch.ones(3)
    assert torch.equal(run(x, torch.tensor([0, 2])), fn(x, torch.tensor([0, 2])))
    with pytest.raises(IndexError), caplog.at_level("WARNING"):
        run(x, torch.tensor([0, 3]))
    assert "bug" not in caplog.text


def test_errors_of_signal_handlers_pass_by():
    """They are not the plan's, which may be run again where these are raised behind it."""

    class TooLong(Exception):
        pass

    def handler(number, frame):
        raise TooLong

    calls = []

    @torch.library.custom_op("minidynamo_test::interrupted", mutates_args=())
    def op(x: torch.Tensor) -> torch.Tensor:
        calls.append(len(calls))
        if len(calls) == 2:
            signal.raise_signal(signal.SIGUSR1)
        return x + 1

    op.register_fake(torch.empty_like)
    run, x = minidynamo.compile(lambda x: op(x) * 2), torch.ones(3)
    run(x)
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(TooLong):
            run(x)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert calls == [0, 1]
    assert torch.equal(run(x), x * 2 + 2)
