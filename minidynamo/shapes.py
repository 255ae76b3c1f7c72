"""Symbolic sizes, ints and floats of one attempt at a frame, and the guards that they leave.

    shapes = Shapes.of(options, code, shape_env)
    context = shapes.tensor_context(tensor, source, static=False)   # for FakeTensorMode.from_tensor
    shapes.track_tensor(source, tensor, fake, stack)
    number = shapes.number(3, source, stack)            # SymInt, SymFloat, or None: a constant
    shapes.note_guards(stack)                           # who needed the latest guards
    shapes.add_guards(guard_set)                        # at the end, after the backend

torch's ShapeEnv decides branches and simplifies. What it relied on becomes native guards: places
(sizes, strides, ints) where a symbol shows must agree, symbols stay within their ranges, and every
condition that was decided still holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
)
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._sympy.printers import PythonPrinter

from . import config, listed_sources, markers
from .compile_options import CompileOptions
from .exc import RunInEager, UserError
from .guard_expr import from_sympy
from .guards import Check, Guard, GuardSet, Predicate, TensorSpec, UserStack
from .joined_sources import is_joined, predicate
from .shape_env import expr_function, note_checked
from .shape_history import History, history_of, is_counter, may_be_counter
from .shape_specs import UNBACKED, SpecifiedShapes
from .source import (
    AttrSource,
    ClosureSource,
    FuncDefaultsSource,
    FuncKwDefaultsSource,
    LocalSource,
    ModuleItemSource,
    Source,
    TensorPropertySource,
)
from .source_chains import chain, is_kept_by_class, is_kept_by_torchs, numbers_in
from .symbolic_contexts import (
    ConstraintViolation,
    TorchSource,
    between,
    constraint_of,
    is_bound,
    is_ragged_symbol,
    parts_of,
    place_in_nested,
    place_of,
    places,
    places_of_gradient,
    static_context,
    unbacked_dims,
)

_INT64 = 2**63
# Integers below these: sums and products of two fit 64 bits.
_SMALL, WIDEST = 2**31, 2**60
_OFFSETS = (torch.int64, torch.int32)


@dataclass(slots=True)
class _Tensor:
    source: Source
    value: torch.Tensor
    fake: torch.Tensor
    stack: UserStack
    marked: frozenset[int]
    judged: frozenset[int]  # dimensions with criteria for code of their own


@dataclass(slots=True)
class _Number:
    source: Source
    value: float
    symbol: sympy.Symbol
    stack: UserStack


class Shapes:
    """What is symbolic in one attempt. dynamic: as in `compile`. specified: of its shapes_spec."""

    def __init__(
        self,
        env: ShapeEnv,
        history: History,
        dynamic: bool | None,
        specified: SpecifiedShapes | None = None,
    ) -> None:
        self.env = env
        self.specified = specified
        self.history = history
        # The local with the item of a loop around a graph break: the next one will be another.
        self.loop_item: str | None = None
        self.automatic = config.automatic_dynamic_shapes and dynamic is not False
        self.static_first = config.assume_static_by_default and dynamic is not True
        # Where generated code and guards find the value of each symbol.
        self.sources: dict[sympy.Symbol, Source] = {}
        # Sources of nn.Modules and their classes: what they hold are constants by default.
        self.modules: dict[Source, type] = {}
        # Whether results of the graph gave symbols.
        self.has_data_dependent = False
        # Nested tensors of the frame, and whether there are any in the graph.
        self.nested: list[Source] = []
        self.has_nested = False
        self._tensors: list[_Tensor] = []
        self._numbers: dict[Source, _Number] = {}
        self.narrowed: set[sympy.Symbol] = set()
        self._stacks: list[UserStack] = []
        self._unbacked: dict[Source, frozenset[int]] = {}
        # What holds for sizes with criteria.
        self._said: list[tuple[Any, UserStack]] = []
        # The first size, and its symbol, of each shape_id.
        self._shape_ids: dict[str, tuple[int, Any]] = {}

    @staticmethod
    def of(options: CompileOptions, code: CodeType, env: ShapeEnv) -> Shapes:
        """Of a frame with that code, whose symbols are made in `env`."""
        spec = options.shapes_spec
        specified = None if spec is None else SpecifiedShapes(spec, code, env)
        return Shapes(env, history_of(code), options.dynamic, specified)

    # -- what becomes symbolic -------------------------------------------------------------------

    def tensor_context(
        self, value: torch.Tensor, source: Source, *, static: bool
    ) -> StatelessSymbolicContext[..., Any] | None:
        """Which dimensions of a tensor of the frame are symbolic; None if none is.

        static: its sizes are constants unless marked (parameters, tensors of modules).
        """
        if self.specified is not None:
            context, self._unbacked[source] = self.specified.context(value, source)
            return context
        dynamic, weak = markers.dynamic_dims(value), markers.maybe_dynamic_dims(value)
        unbacked = unbacked_dims(value, source)
        if listed_sources.is_dynamic(source.name):
            weak = frozenset(range(value.dim()))
        kept = markers.static_dims(value) - dynamic
        if static and not (dynamic or weak or unbacked):
            return None
        sizes, strides = (False,) * value.dim(), (False,) * value.dim()
        seen = self.history.tensor(source.name, value)
        if self.automatic:
            sizes, strides = seen
            self.history.mark(source.name, tuple(dynamic), value.dim())
        if config.automatic_dynamic_shapes_mark_as == "unbacked":
            known = kept | dynamic | weak
            unbacked |= {
                dim for dim, changed in enumerate(sizes) if changed and dim not in known
            }
        self._unbacked[source] = unbacked
        otherwise = DimDynamic.STATIC if self.static_first or static else DimDynamic.DUCK
        kinds = [
            UNBACKED
            if dim in unbacked
            else DimDynamic.DYNAMIC
            if dim in dynamic or dim in weak or (sizes[dim] and dim not in kept)
            else DimDynamic.STATIC
            if dim in kept
            else otherwise
            for dim in range(value.dim())
        ]
        moving = [DimDynamic.DYNAMIC if s else DimDynamic.INFER_STRIDE for s in strides]
        base = self._base_context(value, source)
        is_constant = set(kinds) <= {DimDynamic.STATIC} and DimDynamic.DYNAMIC not in moving
        if is_constant and base is None:
            return None
        if base is None and value._base is not None:
            base = static_context(value._base)
        return StatelessSymbolicContext(
            dynamic_sizes=kinds,
            dynamic_strides=moving,
            constraint_sizes=[constraint_of(value, dim, dynamic) for dim in range(value.dim())],
            view_base_context=base,
        )

    def _base_context(self, value: torch.Tensor, source: Source) -> Any:
        """Of the tensor that one is a view of: torch makes its fake along, and it may be an input
        that comes later. None if its sizes are constants, or there is none.
        """
        base, place = value._base, AttrSource(source, "_base")
        if base is None or is_traceable_wrapper_subclass(base) or unbacked_dims(base, place):
            return None
        return self.tensor_context(base, place, static=self.is_static(base, place))

    def track_tensor(
        self, source: Source, value: torch.Tensor, fake: torch.Tensor, stack: UserStack
    ) -> None:
        """A tensor that `tensor_context` gave a context; its guards come with `add_guards`."""
        criteria = self.history.criteria(source.name, value)
        marked, judged = markers.enforced_dims(value), frozenset(criteria)
        chosen = {
            dim
            for dim, checks in criteria.items()
            if self._is_chosen(value.shape[dim], fake.shape[dim], checks, stack)
        }
        self._tensors.append(_Tensor(source, value, fake, stack, marked - chosen, judged))
        for place, number in (*places(source, fake), *places_of_gradient(source, fake)):
            expr = _expr(number)
            if isinstance(expr, sympy.Symbol):
                self.sources.setdefault(expr, place)
        for dim in sorted(self._unbacked.get(source, ())):
            self._note_unbacked(value, fake.shape[dim], dim, source)

    def locate_symbols(self) -> None:
        """Find the places of symbols that no fake shows: a wrapper may take its sizes from what it
        wraps, whose symbols stand for those that torch made for it.
        """
        for symbol, known_as in self.env.var_to_sources.items():
            place = place_of(known_as[0]) if symbol not in self.sources else None
            if isinstance(place, TensorPropertySource) and place.base in self.nested:
                place = place_in_nested(place)
            if place is not None:
                self.sources[symbol] = place

    def _is_chosen(self, value: int, size: Any, checks: Any, stack: UserStack) -> bool:
        """Whether a size meets one of the user's criteria; that, or that it meets none, is a
        guard.
        """
        for check in checks if isinstance(size, torch.SymInt) else ():
            holds, symbolic = bool(check(value)), check(size)
            if isinstance(symbolic, torch.SymBool):
                said = symbolic if holds else torch.sym_not(symbolic)
                self._said.append((said.node.expr, stack))
                torch._check(said)
            if holds:
                return True
        return False

    def _note_unbacked(self, value: torch.Tensor, size: Any, dim: int, source: Source) -> None:
        """What the user said about an unbacked size holds from the start."""
        # No operation of the graph made it.
        if isinstance(size, torch.SymInt):
            pending = self.env.pending_fresh_unbacked_symbols
            pending[:] = [symbol for symbol in pending if symbol is not _expr(size)]
        if self.specified is not None:
            return self.specified.note_size(value, size, dim, source)
        low, high = markers.unbacked_range(value, dim)
        if low is not None:
            torch._check(size >= low)
        if high is not None:
            torch._check(size <= high)
        name = markers.shape_id(value, dim)
        if name is None:
            return
        known, first = self._shape_ids.setdefault(name, (value.shape[dim], size))
        if known != value.shape[dim]:
            raise UserError(
                f"mark_unbacked: {source.name}.size({dim}) is {value.shape[dim]},"
                f" another size of shape_id={name!r} is {known}"
            )
        torch._check(size == first)

    def number(self, value: float, source: Source, stack: Callable[[], UserStack]) -> Any:
        """An int or float of the frame as SymInt or SymFloat; None if it is a constant."""
        if source in self._numbers:
            return self._as_number(self._numbers[source])
        if not self._is_symbolic(value, source):
            return None
        return self._new_number(value, source, stack())

    def _new_number(self, value: float, source: Source, stack: UserStack) -> Any:
        symbol = self.env.create_unspecified_symbol(
            value, TorchSource(source), DimDynamic.DYNAMIC
        )
        self.sources[symbol] = source
        self._numbers[source] = _Number(source, value, symbol, stack)
        number = self._as_number(self._numbers[source])
        if self.specified is not None and self.specified.is_symbolic(value, source):
            self.specified.note_number(int(value), number, source)
        return number

    def narrow(self, expr: Any) -> bool:
        """Let 64 bits do to compute with the program's ints in `expr`; False where they do not."""
        for n in [n for n in self._numbers.values() if n.symbol in expr.free_symbols]:
            if type(n.value) is int and n.symbol not in self.narrowed:
                if abs(n.value) >= WIDEST:
                    return False
                end = (_SMALL if abs(n.value) < _SMALL else WIDEST) - 1
                self.env.constrain_symbol_range(n.symbol, compiler_min=-end, compiler_max=end)
                self.narrowed.add(n.symbol)
        return True

    def fix(self, symbol: sympy.Symbol) -> None:
        """Make a symbol the constant that it is in this call."""
        # Without a hint it is rounded.
        known = (n.value for n in self._numbers.values() if n.symbol == symbol)
        self.env.evaluate_expr(symbol, next(known, None))

    def computed_number(self, value: float, source: Source, stack: UserStack) -> Any:
        """A symbol for what generated code computes at `source`; None if it is a constant."""
        if source in self._numbers:
            return self._as_number(self._numbers[source])
        is_small = abs(value) < _INT64 if type(value) is int else math.isfinite(value)
        # Expressions do not tell 0.0 from -0.0.
        is_zero = type(value) is float and value == 0.0
        return self._new_number(value, source, stack) if is_small and not is_zero else None

    def has_symbolic_parts(self, value: Any, source: Source) -> bool:
        """Whether a number in a constant of several parts is symbolic; each adds to its history."""
        found = [self._is_symbolic(*number) for number in numbers_in(value, source)]
        return any(found)

    def _is_symbolic(self, value: float, source: Source) -> bool:
        if self.specified is not None:
            return self.specified.is_symbolic(value, source) and abs(value) < _INT64
        if type(value) is int:
            return self._is_symbolic_int(value, source)
        return self._is_symbolic_float(value, source)

    def _as_number(self, number: _Number) -> Any:
        if type(number.value) is float:
            return self.env.create_symfloatnode(number.symbol, hint=number.value)
        return self.env.create_symintnode(number.symbol, hint=number.value)

    def _is_symbolic_int(self, value: int, source: Source) -> bool:
        """The rules of torch's `is_int_specialization_case`."""
        if listed_sources.is_dynamic(source.name) and abs(value) < _INT64:
            return True
        if config.specialize_int or abs(value) >= _INT64:
            return False
        links = list(chain(source))
        if not isinstance(links[-1], (LocalSource, ClosureSource)):
            # Of globals only counters.
            changed = self.history.number(source.name, value) and self.automatic
            return changed and (is_kept_by_class(links) or may_be_counter(source))
        if any(isinstance(link, (FuncDefaultsSource, FuncKwDefaultsSource)) for link in links):
            return False
        of_module = not self.modules.keys().isdisjoint(links)
        changes = self._changes(value, links[-1], source)
        if of_module and not config.allow_unspec_int_on_nn_module:
            return changes and is_counter(source, self.modules)
        return changes or not self.static_first

    def _is_symbolic_float(self, value: float, source: Source) -> bool:
        *_, start = chain(source)
        changed = self._changes(value, start, source) or listed_sources.is_dynamic(source.name)
        is_constant = self.static_first or is_kept_by_torchs(source, self.modules)
        if config.specialize_float or value == 0.0 or not math.isfinite(value):
            return False  # 0.0 and -0.0 are one symbol's
        return changed or not is_constant

    def _changes(self, value: float, start: Source, source: Source) -> bool:
        """Whether a number of the frame was another one before, or will be."""
        is_item = isinstance(start, LocalSource) and start.local == self.loop_item
        return (self.history.number(source.name, value) or is_item) and self.automatic

    def is_static(self, value: torch.Tensor, source: Source) -> bool:
        """Whether sizes stay constants unless marked: of parameters and buffers, and of tensors
        that torch's own modules hold.
        """
        of_table = any(
            isinstance(link, ModuleItemSource) for link in chain(source, self.modules)
        )
        if of_table or isinstance(value, torch.nn.Parameter):
            return config.force_parameter_static_shapes
        is_static = config.force_nn_module_property_static_shapes
        return is_static and is_kept_by_torchs(source, self.modules)

    def guard_offsets(self, guards: GuardSet, inputs: list[tuple[Source, Any]]) -> None:
        """Ragged sizes of nested tensors are equal where their offsets are one object: which of
        the tensors that may be offsets are one stays as it is.
        """
        if not self.has_nested:
            return
        parts = [part for source, value in inputs for part in parts_of(source, value)]
        known = [part for part in parts if part[1].dim() == 1 and part[1].dtype in _OFFSETS]
        places = tuple(source for source, _ in known)
        pattern = _pattern([value for _, value in known])
        text = f"the same of {', '.join(place.name for place in places)} are one object"
        if len(known) > 1:
            check = Predicate(lambda *now: _pattern(now) == pattern, text, places)
            guards.add(None, Check.PREDICATE, check)

    # -- guards ----------------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """Whether nothing of the frame is symbolic."""
        return not (self._tensors or self._numbers or self.has_data_dependent)

    def note_guards(self, stack: Callable[[], UserStack]) -> None:
        """The guards that the ShapeEnv made since the last call were needed at `stack()`."""
        missing = len(self.env.guards) - len(self._stacks)
        if missing > 0:
            self._stacks += [stack()] * missing

    def add_guards(self, guards: GuardSet) -> None:
        """Everything that the trace and the backend relied on, as guards.

        Raises UserError where a dimension that the user marked dynamic became a constant.
        """
        if self.specified is not None:
            self.specified.finish()
        if self.is_empty:
            return
        self._check_marks()
        self._check_unbacked()
        for number in self._numbers.values():
            guards.add(number.source, Check.TYPE_IS, type(number.value), number.stack)
        for tensor in self._tensors:
            guards.add(
                tensor.source, Check.TENSOR_MATCH, self._spec(tensor, guards), tensor.stack
            )
        for condition, stack in self._conditions():
            self._add(guards, condition, stack)
        note_checked(self.env)

    def _spec(self, tensor: _Tensor, guards: GuardSet) -> TensorSpec:
        def fixed(numbers: Sequence[Any]) -> list[int | None]:
            return [number if type(number) is int else None for number in numbers]

        return TensorSpec.of(
            tensor.value,
            sizes=fixed(tensor.fake.shape),
            strides=fixed(tensor.fake.stride()),
            state=guards.state,
        )

    def _conditions(self) -> Iterator[tuple[Any, UserStack]]:
        """sympy conditions over symbols and `_Place`s, each with the stack that needed it."""
        env = self.env
        first: dict[sympy.Symbol, UserStack] = {}
        for tensor in self._tensors:
            for place, number in places(tensor.source, tensor.fake):
                expr = _expr(number)
                if expr is None:
                    continue
                for symbol in expr.free_symbols:
                    first.setdefault(symbol, tensor.stack)
                is_offset = isinstance(place, TensorPropertySource) and place.dim is None
                if self.sources.get(expr) != place and not is_offset:
                    yield sympy.Eq(_Place.of(place), expr, evaluate=False), tensor.stack
        for number in self._numbers.values():
            first.setdefault(number.symbol, number.stack)
        for symbol, source in self.sources.items():
            if is_ragged_symbol(env, symbol):
                continue
            stack = self._stack_of(symbol, first.get(symbol, ()))
            known = env.replace(symbol)
            if known != symbol:
                if self.sources.get(known) != source:
                    yield sympy.Eq(_Place.of(source), known, evaluate=False), stack
            else:
                for condition in self._range(symbol, source):
                    yield condition, stack
        yield from self._said
        yield from ((expr, ()) for expr in self._assertions())
        for position, guard in enumerate(env.guards):
            if any(is_ragged_symbol(env, symbol) for symbol in guard.expr.free_symbols):
                continue  # known from which offsets are one object
            if env._maybe_evaluate_static(guard.expr, axioms=()) is None:
                stack = self._stacks[position] if position < len(self._stacks) else ()
                yield guard.expr, stack

    def _assertions(self) -> Iterator[Any]:
        """What was only asserted of unbacked sizes of the frame."""
        env = self.env
        for found in env.deferred_runtime_asserts.values():
            for expr in (each.expr for each in found):
                is_known = expr.free_symbols <= self.sources.keys()
                if is_known and env._maybe_evaluate_static(expr, axioms=()) is None:
                    yield expr

    def _range(self, symbol: sympy.Symbol, source: Source) -> Iterator[Any]:
        found = self.env.var_to_range.get(symbol)
        if found is None:
            return
        is_size = isinstance(source, TensorPropertySource)
        lowest = 0 if is_size else -_INT64
        if is_bound(found.lower) and found.lower > lowest:
            yield sympy.Ge(symbol, found.lower, evaluate=False)
        if is_bound(found.upper) and found.upper < _INT64 - 1:
            yield sympy.Le(symbol, found.upper, evaluate=False)

    def _stack_of(self, symbol: sympy.Symbol, default: UserStack) -> UserStack:
        """Who last narrowed a symbol; `default` where that is not known."""
        for position in range(min(len(self.env.guards), len(self._stacks)) - 1, -1, -1):
            if symbol in self.env.guards[position].expr.free_symbols:
                return self._stacks[position]
        return default

    def _add(self, guards: GuardSet, condition: Any, stack: UserStack) -> None:
        sources = {**self.sources, **{atom: atom.place for atom in condition.atoms(_Place)}}
        symbols = sorted(condition.free_symbols, key=str)
        for symbol in symbols:  # of the base of a view, which is no input
            known_as = self.env.var_to_sources.get(symbol, (None,))
            place = sources.get(symbol) or place_of(known_as[0])
            sources |= {} if place is None else {symbol: place}
        try:
            if not all(s.is_integer and not is_joined(sources.get(s)) for s in symbols):
                raise ValueError("native guards compute with integers")
            guards.add(None, Check.EXPR, from_sympy(condition, sources), stack)
        except ValueError:
            missing = [s for s in symbols if s not in sources]
            if missing and self.has_nested:
                raise RunInEager(f"a nested tensor's view needs {missing}") from None
            if missing:
                why = f"no place gives the value of {missing} in {condition}"
                raise UserError(why) from None
            ask = expr_function(condition, tuple(symbols))
            names = {s: sympy.Symbol(sources[s].name) for s in symbols}
            text = PythonPrinter().doprint(condition.xreplace(names))
            check = predicate(ask, text, [sources[s] for s in symbols])
            guards.add(None, Check.PREDICATE, check, stack)

    # -- marks -----------------------------------------------------------------------------------

    def _check_marks(self) -> None:
        if config.allow_ignore_mark_dynamic:
            return
        for tensor in self._tensors:
            for dim in sorted(tensor.marked):
                expr = _expr(tensor.fake.shape[dim])
                known = tensor.fake.shape[dim] if expr is None else self.env.replace(expr)
                if expr is None and tensor.value.shape[dim] in (0, 1):
                    continue  # always a constant; a mark does what it can
                if getattr(known, "is_number", True):
                    self._refuse(tensor, dim, f"it was specialized to {known}", expr)
                low, high = markers.dynamic_range(tensor.value, dim)
                if dim in tensor.judged:
                    continue  # criteria narrow ranges
                found = self.env.var_to_range.get(known)
                if found is None or (low is None and high is None):
                    continue
                narrowed = (is_bound(found.lower) and found.lower > max(low or 0, 2)) or (
                    is_bound(found.upper) and (high is None or found.upper < high)
                )
                if narrowed:
                    self._refuse(tensor, dim, f"it has to be {between(found)}", expr)

    def _check_unbacked(self) -> None:
        """An unbacked size was taken for another, or for a number, without looking at it."""
        values: dict[Any, int] = {}
        for tensor in self._tensors:
            for dim in self._unbacked.get(tensor.source, ()):
                values[_expr(tensor.fake.shape[dim])] = tensor.value.shape[dim]
        for symbol, size in values.items():
            known = size if symbol is None else self.env.replace(symbol).xreplace(values)
            if getattr(known, "is_number", True) and known != size:
                raise RunInEager(f"a size marked unbacked was taken for {known}, it is {size}")
        for expr in self._assertions():
            if expr.subs({**self.env.backed_var_to_val, **values}) == False:  # noqa: E712
                raise RunInEager(
                    f"{expr} is asserted of sizes marked unbacked and does not hold"
                )

    def _refuse(self, tensor: _Tensor, dim: int, why: str, expr: Any) -> None:
        size = tensor.value.shape[dim]
        lines = [
            f"Constraints violated: {tensor.source.name}.size({dim}) = {size} was marked dynamic,"
            f" but {why}."
        ]
        for position, guard in enumerate(self.env.guards):
            if expr is not None and expr in guard.expr.free_symbols:
                names = {s: sympy.Symbol(self.sources[s].name) for s in self.sources}
                text = PythonPrinter().doprint(guard.expr.xreplace(names))
                stack = self._stacks[position] if position < len(self._stacks) else ()
                where = Guard(None, Check.EXPR, None, stack).where
                lines.append(f"The program needs {text}{f' at {where}' if where else ''}.")
        lines.append("Use maybe_mark_dynamic where a constant will do.")
        raise ConstraintViolation("\n".join(lines), user_stack=tensor.stack)


class _Place(sympy.Symbol):
    """A place of the frame within a condition."""

    place: Source

    @staticmethod
    def of(place: Source) -> _Place:
        symbol = _Place(place.name, integer=True)
        symbol.place = place
        return symbol


def _pattern(values: Sequence[Any]) -> list[int]:
    """Of each object the position of its first occurrence."""
    first: dict[int, int] = {}
    return [first.setdefault(id(value), at) for at, value in enumerate(values)]


def _expr(number: Any) -> Any:
    """The expression that a SymInt was made with; None of an int."""
    return number.node._expr if isinstance(number, torch.SymInt) else None
