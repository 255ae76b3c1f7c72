"""Makes `.venv` for this checkout: torch, the packages asked for, and the extension, built.

    python3 tools/setup_env.py [--venv .venv] [--torch "torch==2.13.0"] [test] [check] [sweep]

Run it with the Python to build for. Packages of that Python stay visible in `.venv` and are never
changed; only what is missing is installed, into `.venv`. Without arguments: what running needs.
`test` adds what the tests need, `check` the linters, `sweep` what the table of operators needs.
A second run finds everything done.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import sysconfig
import venv
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MIN_TORCH = (2, 11)
# A version known to work first: the newest may come with a CUDA that the machine's driver lacks.
TORCH_CHOICES = ("torch==2.13.0", "torch>=2.11")
RUNTIME = ["setuptools>=77", "numpy"]
GROUPS = {
    "test": ["pytest>=8", "pytest-xdist", "hypothesis"],
    "check": ["ruff==0.17.5", "mypy>=1.18"],
    "sweep": ["expecttest"],  # what torch's table of operators needs
}
# Tests that need these are skipped where they cannot be had.
OPTIONAL = {"test": ["triton", "transformers"]}


def main() -> None:
    """Entry point; ends the process with a message when a step cannot be done."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv")
    parser.add_argument(
        "--torch", default="", help="what pip shall install where there is no torch"
    )
    parser.add_argument("groups", nargs="*", choices=[*GROUPS, []])
    arguments = parser.parse_args()
    if not (3, 11) <= sys.version_info[:2] <= (3, 13):
        found = sys.version.split()[0]
        sys.exit(
            f"minidynamo needs Python 3.11 to 3.13, this is {found}: make PYTHON=python3.11"
        )
    python = make_venv(arguments.venv)
    if not torch_version(python):
        install_torch(python, arguments.torch)
    wanted = [*RUNTIME, *(row for group in arguments.groups for row in GROUPS[group])]
    if not pip_install(python, wanted):
        sys.exit("cannot install " + " ".join(wanted))
    for row in (row for group in arguments.groups for row in OPTIONAL.get(group, [])):
        if not pip_install(python, [row]):
            print(f"{row} is not to be had here; tests that need it are skipped")
    build = [str(python), "setup.py", "-q", "build_ext", "--inplace"]
    # Byte code beside the sources, as pip leaves it: under PYTHONDONTWRITEBYTECODE every process
    # would compile some 250 modules anew.
    bytecode = [str(python), "-m", "compileall", "-q", "minidynamo"]
    if any(subprocess.run(command, cwd=ROOT).returncode for command in (build, bytecode)):
        sys.exit(1)


def make_venv(folder: Path) -> Path:
    """The interpreter of the virtual environment `folder`, made when it is not there."""
    python = folder / "bin" / "python"
    if not python.exists():
        print(f"creating {folder}", flush=True)
        try:
            venv.EnvBuilder(with_pip=True, symlinks=True).create(folder)
        except subprocess.CalledProcessError:
            short = f"{sys.version_info[0]}.{sys.version_info[1]}"
            sys.exit(
                "cannot create a virtual environment with pip: on Debian and Ubuntu "
                f"apt-get install python{short}-venv"
            )
    show_packages(python)
    return python


def show_packages(python: Path) -> None:
    """Let `python` see the packages of the interpreter that runs this script.

    `--system-site-packages` would show those of the base interpreter, which is another one when
    this script runs in a virtual environment.
    """
    ours = {
        Path(path) for path in sys.path if path.endswith(("site-packages", "dist-packages"))
    }
    ours.discard(python.parent.parent / site_packages(python))
    lines = [f"import site; site.addsitedir({str(path)!r})" for path in sorted(ours)]
    target = python.parent.parent / site_packages(python) / "outer_packages.pth"
    if has_torch():
        target.write_text("\n".join(lines) + "\n")
    else:
        target.unlink(missing_ok=True)


def site_packages(python: Path) -> str:
    """Where packages lie under the folder of the virtual environment."""
    return sysconfig.get_path("purelib", "venv", {"base": "."}).removeprefix("./")


def has_torch() -> bool:
    """Whether the interpreter that runs this script has a torch that is new enough."""
    try:
        return is_new_enough(version("torch"))
    except PackageNotFoundError:
        return False


def is_new_enough(text: str) -> bool:
    """Whether this version of torch is supported."""
    return tuple(int(part) for part in text.split(".")[:2]) >= MIN_TORCH


def torch_version(python: Path) -> str:
    """The version of torch that `python` sees and supports, or ""."""
    code = (
        "import importlib.metadata as m\n"
        "try: print(m.version('torch'))\n"
        "except m.PackageNotFoundError: print()"
    )
    done = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True)
    found = done.stdout.strip()
    return found if found and is_new_enough(found) else ""


def pip_install(python: Path, requirements: list[str]) -> bool:
    """Have pip install what is missing of `requirements`; whether it could.

    pip leaves alone what lies outside of the virtual environment.
    """
    command = [str(python), "-m", "pip", "install", "--quiet", *requirements]
    return subprocess.run(command).returncode == 0


def install_torch(python: Path, wanted: str) -> None:
    """Install torch: what the user asked for, or the first of `TORCH_CHOICES` that can be had."""
    print("installing torch", flush=True)
    choices = [shlex.split(wanted)] if wanted else [[choice] for choice in TORCH_CHOICES]
    if not any(pip_install(python, choice) for choice in choices):
        sys.exit('cannot install torch; choose one that pip can reach: make TORCH="torch==..."')


if __name__ == "__main__":
    main()
