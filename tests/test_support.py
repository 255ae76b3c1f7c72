"""python -m minidynamo: a line for each thing that is needed."""

import os
import subprocess
import sys

import pytest

import minidynamo
from minidynamo import support


def run(folder, **environment):
    env = {**os.environ, "MINIDYNAMO_CACHE_DIR": str(folder), **environment}
    command = [sys.executable, "-m", "minidynamo"]
    return subprocess.run(command, env=env, capture_output=True, text=True)


def test_the_report(tmp_path):
    out = run(tmp_path / "cache")
    lines = out.stdout.splitlines()
    assert [line[:14].rstrip() for line in lines] == list(support.CHECKS)
    assert out.returncode == 0 and all(line[14:].startswith("ok ") for line in lines), (
        out.stdout
    )
    assert f"MINIDYNAMO_CACHE_DIR={tmp_path}" in out.stdout and "as in eager" in lines[-1]


def test_what_is_missing_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    out = run(tmp_path / "file" / "cache", CXX="/no/such/compiler")
    failed = [line for line in out.stdout.splitlines() if line[14:].startswith("FAILED")]
    assert out.returncode == 1
    assert [line[:14].rstrip() for line in failed] == [
        "C++ compiler",
        "disk cache",
        "compiled call",
    ]
    assert "it is set to '/no/such/compiler', which is no command" in failed[0]
    assert "set MINIDYNAMO_CACHE_DIR" in failed[1] and "NoCompiler" in failed[2]


def test_misspelt_variables(monkeypatch):
    monkeypatch.setenv("MINIDYNAMO_RECOMPILES_LIMIT", "3")
    with pytest.raises(RuntimeError, match="did you mean 'MINIDYNAMO_RECOMPILE_LIMIT'"):
        support.CHECKS["environment"]()
    monkeypatch.delenv("MINIDYNAMO_RECOMPILES_LIMIT")
    monkeypatch.setenv("MINIDYNAMO_CACHE_SIZE_LIMIT", "3")
    assert "MINIDYNAMO_CACHE_SIZE_LIMIT=3" in support.CHECKS["environment"]()


@pytest.mark.parametrize(
    "variable, message",
    [
        ("MINIDYNAMO_LOGS=gards", "variable MINIDYNAMO_LOGS='gards': unknown log 'gards'; did"),
        ("MINIDYNAMO_VERBOSE=2", "MINIDYNAMO_VERBOSE='2' is not one of 1, true, yes, on, 0,"),
    ],
)
def test_wrong_variables(variable, message):
    name, _, value = variable.partition("=")
    command = [sys.executable, "-c", "import minidynamo"]
    env = {**os.environ, name: value}
    out = subprocess.run(command, env=env, capture_output=True, text=True)
    assert out.returncode == 1 and message in out.stderr.splitlines()[-1]


def test_support(monkeypatch):
    assert minidynamo.is_dynamo_supported() and minidynamo.is_inductor_supported()
    monkeypatch.setenv("CXX", "/no/such/compiler")
    assert not minidynamo.is_inductor_supported()
