"""The iterators of itertools. Each can be rebuilt as the real one in the state that it is in."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ..side_effects import Mutation
from .base import VariableTracker, unsupported
from .builtin_object import NONE, construct, is_none
from .constant import ConstantVariable
from .iterators import IteratorVariable, advance

if TYPE_CHECKING:
    from ..codegen import PyCodegen
    from ..symbolic_convert import Translator

Values = VariableTracker


class ToolIterator(IteratorVariable):
    """Base: new, of type `tool`."""

    tool: type

    def __init__(self) -> None:
        super().__init__(self.tool, mutation=Mutation.NEW)


def pull(tx: Translator, iterator: Values) -> Values | None:
    """The next realised value of an inner iterator, or None."""
    item = iterator.realize().next(tx)
    return None if item is None else item.realize()


def push_list(codegen: PyCodegen, items: list[Values]) -> Callable[[], None]:
    """An emitter of a list of these values."""

    def push() -> None:
        codegen.sequence(items)
        codegen.emit("BUILD_LIST", len(items))

    return push


class CountIterator(ToolIterator):
    """count(value, step)."""

    tool = itertools.count

    def __init__(self, value: Values, by: Values) -> None:
        super().__init__()
        self.value = value
        self.by = by

    def step(self, tx: Translator) -> Values:
        value = self.value
        self.value = tx.call_operator(operator.add, [value.realize(), self.by.realize()])
        return value

    def reconstruct(self, codegen: PyCodegen) -> None:
        construct(codegen, itertools.count, self.value, self.by)


class RepeatIterator(ToolIterator):
    """repeat(value, times); times None: for ever."""

    tool = itertools.repeat

    def __init__(self, value: Values, times: int | None) -> None:
        super().__init__()
        self.value = value
        self.times = times

    def step(self, tx: Translator) -> Values | None:
        if self.times is None:
            return self.value
        if self.times <= 0:
            return None
        self.times -= 1
        return self.value

    def remaining(self) -> int | None:
        return None if self.times is None else max(self.times, 0)

    def tells_length(self) -> bool:
        return True

    def call_method(
        self,
        tx: Translator,
        name: str,
        args: list[Values],
        kwargs: dict[str, Values],
    ) -> Values:
        if name == "__length_hint__" and self.times is None and not args and not kwargs:
            tx.raise_observed(TypeError, "len() of unsized object")
        return super().call_method(tx, name, args, kwargs)

    def reconstruct(self, codegen: PyCodegen) -> None:
        if self.times is None:
            construct(codegen, itertools.repeat, self.value)
        else:
            construct(codegen, itertools.repeat, self.value, self.times)


class ChainIterator(ToolIterator):
    """chain: `iterables` is an iterator of what is to be iterated."""

    tool = itertools.chain

    def __init__(self, iterables: Values) -> None:
        super().__init__()
        self.iterables = iterables
        self.active: Values | None = None
        self.exhausted = False

    def step(self, tx: Translator) -> Values | None:
        while not self.exhausted:
            if self.active is None:
                iterable = pull(tx, self.iterables)
                if iterable is None:
                    self.exhausted = True
                    break
                self.active = iterable.iter(tx)
            item = self.active.next(tx)
            if item is not None:
                return item
            self.active = None
        return None

    def reconstruct(self, codegen: PyCodegen) -> None:
        construct(codegen, _chain, self.exhausted, self.active or NONE, self.iterables)


def _chain(exhausted: bool, active: Any, iterables: Any) -> Any:
    if exhausted:
        return itertools.chain()
    rest = itertools.chain.from_iterable(iterables)
    return rest if active is None else itertools.chain(active, rest)


class CycleIterator(ToolIterator):
    """cycle(iterator): the items of the first round are kept."""

    tool = itertools.cycle

    def __init__(self, iterator: Values) -> None:
        super().__init__()
        self.iterator: Values | None = iterator
        self.saved: list[Values] = []
        self.index = 0

    def step(self, tx: Translator) -> Values | None:
        if self.iterator is not None:
            item = self.iterator.realize().next(tx)
            if item is not None:
                self.saved.append(item)
                return item
            self.iterator = None
        if not self.saved:
            return None
        item = self.saved[self.index]
        self.index = (self.index + 1) % len(self.saved)
        return item

    def reconstruct(self, codegen: PyCodegen) -> None:
        rest = self.saved[self.index :] + self.saved[: self.index]
        construct(codegen, _cycle, push_list(codegen, rest), self.iterator or NONE)


def _cycle(saved: list[Any], iterator: Any) -> Any:
    if iterator is None:
        return itertools.cycle(saved)
    result = itertools.cycle(itertools.chain(saved, iterator))
    advance(result, len(saved))
    return result


class SliceIterator(ToolIterator):
    """islice: `at` items were taken, `wanted` is the number of the next that counts."""

    tool = itertools.islice

    def __init__(
        self,
        iterator: Values,
        start: int,
        stop: int | None,
        by: int,
    ) -> None:
        super().__init__()
        self.iterator = iterator
        self.wanted = start
        self.stop = stop
        self.by = by
        self.at = 0
        self.exhausted = False

    def step(self, tx: Translator) -> Values | None:
        while not self.exhausted and self.at < self.wanted:
            self.exhausted = self.iterator.realize().next(tx) is None
            self.at += not self.exhausted
        if self.exhausted or (self.stop is not None and self.at >= self.stop):
            self.exhausted = True
            return None
        item = self.iterator.realize().next(tx)
        if item is None:
            self.exhausted = True
            return None
        self.at += 1
        self.wanted += self.by
        if self.stop is not None:
            self.wanted = min(self.wanted, self.stop)
        return item

    def reconstruct(self, codegen: PyCodegen) -> None:
        if self.exhausted:
            construct(codegen, itertools.islice, lambda: codegen.load_const(()), 0)
            return
        stop = None if self.stop is None else self.stop - self.at
        start = self.wanted - self.at
        construct(codegen, itertools.islice, self.iterator, start, stop, self.by)


class PoolIterator(ToolIterator):
    """product, permutations, combinations: over all items at hand, chosen by index."""

    def __init__(
        self,
        tool: type,
        pools: list[list[Values]],
        indices: Iterator[tuple[int, ...]],
        **named: int,
    ) -> None:
        self.tool = tool
        super().__init__()
        self.pools = pools
        self.indices = indices
        self.named = named

    def step(self, tx: Translator) -> Values | None:
        chosen = next(self.indices, None)
        if chosen is None:
            return None
        pools = self.pools if self.tool is itertools.product else self.pools * len(chosen)
        return tx.wrap_items(tuple, [pool[i] for pool, i in zip(pools, chosen, strict=True)])

    def reconstruct(self, codegen: PyCodegen) -> None:
        pools = [push_list(codegen, pool) for pool in self.pools]
        names, attempts = tuple(self.named.items()), self.attempts
        construct(
            codegen, _pool, lambda: codegen.load_const((self.tool, names, attempts)), *pools
        )


def _pool(recipe: tuple[Any, ...], *pools: list[Any]) -> Any:
    tool, names, attempts = recipe
    result = tool(*pools, **dict(names))
    advance(result, attempts)
    return result


class AccumulateIterator(ToolIterator):
    """accumulate(iterator, function, initial=total)."""

    tool = itertools.accumulate

    def __init__(
        self,
        iterator: Values,
        function: Values,
        initial: Values,
    ) -> None:
        super().__init__()
        self.iterator = iterator
        self.function = function
        self.total: Values | None = None
        self.initial: Values | None = None if is_none(initial) else initial

    def step(self, tx: Translator) -> Values | None:
        if self.initial is not None:
            self.total, self.initial = self.initial, None
            return self.total
        item = pull(tx, self.iterator)
        if item is None:
            return None
        if self.total is None:
            self.total = item
        elif is_none(self.function):
            self.total = tx.call_operator(operator.add, [self.total.realize(), item])
        else:
            self.total = tx.call_function(self.function, [self.total, item], {})
        return self.total

    def reconstruct(self, codegen: PyCodegen) -> None:
        started = self.total is not None
        initial = self.total or self.initial or NONE
        construct(codegen, _accumulate, self.iterator, self.function, initial, started)


def _accumulate(
    iterator: Any,
    function: Any,
    initial: Any,
    started: bool,
) -> Any:
    if not started:
        return itertools.accumulate(iterator, function, initial=initial)
    # A total of None is none for `initial`.
    result = itertools.accumulate(itertools.chain([initial], iterator), function)
    next(result)
    return result


class StarmapIterator(ToolIterator):
    """starmap(function, iterator)."""

    tool = itertools.starmap

    def __init__(self, function: Values, iterator: Values) -> None:
        super().__init__()
        self.function = function
        self.iterator = iterator

    def step(self, tx: Translator) -> Values | None:
        args = pull(tx, self.iterator)
        return None if args is None else tx.call_function(self.function, args.unpack(tx), {})

    def reconstruct(self, codegen: PyCodegen) -> None:
        construct(codegen, itertools.starmap, self.function, self.iterator)


class WhileIterator(ToolIterator):
    """takewhile and dropwhile; `decided`: the predicate failed once."""

    def __init__(
        self,
        tool: type,
        predicate: Values,
        iterator: Values,
    ) -> None:
        self.tool = tool
        super().__init__()
        self.predicate = predicate
        self.iterator = iterator
        self.decided = False

    def step(self, tx: Translator) -> Values | None:
        takes = self.tool is itertools.takewhile
        if takes and self.decided:
            return None
        while (item := pull(tx, self.iterator)) is not None:
            if not self.decided:
                verdict = tx.call_function(self.predicate, [item], {}).realize()
                self.decided = not verdict.truth(tx)
            if takes:
                return None if self.decided else item
            if self.decided:
                return item
        return None

    def reconstruct(self, codegen: PyCodegen) -> None:
        predicate = self.predicate if not self.decided else lambda: codegen.load_const(_never)
        construct(codegen, self.tool, predicate, self.iterator)


def _never(item: Any) -> bool:
    return False


class ZipLongestIterator(ToolIterator):
    """zip_longest(*iterators, fillvalue=fill); None stands for an exhausted iterator."""

    tool = itertools.zip_longest

    def __init__(self, iterators: list[Values], fill: Values) -> None:
        super().__init__()
        self.iterators: list[Values | None] = list(iterators)
        self.fill = fill

    def step(self, tx: Translator) -> Values | None:
        items = []
        if not any(iterator is not None for iterator in self.iterators):
            return None
        for index, iterator in enumerate(self.iterators):
            item = None if iterator is None else iterator.realize().next(tx)
            if item is None:
                self.iterators[index] = None
                if all(other is None for other in self.iterators):
                    return None
            items.append(self.fill if item is None else item)
        return tx.wrap_items(tuple, items)

    def reconstruct(self, codegen: PyCodegen) -> None:
        parts = [ConstantVariable(()) if i is None else i for i in self.iterators]
        construct(codegen, _zip_longest, self.fill, *parts)


def _zip_longest(fill: Any, *iterators: Any) -> Any:
    return itertools.zip_longest(*iterators, fillvalue=fill)


class PairwiseIterator(ToolIterator):
    """pairwise(iterator)."""

    tool = itertools.pairwise

    def __init__(self, iterator: Values) -> None:
        super().__init__()
        self.iterator = iterator
        self.old: Values | None = None

    def step(self, tx: Translator) -> Values | None:
        old = self.old
        if old is None:
            old = self.old = self.iterator.realize().next(tx)
            if old is None:
                return None
        new = self.iterator.realize().next(tx)  # which may advance this iterator itself
        if new is None:
            self.old = None
            return None
        pair = tx.wrap_items(tuple, [old, new])
        self.old = new
        return pair

    def reconstruct(self, codegen: PyCodegen) -> None:
        before = [] if self.old is None else [self.old]
        construct(codegen, _pairwise, push_list(codegen, before), self.iterator)


def _pairwise(before: list[Any], iterator: Any) -> Any:
    return itertools.pairwise(itertools.chain(before, iterator))


class CompressIterator(ToolIterator):
    """compress(data, selectors)."""

    tool = itertools.compress

    def __init__(self, data: Values, selectors: Values) -> None:
        super().__init__()
        self.data = data
        self.selectors = selectors

    def step(self, tx: Translator) -> Values | None:
        while (item := self.data.realize().next(tx)) is not None:
            selector = pull(tx, self.selectors)
            if selector is None:
                return None
            if selector.truth(tx):
                return item
        return None

    def reconstruct(self, codegen: PyCodegen) -> None:
        construct(codegen, itertools.compress, self.data, self.selectors)


class BatchedIterator(ToolIterator):
    """batched(iterator, size)."""

    tool = getattr(itertools, "batched", object)

    def __init__(self, iterator: Values, size: int) -> None:
        super().__init__()
        self.iterator = iterator
        self.size = size

    def step(self, tx: Translator) -> Values | None:
        items: list[Values] = []
        while len(items) < self.size:
            item = self.iterator.realize().next(tx)
            if item is None:
                break
            items.append(item)
        return tx.wrap_items(tuple, items) if items else None

    def reconstruct(self, codegen: PyCodegen) -> None:
        construct(codegen, self.tool, self.iterator, self.size)


class TeeIterator(ToolIterator):
    """One of the iterators of tee: they share the source and the items that were read from it."""

    tool: type = type(itertools.tee(())[0])

    def __init__(self, iterator: Values, buffer: list[Values]) -> None:
        super().__init__()
        self.iterator = iterator
        self.buffer = buffer
        self.index = 0

    def step(self, tx: Translator) -> Values | None:
        if self.index == len(self.buffer):
            item = self.iterator.realize().next(tx)
            if item is None:
                return None
            self.buffer.append(item)
        self.index += 1
        return self.buffer[self.index - 1]

    def reconstruct(self, codegen: PyCodegen) -> None:
        unsupported(
            "iterator leaves the graph", "tee", "an iterator of itertools.tee is needed"
        )


class GroupByIterator(ToolIterator):
    """groupby(iterator, key); `current` is the item that was read last, with its key."""

    tool = itertools.groupby

    def __init__(self, iterator: Values, key: Values) -> None:
        super().__init__()
        self.iterator = iterator
        self.key = key
        self.target: Values | None = None
        self.current: tuple[Values, Values] | None = None
        self.group: GrouperIterator | None = None

    def advance(self, tx: Translator) -> bool:
        """`groupby_step`."""
        item = pull(tx, self.iterator)
        if item is None:
            return False
        key = item if is_none(self.key) else tx.call_function(self.key, [item], {}).realize()
        self.current = (key, item)
        return True

    def step(self, tx: Translator) -> Values | None:
        self.group = None
        while self.current is None or not self._is_new(tx, self.current[0]):
            if not self.advance(tx):
                return None
        self.target = self.current[0]
        self.group = GrouperIterator(self, self.target)
        return tx.wrap_items(tuple, [self.target, self.group])

    def _is_new(self, tx: Translator, key: Values) -> bool:
        return self.target is None or not same(tx, self.target, key)

    def reconstruct(self, codegen: PyCodegen) -> None:
        unsupported("iterator leaves the graph", "groupby", "an itertools.groupby is needed")


class GrouperIterator(ToolIterator):
    """The items of one group, while the groupby has not gone on."""

    tool = itertools.groupby([1]).__next__()[1].__class__

    def __init__(self, parent: GroupByIterator, key: Values) -> None:
        super().__init__()
        self.parent = parent
        self.key = key

    def step(self, tx: Translator) -> Values | None:
        parent = self.parent
        if parent.group is not self or (parent.current is None and not parent.advance(tx)):
            return None
        assert parent.current is not None
        key, item = parent.current
        if not same(tx, self.key, key):
            return None
        parent.current = None
        return item

    def reconstruct(self, codegen: PyCodegen) -> None:
        unsupported("iterator leaves the graph", "groupby", "a group is needed")


def same(tx: Translator, left: Values, right: Values) -> bool:
    """`left == right`, identity first."""
    return tx.wrap_items(list, [left]).contains(tx, right).truth(tx)
