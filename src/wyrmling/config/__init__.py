"""Configuration: plain, typed, frozen data, read from TOML."""

from .bundle import Bundle, Stage, load_bundle
from .fanout import layer_totals
from .load import load_config, with_overrides
from .paths import bundle_folder, cache_directory, run_folder, run_root
from .recipes import Recipe, list_recipes
from .rules import resolve_gradient_accumulation
from .schema import Config

__all__ = [
    "Bundle",
    "Config",
    "Recipe",
    "Stage",
    "bundle_folder",
    "cache_directory",
    "layer_totals",
    "list_recipes",
    "load_bundle",
    "load_config",
    "resolve_gradient_accumulation",
    "run_folder",
    "run_root",
    "with_overrides",
]
