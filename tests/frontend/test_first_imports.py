"""First imports of modules in compiled code: run while tracing where nothing before can be seen."""

from __future__ import annotations

import importlib
import random
import sys
import textwrap

import pytest
import torch
from testing import check

import minidynamo
from minidynamo.testing import CompileCounter

X = torch.arange(6.0).reshape(2, 3)
NAMES = ("md_lazy", "md_seeding", "md_reading", "md_failing")
SEEN = []


@pytest.fixture(autouse=True)
def modules(tmp_path, monkeypatch):
    """Modules that no test has loaded yet."""
    sources = {
        "md_lazy": "import torch\nFACTOR = torch.full((3,), 2.0)\nlayer = torch.nn.Linear(3, 3)",
        "md_seeding": "import random, torch\nrandom.seed(5)\ntorch.manual_seed(5)\nFACTOR = 3",
        "md_reading": f"import sys\nFACTOR = len(sys.modules[{__name__!r}].SEEN)",
        "md_failing": "raise ImportError('not today')",
    }
    for name, source in sources.items():
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(source))
    monkeypatch.syspath_prepend(tmp_path)
    SEEN.clear()
    yield
    for name in NAMES:
        sys.modules.pop(name, None)


def test_it_is_no_graph_break():
    def fn(x):
        x = x + 1
        import md_lazy

        return x * md_lazy.FACTOR

    def by_name(x):
        return x * importlib.import_module("md_lazy").FACTOR

    for function, expected in ((fn, (X + 1) * 2), (by_name, X * 2)):
        sys.modules.pop("md_lazy", None)
        counter = CompileCounter()
        compiled = minidynamo.compile(function, backend=counter, fullgraph=True)
        for _ in range(2):
            assert torch.equal(compiled(X), expected)
        assert counter.frame_count == 1
        loaded = sys.modules["md_lazy"]
        assert type(loaded.FACTOR) is torch.Tensor
        assert type(loaded.layer.weight) is torch.nn.Parameter


def test_what_the_program_did_before_is_seen():
    """The module counts what the function appended: the graph breaks in front of the import."""

    def fn(x):
        SEEN.append(1)
        from md_reading import FACTOR

        return x + FACTOR

    compiled = minidynamo.compile(fn, backend="eager")
    assert torch.equal(compiled(X), X + 1)
    assert torch.equal(compiled(X), X + 1)
    assert SEEN == [1, 1]


def test_what_it_seeds_stays_seeded():
    def fn(x):
        import md_seeding

        return x * md_seeding.FACTOR

    random.seed(1)
    torch.manual_seed(1)
    assert torch.equal(minidynamo.compile(fn, backend="eager")(X), X * 3)
    drawn = random.random(), torch.rand(())
    random.seed(5)
    torch.manual_seed(5)
    assert drawn == (random.random(), torch.rand(()))


def test_imports_that_fail_raise_in_each_call():
    def fn(x):
        import md_failing

        return x * md_failing.FACTOR

    def handled(x):
        try:
            import md_nowhere
        except ModuleNotFoundError:
            return x - 1
        return x + md_nowhere.FACTOR

    compiled = minidynamo.compile(fn, backend="eager")
    for _ in range(2):
        with pytest.raises(ImportError, match="not today"):
            compiled(X)
    check(handled, X)
    blocked = minidynamo.compile(lambda x: x + __import__("md_lazy").FACTOR, backend="eager")
    sys.modules["md_lazy"] = None
    with pytest.raises(ModuleNotFoundError):
        blocked(X)
