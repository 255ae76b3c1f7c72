"""Loops that are cut where tests of positions change, and bits that are moved as they are."""

import pytest
import torch
import torch.nn.functional as F
from inductor_testing import check

from minidynamo.inductor.codegen.cpp import codegen_cpp
from minidynamo.inductor.codegen.cpp_parts import parts_of, without_short_loop
from minidynamo.inductor.codegen.kernel import KernelArg, KernelSpec
from minidynamo.inductor.loop_body import BodyBuilder
from minidynamo.inductor.symbolic import as_expr, loop_symbol, symbol_expr

F32, BF16, I64 = torch.float32, torch.bfloat16, torch.int64
X = loop_symbol("x0", 100)
x = symbol_expr(X)


def body_of(value_at, dtype=F32, symbol=X):
    b = BodyBuilder([symbol])
    b.store("a1", symbol_expr(symbol), value_at(b), dtype)
    return b.finish()


def chosen(b, mask, dtype=F32):
    with b.masked(mask):
        value = b.load("a0", x, dtype)
    return b.op("where", mask, value, b.constant(1, F32))


def ops(body):
    return {node.op for node in body.nodes}


@pytest.mark.parametrize(
    "test, number, sizes",
    [
        ("lt", 30, [30, 70]),
        ("le", 30, [31, 69]),
        ("gt", 30, [31, 69]),
        ("ge", 30, [30, 70]),
        ("eq", 30, [30, 1, 69]),
        ("ne", 99, [99, 1]),
        ("lt", 0, []),
        ("ge", 100, []),
    ],
)
@pytest.mark.parametrize("sign", [1, -1])
def test_one_test_cuts_the_loop(test, number, sizes, sign):
    turned = (
        {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}.get(test, test) if sign < 0 else test
    )

    def value_at(b):
        return chosen(
            b, b.op(turned, b.index_expr(x * sign), b.index_expr(as_expr(number * sign)))
        )

    parts = parts_of(body_of(value_at), X)
    assert [symbol.size for symbol, _ in parts] == sizes
    assert all(ops(part) <= {"load", "constant", "store"} for _, part in parts)


def test_parts_write_what_the_whole_writes():
    def value_at(b):
        distance = b.op("abs", b.index_expr(x - 40))
        place = b.op("maximum", distance, b.index_expr(as_expr(7)))
        return b.load("a0", b.indirect(b.index_expr((x + 13) % 60), 60) + 0, F32), place

    def stored(b):
        value, place = value_at(b)
        return b.op("add", value, b.cast(place, F32))

    body = body_of(stored)
    places, found = [], []
    for symbol, part in parts_of(body, X):
        (load,) = part.loads()
        for i in range(symbol.size):
            found.append(int(load.index.subs({symbol: i})))
        (store,) = part.stores()
        places += [int(store.index.subs({symbol: i})) for i in range(symbol.size)]
        assert not {"abs", "maximum"} & ops(part)
    assert places == list(range(100))
    assert found == [(i + 13) % 60 for i in range(100)]


def test_what_does_not_pay_stays_whole():
    def many(b):
        value = b.constant(0.0, F32)
        for number in range(5, 95, 9):
            mask = b.op("lt", b.index_expr(x), b.index_expr(as_expr(number)))
            value = b.op("where", mask, b.load("a0", x + number, F32), value)
        return value

    assert parts_of(body_of(many), X) == []
    short = loop_symbol("x0", 20)

    def one(b):
        mask = b.op("lt", b.index_expr(symbol_expr(short)), b.index_expr(as_expr(5)))
        return b.op("where", mask, b.load("a0", symbol_expr(short), F32), b.constant(1, F32))

    assert parts_of(body_of(one, symbol=short), short) == []


def test_two_bytes_are_moved_as_they_are():
    def value_at(b):
        return chosen(b, b.op("lt", b.index_expr(x), b.index_expr(as_expr(50))), BF16)

    args = KernelArg("a0", BF16, 100, "in"), KernelArg("a1", BF16, 100, "out")
    text = codegen_cpp(KernelSpec(body_of(value_at, BF16), args), "k", 1)
    assert "from_bfloat" not in text and "BYTES / 2" in text


def test_rows_of_every_dtype():
    def fn(x):
        pads = [F.pad(x, (1, 70), value=1), F.pad(x, (-3, 5, 1, 0)), F.pad(x, (40, 0))]
        wide = torch.cat([x.flip(1), x, x[:, 5:9]], 1)
        rolled = x.roll(3, 1), x.roll((1, -2), (0, 1)), wide.roll(-70, 1)
        return *pads, wide, *rolled, x.tril(), x.triu(-40), x[:, ::2], x[:, 1::3], x.clone()

    special = [float("nan"), float("inf"), -0.0, 1e-40]
    for dtype in (F32, BF16, torch.float16, torch.float64, I64, torch.uint8, torch.bool):
        given = torch.randint(0, 2 if dtype == torch.bool else 90, (5, 67)).to(dtype)
        if dtype.is_floating_point:
            given[1, : len(special)] = torch.tensor(special).to(dtype)
        check(fn, given, rtol=0, atol=0)


def test_bits_of_nans_stay():
    bits = torch.tensor([0x7F81, 0x7FC1, 0xFFC1, 0x7F80, 0x8001, 1], dtype=torch.int32)
    given = bits.to(torch.int16).view(BF16).repeat(30)
    run = check(lambda x: (F.pad(x, (3, 40)), x.roll(5)), given)
    for made, wanted in zip(run(given), (F.pad(given, (3, 40)), given.roll(5)), strict=True):
        assert torch.equal(made.view(torch.int16), wanted.view(torch.int16))


def test_mirrors_and_tori():
    def fn(x):
        modes = ["reflect", "replicate", "circular"]
        return [F.pad(x * 2, (3, 9, 4, 1), mode=mode) + 1 for mode in modes]

    for dtype in (F32, BF16, I64):
        check(
            fn if dtype != I64 else lambda x: fn(x)[2],
            torch.arange(2 * 3 * 8 * 70).reshape(2, 3, 8, 70).to(dtype),
        )


def test_parts_copied_within_a_tensor():
    def fn(x):
        y = x + 1
        y[:, 3:40] = y[:, 10:47].clone()
        z = x * 2
        z[2:] = z[:-2].clone()
        z[:, -60:] = z[:, :60].clone()
        z[:, ::2] = z[:, 1::2].clone()
        z[:, 1:1] = z[:, 4:4].clone()
        return y, z

    check(fn, torch.randn(6, 70))


def test_logic_of_bytes():
    def fn(a, b, c):
        chosen = torch.where(a, b, ~b)
        return (
            ~a & b | c,
            a ^ b,
            a != b,
            a == b,
            chosen,
            a & (c.float() > 0),
            (~a).to(torch.uint8),
        )

    def moved(a, b):
        return F.pad(~a, (1, 70)), torch.cat([a & b, b], 1), (a | b).roll(4, 1), (a & b).sum(1)

    a, b, c = (torch.rand(5, 200) > 0.5 for _ in range(3))
    check(fn, a, b, c)
    check(moved, a, b)
    check(fn, a, b, c[:, 7:8])


def test_bytes_that_are_no_bools_count_as_true():
    a = torch.tensor([0, 1, 2, 255] * 40, dtype=torch.uint8).view(torch.bool)
    b = torch.tensor([2, 2, 0, 4] * 40, dtype=torch.uint8).view(torch.bool)
    check(lambda a, b: (a & b, ~a, a | b), a, b)


def _corners(a, b):
    low, high = torch.max(a[:, :2], b[:, :2]), torch.min(a[:, 2:], b[:, 2:])
    return high - low, a[:, 2:] > b[:, 2:], a[:, :2].flip(1) + b[:, 2:]


def _as_corners(a):
    return torch.cat((a[:, :2] - a[:, 2:], a[:, :2] + a[:, 2:]), 1)


@pytest.mark.parametrize("rows", [32, 33, 40, 47, 1000])
@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.int64, torch.uint8],
)
def test_loops_over_corners_of_boxes_are_written_out(rows, dtype):
    a, b = ((torch.randn(rows, 4) * 10).to(dtype) for _ in range(2))
    check(_corners, a, b)
    check(_as_corners, a)
    check(lambda a: F.pad(a[:, 1:3], (1, 1)) * 2 + 1, a)


def _sums_of_fields(rows, apart):
    y, x = loop_symbol("x0", rows), loop_symbol("x1", 2)
    b = BodyBuilder([y, x])
    at = symbol_expr(y) * 4 + symbol_expr(x)
    b.store("a1", at - symbol_expr(y) * (4 - apart), b.load("a0", at, F32), F32)
    return b.finish()


def test_short_loops_are_written_out_where_rows_lie_side_by_side():
    body = _sums_of_fields(100, 2)
    assert [s.name for s in without_short_loop(body).iters] == ["x0"]
    for other in (_sums_of_fields(8, 2), _sums_of_fields(100, 3)):
        assert without_short_loop(other) is other
    args = KernelArg("a0", F32, 400, "in"), KernelArg("a1", F32, 200, "out")
    assert "st_fields(a1 + 2*x0, w, " in codegen_cpp(KernelSpec(body, args), "k", 1)


@pytest.mark.parametrize("length", [31, 32, 33, 63, 96, 127, 160])
def test_last_bytes_are_repeated(length):
    # More than half of the last vector's lanes make a whole vector of pairs, and more.
    for x in (torch.rand(length) > 0.5, torch.arange(length).to(torch.uint8)):
        check(
            lambda x: (x.repeat_interleave(2), x.repeat_interleave(4), torch.stack((x, x), 1)),
            x,
        )
        check(lambda x: F.interpolate(x[None, None].float(), scale_factor=2).to(torch.uint8), x)
