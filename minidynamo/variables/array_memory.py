"""The memory that numpy's results share with arguments, where those of torch._numpy do not.

numpy's own function, run on samples, says what its result shares; fake tensors say it of torch's.

- Torch gives the argument itself, or a view of it, where numpy copies (`x.astype(x.dtype)`, the
  number `x[0]`): the node's result is copied.
- numpy gives the argument itself (`np.asarray(x)`): so does the trace.
- numpy gives a view where torch copies, for it has no negative strides (`x[::-1]`), or a view that
  refuses writes (`np.broadcast_to`): the graph reads torch's result, and what leaves the graph is
  made again by numpy, of the arrays as they then are (`View`). Writes to such a view break the
  graph, and so do reads of it behind a write to what it views.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from .. import trace_rules
from .base import VariableTracker, unsupported

if TYPE_CHECKING:
    from ..codegen import PyCodegen
    from ..symbolic_convert import Translator
    from .ndarray import NdarrayVariable
    from .tensor import TensorVariable

numpy = trace_rules.numpy

# An array of the trace, and the sample of it that numpy's own function took.
Sample = tuple["NdarrayVariable", Any]


@dataclass(frozen=True)
class View:
    """How numpy makes a view that torch's operators cannot give: the call, and where in its
    result it is.

    like: what the call gave for samples.
    versions: the tensors that the graph's copy was made of, with how often each had been written
    to; none if it is no copy.
    """

    function: Callable[..., Any]
    args: tuple[VariableTracker, ...]
    kwargs: dict[str, VariableTracker]
    path: tuple[int, ...]
    like: Any
    versions: tuple[tuple[torch.Tensor, int], ...]

    def check_read(self) -> None:
        if any(tensor._version != version for tensor, version in self.versions):
            unsupported("numpy array", repr(self.function), "what it views was written to")

    def reconstruct(
        self,
        codegen: PyCodegen,
    ) -> None:
        for _ in self.path:
            codegen.begin_call(operator.getitem)
        codegen.begin_call(self.function)
        for value in (*self.args, *self.kwargs.values()):
            codegen(value)
        codegen.end_call(len(self.args) + len(self.kwargs), tuple(self.kwargs))
        for index in self.path:
            codegen.load_const(index)
            codegen.end_call(2)


@dataclass(frozen=True)
class Call:
    """A call of numpy: its own function, what it was given, and the samples it was tried with."""

    function: Callable[..., Any]
    args: tuple[VariableTracker, ...]
    kwargs: dict[str, VariableTracker]
    samples: list[Sample]

    def array(
        self, tx: Translator, made: NdarrayVariable, like: Any, path: tuple[int, ...]
    ) -> NdarrayVariable:
        """`made` with the memory of numpy's result.

        like: what numpy gave for the samples. path: where it is in the nest that numpy gives.
        """
        memory = _memory(made)
        in_torch = [array for array, _ in self.samples if _memory(array) == memory]
        if isinstance(like, numpy.generic):
            return made.called(tx, "clone", {}) if in_torch else made
        for array, sample in self.samples:
            if sample is like:
                return array
        in_numpy = [a for a, sample in self.samples if numpy.may_share_memory(sample, like)]
        lost = bool(in_numpy) and (not in_torch or any(a.view for a in in_numpy))
        if lost or not like.flags.writeable:
            versions = tuple(_versions(in_numpy, in_torch))
            made.view = View(self.function, self.args, self.kwargs, path, like, versions)
        elif not in_numpy and like.flags.c_contiguous:
            contiguous = {"memory_format": tx.wrap_constant(torch.contiguous_format)}
            if in_torch:
                return made.called(tx, "clone", contiguous)
            if not made.tensor.fake.is_contiguous():
                return made.called(tx, "contiguous", contiguous)
        elif in_torch and not in_numpy:
            return made.called(tx, "clone", {})
        return made


def _versions(
    in_numpy: list[NdarrayVariable], in_torch: list[NdarrayVariable]
) -> Iterator[tuple[torch.Tensor, int]]:
    """What the graph's copy of a view is as old as."""
    for array in in_numpy:
        if array.view is not None:
            yield from array.view.versions
        if not in_torch:
            yield array.tensor.fake, array.tensor.fake._version


def _memory(array: NdarrayVariable) -> int:
    return array.tensor.fake.untyped_storage()._cdata


def shares_memory(array: NdarrayVariable, others: Iterable[VariableTracker]) -> bool:
    """Whether the array lies in the memory of another, or of one in a list or tuple of others."""
    memory = _memory(array)
    for other in map(VariableTracker.realize, others):
        if type(other) is type(array) and _memory(other) == memory:  # type: ignore[arg-type]
            return True
        is_nest = other.python_type() in (list, tuple) and not other.is_python_constant()
        if is_nest and shares_memory(array, other.items):  # type: ignore[attr-defined]
            return True
    return False


def place_of(fake: torch.Tensor) -> Any:
    """Which memory a tensor has, and how it is laid out there."""
    return fake.untyped_storage()._cdata, tuple(fake.shape), fake.stride()


def check_place(
    tensor: TensorVariable,
    place: Any,
) -> None:
    """Break the graph where the tensor of an array is not what it was when the array was made."""
    if place_of(tensor.fake) != place:
        what = "its tensor was given another shape or other memory"
        unsupported("numpy array", tensor.describe(), what)


def apart(
    tx: Translator, written: NdarrayVariable, others: list[VariableTracker]
) -> list[VariableTracker]:
    """The operands of a write; numpy reads those that share its memory before it writes."""
    memory = _memory(written)
    others = [other.realize() for other in others]
    return [
        other.called(tx, "clone", {})  # type: ignore[attr-defined]
        if type(other) is type(written) and _memory(other) == memory  # type: ignore[arg-type]
        else other
        for other in others
    ]


_DIVISIONS = frozenset("floordiv mod divmod floor_divide remainder fmod".split())
_POWERS = frozenset(("pow", "power"))


def check_values(
    name: str,
    args: list[VariableTracker],
    kwargs: dict[str, VariableTracker],
    kinds: list[str],
) -> None:
    """Break the graph where torch gives other values than numpy.

    kinds: of the dtypes of the arrays among args.
    """
    plain = name.strip("_").removeprefix("i")
    is_integer = set(kinds) <= set("iub")
    if plain in ("std", "var") and (len(args) > 2 or "dtype" in kwargs):
        unsupported("numpy call", name, "with a dtype, to which torch converts at another step")
    if plain in ("round", "around") and is_integer and (len(args) > 1 or kwargs):
        unsupported("numpy call", name, "of integers to places, which torch does not round")
    if plain in _DIVISIONS | _POWERS and len(args) > 1:
        _check_second(name, plain, args, kinds)


def _check_second(
    name: str,
    plain: str,
    args: list[VariableTracker],
    kinds: list[str],
) -> None:
    """Integers divided by 0 are 0 in numpy and an error in torch, those to negative powers are an
    error in numpy: only known divisors and exponents are traced.
    """
    second = args[1].realize()
    known = second.as_python_constant() if second.is_python_constant() else 0
    if known != 0 or (second.is_python_constant() and plain in _POWERS and "c" not in kinds):
        return
    numbers = [type(a.as_python_constant()) for a in args if a.is_python_constant()]
    if "c" in kinds:
        unsupported(
            "numpy call", name, "of complex numbers, of which torch makes NaN of 0 ** 0"
        )
    if set(kinds) <= set("iub") and not {float, complex} & set(numbers):
        unsupported("numpy call", name, "of integers, the second of which may be refused")
