"""torch's own compiler is imported when something of it is used, not with the first FakeTensorMode.

FakeTensorMode and ShapeEnv look at a few names of torch._dynamo: flags, a class for isinstance,
whether Z3 is to validate. Each look would import all of torch._dynamo, and with it
torch.distributed, torch._inductor and Triton: a second, of two that a first call took. `defer()`
puts modules there that know these names; asked for any other they become the module proper.
"""

from __future__ import annotations

import functools
import sys
import threading
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec
from types import ModuleType
from typing import Any

import torch
from torch._logging import trace_structured
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental import _config as fx_config
from torch.utils._python_dispatch import _disable_current_modes

from .stances import follow_torch

__all__ = ["defer", "fake_mode"]

_PACKAGE, _CONFIG, _SOURCE = "torch._dynamo", "torch._dynamo.config", "torch._dynamo.source"
_VALIDATOR = "torch.fx.experimental.validator"
_loading = threading.RLock()


def fake_mode(**options: Any) -> FakeTensorMode:
    """FakeTensorMode(**options), without what making and using one imports."""
    defer()
    return FakeTensorMode(**options)


@dataclass(frozen=True)
class _ConstantSource(torch._guards.Source):
    """What FakeTensorMode makes up where it is told no source: no guard speaks of it."""

    source_name: str

    @property
    def _name_template(self) -> str:
        return self.source_name

    @functools.cached_property
    def guard_source(self) -> Any:
        return torch._guards.GuardSource.CONSTANT


class _Deferred(ModuleType):
    """A module that has not run yet."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and (name != "__path__" or self.__name__ != _PACKAGE):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        with _loading:
            package = sys.modules[_PACKAGE]
            for module in (package, self):  # parts run as the package imports them
                if type(module) is _Deferred:
                    _load(module)
        return getattr(self, name)


class _Running(ModuleType):
    """A deferred module while it runs: other threads wait until it is complete."""

    def __getattr__(self, name: str) -> Any:
        with _loading:
            if type(self) is not _Running:
                return getattr(self, name)
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r} yet")


def _load(module: ModuleType) -> None:
    """Run `module`, which may be asked for in the midst of tracing."""
    spec = module.__spec__
    assert spec is not None and spec.loader is not None
    module.__class__ = _Running
    if spec.submodule_search_locations is not None:
        module.__path__ = spec.submodule_search_locations
    try:
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            spec.loader.exec_module(module)
    except BaseException:
        module.__class__ = _Deferred
        module.__dict__.pop("__path__", None)
        raise
    module.__class__ = ModuleType
    follow_torch()


def defer() -> None:
    """Put the stand-ins in place, unless the modules are there already."""
    with _loading:
        _defer()


def _defer() -> None:
    if _PACKAGE not in sys.modules:
        package = PathFinder.find_spec(_PACKAGE, torch.__path__)
        assert package is not None
        folders = package.submodule_search_locations
        config, source = (PathFinder.find_spec(name, folders) for name in (_CONFIG, _SOURCE))
        if config is not None and source is not None:
            stand_in = _stand_in(package)
            setattr(torch, package.name.rpartition(".")[2], stand_in)
            stand_in.config = sys.modules[_CONFIG] = module_from_spec(config)
            assert config.loader is not None
            config.loader.exec_module(stand_in.config)
            stand_in.disable = _disable
            stand_in.source = _stand_in(source)
            stand_in.source.RandomValueSource = _NoSource
            stand_in.source.ConstantSource = _ConstantSource
            _say_where_logs_go()
    if _VALIDATOR not in sys.modules:
        validator = PathFinder.find_spec(_VALIDATOR, torch.fx.experimental.__path__)
        if validator is not None:
            _stand_in(validator).translation_validation_enabled = _validates


class _NoSource:
    """No object is one: those of the class proper are made after its module was loaded."""


def _say_where_logs_go() -> None:
    """torch's structured log drops its handler at the first record if there is no place for it;
    a record of tensors would import torch._inductor before, for the stack.
    """
    trace_structured("minidynamo", expect_trace_id=False)


def _stand_in(spec: ModuleSpec) -> Any:
    module = _Deferred(spec.name)
    module.__spec__, module.__loader__ = spec, spec.loader
    module.__file__, module.__package__ = spec.origin, spec.parent
    sys.modules[spec.name] = module
    return module


def _disable(*given: Any, **options: Any) -> Any:
    """torch._dynamo.disable. What torch itself wraps (`wrapping` is false) is called as it is
    until torch._dynamo is there.
    """
    package = sys.modules[_PACKAGE]
    if type(package) is _Deferred and options.get("wrapping", True):
        _load(package)
    if type(package) is not _Deferred:
        return package.disable(*given, **options)
    (fn, *_rest) = given

    def disabled(*args: Any, **kwargs: Any) -> Any:
        if type(package) is _Deferred:
            return fn(*args, **kwargs)
        kept_out = fn.__dynamo_disable = package.disable(*given, **options)
        return kept_out(*args, **kwargs)

    return disabled


def _validates() -> bool:
    """Whether torch checks its symbolic reasoning with Z3: asked for, and Z3 is there."""
    if not fx_config.translation_validation:
        return False
    module = sys.modules[_VALIDATOR]
    if isinstance(module, _Deferred):
        module.__getattr__("log")
    return module.translation_validation_enabled()
