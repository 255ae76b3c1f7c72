"""Tensor subclasses with `__torch_dispatch__` that wrap tensors: graphs take and give them."""

from __future__ import annotations

import typing

import pytest
import torch
import torch.nn.functional as F
from testing import CountingBackend
from torch import nn
from torch.nested._internal import nested_tensor
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import return_and_correct_aliasing

import minidynamo
from minidynamo.inductor import metrics


class Shifted(torch.Tensor):
    """Multiplication adds the constant."""

    @staticmethod
    def __new__(cls, inner, shift):
        names = "dtype device layout requires_grad".split()
        kind = {name: getattr(inner, name) for name in names}
        kind.update(strides=inner.stride(), storage_offset=inner.storage_offset())
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, **kind)

    def __init__(self, inner, shift):
        self.inner = inner
        self.shift = shift

    def __tensor_flatten__(self):
        return ["inner"], (self.shift,)

    @staticmethod
    def __tensor_unflatten__(inner, meta, size, stride):
        return Shifted(inner["inner"], meta[0])

    def __repr__(self):
        return f"Shifted({self.inner}, {self.shift})"

    def doubled(self):
        return self * 2 + self.shift

    @property
    def twice(self):
        return self.shift * 2

    @classmethod
    def __torch_dispatch__(cls, func, types, args, kwargs=None):
        kwargs = kwargs or {}
        shift = max(x.shift for x in pytree.tree_leaves(args) if isinstance(x, cls))
        plain = pytree.tree_map_only(cls, lambda x: x.inner, (args, kwargs))
        results = func(*plain[0], **plain[1])
        if func is torch.ops.aten.mul.Tensor:
            results = results + shift
        results = pytree.tree_map_only(torch.Tensor, lambda x: cls(x, shift), results)
        return return_and_correct_aliasing(func, args, kwargs, results)


def two(*shape, grad=False):
    first = torch.arange(float(torch.Size(shape).numel())).view(shape)
    return TwoTensor(first / 8, 1 - first).requires_grad_(grad)


def without_grad(x):
    with torch.no_grad():
        y = x * 2
    return y + x


CASES = {
    "pointwise": (lambda x: (x * 2 + 1).sin(), lambda: [two(3, 3)]),
    "matmul": (lambda x, y: x @ y + y, lambda: [two(3, 3), two(3, 3)]),
    "with a tensor": (lambda x, y: x * y, lambda: [two(3), torch.ones(3)]),
    "gradients": (lambda x: (x.sin() * x).sum(0), lambda: [two(3, 3, grad=True)]),
    "linear": (F.linear, lambda: [two(3, 4), two(5, 4, grad=True), two(5, grad=True)]),
    "no_grad": (without_grad, lambda: [two(3, grad=True)]),
    "views": (lambda x: (x.view(9), x[0], x), lambda: [two(3, 3)]),
    "several results": (lambda x: torch.split(x, 1), lambda: [two(3, 4)]),
    "in place": (lambda x, y: (x.add_(1), y * x)[1], lambda: [two(3), torch.ones(3)]),
    "inner tensors": (lambda x: (x.a + 1, (x * 2).b, x), lambda: [two(3)]),
    "metadata": (lambda x: (x.shape, x.dtype, x * x.shape[0]), lambda: [two(3, 4)]),
    "types": (lambda x: (type(x * 2) is TwoTensor, x + 1), lambda: [two(3)]),
    "own attributes": (
        lambda x: x.doubled() * x.shift + x.twice + (x * 2).shift,
        lambda: [Shifted(torch.ones(3), 5)],
    ),
    "nested": (lambda x: x * 2 + 1, lambda: [TwoTensor(two(3, 3), two(3, 3))]),
}


def same(left, right):
    if isinstance(left, (tuple, list)):
        return type(left) is type(right) and all(map(same, left, right))
    if hasattr(left, "__tensor_flatten__"):
        rows = [(type(x), x.requires_grad, *x.__tensor_flatten__()) for x in (left, right)]
        names = rows[0][2]
        inner = [(getattr(left, name), getattr(right, name)) for name in names]
        return rows[0] == rows[1] and all(same(*pair) for pair in inner)
    if isinstance(left, torch.Tensor):
        return type(left) is type(right) and torch.allclose(left, right, atol=1e-5)
    return left == right


def gradients(results, inputs):
    leaves = [t for t in pytree.tree_leaves(results) if isinstance(t, torch.Tensor)]
    wanted = [t for t in inputs if t.requires_grad]
    total = [t.sum() for t in leaves if t.requires_grad]
    return list(torch.autograd.grad(sum(total), wanted)) if wanted else []


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", CASES)
def test_captured_whole(name, backend):
    fn, make = CASES[name]
    compiled = minidynamo.compile(fn, backend=backend, fullgraph=True)
    for _ in range(2):
        mine, theirs = make(), make()
        want, got = fn(*mine), compiled(*theirs)
        assert same(want, got)
        assert same(mine, theirs)
        assert same(gradients(want, mine), gradients(got, theirs))


def test_inductor():
    def fn(x, y):
        return (x @ y).sin() * y

    compiled = minidynamo.compile(fn, fullgraph=True)
    mine, theirs = ([two(3, 3, grad=True), two(3, 3)] for _ in range(2))
    want, got = fn(*mine), compiled(*theirs)
    assert same(want, got)
    assert same(gradients(want, mine), gradients(got, theirs))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, y: (x @ y).sin() * y,
        lambda x, y: (lambda z: (z, z.t(), z[0]))(x.sin() + y),
        lambda x, y: (torch.relu(x * 2 + y), (x * y).cos()),
    ],
)
def test_without_gradients_there_are_kernels(fn):
    metrics.reset()
    compiled = minidynamo.compile(fn, fullgraph=True)
    with torch.no_grad():
        for _ in range(2):
            assert same(fn(two(3, 3), two(3, 3)), compiled(two(3, 3), two(3, 3)))
    assert metrics.generated_kernel_count


def test_without_gradients_results_may_be_inputs_or_parts_of_them():
    def fn(x, y):
        return x, y.t(), x.view(-1), x * 2

    compiled = minidynamo.compile(fn, fullgraph=True)
    x, y = two(3, 3), two(3, 3)
    with torch.no_grad():
        want, got = fn(x, y), compiled(x, y)
        assert same(want, got) and got[0] is x
        assert got[1].a.data_ptr() == y.a.data_ptr() and got[2].b.data_ptr() == x.b.data_ptr()
        got[2].mul_(3)
        assert same(want[2], got[2])
        x.add_(1)
        assert same(fn(x, y), compiled(x, y))


def test_classes_and_metadata_are_guarded():
    counter = CountingBackend()
    compiled = minidynamo.compile(lambda x: x * 2, backend=counter, fullgraph=True)
    for x, graphs in (
        (two(3), 1),
        (two(3), 1),
        (torch.ones(3), 2),
        (Shifted(torch.ones(3), 1), 3),
        (Shifted(torch.ones(3), 2), 4),
        (Shifted(torch.ones(3), 1), 4),
        (Shifted(two(3), 1), 5),
        (two(4), 6),
    ):
        assert same(compiled(x), x * 2)
        assert len(counter.graphs) == graphs


class Offset(typing.NamedTuple):
    by: float
    name: str


def test_named_tuples_among_the_metadata():
    def fn(x):
        return x.sin() + x.shift.by, x.shift.name, x.shift, x.shift == (1.0, "one")

    counter = CountingBackend()
    compiled = minidynamo.compile(fn, backend=counter, fullgraph=True)
    for offset in (Offset(1.0, "one"), Offset(1.0, "one"), Offset(2.0, "two")):
        x = Shifted(torch.ones(3), offset)
        found, wanted = compiled(x), fn(x)
        assert found[1:] == wanted[1:] and type(found[2]) is Offset
        assert torch.equal(found[0].inner, wanted[0].inner)
    assert len(counter.graphs) == 2


class Slotted(torch.Tensor):
    __slots__ = ("inner", "offset", "nothing")
    __torch_function__ = torch._C._disabled_torch_function_impl
    __torch_dispatch__ = Shifted.__torch_dispatch__
    __tensor_flatten__ = lambda self: (["inner"], self.offset)  # noqa: E731
    __tensor_unflatten__ = staticmethod(lambda inner, meta, *_: Slotted(inner["inner"], meta))

    def __new__(cls, inner, offset):
        self = Shifted.__new__(cls, inner, 0)
        self.inner, self.offset = inner, offset
        return self


def test_what_stands_in_slots():
    def fn(x, y):
        made = Slotted(x, Offset(2.0, "two"))
        return x * y.offset.by, y.offset, y.inner + 1, made.offset, made.inner - 1

    counter = CountingBackend()
    compiled = minidynamo.compile(fn, backend=counter, fullgraph=True)
    x = torch.ones(3)
    for offset in (Offset(1.0, "one"), Offset(1.0, "one"), Offset(3.0, "two")):
        y = Slotted(x, offset)
        assert same(compiled(x, y), fn(x, y))
    assert len(counter.graphs) == 2
    with pytest.raises(AttributeError):
        minidynamo.compile(lambda y: (y.inner + 1, y.nothing), backend="eager")(y)


def test_parameters():
    counter = CountingBackend()
    module = nn.Linear(3, 3)
    module.weight, module.bias = nn.Parameter(two(3, 3)), nn.Parameter(two(3))

    def fn(x):
        return module(x), isinstance(module.weight, nn.Parameter)

    compiled = minidynamo.compile(fn, backend=counter, fullgraph=True)
    x = two(2, 3)
    want, got = fn(x), compiled(x)
    assert same(want, got)
    assert len(counter.graphs) == 1


def test_inner_tensors_may_be_arguments_too():
    def fn(x, y):
        x.add_(1)
        return y * 2

    compiled = minidynamo.compile(fn, backend=CountingBackend())
    for is_shared in (False, True):
        y = torch.ones(3)
        first = y if is_shared else torch.ones(3)
        assert torch.equal(compiled(TwoTensor(first, torch.ones(3)), y), y * 2)


def test_what_is_not_traced_breaks():
    def fn(x):
        y = TwoTensor(x, x + 1) * 2
        minidynamo.graph_break()
        return y.sin() + x.sum().item(), y

    compiled = minidynamo.compile(fn, backend=CountingBackend())
    assert same(fn(torch.ones(3)), compiled(torch.ones(3)))


class Noted(Shifted):
    """Its metadata is a list that the program may change."""

    @property
    def shift(self):
        return self.notes[0]

    @shift.setter
    def shift(self, value):
        self.notes = value if isinstance(value, list) else [value]

    def __tensor_flatten__(self):
        return ["inner"], self.notes

    @classmethod
    def __tensor_unflatten__(cls, inner, meta, size, stride):
        return cls(inner["inner"], meta)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_metadata_that_change_in_place_are_looked_at(backend):
    x = Noted(torch.ones(3), [2])
    compiled = minidynamo.compile(lambda x: x * 3, backend=backend, fullgraph=True)
    for shift in (2, 2, 5):
        x.notes[0] = shift
        assert torch.equal(compiled(x).inner, torch.full((3,), 3.0 + shift))


class Identity:
    """Equal to itself alone."""


@pytest.mark.parametrize("meta", [Identity(), {"a": [Identity]}])
def test_metadata_without_an_order_of_their_own_do_not_recompile(meta):
    class Tagged(Shifted):
        def __tensor_flatten__(self):
            return ["inner"], meta

        @staticmethod
        def __tensor_unflatten__(inner, meta, size, stride):
            return Tagged(inner["inner"], 0)

    counter = CountingBackend()
    compiled = minidynamo.compile(lambda x: x + 1, backend=counter, fullgraph=True)
    for _ in range(3):
        compiled(Tagged(torch.ones(3), 0))
    assert len(counter.graphs) == 1


def test_a_metadata_guard_that_cannot_be_called_is_an_error():
    class NoMethod(Shifted):
        def __metadata_guard__(self, one, other):
            return True

    class OneArgument(Shifted):
        @classmethod
        def __metadata_guard__(cls, one):
            return True

    for cls, text in ((NoMethod, "be a classmethod"), (OneArgument, "take exactly two")):
        compiled = minidynamo.compile(lambda x: x + 1, backend="eager")
        with pytest.raises(minidynamo.exc.InternalTorchDynamoError, match=text):
            compiled(cls(torch.ones(3), 1))


def test_the_first_view_of_jagged_layout_is_made_inside(monkeypatch):
    """torch keeps a tensor for all of them, which is no part of the graph."""
    monkeypatch.setattr(nested_tensor, "_dummy_instance", None)

    def fn(values, offsets):
        return torch.nested.nested_tensor_from_jagged(values, offsets).sin().values()

    counter = CountingBackend()
    compiled = minidynamo.compile(fn, backend=counter, fullgraph=True)
    for last in (8, 8, 8):
        values, offsets = torch.randn(last, 4), torch.tensor([0, 3, last])
        torch.testing.assert_close(compiled(values, offsets), fn(values, offsets))
    assert len(counter.graphs) == 1
    monkeypatch.setattr(nested_tensor, "_dummy_instance", None)
    torch.testing.assert_close(compiled(values, offsets), fn(values, offsets))


def parts(x):
    return x.a * x.b, x.a.view(-1) + 1


def parts_and_wrapper(x):
    return x.a + 1, x * 2


def parts_without_grad(x):
    with torch.no_grad():
        y = x.a * 2
    return y * x.a


def parts_of_parts(x):
    return x.a.a + x.a.b * x.b.a


def written_inside(x):
    x.a.mul_(2)
    return x * 1, x.a * 2


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize(
    ("fn", "is_whole"),
    [
        (parts, True),
        (parts_and_wrapper, True),
        (parts_without_grad, True),
        (lambda x: getattr(x, x.__tensor_flatten__()[0][1]) * 3, True),
        (parts_of_parts, True),
        (written_inside, False),
    ],
)
def test_gradients_of_inner_tensors_are_theirs(fn, is_whole, backend):
    """Autograd knows the tensors inside by a history of their own, and not the wrapper's."""

    def run(called):
        leaf = torch.arange(1.0, 7.0).view(2, 3).requires_grad_()
        given = TwoTensor(leaf * 2, leaf + 1)
        made = called(TwoTensor(given, given) if fn is parts_of_parts else given)
        results = [t for t in pytree.tree_leaves(made) if type(t) is torch.Tensor]
        sum((t * t).sum() for t in results if t.requires_grad).backward()
        return made, leaf.grad

    compiled = minidynamo.compile(fn, backend=backend, fullgraph=is_whole)
    assert same(run(fn), run(compiled))
    assert run(fn)[1] is not None


def test_inner_tensors_behind_a_write_to_their_wrapper():
    def fn(x):
        with torch.no_grad():
            x.mul_(2)
        return x.a * 3

    def run(called):
        leaf = torch.arange(1.0, 4.0).requires_grad_()
        given = TwoTensor(leaf * 2, leaf + 1)
        called(given).sum().backward()
        return given, leaf.grad

    for backend in ("eager", "aot_eager"):
        assert same(run(fn), run(minidynamo.compile(fn, backend=backend)))


class Revealing(Shifted):
    """Its sine is computed above autograd, of the tensor inside."""

    @staticmethod
    def __tensor_unflatten__(inner, meta, size, stride):
        return Revealing(inner["inner"], meta[0])

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.sin:
            return args[0].inner * 3
        return super().__torch_function__(func, types, args, kwargs or {})


@pytest.mark.parametrize("is_followed", [True, False])
def test_functions_of_wrappers_with_inner_tensors_that_autograd_follows(is_followed):
    """The node would take the wrapper apart below autograd, and the gradient would be lost."""
    counter = CountingBackend()

    def fn(x):
        return torch.sin(x) + 1

    def run(called):
        leaf = torch.arange(1.0, 4.0).requires_grad_(is_followed)
        result = called(Revealing(leaf * 2, 3))
        if is_followed:
            result.sum().backward()
        return result, leaf.grad

    assert same(run(fn), run(minidynamo.compile(fn, backend="aot_eager")))
    assert same(run(fn), run(minidynamo.compile(fn, backend=counter)))
    targets = [node.target for graph in counter.graphs for node in graph.graph.nodes]
    assert (torch.sin in targets) is not is_followed
