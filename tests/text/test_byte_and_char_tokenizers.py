"""Bytes, characters and ready ids: nothing lost, nothing assumed, unknown characters named."""

from __future__ import annotations

import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from text_helpers import refused, text_pieces

from wyrmling.errors import ConfigError, DataError
from wyrmling.text.sources import Piece
from wyrmling.text.tokenizers import (
    BpeTokenizer,
    ByteTokenizer,
    CharTokenizer,
    PretokenizedTokenizer,
    Tokenizer,
)

FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467\ufe0f"
LOOKALIKES = ["\ufeff", "\r", "\u2019", "e\u0301", "\u00e9", FAMILY, "\0", "\u2028", "'"]
tricky = st.lists(st.one_of(st.sampled_from(LOOKALIKES), st.characters(codec="utf-8"))).map("".join)


def streamed(tokenizer: Tokenizer, ids: np.ndarray) -> str:
    decoder = tokenizer.stream_decoder()
    return "".join([decoder.push(token) for token in ids.tolist()] + [decoder.finish()])


@given(st.binary(), st.booleans())
def test_bytes_come_back_whatever_they_are(data: bytes, special: bool) -> None:
    tokenizer = ByteTokenizer(add_special_tokens=special)
    ids = tokenizer.encode(data)
    assert ids.dtype == np.int64
    assert ids.tolist() == list(data)
    assert tokenizer.decode_bytes(ids) == data
    assert tokenizer.decode(ids) == data.decode("utf-8", "replace") == streamed(tokenizer, ids)
    assert tokenizer.byte_lengths()[ids].sum() == len(data)


@given(tricky)
def test_text_comes_back_exactly_from_bytes_and_characters(text: str) -> None:
    for tokenizer in (ByteTokenizer(), CharTokenizer.fit(text_pieces(text + "x"))):
        for form in (text, text.encode("utf-8")):
            ids = tokenizer.encode(form)
            assert tokenizer.decode(ids) == text == streamed(tokenizer, ids)
            assert tokenizer.decode_bytes(ids) == text.encode("utf-8")


def test_special_ids_of_bytes_stand_for_nothing() -> None:
    tokenizer = ByteTokenizer(add_special_tokens=True)
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id, tokenizer.vocab_size) == (
        256,
        257,
        258,
        259,
    )
    assert tokenizer.decode([256, 104, 105, 257, 258]) == "hi"
    assert tokenizer.byte_lengths()[256:].tolist() == [0, 0, 0]
    assert len(set(tokenizer.tokens())) == 259
    assert ByteTokenizer().eos_id is None


def test_bytes_smuggled_through_a_command_line_come_out_as_they_were() -> None:
    argument = b"ok\xff\xc3".decode("utf-8", "surrogateescape")
    assert ByteTokenizer().decode_bytes(ByteTokenizer().encode(argument)) == b"ok\xff\xc3"
    with refused("prompt", "U+D800", "character 1", kind=DataError):
        ByteTokenizer().encode("a\ud800", origin="prompt")
    with refused("prompt", "U+DCFF", "character 2", kind=DataError):
        CharTokenizer("okx").encode(argument, origin="prompt")


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), CharTokenizer("abc"), PretokenizedTokenizer(3)])
@pytest.mark.parametrize("token", [-1, 300])
def test_ids_outside_the_vocabulary_are_refused(tokenizer: Tokenizer, token: int) -> None:
    with refused(f"token id {token} is outside", kind=DataError):
        tokenizer.decode([1, token])
    with refused(f"token id {token} is outside", kind=DataError):
        tokenizer.stream_decoder().push(token)


@given(st.lists(tricky.filter(bool), min_size=1))
def test_characters_are_sorted_so_that_only_the_set_matters(texts: list[str]) -> None:
    tokenizer = CharTokenizer.fit(text_pieces(*texts))
    turned = CharTokenizer.fit(text_pieces(*reversed([text[::-1] for text in texts])))
    assert tokenizer.fingerprint() == turned.fingerprint()
    assert tokenizer.tokens() == ["<unk>", *sorted(set("".join(texts)))]
    assert tokenizer.unk_id == 0


def test_a_character_outside_the_vocabulary_is_named_with_its_place() -> None:
    tokenizer = CharTokenizer.fit(text_pieces("abcabc"), include_unknown=False)
    assert tokenizer.vocab_size == 3
    with refused(
        "prompt", "1 character is not in", "'d' (U+0064) at character 2", "include_unknown", kind=DataError
    ):
        tokenizer.encode("abd", origin="prompt")
    with refused(
        "val.txt", "'\\n' (U+000A) at byte offset 108", "'é' (U+00E9) at byte offset 103", kind=DataError
    ):
        tokenizer.encode("abcébé\n".encode(), origin="val.txt", offset=100)
    with refused("9 characters are", "and 4 more", kind=DataError) as _:
        tokenizer.encode("123456789123")
    with refused("U+1F642", kind=DataError):
        tokenizer.encode("\U0001f642")


@given(tricky)
def test_unknown_characters_become_the_unknown_id(text: str) -> None:
    tokenizer = CharTokenizer("ab")
    ids = tokenizer.encode(text)
    assert len(ids) == len(text)
    assert tokenizer.decode(ids) == "".join(c if c in "ab" else "\ufffd" for c in text)


def test_the_length_in_bytes_of_a_character_is_told_only_when_it_follows_from_the_id() -> None:
    characters = "aé€\U0001f642"
    assert CharTokenizer(characters, include_unknown=False).byte_lengths().tolist() == [1, 2, 3, 4]
    assert CharTokenizer(characters).byte_lengths().tolist() == [-1, 1, 2, 3, 4]


@pytest.mark.parametrize("tokenizer", [CharTokenizer("ok"), PretokenizedTokenizer(3)])
def test_invalid_utf8_is_refused_with_file_and_offset(tokenizer: Tokenizer) -> None:
    with refused("bad.txt", "byte offset 1002", "0xff", "invalid_utf8", kind=DataError):
        tokenizer.encode(b"1 \xff\xfe", origin="bad.txt", offset=1000)
    with refused("bad.txt", "byte offset 12", kind=DataError):
        CharTokenizer.fit(lambda: iter([Piece(b"ok\xff", True, "bad.txt", 10)]))


def test_three_ways_to_end_lines_are_three_texts_until_newlines_are_normalized() -> None:
    unix = "one\ntwo\n\nthree\n"
    windows, mixed, mac = unix.replace("\n", "\r\n"), "one\r\ntwo\n\nthree\r\n", unix.replace("\n", "\r")
    plain, same = ByteTokenizer(), ByteTokenizer(normalize=["newlines"])
    assert len({plain.encode(text).tobytes() for text in (unix, windows, mixed, mac)}) == 4
    assert len({same.encode(text).tobytes() for text in (unix, windows, mixed, mac)}) == 1
    for text in (windows, mixed, mac):
        kept = CharTokenizer.fit(text_pieces(text))
        assert "\r" in kept.tokens()
        assert kept.decode(kept.encode(text)) == text
        normalized = CharTokenizer.fit(text_pieces(text), normalize=["newlines"])
        assert "\r" not in normalized.tokens()
        assert (
            normalized.fingerprint()
            == CharTokenizer.fit(text_pieces(unix), normalize=["newlines"]).fingerprint()
        )
        assert normalized.decode(normalized.encode(text.encode())) == unix, (
            "a prompt is treated like the data"
        )


def test_composed_and_decomposed_accents_differ_until_nfc() -> None:
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    for normalize, number in (([], 2), (["nfc"], 1)):
        for tokenizer in (
            ByteTokenizer(normalize=normalize),
            CharTokenizer(composed + decomposed, normalize=normalize),
        ):
            forms = [tokenizer.encode(text) for text in (composed, decomposed)]
            assert len({form.tobytes() for form in forms}) == number
            assert tokenizer.decode(forms[0]) == composed


@given(st.one_of(st.binary(), tricky.map(lambda text: text.encode("utf-8"))))
def test_normalization_touches_text_alone(data: bytes) -> None:
    ids = ByteTokenizer(normalize=["nfc"]).encode(data)
    text = data.decode("utf-8", "surrogateescape")
    assert ids.astype(np.uint8).tobytes() == unicodedata.normalize("NFC", text).encode(
        "utf-8", "surrogateescape"
    )


def test_a_normalization_that_does_not_exist_is_refused() -> None:
    with refused("tokenizer.normalize", '"nfd"', "newlines, nfc", kind=ConfigError):
        ByteTokenizer(normalize=["nfd"])


@given(st.lists(st.integers(0, 9)))
def test_ready_ids_are_written_and_read_back(ids: list[int]) -> None:
    tokenizer = PretokenizedTokenizer(10)
    assert tokenizer.encode(np.array(ids, dtype=np.uint8)).tolist() == ids
    assert tokenizer.encode(str(ids)).tolist() == ids
    text = tokenizer.decode(ids)
    assert text == streamed(tokenizer, np.array(ids, dtype=np.int64)) == " ".join(map(str, ids))
    assert tokenizer.encode(text).tolist() == ids
    assert set(tokenizer.byte_lengths()) == {-1}


def test_ready_ids_know_their_special_ids_and_their_range() -> None:
    tokenizer = PretokenizedTokenizer(10, bos_id=1, eos_id=2, pad_id=0, unk_id=3)
    assert tokenizer.decode([1, 5, 3, 2, 0]) == "5 3"
    assert tokenizer.encode("5 what 007").tolist() == [5, 3, 7]
    for text in ("10", "9" * 5000):
        with refused("prompt", "outside the vocabulary of 10", kind=DataError):
            tokenizer.encode(text, origin="prompt")
    with refused("ids.npy", "token id 12 at position 101", kind=DataError):
        tokenizer.encode(np.array([1, 12]), origin="ids.npy", offset=100)
    for word in ("what", "-1", "1.5", "٣"):
        with refused("prompt", "is not a token id", kind=DataError):
            PretokenizedTokenizer(10).encode(word, origin="prompt")
    with refused("tokenizer.eos_id", "10 is outside", kind=ConfigError):
        PretokenizedTokenizer(10, eos_id=10)


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), CharTokenizer("ab")])
def test_text_tokenizers_refuse_ready_ids(tokenizer: Tokenizer) -> None:
    with refused("ids.npy", "pretokenized", kind=DataError):
        tokenizer.encode(np.array([1, 2]), origin="ids.npy")


@given(
    st.lists(st.text("ab é漢\r\n", max_size=6), min_size=1, max_size=8),
    st.sampled_from([(), ("newlines",), ("nfc",)]),
)
def test_many_texts_at_once_are_those_one_by_one(texts: list[str], steps: tuple[str, ...]) -> None:
    """Also where a text is empty, or what is normalized could reach over its end."""
    data = [text.encode() for text in texts]
    ends = np.cumsum([len(text) for text in data])
    for tokenizer in (
        ByteTokenizer(normalize=steps),
        CharTokenizer("ab é漢\n\r", normalize=steps),
        CharTokenizer("ab", normalize=steps),
        BpeTokenizer.train(text_pieces(*texts, "a"), 258, normalize=steps),
    ):
        ids, lengths = tokenizer.encode_all(b"".join(data), ends)
        alone = [tokenizer.encode(text) for text in data]
        assert lengths.tolist() == [len(part) for part in alone]
        assert ids.tolist() == [token for part in alone for token in part]


def test_half_a_character_at_the_end_of_a_text_is_not_made_whole_by_the_next() -> None:
    """Together they would be valid."""
    with pytest.raises(DataError, match="invalid UTF-8"):
        CharTokenizer("aé").encode_all(b"a\xc3\xa9", np.array([2, 3]))
