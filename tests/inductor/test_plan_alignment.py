"""Inputs whose memory must begin at a multiple of some bytes."""

from dataclasses import replace

import pytest
import torch
from plan_testing import ADD_ONE, call, executor, vector

from minidynamo.inductor.codegen.plan import Kernel, KernelCall, PlanBuilder, Ref, Symbol

# The first element becomes the address of the input modulo 64.
ADDRESS = Kernel(
    "k_address",
    """
extern "C" void k_address(void** ptrs, const int64_t* sizes) {
  const float* in = (const float*)ptrs[0];
  float* out = (float*)ptrs[1];
  for (int64_t i = 0; i < sizes[0]; ++i) out[i] = in[i];
  out[0] = (float)((uint64_t)in % 64);
}
""",
)


@pytest.fixture(params=[8, "n"], ids=["fixed", "symbolic"])
def run(request):
    b = PlanBuilder()
    n = request.param
    x = b.input(replace(vector("x", n), alignment=64))
    if n == "n":
        b.symbols.append(Symbol("n", x, "size", 0))
    y = b.alloc((n,), (1,), "float32")
    b.kernel(ADDRESS)
    b.add(KernelCall("k_address", (x, y), (n,), (y,)))
    return executor(b.finish((Ref(y),)))


def test_inputs_that_are_not_aligned_are_copied(run):
    memory = torch.arange(40.0)
    start = -memory.data_ptr() % 64 // 4
    for shift in (0, 1, 3, 0):
        part = memory[start + shift : start + shift + 8]
        want = part.clone()
        want[0] = 0
        assert torch.equal(run(part)[0], want)
        assert torch.equal(run.boxed([part])[0], want)
    assert torch.equal(memory, torch.arange(40.0))


def test_what_is_written_to_copies_comes_back():
    b = PlanBuilder()
    x = b.input(replace(vector("x"), alignment=64))
    call(b, ADD_ONE, x, x, 8)
    b.mutated_inputs.append(x)
    run = executor(b.finish((Ref(x),)))
    memory = torch.arange(40.0)
    start = -memory.data_ptr() % 64 // 4
    for shift in (0, 1, 3, 0):
        part, whole = memory[start + shift : start + shift + 8], memory.clone()
        whole[start + shift : start + shift + 8] += 2
        version = part._version
        assert run(part)[0] is part
        (result,) = run.boxed([part])
        assert result.data_ptr() == part.data_ptr() and part._version == version + 2
        assert torch.equal(memory, whole)


@pytest.mark.parametrize("alignment", [0, 3, -16, 1 << 20])
def test_alignments_are_powers_of_two(alignment):
    b = PlanBuilder()
    x = b.input(replace(vector("x"), alignment=alignment))
    with pytest.raises(ValueError, match="alignment of input x must be a power of two"):
        executor(b.finish((Ref(x),)))
