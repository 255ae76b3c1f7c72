"""What the tests of plans share: small kernels, and an executor from a builder."""

from minidynamo import _C
from minidynamo.inductor.codegen.plan import Input, Kernel, KernelCall, Plan, PlanBuilder
from minidynamo.inductor.runtime.cpp_toolchain import compile_library

HEADER = "#include <cstdint>\n"

# out = expression of a, over sizes[0] floats
_POINTWISE = """
extern "C" void {symbol}(void** ptrs, const int64_t* sizes) {{
  const float* in = (const float*)ptrs[0];
  float* out = (float*)ptrs[1];
  for (int64_t i = 0; i < sizes[0]; ++i) {{ float a = in[i]; out[i] = {expression}; }}
}}
"""


def pointwise(symbol: str, expression: str) -> Kernel:
    """A kernel (in, &out; n) computing `expression` of `a`."""
    return Kernel(symbol, _POINTWISE.format(symbol=symbol, expression=expression))


DOUBLE = pointwise("k_double", "a * 2")
ADD_ONE = pointwise("k_add_one", "a + 1")


def vector(name: str, n: int | str = 8, dtype: str = "float32") -> Input:
    """A one-dimensional contiguous input."""
    return Input(name, dtype=dtype, size=(n,), stride=(1,))


def matrix(name: str, rows: int | str, columns: int | str) -> Input:
    """A two-dimensional contiguous input."""
    return Input(name, size=(rows, columns), stride=(columns, 1))


def call(builder: PlanBuilder, kernel: Kernel, source: int, target: int, n: int | str) -> None:
    """Add the call of a pointwise kernel."""
    builder.kernel(kernel)
    builder.add(KernelCall(kernel.symbol, (source, target), (n,), (target,)))


def executor(plan: Plan, **options) -> _C.PlanExecutor:
    """The plan, after a trip through JSON, ready to run."""
    plan = Plan.from_json(plan.validate().to_json())
    library = None
    if plan.kernels:
        sources = {kernel.symbol: kernel.source for kernel in plan.kernels}
        library = str(compile_library(sources, HEADER))
    return _C.PlanExecutor(plan.to_dict(), library, **options)
