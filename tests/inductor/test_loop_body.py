"""Kernel bodies: tracing, reading order, levels, passes."""

import torch

from minidynamo.inductor.codegen.kernel import KernelArg, KernelSpec
from minidynamo.inductor.loop_body import BodyBuilder, passes
from minidynamo.inductor.symbolic import ValueRef, loop_symbol, symbol_expr

X, R = loop_symbol("x0", 64), loop_symbol("r0", 32)
x, r = symbol_expr(X), symbol_expr(R)
F32, BF16 = torch.float32, torch.bfloat16


def softmax_body(dtype=F32):
    b = BodyBuilder([X], [R])
    value = b.load("a0", x * 32 + r, dtype)
    shifted = b.op("sub", value, b.reduction("max", value))
    weight = b.op("exp", shifted)
    b.store("a1", x * 32 + r, b.op("truediv", weight, b.reduction("sum", weight)), dtype)
    return b.finish()


def test_text():
    assert softmax_body().text().splitlines() == [
        "for [x0<64] reduce [r0<32]",
        "  %0 = load a0[(r0 + 32*x0)]  float32",
        "  %1 = reduction max %0  float32",
        "  %2 = sub %0 %1  float32",
        "  %3 = exp %2  float32",
        "  %4 = reduction sum %3  float32",
        "  %5 = truediv %3 %4  float32",
        "  %6 = store a1[(r0 + 32*x0)] %5  float32",
    ]


def test_levels_and_passes():
    body = softmax_body()
    assert body.levels() == [True, False, True, True, False, True, True]
    walks = [p.nodes for p in passes(body) if p.inner]
    assert walks == [[0, 1], [0, 2, 3, 4], [0, 2, 3, 5, 6]]


def test_sixteen_bit_floats_are_widened():
    ops = [(node.op, node.dtype) for node in softmax_body(BF16).nodes]
    assert ops[:2] == [("load", BF16), ("cast", F32)]
    assert ops[-2:] == [("cast", BF16), ("store", BF16)]


def test_equal_values_are_computed_once_and_dead_ones_not_at_all():
    b = BodyBuilder([X])
    first = b.op("exp", b.load("a0", x, F32))
    again = b.op("exp", b.load("a0", x, F32))
    b.op("sin", first)
    assert first == again
    b.store("a1", x, first, F32)
    assert [node.op for node in b.finish().nodes] == ["load", "exp", "store"]


def test_constants_fold_through_casts():
    b = BodyBuilder([X])
    value = b.cast(b.constant(3, torch.int64), F32)
    assert b.node(value).op == "constant" and b.node(value).value == 3.0


def test_negative_zero_and_nan_constants_stay_apart():
    b = BodyBuilder([X])
    assert b.constant(0.0, F32) != b.constant(-0.0, F32)
    assert b.constant(float("nan"), F32) == b.constant(float("nan"), F32)


def test_masks_reach_the_loads_inside():
    b = BodyBuilder([X])
    mask = b.op("lt", b.index_expr(x), b.constant(3, torch.int64))
    with b.masked(mask):
        inside = b.load("a0", x, F32)
    outside = b.load("a0", x, F32)
    assert b.node(inside).args == (mask,) and b.node(outside).args == ()


def test_indirect_indices_are_operands():
    b = BodyBuilder([X])
    row = b.load("a0", x, torch.int64)
    value = b.load("a1", b.indirect(row, 10) * 32, F32)
    b.store("a2", x, value, F32)
    body = b.finish()
    (load,) = [node for node in body.nodes if node.buffer == "a1"]
    (ref,) = load.index.value_refs()
    assert body.nodes[ref].op == "where" and ref in load.operands()
    assert any(isinstance(atom, ValueRef) and atom.size == 10 for atom in load.index.atoms())


def test_the_key_is_the_content():
    args = (KernelArg("a0", F32, 2048, "in"), KernelArg("a1", F32, 2048, "out"))
    first = KernelSpec(softmax_body(), args, origins=("one",))
    second = KernelSpec(softmax_body(), args, origins=("two",))
    other = KernelSpec(softmax_body(BF16), args)
    assert first.key == second.key != other.key
