"""Guards on tensors and on torch's global state: all that eager dispatch sees, and the texts."""

import contextlib
import threading

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

import minidynamo
from minidynamo import _C
from minidynamo.guards import GuardSet, TensorSpec, explain_failure
from minidynamo.source import InstanceAttrSource, LocalSource, ModuleItemSource

X = LocalSource("x")


def function(x): ...


class Frame:
    def __init__(self, x):
        self.func, self.code, self.f_locals = function, function.__code__, {"x": x}


def guarded(expected, source=X):
    guards = GuardSet()
    guards.add(source, "TENSOR_MATCH", expected)
    return guards.build(function.__code__)


def reason(program, x):
    """Why the program refuses x; None if it does not. Both ways of running it agree."""
    passed, _ = program.check([x], function)
    failure = explain_failure(program, Frame(x))
    assert passed == (failure is None), failure
    return failure and str(failure)


class Subclass(torch.Tensor):
    pass


def base():
    return torch.ones(8, 3)


def inference_tensor():
    with torch.inference_mode():
        return base()


# name -> (another tensor, start of the reason after "tensor 'x' ")
OTHERS = {
    "size": (lambda: torch.ones(9, 3), "size mismatch at index 0. expected 8, actual 9"),
    "second size": (lambda: torch.ones(8, 4), "size mismatch at index 1. expected 3, actual 4"),
    "stride": (
        lambda: torch.ones(3, 8).t(),
        "stride mismatch at index 0. expected 3, actual 1",
    ),
    "padded": (
        lambda: torch.ones(8, 4)[:, :3],
        "stride mismatch at index 0. expected 3, actual 4",
    ),
    "dimensions": (lambda: torch.ones(8, 3, 1), "rank mismatch. expected 2, actual 3"),
    "scalar": (lambda: torch.ones(()), "rank mismatch. expected 2, actual 0"),
    "dtype": (lambda: base().double(), "dtype: expected torch.float32, found torch.float64"),
    "device": (lambda: base().to("meta"), "device: expected cpu, found meta"),
    "grad": (lambda: base().requires_grad_(), "requires_grad: expected False, found True"),
    "grad of a result": (
        lambda: base().requires_grad_() * 2,
        "requires_grad: expected False, found True",
    ),
    "parameter": (
        lambda: torch.nn.Parameter(base(), requires_grad=False),
        "type: expected Tensor, found Parameter",
    ),
    "subclass": (lambda: base().as_subclass(Subclass), "type: expected Tensor, found Subclass"),
    "wrapper": (lambda: TwoTensor(base(), base()), "type: expected Tensor, found TwoTensor"),
    "sparse": (
        lambda: base().to_sparse(),
        "layout: expected torch.strided, found torch.sparse_coo",
    ),
    "csr": (
        lambda: base().to_sparse_csr(),
        "layout: expected torch.strided, found torch.sparse_csr",
    ),
    "complex": (
        lambda: base().to(torch.complex64),
        "dtype: expected torch.float32, found torch.complex64",
    ),
    "negated": (lambda: base()._neg_view(), "dispatch keys: gained Negative"),
    "inference": (inference_tensor, "dispatch keys: lost "),
    "quantized": (
        lambda: torch.quantize_per_tensor(base(), 1.0, 0, torch.qint8),
        "dtype: expected torch.float32, found torch.qint8",
    ),
    "none": (lambda: None, "type: expected Tensor, found NoneType"),
    "number": (lambda: 5, "type: expected Tensor, found int"),
}


@pytest.mark.filterwarnings("ignore")
class TestMatch:
    @pytest.mark.parametrize("name", OTHERS)
    def test_other_tensors_are_refused(self, name):
        make, why = OTHERS[name]
        program = guarded(base())
        for _ in range(2):
            assert reason(program, base()) is None
            assert reason(program, make()).startswith(f"tensor 'x' {why}")

    @pytest.mark.parametrize(
        "name", [name for name in OTHERS if name not in ("none", "number")]
    )
    def test_each_matches_itself_only(self, name):
        make = OTHERS[name][0]
        program = guarded(make())
        for _ in range(2):
            assert reason(program, make()) is None
            assert reason(program, base()) is not None

    @pytest.mark.parametrize("name", OTHERS)
    def test_as_a_parameter_of_a_module(self, name):
        module = torch.nn.Module()
        module.register_buffer("buffer", base())
        source = ModuleItemSource(X, "_buffers", "buffer")
        program = guarded(base(), source)
        for _ in range(4):
            assert reason(program, module) is None
        module._buffers["buffer"] = OTHERS[name][0]()
        for _ in range(3):
            assert reason(program, module).startswith(f"tensor 'x.buffer' {OTHERS[name][1]}")
        module.buffer = base()
        assert reason(program, module) is None

    def test_conjugate(self):
        x = torch.ones(3, dtype=torch.complex64)
        program = guarded(x)
        assert reason(program, x) is None
        assert reason(program, x.conj()) == "tensor 'x' dispatch keys: gained Conjugate"
        assert reason(program, x.conj().resolve_conj()) is None

    def test_changes_in_place(self):
        """The object stays the same, and so does the dict it is in."""
        module = torch.nn.Linear(3, 4)
        source = ModuleItemSource(X, "_parameters", "weight")
        program = guarded(module.weight, source)
        for _ in range(4):
            assert reason(program, module) is None
        changes = [
            (
                lambda: module.weight.requires_grad_(False),
                lambda: module.weight.requires_grad_(),
            ),
            (
                lambda: setattr(module.weight, "data", torch.ones(4, 5)),
                lambda: setattr(module.weight, "data", torch.ones(4, 3)),
            ),
            (
                lambda: setattr(module.weight, "data", torch.ones(3, 4).t()),
                lambda: setattr(module.weight, "data", torch.ones(4, 3)),
            ),
            (lambda: module.double(), lambda: module.float()),
            (lambda: module.to("meta"), lambda: module.to_empty(device="cpu")),
        ]
        for change, restore in changes:
            change()
            for _ in range(2):
                assert reason(program, module) is not None
            restore()
            for _ in range(3):
                assert reason(program, module) is None
        x = base()
        program = guarded(x)
        x.t_()
        assert reason(program, x) is not None

    def test_dynamic_dimensions(self):
        spec = TensorSpec.of(base(), sizes=(None, 3), strides=(None, 1))
        program = guarded(spec)
        assert reason(program, torch.ones(8, 3)) is None
        assert reason(program, torch.ones(100, 3)) is None
        assert reason(program, torch.ones(100, 4)[:, :3]) is None
        assert (
            reason(program, torch.ones(100, 4))
            == "tensor 'x' size mismatch at index 1. expected 3, actual 4"
        )
        assert reason(program, torch.ones(3)) is not None
        assert reason(program, torch.ones(3, 8).t()) is not None
        anyhow = guarded(TensorSpec.of(base(), any_strides=True))
        assert reason(anyhow, torch.ones(3, 8).t()) is None
        assert "(any, 3)" in spec.text()

    def test_many_dimensions(self):
        x = torch.ones(1, 2, 3, 4, 5, 6, 7)
        program = guarded(x)
        assert reason(program, torch.ones(1, 2, 3, 4, 5, 6, 7)) is None
        assert reason(program, torch.ones(1, 2, 3, 4, 5, 6, 8)) is not None

    def test_wrapper_subclass_whose_shape_is_asked_of_python(self):
        class Shaped(torch.Tensor):
            asked = 0

            @staticmethod
            def __new__(cls, inner):
                shape = inner.shape
                made = torch.Tensor._make_wrapper_subclass(
                    cls, shape, dispatch_sizes_strides_policy="sizes"
                )
                made.inner = inner
                return made

            @classmethod
            def __torch_dispatch__(cls, op, types, args=(), kwargs=None):
                name = op.name()
                cls.asked += 1
                if name in ("aten::sym_size", "aten::size"):
                    return args[0].inner.shape
                if name in ("aten::sym_stride", "aten::stride"):
                    return args[0].inner.stride()
                if name == "aten::dim":
                    return args[0].inner.dim()
                raise NotImplementedError(name)

        x = Shaped(base())
        program = guarded(x)
        Shaped.asked = 0
        for _ in range(3):
            assert program.check([x], function)[0]
        assert Shaped.asked > 0
        assert not program.check([Shaped(torch.ones(9, 3))], function)[0]

    def test_inside_functorch_transforms(self):
        program = guarded(base())
        seen = []

        def body(x):
            seen.append(program.check([x], function)[0])
            inner = guarded(x)
            seen.append(inner.check([x], function)[0])
            return x * 2

        torch.func.vmap(body)(torch.ones(4, 8, 3))
        assert seen == [False, True]
        seen.clear()
        torch.func.grad(lambda x: body(x).sum())(base())
        assert seen == [False, True]
        assert reason(program, base()) is None

    def test_specs_are_compared_by_value(self):
        assert TensorSpec.of(base()) == TensorSpec.of(base())
        guards = GuardSet()
        guards.add(X, "TENSOR_MATCH", base())
        guards.add(X, "TENSOR_MATCH", base())
        assert len(guards) == 1
        assert guards.describe() == ["x: Tensor of torch.float32, (8, 3), on cpu"]

    def test_state_at_entry_counts(self):
        """Specs made while tracing inside autocast stand for the state when the frame began."""
        guards = GuardSet()
        with torch.autocast("cpu"):
            guards.add(X, "TENSOR_MATCH", base())
        program = guards.build(function.__code__)
        assert reason(program, base()) is None
        with torch.autocast("cpu"):
            assert "Autocast" in reason(program, base())

    def test_malformed_specs(self):
        with pytest.raises(TypeError):
            _C.GuardProgram(
                [(-1, "LOCAL", 0)], [(0, "TENSOR_MATCH", (torch.Tensor, 1))], [], []
            )
        fields = (int, 1, torch.float32, torch.device("cpu"), torch.strided, False, (), None)
        with pytest.raises(TypeError):
            _C.GuardProgram([(-1, "LOCAL", 0)], [(0, "TENSOR_MATCH", fields)], [], [])

    def test_key_set_of_something_else(self):
        with pytest.raises(TypeError):
            _C.tensor_key_set(5)


@contextlib.contextmanager
def setting(change, restore):
    change()
    try:
        yield
    finally:
        restore()


class Mode(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class DispatchMode(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def deterministic(on, **options):
    return lambda: torch.use_deterministic_algorithms(on, **options)


# name -> (a context in which the state is another, what the reason speaks of)
STATES = {
    "no_grad": (torch.no_grad, "grad mode: expected True, found False"),
    "inference": (torch.inference_mode, "inference mode: expected False, found True"),
    "autocast": (
        lambda: torch.autocast("cpu"),
        "autocast: expected off, found cpu to bfloat16",
    ),
    "autocast to half": (lambda: torch.autocast("cpu", torch.half), "found cpu to float16"),
    "default dtype": (
        lambda: setting(
            lambda: torch.set_default_dtype(torch.float64),
            lambda: torch.set_default_dtype(torch.float32),
        ),
        "default dtype: expected float32, found float64",
    ),
    "default device": (
        lambda: torch.device("meta"),
        "default device: expected None, found meta",
    ),
    "deterministic": (
        lambda: setting(deterministic(True), deterministic(False)),
        "deterministic algorithms: expected False, found True",
    ),
    "deterministic with warnings": (
        lambda: setting(deterministic(True, warn_only=True), deterministic(False)),
        "deterministic algorithms only warn: expected False, found True",
    ),
    "precision": (
        lambda: setting(
            lambda: torch.set_float32_matmul_precision("high"),
            lambda: torch.set_float32_matmul_precision("highest"),
        ),
        "float32 matmul precision on CUDA",
    ),
    "medium precision": (
        lambda: setting(
            lambda: torch.set_float32_matmul_precision("medium"),
            lambda: torch.set_float32_matmul_precision("highest"),
        ),
        "float32 matmul precision on CPU: expected ieee, found bf16",
    ),
    "threads": (
        lambda: setting(
            lambda: torch.set_num_threads(torch.get_num_threads() + 1),
            lambda: torch.set_num_threads(torch.get_num_threads() - 1),
        ),
        "number of threads",
    ),
    "function mode": (Mode, "torch function modes: expected none, found Mode"),
    "no torch functions": (torch._C.DisableTorchFunction, "__torch_function__"),
    "no torch functions of subclasses": (
        torch._C.DisableTorchFunctionSubclass,
        "__torch_function__: expected enabled, found disabled for subclasses",
    ),
    "dispatch mode": (DispatchMode, "of the thread, dispatch keys: gained"),
}


class TestGlobalState:
    def program(self):
        guards = GuardSet()
        guards.add(None, "GLOBAL_STATE")
        return guards.build(function.__code__)

    @pytest.mark.parametrize("name", STATES)
    def test_each_part(self, name):
        context, why = STATES[name]
        program, state = self.program(), _C.GlobalState()
        assert reason(program, 0) is None
        with context():
            assert not state.holds()
            inner = self.program()
            for _ in range(2):
                assert not program.check([0], function)[0]
                assert inner.check([0], function)[0]
            assert why in str(explain_failure(program, Frame(0)))
        assert state.holds()
        assert reason(program, 0) is None
        assert not inner.check([0], function)[0]

    def test_autocast_cache_and_dtype(self):
        with torch.autocast("cpu"):
            program = self.program()
            with torch.autocast("cpu", cache_enabled=False):
                assert "without cache" in reason(program, 0)
            with torch.autocast("cpu", torch.half):
                assert "autocast" in reason(program, 0)
            with torch.autocast("cpu"):
                assert reason(program, 0) is None

    def test_default_devices(self):
        with torch.device("meta"):
            program = self.program()
        with torch.device("meta"):
            assert program.check([0], function)[0]
        with torch.device("cpu"):
            assert not program.check([0], function)[0]

    def test_kinds_of_function_modes(self):
        class Other(Mode):
            pass

        with Mode():
            program = self.program()
        with Mode():
            assert program.check([0], function)[0]
        with Other():
            assert not program.check([0], function)[0]

    def test_functorch(self):
        program = self.program()
        seen = []

        def body(x):
            seen.append(program.check([0], function)[0])
            return x

        torch.func.vmap(body)(torch.ones(3))
        torch.func.grad(lambda x: body(x).sum())(torch.ones(3))
        assert seen == [False, False]

    def test_threads_have_their_own(self):
        program = self.program()
        seen = []

        def run():
            seen.append(program.check([0], function)[0])

        with torch.no_grad():
            thread = threading.Thread(target=run)
            thread.start()
            thread.join()
        assert seen == [True]

    def test_precision_set_through_both_interfaces(self):
        """torch refuses to name the precision then; the guard still works."""
        program = self.program()
        backend = torch.backends.mkldnn.matmul
        before = backend.fp32_precision
        backend.fp32_precision = "bf16"
        try:
            assert reason(program, 0) is not None
        finally:
            backend.fp32_precision = before
        assert reason(program, 0) is None

    def test_given_state(self):
        with torch.no_grad():
            state = _C.GlobalState()
        guards = GuardSet(state)
        guards.add(None, "GLOBAL_STATE")
        program = guards.build(function.__code__)
        assert reason(program, 0) == "grad mode: expected False, found True"
        with torch.no_grad():
            assert reason(program, 0) is None


def test_whole_module_from_its_snapshot():
    model = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(8)])
    fetch = [
        ModuleItemSource(ModuleItemSource(X, "_modules", str(i)), "_parameters", name)
        for i in range(8)
        for name in ("weight", "bias")
    ]
    guards = GuardSet()
    for source, parameter in zip(fetch, model.parameters(), strict=True):
        guards.add(source, "TENSOR_MATCH", parameter)
        guards.add(InstanceAttrSource(source.base, "training"), "CONST_EQ", True)
    program = guards.build(function.__code__, fetch)
    for _ in range(4):
        assert program.check([model], function) == (True, tuple(model.parameters()))
    statistics = program.statistics
    assert statistics["tensors"] == 16
    assert statistics["runs"] == statistics["second_phases"] == 0
    other = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(8)])
    for _ in range(6):
        for each in (model, other):
            found = program.check([each], function)[1]
            assert all(a is b for a, b in zip(found, each.parameters(), strict=True))
    assert program.statistics["recordings"] == 2
    model[3].weight = torch.nn.Parameter(torch.ones(4, 4))
    assert program.check([model], function)[1][6] is model[3].weight
    model[5] = torch.nn.Linear(4, 4)
    for _ in range(3):
        found = program.check([model], function)[1]
        assert all(a is b for a, b in zip(found, model.parameters(), strict=True))
    model[5].eval()
    assert (
        str(explain_failure(program, Frame(model))) == "x[5].training (False) is no longer True"
    )


def test_backends_that_a_guard_of_torch_left_behind():
    """Excluding a key and including it again leaves its backend's bit, which excludes nothing."""
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    run = minidynamo.compile(lambda x: x.sin(), backend=backend)
    before = torch._C._dispatch_tls_local_exclude_set().raw_repr()
    run(torch.ones(3))
    keys = torch._C.DispatchKey
    exclude = torch._C._dispatch_tls_set_dispatch_key_excluded
    for key in (keys.AutogradXPU, keys.AutogradCPU):
        exclude(key, True)
        exclude(key, False)
    assert torch._C._dispatch_tls_local_exclude_set().raw_repr() != before
    run(torch.ones(3))
    assert len(graphs) == 1
    exclude(keys.ADInplaceOrView, True)
    try:
        run(torch.ones(3))
    finally:
        exclude(keys.ADInplaceOrView, False)
    assert len(graphs) == 2
