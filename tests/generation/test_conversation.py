"""A conversation that was saved goes on as if it had never stopped, with its own model only."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from generation_fakes import Recurrent
from hypothesis import given, settings
from hypothesis import strategies as st

from wyrmling.errors import CheckpointError
from wyrmling.generation import (
    Conversation,
    GenerationSettings,
    generate,
    load_conversation,
    model_fingerprint,
    save_conversation,
)

MARKS = {"model": "m" * 64, "tokenizer": "t" * 64}


def converse(
    model: Recurrent, prompt: list[int], before: Conversation | None, **values: int | None
) -> Conversation:
    chosen = GenerationSettings.of({"seed": 9, **values})
    result = generate(
        model,
        [prompt],
        chosen,
        state=None if before is None else before.state,
        history=None if before is None else [before.tokens],
        keep_state=True,
    ).finish()[0]
    assert result.state is not None
    return Conversation(result.state, (*(before.tokens if before else ()), *prompt, *result.tokens))


@given(
    first=st.integers(1, 12),
    second=st.integers(1, 12),
    prompt=st.lists(st.integers(0, 10), min_size=1, max_size=9),
    window=st.one_of(st.none(), st.integers(1, 8)),
)
@settings(max_examples=25)
def test_a_saved_conversation_continues_as_one_that_was_never_interrupted(
    tmp_path_factory: pytest.TempPathFactory, first: int, second: int, prompt: list[int], window: int | None
) -> None:
    model, path = Recurrent(), tmp_path_factory.mktemp("talk") / "talk.safetensors"
    part = converse(model, prompt, None, max_tokens=first, window=window)
    save_conversation(path, part.state, part.tokens, MARKS)
    loaded = load_conversation(path, MARKS)
    assert loaded.tokens == part.tokens
    whole = converse(model, prompt, None, max_tokens=first + second, window=window)
    assert converse(model, [], loaded, max_tokens=second, window=window).tokens == whole.tokens


def test_a_new_prompt_follows_what_was_said() -> None:
    model = Recurrent()
    part = converse(model, [1, 2], None, max_tokens=5)
    continued = converse(model, [3, 4], part, max_tokens=5)
    whole = converse(model, [*part.tokens, 3, 4], None, max_tokens=5)
    assert continued.tokens == whole.tokens
    torch.testing.assert_close(continued.state.layers[0]["h"], whole.state.layers[0]["h"])


@given(before=st.one_of(st.none(), st.integers(1, 8)), after=st.one_of(st.none(), st.integers(1, 8)))
@settings(max_examples=25)
def test_a_conversation_can_go_on_with_another_window(before: int | None, after: int | None) -> None:
    """What the state has forgotten is read again from the history, what it should forget is forgotten."""
    model = Recurrent()
    part = converse(model, [1, 2, 3, 4], None, max_tokens=9, window=before)
    continued = converse(model, [5], part, max_tokens=6, window=after)
    whole = converse(model, [*part.tokens, 5], None, max_tokens=6, window=after)
    assert continued.tokens == whole.tokens
    torch.testing.assert_close(continued.state.layers[0]["h"], whole.state.layers[0]["h"])


def test_the_state_survives_the_file_bit_for_bit(tmp_path: Path) -> None:
    part = converse(Recurrent(), [1, 2], None, max_tokens=5)
    save_conversation(tmp_path / "talk", part.state, part.tokens, MARKS)
    loaded = load_conversation(tmp_path / "talk", MARKS)
    assert torch.equal(loaded.state.layers[0]["h"], part.state.layers[0]["h"])
    assert loaded.state.position.tolist() == part.state.position.tolist() == [6]
    assert [entry.name for entry in tmp_path.iterdir()] == ["talk"]


@pytest.mark.parametrize("differs", ["model", "tokenizer"])
def test_another_model_or_tokenizer_is_refused_in_one_line(tmp_path: Path, differs: str) -> None:
    part = converse(Recurrent(), [1], None, max_tokens=2)
    save_conversation(tmp_path / "talk", part.state, part.tokens, MARKS)
    with pytest.raises(CheckpointError, match=f"belongs to another {differs}") as caught:
        load_conversation(tmp_path / "talk", {**MARKS, differs: "x" * 64})
    assert "\n" not in str(caught.value)


def test_damaged_and_foreign_files_are_refused_in_one_line(tmp_path: Path) -> None:
    part = converse(Recurrent(), [1], None, max_tokens=2)
    path = tmp_path / "talk"
    save_conversation(path, part.state, part.tokens, MARKS)
    whole = path.read_bytes()
    flipped = whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:]
    for content in (b"", b"hello", whole[:-1], whole[: len(whole) // 2], flipped, whole + b"x"):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match="damaged") as caught:
            load_conversation(path, MARKS)
        assert "\n" not in str(caught.value)
    with pytest.raises(CheckpointError, match="there is no conversation"):
        load_conversation(tmp_path / "absent", MARKS)
    with pytest.raises(CheckpointError, match="there is no conversation"):
        load_conversation(tmp_path, MARKS)


def test_only_one_row_with_tokens_is_a_conversation(tmp_path: Path) -> None:
    state = Recurrent().initial_state(2)
    with pytest.raises(ValueError, match="one row"):
        save_conversation(tmp_path / "talk", state, [1], MARKS)
    with pytest.raises(ValueError, match="one row"):
        save_conversation(tmp_path / "talk", state.select([0]), [], MARKS)


def test_a_fingerprint_changes_with_any_weight_and_with_nothing_else() -> None:
    model, twin = Recurrent(), Recurrent()
    assert model_fingerprint(model) == model_fingerprint(twin)
    generate(twin, [[1]], GenerationSettings(max_tokens=3)).finish()
    assert model_fingerprint(model) == model_fingerprint(twin)
    with torch.no_grad():
        twin.bias[3] += 1e-12
    assert model_fingerprint(model) != model_fingerprint(twin)
