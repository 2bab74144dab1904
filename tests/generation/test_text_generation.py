"""Prompts become tokens, tokens become whole characters; empty and unknown prompts are spoken about."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
import torch
from generation_fakes import MACHINE, Machine, Recurrent
from hypothesis import given, settings
from hypothesis import strategies as st

from vocabulary_kinds import KINDS, ours_of
from wyrmling.config import Config
from wyrmling.errors import ConfigError, DataError
from wyrmling.generation import (
    GenerationSettings,
    Prompt,
    TextGeneration,
    as_json,
    encode_prompt,
    generate_text,
    load_conversation,
    output_format,
    save_conversation,
    start_token,
)
from wyrmling.generation.output import printable, show
from wyrmling.text.sources import Piece
from wyrmling.text.tokenizers import (
    BpeTokenizer,
    ByteTokenizer,
    CharTokenizer,
    PretokenizedTokenizer,
    Tokenizer,
)

GREEK = "αβγ δε, ζη\n"


def bpe() -> BpeTokenizer:
    """Tokens of several characters, and tokens that are parts of one."""
    text = ("the thin thing then, " * 20 + GREEK).encode()
    return BpeTokenizer.train(lambda: iter([Piece(text, True, "test", 0)]), 300)


def model_for(tokenizer: Tokenizer, seed: int = 0) -> Recurrent:
    return Recurrent(tokenizer.vocab_size, seed=seed)


@dataclass
class Loaded:
    """What `generate_text` needs of a run."""

    model: Recurrent
    tokenizer: Tokenizer
    config: Config
    machine: Machine = MACHINE


TOKENIZERS = {
    "byte": ByteTokenizer(),
    "byte with specials": ByteTokenizer(add_special_tokens=True),
    "char": CharTokenizer(GREEK),
    "char without unknown": CharTokenizer(GREEK, include_unknown=False),
    "bpe": bpe(),
}


@pytest.mark.parametrize("name", TOKENIZERS)
@given(seed=st.integers(0, 1000), limit=st.integers(1, 30))
@settings(max_examples=8)
def test_pieces_are_whole_characters_and_add_up_to_the_decoded_text(name: str, seed: int, limit: int) -> None:
    tokenizer = TOKENIZERS[name]
    prompt = encode_prompt(tokenizer, "α")
    chosen = GenerationSettings(seed=seed, max_tokens=limit)
    generation = TextGeneration(model_for(tokenizer, seed), tokenizer, [prompt], chosen)
    pieces = list(generation)
    result = generation.results[0]
    assert "".join(piece.text for piece in pieces) == result.text == tokenizer.decode(result.ids)
    assert [piece.token for piece in pieces] == result.ids
    assert [piece.reason for piece in pieces] == [None] * (len(pieces) - 1) + [result.reason]
    for piece in pieces[:-1]:
        piece.text.encode()  # no half characters


@pytest.mark.parametrize("name", TOKENIZERS)
@given(seed=st.integers(0, 1000), limit=st.integers(1, 30))
@settings(max_examples=8)
def test_max_chars_counts_characters_exactly(name: str, seed: int, limit: int) -> None:
    """Also where a token is several characters, or a part of one."""
    tokenizer = TOKENIZERS[name]
    generation = TextGeneration(
        model_for(tokenizer, seed),
        tokenizer,
        [encode_prompt(tokenizer, "α"), encode_prompt(tokenizer, "β, γ")],
        GenerationSettings(seed=seed, max_tokens=400, max_chars=limit, stop_at_eos=False),
    )
    streamed = ["", ""]
    for piece in generation:
        streamed[piece.row] += piece.text
    for row, result in enumerate(generation.results):
        assert result.reason == "max_chars"
        assert len(result.text) == limit
        assert streamed[row] == result.text
        assert tokenizer.decode(result.ids).startswith(result.text)
        assert len(tokenizer.decode(result.ids[:-1]).rstrip("\ufffd")) <= limit


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("prompt", ["", b"", b"\xef\xbb\xbf", "\n", " ", "\0"])
def test_empty_and_blank_prompts_start_somewhere_or_say_why_not(name: str, prompt: str | bytes) -> None:
    tokenizer = TOKENIZERS[name]
    if (name, prompt) == ("char without unknown", "\0"):
        with pytest.raises(DataError, match=r"'\\x00' \(U\+0000\) at character 0"):
            encode_prompt(tokenizer, prompt)
        return
    encoded = encode_prompt(tokenizer, prompt)
    assert len(encoded.ids) >= 1
    assert encoded.given == (prompt in ("\n", " ", "\0"))
    assert encoded.given or "is empty: starting from" in str(encoded.note)
    generation = TextGeneration(model_for(tokenizer), tokenizer, [encoded], GenerationSettings(max_tokens=2))
    assert generation.finish()[0].ids


@pytest.mark.parametrize(
    ("tokenizer", "token", "what"),
    [
        (ByteTokenizer(), 10, "a newline"),
        (ByteTokenizer(add_special_tokens=True), 257, "the end of a document"),
        (CharTokenizer("ab\n"), 1, "a newline"),
        (CharTokenizer("ab"), 1, "the first token"),
        (CharTokenizer("ab", include_unknown=False), 0, "the first token"),
        (PretokenizedTokenizer(9, bos_id=3, eos_id=4), 3, "the beginning of a document"),
        (PretokenizedTokenizer(9, eos_id=4), 4, "the end of a document"),
        (PretokenizedTokenizer(9, pad_id=0, unk_id=1), 2, "the first token"),
    ],
)
def test_an_empty_prompt_starts_from_what_stood_before_documents_in_training(
    tokenizer: Tokenizer, token: int, what: str
) -> None:
    assert start_token(tokenizer) == (token, what)
    encoded = encode_prompt(tokenizer, "", origin="prompt 2")
    assert encoded.ids == (token,)
    assert encoded.note == f"prompt 2 is empty: starting from {what} (token {token})"


def test_characters_outside_the_vocabulary_are_named_with_their_places() -> None:
    tokenizer = CharTokenizer("abc", include_unknown=False)
    with pytest.raises(DataError, match=r"the prompt: .*'d' \(U\+0064\) at character 2") as caught:
        encode_prompt(tokenizer, "abd")
    assert "\n" not in str(caught.value)


def test_characters_read_as_unknown_are_announced() -> None:
    encoded = encode_prompt(CharTokenizer("abc"), "abdad")
    assert encoded.note == "the prompt: 2 of 5 tokens are unknown to this run"
    assert encode_prompt(CharTokenizer("abc"), "abc").note is None


def test_pretokenized_prompts_are_ids() -> None:
    tokenizer = PretokenizedTokenizer(9, eos_id=4)
    assert encode_prompt(tokenizer, "1 2, 8").ids == (1, 2, 8)
    for wrong in ("1 9", "1 x", "-1"):
        with pytest.raises(DataError):
            encode_prompt(tokenizer, wrong)
    assert output_format("auto", tokenizer) == "ids"
    with pytest.raises(ConfigError, match="knows ids only"):
        output_format("text", tokenizer)
    with pytest.raises(ConfigError, match="max_chars"):
        TextGeneration(
            model_for(tokenizer), tokenizer, [encode_prompt(tokenizer, "1")], GenerationSettings(max_chars=3)
        )


@pytest.mark.parametrize(
    ("wanted", "form"),
    [("auto", "text"), ("decoded_text", "text"), ("token_ids", "ids"), ("ids", "ids"), ("json", "json")],
)
def test_output_formats_of_configuration_and_command(wanted: str, form: str) -> None:
    assert output_format(wanted, ByteTokenizer()) == form


def test_eos_ends_a_text_and_is_no_part_of_it() -> None:
    tokenizer = ByteTokenizer(add_special_tokens=True)
    model = model_for(tokenizer)
    with torch.no_grad():
        model.bias[257] = 6.0
    chosen = GenerationSettings(seed=1, max_tokens=None)
    result = TextGeneration(model, tokenizer, [encode_prompt(tokenizer, "a")], chosen).finish()[0]
    assert result.reason == "eos"
    assert result.ids[-1] == 257
    assert result.text == tokenizer.decode(result.ids[:-1])


def test_only_tokens_of_the_tokenizer_are_drawn_from_a_larger_model() -> None:
    tokenizer = CharTokenizer("ab")
    model = Recurrent(50)
    result = TextGeneration(
        model, tokenizer, [encode_prompt(tokenizer, "a")], GenerationSettings(seed=0)
    ).finish()
    assert max(result[0].ids) < tokenizer.vocab_size


def test_generate_text_takes_the_runs_table_and_replaces_parts_of_it() -> None:
    config = Config.model_validate({"generation": {"max_tokens": 7, "seed": 3, "temperature": 0.5}})
    run = Loaded(model_for(ByteTokenizer()), ByteTokenizer(), config)
    text = generate_text(run, "hello")
    expected = GenerationSettings(max_tokens=7, seed=3, temperature=0.5)
    same = TextGeneration(
        run.model, run.tokenizer, [encode_prompt(run.tokenizer, "hello")], expected
    ).finish()
    assert text == same[0].text
    assert len(generate_text(run, "hello", max_tokens=50, max_chars=4)) == 4
    assert generate_text(run, "hello", seed=4) != text
    with pytest.raises(ConfigError, match="no setting 'colour'"):
        generate_text(run, "hello", colour="red")
    with pytest.raises(ConfigError, match="top_p must be"):
        generate_text(run, "hello", top_p=1.5)


def test_the_configured_window_and_limit_are_taken() -> None:
    table = {"max_tokens": "unlimited", "context_strategy": {"type": "sliding", "window": 12}}
    config = Config.model_validate({"generation": table})
    chosen = GenerationSettings.from_config(config.generation)
    assert chosen.max_tokens is None
    assert chosen.window == 12
    assert GenerationSettings.from_config(config.generation, {"window": None}).window is None


def shown(tokenizer: Tokenizer, prompts: list[str], form: str, **values: int) -> tuple[str, TextGeneration]:
    encoded = [encode_prompt(tokenizer, prompt) for prompt in prompts]
    chosen = GenerationSettings.of({"seed": 1, "max_tokens": 5, **values})
    generation = TextGeneration(model_for(tokenizer), tokenizer, encoded, chosen)
    written: list[str] = []
    show(generation, tokenizer, form, written.append)
    return "".join(written), generation


def test_text_is_the_prompt_and_what_follows() -> None:
    tokenizer = TOKENIZERS["char"]
    text, generation = shown(tokenizer, ["αβ"], "text")
    assert text == "αβ" + generation.results[0].text + "\n"
    text, generation = shown(tokenizer, [""], "text")
    assert text == generation.results[0].text + "\n"
    text, generation = shown(tokenizer, ["αβ", "γ"], "text")
    first, second = generation.results
    assert text == f"αβ{first.text}\n\nγ{second.text}\n"


VOCABULARIES = {**TOKENIZERS, **{kind: ours_of(kind) for kind in KINDS}}


@pytest.mark.parametrize("name", VOCABULARIES)
@given(seed=st.integers(0, 1000), limit=st.integers(1, 12), chars=st.one_of(st.none(), st.integers(1, 5)))
@settings(max_examples=12)
def test_text_over_any_border_is_the_text_in_one_go(
    tmp_path_factory: pytest.TempPathFactory, name: str, seed: int, limit: int, chars: int | None
) -> None:
    """A prompt, what follows, a conversation that is saved and goes on twice, once with a prompt of its own: what is
    shown is what all tokens decode to. A character that a border cuts is shown when it is whole.
    """
    tokenizer, path = VOCABULARIES[name], tmp_path_factory.mktemp("talk") / "talk"
    model = model_for(tokenizer, seed)
    drawn = torch.randint(tokenizer.vocab_size, (3,), generator=torch.Generator().manual_seed(seed)).tolist()
    prompts = [Prompt(tuple(drawn)), Prompt(()), Prompt(tuple(drawn[:1]))]
    shown, before = "", None
    for part, prompt in enumerate(prompts):
        last = part + 1 == len(prompts)
        generation = TextGeneration(
            model,
            tokenizer,
            [prompt],
            GenerationSettings(
                seed=seed, max_tokens=limit, max_chars=None if last else chars, stop_at_eos=False
            ),
            conversation=before,
            keep_state=not last,
        )
        pieces = [piece.text for piece in generation]
        result = generation.results[0]
        shown += result.opening + "".join(pieces)
        assert result.text == "".join(pieces)
        if last:
            everything = [*before.tokens, *result.prompt, *result.ids]
        else:
            saved = generation.conversation()
            save_conversation(path, saved.state, saved.tokens, {}, unshown=saved.unshown)
            before = load_conversation(path, {})
            assert before.unshown == saved.unshown
    assert shown == tokenizer.decode(everything)


@pytest.mark.parametrize(
    "name", ["byte", "bpe", "unigram", "unigram_bytes", "llama", "byte_level_among_others"]
)
@pytest.mark.parametrize("prompt", ["the", " low", "e"])
def test_a_prompt_that_goes_on_is_written_as_it_was_given(name: str, prompt: str) -> None:
    """Vocabularies that write a space before a text write none in its middle."""
    tokenizer = VOCABULARIES[name]
    model = model_for(tokenizer)
    before = TextGeneration(
        model, tokenizer, [encode_prompt(tokenizer, "the")], GenerationSettings(max_tokens=1), keep_state=True
    )
    before.finish()
    after = encode_prompt(tokenizer, prompt, start=False)
    going_on = TextGeneration(
        model, tokenizer, [after], GenerationSettings(max_tokens=1), conversation=before.conversation()
    )
    assert going_on.results[0].opening.removeprefix("\ufffd") == prompt


CUTS = [name for name, tokenizer in VOCABULARIES.items() if len(tokenizer.byte_ids()) >= 128]


@pytest.mark.parametrize("name", CUTS)
def test_a_prompt_cut_inside_a_character_goes_on_with_its_rest(name: str) -> None:
    """In the prompt, in what the model adds, and in the prompt that follows: the bytes meet again."""
    tokenizer, face = VOCABULARIES[name], "\N{GRINNING FACE}".encode()
    model = model_for(tokenizer)
    with torch.no_grad():
        model.bias[tokenizer.byte_ids()[face[2]]] = 99.0
    before = TextGeneration(
        model,
        tokenizer,
        [encode_prompt(tokenizer, b"the" + face[:2])],
        GenerationSettings(max_tokens=1),
        keep_state=True,
    )
    before.finish()
    record = json.loads(as_json(tokenizer, before.results[0], row=0, settings=GenerationSettings()))
    assert (record["prompt"], record["text"]) == ("the", "")
    rest = encode_prompt(tokenizer, face[3:] + "é".encode(), start=False)
    after = TextGeneration(
        model, tokenizer, [rest], GenerationSettings(max_tokens=1), conversation=before.conversation()
    )
    assert after.finish()[0].opening.replace(" ", "") == "\N{GRINNING FACE}é"


def test_bytes_that_are_no_text_go_on_as_they_are() -> None:
    for start in (True, False):
        assert encode_prompt(ByteTokenizer(), b"a\xffb\xc3", start=start).ids == (97, 255, 98, 195)


def test_a_cut_prompt_is_refused_with_its_place_where_characters_are_tokens() -> None:
    for cut, place in (
        (b"ab\xc3", "byte offset 2"),
        (b"\xa9a", "byte offset 0"),
        (b"a\xffb", "byte offset 1"),
    ):
        with pytest.raises(DataError, match=place):
            encode_prompt(CharTokenizer("ab"), cut)
    with pytest.raises(DataError, match="byte offset 1"):
        encode_prompt(TOKENIZERS["bpe"], b"a\xffb")


def test_ids_are_one_line_per_prompt() -> None:
    tokenizer = PretokenizedTokenizer(9)
    for prompts in (["1 2"], ["1 2", "3"]):
        text, generation = shown(tokenizer, prompts, "ids")
        lines = [[int(word) for word in line.split(" ")] for line in text.splitlines()]
        assert lines == [[*result.prompt, *result.ids] for result in generation.results]


def test_json_is_one_object_per_prompt() -> None:
    text, generation = shown(TOKENIZERS["byte"], ["ab", "c"], "json")
    records = [json.loads(line) for line in text.splitlines()]
    assert [record["prompt"] for record in records] == ["ab", "c"]
    assert [record["text"] for record in records] == [result.text for result in generation.results]
    assert [record["ids"] for record in records] == [result.ids for result in generation.results]
    assert {record["reason"] for record in records} == {"max_tokens"}
    assert {record["seed"] for record in records} == {1}
    ids_only = PretokenizedTokenizer(9)
    _, generation = shown(ids_only, ["1"], "ids")
    record = json.loads(as_json(ids_only, generation.results[0], row=0, settings=generation.tokens.settings))
    assert record["text"] is None
    assert record["prompt_ids"] == [1]


@given(st.text())
def test_a_terminal_gets_no_control_characters(text: str) -> None:
    escaped = printable(text)
    assert not any(ord(character) < 32 and character not in "\n\t" for character in escaped)
    assert "\x7f" not in escaped
    assert "\x9b" not in escaped
    if text.isprintable():
        assert escaped == text
