"""`aot_autograd(fw_compiler=..., ...)`: a backend made of compilers of functional graphs.

    def mine(graph, inputs): ...                 # a torch.fx.GraphModule of aten operators
    compile(f, backend=aot_autograd(fw_compiler=mine))

The name, and what it takes, is that of `torch._dynamo.backends.common`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..utils import warn_once
from . import aot_autograd as aot

__all__ = ["AotAutograd", "aot_autograd"]


class AotAutograd:
    """What `aot_autograd` returns: a backend, `(gm, example_inputs) -> callable`."""

    def __init__(
        self,
        *,
        fw_compiler: aot.GraphCompiler,
        bw_compiler: aot.GraphCompiler | None = None,
        inference_compiler: aot.GraphCompiler | None = None,
        decompositions: Mapping[Any, Callable[..., Any]] | Callable[[], Any] | None = None,
        partition_fn: Callable[..., Any] | None = None,
        keep_inference_input_mutations: bool = False,
    ) -> None:
        compilers: dict[str, Any] = {
            "fw_compiler": fw_compiler,
            "bw_compiler": bw_compiler or fw_compiler,
            "inference_compiler": inference_compiler or fw_compiler,
            "partition_fn": partition_fn,
        }
        for name, compiler in compilers.items():
            if not callable(compiler) and (name != "partition_fn" or compiler is not None):
                kind = type(compiler).__name__
                raise TypeError(f"aot_autograd: {name} must be callable, not {kind}")
        self.compilers = compilers
        self.decompositions = decompositions
        self.keep_inference_input_mutations = keep_inference_input_mutations
        self.__name__ = getattr(fw_compiler, "__name__", "aot_autograd")

    def __call__(
        self, gm: Any, example_inputs: Sequence[Any], **ignored: Any
    ) -> Callable[..., Any]:
        if ignored:
            warn_once(f"backend {self.__name__!r} ignores {', '.join(sorted(ignored))}")
        table = self.decompositions() if callable(self.decompositions) else self.decompositions
        return aot.aot_autograd(
            gm,
            example_inputs,
            **self.compilers,
            decompositions=None if table is None else dict(table),
            keep_inference_input_mutations=self.keep_inference_input_mutations,
        )


def aot_autograd(**kwargs: Any) -> AotAutograd:
    """A backend that takes graphs apart with AOTAutograd.

    fw_compiler, bw_compiler, inference_compiler(graph, inputs): make a callable of the forward
    graph, the backward graph and, without gradients, the only graph; those that are not given are
    `fw_compiler`. decompositions: operator -> function, or what makes that table.
    partition_fn: of torch._functorch.partitioners, default `default_partition`.
    keep_inference_input_mutations: graphs without gradients may write to their inputs.
    Raises TypeError for other arguments and for what cannot be called.
    """
    return AotAutograd(**kwargs)
