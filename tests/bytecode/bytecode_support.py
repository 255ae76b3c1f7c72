"""Code objects taken apart and put together again, and other material for the tests beside."""

import random
import types

from minidynamo.bytecode import (
    OPS,
    Instruction,
    assemble,
    blocks,
    copy_instructions,
    decode,
    index_of,
)

#: Pairs that stay together: what CPython's generator objects expect to find side by side, and
#: the two parts of an instruction of 3.11's class bodies.
_TIED = {
    ("SEND", "YIELD_VALUE"),
    ("YIELD_VALUE", "RESUME"),
    ("RESUME", "JUMP_NO_INTERRUPT"),
    ("JUMP_NO_INTERRUPT", "END_SEND"),
    ("LOAD_LOCALS", "LOAD_FROM_DICT_OR_DEREF"),
}


def codes_in(code):
    """The code object and those nested in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes_in(constant)


def rebuild(code, transform=copy_instructions):
    """The code object, nested ones included, decoded, transformed and assembled."""
    constants = tuple(
        rebuild(c, transform) if isinstance(c, types.CodeType) else c for c in code.co_consts
    )
    code = code.replace(co_consts=constants)
    return assemble(transform(decode(code)), code)


def rebuild_function(function, transform=copy_instructions):
    new = types.FunctionType(
        rebuild(function.__code__, transform),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    new.__kwdefaults__ = function.__kwdefaults__
    return new


def shuffler(seed):
    """A transform that puts pieces of the code into another order, tied together by jumps."""
    rng = random.Random(seed)

    def shuffle(instructions):
        insts = copy_instructions(instructions)
        first = next(i for i, inst in enumerate(insts) if inst.opname == "RESUME") + 1
        cuts = {part.start for part in blocks(insts)}
        cuts.update(rng.randrange(len(insts)) for _ in range(len(insts) // 8))
        allowed = [
            cut
            for cut in sorted(cuts)
            if cut >= first and (insts[cut - 1].opname, insts[cut].opname) not in _TIED
        ]
        bounds = [0, *allowed, len(insts)]
        parts = [insts[a:b] for a, b in zip(bounds, bounds[1:]) if a < b]
        following = {part[-1]: after[0] for part, after in zip(parts, parts[1:])}
        head, *rest = parts
        rng.shuffle(rest)
        out = []
        for part in (head, *rest):
            last = part[-1]
            out += part
            if not OPS[last.opname].ends:
                jump = rng.choice(("JUMP", "JUMP_NO_INTERRUPT"))
                target = following[last]
                out.append(Instruction(jump, None, target, last.positions, last.handler))
        return out

    return shuffle


def comparable(instructions):
    """The listing as values that are equal if two listings mean the same."""
    index = index_of(instructions)
    rows = []
    for inst in instructions:
        handler = inst.handler
        rows.append(
            (
                inst.opname,
                id(inst.arg) if inst.opname == "LOAD_CONST" else inst.arg,
                None if inst.target is None else index[inst.target],
                inst.positions,
                None
                if handler is None
                else (index[handler.target], handler.depth, handler.lasti),
            )
        )
    return rows
