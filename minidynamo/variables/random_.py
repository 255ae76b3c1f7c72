"""Random number generators of Python and numpy: `random.Random`, `RandomState`, `Generator`.

Calls on a generator of the frame are made before the graph (see `draws`); a generator that the
traced code makes with a seed is run while tracing.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Any

import sympy
from torch.utils._sympy.value_ranges import ValueRanges

from .. import trace_rules
from ..draws import Draw, DrawSource
from ..side_effects import Mutation
from ..source import CallSource, ListItemSource, Source
from .base import VariableTracker, unsupported
from .builtin_object import observed
from .constant import ConstantVariable
from .functions import MethodOfVariable
from .lists import as_sequence
from .ndarray import NdarrayVariable, from_array
from .numpy_numbers import NumpyNumberVariable
from .registry import handles, wraps
from .symint import SymVariable
from .tensor import TensorVariable

if TYPE_CHECKING:
    from ..codegen import PyCodegen
    from ..symbolic_convert import Translator

Args = list[VariableTracker]
Kwargs = dict[str, VariableTracker]
numpy = trace_rules.numpy
# A number of more bits is not taken into a graph.
_LARGEST = 1 << 62

_PYTHON_DRAWS = frozenset(
    "random uniform triangular"
    " randint randrange getrandbits"
    " gauss normalvariate lognormvariate expovariate"
    " vonmisesvariate gammavariate betavariate"
    " paretovariate weibullvariate"
    " choice choices sample"
    " seed getstate setstate".split()
)
# Those that only ask how many items a sequence has.
_FROM_ITEMS = frozenset("choice choices sample shuffle".split())
_NUMPY_DRAWS = frozenset(
    "rand randn randint random"
    " random_sample ranf sample"
    " random_integers integers uniform"
    " normal standard_normal lognormal"
    " choice permutation"
    " beta binomial chisquare geometric"
    " exponential standard_exponential"
    " gamma standard_gamma poisson"
    " gumbel laplace logistic rayleigh"
    " triangular weibull"
    " dirichlet multinomial"
    " seed".split()
)


class DrawnVariable(VariableTracker):
    """The state of a generator, which the traced code can only hand on."""

    def __init__(self, place: DrawSource, kind: type) -> None:
        super().__init__(source=place)
        self.place = place
        self.kind = kind

    def python_type(self) -> type:
        return self.kind


def _given(value: VariableTracker) -> Any:
    value = value.realize()
    if isinstance(value, DrawnVariable):
        return value.place
    if value.is_python_constant():
        return value.as_python_constant()
    if value.python_type() in (list, tuple):
        return value.python_type()(map(_given, getattr(value, "items", ())))
    unsupported("random number", repr(value), "an argument is not known while tracing")


def draw(
    tx: Translator,
    call: Callable[..., Any] | str,
    owner: Source | None,
    like: Callable[..., Any],
    args: Args,
    kwargs: Kwargs,
) -> VariableTracker:
    """A call that is made before the graph. like: the same function of another generator."""
    values = tuple(map(_given, args))
    named = {name: _given(value) for name, value in kwargs.items()}
    name = call if isinstance(call, str) else call.__name__
    if any(isinstance(value, DrawSource) for value in values):
        sample = None  # a state that is set again
    else:
        sample = _run(tx, like, values, named)
    if name in ("choice", "choices", "sample", "permutation"):
        _check_population(name, values, named)
    _check_kind(name, sample)
    place = tx.output.draws.add(tx.output, Draw(call, owner, values, named))
    if name == "getstate":
        return DrawnVariable(place, tuple)
    result = _result(tx, sample, place)
    if isinstance(result, SymVariable) and isinstance(sample, float):
        _note_least(tx, result, name, None if named else values)
    return result


def _note_least(tx: Translator, drawn: SymVariable, name: str, args: Any) -> None:
    """What no number of the kind is below. No upper bound: uniform() may round to more.

    args: those of the call, None where they have names.
    """
    least = -inf
    if name == "random" and args == ():
        least = 0.0
    elif name == "uniform" and args is not None and len(args) == 2:
        low, high = args
        if (
            type(low) in (int, float)
            and type(high) in (int, float)
            and -inf < low <= high < inf
        ):
            least = float(low)
    if least > -inf:
        symbol = drawn.value.node.expr
        tx.output.shape_env.var_to_range[symbol] = ValueRanges(sympy.Float(least), sympy.oo)


def _run(tx: Translator, function: Callable[..., Any], values: Any, named: Any) -> Any:
    found: list[Any] = []
    tx.fold(lambda: found.append(function(*values, **named)), (), {})
    return found[0]


def _check_population(name: str, values: tuple[Any, ...], named: dict[str, Any]) -> None:
    """What is taken from a sequence is of its items' kind."""
    given = [*values, *named.values()]
    items = given[0] if given else ()
    if isinstance(items, (list, tuple, range)) and len({type(item) for item in items}) != 1:
        unsupported("random number", name, "the items are of several types")


def _check_kind(name: str, sample: Any) -> None:
    """Refuse what cannot be an unknown value, before the call is recorded."""
    if isinstance(sample, list):
        for item in sample:
            _check_kind(name, item)
    elif type(sample) is int and abs(sample) >= _LARGEST and name != "getstate":
        unsupported("random number", name, "the number may have more than 62 bits")
    elif numpy is not None and isinstance(sample, numpy.ndarray):
        if sample.dtype.kind not in "biuf":
            unsupported("random number", name, f"an array of {sample.dtype}")
    elif sample is not None and name != "getstate" and type(sample) not in _number_types():
        unsupported("random number", name, f"a {type(sample).__name__} is not known")


def _number_types() -> tuple[type, ...]:
    return (int, float, *trace_rules.NUMPY_NUMBERS)


def _result(tx: Translator, sample: Any, place: Source) -> VariableTracker:
    """The unknown value of the kind of `sample`."""
    output = tx.output
    if sample is None:
        return ConstantVariable(None)
    if isinstance(sample, list):
        parts = [_result(tx, s, ListItemSource(place, n)) for n, s in enumerate(sample)]
        return tx.wrap_items(list, parts)
    if type(sample) in (int, float):
        number = output.draws.number(output, type(sample), place)
        return SymVariable(output, number, source=place)
    if isinstance(sample, numpy.ndarray):
        tensor = from_array(sample)
        given = output.add_input(tensor, CallSource(place, from_array, "{base}"))
        # The graph may write to it: a copy is its own.
        made = tx.add_node("call_method", "clone", (given,), {}).realize()
        assert isinstance(made, TensorVariable)
        return NdarrayVariable(made)
    plain = float if isinstance(sample, numpy.floating) else int
    inner = CallSource(place, plain, f"{plain.__name__}({{base}})")
    number = output.draws.number(output, plain, inner)
    symbol = SymVariable(output, number, source=inner)
    return NumpyNumberVariable(symbol, type(sample), source=place)


# -- generators of the frame -----------------------------------------------------------------------


class GeneratorOfNumbers(VariableTracker):
    """A generator that existed before the frame. methods: those that can be called."""

    def __init__(self, value: Any, methods: frozenset[str], *, source: Source) -> None:
        super().__init__(source=source)
        self.value = value
        self.methods = methods

    def python_type(self) -> type:
        return type(self.value)

    def identity(self) -> Any:
        return self.value

    def truth(self, tx: Translator) -> bool:
        return True

    def getattr(self, tx: Translator, name: str) -> VariableTracker:
        if name in self.methods:
            return MethodOfVariable(self, name)
        return super().getattr(tx, name)

    def call_method(
        self, tx: Translator, name: str, args: Args, kwargs: Kwargs
    ) -> VariableTracker:
        if name not in self.methods or not hasattr(self.value, name):
            unsupported("random number", f"{type(self.value).__name__}.{name}", "not traced")
        like = getattr(_another(type(self.value)), name)
        return draw(tx, name, self.source, like, args, kwargs)


def _another(kind: type) -> Any:
    if numpy is not None and kind is numpy.random.Generator:
        return numpy.random.default_rng(0)
    return kind(0)


@wraps(random.Random)
def _wrap_random(tx: Translator, value: random.Random, source: Source) -> VariableTracker:
    tx.guard(source, "TYPE_IS", random.Random)
    return GeneratorOfNumbers(value, _PYTHON_DRAWS, source=source)


def _of_python(name: str) -> None:
    function = getattr(random.Random, name)

    def handler(tx: Translator, args: Args, kwargs: Kwargs) -> Any:
        self, *rest = args
        if not isinstance(self, (GeneratorOfNumbers, SeededVariable)):
            return NotImplemented
        return self.call_method(tx, name, rest, kwargs)

    handles(function)(handler)


for _name in sorted(_PYTHON_DRAWS | {"shuffle"}):
    _of_python(_name)


def _of_numpy(name: str, function: Callable[..., Any]) -> None:
    def handler(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
        like = getattr(numpy.random.RandomState(0), name)
        return draw(tx, function, None, like, args, kwargs)

    handles(function)(handler)


if numpy is not None:

    def _wrap_numpy(tx: Translator, value: Any, source: Source) -> VariableTracker:
        tx.guard(source, "TYPE_IS", type(value))
        return GeneratorOfNumbers(value, _NUMPY_DRAWS, source=source)

    wraps(numpy.random.RandomState, numpy.random.Generator)(_wrap_numpy)
    for _name in sorted(_NUMPY_DRAWS):
        if hasattr(numpy.random.RandomState, _name) and hasattr(numpy.random, _name):
            _of_numpy(_name, getattr(numpy.random, _name))


# -- generators that the traced code makes ---------------------------------------------------------


class SeededVariable(VariableTracker):
    """`random.Random(seed)`: what it gives is known."""

    def __init__(self, seed: Any) -> None:
        super().__init__(mutation=Mutation.NEW)
        self.real = random.Random(seed)

    def python_type(self) -> type:
        return random.Random

    def truth(self, tx: Translator) -> bool:
        return True

    def getattr(self, tx: Translator, name: str) -> VariableTracker:
        if name in _PYTHON_DRAWS or name == "shuffle":
            return MethodOfVariable(self, name)
        return super().getattr(tx, name)

    def call_method(
        self, tx: Translator, name: str, args: Args, kwargs: Kwargs
    ) -> VariableTracker:
        known = [*args, *kwargs.values()]
        if name in _FROM_ITEMS and args:
            chosen = self._choose(tx, name, args, kwargs)
            if chosen is not None:
                return chosen
        if name not in _PYTHON_DRAWS or (name == "seed" and not known):
            unsupported("random number", f"Random.{name}", "it is not known while tracing")
        values = list(map(_given, args))
        named = {key: _given(value) for key, value in kwargs.items()}
        if any(isinstance(value, DrawSource) for value in values):
            unsupported("random number", f"Random.{name}", "the state is not known")
        tx.output.side_effects.mutate(self)
        result = _run(tx, getattr(self.real, name), values, named)
        if isinstance(result, list):
            return tx.wrap_items(list, [tx.wrap_constant(item) for item in result])
        return tx.wrap_constant(result)

    def _choose(
        self, tx: Translator, name: str, args: Args, kwargs: Kwargs
    ) -> VariableTracker | None:
        """The same with the positions of the items, of a list or tuple: these may be anything."""
        given = as_sequence(args[0], list if name == "shuffle" else object)
        if given is None or given.cls not in (list, tuple):
            return None
        items = given.unpack(tx)
        places = list(range(len(items)))
        tx.output.side_effects.mutate(self)
        rest = list(map(_given, args[1:]))
        named = {key: _given(value) for key, value in kwargs.items()}
        found = _run(tx, getattr(self.real, name), [places, *rest], named)
        if name == "shuffle":
            whole = ConstantVariable(slice(None))
            given.call_method(
                tx, "__setitem__", [whole, tx.wrap_items(list, [items[i] for i in places])], {}
            )
            return ConstantVariable(None)
        if name == "choice":
            return items[found]
        return tx.wrap_items(list, [items[i] for i in found])

    def reconstruct(self, codegen: PyCodegen) -> None:
        codegen.begin_call(_restored)
        codegen.load_const(self.real.getstate())
        codegen.end_call(1)


def _restored(state: Any) -> random.Random:
    """Run by generated code: a generator in this state."""
    made = random.Random()
    made.setstate(state)
    return made


@handles(random.Random)
def _new_random(tx: Translator, args: Args, kwargs: Kwargs) -> Any:
    """Without a seed it starts from what the system gives."""
    if len(args) != 1 or kwargs or not args[0].is_python_constant():
        return NotImplemented
    seed = args[0].as_python_constant()
    if seed is None:
        return NotImplemented
    with observed(tx):
        return SeededVariable(seed)
