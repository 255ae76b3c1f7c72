"""One `_C.Region` per distinct compile configuration, so that equal `compile()` calls share code.

Compiled code belongs to a region and is dropped with it. A region lives as long as a compiled
function uses it; beyond that, those of named backends stay, and of the others the most recent ones,
so that `compile(f, backend=mine)(x)` twice in a row compiles once.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch  # noqa: F401  (loads the libraries that _C is linked to)

from ._C import Region
from .compile_options import CompileOptions
from .convert_frame import make_callback

__all__ = ["forget_regions", "live_regions", "region_for", "run_only"]

_RECENT = 32

_regions: WeakValueDictionary[Hashable, Region] = WeakValueDictionary()
_kept: dict[Hashable, Region] = {}
_recent: OrderedDict[Hashable, Region] = OrderedDict()
_running: WeakKeyDictionary[Region, int] = WeakKeyDictionary()
_lock = threading.RLock()


def region_for(options: CompileOptions, *, named_backend: bool) -> Region:
    """The region of this configuration, made when there is none."""
    key = options.key()
    with _lock:
        region = _regions.get(key)
        if region is None:
            region = _regions[key] = Region(make_callback(options))
        if named_backend:
            _kept[key] = region
        else:
            _recent[key] = region
            _recent.move_to_end(key)
            while len(_recent) > _RECENT:
                _recent.popitem(last=False)
        return region


def live_regions() -> list[Region]:
    """All regions in use, the newest last."""
    with _lock:
        return list(_regions.values())


def forget_regions() -> None:
    """Keep no region alive that nobody uses."""
    with _lock:
        _kept.clear()
        _recent.clear()


@contextmanager
def run_only(region: Region) -> Iterator[None]:
    """Meanwhile compile nothing new in `region`, in any thread."""
    with _lock:
        _running[region] = _running.get(region, 0) + 1
        region.run_only = True
    try:
        yield
    finally:
        with _lock:
            _running[region] -= 1
            if not _running[region]:
                del _running[region]
                region.run_only = False
