"""torch's own compiler is imported when it is used, and works then as if it had been there."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
START = """
import sys, torch, minidynamo
x = torch.randn(4, 8)
layer = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.GELU())
f = minidynamo.compile(lambda x: layer(x).softmax(-1) * 2, backend="BACKEND")
with torch.no_grad():
    expected = layer(x).softmax(-1) * 2
    torch.testing.assert_close(f(x), expected)
"""
NOT_THERE = "assert 'torch._dynamo.convert_frame' not in sys.modules\n"


def run(program: str, backend: str = "inductor") -> None:
    text = START.replace("BACKEND", backend) + NOT_THERE + program
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_a_first_call_does_not_import_it(backend):
    run("assert 'torch._inductor' not in sys.modules and 'triton' not in sys.modules", backend)


def test_an_activation_does_not_import_torch_distributed():
    """Run as parts with a number among the operands, torch 2.13 does so: 0.2 s."""
    text = (
        "import sys, torch, minidynamo\n"
        "f = lambda x: torch.relu(x * x + x).sin()\n"
        "x = torch.randn(8)\n"
        "assert torch.allclose(minidynamo.compile(f)(x), f(x))\n"
        "assert 'torch.distributed.tensor' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


USES = {
    "attribute": "assert torch._dynamo.list_backends()",
    "import": "import torch._dynamo.utils\nassert torch._dynamo.utils.counters is not None",
    "from import": "from torch._dynamo import reset\nreset()",
    "class": "from torch._dynamo.source import LocalSource\nassert LocalSource('x').name",
    "disable": "g = torch.compiler.disable(f)\nassert g(x).shape == x.shape",
    "flag": "import torch._dynamo.config as c\nc.recompile_limit = 3\n"
    "import torch._dynamo.utils\nassert torch._dynamo.config.recompile_limit == 3",
    "validator": "from torch.fx.experimental.validator import ValidationException\n"
    "from torch._dynamo.exc import TorchDynamoException\n"
    "assert issubclass(ValidationException, TorchDynamoException)",
    "torch.compile": "g = torch.compile(lambda x: x.sin() + layer(x), backend='eager')\n"
    "torch.testing.assert_close(g(x), x.sin() + layer(x))",
    "gradients": "f(x).sum().backward()\nassert layer[0].weight.grad is not None",
    "dynamic": "g = minidynamo.compile(lambda x: x.sin() * x.shape[0], dynamic=True)\n"
    "for n in 3, 5: torch.testing.assert_close(g(x[:n]), x[:n].sin() * x[:n].shape[0])",
    "stance": "g = minidynamo.compile(lambda: torch.compiler.is_compiling(), backend='eager')\n"
    "told = [g()]\nwith torch.compiler.set_stance('force_eager'): told.append(g())\n"
    "assert told == [True, False]",
    "export": "torch.export.export(layer, (x,)).module()(x)",
}


@pytest.mark.parametrize("use", USES)
def test_it_is_there_when_used(use):
    backend = "inductor" if use == "gradients" else "eager"
    run(USES[use] + "\nassert type(sys.modules['torch._dynamo']) is type(sys)", backend)


def test_modes_are_off_while_it_is_imported():
    """Something of it may be needed in the midst of tracing."""
    run(
        "from minidynamo.deferred_torch import fake_mode\n"
        "part = x[1:].t()\n"
        "with fake_mode() as mode:\n"
        "    y = mode.from_tensor(part)\n"
        "    z = torch._dynamo.utils.counters, y.sin()\n"
        "assert z[1].shape == (8, 3)\n"
        "assert torch.compile(torch.sin, backend='eager')(x).shape == x.shape"
    )


def test_threads_wait_for_it():
    run(
        "import threading\n"
        "found = []\n"
        "look = lambda: found.append(torch._dynamo.OptimizedModule.__name__)\n"
        "threads = [threading.Thread(target=look) for _ in range(4)]\n"
        "for t in threads: t.start()\n"
        "for t in threads: t.join()\n"
        "assert found == ['OptimizedModule'] * 4, found"
    )


THREADS = """
import threading, torch, minidynamo
functions = [eval(f"lambda x: x.sin() + {i}") for i in range(8)]
start, errors = threading.Barrier(8), []

def first_call(f):
    compiled = minidynamo.compile(f, backend="eager", fullgraph=True)
    start.wait()
    try:
        assert torch.equal(compiled(torch.ones(3)), f(torch.ones(3)))
    except Exception as error:
        errors.append(error)

threads = [threading.Thread(target=first_call, args=(f,)) for f in functions]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert not errors, errors
"""


# FakeTensorMode alone, entered in a third thread, ends a process with such a build (torch 2.11).
@pytest.mark.skipif(
    torch.version.cuda is not None and not torch.cuda.is_available(),
    reason="torch's fake tensors in several threads need a GPU with a build for CUDA",
)
def test_first_calls_of_several_threads():
    done = subprocess.run(
        [sys.executable, "-c", THREADS], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


SAME_FUNCTION = THREADS.replace('eval(f"lambda x: x.sin() + {i}")', "same").replace(
    "import threading, torch, minidynamo",
    "import threading, torch, minidynamo\nsame = lambda x: x.sin()",
)


@pytest.mark.skipif(
    torch.version.cuda is not None and not torch.cuda.is_available(),
    reason="torch's fake tensors in several threads need a GPU with a build for CUDA",
)
def test_threads_that_call_one_function_compile_it_once():
    program = SAME_FUNCTION + "assert len(minidynamo._C.entries(same.__code__)) == 1\n"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
