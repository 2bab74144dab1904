"""`[[training.module_lr_scales]]`: a list of tables, with the file and line of every mistake in it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from wyrmling.config import load_config, with_overrides
from wyrmling.config.toml import as_toml

Write = Callable[[str, str], str]
Refusal = Callable[..., str]

TWO = """
[[training.module_lr_scales]]
target = "embedding"
scale = 0.5

[[training.module_lr_scales]]
target = "mamba"
scale = 0
mode = "gradient"
schedule = { final_scale = 2 }
"""
KEY = "training.module_lr_scales"


def test_tables_are_read_with_their_defaults_and_printed_so_that_they_can_be_read_again(write: Write) -> None:
    config = load_config(["tiny", write("a.toml", TWO)])
    first, second = config.training.module_lr_scales
    assert (first.target, first.scale, first.mode, first.schedule) == (
        "embedding",
        0.5,
        "learning_rate",
        None,
    )
    assert (second.scale, second.mode) == (0.0, "gradient")
    line = second.schedule
    assert line is not None
    assert (line.final_scale, line.start_fraction, line.end_fraction) == (2.0, 0.0, 1.0)
    assert load_config(write("b.toml", as_toml(config))) == config
    assert with_overrides(config, []) == config


def test_one_value_of_a_table_can_be_set_alone(write: Write) -> None:
    config = load_config(write("a.toml", TWO), [f"{KEY}.1.scale=0.25", f"{KEY}.1.schedule.end_fraction=0.5"])
    first, second = config.training.module_lr_scales
    assert first.scale == 0.5
    assert (second.target, second.scale) == ("mamba", 0.25)
    assert second.schedule is not None
    assert (second.schedule.final_scale, second.schedule.end_fraction) == (2.0, 0.5)


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        (
            '"mamba"',
            '"decoder"',
            7,
            f'{KEY}.1.target must be "embedding", "normalization", "output_head", "shared_lowrank_encoder", '
            '"shared_lowrank_decoder", "shared_lowrank_decay", "mamba" or "other_backbone", got "decoder" '
            '(did you mean "shared_lowrank_decoder"?)',
        ),
        ("mode =", "mod =", 9, f"{KEY}.1.mod: unknown key (did you mean {KEY}.1.mode?)"),
        (
            "final_scale",
            "final",
            10,
            f"{KEY}.1.schedule.final: unknown key (did you mean {KEY}.1.schedule.final_scale?) (and 1 more)",
        ),
        ("scale = 0\n", "", 6, f"{KEY}.1.scale is missing"),
        ("scale = 0.5", "scale = -1", 4, f"{KEY}.0.scale must be >= 0, got -1"),
        ("scale = 0.5", "scale = inf", 4, f"{KEY}.0.scale must be a finite number, got inf"),
        (
            '"mamba"',
            '"embedding"',
            7,
            f'{KEY}.1.target = "embedding" is given before, in {KEY}.0; write one table per target',
        ),
        (
            "final_scale = 2",
            "final_scale = 2, start_fraction = 0.6, end_fraction = 0.5",
            10,
            f"{KEY}.1.schedule.end_fraction must be >= {KEY}.1.schedule.start_fraction (0.5 < 0.6)",
        ),
        (
            "final_scale = 2",
            "final_scale = 2, start_fraction = 1.5",
            10,
            f"{KEY}.1.schedule.start_fraction must be <= 1, got 1.5",
        ),
    ],
)
def test_a_mistake_is_named_with_its_place(
    write: Write, refusal: Refusal, old: str, new: str, line: int, message: str
) -> None:
    assert TWO.count(old) == 1
    assert refusal(write("a.toml", TWO.replace(old, new))) == f"a.toml:{line}: {message}"


def test_one_table_instead_of_a_list_is_refused(write: Write, refusal: Refusal) -> None:
    path = write("a.toml", f'[{KEY}]\ntarget = "embedding"\nscale = 0.5\n')
    assert refusal(path) == f"a.toml:1: {KEY} must be a list, got a table"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (f'{KEY} = [{{target = "shared_lowrank_decay", scale = 0}}]', f"{KEY}.0.scale"),
        (
            f'{KEY} = [{{target = "shared_lowrank_encoder", scale = 1, schedule = {{final_scale = 0}}}}]',
            f"{KEY}.0.schedule.final_scale",
        ),
        (
            'training.launch_mode = "init_from_checkpoint"\ntraining.init_checkpoint_path = "x"\n'
            "training.init_transfer = {backbone_grad_scale = 0, backbone_grad_scale_steps = 9}",
            "training.init_transfer.backbone_grad_scale",
        ),
    ],
)
def test_neurons_that_are_replaced_are_not_frozen(
    write: Write, refusal: Refusal, text: str, key: str
) -> None:
    load_config(write("a.toml", f"{text}\n"))
    message = refusal(write("b.toml", f"{text}\ntraining.continual_backprop.enabled = true\n"))
    assert f": {key} = 0 cannot be combined with training.continual_backprop.enabled = true" in message


def test_other_parts_may_be_frozen_while_neurons_are_replaced(write: Write) -> None:
    text = f'{KEY} = [{{target = "embedding", scale = 0}}]\ntraining.continual_backprop.enabled = true\n'
    assert load_config(write("a.toml", text)).training.module_lr_scales[0].scale == 0
