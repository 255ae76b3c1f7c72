"""Backward passes as operations of the graph: `config.trace_autograd_ops`."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import minidynamo
from minidynamo import config
from minidynamo.exc import Unsupported
from minidynamo.testing import CompileCounter


@pytest.fixture(autouse=True)
def traced():
    with config.patch(trace_autograd_ops=True):
        yield


def vector(*values):
    return torch.tensor([*map(float, values)], requires_grad=True)


def accumulated(x, w):
    for factor in (2, 3):
        loss = (x * w * factor).sum()
        loss.backward()
    return loss.detach(), w.grad.clone()


def retained(x, w):
    y = x * w
    y.sum().backward(retain_graph=True)
    (y * y).sum().backward()
    return w.grad.clone()


def shared_gradient(x, w):
    (x + w).backward(torch.ones(3))
    w.grad.mul_(2)
    return x.grad, w.grad


def of_a_transposed(x, w):
    (w.unsqueeze(1) * x).t().exp().sum().backward()
    return w.grad


def asked_for(x, w):
    (x * w).sum().backward(inputs=[w, w])
    return x.grad is None, w.grad


def several(x, w):
    first = (x * w).sum()
    torch.autograd.backward([first, (x * 2).sum()])
    torch.autograd.backward((x * w).sum(), torch.tensor(2.0))
    return first.detach()


def gradients(x, w):
    loss = (x * 3).sum()
    unused = torch.autograd.grad(loss, [x, w], allow_unused=True, retain_graph=True)
    return *unused, *torch.autograd.grad(
        loss, [x, w], materialize_grads=True, allow_unused=True
    )


def penalty(x, w):
    (slope,) = torch.autograd.grad((x**3 * w).sum(), x, create_graph=True)
    (slope**2).sum().backward()
    return slope.detach()


def made_leaf(x, w):
    y = (x * 2).detach().requires_grad_()
    assert y.is_leaf and y.requires_grad
    (y**2 * w).sum().backward()
    (x * 2).backward(y.grad)
    return y.grad * 2


def updated(x, w):
    (x * w).sum().backward()
    with torch.no_grad():
        w.sub_(w.grad * 0.1)
    w.grad = None
    return x.grad


PROGRAMS = (
    "accumulated retained shared_gradient of_a_transposed asked_for several gradients penalty"
    " made_leaf updated"
)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("name", PROGRAMS.split())
def test_one_graph_does_as_eager(name, backend):
    program = globals()[name]
    fast, seen = minidynamo.compile(program, backend=backend, fullgraph=True), []
    for call in (program, fast):
        x, w = vector(1, 2, 3), vector(4, 5, 6)
        results = [call(x, w) for _ in range(2)]
        seen.append((results, x.grad, w.grad, w.detach()))
        assert w.grad is None or w.grad.stride() == w.stride()
    torch.testing.assert_close(*seen)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_a_training_step(backend):
    torch.manual_seed(0)
    eager = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    models, x = [eager, copy.deepcopy(eager)], torch.randn(6, 4)
    y = torch.tensor([0, 1, 0, 1, 1, 0])

    def trainer(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def step(x, y):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    plain, fast = trainer(models[0]), minidynamo.compile(trainer(models[1]), backend=backend)
    for _ in range(3):
        torch.testing.assert_close(fast(x, y), plain(x, y))
    for first, second in zip(*(model.state_dict().values() for model in models), strict=True):
        torch.testing.assert_close(first, second)


def stepped(x, w):
    (x * w).sum().backward()
    return x + 1


def test_hooks_that_come_later():
    counter, x, w = CompileCounter(), vector(1, 2), vector(1, 1)
    call = minidynamo.compile(stepped, backend=counter)
    call(x, w)
    assert counter.frame_count == 1
    w.register_hook(lambda grad: grad * 10)
    call(x, w)
    assert torch.equal(w.grad, torch.tensor([11.0, 22.0])) and counter.frame_count > 1


def from_outside(x, w):
    return stepped(x, w)


def freed(x, w):
    loss = (x * w).sum()
    loss.backward()
    return loss


def leaf_that_leaves(x, w):
    y = (x * w).detach().requires_grad_()
    (y * 2).sum().backward()
    return y


def through_a_checkpoint(x, w):
    inner = checkpoint(lambda x: (x * w).sin(), x, use_reentrant=False)
    (inner.sum() + w.sum()).backward()
    return x.grad.clone()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize(
    "program, why",
    [
        (from_outside, "goes on outside of the frame"),
        (freed, "needs the history that the pass frees"),
        (leaf_that_leaves, "needs the history that the pass frees"),
        (through_a_checkpoint, "is not known"),
    ],
)
def test_what_eager_runs(program, why, backend):
    def inputs():
        x, w = vector(1, 2), vector(3, 4)
        return (x * 2 if program is from_outside else x), w, x

    seen = []
    for call in (program, minidynamo.compile(program, backend=backend)):
        x, w, leaf = inputs()
        result = call(x, w)
        seen.append((result, result.requires_grad, result.is_leaf, leaf.grad, w.grad))
    torch.testing.assert_close(*seen)
    with pytest.raises(Unsupported, match=why):
        minidynamo.compile(program, backend=backend, fullgraph=True)(*inputs()[:2])


def twice(x, w):
    loss = (x * w).sum()
    loss.backward()
    loss.backward()


def of_nothing(x, w):
    x.detach().sum().backward()


def of_a_vector(x, w):
    (x * w).backward()


@pytest.mark.parametrize("program", [twice, of_nothing, of_a_vector])
def test_errors_are_those_of_eager(program):
    texts = []
    for call in (program, minidynamo.compile(program, backend="eager")):
        with pytest.raises(RuntimeError) as caught:
            call(vector(1, 2), vector(3, 4))
        texts.append(str(caught.value))
    assert texts[0] == texts[1]


def test_without_the_flag_eager_runs_it():
    with config.patch(trace_autograd_ops=False):
        with pytest.raises(Unsupported, match="trace_autograd_ops = True captures it"):
            minidynamo.compile(stepped, backend="eager", fullgraph=True)(vector(1), vector(2))
        w = vector(2)
        assert torch.equal(
            minidynamo.compile(stepped, backend="eager")(vector(1), w), vector(2)
        )
        assert torch.equal(w.grad, torch.ones(1))
