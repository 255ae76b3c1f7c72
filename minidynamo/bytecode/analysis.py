"""Control flow, stack and variable analyses of canonical listings.

All take a whole listing and answer per instruction, by index.  An instruction that may raise has an
edge to its handler, with the state in front of it (what an instruction does it does last).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from .canonical import OPS
from .instruction import BytecodeError, Handler, Instruction

#: What a stack slot holds: see ``stack_kinds``.
VALUE, NULL, VALUE_OR_NULL, LASTI, PREVIOUS_EXCEPTION = "v", "n", "?", "l", "p"

_READS = frozenset({"LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_AND_CLEAR", "DELETE_FAST"})
_WRITES = frozenset({"STORE_FAST", "DELETE_FAST", "LOAD_FAST_AND_CLEAR"})
_BINDS = frozenset({"LOAD_FAST", "LOAD_FAST_CHECK", "STORE_FAST", "MAKE_CELL"})
_UNBINDS = frozenset({"DELETE_FAST", "LOAD_FAST_AND_CLEAR"})
_CELLS = frozenset(
    {
        "MAKE_CELL",
        "LOAD_CLOSURE",
        "LOAD_DEREF",
        "STORE_DEREF",
        "DELETE_DEREF",
        "LOAD_FROM_DICT_OR_DEREF",
    }
)


def effect(inst: Instruction, jump: bool = False) -> int:
    """Change of the stack's height by the instruction, or by its jump being taken."""
    pops, pushes = OPS[inst.opname].io(inst.arg, jump)
    return pushes - pops


def index_of(instructions: Sequence[Instruction]) -> dict[Instruction, int]:
    """Position of each instruction."""
    return {inst: i for i, inst in enumerate(instructions)}


def normal_successors(
    instructions: Sequence[Instruction], index: dict[Instruction, int] | None = None
) -> list[tuple[int, ...]]:
    """Where control can go without an exception: the next instruction first, then the target."""
    index = index_of(instructions) if index is None else index
    result: list[tuple[int, ...]] = []
    for i, inst in enumerate(instructions):
        following: tuple[int, ...] = () if OPS[inst.opname].ends else (i + 1,)
        if inst.target is not None:
            following += (_find(index, inst.target, inst),)
        result.append(following)
    if result and len(instructions) in result[-1]:
        raise BytecodeError(f"control runs off the end after {instructions[-1]!r}")
    return result


def handler_edges(
    instructions: Sequence[Instruction],
    index: dict[Instruction, int] | None = None,
    *,
    all_covered: bool = False,
) -> list[int | None]:
    """Index of the handler each instruction goes to when it raises; None if it cannot or has none.

    With ``all_covered`` anything may raise: so it is while a trace function runs.
    """
    index = index_of(instructions) if index is None else index
    return [
        _find(index, inst.handler.target, inst)
        if inst.handler is not None and (all_covered or OPS[inst.opname].raises)
        else None
        for inst in instructions
    ]


def successors(instructions: Sequence[Instruction], i: int) -> list[int]:
    """Indices control can go to from ``i``, exceptions included.

    To ask for many instructions use ``normal_successors`` and ``handler_edges``, once.
    """
    inst = instructions[i]
    result = [] if OPS[inst.opname].ends else [i + 1]
    targets = [inst.target]
    if inst.handler is not None and OPS[inst.opname].raises:
        targets.append(inst.handler.target)
    wanted = [target for target in targets if target is not None]
    result += [next(j for j, other in enumerate(instructions) if other is t) for t in wanted]
    return result


def _find(
    index: dict[Instruction, int],
    target: Instruction,
    inst: Instruction,
) -> int:
    found = index.get(target)
    if found is None:
        raise BytecodeError(f"{inst!r} leads out of the listing")
    return found


def blocks(instructions: Sequence[Instruction]) -> list[range]:
    """Basic blocks as index ranges: entered at the start only, left (but by raising) at the end."""
    starts = {0} if instructions else set()
    index = index_of(instructions)
    for i, inst in enumerate(instructions):
        if inst.target is not None:
            starts.add(_find(index, inst.target, inst))
        if inst.handler is not None:
            starts.add(_find(index, inst.handler.target, inst))
        if (inst.target is not None or OPS[inst.opname].ends) and i + 1 < len(instructions):
            starts.add(i + 1)
    bounds = [*sorted(starts), len(instructions)]
    return [range(a, b) for a, b in zip(bounds, bounds[1:], strict=False)]


def reachable(
    instructions: Sequence[Instruction],
    start: int = 0,
    index: dict[Instruction, int] | None = None,
) -> set[int]:
    """Indices of what can run from `start` on; a handler can if anything that it covers can."""
    if not instructions:
        return set()
    index = index_of(instructions) if index is None else index
    seen: set[int] = set()
    work = [start]
    while work:
        i = work.pop()
        while i not in seen:
            seen.add(i)
            inst = instructions[i]
            if inst.target is not None:
                work.append(_find(index, inst.target, inst))
            if inst.handler is not None:
                work.append(_find(index, inst.handler.target, inst))
            if OPS[inst.opname].ends:
                break
            i += 1
            if i == len(instructions):
                raise BytecodeError(f"control runs off the end after {inst!r}")
    return seen


def remove_unreachable(instructions: Sequence[Instruction]) -> list[Instruction]:
    """The instructions that can run, in the same order (the same objects, in a new list)."""
    kept = reachable(instructions)
    return [inst for i, inst in enumerate(instructions) if i in kept]


def stack_depths(instructions: Sequence[Instruction]) -> list[int]:
    """Stack height in front of each instruction; -1 where it cannot be reached.

    Raises BytecodeError when two ways to an instruction disagree, or the stack underflows.
    """
    depths = [-1] * len(instructions)
    index = index_of(instructions)
    work: list[tuple[int, int]] = [(0, 0)] if instructions else []
    while work:
        i, depth = work.pop()
        entered: Handler | None = None
        while True:
            if i == len(instructions):
                raise BytecodeError(f"control runs off the end after {instructions[-1]!r}")
            if depths[i] >= 0:
                if depths[i] != depth:
                    raise BytecodeError(
                        f"stack height {depths[i]} or {depth} at {instructions[i]!r}"
                    )
                break
            depths[i] = depth
            inst = instructions[i]
            op = OPS[inst.opname]
            handler = inst.handler
            if handler is not None:
                if handler.depth > depth and op.raises:
                    raise BytecodeError(
                        f"{handler!r} needs more than {depth} items at {inst!r}"
                    )
                if handler is not entered:
                    work.append((_find(index, handler.target, inst), _handler_depth(handler)))
                    entered = handler
            if inst.target is not None:
                pops, pushes = op.io(inst.arg, True)
                work.append((_find(index, inst.target, inst), depth - pops + pushes))
            pops, pushes = op.io(inst.arg)
            if pops > depth:
                raise BytecodeError(f"stack underflow at {inst!r}: {depth} items")
            if op.ends:
                break
            depth += pushes - pops
            i += 1
    return depths


def _handler_depth(handler: Handler) -> int:
    return handler.depth + handler.lasti + 1


def stack_kinds(instructions: Sequence[Instruction]) -> list[str | None]:
    """What each stack slot holds in front of each instruction: a string, bottom first.

    One character a slot: VALUE, NULL, VALUE_OR_NULL (what LOAD_METHOD, LOAD_SUPER_ATTR and
    LOAD_FAST_AND_CLEAR push depends on values), LASTI (an offset a handler was entered with),
    PREVIOUS_EXCEPTION (pushed by PUSH_EXC_INFO: their number is how many exceptions are being
    handled).  None where control does not reach.
    """
    kinds: list[str | None] = [None] * len(instructions)
    index = index_of(instructions)
    work: list[tuple[int, str]] = [(0, "")] if instructions else []
    while work:
        i, stack = work.pop()
        while True:
            known = kinds[i]
            merged = stack if known is None else _merge_kinds(known, stack)
            if merged == known:
                break
            kinds[i] = stack = merged
            inst = instructions[i]
            handler = inst.handler
            if handler is not None:
                entry = stack[: handler.depth] + (LASTI if handler.lasti else "") + VALUE
                work.append((_find(index, handler.target, inst), entry))
            if inst.target is not None:
                pops, pushes = OPS[inst.opname].io(inst.arg, True)
                taken = stack[: len(stack) - pops] + VALUE * pushes
                work.append((_find(index, inst.target, inst), taken))
            if OPS[inst.opname].ends:
                break
            stack = _after(inst, stack)
            i += 1
    return kinds


def _merge_kinds(left: str, right: str) -> str:
    if left == right:
        return left
    if len(left) != len(right):
        raise BytecodeError(f"stack heights {len(left)} and {len(right)} meet")
    return "".join(
        a if a == b else VALUE_OR_NULL if {a, b} & {NULL, VALUE_OR_NULL} else VALUE
        for a, b in zip(left, right, strict=True)
    )


_PUSHED = {
    "PUSH_NULL": NULL,
    "LOAD_METHOD": VALUE_OR_NULL * 2,
    "LOAD_FAST_AND_CLEAR": VALUE_OR_NULL,
    "PUSH_EXC_INFO": PREVIOUS_EXCEPTION + VALUE,
}


def _after(inst: Instruction, stack: str) -> str:
    opname, arg = inst.opname, inst.arg
    if opname == "COPY":
        return stack + stack[-arg]
    if opname == "SWAP":
        return stack[:-arg] + stack[-1] + stack[len(stack) - arg + 1 : -1] + stack[-arg]
    pops, pushes = OPS[opname].io(arg)
    pushed = _PUSHED.get(opname)
    if pushed is None:
        both = opname == "LOAD_SUPER_ATTR" and arg[1]
        pushed = (VALUE_OR_NULL if both else VALUE) * pushes
    return stack[: len(stack) - pops] + pushed


def null_slots(instructions: Sequence[Instruction]) -> list[frozenset[int]]:
    """Stack slots (0 is the bottom) that hold or may hold NULL in front of each instruction."""
    return [
        frozenset(j for j, kind in enumerate(kinds or "") if kind in (NULL, VALUE_OR_NULL))
        for kinds in stack_kinds(instructions)
    ]


def live_locals(
    instructions: Sequence[Instruction], cells: Collection[str] | None = None
) -> list[frozenset[str]]:
    """Names that may be read before they are written, in front of each instruction.

    Of locals: a read or ``del`` before a write.  A cell is live wherever an instruction that uses
    it can still be reached, since closures share it.  ``cells`` limits this to some names (the
    code's ``co_cellvars``, say): without it free variables are reported as well.
    """
    bits: dict[str, int] = {}
    uses, keeps = [], []
    for inst in instructions:
        use, kept = 0, -1
        opname = inst.opname
        if opname in _READS or opname in _WRITES:
            bit = 1 << bits.setdefault(inst.arg, len(bits))
            use = bit if opname in _READS else 0
            kept = ~bit if opname in _WRITES else -1
        elif opname in _CELLS and (cells is None or inst.arg in cells):
            use = 1 << bits.setdefault(inst.arg, len(bits))
        uses.append(use)
        keeps.append(kept)
    index = index_of(instructions)
    following = normal_successors(instructions, index)
    handlers = handler_edges(instructions, index)
    live = [0] * len(instructions)
    changed = True
    while changed:
        changed = False
        for i in range(len(instructions) - 1, -1, -1):
            out = 0
            for j in following[i]:
                out |= live[j]
            state = uses[i] | out & keeps[i]
            handler = handlers[i]
            if handler is not None:
                state |= live[handler]
            if state != live[i]:
                live[i] = state
                changed = True
    return _name_sets(live, list(bits))


def _name_sets(states: Iterable[int], names: Sequence[str]) -> list[frozenset[str]]:
    known: dict[int, frozenset[str]] = {}
    result = []
    for state in states:
        if state not in known:
            known[state] = frozenset(n for i, n in enumerate(names) if state >> i & 1)
        result.append(known[state])
    return result


def definitely_bound(
    instructions: Sequence[Instruction], bound: Iterable[str] = ()
) -> list[frozenset[str] | None]:
    """Locals that are bound on every way to each instruction; None where no way leads.

    ``bound`` are those bound when the code starts, its arguments for instance.
    """
    bits, states = _bound_bits(instructions, bound)
    sets = _name_sets((0 if state is None else state for state in states), list(bits))
    return [None if states[i] is None else names for i, names in enumerate(sets)]


def _bound_bits(
    instructions: Sequence[Instruction], bound: Iterable[str]
) -> tuple[dict[str, int], list[int | None]]:
    bits: dict[str, int] = {}
    for name in bound:
        bits.setdefault(name, len(bits))
    entry = (1 << len(bits)) - 1
    kinds: list[str | None] = [None] * len(instructions)
    if any(inst.opname == "LOAD_FAST_AND_CLEAR" for inst in instructions):
        kinds = stack_kinds(instructions)
    gains, keeps = [], []
    for i, inst in enumerate(instructions):
        gain, kept = 0, -1
        opname = inst.opname
        if opname in _BINDS or opname in _UNBINDS:
            bit = 1 << bits.setdefault(inst.arg, len(bits))
            stack = kinds[i]
            nullable = (
                opname == "STORE_FAST" and stack is not None and stack[-1] == VALUE_OR_NULL
            )
            if opname in _UNBINDS or nullable:
                kept = ~bit
            else:
                gain = bit
        gains.append(gain)
        keeps.append(kept)
    index = index_of(instructions)
    following = normal_successors(instructions, index)
    handlers = handler_edges(instructions, index, all_covered=True)
    states: list[int | None] = [None] * len(instructions)
    work = [(0, entry)] if instructions else []
    while work:
        i, state = work.pop()
        while True:
            known = states[i]
            if known is not None:
                state &= known
                if state == known:
                    break
            states[i] = state
            handler = handlers[i]
            if handler is not None:
                work.append((handler, state & keeps[i]))
            state = state & keeps[i] | gains[i]
            ways = following[i]
            if not ways:
                break
            work += [(j, state) for j in ways[1:]]
            i = ways[0]
    return bits, states


def unproven_loads(instructions: Sequence[Instruction], bound: Iterable[str] = ()) -> set[int]:
    """Indices of the LOAD_FASTs whose variable is not bound on every way from the start."""
    bits, states = _bound_bits(instructions, bound)
    return {
        i
        for i, inst in enumerate(instructions)
        if inst.opname == "LOAD_FAST"
        and (state := states[i]) is not None
        and not state >> bits[inst.arg] & 1
    }


def loops(instructions: Sequence[Instruction]) -> list[frozenset[int]]:
    """The outermost cycles of control flow, as sets of indices (strongly connected components)."""
    index = index_of(instructions)
    edges = [list(ways) for ways in normal_successors(instructions, index)]
    for i, handler in enumerate(handler_edges(instructions, index)):
        if handler is not None:
            edges[i].append(handler)
    return [
        frozenset(component)
        for component in _components(edges)
        if len(component) > 1 or component[0] in edges[component[0]]
    ]


def in_loop(instructions: Sequence[Instruction], i: int) -> bool:
    """Whether control can come back to instruction ``i`` after it."""
    return any(i in loop for loop in loops(instructions))


def _components(edges: Sequence[Sequence[int]]) -> list[list[int]]:
    """Strongly connected components (R. E. Tarjan 1972, with an explicit stack)."""
    number: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    result: list[list[int]] = []
    for root in range(len(edges)):
        if root in number:
            continue
        path = [(root, iter(edges[root]))]
        number[root] = low[root] = len(number)
        stack.append(root)
        on_stack.add(root)
        while path:
            node, rest = path[-1]
            for following in rest:
                if following not in number:
                    number[following] = low[following] = len(number)
                    stack.append(following)
                    on_stack.add(following)
                    path.append((following, iter(edges[following])))
                    break
                if following in on_stack:
                    low[node] = min(low[node], number[following])
            else:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[node])
                if low[node] == number[node]:
                    component: list[int] = []
                    while not component or component[-1] != node:
                        component.append(stack.pop())
                        on_stack.discard(component[-1])
                    result.append(component)
    return result
