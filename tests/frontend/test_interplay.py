"""compile() among other things of a program: other compile() calls, disable, torch.compile,
threads, copies, deletion, recursion, generators; and the limits of recompilation.
"""

import asyncio
import copy
import functools
import gc
import pickle
import threading
import weakref

import pytest
import torch
from testing import CountingBackend, assert_same, check

import minidynamo
from minidynamo import config

x = torch.randn(4)


def opaque(value=None):
    return value


minidynamo.disallow_in_graph(opaque)


@pytest.fixture(autouse=True)
def fresh():
    minidynamo.reset()
    yield
    minidynamo.reset()


# -- compile() inside of compile()


def test_compiled_function_inside_of_a_compiled_one():
    inner = minidynamo.compile(lambda a: a.sin() + 1, backend=CountingBackend())

    def f(a):
        return inner(a * 2).cos()

    check(f, x, graphs=1)


def test_compiled_function_with_a_break_inside_of_a_compiled_one():
    def inner(a):
        a = a + 1
        opaque()
        return a * 2

    inner = minidynamo.compile(inner, backend=CountingBackend())

    def f(a):
        return inner(a.sin()).cos()

    check(f, x, graphs=2)


def test_compiled_inside_of_what_a_break_calls():
    counter = CountingBackend()
    inner = minidynamo.compile(lambda a: a.sin() + 1, backend=counter)

    @minidynamo.disable
    def between(a):
        return inner(a)

    def f(a):
        return between(a * 2).cos()

    check(f, x, graphs=2)
    assert len(counter.graphs) == 1


def test_compile_is_called_in_a_compiled_function():
    def f(a):
        g = minidynamo.compile(lambda v: v + 1, backend="eager")
        return g(a.sin()).cos()

    check(f, x, graphs=None)


def test_caches_of_two_backends_do_not_mix():
    def f(a):
        return a.sin() + 1

    first, second = CountingBackend(), CountingBackend()
    one, two = (minidynamo.compile(f, backend=b) for b in (first, second))
    for _ in range(2):
        assert_same(f(x), one(x))
        assert_same(f(x), two(x))
    assert (len(first.graphs), len(second.graphs)) == (1, 1)


def test_caches_of_fullgraph_and_of_dynamic_do_not_mix():
    def f(a):
        b = a + 1
        opaque()
        return b * 2

    backend = CountingBackend()
    loose = minidynamo.compile(f, backend=backend)
    strict = minidynamo.compile(f, backend=backend, fullgraph=True)
    assert_same(f(x), loose(x))
    with pytest.raises(minidynamo.exc.Unsupported):
        strict(x)
    assert_same(f(x), loose(x))

    def g(a):
        return a.sin() + a.shape[0]

    static = minidynamo.compile(g, backend=backend, dynamic=False)
    dynamic = minidynamo.compile(g, backend=backend, dynamic=True)
    backend.graphs.clear()
    for n in (3, 4, 5):
        value = torch.randn(n)
        assert_same(g(value), dynamic(value))
    assert len(backend.graphs) == 1
    for n in (3, 4, 5):
        value = torch.randn(n)
        assert_same(g(value), static(value))
    assert len(backend.graphs) == 4


def test_the_caller_decides_about_the_callee():
    outer, inner = CountingBackend(), CountingBackend()

    def g(a):
        return a.sin() + 1

    compiled = minidynamo.compile(g, backend=inner)
    f = minidynamo.compile(lambda a: compiled(a) * 2, backend=outer)
    assert_same(g(x) * 2, f(x))
    assert (len(outer.graphs), len(inner.graphs)) == (1, 0)
    assert_same(g(x), compiled(x))
    assert (len(outer.graphs), len(inner.graphs)) == (1, 1)


# -- disable


def test_disabled_function_compiles_nothing_below():
    def helper(a):
        return a.sin() + 1

    @minidynamo.disable
    def eager(a):
        return helper(a)

    def f(a):
        return eager(a * 2).cos()

    counter = check(f, x, graphs=2, breaks=1)
    assert counter.op_count == 2


def test_disabled_function_alone():
    def helper(a):
        return a.sin() + 1

    @functools.partial(minidynamo.disable, recursive=False)
    def eager(a):
        return helper(a)

    def f(a):
        return eager(a * 2).cos()

    counter = check(f, x, graphs=3, breaks=1)
    assert counter.op_count == 4


def test_disabled_in_a_callee():
    @minidynamo.disable
    def eager(a):
        return a + 1

    def g(a):
        return eager(a * 2) * 3

    def f(a):
        return g(a.sin()).cos()

    check(f, x, graphs=2, breaks=1)


def test_disabled_method_and_module():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)

        @minidynamo.disable
        def helper(self, a):
            return self.linear(a)

        def forward(self, a):
            return self.helper(a * 2).relu()

    model = Model()
    check(lambda a: model(a) + 1, x, graphs=2, breaks=1)


# -- torch.compile


def test_torch_compile_inside():
    inner = torch.compile(lambda a: a.sin() + 1, backend="eager")

    def f(a):
        return inner(a * 2).cos()

    check(f, x, graphs=None)


def test_inside_of_torch_compile():
    counter = CountingBackend()
    inner = minidynamo.compile(lambda a: a.sin() + 1, backend=counter)

    def f(a):
        return inner(a * 2).cos()

    compiled = torch.compile(f, backend="eager")
    for _ in range(2):
        assert_same(f(x), compiled(x))


def test_side_by_side_with_torch_compile():
    def f(a):
        return a.sin() + 1

    ours, theirs = minidynamo.compile(f, backend="eager"), torch.compile(f, backend="eager")
    for value in (x, torch.randn(3), x):
        assert_same(f(value), theirs(value))
        assert_same(f(value), ours(value))


# -- what can be compiled


class Box:
    scale = 3

    def __init__(self, k):
        self.k = k

    def bound(self, a):
        return a.sin() * self.k

    @classmethod
    def of_class(cls, a):
        return a.sin() * cls.scale

    @staticmethod
    def plain(a):
        return a.sin() * 4

    def __call__(self, a):
        return a.cos() * self.k


@pytest.mark.parametrize(
    "fn",
    [
        Box(2).bound,
        functools.partial(Box.bound, Box(5)),
        Box.of_class,
        Box.plain,
        Box(2),
        functools.partial(torch.add, torch.ones(4), alpha=2),
        lambda a: a.sin() + 1,
        torch.sin,
        torch.nn.functional.relu,
        torch.nn.Linear(4, 4),
        torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()),
    ],
    ids=lambda fn: type(fn).__name__,
)
def test_callables(fn):
    counter = CountingBackend()
    compiled = minidynamo.compile(fn, backend=counter)
    for _ in range(2):
        assert_same(fn(x), compiled(x))
    assert len(counter.graphs) == 1


def test_methods_of_two_objects():
    counter = CountingBackend()
    first, second = (minidynamo.compile(Box(k).bound, backend=counter) for k in (2, 3))
    for _ in range(2):
        assert_same(Box(2).bound(x), first(x))
        assert_same(Box(3).bound(x), second(x))
    assert len(counter.graphs) <= 2


def test_decorated_methods():
    class Model:
        k = 2

        @minidynamo.compile(backend="eager")
        def method(self, a):
            return a * self.k

        @classmethod
        @minidynamo.compile(backend="eager")
        def of_class(cls, a):
            return a + cls.k

        @staticmethod
        @minidynamo.compile(backend="eager")
        def plain(a):
            return a - 1

    model = Model()
    for _ in range(2):
        assert_same(model.method(x), x * 2)
        assert_same(Model.method(model, x), x * 2)
        assert_same(model.of_class(x), x + 2)
        assert_same(Model.plain(x), x - 1)


def test_closure_over_a_tensor_that_changes():
    weight = torch.ones(4)

    def f(a):
        return a * weight

    compiled = minidynamo.compile(f, backend="eager")
    assert_same(compiled(x), x)
    weight = torch.full((4,), 3.0)
    assert_same(compiled(x), x * 3)
    weight = torch.ones(2, 4)
    assert_same(compiled(x), x * weight)


@pytest.mark.parametrize("value", [3, "text", None.__class__, torch.ones(2)])
def test_what_cannot_be_compiled_is_refused(value):
    if isinstance(value, type):
        pytest.skip("a class")
    with pytest.raises(TypeError, match="model must be callable"):
        minidynamo.compile(value)


def test_class_that_cannot_be_called_is_refused():
    class Plain:
        pass

    with pytest.raises(TypeError, match="instances cannot be called"):
        minidynamo.compile(Plain)


def test_builtin():
    compiled = minidynamo.compile(len, backend="eager")
    assert compiled([1, 2, 3]) == 3
    with pytest.raises(TypeError):
        compiled(3)


def test_generator_function():
    def numbers(a):
        for k in range(3):
            a = a + k
            yield a.sin()

    compiled = minidynamo.compile(numbers, backend="eager")
    for _ in range(2):
        assert_same(list(numbers(x)), list(compiled(x)))
    generator = compiled(x)
    next(generator)
    generator.close()
    with pytest.raises(StopIteration):
        next(generator)


def test_async_function():
    async def helper(a):
        await asyncio.sleep(0)
        return a + 1

    async def f(a):
        b = await helper(a * 2)
        return b.cos()

    compiled = minidynamo.compile(f, backend="eager")
    for _ in range(2):
        assert_same(asyncio.run(f(x)), asyncio.run(compiled(x)))


def test_async_function_of_compiled_parts():
    part = minidynamo.compile(lambda a: a.sin() + 1, backend="eager")

    async def f(a):
        results = await asyncio.gather(*(worker(a + k) for k in range(4)))
        return sum(results)

    async def worker(a):
        await asyncio.sleep(0)
        return part(a)

    expected = sum((x + k).sin() + 1 for k in range(4))
    assert_same(expected, asyncio.run(f(x)))


# -- copies


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, a):
        return self.linear(a).relu()


def test_deepcopy_of_a_compiled_module():
    model = minidynamo.compile(Model(), backend="eager")
    model(x)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.linear.weight.zero_()
    assert_same(twin(x), torch.relu(twin.linear.bias))
    assert not torch.equal(model(x), twin(x)) or model(x).sum() == 0


def test_pickle_of_a_compiled_module():
    model = minidynamo.compile(Model(), backend="eager")
    expected = model(x)
    twin = pickle.loads(pickle.dumps(model))
    assert_same(expected, twin(x))
    assert type(twin) is type(model)


def test_module_with_a_compiled_method_is_copied():
    class Holder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)
            self.step = minidynamo.compile(self.run, backend="eager")

        def run(self, a):
            return self.linear(a)

    holder = Holder()
    twin = copy.deepcopy(holder)
    with torch.no_grad():
        twin.linear.weight.zero_()
    assert_same(twin.step(x), twin.linear.bias * 1)
    assert_same(holder.step(x), holder.linear(x))


# -- memory


def break_in(model, a):
    opaque()
    return model(a)


@pytest.mark.parametrize("with_break", [False, True])
def test_deleted_model_is_freed(with_break):
    model = Model()

    def call(a, model=model):
        return break_in(model, a) if with_break else model(a)

    reference = weakref.ref(model), weakref.ref(model.linear.weight)
    compiled = minidynamo.compile(model, backend="eager")
    compiled(x)
    minidynamo.compile(call, backend="eager")(x)
    del compiled, call, model
    gc.collect()
    assert [r() for r in reference] == [None, None]


@pytest.mark.parametrize("with_break", [False, True])
def test_arguments_are_freed_without_a_collection(with_break):
    class Box:
        pass

    def helper(box):
        return [value + 1 for value in box.values]

    def f(box):
        total = sum(helper(box))
        if with_break:
            minidynamo.graph_break()
        return total + len(helper(box))

    minidynamo.compile(lambda x: x + 1, backend="eager")(torch.ones(1))
    compiled = minidynamo.compile(f, backend="eager")
    box = Box()
    box.values = [torch.ones(2), torch.ones(2)]
    references = weakref.ref(box), weakref.ref(box.values[0])
    gc.collect()
    gc.disable()
    try:
        compiled(box)
        del box
        assert [reference() for reference in references] == [None, None]
    finally:
        gc.enable()


def test_code_of_a_deleted_function_is_freed():
    def make():
        def f(a):
            b = a + 1
            opaque()
            return inner(b)

        def inner(a):
            opaque()
            return a * 2

        compiled = minidynamo.compile(f, backend=lambda gm, inputs: gm.forward)
        compiled(x)
        return weakref.ref(f), weakref.ref(compiled)

    references = make()
    minidynamo.reset()
    gc.collect()
    assert [r() for r in references] == [None, None]


# -- threads and recursion


def test_threads_call_one_function():
    def inner(a, k):
        a = a + k
        opaque()
        return a * 2

    def f(a, k):
        return inner(a.sin(), k).cos()

    compiled = minidynamo.compile(f, backend="eager")
    wrong = []

    def work(seed):
        generator = torch.Generator().manual_seed(seed)
        for k in range(20):
            a = torch.randn(4 + k % 3, generator=generator)
            if not torch.allclose(f(a, k), compiled(a, k)):
                wrong.append((seed, k))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_recursion_with_breaks():
    def f(a, n):
        if n == 0:
            return a
        b = f(a * 0.5, n - 1)
        opaque()
        return b + n

    check(f, x, 12, graphs=None)


def test_mutual_recursion_of_compiled_functions():
    @minidynamo.compile(backend="eager")
    def even(a, n):
        return a if n == 0 else odd(a + 1, n - 1)

    @minidynamo.compile(backend="eager")
    def odd(a, n):
        opaque()
        return a * 2 if n == 0 else even(a * 0.5, n - 1)

    def plain(a, n):
        for k in range(n):
            a = a + 1 if k % 2 == 0 else a * 0.5
        return a if n % 2 == 0 else a * 2

    for n in range(5):
        torch.testing.assert_close(plain(x, n), even(x, n))


# -- limits


def test_recompile_limit(caplog):
    def f(a, key):
        return a + len(key)

    counter = CountingBackend()
    compiled = minidynamo.compile(f, backend=counter)
    with config.patch(recompile_limit=3):
        for key in "a bb ccc dddd eeeee".split():
            assert_same(f(x, key), compiled(x, key))
    assert len(counter.graphs) == 3
    assert caplog.text.count("config.recompile_limit") == 1


def test_accumulated_recompile_limit(caplog):
    def f(a, key):
        return a + len(key)

    counters = [CountingBackend() for _ in range(3)]
    functions = [minidynamo.compile(f, backend=counter) for counter in counters]
    with config.patch(accumulated_recompile_limit=4):
        for key in ("a", "bb"):
            for compiled in functions:
                assert_same(f(x, key), compiled(x, key))
    assert sum(len(counter.graphs) for counter in counters) == 4
    assert "config.accumulated_recompile_limit" in caplog.text


def test_each_module_has_its_own_limit(caplog):
    class Layer(torch.nn.Module):
        def __init__(self, name):
            super().__init__()
            self.name = name

        def forward(self, a):
            opaque()
            return a + len(self.name)

    layers = [Layer("x" * k) for k in range(12)]
    counter = CountingBackend()
    compiled = [minidynamo.compile(layer, backend=counter) for layer in layers]
    for layer, fast in zip(layers, compiled, strict=True):
        assert_same(layer(x), fast(x))
    assert "recompile_limit" not in caplog.text
    assert len(counter.graphs) == 12


def test_fail_on_recompile_limit_hit():
    def f(a, key):
        return a + len(key)

    compiled = minidynamo.compile(f, backend="eager")
    with config.patch(recompile_limit=1, fail_on_recompile_limit_hit=True):
        compiled(x, "a")
        with pytest.raises(minidynamo.exc.RecompileLimitExceeded, match="recompile_limit"):
            compiled(x, "bb")
    with config.patch(suppress_errors=True, fail_on_recompile_limit_hit=True):
        with pytest.raises(AssertionError, match="contradict"):
            minidynamo.compile(f)


def test_verbose_errors_carry_the_stack_of_the_compiler():
    def f(a):
        opaque()
        return a

    compiled = minidynamo.compile(f, backend="eager", fullgraph=True)
    with pytest.raises(minidynamo.exc.Unsupported) as raised:
        compiled(x)
    assert "symbolic_convert.py" not in str(raised.value)
    with config.patch(verbose=True):
        assert "convert_frame.py" in str(raised.value)


def test_side_effects_are_left_out():
    class Counter:
        n = 0

    def f(a, log, counter):
        log.append(1)
        counter.n += 1
        with torch.no_grad():
            a = a * 2
        return a + 1

    log, counter = [], Counter()
    with config.patch(replay_side_effects=False):
        compiled = minidynamo.compile(f, backend="eager")
        assert_same(compiled(x, log, counter), x * 2 + 1)
    assert (log, counter.n) == ([], 0)
    minidynamo.reset()
    minidynamo.compile(f, backend="eager")(x, log, counter)
    assert (log, counter.n) == ([1], 1)


# -- what torch's own decorators say ---------------------------------------------------------------


@pytest.mark.parametrize("recursive", [True, False])
def test_disabled_by_torch(recursive):
    """The function, and what it calls if so said, runs in eager."""

    def below(a):
        return a * 3

    @torch.compiler.disable(recursive=recursive, reason="the test says so")
    def disabled(a):
        return below(a) * 2

    def f(a):
        return disabled(a + 1) + 1

    counter = CountingBackend()
    compiled = minidynamo.compile(f, backend=counter)
    x = torch.arange(3.0)
    for _ in range(2):
        assert_same(compiled(x), f(x))
    assert len(counter.graphs) == (2 if recursive else 3)
    with pytest.raises(minidynamo.exc.Unsupported, match="disable"):
        minidynamo.compile(f, backend=counter, fullgraph=True)(x)


def test_method_disabled_by_torch():
    class Module(torch.nn.Module):
        @torch.compiler.disable
        def part(self, a):
            return a * 2

        def forward(self, a):
            return self.part(a + 1) + 1

    check(Module(), torch.arange(3.0), graphs=2)


def test_torch_compile_for_the_first_time():
    """It patches two methods of nn.Module when it first compiles something."""
    from torch._dynamo import mutation_guard

    module = torch.nn.Module
    patched = {name: module.__dict__[name] for name in ("__init__", "__setstate__")}
    flag = "___needs_generation_tag_patch"
    for name, function in patched.items():
        if function.__module__ == mutation_guard.__name__:
            names = function.__code__.co_freevars
            original = function.__closure__[names.index(name.strip("_"))].cell_contents
            setattr(module, name, original)
    if flag in module.__dict__:
        delattr(module, flag)

    model, backend = (
        torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()),
        CountingBackend(),
    )
    compiled = minidynamo.compile(model, backend=backend)
    assert torch.equal(compiled(x), model(x))
    mutation_guard.install_generation_tagging_init()
    assert module.__init__.__module__ == mutation_guard.__name__
    assert torch.equal(compiled(x), model(x))
    assert len(backend.graphs) == 1
    # Any other change of the class is one, also below torch's function.
    tagging = module.__init__

    def replaced(self, *args, **kwargs):
        tagging(self, *args, **kwargs)

    def patched():
        init = replaced

        def patched_init(self, *args, **kwargs):
            init(self, *args, **kwargs)

        patched_init.__module__ = mutation_guard.__name__
        return patched_init

    try:
        module.__init__ = patched()
        assert torch.equal(compiled(x), model(x))
        assert len(backend.graphs) == 2
    finally:
        module.__init__ = tagging
