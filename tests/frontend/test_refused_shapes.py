"""Operators that eager refuses for the shapes of arguments, which fake tensors take."""

import pytest
import torch
from testing import check

ROW, ROWS = torch.linspace(1, 2, 5)[None], torch.linspace(0.1, 3, 15).reshape(3, 5)


def added_in_place(x, y):
    x = x.clone()
    x += y
    return x


def raised_in_place(x, y):
    x = x * 2
    x **= y
    return x


def caught(x, y):
    z = x * 2
    try:
        z.clamp_(y)
    except RuntimeError:
        return z - 1
    return z


REFUSED = {
    "operator": added_in_place,
    "power": raised_in_place,
    "caught": caught,
    "sign": lambda x, y: x.copysign_(y),
    "bounds": lambda x, y: torch.clamp_(x.clone(), y),
    "remainder": lambda x, y: x.fmod_(y),
    "comparison": lambda x, y: x.gt_(y),
    "quotient": lambda x, y: x.floor_divide_(y),
    "outer": lambda x, y: x.addr_(y[:, 0], y[0]),
    "outer_of_a_copy": lambda x, y: x.clone().addr_(y[:, 0], y[0]),
    "list": lambda x, y: torch._foreach_add_([x], [y]),
    "product": lambda x, y: torch.addmv(x[0], y[:1], y[0]),
    "product_of_a_row": lambda x, y: torch.addmv(x[:, :1], y, y[0]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    check(REFUSED[name], ROW, ROWS, graphs=None, backend="inductor", dynamic=False)


def test_other_shapes_on_purpose():
    def f(x, y):
        z = x.clone().unsqueeze_(0).squeeze_(1).t_().add_(y[0, 0])
        return z, torch.addmv(x[0, :1], y, y[0]), torch.addmv(x[0, :3], y, y[0])

    check(f, ROW, ROWS)


ARGUMENTS = {
    "softmax": lambda x: torch.nn.functional.softmax(x, dim=3),
    "softmax of a number": lambda x: x[0, 0].softmax(1),
    "sort": lambda x: x.sort(-3),
    "stable sort": lambda x: torch.sort(x, dim=2, stable=True),
    "argsort": lambda x: x.argsort(dim=4),
    "bernoulli": lambda x: torch.bernoulli(x, 5.0),
    "bernoulli_": lambda x: x.bernoulli_(-0.5),
    "uniform": lambda x: x.uniform_(5, 0),
    "random": lambda x: x.random_(-4),
    "random of two": lambda x: x.random_(5, 5),
    "randint_like": lambda x: torch.randint_like(x, 0),
    "randint_like of two": lambda x: torch.randint_like(x, 5, 0),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_that_eager_refuses_raise_in_the_block(name, dynamic):
    call = ARGUMENTS[name]

    def f(x):
        y = x + 1
        try:
            return call(y)
        except (IndexError, RuntimeError) as error:
            return y * 2, str(error)

    check(f, ROWS, graphs=2, dynamic=dynamic)


def test_arguments_at_the_ends_of_what_eager_takes():
    def f(x):
        y = x + 1
        drawn = y.clone().random_(1), y.clone().uniform_(2, 2), torch.randint_like(y, 4, 5)
        sure = torch.bernoulli(y, 1.0), y.clone().bernoulli_(0.0)
        return y.softmax(-2), y.sort(1), y[0, 0].sort(0), y[0, 0].softmax(-1), drawn, sure

    check(f, ROWS, fullgraph=True)
