"""The canonical instruction set: what every operation means, the same on all CPython versions.

One row an operation: name, operand kind, stack effect, meaning.  The stack effect is written as in
CPython's own instruction definitions, ``inputs -- outputs``, top of the stack on the right; items
below the inputs are left alone.  ``name[n]`` stands for n items, n from the operand.

Conventions

* Jumps carry their target in ``Instruction.target``, never in ``arg``.  Direction is of no concern.
* Names are strings.  ``*_FAST`` operate on the slot of a local variable (of a cell variable of that
  name when there is no such local: the raw slot then holds the cell), ``*_DEREF``, LOAD_CLOSURE and
  MAKE_CELL on the cell of a cell variable or else of a free variable.
* "The callable and its two slots": every call has two stack slots below its arguments.  On 3.11
  and 3.12 they are ``NULL, callable`` or ``unbound method, self``; on 3.13 ``callable, NULL`` or
  ``unbound method, self``.  PUSH_NULL, LOAD_METHOD and LOAD_SUPER_ATTR fill them in the version's
  own order; use the helpers in ``current.py`` to emit calls.
* POP_JUMP_IF_TRUE / FALSE and UNARY_NOT test truth themselves.  On 3.13 their operand must already
  be an exact bool (decoded code has a TO_BOOL in front where needed); on 3.11 and 3.12 any object.
* FOR_ITER jumps with the iterator popped: there is no END_FOR.  SEND jumps with receiver and result
  on the stack, to an END_SEND (made up for 3.11, which has none).
* SEND, YIELD_VALUE, RESUME, JUMP_NO_INTERRUPT and END_SEND of one ``yield from`` or ``await`` stay
  side by side: CPython's generator objects look for the neighbours of the one they stopped at.
* What raises goes to ``Instruction.handler``; ``raises=False`` marks the operations that never do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# Operand kinds: what ``Instruction.arg`` holds.
NONE = "none"  #: nothing, arg is None
INT = "int"  #: a number
CONST = "const"  #: any object, kept by identity
NAME = "name"  #: attribute, global or builtin name
FAST = "fast"  #: name of a local variable
DEREF = "deref"  #: name of a cell or free variable
JUMP = "jump"  #: nothing; the instruction has a target
OPERATOR = "operator"  #: one of OPERATORS
COMPARISON = "comparison"  #: one of COMPARISONS
FLAG = "flag"  #: a bool
INTRINSIC_1 = "intrinsic_1"  #: name of an intrinsic function, without the INTRINSIC_ prefix
INTRINSIC_2 = "intrinsic_2"  #: the same, of two arguments
CONVERSION = "conversion"  #: "str", "repr" or "ascii"
AROUND = "around"  #: (items before, items after) of a starred target
CALL = "call"  #: CallArg
SUPER = "super"  #: (name, is_method, has_two_args)
ATTRIBUTES = "attributes"  #: tuple out of FUNCTION_ATTRIBUTES, in that order
ATTRIBUTE = "attribute"  #: one of FUNCTION_ATTRIBUTES

#: BINARY_OP operands, in CPython's numbering.
_BINARY = ("+", "&", "//", "<<", "@", "*", "%", "|", "**", ">>", "-", "/", "^")
OPERATORS = _BINARY + tuple(op + "=" for op in _BINARY)
#: COMPARE_OP operands, in CPython's numbering.
COMPARISONS = ("<", "<=", "==", "!=", ">", ">=")
#: What can be attached to a function when it is made; bit i of CPython's flags is entry i.
FUNCTION_ATTRIBUTES = ("defaults", "kwdefaults", "annotations", "closure")
#: CONVERT_VALUE operands; CPython numbers them from 1.
CONVERSIONS = ("str", "repr", "ascii")

Count = int | Callable[[Any], int]


@dataclass(frozen=True, slots=True)
class Op:
    """A row of the table: see the module's docstring."""

    name: str
    operand: str
    stack: str
    doc: str
    pops: Count
    pushes: Count
    jump: tuple[int, int] | None  #: (pops, pushes) when the jump is taken; None: does not jump
    ends: bool  #: control never reaches the next instruction in layout order
    raises: bool

    def io(
        self,
        arg: Any,
        jump: bool = False,
    ) -> tuple[int, int]:
        """(items popped, items pushed) for this operand."""
        if jump:
            if self.jump is None:
                raise ValueError(f"{self.name} does not jump")
            return self.jump
        pops, pushes = self.pops, self.pushes
        return (
            pops if isinstance(pops, int) else pops(arg),
            pushes if isinstance(pushes, int) else pushes(arg),
        )


#: All canonical operations by name.
OPS: dict[str, Op] = {}


def _count(items: str) -> int:
    return len([item for item in items.split(",") if item.strip()])


def _op(
    name: str,
    operand: str,
    stack: str,
    doc: str,
    *,
    pops: Count | None = None,
    pushes: Count | None = None,
    jump: str | None = None,
    ends: bool = False,
    raises: bool = True,
) -> None:
    assert name not in OPS, name
    before, after = stack.split("--")
    assert ("[" in before) == (pops is not None), name
    assert ("[" in after) == (pushes is not None), name
    taken = None
    if jump is not None:
        taken_before, taken_after = jump.split("--")
        taken = (_count(taken_before), _count(taken_after))
    OPS[name] = Op(
        name,
        operand,
        stack,
        doc,
        _count(before) if pops is None else pops,
        _count(after) if pushes is None else pushes,
        taken,
        ends,
        raises,
    )


def _n(arg: int) -> int:
    return arg


# fmt: off
# Stack and constants
_op("NOP", NONE, "--", "nothing; keeps a line of its own in traces", raises=False)
_op("POP_TOP", NONE, "value --", "drop", raises=False)
_op("PUSH_NULL", NONE, "-- NULL", "the empty slot of a call", raises=False)
_op("COPY", INT, "-- item", "push the item at depth arg again (1: the top)", raises=False)
_op("SWAP", INT, "--", "exchange the top with the item at depth arg (at least 2)", raises=False)
_op("LOAD_CONST", CONST, "-- value", "push arg", raises=False)

# Local, cell, global and class-level names
_op("LOAD_FAST", FAST, "-- value",
    "local variable; if unbound: UnboundLocalError on 3.11, undefined behaviour from 3.12 on")
_op("LOAD_FAST_CHECK", FAST, "-- value", "local variable; UnboundLocalError if it is not bound")
_op("LOAD_FAST_AND_CLEAR", FAST, "-- value_or_NULL", "push the raw slot and unbind it",
    raises=False)
_op("STORE_FAST", FAST, "value --", "bind a local; a NULL on the stack unbinds it", raises=False)
_op("DELETE_FAST", FAST, "--", "unbind a local; UnboundLocalError if it is not bound")
_op("MAKE_CELL", DEREF, "--", "slot := new cell holding what the slot held", raises=False)
_op("LOAD_CLOSURE", DEREF, "-- cell", "the cell itself", raises=False)
_op("LOAD_DEREF", DEREF, "-- value", "contents of a cell; NameError if it is empty")
_op("STORE_DEREF", DEREF, "value --", "set the contents of a cell", raises=False)
_op("DELETE_DEREF", DEREF, "--", "empty a cell; NameError if it is empty")
_op("LOAD_GLOBAL", NAME, "-- value", "f_globals, then f_builtins")
_op("STORE_GLOBAL", NAME, "value --", "f_globals[name] = value")
_op("DELETE_GLOBAL", NAME, "--", "del f_globals[name]")
_op("LOAD_NAME", NAME, "-- value", "f_locals, then globals, then builtins")
_op("STORE_NAME", NAME, "value --", "f_locals[name] = value")
_op("DELETE_NAME", NAME, "--", "del f_locals[name]")
_op("LOAD_LOCALS", NONE, "-- mapping", "f_locals of a class or module body")
_op("LOAD_FROM_DICT_OR_DEREF", DEREF, "mapping -- value", "mapping[name], else the cell's contents")
_op("LOAD_FROM_DICT_OR_GLOBALS", NAME, "mapping -- value", "mapping[name], else as LOAD_GLOBAL")
_op("LOAD_BUILD_CLASS", NONE, "-- function", "builtins.__build_class__")
_op("LOAD_ASSERTION_ERROR", NONE, "-- type", "AssertionError", raises=False)
_op("SETUP_ANNOTATIONS", NONE, "--", "make f_locals['__annotations__'] if there is none")

# Operators
_op("UNARY_NEGATIVE", NONE, "value -- result", "-value")
_op("UNARY_INVERT", NONE, "value -- result", "~value")
_op("UNARY_NOT", NONE, "value -- bool", "not value (3.13: of an exact bool)")
_op("TO_BOOL", NONE, "value -- bool", "bool(value)")
_op("BINARY_OP", OPERATOR, "left, right -- result", "left arg right; the in-place form ends in =")
_op("COMPARE_OP", COMPARISON, "left, right -- result", "rich comparison; any object may come out")
_op("IS_OP", FLAG, "left, right -- bool", "left is right; arg: is not", raises=False)
_op("CONTAINS_OP", FLAG, "item, container -- bool", "item in container; arg: not in")
_op("BINARY_SUBSCR", NONE, "container, key -- value", "container[key]")
_op("STORE_SUBSCR", NONE, "value, container, key --", "container[key] = value")
_op("DELETE_SUBSCR", NONE, "container, key --", "del container[key]")
_op("BUILD_SLICE", INT, "parts[arg] -- slice", "slice(start, stop[, step]), arg 2 or 3", pops=_n)

# Attributes
_op("LOAD_ATTR", NAME, "owner -- value", "getattr")
_op("LOAD_METHOD", NAME, "owner -- slot, slot",
    "getattr for a call: `function, owner` for a plain method, else the value and a NULL")
_op("LOAD_SUPER_ATTR", SUPER, "super, class, self -- slots[1 or 2]",
    "super(class, self).name, or super().name without has_two_args; is_method: as LOAD_METHOD",
    pushes=lambda arg: 2 if arg[1] else 1)
_op("STORE_ATTR", NAME, "value, owner --", "setattr")
_op("DELETE_ATTR", NAME, "owner --", "delattr")

# Calls and functions
_op("CALL", CALL, "slot, slot, args[nargs] -- result",
    "call; the last arguments are keywords named by kwnames", pops=lambda arg: arg.nargs + 2)
_op("CALL_KW", INT, "slot, slot, args[arg], names -- result",
    "3.13 only, when the keyword names are not a constant next to the call", pops=lambda n: n + 3)
_op("CALL_FUNCTION_EX", FLAG, "slot, slot, args, kwargs[0 or 1] -- result",
    "callable(*args, **kwargs); slots as for a plain function; arg: has kwargs",
    pops=lambda arg: 4 if arg else 3)
_op("MAKE_FUNCTION", ATTRIBUTES, "attributes[len(arg)], code -- function",
    "function of a code object; arg names the attributes, the first one is deepest",
    pops=lambda arg: len(arg) + 1)
_op("SET_FUNCTION_ATTRIBUTE", ATTRIBUTE, "value, function -- function",
    "3.13 only, where it does not follow a MAKE_FUNCTION")
_op("CALL_INTRINSIC_1", INTRINSIC_1, "value -- result",
    "PRINT, IMPORT_STAR, STOPITERATION_ERROR, ASYNC_GEN_WRAP, UNARY_POSITIVE, LIST_TO_TUPLE, ...")
_op("CALL_INTRINSIC_2", INTRINSIC_2, "left, right -- result", "PREP_RERAISE_STAR, TYPEVAR_...")

# Containers and strings
_op("BUILD_TUPLE", INT, "items[arg] -- tuple", "tuple display", pops=_n)
_op("BUILD_LIST", INT, "items[arg] -- list", "list display", pops=_n)
_op("BUILD_SET", INT, "items[arg] -- set", "set display", pops=_n)
_op("BUILD_MAP", INT, "items[2*arg] -- dict", "key, value, key, value...", pops=lambda n: 2 * n)
_op("BUILD_CONST_KEY_MAP", INT, "values[arg], keys -- dict", "keys: a tuple", pops=lambda n: n + 1)
_op("BUILD_STRING", INT, "items[arg] -- str", "''.join of strings", pops=_n)
_op("LIST_APPEND", INT, "item --", "append to the list at depth arg, counted without the item")
_op("LIST_EXTEND", INT, "iterable --", "extend the list at depth arg, counted without the iterable")
_op("SET_ADD", INT, "item --", "add to the set at depth arg")
_op("SET_UPDATE", INT, "iterable --", "update the set at depth arg")
_op("MAP_ADD", INT, "key, value --", "set in the dict at depth arg")
_op("DICT_UPDATE", INT, "mapping --", "update the dict at depth arg")
_op("DICT_MERGE", INT, "mapping --", "the same for **kwargs: TypeError on a duplicate key")
_op("UNPACK_SEQUENCE", INT, "iterable -- items[arg]", "the first item ends on top", pushes=_n)
_op("UNPACK_EX", AROUND, "iterable -- items[before + 1 + after]",
    "before, *middle, after; the first item ends on top", pushes=lambda arg: arg[0] + 1 + arg[1])
_op("GET_LEN", NONE, "-- length", "len of the top item, which stays")
_op("CONVERT_VALUE", CONVERSION, "value -- str", "str, repr or ascii of the value")
_op("FORMAT_SIMPLE", NONE, "value -- str", "the value if exactly a str, else format(value, '')")
_op("FORMAT_WITH_SPEC", NONE, "value, spec -- str", "format(value, spec)")

# Iteration, generators, coroutines
_op("GET_ITER", NONE, "iterable -- iterator", "iter()")
_op("FOR_ITER", JUMP, "-- item", "next item of the iterator on top; exhausted: pops it and jumps",
    jump="iterator --")
_op("GET_YIELD_FROM_ITER", NONE, "iterable -- iterator", "iter(), but a generator is kept as it is")
_op("SEND", JUMP, "value -- yielded",
    "send the value to the receiver below it; when that returns, jumps with the result on top",
    jump="value -- result")
_op("END_SEND", NONE, "receiver, value -- value", "drop the receiver", raises=False)
_op("CLEANUP_THROW", NONE, "receiver, sent, exception -- None, value",
    "StopIteration: its value; else raised again")
_op("YIELD_VALUE", INT, "value -- sent", "yield; arg is the version's own (None on 3.11)")
_op("RETURN_GENERATOR", NONE, "-- sent", "return a generator for this frame; resumed with None")
_op("GET_AITER", NONE, "iterable -- aiter", "type(x).__aiter__(x)")
_op("GET_ANEXT", NONE, "-- awaitable", "__anext__() of the top item, which stays")
_op("GET_AWAITABLE", INT, "value -- iterator", "for `await`; arg 1, 2: after __aenter__, __aexit__")
_op("END_ASYNC_FOR", NONE, "aiter, exception --", "StopAsyncIteration: drop; else raised again")

# Control
_op("JUMP", JUMP, "--", "jump; a backward one checks for signals", jump="--", ends=True)
_op("JUMP_NO_INTERRUPT", JUMP, "--", "jump without that check", jump="--", ends=True, raises=False)
_op("POP_JUMP_IF_TRUE", JUMP, "value --", "jump if true", jump="value --")
_op("POP_JUMP_IF_FALSE", JUMP, "value --", "jump if false", jump="value --")
_op("POP_JUMP_IF_NONE", JUMP, "value --", "jump if None", jump="value --")
_op("POP_JUMP_IF_NOT_NONE", JUMP, "value --", "jump if not None", jump="value --")
_op("JUMP_IF_TRUE_OR_POP", JUMP, "value --", "if true jump and keep the value", jump="--")
_op("JUMP_IF_FALSE_OR_POP", JUMP, "value --", "if false jump and keep the value", jump="--")
_op("RETURN_VALUE", NONE, "value --", "return", ends=True, raises=False)

# Exceptions, with
_op("RAISE_VARARGS", INT, "parts[arg] --", "raise, raise exc, raise exc from cause", pops=_n,
    ends=True)
_op("RERAISE", INT, "exception --", "raise again; arg > 0: lasti from the item at depth arg below",
    ends=True)
_op("PUSH_EXC_INFO", NONE, "exception -- previous, exception", "becomes the handled exception",
    raises=False)
_op("POP_EXCEPT", NONE, "previous --", "the handled exception is previous again", raises=False)
_op("CHECK_EXC_MATCH", NONE, "exception, type -- exception, bool", "as `except type` does")
_op("CHECK_EG_MATCH", NONE, "exception, type -- rest, matched", "as `except* type` does")
_op("BEFORE_WITH", NONE, "manager -- exit, result", "bound __exit__ and the result of __enter__()")
_op("BEFORE_ASYNC_WITH", NONE, "manager -- exit, awaitable", "the same for `async with`")
_op("WITH_EXCEPT_START", NONE, "-- result",
    "exit(type, exc, traceback) for `exit, lasti, previous, exception` on the stack, which stay")

# Pattern matching
_op("MATCH_MAPPING", NONE, "-- bool", "whether the top item, which stays, is a mapping")
_op("MATCH_SEQUENCE", NONE, "-- bool", "whether the top item, which stays, is a sequence")
_op("MATCH_KEYS", NONE, "-- values_or_None", "of `subject, keys` on the stack, which stay")
_op("MATCH_CLASS", INT, "subject, type, names -- values_or_None", "arg: positional patterns")

# Imports
_op("IMPORT_NAME", NAME, "level, fromlist -- module", "__import__")
_op("IMPORT_FROM", NAME, "-- value", "attribute of the module on top, which stays")

# Prologue
_op("COPY_FREE_VARS", INT, "--", "closure cells of the function into the free variables' slots",
    raises=False)
_op("RESUME", INT, "--", "frame starts or goes on; signals and tracing; arg is the version's own")
# fmt: on


def effect(
    opname: str,
    arg: Any = None,
    jump: bool = False,
) -> int:
    """Change of the stack's height."""
    pops, pushes = OPS[opname].io(arg, jump)
    return pushes - pops
