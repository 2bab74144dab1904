"""Compiled kernels: only where a compiler works and the run is long enough, and never at the cost of the run."""

from __future__ import annotations

import stat
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wyrmling.errors import CheckpointError, ConfigError
from wyrmling.runs import Choice
from wyrmling.training import compiling
from wyrmling.training.compiling import Compiler, choose_kernels, working_compiler
from wyrmling.watch.survey import find_compiler

LONG, SHORT = 1e6, 10.0


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder in which programs are found."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CXX", raising=False)
    return folder


def program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def choice(
    asked: str = "auto", *, stored: str | None = None, impossible: str | None = None, seconds: float = LONG
) -> Choice:
    return choose_kernels(asked, stored, impossible=impossible, seconds=lambda: seconds)  # type: ignore[arg-type]


def works(monkeypatch: pytest.MonkeyPatch, *, path: str | None) -> None:
    found = Compiler(path, f"{path} works" if path else "there is no C++ compiler")
    monkeypatch.setattr(compiling, "working_compiler", lambda: found)


def never(*_: object) -> Compiler:
    raise AssertionError("the compiler was tried")


def test_a_missing_compiler_means_eager_and_is_an_error_where_compiling_is_asked_for(programs: Path) -> None:
    assert choice() == Choice("kernels", "eager", "there is no C++ compiler")
    with pytest.raises(
        ConfigError, match=r"runtime\.compile is on, but there is no C\+\+ compiler: "
    ) as caught:
        choice("on")
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(sys.platform == "win32", reason="the stand-in is a shell script")
@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo no licence >&2; exit 1", "no licence"),
        ("exit 3", "exit code 3"),
        ("sleep 60", "not done after 0.5 s"),
    ],
)
def test_a_broken_compiler_means_eager_too(
    programs: Path, monkeypatch: pytest.MonkeyPatch, script: str, reason: str
) -> None:
    monkeypatch.setattr(compiling, "PATIENCE", 0.5)
    if script.startswith("sleep"):
        monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    for name in ("g++", "clang++"):
        program(programs / name, script)
    begun = time.monotonic()
    found = choice()
    assert found.value == "eager"
    assert reason in found.reason
    with pytest.raises(ConfigError, match=reason) as caught:
        choice("on")
    assert "\n" not in str(caught.value)
    assert "install" not in str(caught.value), "there is one"
    assert "CXX" in str(caught.value)
    assert time.monotonic() - begun < 30  # given up, not waited for


@pytest.mark.skipif(sys.platform == "win32", reason="the stand-in is a shell script")
def test_a_compiler_is_tried_once(programs: Path) -> None:
    tries = programs / "tries"
    for name in ("g++", "clang++"):
        program(programs / name, f"echo once >> {tries}; exit 1")
    assert working_compiler() == working_compiler()
    assert tries.read_text() == "once\n"


@pytest.mark.skipif(sys.platform == "win32", reason="the stand-in is a shell script")
def test_that_a_compiler_works_is_found_out_once_and_only_that_is_kept(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process, on a machine so busy that its trial would be given up, takes the compiler all the same."""
    outcome: Compiler | None = Compiler(None, "busy")
    tries = []

    def trial(path: str, patience: float) -> Compiler | None:
        tries.append(path)
        return outcome

    monkeypatch.setattr(compiling, "_trial", trial)
    program(programs / "g++", "exit 0")
    assert working_compiler() == outcome
    outcome = None
    compiling._tried.cache_clear()
    assert working_compiler().path == str(programs / "g++")
    outcome = Compiler(None, "busy")
    compiling._tried.cache_clear()
    assert working_compiler().path == str(programs / "g++")
    assert len(tries) == 2
    program(programs / "g++", "exit 1 # another compiler")
    compiling._tried.cache_clear()
    assert working_compiler() == outcome
    compiling._tried.cache_clear()


def test_the_named_compiler_is_the_only_one(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", str(programs / "mine"))
    assert find_compiler() is None
    assert choice().reason == f"CXX names {programs / 'mine'}, which is not there"
    with pytest.raises(ConfigError, match=r"correct or unset .*CXX"):
        choice("on")
    program(programs / "mine", "exit 0")
    assert find_compiler() == str(programs / "mine")


@pytest.mark.parametrize("asked", ["auto", "off"])
def test_a_short_run_and_one_that_declines_never_try_the_compiler(
    monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    monkeypatch.setattr(compiling, "working_compiler", never)
    assert choice(asked, seconds=SHORT).value == "eager"
    assert choice(asked, impossible="not on the moon").value == "eager"
    with pytest.raises(ConfigError, match=r"not on the moon: set runtime\.compile = off"):
        choice("on", impossible="not on the moon")


def test_a_working_compiler_is_used_for_a_long_run_or_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    works(monkeypatch, path="/bin/c++")
    assert choice().value == "compiled"
    assert choice("on", seconds=SHORT).value == "compiled"
    assert "/bin/c++" in choice().reason


@pytest.mark.parametrize("asked", ["auto", "on", "off"])
def test_a_run_that_goes_on_takes_what_it_had(monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    works(monkeypatch, path="/bin/c++")
    for value in ("eager", "compiled"):
        assert choice(asked, stored=value, seconds=SHORT).value == value


def test_a_compiled_run_does_not_go_on_without_its_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    works(monkeypatch, path=None)
    assert choice(stored="eager").value == "eager"
    with pytest.raises(CheckpointError, match=r"no C\+\+ compiler.*--allow-inexact") as caught:
        choice(stored="compiled")
    assert "\n" not in str(caught.value)


@given(seconds=st.floats(0, 1e9), longer=st.floats(0, 1e9))
def test_a_longer_run_never_loses_its_compiled_kernels(seconds: float, longer: float) -> None:
    worth = compiling.worth_compiling(seconds)
    assert not worth or compiling.worth_compiling(seconds + longer)
    assert worth == (seconds * compiling.GAIN > compiling.COST)


@pytest.mark.slow
@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler here")
def test_the_compiler_of_this_machine_is_found_to_work(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "kernels"))
    found = working_compiler()
    assert found.path == find_compiler(), found.reason
    assert any((tmp_path / "kernels").iterdir())


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="the stand-in is a shell script")
def test_a_compiler_that_only_compiles_nothing_is_seen_through(programs: Path, tmp_path: Path) -> None:
    """It answers when asked for its version, and fails when it matters."""
    for name in ("g++", "clang++"):
        program(programs / name, 'case "$1" in --version) exit 0;; esac; echo "no space" >&2; exit 1')
    assert choice().value == "eager"
    assert "does not work" in choice().reason
