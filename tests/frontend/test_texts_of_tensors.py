"""f-strings of tensors, and torch's checks of tensors with them as messages."""

from __future__ import annotations

import pytest
import torch
from testing import CountingBackend, assert_same, check, outcome

import minidynamo

TWOS = torch.full((4,), 2.0)


def unused(x):
    count = x.sum()
    text = f"{count} or {count:.3f}"
    callable(text)
    return x * 2


def kept_while_the_number_changes(x):
    count = x.sum()
    text = f"{count:.1f}"
    count += 1
    return x * count, {"text": [text]}, f"{text}, now {count}"


def of_a_gradient(x):
    count = x.detach().requires_grad_().exp().sum()
    return f"{count:.2f}", count


def raised(x):
    raise ValueError(f"bad: {x.sum()}")


def raised_and_caught(x):
    try:
        raise ValueError(f"bad: {x.sum()}")
    except ValueError as error:
        return x + 1, error.args


@pytest.mark.parametrize("fn", [unused, kept_while_the_number_changes, raised_and_caught])
def test_one_graph(fn):
    check(fn, TWOS, fullgraph=True)


@pytest.mark.parametrize("fn", [raised, of_a_gradient])
def test_texts_are_eagers(fn):
    check(fn, TWOS, graphs=None)


def test_what_nothing_needs_is_in_no_graph():
    check(unused, TWOS, ops=2)  # the sum, the product


USES = {
    "upper": lambda text: text.upper(),
    "equal": lambda text: (text == "8.0", text != "8.0", text is None),
    "truth": lambda text: 1 if text else 2,
    "joined": lambda text: (text + "a", "a" + text, text * 2, "-".join([text, text])),
    "items": lambda text: (text[0], len(text), "8" in text, list(text)),
    "key": lambda text: ({text: 1}, hash(text) == hash("8.0"), {text, "8.0"}),
    "formatted": lambda text: ("%s" % text, "{}".format(text), f"{text!r:>9}"),  # noqa: UP031, UP032
    "sorted": lambda text: sorted([text, "1"]),
    "type": lambda text: (type(text), isinstance(text, str), str(text)),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_what_looks_into_the_text(use):
    def fn(x):
        text = f"{x.sum():.1f}"
        y = x * 2
        return use(text), y

    check(fn, TWOS, graphs=None)


def test_a_text_of_many_numbers_breaks():
    def fn(x):
        text = f"{x * 2}"
        return text, x + 1

    check(fn, TWOS, graphs=2, breaks=1)


def checking(x, log):
    log.append(1)
    torch._check_tensor_all(x > 0, lambda: f"bad: {x.sum()}")
    return x + 1


def checking_with(x, log):
    text = f"least: {x.min()}"
    torch._check_tensor_all_with(KeyError, x > 0, lambda: text)
    log.append(x * 2)
    return x.sqrt()


def checking_without_message(x, log):
    torch._check_tensor_all(cond=x > 0)
    return x.sqrt()


def caught(x, log):
    try:
        torch._check_tensor_all(x > 0)
    except RuntimeError as error:
        log.append(str(error))
        return x - 1
    return x + 1


CHECKS = (checking, checking_with, caught)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("fn", CHECKS, ids=lambda fn: fn.__name__)
def test_checks_of_tensors(fn, backend):
    minidynamo.reset()
    counter = CountingBackend()
    compiled = minidynamo.compile(fn, backend=counter if backend == "eager" else backend)
    for sign in (1, -1, 1, -1):
        results = []
        for f in (fn, compiled):
            log: list[object] = []
            results.append((outcome(f, (TWOS * sign, log), {}), log))
        assert_same(*results)
    assert backend != "eager" or len(counter.graphs) == 1


@pytest.mark.parametrize("sign", [1, -1])
def test_checks_by_keyword_and_of_other_types(sign):
    check(checking_without_message, TWOS * sign, [], graphs=None)
    check(lambda x: torch._check_tensor_all(x), TWOS * sign, graphs=None)
    check(lambda x: torch._check_tensor_all(x.tolist()), TWOS * sign, graphs=None)


@pytest.mark.parametrize("sign", [1, -1])
def test_what_a_graph_wrote_to_its_inputs_is_put_back_where_the_check_fails(sign):
    def fn(x):
        x.add_(1)
        torch._check_tensor_all(x > 0, lambda: f"bad: {x.sum()}")
        return x.mul_(2)

    check(fn, TWOS * sign, graphs=None if sign < 0 else 1)


class Lengths:
    def __getitem__(self, key):
        return len(key)


def test_a_text_that_names_a_module_breaks_the_graph():
    """As where mixtures of experts look for one by its number."""
    named = torch.nn.ModuleDict({f"e{i}": torch.nn.Linear(4, 4) for i in range(3)})

    def fn(x, number):
        return named[f"e{number}"](x * 2) + Lengths()[f"e{number}"]

    backend = CountingBackend()
    with minidynamo.config.patch(raise_internal_errors=True):
        call = minidynamo.compile(fn, backend=backend)
        for i in 2, 0, 1:
            assert_same(call(TWOS, torch.tensor(i)), fn(TWOS, torch.tensor(i)))
    assert len(backend.graphs) >= 2
