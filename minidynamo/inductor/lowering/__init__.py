"""Lowerings from aten operators to loop IR, one table (`registry.LOWERINGS`) filled by the modules
of this package.
"""

from minidynamo.inductor.lowering import (
    composites,
    convolution,
    factory,
    indexing,
    linear,
    pointwise,
    pointwise_table,
    reductions,
    views,
)

__all__ = [
    "composites",
    "convolution",
    "factory",
    "indexing",
    "linear",
    "pointwise",
    "pointwise_table",
    "reductions",
    "views",
]
