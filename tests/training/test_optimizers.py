"""Steps of optimizers, gradient clipping and whole training steps."""

import gc
import subprocess
import sys
import weakref

import pytest
import torch
import torch.nn.functional as F
from training_testing import gradients, mlp, noise, run, scenario, state

import minidynamo
from minidynamo import config, events
from minidynamo.testing import CompileCounter

OPTIMIZERS = [
    ("SGD", {"lr": 0.1}, 1),
    ("SGD", {"lr": 0.01, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}, 2),
    ("SGD", {"lr": 0.01, "momentum": 0.9, "foreach": True}, 2),
    ("SGD", {"lr": 0.01, "maximize": True, "fused": True}, 1),
    ("SGD", {"lr": 0.01, "momentum": 0.9, "nesterov": True, "fused": True}, 2),
    ("Adam", {"lr": 0.01}, 1),
    ("Adam", {"lr": 0.01, "foreach": True, "weight_decay": 0.1}, 1),
    ("Adam", {"lr": 0.01, "fused": True, "weight_decay": 0.1}, 1),
    ("Adam", {"lr": 0.01, "amsgrad": True}, 1),
    ("Adam", {"lr": 0.01, "amsgrad": True, "foreach": True}, 1),
    ("AdamW", {"lr": 0.01}, 1),
    ("AdamW", {"lr": 0.01, "foreach": True, "maximize": True}, 1),
    ("AdamW", {"lr": 0.01, "fused": True, "amsgrad": True}, 1),
    ("RMSprop", {"lr": 0.01, "momentum": 0.9, "centered": True}, 1),
    ("RMSprop", {"lr": 0.01, "foreach": True}, 1),
    ("Adagrad", {"lr": 0.01}, 1),
    ("Adagrad", {"lr": 0.01, "foreach": True}, 1),
    ("Adagrad", {"lr": 0.01, "fused": True}, 2),
    ("Adagrad", {"lr": 0.1, "fused": True, "lr_decay": 0.1, "weight_decay": 0.1}, 2),
    ("Adagrad", {"fused": True, "maximize": True, "initial_accumulator_value": 1}, 2),
    ("Adadelta", {}, 1),
    ("NAdam", {}, 1),
    ("Adamax", {}, 1),
    ("Rprop", {}, 1),
    ("Adamax", {"foreach": True}, 1),
    ("RAdam", {"lr": 0.01, "weight_decay": 0.1}, 1),
    ("RAdam", {"foreach": True, "decoupled_weight_decay": True, "weight_decay": 0.1}, 1),
    ("ASGD", {"lr": 0.01, "t0": 2, "weight_decay": 0.1}, 1),
    ("ASGD", {"foreach": True, "t0": 1}, 1),
    ("Adafactor", {"lr": 0.1, "weight_decay": 0.1}, 1),
    ("Adafactor", {"lr": 0.01, "foreach": True, "maximize": True, "d": 1.5}, 1),
]


@pytest.mark.parametrize(("name", "options", "graphs"), OPTIMIZERS, ids=str)
def test_step(name, options, graphs):
    """The first step makes its state while tracing, so that one graph serves all steps."""

    def program(comp):
        model = mlp()
        optimizer = getattr(torch.optim, name)(model.parameters(), **options)
        step = comp(optimizer.step)
        for _ in range(4):
            optimizer.zero_grad()
            model(noise(5, 8)).square().sum().backward()
            step()
        counts = [s.get("step") for s in optimizer.state.values()]
        return state(model), [int(n) for n in counts if n is not None]

    run(program, "inductor", graphs, None, 2e-5)


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")
def test_step_of_muon():
    def program(comp):
        model = mlp()
        matrices = [p for p in model.parameters() if p.dim() == 2]
        optimizer = torch.optim.Muon(matrices, lr=0.1)
        step = comp(optimizer.step)
        for _ in range(3):
            optimizer.zero_grad()
            model(noise(5, 8)).square().sum().backward()
            step()
        return state(model)

    run(program, "eager", 1, None, 2e-5)


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_step_of_lbfgs(search):
    """It branches on data and keeps lists that grow: only the closure is a graph."""

    def program(comp):
        weights = [noise(3, 4).requires_grad_(), noise(5).requires_grad_()]
        optimizer = torch.optim.LBFGS(weights, line_search_fn=search)

        def loss():
            optimizer.zero_grad()
            total = sum(w.square().sum() for w in weights)
            total.backward()
            return total

        step = comp(optimizer.step)
        return [step(loss) for _ in range(3)], weights

    made = []
    with events.subscribe(made.append, events.GraphEvent):
        run(program, "eager", None, None, 0.0)
    # None where torch.compile was used before: it disables the step and what that calls.
    assert len(made) <= 1


def test_step_of_sparse_adam():
    def program(comp):
        weights = [noise(*shape).requires_grad_() for shape in ((3, 4), (5,), (2, 2, 3))]
        optimizer = torch.optim.SparseAdam(weights)
        step = comp(optimizer.step)
        for i in range(4):
            for w in weights:
                w.grad = noise(*w.shape).to_sparse()
            weights[1].grad = None if i == 2 else weights[1].grad
            step()
        return weights

    run(program, "eager", 0, None, 0.0)


def test_step_continues_a_run_in_eager():
    def program(comp):
        model = mlp()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        steps = [optimizer.step, comp(optimizer.step)]
        for i in range(6):
            optimizer.zero_grad()
            model(noise(5, 8)).square().sum().backward()
            steps[i % 2]()
        return state(model), optimizer.state_dict()["state"][0]["step"]

    run(program, "inductor", 1, None, 2e-5)


def test_learning_rate_changes():
    def program(comp):
        model = mlp()
        optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.01), foreach=False)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        step = comp(optimizer.step)
        for _ in range(4):
            optimizer.zero_grad()
            model(noise(5, 8)).square().sum().backward()
            step()
            schedule.step()
        return state(model)

    run(program, "inductor", 1, None, 2e-5)


@pytest.mark.parametrize("name", ["Adam", "SGD", "RMSprop", "NAdam", "Adagrad"])
def test_one_graph_steps_all_groups_from_the_first_step_on(name):
    def train(comp):
        torch.manual_seed(0)
        weights = [torch.nn.Parameter(torch.ones(n)) for n in (2, 3, 4)]
        groups = [{"params": [weight], "lr": 0.1 * (i + 1)} for i, weight in enumerate(weights)]
        optimizer = getattr(torch.optim, name)(groups)
        step = comp(optimizer.step)
        for _ in range(4):
            for weight in weights:
                weight.grad = torch.randn_like(weight)
            step()
        return [weight.detach() for weight in weights]

    counter = CompileCounter()
    found = train(lambda step: minidynamo.compile(step, backend=counter))
    torch.testing.assert_close(found, train(lambda step: step))
    assert counter.frame_count == 1


@pytest.mark.parametrize("comp", [lambda step: step, minidynamo.compile])
def test_a_later_group_that_the_optimizer_refuses(comp):
    first, second = (torch.nn.Parameter(torch.ones(2, 2)) for _ in range(2))
    optimizer = torch.optim.Adam([{"params": [first]}, {"params": [second]}], lr=0.1)
    first.grad, second.grad = torch.ones(2, 2), torch.ones(2, 2).to_sparse()
    with pytest.raises(RuntimeError, match="Adam does not support sparse gradients"):
        comp(optimizer.step)()
    torch.testing.assert_close(first.detach(), torch.full((2, 2), 0.9))
    assert set(optimizer.state) == {first}


def test_gradients_set_to_none_and_parameter_groups():
    def program(comp):
        model = mlp()
        groups = [
            {"params": model[0].parameters(), "lr": 0.1},
            {"params": model[3].parameters(), "weight_decay": 0.5},
        ]
        optimizer = torch.optim.Adam(groups, lr=0.01)
        step = comp(optimizer.step)
        for i in range(3):
            optimizer.zero_grad(set_to_none=True)
            model[3].bias.requires_grad_(i != 1)
            model(noise(5, 8)).square().sum().backward()
            step()
        return state(model), len(optimizer.state)

    run(program, "inductor", None, None, 2e-5)


@scenario(graphs=4, breaks=None, tolerance=2e-5)
def test_whole_training_step(comp):
    """`backward` and the optimizer's marks break; everything between them is compiled."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x, target):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), target)
        loss.backward()
        optimizer.step()
        return loss.detach()

    compiled, target = comp(step), torch.tensor([0, 1, 2, 3, 0])
    return [compiled(torch.ones(5, 8), target).clone() for _ in range(4)], state(model)


@scenario()
def test_clipping_by_norm(comp):
    model = mlp()
    clip = comp(lambda: torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1))
    norms = []
    for _ in range(2):
        model.zero_grad()
        model(torch.ones(5, 8)).square().sum().backward()
        norms.append(clip().detach())
    return norms, gradients(model)


@scenario()
def test_clipping_by_value(comp):
    model = mlp()
    clip = comp(lambda: torch.nn.utils.clip_grad_value_(model.parameters(), 0.05))
    model(torch.ones(5, 8)).square().sum().backward()
    clip()
    return gradients(model)


@scenario()
def test_step_by_hand(comp):
    parameter = torch.nn.Parameter(torch.ones(3))

    def step(p):
        with torch.no_grad():
            p.add_(p.grad, alpha=-0.1)
        p.grad = None

    compiled, seen = comp(step), []
    for _ in range(3):
        (parameter * parameter).sum().backward()
        compiled(parameter)
        seen.append((parameter.detach().clone(), parameter.grad))
    return seen


@scenario(graphs=1)
def test_moving_average_of_weights(comp):
    model, average = mlp(), mlp()

    @torch.no_grad()
    def update():
        for p, q in zip(model.parameters(), average.parameters(), strict=True):
            q.lerp_(p, 0.1)

    compiled = comp(update)
    for _ in range(3):
        with torch.no_grad():
            for p in model.parameters():
                p.add_(1)
        compiled()
    return state(average)


def test_learning_rates_that_are_numbers_change():
    """A float that changes becomes symbolic; AOTAutograd must not ask for another front end."""

    def program(comp):
        model = mlp()
        groups = [
            {"params": [p], "lr": 0.01 * (i + 1)} for i, p in enumerate(model.parameters())
        ]
        optimizer = torch.optim.SGD(groups, momentum=0.9)
        step = comp(optimizer.step)
        for i in range(5):
            for group in optimizer.param_groups:
                group["lr"] *= 0.7
            optimizer.zero_grad()
            model(noise(5, 8)).square().mean().backward()
            step()
        return state(model)

    run(program, "inductor", None, None, 2e-5)
    run(program, "aot_eager", None, None, 2e-5)


def test_parameters_die_with_their_optimizer():
    """They are keys of its state; what was compiled for it counts no longer for the limit."""
    watched, counter = [], CompileCounter()
    for _ in range(config.recompile_limit + 3):
        model = mlp()
        optimizer = torch.optim.Adam(model.parameters())
        step = minidynamo.compile(optimizer.step, backend=counter)
        for _ in range(2):
            model(noise(2, 8)).sum().backward()
            step()
        watched += map(weakref.ref, (model, optimizer, *model.parameters()))
        del model, optimizer, step
    gc.collect()
    assert not any(each() is not None for each in watched)
    assert counter.frame_count == config.recompile_limit + 3


def test_steps_are_traced_also_where_torch_compile_was_used():
    """Its first use disables fused functions and `_init_group` of torch's optimizers."""
    torch.compile(torch.sin, backend="eager")(torch.ones(1))
    test_step("Adam", {"lr": 0.01, "fused": True}, 1)
    test_step("SGD", {"lr": 0.01, "momentum": 0.9}, 2)


FIRST_TORCH_COMPILE = """
import torch
torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
import minidynamo
from minidynamo.testing import CompileCounter
weight = torch.ones(3, requires_grad=True)
optimizer, counter = torch.optim.Adam([weight]), CompileCounter()
step = minidynamo.compile(optimizer.step, backend=counter)
for _ in range(3):
    weight.grad = torch.ones(3)
    step()
print(counter.frame_count)
"""


def test_state_is_made_while_tracing_where_torch_compile_came_first():
    command = [sys.executable, "-c", FIRST_TORCH_COMPILE]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout.split() == ["1"], done.stderr
