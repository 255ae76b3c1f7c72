"""The package's layers: who may import whom, and what is imported where."""

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "minidynamo"

# From the bottom up; a module imports from its own layer and those before it. A name stands for the
# module or for the package with everything in it.
LAYERS = [
    [
        "config",
        "config_inert",
        "config_module",
        "exc",
        "events",
        "utils",
        "warning_filters",
        "markers",
        "compile_lock",
        "compile_options",
        "comptime",
        "deferred_torch",
        "fake_arguments",
        "fake_arguments",
        "fake_results",
        "remembered_sizes",
        "shape_env",
        "interruptions",
        "size_nodes",
        "stances",
        "transform_levels",
        "_C",
        "collector",
    ],
    ["bytecode"],
    [
        "captured_backward",
        "constant_values",
        "data_parallel",
        "draws",
        "fake_failures",
        "finalizers",
        "function_modes",
        "guard_checks",
        "guard_filter",
        "guard_expr",
        "guards",
        "histories",
        "joined_sources",
        "new_parameters",
        "out_tensors",
        "remedies",
        "listed_sources",
        "module_stack",
        "shape_history",
        "shape_specs",
        "shapes",
        "side_effects",
        "source",
        "source_calls",
        "source_chains",
        "symbolic_contexts",
        "trace_rules",
    ],
    ["autocast_nodes", "output_graph", "subgraphs", "tensor_storage"],
    ["variables"],
    ["handlers"],
    [
        "codegen",
        "generator_frames",
        "graph_breaks",
        "handed_sizes",
        "open_blocks",
        "put_back",
        "function_views",
        "reruns",
        "resume_execution",
        "stopped_frames",
    ],
    ["opcodes", "symbolic_convert"],
    ["recompilations"],
    ["convert_frame"],
    ["backends"],
    [
        "optimized_module",
        "regions",
        "eval_frame",
        "decorators",
        "callback",
        "explanation",
        "report",
    ],
    ["compiler", "support", "testing", "test_case", "__main__"],
    [""],  # minidynamo/__init__.py
]
# The compiler below the FX graph is a stack of its own.
INDUCTOR_USES = {
    "config",
    "config_inert",
    "config_module",
    "exc",
    "events",
    "utils",
    "compile_lock",
    "deferred_torch",
    "fake_results",
    "shape_env",
    "interruptions",
    "size_nodes",
    "transform_levels",
    "_C",
}
# Helpers of tests lie below minidynamo.inductor for torch's sake: they stand above everything.
TEST_HELPERS = {"inductor.test_case": "test_case", "inductor.utils": "testing"}
USES_INDUCTOR = {"backends", "compiler", "eval_frame", "support", ""}

# Modules imported late, inside functions, and why.
LATE_IMPORTS = {
    "triton": "optional",
    "numpy": "optional: torch works without it, and only Triton's interpreter needs it",
    "torch._functorch": "importing AOTAutograd takes a second",
    "functorch": "importing AOTAutograd takes a second",
}


def modules() -> dict[str, Path]:
    """Dotted name under minidynamo -> file; "" is the package itself."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


@cache
def tree_of(name: str) -> ast.Module:
    return ast.parse(MODULES[name].read_text(), filename=str(MODULES[name]))


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def import_nodes(body: list[ast.stmt], inside: bool = False):
    """(node, whether it is inside a function) of each import that runs."""
    for node in body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node, inside
        elif is_type_checking(node):
            yield from import_nodes(node.orelse, inside)
        else:
            function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            for field in ("body", "orelse", "finalbody", "handlers", "cases"):
                children = getattr(node, field, None)
                if isinstance(children, list):
                    yield from import_nodes(children, inside or function)


def absolute_names(name: str, node: ast.Import | ast.ImportFrom) -> list[str]:
    """Dotted names of the modules that an import statement of the module `name` mentions."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    base = node.module or ""
    if node.level:
        package = ["minidynamo", *[part for part in name.split(".") if part]]
        if MODULES[name].name != "__init__.py":
            package.pop()
        package = package[: len(package) - node.level + 1]
        base = ".".join([*package, *([base] if base else [])])
    names = []
    for alias in node.names:
        full = f"{base}.{alias.name}"
        known = full.removeprefix("minidynamo.") in MODULES or full == "minidynamo._C"
        names.append(full if known else base)
    return names


def edges(name: str, inside_too: bool = False) -> set[str]:
    """Modules of the package that `name` imports, as names relative to it."""
    found = set()
    for node, inside in import_nodes(tree_of(name).body):
        if not inside or inside_too:
            for target in absolute_names(name, node):
                if target.split(".")[0] == "minidynamo":
                    found.add(target.removeprefix("minidynamo").removeprefix("."))
    return found - {name}


def layer_of(name: str) -> int:
    top = TEST_HELPERS.get(name, name).split(".")[0]
    ranks = [rank for rank, names in enumerate(LAYERS) if top in names]
    assert len(ranks) == 1, f"{top} is in {len(ranks)} layers; name it once in LAYERS"
    return ranks[0]


def is_inductor(name: str) -> bool:
    return name.split(".")[0] == "inductor" and name not in TEST_HELPERS


@pytest.mark.parametrize("name", MODULES)
def test_imports_go_downwards(name):
    for target in edges(name, inside_too=True):
        if is_inductor(name):
            assert is_inductor(target) or target in INDUCTOR_USES, f"{name} imports {target}"
        elif is_inductor(target):
            user = name.split(".")[0]
            assert user in USES_INDUCTOR or name in TEST_HELPERS, f"{name} imports {target}"
        elif target != "":  # the package itself: nothing is taken from it
            assert layer_of(target) <= layer_of(name), f"{name} imports {target}, a layer above"
        else:
            pytest.fail(f"{name} imports from minidynamo/__init__.py, which imports everything")


def packages_of(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


def test_there_are_no_import_cycles():
    state: dict[str, int] = {}

    def visit(name: str, path: tuple[str, ...]) -> None:
        if state.get(name) == 2:
            return
        assert state.get(name) != 1, "cycle: " + " -> ".join([*path[path.index(name) :], name])
        state[name] = 1
        targets = edges(name) & set(MODULES)
        # A module of another package imports that package first.
        packages = {parent for target in targets for parent in packages_of(target)}
        targets |= packages - {name, *packages_of(name)}
        for target in sorted(targets):
            visit(target, (*path, name))
        state[name] = 2

    for name in MODULES:
        visit(name, ())


@pytest.mark.parametrize("name", MODULES)
def test_imports_are_at_the_top(name):
    for node, inside in import_nodes(tree_of(name).body):
        if inside:
            for target in absolute_names(name, node):
                allowed = any(
                    target == late or target.startswith(f"{late}.") for late in LATE_IMPORTS
                )
                assert allowed, (
                    f"{MODULES[name]}:{node.lineno}: import of {target} in a function"
                )


@pytest.mark.parametrize("name", MODULES)
def test_nothing_of_torchs_compiler_is_used(name):
    forbidden = ("torch._dynamo", "torch._inductor", "torch.compile")
    for node in ast.walk(tree_of(name)):
        mentioned = []
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            mentioned = absolute_names(name, node)
            if isinstance(node, ast.ImportFrom):
                mentioned += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            mentioned = [ast.unparse(node)]
        for text in mentioned:
            hit = any(text == word or text.startswith(f"{word}.") for word in forbidden)
            assert not hit, f"{MODULES[name]}:{node.lineno}: {text}"


@pytest.mark.parametrize("name", MODULES)
def test_python_versions_are_known_in_one_module(name):
    if name == "bytecode.current":
        return
    for node in ast.walk(tree_of(name)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            reads = node.value.id == "sys" and node.attr in (
                "version_info",
                "hexversion",
                "version",
            )
            assert not reads, f"{MODULES[name]}:{node.lineno} reads sys.{node.attr}"


def test_cpython_versions_are_known_in_one_header():
    for path in sorted((PACKAGE / "csrc").iterdir()):
        if path.name != "compat.h":
            assert not re.search(
                r"\bPY_(VERSION_HEX|M[AI][JN]OR_VERSION)\b", path.read_text()
            ), path


def test_importing_is_light():
    """`import minidynamo` and making a compiled function load nothing of torch's compiler."""
    program = (
        "import sys, torch\n"
        "before = set(sys.modules)\n"
        "import minidynamo\n"
        "minidynamo.compile, minidynamo.explain, minidynamo.OptimizedModule\n"
        "new = set(sys.modules) - before\n"
        "heavy = ('torch._dynamo', 'torch._inductor', 'torch._functorch.aot_autograd', 'triton')\n"
        "print(sorted(n for n in new if n in heavy))\n"
    )
    output = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert output.stdout.strip() == "[]"
