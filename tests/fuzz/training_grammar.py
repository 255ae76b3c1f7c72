"""Training steps of a network with state, in any order (see scripts.py).

The network, its optimizer and hooks are kept from call to call; between calls parameters are frozen
and modes changed. Seen afterwards: losses, parameters, buffers, gradients, the optimizer's state.
"""

SETUP = """
import torch, minidynamo
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

KEPT = {}

def once(make):
    if "it" not in KEPT:
        KEPT["it"] = make()
    return KEPT["it"]

def data(*shape, dtype=torch.float64):
    count = torch.Size(shape).numel()
    return ((torch.arange(count) * 7 % 29 - 13.3) / 8).reshape(shape).to(dtype)

class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(context, value, weight):
        context.save_for_backward(value, weight)
        return value * weight

    @staticmethod
    def backward(context, grad):
        value, weight = context.saved_tensors
        return grad * weight, (grad * value).sum(0)

class Block(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.lin = nn.Linear(size, size)
        self.scale = nn.Parameter(torch.ones(size) * 0.7)
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.drop = nn.Dropout(0.25)
        self.seen = 0

    def forward(self, value):
        self.seen += 1
        self.calls += 1
        out = self.drop(torch.tanh(self.lin(value)))
        if self.training:
            with torch.no_grad():
                self.mean.mul_(0.9).add_(out.mean(0), alpha=0.1)
        return Scaled.apply(out - self.mean, self.scale) + value

class Net(nn.Module):
    def __init__(self, checkpoints=False, norm=False):
        super().__init__()
        self.one, self.two = Block(6), Block(6)
        self.norm = nn.BatchNorm1d(6) if norm else nn.Identity()
        self.head = nn.Linear(6, 3)
        self.checkpoints = checkpoints

    def forward(self, value):
        if self.checkpoints:
            value = checkpoint(self.one, value, use_reentrant=False)
        else:
            value = self.one(value)
        return self.head(self.norm(self.two(value).relu()))

def start(kind, make_optimizer, dtype=torch.float64):
    torch.manual_seed(0)
    net = Net("c" in kind, "n" in kind).to(dtype)
    if "t" in kind:
        net.two.lin.weight = net.one.lin.weight
    if "h" in kind:
        net.one.register_forward_hook(lambda module, given, out: out * 1.5)
        net.head.register_forward_pre_hook(lambda module, given: (given[0] + 1,))
    if "g" in kind:
        net.head.weight.register_hook(lambda grad: grad * 2)
        net.one.scale.register_post_accumulate_grad_hook(lambda p: p.grad.mul_(0.5))
    return net, make_optimizer(net)

"""
SIGNATURE = {"net": "NET", "optimizer": "OPTIMIZER", "x": "TENSOR", "number": "INT"}
RESULTS = ("TENSOR", "LOSS", "INT")
CALLS = 4


def rounding(text: str) -> float:
    """Parts of a step in bfloat16 are rounded elsewhere than in eager, the whole step by that.

    torch.optim counts steps in float32 tensors, and where it is compiled computes with those.
    """
    return 0.1 if "autocast" in text else 1e-5


_KINDS = ["''", "'c'", "'n'", "'t'", "'h'", "'g'", "'cnhg'", "'tg'"]
_OPTIMIZERS = [
    "torch.optim.SGD(net.parameters(), lr=0.05)",
    "torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True)",
    "torch.optim.Adam(net.parameters(), lr=0.01, eps=0.1)",
    "torch.optim.AdamW([{'params': net.one.parameters(), 'lr': 0.02}, "
    "{'params': net.head.parameters()}], lr=0.01, eps=0.1)",
    "torch.optim.Adagrad(net.parameters(), lr=0.01, eps=0.1)",
    "torch.optim.Adam(net.head.parameters(), lr=0.01, eps=0.1, amsgrad=True)",
    "torch.optim.NAdam(net.parameters(), lr=0.01, eps=0.1, foreach=False)",
]
ARGUMENTS = {
    "both": [
        f"once(lambda: start({kind}, lambda net: {optimizer}))"
        for kind in _KINDS
        for optimizer in _OPTIMIZERS
    ],
    "net": ["both[0]"],
    "optimizer": ["both[1]"],
    "changes": [
        "None",
        "net.one.requires_grad_(call == 2)",
        "net.train(call != 1)",
        "net.head.bias.requires_grad_(call < 2)",
        "net.one.mean.fill_(call)",
        "net.requires_grad_(call != 2)",
        "optimizer.zero_grad(set_to_none=call == 1)",
        "setattr(net.two.drop, 'p', 0.5 if call == 2 else 0.25)",
    ],
    "x": [
        "data(4, 6)",
        "data(4 + call % 2, 6)",
        "data(4, 6).requires_grad_()",
        "data(4, 6) if call != 2 else data(3, 6).requires_grad_()",
    ],
    "number": ["call"],
}
LEAVES = {
    "TENSOR": ["x"],
    "OUT": ["net(x)"],
    "LOSS": ["net(x).sum()"],
    "INT": ["number"],
    "PART": ["net.one", "net.head"],
    "PARAMETER": ["net.head.weight", "net.one.scale"],
    "FLAG": ["True", "False"],
    "NET": ["net"],
    "OPTIMIZER": ["optimizer"],
}
EXPRESSIONS = {
    "INT": ["number", "net.one.seen", "2"],
    "FLAG": ["True", "False", "number % 2 == 0", "number > 1"],
    "PART": ["net.one", "net.head", "net.two", "net.one.lin", "net"],
    "PARAMETER": [
        "net.head.weight",
        "net.one.scale",
        "net.two.lin.weight",
        "net.head.bias",
        "net.one.lin.bias",
    ],
    "OUT": [
        "net(x)",
        "net(x * <INT>)",
        "net.head(<TENSOR>)",
        "checkpoint(net, x, use_reentrant=False)",
        "net.one(x)",
        "net.two(net.one(x)).detach()",
        "net(<TENSOR>)",
    ],
    "TENSOR": ["<OUT>", "x", "(<OUT> + <OUT>)", "F.dropout(x, 0.5)", "<OUT>.detach()"],
    "LOSS": [
        "<TENSOR>.square().mean()",
        "F.cross_entropy(net(x), torch.arange(x.shape[0]) % 3)",
        "<TENSOR>.sum()",
        "(<LOSS> + <LOSS>)",
        "(<PARAMETER>.square().sum() + <LOSS>)",
        "F.mse_loss(net(x), net(x).detach())",
        "(<LOSS> * <LOSS>.detach())",
        "(net.one.mean * <PARAMETER>.sum()).sum()",
    ],
}
STATEMENTS = [
    "<+LOSS> = <LOSS>",
    "<+LOSS> = <LOSS>\n<LOSS?>.backward()\noptimizer.step()",
    "<+TENSOR> = <OUT>",
    "<LOSS?>.backward(retain_graph=True)",
    "<LOSS?>.backward()",
    "optimizer.step()",
    "optimizer.zero_grad()",
    "optimizer.zero_grad(set_to_none=False)",
    "<PARAMETER>.grad = None",
    "for p in net.parameters():\n    p.grad = None",
    "<PART>.requires_grad_(<FLAG>)",
    "net.train(<FLAG>)",
    "with torch.no_grad():\n    <+TENSOR> = <OUT>",
    "with torch.no_grad():\n    <PARAMETER>.mul_(0.9)",
    "with torch.no_grad():\n    for p in net.parameters():\n        p.sub_(p.sign() * 0.01)",
    "with torch.no_grad():\n    if <PARAMETER>.grad is not None:\n"
    "        <PARAMETER>.grad.zero_()",
    "with torch.autocast('cpu', torch.bfloat16):\n    <+LOSS> = <LOSS>",
    "with torch.autocast('cpu', torch.bfloat16):\n    <+TENSOR> = <OUT>",
    "handle = <PART>.register_forward_hook(lambda module, given, out: out * 2)\n"
    "<+LOSS> = <LOSS>\nhandle.remove()",
    "handle = <PARAMETER>.register_hook(lambda grad: grad + 1)\n"
    "<LOSS>.backward()\nhandle.remove()",
    "torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)",
    "if net.head.weight.grad is not None:\n"
    "    torch.nn.utils.clip_grad_value_(net.parameters(), 0.1)",
    "net.one.calls.zero_()",
    "net.two.mean.copy_(net.one.mean)",
    "net.one.mean = net.one.mean + 1",
    "<PARAMETER>.data.clamp_(-0.5, 0.5)",
    "optimizer.param_groups[0]['lr'] *= 0.5",
    "minidynamo.graph_break()",
    "for p, g in zip(net.head.parameters(), torch.autograd.grad(<LOSS>, "
    "list(net.head.parameters()), allow_unused=True)):\n    p.grad = g",
    "kept = {k: v.clone() for k, v in net.state_dict().items()}\n<LOSS>.backward()\n"
    "optimizer.step()\nnet.load_state_dict(kept)",
    "<+LOSS> = <LOSS>\nif <LOSS?>.item() > 0.5:\n    <LOSS?>.backward()",
    "if number == <INT>:\n    <BLOCK>",
    "for _ in range(2):\n    <BLOCK>",
    "if net.training:\n    <BLOCK>\nelse:\n    <BLOCK>",
    "<p=TENSOR>torch.autograd.backward([$p.sum(), $p.mean()])",
    "<+LOSS> = torch.autograd.grad(<LOSS>, x, create_graph=True)[0].square().sum()",
    "target = {k: v.detach().lerp(v.detach() * 2, 0.1) for k, v in net.named_parameters()}\n"
    "<+TENSOR> = torch.func.functional_call(net, target, x)",
]
