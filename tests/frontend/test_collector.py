"""The garbage collector looks at new objects seldom while something is compiled."""

import gc

import pytest
import torch

import minidynamo

X = torch.ones(3)


@pytest.fixture(autouse=True)
def threshold():
    former = gc.get_threshold()
    gc.set_threshold(700, 7, 8)
    yield
    gc.set_threshold(*former)


def compiled(action):
    """A function whose backend calls `action`."""

    def backend(gm, inputs):
        action()
        return gm.forward

    return minidynamo.compile(lambda x: x + 1, backend=backend)


def test_only_meanwhile():
    seen = []
    fn = compiled(lambda: seen.append(gc.get_threshold()))
    assert torch.equal(fn(X), X + 1)
    assert seen == [(50_000, 7, 8)]
    assert gc.get_threshold() == (700, 7, 8)


def test_a_failure_changes_nothing():
    with pytest.raises(minidynamo.exc.BackendCompilerFailed):
        compiled(lambda: 1 / 0)(X)
    assert gc.get_threshold() == (700, 7, 8)


@pytest.mark.parametrize("own", [(0, 7, 8), (90_000, 2, 3)])
def test_a_program_that_collects_itself(own):
    seen = []
    gc.set_threshold(*own)
    assert torch.equal(compiled(lambda: seen.append(gc.get_threshold()))(X), X + 1)
    assert seen == [own]
    assert gc.get_threshold() == own


def test_what_a_backend_sets_stays():
    compiled(lambda: gc.set_threshold(123, 4, 5))(X)
    assert gc.get_threshold() == (123, 4, 5)
