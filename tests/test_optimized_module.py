"""OptimizedModule and compile_(): a compiled module is used as the original is."""

import copy
import functools
import importlib
import inspect
import io
import pickle
import sys

import pytest
import torch
from torch import nn

import minidynamo
from minidynamo import OptimizedModule
from minidynamo.testing import CompileCounter

compile_eager = functools.partial(minidynamo.compile, backend="eager")


class Net(nn.Module):
    """A module with parameters, a buffer, a child and an attribute."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("offset", torch.ones(3))
        self.scale = 2

    def forward(self, x, *, extra=0):
        """A line of documentation."""
        return self.linear(x) * self.scale + self.offset + extra

    def helper(self):
        return self.scale


@pytest.fixture
def net():
    return Net()


@pytest.fixture
def x():
    return torch.arange(8.0).reshape(2, 4)


def test_it_is_a_module_with_the_originals_values(net, x):
    fast = compile_eager(net)
    assert type(fast) is OptimizedModule and isinstance(fast, nn.Module)
    assert fast._orig_mod is net
    assert torch.equal(fast(x), net(x))
    assert torch.equal(fast(x, extra=1), net(x) + 1)
    assert torch.equal(fast.forward(x), net(x))
    assert torch.equal(fast.__call__(x), net(x))


def test_names_are_those_of_torch_compile(net):
    ours, theirs = compile_eager(net), torch.compile(net, backend="eager")
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert list(dict(ours.named_parameters())) == list(dict(theirs.named_parameters()))
    assert list(dict(ours.named_buffers())) == list(dict(theirs.named_buffers()))
    assert list(dict(ours.named_modules())) == list(dict(theirs.named_modules()))
    assert repr(ours) == repr(theirs)


def test_parameters_are_shared(net, x):
    fast = compile_eager(net)
    assert all(
        ours is original
        for ours, original in zip(fast.parameters(), net.parameters(), strict=True)
    )
    before = fast(x)
    with torch.no_grad():
        net.linear.weight.zero_()
    assert not torch.equal(fast(x), before)
    assert torch.equal(fast(x), net(x))


def test_state_dict_goes_both_ways(net, x):
    fast, other = compile_eager(net), compile_eager(Net())
    other.load_state_dict(fast.state_dict())
    assert torch.equal(other(x), net(x))
    net.load_state_dict(other._orig_mod.state_dict())


def test_attributes_are_read_set_and_deleted_in_the_original(net, x):
    fast = compile_eager(net)
    assert fast.scale == 2 and fast.helper() == 2
    assert torch.equal(fast(x), net(x))
    fast.scale = 5
    assert net.scale == 5 and "scale" not in fast.__dict__
    assert torch.equal(fast(x), net(x))
    fast.added = nn.Parameter(torch.zeros(1))
    assert "added" in dict(net.named_parameters())
    del fast.added
    assert not hasattr(net, "added")
    with pytest.raises(AttributeError, match="'Net' object has no attribute 'nothing'"):
        _ = fast.nothing


def test_training_mode_is_shared(net):
    fast = compile_eager(net)
    fast.eval()
    assert not net.training and not fast.training and not net.linear.training
    net.train()
    assert fast.training
    fast.training = False
    assert not net.training


@pytest.mark.parametrize("register_on", ["original", "compiled"])
def test_hooks_are_shared(net, x, register_on):
    fast = compile_eager(net)
    fast(x)
    target = net if register_on == "original" else fast
    forward = target.register_forward_hook(lambda module, args, out: out * 0)
    assert torch.equal(fast(x), torch.zeros(2, 3))
    forward.remove()
    before = target.register_forward_pre_hook(lambda module, args: (args[0] * 0,))
    assert torch.equal(fast(x), net(x * 0))
    before.remove()
    gradients = []
    backward = target.register_full_backward_hook(lambda module, i, o: gradients.append(o))
    fast(x).sum().backward()
    assert len(gradients) == 1
    backward.remove()
    assert torch.equal(fast(x), net(x))


def test_registered_buffers_and_modules_go_to_the_original(net):
    fast = compile_eager(net)
    fast.register_buffer("late", torch.zeros(2))
    fast.add_module("child", nn.Linear(1, 1))
    fast.register_parameter("weight", nn.Parameter(torch.zeros(1)))
    assert {"late", "child.weight", "weight"} <= set(net.state_dict())
    assert fast.late is net.late and fast.child is net.child


def test_moving_and_converting(net):
    fast = compile_eager(net)
    assert fast.double() is fast
    assert net.linear.weight.dtype == torch.float64
    fast.requires_grad_(False)
    assert not any(parameter.requires_grad for parameter in net.parameters())


def test_assigning_forward(net, x):
    fast = compile_eager(net)
    fast(x)
    fast.forward = lambda x: x + 100
    assert torch.equal(fast(x), x + 100)
    del fast.forward
    assert torch.equal(fast(x), Net.forward(net, x))


def test_an_assigned_forward_may_call_the_compiled_one(net, x):
    """As accelerate's does, which adds autocast; it stays where the original is put back."""
    fast, want = compile_eager(net), net(x)
    compiled = fast.forward
    fast.forward = lambda x: compiled(x) + 100
    fast._orig_mod = net
    assert torch.equal(fast(x), want + 100) and torch.equal(net(x), want)
    assert torch.equal(nn.Sequential(fast)(x), want + 100)
    assert torch.equal(copy.deepcopy(fast)(x), want)
    del fast.forward
    assert torch.equal(fast(x), want)


@pytest.mark.parametrize("is_assigned_first", [False, True])
def test_an_assigned_forward_inside_a_compiled_function(net, x, is_assigned_first):
    counter = CompileCounter()
    call = minidynamo.compile(lambda module, x: module(x) * 2, backend=counter)
    fast, want = compile_eager(net), net(x)
    compiled = fast.forward
    if not is_assigned_first:
        assert torch.equal(call(fast, x), want * 2) and counter.frame_count == 1
    fast.forward = lambda x: compiled(x) + 100
    assert torch.equal(call(fast, x), (want + 100) * 2)
    del fast.forward
    assert torch.equal(call(fast, x), want * 2)


def test_replacing_the_original(net, x):
    fast = compile_eager(net)
    fast(x)
    other = Net()
    fast._orig_mod = other
    assert torch.equal(fast(x), other(x))


def test_containers():
    layers = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    fast = compile_eager(layers)
    assert len(fast) == 2 and fast[1] is layers[1] and list(fast) == list(layers)
    assert bool(compile_eager(nn.Linear(1, 1))) and not compile_eager(nn.Sequential())
    with pytest.raises(TypeError):
        len(compile_eager(nn.Linear(1, 1)))


def test_deepcopy_is_compiled_and_independent(net, x):
    fast = compile_eager(net)
    fast(x)
    twin = copy.deepcopy(fast)
    assert type(twin) is OptimizedModule
    assert torch.equal(twin(x), fast(x))
    twin.scale = 0
    assert net.scale == 2
    assert torch.equal(twin(x), net.offset.expand(2, 3))
    assert torch.equal(fast(x), net(x))


def test_pickle_and_torch_save(net, x):
    fast = compile_eager(net)
    again = pickle.loads(pickle.dumps(fast))
    assert type(again) is OptimizedModule and torch.equal(again(x), net(x))
    file = io.BytesIO()
    torch.save(fast, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=False)(x), net(x))


class Mixin:
    def mixed_in(self):
        return True


def test_it_is_an_instance_of_torchs_class_too(net, x, monkeypatch):
    """Accelerate, lightning and diffusers find the original by asking so."""
    torchs = importlib.import_module("torch._dynamo").OptimizedModule
    fast = compile_eager(net)
    assert isinstance(fast, torchs) and isinstance(minidynamo.disable(net), torchs)
    assert isinstance(fast, OptimizedModule) and not isinstance(fast, (nn.Linear, Net))
    assert not isinstance(net, torchs) and not issubclass(OptimizedModule, torchs)
    for copied in (copy.copy(fast), copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))):
        assert type(copied) is OptimizedModule and isinstance(copied, torchs)
        assert torch.equal(copied(x), net(x))
    mixed = type("Mixed", (Mixin, fast.__class__), {})  # as fully_shard does
    fast.__class__ = mixed
    assert type(fast) is fast.__class__ is mixed and isinstance(fast, (torchs, OptimizedModule))
    assert torch.equal(fast(x), net(x)) and fast.mixed_in() == fast.training is net.training
    fast.eval()
    assert not net.training and type(copy.deepcopy(fast)) is mixed
    fast = compile_eager(net)
    monkeypatch.delitem(sys.modules, "torch._dynamo.eval_frame")
    assert fast.__class__ is OptimizedModule  # nobody can ask for torch's


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_torch_compile_takes_what_a_module_was_compiled_with(net, x, backend):
    """Lightning's Fabric wraps the original and compiles the wrapper with the same arguments."""
    fast = minidynamo.compile(net, backend=backend, dynamic=False)
    assert fast._compile_kwargs["dynamic"] is False and not fast._compile_kwargs["fullgraph"]
    again = torch.compile(nn.Sequential(fast._orig_mod), **fast._compile_kwargs)
    torch.testing.assert_close(again(x), net(x))
    assert not hasattr(minidynamo.disable(net), "_compile_kwargs")


def test_forward_has_the_signature_of_the_originals(net, x):
    """By which trainers find the columns of the data that the model takes."""
    for fast in (compile_eager(net), copy.deepcopy(compile_eager(net))):
        assert inspect.signature(fast.forward) == inspect.signature(net.forward)
    net.forward = torch.sin  # has none
    assert torch.equal(compile_eager(net)(x), torch.sin(x))


def test_compiling_again_replaces_the_configuration(net):
    fast = compile_eager(net)
    assert compile_eager(fast)._orig_mod is net
    assert minidynamo.compile(fast, backend="aot_eager")._orig_mod is net


def test_equal_configurations_share_a_region(net):
    first, second = compile_eager(net), compile_eager(Net())
    assert first._compiled.region is second._compiled.region
    assert compile_eager(net, dynamic=True)._compiled.region is not first._compiled.region
    assert compile_eager(net, fullgraph=True)._compiled.region is not first._compiled.region


def test_compile_in_place(net, x):
    expected, names, attributes = net(x), list(net.state_dict()), set(dir(net))
    assert minidynamo.compile_(net, backend="eager") is None
    assert type(net) is Net and list(net.state_dict()) == names and set(dir(net)) == attributes
    assert torch.equal(net(x), expected)
    net.scale = 7
    assert torch.equal(net(x), Net.forward(net, x))
    hook = net.register_forward_hook(lambda module, args, out: out * 0)
    assert torch.equal(net(x), torch.zeros(2, 3))
    hook.remove()
    assert torch.equal(copy.deepcopy(net)(x), net(x))
    assert torch.equal(pickle.loads(pickle.dumps(net))(x), net(x))


def test_compile_in_place_captures_the_module(net, x):
    graphs = []

    def backend(gm, example_inputs):
        graphs.append(gm)
        return gm.forward

    minidynamo.compile_(net, backend=backend, fullgraph=True)
    net(x)
    net(x)
    assert len(graphs) == 1
    other = Net()  # of the same class: it is served by what there is
    minidynamo.compile_(other, backend=backend, fullgraph=True)
    assert torch.equal(other(x), Net.forward(other, x))
    assert len(graphs) == 1


def test_the_class_of_a_wrapper_is_its_own(net, x):
    """Code that changes `__class__` of a compiled module changes the wrapper's."""

    class Marked(OptimizedModule):
        pass

    fast = compile_eager(net)
    fast.__class__ = Marked
    assert type(fast) is Marked and type(net) is Net
    assert torch.equal(fast(x), Net.forward(net, x))


def test_compile_in_place_takes_modules_only():
    with pytest.raises(TypeError, match="model must be an nn.Module, not function"):
        minidynamo.compile_(lambda x: x)


def test_disabled_module(net, x):
    slow = minidynamo.disable(net)
    assert isinstance(slow, nn.Module) and torch.equal(slow(x), net(x))
    assert list(slow.state_dict()) == list(compile_eager(net).state_dict())


@pytest.mark.parametrize("name", ["__call__", "forward"])
def test_the_call_is_a_method_to_those_that_look_at_it(net, x, name):
    """Captum and Trainer ask for signatures; wrappers call through the class."""
    fast, method = compile_eager(net), getattr(OptimizedModule, name)
    assert inspect.signature(fast).bind(x, extra=1).arguments
    assert inspect.signature(method).bind(fast, x, extra=1).arguments
    assert torch.equal(method(fast, x), net(x)) and torch.equal(getattr(fast, name)(x), net(x))
    with pytest.raises(AttributeError):
        method(net, x)
