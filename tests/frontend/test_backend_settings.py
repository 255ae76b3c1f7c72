"""Settings of torch.backends that operators read when they run, changed inside of a frame."""

import types

import pytest
import torch
from testing import CountingBackend

import minidynamo

NAMES = ("cudnn.enabled", "cudnn.deterministic", "cudnn.allow_tf32", "mkldnn.enabled")
seen: list[bool] = []


def _setting(name: str) -> bool:
    module, attribute = name.split(".")
    return getattr(getattr(torch.backends, module), attribute)


@torch.library.custom_op("minidynamo_tests::reads_setting", mutates_args=())
def reads_setting(x: torch.Tensor, name: str) -> torch.Tensor:
    seen.append(_setting(name))
    return x + 1


@reads_setting.register_fake
def _(x: torch.Tensor, name: str) -> torch.Tensor:
    return torch.empty_like(x)


def of_modules(x, name):
    module, attribute = name.split(".")
    owner = torch.backends.cudnn if module == "cudnn" else torch.backends.mkldnn
    before = getattr(owner, attribute)
    setattr(owner, attribute, not before)
    y = reads_setting(x * 2, name)
    setattr(owner, attribute, before)
    return reads_setting(y, name)


def of_blocks(x, name):
    with torch.backends.cudnn.flags(enabled=False, deterministic=True, allow_tf32=False):
        y = reads_setting(x * 2, name)
    return reads_setting(y, name)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("program", [of_modules, of_blocks])
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_operators_read_what_the_program_set(program, name, backend):
    before = _setting(name)
    x = torch.ones(3)
    seen.clear()
    expected = program(x, name)
    wanted = list(seen)
    minidynamo.reset()
    compiled = minidynamo.compile(program, backend=backend)
    for _ in range(2):
        seen.clear()
        assert torch.equal(compiled(x, name), expected)
        assert seen == wanted and _setting(name) == before


def test_a_setting_is_not_stored_in_a_whole_graph():
    def f(x):
        torch.backends.cudnn.benchmark = False
        return x + 1

    with pytest.raises(minidynamo.exc.Unsupported, match="operators may read when they run"):
        minidynamo.compile(f, backend=CountingBackend(), fullgraph=True)(torch.ones(2))


class Counting(types.ModuleType):
    level = property(
        lambda self: self.stored, lambda self, level: self.__dict__.update(stored=level * 2)
    )


def test_properties_of_modules_of_the_program():
    module = Counting("module")
    module.level = 1

    def f(x):
        y = x * module.level
        module.level = 3
        return y + module.level, module.stored

    x = torch.ones(2)
    minidynamo.reset()
    results = []
    for run in (f, minidynamo.compile(f, backend="eager")):
        module.level = 1
        results.append((*run(x), module.level))
    assert torch.equal(results[0][0], results[1][0]) and results[0][1:] == results[1][1:] == (
        6,
        6,
    )


def test_questions_about_devices_and_builds():
    def program(x):
        torch.cuda.empty_cache()
        found = torch.xpu.is_available(), torch.mtia.is_available(), torch.cuda.is_initialized()
        built = torch.backends.cuda.is_flash_attention_available()
        ways = (
            torch.distributed.is_gloo_available(),
            torch.distributed.is_torchelastic_launched(),
        )
        return x + 1, found, built, ways

    if torch.cuda.is_initialized():
        pytest.skip("CUDA is in use, and its cache is emptied in a break")
    compiled = minidynamo.compile(program, backend="eager", fullgraph=True)
    found, expected = compiled(torch.ones(2)), program(torch.ones(2))
    assert torch.equal(found[0], expected[0]) and found[1:] == expected[1:]


def test_whether_cuda_is_in_use_is_asked_again(monkeypatch):
    def program(x):
        return x + 1 if torch.cuda.is_initialized() else x - 1

    monkeypatch.setattr(torch.cuda, "_initialized", False)
    counter = CountingBackend()
    compiled = minidynamo.compile(program, backend=counter, fullgraph=True)
    for value, expected in ((False, 0.0), (True, 2.0), (False, 0.0)):
        monkeypatch.setattr(torch.cuda, "_initialized", value)
        assert compiled(torch.ones(2)).tolist() == [expected] * 2
    assert len(counter.graphs) == 2
