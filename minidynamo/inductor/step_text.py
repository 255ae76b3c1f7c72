"""Operations and kernels as text, for the folder of `trace.enabled`."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from minidynamo.inductor.codegen.kernel import Kernel
from minidynamo.inductor.ir import ComputedOp, ExternOp
from minidynamo.inductor.origins import operators, source_lines

Step = ComputedOp | ExternOp | Kernel


def steps_text(steps: Iterable[Step]) -> Callable[[], str]:
    """Operations or kernels: what they come from, what they compute."""
    return lambda: "\n".join(map(_step_text, steps))


def _step_text(step: Step) -> str:
    if isinstance(step, ExternOp):
        reads = ", ".join(view.buffer.name for view in step.inputs)
        return f"{_written(step)} = {step.op}({reads})\n"
    body, origins = (
        step.body if isinstance(step, ComputedOp) else step.spec.body,
        _origins(step),
    )
    title = f"{_written(step)}: {', '.join(operators(origins))}"
    lines = [f"  # {line}" for line in source_lines(origins)]
    return "\n".join([title, *lines, *(f"  {line}" for line in body.text().splitlines()), ""])


def _origins(step: Step) -> tuple[str, ...]:
    return step.spec.origins if isinstance(step, Kernel) else step.origins


def _names(step: Step) -> tuple[list[str], list[str]]:
    """Buffers that it reads, and that it writes."""
    if isinstance(step, Kernel):
        pairs = list(zip(step.buffers, step.spec.args, strict=True))
        taken = {new.name: old.name for new, old in step.reuses}
        reads = [taken.get(b.name, b.name) for b, arg in pairs if arg.role != "out"]
        return reads, [buffer.name for buffer, arg in pairs if arg.role != "in"]
    if isinstance(step, ExternOp):
        written = [buffer.name for buffer in step.output_buffers()]
        return [view.buffer.name for view in step.inputs], [*written, *step.mutates]
    return sorted(step.reads()), [buffer.name for buffer in step.outputs]


def _written(step: Step) -> str:
    return ", ".join(_names(step)[1]) or "()"


def diagram(steps: Iterable[Step]) -> Callable[[], str]:
    """Steps as boxes, buffers as arrows, in the language of Graphviz."""

    def text() -> str:
        lines = ["digraph plan {", "  node [shape=box];"]
        made: dict[str, str] = {}
        for number, step in enumerate(steps):
            reads, writes = _names(step)
            label = "\\n".join(operators(_origins(step))) or f"step {number}"
            lines.append(f'  s{number} [label="{label}"];')
            for name in dict.fromkeys(reads):
                lines.append(f'  {made.get(name, name)} -> s{number} [label="{name}"];')
            made.update(dict.fromkeys(writes, f"s{number}"))
        return "\n".join([*lines, "}", ""])

    return text
