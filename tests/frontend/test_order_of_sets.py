"""Sets whose elements are hashed by their addresses are iterated in eager's order."""

import itertools
import random
import string

import pytest
import torch
from testing import CountingBackend, assert_same, check

import minidynamo


class Thing:
    pass


TENSORS = [torch.randn(2) for _ in range(12)]
THINGS = [Thing() for _ in range(16)]
GLOBAL = torch.randn(2)


def agrees(fn, *calls, graphs=None, **options):
    """On the same objects in eager and compiled: their addresses count."""
    minidynamo.reset()
    counter = CountingBackend()
    compiled = minidynamo.compile(fn, backend=counter, **options)
    for args in calls:
        assert_same(fn(*args), compiled(*args))
    if graphs is not None:
        assert len(counter.graphs) == graphs
    return counter


def test_popped_tensors():
    def fn(x, y, z):
        found = {x, y}
        found.add(z)
        first = found.pop()
        found.add(GLOBAL)
        return first - 2 * found.pop() + 3 * found.pop()

    agrees(fn, TENSORS[:3], fullgraph=True, graphs=1)
    agrees(fn, *(TENSORS[at : at + 3] for at in range(9)), fullgraph=True)


def test_another_order_is_another_graph():
    def fn(x, left, right):
        first, _ = {left, right}
        return x + (1 if first is left else 2)

    x, left = TENSORS[0], THINGS[0]
    other = next(o for o in THINGS[1:] if list({left, o}) == list({o, left}))  # no collision
    calls = (x, left, other), (x, other, left), (x, left, other)
    agrees(fn, *calls, fullgraph=True, graphs=2)


def test_tensors_objects_and_values():
    def fn(x, y, thing, other):
        found = {x, 3, "q", thing}
        found.update([y, other])
        found.discard(x)
        found.add(x)
        total = 0
        for index, item in enumerate(found):
            if isinstance(item, torch.Tensor):
                total = total * 2 + item * index
        return total, [type(item).__name__ for item in frozenset([x, thing, other])]

    for at in range(4):
        args = (*TENSORS[at : at + 2], *THINGS[at : at + 2])
        agrees(fn, args, fullgraph=True, graphs=1)


def test_tensors_that_the_graph_makes():
    """In eager their order is another one in each run."""

    def fn(x):
        found = {x + 1, x + 2}
        return found.pop() + found.pop(), len(found)

    check(fn, TENSORS[0], fullgraph=True)
    check(fn, TENSORS[0], graphs=None)


@pytest.mark.parametrize("merge", [set.union, set.update])
def test_merged_sets_are_left_to_eager(merge):
    def fn(x, y, z):
        found = {x, y}
        found = merge(found, {z}) or found
        return [item * 2 for item in found]

    agrees(fn, TENSORS[:3], TENSORS[4:7])


WAYS = {
    "display": lambda x, y, z: {x, y, z},
    "set": lambda x, y, z: set([x, y, z]),
    "union": lambda x, y, z: {x, y}.union([z]),
    "symmetric difference": lambda x, y, z: {x, y}.symmetric_difference([z]),
    "xor": lambda x, y, z: {x, y} ^ {z},
    "intersection with a list": lambda x, y, z: {x, y, z}.intersection([z, y]),
    "intersection with a smaller set": lambda x, y, z: {x, y, z} & {z, y},
    "intersection with a larger set": lambda x, y, z: {z, x} & {x, y, z},
}


@pytest.mark.parametrize("way", WAYS)
def test_sets_of_tensors_are_made_as_they_came(way):
    """Their hashes are addresses, most of which collide in a small set."""
    make = WAYS[way]

    def fn(x, y, z):
        found = make(x, y, z)
        minidynamo.graph_break()
        return [item * 2 for item in found]

    kept = [torch.full((2,), float(i)) for i in range(60)]
    run = minidynamo.compile(fn, backend="eager")
    for i in range(0, 60, 3):
        for order in itertools.permutations(kept[i : i + 3]):
            assert_same(fn(*order), run(*order))


def test_which_of_equal_elements_a_result_takes():
    def fn(x):
        two, one = {(1, 2.0), (3, 4)}, {(1, 2.0)}
        kept = {(1, 2.0), (3, 4)}
        kept &= {(1.0, 2)}
        found = [one.intersection([(1.0, 2)]), two & {(1.0, 2)}, one & {(1.0, 2), (5, 6)}]
        found += [kept, one | {(1.0, 2)}, {1} & {True}]
        return x + 1, [repr(item) for items in found for item in items]

    check(fn, TENSORS[0], fullgraph=True)


def test_sets_leave_as_they_came_about():
    """The order depends on the room that a set has, and on elements that have gone."""

    class Kind(set):
        pass

    class FrozenKind(frozenset):
        pass

    def fn(x, some, more, rest):
        grown = set(some)
        grown |= set(more)
        grown.discard(some[0])
        grown.add(77)
        mixed = set(some) ^ set(more)
        mixed -= set(rest)
        mixed.add(3)
        mixed.pop()
        kind = Kind(some)
        kind.update(more)
        kind.add(1001)
        united = set(some)
        for item in more:
            united = united | {item}
        plain = (
            set(some),
            frozenset(more),
            FrozenKind(rest),
            frozenset(set(some)),
            {*some, *more},
        )
        return x + 1, [grown, mixed, kind, united, *plain]

    for seed in range(25):
        draw = random.Random(seed)
        args = [tuple(draw.randrange(200) for _ in range(draw.randrange(5, 14))) for _ in "abc"]
        orders = lambda found: [(type(item).__name__, list(item)) for item in found[1]]  # noqa: E731
        minidynamo.reset()
        compiled = minidynamo.compile(fn, backend="eager", fullgraph=True)
        found, expected = compiled(TENSORS[0], *args), fn(TENSORS[0], *args)
        assert orders(found) == orders(expected)
        for left, right in zip(found[1], expected[1], strict=True):  # they go on alike
            if isinstance(left, set):
                left.update(range(300, 340))
                right.update(range(300, 340))
                assert list(left) == list(right)


def test_order_of_sets_of_dicts_and_their_views():
    def fn(x, some, more):
        one, other = dict.fromkeys(some), dict.fromkeys(more)
        sets = [set(one), set(one.keys()), frozenset(one), one.keys() | other.keys()]
        sets += [one.keys() | more, set(more) | one.keys(), one.keys() & other.keys()]
        sets += [one.keys() & set(more), one.keys() & more, {some[0], more[0]} & one.keys()]
        sets += [one.keys() - other.keys(), set(more) - one.keys(), one.keys() - more]
        sets += [
            one.keys() ^ other.keys(),
            list(more) ^ one.keys(),
            one.items() | other.items(),
        ]
        return x + 1, [list(found) for found in sets]

    for seed in range(25):
        draw = random.Random(seed)
        args = [tuple(draw.randrange(90) for _ in range(draw.randrange(2, 24))) for _ in "ab"]
        agrees(fn, (TENSORS[0], *args), fullgraph=True, graphs=1)


def test_a_set_that_changes_a_set_of_the_program():
    def fn(x, held, some):
        other = set(some)
        held &= other
        other.discard(some[0])
        held |= set(some[1:])
        held ^= other
        held -= set(some[:2])
        return x + 1

    for seed in range(12):
        draw = random.Random(seed)
        some, more = (tuple(draw.randrange(200) for _ in range(9)) for _ in "ab")
        minidynamo.reset()
        compiled = minidynamo.compile(fn, backend="eager", fullgraph=True)
        left, right = set(more), set(more)
        fn(TENSORS[0], left, some)
        compiled(TENSORS[0], right, some)
        assert list(left) == list(right)


def with_finger(elements, pops):
    """A set that lost as many elements, and got them back in their places."""
    made = set(elements)
    for _ in range(pops):
        made.add(made.pop())
    return made


def test_pops_of_a_set_of_the_program():
    """Which element goes depends on where the last one did, which the order does not show."""

    def fn(x, given):
        first, second = given.pop(), given.pop()
        given.add(50)
        return x + first - 2 * second, len(given), 3 in given

    counter = CountingBackend()
    compiled = minidynamo.compile(fn, backend=counter, fullgraph=True)
    for pops in (0, 1, 6, 0, 7):
        sets = [with_finger(range(7), pops) for _ in range(2)]
        assert list(sets[0]) == list(range(7))
        assert_same(fn(TENSORS[0], sets[0]), compiled(TENSORS[0], sets[1]))
        for _ in range(3):  # what comes out next, and in which order
            assert sets[0].pop() == sets[1].pop()
        assert list(sets[0]) == list(sets[1])
    assert len(counter.graphs) == 3


def test_a_set_of_the_program_is_emptied():
    def fn(x, given, tensors):
        while given:
            x = x * len(given.pop())
        while tensors:
            x = x - tensors.pop()
        return x

    for start in range(4):
        words, tensors = ["ab", "c", "def", "ghij"][start:], TENSORS[start : start + 4]
        compiled = minidynamo.compile(fn, backend="eager", fullgraph=True)
        given = [(TENSORS[0], set(words), set(tensors)) for _ in range(2)]
        assert_same(fn(*given[0]), compiled(*given[1]))
        assert given[1][1:] == (set(), set())


def test_several_pops_of_tuples_with_tensors():
    """A tuple that was taken is forgotten, as an equal one may come."""
    tensors = [torch.ones(1) * i for i in range(5)]

    def f(x, pairs):
        return x + 1, [pairs.pop() for _ in range(4)], len(pairs)

    for _ in range(3):
        pairs = {(i, tensor) for i, tensor in enumerate(tensors)}
        real, compiled = set(pairs), set(pairs)
        if [i for i, _ in real] != [i for i, _ in compiled]:
            continue
        expected = f(tensors[0], real)
        actual = minidynamo.compile(f, backend="eager", fullgraph=True)(tensors[0], compiled)
        assert [(i, id(t)) for i, t in actual[1]] == [(i, id(t)) for i, t in expected[1]]
        assert actual[2] == expected[2] and compiled == real


def _words(seed):
    """Letters of which sets of different sizes get places that collide."""
    draws = random.Random(seed)
    return ["".join(draws.choices(string.ascii_lowercase, k=n)) for n in (2, 3, 6, 9, 15, 21)]


@pytest.mark.parametrize("seed", range(6))
def test_order_of_constant_frozensets(seed):
    words = _words(seed)
    made = frozenset(words[3]) | frozenset(words[4])

    def fn(x):
        of_texts = [frozenset(word) for word in words]
        sums = [first | second for first, second in itertools.pairwise(of_texts)]
        anew = [set(s) for s in sums]
        nested = (frozenset(words[2]), (1, frozenset(words[5])))
        return x + 1, of_texts, sums, anew, [*map(list, sums)], nested, made

    expected = fn(GLOBAL)[1:]
    found = minidynamo.compile(fn, backend="eager", fullgraph=True)(GLOBAL)[1:]
    assert repr(found) == repr(expected) and found[-1] is made


@pytest.mark.parametrize("seed", range(6))
def test_order_of_sets_combined_with_themselves(seed):
    words = _words(seed)

    def fn(x):
        sets = [set(words[k]) for k in range(6)]
        mixed = frozenset(words[1]) | frozenset(words[1])
        twice = [s | s for s in sets], [s & s for s in sets], [s.union(s) for s in sets]
        grown = [s.copy() | s for s in sets], [s.union(mixed, s) for s in sets]
        for s in sets:
            s.update(s)
            s |= s
        sets[3] -= sets[3]
        sets[3].add("z")
        return x + 1, twice, grown, sets, [s ^ mixed for s in sets], mixed | mixed

    check(fn, GLOBAL)
    expected = fn(GLOBAL)[1:]
    assert repr(minidynamo.compile(fn, backend="eager", fullgraph=True)(GLOBAL)[1:]) == repr(
        expected
    )


def test_how_many_sets_a_symmetric_difference_takes():
    def fn(x, given):
        texts = []
        for s in (given, {1, 2}):
            for call in (s.symmetric_difference_update, s.symmetric_difference):
                for more in ((), ([1], [2])):
                    try:
                        call(*more)
                    except TypeError as error:
                        texts.append(str(error))
        return x + 1, texts, given

    check(fn, GLOBAL, {3})


@pytest.mark.parametrize("seed", range(6))
def test_sets_from_outside_that_are_changed_by_themselves(seed):
    words = _words(seed)

    def fn(x, given, gone, lost):
        for s in given:
            s |= s
            s.update(s)
        gone -= gone
        lost.symmetric_difference_update(lost)
        for s in (gone, lost):
            s.add("z")
            s.update(words[2])
        return x + 1

    def called(run):
        sets = [set(word) for word in words]
        run(GLOBAL, sets[:4], sets[4], sets[5])
        return list(map(list, sets))

    assert called(minidynamo.compile(fn, backend="eager", fullgraph=True)) == called(fn)


@pytest.mark.parametrize("seed", range(6))
def test_order_of_what_methods_of_constant_frozensets_give(seed):
    words = _words(seed)

    def fn(x):
        made = [frozenset(word) | set("f") for word in words]
        return x + 1, [m.union(set(w), m) for m, w in zip(made, words[1:], strict=False)]

    expected = repr(fn(GLOBAL)[1:])
    found = minidynamo.compile(fn, backend="eager", fullgraph=True)(GLOBAL)[1:]
    assert repr(found) == expected
