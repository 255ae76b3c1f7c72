"""Python functions: inlining, arguments, closures, globals, control flow over known values."""

import functools
import gc
import types
import weakref

import pytest
import torch
from testing import CountingBackend, assert_same, check, check_recompiles

import minidynamo

x = torch.randn(4)
y = torch.randn(4)
SCALE = 2


def add(a, b=1, *rest, c=3, **named):
    result = a + b * c
    for item in rest:
        result = result + item
    for item in named.values():
        result = result * item
    return result


def test_default_and_keyword_arguments():
    check(lambda a: add(a), x)
    check(lambda a: add(a, 2, 3, 4, c=5, d=6, e=7), x)
    check(lambda a: add(*[a, 2], **{"c": 4}), x)


def test_wrong_call_raises_as_in_eager():
    def f(a):
        return add(a, nothing=1, b=2, c=3) + add()

    check(f, x, graphs=None)


def test_closure():
    scale = torch.tensor(3.0)

    def f(a):
        def inner(b):
            return b * scale + a

        return inner(a * 2)

    check(f, x)


def test_recursion():
    def power(a, n):
        return a if n == 0 else power(a * a, n - 1)

    check(lambda a: power(a, 3), x)


def test_lambda_and_returned_function():
    def f(a):
        g = lambda v, k=2: v * k  # noqa: E731
        return g(a), g

    check(f, x, graphs=1)


def test_loops_and_comprehensions():
    def f(a):
        total = a
        for i in range(3):
            if i == 1:
                continue
            total = total + i
        parts = [total * i for i in range(4) if i % 2]
        table = {str(i): total + i for i in range(2)}
        return sum(parts), table, tuple(v for v in parts)

    check(f, x)


def test_while_else_and_break():
    def f(a):
        n = 0
        while n < 5:
            n += 1
            if n == 3:
                break
        else:
            a = a * 100
        return a * n

    check(f, x)


def test_f_string():
    def f(a):
        return a, f"{a.shape[0]:>4}|{'x'!r}|{1.5:.3f}|{tuple(a.shape)}"

    check(f, x, graphs=None)


def test_global_constant_is_guarded():
    global SCALE

    def f(a):
        return a * SCALE

    def change(index):
        global SCALE
        SCALE = 2 + index

    check_recompiles(f, [(x,), (x,), (x,)], graphs=3, change=change)
    SCALE = 2


def test_closure_value_is_guarded():
    factor = 1

    def f(a):
        return a * factor

    def change(index):
        nonlocal factor
        factor = index // 2

    check_recompiles(f, [(x,)] * 4, graphs=2, change=change)


def test_argument_guards():
    def f(a, n):
        return a * n

    check_recompiles(f, [(x, 1), (x, 2), (x, 1), (x, 2.0)], graphs=3)
    check_recompiles(f, [(x, 1), (torch.randn(5), 1), (x.double(), 1), (x, 1)], graphs=3)
    check_recompiles(f, [(x, 1), (x.clone().requires_grad_(), 1)], graphs=2)


def test_unused_argument_is_not_guarded():
    def f(a, n):
        return a * 2

    check_recompiles(f, [(x, 1), (x, 2), (x, "three")], graphs=1)


def test_grad_mode_is_guarded():
    def f(a):
        return a * 2

    w = x.clone().requires_grad_()
    counter = check(f, w)
    assert len(counter.graphs) == 1
    compiled = minidynamo.compile(f, backend=counter)
    assert compiled(w).requires_grad
    with torch.no_grad():
        assert not compiled(w).requires_grad


def test_global_store():
    def f(a):
        global STORED
        STORED = a * 2
        return a + 1

    check(f, x)
    torch.testing.assert_close(STORED, x * 2)


STORED = None


def test_function_replaced_in_globals():
    def f(a):
        return helper(a)

    def change(index):
        globals()["helper"] = (lambda a: a + 1) if index % 2 else (lambda a: a - 1)

    check_recompiles(f, [(x,)] * 2, graphs=2, change=change)


def helper(a):
    return a


def test_many_arguments_kinds():
    def f(a, /, b, *args, c, d=4, **kwargs):
        return a + b + c + d + sum(args) + sum(kwargs.values())

    check(f, x, y, 1, 2, c=3, e=5)


def test_match_statement():
    def f(a, kind):
        match kind:
            case {"op": "add", "by": by}:
                return a + by
            case ["mul", by]:
                return a * by
            case str() | None:
                return a
            case _:
                return -a

    for kind in ({"op": "add", "by": 2}, ["mul", 3], "text", None, 5):
        check(f, x, kind, graphs=None)


def test_try_except_of_traced_exceptions():
    def f(a, d):
        try:
            return a * d["missing"]
        except KeyError:
            return a * 2
        finally:
            d["seen"] = 1

    check(f, x, {"k": 1})


def test_generator():
    def numbers(n):
        for i in range(n):
            yield i
        return None

    def f(a):
        for i in numbers(3):
            a = a + i
        return a

    check(f, x)


def test_generator_root_runs_in_eager():
    def f(a):
        yield a + 1
        yield a + 2

    compiled = minidynamo.compile(f, backend="eager")
    for left, right in zip(f(x), compiled(x), strict=True):
        torch.testing.assert_close(left, right)


def test_recompile_limit_warns_once_and_names_the_guard(caplog):
    def f(a, n):
        return a * n

    with minidynamo.config.patch(recompile_limit=3):
        compiled = minidynamo.compile(f, backend="eager", dynamic=False)
        for n in range(6):
            torch.testing.assert_close(compiled(x, n), f(x, n))
    warnings = [r for r in caplog.records if "recompile_limit" in r.message]
    assert len(warnings) == 1
    assert "n" in warnings[0].message


def test_nan_and_negative_zero_constants():
    def f(a, k):
        return a * k

    check_recompiles(f, [(x, 0.0), (x, -0.0), (x, float("nan")), (x, float("nan"))], graphs=3)


def test_compiling_keeps_no_argument_alive():
    def opaque(value):
        return value

    minidynamo.disallow_in_graph(opaque)

    class Box:
        pass

    def f(a, box):
        b = a * 2
        box.seen = opaque(len(box.items))
        return b + box.seen

    compiled = minidynamo.compile(f, backend="eager")
    warm = Box()
    warm.items = [0]
    compiled(x.double(), warm)  # what is imported late is there now
    gc.collect()
    gc.disable()
    try:
        box, tensor = Box(), torch.randn(5)
        box.items = [1, 2]
        compiled(tensor, box)
        refs = weakref.ref(box), weakref.ref(tensor)
        del box, tensor
        assert [ref() for ref in refs] == [None, None]
    finally:
        gc.enable()


def test_functions_of_one_code_and_other_globals():
    """Known by code and globals: what the names in it mean is part of a function."""
    namespaces = [{"factor": 2}, {"factor": 3}]
    exec("def scaled(a): return a * factor", namespaces[0])
    first = namespaces[0]["scaled"]
    second = types.FunctionType(first.__code__, namespaces[1])
    check_recompiles(lambda a, fn: fn(a), [(x, first), (x, second), (x, first)], graphs=2)
    namespaces[1]["factor"] = 5
    check_recompiles(lambda a, fn: fn(a), [(x, second), (x, first)], graphs=2)


def _store_and_delete_global(a):
    global FLEETING
    FLEETING = a + 1
    b = FLEETING * 2
    del FLEETING
    return b


def _store_and_delete_attribute(a):
    HOLDER.value = a
    del HOLDER.value
    return a + 1


class Slotted:
    __slots__ = ("__dict__", "slot")


HOLDER = Slotted()


def _store_and_delete_slot(a):
    HOLDER.slot = a
    del HOLDER.slot
    return a + 1


@pytest.mark.parametrize(
    ("fn", "place", "name"),
    [
        (_store_and_delete_global, lambda: globals(), "FLEETING"),
        (_store_and_delete_attribute, lambda: vars(HOLDER), "value"),
        (_store_and_delete_slot, None, "slot"),
    ],
)
def test_stored_and_deleted_again(fn, place, name):
    """Where the name is new there is nothing to delete; where it is not, it has to go."""
    minidynamo.reset()
    counter = CountingBackend()
    compiled = minidynamo.compile(fn, backend=counter)
    for is_there in (False, True, False):
        if is_there and place is None:
            HOLDER.slot = 1
        elif is_there:
            place()[name] = 1
        assert_same(compiled(x), fn(x))
        assert not (hasattr(HOLDER, name) if place is None else name in place())
    assert len(counter.graphs) == 2


def test_deleting_a_builtin_by_name():
    def f(a):
        global sum
        b = a + 1
        del sum
        return b

    check(f, x)


def test_keyword_defaults_that_the_frame_changes():
    def run(compile_):
        def g(a, *, scale=1, offset=0):
            return a * scale + offset

        def fn(a):
            table = g.__kwdefaults__
            before = g(a)
            table["scale"] = table["scale"] + 1
            table.update(offset=a)
            after = g(a)
            table.pop("offset")
            try:
                return before, after, g(a)
            except TypeError as error:
                table["offset"] = 0
                return before, after, str(error).partition("g()")[2]

        call = compile_(fn)
        return [call(torch.arange(3.0) + n) for n in (0, 0, 1)], g.__kwdefaults__

    compiled = functools.partial(minidynamo.compile, backend="eager", fullgraph=True)
    assert_same(run(compiled), run(lambda fn: fn))
