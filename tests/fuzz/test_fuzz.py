"""Random programs behave the same compiled; a bounded number of them, the same in each run.

`make fuzz` runs many more (see `__main__.py`).
"""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

from search import search  # noqa: E402


@pytest.mark.parametrize("first_seed", range(4))
def test_random_programs(first_seed):
    failure = search(first_seed, 60)
    assert failure is None, f"\n{failure}"


@pytest.mark.parametrize(("first_seed", "kind"), [(0, "tensors"), (0, "triton")])
def test_random_tensor_programs(first_seed, kind):
    if kind == "triton":
        pytest.importorskip("triton")
    failure = search(first_seed, 12, kind)
    assert failure is None, f"\n{failure}"


@pytest.mark.parametrize(
    ("kind", "count", "backend"),
    [
        ("views", 25, "aot_eager"),
        ("views", 25, "fast"),
        ("sizes", 20, "eager"),
        ("sizes", 12, "fast"),
        ("indexing", 25, "eager"),
        ("indexing", 16, "fast"),
        ("modules", 4, "fast"),
        ("dtypes", 12, "inductor"),
        ("reductions", 10, "fast"),
        ("training", 3, "eager"),
    ],
)
def test_random_scripts(kind, count, backend):
    failure = search(0, count, kind, backend)
    assert failure is None, f"\n{failure}"
