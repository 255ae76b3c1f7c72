"""Products of 16-bit floats, in float32 where the processor has no instructions for theirs.

    mm(a, b)     ->     to(mm(to(a, float32), to(b, float32)), bfloat16)

Without AVX-512 (and for float16 without AVX512-FP16) ATen has loops of its own for them, at a tenth
to a hundredth of the rate of a float32 product. They stay for small operands, and for the few rows
whose products are sums over numbers side by side. They too add in float32 and round once.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from minidynamo.inductor.passes.simplify import fold_bias, merge_equal_nodes
from minidynamo.inductor.processors import has_instructions

aten = torch.ops.aten
# In the meta of a product that was one of 16 bits.
WIDENED = "widened"
to_dtype = torch.ops.prims.convert_element_type.default
# Multiplications a nanosecond of a core: ATen's sums over two operands' innermost dimensions, its
# other loops, and a library's float32 product.
SUM_RATE, LOOP_RATE, LIBRARY_RATE = 4.8, 0.3, 40.0
# Nanoseconds for an element to be converted (in a cache, in memory), and for the calls.
CONVERSIONS, CALLS = (0.25, 0.9), 5000.0
CACHED_ELEMENTS = 1 << 20


def widen_products(
    gm: torch.fx.GraphModule,
) -> None:
    """Rewrite a graph's products; see the module's docstring."""
    if not any(node.target in _PRODUCTS and _is_narrow(node) for node in gm.graph.nodes):
        return
    fold_bias(gm)
    for node in list(gm.graph.nodes):
        is_slow = _PRODUCTS.get(node.target)
        if is_slow is not None and _is_narrow(node) and is_slow(node):
            _widen(gm.graph, node)
    merge_equal_nodes(gm)  # an operand of several products


def _fakes(
    node: torch.fx.Node,
) -> list[torch.Tensor]:
    values = [operand.meta["val"] for operand in node.all_input_nodes]
    return [value for value in values if isinstance(value, torch.Tensor)]


def _is_narrow(
    node: torch.fx.Node,
) -> bool:
    fakes = _fakes(node)
    dtypes = {fake.dtype for fake in fakes}
    if node.target in _ATTENTION:
        dtypes -= _BESIDE
    if len(dtypes) != 1 or not dtypes <= _NARROW:
        return False
    return all(fake.device.type == "cpu" for fake in fakes) and not has_instructions(*dtypes)


def _is_worth(
    node: torch.fx.Node,
) -> bool:
    """Whether a matrix product takes longer than conversions and a float32 product."""
    a, b = (operand.meta["val"] for operand in node.args[-2:])  # type: ignore[union-attr]
    *batch, rows, inner = map(hint, a.shape)
    columns = hint(b.shape[-1])
    if 1 in (rows, columns) and _is_plain(node):
        return False  # lowered to sums
    work = math.prod([*batch, rows, inner, columns])
    is_sum = a.stride(-1) == 1 and b.stride(-2) == 1
    elements = math.prod(batch) * (rows * inner + inner * columns + rows * columns)
    each = CONVERSIONS[elements > CACHED_ELEMENTS]
    wide = CALLS + elements * each + work / LIBRARY_RATE
    return wide < work / (SUM_RATE if is_sum else LOOP_RATE)


def _is_plain(
    node: torch.fx.Node,
) -> bool:
    """Whether it has no factors, and no bias but one number for each column."""
    *bias, _, _ = node.args
    return not node.kwargs and all(b.meta["val"].dim() == 1 for b in bias)  # type: ignore[union-attr]


def hint(
    size: Any,
) -> int:
    """A size in the call that is compiled for."""
    if type(size) is int:
        return size
    return int(size.node.hint) if size.node.has_hint() else 1 << 10


def _has_elements(
    node: torch.fx.Node,
) -> bool:
    return all(hint(fake.numel()) for fake in _fakes(node))


_PRODUCTS: dict[Any, Callable[[torch.fx.Node], bool]] = {
    aten.mm.default: _is_worth,
    aten.bmm.default: _is_worth,
    aten.addmm.default: _is_worth,
    aten.baddbmm.default: _is_worth,
    aten.convolution.default: _has_elements,
    aten.convolution_backward.default: _has_elements,
}
# Which take float32 sums and masks of flags beside 16-bit operands.
_ATTENTION = [
    getattr(aten, name).default
    for name in (
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_flash_attention_for_cpu_backward",
    )
    if hasattr(aten, name)
]
_TURNING = {
    aten.permute.default,
    aten.transpose.int,
    aten.t.default,
    aten.expand.default,
    aten.unsqueeze.default,
}
_NARROW, _BESIDE = {torch.bfloat16, torch.float16}, {torch.float32, torch.bool}
_PRODUCTS.update(dict.fromkeys(_ATTENTION, _has_elements))


def _widen(
    graph: torch.fx.Graph,
    node: torch.fx.Node,
) -> None:
    with _fakes(node)[0].fake_mode:  # type: ignore[attr-defined]
        wide = {
            operand: _converted(graph, node, operand)
            for operand in node.all_input_nodes
            if getattr(operand.meta["val"], "dtype", None) in _NARROW
        }
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: wide.get(n, n))
        product = call(graph, node, node.target, *args, **kwargs)
        product.meta[WIDENED] = True
    if isinstance(node.meta["val"], torch.Tensor):
        _replace(graph, node, product)
        return
    for part in list(node.users):
        if part.meta["val"] is None:
            part.replace_input_with(node, product)
            continue
        with part.meta["val"].fake_mode:
            value = call(graph, part, operator.getitem, product, part.args[1])
        _replace(graph, part, value)
    graph.erase_node(node)


def _converted(
    graph: torch.fx.Graph, before: torch.fx.Node, operand: torch.fx.Node
) -> torch.fx.Node:
    """`operand` in float32: a view of what it is a view of, which several products may read."""
    base = operand.args[0] if operand.target in _TURNING else None
    if isinstance(base, torch.fx.Node):
        wide = _converted(graph, before, base)
        return call(graph, before, operand.target, wide, *operand.args[1:])
    return call(graph, before, to_dtype, operand, torch.float32)


def _replace(
    graph: torch.fx.Graph,
    node: torch.fx.Node,
    wide: torch.fx.Node,
) -> None:
    """What read `node` reads `wide` in its dtype, laid out as `node` was traced."""
    fake = node.meta["val"]
    if wide.meta["val"].dtype != fake.dtype:
        with fake.fake_mode:
            wide = call(graph, node, to_dtype, wide, fake.dtype)
        wide.meta["val"] = fake
    node.replace_all_uses_with(wide)
    graph.erase_node(node)


def call(
    graph: torch.fx.Graph,
    before: torch.fx.Node,
    op: Any,
    *args: Any,
    **kwargs: Any,
) -> torch.fx.Node:
    """A new call in front of a node, which it has the origin of; fake tensors' mode is active."""
    with graph.inserting_before(before):
        made = graph.call_function(op, args, kwargs)
    fake_args, fake_kwargs = torch.fx.node.map_arg((args, kwargs), lambda n: n.meta["val"])
    made.meta = {**before.meta, "val": op(*fake_args, **fake_kwargs)}
    return made
