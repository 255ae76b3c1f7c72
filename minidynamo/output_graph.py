"""The FX graph under construction, its inputs, and the values of its nodes as fake tensors.

One `OutputGraph` belongs to one attempt at one frame. Operations are added by `create_node`, which
runs the operation on fake tensors (torch's `FakeTensorMode`) to learn shapes and dtypes; tensors of
the frame become placeholders by `add_input`. `call_backend` hands on the finished GraphModule.
"""

from __future__ import annotations

import keyword
import operator
import re
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import TYPE_CHECKING, Any

import sympy
import torch
from torch._guards import TracingContext, tracing
from torch.fx.experimental.symbolic_shapes import (
    PendingUnbackedSymbolNotFound,
    compute_unbacked_bindings,
    free_symbols,
)
from torch.fx.node import Node, map_arg
from torch.fx.passes.runtime_assert import insert_deferred_runtime_asserts
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from . import config, events, histories, out_tensors
from .captured_backward import CapturedBackward
from .data_parallel import Writes, active_ddp, compile_in_buckets
from .deferred_torch import defer
from .draws import Draws, is_drawn
from .exc import BackendCompilerFailed, MinidynamoError, RunInEager, Unsupported, plain_stack
from .fake_failures import describe_failure, quietly, refusing, run_on_ones
from .fake_results import forget_tensors, sized_fake_mode
from .function_modes import Overrides
from .guards import Check, GuardSet, MemoryLayout
from .module_stack import ModuleStack
from .new_parameters import NewParameter, place_last
from .shape_env import ExactShapeEnv, constant_of, decomposing, expr_function
from .shapes import Shapes
from .side_effects import SideEffects
from .size_nodes import expression_node, fold_numbers
from .source import LocalSource, ModuleItemSource
from .subgraphs import Body, end_graph, final_module, graphs_of
from .symbolic_contexts import TorchSource, hint_of
from .tensor_storage import Restrided, memory_leaves
from .transform_levels import close_transforms
from .utils import counters
from .warning_filters import no_warning_raises

if TYPE_CHECKING:
    from .compile_options import CompileOptions
    from .source import Source

_QUANTIZED = frozenset(
    {torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4}
)
UserStack = Sequence[traceback.FrameSummary]


@dataclass(slots=True)
class GraphInput:
    """A placeholder: where its value comes from, the value of this call, and its
    version at entry.
    """

    node: Node
    source: Source
    value: Any
    version: int

    @property
    def writes(self) -> int:
        """How often operations of the graph wrote to it."""
        return out_tensors.version_of(example_value(self.node)) - self.version

    @property
    def is_mutated(self) -> bool:
        return self.writes != 0


def _stem(source: Source) -> str:
    return re.sub(r"\W+", "_", source.name).strip("_")[-48:] or "input"


def example_value(node: Node) -> Any:
    """The fake value that `node` has (a FakeTensor, or a nest of them and constants)."""
    return node.meta["example_value"]


class OutputGraph:
    """The graph, the guards (at first none) and the side effects of one attempt at a frame."""

    def __init__(self, options: CompileOptions, code: CodeType, guards: GuardSet) -> None:
        self.options = options
        self.graph = self.root_graph = torch.fx.Graph()
        # The body of a higher-order operator that is being traced, and those that were.
        self.body: Body | None = None
        self.submodules: dict[str, torch.fx.GraphModule] = {}
        defer()
        self.shape_env = ExactShapeEnv(
            allow_scalar_outputs=options.fullgraph or config.capture_scalar_outputs,
            allow_dynamic_output_shape_ops=options.fullgraph
            or config.capture_dynamic_output_shape_ops,
        )
        self.fake_mode = sized_fake_mode(shape_env=self.shape_env)
        self.tracing_context = TracingContext(self.fake_mode)
        self.shapes = Shapes.of(options, code, self.shape_env)
        self.guards = guards
        self.side_effects = SideEffects()
        self.inputs: list[GraphInput] = []
        self.made: list[NewParameter] = []
        self.draws = Draws()
        self._first_op: Node | None = None
        self._names: set[str] = set()
        # Nodes of symbols; for symbols that depend on data, where in which result they are.
        self._symbols: dict[sympy.Symbol, Node] = {}
        self.needed: set[Node] = set()  # those of sizes of inputs, and of data of parameters
        self.unbacked: dict[sympy.Symbol, tuple[Node, Any]] = {}
        self.restrided = Restrided()
        self.op_count = 0
        # How many instructions were interpreted since the last operation.
        self.idle_instructions = 0
        # Classes of which it is guarded that no attribute was stored since.
        self.guarded_classes: dict[int, type] = {}
        # Objects whose `id` the traced code asked for, with their types.
        self.identified: dict[Source, type] = {}
        self.identified_numbers: tuple[dict[Any, Any], list[Any]] = ({}, [])
        # Whether the program asked if it is compiled: then its own code gives another answer.
        self.is_told_apart = False
        # Objects that are keys of dicts or elements of sets by their identity.
        self.hashed: dict[Source, None] = {}
        # Context managers that the traced code entered and not yet left, innermost last.
        self.open_contexts: list[Any] = []
        # Conditions that the graph relies on, and the steps that ask for them.
        self.checks: list[tuple[Node, int]] = []
        self.overrides = Overrides()
        # How many levels of torch.func transforms are open.
        self.transform_levels = 0
        # The lazily wrapped values that were looked at, in order.
        self.realized: list[Any] = []
        # Every frame that was interpreted, to be let go of with the attempt.
        self.frames: list[Any] = []
        # The globals dicts that the traced code used, by id.
        self.globals_variables: dict[int, Any] = {}
        # What `torch.fx.traceback.annotate` says of operations now.
        self.annotations: dict[str, Any] = {}
        self.modules = ModuleStack()
        self.watched: set[Any] = set()  # objects made inside that weak references tell about
        self.captured_backward = CapturedBackward()
        # Generators that the traced code made.
        self.generators: list[Any] = []

    # -- building -------------------------------------------------------------------------------

    def add_input(
        self, value: torch.Tensor, source: Source, context: Any = None, stack: UserStack = ()
    ) -> Node:
        """A placeholder for a tensor of the frame. context: its symbolic sizes, if any."""
        how = {"symbolic_context": context} if context is not None else {"static_shapes": True}
        with no_warning_raises(), refusing(source.name):
            fake = self.fake_mode.from_tensor(value, source=TorchSource(source), **how)
        if context is not None and not is_traceable_wrapper_subclass(fake):
            self.shapes.track_tensor(source, value, fake, stack)
        return self._placeholder(source, value, fake, f"l_{_stem(source)}_")

    def _placeholder(self, source: Source, value: Any, fake: Any, stem: str) -> Node:
        name = self._unique_name(stem)
        if self._first_op is not None:
            with self.root_graph.inserting_before(self._first_op):
                node = self.root_graph.placeholder(name)
        else:
            node = self.root_graph.placeholder(name)
        node.meta["example_value"] = fake
        node.meta["module_state"] = isinstance(source, ModuleItemSource)
        self.inputs.append(GraphInput(node, source, value, out_tensors.version_of(fake)))
        return node

    def _unique_name(self, stem: str) -> str:
        name, count = stem, 0
        while name in self._names:
            count += 1
            name = f"{stem}{count}"
        self._names.add(name)
        return name

    def create_node(
        self,
        op: str,
        target: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        stack: UserStack,
    ) -> Node:
        """Add an operation. `args` may hold Nodes and constants.

        Raises Unsupported if its result cannot be known on fake tensors.
        """
        if any(map(keyword.iskeyword, kwargs)):
            why = "the code of a graph cannot write its name"
            raise Unsupported("keyword argument", str(target), why)
        if self.body is not None:
            # Before it runs: a body knows the versions of the tensors that it was given.
            args, kwargs = map_arg((args, kwargs), self.body.local)
        for argument in (*args, *kwargs.values()):
            if isinstance(argument, torch.dtype) and argument in _QUANTIZED:
                why = "fake tensors do not know that they are quantized"
                raise Unsupported("tensor kind", f"{target}: {argument}", why)
        given: list[Node] = []
        if active_ddp() is not None:
            map_arg((args, kwargs), given.append)
        writes = Writes(given)
        if "out" in kwargs:
            kwargs = out_tensors.with_dtype_of_out(target, args, kwargs)
        value = self._run_fake(op, target, args, kwargs)
        node = self._add(op, target, args, kwargs, value, stack)
        node.meta["writes"] = writes.memory()
        return node

    def add_known_node(
        self,
        target: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        value: Any,
        stack: UserStack,
    ) -> Node:
        """Add a call whose result is known to be like `value`."""
        return self._add("call_function", target, args, kwargs, value, stack)

    def _add(
        self,
        op: str,
        target: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        value: Any,
        stack: UserStack,
    ) -> Node:
        if self.body is not None:
            args, kwargs = map_arg((args, kwargs), self.body.local)
        kwargs = {name: self._printable(item) for name, item in kwargs.items()}
        node = self.graph.create_node(op, target, tuple(map(self._printable, args)), kwargs)
        node.meta["example_value"] = value
        node.meta["user_stack"] = stack
        self.modules.note(node)
        if self.annotations:
            node.meta["custom"] = dict(self.annotations)
        self.shapes.note_guards(lambda: stack)
        self._bind_unbacked(node)
        node.stack_trace = plain_stack(stack)
        self.note_first(node)
        self.op_count += 1
        self.idle_instructions = 0
        return node

    def _printable(self, value: Any) -> Any:
        """Complex numbers as operations: the code of a graph writes what `repr` gives, which loses
        the sign of zeros and has no word for `nanj`.
        """
        if type(value) in (tuple, list):
            return type(value)(map(self._printable, value))
        if type(value) is not complex:
            return value
        return self.add_number_node(complex, (value.real, value.imag), value)

    def note_first(self, node: Node) -> None:
        """A new operation: placeholders that come later go in front of the first one."""
        if self.body is not None and node.graph is not self.root_graph:
            self.body.first_op = self.body.first_op or node
        elif self._first_op is None:
            self._first_op = node

    # -- symbolic numbers ----------------------------------------------------------------------

    def _bind_unbacked(self, node: Node) -> None:
        """Remember where the new symbols of a result that depends on data come from."""
        if not self.shape_env.pending_fresh_unbacked_symbols:
            return
        self.shapes.has_data_dependent = True
        try:
            found = compute_unbacked_bindings(self.shape_env, example_value(node))
        except PendingUnbackedSymbolNotFound as error:
            self.shape_env.pending_fresh_unbacked_symbols.clear()
            self.graph.erase_node(node)
            why = "it uses a tensor's data in a way that its result does not show"
            raise Unsupported("data-dependent value", str(node.target), why) from error
        node.meta["unbacked_bindings"] = found or {}
        for symbol, path in node.meta["unbacked_bindings"].items():
            self.unbacked[symbol] = (node, path)

    def add_number_node(self, target: Any, args: tuple[Any, ...], value: Any) -> Node:
        """Arithmetic on numbers of the graph, whose result is known as `value`."""
        if self.body is not None:
            args = map_arg(args, self.body.local)
        node = self.graph.create_node("call_function", target, args, {})
        node.meta["example_value"] = value
        self.note_first(node)
        return node

    def number_node(self, value: Any) -> Node:
        """A node for a SymInt, SymFloat or SymBool, from its expression."""
        expr = value.node.expr
        if isinstance(expr, sympy.Symbol):
            return self._symbol_node(expr)
        node = expression_node(self.graph, expr, self._local_symbol, "example_value")
        node.meta["example_value"] = value
        self.note_first(next(n for n in self.graph.nodes if n.op != "placeholder"))
        return node

    def _local_symbol(self, symbol: sympy.Symbol) -> Node:
        node = self._symbol_node(symbol)
        return node if self.body is None else self.body.local(node)

    def _symbol_node(self, symbol: sympy.Symbol) -> Node:
        """The graph input, or the result of an operation, that is the value of a symbol."""
        known = self._symbols.get(symbol)
        if known is not None and not known._erased:
            return known
        if symbol in self.shapes.sources:
            value = self._number(symbol)
            source = self.shapes.sources[symbol]
            node = self._placeholder(source, value, value, str(symbol))
        elif self.draws.has(symbol):
            node = self.draws.add_item(self, symbol, self._number(symbol))
        else:
            origin, path = self.unbacked[symbol]
            if origin.graph not in (self.root_graph, *graphs_of(self.body)):
                why = "it depends on data of the body of a higher-order operator"
                raise Unsupported("symbolic size in a body", str(symbol), why)
            behind = origin.next if origin.graph is self.graph else None
            with self.graph.inserting_before(behind):  # `unsqueeze_` may follow
                node = self._follow(origin, path, self._number(symbol))
            if self.body is not None:
                return node
        self._symbols[symbol] = node
        return node

    def _number(self, symbol: sympy.Symbol) -> Any:
        hint = self.shape_env.backed_var_to_val.get(symbol)
        if symbol.is_integer:
            known: Any = hint_of(hint)
            return self.shape_env.create_symintnode(symbol, hint=known)
        return self.shape_env.create_symfloatnode(
            symbol, hint=None if hint is None else float(hint)
        )

    def _follow(self, node: Node, path: Any, value: Any) -> Node:
        """The part of a result at a pytree key path of `compute_unbacked_bindings`."""
        position = 0
        while position < len(path):
            key = path[position]
            if hasattr(key, "name") and position + 1 < len(path):
                dim = path[position + 1].idx
                node = self.add_number_node(getattr(torch.Tensor, key.name), (node, dim), value)
                position += 2
                continue
            if hasattr(key, "name"):
                node = self.add_number_node(getattr(torch.Tensor, key.name), (node,), value)
            elif hasattr(key, "idx"):
                node = self.add_number_node(operator.getitem, (node, key.idx), value)
            elif hasattr(key, "divisor"):
                node = self.add_number_node(operator.floordiv, (node, key.divisor), value)
            else:
                raise Unsupported("graph value", repr(key), "a size in a result of this kind")
            position += 1
        return node

    def computed_from(self, value: Any) -> tuple[Callable[..., Any] | None, list[Source]]:
        """How code outside of the graph computes a number: a function of what sources give. (None,
        []) if only the graph can.
        """
        expr = value.node.expr
        symbols = tuple(sorted(expr.free_symbols, key=str))
        if not all(symbol in self.shapes.sources for symbol in symbols):
            return None, []
        return expr_function(expr, symbols), [self.shapes.sources[symbol] for symbol in symbols]

    def add_state_node(self, target: Callable[..., Any], *args: Any) -> Node:
        """Add a call that only changes global state (grad mode, ...); it is not run now."""
        node = self.graph.create_node("call_function", target, args, {})
        node.meta["example_value"] = None
        self.note_first(node)
        return node

    def _run_fake(
        self, op: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if self.restrided.concerns(target, args):
            self.restrided.add(args[0], self.body is None and self.shapes.is_empty)
            self.side_effects.note()
        fake_args, fake_kwargs = map_arg((args, kwargs), example_value)
        # A result with symbolic sizes takes as long to make from the cache as from its operator.
        self.fake_mode.cache_enabled = self.fake_mode.cache_enabled and self.shapes.is_empty
        try:
            with (
                quietly(),
                self.fake_mode,
                tracing(self.tracing_context),
                decomposing(target, fake_args, fake_kwargs, self.shapes.is_empty),
                out_tensors.keeping_shape(target, fake_args),
            ):
                if "out" in kwargs:
                    out_tensors.refuse_out(target, fake_args, fake_kwargs, kwargs["out"])
                    self.shape_env.pending_fresh_unbacked_symbols.clear()
                if op == "call_method":
                    value = getattr(fake_args[0], target)(*fake_args[1:], **fake_kwargs)
                else:
                    with out_tensors.moving_versions(target, args, fake_args, fake_kwargs):
                        value = target(*fake_args, **fake_kwargs)
            run_on_ones(target, fake_args, fake_kwargs, value)
            return value
        except MinidynamoError:
            raise
        except Exception as error:
            self.shape_env.pending_fresh_unbacked_symbols.clear()
            raise describe_failure(target, error, fake_args) from error

    def release(self) -> None:
        """Let go of the program's objects, which reference cycles would keep until a collection."""
        for frame in self.frames:
            frame.release()
        self.frames.clear()
        self.inputs.clear()
        self.made.clear()
        self.generators.clear()
        self.globals_variables.clear()
        self.realized.clear()
        self.open_contexts.clear()
        self.overrides.modes.clear()
        self.side_effects = SideEffects()
        forget_tensors(self.fake_mode)

    # -- undoing ----------------------------------------------------------------------------------

    def checkpoint(self) -> tuple[int, Node | None]:
        """A point to which `rollback` can return, as long as no side effect was logged since."""
        # Asked for at every instruction: an iterator over the nodes took a tenth of the time.
        root = self.graph._root
        last = root._prev
        return self.side_effects.version, None if last is root else last

    def can_rollback(self, checkpoint: tuple[int, Node | None]) -> bool:
        return checkpoint[0] == self.side_effects.version

    def rollback(self, checkpoint: tuple[int, Node | None]) -> None:
        """Erase the operations added since `checkpoint`. Inputs and guards stay (harmless)."""
        for node in reversed(self.graph.nodes):
            if node is checkpoint[1]:
                return
            if node.op != "placeholder":
                if node is self._first_op:
                    self._first_op = None
                self.op_count -= "user_stack" in node.meta
                self.graph.erase_node(node)

    def guards_mark(self) -> tuple[int, int]:
        """A point to which `withdraw_guards` can return."""
        return self.guards.mark(), len(self.realized)

    def withdraw_guards(self, mark: tuple[int, int]) -> None:
        """Forget the guards that were added since `mark`, and the values that they were for: these
        are no constants any more.
        """
        self.guards.rollback(mark[0])
        while len(self.realized) > mark[1]:
            self.realized.pop().forget()

    # -- finishing ------------------------------------------------------------------------------

    def add_alias_guards(self) -> None:
        """What was mutated and taken for different objects, or memory, must stay different."""
        tensors = [item for item in self.inputs if isinstance(item.value, torch.Tensor)]
        tensors = [item for item in tensors if not is_drawn(item.source)]
        leaves = [
            leaf for i in tensors for leaf in memory_leaves(i.source, i.value, i.is_mutated)
        ]
        if any(item.is_mutated for item in tensors) and len(leaves) > 1:
            group, values, mutated = zip(*leaves, strict=True)
            layout = MemoryLayout.of(group, values, mutated)
            if len(leaves) > len(tensors) and layout.is_shared:
                raise RunInEager("what a tensor wraps lies on memory that is written to")
            self.guards.add(None, Check.NOT_ALIASED_GROUP, group)
            self.guards.add(None, Check.MEMORY_LAYOUT, layout)
        for item in tensors:
            if item.is_mutated and item.value.requires_grad and not item.value.is_leaf:
                histories.guard_history(self.guards, item.source, item.value)
        self.shapes.guard_offsets(self.guards, [(i.source, i.value) for i in tensors])
        if len(self.hashed) > 1:
            self.guards.add(None, Check.NOT_ALIASED_GROUP, tuple(self.hashed))
        effects = self.side_effects
        changed = {
            variable: None for variable, _ in effects.pending_attributes()
        } | effects.contents
        tracked = [(value, v) for value, v in effects.tracked() if v.source is not None]
        for variable in changed:
            own = [value for value, v in tracked if v is variable]
            for value, other in tracked:
                if own and other is not variable and type(value) is type(own[0]):
                    assert variable.source is not None
                    self.guards.add(variable.source, Check.NOT_ALIAS, other.source)
        named = [v for value, v in tracked if type(value) is dict]
        for table in named if changed else ():
            for owner in effects.owners.values() if type(table.source) is LocalSource else ():
                if owner in changed or table in changed:
                    self.guards.add(owner.dict_source(), Check.NOT_ALIAS, table.source)

    def standing_checks(self) -> list[tuple[Node, int]]:
        """The checks whose steps were not undone."""
        return [(node, step) for node, step in self.checks if not node._erased]

    def is_empty(self) -> bool:
        """Whether no tensor operation was captured."""
        return self.op_count <= 0 and not self.made

    def finish(self, outputs: Sequence[Node]) -> tuple[torch.fx.GraphModule, list[GraphInput]]:
        """The GraphModule that returns `outputs`, and the inputs that it uses, in order."""
        end_graph(self.graph, outputs, self.needed, self.unbacked)
        self._bind_symbols()
        with self.fake_mode:
            self.restrided.restore()
        used = []
        for item in self.inputs:
            if item.node.users or item.node in self.needed:
                used.append(item)
            else:
                self.graph.erase_node(item.node)
        place_last(self.graph, self.made)
        order = {node: i for i, node in enumerate(self.graph.nodes)}
        used.sort(key=lambda item: order[item.node])
        return final_module(self.submodules, self.graph), used

    def _bind_symbols(self) -> None:
        """Symbols in the sizes of inputs, or in what numbers of data are asserted to be, become
        inputs, before all tensors; symbols that turned out to be constants are replaced.
        """
        if self.shapes.is_empty:
            return
        bound = [example_value(n) for n in self.graph.nodes if n.meta.get("unbacked_bindings")]
        for item in self.inputs:
            if isinstance(item.value, torch.Tensor) and item.node.users:
                bound.append(fake := example_value(item.node))
                bound += (part for _, part, _ in memory_leaves(item.source, fake, False))
        for symbol in (s for value in bound for s in free_symbols(value)):
            if symbol in self.shapes.sources:
                self.needed.add(self._symbol_node(symbol))
        first = next(iter(self.graph.nodes))
        for item in self.inputs:
            if isinstance(item.value, torch.Tensor):
                continue
            constant = constant_of(item.value)
            if constant is not None:
                for user in list(item.node.users):
                    user.replace_input_with(item.node, constant)
            elif item.node is not first:
                first.prepend(item.node)
        fold_numbers(self.graph)

    def call_backend(
        self, module: torch.fx.GraphModule, inputs: list[GraphInput]
    ) -> Callable[..., Any]:
        """Compile with the backend. Raises BackendCompilerFailed naming it."""
        ops = [n.target for n in module.graph.nodes if n.op.startswith("call_")]
        counters["stats"].update(unique_graphs=1, calls_captured=len(ops))
        if events.wants(events.GraphEvent):
            events.emit(events.GraphEvent(graph=module, ops=ops))
        depth = torch._C._functorch.get_dynamic_layer_stack_depth()
        module.meta["written_inputs"] = {i: n for i, v in enumerate(inputs) if (n := v.writes)}
        given = [item.node for item in inputs]
        module.meta["unreached_leaves"] = histories.unreached_leaves(given, module.graph)
        if self.shape_env.deferred_runtime_asserts:
            insert_deferred_runtime_asserts(module, self.shape_env, "graph")
            module.recompile()
        try:
            with tracing(self.tracing_context), events.timed("backend"), no_warning_raises():
                values = [item.value for item in inputs] + [new.example for new in self.made]
                compiled = None
                if config.optimize_ddp and active_ddp() is not None:
                    compiled = compile_in_buckets(self.options.call_backend, module, values)
                if compiled is None:
                    compiled = self.options.call_backend(module, values)
        except MinidynamoError:
            raise
        except Exception as error:
            raise self.options.failure(error) from error
        finally:
            # A backend that gives up in the middle of a transform leaves its levels open.
            close_transforms(depth)
        if not callable(compiled):
            refused = TypeError(
                f"the backend returned {type(compiled).__name__}, not a callable"
            )
            raise BackendCompilerFailed(self.options.backend_name, refused) from refused
        return compiled
