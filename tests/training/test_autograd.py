"""Forward and backward compiled: gradients, hooks, several forwards, errors of autograd."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from training_testing import ConvNet, gradients, mlp, noise, scenario, state

import minidynamo
from minidynamo import events
from minidynamo.inductor import metrics


@scenario()
def test_gradients_accumulate(comp):
    model = mlp()
    step = comp(model)
    for _ in range(3):
        step(noise(5, 8)).sum().backward()
    return gradients(model)


@scenario()
def test_several_forwards_before_a_backward(comp):
    model = mlp()
    step = comp(model)
    x = noise(5, 8)
    a, b, c = step(x), step(x * 2), step(x * 3)
    b.sum().backward()
    (a * c).sum().backward()
    return gradients(model)


@scenario()
def test_hooks_of_parameters(comp):
    model, log = mlp(), []
    for name, parameter in model.named_parameters():
        parameter.register_hook(lambda g, name=name: (log.append(name), g * 2)[1])
        parameter.register_post_accumulate_grad_hook(lambda p: log.append(str(tuple(p.shape))))
    step = comp(model)
    for _ in range(2):
        step(torch.ones(5, 8)).sum().backward()
    return gradients(model), sorted(log)


@scenario()
def test_hooks_of_inputs_and_outputs(comp):
    log = []
    step = comp(lambda x: (x * 2).sin())
    x = torch.ones(3, requires_grad=True)
    x.register_hook(lambda g: (log.append("x"), g * 5)[1])
    y = step(x)
    y.register_hook(lambda g: (log.append("y"), g * 3)[1])
    y.sum().backward()
    return x.grad, log


@scenario()
def test_hook_registered_inside(comp):
    def f(x, w):
        y = x @ w
        y.register_hook(lambda g: g * 3)
        return y.sin().sum()

    w = torch.ones(8, 3, requires_grad=True)
    step = comp(f)
    for _ in range(2):
        step(torch.ones(2, 8) * 0.1, w).backward()
    return w.grad


@scenario()
def test_retain_graph(comp):
    model = mlp()
    loss = comp(model)(torch.ones(5, 8)).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    return gradients(model)


@scenario(graphs=2)
def test_retain_graph_after_other_passes(comp):
    """Whether saved tensors are kept may differ from pass to pass, also with symbolic sizes."""
    model = mlp()
    step = comp(model)
    for size in (5, 6, 7):
        step(noise(size, 8)).sum().backward()
        loss = step(noise(size, 8)).sum()
        loss.backward(retain_graph=True)
        loss.backward()
    return gradients(model)


@scenario(graphs=2)
def test_frozen_layer_thaws(comp):
    model = mlp()
    model[0].requires_grad_(False)
    model[2].bias.requires_grad_(False)
    step = comp(model)
    step(torch.ones(5, 8)).sum().backward()
    frozen = gradients(model)
    model.requires_grad_(True)
    step(torch.ones(5, 8)).sum().backward()
    return frozen, gradients(model)


@scenario()
def test_gradient_of_the_input_of_a_frozen_model(comp):
    model = mlp().requires_grad_(False)
    x = torch.ones(5, 8, requires_grad=True)
    comp(model)(x).sum().backward()
    return x.grad, gradients(model)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = nn.Embedding(11, 6), nn.Linear(6, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x):
        return self.head(self.embedding(x).tanh())


@scenario()
def test_tied_weights(comp):
    model = Tied()
    step = comp(model)
    step(torch.arange(8) % 5).square().sum().backward()
    step(torch.arange(8) % 5).sum().backward()
    return gradients(model)


@scenario(tolerance=1e-4)
def test_batch_norm_statistics(comp):
    model = ConvNet()
    step = comp(model)
    losses = []
    for _ in range(3):
        loss = F.nll_loss(step(noise(4, 3, 16, 16)), torch.tensor([1, 2, 3, 4]))
        loss.backward()
        losses.append(loss.detach())
    return losses, gradients(model), state(model)


@scenario(tolerance=1e-4)
def test_channels_last(comp):
    model = ConvNet().to(memory_format=torch.channels_last)
    step = comp(model)
    x = noise(4, 3, 16, 16).to(memory_format=torch.channels_last).requires_grad_()
    y = step(x)
    y.sum().backward()
    (step(x) ** 2).sum().backward()
    return y.detach(), gradients(model), state(model), x.grad


@scenario(graphs=2)
def test_strided_inputs(comp):
    model = mlp()
    step = comp(model)
    x = noise(8, 5).t().requires_grad_()
    step(x).pow(2).sum().backward()
    step(x[::2]).pow(2).sum().backward()
    return gradients(model), x.grad


@scenario()
def test_loss_inside(comp):
    model = mlp()
    target = torch.tensor([0, 1, 2, 3, 0])
    step = comp(lambda x: F.cross_entropy(model(x), target))
    step(torch.ones(5, 8)).backward()
    loss = step(torch.ones(5, 8))
    loss.backward()
    return loss.detach(), gradients(model)


@scenario()
def test_no_grad_inside(comp):
    model = mlp()

    def f(x):
        with torch.no_grad():
            shift = x.mean()
        y = model(x) - shift
        with torch.no_grad():
            largest = y.abs().max()
        return y / largest

    x = noise(5, 8, requires_grad=True)
    comp(f)(x).sum().backward()
    return gradients(model), x.grad


@scenario(graphs=2, tolerance=2e-2)
def test_autocast_inside_and_outside(comp):
    model = mlp()

    def f(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(x).float().sum()

    comp(f)(torch.ones(5, 8)).backward()
    step = comp(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = step(torch.ones(5, 8))
    y.float().sum().backward()
    return gradients(model), y.detach()


@scenario(tolerance=2e-2)
def test_grad_scaler(comp):
    model = mlp()
    step = comp(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    for _ in range(3):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = step(torch.ones(5, 8)).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return state(model)


@scenario()
def test_mixed_outputs(comp):
    def f(x, w):
        y = x * w
        return y, y.detach(), x > 0, x.argmax(), 3, w.sum(), x + 1

    w = torch.ones(4, requires_grad=True)
    step = comp(f)
    for _ in range(2):
        results = step(noise(4), w)
        (results[0].sum() + results[5]).backward()
    return results, w.grad


@scenario()
def test_autograd_grad_outside(comp):
    x, w = torch.ones(2, 3, requires_grad=True), torch.ones(3, 2, requires_grad=True)
    y = comp(lambda x, w: (x @ w).tanh())(x, w)
    return torch.autograd.grad(y, [x, w], torch.ones_like(y) * 2)


@scenario()
def test_input_that_is_not_used(comp):
    x, w, u = (torch.ones(3, requires_grad=True) for _ in range(3))
    comp(lambda x, w, u: x * w)(x, w, u)[0].backward()
    return x.grad, w.grad, u.grad


@scenario()
def test_named_tuple_of_values_and_indices(comp):
    step = comp(lambda x: torch.topk(x * 2, 2))
    x = torch.arange(5.0).requires_grad_()
    result = step(x)
    result.values.sum().backward()
    return result.values.detach(), result.indices, x.grad


@scenario(graphs=2)
def test_attention(comp):
    torch.manual_seed(0)
    model = nn.MultiheadAttention(16, 4, batch_first=True)
    x = noise(2, 5, 16, requires_grad=True)
    y, _ = comp(model)(x, x, x, need_weights=False)
    y.square().sum().backward()
    q = noise(2, 4, 5, 8, requires_grad=True)
    causal = comp(lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True))
    causal(q).square().sum().backward()
    return y.detach(), gradients(model), x.grad, q.grad


@scenario(graphs=4, tolerance=1e-4)
def test_switching_between_training_and_evaluation(comp):
    model = ConvNet()
    step = comp(model)
    x = noise(4, 3, 16, 16)
    results = []
    for training in (True, False, True, False):
        model.train(training)
        y = step(x)
        results.append(y.detach().clone())
        if training:
            y.sum().backward()
    with torch.no_grad():
        results.append(step(x).clone())
    with torch.inference_mode():
        results.append(step(x).mul(1))
    return results, gradients(model), state(model)


@scenario(graphs=2)
def test_training_after_inference_mode(comp):
    model = mlp()
    step = comp(model)
    with torch.inference_mode():
        step(torch.ones(5, 8))
    step(torch.ones(5, 8)).sum().backward()
    return gradients(model)


@scenario()
def test_saved_tensor_changed_before_backward(comp):
    x, w = torch.ones(3), torch.ones(3, requires_grad=True)
    y = comp(lambda x, w: (x * w).exp())(x, w)
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@scenario()
def test_strides_of_gradients(comp):
    x = noise(4, 6, requires_grad=True)
    comp(lambda x: (x.t() @ x).sum() + x.permute(1, 0).contiguous().sum())(x).backward()
    return x.grad


@scenario()
def test_embeddings(comp):
    torch.manual_seed(0)
    bag, table = nn.EmbeddingBag(10, 4, mode="mean"), nn.Embedding(10, 4, padding_idx=0)
    step = comp(lambda i, o: bag(i, o).sum() + table(i).square().sum())
    for _ in range(2):
        step(torch.tensor([0, 1, 1, 2, 5, 9]), torch.tensor([0, 2, 4])).backward()
    return bag.weight.grad, table.weight.grad


@scenario()
def test_sparse_gradient(comp):
    torch.manual_seed(0)
    table = nn.Embedding(10, 4, sparse=True)
    comp(lambda i: table(i).square().sum())(torch.tensor([1, 2, 2])).backward()
    return table.weight.grad.to_dense()


@scenario()
def test_complex_gradient(comp):
    z = torch.ones(3, dtype=torch.cfloat, requires_grad=True)
    comp(lambda z: (z * z.conj()).real.sum() + z.abs().sum())(z).backward()
    return z.grad


class Dropout(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.dropout = nn.Linear(8, 64), nn.Dropout(0.5)

    def forward(self, x):
        return self.dropout(self.linear(x))


def test_dropout_uses_one_mask_forward_and_backward():
    model = Dropout()
    step = minidynamo.compile(model)
    x = torch.ones(5, 8, requires_grad=True)
    y = step(x)
    mask = (y != 0).float() * 2
    (gradient,) = torch.autograd.grad(y.sum(), model.linear.weight)
    torch.testing.assert_close(gradient, mask.t() @ x.detach())
    assert 0.35 < (y != 0).float().mean() < 0.65
    assert not torch.equal(y, step(x))
    torch.manual_seed(3)
    first = step(x)
    torch.manual_seed(3)
    assert torch.equal(first, step(x))
    model.eval()
    torch.testing.assert_close(step(x), model.linear(x))


@pytest.mark.parametrize(
    "act", [F.relu, F.relu6, F.leaky_relu, F.hardtanh], ids=lambda f: f.__name__
)
def test_of_which_side_an_element_was_a_byte_is_kept(act):
    """Not the element itself, where nothing else needs it."""
    plans = []

    def fn(x):
        return F.pad(act(x * 2), (1, 1)) * 3

    x = torch.tensor([[-4.0, 5, float("nan")], [0, -0.0, 0.25]], requires_grad=True)
    expected = torch.autograd.grad(fn(x).sum(), x)
    minidynamo.reset()
    with events.subscribe(lambda event: plans.append(event.text), events.OutputCodeEvent):
        actual = torch.autograd.grad(minidynamo.compile(fn)(x).sum(), x)
    torch.testing.assert_close(actual, expected, equal_nan=True, rtol=0, atol=0)
    assert "bool[2, 3]" in plans[-1].splitlines()[0]


def in_a_block(x):
    with torch.device("cpu"):
        y = torch.ones(3) * x
    with torch.device("meta"):
        size = torch.empty(3).shape[0]
    return torch.arange(3.0) * y * size


def across_a_break(x):
    with torch.device("cpu"):
        y = torch.ones(3) * x
        minidynamo.graph_break()
        z = torch.arange(3.0) * y
    return torch.ones(3) * z


@pytest.mark.parametrize(("fn", "uncompiled"), [(in_a_block, 0), (across_a_break, 0)])
def test_default_devices(fn, uncompiled):
    metrics.reset()
    compiled = minidynamo.compile(fn)
    for _ in range(2):
        inputs = [torch.ones(3, requires_grad=True) for _ in range(2)]
        results = compiled(inputs[0]), fn(inputs[1])
        torch.testing.assert_close(*results)
        for result in results:
            result.sum().backward()
        torch.testing.assert_close(inputs[0].grad, inputs[1].grad)
        assert torch.get_default_device().type == "cpu"
    assert metrics.uncompiled_graphs == uncompiled
