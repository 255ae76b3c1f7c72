"""Where a kernel comes from: the operators of the graph and the user's source lines.

An origin is one string, "aten.mul.Tensor<TAB>model.py:12  y = x * 2", without the second half where
the graph does not know the line. Kernels' sources name the operators only: the same computation
from another line is the same kernel.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePath

import torch.fx

_FRAME = re.compile(r'^ *File "(.+)", line (\d+), in .*\n(.*)', re.MULTILINE)


def origin_of(node: torch.fx.Node, operator: str | None = None) -> str:
    """The origin of what is lowered from `node`, or of another `operator` that it became; its line
    is that of the innermost frame.
    """
    name = str(node.target) if operator is None else operator
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    if not frames:
        return name
    file, line, text = frames[-1]
    return f"{name}\t{PurePath(file).name}:{line}  {text.strip()}"


def operators(origins: Iterable[str]) -> list[str]:
    """Names of the operators, each once."""
    return list(dict.fromkeys(origin.partition("\t")[0] for origin in origins))


def source_lines(origins: Iterable[str]) -> list[str]:
    """The user's lines, each once."""
    lines = (origin.partition("\t")[2] for origin in origins)
    return list(dict.fromkeys(line for line in lines if line))
