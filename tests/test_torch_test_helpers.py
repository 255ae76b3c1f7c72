"""Helpers for test suites of torch's inductor: generated code, fresh caches, TestCase."""

import os
import subprocess
import sys
import textwrap

import pytest
import torch

import minidynamo
from minidynamo import config, inductor
from minidynamo.inductor import metrics
from minidynamo.inductor.utils import (
    fresh_cache,
    fresh_inductor_cache,
    get_code,
    run_and_get_code,
    run_and_get_cpp_code,
    run_and_get_kernels,
    run_and_get_triton_code,
    run_fw_bw_and_get_code,
)


@pytest.fixture
def x():
    return torch.linspace(-1, 1, 20)


def test_code_of_the_graphs_compiled_meanwhile(x):
    def fn(x):
        y = x.sin()
        minidynamo.graph_break()
        return y.cos()

    fast = minidynamo.compile(fn)
    result, codes = run_and_get_code(fast, x)
    assert torch.allclose(result, fn(x))
    assert len(codes) == 2 and "sin" in codes[0] and "cos" in codes[1]
    assert run_and_get_code(fast, x)[1] == []  # compiled before


def test_code_of_forward_and_backward(x):
    weight = x.clone().requires_grad_()
    fast = minidynamo.compile(lambda x: (weight * x).sin())
    result, codes = run_fw_bw_and_get_code(lambda: fast(x))
    assert len(codes) == 2 and "sin" in codes[0] and "cos" in codes[1]
    assert torch.allclose(weight.grad, x * (x * x).cos())
    assert result.shape == x.shape


def test_one_text(x):
    minidynamo.reset()
    result, code = run_and_get_cpp_code(minidynamo.compile(lambda x: x.exp()), x)
    assert torch.allclose(result, x.exp()) and "exp(" in code
    assert "tanh(" in get_code(minidynamo.compile(lambda x: x.tanh()), x)[0]
    assert "erf(" in run_and_get_triton_code(minidynamo.compile(lambda x: x.erf()), x)
    with pytest.raises(AssertionError, match="one or two graphs, not 0"):
        run_and_get_triton_code(lambda: None)


def test_kernels(x):
    fast = minidynamo.compile(lambda x, y: (x.sin(), y.flatten().cumsum(0)))
    metrics.reset()
    (sines, sums), sources = run_and_get_kernels(fast, x, x.view(4, 5))
    assert torch.allclose(sines, x.sin()) and torch.allclose(sums, x.cumsum(0), atol=1e-6)
    assert len(sources) == metrics.generated_kernel_count == 2
    assert metrics.generated_cpp_vec_kernel_count == 1, "a running sum of one row is scalar"


def test_kernels_found_on_disk_are_counted_the_same(x):
    counts = []
    with fresh_cache():
        for _ in range(2):
            minidynamo.reset()
            metrics.reset()
            minidynamo.compile(lambda x: x.sinh() + 3)(x)
            counts.append(metrics.counts())
    assert counts[0] == counts[1] and counts[0]["generated_cpp_vec_kernel_count"] == 1


def test_fresh_cache_is_a_folder_of_its_own(x, tmp_path):
    before, entries = config.cache_dir, {}
    with fresh_inductor_cache(entries, dir=str(tmp_path)):
        folder = config.cache_dir
        assert folder != before and os.path.dirname(folder) == str(tmp_path)
        minidynamo.reset()
        minidynamo.compile(lambda x: x.atan() * 7)(x)
        assert os.listdir(folder)
    assert config.cache_dir == before and not os.path.exists(folder)
    assert entries and all(size > 0 for size in entries.values())
    with fresh_cache(dir=str(tmp_path), delete=False):
        kept = config.cache_dir
    assert os.path.isdir(kept)


def test_lists_of_options():
    assert inductor.list_options() == minidynamo.list_options()
    assert inductor.list_mode_options() == minidynamo.list_mode_options()


SUITE = """
    import sys, torch, minidynamo
    from minidynamo import config, inductor
    from minidynamo.inductor import metrics
    from minidynamo.inductor.test_case import TestCase, run_tests
    from minidynamo.test_case import run_tests as run_front_end_tests
    from minidynamo.utils import counters

    folders = set()

    class Tests(TestCase):
        def check_and_leave_traces(self):
            self.assertEqual(metrics.compiled_graphs, 0)
            self.assertEqual(counters["stats"], {})
            self.assertNotIn(config.cache_dir, folders)
            self.assertTrue(torch.is_grad_enabled())
            folders.add(config.cache_dir)
            x = torch.ones(3)
            self.assertEqual(minidynamo.compile(torch.sin)(x), x.sin())
            self.assertEqual(metrics.compiled_graphs, 1)
            counters["stats"]["seen"] += 1
            torch.set_grad_enabled(False)

        def test_first(self):
            self.check_and_leave_traces()

        def test_second(self):
            self.check_and_leave_traces()

    class WrongTests(TestCase):
        def test_fails(self):
            self.assertEqual(minidynamo.compile(torch.sin)(torch.ones(3)), torch.zeros(3))

    run_front_end_tests(needs="no_such_package")
    run_tests(needs=("numpy",))
"""


def test_test_case():
    pytest.importorskip("expecttest")  # what torch's TestCase needs
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SUITE)], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "Ran 3 tests" in done.stderr and "FAILED (failures=1)" in done.stderr, done.stderr
