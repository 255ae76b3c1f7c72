"""What the operator sweep runs: calls made from torch's own table of operators (`op_db`).

A case is one operator, dtype and variant; `calls(case, limit)` are some of its sample inputs as
(function, args, kwargs), the same ones every time.
"""

import os
import random
from dataclasses import asdict, dataclass

import numpy
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_utils import noncontiguous_like

# Importing that forbids the rest of the process to set backend flags.
torch.backends.flags_frozen.__globals__["__allow_nonbracketed_mutation_flag"] = True

DEVICE = os.environ.get("SWEEP_DEVICE", "cpu")  # where the tensors are
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
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
        torch.complex64,
        torch.complex128,
    ]
}
# dynamic: with `dynamic=True`, and gradients where there are; strided: tensors with holes;
# channels_last: four-dimensional tensors laid out so; mixed: only every second tensor requires
# a gradient; out_dtype, out_resized: `out=` of another dtype, and of no elements; out_strided,
# out_alias, out_grad: with holes, an argument itself, and one that requires gradients; error, and
# error_dynamic with `dynamic=True`: the table's wrong calls; reference: the table's larger set of
# samples; special: every third element NaN, infinite, zero or a negative zero; grad_strided:
# gradients of the results have holes.
VARIANTS = [
    "function", "grad", "inplace", "out", "error", "error_dynamic",
    "dynamic", "strided", "channels_last", "mixed", "out_dtype", "out_resized",
    "reference", "special", "grad_strided", "out_strided", "out_alias", "out_grad",
]  # fmt: skip
WITH_GRADIENTS = ("grad", "mixed", "channels_last", "grad_strided")
SPECIAL = (float("nan"), float("inf"), -float("inf"), 0.0, -0.0)
ERRORS = ("error", "error_dynamic")
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
    """Whether the operator has such a variant in that dtype on the device."""
    op, dtype = OPS[case.op], DTYPES[case.dtype]
    if case.variant in WITH_GRADIENTS:
        return _has_gradient(op, dtype)
    if case.variant in ERRORS:
        return op.error_inputs_func is not None and dtype == torch.float32
    if dtype not in op.supported_dtypes(DEVICE):
        return False
    if case.variant == "inplace":
        return op.get_inplace() is not None
    if case.variant == "special":
        return dtype.is_floating_point
    if case.variant == "out_grad" and not dtype.is_floating_point:
        return False
    return not case.variant.startswith("out") or op.supports_out


def _has_gradient(op, dtype):
    floating = dtype.is_floating_point or dtype.is_complex
    return floating and op.supports_autograd and dtype in op.supported_backward_dtypes(DEVICE)


def takes_gradients(case):
    """Whether the case compares gradients too."""
    return case.variant in WITH_GRADIENTS or (
        case.variant == "dynamic" and _has_gradient(OPS[case.op], DTYPES[case.dtype])
    )


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


def _out_like(result, variant):
    if not isinstance(result, torch.Tensor):
        return tuple(_out_like(item, variant) for item in result)
    if variant == "out_dtype":
        other = torch.float64 if result.dtype == torch.int64 else torch.int64
        return torch.full_like(result, 7, dtype=other)
    out = torch.full_like(result, 7 if result.dtype != torch.bool else 1)
    if variant == "out_strided":
        return _with_holes(out)
    if variant == "out_grad":
        return out.requires_grad_(out.is_floating_point())
    return out.new_empty(0) if variant == "out_resized" else out


def _argument_like(result, args, kwargs):
    """The first argument that the result fits into."""
    if not isinstance(result, torch.Tensor):
        return None
    fitting = [
        t
        for t in _flat([args, kwargs])
        if (t.shape, t.dtype, t.layout) == (result.shape, result.dtype, result.layout)
    ]
    return fitting[0] if fitting else None


def _for_out(variant, fn, args, kwargs):
    if "out" in kwargs:
        return None
    result = fn(*args, **kwargs)
    if not isinstance(result, (torch.Tensor, tuple)) or not all(
        isinstance(r, torch.Tensor) and r.layout == torch.strided for r in _flat(result)
    ):
        return None
    if variant == "out_alias":
        out = _argument_like(result, args, kwargs)
        return None if out is None else (fn, args, {**kwargs, "out": out})
    return fn, args, {**kwargs, "out": _out_like(result, variant)}


def _with_holes(tensor):
    if tensor.layout != torch.strided or tensor.dim() == 0:
        return tensor
    return noncontiguous_like(tensor)


def _channels_last(tensor):
    if tensor.layout != torch.strided or tensor.dim() != 4:
        return tensor
    made = tensor.detach().contiguous(memory_format=torch.channels_last)
    return made.requires_grad_(tensor.requires_grad)


def _with_special_values(tensor):
    if tensor.layout != torch.strided or not tensor.is_floating_point() or not tensor.numel():
        return tensor
    made = tensor.detach().clone()
    flat = made.view(-1) if made.is_contiguous() else made.reshape(-1)
    for first, value in enumerate(SPECIAL):
        flat[first * 3 :: 15] = value
    return flat.view(made.shape)


def _every_second(tensors_of_call):
    wanted = [t for t in tensors_of_call if t.requires_grad and t.is_leaf]
    for tensor in wanted[::2] if len(wanted) > 1 else []:
        tensor.requires_grad_(False)


def _changed(call, change):
    """The call with every tensor replaced."""

    def one(value):
        if isinstance(value, torch.Tensor):
            return change(value)
        if isinstance(value, dict):
            return {key: one(item) for key, item in value.items()}
        if type(value) in (tuple, list):
            return type(value)(map(one, value))
        return value

    return (call[0], one(call[1]), one(call[2]))


def calls(case, limit):
    """The case's calls, at most `limit` of them; tensors are new in every call of this."""
    op, dtype = OPS[case.op], DTYPES[case.dtype]
    _seed(case)
    if case.variant in ERRORS:
        samples = [e.sample_input for e in op.error_inputs(DEVICE)]
        return [(op.get_op(), (s.input, *s.args), dict(s.kwargs)) for s in samples][:limit]
    given = op.reference_inputs if case.variant == "reference" else op.sample_inputs
    made = list(given(DEVICE, dtype, requires_grad=takes_gradients(case)))
    if case.variant == "channels_last":
        made = [s for s in made if any(t.dim() == 4 for t in _flat([s.input, *s.args]))]
    found = [_call(case, op, s) for s in _spread(made, limit)]
    return [call for call in found if call is not None]


def _call(case, op, sample):
    """The call of a sample; None where the variant has no such call."""
    call = (op.get_op(), (sample.input, *sample.args), dict(sample.kwargs))
    if case.variant == "inplace":
        return None if sample.broadcasts_input else (op.get_inplace(), *call[1:])
    if case.variant.startswith("out"):
        _seed(case)
        return _for_out(case.variant, *call)
    if case.variant == "strided":
        return _changed(call, _with_holes)
    if case.variant == "channels_last":
        return _changed(call, _channels_last)
    if case.variant == "special":
        return _changed(call, _with_special_values)
    if case.variant == "mixed":
        _every_second(_flat(call[1:]))
    return call
