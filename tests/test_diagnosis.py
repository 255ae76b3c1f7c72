"""What the user is told: which expression, why, and what may be done."""

import logging

import pytest
import torch

import minidynamo
from minidynamo import config, events, exc
from minidynamo.testing import CompileCounter


@pytest.fixture
def x():
    return torch.linspace(-1, 1, 6)


def error_of(function, *args, **options):
    """The error of the compiled function."""
    minidynamo.reset()
    options = {"backend": "eager", "fullgraph": True, **options}
    with pytest.raises(exc.MinidynamoError) as caught:
        minidynamo.compile(function, **options)(*args)
    return caught.value


def test_the_expression_is_underlined(x):
    def function(x):
        return (x + 1).sum() + len(str((x * 2))) + (x - 1).sum()

    lines = str(error_of(function, x)).splitlines()
    code, marks = next(
        (a, b) for a, b in zip(lines, lines[1:]) if a.strip().startswith("return")
    )
    marked = [c for c, mark in zip(code, marks.ljust(len(code))) if mark in "^~"]
    assert "".join(marked) == "str((x * 2))"


def test_breaks_are_underlined_too(x):
    def function(x):
        return x.sum() + len(str(x)) + 1

    seen = []
    with events.subscribe(seen.append, events.GraphBreakEvent):
        minidynamo.compile(function, backend="eager")(x)
    frame = seen[0].user_stack[-1]
    assert frame.line[frame.colno - 8 : frame.end_colno - 8] == "str(x)"
    report = str(minidynamo.explain(function)(x))
    assert "        return x.sum() + len(str(x)) + 1" in report.splitlines()


def test_operands_of_an_operator_that_refuses_them(x, caplog):
    def function(x):
        return x.sin() @ torch.ones(7, 3)

    with caplog.at_level(logging.WARNING):
        error = error_of(function, x)
    assert isinstance(error, exc.TorchRuntimeError)
    assert "matmul(float32[6], float32[7, 3]): RuntimeError: a and b must have" in str(error)
    assert not caplog.records  # torch's own traceback of the same would hide it


def test_a_backend_that_fails_says_for_which_function(x):
    def function(x):
        return x.sin()

    def broken(gm, inputs):
        raise KeyError("thing")

    error = error_of(function, x, backend=broken)
    assert error.user_stack[0].name == "function" and "def function(x):" in str(error)


def test_the_limit_says_what_to_do(x, caplog):
    def function(x, name):
        return x + len(name)

    def run(**options):
        minidynamo.reset()
        fast = minidynamo.compile(function, backend="eager", **options)
        with config.patch(recompile_limit=2):
            for name in ("a", "bb", "ccc"):
                fast(x, name)

    with caplog.at_level(logging.WARNING):
        run()
    (record,) = caplog.records
    assert "MINIDYNAMO_LOGS=recompiles" in record.getMessage()
    with pytest.raises(exc.RecompileLimitExceeded) as caught:
        run(fullgraph=True)
    assert any("config.recompile_limit" in hint for hint in caught.value.hints)
    assert caught.value.user_stack[0].name == "function"


@pytest.mark.parametrize(
    "body, text",
    [
        (lambda x: x * x.sum().__complex__(), "keep the value a tensor"),
        (lambda x: torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.sum(), (x,)),
         r"float32\[6\] on cpu is not float32\[\] on cpu"),
        (lambda x: compile("1", "", "eval"), "it compiles code"),
    ],
)  # fmt: skip
def test_reasons(body, text, x):
    error = error_of(body, x)
    assert error.hints
    with pytest.raises(exc.Unsupported, match=text):
        raise error


def test_classes_inside(x):
    def function(x):
        class Inside:
            pass

        return x, Inside

    assert "what is made while tracing, once for all calls, would be seen outside" in str(
        error_of(function, x)
    )


def test_values_are_named_as_the_program_names_them(x):
    def function(x, things):
        return x + things()

    assert error_of(function, x, minidynamo).explanation == "calling minidynamo is not traced"


def test_ranges_in_words(x):
    def function(x):
        return x + 1 if x.shape[0] > 4 else x

    minidynamo.mark_dynamic(x, 0, min=2, max=100)
    text = str(error_of(function, x))
    assert "it has to be between 5 and 100" in text and "needs x.size(0) > 4 at" in text


def test_counts_are_those_without_diagnosis(x):
    counter = CompileCounter()

    def function(x):
        print(end="")
        return x + 1

    assert torch.equal(minidynamo.compile(function, backend=counter)(x), x + 1)
    assert counter.frame_count == 1
