"""From the front end's graph to a graph of aten operators, for the case that needs no AOTAutograd.

`capture_inference(gm, inputs, ...)` runs the graph once on fake tensors under a dispatch mode that
writes down every operator. That is enough whenever nothing is differentiated, inputs that are
written to share no memory with others, and no output is a view of an input; `NotCapturable` says
that one of these does not hold, and the caller takes AOTAutograd, which handles all of them but
costs an import of a second, several passes over the graph, and a wrapper around every call.

Writes to inputs become new values, which a last `copy_` gives to each, as AOTAutograd does it.
"""

from __future__ import annotations

import collections
import contextlib
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.fx
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    FakeTensor,
    FakeTensorMode,
)
from torch.fx.experimental.symbolic_shapes import statically_known_true, sym_eq
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass

from minidynamo.inductor.captured_numbers import NotCapturable, NumberNodes
from minidynamo.inductor.decompositions import before_autograd
from minidynamo.inductor.functional_variants import functional_variant
from minidynamo.inductor.gradients import WRITES, WRITTEN
from minidynamo.inductor.sizes import has_symbols, is_composed
from minidynamo.inductor.stale_views import LAID_OUT_ANEW
from minidynamo.inductor.views import View, rebuild

aten = torch.ops.aten
IDENTITIES = frozenset(
    [aten.detach.default, aten.alias.default, aten.lift.default, aten.lift_fresh.default]
)
# What C++ asks of a tensor whose sizes are symbolic: the answer specialises them.
QUERIES = frozenset([aten.size.default, aten.stride.default, aten.storage_offset.default])
# Operators that write running statistics without their schema saying so: (position of those, of
# `training`).
HIDDEN_MUTATION = {
    aten.native_batch_norm.default: (3, 5),
    aten.cudnn_batch_norm.default: (3, 5),
    aten.miopen_batch_norm.default: (3, 5),
}
# What lays a tensor out anew, on the same memory.
_LAID_OUT_ANEW = {getattr(aten, name) for name in LAID_OUT_ANEW}
_INPUTS = (FakeTensor, int, float, bool, torch.SymInt, torch.SymFloat, type(None))
Decompositions = Mapping[Any, Callable[..., Any]]


class _Recorder(TorchDispatchMode):
    """Writes the operators that reach it into `graph`; fake tensors stand for nodes."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch wraps the handler, and imports its own compiler for that

    def __init__(self, mode: FakeTensorMode, decompositions: Decompositions) -> None:
        super().__init__()
        self.mode = mode
        self.decompositions = decompositions
        self.graph = torch.fx.Graph()
        self.constants: dict[str, torch.Tensor] = {}
        self.origin: torch.fx.Node | None = None
        self._nodes: dict[int, torch.fx.Node] = {}
        self._alive: list[torch.Tensor] = []  # ids of tensors are keys above
        self._constant_of: dict[int, FakeTensor] = {}
        self._sharing: dict[int, list[int]] = {}  # storage -> ids of tensors on it
        # Of an input, by id: those of itself and of its views.
        self._of_input: dict[int, list[int]] = {}
        self._views: dict[int, View] = {}
        self._outside: set[int] = set()  # storages of inputs and constants
        self._fresh: set[int] = set()  # of these, of constants that each call makes anew
        self.given: set[int] = set()  # ids of inputs
        self.writable: set[int] = set()  # ids of inputs that may be written to
        self.unseen: set[int] = set()  # of those whose version counters stay
        self.numbers = NumberNodes(self.graph)

    def bind(self, tensor: torch.Tensor, node: torch.fx.Node) -> None:
        """Let a fake tensor stand for a node."""
        self._nodes[id(tensor)] = node
        self._alive.append(tensor)
        storage, root = _storage(tensor), self._root(id(tensor))
        on_memory = self._of_input if root in self.given else self._sharing
        key = root if root in self.given else storage
        on_memory.setdefault(key, []).append(id(tensor))
        if node.op != "call_function":
            self._outside.add(storage)

    def fake_of(self, tensor: torch.Tensor) -> FakeTensor:
        """The stand-in of a real tensor that the graph closes over."""
        known = self._constant_of.get(id(tensor))
        if known is not None:
            return known
        fake = self.mode.from_tensor(tensor, static_shapes=True)
        name = f"_constant{len(self.constants)}"
        self.constants[name] = tensor
        node = self.graph.create_node("get_attr", name)
        node.meta["val"] = fake
        self.bind(fake, node)
        self._alive.append(tensor)
        self._constant_of[id(tensor)] = fake
        return fake

    def node_of(self, tensor: torch.Tensor) -> torch.fx.Node:
        found = self._nodes.get(id(tensor))
        if found is None:
            view = self._views.get(id(tensor))
            if view is None:
                raise NotCapturable("a tensor that no operator gave, or one changed elsewhere")
            found = self._nodes[id(tensor)] = self._view_again(view, tensor)
        return found

    def _view_again(self, view: View, tensor: torch.Tensor) -> torch.fx.Node:
        """A node for a view of what has been written to."""
        if view.func is None:
            return self.node_of(view.parent)
        node = self._call(view.func, view.args, view.kwargs)
        made = tensor if view.index is None else view.func(*view.args, **view.kwargs)
        node.meta["val"] = value = self._value_of(view.func, view.args, view.kwargs, made)
        if view.index is not None:
            node = self.graph.call_function(operator.getitem, (node, view.index))
            node.meta["val"] = value[view.index]
        return node

    def _value_of(self, func: Any, args: Any, kwargs: Any, result: Any) -> Any:
        """What a node tells of its result: of a view of what an input became, which lies in memory
        of its own, the place in there.
        """
        parent = args[0] if args else None
        first = result[0] if isinstance(result, (tuple, list)) and result else result
        if not isinstance(parent, torch.Tensor) or not isinstance(first, torch.Tensor):
            return result
        storage = _storage(parent)
        if storage not in self._outside or _storage(first) != storage:
            return result
        if _storage(self.node_of(parent).meta["val"]) == storage:
            return result
        if func is aten.as_strided.default:
            raise NotCapturable("a place in the storage of an input that was written to")
        args, kwargs = _map_tensors((args, kwargs), lambda t: self.node_of(t).meta["val"])
        return func(*args, **kwargs)

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "prim" or func in QUERIES:  # attributes of a fake tensor
            return func(*args, **kwargs)
        result = self._decomposed(func, args, kwargs)
        if result is not NotImplemented:
            return result
        if func.overloadpacket in _LAID_OUT_ANEW and isinstance(args[0], FakeTensor):
            return self._restride(func, args, kwargs)
        if func._schema.is_mutable:
            if self._update_in_place(func, args, kwargs):
                return kwargs.get("out", args[:1] and args[0]) if func._schema.returns else None
            raise NotCapturable(f"{func} mutates its arguments")
        if _writes_statistics(func, args):
            return self._normalize(func, *args, **kwargs)
        given = args
        args, kwargs = _map_tensors((args, kwargs), self._faked)
        result = func(*args, **kwargs)
        if func in IDENTITIES:
            if func is aten.lift_fresh.default and not isinstance(given[0], FakeTensor):
                self._fresh.add(_storage(args[0]))
            self._note_view(result, View(None, args, kwargs, args[0]))
            self.bind(result, self.node_of(args[0]))
            return result
        self._record(func, args, kwargs, result)
        return result

    def _restride(self, func: Any, args: Any, kwargs: Any) -> torch.Tensor:
        """`as_strided_` (by which torch's own code gives results their layout), `unsqueeze_`,
        `t_`, ...: a view of what the tensor was.
        """
        tensor, view = args[0], functional_variant(func)
        if _storage(tensor) in self._outside or view is None:
            raise NotCapturable(f"{func} lays out an input anew")
        former, node = aten.detach.default(tensor), self.node_of(tensor)
        self.bind(former, node)
        for made in self.graph.nodes:
            value = made.meta.get("val")  # of several results: a tuple
            if any(leaf is tensor for leaf in _leaves(value)):
                made.meta["val"] = _map_tensors(value, lambda t: former if t is tensor else t)
        for key, made in list(self._views.items()):
            if made.parent is tensor:
                self._views[key] = made.of(former)
        if id(tensor) in self._views:
            self._views[id(former)] = self._views[id(tensor)]
        self._nodes[id(tensor)] = new = self._call(view, (former, *args[1:]), kwargs)
        self._views[id(tensor)] = View(view, (former, *args[1:]), kwargs, former)
        new.meta["val"] = view(former, *args[1:], **kwargs)
        func(*args, **kwargs)
        return tensor

    def _update_in_place(self, func: Any, args: Any, kwargs: Any) -> bool:
        """Do `x.op_()` as `x = x.op()` and `op(y, out=x)` as `x = op(y)`, if x is a value of the
        graph of its own, an input that may be written to, or a view of one: then that is made anew.
        Other views of it are, when they are used next. Of lists each tensor is.
        """
        functional = functional_variant(func)
        if functional is None:
            return False
        kwargs = dict(kwargs)
        target = kwargs.pop("out") if "out" in kwargs else args[0]
        are_several = isinstance(target, (tuple, list))
        targets = target if are_several else [target]
        if not all(isinstance(target, FakeTensor) for target in targets):
            return False
        bases = [self.own(target) for target in targets]
        if not all(map(self._is_writable, bases)):
            return False
        is_once = len(set(map(id, bases))) == len(bases)
        if are_several and (not is_once or self._reads(bases, args[1:])):
            return False  # one after the other they are written to
        with self:
            results = functional(*args, **kwargs)
            results = list(results) if are_several else [results]
            wholes = list(map(self._whole_with, targets, results))
        for base, whole in zip(bases, wholes, strict=True):
            if whole is None or not _is_laid_out_as(whole, base):
                return False
        for base, whole in zip(bases, wholes, strict=True):
            self._replace(base, whole)
        return True

    def _whole_with(self, target: torch.Tensor, result: torch.Tensor) -> torch.Tensor | None:
        """What the tensor that `target` is a view of becomes when `target` is written over with
        `result`; None where that is not known.
        """
        if result.dtype != target.dtype or not _are_equal(result.shape, target.shape):
            return None
        if not _are_equal(result.stride(), target.stride()):
            result = aten.copy.default(target, result)
        whole: torch.Tensor | None = result
        for view in self._views_below(target):
            whole = None if whole is None else rebuild(view, whole)
        return whole

    def _normalize(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        """A batch norm that updates its running statistics: these become results of it."""
        statistics = args[3:5]
        is_native = func is aten.native_batch_norm.default  # cuDNN's has another result
        if not is_native or any(tensor is None for tensor in statistics):
            raise NotCapturable(f"{func} mutates its arguments")
        bases = [self.own(tensor) for tensor in map(self._faked, statistics)]
        for base in bases:
            if id(base) not in self.unseen and not self._is_writable(base):
                raise NotCapturable(f"{func} writes to memory that others share")
        if bases[0] is bases[1]:
            raise NotCapturable(f"{func} writes twice to the same memory")
        with self:
            normalize = aten._native_batch_norm_legit_functional.default
            *results, mean, var = normalize(*args, **kwargs)
            wholes = list(map(self._whole_with, statistics, (mean, var)))
        for base, whole in zip(bases, wholes, strict=True):
            if whole is None or whole.stride() != base.stride():
                raise NotCapturable(f"{func} writes to a part of a tensor")
        for base, whole in zip(bases, wholes, strict=True):
            self._replace(base, whole)
        return tuple(results)

    def write_inputs(
        self,
        inputs: Sequence[Any],
        given: Sequence[torch.fx.Node],
        counts: Mapping[int, int] | None,
    ) -> None:
        """The last nodes: inputs that were written to get their new values. counts: how often that
        moves their version counters, by position.
        """
        changeable = self.writable | self.unseen
        for position, (tensor, node) in enumerate(zip(inputs, given, strict=True)):
            if counts is not None and position in counts:
                node.meta[WRITES] = counts[position]
            if id(tensor) not in changeable or self.node_of(tensor) is node:
                continue
            copy = self.graph.call_function(aten.copy_.default, (node, self.node_of(tensor)))
            copy.meta["val"] = tensor
            if id(tensor) in self.unseen:
                node.meta[WRITES] = 0

    def _views_below(self, tensor: torch.Tensor) -> list[View]:
        """How it was made of a whole: the last step first."""
        views = []
        while id(tensor) in self._views:
            views.append(self._views[id(tensor)])
            tensor = views[-1].parent
        return views

    def own(self, tensor: torch.Tensor) -> torch.Tensor:
        """What `tensor` is a view of; a constant that each call makes anew gets memory here."""
        views = self._views_below(tensor)
        base = views[-1].parent if views else tensor
        storage = _storage(base)
        if storage in self._fresh:
            with self:
                copy = aten.clone.default(base)
            if copy.stride() == base.stride():
                self._fresh.discard(storage)
                self._outside.discard(storage)
                self._replace(base, copy)
        return base

    def _replace(self, base: torch.Tensor, result: torch.Tensor) -> None:
        """`base` is now what `result` is, and what lies on its memory is no longer what it was."""
        old, new = self.node_of(base), self.node_of(result)
        # Not other inputs, which lie apart, nor views of them.
        unknown = self._sharing.get(_storage(base), ())
        for alias in (*unknown, *self._of_input.get(id(base), ())):
            if self._nodes.get(alias) is old:
                self._nodes[alias] = new
            else:
                self._nodes.pop(alias, None)

    def _root(self, key: int) -> int:
        """The id of what the tensor with this one is a view of, as far as is known."""
        while key in self._views:
            key = id(self._views[key].parent)
        return key

    def _reads(self, bases: Sequence[torch.Tensor], operands: Sequence[Any]) -> bool:
        """Whether one of the operands may lie on the memory of `bases`."""
        ids, storages = set(map(id, bases)), set(map(_storage, bases))
        for value in _leaves(tuple(operands)):
            if isinstance(value, torch.Tensor) and _storage(value) in storages:
                root = self._root(id(value))
                if root in ids or root not in self.given:
                    return True
        return False

    def _is_writable(self, tensor: torch.Tensor) -> bool:
        if not isinstance(tensor, FakeTensor) or tensor.layout != torch.strided:
            return False
        if _storage(tensor) in self._outside:
            return id(tensor) in self.writable
        memory = tensor.untyped_storage().nbytes()
        return statically_known_true(memory == tensor.numel() * tensor.itemsize)

    def _decomposed(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The result of running `func` as what it is made of, if it is taken apart."""
        decompose = self.decompositions.get(func)
        if decompose is None:
            if not _is_composite(func):
                return NotImplemented
            decompose = func.decompose
        try:
            with self:
                return decompose(*args, **kwargs)
        except DataDependentOutputException:
            return (
                NotImplemented  # call the operator whole, which need not look at the data now
            )

    def _faked(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if isinstance(tensor, FakeTensor) else self.fake_of(tensor)

    def _record(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        node = self._call(func, args, kwargs)
        if args and isinstance(args[0], torch.Tensor):
            several = isinstance(result, (tuple, list))
            for index, value in enumerate(result if several else [result]):
                view = View(func, args, kwargs, args[0], index if several else None)
                self._note_view(value, view)
        self._bind_result(node, result, self._value_of(func, args, kwargs, result))

    def _call(self, func: Any, args: Any, kwargs: Any) -> torch.fx.Node:
        node_args, node_kwargs = _map_tensors((args, kwargs), self.node_of, self.numbers.node)
        return self.graph.create_node("call_function", func, node_args, node_kwargs)

    def _note_view(self, value: Any, view: View) -> None:
        is_other = isinstance(value, torch.Tensor) and value is not view.parent
        if is_other and _storage(value) == _storage(view.parent):
            self._views[id(value)] = view

    def _bind_result(self, node: torch.fx.Node, result: Any, value: Any) -> None:
        node.meta["val"] = value
        if self.origin is not None:
            node.meta["origin"] = self.origin.name
            if "stack_trace" in self.origin.meta:
                node.meta["stack_trace"] = self.origin.meta["stack_trace"]
        if isinstance(result, torch.Tensor):
            self.bind(result, node)
        elif isinstance(result, (tuple, list)):
            for position, item in enumerate(result):
                if isinstance(item, (torch.Tensor, tuple, list)):
                    getitem = self.graph.create_node(
                        "call_function", operator.getitem, (node, position), {}
                    )
                    self._bind_result(getitem, item, value[position])
        elif result is not None and not isinstance(result, (int, float, bool, torch.SymInt)):
            raise NotCapturable(f"{node.target} returns a {type(result).__name__}")


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata if tensor.layout == torch.strided else id(tensor)


def _writes_statistics(func: Any, args: Sequence[Any]) -> bool:
    positions = HIDDEN_MUTATION.get(func)
    return positions is not None and args[positions[0]] is not None and bool(args[positions[1]])


def _is_composite(func: Any) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(
        func.name(), "CompositeImplicitAutograd"
    )


def _map_tensors(
    value: Any,
    fn: Callable[[torch.Tensor], Any],
    number: Callable[[torch.SymInt | torch.SymFloat], Any] = lambda number: number,
) -> Any:
    if isinstance(value, torch.Tensor):
        return fn(value)
    if isinstance(value, (torch.SymInt, torch.SymFloat)):
        return number(value)
    if isinstance(value, torch.SymBool):
        raise NotCapturable(f"a symbolic {type(value).__name__} as argument")
    if isinstance(value, torch.Size):
        return tuple(_map_tensors(item, fn, number) for item in value)
    if isinstance(value, (tuple, list)):
        return type(value)(_map_tensors(item, fn, number) for item in value)
    if isinstance(value, dict):
        return {key: _map_tensors(item, fn, number) for key, item in value.items()}
    return value


class _Runner(torch.fx.Interpreter):
    """Runs the front end's graph, telling the recorder which node it is at."""

    def __init__(self, gm: torch.fx.GraphModule, recorder: _Recorder) -> None:
        super().__init__(gm, garbage_collect_values=False)
        self.recorder = recorder

    def run_node(self, n: torch.fx.Node) -> Any:
        self.recorder.origin = n
        result = super().run_node(n)
        if any(map(is_traceable_wrapper_subclass, _leaves(result))):
            raise NotCapturable(f"{n} wraps other tensors")
        operands = [self.env[arg] for arg in n.all_input_nodes]
        self.recorder.numbers.composes_floats |= is_composed(result, operands)
        if isinstance(result, torch.SymFloat) and n.op == "call_function" and not n.kwargs:
            args, _ = self.fetch_args_kwargs_from_env(n)
            self.recorder.numbers.note(result, n.target, args)
        return result

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        value = super().get_attr(target, args, kwargs)
        if isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor):
            return self.recorder.fake_of(value)
        return value

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if isinstance(target, torch._ops.HigherOrderOperator):
            raise NotCapturable(f"higher-order operator {target}")
        return super().call_function(target, args, kwargs)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _check_outputs(outputs: Sequence[Any], inputs: Sequence[Any], recorder: _Recorder) -> None:
    given = {id(value) for value in inputs}
    first: dict[torch.fx.Node, torch.Tensor] = {}
    for value in outputs:
        if not isinstance(value, torch.Tensor):
            continue
        if value.requires_grad and id(value) not in given:
            raise NotCapturable("an output requires grad")
        if id(value) not in given:
            recorder.own(value)
        if id(value) not in given and _storage(value) in recorder._outside:
            raise NotCapturable("an output is a view of an input")
        if id(value) in given and recorder.node_of(value).op != "placeholder":
            raise NotCapturable("an output is an input that is written to")
        if first.setdefault(recorder.node_of(value), value) is not value:
            raise NotCapturable("an output is another one, detached")


def _are_equal(
    left: Sequence[Any],
    right: Sequence[Any],
) -> bool:
    return statically_known_true(sym_eq(tuple(left), tuple(right)))


def _is_laid_out_as(
    tensor: torch.Tensor,
    other: torch.Tensor,
) -> bool:
    return _are_equal(tensor.shape, other.shape) and _are_equal(tensor.stride(), other.stride())


def _writable(
    inputs: Sequence[Any],
    counts: Mapping[int, int] | None,
    apart: Collection[int],
    real: Sequence[Any],
) -> tuple[set[int], set[int]]:
    """Ids of the inputs that the graph may write to, which share no memory with other inputs nor
    within themselves: those whose version counters move, and others. counts: how often they do,
    by position (None: not known, they all may).
    """
    tensors = [v for v in real if isinstance(v, torch.Tensor) and v.layout == torch.strided]
    on_storage = collections.Counter(map(_storage, tensors))
    moving: set[int] = set()
    unseen: set[int] = set()
    for position, value in enumerate(inputs):
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
            continue
        if on_storage[_storage(real[position])] > 1 and position not in apart:
            continue
        if torch._debug_has_internal_overlap(value) != 1:
            moves = counts is None or position in counts
            (moving if moves else unseen).add(id(value))
    return moving, unseen


def capture_inference(
    gm: torch.fx.GraphModule,
    inputs: Sequence[Any],
    mode: FakeTensorMode,
    decompositions: Decompositions,
    *,
    apart: Collection[int] = (),
    real: Sequence[Any] | None = None,
) -> torch.fx.GraphModule:
    """The aten graph of `gm` on fake `inputs`: pure operators, `meta["val"]` on every node.

    apart: positions of inputs that may share a storage with others, but no memory. real: what the
    inputs stand for: fake views lie on their base's storage, real ones may have been given another.
    Its `output` is a flat tuple. Real tensors that the graph closes over become attributes.

    Raises:
        NotCapturable: AOTAutograd is needed.
    """
    for value in inputs:
        if isinstance(value, torch.Tensor) and value.requires_grad and torch.is_grad_enabled():
            raise NotCapturable("an input requires grad")
        if not isinstance(value, _INPUTS):
            raise NotCapturable(f"an input is a {type(value).__name__}")
    recorder = _Recorder(mode, decompositions)
    counts = gm.meta.get(WRITTEN)
    given = []
    for position, value in enumerate(inputs):
        node = recorder.graph.placeholder(f"arg{position}")
        node.meta["val"] = value
        given.append(node)
        if isinstance(value, torch.Tensor):
            recorder.given.add(id(value))
            recorder.bind(value, node)
    recorder.writable, recorder.unseen = _writable(inputs, counts, apart, real or inputs)
    with contextlib.ExitStack() as stack:
        if has_symbols(inputs):
            stack.enter_context(enable_python_dispatcher())
            stack.enter_context(before_autograd(inputs))
        if mode.shape_env is not None:
            # AOTAutograd, asked next, must not look for numbers that were made in vain.
            stack.enter_context(mode.shape_env.ignore_fresh_unbacked_symbols())
        stack.enter_context(torch.set_grad_enabled(torch.is_grad_enabled()))
        for context in (mode, recorder):
            stack.enter_context(context)
        result = _Runner(gm, recorder).run(*inputs)
    outputs = tuple(_leaves(result)) if isinstance(result, (tuple, list)) else (result,)
    _check_outputs(outputs, inputs, recorder)
    recorder.write_inputs(inputs, given, counts)
    recorder.graph.output(_map_tensors(outputs, recorder.node_of, recorder.numbers.node))
    root = torch.nn.Module()
    for name, tensor in recorder.constants.items():
        root.register_buffer(name, tensor)
    return torch.fx.GraphModule(root, recorder.graph)
