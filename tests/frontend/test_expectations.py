"""Branches on data, one side of which only raises; torch.distributions, which are full of them.

PYTEST_DONT_REWRITE: the programs here use assert statements.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributions as D
from testing import CountingBackend, assert_same, check, outcome
from torch.utils.checkpoint import checkpoint

import minidynamo

ONES = torch.ones(3)


def raising(x, log):
    y = x * 2
    log.append(1)
    if (y < 0).any():
        raise ValueError(f"bad: {y.min().item()}")
    return y.sin()


def asserting(x, log):
    assert (x > 0).all(), "negative"
    assert x.sum(), "zero"
    return x.sqrt()


def catching(x, log):
    try:
        if x.sum() < 0:
            raise KeyError("a")
        return x + 1
    except KeyError as error:
        log.append(error.args)
        return x - 1


def torch_asserting(x, log):
    torch._assert((x > 0).all(), "negative")
    return x.sqrt()


def drawing(x, log):
    noise = torch.rand(3)
    if (noise * x).sum() < 0:
        raise ValueError(f"{noise}")
    return noise + torch.rand(3)


class Positive:
    def __init__(self, x):
        if not (x > 0).all():
            raise ValueError("not positive")
        self.x = x


def in_constructor(x, log):
    return Positive(x).x * 2


FUNCTIONS = (raising, asserting, catching, torch_asserting, drawing, in_constructor)


def both(fn, backend, *args_of_sign):
    compiled = minidynamo.compile(fn, backend=backend)
    for sign in (1, -1, 1, -1):
        results = []
        for f in (fn, compiled):
            torch.manual_seed(0)
            log = []
            results.append((outcome(f, (ONES * sign, log), {}), log, torch.rand(1)))
        assert_same(*results)


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
def test_one_graph_whatever_happens(fn):
    minidynamo.reset()
    backend = CountingBackend()
    both(fn, backend)
    assert len(backend.graphs) == 1


@pytest.mark.parametrize("fn", FUNCTIONS[:4], ids=lambda fn: fn.__name__)
def test_with_kernels(fn):
    minidynamo.reset()
    both(fn, "inductor")


def test_the_traceback_is_the_programs_own():
    compiled = minidynamo.compile(asserting, backend="inductor", fullgraph=True)
    with pytest.raises(AssertionError, match="negative") as caught:
        compiled(-ONES, [])
    assert caught.traceback[-1].name == "asserting"


def written_first(x, saved):
    x.add_(1)
    x[0].mul_(2)
    if x.sum() < 0:
        raise ValueError("negative")
    return x * 2


def written_through_a_view(x, saved):
    rows = x.view(2, 2)
    rows[1].copy_(rows[0])
    assert saved.sum() > 0
    return rows + 1


def written_behind(x, saved):
    torch._assert(x.sum() > 0, "negative")
    saved.copy_(x)
    return x.sin()


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("fn", [written_first, written_through_a_view, written_behind])
def test_what_a_graph_wrote_is_put_back_where_eager_has_to_raise(fn, backend):
    minidynamo.reset()
    graphs = CountingBackend() if backend == "eager" else backend
    compiled = minidynamo.compile(fn, backend=graphs)
    for sign in (1, -1, 1, -1):
        results = []
        for f in (fn, compiled):
            x, saved = torch.arange(1.0, 5) * sign, torch.ones(4) * sign
            results.append((outcome(f, (x, saved), {}), x, saved, x._version, saved._version))
        assert_same(*results)
    if backend == "eager":
        assert len(graphs.graphs) == 1


def test_batch_norm_in_training_with_a_check():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = torch.nn.BatchNorm1d(3)

        def forward(self, x):
            y = self.norm(x)
            if not torch.isfinite(y).all():
                raise ValueError("not finite")
            return y

    backend = CountingBackend()
    nets, results = [Net(), Net()], []
    for net in nets:
        f = net if net is nets[0] else minidynamo.compile(net, backend=backend)
        row = []
        for bad in (False, True, False):
            x = torch.arange(12.0).view(4, 3)
            x[0, 0] = float("nan") if bad else 1.0
            row.append(outcome(f, (x,), {}))
        results.append((row, [b.clone() for b in net.buffers()]))
    assert_same(*results)
    assert len(backend.graphs) == 1


def statistics_of_a_function(x, saved):
    y = torch.nn.functional.batch_norm(
        x.view(2, 2), saved[:2], saved[2:].detach(), training=True
    )
    assert x.sum() > 0
    return y


def statistics_in_a_body(x, saved):
    def body(x):
        return torch.nn.functional.batch_norm(x.view(2, 2), saved[:2], saved[2:], training=True)

    y = checkpoint(body, x, use_reentrant=False)
    assert x.sum() > 0
    return y


@pytest.mark.parametrize("fn", [statistics_of_a_function, statistics_in_a_body])
def test_statistics_whose_versions_do_not_show_writes(fn):
    compiled = minidynamo.compile(fn, backend="eager")
    for sign in (1, -1, 1):
        results = []
        for f in (fn, compiled):
            x, saved = torch.arange(1.0, 5) * sign, torch.ones(4)
            results.append((outcome(f, (x, saved), {}), saved, saved._version))
        assert_same(*results)


def test_batch_norm_in_evaluation_writes_nothing():
    def looked_up(x, mean, var, index):
        y = torch.nn.functional.batch_norm(x, mean, var)
        z = y[index]
        return z + 1

    compiled = minidynamo.compile(looked_up, backend="inductor")
    args = torch.rand(4, 3), torch.zeros(3), torch.ones(3)
    assert_same(compiled(*args, torch.tensor([1])), looked_up(*args, torch.tensor([1])))
    lines = []
    for f in (looked_up, compiled):
        with pytest.raises(IndexError) as caught:
            f(*args, torch.tensor([9]))
        lines.append([(entry.name, entry.lineno) for entry in caught.traceback][1:])
    assert lines[0] == lines[1]


def scaled_by_a_count(x):
    count = x.nonzero().size(0)
    return x * (1.0 / count), 10 // count, divmod(10, count)


def divided_by_a_sum(x):
    first, second, third = x.long().tolist()
    return x * (2.5 / (first - second + third)), 7 % (first - second + third)


def unused_quotient(x):
    10 // x.nonzero().size(0)
    return x + 1


def caught_division(x):
    try:
        scale = 10 // x.nonzero().size(0)
    except ZeroDivisionError:
        scale = 7
    return x * scale


def divided_by_a_float(x):
    return x * (1.0 / x.sum().item())


DIVIDING = (
    scaled_by_a_count,
    divided_by_a_sum,
    unused_quotient,
    caught_division,
    divided_by_a_float,
)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("fn", DIVIDING, ids=lambda fn: fn.__name__)
def test_divisions_by_numbers_that_depend_on_data(fn, backend):
    minidynamo.reset()
    graphs = CountingBackend() if backend == "eager" else backend
    compiled = minidynamo.compile(fn, backend=graphs, fullgraph=True)
    for values in ([1.0, 2, 3], [0.0, 0, 0], [0.0, 5, 7], [float("nan"), 1, 2]):
        x = torch.tensor(values)
        assert_same(outcome(fn, (x,), {}), outcome(compiled, (x,), {}))
    if backend == "eager":
        assert len(graphs.graphs) == 1


def test_a_divisor_that_the_program_checked_is_asked_for_once():
    def fn(x):
        count = x.nonzero().size(0)
        torch._check(count != 0)
        return x / (10 // count), 7 % count

    backend = CountingBackend()
    compiled = minidynamo.compile(fn, backend=backend, fullgraph=True)
    for x in (ONES, torch.tensor([0.0, 5, 7])):
        assert_same(fn(x), compiled(x))
    with pytest.raises(RuntimeError):
        compiled(ONES * 0)
    assert len(backend.graphs) == 1


def test_what_cannot_be_put_back_breaks_at_the_branch():
    def grown(x, w):
        x.mul_(w)
        if x.sum() < 0:
            raise ValueError("negative")
        return x * 2

    def turned(x, w):
        x.t_()
        if x.sum() < 0:
            raise ValueError("negative")
        return x * 2

    square = torch.arange(1.0, 5).view(2, 2)
    weight = torch.ones(2, 2, requires_grad=True)
    for fn, w in ((grown, weight), (turned, ONES)):
        for sign in (1, -1):
            check(fn, square * sign, w, graphs=2 if sign == 1 and fn is grown else None)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_a_new_layout_is_not_put_back(backend):
    def turned(rows, bad):
        double = rows[0] * 2
        try:
            if bad.sum() > 0:
                raise ValueError
        except ValueError:
            pass
        rows[0].t_()
        rows.append(double)

    minidynamo.reset()
    compiled = minidynamo.compile(turned, backend=backend)
    for sign in (1, -1, 1):
        found = []
        for fn in (turned, compiled):
            rows = [torch.arange(9.0).view(3, 3)]
            fn(rows, ONES * sign)
            found.append([(row.tolist(), row.stride()) for row in rows])
        assert found[0] == found[1]


def test_branches_that_do_not_raise_still_break():
    def fn(x):
        if x.sum() < 0:
            return x - 1
        return x + 1

    check(fn, ONES, breaks=1, graphs=2)


P = torch.rand(2, 3, generator=torch.Generator().manual_seed(0)) + 0.1
DISTRIBUTIONS = {
    "normal": lambda p: D.Normal(p, p + 1),
    "categorical": lambda p: D.Categorical(p),
    "categorical, logits": lambda p: D.Categorical(logits=p),
    "bernoulli": lambda p: D.Bernoulli(p.sigmoid()),
    "beta": lambda p: D.Beta(p, p + 1),
    "dirichlet": lambda p: D.Dirichlet(p),
    "gamma": lambda p: D.Gamma(p, p),
    "independent": lambda p: D.Independent(D.Normal(p, p), 1),
    "mixture": lambda p: D.MixtureSameFamily(D.Categorical(p), D.Normal(p, p)),
    "multivariate": lambda p: D.MultivariateNormal(p, torch.eye(3)),
    "one hot": lambda p: D.OneHotCategorical(p),
    "student": lambda p: D.StudentT(p + 2),
    "transformed": lambda p: D.TransformedDistribution(
        D.Normal(p, p), [D.AffineTransform(1.0, 2.0), D.ExpTransform()]
    ),
    "uniform": lambda p: D.Uniform(p - 1, p + 1),
    "weibull": lambda p: D.Weibull(p, p),
    "low rank": lambda p: D.LowRankMultivariateNormal(p, torch.ones(2, 3, 1), torch.ones(2, 3)),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_distributions(name):
    make = DISTRIBUTIONS[name]

    def fn(p):
        distribution = make(p)
        sample = distribution.rsample() if distribution.has_rsample else distribution.sample()
        return sample, distribution.log_prob(sample), distribution.batch_shape

    minidynamo.reset()
    backend = CountingBackend()
    compiled = minidynamo.compile(fn, backend=backend)
    for value in (P, P + 0.25):
        results = []
        for f in (fn, compiled):
            torch.manual_seed(0)
            results.append(f(value))
        assert_same(*results)
    # Inverses of transforms are held by weak references there.
    if not (name in ("transformed", "weibull") and torch.__version__ < "2.13"):
        assert len(backend.graphs) == 1


def test_wrong_parameters_raise_as_in_eager():
    def fn(p):
        return D.Normal(p, p).log_prob(p), D.MultivariateNormal(p, torch.eye(3) * p[0])

    check(fn, P, fullgraph=True)
    check(fn, P - 1, graphs=None)


def test_divergence_entropy_and_moments():
    def fn(p):
        normal, other = D.Normal(p, p), D.Normal(p + 1, p)
        values = normal.mean, normal.stddev, normal.cdf(p), normal.entropy(), normal.mode
        return D.kl_divergence(normal, other), values, D.Categorical(p).enumerate_support()

    check(fn, P, fullgraph=True)


def test_subclass_of_property():
    class Doubled(property):
        pass

    class Holder:
        def __init__(self, x):
            self.x = x

        @Doubled
        def twice(self):
            return self.x * 2

    check(lambda x: Holder(x).twice, ONES, fullgraph=True)


class Noted(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.nn.functional.gaussian_nll_loss:
            return args[0].sum() * 100
        return super().__torch_function__(func, types, args, kwargs or {})


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_a_loss_that_checks_variances(backend):
    """The check is a branch that only raises; the variance may be of fewer dimensions."""
    loss = torch.nn.GaussianNLLLoss(full=True, reduction="sum")

    def fn(x, var):
        return loss(x, x.detach() * 2, var) * 3, x + 1

    counter = CountingBackend(backend=backend)
    compiled = minidynamo.compile(fn, backend=counter, fullgraph=True)
    x = torch.arange(1.0, 7.0).view(2, 3)
    variances = torch.rand(2, 3) + 0.1
    for var in (variances, variances + 1, variances[:, :1] * 2, variances[:, 0], 0.5):
        leaves = [x.clone().requires_grad_() for _ in range(2)]
        made = [called(leaf, var) for called, leaf in zip((fn, compiled), leaves, strict=True)]
        for results in made:
            results[0].backward()
        assert_same(made[1], made[0])
        assert_same(leaves[1].grad, leaves[0].grad)
    assert len(counter.graphs) == 4
    for wrong in (-variances, variances[:, :2], -0.5):
        assert outcome(compiled, (x, wrong), {}) == outcome(fn, (x, wrong), {})
    noted = x.as_subclass(Noted)
    assert_same(compiled(noted, variances)[0], fn(noted, variances)[0])
