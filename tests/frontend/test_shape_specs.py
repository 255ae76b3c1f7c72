"""`compile(dynamic_shapes=...)`: which sizes and ints are symbolic, told beforehand."""

import pytest
import torch

import minidynamo
from minidynamo.testing import CompileCounter

spec = pytest.importorskip("torch.fx.experimental.dynamic_spec")
ShapeVar, IntVar, TensorSpec = spec.ShapeVar, spec.IntVar, spec.TensorSpec


def of(*sizes):
    return [torch.arange(1.0, 1 + torch.Size(size).numel()).view(size) for size in sizes]


def check(fn, shapes, calls, graphs, backend=None):
    counter = CompileCounter()
    call = minidynamo.compile(
        fn, backend=backend or counter, fullgraph=True, dynamic_shapes=shapes
    )
    for args in calls:
        torch.testing.assert_close(call(*args), fn(*args))
    assert backend or counter.frame_count == graphs
    return call


def rows(x, y):
    return x + y * x.shape[0]


@pytest.mark.parametrize("backend", [None, "inductor"])
def test_equal_variables_are_equal_sizes(backend):
    """One graph for all of them, 0 and 1 included; what has no variable is a constant."""
    n = ShapeVar("n")
    shapes = {"x": TensorSpec([n, None]), "y": TensorSpec([n, spec.STATIC])}
    calls = [of((k, 4), (k, 4)) for k in (3, 5, 1, 0)]
    call = check(rows, shapes, calls, 1, backend)
    with pytest.raises(minidynamo.exc.UserError, match=r"another n is [13]"):
        call(*of((3, 4), (1, 4)))
    check(rows, shapes, [*calls, of((3, 5), (3, 5))], 2)


def test_ranges_and_ints():
    def fn(x, n, k):
        return x[:n].sum() + n * k

    shapes = spec.ParamsSpec(
        {"x": TensorSpec([ShapeVar("r", min=2, max=8)]), "n": IntVar("n", min=0, max=5)}
    )
    (x,) = of((6,))
    call = check(fn, shapes, [(x, 2, 7), (x, 3, 7), (of((7,))[0], 1, 7), (x, 3, 8)], 2)
    with pytest.raises(minidynamo.exc.UserError, match=r"x.size\(0\) is 9, not in \[2, 8\]"):
        call(of((9,))[0], 1, 7)
    with pytest.raises(minidynamo.exc.UserError, match=r"n is 6, not in \[0, 5\]"):
        call(x, 6, 7)


def test_computed_sizes_and_assumptions():
    def fn(x, y):
        return x.sum() + y.sum()

    n = ShapeVar("n")
    call = check(
        fn,
        {"x": TensorSpec([n * 2 + 1]), "y": TensorSpec([n])},
        [of((7,), (3,)), of((9,), (4,))],
        1,
    )
    with pytest.raises(
        minidynamo.exc.UserError, match=r"x.size\(0\) == 2\*n \+ 1 does not hold"
    ):
        call(*of((8,), (4,)))
    two = ShapeVar("a"), ShapeVar("b")
    params = {"x": TensorSpec([two[0]]), "y": TensorSpec([two[1]])}
    shapes = spec.ShapesSpec(params, assumptions=[two[0] > two[1]])
    call = check(fn, shapes, [of((5,), (3,)), of((6,), (2,))], 1)
    with pytest.raises(minidynamo.exc.UserError, match="the assumption a > b does not hold"):
        call(*of((3,), (3,)))
    call = minidynamo.compile(fn, dynamic_shapes={"x": TensorSpec([n * 2])})
    with pytest.raises(minidynamo.exc.UserError, match="n must be an entry of its own"):
        call(*of((4,), (3,)))


def test_containers_and_arguments_without_names():
    def fn(d, *args, **named):
        return d["a"].sum() + d["l"][1].mean() + args[1].sum() * named["k"].shape[0]

    def call(a, b, c, k):
        (a, b, c, k) = of((a,), (b,), (c,), (k,))
        return fn, ({"a": a, "l": [c, b]}, a, c), {"k": k}

    n = [ShapeVar(name) for name in "abck"]
    shapes = {
        "d": spec.DictSpec(
            {"a": TensorSpec([n[0]]), "l": spec.SeqSpec([None, TensorSpec([n[1]])])}
        ),
        "*args": [TensorSpec([n[0]]), None],
        "**kwargs": {"k": TensorSpec([n[3]])},
    }
    counter = CompileCounter()
    compiled = minidynamo.compile(fn, backend=counter, shapes_spec=shapes)
    for sizes, graphs in [((3, 4, 2, 5), 1), ((4, 2, 2, 3), 1), ((4, 2, 3, 3), 2)]:
        _, args, named = call(*sizes)
        torch.testing.assert_close(compiled(*args, **named), fn(*args, **named))
        assert counter.frame_count == graphs


def test_modules_and_marks():
    """The names are those of `forward`; marks of tensors do not count."""
    model, counter = torch.nn.Linear(4, 4), CompileCounter()
    shapes = {"input": TensorSpec([ShapeVar("n"), None])}
    call = minidynamo.compile(model, backend=counter, dynamic_shapes=shapes)
    for n in 2, 3, 7:
        (x,) = of((n, 4))
        torch.testing.assert_close(call(x), model(x))
    assert counter.frame_count == 1
    (x,) = of((4,))
    minidynamo.mark_dynamic(x, 0)
    check(torch.sin, {}, [(x,), of((5,))], 2)


@pytest.mark.parametrize(
    "shapes, text",
    [
        ({"x": TensorSpec([None])}, "x has 2 dimensions, its spec has 1"),
        ({"x": TensorSpec([4, None])}, r"x.size\(0\) is 3, its spec is 4"),
        ({"x": IntVar("n")}, "x is a tensor, its spec is"),
        ({"x": spec.DictSpec({})}, "x has no entries"),
        ({"n": TensorSpec([None])}, "n is a number, its spec a TensorSpec"),
        ({"n": 3}, "n is 2, its spec is 3"),
    ],
)
def test_specs_of_something_else(shapes, text):
    call = minidynamo.compile(lambda x, n: x * n, dynamic_shapes=shapes)
    with pytest.raises(minidynamo.exc.UserError, match=text):
        call(of((3, 4))[0], 2)


def test_wrong_arguments():
    with pytest.raises(TypeError, match="dynamic_shapes must be a ShapesSpec"):
        minidynamo.compile(rows, dynamic_shapes=3)
    with pytest.raises(ValueError, match="either dynamic or dynamic_shapes"):
        minidynamo.compile(rows, dynamic_shapes={}, dynamic=True)
    with pytest.raises(ValueError, match="two names of one argument"):
        minidynamo.compile(rows, dynamic_shapes={}, shapes_spec={})


@pytest.mark.skipif(not hasattr(spec, "dynamic_spec"), reason="of torch 2.14")
def test_specs_by_a_decorator():
    n, counter = ShapeVar("n"), CompileCounter()

    class Double(torch.nn.Module):
        @spec.dynamic_spec({"x": TensorSpec([n, None])})
        def forward(self, x):
            return x * 2

    for model in (Double(), Double().forward):
        counter.clear()
        minidynamo.reset()
        compiled = minidynamo.compile(model, backend=counter, fullgraph=True)
        for size in (3, 1, 0, 7):
            (x,) = of((size, 2))
            assert torch.equal(compiled(x), x * 2)
        assert counter.frame_count == 1
    with pytest.raises(ValueError, match="or decorate the function"):
        minidynamo.compile(Double(), dynamic_shapes={})
    with pytest.raises(ValueError, match="either dynamic or dynamic_shapes"):
        minidynamo.compile(dynamic=True)(Double())
