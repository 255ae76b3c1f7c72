"""Whether minidynamo works here, and with what: `python -m minidynamo` prints it.

Each row of `CHECKS` is one line of the report; a check raises where something that is needed is
missing, and its message says what to do.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn.functional import softmax

from . import _C, config, events
from .config_module import spellings
from .eval_frame import compile
from .inductor import config as inductor_config
from .inductor.runtime.cache import store
from .inductor.runtime.cpp_toolchain import find_compiler, openmp_library, vector_isa
from .utils import known_names

__all__ = ["CHECKS", "is_dynamo_supported", "is_inductor_supported", "report"]


def is_dynamo_supported() -> bool:
    """True: without the extension the package cannot be imported."""
    return True


def is_inductor_supported() -> bool:
    """Whether the default backend can compile: there is a C++ compiler."""
    try:
        find_compiler()
    except RuntimeError:
        return False
    return True


def _python() -> str:
    return f"{platform.python_implementation()} {platform.python_version()}"


def _torch() -> str:
    threads = torch.get_num_threads()
    return f"{torch.__version__}, {threads} thread{'s' * (threads > 1)}"


def _extension() -> str:
    return str(_C.__file__)


def _compiler() -> str:
    command = " ".join(find_compiler().command)
    return f"{command}, {vector_isa()}, OpenMP: {openmp_library() or 'none'}"


def _gpu() -> str:
    if not torch.cuda.is_available():
        return "none"
    if importlib.util.find_spec("triton") is None:
        raise RuntimeError("there is a GPU, whose kernels need Triton: pip install triton")
    return torch.cuda.get_device_name()


def _triton() -> str:
    found = importlib.util.find_spec("triton")
    return "not installed (CPU tensors do without)" if found is None else str(found.origin)


def _cache() -> str:
    files = store()
    probe = files.put("probe", "probe", b"")
    files.remove("probe", "probe")
    if probe is None:
        raise RuntimeError(f"{files.root} cannot be used; set MINIDYNAMO_CACHE_DIR")
    return f"{files.root}, {files.sweep() / 2**20:.1f} MiB"


# What is read besides the flags of `config` and `inductor.config`.
_VARIABLES = ("MINIDYNAMO_LOGS", "MINIDYNAMO_HOOK_ONLY", "MINIDYNAMO_EXTENSION")


def _environment() -> str:
    set_here = {n: v for n, v in os.environ.items() if n.startswith("MINIDYNAMO_")}
    known = {f"MINIDYNAMO_{name.upper()}" for name in spellings(config)}
    known |= {f"MINIDYNAMO_INDUCTOR_{name.upper()}" for name in spellings(inductor_config)}
    for name in set_here:
        if name not in known and name not in _VARIABLES:
            near = known_names(name, {*known, *_VARIABLES}).partition(" known:")[0]
            raise RuntimeError(f"{name} is set, but there is no such flag; {near}")
    return ", ".join(f"{name}={value}" for name, value in set_here.items()) or "nothing is set"


def _compiled_call() -> str:
    """A softmax, compiled, against eager. (Functions of this package are not compiled.)"""
    if config.disable:
        return "config.disable is set: nothing is compiled"
    x = torch.linspace(-1, 1, 64).reshape(8, 8)
    graphs: list[events.GraphEvent] = []
    start = time.perf_counter()
    with events.subscribe(graphs.append, events.GraphEvent):
        found = compile(softmax, fullgraph=True)(x, dim=-1)
    seconds = time.perf_counter() - start
    torch.testing.assert_close(found, softmax(x, dim=-1))
    if len(graphs) != 1:
        raise RuntimeError("the function ran, but nothing was captured")
    return f"as in eager; the first call took {seconds:.2f} s"


CHECKS: dict[str, Callable[[], str]] = {
    "Python": _python,
    "torch": _torch,
    "minidynamo": lambda: str(Path(__file__).parent),
    "extension": _extension,
    "C++ compiler": _compiler,
    "GPU": _gpu,
    "Triton": _triton,
    "disk cache": _cache,
    "environment": _environment,
    "compiled call": _compiled_call,
}


def report() -> tuple[bool, str]:
    """Whether all checks hold, and one line for each."""
    lines, holds = [], True
    for name, check in CHECKS.items():
        try:
            text = f"ok      {check()}"
        except Exception as error:
            holds = False
            text = f"FAILED  {type(error).__name__}: {' '.join(str(error).split())}"
        lines.append(f"{name:14}{text}")
    return holds, "\n".join(lines)
