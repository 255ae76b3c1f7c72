"""Rebuilt code does what the original does: results, exceptions, lines of tracebacks, logs."""

import contextlib
import importlib.util
import sys
import types

import bytecode_samples
import pytest
from bytecode_samples import CASES, outcome
from bytecode_support import rebuild, rebuild_function, shuffler

from minidynamo.bytecode import copy_instructions


@pytest.fixture(autouse=True)
def original_samples():
    """Sample functions find each other in the module: restore what a test replaced."""
    before = dict(vars(bytecode_samples))
    yield
    vars(bytecode_samples).update(before)


@pytest.mark.parametrize("function, arguments", CASES, ids=lambda x: getattr(x, "__name__", ""))
def test_functions(function, arguments):
    rebuilt = rebuild_function(function)
    for args in arguments:
        assert outcome(rebuilt, args) == outcome(function, args)


@pytest.mark.parametrize("seed", range(6))
def test_whole_module_in_another_order(seed):
    """Every function of the module, helpers included, with its pieces shuffled."""
    expected = [
        [outcome(function, args) for args in arguments] for function, arguments in CASES
    ]
    transform = shuffler(seed)
    for value in list(vars(bytecode_samples).values()):
        if isinstance(value, types.FunctionType) and value.__module__ == "bytecode_samples":
            if value.__name__ not in ("outcome", "describe"):
                value.__code__ = rebuild(value.__code__, transform)
    try:
        for (function, arguments), results in zip(CASES, expected):
            assert [outcome(function, args) for args in arguments] == results
    finally:
        for function, code in ORIGINAL.items():
            function.__code__ = code


ORIGINAL = {
    value: value.__code__
    for value in vars(bytecode_samples).values()
    if isinstance(value, types.FunctionType) and value.__module__ == "bytecode_samples"
}


def rebuilt_module(name, transform):
    """A second instance of a standard library module, all of its code rebuilt."""
    spec = importlib.util.find_spec(name)
    module = types.ModuleType(name)
    module.__spec__, module.__file__ = spec, spec.origin
    module.__package__ = spec.parent
    if spec.submodule_search_locations is not None:
        module.__path__ = spec.submodule_search_locations
    with registered(name, module):
        exec(rebuild(spec.loader.get_code(name), transform), vars(module))
    return module


@contextlib.contextmanager
def registered(name, module):
    before = sys.modules.get(name)
    sys.modules[name] = module
    try:
        yield
    finally:
        if before is None:
            del sys.modules[name]
        else:
            sys.modules[name] = before


@pytest.mark.parametrize(
    "transform", [copy_instructions, shuffler(1)], ids=["plain", "shuffled"]
)
class TestModules:
    def test_textwrap(self, transform):
        import textwrap

        mine = rebuilt_module("textwrap", transform)
        text = "  ".join(textwrap.__doc__.split() * 20)
        for width in (5, 20, 70):
            assert mine.wrap(text, width) == textwrap.wrap(text, width)
        assert mine.dedent("  a\n   b\n") == "a\n b\n"

    def test_json(self, transform):
        import json

        decoder = rebuilt_module("json.decoder", transform)
        encoder = rebuilt_module("json.encoder", transform)
        data = {"a": [1, 2.5, None, True, {"é": "\n"}], "b": {}}
        text = json.dumps(data, indent=2)
        assert encoder.JSONEncoder(indent=2).encode(data) == text
        assert decoder.JSONDecoder().decode(text) == data
        with pytest.raises(decoder.JSONDecodeError, match="line 1 column 3"):
            decoder.JSONDecoder().decode("{}}")

    def test_difflib(self, transform):
        import difflib

        mine = rebuilt_module("difflib", transform)
        a, b = "private Thread currentThread;", "private volatile Thread currentThread;"
        expected = difflib.SequenceMatcher(None, a, b).get_opcodes()
        assert mine.SequenceMatcher(None, a, b).get_opcodes() == expected
        lines = [list("abcdefg"), list("abxdeyg")]
        assert list(mine.ndiff(*lines)) == list(difflib.ndiff(*lines))

    def test_argparse(self, transform):
        mine = rebuilt_module("argparse", transform)
        parser = mine.ArgumentParser(prog="p", exit_on_error=False)
        parser.add_argument("--n", type=int, default=3)
        parser.add_argument("files", nargs="*")
        assert vars(parser.parse_args(["--n", "5", "a", "b"])) == {"n": 5, "files": ["a", "b"]}
        with pytest.raises(mine.ArgumentError, match="invalid int"):
            parser.parse_args(["--n", "x"])

    def test_ast_unparse(self, transform):
        import ast

        name = "_ast_unparse" if importlib.util.find_spec("_ast_unparse") else "ast"
        mine = rebuilt_module(name, transform)
        with open(bytecode_samples.__file__) as file:
            tree = ast.parse(file.read())
        assert mine.unparse(tree) == ast.unparse(tree)

    def test_asyncio_queues(self, transform):
        import asyncio

        mine = rebuilt_module("asyncio.queues", transform)

        async def main():
            queue = mine.Queue(maxsize=2)

            async def produce():
                for i in range(10):
                    await queue.put(i)

            task = asyncio.create_task(produce())
            found = [await queue.get() for _ in range(10)]
            await task
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(queue.get(), 0.01)
            return found

        assert asyncio.run(main()) == list(range(10))
