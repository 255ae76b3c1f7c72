"""Functions of torch: what is a node, what is answered while tracing, what ends the graph."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from testing import CountingBackend, assert_same, check, check_recompiles

import minidynamo
from minidynamo.testing import CompileCounterWithBackend

X = torch.arange(6.0).reshape(2, 3)


def raises_kind(fn, *args):
    """The kind of the graph break that fullgraph=True reports."""
    with pytest.raises(minidynamo.exc.Unsupported) as caught:
        minidynamo.compile(fn, backend="eager", fullgraph=True)(*args)
    return caught.value.kind


def test_questions_about_tensors():
    def fn(x):
        answers = (
            torch.is_tensor(x),
            torch.is_tensor(3),
            torch.is_floating_point(x),
            torch.is_complex(x),
            torch.numel(x),
            torch.result_type(x, 3),
            torch.promote_types(torch.int32, torch.float16),
            torch.is_same_size(x, x + 1),
            x.is_floating_point(),
            torch.finfo(x.dtype).max > 1,
            torch.get_default_dtype(),
            torch.broadcast_shapes((2, 1), (3,)),
        )
        return answers, x + 1

    counter = check(fn, X, fullgraph=True)
    assert sum(n.op.startswith("call") for n in counter.graphs[0].graph.nodes) == 2


def test_while_compiling():
    def fn(x):
        flags = (
            torch.jit.is_scripting(),
            torch.jit.is_tracing(),
            torch.overrides.has_torch_function((x,)),
        )
        return flags, x + 1

    check(fn, X, fullgraph=True)

    def told(x):
        return x + 1 if minidynamo.is_compiling() else x - 1

    compiled = minidynamo.compile(told, backend="eager")
    assert torch.equal(compiled(X), X + 1)
    assert torch.equal(told(X), X - 1)

    def asked():
        return torch.compiler.is_compiling()

    assert minidynamo.compile(asked, backend="eager")() and not asked()


def test_constructors():
    def fn(x):
        a = torch.tensor([1.0, 2.0, 3.0])
        b = torch.tensor([[1, 2], [3, 4]], dtype=torch.float64)
        c = torch.as_tensor([1, 2, 3])
        d = torch.zeros(x.shape), torch.ones_like(x), torch.arange(3), torch.full((2,), 1.5)
        e = torch.tensor(x), torch.tensor(3.5), torch.Tensor([1, 2]), torch.eye(2)
        return x + a + c, b, d, e, torch.Size([2, 3]) == x.shape

    check(fn, X, fullgraph=True)


def test_random_numbers_keep_their_order():
    def fn(x):
        a = torch.rand(3)
        b = torch.randn_like(x)
        return a, b, torch.randint(0, 9, (2,)), F.dropout(x, 0.5), torch.randperm(4)

    minidynamo.reset()
    compiled = minidynamo.compile(fn, backend="eager", fullgraph=True)
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        expected = fn(X), torch.rand(1)
        torch.manual_seed(seed)
        actual = compiled(X), torch.rand(1)
        for a, b in zip(expected[0] + expected[1:], actual[0] + actual[1:], strict=True):
            assert torch.equal(a, b)


def test_multiple_results():
    def fn(x):
        values, indices = x.max(dim=1)
        top = torch.topk(x, 2)
        ordered = x.sort(descending=True)
        u, s, v = torch.svd(x)
        parts = x.split(2, dim=1)
        return (
            values,
            indices,
            top.values,
            top,
            ordered[0],
            s,
            parts,
            torch.unbind(x),
            x.chunk(2),
        )

    check(fn, X, fullgraph=True)


def test_functional():
    def fn(x):
        y = F.gelu(F.linear(x, torch.ones(4, 3))).softmax(-1)
        y = F.layer_norm(y, (4,)) + F.pad(x, (0, 1))
        z = F.max_pool1d(y, 2), F.max_pool1d(y, 2, return_indices=True)
        return (
            y,
            z,
            F.interpolate(y[None], scale_factor=2.0),
            F.one_hot(torch.tensor([1, 0]), 3),
        )

    check(fn, X, fullgraph=True)


def test_einsum_stack_cat_where():
    def fn(x):
        y = torch.einsum("ij,kj->ik", x, x)
        z = torch.stack([x, x + 1]), torch.cat((x, x), dim=-1), torch.where(x > 2, x, 0.0)
        return y, z, torch.meshgrid(x[0], x[1], indexing="ij"), torch.block_diag(x, x)

    check(fn, X, fullgraph=True)


def test_assertions():
    def fn(x):
        torch._assert(x.shape[0] == 2, "rows")
        assert x.dim() == 2, "dim"
        return x + 1

    check(fn, X, fullgraph=True)

    def failing(x):
        y = x + 1
        torch._assert(x.shape[0] == 5, "rows")
        return y

    check(failing, X, graphs=None)


def test_operator_errors_are_eager_errors():
    def fn(x):
        y = x + 1
        return y @ x

    check(fn, X, graphs=None)

    def caught(x):
        try:
            return x @ x
        except RuntimeError:
            return x + 1

    check(caught, X, graphs=None)


@pytest.mark.parametrize(
    ("fn", "kind"),
    [
        (lambda x: f"{x}", "data-dependent value"),
        (lambda x: torch.allclose(x, x), "data-dependent value"),
        (lambda x: x.to(torch.bfloat16).numpy(), "numpy array"),
        (lambda x: x + 1 if x.sum() > 3 else x, "data-dependent branch"),
        (lambda x: "a" in x, "data-dependent value"),
        (lambda x: torch.linalg.lstsq(x, x), "data-dependent shape"),
        (lambda x: x.sum().backward(), "autograd call"),
        (lambda x: torch.nn.Parameter(x[0]), "new parameter"),
        (lambda x: (torch.manual_seed(0), x + 1), "call of an untraced function"),
        (lambda x: (minidynamo.graph_break(), x), "graph_break()"),
    ],
)
def test_kinds_of_breaks(fn, kind):
    assert raises_kind(fn, X) == kind


def test_breaks_resume():
    def fn(x):
        y = x * 2
        n = y.sum().item()
        z = y + n
        minidynamo.graph_break("here")
        torch.manual_seed(3)
        return z + 1, n, torch.rand(2)

    check(fn, X, graphs=None)


def test_allow_and_disallow():
    calls = []

    def noted(x):
        calls.append(1)
        return x * 2

    minidynamo.allow_in_graph(noted)
    compiled = minidynamo.compile(lambda x: noted(x) + 1, backend="eager", fullgraph=True)
    assert torch.equal(compiled(X), X * 2 + 1)

    def plain(x):
        return x * 3

    minidynamo.disallow_in_graph(plain)
    check(lambda x: plain(x + 1) + 1, X, graphs=3, breaks=1)


def test_the_user_comes_before_the_table():
    minidynamo.disallow_in_graph(torch.is_tensor)
    try:
        check(lambda x: (torch.is_tensor(x + 1), x), X, graphs=None, breaks=1)
    finally:
        minidynamo.markers.set_decision(torch.is_tensor, minidynamo.markers.Decision.INLINE)


def test_constant_result():
    count = []

    def config():
        count.append(1)
        return 3

    minidynamo.assume_constant_result(config)
    compiled = minidynamo.compile(lambda x: x + config(), backend="eager", fullgraph=True)
    assert torch.equal(compiled(X), X + 3)
    assert torch.equal(compiled(X), X + 3)
    assert len(count) == 1


def test_default_dtype_is_guarded():
    def fn(x):
        return torch.zeros(2) + 1

    def change(i):
        torch.set_default_dtype([torch.float32, torch.float64, torch.float32][i])

    try:
        check_recompiles(fn, [(X,)] * 3, graphs=2, change=change)
    finally:
        torch.set_default_dtype(torch.float32)


class Scaled(torch.autograd.Function):
    """Saves tensors and attributes; its gradient is deliberately not the true one."""

    @staticmethod
    def forward(ctx, x, factor, offset=None):
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return (grad * ctx.factor + x if ctx.needs_input_grad[0] else None), None


class Split(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x.sin(), x.cos()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad, _):
        return grad * ctx.saved_tensors[0].cos()


def test_custom_autograd_function():
    def fn(x):
        return Scaled.apply(x + 1, 3) + 1, Split.apply(x)

    check(fn, X, fullgraph=True)
    with torch.no_grad():
        check(fn, X.clone().requires_grad_(), fullgraph=True)


def test_custom_autograd_function_with_gradient():
    def fn(x):
        first, second = Split.apply(x * 2)
        return Scaled.apply(first, 3) + second

    for backend in ("eager", "aot_eager"):
        a, b = (X.clone().requires_grad_() for _ in range(2))
        compiled = minidynamo.compile(fn, backend=backend, fullgraph=True)
        expected, actual = fn(a), compiled(b)
        torch.testing.assert_close(expected, actual)
        expected.sum().backward()
        actual.sum().backward()
        torch.testing.assert_close(a.grad, b.grad)


class InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        ctx.mark_dirty(a)
        return a.mul_(2)

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


@pytest.mark.parametrize("needs_grad", [False, True])
def test_autograd_function_that_returns_its_input(needs_grad):
    def fn(a):
        b = a.clone()
        c = InPlace.apply(b)
        return c is b, c, b

    check(fn, torch.ones(3, requires_grad=needs_grad), fullgraph=True)


class Factor:
    def __init__(self, factor):
        self.factor = factor
        self.weight = torch.full((3,), 2.0)


class ByObject(torch.autograd.Function):
    """Keeps an object, a module, an intermediate result and a shape for the backward pass."""

    @staticmethod
    def forward(ctx, a, what, module, b):
        ctx.what, ctx.module, ctx.shape = what, module, a.shape
        ctx.exponential = a.exp()
        ctx.save_for_backward(b)
        chosen = (a > 0).sum()
        ctx.mark_non_differentiable(chosen)
        return module(a) * what.factor * what.weight, ctx.exponential * b, chosen

    @staticmethod
    def backward(ctx, first, second, _):
        (b,) = ctx.saved_tensors
        grad = (first * ctx.what.factor * ctx.what.weight) @ ctx.module.weight
        both = second * ctx.exponential
        return (
            (grad + both * b).reshape(ctx.shape),
            None,
            None,
            both if b.requires_grad else None,
        )


class FreeTensors(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        return a * FACTOR.weight

    @staticmethod
    def backward(ctx, grad):
        return grad * FACTOR.weight * FACTOR.factor


FACTOR, LAYER = Factor(3), torch.nn.Linear(3, 3)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_autograd_function_of_objects(backend):
    def fn(a, b, what):
        first, second, chosen = ByObject.apply(a.sin(), what, LAYER, b)
        third = ByObject.apply(b, what, LAYER, b)[1]
        return first + second + third, chosen, FreeTensors.apply(a) * 2

    counter = CompileCounterWithBackend(backend)
    compiled = minidynamo.compile(fn, backend=counter, fullgraph=True)
    objects = [Factor(2), Factor(2), Factor(5)]
    objects[1].weight = torch.tensor([1.0, 2.0, 3.0])
    for what in objects:
        results = []
        for call in (fn, compiled):
            a = torch.linspace(-1, 1, 6).reshape(2, 3).requires_grad_()
            b = torch.linspace(0, 2, 6).reshape(2, 3).requires_grad_()
            out = call(a, b, what)
            (out[0].sum() + (out[2] * out[2]).sum()).backward()
            results.append((out, a.grad, b.grad))
        assert_same(*results)
    assert counter.frame_count == 2  # the factor is a constant, the weight is not


class Refusing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        raise ValueError("no")

    @staticmethod
    def backward(ctx, grad):
        return grad


def test_autograd_function_that_raises():
    def fn(a):
        try:
            return Refusing.apply(a)
        except ValueError as error:
            return a * 2, str(error), torch.is_grad_enabled()

    check(fn, torch.ones(3, requires_grad=True), fullgraph=True)
    assert torch.is_grad_enabled()


def test_autograd_function_with_side_effects_breaks():
    log = []

    class Logging(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            log.append(1)
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            log.append(2)
            return grad * 2

    x = X.clone().requires_grad_()
    assert raises_kind(lambda x: Logging.apply(x), x) == "autograd function"
    compiled = minidynamo.compile(lambda x: Logging.apply(x) + 1, backend="eager")
    log.clear()
    assert torch.equal(compiled(x), x * 2 + 1)
    assert len(log) == 1


def test_backend_flags_are_guarded():
    def fn(x):
        return x + 1 if torch.backends.cudnn.enabled else x - 1

    before = torch.backends.cudnn.enabled

    def change(i):
        torch.backends.cudnn.enabled = i % 2 == 0

    try:
        check_recompiles(fn, [(X,)] * 4, graphs=2, change=change)
    finally:
        torch.backends.cudnn.enabled = before


def test_quantized_tensors_are_made_in_eager():
    def fn(x):
        return torch.quantize_per_tensor(x, 0.5, 0, torch.qint8).dequantize() + 1

    check(fn, X, graphs=1)


def test_foreach_in_place_of_keywords():
    def lerp(**lists):
        torch._foreach_lerp_(**lists)
        return lists["self"][0] + 1

    lists = [[torch.ones(2) * i] for i in range(3)]
    names = ("self", "tensors1", "weights")
    want = lerp(**{n: [t.clone() for t in v] for n, v in zip(names, lists, strict=True)})
    got = minidynamo.compile(lerp, backend="eager", fullgraph=True)(
        **dict(zip(names, lists, strict=True))
    )
    assert torch.equal(got, want)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_gradient_whose_shape_depends_on_data(backend):
    def put(x, mask, y):
        x = x.clone()
        x[mask] = y
        return x

    mask = torch.tensor([True, False, True])
    x, y = torch.ones(3, requires_grad=True), torch.zeros(2, requires_grad=True)
    result = minidynamo.compile(put, backend=backend)(x, mask, y)
    result.sum().backward()
    assert result.tolist() == [0, 1, 0]
    assert (x.grad.tolist(), y.grad.tolist()) == ([0, 1, 0], [1, 1])


def test_a_list_that_is_given_back():
    """What writes to the tensors of a list returns a list, which is a plain one."""

    def fn(x, y):
        result = torch._foreach_add_([x.clone(), y.clone()], [y, x])
        result.append(x)
        return result

    check(fn, torch.ones(3), torch.arange(3.0), graphs=1)


@pytest.mark.parametrize("kind", [list, tuple])
def test_what_writes_to_the_tensors_of_a_list_returns_the_list(kind):
    def fn(given, factors):
        made = [x + 1 for x in given]
        results = torch._foreach_asin_(given), torch._foreach_copy_(self=made, src=given)
        scaled = torch._foreach_addcmul_(made, given, given, factors)
        if isinstance(results[0], list):
            results[0].append(factors)
        same = results[0] is given, results[1] is made, scaled is made, scaled[0] is made[0]
        return same, len(given), made, torch.ops.aten._foreach_neg_(made)

    outcomes = []
    compiled = minidynamo.compile(fn, backend="eager", fullgraph=True)
    for function in (fn, compiled):
        given = kind(torch.full((2,), 0.1 * i) for i in range(2))
        outcomes.append((function(given, torch.tensor([2.0, 3.0])), given))
    assert_same(*outcomes)


def test_functions_got_from_the_object_that_holds_them():
    class Holder:
        functions = torch._C._VariableFunctions

    def fn(x):
        return Holder.functions.rsub(x, 2.0), torch._C._VariableFunctions.tanh(x)

    counter = CompileCounterWithBackend("eager")
    compiled = minidynamo.compile(fn, backend=counter, fullgraph=True)
    assert_same(compiled(X), fn(X))
    assert_same(compiled(X + 1), fn(X + 1))
    assert counter.frame_count == 1
    Holder.functions = type("Other", (), {"rsub": staticmethod(torch.add)})()
    assert_same(compiled(X), fn(X))
    assert counter.frame_count == 2


def test_results_that_nobody_uses_are_no_nodes():
    def fn(x):
        first = torch.max(x, 0)[0]
        _, middle, _ = x.split(1)
        return first + middle, torch.topk(x, 1).indices, len(x.unbind(0))

    counter = CountingBackend()
    x = torch.randn(3, 4)
    assert_same(fn(x), minidynamo.compile(fn, backend=counter, fullgraph=True)(x))
    # max, split, topk and unbind, one result of three of these, and the sum.
    assert len(counter.graphs) == 1 and counter.op_count == 8


def test_references_of_operators_are_traced():
    """Those whose operators have meta functions that are right; others break the graph."""
    refs = torch._refs

    def fn(x):
        y = (
            refs.triu(refs.roll(x, 1, 1)),
            refs.linalg.vector_norm(x, dim=1),
            refs.repeat(x, 2, 1),
        )
        return y, refs.permute_copy(x, (1, 0)), refs.nn.functional.relu6(x), refs.any(x, 0)

    check_recompiles(fn, [(X,), (X - 3,), (X.double(),)], graphs=2, fullgraph=True)
    assert raises_kind(lambda x: refs.fft.fft(x), X) == "call of an untraced function"


def test_overloads_are_found_where_the_program_asks_first():
    """Torch makes them when they are asked for: the tracer took them for missing."""
    library = torch.library.Library("asked_first", "FRAGMENT")
    library.define("twice(Tensor x) -> Tensor")
    library.define("twice.scaled(Tensor x, int k) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CompositeImplicitAutograd")
    library.impl("twice.scaled", lambda x, k: x * k, "CompositeImplicitAutograd")

    def fn(x):
        packet = torch.ops.asked_first.twice
        found = hasattr(packet, "scaled"), hasattr(packet, "other")
        return packet.default(x) + packet.scaled(x, 3), found

    compiled = minidynamo.compile(fn, backend="eager", fullgraph=True)
    result, found = compiled(X)
    assert torch.equal(result, X * 5)
    assert found == (True, False)


def test_the_kernel_of_an_attention_is_asked_of_its_device():
    check(lambda q: (torch._fused_sdp_choice(q, q, q), q + 1), torch.ones(1, 1, 4, 8), graphs=1)
