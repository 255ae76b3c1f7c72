"""CPython's two compressed side tables of a code object: exception table and location table.

Formats: ``Objects/exception_handling_notes.txt`` and ``Objects/locations.md`` (3.13:
``InternalDocs``) of CPython.  All offsets are in code units (2 bytes).
"""

from __future__ import annotations

from collections.abc import Iterable

from .instruction import Positions

#: (start, end, target, depth, lasti)
Entry = tuple[int, int, int, int, bool]


def exception_entries(table: bytes) -> list[Entry]:
    """Decode ``co_exceptiontable``."""
    numbers: list[int] = []
    value = 0
    for byte in table:
        value = value << 6 | byte & 63
        if not byte & 64:
            numbers.append(value)
            value = 0
    return [
        (start, start + size, target, depth >> 1, bool(depth & 1))
        for start, size, target, depth in zip(*[iter(numbers)] * 4, strict=True)
    ]


def exception_table(entries: Iterable[Entry]) -> bytes:
    """Encode ``co_exceptiontable``; entries sorted by start, without overlap."""
    out = bytearray()
    for start, end, target, depth, lasti in entries:
        first = len(out)
        for number in (start, end - start, target, depth << 1 | lasti):
            shift = max(number.bit_length() - 1, 0) // 6 * 6
            while shift:
                out.append(number >> shift & 63 | 64)
                shift -= 6
            out.append(number & 63)
        out[first] |= 128
    return bytes(out)


def location_table(runs: Iterable[tuple[Positions | None, int]], first_line: int) -> bytes:
    """Encode ``co_linetable`` for runs of (positions, code units)."""
    out = bytearray()
    line = first_line
    for positions, units in runs:
        while units > 0:
            size = min(units, 8)
            line = _location(out, positions, size, line)
            units -= size
    return bytes(out)


def _location(out: bytearray, positions: Positions | None, size: int, line: int) -> int:
    """Append one entry; returns the line the next one counts from."""
    start = None if positions is None else positions[0]
    if positions is None or start is None:
        out.append(0x80 | 15 << 3 | size - 1)
        return line
    _, end, column, end_column = positions
    delta = start - line
    end = start if end is None else end
    if column is None and end_column is None and end == start:
        out.append(0x80 | 13 << 3 | size - 1)
        _signed(out, delta)
    elif (
        column is not None
        and end_column is not None
        and end == start
        and 0 <= delta <= 2
        and column < 128
        and end_column < 128
    ):
        if delta == 0 and column < 80 and 0 <= end_column - column < 16:
            out.append(0x80 | column >> 3 << 3 | size - 1)
            out.append((column & 7) << 4 | end_column - column)
        else:
            out.append(0x80 | 10 + delta << 3 | size - 1)
            out += bytes((column, end_column))
    else:
        out.append(0x80 | 14 << 3 | size - 1)
        _signed(out, delta)
        _unsigned(out, end - start)
        _unsigned(out, 0 if column is None else column + 1)
        _unsigned(out, 0 if end_column is None else end_column + 1)
    return start


def _unsigned(out: bytearray, number: int) -> None:
    while number > 63:
        out.append(number & 63 | 64)
        number >>= 6
    out.append(number)


def _signed(out: bytearray, number: int) -> None:
    _unsigned(out, -number << 1 | 1 if number < 0 else number << 1)
