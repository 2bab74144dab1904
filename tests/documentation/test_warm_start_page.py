"""The page on warm start names every key of its table, and shows what the program says."""

from __future__ import annotations

import re
from pathlib import Path

from wyrmling.checkpoint.transfer import Growth
from wyrmling.config import load_config
from wyrmling.config.schema import InitTransfer

PAGE = (Path(__file__).parents[2] / "docs" / "warm-start.md").read_text(encoding="utf-8")


def test_every_key_is_on_the_page() -> None:
    for key in InitTransfer.model_fields:
        assert f"`{key}`" in PAGE or key == "interface_checkpoint_step", key


def test_every_command_has_settings_that_hold() -> None:
    commands = re.findall(r"^    wyrmling train tiny((?:.*\\\n)*.*)$", PAGE, flags=re.M)
    assert len(commands) >= 5
    for command in commands:
        load_config("tiny", re.findall(r"--set (\S+)", command))


def test_what_is_shown_is_what_is_said() -> None:
    small = load_config("tiny").model
    large = load_config("tiny", ["model.n_head=3", "model.latent_total=384"]).model
    assert f"grown, {Growth.between(small, large, 'small').text()}: encoder" in PAGE
