"""Graphs that need nothing of AOTAutograd's wrapper are called without it: as in eager."""

import pytest
import torch
import torch.nn.functional as F

import minidynamo
from minidynamo.inductor import autograd_call


def two_results(x, w):
    return (x * w).sin().sum(0), (x + w).exp()


def positions_too(x, w):
    y = x * w
    return y.max(-1).values, y.argmax(-1)


def linear(x, w):
    return F.linear(x.view(2, 2, 4), w)


def unused_weight(x, w):
    return x.cos(), w * 2


def transposed(x, w):
    return (x * w).t().exp()


PROGRAMS = [two_results, positions_too, linear, unused_weight, transposed]


def leaves():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(4, 4, generator=generator).requires_grad_() for _ in range(2)]


def results_of(fn, *args):
    results = fn(*args)
    return results if isinstance(results, tuple) else (results,)


def is_direct(value):
    made_by = getattr(value.grad_fn, "_forward_cls", None)
    return made_by is not None and made_by.__module__ == autograd_call.__name__


def warm(fn, backend="aot_eager", dynamic=False):
    """Compiled, and called once, through torch's wrapper."""
    minidynamo.reset()
    compiled = minidynamo.compile(fn, backend=backend, dynamic=dynamic, fullgraph=True)
    result = results_of(compiled, *leaves())[0]
    assert not is_direct(result)
    result.sum().backward()
    compiled(*leaves())
    return compiled


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("used", [0, 1, None], ids=["first", "last", "all"])
@pytest.mark.parametrize("fn", PROGRAMS)
def test_gradients(fn, used, dynamic):
    compiled, found = warm(fn, dynamic=dynamic), []
    for function in (fn, compiled):
        x, w = leaves()
        results = results_of(function, x, w)
        kept = [r for r in results if r.requires_grad]
        kept = kept if used is None else [kept[used % len(kept)]]
        # Tangents in another layout than the results'.
        tangents = [torch.linspace(1, 2, 2 * r.numel()).view(*r.shape, 2)[..., 0] for r in kept]
        torch.autograd.backward(kept, tangents)
        found.append(([r.detach() for r in results], [x.grad, w.grad]))
        flags = [(r.requires_grad, r.is_leaf, r.stride(), r._is_view()) for r in results]
        found[-1] += (flags if fn is not linear else [f[:3] for f in flags],)
    assert is_direct(next(r for r in results if r.requires_grad))
    torch.testing.assert_close(found[1][:2], found[0][:2])
    assert found[1][2] == found[0][2]


def test_with_kernels():
    compiled = warm(two_results, backend="inductor")
    x, w = leaves()
    first, second = compiled(x, w)
    got = torch.autograd.grad([first.sum() + second.sum()], [x, w])
    want = torch.autograd.grad([r.sum() for r in two_results(x, w)], [x, w])
    assert is_direct(first)
    torch.testing.assert_close(got, want)


def test_graphs_may_be_kept_but_not_used_twice():
    compiled = warm(two_results)
    x, w = leaves()
    loss = sum(r.sum() for r in compiled(x, w))
    loss.backward(retain_graph=True)
    once = x.grad.clone()
    loss.backward()
    torch.testing.assert_close(x.grad, 2 * once)
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_saved_tensors_have_versions():
    compiled = warm(two_results)
    x, w = leaves()
    y = sum(r.sum() for r in compiled(x, w))
    with torch.no_grad():
        w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_no_second_derivatives():
    compiled = warm(two_results)
    x, w = leaves()
    (grad,) = torch.autograd.grad(compiled(x, w)[1].sum(), x, create_graph=True)
    torch.testing.assert_close(grad.detach(), (x + w).exp().detach())
    assert grad.requires_grad
    with pytest.raises(RuntimeError, match="does not currently support double backward"):
        grad.sum().backward()


def test_hooks_on_saved_tensors():
    compiled, seen = warm(two_results), []
    x, w = leaves()
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: (seen.append(t), t)[1], lambda t: t
    ):
        y = compiled(x, w)[1].sum()
    y.backward()
    assert seen
    torch.testing.assert_close(x.grad, (x + w).exp().detach())


def test_without_gradients_and_flags():
    compiled = warm(two_results)
    x, w = leaves()
    with torch.no_grad():
        assert not compiled(x, w)[0].requires_grad
    loss = compiled(x, w)[0].sum()
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(RuntimeError, match="use_deterministic_algorithms"):
            loss.backward()
    finally:
        torch.use_deterministic_algorithms(False)


def writes_to_input(x, w):
    return x + w, x.detach().add_(1)


def returns_view(x, w):
    y = x * w
    return y, y[0]


@pytest.mark.parametrize("fn", [writes_to_input, returns_view])
def test_others_take_torchs_wrapper(fn):
    compiled = warm(fn)
    got, want = results_of(compiled, *leaves()), results_of(fn, *leaves())
    torch.testing.assert_close(got, want)
    assert not any(map(is_direct, got))


def test_autocast():
    minidynamo.reset()
    compiled = minidynamo.compile(lambda x, w: (x @ w).sin(), backend="aot_eager")
    for _ in range(2):
        x, w = leaves()
        with torch.autocast("cpu", torch.bfloat16):
            y = compiled(x, w)
        y.float().sum().backward()
        assert y.dtype == torch.bfloat16
        assert not is_direct(y)
    assert x.grad is not None
