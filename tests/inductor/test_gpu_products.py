"""Products padded for tensor cores, and biases taken out of products and convolutions: what the
pass does for GPUs, forced on the CPU, beside eager.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import minidynamo
from minidynamo import events
from minidynamo.inductor import config, metrics
from minidynamo.inductor.passes import devices, gpu_products, narrow_products

FULL = torch.ops.aten.full.default
NARROW = [torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def narrow_processor(monkeypatch):
    """Products of 16 bits stay what they are."""
    monkeypatch.setattr(narrow_products, "has_instructions", lambda *dtypes: True)
    with minidynamo.config.patch(raise_internal_errors=True):
        minidynamo.reset()
        yield
        minidynamo.reset()


def code_of(fn, *args):
    texts = []
    with events.subscribe(lambda event: texts.append(event.text), events.OutputCodeEvent):
        results = fn(*args)
    return results, "\n".join(texts)


def close(found, expected):
    assert found.dtype == expected.dtype and found.stride() == expected.stride()
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)


def linear(x, w, b):
    return F.linear(x, w, b), F.linear(x, w).float().softmax(-1)


def transposed(x, w, b):
    return x.t().contiguous().t() @ w.t(), (x @ w.t() + b)[:, 1:3], w.t()[:, :5].float().cos()


def attention(q, k, v):
    return torch.bmm(torch.bmm(q, k.transpose(1, 2)).mul(0.1).softmax(-1), v)


PROGRAMS = {
    "columns": (linear, [(12, 24), (13, 24), (13,)]),
    "columns and inner": (linear, [(12, 21), (13, 21), (13,)]),
    "rows": (transposed, [(11, 24), (16, 24), (16,)]),
    "all": (transposed, [(11, 21), (13, 21), (13,)]),
    "batch": (attention, [(3, 17, 24)] * 3),
    "batch, all": (attention, [(2, 19, 21)] * 3),
    "single row": (linear, [(1, 9), (5, 9), (5,)]),
    "nothing to pad": (linear, [(8, 16), (24, 16), (24,)]),
    "empty": (linear, [(0, 9), (5, 9), (5,)]),
}


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_padded_products(name, dtype):
    fn, sizes = PROGRAMS[name]
    args = [torch.randn(size).to(dtype) for size in sizes]
    expected = fn(*args)
    with config.patch(force_shape_pad=True):
        found, code = code_of(minidynamo.compile(fn), *args)
        again = minidynamo.compile(fn)(*(arg.clone() for arg in args))
    expected, found, again = (
        r if isinstance(r, tuple) else (r,) for r in (expected, found, again)
    )
    for a, b, c in zip(found, expected, again, strict=True):
        close(a, b)
        assert torch.equal(a, c)
    assert ("constant_pad_nd" in code) == (name != "nothing to pad")


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_gradients_of_a_padded_vocabulary(dtype, has_bias):
    def loss(x, w, *rest):
        return F.cross_entropy(F.linear(x, w, *rest[:-1]).float(), rest[-1])

    def leaves():
        torch.manual_seed(0)
        sizes = [(30, 24), (13, 24), (13,)][: 2 + has_bias]
        return [torch.randn(size).to(dtype).requires_grad_() for size in sizes]

    target = torch.randint(0, 13, (30,))
    eager, ours = leaves(), leaves()
    loss(*eager, target).backward()
    with config.patch(force_shape_pad=True):
        _, code = code_of(lambda: minidynamo.compile(loss)(*ours, target).backward())
    for a, b in zip(ours, eager, strict=True):
        close(a.grad, b.grad)
    assert code.count("aten.mm.out") == 3 - has_bias
    assert code.count("aten.addmm.out") == has_bias
    # The gradient of the logits is written padded, once, and nowhere else.
    backward = code[code.rindex("def run(") :]
    assert backward.count("empty((30, 16)") == 1


def test_equal_operands_are_padded_once():
    def fn(x, w, v):
        return torch.mm(x, w), torch.mm(x, v), torch.mm(v.t(), x.t())

    args = [torch.randn(size, dtype=torch.bfloat16) for size in [(8, 21), (21, 16), (21, 21)]]
    with config.patch(force_shape_pad=True):
        found, code = code_of(minidynamo.compile(fn), args[0], args[1], args[1][:, :8])
    for a, b in zip(found, fn(args[0], args[1], args[1][:, :8]), strict=True):
        close(a, b)
    assert code.count("empty((8, 24)") == 1


def test_symbolic_rows():
    def fn(x, w):
        return F.linear(x, w).float().sum(1), F.linear(x, w)

    w = torch.randn(13, 24, dtype=torch.bfloat16)
    with config.patch(force_shape_pad=True):
        compiled = minidynamo.compile(fn, dynamic=True)
        before = metrics.counts()["compiled_graphs"]
        for rows in (5, 6, 33):
            x = torch.randn(rows, 24, dtype=torch.bfloat16)
            for a, b in zip(compiled(x, w), fn(x, w), strict=True):
                close(a, b)
        assert metrics.counts()["compiled_graphs"] == before + 1


def test_symbolic_batches():
    def fn(x, w):
        y = x @ w
        return (y @ y.transpose(1, 2)).float().sum(), y.flatten(0, 1).t() @ x.flatten(0, 1)

    w = torch.randn(24, 13, dtype=torch.bfloat16)
    with config.patch(force_shape_pad=True):
        compiled = minidynamo.compile(fn, dynamic=True)
        for batch, rows in ((2, 5), (3, 7), (5, 4)):
            x = torch.randn(batch, rows, 24).mul(0.1).bfloat16()
            for a, b in zip(compiled(x, w), fn(x, w), strict=True):
                close(a, b)


def test_nothing_is_padded_on_cpus_nor_without_the_option():
    args = [torch.randn(size, dtype=torch.bfloat16) for size in [(12, 24), (13, 24), (13,)]]
    assert "constant_pad_nd" not in code_of(minidynamo.compile(linear), *args)[1]
    minidynamo.reset()
    with config.patch(force_shape_pad=True, shape_padding=False):
        assert "constant_pad_nd" not in code_of(minidynamo.compile(linear), *args)[1]


@pytest.mark.parametrize("capability", [(8, 0), (9, 0)])
def test_where_it_pays(monkeypatch, capability):
    """By figures of a GPU; the sizes are those of a vocabulary of GPT-2, and of small layers."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)

    def is_padded(rows, inner, columns):
        graph = torch.fx.Graph()
        with torch._subclasses.FakeTensorMode():
            values = [
                torch.empty(size, dtype=torch.bfloat16, device="cuda")
                for size in [(rows, inner), (columns, inner)]
            ]
            nodes = [graph.placeholder(name) for name in "xw"]
            turned = graph.call_function(torch.ops.aten.permute.default, (nodes[1], [1, 0]))
            product = graph.call_function(torch.ops.aten.mm.default, (nodes[0], turned))
            graph.output(product)
            values += [values[1].t(), values[0] @ values[1].t()]
        for node, value in zip((*nodes, turned, product), values, strict=True):
            node.meta["val"] = value
        gm = torch.fx.GraphModule({}, graph)
        gpu_products.align_products(gm)
        return bool(
            graph.find_nodes(op="call_function", target=torch.ops.aten.constant_pad_nd.default)
        )

    assert is_padded(4096, 768, 50257)
    assert not is_padded(4096, 768, 50264)
    assert not is_padded(1, 768, 50257)
    assert not is_padded(16, 64, 1001)
    assert is_padded(4096, 768, 50258) == (capability >= (9, 0))


@pytest.mark.parametrize("op", [torch.ops.aten.sqrt.default, torch.ops.aten.bernoulli.default])
def test_numbers_made_of_constants_are_folded_unless_they_are_drawn(op):
    graph = torch.fx.Graph()
    number, x = graph.get_attr("number"), graph.placeholder("x")
    made = graph.call_function(op, (number,))
    product = graph.call_function(torch.ops.aten.mul.Tensor, (x, made))
    graph.output(product)
    gm = torch.fx.GraphModule({"number": torch.tensor(0.25)}, graph)
    with torch._subclasses.FakeTensorMode():
        for node in (number, made):
            node.meta["val"] = torch.empty(())
        for node in (x, product):
            node.meta["val"] = torch.empty(3, device="cuda")
    devices.bring_to_gpu(gm)
    numbers = [n.args[1] for n in graph.find_nodes(op="call_function", target=FULL)]
    assert numbers == ([0.5] if op is torch.ops.aten.sqrt.default else [])


# -- biases


class Convolutions(nn.Module):
    def __init__(self, groups=1):
        super().__init__()
        self.first = nn.Conv2d(4, 8, 3, padding=1, groups=groups)
        self.second = nn.Conv1d(8, 4, 3)
        self.back = nn.ConvTranspose2d(8, 4, 3, stride=2)

    def forward(self, x):
        y = self.first(x)
        return y.relu(), self.second(y.flatten(2)).tanh(), self.back(y)


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 5)

    def forward(self, x):
        return self.second(F.gelu(self.first(x)))


@pytest.mark.parametrize(("make", "size"), [(Convolutions, (2, 4, 6, 6)), (Layers, (3, 4, 6))])
def test_biases_are_added_later(monkeypatch, make, size):
    monkeypatch.setattr(gpu_products, "_is_on_gpu", lambda value: True)
    torch.manual_seed(0)
    model, x = make(), torch.randn(size)
    compiled = minidynamo.compile(model)
    with torch.no_grad():
        found, code = code_of(compiled, x)
        expected = model(x)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)
        assert a.stride() == b.stride()
    results = compiled(x)
    torch.autograd.backward(
        [r.sum() for r in (results if make is Convolutions else (results,))]
    )
    ours = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    results = model(x)
    torch.autograd.backward(
        [r.sum() for r in (results if make is Convolutions else (results,))]
    )
    for a, p in zip(ours, model.parameters(), strict=True):
        torch.testing.assert_close(a, p.grad, rtol=1e-4, atol=1e-5)
    if make is Convolutions:
        assert code.count("aten.convolution") >= 3
    else:
        # What the second layer gives is the graph's: the library adds its bias on the way.
        assert code.count("aten.mm.out") == 1 and code.count("aten.addmm.out") == 1


def test_biases_that_stay(monkeypatch):
    monkeypatch.setattr(gpu_products, "_is_on_gpu", lambda value: True)
    model, x = Layers().bfloat16(), torch.randn(3, 6, dtype=torch.bfloat16)
    with torch.no_grad():
        found, code = code_of(minidynamo.compile(model), x)
        close(found, model(x))
    assert code.count("aten.mm.out") == 0 and code.count("aten.addmm.out") == 2
