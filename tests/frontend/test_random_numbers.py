"""Calls of random number generators: made before the graph, in the program's order."""

import random

import numpy as np
import pytest
import torch
from testing import CountingBackend, assert_same
from torch.utils.checkpoint import checkpoint

import minidynamo

x = torch.arange(6.0)


def scaled(a):
    return a * random.random() + random.randint(1, 5)


def returned(a):
    unused = random.uniform(0, 1)
    return a + 1, random.uniform(2, 3) * 2, random.randrange(10), random.gauss(0, 1), unused > 2


def sized(a):
    count = random.randint(2, 5)
    return torch.zeros(count) + a[0], count * 2 + 1


def indexed(a):
    index = random.randint(0, 3)
    return a[index] * 2, index


def several(a):
    first, second, _ = picked = random.sample(range(10), 3)
    return a * first + second, picked, a * random.choice([0.5, 1.5])


def seeded(a):
    random.seed(3)
    np.random.seed(4)
    return a + random.random() * np.random.rand(), np.random.randint(10)


def arrays(a):
    noise = np.random.randn(6)
    noise[0] = 5
    return a + torch.from_numpy(noise), torch.from_numpy(noise), np.random.choice(5)


def generator_made_inside(a):
    source = random.Random(3)
    numbers = [source.random() for _ in range(3)]
    return a * numbers[1], source.getstate()


def written(a):
    return a.add_(random.random())


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, scale):
        ctx.scale = scale
        return a * scale, scale

    @staticmethod
    def backward(ctx, grad, _):
        return grad * ctx.scale, None


def in_bodies(a):
    """Of operators with bodies of their own, in which the number comes into the graph."""
    b, scale = Scaled.apply(a, random.randint(1, 9))
    factor = random.random()
    c = checkpoint(lambda t: t * factor, b, use_reentrant=False)
    return c, scale, factor


def counted(fn, *args, fullgraph=True, calls=3):
    """Eager and compiled from the same seeds: results, and states behind; the number of graphs."""
    counter = CountingBackend()
    compiled = minidynamo.compile(fn, backend=counter, fullgraph=fullgraph)
    for seed in range(calls):
        found = []
        for run in (fn, compiled):
            random.seed(seed)
            np.random.seed(seed)
            copies = [arg.clone() if isinstance(arg, torch.Tensor) else arg() for arg in args]
            found.append((run(x.clone(), *copies), random.random(), np.random.rand()))
        assert_same(*found)
    return len(counter.graphs)


@pytest.mark.parametrize(
    "fn",
    [
        scaled,
        returned,
        sized,
        indexed,
        several,
        seeded,
        arrays,
        generator_made_inside,
        written,
        in_bodies,
    ],
    ids=lambda fn: fn.__name__,
)
def test_one_graph(fn):
    assert counted(fn) == 1


def test_gradients_of_numbers_in_bodies():
    compiled = minidynamo.compile(in_bodies, backend="eager", fullgraph=True)
    for seed in range(3):
        leaf = x.clone().requires_grad_()
        random.seed(seed)
        result, scale, factor = compiled(leaf)
        result.sum().backward()
        assert_same(leaf.grad, torch.full_like(x, scale * factor))


def test_generators_of_the_caller():
    def f(a, python, state, modern):
        before = python.getstate()
        first = python.random()
        python.setstate(before)
        state.seed(7)
        drawn = torch.from_numpy(state.normal(size=2))
        return a * first + python.random(), drawn, modern.standard_normal(), python

    def fresh():
        return random.Random(5)

    def old():
        return np.random.RandomState(5)

    def new():
        return np.random.default_rng(5)

    counter = CountingBackend()
    compiled = minidynamo.compile(f, backend=counter, fullgraph=True)
    for _ in range(2):
        given = fresh(), old(), new()
        same = fresh(), old(), new()
        *got, python = compiled(x, *given)
        *wanted, _ = f(x, *same)
        assert_same(got, wanted)
        assert python is given[0]
        for left, right in zip(given, same, strict=True):
            assert left.random() == right.random()
    assert len(counter.graphs) == 1
    with pytest.raises(minidynamo.exc.Unsupported):
        compiled(x, random.SystemRandom(), old(), new())  # another type: its guard fails


def test_branch_on_a_random_number_ends_the_graph():
    def f(a):
        b = a + 1
        if random.random() < 0.5:
            return b * 2
        return b * 3

    assert counted(f, fullgraph=False, calls=6) == 3


def test_refused_arguments_are_the_programs_error():
    def f(a):
        try:
            return a + random.randint(5, 1)
        except ValueError:
            return a - random.random()

    assert counted(f) == 1


def test_functions_replaced_by_the_program(monkeypatch):
    def f(a):
        return a + random.random()

    counter = CountingBackend()
    compiled = minidynamo.compile(f, backend=counter, fullgraph=True)
    compiled(x)
    monkeypatch.setattr(random, "random", lambda: 7.0)
    assert_same(compiled(x), x + 7.0)
    assert len(counter.graphs) == 2


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_by_the_backends(backend):
    compiled = minidynamo.compile(scaled, backend=backend, fullgraph=True)
    for seed in (1, 2):
        random.seed(seed)
        wanted = scaled(x)
        random.seed(seed)
        torch.testing.assert_close(compiled(x), wanted)


def test_a_check_behind_it_is_taken_before_the_graph():
    def f(a):
        b = a * random.random()
        if (a < 0).any():
            raise ValueError("negative")
        return b

    compiled = minidynamo.compile(f, backend=CountingBackend())
    for given in (x, x - 1):
        found = []
        for run in (f, compiled):
            random.seed(1)
            try:
                result = run(given)
            except ValueError as error:
                result = str(error)
            found.append((result, random.random()))
        assert_same(*found)


def test_a_checkpointed_function_draws_again_in_the_backward_pass():
    def f(a):
        draw = checkpoint(lambda b: b.sin() * random.random(), a, use_reentrant=False)
        return draw.sum()

    compiled = minidynamo.compile(f, backend=CountingBackend())
    found = []
    for run in (f, compiled):
        given = x.clone().requires_grad_()
        random.seed(3)
        run(given).backward()
        found.append((given.grad, random.random()))
    assert_same(*found)


def test_a_seed_that_is_refused_is_the_programs_error():
    def f(a):
        try:
            random.Random((1, 2))
        except TypeError as error:
            return a + random.Random(2).random(), str(error)

    counter = CountingBackend()
    assert_same(minidynamo.compile(f, backend=counter, fullgraph=True)(x), f(x))
    assert len(counter.graphs) == 1


def test_the_device_of_a_generator_is_read():
    def fn(x, generator):
        return x.to(generator.device) + len(generator.device.type)

    counter = CountingBackend()
    compiled = minidynamo.compile(fn, backend=counter, fullgraph=True)
    for _ in range(2):
        assert_same(
            fn(torch.ones(2), torch.Generator()), compiled(torch.ones(2), torch.Generator())
        )
    assert len(counter.graphs) == 1


def test_a_seeded_generator_chooses_from_any_items():
    def fn(x):
        generator = random.Random(3)
        tensors = [x + i for i in range(6)]
        chosen = [
            generator.choice(tensors),
            *generator.choices(tensors, weights=[1, 2, 3, 4, 5, 6], k=2),
            *generator.sample((x, "a", None), k=2),
        ]
        generator.shuffle(tensors)
        letters = list("xyz")
        random.Random.shuffle(generator, letters)
        for call in (lambda: generator.choice([]), lambda: generator.sample([x], 2)):
            try:
                call()
            except (IndexError, ValueError) as error:
                chosen.append(str(error))
        return chosen, tensors, letters, generator.random()

    counter = CountingBackend()
    compiled = minidynamo.compile(fn, backend=counter, fullgraph=True)
    for value in (x, x + 1):
        assert_same(compiled(value), fn(value))
    assert len(counter.graphs) == 1
