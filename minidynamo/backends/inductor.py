"""The default backend: hands a captured graph to `minidynamo.inductor`.

It is registered under torch's entry-point group too: `torch.compile(f, backend="minidynamo")`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..inductor.compile_fx import compile_fx
from .modes import mode_options

__all__ = ["cudagraphs", "inductor"]


def inductor(
    gm: Any,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile `gm` to fused kernels. `mode` names a set of options; `options` override them."""
    return compile_fx(gm, example_inputs, options={**mode_options(mode), **(options or {})})


def cudagraphs(
    gm: Any,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """The kernels of `inductor`, on a GPU replayed as CUDA graphs (`triton.cudagraphs`)."""
    options = {"triton.cudagraphs": True, **(options or {})}
    return inductor(gm, example_inputs, mode=mode, options=options)
