"""Quantisation and back, as torch.ao writes it into graphs: one kernel for the elements, at most
one for the inverses of scales, and the numbers of eager.
"""

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # the operators

import minidynamo
from minidynamo.inductor import metrics

library = torch.ops.quantized_decomposed
INT8 = (-128, 127, torch.int8)
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def of_tensor(x, scale, zero_point, out_dtype):
    q = library.quantize_per_tensor(x, scale, zero_point, *INT8)
    return q, library.dequantize_per_tensor(q, scale, zero_point, *INT8, out_dtype=out_dtype)


def of_channels(x, scales, zero_points, axis, out_dtype):
    q = library.quantize_per_channel(x, scales, zero_points, axis, *INT8)
    back = library.dequantize_per_channel
    return (
        q,
        back(q, scales, zero_points, axis, *INT8, out_dtype=out_dtype),
        back(q, scales, None, axis, *INT8, out_dtype=out_dtype),
    )


def of_rows(x, scales, zero_points):
    q = library.quantize_per_token(x, scales, zero_points, *INT8)
    return q, library.dequantize_per_token(q, scales, zero_points, *INT8, torch.float32)


def check_calls(fn, *args, kernels=1, dynamic=None):
    metrics.reset()
    actual = minidynamo.compile(fn, fullgraph=True, dynamic=dynamic)(*args)
    for left, right in zip(actual, fn(*args), strict=True):
        assert left.stride() == right.stride()
        torch.testing.assert_close(left, right, rtol=0, atol=0)
    assert metrics.generated_kernel_count <= kernels
    assert metrics.extern_calls == 0


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("out_dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_tensor(dtype, out_dtype, dynamic):
    x = torch.linspace(-2, 2, 60).reshape(5, 12).to(dtype)
    check_calls(of_tensor, x, 0.0137, 7, out_dtype, dynamic=dynamic)


@pytest.mark.parametrize("shape", [(), (1,)])
def test_numbers_in_tensors_are_not_read(shape):
    x = torch.linspace(-2, 2, 60).to(torch.bfloat16)
    scale, zero_point = torch.full(shape, 0.0137), torch.full(shape, 7)
    check_calls(of_tensor, x, scale, zero_point, torch.float16, kernels=2)


def test_a_number_of_its_own():
    scale, zero_point = torch.tensor(0.0137), torch.tensor(7)
    x = torch.tensor(0.3)
    actual = minidynamo.compile(of_tensor)(x, scale, zero_point, None)
    torch.testing.assert_close(actual, of_tensor(x, scale, zero_point, None), rtol=0, atol=0)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("of", [torch.float32, torch.float64])
@pytest.mark.parametrize("dtype", DTYPES)
def test_channels(dtype, of, axis):
    x = torch.linspace(-2, 2, 60).reshape(2, 5, 6).to(dtype)
    size = x.shape[axis]
    scales = torch.linspace(0.01, 0.02, size, dtype=of)
    zero_points = torch.arange(size, dtype=torch.int64) - 2
    check_calls(of_channels, x, scales, zero_points, axis, None, kernels=2)


@pytest.mark.parametrize("dynamic", [None, True])
def test_rows(dynamic):
    x = torch.linspace(-2, 2, 60).reshape(5, 12)
    scales, zero_points = torch.linspace(0.01, 0.02, 5)[:, None], torch.arange(5)[:, None]
    check_calls(of_rows, x, scales, zero_points, kernels=2, dynamic=dynamic)
