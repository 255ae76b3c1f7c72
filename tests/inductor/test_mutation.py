"""Inputs that a graph writes to: results, order, version counters, number of kernels."""

import pytest
import torch
from inductor_testing import CLOSE

import minidynamo
from minidynamo.inductor import metrics
from minidynamo.inductor.fusion import is_injective, join
from minidynamo.inductor.loop_body import BodyBuilder
from minidynamo.inductor.passes.foreach import single
from minidynamo.inductor.symbolic import Symbol, loop_symbol, symbol_expr
from minidynamo.testing import CompileCounterWithBackend

aten = torch.ops.aten


def check(fn, *args, kernels=None, externs=0, dynamic=False):
    """Results and arguments after the call are those of eager; version counters move."""
    expected = [
        a.clone() if isinstance(a, torch.Tensor) else [t.clone() for t in a] for a in args
    ]
    want = fn(*expected)
    metrics.reset()
    run = minidynamo.compile(fn, fullgraph=True, dynamic=dynamic)
    before = [a._version for a in args if isinstance(a, torch.Tensor)]
    base = [a._version for a in expected if isinstance(a, torch.Tensor)]
    got = run(*args)
    after = [a._version for a in args if isinstance(a, torch.Tensor)]
    torch.testing.assert_close(got, want, **CLOSE)
    torch.testing.assert_close(args, tuple(expected), **CLOSE)
    for old, new, moved in zip(before, after, base, strict=True):
        assert (new > old) == (moved > 0)
    if kernels is not None:
        assert (metrics.generated_kernel_count, metrics.extern_calls) == (kernels, externs)


def test_in_place_is_one_kernel():
    def step(x, y):
        x.mul_(2).add_(y)
        return x * y

    check(step, torch.randn(5, 7), torch.randn(5, 7), kernels=1)


def test_adam_is_one_kernel():
    def step(p, d, m, v):
        torch._foreach_lerp_(m, d, 0.1)
        torch._foreach_mul_(v, 0.999)
        torch._foreach_addcmul_(v, d, d, 0.001)
        below = torch._foreach_sqrt(v)
        torch._foreach_add_(below, 1e-8)
        torch._foreach_addcdiv_(p, m, below, -0.001)

    lists = [[torch.rand(6, 9) for _ in range(3)] for _ in range(4)]
    check(step, *lists, kernels=1)
    assert metrics.kernel_calls == 3


def swap(a, b):
    old = a.clone()
    a.copy_(b)
    b.copy_(old)


def reverse(a, b):
    a.copy_(a.flip(0))


def shift(a, b):
    a[1:] = a[:-1].clone()
    return a.sum()


def read_before_and_after(a, b):
    before = (a * b).sum(-1)
    a.add_(1)
    return before, (a * b).sum(-1), a.t() + b.t()


def normalise(a, b):
    a.sub_(a.mean(0)).div_(b.abs().sum(1, keepdim=True))


def matmul_of_old(a, b):
    product = a @ b.t()
    a.zero_()
    return product, a + 1


def view_of_input(a, b):
    a.t()[0].add_(b[:, 0])
    return a[0, 3:7] * 2


@pytest.mark.parametrize(
    "fn",
    [swap, reverse, shift, read_before_and_after, normalise, matmul_of_old, view_of_input],
)
@pytest.mark.parametrize("layout", ["rows", "columns"])
def test_order_of_reads_and_writes(fn, layout):
    a, b = torch.randn(8, 40), torch.randn(8, 40)
    if layout == "columns":
        a = torch.randn(40, 8).t()
    check(fn, a, b)


def test_two_arguments_on_one_memory():
    def step(a, b):
        a.add_(1)
        return b * 2

    def run(call):
        base = torch.arange(6.0)
        return call(base[:4], base[2:]), base

    torch.testing.assert_close(run(minidynamo.compile(step)), run(step))


def test_running_statistics():
    model = torch.nn.BatchNorm2d(3)
    other = torch.nn.BatchNorm2d(3)
    run = minidynamo.compile(model)
    for _ in range(3):
        x = torch.randn(4, 3, 5, 5)
        torch.testing.assert_close(run(x), other(x), **CLOSE)
    torch.testing.assert_close(dict(model.state_dict()), dict(other.state_dict()), **CLOSE)
    assert model.num_batches_tracked == 3


@pytest.mark.parametrize(
    "op, plain",
    [
        (aten._foreach_add.List, aten.add.Tensor),
        (aten._foreach_maximum.Scalar, aten.clamp_min.default),
        (aten._foreach_pow.ScalarAndTensor, aten.pow.Scalar),
        (aten._foreach_addcdiv.Tensor, None),
        (aten._foreach_norm.Scalar, None),
        (aten._foreach_add_.List, None),
        (aten.add.Tensor, None),
    ],
)
def test_what_an_operator_on_lists_stands_for(op, plain):
    assert single(op) is plain


def test_operators_on_lists():
    def run(a, b):
        out = torch._foreach_add(a, b, alpha=2)
        out = torch._foreach_sub(out, [1.0, 2.0])
        out = torch._foreach_pow(torch._foreach_abs(out), 1.5)
        out = torch._foreach_addcdiv(out, a, torch._foreach_exp(b), [0.5, 0.25])
        out = torch._foreach_minimum(torch._foreach_maximum(out, -2.0), [2.0, 3.0])
        return torch._foreach_div(out, torch.tensor(3.0)), torch._foreach_norm(a)

    lists = [[torch.randn(3, 5), torch.randn(7)] for _ in range(2)]
    torch.testing.assert_close(minidynamo.compile(run)(*lists), run(*lists), **CLOSE)


def body(*steps, size=8):
    """A body over x0 with loads and stores (op, buffer, factor, offset)."""
    x = symbol_expr(loop_symbol("x0", size))
    b = BodyBuilder([loop_symbol("x0", size)])
    value = b.constant(1.0, torch.float32)
    for op, buffer, factor, offset in steps:
        if op == "load":
            value = b.load(buffer, x * factor + offset, torch.float32)
        else:
            getattr(b, op)(buffer, x * factor + offset, value, torch.float32)
    return b.finish()


def test_a_store_joins_reads_of_the_same_element_only():
    reader = body(("load", "a", 1, 0), ("store", "out", 1, 0))
    assert join(reader, body(("load", "b", 1, 0), ("store", "a", 1, 0))) is not None
    shifted = body(("load", "a", 1, 1), ("store", "out", 1, 0))
    writer = body(("load", "b", 1, 0), ("store", "a", 1, 0))
    assert join(shifted, writer) is None


@pytest.mark.parametrize("first, second", [("store", "scatter"), ("scatter", "store")])
def test_scatters_do_not_join_stores(first, second):
    writer = body(("load", "x", 1, 0), (first, "a", 1, 0))
    assert join(writer, body(("load", "x", 1, 0), (second, "a", 1, 0))) is None


def overwritten_after_a_read(x, y):
    old = x.sin()
    x.copy_(y)
    return x + old


def overwritten_by_out(x, y):
    old = x.sin()
    torch.add(y, 1, out=x)
    return x + old


def two_steps(x, y):
    x.mul_(0.9).add_(y)
    y.add_(x, alpha=-0.1)


def changed_and_normalized(x, y):
    x.t().add_(y.t())
    return x.sum(0, keepdim=True) + x


def changed_and_softmax(x, y):
    x.add_(y)
    weights = x.softmax(-1)
    x.clamp_(-1, 1)
    return weights, x.sum(-1, keepdim=True) * x


@pytest.mark.parametrize("fn", [changed_and_normalized, changed_and_softmax])
@pytest.mark.parametrize("dynamic", [False, True])
def test_rows_that_are_walked_twice_are_not_overwritten_before(fn, dynamic):
    check(fn, torch.randn(5, 7), torch.randn(5, 7), dynamic=dynamic)


SYMBOLIC = [overwritten_after_a_read, overwritten_by_out, two_steps]


@pytest.mark.parametrize("fn", SYMBOLIC, ids=lambda fn: fn.__name__)
def test_sizes_may_be_symbolic(fn):
    check(fn, torch.randn(5, 7), torch.randn(5, 7), kernels=1, dynamic=True)


def test_what_an_operator_overwrites_is_read_before():
    """An input with holes is written by a call: what was not computed yet reads the old values."""

    def fn(x, y):
        old = x.sin()
        x.copy_(y)
        return x + old

    for dynamic in (False, True):
        memory = torch.randn(5, 9)
        check(fn, memory[:, :4], torch.randn(5, 4), dynamic=dynamic)


@pytest.fixture(scope="module")
def writers():
    """Operators without an autograd kernel, which would move the version counters."""
    library = torch.library.Library("mutation_tests", "DEF")
    library.define("one(Tensor(a!) x) -> ()")
    library.define("several(Tensor(a!)[] xs, Tensor y) -> Tensor")

    def one(x):
        x.mul_(3)

    def several(xs, y):
        for x in xs:
            x.add_(y)
        return y * 2

    library.impl("one", one, "CompositeExplicitAutograd")
    library.impl("several", several, "CompositeExplicitAutograd")
    yield torch.ops.mutation_tests
    library._destroy()


def test_operators_that_write_to_arguments(writers):
    def one(x, y):
        old = x + y
        writers.one.default(x)
        return old, x * y

    def part(x, y):
        writers.one(x[1:])
        return x * y

    def some(x, y):
        return writers.several([x, y], x + 1) + x

    for fn in (one, part, some):
        for dynamic in (False, True):
            minidynamo.reset()
            check(fn, torch.ones(4), torch.randn(4), dynamic=dynamic)


def around_a_write(op, x):
    before = x * 2 + 1
    op(x)
    return before + x.cos(), x * 3


def equal_calls_around_writes(op, x):
    y = x + 1
    a = y * 2
    op(y)
    b = y * 2
    op(y)
    return a, b, y * 2


def parts_of_an_input(op, x):
    op(x[1:])
    op(x.t()[0])
    return x * 2


def a_part_of_a_value(op, x):
    y = x.relu()
    op(y[:, 1:3])
    return y.sum(1), x.relu()


def a_bias(op, x):
    bias, product = x[0] + 1, x @ x.t()
    op(bias)
    return product + bias


def columns_first(op, x):
    y = x.t().contiguous().t() + 1
    op(y)
    return y + x


AROUND = [
    (around_a_write, 2, 1),
    (equal_calls_around_writes, 3, 2),
    (parts_of_an_input, 2, 2),
    (a_part_of_a_value, 2, 1),
    (a_bias, 2, 2),
    (columns_first, 2, 1),
]


@pytest.mark.parametrize(
    "fn, kernels, externs", AROUND, ids=lambda v: getattr(v, "__name__", "")
)
def test_what_is_around_an_operator_that_writes_is_compiled(writers, fn, kernels, externs):
    x = torch.randn(20, 20)
    check(lambda x: fn(writers.one, x), x, kernels=kernels, externs=externs)


def test_a_written_input_is_not_copied(writers):
    """The operator gets the input itself, and nothing is written back."""
    pointers = []

    def seen(x):
        pointers.append(x.data_ptr())
        x.mul_(3)

    library = torch.library.Library("mutation_tests", "FRAGMENT")
    library.define("seen(Tensor(a!) x) -> ()")
    library.impl("seen", seen, "CPU")
    x = torch.randn(8)
    run = minidynamo.compile(lambda x: torch.ops.mutation_tests.seen(x), fullgraph=True)
    metrics.reset()
    run(x)
    assert pointers == [x.data_ptr()]
    assert metrics.generated_kernel_count == 0
    library._destroy()


def test_arguments_that_an_operator_writes_to_are_different_ones(writers):
    def fn(x, y):
        writers.one(x)
        return y * 2

    run = minidynamo.compile(fn, fullgraph=True)
    x = torch.ones(3)
    assert run(x, torch.ones(3)).tolist() == [2, 2, 2] and x.tolist() == [3, 3, 3]
    assert run(x, x).tolist() == [18, 18, 18]
    base = torch.ones(4)
    assert run(base[:3], base[1:]).tolist() == [6, 6, 2]


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_each_view_that_an_operator_writes_to_moves_the_counter_of_the_whole(writers, backend):
    def fn(x, y):
        writers.several([x[0], x[1]], y)
        return x * 2

    run = minidynamo.compile(fn, backend=backend, fullgraph=True)
    moved = []
    for function in (fn, run):
        x, y = torch.ones(2, 3), torch.ones(3)
        assert function(x, y).tolist() == [[4.0] * 3] * 2
        moved.append(x._version)
    assert moved == [2, 2]


def test_injective():
    x, y = loop_symbol("x0", 4), loop_symbol("x1", 3)
    a, b = symbol_expr(x), symbol_expr(y)
    assert is_injective(a * 3 + b, (x, y)) and is_injective(b * 5 + a, (x, y))
    assert not is_injective(a + b, (x, y)) and not is_injective(a * 3, (x, y))
    assert not is_injective((a // 2) * 3 + b, (x, y))
    rows, columns = (symbol_expr(Symbol(name)) for name in ("s0", "s1"))
    x, y = loop_symbol("x0", rows), loop_symbol("x1", columns)
    a, b = symbol_expr(x), symbol_expr(y)
    assert is_injective(a * columns + b + rows, (x, y))
    assert not is_injective(a * columns + b, (x,) * 2 + (y,))
    assert not is_injective(a * rows + b, (x, y))


def scattered_into(cache, places, value):
    cache.index_copy_(1, places, value)
    return cache @ value.transpose(-1, -2)


def scattered_and_read_before(cache, places, value):
    before = cache.sin()
    cache.index_copy_(1, places, value)
    return before + cache


def scattered_of_itself(cache, places, value):
    cache[:, places] = cache[:, places + 1] + value
    return value * 2


def scattered_twice(cache, places, value):
    cache.index_copy_(1, places, value)
    cache.scatter_add_(1, places[None, :, None].expand(value.shape), value)
    return cache.clone()


def scattered_and_returned(cache, places, value):
    return cache.index_put_((places,), value[0, 0]), value + 1


@pytest.mark.parametrize(
    "fn, copies",
    [
        (scattered_into, 0),
        (scattered_and_read_before, None),
        (scattered_of_itself, None),
        (scattered_twice, None),
        (scattered_and_returned, 0),
    ],
)
def test_scatters_into_inputs(fn, copies):
    minidynamo.reset()
    kernels = []
    compiled = minidynamo.compile(fn)
    with minidynamo.events.subscribe(kernels.append, minidynamo.events.KernelEvent):
        for _ in range(3):
            cache, places, value = (
                torch.randn(4, 4, 8),
                torch.tensor([2, 1]),
                torch.randn(4, 2, 8),
            )
            other = cache.clone()
            expected = fn(other, places, value)
            torch.testing.assert_close(compiled(cache, places, value), expected)
            assert torch.equal(cache, other)
    if copies is not None:
        assert sum("aten.copy_" in event.source for event in kernels) == copies


def test_a_bad_position_changes_nothing_of_an_input():
    minidynamo.reset()
    compiled = minidynamo.compile(scattered_into)
    cache, value = torch.randn(2, 4, 8), torch.randn(2, 2, 8)
    compiled(cache, torch.tensor([0, 3]), value)
    before = cache.clone()
    with pytest.raises(IndexError):
        compiled(cache, torch.tensor([9, 11]), value)
    assert torch.equal(cache, before)
    torch.testing.assert_close(
        compiled(cache, torch.tensor([1, 2]), value),
        scattered_into(before, torch.tensor([1, 2]), value),
    )


_LIBRARY = torch.library.Library("minidynamo_mutation", "DEF")
_LIBRARY.define("set_(Tensor(a!) x, Tensor y) -> ()")
_LIBRARY.impl("set_", lambda x, y: (x.copy_(y), None)[1], "CompositeExplicitAutograd")


def test_operator_that_writes_comes_after_what_reads_the_old_value():
    def step(x):
        before = x.sin()
        torch.ops.minidynamo_mutation.set_(x, x + 1)
        return before, x.sin()

    x, y = torch.ones(3), torch.ones(3)
    run = minidynamo.compile(step, fullgraph=True)
    torch.testing.assert_close((run(x), x), (step(y), y), **CLOSE)


def set_parts(x):
    n = x.shape[0]
    before, y = x.sin(), x * 2
    torch.ops.minidynamo_mutation.set_(x, x + 1)
    torch.ops.minidynamo_mutation.set_(x[1], x[0])
    torch.ops.minidynamo_mutation.set_(y[1:], x[:-1])
    torch.ops.minidynamo_mutation.set_(y[: n // 2].t(), x[n - n // 2 :].t())
    return before, y, x.cos()


def test_operator_that_writes_to_symbolic_sizes():
    minidynamo.reset()
    metrics.reset()
    run = minidynamo.compile(set_parts, fullgraph=True, dynamic=True)
    for n in (4, 5, 9):
        x = torch.randn(n, 3)
        y = x.clone()
        torch.testing.assert_close((run(x), x), (set_parts(y), y), **CLOSE)
    assert metrics.uncompiled_graphs == 0


@pytest.mark.parametrize("value", [1, 2.5, True])
def test_copy_of_a_number(value):
    check(lambda x: x.copy_(value), torch.rand(3))


def old_values(x):
    first = x.clone()
    x.copy_(x + 1)
    y = x.sin()
    x.copy_(x * 2)
    return first, y, y[0], x * 1


@pytest.mark.parametrize("layout", ["strided", "transposed", "contiguous"])
def test_old_values_of_an_input_with_holes(layout):
    def make():
        whole = torch.arange(1.0, 49.0).view(6, 8)
        views = {"strided": whole[::2, ::2], "transposed": whole.t(), "contiguous": whole}
        return views[layout]

    minidynamo.reset()
    x, y = make(), make()
    torch.testing.assert_close(minidynamo.compile(old_values)(x), old_values(y))
    assert torch.equal(x, y) and x._version == y._version


def test_operators_whose_names_end_like_methods_in_place_write_nothing():
    metrics.reset()
    check(lambda x: ((x | x[:1]) & x.T[:1], x ^ x.T), torch.randint(0, 9, (5, 5)))
    assert metrics.uncompiled_graphs == 0


def through_windows(x):
    windows = x.unfold(1, 1, 5)
    windows.add_(windows)
    return x * 1


def through_parts_of_windows(x):
    y = x + 1
    y.view(-1).unfold(dimension=0, size=8, step=16)[1:, ::2].fill_(7)
    return y


def into_windows(x):
    torch.sin(x[:, ::3], out=x.unfold(1, 1, 3)[..., 0])
    return x + 1


def through_one_of_several(x):
    first, *_ = x.unfold(1, 1, 4).unbind(1)
    first.add_(1)
    return x * 1


def through_chunks(x):
    y = x + 1
    y.unfold(1, 1, 3).chunk(2, 1)[1].mul_(2)
    return y


def beside_windows(x):
    windows = x.unfold(1, 2, 3)
    x.mul_(2)
    return windows + 1


def through_dense_windows(x):
    x.unfold(1, 2, 2).mul_(3)
    return x + 1


def before_a_rest(x):
    y = x + 1
    y.unfold(1, 4, 4).mul_(3)
    return y


def through_overlapping_rows(x):
    y = x + 1
    rows = y.as_strided((3, 4), (2, 1))
    rows[1] = 7
    return y, rows


def through_a_view_of_overlapping_rows(x):
    rows = x.as_strided((3, 4), (2, 1), 1)
    other = rows.view_as(rows).T
    other[0].mul_(2)
    return rows * 1, x + 1


def through_rows_apart(x):
    y = x + 1
    y.as_strided((3, 4), (4, 1))[1] = 7
    return y


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    ("fn", "is_compiled"),
    [
        (through_overlapping_rows, False),
        (through_a_view_of_overlapping_rows, False),
        (through_rows_apart, True),
        (before_a_rest, False),
        (through_windows, False),
        (through_parts_of_windows, False),
        (into_windows, False),
        (through_one_of_several, False),
        (through_chunks, False),
        (beside_windows, True),
        (through_dense_windows, True),
    ],
)
def test_writes_through_windows(fn, is_compiled, dynamic):
    """Functionalization makes zeros of what lies between windows and behind the last, and gives
    what several of them have in common old values.
    """
    check(fn, torch.arange(1.0, 25.0).reshape(4, 6), dynamic=dynamic)
    assert metrics.uncompiled_graphs == (not is_compiled)


def test_windows_that_are_read_have_no_guard_on_what_they_leave_out():
    counter = CompileCounterWithBackend("inductor")
    compiled = minidynamo.compile(
        lambda x: x.unfold(0, 3, 2) * 2, backend=counter, dynamic=True
    )
    for size in (6, 7, 8, 9):
        x = torch.randn(size, 3, requires_grad=True)
        compiled(x).sum().backward()
        torch.testing.assert_close(x.grad.sum(1), 6.0 * torch.tensor(_times(size)))
    assert counter.frame_count == 1


def _times(size):
    """In how many windows of 3, 2 apart, each element is."""
    starts = range(0, size - 2, 2)
    return [sum(start <= i < start + 3 for start in starts) for i in range(size)]


@pytest.mark.parametrize("offset", [0, 1])
def test_what_is_written_last_is_computed_before_its_operands_are_overwritten(offset):
    """A strided input gets its new value by a call, before dense ones by kernels."""

    def fn(x, y):
        total = y.exp().sum()
        part = x[1:]
        y.addcmul_(part, total)
        part.atan2_(total)
        return total

    def handed_on(x, y):
        y.copy_(x)
        x.mul_(2)

    for step, size in ((fn, 4), (handed_on, 5)):
        x, y = torch.randn(5, 2)[:, offset], torch.randn(size)
        check(step, x, y, externs=None)


@pytest.mark.parametrize("dynamic", [False, True])
def test_views_of_another_dtype_share_memory_that_was_written(dynamic):
    def fn(x):
        y = x * 2
        bits = y.view(torch.int32)
        y.relu_()
        return bits, y, bits.view(-1)[1:]

    x = torch.randn(2, 3)
    (bits, y, rest), expected = (
        minidynamo.compile(fn, fullgraph=True, dynamic=dynamic)(x),
        fn(x),
    )
    torch.testing.assert_close((bits, y, rest), expected)
    y.fill_(3)
    assert torch.equal(bits, y.view(torch.int32)) and torch.equal(rest, bits.view(-1)[1:])
