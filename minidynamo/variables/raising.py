"""Operators that raise for some data, inside of the program's `try` and `with` blocks.

The graph raises as a whole, so no handler of the program sees it: where such a graph raises, the
frame runs in eager from its start (`graph_breaks`).
"""

from __future__ import annotations

import builtins
import contextlib
import enum
import types
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols, guard_or_true
from torch.fx.node import Node

from ..bytecode import decode
from ..output_graph import example_value
from .base import VariableTracker
from .expectations import only_raises
from .functions import BoundMethodVariable, UserFunctionVariable

if TYPE_CHECKING:
    from ..bytecode import Handler, Instruction
    from ..symbolic_convert import Translator

_ALWAYS = frozenset(
    "cholesky cholesky_inverse inverse logdet slogdet lu pinverse svd qr geqrf lobpcg"
    " svd_lowrank pca_lowrank matrix_power triangular_solve ormqr lstsq eig symeig"
    " index_select gather take take_along_dim index_add index_add_ index_copy index_copy_"
    " index_fill index_fill_ index_put index_put_ index_reduce index_reduce_ put put_"
    " scatter scatter_ scatter_add scatter_add_ scatter_reduce scatter_reduce_"
    " masked_scatter masked_scatter_ embedding embedding_bag one_hot nll_loss cross_entropy"
    " multi_margin_loss multilabel_margin_loss ctc_loss binary_cross_entropy"
    " max_unpool1d max_unpool2d max_unpool3d fractional_max_pool2d fractional_max_pool3d"
    " bincount histc repeat_interleave"
    " multinomial bernoulli bernoulli_ poisson binomial normal _assert_async"
    " nonzero_static segment_reduce quantile nanquantile unravel_index"
    # These refuse some arguments that their fakes take.
    " bucketize searchsorted complex polar as_strided as_strided_ as_strided_scatter".split()
)
_DIVISIONS = frozenset(
    "floordiv mod ifloordiv imod floor_divide floor_divide_ remainder remainder_ fmod fmod_"
    " div div_ divide divide_ true_divide __floordiv__ __mod__ pow".split()
)
_DRAWS = frozenset("rand randn rand_like randn_like uniform_ normal_ exponential_".split())
# What only puts a variable of the frame back, or makes another error of it, does nothing for the
# program: comprehensions and generators have such handlers.
_PASSES_ON = frozenset(
    "PUSH_EXC_INFO CALL_INTRINSIC_1 COPY SWAP POP_TOP POP_EXCEPT STORE_FAST LOAD_FAST".split()
)
# What loads the classes of an `except` clause, and the errors that data is the reason of.
_CLASS_LOADS = frozenset("LOAD_GLOBAL LOAD_ATTR LOAD_FAST LOAD_DEREF BUILD_TUPLE".split())
_ERRORS = (RuntimeError, IndexError, ValueError, torch.linalg.LinAlgError)
_HARMLESS = (contextlib.nullcontext,)
_OF_GENERATORS = contextlib._GeneratorContextManager.__exit__.__code__


class Seen(enum.IntEnum):
    """What of the program sees an error of a node; `meta["seen"]` has the most of them."""

    LEAVING = 1  # a `finally` block, which passes it on
    BLOCK = 2  # a context manager, which may swallow it
    CAUGHT = 3  # an `except` clause


def note_raising(
    tx: Translator,
    node: Node,
    asserted: int,
) -> None:
    """To be called with each new node, and the number of assertions in the graph before it."""
    asserts = tx.output.shape_env.num_deferred_runtime_asserts > asserted
    if not (asserts or _may_raise(node)) or tx.output.transform_levels:
        return
    seen = max(map(_seen_in, _frames(tx)), default=0)
    if seen:
        node.meta["seen"] = seen


def _may_raise(node: Node) -> bool:
    """Whether it depends on data that the operator raises; other errors show while tracing, but
    for what fake tensors do not look at.
    """
    target: Any = node.target
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    if isinstance(target, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return not str(target).startswith(("aten.", "prims."))
    if name in ("getitem", "setitem"):
        return _index_may_raise(*node.args[1:])
    if name in _DIVISIONS:
        value = node.meta["example_value"]
        is_tensor = isinstance(value, torch.Tensor)
        return is_tensor and not (value.dtype.is_floating_point or value.dtype.is_complex)
    if name in _DRAWS or name == "random_":
        return _draw_may_raise(name, node)
    if name in ("max", "min") and len(node.args) == 1 and not node.kwargs:
        return guard_or_true(example_value(node.args[0]).numel() == 0)  # type: ignore[arg-type]
    if name == "select":
        return bool(free_unbacked_symbols(example_value(node.args[0])))  # type: ignore[arg-type]
    # Memory that out= shares, with itself or with an argument, is none that fake tensors have.
    return name in _ALWAYS or name.startswith("linalg_") or "out" in node.kwargs


def _draw_may_raise(name: str, node: Node) -> bool:
    """Whether the dtype is not drawn, or may not hold the bounds, or these are no range."""
    given = node.kwargs
    if name == "random_":
        return len(node.args) + len(given) > 1
    if name == "uniform_":
        named: dict[str, Any] = {
            **dict(zip(("from", "to"), node.args[1:], strict=False)),
            **given,
        }
        low, high = named.get("from", 0.0), named.get("to", 1.0)
        if isinstance(low, (int, float)) and isinstance(high, (int, float)) and low > high:
            return True
    dtype = node.meta["example_value"].dtype
    return not (dtype.is_floating_point or dtype.is_complex)


def _index_may_raise(index: Any, value: Any = None) -> bool:
    """Whether places may not be there, or masks choose as many as fit neither the other parts of
    the index nor what is written.
    """
    parts = index if isinstance(index, tuple) else (index,)
    # A list in an index is a tensor to be, of which fake tensors know no more.
    kinds = [torch.int64 if isinstance(part, list) else _dtype(part) for part in parts]
    masks = kinds.count(torch.bool)
    if any(kind is not None and kind is not torch.bool for kind in kinds) or masks > 1:
        return True
    written = example_value(value) if isinstance(value, Node) else value
    return masks == 1 and isinstance(written, torch.Tensor) and written.dim() > 0


def _dtype(part: Any) -> torch.dtype | None:
    value = example_value(part) if isinstance(part, Node) else None
    return value.dtype if isinstance(value, torch.Tensor) else None


def _frames(tx: Translator) -> Iterator[Translator]:
    frame: Any = tx
    while frame is not None:
        if not frame.globals.get("__name__", "").startswith("torch."):
            yield frame
        frame = frame.parent


def _seen_in(frame: Translator) -> int:
    """What of the blocks around the current instruction of `frame` sees an error, or 0."""
    handler: Handler | None = frame.current.handler
    found = 0
    passed: set[Instruction] = set()
    while handler is not None and handler.target not in passed:
        passed.add(handler.target)
        found = max(found, _seen_by(frame, handler))
        # That of the handler's own cleanup, then that of the block around.
        handler = handler.target.handler
    return found


def _seen_by(frame: Translator, handler: Handler) -> int:
    start = frame.instructions.index(handler.target)
    inst = next(i for i in frame.instructions[start:] if i.opname not in _PASSES_ON)
    if inst.opname == "WITH_EXCEPT_START":
        leave = frame.stack[handler.depth - 1].realize()
        if _is_of_torch(frame, leave):
            return 0
        return Seen.CAUGHT if _may_swallow(leave) else Seen.BLOCK
    if inst.opname == "RERAISE":
        return 0
    if only_raises(frame.instructions, start, ("RERAISE",)):
        return Seen.LEAVING
    return Seen.CAUGHT if _has_clause(frame, frame.instructions.index(inst)) else 0


def _has_clause(frame: Translator, start: int) -> bool:
    """Whether one of the `except` clauses from `start` on takes errors of operators."""
    code = frame.instructions
    while True:
        end = start
        while code[end].opname in _CLASS_LOADS:
            end += 1
        if code[end].opname != "CHECK_EXC_MATCH":
            return code[start].opname != "RERAISE"  # a clause without a class, or none
        classes = _classes(frame, code[start:end])
        if classes is None or any(issubclass(error, classes) for error in _ERRORS):
            return True
        target = code[end + 1].target
        if target is None:
            return True
        start = code.index(target)


def _classes(frame: Translator, loads: Sequence[Instruction]) -> tuple[type, ...] | None:
    """The classes of an `except` clause; None where they are not plain globals."""
    stack: list[Any] = []
    for inst in loads:
        if inst.opname == "LOAD_GLOBAL":
            stack.append(frame.globals.get(inst.arg, getattr(builtins, inst.arg, None)))
        elif inst.opname == "LOAD_ATTR" and isinstance(stack[-1], types.ModuleType):
            stack[-1] = vars(stack[-1]).get(inst.arg)
        elif inst.opname == "BUILD_TUPLE" and len(stack) == inst.arg:
            return tuple(stack) if all(isinstance(c, type) for c in stack) else None
        else:
            return None
    return (stack[0],) if len(stack) == 1 and isinstance(stack[0], type) else None


def _may_swallow(leave: VariableTracker) -> bool:
    """Whether a bound `__exit__` of Python has something else to return than None."""
    if not isinstance(leave, BoundMethodVariable):
        return False
    function = leave.function.realize()
    if not isinstance(function, UserFunctionVariable):
        return False
    code = function.get_code()
    if code is _OF_GENERATORS:
        return False  # the generator decides
    listing = decode(code)
    given = [listing[i - 1] for i, inst in enumerate(listing) if inst.opname == "RETURN_VALUE"]
    return not all(inst.opname == "LOAD_CONST" and not inst.arg for inst in given)


def _is_of_torch(frame: Translator, leave: VariableTracker) -> bool:
    """Whether a bound `__exit__` restores torch's state, as graphs do that raise."""
    if not isinstance(leave, BoundMethodVariable):
        return leave.python_type().__module__.startswith("torch")
    manager = leave.receiver.realize()
    cls = manager.python_type()
    if not issubclass(cls, contextlib._GeneratorContextManager):
        return cls in _HARMLESS or cls.__module__.startswith(("torch", "minidynamo"))
    made_by = frame.output.side_effects.load_attr(manager, "func")
    if not isinstance(made_by, VariableTracker):
        return False
    function = made_by.realize()
    if not isinstance(function, UserFunctionVariable):
        return False
    return str(function.get_globals().get("__name__", "")).startswith("torch.")
