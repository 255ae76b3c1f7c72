"""A TestCase for tests of the inductor, by the names of `torch._inductor.test_case`."""

from __future__ import annotations

import contextlib

from minidynamo.inductor import metrics
from minidynamo.inductor.utils import fresh_cache
from minidynamo.test_case import TestCase as FrontEndTestCase
from minidynamo.test_case import run_tests

__all__ = ["TestCase", "run_tests"]


class TestCase(FrontEndTestCase):
    """Each test has a disk cache of its own, and finds the counters of `metrics` at zero."""

    def setUp(self) -> None:
        super().setUp()
        self._stack = contextlib.ExitStack()
        self._stack.enter_context(fresh_cache())
        metrics.reset()

    def tearDown(self) -> None:
        super().tearDown()
        self._stack.close()
