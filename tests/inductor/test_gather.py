"""Reads at computed positions: values, fusion with what follows, and what eager raises."""

import pytest
import torch
import torch.nn.functional as F
from inductor_testing import check, compiled

import minidynamo
from minidynamo import events

X = torch.randn(6, 5, 40)
PLACES = torch.tensor([0, 5, -6, 3, -1, 2, 2])
J = torch.tensor([[4], [0], [-5]])
W = torch.randn(7, 33)
P = torch.tensor([6, 0, 3, 3])
P2 = P.view(2, 2)
MASK = torch.tensor([True, False, True, True])

READS = {
    "index": (lambda x, i: x[i] + 1, X, PLACES),
    "index, second": (lambda x, i: x[:, i % 5].sin(), X, PLACES),
    "index, last": (lambda x, i: x[..., i] * 2, X, PLACES),
    "two indices": (lambda x, i, j: x[i, j].sin(), X, PLACES, J),
    "apart": (lambda x, i, j: x[j, :, i], X, PLACES, J),
    "int32": (lambda x, i: x[i.int()], X, PLACES),
    "strided source": (lambda x, i: x.transpose(0, 2)[i], X, PLACES),
    "strided index": (lambda x, i: x[i[::2]], X, PLACES),
    "of a sum": (lambda x, i: (x + 1).sum(-1)[i], X, PLACES),
    "bool source": (lambda x, i: (x > 0)[i], X, PLACES),
    "bfloat16": (lambda x, i: x.bfloat16()[i] * 2, X, PLACES),
    "float64": (lambda x, i: x.double()[:, i % 5], X, PLACES),
    "reduced": (lambda x, i: x[i].sum(0), X, PLACES),
    "softmax of rows": (lambda x, i: torch.softmax(x[i], -1), X, PLACES),
    "gather": (lambda x, p: torch.gather(x, 0, p[:, None].expand(4, 33)), W, P),
    "gather columns": (lambda x, p: torch.gather(x, 1, p[None, :].expand(3, 4)) * 2, W, P),
    "gather narrower": (lambda x, p: x.gather(1, p2(p)), W, P),
    "take_along_dim": (lambda x, p: torch.take_along_dim(x, p[:, None], 0), W, P),
    "embedding": (lambda w, p: F.embedding(p, w).sum(-1), W, P),
    "embedding of a matrix": (lambda w, p: F.embedding(p, w) * 2, W, P2),
    "embedding int32": (lambda w, p: F.embedding(p.int(), w), W, P),
    "padding_idx": (lambda w, p: F.embedding(p, w, padding_idx=3), W, P),
    "index_select": (lambda x, p: torch.index_select(x, 0, p) + 1, W, P),
    "index_select columns": (lambda x, p: torch.index_select(x, 1, p), W, P),
    "take": (lambda x, p: torch.take(x.t(), p * 30 - 100), W, P),
    "nearest": (lambda x, i: F.interpolate(x[None], scale_factor=2), X, PLACES),
    "bilinear": (lambda x, i: F.interpolate(x[None], (9, 17), mode="bilinear"), X, PLACES),
    "corners": (
        lambda x, i: F.interpolate(x[None], (9, 17), mode="bilinear", align_corners=True),
        X,
        PLACES,
    ),
    "linear": (lambda x, i: F.interpolate(x, 17, mode="linear"), X, PLACES),
    "reflect": (lambda x, i: F.pad(x, (3, 2, 1, 4), mode="reflect"), X, PLACES),
    "replicate": (lambda x, i: F.pad(x, (3, 2), mode="replicate"), X, PLACES),
    "circular": (lambda x, i: F.pad(x, (3, 2), mode="circular"), X, PLACES),
}


def p2(p):
    return p[:, None].expand(4, 2)


@pytest.mark.parametrize("name", READS)
def test_reads(name):
    fn, *args = READS[name]
    check(fn, *args, externs=0, rtol=1e-5, atol=1e-5)


def test_a_read_is_fused_with_what_follows():
    check(lambda x, i: (x[i] + 1).relu(), X, PLACES, kernels=1, externs=0)
    check(lambda w, p: F.layer_norm(F.embedding(p, w) + 1, (33,)), W, P, kernels=1, externs=0)


@pytest.mark.parametrize("dynamic", [False, True])
def test_positions_that_lie_the_other_way_round(dynamic):
    """The loop takes one element at a time, and still reads along the wrong symbol."""

    def read(x, places, column):
        return x.gather(0, places) + column

    args = torch.randn(921, 64), torch.randint(64, (21, 32)).t(), torch.randn(32, 1)
    run = minidynamo.compile(read, fullgraph=True, dynamic=dynamic)
    torch.testing.assert_close(run(*args), read(*args), rtol=0, atol=0)
    with pytest.raises((IndexError, RuntimeError), match="out of"):
        run(args[0], args[1] + 10**6, args[2])


def test_masks_and_empty_sources_are_left_to_eager():
    check(lambda x, i: x[:0][:, i % 5], X, PLACES)
    check(lambda x, i: x[i[:0]], X, PLACES, externs=0)


BAD = {
    "index": (lambda x, i: x[i], [9]),
    "negative": (lambda x, i: x[i] + 1, [1, 2, -8, 3] * 20),
    "second dimension": (lambda x, i: x[:, i], [33]),
    "second index": (lambda x, i: x[i * 0, i], [33]),
    "embedding": (lambda x, i: F.embedding(i, x), [0, 7]),
    "negative row": (lambda x, i: F.embedding(i, x), [-1]),
    "index_select": (lambda x, i: torch.index_select(x, 0, i), [3, -2]),
    "gather": (lambda x, i: torch.gather(x, 1, i[None]), [40]),
    "take": (lambda x, i: torch.take(x, i), [231]),
    # The value does not depend on the place.
    "constant": (lambda x, i: x[0, 0] + torch.zeros(4)[i], [9]),
    "row of a constant": (lambda x, i: F.embedding(i, x.new_ones(7, 2)), [0, 7]),
    "constant, summed": (lambda x, i: (torch.zeros(4)[i] + x[0, 0]).sum(), [0] * 90 + [9]),
    "constant, in columns": (lambda x, i: (torch.ones(4)[i[:, None]] + x[0]).sum(0), [1, 9]),
    "constant, softmax": (lambda x, i: (torch.ones(4)[i] + x[:1, :1]).softmax(-1), [3, 1, -5]),
    "constant, extreme": (
        lambda x, i: (torch.ones(4)[i] + x[:, :1]).argmax(-1),
        [0] * 20 + [4],
    ),
    "constant, scanned": (
        lambda x, i: (torch.ones(4)[i] + x[:, :1]).cumsum(-1),
        [0] * 20 + [4],
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_index_raises_what_eager_raises(name):
    fn, indices = BAD[name]
    bad = torch.tensor(indices)
    run = compiled(fn, W, torch.zeros_like(bad))
    with pytest.raises((IndexError, RuntimeError)) as expected:
        fn(W, bad)
    with pytest.raises(type(expected.value)) as actual:
        run(W, bad)
    assert str(actual.value) == str(expected.value)
    run(W, torch.zeros_like(bad))  # and the kernel can be called again


def test_an_index_that_is_masked_is_not_checked():
    def fn(x, i):
        return F.pad(x[i], (2, 2), value=1.0)

    check(fn, torch.randn(5), torch.tensor([4, 0, 2]), externs=0)


def test_a_bad_column_is_found_where_panels_are_walked_down():
    x, indices = torch.randn(64, 400), torch.zeros(400, dtype=torch.int64)
    run = compiled(lambda x, i: (torch.ones(4)[i] * x).sum(0), x, indices)
    torch.testing.assert_close(run(x, indices)[0], x.sum(0))
    indices[399] = 4
    with pytest.raises(IndexError, match="index 4 is out of bounds"):
        run(x, indices)


def test_bad_indices_in_many_rows_in_parallel():
    weight = torch.randn(50, 64)
    indices = torch.randint(0, 50, (4000,))
    run = compiled(lambda w, i: F.embedding(i, w), weight, indices)
    indices[1234] = 50
    with pytest.raises(IndexError, match="index out of range in self"):
        run(weight, indices)


@pytest.mark.parametrize(
    "name", ["index", "apart", "gather", "embedding", "bilinear", "reflect"]
)
def test_in_triton(name):
    pytest.importorskip("triton")
    fn, *args = READS[name]
    expected = fn(*args)
    (actual,) = compiled(fn, *args, cpu_backend="triton")(*args)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


def test_a_bad_index_in_triton():
    pytest.importorskip("triton")
    run = compiled(lambda x, i: x[i], W, P, cpu_backend="triton")
    with pytest.raises(Exception, match="index 7 is out of bounds for dimension 0 with size 7"):
        run(W, P + 1)


def program(fn, *args):
    """The plan of a function that is held to eager, as text."""
    texts = []
    with events.subscribe(lambda event: texts.append(event.text), events.OutputCodeEvent):
        check(fn, *args)
    return "\n".join(texts)


def test_few_reads_of_a_large_value_leave_it_without_memory():
    def loss(x, target):
        return torch.log_softmax(x, -1).gather(1, target[:, None])

    x, target = torch.randn(8, 3000), torch.randint(3000, (8,))
    x[3, 5] = float("inf")
    x[4] = float("-inf")
    assert "empty((8, 3000)" not in program(loss, x, target)


def test_parts_of_a_value_are_computed_where_they_are_read():
    """As long as each is read once: `unbind`, `chunk` and columns take a value apart."""

    def columns(x):
        y = torch.exp(x)
        return y[:, 0] * y[:, 1] - y[:, 2]

    def chunks(x):
        a, b = torch.exp(x).chunk(2, 1)
        return a * torch.sigmoid(b)

    def unbound(x):
        a, b, c = torch.exp(x).unbind(1)
        return torch.stack([a - b, b * c, a], 1).sum(0), a

    assert "empty((300, 3)" not in program(columns, torch.randn(300, 3))
    assert "empty((300, 64)" not in program(chunks, torch.randn(300, 64))
    assert "empty((300, 3)" in program(unbound, torch.randn(300, 3))  # one is returned: a view


def test_broadcast_results_of_reductions_are_kept_small():
    """What a step adds to a large tensor is computed anew by the next one."""

    def steps(x, w):
        state = x[:, 0]
        for t in range(1, 4):
            state = torch.logsumexp(state[:, :, None] + w + x[:, t, None], 1)
        return state.logsumexp(-1)

    assert "empty((32, 20, 20)" not in program(
        steps, torch.randn(32, 4, 20), torch.randn(20, 20)
    )


def test_rows_found_by_index_are_walked_along():
    """Each row lies side by side, whatever row it is."""

    def scores(x, i, w):
        return (x[i] * w).sum(1)

    text = program(scores, torch.randn(50, 64), torch.randint(50, (300,)), torch.randn(64))
    assert "gather<" not in text
    assert "fold<Add>" in text


@pytest.mark.parametrize("n", [5, 16, 40])
def test_relative_shift(n):
    """Rows of one length read as rows of another, along which a remainder jumps once."""

    def scores(x):
        turned = F.pad(x, (1, 0)).view(3, n + 1, n)[:, 1:].reshape(3, n, n)
        return (turned + x).softmax(-1), turned.sum(-1)

    assert "wrapped(" in program(scores, torch.randn(3, n, n))


def test_many_reads_of_a_value_find_it_in_memory():
    def rows(x, i):
        return torch.exp(torch.sin(x))[i]

    assert "empty((16, 64)" in program(rows, torch.randn(16, 64), torch.randint(16, (200,)))


@pytest.mark.parametrize("bad", [-1, 5, 1 << 40])
@pytest.mark.parametrize("dynamic", [False, True])
def test_one_hot_of_a_class_that_does_not_exist(bad, dynamic):
    run = minidynamo.compile(lambda x: F.one_hot(x, 5).float() * 2, dynamic=dynamic)
    x = torch.tensor([[0, 4, 2], [1, 3, 4]])
    assert run(x).equal(F.one_hot(x, num_classes=5).float() * 2)
    x[1, 1] = bad
    with pytest.raises(RuntimeError, match="Class values must be"):
        run(x)
    with pytest.raises(RuntimeError, match="Class values must be"):
        F.one_hot(x, 5)


def test_one_hot_beside_gradients():
    def loss(x, w, classes):
        return (F.one_hot(classes, num_classes=7) * (x @ w)).sum()

    x, w, classes = torch.randn(4, 3), torch.randn(3, 7, requires_grad=True), P % 7
    loss(x, w, classes).backward()
    expected, w.grad = w.grad, None
    minidynamo.compile(loss, fullgraph=True)(x, w, classes).backward()
    torch.testing.assert_close(w.grad, expected)
    with pytest.raises(RuntimeError, match="Class values must be"):
        minidynamo.compile(loss)(x, w, classes + 7)


def test_triton_reads_one_element_at_a_computed_position():
    pytest.importorskip("triton")

    def fn(x, i):
        return x[i.remainder(4)] + 1, x.index_select(0, i).sum(), x.scatter_add(0, i, x[:1])

    args = torch.randn(4), torch.tensor([2])
    for actual, expected in zip(
        compiled(fn, *args, cpu_backend="triton")(*args), fn(*args), strict=True
    ):
        torch.testing.assert_close(actual, expected)
