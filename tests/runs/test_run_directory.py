"""Runs are made once, found again under what a person would type, and written by one process at a time."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from wyrmling.config import Config
from wyrmling.errors import CheckpointError, ConfigError, StorageError
from wyrmling.runs import (
    RunDirectory,
    create_run,
    find_run,
    latest_run,
    names,
    refuse_taken,
    run_names,
    run_root,
)
from wyrmling.runs import directory as module


def config(**run_layout: object) -> Config:
    return Config.from_dict({"run_layout": run_layout})


def begun(run: RunDirectory) -> RunDirectory:
    """A run with the file that marks it as one."""
    run.config_json.write_text(json.dumps({"run_name": run.name}), encoding="utf-8")
    return run


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The folder of runs that the environment of the tests names."""
    return tmp_path / "runs"


def test_a_run_of_the_environment_is_found_by_its_folder_and_its_name(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the root of the runs under both; elsewhere as long as the variables name it."""
    for place in (root / "folder", tmp_path / "elsewhere" / "folder"):
        monkeypatch.setenv("WYRMLING_RUN_DIR", str(place))
        monkeypatch.setenv("WYRMLING_RUN_NAME", f"named-{place.parent.name}")
        run = begun(create_run(config()))
        assert (run.path, run.name) == (place, f"named-{place.parent.name}")
        for wanted in (run.name, str(place)):
            assert find_run(wanted).path == place
    assert find_run("folder").path == root / "folder"
    assert find_run("named-elsewhere").name == "named-elsewhere"
    monkeypatch.delenv("WYRMLING_RUN_DIR")
    assert find_run("named-runs").path == root / "folder"
    with pytest.raises(CheckpointError, match="no run 'named-elsewhere'"):
        find_run("named-elsewhere")


def test_the_root_is_the_configurations_then_the_environments_then_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WYRMLING_RUN_ROOT", str(tmp_path / "from-environment"))
    assert run_root(config(base_dir=str(tmp_path / "asked"))) == tmp_path / "asked"
    assert run_root(config()) == tmp_path / "from-environment"
    monkeypatch.delenv("WYRMLING_RUN_ROOT")
    assert run_root(config()) == Path("runs")


def test_a_new_run_has_a_name_of_its_own_and_latest_names_it(root: Path) -> None:
    runs = [create_run(config()) for _ in range(20)]
    assert len({run.name for run in runs}) == 20
    for run in runs:
        assert run.path == root / run.name
        assert run.path.is_dir()
        assert list(run.path.iterdir()) == []
    assert (root / "latest").read_text(encoding="utf-8").strip() == runs[-1].name


def test_when_all_names_are_taken_the_clock_names_the_run(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wyrmling.runs.names.random_name", lambda: "amber-wyvern")
    monkeypatch.setattr("wyrmling.runs.names.time.time", lambda: 1234.5)
    names = [create_run(config()).name for _ in range(3)]
    assert names == ["amber-wyvern", "run-1234", "run-1235"]


def test_a_new_run_never_enters_an_existing_directory(root: Path) -> None:
    run = create_run(config(name="mine"))
    (run.path / "notes.txt").write_text("precious")
    with pytest.raises(ConfigError, match=r"mine exists already.*resume_exact_run"):
        create_run(config(name="mine"))
    assert [entry.name for entry in run.path.iterdir()] == ["notes.txt"]


def test_of_many_that_want_one_name_one_gets_it(root: Path) -> None:
    outcomes: list[str] = []
    start = threading.Barrier(8)

    def attempt() -> None:
        start.wait()
        try:
            create_run(config(name="wanted"))
            outcomes.append("made")
        except ConfigError:
            outcomes.append("refused")

    threads = [threading.Thread(target=attempt) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["made"] + ["refused"] * 7


@pytest.mark.parametrize("name", ["Latest", "con", "NUL.txt", "com1", "dot.", "lpt9.log"])
def test_a_name_that_some_system_cannot_hold_is_refused(root: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"run_layout\.name = .* cannot be a run's name"):
        create_run(config(name=name))
    assert not root.exists()


def test_the_environment_fixes_directory_and_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WYRMLING_RUN_DIR", str(tmp_path / "place" / "job-7"))
    monkeypatch.setenv("WYRMLING_RUN_NAME", "seventh")
    run = begun(create_run(config()))
    assert (run.path, run.name) == (tmp_path / "place" / "job-7", "seventh")
    assert find_run("latest", tmp_path / "place") == run
    with pytest.raises(ConfigError, match="exists already"):
        create_run(config())


@pytest.mark.parametrize(("there", "absent"), [("DIR", "NAME"), ("NAME", "DIR")])
def test_half_of_the_environment_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: str, absent: str
) -> None:
    monkeypatch.setenv(f"WYRMLING_RUN_{there}", str(tmp_path / "x") if there == "DIR" else "x")
    monkeypatch.setenv(f"WYRMLING_RUN_{absent}", " ")
    with pytest.raises(ConfigError, match=f"WYRMLING_RUN_{there} is set and WYRMLING_RUN_{absent} is not"):
        create_run(config())


def test_environment_and_configuration_must_not_contradict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WYRMLING_RUN_DIR", str(tmp_path / "x"))
    monkeypatch.setenv("WYRMLING_RUN_NAME", "../x")
    with pytest.raises(ConfigError, match="WYRMLING_RUN_NAME"):
        create_run(config())
    monkeypatch.setenv("WYRMLING_RUN_NAME", "x")
    with pytest.raises(ConfigError, match=r"WYRMLING_RUN_NAME is x and run_layout\.name is y"):
        create_run(config(name="y"))
    assert create_run(config(name="x")).path == tmp_path / "x"


def test_a_run_is_found_by_name_directory_checkpoint_and_latest(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begun(create_run(config(name="amber-wyvern")))
    step = run.checkpoints / "step-000000010"
    step.mkdir(parents=True)
    for wanted in ("amber-wyvern", "latest", run.path, str(run.path), run.checkpoints, step):
        assert find_run(wanted, root) == run
    assert find_run("amber-wyvern") == run
    monkeypatch.chdir(run.path)
    assert find_run(".", root).name == "amber-wyvern"
    assert latest_run(root) == run


def test_a_run_that_is_not_there_is_answered_with_those_that_are(root: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no run 'x' .*there are no runs yet"):
        find_run("x", root)
    with pytest.raises(CheckpointError, match=r"no latest run .*there are no runs yet"):
        find_run("latest", root)
    for name in ("amber-wyvern", "amber-raven", "silent-otter"):
        begun(create_run(config(name=name)))
    with pytest.raises(CheckpointError, match=r"did you mean amber-wyvern.*\?"):
        find_run("amber-wivern", root)
    with pytest.raises(CheckpointError, match=r"there are .*silent-otter"):
        find_run("zzzzzz", root)
    (root / "latest").unlink()
    with pytest.raises(CheckpointError, match=r"no latest run .*there are .*amber-raven") as caught:
        find_run("latest", root)
    assert "\n" not in str(caught.value)


def test_latest_that_names_nothing_is_said_and_not_followed(root: Path) -> None:
    begun(create_run(config(name="amber-wyvern")))
    stillborn = create_run(config(name="amber-raven"))
    with pytest.raises(CheckpointError, match=r"latest names 'amber-raven', which is not a run there"):
        find_run("latest", root)
    assert latest_run(root) is None
    stillborn.path.rmdir()
    assert latest_run(root) is None
    assert latest_run(root / "nowhere") is None
    (root / "latest").write_text(" \n")
    assert latest_run(root) is None


def test_other_directories_are_not_runs(root: Path) -> None:
    begun(create_run(config(name="amber-wyvern")))
    (root / "notes").mkdir()
    (root / "file").write_text("")
    assert run_names(root) == ["amber-wyvern"]
    with pytest.raises(CheckpointError, match="no run 'notes'"):
        find_run("notes", root)
    assert run_names(root / "nowhere") == []


HOLDER = """
import sys, time
from pathlib import Path
from wyrmling.runs import RunDirectory
with RunDirectory(Path(sys.argv[1]), "x").lock():
    print("held", flush=True)
    time.sleep(60)
"""


def test_two_processes_do_not_write_one_run_and_death_gives_it_back(root: Path) -> None:
    run = create_run(config())
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(run.path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        known = rf"by process {holder.pid};" if Path("/proc/locks").exists() else "by another process;"
        with pytest.raises(CheckpointError, match=known), run.lock():
            pass
    finally:
        holder.send_signal(signal.SIGKILL if os.name != "nt" else signal.SIGTERM)
        holder.communicate()
    with (
        run.lock(),
        pytest.raises(CheckpointError, match="being written by"),
        RunDirectory(run.path, run.name).lock(),
    ):
        pass
    with run.lock():
        pass


@pytest.mark.parametrize("settings", [{}, {"name": "x"}, {"category": "inner"}])
@pytest.mark.parametrize("kind", ["a file", "below a file", "a dangling link", "a link that leads to itself"])
def test_a_root_that_is_no_folder_is_named(root: Path, settings: dict[str, str], kind: str) -> None:
    """Whatever name the run gets: one refusal, not one for each name that could be made up."""
    place = root.with_name("place")
    if "file" in kind:
        place.write_text("")
    else:
        place.symlink_to(place if "itself" in kind else root.with_name("nowhere"))
    base = place / "runs" if "below" in kind else place
    with pytest.raises(StorageError, match=r"place is not a folder and none can be made there"):
        create_run(config(base_dir=str(base), **settings))


def test_a_run_that_cannot_be_looked_into_hides_no_other(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun(create_run(config(name="open")))
    begun(create_run(config(name="closed")))
    real = os.stat

    def stat(path: object, *arguments: object, **more: object) -> os.stat_result:
        if f"{os.sep}closed{os.sep}" in str(path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return real(path, *arguments, **more)  # type: ignore[call-overload,no-any-return]

    monkeypatch.setattr(os, "stat", stat)
    assert run_names(root) == ["open"]
    assert find_run("open").path == root / "open"
    monkeypatch.setattr(os, "access", lambda path, mode: "closed" not in str(path))
    with pytest.raises(StorageError, match=r"cannot look into .*closed"):
        find_run("closed")


@pytest.mark.parametrize("settings", [{"category": "inner"}, {"name": "inner"}])
def test_a_category_or_a_name_that_is_a_file_is_named(root: Path, settings: dict[str, str]) -> None:
    root.mkdir()
    (root / "inner").write_text("precious")
    for act in (create_run, refuse_taken):
        if act is create_run or "name" in settings:
            with pytest.raises(StorageError, match="inner is not a folder"):
                act(config(**settings))
    assert (root / "inner").read_text() == "precious"


@pytest.mark.parametrize(
    "number", [errno.ENOSPC, errno.EROFS, errno.EIO, errno.ESTALE, errno.ENAMETOOLONG, errno.EXDEV]
)
def test_what_refuses_a_folder_is_told_once(root: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise OSError(number, os.strerror(number), str(source), None, str(target))

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(StorageError) as caught:
        create_run(config(), lambda run: (run.path / "a").write_text(""))
    assert "\n" not in str(caught.value)
    assert ".tmp-" not in str(caught.value)
    assert not [entry for entry in root.iterdir() if entry.is_dir()]


def test_names_are_tried_a_bounded_number_of_times(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "random_name", lambda: "the-only-one")
    monkeypatch.setattr(names, "TRIES", 3)
    monkeypatch.setattr("wyrmling.runs.names.time.time", lambda: 5.0)
    for second in range(5, 5 + names.TRIES):
        (root / f"run-{second}").mkdir(parents=True)
    create_run(config())
    with pytest.raises(StorageError, match="no name for a new run is free"):
        create_run(config())


@pytest.mark.parametrize("act", [lambda: create_run(config()), lambda: create_run(config(name="x"))])
def test_a_refusal_of_the_file_system_is_a_storage_error(
    monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]
) -> None:
    def refuse(self: Path, *args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(StorageError, match="permission denied"):
        act()


def test_importing_runs_and_the_store_does_not_import_torch() -> None:
    code = "import sys, wyrmling.runs, wyrmling.checkpoint; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_run_is_filled_before_it_has_its_name(tmp_path: Path) -> None:
    """Nobody sees a run without its records; when filling fails, nothing stays and the name is free."""
    seen = []

    def fill(run: RunDirectory) -> None:
        seen.append((run.name, (tmp_path / "runs" / "mine").exists()))
        (run.path / "config.json").write_text("{}", encoding="utf-8")

    def fail(run: RunDirectory) -> None:
        fill(run)
        raise RuntimeError("the disk is on fire")

    with pytest.raises(RuntimeError, match="on fire"):
        create_run(config(name="mine"), fail)
    assert list((tmp_path / "runs").iterdir()) == []
    run = create_run(config(name="mine"), fill)
    assert (run.path / "config.json").is_file()
    assert seen == [("mine", False), ("mine", False)]
    with pytest.raises(ConfigError, match="exists already"):
        create_run(config(name="mine"), fill)


def test_only_what_a_killed_process_of_ours_left_is_swept(root: Path) -> None:
    """The parent of a run may be anybody's folder, and a run may take hours to be filled."""
    old = time.time() - 7200
    kept = {
        "of another program": root / ".tmp-precious" / "file",
        "named alike": root / ".tmp-work-12-34" / "thesis.tex",
        "written to": root / ".tmp-b-1-3" / "checkpoint" / "fresh",
    }
    for place in (*kept.values(), root / ".tmp-a-1-2" / "config.json"):
        place.parent.mkdir(parents=True)
        place.write_text("x")
        for folder in (place, *place.parents):
            if folder.is_relative_to(root):
                os.utime(folder, (old, old))
    os.utime(kept["written to"])
    module._sweep(root)
    assert all(place.exists() for place in kept.values())
    assert not (root / ".tmp-a-1-2").exists()
