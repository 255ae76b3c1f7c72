"""Random programs over random objects that are changed at random.

The native answer is always that of a plain interpreter of the same tables, written here in Python.
It needs no torch, like test_guards_dicts.py.
"""

import contextlib
import gc
import random
import struct
import types
import weakref

import pytest

with contextlib.suppress(ImportError):
    import torch  # noqa: F401  (loads the libraries that the extension may need)

_C = pytest.importorskip("minidynamo._C")
if not hasattr(_C, "GuardProgram"):
    pytest.skip("built without guard programs", allow_module_level=True)

NAMES = ("a", "b", "c", "d")


class Box:
    in_class = 0


class OtherBox(Box):
    in_class = 1


class SlotBox:
    __slots__ = ("slot",)


class Absent(Exception):
    """A fetch found nothing."""


# -- the reference interpreter --------------------------------------------------------------------


def instance_dict(value, _):
    if isinstance(value, type):
        raise Absent
    return value.__dict__ if type(value).__dictoffset__ else {}


def item_of(kind):
    def fetch(value, key):
        if not isinstance(value, kind):
            raise Absent
        try:
            return value[key]
        except (KeyError, IndexError):
            raise Absent from None

    return fetch


def attribute_of(kind, name):
    def fetch(value, _):
        if not isinstance(value, kind):
            raise Absent
        try:
            return getattr(value, name)
        except (AttributeError, ValueError):
            raise Absent from None

    return fetch


def class_attribute(cls, name):
    if not isinstance(cls, type):
        raise Absent
    for base in cls.__mro__:
        if name in vars(base):
            return vars(base)[name]
    raise Absent


def dict_position(part):
    def fetch(value, index):
        if not isinstance(value, dict) or index >= len(value):
            raise Absent
        return list(part(value))[index]

    return fetch


def slot(value, descriptor):
    if not isinstance(value, SlotBox):
        raise Absent
    try:
        return descriptor.__get__(value)
    except AttributeError:
        raise Absent from None


def referent(value, _):
    if not isinstance(value, weakref.ref):
        raise Absent
    return value()


FETCH = {
    "INSTANCE_DICT": instance_dict,
    "DICT_ITEM": item_of(dict),
    "DICT_KEY": dict_position(dict.keys),
    "DICT_VALUE": dict_position(dict.values),
    "LIST_ITEM": item_of(list),
    "TUPLE_ITEM": item_of(tuple),
    "TYPE": lambda value, _: type(value),
    "CLASS_ATTR": class_attribute,
    "SLOT": slot,
    "FUNC_CODE": attribute_of(types.FunctionType, "__code__"),
    "FUNC_DEFAULTS": attribute_of(types.FunctionType, "__defaults__"),
    "FUNC_KWDEFAULTS": attribute_of(types.FunctionType, "__kwdefaults__"),
    "FUNC_CLOSURE": attribute_of(types.FunctionType, "__closure__"),
    "CELL": attribute_of(types.CellType, "cell_contents"),
    "METHOD_SELF": attribute_of(types.MethodType, "__self__"),
    "METHOD_FUNC": attribute_of(types.MethodType, "__func__"),
    "WEAKREF": referent,
    "GETATTR": lambda value, name: attribute_of(object, name)(value, None),
}


def same_constant(expected, found):
    if type(expected) is not type(found):
        return False
    if isinstance(expected, float):
        return struct.pack("d", expected) == struct.pack("d", found)
    if isinstance(expected, tuple):
        return len(expected) == len(found) and all(map(same_constant, expected, found))
    return expected == found


CHECKS = {
    "TYPE_IS": lambda value, kind: type(value) is kind,
    "ID_IS": lambda value, held: value is held(),
    "IS_NONE": lambda value, _: value is None,
    "NOT_NONE": lambda value, _: value is not None,
    "CONST_EQ": lambda value, expected: same_constant(expected, value),
    "BOOL_IS": lambda value, truth: bool(value) is truth,
    "LEN_EQ": lambda value, size: len(value) == size,
    "DICT_HAS": lambda value, key: isinstance(value, dict) and key in value,
    "DICT_LACKS": lambda value, key: isinstance(value, dict) and key not in value,
    "DICT_KEYS": lambda value, keys: isinstance(value, dict) and tuple(value) == keys,
}


def evaluate(nodes, checks, fetch, root):
    """The objects of all nodes if all checks hold, else None.

    Where there is no instance dict an empty one stands in, unless it is to be given out.
    """
    values = []
    try:
        for number, (base, op, operand) in enumerate(nodes):
            value = root if base < 0 else FETCH[op](values[base], operand)
            lent = op == "INSTANCE_DICT" and not type(values[base]).__dictoffset__
            if lent and number in fetch:
                return None
            values.append(value)
        for node, kind, expected in checks:
            if not CHECKS[kind](values[node], expected):
                return None
    except (Absent, TypeError):  # TypeError: len() of what has none
        return None
    return values


# -- random objects and changes -------------------------------------------------------------------


class World:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.boxes = []
        self.functions = []
        self.containers = []
        self.slots = []
        for _ in range(6):
            self.boxes.append(Box())
        for _ in range(3):
            self.functions.append(self.make_function())
        for _ in range(40):
            self.change()

    def make_function(self):
        captured = self.constant()

        def template(x=1, *, y=2):
            return captured, x, y

        template.__defaults__ = (self.constant(),)
        template.__kwdefaults__ = {"y": self.constant()}
        return template

    def constant(self):
        pick = self.random.randrange
        makers = [
            lambda: pick(3),
            lambda: pick(3) * 1000,
            lambda: float(pick(3)) + 0.5,
            lambda: -0.0 if pick(2) else 0.0,
            lambda: bool(pick(2)),
            lambda: None,
            lambda: "ab"[pick(2)] * pick(4),
            lambda: (pick(2), float(pick(2)), "x" * pick(3)),
            lambda: (pick(2), (None, True)),
        ]
        return self.random.choice(makers)()

    def value(self):
        makers = [
            self.constant,
            self.constant,
            self.constant,
            lambda: self.random.choice(self.boxes),
            lambda: self.random.choice(self.functions),
            self.new_box,
            self.new_list,
            self.new_dict,
            self.new_slots,
            lambda: (self.constant(), self.random.choice(self.boxes)),
            lambda: types.MethodType(self.random.choice(self.functions), self.constant() or 1),
            lambda: weakref.ref(self.random.choice(self.boxes)),
            lambda: self.random.choice([Box, OtherBox]),
        ]
        return self.random.choice(makers)()

    def new_box(self):
        box = self.random.choice([Box, OtherBox])()
        if self.random.random() < 0.3:
            self.boxes[self.random.randrange(len(self.boxes))] = box
        for name in self.random.sample(NAMES, 2):
            setattr(box, name, self.constant())
        return box

    def keep(self, kind, value):
        kind.append(value)
        del kind[:-6]
        return value

    def new_list(self):
        items = [self.constant() for _ in range(self.random.randrange(3))]
        return self.keep(self.containers, [*items, self.random.choice(self.boxes)])

    def new_dict(self):
        keys = self.random.sample(["a", "b", 1, True, 2.5, None], 3)
        return self.keep(self.containers, {key: self.constant() for key in keys})

    def new_slots(self):
        value = SlotBox()
        value.slot = self.constant()
        return self.keep(self.slots, value)

    # one change each

    def set_attribute(self):
        setattr(self.random.choice(self.boxes), self.random.choice(NAMES), self.value())

    def delete_attribute(self):
        self.random.choice(self.boxes).__dict__.pop(self.random.choice(NAMES), None)

    def set_again(self):
        box = self.random.choice(self.boxes)
        for name, value in list(box.__dict__.items()):
            del box.__dict__[name]
            box.__dict__[name] = value

    def swap_dict(self):
        box = self.random.choice(self.boxes)
        box.__dict__ = dict(box.__dict__)

    def update_dict(self):
        self.random.choice(self.boxes).__dict__.update(a=self.constant(), b=self.constant())

    def set_class(self):
        self.random.choice(self.boxes).__class__ = self.random.choice([Box, OtherBox])

    def set_class_attribute(self):
        setattr(self.random.choice([Box, OtherBox]), "in_class", self.constant())

    def set_function(self):
        function = self.random.choice(self.functions)
        other = self.random.choice(self.functions)
        actions = [
            lambda: setattr(function, "__defaults__", (self.constant(),)),
            lambda: setattr(function, "__kwdefaults__", {"y": self.constant()}),
            lambda: function.__kwdefaults__.update(y=self.constant()),
            lambda: setattr(function, "__code__", other.__code__.replace()),
            lambda: setattr(function.__closure__[0], "cell_contents", self.constant()),
            lambda: setattr(function, self.random.choice(NAMES), self.constant()),
        ]
        self.random.choice(actions)()

    def change_container(self):
        if not self.containers:
            return
        container = self.random.choice(self.containers)
        if isinstance(container, list):
            actions = [
                lambda: container.append(self.constant()),
                lambda: container and container.pop(0),
                lambda: container.insert(0, self.constant()),
                lambda: container and container.__setitem__(0, self.value()),
                container.reverse,
            ]
        else:
            key = self.random.choice(["a", "b", 1, 2.5, None])
            actions = [
                lambda: container.update({key: self.constant()}),
                lambda: container.pop(key, None),
                container.clear,
            ]
        self.random.choice(actions)()

    def set_slot(self):
        if self.slots:
            self.random.choice(self.slots).slot = self.constant()

    def make_garbage(self):
        [float(i) for i in range(self.random.randrange(30))]  # noqa: B018
        if self.random.random() < 0.1:
            gc.collect(0)

    def change(self):
        changes = [
            self.set_attribute,
            self.set_attribute,
            self.set_attribute,
            self.delete_attribute,
            self.set_again,
            self.swap_dict,
            self.update_dict,
            self.set_class,
            self.set_class_attribute,
            self.set_function,
            self.set_function,
            self.change_container,
            self.change_container,
            self.set_slot,
            self.make_garbage,
        ]
        self.random.choice(changes)()


# -- random programs ------------------------------------------------------------------------------


def possible_fetches(value):
    """(op, operand) of what can be fetched out of `value` now."""
    found = [("TYPE", None)]
    if isinstance(value, (Box, types.FunctionType)):
        found += [("INSTANCE_DICT", None)] * 6
        found += [("GETATTR", name) for name in NAMES if hasattr(value, name)][:1]
    if isinstance(value, dict):
        found += [("DICT_ITEM", key) for key in value] * 3
        found += [("DICT_KEY", 0), ("DICT_VALUE", len(value) - 1)] if value else []
    if isinstance(value, list):
        found += [("LIST_ITEM", 0), ("LIST_ITEM", -1)] * 2 if value else []
    if isinstance(value, tuple):
        found += [("TUPLE_ITEM", 0), ("TUPLE_ITEM", -1)] * 2 if value else []
    if isinstance(value, type) and issubclass(value, Box):
        found += [("CLASS_ATTR", "in_class")] * 4
    if isinstance(value, types.FunctionType):
        parts = ("FUNC_CODE", "FUNC_DEFAULTS", "FUNC_KWDEFAULTS", "FUNC_CLOSURE")
        found += [(part, None) for part in parts]
    if isinstance(value, SlotBox):
        found += [("SLOT", SlotBox.slot)] * 3
    by_type = {
        types.CellType: [("CELL", None)] * 3,
        types.MethodType: [("METHOD_SELF", None), ("METHOD_FUNC", None)] * 2,
        weakref.ref: [("WEAKREF", None)] * 3,
    }
    return found + by_type.get(type(value), [])


def is_constant(value):
    if isinstance(value, tuple):
        return all(map(is_constant, value))
    return value is None or type(value) in (int, float, bool, str)


def held(value):
    """A function that gives the value, which it holds weakly if it can; None never dies."""
    try:
        reference = weakref.ref(value)
    except TypeError:
        return lambda: value
    return lambda: Absent if reference() is None else reference()


def possible_checks(value):
    """(kind, expected) of what `value` passes now."""
    found = [("TYPE_IS", type(value)), ("ID_IS", held(value))]
    found.append(("IS_NONE", None) if value is None else ("NOT_NONE", None))
    if is_constant(value):
        found += [("CONST_EQ", value)] * 4 + [("BOOL_IS", bool(value))]
    if isinstance(value, (list, tuple, str, dict)):
        found += [("LEN_EQ", len(value)), ("BOOL_IS", bool(value))]
    if isinstance(value, dict):
        found += [("DICT_HAS", key) for key in value] + [("DICT_KEYS", tuple(value))]
        found += [("DICT_LACKS", name) for name in NAMES if name not in value]
    return found


def random_program(world, root):
    nodes, values = [(-1, "LOCAL", 0)], [root]
    for _ in range(world.random.randrange(3, 30)):
        base = world.random.randrange(len(nodes))
        op, operand = world.random.choice(possible_fetches(values[base]))
        with contextlib.suppress(Absent):
            values.append(FETCH[op](values[base], operand))
            nodes.append((base, op, operand))
    checks = []
    for _ in range(world.random.randrange(1, 12)):
        node = world.random.randrange(len(nodes))
        checks.append((node, *world.random.choice(possible_checks(values[node]))))
    fetch = world.random.sample(range(len(nodes)), world.random.randrange(len(nodes)))
    return nodes, checks, fetch


def function(o): ...


def native(nodes, checks, fetch):
    rows = [(n, kind, e() if kind == "ID_IS" else e) for n, kind, e in checks]
    return _C.GuardProgram(nodes, rows, [], fetch)


@pytest.mark.parametrize("seed", range(120))
def test_native_programs_agree_with_the_reference(seed):
    Box.in_class, OtherBox.in_class = 0, 1
    world = World(seed)
    roots = world.boxes[:3]
    nodes, checks, fetch = random_program(world, roots[0])
    program = native(nodes, checks, fetch)
    passed = 0
    for step in range(150):
        root = roots[0] if step % 7 else world.random.choice(roots)
        for _ in range(world.random.randrange(1, 4)):
            values = evaluate(nodes, checks, fetch, root)
            ok, fetched = program.check([root], function)
            assert ok == (values is not None), (step, program.failure([root], function))
            assert (program.failure([root], function) is None) == ok
            if ok:
                passed += 1
                expected = [values[node] for node in fetch]
                assert all(map(lambda x, y: x is y, fetched or (), expected))
                assert len(fetched or ()) == len(expected)
        del values, fetched
        if not ok and world.random.random() < 0.5:
            nodes, checks, fetch = random_program(world, roots[0])
            program = native(nodes, checks, fetch)
        world.change()
    assert passed > 20
