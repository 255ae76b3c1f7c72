"""GPU launches: with a stand-in driver that writes down its calls, and on a GPU if there is one."""

import os
import subprocess
import sys
import textwrap

import pytest
import torch
from plan_testing import executor

from minidynamo.inductor.codegen.plan import (
    Expr,
    Extern,
    Input,
    PlanBuilder,
    Ref,
    Symbol,
    TritonLaunch,
)
from minidynamo.inductor.runtime.cache import Store
from minidynamo.inductor.runtime.cpp_toolchain import find_compiler

PTX = """.version 7.0
.target sm_80
.address_size 64
.visible .entry scale(.param .u64 in, .param .u64 out, .param .u32 n, .param .f32 factor)
{
  .reg .pred %p; .reg .f32 %f<3>; .reg .b32 %r<5>; .reg .b64 %rd<5>;
  ld.param.u64 %rd0, [in]; ld.param.u64 %rd1, [out];
  ld.param.u32 %r0, [n]; ld.param.f32 %f0, [factor];
  mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x;
  mad.lo.s32 %r4, %r1, %r2, %r3;
  setp.ge.s32 %p, %r4, %r0;
  @%p bra DONE;
  mul.wide.s32 %rd2, %r4, 4;
  add.s64 %rd3, %rd0, %rd2; add.s64 %rd4, %rd1, %rd2;
  ld.global.f32 %f1, [%rd3]; mul.f32 %f2, %f1, %f0; st.global.f32 [%rd4], %f2;
DONE:
  ret;
}
"""

# The driver's functions, reduced to writing down what they are given.
DRIVER = r"""
#include <cstdio>
#include <cstring>
extern "C" {
int cuInit(unsigned) { return 0; }
int cuGetErrorString(int code, const char** text) { *text = "stand-in error"; return 0; }
int cuDevicePrimaryCtxRetain(void** context, int device) {
  std::printf("retain %d\n", device); *context = (void*)0x10; return 0;
}
int cuCtxPushCurrent_v2(void*) { std::printf("push\n"); return 0; }
int cuCtxPopCurrent_v2(void**) { std::printf("pop\n"); return 0; }
int cuCtxGetCurrent(void** context) { *context = nullptr; return 0; }
int cuModuleLoadData(void** module, const void* image) {
  std::printf("load %zu\n", std::strlen((const char*)image)); *module = (void*)0x20; return 0;
}
int cuModuleGetFunction(void** function, void*, const char* name) {
  std::printf("function %s\n", name);
  *function = (void*)0x30;
  return std::strcmp(name, "missing") == 0 ? 500 : 0;
}
int cuFuncSetAttribute(void*, int attribute, int value) {
  std::printf("attribute %d %d\n", attribute, value); return 0;
}
int cuLaunchKernel(void*, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned, unsigned,
                   unsigned shared, void* stream, void** params, void**) {
  std::printf("launch %u %u %u x %u shared %u stream %p: ", gx, gy, gz, bx, shared, stream);
  std::printf("%d %lld %g %g %p\n", *(int*)params[0], *(long long*)params[1], *(float*)params[2],
              *(double*)params[3], *(void**)params[4]);
  std::fflush(stdout);
  return gy == 7 ? 700 : 0;
}
}
"""

PROGRAM = """
    import sys
    sys.path.insert(0, {tests!r})
    import torch
    from plan_testing import executor
    from minidynamo.inductor.codegen.plan import *
    torch._C._cuda_getCurrentRawStream = lambda device: 0x77 + device

    def plan(function, shared=0):
        b = PlanBuilder()
        b.symbols.append(Symbol("n", b.input(Input("n", "int"))))
        args = (("i32", Expr("n")), ("i64", -5), ("f32", 0.5), ("f64", 2), ("null", None))
        b.add(TritonLaunch("k", function, {path!r}, "cuda:0", ("n", "n - 1", 2), 4, shared, args))
        return b.finish(())

    run = executor(plan("scale", 100_000))
    run(3)
    run(1)  # an empty grid
    try:
        run(8)
    except RuntimeError as error:
        print(error, flush=True)
    del run
    executor(plan("scale", 100_000))(4)  # loaded once
    try:
        executor(plan("missing"))
    except RuntimeError as error:
        print(error, flush=True)
"""


def test_launches_through_a_stand_in_driver(tmp_path):
    source = tmp_path / "driver.cpp"
    source.write_text(DRIVER)
    command = [*find_compiler().command, "-shared", "-fPIC", str(source)]
    subprocess.run([*command, "-o", str(tmp_path / "libcuda.so.1")], check=True)
    path = Store(tmp_path / "cache").put("ptx", "scale", PTX.encode())
    tests = os.path.dirname(__file__)
    program = textwrap.dedent(PROGRAM).format(tests=tests, path=str(path))
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    result = subprocess.run(
        [sys.executable, "-u", "-c", program], env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    launch = "launch {0} {1} 2 x 128 shared 100000 stream 0x77: {0} -5 0.5 2 (nil)"
    loaded = ["retain 0", "push", f"load {len(PTX)}"]  # without the checksum of the cache
    assert result.stdout.splitlines() == [
        *(*loaded, "function scale", "attribute 8 100000", "pop"),
        *("push", launch.format(3, 2), "pop"),
        *("push", launch.format(8, 7), "pop"),
        "launching scale: stand-in error (700)",
        *("push", launch.format(4, 3), "pop"),
        *(*loaded, "function missing", "pop"),
        f"finding missing in {path}: stand-in error (500)",
    ]


def test_without_a_driver_the_error_says_so(tmp_path):
    if torch.cuda.is_available():
        pytest.skip("there is a driver")
    b = PlanBuilder()
    (tmp_path / "k.ptx").write_text(PTX)
    b.add(TritonLaunch("k", "scale", str(tmp_path / "k.ptx"), "cuda:0", (1, 1, 1), 1, 0, ()))
    with pytest.raises(RuntimeError, match="CUDA driver"):
        executor(b.finish(()))


def test_launches_must_be_on_a_gpu(tmp_path):
    b = PlanBuilder()
    b.add(TritonLaunch("k", "scale", str(tmp_path / "k.ptx"), "cpu", (1, 1, 1), 1, 0, ()))
    with pytest.raises(ValueError, match="CUDA devices only"):
        executor(b.finish(()))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu(tmp_path):
    (tmp_path / "k.ptx").write_text(PTX)
    n = 64
    b = PlanBuilder()
    x = b.input(Input("x", device="cuda:0", size=(n, n), stride=(n, 1)))
    b.symbols.append(Symbol("n", b.input(Input("n", "int"))))

    def scale(source, factor):
        out = b.alloc((n, n), (n, 1), "float32", "cuda:0")
        args = (("ptr", Ref(source)), ("ptr", Ref(out)), ("i32", Expr("n*n")), ("f32", factor))
        grid = ("CeilDiv(n*n, 128)", 1, 1)
        path = str(tmp_path / "k.ptx")
        b.add(TritonLaunch("k", "scale", path, "cuda:0", grid, 4, 0, args, (out,)))
        return out

    first = scale(x, 2.0)
    product = b.alloc((n, n), (n, 1), "float32", "cuda:0")
    b.add(Extern("aten::mm", "out", (Ref(first), Ref(x)), {"out": Ref(product)}, (None,)))
    second = scale(product, 0.5)
    run = executor(b.finish((Ref(second),)))
    assert run.info["planned_slots"] == 2
    tensor = torch.eye(n, device="cuda") + 1
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
        with torch.cuda.stream(stream):
            stream.wait_stream(torch.cuda.default_stream())
            (out,) = run(tensor, n)
        stream.synchronize()
        assert torch.allclose(out, tensor @ tensor)
    with pytest.raises(ValueError, match="must be"):
        run(tensor.cpu(), n)
