"""The garbage collector rests while modules are imported, and is afterwards as it was."""

import gc
import weakref

import pytest

from minidynamo.collector import importing


class Ring:
    def __init__(self):
        self.itself = self


def test_it_rests_and_what_is_made_counts_as_old():
    gc.collect()
    seen = []
    note = lambda phase, info: seen.append(phase)
    gc.callbacks.append(note)
    try:
        with importing():
            assert not gc.isenabled()
            made = [[] for _ in range(10_000)]
            assert not seen
    finally:
        gc.callbacks.remove(note)
    assert gc.isenabled() and not gc.get_freeze_count()
    young = {id(entry) for entry in gc.get_objects(generation=0)}
    assert not any(id(entry) in young for entry in made)


def test_garbage_of_that_time_is_collected_later():
    with importing():
        ring = Ring()
        dead = weakref.ref(ring)
        del ring
    assert dead() is not None
    gc.collect()
    assert dead() is None


def test_a_collector_that_was_off_stays_off():
    gc.disable()
    try:
        with importing():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_frozen_objects_stay_frozen():
    kept = [[] for _ in range(100)]
    gc.freeze()
    try:
        with importing():
            pass
        # What is frozen is in no generation. Their number says nothing: others may die meanwhile.
        collected = {id(entry) for entry in gc.get_objects()}
        assert not any(id(entry) in collected for entry in kept)
        assert gc.get_freeze_count() >= len(kept)
    finally:
        gc.unfreeze()
    assert gc.isenabled()


def test_it_works_again_after_an_error():
    with pytest.raises(ImportError), importing():
        raise ImportError("no such module")
    assert gc.isenabled() and not gc.get_freeze_count()
