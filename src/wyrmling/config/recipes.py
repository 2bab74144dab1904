"""The configurations that come with the package: TOML files that begin with a comment about themselves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

RECIPE_DIRECTORY = Path(__file__).parent / "recipes"
DEFAULT_RECIPE = "shakespeare"


@dataclass(frozen=True)
class Recipe:
    """A shipped configuration."""

    name: str
    description: str
    """What it shows and how long it takes: the comment at the top of its file, on one line."""
    path: Path


def list_recipes() -> list[Recipe]:
    """Every shipped recipe, the default first."""
    paths = sorted(RECIPE_DIRECTORY.glob("*.toml"), key=lambda path: (path.stem != DEFAULT_RECIPE, path.stem))
    return [Recipe(path.stem, _first_comment(path), path) for path in paths]


def recipe_path(name: str) -> Path | None:
    """The file of a recipe, or None."""
    path = RECIPE_DIRECTORY / f"{name}.toml"
    return path if name == Path(name).name and path.is_file() else None


def _first_comment(path: Path) -> str:
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("# ").rstrip())
    return " ".join(lines)
