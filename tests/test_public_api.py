"""compile() and what steers it: use, validation, disable, run, reset, backends, explain."""

import dataclasses
import functools
import inspect
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

import minidynamo
from minidynamo import exc
from minidynamo.inductor import metrics

ROOT = Path(__file__).resolve().parent.parent


class Recorder:
    """A backend that keeps the graphs it is given."""

    def __init__(self):
        self.graphs = []

    def __call__(self, gm, example_inputs):
        self.graphs.append(gm)
        return gm.forward


@pytest.fixture
def recorder():
    return Recorder()


@pytest.fixture
def x():
    return torch.linspace(-2, 2, 6)


def wave(x, shift=1):
    """A documented function."""
    return torch.sin(x) + shift


# -- forms of use ----------------------------------------------------------------------------------


def test_everything_public_is_there():
    for name in minidynamo.__all__:
        assert getattr(minidynamo, name) is not None
        assert name in dir(minidynamo)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = minidynamo.nothing


def test_what_programs_import_from_torchs_decorators_is_there():
    names = "allow_in_graph assume_constant_result disable disallow_in_graph graph_break run"
    for name in [*names.split(), "set_stance", "skip_frame", "step_unsupported"]:
        assert hasattr(torch._dynamo.decorators, name), name
        assert getattr(minidynamo.decorators, name) is getattr(minidynamo, name), name
        assert name in minidynamo.decorators.__all__


def test_the_inductors_flags_are_an_attribute():
    code = "import minidynamo; print(minidynamo.inductor.config.freezing)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout == "False\n", result.stderr


def test_call(recorder, x):
    fast = minidynamo.compile(wave, backend=recorder)
    for _ in range(2):
        assert torch.equal(fast(x), wave(x))
    assert len(recorder.graphs) == 1
    assert fast.__name__ == "wave" and fast.__doc__ == wave.__doc__ and fast.__wrapped__ is wave
    assert inspect.signature(fast) == inspect.signature(wave)


def test_decorators(recorder, x):
    @minidynamo.compile
    def bare(x):
        return x + 1

    @minidynamo.compile(backend=recorder, fullgraph=True)
    def with_arguments(x):
        return x + 1

    assert bare.__name__ == "bare"
    assert torch.equal(with_arguments(x), x + 1) and len(recorder.graphs) == 1


def test_methods(recorder, x):
    class Model:
        factor = 3

        @minidynamo.compile(backend=recorder)
        def method(self, x):
            return x * self.factor

        @minidynamo.compile(backend=recorder)
        @staticmethod
        def static(x):
            return x * 4

        @minidynamo.compile(backend=recorder)
        @classmethod
        def of_class(cls, x):
            return x * cls.factor * 2

        def plain(self, x):
            return x * self.factor * 5

    model = Model()
    assert torch.equal(model.method(x), x * 3)
    assert torch.equal(model.static(x), x * 4) and torch.equal(Model.static(x), x * 4)
    assert torch.equal(model.of_class(x), x * 6)
    assert torch.equal(minidynamo.compile(model.plain, backend=recorder)(x), x * 15)
    assert len(recorder.graphs) == 4


def test_callable_objects(recorder, x):
    class Adder:
        def __call__(self, x):
            return x + 7

    assert torch.equal(minidynamo.compile(Adder(), backend=recorder)(x), x + 7)
    assert len(recorder.graphs) == 1


def test_partials(recorder, x):
    fast = minidynamo.compile(functools.partial(wave, shift=5), backend=recorder)
    assert torch.equal(fast(x), wave(x, 5)) and len(recorder.graphs) == 1


@pytest.mark.parametrize("fn", [torch.sin, functools.partial(torch.add, other=2)])
def test_builtins_are_captured_too(fn, recorder, x):
    fast = minidynamo.compile(fn, backend=recorder)
    assert torch.equal(fast(x), fn(x)) and len(recorder.graphs) == 1


@pytest.mark.parametrize(
    "make",
    [torch.vmap, torch.func.grad, lambda fn: functools.partial(torch.func.hessian(fn))],
    ids=["vmap", "grad", "hessian"],
)
def test_transforms_are_captured_as_the_outermost_call(make, recorder, x):
    fn = make(lambda x: (x.sin() * x).sum())
    x = x.reshape(2, 3) if make is torch.vmap else x
    fast = minidynamo.compile(fn, backend=recorder, fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(fast(x), fn(x))
    assert len(recorder.graphs) == 1


def test_functions_of_libraries_as_the_outermost_call(recorder, x):
    fast = minidynamo.compile(torch.utils._pytree.tree_map, backend=recorder, fullgraph=True)
    assert torch.equal(fast(torch.sin, {"a": [x]})["a"][0], x.sin())
    assert len(recorder.graphs) == 1
    assert fast.__name__ == "tree_map"
    with pytest.raises(exc.Unsupported, match="jacobian is not traced"):
        jacobian = torch.autograd.functional.jacobian
        minidynamo.compile(jacobian, backend=recorder, fullgraph=True)(torch.sin, x)

    @minidynamo.compile(backend=recorder)
    @torch.no_grad()
    def without_grad(x):
        return x + 1

    assert not without_grad(x.clone().requires_grad_()).requires_grad
    assert len(recorder.graphs) == 2


def test_classes_get_a_compiled_call(recorder, x):
    @minidynamo.compile(backend=recorder)
    class Doubler:
        def __call__(self, x):
            return x * 2

    assert isinstance(Doubler, type)
    assert torch.equal(Doubler()(x), x * 2) and len(recorder.graphs) == 1


def test_compiling_twice_compiles_the_original(recorder, x):
    other = Recorder()
    fast = minidynamo.compile(minidynamo.compile(wave, backend=other), backend=recorder)
    assert fast.__wrapped__ is wave
    fast(x)
    assert len(recorder.graphs) == 1 and not other.graphs


def test_equal_configurations_share_code_and_others_do_not(recorder, x):
    for _ in range(3):
        minidynamo.compile(wave, backend=recorder)(x)
    assert len(recorder.graphs) == 1
    minidynamo.compile(wave, backend=recorder, fullgraph=True)(x)
    assert len(recorder.graphs) == 2
    other = Recorder()
    minidynamo.compile(wave, backend=other)(x)
    assert len(other.graphs) == 1


def test_one_method_of_one_object_is_one_backend(x):
    class Backends:
        graphs = 0

        def keep(self, gm, example_inputs):
            self.graphs += 1
            return gm.forward

    ours, others = Backends(), Backends()
    for backends in (ours, ours, others, ours):
        minidynamo.compile(wave, backend=backends.keep)(x)
    assert (ours.graphs, others.graphs) == (1, 1)


def test_backends_that_have_no_hash(x):
    @dataclasses.dataclass
    class Backend:
        graphs: int = 0

        def __call__(self, gm, example_inputs):
            self.graphs += 1
            return gm.forward

    one, other = Backend(), Backend()
    for backend in (one, other, one):
        minidynamo.compile(wave, backend=backend)(x)
    assert (one.graphs, other.graphs) == (1, 1)


def test_disable_argument(x):
    assert minidynamo.compile(wave, disable=True) is wave
    assert minidynamo.compile(disable=True)(wave) is wave
    with minidynamo.config.patch(disable=True):
        assert minidynamo.compile(wave) is wave


def test_mode_and_options_reach_a_users_backend(x):
    seen = []

    def backend(gm, example_inputs, **kwargs):
        seen.append(kwargs)
        return gm.forward

    minidynamo.compile(wave, backend=backend)(x)
    minidynamo.compile(wave, backend=backend, mode="whatever")(x)
    minidynamo.compile(wave, backend=backend, options={"level": 3})(x)
    assert seen == [{}, {"mode": "whatever"}, {"options": {"level": 3}}]


# -- wrong arguments -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"model": 3}, "model must be callable, not int 3"),
        ({"model": "f"}, "model must be callable, not str 'f'"),
        ({"fullgraph": 1}, "fullgraph must be a bool, not int 1"),
        ({"dynamic": "yes"}, "dynamic must be True, False or None, not str 'yes'"),
        ({"mode": 3}, "mode must be a str or None"),
        ({"options": ["a"]}, "options must be a dict or None"),
        ({"backend": 3}, "backend must be a name or a callable, not int 3"),
        ({"disable": None}, "disable must be a bool"),
    ],
)
def test_wrong_types_name_the_argument(arguments, message):
    with pytest.raises(TypeError, match=message):
        minidynamo.compile(**{"model": wave, **arguments})


def test_unknown_names_list_the_known_ones():
    with pytest.raises(exc.InvalidBackend, match="did you mean 'inductor'.*aot_eager, .*eager"):
        minidynamo.compile(wave, backend="inducto")
    with pytest.raises(
        exc.UserError, match="unknown mode 'fast'; known: default, lite, max-autotune"
    ):
        minidynamo.compile(wave, mode="fast")
    with pytest.raises(
        exc.UserError, match="unknown option 'cpu_bakend'; did you mean 'cpu_back"
    ):
        minidynamo.compile(wave, options={"cpu_bakend": "cpp"})
    with pytest.raises(exc.UserError, match="option 'cpu_backend'.*must be str, not int 3"):
        minidynamo.compile(wave, options={"cpu_backend": 3})
    with pytest.raises(exc.UserError, match="mode or options"):
        minidynamo.compile(wave, mode="default", options={})


def test_a_class_without_call_is_refused():
    class Nothing:
        pass

    with pytest.raises(TypeError, match="class .*Nothing, whose instances cannot be called"):
        minidynamo.compile(Nothing)


def test_wrong_argument_counts_fail_as_in_eager(recorder, x):
    fast = minidynamo.compile(wave, backend=recorder)
    for call in (fast, wave):
        with pytest.raises(TypeError, match=r"wave\(\) takes from 1 to 2 positional arguments"):
            call(x, 1, 2)
        with pytest.raises(TypeError, match=r"wave\(\) missing 1 required positional argument"):
            call()


def test_modes_and_options():
    assert list(minidynamo.list_mode_options())[0] == "default"
    assert set(torch._inductor.list_mode_options()) <= set(minidynamo.list_mode_options())
    assert minidynamo.list_mode_options("default") == {}
    assert "cpu_backend" in minidynamo.list_options()
    for options in minidynamo.list_mode_options().values():
        assert set(options) <= set(minidynamo.list_options())


def test_lite_mode_runs_operators_one_by_one(x):
    metrics.reset()
    x = x.clone().requires_grad_()
    result = minidynamo.compile(wave, mode="lite", fullgraph=True)(x)
    (grad,) = torch.autograd.grad(result.sum(), x)
    assert torch.equal(result, wave(x))
    torch.testing.assert_close(grad, torch.autograd.grad(wave(x).sum(), x)[0])
    assert metrics.kernel_calls == 0 and metrics.uncompiled_graphs == 2


# -- backends --------------------------------------------------------------------------------------


def test_backends_by_name(x):
    assert minidynamo.list_backends() == sorted(minidynamo.list_backends())
    assert "inductor" in minidynamo.list_backends()
    assert "eager" not in minidynamo.list_backends()
    assert {"eager", "aot_eager"} <= set(minidynamo.list_backends(exclude_tags=()))
    eager = minidynamo.lookup_backend("eager")
    assert minidynamo.lookup_backend(eager) is eager


@pytest.mark.parametrize("name", ["cudagraphs", "aot_eager_default_partitioner"])
def test_torchs_other_backends(x, name):
    """cudagraphs runs the kernels of inductor as they are where there is no GPU."""
    assert (name in minidynamo.list_backends()) == (name == "cudagraphs")
    layer = torch.nn.Linear(x.shape[-1], 2)
    compiled = minidynamo.compile(layer, backend=name, fullgraph=True)
    for argument in (x, torch.stack([x, x])):
        want, got = layer(argument), compiled(argument)
        torch.testing.assert_close(got, want)
        wanted = torch.autograd.grad(want.square().sum(), layer.weight)
        given = torch.autograd.grad(got.square().sum(), layer.weight)
        torch.testing.assert_close(given, wanted)


@pytest.mark.parametrize("name", ["eager_noexcept", "eager_debug", "pre_dispatch_eager"])
def test_backends_that_watch_the_graph(x, name, capsys):
    assert name in minidynamo.list_backends(exclude_tags=())
    layer = torch.nn.Linear(x.shape[-1], 2)
    compiled = minidynamo.compile(layer, backend=name, fullgraph=True)
    torch.testing.assert_close(compiled(x), layer(x), rtol=0, atol=0)
    wanted = torch.autograd.grad(layer(x).square().sum(), layer.weight)
    given = torch.autograd.grad(compiled(x).square().sum(), layer.weight)
    torch.testing.assert_close(given, wanted, rtol=0, atol=0)
    assert ("aten.linear" in capsys.readouterr().out) == (name == "pre_dispatch_eager")


def test_eager_noexcept_names_what_the_graph_raised():
    taken = minidynamo.compile(lambda x, i: x[i] + 1, backend="eager_noexcept")
    x = torch.arange(3)
    assert taken(x, torch.tensor([2])).tolist() == [3]
    with pytest.raises(minidynamo.exc.TorchDynamoException, match="captured graph") as raised:
        taken(x, torch.tensor([7]))
    assert isinstance(raised.value.__cause__, IndexError)


def test_eager_debug_finds_an_operator_that_writes_against_its_schema():
    library = torch.library.Library("minidynamo_debug", "FRAGMENT")
    library.define("writes(Tensor x) -> Tensor")
    library.impl("writes", lambda x: x.add_(1) * 2, "CompositeExplicitAutograd")
    library.impl("writes", torch.empty_like, "Meta")
    operator = torch.ops.minidynamo_debug.writes
    for backend, fails in (("eager", False), ("eager_debug", True)):
        compiled = minidynamo.compile(lambda x: operator(x), backend=backend)  # noqa: PLW0108
        if fails:
            with pytest.raises(RuntimeError, match="not defined as mutable"):
                compiled(torch.ones(2))
        else:
            assert compiled(torch.ones(2)).tolist() == [4, 4]


def test_registering_a_backend(x):
    graphs = []

    @minidynamo.register_backend(name="mine", tags=("debug",))
    def backend(gm, example_inputs):
        graphs.append(gm)
        return gm.forward

    assert minidynamo.register_backend(backend, name="mine") is backend
    assert minidynamo.lookup_backend("mine") is backend
    with pytest.raises(ValueError, match="'mine' is taken"):
        minidynamo.register_backend(lambda gm, inputs: gm, name="mine")
    with pytest.raises(ValueError, match="'inductor' is taken"):
        minidynamo.register_backend(backend, name="inductor")
    with pytest.raises(TypeError, match="must be callable"):
        minidynamo.register_backend("mine")
    minidynamo.compile(wave, backend="mine")(x)
    assert len(graphs) == 1


def test_a_backend_that_raises_is_named_with_its_cause(x):
    def broken(gm, example_inputs):
        raise KeyError("no such thing")

    with pytest.raises(
        exc.BackendCompilerFailed, match="backend='broken'.*\nKeyError"
    ) as caught:
        minidynamo.compile(wave, backend=broken)(x)
    assert caught.value.backend_name == "broken"
    assert isinstance(caught.value.inner_exception, KeyError)
    assert caught.value.__cause__ is caught.value.inner_exception


def test_a_backend_that_returns_nothing_is_named(x):
    with pytest.raises(exc.BackendCompilerFailed, match="returns a callable, not NoneType"):
        minidynamo.compile(wave, backend=lambda gm, inputs: None)(x)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_debugging_backends(backend):
    w = torch.randn(3, 3, requires_grad=True)
    x = torch.randn(2, 3)

    def loss(x, w):
        return (x @ w).relu().sum()

    loss(x, w).backward()
    expected, w.grad = w.grad, None
    result = minidynamo.compile(loss, backend=backend)(x, w)
    assert torch.allclose(result, loss(x, w))
    result.backward()
    assert torch.allclose(w.grad, expected)


def test_torch_compile_finds_our_backend():
    points = minidynamo.backends.registry.entry_points(group="torch_dynamo_backends")
    ours = [point for point in points if point.name == "minidynamo"]
    if not ours:
        pytest.skip("the package is not installed, only on the path")
    assert ours[0].value == "minidynamo.backends.inductor:inductor"


# -- disable, run, reset ---------------------------------------------------------------------------


def test_disable(recorder, x):
    def helper(x):
        return x + 1

    @minidynamo.disable
    def slow(x):
        return helper(x)

    fast = minidynamo.compile(lambda x: slow(x * 2) * 2, backend=recorder)
    assert torch.equal(fast(x), (x * 2 + 1) * 2)
    assert slow.__name__ == "slow"
    targets = [node.target for gm in recorder.graphs for node in gm.graph.nodes]
    assert len(recorder.graphs) == 2, targets


def test_disable_not_recursive(recorder, x):
    def helper(x):
        return x.cos()

    @minidynamo.disable(recursive=False)
    def slow(x):
        return helper(x).sin()

    assert inspect.isfunction(slow)
    fast = minidynamo.compile(lambda x: slow(x), backend=recorder)
    assert torch.equal(fast(x), x.cos().sin())
    names = [node.target for gm in recorder.graphs for node in gm.graph.nodes]
    assert "cos" in names and "sin" not in names


def test_disable_not_recursive_leaves_the_function_itself(recorder, x):
    class Model:
        def method(self, x, *, by=2):
            """doc"""
            return x.sin() * by

    def helper(x, by=3):
        return x.cos() * by

    slow, model = minidynamo.disable(helper, recursive=False), Model()
    bound = minidynamo.disable(model.method, recursive=False)
    assert slow.__name__ == "helper" and slow.__qualname__ == helper.__qualname__
    assert bound.__self__ is model and bound.__doc__ == "doc"
    assert inspect.signature(slow) == inspect.signature(helper)
    fast = minidynamo.compile(lambda x: slow(x) + bound(x, by=5), backend=recorder)
    assert torch.equal(fast(x), helper(x) + x.sin() * 5)
    fast = minidynamo.compile(lambda x: helper(x) + model.method(x), backend=recorder)
    recorder.graphs.clear()
    assert torch.equal(fast(x), helper(x) + x.sin() * 2)
    assert len(recorder.graphs) == 1


def test_disable_not_recursive_of_torch(recorder, x):
    told = []

    def helper(x):
        return x.cos()

    @torch.compiler.disable(recursive=False)
    def slow(x):
        told.append(torch.compiler.is_compiling())
        return helper(x).sin()

    fast = minidynamo.compile(lambda x: slow(x) + 1, backend=recorder)
    for _ in range(2):
        assert torch.equal(fast(x), x.cos().sin() + 1)
    names = [node.target for gm in recorder.graphs for node in gm.graph.nodes]
    assert told == [False, False] and "cos" in names and "sin" not in names


def test_disable_as_context_manager(recorder, x):
    fast = minidynamo.compile(wave, backend=recorder)

    def helper(x):
        return x * 3

    @minidynamo.compile(backend=recorder)
    def outer(x):
        with minidynamo.disable():
            return helper(x)

    assert torch.equal(outer(x), x * 3)
    fast(x)
    assert len(recorder.graphs) == 1


def test_disable_wants_something_to_call():
    with pytest.raises(TypeError, match="fn must be callable, not int"):
        minidynamo.disable(3)
    with pytest.raises(TypeError, match="takes a Python function"):
        minidynamo.disable(torch.sin, recursive=False)


@pytest.mark.parametrize("disable", [minidynamo.disable, torch.compiler.disable])
@pytest.mark.parametrize("recursive", [True, False])
def test_of_disable_and_compile_the_last_one_decides(recorder, x, recursive, disable):
    @disable(recursive=recursive)
    def fn(x):
        return x - 1 if torch.compiler.is_compiling() else x + 1

    fast = minidynamo.compile(fn, backend=recorder)
    assert torch.equal(fast(x), x - 1) and len(recorder.graphs) == 1
    assert torch.equal(fn(x), x + 1)
    minidynamo.reset()
    wrapped = functools.wraps(fn)(lambda x: fn(x) * 2)
    assert torch.equal(minidynamo.compile(wrapped, backend=recorder)(x), (x + 1) * 2)
    slow = minidynamo.disable(fast, recursive=recursive)
    assert torch.equal(slow(x), x + 1)


def test_a_disabled_module_may_be_compiled(recorder):
    model = minidynamo.disable(torch.nn.Linear(2, 2))
    minidynamo.compile(model, backend=recorder)(torch.ones(1, 2))
    assert len(recorder.graphs) == 1
    inner = torch.nn.Linear(2, 2)
    inner.forward = minidynamo.disable(inner.forward)
    minidynamo.compile(inner, backend=recorder)(torch.ones(1, 2))
    assert len(recorder.graphs) == 1


def test_run_compiles_nothing(recorder, x):
    fast = minidynamo.compile(wave, backend=recorder)
    runner = minidynamo.run(fast)
    assert torch.equal(runner(x), wave(x)) and not recorder.graphs
    fast(x)
    assert torch.equal(runner(x), wave(x)) and len(recorder.graphs) == 1
    assert torch.equal(runner(x.double()), wave(x.double())) and len(recorder.graphs) == 1
    assert torch.equal(minidynamo.run(wave)(x), wave(x))
    fast(x.double())
    assert len(recorder.graphs) == 2


def test_run_uses_what_is_compiled(x):
    def stored(gm, example_inputs):
        return lambda *inputs: (torch.zeros(1),)

    fast = minidynamo.compile(wave, backend=stored)
    fast(x)
    assert torch.equal(minidynamo.run(fast)(x), torch.zeros(1))
    assert torch.equal(minidynamo.run(wave)(x), torch.zeros(1))
    minidynamo.reset()
    assert torch.equal(minidynamo.run(fast)(x), wave(x))


def test_reset(recorder, x):
    fast = minidynamo.compile(wave, backend=recorder)
    fast(x)
    minidynamo.reset()
    fast(x)
    assert len(recorder.graphs) == 2


def test_other_threads_may_call(recorder, x):
    fast = minidynamo.compile(wave, backend=recorder)
    results = []
    threads = [threading.Thread(target=lambda: results.append(fast(x))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4 and all(torch.equal(result, wave(x)) for result in results)


# -- markers ---------------------------------------------------------------------------------------


def test_markers_do_nothing_in_eager():
    assert minidynamo.graph_break() is None and minidynamo.graph_break("why") is None
    assert minidynamo.is_compiling() is False
    assert minidynamo.allow_in_graph(wave) is wave
    assert minidynamo.markers.decision(wave) is minidynamo.markers.Decision.ALLOW
    minidynamo.markers.set_decision(wave, minidynamo.markers.Decision.INLINE)
    with pytest.raises(TypeError, match="allow_in_graph takes a callable"):
        minidynamo.allow_in_graph(3)


def test_is_compiling_inside(recorder, x):
    fast = minidynamo.compile(
        lambda x: x + 1 if minidynamo.is_compiling() else x - 1, backend=recorder
    )
    assert torch.equal(fast(x), x + 1)


def test_graph_break(recorder, x):
    def breaking(x):
        y = x.sin()
        minidynamo.graph_break()
        return y.cos()

    assert torch.equal(minidynamo.compile(breaking, backend=recorder)(x), breaking(x))
    assert len(recorder.graphs) == 2
    with pytest.raises(exc.Unsupported) as caught:
        minidynamo.compile(breaking, fullgraph=True, backend=recorder)(x)
    assert __file__ in str(caught.value) and "minidynamo.graph_break()" in str(caught.value)


def test_a_forgotten_function_has_no_decision():
    for _ in range(10):
        minidynamo.disallow_in_graph(lambda: None)
        assert minidynamo.markers.decision(lambda: None) is None


def test_marked_tensors_are_those_that_torch_marks():
    t = torch.zeros(3, 4, 5)
    minidynamo.mark_dynamic(t, [0, -1], min=2, max=9)
    minidynamo.mark_static(t, 1)
    markers = minidynamo.markers
    assert markers.dynamic_dims(t) == {0, 2} and markers.static_dims(t) == {1}
    assert markers.dynamic_range(t, 2) == (2, 9) and markers.dynamic_range(t, 1) == (None, None)
    minidynamo.mark_static(t)
    assert markers.dynamic_dims(t) == set() and markers.static_dims(t) == {0, 1, 2}
    theirs = torch.zeros(3, 4)
    torch._dynamo.mark_dynamic(theirs, 1, min=3)
    torch._dynamo.maybe_mark_dynamic(theirs, 0)
    assert markers.dynamic_dims(theirs) == {1} and markers.maybe_dynamic_dims(theirs) == {0}
    assert markers.dynamic_range(theirs, 1) == (3, None)


@pytest.mark.parametrize(
    "call, error",
    [
        (lambda t: minidynamo.mark_dynamic(3, 0), TypeError),
        (lambda t: minidynamo.mark_dynamic(t, 2), IndexError),
        (lambda t: minidynamo.mark_dynamic(t, "0"), TypeError),
        (lambda t: minidynamo.mark_dynamic(t, 0, min=3, max=2), exc.UserError),
        (lambda t: minidynamo.mark_static(3), TypeError),
    ],
)
def test_bad_marks(call, error):
    with pytest.raises(error):
        call(torch.zeros(2, 3))


# -- explain ---------------------------------------------------------------------------------------


def breaking(x):
    """Two graphs with a print between them."""
    y = x.sin() + 1
    print("in between")
    return y.cos()


def test_explain(x, capsys):
    report = minidynamo.explain(breaking)(x)
    assert capsys.readouterr().out == "in between\n"
    assert (report.graph_count, report.graph_break_count) == (2, 1)
    assert report.op_count == sum(map(len, report.ops_per_graph)) == 3
    assert len(report.graphs) == 2 and report.out_guards and report.compile_times
    (reason,) = report.break_reasons
    assert "print" in reason.reason
    assert (
        reason.user_stack[-1].filename == __file__ and reason.user_stack[-1].name == "breaking"
    )
    assert reason.user_stack[-1].line == 'print("in between")'
    lines = str(report).splitlines()
    assert lines[:5] == [
        "Graph Count: 2",
        "Graph Break Count: 1",
        "Op Count: 3",
        "Break Reasons:",
        "  Break Reason 1:",
    ]


def test_explain_starts_as_torchs_does(x):
    ours = str(minidynamo.explain(wave)(x)).splitlines()[:5]
    theirs = str(torch._dynamo.explain(wave)(x)).splitlines()[:5]
    strip = [line.partition(":")[0] for line in theirs]
    assert [line.partition(":")[0] for line in ours] == strip


def test_explain_in_one_call_and_of_what_is_compiled(recorder, x):
    fast = minidynamo.compile(wave, backend=recorder)
    assert minidynamo.explain(wave, x).graph_count == 1
    assert minidynamo.explain(fast, x, shift=2).graph_count == 1
    assert minidynamo.explain(torch.nn.Linear(6, 2))(x).graph_count == 1
    assert not recorder.graphs
    fast(x)
    assert minidynamo.explain(fast)(x).graph_count == 1 and len(recorder.graphs) == 1


def diamond(x, w):
    """`y` is needed before and after the product."""
    y = x.sin() * 2
    return y.cos() + y @ w


@pytest.mark.parametrize("fn", [torch.relu, torch.nn.functional.gelu, torch.vmap(torch.sin)])
def test_explain_of_a_function_of_the_library(fn, x):
    report = minidynamo.explain(fn)(x)
    assert (report.graph_count, report.graph_break_count) == (1, 0)


def test_explain_names_kernels_and_what_was_not_fused():
    report = minidynamo.explain(diamond)(torch.randn(20, 20), torch.randn(20, 20))
    ((schedule,),) = report.schedules
    assert [step.language for step in schedule.steps] == ["cpp", "call", "cpp"]
    first, call, last = schedule.steps
    assert first.operators == ["aten.sin.default", "aten.mul.Tensor"]
    assert call.operators == ["aten.mm.default"]
    assert {"aten.cos.default", "aten.add.Tensor"} <= {*last.operators}
    assert any(line.endswith("y = x.sin() * 2") for line in first.lines)
    text = str(report)
    start = text.index(
        "Kernels per Graph:\n  Kernels 1:\n    inference graph: 2 kernels, 1 call"
    )
    assert "1. cpp kernel: sin, mul\n" in text[start:]
    assert "not fused, another kernel has to run in between: 1 + 3\n" in text
    assert "not fused, operators that are called run alone: 1 + 2, 2 + 3\n" in text


def test_explain_shows_the_schedule_of_each_graph(x):
    report = minidynamo.explain(breaking)(x.requires_grad_())
    assert [[event.kind for event in of] for of in report.schedules] == [["forward"]] * 2
    parameter = torch.nn.Parameter(torch.ones(3))
    minidynamo.explain(lambda p: (p * 2).sum().backward())(parameter)
    assert torch.equal(parameter.grad, torch.full((3,), 2.0))


def test_explain_tells_what_is_not_compiled(x, monkeypatch):
    report = minidynamo.explain(wave)(x.to("meta"))
    assert "runs operator by operator: there are no kernels" in str(report)

    def failing(*_given, **_options):
        raise ArithmeticError("no way")

    monkeypatch.setattr("minidynamo.explanation.lookup_backend", lambda _name: failing)
    report = minidynamo.explain(wave)(x)
    assert "the backend raises ArithmeticError: no way" in str(report)
    assert report.graph_count == 1


def test_explain_passes_exceptions_on(x):
    def failing(x):
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        minidynamo.explain(failing)(x)
    with pytest.raises(TypeError, match="fn must be callable"):
        minidynamo.explain(3)


# -- the package -----------------------------------------------------------------------------------


def test_importing_the_package_needs_no_torch():
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "import minidynamo, minidynamo.bytecode\n"
        "minidynamo.config.recompile_limit = 3\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_a_backend_that_cannot_be_hashed_counts_by_identity():
    @dataclasses.dataclass(frozen=True)
    class Recorder:
        graphs: list

        def __call__(self, gm, example_inputs):
            self.graphs.append(gm)
            return gm.forward

    first, second = Recorder([]), Recorder([])

    def double(x):
        return x * 2

    for backend in (first, first, second):
        minidynamo.compile(double, backend=backend)(torch.ones(3))
    assert (len(first.graphs), len(second.graphs)) == (1, 1)
