"""What memory numpy's results share with their arguments, and what they do not share."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from testing import CountingBackend

import minidynamo

X = np.arange(5.0)
M = np.arange(6.0).reshape(2, 3)
K = np.array([3, -4, 5])

# Programs of x, each traced whole: torch gives a view or the argument itself where numpy copies.
COPIES = """
x[0], x[1] = x[1], x[0]
a = x[0]; x[0] = 9; r = a
a = x[0]; x += 1; r = a, a + 1
a, b = x[:2]; x[0] = 7; r = a, b
a = x.reshape(1, 5)[0, 2]; x += 1; r = a
a = [v for v in x]; x += 1; r = a
a = x.take(1); x[1] = 7; r = a
y = x.astype(x.dtype); y[0] = 5; r = y
y = x.astype("float64"); y -= y.mean(); r = y
y = x.flatten(); x += 1; r = y
y = np.positive(x); x += 1; r = y
y = +x; y += 1; r = y
y = np.conj(x); x += 1; r = y
y = np.round(x.astype("int64")); z = y; z[0] = 7; r = y
r = np.asarray(x) is x, x.astype(float, copy=False) is x, np.array(x) is x, np.real(x) is x
y = np.asarray(x); y[0] = 4; r = y
y = x.reshape(5, 1).T.reshape(5); x += 1; r = y
""".strip().split("\n")

# numpy gives views where torch copies: in graphs as long as nothing is written.
VIEWS = """
r = x[::-1]
r = x[::-1] + 1, x[::-2]
r = np.flip(x), np.flip(x).flags.writeable
r = np.rot90(x[:4].reshape(2, 2)), np.fliplr(x[:4].reshape(2, 2))
r = np.diag(x[:4].reshape(2, 2))
r = np.broadcast_to(x, (2, 5))
r = [v + 1 for v in np.broadcast_arrays(x, x[:1])]
y = x * 2; r = y, y[::-1], y[::-1][1:], np.flip(y)[None]
""".strip().split("\n")
WRITTEN = """
v = x[::-1]; x[0] = 9; r = v
v = x[::-1]; v[0] = 9; r = v
v = np.flip(x); x += 1; r = v + 1
v = np.flip(x); v += 1; r = v
v = x[::-1][1:]; x[0] = 9; r = v * 2
v = np.diag(x[:4].reshape(2, 2)); x += 1; r = v
y = x * 2; v = y[::-1]; y[0] = 9; r = v, y
v = np.broadcast_to(x, (2, 5)); x[0] = 3; r = v + 1
t = torch.from_numpy(x); v = x[::-1]; t.add_(1); r = v + 0
t = torch.from_numpy(x.copy()[::-1].copy()); t.add_(1); r = t
v = x[::-1].reshape(5, 1); x[0] = 9; r = v
r = torch.as_tensor(x[::-1])
r = torch.tensor(np.flip(x))
r = torch.ones(5)[x.astype(int)[::-1]]
""".strip().split("\n")


def program(text):
    names = {"np": np, "torch": torch}
    lines = "".join(f"    {line.strip()}\n" for line in text.split(";"))
    exec(f"def fn(x):\n    r = None\n{lines}    return x, r", names)
    return names["fn"]


def shown(value):
    """Everything about a result that a program can see."""
    if isinstance(value, (tuple, list)):
        return [type(value), *map(shown, value)]
    if isinstance(value, np.ndarray):
        strides = value.strides if value.size > 1 else None
        rounded = str(
            (np.round(value + 0, 9) + 0).tolist()
        )  # without signs of zero, NaN being NaN
        return [value.dtype, rounded, strides, value.flags.writeable]
    return [type(value), str(value)]


def shares(x, result):
    return [np.may_share_memory(x, r) for r in result[1:] if isinstance(r, np.ndarray)]


def outcome(fn, x):
    x = x.copy()
    try:
        result = fn(x)
    except Exception as error:
        return [type(error), str(error), shown(x)]
    assert result[0] is x
    return [shown(result), shares(x, result)]


def compare(text, graphs, x=X, **options):
    counter = CountingBackend()
    options.setdefault("backend", counter)
    fn = program(text)
    compiled = minidynamo.compile(fn, **options)
    for argument in (
        x,
        x * 3,
        np.concatenate([x, x])[: len(x)],
        x[:4] if graphs is None else x,
    ):
        assert outcome(compiled, argument) == outcome(fn, argument), text
    assert graphs is None or len(counter.graphs) <= graphs
    return counter


@pytest.mark.parametrize("text", COPIES)
def test_copies(text):
    counter = compare(text, 1, fullgraph=True)
    assert len(counter.graphs) == 1
    compare(text, 1, backend="inductor", fullgraph=True)
    compare(text, 1, dynamic=True, fullgraph=True)


@pytest.mark.parametrize("text", VIEWS)
def test_views(text):
    compare(text, 1)
    compare(text, 1, dynamic=True)


@pytest.mark.parametrize("text", WRITTEN)
def test_views_that_are_written_to(text):
    compare(text, 2)
    compare(text, 2, backend="inductor")


def test_reversed_rows_are_read_in_one_graph():
    def fn(x):
        return (x[::-1] * 2 + np.flip(x, 0)).sum(axis=0)

    counter = CountingBackend()
    compiled = minidynamo.compile(fn, backend=counter, fullgraph=True)
    assert np.array_equal(compiled(M), fn(M)) and len(counter.graphs) == 1
    assert (
        np.array_equal(compiled(M[:1].copy()), fn(M[:1])) and len(counter.graphs) == 2
    )  # a new shape
    wider = M.astype(np.float32)
    assert np.array_equal(compiled(wider), fn(wider)) and len(counter.graphs) == 3


def test_the_argument_is_not_written_to():
    """y = x.astype(...) was x itself where x had that dtype."""

    def normalized(x):
        y = x.astype(np.float64)
        y -= y.mean(axis=0)
        y /= y.std(axis=0) + 1
        return y

    x = M.copy()
    compiled = minidynamo.compile(normalized, backend="eager", fullgraph=True)
    assert np.allclose(compiled(x), normalized(M)) and np.array_equal(x, M)


def test_sorting_by_swaps():
    def bubble(x):
        for end in range(len(x) - 1, 0, -1):
            for i in range(end):
                low, high = np.minimum(x[i], x[i + 1]), np.maximum(x[i], x[i + 1])
                x[i], x[i + 1] = low, high
        x[0], x[-1] = x[-1], x[0]
        return x

    x = np.array([3.0, 1.0, 2.0, -4.0])
    want, got = copy.copy(x), copy.copy(x)
    bubble(want)
    assert minidynamo.compile(bubble, backend="eager", fullgraph=True)(got) is got
    assert np.array_equal(want, got)


REFUSED = """
x // z | x % z | np.fmod(x, z) | divmod(x, z) | np.mod(x, 0) | x // 0 | 7 // z | x ** z
x ** np.abs(z) | np.power(x, z) | x // 2, x % 2, x ** 2, x // 2.5, x % 0.0
x.astype(complex) > 1 | np.minimum(x.astype(complex), 2) | np.sign(x + 1j) | np.ptp(x * 1j)
(x > 0) - 1.5 | np.subtract(x > 0, z > 0) | np.fft.ifft(x) | np.fft.ihfft(x) | np.fix(x / 2)
np.sign(x * np.nan), np.sign(x * 1.0), np.sign(x) | np.heaviside(x * np.nan, 2.0)
np.modf(x / 2) | np.angle(x * -0.0) | np.histogram(x, 10) | np.unique(x / z) | (x * 0j) ** 0
np.std(x * 1j, dtype="float32"), (x / 2).var(dtype="int64") | np.around(x * 13, decimals=-1)
np.heaviside(x, 1.5) | (x + 1j) ** 2 | (x + 1j) ** z
np.isscalar(x), np.isscalar(x[0]), np.isscalar(x.sum()) | (x * 1j).conj() | (x + 1j).conj().imag
"""
EXPRESSIONS = [
    text.strip() for line in REFUSED.strip().split("\n") for text in line.split(" | ")
]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("text", EXPRESSIONS)
def test_what_torch_refuses_or_numpy_does(text):
    fn = program(f"z = np.array([0, 2, -1]); r = {text}")
    compiled = minidynamo.compile(fn, backend="eager")
    for x in (K, K.astype(np.int8), np.abs(K).astype(np.uint8)):
        assert outcome(compiled, x) == outcome(fn, x)


OVERLAPS = """
y = x.reshape(5, 1); y[:] = x[:1]; r = y.copy()
x[1:] = x[:-1]; r = x.sum()
x += x[:1]; r = x * 2
x *= x; r = x * 1
m = np.arange(4.0).reshape(2, 2); m += m.T; m[[1, 0]] = m; r = m
m = np.arange(4.0).reshape(2, 2); m[:] = m.T; r = m, m.T.copy(), np.copy(m.T), m.T + 1
k = np.array([1, 2, 0]); k[k] = k; r = k
k = np.array([1, 2, 0]); k[k,] = k; k[(k[1:],)] = 7; r = k
n = 3; n += x; a = x.sum(); a += 2; a //= 2; r = n, a
""".strip().split("\n")


@pytest.mark.parametrize("text", OVERLAPS)
def test_what_is_written_is_read_before(text):
    counter = compare(text, 1, fullgraph=True)
    assert len(counter.graphs) == 1
    compare(text, 1, backend="inductor", fullgraph=True)


def test_scalars_are_broadcast_to_arrays_that_refuse_writes():
    def fn(x):
        total = x.sum()
        wide = np.broadcast_to(total, (2,))
        total += 2
        return total, wide, wide.max(), x.imag

    compiled = minidynamo.compile(fn, backend="eager", fullgraph=True)
    for x in (X, X * 2, M):
        assert shown(compiled(x)) == shown(fn(x))


@pytest.mark.parametrize("kind", [np.float32, np.int16, np.uint64, np.float64, int])
def test_nests_of_numbers_have_the_dtype_of_the_numbers(kind):
    """torch._numpy takes numpy's numbers for Python's."""

    def fn(a, b):
        pairs = np.array([a, b]), np.asarray(((a,), (b,))), np.array([a, 1])
        return *pairs, np.array([np.int8(3), np.int16(4)]), np.array([a, b], dtype="float64")

    compiled = minidynamo.compile(fn, backend="eager")
    for a, b in ((kind(2), kind(3)), (kind(4), kind(5)), (np.float16(1), kind(1))):
        assert shown(compiled(a, b)) == shown(fn(a, b))


LOOPS = """
r = []
for i, v in enumerate(x): x[(i + 1) % 5] = v * 2; r.append(v)
it = iter(x); a = next(it); x[1] = 44; r = a, next(it), [*it], next(it, None), type(it).__name__
r = [a + b for a, b in zip(x, x[::-1])], max(x), sum(x), sorted(x, reverse=True)
r = [row.sum() for row in x.reshape(5, 1)], list(x[:2]), 3.0 in x
it = iter(x); next(it); x[2] = 8; r = it
it = iter(x); next(it); r = it.__length_hint__()
it = iter(x); [*it]; r = it
"""


@pytest.mark.parametrize("text", LOOPS.replace("r = []\nfor", "for").strip().split("\n"))
@pytest.mark.parametrize("breaks", [False, True])
def test_iterators_read_when_it_is_their_turn(text, breaks):
    lines = text.split("; ")
    if text.startswith("for"):
        head, first = lines[0].split(": ")
        lines = ["r = []", f"{head}:", *(f"    {line}" for line in (first, *lines[1:]))]
    names = {"np": np, "md": minidynamo}
    middle = "    md.graph_break()\n" if breaks else ""
    body = "".join(f"    {line}\n" for line in lines)
    exec(f"def fn(x):\n    r = None\n{body}{middle}    return x, r\n", names)
    fn, counter = names["fn"], CountingBackend()

    def listed(x):
        x, r = fn(x)
        return x, list(r) if hasattr(r, "__next__") else r

    compiled_fn = minidynamo.compile(fn, backend=counter)

    def compiled(x):
        x, r = compiled_fn(x)
        return x, list(r) if hasattr(r, "__next__") else r

    for x in (X, X + 0.5, M.reshape(-1)[:5]):
        assert outcome(compiled, x) == outcome(listed, x)
    assert len(counter.graphs) <= 2


# -- tensors of arrays -----------------------------------------------------------------------------


def agree(fn, *args, **options):
    """What a call gives, and leaves of its arguments, is what it is in eager, twice."""
    compiled = minidynamo.compile(fn, backend="eager", **options)
    for _ in range(2):
        expected, given = copy.deepcopy(args), copy.deepcopy(args)
        assert repr((fn(*expected), expected)) == repr((compiled(*given), given))


def shape_of_one(x, a):
    one, two = torch.from_numpy(a), torch.from_numpy(a)
    one.unsqueeze_(0)
    return one.shape, two.shape, a.shape, one is two, one.add_(1), a + 1


def shape_of_its_tensor(x, a):
    made = torch.from_numpy(x.numpy())
    made.unsqueeze_(0)
    return made.shape, x.shape, made is x, made + 1


def attributes(x, a):
    made = torch.from_numpy(x.numpy())
    made.label = 3
    return hasattr(x, "label"), made.label, made * 2


def gradients(x, a):
    made = torch.from_numpy(x.numpy())
    made.grad = torch.ones_like(made)
    return x.grad, made.grad


def memory(x, a):
    made = torch.as_tensor(a)
    made.mul_(3)
    a += 1
    of_tensor = torch.from_numpy(x.numpy())
    of_tensor[0] = 9.0
    return made, x, of_tensor


def same_dtype(x, a):
    one, two = torch.as_tensor(a, dtype=torch.float64), torch.as_tensor(a, dtype=torch.float32)
    one.unsqueeze_(0).add_(1)
    return one, two, a


def asarray(x, a):
    shared, copied = torch.asarray(a), torch.asarray(a, copy=True)
    other = torch.asarray(a, dtype=torch.float32)
    return shared.mul_(2), copied, other, a, shared is torch.asarray(a)


@pytest.mark.parametrize(
    "fn",
    [shape_of_one, shape_of_its_tensor, attributes, gradients, memory, same_dtype, asarray],
)
def test_tensors_of_arrays_are_others(fn):
    agree(fn, torch.tensor([1.0, 2.0]), np.ones(2), fullgraph=True)


def test_requiring_grad_of_a_tensor_of_an_array():
    def fn(x):
        made = torch.from_numpy(x.numpy())
        made.requires_grad_()
        return x.requires_grad, made.requires_grad, x * 2

    agree(fn, torch.tensor([1.0, 2.0]))


def reshaped(x):
    array = x.numpy()
    x.unsqueeze_(0)
    return array.shape, array + 1, x.shape


def with_other_data(x):
    array = x.numpy()
    x.data = torch.zeros(3)
    return array, array + 1, x


@pytest.mark.parametrize("fn", [reshaped, with_other_data])
def test_an_array_stays_what_it_was_when_its_tensor_changes(fn):
    agree(fn, torch.tensor([1.0, 2.0]))
    with pytest.raises(minidynamo.exc.Unsupported, match="another shape or other memory"):
        minidynamo.compile(fn, backend="eager", fullgraph=True)(torch.tensor([1.0, 2.0]))
