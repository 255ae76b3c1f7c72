"""Views, writes and histories of graphs that switch the grad mode, or are called in another one."""

import pytest
import torch
from training_testing import noise, scenario

import minidynamo


@scenario(breaks=None)
def test_views_behind_a_break_without_gradients(comp):
    def f(x, other):
        with torch.no_grad():
            other.requires_grad_()
        return x.t(), x[1:]

    weight = noise(4, 4).requires_grad_()
    turned, rest = comp(f)(weight * 1, torch.ones(2))
    (turned.sum() * 2 + rest.sum()).backward()
    return turned.is_leaf, rest.requires_grad, weight.grad


@scenario(graphs=None, breaks=1)
def test_views_behind_a_break_where_gradients_are_off(comp):
    def f(x):
        with torch.no_grad():
            y = x * 2
            minidynamo.graph_break()
            z = y + 1
        return x.view(-1), z, (x * 3).t()

    weight = noise(4, 4).requires_grad_()
    flat, made, turned = comp(f)(weight * 1)
    (flat.sum() + turned.sum()).backward()
    return made.requires_grad, turned.is_leaf, weight.grad


@scenario(graphs=2)
def test_gradients_switched_on_inside(comp):
    def f(x):
        with torch.enable_grad():
            y = x.t()
        return y

    def g(x):
        with torch.enable_grad():
            y = x[1:]
            z = x * 2
        return y, z.detach(), (z * 3).view(-1)

    weight = noise(4, 4).requires_grad_()
    x = weight * 1
    with torch.no_grad():
        turned = comp(f)(x)
        rest, cut, flat = comp(g)(x)
    (turned.sum() + rest.sum() * 2 + flat.sum()).backward()
    return cut.requires_grad, rest.is_leaf, flat.is_leaf, weight.grad


@scenario()
def test_all_without_gradients(comp):
    @torch.no_grad()
    def f(x, total):
        total.add_(x.sum())
        return x.t(), x * total

    weight = noise(4, 4).requires_grad_()
    compiled, total = comp(f), torch.zeros(())
    first = compiled(weight, total)
    with torch.no_grad():
        second = compiled(weight, total)
    return [(r.requires_grad, r) for r in (*first, *second)], total


@pytest.mark.parametrize("write", ["index_add_", "cumsum_", "tril_", "add_", "index_copy_"])
def test_inputs_laid_anew_and_written(write):
    def f(x, values):
        x.t_()
        if write in ("index_add_", "index_copy_"):
            getattr(x, write)(0, torch.zeros(1, dtype=torch.long), values)
        elif write == "add_":
            x.add_(values)
        else:
            getattr(x, write)(0)
        return values * 2

    compiled = minidynamo.compile(f)
    for size in (4, 5):
        want, got = noise(size, size), noise(size, size)
        values = noise(1, size, seed=1)
        assert torch.equal(f(want, values), compiled(got, values))
        assert want.stride() == got.stride() == (1, size)
        torch.testing.assert_close(got, want)


def test_inputs_laid_anew_beside_other_writes():
    def f(x, y):
        x.t_()
        torch._foreach_add_(y.chunk(2), 1)
        first, second = y.unbind(0)[:2]
        first.add_(second)
        return y * 2

    want, got = ([noise(4, 3), noise(4, 4, seed=1)] for _ in range(2))
    assert torch.equal(f(*want), minidynamo.compile(f)(*got))
    assert got[0].stride() == want[0].stride() == (1, 3)
    torch.testing.assert_close(got, want)


@scenario()
def test_gradients_that_only_written_inputs_have(comp):
    def f(x, other):
        flat = x.view(-1)
        other.sigmoid_()
        x[x > 0] = -0.5
        return flat[1:]

    weight, unused = noise(4, 4).requires_grad_(), noise(4, 4, seed=1).requires_grad_()
    x, other = weight * 1, unused * 1
    comp(f)(x, other).sum().backward()
    return weight.grad, unused.grad, x, other


@scenario(graphs=None, breaks=None)
def test_writes_to_inputs_behind_a_break_without_gradients(comp):
    def f(x, other, way):
        with torch.no_grad():
            minidynamo.graph_break()
            other.mul_(2)
            if way == "both":
                x.mul_(3)
        if way == "copy":
            x[...] = other.sin()
        else:
            x.mul_(5)
        return other * 2

    results = []
    for way in ("copy", "mul", "both"):
        weight = noise(4, 4).requires_grad_()
        x = weight * 1
        made = comp(f)(x, torch.ones(4, 4), way)
        (x.sum() * 2).backward()
        results += [made.requires_grad, x.detach(), weight.grad]
    return results


@scenario(graphs=2)
def test_writes_to_inputs_where_gradients_are_switched_on(comp):
    def f(x, other):
        made = x * 2
        with torch.enable_grad():
            x.mul_(3)
            with torch.no_grad():
                other.copy_(x)
        return made, other + 1

    weight = noise(4, 4).requires_grad_()
    results = []
    compiled = comp(f)
    for enabled in (False, True):
        x, other = weight * 1, torch.ones(4, 4)
        with torch.set_grad_enabled(enabled):
            made, more = compiled(x, other)
        x.sum().backward()
        flags = [t.requires_grad for t in (made, more, other)]
        results += [flags, x.detach(), other, weight.grad.clone()]
    return results


@scenario(graphs=4)
def test_gradients_switched_on_within_a_block_without(comp):
    def whole(x, other):
        with torch.no_grad():
            with torch.enable_grad():
                x.mul_(7)
            return x * 2, other + 1

    def part(x, other):
        with torch.no_grad():
            other.mul_(2)
            with torch.enable_grad():
                x.mul_(2)
            other.add_(1)
        x.mul_(5)
        return other, x.sum()

    results = []
    for f in map(comp, (whole, part)):
        for enabled in (True, False):
            weight = noise(4, 4).requires_grad_()
            x, other = weight * 1, torch.ones(4, 4)
            with torch.set_grad_enabled(enabled):
                made = f(x, other)
                results.append(torch.is_grad_enabled())
            x.sum().backward()
            flags = [t.requires_grad for t in (*made, x, other)]
            results += [flags, x.detach(), other, weight.grad]
    return results


@scenario(graphs=None, breaks=None)
def test_gradients_switched_on_in_inference_mode(comp):
    def f(x):
        with torch.enable_grad():
            y = x * 3
            minidynamo.graph_break()
            x.mul_(2)
        z = y * 2
        x.mul_(2)
        return y, z

    results = []
    for mode in (torch.no_grad, torch.inference_mode):  # passes kept of one are not the other's
        weight = noise(4, 4).requires_grad_()
        x = weight * 1
        minidynamo.reset()
        with mode():
            made = comp(f)(x)
        x.sum().backward()
        results += [(t.requires_grad, t.is_inference(), t.tolist()) for t in made]
        results += [x.detach(), weight.grad]
    return results


@scenario(graphs=None, breaks=None)
def test_no_gradient_of_what_was_made_in_inference_mode(comp):
    def f(x):
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad((x * 3).sum(), x)
        return gradient

    x = noise(4, 4).requires_grad_() * 1
    with torch.no_grad():
        gradient = comp(f)(x)
    minidynamo.reset()
    with torch.inference_mode(), pytest.raises(RuntimeError) as error:
        comp(f)(x)
    return gradient, str(error.value)[:40]
