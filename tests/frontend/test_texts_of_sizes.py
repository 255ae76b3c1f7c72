"""Texts of symbolic sizes: one graph serves all sizes where they are only passed on."""

from __future__ import annotations

import pytest
import torch
from testing import check_recompiles

import minidynamo

CALLS = [(torch.ones(n, 2),) for n in (3, 4, 5, 6, 4)]


def message_of_an_assertion(x):
    torch._assert(x.shape[0] != 5, f"five: {x.shape}")
    return x + 1


def raised(x):
    if x.shape[0] == 6:
        raise ValueError("six: %s" % (x.shape,))  # noqa: UP031
    return x + 1


def raised_and_caught(x):
    try:
        raise ValueError(f"n {x.shape[0]}", [x.shape[0]])
    except ValueError as error:
        return x + 1, error.args


def returned(x):
    rows, columns = x.shape
    text = f"{rows}"
    return x + 1, text, [text, str(x.shape)], {"key": repr((rows, columns))}, text is str(text)


def formatted(x):
    n = x.shape[0]
    real = f"{n * 0.5:.2f}, {n / 3} or {n > 2}"
    return (
        x + 1,
        f"{n:>5}|{n!r:^7}|{x.shape!s:>30}|{[n, (n,)]}",
        "{0} {a} {0!r:>5}".format(n, a=[n]),
        "%s of %d, %r" % (x.shape[1], n, f"{n}"),  # noqa: UP031
        real,
        format(n, "04x"),
        ascii(f"é{n}"),
        ", ".join(str(size) for size in x.shape),
    )


def summed(x):
    text = "sizes"
    for size in x.shape:
        text += f" {size}"
    return x + 1, text + ".", "(" + text


def mutated_afterwards(x):
    sizes = [x.shape[0]]
    text = repr(sizes)
    sizes.append(1)
    return x + 1, text, sizes


def beside_numbers_of_data(x):
    return f"{x.shape[0]}: {x.sum()}", x + 1


def of_arguments(x):
    def show(text, *more, **named):
        return text, more, named

    return x + 1, show(f"{x.shape[0]}", str(x.shape), last=repr(x.shape[1]))


PASSED_ON = (
    message_of_an_assertion,
    raised,
    raised_and_caught,
    returned,
    formatted,
    summed,
    mutated_afterwards,
    beside_numbers_of_data,
    of_arguments,
)


@pytest.mark.parametrize("fn", PASSED_ON, ids=lambda fn: fn.__name__)
def test_passed_on(fn):
    """One graph of constants, one of symbols; where the sizes decide a branch, one more a side."""
    check_recompiles(fn, CALLS, 2, fullgraph=True)


USES = {
    "method": lambda s: (s.upper(), s.startswith("n3"), s.split("n"), s.encode(), int(s[1:])),
    "equal": lambda s: (s == "n4", s != "n5", s < "n5", "n4" == s, s in ("n4", "n6")),
    "truth": lambda s: (1 if s else 2, not s, s or 1, s and 2),
    "items": lambda s: (s[0], s[1:], len(s), list(s), [c for c in s], "4" in s, s in "n345"),
    "key": lambda s: ({s: 1}, {s: 2}[s + ""], hash(s) == hash("n4"), {s, "n4"}, s in {"n4": 1}),
    "repeated": lambda s: (s * 2, "".join(reversed(s)), sorted([s, "n4"]), max(s, "n4")),
    "spec": lambda s: (f"{1:{s[1:]}}", f"{s!r:>{len(s) + 4}}", "%c" % int(s[1:])),  # noqa: UP031
    "attribute": lambda s: getattr(s, "upper")(),  # noqa: B009
    "evaluated": lambda s: eval(s[1:]),
    "type": lambda s: (type(s), isinstance(s, str), str(s) is s, s is f"{s}"),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_looked_into(use):
    def fn(x):
        return x + 1, use(f"n{x.shape[0]}")

    check_recompiles(fn, CALLS, None)


def test_what_was_looked_into_is_a_guard():
    def fn(x):
        return x * 2 if f"{x.shape[0]}" == "4" else x * 3

    check_recompiles(fn, CALLS, 4)


WRONG = {
    "too few": lambda n: "{} {}".format(n),  # noqa: F524, UP032
    "too many": lambda n: "%d" % (n, n),  # noqa: F507
    "no text": lambda n: "n" + n,
    "no texts": lambda n: ",".join([n]),
    "spec": lambda n: format(n, "zz"),
    "template": lambda n: "{".format(n),  # noqa: F521
}


@pytest.mark.parametrize("make", WRONG.values(), ids=WRONG)
def test_errors_of_the_program(make):
    def fn(x):
        try:
            return x + 1, make(x.shape[0])
        except (TypeError, ValueError, IndexError) as error:
            return x + 2, str(error)

    check_recompiles(fn, CALLS, None)


def test_over_a_break():
    def fn(x):
        text = f"{x.shape[0]}"
        y = x + 1
        minidynamo.graph_break()
        return y + 1, text, text + "."

    check_recompiles(fn, CALLS, None)


@pytest.mark.parametrize("kind", [int, float, bool])
def test_texts_of_numbers_of_data(kind):
    def fn(x):
        number = kind(x.sum())
        return x + 1, f"{number}", repr([number])

    check_recompiles(fn, [(torch.ones(3) * n,) for n in (0, 2, 5)], 1, fullgraph=True)
