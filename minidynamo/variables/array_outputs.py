"""numpy's `out=`: what the function gives is computed, then written to the array."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .. import trace_rules
from .array_memory import shares_memory
from .base import VariableTracker, unsupported
from .constant import ConstantVariable

if TYPE_CHECKING:
    from ..symbolic_convert import Translator

Args = list[VariableTracker]
Kwargs = dict[str, VariableTracker]
numpy = trace_rules.numpy
# What gives the same where it writes to its argument.
_READ_FIRST = frozenset("clip round around cumsum cumprod".split())


def _position(real: Callable[..., Any]) -> int | None:
    """Where `out` is among the arguments, if it need not be named."""
    if isinstance(real, numpy.ufunc):
        return real.nin
    try:
        names = list(inspect.signature(real).parameters)
    except (TypeError, ValueError):  # functions written in C
        return None
    return names.index("out") if "out" in names else None


def with_named_out(real: Callable[..., Any], args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
    """The arguments with `out` as a keyword, if it is given; one array in place of a tuple of it,
    and nothing for None. `where=True` is nothing, too.
    """
    where = kwargs.get("where")
    if isinstance(where, ConstantVariable) and where.value is True:
        kwargs = {name: value for name, value in kwargs.items() if name != "where"}
    place = _position(real)
    if place is not None and len(args) == place + 1 and "out" not in kwargs:
        args, kwargs = args[:place], {**kwargs, "out": args[place]}
    if "out" not in kwargs:
        return args, kwargs
    out = kwargs["out"].realize()
    rest = {name: value for name, value in kwargs.items() if name != "out"}
    if out.python_type() is tuple and isinstance(real, numpy.ufunc) and real.nout == 1:
        (out,) = (item.realize() for item in out.items)  # type: ignore[attr-defined]
    is_none = isinstance(out, ConstantVariable) and out.value is None
    return args, rest if is_none else {**rest, "out": out}


def into(
    tx: Translator,
    name: str,
    real: Callable[..., Any],
    args: Args,
    kwargs: Kwargs,
    compute: Callable[[Kwargs], VariableTracker],
) -> VariableTracker:
    """A call with an array to write to. compute(kwargs): the call without.

    Functions but ufuncs may compute in another dtype for another array, so it has to have that of
    the result, and may read what they have written, if the array is an argument, too.
    """
    kind = trace_rules.numpy.ndarray
    out: Any = kwargs["out"].realize()
    if out.python_type() is not kind:
        unsupported("numpy call", name, "out= is no array")
    is_ufunc = isinstance(real, numpy.ufunc)
    if not is_ufunc and name not in _READ_FIRST and shares_memory(out, args):
        unsupported("numpy call", name, "out= is an argument, too")
    made: Any = compute({key: value for key, value in kwargs.items() if key != "out"})
    if not issubclass(made.python_type(), (kind, numpy.generic)) or made.is_python_constant():
        unsupported("numpy call", name, "the result is no array")
    casts = numpy.can_cast(made.dtype(), out.dtype(), "same_kind")
    fits = casts if is_ufunc else made.dtype() == out.dtype()
    if not fits or tuple(made.tensor.fake.shape) != tuple(out.tensor.fake.shape):
        unsupported("numpy call", name, "the result has another shape or dtype than out=")
    out.setitem(tx, ConstantVariable(...), made)
    return out  # type: ignore[no-any-return]
