"""Hypothesis drives the program generator: it chooses, and shrinks what fails."""

from __future__ import annotations

import logging
import warnings
from functools import partial

import dtypes_grammar
import indexing_grammar
import module_programs
import reductions_grammar
import runner
import script_runner
import scripts
import sizes_grammar
import tensor_programs
import tensor_runner
import training_grammar
import views_grammar
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky

# What makes a program, and what says how compiling changes it.
KINDS = {
    "python": (runner.make_program, runner.difference),
    "tensors": (tensor_programs.make_program, tensor_runner.difference),
    "triton": (
        tensor_programs.make_program,
        partial(tensor_runner.difference, cpu_backend="triton"),
    ),
}
GRAMMARS = {
    "views": views_grammar,
    "sizes": sizes_grammar,
    "indexing": indexing_grammar,
    "dtypes": dtypes_grammar,
    "reductions": reductions_grammar,
    "training": training_grammar,
}
for name, rows in GRAMMARS.items():
    KINDS[name] = (
        partial(scripts.make_script, rows),
        partial(script_runner.difference, rows.SETUP),
    )
KINDS["modules"] = (
    module_programs.make_program,
    partial(script_runner.difference, module_programs.SETUP),
)


class Different(Exception):
    """A program behaves otherwise when it is compiled."""


@st.composite
def programs(draw, kind):
    """Random programs; the first row of each table is the simplest."""
    return KINDS[kind][0](lambda count: draw(st.integers(0, count - 1)) if count > 1 else 0)


def search(
    first_seed: int, count: int, kind: str = "python", backend: str | None = None
) -> str | None:
    """Run `count` programs; the smallest failing one with what differs, or None."""
    found: list[str] = []
    difference = KINDS[kind][1]
    if backend is not None:
        difference = partial(difference, backend=backend)

    @seed(first_seed)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        report_multiple_bugs=False,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(programs(kind))
    def agree(program):
        try:
            what = difference(program)
        except Exception as error:
            what = f"the compiler fails: {type(error).__name__}: {error}"
        if what is not None:
            found.append(f"{program}\n{what}\n")
            raise Different

    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            agree()
    except Different:
        return found[-1]
    except Flaky:
        return f"{found[-1]}(not each time: a machine with much to do takes longer than it may)"
    finally:
        logging.disable(disabled)
    return None
