"""Damaged plans: whatever the data, the executor raises or runs, and never crashes."""

import copy
import random

import pytest
import torch
from plan_testing import ADD_ONE, DOUBLE, HEADER, call, executor, matrix

from minidynamo import _C
from minidynamo.inductor.codegen.plan import (
    AsStrided,
    Constant,
    Define,
    Expr,
    Extern,
    Free,
    Input,
    Plan,
    PlanBuilder,
    PyCall,
    Ref,
    Restride,
    Reuse,
    Symbol,
)
from minidynamo.inductor.runtime.cpp_toolchain import compile_library

CONSTANTS = [torch.ones(4)]
CALLABLES = {"f": lambda tensor, n, k: tensor + k}


def plan() -> Plan:
    """A plan with nearly every kind of step, which runs."""
    b = PlanBuilder()
    x, y = b.input(matrix("x", "s0", 4)), b.input(matrix("y", 4, 4))
    n = b.input(Input("n", "int"))
    c = b.constant(Constant("c", size=(4,)))
    b.symbols += [Symbol("s0", x, "size", 0), Symbol("s1", n)]
    first = b.alloc((16,), (1,), "float32")
    call(b, DOUBLE, y, first, 16)
    view = b.slot()
    b.add(AsStrided(view, first, (4, 4), (4, 1)))
    planned = b.alloc((4, 4), (4, 1), "float32")
    b.add(Extern("aten::mm", "out", (Ref(view), Ref(y)), {"out": Ref(planned)}, (None,)))
    product, same = b.slot(), b.slot()
    b.add(Extern("aten::mm", "", (Ref(x), Ref(planned)), {}, (product,)))
    b.add(Restride(same, product, ("s0", 4), (4, 1), "float32"))
    dynamic = b.alloc(("s0*4",), (1,), "float32")
    call(b, ADD_ONE, same, dynamic, "s0*4")
    again, low, high, joined, total, seen = (b.slot() for _ in range(6))
    b.add(Reuse(again, dynamic, ("s0", 4), (4, 1), "float32"))
    b.add(Extern("aten::split", "Tensor", (Ref(again), 1), {}, ((low, high),)))
    b.add(Extern("aten::cat", "", ((Ref(low), Ref(high), Ref(x)),), {"dim": 0}, (joined,)))
    b.add(Extern("aten::add", "Tensor", (Ref(joined), Ref(c)), {"alpha": Expr("s1")}, (total,)))
    b.add(PyCall("f", (Ref(total), (Ref(n),)), {"k": 2}, (seen,)))
    b.add(Extern("aten::size", "int", (Ref(seen), 0), {}, (Define("u0"),)))
    b.add(Free((seen,)))
    return b.finish((Ref(total), Expr("u0+s1"), Ref(x), None, 2.5))


@pytest.fixture(scope="module")
def library():
    return str(compile_library({k.symbol: k.source for k in plan().kernels}, HEADER))


def _paths(value, path=()):
    yield path
    entries = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in entries if isinstance(value, (dict, list)) else ():
        yield from _paths(item, (*path, key))


def _at(value, path):
    for key in path:
        value = value[key]
    return value


def damage(data, values, choose: random.Random):
    """A copy with one entry replaced, removed, repeated or moved; kernels are trusted."""
    data = copy.deepcopy(data)
    skipped = ("kernels", "header", "slot_names")
    paths = [path for path in _paths(data) if path and path[0] not in skipped]
    path = choose.choice(paths)
    parent = _at(data, path[:-1])
    action = choose.random()
    if action < 0.7:
        parent[path[-1]] = copy.deepcopy(choose.choice(values))
    elif isinstance(parent, list) and action < 0.8:
        del parent[path[-1]]
    elif isinstance(parent, list) and action < 0.9:
        parent.insert(path[-1], copy.deepcopy(choose.choice(parent)))
    else:
        parent[path[-1]] = copy.deepcopy(_at(data, choose.choice(paths)))
    if isinstance(data["steps"], list):
        for step in data["steps"]:
            if isinstance(step, dict) and step.get("step") == "kernel":
                step["sizes"] = [0]
    return data


VALUES = [
    *(0, 1, 2, 5, 16, -1, 1 << 31, 1 << 62, -(1 << 62), 1 << 70, 1.5, None, True, "", [], {}),
    *("s0", "s1", "u0", "zz", "s0*s1", [0], ["s0"], "float64", "int8", "bool", "complex64"),
    *(
        {"ref": 0},
        {"ref": 4},
        {"ref": 1 << 40},
        {"expr": "s0"},
        {"define": "u0"},
        {"float": "nan"},
    ),
    *(
        "aten::neg",
        "aten::mm",
        "out",
        "cpu",
        "cuda:0",
        "meta",
        "alloc",
        "free",
        "kernel",
        "extern",
    ),
]


@pytest.mark.parametrize("seed", range(4))
def test_damaged_plans_raise_or_run(library, seed):
    choose = random.Random(seed)
    data = plan().to_dict()
    ran = 0
    for _ in range(150):
        try:
            run = _C.PlanExecutor(damage(data, VALUES, choose), library, CONSTANTS, CALLABLES)
            for n in (2, 5):
                run(torch.ones(n, 4), torch.ones(4, 4), 3)
                run.boxed([torch.ones(n, 4), torch.ones(4, 4), 3])
            ran += 1
        except Exception as error:
            assert str(error) or isinstance(error, KeyError)
    run = _C.PlanExecutor(data, library, CONSTANTS, CALLABLES)
    total, size = run(torch.ones(2, 4), torch.ones(4, 4), 3)[:2]
    assert total[0].tolist() == [36.0] * 4 and size == 7


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_an_out_argument_of_the_wrong_size():
    b = PlanBuilder()
    x = b.input(matrix("x", 4, 4))
    small = b.alloc((2, 4), (4, 1), "float32")
    b.add(Extern("aten::mm", "out", (Ref(x), Ref(x)), {"out": Ref(small)}, (None,)))
    result = b.alloc((8,), (1,), "float32")
    call(b, DOUBLE, small, result, 8)
    run = executor(b.finish((Ref(result),)))
    for _ in range(3):
        with pytest.raises(RuntimeError, match="resize"):
            run(torch.ones(4, 4))


def test_none_for_a_tensor():
    b = PlanBuilder()
    x = b.input(matrix("x", 4, 4))
    y = b.slot()
    b.add(Extern("aten::mm", "", (Ref(x), None), {}, (y,)))
    run = executor(b.finish((Ref(y),)))
    assert run.info["typed_calls"] == 0
    with pytest.raises(RuntimeError):
        run(torch.ones(4, 4))


def test_nesting_has_a_limit(library):
    data = plan().to_dict()
    nested: list = []
    for _ in range(100_000):
        nested = [nested]
    for place in ("args", "outs"):
        broken = copy.deepcopy(data)
        broken["steps"][4][place] = [nested]
        with pytest.raises(ValueError, match="nested too deeply|cannot be passed"):
            _C.PlanExecutor(broken, library, CONSTANTS, CALLABLES)
    while nested:  # one level at a time: freeing it at once recurses
        nested = nested[0]
