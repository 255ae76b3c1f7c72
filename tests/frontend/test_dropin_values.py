"""Constants that libraries look at in the middle of a model: versions, patterns, reasons."""

import re

import pytest
import torch
from packaging import version
from testing import check

import minidynamo
from minidynamo import exc

PAIR = re.compile(r"(?P<left>\d+)-(\d+)")
X = torch.ones(2)


@pytest.mark.parametrize(
    "holds",
    [
        lambda: torch.__version__ >= "2.0",
        lambda: "2.0" < torch.__version__,
        lambda: torch.__version__ >= (1, 13),
        lambda: torch.__version__ == "1.0",
        lambda: torch.__version__.split(".")[0] == "2",
        lambda: torch.__version__.startswith("3"),
        lambda: str(torch.__version__)[0] == f"{torch.__version__}"[0],
        lambda: version.parse(torch.__version__) >= version.parse("2.0"),
        lambda: version.parse(torch.__version__.split("+")[0]).release < (2, 0),
    ],
)
def test_versions(holds):
    check(lambda x: x + 1 if holds() else x - 1, X, fullgraph=True, graphs=None)


@pytest.mark.parametrize(
    "question",
    [
        lambda: int(PAIR.match("12-3").group("left")),
        lambda: PAIR.search("from 12-3").start(),
        lambda: (PAIR.sub("q", "1-2 3-4"), PAIR.findall("1-2 3-4"), PAIR.split("a1-2b")),
        lambda: (PAIR.pattern, PAIR.flags, PAIR.groups),
        lambda: re.match("(a)(b)", "ab").groups() + (re.match("(a)", "a")[1],),
        lambda: re.match("(?P<q>a)", "a").groupdict(),
        lambda: (bool(re.match("a", "a")), re.fullmatch("a", "ab") is None),
        lambda: re.sub(r"\d", "n", "a1b2", count=1) + re.escape("."),
        lambda: re.compile("[ab]+", re.IGNORECASE).findall("ABcab"),
        lambda: re.split("[", "a"),
        lambda: re.match("a", 3),
    ],
)
def test_regular_expressions(question):
    check(lambda x: (x + 1, question()), X, fullgraph=True, graphs=None)


def test_replacements_made_by_a_function_run_in_eager():
    check(lambda x: (x + 1, re.sub(r"\d", lambda m: m.group() + "!", "a1")), X, graphs=None)


CALLS = []


def noted(match):
    CALLS.append(match.group())
    return "!"


def test_replacements_with_side_effects_happen_in_each_call():
    fast = minidynamo.compile(
        lambda x: (x + 1, PAIR.sub(noted, "1-2 3-4"), re.sub("a", noted, "a")), backend="eager"
    )
    for count in (3, 6, 9):
        assert fast(X)[1:] == ("! !", "!")
        assert len(CALLS) == count


def test_patterns_are_guarded():
    class Names:
        pattern = re.compile("a+")

    def count(x, names, text):
        return x + len(names.pattern.findall(text))

    minidynamo.reset()
    fast = minidynamo.compile(count, backend="eager", fullgraph=True)
    names = Names()
    assert torch.equal(fast(X, names, "aba"), X + 2)
    names.pattern = re.compile("b+")
    assert torch.equal(fast(X, names, "aba"), X + 1)
    assert torch.equal(fast(X, names, "bab"), X + 2)


def test_the_reason_of_disable_is_in_the_error():
    @minidynamo.disable(reason="it talks to the network")
    def remote(x):
        return x

    with pytest.raises(exc.Unsupported, match="it talks to the network"):
        minidynamo.compile(lambda x: remote(x), backend="eager", fullgraph=True)(X)
