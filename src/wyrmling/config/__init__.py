"""Configuration: plain, typed, frozen data, read from TOML."""

from .fanout import layer_totals
from .load import load_config, with_overrides
from .paths import cache_directory, run_root
from .recipes import Recipe, list_recipes
from .rules import resolve_gradient_accumulation
from .schema import Config

__all__ = [
    "Config",
    "Recipe",
    "cache_directory",
    "layer_totals",
    "list_recipes",
    "load_config",
    "resolve_gradient_accumulation",
    "run_root",
    "with_overrides",
]
