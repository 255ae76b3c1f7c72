"""Forward and backward passes that another process, or the same before a reset, left on disk."""

import contextlib
import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import minidynamo
from minidynamo.inductor import aot, stored_steps

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def compiled_anew(monkeypatch, tmp_path):
    """How often AOTAutograd has compiled a graph; the cache is empty at first."""
    found = []
    compile_aot = aot._compile_aot
    monkeypatch.setattr(
        aot, "_compile_aot", lambda *args: (found.append(1), compile_aot(*args))[1]
    )
    with minidynamo.config.patch(cache_dir=str(tmp_path)):
        yield found


def step(fn, make, *, seed=0):
    """Values, gradients and what became of the inputs, of one step."""
    torch.manual_seed(seed)
    inputs = make()
    results = fn(*inputs)
    results = results if isinstance(results, tuple) else (results,)
    loss = sum(y.float().square().sum() for y in results if y is not None and y.requires_grad)
    loss.backward()
    return [*results, *inputs, *(x.grad for x in inputs if x.is_leaf)]


def check(fn, make, compiled_anew, again=0, step=step):
    """The step of a second compilation is that of eager, found on disk (`again`: 0)."""
    expected = step(fn, make)
    for wanted in 1, 1 + again:
        minidynamo.reset()
        found = step(minidynamo.compile(fn, fullgraph=True), make)
        for ours, eagers in zip(found, expected, strict=True):
            assert (ours is None) == (eagers is None)
            if ours is not None:
                torch.testing.assert_close(ours, eagers, rtol=1e-4, atol=1e-5)
        assert len(compiled_anew) == wanted


def leaf(*shape, **options):
    return torch.randn(*shape, **options).requires_grad_()


def chain(x, w):
    return F.layer_norm(F.gelu(x @ w), (8,)).softmax(-1) * x


def several(x, w):
    return F.relu(x @ w), x.sin().sum(0), (w * 2).detach()


def batch_norm(x, w):
    mean, var = torch.zeros(8), torch.ones(8)
    return F.batch_norm(x @ w, mean, var, training=True)


def pieces(x, w):
    a, b = x.chunk(2, -1)
    return torch.cat([a[..., ::2] * b[..., 1::2], a + w[0, :4].mean()], -1)[:, 1:]


def attention(x, w):
    q = (x @ w).view(2, 2, 2, 4)
    return F.scaled_dot_product_attention(q, q, q, is_causal=True)


@pytest.mark.parametrize("fn", [chain, several, batch_norm, pieces, attention])
def test_a_step_is_found(fn, compiled_anew):
    check(fn, lambda: (leaf(4, 8), leaf(8, 8)), compiled_anew)


def test_what_eager_saves_is_watched(compiled_anew):
    for _ in range(2):
        minidynamo.reset()
        x, call = leaf(4), minidynamo.compile(lambda x, w: torch.maximum(x, w), fullgraph=True)
        result = call(x, leaf(4))
        with torch.no_grad():
            x.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            result.sum().backward(retain_graph=True)
        call(leaf(4), leaf(4)).sum().backward()
    assert len(compiled_anew) == 1


def test_written_inputs(compiled_anew):
    def fn(x, w, counts):
        counts.add_(1)
        return F.relu(x @ w) * counts

    check(fn, lambda: (leaf(4, 8), leaf(8, 8), torch.zeros(8)), compiled_anew)


def test_a_module_with_statistics(compiled_anew):
    def step(fn, make):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
        run = fn(net)
        for _ in range(2):
            run(torch.randn(2, 3, 6, 6)).square().sum().backward()
        return [*(p.grad for p in net.parameters()), *net.buffers()]

    expected = step(lambda net: net, None)
    for _ in range(2):
        minidynamo.reset()
        found = step(minidynamo.compile, None)
        for ours, eagers in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, eagers, rtol=1e-4, atol=1e-5)
    assert len(compiled_anew) == 1


def test_functions_that_choose_by_a_flag(compiled_anew):
    """`max_pool2d` is one that torch makes, which no path of names leads to."""

    def fn(x):
        return F.max_pool2d(x * 2, 3), F.adaptive_max_pool2d(x, 2, return_indices=True)[0]

    check(fn, lambda: (leaf(2, 3, 6, 6),), compiled_anew)


def test_functions_that_may_refuse_their_data(compiled_anew):
    """Nodes whose errors the program may see are marked; what they compute is the same."""

    def fn(weight, x, places):
        return F.embedding(places, weight), x.gather(1, places)

    def make():
        return leaf(6, 4), leaf(3, 8), torch.tensor([[0, 5, 2], [1, 1, 3], [4, 0, 5]])

    check(fn, make, compiled_anew)
    wrong = [*make()[:2], torch.full((3, 3), 9)]
    for run in fn, minidynamo.compile(fn):
        with pytest.raises(IndexError, match="out of range|out of bounds"):
            run(*wrong)


def test_outputs_that_the_loss_does_not_use(compiled_anew):
    """Their tangents are None, and so are the gradients that depend on nothing else."""

    def step(fn, make):
        torch.manual_seed(0)
        x, w, v = make()
        first, _second = fn(x, w, v)
        first.sum().backward()
        return [x.grad, w.grad, v.grad]

    def fn(x, w, v):
        return x @ w, x * v

    check(fn, lambda: (leaf(4, 8), leaf(8, 8), leaf(8)), compiled_anew, step=step)


def test_twice_backward_and_gradients_of_gradients(compiled_anew):
    def step(fn, make):
        torch.manual_seed(0)
        x, w = make()
        y = fn(x, w).square().sum()
        y.backward(retain_graph=True)
        y.backward(retain_graph=True)
        (gx,) = torch.autograd.grad(y, x, create_graph=True)
        gx.square().sum().backward()
        return [y.detach(), x.grad, w.grad]

    check(chain, lambda: (leaf(4, 8), leaf(8, 8)), compiled_anew, step=step)


def test_dropout_uses_one_mask(compiled_anew):
    def fn(x):
        return F.dropout(x, 0.5)

    for _ in range(2):
        minidynamo.reset()
        x = torch.ones(64, 64, requires_grad=True)
        y = minidynamo.compile(fn)(x)
        y.sum().backward()
        assert torch.equal(x.grad, y.detach()) and 0.4 < (y == 0).float().mean() < 0.6
        drawn = y.detach()
        assert not torch.equal(minidynamo.compile(fn)(x).detach(), drawn)
    assert len(compiled_anew) == 1


def test_a_call_that_is_not_ordinary_compiles_it_after_all(compiled_anew):
    def step(fn, make):
        torch.manual_seed(0)
        x, w = make()
        packed = []
        pack = lambda t: (packed.append(1), t)[1]
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            y = fn(x, w)
        y.sum().backward()
        assert packed
        return [y, x.grad, w.grad]

    make = lambda: (leaf(4, 8), leaf(8, 8))
    check(chain, make, compiled_anew)  # leaves it on disk
    compiled_anew.clear()
    expected = step(chain, make)
    minidynamo.reset()
    run = minidynamo.compile(chain)
    for taken in (globals()["step"], step):
        found = taken(run, make)
    for ours, eagers in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, eagers, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("home, name", [(aot, "load_step"), (stored_steps, "load_part")])
def test_plans_that_are_gone_are_made_again(home, name, compiled_anew, monkeypatch):
    make = lambda: (leaf(4, 8), leaf(8, 8))
    check(chain, make, compiled_anew)
    compiled_anew.clear()
    read = getattr(home, name)

    def without_plan(*args):
        record = read(*args)
        if record is not None:
            record["plan"] = "0" * len(record["plan"])
        return record

    monkeypatch.setattr(home, name, without_plan)
    check(chain, make, compiled_anew, again=1)


CHANGES = {
    "dtype": lambda: (leaf(4, 8, dtype=torch.float64), leaf(8, 8, dtype=torch.float64)),
    "size": lambda: (leaf(6, 8), leaf(8, 8)),
    "layout": lambda: (leaf(8, 4).t(), leaf(8, 8)),
    "frozen": lambda: (leaf(4, 8), torch.randn(8, 8)),
    "not a leaf": lambda: (leaf(4, 8) * 2, leaf(8, 8)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_other_inputs_are_other_steps(change, compiled_anew):
    make = lambda: (leaf(4, 8), leaf(8, 8))
    check(chain, make, compiled_anew)
    del compiled_anew[:]
    check(chain, CHANGES[change], compiled_anew)


STATES = {
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "deterministic": lambda: deterministic(),
    "attention": lambda: nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH),
    "flags": lambda: minidynamo.inductor.config.patch(fallback_random=True),
}


@contextlib.contextmanager
def deterministic():
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("state", STATES)
def test_other_states_are_other_steps(state):
    keys = set()

    def backend(gm, inputs):
        keys.add(stored_steps.step_key(gm, inputs))
        return gm.forward

    def run():
        minidynamo.reset()
        minidynamo.compile(attention, backend=backend)(leaf(4, 8), leaf(8, 8))

    run(), run()
    assert len(keys) == 1 and None not in keys
    with STATES[state]():
        run()
    assert len(keys) == 2 and None not in keys


def key_of(fn, *inputs):
    found = []

    def backend(gm, inputs):
        found.append(stored_steps.step_key(gm, inputs))
        return gm.forward

    minidynamo.reset()
    minidynamo.compile(fn, backend=backend)(*inputs)
    return found[-1]


@torch.library.custom_op("stored_steps::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


twice.register_fake(torch.empty_like)
twice.register_autograd(lambda ctx, grad: grad * 2)


def test_what_a_text_does_not_tell_is_not_kept():
    x = leaf(4, 8)
    assert key_of(lambda x: x.sin(), x) is not None
    assert key_of(lambda x: x.sin(), x.detach()) is None  # plans alone
    assert key_of(lambda x: twice(x).sin(), x) is None
    assert key_of(lambda x, y: x.sin() + y, x, x.detach()) is None  # on one memory
    with torch.no_grad():
        assert key_of(lambda x: x.sin(), x) is None
    dynamic = leaf(4, 8)
    minidynamo.mark_dynamic(dynamic, 0)
    assert key_of(lambda x: x.sin(), dynamic) is None


def test_a_listener_gets_the_details(compiled_anew):
    make = lambda: (leaf(4, 8), leaf(8, 8))
    check(chain, make, compiled_anew)
    seen = []
    with minidynamo.events.subscribe(seen.append, minidynamo.events.KernelEvent):
        minidynamo.reset()
        step(minidynamo.compile(chain), make)
    assert seen and len(compiled_anew) == 2


def test_artifacts_hold_steps(compiled_anew, tmp_path):
    make = lambda: (leaf(4, 8), leaf(8, 8))
    check(chain, make, compiled_anew)
    saved, _info = minidynamo.compiler.save_cache_artifacts()
    with minidynamo.config.patch(cache_dir=str(tmp_path / "other")):
        minidynamo.compiler.load_cache_artifacts(saved)
        minidynamo.reset()
        step(minidynamo.compile(chain), make)
    assert len(compiled_anew) == 1


def test_arguments_are_told_apart():
    x = leaf(4, 8)
    programs = [
        lambda x: x.sum(0),
        lambda x: x.sum(1),
        lambda x: x[0],
        lambda x: x[:1],
        lambda x: x[..., 0],
        lambda x: x[[0, 1]],
        lambda x: x[(0, 1)],
        lambda x: x * 1,
        lambda x: x * 1.0,
        lambda x: x * -0.0,
        lambda x: x * 0.0,
        lambda x: F.relu(x),
        lambda x: F.relu6(x),
        lambda x: x.relu(),
    ]
    keys = [key_of(program, x) for program in programs]
    assert None not in keys and len(set(keys)) == len(programs)


@pytest.mark.parametrize("kind", ["function", "partial", "method", "object"])
def test_a_function_that_others_call_was_replaced(kind, monkeypatch):
    """torch's own functions call it: what they do is no longer known by their names."""
    x = leaf(2, 5, 8)
    layer = nn.MultiheadAttention(8, 2, batch_first=True)
    run = lambda x: layer(x, x, x, need_weights=False)[0]
    assert key_of(run, x) is not None
    original = F.scaled_dot_product_attention
    others = {
        "function": lambda *args, **kwargs: original(*args, **kwargs) * 2,
        "partial": functools.partial(original, scale=2.0),
        "method": Attention().attend,
        "object": Attention(),
    }
    monkeypatch.setattr(F, "scaled_dot_product_attention", others[kind])
    assert key_of(run, x) is None


def test_a_function_of_torch_in_the_place_of_another(monkeypatch):
    x = leaf(2, 5, 8)
    key = key_of(lambda x: x.sin(), x)
    monkeypatch.setattr(F, "gelu", F.relu)
    assert key_of(lambda x: x.sin(), x) not in (None, key)


class Attention:
    def attend(self, *args, **kwargs):
        return args[0]

    __call__ = attend


def test_a_function_that_was_replaced_is_not_taken_for_torchs(monkeypatch):
    x = leaf(4, 8)
    assert key_of(lambda x: F.layer_norm(x, (8,)), x) is not None
    original = F.layer_norm
    monkeypatch.setattr(F, "layer_norm", lambda *args: original(*args))
    assert key_of(lambda x: original(x, (8,)), x) is None


def said_twice(program, folder):
    """What two processes with one cache print."""
    command = [sys.executable, "-c", program]
    environment = {**os.environ, "MINIDYNAMO_CACHE_DIR": str(folder)}
    said = []
    for _ in range(2):
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        said.append(done.stdout.strip())
    return said


PROGRAM = """
import sys, torch, minidynamo
torch.manual_seed(0)
layer = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
x = torch.randn(2, 5, 16)
def step(run):
    layer.zero_grad()
    y = run(x)
    y.square().sum().backward()
    return [y.detach().clone()] + [p.grad.clone() for p in layer.parameters()]
expected, found = step(layer), step(minidynamo.compile(layer))
for a, b in zip(expected, found):
    assert torch.allclose(a, b, rtol=1e-3, atol=1e-4)
print("aot" if "torch._functorch.aot_autograd" in sys.modules else "found")
"""


def test_another_process_finds_it(tmp_path):
    assert said_twice(PROGRAM, tmp_path) == ["aot", "found"]


FREED = """
import gc, sys, weakref, torch, minidynamo
net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.ReLU())
x = torch.randn(4, 8)
run = minidynamo.compile(net)
y = run(x)
y.sum().backward()
references = [weakref.ref(value) for value in (net, x, *net.parameters())]
del net, x, run, y
gc.collect(1)  # nothing of it counts as old
assert [found() for found in references] == [None] * len(references)
print("aot" if "torch._functorch.aot_autograd" in sys.modules else "found")
"""


def test_a_model_is_freed_soon(tmp_path):
    assert said_twice(FREED, tmp_path) == ["aot", "found"]
