"""Python programs of some size, with the code of every frame replaced by a copy."""

import ast
import asyncio
import collections
import contextlib
import copy
import dataclasses
import decimal
import enum
import fractions
import io
import json
import random
import re
import textwrap
import tokenize
import typing
from pathlib import Path

import pytest
from hook_support import _C, Compiler

SOURCE = Path(__file__).read_text()


def parse_and_print():
    tree = ast.parse(SOURCE)
    names = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]
    return ast.unparse(tree), collections.Counter(names).most_common(5)


def tokens():
    return [token.string for token in tokenize.generate_tokens(io.StringIO(SOURCE).readline)]


def patterns():
    re.purge()
    pattern = re.compile(r"(?P<name>[a-z_]+)\s*=\s*(?:\d+|'[^']*')|def\s+(\w+)\(.*?\)", re.X)
    return [match.groups() for match in pattern.finditer(SOURCE)]


def encode_json():
    value = {"a": [1, 2.5, None, {"b": "\u00e9\n"}], "c": list(range(20))}
    encoder = json.JSONEncoder(indent=2, sort_keys=True)
    return encoder.encode(value), json.loads(encoder.encode(value)) == value


def make_classes():
    @dataclasses.dataclass(order=True)
    class Point:
        x: int
        y: int = 2
        rest: list = dataclasses.field(default_factory=list)

    class Colour(enum.Enum):
        RED = 1
        BLUE = 2

    class Pair(typing.NamedTuple):
        left: int
        right: int = 3

    points = sorted([Point(3), Point(1, 5), Point(1)])
    return str(points), str(list(Colour)), Pair(1), str(copy.deepcopy(points))


def arithmetic():
    with decimal.localcontext(prec=40):
        root = decimal.Decimal(2).sqrt()
    total = sum(fractions.Fraction(1, n) for n in range(1, 30))
    return str(root), str(total), random.Random(3).sample(range(100), 5)


def text():
    return textwrap.fill(textwrap.dedent(SOURCE), 40).upper()


def tasks():
    async def produce(queue):
        for i in range(10):
            await queue.put(i)
            await asyncio.sleep(0)
        await queue.put(None)

    async def consume(queue):
        seen = []
        while (item := await queue.get()) is not None:
            seen.append(item)
        return seen

    async def main():
        queue = asyncio.Queue(2)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.sleep(10), 0.001)
        return await asyncio.gather(produce(queue), consume(queue))

    return asyncio.run(main())


PROGRAMS = [
    parse_and_print,
    tokens,
    patterns,
    encode_json,
    make_classes,
    arithmetic,
    text,
    tasks,
]


@pytest.mark.parametrize("needs_hook", [True, False])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_every_frame_replaced(program, needs_hook):
    expected = program()
    grow = random.Random(5)

    def answer(frame):
        if not needs_hook and grow.random() < 0.8:
            return _C.SKIP if grow.random() < 0.5 else None
        stack = frame.code.co_stacksize + grow.choice([0, 0, 3, 50])
        code = frame.code.replace(co_stacksize=stack)
        return _C.Entry(None, code, needs_hook=needs_hook)

    compiler = Compiler(default=answer)
    for _ in range(3):
        assert compiler.run(program) == expected
        assert compiler.compiled(program)() == expected
    assert len(compiler.asked) > 1 or not needs_hook
    _C.reset()
    assert program() == expected
    assert _C.active_count() == 0 and not _C.is_installed()
