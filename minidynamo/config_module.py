"""Turns a module of `name: type = field(default, doc)` lines into a typed, checked set of flags.

Used by `minidynamo.config` and `minidynamo.inductor.config`:

    recompile_limit: int = field(8, "Compiled versions of a code object.", aliases=("limit",))
    patch = install(__name__, env_prefix="MINIDYNAMO")

Afterwards the module's attributes are the plain values (a read costs one dict lookup), a store
checks the name and the type, and an environment variable `<env_prefix>_<NAME>` overrides the
default at import.
Flags belong to the process, not to a thread.
"""

from __future__ import annotations

import copy
import hashlib
import os
import pickle
import sys
import types
import typing
from collections.abc import Callable, Mapping
from contextlib import ContextDecorator
from dataclasses import dataclass
from typing import Any, TypeVar

from .config_inert import DONE_ANYWAY
from .utils import known_names, warn_once

__all__ = ["ConfigModule", "Field", "check_value", "field", "flag_of", "install", "spellings"]

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(slots=True)
class Field:
    """One flag: default, one line of documentation, other names, and the values it may have: some
    choices, or from `least` on.
    """

    default: Any
    doc: str
    aliases: tuple[str, ...]
    choices: tuple[Any, ...]
    least: int | None
    hint: Any = None


def field(
    default: T,
    doc: str,
    *,
    aliases: tuple[str, ...] = (),
    choices: tuple[Any, ...] = (),
    least: int | None = None,
) -> T:
    """Declare a flag. `install` replaces the `Field` by its value, hence the declared type."""
    return typing.cast(T, Field(default, doc, aliases, choices, least))


_FUNCTIONS = (
    "patch",
    "to_dict",
    "defaults",
    "describe",
    "shallow_copy_dict",
    "get_config_copy",
    "save_config",
    "load_config",
    "get_hash",
    "codegen_config",
)
# They say what is reported, not what is compiled.
_NOT_HASHED = frozenset(
    {
        "verbose",
        "verify_correctness",
        "suppress_errors",
        "recompile_limit",
        "accumulated_recompile_limit",
        "error_on_recompile",
        "cache_dir",
    }
)


class ConfigModule(types.ModuleType):
    """The class that `install` gives to a module of flags."""

    __fields__: dict[str, Field]
    __aliases__: dict[str, str]
    # Flags of torch without counterpart: name -> torch's default.
    __inert__: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        if any(flag.startswith(f"{name}.") for flag in (*self.__aliases__, *self.__inert__)):
            return Group(self, name)
        return self.__dict__[_resolve(self, name, AttributeError)]

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("__") and name.endswith("__"):
            return super().__setattr__(name, value)
        name = _resolve(self, name, AttributeError)
        self.__dict__[name] = check_value(self, name, value)

    def __delattr__(self, name: str) -> None:
        raise AttributeError(
            f"{self.__name__}.{name} cannot be deleted; flags are set or patched"
        )

    def __dir__(self) -> list[str]:
        return [*self.__fields__, *self.__aliases__, *self.__inert__, *_FUNCTIONS]

    def to_dict(self) -> dict[str, Any]:
        """Every flag and its present value."""
        return {name: self.__dict__[name] for name in self.__fields__}

    def defaults(self) -> dict[str, Any]:
        """Every flag and its default, environment variables left aside."""
        return {name: row.default for name, row in self.__fields__.items()}

    def describe(self) -> str:
        """The table of flags: name, type, default, documentation."""
        rows = (
            (name, _type_name(row.hint), repr(row.default), row.doc)
            for name, row in self.__fields__.items()
        )
        return "\n".join(
            f"{name}: {kind} = {default}  # {doc}" for name, kind, default, doc in rows
        )

    def shallow_copy_dict(self) -> dict[str, Any]:
        """Every flag and its present value, flags without effect included."""
        return {name: self.__dict__[name] for name in (*self.__fields__, *self.__inert__)}

    def get_config_copy(self) -> dict[str, Any]:
        """The same as `shallow_copy_dict()`: values are not changed in place."""
        return self.shallow_copy_dict()

    def save_config(self) -> bytes:
        """All values, for `load_config`."""
        return pickle.dumps(self.shallow_copy_dict())

    def load_config(self, saved: bytes | Mapping[str, Any]) -> None:
        """Set what `save_config()` or `shallow_copy_dict()` gave; names and types are checked."""
        values = _unpickled(saved) if isinstance(saved, bytes) else saved
        if not isinstance(values, Mapping):
            found = f"{type(values).__name__} {values!r}"
            raise TypeError(f"load_config: saved must be bytes or a dict, not {found}")
        for name, value in values.items():
            setattr(self, name, value)

    def get_hash(self) -> bytes:
        """Equal for equal values of the flags that change what is compiled."""
        kept = {
            name: repr(value)
            for name, value in self.shallow_copy_dict().items()
            if name not in _NOT_HASHED
        }
        return hashlib.sha256(repr(sorted(kept.items())).encode()).digest()

    def codegen_config(self) -> str:
        """Python text that sets the flags that differ from their defaults."""
        changed = {
            name: self.__dict__[name]
            for name, row in self.__fields__.items()
            if self.__dict__[name] != row.default
        }
        return "\n".join(f"{self.__name__}.{name} = {v!r}" for name, v in changed.items())


def _unpickled(saved: bytes) -> Any:
    try:
        return pickle.loads(saved)
    except (pickle.UnpicklingError, EOFError) as error:
        raise ValueError(
            f"load_config: these bytes are not save_config()'s: {error}"
        ) from error


class Group:
    """The flags whose names begin with `name` and a dot, as torch writes them."""

    def __init__(self, config: ConfigModule, name: str) -> None:
        object.__setattr__(self, "_config", config)
        object.__setattr__(self, "_prefix", f"{name}.")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._config, self._prefix + name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._config, self._prefix + name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._config, self._prefix + name)


class Patch(ContextDecorator):
    """Sets flags on entry, puts the former values back on exit; nests, and may be reused."""

    def __init__(self, module: ConfigModule, changes: Mapping[str, Any]) -> None:
        self._module = module
        names = {name: _resolve(module, name, AttributeError) for name in changes}
        self._changes = {
            names[name]: check_value(module, names[name], value)
            for name, value in changes.items()
        }
        self._saved: list[dict[str, Any]] = []

    def __call__(self, func: F) -> F:
        if isinstance(func, type) or not callable(func):
            kind = "the class" if isinstance(func, type) else type(func).__name__
            found = getattr(func, "__qualname__", repr(func))
            raise TypeError(f"config.patch decorates functions, not {kind} {found}")
        return super().__call__(func)

    def __enter__(self) -> None:
        values = self._module.__dict__
        self._saved.append({name: values[name] for name in self._changes})
        values.update(self._changes)

    def __exit__(self, *_exc: object) -> None:
        self._module.__dict__.update(self._saved.pop())


def install(
    module_name: str, *, env_prefix: str, inert: Mapping[str, Any] | None = None
) -> Callable[..., Patch]:
    """Make `sys.modules[module_name]` a `ConfigModule`; returns its `patch`.

    inert: flags of torch without a counterpart, and torch's defaults; they can be read, set and
    patched, and setting another value warns that it has no effect.
    Raises ValueError when an environment variable cannot be read as its flag's type.
    """
    module = sys.modules[module_name]
    fields = {name: value for name, value in vars(module).items() if isinstance(value, Field)}
    hints = typing.get_type_hints(module)
    aliases = {alias: name for name, row in fields.items() for alias in row.aliases}
    clash = set(aliases) & set(fields)
    if clash or len(aliases) != sum(len(row.aliases) for row in fields.values()):
        raise ValueError(f"{module_name}: an alias is used twice: {sorted(clash or aliases)}")
    module.__class__ = ConfigModule
    config = typing.cast(ConfigModule, module)
    config.__fields__, config.__aliases__ = fields, aliases
    config.__inert__ = dict(inert or {})
    config.__dict__.update(config.__inert__)
    for name, row in fields.items():
        row.hint = hints[name]
        config.__dict__[name] = check_value(config, name, copy.copy(row.default))
        for spelling in (name, *row.aliases):
            text = os.environ.get(f"{env_prefix}_{spelling.upper()}")
            if text is not None:
                config.__dict__[name] = _from_env(
                    config, name, f"{env_prefix}_{spelling.upper()}", text
                )

    def patch(
        name: str | Mapping[str, Any] | None = None, value: Any = None, **changes: Any
    ) -> Patch:
        """`patch(flag=value, ...)`, `patch("flag", value)` or `patch({"flag": value})`.

        The result serves in a `with` and as a decorator. Raises AttributeError for an unknown flag,
        TypeError or ValueError for a value that it cannot have.
        """
        if isinstance(name, str):
            changes = {name: value, **changes}
        elif isinstance(name, Mapping):
            changes = {**name, **changes}
        elif name is not None:
            kind = type(name).__name__
            raise TypeError(f"patch: name must be a flag's or a dict, not {kind} {name!r}")
        return Patch(config, changes)

    return patch


def _resolve(config: ConfigModule, name: str, error: type[Exception]) -> str:
    if name in config.__fields__ or name in config.__inert__:
        return name
    if name in config.__aliases__:
        return config.__aliases__[name]
    names = (*config.__fields__, *config.__aliases__)
    raise error(f"{config.__name__} has no flag {name!r}; {known_names(name, names)}")


def flag_of(config: Any, name: str) -> str:
    """The flag that `name` is a spelling of. Raises AttributeError, with the known names."""
    return _resolve(config, name, AttributeError)


def spellings(config: Any) -> list[str]:
    """Names of all flags, other spellings included, sorted."""
    return sorted((*config.__fields__, *config.__aliases__))


def _allowed_types(hint: Any) -> tuple[type, ...]:
    members = (
        typing.get_args(hint)
        if typing.get_origin(hint) in (types.UnionType, typing.Union)
        else (hint,)
    )
    return tuple(typing.get_origin(member) or member for member in members)


def check_value(config: Any, name: str, value: Any) -> Any:
    """`value` as the flag `name` of the module `config` keeps it; else TypeError or ValueError."""
    if name in config.__inert__:
        if value != config.__inert__[name] and name not in DONE_ANYWAY:
            text = f"{config.__name__}.{name} = {value!r} has no effect: "
            warn_once(f"{text}the flag is torch's and has no counterpart here")
        return value
    row = config.__fields__[name]
    allowed = _allowed_types(row.hint)
    if type(value) is int and float in allowed and int not in allowed:
        value = float(value)
    if type(value) not in allowed and (
        isinstance(value, bool) or not isinstance(value, allowed)
    ):
        found = f"{type(value).__name__} {value!r}"
        raise TypeError(f"{config.__name__}.{name} must be {_type_name(row.hint)}, not {found}")
    if row.least is not None and value is not None and value < row.least:
        raise ValueError(f"{config.__name__}.{name} must be {row.least} or more, not {value!r}")
    if row.choices and value not in row.choices:
        known = ", ".join(map(repr, row.choices))
        raise ValueError(f"{config.__name__}.{name} must be one of {known}, not {value!r}")
    return value


_WORDS = {
    "1": True,
    "true": True,
    "yes": True,
    "on": True,
    "0": False,
    "false": False,
    "no": False,
    "off": False,
}


def _from_env(config: ConfigModule, name: str, variable: str, text: str) -> Any:
    allowed = _allowed_types(config.__fields__[name].hint)
    if type(None) in allowed and text.lower() in ("", "none"):
        return None
    try:
        if bool in allowed and text.lower() in _WORDS:
            return check_value(config, name, _WORDS[text.lower()])
        for kind in (int, float, str):
            if kind in allowed:
                return check_value(config, name, kind(text))
    except (TypeError, ValueError) as error:
        raise ValueError(f"environment variable {variable}={text!r}: {error}") from error
    expected = _type_name(config.__fields__[name].hint)
    if bool in allowed:
        expected = f"one of {', '.join(_WORDS)}"
    raise ValueError(f"environment variable {variable}={text!r} is not {expected}")


def _type_name(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint)
