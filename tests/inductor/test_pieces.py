"""Functions of every element of a concatenation are computed where its pieces are written."""

import pytest
import torch
import torch.nn.functional as F

import minidynamo
from minidynamo.inductor import metrics


def pieces(*shapes, dtype=torch.float32):
    torch.manual_seed(0)
    return tuple(torch.randn(shape).to(dtype) for shape in shapes)


ROWS = pieces((5, 33), (5, 16), (5, 1))
IMAGES = tuple(
    x.to(memory_format=torch.channels_last) for x in pieces((2, 3, 4, 4), (2, 5, 4, 4))
)
PROGRAMS = {
    "relu": (lambda *x: F.relu(torch.cat(x, 1)), ROWS),
    "chain": (lambda *x: (torch.cat(x, -1) * 2 + 1).sigmoid().sub(0.5), ROWS),
    "gelu": (lambda *x: F.gelu(torch.cat(x, 1), approximate="tanh"), ROWS),
    "cast": (lambda *x: torch.cat(x, 1).double() / 3, ROWS),
    "rows": (lambda *x: torch.cat(x).exp(), pieces((3, 4), (2, 4))),
    "one piece twice": (lambda x: torch.cat([x, x], 1).clamp(-1, 0.5), pieces((3, 4))),
    "empty piece": (lambda *x: torch.cat(x).tanh(), pieces((0, 4), (3, 4))),
    "channels last": (lambda *x: torch.cat(x, 1).relu(), IMAGES),
    "integers": (lambda *x: torch.cat(x, 1) * 0.5, pieces((3, 4), (3, 5), dtype=torch.int64)),
    # These stay: other dtypes, another reader, an operand that is a tensor.
    "dtypes": (lambda a, b: torch.cat([a, b.long()], 1).mul(0.3), pieces((3, 4), (3, 5))),
    "two readers": (lambda *x: (torch.cat(x, 1).relu(), torch.cat(x, 1)), ROWS),
    "tensor": (lambda a, b: torch.cat([a, b], 1) * a[:, :1], pieces((3, 4), (3, 5))),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_functions_of_concatenations(name, dynamic):
    fn, args = PROGRAMS[name]
    compiled = minidynamo.compile(fn, fullgraph=True, dynamic=dynamic)
    torch.testing.assert_close(compiled(*args), fn(*args))
    actual, expected = compiled(*args), fn(*args)
    if isinstance(expected, torch.Tensor):
        assert (actual.stride(), actual.dtype) == (expected.stride(), expected.dtype)


def test_no_pass_of_its_own():
    a, b = pieces((8, 64), (8, 32))
    metrics.reset()
    minidynamo.compile(lambda a, b: torch.cat([a, b], 1).mul(2).relu())(a, b)
    assert metrics.generated_kernel_count == 2


def test_gradients():
    def fn(a, b):
        return torch.cat([a.sin(), b], 1).mul(2).tanh()

    a, b = (x.requires_grad_() for x in pieces((8, 6), (8, 3)))
    found = []
    for run in (fn, minidynamo.compile(fn)):
        found.append(torch.autograd.grad(run(a, b).sum(), [a, b]))
    torch.testing.assert_close(*found)


STACKED = pieces(*[(4, 5)] * 3)
READERS = {  # and how many loops compute them
    "unbind": (lambda *x: [p * 2 for p in torch.stack(x).unbind()], 3),
    "last": (lambda *x: torch.stack(x, -3).select(0, -1).sin(), 1),
    "numbers": (lambda *x: torch.stack([p.sum() for p in x])[1] + x[0], 2),
    # These stay: other dimensions, another dtype, strides, what reaches the caller.
    "inner": (lambda *x: torch.stack(x, 1).select(1, -1).sin(), 4),
    "dimension": (lambda *x: torch.stack(x).select(1, 2).sin(), 4),
    "dtype": (lambda a, *x: torch.stack([a.double(), *x])[1].sin(), 4),
    "strides": (lambda *x: torch.stack([p.t() for p in x])[1].sin(), 4),
    "result": (lambda *x: torch.stack([p + 1 for p in x]).unbind(), 3),
    "view of it": (lambda *x: torch.stack([p + 1 for p in x])[1][:2], 3),
}


@pytest.mark.parametrize("name", READERS)
def test_reading_a_stack(name):
    fn, loops = READERS[name]
    compiled = minidynamo.compile(fn, fullgraph=True)
    metrics.reset()
    actual, expected = compiled(*STACKED), fn(*STACKED)
    torch.testing.assert_close(actual, expected)
    assert metrics.ir_nodes_pre_fusion == loops
    if not isinstance(actual, torch.Tensor):
        memory = [len({x.untyped_storage().data_ptr() for x in y}) for y in (actual, expected)]
        assert memory[0] == memory[1]


def test_a_stack_of_what_is_written_later():
    def fn(a, b):
        both = torch.stack([a, b])
        a.mul_(2)
        return both[0] + 1

    x, y = (pieces((3, 4))[0] for _ in range(2))
    expected = x + 1
    torch.testing.assert_close(minidynamo.compile(fn)(x, y), expected)


def test_a_product_that_is_read_through_another_view():
    """It is not written into the concatenation in place of memory of its own."""

    def fn(x):
        y = (x @ x.T).diagonal()
        return torch.column_stack([y, y + 2])

    for shape in ((1, 0), (1, 5), (3, 5)):
        x = torch.randn(shape)
        with minidynamo.config.patch(raise_internal_errors=True):
            actual = minidynamo.compile(fn, fullgraph=True, dynamic=False)(x)
        torch.testing.assert_close(actual, fn(x))
