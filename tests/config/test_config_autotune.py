"""`[runtime.startup_autotune]`: one target, and bounds that leave something to try."""

from __future__ import annotations

import pytest

from wyrmling.config import Config, load_config
from wyrmling.errors import ConfigError

TABLE = "runtime.startup_autotune"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            ("min_batch_size=8", "max_batch_size=4"),
            rf"{TABLE}.min_batch_size must be <= {TABLE}.max_batch_size \(8 > 4\)",
        ),
        (("target_memory_fraction=0.0",), rf"{TABLE}.target_memory_fraction must be > 0, got 0"),
        (("target_memory_fraction=1.01",), rf"{TABLE}.target_memory_fraction must be <= 1, got 1.01"),
        (("target_device_memory_mb=0",), rf"{TABLE}.target_device_memory_mb must be > 0, got 0"),
        (("min_batch_size=0",), rf"{TABLE}.min_batch_size must be > 0, got 0"),
        (("max_batch_size=0",), rf"{TABLE}.max_batch_size must be > 0, got 0"),
        (("probe_steps=0",), rf"{TABLE}.probe_steps must be > 0, got 0"),
        (
            ("target_memory_fraction=none",),
            rf"{TABLE}.target_memory_fraction is required when {TABLE}.target_device_memory_mb is unset",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_name(settings: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load_config("tiny", [f"{TABLE}.{setting}" for setting in settings])
    assert "\n" not in str(caught.value)


def test_a_micro_batch_is_never_larger_than_the_step_that_was_asked_for() -> None:
    settings = [f"{TABLE}.min_batch_size=8", "training.target_effective_batch_size=4"]
    load_config("tiny", settings)  # nobody looks for rows
    message = rf"{TABLE}.min_batch_size must be <= training.target_effective_batch_size \(8 > 4\)"
    with pytest.raises(ConfigError, match=message):
        load_config("tiny", [*settings, f"{TABLE}.enabled=true"])


def test_two_targets_are_one_too_many() -> None:
    targets = {"target_memory_fraction": 0.5, "target_device_memory_mb": 100}
    message = rf"{TABLE}.target_device_memory_mb cannot be combined with {TABLE}.target_memory_fraction"
    with pytest.raises(ConfigError, match=message):
        Config.from_dict({"runtime": {"startup_autotune": targets}})


def test_a_number_of_megabytes_takes_the_place_of_the_share() -> None:
    found = load_config("tiny", [f"{TABLE}.target_device_memory_mb=512"]).runtime.startup_autotune
    assert (found.target_device_memory_mb, found.target_memory_fraction) == (512, None)
    assert load_config("tiny").runtime.startup_autotune.target_memory_fraction == 0.8
