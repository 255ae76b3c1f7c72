"""comptime: what a program sees of the tracer, and that nothing of it is compiled."""

import io

import pytest
import torch
from testing import CountingBackend

import minidynamo
from minidynamo import exc
from minidynamo.comptime import comptime

X = torch.arange(6.0).reshape(2, 3)


def printed(capsys, program, *args, **options):
    """What the first call of the compiled program prints."""
    minidynamo.reset()
    backend = CountingBackend()
    fast = minidynamo.compile(program, backend=backend, **options)
    result = fast(*args)
    text = capsys.readouterr().out
    again = fast(*args)
    assert capsys.readouterr().out == ""  # it is compiled: nothing is left of it
    torch.testing.assert_close(result, again)
    return text, backend


def test_values(capsys):
    def program(x, n, label):
        y = x * n
        comptime.print(y)
        comptime.print(n)
        comptime.print(label)
        return y + 1

    text, backend = printed(capsys, program, X, 4, "a", fullgraph=True)
    assert text.splitlines() == ["Tensor mul float32[2, 3] on cpu", "int 4", "str 'a'"]
    assert [node.name for node in backend.graphs[0].graph.nodes][1:3] == ["mul", "add"]
    text, _ = printed(capsys, program, X, 4, "a", dynamic=True)
    sizes, number, _ = text.splitlines()
    assert sizes.startswith("Tensor mul float32[s") and number == "int n"
    program(X, 4, "a")
    assert capsys.readouterr().out.endswith("4\na\n")  # eager: as print()


def helper(y):
    comptime.print_bt()
    comptime.print_locals(stacklevel=1)
    return y.sin()


def test_where_the_tracer_is(capsys):
    def program(x, unused):
        y = x + 1
        return helper(y) * comptime.print_value_stack_and_return(2)

    text, _ = printed(capsys, program, X, object(), fullgraph=True)
    assert "in program" in text and "in helper" in text
    assert "x = Tensor x float32[2, 3] on cpu" in text and "y = Tensor add" in text
    assert "unused = object unused, not looked at yet" in text
    assert "- Tensor sin float32[2, 3] on cpu" in text


def test_graph_guards_and_bytecode(capsys):
    def program(x):
        y = x + 1
        comptime.print_graph()
        comptime.print_guards()
        comptime.print_disas()
        return y

    text, _ = printed(capsys, program, X, fullgraph=True)
    assert "l_x_ + 1" in text and "def forward" in text
    assert "x: Tensor of torch.float32, (2, 3), on cpu" in text
    assert any("-->" in line and "CALL" in line for line in text.splitlines())


def test_functions_of_the_program():
    seen = io.StringIO()

    def look(ctx):
        y = ctx.get_local("y")
        print(y.size(), y.as_fake().dtype, y.is_proxy(), y.python_type().__name__, file=seen)
        n = ctx.get_local("n")
        print(n.is_python_constant(), n.as_python_constant(), n.is_dynamic(), file=seen)
        ctx.print_value_stack(file=seen)
        print([node.op for node in ctx.graph().nodes], file=seen)

    def program(x, n):
        y = x * n
        comptime(look)
        return y

    fast = minidynamo.compile(program, backend="eager", fullgraph=True)
    assert torch.equal(fast(X, 3), X * 3)
    assert seen.getvalue().splitlines() == [
        "torch.Size([2, 3]) torch.float32 True Tensor",
        "True 3 False",
        "['placeholder', 'call_function']",
    ]


def test_fallback_in_eager():
    calls = []
    comptime(lambda ctx: calls.append(1), lambda: calls.append(2))
    comptime.print_graph()
    comptime.graph_break()
    assert calls == [2] and comptime.print_value_stack_and_return(7) == 7


def test_graph_break_and_numbers():
    def program(x, n):
        comptime.force_static(n)
        y = x * n
        comptime.graph_break()
        return y + 1

    backend = CountingBackend()
    fast = minidynamo.compile(program, backend=backend, dynamic=True)
    for n in (3, 4, 3):
        assert torch.equal(fast(X, n), program(X, n))
    # The number is a constant in front of the break; what follows does not know it.
    assert len(backend.graphs) == 3

    def assertive(x, n):
        comptime.assert_static(n)
        return x * n

    assert torch.equal(minidynamo.compile(assertive, backend="eager")(X, 3), X * 3)
    with pytest.raises(exc.UserError, match="AssertionError: int n is a symbol"):
        minidynamo.compile(assertive, backend="eager", dynamic=True)(X, 3)


@pytest.mark.parametrize(
    "look, message",
    [
        (lambda ctx: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda ctx: ctx.get_local("z"), "no local 'z' is bound here; bound: x"),
        (lambda ctx: ctx.get_local("x").as_python_constant(), "Tensor x .* is no constant"),
        (lambda ctx: ctx.get_local("x").force_static(), "is no number that could become"),
        (lambda ctx: ctx.parent(), "no caller 1 levels further out"),
    ],
)
def test_mistakes_are_told(look, message):
    def program(x):
        comptime(look)
        return x

    with pytest.raises(exc.UserError, match=message) as caught:
        minidynamo.compile(program, backend="eager")(X)
    assert caught.value.user_stack[-1].name == "program"


def test_closures_of_the_program_are_refused():
    def program(x):
        comptime(lambda ctx: x)
        return x

    with pytest.raises(exc.UserError, match="without variables of the compiled function"):
        minidynamo.compile(program, backend="eager")(X)


def test_torchs_own(capsys):
    theirs = pytest.importorskip("torch._dynamo.comptime").comptime

    def program(x):
        theirs.print(x)
        theirs(lambda ctx: ctx.print_locals())
        return x + 1

    text, backend = printed(capsys, program, X, fullgraph=True)
    assert text.splitlines()[0] == "Tensor x float32[2, 3] on cpu" and len(backend.graphs) == 1
