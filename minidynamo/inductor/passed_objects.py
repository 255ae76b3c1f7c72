"""Objects that a graph is given and gives back: the meshes of devices of DTensors.

AOTAutograd takes a DTensor apart into its local tensor and its mesh, which is an input of the graph
then, is saved for the backward pass, and is a result wherever a DTensor is. Plans hold tensors and
numbers only, so the objects go around the compiled graph.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

try:
    from torch._library.fake_class_registry import FakeScriptObject

    try:
        from torch._custom_class_base import CustomClassBase as OpaqueBase
    except ImportError:  # its name before torch 2.14
        from torch._opaque_base import OpaqueBase
except ImportError:  # torch 2.11: DTensors are taken apart into their local tensors alone
    KINDS: tuple[type, ...] = ()
else:
    KINDS = (FakeScriptObject, OpaqueBase)

Call = Callable[[list[Any]], Any]


@dataclass(frozen=True)
class PassedObjects:
    """inputs: the positions of objects. outputs: (position, of which input) of those given back.
    constants: (position, object) of those that the graph holds.
    """

    inputs: tuple[int, ...]
    outputs: tuple[tuple[int, int], ...]
    constants: tuple[tuple[int, Any], ...]

    def attach(self, compiled: Call) -> Call:
        """What takes and gives the objects, too. compiled: the graph without them."""

        def call(inputs: list[Any]) -> Any:
            objects = {i: inputs[i] for i in self.inputs}
            for i in reversed(self.inputs):
                del inputs[i]
            results = list(compiled(inputs))
            found = [(position, objects[i]) for position, i in self.outputs]
            for position, value in sorted((*found, *self.constants), key=_position):
                results.insert(position, value)
            return results

        return call


def take_out_objects(graph: torch.fx.GraphModule) -> PassedObjects | None:
    """Takes the objects from the inputs and outputs of a graph that does nothing else with them;
    None where there are none. Those that nodes are called with stay.
    """
    (output,) = graph.graph.find_nodes(op="output")
    given = graph.graph.find_nodes(op="placeholder")
    inputs = {
        node: i
        for i, node in enumerate(given)
        if isinstance(node.meta.get("val"), KINDS) and node.users.keys() <= {output}
    }
    held = {node: _held(graph, node) for node in graph.graph.find_nodes(op="get_attr")}
    constants = {node: value for node, value in held.items() if value is not None}
    taken = inputs.keys() | constants.keys()
    if not taken:
        return None
    results = list(enumerate(output.args[0]))
    output.args = (tuple(value for _, value in results if value not in taken),)
    for node in taken:
        graph.graph.erase_node(node)
    graph.recompile()
    return PassedObjects(
        tuple(inputs.values()),
        tuple((i, inputs[value]) for i, value in results if value in inputs),
        tuple((i, constants[value]) for i, value in results if value in constants),
    )


def hold_real_objects(graph: torch.fx.GraphModule) -> None:
    """Gives a graph the objects for which it holds stand-ins, made for fake tensors."""
    for node in graph.graph.find_nodes(op="get_attr"):
        value = getattr(graph, str(node.target), None)
        if isinstance(value, KINDS):
            setattr(graph, str(node.target), getattr(value, "real_obj", value))


def hold_objects_of_tangents(joint: torch.fx.GraphModule, num_fwd_outputs: int) -> None:
    """Lets a joint graph hold the objects that its forward results are said to have from tangents:
    AOTAutograd takes one that several inputs have for that of the last.
    """
    (output,) = joint.graph.find_nodes(op="output")
    results = list(output.args[0])
    for i, node in enumerate(results[:num_fwd_outputs]):
        if not isinstance(node, torch.fx.Node) or "tangents" not in node.name:
            continue
        value = node.meta.get("val")
        if not isinstance(value, KINDS):
            continue
        name = f"_passed_object_{i}"
        setattr(joint, name, value)
        with joint.graph.inserting_before(output):
            results[i] = joint.graph.get_attr(name)
        results[i].meta["val"] = value
    output.args = (type(output.args[0])(results),)


def _held(graph: torch.fx.GraphModule, node: torch.fx.Node) -> Any:
    """The object that a node gets, if it is a result and nothing else; else None."""
    value = getattr(graph, str(node.target), None)
    is_result = all(user.op == "output" for user in node.users)
    is_object = isinstance(value, KINDS) and is_result
    return getattr(value, "real_obj", value) if is_object else None


def _position(row: tuple[int, Any]) -> int:
    return row[0]
