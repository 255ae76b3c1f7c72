"""What the tests of Triton kernels share: specs made by hand, run and compiled."""

import pytest

pytest.importorskip("triton")

import torch

from minidynamo.inductor.codegen.kernel import KernelArg, KernelSpec
from minidynamo.inductor.codegen.triton import codegen_triton
from minidynamo.inductor.loop_body import BodyBuilder
from minidynamo.inductor.runtime.triton_launch import Target, build, interpreted
from minidynamo.inductor.symbolic import loop_symbol

TARGETS = [Target("cuda", 80), Target("cuda", 90)]


def builder(iters, reduces=()):
    """A body builder over loops of these sizes."""
    return BodyBuilder(
        [loop_symbol(f"x{i}", n) for i, n in enumerate(iters)],
        [loop_symbol(f"r{i}", n) for i, n in enumerate(reduces)],
    )


def kernel_of(body, args, sizes=()):
    """The Triton kernel of a finished body; args: (dtype, numel, role), named a0, a1, ..."""
    named = [
        KernelArg(f"a{i}", dtype, numel, role) for i, (dtype, numel, role) in enumerate(args)
    ]
    return codegen_triton(KernelSpec(body, tuple(named), tuple(sizes)), "kernel")


def run(kernel, *args):
    """Interpret the kernel on these tensors."""
    interpreted(kernel)(*args)


def assemble(kernel, aligned=True):
    """PTX of the kernel for every target; checks the parameters of the entry point."""
    pointers = [i for i, kind in enumerate(kernel.signature.values()) if kind.startswith("*")]
    texts = []
    for target in TARGETS:
        compiled = build(kernel, target, pointers if aligned else ())
        ptx = compiled.asm["ptx"]
        assert f".target sm_{target.arch}" in ptx and compiled.asm["cubin"][:4] == b"\x7fELF"
        head = ptx[ptx.index(".entry") :].split(")")[0]
        assert head.count(".param") == len(kernel.signature) + 2
        texts.append(ptx)
    return texts


def same(actual, expected, **tolerance):
    torch.testing.assert_close(actual, expected, equal_nan=True, **tolerance)
