"""Which code a device's kernels are."""

from __future__ import annotations

from minidynamo.inductor import config


def uses_triton(device_type: str) -> bool:
    """Whether kernels are Triton rather than C++: on GPUs, and by `config.cpu_backend` on CPUs."""
    return device_type != "cpu" or config.cpu_backend == "triton"
