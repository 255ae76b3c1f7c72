"""What a code generator relies on: constants, slots, jumps of all kinds, side tables, errors."""

import gc
import sys
import types
import weakref

import pytest
from bytecode_support import codes_in, comparable, rebuild_function

from minidynamo.bytecode import (
    BytecodeError,
    CallArg,
    Handler,
    Instruction,
    assemble,
    copy_instructions,
    current,
    decode,
    dump,
    instruction_index,
    prime_cache,
)


def template(a, b):
    """Docstring."""


def make(instructions, **options):
    """A function of ``a`` and ``b`` with these instructions behind the prologue."""
    prologue = current.emit_prologue(options.get("cellvars", ()), options.get("freevars", ()))
    code = assemble([*prologue, *instructions], template.__code__, **options)
    return types.FunctionType(code, globals())


def const(value):
    return Instruction("LOAD_CONST", value)


def returned(*instructions):
    return [*instructions, Instruction("RETURN_VALUE")]


class Hostile:
    """Cannot be hashed, compared, or asked for its truth."""

    __hash__ = None

    def __eq__(self, other):
        raise AssertionError("compared")

    def __bool__(self):
        raise AssertionError("asked")


class TestConstants:
    def test_kept_by_identity(self):
        nan = float("nan")
        values = [1, 1.0, True, 0.0, -0.0, nan, float("nan"), (1,), (True,), (1.0,), [], [], {}]
        values += [Hostile(), Hostile(), b"x", bytearray(b"x"), bytearray(b"x")]
        f = make(returned(*map(const, values), Instruction("BUILD_TUPLE", len(values))))
        result = f(0, 0)
        assert all(x is y for x, y in zip(result, values, strict=True))
        again = [inst.arg for inst in decode(f.__code__) if inst.opname == "LOAD_CONST"]
        assert all(x is y for x, y in zip(again, values, strict=True))

    def test_one_object_is_one_constant(self):
        value = Hostile()
        f = make(returned(const(value), const(value), Instruction("BUILD_TUPLE", 2)))
        assert sum(constant is value for constant in f.__code__.co_consts) == 1

    def test_docstring_stays(self):
        assert make(returned(const(1))).__doc__ == "Docstring."

    def test_code_with_such_constants_can_be_decoded(self):
        codes = [make(returned(const([i]))).__code__ for i in range(3)]
        assert [decode(code)[1].arg for code in codes] == [[0], [1], [2]]

    def test_many(self):
        values = [object() for _ in range(66_000)]
        build = [x for value in values for x in (const(value), *current.emit_pop())]
        assert make([*build, *returned(const(values[-1]))])(0, 0) is values[-1]


class TestVariables:
    def test_extra_local_behind_the_arguments(self):
        def original(x, *rest, k=1, **others):
            y = x
            return y

        n = 4
        names = (*original.__code__.co_varnames[:n], "extra")
        insts = [
            *current.emit_prologue(),
            const("filled"),
            Instruction("STORE_FAST", "extra"),
            *(Instruction("LOAD_FAST", name) for name in (*names, "later")),
            *returned(Instruction("BUILD_TUPLE", n + 2)),
        ]
        insts[3:3] = [const("used"), Instruction("STORE_FAST", "later")]
        code = assemble(insts, original.__code__, varnames=names)
        assert code.co_varnames == (*names, "later")
        f = types.FunctionType(code, {})
        f.__kwdefaults__ = {"k": 1}
        assert f(1, 2, z=3) == (1, 1, (2,), {"z": 3}, "filled", "used")

    def test_new_signature(self):
        insts = [Instruction("LOAD_FAST", n) for n in "xyz"]
        f = make(
            [*insts, *returned(Instruction("BUILD_TUPLE", 3))],
            varnames=("x", "y", "z"),
            argcount=3,
            posonlyargcount=1,
            name="other",
            qualname="of.other",
            firstlineno=77,
            filename="file.py",
        )
        assert f(1, z=3, y=2) == (1, 2, 3)
        code = f.__code__
        assert (code.co_name, code.co_qualname, code.co_filename) == (
            "other",
            "of.other",
            "file.py",
        )
        assert code.co_firstlineno == 77
        with pytest.raises(TypeError, match="positional-only"):
            f(x=1, y=2, z=3)

    def test_cells(self):
        """``a`` is an argument and a cell, ``c`` a cell, ``outer`` a free variable."""
        source = "def f():\n a = c = outer = 0\n return lambda: (a, c, outer)"
        inner = [*codes_in(compile(source, "", "exec"))][-1]
        insts = [
            *current.emit_prologue(("a", "c"), ("outer",)),
            const(5),
            Instruction("STORE_DEREF", "c"),
            *current.emit_make_function(inner, inner.co_freevars),
            *returned(),
        ]
        code = assemble(insts, template.__code__, cellvars=("a", "c"), freevars=("outer",))
        assert (code.co_cellvars, code.co_freevars) == (("a", "c"), ("outer",))
        f = types.FunctionType(code, {}, closure=(types.CellType("o"),))
        assert f(1, 2)() == (1, 5, "o")

    def test_unbound_local_raises(self):
        """Never a crash, whatever the version does for LOAD_FAST."""
        for opname in ("LOAD_FAST", "LOAD_FAST_CHECK"):
            f = make(returned(Instruction(opname, "nowhere")))
            with pytest.raises(UnboundLocalError, match="nowhere"):
                f(1, 2)

    def test_slot_that_somebody_fills_is_not_checked(self):
        listing = returned(Instruction("LOAD_FAST", "filled"))
        code = make(listing, varnames=("a", "b", "filled"), bound=("filled",)).__code__
        assert [inst.opname for inst in decode(code)][1] == "LOAD_FAST"

    def test_arguments_are_not_checked(self):
        code = make(returned(Instruction("LOAD_FAST", "a"))).__code__
        assert [inst.opname for inst in decode(code)][1] == "LOAD_FAST"


def counting_loop(jump_first):
    """while a: a -= 1; b += 2 -- with the test at the end or at the start of the loop."""
    test = Instruction("LOAD_FAST", "a")
    end = Instruction("LOAD_FAST", "b")
    body = [
        Instruction("LOAD_FAST", "a"),
        const(1),
        Instruction("BINARY_OP", "-="),
        Instruction("STORE_FAST", "a"),
        Instruction("LOAD_FAST", "b"),
        const(2),
        Instruction("BINARY_OP", "+="),
        Instruction("STORE_FAST", "b"),
    ]
    if jump_first:
        backward = current.emit_pop_jump("TRUE", body[0])
        return [Instruction("JUMP", None, test), *body, test, *backward, *returned(end)]
    forward = current.emit_pop_jump("FALSE", end)
    return [test, *forward, *body, Instruction("JUMP", None, test), *returned(end)]


class TestJumps:
    @pytest.mark.parametrize("jump_first", [False, True])
    def test_conditional_both_ways(self, jump_first):
        assert make(counting_loop(jump_first))(5, 1) == 11

    @pytest.mark.parametrize("condition, result", [("NONE", "yes"), ("NOT_NONE", "no")])
    @pytest.mark.parametrize("backward", [False, True])
    def test_none(self, condition, result, backward):
        yes = returned(const("yes"))
        no = returned(const("no"))
        jump = [Instruction("LOAD_FAST", "a"), *current.emit_pop_jump(condition, yes[0])]
        if backward:
            skip = [Instruction("JUMP", None, jump[0])]
            f = make([*skip, *yes, *jump, *no])
        else:
            f = make([*jump, *no, *yes])
        assert f(None, 0) == result
        assert f(1, 0) == ("no" if result == "yes" else "yes")

    @pytest.mark.parametrize("opname", ["JUMP_IF_TRUE_OR_POP", "JUMP_IF_FALSE_OR_POP"])
    @pytest.mark.parametrize("backward", [False, True])
    def test_or_pop(self, opname, backward):
        end = returned()
        jump = [
            Instruction("LOAD_FAST", "a"),
            Instruction(opname, None, end[0]),
            Instruction("LOAD_FAST", "b"),
        ]
        if backward:
            back = Instruction("JUMP", None, end[0])
            f = make([Instruction("JUMP", None, jump[0]), *end, *jump, back])
        else:
            f = make([*jump, *end])
        for a in (0, 1, "", "x"):
            kept = bool(a) == (opname == "JUMP_IF_TRUE_OR_POP")
            assert f(a, "b") == (a if kept else "b")

    @pytest.mark.parametrize("backward", [False, True])
    @pytest.mark.parametrize("falls_in", [False, True])
    def test_for_iter(self, backward, falls_in):
        """Loops whose end is in front of them, or is reached from elsewhere as well."""
        end = returned(Instruction("LOAD_FAST", "b"))
        start = [Instruction("LOAD_FAST", "a"), Instruction("GET_ITER")]
        step = Instruction("FOR_ITER", None, end[0])
        body = [
            step,
            Instruction("LOAD_FAST", "b"),
            *current.emit_swap(2),
            Instruction("BINARY_OP", "+"),
            Instruction("STORE_FAST", "b"),
            Instruction("JUMP", None, step),
        ]
        if falls_in:
            before = [Instruction("NOP"), *current.emit_pop()]
            leave = [
                Instruction("LOAD_FAST", "b"),
                const(100),
                Instruction("COMPARE_OP", ">"),
                *current.emit_pop_jump("TRUE", before[0]),
            ]
            body[-1:-1] = leave
            end = [*before, *end]
        if backward:
            f = make([Instruction("JUMP", None, start[0]), *end, *start, *body])
        else:
            f = make([*start, *body, *end])
        assert f([1, 2, 3], 0) == 6
        assert f((i for i in range(4)), 0) == 6
        for _ in range(50):  # also once the interpreter has specialised the loop
            assert f(range(3), 1) == 4
        assert f([99, 9, 1000], 0) == (108 if falls_in else 1108)

    def test_far(self):
        """Operands of more than one and more than two bytes, forwards and backwards."""
        for size in (130, 300, 33_000):
            listing = counting_loop(False)
            i = next(i for i, inst in enumerate(listing) if inst.opname == "STORE_FAST")
            listing[i:i] = [x for _ in range(size) for x in (const(0), *current.emit_pop())]
            assert make(listing)(3, 0) == 6

    def test_to_bool_on_every_version(self):
        f = make(returned(Instruction("LOAD_FAST", "a"), Instruction("TO_BOOL")))
        assert f("x", 0) is True and f([], 0) is False


class TestInstructions:
    @pytest.mark.parametrize("convert", [str, repr, ascii])
    def test_conversion_alone(self, convert):
        """Apart from the formatting it is decoded with, as when a graph breaks in between."""
        f = make(
            returned(
                Instruction("LOAD_FAST", "a"), Instruction("CONVERT_VALUE", convert.__name__)
            )
        )
        assert f("é", 0) == convert("é")

    def test_formatting_entered_in_the_middle(self):
        simple = Instruction("FORMAT_SIMPLE")
        load = Instruction("LOAD_FAST", "a")
        take = [load, *current.emit_pop_jump("TRUE", simple)]
        take[:0] = [Instruction("LOAD_FAST", "b")]
        f = make([*take, Instruction("CONVERT_VALUE", "repr"), *returned(simple)])
        assert (f(True, "b"), f(False, "b")) == ("b", "'b'")

    def test_keyword_call(self):
        call = current.emit_call([const(dict)], [const(1), const(2)], 2, ("x", "y"))
        assert make(returned(*call))(0, 0) == {"x": 1, "y": 2}

    def test_comparison_result_is_not_made_a_bool(self):
        class Odd:
            def __lt__(self, other):
                return "odd"

        load = [Instruction("LOAD_FAST", name) for name in "ab"]
        f = make(returned(*load, Instruction("COMPARE_OP", "<")))
        assert f(Odd(), 0) == "odd"
        f = make(returned(*load, Instruction("COMPARE_OP", "<"), Instruction("TO_BOOL")))
        assert f(Odd(), 0) is True
        for _ in range(100):  # specialised comparisons use bits of the operand
            assert f(1, 2) is True and f(2, 1) is False and f(1, 1) is False

    def test_statement_intrinsics(self):
        """3.11 has them as instructions that push nothing."""
        print_it = Instruction("CALL_INTRINSIC_1", "PRINT")
        seen = []
        hook, sys.displayhook = sys.displayhook, seen.append
        try:
            assert make(returned(Instruction("LOAD_FAST", "a"), print_it))(7, 0) is None
        finally:
            sys.displayhook = hook
        assert seen == [7]

    def test_call_from_a_listing_object_is_shared(self):
        arg = CallArg(1)
        call = [*current.emit_callable([const(len)]), Instruction("LOAD_FAST", "a")]
        assert make(returned(*call, Instruction("CALL", arg)))("abc", 0) == 3


class TestSideTables:
    def test_positions_of_new_instructions(self):
        where = (40, 41, 3, 500)
        fail = Instruction("RAISE_VARARGS", 1, positions=where)
        f = make([const(KeyError), fail])
        with pytest.raises(KeyError) as caught:
            f(0, 0)
        assert caught.tb.tb_next.tb_lineno == 40
        assert [inst.positions for inst in decode(f.__code__)][-1] == where

    @pytest.mark.parametrize(
        "positions",
        [
            (1, 1, 0, 0),
            (5, 5, 79, 94),
            (5, 5, 79, 95),
            (7, 7, 127, 127),
            (7, 7, 128, 200),
            (9, 9, None, None),
            (9, 12, None, None),
            (2, 90, 5, 1),
            (100_000, 100_000, 1, 2),
            (0, 0, 3, 4),
            (None, None, None, None),
            None,
        ],
    )
    @pytest.mark.parametrize("count", [1, 7, 8, 9, 40])
    def test_encoding(self, positions, count):
        other = (3, 3, 1, 2)
        nops = [Instruction("NOP", positions=positions) for _ in range(count)]
        end = returned(const(0))
        for inst in end:
            inst.positions = other
        found = [inst.positions for inst in decode(make([*nops, *end]).__code__)]
        assert found[1:-2] == [positions or (None,) * 4] * count
        assert found[-2:] == [other, other]

    def test_handler_deeper_than_the_code_before_it(self):
        """The handler's stack is the highest point of the function."""
        first = Instruction("PUSH_EXC_INFO")
        handler = Handler(first, 2, True)
        risky = [const(1), const(2), Instruction("RAISE_VARARGS", 0, handler=handler)]
        cleanup = [first, *(const(i) for i in range(3)), Instruction("BUILD_TUPLE", 3)]
        f = make([*risky, *cleanup, *returned()])
        assert f.__code__.co_stacksize == 2 + 1 + 2 + 3
        with pytest.raises(BytecodeError, match="needs more than 1"):
            make([*risky[1:], *cleanup, *returned()])
        try:
            raise KeyError
        except KeyError:
            assert f(0, 0) == (0, 1, 2)

    @pytest.mark.parametrize("covered", [False, True])
    def test_handler_of_a_call_at_the_edge_of_its_region(self, covered):
        """3.13 looks one unit too early for exceptions out of Python functions."""

        def fail():
            raise ValueError

        def original(f):
            try:
                f()
            except ValueError:
                return "caught"

        insts = copy_instructions(decode(original.__code__))
        call = next(i for i, inst in enumerate(insts) if inst.opname == "CALL")
        handler = insts[call].handler
        for inst in insts[: call + 1]:
            inst.handler = None if covered else handler
        insts[call].handler = handler if covered else None
        f = types.FunctionType(assemble(insts, original.__code__), {})
        for _ in range(20):
            if covered:
                assert f(fail) == "caught"
            else:
                with pytest.raises(ValueError):
                    f(fail)

    def test_regions_entered_by_a_jump(self):
        """An uncovered prelude that jumps into a covered region, over another one."""

        def original(a, b):
            try:
                a / b
            except ZeroDivisionError:
                return "first"
            try:
                return b / a
            except ZeroDivisionError:
                return "second"

        insts = copy_instructions(decode(original.__code__))
        second = [i for i, inst in enumerate(insts) if inst.opname == "BINARY_OP"][1]
        prelude = [
            *current.emit_prologue(),
            const(8),
            Instruction("LOAD_FAST", "a"),
            Instruction("JUMP", None, insts[second]),
        ]
        f = types.FunctionType(assemble([*prelude, *insts], original.__code__), {})
        assert (f(2, 0), f(0, 0)) == (4.0, "second")


class TestErrors:
    def test_target_that_is_not_there(self):
        lost = Instruction("NOP")
        with pytest.raises(BytecodeError, match="out of the listing|not in the listing"):
            make([Instruction("JUMP", None, lost)])

    def test_handler_that_is_not_there(self):
        lost = Handler(Instruction("NOP"), 0)
        with pytest.raises(BytecodeError, match="out of the listing|not in the listing"):
            make(returned(Instruction("LOAD_GLOBAL", "x", handler=lost)))

    def test_running_off_the_end(self):
        with pytest.raises(BytecodeError, match="off the end"):
            make([const(1)])

    def test_underflow(self):
        with pytest.raises(BytecodeError, match="underflow"):
            make(returned())

    def test_heights_that_disagree(self):
        end = Instruction("RETURN_VALUE")
        jump = [Instruction("LOAD_FAST", "a"), *current.emit_pop_jump("TRUE", end), const(1)]
        with pytest.raises(BytecodeError, match="stack height"):
            make([const(0), const(0), *jump, end])

    def test_unknown_cell(self):
        with pytest.raises(BytecodeError, match="neither a cell"):
            make(returned(Instruction("LOAD_DEREF", "x")))

    def test_copy_of_a_part(self):
        def f(a):
            return 1 if a else 2

        with pytest.raises(BytecodeError, match="outside"):
            copy_instructions(decode(f.__code__)[:4])


class TestCache:
    def test_decoded_once(self):
        code = rebuild_function(template).__code__
        assert decode(code) is decode(code)
        assert instruction_index(code) is instruction_index(code)
        assert [instruction_index(code)[inst] for inst in decode(code)] == [
            *range(len(decode(code)))
        ]

    def test_primed(self):
        listing = copy_instructions(decode(template.__code__))
        listing.insert(1, Instruction("NOP"))
        code = assemble(listing, template.__code__)
        prime_cache(code, listing)
        assert decode(code) is listing
        again = copy_instructions(decode(code))
        originals = decode(template.__code__)
        assert [inst.origin for inst in again] == [originals[0], listing[1], *originals[1:]]

    def test_goes_with_the_code_object(self):
        code = rebuild_function(template).__code__
        listing = decode(code)
        gone = weakref.ref(code)
        del code
        gc.collect()
        assert gone() is None and listing
        from minidynamo.bytecode import decode as module

        cache = sys.modules[module.__module__]._cache
        assert all(row.listing is not listing for row in cache.values())

    def test_equal_code_objects_are_not_mixed_up(self):
        first, second = (rebuild_function(template).__code__ for _ in range(2))
        assert first == second and decode(first) is not decode(second)


def test_origin_is_the_first_original():
    copies = copy_instructions(copy_instructions(decode(template.__code__)))
    assert [copy.origin for copy in copies] == decode(template.__code__)


def test_ambiguous_names_are_refused():
    source = """
class A:
    def f(self):
        class B:
            y = __class__
            def g(self): return __class__
"""
    code = next(c for c in codes_in(compile(source, "", "exec")) if c.co_name == "B")
    assert set(code.co_cellvars) & set(code.co_freevars)
    with pytest.raises(BytecodeError, match="both cell and free"):
        decode(code)
    with pytest.raises(BytecodeError, match="both"):
        make(returned(const(0)), cellvars=("c",), freevars=("c",))


def test_dump():
    def f(a):
        try:
            for x in a:
                print(x, end="")
        except ValueError:
            pass

    text = dump(decode(f.__code__))
    assert "LOAD_GLOBAL            'print'" in text
    assert "2 ('end',)" in text
    assert "FOR_ITER               to" in text
    assert "[except" in text
    assert dump(make(returned(const(Hostile()))).__code__ and [const(Hostile())]).endswith(
        "LOAD_CONST             <Hostile>"
    )


def test_listing_of_a_listing_is_stable():
    code = make(counting_loop(True)).__code__
    assert comparable(decode(assemble(decode(code), code))) == comparable(decode(code))


def test_importing_needs_no_torch():
    import subprocess

    program = "import sys; sys.modules['torch'] = None; import minidynamo.bytecode"
    subprocess.run([sys.executable, "-c", program], check=True)
