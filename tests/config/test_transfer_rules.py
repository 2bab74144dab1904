"""Rules of `[training.init_transfer]`: each is broken once and kept once."""

from __future__ import annotations

from typing import Any

import pytest

from wyrmling.config import Config
from wyrmling.errors import ConfigError

TABLE = "training.init_transfer"
OTHER = {"interface_checkpoint_path": "runs/b"}


def config_of(table: dict[str, Any], model: dict[str, Any] | None = None, **training: Any) -> Config:
    start = {"launch_mode": "init_from_checkpoint", "init_checkpoint_path": "runs/a"} | training
    return Config.from_dict({"training": {**start, "init_transfer": table}, "model": model or {}})


@pytest.mark.parametrize(
    ("table", "message"),
    [
        *(
            ({key: value}, f"{TABLE}.{key} requires {TABLE}.interface_checkpoint_path")
            for key, value in (
                ("interface_checkpoint_step", 3),
                ("preserve_interface_input_embedding", True),
                ("preserve_interface_output_head", True),
                ("interface_output_head_blend_alpha", 0.5),
            )
        ),
        (
            OTHER | {"preserve_interface_output_head": True, "interface_output_head_blend_alpha": 0.5},
            f"{TABLE}.preserve_interface_output_head cannot be combined with "
            f"{TABLE}.interface_output_head_blend_alpha",
        ),
        (
            {"backbone_grad_scale": 0.0},
            f"{TABLE}.backbone_grad_scale requires {TABLE}.backbone_grad_scale_steps",
        ),
        (
            {"backbone_grad_scale_steps": 5},
            f"{TABLE}.backbone_grad_scale_steps requires {TABLE}.backbone_grad_scale",
        ),
        ({"fresh_top_heads": 5}, f"{TABLE}.fresh_top_heads must be <= model.n_head (5 > 4)"),
    ],
)
def test_every_rule_has_examples_that_break_it_alone(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config_of(table)
    assert str(caught.value) == message


@pytest.mark.parametrize("key", ["preserve_interface_output_head", "interface_output_head_blend_alpha"])
def test_a_tied_model_has_no_head_to_lend(key: str) -> None:
    value: Any = True if key.startswith("preserve") else 0.5
    with pytest.raises(ConfigError, match=rf"^{TABLE}\.{key} cannot be combined with model\.tie_embeddings$"):
        config_of({**OTHER, key: value}, {"tie_embeddings": True})


@pytest.mark.parametrize(
    "table",
    [
        OTHER,
        {"backbone_blend_alpha": 0.5},
        {"backbone_grad_scale": 0.5, "backbone_grad_scale_steps": 2},
        {"fresh_top_heads": 1},
        {"fresh_surfaces": True},
        {"match_fresh_rms": True},
        {"preserve_fresh_decoder": True},
    ],
)
def test_every_option_needs_a_checkpoint_to_start_from(table: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=rf"^{TABLE}\.\w+ requires training\.init_checkpoint_path"):
        config_of(table, launch_mode="fresh", init_checkpoint_path=None)
    assert config_of(table).training.init_transfer.model_dump(exclude_defaults=True)
    # a run that goes on keeps its table
    config_of(table, launch_mode="resume_exact_run", init_checkpoint_path=None, resume_run_dir="runs/c")


@pytest.mark.parametrize(
    "key", ["backbone_blend_alpha", "decoder_blend_alpha", "norm_blend_alpha", "backbone_grad_scale"]
)
@pytest.mark.parametrize("value", [-0.1, 1.1])
def test_shares_lie_between_0_and_1(key: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"{TABLE}\.{key}"):
        config_of({key: value})
