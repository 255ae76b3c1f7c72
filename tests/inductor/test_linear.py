"""Matrix products large enough for oneDNN, of operands with all kinds of strides."""

import pytest
import torch

import minidynamo

OPERANDS = {
    "every second row": lambda: (torch.randn(300, 400).t()[::2], torch.randn(300, 700)),
    "every second column": lambda: (torch.randn(200, 600)[:, ::2], torch.randn(300, 700)),
    "gaps on the right": lambda: (torch.randn(200, 300), torch.randn(1400, 600)[::2, ::2].t()),
    "one row": lambda: (torch.randn(1, 300).expand(200, 300), torch.randn(300, 700)),
    "transposed": lambda: (torch.randn(300, 200).t(), torch.randn(700, 300).t()),
    "rows apart": lambda: (torch.randn(200, 900)[:, 300:600], torch.randn(300, 700)),
}


@pytest.mark.parametrize("backend", ["onednn", "aten"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", OPERANDS)
def test_strides(name, dynamic, backend):
    a, b = OPERANDS[name]()
    compiled = minidynamo.compile(torch.mm, dynamic=dynamic, options={"cpu_linear": backend})
    torch.testing.assert_close(compiled(a, b), a @ b, rtol=1e-4, atol=1e-4)
