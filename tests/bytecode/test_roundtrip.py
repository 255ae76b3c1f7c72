"""Decoding and assembling code of the standard library changes nothing.

A sample by default; all of it with MINIDYNAMO_TEST_ALL=1.
"""

import dis
import os
import random
import sysconfig
from pathlib import Path

import pytest
from bytecode_support import codes_in, comparable

from minidynamo.bytecode import BytecodeError, assemble, decode

LIBRARY = Path(sysconfig.get_path("stdlib"))
SAMPLE = 120
ALWAYS = ("argparse", "asyncio/tasks", "contextlib", "dataclasses", "enum", "inspect", "typing")


def files():
    found = sorted(
        path
        for path in LIBRARY.rglob("*.py")
        if not {"site-packages", "lib2to3", "test", "tests"}.intersection(path.parts)
    )
    if os.environ.get("MINIDYNAMO_TEST_ALL"):
        return sorted(LIBRARY.rglob("*.py"))
    chosen = random.Random(0).sample(found, min(SAMPLE, len(found)))
    return chosen + [LIBRARY / f"{name}.py" for name in ALWAYS]


def code_objects():
    for path in files():
        try:
            code = compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
        except (SyntaxError, ValueError):  # files that test the parser
            continue
        yield from codes_in(code)


def has_ambiguous_names(code):
    return bool(set(code.co_cellvars) & set(code.co_freevars))


def check(code):
    listing = decode(code)
    new = assemble(listing, code)
    assert comparable(decode(new)) == comparable(listing)
    for field in (
        "argcount posonlyargcount kwonlyargcount nlocals flags varnames cellvars freevars "
        "filename name qualname firstlineno"
    ).split():
        assert getattr(new, f"co_{field}") == getattr(code, f"co_{field}"), field
    assert 1 <= new.co_stacksize <= max(code.co_stacksize, 1)  # CPython counts dead code too
    assert set(map(id, new.co_consts)) <= set(map(id, code.co_consts))
    assert new.co_consts[:1] == code.co_consts[:1]
    assert set(new.co_names) <= set(code.co_names)


def height_by_dis(code):
    """The greatest stack height, by ``dis``: nothing of ours."""
    instructions = [inst for inst in dis.get_instructions(code) if inst.opname != "CACHE"]
    index = {inst.offset: i for i, inst in enumerate(instructions)}
    entries = dis.Bytecode(code).exception_entries
    work = [(0, 0)]
    work += [(index[entry.target], entry.depth + entry.lasti + 1) for entry in entries]
    seen, greatest = set(), 0
    while work:
        i, height = work.pop()
        while i not in seen:
            seen.add(i)
            inst = instructions[i]
            greatest = max(greatest, height)
            if inst.opcode in dis.hasjrel:
                effect = dis.stack_effect(inst.opcode, inst.arg, jump=True)
                work.append((index[inst.argval], height + effect))
            argument = inst.arg if inst.opcode >= dis.HAVE_ARGUMENT else None
            height += dis.stack_effect(inst.opcode, argument, jump=False)
            if inst.opname in ENDS:
                break
            i += 1
    return greatest


ENDS = {"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE", "JUMP_FORWARD"}
ENDS |= {"JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"}


def test_stack_size_suffices():
    checked = 0
    for code in codes_in(compile((LIBRARY / "argparse.py").read_bytes(), "argparse", "exec")):
        if not has_ambiguous_names(code):
            new = assemble(decode(code), code)
            assert height_by_dis(new) <= new.co_stacksize
            checked += 1
    assert checked > 100


def test_standard_library():
    checked = 0
    for code in code_objects():
        if has_ambiguous_names(code):
            with pytest.raises(BytecodeError):
                decode(code)
            continue
        try:
            check(code)
        except Exception as error:
            error.add_note(f"in {code.co_qualname}, {code.co_filename}:{code.co_firstlineno}")
            raise
        checked += 1
    assert checked > 1000
