"""Tensor subclasses with `__torch_function__`: it is traced, results are of the class again."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from testing import CountingBackend, assert_same, check
from torch import nn

import minidynamo

X = torch.arange(6.0).reshape(2, 3)


class Passing(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs or {})

    def doubled(self):
        return self * 2

    @property
    def halved(self):
        return self / 2


class Scaling(torch.Tensor):
    """`add` adds ten times as much."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.Tensor.add or func is torch.add:
            args = (args[0], args[1] * 10)
        return super().__torch_function__(func, types, args, kwargs or {})


class Plain(torch.Tensor):
    pass


class Summing(torch.Tensor):
    def sum(self, dim=None, keepdim=False):
        return super().sum(dim=dim, keepdim=keepdim).as_subclass(Summing)


def set_attribute(x):
    y = x * 2
    y.note = 3
    return y + y.note, y


CASES = {
    "x + 1": lambda x: x + 1,
    "1 + x": lambda x: 1 + x,
    "1 - x": lambda x: 1 - x,
    "-x": lambda x: -x,
    "x > 2": lambda x: x > 2,
    "x @ x.T": lambda x: x @ x.T,
    "x * tensor": lambda x: x * torch.ones(3),
    "torch.add": lambda x: torch.add(x, 1),
    "torch.sin": lambda x: torch.sin(x),
    "torch.cat": lambda x: torch.cat([x, x]),
    "torch.split": lambda x: torch.split(x, 1),
    "F.relu": lambda x: F.relu(x),
    "x.add": lambda x: x.add(1),
    "x.sum": lambda x: x.sum(),
    "x.max": lambda x: x.max(0)[0],
    "keywords that are constants": lambda x: (
        x.sum(dim=1),
        torch.sum(x, dim=0),
        x.to(dtype=int),
    ),
    "keywords of super()": lambda x: x.as_subclass(Summing).sum(dim=1),
    "a keyword that is a tensor": lambda x: torch.sub(x, other=x, alpha=3),
    "x.to": lambda x: x.to(torch.float64),
    "x.add_": lambda x: x.add_(1),
    "x.shape": lambda x: (x.shape, x * x.shape[0]),
    "x.size": lambda x: x.view(x.size(0), -1),
    "x.T": lambda x: x.T + 1,
    "x[0]": lambda x: x[0],
    "len": lambda x: len(x) * x,
    "iteration": lambda x: [row + 1 for row in x],
    "type": lambda x: (type(x).__name__, isinstance(x, torch.Tensor), x + 1),
    "itself": lambda x: (x, x + 1),
    "attribute": set_attribute,
}


def same(want, got):
    if type(want) is not type(got):
        return False
    if isinstance(want, torch.Tensor):
        plain = [t.as_subclass(torch.Tensor) for t in (want, got)]
        return torch.equal(*plain) and vars(want) == vars(got)
    if isinstance(want, (list, tuple)):
        return len(want) == len(got) and all(map(same, want, got))
    return want == got


def compare(fn, cls, fullgraph=True):
    counter = CountingBackend()
    compiled = minidynamo.compile(fn, backend=counter, fullgraph=fullgraph)
    for _ in range(2):
        mine, theirs = X.clone().as_subclass(cls), X.clone().as_subclass(cls)
        want, got = fn(mine), compiled(theirs)
        assert same(want, got), (want, got)
        assert same(mine, theirs)
    return counter


@pytest.mark.parametrize("cls", [Passing, Scaling, Plain])
@pytest.mark.parametrize("name", CASES)
def test_captured_whole(name, cls):
    assert len(compare(CASES[name], cls).graphs) == 1


def test_methods_and_properties_of_the_class():
    compare(lambda x: (x.doubled(), x.halved, x.doubled().doubled()), Passing)


def test_what_is_not_traced_breaks():
    for fn in (lambda x: x.is_leaf, lambda x: x.sum() > 3 and x, lambda x: x.tolist()):
        compare(fn, Passing, fullgraph=False)


def test_gradients():
    def fn(x):
        return (x * x).sin().sum()

    grads = []
    for function in (fn, minidynamo.compile(fn, backend="aot_eager", fullgraph=True)):
        x = X.clone().as_subclass(Passing).requires_grad_()
        function(x).backward()
        grads.append(x.grad)
    assert same(*(grad.as_subclass(torch.Tensor) for grad in grads))


def test_recompiles_for_another_class_or_function():
    class Changing(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            return super().__torch_function__(func, types, args, kwargs or {})

    def fn(x):
        return x + 1

    counter = CountingBackend()
    compiled = minidynamo.compile(fn, backend=counter)
    calls = [(Passing, 1), (Passing, 1), (Scaling, 2), (torch.Tensor, 3), (Changing, 4)]
    for cls, graphs in calls:
        x = X.as_subclass(cls)
        assert same(fn(x), compiled(x))
        assert len(counter.graphs) == graphs
    Changing.__torch_function__ = Scaling.__dict__["__torch_function__"]
    with pytest.raises(TypeError):
        fn(X.as_subclass(Changing))  # super() belongs to another class

    def tens(cls, func, types, args=(), kwargs=None):
        return torch.tensor(10.0)

    Changing.__torch_function__ = classmethod(tens)
    assert compiled(X.as_subclass(Changing)) == 10


def test_classes_that_dispatch_are_left_to_eager():
    class Wrapper(torch.Tensor):
        @staticmethod
        def __new__(cls, inner):
            return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

        def __init__(self, inner):
            self.inner = inner

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            inner = [a.inner if isinstance(a, cls) else a for a in args]
            return cls(func(*inner, **(kwargs or {})))

    compiled = minidynamo.compile(lambda x: x * 2 + 1, backend="eager")
    result = compiled(Wrapper(X))
    assert type(result) is Wrapper
    assert torch.equal(result.inner, X * 2 + 1)


class Weight(nn.Parameter):
    """As parameters are: `__torch_function__` is off."""

    def scaled(self):
        return self * 2


class Unwrapping(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
        return result * 10 if func is torch.Tensor.sin else result


def test_subclass_of_parameter():
    weight = Weight(torch.ones(3))

    def fn(x):
        y = x * weight + weight.scaled()
        return y, isinstance(weight, Weight), type(weight + 1) is torch.Tensor

    check(fn, X, fullgraph=True)

    def writing(x):
        with torch.no_grad():
            same = weight.mul_(1.0) is weight
        return same, x + weight

    check(writing, X, graphs=None)


def test_torch_function_is_switched_off():
    def fn(x):
        with torch._C.DisableTorchFunctionSubclass():
            inside = x.sin()
        return inside, type(inside), x.cos() + 1

    def operators(x):
        return x.sin() + 1, torch.sin(x)

    def broken(x):
        with torch._C.DisableTorchFunctionSubclass():
            inside = x.sin()
            print("", end="")
        return inside, x.sin()

    x = X.as_subclass(Unwrapping)
    for function in (fn, operators, broken):
        fullgraph = function is not broken
        compiled = minidynamo.compile(function, backend="eager", fullgraph=fullgraph)
        for _ in range(2):
            assert_same(function(x), compiled(x))


# -- made inside -----------------------------------------------------------------------------------


class Noted(torch.Tensor):
    @staticmethod
    def __new__(cls, data, note=3):
        return torch.Tensor._make_subclass(cls, data)

    def __init__(self, data, note=3):
        self.note = note


class Remembering(torch.Tensor):
    """Its `to` goes on from torch's."""

    def to(self, *args, **kwargs):
        new = super().to(*args, **kwargs)
        new.former = getattr(self, "former", new.data.shape)
        return new


def write_to_shared_memory(x):
    y = torch.Tensor._make_subclass(Plain, x)
    z = torch.Tensor._make_subclass(torch.Tensor, x)
    x += 1
    y += 2
    z += 3
    return x * y + z


def converted(x):
    y = x.as_subclass(Remembering).to("cpu")
    return y + 1, y.former


MADE = {
    "Class(tensor)": lambda x: (Passing(x) * 2, Passing(torch.add(x, 1))),
    "as_subclass": lambda x: torch.add(x, 1).as_subclass(Scaling) + 2,
    "and back": lambda x: (x.as_subclass(Scaling) + 2).as_subclass(torch.Tensor) + 1,
    "_make_subclass": lambda x: torch.Tensor._make_subclass(Plain, x) + 1,
    "constructor": lambda x: (Noted(x, 5) + 1, Noted(x).note, Noted(x + 1, note=4)),
    "shared memory": write_to_shared_memory,
    "super()": converted,
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", MADE)
def test_made_inside(name, backend):
    fn = MADE[name]
    compiled = minidynamo.compile(fn, backend=backend, fullgraph=True)
    for _ in range(2):
        mine, theirs = X.clone(), X.clone()
        assert same(fn(mine), compiled(theirs))
        assert same(mine, theirs)


def test_gradients_of_what_is_made_inside():
    def fn(x):
        return (Passing(x) * x.as_subclass(Passing)).sum()

    compiled = minidynamo.compile(fn, backend="aot_eager", fullgraph=True)
    mine, theirs = X.clone().requires_grad_(), X.clone().requires_grad_()
    fn(mine).backward()
    compiled(theirs).backward()
    assert torch.equal(mine.grad, theirs.grad)


@pytest.mark.skipif(not hasattr(torch.overrides, "redispatch_function"), reason="new in torch")
def test_redispatch():
    from torch.overrides import handle_torch_function, has_torch_function, redispatch_function

    class Again(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args, kwargs=None):
            return redispatch_function(func, types, args, kwargs or {})

    def add(a, b):
        if has_torch_function((a, b)):
            return handle_torch_function(add, (a, b), a, b)
        return a + b

    x = X.clone().as_subclass(Again)
    compiled = minidynamo.compile(lambda x: add(x, x) * 2, backend=CountingBackend())
    assert torch.equal(compiled(x), X * 4)


class Watching(torch.Tensor):
    """Notes what it is asked for; it says that it has ten dimensions."""

    seen: list[str] = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.seen.append(func.__name__)
        if func == torch.Tensor.ndim.__get__:
            return 10
        if func in (torch.Tensor.shape.__get__, torch.Tensor.add):
            return args[0].as_subclass(torch.Tensor) * 3
        return super().__torch_function__(func, types, args, kwargs or {})


def test_attributes_are_known_by_their_getters():
    """And tracing itself asks the tensor for nothing that the program would see."""

    def fn(x):
        return x.ndim, x.shape, x + 1, x.sin().as_subclass(torch.Tensor)

    compiled = minidynamo.compile(fn, backend="eager", fullgraph=True)
    results = []
    for function in (fn, compiled, compiled):
        Watching.seen.clear()
        result = function(X.as_subclass(Watching))
        results.append((result, list(Watching.seen[1:])))  # without as_subclass itself
    assert_same(results[0][0], results[1][0])
    assert results[0][1] == results[1][1] == results[2][1]


METHODS = {
    "add": lambda a, w: a.add(w),
    "add_ of an input": lambda a, w: (a.add_(w), a),
    "add_, then more": lambda a, w: (a * 2).add_(w).mul_(3),
    "keyword": lambda a, w: a.mul(other=w),
    "out": lambda a, w: (torch.add(a, w, out=a), a),
    "in a list": lambda a, w: torch.cat([a, w]),
    "identity": lambda a, w: (a.add_(w) is a, w.add_(a) is w),
}


@pytest.mark.parametrize("cls", [Passing, Scaling, Plain])
@pytest.mark.parametrize("name", METHODS)
def test_methods_of_plain_tensors_with_an_instance(name, cls):
    fn = METHODS[name]
    counter = CountingBackend()
    compiled = minidynamo.compile(fn, backend=counter, fullgraph=True)
    for _ in range(2):
        mine, theirs = ((X.clone(), X.clone().as_subclass(cls)) for _ in range(2))
        want, got = fn(*mine), compiled(*theirs)
        assert same(want, got), (want, got)
        assert same(mine, theirs)
    assert len(counter.graphs) == 1


class Quantized(nn.Parameter):
    """A parameter with notes that its results keep."""

    def __new__(cls, data, requires_grad=False, kind=None):
        return torch.Tensor._make_subclass(cls, data, requires_grad)

    def __init__(self, *args, kind=None, **kwargs):
        self.kind = kind

    def as_tensor(self):
        return torch.Tensor._make_subclass(torch.Tensor, self, self.requires_grad)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs or {})
        kind = next((arg.kind for arg in args if isinstance(arg, Quantized)), None)
        if isinstance(result, torch.Tensor):
            return cls(result, kind=kind)
        if type(result) is tuple:
            return tuple(cls(item, kind=kind) for item in result)
        return result


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: ((x * 2) + x.kind).as_tensor() * 3,
        lambda x: (x * 2, (x * 2).kind, x.chunk(2), isinstance(x + 1, nn.Parameter), x.shape),
        lambda x: F.linear(torch.ones(1, 3), x.as_tensor()),
    ],
)
def test_parameters_of_a_class_of_the_program_made_inside(fn):
    counter = CountingBackend()
    compiled = minidynamo.compile(fn, backend=counter, fullgraph=True)
    for kind, graphs in ((4, 1), (4, 1), (5, 2)):
        x = Quantized(X.clone(), kind=kind)
        want, got = fn(x), compiled(x)
        assert same(want, got), (want, got)
        assert len(counter.graphs) in (1, graphs)


class Described(torch.Tensor):
    """Keeps a dict and a list, which are copied from tensor to tensor by way of `__dict__`."""

    def __init__(self, x, notes=None):
        super().__init__()
        self.meta = {"made": 1}
        self.notes = [] if notes is None else notes
        if not isinstance(x, Described):
            self.copy_from(self)
        self.meta.setdefault("space", "RAS")

    @staticmethod
    def __new__(cls, x, notes=None):
        return torch.as_tensor(x).as_subclass(cls)

    @property
    def meta(self):
        return self._meta

    @meta.setter
    def meta(self, value):
        self._meta = dict(value, set=len(value))

    @meta.deleter
    def meta(self):
        del self._meta

    def copy_from(self, other):
        state = other.__dict__
        self.__dict__.update({name: copy.copy(state[name]) for name in state})
        return self

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(result, cls) and isinstance(args[0], cls):
            result.copy_from(args[0])
        return result


def made_and_copied(x):
    first = Described(x)
    first.notes.append("a")
    second = first[:, 1:] + 1
    second.notes.append("b")
    second.meta["count"] = len(first.notes), len(second.notes)
    return first, second


def of_an_argument(x):
    x.notes.append(3)
    x.__dict__["more"] = len(x.__dict__)
    y = x * 2
    y.meta = {"seen": x.more, **vars(x)["_meta"]}
    return y


def forgotten(x):
    y = Described(x, [4])
    del y.notes, y.meta
    return y + 1, hasattr(y, "meta"), hasattr(x, "notes"), getattr(x, "other", 5)


def state_of(value):
    tensors = value if isinstance(value, tuple) else (value,)
    return [(dict(vars(t)), t.tolist()) if isinstance(t, torch.Tensor) else t for t in tensors]


@pytest.mark.parametrize(
    "function, make",
    [
        (made_and_copied, X.clone),
        (of_an_argument, lambda: Described(X.clone(), [1])),
        (forgotten, X.clone),
        (forgotten, lambda: Described(X.clone())),
    ],
)
def test_instance_dicts(function, make):
    """`tensor.__dict__` is the tensor's attributes, and properties of the class are set."""
    backend = CountingBackend()
    compiled = minidynamo.compile(function, backend=backend, fullgraph=True)
    for _ in range(2):
        expected, given = make(), make()
        want, got = function(expected), compiled(given)
        assert state_of(want) == state_of(got)
        assert state_of(expected) == state_of(given)
    assert len(backend.graphs) == 1


def test_attributes_that_come_later():
    """What a tensor lacks is guarded, as what it has."""

    def function(x):
        return x + getattr(x, "bias", 1)

    backend = CountingBackend()
    compiled = minidynamo.compile(function, backend=backend)
    x = Described(X.clone())
    assert_same(compiled(x), function(x))
    x.bias = 10
    assert_same(compiled(x), function(x))
    assert len(backend.graphs) == 2
    del x.bias
    assert_same(compiled(x), function(x))
    assert len(backend.graphs) == 2


@pytest.mark.parametrize("cls", [torch.Tensor, Passing])
@pytest.mark.parametrize("late", [False, True])
def test_instance_dicts_across_a_break(cls, late):
    """The dict and the tensor are one, whichever the frame reaches first."""

    def function(x):
        table = x.__dict__
        minidynamo.graph_break()
        if late:
            table.update(scale=3)
        x.scale = x.scale + 1 if late else 5
        table["scale"] += 1
        table.update(bias=2)
        return x * x.scale + x.bias

    backend = CountingBackend()
    compiled = minidynamo.compile(function, backend=backend)
    for _ in range(2):
        expected, given = X.clone().as_subclass(cls), X.clone().as_subclass(cls)
        want, got = function(expected), compiled(given)
        assert_same(got, want)
        assert vars(given) == vars(expected) == {"scale": 5 if late else 6, "bias": 2}


def test_as_tensor():
    """A tensor is given back as it is; of other dtypes it is a plain one."""

    def function(x):
        same = torch.as_tensor(x), torch.as_tensor(x, dtype=torch.float32, device="cpu")
        wide = torch.as_tensor(x, dtype=torch.float64)
        return [y is x for y in same], type(wide), wide + 1, torch.as_tensor(wide) is wide

    check(function, X, graphs=1)
    backend = CountingBackend()
    compiled = minidynamo.compile(function, backend=backend, fullgraph=True)
    assert_same(compiled(X.as_subclass(Passing)), function(X.as_subclass(Passing)))
    check(lambda x: torch.as_tensor(x, None, None, 1), X, graphs=0)
