"""What calls of known functions do while tracing; importing this package fills `registry`."""

from . import (
    autograd_function,
    builtins,
    collections_,
    constructors,
    functools_,
    inspect_,
    itertools_,
    object_methods,
    operators,
    stdlib,
    text,
    torch_functions,
    torch_rnn,
    torch_state,
    torch_tensor,
)

__all__ = [
    "autograd_function",
    "builtins",
    "collections_",
    "constructors",
    "functools_",
    "inspect_",
    "itertools_",
    "object_methods",
    "operators",
    "stdlib",
    "text",
    "torch_functions",
    "torch_rnn",
    "torch_state",
    "torch_tensor",
]
