"""Sizes of inputs as the symbols of plans."""

import math

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from minidynamo.inductor.size_hints import size_symbols
from minidynamo.inductor.sizes import SizeTable
from minidynamo.inductor.symbolic import Undecided


def graph_of(*values):
    graph = torch.fx.Graph()
    for i, value in enumerate(values):
        graph.placeholder(f"in{i}").meta["val"] = value
    graph.output(())
    return torch.fx.GraphModule({}, graph)


def convert(sizes, *values):
    found = [sizes.convert(value.shape[0]) for value in values]
    sizes.close()
    return found


def test_sizes_made_of_floats_are_taken_from_inputs_or_computed():
    mode = FakeTensorMode(shape_env=ShapeEnv())
    dynamic = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC])
    x = mode.from_tensor(torch.ones(9), symbolic_context=dynamic)
    count = math.ceil(x.shape[0] / 4)
    with mode:
        rows, padded = torch.ones(count), torch.ones(4 * count)
    _, alone = convert(SizeTable.of(graph_of(x, rows)), x, rows)
    assert str(alone) == "e1"
    whole, part, _ = convert(SizeTable.of(graph_of(padded, rows, x)), padded, rows, x)
    assert (str(part), str(whole)) == ("e0", "4*e0")
    assert [symbol.text for symbol in size_symbols([whole])] == ["e0"]
    # No input is as long as there are rows.
    size, whole = convert(SizeTable.of(graph_of(x, padded)), x, padded)
    (symbol,) = size_symbols([whole])
    assert symbol.text == f"(CeilToInt(IntTrueDiv({size}, 4)))"
    with pytest.raises(Undecided, match="no input gives"):
        convert(SizeTable.of(graph_of(padded)), padded)
