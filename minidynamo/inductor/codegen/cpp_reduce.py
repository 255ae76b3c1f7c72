"""The variables of a reduction in C++: their declaration, update, and how partial results combine.

There are three ways to accumulate: along a row in `unroll` vectors that are folded to a number at
its end, by columns in T vectors, each lane a result, and in a plain number.
"""

from __future__ import annotations

import torch

from minidynamo.inductor.codegen.cpp_stages import size_of
from minidynamo.inductor.codegen.cpp_values import ValuePrinter
from minidynamo.inductor.codegen.cpp_vec import (
    COMBINE,
    CTYPE,
    LANE_TYPE,
    SCALAR,
    literal,
    operation,
)
from minidynamo.inductor.symbolic import contiguous_strides, dot, product, symbol_expr

# A partial sum is moved on after so many additions, so that the error does not grow with the
# length.
FLUSH_EVERY = 64
_NUMBERS = {"sum": "{0} + {1}", "prod": "{0} * {1}", "any": "{0} | {1}", "all": "{0} & {1}"}
_ROW, _COLUMN, _NUMBER = "row", "column", "number"


class Accumulator:
    """One reduction of a walk. Texts end with their semicolons; `a` is the running value's name."""

    def __init__(self, values: ValuePrinter, position: int, unroll: int) -> None:
        self.values = values
        self.position = position
        self.unroll = unroll
        node = values.nodes[position]
        assert isinstance(node.value, str)
        self.kind = node.value
        self.operand = node.args[0]
        self.dtype = values.nodes[self.operand].dtype
        self.result_dtype = node.dtype
        self.is_arg = self.kind.startswith("arg")
        self.mode = (
            _ROW if not values.by_column else _COLUMN if values.is_vec[position] else _NUMBER
        )
        self.a = f"acc{position}"
        length = product(size_of(s) for s in values.reduces)
        fits = length < 1 << 31 if isinstance(length, int) else values.is_small
        self.index_type = "i32" if fits else "i64"
        own = length if isinstance(length, int) else 1 << 40
        if self.mode == _ROW:
            own //= 16
        is_float_sum = self.kind == "sum" and self.dtype.is_floating_point
        self.cascades = is_float_sum and own > 2 * FLUSH_EVERY
        # So long that the total moves on as well.
        self.is_long = is_float_sum and own > 4 * FLUSH_EVERY**2

    # -- types and identities ----------------------------------------------------------------------
    @property
    def is_lanes(self) -> bool:
        return self.mode != _NUMBER

    @property
    def type(self) -> str:
        lane = LANE_TYPE[self.dtype]
        if self.is_arg:
            largest = "true" if self.kind == "argmax" else "false"
            lanes = "N" if self.is_lanes else "2"
            return f"Extreme<{lane}, {self.index_type}, {lanes}, {largest}>"
        return f"V<{lane}, N>" if self.is_lanes else CTYPE[self.dtype]

    @property
    def identity(self) -> str:
        value: float = {"prod": 1, "all": 1}.get(self.kind, 0)
        if self.kind in ("max", "min"):
            value = _bound(self.dtype, self.kind == "min")
        if not self.is_lanes:
            return literal(value, self.dtype)
        if self.dtype == torch.bool:
            return f"splat<N>((i32){-1 if value else 0})"
        return f"splat<N>({literal(value, self.dtype)})"

    def both(self, left: str, right: str) -> str:
        """Two partial values combined."""
        if self.is_lanes:
            return f"{COMBINE[self.kind]}::both({left}, {right})"
        if self.kind in _NUMBERS:
            return _NUMBERS[self.kind].format(left, right)
        name = "maximum" if self.kind == "max" else "minimum"
        return operation(SCALAR, name, [left, right], self.dtype, CTYPE[self.dtype])

    def _emit(self, statement: str) -> None:
        if self.mode == _COLUMN:
            self.values.for_columns(statement)
        else:
            self.values.code.line(statement)

    @property
    def _at(self) -> str:
        """The running value in a loop's body."""
        return {_ROW: f"{self.a}[u]", _COLUMN: f"{self.a}[t]", _NUMBER: self.a}[self.mode]

    @property
    def _count(self) -> str:
        return {_ROW: f"[{self.unroll}]", _COLUMN: "[T]", _NUMBER: ""}[self.mode]

    @property
    def _per_column(self) -> str:
        return "[t]" if self.mode == _COLUMN else ""

    # -- one walk ----------------------------------------------------------------------------------
    def declare_result(self) -> None:
        """The variable for the reduction's value, which outlives the walk."""
        if self.mode == _COLUMN:
            self.values.code.line(f"V<{LANE_TYPE[self.result_dtype]}, N> v{self.position}[T];")
        else:
            self.values.code.line(f"{CTYPE[self.result_dtype]} v{self.position};")

    def declare(self) -> None:
        """The running values."""
        line = self.values.code.line
        line(f"{self.type} {self.a}{self._count};")
        if not self.is_arg and self.mode == _ROW:
            for u in range(self.unroll):
                line(f"{self.a}[{u}] = {self.identity};")
        elif not self.is_arg:
            self._emit(f"{self._at} = {self.identity};")
        for name in self._totals():
            line(f"{self.type} {name}{self.position}{'[T]' if self.mode == _COLUMN else ''};")
            self._emit(f"{name}{self.position}{self._per_column} = {self.identity};")

    def _totals(self) -> list[str]:
        """Where partial sums are moved to."""
        return ["total", "grand"][: self.cascades + self.is_long]

    def update(self) -> None:
        """Take in the operand."""
        if self.is_arg:
            self._update_extreme()
            return
        value = self.values.lanes(self.operand) if self.is_lanes else f"v{self.operand}"
        if self.mode == _ROW:
            value = f"only(w, {value}, {self.identity})"
        self._emit(f"{self._at} = {self.both(self._at, value)};")

    def _update_extreme(self) -> None:
        values = self.values
        strides = contiguous_strides([size_of(s) for s in values.reduces])
        where = dot([symbol_expr(s) for s in values.reduces], strides)
        if self.mode == _ROW:
            index = values.index_vector(where, self.index_type)
        else:
            lanes = "N" if self.is_lanes else "2"
            index = f"splat<{lanes}>(({self.index_type}){values.index(where)})"
        if self.is_lanes:
            taken = f"{values.lanes(self.operand)}, {index}, first_lanes<N>(w)"
        else:
            operand = f"splat<2>(({LANE_TYPE[self.dtype]})v{self.operand})"
            taken = f"{operand}, {index}, first_lanes<2>(All{{}})"
        self._emit(f"{self._at}.take({taken});")

    def flush(self) -> str:
        """Move partial sums to the total."""
        total = f"total{self.position}"
        if self.mode != _ROW:
            return self._moved(f"{total}{self._per_column}", self._at)
        return " ".join(self._moved(total, f"{self.a}[{u}]") for u in range(self.unroll))

    def flush_total(self) -> str:
        """Move the total of partial sums on."""
        column = self._per_column
        return self._moved(f"grand{self.position}{column}", f"total{self.position}{column}")

    def _moved(self, target: str, source: str) -> str:
        loop = "for (int t = 0; t < T; t++) " if self.mode == _COLUMN else ""
        return f"{loop}{{ {target} += {source}; {source} = {self.identity}; }}"

    def _merge(self) -> str:
        """Leave the walk's value in one place; returns its name."""
        place = f"{self.a}[0]" if self.mode == _ROW else self._at
        if self.mode == _ROW:
            for u in range(1, self.unroll):
                self._emit(self._combined(place, f"{self.a}[{u}]"))
        for name in self._totals():
            self._emit(f"{place} = {place} + {name}{self.position}{self._per_column};")
        return place

    def _combined(self, place: str, other: str) -> str:
        if self.is_arg:
            return f"{place}.merge({other});"
        return f"{place} = {self.both(place, other)};"

    def _result(self, place: str) -> str:
        if self.is_arg:
            return f"convert<i64>({place}.index)" if self.mode == _COLUMN else f"{place}.fold()"
        if self.mode == _ROW:
            folded = f"fold<{COMBINE[self.kind]}>({place})"
            return f"{folded} != 0" if self.dtype == torch.bool else folded
        return place

    def finish(self) -> None:
        """Give the result its value."""
        place = self._merge()
        self._emit(f"v{self.position}{self._per_column} = {self._result(place)};")

    # -- a walk in chunks --------------------------------------------------------------------------
    def declare_parts(self, count: int) -> None:
        """Memory for the chunks' values."""
        columns = "[T]" if self.mode == _COLUMN else ""
        self.values.code.line(f"{self.type} part{self.position}[{count}]{columns};")

    def save_part(self) -> None:
        """Keep one chunk's value."""
        place = self._merge()
        self._emit(f"part{self.position}[chunk]{self._per_column} = {place};")

    def combine_parts(self, count: int) -> None:
        """The result from all chunks, in order."""
        part, column = f"part{self.position}", self._per_column
        place = f"{part}[0]{column}"
        combined = self._combined(place, f"{part}[i]{column}")
        self._emit(f"for (int i = 1; i < {count}; i++) {combined}")
        self._emit(f"v{self.position}{column} = {self._result(place)};")


def _bound(dtype: torch.dtype, largest: bool) -> float:
    if dtype == torch.bool:
        return int(largest)
    if dtype.is_floating_point:
        return float("inf") if largest else float("-inf")
    return torch.iinfo(dtype).max if largest else torch.iinfo(dtype).min
