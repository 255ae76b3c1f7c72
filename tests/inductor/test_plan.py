"""Plans as data: JSON, printing, validation."""

import math

import pytest
import torch
from plan_testing import DOUBLE, call, matrix, vector

from minidynamo.inductor.codegen.plan import (
    Alloc,
    AsStrided,
    Constant,
    Define,
    Device,
    Dtype,
    Expr,
    Extern,
    Free,
    Input,
    KernelCall,
    Layout,
    MemoryFormat,
    Plan,
    PlanBuilder,
    PlanError,
    PyCall,
    Ref,
    Restride,
    Reuse,
    Symbol,
    TritonLaunch,
    argument,
    constant_data,
    constant_tensor,
)


def every_step() -> Plan:
    """A plan with every kind of step and argument (it makes no sense to run)."""
    b = PlanBuilder()
    x = b.input(matrix("x", "s0", 8))
    n = b.input(Input("n", "int"))
    b.input(Input("anything"))
    c = b.constant(Constant("weight", size=(2,), data=constant_data(torch.tensor([1.0, 2.0]))))
    b.symbols += [Symbol("s0", x, "size", 0), Symbol("s1", n)]
    a = b.alloc(("s0", 8), (8, 1), "float32", name="scratch")
    b.kernel(DOUBLE)
    b.add(KernelCall(DOUBLE.symbol, (x, a), ("s0*8", 0.5, math.inf), (a,), "model.py:3  x * 2"))
    r = b.slot()
    b.add(Reuse(r, a, ("s0", 4), (4, 1), "float64"))
    v = b.slot()
    b.add(AsStrided(v, r, (2,), (1,), "s0"))
    args = (Ref(v), (Ref(c), None), Expr("s0+1"), 1.5, -math.inf, 2j, True, "sum", (1, 2))
    kwargs = {
        "dtype": argument(torch.float16),
        "device": argument(torch.device("cuda", 1)),
        "layout": argument(torch.strided),
        "memory_format": argument(torch.channels_last),
    }
    o, p = b.slot(), b.slot()
    b.add(Extern("lib::op", "over", args, kwargs, (o, None, (p,), Define("u0")), "model.py:4"))
    q = b.slot()
    b.add(Restride(q, o, (2, 2), (1, 2), "float32"))
    w = b.slot()
    b.add(PyCall("fn", (Ref(q), Expr("u0")), {"flag": None}, (w,)))
    launch_args = (("ptr", Ref(q)), ("i32", Expr("s0")), ("f32", 1.0), ("null", None))
    b.add(TritonLaunch("tk", "tk_0", "/c", "cuda:0", ("s0", 1, 1), 4, 0, launch_args, (q,)))
    b.add(Free((v, q)))
    b.mutated_inputs.append(x)
    return b.finish((Ref(w), Expr("u0"), None, 3, Ref(x)), header="// header")


def test_json_round_trip():
    plan = every_step()
    again = Plan.from_json(plan.to_json())
    assert again == plan
    assert again.to_json() == plan.to_json()


def test_json_of_another_format_is_refused():
    data = every_step().to_dict() | {"version": 99}
    with pytest.raises(ValueError, match="format 99"):
        Plan.from_dict(data)


def test_render():
    text = every_step().render()
    assert text.splitlines()[:15] == [
        "def run(x: float32[s0, 8], n: int, anything: tensor):",
        "    s0 = x.size(0)",
        "    s1 = n",
        "    scratch = empty((s0, 8), (8, 1), float32, 'cpu')",
        "    k_double(x, &scratch; s0*8, 0.5, inf)  # model.py:3  x * 2",
        "    buf5 = reuse(scratch, (s0, 4), (4, 1), float64)",
        "    buf6 = as_strided(buf5, (2,), (1,), +s0)",
        "    buf7, _, (buf8,), u0 = lib.op.over(buf6, [weight, None], s0+1, 1.5, -inf, 2j, True, "
        "'sum', [1, 2], dtype=float16, device='cuda:1', layout=strided, "
        "memory_format=channels_last)  # model.py:4",
        "    buf9 = restride(buf7, (2, 2), (1, 2), float32)",
        "    buf10 = fn(buf9, u0, flag=None)",
        "    tk[(s0, 1, 1), 4 warps](&buf9, s0, 1.0, None)",
        "    del buf6, buf9",
        "    return (buf10, u0, None, 3, x)",
        "",
        "// ---- k_double",
    ]
    assert "out[i] = a * 2" in text
    assert "k_double(void**" not in every_step().render(kernels=False)


def test_arguments_of_torch_types():
    assert argument(torch.int64) == Dtype("int64")
    assert argument(torch.device("cpu")) == Device("cpu")
    assert argument(torch.strided) == Layout("strided")
    assert argument(torch.preserve_format) == MemoryFormat("preserve_format")
    assert argument([Ref(0), [1, None]]) == (Ref(0), (1, None))
    with pytest.raises(TypeError, match="Tensor cannot be an argument"):
        argument(torch.ones(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.bfloat16, torch.complex64])
def test_constants_carry_their_bytes(dtype):
    tensor = torch.tensor([[0, 1, 2], [3, 4, 5]]).to(dtype).t()
    name = str(dtype).removeprefix("torch.")
    constant = Constant("c", name, tuple(tensor.shape), data=constant_data(tensor))
    assert torch.equal(constant_tensor(constant), tensor)
    empty = Constant("c", "float32", (0, 3), data=constant_data(torch.empty(0, 3)))
    assert constant_tensor(empty).shape == (0, 3)


def _use_after_free(b: PlanBuilder, x: int) -> tuple[int, ...]:
    y = b.alloc((8,), (1,), "float32")
    b.add(Free((y,)))
    call(b, DOUBLE, x, y, 8)
    return ()


def _use_before_definition(b: PlanBuilder, x: int) -> tuple[int, ...]:
    call(b, DOUBLE, x, 7, 8)
    return ()


def _second_value(b: PlanBuilder, x: int) -> tuple[int, ...]:
    b.add(Alloc(x, (8,), (1,), "float32"))
    return ()


def _unknown_kernel(b: PlanBuilder, x: int) -> tuple[int, ...]:
    b.add(KernelCall("nobody", (x,), (), (9,), offsets=(0, 4)))
    return ()


def _dead_output(b: PlanBuilder, x: int) -> tuple[int, ...]:
    b.add(Free((x,)))
    return (x,)


def _ragged(b: PlanBuilder, x: int) -> tuple[int, ...]:
    b.alloc((8, 8), (1,), "float32")
    b.add(Extern("addmm"))
    return ()


@pytest.mark.parametrize(
    ("build", "problems"),
    [
        (_use_after_free, ["slot 1 after it was freed"]),
        (_use_before_definition, ["slot 7 before it has a value"]),
        (_second_value, ["slot 0 a second value"]),
        (
            _unknown_kernel,
            ["unknown kernel nobody", "not among its arguments", "2 offsets for 1 arguments"],
        ),
        (_dead_output, ["output slot 0 has no value"]),
        (_ragged, ["2 sizes and 1 strides", "'addmm' without a namespace"]),
    ],
)
def test_validation_names_every_problem(build, problems):
    b = PlanBuilder()
    outputs = build(b, b.input(vector("x")))
    with pytest.raises(PlanError) as error:
        b.finish(tuple(map(Ref, outputs)))
    for problem in problems:
        assert problem in str(error.value)
