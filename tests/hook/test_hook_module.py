"""compiled_function of an nn.Module: its forward is dispatched to when a call is nothing more."""

import copy
import threading

import pytest
from hook_support import _C, Compiler, marked, replaced

torch = pytest.importorskip("torch")

if not hasattr(_C, "GuardProgram"):
    pytest.skip("this build is the frame hook alone", allow_module_level=True)


class Module(torch.nn.Module):
    def __init__(self, value=3):
        super().__init__()
        self.value = value

    def forward(self, a, b=2):
        return "orig", self.value, a, b


class Other(torch.nn.Module):
    def forward(self, a):
        return "other", a


def compiled_module(module, fn=Module.forward):
    """A compiled module, and the list of the codes that were offered."""
    compiler = replaced(fn)
    return compiler.compiled(module), compiler


def test_classes_that_changed_often():
    class Often(Module):
        pass

    for Often.count in range(1100):  # CPython 3.13 numbers no more than 1000 states of a class
        assert Often().count == Often.count
    fast, compiler = compiled_module(Often())
    assert [fast(1), fast(a=1)] == [("new", 3, 1, 2)] * 2
    assert compiler.names == ["forward"]


def test_forward_is_dispatched_to():
    module = Module()
    fast, compiler = compiled_module(module)
    for _ in range(3):
        assert fast(1) == ("new", 3, 1, 2)
        assert fast(1, b=5) == ("new", 3, 1, 5)
        assert fast(a=1) == ("new", 3, 1, 2)
    assert compiler.names == ["forward"]
    module.value = 4
    assert fast(1) == ("new", 4, 1, 2)
    with pytest.raises(TypeError, match="missing 1 required"):
        fast()
    (entry,) = _C.entries(Module.forward.__code__, compiler.region)
    assert entry.hits == 10


CHANGES = {
    "forward pre-hook": lambda m: m.register_forward_pre_hook(lambda m, args: (10,)).remove,
    "forward hook": lambda m: m.register_forward_hook(lambda m, args, out: "hooked").remove,
    "backward hook": lambda m: m.register_full_backward_hook(lambda m, i, o: None).remove,
    "backward pre-hook": lambda m: m.register_full_backward_pre_hook(lambda m, o: None).remove,
    "global hook": lambda m: (
        torch.nn.modules.module.register_module_forward_hook(
            lambda m, args, out: "global"
        ).remove
    ),
    "global pre-hook": lambda m: (
        torch.nn.modules.module.register_module_forward_pre_hook(lambda m, args: (11,)).remove
    ),
    "own forward": lambda m: set_and_restore(m, "forward", lambda a: ("own", a)),
    "compiled call": lambda m: set_and_restore(m, "_compiled_call_impl", lambda a: ("impl", a)),
    "class forward": lambda m: set_and_restore(Module, "forward", lambda self, a: ("class", a)),
    "class call": lambda m: set_and_restore(Module, "__call__", lambda self, a: ("call", a)),
    "class call impl": lambda m: set_and_restore(
        Module, "_call_impl", lambda s, a: ("impl", a)
    ),
    "Module call": lambda m: set_and_restore(
        torch.nn.Module, "__call__", lambda self, a: ("torch", a)
    ),
    "getattribute": lambda m: set_and_restore(
        Module,
        "__getattribute__",
        lambda self, name: (
            (lambda a: ("any", a)) if name == "forward" else object.__getattribute__(self, name)
        ),
    ),
    "another class": lambda m: set_and_restore(m, "__class__", Other),
    "class hooks": lambda m: set_and_restore(
        Module, "_forward_hooks", property(lambda self: {0: lambda m, args, out: "property"})
    ),
}


def set_and_restore(target, name, value):
    had = name in vars(target)
    former = getattr(target, name, None)
    setattr(target, name, value)

    def restore():
        if had or name == "__class__":
            setattr(target, name, former)
        else:
            delattr(target, name)

    return restore


@pytest.mark.parametrize("name", CHANGES)
def test_what_changes_a_call_is_seen(name):
    module = Module()
    fast, _ = compiled_module(module)
    assert fast(1) == fast(1) == ("new", 3, 1, 2)
    undo = CHANGES[name](module)
    try:
        expected = module(1)
        assert not isinstance(expected, tuple) or expected != ("new", 3, 1, 2)
        got = fast(1)
        if isinstance(got, tuple) and got[0] == "new":
            got = ("orig", *got[1:])  # by the hook, inside the longer way
        assert got == expected
    finally:
        undo()
    assert fast(1) == fast(1) == ("new", 3, 1, 2)


def test_other_modules_and_callables():
    module = Module()
    fast, compiler = compiled_module(module)
    fast(1)
    other = compiler.compiled(Module(9))
    assert other(1) == ("new", 9, 1, 2)
    assert compiler.compiled(Other())(1) == ("other", 1)
    nested = compiler.compiled(torch.nn.Sequential(torch.nn.Identity(), Other()))
    assert nested(3) == nested(3) == ("other", 3)


def test_trace_records_the_module():
    class Adder(torch.nn.Module):
        def forward(self, a):
            return a + 1

    module = Adder()
    fast, compiler = compiled_module(module, Adder.forward)
    fast(torch.ones(2))
    hits = _C.entries(Adder.forward.__code__, compiler.region)[0].hits
    seen = []
    module._slow_forward = lambda *args: seen.append(args) or torch.zeros(2)
    torch.jit.trace(lambda a: fast(a) + 1, torch.ones(2), check_trace=False)
    assert len(seen) == 1
    assert _C.entries(Adder.forward.__code__, compiler.region)[0].hits == hits


def test_deep_copies_and_threads():
    module = Module()
    fast, compiler = compiled_module(module)
    fast(1)
    copied = copy.deepcopy(fast)
    assert copied.__wrapped__ is not module and copied(1) == ("new", 3, 1, 2)
    results = []

    def work():
        for _ in range(500):
            results.append(fast(1))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [("new", 3, 1, 2)] * 1500


def test_guards_see_the_module():
    seen = []
    module = Module()
    compiler = Compiler(
        {
            Module.forward: lambda frame: _C.Entry(
                lambda values, func: seen.append((values, func)) or True, marked(frame.code)
            )
        }
    )
    fast = compiler.compiled(module)
    fast(1)
    fast(1)
    assert seen == [((module, 1, 2), Module.forward)] * 2


def test_inside_torch_compile():
    """Two frame hooks at once: each keeps its own frames, whichever was installed first."""

    def helper(a):
        return ["orig", a]

    theirs = torch.compile(lambda a: helper(a)[1] * 2, backend="eager")
    compiler = replaced(helper)

    def ours(a):
        before = helper(a)[0]
        value = theirs(a)
        return before, value, helper(a)[0]

    fast = compiler.compiled(ours)
    for _ in range(3):
        before, value, after = fast(torch.ones(2))
        assert (before, after) == ("new", "new") and value.tolist() == [2, 2]
    assert not _C.is_installed() and _C.active_count() == 0
    theirs_outside = torch.compile(lambda a: (a + 1, fast(a)[1]), backend="eager")
    for _ in range(3):
        assert [value.tolist() for value in theirs_outside(torch.ones(2))] == [[2, 2], [2, 2]]
    assert not _C.is_installed() and _C.active_count() == 0
    assert fast(torch.ones(2))[0] == "new"


def test_torch_compile_in_another_thread():
    """torch's hook is installed, then ours, then torch's again, over its own."""

    def helper(a):
        return ["orig", a]

    started, leave = threading.Event(), threading.Event()

    @torch.compiler.disable
    def wait():
        started.set()
        leave.wait(60)

    def work():
        torch.compile(lambda a: (a + 1, wait()), backend="eager")(torch.ones(2))

    compiler = replaced(helper)
    theirs = torch.compile(lambda a: a * 2, backend="eager")
    theirs(torch.ones(2))
    fast = compiler.compiled(
        lambda a: (helper(a)[0], theirs(a), sorted([2, 1], key=lambda x: x))
    )
    thread = threading.Thread(target=work)
    thread.start()
    started.wait(60)
    try:
        for _ in range(3):
            mark, value, order = fast(torch.ones(2))
            assert value.tolist() == [2, 2] and order == [1, 2] and mark in ("new", "orig")
    finally:
        leave.set()
        thread.join()
    assert fast(torch.ones(2))[0] == "new"
    assert not _C.is_installed() and _C.active_count() == 0
