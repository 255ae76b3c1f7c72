"""Logging functions that flags move behind the graph, or leave out."""

import logging
import warnings

import pytest
import torch
from testing import CountingBackend

import minidynamo
from minidynamo import config, exc

LOGGER = logging.getLogger("model")
X = torch.ones(2)


def compiled(fn, **options):
    minidynamo.reset()
    counter = CountingBackend()
    return minidynamo.compile(fn, backend=counter, **options), counter


def printing(x):
    print("first", end="; ")
    a = x + x
    print(a, a.shape[0], sep="|")
    b = a * a
    print(f"b is {b:} of {b.dtype} {b}")
    return b


def test_prints_come_after_the_graph(capsys):
    printing(X)
    expected = capsys.readouterr().out
    with config.patch(reorderable_logging_functions={print}):
        fast, counter = compiled(printing, fullgraph=True)
        for _ in range(2):
            assert torch.equal(fast(X), X * 4)
            assert capsys.readouterr().out == expected
        assert len(counter.graphs) == 1
    with pytest.raises(exc.Unsupported):
        compiled(printing, fullgraph=True)[0](X)


def test_prints_around_a_graph_break(capsys):
    def breaking(x):
        y = x + 1
        print(f"y: {y}")
        minidynamo.graph_break()
        print("end")
        return y * 2

    breaking(X)
    expected = capsys.readouterr().out
    with config.patch(reorderable_logging_functions={print}):
        fast, counter = compiled(breaking)
        assert torch.equal(fast(X), breaking(X))
    assert capsys.readouterr().out == expected * 2 and len(counter.graphs) == 2


def test_functions_of_the_program_and_of_libraries():
    seen = []

    def note(text, *, level=0):
        seen.append((text, level))

    def noting(x):
        note("start")
        y = x + 1
        note(f"{y}", level=2)
        warnings.warn("careful", stacklevel=1)
        return y

    flags = {"reorderable_logging_functions": {note, warnings.warn}}
    with config.patch(flags), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fast, counter = compiled(noting, fullgraph=True)
        assert torch.equal(fast(X), X + 1)
    assert seen == [("start", 0), (f"{X + 1}", 2)]
    assert [str(warning.message) for warning in caught] == ["careful"]
    assert len(counter.graphs) == 1


def test_what_may_change_meanwhile_is_not_postponed(capsys):
    def changing(x, items):
        print(items)
        items.append(x + 1)
        return items[-1]

    changing(X, [])
    expected = capsys.readouterr().out
    with config.patch(reorderable_logging_functions={print}):
        fast, counter = compiled(changing)
        fast(X, [])
    assert capsys.readouterr().out == expected


def test_texts_of_tensors_are_for_printing_alone():
    def text(x):
        y = x + 1
        return y, f"{y}"

    with config.patch(reorderable_logging_functions={print}):
        fast, _ = compiled(text)
        assert fast(X)[1] == f"{X + 1}"


def logging_model(x):
    y = x + 1
    LOGGER.info("at %s", "work")
    return y * 2


@pytest.mark.parametrize("method", [LOGGER.info, logging.Logger.info])
def test_ignored_methods_of_loggers(method, caplog):
    with config.patch(ignore_logger_methods={method}), caplog.at_level("INFO"):
        fast, counter = compiled(logging_model, fullgraph=True)
        assert torch.equal(fast(X), logging_model(X))
    assert len(counter.graphs) == 1
    assert caplog.messages == ["at work"]  # eager's


def test_other_methods_of_loggers_are_not_ignored(caplog):
    other = logging.getLogger("other").info
    with config.patch(ignore_logger_methods={other}), caplog.at_level("INFO"):
        fast, counter = compiled(logging_model)
        fast(X)
    assert len(counter.graphs) == 2 and caplog.messages == ["at work"]


def test_ignored_functions(capsys):
    def plain(x):
        print("noise")
        return x + 1

    with config.patch(ignore_logging_functions={print}):
        fast, _ = compiled(plain, fullgraph=True)
        assert torch.equal(fast(X), X + 1)
    assert capsys.readouterr().out == ""
