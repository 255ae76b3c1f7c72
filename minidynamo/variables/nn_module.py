"""nn.Modules: user-defined objects with tables of parameters, buffers and children.

What `nn.Module.__getattr__`, `__setattr__` and `__call__` do in the ordinary case is done here
directly, with the guards that this needs; in every other case (tables changed by the traced code,
hooks, modules made inside) torch's own Python code is traced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules import module as torch_module

from .. import markers
from ..exc import Unsupported
from ..guards import Predicate
from ..shape_history import note_counter
from ..source import (
    ConstSource,
    DictItemSource,
    DictValueSource,
    InstanceAttrSource,
    InstanceDictSource,
    ModuleItemSource,
    Source,
)
from .base import VariableTracker, unsupported
from .classes import NEW_OBJECT
from .constant import ConstantVariable
from .descriptors import class_lookup, guard_class
from .marks import is_marked
from .registry import handles, wraps_instances
from .user_defined import UserDefinedObjectVariable

if TYPE_CHECKING:
    from ..symbolic_convert import Translator

TABLES = ("_parameters", "_buffers", "_modules")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_FORWARD_HOOKS = _HOOKS[:2]
# The ids of those that take keywords, and of those that are called after errors.
_KEYWORD_HOOKS = tuple(f"{name}_with_kwargs" for name in _FORWARD_HOOKS)
_ALWAYS_CALLED = "_forward_hooks_always_called"
_SPECIAL_HOOKS = (*_KEYWORD_HOOKS, _ALWAYS_CALLED)
# Tables of hooks for all modules: each has the name of a module's with that in front.
_GLOBAL = "_global"
_Module = torch.nn.Module
_CALL = _Module.__dict__["__call__"]
_GETATTR = _Module.__dict__["__getattr__"]
_SETATTR = _Module.__dict__["__setattr__"]
_MODULE_GLOBALS = vars(torch_module)
_EVERYWHERE = ConstSource(_MODULE_GLOBALS, "vars(torch.nn.modules.module)")


def _hooks_of(
    module: Any,
    name: str,
) -> tuple[tuple[Any, bool], ...]:
    """The hooks in the tables of that name, first those of all modules, and whether they take
    keywords; the keys, which are never the same, are not looked at.
    """
    tables = ((_MODULE_GLOBALS, _GLOBAL + name), (vars(module), name))
    pairs = [(_take_keywords(*table), table[0][table[1]].values()) for table in tables]
    return tuple(
        (hook, takes)
        for keywords, hooks in pairs
        for takes, hook in zip(keywords, hooks, strict=True)
    )


def _take_keywords(tables: Mapping[str, Any], name: str) -> tuple[bool, ...]:
    special = tables.get(f"{name}_with_kwargs", ())
    return tuple(key in special for key in tables[name])


def _call_with_hooks(module: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Traced in place of `nn.Module._call_impl` for hooks around `forward`."""
    for hook, takes_keywords in _hooks_of(module, "_forward_pre_hooks"):
        if takes_keywords:
            changed = hook(module, args, kwargs)
            if changed is not None:
                if not isinstance(changed, tuple) or len(changed) != 2:
                    expected = "None or a tuple of (new_args, new_kwargs)"
                    raise RuntimeError(
                        f"forward pre-hook must return {expected}, but got {changed}."
                    )
                args, kwargs = changed
            continue
        changed = hook(module, args)
        if changed is not None:
            args = changed if isinstance(changed, tuple) else (changed,)
    result = module.forward(*args, **kwargs)
    for hook, takes_keywords in _hooks_of(module, "_forward_hooks"):
        changed = (
            hook(module, args, kwargs, result) if takes_keywords else hook(module, args, result)
        )
        if changed is not None:
            result = changed
    return result


for _function in (_hooks_of, _call_with_hooks):
    markers.set_decision(_function, markers.Decision.INLINE)


class NNModuleVariable(UserDefinedObjectVariable):
    """An instance of an nn.Module."""

    # True if the program may hold what `compile` made of the module.
    is_unwrapped = False

    def tables(
        self,
        tx: Translator,
    ) -> list[dict[str, Any]] | None:
        """The real tables, or None where the traced code may have changed them."""
        if self.dict is None or self.source is None:
            return None
        effects = tx.output.side_effects
        stored = effects.stored_attrs(self)
        tables = []
        for name in TABLES:
            table = self.dict.get(name)
            if not isinstance(table, dict) or name in stored:
                return None
            known = effects.variable_of(table)
            if known is not None and known in effects.contents:
                return None
            tables.append(table)
        return tables

    # -- attributes -----------------------------------------------------------------------------

    def missing_attribute(
        self,
        tx: Translator,
        name: str,
    ) -> VariableTracker:
        """`nn.Module.__getattr__`."""
        if name == "_orig_mod" and self.is_unwrapped:
            return self
        found = class_lookup(tx, self.cls, "__getattr__")
        if found is not None and found.raw is _GETATTR:
            value = self.table_lookup(tx, name)
            if value is not None:
                return value
        return super().missing_attribute(tx, name)

    def table_lookup(
        self,
        tx: Translator,
        name: str,
    ) -> VariableTracker | None:
        """The parameter, buffer or child of that name; None if there is none."""
        tables = self.tables(tx)
        if tables is None:
            return None
        assert self.source is not None
        for kind, table in zip(TABLES, tables, strict=True):
            if name in table:
                return tx.wrap(table[name], ModuleItemSource(self.source, kind, name))
            tx.guard(self.table_source(kind), "DICT_LACKS", name)
        return None

    def table_source(
        self,
        kind: str,
    ) -> Source:
        assert self.source is not None
        return DictItemSource(InstanceDictSource(self.source), kind)

    def item_source(
        self,
        name: str,
    ) -> Source:
        if name in TABLES:
            return self.table_source(name)
        return super().item_source(name)

    def setattr(
        self,
        tx: Translator,
        name: str,
        value: VariableTracker,
    ) -> None:
        """`nn.Module.__setattr__`, directly where it comes to an ordinary store."""
        found = class_lookup(tx, self.cls, "__setattr__")
        value = value.realize()
        if value.python_type() is int:
            note_counter(self.cls, name)
        if found is not None and found.raw is _SETATTR and self._set_directly(tx, name, value):
            return
        super().setattr(tx, name, value)

    def _set_directly(
        self,
        tx: Translator,
        name: str,
        value: VariableTracker,
    ) -> bool:
        tables, kind = self.tables(tx), value.python_type()
        # Tensors of classes of their own may be parameters all the same.
        is_special = issubclass(kind, torch.Tensor) and kind is not torch.Tensor
        if tables is None or is_special or issubclass(kind, _Module):
            return False
        if any(name in table for table in tables):
            return False
        if any(is_marked(tx, value, cls) for cls in (torch.nn.Parameter, torch.nn.Buffer)):
            return False
        for table_name in TABLES:
            tx.guard(self.table_source(table_name), "DICT_LACKS", name)
        self.generic_setattr(tx, name, value)
        return True

    # -- calling --------------------------------------------------------------------------------

    def call(
        self, tx: Translator, args: list[VariableTracker], kwargs: dict[str, VariableTracker]
    ) -> VariableTracker:
        with tx.output.modules.within(self.value, self.source):
            return self._call(tx, args, kwargs)

    def _call(
        self, tx: Translator, args: list[VariableTracker], kwargs: dict[str, VariableTracker]
    ) -> VariableTracker:
        guard_class(tx, self.cls)
        if self.cls.__module__ in _COMPILED_MODULES:
            unsupported("disabled function", repr(self), "the module was passed to disable")
        self._refuse_backward_hooks()
        if self._calls_forward() and self._has_plain_hooks(tx):
            if not self._has_forward_hooks():
                return tx.call_for(self, self.getattr(tx, "forward"), args, kwargs)
            return tx.call_for(self, tx.wrap_constant(_call_with_hooks), [self, *args], kwargs)
        return super().call(tx, args, kwargs)

    def forward_hooks(
        self,
        tx: Translator,
        name: str,
    ) -> VariableTracker | None:
        """The hooks in tables that the traced code did not change, each with whether it takes
        keywords.
        """
        if self.dict is None or self.source is None:
            return None
        effects = tx.output.side_effects
        if name in effects.stored_attrs(self):
            return None
        found: list[VariableTracker] = []
        places = (
            (_MODULE_GLOBALS, _GLOBAL + name, _EVERYWHERE, DictItemSource),
            (self.dict, name, self.source, InstanceAttrSource),
        )
        for tables, table_name, owner, part in places:
            table = tables.get(table_name)
            if table is None or effects.variable_of(table) in effects.contents:
                return None
            source = part(owner, table_name)
            tx.guard(source, "LEN_EQ", len(table))
            takes = _take_keywords(tables, table_name)
            if tables.get(f"{table_name}_with_kwargs"):
                _guard_keywords(tx, owner, table_name, takes)
            for index, hook in enumerate(table.values()):
                pair = tx.lazy(hook, DictValueSource(source, index))
                found.append(tx.wrap_items(tuple, [pair, ConstantVariable(takes[index])]))
        return tx.wrap_items(tuple, found)

    def _refuse_backward_hooks(
        self,
    ) -> None:
        """They hang on autograd nodes, which exist only at run time."""
        if not torch.is_grad_enabled():
            return
        own = self.dict if self.dict is not None else {}
        for name in _HOOKS[2:]:
            everywhere = _MODULE_GLOBALS[_GLOBAL + name]
            if not (everywhere or own.get(name)):
                continue
            reason = Unsupported(
                "module hooks", f"{self!r}: {name}", "backward hooks run in eager"
            )
            if everywhere:
                place: Source = DictItemSource(_EVERYWHERE, _GLOBAL + name)
                reason.because_of = (place, "LEN_EQ", len(everywhere))
            elif self.source is not None:
                place = InstanceAttrSource(self.source, name)
                reason.because_of = (place, "LEN_EQ", len(own[name]))
            raise reason

    def _calls_forward(
        self,
    ) -> bool:
        """Whether `__call__` is that of nn.Module; GraphModule only adds error texts."""
        if issubclass(self.cls, torch.fx.GraphModule):
            wrapped = self.cls.__dict__.get("_wrapped_call")
            return getattr(wrapped, "cls_call", self) is None
        return self.cls.__call__ is _CALL

    def _has_forward_hooks(
        self,
    ) -> bool:
        """Whether its own tables, or those of all modules, hold hooks around `forward`."""
        own = self.dict or {}
        return any(own.get(n) or _MODULE_GLOBALS[_GLOBAL + n] for n in _FORWARD_HOOKS)

    def _has_plain_hooks(
        self,
        tx: Translator,
    ) -> bool:
        """Whether `__call__` is nothing but calls of `forward` and of hooks around it; guarded."""
        if (
            self.dict is None
            or self.source is None
            or self.dict.get("_compiled_call_impl") is not None
        ):
            return False
        effects = tx.output.side_effects
        stored = effects.stored_attrs(self)
        has_some = self._has_forward_hooks()
        hooks: list[tuple[Any, Source]] = [
            (self.dict.get(name), InstanceAttrSource(self.source, name))
            for name in (*_HOOKS, *(_SPECIAL_HOOKS if has_some else ()))
        ]
        names = [_GLOBAL + name for name in (*_HOOKS, *(_SPECIAL_HOOKS if has_some else ()))]
        hooks += [
            (_MODULE_GLOBALS[name], DictItemSource(_EVERYWHERE, name))
            for name in names
            if name in _MODULE_GLOBALS  # global hooks that go first take no keywords
        ]
        plain = [
            tables.get(prefix + name)
            for tables, prefix in ((self.dict, ""), (_MODULE_GLOBALS, _GLOBAL))
            for name in (*_FORWARD_HOOKS, *_KEYWORD_HOOKS)
        ]
        for table, _ in hooks:
            if table is None or effects.variable_of(table) in effects.contents:
                return False
            if len(table) and not any(table is item for item in plain):
                return False
        if any(name in stored for name in (*_HOOKS, *_SPECIAL_HOOKS, "_compiled_call_impl")):
            return False
        for table, source in hooks:
            # Tables of those that take keywords keep numbers of hooks that were removed.
            if not table or not any(table is item for item in plain):
                tx.guard(source, "LEN_EQ", len(table))
        if self.load_instance(tx, "_compiled_call_impl") is None:
            guard_class(tx, self.cls)
        return True

    # -- containers of torch.nn -------------------------------------------------------------------

    def children(
        self,
        tx: Translator,
    ) -> list[VariableTracker] | None:
        """The values of `_modules` in order, with a guard on all names, or None."""
        tables = self.tables(tx)
        if tables is None:
            return None
        assert self.source is not None
        modules = tables[2]
        tx.guard(self.table_source("_modules"), "DICT_KEYS", tuple(modules))
        return [
            tx.lazy(module, ModuleItemSource(self.source, "_modules", name))
            for name, module in modules.items()
        ]

    def iter(
        self,
        tx: Translator,
    ) -> VariableTracker:
        found = class_lookup(tx, self.cls, "__iter__")
        if found is not None and found.raw in _ITERATES_CHILDREN:
            children = self.children(tx)
            if children is not None:
                return tx.sequence_iterator(children)
        return super().iter(tx)

    def getitem(
        self,
        tx: Translator,
        key: VariableTracker,
    ) -> VariableTracker:
        found = class_lookup(tx, self.cls, "__getitem__")
        if found is not None and found.raw in _INDEXES_CHILDREN and key.is_python_constant():
            index = key.as_python_constant()
            numbered = isinstance(index, int) and self._is_numbered(tx)
            children = self.children(tx) if numbered else None
            if children is not None and -len(children) <= index < len(children):
                return children[index].realize()
        return super().getitem(tx, key)

    def _is_numbered(
        self,
        tx: Translator,
    ) -> bool:
        """Whether the children are named 0, 1, 2, ... in order: a ModuleList looks names up."""
        tables = self.tables(tx)
        names = list(tables[2]) if tables is not None else []
        return names == [str(i) for i in range(len(names))]

    def length(
        self,
        tx: Translator,
    ) -> VariableTracker:
        found = class_lookup(tx, self.cls, "__len__")
        if found is not None and found.raw in _COUNTS_CHILDREN:
            children = self.children(tx)
            if children is not None:
                return ConstantVariable(len(children))
        return super().length(tx)


def _guard_keywords(tx: Translator, owner: Source, name: str, takes: tuple[bool, ...]) -> None:
    """owner: of a module, or of the namespace that holds the tables of all modules."""

    def are_unchanged(
        holder: Any,
    ) -> bool:
        tables = holder if holder is _MODULE_GLOBALS else vars(holder)
        return _take_keywords(tables, name) == takes

    text = f"which hooks in {name} take keywords is unchanged"
    tx.guard(owner, "PREDICATE", Predicate(are_unchanged, text))


def _methods_of_containers(name: str, *classes: type) -> frozenset[Callable[..., Any]]:
    return frozenset(cls.__dict__[name] for cls in classes)


@handles(_hooks_of)
def _hooks_in_table(
    tx: Translator, args: list[VariableTracker], kwargs: dict[str, VariableTracker]
) -> Any:
    """`(module, name)`."""
    module, name = args[0].realize(), args[1].as_python_constant()
    hooks = module.forward_hooks(tx, name) if isinstance(module, NNModuleVariable) else None
    return NotImplemented if hooks is None else hooks


_ITERATES_CHILDREN = _methods_of_containers(
    "__iter__", torch.nn.Sequential, torch.nn.ModuleList
)
_INDEXES_CHILDREN = _methods_of_containers(
    "__getitem__", torch.nn.Sequential, torch.nn.ModuleList
)
_COUNTS_CHILDREN = _methods_of_containers(
    "__len__", torch.nn.Sequential, torch.nn.ModuleList, torch.nn.ModuleDict
)


@wraps_instances(_Module)
def wrap_module(
    tx: Translator,
    value: torch.nn.Module,
    source: Source,
) -> VariableTracker:
    if isinstance(value, torch.jit.ScriptModule):
        unsupported(
            "module kind",
            f"{source.name}: {type(value).__name__}",
            "scripted modules run in eager",
        )
    tx.guard(source, "TYPE_IS", type(value))
    if type(value).__module__ in _COMPILED_MODULES and not _calls_another(tx, value, source):
        # What `compile(module)` gave: inside a compiled function it is the module itself.
        inner = ModuleItemSource(source, "_modules", "_orig_mod")
        module = tx.wrap(value._modules["_orig_mod"], inner)
        module.is_unwrapped = True  # type: ignore[attr-defined]
        return module
    tx.output.shapes.modules[source] = type(value)
    return NNModuleVariable(type(value), value, source=source)


_COMPILED_MODULES = ("minidynamo.optimized_module", "torch._dynamo.eval_frame")


def _calls_another(tx: Translator, module: torch.nn.Module, source: Source) -> bool:
    """Whether the wrapper of a module is that of `disable(module)` or has an assigned forward."""
    ours = module.__dict__.get("_compiled")
    if ours is not None:
        if "forward" in module.__dict__:
            return True
        tx.guard(InstanceDictSource(source), "DICT_LACKS", "forward")
        return getattr(ours, "region", ours) is None
    said = markers.decision(module.__dict__.get("forward"))
    return said is markers.Decision.DISABLE


@handles(_GETATTR)
def module_getattr(
    tx: Translator, args: list[VariableTracker], kwargs: dict[str, VariableTracker]
) -> Any:
    """`nn.Module.__getattr__`, as a class that overrides it calls it."""
    if len(args) != 2 or not isinstance(args[0], NNModuleVariable):
        return NotImplemented
    found = args[0].table_lookup(tx, args[1].as_python_constant())
    return NotImplemented if found is None else found


NEW_OBJECT.insert(0, (_Module, NNModuleVariable))

__all__ = ["NNModuleVariable"]
