"""One case of the sweep: eager against compiled. `check(case)` gives a `Result`.

All calls of a case are one graph, to keep the compile cost down; if anything is wrong with it, each
call is compiled by itself and the first that fails is reported.
"""

import warnings
from dataclasses import asdict, dataclass, field

import torch
from sweep_cases import ERRORS, ONLY_SHAPES, calls, takes_gradients, tensors
from torch.testing._internal.common_utils import noncontiguous_like

TOLERANCE = {
    torch.float32: (2e-5, 2e-5),
    torch.float64: (1e-9, 1e-9),
    torch.bfloat16: (1.6e-2, 1e-2),
    torch.float16: (2e-3, 2e-3),
    torch.complex64: (2e-5, 2e-5),
    torch.complex128: (1e-9, 1e-9),
}
# What `fullgraph=True` raises where there would be a graph break.
_BREAKS = ("Unsupported", "UserError", "ObservedException", "TorchRuntimeError")
# Kinds of failure, the worst first.
KINDS = ["crash", "wrong", "timeout", "exception", "dtype", "stride", "alias", "break"]


@dataclass
class Result:
    """What became of a case. kind: `ok`, `skip` (eager does not run it), or one of KINDS."""

    kind: str = "ok"
    reason: str = ""
    calls: int = 0
    externs: list = field(default_factory=list)
    uncompiled: int = 0  # graphs that ran operator by operator

    def to_dict(self):
        return asdict(self)


class Different(AssertionError):
    """A result that is not eager's; args: kind, reason."""


def run_calls(todo):
    """What is compiled."""
    return [fn(*args, **kwargs) for fn, args, kwargs in todo]


def _describe(call):
    def one(value):
        if isinstance(value, torch.Tensor):
            kind = str(value.dtype).removeprefix("torch.")
            dense = value.layout == torch.strided
            extra = f"/{value.stride()}" if dense and not value.is_contiguous() else ""
            return f"{kind}{list(value.shape)}{extra}"
        if isinstance(value, (tuple, list)):
            return f"({', '.join(map(one, value))})"
        return repr(value)

    _, args, kwargs = call
    named = [f"{key}={one(value)}" for key, value in kwargs.items()]
    return ", ".join([*map(one, args), *named])[:300]


def _leaves(value):
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (tuple, list)):
        return [leaf for item in value for leaf in _leaves(item)]
    return [value]


def _grads(results, todo, holes=False):
    wanted = [t for t in tensors([call[1:] for call in todo]) if t.requires_grad]
    parts = [
        t
        for t in tensors(results)
        if t.requires_grad and (t.is_floating_point() or t.is_complex())
    ]
    if not parts or not wanted:
        return []
    torch.manual_seed(3)
    weights = [torch.randn(p.shape, dtype=p.dtype).to(p.device) for p in parts]
    if holes:
        weights = [noncontiguous_like(w) if w.dim() else w for w in weights]
    grads = torch.autograd.grad(parts, wanted, weights, allow_unused=True)
    return list(grads)


def _execute(run, todo, grad, holes=False):
    torch.manual_seed(7)
    results = run(todo)
    return results, (_grads(results, todo, holes) if grad else [])


def _storage(tensor):
    if tensor.layout != torch.strided or tensor.numel() == 0:
        return None
    return tensor.untyped_storage().data_ptr()


def _aliases(results, todo):
    """For every result: which of the given tensors it is, or shares memory with."""
    given = [t for t in tensors([call[1:] for call in todo])]
    storages = [_storage(t) for t in given]
    found = []
    for tensor in tensors(results):
        place = _storage(tensor)
        same = next((i for i, t in enumerate(given) if t is tensor), None)
        shared = storages.index(place) if place is not None and place in storages else None
        found.append((same, shared))
    return found


def _is_dense(tensor):
    expected = 1
    dims = sorted((s, n) for s, n in zip(tensor.stride(), tensor.shape) if n != 1)
    for stride, extent in dims:
        if stride != expected:
            return False
        expected *= extent
    return True


def _strides(tensor):
    return [s for s, n in zip(tensor.stride(), tensor.shape) if n != 1]


def _close(actual, expected, reference):
    """Whether values agree: within tolerance, or no further from `reference` than eager is."""
    if expected.layout != torch.strided:
        actual, expected = actual.to_dense(), expected.to_dense()
    rtol, atol = TOLERANCE.get(expected.dtype, (0.0, 0.0))
    try:
        torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol, equal_nan=True)
        return ""
    except AssertionError as error:
        reason = " ".join(str(error).split())
    if reference is None or not isinstance(reference, torch.Tensor):
        return reason
    if not (expected.is_floating_point() or expected.is_complex()):
        return reason
    if reference.shape != expected.shape or reference.dtype.is_complex != expected.is_complex():
        return reason
    wide = torch.complex128 if expected.is_complex() else torch.float64
    exact = reference.to(wide)
    own, eager = (actual.to(wide) - exact).abs(), (expected.to(wide) - exact).abs()
    unit = torch.finfo(expected.dtype).eps * exact.abs()
    fine = (own <= 2 * eager + 4 * unit) | (actual == expected)
    fine |= torch.isclose(actual, expected, rtol=rtol, atol=atol, equal_nan=True)
    return "" if bool(fine.all()) else reason


def compare(actual, expected, reference, only_shapes, strides=True):
    """Raises `Different` unless both trees are the same."""
    left, right = _leaves(actual), _leaves(expected)
    if len(left) != len(right):
        raise Different("wrong", f"{len(left)} results, {len(right)} expected")
    exact = _leaves(reference) if reference is not None else []
    exact = exact if len(exact) == len(right) else [None] * len(right)
    for position, (a, e) in enumerate(zip(left, right)):
        _compare_leaf(a, e, exact[position], only_shapes)
        if strides and isinstance(e, torch.Tensor):
            _compare_strides(a, e)


def _compare_strides(a, e):
    if e.layout == torch.strided and e.numel() and _strides(a) != _strides(e) and _is_dense(e):
        raise Different("stride", f"{a.stride()} instead of {e.stride()} of {tuple(e.shape)}")


def _compare_leaf(a, e, exact, only_shapes):
    if isinstance(e, torch.nn.Module):
        return
    if not isinstance(e, torch.Tensor):
        same = a == e or (a != a and e != e) or isinstance(e, torch.storage.TypedStorage)
        if type(a) is not type(e) or not same:
            raise Different("wrong", f"{a!r} instead of {e!r}")
        return
    if not isinstance(a, torch.Tensor) or a.layout != e.layout:
        raise Different("wrong", f"a {type(a).__name__} instead of a tensor")
    if a.dtype != e.dtype:
        raise Different("dtype", f"{a.dtype} instead of {e.dtype}")
    if a.shape != e.shape:
        raise Different("wrong", f"shape {tuple(a.shape)} instead of {tuple(e.shape)}")
    if not only_shapes:
        reason = _close(a.detach().resolve_conj(), e.detach().resolve_conj(), exact)
        if reason:
            raise Different("wrong", reason)
    if a.requires_grad != e.requires_grad:
        raise Different("wrong", f"requires_grad is {a.requires_grad}")


def _wide_grads(todo):
    """Gradients in float64, None where that cannot be run."""
    wide = _widened_calls(todo)
    for tensor, given in zip(tensors(wide), tensors(todo)):
        if given.requires_grad:
            tensor.requires_grad_()
    try:
        torch.manual_seed(7)
        return _grads(run_calls(wide), wide)
    except Exception:
        return None


def _widened(todo):
    """The results in float64, None where that cannot be run."""
    try:
        torch.manual_seed(7)
        return run_calls(_widened_calls(todo))
    except Exception:
        return None


def _widened_calls(todo):
    """The calls in float64."""
    names = {torch.float32: torch.float64, torch.float16: torch.float64}
    names |= {torch.bfloat16: torch.float64, torch.complex64: torch.complex128}

    def wide(value):
        if isinstance(value, torch.Tensor):
            value = value.detach()
            return value.to(names[value.dtype]) if value.dtype in names else value
        if isinstance(value, torch.dtype):
            return names.get(value, value)
        if isinstance(value, dict):
            return {key: wide(item) for key, item in value.items()}
        if type(value) in (tuple, list):
            return type(value)(map(wide, value))
        return value

    return [(fn, wide(args), wide(kwargs)) for fn, args, kwargs in todo]


def check_calls(compile_function, case, make):
    """Raises `Different`, or what the compiled function raises. make() gives equal calls anew."""
    grad, holes = takes_gradients(case), case.variant == "grad_strided"
    mine, theirs = make(), make()
    expected, expected_grads = _execute(run_calls, theirs, grad, holes)
    compiled = compile_function(run_calls)
    actual, actual_grads = _execute(compiled, mine, grad, holes)
    reference = None if case.op in ONLY_SHAPES else _widened(make())
    only_shapes = case.op in ONLY_SHAPES
    compare(actual, expected, reference, only_shapes)
    compare(
        actual_grads, expected_grads, _wide_grads(make()) if grad else None, only_shapes, False
    )
    compare([c[1:] for c in mine], [c[1:] for c in theirs], None, only_shapes)
    if _aliases(actual, mine) != _aliases(expected, theirs):
        found, right = _aliases(actual, mine), _aliases(expected, theirs)
        raise Different("alias", f"(is, shares) {found} instead of {right}"[:300])


def runnable(case, limit):
    """Positions of the calls that eager itself runs."""
    found = []
    for position, call in enumerate(calls(case, limit)):
        try:
            torch.manual_seed(7)
            results = run_calls([call])
            if takes_gradients(case):
                _grads(results, [call])
            found.append(position)
        except Exception:
            continue
    return found


class Compiler:
    """How to compile and to forget: `minidynamo` or `torch`."""

    def __init__(self, name):
        self.name = name
        self.dynamic = None
        self.externs = []
        self.metrics = None
        if name == "torch":
            import torch._dynamo
            import torch._inductor.config

            torch._inductor.config.fallback_random = True
            self.module, self.compile = torch._dynamo, torch.compile
            self.options = {}
            return
        import minidynamo
        from minidynamo.inductor import config, extern, metrics

        self.module, self.compile, self.metrics = minidynamo, minidynamo.compile, metrics
        self.options = (
            {"fallback_random": True} if "fallback_random" in config.to_dict() else {}
        )
        original = extern.call

        def call(g, op, *args, **kwargs):
            self.externs.append(str(op))
            return original(g, op, *args, **kwargs)

        extern.call = call

    def __call__(self, function, fullgraph=True):
        self.module.reset()
        return self.compile(
            function,
            backend="inductor",
            fullgraph=fullgraph,
            dynamic=self.dynamic,
            options=self.options,
        )

    def partial(self, function):
        """Compiled with graph breaks."""
        return self(function, False)

    def is_break(self, error):
        return any(kind.__name__ in _BREAKS for kind in type(error).__mro__)


def _failure(error):
    if isinstance(error, Different):
        return error.args
    text = " ".join(str(error).split())
    return "exception", f"{type(error).__name__}: {text}"[:500]


def check(compiler, case, limit=6):
    """Run one case."""
    warnings.simplefilter("ignore")
    compiler.dynamic = True if case.variant in ("dynamic", "error_dynamic") else None
    if case.variant in (*ERRORS, "out_dtype", "out_grad"):
        return _check_errors(compiler, case, limit)
    todo = runnable(case, limit)
    if not todo:
        return Result("skip", "eager runs none of the samples")
    result = Result(calls=len(todo))
    compiler.externs.clear()
    if compiler.metrics is not None:
        compiler.metrics.reset()

    def make():
        made = calls(case, limit)
        return [made[i] for i in todo]

    try:
        check_calls(compiler, case, make)
    except Exception:
        result.kind, result.reason = _first_failure(compiler, case, make, len(todo))
    result.externs = sorted(set(compiler.externs))
    result.uncompiled = getattr(compiler.metrics, "uncompiled_graphs", 0)
    return result


def _first_failure(compiler, case, make, count):
    broken = None
    for position in range(count):

        def one():
            return [make()[position]]

        place = _describe(one()[0])
        try:
            check_calls(compiler, case, one)
            continue
        except Exception as error:
            if not compiler.is_break(error):
                kind, reason = _failure(error)
                return kind, f"{reason} [{place}]"
            broken = broken or f"{_failure(error)[1]} [{place}]"
        try:
            check_calls(compiler.partial, case, one)
        except Exception as error:
            kind, reason = _failure(error)
            return kind, f"{reason} [{place}]"
    if broken:
        return "break", broken
    return "ok", ""


def _check_errors(compiler, case, limit):
    """Calls that raise in eager raise the same type; those that do not, give the same."""
    result = Result()
    for position, call in enumerate(calls(case, limit)):
        place = _describe(call)
        result.calls += 1

        def one(position=position):
            return [calls(case, limit)[position]]

        try:
            run_calls([call])
            expected = None
        except Exception as error:
            expected = error
        try:
            if expected is None:
                check_calls(compiler.partial, case, one)
                continue
            compiler.partial(run_calls)(one())
        except Exception as error:
            if expected is not None and isinstance(error, type(expected)):
                continue
            result.kind, reason = _failure(error)
            if expected is not None:
                reason = f"{reason} instead of {expected!r}"
        else:
            result.kind, reason = "wrong", f"no exception instead of {expected!r}"
        result.reason = f"{reason[:300]} [{place}]"
        return result
    return result
