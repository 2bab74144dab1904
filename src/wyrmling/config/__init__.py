"""Configuration: plain, typed, frozen data, read from TOML."""

from .schema import Config

__all__ = ["Config"]
