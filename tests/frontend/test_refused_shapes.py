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


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", REFUSED)
def test_refused(name, dynamic):
    check(REFUSED[name], ROW, ROWS, graphs=None, backend="inductor", dynamic=dynamic)


def test_other_shapes_on_purpose():
    def f(x, y):
        z = x.clone().unsqueeze_(0).squeeze_(1).t_().add_(y[0, 0])
        return z, torch.addmv(x[0, :1], y, y[0]), torch.addmv(x[0, :3], y, y[0])

    check(f, ROW, ROWS)
