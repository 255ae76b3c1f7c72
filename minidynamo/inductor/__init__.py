"""The compiler below the FX graph: aten graph -> loop IR -> fused kernels -> Plan."""

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    if name in ("compile_fx", "config", "metrics", "test_case", "utils"):
        return importlib.import_module(f".{name}", __name__)
    if name in ("list_mode_options", "list_options"):
        return getattr(importlib.import_module("minidynamo"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
