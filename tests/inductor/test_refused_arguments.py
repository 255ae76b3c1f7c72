"""Calls that eager refuses for the values or dtypes of arguments are refused, in eager's words."""

import pytest
import torch
import torch.nn.functional as F
from inductor_testing import check

import minidynamo

X = torch.linspace(0.05, 0.95, 12).reshape(3, 4)
CLASSES = torch.tensor([0, 1, 3])
WINDOW = torch.linspace(0.5, 1.5, 32)


def smooth_l1(x):
    return F.smooth_l1_loss(x, x + 1, beta=-1.0)


def celu(x):
    return F.celu(x + 1, 0.0)


def celu_in_place(x):
    return torch.celu_(x + 1, 0.0)


def layer_norm_of_doubles(x):
    return F.layer_norm(x, (4,), torch.ones(4, dtype=torch.float64))


def group_norm_of_doubles(x):
    return F.group_norm(x, 2, torch.ones(4, dtype=torch.float64))


def batch_norm_of_doubles(x):
    return F.batch_norm(x, None, None, torch.ones(4, dtype=torch.float64), training=True)


def statistics_of_halves(x):
    return F.batch_norm(x, torch.zeros(4).half(), torch.ones(4).half())


def products_of_one(x):
    return x[:, :1].half() @ x[:1]


def products_of_some(x):
    return x.half() @ x.T


def biases(x):
    return F.linear(x, x, torch.ones(3, dtype=torch.float64))


def classes_of_32_bits(x):
    return F.nll_loss(x, CLASSES.int())


def weights_of_doubles(x):
    return F.cross_entropy(x, CLASSES, torch.ones(4, dtype=torch.float64))


def targets_above(x):
    return F.binary_cross_entropy(x, x + 0.5)


def inputs_above(x):
    return F.binary_cross_entropy(x + 0.5, x, reduction="none")


def inputs_below(x):
    return F.binary_cross_entropy(x - 0.5, x, x, reduction="sum")


def no_numbers(x):
    return F.binary_cross_entropy(x / 0 * 0, x)


def copied_before_the_first(x):
    return x.index_copy(0, torch.tensor([0, -1]), x[:2])


def copied_behind_the_last(x):
    return x.index_copy(1, torch.tensor([4]), x[:, :1])


def copied_to_short_numbers(x):
    return x.index_copy(0, CLASSES[:1].int(), x[:1])


def added_at_bytes(x):
    return x.index_add(0, CLASSES[:1].to(torch.uint8), x[:1])


def indices_of_floats(x):
    return x.index_select(0, torch.zeros(1))


def indices_of_two_dimensions(x):
    return x.index_select(0, CLASSES[None])


def added_doubles(x):
    return x.index_add(0, CLASSES[:1], x[:1].double())


def steps_of_doubles(x):
    return torch.heaviside(x, x.double())


def neither_side(x):
    return torch.searchsorted(x[0], x, side="middle")


def quantile_above(x):
    return torch.quantile(x, torch.tensor([0.5, 1.5]))


def quantile_below(x):
    return x.nanquantile(q=torch.tensor(-0.5), dim=1)


def places_behind_the_plane(x):
    return F.max_unpool2d(x[None, None], torch.arange(12).reshape(1, 1, 3, 4) * 5, 2)


def places_before_the_plane(x):
    return F.max_unpool2d(x[None, None], torch.arange(12).reshape(1, 1, 3, 4) - 1, 2)


def no_plane(x):
    return F.interpolate(x[None, None, :0], scale_factor=2, mode="bicubic")


def to_no_space(x):
    return F.interpolate(x[None, None, None], size=(0, 2, 2), mode="trilinear")


def views_of_too_much(x):
    return (x + 1).as_strided((5, 5), (4, 1))


def sums_of_too_much(x):
    return torch.full((2,), 1.0).as_strided((2, 2), (1, 1)).cumsum(1) + x.sum()


def inputs_behind_their_end(x):
    return x[2:].as_strided((3, 4), (4, 1)) * 2


def doubles_at_places(x):
    return x.put(CLASSES, torch.ones(3, dtype=torch.float64))


def doubles_added_at_places(x):
    return x.put(CLASSES, torch.ones(3, dtype=torch.int64), accumulate=True)


def more_chances_than_elements(x):
    return (x[:1] * 2).bernoulli_(x.detach())


@pytest.mark.parametrize("needs_grad", [False, True])
@pytest.mark.parametrize(
    "fn",
    [
        doubles_at_places,
        doubles_added_at_places,
        more_chances_than_elements,
        smooth_l1,
        celu,
        celu_in_place,
        layer_norm_of_doubles,
        group_norm_of_doubles,
        batch_norm_of_doubles,
        statistics_of_halves,
        products_of_one,
        products_of_some,
        biases,
        classes_of_32_bits,
        weights_of_doubles,
        targets_above,
        inputs_above,
        inputs_below,
        no_numbers,
        copied_before_the_first,
        copied_behind_the_last,
        copied_to_short_numbers,
        added_at_bytes,
        indices_of_floats,
        indices_of_two_dimensions,
        added_doubles,
        steps_of_doubles,
        neither_side,
        quantile_above,
        quantile_below,
        places_behind_the_plane,
        places_before_the_plane,
    ],
)
def test_refused(fn, needs_grad):
    x = X.clone().requires_grad_(needs_grad)
    with pytest.raises(Exception) as wanted:  # noqa: PT011 (eager says which)
        fn(x)
    with pytest.raises(type(wanted.value)) as raised:
        minidynamo.compile(fn)(x)
    assert str(wanted.value).splitlines()[0] in str(raised.value)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("fn", [views_of_too_much, sums_of_too_much, inputs_behind_their_end])
def test_views_of_too_much(fn, dynamic):
    for call in (fn, minidynamo.compile(fn, dynamic=dynamic)):
        with pytest.raises(RuntimeError, match=r"setStorage: .* are out of bounds for storage"):
            call(X)


@pytest.mark.parametrize("needs_grad", [False, True])
def test_inputs_anywhere_in_their_storage(needs_grad):
    def from_the_start(x):
        return x.as_strided((4,), (1,), 0).sin() + x.sum()

    def onwards(x):
        return x.as_strided((4,), (1,)) * 2

    for fn in (from_the_start, onwards):
        compiled = minidynamo.compile(fn)
        for begin in (0, 2, 5):
            inputs = [torch.arange(9.0, requires_grad=needs_grad) for _ in range(2)]
            given, expected = (x[begin : begin + 2] for x in inputs)
            result = compiled(given)
            torch.testing.assert_close(result, fn(expected))
            if needs_grad:
                result.sum().backward()
                fn(expected).sum().backward()
                torch.testing.assert_close(inputs[0].grad, inputs[1].grad)
        for call in (fn, compiled):
            with pytest.raises(RuntimeError, match="are out of bounds for storage"):
                call(torch.arange(3.0)[1:])


@pytest.mark.parametrize("nd", [2, 3])
def test_max_unpool(nd):
    x = torch.linspace(-2, 2, 4 * 6**nd).reshape(2, 2, *[6] * nd).sin()
    pool = getattr(F, f"max_pool{nd}d")
    unpool = getattr(F, f"max_unpool{nd}d")

    def fn(x, places):
        return unpool(x * 2, places, 2) + 1

    kept, places = pool(x, 2, return_indices=True)
    check(fn, kept, places, externs=0)
    check(
        fn, kept.to(memory_format=(torch.channels_last, torch.channels_last_3d)[nd - 2]), places
    )
    a, b = kept.clone().requires_grad_(), kept.clone().requires_grad_()
    fn(a, places).square().sum().backward()
    minidynamo.compile(fn, dynamic=True)(b, places).square().sum().backward()
    torch.testing.assert_close(b.grad, a.grad)
    x = torch.ones(1, 1, *[1] * nd)  # the padding takes away all there is
    check(lambda x, places: unpool(x, places, 2, padding=1), x, x.long())


@pytest.mark.parametrize("call", [torch.quantile, torch.Tensor.quantile, torch.nanquantile])
def test_quantiles_at_places_of_data(call):
    def fn(x, q):
        return call(x * 2, q, 1), call(x, q=q, dim=0, keepdim=True)

    check(fn, X, torch.tensor([0.0, 0.3, 1.0]))


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("weight", [None, torch.linspace(-1, 2, 12).reshape(3, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_binary_cross_entropy(reduction, weight, dtype):
    """At 0 and 1 too, where the logarithms are cut off."""
    x, y = X.clone(), X.flip(0).clone()
    x[0, 0], x[0, 1], y[0, 0], y[1, 0] = 0, 1, 1, 0
    weight = None if weight is None else weight.to(dtype)

    def fn(x, y):
        return F.binary_cross_entropy(x, y, weight, reduction=reduction)

    tolerance = {"rtol": 2e-2, "atol": 2e-2} if dtype == torch.bfloat16 else {}
    check(fn, x.to(dtype), y.to(dtype), kernels=1, externs=0, **tolerance)


def test_gradients_of_binary_cross_entropy():
    def fn(x, y):
        return F.binary_cross_entropy(torch.sigmoid(x), y)

    x, z = X.clone().requires_grad_(), X.clone().requires_grad_()
    fn(x, X).backward()
    minidynamo.compile(fn)(z, X).backward()
    torch.testing.assert_close(z.grad, x.grad)


@pytest.mark.parametrize("dim", [0, -1])
def test_index_copy(dim):
    indices = torch.tensor([2, 0])

    def fn(x, y):
        return (x + 1).index_copy(dim, indices, y.narrow(dim, 0, 2)) * 2

    check(fn, X, X.exp(), externs=0)
    x, z = X.clone().requires_grad_(), X.clone().requires_grad_()
    fn(x, x.exp()).square().sum().backward()
    minidynamo.compile(fn)(z, z.exp()).square().sum().backward()
    torch.testing.assert_close(z.grad, x.grad)


@pytest.mark.parametrize("fn", [no_plane, to_no_space])
def test_empty_planes(fn):
    for call in (fn, minidynamo.compile(fn)):
        with pytest.raises(RuntimeError, match="sizes should be greater than 0"):
            call(X)


SPECTRA = {
    "function": lambda z, w: torch.istft(z, 32, window=w),
    "method": lambda z, w: z.istft(32, 6, 32, w, normalized=True, length=90),
    "no window": lambda z, w: torch.istft(z, 32, 16, center=False) * w[0],
    "narrow window": lambda z, w: torch.istft(z, 32, 5, 20, w[:20]),
}


@pytest.mark.parametrize(
    ("name", "dynamic"), zip(SPECTRA, (True, None, True, False), strict=True)
)
@pytest.mark.filterwarnings("ignore:A window was not provided")
def test_inverse_spectra_whose_windows_may_not_overlap(name, dynamic):
    call = SPECTRA[name]
    torch.manual_seed(0)
    spectrum = torch.randn(2, 17, 20, dtype=torch.complex64)
    run = minidynamo.compile(call, fullgraph=True, dynamic=dynamic)
    for frames in (20, 18):
        given = spectrum[..., :frames]
        torch.testing.assert_close(run(given, WINDOW), call(given, WINDOW))
    single = torch.zeros(32)
    single[15] = 1
    if name != "no window":
        for fn in (call, run):
            with pytest.raises(RuntimeError, match="overlap"):
                fn(spectrum, single)


def test_gradients_of_inverse_spectra():
    call = SPECTRA["function"]
    given = [torch.ones(2, 17, 9, dtype=torch.complex64, requires_grad=True) for _ in "ab"]
    call(given[0], WINDOW).square().sum().backward()
    minidynamo.compile(call, fullgraph=True)(given[1], WINDOW).square().sum().backward()
    torch.testing.assert_close(given[1].grad, given[0].grad)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", ["max", "min", "median", "nanmedian", "mode"])
def test_the_largest_of_no_elements(name, dynamic):
    """Also where there is no row that could have one."""

    def fn(x):
        return getattr(torch, name)(x, -1)[0] * 2

    compiled = minidynamo.compile(fn, dynamic=dynamic)
    for shape in ((2, 3), (0, 3), (0, 0), (3, 0), (4, 2)):
        x = torch.ones(shape)
        try:
            wanted = fn(x)
        except IndexError as error:
            with pytest.raises(IndexError) as raised:
                compiled(x)
            assert str(raised.value) == str(error)
        else:
            assert torch.equal(compiled(x), wanted)


MIXED = {
    "mm": lambda x, y: x @ y,
    "mv": lambda x, y: x @ y[:, 0],
    "addmm": lambda x, y: torch.addmm(x, y, x),
    "bias": lambda x, y: F.linear(x, x, y[0]),
    "cross": torch.linalg.cross,
    "cdist": torch.cdist,
    "grid": lambda x, y: F.grid_sample(x[None, None], y[None, None, :, :2], align_corners=True),
    "heaviside": torch.heaviside,
    "layer_norm": lambda x, y: F.layer_norm(x, (3,), y[0], y[0]),
    "batch_norm": lambda x, y: F.batch_norm(x, y[0], y[0]),
    "masked": lambda x, y: x.index_put((x > 0.5,), y.reshape(-1)[:4]),
    "margin": lambda x, y: F.multi_margin_loss(x, torch.arange(3, dtype=torch.int32)),
}


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("name", list(MIXED))
def test_mixed_types_raise_where_they_stand(name, kept):
    """torch's rules for fake tensors let them pass: the graph raised in the end, or nothing did."""

    def f(x, y, log):
        log.append("before")
        try:
            result = MIXED[name](x, y)
        except RuntimeError as error:
            log.append(type(error).__name__)
            return x * 2
        log.append("behind")
        return (x, result) if kept else x * 3

    x = torch.linspace(0, 1, 9).reshape(3, 3)
    compiled = minidynamo.compile(f)
    for other in (x.double(), x.bfloat16(), x.clone()):
        logs = [], []
        wanted, found = f(x, other, logs[0]), compiled(x, other, logs[1])
        assert logs[0] == logs[1] == ["before", "RuntimeError"] or other.dtype == x.dtype
        assert logs[0] == logs[1]
        torch.testing.assert_close(found, wanted)


def test_quantiles_at_a_number_that_changes():
    def fn(x, q):
        return torch.quantile(x, q / 4), x.nanquantile(q / 4, 0)

    run = minidynamo.compile(fn, fullgraph=True)
    x = torch.randn(3, 4)
    for q in (0.0, 1.0, 2.0, 3.0):
        torch.testing.assert_close(run(x, q), fn(x, q))
    with pytest.raises(RuntimeError, match=r"in the range \[0, 1\]"):
        minidynamo.compile(fn)(x, 5.0)
