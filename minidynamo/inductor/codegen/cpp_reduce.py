"""The variables of a reduction in C++: their declaration, update, and how partial results are
combined.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from minidynamo.inductor.codegen.code import Code
from minidynamo.inductor.codegen.cpp_stages import size_of
from minidynamo.inductor.codegen.cpp_vec import CTYPE, LANE_TYPE, SCALAR, literal, operation
from minidynamo.inductor.symbolic import contiguous_strides, dot, product, symbol_expr

if TYPE_CHECKING:
    from minidynamo.inductor.codegen.cpp import CppKernel

# A partial sum is moved on after so many additions, so that the error does not grow with the
# length.
FLUSH_EVERY = 64


class Accumulator:
    """The variables of one reduction: lanes while walking, a number (or, by columns, lanes)
    afterwards.
    """

    _OPS = {"sum": "Add", "prod": "Mul", "max": "Max", "min": "Min", "any": "Or", "all": "And"}

    def __init__(self, kernel: CppKernel, position: int) -> None:
        self.kernel = kernel
        self.position = position
        node = kernel.nodes[position]
        assert isinstance(node.value, str)
        self.kind = node.value
        self.operand = node.args[0]
        self.dtype = kernel.nodes[self.operand].dtype
        self.is_arg = self.kind.startswith("arg")
        self.by_column = kernel.is_vec[position]
        self.is_lanes = kernel.inner_vec or self.by_column
        length = product(size_of(s) for s in kernel.reduces)
        self.index_type = "i32" if isinstance(length, int) and length < 1 << 31 else "i64"
        self.cascades = (
            self.kind == "sum"
            and self.dtype.is_floating_point
            and (not isinstance(length, int) or length > 2 * FLUSH_EVERY * 16)
        )

    @property
    def code(self) -> Code:
        return self.kernel.code

    @property
    def ctype(self) -> str:
        return LANE_TYPE[self.dtype] if self.is_lanes else CTYPE[self.dtype]

    @property
    def type(self) -> str:
        if self.is_arg:
            lanes = "N" if self.is_lanes else "2"
            largest = "true" if self.kind == "argmax" else "false"
            return f"Extreme<{LANE_TYPE[self.dtype]}, {self.index_type}, {lanes}, {largest}>"
        return f"V<{self.ctype}, N>" if self.is_lanes else self.ctype

    def identity(self, lanes: bool) -> str:
        value: float = {"sum": 0, "prod": 1, "any": 0, "all": 1}.get(self.kind, 0)
        if self.kind in ("max", "min"):
            value = _lowest(self.dtype) if self.kind == "max" else _highest(self.dtype)
        if self.dtype == torch.bool and lanes:
            return f"splat<N>((i32){-1 if value else 0})"
        text = literal(value, self.dtype)
        return f"splat<N>({text})" if lanes else text

    def both(self, a: str, b: str) -> str:
        if self.is_lanes:
            return f"{self._OPS[self.kind]}::both({a}, {b})"
        row = {"sum": "{0} + {1}", "prod": "{0} * {1}", "any": "{0} | {1}", "all": "{0} & {1}"}
        if self.kind in row:
            return row[self.kind].format(a, b)
        return operation(
            SCALAR, "maximum" if self.kind == "max" else "minimum", [a, b], self.dtype, self.ctype
        )

    def declare(self) -> None:
        """The running values; the result is declared outside by `_result`."""
        count = self.kernel.unroll
        if self.is_arg:
            self.code.line(f"{self.type} acc{self.position}[{count}];")
            return
        identity = self.identity(self.is_lanes)
        values = ", ".join([identity] * count)
        self.code.line(f"{self.type} acc{self.position}[{count}] = {{{values}}};")
        if self.cascades:
            self.code.line(f"{self.type} total{self.position} = {identity};")
            if not any(a.cascades for a in self._earlier()):
                self.code.line("int steps = 0;")

    def _earlier(self) -> list[Accumulator]:
        return [a for a in self.kernel.walk_accumulators if a.position < self.position]

    def update(self) -> None:
        k = self.kernel
        acc = f"acc{self.position}[u]"
        if self.is_arg:
            self._update_extreme(acc)
        elif self.is_lanes:
            value = k.lanes(self.operand)
            if k.inner_vec:
                value = f"only(w, {value}, {self.identity(True)})"
            self.code.line(f"{acc} = {self.both(acc, value)};")
        else:
            self.code.line(f"{acc} = {self.both(acc, f'v{self.operand}')};")

    def _update_extreme(self, acc: str) -> None:
        k = self.kernel
        strides = contiguous_strides([size_of(s) for s in k.reduces])
        where = dot([symbol_expr(s) for s in k.reduces], strides)
        if self.is_lanes:
            index = (
                k.index_vector(where, self.index_type)
                if k.inner_vec
                else f"splat<N>(({self.index_type}){k.index(where)})"
            )
            value, valid = k.lanes(self.operand), "first_lanes<N>(w)"
        else:
            index = f"splat<2>(({self.index_type}){k.index(where)})"
            value, valid = (
                f"splat<2>(({LANE_TYPE[self.dtype]})v{self.operand})",
                "first_lanes<2>(All{})",
            )
        self.code.line(f"{acc}.take({value}, {index}, {valid});")

    def flush(self) -> str:
        total, acc = f"total{self.position}", f"acc{self.position}"
        zero = self.identity(self.is_lanes)
        moves = [f"{total} += {acc}[{u}]; {acc}[{u}] = {zero};" for u in range(self.kernel.unroll)]
        return " ".join(moves)

    def _merged(self) -> str:
        """Text that leaves the walk's value in acc[0]."""
        acc = f"acc{self.position}"
        count = self.kernel.unroll
        if self.is_arg:
            return " ".join(f"{acc}[0].merge({acc}[{u}]);" for u in range(1, count))
        text = " ".join(
            f"{acc}[0] = {self.both(f'{acc}[0]', f'{acc}[{u}]')};" for u in range(1, count)
        )
        return text + (f" {acc}[0] = {acc}[0] + total{self.position};" if self.cascades else "")

    def _result(self, value: str) -> str:
        """The reduction's value from the accumulated lanes."""
        if self.is_arg:
            if self.by_column:
                return f"convert<i64>({value}.index)"
            return f"{value}.fold()"
        if self.is_lanes and not self.by_column:
            folded = f"fold<{self._OPS[self.kind]}>({value})"
            return f"{folded} != 0" if self.dtype == torch.bool else folded
        return value

    def result_type(self) -> str:
        dtype = self.kernel.nodes[self.position].dtype
        return f"V<{LANE_TYPE[dtype]}, N>" if self.by_column else CTYPE[dtype]

    def declare_result(self) -> None:
        self.code.line(f"{self.result_type()} v{self.position};")

    def finish(self) -> None:
        merged = self._merged()
        if merged:
            self.code.line(merged)
        self.code.line(f"v{self.position} = {self._result(f'acc{self.position}[0]')};")

    # a walk in chunks
    def declare_parts(self, count: int) -> None:
        self.code.line(f"{self.type} part{self.position}[{count}];")

    def save_part(self) -> None:
        merged = self._merged()
        if merged:
            self.code.line(merged)
        self.code.line(f"part{self.position}[chunk] = acc{self.position}[0];")

    def combine_parts(self, count: int) -> None:
        part = f"part{self.position}"
        merge = (
            f"{part}[0].merge({part}[i]);"
            if self.is_arg
            else f"{part}[0] = {self.both(f'{part}[0]', f'{part}[i]')};"
        )
        self.code.line(f"for (int i = 1; i < {count}; i++) {merge}")
        self.code.line(f"v{self.position} = {self._result(f'{part}[0]')};")


def _lowest(dtype: torch.dtype) -> float:
    if dtype == torch.bool:
        return 0
    return float("-inf") if dtype.is_floating_point else torch.iinfo(dtype).min


def _highest(dtype: torch.dtype) -> float:
    if dtype == torch.bool:
        return 1
    return float("inf") if dtype.is_floating_point else torch.iinfo(dtype).max
