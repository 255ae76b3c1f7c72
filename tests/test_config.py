"""Flags: names, types, environment, patch()."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from minidynamo import config
from minidynamo.inductor import config as inductor_config

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def unchanged():
    """Every test leaves the flags as it found them."""
    before = config.to_dict()
    yield
    after = config.to_dict()
    for name, value in before.items():
        setattr(config, name, value)
    assert after == before, "the test left a flag changed"


def test_defaults_are_those_of_torch():
    theirs = {
        "recompile_limit": 8,
        "accumulated_recompile_limit": 256,
        "verbose": False,
        "verify_correctness": False,
        "suppress_errors": False,
        "assume_static_by_default": True,
        "automatic_dynamic_shapes": True,
        "specialize_int": False,
        "specialize_float": False,
        "capture_scalar_outputs": False,
        "capture_dynamic_output_shape_ops": False,
        "replay_side_effects": True,
        "fail_on_recompile_limit_hit": False,
    }
    assert {name: config.defaults()[name] for name in theirs} == theirs


@pytest.mark.parametrize("flags", [config, inductor_config])
def test_flags_are_few_and_documented(flags):
    limit = 30 if flags is config else 40
    assert len(flags.to_dict()) <= limit
    table = flags.describe().splitlines()
    assert len(table) == len(flags.to_dict())
    assert all(len(line.partition("# ")[2]) > 10 for line in table)


def test_attributes_are_set_and_read():
    config.recompile_limit = 4
    assert config.recompile_limit == config.cache_size_limit == 4
    config.cache_size_limit = 8
    assert config.recompile_limit == 8


@pytest.mark.parametrize(
    "change",
    [
        lambda: setattr(config, "recompil_limit", 4),
        lambda: config.patch(recompil_limit=4),
        lambda: config.patch("recompil_limit", 4),
        lambda: config.patch({"recompil_limit": 4}),
        lambda: config.recompil_limit,
    ],
)
def test_unknown_names_are_refused_with_the_known_ones(change):
    with pytest.raises(
        AttributeError, match="did you mean 'recompile_limit'.*verify_correctness"
    ):
        change()


@pytest.mark.parametrize(
    "name, value", [("recompile_limit", "4"), ("verbose", 1), ("recompile_limit", True)]
)
def test_wrong_types_are_refused(name, value):
    with pytest.raises(TypeError, match=f"{name} must be"):
        setattr(config, name, value)
    with pytest.raises(TypeError, match=f"{name} must be"):
        config.patch(name, value)


def test_values_are_refused_that_are_no_choice():
    with pytest.raises(ValueError, match="cpu_backend must be one of 'cpp', 'triton'"):
        inductor_config.patch(cpu_backend="cuda")


def test_flags_cannot_be_deleted():
    with pytest.raises(AttributeError, match="cannot be deleted"):
        del config.verbose


def test_patch_as_context_manager():
    with config.patch(recompile_limit=2, verbose=True):
        assert (config.recompile_limit, config.verbose) == (2, True)
        with config.patch("cache_size_limit", 3):
            assert config.recompile_limit == 3
        assert config.recompile_limit == 2
    assert (config.recompile_limit, config.verbose) == (8, False)


def test_patch_puts_values_back_after_an_exception():
    with pytest.raises(ZeroDivisionError), config.patch({"verbose": True}):
        assert config.verbose
        1 / 0
    assert not config.verbose


def test_patch_as_decorator_also_when_recursive():
    @config.patch("recompile_limit", 3)
    def depth(n):
        """Doc."""
        assert config.recompile_limit == 3
        return n and depth(n - 1)

    assert depth.__doc__ == "Doc."
    assert depth(3) == 0
    assert config.recompile_limit == 8


def test_patch_does_not_decorate_classes():
    with pytest.raises(TypeError, match="not the class .*Case"):

        @config.patch(verbose=True)
        class Case:
            pass


def run_python(program, **environment):
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )


def test_environment_overrides_defaults():
    done = run_python(
        "from minidynamo import config; print(config.recompile_limit, config.verbose, "
        "config.cache_dir, config.defaults()['recompile_limit'])",
        MINIDYNAMO_CACHE_SIZE_LIMIT="5",
        MINIDYNAMO_VERBOSE="on",
        MINIDYNAMO_CACHE_DIR="/somewhere",
    )
    assert done.stdout.split() == ["5", "True", "/somewhere", "8"], done.stderr


def test_a_bad_environment_variable_is_named():
    done = run_python("import minidynamo", MINIDYNAMO_RECOMPILE_LIMIT="many")
    assert done.returncode != 0
    assert "MINIDYNAMO_RECOMPILE_LIMIT='many'" in done.stderr
