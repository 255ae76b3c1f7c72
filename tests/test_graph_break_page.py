"""The page of graph breaks is generated from the code, and messages follow its pattern."""

import subprocess
import sys
from pathlib import Path

import torch

import minidynamo

ROOT = Path(__file__).resolve().parent.parent


def test_page_is_up_to_date():
    command = [sys.executable, str(ROOT / "tools" / "graph_break_page.py"), "--check"]
    done = subprocess.run(command, check=False)
    assert done.returncode == 0, "run: python tools/graph_break_page.py"


def test_page_has_the_kinds_that_users_meet():
    page = (ROOT / "docs" / "graph_breaks.md").read_text()
    for kind in (
        "disabled function",
        "graph_break()",
        "opcode",
        "branch",
        "unknown kind of object",
    ):
        assert f"| {kind} |" in page


def test_message_follows_the_pattern():
    def inner(a):
        minidynamo.graph_break()
        return a

    def f(a):
        return inner(a + 1)

    try:
        minidynamo.compile(f, backend="eager", fullgraph=True)(torch.ones(2))
    except minidynamo.exc.Unsupported as error:
        text = str(error)
        parts = [error.kind, "Explanation:", "Hint:", "from user code:", "in f", "in inner"]
        positions = [text.index(part) for part in parts]
        assert positions == sorted(positions)
    else:
        raise AssertionError("fullgraph has to refuse the break")
