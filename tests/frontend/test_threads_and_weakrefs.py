"""What belongs to the calling thread; weak references; ranges of the profiler."""

import threading
import weakref

import pytest
import torch
from testing import CountingBackend, assert_same, check

import minidynamo

x = torch.arange(4.0)


class Box:
    def __init__(self, **attributes):
        vars(self).update(attributes)


def test_attributes_of_the_thread():
    local = threading.local()
    local.weight = x * 3

    def f(a):
        return a + local.weight if hasattr(local, "weight") else a

    counter = CountingBackend()
    compiled = minidynamo.compile(f, backend=counter, fullgraph=True)
    for weight, graphs in ((x * 3, 1), (x * 2, 1), (3, 2)):
        local.weight = weight
        assert_same(compiled(x), x + weight)
        assert len(counter.graphs) == graphs
    elsewhere = []
    thread = threading.Thread(target=lambda: elsewhere.append(compiled(x)))
    thread.start()
    thread.join()
    assert_same(elsewhere, [x])
    del local.weight
    assert_same(compiled(x), x)


def test_missing_attribute_of_the_thread():
    local = threading.local()

    def f(a):
        return a + local.weight

    check(f, x, graphs=None)


def test_weak_reference_made_inside():
    def f(box, a):
        reference = weakref.ref(box)
        return a + reference().value, reference

    counter = CountingBackend()
    compiled = minidynamo.compile(f, backend=counter, fullgraph=True)
    box = Box(value=x)
    for value in (x * 3, x + 1):
        box.value = value
        result, reference = compiled(box, x)
        assert_same(result, x + value)
        assert type(reference) is weakref.ref and reference() is box
    assert len(counter.graphs) == 1


def test_weak_reference_whose_object_goes():
    def f(box, a):
        reference = weakref.ref(box.child)
        box.child = None
        return a + 1, reference() is None

    for call in (f, minidynamo.compile(f, backend=CountingBackend())):
        result, is_gone = call(Box(child=Box()), x)
        assert_same(result, x + 1)
        assert is_gone


def test_range_of_the_profiler_as_decorator():
    @torch.profiler.record_function("range")
    def helper(a):
        return a.sin()

    check(lambda a: helper(a) + 1, x, fullgraph=True)


class _Slots:
    __slots__ = ("size",)


def test_object_without_room_for_weak_references():
    def fn(x):
        made = _Slots()
        try:
            weakref.ref(made)
        except TypeError as error:
            return x + 1, str(error)

    check(fn, torch.ones(2), fullgraph=True)


# -- what held the object of an existing reference is changed --------------------------------------


class Owner:
    pass


def _lets_go_by_attribute(owner):
    owner.held = None


def _lets_go_by_delete(owner):
    del owner.held


def _lets_go_by_clear(owner):
    owner.held = None
    owner.items.clear()


def _keeps_in_attribute(owner):
    owner.other = owner.held
    owner.held = None


def _changes_something_else(owner):
    owner.other = 3


@pytest.mark.parametrize(
    ("change", "is_dead"),
    [
        (_lets_go_by_attribute, True),
        (_lets_go_by_delete, True),
        (_lets_go_by_clear, True),
        (_keeps_in_attribute, False),
        (_changes_something_else, False),
    ],
)
def test_an_existing_reference_after_its_holder_changed(change, is_dead):
    owner = Owner()

    def fn(x, ref):
        change(owner)
        return x + 1, ref() is None

    minidynamo.reset()
    counter = CountingBackend()
    compiled = minidynamo.compile(fn, backend=counter)
    for call in (fn, compiled, compiled):
        owner.held = Owner()
        owner.items = [owner.held] if change is _lets_go_by_clear else []
        ref = weakref.ref(owner.held)
        assert call(x, ref)[1] is is_dead
        owner.other = None
    assert len(counter.graphs) == 1
