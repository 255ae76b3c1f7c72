"""What calls of known functions do while tracing; importing this package fills `registry`."""

from . import object_methods, stdlib, torch_functions, torch_state, torch_tensor

__all__ = ["object_methods", "stdlib", "torch_functions", "torch_state", "torch_tensor"]
