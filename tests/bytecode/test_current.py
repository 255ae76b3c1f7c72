"""The emit helpers, run."""

import types

import pytest
from bytecode_support import rebuild_function

from minidynamo.bytecode import Instruction, assemble, current


def run(instructions, *args, closure=(), freevars=()):
    names = tuple(f"a{i}" for i in range(len(args)))
    code = assemble(
        [*current.emit_prologue((), freevars), *instructions, *current.emit_return()],
        run.__code__.replace(co_flags=0x3, co_kwonlyargcount=0),
        varnames=names,
        argcount=len(names),
        freevars=freevars,
        cellvars=(),
    )
    cells = tuple(types.CellType(value) for value in closure)
    return types.FunctionType(code, globals(), closure=cells or None)(*args)


def loads(n, first=0):
    return [Instruction("LOAD_FAST", f"a{i}") for i in range(first, n)]


def show(*args, **kwargs):
    return args, kwargs


def stack_of(instructions, n):
    """What is on the stack, bottom first, after ``n`` items 0..n-1 and the instructions."""
    return run([*loads(n), *instructions, Instruction("BUILD_TUPLE", n)], *range(n))


@pytest.mark.parametrize("n", range(5))
def test_call(n):
    f = [Instruction("LOAD_FAST", "a0")]
    assert run(current.emit_call(f, loads(n + 1, 1), n), show, *range(n)) == (
        tuple(range(n)),
        {},
    )
    for k in range(n + 1):
        names = tuple("xyzw"[:k])
        args, kwargs = run(current.emit_call(f, loads(n + 1, 1), n, names), show, *range(n))
        assert args + tuple(kwargs.values()) == tuple(range(n)) and tuple(kwargs) == names


def test_call_ex():
    f = [Instruction("LOAD_FAST", "a0")]
    args = [Instruction("LOAD_FAST", "a1")]
    kwargs = [Instruction("LOAD_FAST", "a2")]
    assert run(current.emit_call_ex(f, args), show, (1, 2)) == ((1, 2), {})
    both = current.emit_call_ex(f, [*args, *kwargs], True)
    assert run(both, show, (1, 2), {"k": 3}) == ((1, 2), {"k": 3})


@pytest.mark.parametrize("n", [0, 1, 2, 6, 7, 20])
def test_call_on_stack(n):
    assert run([*loads(n + 1), *current.emit_call_on_stack(n)], show, *range(n))[0] == (
        *range(n),
    )
    if n:
        call = current.emit_call_on_stack(n, ("k",))
        args, kwargs = run([*loads(n + 1), *call], show, *range(n))
        assert args == (*range(n - 1),) and kwargs == {"k": n - 1}


def test_call_slots():
    slots = [
        Instruction("PUSH_NULL") if slot is None else Instruction("LOAD_FAST", slot)
        for slot in current.call_slots("a0", None)
    ]
    call = current.emit_call([], [], 1)[-1:]
    assert run([*slots, *loads(2, 1), *call], show, 5) == ((5,), {})


def test_callable_on_stack():
    call = [*loads(1), *current.emit_callable(), *loads(2, 1)]
    one = [*call, *current.emit_call([], [], 1)[-1:]]
    assert run(one, show, 5) == ((5,), {})


def test_call_method():
    call = current.emit_call_method(loads(1), "split", loads(2, 1), 1)
    assert run(call, "a b", " ") == ["a", "b"]
    call = current.emit_call_method(loads(1), "split", loads(2, 1), 1, ("maxsplit",))
    assert run(call, "a b c", 1) == ["a", "b c"]
    holder = types.SimpleNamespace(f=show)
    assert run(current.emit_call_method(loads(1), "f", loads(2, 1), 1), holder, 1) == ((1,), {})


def test_stack_shuffling():
    assert stack_of(current.emit_swap(3), 4) == (0, 3, 2, 1)
    assert stack_of(current.emit_swap(1), 2) == (0, 1)
    assert stack_of(current.emit_rot_n(3), 4) == (0, 3, 1, 2)
    assert stack_of(current.emit_unrot_n(3), 4) == (0, 2, 3, 1)
    assert stack_of([*current.emit_copy(2), *current.emit_pop(1)], 2) == (0, 1)
    pair = [*loads(2), *current.emit_copy(2), Instruction("BUILD_TUPLE", 3)]
    assert run(pair, 7, 8) == (7, 8, 7)
    assert run([*loads(1), *current.emit("GET_LEN"), Instruction("BUILD_TUPLE", 2)], "ab") == (
        "ab",
        2,
    )


@pytest.mark.parametrize("is_bool", [False, True])
def test_pop_jump(is_bool):
    end = Instruction("NOP")
    for condition, values in (
        ("TRUE", (False, True)),
        ("FALSE", (True, False)),
        ("NONE", (1, None)),
        ("NOT_NONE", (None, 1)),
    ):
        jump = current.emit_pop_jump(condition, end, is_bool=is_bool)
        listing = [
            *current.emit_const("jumped"),
            *loads(1),
            *jump,
            *current.emit_pop(),
            *current.emit_const("fell"),
            end,
        ]
        assert [run(listing, value) for value in values] == ["fell", "jumped"]
    if not is_bool:
        listing[2:-3] = current.emit_pop_jump("TRUE", end)
        assert [run(listing, value) for value in ("", "x")] == ["fell", "jumped"]


def test_make_function():
    def plain(a):
        return a

    def outer():
        x = y = 0
        return lambda: (x, y)

    assert run(current.emit_make_function(plain.__code__))(3) == 3
    inner = outer().__code__
    make = current.emit_make_function(inner, ["p", "q"])
    assert run(make, closure=(1, 2), freevars=("p", "q"))() == (1, 2)


def test_prologue_of_an_existing_function():
    def f(a):
        return lambda: a

    assert rebuild_function(f)(4)() == 4
