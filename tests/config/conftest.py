"""Short paths in messages: every test of this folder runs in a folder of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from wyrmling.config import load_config
from wyrmling.errors import ConfigError


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("WYRMLING_CACHE_DIR", "WYRMLING_RUN_ROOT", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], str]:
    """Write a file into the folder of the test and return its name."""

    def writer(name: str, content: str) -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
        return name

    return writer


@pytest.fixture
def refusal() -> Callable[..., str]:
    """The one line with which files and options are refused."""

    def refuse(*paths: str, overrides: tuple[str, ...] = ()) -> str:
        with pytest.raises(ConfigError) as caught:
            load_config(paths, overrides)
        message = str(caught.value)
        assert "\n" not in message
        assert caught.value.exit_code == 2
        return message

    return refuse
