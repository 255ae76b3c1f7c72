"""From C++ kernel sources to one loadable library.

    path = compile_library({"k0": source, ...}, header)

Every source defines `extern "C" void k0(void** ptrs, const int64_t* sizes)`; what several share
stands in the header. The compiler is `CXX` if that is set, else g++, else clang++.

What costs time in such small files is the headers: nothing at all but `<cstdint>` compiles in 0.04
s, `<cmath>` adds 0.1 s and `<immintrin.h>` 0.2 s (vector extensions of the compiler need neither).

Kernels use the OpenMP runtime that torch has loaded, hence torch's threads and thread count.
"""

from __future__ import annotations

import atexit
import os
import re
import shlex
import shutil
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from minidynamo.exc import CppCompileError, NoCompiler
from minidynamo.inductor.runtime.cache import content_key, store
from minidynamo.inductor.runtime.compile_pool import run_command, run_commands, workers

__all__ = ["Compiler", "compile_library", "cpu_flags", "find_compiler", "vector_isa"]

# Results as eager gives them: no fast-math, no contraction of a*b+c unless the source asks for it,
# integers wrap around. errno and floating-point exception flags are not results.
FLAGS = (
    "-std=c++17",
    "-O3",
    "-march=native",
    "-ffp-contract=off",
    "-fwrapv",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-exceptions",
    "-fno-rtti",
    "-fPIC",
    "-fopenmp",
    "-w",
)
LINK_FLAGS = ("-shared", "-Wl,--as-needed")

# What a compiler says that stumbles over its own rules, and how it gets past them: GCC 12 merges
# a load of 8 bytes, widened, with a mask of AVX-512 into an instruction that it cannot write.
_OWN_FAILURE = re.compile(r"internal compiler error|could not split insn|unrecognizable insn")
_CAREFUL_FLAGS = ("-fno-tree-forwprop",)

# A compiler process costs about 30 ms before its first line; splitting pays above this many
# characters of kernel text for each process.
_CHARS_WORTH_A_PROCESS = 2_000

_INSTALL = (
    "no C++ compiler found: minidynamo compiles CPU kernels with one. Install GCC (Debian and "
    "Ubuntu: apt-get install g++; Fedora: dnf install gcc-c++; conda: conda install gxx), or set "
    "the environment variable CXX"
)


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler: the command, and what tells it from every other one."""

    command: tuple[str, ...]
    identity: str


def find_compiler() -> Compiler:
    """The compiler of this process.

    Raises:
        NoCompiler: there is none; the message says what to install.
    """
    return _find_compiler(os.environ.get("CXX", ""))


@cache
def _find_compiler(variable: str) -> Compiler:
    candidates = (
        [shlex.split(variable)] if variable.strip() else [["g++"], ["clang++"], ["c++"]]
    )
    for command in candidates:
        path = shutil.which(command[0])
        if path is not None:
            info = os.stat(path)
            identity = f"{os.path.realpath(path)} {info.st_size} {info.st_mtime_ns}"
            return Compiler((path, *command[1:]), f"{identity} {command[1:]}")
    set_wrong = f"; it is set to {variable!r}, which is no command" if variable.strip() else ""
    raise NoCompiler(candidates[0], _INSTALL + set_wrong)


@cache
def cpu_flags() -> frozenset[str]:
    """The instruction set flags of the first core, as Linux names them; empty where unknown."""
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith("flags"):
                    return frozenset(line.partition(":")[2].split())
    except OSError:
        pass
    return frozenset()


@cache
def vector_isa() -> str:
    """The widest vectors that kernels may use: `avx512`, `avx2` or `sse2`."""
    flags = cpu_flags()
    if {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= flags:
        return "avx512"
    return "avx2" if {"avx2", "fma"} <= flags else "sse2"


@cache
def openmp_library() -> str | None:
    """Path of the OpenMP runtime that this process has loaded (with torch), if any.

    Its entry points for GCC's code are what kernels must be linked with, whatever it is called: two
    runtimes in one process would mean two sets of threads and two thread counts.
    """
    names = ("libgomp", "libiomp5", "libomp")
    found = []
    with open("/proc/self/maps") as maps:
        for line in maps:
            path = line.partition("/")[2].rstrip("\n")
            if os.path.basename(path).startswith(names) and f"/{path}" not in found:
                found.append(f"/{path}")
    found.sort(key=lambda path: "/torch/lib/" not in path)
    return found[0] if found else None


def compile_library(kernels: Mapping[str, str], header: str = "") -> Path:
    """A shared library with all kernels, from the cache or the compiler.

    Args:
        kernels: symbol -> source text. A source may define nothing else that is visible outside.
        header: text before every source.

    Raises:
        CppCompileError: no compiler, or it refused a source (whose file is then kept).
    """
    compiler = find_compiler()
    openmp = openmp_library()
    texts = [part for item in sorted(kernels.items()) for part in item]
    machine = " ".join(sorted(cpu_flags()))
    key = content_key(
        compiler.identity,
        machine,
        " ".join((*FLAGS, *LINK_FLAGS)),
        openmp or "",
        header,
        *texts,
    )
    path = store().path("lib", key)
    if path is not None:
        return path
    folder = Path(tempfile.mkdtemp(prefix="build-", dir=private_folder()))
    try:
        built = _build(compiler, openmp, kernels, header, folder)
    except CppCompileError as error:
        if not _OWN_FAILURE.search(error.output):
            raise
        careful = Compiler((*compiler.command, *_CAREFUL_FLAGS), compiler.identity)
        built = _build(careful, openmp, kernels, header, folder)
        _kept.discard(str(folder))
    stored = store().put("lib", key, built.read_bytes())
    if stored is None:
        return built
    shutil.rmtree(folder, ignore_errors=True)
    return stored


def _build(
    compiler: Compiler,
    openmp: str | None,
    kernels: Mapping[str, str],
    header: str,
    folder: Path,
) -> Path:
    """Compile and link in `folder`, which stays when the compiler fails."""
    library = folder / "kernels.so"
    parts = _split(kernels)
    sources = []
    for index, part in enumerate(parts):
        source = folder / f"kernels{index}.cpp"
        source.write_text(header + "\n" + "\n".join(kernels[symbol] for symbol in part))
        sources.append(str(source))
    # --as-needed and this order: the runtime that torch uses satisfies what the driver's own
    # -lgomp would, so that one is left out.
    tail = [*LINK_FLAGS, *([openmp] if openmp else []), "-o", str(library)]
    command = [*compiler.command, *FLAGS]
    try:
        if len(sources) == 1:
            run_command([*command, sources[0], *tail], sources[0])
        else:
            objects = [f"{source}.o" for source in sources]
            run_commands(
                [
                    ([*command, "-c", source, "-o", target], source)
                    for source, target in zip(sources, objects, strict=True)
                ]
            )
            run_command([*command, *objects, *tail])
        if not library.exists():
            text = f"it reported no error and wrote no {library}"
            raise CppCompileError(compiler.command, text, sources[0])
    except CppCompileError:
        _kept.add(str(folder))
        raise
    return library


def _split(kernels: Mapping[str, str]) -> list[Sequence[str]]:
    """The symbols in one list a compiler process, balanced by length."""
    total = sum(map(len, kernels.values()))
    count = max(1, min(workers(), len(kernels), total // _CHARS_WORTH_A_PROCESS))
    parts: list[list[str]] = [[] for _ in range(count)]
    loads = [0] * count
    for symbol in sorted(kernels, key=lambda name: -len(kernels[name])):
        lightest = loads.index(min(loads))
        parts[lightest].append(symbol)
        loads[lightest] += len(kernels[symbol])
    order = {symbol: index for index, symbol in enumerate(kernels)}
    return [sorted(part, key=order.__getitem__) for part in parts]


# ------------------------------------------------------------------------------------------------
# A folder of this process, for what is being built and for libraries that cannot be stored

_kept: set[str] = set()
_folder_lock = threading.Lock()
_folders: dict[int, str] = {}


def private_folder() -> str:
    """A folder that only this process uses; it is removed at exit, but for kept sources."""
    with _folder_lock:
        folder = _folders.get(os.getpid())
        if folder is None:
            folder = tempfile.mkdtemp(prefix="minidynamo-")
            _folders[os.getpid()] = folder
            atexit.register(_remove_folder, folder, os.getpid())
        return folder


def _remove_folder(folder: str, pid: int) -> None:
    if os.getpid() != pid:
        return
    for name in os.listdir(folder):
        if os.path.join(folder, name) not in _kept:
            shutil.rmtree(os.path.join(folder, name), ignore_errors=True)
    if not os.listdir(folder):
        os.rmdir(folder)
