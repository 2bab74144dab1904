"""What stands between documents of a tokenizer without an end of text: text of the document before it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wyrmling.config.load import config_from_dict, recorded_config
from wyrmling.data.dataset import Dataset, prepare_dataset
from wyrmling.text.sources import Piece
from wyrmling.text.sources.base import Tally, separated
from wyrmling.text.tokenizers import ByteTokenizer, CharTokenizer, save_tokenizer

TEXTS = ["The end", "Once upon", "A cat\n", "sat"]


def prepared(folder: Path, tokenizer: dict[str, Any] | None = None, **dataset: Any) -> Dataset:
    """`TEXTS` as records (or what `dataset` says), all of them for training."""
    file = folder / "r.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    table = {
        "type": "jsonl",
        "path": str(file),
        "cache_dir": str(folder / "cache"),
        "train_split_ratio": 1.0,
        "tokenizer": tokenizer or {"type": "byte"},
        **dataset,
    }
    return prepare_dataset(config_from_dict({"dataset": table, "training": {"block_size": 2}}))


def documents(dataset: Dataset) -> list[str]:
    split = dataset.train
    borders = [*split.document_starts.tolist(), len(split)]
    return [
        dataset.tokenizer.decode(split.read(start, stop - start))
        for start, stop in itertools.pairwise(borders)
    ]


def told(dataset: Dataset) -> list[str]:
    return [note for note in dataset.notes if "document_separator" in note]


def test_a_line_end_stands_between_documents_and_belongs_to_the_one_before(tmp_path: Path) -> None:
    dataset = prepared(tmp_path)
    assert documents(dataset) == ["The end\n", "Once upon\n", "A cat\n", "sat"]
    assert told(dataset) == [
        'documents are kept apart by "\\n", added to 2 of 4 (dataset.document_separator)'
    ]
    assert told(prepared(tmp_path)) == told(dataset), "tokens from the cache say the same"
    assert len({prepared(tmp_path, document_separator=text).fingerprint for text in ("", "\n", "-")}) == 3
    assert prepared(tmp_path, document_separator="\n").fingerprint == dataset.fingerprint
    lengths = dataset.tokenizer.byte_lengths()
    assert lengths is not None
    counted = int(lengths[dataset.train.tokens].sum())
    assert dataset.train.store.header["text_bytes"] == counted == sum(map(len, TEXTS)) + 2


@pytest.mark.parametrize(
    ("separator", "found"),
    [
        ("", ["The end", "Once upon", "A cat\n", "sat"]),
        ("\n\n", ["The end\n\n", "Once upon\n\n", "A cat\n\n\n", "sat"]),
        (" é ", ["The end é ", "Once upon é ", "A cat\n é ", "sat"]),
        ("t\n", ["The endt\n", "Once upont\n", "A cat\n", "sat"]),
    ],
)
def test_another_text_or_none_can_stand_there(tmp_path: Path, separator: str, found: list[str]) -> None:
    assert documents(prepared(tmp_path, document_separator=separator)) == found


def test_an_end_of_text_is_enough(tmp_path: Path) -> None:
    for tokenizer in ({"type": "byte", "add_special_tokens": True}, {"type": "bpe", "vocab_size": 257}):
        dataset = prepared(tmp_path, tokenizer)
        assert documents(dataset) == TEXTS
        ends = [*dataset.train.document_starts[1:], len(dataset.train)]
        assert [dataset.train.tokens[end - 1] for end in ends] == [dataset.tokenizer.eos_id] * 4
        assert told(dataset) == []
        assert any("each of the 4 documents ends with the end of text" in note for note in dataset.notes)
        both = prepared(tmp_path, tokenizer, document_separator="\n")
        assert documents(both) == ["The end\n", "Once upon\n", "A cat\n", "sat"]


def test_a_vocabulary_of_characters_learns_the_separator(tmp_path: Path) -> None:
    dataset = prepared(tmp_path, {"type": "char", "include_unknown": False}, document_separator="|")
    assert "|" in dataset.tokenizer.tokens()
    assert documents(dataset)[0] == "The end|"


def test_a_vocabulary_without_a_line_end_gets_none_and_that_is_told(tmp_path: Path) -> None:
    characters = sorted(set("".join(TEXTS)) - {"\n"})
    for unknown in (True, False):
        path = tmp_path / "vocabulary.json"
        save_tokenizer(path, CharTokenizer(characters, include_unknown=unknown))
        table = {"type": "char", "vocab_path": str(path), "include_unknown": unknown}
        file = tmp_path / "plain.jsonl"
        file.write_text('{"text": "The end"}\n{"text": "Once"}\n')
        dataset = prepared(tmp_path, table, path=str(file))
        assert documents(dataset) == ["The end", "Once"]
        (note,) = told(dataset)
        assert "run together" in note


@pytest.mark.parametrize("documents_of", ["file", "line", "block"])
def test_files_that_end_without_a_line_end_are_kept_apart_too(tmp_path: Path, documents_of: str) -> None:
    for name, text in (("a.txt", "one\n\ntwo"), ("b.txt", "three"), ("c.txt", "four")):
        (tmp_path / name).write_bytes(text.encode())
    table = {"type": "local_text", "path": str(tmp_path / "*.txt"), "documents": documents_of}
    dataset = prepared(tmp_path, **table)
    assert "".join(documents(dataset)) == {"line": "one\ntwo\nthree\nfour"}.get(
        documents_of, "one\n\ntwo\nthree\nfour"
    )
    single = prepared(tmp_path, **{**table, "path": str(tmp_path / "b.txt")})
    assert documents(single) == ["three"]
    assert told(single) == []


def test_the_validation_text_is_kept_apart_as_the_training_text(tmp_path: Path) -> None:
    (tmp_path / "v.jsonl").write_text('{"text": "fine"}\n{"text": "ends"}\n')
    dataset = prepared(tmp_path, validation={"type": "jsonl", "path": str(tmp_path / "v.jsonl")})
    assert dataset.validation is not None
    assert dataset.tokenizer.decode(dataset.validation.read(0, 9)) == "fine\nends"
    assert len(told(dataset)) == 2


def test_texts_in_memory_are_as_texts_in_files(tmp_path: Path) -> None:
    dataset = Dataset.from_texts(TEXTS, tokenizer=ByteTokenizer())
    assert documents(dataset) == documents(prepared(tmp_path))
    assert dataset.fingerprint == prepared(tmp_path).fingerprint
    glued = Dataset.from_texts(TEXTS, tokenizer=ByteTokenizer(), document_separator="")
    assert documents(glued) == TEXTS


def test_runs_from_before_the_key_have_nothing_between_documents(tmp_path: Path) -> None:
    glued = prepared(tmp_path, document_separator="")
    config = config_from_dict(
        {"dataset": {"type": "jsonl", "path": str(tmp_path / "r.jsonl")}, "training": {"block_size": 2}}
    )
    recorded = config.to_dict()
    assert recorded_config(recorded, "run").dataset.document_separator is None
    del recorded["dataset"]["document_separator"]
    recorded["dataset"]["on_error"] = "stop"
    old = recorded_config(recorded, "run")
    assert old.dataset.document_separator == ""
    assert old.dataset.on_error == "error"  # type: ignore[union-attr]
    assert documents(glued) == TEXTS


@given(
    st.lists(st.lists(st.text("ab\n", min_size=1, max_size=4), min_size=1, max_size=4), max_size=6),
    st.text("a\n", max_size=3),
)
def test_only_what_lies_between_two_documents_is_added(cut: list[list[str]], separator: str) -> None:
    def pieces() -> Iterator[Piece]:
        for parts in cut:
            for index, part in enumerate(parts):
                yield Piece(part.encode(), index == 0, "x", 0)

    tally = Tally()
    whole: list[str] = []
    for piece in separated(pieces(), separator.encode(), tally):
        assert isinstance(piece.data, bytes)
        if piece.starts_document:
            whole.append("")
        whole[-1] += piece.data.decode()
    texts = ["".join(parts) for parts in cut]
    needed = [not text.endswith(separator) and index < len(texts) - 1 for index, text in enumerate(texts)]
    assert whole == [text + separator * need for text, need in zip(texts, needed, strict=True)]
    assert tally.separated == sum(needed)


def test_lists_of_ids_have_an_end_of_text_or_it_is_told_that_they_run_together(tmp_path: Path) -> None:
    (tmp_path / "ids.jsonl").write_text('{"ids": [1, 2]}\n{"ids": [3]}\n{"ids": [1, 4]}\n')
    source = {"path": str(tmp_path / "ids.jsonl"), "sequence_field": "ids"}
    table = {"type": "pretokenized", "vocab_size": 9}
    glued = prepared(tmp_path, table, **source)
    assert glued.train.read(0, 5).tolist() == [1, 2, 3, 1, 4]
    assert any("3 documents run together" in note and "eos_id" in note for note in glued.notes)
    ended = prepared(tmp_path, {**table, "eos_id": 0}, **source)
    assert ended.train.read(0, 8).tolist() == [1, 2, 0, 3, 0, 1, 4, 0]
    assert not any("run together" in note for note in ended.notes)
