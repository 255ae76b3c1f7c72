"""What all tests share: a disk cache of their own, and nothing compiled left from the test before.

Nothing here imports torch: the tests of `minidynamo.bytecode` run without it.
"""

import os
import shutil
import sys
import tempfile

import pytest

_cache = tempfile.mkdtemp(prefix="minidynamo-tests-")
os.environ["MINIDYNAMO_CACHE_DIR"] = _cache
os.environ["MINIDYNAMO_RAISE_INTERNAL_ERRORS"] = "1"
os.environ["MINIDYNAMO_CHECK_NEW_GUARDS"] = "1"


def pytest_unconfigure():
    shutil.rmtree(_cache, ignore_errors=True)


@pytest.fixture(autouse=True)
def nothing_compiled():
    yield
    eval_frame = sys.modules.get("minidynamo.eval_frame")
    if eval_frame is not None:
        eval_frame.reset()
