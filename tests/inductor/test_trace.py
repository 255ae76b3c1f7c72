"""What a user can look at: the folder of a compiled graph, code with the program's own lines."""

import pytest
import torch

import minidynamo
from minidynamo import events
from minidynamo.inductor import config
from minidynamo.inductor.origins import operators, origin_of, source_lines

FILES = {"graph.py", "loops.txt", "kernels.txt"}


def program(x, w):
    y = torch.relu(x @ w)
    return y.softmax(-1).sum()


def trained(folder, **options):
    options = {"trace.enabled": True, "trace.debug_dir": str(folder), **options}
    compiled = minidynamo.compile(program, options=options)
    x = torch.randn(4, 8, requires_grad=True)
    compiled(x, torch.randn(8, 160)).backward()
    (made,) = folder.iterdir()
    return made


def test_folder_of_forward_and_backward(tmp_path):
    made = trained(tmp_path)
    both = {f"{kind}_{name}" for kind in ("forward", "backward") for name in FILES}
    others = {"fx_graph.py", "fusion.txt", "schedule.txt", "output_code.txt", "timing.txt"}
    assert {path.name for path in made.iterdir()} == both | others
    assert "softmax" in (made / "fx_graph.py").read_text()
    assert "torch.ops.aten.mm.default" in (made / "forward_graph.py").read_text()
    assert "test_trace.py" in (made / "forward_kernels.txt").read_text()
    assert "return y.softmax(-1).sum()" in (made / "backward_kernels.txt").read_text()
    assert "fused" in (made / "fusion.txt").read_text()
    schedule = (made / "schedule.txt").read_text()
    assert "call: mm\n       test_trace.py:" in schedule and "backward graph: " in schedule
    assert "not fused, operators that are called run alone: 1 + 2" in schedule
    code = (made / "output_code.txt").read_text()
    assert code.count("def run(") == 2
    assert 'extern "C" void' in code
    assert "kernel_compile" in (made / "timing.txt").read_text()


def test_diagram(tmp_path):
    made = trained(tmp_path, **{"trace.graph_diagram": True})
    text = (made / "forward_diagram.dot").read_text()
    assert text.startswith("digraph plan {")
    assert 'label="aten.mm.default"' in text
    assert "s0 -> s1" in text


def test_every_graph_has_its_folder(tmp_path):
    with config.patch(trace_enabled=True, trace_debug_dir=str(tmp_path)):
        compiled = minidynamo.compile(lambda x: x.sin() + 1)
        compiled(torch.ones(3))
        compiled(torch.ones(3, dtype=torch.float64))
    assert len(list(tmp_path.iterdir())) == 2


def test_nothing_is_written_without_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    minidynamo.compile(lambda x: x.sin())(torch.ones(3))
    assert not list(tmp_path.iterdir())


def test_code_names_the_users_lines():
    texts = []
    with events.subscribe(lambda event: texts.append(event.text), events.OutputCodeEvent):
        minidynamo.compile(program)(torch.randn(4, 8), torch.randn(8, 160))
    (text,) = texts
    assert "aten.mm.default, test_trace.py:" in text
    kernel = text[text.index("// ----") :]
    assert "y = torch.relu(x @ w)" in kernel[: kernel.index('extern "C"')]


def test_kernels_of_other_lines_are_the_same():
    def twice(x, y):
        a = (x * 2).softmax(-1)
        b = (y * 2).softmax(-1)
        return a, torch.mm(a, b.t()), b

    texts = []
    with events.subscribe(lambda event: texts.append(event.text), events.OutputCodeEvent):
        minidynamo.compile(twice)(torch.randn(4, 8), torch.randn(5, 8))
    assert texts


@pytest.mark.parametrize("stack", [None, "", "no frames"])
def test_origin_without_a_line(stack):
    node = torch.fx.Graph().create_node("call_function", torch.relu)
    node.meta["stack_trace"] = stack
    assert operators([origin_of(node)]) == [str(torch.relu)]
    assert source_lines([origin_of(node)]) == []


def test_the_backward_is_compiled_under_the_flags_of_the_forward():
    seen = []
    options = {"cpu_linear": "aten"}
    compiled = minidynamo.compile(program, options=options)
    x = torch.randn(4, 8, requires_grad=True)
    loss = compiled(x, torch.randn(8, 160))
    with events.subscribe(lambda _: seen.append(config.cpu_linear), events.OutputCodeEvent):
        loss.backward()
    assert seen == ["aten"]
    assert config.cpu_linear == "auto"
