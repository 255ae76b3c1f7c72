"""Every module class of torch.nn: captured whole, results, buffers and gradients as in eager."""

from __future__ import annotations

import copy
import inspect

import pytest
import torch
from testing import CountingBackend, assert_same
from torch import nn

import minidynamo

X1 = torch.linspace(-2, 2, 2 * 4 * 10).reshape(2, 4, 10)
X2 = torch.linspace(-2, 2, 2 * 4 * 6 * 6).reshape(2, 4, 6, 6)
X3 = torch.linspace(-2, 2, 2 * 4 * 4 * 4 * 4).reshape(2, 4, 4, 4, 4)
FLAT = torch.linspace(-2, 2, 12).reshape(3, 4)
POSITIVE = torch.linspace(0.1, 0.9, 12).reshape(3, 4)
SIGNS = torch.tensor([1.0, -1.0, 1.0])
CLASSES = torch.tensor([0, 3, 1])
SEQUENCE = torch.linspace(-1, 1, 2 * 5 * 8).reshape(2, 5, 8)
IDS = torch.tensor([[1, 2, 0], [3, 3, 4]])


def _pool_indices(dimensions):
    x = {1: X1, 2: X2, 3: X3}[dimensions]
    pool = getattr(nn, f"MaxPool{dimensions}d")(2, return_indices=True)
    return pool(x)


# Class -> rows of (constructor arguments, arguments of the call).
ACTIVATIONS = (
    "CELU ELU GELU GLU Hardshrink Hardsigmoid Hardswish Hardtanh Identity LeakyReLU LogSigmoid"
    " Mish PReLU ReLU ReLU6 RReLU SELU SiLU Sigmoid Softmax Softmin LogSoftmax Softplus Softshrink"
    " Softsign Tanh Tanhshrink Dropout AlphaDropout FeatureAlphaDropout Flatten"
).split()
ELEMENTWISE_LOSSES = "L1Loss MSELoss SmoothL1Loss HuberLoss PoissonNLLLoss KLDivLoss".split()
CASES = {
    **{name: [((), (FLAT,))] for name in ACTIVATIONS},
    **{
        name: [((), (FLAT, POSITIVE)), ({"reduction": "none"}, (FLAT, POSITIVE))]
        for name in ELEMENTWISE_LOSSES
    },
    "BCELoss": [((), (POSITIVE, POSITIVE)), ({"weight": POSITIVE[0]}, (POSITIVE, POSITIVE))],
    "BCEWithLogitsLoss": [
        ((), (FLAT, POSITIVE)),
        ({"pos_weight": POSITIVE[0]}, (FLAT, POSITIVE)),
    ],
    "SoftMarginLoss": [((), (FLAT, FLAT.sign()))],
    "MultiLabelMarginLoss": [((), (FLAT, torch.tensor([[0, 1, -1, 0]] * 3)))],
    "MultiLabelSoftMarginLoss": [((), (FLAT, (FLAT > 0).float()))],
    "MultiMarginLoss": [((), (FLAT, CLASSES)), ({"weight": POSITIVE[0]}, (FLAT, CLASSES))],
    "HingeEmbeddingLoss": [((), (FLAT, FLAT.sign()))],
    "CosineEmbeddingLoss": [((), (FLAT, POSITIVE, SIGNS))],
    "MarginRankingLoss": [((), (FLAT[0], POSITIVE[0], FLAT[1].sign()))],
    "TripletMarginLoss": [
        ((), (FLAT, POSITIVE, POSITIVE + 1)),
        ({"swap": True}, (FLAT, POSITIVE, POSITIVE + 1)),
    ],
    "TripletMarginWithDistanceLoss": [
        ((), (FLAT, POSITIVE, POSITIVE + 1)),
        ({"distance_function": nn.CosineSimilarity()}, (FLAT, POSITIVE, POSITIVE + 1)),
    ],
    "CrossEntropyLoss": [
        ((), (FLAT, CLASSES)),
        ({"label_smoothing": 0.1, "ignore_index": 3}, (FLAT, CLASSES)),
        ({"weight": POSITIVE[0]}, (FLAT, POSITIVE)),
    ],
    "NLLLoss": [((), (FLAT, CLASSES))],
    "NLLLoss2d": [((), (X2, torch.zeros(2, 6, 6, dtype=torch.long)))],
    "GaussianNLLLoss": [
        ((), (FLAT, POSITIVE, POSITIVE)),
        ({"full": True}, (FLAT, POSITIVE, POSITIVE)),
    ],
    "CTCLoss": [
        (
            (),
            (
                torch.randn(6, 2, 5).log_softmax(2),
                IDS.clamp(1),
                torch.tensor([6, 5]),
                torch.tensor([3, 2]),
            ),
        ),
    ],
    "AdaptiveLogSoftmaxWithLoss": [((4, 10, [3, 6]), (FLAT, torch.tensor([0, 7, 4])))],
    "Linear": [((4, 3), (FLAT,)), ((4, 3, False), (FLAT,))],
    "Bilinear": [((4, 4, 3), (FLAT, POSITIVE))],
    "NonDynamicallyQuantizableLinear": [((4, 3), (FLAT,))],
    "Embedding": [
        ((5, 4), (IDS,)),
        ({"num_embeddings": 5, "embedding_dim": 4, "padding_idx": 0, "max_norm": None}, (IDS,)),
    ],
    "EmbeddingBag": [
        ((5, 4), (IDS,)),
        ({"num_embeddings": 5, "embedding_dim": 4, "mode": "sum"}, (IDS,)),
        (
            {"num_embeddings": 5, "embedding_dim": 4, "mode": "max"},
            (IDS.flatten(), torch.tensor([0, 2])),
        ),
    ],
    "Dropout1d": [((), (X1,))],
    "Dropout2d": [((), (X2,))],
    "Dropout3d": [((), (X3,))],
    "Softmax2d": [((), (X2,))],
    "Threshold": [((0.1, 2.0), (FLAT,))],
    "Unflatten": [((1, (2, 2)), (FLAT,))],
    "CosineSimilarity": [((), (FLAT, POSITIVE))],
    "PairwiseDistance": [((), (FLAT, POSITIVE))],
    "ChannelShuffle": [((2,), (X2,))],
    "PixelShuffle": [((2,), (X2,))],
    "PixelUnshuffle": [((2,), (X2,))],
    "Fold": [(((4, 4), 2), (torch.randn(1, 8, 9),))],
    "Unfold": [((2,), (X2,))],
    "Upsample": [((None, 2.0), (X2,)), ({"size": (9, 9), "mode": "bilinear"}, (X2,))],
    "UpsamplingNearest2d": [((None, 2), (X2,))],
    "UpsamplingBilinear2d": [((None, 2), (X2,))],
    "LayerNorm": [((10,), (X1,)), (((4, 10), 1e-5, False), (X1,))],
    "RMSNorm": [((10,), (X1,))],
    "GroupNorm": [((2, 4), (X2,))],
    "LocalResponseNorm": [((2,), (X2,))],
    "CrossMapLRN2d": [((3,), (X2,))],
    "Conv1d": [
        ((4, 6, 3), (X1,)),
        (
            {
                "in_channels": 4,
                "out_channels": 4,
                "kernel_size": 3,
                "padding": "same",
                "padding_mode": "circular",
            },
            (X1,),
        ),
    ],
    "Conv2d": [
        ((4, 6, 3), (X2,)),
        (
            {
                "in_channels": 4,
                "out_channels": 4,
                "kernel_size": 3,
                "padding": 1,
                "groups": 2,
                "padding_mode": "reflect",
            },
            (X2,),
        ),
    ],
    "Conv3d": [((4, 6, 3), (X3,))],
    "ConvTranspose1d": [((4, 6, 3, 2), (X1,))],
    "ConvTranspose2d": [((4, 6, 3, 2), (X2,))],
    "ConvTranspose3d": [((4, 6, 3), (X3,))],
    "MultiheadAttention": [
        ((8, 2), (SEQUENCE, SEQUENCE, SEQUENCE)),
        (
            {"embed_dim": 8, "num_heads": 2, "batch_first": True, "bias": False},
            (SEQUENCE, SEQUENCE, SEQUENCE),
        ),
        (
            {
                "embed_dim": 8,
                "num_heads": 2,
                "kdim": 8,
                "vdim": 8,
                "add_bias_kv": True,
                "add_zero_attn": True,
            },
            (SEQUENCE, SEQUENCE, SEQUENCE),
        ),
    ],
    "TransformerEncoderLayer": [
        ((8, 2, 16, 0.0), (SEQUENCE,)),
        (
            {
                "d_model": 8,
                "nhead": 2,
                "dim_feedforward": 16,
                "dropout": 0.0,
                "batch_first": True,
                "norm_first": True,
                "activation": "gelu",
            },
            (SEQUENCE,),
        ),
    ],
    "TransformerDecoderLayer": [((8, 2, 16, 0.0), (SEQUENCE, SEQUENCE))],
    "TransformerEncoder": [
        ((nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), 2), (SEQUENCE,))
    ],
    "TransformerDecoder": [
        ((nn.TransformerDecoderLayer(8, 2, 16, 0.0), 2), (SEQUENCE, SEQUENCE))
    ],
    "Transformer": [((8, 2, 1, 1, 16, 0.0), (SEQUENCE, SEQUENCE))],
    "RNN": [
        ((8, 6), (SEQUENCE,)),
        (
            {
                "input_size": 8,
                "hidden_size": 6,
                "num_layers": 2,
                "nonlinearity": "relu",
                "bidirectional": True,
            },
            (SEQUENCE,),
        ),
    ],
    "LSTM": [
        ((8, 6), (SEQUENCE,)),
        ({"input_size": 8, "hidden_size": 6, "proj_size": 4, "batch_first": True}, (SEQUENCE,)),
        ((8, 6), (SEQUENCE, (torch.zeros(1, 5, 6), torch.ones(1, 5, 6)))),
    ],
    "GRU": [
        ((8, 6), (SEQUENCE,)),
        (
            {"input_size": 8, "hidden_size": 6, "bias": False, "batch_first": True},
            (SEQUENCE, torch.zeros(1, 2, 6)),
        ),
    ],
    "RNNCell": [((4, 6), (FLAT,)), ((4, 6, True, "relu"), (FLAT,))],
    "LSTMCell": [((4, 6), (FLAT,)), ((4, 6), (FLAT, (torch.zeros(3, 6), torch.ones(3, 6))))],
    "GRUCell": [((4, 6), (FLAT,))],
    "FractionalMaxPool2d": [((2, 3), (X2,))],
    "FractionalMaxPool3d": [((2, 2), (X3,))],
    "MaxUnpool1d": [((2,), _pool_indices(1))],
    "MaxUnpool2d": [((2,), _pool_indices(2))],
    "MaxUnpool3d": [((2,), _pool_indices(3))],
    "Sequential": [((nn.Linear(4, 4), nn.ReLU()), (FLAT,))],
    "ZeroPad1d": [((1,), (X1,))],
    "ZeroPad2d": [((1,), (X2,))],
    "ZeroPad3d": [((1,), (X3,))],
    "LinearCrossEntropyLoss": [((4, 5), (FLAT, CLASSES))],
    **{
        f"{kind}{n}d": [(arguments, (x,)) for arguments in rows]
        for n, x in ((1, X1), (2, X2), (3, X3))
        for kind, rows in {
            "AvgPool": [(2,)],
            "MaxPool": [(2,), {"kernel_size": 2, "return_indices": True}],
            "LPPool": [(2, 2)],
            "AdaptiveAvgPool": [(2,)],
            "AdaptiveMaxPool": [(2,), (2, True)],
            "BatchNorm": [
                (4,),
                {"num_features": 4, "momentum": None},
                {"num_features": 4, "track_running_stats": False},
            ],
            "InstanceNorm": [
                (4,),
                {"num_features": 4, "affine": True, "track_running_stats": True},
            ],
            "ConstantPad": [(1, 2.0)],
            "CircularPad": [(1,)],
            "ReflectionPad": [(1,)],
            "ReplicationPad": [(1,)],
        }.items()
    },
}
# Containers and bases, and what needs several processes or devices.
NOT_CALLED = set(
    "Module Container ModuleDict ModuleList ParameterDict ParameterList SyncBatchNorm DataParallel"
    " RNNBase RNNCellBase".split()
)
# What needs a tensor's data (torch.compile breaks there too), and recurrent layers in training.
DATA_DEPENDENT = {"CrossMapLRN2d", "GaussianNLLLoss", "CTCLoss", "AdaptiveLogSoftmaxWithLoss"}
BREAKS_IN_TRAINING = {"RNN", "LSTM", "GRU"}


def _cases():
    for name, rows in CASES.items():
        if hasattr(nn, name):
            for index, (arguments, call) in enumerate(rows):
                yield pytest.param(name, arguments, call, id=f"{name}-{index}")


def _make(name, arguments):
    torch.manual_seed(0)
    cls = getattr(nn, name)
    return cls(**arguments) if isinstance(arguments, dict) else cls(*arguments)


def _total(value):
    if isinstance(value, torch.Tensor):
        return (
            value.sum() if value.is_floating_point() else value.new_zeros((), dtype=torch.float)
        )
    return sum(_total(item) for item in value if item is not None)


def _results(module, run, call, requires_grad):
    call = copy.deepcopy(call)
    if requires_grad and isinstance(call[0], torch.Tensor) and call[0].is_floating_point():
        call[0].requires_grad_()
    torch.manual_seed(1)
    result = run(*call)
    total = _total(result)
    if total.requires_grad:
        total.backward()
    gradients = [p.grad for p in module.parameters()] + [getattr(call[0], "grad", None)]
    if hasattr(result, "_fields"):
        result = tuple(result)
    return result, gradients, dict(module.state_dict())


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize(("name", "arguments", "call"), list(_cases()))
def test_module_is_captured_whole(name, arguments, call, training):
    module = _make(name, arguments).train(training)
    breaks = name in DATA_DEPENDENT or (training and name in BREAKS_IN_TRAINING)
    breaks = breaks or (training and getattr(module, "momentum", 0) is None)
    eager, other = copy.deepcopy(module), copy.deepcopy(module)
    counter = CountingBackend()
    compiled = minidynamo.compile(other, backend=counter, fullgraph=not breaks)
    with torch.set_grad_enabled(training):
        for _ in range(2):
            expected = _results(eager, eager, call, training)
            actual = _results(other, compiled, call, training)
            assert_same(expected, actual)
    if not breaks:
        assert len(counter.graphs) <= 1


def test_every_class_has_a_case():
    classes = {
        name
        for name, value in vars(nn).items()
        if inspect.isclass(value)
        and issubclass(value, nn.Module)
        and not name.startswith("Lazy")
    }
    assert classes - set(CASES) == NOT_CALLED
