"""What calls of known functions do while tracing; importing this package fills `registry`."""

from . import (
    builtins,
    collections_,
    constructors,
    functools_,
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
    "builtins",
    "collections_",
    "constructors",
    "functools_",
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
