"""`[dataset]`: a source of text, its tokenizer, and what is held back for validation."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from .base import FilePath, Kinds, Table
from .sources import (
    CsvSource,
    HuggingFaceSource,
    JsonLinesSource,
    LocalTextSource,
    PackageTextSource,
    ParquetSource,
    PretokenizedSource,
    ShakespeareSource,
    SourceConfig,
    source_kinds,
)
from .tokenizer import TOKENIZERS, ByteTokenizer, TokenizerConfig


class DatasetOptions(Table):
    """Keys of every dataset, whatever its type."""

    cache_dir: FilePath | None = Field(
        default=None,
        description="Folder of fetched and tokenized data; unset: WYRMLING_CACHE_DIR, else the user's cache.",
    )
    train_split_ratio: Annotated[float, Field(gt=0, le=1)] = Field(
        default=0.9, description="Share of the data to train on; the rest validates."
    )
    split: Literal["ratio", "documents", "auto"] = Field(
        default="ratio",
        description='"ratio": cut the stream of tokens; "documents": cut between documents; "auto": between documents '
        "where there are two or more.",
    )
    document_separator: str | None = Field(
        default=None,
        description="Text added to a document that does not end with it, where another one follows; unset: none if the "
        'tokenizer has an end of text, else a line end. "" adds nothing.',
    )
    tokenizer: Annotated[TokenizerConfig, Kinds(*TOKENIZERS)] = Field(
        default_factory=ByteTokenizer, description="How text becomes numbers."
    )
    validation: Annotated[SourceConfig, source_kinds] | None = Field(
        default=None, description="Another source to validate on, instead of a share of this one."
    )
    allow_shared_files: bool = Field(
        default=False, description="Let `[dataset.validation]` name files that are trained on too."
    )


class LocalTextDataset(LocalTextSource, DatasetOptions):
    """Text files."""


class JsonLinesDataset(JsonLinesSource, DatasetOptions):
    """JSON objects, one per line, or one array of them."""


class CsvDataset(CsvSource, DatasetOptions):
    """Delimited text: CSV, TSV."""


class ParquetDataset(ParquetSource, DatasetOptions):
    """Parquet files; needs pyarrow."""


class ShakespeareDataset(ShakespeareSource, DatasetOptions):
    """Tiny Shakespeare, fetched once."""


class PackageTextDataset(PackageTextSource, DatasetOptions):
    """Text files that an installed Python package carries."""

    default_variant: ClassVar[bool] = True


class HuggingFaceDataset(HuggingFaceSource, DatasetOptions):
    """Files of a dataset repository on the Hugging Face hub."""


class PretokenizedDataset(PretokenizedSource, DatasetOptions):
    """Files of token ids."""


DATASETS = (
    LocalTextDataset,
    JsonLinesDataset,
    CsvDataset,
    ParquetDataset,
    ShakespeareDataset,
    PackageTextDataset,
    HuggingFaceDataset,
    PretokenizedDataset,
)
DatasetConfig = (
    LocalTextDataset
    | JsonLinesDataset
    | CsvDataset
    | ParquetDataset
    | ShakespeareDataset
    | PackageTextDataset
    | HuggingFaceDataset
    | PretokenizedDataset
)
