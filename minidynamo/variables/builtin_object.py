"""Values of builtin types (containers, iterators, exceptions) and of Python subclasses of them.

The methods are rows of `registry.METHODS`, made with `builtin_method`, which checks the number
of arguments; the slots of the object protocol go through the rows of the `__dunder__` methods,
so that `len(x)`, `x.__len__()` and `list.__len__(x)` are one piece of code. What a Python
subclass defines is found first, as CPython's lookup along the MRO does.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NoReturn

from ..exc import DataDependentError, MinidynamoError
from ..side_effects import Mutation
from ..source import SlotSource
from ..utils import class_dict
from .arity import Arity, method_of_new, refuse
from .base import ObservedException, VariableTracker, type_name, unsupported
from .constant import ConstantVariable
from .descriptors import bind, class_lookup, class_variable
from .functions import MethodOfVariable
from .instance_dict import InstanceDictVariable
from .instance_state import InstanceState, instance_dict
from .refused_stores import refuse_store, refuse_without_dict
from .registry import METHODS, Method, method
from .symint import SymVariable

if TYPE_CHECKING:
    from ..codegen import PyCodegen
    from ..source import Source
    from ..symbolic_convert import Translator

NONE = ConstantVariable(None)
NOT_IMPLEMENTED = ConstantVariable(NotImplemented)
_MISSING = object()


def _result(value: VariableTracker | None) -> VariableTracker:
    return NONE if value is None else value


def checked(
    function: Callable[..., Any],
    name: str = "",
    call: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """A handler for `registry.handles`: `function(tx, *args, **kwargs)` with its arguments counted.

    The function may return None for Python's None. `call`: the builtin, if it may be tried.
    """
    label = name or function.__name__

    def handler(tx: Translator, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if not Arity.of(function, 1).fits(args, kwargs):
            refuse(tx, label, args, kwargs, call)
        return _result(function(tx, *args, **kwargs))

    handler.__name__ = function.__name__
    return handler


def builtin_method(
    types_: type | tuple[type, ...], *names: str, lazy: bool = False
) -> Callable[[Method], Method]:
    """Register `function(tx, self, *args, **kwargs)` as methods `names` of values of `types_`.

    lazy: the arguments are passed on as they are, not realised.
    """

    owners = types_ if isinstance(types_, tuple) else (types_,)

    def register(function: Method) -> Method:
        def row(
            tx: Translator,
            self: VariableTracker,
            args: list[VariableTracker],
            kwargs: dict[str, VariableTracker],
        ) -> VariableTracker:
            if not Arity.of(function, 2).fits(args, kwargs):
                # What slots say of positional arguments names none of them.
                known = names if kwargs else names[:1]
                call = method_of_new(self.python_type(), owners, known)
                refuse(tx, names[0], args, kwargs, call)
            if not lazy:
                args = [arg.realize() for arg in args]
                kwargs = {name: arg.realize() for name, arg in kwargs.items()}
            return _result(function(tx, self, *args, **kwargs))

        for type_ in owners:
            assert all(hasattr(type_, name) for name in names), (type_, names)
            method(type_, *names)(row)
        return function

    return register


@contextmanager
def observed(tx: Translator) -> Iterator[None]:
    """Exceptions that Python raises in the block are the traced program's."""
    try:
        yield
    except (MinidynamoError, ObservedException, RecursionError):
        raise
    except Exception as error:
        raise ObservedException(tx.wrap_exception(error)) from error


class _Unset:
    """An object whose one slot was never set."""

    __slots__ = ("slot",)


try:
    _Unset().slot  # type: ignore[attr-defined]  # noqa: B018
except AttributeError as error:
    # From Python 3.13 on this message alone has the class' full name.
    _FULL_NAME = _Unset.__module__ in str(error)


def name_at_slots(cls: type) -> str:
    """The name of a class in the message about a slot that is not set."""
    hidden = not _FULL_NAME or cls.__module__ in ("builtins", "__main__")
    return type_name(cls) if hidden else f"{cls.__module__}.{cls.__qualname__}"


def index_of(tx: Translator, value: VariableTracker) -> int:
    """`operator.index(value)`: an int known while tracing. TypeError as the program sees it."""
    value = value.realize().specialized(tx)
    if value.is_python_constant():
        with observed(tx):
            return operator.index(value.as_python_constant())
    if isinstance(base := getattr(value, "base", None), ConstantVariable) and issubclass(
        value.python_type(), int
    ):
        return int(base.value)  # not asked for its __index__
    if not has_slot(tx, value, "__index__"):
        name = type_name(value.python_type())
        tx.raise_observed(TypeError, f"'{name}' object cannot be interpreted as an integer")
    result = tx.call_function(tx.getattr(value, "__index__"), [], {}).realize()
    if not issubclass(kind := result.python_type(), int):
        text = f"__index__ returned non-int (type {kind.__name__})"
        tx.raise_observed(TypeError, text)
    with suppress(DataDependentError):
        result = result.specialized(tx)
    if not result.is_python_constant():
        unsupported("data-dependent value", repr(value), "an index depends on a tensor's data")
    if kind is not int:
        unsupported("index", repr(value), "a subclass of int from __index__ is warned about")
    return index_of(tx, result)


def is_none(value: VariableTracker | None) -> bool:
    """Whether the value is None, or was not given."""
    return value is None or (isinstance(value, ConstantVariable) and value.value is None)


def has_slot(tx: Translator, value: VariableTracker, name: str) -> bool:
    """Whether the type of the value defines `name` (what a metaclass defines does not count)."""
    return class_lookup(tx, value.python_type(), name) is not None


_HALVES = {"__setitem__": "__delitem__", "__delitem__": "__setitem__"}


def refuse_half_slot(
    tx: Translator,
    cls: type,
    name: str,
) -> None:
    """A slot of C does for two methods: if the class has the other, this is missed by its name."""
    if name in _HALVES and class_lookup(tx, cls, _HALVES[name]) is not None:
        tx.raise_observed(AttributeError, name)


def words_without_delitem(
    tx: Translator,
    key: VariableTracker,
    cls: type,
) -> str:
    """PySequence_DelItem, which asks a class with slots of sequences, and PyObject_DelItem have
    words of their own.
    """
    names = ("__len__", "__contains__", "__getitem__")
    is_asked = cls.__flags__ & _HEAP_TYPE or any(hasattr(cls, name) for name in names)
    verb = "doesn't" if is_asked and has_slot(tx, key.realize(), "__index__") else "does not"
    return f"{verb} support item deletion"


_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE


def as_iterator(tx: Translator, value: VariableTracker) -> VariableTracker:
    """What an `__iter__` of the program returned; TypeError if it is no iterator."""
    if not has_slot(tx, value, "__next__"):
        kind = type_name(value.python_type())
        tx.raise_observed(TypeError, f"iter() returned non-iterator of type {kind!r}")
    return value


def rich_equal(tx: Translator, left: VariableTracker, right: VariableTracker) -> bool:
    """`PyObject_RichCompareBool(left, right, Py_EQ)`: identity first."""
    left, right = left.realize(), right.realize()
    is_symbol = isinstance(left, SymVariable) or isinstance(right, SymVariable)
    if left is right or (not is_symbol and tx.is_same(left, right)):
        return True
    return tx.call_operator(operator.eq, [left, right]).realize().truth(tx)


def _is_of_slots(descriptor: Any) -> bool:
    """Whether it is the descriptor of a name in the `__slots__` of a class in Python."""
    is_member = isinstance(descriptor, types.MemberDescriptorType)
    return is_member and "__slots__" in class_dict(descriptor.__objclass__)


# What makes the hash key of an object whose class defines `__hash__` itself (`user_keys`).
USER_KEY: list[Callable[[Translator, VariableTracker], Any]] = []


class BuiltinMethodVariable(MethodOfVariable):
    """A method of a builtin object; arguments are realised by the row that needs it."""

    takes_lazy_args = True


class BuiltinObject(InstanceState):
    """An object of builtin type `cls`, or of a Python subclass; the state is in the subclasses.

    real: the object itself, if it existed before the frame and is of a Python subclass.
    """

    # Set while its contents are being looked at: it may contain itself.
    is_visited = False
    # Whether `operator.length_hint` of it runs code of the program.
    hints_length = False

    def __init__(
        self,
        cls: type,
        *,
        source: Source | None = None,
        mutation: Mutation = Mutation.IMMUTABLE,
        real: Any = None,
    ) -> None:
        super().__init__(source=source, mutation=mutation)
        self.cls = cls
        self.real = real
        has_dict = real is not None and cls.__dictoffset__ != 0
        self.dict = instance_dict(real) if has_dict else None

    def describe(self) -> str:
        return super().describe() or self.cls.__name__

    def python_type(self) -> type:
        return self.cls

    # -- attributes ------------------------------------------------------------------------------

    def lookup(self, name: str) -> tuple[type, Any, bool] | None:
        """`_PyType_Lookup`: (class, row or raw attribute, whether it is a row), or None."""
        return find_method(self.cls, name)

    def overrides(self, name: str) -> bool:
        """Whether a Python subclass defines `name` itself."""
        found = self.lookup(name)
        return found is not None and not found[2] and type(found[1]) not in _C_METHODS

    def _has_own(self, name: str, *kinds: type) -> bool:
        """Whether the special method `name` is of `kinds`, or a C method of another name: classes
        say `__setattr__ = dict.__setitem__`.
        """
        found = self.lookup(name)
        if found is None:
            return False
        is_c = type(found[1]) in _C_METHODS
        return found[1].__name__ != name if is_c else isinstance(found[1], kinds)

    def getattr(self, tx: Translator, name: str) -> VariableTracker:
        if isinstance(self.cls.__getattribute__, types.FunctionType):
            text = f"__getattribute__ of {self.cls.__qualname__} is not traced"
            unsupported("attribute", f"{self!r}.{name}", text)
        found = self.lookup(name)
        if found is None or not found[2]:
            return self._class_attribute(tx, name)
        stored = self.load_instance(tx, name)
        return BuiltinMethodVariable(self, name) if stored is None else stored

    def _class_attribute(self, tx: Translator, name: str) -> VariableTracker:
        """`PyObject_GenericGetAttr` for what has no row."""
        found = class_lookup(tx, self.cls, name)
        if found is not None and found.goes_first(tx):
            return bind(tx, found, self, self.cls)
        stored = self.load_instance(tx, name)
        if stored is not None:
            return stored
        if found is not None:
            return bind(tx, found, self, self.cls)
        if self.lookup("__getattr__") is not None:
            return self.call_method(tx, "__getattr__", [ConstantVariable(name)], {})
        self.no_attribute(tx, name)

    def no_attribute(self, tx: Translator, name: str) -> NoReturn:
        """Raise the AttributeError that the program sees."""
        text = f"{type_name(self.cls)!r} object has no attribute {name!r}"
        tx.raise_observed(AttributeError, text)

    def load_getset(self, tx: Translator, descriptor: Any) -> VariableTracker:
        if descriptor.__name__ == "__class__":
            return class_variable(tx, self.cls)
        if descriptor.__name__ == "__dict__":
            return InstanceDictVariable(self)
        return super().load_getset(tx, descriptor)

    def load_slot(self, tx: Translator, descriptor: Any) -> VariableTracker:
        if not _is_of_slots(descriptor):
            return super().load_slot(tx, descriptor)
        name = descriptor.__name__
        stored = tx.output.side_effects.load_attr(self, name)
        if isinstance(stored, VariableTracker):
            return stored
        if stored is None and self.source is not None:
            try:
                value = descriptor.__get__(self.real)
            except AttributeError:
                tx.guard(self.source, "LACKS_ATTR", name)
            else:
                return tx.wrap(value, SlotSource(self.source, descriptor))
        text = f"{name_at_slots(self.cls)!r} object has no attribute {name!r}"
        tx.raise_observed(AttributeError, text)

    def setattr(
        self,
        tx: Translator,
        name: str,
        value: VariableTracker,
    ) -> None:
        if self._has_own("__setattr__", types.FunctionType):
            self.call_method(tx, "__setattr__", [ConstantVariable(name), value], {})
        else:
            self.generic_setattr(tx, name, value)

    def generic_setattr(
        self,
        tx: Translator,
        name: str,
        value: VariableTracker,
    ) -> None:
        """`PyObject_GenericSetAttr`."""
        raw = class_lookup(tx, self.cls, name)
        if raw is not None and raw.is_data_descriptor(tx):
            if isinstance(raw.raw, property) and raw.raw.fset is not None:
                tx.call_function(raw.part(tx, raw.raw.fset, "fset"), [self, value], {})
            else:
                self.store_in_c(tx, raw.raw, value)
        elif not self.has_instance_dict():
            refuse_without_dict(tx, self.cls, name, raw is not None)
        else:
            self.store_instance(tx, name, value)

    def store_in_c(
        self,
        tx: Translator,
        descriptor: Any,
        value: VariableTracker | None,
    ) -> None:
        """`descriptor.__set__(self, value)`, or `__delete__` where value is None."""
        if _is_of_slots(descriptor) and value is not None:
            tx.output.side_effects.store_attr(self, descriptor.__name__, value)
            return
        name = getattr(descriptor, "__name__", type(descriptor).__name__)
        refuse_store(tx, getattr(descriptor, "__objclass__", object), name, value)
        unsupported("attribute store", f"{self!r}.{name}", "this descriptor is not traced")

    def delattr(self, tx: Translator, name: str) -> None:
        if self._has_own("__delattr__"):
            self.call_method(tx, "__delattr__", [ConstantVariable(name)], {})
            return
        if self.overrides("__delattr__") and self.cls.__delattr__ is not object.__delattr__:
            unsupported(
                "attribute delete", f"{self!r}.{name}", "__delattr__ is not traced here"
            )
        raw = class_lookup(tx, self.cls, name)
        if raw is not None and raw.is_data_descriptor(tx):
            self.store_in_c(tx, raw.raw, None)
        if not self.has_instance_dict():
            refuse_without_dict(tx, self.cls, name, raw is not None)
        if not self.has_stored(tx, name):
            self.no_attribute(tx, name)
        self.delete_item(tx, name)

    def has_instance_dict(self) -> bool:
        """Whether objects of the class have a `__dict__`."""
        return self.cls.__dictoffset__ != 0

    # -- slots -----------------------------------------------------------------------------------

    def call_method(
        self,
        tx: Translator,
        name: str,
        args: list[VariableTracker],
        kwargs: dict[str, VariableTracker],
    ) -> VariableTracker:
        found = self.lookup(name)
        if found is not None and found[2]:
            return found[1](tx, self, args, kwargs)
        if found is None or type(found[1]) not in _C_METHODS:
            return tx.call_function(self.getattr(tx, name), args, kwargs)
        return self.call_builtin(tx, found[1], args, kwargs)

    def call_builtin(
        self,
        tx: Translator,
        raw: Any,
        args: list[VariableTracker],
        kwargs: dict[str, VariableTracker],
    ) -> VariableTracker:
        """A C method of the type or a base: its row, or the general ones of object."""
        found = find_method(raw.__objclass__, raw.__name__)
        if found is not None and found[2]:
            return found[1](tx, self, args, kwargs)
        if raw is object.__setattr__:
            self.generic_setattr(tx, args[0].realize().as_python_constant(), args[1])
            return NONE
        if raw is object.__init__ or raw is object.__init_subclass__:
            return NONE
        if raw is object.__str__ and not args:
            return self.call_method(tx, "__repr__", [], {})
        if raw is object.__format__ and len(args) == 1:
            if args[0].as_python_constant() == "":
                return tx.call_function(tx.wrap_constant(str), [self], {})
            text = f"unsupported format string passed to {type_name(self.cls)}.__format__"
            tx.raise_observed(TypeError, text)
        unsupported(
            "method",
            f"{self.cls.__name__}.{raw.__name__}",
            f"the method {raw.__name__!r} of {self.cls.__name__} is not traced",
        )

    def _item_slot(
        self,
        tx: Translator,
        name: str,
        lacking: str,
        args: list[VariableTracker],
    ) -> VariableTracker:
        if self.lookup(name) is None:
            refuse_half_slot(tx, self.cls, name)
            tx.raise_observed(TypeError, f"{type_name(self.cls)!r} object {lacking}")
        return self.call_method(tx, name, args, {})

    def getitem(self, tx: Translator, key: VariableTracker) -> VariableTracker:
        return self._item_slot(tx, "__getitem__", "is not subscriptable", [key])

    def setitem(
        self,
        tx: Translator,
        key: VariableTracker,
        value: VariableTracker,
    ) -> None:
        self._item_slot(tx, "__setitem__", "does not support item assignment", [key, value])

    def delitem(self, tx: Translator, key: VariableTracker) -> None:
        self._item_slot(tx, "__delitem__", words_without_delitem(tx, key, self.cls), [key])

    def length(self, tx: Translator) -> VariableTracker:
        if self.lookup("__len__") is None:
            tx.raise_observed(TypeError, f"object of type {type_name(self.cls)!r} has no len()")
        return self.call_method(tx, "__len__", [], {})

    def iter(self, tx: Translator) -> VariableTracker:
        if self.lookup("__iter__") is None:
            if self.lookup("__getitem__") is not None:
                unsupported("iteration", repr(self), "it has __getitem__ alone")
            tx.raise_observed(TypeError, f"{type_name(self.cls)!r} object is not iterable")
        return as_iterator(tx, self.call_method(tx, "__iter__", [], {}).realize())

    def next(self, tx: Translator) -> VariableTracker | None:
        if self.lookup("__next__") is None:
            tx.raise_observed(TypeError, f"{type_name(self.cls)!r} object is not an iterator")
        return self.until_stopped(lambda: self.call_method(tx, "__next__", [], {}))

    def call(
        self,
        tx: Translator,
        args: list[VariableTracker],
        kwargs: dict[str, VariableTracker],
    ) -> VariableTracker:
        if self.lookup("__call__") is None:
            tx.raise_observed(TypeError, f"{type_name(self.cls)!r} object is not callable")
        return self.call_method(tx, "__call__", args, kwargs)

    def contains(self, tx: Translator, item: VariableTracker) -> VariableTracker:
        """`PySequence_Contains`: `__contains__`, or a search along the iteration."""
        if self.lookup("__contains__") is not None:
            found = self.call_method(tx, "__contains__", [item], {}).realize()
            return ConstantVariable(found.truth(tx))
        if self.lookup("__iter__") is None and self.lookup("__getitem__") is None:
            text = f"argument of type {type_name(self.cls)!r} is not iterable"
            tx.raise_observed(TypeError, text)
        iterator = self.iter(tx)
        while (candidate := iterator.next(tx)) is not None:
            if rich_equal(tx, candidate, item):
                return ConstantVariable(True)
        return ConstantVariable(False)

    def truth(self, tx: Translator) -> bool:
        for name in ("__bool__", "__len__"):
            if self.lookup(name) is not None:
                return self.call_method(tx, name, [], {}).realize().truth(tx)
        return True

    def hash_key(self, tx: Translator) -> Any:
        found = self.lookup("__hash__")
        if found is None or found[1] is None:
            tx.raise_observed(TypeError, f"unhashable type: {type_name(self.cls)!r}")
        if not isinstance(found[1], types.WrapperDescriptorType):
            return USER_KEY[0](tx, self)
        return self.identity()

    # -- leaving the trace -----------------------------------------------------------------------

    def push_empty(self, codegen: PyCodegen) -> None:
        """Push a NEW object of the class without its items."""
        raise NotImplementedError

    def reconstruct_filled(self, codegen: PyCodegen) -> None:
        self.push_empty(codegen)
        codegen.save_temp(self)
        self.push_contents(codegen)
        self.apply_contents(codegen)
        self.reconstruct_attributes(codegen)

    def reconstruct_attributes(self, codegen: PyCodegen) -> None:
        """Restore the instance dict of a NEW object, which is on top of the stack."""
        stored = codegen.side_effects.stored_attrs(self)
        if stored:
            codegen.save_temp(self)
        for name, value in stored.items():
            if isinstance(value, VariableTracker):
                codegen(value)
                self.apply_setattr(codegen, name)


_C_METHODS = (types.MethodDescriptorType, types.WrapperDescriptorType)
# Builtin types whose own C methods do as the rows of their base say, where they have no row.
_FOLLOWERS: set[type] = set()


def follows_base(*classes: type) -> None:
    """Say that untabled C methods of these types behave as the rows of their base."""
    _FOLLOWERS.update(classes)


def find_method(cls: type, name: str) -> tuple[type, Any, bool] | None:
    """The first class of the MRO that has `name`: (class, row or raw attribute, whether a row)."""
    for class_ in cls.__mro__:
        row = METHODS.get((class_, name))
        if row is not None:
            return class_, row, True
        raw = vars(class_).get(name, _MISSING)
        if raw is not _MISSING and not (type(raw) in _C_METHODS and class_ in _FOLLOWERS):
            return class_, raw, False
    return None


def construct(codegen: PyCodegen, function: Callable[..., Any], *parts: Any) -> None:
    """Emit a call of `function`; a part is a value, or a function that emits one."""
    codegen.begin_call(function)
    for part in parts:
        if isinstance(part, VariableTracker):
            codegen(part)
        elif callable(part):
            part()
        else:
            codegen.load_const(part)
    codegen.end_call(len(parts))


def apply_with(codegen: PyCodegen, self: VariableTracker, function: Callable[..., Any]) -> None:
    """The new contents are on the stack: pop them and emit `function(real object, contents)`."""
    contents = codegen.new_local()
    codegen.emit("STORE_FAST", contents)
    real = codegen.preload(self)
    codegen.begin_call(function)
    codegen.emit("LOAD_FAST", real)
    codegen.emit("LOAD_FAST", contents)
    codegen.end_call(2)
    codegen.emit("POP_TOP")
