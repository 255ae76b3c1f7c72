"""What the tests of the frame hook share. They need the extension and not torch.

MINIDYNAMO_EXTENSION names the file of another build to test: a debug build, or one with
MINIDYNAMO_HOOK_ONLY=1 for an interpreter that has no torch.
"""

import gc
import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path
from types import CodeType

PACKAGE = Path(__file__).resolve().parents[2] / "minidynamo"


def load_extension():
    path = os.environ.get("MINIDYNAMO_EXTENSION")
    if not path:
        try:
            from minidynamo import _C
        except ImportError:
            suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
            path = str(PACKAGE / f"_C{suffix}")
        else:
            return _C
    if importlib.util.find_spec("torch"):
        import torch  # noqa: F401 (loads the libraries that a full build links with)
    spec = importlib.util.spec_from_file_location("minidynamo._C", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_C = load_extension()


def marked(code: CodeType, stack: int = 0) -> CodeType:
    """The same code with the constant "orig" made "new", and `stack` more stack slots."""
    consts = tuple("new" if const == "orig" else const for const in code.co_consts)
    return code.replace(co_consts=consts, co_stacksize=code.co_stacksize + stack)


class Compiler:
    """A Region whose callback answers from a table and notes what it was asked.

    `answers` maps functions or code objects to an answer or to a function of the FrameInfo that
    gives one; for all others the answer is `default`.
    """

    def __init__(self, answers=None, default=None):
        self.answers = {
            getattr(key, "__code__", key): value for key, value in (answers or {}).items()
        }
        self.default = _C.SKIP if default is None else default
        self.asked: list[CodeType] = []
        self.region = _C.Region(self)

    def __call__(self, frame):
        self.asked.append(frame.code)
        answer = self.answers.get(frame.code, self.default)
        return answer(frame) if callable(answer) else answer

    @property
    def names(self) -> list[str]:
        return [code.co_name for code in self.asked]

    def compiled(self, fn):
        return _C.compiled_function(fn, self.region)

    def run(self, fn, *args, **kwargs):
        """Calls fn through the hook, not by direct dispatch: from a frame of its own."""
        return self.compiled(lambda: fn(*args, **kwargs))()


def replaced(fn, stack: int = 0, **options) -> Compiler:
    """A Compiler that runs the marked form of fn."""
    code = getattr(fn, "__code__", fn)
    return Compiler({code: lambda frame: _C.Entry(None, marked(code, stack), **options)})


def blocks_grown(action, warm: int = 30, rounds: int = 200) -> int:
    """How many memory blocks more there are after `rounds` of an action than before.

    The least of three counts: a leak shows in each, what the interpreter keeps once in one.
    """
    for _ in range(warm):
        action()
    counts = []
    gc.collect()
    gc.freeze()  # collections look at what is made from here on, not at all that tests have left
    try:
        for _ in range(3):
            gc.collect()
            gc.collect()
            before = sys.getallocatedblocks()
            for _ in range(rounds):
                action()
            gc.collect()
            gc.collect()  # what a code object holds is only seen when the code is gone
            counts.append(sys.getallocatedblocks() - before)
    finally:
        gc.unfreeze()
    return min(counts)
