"""Builds the one extension module, `minidynamo._C`, from `minidynamo/csrc/`.

    python setup.py build_ext --inplace        development build, incremental
    pip install --no-build-isolation .         install; torch must be there already

An object is compiled again only when its source, a header that it included, or its command line
changed (objects, dependency files and command lines lie in `build/<python tag>/`).
Environment: CC, CXX, MAX_JOBS (at most 2 are used), and MINIDYNAMO_HOOK_ONLY=1 for developers:
only the frame hook (the C files and module.cpp), which needs no torch at all.
The metadata steps of pip need neither a compiler nor torch: all checks run when the build does.
"""

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import setuptools
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
CSRC = Path("minidynamo") / "csrc"
COMMON_FLAGS = ["-O2", "-g0", "-fPIC", "-Wall", "-fvisibility=hidden", "-fno-strict-aliasing"]
C_FLAGS = ["-std=gnu11"]
CXX_FLAGS = ["-std=c++20", "-DTORCH_EXTENSION_NAME=_C", "-D_GLIBCXX_USE_CXX11_ABI=1"]
TORCH_LIBRARIES = ["c10", "torch_cpu", "torch", "torch_python"]


def hook_only() -> bool:
    """Whether the developer asked for the frame hook alone (see the module's docstring)."""
    return os.environ.get("MINIDYNAMO_HOOK_ONLY", "") not in ("", "0")


def fail(message: str):
    """Ends the build with one message and no traceback."""
    sys.exit(f"minidynamo: cannot build the extension: {message}")


def check_setuptools():
    """Ends the build where setuptools cannot read pyproject.toml or makes no wheels: the one that a
    new environment of CPython 3.11 has.
    """
    version = setuptools.__version__
    if int(version.partition(".")[0]) < 77:
        fail(f"setuptools {version} is too old: pip install 'setuptools>=77'")


def sources() -> list[str]:
    """Paths of what is compiled, relative to the root: every .c, and with torch every .cpp."""
    names = sorted(path.name for path in (ROOT / CSRC).glob("*.c"))
    names += sorted(path.name for path in (ROOT / CSRC).glob("*.cpp"))
    if hook_only():
        names = [name for name in names if name.endswith(".c") or name == "module.cpp"]
    return [str(CSRC / name) for name in names]


def compiler(variable: str, default: str) -> list[str]:
    """The compiler command from the environment or the usual name; ends the build without one."""
    command = shlex.split(os.environ.get(variable, "")) or [default]
    if shutil.which(command[0]) is None:
        fail(
            f"no compiler {command[0]!r}. Install GCC (Debian and Ubuntu: apt-get install g++; "
            f"Fedora: dnf install gcc-c++) or set {variable}."
        )
    return command


def python_include() -> str:
    """Folder of Python.h; ends the build when this Python came without its headers."""
    include = sysconfig.get_path("include")
    if not Path(include, "internal", "pycore_frame.h").is_file():
        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        fail(
            f"the headers of Python {version} are not in {include}. Install them "
            f"(Debian and Ubuntu: apt-get install python{version}-dev; Fedora: "
            f"dnf install python{version}-devel), or use a Python that brings them (pyenv, conda)."
        )
    return include


def torch_root() -> Path:
    """Folder of the installed torch package, found without importing it."""
    spec = importlib.util.find_spec("torch")
    root = Path(spec.submodule_search_locations[0]) if spec else None
    if root is None or not (root / "include" / "torch" / "extension.h").is_file():
        fail(
            "torch and its headers are not importable here. Install torch 2.11 or newer "
            "(pip install torch), then install with: pip install --no-build-isolation ."
        )
    return root


class Toolchain:
    """The command lines of one build: compilers, flags, include and library paths."""

    def __init__(self):
        python = python_include()
        self.c = [*compiler("CC", "gcc"), *COMMON_FLAGS, *C_FLAGS, "-isystem", python]
        self.cxx = [*compiler("CXX", "g++"), *COMMON_FLAGS, *CXX_FLAGS, "-isystem", python]
        self.link = [*compiler("CXX", "g++"), "-shared"]
        self.libraries: list[str] = []
        if hook_only():
            self.c.append("-DMINIDYNAMO_HOOK_ONLY")
            self.cxx.append("-DMINIDYNAMO_HOOK_ONLY")
            return
        root = torch_root()
        for folder in (root / "include", root / "include/torch/csrc/api/include"):
            self.cxx += ["-isystem", str(folder)]
        # In site-packages torch lies beside us; in a development tree torch, imported first, has
        # loaded the same libraries already.
        self.libraries = [f"-L{root / 'lib'}", "-Wl,-rpath,$ORIGIN/../torch/lib"]
        self.libraries += [f"-l{name}" for name in TORCH_LIBRARIES]

    def command(self, source: str, target: Path) -> list[str]:
        base = self.c if source.endswith(".c") else self.cxx
        return [*base, "-MMD", "-MF", f"{target}.d", "-c", source, "-o", str(target)]


def dependencies(makefile: Path) -> list[str]:
    """Files named by the dependency file that the compiler wrote for one object."""
    text = makefile.read_text().replace("\\\n", " ")
    return shlex.split(text.partition(":")[2])


def is_fresh(target: Path, command: list[str]) -> bool:
    """Whether `target` was made by this very command from files that are older than it."""
    record = Path(f"{target}.cmd")
    makefile = Path(f"{target}.d")
    if not (target.is_file() and record.is_file() and makefile.is_file()):
        return False
    if record.read_text() != shlex.join(command):
        return False
    made = target.stat().st_mtime
    files = [Path(name) for name in dependencies(makefile)]
    return all(file.is_file() and file.stat().st_mtime <= made for file in files)


def run(command: list[str], target: Path):
    """Runs one command; `target` and the record of how it was made appear only on success."""
    target.parent.mkdir(parents=True, exist_ok=True)
    record = Path(f"{target}.cmd")
    record.unlink(missing_ok=True)
    print(f"building {target}\n", end="", flush=True)
    if subprocess.run(command).returncode != 0:
        target.unlink(missing_ok=True)
        fail("a command failed, see above: " + shlex.join(command))
    record.write_text(shlex.join(command))


def replace(source: Path, destination: Path):
    """Copies to a new file and renames that: a process that has the old one loaded keeps it."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    temporary = destination.with_name(f"{destination.name}.{os.getpid()}")
    shutil.copy2(source, temporary)
    os.replace(temporary, destination)


class IncrementalBuild(build_ext):
    """Compiles what is stale, two files at a time at most, and links when something changed."""

    def build_extension(self, ext: Extension):
        tools = Toolchain()
        folder = Path("build", sys.implementation.cache_tag + ("-hook" if hook_only() else ""))
        jobs = []
        objects = []
        for source in ext.sources:
            target = folder / (Path(source).name + ".o")
            objects.append(target)
            command = tools.command(source, target)
            if not is_fresh(target, command):
                jobs.append((command, target))
        workers = max(1, min(2, int(os.environ.get("MAX_JOBS", "2"))))
        with ThreadPoolExecutor(workers) as pool:
            for future in [pool.submit(run, *job) for job in jobs]:
                future.result()
        self.link(tools, objects, folder / "_C.so", Path(self.get_ext_fullpath(ext.name)))

    def link(self, tools: Toolchain, objects: list[Path], target: Path, destination: Path):
        command = [*tools.link, *map(str, objects), *tools.libraries, "-o", str(target)]
        record = Path(f"{target}.cmd")
        newest = max(path.stat().st_mtime for path in objects)
        same = record.is_file() and record.read_text() == shlex.join(command)
        if not (same and target.is_file() and target.stat().st_mtime >= newest):
            run(command, target)
        replace(target, destination)

    def copy_extensions_to_source(self):
        for ext in self.extensions:
            name = self.get_ext_filename(ext.name)
            replace(Path(self.build_lib, name), ROOT / name)

    def get_source_files(self) -> list[str]:
        headers = [str(CSRC / path.name) for path in sorted((ROOT / CSRC).glob("*.h"))]
        return [*super().get_source_files(), *headers]


os.chdir(ROOT)
check_setuptools()
setup(
    ext_modules=[Extension("minidynamo._C", sources())],
    cmdclass={"build_ext": IncrementalBuild},
)
