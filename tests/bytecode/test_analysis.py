"""The analyses, mostly against slow and obvious ones on random control flow."""

import random

import pytest

from minidynamo.bytecode import (
    OPS,
    BytecodeError,
    Handler,
    Instruction,
    blocks,
    decode,
    definitely_bound,
    handler_edges,
    in_loop,
    index_of,
    live_locals,
    loops,
    normal_successors,
    null_slots,
    reachable,
    remove_unreachable,
    stack_depths,
    stack_kinds,
    successors,
)

NAMES = "xyz"
SEEDS = range(150)


def random_listing(seed):
    """Straight code, jumps and exception regions at random; the stack is not kept."""
    rng = random.Random(seed)
    n = rng.randrange(4, 18)
    insts = []
    for _ in range(n):
        opname = rng.choice(
            "LOAD_FAST STORE_FAST DELETE_FAST LOAD_FAST_CHECK LOAD_DEREF STORE_DEREF NOP LOAD_ATTR "
            "JUMP POP_JUMP_IF_TRUE FOR_ITER RETURN_VALUE STORE_FAST LOAD_FAST".split()
        )
        arg = rng.choice(NAMES) if OPS[opname].operand in ("fast", "deref") else None
        insts.append(Instruction(opname, "cell" if "DEREF" in opname else arg))
    insts.append(Instruction("RETURN_VALUE"))
    for inst in insts:
        if OPS[inst.opname].operand == "jump":
            inst.target = rng.choice(insts)
    for _ in range(rng.randrange(3)):
        start = rng.randrange(n)
        handler = Handler(rng.choice(insts), 0)
        for inst in insts[start : start + rng.randrange(1, 6)]:
            inst.handler = handler
    return insts


def edges_of(insts, all_covered=False):
    normal = normal_successors(insts)
    handlers = handler_edges(insts, all_covered=all_covered)
    return normal, handlers


def reads(inst):
    if inst.opname in ("LOAD_FAST", "LOAD_FAST_CHECK", "DELETE_FAST"):
        return inst.arg
    return inst.arg if "DEREF" in inst.opname else None


def writes(inst):
    return inst.arg if inst.opname in ("STORE_FAST", "DELETE_FAST") else None


def is_live(insts, start, name):
    """Explore every path from ``start`` until it writes the name."""
    normal, handlers = edges_of(insts)
    work, seen = [start], set()
    while work:
        i = work.pop()
        if i in seen:
            continue
        seen.add(i)
        if reads(insts[i]) == name:
            return True
        if handlers[i] is not None:
            work.append(handlers[i])
        if writes(insts[i]) != name:
            work.extend(normal[i])
    return False


@pytest.mark.parametrize("seed", SEEDS)
def test_live_locals(seed):
    insts = random_listing(seed)
    live = live_locals(insts)
    for i in range(len(insts)):
        assert live[i] == {name for name in (*NAMES, "cell") if is_live(insts, i, name)}


def unbound_somewhere(insts, bound):
    """Per instruction, the names that are unbound on some path to it: all (place, state) pairs."""
    normal, handlers = edges_of(insts, all_covered=True)
    work = [(0, frozenset(bound))]
    seen = set()
    found = {}
    while work:
        i, state = work.pop()
        if (i, state) in seen:
            continue
        seen.add((i, state))
        found.setdefault(i, set()).update(set(NAMES) - state)
        inst = insts[i]
        after = state
        if inst.opname in ("LOAD_FAST", "LOAD_FAST_CHECK", "STORE_FAST"):
            after = state | {inst.arg}
        elif inst.opname == "DELETE_FAST":
            after = state - {inst.arg}
        work += [(j, after) for j in normal[i]]
        if handlers[i] is not None:
            work += [(handlers[i], state), (handlers[i], state & after)]
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_definitely_bound(seed):
    insts = random_listing(seed)
    found = unbound_somewhere(insts, "x")
    for i, names in enumerate(definitely_bound(insts, "x")):
        if i in found:
            assert names & set(NAMES) == set(NAMES) - found[i]
        else:
            assert names is None


@pytest.mark.parametrize("seed", SEEDS)
def test_reachable_and_loops(seed):
    insts = random_listing(seed)
    index = index_of(insts)
    ways = [set(successors(insts, i)) for i in range(len(insts))]
    normal, handlers = edges_of(insts)
    assert ways == [{*n, *({h} - {None})} for n, h in zip(normal, handlers)]

    def closure(edges, start):
        seen, work = set(), list(edges[start])
        while work:
            i = work.pop()
            if i not in seen:
                seen.add(i)
                work += edges[i]
        return seen

    covered = [set(n) | ({h} - {None}) for n, h in zip(*edges_of(insts, all_covered=True))]
    expected = {0} | closure(covered, 0)
    assert reachable(insts) == expected
    kept = remove_unreachable(insts)
    assert [index[inst] for inst in kept] == sorted(expected)
    found = loops(insts)
    for i in range(len(insts)):
        assert in_loop(insts, i) == (i in closure(ways, i))
    for loop in found:
        for i in loop:
            assert {j for j in closure(ways, i) if i in closure(ways, j)} == loop
    parts = blocks(insts)
    assert [i for part in parts for i in part] == list(range(len(insts)))
    starts = {part.start for part in parts}
    for i in range(len(insts)):
        assert all(j == i + 1 or j in starts for j in ways[i])
        assert i + 1 in starts or not OPS[insts[i].opname].ends or i + 1 == len(insts)


def listing_of(function):
    insts = decode(function.__code__)
    return insts, {inst.opname: i for i, inst in reversed([*enumerate(insts)])}


def test_stack_kinds_of_calls():
    def f(a, b):
        return a.method(b, len(b))

    insts, first = listing_of(f)
    kinds = stack_kinds(insts)
    assert kinds[first["LOAD_METHOD"] + 1] == "??"
    inner = first["CALL"]
    assert sorted(kinds[inner]) == sorted("??vnvv")
    assert null_slots(insts)[inner] >= {0, 1} and len(null_slots(insts)[inner]) == 3


def test_stack_kinds_of_handlers():
    def f(a):
        with a:
            try:
                a()
            except KeyError:
                a(1)

    insts, _ = listing_of(f)
    kinds = stack_kinds(insts)
    call = next(
        i for i, inst in enumerate(insts) if inst.opname == "LOAD_CONST" and inst.arg == 1
    )
    assert kinds[call].count("p") == 1 and kinds[call].count("n") == 1
    start = next(i for i, inst in enumerate(insts) if inst.opname == "WITH_EXCEPT_START")
    assert kinds[start] == "vlpv"
    assert stack_depths(insts)[start] == 4


def test_local_restored_to_unbound():
    """As inlined comprehensions do: a local saved while unbound is unbound afterwards."""
    insts = [
        Instruction("LOAD_FAST_AND_CLEAR", "x"),
        Instruction("LOAD_CONST", 1),
        Instruction("STORE_FAST", "x"),
        Instruction("NOP"),
        Instruction("STORE_FAST", "x"),
        Instruction("LOAD_FAST", "x"),
        Instruction("RETURN_VALUE"),
    ]
    bound = definitely_bound(insts, "x")
    assert [("x" in names) for names in bound] == [True, False, False, True, True, False, True]


def test_live_locals_of_some_cells():
    def f(a):
        b = a

        def g():
            return a, b, outside

        return g

    outside = 0
    insts = decode(f.__code__)
    assert "outside" in live_locals(insts)[0]
    assert live_locals(insts, f.__code__.co_cellvars)[0] == {"a", "b"}


def test_heights_must_agree():
    end = Instruction("NOP")
    insts = [Instruction("LOAD_CONST", 1), Instruction("COPY", 1)]
    insts += [Instruction("POP_JUMP_IF_TRUE", target=end), Instruction("LOAD_CONST"), end]
    insts.append(Instruction("RETURN_VALUE"))
    with pytest.raises(BytecodeError, match="height"):
        stack_depths(insts)


def test_running_off_the_end():
    for analysis in (normal_successors, reachable, stack_depths):
        with pytest.raises(BytecodeError, match="off the end"):
            analysis([Instruction("NOP")])


def test_nothing():
    assert blocks([]) == [] and reachable([]) == set() and stack_depths([]) == []
    assert live_locals([]) == [] and definitely_bound([]) == [] and loops([]) == []
