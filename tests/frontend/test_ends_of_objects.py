"""When objects come to their end, as `__del__` and callbacks of weak references tell it."""

import collections
import gc
import weakref

import pytest
import torch
from testing import CountingBackend, assert_same

import minidynamo
import minidynamo.variables.finalizers
from minidynamo.variables.reach import first_not_held

x = torch.arange(3.0)
LOG = []
HELD = None


class Mortal:
    def __init__(self, name):
        self.name = name

    def __del__(self):
        LOG.append(("end of", self.name))


class Box:
    def __init__(self, **attributes):
        vars(self).update(attributes)


def local_is_replaced(a):
    thing = Mortal(1)
    LOG.append("a")
    thing = None
    LOG.append("b")
    return a + 1, thing


def unused_local_lives_on(a):
    things = [Mortal(1), Mortal(2)]
    LOG.append("a")
    things.pop()
    LOG.append("b")
    Mortal(3)
    LOG.append("c")
    return a + 1


def local_of_an_inlined_function(a):
    def inner():
        thing = Mortal(1)
        LOG.append("in")
        return a + 1, thing.name

    result = inner()
    LOG.append("after")
    return result


def items_of_a_list(a, things):
    things[0] = 1
    LOG.append("a")
    last = things.pop()
    LOG.append("b")
    result = a + last.name
    del last
    LOG.append("c")
    things.clear()
    LOG.append("d")
    return result


def items_of_a_dict(a, table):
    table.pop("a")
    LOG.append("a")
    table["b"] = 1
    LOG.append("b")
    del table["c"]
    LOG.append("c")
    table.clear()
    LOG.append("d")
    return a + 1


def items_of_sets_and_deques(a, group, queue):
    group.clear()
    LOG.append("a")
    queue.append(1)
    LOG.append("b")
    queue.popleft()
    LOG.append("c")
    return a + 1


def attributes(a, box):
    box.first = None
    LOG.append("a")
    del box.second
    LOG.append("b")
    box.nest = None
    LOG.append("c")
    return a + 1


def object_that_an_attribute_held(a, outer):
    box = outer.box
    outer.box = None
    LOG.append("a")
    box = None
    LOG.append("b")
    return a + 1, box


def loop_over_what_is_cleared(a, things):
    for thing in things:
        things.clear()
        LOG.append("a")
    LOG.append(thing.name)
    thing = 1
    LOG.append("b")
    return a + thing


def a_global(a):
    global HELD
    LOG.append("a")
    HELD = None
    LOG.append("b")
    return a + 1


def a_cell(a, things):
    cell = things.pop()

    def inner():
        nonlocal cell
        cell = None
        LOG.append("a")

    inner()
    LOG.append("b")
    return a + 1


def weak_set(a, group):
    thing = Box()
    group.add(thing)
    LOG.append(len(group))
    thing = None
    LOG.append(len(group))
    return a + 1, thing


def weak_dicts(a, by_key, by_value):
    first, second = Box(), Box()
    by_key[first] = 1
    by_value["b"] = second
    LOG.append((len(by_key), sorted(by_value)))
    del first, second
    LOG.append((len(by_key), sorted(by_value)))
    return a + 1


def finalize(a):
    thing = Box()
    end = weakref.finalize(thing, LOG.append, "end")
    LOG.append(end.alive)
    thing = None
    LOG.append(end.alive)
    return a + 1, thing


def deleted_in_a_handler(a):
    thing = Mortal(1)
    a = a + 1
    try:
        a = a + thing.missing
    except AttributeError:
        LOG.append("handler")
        del thing
        LOG.append("deleted")
    return a


def nest():
    return Box(inner=[Mortal(3)])


def deleted_in_a_handler_of_an_inlined_function(a):
    def inner():
        thing, other = Mortal(1), Mortal(2)
        LOG.append("in")
        try:
            raise ValueError(thing.name + other.name)
        except ValueError:
            del thing
            LOG.append("handled")
            other = None
        LOG.append("behind")
        return a + 1, other

    result = inner()
    LOG.append("after")
    return result


CASES = [
    (local_is_replaced, lambda: ()),
    (unused_local_lives_on, lambda: ()),
    (local_of_an_inlined_function, lambda: ()),
    (items_of_a_list, lambda: ([Mortal(1), Mortal(2), Mortal(3)],)),
    (items_of_a_dict, lambda: ({name: Mortal(name) for name in "abcd"},)),
    (
        items_of_sets_and_deques,
        lambda: ({Mortal(1)}, collections.deque([Mortal(2), Mortal(3)], 2)),
    ),
    (attributes, lambda: (Box(first=Mortal(1), second=Mortal(2), nest=nest()),)),
    (object_that_an_attribute_held, lambda: (Box(box=nest()),)),
    (loop_over_what_is_cleared, lambda: ([Mortal(5)],)),
    (a_global, lambda: ()),
    (a_cell, lambda: ([Mortal(1)],)),
    (weak_set, lambda: (weakref.WeakSet(),)),
    (weak_dicts, lambda: (weakref.WeakKeyDictionary(), weakref.WeakValueDictionary())),
    (finalize, lambda: ()),
    (deleted_in_a_handler, lambda: ()),
    (deleted_in_a_handler_of_an_inlined_function, lambda: ()),
]


def history(call, make):
    global HELD
    results, logs = [], []
    gc.disable()
    try:
        for _ in range(2):
            LOG.clear()
            HELD = Mortal("held")
            # The call alone holds the arguments.
            results.append(call(x, *make()))
            HELD = None
            logs.append(list(LOG))
    finally:
        gc.enable()
    return results, logs


@pytest.mark.parametrize(("function", "make"), CASES, ids=[case[0].__name__ for case in CASES])
def test_order(function, make):
    minidynamo.reset()
    counter = CountingBackend()
    expected = history(function, make)
    assert_same(expected, history(minidynamo.compile(function, backend=counter), make))
    assert counter.graphs


def test_what_something_else_holds_is_no_end():
    kept = Mortal(1)

    def f(a, things, box):
        things.append(box.name)
        box.name = "new"
        return a + len(things)

    counter = CountingBackend()
    compiled = minidynamo.compile(f, backend=counter, fullgraph=True)
    nested = Box(inner=[Box(deep=kept)])
    for _ in range(2):
        assert_same(compiled(x, [nested], Box(name=nested)), x + 2)
    assert len(counter.graphs) == 1
    assert kept.name == 1


class Shared:
    state = {"count": 1}

    def __init__(self):
        self.__dict__ = Shared.state


def objects_with_one_dict(a, first, second):
    first.count += 1
    LOG.append(second.count)
    second.count += 1
    LOG.append(first.count)
    second.other = 1
    LOG.append(Shared.state["other"])
    return a + first.count


def dict_before_its_object(a, box, _unused):
    table, box = box
    table["value"] = 5
    LOG.append(box.value)
    box.value = 6
    LOG.append(table["value"])
    del box.value
    LOG.append("value" in table)
    table["value"] = 7
    return a + box.value


def test_objects_with_one_dict():
    for function in (objects_with_one_dict, dict_before_its_object):
        minidynamo.reset()
        logs = []
        for call in (function, minidynamo.compile(function, backend=CountingBackend())):
            Shared.state = {"count": 1}
            LOG.clear()
            for _ in range(2):
                box = Box(value=1)
                first = Shared() if function is objects_with_one_dict else (vars(box), box)
                LOG.append(call(x, first, Shared()))
            logs.append(list(LOG))
        assert_same(*logs)


def test_dict_and_object_that_are_only_read():
    def f(a, table, box):
        return a + table["value"] + box.value

    counter = CountingBackend()
    compiled = minidynamo.compile(f, backend=counter, fullgraph=True)
    for value, graphs in ((1.5, 1), (2.5, 2)):
        box = Box(value=value)
        assert_same(compiled(x, vars(box), box), x + 2 * value)
        assert len(counter.graphs) == graphs


def test_old_objects_are_not_collected_for_each_attempt():
    """A collection of everything takes as long as the program has objects."""

    def fn(a, thing):
        b = a + 1
        del thing
        minidynamo.graph_break()
        return b * 2

    compiled = minidynamo.compile(fn, backend="eager")
    compiled(x, None)
    LOG.clear()
    gc.collect()
    before = gc.get_stats()[2]["collections"]
    result = compiled(x, Mortal(1))
    assert gc.get_stats()[2]["collections"] == before
    assert LOG == [("end of", 1)]
    assert_same(result, (x + 1) * 2)


def test_what_the_frame_still_has_is_not_looked_for(monkeypatch):
    """The walk behind each instruction took most of the time of a block of TemporaryDirectory."""
    walks = []

    def walked(*args):
        walks.append(None)
        return first_not_held(*args)

    monkeypatch.setattr(minidynamo.variables.finalizers, "first_not_held", walked)

    def fn(a, thing):
        for k in range(20):
            a = a + k
        b = a * thing.name
        del thing
        return b * 2

    compiled = minidynamo.compile(fn, backend="eager")
    LOG.clear()
    assert_same(compiled(x, Mortal(1)), (x + 190) * 2)
    assert LOG == [("end of", 1)]
    assert 0 < len(walks) < 8


ENDS = []


class NotedEnd:
    def __del__(self):
        ENDS.append("end")


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_ends_in_frames_that_a_traceback_holds(depth, raises):
    def drops():
        item = NotedEnd()
        try:
            drops.missing
        except AttributeError:
            del item
            gc.collect()
            ENDS.append("deleted")
            if raises:
                raise TypeError from None

    def calls(x):
        ENDS.clear()
        try:
            drops()
        except TypeError:
            ENDS.append("raised")
        return x + 1, list(ENDS)

    def nest(inner):
        return lambda x: inner(x)

    fn = calls
    for _ in range(depth):
        fn = nest(fn)
    x = torch.ones(2)
    compiled = minidynamo.compile(fn, backend="eager")
    for _ in range(2):
        assert compiled(x)[1] == fn(x)[1]
