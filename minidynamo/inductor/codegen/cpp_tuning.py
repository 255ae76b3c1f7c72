"""What the printer of C++ kernels may choose."""

from __future__ import annotations

from dataclasses import dataclass

# Accumulators side by side along a row, which hide the latency of an addition; vectors of columns.
UNROLL = 4
COLUMNS = 4


@dataclass(frozen=True, slots=True)
class Tuning:
    """What rules of thumb decide, and `max_autotune` by measuring.

    Attributes:
        vector: 0 for the loop that seems best to vectorise, 1 for the next.
        unroll, columns: accumulators along a row, vectors of columns side by side.
        keeps_rows: whether what is dear and wanted in two walks is kept.
    """

    vector: int = 0
    unroll: int = UNROLL
    columns: int = COLUMNS
    keeps_rows: bool = True


USUAL = Tuning()
