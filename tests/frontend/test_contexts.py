"""Context managers of torch and of users: grad mode, autocast, inference mode, contextlib."""

from __future__ import annotations

import contextlib
import copy

import pytest
import torch
import torch.nn.functional as F
from testing import CountingBackend, assert_same, check, check_recompiles
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import minidynamo
from minidynamo.handlers import cuda_device
from minidynamo.variables.contexts import Setting

X = torch.arange(6.0).reshape(2, 3)
W = torch.ones(3, 3, requires_grad=True)


@pytest.mark.parametrize("manager", [torch.no_grad, torch.enable_grad])
def test_grad_mode(manager):
    def fn(x):
        y = x @ W
        with manager():
            z = y @ W
            inside = torch.is_grad_enabled()
        return y, z, inside, torch.is_grad_enabled()

    check(fn, X, fullgraph=True)
    with torch.no_grad():
        check(fn, X, fullgraph=True)


def test_set_grad_enabled():
    def fn(x, mode):
        with torch.set_grad_enabled(mode):
            y = x @ W
        with torch.no_grad(), torch.set_grad_enabled(True):
            z = x @ W
        return y, z

    check(fn, X, True, fullgraph=True)
    check(fn, X, False, fullgraph=True)


def test_set_grad_enabled_as_function():
    """The mode stays changed behind the call."""

    def fn(x):
        torch.set_grad_enabled(False)
        return x @ W

    def run(x):
        try:
            return fn(x), torch.is_grad_enabled()
        finally:
            torch.set_grad_enabled(True)

    check(run, X, graphs=None)


def test_decorators():
    @torch.no_grad()
    def inner(x):
        return x @ W

    @torch.inference_mode()
    def other(x):
        return x * 2

    def fn(x):
        return inner(x), x @ W, other(x).sum()

    check(fn, X, fullgraph=True)
    check(inner, X, graphs=None)


def test_graph_break_inside():
    def fn(x):
        y = x @ W
        with torch.no_grad():
            y = y @ W
            print(end="")
            z = y @ W
            seen = torch.is_grad_enabled()
        return y @ W, z, seen, torch.is_grad_enabled()

    check(fn, X, graphs=2)


def test_graph_break_in_nested_contexts():
    def fn(x):
        with torch.no_grad():
            with torch.enable_grad():
                y = x @ W
                print(end="")
                y = y @ W
            z = y @ W
            print(end="")
        return y, z, torch.is_grad_enabled(), x @ W

    check(fn, X, graphs=None)


def test_graph_break_in_a_callee_inside():
    def inner(x):
        print(end="")
        return x @ W

    def fn(x):
        with torch.no_grad():
            y = inner(x)
        return y, y @ W

    check(fn, X, graphs=None)


def test_exception_inside():
    def fn(x):
        try:
            with torch.no_grad():
                raise ValueError("a")
        except ValueError:
            return x @ W, torch.is_grad_enabled()

    check(fn, X, fullgraph=True)


def test_uncaught_exception_inside():
    def fn(x):
        with torch.no_grad():
            y = x @ W
            raise ValueError("a", y.shape)

    check(fn, X, graphs=None)
    assert torch.is_grad_enabled()


def test_return_inside():
    def fn(x):
        with torch.no_grad():
            return x @ W

    check(fn, X, fullgraph=True)


def test_inference_mode():
    def fn(x):
        with torch.inference_mode():
            y = x * 2
            inside = torch.is_inference_mode_enabled()
        return y.sum().clone(), inside, torch.is_inference_mode_enabled()

    check(fn, X, fullgraph=True)


def test_graph_break_in_inference_mode():
    def fn(x):
        with torch.inference_mode():
            y = x * 2
            print(end="")
            z = y + 1
            inside = torch.is_inference_mode_enabled()
        return z, inside, torch.is_inference_mode_enabled(), torch.is_grad_enabled()

    check(fn, X, graphs=2)
    assert not torch.is_inference_mode_enabled()


def test_grad_mode_is_guarded():
    def fn(x):
        return x @ W if torch.is_grad_enabled() else x - 1

    def change(i):
        torch.set_grad_enabled(i % 2 == 0)

    try:
        check_recompiles(fn, [(X,)] * 4, graphs=2, change=change)
    finally:
        torch.set_grad_enabled(True)


def test_settings_of_autocast_that_is_off():
    """What it would cast to is read by the block that turns it on."""

    def fn(x):
        with torch.autocast("cpu"):
            y = x @ x.t()
            with torch.autocast("cpu", dtype=torch.float16):
                z = x @ x.t()
        return y, z, torch.get_autocast_dtype("cpu"), torch.is_autocast_cache_enabled()

    counter = CountingBackend()
    compiled = minidynamo.compile(fn, backend=counter, fullgraph=True)
    default = torch.get_autocast_dtype("cpu")
    try:
        for dtype, cache in [
            (torch.bfloat16, True),
            (torch.float16, True),
            (torch.float16, False),
        ]:
            torch.set_autocast_dtype("cpu", dtype)
            torch.set_autocast_cache_enabled(cache)
            for _ in range(2):
                assert_same(compiled(X), fn(X))
            assert torch.get_autocast_dtype("cpu") is dtype
    finally:
        torch.set_autocast_dtype("cpu", default)
        torch.set_autocast_cache_enabled(True)
    assert len(counter.graphs) == 3
    compiled(X)
    assert len(counter.graphs) == 3


def test_whether_anomalies_are_detected():
    def fn(x):
        return x + 1, torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()

    compiled = minidynamo.compile(fn, backend="eager", fullgraph=True)
    for mode, nans in [(False, True), (True, True), (True, False), (False, True)]:
        torch.set_anomaly_enabled(mode, nans)
        assert compiled(X)[1:] == (mode, nans)


def test_autocast():
    linear = nn.Linear(3, 3)

    def fn(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = linear(x)
            on = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
            with torch.autocast("cpu", enabled=False):
                z = linear(x)
        return y, z, on, torch.is_autocast_enabled("cpu")

    check(fn, X, fullgraph=True)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.filterwarnings("ignore")
def test_autocast_by_its_old_names_and_of_missing_devices(device):
    old = getattr(torch, device).amp.autocast

    def fn(x, enabled):
        with old(enabled, torch.bfloat16) as context:
            y = x @ W
            with torch.autocast(device, enabled=False, cache_enabled=False):
                z = x @ W
        return y, z, type(context) is old, context.device, context.fast_dtype

    check_recompiles(fn, [(X, True), (X, True), (X, False)], graphs=2)


@pytest.mark.filterwarnings("error::FutureWarning")
def test_advice_against_old_autocast_may_be_an_error():
    def fn(x):
        try:
            with torch.cpu.amp.autocast(False):
                return x + 1
        except FutureWarning as error:
            return x + 2, str(error)

    check(fn, X)


def test_wrong_autocast_raises():
    def fn(x, device):
        try:
            with torch.autocast(device):
                return x + 1
        except (ValueError, RuntimeError) as error:
            return x + 2, str(error)

    check(fn, X, 3)
    check(fn, X, "nowhere")


def test_exporting_to_onnx_is_not_compiling():
    def fn(x):
        return x + 1 if torch.onnx.is_in_onnx_export() else x * 2

    check(fn, X, fullgraph=True)


def test_autocast_around_and_as_decorator():
    @torch.autocast("cpu", dtype=torch.bfloat16)
    def inner(x):
        return x @ W

    def fn(x):
        return inner(x), x @ W

    check(fn, X, fullgraph=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        check(lambda x: x @ W, X, fullgraph=True)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_autocast_regions_are_two_operations_each(backend):
    def fn(x, w):
        with torch.autocast("cpu", torch.bfloat16):
            y = x @ w
            with torch.autocast("cpu", enabled=False):
                z = x @ w
            u = z @ w
        with torch.autocast("cpu", torch.float16, cache_enabled=False):
            return y, z, u, x @ w

    counter = CountingBackend()
    compiled = minidynamo.compile(fn, backend=counter, fullgraph=True)
    assert_same(compiled(X, W.detach()), fn(X, W.detach()))
    calls = [n for n in counter.graphs[0].graph.nodes if n.op.startswith("call_")]
    assert len(calls) == 4 + 2 * 3
    check(fn, X, W.detach(), graphs=None, backend=backend, fullgraph=True)
    with torch.autocast("cpu", torch.bfloat16):
        check(fn, X, W.detach(), graphs=None, backend=backend, fullgraph=True)


def test_autocast_that_is_set_by_hand_or_left_in_another_order():
    def fn(x):
        first, second = torch.autocast("cpu", torch.bfloat16), torch.autocast("cpu")
        first.__enter__()
        y = x @ W
        second.__enter__()
        torch.set_autocast_dtype("cpu", torch.float16)
        first.__exit__(None, None, None)
        z = x @ W
        second.__exit__(None, None, None)
        inside = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
        torch.set_autocast_enabled("cpu", False)
        torch.set_autocast_dtype("cpu", torch.bfloat16)
        return y, z, inside

    check(fn, X, fullgraph=True)


def test_a_graph_that_raises_in_autocast_leaves_it():
    def fn(x, index):
        with torch.autocast("cpu", torch.bfloat16):
            return x[index] @ W

    compiled = minidynamo.compile(fn, backend="eager", fullgraph=True)
    compiled(X, torch.tensor([0]))
    with pytest.raises(IndexError):
        compiled(X, torch.tensor([7]))
    assert not torch.is_autocast_enabled("cpu")
    assert torch.autocast_increment_nesting() == 1
    assert torch.autocast_decrement_nesting() == 0


def test_graph_break_in_autocast():
    def fn(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ W
            print(end="")
            z = x @ W
        return y, z, x @ W, torch.is_autocast_enabled("cpu")

    check(fn, X, graphs=2)


def test_autocast_cache_is_left_clean():
    """A weight that changes between calls must not be taken from autocast's cache."""
    linear = nn.Linear(3, 3)

    def fn(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return linear(x)

    def change(i):
        with torch.no_grad():
            linear.weight.fill_(i)

    check_recompiles(fn, [(X,)] * 3, graphs=1, change=change)


def test_existing_manager_object():
    manager = torch.no_grad()

    def fn(x):
        with manager:
            y = x @ W
            print(end="")
        return y, x @ W

    check(fn, X, graphs=None)


def test_nullcontext_and_exitstack():
    def fn(x, on):
        with torch.no_grad() if on else contextlib.nullcontext(3) as value:
            y = x @ W
        with contextlib.suppress(KeyError):
            raise KeyError
        return y, value

    check(fn, X, True, fullgraph=True)
    check(fn, X, False, fullgraph=True)


def test_contextmanager_generator():
    log = []

    @contextlib.contextmanager
    def manager(n):
        log.append(n)
        try:
            yield n + 1
        finally:
            log.append(-n)

    def fn(x):
        log.clear()
        with manager(2) as n:
            x = x * n
        with manager(5) as n, torch.no_grad():
            x = x @ W * n
        return x, list(log)

    check(fn, X, graphs=None)


def test_contextmanager_around_no_grad():
    @contextlib.contextmanager
    def quiet():
        with torch.no_grad():
            yield

    def fn(x):
        with quiet():
            y = x @ W
        return y, x @ W

    check(fn, X, fullgraph=True)


def test_graph_raising_at_run_time_restores_the_mode():
    def fn(x, i):
        with torch.no_grad():
            y = x * 2
            return y[i]

    check(fn, X, torch.tensor([7]), graphs=None)
    assert torch.is_grad_enabled()


def test_attention_kernels():
    def fn(x):
        q = x[None, None]
        with sdpa_kernel(SDPBackend.MATH):
            inside = torch.backends.cuda.flash_sdp_enabled()
            y = F.scaled_dot_product_attention(q, q, q)
        return y, inside, torch.backends.cuda.flash_sdp_enabled()

    check(fn, X, fullgraph=True)
    assert torch.backends.cuda.flash_sdp_enabled()


def test_copied_members_of_enums_of_c():
    """As copies of modules have them."""
    kinds = [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION]

    def fn(x, kinds):
        first, math = kinds[0], SDPBackend.MATH
        with sdpa_kernel(kinds):
            inside = torch.backends.cuda.mem_efficient_sdp_enabled()
            y = F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None])
        facts = first is math, first == math, math != first, math == 0, first == kinds
        found = math in kinds, math in {first}, {first: 3}.get(math), kinds.index(math)
        return y, inside, facts, found, first.name

    assert copy.deepcopy(kinds)[0] is not kinds[0]
    check(fn, X, kinds, fullgraph=True, graphs=2)  # `check` copies them for each call
    check_recompiles(fn, [(X, kinds), (X, [*kinds[:1], SDPBackend.EFFICIENT_ATTENTION])], 2)


def test_profiler_range():
    def fn(x):
        with torch.profiler.record_function("range"):
            return x + 1

    check(fn, X, fullgraph=True)


def test_profiler_without_a_use():
    def fn(x):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as prof:
            with torch.profiler.record_function("range"):
                y = x.sin()
        with torch.autograd.profiler.profile():
            return y + 1, prof is None

    check(fn, X, fullgraph=True)


def test_profiler_that_is_used():
    def fn(x):
        y = x + 1
        with torch.profiler.profile() as prof:
            y = y.sin()
        names = {event.key for event in prof.key_averages()}
        return y * 2, "aten::sin" in names

    def returning(x):
        with torch.autograd.profiler.profile() as prof:
            y = x.sin()
        return y, type(prof).__name__, len(prof.key_averages()) > 0

    check(fn, X, graphs=None)
    check(returning, X, graphs=None)


def test_profiler_that_calls_back():
    seen = []

    def fn(x):
        with torch.profiler.profile(on_trace_ready=lambda prof: seen.append(1)):
            return x + 1

    check(fn, X, graphs=None, calls=1)
    assert seen == [1, 1]


def test_default_device_inside_and_outside():
    def setting(x):
        torch.set_default_device("meta")
        y = torch.ones(3)
        torch.set_default_device(None)
        return y.device.type, x + 1

    def entering(x):
        before = torch.ones(3) + 1
        with torch.device("meta"):
            inside = torch.ones(3) + 1
        return before.device.type, inside.device.type, x.sin()

    def kept(x):
        torch.set_default_device("meta")
        y = torch.ones(3)
        minidynamo.graph_break()
        z = torch.ones(2)
        torch.set_default_device(None)
        return y.device.type, z.device.type, torch.get_default_device(), x + 1

    for backend in (None, "inductor"):
        check(setting, X, fullgraph=True, graphs=None, backend=backend)
        check(kept, X, graphs=None, backend=backend)
    check(entering, X, fullgraph=True)
    check(entering, X, backend="inductor", graphs=None)
    broken = []

    def nested(x):
        with torch.device("meta"):
            first = torch.ones(3)
            with torch.device("cpu"):
                second = torch.ones(2)
                broken.append(str(second))
                third = torch.ones(2)
            fourth = torch.ones(1)
        return first.device, second, third, fourth.device, torch.ones(1), x.sin()

    check(nested, X, graphs=None)

    def raising(x):
        with torch.device("meta"):
            torch.ones(3).item()
        return x

    check(raising, X, graphs=None)
    compiled = minidynamo.compile(entering, backend="eager")
    for device in ("meta", "cpu", "meta"):
        with torch.device(device):
            assert compiled(X)[0] == device
    assert torch._C._len_torch_function_stack() == 0


class Scaling(torch.overrides.TorchFunctionMode):
    def __init__(self, factor):
        self.factor = factor

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result * self.factor if func is torch.sin else result


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_function_modes_of_the_program(backend):
    def fn(x):
        return torch.sin(x)

    def entering(x):
        with Scaling(3.0):
            y = torch.sin(x)
        return y + torch.sin(x)

    check(entering, X, graphs=None, backend=backend)
    compiled, mode = minidynamo.compile(fn, backend=backend), Scaling(2.0)
    assert_same(fn(X), compiled(X))
    for factor in (2.0, 5.0):
        mode.factor = factor
        with mode:
            assert_same(torch.sin(X), compiled(X))
    assert_same(fn(X), compiled(X))


def test_default_dtype_inside():
    def fn(x):
        torch.set_default_dtype(torch.float64)
        y = torch.ones(3)
        torch.set_default_dtype(torch.float32)
        return y, torch.tensor(1.5), x + 1

    def kept(x):
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        y = torch.ones(3)
        print("", end="")
        z = torch.zeros(2)
        torch.set_default_dtype(before)
        return y, z, x + 1

    for backend in (None, "inductor"):
        check(fn, X, fullgraph=True, graphs=None, backend=backend)
        check(kept, X, graphs=None, backend=backend)
    assert torch.get_default_dtype() is torch.float32


def test_deterministic_algorithms_inside():
    def fn(x, index):
        torch.use_deterministic_algorithms(True)
        y = torch.zeros(3).index_put((index,), x, accumulate=True)
        inside = torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(False)
        return y, inside

    def kept(x, index):
        torch.use_deterministic_algorithms(True, warn_only=True)
        minidynamo.graph_break()
        warns = torch.is_deterministic_algorithms_warn_only_enabled()
        torch.set_deterministic_debug_mode("error")
        return x + torch.get_deterministic_debug_mode(), warns

    index = torch.tensor([0, 0, 2])
    for backend in (None, "inductor"):
        check(fn, X[0], index, fullgraph=True, graphs=None, backend=backend)
    try:
        for call in (kept, minidynamo.compile(kept, backend="eager")):
            torch.use_deterministic_algorithms(False)
            assert_same(call(X[0], index), (X[0] + 2, True))
            assert torch.get_deterministic_debug_mode() == 2
    finally:
        torch.use_deterministic_algorithms(False)


@contextlib.contextmanager
def _without_tf32():
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.parametrize("backend", [None, "aot_eager", "inductor"])
def test_precision_of_products_inside(backend):
    def with_flag(x):
        with _without_tf32():
            return x @ x.T, torch.backends.cuda.matmul.allow_tf32

    def with_word(x):
        torch.set_float32_matmul_precision("high")
        y = x @ x.T
        inside = torch.backends.cuda.matmul.allow_tf32, torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")
        return y, inside

    def kept(x):
        torch.set_float32_matmul_precision("high")
        minidynamo.graph_break()
        return x @ x.T, torch.get_float32_matmul_precision()

    try:
        for fn in (with_flag, with_word):
            check(fn, X, fullgraph=True, graphs=None, backend=backend)
            assert torch.get_float32_matmul_precision() == "highest"
        compiled = minidynamo.compile(kept, backend=backend or "eager")
        for call in (kept, compiled, compiled):
            torch.set_float32_matmul_precision("highest")
            assert_same(call(X), (X @ X.T, "high"))
            assert torch.get_float32_matmul_precision() == "high"
        minidynamo.reset()
        check(with_flag, X, fullgraph=True, graphs=None, backend=backend)
        assert torch.backends.cuda.matmul.allow_tf32
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize(
    "manager",
    [
        torch.profiler.record_function,
        torch.autograd.graph.disable_saved_tensors_hooks,
    ],
)
def test_managers_without_effect_decorate(manager):
    def fn(x, breaks):
        @manager("text")
        def inner(x):
            if breaks:
                minidynamo.graph_break()
            return x + 1

        with manager("text"):
            return inner(x) * 2

    check(fn, X, False, fullgraph=True)
    check(fn, X, True, graphs=1, breaks=1)


def test_hooks_of_saved_tensors_are_forbidden():
    def forbidden(x):
        with torch.autograd.graph.disable_saved_tensors_hooks("none here"):
            y = x.sin()
            with torch.autograd.graph.saved_tensors_hooks(lambda a: a, lambda a: a):
                return y + 1

    with pytest.raises(RuntimeError, match="none here"):
        minidynamo.compile(forbidden, backend="eager")(X)
    assert torch._C._autograd._saved_tensors_hooks_is_enabled()


def test_hooks_of_saved_tensors_are_called_in_order():
    """What they did is seen in their block and behind it."""

    def fn(x, packed):
        def pack(value):
            packed.append(value.shape)
            return value

        y = x.sin()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
            y = y * x
            inside = len(packed)
            y = y.exp()
        return y.cos() * inside, inside, len(packed)

    def block(x):
        return (x * x).exp()

    def around(x, packed):
        with torch.autograd.graph.save_on_cpu():
            y = block(x)
        return y + 1

    for function in (fn, around):
        compiled = minidynamo.compile(function, backend="eager")
        for _ in range(2):
            given = [X.clone().requires_grad_() for _ in range(2)]
            results = [call(x, []) for call, x in zip((function, compiled), given, strict=True)]
            assert_same(results[1], results[0])
            first = [r[0] if isinstance(r, tuple) else r for r in results]
            grads = [torch.autograd.grad(r.sum(), x) for r, x in zip(first, given, strict=True)]
            assert_same(*grads)


def test_no_cuda_device():
    def fn(x):
        with torch.cuda.device(-1):
            y = x.sin()
        with torch.cuda.device_of(x):
            return y + 1

    check(fn, torch.ones(3), fullgraph=True)


def test_cuda_device(monkeypatch):
    """As on a machine with two of them, of which the first is the current one."""
    current, written = [0], []

    def write(index):
        written.append(index)
        current[0] = index

    setting = Setting("current CUDA device", lambda: current[0], write)
    monkeypatch.setattr(cuda_device, "_DEVICE", setting)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)

    def fn(x, index):
        with torch.cuda.device(index):
            y = x.sin()
        return y, torch.cuda.current_device()

    counter = CountingBackend()
    compiled = minidynamo.compile(fn, backend=counter, fullgraph=True)
    x = torch.ones(3)
    assert compiled(x, 0)[1] == 0 and not written
    written.clear()
    assert compiled(x, torch.device("cuda:1"))[1] == 0
    written.clear()
    assert compiled(x, torch.device("cuda:1"))[1] == 0 and written == [1, 0]
    current[0] = 1
    assert compiled(x, 0)[1] == 1 and current == [1]
    assert len(counter.graphs) == 3


def test_grad_modes_that_change_nothing_are_no_operations():
    def idle(x):
        with torch.enable_grad(), torch.set_grad_enabled(True):
            y = x + 1
        with torch.no_grad():
            pass
        return y

    def again(x):
        with torch.no_grad():
            y = x + 1
        with torch.no_grad():
            z = x * 2
            with torch.no_grad():
                z = z + y
        return x * z, torch.is_grad_enabled()

    def left_off(x):
        torch.set_grad_enabled(False)
        torch.set_grad_enabled(False)
        return x + 1

    given = torch.ones(2, requires_grad=True)
    check(idle, given, ops=1, fullgraph=True)
    check(again, given, ops=6, fullgraph=True)
    for mode in (True, False):
        with torch.set_grad_enabled(mode):
            check(again, given, graphs=1)
            check(idle, given, ops=1 if mode else 3)
    with torch.enable_grad():
        compiled = minidynamo.compile(left_off, backend="eager")
        result = compiled(given)
        assert not torch.is_grad_enabled() and not result.requires_grad
