"""The angle of real numbers is computed in kernels, that of complex ones by the operator."""

import pytest
import torch

import minidynamo
from minidynamo.inductor import metrics

SPECIAL = [float("nan"), -0.0, 0.0, -1.5, 2.5, float("inf"), -float("inf")]


@pytest.mark.parametrize(
    "values",
    [
        *(
            torch.tensor(SPECIAL, dtype=dtype)
            for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16)
        ),
        torch.tensor([-2, 0, 3]),
        torch.tensor([-2, 0, 3], dtype=torch.int8),
        torch.tensor([True, False]),
        torch.tensor([1 - 2j, -3 + 0j]),
    ],
    ids=lambda values: str(values.dtype),
)
def test_angle(values):
    metrics.reset()
    actual = minidynamo.compile(lambda x: torch.angle(x) * 2, fullgraph=True)(values)
    torch.testing.assert_close(actual, torch.angle(values) * 2, equal_nan=True)
    assert metrics.extern_calls == int(values.is_complex())
