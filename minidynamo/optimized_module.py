"""`OptimizedModule`: an nn.Module whose call is compiled and which otherwise is the original.

Attributes, hooks, parameters and buffers are read from, stored in and deleted from the original
module, whichever of the two is used; only the child `_orig_mod` belongs to the wrapper, so names in
`state_dict()` and `named_parameters()` begin with `_orig_mod.`, as with torch.compile. So does a
`forward` that is assigned: accelerate's calls the compiled one, which calls the original's.
`copy.deepcopy` and `pickle` take the original and the arguments of `compile()`; compiled code is
made anew. Pickling needs a backend that can be pickled: a name, or a function of a module.

Trainers and pipelines (accelerate, lightning, diffusers, ...) ask `isinstance(module,
torch._dynamo.OptimizedModule)` to find the original. They are told yes: once `torch._dynamo` is
imported, `__class__` is a class that has both for bases.
"""

from __future__ import annotations

import functools
import operator
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

__all__ = ["OptimizedModule"]

# Made by nn.Module's constructor; the wrapper does without, so that reads find the original's.
_SHARED = (
    "training",
    "_backward_pre_hooks",
    "_backward_hooks",
    "_is_full_backward_hook",
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
)
_OWN = frozenset(
    {
        "__class__",
        "_orig_mod",
        "_compiled",
        "_recompile",
        "_parameters",
        "_buffers",
        "_modules",
        "_non_persistent_buffers_set",
        "_state_dict_hooks",
        "_state_dict_pre_hooks",
        "_load_state_dict_pre_hooks",
        "_load_state_dict_post_hooks",
        "_compiled_call_impl",
    }
)

Wrap = Callable[[torch.nn.Module], Callable[..., Any]]


class _Call(property):
    """A property that may be called as the method it stands for.

    `inspect.signature(module)` takes the signature of what the class holds, and trainers ask for
    that of `type(module).forward`.
    """

    def __call__(self, module: OptimizedModule, /, *args: Any, **kwargs: Any) -> Any:
        return module._compiled(*args, **kwargs)


_TORCHS = "torch._dynamo.eval_frame"


class OptimizedModule(torch.nn.Module):
    """What `compile(module)` returns.

    wrap(module) makes the compiled callable; it is kept for copies, which must compile themselves.
    """

    _orig_mod: torch.nn.Module
    _compiled: Callable[..., Any]
    _recompile: Wrap

    def __init__(self, module: torch.nn.Module, wrap: Wrap) -> None:
        super().__init__()
        for name in _SHARED:
            self.__dict__.pop(name, None)
        self._modules["_orig_mod"] = module
        self.__dict__["_recompile"] = wrap
        self.__dict__["_compiled"] = wrap(module)

    @property
    def __class__(self) -> type:
        """A class of torch's, too, once torch's is imported: isinstance asks for it. It may be
        derived from and assigned, as FSDP does.
        """
        cls, torchs = type(self), sys.modules.get(_TORCHS)
        if torchs is None or issubclass(cls, torchs.OptimizedModule):
            return cls
        return _with_base(cls, torchs.OptimizedModule)  # type: ignore[arg-type]

    @__class__.setter
    def __class__(self, value: type) -> None:
        object.__dict__["__class__"].__set__(self, value)

    # Looked up on the class and called in C: no Python frame of ours lies on the way to the code.
    __call__ = _Call(operator.attrgetter("_compiled"))  # type: ignore[assignment]
    forward = _Call(operator.attrgetter("_compiled"))  # type: ignore[assignment]

    @property
    def _compile_kwargs(self) -> dict[str, Any]:
        """What lightning's Fabric gives to torch.compile to compile its own wrapper of the module.

        AttributeError: the module is not compiled but disabled.
        """
        return self._recompile.__self__.for_torch()  # type: ignore[attr-defined]

    @property
    def dynamo_ctx(self) -> Callable[[Any], Any]:
        """What compiles a function as this module is compiled."""
        return self._recompile

    def __getattr__(self, name: str) -> Any:
        module = self.__dict__["_modules"]["_orig_mod"]
        return module if name == "_orig_mod" else getattr(module, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "_orig_mod":
            self._modules["_orig_mod"] = value
            if "forward" not in self.__dict__:
                self.__dict__["_compiled"] = self._recompile(value)
        elif name == "forward":
            self.__dict__.update(forward=value, _compiled=value)
        elif name in _OWN or "_orig_mod" not in self.__dict__.get("_modules", ()):
            object.__setattr__(self, name, value)
        else:
            setattr(self._orig_mod, name, value)

    def __delattr__(self, name: str) -> None:
        if name == "forward" and self.__dict__.pop(name, None) is not None:
            self.__dict__["_compiled"] = self._recompile(self._orig_mod)
        else:
            delattr(self._orig_mod, name)

    def register_buffer(self, *args: Any, **kwargs: Any) -> None:
        """As `nn.Module.register_buffer`, of the original module."""
        self._orig_mod.register_buffer(*args, **kwargs)

    def register_parameter(self, *args: Any, **kwargs: Any) -> None:
        """As `nn.Module.register_parameter`, of the original module."""
        self._orig_mod.register_parameter(*args, **kwargs)

    def add_module(self, *args: Any, **kwargs: Any) -> None:
        """As `nn.Module.add_module`, of the original module."""
        self._orig_mod.add_module(*args, **kwargs)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self._orig_mod)})

    def __bool__(self) -> bool:
        return bool(self._orig_mod)

    def __len__(self) -> int:
        return len(self._orig_mod)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._orig_mod)  # type: ignore[call-overload]

    def __getitem__(self, key: Any) -> Any:
        return self._orig_mod[key]  # type: ignore[index]

    def __contains__(self, key: object) -> bool:
        return key in self._orig_mod  # type: ignore[operator]

    def __reduce__(self) -> tuple[Any, ...]:
        # Not __newobj__: pickle would compare its class with __class__.
        return _blank, (type(self),), self.__getstate__()

    def __getstate__(self) -> dict[str, Any]:
        made = ("_compiled", "forward")
        return {name: value for name, value in self.__dict__.items() if name not in made}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__dict__["_compiled"] = self._recompile(self._orig_mod)


@functools.cache
def _with_base(cls: type, base: type) -> type:
    """A subclass of cls, and last of base, that goes by the name of cls."""
    named = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
    return types.new_class(
        cls.__name__, (cls, base), exec_body=lambda space: space.update(named)
    )


def _blank(cls: type[OptimizedModule]) -> OptimizedModule:
    """An instance without state, for pickle and copy."""
    return cls.__new__(cls)
