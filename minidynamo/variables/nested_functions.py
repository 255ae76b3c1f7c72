"""Functions that the traced code makes: def, lambda, comprehensions."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..side_effects import Mutation
from .base import VariableTracker
from .constant import ConstantVariable
from .descriptors import CMethodVariable, class_lookup, class_variable
from .functions import BaseFunctionVariable, CellVariable
from .instance_dict import InstanceDictVariable
from .instance_state import InstanceState

if TYPE_CHECKING:
    from ..codegen import PyCodegen
    from ..symbolic_convert import Translator

# What a function is made of besides its code, with the types that can be stored.
_PARTS: dict[str, type | None] = {
    "__defaults__": tuple,
    "__kwdefaults__": dict,
    "__annotations__": dict,
    "__closure__": None,
}


class NestedFunctionVariable(BaseFunctionVariable, InstanceState):
    """A function that the traced code made (def, lambda, comprehension)."""

    def __init__(self, code: types.CodeType, globals_: dict[str, Any], name: str = "") -> None:
        super().__init__(mutation=Mutation.NEW)
        self.cls, self.dict = types.FunctionType, None
        self.code = code
        self.globals = globals_
        self.name = name or code.co_name
        # Parts set by MAKE_FUNCTION flags or SET_FUNCTION_ATTRIBUTE.
        self.parts: dict[str, VariableTracker] = {}
        self.cells: list[CellVariable] = []

    def get_code(self) -> types.CodeType:
        return self.code

    def get_globals(self) -> dict[str, Any]:
        return self.globals

    def defaults(
        self,
        tx: Translator,
    ) -> list[VariableTracker]:
        part = self.parts.get("defaults")
        return [] if part is None else part.unpack(tx)

    def kwdefaults(
        self,
        tx: Translator,
    ) -> dict[str, VariableTracker]:
        part = self.parts.get("kwdefaults")
        return {} if part is None else tx.unpack_keywords(part)

    def closure(
        self,
        tx: Translator,
    ) -> list[CellVariable]:
        return self.cells

    def getattr(
        self,
        tx: Translator,
        name: str,
    ) -> VariableTracker:
        stored = tx.output.side_effects.load_attr(self, name)
        if isinstance(stored, VariableTracker):
            return stored
        known = {
            "__name__": self.name,
            "__qualname__": self.code.co_qualname,
            "__doc__": (self.code.co_consts or (None,))[0],
            "__module__": self.globals.get("__name__"),
        }
        if name in known and stored is None:
            value = known[name]
            is_doc_or_str = isinstance(value, str) or value is None
            return ConstantVariable(value if is_doc_or_str else None)
        if name == "__code__":
            return ConstantVariable(self.code)
        if name in _PARTS:
            return self._part(tx, name[2:-2])
        if name == "__dict__":
            return InstanceDictVariable(self)
        if name == "__globals__" and self.globals is tx.globals:
            return tx.globals_variable().view
        found = class_lookup(tx, types.FunctionType, name)
        if found is None:
            tx.raise_observed(AttributeError, f"'function' object has no attribute '{name}'")
        if isinstance(found.raw, (types.WrapperDescriptorType, types.MethodDescriptorType)):
            return CMethodVariable(found.raw, self)
        return (
            class_variable(tx, self.cls) if name == "__class__" else super().getattr(tx, name)
        )

    def _part(
        self,
        tx: Translator,
        name: str,
    ) -> VariableTracker:
        """`__defaults__` and the like, as the objects that calls look at too."""
        if name == "closure":
            return tx.wrap_items(tuple, self.cells) if self.cells else ConstantVariable(None)
        if name == "annotations":
            self.parts[name] = self._annotations(tx)
        return self.parts.get(name, ConstantVariable(None))

    def _annotations(
        self,
        tx: Translator,
    ) -> VariableTracker:
        """The dict, which CPython too makes when it is first asked for."""
        given = self.parts.get("annotations")
        if given is not None and issubclass(given.python_type(), dict):
            return given
        items = [] if given is None else given.unpack(tx)
        names = [name.realize().as_python_constant() for name in items[::2]]
        return tx.wrap_keywords(dict(zip(names, items[1::2], strict=True)))

    def setattr(
        self,
        tx: Translator,
        name: str,
        value: VariableTracker,
    ) -> None:
        if name in _PARTS:
            self._set_part(tx, name, value.realize())
        elif name in ("__code__", "__dict__", "__class__"):
            super().setattr(tx, name, value)
        elif name in ("__globals__", "__builtins__"):
            tx.raise_observed(AttributeError, "readonly attribute")
        elif name in ("__name__", "__qualname__") and not issubclass(value.python_type(), str):
            tx.raise_observed(TypeError, f"{name} must be set to a string object")
        else:
            tx.output.side_effects.store_attr(self, name, value)

    def _set_part(
        self,
        tx: Translator,
        name: str,
        value: VariableTracker,
    ) -> None:
        kind = _PARTS[name]
        is_none = value.is_python_constant() and value.as_python_constant() is None
        if kind is None:
            tx.raise_observed(AttributeError, "readonly attribute")
        if not is_none and not issubclass(value.python_type(), kind):
            text = f"{name} must be set to a {kind.__name__} object"
            tx.raise_observed(TypeError, text)
        tx.output.side_effects.mutate(self)
        self.parts.pop(name[2:-2], None)
        if not is_none:
            self.parts[name[2:-2]] = value

    def instance_names(self, tx: Translator) -> Iterator[str]:
        """What the function was given beyond its own attributes."""
        return (n for n in super().instance_names(tx) if not hasattr(self.cls, n))

    def delattr(
        self,
        tx: Translator,
        name: str,
    ) -> None:
        stored = tx.output.side_effects.load_attr(self, name)
        if name.startswith("__") or not isinstance(stored, VariableTracker):
            super().delattr(tx, name)
        tx.output.side_effects.delete_attr(self, name)

    def reconstruct(
        self,
        codegen: PyCodegen,
    ) -> None:
        annotations = self.parts.get("annotations")
        closure = self.cells
        codegen.begin_call(_make_function)
        codegen.load_const(self.code)
        codegen.load_const(self.globals)
        codegen.load_const(self.name)
        for part in ("defaults", "kwdefaults"):
            value = self.parts.get(part)
            if value is None:
                codegen.load_const(None)
            else:
                codegen(value)
        if annotations is None:
            codegen.load_const(None)
        else:
            codegen(annotations)
        for cell in closure:
            codegen(cell)
        codegen.emit("BUILD_TUPLE", len(closure))
        codegen.end_call(7)
        stored = codegen.side_effects.stored_attrs(self)
        if stored:
            codegen.save_temp(self)
        for name, attribute in stored.items():
            assert isinstance(attribute, VariableTracker)
            codegen(attribute)
            self.apply_setattr(codegen, name)


def _make_function(
    code: types.CodeType,
    globals_: dict[str, Any],
    name: str,
    defaults: tuple[Any, ...] | None,
    kwdefaults: dict[str, Any] | None,
    annotations: Any,
    closure: tuple[Any, ...],
) -> types.FunctionType:
    """Run by generated code: the function that MAKE_FUNCTION would have made."""
    function = types.FunctionType(code, globals_, name, defaults, closure or None)
    function.__kwdefaults__ = kwdefaults
    if isinstance(annotations, tuple):
        pairs = iter(annotations)
        annotations = dict(zip(pairs, pairs, strict=True))
    if annotations is not None:
        function.__annotations__ = annotations
    return function
