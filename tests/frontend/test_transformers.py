"""One small model of each family of `transformers`: captured whole, eager's results, its tokens."""

from __future__ import annotations

import pathlib
import sys

import pytest
import torch
from testing import CountingBackend

import minidynamo

transformers = pytest.importorskip("transformers")
sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "benchmarks"))

import model_zoo  # noqa: E402
import models  # noqa: E402

WHOLE = (
    "bert deberta-v2 xlnet gpt2 llama gemma2 mixtral mamba2 t5 bart whisper vit swin convnext detr"
    " wav2vec2 clip"
).split()


def _available(name):
    return hasattr(transformers, model_zoo.ZOO[name].model)


@pytest.fixture(autouse=True)
def _no_grad():
    with torch.no_grad():
        yield


@pytest.mark.parametrize("name", list(filter(_available, WHOLE)))
def test_model_is_one_graph(name):
    expected = models.eager(name)
    found = models.capture(name, models.ours)
    assert all(map(models.is_equal, expected, found.results))
    assert (found.graphs, found.later) == (1, 0)


@pytest.mark.parametrize("name", list(filter(_available, ["llama", "t5"])))
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_generate_gives_eagers_tokens(name, cache):
    tokens, graphs = models.generate(name, cache).split(", ")
    assert tokens == "equal"
    assert int(graphs) <= 3


def test_training_step():
    eager, inputs = model_zoo.build("llama")
    compiled, _ = model_zoo.build("llama")
    backend = CountingBackend()
    with torch.enable_grad():
        for model, call in (
            (eager, eager),
            (compiled, minidynamo.compile(compiled, backend=backend)),
        ):
            model.train()
            call(**inputs, labels=inputs["input_ids"]).loss.backward()
    assert len(backend.graphs) == 1
    for left, right in zip(eager.parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(left.grad, right.grad)


def test_another_mask_or_cache_is_seen():
    model, inputs = model_zoo.build("gpt2")
    backend = CountingBackend()
    compiled = minidynamo.compile(model, backend=backend)
    ids = inputs["input_ids"]
    for call in (inputs, {"input_ids": ids}, {"input_ids": ids, "use_cache": False}, inputs):
        assert models.is_equal(model(**call), compiled(**call))
    assert len(backend.graphs) == 3
