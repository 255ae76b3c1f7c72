"""The three kinds of code that replace or continue a frame, made by hand in miniature.

Entry code runs instead of a function.  Break code starts a frame in the middle of the original's
instructions and leaves it behind one of them.  A continuation takes stack and locals as arguments
and goes on from there.
"""

import contextlib
import types

import pytest
from bytecode_samples import CASES, outcome

from minidynamo.bytecode import (
    OPS,
    BytecodeError,
    Instruction,
    assemble,
    copy_instructions,
    current,
    decode,
    definitely_bound,
    live_locals,
    prime_cache,
    remove_unreachable,
    stack_kinds,
)

GENERATOR = 0x20 | 0x80 | 0x200
SAME_ARGUMENTS = ("argcount", "posonlyargcount", "kwonlyargcount")


class Snapshot:
    """What a frame held: stack items with None for a NULL, locals."""

    def __init__(self, stack, local):
        self.stack, self.locals = stack, local


def resumable_points(code):
    """Where stack and locals can be taken as values: no live local may be unbound."""
    instructions = decode(code)
    live = live_locals(instructions)
    start = point_of(instructions, "RESUME") + 1
    return [
        i
        for i, kinds in enumerate(stack_kinds(instructions))
        if i >= start
        and kinds is not None
        and not set(kinds) & set("?pl")
        and live[i] <= bound_names(code, i)
    ]


def saved(kinds, names, free=()):
    """Instructions that pack stack and locals into ``stop(stack, locals)`` and return that.

    The stack is unloaded into locals first, NULLs by binding a local to nothing.
    """
    slots = [f"s{i}" for i in range(len(kinds))]
    listing = [Instruction("STORE_FAST", name) for name in reversed(slots)]
    loads = []
    for slot, kind in zip(slots, kinds):
        loads.append(
            Instruction("LOAD_CONST", None) if kind == "n" else Instruction("LOAD_FAST", slot)
        )
    loads.append(Instruction("BUILD_TUPLE", len(slots)))
    for name in names:
        loads.append(Instruction("LOAD_CONST", name))
        loads.append(Instruction("LOAD_FAST", name))
    loads.append(Instruction("BUILD_MAP", len(names)))
    call = current.emit_call([Instruction("LOAD_CONST", Snapshot)], loads, 2)
    return [*listing, *call, Instruction("RETURN_VALUE")]


def pushed(kinds, load):
    """Instructions that put the stack back: ``load(i)`` pushes item i."""
    listing = []
    for i, kind in enumerate(kinds):
        listing += [Instruction("PUSH_NULL")] if kind == "n" else load(i)
    return listing


def stopping_code(code, i):
    """The original, but in front of instruction ``i`` it returns a Snapshot (cells apart)."""
    originals = decode(code)
    copies = copy_instructions(originals)
    names = sorted(bound_names(code, i))
    block = saved(stack_kinds(originals)[i], names)
    copies[i:i] = block
    for inst in copies:
        if inst.target is not None and inst.target.origin is originals[i]:
            inst.target = block[0]
    for inst in block:
        inst.handler = None
    return assemble(remove_unreachable(copies), code)


def bound_names(code, i):
    """Live locals in front of ``i``, less those that may be unbound."""
    n = code.co_argcount + code.co_kwonlyargcount
    n += bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)
    bound = definitely_bound(decode(code), code.co_varnames[:n])[i] or frozenset()
    cells = set(code.co_cellvars) | set(code.co_freevars)
    return (bound & live_locals(decode(code))[i]) - cells


def continuation(code, i):
    """A code object of stack items that are no NULL, then live locals, by name."""
    copies = copy_instructions(decode(code))
    kinds = stack_kinds(decode(code))[i]
    free = (*code.co_cellvars, *code.co_freevars)
    slots = tuple(f"s{j}" for j, kind in enumerate(kinds) if kind != "n")
    arguments = slots + tuple(sorted(bound_names(code, i)))
    prelude = [
        *current.emit_prologue((), free),
        *pushed(kinds, lambda j: [Instruction("LOAD_FAST", f"s{j}")]),
        Instruction("JUMP", target=copies[i]),
    ]
    listing = remove_unreachable([*prelude, *copies])
    new = assemble(
        listing,
        code,
        argcount=len(arguments),
        posonlyargcount=0,
        kwonlyargcount=0,
        flags=code.co_flags & ~0x0C,
        varnames=arguments,
        cellvars=(),
        freevars=free,
        name=f"{code.co_name}_after",
    )
    prime_cache(new, listing)
    return new, kinds


def split(function, i):
    """A callable that runs ``function`` up to instruction ``i`` and the rest in another frame."""
    code = function.__code__
    first = types.FunctionType(
        stopping_code(code, i), function.__globals__, closure=function.__closure__
    )
    first.__kwdefaults__ = function.__kwdefaults__
    new, kinds = continuation(code, i)
    rest = types.FunctionType(new, function.__globals__, closure=function.__closure__)

    def run(*args):
        result = first(*args)
        if not isinstance(result, Snapshot):
            return result
        stack = [item for item, kind in zip(result.stack, kinds) if kind != "n"]
        return rest(*stack, **result.locals)

    return run


def splittable():
    for function, arguments in CASES:
        code = function.__code__
        if code.co_cellvars or code.co_flags & GENERATOR or len(decode(code)) > 500:
            continue
        yield pytest.param(function, arguments, id=function.__name__)


@pytest.mark.parametrize("function, arguments", [*splittable()])
def test_split_everywhere(function, arguments):
    """In two frames, split in front of any instruction, each sample does the same as in one."""
    instructions = decode(function.__code__)
    points = resumable_points(function.__code__)
    assert points
    expected = [without_lines(outcome(function, args)) for args in arguments]
    for i in points[:: max(1, len(points) // 40)]:
        run = split(function, i)
        found = [without_lines(outcome(run, args)) for args in arguments]
        assert found == expected, (i, instructions[i])


def without_lines(result):
    text, log = result
    return (text.partition(", [(")[0], log)


@contextlib.contextmanager
def noting(log, name):
    log.append(f"enter {name}")
    try:
        yield name
    except ValueError:
        log.append(f"error {name}")
        raise
    finally:
        log.append(f"exit {name}")


def loop_in_with_in_try(items, log, offset):
    total = offset
    try:
        with noting(log, "outer") as name:
            for item in items:
                try:
                    total = max(total, check(item)) + len(name)
                except KeyError as error:
                    total += 100 * len(error.args)
                    continue
                log.append(total)
    except ValueError as error:
        return total, str(error)
    finally:
        log.append("finally")
    return total


def check(item):
    if item == "key":
        raise KeyError(1)
    if item == "value":
        raise ValueError("bad")
    return item


def point_of(instructions, opname, arg=None):
    return next(
        i
        for i, inst in enumerate(instructions)
        if inst.opname == opname and arg in (None, inst.arg)
    )


def inner_call(instructions):
    """The CALL of ``check``, while ``max`` and its first argument are on the stack."""
    load = point_of(instructions, "LOAD_GLOBAL", "check")
    return next(i for i in range(load, len(instructions)) if instructions[i].opname == "CALL")


ITEMS = [
    [1, 2, 3],
    [1, "key", 5],
    ["key"],
    [2, "value", 3],
    ["value"],
    [],
]


class TestMiddleOfALoop:
    """Entering between the evaluation of ``max``'s first argument and the call of ``check``."""

    @pytest.mark.parametrize("items", [items for items in ITEMS if items], ids=str)
    def test_continuation(self, items):
        code = loop_in_with_in_try.__code__
        i = inner_call(decode(code))
        log = []
        expected = loop_in_with_in_try(items, log, 7)
        found = []
        assert split(loop_in_with_in_try, i)(items, found, 7) == expected
        assert found[: found.index("exit outer")].count("enter outer") == 1
        assert found == log

    @pytest.mark.parametrize("items", ITEMS, ids=str)
    def test_break_code(self, items):
        """The whole frame: up to the call as written, stop behind it, go on in continuations."""
        code = loop_in_with_in_try.__code__
        log, found = [], []
        expected = loop_in_with_in_try(items, log, 7)
        f = types.FunctionType(break_behind(code, inner_call(decode(code))), globals())
        assert f(items, found, 7) == expected
        assert found == log

    def test_break_code_entered_with_restored_state(self):
        """A prelude restores the stack, open ``with`` included, and enters at the call."""
        code = loop_in_with_in_try.__code__
        instructions = decode(code)
        i = inner_call(instructions)
        for item, expected, events in (
            (50, 55, ["55", "exit", "finally"]),
            ("key", 101, ["exit", "finally"]),
            ("value", (1, "bad"), ["exit ValueError", "finally"]),
        ):
            log = []

            def leave(kind, error, traceback, log=log):
                log.append("exit" if kind is None else f"exit {kind.__name__}")

            values = iter([leave, iter(()), max, 1, check, item])
            kinds = stack_kinds(instructions)[i]
            stack = [None if kind == "n" else next(values) for kind in kinds]
            assert next(values, "all used") == "all used"
            copies = copy_instructions(instructions)
            prelude = current.emit_prologue()
            for name, value in (("total", 1), ("name", "outer"), ("item", item)):
                prelude += [*current.emit_const(value), Instruction("STORE_FAST", name)]
            prelude += pushed(kinds, lambda j: current.emit_const(stack[j]))
            prelude.append(Instruction("JUMP", target=copies[i]))
            new = assemble(remove_unreachable([*prelude, *copies]), code)
            assert types.FunctionType(new, globals())([], log, 0) == expected
            assert [str(event) for event in log] == events


def break_behind(code, i):
    """The original with the ways out of instruction ``i`` leading to calls of continuations."""
    originals = decode(code)
    copies = copy_instructions(originals)
    stopped = copies[i]
    kinds = stack_kinds(originals)

    def hand_over(j):
        new, after = continuation(code, j)
        function = types.FunctionType(new, globals())
        slots = [f"s{k}" for k in range(len(after))]
        listing = [Instruction("STORE_FAST", slot) for slot in reversed(slots)]
        given = [slot for slot, kind in zip(slots, after) if kind != "n"]
        given += sorted(bound_names(code, j))
        loads = [Instruction("LOAD_FAST", name) for name in given]
        listing += current.emit_call(current.emit_const(function), loads, len(loads))
        listing.append(Instruction("RETURN_VALUE"))
        for inst in listing:
            inst.positions = stopped.positions
        return listing

    assert kinds[i + 1] is not None and not OPS[stopped.opname].ends
    if stopped.target is not None:
        block = hand_over(copies.index(stopped.target))
        stopped.target = block[0]
        copies += block
    copies[i + 1 : i + 1] = hand_over(i + 1)
    return assemble(remove_unreachable(copies), code)


@pytest.mark.parametrize(
    "opname", ["FOR_ITER", "POP_JUMP_IF_FALSE", "BINARY_OP", "BINARY_SUBSCR"]
)
def test_break_at_instructions_with_two_ways_out(opname):
    def f(a, b):
        total = 0
        for x in a:
            if x > 2 and not b:
                total += a[0]
            total -= x
        return total

    instructions = decode(f.__code__)
    try:
        i = point_of(instructions, opname)
    except StopIteration:
        i = point_of(instructions, "POP_JUMP_IF_TRUE")
    g = types.FunctionType(break_behind(f.__code__, i), globals())
    for a in ([], [1], [1, 2, 3, 4], (5, 4)):
        for b in (0, 1):
            assert g(a, b) == f(a, b)


def test_entry_code():
    """Arguments of all kinds, one a cell; free variables; constants; a slot filled before."""
    factor = 10

    def original(a, /, b=2, *rest, c, **others):
        return lambda: (a, factor)

    code = original.__code__
    n = 5
    inner = next(c for c in code.co_consts if isinstance(c, types.CodeType))
    holder = [object()]
    copies = copy_instructions(decode(code))
    resume = point_of(copies, "RESUME")
    listing = [
        *copies[: resume + 1],
        *current.emit_const(holder),
        *(Instruction("LOAD_FAST", name) for name in ("b", "rest", "c", "others", "slot")),
        *current.emit_make_function(inner, inner.co_freevars),
        Instruction("BUILD_TUPLE", 7),
        Instruction("RETURN_VALUE"),
    ]
    new = assemble(listing, code, varnames=(*code.co_varnames[:n], "slot"))
    assert new.co_varnames[n] == "slot" and new.co_freevars == code.co_freevars
    assert [getattr(new, f"co_{field}") for field in SAME_ARGUMENTS] == [2, 1, 1]
    assert new.co_flags == code.co_flags
    f = types.FunctionType(new, globals(), argdefs=(2,), closure=original.__closure__)
    with pytest.raises(UnboundLocalError, match="slot"):
        f(1, c=3)
    flags = new.co_flags & ~0x0C
    given = new.replace(
        co_argcount=6, co_posonlyargcount=0, co_kwonlyargcount=0, co_flags=flags
    )
    f = types.FunctionType(given, globals(), closure=original.__closure__)
    found = f(1, 2, 3, (4,), {"d": 5}, "filled")
    assert found[0] is holder
    assert found[1:-1] == (2, (4,), 3, {"d": 5}, "filled")
    assert found[-1]() == (1, 10)


def test_continuation_shares_cells():
    """The original's cells are the continuation's free variables."""

    def original(n):
        total = n

        def add(k):
            nonlocal total
            total += k
            return total

        first = add(1)
        return first, add(2), total

    code = original.__code__
    i = point_of(decode(code), "STORE_FAST", "first")
    new, kinds = continuation(code, i)
    assert new.co_freevars == ("total",) and new.co_cellvars == ()
    assert kinds == "v" and new.co_varnames[: new.co_argcount] == ("s0", "add")
    cell = types.CellType(10)

    def add(k):
        cell.cell_contents += k
        return cell.cell_contents

    rest = types.FunctionType(new, globals(), closure=(cell,))
    assert rest(11, add) == (11, 12, 12)


def test_copies_know_their_origin():
    code = loop_in_with_in_try.__code__
    new, _ = continuation(code, inner_call(decode(code)))
    again, _ = continuation(code, inner_call(decode(code)))
    first = {inst.origin for inst in decode(new) if inst.origin is not None}
    assert first and first <= set(decode(code))
    assert [i.opname for i in decode(new)] == [i.opname for i in decode(again)]
    copies = copy_instructions(decode(new))
    assert {inst.origin for inst in copies} >= first


def test_missing_boundness_is_checked():
    """Entering behind the assignment: the local is unbound, and says so."""

    def f(a):
        x = a
        return x

    copies = copy_instructions(decode(f.__code__))
    target = copies[point_of(copies, "LOAD_FAST", "x")]
    prelude = [*current.emit_prologue(), Instruction("JUMP", target=target)]
    listing = remove_unreachable([*prelude, *copies])
    g = types.FunctionType(assemble(listing, f.__code__), globals())
    with pytest.raises(UnboundLocalError, match="x"):
        g(1)
    with pytest.raises(BytecodeError):
        assemble(listing[1:-1], f.__code__)
