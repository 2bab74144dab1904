"""Where data and runs lie."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from wyrmling.config import Config, cache_directory, load_config, run_root
from wyrmling.errors import ConfigError


def test_the_key_beats_the_variable_and_the_variable_beats_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chosen = load_config("tiny", ["dataset.cache_dir=c", "run_layout.base_dir=r"])
    assert run_root(Config()) == Path("runs")
    monkeypatch.setenv("WYRMLING_CACHE_DIR", "from/variable")
    monkeypatch.setenv("WYRMLING_RUN_ROOT", "roots")
    assert cache_directory(Config()) == Path("from/variable")
    assert run_root(Config()) == Path("roots")
    assert cache_directory(chosen) == Path("c")
    assert run_root(chosen) == Path("r")


@pytest.mark.skipif(os.name == "nt", reason="Windows has another place for caches")
def test_the_cache_lies_in_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_directory(Config()) == tmp_path / ".cache" / "wyrmling"
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_directory(Config()) == Path("/somewhere/wyrmling")
    monkeypatch.setenv("WYRMLING_CACHE_DIR", "  ")
    assert cache_directory(Config()) == Path("/somewhere/wyrmling")


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """A number that the system does not know, as containers have them."""
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("LOCALAPPDATA", raising=False)
    monkeypatch.delenv("WYRMLING_CACHE_DIR", raising=False)
    with pytest.raises(ConfigError, match="WYRMLING_CACHE_DIR"):
        cache_directory(Config())


def test_a_tilde_is_the_home_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.setenv("WYRMLING_RUN_ROOT", "~/runs")
    assert run_root(Config()) == tmp_path / "runs"
    assert cache_directory(load_config("tiny", ["dataset.cache_dir=~/c"])) == tmp_path / "c"
