"""The size that files, functions and lines may have (Python and C)."""

import ast
import io
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "minidynamo"
PYTHON = sorted(PACKAGE.rglob("*.py"))
NATIVE = sorted(
    path for path in (PACKAGE / "csrc").iterdir() if path.suffix in (".c", ".cpp", ".h")
)

FILE_LINES = 600
FUNCTION_LINES = 60
TOKENS_PER_LINE = 9.0

LAYOUT = {
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
    tokenize.INDENT,
    tokenize.NEWLINE,
    tokenize.NL,
}


def label(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


@pytest.mark.parametrize("path", [*PYTHON, *NATIVE], ids=label)
def test_files_are_short(path):
    assert len(path.read_text().splitlines()) < FILE_LINES


@pytest.mark.parametrize("path", PYTHON, ids=label)
def test_functions_are_short(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            length = node.end_lineno - node.lineno + 1
            assert length < FUNCTION_LINES, (
                f"{path}:{node.lineno}: {node.name} has {length} lines"
            )


def native_functions(text: str):
    """(first line number, length) of each block that starts and ends in the first column."""
    start = None
    for number, line in enumerate(text.splitlines(), 1):
        if (
            start is None
            and line.rstrip().endswith("{")
            and line[:1] not in ("", " ", "#", "}", "/")
        ):
            start = number
        elif start is not None and line.startswith("}"):
            yield start, number - start + 1
            start = None


@pytest.mark.parametrize("path", NATIVE, ids=label)
def test_native_functions_are_short(path):
    lines = path.read_text().splitlines()
    for start, length in native_functions(path.read_text()):
        head = lines[start - 1]
        is_function = "(" in head or ")" in head
        assert not is_function or length < FUNCTION_LINES, (
            f"{path}:{start}: {length} lines: {head}"
        )


def ladder_arms(node: ast.If) -> int:
    arms = 1
    while len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If):
        node = node.orelse[0]
        arms += 1
    return arms


@pytest.mark.parametrize("path", PYTHON, ids=label)
def test_ladders_are_tables(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.If):
            assert ladder_arms(node) <= 6, f"{path}:{node.lineno}: more than 6 arms"


def code_tokens(source: str):
    """Tokens but layout, comments and docstrings; an f-string is one, on every Python."""
    inside = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        name = tokenize.tok_name[token.type]
        inside -= name == "FSTRING_END"
        docstring = token.type == tokenize.STRING and token.line.lstrip()[:3] in ('"""', "'''")
        if token.type not in LAYOUT and not docstring and not inside and name != "FSTRING_END":
            yield token
        inside += name == "FSTRING_START"


def test_lines_are_not_dense():
    """Tokens a line of code, over the package."""
    tokens = lines = 0
    for path in PYTHON:
        rows = set()
        for token in code_tokens(path.read_text()):
            tokens += 1
            rows.update(range(token.start[0], token.end[0] + 1))
        lines += len(rows)
    assert tokens <= TOKENS_PER_LINE * lines, f"{tokens / lines:.2f} tokens a line"
