"""Compiler processes, several at a time.

    run_commands(commands)                    all of them; raises for the first that failed
    future = submit(compile_library, ...)     beside the caller's own work

Threads only wait for processes here, so the pool is as wide as there are cores.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import ParamSpec, TypeVar

from minidynamo.exc import CppCompileError

__all__ = ["run_commands", "submit", "workers"]

P = ParamSpec("P")
R = TypeVar("R")

_MAX_WORKERS = 16


def workers() -> int:
    """How many compilers may run at once: the cores this process may use, at most 16."""
    return min(len(os.sched_getaffinity(0)), _MAX_WORKERS)


@cache
def _command_pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers(), thread_name_prefix="minidynamo-cc")


@cache
def _task_pool() -> ThreadPoolExecutor:
    # Tasks wait for commands: were they in the same pool, they could fill it and wait for ever.
    return ThreadPoolExecutor(workers(), thread_name_prefix="minidynamo-compile")


def _forget_pools() -> None:
    """A forked child has none of its parent's threads."""
    _command_pool.cache_clear()
    _task_pool.cache_clear()


os.register_at_fork(after_in_child=_forget_pools)


def run_command(command: Sequence[str], source: str = "") -> None:
    """Run one compiler.

    Raises:
        CppCompileError: it could not be started or failed; `source` is the file it compiled.
    """
    try:
        result = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace"
        )
    except OSError as error:
        raise CppCompileError(command, str(error), source) from error
    if result.returncode != 0:
        raise CppCompileError(command, result.stderr + result.stdout, source)


def run_commands(commands: Sequence[tuple[Sequence[str], str]]) -> None:
    """Run `(command, source)` pairs side by side and wait for all of them.

    Raises:
        CppCompileError: of the first in order that failed.
    """
    if len(commands) == 1:
        run_command(*commands[0])
        return
    futures = [_command_pool().submit(run_command, *command) for command in commands]
    for future in futures:
        future.exception()
    for future in futures:
        future.result()


def submit(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Future[R]:
    """Run a compiling function in the background."""
    return _task_pool().submit(function, *args, **kwargs)
