"""The executor: inputs, steps, outputs, errors."""

import dataclasses
import gc
import weakref

import pytest
import torch
from plan_testing import ADD_ONE, DOUBLE, HEADER, call, executor, matrix, pointwise, vector

from minidynamo import _C
from minidynamo.inductor.codegen.plan import (
    AsStrided,
    Constant,
    Define,
    Expr,
    Extern,
    Input,
    Kernel,
    KernelCall,
    Plan,
    PlanBuilder,
    PyCall,
    Ref,
    Restride,
    Reuse,
    Symbol,
)
from minidynamo.inductor.runtime.cpp_toolchain import compile_library


def double_plan(n: int = 8) -> Plan:
    b = PlanBuilder()
    x = b.input(vector("x", n))
    y = b.alloc((n,), (1,), "float32")
    call(b, DOUBLE, x, y, n)
    return b.finish((Ref(y),))


def test_one_kernel():
    run = executor(double_plan())
    x = torch.arange(8.0)
    (y,) = run(x)
    assert torch.equal(y, x * 2)
    assert y.data_ptr() != run(x)[0].data_ptr()  # every call returns memory of its own
    assert y._version == 0 and not y.requires_grad and y.untyped_storage().resizable()


def test_single_output():
    assert torch.equal(
        executor(double_plan(), single=True)(torch.ones(8)), torch.full((8,), 2.0)
    )
    with pytest.raises(ValueError, match="one output"):
        executor(PlanBuilder().finish((None, 1)), single=True)


def test_inputs_requiring_grad_leave_no_history():
    x = torch.ones(8, requires_grad=True)
    b = PlanBuilder()
    slot = b.input(vector("x"))
    view, total = b.slot(), b.slot()
    b.add(AsStrided(view, slot, (4,), (2,)))
    b.add(Extern("aten::sum", "", (Ref(view),), {}, (total,)))
    out = executor(b.finish((Ref(view), Ref(total))))(x)
    assert all(t.grad_fn is None and not t.requires_grad for t in out)
    assert torch.equal(out[0], torch.ones(4)) and out[1] == 4
    assert torch.is_grad_enabled()


def test_outputs_of_every_kind():
    b = PlanBuilder()
    x = b.input(vector("x", "s0"))
    n = b.input(Input("n", "int"))
    b.symbols += [Symbol("s0", x, "size", 0), Symbol("s1", n)]
    c = b.constant(Constant("c", size=(2,)))
    y = b.alloc(("s0",), (1,), "float32")
    call(b, DOUBLE, x, y, "s0")
    outputs = (Ref(x), Ref(y), Ref(y), Ref(c), Ref(n), Expr("s0*s1 + 1"), None, 3, 2.5, True)
    constant = torch.tensor([1.0, 2.0])
    run = executor(b.finish(outputs), constants=[constant])
    tensor = torch.ones(5)
    for out in (run(tensor, 7), run.boxed([tensor, 7])):
        assert out[0] is tensor and out[1] is out[2] and out[3] is constant
        assert torch.equal(out[1], tensor * 2)
        assert out[4:] == (7, 36, None, 3, 2.5, True)
        assert out[9] is True


def test_symbolic_sizes():
    b = PlanBuilder()
    x = b.input(matrix("x", "s0", "s1"))
    b.symbols += [Symbol("s0", x, "size", 0), Symbol("s1", x, "size", 1)]
    y = b.alloc(("s0*s1",), (1,), "float32")
    call(b, DOUBLE, x, y, "s0*s1")
    v = b.slot()
    b.add(AsStrided(v, y, ("s0", "FloorDiv(s1, 2)"), ("s1", 2), "Mod(s1, 2)"))
    run = executor(b.finish((Ref(v), Expr("Max(s0, s1)"))))
    for shape in ((3, 4), (1, 6), (0, 2), (5, 1)):
        tensor = torch.randn(shape)
        view, largest = run(tensor)
        assert torch.equal(view, (tensor * 2)[:, shape[1] % 2 :: 2][:, : shape[1] // 2])
        assert largest == max(shape)


def test_expression_semantics():
    cases = {
        "-7//2": -4,
        "-7 % 3": 2,
        "2**3**2": 512,
        "-(n - 3)*2": -8,
        "CeilDiv(n, 2)": 4,
        "ModularIndexing(n*10, 4, 5)": 2,
        "Min(n, 3, 5) + Max(1, n)": 10,
        "PythonMod(-n, 4)": 1,
        "FloorDiv(-n, 2)": -4,
        "Abs(n - 10) + Abs(n)": 10,
    }
    b = PlanBuilder()
    b.symbols.append(Symbol("n", b.input(Input("n", "int"))))
    assert executor(b.finish(tuple(map(Expr, cases))))(7) == tuple(cases.values())


def test_floats_in_expressions():
    cases = {
        "TruncToInt(0.29*ToFloat(n*100))": int(0.29 * 700),
        "TruncToInt(-1.5*ToFloat(n))": -10,
        "FloorToInt(-1.5*ToFloat(n))": -11,
        "CeilToInt(ToFloat(n)*0.5)": 4,
        "RoundToInt(0.5*ToFloat(n - 2))": 2,
        "TruncToInt(IntTrueDiv(n, 3)*3.0)": 7,
        "TruncToInt(FloatPow(ToFloat(n + 2), 0.5))": 3,
        "TruncToInt(OpaqueUnaryFn_sqrt(ToFloat(n - 3))) + 1": 3,
        "PowByNatural(2, CeilToInt(OpaqueUnaryFn_log2(ToFloat(n))))": 8,
        "TruncToInt(FloatTrueDiv(OpaqueUnaryFn_log(ToFloat(n)), 0.5))": 3,
        "TruncToInt(FloatTrueDiv(1e+02, ToFloat(n)) - 2*ToFloat(n))": 0,
        "FloorToInt(1.0 - n)": -6,
        "TruncToInt(FloatTrueDiv(FloatTrueDiv(ToFloat(n*3), 0.7), IntTrueDiv(n, 2)))": int(
            21 / 0.7 / 3.5
        ),
    }
    b = PlanBuilder()
    b.symbols.append(Symbol("n", b.input(Input("n", "int"))))
    assert executor(b.finish(tuple(map(Expr, cases))))(7) == tuple(cases.values())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("n +", "expected a number"),
        ("n * 0.5", "a float, not an integer"),
        ("TruncToInt(0.5 % n)", "'%' takes integers"),
        ("IntTrueDiv(n)", "wrong arguments"),
        ("m", "unknown symbol 'm'"),
        ("sqrt(n)", "unknown function 'sqrt'"),
        ("Mod(n)", "wrong arguments"),
        ("Abs(n, 2)", "wrong arguments"),
        ("Abs(1.5)", "'Abs' takes integers"),
        ("(n", "missing"),
        ("n n", "unexpected text"),
        ("(" * 100 + "n" + ")" * 100, "nested"),
        ("9" * 30, "too large"),
    ],
)
def test_bad_expressions_are_refused(text, message):
    b = PlanBuilder()
    b.symbols.append(Symbol("n", b.input(Input("n", "int"))))
    with pytest.raises((ValueError, RuntimeError), match=message):
        executor(b.finish((Expr(text),)))


def test_expressions_that_have_no_value():
    b = PlanBuilder()
    b.symbols.append(Symbol("n", b.input(Input("n", "int"))))
    run = executor(b.finish((Expr("10 // n"), Expr("n*n"))))
    with pytest.raises(RuntimeError, match="division by zero"):
        run(0)
    with pytest.raises(RuntimeError, match="overflow"):
        run(1 << 40)
    assert run(5) == (2, 25)
    run = executor(b.finish((Expr("TruncToInt(OpaqueUnaryFn_sqrt(ToFloat(n))*1e+10)"),)))
    with pytest.raises(RuntimeError, match="root of a negative number"):
        run(-1)
    with pytest.raises(RuntimeError, match="no integer"):
        run(1 << 60)
    assert run(4) == (20000000000,)
    run = executor(b.finish((Expr("FloorToInt(OpaqueUnaryFn_log2(ToFloat(n)))"),)))
    with pytest.raises(RuntimeError, match="logarithm of a number that is not positive"):
        run(0)
    assert run(1 << 40) == (40,)


def test_symbols_that_steps_define():
    b = PlanBuilder()
    x = b.input(vector("x", 4))
    b.add(Extern("aten::_local_scalar_dense", "", (Ref(x),), {}, (Define("u0"),)))
    plan = b.finish((Expr("u0"),))
    with pytest.raises(RuntimeError):
        executor(plan)(torch.ones(4))  # not one element
    b = PlanBuilder()
    x = b.input(Input("x", dtype="int64", size=(), stride=()))
    b.add(Extern("aten::_local_scalar_dense", "", (Ref(x),), {}, (Define("u0"),)))
    y = b.slot()
    b.add(
        Extern(
            "aten::full", "", ((Expr("u0 + 1"),), 2.0), {"dtype": None, "device": None}, (y,)
        )
    )
    out, n = executor(b.finish((Ref(y), Expr("u0*2"))))(torch.tensor(3))
    assert torch.equal(out, torch.full((4,), 2.0)) and n == 6


# ------------------------------------------------------------------------------------------------
# Inputs that do not fit


@pytest.mark.parametrize(
    ("argument", "error", "message"),
    [
        (
            torch.ones(9),
            ValueError,
            r"input x .* must be Float size \(8\).* it is Float size \[9\]",
        ),
        (torch.ones(16)[::2], ValueError, r"stride \[2\]"),
        (torch.ones(8, dtype=torch.float64), ValueError, "it is Double"),
        (torch.ones(2, 4), ValueError, r"size \[2, 4\]"),
        (torch.ones(8, device="meta"), ValueError, "on meta"),
        (torch.ones(8).to_sparse(), TypeError, "plain dense tensor"),
        (1, TypeError, "must be a tensor, not int"),
        (None, TypeError, "must be a tensor, not NoneType"),
        ([1.0], TypeError, "must be a tensor, not list"),
    ],
)
def test_tensors_that_do_not_fit(argument, error, message):
    run = executor(double_plan())
    for function, args in ((run, (argument,)), (run.boxed, ([argument],))):
        with pytest.raises(error, match=message):
            function(*args)
    assert torch.equal(run(torch.ones(8))[0], torch.full((8,), 2.0))


def test_wrong_calls():
    run = executor(double_plan())
    for args in ((), (torch.ones(8), 1)):
        with pytest.raises(TypeError, match="takes 1 inputs"):
            run(*args)
        with pytest.raises(TypeError, match="takes 1 inputs"):
            run.boxed(list(args))
    with pytest.raises(TypeError, match="positional"):
        run(x=torch.ones(8))
    with pytest.raises(TypeError, match="one list"):
        run.boxed(torch.ones(8))
    with pytest.raises(TypeError):
        _C.BoxedPlan()


def test_integers_that_do_not_fit():
    b = PlanBuilder()
    b.input(Input("n", "int"))
    run = executor(b.finish((Ref(0),)))
    assert run(-5) == (-5,)
    for value in (True, 1.0, None, torch.tensor(1)):
        with pytest.raises(TypeError, match="must be an int"):
            run(value)
    with pytest.raises(OverflowError):
        run(1 << 70)


def test_fake_tensors_and_freed_storages_are_refused():
    run = executor(double_plan())
    with torch._subclasses.FakeTensorMode():
        fake = torch.ones(8)
    with pytest.raises(TypeError, match="plain dense"):
        run(fake)
    freed = torch.ones(8)
    freed.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="freed"):
        run(freed)


def test_lazy_conjugates_and_negatives_are_carried_out():
    b = PlanBuilder()
    x = b.input(Input("x", dtype="complex64", size=(4,), stride=(1,)))
    y = b.alloc((8,), (1,), "float32")
    call(b, DOUBLE, x, y, 8)
    run = executor(b.finish((Ref(y),)))
    z = torch.randn(4, dtype=torch.complex64)
    assert torch.equal(
        run(z.conj())[0], torch.view_as_real(z.conj().resolve_conj() * 2).flatten()
    )
    negative = z.conj().imag
    assert negative.is_neg()
    b = PlanBuilder()
    x = b.input(Input("x", size=(4,), stride=(2,)))
    y = b.alloc((7,), (1,), "float32")
    call(b, DOUBLE, x, y, 7)
    got = executor(b.finish((Ref(y),)))(negative)[0]
    assert torch.equal(got[::2], negative * 2)
    b = PlanBuilder()
    x = b.input(Input("x", dtype="complex64", size=(3, 4), stride=(0, 1)))
    y = b.alloc((8,), (1,), "float32")
    call(b, DOUBLE, x, y, 8)
    wide = z.requires_grad_().conj().expand(3, 4)
    assert torch.equal(
        executor(b.finish((Ref(y),)))(wide)[0], torch.view_as_real(wide[0] * 2).flatten()
    )


def test_parameters_subclasses_and_inference_tensors():
    run = executor(double_plan())
    parameter = torch.nn.Parameter(torch.ones(8))

    class Marked(torch.Tensor):
        pass

    for tensor in (parameter, torch.ones(8).as_subclass(Marked)):
        out = run(tensor)[0]
        assert type(out) is torch.Tensor and torch.equal(out, torch.full((8,), 2.0))
    with torch.inference_mode():
        x = torch.ones(8)
        y = run(x)[0]
    assert y.is_inference() and torch.equal(y, torch.full((8,), 2.0))
    assert not run(x)[0].is_inference()


# ------------------------------------------------------------------------------------------------
# Steps


def test_reuse_and_views_of_results():
    b = PlanBuilder()
    x = b.input(matrix("x", 4, 4))
    product = b.slot()
    b.add(Extern("aten::mm", "", (Ref(x), Ref(x)), {}, (product,)))
    again = b.slot()
    b.add(Reuse(again, product, (16,), (1,), "float32"))
    call(b, DOUBLE, x, again, 16)
    view = b.slot()
    b.add(AsStrided(view, again, (2, 4), (4, 1), 8))
    (out,) = executor(b.finish((Ref(view),)))(torch.arange(16.0).reshape(4, 4))
    assert torch.equal(out, torch.arange(16.0).reshape(4, 4)[2:] * 2)
    assert out.storage_offset() == 8 and out.stride() == (4, 1)


def test_absolute_and_relative_view_offsets():
    b = PlanBuilder()
    x = b.input(vector("x", 4))
    relative, absolute = b.slot(), b.slot()
    b.add(AsStrided(relative, x, (2,), (1,), 1))
    b.add(AsStrided(absolute, x, (2,), (1,), 1, relative=False))
    run = executor(b.finish((Ref(relative), Ref(absolute))))
    first, second = run(torch.arange(10.0)[4:8])
    assert first.tolist() == [5, 6] and second.tolist() == [1, 2]


def test_views_outside_the_storage_are_refused():
    b = PlanBuilder()
    x = b.input(vector("x", 4))
    view = b.slot()
    b.add(AsStrided(view, x, (4,), (1,), 1))
    run = executor(b.finish((Ref(view),)))
    with pytest.raises(RuntimeError, match="does not fit"):
        run(torch.arange(4.0))
    assert run(torch.arange(5.0)[:4])[0].tolist() == [1, 2, 3, 4]


def test_restride_gives_the_promised_layout():
    def build(stride):
        b = PlanBuilder()
        x = b.input(Input("x"))
        y = b.slot()
        b.add(Restride(y, x, (2, 3), stride, "float32"))
        return executor(b.finish((Ref(y),)))

    x = torch.randn(2, 3)
    assert build((3, 1))(x)[0].data_ptr() == x.data_ptr()
    (columns,) = build((1, 2))(x)
    assert columns.stride() == (1, 2) and torch.equal(columns, x)
    with pytest.raises(
        ValueError, match=r"expected to give Float\[2, 3\] but gave Float\[3, 2\]"
    ):
        build((3, 1))(x.t())
    with pytest.raises(ValueError, match="but gave Double"):
        build((3, 1))(x.double())


def test_mutated_inputs_bump_their_version():
    b = PlanBuilder()
    x = b.input(vector("x"))
    call(b, ADD_ONE, x, x, 8)
    b.mutated_inputs.append(x)
    run = executor(b.finish(()))
    tensor = torch.zeros(8)
    alias = tensor[2:]
    assert run(tensor) == () and tensor._version == alias._version == 1
    assert torch.equal(tensor, torch.ones(8))


def test_floats_reach_kernels_as_doubles():
    source = pointwise("k_scale", "a * scale").source.replace(
        "for (", "double scale; __builtin_memcpy(&scale, &sizes[1], 8); for ("
    )
    b = PlanBuilder()
    x = b.input(vector("x"))
    y = b.alloc((8,), (1,), "float32")
    b.kernel(Kernel("k_scale", source))
    b.add(KernelCall("k_scale", (x, y), (8, 0.25), (y,)))
    assert torch.equal(executor(b.finish((Ref(y),)))(torch.ones(8))[0], torch.full((8,), 0.25))


def test_pointers_that_begin_later():
    b = PlanBuilder()
    x = b.input(vector("x"))
    y = b.alloc((8,), (1,), "float32")
    b.kernel(ADD_ONE)
    b.add(KernelCall(ADD_ONE.symbol, (x, y), (8,), (y,)))
    b.add(KernelCall(ADD_ONE.symbol, (x, y), (3,), (y,), offsets=(16, 8)))
    plan = b.finish((Ref(y),))
    assert "(in0 + 16B, &" in plan.render() or "(x + 16B, &" in plan.render()
    found = executor(plan)(torch.arange(8.0))[0]
    assert found.tolist() == [1, 2, 5, 6, 7, 6, 7, 8]
    plan = dataclasses.replace(plan, steps=(*plan.steps[:-1], wrong_offsets(plan.steps[-1])))
    with pytest.raises(ValueError, match="1 offsets for 2 arguments"):
        executor(plan)


def wrong_offsets(step):
    return dataclasses.replace(step, offsets=(4,))


def test_kernels_show_in_the_profiler():
    run = executor(double_plan())
    with torch.profiler.profile() as profile:
        run(torch.ones(8))
    assert [event.count for event in profile.key_averages() if event.key == DOUBLE.symbol] == [
        1
    ]


def test_python_calls():
    seen = []

    def split(tensor, sizes, *, scale, n):
        seen.append((sizes, scale, n))
        return tensor[: sizes[0]] * scale, tensor[sizes[0] :]

    b = PlanBuilder()
    x = b.input(vector("x"))
    n = b.input(Input("n", "int"))
    b.symbols.append(Symbol("s0", n))
    low, high, both = b.slot(), b.slot(), b.slot()
    kwargs = {"scale": 3.0, "n": Ref(n)}
    b.add(PyCall("split", (Ref(x), (Expr("s0+1"), 2)), kwargs, (low, high)))
    b.add(PyCall("join", (Ref(high), Ref(low)), {}, (both,)))
    b.add(PyCall("seen", (), {}, ()))
    calls = {
        "split": split,
        "join": lambda *parts: torch.cat(parts),
        "seen": lambda: seen.append(torch.is_grad_enabled()),
    }
    run = executor(b.finish((Ref(both),)), callables=calls)
    tensor = torch.arange(8.0, requires_grad=True)
    (out,) = run(tensor, 2)
    assert torch.equal(out, torch.tensor([3.0, 4, 5, 6, 7, 0, 3, 6])) and not out.requires_grad
    assert seen[0] == ((3, 2), 3.0, 2)


@pytest.mark.parametrize(
    ("result", "error", "message"),
    [
        (lambda x: 1 / 0, ZeroDivisionError, "division"),
        (lambda x: (x, x, x), ValueError, "returned 3 values, expected 2"),
        (lambda x: (x, 5), TypeError, "returned int, expected a tensor"),
        (lambda x: 5, TypeError, "must return a tuple or list"),
    ],
)
def test_python_calls_that_fail(result, error, message):
    b = PlanBuilder()
    x = b.input(vector("x"))
    b.add(PyCall("f", (Ref(x),), {}, (b.slot(), b.slot())))
    fail = True
    run = executor(
        b.finish((Ref(1), Ref(2))), callables={"f": lambda x: result(x) if fail else (x, x)}
    )
    with pytest.raises(error, match=message):
        run(torch.ones(8))
    fail = False
    assert torch.equal(run(torch.ones(8))[1], torch.ones(8))


# ------------------------------------------------------------------------------------------------
# Plans that are wrong


def test_wrong_plans_raise_and_do_not_crash():
    good = double_plan().to_dict()
    library = str(compile_library({DOUBLE.symbol: DOUBLE.source}, HEADER))

    def broken(change):
        data = Plan.from_dict(good).to_dict()
        change(data)
        return data

    changes = [
        lambda d: d.update(version=0),
        lambda d: d.update(n_slots=-1),
        lambda d: d.update(n_slots=1),
        lambda d: d.update(n_slots=1 << 60),
        lambda d: d.pop("steps"),
        lambda d: d["steps"][0].update(step="dance"),
        lambda d: d["steps"][0].update(slot=0),
        lambda d: d["steps"][0].update(size=[-8]),
        lambda d: d["steps"][0].update(size=[1 << 62, 1 << 62], stride=[1, 1]),
        lambda d: d["steps"][0].update(size=["s9"]),
        lambda d: d["steps"][0].update(dtype="nonsense"),
        lambda d: d["steps"][0].update(device="moon"),
        lambda d: d["steps"][1].update(kernel="missing"),
        lambda d: d["steps"][1].update(args=[0, 99]),
        lambda d: d["steps"][1].update(args=[0, "x"]),
        lambda d: d["steps"][1].update(writes=[5]),
        lambda d: d["outputs"].append({"ref": 17}),
        lambda d: d["outputs"].append({"nonsense": 17}),
        lambda d: d["inputs"][0].update(kind="banana"),
        lambda d: d["symbols"].append({"name": "s0", "slot": 5, "what": "size", "dim": 0}),
        lambda d: d["constants"].append(
            {"name": "c", "dtype": "float32", "size": [1], "stride": None, "data": None}
        ),
        lambda d: d["steps"].append({"step": "free", "slots": [44]}),
        lambda d: d["steps"].append({"step": "free", "slots": [1]}),
    ]
    for change in changes:
        with pytest.raises((ValueError, TypeError, KeyError, RuntimeError, AttributeError)):
            _C.PlanExecutor(broken(change), library)
    with pytest.raises(ValueError, match="no library"):
        _C.PlanExecutor(good)
    with pytest.raises(RuntimeError, match="cannot load"):
        _C.PlanExecutor(good, "/nowhere/kernels.so")
    _C.PlanExecutor(good, library)


def test_constants_must_be_what_the_plan_says():
    b = PlanBuilder()
    c = b.constant(Constant("c", size=(2,)))
    plan = b.finish((Ref(c),))
    for wrong in (torch.ones(3), torch.ones(2).double(), torch.ones(4)[::2]):
        with pytest.raises(ValueError, match="constant c is not what"):
            executor(plan, constants=[wrong])
    with pytest.raises(TypeError, match="must be tensors"):
        executor(plan, constants=[1])
    with pytest.raises(ValueError, match="has 1 constants, 2 were given"):
        executor(plan, constants=[torch.ones(2)] * 2)


# ------------------------------------------------------------------------------------------------
# Lifetimes


def test_inputs_are_not_retained():
    run = executor(double_plan())
    x = torch.ones(8)
    watch = weakref.ref(x)
    run(x)
    run.boxed([x])
    del x
    assert watch() is None


def test_boxed_call_drops_inputs_early():
    b = PlanBuilder()
    x = b.input(vector("x"))
    y, z = b.slot(), b.slot()
    b.add(Extern("aten::neg", "", (Ref(x),), {}, (y,)))
    b.add(PyCall("look", (Ref(y),), {}, (z,)))
    alive = []
    watch = None

    def look(tensor):
        alive.append(watch() is not None)
        return tensor + 1

    run = executor(b.finish((Ref(z),)), callables={"look": look}).boxed
    assert run._boxed_call is True
    inputs = [torch.ones(8)]
    watch = weakref.ref(inputs[0])
    (out,) = run(inputs)
    assert inputs == [] and alive == [False] and torch.equal(out, torch.zeros(8))


def test_executors_can_be_collected():
    b = PlanBuilder()
    b.add(PyCall("f", (), {}, ()))

    class Holder:
        def __call__(self):
            pass

    holder = Holder()
    holder.run = executor(b.finish(()), callables={"f": holder})
    holder.run()
    watch = weakref.ref(holder)
    del holder
    gc.collect()
    assert watch() is None


def test_errors_do_not_keep_tensors_alive():
    b = PlanBuilder()
    x = b.input(vector("x"))
    y, z = b.slot(), b.slot()
    made = []
    b.add(PyCall("make", (Ref(x),), {}, (y,)))
    b.add(Extern("aten::mm", "", (Ref(y), Ref(y)), {}, (z,)))

    def make(tensor):
        result = tensor + 1
        made.append(weakref.ref(result))
        return result

    run = executor(b.finish((Ref(y), Ref(z))), callables={"make": make})
    with pytest.raises(RuntimeError):
        run(torch.ones(8))
    gc.collect()
    assert made[0]() is None
