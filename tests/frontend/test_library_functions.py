"""Functions of the library that call code of the program, sets in order, ends of objects."""

import bisect
import collections.abc
import copy
import dataclasses
import datetime
import functools
import heapq
import itertools
import typing
import weakref

import numpy as np
import pytest
import torch
from testing import CountingBackend, assert_same, check, check_recompiles

import minidynamo

x = torch.arange(6.0).reshape(2, 3) + 1
ARRAY = np.arange(3.0)
NARROW = np.arange(3, dtype=np.float32)


class Ranked:
    def __init__(self, rank):
        self.rank = rank

    def __lt__(self, other):
        return self.rank < other.rank


class Point(typing.NamedTuple):
    across: int
    up: int


def heaps(a):
    heap = [5, 1, 4]
    heapq.heapify(heap)
    heapq.heappush(heap, 2)
    taken = heapq.heappop(heap), heapq.heapreplace(heap, 9), heapq.heappushpop(heap, 0)
    largest = heapq.nlargest(2, [3, 1, 2]), heapq.nsmallest(2, [3, 1, 2], key=lambda v: -v)
    return a + sum(taken), heap, largest, list(heapq.merge([1, 3], [2, 4], reverse=False))


def heap_of_objects(a):
    heap = [Ranked(3), Ranked(1), Ranked(2)]
    heapq.heapify(heap)
    heapq.heappush(heap, Ranked(0))
    return a + heapq.heappop(heap).rank, [item.rank for item in heap]


def heap_of_pairs(a):
    heap = [(2, a + 1)]
    heapq.heappush(heap, (1, a * 5))
    return heapq.heappop(heap)[1], heap


def heap_that_fails(a):
    heap, found = [3, 1, 2], []
    for call in (lambda: heapq.heappush(heap, "a"), lambda: heapq.heappop([])):
        try:
            call()
        except (TypeError, IndexError) as error:
            found.append(str(error))
    return a + 1, heap, found


def shortest_path(a):
    edges = {0: [(1, 4), (2, 1)], 1: [(3, 1)], 2: [(1, 2), (3, 5)], 3: []}
    costs, queue = {0: 0}, [(0, 0)]
    while queue:
        cost, node = heapq.heappop(queue)
        for following, step in edges[node]:
            if cost + step < costs.get(following, 100):
                costs[following] = cost + step
                heapq.heappush(queue, (cost + step, following))
    return a * costs[3]


def bisections(a):
    items = [1, 3, 5]
    found = bisect.bisect(items, 3), bisect.bisect_left(items, 3, 1, 3)
    bisect.insort(items, 4)
    bisect.insort_left(items, -2, key=abs)
    try:
        bisect.bisect(items, 2, -1)
    except ValueError as error:
        return a + found[0], found, items, str(error)


def cached_inside(a):
    calls = []

    @functools.lru_cache(maxsize=2, typed=True)
    def double(number, plus=0):
        "twice"
        calls.append(number)
        return number * 2 + plus

    found = [double(n) for n in (1, 2, 1, 3, 2, 1.0, True)], double(1, plus=2)
    before = double.cache_info()
    double.cache_clear()
    return a + double(1), found, calls, before, double.cache_info(), double.__doc__


def cached_recursion(a):
    @functools.cache
    def fibonacci(n):
        return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

    try:
        fibonacci([])
    except TypeError as error:
        return a + fibonacci(10), str(error)


def cached_tensors(a):
    @functools.cache
    def plus_one(b):
        return b + 1

    return plus_one(a) is plus_one(a), plus_one(a), plus_one.cache_info().hits


def matmul_in_place(a):
    before, weight = a, torch.eye(3) * 2
    a @= weight
    return a, before + 1


def tensor_and_array(a):
    b = a
    b += NARROW
    return a - ARRAY, a * ARRAY, a / NARROW, a**ARRAY, b, a @ ARRAY.reshape(3, 1)


def hash_of_named_tuple(a):
    return a + 1, hash(Point(1, 2)) == hash((1, 2)), {hash(Point(1, 2)): 3}[hash((1, 2))]


def orders_of_sets(a):
    grown = set()
    for i in range(30):
        grown.add(i * 7)
    for i in range(3, 28):
        grown.discard(i * 7)
    left, right = {1, 2, 3}, frozenset([2, 5])
    left.add(9)
    left.remove(1)
    left.update([4], (5,))
    left.symmetric_difference_update({9, 10})
    made = left | right, left - right, left & right, right | left, left.union([6], {7: 1})
    made = (
        *made,
        set(grown),
        frozenset(grown),
        left.intersection([5, 4, 3]),
        set(range(0, 99, 8)),
    )
    return a + 1, [list(one) for one in made], made, grown, left


def bound_next(a):
    following = iter([1, 2]).__next__
    try:
        return a + following() + following() + following()
    except StopIteration:
        return a - 1


def islice_of_text(a):
    try:
        itertools.islice([1], "a")
    except ValueError as error:
        return a + 1, str(error)


CAPTURED = [
    heaps,
    heap_of_objects,
    heap_of_pairs,
    heap_that_fails,
    shortest_path,
    bisections,
    cached_inside,
    cached_recursion,
    cached_tensors,
    matmul_in_place,
    tensor_and_array,
    hash_of_named_tuple,
    orders_of_sets,
    bound_next,
]


@pytest.mark.parametrize("function", CAPTURED, ids=lambda function: function.__name__)
def test_captured(function):
    check(function, x, fullgraph=True)


def test_what_eager_judges():
    check(islice_of_text, x, graphs=None)


def test_a_cache_that_leaves_the_graph_is_made_before_it():
    def function(a):
        @functools.cache
        def double(number):
            return number * 2

        return a + double(3), double(3), double.cache_info, double

    compiled = minidynamo.compile(function, backend="eager")
    for _ in range(2):
        total, six, _, double = compiled(x)
        assert torch.equal(total, x + 6) and six == 6
        assert type(double) is functools._lru_cache_wrapper and double(4) == 8
        assert double.__name__ == "double"


def test_heap_of_the_frame_is_changed_in_place():
    def function(a, heap):
        heapq.heappush(heap, 0)
        return a + heapq.heappop(heap), heapq.heappop(heap)

    check_recompiles(function, [(x, [1, 3, 2]), (x, [1, 3, 2]), (x, [5, 6, 7])], graphs=2)


def test_sets_of_tensors_do_not_ask_for_the_same_tensors():
    def function(a, b):
        seen = {a, b}
        return a + len(seen), b in seen

    y = x + 1
    calls = [(x, y), (y, x), (x.clone(), y.clone()), (x, x)]
    check_recompiles(function, calls[:3], graphs=1)
    check_recompiles(function, calls, graphs=2)


class Ending:
    def __init__(self, log):
        self.log = log

    def __del__(self):
        self.log.append("end")


class Plain:
    pass


@minidynamo.disable
def make_ending(log):
    return Ending(log)


def deleted_local(a, log):
    ending = make_ending(log)
    b = a + 1
    del ending
    return b * 2, len(log)


def replaced_local(a, log):
    ending = make_ending(log)
    b = a + 1
    ending = None
    return b * 2, len(log), ending


def replaced_attribute(a, log):
    holder = Plain()
    holder.ending = make_ending(log)
    minidynamo.graph_break()
    b = a + 1
    holder.ending = None
    return b * 2, len(log)


def callback_of_reference(a, log):
    target = Plain()
    reference = weakref.ref(target, lambda _: log.append("gone"))
    b = a + 1
    del target
    return b * 2, len(log), reference() is None


def callback_of_finalizer(a, log):
    target = Plain()
    weakref.finalize(target, log.append, "gone")
    b = a + 1
    del target
    return b * 2, len(log)


ENDINGS = [
    deleted_local,
    replaced_local,
    replaced_attribute,
    callback_of_reference,
    callback_of_finalizer,
]


@pytest.mark.parametrize("function", ENDINGS, ids=lambda function: function.__name__)
def test_ends_of_objects_come_when_eager_has_them(function):
    check(function, x, [], graphs=None)


# -- generators that a loop leaves behind ----------------------------------------------------------


class Noted:
    def __init__(self, log):
        self.log = log

    def __enter__(self):
        self.log.append("in")

    def __exit__(self, kind, error, trace):
        self.log.append(kind.__name__ if kind else None)


def numbers(log):
    try:
        yield 1
        yield 2
    finally:
        log.append("end of numbers")


def left_by_break(a, log):
    for number in numbers(log):
        break
    log.append("behind")
    return a + number


def left_by_return(a, log):
    def doubled():
        with Noted(log):
            yield from numbers(log)

    def first():
        for index, number in enumerate(doubled()):
            return number + index

    found = first()
    log.append("behind")
    return a + found


def left_in_no_grad(a, log):
    def blocks():
        with torch.no_grad():
            yield a + 1
            yield a + 2

    for block in blocks():
        inside = torch.is_grad_enabled()
        break
    return block, inside, torch.is_grad_enabled()


def kept_by_a_local(a, log):
    iterator = numbers(log)
    for number in iterator:
        break
    log.append("behind")
    return a + number + sum(iterator)


def kept_by_an_attribute(a, log):
    holder = Plain()
    holder.numbers = [numbers(log)]
    for number in holder.numbers[0]:
        break
    log.append("behind")
    return a + number + next(holder.numbers[0])


def ended_by_an_error(a, log):
    def failing():
        try:
            yield 1
        finally:
            log.append("end")
            raise ValueError

    for number in failing():
        break
    log.append("behind")
    return a + number


LOOPS = [left_by_break, left_by_return, left_in_no_grad, kept_by_a_local]


@pytest.mark.parametrize("function", LOOPS, ids=lambda function: function.__name__)
def test_generators_end_where_loops_leave_them(function):
    check(function, x, [], fullgraph=True)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    "function",
    [kept_by_an_attribute, ended_by_an_error],
    ids=lambda function: function.__name__,
)
def test_ends_of_generators_that_eager_runs(function):
    check(function, x, [], graphs=None)


def test_a_finished_generator_keeps_its_name():
    def function(a):
        iterator = numbers([])
        return a + sum(iterator), iterator

    result, iterator = minidynamo.compile(function, backend="eager", fullgraph=True)(x)
    assert torch.equal(result, x + 3) and list(iterator) == []
    assert (iterator.__name__, iterator.__qualname__) == ("numbers", "numbers")


def test_a_module_is_copied_by_eager_in_one_break():
    layer = torch.nn.Linear(3, 3)

    def function(a):
        copied = copy.deepcopy(layer)
        return copied(a) + 1, copied.weight is layer.weight

    check(function, x, graphs=1, breaks=1)


@dataclasses.dataclass
class Record:
    values: object
    count: int = 2


class Copied:
    def __init__(self, tensor):
        self.tensor = tensor

    def __deepcopy__(self, memo):
        return Copied(copy.deepcopy(self.tensor, memo))


def copied_once(a):
    given = [a, a, a + 1, Copied(a)]
    made = copy.deepcopy(given)
    made[0].mul_(3)
    same = made[0] is made[1], made[3].tensor is made[0], made[0] is a
    return same, made[0], made[1], made[2], a, given[2]


def records(a):
    made = dataclasses.asdict(Record([a, {"inner": a.sin()}]))
    made["values"][0].add_(1)
    return made, dataclasses.astuple(Record(a)), a


@pytest.mark.parametrize("fn", [copied_once, records])
def test_deep_copies_of_tensors(fn):
    check(fn, x, graphs=1)
    check_recompiles(fn, [(x,), (x.clone(),), (x + 1,)], graphs=1)


def test_tensors_that_are_more_than_their_elements():
    def fn(a):
        try:
            return copy.deepcopy(a), copy.deepcopy(a).storage_offset()
        except RuntimeError as error:
            return type(error)

    tagged = x.clone()
    tagged.tag = "kept"
    leaf = x.clone().requires_grad_()
    for given in (x[1:], x.t(), x.expand(2, 2, 3), leaf):
        check(fn, given, graphs=None)
    compiled = minidynamo.compile(lambda a: copy.deepcopy(a), backend="eager")
    assert not hasattr(compiled(x), "tag")
    assert compiled(tagged).tag == "kept"
    assert not hasattr(compiled(x), "tag")


SPAN = datetime.timedelta(hours=2)


def test_spans_of_time():
    def fn(a, span):
        day = datetime.timedelta(days=1, seconds=2)
        found = day.days, day * 2, day > span, str(day), {day: 1}, divmod(day, span), -day
        return a * span.total_seconds() + SPAN.seconds, found, span

    spans = [datetime.timedelta(minutes=m) for m in (1, 1, 2)]
    check_recompiles(fn, [(x, span) for span in spans], graphs=2)

    def wrong(a):
        try:
            return datetime.timedelta("day")
        except TypeError as error:
            return a + 1, str(error)

    check(wrong, x, graphs=1)


@functools.singledispatch
def measured(value):
    return 1


@measured.register
def _(value: collections.abc.Sized):
    return len(value)


def test_dispatch_over_abstract_classes():
    class Late:
        pass

    def fn(a, value):
        return a * measured(value), measured([1, 2]), measured(2)

    def register(index):
        if index == 2:
            collections.abc.Sized.register(Late)
            Late.__len__ = lambda self: 5

    late = Late()
    check_recompiles(fn, [(x, late)] * 3, graphs=2, change=register)


def test_compile_inside_of_compiled_code():
    def fn(a):
        @minidynamo.compile(backend="eager")
        def inner(b):
            return b.sin()

        return inner(a) + minidynamo.compile(Copied(a).__deepcopy__)({}).tensor

    check(fn, x, graphs=1)
    check_recompiles(fn, [(x,), (x + 1,)], graphs=1)


def test_gradcheck_calls_what_is_compiled():
    """It calls a function once for each element: none of these calls is a part of a graph."""

    def fn(x):
        checked = torch.autograd.gradcheck(lambda a: (a.sin() * 2).exp(), (x,))
        try:
            torch.autograd.gradcheck(lambda a: a.detach() * a, (x,))
        except RuntimeError as error:
            return checked, str(error).split(",")[0]

    x = torch.rand(2, 3, dtype=torch.float64, requires_grad=True)
    counter = CountingBackend()
    assert minidynamo.compile(fn, backend=counter)(x) == fn(x)
    assert len(counter.graphs) == 2


CALLS = []
SETTING = [1]


@functools.cache
def noted(number):
    CALLS.append(number)
    return [number]


@functools.lru_cache(maxsize=2)
def set_apart(number):
    return SETTING[0] + number


class Remembers(torch.nn.Module):
    calls = 0

    @functools.lru_cache  # noqa: B019
    def mask(self, n):
        self.calls += 1
        return torch.ones(n)

    def forward(self, x):
        found = [self.mask(len(x)) + x for _ in range(3)]
        minidynamo.graph_break()
        return found, self.calls, self.mask(4) is self.mask(4)


def cached_in_a_loop(x):
    noted.cache_clear()
    CALLS.clear()
    found = []
    for i in (1, 1, 2, 1):
        try:
            found.append(noted(i))
        except ValueError:
            continue
    minidynamo.graph_break()
    return x + 1, found, found[0] is found[1], list(CALLS), noted.cache_info()[:2]


def cached_by_the_frame(x):
    calls = []

    @functools.lru_cache
    def twice(n):
        calls.append(n)
        return x * n

    found = []
    for i in (1, 1, 2, 1):
        with torch.no_grad():
            try:
                found.append(twice(i))
            except ValueError:
                continue
        minidynamo.graph_break()
    return x + 1, calls, found, found[0] is found[1]


def cached_between_reads(x):
    before = len(CALLS)
    result = noted(5)
    return x + 1, before, len(CALLS), result, noted(5) is result


@pytest.mark.parametrize("fn", [cached_in_a_loop, cached_by_the_frame, cached_between_reads])
def test_functions_with_a_cache_run_once(fn):
    found = []
    for call in (fn, minidynamo.compile(fn, backend="eager")):
        noted.cache_clear()
        CALLS.clear()
        found.append([call(torch.ones(3)) for _ in range(2)])
    assert_same(found[1], found[0])


def test_methods_with_a_cache():
    found = []
    for make in (lambda m: m, lambda m: minidynamo.compile(m, backend="eager")):
        model = make(Remembers())
        found.append([model(torch.ones(4)) for _ in range(3)])
    assert_same(found[1], found[0])


def test_results_are_those_of_the_cache():
    counter = CountingBackend()
    compiled = minidynamo.compile(lambda x: x * set_apart(3), backend=counter, fullgraph=True)
    for setting, cleared in ((1, False), (5, False), (5, True), (5, False)):
        SETTING[0] = setting
        if cleared:
            set_apart.cache_clear()
        assert compiled(torch.ones(2))[0].item() == set_apart(3)
    assert len(counter.graphs) == 2
