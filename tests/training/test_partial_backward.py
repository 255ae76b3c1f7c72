"""Backward passes of a part of the outputs: eager does not look behind the others at all."""

import itertools
import weakref

import numpy
import pytest
import torch

import minidynamo
from minidynamo.inductor import metrics, partial_backward


def leaves():
    """The second has zeros and infinities behind its logarithm and its inverse."""
    torch.manual_seed(0)
    x, w = torch.rand(4, 6) + 0.1, torch.rand(4, 6).round()
    return x.requires_grad_(), w.requires_grad_()


def infinite(x, w):
    return (x * w).sum(0), w.log() * x, 1 / w


def towers(x, w):
    return x.exp(), (w * w).sin()


def trunk(x, w):
    hidden = (x @ w.t()).tanh()
    return hidden.exp(), hidden.sin(), hidden + 1


def linear(x, w):
    return x * 2 + w, (x - w).t(), w.sum(0)


def pieces(x, w):
    a, b, c = (x * w).chunk(3, 1)
    return a, b.exp(), c.t()


def stacked(x, w):
    first, *_, last = torch.stack([x.exp(), w.sin()], 2).unbind(1)
    return first, last * 2


def written(x, w):
    x = x * 1
    x[0].mul_(w[0])
    return x, x.exp(), w.sqrt()


def of_numbers(x, w):
    return x.sum() * w.shape[0], (x * w).mean(), w.var(), x + 1


PROGRAMS = [infinite, towers, trunk, linear, pieces, stacked, written, of_numbers]


def passes(fn, subsets, *, retain=False, write=None):
    """The gradients behind several passes, or the error at which they end."""
    inputs = leaves()
    outputs = fn(*inputs)
    if write is not None:
        with torch.no_grad():
            (*inputs, *outputs)[write].mul_(1.5)
    found = []
    for chosen in subsets:
        tangents = [torch.arange(1.0, 1 + outputs[i].numel()) for i in chosen]
        tangents = [t.view(outputs[i].shape) for i, t in zip(chosen, tangents, strict=True)]
        try:
            torch.autograd.backward([outputs[i] for i in chosen], tangents, retain_graph=retain)
        except RuntimeError as error:
            return [*found, str(error).split(":")[0].split("[")[0]]
        found.append([None if x.grad is None else x.grad.clone() for x in inputs])
    return found


def subsets_of(count):
    return [s for n in range(1, count + 1) for s in itertools.combinations(range(count), n)]


def check(found, expected):
    assert len(found) == len(expected)
    for ours, eagers in zip(found, expected, strict=True):
        if isinstance(eagers, str):
            assert ours == eagers
            continue
        assert not isinstance(ours, str), ours
        for a, b in zip(ours, eagers, strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                torch.testing.assert_close(a, b, equal_nan=True)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("program", PROGRAMS)
def test_gradients_and_errors_of_passes_one_after_another(program, dynamic):
    call = minidynamo.compile(program, fullgraph=True, dynamic=dynamic)
    subsets = subsets_of(len(program(*leaves())))
    for first in subsets[:7]:
        check(passes(call, [first] * 2, retain=True), passes(program, [first] * 2, retain=True))
        for second in subsets[:4]:
            check(passes(call, [first, second]), passes(program, [first, second]))


@pytest.mark.parametrize("program", [towers, trunk, linear])
def test_writes_before_a_pass_of_a_part(program):
    call = minidynamo.compile(program, fullgraph=True)
    outputs = len(program(*leaves()))
    for write in range(2 + outputs):
        for chosen in subsets_of(outputs)[:4]:
            check(passes(call, [chosen], write=write), passes(program, [chosen], write=write))


def test_through_aotautograd():
    """The graph writes to an input and gives a view of one back: no node of our own."""

    def program(x, w):
        w.mul_(1.5)
        return (x * 2).sum(0), x.log() * w, w.view(-1)

    call = minidynamo.compile(program, fullgraph=True)
    for chosen in (0,), (1,), (2,), (0, 2):
        found = []
        for fn in program, call:
            x = torch.tensor([[0.0, 1.0], [2.0, 3.0]], requires_grad=True)
            w = torch.ones(2, 2, requires_grad=True)
            outputs = fn(x, w * 1)
            torch.autograd.backward([outputs[i].sum() for i in chosen])
            found.append((x.grad, w.grad))
        check(found[1:], found[:1])


class Nonlinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        return x * w, x + w

    @staticmethod
    def backward(ctx, first, second):
        return first * second.cos() + torch.ones_like(second), second.exp() + first


def hooked(x, w):
    hidden = x * 2
    hidden.register_hook(torch.cos)
    return hidden * w, hidden.exp(), w.sin()


@pytest.mark.parametrize("program", [Nonlinear.apply, hooked])
def test_backward_functions_of_the_program(program):
    """Of a missing tangent eager gives them zeros, or does not call them at all."""
    fn = lambda x, w: program(x, w)
    for backend in "aot_eager", "inductor":
        call = minidynamo.compile(fn, fullgraph=True, backend=backend)
        for chosen in subsets_of(len(fn(*leaves())))[:4]:
            check(passes(call, [chosen]), passes(fn, [chosen]))


def test_many_outputs_are_not_compiled_one_by_one():
    program = lambda x, w: tuple((x[:, i] * w[:, i]).exp() for i in range(6))
    call = minidynamo.compile(program, fullgraph=True)
    metrics.reset()
    for i in range(6):
        check(passes(call, [(i,)]), passes(program, [(i,)]))
    assert metrics.uncompiled_graphs == 6 - partial_backward.MOST_COMPILED


def test_a_graph_with_a_history_behind_a_part():
    def gradients(fn):
        x, w = leaves()
        outputs = fn(x, w)
        (first,) = torch.autograd.grad(outputs[0].sum(), x, create_graph=True)
        first.square().sum().backward()
        return [x.grad, w.grad]

    check([gradients(minidynamo.compile(infinite))], [gradients(infinite)])


def test_memory_goes_with_the_pass():
    """What is saved for the loss alone is gone with it, as in eager."""

    def program(x, w):
        hidden = x @ w
        return hidden.logsumexp(1).sum(), w.exp()

    call = minidynamo.compile(program, fullgraph=True)
    for fn in program, call:
        w = torch.rand(6, 6).requires_grad_()
        memory = numpy.ones((4, 6), numpy.float32)
        alive = weakref.ref(memory)
        loss, other = fn(torch.from_numpy(memory), w)
        del memory
        assert alive() is not None
        loss.backward()
        assert alive() is None
        other.sum().backward()
        torch.testing.assert_close(w.grad.isfinite().all(), torch.tensor(True))
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()


def test_a_gradient_that_is_a_later_part_of_another():
    """The gradient of a part of torch.cat or torch.stack begins behind the parts before it, also
    where the part itself is a result that the loss does not use: then nothing is added to it.
    """

    def joined(x, first):
        mean = x.mean(0)
        return torch.cat((first, mean)), mean

    def stacked(x, first):
        mean, total = x[0, :3].mean(0), x[0, :3].sum(0)
        return torch.stack((first, total, mean)), total, mean

    for fn, x in ((joined, torch.randn(5, 4)), (stacked, torch.randn(2, 5, 4))):
        compiled = minidynamo.compile(fn, backend="inductor")
        found = []
        for each in (fn, compiled):
            leaves = [x.clone().requires_grad_(), torch.ones(4, requires_grad=True)]
            out = each(*leaves)[0]
            (out * torch.arange(1.0, out.numel() + 1).view_as(out)).sum().backward()
            found.append([leaf.grad for leaf in leaves])
        torch.testing.assert_close(found[1], found[0])


SIGNS = [
    torch.sgn,
    torch.angle,
    lambda x: (x * 1).sgn_(),
    lambda x: torch.sgn(input=x),
    lambda x: torch.ops.aten.angle.default(x),
]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("sign", SIGNS)
def test_a_gradient_of_zeros_is_none_of_none(sign, dynamic):
    def fn(x):
        return sign(x), x * 2

    def written(x):
        x.data.add_(1)
        return sign(x)

    x = torch.tensor([1, -1, 0.0, -0.0, torch.nan, torch.inf], requires_grad=True)
    for program, part in ((fn, lambda results: results[0]), (written, lambda result: result)):
        gradients = []
        for run in (program, minidynamo.compile(program, fullgraph=True, dynamic=dynamic)):
            given = x.detach().clone().requires_grad_()
            result = part(run(given))
            result.sum().backward()
            gradients.append((result.detach(), given.grad))
        for actual, expected in zip(*gradients, strict=True):
            torch.testing.assert_close(actual, expected, equal_nan=True)
