"""What all tests share: a disk cache of their own, and nothing left from the test before.

Nothing here imports torch: the tests of `minidynamo.bytecode` run without it.
"""

import logging
import os
import shutil
import sys
import tempfile

import pytest

_cache = tempfile.mkdtemp(prefix="minidynamo-tests-")
os.environ["MINIDYNAMO_CACHE_DIR"] = _cache
os.environ["MINIDYNAMO_RAISE_INTERNAL_ERRORS"] = "1"
os.environ["MINIDYNAMO_CHECK_NEW_GUARDS"] = "1"
# Threads that wait for work sleep: they would keep the tests that run beside these from it.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def pytest_unconfigure():
    shutil.rmtree(_cache, ignore_errors=True)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call():
    # pytest captures loggers that do not propagate, too: then torch records each symbol and each
    # fake tensor, with its stack, which takes a twentieth of the time.
    logging.getLogger("torch.__trace").handlers.clear()
    return (yield)


@pytest.fixture(autouse=True)
def nothing_compiled():
    torch = sys.modules.get("torch")
    if torch is not None:
        # What a test draws must not depend on the tests that ran before it in its process.
        torch.manual_seed(0)
    yield
    eval_frame = sys.modules.get("minidynamo.eval_frame")
    if eval_frame is not None:
        eval_frame.reset()
