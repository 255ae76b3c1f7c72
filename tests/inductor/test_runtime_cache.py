"""The disk cache: what comes back, damage, other people's folders, full disks, eviction."""

import os
import stat
import subprocess
import sys
import textwrap
import threading
import warnings

import pytest

from minidynamo import config
from minidynamo.inductor.runtime import cache
from minidynamo.inductor.runtime.cache import PlanCache, Store, content_key
from minidynamo.utils import forget_warnings


def test_put_and_get(tmp_path):
    files = Store(tmp_path / "deep" / "cache")
    assert files.get("lib", "k") is None and files.path("lib", "k") is None
    path = files.put("lib", "k", b"payload")
    assert path == files.path("lib", "k") and files.get("lib", "k") == b"payload"
    assert path.read_bytes().startswith(b"payload")
    assert files.get("other", "k") is None
    files.put("lib", "k", b"")
    assert files.get("lib", "k") == b""
    files.remove("lib", "k")
    files.remove("lib", "k")
    assert files.get("lib", "k") is None


def test_keys_depend_on_content_and_split():
    keys = {content_key("a", "b"), content_key("ab"), content_key("b", "a"), content_key()}
    assert len(keys) == 4 and content_key("a") == content_key(b"a")


def test_folders_are_private(tmp_path):
    os.umask(os.umask(0))  # whatever the umask is
    files = Store(tmp_path / "cache")
    path = files.put("lib", "k", b"x")
    for folder in (files.folder, path.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_own_folder_is_closed_to_others(tmp_path):
    files = Store(tmp_path)
    files.folder.mkdir(mode=0o777)
    files.folder.chmod(0o777)
    assert files.get("lib", "k") is None
    assert files.put("lib", "k", b"x") is not None
    assert stat.S_IMODE(files.folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("how", ["symlink", "open parent", "file"])
def test_unsafe_folders_are_refused_with_one_warning(tmp_path, how):
    root = tmp_path / "root"
    root.mkdir()
    files = Store(root)
    if how == "symlink":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        files.folder.symlink_to(tmp_path / "elsewhere")
    elif how == "open parent":
        root.chmod(0o777)
    else:
        files.folder.write_text("in the way")
    forget_warnings()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert files.put("lib", "k", b"x") is None
        assert files.put("lib", "l", b"x") is None
    assert len(caught) == 1 and "without a disk cache" in str(caught[0].message)
    assert files.get("lib", "k") is None


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "append"])
def test_damaged_files_are_removed(tmp_path, damage):
    files = Store(tmp_path / "cache")
    path = files.put("lib", "k", b"payload" * 100)
    content = bytearray(path.read_bytes())
    if damage == "flip":
        content[5] ^= 1
    elif damage == "truncate":
        del content[-100:]
    elif damage == "empty":
        content.clear()
    else:
        content += b"x"
    path.write_bytes(content)
    assert files.get("lib", "k") is None
    assert not path.exists()
    assert files.put("lib", "k", b"new") is not None and files.get("lib", "k") == b"new"


def test_a_full_disk_costs_the_caching_only(tmp_path, monkeypatch):
    files = Store(tmp_path / "cache")
    files.put("lib", "before", b"x")

    def full(self, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    forget_warnings()
    with pytest.warns(UserWarning, match="without a disk cache: .*No space"):
        assert files.put("lib", "k", b"x") is None
    assert files.get("lib", "before") == b"x"
    assert sorted(path.name for path in (files.folder / "lib").iterdir()) == ["before"]


def test_eviction_of_the_least_recently_used(tmp_path):
    files = Store(tmp_path / "cache")
    for index in range(6):
        path = files.put("lib", f"k{index}", b"x" * 1000)
        os.utime(path, (index, index))
    files.get("lib", "k0")  # now the most recent
    size = path.stat().st_size
    assert files.sweep(3 * size) == 3 * size
    kept = {path.name for path in (files.folder / "lib").iterdir()}
    assert kept == {"k0", "k4", "k5"}


def test_concurrent_writers_and_readers(tmp_path):
    files = Store(tmp_path / "cache")
    payloads = [bytes([index]) * 100_000 for index in range(4)]
    seen = []

    def work(payload):
        for _ in range(10):
            files.put("lib", "k", payload)
            seen.append(files.get("lib", "k"))

    threads = [threading.Thread(target=work, args=(payload,)) for payload in payloads]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(seen) <= set(payloads)
    assert [path.name for path in (files.folder / "lib").iterdir()] == ["k"]


def test_plan_cache(tmp_path):
    files = Store(tmp_path / "cache")
    plans = PlanCache(files)
    assert plans.get("g") is None
    library = files.put("lib", "l", b"elf")
    assert plans.put("g", '{"plan": 1}', library) and plans.put("h", "{}\n", None)
    found = plans.get("g")
    assert found.plan_json == '{"plan": 1}' and found.library == library
    assert plans.get("h").plan_json == "{}\n" and plans.get("h").library is None
    files.remove("lib", "l")
    assert plans.get("g") is None
    assert not plans.put("g", "{}", tmp_path / "kernels.so")  # a library outside the cache


def test_the_configured_folder_is_used(tmp_path):
    with config.patch(cache_dir=str(tmp_path / "mine")):
        cache.store().put("lib", "k", b"x")
    assert (tmp_path / "mine" / cache.FORMAT / "lib" / "k").exists()


def test_another_process_finds_plan_and_library(tmp_path):
    program = textwrap.dedent(
        """
        import sys
        from minidynamo.inductor.runtime import cpp_toolchain
        from minidynamo.inductor.runtime.cache import plan_cache
        found = plan_cache().get("graph")
        if found is None:
            source = 'extern "C" void k0(void**, const long*) {}'
            plan_cache().put("graph", "{}", cpp_toolchain.compile_library({"k0": source}))
        print("hit" if found else "miss")
        """
    )
    environment = {**os.environ, "MINIDYNAMO_CACHE_DIR": str(tmp_path / "cache")}
    outputs = [
        subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True
        ).stdout.split()
        for _ in range(2)
    ]
    assert outputs == [["miss"], ["hit"]]
