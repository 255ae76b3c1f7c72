"""The option `freezing`: batch norm folded, weights packed, and nothing of it stale."""

import pytest
import torch
import torch.nn.functional as F
from inductor_testing import CLOSE
from torch import nn

import minidynamo
from minidynamo.inductor import freezing, metrics

FROZEN = {"freezing": True}


def with_statistics(norm):
    with torch.no_grad():
        for tensor in (norm.running_mean, norm.weight, norm.bias):
            tensor.normal_()
        norm.running_var.uniform_(0.5, 2)
    return norm


def block(given=4, width=6, **options):
    """A convolution and its norm, in inference."""
    conv = nn.Conv2d(given, width, 3, padding=1, **options)
    return nn.Sequential(conv, with_statistics(nn.BatchNorm2d(width)), nn.ReLU()).eval()


@pytest.fixture
def prepared(monkeypatch):
    """Each graph that was split."""
    found = []
    freeze = freezing.freeze

    def watched(*args):
        found.append(freeze(*args))
        return found[-1]

    monkeypatch.setattr(freezing, "freeze", watched)
    return found


def targets(gm):
    return [str(node.target) for node in gm.graph.nodes if node.op == "call_function"]


@pytest.mark.parametrize(
    ("model", "size"),
    [
        (lambda: block(), (2, 4, 9, 7)),
        (lambda: block(bias=False), (2, 4, 9, 7)),
        (lambda: block(groups=2, stride=2, dilation=2), (2, 4, 12, 12)),
        (lambda: nn.Sequential(block(), block(6, 4)), (1, 4, 8, 8)),
    ],
)
def test_batch_norm_is_folded(prepared, model, size):
    torch.manual_seed(0)
    model, x = model(), torch.randn(size)
    run = minidynamo.compile(model, options=FROZEN, fullgraph=True)
    with torch.no_grad():
        expected, actual = model(x), run(x)
    torch.testing.assert_close(actual, expected, **CLOSE)
    assert actual.stride() == expected.stride()
    (frozen,) = prepared
    assert not any("batch_norm" in target for target in targets(frozen.graph))
    assert any("_reorder_convolution_weight" in target for target in targets(frozen.prepare))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_linear_weights_are_packed(prepared, dtype):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 64, bias=False)).to(dtype)
    x = torch.randn(3, 5, 64, dtype=dtype)
    run = minidynamo.compile(model, options=FROZEN, fullgraph=True)
    with torch.no_grad():
        tolerance = CLOSE if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
        torch.testing.assert_close(run(x), model(x), **tolerance)
        torch.testing.assert_close(run(x.mT.contiguous().mT), model(x), **tolerance)
    # Without instructions for bfloat16 the weights are packed in float32.
    packed = targets(prepared[0].prepare)
    assert packed.count("mkldnn._reorder_linear_weight.default") == 2


def test_parts_outside_of_autocast():
    """What is prepared has the graph's own casts, and no others."""

    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(8, 8))

        def forward(self, x):
            with torch.autocast("cpu", enabled=False):
                square = self.w @ self.w
                exact = x @ square
            return exact, x @ square

    model, x = Mixed(), torch.randn(4, 8)
    with torch.no_grad(), torch.autocast("cpu"):
        ours = minidynamo.compile(model, options=FROZEN, fullgraph=True)(x)
        theirs = model(x)
    assert [out.dtype for out in ours] == [torch.float32, torch.bfloat16]
    torch.testing.assert_close(ours[0], theirs[0], **CLOSE)
    torch.testing.assert_close(ours[1], theirs[1], rtol=2e-2, atol=0.2)


def test_changed_parameters_are_seen():
    torch.manual_seed(0)
    model, x = block(), torch.randn(2, 4, 8, 8)
    run = minidynamo.compile(model, options=FROZEN, fullgraph=True)
    metrics.reset()
    with torch.no_grad():
        for change in (
            lambda: None,
            lambda: model[0].weight.mul_(2),
            lambda: model[1].running_mean.add_(1),
            lambda: model.load_state_dict(block().state_dict()),
            lambda: setattr(model[0], "bias", nn.Parameter(torch.randn(6))),
        ):
            change()
            torch.testing.assert_close(run(x), model(x), **CLOSE)
    assert metrics.compiled_graphs == 1


def test_other_modules_and_gradients():
    torch.manual_seed(0)
    first, second, x = block(), block(), torch.randn(2, 4, 8, 8)

    def apply(model, x):
        return model(x)

    run = minidynamo.compile(apply, options=FROZEN)
    with torch.no_grad():
        for model in (first, second, first):
            torch.testing.assert_close(run(model, x), apply(model, x), **CLOSE)
    run(first, x).sum().backward()
    assert first[0].weight.grad is not None
    first.train()
    torch.testing.assert_close(run(first, x), apply(first, x), rtol=1e-3, atol=1e-4)


def test_results_are_new_tensors():
    linear = nn.Linear(4, 4)

    def fn(x):
        return linear.weight * 2, (linear.bias + 1).view(2, 2), x + linear.weight.exp().sum()

    run = minidynamo.compile(fn, options=FROZEN)
    x = torch.randn(3)
    with torch.no_grad():
        for _ in range(2):
            results, expected = run(x), fn(x)
            for left, right in zip(results, expected, strict=True):
                torch.testing.assert_close(left, right)
                left.zero_()


def test_what_cannot_be_frozen(prepared):
    torch.manual_seed(0)
    transposed = nn.Sequential(nn.ConvTranspose2d(4, 6, 3), with_statistics(nn.BatchNorm2d(6)))
    shared = nn.Conv2d(4, 4, 3)
    norm = with_statistics(nn.BatchNorm2d(4)).eval()
    programs = [
        transposed.eval(),
        lambda x: (y := shared(x)) + norm(y),  # the convolution's own result is used
        lambda x: F.conv2d(x, x[:3, :, :3, :3]),  # no parameter at all
    ]
    x = torch.randn(3, 4, 8, 8)
    with torch.no_grad():
        for program in programs:
            run = minidynamo.compile(program, options=FROZEN, fullgraph=True)
            torch.testing.assert_close(run(x), program(x), **CLOSE)
    assert prepared[2] is None
