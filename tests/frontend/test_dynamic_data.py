"""Numbers and sizes that depend on data: captured with `fullgraph=True` or where the flags say so,
else a graph break."""

import operator

import pytest
import torch
from testing import CountingBackend, assert_same, check

import minidynamo

X = torch.tensor([3.0, 1.0, -2.0, 5.0])
OTHER = torch.tensor([2.0, 1.0, 2.0, -5.0])


def item_as_factor(x):
    return x * x.sum().item()


def item_as_size(x):
    return torch.zeros(x[0].int().item() + 2)


def nonzero(x):
    return torch.nonzero(x > 0), (x > 0).nonzero().shape[0]


def masked(x):
    return x[x > 0].sum(), x[x > 0] * 2


def checked_slice(x):
    n = int(x[0])
    torch._check(n >= 0)
    torch._check(n <= x.shape[0] - 1)
    return x[:n], n + 1


def tolist(x):
    return x.int().tolist(), x.view(2, 2).tolist()


def repeated(x):
    return torch.repeat_interleave(torch.arange(3), torch.tensor([1, 2, 3])).float() * x[0]


def converted(x):
    return float(x[0]) * 2, x.max().item(), int(x[1])


def unique(x):
    return torch.unique(x)


def arithmetic_of_item(x):
    n = x[0].int().item()
    return n + 1, n * 2, n / 2


def laid_out_anew(x):
    y = x.unique()
    double = y * 2
    y.unsqueeze_(0)
    places = (x > 0).nonzero()
    places.t_()
    return double, y.new_ones(y.shape), x.new_zeros(places.shape), places.shape[1] + 1


def into_containers(x):
    n = x[0].int().item()
    return {"n": n, "list": [n, n + 1]}, x + n


CAPTURED = [
    item_as_factor,
    item_as_size,
    nonzero,
    masked,
    checked_slice,
    tolist,
    repeated,
    converted,
    unique,
    arithmetic_of_item,
    into_containers,
    laid_out_anew,
]


def flags():
    return minidynamo.config.patch(
        capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True
    )


@pytest.mark.parametrize("fn", CAPTURED)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_captured_as_one_graph(fn, backend):
    minidynamo.reset()
    graphs = []
    with flags(), minidynamo.events.subscribe(graphs.append, minidynamo.events.GraphEvent):
        compiled = minidynamo.compile(fn, backend=backend, fullgraph=True)
        for x in (X, OTHER):
            assert_same(fn(x), compiled(x))
    assert len(graphs) == 1


@pytest.mark.parametrize("fn", CAPTURED)
def test_without_the_flags_the_graph_breaks(fn):
    minidynamo.reset()
    breaks = []
    with minidynamo.events.subscribe(breaks.append, minidynamo.events.GraphBreakEvent):
        check(fn, X, graphs=None)
    kinds = {event.kind for event in breaks}
    assert kinds and kinds <= {"data-dependent value", "data-dependent shape"}


@pytest.mark.parametrize("fn", CAPTURED)
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_fullgraph_captures(fn, backend):
    minidynamo.reset()
    compiled = minidynamo.compile(fn, backend=backend, fullgraph=True)
    for x in (X, OTHER):
        assert_same(fn(x), compiled(x))


def test_a_branch_on_data_breaks():
    def f(x):
        n = x[0].int().item()
        return x + 1 if n > 2 else x - 1

    with flags():
        check(f, X, graphs=None, breaks=1)
        minidynamo.reset()
        with pytest.raises(minidynamo.exc.Unsupported) as caught:
            minidynamo.compile(f, backend="eager", fullgraph=True)(X)
    assert caught.value.kind == "data-dependent branch"
    assert any("torch._check" in hint for hint in caught.value.hints)


def test_a_check_decides_the_branch():
    def f(x):
        n = x[0].int().item()
        torch._check(n > 1)
        return x + 1 if n > 0 else x - 1

    with flags():
        check(f, X, fullgraph=True)


def test_a_check_that_fails_at_run_time_raises():
    def f(x):
        n = x[0].int().item()
        torch._check(n > 2)
        return x * n

    minidynamo.reset()
    with flags():
        compiled = minidynamo.compile(f, backend="eager", fullgraph=True)
        assert_same(f(X), compiled(X))
        with pytest.raises(RuntimeError):
            compiled(OTHER)


def test_a_check_on_a_size_is_a_guard():
    def f(x):
        torch._check(x.shape[0] > 2)
        return x * 2

    minidynamo.reset()
    counter = CountingBackend()
    compiled = minidynamo.compile(f, backend=counter, dynamic=True)
    compiled(torch.ones(3))
    compiled(torch.ones(5))
    assert len(counter.graphs) == 1
    with pytest.raises(RuntimeError):
        compiled(torch.ones(2))


def test_mark_unbacked_takes_every_size():
    def f(x):
        return x * 2

    minidynamo.reset()
    counter = CountingBackend()
    compiled = minidynamo.compile(f, backend=counter)
    x = torch.ones(3, 2)
    minidynamo.mark_unbacked(x, 0)
    compiled(x)
    for n in (0, 1, 2, 7):
        assert_same(f(torch.ones(n, 2)), compiled(torch.ones(n, 2)))
    assert len(counter.graphs) == 1


def joined_sizes(x, y, z):
    sizes = [part.shape[0] for part in (x, y, z)]
    return (
        x.new_ones(sum(sizes)),
        sum([*sizes, 1], 2),
        sum([*sizes, 0.5, *sizes]),
        sum(sizes[:2]),
    )


def test_a_sum_of_many_sizes_is_one_node():
    targets = []

    def backend(graph, inputs):
        targets.extend(node.target for node in graph.graph.nodes)
        return graph.forward

    compiled = minidynamo.compile(joined_sizes, backend=backend, fullgraph=True, dynamic=True)
    for sizes in ((3, 4, 5), (6, 2, 7)):
        args = [torch.ones(size) for size in sizes]
        assert_same(compiled(*args), joined_sizes(*args))
    # The other sums are made outside of the graph, which does not need them.
    assert targets.count(torch.sym_sum) == 1 and operator.add not in targets
    assert targets.count("output") == 1


def test_a_sum_of_what_is_not_numbers_stops_where_python_does():
    def total(x, rest):
        taken = []

        def numbers():
            for number in (x.shape[0], x.shape[0] + 1, x.shape[0] + 2, *rest):
                taken.append(number)
                yield number

        try:
            return sum(numbers()), taken
        except TypeError as error:
            return str(error), taken

    compiled = minidynamo.compile(total, backend="eager", fullgraph=True, dynamic=True)
    for rest in ((), (1,), (2.5, 1), (True,), ("text", 1), (None,)):
        assert_same(compiled(X, rest), total(X, rest))


OF_SOME = {
    "min": lambda found: found.min(),
    "max": lambda found: torch.cat([found, found * 2]).max(),
    "max of a dimension": lambda found: found.max(0)[1],
    "argmax": lambda found: found.argmax(),
    "amax": lambda found: found.amax(0),
    "element": lambda found: found[0],
    "select": lambda found: found.select(0, 0),
}


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("name", OF_SOME)
def test_what_has_no_result_where_data_leaves_nothing(name, backend):
    """Compiled it raises for nothing, and where the program catches that, eager goes on."""

    def found(x, least):
        return OF_SOME[name](torch.masked_select(x, x > least))

    def caught(x, least):
        try:
            return found(x, least)
        except (IndexError, RuntimeError):
            return x.sum()

    with minidynamo.config.patch(capture_dynamic_output_shape_ops=True):
        whole = minidynamo.compile(found, backend=backend, fullgraph=True)
        parted = minidynamo.compile(caught, backend=backend)
        for least in (0.0, 2.0, 4.0):
            assert_same(whole(X, least), found(X, least))
            assert_same(parted(X, least), caught(X, least))
        with pytest.raises((IndexError, RuntimeError)):
            whole(X, 9.0)
        assert_same(parted(X, 9.0), caught(X, 9.0))


NOT_FINITE = {
    "compared with itself": lambda y: (y != y, y == y),
    "compared with a sum": lambda y: (y + 1 > y, y * 0.0 == 0),
    "subtracted from itself": lambda y: torch.ones(2) + (y - y),
    "times zero": lambda y: torch.ones(2) * (y * 0.0),
}


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("kind", NOT_FINITE)
def test_floats_of_data_may_be_infinite_or_no_number(kind, backend):
    def fn(x):
        return NOT_FINITE[kind](x.item()), x + 1

    with minidynamo.config.patch(capture_scalar_outputs=True):
        compiled = minidynamo.compile(fn, backend=backend)
        for value in (2.0, torch.nan, torch.inf, -torch.inf):
            x = torch.tensor(value, dtype=torch.float64)
            torch.testing.assert_close(compiled(x), fn(x), equal_nan=True)
