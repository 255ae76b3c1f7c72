"""Triton for a kernel: `codegen_triton(spec, name)` gives its source and how it is to be launched.

The iteration space is cut into tiles (`triton_tile.py`), one for each program of the grid. Every
SSA value is a tile, of size 1 along each axis that it does not change with.

    pointwise              index, mask; the nodes in order
    persistent reduction   the same: a tile has whole rows; a reduction is a function of it
    looped reduction       for each pass of the body (`loop_body.passes`) a loop along the row;
                           accumulators are tiles that are reduced behind the loop

Indices are 32 bits where their ranges allow, tile by tile and expression by expression.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from minidynamo.inductor.codegen.code import Code
from minidynamo.inductor.codegen.kernel import KernelSpec
from minidynamo.inductor.codegen.triton_ops import (
    ATOMIC,
    POINTER,
    TYPE,
    cast,
    constant,
    has_exact_inverse,
    literal,
    operation,
)
from minidynamo.inductor.codegen.triton_tile import Axis, Tiling, choose_tiling, is_read_anew
from minidynamo.inductor.loop_body import LoopBody, Node, passes
from minidynamo.inductor.magnitudes import magnitude
from minidynamo.inductor.ops import SCAN_STEPS
from minidynamo.inductor.origins import operators
from minidynamo.inductor.symbolic import (
    Atom,
    Expr,
    FloorDiv,
    Mod,
    Symbol,
    ValueRef,
    as_expr,
    is_nonneg,
    product,
)

STORES = ("store", "scatter")
MOST_WAITING = 16  # stores behind later loads: each keeps what it stores in registers
_INT32 = 1 << 31
Span = frozenset[str]


@dataclass(frozen=True, slots=True)
class TritonKernel:
    """A kernel's text and its launch.

    Attributes:
        name: of the function.
        source: its definition; it calls functions of `triton_prefix.py`.
        signature: parameter name -> type (`*fp32`, `i64`), in order, block sizes aside.
        blocks: block size parameter -> its value.
        grid: number of programs, an expression in the size symbols.
        writes: positions of the pointers that are written.
    """

    name: str
    source: str
    signature: dict[str, str]
    blocks: dict[str, int]
    grid: Expr
    writes: tuple[int, ...]
    num_warps: int


class UnsupportedKernel(RuntimeError):
    """Triton has no way to say this kernel."""


def codegen_triton(
    spec: KernelSpec,
    name: str,
    tiling: Tiling | None = None,
) -> TritonKernel:
    """The kernel for a GPU, or for Triton's interpreter: the text is the same.

    tiling: None leaves the choice to `choose_tiling`.

    Raises:
        UnsupportedKernel: for an atomic addition to elements narrower than 16 bits or int16.
    """
    return TritonPrinter(spec, name, tiling or choose_tiling(spec)).generate()


def exponential_sums(body: LoopBody) -> dict[int, int]:
    """Sums of exp(value - maximum of the values), in float32, by their positions: the positions of
    the maxima. One walk can find both (Milakov and Gimelshein, "Online normalizer calculation for
    softmax", 2018); each maximum is there once.
    """
    nodes, found = body.nodes, dict[int, int]()
    for position, node in enumerate(nodes):
        if (node.op, node.value) != ("reduction", "sum"):
            continue
        exponential = nodes[node.args[0]]
        difference = nodes[exponential.args[0]] if exponential.op == "exp" else node
        if difference.op != "sub":
            continue
        value, top = difference.args
        is_top = (nodes[top].op, nodes[top].value) == ("reduction", "max")
        is_top = is_top and nodes[top].args == (value,) and top not in found.values()
        if is_top and nodes[value].dtype == torch.float32:
            found[position] = top
    return found


class TritonPrinter:
    """Prints one kernel.

    Attributes:
        spans: for every node, the axes that its tile extends along.
        inner: for every node, whether it changes with a reduction symbol.
        again: nodes that a later walk over the same rows computes again.
        sums: sums of exponentials that are found in one walk with the maximum, by their positions.
    """

    def __init__(self, spec: KernelSpec, name: str, tiling: Tiling) -> None:
        self.spec = spec
        self.name = name
        self.code = Code()
        self.tiling = tiling
        self.axes = self.tiling.axes
        self.nodes = spec.body.nodes
        self.axis_of = {symbol: axis.name for axis in self.axes for symbol in axis.symbols}
        self.inner = spec.body.levels()
        self.again: set[int] = set()
        self.sums = exponential_sums(spec.body) if is_read_anew(tiling) else {}
        self.spans: list[Span] = []
        for node in self.nodes:
            self.spans.append(self._span(node))

    # -- the function ------------------------------------------------------------------------------
    def generate(self) -> TritonKernel:
        args, sizes = [arg.name for arg in self.spec.args], list(self.spec.sizes)
        blocks = {f"{axis.name.upper()}BLOCK": axis.block for axis in self.axes}
        parameters = ", ".join([*args, *sizes, *(f"{name}: tl.constexpr" for name in blocks)])
        if self.spec.origins:
            self.code.line(f"# {', '.join(operators(self.spec.origins))}")
        with self.code.indented(f"def {self.name}({parameters}):"):
            self._program_axes()
            if not self.spec.reduces:
                self._emit_all(range(len(self.nodes)))
            elif self.tiling.persistent:
                self._axis(self.axes[1], "0")
                self._emit_all(range(len(self.nodes)))
            else:
                self._passes()
        signature = {arg.name: POINTER[arg.dtype] for arg in self.spec.args}
        signature.update(dict.fromkeys(sizes, "i64"))
        writes = tuple(i for i, arg in enumerate(self.spec.args) if arg.role != "in")
        grid = as_expr(product(self._tiles(axis) for axis in self._program()))
        return TritonKernel(
            self.name, self.code.text(), signature, blocks, grid, writes, self.tiling.num_warps
        )

    def _program(self) -> tuple[Axis, ...]:
        """The axes that the grid covers, the slowest first."""
        return tuple(axis for axis in self.axes if axis.name != "r")

    @staticmethod
    def _tiles(axis: Axis) -> Expr:
        return (axis.numel + (axis.block - 1)) // axis.block

    def _program_axes(self) -> None:
        """The place of this program's tile."""
        axes = self._program()
        for position, axis in enumerate(axes):
            tile = "tl.program_id(0)"
            if len(axes) > 1:
                tiles = self.closed(self._tiles(axes[-1]))
                tile = f"({tile} {'//' if position == 0 else '%'} {tiles})"
            if self._is_wide(axis):
                tile = f"{tile}.to(tl.int64)"
            self._axis(axis, f"{tile} * {axis.name.upper()}BLOCK")

    @staticmethod
    def _is_wide(axis: Axis) -> bool:
        return not axis.numel.is_const or axis.numel.const + axis.block >= _INT32

    def _axis(self, axis: Axis, start: str) -> None:
        """The values of an axis' loop symbols in the tile at `start`, and which of them exist."""
        name = axis.name
        lanes = f"tl.arange(0, {name.upper()}BLOCK)"
        if len(self.axes) > 1:
            lanes += "[:, None]" if axis is self.axes[0] else "[None, :]"
        self.code.line(f"{name}index = {lanes if start == '0' else f'{start} + {lanes}'}")
        if axis.is_masked:
            self.code.line(f"{name}mask = {name}index < {self.index(axis.numel)}")
        inside = as_expr(1)
        for position in range(len(axis.symbols) - 1, -1, -1):
            symbol = axis.symbols[position]
            text = f"{name}index"
            if inside != 1:
                text += f" // {self.closed(inside)}"
            assert symbol.size is not None
            if position:
                text += f" % {self.closed(as_expr(symbol.size))}"
            self.code.line(f"{symbol.name} = {text}")
            inside = inside * symbol.size

    def _passes(self) -> None:
        """A looped reduction."""
        row = self.axes[1]
        instead = {p: self.nodes[top].args for p, top in self.sums.items()}
        parts = passes(self.spec.body, instead)
        for number, part in enumerate(parts, 1):
            self.again = {p for later in parts[number:] for p in later.nodes}
            if not part.inner:
                self._emit_all(part.nodes)
                continue
            reductions = [p for p in part.nodes if self.nodes[p].op == "reduction"]
            for position in reductions:
                self._declare(position)
            for position in part.nodes:
                if self.nodes[position].op == "scan":
                    self._declare_scan(position)
            head = f"for rstart in range(0, {self.index(row.numel)}, RBLOCK):"
            with self.code.indented(head):
                self._axis(row, "rstart")
                for position in self._loads_first(part.nodes):
                    if position in reductions:
                        self._accumulate(position)
                    else:
                        self._emit(position)
            for position in reductions:
                self._finish(position)

    def _emit_all(self, positions: Iterable[int]) -> None:
        for position in self._loads_first(positions):
            self._emit(position)

    def _loads_first(self, positions: Iterable[int]) -> Iterator[int]:
        """The nodes with stores behind the loads that do not read what they write: a GPU's compiler
        takes every store for one that loads have to wait for. Stores wait for loads alone.
        """
        order = list(positions)
        last = max((i for i, p in enumerate(order) if self.nodes[p].op == "load"), default=-1)
        waiting: list[int] = []
        for number, position in enumerate(order):
            node = self.nodes[position]
            if node.op == "store" and number < last and len(waiting) < MOST_WAITING:
                waiting.append(position)
                continue
            written = {self.nodes[p].buffer for p in waiting}
            if node.op in ("reduction", *STORES) or node.buffer in written:
                yield from waiting
                waiting.clear()
            yield position
            if number == last:
                yield from waiting
                waiting.clear()
        yield from waiting

    # -- tiles -------------------------------------------------------------------------------------
    def _span(self, node: Node) -> Span:
        if node.op == "reduction":
            return frozenset("x")
        if node.op == "scan":
            return frozenset("xr")
        span: set[str] = set()
        if node.index is not None:
            span |= {self.axis_of[s] for s in node.index.symbols() if s in self.axis_of}
        for operand in node.operands():
            span |= self.spans[operand]
        return frozenset(span)

    def _shape(self, span: Span) -> str:
        sizes = [
            f"{axis.name.upper()}BLOCK" if axis.name in span else "1" for axis in self.axes
        ]
        return f"[{', '.join(sizes)}]"

    def _broadcast(self, text: str, have: Span, want: Span) -> str:
        return text if have == want else f"tl.broadcast_to({text}, {self._shape(want)})"

    def _index_span(self, index: Expr) -> Span:
        span = {self.axis_of[s] for s in index.symbols() if s in self.axis_of}
        return frozenset(span.union(*(self.spans[ref] for ref in index.value_refs())))

    def _is_tile(self, index: Expr) -> bool:
        """Whether an index is computed of tiles, which may be of one element, not of numbers."""
        return bool(self._index_span(index) or index.value_refs())

    def _mask(self, span: Span, more: str = "") -> str:
        """The `mask` of an access to a tile along these axes; "" where every element exists."""
        parts = [
            f"{axis.name}mask" for axis in self.axes if axis.name in span and axis.is_masked
        ]
        return " & ".join([*parts, *([more] if more else [])])

    # -- indices -----------------------------------------------------------------------------------
    def index(self, expr: Expr) -> str:
        """An index expression; 64 bits wide where 32 might not do."""
        return expr.render(self._atoms(expr))

    def closed(self, expr: Expr) -> str:
        """An index expression as it may stand beside any operator."""
        return expr.render_divisor(self._atoms(expr))

    def _atoms(self, expr: Expr) -> Callable[[Atom], str]:
        """What prints the atoms of an expression."""
        wide = magnitude(expr, _INT32) is None

        def text(atom: Atom) -> str:
            if isinstance(atom, Symbol):
                is_wide = wide and atom.size is not None
                return f"{atom.name}.to(tl.int64)" if is_wide else atom.name
            if isinstance(atom, ValueRef):
                return f"v{atom.node}.to(tl.int64)"
            assert isinstance(atom, (FloorDiv, Mod))
            num, den = atom.num.render(text), atom.den.render_divisor(text)
            if is_nonneg(atom.num):
                return f"({num} {'//' if isinstance(atom, FloorDiv) else '%'} {den})"
            return f"floor_{'div' if isinstance(atom, FloorDiv) else 'mod'}({num}, {den})"

        return text

    def _pointer(self, node: Node, want: Span) -> str:
        """Addresses of an access, as a tile that extends along `want`."""
        assert node.index is not None and node.buffer is not None
        have, text = self._index_span(node.index), self.index(node.index)
        if not self._is_tile(node.index):
            return f"{node.buffer} + tl.full({self._shape(want)}, {text}, tl.int64)"
        return f"{node.buffer} + {self._broadcast(text, have, want)}"

    # -- nodes -------------------------------------------------------------------------------------
    def _emit(self, position: int) -> None:
        node = self.nodes[position]
        if node.op in STORES:
            self._store(position, node)
        elif node.op == "scan":
            self._scan(position, node)
        elif node.op == "reduction":
            self._reduce_whole(position, node)
        else:
            self.code.line(f"v{position} = {self._value(position, node)}")

    def _value(self, position: int, node: Node) -> str:
        args = [f"v{arg}" for arg in node.args]
        if node.op == "constant":
            assert node.value is not None and not isinstance(node.value, str)
            return constant(node.value, node.dtype, self._shape(frozenset()))
        if node.op == "index_expr":
            assert node.index is not None
            if not self._is_tile(node.index):
                shape, text = self._shape(frozenset()), self.index(node.index)
                return f"tl.full({shape}, {text}, {TYPE[node.dtype]})"
            return f"{self.closed(node.index)}.to({TYPE[node.dtype]})"
        if node.op == "load":
            return self._load(position, node)
        if node.op == "cast":
            return cast(args[0], self.nodes[node.args[0]].dtype, node.dtype)
        if node.op == "bitcast":
            return f"{args[0]}.to({TYPE[node.dtype]}, bitcast=True)"
        if node.op == "check":
            real = self._mask(self.spans[position])
            good = f"{args[1]} | (({real}) == 0)" if real else args[1]
            return f"check({args[0]}, {good}, {str(node.value)!r})"
        if node.op == "philox":
            return f"philox{node.value}({args[0]}, {args[1]})"
        if node.op == "truediv":
            return self._quotient(node, args)
        return operation(node.op, args, self.nodes[node.args[-1]].dtype)

    def _quotient(self, node: Node, args: Sequence[str]) -> str:
        """A quotient: correctly rounded, but for those of softmax and of the logistic function,
        where the last bit is not worth the ten instructions that it takes.
        """
        number, divisor = (self.nodes[arg] for arg in node.args)
        if divisor.op == "constant":
            assert isinstance(divisor.value, (int, float))
            if has_exact_inverse(divisor.value, node.dtype):
                return f"{args[0]} * {literal(1 / divisor.value, node.dtype)}"
        if node.dtype == torch.float32 and divisor.op in ("reduction", "add"):
            parts = [self.nodes[arg] for arg in divisor.args]
            if divisor.value == "sum" and number.op == "exp" and parts == [number]:
                return f"libdevice.fast_dividef({args[0]}, {args[1]})"
            if {part.op for part in parts} == {"constant", "exp"} and 1.0 in {
                part.value for part in parts
            }:
                return f"{args[0]} / {args[1]}"
        return operation(node.op, args, node.dtype)

    def _load(self, position: int, node: Node) -> str:
        span = self.spans[position]
        mask = self._mask(span, f"v{node.args[0]}" if node.args else "")
        options = f", mask={mask}, other=0" if mask else ""
        policy = self._eviction(position, node)
        if policy:
            options += f', eviction_policy="{policy}"'
        return f"tl.load({self._pointer(node, span)}{options})"

    def _eviction(self, position: int, node: Node) -> str:
        """How long what is loaded is worth keeping in the caches; "" where it does not matter.

        What other programs or a later walk read again is to stay; what a walk over rows reads for
        the last time is to make room.
        """
        assert node.index is not None
        body = self.spec.body
        if node.index.value_refs():
            return ""
        loops = (*body.iters, *body.reduces) if self.inner[position] else body.iters
        if any(symbol.size != 1 for symbol in {*loops} - {*node.index.symbols()}):
            return "evict_last"
        if not self.inner[position] or self.tiling.persistent:
            return ""
        return "evict_last" if position in self.again else "evict_first"

    def _store(self, position: int, node: Node) -> None:
        span = self.spans[position]
        adds = node.op == "scatter" and node.value != "set"
        if adds:
            if node.dtype not in ATOMIC or node.value != "sum":
                raise UnsupportedKernel(f"Triton has no atomic {node.value} of {node.dtype}")
            span = frozenset(a.name for a in self.axes if a.name != "r" or self.inner[position])
        mask = self._mask(span)
        value = f"v{node.args[0]}"
        options = f", mask={mask}" if mask else ""
        if adds:
            value = self._broadcast(value, self.spans[node.args[0]], span)
            # Adding zeros: Triton 3.6 interprets a broadcast value as if it were dense.
            value = f"({value} + tl.full({self._shape(span)}, 0, {TYPE[node.dtype]}))"
            options += ', sem="relaxed"'
        call = "atomic_add" if adds else "store"
        self.code.line(f"tl.{call}({self._pointer(node, span)}, {value}{options})")

    # -- reductions --------------------------------------------------------------------------------
    def _reduction_dtype(self, node: Node) -> torch.dtype:
        """What a reduction combines; of bools, extreme positions are found among integers."""
        dtype = self.nodes[node.args[0]].dtype
        if node.value in ("any", "all"):
            return torch.bool
        return torch.int32 if dtype == torch.bool else dtype

    def _kind(self, node: Node) -> str:
        assert isinstance(node.value, str)
        if self.nodes[node.args[0]].dtype == torch.bool:
            return {"max": "any", "min": "all"}.get(node.value, node.value)
        return node.value

    def _declare_scan(self, position: int) -> None:
        """The running value of the rows, before the loop over their pieces."""
        node = self.nodes[position]
        start = self._identity(node)
        self.code.line(
            f"run{position} = tl.full({self._shape(frozenset('x'))}, {start}, {TYPE[node.dtype]})"
        )

    def _scan(self, position: int, node: Node) -> None:
        operand = self._operand(node)
        self.code.line(f"v{position} = scan_{node.value}({operand})")
        if not self.tiling.persistent:
            name, run = SCAN_STEPS[str(node.value)], f"run{position}"
            text = operation(name, [run, f"v{position}"], node.dtype)
            self.code.line(f"v{position} = {text}")
            # Not a reduction of the piece, which combines elements that are no neighbours: of
            # numbers whose running product is finite, such products may overflow.
            nothing = f"tl.full([], {literal(-0.0, node.dtype)}, {TYPE[node.dtype]})"
            last = "rindex == rstart + RBLOCK - 1"
            self.code.line(f"{run} = only(v{position}, {last}, {nothing})")

    def _identity(self, node: Node) -> str:
        dtype, kind = self._reduction_dtype(node), self._kind(node)
        if kind in ("max", "argmax", "min", "argmin"):
            largest = kind.endswith("min")
            if dtype.is_floating_point:
                return literal(float("inf" if largest else "-inf"), dtype)
            info = torch.iinfo(dtype)
            return str(info.max if largest else info.min)
        if kind == "logaddexp":
            return 'float("-inf")'
        return {"sum": "0", "prod": "1", "any": "False", "all": "True"}[kind]

    def _operand(self, node: Node) -> str:
        """The operand as a full tile, with the identity where there is no element."""
        (arg,) = node.args
        full: Span = frozenset("xr")
        text = cast(f"v{arg}", self.nodes[arg].dtype, self._reduction_dtype(node))
        text = self._broadcast(f"({text})" if " " in text else text, self.spans[arg], full)
        if self.axes[1].is_masked:
            identity = (
                f"tl.full([], {self._identity(node)}, {TYPE[self._reduction_dtype(node)]})"
            )
            text = f"tl.where(rmask, {text}, {identity})"
        return text

    def _behind(self) -> int:
        """A position behind all others."""
        return (1 << 63 if self._is_wide(self.axes[1]) else _INT32) - 1

    def _places(self) -> str:
        """Positions in the rows, those that do not exist behind all others."""
        where = "rindex.to(tl.int64)" if self._is_wide(self.axes[1]) else "rindex"
        if self.axes[1].is_masked:
            where = f"tl.where(rmask, {where}, {self._behind()})"
        return f"tl.broadcast_to({where}, {self._shape(frozenset('xr'))})"

    def _reduce_whole(self, position: int, node: Node) -> None:
        """A persistent reduction: the tile has the rows."""
        kind = self._kind(node)
        if kind in ("argmax", "argmin"):
            text = f"reduce_{kind}({self._operand(node)}, {self._places()}).to(tl.int64)"
        else:
            text = self._converted(node, f"reduce_{kind}({self._operand(node)})")
        self.code.line(f"v{position} = {text}")

    def _converted(self, node: Node, text: str) -> str:
        source = (
            torch.bool if self._kind(node) in ("any", "all") else self._reduction_dtype(node)
        )
        return cast(text, source, node.dtype)

    def _declare(self, position: int) -> None:
        node = self.nodes[position]
        shape, dtype = self._shape(frozenset("xr")), TYPE[self._reduction_dtype(node)]
        self.code.line(f"acc{position} = tl.full({shape}, {self._identity(node)}, {dtype})")
        if self._kind(node) in ("argmax", "argmin"):
            dtype = "tl.int64" if self._is_wide(self.axes[1]) else "tl.int32"
            self.code.line(f"at{position} = tl.full({shape}, {self._behind()}, {dtype})")

    def _accumulate(self, position: int) -> None:
        if position in self.sums.values():
            return  # with the sum
        if position in self.sums:
            top = self.sums[position]
            both = f"acc{top}, acc{position}"
            operand = self._operand(self.nodes[top])
            self.code.line(f"{both} = exp_sum_step({both}, {operand})")
            return
        node = self.nodes[position]
        kind, acc, operand = self._kind(node), f"acc{position}", self._operand(node)
        if kind in ("argmax", "argmin"):
            best = f"{acc}, at{position}"
            self.code.line(f"{best} = {kind}_pick({best}, {operand}, {self._places()})")
            return
        names = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum"}
        names |= {"any": "bitwise_or", "all": "bitwise_and"}
        text = operation(names[kind], [acc, operand], self._reduction_dtype(node))
        self.code.line(f"{acc} = {text}")

    def _finish(self, position: int) -> None:
        node = self.nodes[position]
        kind = self._kind(node)
        if kind in ("argmax", "argmin"):
            text = f"reduce_{kind}(acc{position}, at{position}).to(tl.int64)"
        elif position in self.sums:
            top = self.sums[position]
            text = f"reduce_sum(acc{position} * libdevice.exp(acc{top} - v{top}))"
        else:
            text = self._converted(node, f"reduce_{kind}(acc{position})")
        self.code.line(f"v{position} = {text}")
