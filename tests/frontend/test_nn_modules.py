"""nn.Modules: attributes, calls, hooks, containers, changes of the module, torch's own modules."""

from __future__ import annotations

import copy

import pytest
import torch
from testing import CountingBackend, assert_same, check, check_recompiles
from torch import nn

import minidynamo

X = torch.arange(12.0).reshape(3, 4) / 10


class Block(nn.Module):
    """A transformer block as users write it."""

    def __init__(self, width=32, heads=4):
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm1 = nn.LayerNorm(width)
        self.norm2 = nn.LayerNorm(width)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        h = self.norm1(x)
        x = x + self.attention(h, h, h, need_weights=False)[0]
        return x + self.feed_forward(self.norm2(x))


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("total", torch.zeros(4))
        self.calls = 0
        self.last = None

    def forward(self, x):
        self.calls += 1
        y = self.linear(x)
        self.total += y.sum(0).detach()
        self.last = y
        return y * self.calls


def compare(module, *args, calls=2, graphs=1, grad=False, **kwargs):
    """Eager and compiled copies of a module, called alike: outputs, state and gradients agree."""
    eager, other = copy.deepcopy(module), copy.deepcopy(module)
    counter = CountingBackend()
    compiled = minidynamo.compile(other, backend=counter, fullgraph=True)
    for _ in range(calls):
        torch.manual_seed(0)
        expected = eager(*args, **kwargs)
        torch.manual_seed(0)
        actual = compiled(*args, **kwargs)
        assert_same(_values(expected), _values(actual))
        if grad and _sum(expected).requires_grad:
            _sum(expected).backward()
            _sum(actual).backward()
    assert_same(dict(eager.state_dict()), dict(other.state_dict()))
    if grad:
        for (name, a), b in zip(eager.named_parameters(), other.parameters(), strict=True):
            assert_same(a.grad, b.grad, name)
    assert len(counter.graphs) == graphs
    return counter


def _values(result):
    if isinstance(result, torch.Tensor):
        return result.detach()
    if isinstance(result, (tuple, list)):
        return [_values(item) for item in result]
    return result


def _sum(result):
    return result.sum() if isinstance(result, torch.Tensor) else sum(map(_sum, result))


# -- calls and attributes --------------------------------------------------------------------------


def test_linear():
    compare(nn.Linear(4, 3), X, grad=True)


def test_block_train_and_eval():
    x = torch.randn(2, 5, 32)
    block = Block()
    compare(block, x, grad=True)
    with torch.no_grad():
        compare(block.eval(), x)


def test_block_of_full_size():
    x = torch.randn(1, 3, 512)
    block = Block(512, 8)
    compare(block, x)
    with torch.no_grad():
        compare(block.eval(), x)


def test_training_flag_is_guarded():
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(1.0))

    def change(i):
        module.train(i % 2 == 0)

    check_recompiles(lambda x: module(x), [(X,)] * 4, graphs=2, change=change)


def test_replaced_parameter_and_child_are_seen():
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def change(i):
        if i == 1:
            module[0].weight = nn.Parameter(torch.ones(4, 4))
        elif i == 2:
            module[1] = nn.Sigmoid()
        elif i == 3:
            module[0].bias = None

    check_recompiles(lambda x: module(x), [(X,)] * 5, graphs=3, change=change)


def test_appended_child_is_seen():
    module = nn.Sequential(nn.Linear(4, 4))

    def change(i):
        if i == 1:
            module.append(nn.Tanh())

    check_recompiles(lambda x: module(x), [(X,)] * 3, graphs=2, change=change)


def test_state_of_the_module_changes():
    compare(Counter(), X, calls=6, graphs=2)  # what it counts is symbolic


def test_batch_norm():
    compare(nn.BatchNorm1d(4), X, calls=3, grad=True)
    compare(nn.BatchNorm1d(4).eval(), X)


def test_parameters_of_the_module():
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))

    def fn(x):
        total = x.sum()
        for name, parameter in module.named_parameters():
            total = total + parameter.sum() * len(name)
        return total, [type(m).__name__ for m in module.modules()], len(list(module.children()))

    check(fn, X, fullgraph=True)


def test_function_with_module_in_closure():
    module = nn.Linear(4, 4)

    def fn(x):
        return module(x) + module.weight.sum() + module.in_features

    check(fn, X, fullgraph=True)


def test_instance_attribute_forward():
    module = nn.Linear(4, 4)

    def change(i):
        if i == 1:
            module.forward = lambda x: x + 1

    check_recompiles(lambda x: module(x), [(X,)] * 3, graphs=2, change=change)


def test_hooks():
    module = nn.Linear(4, 4)
    seen = []

    def change(i):
        if i == 1:
            module.register_forward_hook(lambda m, args, out: out + 1)
        elif i == 2:
            module.register_forward_pre_hook(lambda m, args: (args[0] * 2,))
        seen.append(i)

    check_recompiles(lambda x: module(x), [(X,)] * 4, graphs=3, change=change)


def test_global_hook_is_guarded():
    module = nn.Linear(4, 4)
    handles = []

    def change(i):
        if i == 1:
            hook = nn.modules.module.register_module_forward_hook(lambda m, args, out: out * 2)
            handles.append(hook)

    try:
        check_recompiles(lambda x: module(x), [(X,)] * 3, graphs=2, change=change)
    finally:
        handles[0].remove()


def test_shared_module_and_tied_weights():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(4, 4)
            self.b = self.a
            self.c = nn.Linear(4, 4)
            self.c.weight = self.a.weight

        def forward(self, x):
            return self.c(self.b(self.a(x)))

    counter = compare(Tied(), X, grad=True)
    inputs = [n for n in counter.graphs[0].graph.nodes if n.op == "placeholder"]
    assert len(inputs) == 4


# -- stores ----------------------------------------------------------------------------------------


def test_stores_to_a_module():
    class Storing(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("state", torch.zeros(3, 4))
            self.extra = None

        def forward(self, x):
            self.state = self.state + x
            self.extra = {"x": x}
            self.fresh = 1
            return self.state * 2 + self.fresh

    eager, other = Storing(), Storing()
    compiled = minidynamo.compile(other, backend=CountingBackend(), fullgraph=True)
    for _ in range(3):
        assert_same(eager(X), compiled(X))
        assert_same(eager.state, other.state)
        assert_same(eager.extra, other.extra)
    assert "state" in other._buffers and "fresh" in other.__dict__


def test_parameter_is_replaced_while_tracing():
    module = nn.Linear(4, 4)
    other = nn.Linear(4, 4)

    def fn(x):
        saved = module.weight
        module.weight = other.weight
        y = module(x)
        module.weight = saved
        return y + module(x)

    check(fn, X, fullgraph=True)
    assert list(module._parameters) == ["weight", "bias"]


def test_deleted_attributes():
    def fn(x):
        module = nn.Identity()
        module.note = 3
        del module.note
        return module(x) + hasattr(module, "note")

    check(fn, X, fullgraph=True)


def test_module_made_inside():
    def fn(x):
        act = nn.Sequential(nn.ReLU(), nn.GELU())
        return act(x) + len(act)

    check(fn, X, fullgraph=True)


def test_train_and_eval_inside():
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))

    def fn(x):
        module.eval()
        y = module(x)
        module.train()
        return y, module.training, module[1].training

    check(fn, X, fullgraph=True)
    assert module[1].training


def test_getattr_overridden():
    class Delegating(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)
            self.scale = 2

        def __getattr__(self, name):
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(self.inner, name)

        def forward(self, x):
            return self.inner(x) * self.scale + self.weight.sum() + self.in_features

    compare(Delegating(), X)


def test_compiled_parts():
    """What is compiled already is traced through; what is disabled ends the graph."""
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    module[0] = minidynamo.compile(module[0], backend="eager")
    helper = minidynamo.compile(lambda x: x + 1, backend="eager")
    check(lambda x: helper(module(x)), X, fullgraph=True)

    @minidynamo.disable
    def kept(x):
        return x * 2

    check(lambda x: kept(x + 1) + 1, X, graphs=2, breaks=1)


def test_graph_module():
    traced = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    check(lambda x: traced(x) + 1, X, fullgraph=True)
    compare(traced, X)


def test_call_overridden():
    class Calling(nn.Linear):
        def __call__(self, x):
            return super().__call__(x + 1) * 2

    compare(Calling(4, 4), X)


def test_property_and_method_of_module():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self._factor = 3

        @property
        def factor(self):
            return self._factor

        @property
        def device(self):
            return next(self.parameters()).device

        @staticmethod
        def twice(x):
            return x * 2

        def body(self, x, **kwargs):
            return self.linear(x) * kwargs.get("factor", 1)

        def forward(self, x, *args, flag=True, **kwargs):
            y = self.body(self.twice(x), factor=self.factor, **kwargs)
            return (y.to(self.device), *args) if flag else y

    compare(Model(), X, 1)
    compare(Model(), X, flag=False)


# -- containers ------------------------------------------------------------------------------------


def test_containers():
    class Many(nn.Module):
        def __init__(self):
            super().__init__()
            self.items = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
            self.table = nn.ModuleDict({"a": nn.ReLU(), "b": nn.Tanh()})
            self.weights = nn.ParameterList([nn.Parameter(torch.ones(4)) for _ in range(2)])
            self.named = nn.ParameterDict({"w": nn.Parameter(torch.ones(4))})

        def forward(self, x):
            for i, item in enumerate(self.items):
                x = item(x) + i
            x = self.items[-1](x)
            for item in self.items[1:]:
                x = item(x)
            for key, module in self.table.items():
                x = module(x) + len(key)
            x = self.table["a"](x)
            for weight in self.weights:
                x = x * weight
            return x + self.named["w"] + len(self.items) + ("b" in self.table), len(
                self.weights
            )

    compare(Many(), X, grad=False)


def test_sequential_slices_and_iteration():
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))

    def fn(x):
        y = module[:2](x)
        for layer in module:
            x = layer(x)
        return x, y, len(module)

    check(fn, X, fullgraph=True)


# -- torch's own modules ---------------------------------------------------------------------------

SEQUENCE = torch.randn(2, 5, 8)
IMAGE = torch.randn(2, 4, 8, 8)
TOKENS = torch.tensor([[1, 2, 0], [3, 1, 1]])
CASES = {
    "conv1d": (lambda: nn.Conv1d(5, 3, 3), (SEQUENCE,)),
    "conv2d": (lambda: nn.Conv2d(4, 3, 3, padding=1, padding_mode="circular"), (IMAGE,)),
    "conv_transpose": (lambda: nn.ConvTranspose2d(4, 3, 2, stride=2), (IMAGE,)),
    "pools": (
        lambda: nn.Sequential(nn.MaxPool2d(2), nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(1)),
        (IMAGE,),
    ),
    "norms": (
        lambda: nn.Sequential(nn.GroupNorm(2, 4), nn.InstanceNorm2d(4), nn.BatchNorm2d(4)),
        (IMAGE,),
    ),
    "layer_norm": (lambda: nn.LayerNorm(8), (SEQUENCE,)),
    "rms_norm": (lambda: nn.RMSNorm(8), (SEQUENCE,)),
    "embedding": (lambda: nn.Embedding(5, 8, padding_idx=0), (TOKENS,)),
    "activations": (
        lambda: nn.Sequential(
            nn.ReLU(), nn.LeakyReLU(), nn.ELU(), nn.SiLU(), nn.Softplus(), nn.PReLU(), nn.GLU()
        ),
        (SEQUENCE,),
    ),
    "softmax": (lambda: nn.Sequential(nn.Softmax(-1), nn.LogSoftmax(-1)), (SEQUENCE,)),
    "shapes": (
        lambda: nn.Sequential(nn.Flatten(), nn.Unflatten(1, (4, 64)), nn.Identity()),
        (IMAGE,),
    ),
    "upsample": (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), (IMAGE,)),
    "dropout": (lambda: nn.Sequential(nn.Dropout(0.5), nn.Dropout2d(0.5)), (IMAGE,)),
    "bilinear": (lambda: nn.Bilinear(8, 8, 3), (SEQUENCE, SEQUENCE)),
    "lstm": (lambda: nn.LSTM(8, 6, num_layers=2, batch_first=True), (SEQUENCE,)),
    "gru": (lambda: nn.GRU(8, 6, bidirectional=True), (SEQUENCE,)),
    "rnn_cell": (lambda: nn.RNNCell(5, 6), (SEQUENCE[:, :, 0],)),
    "losses": (lambda: nn.MSELoss(), (SEQUENCE, SEQUENCE * 2)),
    "cross_entropy": (
        lambda: nn.CrossEntropyLoss(label_smoothing=0.1),
        (SEQUENCE[:, 0], torch.tensor([1, 2])),
    ),
    "encoder_layer": (
        lambda: nn.TransformerEncoderLayer(8, 2, dropout=0.0, batch_first=True),
        (SEQUENCE,),
    ),
    "decoder_layer": (
        lambda: nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
        (SEQUENCE, SEQUENCE),
    ),
    "transformer": (
        lambda: nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=True),
        (SEQUENCE, SEQUENCE),
    ),
    "weight_norm": (
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(8, 3)),
        (SEQUENCE,),
    ),
}


# Their training kernels can't be differentiated inside a graph.
_BREAKS_IN_TRAINING = ("lstm", "gru")


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("training", [True, False])
def test_torch_module(name, training):
    make, args = CASES[name]
    torch.manual_seed(1)
    module = make().train(training)
    if training and name in _BREAKS_IN_TRAINING:
        check(lambda *a: _values(module(*a)), *args, graphs=None)
    elif training:
        compare(module, *args, grad=True)
    else:
        with torch.no_grad():
            compare(module, *args)


class Step(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)

    def forward(self, x):
        return torch.relu(self.linear(x)) + 1


class Blocks(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList([Step(), Step()])
        self.named = torch.nn.ModuleDict({"last": Step()})

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.named["last"](self.blocks[0](x)) * 2


def test_nodes_name_their_modules():
    """As the graphs of torch.compile do."""

    def rows_of(compile_):
        rows = []

        def backend(graph, _inputs):
            for node in graph.graph.nodes:
                if node.op.startswith("call"):
                    stack = node.meta.get("nn_module_stack", {})
                    ((_name, target),) = node.meta["source_fn_stack"]
                    rows.append(([*stack.values()], ["@" in key for key in stack], target))
            return graph.forward

        torch._dynamo.reset()
        compile_(model, backend=backend)(torch.ones(2, 3))
        return rows

    for model in (Blocks(), torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh())):
        ours, theirs = rows_of(minidynamo.compile), rows_of(torch.compile)
        named = [[(path.replace("fn", "self"), cls) for path, cls in row[0]] for row in theirs]
        assert [row[0] for row in ours] == named and len(ours) > 1
        assert [row[1:] for row in ours] == [row[1:] for row in theirs]
