"""The flags of the inductor backend, one line each; also what `compile(options=...)` may set.

Set as attributes, by `patch()`, or by the environment variables `MINIDYNAMO_INDUCTOR_<NAME>`. The
spellings with a dot work as with torch: `config.triton.cudagraphs = True`. Flags of torch without a
counterpart (`config_inert`) can be set too, with a warning that they have no effect.
"""
# ruff: noqa: E501  (one row, one line)

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..config_module import field, install
from .config_inert import INERT

# fmt: off
cpu_backend: str = field("cpp", "Code for CPU tensors: C++, or Triton run by its interpreter (for tests).", choices=("cpp", "triton"))
cpu_linear: str = field("auto", "Large float32 matrix products on CPU: oneDNN, ATen's own (MKL), or whichever is faster on this vendor's CPUs.", choices=("auto", "onednn", "aten"))
max_fusion_nodes: int = field(600, "Operations that one fused kernel may have at most.", least=1)
epilogue_fusion: bool = field(True, "Fuse elementwise operators into templates of matrix products. No effect: products are library calls, and what follows them is a kernel, which is as fast.")
max_autotune: bool = field(False, "Time variants of each kernel when compiling (on CPUs also the libraries' matrix products), and keep the fastest. Sums may differ in the last bits.")
freezing: bool = field(False, "Without gradients: fold batch norm into convolutions, pack weights, compute what depends on parameters alone once; again when those change (not through `.data`).")
layout_optimization: bool = field(True, "On GPUs: lay out the images of convolutions with channels last, where that pays.")
force_layout_optimization: bool = field(False, "Lay out the images of convolutions with channels last on every device, whether or not it pays.")
shape_padding: bool = field(True, "On GPUs: pad products of 16-bit matrices to sizes that tensor cores load in wholes, where that pays.")
force_shape_pad: bool = field(False, "Pad products of 16-bit matrices on every device, whether or not it pays.")
triton_cudagraphs: bool = field(False, "On GPUs: record what a graph launches as a CUDA graph, and replay that; not where sizes are symbolic, inputs that move are written to, or something waits for the GPU.", aliases=("triton.cudagraphs",))
trace_enabled: bool = field(False, "Write a folder for each compiled graph: its FX graphs, loops, fusion, code and times.", aliases=("trace.enabled",))
trace_graph_diagram: bool = field(False, "With trace.enabled, also diagram.dot: kernels and the memory between them, for Graphviz.", aliases=("trace.graph_diagram",))
trace_debug_dir: str = field("minidynamo_trace", "Where trace.enabled makes its folders.", aliases=("trace.debug_dir",))
schedule_only: bool = field(False, "Decide what is fused, and generate nothing: graphs run operator by operator. What explain() asks for.")
emulate_precision_casts: bool = field(False, "Round what operators give in float16 and bfloat16 as eager does, also where the next one in a kernel reads it.")
fallback_by_default: bool = field(False, "Run graphs operator by operator, as eager does, rather than in kernels: what mode=\"lite\" stands for.")
fallback_random: bool = field(False, "Draw random numbers as eager does, number by number, instead of inside of kernels.")
# fmt: on

if TYPE_CHECKING:
    to_dict: Callable[[], dict[str, Any]]
    defaults: Callable[[], dict[str, Any]]
    describe: Callable[[], str]


patch = install(__name__, env_prefix="MINIDYNAMO_INDUCTOR", inert=INERT)
