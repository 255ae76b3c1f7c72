"""numpy arrays and functions: captured as operations on tensors, given back as numpy has them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from testing import CountingBackend, assert_same, check

import minidynamo

A = np.arange(6.0).reshape(2, 3) - 2
B = np.ones((3, 2), dtype=np.float32)
I = np.array([1, 0])  # noqa: E741

CAPTURED = """
x + 1 | x * x - 2.5 | 1 / (x + 9) | x @ b | -x | abs(x) | x > 0 | x == x | x ** 2 | x // 2 | x % 2
i + 1 | i * 2.5 | i / 2 | b * b | np.float32(3) * x | x * np.float64(2) | np.pi * x
np.sin(x) | np.sum(x) | np.sum(x, axis=0) | np.exp(x).max() | np.max(x) | np.argmax(x) | np.prod(x)
np.mean(x) | np.std(x) | np.var(x) | np.cumsum(x) | np.minimum(x, 0) | np.add(x, 1) | np.sqrt(x * x)
np.clip(x, 0, 1) | np.where(x > 0, x, 0) | np.isnan(x) | np.sign(x) | np.round(x) | np.all(x > 0)
x.sum() | x.mean(axis=1) | x.max() | x.argmax(axis=0) | x.clip(0, 1) | x.T | x.copy() | x.ravel()
x.reshape(3, 2) | x.flatten() | x.astype(np.float32) | x.astype("int64") | x.astype(int)
x.sum() + 1 | x[1].sum()
x[0] | x[:, 1] | x[0, 0] | x[i] | x[None] | x[..., -1] | x[0:1]
np.concatenate([x, x]) | np.stack([x, x], axis=1) | np.vstack([x, x]) | np.hstack((x, x))
np.split(x, 2) | np.tile(x, 2) | np.repeat(x, 2) | np.transpose(x) | np.expand_dims(x, 0)
np.squeeze(x[None]) | np.broadcast_to(x[0], (2, 3)) | np.diag(x) | np.trace(x) | np.sort(x)
np.zeros((2, 3)) + x | np.ones_like(x) | np.full((2,), 3.0) | np.arange(3) * x | np.eye(3) @ b
np.linspace(0, 1, 3) | np.array([1, 2, 3]) | np.array([[1.0, 2.0]]) | np.array(5)
np.full_like(x, 2) | np.abs(x)
np.dot(x, b) | np.outer(x[0], x[1]) | np.einsum("ij,jk->ik", x, b) | np.linalg.norm(x)
np.linalg.inv(x[:, :2] + np.eye(2) * 9) | np.fft.fft(x).real
x.shape, x.ndim, x.size, x.dtype, x.nbytes, x.itemsize, x.strides | len(x) | [r * 2 for r in x]
isinstance(x, np.ndarray) | type(x) is np.ndarray | x.dtype == np.float64
x.shape, str(x.dtype) | x + 1, "%s" % x.dtype | x + 1, f"{x.dtype} {i.dtype!r}"
torch.from_numpy(x) + 1 | torch.from_numpy(x).sin().numpy() | torch.tensor(x) | torch.as_tensor(x)
torch.as_tensor(x, dtype=torch.float32) | torch.as_tensor(x.sum()) | torch.ones(3).numpy() * x
torch.tensor(i, dtype=torch.int8)
T + x | T * b[:2, :1] | T @ b | T - i[:, None] | np.add(T, x) | np.exp(T) | np.isnan(T)
T ** x | (T > 0) & (x > 0) | T == x | K + b[0, :1]
T[i] | T[x > 0] | T[i, 1] | T.numpy(force=True) + x | torch.tensor([x, x])
torch.tensor([[b], [b]])
torch.tensor([b, b.astype(np.int64)]) | torch.as_tensor([i, i], dtype=torch.float16)
torch.tensor([np.int64(1), 2]) | torch.tensor([np.float64(2.5), 3.0])
torch.tensor([np.float16(1), 2])
torch.tensor([x[0, 0], x[1, 2]]) | torch.LongTensor([i[0], i[1]])
torch.tensor([[b[0, 0]], [i[1]]], dtype=torch.float64) | torch.tensor([x[0, 1]], dtype=torch.int64)
torch.as_tensor((b[0, 0], 2, True))
"""
T, K = torch.arange(6.0).reshape(2, 3) + 1, torch.tensor([1, 2])
EXPRESSIONS = [
    part.strip() for line in CAPTURED.split("\n") for part in line.split(" | ") if part
]


def function(text):
    names = {}
    exec(f"def fn(x, b, i):\n    return {text}", globals(), names)
    return names["fn"]


def assert_equal(want, got):
    assert type(want) is type(got), (type(want), type(got))
    if isinstance(want, (list, tuple)):
        assert len(want) == len(got)
        for pair in zip(want, got, strict=True):
            assert_equal(*pair)
    elif isinstance(want, (np.ndarray, np.generic)):
        assert (want.dtype, want.shape) == (got.dtype, got.shape)
        np.testing.assert_allclose(want, got, rtol=1e-5)
    elif isinstance(want, torch.Tensor):
        torch.testing.assert_close(want, got)
    else:
        assert want == got


def compare(fn, *args, graphs=1, backend=None, fullgraph=True):
    counter = CountingBackend()
    compiled = minidynamo.compile(fn, backend=backend or counter, fullgraph=fullgraph)
    for _ in range(2):
        mine, theirs = ([arg.copy() for arg in args] for _ in range(2))
        assert_equal(fn(*mine), compiled(*theirs))
        assert_equal(mine, theirs)
    if backend is None:
        assert len(counter.graphs) == graphs


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_expression(text):
    fn = function(text)
    counter = CountingBackend()
    compiled = minidynamo.compile(fn, backend=counter, fullgraph=True)
    for _ in range(2):
        assert_equal(fn(A.copy(), B.copy(), I.copy()), compiled(A.copy(), B.copy(), I.copy()))
    assert len(counter.graphs) <= 1  # none where nothing is computed


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_other_backends(backend):
    def fn(x, b):
        y = np.sin(x) @ b + x.sum()
        return y, y.sum(), np.where(y > 0, y, -y)

    compare(fn, A, B, backend=backend)


def test_writes_to_arrays_of_the_program():
    def fn(x, b):
        x[0] = 7
        x += 1
        x[:, 1] *= 3
        b[b > 0] = 2
        return x.sum(), x

    compare(fn, A, B)


def test_views_share_memory_after_the_call():
    def fn(x):
        return x[0], x.T

    compiled = minidynamo.compile(fn, backend="eager", fullgraph=True)
    x = A.copy()
    row, turned = compiled(x)
    x[0, 1] = 100
    assert row[1] == 100 and turned[1, 0] == 100


def test_arrays_know_nothing_of_tensors():
    """What owns the memory of an array: never a tensor, and numpy's answer where it is asked."""

    def made(x):
        y = x + 1
        return y.base is None, y.flags.owndata, x[:1].base is x, y

    counter = CountingBackend()
    compiled = minidynamo.compile(made, backend=counter)
    assert_equal(made(A), compiled(A))
    later = minidynamo.compile(lambda x: x * 2, backend=counter, fullgraph=True)(A)
    assert later.base is None or later.base.size == A.size
    assert later.flags.writeable and len(counter.graphs) == 1


def test_bytes_of_arrays_with_symbolic_sizes():
    def fn(x):
        return x + 1, x.nbytes, x.itemsize

    counter = CountingBackend()
    compiled = minidynamo.compile(fn, backend=counter, fullgraph=True)
    for rows in range(2, 6):
        assert_equal(fn(np.ones((rows, 3))), compiled(np.ones((rows, 3))))
    assert len(counter.graphs) == 2


def test_what_numpy_and_torch_do_otherwise_breaks():
    def fn(x):
        return np.linalg.svd(x), np.random.default_rng(3).random() < 2, x + 1

    compare(fn, A, graphs=None, fullgraph=False, backend="eager")

    def half(x):
        return np.sin(x > 0), x + 1

    compare(half, A, fullgraph=False, backend="eager")


STATISTICS = """
np.median(a) | np.median(a, axis=0) | np.median(a, -1, keepdims=True) | np.quantile(a, 0.3)
np.quantile(a, 0.3, axis=0) | np.quantile(a, [0.1, 0.5, 0.9], axis=-1) | np.quantile(a, 0, axis=1)
np.quantile(a, [0.1, 0.5], axis=0, keepdims=True) | np.quantile(a, [1.0, 0.7], keepdims=True)
np.percentile(a, 37) | np.percentile(a, [25, 50, 75]) | np.percentile(a, 99.9, axis=-1)
np.angle(a) | np.angle(a, deg=True) | np.angle(a - 0.25j, True) | np.heaviside(a + 0.0, 0.5)
np.heaviside(a * 0.5, a * 0.5)
"""
SPECIAL = np.array(
    [[-0.0, 0.1, 0.7, 3, -8], [np.nan, 0.3, -5, 2, 1], [np.inf, -np.inf, 4, 0, 9]]
)


@pytest.mark.parametrize("text", [t for t in STATISTICS.replace("\n", " | ").split(" | ") if t])
@pytest.mark.parametrize(
    "array", [SPECIAL, SPECIAL.astype("f4"), SPECIAL[2:0:-1, 2:].astype("i2")]
)
def test_statistics_and_signs(array, text):
    """The middle items and shares between items, bit for bit, of NaN, infinities and -0.0, too."""
    fn = eval(f"lambda a: {text}")  # noqa: S307
    got = minidynamo.compile(fn, backend="eager", fullgraph=True)(array.copy())
    with np.errstate(all="ignore"):
        want = fn(array.copy())
    assert (type(got), got.dtype, got.shape) == (type(want), want.dtype, want.shape)
    np.testing.assert_array_equal(got, want) if "angle" not in text else assert_equal(got, want)


def test_named_results_of_linear_algebra():
    def fn(b):
        made = np.linalg.qr(b)
        return made, made.R, np.linalg.slogdet(made.R), np.linalg.slogdet(made[1]).sign

    compare(fn, B + np.float32([[1, 2], [3, 4], [7, 3]]))


TEXTS = {
    "percent": lambda x: "%s" % x,
    "percent, repr": lambda x: "%r" % x[0],
    "of a number": lambda x: "%s" % x[0, 0],
    "of what is computed": lambda x: "%s" % (x * 2).sum(),
    "several": lambda x: "%s %.1f" % (x, x[0, 1]),
    "method": lambda x: (x + 1).__repr__(),
    "method of a number": lambda x: x[0, 1].__str__(),
    "format": lambda x: f"{x} {x[0, 0]:.2f} {x.sum()!r}",
}


@pytest.mark.parametrize("name", TEXTS)
def test_texts_show_the_numbers(name):
    compiled = minidynamo.compile(TEXTS[name], backend="eager")
    for x in (A, A + 1, B):
        assert compiled(x) == TEXTS[name](x)


def test_arrays_that_are_not_captured():
    frozen = A.copy()
    frozen.flags.writeable = False
    for array in (A[::-1], frozen, np.array(["a", "b"]), A.astype(">f8"), np.array([1, None])):

        def fn(x):
            return x.shape, x[0]

        compiled = minidynamo.compile(fn, backend="eager")
        assert fn(array)[0] == compiled(array)[0]
        assert np.array_equal(fn(array)[1], compiled(array)[1])


def test_errors_are_those_of_numpy():
    compiled = minidynamo.compile(lambda x, b: x + b, backend="eager")
    with pytest.raises(ValueError, match="could not be broadcast"):
        compiled(A, B)


def test_recompiles_for_shapes_dtypes_and_kinds():
    counter = CountingBackend()
    compiled = minidynamo.compile(lambda x: x * 2 + 1, backend=counter, dynamic=False)
    for array, graphs in ((A, 1), (A + 1, 1), (A[:1], 2), (A.astype(np.float32), 3), (A, 3)):
        assert_equal(array * 2 + 1, compiled(array))
        assert len(counter.graphs) == graphs
    assert torch.equal(compiled(torch.ones(2)), torch.ones(2) * 3)
    assert len(counter.graphs) == 4


def test_nested_lists_with_tensors():
    def fn(x):
        a = torch.tensor([x.sum(), 2.0])
        b = torch.tensor([[x[0], 1], [2, 3]], dtype=torch.float64)
        c = torch.as_tensor([x[:1], x[1:] * 2])
        return a, b, c, torch.tensor([x.sum() > 0, False])

    compiled = minidynamo.compile(fn, backend="eager", fullgraph=True)
    x = torch.arange(3.0)
    compiled_results = compiled(x[:2])
    want = (
        torch.tensor([1.0, 2.0]),
        torch.tensor([[0.0, 1.0], [2.0, 3.0]], dtype=torch.float64),
        torch.tensor([0.0, 2.0]),
        torch.tensor([True, False]),
    )
    for expected, found in zip(want, compiled_results, strict=True):
        torch.testing.assert_close(expected, found)


def test_numbers_of_arrays_without_an_index_are_refused_as_integers():
    def one(x):
        return torch.tensor(x[0], dtype=torch.int64)

    def several(x):
        return torch.LongTensor([x[0], 2])

    for fn in (one, several):
        compiled = minidynamo.compile(fn, backend="eager")
        for array in (np.ones(2, dtype=np.float32), np.ones(2, dtype=np.bool_)):
            with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
                compiled(array)
        assert_equal(fn(np.arange(3)), compiled(np.arange(3)))


def test_legacy_constructors():
    def fn(x):
        made = torch.FloatTensor([1, 2]), torch.LongTensor([[1], [2]]), torch.BoolTensor([True])
        return made, torch.Tensor(2, 3).shape, torch.DoubleTensor(2).dtype, x + 1

    compiled = minidynamo.compile(fn, backend="eager", fullgraph=True)
    found = compiled(torch.ones(2))
    assert [t.dtype for t in found[0]] == [torch.float32, torch.int64, torch.bool]
    assert found[0][1].tolist() == [[1], [2]]
    assert found[1:3] == (torch.Size([2, 3]), torch.float64)


def test_legacy_constructors_of_tensors_share_memory():
    def fn(x):
        y = x * 2
        shared, same = torch.Tensor(y), torch.FloatTensor(x)
        shared.add_(1)
        return y, shared, same, shared is y

    check(fn, torch.ones(2), graphs=1, fullgraph=True)
    check(fn, torch.ones(2, requires_grad=True), graphs=1, fullgraph=True)
    check(lambda x: torch.Tensor(x).mul_(3), torch.ones(2), graphs=1, fullgraph=True)
    check(lambda x: torch.DoubleTensor(x), torch.ones(2), graphs=None)
    for of_memory in (torch.ones(2), torch.ones(2, dtype=torch.int64)):
        check(lambda x: torch.Tensor(x) + 1, of_memory, graphs=1)


def test_a_tensor_that_requires_grad_has_an_array_where_gradients_are_off():
    def fn(x):
        with torch.no_grad():
            array = x.numpy()
            array *= 2
        return torch.from_numpy(array).sin(), x * 3

    def run(call):
        leaf = torch.arange(3.0, requires_grad=True)
        return call(leaf), leaf

    backend = CountingBackend()
    (sine, tripled), leaf = run(minidynamo.compile(fn, backend=backend))
    (want_sine, want_tripled), want_leaf = run(fn)
    assert torch.equal(sine, want_sine) and not sine.requires_grad
    assert torch.equal(tripled, want_tripled) and tripled.requires_grad
    assert torch.equal(leaf, want_leaf)
    with pytest.raises(RuntimeError, match="requires grad"):
        minidynamo.compile(lambda x: x.numpy(), backend=backend)(leaf)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_a_tensor_of_an_array_is_one_object(backend):
    """Stores to it are behind the graph break seen by what goes on."""

    def fn(array):
        leaf = torch.from_numpy(array)
        leaf.requires_grad = True
        (leaf * 2).sum().backward()
        return leaf.grad, leaf

    def twice(array):
        leaf = torch.from_numpy(array)
        twin = leaf
        minidynamo.graph_break()
        leaf.note = 5
        return twin.note, leaf is twin, [leaf, (twin,)]

    array = np.ones(3, "float32")
    for function in (fn, twice):
        compiled = minidynamo.compile(function, backend=backend)
        for _ in range(2):
            assert_same(function(array), compiled(array))
    found = compiled(array)[2]
    assert found[0] is found[1][0]


def test_from_dlpack_breaks_the_graph():
    """It reads memory, which fake tensors have none of."""

    def fn(x, y):
        return np.from_dlpack(x) + 1, y.sin()

    x, y = np.arange(6.0).reshape(2, 3), torch.randn(3)
    compiled = minidynamo.compile(fn, backend="eager")
    for array in (x, x[:, :2].copy()):
        found, expected = compiled(array, y), fn(array, y)
        assert (found[0] == expected[0]).all() and torch.equal(found[1], expected[1])
    keys = torch._C._dispatch_tls_local_exclude_set()
    compiled(x, y)
    assert torch._C._dispatch_tls_local_exclude_set() == keys
    with pytest.raises(minidynamo.exc.Unsupported):
        minidynamo.compile(fn, backend="eager", fullgraph=True)(x, y)


def test_arrays_filled_and_sorted_in_place():
    """They write through views, and give None."""

    def fn(array, number):
        given = (
            array[:1].fill(number),
            array.T.sort(),
            array[:, ::2].sort(axis=0, kind="stable"),
        )
        made = np.zeros((2, 3))
        made.fill(1.5)
        return given, made + array, array

    for dtype in ("float32", "int64", "bool", "uint8"):
        counter = CountingBackend()
        compiled = minidynamo.compile(fn, backend=counter, fullgraph=True)
        for number in (2, 2.75, 1):
            array = np.array([[3, 0, 2], [1, 5, 4]], dtype)
            twin = array.copy()
            found, expected = compiled(twin, number), fn(array, number)
            assert found[0] == expected[0] == (None, None, None)
            assert found[2] is twin and (twin == array).all()
            assert (found[1] == expected[1]).all() and found[1].dtype == expected[1].dtype
        assert 1 < len(counter.graphs) <= 3


def test_arrays_are_filled_with_plain_numbers_only():
    def fn(array, value):
        array.fill(value)
        return array + 1

    compiled = minidynamo.compile(fn, backend="eager")
    for value in (np.float32(3), np.array(4.0)):
        array, twin = np.ones(3), np.ones(3)
        assert (fn(array, value) == compiled(twin, value)).all() and (array == twin).all()
    for value in ("x", None):
        for function in (fn, compiled):
            with pytest.raises((ValueError, TypeError)) as caught:
                function(np.ones(3, "int64"), value)
            assert value is None or "invalid literal" in str(caught.value)


def test_a_number_of_numpy_is_not_filled():
    def program(number):
        doubled = number * 2
        doubled.fill(7)
        return doubled

    assert minidynamo.compile(program, backend="eager")(np.float32(2)) == program(np.float32(2))


def test_arrays_that_are_divided_in_place_by_tensors():
    def fn(t):
        array = divided = np.ones((2, 4), dtype=np.float32)
        divided /= t  # numpy leaves it to the tensor
        return divided + 1, array.sum() + t

    check(fn, torch.arange(1.0, 5.0), graphs=1)
