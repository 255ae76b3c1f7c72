"""Graph breaks inside of called functions: the graph goes on in the callee, then in its callers."""

import functools
import sys
import traceback

import pytest
import torch
from testing import CountingBackend, assert_same, check, check_recompiles

import minidynamo

x = torch.randn(4)
y = torch.randn(4)


def opaque(value=None):
    """A function that is not traced."""
    return value


minidynamo.disallow_in_graph(opaque)


def frames_here(depth):
    """Names and lines of the innermost frames of the program."""
    frame, found = sys._getframe(1), []
    for _ in range(depth):
        found.append((frame.f_code.co_name, frame.f_lineno))
        frame = frame.f_back
    return found


minidynamo.disallow_in_graph(frames_here)


def fail(text):
    raise ValueError(text)


minidynamo.disallow_in_graph(fail)


def increment_and_double(a):
    a = a + 1
    opaque()
    return a * 2


def test_graph_goes_on_in_callee_and_caller():
    def f(a):
        return increment_and_double(a.sin()).cos()

    counter = check(f, x, graphs=2, breaks=1)
    assert counter.op_count == 4


def test_without_the_flag_the_outermost_call_breaks():
    def f(a):
        return increment_and_double(a.sin()).cos()

    with minidynamo.config.patch(nested_graph_breaks=False):
        check(f, x, graphs=4)


def test_three_levels():
    def inner(a, k):
        a = a * k
        opaque()
        return a - 1

    def middle(a, *rest, scale=2, **named):
        b = a + rest[0]
        c = inner(b, scale)
        return b * c + named["shift"]

    def f(a, b):
        c = a.sin()
        d = middle(c, b, 1, scale=3, shift=4)
        return c + d

    check(f, x, y, graphs=2, breaks=1)


def test_frames_are_those_of_the_program():
    seen = []

    def inner(a):
        a = a + 1
        seen.append(frames_here(3))
        return a * 2

    def middle(a):
        b = a * 2
        return inner(b) + b

    def f(a):
        return middle(a.sin())

    expected, seen_in_eager = f(x), list(seen)
    seen.clear()
    compiled = minidynamo.compile(f, backend=CountingBackend())
    for _ in range(3):
        assert_same(expected, compiled(x))
    assert seen == seen_in_eager * 3


def test_traceback_of_an_exception_in_the_callee():
    def inner(a):
        b = a + 1
        fail("inside")
        return b

    def middle(a):
        return inner(a * 2) * 3

    def f(a):
        c = a.sin()
        return middle(c) + 1

    def lines(fn):
        try:
            fn(x)
        except ValueError as error:
            return [(s.name, s.lineno) for s in traceback.extract_tb(error.__traceback__)][1:]

    compiled = minidynamo.compile(f, backend=CountingBackend())
    expected = lines(f)
    assert [name for name, _ in expected] == ["f", "middle", "inner", "fail"]
    for _ in range(2):
        assert lines(compiled)[-4:] == expected


def test_locals_in_the_frames_of_an_exception():
    def inner(a, k):
        b = a + k
        fail("inside")
        return b

    def f(a):
        c = a * 2
        return inner(c, 3) + c

    def locals_of(fn):
        try:
            fn(x)
        except ValueError as error:
            tb, found = error.__traceback__, {}
            while tb is not None:
                found[tb.tb_frame.f_code.co_name] = dict(tb.tb_frame.f_locals)
                tb = tb.tb_next
            return found

    expected = locals_of(f)
    found = locals_of(minidynamo.compile(f, backend=CountingBackend()))
    for function, name in (("inner", "b"), ("f", "c")):
        assert_same(expected[function][name], found[function][name])


def test_exception_of_the_callee_is_handled_in_the_caller():
    def inner(a):
        a = a + 1
        fail("inside")
        return a

    def f(a):
        b = a.sin()
        try:
            b = inner(b)
        except ValueError as error:
            return b * 2, str(error)
        return b

    check(f, x, graphs=None)


def test_exception_of_the_callee_is_handled_there():
    def inner(a):
        try:
            fail("inside")
        except ValueError:
            return a + 1
        return a

    def middle(a):
        return inner(a * 2) * 3

    def f(a):
        return middle(a.sin()).cos()

    check(f, x, graphs=None, calls=3)


def test_exception_of_the_callee_goes_through_a_finally():
    log = []

    def inner(a):
        try:
            fail("inside")
        finally:
            log.append("inner")
        return a

    def f(a):
        b = a.sin()
        try:
            return inner(b)
        except ValueError:
            log.append("f")
        return b + 1

    check(f, x, graphs=None)
    assert log == ["inner", "f"] * 4


def test_branch_on_data_in_the_callee():
    def absolute(a):
        if a.sum() > 0:
            return a * 2
        return a - 1

    def f(a):
        return absolute(a + 0).cos()

    minidynamo.reset()
    counter = CountingBackend()
    compiled = minidynamo.compile(f, backend=counter)
    for value in (torch.ones(3), -torch.ones(3)) * 3:
        assert_same(f(value), compiled(value))
    assert len(counter.graphs) == 3


def test_method_and_attributes():
    class Box:
        def __init__(self, scale):
            self.scale = scale
            self.calls = 0

        def apply(self, a):
            self.calls += 1
            b = a * self.scale
            opaque()
            self.calls += 1
            return b + self.calls

    def f(a, box):
        return box.apply(a.sin()).cos() + box.calls

    check(f, x, Box(2), graphs=2, breaks=1)


def test_classmethod_and_staticmethod():
    class Box:
        scale = 3

        @classmethod
        def of(cls, a):
            b = a * cls.scale
            opaque()
            return b + 1

        @staticmethod
        def plain(a):
            a = a + 2
            opaque()
            return a * 2

    def f(a):
        return Box.plain(Box.of(a.sin())).cos()

    check(f, x, graphs=3, breaks=2)


def test_super():
    class Base:
        def apply(self, a):
            b = a * 2
            opaque()
            return b + self.shift

    class Derived(Base):
        def __init__(self):
            self.shift = 5

        def apply(self, a):
            b = super().apply(a + 1)
            opaque()
            return super().apply(b)

    def f(a, box):
        return box.apply(a.sin()).cos()

    check(f, x, Derived(), graphs=4, breaks=3)


def test_callable_object():
    class Scale:
        def __init__(self, k):
            self.k = k

        def __call__(self, a):
            a = a * self.k
            opaque()
            return a + 1

    def f(a, scale):
        return scale(a.sin()).cos()

    check(f, x, Scale(3), graphs=2, breaks=1)


def test_partial():
    def inner(a, k, shift):
        a = a * k
        opaque()
        return a + shift

    part = functools.partial(inner, k=3, shift=1)

    def f(a):
        return part(a.sin(), shift=2).cos()

    check(f, x, graphs=2, breaks=1)


def test_property():
    class Box:
        def __init__(self, value):
            self.value = value

        @property
        def doubled(self):
            a = self.value * 2
            opaque()
            return a + 1

    def f(a, box):
        b = a.sin()
        return (box.doubled + b).cos()

    check(f, x, Box(y), graphs=2, breaks=1)


def test_property_of_a_class_with_getattr():
    class Box:
        @property
        def missing(self):
            opaque()
            raise AttributeError("missing")

        def __getattr__(self, name):
            if name != "missing":
                raise AttributeError(name)
            return 7

    def f(a, box):
        b = a.sin()
        return b + box.missing

    check(f, x, Box(), graphs=None)


def test_lambda_and_default_arguments():
    def f(a, k=2):
        g = lambda v, s=k: opaque(v * s) + s  # noqa: E731
        return g(a.sin()).cos()

    check(f, x, graphs=2, breaks=1)


def test_closure_cells_are_shared():
    def f(a):
        k = a + 1

        def inner(v):
            nonlocal k
            k = k * 2
            opaque()
            k = k + v
            return k - 1

        z = inner(a)
        k = k + 1
        return z + k, inner(z)

    check(f, x, graphs=None, breaks=2)


def test_closure_made_in_the_callee_escapes():
    def counter_of(a):
        n = 0

        def count(b):
            nonlocal n
            n += 1
            return b + n

        opaque()
        n += 10
        return count

    def f(a):
        count = counter_of(a)
        return count(a) + count(a)

    check(f, x, graphs=None, breaks=1)


def test_decorated_function():
    def decorate(fn):
        @functools.wraps(fn)
        def wrapper(*args, **kwargs):
            opaque()
            result = fn(*args, **kwargs)
            opaque()
            return result + 1

        return wrapper

    @decorate
    def inner(a, b=2):
        return a * b

    def f(a):
        return inner(a.sin(), b=3).cos()

    check(f, x, graphs=3, breaks=2)


def test_recursion():
    def power(a, n):
        if n == 0:
            return a
        b = power(a * 2, n - 1)
        opaque()
        return b + n

    def f(a):
        return power(a.sin(), 3).cos()

    check(f, x, graphs=4, breaks=3)


def test_arguments_on_the_stack_of_the_caller():
    def f(a, b):
        return torch.add(a * 2, increment_and_double(b), alpha=2) + [a, b][0]

    check(f, x, y, graphs=2, breaks=1)


def test_method_call_waits_on_the_stack():
    def f(a):
        return (a * 2).add(increment_and_double(a)).mul(3)

    check(f, x, graphs=2, breaks=1)


def test_side_effects_keep_their_order():
    log = []

    def inner(a, items):
        items.append(a + 1)
        log.append("before")
        opaque()
        log.append("after")
        items.append(a + 2)
        return len(items)

    def f(a):
        items = [a]
        n = inner(a * 2, items)
        items.append(n)
        return items

    check(f, x, graphs=None)
    assert log == ["before", "after"] * 4


def test_global_is_written():
    def inner(a):
        global _written
        _written = a + 1
        opaque()
        return _written * 2

    def f(a):
        b = inner(a)
        return b + _written

    check(f, x, graphs=2, breaks=1)
    del globals()["_written"]


def test_with_block_in_the_caller():
    def f(a):
        with torch.no_grad():
            b = increment_and_double(a * 2)
            c = b.requires_grad
        return b, c, torch.is_grad_enabled()

    check(f, x.clone().requires_grad_(), graphs=2, breaks=1)


def test_with_block_in_the_callee():
    def inner(a):
        with torch.no_grad():
            b = a * 2
            opaque()
            b = b + 1
        return b, torch.is_grad_enabled()

    def f(a):
        b, enabled = inner(a.sin())
        return b.cos(), enabled

    check(f, x.clone().requires_grad_(), graphs=2, breaks=1)


def test_user_context_managers_in_both():
    log = []

    class Manager:
        def __init__(self, name):
            self.name = name

        def __enter__(self):
            log.append(f"enter {self.name}")
            return self

        def __exit__(self, *exc):
            log.append(f"exit {self.name} {exc[0]}")

    def inner(a):
        with Manager("inner") as m:
            a = a + 1
            opaque()
            log.append(m.name)
            return a * 2

    def f(a):
        with Manager("f"):
            b = inner(a.sin())
            log.append("between")
        return b.cos()

    check(f, x, graphs=2, breaks=1, calls=1)
    half = len(log) // 2
    assert log[:half] == log[half:]


def test_try_block_in_the_caller():
    def f(a):
        try:
            b = increment_and_double(a * 2)
        except ValueError:
            b = a
        else:
            b = b + 1
        finally:
            b = b.cos()
        return b

    check(f, x, graphs=2, breaks=1)


def test_call_in_an_exception_handler():
    def f(a):
        try:
            raise ValueError("first")
        except ValueError as error:
            b = increment_and_double(a * 2)
            text = str(error)
        return b.cos(), text

    check(f, x, graphs=None)


def test_nn_module():
    class Inner(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, a):
            a = self.linear(a)
            opaque()
            return a.relu()

    class Outer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Inner()

        def forward(self, a):
            return self.inner(a * 2) + 1

    model = Outer()

    def f(a):
        return model(a).sum()

    check(f, x, graphs=2, breaks=1)


def test_stack_of_modules_compiles_its_layer_once():
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, a):
            a = self.linear(a)
            opaque()
            return a.relu()

    class Stack(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList([Layer() for _ in range(12)])

        def forward(self, a):
            for layer in self.layers:
                a = layer(a) + 1
            return a.sum()

    model = Stack()

    def f(a):
        return model(a)

    check(f, x, graphs=4, breaks=2)


def test_module_with_hooks():
    class Inner(torch.nn.Module):
        def forward(self, a):
            a = a + 1
            opaque()
            return a.relu()

    model = Inner()
    calls = []
    model.register_forward_hook(lambda module, args, result: calls.append(1) or result * 2)

    def f(a):
        return model(a.sin()).sum()

    check(f, x, graphs=None)
    assert len(calls) == 4


def test_module_list_and_sequential():
    class Printing(torch.nn.Module):
        def forward(self, a):
            opaque()
            return a * 2

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), Printing(), torch.nn.ReLU())

    def f(a):
        return model(a.sin()).sum()

    check(f, x, graphs=4)


def test_loop_in_the_caller():
    def f(a):
        for _ in range(30):
            a = increment_and_double(a) / 4
        return a.sum()

    check(f, x, graphs=4, breaks=2)


def test_loop_in_the_callee():
    def inner(a, items):
        total = 0
        for item in items:
            a = a * item
            opaque()
            total = total + a
        return total

    def f(a, items):
        return inner(a.sin(), items).cos()

    check(f, x, [torch.randn(4) for _ in range(20)], graphs=None, breaks=2)


def test_loop_that_breaks_out():
    def inner(a, items):
        for item in items:
            if opaque(item) == 3:
                return a * item
            a = a + 1
        return a

    def f(a, items):
        b = inner(a.sin(), items)
        return b.cos()

    check(f, x, [1, 2, 3, 4], graphs=None)
    check(f, x, [1, 2], graphs=None)
    check(f, x, [], graphs=1)


def test_comprehension():
    def f(a):
        values = [increment_and_double(a + k) for k in range(3)]
        return sum(values) + 1

    check(f, x, graphs=None)


def test_generator_expression_breaks_in_its_consumer():
    def f(a):
        return sum(increment_and_double(a + k) for k in range(3)) + 1

    check(f, x, graphs=None)


def test_generator_function():
    def values(a):
        for k in range(3):
            opaque()
            yield a + k

    def inner(a):
        total = a * 2
        for value in values(a):
            total = total + value
        return total

    def f(a):
        return inner(a.sin()).cos()

    check(f, x, graphs=None)


def test_callback_of_a_builtin_breaks_at_the_builtin():
    def f(a):
        keys = sorted([3, 1, 2], key=lambda k: opaque(-k))
        return a * keys[0] + len(list(map(opaque, keys)))

    check(f, x, graphs=None)


def test_init_that_breaks():
    class Box:
        def __init__(self, a):
            self.first = a + 1
            opaque()
            self.second = a * 2

    def f(a):
        box = Box(a.sin())
        return box.first * box.second

    check(f, x, graphs=None)


def test_operator_method_that_breaks():
    class Number:
        def __init__(self, a):
            self.a = a

        def __add__(self, other):
            opaque()
            return NotImplemented if other is None else Number(self.a + other)

        def __radd__(self, other):
            opaque()
            return Number(self.a * 2)

    def f(a):
        n = Number(a) + a
        n = 1 + n
        return n.a.cos()

    check(f, x, graphs=None)


def test_functions_of_other_modules():
    namespace = {"opaque": opaque, "shift": 3}
    exec(
        "def other(a):\n    b = a * shift\n    opaque()\n    return b + shift\n",
        namespace,
    )
    other = namespace["other"]

    def f(a):
        return other(a.sin()).cos()

    check(f, x, graphs=2, breaks=1)
    namespace["shift"] = 5
    check(f, x, graphs=2, breaks=1)


def test_aliases_over_frames():
    def inner(items, same):
        opaque()
        items.append(1)
        return same is items

    def f(a):
        items = [a]
        return inner(items, items), items

    check(f, x, graphs=None, breaks=1)


def test_unreconstructable_value_of_the_caller():
    def f(a):
        values = (v for v in [a, a + 1])
        b = increment_and_double(next(values))
        return b + next(values)

    check(f, x, graphs=None)


def test_mutated_input():
    def inner(a):
        a.add_(1)
        opaque()
        a.mul_(2)
        return a

    def f(a):
        b = inner(a)
        return b + a

    check(f, x, graphs=2, breaks=1)


def test_gradients():
    def f(a):
        return increment_and_double(a.sin()).cos().sum()

    a, b = (x.clone().requires_grad_() for _ in range(2))
    f(a).backward()
    minidynamo.compile(f, backend="aot_eager")(b).backward()
    assert_same(a.grad, b.grad)


def test_guards_of_the_rest():
    class Box:
        k = 2

    box = Box()

    def inner(a):
        a = a + 1
        opaque()
        return a * box.k

    def f(a):
        return inner(a.sin()).cos()

    def change(index):
        box.k = 2 + index // 2

    check_recompiles(f, [(x,)] * 4, 3, change)


def test_guards_on_types_of_the_rest():
    def inner(a, values):
        a = a + 1
        value = opaque(values[0])
        return a * value

    def f(a, values):
        return inner(a.sin(), values).cos()

    check_recompiles(f, [(x, [2]), (x, [y]), (x, [2.5]), (x, [y]), (x, [2])], 4)


def test_two_callers_of_one_callee():
    def first(a):
        return increment_and_double(a.sin()).cos()

    def second(a):
        return increment_and_double(a.cos()) * 2

    def f(a):
        return first(a) + second(a)

    check(f, x, graphs=3, breaks=2)


def test_many_breaks_in_one_callee():
    def inner(a):
        for _ in (1,):
            a = a + 1
        opaque()
        a = a + 2
        opaque()
        a = a + 3
        opaque()
        a = a + 4
        opaque()
        a = a + 5
        opaque()
        a = a + 6
        opaque()
        a = a + 7
        opaque()
        a = a + 8
        opaque()
        a = a + 9
        opaque()
        a = a + 10
        opaque()
        return a + 11

    def f(a):
        return inner(a.sin()).cos()

    check(f, x, graphs=11, breaks=10)


def test_item_in_the_callee():
    def scale(a):
        return a.max().item()

    def f(a):
        return a / scale(a.abs()) + 1

    check(f, x, graphs=2, breaks=1)


def test_result_is_not_used():
    def inner(a, out):
        out.append(a + 1)
        opaque()
        out.append(a + 2)

    def f(a):
        out = []
        inner(a.sin(), out)
        return out[0] * out[1]

    check(f, x, graphs=2, breaks=1)


def test_fullgraph_reports_the_callee():
    def f(a):
        return increment_and_double(a.sin()).cos()

    with pytest.raises(minidynamo.exc.Unsupported) as raised:
        minidynamo.compile(f, backend="eager", fullgraph=True)(x)
    assert [frame.name for frame in raised.value.user_stack] == ["f", "increment_and_double"]


def test_depth_stays_constant():
    depths = []

    def note():
        frame, depth = sys._getframe(), 0
        while frame is not None:
            frame, depth = frame.f_back, depth + 1
        depths.append(depth)

    minidynamo.disallow_in_graph(note)

    def inner(a):
        a = a + 1
        note()
        return a

    def f(a):
        for _ in range(20):
            a = inner(a)
        return a

    minidynamo.compile(f, backend=CountingBackend())(x)
    assert len(set(depths[2:])) == 1


def test_locals_of_the_callee_are_released():
    import weakref

    alive = []

    class Token:
        pass

    def look(reference):
        alive.append(reference() is not None)

    minidynamo.disallow_in_graph(look)

    def inner(a):
        token = opaque(Token())
        reference = weakref.ref(token)
        look(reference)
        del token
        look(reference)
        return a + 1

    def f(a):
        return inner(a).cos()

    compiled = minidynamo.compile(f, backend=CountingBackend())
    compiled(x)  # compiling keeps the frames of 3.11 for a while
    alive.clear()
    compiled(x)
    assert alive == [True, False]


def test_locals_are_those_of_the_program():
    def inner(a, k):
        dead = k
        b = a + 1
        return b, dict(locals())

    def f(a):
        c = a.sin()
        b, names = inner(c, 2)
        d = b.cos()
        return d, names, sorted(dir()), [k for k in vars() if k[0] != "."]

    check(f, x, graphs=None)


def test_eval_of_a_text_without_names():
    def fn(x, code):
        return x + eval("1 + 1") * eval(" (2, 'a')")[0], eval(code)

    x = torch.arange(3.0)
    for code in ("3.5", "'b'", "[1, {}]", "{'a': (1, 2)}", "{1, 2}", "f'{1 + 1}'"):
        check(fn, x, code, graphs=1, fullgraph=True)
    fast = minidynamo.compile(fn, backend="eager")
    for wrong in ("1 +", "1 / 0", "nowhere", "\0"):
        with pytest.raises((SyntaxError, ZeroDivisionError, NameError, ValueError)):
            fast(x, wrong)
    assert fast(x, "[1]")[1] is not fast(x, "[1]")[1]


def test_a_text_that_eval_refuses():
    def fn(x, code):
        try:
            return x + eval(code)
        except (ArithmeticError, SyntaxError, TypeError) as error:
            return x - 1, type(error), str(error), error.args

    for code in ("1 / 0", "1 + ''", "1 +", "2"):
        check(fn, torch.arange(3.0), code, graphs=1, fullgraph=True)


def test_names_are_looked_up_by_eval():
    def inner(a, k):
        shift = 3  # noqa: F841
        b = a + 1
        return b * eval("k + shift")

    def f(a):
        return inner(a.sin(), 2).cos()

    check(f, x, graphs=2)


noted = []


def note(a):
    noted.append(a.sum().item())


minidynamo.disallow_in_graph(note)


def note_twice(a, k):
    a = a.sin()
    note(a)
    a = a + k
    note(a)
    return a.cos()


def test_function_that_breaks_at_many_places_gets_frames_of_its_own():
    """Its code serves all of the later calls, in place of continuations for every one of them."""

    def f(a):
        a = note_twice(a * 2, 1) + note_twice(a * 3, 1) + note_twice(a * 4, 1)
        a = a + note_twice(a * 2, 1) - note_twice(a * 3, 1) + note_twice(a * 4, 1)
        a = a - note_twice(a * 2, 1) + note_twice(a * 3, 1) - note_twice(a * 4, 1)
        a = a * note_twice(a * 2, 1) + note_twice(a * 3, 1) - note_twice(a * 4, 1)
        return a + note_twice(a * 2, 2) - note_twice(a * 3, 1) + note_twice(a * 4, 1)

    counter = CountingBackend()
    compiled = minidynamo.compile(f, backend=counter)
    for a in (x, y):
        noted.clear()
        expected = f(a), list(noted)
        noted.clear()
        assert_same((compiled(a), list(noted)), expected)
    # Two at each of eight places, one between two of the others; there all share three, and three
    # for the place that gives another number.
    assert len(counter.graphs) == 28
    for a in (torch.randn(5), torch.randn(6)):
        assert_same(compiled(a), f(a))
    # One part is first reached with symbolic sizes.
    assert len(counter.graphs) == 54
