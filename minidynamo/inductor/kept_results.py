"""Which results of a joint graph the forward pass saves, and which the backward pass computes
again, where the minimal cut, which sees their sizes alone, would choose wrongly.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Iterator, Sequence

import torch
import torch.fx
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import CheckpointPolicy

from minidynamo.inductor.eager_saves import is_data, unsaved_outputs
from minidynamo.inductor.passes.simplify import may_share_memory

STAYS = "is held by others"  # in `meta` of inputs of backward graphs


def keep_random_numbers(
    joint: torch.fx.GraphModule,
) -> None:
    """Results of random operators inside of activation checkpoints are saved: drawn again they
    would differ.
    """
    for node in joint.graph.nodes:
        tags = getattr(node.target, "tags", ())
        if torch.Tag.nondeterministic_seeded not in tags or "recompute" not in node.meta:
            continue
        parts = [user for user in node.users if user.target is operator.getitem]
        for part in parts or [node]:
            part.meta["recompute"] = CheckpointPolicy.MUST_SAVE
        if parts:
            del node.meta["recompute"]


def keep_overwritten(
    joint: torch.fx.GraphModule,
    positions: Collection[int],
    *,
    hidden: bool = False,
) -> None:
    """What is computed from inputs that the graph writes to is saved for the backward pass, which
    would compute it again from their new values.

    positions: of inputs that are written to after the graph; of the others its `copy_` tell.
    hidden: others may be, through `.data`. AOTAutograd reads copies of these alone; the backward
    pass has the new values where eager saves the input itself.
    """
    inputs = _given(joint)
    calls = joint.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    written = {call.args[0] for call in calls}
    written.update(node for i, node in enumerate(inputs) if i in positions)
    copies = [n for n in inputs if hidden and n not in written and _is_only_copied(n)]
    memory = [node for node in inputs if node in written]
    for user in _users_of(memory + [user for node in copies for user in node.users]):
        user.meta["recompute"] = CheckpointPolicy.MUST_SAVE


def keep_unsaved(
    joint: torch.fx.GraphModule,
    positions: Sequence[int],
) -> None:
    """The same for inputs that eager does not save: a caller may write to them between the passes.
    What takes more memory than all that it is made of is computed again all the same: wider forms
    (float32 of bfloat16, with which networks begin), and what grows by broadcasting.

    positions: of these inputs.
    """
    inputs = _given(joint)
    if len(inputs) <= max(positions, default=-1):
        return  # in another order: there are some that the program does not know of
    for user in _users_of([inputs[i] for i in positions]):
        if "recompute" not in user.meta and not _grows(user):
            user.meta["recompute"] = CheckpointPolicy.MUST_SAVE


def _given(joint: torch.fx.GraphModule) -> list[torch.fx.Node]:
    return [n for n in joint.graph.find_nodes(op="placeholder") if "primals" in n.name]


def _users_of(memory: Iterable[torch.fx.Node]) -> Iterator[torch.fx.Node]:
    """What computes something from these nodes, or from views of them."""
    reached = list(memory)
    for node in reached:
        for user in node.users:
            if user.op != "call_function" or user.target is torch.ops.aten.copy_.default:
                continue
            if user.target is operator.getitem or may_share_memory(user):
                reached.append(user)
            else:
                yield user


def _grows(node: torch.fx.Node) -> bool:
    made = _bytes(node)
    return made is not None and made > sum(_bytes(n) or 0 for n in node.all_input_nodes)


def _bytes(node: torch.fx.Node) -> int | None:
    """As in the call that is compiled for; None for what is no tensor, or of a size unknown."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return None
    numel = value.numel()
    if isinstance(numel, torch.SymInt):
        if not numel.node.has_hint():
            return None
        numel = numel.node.hint
    return int(numel) * value.itemsize


def not_to_be_saved(
    gm: torch.fx.GraphModule,
    joint: torch.fx.GraphModule,
    n_outputs: int,
) -> set[torch.fx.Node]:
    """Results whose value the backward pass computes again, as eager does: a caller may write to
    them before.
    """
    (output,) = gm.graph.find_nodes(op="output")
    if len(output.args[0]) != n_outputs:
        return set()  # some are no results of the program
    (output,) = joint.graph.find_nodes(op="output")
    results = tree_leaves(output.args)
    found = (results[i] for i in unsaved_outputs(gm))
    return {node for node in found if isinstance(node, torch.fx.Node)}


def note_what_stays(
    forward: torch.fx.GraphModule,
    backward: torch.fx.GraphModule,
    n_outputs: int,
) -> None:
    """Marks what a backward graph is given that is held by others meanwhile: inputs and results of
    the program, and views of them.
    """
    (output,) = forward.graph.find_nodes(op="output")
    results = tree_leaves(output.args)
    held = {node for node in results[:n_outputs] if isinstance(node, torch.fx.Node)}
    freed = set()
    for node in results[n_outputs:]:
        if isinstance(node, torch.fx.Node):
            behind = node
            while behind not in held and _is_part(behind) and behind.all_input_nodes:
                behind = behind.all_input_nodes[0]
            if behind not in held and behind.op == "call_function":
                freed.add(node.name)
    for node in backward.graph.find_nodes(op="placeholder"):
        node.meta[STAYS] = node.name not in freed and "tangents" not in node.name


def freed_inputs(
    graph: torch.fx.GraphModule,
) -> list[bool]:
    """Which inputs of a backward graph nobody else holds."""
    return [not n.meta.get(STAYS, True) for n in graph.graph.find_nodes(op="placeholder")]


def _is_part(
    node: torch.fx.Node,
) -> bool:
    is_view = node.target is operator.getitem or may_share_memory(node)
    return node.op == "call_function" and is_view


def _is_only_copied(
    node: torch.fx.Node,
) -> bool:
    return [user.target for user in node.users] == [torch.ops.aten.clone.default]


def takes_data(
    gm: torch.fx.GraphModule,
) -> bool:
    """Whether a graph as it was captured reads `.data` of a tensor, and may write there."""
    return any(map(is_data, gm.graph.find_nodes(op="call_function", target=getattr)))


def drop_detached(
    joint: torch.fx.GraphModule,
) -> None:
    """Takes `detach` out of a graph whose gradients are written out: the minimal cut would not
    compute what it is given again.
    """
    for node in joint.graph.find_nodes(
        op="call_function", target=torch.ops.aten.detach.default
    ):
        if all(user.op != "output" for user in node.users):
            node.replace_all_uses_with(node.args[0])
            joint.graph.erase_node(node)
