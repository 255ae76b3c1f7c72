"""Views whose ends or places depend on data are given to compiled pieces as they lie in memory."""

import pytest
import torch

import minidynamo
from minidynamo import config
from minidynamo.inductor import metrics

views_of_views = pytest.mark.skipif(
    torch.__version__ < "2.13", reason="fake tensors lose the offset of a view of such a view"
)


def first_columns(x, k):
    return torch.softmax(x[:, :k], -1)


def some_columns(x, k):
    return x[:, k : k + 3].sin() * 2


def last_columns(x, k):
    return torch.softmax(x[:, k:], -1)


def row_and_column(x, k):
    return x[k].relu() * x[:, k].sum()


def views_of_results(x, k):
    y = x.sin()
    return y[:k].cos(), y[:, :k].t().contiguous() * 2, y[k:].sum(1), x * 2


def two_parts_joined(x, k):
    return torch.cat([x[:, :k], x[:, k:] * 2], 1)


def view_of_a_view(x, k):
    part = x.t()[k:]
    return part[1:, 1:].exp() + 1, part.sum()


def view_of_what_an_operator_laid_out(x, k):
    return torch.masked_select(x, x > 0)[k:].sin() * 2


def chosen_columns(x, k):
    y = x * 2
    y[:, x[0] > k - 1] = x[0, 0]
    return y * y


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("wants_grad", [False, True])
@pytest.mark.parametrize(
    "fn",
    [
        first_columns,
        some_columns,
        last_columns,
        row_and_column,
        views_of_results,
        two_parts_joined,
        pytest.param(view_of_a_view, marks=views_of_views),
        view_of_what_an_operator_laid_out,
        chosen_columns,
    ],
)
def test_views_at_places_of_data_are_compiled(fn, wants_grad, dynamic):
    def run(call, values, n):
        x = values.clone().requires_grad_(wants_grad)
        results = call(x, n)
        results = results if isinstance(results, tuple) else (results,)
        if not wants_grad:
            return results
        sum((part * part.detach().cos()).sum() for part in results).backward()
        return (*results, x.grad)

    torch.manual_seed(0)
    with config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        metrics.reset()
        compiled = minidynamo.compile(
            lambda x, n: fn(x, n.item()), fullgraph=True, dynamic=dynamic
        )
        for n in (2, 3, 0, 1):
            values = torch.randn(5, 8)
            actual = run(compiled, values, torch.tensor(n))
            torch.testing.assert_close(actual, run(fn, values, n))
        assert metrics.uncompiled_graphs == 0
        assert metrics.compiled_graphs == 1


@views_of_views
@pytest.mark.parametrize("dynamic", [None, True])
def test_augmented_assignments_at_places_of_data_are_compiled(dynamic):
    def fn(x, n):
        y, k = x.clone(), n.item()
        y[k:] += 1
        y[:, :k] *= 2
        return y * x

    with config.patch(capture_scalar_outputs=True):
        metrics.reset()
        compiled = minidynamo.compile(fn, fullgraph=True, dynamic=dynamic)
        for n in (2, 3, 0, 1):
            x = torch.randn(5, 8)
            torch.testing.assert_close(compiled(x, torch.tensor(n)), fn(x, torch.tensor(n)))
        assert metrics.uncompiled_graphs == 0
