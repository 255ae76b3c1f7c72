"""Programs and test suites written for torch.compile: torch's spellings, flags and test helpers."""

import unittest.mock
import warnings

import pytest
import torch

import minidynamo
from minidynamo import config, exc
from minidynamo.testing import (
    AotEagerAndRecordGraphs,
    CompileCounter,
    CompileCounterWithBackend,
    EagerAndRecordGraphs,
    InductorAndRecordGraphs,
    rand_strided,
    same,
    unsupported,
)
from minidynamo.utils import counters


@pytest.fixture
def x():
    return torch.linspace(-1, 1, 6)


def breaking(x):
    x = x + 1
    minidynamo.graph_break()
    return x * 2


# -- compile and optimize --------------------------------------------------------------------------


def test_optimize(x):
    counter = CompileCounter()
    assert torch.equal(minidynamo.optimize(counter)(breaking)(x), breaking(x))
    assert (counter.frame_count, counter.op_count) == (2, 2)
    with pytest.raises(exc.Unsupported):
        minidynamo.optimize(counter, nopython=True)(breaking)(x)
    with pytest.raises(exc.Unsupported):
        minidynamo.optimize_assert(counter)(breaking)(x)
    assert minidynamo.optimize(disable=True)(breaking) is breaking


def test_optimize_decorates_and_knows_dynamic():
    counter = CompileCounter()

    @minidynamo.optimize(counter, dynamic=True)
    def double(x):
        return x * 2

    for size in (3, 4, 5):
        assert torch.equal(double(torch.ones(size)), torch.full((size,), 2.0))
    assert counter.frame_count == 1


def test_guard_fail_fn_sees_every_version_that_does_not_fit():
    failures = []
    fast = minidynamo.optimize("eager", guard_fail_fn=failures.append, dynamic=False)(torch.exp)
    for size in (2, 3, 4):
        fast(torch.ones(size))
    assert len(failures) == 3 and all(failure.reason for failure in failures)
    assert failures[0].orig_code is failures[-1].orig_code is failures[0][1]
    with pytest.raises(TypeError, match="guard_fail_fn must be callable"):
        minidynamo.optimize("eager", guard_fail_fn=3)


def test_recompile_limit_of_one_configuration(x):
    def scale(x, n):
        return x * n

    counter = CompileCounter()
    fast = minidynamo.compile(scale, backend=counter, dynamic=False, recompile_limit=2)
    for n in range(5):
        assert torch.equal(fast(x, n), scale(x, n))
    assert counter.frame_count == 2
    strict = minidynamo.compile(scale, backend=counter, fullgraph=True, recompile_limit=1)
    strict(x, 1)
    with pytest.raises(exc.FailOnRecompileLimitHit):
        strict(x.double(), 1)


def test_isolated_configurations_share_nothing(x):
    def shift(x):
        return x + 1

    counter = CompileCounter()
    for _ in range(3):
        minidynamo.compile(shift, backend=counter, isolate_recompiles=True)(x)
    assert counter.frame_count == 3
    for _ in range(3):
        minidynamo.compile(shift, backend=counter)(x)
    assert counter.frame_count == 4


@pytest.mark.parametrize(
    "wrong", [{"recompile_limit": "2"}, {"isolate_recompiles": 1}, {"name": 3}]
)
def test_new_arguments_are_checked(wrong):
    with pytest.raises(TypeError, match=f"{next(iter(wrong))} must be"):
        minidynamo.compile(breaking, **wrong)


def test_names_of_errors():
    assert issubclass(exc.Unsupported, exc.TorchDynamoException)
    assert issubclass(exc.InternalTorchDynamoError, exc.TorchDynamoException)
    assert issubclass(exc.FailOnRecompileLimitHit, exc.TorchDynamoException)
    assert issubclass(exc.UncapturedHigherOrderOpError, exc.TorchDynamoException)


# -- flags -----------------------------------------------------------------------------------------


def test_flags_without_counterpart_are_read_set_and_patched():
    minidynamo.reset()
    assert config.inline_inbuilt_nn_modules is True
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with config.patch(inline_inbuilt_nn_modules=True, compiled_autograd=False):
            pass
    with pytest.warns(UserWarning, match="guard_nn_modules = False has no effect"):
        with unittest.mock.patch.object(config, "guard_nn_modules", False):
            assert config.guard_nn_modules is False
    assert config.guard_nn_modules is True
    with pytest.raises(AttributeError, match="no flag 'numpy_default_float'"):
        config.numpy_default_float = "float32"


def test_flags_without_counterpart_are_torchs():
    """But for a few that not every version of torch has, or has with another default."""
    missing = object()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = {n: getattr(torch._dynamo.config, n, missing) for n in config.__inert__}
    assert sum(theirs[name] != value for name, value in config.__inert__.items()) < 10
    assert not set(config.__inert__) & set(config.to_dict())


class Opaque(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        raise RuntimeError("only its attributes can be read")


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_sets_of_tensor_subclasses_are_not_needed():
    def fn(x):
        return x.scale + torch.ones(3)

    given = Opaque(torch.ones(2))
    given.scale = 42
    with config.patch("nontraceable_tensor_subclasses", {Opaque}):
        actual = minidynamo.compile(fn, backend="eager", fullgraph=True)(given)
    assert torch.equal(actual, fn(given))
    config.traceable_tensor_subclasses.add(Opaque)
    config.traceable_tensor_subclasses.discard(Opaque)
    assert config.nontraceable_tensor_subclasses == config.traceable_tensor_subclasses == set()


def test_saved_flags_come_back():
    saved, shallow = config.save_config(), config.shallow_copy_dict()
    try:
        config.recompile_limit = 3
        assert "minidynamo.config.recompile_limit = 3" in config.codegen_config().splitlines()
        assert config.shallow_copy_dict() != shallow
        config.load_config(saved)
        assert config.recompile_limit == 8
        config.specialize_int = True
        config.load_config(shallow)
        assert config.shallow_copy_dict() == shallow == config.get_config_copy()
    finally:
        config.load_config(saved)


def test_hash_is_of_what_changes_compilation():
    before = config.get_hash()
    with config.patch(verbose=True, recompile_limit=3):
        assert config.get_hash() == before
    with config.patch(specialize_int=True):
        assert config.get_hash() != before
    assert config.get_hash() == before


# -- counters and test helpers ---------------------------------------------------------------------


def test_counters(x):
    counters.clear()
    minidynamo.compile(breaking, backend="eager")(x)
    assert counters["frames"] == {"total": 2, "ok": 2}
    assert counters["stats"] == {"unique_graphs": 2, "calls_captured": 2}
    assert sum(counters["graph_break"].values()) == 1
    assert "graph_break()" in next(iter(counters["graph_break"]))
    counters.clear()
    assert not counters["graph_break"]


def test_recording_backends():
    def loss(x, w):
        return (x @ w).relu().sum()

    x, w = torch.ones(2, 3), torch.ones(3, 2, requires_grad=True)
    captured, aot = EagerAndRecordGraphs(), AotEagerAndRecordGraphs()
    assert torch.equal(minidynamo.compile(loss, backend=captured)(x, w), loss(x, w))
    minidynamo.compile(loss, backend=aot)(x, w).backward()
    assert (len(captured.graphs), len(aot.graphs)) == (1, 1)
    assert (len(aot.fw_graphs), len(aot.bw_graphs)) == (1, 1)
    fused = InductorAndRecordGraphs()
    minidynamo.compile(loss, backend=fused)(x, w.detach())
    assert (len(fused.graphs), len(fused.inductor_graphs)) == (1, 1)
    counted = CompileCounterWithBackend("aot_eager_decomp_partition")
    assert torch.equal(minidynamo.compile(loss, backend=counted)(x, w), loss(x, w))
    assert counted.frame_count == 1
    counted.clear()
    assert counted.frame_count == counted.op_count == len(counted.graphs) == 0


def test_same():
    t = torch.ones(3)
    assert same((t, {"a": 1.0}), (t.clone(), {"a": 1.0}))
    for other in (t.double(), torch.zeros(3), torch.ones(1, 3), 1.0, [t]):
        assert not same(t, other)
    assert not same([t], (t,)) and not same({"a": t}, {"b": t})
    nan = float("nan")
    assert not same(nan, nan) and same(nan, nan, equal_nan=True)


def test_small_helpers(x):
    strided = rand_strided((2, 3), (4, 1), torch.float64)
    assert strided.stride() == (4, 1) and strided.dtype == torch.float64
    counter = CompileCounter()
    fast = minidynamo.compile(lambda x: unsupported(x, x + 1) * 2, backend=counter)
    assert torch.equal(fast(x), (x + 1) * 2) and counter.frame_count == 2


# -- stances ---------------------------------------------------------------------------------------


@pytest.fixture
def counter():
    minidynamo.reset()
    yield CompileCounter()
    minidynamo.set_stance("default")
    torch.compiler.set_stance("default")


@pytest.fixture(
    params=[minidynamo.set_stance, torch.compiler.set_stance], ids=["ours", "torch"]
)
def set_stance(request):
    return request.param


def test_force_eager(counter, set_stance, x):
    def where(x):
        return x + 1 if minidynamo.is_compiling() else x - 1

    fast = minidynamo.compile(where, backend=counter)
    with set_stance("force_eager"):
        assert torch.equal(fast(x), x - 1) and counter.frame_count == 0
    assert torch.equal(fast(x), x + 1)
    with set_stance("force_eager"):
        assert torch.equal(fast(x), x - 1)
    assert torch.equal(fast(x), x + 1) and counter.frame_count == 1


def test_stances_of_recompilation(counter, set_stance, x):
    fast = minidynamo.compile(lambda x: x.sin(), backend=counter)
    with set_stance("fail_on_recompile"):
        with pytest.raises(RuntimeError, match="Detected recompile"):
            fast(x)
    fast(x)
    with set_stance("eager_on_recompile"):
        assert torch.equal(fast(x.double()), x.double().sin())
        assert torch.equal(fast(x), x.sin())
    with set_stance("fail_on_recompile"):
        assert torch.equal(fast(x), x.sin())
        with pytest.raises(RuntimeError, match="dtype"):
            fast(x.double())
    assert counter.frame_count == 1


def test_eager_then_compile_learns_sizes(counter, set_stance):
    def scale(x, n):
        return x * n

    fast = minidynamo.compile(scale, backend=counter)
    with set_stance("eager_then_compile"):
        for size in (3, 4, 5, 6):
            x = torch.ones(size)
            assert torch.equal(fast(x, size), scale(x, size))
            assert counter.frame_count == (size > 3)


def test_eager_then_compile_learns_nested_sizes(counter):
    compiled = minidynamo.compile(
        lambda n, nest: n * nest["x"][0] * nest["y"][0], backend=counter
    )
    with minidynamo.set_stance("eager_then_compile"):
        for size in (2, 3, 4):
            compiled(size, {"x": [torch.ones(size)], "y": (torch.ones(size),)})
    assert counter.frame_count == 1


def test_eager_then_compile_of_a_list_in_itself(counter):
    items = [torch.ones(3)]
    items.append(items)
    compiled = minidynamo.compile(lambda items: items[0] + 1, backend=counter)
    with minidynamo.set_stance("eager_then_compile"):
        for _ in range(2):
            assert torch.equal(compiled(items), torch.ones(3) + 1)


def test_aot_eager_then_compile(counter, set_stance):
    fast = minidynamo.compile(lambda x: x * 2, backend=counter)
    with set_stance("aot_eager_then_compile"):
        for size, compiled in ((3, 0), (3, 0), (4, 1), (5, 1)):
            assert torch.equal(fast(torch.ones(size)), torch.full((size,), 2.0))
            assert counter.frame_count == compiled


def test_force_backend(counter, set_stance, x):
    other = CompileCounter()
    fast = minidynamo.compile(lambda x: x + 1, backend=counter)
    fast(x)
    with set_stance(force_backend=other):
        assert torch.equal(fast(x), x + 1)
        assert torch.equal(fast(x), x + 1)
    fast(x)
    assert (counter.frame_count, other.frame_count) == (2, 1)


def test_stances_decorate_and_nest(counter, set_stance, x):
    fast = minidynamo.compile(lambda x: x + 1, backend=counter)

    @set_stance("force_eager")
    def in_eager(depth):
        """Doc."""
        fast(x)
        if depth:
            in_eager(depth - 1)
        fast(x)

    in_eager(2)
    assert counter.frame_count == 0 and in_eager.__doc__ == "Doc."
    with set_stance("force_eager"):
        with set_stance("default"):
            fast(x)
    assert counter.frame_count == 1


def test_stances_are_checked():
    with pytest.raises(RuntimeError, match="invalid stance 'eager'.*force_eager"):
        minidynamo.set_stance("eager")
    with pytest.raises(RuntimeError, match="force_backend goes with 'default'"):
        minidynamo.set_stance("force_eager", force_backend="eager")
    with pytest.raises(exc.InvalidBackend):
        minidynamo.set_stance(force_backend="nothing")


# -- recompilation ---------------------------------------------------------------------------------


def one_more(x, n):
    return x + n


def calling(x, n):
    return one_more(x * n, n)


@pytest.mark.parametrize("deep, graphs", [(True, 2), (False, 4)])
def test_past_the_limit_callees_are_compiled_or_not(counter, x, deep, graphs):
    fast = minidynamo.compile(calling, backend=counter, dynamic=False)
    flags = {"recompile_limit": 2, "skip_code_recursive_on_recompile_limit_hit": deep}
    with config.patch(flags):
        for n in range(6):
            assert torch.equal(fast(x, n), calling(x, n))
    assert counter.frame_count == graphs


def test_past_the_limit_compiled_callees_are_used(counter, x):
    def inner(x):
        return x + 2 if minidynamo.is_compiling() else x

    def outer(x, n):
        return inner(x) + n

    minidynamo.compile(inner, backend=counter, dynamic=False)(x)
    fast = minidynamo.compile(outer, backend=counter, dynamic=False)
    with config.patch(recompile_limit=1):
        assert torch.equal(fast(x, 0), x + 2)
        assert torch.equal(fast(x, 1), x + 3)
        separate = minidynamo.compile(lambda x: fast(x, 2) * 1, backend=CompileCounter())
        assert torch.equal(separate(x), x + 4)


def test_numbers_in_place_of_tensors_are_dynamic_at_once(counter):
    fast = minidynamo.compile(lambda x, y: x * y, backend=counter)
    sizes = iter(range(2, 20))
    for as_number in (False, True, False, True, False, True):
        size = next(sizes)
        x, y = torch.ones(size), size if as_number else torch.full((size,), 3.0)
        assert torch.equal(fast(x, y), x * y)
    assert counter.frame_count == 3


def test_marks_do_what_they_can(counter):
    fast = minidynamo.compile(lambda x: x * 2, backend=counter)
    for size in (1, 4, 5, 6):
        x = torch.ones(size)
        minidynamo.mark_dynamic(x, 0, hint_override=64)
        fast(x)
    assert counter.frame_count == 2


def test_a_violated_mark_is_torchs_error_too(counter):
    x = torch.ones(3)
    minidynamo.mark_dynamic(x, 0)
    fast = minidynamo.compile(lambda x: x.reshape(3), backend=counter)
    theirs = torch.fx.experimental.symbolic_shapes.ConstraintViolationError
    with pytest.raises(theirs, match="Constraints violated: x.size"):
        fast(x)
    with pytest.raises(exc.UserError):
        fast(x)
    with config.patch(allow_ignore_mark_dynamic=True):
        assert torch.equal(fast(x), x)
