"""Symbolic values: what the interpreter's stack and locals hold.

Each Python type of the traced program is a row of `registry.WRAPPERS` that makes the
`VariableTracker` for a real object; importing this package fills the table.
"""

from . import (
    callables,
    classes,
    contexts,
    deques,
    dict_methods,
    dict_views,
    dicts,
    enums,
    exceptions,
    existing_iterators,
    generators,
    iterators,
    itertools_,
    lazy_iterators,
    lists,
    modules,
    nn_module,
    numpy_numbers,
    random_,
    sequence_methods,
    sets,
    super_,
    unions,
    user_defined,
)

__all__ = [
    "callables",
    "classes",
    "contexts",
    "deques",
    "dict_methods",
    "dict_views",
    "dicts",
    "enums",
    "exceptions",
    "existing_iterators",
    "generators",
    "iterators",
    "itertools_",
    "lazy_iterators",
    "lists",
    "modules",
    "nn_module",
    "numpy_numbers",
    "random_",
    "sequence_methods",
    "sets",
    "super_",
    "unions",
    "user_defined",
]
