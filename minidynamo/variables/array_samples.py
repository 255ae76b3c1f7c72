"""Arrays that stand for those of the trace when numpy's own function is asked what it gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sympy
import torch

from .. import trace_rules
from .base import unsupported
from .symint import SYM_TYPES

if TYPE_CHECKING:
    from .ndarray import NdarrayVariable

numpy = trace_rules.numpy


def hint(number: Any) -> Any:
    """The value of a number for this call, which is no guard."""
    if not isinstance(number, SYM_TYPES):
        return number
    if not number.node.has_hint():
        unsupported("numpy call", str(number), "a number depends on the data of a tensor")
    return number.node.hint


def _size(number: Any) -> int:
    """`hint`; a size that depends on data is some number of its own, so that numpy refuses to
    combine two of them: eager may broadcast the one that is 1.
    """
    if not isinstance(number, torch.SymInt) or number.node.has_hint():
        return hint(number)  # type: ignore[no-any-return]
    expression = number.node.expr
    if not isinstance(expression, sympy.Symbol):
        return hint(number)  # type: ignore[no-any-return]
    return 11 + int("".join(filter(str.isdigit, expression.name)) or 0)


def sample(array: NdarrayVariable) -> Any:
    """Some array of the same shape, strides and dtype, or number of the same dtype."""
    if array.view is not None:
        return array.view.like
    fake, dtype = array.tensor.fake, array.dtype()
    shape, strides = tuple(map(_size, fake.shape)), tuple(map(_size, fake.stride()))
    made = torch.empty_strided(shape, strides, dtype=fake.dtype, device="cpu").numpy()
    # Sums of arrays without dimensions are numbers.
    random = numpy.random.default_rng(0).random(shape) if dtype.kind in "fc" else 0.5
    made[...] = random + 0.5
    return made[()] if array.is_scalar else made


def has_shape(
    fake: torch.Tensor,
    shape: tuple[int, ...],
) -> bool:
    """Sizes that depend on data are not compared."""
    sizes = zip(fake.shape, shape, strict=False)
    known = [(a, b) for a, b in sizes if not isinstance(a, torch.SymInt) or a.node.has_hint()]
    return fake.dim() == len(shape) and all(hint(a) == b for a, b in known)


# What numpy does with arrays of any size alike, also with empty ones and those of one element.
_ELEMENTWISE = frozenset(
    "add sub mul truediv iadd isub imul itruediv neg pos abs eq ne lt le gt ge and or xor invert"
    " iand ior ixor astype copy sum prod mean all any cumsum concatenate hstack".split()
)


def check_sizes(
    name: str,
    function: Any,
    array: NdarrayVariable,
) -> None:
    """Break the graph where what numpy does may depend on a size that depends on data."""
    sizes = [size for size in array.tensor.fake.shape if isinstance(size, torch.SymInt)]
    if all(size.node.has_hint() for size in sizes) or isinstance(function, numpy.ufunc):
        return
    if name.strip("_") not in _ELEMENTWISE:
        unsupported("numpy call", name, "of a size that depends on the data of a tensor")


# Their vectors are known but for the signs, which libraries choose differently.
_UP_TO_SIGNS = frozenset({"linalg.svd", "linalg.eigh", "linalg.eig"})


def check_vectors(
    name: str,
    like: Any,
) -> None:
    """Break the graph where numpy's vectors may be the opposite of torch's."""
    if name in _UP_TO_SIGNS and isinstance(like, tuple):
        unsupported("numpy call", name, "numpy's vectors may have the opposite signs")
