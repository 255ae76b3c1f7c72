"""What becomes symbolic, what the guards are, and what they say when they fail."""

import pytest
import torch
import torch.nn.functional as F
from testing import CountingBackend, assert_same, check_recompiles
from torch import nn

import minidynamo
from minidynamo import config


def compiled_with(fn, **options):
    minidynamo.reset()
    counter = CountingBackend()
    return minidynamo.compile(fn, backend=counter, **options), counter


def failures_of(fn, calls, **options):
    """The texts of the failed guards, one list a recompilation."""
    found = []
    compiled, _ = compiled_with(fn, **options)
    with minidynamo.events.subscribe(found.append, minidynamo.events.RecompileEvent):
        for args in calls:
            compiled(*args)
    return [event.failures for event in found]


def double(x):
    return x * 2


# -- automatic ------------------------------------------------------------------------------------


def test_the_first_compilation_is_static():
    compiled, counter = compiled_with(double)
    compiled(torch.ones(3))
    placeholders = counter.graphs[0].graph.find_nodes(op="placeholder")
    assert [type(node.meta["example_value"].shape[0]) for node in placeholders] == [int]


def test_symbols_are_inputs_of_the_graph():
    compiled, counter = compiled_with(lambda x: x * x.shape[0], dynamic=True)
    compiled(torch.ones(3))
    first, second = counter.graphs[0].graph.find_nodes(op="placeholder")
    assert isinstance(first.meta["example_value"], torch.SymInt)
    assert isinstance(second.meta["example_value"], torch.Tensor)


def test_only_what_changed_is_symbolic():
    compiled, counter = compiled_with(double)
    compiled(torch.ones(3, 4))
    compiled(torch.ones(5, 4))
    shape = counter.graphs[1].graph.find_nodes(op="placeholder")[-1].meta["example_value"].shape
    assert isinstance(shape[0], torch.SymInt) and shape[1] == 4


@pytest.mark.parametrize("sparse", [False, True])
def test_sizes_of_leaves_with_gradients(sparse):
    """The fake of the gradient has symbols of its own; which sizes may follow is a guard on the
    leaf, so that it holds without a gradient, too.
    """

    def fn(p, x):
        return p + x if p.shape[0] > 3 else p - x

    compiled, counter = compiled_with(fn, dynamic=True)
    calls = [(4, True), (6, True), (9, False), (2, True), (3, False)]
    for rows, has_grad in calls:
        leaf, x = torch.randn(rows, 5).requires_grad_(), torch.randn(rows, 5)
        if has_grad:
            leaf.grad = x.to_sparse() if sparse else x.clone()
        assert_same(compiled(leaf, x), fn(leaf, x))
    if not sparse or torch.__version__ >= "2.13":  # before, sparse fakes fix their sizes
        assert len(counter.graphs) == 2


def test_another_number_of_dimensions_compiles_anew():
    calls = [(torch.ones(3),), (torch.ones(3, 3),), (torch.ones(4, 5),), (torch.ones(7),)]
    check_recompiles(double, calls, graphs=3)


def test_a_stride_that_changed():
    x = torch.ones(4, 8)
    calls = [(x,), (x[:, :4].clone(),), (torch.ones(8, 4).t(),), (torch.ones(6, 4).t(),)]
    check_recompiles(double, calls, graphs=3)


def test_strides_alone():
    base = torch.arange(256.0)
    calls = [(base.as_strided((3, 3), (step, 1)),) for step in (8, 16, 24, 32)]
    check_recompiles(double, calls, graphs=2)


def test_zero_and_one_are_constants():
    calls = [(torch.ones(n),) for n in (3, 4, 1, 0, 5)]
    check_recompiles(double, calls, graphs=4)


def test_equal_sizes_are_one_symbol_when_dynamic():
    compiled, counter = compiled_with(lambda x, y: x * 2 + y.sum(), dynamic=True)
    compiled(torch.ones(3), torch.ones(3))
    compiled(torch.ones(4), torch.ones(4))
    assert len(counter.graphs) == 1
    compiled(torch.ones(4), torch.ones(5))
    assert len(counter.graphs) == 2


def test_automatic_can_be_switched_off():
    with config.patch(automatic_dynamic_shapes=False):
        check_recompiles(double, [(torch.ones(n),) for n in (3, 4, 5)], graphs=3)


def test_sizes_can_be_symbolic_by_default():
    with config.patch(assume_static_by_default=False):
        check_recompiles(double, [(torch.ones(n),) for n in (3, 4, 5)], graphs=1)


def test_reset_forgets_what_changed():
    check_recompiles(double, [(torch.ones(n),) for n in (3, 4)], graphs=2)
    compiled, counter = compiled_with(double)
    compiled(torch.ones(9))
    placeholder = counter.graphs[0].graph.find_nodes(op="placeholder")[0]
    assert type(placeholder.meta["example_value"].shape[0]) is int


def test_numbers_can_be_constants():
    with config.patch(specialize_int=True):
        check_recompiles(lambda x, n: x * n, [(torch.ones(2), n) for n in (3, 4, 5)], graphs=3)
    with config.patch(specialize_float=True):
        check_recompiles(
            lambda x, n: x * n, [(torch.ones(2), n / 2) for n in (3, 4, 5)], graphs=3
        )


def test_bool_arguments_are_constants():
    check_recompiles(
        lambda x, b: x + b, [(torch.ones(2), b) for b in (True, False, True)], graphs=2
    )


def test_infinite_floats_are_constants():
    calls = [(torch.ones(2), s) for s in (0.5, float("inf"), float("-inf"))]
    check_recompiles(lambda x, s: x * s, calls, graphs=3)


def test_a_huge_int_is_a_constant():
    calls = [(torch.ones(2), n) for n in (3, 2**70, 2**71)]
    check_recompiles(lambda x, n: x + (n > 5), calls, graphs=3)


def test_int_and_float_are_different():
    calls = [(torch.ones(2), n) for n in (2, 3, 4, 2.5, 3.5)]
    check_recompiles(lambda x, n: x * n, calls, graphs=3)


def test_numbers_in_containers_and_objects():
    class Holder:
        def __init__(self, n):
            self.n = n

    check_recompiles(
        lambda x, d: x * d["n"], [(torch.ones(2), {"n": n}) for n in (3, 4, 5, 6)], graphs=2
    )
    check_recompiles(
        lambda x, pair: x * pair[0], [(torch.ones(2), (n,)) for n in (3, 4, 5, 6)], graphs=2
    )
    check_recompiles(
        lambda x, h: x * h.n, [(torch.ones(2), Holder(n)) for n in (3, 4, 5, 6)], graphs=2
    )


def test_parameters_and_module_ints_are_constants():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))
            self.factor = 2

        def forward(self, x):
            return x * self.factor + self.weight.sum()

    module = Scaled()
    compiled, counter = compiled_with(module)
    for factor in (2, 3, 4):
        module.factor = factor
        assert_same(module(torch.ones(2)), compiled(torch.ones(2)))
    assert len(counter.graphs) == 3


def test_ints_of_modules_can_be_symbolic():
    class Scaled(nn.Module):
        factor = 2

        def forward(self, x):
            return x * self.factor

    module = Scaled()
    with config.patch(allow_unspec_int_on_nn_module=True):
        compiled, counter = compiled_with(module)
        for factor in (2, 3, 4, 5):
            module.factor = factor
            assert_same(module(torch.ones(2)), compiled(torch.ones(2)))
    assert len(counter.graphs) == 2


class _Counting(nn.Module):
    """Counts its calls, as metrics and schedules do."""

    def __init__(self):
        super().__init__()
        self.calls = 0
        self.scale = 2

    def forward(self, x):
        self.calls += 1
        if self.calls > 5:
            x = x + 1
        return x * self.scale / self.calls


def test_what_a_module_counts_is_symbolic():
    """Each call was compiled anew, until the limit left the module to eager."""
    module, eager = (
        nn.Sequential(_Counting(), _Counting()),
        nn.Sequential(_Counting(), _Counting()),
    )
    compiled, counter = compiled_with(module)
    for _ in range(12):
        assert_same(eager(torch.ones(2)), compiled(torch.ones(2)))
        assert [m.calls for m in module] == [m.calls for m in eager]
        assert all(type(m.calls) is int for m in module)
    assert len(counter.graphs) == 3  # a constant, the two sides of the branch


def test_what_a_module_counts_behind_a_graph_break_is_symbolic():
    class Counting(_Counting):
        def forward(self, x):
            calls = self.calls
            y = x * calls
            minidynamo.graph_break()
            self.calls = calls + 1
            return y + self.calls

    module, eager = Counting(), Counting()
    compiled, counter = compiled_with(module)
    for _ in range(12):
        assert_same(eager(torch.ones(2)), compiled(torch.ones(2)))
    assert module.calls == 12
    assert len(counter.graphs) == 4


def test_a_counter_asked_for_its_value_is_a_constant():
    class Counting(_Counting):
        def forward(self, x):
            self.calls += 1
            return x + {self.calls: 1}[self.calls]

    module = Counting()
    compiled, counter = compiled_with(module)
    for _ in range(4):
        assert_same(torch.ones(2) + 1, compiled(torch.ones(2)))
    assert module.calls == 4 and len(counter.graphs) == 4
    module.calls = 2
    assert_same(torch.ones(2) + 1, compiled(torch.ones(2)))
    assert module.calls == 3 and len(counter.graphs) == 4


def test_why_a_counter_is_compiled_again():
    module = _Counting()
    calls = [(torch.ones(2),)] * 3
    (failures,) = failures_of(module, calls)
    assert "it becomes symbolic now" in failures[0]


def test_ints_that_traced_code_does_not_assign_stay_constants():
    module = _Counting()
    compiled, counter = compiled_with(module)
    for scale in (2, 3, 4):
        module.scale = scale
        module.calls = 0
        assert_same(torch.ones(2) * scale, compiled(torch.ones(2)))
    assert len(counter.graphs) == 3


def test_a_stored_size_is_a_real_int():
    class Log:
        pass

    log, seen = Log(), []

    def f(x):
        log.last = x.shape[0]
        seen.append(x.shape[0] * 2)
        return x + 1

    compiled, _ = compiled_with(f, dynamic=True)
    for n in (3, 4):
        compiled(torch.ones(n))
        assert type(log.last) is int and log.last == n
        assert type(seen[-1]) is int and seen[-1] == 2 * n


def test_across_a_graph_break():
    def f(x):
        n = x.shape[0]
        y = x * n
        torch._dynamo.graph_break() if False else minidynamo.graph_break()
        return y + n, torch.zeros(n), n

    check_recompiles(f, [(torch.ones(n),) for n in (3, 4, 5, 6)], graphs=4)


def test_uses_that_need_the_value():
    def f(x):
        n = x.shape[0]
        return x * 2, {n: 1}, f"{n} rows", [i for i in range(n)], "a" * n

    check_recompiles(f, [(torch.ones(n),) for n in (3, 4, 5)], graphs=3)


def test_gradients():
    def f(x, w):
        return (x @ w).relu().sum(0) / x.shape[0]

    for backend in ("eager", "aot_eager"):
        minidynamo.reset()
        compiled = minidynamo.compile(f, backend=backend)
        for n in (3, 4, 5, 6):
            x, w = torch.randn(n, 4, requires_grad=True), torch.randn(4, 2, requires_grad=True)
            expected = torch.autograd.grad(f(x, w).sum(), [x, w])
            actual = torch.autograd.grad(compiled(x, w).sum(), [x, w])
            torch.testing.assert_close(actual, expected)


# -- other guards make no more compilations --------------------------------------------------------


def test_dtype_and_requires_grad_compile_once_each():
    x = torch.ones(3)
    calls = [(x,), (torch.ones(4),), (torch.ones(5),), (x.double(),), (torch.ones(6).double(),)]
    check_recompiles(double, calls, graphs=3)


def test_grad_mode_compiles_once_each():
    compiled, counter = compiled_with(double)
    for enabled in (True, False, True, False):
        with torch.set_grad_enabled(enabled):
            for n in (3, 4, 5):
                compiled(torch.ones(n))
    assert len(counter.graphs) == 3


# -- messages -------------------------------------------------------------------------------------


def test_a_failed_size_names_the_dimension_and_the_remedy():
    ((text,),) = failures_of(double, [(torch.ones(3, 2),), (torch.ones(4, 2),)])
    assert "size mismatch at index 0. expected 3, actual 4" in text and "needed at" in text


def test_a_failed_condition_names_the_expression():
    def f(x):
        return x * 2 if x.shape[0] > 5 else x * 3

    ((text,),) = failures_of(f, [(torch.ones(7),), (torch.ones(4),)], dynamic=True)
    assert "x.size(0)" in text and "test_dynamic_guards.py" in text and "is 4" in text


def test_a_specialised_size_names_the_line():
    def f(x):
        return x * 2, list(range(x.shape[0]))

    ((text,),) = failures_of(f, [(torch.ones(7),), (torch.ones(4),)], dynamic=True)
    assert "x.size(0) == 7" in text and "is 4" in text


def test_a_failure_says_what_would_help():
    ((text,),) = failures_of(double, [(torch.ones(3),), (torch.ones(4),)], dynamic=False)
    assert "dynamic=False keeps sizes and numbers constant" in text

    def f(x):
        return x * 2, list(range(x.shape[0]))

    ((text,),) = failures_of(f, [(torch.ones(7),), (torch.ones(4),)], dynamic=True)
    assert "needs the value itself" in text


def test_error_on_recompile():
    compiled, _ = compiled_with(double)
    compiled(torch.ones(3))
    with config.patch(error_on_recompile=True), pytest.raises(minidynamo.exc.RecompileError):
        compiled(torch.ones(4))


# -- marks ----------------------------------------------------------------------------------------


def test_mark_dynamic():
    compiled, counter = compiled_with(double)
    x = torch.ones(3, 2)
    minidynamo.mark_dynamic(x, 0)
    compiled(x)
    compiled(torch.ones(5, 2))
    assert len(counter.graphs) == 1


def test_torchs_own_marks_count():
    compiled, counter = compiled_with(double)
    x = torch.ones(3, 2)
    torch._dynamo.mark_dynamic(x, 0)
    compiled(x)
    compiled(torch.ones(5, 2))
    assert len(counter.graphs) == 1


def test_mark_dynamic_with_a_range():
    def f(x):
        return x + 1 if x.shape[0] <= 64 else x - 1

    compiled, counter = compiled_with(f)
    x = torch.ones(8)
    minidynamo.mark_dynamic(x, 0, min=4, max=32)
    compiled(x)
    compiled(torch.ones(32))
    assert len(counter.graphs) == 1
    assert_same(f(torch.ones(33)), compiled(torch.ones(33)))
    assert len(counter.graphs) == 2


def test_a_marked_dimension_that_is_specialised_is_an_error():
    def f(x):
        return x * 2, list(range(x.shape[0]))

    compiled, _ = compiled_with(f)
    x = torch.ones(3)
    minidynamo.mark_dynamic(x, 0)
    with pytest.raises(minidynamo.exc.UserError) as caught:
        compiled(x)
    text = str(caught.value)
    assert "x.size(0) = 3 was marked dynamic" in text and "specialized to 3" in text


def test_a_marked_size_of_one_is_a_constant():
    compiled, counter = compiled_with(double)
    for size in (1, 1, 0, 0):
        x = torch.ones(size)
        minidynamo.mark_dynamic(x, 0)
        assert torch.equal(compiled(x), double(x))
    assert len(counter.graphs) == 2


def test_a_narrowed_range_is_an_error():
    def f(x):
        return x * 2 if x.shape[0] < 16 else x

    compiled, _ = compiled_with(f)
    x = torch.ones(8)
    minidynamo.mark_dynamic(x, 0, min=2, max=32)
    with pytest.raises(minidynamo.exc.UserError, match="has to be between 2 and 15"):
        compiled(x)


def test_maybe_mark_dynamic_may_be_specialised():
    def f(x):
        return x * 2, list(range(x.shape[0]))

    compiled, counter = compiled_with(f)
    x = torch.ones(3)
    minidynamo.maybe_mark_dynamic(x, 0)
    assert_same(f(x), compiled(x))
    assert_same(f(torch.ones(4)), compiled(torch.ones(4)))
    assert len(counter.graphs) == 2


def test_mark_static():
    compiled, counter = compiled_with(double)
    for n in (3, 4, 5):
        x = torch.ones(n)
        minidynamo.mark_static(x, 0)
        compiled(x)
    assert len(counter.graphs) == 3


def test_marked_static_beside_dynamic_true():
    compiled, counter = compiled_with(double, dynamic=True)
    for n in (3, 4):
        x = torch.ones(n, 2 * n)
        minidynamo.mark_static(x, 0)
        compiled(x)
    assert len(counter.graphs) == 2


# -- a view and the tensor that it is of ----------------------------------------------------------


def both(view, whole):
    return view.sin().sum() + whole.cos().sum()


VIEWS = [torch.t, lambda x: x[0], lambda x: x[1:, 2:], lambda x: x.view(-1)]


def graphs_of(fn, calls, **options):
    """How many graphs the calls need. Their arguments are not copied: copies are no views."""
    compiled, counter = compiled_with(fn, **options)
    for args in calls:
        assert_same(fn(*args), compiled(*args))
    return len(counter.graphs)


def wholes():
    return [torch.randn(size, 4).clone() for size in (2, 3, 5, 7)]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_may_come_before_its_base(view, dynamic):
    graphs = graphs_of(both, [(view(x), x) for x in wholes()], dynamic=dynamic)
    assert graphs <= (1 if dynamic and view is torch.t else 2)


@pytest.mark.parametrize("view", VIEWS)
def test_the_base_of_a_view_is_not_guarded(view):
    graphs = graphs_of(lambda x: x * 2, [(view(x),) for x in wholes()])
    assert graphs == (1 if view is VIEWS[1] else 2)


def test_a_view_whose_base_has_other_dimensions_next_time():
    views = [torch.randn(3, 4).clone().t(), torch.randn(24).clone().view(4, 6)]
    others = [torch.randn(4, 7), torch.randn(2, 4, 8).clone()[1]]
    assert graphs_of(lambda x: x * 2, [(x,) for x in (*views, *others)]) == 2


def test_the_base_of_a_view_may_be_marked():
    compiled, counter = compiled_with(both)
    for size in (3, 5):
        x = torch.randn(size, 4).clone()
        minidynamo.mark_dynamic(x, 0)
        assert_same(both(x[0], x), compiled(x[0], x))
    assert len(counter.graphs) == 1


# -- truths of sizes as flags ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: (x * 2).sum(0, keepdim=x.shape[1] > 6),
        lambda x: (x * 2).sort(descending=x.shape[0] > 6)[0],
        lambda x: F.avg_pool1d(x * 2, 2, ceil_mode=x.shape[1] > 6),
        lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=x.dim() > 1 and len(x) > 6),
    ],
)
def test_what_is_asked_of_a_size_is_a_flag_of_an_operator(fn):
    calls = [(torch.arange(1.0, n * n + n + 1).view(n, n + 1),) for n in (3, 7, 9, 5, 11)]
    check_recompiles(fn, calls, graphs=2, dynamic=True)


def test_a_flag_that_data_decides_ends_the_graph():
    def f(x):
        n = x.sum().item()
        return (x * 2).sum(0, keepdim=n > 4)

    compiled, counter = compiled_with(f)
    with config.patch(capture_scalar_outputs=True):
        for start in (0, 3):
            x = torch.arange(start, start + 3)
            assert_same(f(x), compiled(x))
    assert counter.graphs
