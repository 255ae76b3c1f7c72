"""Backends for finding out which layer is at fault: `eager` runs the captured graph as it is,
`aot_eager` runs it through AOTAutograd (functional graphs, own backward) and no further,
`aot_eager_decomp_partition` with inductor's decompositions too; `eager_noexcept` says whether the
graph raises, `eager_debug` whether operators keep what their schemas promise, and
`pre_dispatch_eager` shows and runs the operators before autograd sees them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.schema_check_mode import SchemaCheckMode
from torch.fx.experimental.proxy_tensor import make_fx

from ..exc import TorchDynamoException
from ..inductor.decompositions import decomposition_table
from ..utils import warn_once
from .aot_autograd import aot_autograd

__all__ = [
    "aot_eager",
    "aot_eager_decomp_partition",
    "eager",
    "eager_debug",
    "eager_noexcept",
    "pre_dispatch_eager",
]


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


def eager_noexcept(
    gm: Any,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """`eager`; what the graph raises becomes the cause of a TorchDynamoException."""
    _ignore("eager_noexcept", mode, options)

    def run(*args: Any) -> Any:
        try:
            return gm(*args)
        except Exception as error:
            raise TorchDynamoException("the captured graph raised an exception") from error

    return run


def eager_debug(
    gm: Any,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """`eager`; RuntimeError where an operator writes or shares memory that its schema denies."""
    _ignore("eager_debug", mode, options)

    def run(*args: Any) -> Any:
        with SchemaCheckMode():
            return torch.fx.Interpreter(gm).run(*args)

    return run


def pre_dispatch_eager(
    gm: Any,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Print the graph of aten's operators, as they are before autograd and autocast, and run it."""
    _ignore("pre_dispatch_eager", mode, options)
    traced = make_fx(torch.fx.Interpreter(gm).run, pre_dispatch=True)(*example_inputs)
    traced.print_readable()
    return traced


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
