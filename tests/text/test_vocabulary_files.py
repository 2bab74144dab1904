"""Other people's vocabularies: every kind of model and decoder, their special tokens, and what stands beside them."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from text_helpers import refused
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Library
from transformers import PreTrainedTokenizerFast

from vocabulary_kinds import BYTES, CORPUS, KINDS, library_of, ours_of
from wyrmling.data.dataset import Dataset
from wyrmling.errors import ConfigError, DataError
from wyrmling.text.tokenizers import BpeTokenizer, Tokenizer
from wyrmling.text.tokenizers.byte_level import byte_alphabet
from wyrmling.text.tokenizers.storage import load_vocabulary

every_kind = pytest.mark.parametrize("kind", KINDS)


@cache
def reference_of(kind: str) -> Any:
    special = [token.content for token in library_of(kind).get_added_tokens_decoder().values()]
    return PreTrainedTokenizerFast(
        tokenizer_object=library_of(kind),
        additional_special_tokens=special,
        clean_up_tokenization_spaces=False,
    )


words = [*CORPUS, "the ", " ", "é", "漢", "\ufffd", ".", "'t", "lowest"]
texts = st.lists(st.one_of(st.sampled_from(words), st.characters(codec="utf-8"))).map("".join)


@every_kind
@settings(max_examples=40)
@given(texts)
def test_a_text_gets_the_ids_that_transformers_gives_it(kind: str, text: str) -> None:
    expected = reference_of(kind)(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    assert ours_of(kind).encode(text).tolist() == expected


@every_kind
@settings(max_examples=60)
@given(st.lists(st.integers(0, 399)), st.data())
def test_any_ids_stream_to_what_they_decode_to(kind: str, drawn: list[int], data: st.DataObject) -> None:
    """From whatever place on: the text up to there, and what streams after it. It is the library's where that finds
    no bytes that are no text; there each wrong place is one U+FFFD, and what is right stays.
    """
    tokenizer = ours_of(kind)
    ids = [token % tokenizer.vocab_size for token in drawn]
    decoder = tokenizer.stream_decoder()
    pieces = [decoder.push(token) for token in ids]
    whole = tokenizer.decode(ids)
    assert "".join(pieces) + decoder.finish() == whole
    assert whole == tokenizer.decode_bytes(ids).decode("utf-8", "replace")
    assert [decoder.push(token) for token in ids] == pieces, "it can be used afresh"
    library = reference_of(kind).decode(ids, skip_special_tokens=True)
    if "\ufffd" not in library:
        assert whole == library
    cut = data.draw(st.integers(0, len(ids)))
    before = "".join(pieces[:cut])
    assert tokenizer.decode(ids[:cut]).startswith(before)
    assert len(tokenizer.decode(ids[:cut])) - len(before) <= 1, "no more waits than one character"


NAMES = [
    "▁",
    "▁a",
    "b",
    "##c",
    "c</w>",
    "<pad>",
    "|",
    "é",
    ".",
    "▁▁",
    " 's",
    "<0x0A>",
    "<0xC3>",
    "<0xA9>",
    "Ġ",
    "Ã",
    "do not",
]
SPACES = decoders.Replace("▁", " ")
DECODERS = {
    "none": None,
    "ctc": decoders.CTC(pad_token="<pad>", word_delimiter_token="|"),
    "spaces kept": decoders.Metaspace(prepend_scheme="never"),
    "pieces of words": decoders.WordPiece(cleanup=False),
    "two spaces in front": decoders.Sequence([SPACES, decoders.Fuse(), decoders.Strip(" ", 2, 0)]),
    "a space at the end": decoders.Sequence([SPACES, decoders.Fuse(), decoders.Strip(" ", 0, 1)]),
    "a space of each": decoders.Sequence([SPACES, decoders.Strip(" ", 1, 0)]),
    "a pattern": decoders.Sequence([decoders.Fuse(), decoders.Replace(Regex("▁+"), " ")]),
    "bytes alone": decoders.ByteFallback(),
    "bytes in the middle": decoders.Sequence([decoders.Replace("b", "Ġ"), decoders.ByteLevel()]),
}


@pytest.mark.parametrize("name", DECODERS)
@settings(max_examples=50)
@given(st.lists(st.integers(0, len(NAMES) - 1)))
def test_every_decoder_of_the_library_streams(name: str, ids: list[int]) -> None:
    library = Library(models.WordLevel({name: token for token, name in enumerate(NAMES)}, unk_token="|"))
    if DECODERS[name] is not None:
        library.decoder = DECODERS[name]
    tokenizer = BpeTokenizer(json.loads(library.to_str()))
    decoder = tokenizer.stream_decoder()
    assert decoder.read(ids) + decoder.finish() == tokenizer.decode(ids)
    expected = library.decode(ids, skip_special_tokens=False) if ids else ""
    assert tokenizer.decode(ids) == expected or "\ufffd" in expected


@every_kind
def test_the_work_for_a_token_does_not_grow_with_the_text(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = BpeTokenizer(json.loads(library_of(kind).to_str()))
    ids = tokenizer.encode("the lazy 漢\ufffd\ufffd" * 40).tolist()
    decode, longest = tokenizer._decode, [0]

    def counted(given: list[int]) -> str:
        longest[0] = max(longest[0], len(given))
        return decode(given)

    monkeypatch.setattr(tokenizer, "_decode", counted)
    decoder = tokenizer.stream_decoder()
    for token in ids:
        decoder.push(token)
    assert longest[0] <= 3


@pytest.mark.parametrize("kind", ["llama", "unigram_bytes", "byte_level", "byte_level_among_others"])
@given(st.binary(max_size=12))
def test_bytes_come_back_as_they_are(kind: str, data: bytes) -> None:
    names = ours_of(kind).tokens()
    alphabet = {bytes([byte]): name for byte, name in enumerate(BYTES)}
    if kind.startswith("byte_level"):
        alphabet = {bytes([byte]): character for character, byte in byte_alphabet().items()}
    ids = [names.index(alphabet[bytes([byte])]) for byte in data]
    found = ours_of(kind).decode_bytes(ids)
    assert found == data or b" " + found == data  # a space in front may be taken away


@every_kind
@pytest.mark.parametrize("way", [copy.deepcopy, copy.copy, lambda t: pickle.loads(pickle.dumps(t))])
def test_a_copy_reads_every_text_as_the_original(kind: str, way: Callable[[Tokenizer], Tokenizer]) -> None:
    original = ours_of(kind).with_special_ids({"eos_id": 4})
    original.notes = ("told",)
    twin = way(original)
    text = "the</s> [SEP] fox <unk> <s> [UNK] low"
    assert twin.encode(text).tolist() == original.encode(text).tolist()
    assert twin.fingerprint() == original.fingerprint()
    assert twin.notes == original.notes
    assert twin.decode(range(twin.vocab_size)) == original.decode(range(twin.vocab_size))
    back = Tokenizer.from_json(json.loads(json.dumps(original.to_json())))
    assert back.encode(text).tolist() == original.encode(text).tolist()
    assert (back.eos_id, back.fingerprint()) == (4, original.fingerprint())


@every_kind
def test_names_of_special_tokens_in_a_text_are_text(kind: str) -> None:
    tokenizer = ours_of(kind)
    special = tokenizer.special - {tokenizer.unk_id}
    text = " ".join(tokenizer.tokens()[token] for token in tokenizer.special)
    assert special
    assert special.isdisjoint(tokenizer.encode(f"the {text} low").tolist())


@pytest.mark.parametrize("ignore_merges", [False, True])
def test_a_special_name_is_text_where_the_model_looks_up_whole_words(ignore_merges: bool) -> None:
    vocabulary = {"<s>": 0, "<": 1, "s": 2, ">": 3, "<s": 4}
    library = Library(models.BPE(vocabulary, [("<", "s")], ignore_merges=ignore_merges))
    library.add_special_tokens(["<s>"])
    assert BpeTokenizer(json.loads(library.to_str())).encode("<s>").tolist() == [4, 3]


@pytest.mark.parametrize(
    ("kind", "name"),
    [("unigram", "<unk>"), ("wordpiece", "[UNK]"), ("wordlevel", "[UNK]"), ("end_of_word", "<unk>")],
)
def test_the_unknown_token_is_known_of_every_model(kind: str, name: str) -> None:
    tokenizer = ours_of(kind)
    assert tokenizer.unk_id == tokenizer.tokens().index(name)
    ids = tokenizer.encode("the ฿ low")
    assert tokenizer.unk_id in ids
    assert tokenizer.byte_lengths()[tokenizer.unk_id] == -1


def test_a_byte_level_vocabulary_that_never_uses_its_unknown_token_counts_none(tmp_path: Path) -> None:
    """Often one token is unknown, begin and end at once."""
    document = json.loads(saved(tmp_path, end="<|endoftext|>").read_bytes())
    document["model"]["unk_token"] = "<|endoftext|>"
    tokenizer = BpeTokenizer(document)
    assert tokenizer.unk_id == tokenizer.eos_id == 0
    assert tokenizer.byte_lengths().tolist() == [0] + [1] * 256
    assert Dataset.from_texts(["a", "b"], tokenizer=tokenizer).train.store.header["unknown"] == 0


def test_a_fallback_without_all_bytes_loses_nothing_in_silence() -> None:
    vocabulary = {"a": 0, "<0xC3>": 1, "<0xA9>": 2}
    library = Library(models.BPE(vocabulary, [], byte_fallback=True))
    tokenizer = BpeTokenizer(json.loads(library.to_str()))
    assert tokenizer.encode("aé").tolist() == [0, 1, 2]
    with refused("'è'", "no <unk>", kind=DataError):
        tokenizer.encode("aè")


def saved(folder: Path, *, end: str = "<|im_end|>", extra: tuple[str, ...] = (), **beside: Any) -> Path:
    """A byte-level vocabulary file with its special tokens first, and files beside it."""
    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        special_tokens=[end, *extra], initial_alphabet=alphabet, show_progress=False
    )
    library.train_from_iterator(["a"], trainer)
    library.save(str(folder / "tokenizer.json"))
    for name, content in beside.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / f"{name}.json").write_text(text, encoding="utf-8")
    return folder / "tokenizer.json"


def read(path: Path, **special: int | str) -> BpeTokenizer:
    found = load_vocabulary(path, normalize=(), special_ids=special)
    assert isinstance(found, BpeTokenizer)
    return found


ENDS = ("<|endoftext|>", "<a>", "<b>", "<c>")


@pytest.mark.parametrize(
    ("beside", "keys", "end", "why"),
    [
        ({}, {}, 0, "by its name"),
        ({"special_tokens_map": {"eos_token": "<a>"}}, {}, 1, "special_tokens_map.json"),
        (
            {
                "special_tokens_map": {"eos_token": "<a>"},
                "tokenizer_config": {"eos_token": {"content": "<b>"}},
            },
            {},
            2,
            "tokenizer_config.json",
        ),
        ({"tokenizer_config": {"eos_token": "<b>"}}, {"eos_id": 3}, 3, "dataset.tokenizer.eos_id"),
        ({"tokenizer_config": {"eos_token": "<b>"}}, {"eos_id": "<c>"}, 3, "dataset.tokenizer.eos_id"),
        ({"tokenizer_config": {"eos_token": None, "model_max_length": 8}}, {}, 0, "by its name"),
        ({"tokenizer_config": {"eos_token": "<gone>"}}, {}, 0, "by its name"),
        ({}, {"eos_id": "a"}, 68, "dataset.tokenizer.eos_id"),
    ],
)
def test_the_end_of_text_is_what_the_key_else_a_file_beside_else_a_known_name_says(
    tmp_path: Path, beside: dict[str, Any], keys: dict[str, Any], end: int, why: str
) -> None:
    tokenizer = read(saved(tmp_path, end=ENDS[0], extra=ENDS[1:], **beside), **keys)
    assert tokenizer.eos_id == end
    assert f"(id {end}, " in tokenizer.notes[0]
    assert why in tokenizer.notes[0]
    assert tokenizer.decode([end]) == ""
    assert tokenizer.byte_lengths()[end] == 0
    assert end not in tokenizer.encode("<a> <b> <c> <|endoftext|>") or keys == {"eos_id": "a"}
    assert any("'<gone>'" in note for note in tokenizer.notes) == ("<gone>" in str(beside))
    assert ("texts that spell it end there" in tokenizer.notes[0]) == (end > 3)


def test_begin_and_padding_are_named_in_the_same_ways(tmp_path: Path) -> None:
    path = saved(tmp_path, extra=("<x>",), tokenizer_config={"bos_token": "<|im_end|>", "pad_token": "<x>"})
    tokenizer = read(path, eos_id="<x>")
    assert tokenizer.special_ids == {"bos_id": 0, "eos_id": 1, "pad_id": 1}


def test_a_vocabulary_of_ours_keeps_its_special_tokens_unless_a_key_says_otherwise(tmp_path: Path) -> None:
    made = read(saved(tmp_path), eos_id=0)
    path = tmp_path / "own.json"
    path.write_text(json.dumps(made.to_json()), encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "a"}', encoding="utf-8")
    assert read(path).fingerprint() == made.fingerprint()
    assert read(path, eos_id=5).eos_id == 5


def test_saying_what_would_be_found_anyway_is_no_other_tokenizer(tmp_path: Path) -> None:
    path = saved(tmp_path, end="</s>")
    assert read(path, eos_id=0).fingerprint() == read(path).fingerprint()
    assert read(path, eos_id=1).fingerprint() != read(path).fingerprint()


def test_no_end_of_text_is_told_with_the_tokens_that_could_be_it(tmp_path: Path) -> None:
    tokenizer = read(saved(tmp_path, extra=("<x>",)))
    assert tokenizer.eos_id is None
    assert "no end of text" in tokenizer.notes[0]
    assert "'<|im_end|>' (0), '<x>' (1)" in tokenizer.notes[0]


def test_special_tokens_that_cannot_be_are_refused_in_one_line(tmp_path: Path) -> None:
    path = saved(tmp_path)
    with refused("dataset.tokenizer.eos_id", "257", "ids 0 to 256", kind=ConfigError):
        read(path, eos_id=257)
    with refused("dataset.tokenizer.pad_id", "'<none>'", "tokenizer.json", kind=ConfigError):
        read(path, pad_id="<none>")
    for content in ('{"eos_token": 5}', '{"eos_token": ["a"]}', "[]", "{", ""):
        (tmp_path / "tokenizer_config.json").write_text(content, encoding="utf-8")
        with refused("tokenizer_config.json", kind=DataError):
            read(path)
    broken = json.loads(path.read_bytes())
    broken["added_tokens"][0]["id"] = 9
    with refused("not a tokenizer.json", "'<|im_end|>'", kind=DataError):
        BpeTokenizer(broken)


@every_kind
@settings(max_examples=25)
@given(st.data())
def test_a_file_with_anything_changed_is_read_or_refused_in_one_line(kind: str, data: st.DataObject) -> None:
    document = json.loads(library_of(kind).to_str())
    table = data.draw(st.sampled_from([document, document["model"], document["decoder"] or document]))
    place = data.draw(
        st.sampled_from([table, *[part for part in table.values() if isinstance(part, list) and part]])
    )
    key = data.draw(st.sampled_from(range(len(place)) if isinstance(place, list) else list(place)))
    place[key] = data.draw(st.sampled_from([None, 5, -1, "x", True, [], {}, [5], [["a"]], {"a": "b"}]))
    refusal = ""
    try:
        tokenizer = BpeTokenizer(document)
        tokenizer.decode(range(tokenizer.vocab_size))
    except DataError as error:
        refusal = str(error)
    assert "\n" not in refusal


def test_ids_without_a_token_stand_for_nothing() -> None:
    library = Library(models.WordLevel({"a": 0, "b": 4, "[UNK]": 2}, unk_token="[UNK]"))
    library.decoder = decoders.Metaspace()
    tokenizer = BpeTokenizer(json.loads(library.to_str()))
    decoder = tokenizer.stream_decoder()
    assert [decoder.push(token) for token in (1, 0, 3, 4)] == ["", "a", "", "b"]
    assert tokenizer.decode([1, 0, 3, 4]) == "ab"
    with refused("outside the vocabulary of 5", kind=DataError):
        decoder.push(5)
