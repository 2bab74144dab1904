"""From a configuration to checked splits, with real sources and tokenizers."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library
from tokenizers import models

from wyrmling.config import Config
from wyrmling.config.load import config_from_dict
from wyrmling.data import dataset as module
from wyrmling.data import known_files
from wyrmling.data.batches import BatchLoader, gather
from wyrmling.data.dataset import Dataset, prepare_dataset
from wyrmling.data.order import EpochWindows, Windows
from wyrmling.data.store import Split
from wyrmling.data.streams import Documents
from wyrmling.errors import DataError
from wyrmling.text.sources.files import InputFile
from wyrmling.text.tokenizers import ByteTokenizer, CharTokenizer, PretokenizedTokenizer

CHAR = {"type": "char", "include_unknown": False}


def configured(folder: Path, *, block_size: int = 4, **dataset: Any) -> Config:
    """A configuration of local text (or what `dataset` says) with its cache in `folder`."""
    table = {
        "type": "local_text",
        "path": str(folder / "s.txt"),
        "cache_dir": str(folder / "cache"),
        **dataset,
    }
    return config_from_dict({"dataset": table, "training": {"block_size": block_size}})


def write(folder: Path, text: str | bytes, name: str = "s.txt") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def text_of(split: Split | None, dataset: Dataset) -> str:
    assert split is not None
    return dataset.tokenizer.decode(split.read(0, len(split)))


def token_files(folder: Path) -> list[Path]:
    return sorted((folder / "cache" / "tokens").glob("*.tokens"))


def one_line(caught: pytest.ExceptionInfo[DataError]) -> str:
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("extra", [-12, 0])
def test_a_corpus_shorter_than_a_block_is_refused(tmp_path: Path, extra: int) -> None:
    """D1: `hello` with blocks of 16, and exactly one block: the target of the last token is missing."""
    path = write(tmp_path, "x" * (16 + extra))
    with pytest.raises(DataError) as caught:
        prepare_dataset(configured(tmp_path, block_size=16, train_split_ratio=1.0))
    message = one_line(caught)
    for part in (
        path.as_posix(),
        "train split",
        f"has {16 + extra} tokens",
        "block_size = 16",
        "at least 17",
    ):
        assert part in message


@pytest.mark.parametrize("extra", [1, 2])
def test_one_block_and_a_target_are_enough(tmp_path: Path, extra: int) -> None:
    """D1: block + 1 tokens train."""
    write(tmp_path, "x" * (16 + extra))
    dataset = prepare_dataset(configured(tmp_path, block_size=16, train_split_ratio=1.0))
    assert len(dataset.train) == 16 + extra
    assert dataset.validation is None
    assert EpochWindows(len(dataset.train), 16, 4, 0, "train").steps_per_epoch == 1


def test_a_validation_part_shorter_than_a_block_is_refused(tmp_path: Path) -> None:
    """D1: the training part is long enough, the last tenth is not."""
    path = write(tmp_path, "x" * 100)
    with pytest.raises(DataError) as caught:
        prepare_dataset(configured(tmp_path, block_size=16))
    message = one_line(caught)
    for part in (path.as_posix(), "validation split has 10 tokens", "at least 17", "train_split_ratio"):
        assert part in message


def test_a_validation_source_shorter_than_a_block_is_named(tmp_path: Path) -> None:
    write(tmp_path, "x" * 100)
    path = write(tmp_path, "y" * 10, "v.txt")
    table = {"type": "local_text", "path": str(path)}
    with pytest.raises(DataError, match=r"v\.txt: the validation split has 10 tokens"):
        prepare_dataset(configured(tmp_path, block_size=16, validation=table))


def test_an_empty_file_is_refused_and_no_token_file_is_made(tmp_path: Path) -> None:
    """D2."""
    path = write(tmp_path, "")
    for tokenizer in ({"type": "byte"}, CHAR, {"type": "bpe", "vocab_size": 300}):
        with pytest.raises(DataError) as caught:
            prepare_dataset(configured(tmp_path, tokenizer=tokenizer))
        assert path.as_posix() in one_line(caught)
    left = [file for file in (tmp_path / "cache").rglob("*") if file.is_file()]
    assert {file.parent.name for file in left if file.suffix != ".lock"} == {"files"}, (
        "what was hashed is known"
    )


def test_empty_documents_are_skipped_and_counted_in_one_note(tmp_path: Path) -> None:
    """D2: one empty line among 100 good ones; and records with empty text."""
    write(tmp_path, "".join(f"line {i}\n" if i != 50 else "\n" for i in range(101)))
    dataset = prepare_dataset(configured(tmp_path, documents="line"))
    assert [note for note in dataset.notes if "empty document" in note] == ["1 empty document skipped"]
    assert len(dataset.train.store.document_starts) == 100
    records = ['{"text": ""}\n'] * 3 + ['{"text": "abc"}\n'] * 30
    path = write(tmp_path, "".join(records), "r.jsonl")
    dataset = prepare_dataset(configured(tmp_path, type="jsonl", path=str(path)))
    assert [note for note in dataset.notes if "empty document" in note] == ["3 empty documents skipped"]
    only_empty = write(tmp_path, '{"text": ""}\n' * 5, "e.jsonl")
    with pytest.raises(DataError, match=r"e\.jsonl"):
        prepare_dataset(configured(tmp_path, type="jsonl", path=str(only_empty)))


def test_a_validation_character_outside_the_vocabulary_is_found_at_once(tmp_path: Path) -> None:
    """D4: the vocabulary is that of the training part; the error lists the character and where it is."""
    write(tmp_path, "abc" * 30 + "abé" + "abc" * 2)
    with pytest.raises(DataError) as caught:
        prepare_dataset(configured(tmp_path, tokenizer=CHAR))
    message = one_line(caught)
    for part in ("s.txt", "'é' (U+00E9)", "92", "training text"):
        assert part in message
    assert token_files(tmp_path) == []


def test_what_a_vocabulary_file_does_not_know_and_where_its_texts_end_is_told(tmp_path: Path) -> None:
    """Unknown tokens of a Unigram model; no end of text, until a file beside it or a key names one."""
    library = Library(models.Unigram([("<unk>", 0.0), ("<EOT>", 0.0), ("a", -1.0), ("b", -2.0)], 0))
    library.add_special_tokens(["<EOT>"])
    library.save(str(tmp_path / "t.json"))
    folder = tmp_path / "texts"
    folder.mkdir()
    for name in "123":
        write(folder, f"ab{name}ba", f"{name}.txt")

    def prepared(**tokenizer: Any) -> Dataset:
        table = {"type": "bpe", "vocab_path": str(tmp_path / "t.json"), **tokenizer}
        return prepare_dataset(configured(tmp_path, path=str(folder), tokenizer=table, train_split_ratio=1.0))

    silent = prepared()
    assert "3 of 15 tokens are unknown to the vocabulary" in silent.notes
    assert any("'<EOT>' (1)" in note for note in silent.notes)
    assert any("3 documents run together" in note for note in silent.notes)
    named = prepared(eos_id="<EOT>")
    assert named.train.read(0, 18).tolist() == [2, 3, 0, 3, 2, 1] * 3
    assert not any("run together" in note for note in named.notes)
    write(tmp_path, '{"eos_token": "<EOT>"}', "tokenizer_config.json")
    assert prepared().fingerprint == named.fingerprint


def test_a_line_of_numbers_is_told_of_each_source_also_when_its_tokens_are_kept(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_bytes(b"one\n" * 49 + b"\0\x01\xff\xe9")
    (folder / "b.txt").write_bytes("zwölf\n".encode() * 2)
    (folder / "c.log").write_bytes(b"log\n")
    write(tmp_path, "validation " * 9, "v.txt")
    config = configured(
        tmp_path, path=str(folder), validation={"type": "local_text", "path": str(tmp_path / "v.txt")}
    )
    expected = "2 files ({0}/a.txt, {0}/b.txt): 2 documents, 214 bytes, of which 1.87% are no text "
    expected += "(1 NUL, 1 control character, 2 not UTF-8: is dataset.encoding another?)"
    for more in ("", "d.log"):
        if more:
            (folder / more).write_bytes(b"log\n")
        notes = prepare_dataset(config).notes
        assert expected.format(folder) in notes
        assert f"validation: {tmp_path}/v.txt: 1 document, 99 bytes" in notes
        left = [note for note in notes if "not read" in note]
        assert len(left) == 1
        assert ("2 .log" if more else "1 .log") in left[0], "of now, not of when the tokens were made"


def test_unknown_characters_are_counted_where_the_vocabulary_has_an_id_for_them(tmp_path: Path) -> None:
    """D4: the documented fallback."""
    write(tmp_path, "abc" * 30 + "éé" + "abc" * 2)
    dataset = prepare_dataset(configured(tmp_path, tokenizer={"type": "char"}))
    assert "2 of 98 tokens are unknown to the vocabulary" in dataset.notes
    assert isinstance(dataset.tokenizer, CharTokenizer)
    assert dataset.tokenizer.characters == "abc"


@given(st.text("aé漢🐉\n", min_size=12, max_size=60), st.sampled_from([0.5, 0.6, 0.75, 0.8]))
def test_the_vocabulary_of_a_ratio_is_exactly_that_of_the_training_tokens(
    tmp_path_factory: pytest.TempPathFactory, text: str, ratio: float
) -> None:
    """However many bytes the characters have: nothing of the validation part leaks in, nothing is missing."""
    folder = tmp_path_factory.mktemp("vocabulary")
    write(folder, text)
    table = {"type": "char"}
    config = configured(folder, block_size=1, tokenizer=table, train_split_ratio=ratio)
    dataset = prepare_dataset(config)
    train = text[: round(len(text) * ratio)]
    assert isinstance(dataset.tokenizer, CharTokenizer)
    assert set(dataset.tokenizer.characters) == set(train)
    assert text_of(dataset.train, dataset) == train
    assert dataset.validation is not None
    assert len(dataset.train) + len(dataset.validation) == len(text)


@given(st.lists(st.text("abé", min_size=1, max_size=9), min_size=2, max_size=9), st.floats(0.05, 0.95))
def test_a_split_by_documents_cuts_between_documents(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], ratio: float
) -> None:
    """The first round(n x ratio) documents train, at least one on each side; the vocabulary is theirs."""
    folder = tmp_path_factory.mktemp("documents")
    write(folder, "".join(f"{line}\n" for line in lines))
    dataset = prepare_dataset(
        configured(
            folder,
            block_size=1,
            documents="line",
            split="documents",
            train_split_ratio=ratio,
            tokenizer={"type": "char"},
        )
    )
    first = min(max(round(len(lines) * ratio), 1), len(lines) - 1)
    train = "".join(f"{line}\n" for line in lines[:first])
    assert text_of(dataset.train, dataset) == train
    assert isinstance(dataset.tokenizer, CharTokenizer)
    assert set(dataset.tokenizer.characters) == set(train)
    assert dataset.validation is not None
    assert dataset.validation.document_starts.tolist()[0] == 0
    assert len(dataset.validation.document_starts) == len(lines) - first


def test_one_document_cannot_be_split_by_documents(tmp_path: Path) -> None:
    write(tmp_path, "x" * 100)
    for tokenizer in ({"type": "byte"}, CHAR):
        with pytest.raises(DataError, match=r'needs two documents or more, found 1.*split = "ratio"'):
            prepare_dataset(configured(tmp_path, split="documents", tokenizer=tokenizer))


@pytest.mark.parametrize("tokenizer", [{"type": "byte"}, CHAR])
def test_a_split_that_is_automatic_is_between_documents_where_there_are_two(
    tmp_path: Path, tokenizer: dict[str, object]
) -> None:
    """So a recipe that splits plays takes a text of one piece too, and says what validates."""
    write(tmp_path, "abcdefghij" * 10)
    one = prepare_dataset(configured(tmp_path, split="auto", tokenizer=tokenizer))
    assert (
        one.fingerprint
        == prepare_dataset(configured(tmp_path, split="ratio", tokenizer=tokenizer)).fingerprint
    )
    assert one.validation is not None
    assert len(one.train) == 9 * len(one.validation)
    assert any("dataset.split" in note for note in one.notes)
    lines = {"documents": "line", "tokenizer": tokenizer}
    write(tmp_path, "ab\ncdcdcd\nabab\n")
    many = [prepare_dataset(configured(tmp_path, split=split, **lines)) for split in ("auto", "documents")]
    assert len({len(found.train) for found in many}) == len({found.fingerprint for found in many}) == 1
    assert not any("dataset.split" in note for note in many[0].notes)


def test_a_validation_source_is_used_and_all_of_the_training_source_trains(tmp_path: Path) -> None:
    write(tmp_path, "train " * 20)
    path = write(tmp_path, "other " * 5, "v.txt")
    table = {"type": "local_text", "path": str(path)}
    dataset = prepare_dataset(configured(tmp_path, validation=table, train_split_ratio=0.5))
    assert text_of(dataset.train, dataset) == "train " * 20
    assert text_of(dataset.validation, dataset) == "other " * 5
    assert any("train_split_ratio is not used" in note for note in dataset.notes)
    assert not any(
        "train_split_ratio" in n for n in prepare_dataset(configured(tmp_path, validation=table)).notes
    )


def test_validating_on_a_file_that_is_trained_on_is_refused_unless_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path, "train " * 20)
    copy, link = write(tmp_path, "train " * 20, "copy.txt"), tmp_path / "link.txt"
    os.link(path, link)
    other = write(tmp_path, "other " * 20, "other.txt")
    for name in (path, copy, link, [str(other), str(link)]):
        table = {
            "type": "local_text",
            "path": [str(part) for part in (name if isinstance(name, list) else [name])],
        }
        with pytest.raises(
            DataError, match=r"dataset\.validation.*s\.txt.*dataset\.allow_shared_files"
        ) as caught:
            prepare_dataset(configured(tmp_path, validation=table))
        one_line(caught)
        prepare_dataset(configured(tmp_path, validation=table, allow_shared_files=True))
    table = {"type": "local_text", "path": str(copy)}
    notes = prepare_dataset(configured(tmp_path, validation=table, allow_shared_files=True)).notes
    assert any("validation text is the training text" in note for note in notes)
    table["path"] = str(other)
    dataset = prepare_dataset(configured(tmp_path, validation=table))
    assert text_of(dataset.validation, dataset) == "other " * 20


def test_validation_files_of_a_repository_are_used(tmp_path: Path) -> None:
    for name, word in (("train.jsonl", "one"), ("valid.jsonl", "two")):
        write(tmp_path, f"{json.dumps({'text': word * 10})}\n", name)
    table = {
        "type": "hugging_face",
        "repo_id": "a/b",
        "local_dir": str(tmp_path),
        "cache_dir": str(tmp_path / "c"),
    }
    table["validation_files"] = ["valid.jsonl"]
    dataset = prepare_dataset(config_from_dict({"dataset": table, "training": {"block_size": 4}}))
    assert text_of(dataset.train, dataset) == "one" * 10 + "\n"
    assert text_of(dataset.validation, dataset) == "two" * 10 + "\n"


class Hashed:
    """Counts the bytes that are hashed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bytes = 0
        chunks = InputFile.chunks

        def counted(file: InputFile) -> Iterator[bytes]:
            for chunk in chunks(file):
                self.bytes += len(chunk)
                yield chunk

        monkeypatch.setattr(InputFile, "chunks", counted)


def test_the_cache_is_used_until_the_text_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokenizer and tokens are made once, and a file that is known is not even hashed; another text, tokenizer or
    ratio of a vocabulary makes others.
    """
    monkeypatch.setattr(known_files, "GRAIN_NS", -(10**12))
    hashed = Hashed(monkeypatch)
    write(tmp_path, "abcabd" * 20)
    first = prepare_dataset(configured(tmp_path, tokenizer=CHAR))
    assert hashed.bytes == 120
    again = prepare_dataset(configured(tmp_path, tokenizer=CHAR))
    assert hashed.bytes == 120
    assert again.fingerprint == first.fingerprint
    assert again.notes == first.notes
    assert len(token_files(tmp_path)) == 1
    prepare_dataset(configured(tmp_path, tokenizer={"type": "byte"}))
    assert len(token_files(tmp_path)) == 2
    path = write(tmp_path, "abcabd" * 30)
    other = prepare_dataset(configured(tmp_path, tokenizer=CHAR))
    assert other.fingerprint != first.fingerprint
    assert f"tokens built anew: {path.as_posix()} changed since the last time" in other.notes
    write(tmp_path, "abcabd" * 20)
    back = prepare_dataset(configured(tmp_path, tokenizer=CHAR))
    assert back.fingerprint == first.fingerprint
    assert back.notes == first.notes, "its tokens were still there"


@pytest.mark.parametrize("what", ["copy", "hard link", "link", "mode", "time", "moved", "written again"])
def test_what_leaves_the_text_as_it_is_costs_a_hash_and_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    path, other = write(tmp_path, "abcabd" * 20), tmp_path / "other.txt"
    first = prepare_dataset(configured(tmp_path, tokenizer=CHAR))
    monkeypatch.setattr(known_files, "GRAIN_NS", -(10**12))
    if what == "copy":
        other.write_bytes(path.read_bytes())
    elif what == "hard link":
        other.hardlink_to(path)
    elif what == "link":
        other.symlink_to(path)
    elif what == "mode":
        path.chmod(0o600)
    elif what == "time":
        os.utime(path, (1, 1))
    elif what == "moved":
        path.rename(other)
    else:
        path.write_bytes(path.read_bytes())
    used = other if other.exists() else path
    monkeypatch.setattr("wyrmling.data.building._write_store", lambda *_: pytest.fail("tokenized again"))
    monkeypatch.setattr("wyrmling.data.dataset.build_tokenizer", lambda *_: pytest.fail("learned again"))
    hashed = Hashed(monkeypatch)
    for _ in range(2):
        again = prepare_dataset(configured(tmp_path, path=str(used), tokenizer=CHAR))
        assert again.fingerprint == first.fingerprint
        names = (path.as_posix(), used.as_posix())
        assert again.notes == [note.replace(*names) for note in first.notes]
    assert hashed.bytes in (0, 120), "and the next time nothing"


@pytest.mark.parametrize("coarse", [False, True])
def test_a_change_is_found_whatever_became_of_size_and_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, coarse: bool
) -> None:
    """Of the same size, with the old time put back; or at what is the same time to a file system's coarse clock."""
    path = write(tmp_path, "abcabd" * 20)
    before = path.stat()
    if coarse:
        same = [before.st_dev, before.st_ino, before.st_size, before.st_mtime_ns, before.st_mtime_ns]
        monkeypatch.setattr(InputFile, "state", lambda file: same)
    else:
        monkeypatch.setattr(known_files, "GRAIN_NS", -(10**12))
    first = prepare_dataset(configured(tmp_path, tokenizer=CHAR))
    with path.open("r+b") as file:
        file.write(b"b")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    second = prepare_dataset(configured(tmp_path, tokenizer=CHAR))
    assert second.fingerprint != first.fingerprint
    assert any("changed since the last time" in note for note in second.notes)


def test_a_file_that_changes_while_it_is_read_gives_no_tokens(tmp_path: Path) -> None:
    path = write(tmp_path, "abcabd" * 20)
    moments: list[int] = []

    def write_more(done: int, total: int | None) -> None:
        moments.append(done)
        if len(moments) == 2:  # hashed, and read
            path.write_text("abcabd" * 21, encoding="utf-8")

    with pytest.raises(DataError, match="changed while it was read; run again"):
        prepare_dataset(configured(tmp_path, tokenizer={"type": "byte"}), progress=write_more)
    assert token_files(tmp_path) == []


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff\0", b"another", None])
def test_whatever_became_of_records_in_the_cache_the_data_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    """Known files and learned vocabularies: damaged, replaced by another's that is sound, or by a folder."""
    monkeypatch.setattr(known_files, "GRAIN_NS", -(10**12))
    write(tmp_path, "abcabd" * 20)
    first = prepare_dataset(configured(tmp_path, tokenizer=CHAR))
    records = [
        file for kind in ("files", "tokenizers") for file in (tmp_path / "cache" / kind).glob("*.json")
    ]
    assert len(records) == 2
    (tmp_path / "else").mkdir()
    write(tmp_path / "else", "xyz" * 40)
    prepare_dataset(configured(tmp_path, path=str(tmp_path / "else"), tokenizer=CHAR))
    for record in records:
        (theirs,) = [file for file in record.parent.glob("*.json") if file not in records]
        wanted = theirs.read_bytes() if content == b"another" else content
        record.unlink()
        if wanted is None:
            record.mkdir()
        else:
            record.write_bytes(wanted)
    again = prepare_dataset(configured(tmp_path, tokenizer=CHAR))
    assert again.fingerprint == first.fingerprint
    assert again.tokenizer.fingerprint() == first.tokenizer.fingerprint()


def test_damaged_cache_files_are_built_anew(tmp_path: Path) -> None:
    write(tmp_path, "abcabd" * 20)
    first = prepare_dataset(configured(tmp_path, tokenizer=CHAR))
    (path,) = token_files(tmp_path)
    good = path.read_bytes()
    path.write_bytes(good[:-1])
    (vocabulary,) = (tmp_path / "cache" / "tokenizers").glob("*.json")
    vocabulary.write_text('{"half')
    again = prepare_dataset(configured(tmp_path, tokenizer=CHAR))
    assert again.fingerprint == first.fingerprint
    assert [n for n in again.notes if n not in first.notes] == [
        f"tokens built anew: token file {path} is damaged (it has {len(good) - 1} bytes instead of {len(good)})"
    ]
    assert path.read_bytes() == good
    assert prepare_dataset(configured(tmp_path, tokenizer=CHAR)).notes == first.notes


def test_a_given_tokenizer_is_used_and_none_is_trained(tmp_path: Path) -> None:
    """A resumed run keeps its vocabulary, whatever the text has become."""
    write(tmp_path, "abc" * 20)
    given = CharTokenizer("abcdef", include_unknown=False)
    dataset = prepare_dataset(configured(tmp_path, tokenizer=CHAR), tokenizer=given)
    assert dataset.tokenizer is given
    assert dataset.train.store.vocab_size == 6
    assert not (tmp_path / "cache" / "tokenizers").exists()


def test_the_fingerprint_tells_text_tokenizer_and_split_and_not_where_things_lie(tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
        write(folder, "abcabd" * 20)
    other = write(tmp_path, "abcabd" * 19 + "abcabc", "other.txt")
    variants: list[dict[str, Any]] = [
        {},
        {"train_split_ratio": 0.8},
        {"train_split_ratio": 1.0},
        {"tokenizer": {"type": "byte", "add_special_tokens": True}},
        {"tokenizer": CHAR},
        {"path": str(other)},
    ]
    fingerprints = [prepare_dataset(configured(folders[0], **variant)).fingerprint for variant in variants]
    assert len(set(fingerprints)) == len(variants)
    assert prepare_dataset(configured(folders[1])).fingerprint == fingerprints[0]


def test_texts_in_memory_are_the_same_dataset_as_files(tmp_path: Path) -> None:
    tokenizer = ByteTokenizer(add_special_tokens=True)
    path = write(tmp_path, "one\ntwö\n")
    table = {"type": "local_text", "path": str(write(tmp_path, "three" * 9, "v.txt"))}
    special = {"type": "byte", "add_special_tokens": True}
    on_disk = prepare_dataset(
        configured(tmp_path, path=str(path), documents="line", validation=table, tokenizer=special)
    )
    in_memory = Dataset.from_texts(["one\n", "twö\n"], "three" * 9, tokenizer=tokenizer)
    assert in_memory.fingerprint == on_disk.fingerprint
    assert in_memory.train.read(0, 10).tolist() == on_disk.train.read(0, 10).tolist()
    assert in_memory.train.document_starts.tolist() == [0, 5]
    in_memory.check(4)
    with pytest.raises(DataError, match="given data: the train split has 11 tokens"):
        in_memory.check(11)


def test_ids_in_memory_are_taken_as_they_are() -> None:
    """Also for a tokenizer of text: the ids are those it would give."""
    tokenizer = ByteTokenizer()
    dataset = Dataset.from_tokens(np.array([1, 2, 255], dtype=np.uint8), tokenizer=tokenizer)
    assert dataset.train.read(0, 3).tolist() == [1, 2, 255]
    assert dataset.validation is None
    many = Dataset.from_tokens(
        [np.array([1, 2]), np.array([3])], np.arange(5), tokenizer=PretokenizedTokenizer(10, eos_id=9)
    )
    assert many.train.read(0, 5).tolist() == [1, 2, 9, 3, 9]
    assert text_of(many.validation, many) == "0 1 2 3 4"
    with pytest.raises(DataError, match=r"validation document 1: token 2 is 10, outside the vocabulary"):
        Dataset.from_tokens(
            np.arange(5), [np.arange(3), np.array([1, 2, 10])], tokenizer=PretokenizedTokenizer(10)
        )


@pytest.mark.parametrize("texts", ["", [], ["", ""]])
def test_no_text_in_memory_is_refused(texts: Any) -> None:
    with pytest.raises(DataError, match="nothing to train on"):
        Dataset.from_texts(texts, tokenizer=ByteTokenizer())


def test_half_a_surrogate_pair_is_no_text() -> None:
    with pytest.raises(DataError, match=r"train text 1: .*surrogate"):
        Dataset.from_texts(["fine", "a\ud800"], tokenizer=ByteTokenizer())


def test_pretokenized_files_train_and_bad_ids_are_named(tmp_path: Path) -> None:
    np.save(tmp_path / "good.npy", np.arange(50, dtype=np.uint16) % 7)
    np.save(tmp_path / "bad.npy", np.array([1, 2, 7]))
    table: dict[str, Any] = {"type": "pretokenized", "tokenizer": {"type": "pretokenized", "vocab_size": 7}}
    dataset = prepare_dataset(configured(tmp_path, path=str(tmp_path / "good.npy"), **table))
    assert dataset.train.read(0, 8).tolist() == [0, 1, 2, 3, 4, 5, 6, 0]
    with pytest.raises(DataError, match=r"bad\.npy: token id 7 at position 2"):
        prepare_dataset(configured(tmp_path, path=str(tmp_path / "bad.npy"), **table))


@pytest.mark.parametrize(
    "tokenizer", [{"type": "byte"}, CHAR, {"type": "bpe", "vocab_size": 300}], ids=lambda t: str(t["type"])
)
def test_text_comes_through_files_tokens_windows_and_batches_unharmed(
    tmp_path: Path, tokenizer: dict[str, Any]
) -> None:
    """The whole way with real parts: the targets of all blocks in order and of an epoch decode to the text."""
    text = "".join(f"Löwe {i * i} frißt 漢字.\r\n" for i in range(40))
    write(tmp_path, text)
    dataset = prepare_dataset(configured(tmp_path, block_size=13, tokenizer=tokenizer, train_split_ratio=1.0))
    n, rows, block = len(dataset.train), 3, 13
    blocks = Documents.cut(n, block)
    _, targets = gather(dataset.train, Windows(blocks.starts, blocks.targets), block)
    ids = np.concatenate([dataset.train.read(0, 1), targets[targets >= 0]])
    assert dataset.tokenizer.decode(ids) == text
    lengths = dataset.tokenizer.byte_lengths()
    assert lengths[ids].sum() == len(text.encode())
    epochs = EpochWindows(n, block, rows, 5, "train")
    loader = BatchLoader(dataset.train, epochs, block)
    steps = range(epochs.steps_per_epoch, 2 * epochs.steps_per_epoch)
    seen = np.concatenate([loader.batch(step, range(rows)).targets.numpy().ravel() for step in steps])
    np.testing.assert_array_equal(np.sort(seen[seen >= 0]), np.sort(ids[1:]))


def test_the_default_dataset_can_be_prepared(tmp_path: Path) -> None:
    """No table at all: the text of a package, where it is installed."""
    config = config_from_dict({"dataset": {"cache_dir": str(tmp_path)}})
    if not list(metadata.distributions(name=config.dataset.package)):
        pytest.skip("the optional package with text is not installed")
    dataset = prepare_dataset(config)
    assert dataset.tokenizer.kind == "byte"
    assert dataset.validation is not None
    assert len(dataset.train) > 8 * len(dataset.validation)


@pytest.mark.parametrize("kind", ["char", "bpe"])
def test_a_vocabulary_is_never_filed_under_another_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The text is exchanged between its hash and the reading, and put back: what is learned then is its own."""
    tokenizer = {"type": kind} if kind == "char" else {"type": kind, "vocab_size": 258}
    path = write(tmp_path, "abcabc" * 200)
    build = module.build_tokenizer

    def late(*arguments: Any) -> Any:
        write(tmp_path, "xyzxyz" * 200)
        return build(*arguments)

    monkeypatch.setattr(module, "build_tokenizer", late)
    with pytest.raises(DataError, match="changed while it was read"):
        prepare_dataset(configured(tmp_path, tokenizer=tokenizer))
    monkeypatch.setattr(module, "build_tokenizer", build)
    path.write_bytes(b"abcabc" * 200)
    dataset = prepare_dataset(configured(tmp_path, tokenizer=tokenizer))
    assert text_of(dataset.train, dataset).startswith("abcabc")
