"""Makes `.venv` for this checkout: torch, the packages asked for, and the extension, built.

    python3 tools/setup_env.py [--venv .venv] [--torch "torch==2.13.0"] [test] [check]

Run it with the Python to build for. Packages of that Python stay visible in `.venv` and are never
changed; only what is missing is installed, into `.venv`. Without arguments: what running needs.
`test` adds what the tests need, `check` the linters. A second run finds everything done.
"""

from __future__ import annotations

import argparse
import json
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
# import name -> requirement
RUNTIME = {"setuptools": "setuptools>=77", "numpy": "numpy"}
GROUPS = {
    "test": {"pytest": "pytest>=8", "hypothesis": "hypothesis", "triton": "triton"},
    "check": {"ruff": "ruff==0.17.5", "mypy": "mypy>=1.18"},
}
# The tests that need these are skipped without them.
OPTIONAL = {"triton"}


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
        sys.exit(f"minidynamo needs Python 3.11 to 3.13, this is {found}: make PYTHON=python3.11")
    python = make_venv(arguments.venv)
    if not torch_version(python):
        install_torch(python, arguments.torch)
    wanted = dict(RUNTIME)
    for group in arguments.groups:
        wanted.update(GROUPS[group])
    install_missing(python, wanted)
    build = [str(python), "setup.py", "-q", "build_ext", "--inplace"]
    if subprocess.run(build, cwd=ROOT).returncode != 0:
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
    ours = {Path(path) for path in sys.path if path.endswith(("site-packages", "dist-packages"))}
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
    found = installed(python, ["torch"])["torch"]
    return found if found and is_new_enough(found) else ""


def installed(python: Path, names: list[str]) -> dict[str, str]:
    """Name -> version of each distribution that `python` sees, "" for none."""
    code = (
        "import importlib.metadata as m, json, sys\n"
        "have = {d.metadata['Name'].lower(): d.version for d in m.distributions()}\n"
        "print(json.dumps({name: have.get(name, '') for name in sys.argv[1:]}))"
    )
    output = subprocess.run(
        [python, "-c", code, *names], check=True, capture_output=True, text=True
    )
    return json.loads(output.stdout)


def pip_install(python: Path, requirements: list[str]) -> bool:
    """Whether pip could install `requirements` into the environment of `python`."""
    command = [str(python), "-m", "pip", "install", "--quiet", *requirements]
    print("installing", *requirements, flush=True)
    return subprocess.run(command).returncode == 0


def install_torch(python: Path, wanted: str) -> None:
    """Install torch: what the user asked for, or the first of `TORCH_CHOICES` that can be had."""
    choices = [shlex.split(wanted)] if wanted else [[choice] for choice in TORCH_CHOICES]
    if not any(pip_install(python, choice) for choice in choices):
        sys.exit('cannot install torch; choose one that pip can reach: make TORCH="torch==..."')


def install_missing(python: Path, wanted: dict[str, str]) -> None:
    """Install the requirements whose distribution is not there yet."""
    have = installed(python, list(wanted))
    needed = [row for name, row in wanted.items() if not have[name] and name not in OPTIONAL]
    if needed and not pip_install(python, needed):
        sys.exit("cannot install " + " ".join(needed))
    for name in OPTIONAL & set(wanted):
        if not have[name] and not pip_install(python, [wanted[name]]):
            print(f"{name} is not available here; the tests that need it are skipped")


if __name__ == "__main__":
    main()
