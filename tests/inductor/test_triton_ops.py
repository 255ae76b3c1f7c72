"""Every operation and reduction in Triton: interpreted against torch, and compiled for GPUs."""

import math

import pytest
import torch
from triton_testing import assemble, builder, kernel_of, run, same

import minidynamo
from minidynamo.inductor.codegen.triton_ops import TABLE, literal
from minidynamo.inductor.ops import OPS, REDUCTIONS
from minidynamo.inductor.symbolic import symbol_expr

FLOATS = [torch.float32, torch.float64]
INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8]
DTYPES = [*FLOATS, *INTEGERS, torch.bool]
N = 40


def shift_reference(function):
    def shifted(a, b):
        bits = 8 * a.element_size()
        inside = (b >= 0) & (b < bits)
        outside = torch.zeros_like(a)
        if function is torch.bitwise_right_shift and a.dtype.is_signed:
            outside = torch.where(a < 0, -1, 0).to(a.dtype)
        return torch.where(inside, function(a, b.clamp(0, bits - 1)), outside)

    return shifted


REFERENCE = {
    **{
        name: getattr(torch, name)
        for name in OPS
        if OPS[name].kind == "pointwise" and hasattr(torch, name)
    },
    "truediv": torch.true_divide,
    "truncdiv": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "floordiv": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "lshift": shift_reference(torch.bitwise_left_shift),
    "rshift": shift_reference(torch.bitwise_right_shift),
    "fma": lambda a, b, c: (a.double() * b.double() + c.double()).to(a.dtype),
    "lgamma": torch.lgamma,
    "maximum": torch.maximum,
    "where": torch.where,
}
SPECIAL_FLOATS = [0.0, -0.0, math.inf, -math.inf, math.nan, 0.5, -1.5, 2.5, 1e30, -1e-30]


def operands(dtype):
    torch.manual_seed(0)
    if dtype == torch.bool:
        return [torch.rand(N) > 0.5 for _ in range(3)]
    if dtype.is_floating_point:
        made = [torch.randn(N, dtype=dtype) * 2 for _ in range(3)]
        made[0][:10] = made[1][5:15] = torch.tensor(SPECIAL_FLOATS, dtype=dtype)
        return made
    low = torch.iinfo(dtype).min
    made = [torch.randint(max(low, -100), 100, (N,), dtype=dtype) for _ in range(3)]
    made[0][0] = low
    made[1] = torch.where(made[1] == 0, 3, made[1])
    return made


def operations(dtype):
    """Operations that the table has for operands of this dtype."""
    domains = {"any"}
    domains |= {"float", "number"} if dtype.is_floating_point else {"int"}
    if dtype != torch.bool:
        domains.add("number")
    without = {"cast", "bitcast"}
    if dtype == torch.bool:
        without |= {"floordiv", "truncdiv", "lshift", "rshift"}
    return [
        op
        for op in OPS.values()
        if op.kind == "pointwise" and op.domain in domains and op.name not in without
    ]


def body_of_operations(dtype):
    """One kernel with a store for every operation; the expected results."""
    b = builder([N])
    index = symbol_expr(b.iters[0])
    values = [b.load(f"a{i}", index, dtype) for i in range(3)]
    inputs = operands(dtype)
    condition = b.op("lt", values[0], values[1])
    args, expected = [(dtype, N, "in")] * 3, []
    for op in operations(dtype):
        where = op.name == "where"
        used = [condition, *values[:2]] if where else values[: op.arity]
        result = b.op(op.name, *used)
        out = b.dtype(result)
        b.store(f"a{len(args)}", index, result, out)
        args.append((out, N, "out"))
        given = [inputs[0] < inputs[1], *inputs[:2]] if where else inputs[: op.arity]
        expected.append((op.name, REFERENCE[op.name](*given)))
    return b.finish(), args, inputs, expected


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_operations(dtype):
    body, args, inputs, expected = body_of_operations(dtype)
    kernel = kernel_of(body, args)
    outputs = [torch.empty(N, dtype=out) for out, _, role in args if role == "out"]
    run(kernel, *inputs, *outputs)
    for (name, reference), output in zip(expected, outputs, strict=True):
        try:
            same(output, reference.to(output.dtype), rtol=2e-6, atol=1e-30)
        except AssertionError as error:
            raise AssertionError(f"{name} of {dtype}: {error}") from error
        if name in ("neg", "copysign"):
            signs = [value.nan_to_num().signbit() for value in (output, reference)]
            assert torch.equal(*signs)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_operations_compile(dtype):
    body, args, _, _ = body_of_operations(dtype)
    assemble(kernel_of(body, args))


def test_table_is_complete():
    special = {"cast", "bitcast"}
    assert set(TABLE) == {name for name, op in OPS.items() if op.kind == "pointwise"} - special


def cast_body():
    """From every dtype to every other, in one kernel."""
    sources = [*DTYPES, torch.float16, torch.bfloat16]
    b = builder([N])
    index = symbol_expr(b.iters[0])
    args = [(dtype, N, "in") for dtype in sources]
    pairs = []
    for i, source in enumerate(sources):
        value = b.load(f"a{i}", index, source)
        for target in sources:
            b.store(f"a{len(args)}", index, value, target)
            args.append((target, N, "out"))
            pairs.append((i, target))
    return b.finish(), args, pairs


def test_casts():
    body, args, pairs = cast_body()
    torch.manual_seed(1)
    base = torch.randn(N) * 20
    inputs = []
    for dtype, _, role in args:
        if role == "in":
            unsigned = dtype == torch.uint8
            inputs.append((base.abs() if unsigned else base).to(dtype))
    inputs[-1][:4] = torch.tensor([math.inf, -math.inf, math.nan, 1e-40])
    outputs = [torch.empty(N, dtype=dtype) for dtype, _, role in args if role == "out"]
    run(kernel_of(body, args), *inputs, *outputs)
    for (i, target), output in zip(pairs, outputs, strict=True):
        source = inputs[i].clone()
        if source.dtype.is_floating_point and not target.is_floating_point:
            finite = source.isfinite() | torch.tensor(target == torch.bool)
            source, output = source[finite], output[finite]
            if target == torch.uint8:  # negative numbers have no meaning there
                source, output = source[source >= 0], output[source >= 0]
        same(output, source.to(target), rtol=0, atol=0)


def test_casts_compile():
    body, args, _ = cast_body()
    assemble(kernel_of(body, args))


def test_bfloat16_rounds_to_even_and_keeps_nan():
    b = builder([6])
    index = symbol_expr(b.iters[0])
    b.store("a1", index, b.load("a0", index, torch.float32), torch.bfloat16)
    kernel = kernel_of(b.finish(), [(torch.float32, 6, "in"), (torch.bfloat16, 6, "out")])
    bits = torch.tensor([0x3F808000, 0x3F818000, 0x3FFFFFFF, 0x7F7FFFFF, 0x7FC00001, 1])
    x, out = bits.to(torch.int32).view(torch.float32), torch.empty(6, dtype=torch.bfloat16)
    run(kernel, x, out)
    same(out, x.to(torch.bfloat16), rtol=0, atol=0)


def test_constants():
    values = [0.1, -0.0, math.inf, -math.inf, math.nan, 1e-45, 3.4e38]
    b = builder([4])
    index = symbol_expr(b.iters[0])
    args = []
    for value in values:
        b.store(f"a{len(args)}", index, b.constant(value, torch.float32), torch.float32)
        args.append((torch.float32, 4, "out"))
    for number in (-(1 << 63), (1 << 63) - 1, 1 << 40):
        b.store(f"a{len(args)}", index, b.constant(number, torch.int64), torch.int64)
        args.append((torch.int64, 4, "out"))
        values.append(number)
    outputs = [torch.empty(4, dtype=dtype) for dtype, _, _ in args]
    kernel = kernel_of(b.finish(), args)
    run(kernel, *outputs)
    for value, output in zip(values, outputs, strict=True):
        expected = torch.full((4,), value, dtype=output.dtype)
        same(output, expected, rtol=0, atol=0)
        if output.is_floating_point():
            assert torch.equal(output.signbit(), expected.signbit())
    assemble(kernel)
    assert literal(True, torch.bool) == "True"


# -- reductions ----------------------------------------------------------------------------------

REDUCTION_DTYPES = {
    "any": [torch.bool],
    "all": [torch.bool],
    "sum": [torch.float32, torch.float64, torch.int64],
    "prod": [torch.float32, torch.int64],
}


def reduce_reference(name, x):
    if name in ("any", "all"):
        return getattr(x, name)(1)
    if name in ("max", "min"):
        return getattr(x, "a" + name)(1)
    return getattr(x, name)(1)


def reduction_body(rows, length, only=DTYPES):
    """One kernel with every reduction of every dtype (of `only`) that it is for."""
    b = builder([rows], [length])
    x, r = map(symbol_expr, (*b.iters, *b.reduces))
    cases = [
        (name, dtype)
        for name in REDUCTIONS
        for dtype in REDUCTION_DTYPES.get(name, [*FLOATS, torch.int32, torch.uint8, torch.bool])
        if dtype in only and not (name.startswith("arg") and dtype == torch.bool)
    ]
    dtypes = list(dict.fromkeys(dtype for _, dtype in cases))
    args = [(dtype, rows * length, "in") for dtype in dtypes]
    loads = {d: b.load(f"a{i}", x * length + r, d) for i, d in enumerate(dtypes)}
    for name, dtype in cases:
        value = b.reduction(name, loads[dtype])
        b.store(f"a{len(args)}", x, value, b.dtype(value))
        args.append((b.dtype(value), rows, "out"))
    return b.finish(), args, cases, dtypes


def reduction_inputs(dtypes, rows, length):
    torch.manual_seed(2)
    inputs = []
    for dtype in dtypes:
        if dtype == torch.bool:
            x = torch.rand(rows, length) > 0.5
            x[0], x[1] = True, False
        elif dtype.is_floating_point:
            x = torch.randn(rows, length, dtype=dtype)
            x[1, length // 2] = math.nan
            x[2] = -math.inf
        else:
            x = torch.randint(-3 if dtype.is_signed else 0, 4, (rows, length), dtype=dtype)
        inputs.append(x)
    return inputs


# Whole rows in a tile, a full one and one that stands over; rows in a loop.
@pytest.mark.parametrize("length", [1, 16, 37, 2500, 9000])
def test_reductions(length):
    body, args, cases, dtypes = reduction_body(5, length)
    kernel = kernel_of(body, args)
    assert ("for " in kernel.source) == (length > 8192)
    inputs = reduction_inputs(dtypes, 5, length)
    outputs = [torch.empty(5, dtype=dtype) for dtype, _, role in args if role == "out"]
    run(kernel, *inputs, *outputs)
    for (name, dtype), output in zip(cases, outputs, strict=True):
        reference = reduce_reference(name, inputs[dtypes.index(dtype)])
        same(output, reference.to(output.dtype), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("length", [37, 9000])
def test_reductions_compile(length):
    body, args, _, _ = reduction_body(5, length, [torch.float32, torch.bool, torch.int64])
    assemble(kernel_of(body, args))


@pytest.mark.parametrize("name", [n for n in REDUCTIONS if REDUCTIONS[n].identity is not None])
def test_empty_reductions(name):
    dtype = torch.bool if name in ("any", "all") else torch.float32
    b = builder([3], [0])
    x, r = map(symbol_expr, (*b.iters, *b.reduces))
    b.store("a1", x, b.reduction(name, b.load("a0", x + r, dtype)), dtype)
    out = torch.empty(3, dtype=dtype)
    kernel = kernel_of(b.finish(), [(dtype, 0, "in"), (dtype, 3, "out")])
    run(kernel, torch.empty(0, dtype=dtype), out)
    assert out.tolist() == [REDUCTIONS[name].identity] * 3


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_wrap_around(dtype):
    for value in (-2, 255, 1 << 31, -(1 << 63)):
        assert int(literal(value, dtype)) == torch.tensor(value).to(dtype).item()
    x = torch.arange(5, dtype=dtype)
    run = minidynamo.compile(lambda x: x ^ -2, options={"cpu_backend": "triton"})
    assert torch.equal(run(x), x ^ -2)
