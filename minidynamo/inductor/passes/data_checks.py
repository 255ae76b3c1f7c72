"""Operators that look at their data in eager, and do not where they are traced, as ones that do.

The first pass: it is given the front end's graph of torch functions, not an aten graph.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx
import torch.nn.functional as F

from minidynamo import _C

assert _C.__name__  # the extension registers the operator
ONE_HOT = torch.ops.minidynamo.one_hot.default


def keep_checks(gm: torch.fx.GraphModule) -> None:
    """Put `minidynamo::one_hot` for `one_hot` with a known number of classes."""
    changed = False
    for node in gm.graph.find_nodes(op="call_function", target=F.one_hot):
        tensor, classes = _one_hot_arguments(*node.args, **node.kwargs)
        if type(classes) is int and classes > 0:
            node.target, node.args, node.kwargs = ONE_HOT, (tensor, classes), {}
            changed = True
    if changed:
        gm.recompile()


def _one_hot_arguments(tensor: Any, num_classes: Any = -1) -> tuple[Any, Any]:
    return tensor, num_classes
