"""The house stays in order: imports run one way, files stay short, nothing heavy at start."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from time_budget import SECONDS

SOURCE = Path(__file__).parents[1] / "src" / "wyrmling"
# From the ground up: a package may import those before it, never one after it.
ORDER = [
    "_version",
    "errors",
    "files",
    "config",
    "numerics",
    "text",
    "data",
    "memory",
    "model",
    "optim",
    "checkpoint",
    "runs",
    "watch",
    "parallel",
    "generation",
    "training",
    "cli",
    "__main__",
]
# The computation knows nothing of files, processes or screens.
PURE = {"memory", "model"}
IMPURE_MODULES = {"pathlib", "os", "sys", "subprocess", "rich", "typer", "socket", "shutil", "io", "tempfile"}


def python_files() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def package_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """(module, line) of every import in a file, relative ones resolved to `wyrmling.…`."""
    parts = ["wyrmling", *path.relative_to(SOURCE).with_suffix("").parts]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = parts[: len(parts) - node.level] if node.level else []
            module = ".".join([*base, *(node.module or "").split(".")]).strip(".")
            yield module, node.lineno
            yield from ((f"{module}.{alias.name}", node.lineno) for alias in node.names)


@pytest.mark.parametrize("path", python_files(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_run_one_way(path: Path) -> None:
    own = package_of(path)
    if own == "__init__":
        return
    assert own in ORDER, f"{own} is not in the house's plan"
    for module, line in imports(path):
        if not module.startswith("wyrmling."):
            continue
        other = module.split(".")[1]
        if other in ORDER:
            assert ORDER.index(other) <= ORDER.index(own), f"{path}:{line} imports {module}"


@pytest.mark.parametrize(
    "path", [p for p in python_files() if package_of(p) in PURE], ids=lambda p: str(p.relative_to(SOURCE))
)
def test_memory_and_model_know_nothing_of_the_world(path: Path) -> None:
    for module, line in imports(path):
        assert module.split(".")[0] not in IMPURE_MODULES, f"{path}:{line} imports {module}"


@pytest.mark.parametrize("path", python_files(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_files_and_functions_stay_readable(path: Path) -> None:
    """At most 400 lines a file and 60 lines of body a function; every public name says what it does."""
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= 400, f"{path} has {text.count(chr(10))} lines"
    tree = ast.parse(text)
    assert text.strip() == "" or ast.get_docstring(tree), f"{path} does not say what it is"
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[1] if ast.get_docstring(node) and len(node.body) > 1 else node.body[0]
            length = (node.end_lineno or 0) - first.lineno + 1
            assert length <= 60, f"{path}:{node.lineno} {node.name} has {length} lines"


def test_nothing_heavy_is_imported_at_start() -> None:
    """`import wyrmling` and `--help` do without torch, numpy and pydantic."""
    code = (
        "import sys, wyrmling, wyrmling.cli.main\n"
        "heavy = {'torch', 'numpy', 'pydantic', 'matplotlib', 'tokenizers'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_public_names_exist_and_are_documented() -> None:
    import wyrmling

    for name in wyrmling.__all__:
        assert getattr(wyrmling, name) is not None
        if name != "__version__":
            assert getattr(wyrmling, name).__doc__, name
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        wyrmling.nothing_of_the_kind  # noqa: B018


def test_every_folder_of_tests_mirrors_a_package_and_has_a_time_budget() -> None:
    root = Path(__file__).parent
    folders = {path.name for path in root.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders <= {*ORDER, "joins", "documentation", "benchmarks"}, folders
    assert folders <= SECONDS.keys()
    assert sum(SECONDS.values()) < 12 * 60
