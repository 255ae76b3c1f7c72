"""A GPU for torch's CUDA builds on machines that have none: everything a program for a GPU does on
the host is done, and what the GPU would compute is computed by the CPU.

    folder = build(tmp_path)  # two libraries: a CUDA runtime and a driver
    subprocess.run([sys.executable, program], env=environment(folder))

and in that program, before anything else:

    gpu = StandIn()  # operators of torch by their CPU kernels, ours by Triton's interpreter
    gpu.launches  # names of the kernels that were launched, with their grids and streams

Device memory is host memory, so copies, views and pointers are real. A launch is checked for what a
GPU would only answer with a broken context: pointers that are less aligned than the kernel was
compiled for or lead out of device memory, other parameters than the cubin takes, another grid,
block or shared memory than the kernel wants. What is done while a stream is captured is done when
the graph is launched. Operators that exist for CUDA alone (cuDNN, fused attention) compute nothing.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
import traceback
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from cubin import launch_facts
from torch.utils._pytree import tree_leaves, tree_map

HERE = Path(__file__).parent


# -- the libraries -----------------------------------------------------------------------------


def _packages() -> Path:
    return Path(torch.__file__).parent.parent


def runtime_library() -> Path | None:
    """torch's CUDA runtime, or None in a build without, or with one whose headers are missing."""
    major = (torch.version.cuda or "").partition(".")[0]
    found = sorted(_packages().glob(f"nvidia/*/lib/libcudart.so.{major}")) if major else []
    headers = [path.parent.parent / "include" / "cuda_runtime_api.h" for path in found]
    return next((f for f, h in zip(found, headers, strict=True) if h.exists()), None)


def _functions(library: Path) -> set[str]:
    """The C functions that a library defines."""
    command = ["nm", "-D", "--defined-only", str(library)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    names = {line.split()[-1].partition("@")[0] for line in lines.splitlines()}
    return {name for name in names if "cuda" in name and not name.startswith("lib")}


def build(folder: Path) -> Path:
    """Compiles the libraries into `folder` and gives it back."""
    real = runtime_library()
    assert real is not None
    include = folder / "include"
    include.mkdir()
    triton = _packages() / "triton" / "backends" / "nvidia" / "include"
    (include / "crt").symlink_to(triton / "crt")  # a part that some packages leave out
    flags = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-fno-builtin", f"-I{include}"]
    flags.append(f"-I{real.parent.parent / 'include'}")
    own = folder / "own.so"
    source = HERE / "stand_in_runtime.cpp"
    subprocess.run([*flags, str(source), "-o", str(own)], check=True)
    others = sorted(_functions(real) - _functions(own))
    rest = folder / "rest.cpp"
    text = "".join(f"long {name}() {{ return 0; }}\n" for name in others)
    rest.write_text(f'extern "C" {{\n{text}}}\n')
    versions = folder / "versions"
    versions.write_text(f"{real.name} {{ global: *; }};")
    link = [f"-Wl,-soname,{real.name}", f"-Wl,--version-script={versions}", "-o"]
    runtime = str(folder / "libcudart.so")
    subprocess.run([*flags, str(source), str(rest), *link, runtime], check=True)
    driver = [str(HERE / "stand_in_driver.cpp"), "-o", str(folder / "libcuda.so.1")]
    subprocess.run([*flags, *driver, "-Wl,-soname,libcuda.so.1"], check=True)
    return folder


def environment(folder: Path) -> dict[str, str]:
    """For a process that is to have the stand-in. Its caches lie in `folder`, too."""
    return {
        **os.environ,
        "LD_LIBRARY_PATH": str(folder),
        "LD_PRELOAD": str(folder / "libcudart.so"),
        "MINIDYNAMO_CACHE_DIR": str(folder / "cache"),
        "MINIDYNAMO_RAISE_INTERNAL_ERRORS": "1",
    }


# -- torch's operators -------------------------------------------------------------------------

# They make tensors, look at them, or give parts of them: torch's own do without kernels.
NATIVE = {
    *("empty.memory_format", "empty_strided", "as_strided", "view", "unfold", "alias", "data"),
    *("resize_", "set_", "set_.source_Storage", "set_.source_Storage_storage_offset"),
    *("set_.source_Tensor", "_reshape_alias", "_local_scalar_dense", "record_stream"),
    *("_pin_memory", "pin_memory", "is_pinned", "is_set_to", "_efficientzerotensor"),
}
ON_CPU = ("CPU", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")


def _keys() -> Any:
    """The layers that a kernel's own calls leave out."""
    keys = torch._C.DispatchKey
    return torch._C.DispatchKeySet(keys.AutogradCPU) | torch._C.DispatchKeySet(
        keys.ADInplaceOrView
    )


def host(tensor: torch.Tensor) -> torch.Tensor:
    """A CPU tensor of the same memory."""
    storage = tensor.untyped_storage()
    empty = torch.empty(0, dtype=torch.uint8, device="cpu")
    if storage.nbytes():
        memory = (ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())
        empty = torch.frombuffer(memory, dtype=torch.uint8)
    result = torch.empty(0, dtype=tensor.dtype, device="cpu")
    place = (tensor.storage_offset(), tensor.size(), tensor.stride())
    result.set_(empty.untyped_storage(), *place)
    return torch._C._set_conj(result, True) or result if tensor.is_conj() else result


def device_copy(tensor: torch.Tensor, device: Any) -> torch.Tensor:
    result = torch.empty_strided(
        tensor.size(), tensor.stride(), dtype=tensor.dtype, device=device
    )
    host(result).copy_(tensor)
    return result


class _Call:
    """One call of an operator, carried out on the CPU.

    graph: what is being captured, as functions to call; None outside of a capture.
    """

    graph: list[Callable[[], Any]] | None = None

    def __init__(self) -> None:
        self.seen: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.device = torch.device("cuda", torch.cuda.current_device())

    def inward(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.device.type == "cuda":
            self.device = value.device
            self.seen.append((value, host(value)))
            return self.seen[-1][1]
        if isinstance(value, torch.device) and value.type == "cuda":
            self.device = value
            return torch.device("cpu")
        return None if isinstance(value, torch.Generator) else value

    def outward(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        for original, alias in self.seen:
            if alias is value:
                return original
        return device_copy(value, self.device)

    def run(self, op: Any, args: Any, kwargs: Any) -> Any:
        args, kwargs = tree_map(self.inward, (args, kwargs))
        wants = [str(argument.type) for argument in op._schema.arguments]
        args = [  # numbers that torch took for tensors, and gave back as numbers
            torch.tensor(a) if kind == "Tensor" and isinstance(a, (int, float, complex)) else a
            for a, kind in zip(args, wants, strict=False)
        ]
        if _Call.graph is not None:
            return self.capture(op, args, kwargs)
        result = op(*args, **kwargs)
        for original, alias in self.seen:
            if original.shape != alias.shape:  # an out= that was too small
                original.resize_(alias.shape)
                host(original).copy_(alias)
        return tree_map(self.outward, result)

    def capture(self, op: Any, args: Any, kwargs: Any) -> Any:
        """Nothing is computed but the results' sizes; that is left to the graph's launch."""
        clones = [(alias, alias.clone()) for _, alias in self.seen]

        def swap(value: Any, here: int) -> Any:
            return next((pair[1 - here] for pair in clones if pair[here] is value), value)

        trial = tree_map(lambda value: swap(value, 0), (args, kwargs))
        result = tree_map(lambda value: swap(value, 1), op(*trial[0], **trial[1]))
        outward = tree_map(self.outward, result)
        places = [
            host(out) if isinstance(out, torch.Tensor) and out is not value else None
            for out, value in zip(tree_leaves(outward), tree_leaves(result), strict=True)
        ]
        inputs = [alias for _, alias in self.seen]

        def launch() -> None:
            for place, value in zip(places, tree_leaves(op(*args, **kwargs)), strict=True):
                if place is not None and not any(value is alias for alias in inputs):
                    place.copy_(value)

        assert _Call.graph is not None
        _Call.graph.append(launch)
        return outward


def _copy_(to: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    ends = [host(tensor) if tensor.device.type == "cuda" else tensor for tensor in (to, source)]
    if _Call.graph is not None:
        _Call.graph.append(lambda: ends[0].copy_(ends[1]))
        return to
    ends[0].copy_(ends[1])
    return to


def _to_copy(tensor: torch.Tensor, *, device: Any = None, **how: Any) -> torch.Tensor:
    source = host(tensor) if tensor.device.type == "cuda" else tensor
    device = torch.device(device or tensor.device)
    how.pop("pin_memory", None)
    convert = partial(torch.ops.aten._to_copy.default, source, **how)
    result: torch.Tensor = convert()
    if _Call.graph is not None:
        assert device.type == "cuda", "a copy to the host waits for the GPU"
        made = device_copy(result, device)
        place = host(made)
        _Call.graph.append(lambda: place.copy_(convert()))
        return made
    return result if device.type == "cpu" else device_copy(result, device)


def _is_computed(name: str, op: Any) -> bool:
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    if name in NATIVE or not has(f"aten::{name}", "CUDA"):
        return False
    gives_parts = any(r.alias_info and not r.alias_info.is_write for r in op._schema.returns)
    return not gives_parts and any(has(f"aten::{name}", key) for key in ON_CPU)


def _operators() -> dict[str, Any]:
    found = {}
    for full in torch._C._dispatch_get_all_op_names():
        namespace, _, name = full.partition("::")
        if namespace == "aten":
            base, _, overload = name.partition(".")
            op = getattr(getattr(torch.ops.aten, base), overload or "default")
            if _is_computed(name, op):
                found[name] = op
    return found


# -- launches ----------------------------------------------------------------------------------

NUMBERS = {
    "i32": ctypes.c_int32,
    "i64": ctypes.c_int64,
    "fp32": ctypes.c_float,
    "fp64": ctypes.c_double,
}
ELEMENTS = {
    **{"fp64": torch.float64, "fp32": torch.float32, "fp16": torch.float16},
    **{"bf16": torch.bfloat16, "i1": torch.bool, "i8": torch.int8, "u8": torch.uint8},
    **{"i16": torch.int16, "i32": torch.int32, "i64": torch.int64},
}
LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int,
    *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p),
    *[ctypes.c_uint] * 5,
    *(ctypes.c_void_p, ctypes.c_void_p),
)
CAPTURE = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_ulong)


def _pointer(address: int) -> int:
    return ctypes.c_void_p.from_address(address).value or 0


class StandIn:
    """Makes this process' CUDA devices compute. There is one for a process.

    launches: (kernel, grid, stream) of every launch, but for those of CUDA graphs.
    replays: how many CUDA graphs were launched.
    errors: what was wrong with launches; they fail, too.
    """

    def __init__(self) -> None:
        import minidynamo
        from minidynamo.inductor.codegen import triton_steps
        from minidynamo.inductor.runtime import triton_launch, triton_tune

        self.launches: list[tuple[str, tuple[int, int, int], int]] = []
        self.errors: list[BaseException] = []
        self.triton = triton_launch
        self.kernels: dict[bytes, Any] = {}
        self.disable = minidynamo.disable
        self._replace_operators()
        self._compile = triton_launch.compile_kernel
        for module in (triton_launch, triton_steps, triton_tune):
            module.compile_kernel = self._compile_kernel
        self._callback = LAUNCH(self._quiet(self._launch))
        ctypes.CDLL("libcuda.so.1").stand_in_set_launch(self._callback)
        self.replays = 0
        self.graphs: dict[int, list[Callable[[], Any]]] = {}
        self._capture_callback = CAPTURE(self._quiet(self._capture))
        ctypes.CDLL(None).stand_in_set_capture(self._capture_callback)
        self.room = ctypes.CDLL(None).stand_in_room
        self.room.restype, self.room.argtypes = ctypes.c_size_t, [ctypes.c_void_p]

    def _quiet(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Without modes, autograd and compilation of the function itself."""

        def call(*args: Any, **kwargs: Any) -> Any:
            with torch._C.DisableTorchFunction(), torch._C._ExcludeDispatchKeyGuard(_keys()):
                return function(*args, **kwargs)

        return self.disable(call)

    def _replace_operators(self) -> None:
        warnings.filterwarnings("ignore", message=".*verriding a previously registered")
        warnings.filterwarnings("ignore", message=".*Warning only once for all operators")
        self.library = torch.library.Library("aten", "IMPL", "CUDA")
        table = {
            name: lambda *args, op=op, **kwargs: _Call().run(op, args, kwargs)
            for name, op in _operators().items()
        }
        # No fused attention, which the CPU's choice would ask for.
        table["_fused_sdp_choice"] = lambda *args, **kwargs: 0
        table |= {"copy_": _copy_, "_to_copy": _to_copy}
        for name, function in table.items():
            self.library.impl(name, self._quiet(function), "CUDA")
        torch.backends.cudnn.enabled = False
        for fused in ("flash", "mem_efficient", "cudnn"):
            getattr(torch.backends.cuda, f"enable_{fused}_sdp")(False)

    def _compile_kernel(self, kernel: Any, target: Any, aligned: Any = ()) -> Any:
        binary = self._compile(kernel, target, aligned)
        image = binary.cubin.read_bytes().partition(b"\nmd:sum1:")[0]
        _check_parameters(kernel, binary, image)
        run = partial(self._run, kernel, aligned, binary, self.triton.interpreted(kernel))
        self.kernels[hashlib.sha256(image).digest()] = run
        return binary

    def _launch(
        self, image: int, size: int, name: bytes, x: int, y: int, z: int, *rest: int
    ) -> int:
        try:
            cubin = ctypes.string_at(image, size)
            self.kernels[hashlib.sha256(cubin).digest()](name.decode(), (x, y, z), *rest)
        except BaseException as error:  # it cannot pass through the driver
            traceback.print_exc()
            self.errors.append(error)
            return 1
        return 0

    def _capture(self, what: int, graph: int) -> None:
        if what == 0:
            self.graphs[graph] = _Call.graph = []
        elif what == 1:
            _Call.graph = None
        else:
            self.replays += 1
            for launch in self.graphs[graph]:
                launch()

    def _run(
        self,
        kernel: Any,
        aligned: tuple[int, ...],
        binary: Any,
        interpreted: Callable[..., None],
        name: str,
        grid: tuple[int, int, int],
        threads: int,
        shared: int,
        stream: int,
        params: int,
    ) -> None:
        assert (name, threads) == (kernel.name, 32 * binary.num_warps)
        assert shared == binary.shared
        slots = [
            _pointer(params + 8 * i) for i in range(len(kernel.signature) + binary.scratch)
        ]
        assert not any(map(_pointer, slots[len(kernel.signature) :]))
        values: dict[str, Any] = {}
        for i, (parameter, kind) in enumerate(kernel.signature.items()):
            if kind.startswith("*"):
                address = _pointer(slots[i])
                assert i not in aligned or address % self.triton.ALIGNMENT == 0, (name, i)
                assert address == 0 or self.room(address) > 0, (name, i, "is no device memory")
                values[parameter] = _element(address, ELEMENTS[kind[1:]])
            else:
                values[parameter] = NUMBERS[kind].from_address(slots[i]).value
        sizes = {n: v for n, v in values.items() if not isinstance(v, torch.Tensor)}
        assert grid == (self.triton.evaluate(kernel.grid, sizes), 1, 1)
        if _Call.graph is not None:
            _Call.graph.append(lambda: interpreted(*values.values()))
            return
        self.launches.append((name, grid, stream or 0))
        interpreted(*values.values())


def _check_parameters(kernel: Any, binary: Any, image: bytes) -> None:
    """The launch gives eight bytes for each of what the cubin says that it takes."""
    facts = launch_facts(image, binary.function)
    kinds = [*kernel.signature.values()]
    assert all(kind == "i64" or kind.startswith("*") for kind in kinds), kinds
    count = len(kinds) + binary.scratch
    assert facts.parameters == tuple((8 * i, 8) for i in range(count)), (facts, kinds)
    assert facts.threads in (0, 32 * binary.num_warps), (facts, binary)


def _element(address: int, dtype: torch.dtype) -> torch.Tensor:
    """A tensor that begins at this address; kernels know how far it goes."""
    if not address:
        return torch.empty(0, dtype=dtype, device="cpu")
    memory = (ctypes.c_char * dtype.itemsize).from_address(address)
    return torch.frombuffer(memory, dtype=dtype)
