"""Other projects' test suites under minidynamo: a plugin for pytest, and what compares its results.

    export PYTHONPATH=tools
    run="python -m pytest -p foreign_tests SUITE"
    $run --results plain.jsonl
    $run --with minidynamo --only plain.jsonl --results ours.jsonl
    $run --with torch --only ours.jsonl --outcome failed --results torchs.jsonl
    python tools/foreign_tests.py ours.jsonl torchs.jsonl

Whole test methods are compiled (`--with`), as the suite of PyTorch does with its own. With
`--replace` they are not; instead torch.compile, what else of torch._dynamo and torch.compiler has a
namesake here, and flags of torch's two config modules that are set, are ours: for tests of
torch.compile. Those that look at torch's internals (texts of guards, counters, generated code) fail
for that. Suites older than torch may want names that are gone, and `--noconftest`.

A process that crashes is started again with `--resume`: the test that it was at is in FILE.current.
"""

from __future__ import annotations

import collections
import json
import random
import re
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import minidynamo
import minidynamo.inductor.config


class TooLong(BaseException):
    """A test took more processor time than it may."""


def pytest_addoption(parser: Any) -> None:
    """What the module's text names, and more."""
    group = parser.getgroup("minidynamo")
    group.addoption("--with", dest="compiled_with", choices=["minidynamo", "torch"])
    group.addoption("--replace", action="store_true", help="torch.compile is minidynamo's")
    group.addoption("--graph-backend", default="eager")
    group.addoption("--results", type=Path, help="a line of JSON for each test")
    group.addoption("--only", type=Path, help="results of an earlier run: the tests to run")
    group.addoption("--outcome", default="passed", help="theirs in that run")
    group.addoption("--resume", action="store_true", help="not those that are in the results")
    group.addoption("--cpu-limit", type=float, default=20, help="seconds for a test")
    group.addoption("--variants", type=int, help="at most so many of a parametrized test")


def pytest_configure(config: Any) -> None:
    """Bugs of minidynamo raise in these tests."""
    torch.set_num_threads(1)
    minidynamo.config.raise_internal_errors = True
    if config.option.replace:
        replace_torchs()
    config.pluginmanager.register(Suite(config.option), "foreign_tests_suite")


class Suite:
    """Runs, limits and notes the tests."""

    def __init__(self, options: Any) -> None:
        self.options = options
        self.numbers: collections.Counter[str] = collections.Counter()
        self.seconds = 0.0

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        options, kept = self.options, items
        if options.only:
            ids = {row["id"] for row in rows(options.only) if row["outcome"] == options.outcome}
            kept = [item for item in kept if id_of(item) in ids]
        if options.resume and options.results.exists():
            done = {row["id"] for row in rows(options.results)}
            kept = [item for item in kept if id_of(item) not in done]
        if options.variants:
            mixed = random.Random(0).sample(kept, len(kept))
            seen: collections.Counter[str] = collections.Counter()
            chosen = set()
            for item in mixed:
                name = id_of(item).split("[")[0]
                seen[name] += 1
                if seen[name] <= options.variants:
                    chosen.add(id_of(item))
            kept = [item for item in kept if id_of(item) in chosen]
        items[:] = kept

    def backend(self, module: Any, inputs: Any, **_options: Any) -> Any:
        self.numbers["graphs"] += 1
        self.numbers["operations"] += sum(n.op.startswith("call") for n in module.graph.nodes)
        name = self.options.graph_backend
        if name == "eager":
            return module.forward
        owner = minidynamo if self.options.compiled_with == "minidynamo" else torch._dynamo
        return owner.lookup_backend(name)(module, inputs)

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: Any) -> Any:
        with_what = self.options.compiled_with
        if self.options.results:
            Path(f"{self.options.results}.current").write_text(id_of(item))
        owner = {"minidynamo": minidynamo, "torch": torch}.get(with_what)
        if owner is not None and hasattr(item, "obj"):
            item.obj = owner.compile(item.obj, backend=self.backend)
            if hasattr(item, "_obj"):
                item._obj = item.obj
        self.numbers.clear()
        random.seed(0)
        torch.manual_seed(0)
        before = signal.signal(signal.SIGPROF, stop)
        signal.setitimer(signal.ITIMER_PROF, self.options.cpu_limit)
        begin = time.process_time()
        outcome = yield
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        self.seconds = time.process_time() - begin
        minidynamo.reset()
        if isinstance(outcome.exception, TooLong):
            outcome.force_exception(RuntimeError("the test took too long"))

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item: Any, call: Any) -> Any:
        report = (yield).get_result()
        if self.options.results is None or (report.when != "call" and report.passed):
            return
        row = {"id": id_of(item), "outcome": report.outcome, "seconds": round(self.seconds, 3)}
        row |= self.numbers
        if report.failed:
            row |= {
                "error": call.excinfo.exconly()[:2000],
                "where": str(report.longrepr)[-5000:],
            }
        with self.options.results.open("a") as file:
            file.write(json.dumps(row) + "\n")


def id_of(item: Any) -> str:
    """The file and the names in it: what a node's own begins with depends on the options."""
    return str(item.path) + item.nodeid[item.nodeid.index("::") :]


def stop(*_signal: Any) -> None:
    """The handler of the limit's signal."""
    raise TooLong


def replace_torchs() -> None:
    """Lets tests of torch.compile test minidynamo. Not undone."""
    import torch._dynamo as theirs
    import torch._dynamo.test_case
    import torch._dynamo.testing
    import torch._inductor.config

    def optimize(backend: Any = "inductor", *, nopython: bool = False, **options: Any) -> Any:
        known = {name: options[name] for name in ("dynamic", "disable") if name in options}
        return minidynamo.compile(backend=backend, fullgraph=nopython, **known)

    def optimize_assert(backend: Any, **options: Any) -> Any:
        return optimize(backend, nopython=True, **options)

    originals = torch.compile, theirs.optimize

    def compile(*args: Any, **options: Any) -> Any:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if not caller.startswith("torch.") or caller.startswith(("torch.testing", "torch.nn")):
            return minidynamo.compile(*args, **options)
        theirs.optimize = originals[1]  # torch's own functions that compile
        try:
            return originals[0](*args, **options)
        finally:
            theirs.optimize = optimize

    torch.compile = compile
    names = [name for name in minidynamo.__all__ if callable(getattr(minidynamo, name, None))]
    ours = {name: getattr(minidynamo, name) for name in names if hasattr(theirs, name)}
    ours |= {"optimize": optimize, "optimize_assert": optimize_assert}
    for kept in (
        "is_compiling",
        "export",
        "lookup_backend",
        "list_backends",
        "register_backend",
    ):
        ours.pop(kept, None)
    for module in (theirs, theirs.decorators, theirs.testing, theirs.test_case):
        for name, value in ours.items():
            if hasattr(module, name):
                setattr(module, name, value)
    for name in ("disable", "allow_in_graph", "reset", "assume_constant_result", "set_stance"):
        if hasattr(minidynamo, name):
            setattr(torch.compiler, name, getattr(minidynamo, name))
    for name, value in vars(minidynamo.exc).items():
        if isinstance(value, type) and hasattr(theirs.exc, name) and name != "SkipFrame":
            setattr(theirs.exc, name, value)
    pass_flags_on({id(theirs.config): minidynamo.config})
    pass_flags_on({id(torch._inductor.config): minidynamo.inductor.config})


def pass_flags_on(pairs: dict[int, Any]) -> None:
    """A flag that is set in one of torch's modules is set in ours, where there is one of the name
    that takes the value.
    """
    for theirs in (torch._dynamo.config, torch._inductor.config):
        if id(theirs) not in pairs:
            continue
        kind = type(theirs)

        def setter(self: Any, name: str, value: Any, plain: Any = kind.__setattr__) -> None:
            plain(self, name, value)
            ours = pairs.get(id(self))
            if hasattr(ours, name) and type(getattr(ours, name)) is type(value):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # of flags without an effect here
                    setattr(ours, name, value)

        kind.__setattr__ = setter  # type: ignore[method-assign,assignment]


def rows(path: Path) -> list[dict[str, Any]]:
    """The results in a file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def main(ours: Path, torchs: Path | None = None) -> None:
    """Prints the failures of one run by their errors, and what became of them in the other."""
    known = {row["id"]: row["outcome"] for row in rows(torchs)} if torchs else {}
    groups: dict[str, list[str]] = collections.defaultdict(list)
    ran = rows(ours)
    for row in ran:
        if row["outcome"] == "failed":
            error = re.sub(r"0x[0-9a-f]+|\d+", "N", row["error"]).replace("\n", " | ")[:160]
            groups[error].append(row["id"])
    print(collections.Counter(row["outcome"] for row in ran))
    for error, ids in sorted(groups.items(), key=lambda group: -len(group[1])):
        print(f"{len(ids)} {error}")
        for name in ids[:5]:
            print(f"    {name} {known.get(name, '')}")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
