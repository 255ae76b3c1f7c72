"""Tensors that are conjugated or negated lazily: arguments, written through, results."""

import pytest
import torch

import minidynamo


def written_through(x):
    y = x * 1
    y.mH.mul_(2)
    return y


def written_in_part(x):
    y = x + 1
    y.conj().imag.add_(1)
    return y, x * 2


def written_and_seen(x):
    y = x * 1
    z = y.mH
    z.mul_(2j)
    return y, z


def made_anew(x):
    return torch.conj_physical(x.conj()) + x.mH.conj().T


def of_an_argument(x):
    return x.expand_as(x).conj(), x.view(x.shape[1], x.shape[0]).conj(), x.sum()


def of_an_argument_in_part(x):
    return x.view(x.shape[1], x.shape[0]).conj().imag


def as_it_is(x):
    return x.view(x.shape[1], x.shape[0]), x.conj().conj()


def forms(x):
    return [x, x.conj(), torch._neg_view(x), torch.complex(x.conj().imag, x.real)]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize(
    "fn",
    [
        written_through,
        written_in_part,
        written_and_seen,
        made_anew,
        of_an_argument,
        of_an_argument_in_part,
        as_it_is,
    ],
)
def test_results_are_lazy_where_eagers_are(fn, backend, dynamic):
    compiled = minidynamo.compile(fn, backend=backend, dynamic=dynamic, fullgraph=True)
    for x in forms(torch.randn(3, 4, dtype=torch.complex64)):
        wanted, found = fn(x), compiled(x)
        if isinstance(wanted, torch.Tensor):
            wanted, found = (wanted,), (found,)
        assert len(found) == len(wanted)
        for ours, eagers in zip(found, wanted, strict=True):
            torch.testing.assert_close(ours, eagers)
            if fn is not written_and_seen:
                assert (ours.is_conj(), ours.is_neg()) == (eagers.is_conj(), eagers.is_neg())
            else:
                assert ours.untyped_storage()._cdata == found[0].untyped_storage()._cdata


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_arguments_that_are_written_to(backend, dynamic):
    """Kernels write to a copy of what is negated lazily; results are views of the argument."""

    def fn(x):
        view = x.view(-1)
        x.mul_(3)
        return view[1:], x.sum(), x + 1

    compiled = minidynamo.compile(fn, backend=backend, dynamic=dynamic, fullgraph=True)
    for make in (
        lambda: torch._neg_view(torch.arange(4.0)),
        lambda: torch.arange(4.0),
        lambda: torch.complex(torch.ones(4), torch.arange(4.0)).conj().imag,
    ):
        eagers, ours = make(), make()
        wanted, found = fn(eagers), compiled(ours)
        torch.testing.assert_close(found, wanted)
        wanted[0].add_(5), found[0].add_(5)
        assert torch.equal(ours, eagers)
        assert (ours.is_neg(), ours._version) == (eagers.is_neg(), eagers._version)


def test_gradients_through_what_was_written():
    def step(called):
        x = torch.arange(12.0).view(3, 4).to(torch.complex64).requires_grad_()
        torch.view_as_real(called(x)).sum().backward()
        return x.grad

    compiled = minidynamo.compile(written_through, fullgraph=True)
    torch.testing.assert_close(step(compiled), step(written_through))


def as_halves(x):
    return x.view(x.shape[1], x.shape[0]).view(torch.int16), x + 1


def as_bytes_behind(x):
    return x[x.shape[0] - 2 :].view(torch.uint8)


def as_doubles(x):
    x.mul_(2)
    return x.view(x.shape[1], x.shape[0]).view(dtype=torch.float64), x


def as_complex_numbers(x):
    return torch.view_as_complex(x.view(x.shape[0], -1, 2)).mH


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("fn", [as_halves, as_bytes_behind, as_doubles, as_complex_numbers])
def test_views_of_arguments_as_other_types(fn, backend, dynamic):
    """Strides in elements of another size made other shapes, or errors."""
    compiled = minidynamo.compile(fn, backend=backend, dynamic=dynamic, fullgraph=True)
    for shape in ((4, 6), (6, 4), (8, 6)):
        x = torch.arange(float(shape[0] * shape[1])).view(shape)
        y = x.clone()
        wanted, found = fn(x), compiled(y)
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(y, x)
        first, ours = (v[0] if isinstance(v, tuple) else v for v in (wanted, found))
        assert ours.stride() == first.stride()
        assert ours.untyped_storage()._cdata == y.untyped_storage()._cdata


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_results_of_two_types_share_memory(requires_grad, dynamic):
    def fn(x):
        y = x * 1
        return y, y.view(torch.int32), torch.view_as_complex(y.view(x.shape[0], -1, 2)), y[1:]

    def run(called):
        x = torch.arange(24.0).view(4, 6).requires_grad_(requires_grad)
        results = called(x)
        if requires_grad:
            (results[0].sum() + results[2].abs().sum() + results[3].sum()).backward()
        with torch.no_grad():
            results[1][-1] = 7
        return *(result.detach().clone() for result in results), x.grad

    compiled = minidynamo.compile(fn, dynamic=dynamic, fullgraph=True)
    torch.testing.assert_close(run(compiled), run(fn))


def test_the_last_rows_as_their_own_type():
    """A kernel that copies them left an offset of 0, from which a view of the argument was made."""

    def fn(x):
        return x[x.shape[0] - 1 :].view(torch.int32)

    compiled = minidynamo.compile(fn, dynamic=True, fullgraph=True)
    for rows in (4, 5):
        x = torch.arange(rows * 6, dtype=torch.int32).view(rows, 6)
        found = compiled(x)
        torch.testing.assert_close(found, fn(x))
        assert found.data_ptr() == fn(x).data_ptr()


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_parts_of_a_reinterpreted_result(backend, dynamic):
    """They were made by strides, as parts of what was not reinterpreted."""

    def halves(x):
        y = x * 1
        return y.view(dtype=torch.int32)[1:], y[1:]

    def spread(x):
        y = x * 1
        z = y.view(torch.uint8)
        return z.as_strided((2, 2), (1, 1), 1), y.as_strided((2, 2), (1, 1), 1), z

    x = torch.arange(24.0).view(4, 6).requires_grad_()
    for fn in (halves, spread):
        compiled = minidynamo.compile(fn, backend=backend, dynamic=dynamic, fullgraph=True)
        torch.testing.assert_close(compiled(x), fn(x))


def test_kernels_in_the_interpreter():
    pytest.importorskip("triton")

    def fn(x, c):
        x.mul_(3)
        return c.conj().imag.sin(), c.conj().imag[:1].expand(2, 4) + 1

    compiled = minidynamo.compile(fn, options={"cpu_backend": "triton"}, fullgraph=True)
    c = torch.randn(3, 4, dtype=torch.complex64)
    ours, eagers = (torch._neg_view(torch.arange(12.0))[::3] for _ in range(2))
    torch.testing.assert_close(compiled(ours, c), fn(eagers, c))
    assert torch.equal(ours, eagers)
