"""Errors of the user's program are eager's; ours say what, where and what to do."""

import functools
import signal
import traceback
import warnings

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import minidynamo
from minidynamo import exc


def lines_in_this_file(error):
    """(function, source line) of the frames of `error` that lie in this file, outermost first."""
    stack = traceback.extract_tb(error.__traceback__)
    return [(frame.name, frame.line) for frame in stack if frame.filename == __file__]


def raised_by(call):
    try:
        call()
    except Exception as error:
        # The frame of this function is the same for all.
        return type(error), str(error), lines_in_this_file(error)[1:]
    pytest.fail("nothing was raised")


def outside_the_graph(x):
    y = x.sin()
    print("before")
    raise LookupError(f"no entry for {y.shape}")


def in_a_callee(x):
    return outside_the_graph(x + 1) + 1


def bad_shapes(x):
    y = x + 1
    return y @ y.reshape(2, 3)


def bad_index(x):
    return x.sum(dim=7)


def bad_python(x):
    values = [x, x + 1]
    return values[2]


def assertion(x):
    assert x.dim() == 3, "three dimensions are needed"
    return x


def attribute(x):
    return x.no_such_attribute + 1


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize(
    "function",
    [outside_the_graph, in_a_callee, bad_shapes, bad_index, bad_python, assertion, attribute],
    ids=lambda function: function.__name__,
)
def test_the_programs_exceptions_are_eagers(function, backend):
    x = torch.ones(6)
    fast = minidynamo.compile(function, backend=backend)
    expected = raised_by(lambda: function(x))
    for _ in range(2):
        kind, text, lines = raised_by(lambda: fast(x))
        assert (kind, text) == expected[:2]
        # The first line is the call itself, which differs by name.
        assert lines[1:] == expected[2][1:]


def test_exceptions_are_handled_where_eager_handles_them():
    def careful(x):
        try:
            y = bad_shapes(x)
        except RuntimeError as error:
            return x * 2, type(error).__name__
        return y, ""

    x = torch.ones(6)
    result, name = minidynamo.compile(careful, backend="eager")(x)
    assert torch.equal(result, x * 2) and name == "RuntimeError"


def test_errors_of_a_compiled_graph_at_run_time():
    def divide(x, n):
        return torch.full((2,), 1, dtype=torch.int64) // n

    zero = torch.zeros(2, dtype=torch.int64)
    fast = minidynamo.compile(divide, backend="eager")
    assert raised_by(lambda: fast(zero, zero))[:2] == raised_by(lambda: divide(zero, zero))[:2]


def test_fullgraph_names_place_reason_and_hint():
    def branching(x):
        if x.sum() > 0:
            return x + 1
        return x - 1

    with pytest.raises(exc.Unsupported) as caught:
        minidynamo.compile(branching, fullgraph=True)(torch.ones(3))
    error = caught.value
    assert error.kind and error.explanation and error.hints
    assert error.user_stack[-1].filename == __file__
    assert error.user_stack[-1].line == "if x.sum() > 0:"
    assert __file__ in str(error) and "Hint:" in str(error)
    assert torch.equal(
        minidynamo.compile(branching, backend="eager")(torch.ones(3)), torch.ones(3) + 1
    )


def test_the_recompile_limit(caplog):
    def scaled(x, n):
        return x * float(n)

    x = torch.ones(3)
    fast = minidynamo.compile(scaled, backend="eager")
    with minidynamo.config.patch(recompile_limit=2), caplog.at_level("WARNING"):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for n in "123456":
                assert torch.equal(fast(x, n), x * int(n))
    messages = [record.getMessage() for record in caplog.records]
    messages += [str(warning.message) for warning in caught]
    about = [text for text in messages if "recompile_limit" in text]
    assert len(about) == 1 and "scaled" in about[0] and "n" in about[0]
    strict = minidynamo.compile(scaled, backend="eager", fullgraph=True)
    with minidynamo.config.patch(recompile_limit=2):
        with pytest.raises(exc.RecompileLimitExceeded, match="scaled"):
            for n in "123456":
                strict(x, n)


def test_recompiling_as_an_error():
    fast = minidynamo.compile(lambda x: x + 1, backend="eager")
    fast(torch.ones(3))
    with minidynamo.config.patch(error_on_recompile=True):
        with pytest.raises(exc.RecompileError, match="x"):
            fast(torch.ones(4))


def test_suppressed_errors_run_in_eager():
    def broken(gm, example_inputs):
        raise ValueError("no")

    x = torch.ones(3)
    with minidynamo.config.patch(suppress_errors=True):
        assert torch.equal(minidynamo.compile(lambda x: x + 1, backend=broken)(x), x + 1)


def test_every_error_is_a_runtime_error_and_survives_pickling():
    import pickle

    errors = [
        exc.Unsupported("kind", "context", "explanation", ["hint"]),
        exc.RecompileLimitExceeded("kind", "context"),
        exc.BackendCompilerFailed("mine", KeyError("x")),
        exc.InvalidBackend("mine", "known: a"),
        exc.CppCompileError(["g++", "a.cpp"], "a.cpp:1: error", "a.cpp"),
        exc.UserError("wrong"),
        exc.InternalError("bug"),
    ]
    for error in errors:
        again = pickle.loads(pickle.dumps(error))
        assert isinstance(error, RuntimeError) and isinstance(error, exc.MinidynamoError)
        assert type(again) is type(error) and str(again) == str(error)


def test_a_bug_of_the_compiler_runs_in_eager(monkeypatch, caplog):
    from minidynamo import output_graph

    def broken(self, outputs):
        raise KeyError("a bug")

    monkeypatch.setattr(output_graph.OutputGraph, "finish", broken)
    x = torch.ones(3)
    with minidynamo.config.patch(raise_internal_errors=False), caplog.at_level("WARNING"):
        fast = minidynamo.compile(lambda x: x.sin(), backend="eager")
        assert torch.equal(fast(x), x.sin())
        assert torch.equal(fast(x), x.sin())
        (message,) = [record.getMessage() for record in caplog.records]
        assert "a bug of minidynamo" in message and "a bug" in message
        with pytest.raises(KeyError):
            minidynamo.compile(lambda x: x.cos(), backend="eager", fullgraph=True)(x)
    with minidynamo.config.patch(raise_internal_errors=True), pytest.raises(KeyError):
        minidynamo.compile(lambda x: x.tan(), backend="eager")(x)


class Limit:
    def __init__(self):
        self.is_over = False

    def stop(self, number, frame):
        raise TimeoutError("the time is over")

    def pass_time(self):
        """The signal comes while something is compiled, once."""
        if not self.is_over:
            self.is_over = True
            signal.raise_signal(signal.SIGUSR1)


@pytest.fixture
def limit():
    made = Limit()
    former = signal.signal(signal.SIGUSR1, functools.partial(made.stop))
    yield made
    signal.signal(signal.SIGUSR1, former)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_errors_of_signal_handlers_are_raised_and_not_kept(backend, limit):
    """They were taken for failures of the compiler, or for what the traced code raises always."""

    def compiled(gm, inputs):
        limit.pass_time()
        return minidynamo.lookup_backend(backend)(gm, inputs)

    @minidynamo.assume_constant_result
    def number():
        limit.pass_time()
        return 2

    def fn(x):
        try:
            return x * number()
        except Exception:
            return x * 3

    x = torch.ones(2)
    for call in (
        minidynamo.compile(fn, backend=backend),
        minidynamo.compile(torch.exp, backend=compiled),
    ):
        limit.is_over = False
        with pytest.raises(TimeoutError, match="the time is over"):
            call(x)
        wanted = x * 2 if call(x)[0] == 2 else x.exp()
        torch.testing.assert_close(call(x), wanted)


def test_a_mode_that_was_being_entered_is_left(limit, monkeypatch):
    """Else all tensors that the program made from then on would be fake."""
    enter = FakeTensorMode.__enter__

    def entering(self):
        found = enter(self)
        limit.pass_time()
        return found

    monkeypatch.setattr(FakeTensorMode, "__enter__", entering)
    call = minidynamo.compile(lambda x: x.sin() + 1)
    with pytest.raises(TimeoutError):
        call(torch.ones(2))
    assert type(torch.ones(2)) is torch.Tensor
    torch.testing.assert_close(call(torch.ones(2)), torch.ones(2).sin() + 1)
