"""Steps of a plan as lines of readable pseudo-Python, for the `output_code` log.

The text is a view, never parsed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from minidynamo.inductor.codegen import plan_steps as ps

Names = Callable[[ps.Slot], str]


def render_arg(arg: Any, name: Names) -> str:
    """One argument (or output) as text."""
    match arg:
        case ps.Ref(slot):
            return name(slot)
        case ps.Expr(text) | ps.Define(text):
            return text
        case ps.Dtype(text) | ps.Layout(text) | ps.MemoryFormat(text):
            return text
        case ps.Device(text):
            return repr(text)
        case tuple():
            return f"[{', '.join(render_arg(item, name) for item in arg)}]"
    return repr(arg)


def render_out(out: ps.Out, name: Names) -> str:
    """One place of a call's results as text."""
    if isinstance(out, int):
        return name(out)
    if isinstance(out, tuple):
        return f"({', '.join(render_out(item, name) for item in out)},)"
    return "_" if out is None else out.symbol


def _numbers(values: tuple[ps.Size | float, ...]) -> str:
    inner = ", ".join(str(value) for value in values)
    return f"({inner},)" if len(values) == 1 else f"({inner})"


def _arguments(args: tuple[ps.Arg, ...], kwargs: Mapping[str, ps.Arg], name: Names) -> str:
    parts = [render_arg(arg, name) for arg in args]
    parts += [f"{key}={render_arg(arg, name)}" for key, arg in kwargs.items()]
    return ", ".join(parts)


def _assign(outs: tuple[ps.Out, ...], call: str, name: Names) -> str:
    if not outs or all(out is None for out in outs):
        return call
    return f"{', '.join(render_out(out, name) for out in outs)} = {call}"


def _alloc(step: ps.Alloc, name: Names) -> str:
    shape = f"{_numbers(step.size)}, {_numbers(step.stride)}, {step.dtype}"
    return f"{name(step.slot)} = empty({shape}, {step.device!r})"


def _reuse(step: ps.Reuse, name: Names) -> str:
    shape = f"{_numbers(step.size)}, {_numbers(step.stride)}, {step.dtype}"
    return f"{name(step.slot)} = reuse({name(step.source)}, {shape})"


def _restride(step: ps.Restride, name: Names) -> str:
    shape = f"{_numbers(step.size)}, {_numbers(step.stride)}, {step.dtype}"
    return f"{name(step.slot)} = restride({name(step.source)}, {shape})"


def _as_strided(step: ps.AsStrided, name: Names) -> str:
    offset = f"{'+' if step.relative else ''}{step.offset}"
    return (
        f"{name(step.slot)} = as_strided({name(step.base)}, "
        f"{_numbers(step.size)}, {_numbers(step.stride)}, {offset})"
    )


def _kernel(step: ps.KernelCall, name: Names) -> str:
    offsets = step.offsets or (0,) * len(step.args)
    args = ", ".join(
        ("&" if slot in step.writes else "") + name(slot) + (f" + {offset}B" if offset else "")
        for slot, offset in zip(step.args, offsets, strict=True)
    )
    sizes = f"; {', '.join(map(str, step.sizes))}" if step.sizes else ""
    return f"{step.kernel}({args}{sizes})"


def _extern(step: ps.Extern, name: Names) -> str:
    op = step.op.replace("::", ".") + (f".{step.overload}" if step.overload else "")
    return _assign(step.outs, f"{op}({_arguments(step.args, step.kwargs, name)})", name)


def _pycall(step: ps.PyCall, name: Names) -> str:
    return _assign(
        step.outs, f"{step.callable}({_arguments(step.args, step.kwargs, name)})", name
    )


def _triton(step: ps.TritonLaunch, name: Names) -> str:
    args = ", ".join(
        ("&" if isinstance(arg, ps.Ref) and arg.slot in step.writes else "")
        + render_arg(arg, name)
        for _, arg in step.args
    )
    return f"{step.kernel}[{_numbers(step.grid)}, {step.num_warps} warps]({args})"


def _free(step: ps.Free, name: Names) -> str:
    return f"del {', '.join(name(slot) for slot in step.slots)}"


_RENDERERS: dict[type, Callable[[Any, Names], str]] = {
    ps.Alloc: _alloc,
    ps.Reuse: _reuse,
    ps.AsStrided: _as_strided,
    ps.Restride: _restride,
    ps.KernelCall: _kernel,
    ps.Extern: _extern,
    ps.PyCall: _pycall,
    ps.TritonLaunch: _triton,
    ps.Free: _free,
}
assert set(_RENDERERS) == set(ps.STEP_TAGS), "a renderer for every step"


def render_step(step: ps.Step, name: Names) -> str:
    """One step as a line of code, with the user's source line behind it where known."""
    line = _RENDERERS[type(step)](step, name)
    origin = getattr(step, "origin", "")
    return f"{line}  # {origin}" if origin else line


def render_input(item: ps.Input) -> str:
    """One parameter of the rendered program."""
    if item.kind != "tensor":
        return f"{item.name}: {item.kind}"
    if item.size is None:
        return f"{item.name}: tensor"
    device = "" if item.device == "cpu" else f" @ {item.device}"
    return f"{item.name}: {item.dtype}[{', '.join(map(str, item.size))}]{device}"
