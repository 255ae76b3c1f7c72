"""Programs for CUDA tensors, whole: guards, plans, allocations, streams, launches and gradients,
on a GPU that a torch with CUDA is made to see (stand_in_gpu.py); with a GPU, on that.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

import torch
from stand_in_gpu import build, environment, runtime_library

PROGRAMS = Path(__file__).with_name("gpu_programs.py")


def test_programs_on_a_gpu(tmp_path):
    if torch.cuda.is_available():
        environ, arguments = {**os.environ, "MINIDYNAMO_RAISE_INTERNAL_ERRORS": "1"}, []
    elif runtime_library() is None:
        pytest.skip("torch is built without CUDA, or the runtime's headers are not installed")
    else:
        environ, arguments = environment(build(tmp_path)), ["--stand-in"]
    paths = [str(PROGRAMS.parents[2]), os.environ.get("PYTHONPATH", "")]
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    command = [sys.executable, str(PROGRAMS), *arguments]
    result = subprocess.run(command, env=environ, capture_output=True, text=True)
    lines = result.stdout.splitlines()
    assert result.returncode == 0, result.stderr
    assert [line for line in lines if not line.startswith("ok ")] == []
    assert len(lines) >= 70
