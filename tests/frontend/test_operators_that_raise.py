"""What an operator raises for its data reaches the program's own handlers and blocks."""

from __future__ import annotations

import contextlib
import unittest

import pytest
import torch
import torch.nn.functional as F
from testing import check, check_recompiles

import minidynamo

GOOD = torch.eye(3) * 2
BAD = -torch.eye(3)
PLACES = torch.tensor([0, 1])
NO_PLACES = torch.tensor([0, 5])


def _values():
    return torch.arange(3.0) * 2


def _write(mask):
    values = torch.zeros(mask.shape)
    values[mask] = torch.ones(2)
    return values


OPERATORS = {
    "cholesky": (lambda a: torch.linalg.cholesky(a), GOOD, BAD),
    "inverse": (lambda a: torch.inverse(a), GOOD, BAD * 0),
    "method": (lambda a: a.inverse(), GOOD, BAD * 0),
    "solve": (lambda a: torch.linalg.solve(a, torch.ones(3)), GOOD, BAD * 0),
    "index": (lambda i: _values()[i], PLACES, NO_PLACES),
    "index in a tuple": (lambda i: _values()[None][:, i], PLACES, NO_PLACES),
    "write through a mask": (lambda i: _write(i < 3), PLACES, NO_PLACES),
    "gather": (lambda i: _values().gather(0, i), PLACES, NO_PLACES),
    "scatter": (lambda i: _values().scatter_add(0, i, torch.ones(2)), PLACES, NO_PLACES),
    "one_hot": (lambda i: torch.nn.functional.one_hot(i, 3), PLACES, NO_PLACES),
    "division": (lambda i: torch.tensor([4, 4]) // i, PLACES + 1, PLACES),
    "sorter": (lambda i: torch.searchsorted(_values()[:2], 1.0, sorter=i), PLACES, NO_PLACES),
    "assert": (lambda i: torch._assert_async(i[1] < 3), PLACES, NO_PLACES),
}


@pytest.mark.parametrize("order", [(0, 1, 0, 1), (1, 0, 1)])
@pytest.mark.parametrize("name", OPERATORS)
def test_an_error_is_caught(name, order):
    operator, *given = OPERATORS[name]

    def fn(x):
        y = x + 0
        try:
            found = operator(y)
        except RuntimeError as error:
            return y - 1, type(error), str(error)
        except IndexError as error:
            return y - 2, type(error), str(error)
        return y + 1, found

    check_recompiles(fn, [(given[i],) for i in order], graphs=1)


@pytest.mark.parametrize("places", [(slice(None), [0, 4]), ([0, 1], [0, 1, 2]), [[7]]])
def test_places_of_lists(places):
    def fn(x):
        with pytest.raises(IndexError) as caught:
            x[places]
        return str(caught.value), x + 1

    check(fn, torch.zeros(4, 4), graphs=None)


@pytest.mark.parametrize("borders", [torch.arange(3.0), torch.eye(2)])
def test_arguments_that_fake_tensors_do_not_look_at(borders):
    def fn(x):
        case = unittest.TestCase()
        with case.assertRaisesRegex(RuntimeError, "must be 1 dimension"):
            torch.bucketize(x, borders)
        return x + 1

    check(fn, torch.zeros(3), graphs=None)


def _bounds(x):
    return torch.empty(3, dtype=torch.bool).random_(5, 10)


def _uniform(x):
    return torch.rand(3, dtype=torch.int64)


def _no_range(x):
    return torch.empty_like(x).uniform_(3, to=-1)


def _nothing(x):
    return x[:0].max()


def _shared(x):
    return torch.linspace(1, 6, 6, out=torch.ones(1).expand(6))


def _samples(x):
    images, samples = x.expand(2, 1, 3, 3), x.new_zeros(1, 1, 2)
    return F.fractional_max_pool2d(images, 2, output_size=2, _random_samples=samples)


@pytest.mark.parametrize(
    "operator", [_bounds, _uniform, _no_range, _nothing, _shared, _samples]
)
def test_a_block_that_takes_the_error(operator):
    def fn(x):
        with contextlib.suppress(RuntimeError):
            operator(x)
            x = x * 2
        return x + 1

    check(fn, torch.zeros(3), graphs=None)


def test_an_error_whose_result_is_not_used():
    def is_positive(x):
        try:
            torch.linalg.cholesky(x * 2)
        except torch.linalg.LinAlgError:
            return x * 3, False
        return x * 4, True

    calls = [(GOOD,), (BAD,), (GOOD,)]
    check_recompiles(is_positive, calls, graphs=1)
    check_recompiles(is_positive, calls, graphs=1, fullgraph=True)


def _caught_by_caller(x):
    def positive(y):
        return torch.linalg.cholesky(y) + 1

    try:
        return positive(x * 2)
    except RuntimeError:
        return x


def _caught_in_called_function(x):
    return _caught_by_caller(x + 0) * 2


def _suppressed(x):
    with contextlib.suppress(RuntimeError):
        return torch.linalg.cholesky(x * 2)
    return x + 3


def _in_no_grad_in_try(x):
    try:
        with torch.no_grad():
            return torch.linalg.cholesky(x * 2)
    except RuntimeError:
        return x + torch.is_grad_enabled()


def _retried(x):
    for i in range(4):
        try:
            return torch.linalg.cholesky(x + 10.0**i * torch.eye(3)), i
        except RuntimeError:
            pass
    return x


def _behind_a_break(x):
    x = x * 2
    minidynamo.graph_break()
    try:
        return torch.linalg.cholesky(x)
    except RuntimeError:
        return x + 3


def _in_a_generator(x):
    def tries():
        for scale in (1, -1):
            try:
                yield torch.linalg.cholesky(x * scale)
            except RuntimeError:
                yield x

    return list(tries())


def _writes_first(x):
    x.add_(1)
    x.sub_(1)
    try:
        return torch.linalg.cholesky(x)
    except RuntimeError:
        x.mul_(2)
        return x + 1


@pytest.mark.parametrize(
    ("fn", "graphs"),
    [
        (_caught_by_caller, 1),
        (_caught_in_called_function, 1),
        (_suppressed, 1),
        (_in_no_grad_in_try, 1),
        (_retried, 1),
        (_behind_a_break, 2),
        (_in_a_generator, 1),
        (_writes_first, 1),
    ],
)
def test_blocks_around_an_operator_that_raises(fn, graphs):
    check_recompiles(fn, [(GOOD,), (BAD,), (GOOD,), (BAD,)], graphs=graphs)


def test_effects_of_a_finally_block():
    def fn(x, seen):
        seen.append("start")
        try:
            return torch.linalg.cholesky(x * 2)
        finally:
            seen.append("end")

    check(fn, BAD, [], graphs=1, calls=1)
    check(fn, GOOD, [], graphs=1, calls=1)


def test_random_numbers_are_drawn_once():
    def fn(x):
        before = torch.rand(2)
        try:
            return torch.linalg.cholesky(x * 2), before
        except RuntimeError:
            return x, before, torch.rand(2)

    compiled = minidynamo.compile(fn, backend="eager")
    for x in (BAD, GOOD, BAD):
        torch.manual_seed(3)
        expected = fn(x)
        torch.manual_seed(3)
        for left, right in zip(expected, compiled(x), strict=True):
            assert torch.equal(left, right)


def test_blocks_of_torch_need_nothing():
    """The graph is called as it is: what it writes to may be as large as it likes."""
    large = torch.zeros(1 << 21)

    def fn(x, places):
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            x.add_(1)
            return x[places] * 2

    check(fn, large, PLACES, graphs=1)


def test_a_graph_that_cannot_be_run_again():
    large = torch.zeros(1 << 21)

    def fn(x, places):
        x.add_(1)
        try:
            return x[places] * 2
        except IndexError:
            return x[:3] + 5

    check(fn, large, PLACES, graphs=2, calls=1)
    check(fn, large, torch.tensor([1 << 22]), graphs=None, calls=1)
    check(fn, large, PLACES, graphs=1, calls=1, fullgraph=True)


def _other_class(x, places):
    x.add_(1)
    try:
        return x[places] * 2
    except (KeyError, NotImplementedError):
        return x[:3] + 5
    except StopIteration:
        return x[:2]


def _only_finally(x, places):
    x.add_(1)
    try:
        return x[places] * 2
    finally:
        places = None


@pytest.mark.parametrize("fn", [_other_class, _only_finally])
def test_clauses_that_do_not_take_the_error(fn):
    large = torch.zeros(1 << 21)
    check(fn, large, PLACES, graphs=1, breaks=0)


def _second_clause(x):
    try:
        return torch.linalg.cholesky(x + 0)
    except KeyError:
        return x
    except (IndexError, torch.linalg.LinAlgError):
        return x + 2


def _bare_clause(x):
    try:
        return torch.linalg.cholesky(x + 0)
    except KeyError:
        return x
    except:  # noqa: E722
        return x + 3


def _class_in_a_local(x):
    errors = (KeyError, RuntimeError)
    try:
        return torch.linalg.cholesky(x + 0)
    except errors:
        return x + 4


def _other_error(x):
    try:
        return torch.linalg.cholesky(x + 0)
    except RuntimeError as error:
        raise ValueError("not positive") from error


class _Swallows:
    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        return kind is torch.linalg.LinAlgError


def _swallowed(x):
    with _Swallows():
        return torch.linalg.cholesky(x + 0)
    return x + 5


@pytest.mark.parametrize(
    "fn", [_second_clause, _bare_clause, _class_in_a_local, _other_error, _swallowed]
)
def test_kinds_of_clauses(fn):
    check_recompiles(fn, [(GOOD,), (BAD,), (GOOD,)], graphs=1)


def _overlap(write):
    """What `write` raises is handled, and what was done before it is seen."""

    def program(x, log):
        y = x * 2
        log.append(y[0, 0])
        try:
            write(y)
        except RuntimeError as error:
            log.append(str(error))
            return y - 1
        return y + 1

    return program


WRITES = {
    "expanded": (lambda y: y[:1].expand(3, 3).add_(1), True),
    "expanded draws": (lambda y: y[:1].expand(3, 3).normal_(), True),
    "expanded, filled": (lambda y: y[:1].expand(3, 3).fill_(1), False),
    "moved": (lambda y: y[1:].copy_(y[:-1]), True),
    "assigned": (lambda y: y.__setitem__(slice(1, None), y[:-1]), True),
    "transposed": (lambda y: y.mul_(y.t()), True),
    "out": (lambda y: torch.add(y[1:], 1, out=y[:-1]), True),
    "itself": (lambda y: y.add_(y), False),
    "a view like it": (lambda y: y.add_(y.view(3, 3)), False),
    "apart": (lambda y: y[:1].add_(y[1:2]), False),
    "columns": (lambda y: y[:, 0].add_(y[:, 1]), False),
    "expanded, no element": (lambda y: y[:1, :0].expand(3, 0).add_(1), False),
    "no row of what is read": (lambda y: y.view(-1)[2:8].view(2, 3)[:0].add_(y[:1]), False),
    "read first": (lambda y: y[1:].ldexp_(y[:-1]), False),
}


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("dynamic", [None, True])
def test_writes_to_memory_that_is_shared(name, dynamic):
    write, raises = WRITES[name]
    program, found = _overlap(write), []
    run = minidynamo.compile(program, backend="eager", dynamic=dynamic)
    for call in (program, run):
        log = []
        found.append((call(torch.eye(3), log), log))
        assert (len(log) == 2) == raises
    torch.testing.assert_close(found[1][0], found[0][0])
    torch.testing.assert_close(found[1][1][0], found[0][1][0])
    assert found[1][1][1:] == found[0][1][1:]
