"""What the operator sweep runs: calls made from torch's own table of operators (`op_db`).

A case is one operator, dtype and variant; `calls(case, limit)` are some of its sample inputs as
(function, args, kwargs), the same ones every time.
"""

import random
from dataclasses import asdict, dataclass

import numpy
import torch
from torch.testing._internal.common_methods_invocations import op_db

# Importing that forbids the rest of the process to set backend flags.
torch.backends.__allow_nonbracketed_mutation_flag = True

OPS = {op.full_name if hasattr(op, "full_name") else op.name: op for op in op_db}
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in [
        torch.float32,
        torch.float64,
        torch.bfloat16,
        torch.float16,
        torch.int64,
        torch.int32,
        torch.uint8,
        torch.bool,
        torch.complex64,
    ]
}
VARIANTS = ["function", "grad", "inplace", "out", "error"]
# Operators whose results are memory as it was, or draw numbers in an order of their own.
ONLY_SHAPES = {
    "empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided",
    "resize_", "resize_as_",
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One operator, dtype and variant of the sweep."""

    op: str
    dtype: str
    variant: str

    def key(self):
        return f"{self.op} {self.dtype} {self.variant}"

    def to_dict(self):
        return asdict(self)


def names():
    """Names of the operators, each variant of the table its own."""
    return sorted(OPS)


def is_supported(case):
    """Whether the operator has such a variant in that dtype on CPUs."""
    op, dtype = OPS[case.op], DTYPES[case.dtype]
    if case.variant == "grad":
        floating = dtype.is_floating_point or dtype.is_complex
        return (
            floating and op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
        )
    if case.variant == "error":
        return op.error_inputs_func is not None and dtype == torch.float32
    if dtype not in op.supported_dtypes("cpu"):
        return False
    if case.variant == "inplace":
        return op.get_inplace() is not None
    return case.variant != "out" or op.supports_out


def cases(dtypes, variants):
    found = [Case(n, d, v) for v in variants for d in dtypes for n in names()]
    return [case for case in found if is_supported(case)]


def _seed(case, position=0):
    torch.manual_seed(position)
    random.seed(position)
    numpy.random.seed(position)


def _spread(items, limit):
    """`limit` of the items, evenly over all of them."""
    if len(items) <= limit:
        return items
    return [items[i * len(items) // limit] for i in range(limit)]


def _flat(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return (
        [t for item in value for t in _flat(item)] if isinstance(value, (tuple, list)) else []
    )


def tensors(value):
    """The tensors in nested tuples, lists and dicts, in order."""
    return _flat(value)


def _out_like(result):
    if isinstance(result, torch.Tensor):
        return torch.full_like(result, 7 if result.dtype != torch.bool else 1)
    return tuple(_out_like(item) for item in result)


def _for_out(fn, args, kwargs):
    if "out" in kwargs:
        return None
    result = fn(*args, **kwargs)
    if not isinstance(result, (torch.Tensor, tuple)) or not all(
        isinstance(r, torch.Tensor) and not r.is_sparse for r in _flat(result)
    ):
        return None
    return fn, args, {**kwargs, "out": _out_like(result)}


def calls(case, limit):
    """The case's calls, at most `limit` of them; tensors are new in every call of this."""
    op, dtype = OPS[case.op], DTYPES[case.dtype]
    _seed(case)
    if case.variant == "error":
        samples = [e.sample_input for e in op.error_inputs("cpu")]
        return [(op.get_op(), (s.input, *s.args), dict(s.kwargs)) for s in samples][:limit]
    made = list(op.sample_inputs("cpu", dtype, requires_grad=case.variant == "grad"))
    result = []
    for s in _spread(made, limit):
        call = (op.get_op(), (s.input, *s.args), dict(s.kwargs))
        if case.variant == "inplace":
            if s.broadcasts_input:
                continue
            call = (op.get_inplace(), *call[1:])
        elif case.variant == "out":
            _seed(case)
            call = _for_out(*call)
        if call is not None:
            result.append(call)
    return result
