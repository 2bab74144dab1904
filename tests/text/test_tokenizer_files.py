"""Tokenizers in files, from configurations, and what differs between two of them."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from text_helpers import refused, text_pieces

from wyrmling.errors import ConfigError, DataError, StorageError
from wyrmling.text.sources import Piece
from wyrmling.text.tokenizers import (
    BpeTokenizer,
    ByteTokenizer,
    CharTokenizer,
    PretokenizedTokenizer,
    Tokenizer,
    build_tokenizer,
    differences,
    load_tokenizer,
    save_tokenizer,
)

TEXT = "Now is the winter \u00e9\u2028\0\r\n of our discontent <|endoftext|> " * 5
MAKERS = {
    "byte": lambda: ByteTokenizer(),
    "byte special": lambda: ByteTokenizer(add_special_tokens=True),
    "byte newlines": lambda: ByteTokenizer(normalize=["newlines"]),
    "byte nfc": lambda: ByteTokenizer(normalize=["nfc"]),
    "char": lambda: CharTokenizer(TEXT),
    "char strict": lambda: CharTokenizer(TEXT, include_unknown=False),
    "char other": lambda: CharTokenizer(TEXT + "#"),
    "char same size": lambda: CharTokenizer(TEXT.replace("w", "#")),
    "bpe": lambda: BpeTokenizer.train(text_pieces(TEXT), 300),
    "bpe smaller": lambda: BpeTokenizer.train(text_pieces(TEXT), 280),
    "bpe same size": lambda: BpeTokenizer.train(text_pieces(TEXT[::-1]), 280),
    "ids": lambda: PretokenizedTokenizer(50),
    "ids more": lambda: PretokenizedTokenizer(51),
    "ids special": lambda: PretokenizedTokenizer(50, eos_id=3),
}


@pytest.mark.parametrize("name", MAKERS)
def test_a_saved_tokenizer_comes_back_the_same(tmp_path: Path, name: str) -> None:
    tokenizer = MAKERS[name]()
    path = tmp_path / "tokenizer.json"
    save_tokenizer(path, tokenizer)
    loaded = load_tokenizer(path)
    assert type(loaded) is type(tokenizer)
    assert loaded.fingerprint() == tokenizer.fingerprint() == MAKERS[name]().fingerprint()
    assert loaded.to_json() == tokenizer.to_json() == json.loads(path.read_bytes())
    assert pickle.loads(pickle.dumps(tokenizer)).to_json() == tokenizer.to_json()
    assert differences(loaded, tokenizer) is None
    assert loaded.vocab_size == tokenizer.vocab_size == len(loaded.tokens())
    if not isinstance(tokenizer, PretokenizedTokenizer):
        assert loaded.encode(TEXT).tolist() == tokenizer.encode(TEXT).tolist()
    assert [file.name for file in tmp_path.iterdir()] == ["tokenizer.json"]


def test_every_two_tokenizers_that_differ_say_how_in_one_line() -> None:
    made = {name: make() for name, make in MAKERS.items()}
    for one, a in made.items():
        for other, b in made.items():
            line = differences(a, b, ("the checkpoint", "the data"))
            assert (line is None) == (one == other), (one, other)
            if line is not None:
                assert "the checkpoint" in line
                assert line.isprintable()


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        (CharTokenizer("abc"), ByteTokenizer(), ["char", "byte"]),
        (CharTokenizer("abc"), CharTokenizer("abcd"), ["4 tokens", "5", "only in the second: 'd'"]),
        (CharTokenizer("abc"), CharTokenizer("abd"), ["1 differ", "id 3", "'c'", "'d'"]),
        (CharTokenizer("abc"), CharTokenizer("abc", normalize=["nfc"]), ["nothing", "nfc"]),
        (PretokenizedTokenizer(9), PretokenizedTokenizer(9, eos_id=1), ["eos_id", "None", "1"]),
    ],
)
def test_the_most_telling_difference_is_named(a: Tokenizer, b: Tokenizer, words: list[str]) -> None:
    line = differences(a, b)
    assert line is not None
    for word in words:
        assert word in line


def test_other_merges_over_the_same_tokens_differ() -> None:
    trained = BpeTokenizer.train(text_pieces(TEXT), 300)
    document = json.loads(json.dumps(trained.to_json()["specification"]))
    document["model"]["merges"].reverse()
    line = differences(trained, BpeTokenizer(document))
    assert line is not None
    assert "other rules" in line


@pytest.mark.parametrize("kept", [0.0, 0.5, 0.99])
def test_a_cut_short_file_is_refused(tmp_path: Path, kept: float) -> None:
    path = tmp_path / "tokenizer.json"
    save_tokenizer(path, CharTokenizer(TEXT))
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * kept)])
    with refused("tokenizer.json", "damaged", kind=DataError):
        load_tokenizer(path)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"characters": "xyz"}, "damaged"),
        ({"characters": None}, "damaged"),
        ({"characters": ""}, "damaged"),
        ({"normalize": ["nonsense"]}, "damaged"),
        ({"include_unknown": False}, "damaged"),
        ({"fingerprint": "0"}, "damaged"),
        ({"kind": "word"}, "'word'"),
        ({"version": 99}, "version 99"),
        ({"format": "else"}, "not a tokenizer file"),
    ],
)
def test_changed_content_is_refused(tmp_path: Path, change: dict[str, Any], word: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({**CharTokenizer(TEXT).to_json(), **change}))
    with refused("tokenizer.json", word, kind=DataError):
        load_tokenizer(path)


@pytest.mark.parametrize("name", ["byte", "char", "bpe", "ids"])
def test_content_with_a_part_missing_is_refused(tmp_path: Path, name: str) -> None:
    document = MAKERS[name]().to_json()
    path = tmp_path / "tokenizer.json"
    for key in document:
        path.write_text(json.dumps({other: value for other, value in document.items() if other != key}))
        with refused("tokenizer.json", kind=DataError):
            load_tokenizer(path)


@pytest.mark.parametrize("content", [b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"model": {}}'])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with refused("tokenizer.json", kind=DataError):
        load_tokenizer(path)


def test_missing_and_unreadable_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with refused("tokenizer.json", "no such file", kind=DataError):
        load_tokenizer(tmp_path / "tokenizer.json")
    with refused("is a folder", kind=DataError):
        load_tokenizer(tmp_path)

    def deny(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", deny)
    with refused("permission denied", kind=StorageError):
        load_tokenizer(tmp_path / "tokenizer.json")


def test_a_kind_reads_only_its_own_documents() -> None:
    document = CharTokenizer("abc").to_json()
    assert CharTokenizer.from_json(document).vocab_size == 4
    with refused("'char'", kind=DataError):
        ByteTokenizer.from_json(document)


def table(kind: str, **keys: Any) -> SimpleNamespace:
    defaults: dict[str, Any] = {
        "byte": {"add_special_tokens": False},
        "char": {"include_unknown": True, "vocab_path": None},
        "bpe": {"vocab_size": 300, "vocab_path": None},
        "pretokenized": {"vocab_size": 9, "bos_id": None, "eos_id": None, "pad_id": None, "unk_id": None},
    }
    return SimpleNamespace(**{"type": kind, "normalize": (), **defaults[kind], **keys})


def never() -> Iterator[Piece]:
    raise AssertionError("nothing was to be learned")


def test_a_table_builds_the_tokenizer_that_it_describes() -> None:
    assert (
        build_tokenizer(table("byte", add_special_tokens=True, normalize=("nfc",)), never).vocab_size == 259
    )
    ids = build_tokenizer(table("pretokenized", eos_id=8), never)
    assert (ids.vocab_size, ids.eos_id) == (9, 8)
    characters = build_tokenizer(table("char", include_unknown=False), text_pieces("ba", "c"))
    assert characters.tokens() == ["a", "b", "c"]
    pairs = build_tokenizer(table("bpe", normalize=("newlines",)), text_pieces(TEXT))
    assert (pairs.kind, pairs.normalize) == ("bpe", ("newlines",))
    assert pairs.vocab_size <= 300
    with refused("dataset.tokenizer.type", "word", kind=ConfigError):
        build_tokenizer(SimpleNamespace(type="word"), never)


def test_a_vocabulary_file_is_read_instead_of_learning(tmp_path: Path) -> None:
    own, foreign = tmp_path / "own.json", tmp_path / "foreign.json"
    characters = CharTokenizer("abc", include_unknown=False, normalize=["newlines"])
    save_tokenizer(own, characters)
    loaded = build_tokenizer(table("char", vocab_path=own), never)
    assert loaded.fingerprint() == characters.fingerprint()
    agreeing = build_tokenizer(table("char", vocab_path=own, normalize=("newlines",)), never)
    assert agreeing.fingerprint() == characters.fingerprint()
    with refused("dataset.tokenizer.normalize", "own.json", kind=ConfigError):
        build_tokenizer(table("char", vocab_path=own, normalize=("nfc",)), never)
    with refused("dataset.tokenizer.vocab_path", "own.json is a char tokenizer, not bpe", kind=ConfigError):
        build_tokenizer(table("bpe", vocab_path=own), never)
    trained = BpeTokenizer.train(text_pieces(TEXT), 300)
    foreign.write_text(json.dumps(trained.to_json()["specification"]))
    read = build_tokenizer(table("bpe", vocab_path=foreign, normalize=("nfc",)), never)
    assert read.normalize == ("nfc",)
    assert read.encode(TEXT).tolist() == trained.encode(TEXT).tolist()
    with refused("dataset.tokenizer.vocab_path", "foreign.json", kind=ConfigError):
        build_tokenizer(table("char", vocab_path=foreign), never)
    foreign.write_text('{"vocab": {}}')
    with refused("foreign.json", "not a tokenizer.json", kind=DataError):
        build_tokenizer(table("bpe", vocab_path=foreign), never)
    with refused("none.json", "no such file", kind=DataError):
        build_tokenizer(table("bpe", vocab_path=tmp_path / "none.json"), never)
