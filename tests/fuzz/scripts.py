"""Random functions over tensors, with what makes their arguments: kinds of a grammar (search.py).

A grammar is a module of tables (see builder.py): SIGNATURE, LEAVES, EXPRESSIONS, STATEMENTS, SETUP
(what is there before the program), ARGUMENTS (for each argument, the rows to make it of; `call` is
the number of the call), RESULTS (kinds of values that the program returns) and, where float64 is
rounded otherwise than by Script's default, `rounding(text)`. The statements are
run in eager while they are chosen: most that raise are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from builder import Builder, Scope

MOST_STATEMENTS = 12
MOST_NUMEL = 20_000


@dataclass(frozen=True)
class Script:
    """Text that defines `fn` and `make(call)`, which gives arguments and tensors to look at.

    rounding: of float64, relative to the largest value, and at least to 1; 0: of no dtype.
    """

    text: str
    calls: int
    dynamic: bool | None = None
    rounding: float = 1e-9

    def __str__(self) -> str:
        return f"{self.text}# {self.calls} calls, dynamic={self.dynamic}\n"


def make_script(rows: Any, choose: Callable[[int], int]) -> Script:
    """A random script of a grammar; `choose(n)` gives a number below n."""
    setup = make_arguments(rows, choose)
    space: dict[str, Any] = {}
    exec(rows.SETUP + setup, space)
    torch.manual_seed(1)
    space.update(zip(rows.SIGNATURE, space["make"](0)[0], strict=True))
    builder = Builder(choose, rows)
    scope = Scope(dict(rows.SIGNATURE), set(rows.SIGNATURE), in_function=True)
    lines: list[str] = []
    for _ in range(2 + choose(MOST_STATEMENTS)):
        text, raises = statement(builder, scope, space)
        if not raises or (text and choose(12) == 11):
            lines += text.split("\n")
        if raises and lines and lines[-1] == text:
            break
    names = [name for name, kind in scope.kinds.items() if kind in rows.RESULTS]
    kept = names[-5:] + names[: choose(2)] + [names[-1 - choose(len(names))]]
    body = "\n    ".join([*lines, f"return [{', '.join(kept)}]"])
    text = f"{setup}\ndef fn({', '.join(rows.SIGNATURE)}):\n    {body}\n"
    dynamic = (None, True, False)[choose(3)] if rows.CALLS > 1 else None
    rounding = rows.rounding(text) if hasattr(rows, "rounding") else Script.rounding
    return Script(text, rows.CALLS, dynamic, rounding)


def make_arguments(rows: Any, choose: Callable[[int], int]) -> str:
    """The text of `make`."""
    lines = []
    for name, choices in rows.ARGUMENTS.items():
        row = choices[choose(len(choices))]
        if choose(6) == 5:
            row = f"({row}) if call != 1 else ({choices[choose(len(choices))]})"
        lines.append(f"{name} = {row}")
    body = "\n    ".join(lines)
    watched = ", ".join(name for name in rows.ARGUMENTS if name not in rows.SIGNATURE)
    return (
        f"def make(call):\n    {body}\n    return [{', '.join(rows.SIGNATURE)}], [{watched}]\n"
    )


def statement(builder: Builder, scope: Scope, space: dict[str, Any]) -> tuple[str, bool]:
    """One more statement, and whether it raises; then it leaves no names behind."""
    kinds, owned = dict(scope.kinds), set(scope.owned)
    text = builder.statement(scope, 1)
    try:
        exec(text, space)
    except Exception:
        scope.kinds, scope.owned = kinds, owned
        return text, True
    large = [
        name
        for name in scope.kinds
        if isinstance(space.get(name), torch.Tensor) and space[name].numel() > MOST_NUMEL
    ]
    if large:
        scope.kinds, scope.owned = kinds, owned
        return "", True
    return text, False
