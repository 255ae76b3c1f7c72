"""Decompositions of matrices of which only the values are read: those alone are computed.

    svd(a)[1]     ->     svd(a, compute_uv=False)[1]

Eager's `svdvals` and `eigvalsh` (and what is made of them: norms, ranks, condition numbers) decide
so by whether a gradient may be wanted, and take a traced tensor for one that wants it.
"""

from __future__ import annotations

import operator

import torch
import torch.fx

aten = torch.ops.aten
# Operator -> (which result the values are, the arguments that ask for these alone).
_VALUES = {
    aten._linalg_svd.default: (1, (False, False)),
    aten._linalg_eigh.default: (0, ("L", False)),
}
_EIG, _EIGVALS = aten.linalg_eig.default, aten._linalg_eigvals.default


def drop_vectors(gm: torch.fx.GraphModule) -> None:
    """Rewrite a graph; see the module's docstring."""
    for target, (position, asked) in _VALUES.items():
        for node in list(gm.graph.find_nodes(op="call_function", target=target)):
            if _reads_only(node, position):
                given = node.args[1:2] if target is aten._linalg_eigh.default else ()
                node.args = (node.args[0], *given, *asked[len(given) :])
    for node in list(gm.graph.find_nodes(op="call_function", target=_EIG)):
        # `eig` itself may order large matrices' values otherwise.
        of_values = str(node.meta.get("origin", "")).startswith("linalg_eigvals")
        if of_values and _reads_only(node, 0):
            _take_values(gm.graph, node)


def _reads_only(node: torch.fx.Node, position: int) -> bool:
    return all(
        user.target is operator.getitem and (user.args[1] == position or not user.users)
        for user in node.users
    )


def _take_values(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    with graph.inserting_before(node):
        values = graph.call_function(_EIGVALS, node.args)
    values.meta = {**node.meta, "val": node.meta["val"][0]}
    for user in list(node.users):
        if user.args[1] == 0:
            user.replace_all_uses_with(values)
        graph.erase_node(user)
    graph.erase_node(node)
