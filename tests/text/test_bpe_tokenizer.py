"""Byte-pair encoding: exact, repeatable, deaf to special names in the text; and what other people's files do."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from text_helpers import refused, text_pieces
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from wyrmling.errors import ConfigError, DataError
from wyrmling.text.sources import Piece
from wyrmling.text.tokenizers import BpeTokenizer, bpe
from wyrmling.text.tokenizers.byte_level import byte_alphabet

FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467\ufe0f"
CORPUS = [
    "the cat sat on the mat\n" * 20,
    "über den Dächern\r\n" * 9,
    FAMILY * 5 + "\n\n\t  end",
    "<|endoftext|>" * 9,
]
tricky = st.lists(
    st.one_of(
        st.sampled_from(
            [
                "the ",
                "cat",
                "\r\n",
                "\n\n",
                "  ",
                "<|endoftext|>",
                FAMILY,
                "e\u0301",
                "\0",
                "\ufeff",
                "\ufffd",
            ]
        ),
        st.characters(codec="utf-8"),
    )
).map("".join)


@pytest.fixture(scope="module")
def trained() -> BpeTokenizer:
    return BpeTokenizer.train(text_pieces(*CORPUS), 320)


def streamed(tokenizer: BpeTokenizer, ids: np.ndarray) -> str:
    decoder = tokenizer.stream_decoder()
    return "".join([decoder.push(token) for token in ids.tolist()] + [decoder.finish()])


@given(tricky)
def test_any_text_comes_back_exactly_and_lengths_add_up(trained: BpeTokenizer, text: str) -> None:
    ids = trained.encode(text)
    assert ids.dtype == np.int64
    assert ids.tolist() == trained.encode(text.encode("utf-8")).tolist()
    assert trained.decode(ids) == text == streamed(trained, ids)
    assert trained.decode_bytes(ids) == text.encode("utf-8")
    assert trained.byte_lengths()[ids].sum() == len(text.encode("utf-8"))
    assert trained.eos_id not in ids


@given(st.lists(st.integers(0, 319)))
def test_any_ids_stream_to_what_they_decode_to(trained: BpeTokenizer, ids: list[int]) -> None:
    kept = [token % trained.vocab_size for token in ids]
    text = streamed(trained, np.array(kept, dtype=np.int64))
    assert text == trained.decode(kept) == trained.decode_bytes(kept).decode("utf-8", "replace")


def test_a_character_spread_over_tokens_is_given_out_whole(trained: BpeTokenizer) -> None:
    ids = trained.encode("\U0001f600")
    assert len(ids) > 1
    decoder = trained.stream_decoder()
    assert [decoder.push(token) for token in ids.tolist()] == [""] * (len(ids) - 1) + ["\U0001f600"]
    decoder = trained.stream_decoder()
    assert decoder.push(int(ids[0])) == ""
    assert decoder.finish() == "\ufffd"


def test_the_vocabulary_is_the_end_then_the_bytes_then_the_merges(trained: BpeTokenizer) -> None:
    assert trained.eos_id == 0
    assert trained.vocab_size <= 320
    assert len(set(trained.tokens())) == trained.vocab_size
    assert {trained.decode_bytes([token]) for token in range(1, 257)} == {
        bytes([byte]) for byte in range(256)
    }
    assert trained.decode_bytes([0]) == b""
    assert len(trained.encode("the cat")) < 7
    assert trained.bos_id is None


def test_the_alphabet_of_bytes_is_that_of_the_library() -> None:
    assert set(byte_alphabet()) == set(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(byte_alphabet().values()) == list(range(256))


def test_training_is_repeatable_in_other_processes() -> None:
    program = (
        "from wyrmling.text.tokenizers import BpeTokenizer; from wyrmling.text.sources import Piece; "
        f"texts = {CORPUS!a}; "
        "pieces = lambda: iter([Piece(t.encode(), True, 'x', 0) for t in texts]); "
        "print(BpeTokenizer.train(pieces, 320).fingerprint())"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed, "RAYON_NUM_THREADS": threads},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed, threads in (("1", "1"), ("2", "3"))
    }
    assert len(found) == 1
    assert found == {BpeTokenizer.train(text_pieces(*CORPUS), 320).fingerprint() + "\n"}


def test_training_refuses_what_cannot_be_learned_from() -> None:
    with refused("tokenizer.vocab_size", "257", kind=ConfigError):
        BpeTokenizer.train(text_pieces("x"), 256)
    with refused("bad.txt", "byte offset 12", kind=DataError):
        BpeTokenizer.train(lambda: iter([Piece(b"ok\xff", True, "bad.txt", 10)]), 300)
    with refused("ids.npy", "pretokenized", kind=DataError):
        BpeTokenizer.train(lambda: iter([Piece(np.array([1]), True, "ids.npy", 0)]), 300)


def test_training_normalizes_as_encoding_does() -> None:
    tokenizer = BpeTokenizer.train(text_pieces("a\r\nb\r\n" * 50), 300, normalize=["newlines"])
    assert not any("\r" in tokenizer.decode([token]) for token in range(257, tokenizer.vocab_size))
    assert tokenizer.decode(tokenizer.encode("a\r\nb\r")) == "a\nb\n"


def test_of_a_huge_text_an_even_sample_is_learned_from() -> None:
    def pieces() -> Iterator[Piece]:
        for index in range(1000):
            yield Piece(b"x" * (1 + index % 50), True, str(index), 0)

    total = sum(len(piece.data) for piece in pieces())
    taken = [int(piece.origin) for piece in bpe._sample(pieces, total // 4)]
    size = sum(len(piece.data) for piece in pieces() if int(piece.origin) in set(taken))
    assert total // 4 <= size <= total // 4 + 50
    assert taken[0] < 10
    assert taken[-1] > 900
    assert max(b - a for a, b in itertools.pairwise(taken)) < 40
    assert len(list(bpe._sample(pieces, total))) == 1000


def test_long_texts_are_encoded_in_parts_that_join_to_the_text(
    trained: BpeTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "".join(CORPUS) * 3
    whole = trained.encode(text)
    monkeypatch.setattr(bpe, "_PART_BYTES", 64)
    parts = trained.encode(text)
    assert trained.decode(parts) == text
    assert len(whole) <= len(parts) < 1.2 * len(whole)


def specification(tokenizer: BpeTokenizer) -> dict[str, Any]:
    return json.loads(json.dumps(tokenizer.to_json()["specification"]))


def test_truncation_padding_dropout_and_templates_of_a_file_do_nothing(trained: BpeTokenizer) -> None:
    backend = tokenizers.Tokenizer.from_str(json.dumps(specification(trained)))
    backend.enable_truncation(3)
    backend.enable_padding(length=50)
    backend.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A <|endoftext|>", special_tokens=[("<|endoftext|>", 0)]
    )
    altered = json.loads(backend.to_str())
    altered["model"]["dropout"] = 0.5
    other = BpeTokenizer(altered)
    for _ in range(5):
        assert other.encode(CORPUS[0]).tolist() == trained.encode(CORPUS[0]).tolist()


def test_well_known_names_are_special_only_when_they_were_added() -> None:
    text = "<s></s>" * 50
    merged = BpeTokenizer(_plain_bpe(text, special=[]))
    ids = merged.encode(text)
    assert (merged.bos_id, merged.eos_id) == (None, None)
    assert merged.decode(ids) == text
    added = BpeTokenizer(_plain_bpe(text, special=["<pad>", "<s>", "</s>", "<other>"]))
    assert (added.pad_id, added.bos_id, added.eos_id) == (0, 1, 2)
    assert added.decode([1, 3, 2]) == "", "every special token stands for nothing"
    assert added.decode(added.encode(text)) == text


def _plain_bpe(text: str, special: list[str], alphabet: bool = True) -> dict[str, Any]:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if alphabet else [],
        show_progress=False,
    )
    backend.train_from_iterator([text], trainer)
    return json.loads(backend.to_str())


def test_bytes_that_a_vocabulary_lacks_are_an_error_not_a_silent_loss() -> None:
    tokenizer = BpeTokenizer(_plain_bpe("abcabc é", special=[], alphabet=False))
    assert tokenizer.decode(tokenizer.encode("cab é")) == "cab é"
    with refused("prompt", "'d' (U+0064) at character 1", "no <unk>", kind=DataError):
        tokenizer.encode("adé", origin="prompt")
    with refused("x.txt", "'è' (U+00E8) at byte offset 13", kind=DataError):
        tokenizer.encode("aéè".encode(), origin="x.txt", offset=10)


def test_characters_that_a_plain_vocabulary_lacks_are_an_error_or_the_unknown_id() -> None:
    def plain(**model: Any) -> BpeTokenizer:
        vocab = {"a": 0, "b": 1, "ab": 2, "?": 3}
        return BpeTokenizer(
            json.loads(tokenizers.Tokenizer(models.BPE(vocab, [("a", "b")], **model)).to_str())
        )

    with refused("prompt", "'x' (U+0078) at character 2", kind=DataError):
        plain().encode("abxa", origin="prompt")
    assert plain().encode("ab a").tolist() == [2, 0]
    unknown = plain(unk_token="?")
    assert unknown.unk_id == 3
    assert unknown.encode("abxa").tolist() == [2, 3, 0]
    assert set(unknown.byte_lengths()) == {-1}


def _metaspace() -> BpeTokenizer:
    """A small vocabulary of the sentencepiece kind: ▁ for spaces, <0xNN> for bytes without a character."""
    names = [
        "<s>",
        "</s>",
        "<unk>",
        *[f"<0x{byte:02X}>" for byte in range(256)],
        "▁",
        "h",
        "i",
        "hi",
        "▁hi",
        "é",
    ]
    backend = tokenizers.Tokenizer(
        models.BPE(
            {name: token for token, name in enumerate(names)},
            [("h", "i"), ("▁", "hi")],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    backend.add_special_tokens(["<s>", "</s>", "<unk>"])
    return BpeTokenizer(json.loads(backend.to_str()))


@given(st.lists(st.sampled_from(["hi", " hi", "h", "é", "\U0001f642", "€", " "])).map("".join))
def test_a_vocabulary_that_is_not_byte_level_streams_to_what_it_decodes_to(text: str) -> None:
    tokenizer = _metaspace()
    assert set(tokenizer.byte_lengths()[2:]) == {-1}
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text == streamed(tokenizer, ids)
    assert tokenizer.decode_bytes([0, *ids, 1]) == text.encode("utf-8")


def test_lengths_are_not_told_when_a_file_rewrites_the_text(trained: BpeTokenizer) -> None:
    for key, part in [
        ("normalizer", {"type": "Lowercase"}),
        (
            "pre_tokenizer",
            {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        ),
    ]:
        rewritten = BpeTokenizer({**specification(trained), key: part}).byte_lengths()
        assert rewritten.tolist() == [0] + [-1] * (trained.vocab_size - 1)
    partial = _plain_bpe("abcabc", special=["<unk>"], alphabet=False)
    assert BpeTokenizer(partial).byte_lengths().tolist() == [0, 1, 1, 1, 2, 3, 6]
    partial["model"]["unk_token"] = "<unk>"
    lengths = BpeTokenizer(partial).byte_lengths().tolist()
    assert lengths == [-1, 1, 1, 1, 2, 3, 6], "an unknown byte could be any"
    kept = BpeTokenizer({**specification(trained), "normalizer": {"type": "NFC"}})
    assert kept.byte_lengths().tolist() == trained.byte_lengths().tolist()


@pytest.mark.parametrize(
    "document", [{}, {"model": {}}, {"model": {"type": "BPE"}}, [], None, "text", {"model": 5}]
)
def test_what_is_no_tokenizer_is_refused(document: Any) -> None:
    with refused("not a tokenizer.json", kind=DataError):
        BpeTokenizer(document)
