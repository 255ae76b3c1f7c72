"""The order of steps: the graph's, but for what frees memory."""

from dataclasses import replace

from minidynamo.inductor.ordering import Step, in_order


def steps(*rows):
    """(what a step reads, what it writes); a step comes after the one that writes what it reads."""
    made, writer = [], {}
    for position, (reads, writes) in enumerate(rows):
        ancestors = 0
        for name in reads.split():
            if name in writer:
                before = made[writer[name]]
                ancestors |= before.members | before.ancestors
        writer.update(dict.fromkeys(writes.split(), position))
        made.append(
            Step(1 << position, ancestors, frozenset(reads.split()), frozenset(writes.split()))
        )
    return made


def order(*rows, **nbytes):
    return in_order(steps(*rows), lambda name: nbytes.get(name, 1))


def test_the_graphs_order():
    assert order(("", "a"), ("a", "b"), ("b", "c"), ("", "d"), ("c d", "")) == [0, 1, 2, 3, 4]


def test_what_frees_memory_comes_first():
    # Step 3 is the last to read `a`, which is larger than its result.
    rows = ("", "a"), ("a", "b"), ("", "c"), ("a", "d"), ("b c d", "")
    assert order(*rows, a=10) == [0, 1, 3, 2, 4]
    assert order(*rows, a=1, d=10) == [0, 1, 2, 3, 4]


def test_results_of_the_graph_before_what_is_passed_on():
    # 1: the gradient that is passed on; 2: that of the weight, a result of the graph.
    assert order(("", "a"), ("a", "b"), ("a", ""), ("b", "")) == [0, 2, 1, 3]
    # Nothing in common: as in the graph.
    assert order(("", "a"), ("a", "b"), ("", ""), ("b", "")) == [0, 1, 2, 3]


def test_everything_runs_once():
    rows = [("", f"x{i}") for i in range(60)]
    rows += [(f"x{i} x{59 - i}", f"y{i}") for i in range(60)]
    made = steps(*rows)
    result = in_order(made, lambda name: 4)
    assert sorted(result) == list(range(120))
    done = 0
    for position in result:
        assert not made[position].ancestors & ~done
        done |= made[position].members


def test_nothing_comes_between_a_collective_and_its_wait():
    # 1 is the collective, 2 and 3 compute, 4 waits for 1; the last reads everything.
    made = steps(("", "a"), ("a", "b"), ("", "c"), ("c", "d"), ("b", "e"), ("d e", ""))
    assert in_order(made, lambda name: 1) == [0, 1, 2, 3, 4, 5]
    made[4] = replace(made[4], is_wait=True)
    assert in_order(made, lambda name: 1) == [0, 1, 4, 2, 3, 5]
