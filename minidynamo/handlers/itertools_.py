"""The constructors of itertools."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from ..variables.base import VariableTracker, unsupported
from ..variables.builtin_object import NONE, has_slot, index_of
from ..variables.constant import ConstantVariable
from ..variables.itertools_ import (
    AccumulateIterator,
    BatchedIterator,
    ChainIterator,
    CompressIterator,
    CountIterator,
    CycleIterator,
    GroupByIterator,
    PairwiseIterator,
    PoolIterator,
    RepeatIterator,
    SliceIterator,
    StarmapIterator,
    TeeIterator,
    WhileIterator,
    ZipLongestIterator,
)
from ..variables.lazy_iterators import FilterVariable
from .builtins import Values, builtin, is_none

if TYPE_CHECKING:
    from ..symbolic_convert import Translator

ZERO, ONE = ConstantVariable(0), ConstantVariable(1)


@builtin(itertools.count)
def _count(tx: Translator, start: Values = ZERO, step: Values = ONE) -> VariableTracker:
    for number in (start, step):
        if not any(
            has_slot(tx, number, f"__{name}__") for name in ("index", "int", "float", "complex")
        ):
            tx.raise_observed(TypeError, "a number is required")
    return CountIterator(start, step)


@builtin(itertools.repeat)
def _repeat(tx: Translator, object: Values, times: Values | None = None) -> VariableTracker:
    return RepeatIterator(object, None if times is None else max(index_of(tx, times), 0))


@builtin(itertools.chain)
def _chain(tx: Translator, /, *iterables: Values) -> VariableTracker:
    return ChainIterator(tx.wrap_items(tuple, list(iterables)).iter(tx))


@builtin(vars(itertools.chain)["from_iterable"])
def _from_iterable(tx: Translator, cls: Values, iterables: Values, /) -> VariableTracker:
    return ChainIterator(iterables.iter(tx))


@builtin(itertools.cycle)
def _cycle(tx: Translator, iterable: Values, /) -> VariableTracker:
    return CycleIterator(iterable.iter(tx))


@builtin(itertools.islice)
def _islice(tx: Translator, iterable: Values, /, *bounds: Values) -> VariableTracker:
    if not all(is_none(bound) or has_slot(tx, bound, "__index__") for bound in bounds):
        unsupported("call does not fit", "islice", "eager will raise the error")
    limits = [None if is_none(bound) else index_of(tx, bound) for bound in bounds]
    if not 1 <= len(limits) <= 3 or any(limit is not None and limit < 0 for limit in limits):
        unsupported("call does not fit", "islice", "eager will raise the error")
    part = slice(*limits)
    step = 1 if part.step is None else part.step
    if step == 0:
        unsupported("call does not fit", "islice", "eager will raise the error")
    return SliceIterator(iterable.iter(tx), part.start or 0, part.stop, step)


@builtin(itertools.product)
def _product(
    tx: Translator, /, *iterables: Values, repeat: Values | None = None
) -> VariableTracker:
    pools = [iterable.unpack(tx) for iterable in iterables]
    times = 1 if repeat is None else index_of(tx, repeat)
    if times < 0:
        unsupported("call does not fit", "product", "eager will raise the error")
    pools = pools * times
    indices = itertools.product(*(range(len(pool)) for pool in pools))
    return PoolIterator(itertools.product, pools, indices)


def _register_choices() -> None:
    for tool in (
        itertools.combinations,
        itertools.combinations_with_replacement,
        itertools.permutations,
    ):
        builtin(tool)(_choices(tool))


def _choices(tool: Any) -> Any:
    def make(tx: Translator, iterable: Values, r: Values | None = None) -> VariableTracker:
        pool = iterable.unpack(tx)
        if r is None and tool is not itertools.permutations:
            unsupported("call does not fit", tool.__name__, "eager will raise the error")
        size = len(pool) if r is None or is_none(r) else index_of(tx, r)
        if size < 0:
            unsupported("call does not fit", tool.__name__, "eager will raise the error")
        return PoolIterator(tool, [pool], tool(range(len(pool)), size), r=size)

    return make


_register_choices()


@builtin(itertools.accumulate)
def _accumulate(
    tx: Translator,
    iterable: Values,
    func: Values = NONE,
    *,
    initial: Values = NONE,
) -> VariableTracker:
    return AccumulateIterator(iterable.iter(tx), func, initial)


@builtin(itertools.starmap)
def _starmap(tx: Translator, function: Values, iterable: Values, /) -> VariableTracker:
    return StarmapIterator(function, iterable.iter(tx))


@builtin(itertools.takewhile)
def _takewhile(tx: Translator, predicate: Values, iterable: Values, /) -> VariableTracker:
    return WhileIterator(itertools.takewhile, predicate, iterable.iter(tx))


@builtin(itertools.dropwhile)
def _dropwhile(tx: Translator, predicate: Values, iterable: Values, /) -> VariableTracker:
    return WhileIterator(itertools.dropwhile, predicate, iterable.iter(tx))


@builtin(itertools.filterfalse)
def _filterfalse(tx: Translator, predicate: Values, iterable: Values, /) -> VariableTracker:
    return FilterVariable(predicate, iterable.iter(tx), keep=False)


@builtin(itertools.zip_longest)
def _zip_longest(
    tx: Translator, /, *iterables: Values, fillvalue: Values = NONE
) -> VariableTracker:
    return ZipLongestIterator([iterable.iter(tx) for iterable in iterables], fillvalue)


@builtin(itertools.pairwise)
def _pairwise(tx: Translator, iterable: Values, /) -> VariableTracker:
    return PairwiseIterator(iterable.iter(tx))


@builtin(itertools.compress)
def _compress(tx: Translator, data: Values, selectors: Values) -> VariableTracker:
    return CompressIterator(data.iter(tx), selectors.iter(tx))


@builtin(itertools.groupby)
def _groupby(tx: Translator, iterable: Values, key: Values = NONE) -> VariableTracker:
    return GroupByIterator(iterable.iter(tx), key)


@builtin(itertools.tee)
def _tee(tx: Translator, iterable: Values, n: Values | None = None, /) -> VariableTracker:
    count = 2 if n is None else index_of(tx, n)
    if isinstance(iterable, TeeIterator) or count < 0:
        unsupported("call does not fit", "tee", "tee of a tee is not traced")
    iterator = iterable.iter(tx)
    buffer: list[Values] = []
    return tx.wrap_items(tuple, [TeeIterator(iterator, buffer) for _ in range(count)])


def _batched(
    tx: Translator,
    iterable: Values,
    n: Values,
    *,
    strict: Values | None = None,
) -> VariableTracker:
    size = index_of(tx, n)
    if size < 1 or (strict is not None and strict.truth(tx)):
        unsupported("call does not fit", "batched", "eager will raise the error")
    return BatchedIterator(iterable.iter(tx), size)


if hasattr(itertools, "batched"):
    builtin(itertools.batched)(_batched)
