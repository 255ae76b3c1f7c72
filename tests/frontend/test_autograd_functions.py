"""Autograd functions whose two halves read what no argument of a node holds: objects, functions,
modules, tensors from elsewhere, and state that the frame has changed.
"""

import contextlib
import dataclasses
import functools
import types

import pytest
import testing
import torch
from torch.utils.checkpoint import checkpoint

import minidynamo

SETTINGS = types.SimpleNamespace(scale=2.0)
FACTORS = [1.0]
GLOBAL_FACTOR = 3.0
WEIGHT = torch.tensor([1.0, 2.0, 4.0])


@dataclasses.dataclass
class Settings:
    scale: float
    weight: torch.Tensor | None = None


class ByObject(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, settings):
        ctx.settings = settings
        result = x * settings.scale
        if settings.weight is not None:
            ctx.save_for_backward(settings.weight)
            result = result * settings.weight
        return result

    @staticmethod
    def backward(ctx, grad):
        weight = ctx.saved_tensors[0] if ctx.saved_tensors else 1.0
        return grad * ctx.settings.scale * weight * 10, None


class ByFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, function):
        ctx.save_for_backward(x)
        return function(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 2 + x, None


class BySurroundings(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * SETTINGS.scale * FACTORS[0] * GLOBAL_FACTOR

    @staticmethod
    def backward(ctx, grad):
        return grad * SETTINGS.scale


class ByTensor(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        middle = x * WEIGHT
        ctx.save_for_backward(middle, y)
        ctx.size = x.shape[0]
        return middle + y, middle > 2, "done"

    @staticmethod
    def backward(ctx, grad, _is_large, _text):
        middle, y = ctx.saved_tensors
        return grad * middle * ctx.size, grad * y * WEIGHT


def tripled(x):
    return x * 3


def with_gradient(fn):
    """`fn` and the gradient of its first result with regard to `x`."""

    def run(x, *args):
        result = fn(x, *args)
        first = result[0] if isinstance(result, tuple) else result
        return result, torch.autograd.grad(first.sum(), x)[0]

    return run


def x3():
    return torch.tensor([1.0, 2.0, 3.0], requires_grad=True)


def compiled_run(fn, **options):
    counter = testing.CountingBackend()
    return with_gradient(minidynamo.compile(fn, backend=counter, **options)), counter


ARGUMENTS = {
    "numbers": (ByObject, [Settings(2.0), Settings(3.0), Settings(2.0)], 2),
    "tensor": (ByObject, [Settings(2.0, WEIGHT), Settings(2.0, WEIGHT * 5)], 1),
    "function": (ByFunction, [tripled, torch.sin, lambda x: x + 1], 3),
    "module": (ByFunction, [torch.nn.ReLU(), torch.nn.Linear(3, 3)], 2),
    "builtin": (ByFunction, [abs], 1),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_that_no_node_holds(name):
    function, givens, graphs = ARGUMENTS[name]

    def fn(x, given):
        return function.apply(x, given) + 1

    run, counter = compiled_run(fn, fullgraph=True)
    for given in givens:
        testing.assert_same(with_gradient(fn)(x3(), given), run(x3(), given))
    assert len(counter.graphs) == graphs


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_objects_with_other_backends(backend):
    def fn(x, y):
        first = ByObject.apply(x, Settings(2.0, y))
        return first + ByTensor.apply(x, y)[0]

    compiled = minidynamo.compile(fn, backend=backend, fullgraph=True)
    y = torch.ones(3)
    testing.assert_same(with_gradient(fn)(x3(), y), with_gradient(compiled)(x3(), y))


def test_state_that_the_frame_changed():
    def fn(x):
        global GLOBAL_FACTOR
        SETTINGS.scale, FACTORS[0], GLOBAL_FACTOR = 5.0, 7.0, 11.0
        result = BySurroundings.apply(x)
        GLOBAL_FACTOR, FACTORS[0] = 3.0, 1.0
        return result + 1

    run, counter = compiled_run(fn, fullgraph=True)
    for scale in (2.0, 4.0):
        SETTINGS.scale = scale
        expected = with_gradient(fn)(x3())
        SETTINGS.scale = scale
        testing.assert_same(expected, run(x3()))
    assert len(counter.graphs) == 1 and SETTINGS.scale == 5.0


def test_tensors_from_elsewhere_and_other_results():
    def fn(x, y):
        return ByTensor.apply(x, y)

    run, counter = compiled_run(fn, fullgraph=True)
    y = torch.tensor([2.0, 3.0, 5.0])
    expected, actual = with_gradient(fn)(x3(), y), run(x3(), y)
    testing.assert_same(expected, actual)
    assert not actual[0][1].requires_grad and actual[0][2] == "done"
    WEIGHT.mul_(2)
    try:
        testing.assert_same(with_gradient(fn)(x3(), y), run(x3(), y))
    finally:
        WEIGHT.div_(2)
    assert len(counter.graphs) == 1


def test_one_tensor_as_two_arguments():
    class Weighted(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, function, y):
            return function(x) + y

        @staticmethod
        def backward(ctx, grad):
            return grad * 2, None, grad * 5

    def fn(x):
        return Weighted.apply(x, tripled, x)

    run, counter = compiled_run(fn, fullgraph=True)
    testing.assert_same(with_gradient(fn)(x3()), run(x3()))
    assert len(counter.graphs) == 1


def test_second_derivatives():
    def fn(x):
        (grad,) = torch.autograd.grad(ByFunction.apply(x, tripled).sum(), x, create_graph=True)
        return grad

    compiled = minidynamo.compile(lambda x: ByFunction.apply(x, tripled), backend="eager")

    def run(x):
        (grad,) = torch.autograd.grad(compiled(x).sum(), x, create_graph=True)
        return grad

    testing.assert_same(with_gradient(fn)(x3()), with_gradient(run)(x3()))


def test_what_the_halves_do_not_do_breaks_the_graph():
    class Keeps(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, kept):
            kept.append(x.view(-1))
            return x.cos()

        @staticmethod
        def backward(ctx, grad):
            return grad, None

    class Writes(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, function):
            ctx.mark_dirty(x)
            return x.mul_(2)

        @staticmethod
        def backward(ctx, grad):
            return grad * 2, None

    def keeps(x):
        kept = []
        return Keeps.apply(x, kept), kept[0].detach()

    def writes(x):
        y = x + 1
        return Writes.apply(y, tripled), y.detach()

    for fn in (keeps, writes):
        run, counter = compiled_run(fn)
        testing.assert_same(with_gradient(fn)(x3()), run(x3()))
        with pytest.raises(minidynamo.exc.Unsupported, match="autograd function"):
            minidynamo.compile(fn, backend="eager", fullgraph=True)(x3())


class Scaled(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x, scale=2.0, bias=1.0):
        return x * scale + bias

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.scale, ctx.count = inputs[1], len(inputs)

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.scale * ctx.count, None, None


class BySelf(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale=2.0, bias=1.0):
        ctx.scale, ctx.needed = scale, ctx.needs_input_grad
        return x * scale + bias

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.scale * len(ctx.needed), *(None for _ in ctx.needed[1:])


def test_defaults_of_forward_reach_setup_context():
    def fn(x):
        return Scaled.apply(x) + Scaled.apply(x, 5.0)

    run, counter = compiled_run(fn, fullgraph=True)
    testing.assert_same(with_gradient(fn)(x3()), run(x3()))
    old = Scaled.forward.__defaults__
    try:
        Scaled.forward.__defaults__ = (7.0, 0.0)
        testing.assert_same(with_gradient(fn)(x3()), run(x3()))
    finally:
        Scaled.forward.__defaults__ = old
    assert len(counter.graphs) == 2


KEYWORDS = {
    "default kept": lambda x: Scaled.apply(x, bias=4.0),
    "all by keyword": lambda x: Scaled.apply(bias=4.0, scale=3.0, x=x),
    "context": lambda x: BySelf.apply(x, scale=3.0),
    "context, in another order": lambda x: BySelf.apply(x, bias=4.0, scale=3.0),
    "no such name": lambda x: Scaled.apply(x, factor=4.0),
    "a place left out": lambda x: BySelf.apply(x, bias=4.0),
    "twice": lambda x: Scaled.apply(x, x=x),
    "caught": lambda x: caught(x),
}


def caught(x):
    try:
        return Scaled.apply(x, factor=1.0)
    except TypeError as error:
        return x * len(error.args)


@pytest.mark.skipif(torch.__version__ < (2, 13), reason="apply takes no keywords")
@pytest.mark.parametrize("name", KEYWORDS)
def test_arguments_by_keyword(name):
    fn = KEYWORDS[name]
    run, counter = compiled_run(fn)
    try:
        expected = with_gradient(fn)(x3())
    except TypeError:
        with pytest.raises(TypeError):
            run(x3())
    else:
        testing.assert_same(expected, run(x3()))
        assert len(counter.graphs) == 1


def test_a_class_that_is_allowed_in_the_graph():
    @minidynamo.allow_in_graph
    class Breaks(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            minidynamo.graph_break()
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 5

    def fn(x):
        return Breaks.apply(x) + 1

    run, counter = compiled_run(fn, fullgraph=True)
    testing.assert_same(with_gradient(fn)(x3()), run(x3()))
    assert len(counter.graphs) == 1


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("is_view", [True, False])
def test_what_forward_writes_to_and_returns_is_written_once(is_view, backend):
    class Grows(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            x.add_(1)
            return x.view(-1) if is_view else x

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

    def fn(x):
        return Grows.apply(x)

    compiled, x, y = minidynamo.compile(fn, backend=backend), x3(), x3()
    testing.assert_same(with_gradient(fn)(x), with_gradient(compiled)(y))
    testing.assert_same(x, y)


@pytest.mark.parametrize("graphs", [0, 1])
def test_a_result_and_a_view_of_it_have_gradients_of_their_own(graphs):
    class Both(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = x * 3
            return (y.view(3, 1), y.view(1, 3)) if graphs else (y, y[1:])

        @staticmethod
        def backward(ctx, first, second):
            return first.view(3) * 2 + second.sum() * 7

    def fn(x):
        first, second = Both.apply(x)
        return first.sum() + second.sum()

    run = with_gradient(minidynamo.compile(fn, backend="aot_eager"))
    testing.assert_same(with_gradient(fn)(x3()), run(x3()))
    fullgraph = minidynamo.compile(fn, backend="eager", fullgraph=True)
    if graphs:
        testing.assert_same(fn(x3()), fullgraph(x3()))
    else:
        with pytest.raises(minidynamo.exc.Unsupported, match="a view of that"):
            fullgraph(x3())


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_buffer_that_forward_writes_to_has_a_gradient_then(backend):
    class Counts(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, buffer):
            ctx.mark_dirty(buffer)
            return x * 2, buffer.add_(1)

        @staticmethod
        def backward(ctx, grad, of_buffer):
            return grad + of_buffer * 5, None

    def fn(x):
        buffer = torch.ones(3)
        first, second = Counts.apply(x, buffer)
        return first + 2 * buffer, second.requires_grad

    run = with_gradient(minidynamo.compile(fn, backend=backend))
    testing.assert_same(with_gradient(fn)(x3()), run(x3()))


@contextlib.contextmanager
def other(mode, *, is_undone):
    old, STATE.mode = STATE.mode, mode
    STATE.depth += 1
    yield
    STATE.depth -= 1
    if is_undone:
        STATE.mode = old


STATE = types.SimpleNamespace(mode="usual", depth=0)


@pytest.mark.parametrize("is_undone", [True, False])
def test_state_that_backward_puts_back(is_undone):
    class Switches(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.sin()

        @staticmethod
        def backward(ctx, grad):
            with other("special", is_undone=is_undone):
                return grad * (2 if STATE.mode == "special" else 3)

    def fn(x):
        return Switches.apply(x)

    STATE.mode = "usual"
    expected = with_gradient(fn)(x3()), STATE.mode
    STATE.mode = "usual"
    run, _ = compiled_run(fn, fullgraph=is_undone)
    testing.assert_same(expected, (run(x3()), STATE.mode))
    assert STATE.depth == 0
    if not is_undone:
        STATE.mode = "usual"
        with pytest.raises(minidynamo.exc.Unsupported, match="state outside"):
            minidynamo.compile(fn, backend="eager", fullgraph=True)(x3())


class WithRule(torch.autograd.Function):
    generate_vmap_rule = False

    @staticmethod
    def forward(x, weight):
        return x * 3

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        return grad * 3, None

    @staticmethod
    def vmap(info, in_dims, x, weight):
        assert in_dims[1] is None
        return x * weight * info.batch_size * SETTINGS.scale, in_dims[0]


@pytest.mark.parametrize("backend", [None, "inductor"])
def test_the_rule_of_a_class_for_vmap(backend):
    def fn(x, needs_grad):
        x = x if needs_grad else x.detach()
        y = torch.vmap(lambda row: WithRule.apply(row, WEIGHT))(torch.stack((x, x * 2)))
        return y + x3()

    counter = testing.CountingBackend()
    run = minidynamo.compile(fn, backend=backend or counter, fullgraph=True)
    for scale in (2.0, 4.0):
        SETTINGS.scale = scale
        testing.assert_same(with_gradient(fn)(x3(), True), with_gradient(run)(x3(), True))
        testing.assert_same(fn(x3(), False), run(x3(), False))


def test_rules_for_vmap_are_guarded():
    class Changes(WithRule):
        pass

    def fn(x):
        return torch.vmap(Changes.apply)(x, x)

    run = minidynamo.compile(fn, backend="eager")
    Changes.vmap = staticmethod(lambda info, in_dims, x, weight: (x * 5, in_dims[0]))
    x = torch.ones(2, 3)
    testing.assert_same(fn(x), run(x))
    Changes.vmap = staticmethod(lambda info, in_dims, x, weight: (x * 7, in_dims[1]))
    testing.assert_same(fn(x), run(x))
    Changes.generate_vmap_rule = True
    for call in (fn, run):
        with pytest.raises(RuntimeError, match="generate_vmap_rule"):
            call(x)
    Changes.vmap = torch.autograd.Function.vmap
    testing.assert_same(fn(x), run(x))


NOTES: list = []
COUNTS = {"forward": 0}


class TakesNotes(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        NOTES.append((tuple(x.shape), factor))
        COUNTS["forward"] += 1
        ctx.factor = factor
        ctx.save_for_backward(x)
        return x * factor

    @staticmethod
    def backward(ctx, grad):
        ctx.seen = True
        return grad * ctx.factor * ctx.saved_tensors[0], None


class KeepsTensors(TakesNotes):
    @staticmethod
    def forward(ctx, x, factor):
        NOTES.append({"kept": [x.detach() * 5]})
        return TakesNotes.forward(ctx, x, factor)


class CountsBackward(TakesNotes):
    @staticmethod
    def backward(ctx, grad):
        COUNTS["backward"] = COUNTS.get("backward", 0) + 1
        return TakesNotes.backward(ctx, grad)


@pytest.mark.parametrize(
    ("function", "is_whole"),
    [(TakesNotes, True), (KeepsTensors, True), (CountsBackward, False)],
)
def test_forward_changes_what_is_outside(function, is_whole):
    def fn(x, factor):
        y = function.apply(x * 2, factor)
        return y + 1, len(NOTES), function.apply(x, 3)

    results = []
    run, counter = compiled_run(fn, fullgraph=is_whole)
    for each in (with_gradient(fn), run):
        NOTES.clear()
        COUNTS.clear()
        COUNTS["forward"] = 0
        given = [(x3(), 2), (x3(), 2), (torch.ones(2, requires_grad=True), 2)]
        results.append(([each(*args) for args in given], list(NOTES), dict(COUNTS)))
    testing.assert_same(*results)
    assert len(NOTES) >= 6
    with contextlib.nullcontext() if is_whole else pytest.raises(minidynamo.exc.Unsupported):
        minidynamo.compile(fn, backend="eager", fullgraph=True)(x3(), 2)


class Kept:
    def __init__(self, tensor, more):
        self.tensor, self.more = tensor, [more, 1]


class Makes(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, notes, kind):
        ctx.save_for_backward(x)
        half = torch.sin(x)
        notes.append(half)
        result = torch.zeros(())
        result += x.sum() * half.sum()
        notes.append(result)
        if kind == "object":
            return result, Kept(half, x)
        return (result, [half, result]) if kind == "list" else result

    @staticmethod
    def backward(ctx, *grads):
        assert all(grad is None for grad in grads[1:])
        return grads[0] * ctx.saved_tensors[0] * 3, None, None


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_tensors_that_forward_keeps(backend):
    # In eager they are as forward made them, without a gradient; its result is the one it kept.
    def fn(x, kind):
        notes = []
        made = Makes.apply(x * 2, notes, kind)
        result = made[0] if isinstance(made, tuple) else made
        flags = [note.requires_grad for note in notes]
        return result * notes[0].sum(), made, notes, flags, notes[1] is result

    minidynamo.reset()
    counter = testing.CountingBackend(backend=backend)
    compiled = minidynamo.compile(fn, backend=counter, fullgraph=True)
    for kind in ("object", "list", "nothing", "object"):
        outcomes = []
        for call in (fn, compiled):
            x = torch.tensor([0.5, 1.5, 2.5], requires_grad=True)
            result = call(x, kind)
            result[0].backward()
            outcomes.append((result, x.grad))
        testing.assert_same(*outcomes)
    assert len(counter.graphs) == 3


# -- backward functions that are compiled themselves -----------------------------------------------


def doubled(ctx, x, factor):
    result = x * 2
    ctx.save_for_backward(result, None, x)
    ctx.factor = factor
    return result


def of_the_context(ctx, grad):
    result, nothing, x = ctx.saved_tensors
    known, ctx.needs_input_grad = ctx.needs_input_grad, (False,)
    changed, ctx.needs_input_grad = ctx.needs_input_grad, known
    ctx.calls = getattr(ctx, "calls", 0) + 1
    assert nothing is None and changed == (False,) and ctx.saved_tensors[2] is x
    return (grad * result * ctx.factor + ctx.calls if known[0] else None), None


def of_saved_tensors_written_to(ctx, grad):
    ctx.saved_tensors[0].mul_(2)
    return grad * ctx.saved_tensors[0], None


def gradients(backward, factors):
    function = type("Doubled", (torch.autograd.Function,), {})
    function.forward, function.backward = staticmethod(doubled), staticmethod(backward)
    for number, factor in enumerate(factors):
        x = torch.arange(1.0, 4.0 + number).requires_grad_()
        function.apply(x, factor).sum().backward()
        yield x.grad


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_compiled_backward(backend):
    counter = testing.CountingBackend(backend=backend)
    compiled = minidynamo.compile(of_the_context, backend=counter, fullgraph=True)
    factors = (2, 2, 2, 3.5)
    found, wanted = (list(gradients(f, factors)) for f in (compiled, of_the_context))
    testing.assert_same(found, wanted)
    assert len(counter.graphs) == 3


def that_reads_once(ctx, grad):
    result, _, x = ctx.saved_tensors
    return grad * result * x, None


def test_hooks_of_saved_tensors_run_once_in_a_compiled_backward():
    def plain(function, x):
        return function.apply(x, 2)

    def checkpointed(function, x):
        return checkpoint(function.apply, x, 2, use_reentrant=False)

    def hooked(function, x):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, unpack):
            return function.apply(x, 2)

    def unpack(packed):
        unpacked.append(packed.shape)
        return packed.clone()

    for calls in ((plain, hooked, hooked, checkpointed), (checkpointed, hooked, plain, hooked)):
        outcomes = []
        counter = testing.CountingBackend()
        compiled = minidynamo.compile(that_reads_once, backend=counter)
        for backward in (that_reads_once, compiled):
            unpacked = []
            function = type("Read", (torch.autograd.Function,), {})
            function.forward, function.backward = map(staticmethod, (doubled, backward))
            leaves = [torch.arange(1.0, 4.0).requires_grad_() for _ in calls]
            for call, x in zip(calls, leaves, strict=True):
                call(function, x).sum().backward()
            outcomes.append(([x.grad for x in leaves], unpacked))
        testing.assert_same(*outcomes)
        assert len(unpacked) == 4 and len(counter.graphs) <= 3


def test_compiled_backward_that_raises():
    texts = []
    compiled = minidynamo.compile(of_saved_tensors_written_to, backend="eager")
    for backward in (of_saved_tensors_written_to, compiled):
        with pytest.raises(RuntimeError, match="modified by an inplace operation") as caught:
            list(gradients(backward, [1]))
        texts.append(str(caught.value))
    assert texts[0].partition("is at")[0] == texts[1].partition("is at")[0]


# -- forward functions that are compiled themselves ------------------------------------------------


def says_all_of_its_tensors(ctx, x, written, factor):
    ctx.set_materialize_grads(False)
    result, whole = x * factor, x.floor()
    ctx.save_for_backward(result, None, x)
    ctx.mark_non_differentiable(whole)
    ctx.mark_dirty(written.mul_(3))
    ctx.factor = factor
    return result, whole, written, ctx.to_save[0] is result


def of_what_was_said(ctx, grad, of_whole, of_written, _):
    result, _, x = ctx.saved_tensors
    assert of_whole is None
    return None if grad is None else grad * result.cos() * x, of_written, None


def says_no_flag(ctx, x, written, factor):
    ctx.set_materialize_grads(factor)
    return x * 2, x, written, False


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_compiled_forward(backend):
    counter = testing.CountingBackend(backend=backend)
    compiled = minidynamo.compile(says_all_of_its_tensors, backend=counter, fullgraph=True)
    outcomes = []
    for forward in (says_all_of_its_tensors, compiled):
        function = type("Saying", (torch.autograd.Function,), {})
        function.forward, function.backward = map(staticmethod, (forward, of_what_was_said))
        for used in (0, 2, 0):
            leaves = [torch.arange(0.5, 3.0).requires_grad_() for _ in range(2)]
            written = leaves[1] * 1
            results = function.apply(leaves[0], written, 2.0)
            results[used].sum().backward()
            flags = [result.requires_grad for result in results[:3]]
            grads = [leaf.grad for leaf in leaves]
            outcomes.append((results, flags, grads, results[2] is written))
    testing.assert_same(outcomes[:3], outcomes[3:])
    assert len(counter.graphs) == 1


def test_compiled_forward_with_a_flag_that_is_none():
    texts = []
    for forward in (says_no_flag, minidynamo.compile(says_no_flag, backend="eager")):
        function = type(
            "Saying", (torch.autograd.Function,), {"forward": staticmethod(forward)}
        )
        with pytest.raises(TypeError) as caught:
            function.apply(torch.ones(2, requires_grad=True), torch.ones(2), 3)
        texts.append(str(caught.value))
    assert texts[0] == texts[1]


def test_forward_that_is_a_partial_object():
    class Scaled(torch.autograd.Function):
        forward = staticmethod(functools.partial(lambda x, scale=3: x * scale))

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.count = len(inputs)

        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.count, None

    def fn(x):
        return Scaled.apply(x) + Scaled.apply(x, 2)

    x = torch.ones(2, requires_grad=True)
    testing.check(fn, x, graphs=None)
    testing.check(lambda x: Scaled.apply(x, 2), x, graphs=1)


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -10 * grad


class ReversedRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view(2, -1)[1:]

    @staticmethod
    def backward(ctx, grad):
        return torch.cat([grad * 0, -grad]).reshape(-1)


BESIDE = {
    "its argument": lambda f, y: (f.apply(y), y),
    "a view of its argument": lambda f, y: (f.apply(y), y.view(2, 2)),
    "a view of its result": lambda f, y: (z := f.apply(y), z.view(-1)),
    "a view, beside the argument": lambda f, y: (f.apply(y).view(-1), y),
    "another call": lambda f, y: (f.apply(y), f.apply(y)),
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("results", BESIDE.values(), ids=BESIDE)
@pytest.mark.parametrize("function", [Reversed, ReversedRows])
def test_views_of_functions_beside_what_they_are_views_of(function, results, backend):
    def fn(x):
        return results(function, x.sin())

    def grads(fn):
        x = torch.arange(4.0).requires_grad_()
        found = fn(x)
        seeds = [torch.ones_like(y) for y in found]
        return [
            torch.autograd.grad(y, x, seed, retain_graph=True)[0]
            for y, seed in zip(found, seeds, strict=True)
        ]

    counter = testing.CountingBackend(backend=backend)
    torch.testing.assert_close(grads(minidynamo.compile(fn, backend=counter)), grads(fn))
    with pytest.raises(minidynamo.exc.Unsupported, match="another tensor with that memory"):
        minidynamo.compile(fn, backend=backend, fullgraph=True)(
            torch.arange(4.0).requires_grad_()
        )


def test_views_of_functions_alone():
    def fn(x):
        y = x.sin()
        return Reversed.apply(y) * 2 + y, Reversed.apply(x), y.sum()

    x = torch.arange(4.0).requires_grad_()
    got, want = minidynamo.compile(fn, backend="aot_eager", fullgraph=True)(x), fn(x)
    for left, right in zip(got, want, strict=True):
        grads = [torch.autograd.grad(y.sum(), x, retain_graph=True)[0] for y in (left, right)]
        torch.testing.assert_close(*grads)


class WritesUnmarked(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, noted):
        noted.copy_(x)
        return x * FACTORS[0]

    @staticmethod
    def backward(ctx, grad):
        return grad * 3, None


class WritesMarked(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, noted):
        ctx.mark_dirty(x)
        return x.add_(FACTORS[0])

    @staticmethod
    def backward(ctx, grad):
        return grad * 3, None


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("function", [WritesUnmarked, WritesMarked])
def test_writes_where_the_frame_stored_what_the_class_does_not_read(function, backend):
    counts = types.SimpleNamespace(calls=0)

    def fn(x, noted):
        counts.calls += 1
        y = x * 1
        made = function.apply(y, noted)
        same = [item is y for item in (made, noted)]  # y is in a cell
        return made * 2, y * 1, noted + 1, same, counts.calls

    def run(call):
        counts.calls = 0
        x, noted = torch.arange(4.0).requires_grad_(), torch.zeros(4)
        results = call(x, noted)
        (results[0].sum() * 2 + results[1].sum()).backward()
        return *results, noted, x.grad

    compiled = minidynamo.compile(fn, backend=backend, fullgraph=True)
    testing.assert_same(run(compiled), run(fn))


def test_writes_where_the_frame_stored_what_the_class_reads():
    def fn(x, noted):
        FACTORS[0] = 5.0
        return WritesUnmarked.apply(x * 1, noted), noted * 1

    x = torch.arange(4.0).requires_grad_()
    got = minidynamo.compile(fn, backend="eager")(x, torch.zeros(4))
    FACTORS[0] = 1.0
    testing.assert_same(got, fn(x, torch.zeros(4)))
    FACTORS[0] = 1.0


class Same(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


class SameBySetup(Same):
    @staticmethod
    def forward(x):
        return x

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass


class SameAndSaved(SameBySetup):
    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)


@pytest.mark.parametrize("function", [Same, SameBySetup])
@pytest.mark.parametrize("has_gradient", [False, True])
def test_inputs_that_are_returned_where_nobody_wants_gradients(function, has_gradient):
    def fn(x):
        with torch.no_grad():
            y = function.apply(x)
            y.add_(1)
        return y, y is x, y._is_view(), y.requires_grad, x * 1

    def run(call):
        return call(torch.ones(2, requires_grad=has_gradient))

    minidynamo.reset()
    compiled = minidynamo.compile(fn, backend="eager", fullgraph=True)
    testing.assert_same(run(compiled), run(fn))


def test_inputs_that_are_returned_and_saved_by_setup_context():
    def fn(x):
        return SameAndSaved.apply(x) + 1

    leaf = torch.ones(2, requires_grad=True)
    testing.check(fn, torch.ones(2), graphs=None)
    with torch.no_grad():
        testing.check(fn, torch.ones(2), graphs=None)
        testing.check(fn, leaf, fullgraph=True)
