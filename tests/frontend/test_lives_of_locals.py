"""Locals live until their function ends, also over graph breaks: who has their address, or a weak
reference to them, can tell.
"""

from __future__ import annotations

import ctypes
import weakref

import pytest
import torch
from testing import check, check_recompiles

import minidynamo

x = torch.ones(8)


@minidynamo.disable
def read(address):
    """Eight floats, after freed memory was taken for something else."""
    taken = [torch.full((8,), float(-n)) for n in range(4)]
    return [*(ctypes.c_float * 8).from_address(address), len(taken)]


@minidynamo.disable
def address_of(tensor):
    return tensor.data_ptr()


@minidynamo.disable
def reference_to(value):
    return weakref.ref(value)


class Plain:
    def method(self):
        return 1


class Node:
    __slots__ = ("__weakref__", "name", "next")


def of_a_tensor(x):
    y = x * 2
    address = y.data_ptr()
    minidynamo.graph_break()
    return read(address)


def of_an_array(x):
    array = (x * 2).numpy()
    pointer = array.ctypes
    address = pointer.data
    return read(address)


def of_an_array_interface(x):
    array = (x * 2).numpy()
    address = array.__array_interface__["data"][0]
    return read(address)


def of_a_storage(x):
    storage = (x * 2).untyped_storage()
    address = storage.data_ptr()
    return read(address)


def by_an_unknown_function(x):
    y = x * 2
    address = address_of(y)
    minidynamo.graph_break()
    return read(address)


def below_a_function(x):
    def send(y):
        address = address_of(y)
        z = x + 1
        minidynamo.graph_break()
        return z, read(address)

    y = x * 2
    return send(y)


def of_a_node_of_autograd(x):
    y = x.clone().requires_grad_()
    out = y[:, None] * y
    out.grad_fn._raw_saved_self.register_hooks(lambda a: a, lambda a: a)
    out = y[torch.tensor([0, 1])]
    saved = out.grad_fn._raw_saved_indices
    minidynamo.graph_break()
    saved[0].register_hooks(lambda a: a, lambda a: a)
    return type(saved[0])


ADDRESSES = (
    of_a_tensor,
    of_an_array,
    of_an_array_interface,
    of_a_storage,
    by_an_unknown_function,
    below_a_function,
    of_a_node_of_autograd,
)


@pytest.mark.parametrize("fn", ADDRESSES, ids=lambda fn: fn.__name__)
def test_addresses(fn):
    check(fn, x, graphs=None, calls=3)


def to_a_tensor(x):
    y = x * 2
    known = reference_to(y)
    z = x + 1
    minidynamo.graph_break()
    return z, known() is None


def made_of_a_tensor(x):
    y = x * 2
    known = weakref.ref(y)
    z = x + 1
    minidynamo.graph_break()
    return z, known() is None


def to_items(x):
    items = [Plain(), Plain()]
    known = [weakref.ref(item) for item in items]
    y = x + 1
    minidynamo.graph_break()
    return y, [reference() is None for reference in known]


def to_a_method(x):
    thing = Plain()
    known = weakref.WeakMethod(thing.method)
    y = x + 1
    minidynamo.graph_break()
    return y, known() is None


def to_a_list(x):
    class Items(list):
        pass

    items = Items([1])
    known = reference_to(items)
    y = x + 1
    minidynamo.graph_break()
    return y, known() is None


def by_proxies(x):
    first, second = Node(), Node()
    first.name, second.name = "first", "second"
    first.next = second
    second.next = weakref.proxy(first)
    y = x + 1
    minidynamo.graph_break()
    return y, first.next.next.name


def deleted_behind_a_break(x):
    thing = Plain()
    known = weakref.ref(thing)
    minidynamo.graph_break()
    del thing
    return x + 1, known() is None


def replaced_behind_a_break(x):
    things = [Plain()]
    known = reference_to(things[0])
    things = None
    return x + 1, known() is None, things


def moved_behind_a_break(x):
    things = [Plain()]
    known = reference_to(things[0])
    thing = things.pop()
    del things
    return x + 1, known() is thing


def called_before_it_is_deleted(x):
    thing = Plain()
    known = reference_to(thing)
    alive = known() is not None
    del thing
    y = x + 1
    return y, alive, known() is None


def as_keys(x):
    first, second = x * 2, x * 3
    found = torch.utils.weak.WeakIdKeyDictionary()
    found[first] = 1
    found[second] = 2
    minidynamo.graph_break()
    return x + 1, len(found)


def in_a_list(x):
    first, second = x * 2, x * 3
    known = [reference_to(first)]
    known.append(reference_to(second))
    minidynamo.graph_break()
    return x + 1, [reference() is None for reference in known]


def in_an_attribute(x):
    thing = Plain()
    first, second = x * 2, x * 3
    thing.known = {"first": reference_to(first)}
    thing.known["second"] = reference_to(second)
    minidynamo.graph_break()
    return x + 1, [reference() is None for reference in thing.known.values()]


def with_a_callback_in_a_list(x):
    """The list is used no more once it has the reference, which lives as long."""
    told, known = [], []
    thing = Plain()
    known.append(weakref.ref(thing, lambda reference: told.append("ended")))
    minidynamo.graph_break()
    thing = None
    told.append("behind")
    return x + 1, told


def with_a_callback_in_a_handler(x):
    told, known = [], []
    try:
        thing = Plain()
        known.append(weakref.ref(thing, lambda reference: told.append("ended")))
        raise ValueError(x)
    except ValueError:
        del thing
        minidynamo.graph_break()
    told.append("behind")
    return x + 1, told


REFERENCES = (to_a_tensor, made_of_a_tensor, to_items, to_a_method, to_a_list, by_proxies)
REFERENCES += (deleted_behind_a_break, replaced_behind_a_break, moved_behind_a_break)
REFERENCES += (called_before_it_is_deleted, as_keys, in_a_list, in_an_attribute)
REFERENCES += (with_a_callback_in_a_list, with_a_callback_in_a_handler)


@pytest.mark.parametrize("fn", REFERENCES, ids=lambda fn: fn.__name__)
def test_weak_references(fn):
    check(fn, x, graphs=None, calls=3)


@pytest.mark.parametrize("callback", [None, [].append])
def test_arguments_with_proxies(callback):
    """Attributes of a proxy are those of its object: its callback is not among them."""

    def fn(x, node):
        node.name = "changed"
        return x + 1

    for _ in range(2):
        node = Node()
        node.name = ""
        proxy = weakref.proxy(node, callback)
        compiled = minidynamo.compile(fn, backend="eager")
        assert torch.equal(compiled(x, node), x + 1)
        assert proxy.name == "changed"


def test_tensors_make_no_more_continuations_of_a_loop():
    def fn(x):
        for _ in range(3):
            y = x.sin()
            minidynamo.graph_break()
            z = y.cos()
            minidynamo.graph_break()
            x = z + 1
        return x

    check_recompiles(fn, [(x,)] * 2, 4)


def test_namespaces_that_have_every_attribute():
    """torch.classes makes a namespace of whatever is asked of it."""

    def fn(x):
        class New:
            classes = torch.classes

        y = x + 1
        minidynamo.graph_break()
        return y, New.classes is torch.classes

    check(fn, x, graphs=None)


class Marks:
    def __init__(self, owner):
        self.owner = owner

    def __enter__(self):
        self.owner.is_open = True

    def __exit__(self, *error):
        self.owner.is_open = False


def test_objects_that_are_done_hold_nothing():
    """The block's manager, of which nothing is left, led to the object when it was written to."""

    def made(x):
        node = Plain()
        minidynamo.graph_break()
        with Marks(node):
            y = x + 1
        return y, weakref.ref(node), node.is_open

    def fn(x):
        y, known, is_open = made(x)
        return y, known() is None, is_open

    check(fn, x, graphs=None)


def test_objects_that_are_done_and_one_that_is_not():
    def fn(x, node):
        marks = Marks(node)
        with marks:
            known = weakref.ref(node)
        del node
        return x + 1, known() is marks.owner

    check(fn, x, Plain(), graphs=1)


class Pair(tuple):
    __slots__ = ()

    def __len__(self):
        raise NotImplementedError


class Table(dict):
    def __iter__(self):
        raise NotImplementedError

    values = __iter__


def test_containers_of_classes_that_refuse_to_be_walked():
    """The tracer looks for what is still in use without the program's own methods."""

    node = Plain()
    node.pair, node.table = Pair((1, 2)), Table(a=1)

    def fn(x):
        names = vars(node)
        y = x + 1
        minidynamo.graph_break()
        return y, list(names), node.pair[0]

    check(fn, x, graphs=1)


class Unhashable(type):
    __hash__ = None


class Unlisted(metaclass=Unhashable):
    def shift(self, x):
        return x + self.by


def test_objects_of_classes_without_a_hash():
    """The tracer finds no such class in its tables, and has no error of its own for that."""
    node = Unlisted()

    def fn(x):
        node.by = 1
        y = node.shift(x)
        minidynamo.graph_break()
        node.by = 3
        return node.shift(y)

    with minidynamo.config.patch(raise_internal_errors=True):
        check(fn, x, graphs=None)
