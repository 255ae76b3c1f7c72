"""Iterators, itertools, functools and generators in traced code."""

import collections
import functools
import itertools
import operator

import pytest
import testing
import torch

import minidynamo

X = torch.arange(4.0)


def check(fn, *args, breaks=0, graphs=None):
    """Without graph breaks unless said otherwise; how many graphs does not matter."""
    return testing.check(fn, *args, breaks=breaks, graphs=graphs)


def test_enumerate_zip_map_filter():
    def fn(x, items):
        for i, item in enumerate(items, 5):
            x = x + i * item
        for a, b in zip(items, range(10)):
            x = x + a * b
        doubled = list(map(lambda v: v * 2, items))
        odd = list(filter(lambda v: v % 2, items))
        return x, doubled, odd, list(filter(None, [0, 1, "", x.shape])), dict(zip("ab", items))

    check(fn, X, [1, 2, 3])


def test_map_over_several():
    def fn(x):
        return list(map(lambda a, b: a + b, [x, x + 1], (1, 2, 3))), list(map(torch.sin, [x]))

    check(fn, X)


def test_zip_strict():
    def fn(x, a, b):
        try:
            return x + 1, list(zip(a, b, strict=True))
        except ValueError as error:
            return x + 1, str(error)

    check(fn, X, [1, 2], [3, 4])
    check(fn, X, [1, 2], [3])
    check(fn, X, [1], [3, 4])


def test_iter_and_next():
    def fn(x, items):
        iterator = iter(items)
        first = next(iterator)
        rest = list(iterator)
        return x + first, rest, next(iterator, "end"), iter(iterator) is iterator

    check(fn, X, [1, 2, 3])


def test_next_raises():
    def fn(x):
        iterator = iter([])
        try:
            next(iterator)
        except StopIteration as stop:
            return x + 1, stop.value

    check(fn, X)


def test_reversed():
    def fn(x, items):
        return (
            list(reversed(items)),
            list(reversed((x, 1))),
            list(reversed(range(3))),
            "".join(reversed("abc")),
            list(reversed({"a": 1, "b": 2}.items())),
        )

    check(fn, X, [1, 2])


def test_sentinel_iterator():
    def fn(x):
        items = [3, 2, 1, 0]
        return x + 1, list(iter(items.pop, 2)), items

    check(fn, X)


def test_sequences_by_getitem_and_user_iterators():
    class Countdown:
        def __init__(self, n):
            self.n = n

        def __iter__(self):
            return self

        def __next__(self):
            if self.n == 0:
                raise StopIteration
            self.n -= 1
            return self.n

    class Squares:
        def __getitem__(self, index):
            if index > 3:
                raise IndexError
            return index * index

    def fn(x):
        total = sum(Countdown(4))
        return (
            x + total,
            list(Squares()),
            4 in Squares(),
            max(Countdown(3)),
            list(zip(Countdown(2))),
        )

    check(fn, X)


@pytest.mark.parametrize(
    "kind",
    [
        lambda items: iter(items),
        lambda items: iter(tuple(items)),
        lambda items: reversed(items),
        lambda items: iter("abcd"),
        lambda items: iter(range(2, 9, 2)),
        lambda items: iter({"a": 1, "b": 2, "c": 3}),
        lambda items: iter({"a": 1, "b": 2, "c": 3}.items()),
        lambda items: iter({"a": 1, "b": 2, "c": 3}.values()),
        lambda items: reversed({"a": 1, "b": 2, "c": 3}.items()),
        lambda items: iter({5, 6, 7}),
        lambda items: iter(frozenset({5, 6, 7})),
        lambda items: iter(collections.deque(items)),
        lambda items: reversed(collections.deque(items)),
        lambda items: enumerate(items),
        lambda items: enumerate(zip(items, "xyz")),
        lambda items: zip(items, range(9)),
        lambda items: zip(items, [1, 2, 3], strict=True),
        lambda items: map(str, items),
        lambda items: filter(lambda v: v != 2, items),
    ],
)
@pytest.mark.parametrize("used", [0, 1])
def test_existing_iterators(kind, used):
    def fn(x, iterator):
        return x + 1, next(iterator)

    def drain(x, iterator):
        return x + 1, list(iterator)

    for function in (fn, drain):
        iterators = [kind([1, 2, 3]) for _ in range(2)]
        for iterator in iterators:
            for _ in range(used):
                next(iterator)
        testing.minidynamo.reset()
        compiled = testing.minidynamo.compile(function, backend="eager", fullgraph=True)
        expected = function(X, iterators[0])
        found = compiled(X, iterators[1])
        testing.assert_same(expected, found)
        assert list(iterators[0]) == list(iterators[1])


def _advanced(iterator, count):
    """`iterator` after `count` elements."""
    for _ in range(count):
        next(iterator)
    return iterator


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize(
    "kind",
    [
        lambda n: enumerate([1, 2, 3], n),
        lambda n: enumerate(zip([1, 2, 3], "abc"), n),
        lambda n: enumerate(_advanced(iter(range(7)), n)),
        lambda n: zip(_advanced(iter(collections.deque(range(7))), n), range(7)),
    ],
)
def test_existing_iterators_whose_numbers_change(kind, dynamic):
    """Counts and positions that became symbolic are those of the call."""

    def fn(x, iterator):
        for first, second in iterator:
            x = x + first
        return x, second

    compiled = testing.minidynamo.compile(fn, backend="eager", fullgraph=True, dynamic=dynamic)
    for count in (2, 3, 4, 2):
        iterators = [kind(count) for _ in range(2)]
        testing.assert_same(fn(X, iterators[0]), compiled(X, iterators[1]))
        assert list(iterators[1]) == []


def test_existing_iterator_over_an_appended_list():
    def fn(x, items, iterator):
        a = next(iterator)
        items.append(9)
        b = next(iterator)
        return x + a + b

    results = []
    for run in (fn, testing.minidynamo.compile(fn, backend="eager", fullgraph=True)):
        items = [1]
        iterator = iter(items)
        results.append((run(X, items, iterator), items, list(iterator)))
    testing.assert_same(results[0], results[1])


def test_graph_break_inside_loops():
    def fn(x, items, d):
        out = []
        for i, item in enumerate(items):
            x = x + item
            print(end="")
            out.append(i)
        for (key, value), letter in zip(d.items(), "abc"):
            x = x * value
            print(end="")
            out.append(key + letter)
        for item in reversed(items):
            print(end="")
            x = x - item
        return x, out

    check(fn, X, [1, 2], {"a": 2, "b": 3}, breaks=None)


@pytest.mark.parametrize(
    "make",
    [
        lambda: itertools.count(3),
        lambda: itertools.count(1.5, step=0.5),
        lambda: itertools.repeat(7),
        lambda: itertools.repeat(7, 3),
        lambda: itertools.repeat(7, times=-1),
        lambda: itertools.chain([1, 2], (3,), "ab"),
        lambda: itertools.chain.from_iterable([[1], [2, 3]]),
        lambda: itertools.cycle([1, 2, 3]),
        lambda: itertools.cycle([]),
        lambda: itertools.islice([1, 2, 3, 4], 2),
        lambda: itertools.islice(range(10), 1, 8, 3),
        lambda: itertools.islice(range(10), 5, None),
        lambda: itertools.islice(range(10), 5, 2),
        lambda: itertools.product([1, 2], "ab"),
        lambda: itertools.product([1, 2], repeat=2),
        lambda: itertools.product(),
        lambda: itertools.combinations([1, 2, 3], 2),
        lambda: itertools.combinations_with_replacement("ab", 2),
        lambda: itertools.permutations([1, 2, 3]),
        lambda: itertools.permutations([1, 2, 3], 2),
        lambda: itertools.accumulate([1, 2, 3]),
        lambda: itertools.accumulate([1, 2, 3], lambda a, b: a * b, initial=4),
        lambda: itertools.accumulate([]),
        lambda: itertools.starmap(pow, [(2, 3), (3, 2)]),
        lambda: itertools.takewhile(lambda v: v < 3, [1, 2, 3, 1]),
        lambda: itertools.dropwhile(lambda v: v < 3, [1, 2, 3, 1]),
        lambda: itertools.filterfalse(lambda v: v % 2, range(5)),
        lambda: itertools.zip_longest([1, 2, 3], "a", fillvalue="-"),
        lambda: itertools.zip_longest(),
        lambda: itertools.pairwise([1, 2, 3, 4]),
        lambda: itertools.pairwise([1]),
        lambda: itertools.compress("abcd", [1, 0, 1]),
        lambda: map(lambda v: v + 1, [1, 2, 3]),
        lambda: filter(None, [0, 1, 2]),
        lambda: zip([1, 2], [3, 4]),
        lambda: enumerate([5, 6], 2),
        lambda: iter([1, 2, 3]),
        lambda: reversed([1, 2, 3]),
        lambda: iter({1: 2, 3: 4}.items()),
        lambda: iter(range(5)),
    ],
)
def test_new_iterators(make):
    def fn(x):
        iterator = make()
        return x + 1, [item for _, item in zip(range(8), iterator)]

    check(fn, X)

    def leaves_the_graph(x):
        iterator = make()
        first = next(iterator, None)
        print(end="")
        return x + 1, first, type(iterator), [item for _, item in zip(range(8), iterator)]

    def untouched_leaves(x):
        iterator = make()
        print(end="")
        return x + 1, [item for _, item in zip(range(8), iterator)]

    check(leaves_the_graph, X, breaks=None)
    check(untouched_leaves, X, breaks=None)


def test_groupby_and_tee():
    def fn(x):
        groups = [(key, list(group)) for key, group in itertools.groupby("aabbba")]
        by_key = {k: list(g) for k, g in itertools.groupby([1, 3, 2, 4], key=lambda v: v % 2)}
        skipped = [key for key, _ in itertools.groupby([1, 1, 2])]
        a, b = itertools.tee([1, 2, 3])
        next(a)
        return x + 1, groups, by_key, skipped, list(a), list(b)

    check(fn, X)


def test_itertools_on_tensors():
    def fn(x):
        sums = list(itertools.accumulate([x, x + 1, x + 2]))
        pairs = [a * b for a, b in itertools.product([x, 2], repeat=2)]
        return sums, pairs, list(itertools.islice(itertools.count(x), 2))

    check(fn, X)


def test_reduce():
    def fn(x, items):
        total = functools.reduce(lambda a, b: a + b, [x, x, x])
        product = functools.reduce(lambda a, b: a * b, items, 10)
        try:
            functools.reduce(max, [])
        except TypeError as error:
            text = str(error)
        return total, product, text

    check(fn, X, [1, 2])


def add(a, b=0, *, scale=1):
    return (a + b) * scale


ADD_TWO = functools.partial(add, 2, scale=3)


def test_partial():
    def fn(x):
        made = functools.partial(add, x, scale=2)
        nested = functools.partial(made, b=5)
        return made(1), nested(), ADD_TWO(x), ADD_TWO.keywords["scale"], nested.args[0], made

    def values(x):
        return fn(x)[:-1]

    check(values, X)

    def returned(x):
        return fn(x)[-1](3)

    check(returned, X)


def test_partial_argument():
    def fn(x, function):
        return function(x), function.func is add

    check(fn, X, functools.partial(add, b=torch.ones(4), scale=3))


def test_cmp_to_key():
    def fn(x):
        key = functools.cmp_to_key(lambda a, b: b - a)
        return x + 1, sorted([2, 3, 1], key=key)

    check(fn, X)


# -- generators -----------------------------------------------------------------------------------


def numbers(n, x):
    for i in range(n):
        yield x + i
    return "done"


def test_generators():
    def fn(x):
        total = sum(numbers(3, x))
        first = next(numbers(2, x))
        expression = [v * 2 for v in (w + 1 for w in [x, x + 1])]
        return total, first, expression, tuple(i for i in range(3)), list(numbers(0, x))

    check(fn, X)


def test_generator_return_value():
    def fn(x):
        generator = numbers(1, x)
        out = next(generator)
        try:
            next(generator)
        except StopIteration as stop:
            return out, stop.value

    check(fn, X)


@pytest.mark.parametrize("value", [None, 0, ()])
def test_what_stop_iteration_holds(value):
    def generator():
        try:
            yield 1
        finally:
            return value  # noqa: B012

    def fn(x):
        started = generator()
        next(started)
        try:
            started.throw(ValueError)
        except StopIteration as stop:
            return x + 1, stop.args, stop.value

    check(fn, X)


def test_yield_from():
    def inner(x):
        result = yield from numbers(2, x)
        yield result
        yield from [1, 2]

    def fn(x):
        return list(inner(x))

    check(fn, X)


def test_generator_is_lazy():
    def fn(x):
        log = []

        def generate():
            for i in range(5):
                log.append(i)
                yield i

        for value in generate():
            if value == 2:
                break
        return x + 1, log, any(v > 0 for v in generate()), all(v < 1 for v in generate()), log

    check(fn, X)


def test_generator_exception():
    def generate():
        yield 1
        raise ValueError("inside")

    def fn(x):
        out = []
        try:
            for value in generate():
                out.append(value)
        except ValueError as error:
            out.append(str(error))
        return x + 1, out

    check(fn, X)


def test_generator_send():
    def averager():
        total = 0
        while True:
            value = yield total
            if value is None:
                return
            total += value

    def fn(x):
        generator = averager()
        next(generator)
        generator.send(x)
        second = generator.send(2)
        generator.close()
        return second, list(generator)

    check(fn, X)


def test_generator_throw():
    def worker():
        try:
            yield 1
        except KeyError as error:
            yield str(error)
        finally:
            yield "finally"

    def fn(x):
        generator = worker()
        return x + next(generator), generator.throw(KeyError("k")), list(generator)

    check(fn, X)


def test_dropped_generator_runs_its_cleanup():
    def worker(log):
        try:
            yield 1
            yield 2
        finally:
            log.append("closed")

    def fn(x, log):
        for value in worker(log):
            break
        log.append("after")
        return x + value

    check(fn, X, [], breaks=None)


def test_generator_leaves_the_graph():
    def fn(x):
        generator = numbers(3, x)
        first = next(generator)
        print(end="")
        return first, list(generator)

    check(fn, X, breaks=None)


def test_generator_expression_over_argument():
    def fn(x, items):
        return (
            max(len(item) for item in items) + x,
            ",".join(str(i) for i in items),
            {*map(len, items)},
        )

    check(fn, X, ["a", "bcd"])


def test_generator_dropped_inside_a_try_without_effects():
    def numbers():
        i = 0
        try:
            while True:
                yield i
                i += 1
        except IndexError:
            return

    def f(a):
        for k, i in zip([1, 2], numbers(), strict=False):
            a = a + k * i
        return a

    check(f, torch.randn(3))


HUGE = 2**70
HUGE_RANGES = {
    "first": lambda x: (x + next(iter(range(3, HUGE))), next(reversed(range(HUGE)))),
    "loop": lambda x: [x + i for i, _ in zip(range(HUGE), "abc", strict=False)],
    "islice": lambda x: (x, list(itertools.islice(iter(range(-HUGE, HUGE, 2**68)), 3))),
    "all": lambda x: (x, list(range(HUGE, 2 * HUGE, 2**69)), list(range(HUGE, 0, -(2**69)))),
    "hint": lambda x: (x, iter(range(HUGE)).__length_hint__()),
    "length": lambda x: (x, len(range(HUGE))),
}


@pytest.mark.parametrize("name", HUGE_RANGES)
def test_ranges_longer_than_memory(name):
    testing.check(HUGE_RANGES[name], torch.ones(2), graphs=None)


def test_rest_of_a_huge_range():
    def fn(x):
        rest = iter(range(HUGE))
        first = next(rest)
        y = x + first
        minidynamo.graph_break()
        return y, next(rest), next(rest)

    testing.check(fn, torch.ones(2), graphs=None)


# -- reversed() of objects with a length and items -------------------------------------------------


class Logged:
    def __init__(self, count, log):
        self.count, self.log = count, log

    def __len__(self):
        self.log.append("len")
        return self.count

    def __getitem__(self, index):
        self.log.append(index)
        if index == 9:
            raise IndexError(index)
        return index * 10


def _reversed_left_early(x):
    log = []
    for value in reversed(Logged(4, log)):
        log.append(("value", value))
        x = x + value
        if value == 20:
            break
    return x, log


def _reversed_to_list(x):
    log = []
    return x + 1, list(reversed(Logged(3, log))), log


def _reversed_across_a_break(x):
    log = []
    iterator = reversed(Logged(3, log))
    next(iterator)
    x = x + 1
    minidynamo.graph_break()
    return x, list(iterator), log


def _reversed_without_an_item(x):
    log = []
    iterator = reversed(Logged(10, log))
    return x + 1, list(iterator), next(iterator, 7), log


def _length_hint_of_reversed(x):
    items = Logged(5, [])
    iterator = reversed(items)
    first = operator.length_hint(iterator)
    next(iterator)
    items.count = 2
    return x + 1, first, operator.length_hint(iterator), items.log


def _length_of_reversed_raises(x):
    items = Logged(5, [])
    iterator = reversed(items)
    items.log = None
    try:
        return x + operator.length_hint(iterator)
    except AttributeError as error:
        return x + 1, str(error)


def _reversed_tensor(x):
    return reversed(x) + 1, [v * 2 for v in reversed(x)]


@pytest.mark.parametrize(
    "fn",
    [
        _reversed_left_early,
        _reversed_to_list,
        _reversed_across_a_break,
        _reversed_without_an_item,
        _length_hint_of_reversed,
        _length_of_reversed_raises,
        _reversed_tensor,
    ],
)
def test_reversed_asks_for_items_one_by_one(fn):
    stops = fn is _reversed_across_a_break
    testing.check(fn, torch.arange(3.0), graphs=None if stops else 1)


class Reenters:
    """An iterator that advances the iterator made of it, at some steps."""

    def __init__(self, steps):
        self.steps = steps
        self.count = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.count += 1
        if self.count in self.steps:
            return next(self.outer)
        return [self.count]


@pytest.mark.parametrize("steps", [{1}, {2}, {3}, {1, 2}, {2, 4}])
def test_pairwise_that_is_entered_again(steps):
    def f(x):
        inner = Reenters(steps)
        inner.outer = pairs = itertools.pairwise(inner)
        return x + 1, next(pairs), next(pairs), next(pairs)

    check(f, X)


class Counted:
    def __init__(self, items):
        self.items, self.index = items, 0

    def __iter__(self):
        return self

    def __next__(self):
        self.index += 1
        if self.index > len(self.items):
            raise StopIteration(self.index)
        return self.items[self.index - 1]

    def send(self, value):
        self.items.append(value)
        return next(self)


def test_what_iterators_of_the_program_return():
    def inner(items):
        yield (yield from Counted(items))

    def fn(items):
        sent = inner(items)
        found = [next(sent), sent.send(items[0] + 1)]
        return found + list(sent), list(inner(items[:1]))

    check(fn, [X])
    check(fn, [X, X])


def test_types_of_reversed_constants():
    def fn(x):
        made = [reversed(given) for given in ("abc", (1, 2), b"ab", x.shape, range(3), "")]
        return x + 1, [type(given) for given in made], [list(given) for given in made]

    check(fn, X)


@pytest.mark.parametrize("made", [range(10), (1, 2, 3), "abcde", b"abc", [1, 2, 3], reversed])
@pytest.mark.parametrize("steps", [0, 2, 12])
def test_iterators_set_to_another_item(made, steps):
    def fn(x, given, index):
        iterator = reversed(given) if made is reversed else iter(made)
        for _ in range(steps):
            next(iterator, None)
        iterator.__setstate__(index)
        left = iterator.__length_hint__()
        other = iter(given)
        other.__setstate__(index)
        return x + 1, left, list(iterator), other, list(iterator)

    for index in (-5, 0, 2, 7, True):
        compiled = minidynamo.compile(fn, backend="eager", fullgraph=True)
        expected = testing.outcome(fn, (X, [1, 2, 3], index), {})[1]
        *rest, other, last = compiled(X, [1, 2, 3], index)
        *wanted, known, nothing = expected
        testing.assert_same((*rest, list(other), last), (*wanted, list(known), nothing))


PLANS = [
    ("next",) * 4 + (0, "next"),
    (-1, "next", 1),
    (3, "pop", "next", 0),
    (7, "append", "next"),
    ("pop", "pop", "pop", "next", "append", 0),
    ("pop", "next", "append", 1),
]


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("make", [iter, reversed])
@pytest.mark.parametrize("existed", [False, True])
def test_where_iterators_of_lists_are_over(plan, make, existed):
    def fn(x, given, iterator):
        iterator = make(given) if iterator is None else iterator
        found = []
        for step in plan:
            if step == "next":
                found.append(next(iterator, None))
            elif step == "pop":
                given.pop()
            elif step == "append":
                given.append(9)
            else:
                iterator.__setstate__(step)
                found.append(iterator.__length_hint__())
        return x + 1, found, iterator

    def run(call):
        given = [1, 2, 3]
        _, found, iterator = call(X, given, make(given) if existed else None)
        found.append(next(iterator, None))
        iterator.__setstate__(1)
        return found, given, list(iterator)

    compiled = minidynamo.compile(fn, backend="eager", fullgraph=True)
    assert run(compiled) == run(fn)


def test_iterators_that_escape_count_from_the_start():
    def fn(x, first):
        iterator = iter(range(10))
        next(iterator)
        next(iterator)
        word = iter("abc")
        next(word)
        return x + 1, iterator, word

    for run in (fn, minidynamo.compile(fn, backend="eager", fullgraph=True)):
        _, iterator, word = run(X, 1)
        state, text = iterator.__reduce__(), word.__reduce__()
        assert text[1:] == (("abc",), 1)
        iterator.__setstate__(3)
        assert state[1:] == fn(X, 1)[1].__reduce__()[1:]
    for wrong in (10**20, 2.0, "a"):
        fn = lambda x, wrong: (x + 1, iter(range(3)).__setstate__(wrong))
        expected = testing.outcome(fn, (X, wrong), {})
        minidynamo.reset()
        compiled = minidynamo.compile(fn, backend="eager")
        testing.assert_same(testing.outcome(compiled, (X, wrong), {}), expected)
