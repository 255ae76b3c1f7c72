"""Branches that depend on data, one side of which only raises: `if bad.any(): raise ...`, `assert`;
divisions by numbers that depend on data, which raise where these are 0.

The graph goes on with the other side and returns what it relied upon as one more output. If that
does not hold, the frame runs in eager from its start (`graph_breaks`), and raises for itself.
"""

from __future__ import annotations

import operator
from collections.abc import Container
from typing import TYPE_CHECKING, Any

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols, statically_known_true

from .constant import ConstantVariable
from .tensor import TensorVariable

if TYPE_CHECKING:
    from ..bytecode import Instruction
    from ..symbolic_convert import Translator
    from .base import VariableTracker

MAX_SCANNED = 300
_ENDS = frozenset({"RETURN_VALUE", "RETURN_CONST", "YIELD_VALUE", "JUMP_NO_INTERRUPT"})
_RAISES = frozenset({"RAISE_VARARGS", "RERAISE"})
_NEVER_FALLS_THROUGH = frozenset({"JUMP"})


def only_raises(
    code: list[Instruction],
    start: int,
    raises: Container[str] = _RAISES,
) -> bool:
    """Whether every way on from the instruction of that number ends with one of `raises`."""
    numbers = {inst: number for number, inst in enumerate(code)}
    seen: set[int] = set()
    pending = [start]
    while pending:
        at = pending.pop()
        if at in seen:
            continue
        seen.add(at)
        name, target = code[at].opname, code[at].target
        if name in _ENDS or len(seen) > MAX_SCANNED:
            return False
        if name in raises:
            continue
        if target is not None:
            pending.append(numbers[target])
        if name not in _NEVER_FALLS_THROUGH:
            pending.append(at + 1)
    return True


def expected_truth(
    tx: Translator,
    value: VariableTracker,
    branch: Instruction,
) -> bool | None:
    """The truth of `value` with which `branch`, the next or the running conditional jump, does not
    go where the program only raises; None if there is no such.
    """
    if not isinstance(value, TensorVariable) or branch.target is None:
        return None
    jumps_on = branch.opname == "POP_JUMP_IF_TRUE"
    after = next(i for i, inst in enumerate(tx.instructions) if inst is branch) + 1
    target = next(i for i, inst in enumerate(tx.instructions) if inst is branch.target)
    ends = only_raises(tx.instructions, target), only_raises(tx.instructions, after)
    if ends == (False, True):
        wanted = jumps_on
    elif ends == (True, False):
        wanted = not jumps_on
    else:
        return None
    return wanted if expect(tx, value, wanted) else None


def expect(
    tx: Translator,
    value: VariableTracker,
    wanted: bool,
) -> bool:
    """Let the graph rely on the truth of a tensor; False where that is not possible."""
    output = tx.output
    if not isinstance(value, TensorVariable) or value.fake.numel() != 1:
        return False
    if output.body is not None or output.transform_levels or value.fake.is_meta:
        return False
    if not wanted:
        value = tx.call_operation(torch.logical_not, [value], {})  # type: ignore[assignment]
    elif value.fake.dtype is not torch.bool:
        value = tx.call_operation(torch.ne, [value, ConstantVariable(0)], {})  # type: ignore[assignment]
    good = value.call_method(tx, "reshape", [tx.wrap_constant(())], {})
    output.checks.append((good.as_proxy(), tx.last_step()))
    return True


def expect_nonzero(tx: Translator, divisor: VariableTracker, value: Any) -> bool:
    """Let the graph rely on a number that depends on data not being 0; False where that is not
    possible, or known anyway.
    """
    output = tx.output
    if output.body is not None or output.transform_levels or not free_unbacked_symbols(value):
        return False
    differs = value != 0
    if statically_known_true(differs):
        return False
    args = divisor.as_proxy(), 0
    known = [node for node, _ in output.standing_checks() if node.target is operator.ne]
    if not any(node.args == args for node in known):
        node = output.add_number_node(operator.ne, args, differs)
        output.checks.append((node, tx.last_step()))
    return True
