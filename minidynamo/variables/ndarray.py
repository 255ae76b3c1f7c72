"""numpy arrays as tensors of the graph: `torch._numpy` does with them what
numpy does.

An array of the frame is the graph input that `torch.from_numpy` gives for it, which shares its
memory; an array that the graph makes leaves it as `tensor.numpy()`.
"""

from __future__ import annotations

import functools
import operator
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch._numpy as tnp
from torch.utils._pytree import tree_map_only

from .. import trace_rules
from ..exc import SkipFrame
from ..source import CallSource
from .array_iterators import ArrayIterator
from .array_memory import Call, View, apart, check_place, check_values, place_of
from .array_outputs import into
from .array_samples import check_sizes, check_vectors, has_shape, hint, sample
from .base import VariableTracker, unsupported
from .builder import builds
from .builtin_object import observed
from .constant import ConstantVariable, is_numpy_bool
from .functions import CallableVariable, MethodOfVariable
from .registry import wraps
from .symint import SymVariable
from .tensor import TensorVariable

if TYPE_CHECKING:
    from ..codegen import PyCodegen
    from ..source import Source
    from ..symbolic_convert import Translator

numpy = trace_rules.numpy
Values = dict[str, VariableTracker]

# Methods of arrays that give Python objects, files or memory.
_NOT_TRACED = frozenset(
    "tobytes tofile dump dumps byteswap setfield getfield newbyteorder setflags"
    " __array__ resize put partition itemset data flat flags base ctypes is_integer".split()
)


class NdarrayVariable(VariableTracker):
    """A numpy array. is_scalar: it is one of numpy's numbers, which functions give for 0-d."""

    owns_operators = True

    @property
    def as_index(self) -> VariableTracker:
        """Tensors are indexed by arrays as by the tensors that share their memory."""
        self.check_write()  # of reversed ones there is no tensor
        return self.tensor

    def __init__(
        self, tensor: TensorVariable, *, is_scalar: bool = False, source: Source | None = None
    ) -> None:
        super().__init__(source=source)
        self._tensor = tensor
        self.is_scalar = is_scalar
        self.view: View | None = None
        self._place = place_of(tensor.fake)

    @property
    def tensor(self) -> TensorVariable:
        """The tensor with the array's values."""
        if self.view is not None:
            self.view.check_read()
        check_place(self._tensor, self._place)
        return self._tensor

    def called(self, tx: Translator, name: str, kwargs: Values) -> NdarrayVariable:
        """The array of what a method of the tensor gives, which has its shape and dtype."""
        made = self.tensor.call_method(tx, name, [], kwargs).realize()
        assert isinstance(made, TensorVariable)
        return NdarrayVariable(made, is_scalar=self.is_scalar)

    def check_write(self) -> None:
        """Break the graph where a write would not reach what the array views."""
        if self.view is not None:
            unsupported("numpy array", self.describe(), "a view that torch cannot make")

    def describe(self) -> str:
        return super().describe() or f"array {self._tensor.describe()}"

    def dtype(self) -> Any:
        """numpy's dtype of the array."""
        return numpy.dtype(str(self._tensor.fake.dtype).removeprefix("torch."))

    def python_type(self) -> type:
        return self.dtype().type if self.is_scalar else numpy.ndarray

    def truth(self, tx: Translator) -> bool:
        return self.tensor.truth(tx)

    def as_argument(self, tx: Translator) -> VariableTracker:
        """Torch takes numpy's numbers for Python's."""
        return self.call_method(tx, "item", [], {}).realize() if self.is_scalar else self

    # -- attributes -----------------------------------------------------------------------------

    def getattr(
        self,
        tx: Translator,
        name: str,
    ) -> VariableTracker:
        kind = self.python_type()
        if not hasattr(kind, name):
            with observed(tx):  # numpy says what became of it
                getattr(kind(0) if self.is_scalar else kind(0, self.dtype()), name)
        fake = self.tensor.fake
        known: dict[str, Callable[[], Any]] = {
            "shape": lambda: tuple(fake.shape),
            "ndim": fake.dim,
            "size": fake.numel,
            "itemsize": lambda: fake.itemsize,
            "nbytes": lambda: fake.numel() * fake.itemsize,
            "strides": lambda: tuple(step * fake.itemsize for step in fake.stride()),
        }
        if name in known:
            return tx.wrap_constant(known[name]())
        if name == "dtype":
            return DtypeVariable(self.dtype())
        if name in ("T", "real", "imag"):
            return call_numpy(tx, operator.attrgetter(name), name, [self], {})
        if (
            name in ("base", "flags")
            and self.source is None
            and not tx.output.options.fullgraph
        ):
            raise SkipFrame(f"ndarray.{name}: numpy's own array would tell something else")
        if name in _NOT_TRACED or not hasattr(tnp.ndarray, name):
            unsupported("numpy attribute", f"ndarray.{name}", "it is not traced")
        return MethodOfVariable(self, name)

    def call_method(
        self,
        tx: Translator,
        name: str,
        args: list[VariableTracker],
        kwargs: dict[str, VariableTracker],
    ) -> VariableTracker:
        if name in _NOT_TRACED or not hasattr(tnp.ndarray, name):
            unsupported("numpy method", f"ndarray.{name}", "it is not traced")
        if name == "__index__" and self.dtype().kind in "iu" and not self.tensor.fake.dim():
            name = "item"
        if name in ("item", "tolist") and not args and not kwargs:
            return self.tensor.call_method(tx, name, args, kwargs)
        if name == "__contains__" and len(args) == 1 and not self.is_scalar:
            found = tx.call_operator(operator.eq, [self, args[0]]).realize()
            truth = tx.wrap_constant(bool)
            return tx.call_function(truth, [found.call_method(tx, "any", [], {})], {})
        if name == "item" and not kwargs and all(arg.python_type() is int for arg in args):
            flat = len(args) == 1
            owner = self.tensor.call_method(tx, "reshape", [ConstantVariable(-1)], {})
            place = args[0] if flat else tx.wrap_items(tuple, args)
            item = (owner.realize() if flat else self.tensor).getitem(tx, place).realize()
            return item.call_method(tx, name, [], {})
        if name in ("fill", "sort") and self.is_scalar:
            unsupported("numpy method", f"ndarray.{name}", "a number is not written to")
        if name == "fill" and len(args) == 1 and not kwargs:
            if args[0].python_type() not in (int, float, complex, bool):
                unsupported("numpy method", "ndarray.fill", "it is filled with no plain number")
            self.setitem(tx, ConstantVariable(...), args[0])
            return ConstantVariable(None)
        if name == "sort":
            ordered = call_numpy(
                tx,
                tnp.sort,
                name,
                [self, *args],
                kwargs,
                numpy.sort,
            )
            self.setitem(tx, ConstantVariable(...), ordered)
            return ConstantVariable(None)
        if name == "astype":
            return call_numpy(tx, _converted, name, [self, *args], kwargs, _method(name))
        return call_numpy(tx, _method(name), name, [self, *args], kwargs)

    # -- items ----------------------------------------------------------------------------------

    def getitem(
        self,
        tx: Translator,
        key: VariableTracker,
    ) -> VariableTracker:
        return call_numpy(tx, operator.getitem, "getitem", [self, key], {})

    def setitem(
        self,
        tx: Translator,
        key: VariableTracker,
        value: VariableTracker,
    ) -> None:
        self.check_write()
        tx.output.side_effects.version += 1
        key = key.realize()
        if key.python_type() is tuple and not key.is_python_constant():
            key = tx.wrap_items(tuple, apart(tx, self, key.unpack(tx)))
        key, value = apart(tx, self, [key, value.realize()])
        call_numpy(tx, operator.setitem, "setitem", [self, key, value], {})

    def length(self, tx: Translator) -> VariableTracker:
        return self.tensor.length(tx)

    def iter(self, tx: Translator) -> VariableTracker:
        return ArrayIterator(self, self._count(tx))

    def _count(self, tx: Translator) -> int:
        count: int = self.length(tx).specialized(tx).as_python_constant()
        return count

    def unpack(self, tx: Translator) -> list[VariableTracker]:
        return [self.getitem(tx, ConstantVariable(index)) for index in range(self._count(tx))]

    def operate(
        self, tx: Translator, function: Callable[..., Any], args: list[VariableTracker]
    ) -> VariableTracker:
        """An operator of Python with this array as one operand."""
        if any(isinstance(arg, TensorVariable) for arg in args):
            return with_tensors(tx, function, args, _on_arrays)
        args = operands(tx, args)
        if function is operator.truediv:
            args = [_as_double(tx, arg) for arg in args]
        if function.__name__ in _INPLACE:
            if not isinstance(args[0], NdarrayVariable) or args[0].is_scalar:
                return self.operate(tx, _plain(function), args)  # a number is not written to
            tx.output.side_effects.version += 1
            args[0].check_write()
            others = args[1:] if args[1] is not args[0] else []
            args = [args[0], *apart(tx, args[0], others)] if others else args
            call_numpy(tx, function, function.__name__, args, {})
            return args[0]
        return call_numpy(tx, function, function.__name__, args, {})

    # -- leaving the trace ----------------------------------------------------------------------

    def reconstruct(self, codegen: PyCodegen) -> None:
        if self.view is not None:
            return self.view.reconstruct(codegen)
        codegen.begin_call(_to_scalar if self.is_scalar else _to_array)
        codegen(self.tensor)
        codegen.end_call(1)


_INPLACE = frozenset(
    "iadd isub imul itruediv ifloordiv imod ipow iand ior ixor ilshift irshift imatmul".split()
)


Compute = Callable[["Translator", Callable[..., Any], list[VariableTracker]], VariableTracker]


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """The operator of an assignment like `+=`."""
    name = function.__name__.removeprefix("i")
    plain: Callable[..., Any] = getattr(operator, {"and": "and_", "or": "or_"}.get(name, name))
    return plain


def _on_arrays(
    tx: Translator, function: Callable[..., Any], args: list[VariableTracker]
) -> VariableTracker:
    name = function.__name__
    if name in _INPLACE:  # a tensor has no such operator for arrays
        function = _plain(function)
    first = next(arg for arg in args if isinstance(arg, NdarrayVariable))
    return first.operate(tx, function, args)


def with_tensors(
    tx: Translator,
    function: Callable[..., Any],
    args: list[VariableTracker],
    compute: Compute,
) -> VariableTracker:
    """An operator or ufunc with tensors among its operands: numpy takes their arrays, and gives
    tensors for some and refuses others, as it does for samples.

    compute(tx, function, args): the same of arrays.
    """
    args = [arg.realize() for arg in args]
    if any(isinstance(arg, NdarrayVariable) and arg.is_scalar for arg in args):
        return _with_number(tx, function, args)
    is_tensor = [isinstance(arg, TensorVariable) for arg in args]
    arrays = [
        arg.call_method(tx, "numpy", [], {}) if tensor else arg
        for arg, tensor in zip(args, is_tensor, strict=True)
    ]
    samples = [_argument(tx, array, sample) for array in arrays]
    pairs = zip(samples, is_tensor, strict=True)
    try:
        like = function(*(from_array(item) if tensor else item for item, tensor in pairs))
    except Exception as error:
        unsupported("numpy operator", f"{function!r}: {error}", "numpy refuses a tensor there")
    if function.__name__ in _INPLACE and not is_tensor[0]:  # numpy leaves it to the tensor
        function = _plain(function)
    result = compute(tx, function, arrays)
    if not isinstance(like, torch.Tensor) or not isinstance(result, NdarrayVariable):
        return result
    if result.tensor.fake.dtype is like.dtype:
        return result.tensor
    return result.tensor.call_method(tx, "to", [tx.wrap_constant(like.dtype)], {})


# What number torch takes a scalar of numpy for, by the kind of its dtype.
_NUMBERS = {"i": 1, "u": 1, "b": 1.0, "f": 1.0, "c": 1j}
_WITH_NUMBERS = frozenset(
    "add sub mul truediv lt le gt ge eq ne iadd isub imul itruediv".split()
)


def _with_number(
    tx: Translator, function: Callable[..., Any], args: list[VariableTracker]
) -> VariableTracker:
    """An operator on a tensor and a scalar of numpy, which torch takes for a number: here it is a
    tensor without dimensions, of a dtype that gives the result its own.
    """
    name = function.__name__
    tensors = [arg for arg in args if isinstance(arg, TensorVariable)]
    scalars = [arg for arg in args if isinstance(arg, NdarrayVariable)]
    if not len(tensors) == len(scalars) == 1 or name not in _WITH_NUMBERS:
        unsupported("numpy operator", repr(function), "an operand is a tensor")
    (tensor,), (scalar,) = tensors, scalars
    number: VariableTracker = scalar.tensor
    wanted = torch.result_type(tensor.fake, _NUMBERS[scalar.dtype().kind])
    if torch.result_type(tensor.fake, scalar.tensor.fake) is not wanted:
        if wanted.is_floating_point and wanted.itemsize < 4:
            unsupported("numpy operator", repr(function), "the number would be rounded")
        number = number.call_method(tx, "to", [tx.wrap_constant(wanted)], {})
    if args[0] is tensor:
        return tx.call_operator(function, [tensor, number])
    if name.endswith("truediv"):  # as Tensor.__rtruediv__ has it
        inverse = tensor.call_method(tx, "reciprocal", [], {})
        return tx.call_operator(operator.mul, [inverse, number])
    plain = name.removeprefix("i") if name in _INPLACE else name
    return tx.call_operator(getattr(operator, plain), [number, tensor])


class DtypeVariable(CallableVariable):
    """A numpy.dtype, which is one object for each name."""

    def call(self, tx: Translator, args: Any, kwargs: Any) -> VariableTracker:
        unsupported("call", repr(self.value), "a dtype is not callable")

    def hash_key(self, tx: Translator) -> Any:
        return self.value

    def reconstruct(self, codegen: PyCodegen) -> None:
        codegen.load_const(self.value)


def operands(tx: Translator, args: list[VariableTracker]) -> list[VariableTracker]:
    """What an operator or ufunc takes: numpy's numbers count for the dtype of the result, where
    Python's do not. They are arrays without dimensions where that makes a difference.
    """
    args = [arg.realize() for arg in args]
    dtypes = [arg.dtype() for arg in args if isinstance(arg, NdarrayVariable)]
    return [_operand(tx, arg, dtypes) for arg in args]


def _operand(tx: Translator, value: VariableTracker, dtypes: list[Any]) -> VariableTracker:
    if value.python_type() in trace_rules.NUMPY_NUMBERS:
        value = value.specialized(tx)
    number = value.as_python_constant() if value.is_python_constant() else None
    if not isinstance(number, numpy.number) or number.dtype.name not in _OF_TORCH:
        return value
    if numpy.result_type(*dtypes, number) == numpy.result_type(*dtypes, number.item()):
        return value
    kinds = {"dtype": getattr(torch, number.dtype.name), "device": "cpu"}
    made = tx.add_node("call_function", torch.tensor, (number.item(),), kinds).realize()
    assert isinstance(made, TensorVariable)
    return NdarrayVariable(made, is_scalar=True)


# Numbers for which torch has arithmetic.
_OF_TORCH = frozenset(
    "int8 int16 int32 int64 uint8 float16 float32 float64 complex64 complex128".split()
)


def _as_double(tx: Translator, value: VariableTracker) -> VariableTracker:
    """numpy divides integers as float64, torch in its default dtype."""
    if not isinstance(value, NdarrayVariable):
        return value
    is_integer = value.dtype().kind in "iu" and value.dtype().itemsize >= 4
    wanted: list[VariableTracker] = [ConstantVariable("float64")]
    return value.call_method(tx, "astype", wanted, {}) if is_integer else value


def _to_array(tensor: torch.Tensor) -> Any:
    """Run by generated code: the array that shares the tensor's memory."""
    return tensor.detach().numpy().view()  # its `base` is an array, not a tensor


def _to_scalar(tensor: torch.Tensor) -> Any:
    """Run by generated code: numpy's number of a tensor without dimensions."""
    return tensor.detach().numpy()[()]


def _resolved(array: Any) -> torch.Tensor:
    """The tensor of an array of torch._numpy; what is lazily conjugated would be no array."""
    return array.tensor.resolve_conj().resolve_neg()


# -- operations ------------------------------------------------------------------------------------

_TARGETS: dict[Any, Callable[..., Any]] = {}


def _target(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """What nodes call for `function` of torch._numpy or of operator: tensors in, tensors out."""
    known = _TARGETS.get(function)
    if known is None:

        def call(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = tree_map_only(torch.Tensor, tnp.ndarray, (args, kwargs))
            result = function(*args, **kwargs)
            return tree_map_only(tnp.ndarray, _resolved, result)

        call.__name__ = call.__qualname__ = f"numpy_{name.strip('_').replace('.', '_')}"
        known = _TARGETS[function] = call
    return known


@functools.cache
def _method(name: str) -> Callable[..., Any]:
    def call(array: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(array, name)(*args, **kwargs)

    return call


def _converted(array: Any, *args: Any, copy: bool = True, **kwargs: Any) -> Any:
    """`array.astype`; torch._numpy knows no `copy`, without which numpy may give the array."""
    return array.astype(*args, **kwargs)


Convert = Callable[[NdarrayVariable], Any]


def _argument(tx: Translator, value: VariableTracker, convert: Convert) -> Any:
    """A value as an argument: arrays as `convert` has them, dtypes by their names."""
    value = value.realize()
    if value.python_type() in trace_rules.NUMPY_NUMBERS:
        value = value.specialized(tx)
    if isinstance(value, SymVariable) and convert is not _as_proxy:
        return hint(value.value)
    if isinstance(value, NdarrayVariable):
        return convert(value)
    if isinstance(value, TensorVariable):
        unsupported("numpy call", repr(value), "a tensor is given to numpy")
    if value.python_type() in (list, tuple) and not value.is_python_constant():
        return value.python_type()(_argument(tx, item, convert) for item in value.unpack(tx))
    constant = value.as_python_constant() if value.is_python_constant() else None
    if isinstance(constant, numpy.dtype):
        return constant.name
    if isinstance(constant, type) and issubclass(
        constant, (numpy.generic, int, float, complex)
    ):
        return numpy.dtype(constant).name
    if is_numpy_bool(value):
        return bool(constant)
    if convert is not _as_proxy and isinstance(constant, (numpy.generic, list, tuple)):
        return constant
    return tx.as_proxy(value)


def _as_proxy(array: NdarrayVariable) -> Any:
    return array.tensor.as_proxy()


def call_numpy(
    tx: Translator,
    function: Callable[..., Any],
    name: str,
    args: list[VariableTracker],
    kwargs: dict[str, VariableTracker],
    real: Callable[..., Any] | None = None,
) -> VariableTracker:
    """A call of numpy as a node that calls `function` of torch._numpy.

    real: numpy's own function (default: `function`). It is run on arrays of the same shapes, since
    the two do not always agree about dtypes and containers; where they don't, the graph breaks.
    """
    if "where" in kwargs:
        unsupported("numpy call", name, "with where=")
    if "out" in kwargs:
        compute = functools.partial(call_numpy, tx, function, name, args, real=real)
        return into(tx, name, real or function, args, kwargs, lambda rest: compute(kwargs=rest))
    if any(isinstance(arg, NdarrayVariable) and arg.dtype().kind in "iu" for arg in args):
        # Numbers that do not fit an array of integers are errors, and powers may be negative.
        args = [arg.realize().specialized(tx) for arg in args]

    def arguments(convert: Convert) -> Any:
        named = {key: _argument(tx, value, convert) for key, value in kwargs.items()}
        return tuple(_argument(tx, arg, convert) for arg in args), named

    call = Call(real or function, tuple(args), kwargs, [])

    def sampled(array: NdarrayVariable) -> Any:
        if name != "getitem" or array is args[0]:  # not for the arrays that index it
            check_sizes(name, call.function, array)
        call.samples.append((array, sample(array)))
        return call.samples[-1][1]

    kinds = [arg.dtype().kind for arg in args if isinstance(arg, NdarrayVariable)]
    check_values(name, args, kwargs, kinds)
    sample_args, sample_kwargs = arguments(sampled)
    try:
        with numpy.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            like = call.function(*sample_args, **sample_kwargs)
            dtypes = {array.dtype() for array, _ in call.samples}
            if len(dtypes) > 1 or any(dtype.kind not in "fi" for dtype in dtypes):
                given = arguments(lambda array: torch.from_numpy(numpy.array(sample(array))))
                _target(function, name)(*given[0], **given[1])
    except Exception as error:
        unsupported("numpy call", f"{name}: {error}", "numpy or torch refuses such arguments")
    check_vectors(name, like)
    proxies, named = arguments(_as_proxy)
    result = tx.add_node("call_function", _target(function, name), proxies, named)
    return _as_arrays(tx, name, result, like, call)


def _as_arrays(
    tx: Translator,
    name: str,
    value: VariableTracker,
    like: Any,
    call: Call,
    path: tuple[int, ...] = (),
) -> VariableTracker:
    """The result as numpy has it: `like` is what it gave for other arrays."""
    value = value.realize()
    if isinstance(value, TensorVariable) and isinstance(like, (numpy.ndarray, numpy.generic)):
        array = NdarrayVariable(value, is_scalar=isinstance(like, numpy.generic))
        if array.dtype() == like.dtype and has_shape(value.fake, like.shape):
            return call.array(tx, array, like, path)
    elif issubclass(value.python_type(), (list, tuple)) and isinstance(like, (list, tuple)):
        items = value.unpack(tx)
        if len(items) == len(like):
            pairs = enumerate(zip(items, like, strict=True))
            made = [_as_arrays(tx, name, *pair, call, (*path, n)) for n, pair in pairs]
            return tx.wrap_items(type(like), made)
    elif isinstance(like, (str, bytes)):
        unsupported(
            "numpy call", name, "the text shows numbers that are not known while tracing"
        )
    elif value.is_python_constant() and type(value.as_python_constant()) is type(like):
        return value
    unsupported("numpy call", name, "torch._numpy gives another kind of result than numpy")


def from_array(array: Any) -> torch.Tensor:
    """A source's function: the tensor that shares an array's memory."""
    return torch.from_numpy(array)


def wrap_ndarray(tx: Translator, value: Any, source: Source) -> VariableTracker:
    """An array of the frame. Byte-swapped, read-only, reversed and object arrays are not traced."""
    steps = all(step >= 0 for step in value.strides)
    if not value.flags.writeable or value.dtype.kind not in "biufc" or not steps:
        unsupported(
            "numpy array", f"{source.name}: {value.dtype}", "such an array is not traced"
        )
    try:
        tensor = from_array(value)
    except (TypeError, ValueError) as error:
        unsupported("numpy array", f"{source.name}: {value.dtype}", str(error))
    tx.guard(source, "TYPE_IS", numpy.ndarray)
    inner = tx.wrap(tensor, CallSource(source, from_array, "torch.from_numpy({base})"))
    assert isinstance(inner, TensorVariable)
    return NdarrayVariable(inner, source=source)


if numpy is not None:
    wraps(numpy.ndarray)(wrap_ndarray)

    def _wrap_dtype(tx: Translator, value: Any, source: Source) -> VariableTracker:
        tx.guard(source, "ID_IS", value)
        return DtypeVariable(value, source=source)

    for _kind in {type(numpy.dtype(name)) for name in "bifc"} | {
        type(numpy.dtype(t)) for t in trace_rules.NUMPY_SCALARS
    }:
        wraps(_kind)(_wrap_dtype)
        builds(_kind)(lambda tx, value: DtypeVariable(value))
