"""Graph breaks of the outermost frame: before, at and after the break everything is as in eager."""

import traceback

import pytest
import torch
from testing import CountingBackend, check, check_recompiles, outcome

import minidynamo

x = torch.randn(4)
y = torch.randn(4)


def opaque(value):
    """A function that is not traced."""
    return value


minidynamo.disallow_in_graph(opaque)


def test_print(capsys):
    def f(a):
        b = a + 1
        print("value")
        return b * 2

    check(f, x, graphs=2, breaks=1)
    assert capsys.readouterr().out == "value\n" * 4


def test_branch_on_data():
    def f(a, b):
        c = a * b
        if c.sum() > 0:
            c = c + 1
        else:
            c = c - 1
        return c * b

    positive = torch.ones(3)
    check(f, positive, positive, graphs=2, breaks=1)
    minidynamo.reset()
    counter = CountingBackend()
    compiled = minidynamo.compile(f, backend=counter)
    for sign in (1, -1, 1, -1):
        torch.testing.assert_close(
            compiled(positive, sign * positive), f(positive, sign * positive)
        )
    assert len(counter.graphs) == 3


def test_while_on_data():
    def f(a):
        n = 0
        while a.sum() < 100:
            a = a * 2
            n += 1
        return a, n

    check(f, torch.ones(3), graphs=None)


def test_item():
    def f(a):
        b = a.sum().item()
        return a * b

    check(f, x, graphs=2)


def test_method_of_untraced_object():
    class Box:
        def get(self):
            return opaque(3)

    def f(a, box):
        return a * box.get() + 1

    check(f, x, Box(), graphs=None)


def test_break_keeps_stack():
    def f(a, b):
        return (a + b) * opaque(a - b) + opaque(b) * (a, b)[0]

    check(f, x, y, graphs=None)


def test_break_in_arguments_of_call():
    def f(a):
        return torch.add(a * 2, opaque(a + 1), alpha=opaque(2))

    check(f, x, graphs=None)


def test_break_as_method_argument():
    def f(a):
        return (a * 2).add(opaque(a + 1)).mul(3)

    check(f, x, graphs=None)


def test_locals_survive():
    def f(a):
        b, c = a + 1, [a, 2, {"k": a * 3}]
        name = "text"
        opaque(None)
        c.append(b)
        return b, c, name

    check(f, x, graphs=None, breaks=1)


def test_unbound_local_after_break():
    def f(a, flag):
        if flag:
            b = a + 1
        opaque(None)
        return b * 2

    check(f, x, True, graphs=2)
    check(f, x, False, graphs=None)


def test_aliases_survive():
    def f(a):
        first = [a]
        second = first
        opaque(None)
        second.append(a + 1)
        return first, second is first

    check(f, x, graphs=None)


def test_loop_with_break_inside():
    def f(a, n):
        for i in range(n):
            a = a + i
            opaque(i)
            a = a * 2
        return a

    check(f, x, 3, graphs=None)
    check(f, x, 40, graphs=None)


def test_loop_over_list_with_break_inside():
    def f(items):
        total = torch.zeros(4)
        for item in items:
            total = total + item
            opaque(item)
        return total

    check(f, [x, y, x], graphs=None)


def test_break_inside_with():
    def f(a):
        with torch.no_grad():
            b = a * 2
            opaque(None)
            c = b + a
        return c, c.requires_grad, (a * 2).requires_grad

    check(f, x.clone().requires_grad_(), graphs=None)


def test_break_inside_nested_with():
    def f(a):
        with torch.no_grad():
            b = a * 2
            with torch.enable_grad():
                c = a * 3
                opaque(None)
                d = a * 4
            e = a * 5
        return [v.requires_grad for v in (b, c, d, e, a * 6)], b + c + d + e

    check(f, x.clone().requires_grad_(), graphs=None)


def test_exception_inside_with_after_break():
    def f(a):
        with torch.no_grad():
            opaque(None)
            raise ValueError("inside")

    check(f, x, graphs=None)
    assert torch.is_grad_enabled()


def test_break_inside_try():
    def f(a):
        b = a * 2
        try:
            opaque(None)
            b = b + 1
        except ValueError:
            b = b - 1
        finally:
            b = b * 3
        return b

    check(f, x, graphs=None)


def raising(value):
    raise ValueError(f"no {value}")


minidynamo.disallow_in_graph(raising)


def test_break_raises_inside_try():
    def f(a):
        b = a * 2
        try:
            raising(3)
            b = b + 1
        except ValueError as error:
            b = b - len(str(error))
        finally:
            b = b * 3
        return b

    check(f, x, graphs=None)


def test_break_raises_to_caller_with_same_traceback():
    def f(a):
        b = a * 2
        raising(3)
        return b

    compiled = minidynamo.compile(f, backend="eager")
    lines = []
    for fn in (f, compiled):
        with pytest.raises(ValueError, match="no 3") as info:
            fn(x)
        entries = traceback.extract_tb(info.value.__traceback__)
        lines.append([(e.name, e.lineno) for e in entries if e.filename == __file__][1:])
    assert lines[0] == lines[1]


def test_raise_after_break_has_one_frame():
    def f(a):
        opaque(None)
        b = a * 2
        raise RuntimeError(f"shape {tuple(b.shape)}")

    compiled = minidynamo.compile(f, backend="eager")
    lines = []
    for fn in (f, compiled):
        with pytest.raises(RuntimeError, match="shape") as info:
            fn(x)
        entries = traceback.extract_tb(info.value.__traceback__)
        lines.append([(e.name, e.lineno) for e in entries if e.filename == __file__][1:])
    assert lines[0] == lines[1]


def test_closure_cells_shared_across_break():
    def f(a):
        count = 1

        def bump():
            nonlocal count
            count += 1
            return count

        b = a * bump()
        opaque(None)
        c = b * bump()
        return c, count

    check(f, x, graphs=None)


def test_argument_that_is_a_cell():
    def f(a, scale):
        def inner(v):
            return v * scale

        b = inner(a)
        opaque(None)
        scale = 5
        return inner(b)

    check(f, x, 2, graphs=None)


def test_break_in_inlined_callee_breaks_at_the_call():
    def callee(a):
        b = a + 1
        opaque(None)
        return b * 2

    def f(a):
        return callee(a * 3) + 1

    check(f, x, graphs=None)


def test_graph_break_function():
    def f(a):
        a = a + 1
        minidynamo.graph_break()
        return a * 2

    check(f, x, graphs=2, breaks=1)


def test_shape_error_raised_as_in_eager():
    def f(a, b):
        c = a * 2
        return c @ b

    check(f, torch.randn(2, 3), torch.randn(2, 3), graphs=None)


def test_fullgraph_names_line_reason_and_hint():
    def f(a):
        b = a + 1
        print(b)
        return b

    compiled = minidynamo.compile(f, backend="eager", fullgraph=True)
    with pytest.raises(minidynamo.exc.Unsupported) as info:
        compiled(x)
    text = str(info.value)
    assert __file__ in text
    assert "print(b)" in text
    assert "Hint" in text


def test_fullgraph_lets_the_programs_own_exception_through():
    def f(a):
        raise KeyError("mine")

    compiled = minidynamo.compile(f, backend="eager", fullgraph=True)
    assert outcome(compiled, (x,), {}) == outcome(f, (x,), {})


def test_nested_compile_calls_in_a_deep_loop():
    def f(a, n):
        i = 0
        while i < n:
            opaque(i)
            a = a + 1
            i = opaque(i) + 1
        return a

    check(f, x, 300, graphs=None, calls=1)


class Base:
    def scale(self, a):
        return a * 2


class Derived(Base):
    def scale(self, a):
        opaque(None)
        b = super().scale(a)
        opaque(None)
        return super().scale(b) + super(Derived, self).scale(a)

    def with_cell(self, a):
        again = lambda v: self.scale(v)  # noqa: E731
        opaque(None)
        return super().scale(again(a))


def test_super_after_break():
    def f(a, obj):
        return obj.scale(a) + obj.with_cell(a)

    derived = Derived()
    check(f, x, derived, graphs=None)
    check(derived.scale, x, graphs=None)
    check(derived.with_cell, x, graphs=None)
    check(lambda a: derived.with_cell(opaque(a)), x, graphs=None)


def test_equal_code_objects():
    def make():
        def f(a):
            if a.shape[0] == 4:
                a = a + 1
            return a * 2

        return f

    first, second = make(), make()
    assert first.__code__ == second.__code__
    check(lambda a: second(first(a)), x)
    copied = type(first)(first.__code__.replace(co_name="f"), globals())
    check(copied, x)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_operator_that_raises_when_it_runs(backend):
    def f(table, index, flag):
        row = table * 2
        row = torch.nn.functional.embedding(index, row)
        if flag:
            opaque(None)
        return row + 1

    compiled = minidynamo.compile(f, backend=backend)
    table, good, bad = torch.randn(3, 2), torch.tensor([1]), torch.tensor([7])
    for flag in (False, True):
        torch.testing.assert_close(compiled(table, good, flag), f(table, good, flag))
        assert outcome(compiled, (table, bad, flag), {}) == outcome(f, (table, bad, flag), {})
        torch.testing.assert_close(compiled(table, good, flag), f(table, good, flag))


def test_operator_that_raises_has_the_programs_traceback():
    def f(table, index):
        row = table * 2
        row = torch.nn.functional.embedding(index, row)
        return row + 1

    compiled = minidynamo.compile(f)
    lines = []
    for fn in (f, compiled):
        with pytest.raises(IndexError) as info:
            fn(torch.randn(3, 2), torch.tensor([7]))
        entries = traceback.extract_tb(info.value.__traceback__)
        lines.append([(e.name, e.lineno) for e in entries][1:])
    assert lines[0] == lines[1]


def test_loop_with_break_captures_its_body_once():
    def f(a, n):
        for i in range(n):
            a = a + 1
            opaque(i)
            a = a * 2
        return a

    counter = check(f, x, 20, graphs=3, calls=1)
    compiled = minidynamo.compile(f, backend=counter)
    torch.testing.assert_close(compiled(x, 30), f(x, 30))
    assert len(counter.graphs) == 4  # n is a constant of the part before the loop


def test_loop_over_layers_with_break_captures_its_body_once():
    layers = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(12)])

    def f(a):
        for layer in layers:
            a = layer(a)
            opaque(a)
            a = a * 2
        return a

    check(f, x, graphs=3, breaks=2)


def test_argument_of_the_call_that_breaks_is_not_guarded():
    def f(a, n):
        b = a + 1
        opaque(n)
        return b * 2

    check_recompiles(f, [(x, 1), (x, 2), (x, "three")], graphs=2)
