"""What operations write to: `out=` tensors, and arguments whose fake tensors do not show it."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.autograd.graph import increment_version
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.fx.node import Node, map_arg
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from .exc import Unsupported

# Functions whose `out=` AOTAutograd loses, or cannot make functional.
_OUT_IN_EAGER = {torch.linalg.matrix_rank, torch._native_batch_norm_legit}
_FEW = 5
# Operations in place that give their tensor another shape.
_RESHAPING = frozenset(
    "as_strided_ resize_ resize_as_ resize_as_sparse_ set_ sparse_resize_ "
    "sparse_resize_and_clear_ squeeze_ swapaxes_ swapdims_ t_ transpose_ unsqueeze_".split()
)


def refuse_out(target: Any, args: Any, fake_kwargs: dict[str, Any], out: Any) -> None:
    """Refuses `out=` tensors that have not the shape of the result, or a dtype that it is not
    converted to: to resize tensors from outside or views is left to eager.
    """
    nodes = [
        n for n in (out if isinstance(out, (tuple, list)) else [out]) if isinstance(n, Node)
    ]
    if not nodes or isinstance(target, str):
        return
    why = "out= has another shape or dtype than the result"
    if target in _OUT_IN_EAGER:
        raise Unsupported("tensor storage", target.__name__, "out= of this function is eager's")
    name = getattr(target, "__name__", str(target))
    try:
        found = target(*args, **_without_out(fake_kwargs))
    except Exception:
        return  # the call itself says what is wrong
    results = found if isinstance(found, (tuple, list)) else [found]
    for node, result in zip(nodes, results, strict=False):
        fake = node.meta["example_value"]
        is_own = node.op != "placeholder" and not fake._is_view()
        fits = is_own or fake.shape == result.shape
        if not fits or (
            fake.dtype != result.dtype and not _converts(target, args, fake_kwargs)
        ):
            raise Unsupported("tensor storage", name, why)
    fakes = [node.meta["example_value"] for node in nodes]
    # A layout of its own would be that of the result.
    if len(fakes) == len(results) and all(map(_same_layout, fakes, results)):
        return
    if _is_laid_out_anew(target, args, fake_kwargs):
        why = "the meta function lays out= anew, which the operator does not"
        raise Unsupported("tensor storage", name, why)


def _same_layout(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether sizes and strides are known to be equal; asking adds no guards."""
    numbers = zip((*left.shape, *left.stride()), (*right.shape, *right.stride()), strict=False)
    return left.dim() == right.dim() and all(statically_known_true(a == b) for a, b in numbers)


def _without_out(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in kwargs.items() if key != "out"}


def with_dtype_of_out(target: Any, args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The keyword arguments of a call, with a `dtype` where `out=` decides in which dtype it is
    computed (`sum`, `mean`, `cumsum`): functional forms have no `out=` to look at.
    """
    fake_args, fake_kwargs = map_arg((args, kwargs), lambda node: node.meta["example_value"])
    out = fake_kwargs["out"]
    if not isinstance(out, torch.Tensor) or kwargs.get("dtype") is not None:
        return kwargs
    named = {"dtype": out.dtype}
    return {**kwargs, **named} if _converts(target, fake_args, fake_kwargs, named) else kwargs


def _converts(
    target: Any, args: Any, kwargs: dict[str, Any], named: dict[str, Any] | None = None
) -> bool:
    """Whether `out=` gets what a call returns without it, converted; tried on small tensors.

    named: keyword arguments of the call without it.
    """
    out, structure = tree_flatten(kwargs["out"])
    tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    on_cpu = all(type(t) is FakeTensor and t.device.type == "cpu" for t in tensors)
    if isinstance(target, str) or not on_cpu or torch.is_autocast_enabled("cpu"):
        return False
    quiet = warnings.catch_warnings(action="ignore")
    try:
        with unset_fake_temporarily(), torch.random.fork_rng([]), torch.no_grad(), quiet:
            real, given = tree_map(_small, (args, _without_out(kwargs)))
            drawn = torch.get_rng_state()
            results = tree_leaves(target(*real, **given, **(named or {})))
            written = [
                torch.empty(result.shape, dtype=fake.dtype)
                for result, fake in zip(results, out, strict=True)
            ]
            torch.set_rng_state(drawn)
            target(*real, **given, out=tree_unflatten(written, structure))
            pairs = zip(written, results, strict=True)
            return all(torch.equal(a, b.to(a.dtype)) for a, b in pairs)
    except Exception:
        return False


def _small(value: Any) -> Any:
    """A tensor of few elements for a fake one: thirds, sums of which are rounded in each dtype."""
    if not isinstance(value, torch.Tensor):
        return value
    shape = (_FEW,) * value.dim()
    thirds = torch.arange(1, _FEW ** value.dim() + 1, dtype=torch.float64) / 3
    return thirds.reshape(shape).to(value.dtype)


def _is_laid_out_anew(target: Any, args: Any, fake_kwargs: dict[str, Any]) -> bool:
    """Whether a call on fake tensors changes the strides of `out=` tensors; tried on others."""
    out = fake_kwargs["out"]
    fakes = [f for f in tree_leaves(out) if isinstance(f, torch.Tensor)]
    copies = [torch.empty_strided(f.shape, f.stride(), dtype=f.dtype) for f in fakes]
    layouts = [(f.shape, f.stride()) for f in fakes]
    of_kind = type(out)(copies) if isinstance(out, (tuple, list)) else copies[0]
    mode = fakes[0].fake_mode  # type: ignore[attr-defined]
    caches, mode.cache_enabled = mode.cache_enabled, False  # it forgets what becomes of out=
    try:
        with warnings.catch_warnings(action="ignore"):
            target(*args, **{**fake_kwargs, "out": of_kind})
    except Exception:
        return False
    finally:
        mode.cache_enabled = caches
    known = zip(copies, layouts, strict=True)
    return any(c.stride() != s and c.shape == n and c.numel() for c, (n, s) in known)


def keeping_shape(target: Any, fake_args: Any) -> AbstractContextManager[None]:
    """For a call on fake tensors: refuses operations in place that would not fit into what they
    write to. Meta functions in Python give that another shape.
    """
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    is_operator = getattr(target, "__module__", "") == operator.add.__module__
    is_in_place = name.endswith("_") or (is_operator and name.startswith("i"))
    if not is_in_place or name in _RESHAPING or not fake_args:
        return nullcontext()
    first = fake_args[0] if isinstance(fake_args[0], (list, tuple)) else fake_args[:1]
    return _keeping_shapes([t for t in first if isinstance(t, torch.Tensor)])


@contextmanager
def _keeping_shapes(tensors: list[torch.Tensor]) -> Iterator[None]:
    shapes = [tensor.shape for tensor in tensors]
    yield
    for tensor, shape in zip(tensors, shapes, strict=True):
        same = len(shape) == tensor.dim() and all(
            statically_known_true(new == old)
            for new, old in zip(tensor.shape, shape, strict=True)
        )
        if not same:
            FakeTensorMode.cache_clear()  # the same call would leave the shape alone next time
            wanted = f"the broadcast shape {list(tensor.shape)}"
            raise RuntimeError(f"output with shape {list(shape)} doesn't match {wanted}")


def version_of(fake: Any) -> int:
    """The version counter; inference tensors and numbers have none."""
    is_counted = isinstance(fake, torch.Tensor) and not fake.is_inference()
    return fake._version if is_counted else 0


@contextmanager
def moving_versions(
    target: Any, args: tuple[Any, ...], fake_args: Any, fake_kwargs: dict[str, Any]
) -> Iterator[None]:
    """For a call on fake tensors: what it writes to has another version afterwards."""
    written = _written(target, args, fake_args, fake_kwargs)
    versions = list(map(version_of, written))
    yield
    # Views of one tensor count together: once each, as the operator does.
    pairs = list(zip(written, map(version_of, written), versions, strict=True))
    for tensor, now, before in pairs:
        if now == before and not tensor.is_inference():
            increment_version(tensor)


def _written(
    target: Any, args: tuple[Any, ...], fake_args: Any, fake_kwargs: dict[str, Any]
) -> list[torch.Tensor]:
    """Tensors that a call writes to, of calls that may leave their version counters alone."""
    tensors = fake_kwargs.get("self", args[0] if args else ())
    if _is_foreach_in_place(target, tensors):
        return list(fake_args[0] if args else tensors)
    schema = _schema(target, fake_args, fake_kwargs)
    if schema is None or not schema.is_mutable or schema.name.startswith("aten::"):
        return []
    pairs = list(zip(schema.arguments, fake_args, strict=False))
    pairs += [(a, fake_kwargs[a.name]) for a in schema.arguments if a.name in fake_kwargs]
    written = [v for a, v in pairs if a.alias_info is not None and a.alias_info.is_write]
    return [t for t in tree_leaves(written) if isinstance(t, torch.Tensor)]


def _schema(target: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """The schema of an operator, of the overload that these arguments choose."""
    if isinstance(target, torch._ops.OpOverloadPacket):
        name = target.overloads()[0]
        if len(target.overloads()) > 1:
            name = torch._C._jit_resolve_packet(target._qualified_op_name, *args, **kwargs)
        target = getattr(target, name)
    return target._schema if isinstance(target, torch._ops.OpOverload) else None


def _is_foreach_in_place(target: Any, tensors: Any) -> bool:
    """Whether an operation writes to the tensors of a list, of which a graph has each only once."""
    name = getattr(target, "__name__", "")
    if not name.startswith("_foreach_") or not name.endswith("_"):
        return False
    if len(set(map(id, tensors))) < len(tensors):
        raise Unsupported("tensor storage", name, "a tensor is in the list several times")
    return True
