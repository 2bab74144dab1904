"""Dragon Hatchling language models: train, resume, study, generate."""

from ._version import __version__

__all__ = ["__version__"]
