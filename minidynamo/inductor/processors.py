"""What the processor's maker and instructions say about a library's products."""

from __future__ import annotations

from functools import cache

import torch


@cache
def cpu_vendor() -> str:
    """The processor's maker as Linux has it (`GenuineIntel`, `AuthenticAMD`), "" where unknown."""
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith("vendor_id"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return ""


@cache
def is_mkl_slow() -> bool:
    """Whether MKL leaves AVX-512 unused here: its code for AVX2 is as fast on every vendor's."""
    wide = torch.backends.cpu.get_cpu_capability().startswith("AVX512")
    return wide and cpu_vendor() != "GenuineIntel"


@cache
def has_onednn() -> bool:
    """Whether oneDNN's linear operator can be called."""
    return torch.backends.mkldnn.is_available() and hasattr(
        torch.ops.mkldnn, "_linear_pointwise"
    )


@cache
def has_instructions(dtype: torch.dtype) -> bool:
    """Whether ATen hands products of this 16-bit dtype to a library that is made for them."""
    if not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
