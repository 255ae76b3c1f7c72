"""A TestCase whose tests start without compiled code, by the names of `torch._dynamo.test_case`.

It stands on torch's own (`torch.testing._internal.common_utils`), which needs expecttest.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
from torch.testing._internal.common_utils import TestCase as TorchTestCase
from torch.testing._internal.common_utils import run_tests as run_torch_tests

from . import config
from .eval_frame import reset
from .utils import counters

__all__ = ["TestCase", "run_tests"]


def run_tests(needs: str | tuple[str, ...] = ()) -> None:
    """Run the tests of the main module; none where a package that they need is missing ("cuda": a
    GPU).
    """
    for need in (needs,) if isinstance(needs, str) else needs:
        found = importlib.util.find_spec(need) if need != "cuda" else torch.cuda.is_available()
        if not found:
            return
    run_torch_tests()


class TestCase(TorchTestCase):
    """Forgets what is compiled and counted before and after each test, and restores grad mode."""

    _patches: Any = None

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls._patches = config.patch(suppress_errors=False)
        cls._patches.__enter__()

    @classmethod
    def tearDownClass(cls) -> None:
        cls._patches.__exit__(None, None, None)
        super().tearDownClass()

    def setUp(self) -> None:
        self._had_gradients = torch.is_grad_enabled()
        super().setUp()
        reset()
        counters.clear()

    def tearDown(self) -> None:
        reset()
        counters.clear()
        super().tearDown()
        torch.set_grad_enabled(self._had_gradients)
