"""Joining loop nests: bodies in, one body or None out."""

import torch

from minidynamo.inductor.fusion import join, merge_loops
from minidynamo.inductor.loop_body import BodyBuilder
from minidynamo.inductor.symbolic import loop_symbol, symbol_expr

F32 = torch.float32


def pointwise(sizes, load, store, op="exp"):
    """store[..] = op(load[..]); `load`, `store`: (buffer, strides)."""
    symbols = [loop_symbol(f"x{d}", size) for d, size in enumerate(sizes)]
    b = BodyBuilder(symbols)

    def index(strides):
        return sum(
            (symbol_expr(s) * k for s, k in zip(symbols, strides)), symbol_expr(symbols[0]) * 0
        )

    value = b.op(op, b.load(load[0], index(load[1]), F32))
    b.store(store[0], index(store[1]), value, F32)
    return b.finish()


def row_sum(rows, columns, load, store):
    x, r = loop_symbol("x0", rows), loop_symbol("r1", columns)
    b = BodyBuilder([x], [r])
    value = b.load(load, symbol_expr(x) * columns + symbol_expr(r), F32)
    b.store(store, symbol_expr(x), b.reduction("sum", value), F32)
    return b.finish()


def ops(body):
    return [node.op for node in body.nodes]


def test_chain_hands_the_value_over():
    first = pointwise((4, 8), ("in", (8, 1)), ("mid", (8, 1)))
    second = pointwise((4, 8), ("mid", (8, 1)), ("out", (8, 1)), "sin")
    assert ops(join(first, second)) == ["load", "exp", "store", "sin", "store"]


def test_reshape_between():
    first = pointwise((32,), ("in", (1,)), ("mid", (1,)))
    second = pointwise((4, 8), ("mid", (8, 1)), ("out", (8, 1)), "sin")
    joined = merge_loops(join(first, second))
    assert [s.size for s in joined.iters] == [32]


def test_transposed_consumer_follows_the_producer():
    first = pointwise((4, 8), ("in", (8, 1)), ("mid", (8, 1)))
    second = pointwise((8, 4), ("mid", (1, 8)), ("out", (4, 1)), "sin")
    joined = join(first, second)
    assert joined is not None and ops(joined).count("load") == 1


def test_shifted_reading_does_not_join():
    first = pointwise((8,), ("in", (1,)), ("mid", (1,)))
    x = loop_symbol("x0", 7)
    b = BodyBuilder([x])
    b.store("out", symbol_expr(x), b.load("mid", symbol_expr(x) + 1, F32), F32)
    assert join(first, b.finish()) is None


def test_producer_joins_a_reduction():
    first = pointwise((4, 8), ("in", (8, 1)), ("mid", (8, 1)))
    joined = join(first, row_sum(4, 8, "mid", "sums"))
    assert ops(joined) == ["load", "exp", "store", "reduction", "store"]
    assert [s.size for s in joined.reduces] == [8]


def test_rows_statistics_join_as_outer_code():
    total = row_sum(4, 8, "in", "sums")
    root = pointwise((4,), ("sums", (1,)), ("roots", (1,)), "sqrt")
    joined = join(total, root)
    assert ops(joined) == ["load", "reduction", "store", "sqrt", "store"]
    assert joined.levels()[3] is False


def test_elementwise_work_joins_as_inner_code():
    total = row_sum(6, 8, "in", "sums")
    x, y = loop_symbol("x0", 6), loop_symbol("x1", 8)
    b = BodyBuilder([x, y])
    point = symbol_expr(x) * 8 + symbol_expr(y)
    quotient = b.op("truediv", b.load("in", point, F32), b.load("sums", symbol_expr(x), F32))
    b.store("out", point, quotient, F32)
    joined = join(total, b.finish())
    assert joined is not None and ops(joined).count("load") == 1


def test_a_loop_is_cut_where_a_consumer_divides_it():
    total = row_sum(12, 8, "in", "mid")
    x, y = loop_symbol("x0", 3), loop_symbol("x1", 4)
    b = BodyBuilder([y, x])  # reads rows in another order
    value = b.load("mid", symbol_expr(x) * 4 + symbol_expr(y), F32)
    b.store("out", symbol_expr(y) * 3 + symbol_expr(x), value, F32)
    joined = join(total, b.finish())
    assert joined is not None and sorted(s.size for s in joined.iters) == [3, 4]


def test_reductions_over_different_dimensions_stay_apart():
    x, r = loop_symbol("x1", 8), loop_symbol("r0", 4)
    b = BodyBuilder([x], [r])
    b.store(
        "cols",
        symbol_expr(x),
        b.reduction("sum", b.load("in", symbol_expr(r) * 8 + symbol_expr(x), F32)),
        F32,
    )
    assert join(row_sum(4, 8, "in", "rows"), b.finish()) is None


def test_merge_loops_keeps_what_indices_need():
    body = pointwise((4, 8, 2), ("in", (16, 2, 1)), ("out", (1, 4, 32)))
    assert [s.size for s in merge_loops(body).iters] == [4, 8, 2]
    body = pointwise((4, 8, 2), ("in", (20, 2, 1)), ("out", (16, 2, 1)))
    assert [s.size for s in merge_loops(body).iters] == [4, 16]


def test_a_patch_is_copied_by_whole_rows():
    image = loop_symbol("x0", 4 * 4 * 16 * 16)
    x = symbol_expr(image)
    b = BodyBuilder([image])
    row, column, y, inside = x // 1024, (x // 256) % 4, (x // 16) % 16, x % 16
    b.store("out", x, b.load("in", row * 1024 + y * 64 + column * 16 + inside, F32), F32)
    merged = merge_loops(b.finish())
    assert [s.size for s in merged.iters] == [4, 4, 16, 16]
    assert all("//" not in str(node.index) for node in merged.nodes if node.index is not None)


def test_a_loop_is_not_cut_into_shorter_ones_than_vectors():
    whole = loop_symbol("x0", 64)
    b = BodyBuilder([whole])
    b.store("out", symbol_expr(whole), b.load("in", symbol_expr(whole) // 2, F32), F32)
    assert [s.size for s in merge_loops(b.finish()).iters] == [64]


def test_points_that_share_an_index_are_not_identified():
    """Where b reads a's rows two by two, a would store every second row if joined by that."""
    rows, pair = loop_symbol("x0", 8), loop_symbol("x1", 2)
    at, which = symbol_expr(rows), symbol_expr(pair)
    a = BodyBuilder([rows, pair])
    a.store("u", at * 2 + which, a.load("t", at * 2, F32), F32)
    b = BodyBuilder([pair, rows])
    b.store("v", at * 2 + which, b.load("t", at // 2 * 4, F32), F32)
    merged = join(a.finish(), b.finish())
    symbols = {s.name for s in (merged.iters if merged else ())}
    for node in merged.stores() if merged else ():
        assert {s.name for s in node.index.symbols()} == symbols


def test_rows_and_columns_of_a_square_matrix_stay_apart():
    x, r = loop_symbol("x0", 64), loop_symbol("r0", 64)

    def sums(index, store):
        b = BodyBuilder([x], [r])
        b.store(store, symbol_expr(x), b.reduction("sum", b.load("a", index, F32)), F32)
        return b.finish()

    rows = sums(symbol_expr(x) * 64 + symbol_expr(r), "b")
    columns = sums(symbol_expr(r) * 64 + symbol_expr(x), "c")
    below = sums(symbol_expr(x) * 64 + symbol_expr(r) + 64, "d")
    assert join(rows, columns) is None
    assert join(rows, below) is not None
