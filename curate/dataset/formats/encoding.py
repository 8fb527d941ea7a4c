"""What a file's name says about how to read it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from curate.errors import ConfigError

Codec = Literal["gzip", "zstd"]


class Format(StrEnum):
    """How rows are written in a file."""

    JSONL = "jsonl"
    """One JSON object a line."""
    PARQUET = "parquet"
    CSV = "csv"
    """Comma-separated with a header; quoted values may hold line ends."""
    TEXT = "text"
    """One row a line: its number and its text."""


_FORMATS = {
    ".jsonl": Format.JSONL,
    ".ndjson": Format.JSONL,
    ".json": Format.JSONL,
    ".csv": Format.CSV,
    ".txt": Format.TEXT,
    ".parquet": Format.PARQUET,
}
_CODECS: dict[str, Codec] = {".gz": "gzip", ".zst": "zstd"}


@dataclass(frozen=True, slots=True)
class Encoding:
    """Format and outer compression of a file. Parquet compresses inside, so its codec is None."""

    format: Format
    codec: Codec | None = None

    @property
    def splittable(self) -> bool:
        """Whether byte or row-group slices can be read: not under compression, nor CSV (line ends in quotes)."""
        return self.codec is None and self.format is not Format.CSV


def _split(name: str) -> tuple[str, Format | None, Codec | None]:
    lower = name.lower()
    codec = None
    for suffix, found in _CODECS.items():
        if lower.endswith(suffix):
            codec, name, lower = found, name[: -len(suffix)], lower[: -len(suffix)]
            break
    for suffix, format in _FORMATS.items():
        if lower.endswith(suffix):
            return name[: -len(suffix)], format, codec
    return name, None, codec


def detect(uri: str) -> Encoding:
    """Returns the encoding that the suffix of `uri` stands for; case does not matter.

    Raises ConfigError for any other suffix, naming those that can be read.

    >>> detect("gs://b/RC_2023-01.jsonl.gz")
    Encoding(format=<Format.JSONL: 'jsonl'>, codec='gzip')
    """
    _, format, codec = _split(uri)
    if format is None or (format is Format.PARQUET and codec is not None):
        raise ConfigError(
            f"cannot tell how to read {uri!r}: expected a name ending in {', '.join(_FORMATS)}, "
            f"optionally (but for .parquet) followed by {' or '.join(_CODECS)}"
        )
    return Encoding(format, codec)


def stem(relative_name: str) -> str:
    """Returns the name without the suffixes that `detect` reads; a name with none of them stays as it is.

    >>> stem("2023/RC_2023-01.jsonl.gz")
    '2023/RC_2023-01'
    """
    name, format, _ = _split(relative_name)
    base = name.rpartition("/")[2]
    return name if format is not None and base else relative_name
