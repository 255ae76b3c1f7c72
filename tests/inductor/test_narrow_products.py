"""Products of 16-bit floats on processors without instructions for them: called in float32."""

import pytest
import torch
import torch.nn.functional as F

import minidynamo
from minidynamo import events
from minidynamo.inductor.passes import narrow_products

NARROW = [torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def plain_processor(monkeypatch):
    monkeypatch.setattr(narrow_products, "has_instructions", lambda dtype: False)
    with minidynamo.config.patch(raise_internal_errors=True):
        yield


def operands(dtype, *sizes):
    return [torch.randn(*size).to(dtype) for size in sizes]


def results(fn, args, dtype=None):
    """`fn`'s result and the arguments' gradients."""
    args = [arg.detach().clone().to(dtype or arg.dtype).requires_grad_() for arg in args]
    out = fn(*args)
    (out * torch.arange(out.numel()).view(out.shape).cos().to(out.dtype)).sum().backward()
    return [out.detach(), *(arg.grad for arg in args)]


def output_code(fn, *args):
    texts = []
    with events.subscribe(lambda event: texts.append(event.text), events.OutputCodeEvent):
        fn(*args)
    return "\n".join(texts)


def assert_as_good(fn, args, dynamic=None):
    """No further from float64 than eager, an ulp aside; laid out as eager's."""
    compiled = minidynamo.compile(fn, fullgraph=True, dynamic=dynamic)
    exact, eager = results(fn, args, torch.float64), results(fn, args)
    for ours, theirs, right in zip(results(compiled, args), eager, exact, strict=True):
        assert (ours.dtype, ours.shape, ours.stride()) == (
            theirs.dtype,
            theirs.shape,
            theirs.stride(),
        )
        ulp = torch.finfo(ours.dtype).eps * right.abs().max()
        error = (ours.double() - right).abs().max()
        assert error <= 1.5 * (theirs.double() - right).abs().max() + ulp


def linear(x, w, b):
    return F.gelu(F.linear(x, w, b))


def projections(x, w, b):
    return x @ w + (x @ w.mT) * b


def batched(x, w):
    return torch.baddbmm(x @ w, x, w, beta=0.5, alpha=2)


def convolution(x, w, b):
    return torch.relu(F.conv2d(x, w, b, stride=2, padding=1))


def transposed(x, w):
    return F.conv_transpose2d(x, w, stride=2, output_padding=1)


def attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def masked(q, k, v):
    mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


CASES = {
    "linear": (linear, (2, 40, 64), (48, 64), (48,)),
    "projections": (projections, (40, 64), (64, 64), (64,)),
    "batched": (batched, (3, 40, 32), (3, 32, 32)),
    "convolution": (convolution, (2, 8, 12, 12), (16, 8, 3, 3), (16,)),
    "grouped": (lambda x, w: F.conv1d(x, w, groups=4), (2, 8, 30), (8, 2, 3)),
    "transposed": (transposed, (2, 8, 9, 9), (8, 6, 3, 3)),
    "attention": (attention, (2, 4, 16, 8), (2, 4, 16, 8), (2, 4, 16, 8)),
    "masked": (masked, (2, 4, 16, 8), (2, 4, 16, 8), (2, 4, 16, 8)),
}


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients(case, dtype):
    fn, *sizes = CASES[case]
    assert_as_good(fn, operands(dtype, *sizes))


@pytest.mark.parametrize("case", ["linear", "convolution", "attention"])
def test_sizes_that_change(case):
    fn, *sizes = CASES[case]
    assert_as_good(fn, operands(torch.bfloat16, *sizes), dynamic=True)


def test_channels_last():
    x, w, b = operands(torch.bfloat16, *CASES["convolution"][1:])
    assert_as_good(convolution, [x.to(memory_format=torch.channels_last), w, b])


def test_operands_of_several_products_are_converted_once():
    x, w = operands(torch.bfloat16, (64, 64), (64, 64))
    text = output_code(minidynamo.compile(lambda x, w: (x @ w, x @ w.mT)), x, w)
    # Kernels are read by their arguments: 16 bits in, float32 out.
    assert text.count("const u16* __restrict") <= 2
    assert "(float*)ptrs[1]" in text and "(float*)ptrs[2]" not in text


def test_small_ones_and_vectors_stay():
    def fn(x, w):
        return x @ w.mT

    text = output_code(minidynamo.compile(fn), *operands(torch.bfloat16, (2, 2), (2, 2)))
    assert "aten.mm" in text and 'extern "C"' not in text
    text = output_code(minidynamo.compile(fn), *operands(torch.bfloat16, (1, 256), (256, 256)))
    assert text.count('extern "C"') == 1 and "empty" in text and "float32[" not in text


def test_other_dtypes_beside_are_refused():
    x, w = operands(torch.bfloat16, (32, 64), (64, 64))
    with pytest.raises(RuntimeError, match="same dtype"):
        minidynamo.compile(lambda x, w: x @ w)(x, w.float())
    with pytest.raises(RuntimeError):
        minidynamo.compile(lambda x, w: F.conv1d(x[None], w[:, :32, None]))(x, w.half())


def test_overflow_rounds_to_infinity():
    x = torch.full((32, 64), 60000.0, dtype=torch.float16)
    w = torch.eye(64, dtype=torch.float16) * 2
    assert minidynamo.compile(lambda x, w: x @ w)(x, w).isinf().all()


def test_an_operand_overwritten_in_between():
    def fn(x, w):
        first = x @ w
        x.mul_(2)
        return first, x @ w

    x, w = operands(torch.bfloat16, (32, 64), (64, 64))
    ours, theirs = x.clone(), x.clone()
    for a, b in zip(minidynamo.compile(fn)(ours, w), fn(theirs, w), strict=True):
        torch.testing.assert_close(a, b, rtol=2e-2, atol=1e-2)
    assert ours.equal(theirs)


def test_frozen_weights_are_converted_once():
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64)
    )
    model = model.to(torch.bfloat16).eval()
    x = torch.randn(32, 64).to(torch.bfloat16)
    compiled = minidynamo.compile(model, options={"freezing": True})
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(x), model(x), rtol=2e-2, atol=1e-2)
            model[0].weight.mul_(0.5)


def test_autocast():
    model = torch.nn.Sequential(torch.nn.Conv2d(4, 8, 3), torch.nn.ReLU(), torch.nn.Flatten())
    x = torch.randn(2, 4, 8, 8)
    with torch.autocast("cpu", torch.bfloat16):
        ours, theirs = minidynamo.compile(model)(x), model(x)
    assert ours.dtype == theirs.dtype == torch.bfloat16
    torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-2)


def test_in_autocast():
    """The operators' own casts are in the graph: a plan with others raised, and eager ran again."""
    calls = []

    @torch.library.custom_op("minidynamo_test::counted", mutates_args=())
    def counted(x: torch.Tensor) -> torch.Tensor:
        calls.append(x.dtype)
        return x.clone()

    counted.register_fake(torch.empty_like)
    x = torch.randn(128, 96).to(torch.bfloat16)

    def product(x):
        return counted(x) @ x.mT

    with torch.autocast("cpu"):
        out = minidynamo.compile(product, fullgraph=True)(x)
    assert calls == [torch.bfloat16]
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out, product(x), rtol=2e-2, atol=0.1)
