"""Functions that answer without touching the graph, and blocks that have no effect in it."""

import collections
import datetime
import importlib
import inspect
import os
import typing
import warnings
import weakref

import numpy as np
import pytest
import torch
from testing import CountingBackend, assert_same, check, check_recompiles
from torch.nn.attention import SDPBackend, sdpa_kernel

import minidynamo
from minidynamo.testing import CompileCounter

x = torch.arange(6.0).reshape(2, 3) + 1


class Box:
    pass


class Base:
    pass


class Left(Base):
    pass


def questions(a):
    return (
        a + 1,
        torch._C._is_any_autocast_enabled(),
        torch.autograd._is_checkpoint_valid(),
        torch.fx._symbolic_trace.is_fx_tracing(),
        torch.jit._unwrap_optional(a) is a,
    )


def unwrapped_none(a):
    try:
        return a + torch.jit._unwrap_optional(None)
    except AssertionError:
        return a - 1


def named_tuple_made_inside(a):
    kind = collections.namedtuple("Pair", ["first", "second"], defaults=(None,))
    pair = kind(a)
    return pair.first + 1, pair[1], kind.__name__, kind._fields


def legacy_types(a):
    return a.type(torch.HalfTensor), a.type("torch.DoubleTensor"), a.type()


def numpy_types(a):
    info = np.iinfo(np.int16)
    least = float(np.finfo(np.float32).min)
    return a + info.max, least, torch.from_numpy(np.full(3, 2.5, dtype=np.dtype("float")))


def numpy_of_tensors(a):
    ones, zeros = np.ones_like(a, dtype=np.float64), np.zeros_like(a)
    return torch.from_numpy(ones) + a, torch.from_numpy(np.array(a) + zeros)


def numbers_in_tensors(a):
    weight = torch.tensor(0.5)
    pair = [a.clone(), a * 2]
    changed = torch._foreach_lerp_(pair, [a * 3, a], weight)
    powers = torch._foreach_pow(weight, [a, a.sum()])
    return torch._foreach_lerp(pair, [a, a], weight), changed, powers, pair


def decorated_inside(a):
    @torch.no_grad()
    def plus_two(b):
        return b + 2

    def plus_one(b, c=1, *, d=2):
        return b + c * d

    kinds = inspect.isgeneratorfunction(plus_one), inspect.iscoroutinefunction(plus_one)
    missing = hasattr(plus_one, "mark"), getattr(plus_one, "mark", 3)
    return plus_two(a), kinds, missing, plus_one.__code__.co_name, plus_one.__defaults__


def quiet(a):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.filterwarnings("ignore", message="nothing")
        b = a.sin()
    return b + len(caught)


def attention(a):
    with sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION], set_priority=True):
        return torch.nn.functional.scaled_dot_product_attention(a, a, a)


LAYER, LABEL = torch.nn.Identity(), Box()


def hashes(a):
    box, other = Box(), Box()
    same = hash(LAYER) == hash(LAYER), hash(LABEL) == hash(LABEL), hash(box) == hash(box)
    return a + 1, same, hash(box) == hash(other), hash(LABEL) == hash(LAYER)


def refusals(a):
    found = []
    for number in (3, None):
        for action in (lambda n: n(), lambda n: setattr(n, "mark", 1)):
            try:
                action(number)
            except (AttributeError, TypeError) as error:
                found.append((type(error), str(error)))
    return a + len(found), found


@pytest.mark.parametrize(
    "fn",
    [
        questions,
        hashes,
        refusals,
        unwrapped_none,
        named_tuple_made_inside,
        legacy_types,
        numpy_types,
        numpy_of_tensors,
        numbers_in_tensors,
        decorated_inside,
        quiet,
        attention,
    ],
    ids=lambda fn: fn.__name__,
)
def test_one_graph(fn):
    if fn is named_tuple_made_inside:
        compiled = minidynamo.compile(fn, backend="eager", fullgraph=True)
        assert_same(compiled(x), fn(x))
    else:
        check(fn, x, graphs=1)


def test_warning_inside_of_the_block():
    def f(a):
        b = a + 1
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            b = b.sin()
            warnings.warn("seen", stacklevel=1)
            b = b + 1
        return b * 2, [str(w.message) for w in caught]

    before = list(warnings.filters)
    check(f, x, graphs=None)
    assert warnings.filters == before


def test_warnings_of_operators_inside_of_the_block():
    def f(a):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            b = a[:1].var()
        return b, len(caught), a + 1

    check(f, torch.arange(3.0), graphs=2)


def test_warnings_are_read_inside_of_the_block():
    def f(a):
        counts = []
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            counts.append(len(caught))
            b = a[:1].var()
            counts.append(len(caught))
            c = a[1:2].var() + 1
            counts.append([w.category for w in caught])
        return b, c, counts

    check(f, torch.arange(3.0), graphs=None)


def test_warnings_as_errors_inside_of_the_block():
    def f(a):
        b = a + 1
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                warnings.warn("raised", stacklevel=1)
            except UserWarning as error:
                return b, str(error)
        return b, ""

    check(f, x, graphs=None)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_what_torch_warns_of_while_it_compiles_is_no_error(backend):
    def f(a):
        return a * 2 + a.sum()

    given = x.clone().requires_grad_() * 2  # asked for its gradient, it warns
    compiled = minidynamo.compile(f, backend=backend, fullgraph=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        before = list(warnings.filters)
        assert_same(compiled(given), f(given))
        assert warnings.filters == before


def test_subclasses():
    def f(a):
        return a + len(Base.__subclasses__()), [kind.__name__ for kind in Base.__subclasses__()]

    kinds = []

    def change(index):
        if index == 2:
            kinds.append(type("Right", (Base,), {}))

    check_recompiles(f, [(x,)] * 3, 2, change)


def test_hash_of_another_object():
    def f(a, box):
        return a + 1, hash(box)

    boxes = Box(), Box()
    counter = CountingBackend()
    compiled = minidynamo.compile(f, backend=counter, fullgraph=True)
    for box in (*boxes, boxes[0]):
        assert_same(compiled(x, box), f(x, box))
    assert len(counter.graphs) == 2


def test_modules_imported_by_name():
    def f(a, name):
        relative = importlib.import_module(".nn", package="torch")
        return a * importlib.import_module(name).pi, relative is torch.nn

    check_recompiles(f, [(x, "math"), (x, "math"), (x, "numpy")], 2)
    for call in (f, minidynamo.compile(f, backend="eager")):
        with pytest.raises(ModuleNotFoundError, match="No module named 'md_missing'"):
            call(x, "md_missing")


class ByIdentity(torch.nn.Module):
    def __hash__(self):
        return super().__hash__()

    def __eq__(self, other):
        return self is other


def test_hash_that_asks_object():
    seen = {}
    module = ByIdentity()

    def f(a):
        seen[module] = 3
        box = Box()
        return a + seen[module], hash(module), object.__hash__(box) == hash(box)

    check(f, x, fullgraph=True)
    assert seen == {module: 3}


def test_address_of_a_tensor_below_its_object():
    def f(a, b):
        c = a + 1
        known = {a._cdata: 1, c._cdata: 2}
        same = a._cdata == b._cdata, a._cdata != a.detach()._cdata
        return c, known[c._cdata], same, len(known | {b._cdata: 3}), b._cdata

    arguments = [(x, x + 1), (x + 1, x), (x, x)]
    compiled = minidynamo.compile(f, backend=(backend := CountingBackend()), fullgraph=True)
    for given in arguments:
        assert_same(compiled(*given), f(*given))
    assert len(backend.graphs) == 2


def test_weak_reference_of_a_tensor_made_inside():
    def f(a):
        b = a + 1
        reference = weakref.ref(b)
        b.add_(1)
        found = reference() * 2, reference() is b, weakref.ref(b) is reference
        return *found, b, reference() is None

    def let_go(a):
        b = a + 1
        reference = weakref.ref(b)
        c = b.sin()
        del b
        return c, reference() is None

    def as_key(a):
        known = weakref.WeakKeyDictionary()
        b = a + 1
        known[b] = 3
        return known[b]

    check(f, x, fullgraph=True)
    check(let_go, x, graphs=None)
    for call in (as_key, minidynamo.compile(as_key, backend="eager")):
        with pytest.raises(RuntimeError, match="is ambiguous"):
            call(x)


def test_weak_reference_of_an_object_made_inside():
    def f(a):
        box = Box()
        box.value = a + 1
        reference = weakref.ref(box)
        box.other = [reference]
        found = reference().value * 2, reference() is box
        del box.other
        return *found, box

    check(f, x, graphs=1)


def test_object_that_may_have_been_freed():
    def f(a):
        box = Box()
        reference = weakref.ref(box)
        b = a + 1
        del box
        return b, reference() is None

    check(f, x, graphs=None)


@pytest.mark.parametrize("position", [torch.tensor(2), torch.tensor(0)])
def test_positions_in_tensors(position):
    def f(a, start, splits):
        row = a.flatten()
        return torch.narrow(row, 0, start, 3), row.narrow(0, start, 1), row.tensor_split(splits)

    compiled = minidynamo.compile(f, backend=CountingBackend(), fullgraph=True)
    for splits in (torch.tensor([1, 4]), torch.tensor([2, 3])):
        assert_same(compiled(x, position, splits), f(x, position, splits))


def test_type_of_named_tuple_from_typing():
    class Pair(typing.NamedTuple):
        first: torch.Tensor
        second: int = 3

    def f(a):
        pair = Pair(a)
        return pair._replace(second=4), pair.first + pair.second

    check(f, x, graphs=1)


@torch.fx.traceback.annotate_fn({"stage": 2})
def second_stage(a):
    return a.tan()


@torch.fx.traceback.annotate({"stage": 3})
def third_stage(a):
    return a.exp()


def test_annotated_operations():
    def f(a):
        with torch.fx.traceback.annotate({"stage": 1}):
            b = a.sin()
            with torch.fx.traceback.annotate({"part": "inner"}):
                b = b.cos()
        return third_stage(second_stage(b + 1))

    counter = check(f, x, graphs=1, fullgraph=True)
    ops = [node for node in counter.graphs[0].graph.nodes if node.op.startswith("call_")]
    inner = {"stage": 1, "part": "inner"}
    assert [node.meta.get("custom") for node in ops] == [
        {"stage": 1},
        inner,
        None,
        {"stage": 2},
        {"stage": 3},
    ]


def test_graph_break_in_an_annotated_block():
    def f(a):
        b = a + 1
        with torch.fx.traceback.annotate({"stage": 1}):
            b = b.sin()
            minidynamo.graph_break()
            b = b.cos()
        return b + 1

    check(f, x, graphs=None)


class Truncated:
    def __trunc__(self):
        return 42


def test_int_of_what_can_only_be_truncated():
    """Python 3.11 warns of it, 3.14 refuses it."""
    outcomes = []
    for fn in (int, minidynamo.compile(lambda value: int(value), backend="eager")):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            outcomes.append((fn(Truncated()), [str(warning.message) for warning in caught]))
    assert outcomes[0] == outcomes[1]


def kind_of(item, a):
    if torch.jit.isinstance(item, typing.List[torch.Tensor]):  # noqa: UP006
        return a + len(item)
    if torch.jit.isinstance(item, typing.Dict[str, int]):  # noqa: UP006
        return a * 2
    if torch.jit.isinstance(item, typing.Optional[typing.Tuple[int, str]]):  # noqa: UP006, UP045
        return a - 3
    return a.sin() if torch.jit.isinstance(item, (int, torch.Tensor)) else a.cos()


def test_types_as_torchscript_asks_for_them():
    items = [x, [x, x], [x, 1], {"b": 1}, {"b": "c"}, (1, "b"), (1, 2), None, 3, "c"]
    for item in items:
        check(kind_of, item, x, graphs=1)
    backend = CountingBackend()
    compiled = minidynamo.compile(kind_of, backend=backend, fullgraph=True)
    for item in items[:6] * 2:
        assert_same(compiled(item, x), kind_of(item, x))
    assert len(backend.graphs) == 6


def test_types_as_torchscript_refuses_them():
    def f(a):
        b = a + 1
        try:
            torch.jit.isinstance([b], typing.List)  # noqa: UP006
        except RuntimeError as error:
            return b, type(error)
        return b, None

    check(f, x, graphs=None)

    def of_nothing(a):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = torch.jit.isinstance([], typing.List[torch.Tensor])  # noqa: UP006
        return a + 1, found, len(caught)

    check(of_nothing, x, graphs=None)


def test_tensors_of_other_sizes_are_not_equal():
    """Which needs no data: kernels of Gaussian processes ask whether their inputs are one."""

    def fn(x, y):
        if torch.equal(x, y) or x.equal(y) or torch.equal(x, other=y):
            return x + 1
        return x - 1

    backend = CompileCounter()
    compiled = minidynamo.compile(fn, backend=backend, fullgraph=True)
    for sizes in ((2, 3), (4, 5), (7, 9)):
        x, y = map(torch.ones, sizes)
        assert torch.equal(compiled(x, y), fn(x, y))
    assert backend.frame_count == 2
    compiled = minidynamo.compile(fn, backend=backend)
    assert torch.equal(compiled(torch.ones(4), torch.ones(4)), torch.full((4,), 2.0))
    assert torch.equal(compiled(torch.ones(4), torch.zeros(4)), torch.zeros(4))
    with pytest.raises(NotImplementedError):
        compiled(torch.ones(3).to_sparse(), torch.ones(2))


day, buffer = datetime.date(2020, 5, 4), memoryview(b"abcd")


def test_attributes_of_objects_made_in_c():
    """Dates, views of memory, arrays: a guard looks at what was read of them."""

    def fn(a):
        kinds = [name for name, _ in inspect.getmembers(Left, inspect.isclass)]
        where = inspect.getmodule(Left).__name__
        return a * day.year, day.month, buffer.nbytes, buffer.readonly, kinds, where

    check(fn, x, fullgraph=True)

    def later(index):
        global day
        day = datetime.date(2020 + index, 5, 4)

    check_recompiles(fn, [(x,), (x,)], 2, change=later)


def test_names_of_files_as_bytes():
    check(lambda a: (a + 1, os.fsencode("ab"), os.fsdecode(b"ab")), x, fullgraph=True)


def test_whether_a_tensor_retains_its_gradient():
    def fn(a):
        return a * 2, a.retains_grad, (a + 1).retains_grad

    check(fn, x, fullgraph=True)
    backend = CompileCounter()
    compiled = minidynamo.compile(fn, backend=backend, fullgraph=True)
    leaf = torch.ones(2, requires_grad=True)
    made = leaf * 2
    assert compiled(made)[1:] == (False, False)
    made.retain_grad()
    assert compiled(made)[1:] == (True, False)
    assert backend.frame_count == 2


def test_arrays_viewed_as_another_type():
    def fn(a):
        array = a.numpy().copy()
        bits = array.view(np.int32)
        bits[0] += 1
        array += 1
        return torch.from_numpy(array), torch.from_numpy(bits), array.view(np.uint8)[0, 0]

    check(fn, x, fullgraph=True)


@pytest.mark.skipif(
    not hasattr(torch.autograd.graph, "region_activation_memory_budget"),
    reason="of torch 2.14",
)
def test_budgets_of_activations():
    """They can be given in compiled regions only."""
    budget = torch.autograd.graph.region_activation_memory_budget

    def fn(a):
        with budget(0.5):
            return (a.sin() * 2).cos()

    leaf = x.clone().requires_grad_()
    for backend in ("eager", "inductor"):
        made = minidynamo.compile(fn, backend=backend, fullgraph=True)(leaf)
        assert torch.allclose(made, (leaf.sin() * 2).cos())
        (found,) = torch.autograd.grad(made.sum(), leaf)
        assert torch.allclose(found, -(leaf.sin() * 2).sin() * 2 * leaf.cos())
    with pytest.raises(ValueError, match=r"must be in \[0, 1\]"):
        minidynamo.compile(lambda a: budget(3.0), backend="eager")(x)


def test_a_block_that_throws_warnings_away_is_captured_whole():
    def fn(a):
        with warnings.catch_warnings(record=True):
            return a.sin()

    def kept(a):
        with warnings.catch_warnings(record=True) as caught:
            b = a.sin()
        return b, len(caught)

    check(fn, x, fullgraph=True)
    with pytest.raises(minidynamo.exc.Unsupported, match="inside of the block"):
        minidynamo.compile(kept, backend="eager", fullgraph=True)(x)
    check(kept, x, graphs=None)
