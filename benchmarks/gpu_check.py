"""What a machine with a GPU has, and whether one compiled kernel runs on it; says what is missing.

python benchmarks/gpu_check.py
"""

from __future__ import annotations

import importlib
import platform
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


def fail(text: str) -> None:
    """Ends the program with what is missing."""
    sys.exit(f"not ready: {text}")


def version(name: str, remedy: str) -> str:
    """Of a package that is needed."""
    try:
        return str(getattr(importlib.import_module(name), "__version__", "present"))
    except ImportError as error:
        fail(f"{name} cannot be imported ({error}): {remedy}")
        raise


def main() -> None:
    print(f"Python {platform.python_version()}, {platform.libc_ver()[1]}")
    print("torch", version("torch", "install a build of torch for CUDA"))
    print("triton", version("triton", "it comes with torch for CUDA: pip install triton"))
    import torch

    if not torch.cuda.is_available():
        fail(f"torch {torch.__version__} sees no GPU (built for CUDA {torch.version.cuda})")
    name, capability = torch.cuda.get_device_name(), torch.cuda.get_device_capability()
    free, total = (number >> 20 for number in torch.cuda.mem_get_info())
    print(f"{name}, compute capability {capability}, {free} of {total} MiB free")
    x = torch.arange(1000.0, device="cuda")
    assert (x + 1).sum().item() == 500500, "torch itself does not compute on this GPU"
    version("minidynamo", "run this from the repository")
    version("minidynamo._C", f"{sys.executable} setup.py build_ext --inplace")
    import minidynamo
    from minidynamo.inductor import metrics

    compiled = minidynamo.compile(lambda x: (x * 2 + 1).relu())
    result = compiled(x)
    torch.cuda.synchronize()
    assert torch.equal(result, x * 2 + 1), "a compiled kernel computes something else"
    assert metrics.kernel_calls == 1 and not metrics.uncompiled_graphs, metrics.counts()
    print("one kernel was compiled, launched, and is right")


if __name__ == "__main__":
    main()
