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


class Counters(threading.local):
    start = 2

    def __init__(self):
        self.count = self.start

    def advance(self, by):
        self.count += by
        return self.count


PLAIN, COUNTERS = threading.local(), Counters()


def stores(a):
    PLAIN.kept = [a + 1]
    PLAIN.kept.append(COUNTERS.advance(3))
    PLAIN.gone = 1
    del PLAIN.gone
    COUNTERS.__dict__["by_name"] = a
    missing = getattr(PLAIN, "gone", None), hasattr(COUNTERS, "other")
    return PLAIN.kept, COUNTERS.count, missing, PLAIN, sorted(COUNTERS.__dict__)


def deletes_what_is_missing(a):
    try:
        del PLAIN.other
    except AttributeError as error:
        return a + 1, str(error)


def replaces_the_dict(a):
    try:
        PLAIN.__dict__ = {}
    except AttributeError as error:
        return a + 1, str(error)


@pytest.mark.parametrize("fn", [stores, deletes_what_is_missing, replaces_the_dict])
def test_stores_to_attributes_of_the_thread(fn):
    found = []

    def run(call):
        vars(PLAIN).clear()
        vars(COUNTERS).clear()
        COUNTERS.count = Counters.start
        found.append([call(x), call(x), dict(vars(PLAIN)), dict(vars(COUNTERS))])

    counter = CountingBackend()
    compiled = minidynamo.compile(fn, backend=counter, fullgraph=True)
    for call in (fn, compiled, compiled):
        run(call)
    thread = threading.Thread(target=run, args=(compiled,))
    thread.start()
    thread.join()
    for other in found[1:]:
        assert_same(found[0], other)
    assert len(counter.graphs) in (1, 2)


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


# -- containers of weak references, and what references are equal to ------------------------------


class Key:
    def __init__(self, number):
        self.number = number


KEY, OTHER = Key(3), Key(4)
BY_KEY = weakref.WeakKeyDictionary({KEY: 5})
KEYS = weakref.WeakSet([KEY])
REFERENCE = weakref.ref(KEY)


def _reads_containers(a):
    for key, value in BY_KEY.items():
        a = a * value + key.number
    for key in KEYS:
        a = a + key.number
    found = KEY in BY_KEY, OTHER in BY_KEY, BY_KEY.get(OTHER), KEY in KEYS, OTHER in KEYS
    return a + BY_KEY[KEY], found, len(BY_KEY), len(KEYS)


def _compares_references(a):
    inside = Key(1)
    made = weakref.ref(inside)
    again, other = weakref.ref(KEY), weakref.ref(OTHER)
    same = again is REFERENCE, again == REFERENCE, other == again, other is again, again == 3
    same += made is weakref.ref(inside), made == weakref.ref(inside), made == again
    return a + 1, same, hash(REFERENCE) == hash(KEY), {REFERENCE: 2}[again]


@pytest.mark.parametrize("fn", [_reads_containers, _compares_references])
def test_weak_references_are_traced(fn):
    check(fn, x, fullgraph=True)


def _values_of_its_own():
    table, objects = weakref.WeakValueDictionary(), [Key(number) for number in range(3)]
    for each in objects:
        table[each.number] = each
    sizes = [len(table), table[1].number, table.get(5)]
    del objects[:], each
    return [*sizes, len(table), list(table.keys())]


def _weak_values(a):
    return a + 1, _values_of_its_own()


def test_weak_values_end_with_their_objects():
    check(_weak_values, x)


def _looks_up(a, table, keys, key):
    return a + table.get(key, 7), len(table), key in keys


def _stores(a, table, keys, key):
    table[key] = 3
    keys.add(key)
    keys.add(key)
    sizes = len(table), len(keys)
    keys.discard(key)
    return a + table[key], sizes, len(keys)


def _removes(a, table, keys, key):
    found = table.pop(key, None), len(table)
    table[key] = 4
    del table[key]
    return a + 1, found, len(table)


@pytest.mark.parametrize("fn", [_looks_up, _stores, _removes])
def test_keys_of_weak_containers_that_change(fn):
    counter = CountingBackend()
    compiled = minidynamo.compile(fn, backend=counter, fullgraph=True)
    found = []
    for call in (fn, compiled):
        keys = [Key(number) for number in range(3)]
        table, elements = weakref.WeakKeyDictionary({keys[0]: 1}), weakref.WeakSet(keys[:1])
        results = [call(x, table, elements, key) for key in keys]
        state = (
            sorted(key.number for key in elements),
            [(k.number, v) for k, v in table.items()],
        )
        found.append((results, state))
    assert_same(found[0], found[1])
    assert counter.graphs


def _drops_argument(a, table, holder):
    key = holder.pop()
    table[key] = a
    size = len(table)
    del key
    return a + 1, size, len(table)


def _drops_item(a, table, holder):
    table[holder[0]] = a
    size = len(table)
    holder.clear()
    return a + 1, size, len(table)


def _drops_object(a, table, holder):
    key = Key(1)
    table[key] = a
    size = len(table)
    del key
    return a + 1, size, len(table)


def _is_key_itself(a, table, holder):
    key, inside = holder.pop(), Key(2)
    made = {weakref.ref(key): 1, weakref.ref(inside): 2}
    size = len(made)
    del key, inside
    return a + 1, size, sum(reference() is not None for reference in made)


def _is_called_back(a, table, holder):
    calls = []
    reference = weakref.ref(holder[0], lambda _: calls.append(1))
    size = len(calls)
    holder.clear()
    return a + 1, size, len(calls), reference() is None


@pytest.mark.parametrize(
    "fn", [_drops_argument, _drops_item, _drops_object, _is_key_itself, _is_called_back]
)
def test_an_entry_goes_with_its_key(fn):
    compiled = minidynamo.compile(fn, backend="eager")
    table = weakref.WeakKeyDictionary()
    results = [call(x, table, [Key(1)]) for call in (fn, compiled, compiled)]
    assert_same(results[0], results[1])
    assert_same(results[0], results[2])
    assert results[0][2] != results[0][1]


def _keeps_its_hash(a, table, holder):
    reference = weakref.ref(holder[0])
    first = hash(reference)
    holder.clear()
    return a + 1, first == hash(reference), len(holder)


@pytest.mark.parametrize("backend", ["eager"])
def test_a_reference_keeps_the_hash_that_it_gave(backend):
    compiled = minidynamo.compile(_keeps_its_hash, backend=backend)
    for call in (_keeps_its_hash, compiled, compiled):
        assert call(x, {}, [Key(1)])[1]


# -- proxies ---------------------------------------------------------------------------------------


class Shown:
    factor = 3

    def __init__(self):
        self.count, self.items = 0, {"a": 1}

    def advance(self, a):
        self.count += 1
        return a * self.count

    def __getitem__(self, key):
        return self.items[key]

    def __setitem__(self, key, value):
        self.items[key] = value

    def __len__(self):
        return len(self.items)

    def __iter__(self):
        return iter(self.items)

    def __call__(self, a):
        return a + self.factor


class Hidden(Shown):
    def __getattribute__(self, name):
        return super().__getattribute__(name)


def _by_proxy(a, proxy):
    proxy["b"], proxy.other = a, proxy.factor
    del proxy.other
    shown = (
        proxy["b"],
        len(proxy),
        "a" in proxy,
        list(proxy),
        bool(proxy),
        hasattr(proxy, "other"),
    )
    return proxy.advance(a), proxy(a), proxy.count, shown


@pytest.mark.parametrize("kind", [Shown, Hidden])
def test_proxies(kind):
    counter = CountingBackend()
    compiled = minidynamo.compile(_by_proxy, backend=counter, fullgraph=kind is Shown)
    for _ in range(2):
        objects = kind(), kind()
        results = [f(x, weakref.proxy(o)) for f, o in zip((_by_proxy, compiled), objects)]
        assert_same(*results)
        assert_same(*map(vars, objects))
    assert len(counter.graphs) == 1 or kind is Hidden


def test_proxy_whose_object_is_gone():
    def f(a, holder):
        try:
            return a + holder[0].factor
        except ReferenceError as error:
            return a, str(error)

    shown = Shown()
    gone, alive = [weakref.proxy(Shown())], [weakref.proxy(shown, lambda proxy: None)]
    for calls in ((alive, gone), (gone, alive)):
        minidynamo.reset()
        compiled = minidynamo.compile(f, backend="eager")
        for holder in calls * 2:
            assert_same(compiled(x, holder), f(x, holder))
