"""Helpers of tests that read generated code, by the names of `torch._inductor.utils`.

result, codes = run_and_get_code(compile(f), x)  # what OutputCodeEvent tells of each graph compiled
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from minidynamo import config, events

__all__ = [
    "fresh_cache",
    "fresh_inductor_cache",
    "get_code",
    "run_and_get_code",
    "run_and_get_cpp_code",
    "run_and_get_kernels",
    "run_and_get_triton_code",
    "run_fw_bw_and_get_code",
]


def run_and_get_code(
    fn: Callable[..., Any], *args: Any, **kwargs: Any
) -> tuple[Any, list[str]]:
    """What `fn` gives, and the output code of every graph compiled while it ran, each text once."""
    codes: dict[str, None] = {}
    with events.subscribe(lambda e: codes.setdefault(e.text), events.OutputCodeEvent):
        result = fn(*args, **kwargs)
    return result, list(codes)


def run_and_get_kernels(
    fn: Callable[..., Any], *args: Any, **kwargs: Any
) -> tuple[Any, list[str]]:
    """What `fn` gives, and the source of every kernel generated while it ran, C++ or Triton."""
    sources: dict[str, None] = {}
    with events.subscribe(lambda e: sources.setdefault(e.source), events.KernelEvent):
        result = fn(*args, **kwargs)
    return result, list(sources)


def run_fw_bw_and_get_code(fn: Callable[[], Any]) -> tuple[Any, list[str]]:
    """As `run_and_get_code`, with the backward of the result's sum."""

    def run_with_backward() -> Any:
        result = fn()
        result.sum().backward()
        return result

    return run_and_get_code(run_with_backward)


def get_code(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> list[str]:
    """The output code of every graph compiled while `fn` ran."""
    return run_and_get_code(fn, *args, **kwargs)[1]


def run_and_get_cpp_code(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Any, str]:
    """What `fn` gives, and the output code of all graphs as one text. A graph that was compiled
    before has none: call `minidynamo.reset()` first.
    """
    result, codes = run_and_get_code(fn, *args, **kwargs)
    return result, "\n".join(codes)


def run_and_get_triton_code(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """The output code of the first graph compiled while `fn` ran: one, or forward and backward.

    Raises AssertionError where there are none, or more than two.
    """
    codes = get_code(fn, *args, **kwargs)
    assert 1 <= len(codes) <= 2, f"expected one or two graphs, not {len(codes)}"
    return codes[0]


@contextlib.contextmanager
def fresh_cache(
    cache_entries: dict[str, int] | None = None, dir: str | None = None, delete: bool = True
) -> Iterator[None]:
    """Keep what is compiled in a folder of its own, for the time of a `with`.

    cache_entries: receives names of the files and their sizes in bytes; dir: where the folder is
    made; delete: whether it goes at the end.
    """
    folder = tempfile.mkdtemp(prefix="minidynamo_", dir=dir)
    try:
        with config.patch(cache_dir=folder):
            yield
        if cache_entries is not None:
            for root, _, names in os.walk(folder):
                paths = [os.path.join(root, name) for name in names]
                cache_entries.update(
                    (os.path.relpath(path, folder), os.path.getsize(path)) for path in paths
                )
    finally:
        if delete:
            shutil.rmtree(folder, ignore_errors=True)


fresh_inductor_cache = fresh_cache
