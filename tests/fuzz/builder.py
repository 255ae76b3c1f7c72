"""From the grammar's rows to a program: fills the holes of rows, keeps track of names.

A row is a template. Its holes, filled from left to right:

    <INT>      an expression of that kind
    <INT?>     the name of a variable of that kind; a row is only taken where there is one
    <INT!>     the same, of a variable that may be assigned here
    <+INT>     the target of an assignment: from then on a variable of that kind
    <q=INT>    nothing now; the text of an expression, written wherever $q stands
    <p:=INT>   nothing now; $p is a new name that is a variable of that kind inside of this row
    <BLOCK>    one or more statements, indented
    <LOOP> <BODY> <GENERATOR>   the same as the body of a loop, a function, a generator function
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import grammar

HOLE = re.compile(r"<(?:(\w+)=(\w+)|(\w+):=(\w+)|\+(\w+)|(\w+)([?!]?))>")
BLOCKS = ("BLOCK", "LOOP", "BODY", "GENERATOR")
MAX_DEPTH = 3
# How many rows a program may have in all.
BUDGET = 60


@dataclass
class Scope:
    """The names that can be read, with their kinds, and which of them belong to this function."""

    kinds: dict[str, str]
    owned: set[str] = field(default_factory=set)
    in_loop: bool = False
    in_generator: bool = False
    in_function: bool = False

    def inner(self, **changes: bool) -> Scope:
        """A block of the same function: it may assign to the same names."""
        flags = {
            "in_loop": self.in_loop,
            "in_generator": self.in_generator,
            "in_function": self.in_function,
        }
        return Scope(dict(self.kinds), set(self.owned), **(flags | changes))

    def names(self, kind: str, *, assignable: bool = False) -> list[str]:
        return [
            name
            for name, its_kind in self.kinds.items()
            if its_kind == kind and (name in self.owned or not assignable)
        ]


class Builder:
    """`choose(n)` gives a number below n; 0 is the simplest choice. `rows`: a module of tables."""

    def __init__(self, choose: Callable[[int], int], rows: Any = grammar) -> None:
        self.choose = choose
        self.tables = rows
        self.count = 0
        self.budget = BUDGET

    def fresh(self, stem: str) -> str:
        self.count += 1
        return f"{stem.lower()}{self.count}"

    # -- rows ---------------------------------------------------------------------------------

    def expression(self, kind: str, scope: Scope, depth: int = 0) -> str:
        """The text of an expression of that kind."""
        self.budget -= 1
        names = scope.names(kind)
        deep = depth >= MAX_DEPTH or self.budget < 0
        if names and (deep or self.choose(3) == 0):
            return names[-1 - self.choose(len(names))]
        rows = (self.tables.LEAVES if deep else self.tables.EXPRESSIONS)[kind]
        return self.fill(self.pick(rows, scope), scope, depth + 1)

    def pick(self, rows: list[str], scope: Scope) -> str:
        usable = [row for row in rows if self.is_usable(row, scope)]
        return usable[self.choose(len(usable))]

    def is_usable(self, row: str, scope: Scope) -> bool:
        for match in HOLE.finditer(row):
            kind, mark = match.group(6), match.group(7)
            if mark and not scope.names(kind, assignable=mark == "!"):
                return False
        word = row.split(maxsplit=1)[0]
        if word in ("break", "continue"):
            return scope.in_loop
        return scope.in_generator or "yield" not in row or "<GENERATOR>" in row

    def fill(self, row: str, scope: Scope, depth: int) -> str:
        """The row with all holes filled. Names that it assigns are added to `scope`."""
        inner = Scope(
            dict(scope.kinds), scope.owned, scope.in_loop, scope.in_generator, scope.in_function
        )
        texts: dict[str, str] = {}
        assigned: dict[str, str] = {}
        shared: list[str] = []

        def hole(match: re.Match[str]) -> str:
            stored, its_kind, name, name_kind, target, kind, mark = match.groups()
            if stored:
                texts[stored] = self.expression(its_kind, inner, depth)
                return ""
            if name:
                texts[name] = self.fresh(name)
                inner.kinds[texts[name]] = name_kind
                return ""
            if target:
                return self.target(target, scope, assigned)
            if kind in BLOCKS:
                column = match.start() - row.rfind("\n", 0, match.start()) - 1
                lines = self.block(kind, inner, assigned, depth, shared)
                return ("\n" + " " * column).join(lines)
            if mark:
                names = inner.names(kind, assignable=mark == "!")
                name = names[-1 - self.choose(len(names))]
                if "nonlocal" in row:
                    shared.append(name)
                return name
            return self.expression(kind, inner, depth)

        filled = HOLE.sub(hole, row)
        for name, text in texts.items():
            filled = re.sub(rf"\${name}\b", text.replace("\\", r"\\"), filled)
        scope.kinds.update(assigned)
        scope.owned.update(assigned)
        return filled

    def target(self, kind: str, scope: Scope, assigned: dict[str, str]) -> str:
        known = scope.names(kind, assignable=True)
        if known and self.choose(2):
            return known[-1 - self.choose(len(known))]
        name = self.fresh(kind)
        assigned[name] = kind
        return name

    # -- statements ---------------------------------------------------------------------------

    def block(
        self, kind: str, scope: Scope, assigned: dict[str, str], depth: int, shared: list[str]
    ) -> list[str]:
        inner = scope.inner()
        inner.kinds.update(assigned)
        inner.owned |= set(assigned)
        if kind == "LOOP":
            inner.in_loop = True
        if kind in ("BODY", "GENERATOR"):
            inner.in_loop = False
            inner.in_function = True
            inner.in_generator = kind == "GENERATOR"
            inner.owned = set(shared)
        return self.statements(inner, depth + 1)

    def statements(self, scope: Scope, depth: int) -> list[str]:
        """The lines of one or more statements."""
        most = max(1, 5 - depth)
        lines: list[str] = []
        for _ in range(1 + self.choose(most)):
            lines += self.statement(scope, depth).split("\n")
        return lines

    def statement(self, scope: Scope, depth: int) -> str:
        self.budget -= 1
        rows = self.tables.STATEMENTS
        if depth >= MAX_DEPTH or self.budget < 0:
            rows = [row for row in rows if not any(f"<{block}>" in row for block in BLOCKS)]
        return self.fill(self.pick(rows, scope), scope, depth).strip("\n")
