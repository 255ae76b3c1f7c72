"""Fills docs/walkthrough.md with what the compiler prints of examples/walkthrough.py.

python tools/walkthrough_page.py [--check]     # --check: exit status 1 if it shows something else

The prose is written by hand; behind each line `<!-- stage -->` the fenced block is the output of
that stage. Bytecode is that of CPython 3.11: on others those blocks stay as they are.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "walkthrough.md"
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]

import walkthrough  # noqa: E402

import minidynamo  # noqa: E402
from minidynamo import config, events  # noqa: E402

BLOCK = re.compile(r"(<!-- (\S+) -->\n```\w*\n)(.*?)(```\n)", re.DOTALL)
BYTECODE = ("bytecode", "new_bytecode")


def view(name: str) -> tuple[type[events.Event], Callable[[Any], str]]:
    """The event that a log shows, and how."""
    return events.VIEWS[name]


def tidy(text: str) -> str:
    """Without what differs from run to run: folders, addresses, names that are digests."""
    text = re.sub(r"[^\s\"'(]*/walkthrough\.py", "walkthrough.py", text)
    text = re.sub(r"0x[0-9a-f]{12}\b", "0x...", text)
    text = re.sub(r"\bk_[0-9a-f]{16}\b", "k_spread", text)
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines())


def halves(event: events.BytecodeEvent) -> tuple[str, str]:
    """The bytecode of the program and the new one, up to where errors of the graph are handled."""
    original, modified = view("bytecode")[1](event).split("\nmodified bytecode", 1)
    kept = modified.split("PUSH_EXC_INFO")[0].rstrip().splitlines()
    return original, "modified bytecode" + "\n".join(kept[:-1] if ">>" in kept[-1] else kept)


def stages() -> dict[str, str]:
    """Name of each stage -> what the compiler prints there in the first call that reaches it."""
    seen: list[Any] = []
    minidynamo.reset()
    with (
        tempfile.TemporaryDirectory() as folder,
        config.patch(cache_dir=folder),
        events.subscribe(seen.append),
    ):
        walkthrough.main()
    first = {}
    for event in seen:
        first.setdefault(type(event), event)
    texts = {e.name: e.text for e in reversed(seen) if isinstance(e, events.StageEvent)}
    original, modified = halves(first[events.BytecodeEvent])

    def shown(name: str) -> str:
        kind, render = view(name)
        return render(first[kind])

    found = {
        "bytecode": original,
        "graph": shown("graph_code"),
        "guards": shown("guards"),
        "aten": shown("aot_graphs"),
        "loops": texts["inference_loops.txt"],
        "fusion": shown("fusion"),
        "schedule": shown("schedule"),
        "kernels": texts["inference_kernels.txt"],
        "cpp": shown("kernel_code").partition("\n")[2],
        "plan": shown("output_code").split("\n\n//")[0].partition("\n")[2],
        "new_bytecode": modified,
        "recompile": shown("recompiles"),
    }
    return {name: tidy(text) + "\n" for name, text in found.items()}


def page(text: str) -> str:
    """The page `text` with the blocks of this run."""
    found = stages()
    if sys.version_info[:2] != (3, 11):
        found = {name: part for name, part in found.items() if name not in BYTECODE}
    return BLOCK.sub(lambda m: m[1] + found.get(m[2], m[3]) + m[4], text)


def main() -> int:
    """Fill or check the page."""
    text = PAGE.read_text()
    filled = page(text)
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(filled)
    return int("--check" in sys.argv[1:] and filled != text)


if __name__ == "__main__":
    sys.exit(main())
