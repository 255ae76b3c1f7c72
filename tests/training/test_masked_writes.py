"""`x[mask] = value` and `index_put` with gradients of the value: compiled, and equal to eager's."""

import pytest
import torch

import minidynamo
from minidynamo.inductor import metrics


def tokens(x, value, mask):
    y = x * 2
    y[mask] = value
    return y.sin()


def one_number(x, value, mask):
    y = x * 2
    y[mask] = value[0]
    return y.sin()


def rows(x, value, mask):
    y = x * 2
    y[mask[:, 0]] = value
    return y.sin()


def wider(x, value, mask):
    y = (x * 2).double()
    y[mask, ...] = value[None].double()
    y[mask, :] = y.mean((0, 1)) + value
    return y.sin()


def turned(x, value, mask):
    y = (x * 2).transpose(0, 2)
    y.transpose(0, 2)[mask] = value
    return y.sin()


def selected(x, value, mask):
    y = x * 2
    y[mask] = y[mask] * value
    y[:, mask[0]] = value
    return y.sin()


def step(fn, shape, fill):
    torch.manual_seed(0)
    x, value = torch.randn(*shape, requires_grad=True), torch.randn(5, requires_grad=True)
    mask = torch.full(shape[:2], fill) if fill is not None else torch.rand(*shape[:2]) > 0.5
    result = fn(x, value, mask)
    result.sum().backward()
    return result, x.grad, value.grad


@pytest.mark.parametrize("fn", [tokens, one_number, rows, wider, turned, selected])
@pytest.mark.filterwarnings("ignore:Error detected")
def test_gradients(fn):
    metrics.reset()
    compiled = minidynamo.compile(fn, fullgraph=fn is not selected)
    for shape, fill in (((3, 4, 5), None), ((3, 4, 5), False), ((2, 6, 5), True)):
        torch.testing.assert_close(step(compiled, shape, fill), step(fn, shape, fill))
    assert metrics.uncompiled_graphs == 0


def test_writes_to_an_input():
    def fn(x, value, mask):
        x[mask] = value
        return x * value

    def run(call):
        x, value = torch.ones(2, 3, 4), torch.arange(4.0, requires_grad=True)
        call(
            x, value, torch.tensor([[True, False, True], [False, False, True]])
        ).sum().backward()
        return x, x._version, value.grad

    wanted, actual = run(fn), run(minidynamo.compile(fn))
    assert wanted[1] == actual[1]
    torch.testing.assert_close(wanted[::2], actual[::2])


@pytest.mark.filterwarnings("ignore:Error detected")
@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [(), (1,), (5,)])
def test_a_value_of_another_dtype(size, kind):
    """A single number is converted; eager refuses others."""

    def fn(x, value, mask):
        y = x * 1
        y[mask] = value
        return y * 2

    def run(call):
        value = torch.full(size, 2.5, dtype=kind, requires_grad=True)
        x, mask = torch.ones(2, 5, dtype=torch.bfloat16), torch.tensor([True, False])
        try:
            result = call(x, value, mask)
        except RuntimeError as error:
            return str(error)
        result.sum().backward()
        return result, value.grad

    wanted, actual = run(fn), run(minidynamo.compile(fn))
    assert isinstance(wanted, str) is (size == (5,))
    if isinstance(wanted, str):
        assert actual == wanted
    else:
        torch.testing.assert_close(actual, wanted, rtol=0, atol=0)


@pytest.mark.parametrize("dynamic", [None, True])
def test_chosen_elements_that_are_changed(dynamic):
    """The value has as many rows as the mask chooses, which may be one."""

    def fn(x, weight, mask):
        y = x * 1
        y[mask] *= weight
        return y.sin()

    metrics.reset()
    with minidynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = minidynamo.compile(fn, dynamic=dynamic, fullgraph=True)
        for chosen in ([True, False, True], [False, True, False], [False] * 3):
            found = []
            for call in (fn, compiled):
                x, weight = torch.randn(2, 4, generator=torch.manual_seed(0))
                x.requires_grad_()
                weight.requires_grad_()
                result = call(x.expand(3, 4), weight, torch.tensor(chosen))
                result.sum().backward()
                found.append((result, x.grad, weight.grad))
            torch.testing.assert_close(found[1], found[0])
    assert metrics.uncompiled_graphs == 0


def _set(y, mask, value):
    y[mask] = value
    return y


def _put_in_place(y, mask, value):
    return y.index_put_((mask,), value)


COUNTED = {
    "set": _set,
    "all dimensions": lambda y, mask, value: _set(y, mask[:, None, None].expand_as(y), value),
    "in place": _put_in_place,
    "functional": lambda y, mask, value: torch.index_put(y, [mask], value),
    "added": lambda y, mask, value: y.index_put((mask,), value, True),
    "leading one": lambda y, mask, value: _set(y, mask, value[None]),
    "broadcast": lambda y, mask, value: _set(y, mask, value[:, :, :1]),
    "last": lambda y, mask, value: _set(y.transpose(0, 2), (..., mask), value.transpose(0, 2)),
    "middle": lambda y, mask, value: _set(
        y.transpose(0, 1), (slice(None), mask), value.transpose(0, 1)
    ),
    "middle, behind dots": lambda y, mask, value: _set(
        y.transpose(0, 1), (..., mask, slice(None)), value.transpose(0, 1)
    ),
    "no leading": lambda y, mask, value: _set(
        y.transpose(0, 1), (slice(None), mask), value[:, 0]
    ),
    "one for all": lambda y, mask, value: _set(y, mask, value[:1]),
    "one through index_put": lambda y, mask, value: y.index_put((mask,), value[:1, :1, :1]),
}


def _counted(name, masks, dynamic=None):
    place = COUNTED[name]

    def fn(x, mask, value):
        return place(x * 2, mask, value).sin()

    compiled = minidynamo.compile(fn, fullgraph=True, dynamic=dynamic)
    for chosen in masks:
        mask = torch.tensor(chosen)
        count = int(mask.sum())
        found = []
        for call in (fn, compiled):
            torch.manual_seed(count)
            x = torch.randn(len(chosen), 3, 4, requires_grad=True)
            size = (count, 3, 4) if name != "all dimensions" else (count * 12,)
            value = torch.randn(size, requires_grad=True)
            result = call(x, mask, value)
            (result * torch.arange(float(result.numel())).view_as(result)).sum().backward()
            found.append((result, x.grad, value.grad))
        torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("name", COUNTED)
def test_as_many_elements_as_the_mask_chooses(name):
    metrics.reset()
    minidynamo.reset()
    true, false = True, False
    _counted(name, [[true, false, true, true], [false, true, true, true], [false, true] * 4])
    assert metrics.uncompiled_graphs == 0


@pytest.mark.parametrize("name", COUNTED)
def test_no_element_at_all(name):
    metrics.reset()
    minidynamo.reset()
    _counted(name, [[False] * 4, [True, True, False, False], [False] * 3])
    assert metrics.uncompiled_graphs == 0


def test_no_element_is_refused_where_the_mask_chooses():
    compiled = minidynamo.compile(lambda x, mask, value: _set(x * 2, mask, value))
    value = torch.randn(0, requires_grad=True)
    compiled(torch.ones(3), torch.tensor([False] * 3), value)
    with pytest.raises(RuntimeError, match="shape mismatch: value tensor of shape"):
        compiled(torch.ones(3), torch.tensor([True, False, False]), value)


@pytest.mark.filterwarnings("ignore:Error detected")
def test_another_number_is_refused():
    compiled = minidynamo.compile(lambda x, mask, value: _set(x * 2, mask, value))
    value = torch.randn(2, requires_grad=True)
    compiled(torch.ones(3), torch.tensor([True, False, True]), value)
    for chosen in ([True, False, False], [True, True, True]):
        with pytest.raises(RuntimeError, match="shape mismatch: value tensor of shape"):
            compiled(torch.ones(3), torch.tensor(chosen), value)
