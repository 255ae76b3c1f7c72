"""CompiledFunction: direct dispatch, binding, and behaving like the function that it wraps."""

import copy
import functools
import gc
import inspect
import opcode
import weakref

import pytest
from hook_support import _C, Compiler, blocks_grown, marked, replaced


def defaults(a, b=2, *, c=3, d=4):
    return "orig", a, b, c, d


def no_keywords(a, b, /):
    return "orig", a, b


class Thing:
    def method(self, a, b=5):
        return "orig", self, a, b


def with_guards(fn, **options):
    """Runs the marked fn; guards note what they were called with and fetch ("fetched",)."""
    seen = []

    def guards(values, func):
        seen.append((values, func))
        return ("fetched",)

    code = fn.__code__
    compiler = Compiler({code: lambda frame: _C.Entry(guards, marked(code), **options)})
    return compiler, seen


DEFAULT_CALLS = [
    ((1,), {}),
    ((1, 9), {}),
    ((1,), {"b": 9}),
    ((), {"a": 1}),
    ((), {"b": 1, "a": 0}),
    ((1,), {"c": 9}),
    ((1, 2), {"d": 8, "c": 9}),
    ((), {"d": 1, "c": 2, "b": 3, "a": 4}),
]


@pytest.mark.parametrize("args, kwargs", DEFAULT_CALLS)
def test_binding(args, kwargs):
    compiler, seen = with_guards(defaults)
    compiled = compiler.compiled(defaults)
    expected = ("new", *defaults(*args, **kwargs)[1:])
    for _ in range(3):
        assert compiled(*args, **kwargs) == expected
    assert seen == [(expected[1:], defaults)] * 3
    assert len(compiler.asked) == 1


def test_binding_after_the_defaults_changed():
    def fn(a, b=1, *, c=2):
        return "orig", a, b, c

    compiled = replaced(fn).compiled(fn)
    assert compiled(0) == compiled(0) == ("new", 0, 1, 2)
    fn.__defaults__ = (7,)
    fn.__kwdefaults__ = {"c": 8}
    assert compiled(0) == ("new", 0, 7, 8)
    fn.__defaults__ = None
    with pytest.raises(TypeError, match="missing 1 required positional"):
        compiled(0)
    fn.__kwdefaults__ = {}
    with pytest.raises(TypeError, match="missing 1 required keyword-only"):
        compiled(0, 1)
    assert compiled(0, 1, c=2) == ("new", 0, 1, 2)


def test_the_code_of_the_function_changes():
    def fn(a):
        return "orig", a

    def other(a):
        return "other", a

    compiler = replaced(fn)
    compiled = compiler.compiled(fn)
    assert compiled(1) == compiled(1) == ("new", 1)
    fn.__code__ = other.__code__
    assert compiled(1) == compiled(1) == ("other", 1)


def test_positional_only():
    compiled = replaced(no_keywords).compiled(no_keywords)
    assert compiled(1, 2) == compiled(1, 2) == ("new", 1, 2)
    with pytest.raises(TypeError, match="positional-only"):
        compiled(1, b=2)


@pytest.mark.parametrize("count", [1, 8, 47, 48, 49, 200])
def test_many_parameters(count):
    names = [f"a{i}" for i in range(count)]
    scope = {}
    exec(f"def many({', '.join(names)}):\n return 'orig', {', '.join(names)}", scope)
    many = scope["many"]
    compiler, seen = with_guards(many)
    compiled = compiler.compiled(many)
    for _ in range(3):
        assert compiled(*range(count)) == ("new", *range(count))
        assert compiled(**dict(zip(names, range(count)))) == ("new", *range(count))
    assert seen[0][0] == tuple(range(count)) and len(seen) == 6 and len(compiler.asked) == 1


def without_first_store(code):
    """The code without its first statement, `inputs = None`: that local is then only read."""
    nop = bytes([opcode.opmap["NOP"], 0])
    return code.replace(co_code=code.co_code[:2] + nop + nop + code.co_code[6:])


def test_inputs_slot():
    def fn(a, b=2, *args, **kwargs):
        return "orig"

    def generated(a, b=2, *args, **kwargs):
        inputs = None
        return a, b, args, kwargs, inputs

    code = without_first_store(generated.__code__)
    for needs_hook in (True, False):
        entries = {"needs_hook": needs_hook, "inputs_slot": True}
        compiler = Compiler(
            {fn: lambda frame: _C.Entry(lambda values, f: ("x", len(values)), code, **entries)}
        )
        compiled = compiler.compiled(fn)
        for _ in range(3):
            assert compiled(1) == (1, 2, (), {}, ("x", 4))
            assert compiler.run(fn, 1, 2, 3, k=4) == (1, 2, (3,), {"k": 4}, ("x", 4))
        assert blocks_grown(lambda: compiled(1)) < 20


def test_inputs_slot_in_direct_dispatch_and_without_a_tuple():
    def fn(a):
        return "orig"

    def generated(a):
        inputs = None
        return a, inputs

    code = without_first_store(generated.__code__)
    for guards, expected in [(None, ()), (lambda values, f: True, ()), (lambda v, f: v, (3,))]:
        compiler = Compiler({fn: lambda frame: _C.Entry(guards, code, inputs_slot=True)})
        compiled = compiler.compiled(fn)
        for _ in range(3):
            assert compiled(3) == (3, expected)
            assert compiler.run(fn, 3) == (3, expected)


def test_bound_methods_and_descriptors():
    class Owner:
        pass

    thing = Thing()
    compiler = replaced(Thing.method)
    bound = compiler.compiled(thing.method)
    for _ in range(3):
        assert bound(1) == ("new", thing, 1, 5)
        assert bound(1, b=2) == ("new", thing, 1, 2)
    Owner.method = compiler.compiled(Thing.method)
    owner = Owner()
    for _ in range(3):
        assert owner.method(1) == ("new", owner, 1, 5)
        assert (lambda f: f(2))(owner.method) == ("new", owner, 2, 5)
        assert Owner.method(owner, 1) == ("new", owner, 1, 5)
    assert Owner.method is Owner.__dict__["method"]
    assert owner.method.__self__ is owner
    Owner.static = staticmethod(compiler.compiled(defaults))
    assert owner.static(1) == ("orig", 1, 2, 3, 4)
    Owner.cls = classmethod(compiler.compiled(Thing.method))
    assert owner.cls(1) == ("new", Owner, 1, 5)


def test_other_callables():
    class Callable:
        def __call__(self, a):
            return "orig", a

    compiler = replaced(Callable.__call__)
    for fn in (Callable(), functools.partial(Callable(), 3)):
        compiled = compiler.compiled(fn)
        args = (3,) if isinstance(fn, Callable) else ()
        assert compiled(*args) == compiled(*args) == ("new", 3)
    assert compiler.compiled(len)([1, 2]) == 2
    assert compiler.compiled(dict)(a=1) == {"a": 1}
    nested = compiler.compiled(compiler.compiled(Callable()))
    assert nested(1) == ("new", 1)
    with pytest.raises(TypeError, match="callable"):
        _C.compiled_function(3, compiler.region)
    with pytest.raises(TypeError, match="Region"):
        _C.compiled_function(len, None)


def test_attributes():
    compiler = replaced(defaults)
    compiled = compiler.compiled(defaults)
    assert compiled.__wrapped__ is defaults and compiled.region is compiler.region
    functools.update_wrapper(compiled, defaults)
    compiled.extra = 1
    assert compiled.__name__ == "defaults" and compiled.__module__ == __name__
    assert compiled.__doc__ is None and compiled.extra == 1
    assert compiled.__dict__["extra"] == 1
    assert inspect.signature(compiled) == inspect.signature(defaults)
    assert inspect.unwrap(compiled) is defaults
    assert "compiled <function defaults" in repr(compiled)
    assert weakref.ref(compiled)() is compiled
    with pytest.raises(AttributeError):
        compiled.region = None


def test_deep_copy():
    compiler = replaced(Thing.method)
    thing = Thing()
    thing.call = compiler.compiled(thing.method)
    thing.call.note = "kept"
    other = copy.deepcopy(thing)
    assert other.call(1) == ("new", other, 1, 5)
    assert other.call.note == "kept" and other.call is not thing.call
    compiled = compiler.compiled(defaults)
    assert copy.deepcopy(compiled) is compiled
    assert copy.deepcopy([compiled])[0] is compiled


def test_closures_share_an_entry():
    def make(x):
        def fn(a):
            return "orig", a, x

        return fn

    first, second = make(1), make(2)
    compiler = replaced(first)
    one, two = compiler.compiled(first), compiler.compiled(second)
    for _ in range(5):
        assert one(0) == ("new", 0, 1)
        assert two(0) == ("new", 0, 2)
    assert len(compiler.asked) == 1
    watch = weakref.ref(second)
    del second, two
    gc.collect()
    assert watch() is None


def test_own_globals_and_builtins():
    source = "def fn(a):\n    return 'orig', a, g, len(h)"
    one = {"g": 1, "h": "x"}
    two = {"g": 2, "h": "xy", "__builtins__": {"len": lambda x: "other len"}}
    exec(source, one)
    second = type(one["fn"])(one["fn"].__code__, two)
    compiler = replaced(one["fn"])
    fast, other = compiler.compiled(one["fn"]), compiler.compiled(second)
    for _ in range(3):
        assert fast(0) == ("new", 0, 1, 1)
        assert other(0) == ("new", 0, 2, "other len")


def test_more_entries_than_cached_functions():
    def fn(a):
        return a

    def generated(frame):
        value = frame.f_locals["a"]
        template = (lambda a: "result").__code__
        code = template.replace(
            co_consts=tuple(
                value * 10 if const == "result" else const for const in template.co_consts
            )
        )
        return _C.Entry(lambda values, f: values[0] == value, code)

    compiler = Compiler({fn: generated})
    compiled = compiler.compiled(fn)
    for _ in range(3):
        for i in range(20):
            assert compiled(i) == i * 10
            assert compiler.run(fn, i) == i * 10
    assert len(compiler.asked) == 20 + 1  # and the function that run() makes
    entries = _C.entries(fn.__code__, compiler.region)
    assert [entry.hits for entry in entries] == [6] * 20
    entries[3].valid = False
    assert compiled(16) == 160
    assert entries[3] not in _C.entries(fn.__code__)


def test_most_recently_hit_first():
    def fn(a):
        return a

    compiler = Compiler(
        {
            fn: lambda frame: _C.Entry(
                lambda values, f, kind=type(frame.f_locals["a"]): type(values[0]) is kind,
                fn.__code__,
            )
        }
    )
    compiled = compiler.compiled(fn)
    for value in (1, "a", 2.0):
        compiled(value)
    order = _C.entries(fn.__code__)
    assert [entry.guards((x,), fn) for entry, x in zip(order, (2.0, "a", 1))] == [True] * 3
    compiled(1)
    assert _C.entries(fn.__code__) == [order[2], order[0], order[1]]
    compiler.run(fn, "a")
    assert _C.entries(fn.__code__) == [order[1], order[2], order[0]]


def test_disabled():
    def fn(a):
        return "orig", a, helper(a)

    def helper(a):
        return "orig", a

    compiler = replaced(helper)
    off = _C.disabled(fn)
    assert "disabled" in repr(off) and off.region is None
    assert compiler.run(lambda: (off(1), helper(1))) == (("orig", 1, ("orig", 1)), ("new", 1))
    assert compiler.run(lambda: off(a=1)) == ("orig", 1, ("orig", 1))
    assert fn.__code__ not in compiler.asked

    class Owner:
        method = _C.disabled(lambda self: self)

    owner = Owner()
    assert owner.method() is owner


def test_cycles_are_collected():
    class Big:
        pass

    def build():
        big = Big()
        holder = {}

        def fn(a):
            return "orig", holder, big

        compiler = replaced(fn)
        holder["compiled"] = compiler.compiled(fn)
        holder["compiled"](1)
        assert holder["compiled"](1)[0] == "new"
        return weakref.ref(big), weakref.ref(compiler.region)

    refs = build()
    gc.collect()
    assert [ref() for ref in refs] == [None, None]


def test_dispatch_leaves_nothing_behind():
    compiler, _ = with_guards(defaults)
    compiled = compiler.compiled(defaults)
    compiled(1)
    code = marked(defaults.__code__)
    compiler = Compiler({defaults: lambda frame: _C.Entry(lambda v, f: True, code)})
    compiled = compiler.compiled(defaults)
    for args, kwargs in DEFAULT_CALLS:
        assert blocks_grown(lambda: compiled(*args, **kwargs)) < 20
