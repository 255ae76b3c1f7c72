"""Slices whose ends are tensors of one number: their numbers are symbols where `item()` is one."""

import pytest
import torch
from testing import check

import minidynamo
from minidynamo import config

M = torch.arange(32.0).view(2, 4, 4)
ENDS = torch.tensor([[1, 2], [3, 4]])


def squares(m, ends):
    m = m * 1
    for i in range(2):
        s = ends[i, 0]
        m[i, :s, :s] = 1.0
    return m * 2


def rows(m, ends):
    m = m * 1
    s = ends[0, 1]
    m[0, s:] = m[1, 0, 0]
    m[1, ..., -s:] = 5
    return m


def view_of_input(m, ends):
    m[0, : ends[0, 0]] = 7
    m[:, None, ends[1, 0] :] = torch.zeros(4)
    return m.sum()


READS = [
    lambda m, ends: m[0, : ends[0, 1]] * 2,
    lambda m, ends: m[1, ends[0, 0] :].sum(0),
    lambda m, ends: m[0, ends[0, 0] : ends[1, 0]].sum(),
    lambda m, ends: m[:, : ends[0, 0] + 1] + 1,
    lambda m, ends: m[0, : ends[0, :1]] * 2,
]


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("fn", [squares, rows, view_of_input, *READS])
def test_one_graph_for_every_end(fn, backend):
    m, calls = M.clone(), 0

    def counting(graph, inputs):
        nonlocal calls
        calls += 1
        return minidynamo.lookup_backend(backend)(graph, inputs)

    compiled = minidynamo.compile(fn, backend=counting, fullgraph=True)
    for ends in (ENDS, torch.tensor([[2, 3], [4, 1]]), ENDS):
        expected_m, actual_m = m.clone(), m.clone()
        expected, actual = fn(expected_m, ends), compiled(actual_m, ends)
        torch.testing.assert_close(actual, expected)
        torch.testing.assert_close(actual_m, expected_m)
    assert calls == 1


@pytest.mark.parametrize("fn", [squares, rows, *READS[:2]])
def test_without_the_flag_the_graph_breaks(fn):
    check(fn, M, ENDS, graphs=None)
    with config.patch(capture_scalar_outputs=True):
        check(fn, M, ENDS, graphs=1, breaks=0)


@pytest.mark.parametrize("end", [torch.tensor(1.5), torch.tensor([1, 2])])
def test_what_is_no_end_raises(end):
    check(lambda m: m[:end], M, graphs=None)


@pytest.mark.parametrize(
    "fn", [lambda m, ends: m[ends[0, 0]] * 2, lambda m, ends: m[0, ends[0, 1], :] + 1]
)
def test_subscripts_that_are_tensors_of_one_number(fn):
    """The graph breaks there, for the data and not for an error of the program's."""
    check(fn, M, ENDS - 1, graphs=None)
    (reason,) = minidynamo.explain(fn)(M, ENDS - 1).break_reasons
    assert reason.reason.startswith("data-dependent value")
    with pytest.raises(IndexError, match="index 10 is out of bounds"):
        minidynamo.compile(fn, backend="eager")(M, ENDS.new_full((2, 2), 10))
