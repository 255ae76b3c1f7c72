"""How many arguments builtins take, and what they say about calls that do not fit."""

from __future__ import annotations

import functools
import inspect
import re
import types
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from .base import unsupported

if TYPE_CHECKING:
    from ..symbolic_convert import Translator


class Arity(NamedTuple):
    """How many positional arguments a row takes, and which names it takes by keyword."""

    least: int
    most: int
    keywords: frozenset[str]
    least_positional: int
    # The names that may be given by position as well, and whether they have to be given.
    named: dict[str, tuple[int, bool]]

    @staticmethod
    @cache
    def of(function: Callable[..., Any], skip: int) -> Arity:
        parameters = list(inspect.signature(function).parameters.values())[skip:]
        kinds = inspect.Parameter
        positional = [
            p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
        least = sum(p.default is kinds.empty for p in positional)
        most = len(positional)
        if any(p.kind is p.VAR_POSITIONAL for p in parameters):
            most = 1 << 30
        names = {
            p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)
        }
        if any(p.kind is p.VAR_KEYWORD for p in parameters):
            names.add("**")
        by_position = [p for p in positional if p.name not in names]
        least_positional = sum(p.default is kinds.empty for p in by_position)
        named = {
            p.name: (place, p.default is kinds.empty)
            for place, p in enumerate(positional)
            if p.name in names
        }
        return Arity(least, most, frozenset(names), least_positional, named)

    def fits(self, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        """Whether a call with these arguments can be made."""
        if "**" not in self.keywords and not self.keywords.issuperset(kwargs):
            return False
        if not self.least_positional <= len(args) <= self.most:
            return False
        for name, (place, is_required) in self.named.items():
            is_given = place < len(args)
            if is_given == (name in kwargs) and (is_given or is_required):
                return False
        return len(args) + len(kwargs) >= self.least


# What CPython says about the number and the names of arguments.
_ABOUT_ARGUMENTS = re.compile(
    r"takes .* arguments?\b|takes no keyword|expected .* arguments?, got|missing required"
    r"|must have at least|(invalid|unexpected) keyword argument|takes at (least|most)"
)


def refuse(
    tx: Translator,
    name: str,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    call: Callable[..., Any] | None,
) -> NoReturn:
    """The TypeError of a call that does not fit, as the program sees it. `call`: what is called,
    if it is harmless to call it with anything.
    """
    text = None if call is None else _text_of_refusal(call, len(args), list(kwargs))
    if text is not None:
        tx.raise_observed(TypeError, text)
    got = f"{len(args)} positional arguments"
    if kwargs:
        got += f" and {sorted(kwargs)}"
    unsupported("call does not fit", f"{name}: {got}", "eager will raise the TypeError")


def _text_of_refusal(
    call: Callable[..., Any],
    n_args: int,
    keywords: list[str],
) -> str | None:
    """What is said of a call with so many arguments, whatever they are."""
    given = [object() for _ in range(n_args)]
    named = {name: object() for name in keywords}
    try:
        call(*given, **named)
    except TypeError as error:
        text = str(error)
        return text if _ABOUT_ARGUMENTS.search(text) else None
    except Exception:
        return None
    return None


# Builtins that do something before they look at all of their arguments.
_NOT_TO_BE_TRIED = frozenset(
    {print, input, open, exec, eval, __import__, breakpoint},
)


def harmless_call(
    functions: Sequence[Callable[..., Any]],
) -> Callable[..., Any] | None:
    """The builtin that a row stands for, if it is one and may be called with anything."""
    if len(functions) != 1:
        return None
    (function,) = functions
    if isinstance(function, types.ClassMethodDescriptorType):
        return _class_method(getattr(function.__objclass__, function.__name__))
    if getattr(function, "__module__", None) != "builtins":
        return None
    if function in _NOT_TO_BE_TRIED:
        return None
    return function


def _class_method(bound: Callable[..., Any]) -> Callable[..., Any]:
    """A class method as a row is given it: the class is its first argument."""

    def call(_cls: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs:
            raise ValueError("the error may name the class")
        return bound(*args)

    return call


def method_of_new(
    cls: type,
    owners: tuple[type, ...],
    names: tuple[str, ...],
) -> Callable[..., Any] | None:
    """The method that a row stands for, of a new object of the builtin type below `cls`."""
    if len(names) != 1:
        return None
    (name,) = names
    for owner in owners:
        if not issubclass(cls, owner):
            continue
        try:
            return functools.partial(getattr(owner, name), bare_class(owner, cls)())
        except Exception:
            return None
    return None


def bare_class(owner: type, cls: type) -> type:
    """A class named like `cls` with nothing but what is in the builtin type `owner`: some messages
    name the class.
    """
    return owner if cls is owner else type(cls.__name__, (owner,), {})
