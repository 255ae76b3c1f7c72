"""Kernels with checks, random numbers and scans, compiled by Triton for GPUs."""

import os

import pytest
import torch
import torch.nn.functional as F
from inductor_testing import compiled

pytest.importorskip("triton")
from triton_testing import assemble

from minidynamo import events
from minidynamo.inductor.codegen import assemble as assembling
from minidynamo.inductor.codegen.triton import codegen_triton
from minidynamo.inductor.runtime.triton_launch import find_triton_folder

X = torch.randn(6, 5, 40)
LONG = torch.randn(3, 5000)
PLACES = torch.tensor([0, 5, -6, 3])
WEIGHT = torch.randn(7, 33)
CASES = {
    "index": (lambda x, i: x[i] + 1, X, PLACES),
    "embedding": (lambda w, i: F.embedding(i, w).sum(-1), WEIGHT, PLACES.abs()),
    "gather": (lambda x, i: x[0].gather(0, i.abs()[:, None].expand(4, 40) % 5), X, PLACES),
    "draws": (lambda x: (torch.rand(9), torch.randn(9), torch.randint(5, (9,))), X),
    "doubles": (lambda x: torch.randn(9, dtype=torch.float64), X),
    "dropout": (lambda x: F.dropout(x, 0.4) + 1, X),
    "sum": (lambda x: x.cumsum(-1), X),
    "long sum": (lambda x: x.cumsum(-1) * 2, LONG),
    "largest": (lambda x: x.cummax(-1), X),
    "reflected": (lambda x: F.pad(x, (3, 2), mode="reflect"), X),
}


def test_without_a_folder_for_triton(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "file" / "below"))
    find_triton_folder()
    folder = os.environ["TRITON_CACHE_DIR"]
    assert not folder.startswith(str(tmp_path))
    find_triton_folder()
    assert os.access(folder, os.W_OK)
    assert os.environ["TRITON_CACHE_DIR"] == folder


@pytest.mark.parametrize("name", CASES)
def test_compiles(name, monkeypatch):
    specs = []
    original = assembling.codegen_cpp

    def record(spec, *args):
        specs.append(spec)
        return original(spec, *args)

    monkeypatch.setattr(assembling, "codegen_cpp", record)
    fn, *args = CASES[name]
    with events.subscribe(
        lambda _: None, events.KernelEvent
    ):  # so that no plan is found on disk
        compiled(fn, *args)
    assert specs
    for number, spec in enumerate(specs):
        texts = assemble(codegen_triton(spec, f"kernel{number}"))
        fails = any(node.op == "check" for node in spec.body.nodes)
        assert all(("__assertfail" in text) == fails for text in texts)
