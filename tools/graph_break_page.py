"""Writes docs/graph_breaks.md: the kinds of graph breaks, read from the places that raise them.

python tools/graph_break_page.py [--check]     # --check: exit status 1 if the page has other kinds
"""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "graph_breaks.md"
RAISERS = {"unsupported", "Unsupported", "DataDependentError"}
HEAD = """# Graph breaks

Each kind of graph break (or, with `fullgraph=True`, of `Unsupported`) has a stable name. A message
says, in this order: the kind, why it cannot be captured, what may be done about it, what it was
about here, and the user's stack. This page is generated from the code by
`python tools/graph_break_page.py`; `...` stands for what depends on the program. What is raised
with a computed kind (an entry of a table, say) is not listed.

| kind | explanations | hints | raised in |
| --- | --- | --- | --- |
"""


@dataclass
class Kind:
    """A row of the page."""

    explanations: set[str] = field(default_factory=set)
    hints: set[str] = field(default_factory=set)
    modules: set[str] = field(default_factory=set)


def text_of(node: ast.expr | None) -> str:
    """A string of the source, with ... for what is computed; "" for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) or "..." for part in node.values)
    return ""


def arguments_of(call: ast.Call) -> dict[str, ast.expr]:
    """The arguments of a call of one of RAISERS, by name."""
    names = ("kind", "context", "explanation", "hints")
    found = dict(zip(names, call.args, strict=False))
    found.update({k.arg: k.value for k in call.keywords if k.arg is not None})
    return found


def kinds() -> dict[str, Kind]:
    """All kinds that the package raises with a literal name."""
    found: dict[str, Kind] = {}
    for path in sorted((ROOT / "minidynamo").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            if node.func.id not in RAISERS:
                continue
            given = arguments_of(node)
            name = text_of(given.get("kind"))
            if not name or "..." in name:
                continue
            row = found.setdefault(name, Kind())
            row.modules.add(str(path.relative_to(ROOT / "minidynamo")))
            row.explanations.add(text_of(given.get("explanation")))
            hints = given.get("hints")
            if isinstance(hints, (ast.List, ast.Tuple)):
                row.hints.update(map(text_of, hints.elts))
    return found


def cell(texts: set[str]) -> str:
    """Texts as one cell of a table."""
    return "; ".join(sorted(text for text in texts if text)).replace("|", "\\|")


def page() -> str:
    """The text of the page."""
    rows = [
        f"| {name} | {cell(row.explanations)} | {cell(row.hints)} | {cell(row.modules)} |\n"
        for name, row in sorted(kinds().items())
    ]
    return HEAD + "".join(rows)


def main() -> int:
    """Write or check the page."""
    if "--check" in sys.argv[1:]:
        lines = PAGE.read_text().splitlines() if PAGE.exists() else []
        listed = {line[2:].partition(" |")[0] for line in lines if line.startswith("| ")}
        return int(listed - {"kind", "---"} != set(kinds()))
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
