"""Backends for finding out which layer is at fault: `eager` runs the captured graph as it is,
`aot_eager` runs it through AOTAutograd (functional graphs, own backward) and no further,
`aot_eager_decomp_partition` with inductor's decompositions too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..inductor.decompositions import decomposition_table
from ..utils import warn_once
from .aot_autograd import aot_autograd

__all__ = ["aot_eager", "aot_eager_decomp_partition", "eager"]


def _ignore(backend: str, mode: str | None, options: Mapping[str, Any] | None) -> None:
    if mode is not None or options is not None:
        warn_once(f"backend {backend!r} ignores mode={mode!r} and options={options!r}")


def eager(
    gm: Any,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Run the captured graph node by node, as torch would have without a compiler."""
    _ignore("eager", mode, options)
    return gm.forward


def aot_eager(
    gm: Any,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Run AOTAutograd's forward and backward graphs node by node."""
    _ignore("aot_eager", mode, options)
    return aot_autograd(gm, example_inputs, fw_compiler=lambda graph, _inputs: graph.forward)


def aot_eager_decomp_partition(
    gm: Any,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """`aot_eager` on operators decomposed as for inductor."""
    _ignore("aot_eager_decomp_partition", mode, options)
    return aot_autograd(
        gm,
        example_inputs,
        fw_compiler=lambda graph, _inputs: graph.forward,
        decompositions=decomposition_table(),
    )
