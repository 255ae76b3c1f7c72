"""Operator calls: every kind of argument and result, the typed paths, errors, custom operators."""

import warnings

import pytest
import torch
from plan_testing import DOUBLE, call, executor, vector

from minidynamo.inductor.codegen.plan import (
    Expr,
    Extern,
    Input,
    PlanBuilder,
    Ref,
    Symbol,
    argument,
)


def run_op(op, args, kwargs=None, n_outs=1, overload=""):
    """The operator called through a plan; tensors among the arguments are its inputs."""
    b = PlanBuilder()
    tensors = []

    def convert(value):
        if isinstance(value, torch.Tensor):
            tensors.append(value)
            return Ref(b.input(Input(f"x{len(tensors)}")))
        if isinstance(value, (list, tuple)):
            return tuple(convert(item) for item in value)
        return argument(value)

    converted = tuple(convert(arg) for arg in args)
    keywords = {key: convert(value) for key, value in (kwargs or {}).items()}
    outs = tuple(b.slot() for _ in range(n_outs))
    b.add(Extern(op, overload, converted, keywords, outs))
    run = executor(b.finish(tuple(map(Ref, outs))))
    return run(*tensors), run.info["typed_calls"]


A = torch.randn(4, 5)
B = torch.randn(5, 3)
BATCH = torch.randn(2, 4, 5)
BATCH2 = torch.randn(2, 5, 3)
QUERY = torch.randn(1, 2, 8, 16)
IMAGE = torch.randn(1, 3, 8, 8)
FILTER = torch.randn(4, 3, 3, 3)
CONVOLUTION = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
MASK = [True, True, False]


@pytest.mark.parametrize(
    ("name", "args", "kwargs", "n_outs", "typed"),
    [
        ("mm", (A, B), {}, 1, True),
        ("bmm", (BATCH, BATCH2), {}, 1, True),
        ("addmm", (B[0], A, B), {"alpha": 2, "beta": 0.5}, 1, True),
        ("baddbmm", (BATCH2[:, :1], BATCH, BATCH2), {}, 1, True),
        ("convolution", (IMAGE, FILTER, None, *CONVOLUTION), {}, 1, True),
        ("convolution", (IMAGE, FILTER, torch.ones(4), *CONVOLUTION), {}, 1, True),
        (
            "convolution_backward",
            (torch.ones(1, 4, 8, 8), IMAGE, FILTER, [4], *CONVOLUTION, MASK),
            {},
            3,
            True,
        ),
        ("_scaled_dot_product_flash_attention_for_cpu", (QUERY, QUERY, QUERY), {}, 2, True),
        (
            "_scaled_dot_product_flash_attention_for_cpu",
            (QUERY, QUERY, QUERY, 0.0, True),
            {"attn_mask": None, "scale": 0.3},
            2,
            True,
        ),
        ("cat", ([A, A, A], 1), {}, 1, False),
        ("sort", (A, -1, True), {}, 2, False),
        ("pow.Tensor_Scalar", (A.abs(), 2.5), {}, 1, False),
        ("sum.dim_IntList", (A, [0], True), {"dtype": torch.float64}, 1, False),
        (
            "full",
            ([2, 3], 1j),
            {"dtype": torch.complex64, "device": torch.device("cpu")},
            1,
            False,
        ),
        ("clone", (A.t(),), {"memory_format": torch.contiguous_format}, 1, False),
        ("div.Tensor_mode", (A, A + 9), {"rounding_mode": "floor"}, 1, False),
        ("index.Tensor", (A, [None, torch.tensor([0, 2])]), {}, 1, False),
        ("clamp", (A, None, 0.5), {}, 1, False),
        ("var_mean.correction", (A, [1]), {"correction": 0, "keepdim": False}, 2, False),
        ("scalar_tensor", (float("inf"),), {}, 1, False),
        ("linear", (A, B.t(), None), {}, 1, False),
    ],
)
def test_operators_equal_eager(name, args, kwargs, n_outs, typed):
    base, _, overload = name.partition(".")
    function = getattr(getattr(torch.ops.aten, base), overload or "default")
    expected = function(*args, **kwargs)
    expected = expected if isinstance(expected, tuple) else (expected,)
    got, typed_calls = run_op(f"aten::{base}", args, kwargs, n_outs, overload)
    assert len(got) == len(expected)
    for one, other in zip(got, expected, strict=True):
        assert one is other is None or torch.equal(one, other)
    assert bool(typed_calls) is typed


def test_list_results_and_dropped_ones():
    b = PlanBuilder()
    x = b.input(vector("x", 6))
    first, last = b.slot(), b.slot()
    b.add(Extern("aten::split", "Tensor", (Ref(x), 2), {}, ((first, None, last),)))
    values = b.slot()
    b.add(Extern("aten::sort", "", (Ref(last),), {}, (values, None)))
    run = executor(b.finish((Ref(first), Ref(values))))
    out = run(torch.arange(6.0).flip(0))
    assert [t.tolist() for t in out] == [[5, 4], [0, 1]]
    b = PlanBuilder()
    x = b.input(vector("x", 6))
    b.add(Extern("aten::split", "Tensor", (Ref(x), 2), {}, ((b.slot(), b.slot()),)))
    run = executor(b.finish((Ref(1),)))
    with pytest.raises(ValueError, match="returned 3 values, expected 2"):
        run(torch.ones(6))


def test_symbolic_arguments():
    b = PlanBuilder()
    x = b.input(vector("x", "s0"))
    n = b.input(Input("n", "int"))
    b.symbols += [Symbol("s0", x, "size", 0), Symbol("s1", n)]
    y, z = b.slot(), b.slot()
    b.add(Extern("aten::view", "", (Ref(x), (Expr("s0 // s1"), Ref(n))), {}, (y,)))
    b.add(Extern("aten::add", "Tensor", (Ref(y), Ref(y)), {"alpha": Expr("s1")}, (z,)))
    (out,) = executor(b.finish((Ref(z),)))(torch.arange(6.0), 3)
    assert torch.equal(out, torch.arange(6.0).reshape(2, 3) * 4)


@pytest.mark.parametrize(
    ("op", "overload", "args", "shapes"),
    [
        ("aten::mm", "out", (0, 1), [(4, 5), (5, 3), (4, 3)]),
        ("aten::bmm", "out", (0, 1), [(2, 4, 5), (2, 5, 3), (2, 4, 3)]),
        ("aten::addmm", "out", (2, 0, 1), [(4, 5), (5, 3), (4, 3)]),
        ("aten::baddbmm", "out", (2, 0, 1), [(2, 4, 5), (2, 5, 3), (2, 4, 3)]),
    ],
)
def test_out_variants_write_planned_memory(op, overload, args, shapes):
    b = PlanBuilder()

    def contiguous(shape):
        stride = torch.empty(shape, device="meta").stride()
        return tuple(shape), stride

    for index, shape in enumerate(shapes):
        size, stride = contiguous(shape)
        b.input(Input(f"x{index}", size=size, stride=stride))
    size, stride = contiguous(shapes[2])
    n = torch.Size(size).numel()
    product = b.alloc(size, stride, "float32")
    b.add(Extern(op, overload, tuple(map(Ref, args)), {"out": Ref(product)}, (None,)))
    result = b.alloc(size, stride, "float32")
    call(b, DOUBLE, product, result, n)
    run = executor(b.finish((Ref(result),)))
    assert run.info["planned_slots"] == 1 and run.info["typed_calls"] == 1
    tensors = [torch.randn(shape) for shape in shapes]
    function = getattr(torch.ops.aten, op.removeprefix("aten::")).default
    for _ in range(3):
        tensors[0] = tensors[0] + 1
        expected = function(*[tensors[i] for i in args]) * 2
        assert torch.equal(run(*tensors)[0], expected)


# ------------------------------------------------------------------------------------------------
# Wrong calls


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (Extern("aten::nothing", "", (Ref(0),), {}, (1,)), "no operator aten::nothing"),
        (Extern("aten::mm", "fast", (Ref(0),), {}, (1,)), "no operator aten::mm.fast"),
        (Extern("aten::mm", "", (Ref(0),), {}, (1,)), "needs argument 'mat2'"),
        (Extern("aten::neg", "", (Ref(0), Ref(0)), {}, (1,)), "arguments that its schema"),
        (Extern("aten::neg", "", (Ref(0),), {"alpha": 1}, (1,)), "arguments that its schema"),
        (
            Extern("aten::neg", "", (Ref(0),), {}, (1, None)),
            "returns 1 values, the step takes 2",
        ),
        (Extern("aten::neg", "", ("x",), {}, (1,)), "argument 'self'"),
        (Extern("aten::cat", "", ((Ref(0), 3),), {}, (1,)), "argument 'tensors'"),
        (Extern("aten::sum", "dim_IntList", (Ref(0), Ref(0)), {}, (1,)), "argument 'dim'"),
        (Extern("aten::neg", "", ((Ref(0),),), {}, (1,)), "a list cannot be passed as Tensor"),
        (
            Extern("aten::neg", "", (Expr("1"),), {}, (1,)),
            "an integer cannot be passed as Tensor",
        ),
    ],
)
def test_wrong_bindings_name_the_step_and_the_argument(step, message):
    b = PlanBuilder()
    b.input(vector("x"))
    b.slot()
    b.add(step)
    with pytest.raises(ValueError, match=rf"step 0 \(extern\): .*{message}"):
        executor(b.finish((Ref(1),)))


@pytest.mark.parametrize(
    ("op", "args", "error"),
    [
        ("aten::mm", (torch.ones(2, 3), torch.ones(2, 3)), RuntimeError),
        ("aten::select.int", (torch.ones(3), 0, 7), IndexError),
        ("aten::linalg_inv_ex", (torch.zeros(2, 3),), RuntimeError),
        ("aten::linalg_cholesky", (-torch.eye(2),), torch.linalg.LinAlgError),
        ("aten::sort", (torch.ones(2), 5), IndexError),
        ("aten::bitwise_and.Tensor", (torch.ones(2), torch.ones(2)), NotImplementedError),
    ],
)
def test_errors_are_those_of_eager(op, args, error):
    base, _, overload = op.removeprefix("aten::").partition(".")
    with pytest.raises(error) as eager:
        getattr(getattr(torch.ops.aten, base), overload or "default")(*args)
    n_outs = 2 if base in ("sort", "linalg_inv_ex") else 1
    with pytest.raises(error) as compiled:
        run_op(f"aten::{base}", args, {}, n_outs, overload)
    assert type(compiled.value) is type(eager.value)
    assert str(compiled.value) == str(eager.value)


def test_warnings_reach_python():
    b = PlanBuilder()
    x = b.input(Input("x"))
    out = b.input(Input("out"))
    b.add(Extern("aten::neg", "out", (Ref(x),), {"out": Ref(out)}, (None,)))
    run = executor(b.finish(()))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(torch.ones(3), torch.ones(2))
    assert any("resized" in str(warning.message) for warning in caught)


# ------------------------------------------------------------------------------------------------
# Custom operators


@pytest.fixture(scope="module")
def library():
    lib = torch.library.Library("minidynamo_plan_tests", "FRAGMENT")
    state = {"kept": [], "fail": False}

    def keeps(x):
        state["kept"].append(x)
        return x + 1

    def same(x):
        return x

    def fails(x):
        if state["fail"]:
            raise KeyError("custom")
        return x * 1

    def bump(x):
        x += 1

    for function, schema in (
        (keeps, "keeps(Tensor x) -> Tensor"),
        (same, "same(Tensor x) -> Tensor"),
        (fails, "fails(Tensor x) -> Tensor"),
        (bump, "bump(Tensor(a!) x) -> ()"),
    ):
        lib.define(schema)
        lib.impl(function.__name__, function, "CPU")
    yield state
    lib._destroy()


def custom_plan(op, n=8, outs=1):
    """double, then the operator, then double into a planned buffer of the same size, then add."""
    b = PlanBuilder()
    x = b.input(vector("x", n))
    first = b.alloc((n,), (1,), "float32")
    call(b, DOUBLE, x, first, n)
    results = tuple(b.slot() for _ in range(outs))
    b.add(Extern(f"minidynamo_plan_tests::{op}", "", (Ref(first),), {}, results))
    second = b.alloc((n,), (1,), "float32")
    call(b, DOUBLE, x, second, n)
    third = b.alloc((n,), (1,), "float32")
    call(b, DOUBLE, second, third, n)
    return executor(
        b.finish((*map(Ref, results), Ref(third), *(() if outs else (Ref(first),))))
    )


def test_custom_operator_that_keeps_its_argument(library):
    run = custom_plan("keeps")
    for value in (1.0, 2.0):
        assert run(torch.full((8,), value))[0][0] == 2 * value + 1
    assert [t[0].item() for t in library["kept"]] == [2.0, 4.0]


def test_custom_operator_that_returns_its_argument(library):
    run = custom_plan("same")
    outs = [run(torch.full((8,), value)) for value in (1.0, 2.0)]
    assert [out[0][0].item() for out in outs] == [2.0, 4.0]
    assert [out[1][0].item() for out in outs] == [4.0, 8.0]


def test_custom_operator_that_mutates(library):
    assert custom_plan("bump", outs=0)(torch.ones(8))[1].tolist() == [3.0] * 8


def test_custom_operator_that_raises_leaves_the_executor_usable(library):
    run = custom_plan("fails")
    library["fail"] = True
    with pytest.raises(KeyError, match="custom"):
        run(torch.ones(8))
    library["fail"] = False
    assert run(torch.ones(8))[0].tolist() == [2.0] * 8


def test_python_operator_calls_back_into_the_executor(library):
    holder = {}
    lib = torch.library.Library("minidynamo_plan_tests", "FRAGMENT")
    lib.define("recurse(Tensor x) -> Tensor")
    lib.impl("recurse", lambda x: holder["run"](x / 8)[0] if x[0] > 1 else x * 1, "CPU")
    run = holder["run"] = custom_plan("recurse")
    assert run(torch.full((8,), 0.5))[0].tolist() == [1.0] * 8
    assert run(torch.full((8,), 0.25))[1].tolist() == [1.0] * 8
    lib._destroy()
