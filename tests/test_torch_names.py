"""Names of torch.compiler, torch._dynamo and torch._inductor: all there or refused."""

import inspect
import subprocess
import sys
import unittest
import urllib.parse
import warnings

import pytest
import torch

import minidynamo
from minidynamo import compiler, config, events, exc, testing
from minidynamo.backends.common import aot_autograd
from minidynamo.inductor import config as inductor_config
from minidynamo.testing import CompileCounter


@pytest.fixture
def x():
    return torch.linspace(-1, 1, 6)


def wave(x):
    return torch.sin(x) + 1


def T():
    return torch.ones(3, 4)


# -- torch.compiler --------------------------------------------------------------------------------

# Not offered: the error says why.
REFUSED = {"load_compiled_function", "precompile", "set_enable_guard_collectives"}
REFUSED |= {"PrecompileError"}


def parameters(function):
    return [
        (p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()
    ]


@pytest.mark.parametrize("name", torch.compiler.__all__)
def test_every_name_of_torch_compiler(name):
    if name in REFUSED or not hasattr(compiler, name):
        with pytest.raises(AttributeError, match=f"no attribute '{name}': "):
            getattr(compiler, name)
        return
    theirs, ours = getattr(torch.compiler, name), getattr(compiler, name)
    if inspect.isfunction(theirs) and name not in ("compile", "wrap_numpy"):
        assert [row[0] for row in parameters(theirs)] == [row[0] for row in parameters(ours)][
            : len(parameters(theirs))
        ]


def test_arguments_of_compile_are_torchs():
    theirs, ours = parameters(torch.compile), parameters(minidynamo.compile)
    # The shapes are experimental; no backend means the default one in all versions.
    left_out = {"shapes_spec", "dynamic_shapes", "backend"}
    theirs = [row for row in theirs if row[0] not in left_out]
    assert theirs == [row for row in ours if row[0] in {name for name, _, _ in theirs}]


def test_is_compiling(x):
    def where(x):
        return x + compiler.is_dynamo_compiling() + 2 * minidynamo.is_dynamo_compiling()

    assert torch.equal(where(x), x)
    assert torch.equal(minidynamo.compile(where, backend="eager", fullgraph=True)(x), x + 3)


def test_default_backend(x):
    counter = CompileCounter()
    assert minidynamo.get_default_backend() == "inductor"
    try:
        minidynamo.set_default_backend(counter)
        assert compiler.get_default_backend() is counter
        assert torch.equal(minidynamo.compile(wave)(x), wave(x)) and counter.frame_count == 1
        for wrong, error in (("nothing", exc.InvalidBackend), (3, TypeError)):
            with pytest.raises(error):
                minidynamo.set_default_backend(wrong)
        assert minidynamo.get_default_backend() is counter
    finally:
        minidynamo.set_default_backend(None)
    assert minidynamo.get_default_backend() == "inductor"


def test_functions_of_numpy_arrays(x):
    numpy = pytest.importorskip("numpy")

    @compiler.wrap_numpy
    def program(x, scale):
        """Doc."""
        return {"sum": (numpy.sin(x) * scale).sum(), "all": x + scale}

    expected = {"sum": (x.sin() * 2).sum(), "all": x + 2}
    counter = CompileCounter()
    compiled = minidynamo.compile(program, backend=counter, fullgraph=True)
    for function in (program, compiled):
        found = function(x, 2)
        assert found.keys() == expected.keys() and program.__doc__ == "Doc."
        for name, value in expected.items():
            torch.testing.assert_close(torch.as_tensor(found[name]), value)
    assert counter.frame_count == 1
    inside = minidynamo.compile(lambda x: program(x, 2)["all"] * 3, backend=counter)
    torch.testing.assert_close(inside(x), expected["all"] * 3)
    assert counter.frame_count == 2
    with pytest.raises(TypeError, match="fn must be callable, not int 3"):
        compiler.wrap_numpy(3)


# -- torch._dynamo ---------------------------------------------------------------------------------

# Not offered: the error says what there is instead.
NOT_HERE = {"allow_c_slot", "bytecode_debugger", "replay", "set_recursion_limit"}
NOT_HERE |= {"reset_recompile_user_contexts"}


@pytest.mark.parametrize("name", torch._dynamo.__all__)
def test_every_name_of_torch_dynamo(name):
    if name in NOT_HERE:
        with pytest.raises(AttributeError, match=f"no attribute '{name}': "):
            getattr(minidynamo, name)
    else:
        assert hasattr(minidynamo, name)


def test_what_disable_left():
    def plain(x):
        return x

    deep, shallow = minidynamo.disable(plain), minidynamo.disable(plain, recursive=False)
    asked = [minidynamo.is_dynamo_disable_recursive(f) for f in (deep, shallow, plain)]
    assert asked == [True, False, None]
    theirs = torch._dynamo.disable(plain, recursive=False)
    assert minidynamo.is_dynamo_disable_recursive(theirs) is False


@pytest.mark.parametrize("module", [minidynamo, torch._dynamo])
def test_markers_without_an_effect_are_captured(x, module):
    if not hasattr(module, "override_optimization_hint"):
        pytest.skip("torch before 2.13 has no such names")

    @module.override_cudagraphs(fwd=False)
    def doubled(x):
        return x * 2

    def program(x):
        module.override_optimization_hint(x.shape[0], 5)
        with module.override_cudagraphs(bwd=True):
            count = x.sum().to(torch.int64).item()
            module.override_optimization_hint(count, 42)
            return doubled(x) + count

    counter = CompileCounter()
    with config.patch(capture_scalar_outputs=True):
        compiled = minidynamo.compile(program, backend=counter, fullgraph=True, dynamic=True)
        assert torch.equal(compiled(x), program(x))
    assert counter.frame_count == 1
    for wrong in ((3, "42"), ("3", 42)):
        with pytest.raises(TypeError, match="override_optimization_hint"):
            module.override_optimization_hint(*wrong)


def test_the_inductor_by_its_names(x):
    graph = torch.fx.symbolic_trace(lambda x: (x.sin() + 1,))
    for compile_fx in (
        minidynamo.inductor.compile_fx,
        minidynamo.inductor.compile_fx.compile_fx,
    ):
        torch.testing.assert_close(compile_fx(graph, [x])(x)[0], x.sin() + 1)


def test_torchs_guard_filters(x):
    counter = CompileCounter()
    options = {"guard_filter_fn": compiler.skip_all_guards_unsafe}
    fast = minidynamo.compile(lambda x, n: x * n, backend=counter, options=options)
    fast(x, 2)
    assert torch.equal(fast(x, 3), x * 2) and counter.frame_count == 1
    for name in ("keep_tensor_guards_unsafe", "skip_guard_on_globals_unsafe"):
        assert getattr(compiler, name) is getattr(torch.compiler, name)


FILL = """
import sys, torch, minidynamo
from minidynamo import compiler
f = minidynamo.compile(lambda x: torch.sin(x) * 3 + x)
"""


def test_artifacts_fill_the_cache_of_another_machine(tmp_path):
    def run(code, folder):
        command = [sys.executable, "-c", FILL + code, str(tmp_path / "saved")]
        env = {**__import__("os").environ, "MINIDYNAMO_CACHE_DIR": str(folder)}
        out = subprocess.run(command, env=env, capture_output=True, text=True)
        assert out.returncode == 0, out.stderr
        return out.stdout

    save = """
assert compiler.save_cache_artifacts() is None
f(torch.ones(5))
saved, info = compiler.save_cache_artifacts()
open(sys.argv[1], "wb").write(saved)
print(sorted(info.artifacts))
"""
    load = """
from minidynamo import events
looks = []
info = compiler.load_cache_artifacts(open(sys.argv[1], "rb").read())
with events.subscribe(looks.append, events.CacheEvent):
    assert torch.allclose(f(torch.ones(5)), torch.sin(torch.ones(5)) * 3 + 1)
assert looks and all(look.hit for look in looks), looks
print(sorted(info.artifacts))
"""
    kinds = run(save, tmp_path / "first")
    assert kinds == run(load, tmp_path / "second") and "plan" in kinds


def test_artifacts_are_checked():
    with pytest.raises(TypeError, match="serialized_artifacts must be bytes, not str"):
        compiler.load_cache_artifacts("x")
    for wrong in (b"", b"minidynamo cache 1\n" + bytes(60)):
        with pytest.raises(exc.UserError, match="damaged"):
            compiler.load_cache_artifacts(wrong)


# -- torch._dynamo ---------------------------------------------------------------------------------


def test_more_arguments_of_optimize(x):
    counter = CompileCounter()
    fast = minidynamo.optimize(
        counter, guard_filter_fn=lambda guards: [False] * len(guards), recompile_limit=3
    )(lambda x, n: x * n)
    fast(x, 2)
    assert torch.equal(fast(x, 3), x * 2) and counter.frame_count == 1
    isolated = minidynamo.optimize_assert(counter, isolate_recompiles=True, dynamic=False)
    assert torch.equal(isolated(wave)(x), wave(x)) and counter.frame_count == 2


def test_backends_of_compilers_of_functional_graphs(x):
    seen = []

    def named(kind):
        def compiler(graph, inputs):
            seen.append(kind)
            return graph.forward

        return compiler

    w = torch.ones(6, requires_grad=True)
    backend = aot_autograd(fw_compiler=named("forward"), bw_compiler=named("backward"))
    loss = minidynamo.compile(lambda x, w: (x * w).sin().sum(), backend=backend)(x, w)
    loss.backward()
    torch.testing.assert_close(w.grad, x * (x * w).cos().detach())
    assert seen == ["forward", "backward"]
    backend = aot_autograd(
        fw_compiler=named("forward"),
        inference_compiler=named("inference"),
        decompositions=lambda: {},
    )
    assert torch.equal(minidynamo.compile(wave, backend=backend)(x), wave(x))
    assert seen[2:] == ["inference"]
    with pytest.raises(TypeError, match="bw_compiler must be callable, not int"):
        aot_autograd(fw_compiler=len, bw_compiler=3)
    with pytest.raises(TypeError, match="nothing"):
        aot_autograd(fw_compiler=len, nothing=3)


@pytest.mark.parametrize(
    "wrong, message",
    [
        (lambda: minidynamo.disable(wave, recursive=3), "disable: recursive must be a bool"),
        (lambda: minidynamo.disable(wave, reason=3), "disable: reason must be a str or None"),
        (lambda: minidynamo.disable(wave, wrapping=None), "disable: wrapping must be a bool"),
        (lambda: minidynamo.dont_skip_tracing(3), "dont_skip_tracing takes a callable"),
        (lambda: minidynamo.nonstrict_trace(3), "nonstrict_trace takes a callable"),
        (
            lambda: minidynamo.compile(wave, recompile_limit=True),
            "recompile_limit must be 1 or",
        ),
        (lambda: minidynamo.compile(wave, recompile_limit=-1), "recompile_limit must be 1 or"),
        (lambda: minidynamo.mark_dynamic(T(), 0, min="1"), "mark_dynamic: min must be an int"),
        (lambda: minidynamo.mark_dynamic(T(), 0, max=2.5), "mark_dynamic: max must be an int"),
        (lambda: minidynamo.mark_dynamic(T(), 0, hint_override=[]), "hint_override must be an"),
        (
            lambda: minidynamo.mark_dynamic(T(), 0, specialize_on=3),
            "specialize_on must be a list",
        ),
        (
            lambda: minidynamo.mark_unbacked(T(), 0, min=True),
            "mark_unbacked: min must be an int",
        ),
        (lambda: minidynamo.mark_unbacked(T(), 0, strict=1), "strict must be a bool, not 1"),
        (
            lambda: minidynamo.mark_unbacked(T(), 0, shape_id=1),
            "shape_id must be a str or None",
        ),
        (lambda: minidynamo.mark_static_address(T(), 1), "guard must be a bool, not 1"),
        (
            lambda: minidynamo.set_stance(skip_guard_eval_unsafe=1),
            "skip_guard_eval_unsafe must",
        ),
        (lambda: minidynamo.register_backend(wave, name=0), "name must be a str, not 0"),
        (
            lambda: minidynamo.register_backend(wave, tags="debug"),
            "tags must be a list or tuple",
        ),
        (
            lambda: minidynamo.list_backends("debug"),
            "exclude_tags must be a list or tuple of str",
        ),
        (lambda: minidynamo.disable_nested_graph_breaks(3), "decorates functions, not int 3"),
        (
            lambda: minidynamo.patch_dynamo_config(3),
            "name must be a flag's or a dict, not int 3",
        ),
        (lambda: config.load_config(3), "saved must be bytes or a dict, not int 3"),
        (lambda: config.load_config(b"x"), "these bytes are not save_config"),
        (lambda: config.patch(recompile_limit=-1), "recompile_limit must be 0 or more, not -1"),
        (lambda: events.subscribe(3), "listener must be callable, not 3"),
        (lambda: events.subscribe(print, 3), "kinds must be classes of events, not 3"),
        (lambda: testing.CompileCounterWithBackend(3), "backend must be a name or a callable"),
    ],
)
def test_wrong_arguments(wrong, message):
    with pytest.raises((TypeError, ValueError), match=message):
        wrong()


def test_dont_skip_tracing_as_a_decorator_with_brackets(x):
    assert minidynamo.dont_skip_tracing()(wave) is wave


def joined(x):
    return x + len(urllib.parse.urljoin("a/b", "c"))  # calls others of its module


def in_a_block(x):
    with minidynamo.dont_skip_tracing():
        y = joined(x)
    return y * 2


@minidynamo.dont_skip_tracing
def decorated(x):
    return joined(x) * 3


@pytest.mark.parametrize("fn", [in_a_block, decorated, lambda x: decorated(x) + 1])
def test_dont_skip_tracing_of_what_is_called_inside(fn, x):
    counter = testing.CompileCounter()
    compiled = minidynamo.compile(fn, backend=counter, fullgraph=True)
    assert torch.equal(compiled(x), fn(x)) and counter.frame_count == 1
    with pytest.raises(minidynamo.exc.Unsupported):
        minidynamo.compile(lambda x: joined(fn(x)), backend="eager", fullgraph=True)(x)
    assert torch.equal(minidynamo.compile(lambda x: joined(fn(x)))(x), joined(fn(x)))


def test_dont_skip_tracing_around_a_call(x):
    compiled = minidynamo.compile(joined, backend="eager", fullgraph=True)
    with pytest.raises(minidynamo.exc.Unsupported):
        compiled(x)
    with minidynamo.dont_skip_tracing():
        assert torch.equal(
            minidynamo.compile(joined, backend="eager", fullgraph=True)(x), joined(x)
        )


# -- torch._dynamo.testing -------------------------------------------------------------------------


def test_results_of_models(x):
    model = minidynamo.compile(torch.nn.BatchNorm1d(6), backend="eager")
    leaf = testing.clone_me(x.reshape(1, 6).expand(2, 6).clone().requires_grad_())
    assert leaf.is_leaf and leaf.requires_grad and testing.clone_me(None) is None
    out = model(leaf)
    loss = testing.reduce_to_scalar_loss((out, {"more": torch.arange(4)}))
    assert loss.item() == pytest.approx((out.mean().item() + 1.5) / 2)
    loss.backward()
    results = testing.collect_results(model, out, loss, (leaf, [leaf]))
    assert set(results[2]) == {"weight.grad", "bias.grad"} and set(results[3]) == {
        "weight",
        "bias",
    }
    assert "running_mean" in results[4] and results[5] is results[6] is leaf.grad
    assert testing.requires_bwd_pass([None, 3, out]) and not testing.requires_bwd_pass([x])
    for wrong in (testing.requires_bwd_pass, testing.reduce_to_scalar_loss):
        with pytest.raises(NotImplementedError, match="of str"):
            wrong("text")
    testing.reset_rng_state()
    first = torch.rand(2)
    testing.reset_rng_state()
    assert torch.equal(first, torch.rand(2))


def test_texts_of_graphs():
    text = "def forward(self):  \n    # File: x.py:3\n\n\n\n    return 1  # kept\n"
    assert testing.normalize_gm(text) == "def forward(self):\n\n    return 1  # kept\n"
    assert testing.empty_line_normalizer("a\n\n\nb\r\n") == "a\nb\n"


def test_cases_of_unittest():
    class Case(unittest.TestCase):
        helper = 3

        def test_one(self):
            testing.standard_test(self, lambda a, b: (a + b).sin(), 2, expected_ops=2)
            assert config.specialize_int is True

        @testing.expectedFailureDynamic
        def test_two(self):
            raise ValueError

    made = testing.make_test_cls_with_patches(
        Case,
        "Patched",
        "_p",
        (config, "specialize_int", True),
        xfail_prop="_expected_failure_dynamic",
    )
    assert made.__name__ == "PatchedCase" and made.helper == 3
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(made).run(result)
    assert result.testsRun == 2 and len(result.expectedFailures) == 1 and result.wasSuccessful()
    assert config.specialize_int is False


# -- torch._inductor -------------------------------------------------------------------------------


def test_options_of_torch_without_counterpart(x):
    minidynamo.reset()
    with pytest.warns(
        UserWarning, match="coordinate_descent_tuning = True has no effect"
    ) as all:
        fast = minidynamo.compile(wave, options={"coordinate_descent_tuning": True})
    assert all[0].filename == __file__
    torch.testing.assert_close(fast(x), wave(x))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        minidynamo.compile(wave, options={"triton.multi_kernel": 0, "size_asserts": True})
    for wrong in ("post_grad_custom_post_pass", "fallback_by_defaults", 3):
        with pytest.raises(exc.UserError, match=f"unknown option {wrong!r}"):
            minidynamo.compile(wave, options={wrong: True})


def test_flags_of_inductor_by_torchs_spelling():
    minidynamo.reset()
    assert inductor_config.triton.cudagraphs is False and inductor_config.cpp.threads == -1
    try:
        inductor_config.triton.cudagraphs = True
        assert inductor_config.triton_cudagraphs is True
        with pytest.warns(UserWarning, match="triton.unique_kernel_names = False has no"):
            inductor_config.triton.unique_kernel_names = False
    finally:
        inductor_config.triton.cudagraphs = False
        inductor_config.triton.unique_kernel_names = True
    with pytest.raises(AttributeError, match="no flag 'triton.nothing'"):
        inductor_config.triton.nothing = 3
    with pytest.raises(TypeError, match="triton_cudagraphs must be bool, not int 3"):
        inductor_config.triton.cudagraphs = 3
    with pytest.raises(AttributeError, match="cannot be deleted"):
        del inductor_config.triton.cudagraphs


def test_inert_flags_of_inductor_are_torchs():
    """But for a few that not every version of torch has, or has with another default."""
    missing = object()

    def theirs(name):
        value = torch._inductor.config
        for part in name.split("."):
            value = getattr(value, part, missing)
        return value

    inert = inductor_config.__inert__
    assert sum(theirs(name) is missing for name in inert) < 10
    assert sum(theirs(name) not in (value, missing) for name, value in inert.items()) < 6
    assert not set(inert) & {*inductor_config.__fields__, *inductor_config.__aliases__}


# -- torch._logging --------------------------------------------------------------------------------


def test_names_of_torch_logs(capsys, x):
    minidynamo.reset()
    try:
        minidynamo.set_logs("+recompiles_verbose", graph=True)
        assert set(events.active_logs()) == {"recompiles", "graph_code"}
        fast = minidynamo.compile(wave, backend="eager")
        fast(x)
        fast(x.double())
        text = capsys.readouterr().err
        assert "[graph_code]" in text and "[recompiles] recompiling wave" in text
        for wrong in ("nothing", 3):
            with pytest.raises(ValueError, match=f"unknown log {wrong!r}; .*known: all, aot_"):
                minidynamo.set_logs(wrong)
    finally:
        minidynamo.set_logs()
