"""Numbers that depend on data and that an assertion ties to other numbers.

After `torch._check(n == 5)` a ShapeEnv takes `n` for 5. A graph that is traced again under it no
longer has the assertion, which is true there; so such a graph runs as it was captured.
"""

from __future__ import annotations

import torch.fx

from minidynamo.inductor.sizes import depends_on_data, numbers_of


def known_by_assertion(
    gm: torch.fx.GraphModule,
) -> str:
    """The number that an assertion ties to others, in words; "" if there is none."""
    for node in gm.graph.nodes:
        for number in numbers_of(node.meta.get("example_value")):
            replaced = number.node.shape_env.replacements
            for symbol in number.node._expr.free_symbols:
                if symbol in replaced and depends_on_data(symbol):
                    return f"{node} depends on data and is asserted to be {number.node.expr}"
    return ""
