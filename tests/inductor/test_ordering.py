"""The order of steps: the graph's, but for what frees memory."""

from dataclasses import replace

from minidynamo.inductor.ordering import Step, fullest, in_order, put_off


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


def backward(layers, gradient, kept, activation=16):
    """Steps of a backward pass, and the bytes of each value: of every layer the gradient of its
    weight, w, from g and x, then that which is passed on, from g and a.
    """
    made = steps(("", "g0"), *((f"g{i}", f"g{i + 1}") for i in range(layers)))
    result = [made[0]]
    for i in range(layers):
        members = 1 << (layers + 1 + i)
        given = frozenset([f"x{i}"])
        weight = Step(members, 1 << i, frozenset([f"g{i}"]), frozenset(), False, given)
        result.append(replace(weight, results=frozenset([f"w{i}"])))
        result.append(replace(made[i + 1], given=frozenset([f"a{i}"])))
    sizes = {"w": gradient, "g": kept, "x": kept, "a": activation}
    return result, lambda name: sizes[name[0]] << 20


def test_gradients_larger_than_what_they_are_made_of_are_put_off():
    made, nbytes = backward(4, 8, 1)
    usual = in_order(made, nbytes)
    order = put_off(made, usual, nbytes)
    assert usual == list(range(9)) and order == [0, 2, 4, 6, 8, 1, 3, 5, 7]
    # All activations, and the gradient of a weight or one that is passed on.
    assert fullest(made, usual, nbytes) == (4 * 16 + 4 + 1 + 8) << 20
    assert fullest(made, order, nbytes) == (4 * 16 + 4 + 1 + 1) << 20
    # Smaller ones come where they are, and all of them where nothing else is freed meanwhile.
    made, nbytes = backward(4, 1, 8)
    assert put_off(made, list(range(9)), nbytes) == list(range(9))
    made, nbytes = backward(4, 8, 1, activation=0)
    assert put_off(made, list(range(9)), nbytes) == list(range(9))


def test_gradients_are_put_off_until_they_free_more_than_they_take():
    # Each would take 9 - 5 before g is passed on, 9 - 10 after it.
    made, nbytes = backward(4, 9, 5)
    assert put_off(made, list(range(9)), nbytes) == [0, 2, 1, 4, 3, 6, 5, 8, 7]


def test_nothing_is_put_off_between_a_collective_and_its_wait():
    made, nbytes = backward(4, 8, 1)
    made[-1] = replace(made[-1], is_wait=True)
    assert put_off(made, list(range(9)), nbytes) == list(range(9))
