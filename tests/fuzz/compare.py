"""What a program left behind, as plain data that two runs can be compared by.

`snapshot` walks objects of any shape. An object met again is a reference to its first place, so two
snapshots are equal only if the same objects are shared.
"""

from __future__ import annotations

import collections
import itertools
import re
import types
from typing import Any

import torch

ATOMS = (int, float, complex, str, bytes, bool, type(None), type(...), range, slice)
MOST_ITEMS = 50
ADDRESS = re.compile("0x[0-9a-f]{8,}")  # in a repr: of another object in the other run


class Snapshot:
    """`take(value)` gives plain data; one instance a run, so that sharing is seen."""

    def __init__(self) -> None:
        self.seen: dict[int, tuple[int, Any]] = {}

    def take(self, value: Any) -> Any:
        if isinstance(value, ATOMS):
            return type(value).__name__, ADDRESS.sub("0x", repr(value))
        if isinstance(value, (type, types.ModuleType, types.BuiltinFunctionType)):
            return "named", getattr(value, "__qualname__", value.__name__)
        if isinstance(value, torch.Tensor):
            return self.reference(value) or self.tensor(value)
        if isinstance(value, tuple):
            return type(value).__name__, [self.take(item) for item in value]
        known = self.reference(value)
        name = "NameError" if isinstance(value, NameError) else type(value).__qualname__
        return known or (name, self.parts(value))

    def reference(self, value: Any) -> Any:
        found = self.seen.get(id(value))
        if found is not None:
            return "seen", found[0]
        self.seen[id(value)] = (len(self.seen), value)
        return None

    def tensor(self, value: torch.Tensor) -> Any:
        return "tensor", value.dtype, tuple(value.shape), repr(value.detach().tolist())

    def parts(self, value: Any) -> Any:
        if isinstance(value, NameError) and str(value).startswith("cannot access"):
            return "unbound"  # see runner.call
        if isinstance(value, BaseException):
            return self.exception(value)
        items: Any = []
        if isinstance(value, (list, collections.deque)):
            items = [self.take(item) for item in value]
        elif isinstance(value, dict):
            items = [(self.take(key), self.take(item)) for key, item in value.items()]
        elif isinstance(value, (set, frozenset)):
            items = [self.take(item) for item in value]
        elif isinstance(value, types.FunctionType):
            return self.function(value)
        elif isinstance(value, types.MethodType):
            return [self.take(value.__func__), self.take(value.__self__)]
        elif hasattr(type(value), "__next__"):
            return self.iterator(value)
        return [items, self.take(getattr(value, "__dict__", None))]

    def exception(self, error: BaseException) -> Any:
        links = [error.__cause__, error.__context__, error.__suppress_context__]
        return [
            self.take(error.args),
            [self.take(link) for link in links],
            self.take(vars(error)),
        ]

    def function(self, function: types.FunctionType) -> Any:
        cells = []
        for cell in function.__closure__ or ():
            known = self.reference(cell)
            try:
                cells.append(known or self.take(cell.cell_contents))
            except ValueError:
                cells.append("empty")
        parts = [function.__defaults__, function.__kwdefaults__, vars(function)]
        return [function.__qualname__, cells, [self.take(part) for part in parts]]

    def iterator(self, iterator: Any) -> Any:
        """What is left in it, at most so many items; an error that it ends with."""
        try:
            return [self.take(item) for item in itertools.islice(iterator, MOST_ITEMS)]
        except Exception as error:
            return ["raised", self.take(error)]
