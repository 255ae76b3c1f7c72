"""Makes `training_testing` importable; every test starts with grad mode as a program has it."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import torch  # noqa: E402


@pytest.fixture(autouse=True)
def _grad_mode():
    yield
    leaked = not torch.is_grad_enabled()
    torch.set_grad_enabled(True)
    assert not leaked
