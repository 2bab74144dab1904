"""What a run may be started from, and by whom."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import wyrmling
from wyrmling import Config
from wyrmling.config import load_bundle, with_overrides
from wyrmling.config.launching import to_go_on
from wyrmling.errors import CheckpointError, ConfigError, UserError
from wyrmling.training.bundles import run_bundle
from wyrmling.training.launch import refuse_several_processes

Make = Callable[..., Config]


@pytest.mark.parametrize(
    "variables",
    [
        {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1"},  # torchrun
        {"WORLD_SIZE": "2", "RANK": "0"},
        {"RANK": "1"},
        {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "0"},
        {"PMI_SIZE": "2", "PMI_RANK": "0"},
        {"SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0"},  # srun
        {"SLURM_NTASKS": "2", "SLURM_PROCID": "1"},
    ],
)
def test_one_of_several_processes_trains_nothing(
    tiny_config: Make, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    """Each of them would train the same run as if it were alone; the line names the variables that say so."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="one of several") as caught:
        wyrmling.train(tiny_config())
    told = [name for name, value in variables.items() if f"{name}={value}" in str(caught.value)]
    assert told
    assert not Path(os.environ["WYRMLING_RUN_ROOT"]).exists()


def test_a_bundle_is_refused_before_its_folder_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "b.toml").write_text('config = "tiny"\n[[stages]]\nname = "one"\n', encoding="utf-8")
    bundle = load_bundle(tmp_path / "b.toml")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="WORLD_SIZE=2"):
        run_bundle(bundle)
    assert not bundle.folder.exists()


@pytest.mark.parametrize(
    "variables",
    [
        {"WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"},
        {"LOCAL_RANK": "-1"},  # how some launchers say that there is one process
        {"WORLD_SIZE": ""},
        {
            "SLURM_NTASKS": "8",
            "SLURM_PROCID": "0",
            "SLURM_JOB_ID": "7",
        },  # the script of a job, which is one process
    ],
)
def test_one_process_is_no_group(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    refuse_several_processes()


@pytest.mark.parametrize("value", ["abc", "2.5", "two", "1 2"])
def test_a_variable_that_is_no_number_is_named(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("WORLD_SIZE", value)
    with pytest.raises(ConfigError, match=f"WORLD_SIZE is '{value}'"):
        refuse_several_processes()


def test_a_process_group_of_the_program_counts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """What starts its processes itself sets no variable."""
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 3)
    with pytest.raises(ConfigError, match="a process group of 3"):
        refuse_several_processes()


@pytest.mark.parametrize("named", ["a", "latest", "{root}/a/checkpoint"])
def test_weights_to_begin_with_are_named_as_runs_are_elsewhere(tiny_config: Make, named: str) -> None:
    lender = wyrmling.train(tiny_config("run_layout.name=a"))
    place = named.format(root=lender.run.path.parent)
    begun = wyrmling.train(
        tiny_config(
            "training.launch_mode=init_from_checkpoint",
            f"training.init_checkpoint_path={place}",
            "optimizer.learning_rate=1e-12",
            "optimizer.lr_schedule.type=constant",
        )
    )
    for name, parameter in begun.model.named_parameters():
        torch.testing.assert_close(parameter, lender.model.get_parameter(name), rtol=1e-6, atol=1e-8)


def test_weights_of_a_run_that_is_not_there_name_those_that_are(tiny_config: Make) -> None:
    wyrmling.train(tiny_config("run_layout.name=otter"))
    with pytest.raises(CheckpointError, match="did you mean otter"):
        wyrmling.train(
            tiny_config("training.launch_mode=init_from_checkpoint", "training.init_checkpoint_path=oter")
        )


@pytest.mark.parametrize("other", [None, "another text\n" * 100])
def test_a_relative_path_after_a_change_of_folder_is_named_as_that(
    tiny_config: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str | None
) -> None:
    """It leads nowhere, or to another text; from the folder that the run was started in, the run goes on."""
    monkeypatch.chdir(tmp_path)
    run = wyrmling.train(tiny_config("dataset.path=text.txt", "training.max_iters=4")).run
    longer = with_overrides(run.training_config(), [*to_go_on(run.path), "training.max_iters=6"])
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    if other is not None:
        Path("text.txt").write_text(other)
    for attempt in (lambda: wyrmling.train(longer), lambda: wyrmling.evaluate(wyrmling.load_run(run.path))):
        with pytest.raises(UserError, match=r"text\.txt is relative.*elsewhere.*another folder"):
            attempt()
    monkeypatch.chdir(tmp_path)
    assert wyrmling.train(longer).step == 6
