"""The C++ toolchain: libraries, the cache, OpenMP with torch's threads, errors."""

import ctypes
import os
import shlex
import stat
import threading

import pytest
import torch

import minidynamo
from minidynamo import _C, config
from minidynamo.exc import CppCompileError
from minidynamo.inductor.codegen.plan import Kernel, KernelCall, PlanBuilder, Ref
from minidynamo.inductor.runtime import compile_pool, cpp_toolchain
from minidynamo.inductor.runtime.cpp_toolchain import compile_library
from minidynamo.utils import forget_warnings

HEADER = "#include <cstdint>\nstatic inline int64_t twice(int64_t x) { return 2 * x; }\n"
KERNEL = (
    'extern "C" void {name}(void** ptrs, const int64_t* sizes)'
    " {{ *(int64_t*)ptrs[0] = twice(sizes[0]) + {plus}; }}\n"
)


def invoke(path, symbol, *sizes):
    """What a kernel writes to the int64 that its first pointer points to."""
    result = ctypes.c_int64()
    pointers = (ctypes.c_void_p * 1)(ctypes.addressof(result))
    function = getattr(ctypes.CDLL(str(path)), symbol)
    function(pointers, (ctypes.c_int64 * max(1, len(sizes)))(*sizes))
    return result.value


@pytest.fixture(autouse=True)
def own_cache(tmp_path):
    with config.patch(cache_dir=str(tmp_path / "cache")):
        yield


def test_kernels_run_and_come_from_the_cache(monkeypatch):
    kernels = {f"k{i}": KERNEL.format(name=f"k{i}", plus=i) for i in range(3)}
    path = compile_library(kernels, HEADER)
    assert [invoke(path, symbol, 10) for symbol in kernels] == [20, 21, 22]
    monkeypatch.setattr(cpp_toolchain, "_build", None)
    assert compile_library(dict(reversed(kernels.items())), HEADER) == path
    with pytest.raises(TypeError):
        compile_library(kernels, HEADER + "\n")  # other text: the compiler is needed


def test_large_libraries_are_compiled_in_parallel(monkeypatch):
    monkeypatch.setattr(cpp_toolchain, "workers", lambda: 3)
    padding = "// " + "x" * cpp_toolchain._CHARS_WORTH_A_PROCESS + "\n"
    kernels = {f"k{i}": KERNEL.format(name=f"k{i}", plus=i) + padding for i in range(7)}
    parts = cpp_toolchain._split(kernels)
    assert len(parts) == 3 and sorted(sum(map(list, parts), [])) == sorted(kernels)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    path = compile_library(kernels, HEADER)
    assert [invoke(path, symbol, 1) for symbol in kernels] == [2 + i for i in range(7)]


def test_results_are_not_contracted():
    kernel = """extern "C" void k(void** ptrs, const int64_t* sizes) {
      double a = 1.0 + 0x1p-30, b = 1.0 - 0x1p-30;
      volatile double x = a, y = b;
      double r = x * y - 1.0;
      __builtin_memcpy(ptrs[0], &r, 8);
    }"""
    assert invoke(compile_library({"k": kernel}, HEADER), "k") == 0


def test_a_refused_source_is_kept_and_named():
    with pytest.raises(CppCompileError) as error:
        compile_library({"k": "int broken = ;"}, HEADER)
    assert "expected primary-expression" in str(error.value)
    assert error.value.source_path in str(error.value)
    assert "int broken = ;" in open(error.value.source_path).read()
    with pytest.raises(CppCompileError):
        compile_library({"k": "int broken = ;"}, HEADER)  # failures are not cached


def test_no_compiler(monkeypatch):
    monkeypatch.setenv("CXX", "/nowhere/g++ -m64")
    with pytest.raises(CppCompileError, match=r"apt-get install g\+\+"):
        compile_library({"k": KERNEL.format(name="k", plus=0)}, HEADER)


def test_programs_run_in_eager_without_a_compiler(monkeypatch, tmp_path):
    def program(x):
        return (x * 2 + 1).sin()

    monkeypatch.setenv("CXX", "/nowhere/g++")
    x = torch.randn(7, requires_grad=True)
    minidynamo.reset()
    with config.patch(cache_dir=str(tmp_path / "cache")):
        with pytest.warns(UserWarning, match=r"apt-get install g\+\+.*run in eager") as caught:
            for fn in (program, lambda x: x.cos() + 3):
                assert torch.equal(minidynamo.compile(fn)(x), fn(x))
        assert len(caught) == 1
        minidynamo.reset()
        with pytest.raises(minidynamo.exc.BackendCompilerFailed, match="no C[+][+] compiler"):
            minidynamo.compile(program, fullgraph=True)(x)


def test_backward_passes_run_in_eager_without_a_compiler(monkeypatch, tmp_path):
    """The forward pass has no kernels: the program runs already when one is missing."""
    monkeypatch.setenv("CXX", "/nowhere/g++")
    x, w = torch.randn(4, 8), torch.randn(8, 8, requires_grad=True)
    b = torch.randn(8, requires_grad=True)

    def program(x):
        return torch.addmm(b, x, w)

    minidynamo.reset()
    forget_warnings()
    with config.patch(cache_dir=str(tmp_path / "cache")):
        y = minidynamo.compile(program)(x)
        assert torch.equal(y, program(x))
        with pytest.warns(UserWarning, match=r"apt-get install g\+\+.*run in eager"):
            found = torch.autograd.grad(y, (w, b), torch.ones(4, 8))
        expected = torch.autograd.grad(program(x), (w, b), torch.ones(4, 8))
        for gradient, wanted in zip(found, expected, strict=True):
            torch.testing.assert_close(gradient, wanted)


def test_a_compiler_that_fails_is_an_error_with_its_words(monkeypatch, tmp_path):
    fake = tmp_path / "g++"
    fake.write_text("#!/bin/sh\necho out of memory >&2\nexit 1\n")
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CXX", str(fake))
    minidynamo.reset()
    with config.patch(cache_dir=str(tmp_path / "cache")):
        with pytest.raises(
            minidynamo.exc.BackendCompilerFailed, match="out of memory"
        ) as error:
            minidynamo.compile(lambda x: x.cos() + 3)(torch.ones(3))
    assert os.path.exists(error.value.inner_exception.source_path)


def test_the_words_of_a_compiler_that_fails_are_shown(monkeypatch, tmp_path, caplog):
    fake = tmp_path / "g++"
    fake.write_text("#!/bin/sh\necho 'out of memory: 3 GiB' >&2\nexit 1\n")
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CXX", str(fake))
    minidynamo.reset()
    x = torch.randn(3, requires_grad=True)
    with config.patch(cache_dir=str(tmp_path / "cache"), raise_internal_errors=False):
        y = minidynamo.compile(lambda x: x.cos() + 3)(x)
        (gradient,) = torch.autograd.grad(y, x, torch.ones(3))
    assert torch.equal(y, x.cos() + 3)
    torch.testing.assert_close(gradient, -x.sin())
    for record in caplog.records:
        assert "\nout of memory: 3 GiB" in record.message and "kernels0.cpp" in record.message
    assert len(caplog.records) == 2


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo internal compiler error >&2; exit 4", "internal compiler error"),
        ("exit 0", "wrote no .*kernels.so"),
    ],
)
def test_a_compiler_that_cannot_run(tmp_path, monkeypatch, script, message):
    fake = tmp_path / "g++"
    fake.write_text(f"#!/bin/sh\n{script}\n")
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CXX", str(fake))
    with pytest.raises(CppCompileError, match=message):
        compile_library({"k": KERNEL.format(name="k", plus=0)}, HEADER)


def test_a_compiler_that_stumbles_is_asked_with_more_care(tmp_path, monkeypatch):
    """Its failure is not the source's: a weaker optimisation gets past it."""
    real = shlex.join(cpp_toolchain.find_compiler().command)
    fake = tmp_path / "g++"
    fake.write_text(
        '#!/bin/sh\ncase "$*" in *-fno-tree-forwprop*) exec ' + real + ' "$@";; esac\n'
        "echo error: could not split insn >&2; exit 1\n"
    )
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CXX", str(fake))
    kernels = {"k": KERNEL.format(name="k", plus=4)}
    path = compile_library(kernels, HEADER)
    assert invoke(path, "k", 1) == 6 and not path.parent.joinpath("kernels0.cpp").exists()
    assert compile_library(kernels, HEADER) == path


def test_a_widened_load_under_a_mask():
    """GCC 12 cannot write this one for AVX-512 as it stands."""

    def program(bytes_, flags, numbers):
        bytes_.mul_(flags.to(torch.int64))
        return flags.logical_xor_(numbers)

    def arguments():
        x = torch.tensor([0, 1, 2, -1, 5.0, 3, 0, 0, 9])
        return x.abs().to(torch.uint8), x > 0, x.double()

    minidynamo.reset()
    wanted, given = arguments(), arguments()
    with config.patch(raise_internal_errors=True):
        assert torch.equal(minidynamo.compile(program)(*given), program(*wanted))
    assert all(map(torch.equal, given, wanted))


def test_another_compiler_is_another_key(monkeypatch):
    kernels = {"k": KERNEL.format(name="k", plus=0)}
    path = compile_library(kernels, HEADER)
    command = [*cpp_toolchain.find_compiler().command, "-DOTHER"]
    monkeypatch.setenv("CXX", shlex.join(command))
    assert compile_library(kernels, HEADER) != path


def test_without_a_usable_cache_kernels_are_compiled_all_the_same(tmp_path):
    (tmp_path / "file").write_text("")
    forget_warnings()
    with config.patch(cache_dir=str(tmp_path / "file")):
        with pytest.warns(UserWarning, match="without a disk cache"):
            path = compile_library({"k": KERNEL.format(name="k", plus=1)}, HEADER)
        assert invoke(path, "k", 4) == 9
        assert str(path).startswith(cpp_toolchain.private_folder())


def test_background_compilation():
    futures = [
        compile_pool.submit(compile_library, {"k": KERNEL.format(name="k", plus=i)}, HEADER)
        for i in range(3)
    ]
    assert [invoke(future.result(), "k", 1) for future in futures] == [2, 3, 4]


# ------------------------------------------------------------------------------------------------
# OpenMP

THREADS = """
extern "C" int omp_get_num_threads();
extern "C" void threads(void** ptrs, const int64_t* sizes) {
  int64_t count = 0;
#pragma omp parallel
  {
#pragma omp single
    count = omp_get_num_threads();
  }
  *(int64_t*)ptrs[0] = count;
}"""


def openmp_runtimes():
    with open("/proc/self/maps") as maps:
        paths = {line.split("/", 1)[1].strip() for line in maps if "/" in line}
    return {path for path in paths if os.path.basename(path).startswith(("libgomp", "libiomp"))}


def test_kernels_share_the_runtime_and_thread_count_of_torch():
    before = openmp_runtimes()
    path = compile_library({"threads": THREADS}, HEADER)
    default = torch.get_num_threads()
    assert invoke(path, "threads") == default
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            assert invoke(path, "threads") == count
    finally:
        torch.set_num_threads(default)
    assert openmp_runtimes() == before and len(before) == 1


def test_kernels_and_torch_share_one_set_of_threads():
    path = compile_library({"threads": THREADS}, HEADER)
    default = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        torch.ones(1 << 22).exp_()  # starts torch's threads
        before = len(os.listdir("/proc/self/task"))
        assert invoke(path, "threads") == 3
        assert len(os.listdir("/proc/self/task")) == before
    finally:
        torch.set_num_threads(default)


def test_new_python_threads_use_the_thread_count_of_torch():
    b = PlanBuilder()
    b.kernel(Kernel("threads", THREADS))
    out = b.alloc((), (), "int64")
    b.add(KernelCall("threads", (out,), (), (out,)))
    plan = b.finish((Ref(out),)).to_dict()
    run = _C.PlanExecutor(plan, str(compile_library({"threads": THREADS}, HEADER)), single=True)
    default = torch.get_num_threads()
    counts = []
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            thread = threading.Thread(target=lambda: counts.append(run().item()))
            thread.start()
            thread.join()
    finally:
        torch.set_num_threads(default)
    assert counts == [1, 3]


def test_vector_isa_is_one_that_the_processor_has():
    assert cpp_toolchain.vector_isa() in ("avx512", "avx2", "sse2")
    if cpp_toolchain.vector_isa() == "avx512":
        assert "avx512f" in cpp_toolchain.cpu_flags()
