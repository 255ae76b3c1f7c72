"""From a Triton kernel's text to something that runs.

    binary = compile_kernel(kernel, Target("cuda", 90))  # a cubin, and what a launch has to know
    call = interpreted(kernel)  # a function of CPU tensors, run by Triton's interpreter

Triton is optional: it is imported when the first kernel is compiled. Which of the two a kernel
becomes is decided here and not by the environment variable TRITON_INTERPRET, so that one process
can do both.
"""

from __future__ import annotations

import linecache
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any

import torch

from minidynamo.exc import TritonCompileError
from minidynamo.inductor.codegen.triton import TritonKernel
from minidynamo.inductor.runtime.cache import content_key, store
from minidynamo.inductor.runtime.cpp_toolchain import private_folder
from minidynamo.inductor.runtime.triton_interpret import interpreter_namespace
from minidynamo.inductor.symbolic import Expr

PREFIX = Path(__file__).parent.parent / "codegen" / "triton_prefix.py"
# Pointers of torch's allocator are aligned to more than this; vector instructions need it.
ALIGNMENT = 16

_INSTALL = (
    "no Triton found: minidynamo compiles kernels of CUDA tensors (and of CPU tensors with "
    'cpu_backend="triton") with it. Install it (pip install triton), or use a build of torch for '
    "CUDA, which brings it along"
)


@dataclass(frozen=True, slots=True)
class Target:
    """What to compile for: `cuda` and the compute capability as a number, 90 for 9.0."""

    backend: str
    arch: int


@dataclass(frozen=True, slots=True)
class Binary:
    """A compiled kernel.

    Attributes:
        cubin: the file.
        function: the symbol in it.
        num_warps: of a program.
        shared: bytes of dynamic shared memory.
        scratch: null pointers that Triton wants behind the arguments.
    """

    cubin: Path
    function: str
    num_warps: int
    shared: int
    scratch: int


def device_target(device: torch.device) -> Target:
    """The target of a CUDA device of this machine."""
    major, minor = torch.cuda.get_device_capability(device)
    return Target("cuda", 10 * major + minor)


def triton_version() -> str:
    """The version of the installed Triton.

    Raises:
        TritonCompileError: there is none; the message says what to install.
    """
    try:
        import triton
    except ImportError as error:
        raise TritonCompileError(["triton"], _INSTALL) from error
    version: str = triton.__version__
    return version


# -- text to functions -----------------------------------------------------------------------------


@cache
def _prefix_text() -> str:
    return PREFIX.read_text()


def _functions(
    source: str, filename: str, namespace: dict[str, Any]
) -> dict[str, FunctionType]:
    """The functions that a text defines in `namespace`."""
    known = dict(namespace)
    exec(compile(source, filename, "exec"), namespace)
    return {
        name: value
        for name, value in namespace.items()
        if isinstance(value, FunctionType) and known.get(name) is not value
    }


@cache
def _compiled_namespace() -> dict[str, Any]:
    from triton.runtime.jit import JITFunction

    namespace: dict[str, Any] = {"__name__": "minidynamo_triton_prefix"}
    functions = _functions(_prefix_text(), str(PREFIX), namespace)
    namespace.update({name: JITFunction(function) for name, function in functions.items()})
    return namespace


@cache
def _interpreted_namespace() -> dict[str, Any]:
    """The prefix as plain functions of the interpreter's tensors."""
    namespace: dict[str, Any] = {"__name__": "minidynamo_triton_prefix"}
    _functions(_prefix_text(), str(PREFIX), namespace)
    namespace.update(interpreter_namespace())
    return namespace


def _compiled_function(kernel: TritonKernel) -> FunctionType:
    """The kernel with its source, which Triton's compiler reads; parts of it are for Triton too."""
    from triton.runtime.jit import JITFunction

    source, filename = kernel.source, f"<minidynamo-triton-{content_key(kernel.source)}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    namespace = dict(_compiled_namespace())
    functions = _functions(source, filename, namespace)
    function = functions.pop(kernel.name)
    namespace.update({name: JITFunction(part) for name, part in functions.items()})
    return function


def _interpreted_function(kernel: TritonKernel) -> FunctionType:
    """The kernel without its source, which keeps the interpreter from making another function."""
    namespace = dict(_interpreted_namespace())
    return _functions(kernel.source, "<minidynamo-interpreted>", namespace)[kernel.name]


# -- compiling -------------------------------------------------------------------------------------


def compile_kernel(kernel: TritonKernel, target: Target, aligned: Sequence[int] = ()) -> Binary:
    """The kernel's cubin, from the cache or from Triton.

    aligned: positions of the pointers that will be multiples of ALIGNMENT.

    Raises:
        TritonCompileError: Triton is missing, or refused the kernel.
    """
    version = triton_version()
    parts = (
        kernel.source,
        _prefix_text(),
        repr((kernel.signature, kernel.blocks)),
        repr(target),
    )
    key = content_key(version, *parts, f"{kernel.num_warps} {list(aligned)}")
    facts = store().get("triton", key)
    cubin = store().path("cubin", key)
    if facts is not None and cubin is not None:
        warps, shared, scratch = map(int, facts.split())
        return Binary(cubin, kernel.name, warps, shared, scratch)
    compiled = build(kernel, target, aligned)
    meta = compiled.metadata
    scratch = sum(hasattr(meta, f"{kind}_scratch_size") for kind in ("global", "profile"))
    if getattr(meta, "global_scratch_size", 0):
        raise TritonCompileError(["triton", kernel.name], "the kernel wants scratch memory")
    image: bytes = compiled.asm["cubin"]
    store().put("triton", key, f"{meta.num_warps} {meta.shared} {scratch}".encode())
    cubin = store().put("cubin", key, image)
    if cubin is None:
        cubin = Path(private_folder()) / f"{key}.cubin"
        cubin.write_bytes(image)
    return Binary(cubin, kernel.name, meta.num_warps, meta.shared, scratch)


def find_triton_folder() -> None:
    """Triton keeps what it compiles in the user's folder, and fails where it cannot: then it gets
    one for this process.
    """
    home = os.environ.get("TRITON_HOME") or os.path.expanduser("~")
    folder = os.environ.get("TRITON_CACHE_DIR") or os.path.join(home, ".triton", "cache")
    try:
        os.makedirs(folder, exist_ok=True)
        usable = os.access(folder, os.W_OK)
    except OSError:
        usable = False
    if not usable:
        os.environ["TRITON_CACHE_DIR"] = os.path.join(private_folder(), "triton")


def build(kernel: TritonKernel, target: Target, aligned: Sequence[int] = ()) -> Any:
    """Triton's own compiled kernel, with `asm` ("ptx", "cubin", ...) and `metadata`.

    Raises:
        TritonCompileError: as `compile_kernel`.
    """
    triton_version()
    find_triton_folder()
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler import compile as triton_compile
    from triton.runtime.jit import JITFunction

    function = JITFunction(_compiled_function(kernel))
    signature = {**kernel.signature, **dict.fromkeys(kernel.blocks, "constexpr")}
    attributes = {(position,): [["tt.divisibility", ALIGNMENT]] for position in aligned}
    # As eager computes: a * b + c is not contracted unless the source says so.
    options: dict[str, Any] = {"num_warps": kernel.num_warps, "enable_fp_fusion": False}
    if "check(" in kernel.source:  # its assertions are compiled in; integers wrap all the same
        options |= {"debug": True, "sanitize_overflow": False}
    try:
        source = ASTSource(function, signature, constexprs=kernel.blocks, attrs=attributes)
        return triton_compile(
            source, target=GPUTarget(target.backend, target.arch, 32), options=options
        )
    except Exception as error:
        text = f"{type(error).__name__}: {error}\n{kernel.source}"
        raise TritonCompileError(["triton", kernel.name], text) from error


# -- interpreting ----------------------------------------------------------------------------------


def interpreted(kernel: TritonKernel) -> Callable[..., None]:
    """The kernel as a function of CPU tensors, one for each pointer, and of sizes.

    Raises:
        TritonCompileError: Triton is missing.
    """
    triton_version()
    import triton.language as tl
    from triton.runtime.interpreter import InterpretedFunction

    sizes = [name for name, kind in kernel.signature.items() if not kind.startswith("*")]
    plain = _interpreted_function(kernel)
    plain.__annotations__.update(dict.fromkeys(sizes, tl.constexpr))  # stay Python's numbers
    function = InterpretedFunction(plain)

    def run(*args: Any) -> None:
        values = dict(zip(kernel.signature, args, strict=True))
        programs = evaluate(kernel.grid, {name: values[name] for name in sizes})
        if programs:
            import numpy

            memory = [_without_lazy_bit(arg) for arg in args]
            with numpy.errstate(all="ignore"):
                function[(programs,)](*memory, **kernel.blocks)
            for arg, plain in zip(args, memory, strict=True):
                if arg is not plain:
                    _whole(torch._neg_view(arg)).copy_(_whole(plain).neg())

    return run


def _without_lazy_bit(
    arg: Any,
) -> Any:
    """The same values in the same layout, for a kernel, which reads memory as it is."""
    if not isinstance(arg, torch.Tensor) or not arg.is_neg() or not arg.numel():
        return arg
    return _whole(torch._neg_view(arg)).neg().as_strided(arg.shape, arg.stride())


def _whole(
    tensor: torch.Tensor,
) -> torch.Tensor:
    """The memory from the first to the last element."""
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided((last + 1,), (1,))


def evaluate(expr: Expr, values: dict[str, int]) -> int:
    """An expression in size symbols, as a number."""
    mapping: dict[Any, Any] = {symbol: values[symbol.name] for symbol in expr.symbols()}
    return int(expr.subs(mapping))
