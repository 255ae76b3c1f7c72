"""Lowerings from aten operators to loop IR, one table (`registry.LOWERINGS`) filled by the modules
of this package.
"""

from minidynamo.inductor.lowering import (
    activations,
    composites,
    convolution,
    factory,
    gather,
    indexing,
    linear,
    losses,
    max_pooling,
    pointwise,
    pointwise_table,
    pooling,
    random,
    reductions,
    scans,
    scatter,
    searching,
    special,
    upsampling,
    views,
)

__all__ = [
    "activations",
    "composites",
    "convolution",
    "factory",
    "gather",
    "indexing",
    "linear",
    "losses",
    "max_pooling",
    "pointwise",
    "pointwise_table",
    "pooling",
    "random",
    "reductions",
    "scatter",
    "scans",
    "searching",
    "special",
    "upsampling",
    "views",
]
