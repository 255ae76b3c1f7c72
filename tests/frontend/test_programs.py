"""Programs as users write them, over all that objects and classes can do: eager agrees."""

from __future__ import annotations

import collections
import copy
import dataclasses
import enum
import functools
import types
import typing

import pytest
import torch
from testing import check, check_recompiles
from torch import nn

import minidynamo

X = torch.arange(6.0).reshape(2, 3)


class P:
    def __init__(self, x, y=1):
        self.x = x
        self.y = y


def test_special_lookup_on_type():
    class C:
        def __enter__(self):
            return 1

        def __exit__(self, *a):
            return None

        def __len__(self):
            return 3

    c = C()
    c.__enter__ = lambda: 5
    c.__len__ = lambda: 9

    def fn(x):
        with c as v:
            x = x + v
        return x + len(c)

    check(fn, X, fullgraph=True)


def test_no_context():
    def fn(x):
        try:
            with P(1):
                pass
        except (TypeError, AttributeError) as e:
            return x + 1, str(e), type(e)

    check(fn, X, fullgraph=True)


def test_register_inside():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(3, 3)

        def forward(self, x):
            if not hasattr(self, "cache"):
                self.register_buffer("cache", torch.zeros(3))
            self.cache = self.cache + x.sum(0)
            setattr(self, "n_%d" % 2, x * 1)
            return self.lin(x) + self.cache

    a = M()
    b = copy.deepcopy(a)
    c = minidynamo.compile(b, backend="eager")
    for _ in range(3):
        torch.testing.assert_close(a(X), c(X))
    assert list(a._buffers) == list(b._buffers)
    torch.testing.assert_close(a.cache, b.cache)
    assert list(a.__dict__) == list(b.__dict__)


def test_del_buffer():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("c", torch.ones(3))
            self.lin = nn.Linear(3, 3)

        def forward(self, x):
            del self.c
            self.c = torch.ones(3)
            self.lin = nn.Identity()
            return x + self.c

    a = M()
    b = copy.deepcopy(a)
    c = minidynamo.compile(b, backend="eager")
    torch.testing.assert_close(a(X), c(X))
    assert list(a._buffers) == list(b._buffers)
    assert "c" in b.__dict__
    assert isinstance(b.lin, nn.Identity)


def test_super_forward():
    class A(nn.Linear):
        def forward(self, x):
            return super().forward(x) * 2

    m = A(3, 3)
    check(lambda x: m(x), X, fullgraph=True)


def test_plain_list_of_modules():
    ms = [nn.Linear(3, 3), nn.ReLU()]

    class H:
        def __init__(self):
            self.m = ms
            self.d = {"a": ms[0]}

    h = H()

    def fn(x):
        for m in h.m:
            x = m(x)
        return h.d["a"](x)

    check(fn, X, fullgraph=True)


def test_dataclass_variants():
    @dataclasses.dataclass(slots=True, kw_only=True)
    class A:
        a: int
        b: typing.Any = dataclasses.field(init=False)

        def __post_init__(self):
            self.b = self.a + 1

    @dataclasses.dataclass(order=True)
    class B:
        a: int
        v: dataclasses.InitVar[int] = 3

        def __post_init__(self, v):
            self.c = v

    def fn(x):
        a = A(a=1)
        b = B(2)
        return (
            x + a.b + b.c,
            B(1) < B(2),
            [f.name for f in dataclasses.fields(a)],
            dataclasses.is_dataclass(b),
            repr(a),
        )

    check(fn, X, fullgraph=True)


def test_asdict():
    @dataclasses.dataclass
    class A:
        a: int
        items: list

    def fn(x):
        return dataclasses.asdict(A(1, [2, {"a": 3}])), dataclasses.astuple(A(1, [2])), x + 1

    check(fn, X, fullgraph=True)


def test_copies():
    p = P(1, [2, 3])

    def fn(x):
        q = copy.copy(p)
        r = copy.deepcopy(p)
        r.y.append(4)
        return (
            q.x,
            q.y is p.y,
            r.y,
            x + 1,
            copy.deepcopy([1, {"a": (2, [3])}]),
            copy.copy({"a": 1}),
        )

    check(fn, X, fullgraph=True)


def test_torch_ops():
    def fn(x):
        return torch.ops.aten.add(x, 1) + torch.ops.aten.mul.Tensor(x, x)

    check(fn, X, fullgraph=True)


def test_custom_op():
    @torch.library.custom_op("md_t::foo", mutates_args=())
    def foo(x: torch.Tensor, k: int) -> torch.Tensor:
        return x * k

    @foo.register_fake
    def _(x, k):
        return torch.empty_like(x)

    check(lambda x: foo(x, 3) + torch.ops.md_t.foo(x, 2), X, fullgraph=True)


def test_singleton():
    class S:
        _inst = None

        def __new__(cls):
            if cls._inst is None:
                cls._inst = super().__new__(cls)
                cls._inst.v = 3
            return cls._inst

    S()
    check(lambda x: x + S().v, X, fullgraph=True)


def test_new_with_subclass_registry():
    class R:
        table = {}

        def __init_subclass__(cls, **k):
            super().__init_subclass__(**k)
            R.table[cls.__name__] = cls

    class A(R):
        def f(self, x):
            return x + 1

    check(lambda x: R.table["A"]().f(x), X, fullgraph=True)


def test_callable_object_attr():
    class Act:
        def __init__(self, k):
            self.k = k

        def __call__(self, x):
            return x * self.k

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.act = Act(3)
            self.fn = torch.relu
            self.lam = lambda x: x + 1
            self.meth = self.act.__call__

        def forward(self, x):
            return self.meth(self.lam(self.fn(self.act(x))))

    m = M()
    check(lambda x: m(x), X, fullgraph=True)


def test_partialmethod():
    class A:
        def f(self, x, k):
            return x * k

        g = functools.partialmethod(f, k=3)

    a = A()
    check(lambda x: a.g(x), X, fullgraph=True)


def test_singledispatch():
    @functools.singledispatch
    def f(a, x):
        return x

    @f.register
    def _(a: int, x):
        return x + a

    check(lambda x: f(3, x), X, graphs=None)


def test_wraps_decorator():
    def deco(fn):
        @functools.wraps(fn)
        def w(*a, **k):
            return fn(*a, **k) + 1

        return w

    class A:
        @deco
        def f(self, x):
            return x * 2

    a = A()
    check(lambda x: a.f(x), X, fullgraph=True)


class Scale:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, x):
        return x * self.factor


def test_wraps_takes_the_attributes_of_objects():
    scale, linear = Scale(3), nn.Linear(3, 3)

    def fn(x, wrapped):
        @functools.wraps(wrapped)
        def wrapper(*args):
            return wrapped(*args)

        known = [n for n in ("factor", "in_features") if n in wrapper.__dict__]
        return wrapper(x), [wrapper.__dict__[n] for n in known], wrapper.__wrapped__ is wrapped

    for wrapped in (scale, linear, functools.partial(torch.add, alpha=2, other=1)):
        check(lambda x, wrapped=wrapped: fn(x, wrapped), torch.ones(2, 3), fullgraph=True)

    def change(index):
        scale.factor = (2, 2, 5)[index]

    check_recompiles(lambda x: fn(x, scale), [(X,)] * 3, 2, change, fullgraph=True)


def test_the_dict_of_a_new_function():
    def fn(x):
        def inner(a):
            return a * inner.factor

        inner.__dict__["factor"] = 3
        inner.__dict__.update(other=x.sin(), more=1)
        del inner.__dict__["more"]
        inner.__doc__ = "text"
        other = vars(inner)["other"]
        return inner(x), list(inner.__dict__), other, hasattr(inner, "more"), inner

    check(fn, X, fullgraph=True)
    inner = minidynamo.compile(fn, backend="eager", fullgraph=True)(X)[-1]
    assert list(vars(inner)) == ["factor", "other"] and inner.__doc__ == "text"


def test_total_ordering():
    @functools.total_ordering
    class A:
        def __init__(self, v):
            self.v = v

        def __eq__(self, o):
            return self.v == o.v

        def __lt__(self, o):
            return self.v < o.v

    check(
        lambda x: (x + 1, A(1) >= A(0), max(A(1), A(3)).v, sorted([A(3), A(1)])[0].v),
        X,
        fullgraph=True,
    )


def test_user_dict_list():
    class D(dict):
        def __getattr__(self, n):
            return self[n]

        def __setattr__(self, n, v):
            self[n] = v

    class L(list):
        def total(self):
            return sum(self)

    def fn(x, d):
        d.b = x
        e = D(a=2)
        e.c = 3
        items = L([1, 2])
        items.append(4)
        return x * d.a + e.a + e.c + items.total(), e, type(items) is L

    check(lambda x: fn(x, D(a=1)), X, fullgraph=True)


def test_ordereddict_module_output():
    class Output(collections.OrderedDict):
        def __post_init__(self):
            pass

        def to_tuple(self):
            return tuple(self.values())

    def fn(x):
        o = Output()
        o["a"] = x
        o.k = 3
        return o, o.to_tuple(), o.k, x + 1

    check(fn, X, fullgraph=True)


def test_generic_alias_and_annotations():
    def fn(x, a: typing.Optional[int] = None):
        y: typing.List[int] = [1]
        z = typing.cast(typing.List[int], y)
        return x + z[0], isinstance(y, (list, tuple)), isinstance(3, int | str)

    check(fn, X, fullgraph=True)


def test_abc_isinstance():
    def fn(x):
        return (
            x + 1,
            isinstance([1], collections.abc.Sequence),
            isinstance(x, collections.abc.Iterable),
            isinstance({}, collections.abc.Mapping),
            callable(fn),
            isinstance(fn, types.FunctionType),
        )

    check(fn, X, graphs=None)


def test_descriptor_getter_on_class():
    class D:
        def __get__(self, o, t):
            return (o is None, t.__name__)

    class A:
        d = D()

    check(lambda x: (A.d, A().d, x + 1), X, fullgraph=True)


def test_getattr_dunder():
    p = P(3)
    check(
        lambda x: (
            p.__class__.__name__,
            p.__dict__["x"],
            P.__doc__,
            P.__module__,
            x + 1,
            type(p).__qualname__,
        ),
        X,
        fullgraph=True,
    )


def test_mutate_then_call_eager():
    p = P(3, [1])

    def seen():
        return p.x, list(p.y)

    def fn(x):
        p.x = 7
        p.y.append(2)
        minidynamo.graph_break()
        v = seen()
        p.y.clear()
        p.y.append(1)
        return x + p.x, v

    check(fn, X, graphs=None)


def test_alias_objects_args():
    def fn(a, b, x):
        a.x = x + 1
        r = b.x
        return r * 2

    check_recompiles(fn, [(P(1), P(2), X)], graphs=1)
    p = P(1)
    check_recompiles(fn, [(P(1), P(2), X), (p, p, X)], graphs=2)


def test_class_call_kwargs_star():
    def fn(x):
        k = {"y": 4}
        return P(*[x], **k).x + P(x, y=3).y

    check(fn, X, fullgraph=True)


def test_nonlocal_object_escape_closure():
    def fn(x):
        p = P(x)

        def g():
            return p.x + 1

        p.x = p.x * 2
        return g, g()

    def run(x):
        g, v = fn(x)
        return g(), v

    check(run, X, fullgraph=True)


def test_return_bound_method():
    class A:
        def __init__(self, k):
            self.k = k

        def f(self, x):
            return x * self.k

    def fn(x):
        a = A(x)
        return a.f

    check(lambda x: fn(x)(x), X, fullgraph=True)
    c = minidynamo.compile(fn, backend="eager")
    torch.testing.assert_close(c(X)(X), X * X)


def test_object_eq_identity():
    p = P(1)
    check(
        lambda x: (p == p, p != p, p in [p], [p].index(p), {p: 1}[p], x + 1),
        X,
        graphs=None,
        fullgraph=True,
    )


def test_generator_method():
    class It:
        def __init__(self, n):
            self.n = n

        def __iter__(self):
            for i in range(self.n):
                yield i

        def pairs(self):
            yield from ((i, i) for i in self)

    check(lambda x: (x + sum(It(3)), list(It(2)), dict(It(2).pairs())), X, fullgraph=True)


def test_exception_class_user():
    class E(ValueError):
        def __init__(self, a, b):
            super().__init__(a)
            self.b = b

    def fn(x):
        try:
            raise E("m", 3)
        except ValueError as e:
            return x + e.b, e.args, str(e), isinstance(e, E)

    check(fn, X, fullgraph=True)


def test_mro_entries_protocol():
    class Proto(typing.Protocol):
        def f(self): ...

    class A:
        def f(self):
            return 2

    check(lambda x: x + A().f(), X, fullgraph=True)


def test_strenum():
    class S(str, enum.Enum):
        A = "a"
        B = "b"

    class Number(enum.IntEnum):
        ONE = 1

    check(
        lambda x: (
            x + Number.ONE,
            S("a") is S.A,
            S.A == "a",
            S.A.value,
            Number(1).name,
            {S.A: 1}[S.A],
        ),
        X,
        fullgraph=True,
    )


def test_contextvar_like():
    class Stack:
        cur = []

        def __init__(self, v):
            self.v = v

        def __enter__(self):
            Stack.cur.append(self.v)

        def __exit__(self, *a):
            Stack.cur.pop()

    def fn(x):
        with Stack(2):
            with Stack(3):
                x = x + Stack.cur[-1]
            x = x * Stack.cur[-1]
        return x, len(Stack.cur)

    check(fn, X, fullgraph=True)


def test_inplace_attr_aug():
    def fn(p, x):
        p.x += 2
        p.y += [3]
        p.y[0] -= 1
        return x * p.x

    check(fn, P(1, [1]), X, fullgraph=True)


def test_tensor_attr_inplace():
    def fn(p, x):
        p.x += x
        p.x.mul_(2)
        p.y = p.x.view(-1)
        return p.x.sum()

    check(fn, P(torch.ones(2, 3)), X, fullgraph=True)


def test_hasattr_variants():
    p = P(1)
    check(
        lambda x: (
            hasattr(p, "x"),
            hasattr(p, "q"),
            hasattr(P, "x"),
            hasattr(torch, "nope"),
            hasattr(x, "shape"),
            getattr(P, "zz", 3),
            x + 1,
        ),
        X,
        fullgraph=True,
    )


def test_module_dict_ops():
    d = nn.ModuleDict({"a": nn.ReLU(), "b": nn.Tanh()})
    check(
        lambda x: (
            d["a"](x),
            list(d.keys()),
            list(d),
            len(d),
            "a" in d,
            [type(v).__name__ for v in d.values()],
            [k for k, _ in d.items()],
        ),
        X,
        fullgraph=True,
    )


def test_modulelist_ops():
    items = nn.ModuleList([nn.Linear(3, 3) for _ in range(3)])

    def fn(x):
        for m in reversed(items):
            x = m(x)
        for i in range(len(items)):
            x = items[i](x)
        for a, b in zip(items, items[1:], strict=False):
            x = a(b(x))
        return x

    check(fn, X, fullgraph=True)


def test_parameter_attrs():
    m = nn.Linear(3, 3)
    check(
        lambda x: (
            m.weight.requires_grad,
            m.weight.T @ x.T,
            isinstance(m.weight, nn.Parameter),
            type(m.weight) is nn.Parameter,
            m.weight.dtype,
            m.bias is not None,
            m.weight.data.sum() + 0,
        ),
        X,
        fullgraph=True,
    )


def test_functional_call():
    m = nn.Linear(3, 3)
    check(
        lambda x: torch.func.functional_call(m, {"weight": torch.ones(3, 3)}, (x,)),
        X,
        graphs=None,
    )


def test_extra_repr_str():
    m = nn.Linear(3, 3)
    check(lambda x: (m.extra_repr(), x + 1), X, fullgraph=True)


def test_module_apply_zero_grad():
    m = nn.Linear(3, 3)

    def fn(x):
        m.zero_grad()
        m.requires_grad_(True)
        return m(x), m.training

    check(fn, X, graphs=None)


class Momentum:
    """An optimizer as users write it: state in a dict that the parameters are the keys of."""

    def __init__(self, parameters):
        self.groups = [{"params": list(parameters), "lr": 0.1}]
        self.state = collections.defaultdict(dict)

    @torch.no_grad()
    def step(self):
        for group in self.groups:
            for p in group["params"]:
                state = self.state[p]
                if "m" not in state:
                    state["m"] = torch.clone(p.grad)
                else:
                    state["m"].mul_(0.9).add_(p.grad)
                p.add_(state["m"], alpha=-group["lr"])


def train(make_optimizer, compiled):
    torch.manual_seed(0)
    net = nn.Linear(3, 2)
    optimizer = make_optimizer(net.parameters())

    def step(x):
        net.zero_grad()
        loss = net(x).square().sum()
        loss.backward()
        optimizer.step()
        return loss.item()

    run = minidynamo.compile(step, backend="eager") if compiled else step
    return [run(X) for _ in range(4)], list(net.parameters())


def test_training_loops():
    makers = (
        Momentum,
        lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
        lambda p: torch.optim.AdamW(p, lr=0.01),
    )
    for make in makers:
        expected, actual = train(make, compiled=False), train(make, compiled=True)
        torch.testing.assert_close(expected, actual, rtol=1e-4, atol=1e-5)


def test_numbers_of_numpy():
    np = pytest.importorskip("numpy")
    scale = np.float32(0.5)

    def fn(x):
        size = np.prod(x.shape)
        y = x.reshape(int(size)) * np.sqrt(x.shape[-1]) + np.pi + scale
        z = y.reshape(np.int64(2), -1), x * (2 * scale)
        return y / np.float64(3), size, np.ceil(size / 4), z

    check(fn, X, fullgraph=True)
    assert np.isclose(minidynamo.compile(lambda x: x.sum() * scale, backend="eager")(X), 7.5)


def test_arrays_of_numpy_break():
    pytest.importorskip("numpy")

    def fn(x):
        y = x + 1
        a = y.numpy() * 2
        return torch.from_numpy(a) + y

    check(fn, X, graphs=None)
