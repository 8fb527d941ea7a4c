"""Derives from a file's name how to read it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Any

from curate.dataclass import dataclass
from curate.errors import ConfigError
from curate.objects.stream import Codec


class Format(StrEnum):
    """How rows are written in a file."""

    JSONL = "jsonl"
    """One JSON object a line."""
    PARQUET = "parquet"
    CSV = "csv"
    """Comma-separated with a header; quoted values may hold line ends."""
    TEXT = "text"
    """One row a line: its number and its text."""
    BINARY = "binary"
    """One row a file: its bytes. No suffix stands for it: it has to be asked for."""
    IMAGE = "image"
    """One row a file: its pixels. It has to be asked for, too."""
    WEBDATASET = "webdataset"
    """Files in a tar archive: those that are called alike, up to the first dot, are a row."""
    TFRECORDS = "tfrecords"
    """One `tf.train.Example` a record."""
    NUMPY = "numpy"
    """An array (.npy): its entries along the first dimension are the rows."""


UTF_8 = "utf-8"
"""How text is read, if nothing else is said."""


@dataclass(frozen=True, slots=True)
class ReadAs:
    """How files are read, where their suffixes do not say it all: what a dataset was told. A job is told nothing.

    Files that are read so may differ: a column that one of them lacks is null, and types are widened to the schema that
    is held. One that only another file has is refused where all columns are asked for, for no row could show it.
    """

    format: Format
    schema: Any = None
    """The schema that was declared: all columns that rows have. None: that of the first file with rows, and what some
    others add to it (see `curate.sources.columns`)."""
    first: str = ""
    """The file that the schema is from, for who is told of another one; empty if it was declared."""
    whole: bool = True
    """Whether all columns are read, and not a part that was pushed into the read."""
    asked: frozenset[str] | None = None
    """The columns of Parquet that are asked for: of others, those that a file has twice are not there. None: all."""
    beside: Any = None
    """The schema of columns of Parquet that are not read, in which a null where there is none makes a bad row all the
    same: what is read several times has the same rows each time. None: none."""
    delimiter: str | None = None
    """Of CSV; None: what the name of the file says."""
    column_names: tuple[str, ...] | None = None
    """Of CSV without a header; None: the first line is one."""
    text_encoding: str = UTF_8
    drop_empty_lines: bool = True
    """Of text."""
    image_size: tuple[int, int] | None = None
    """Height and width that images are brought to; None: each keeps its own."""
    image_mode: str = "RGB"
    decoder: bool = True
    """Of a WebDataset: whether texts, numbers, JSON and images are read as such, and not as bytes."""
    suffixes: tuple[str, ...] | None = None
    """Of a WebDataset: the files of a row that are read; None: all of them."""
    include_paths: bool = False
    """Whether rows have the column `path`."""
    partitions: Any = None
    """The schema of the columns that rows have of their folders; None: none."""

    def identity(self) -> dict[str, Any]:
        """Returns what decides the bytes of an output, as JSON values."""
        said: dict[str, Any] = {"as": self.format.value}
        if self.schema is not None:
            said["schema"] = [[field.name, str(field.type), field.nullable] for field in self.schema]
        if self.format is Format.CSV:
            said["delimiter"] = self.delimiter or ","
            said |= {"tabs": False} if self.delimiter == "," else {}
            said |= {} if self.column_names is None else {"column_names": list(self.column_names)}
        if self.format is Format.TEXT:
            said |= {"encoding": self.text_encoding, "drop_empty_lines": self.drop_empty_lines}
        if self.format is Format.IMAGE:
            said |= {"size": None if self.image_size is None else [*self.image_size], "mode": self.image_mode}
        if self.format is Format.WEBDATASET:
            said |= {"decoder": self.decoder, "suffixes": None if self.suffixes is None else [*self.suffixes]}
        if self.include_paths or self.format in (Format.BINARY, Format.IMAGE):
            said["include_paths"] = self.include_paths
        if self.partitions:
            said["partitions"] = [[field.name, str(field.type)] for field in self.partitions]
        return said


_FORMATS = {
    ".jsonl": Format.JSONL,
    ".ndjson": Format.JSONL,
    ".json": Format.JSONL,
    ".csv": Format.CSV,
    ".tsv": Format.CSV,
    ".txt": Format.TEXT,
    ".parquet": Format.PARQUET,
    ".tar": Format.WEBDATASET,
    ".npy": Format.NUMPY,
    ".tfrecords": Format.TFRECORDS,
    ".tfrecord": Format.TFRECORDS,
}
_IMAGES = (".png", ".jpg", ".jpeg", ".gif", ".bmp", ".tif", ".tiff", ".webp")
_TABS = ".tsv"
_QUERY = re.compile("[?#].*", re.DOTALL)
_CODECS: dict[str, Codec] = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd", ".bz2": "bz2", ".xz": "xz"}
_PACKED = (".lzma", ".zip", ".7z", ".rar", ".lz4", ".br", ".snappy", ".z", ".tgz", ".tbz2", ".txz")
"""What the names end in of files packed in ways that are not read: text would be what their bytes happen to be."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """Format and outer compression of a file. Parquet compresses inside, so its codec is None."""

    format: Format
    codec: Codec | None = None
    how: ReadAs | None = None
    typed: frozenset[str] = frozenset()
    """Columns whose type a job declares; that of others is what their first rows are."""
    job_reads_all: bool = False
    """Whether it is read for a job that names no columns."""
    tabs: bool = False
    """Whether its name says that it is CSV whose values are separated by tabs."""

    @property
    def delimiter(self) -> str:
        """What separates the values of CSV."""
        said = None if self.how is None else self.how.delimiter
        return said or ("\t" if self.tabs else ",")

    def typed_of(self, names: Iterable[str]) -> frozenset[str]:
        """Returns the columns among those that have a type that somebody declared."""
        return frozenset(names) if self.how is not None and self.how.schema is not None else self.typed

    @property
    def all_read(self) -> bool:
        """Whether all columns are asked for, so that one that is not held would be lost."""
        return self.job_reads_all if self.how is None else self.how.whole and self.how.schema is None

    @property
    def splittable(self) -> bool:
        """Whether byte or row-group slices can be read: not under compression, nor CSV (line ends in quotes), nor text
        of which a line feed is more than one byte."""
        if self.format is Format.TEXT and self.how is not None and not line_feeds(self.how.text_encoding):
            return False
        return self.codec is None and self.format in (Format.PARQUET, Format.JSONL, Format.TEXT)

    @property
    def unit(self) -> str:
        """What positions in a file count: lines, or rows where a row is not always a line."""
        return "line" if self.format in (Format.JSONL, Format.TEXT) else "row"

    @property
    def divisible(self) -> bool:
        """Whether the rows of slices are those of the whole. Text whose lines are numbered is numbered by the slice."""
        return self.splittable and (self.format is not Format.TEXT or self.how is not None)


def line_feeds(encoding: str) -> bool:
    r"""Returns whether the byte 10 is a line feed in this encoding of text, and nothing else.

    >>> line_feeds("latin-1"), line_feeds("utf-16")
    (True, False)
    """
    return "\n".encode(encoding) == b"\n" and "\u010a\n".encode(encoding, "ignore").count(b"\n") == 1


def _split(name: str) -> tuple[str, Format | None, Codec | None, bool]:
    before, dot, suffix = name.rpartition(".")
    if (codec := _CODECS.get(dot + suffix.lower())) is not None:
        name = before
        before, dot, suffix = name.rpartition(".")
    format = _FORMATS.get(dot + suffix.lower())
    return name if format is None else before, format, codec, dot + suffix.lower() == _TABS


def _either(endings: Iterable[str]) -> str:
    *others, last = endings
    return f"{', '.join(others)} or {last}"


def detect(uri: str, how: ReadAs | None = None) -> Encoding:
    """Returns the encoding that the suffix of `uri` stands for, or how the file is to be read; case does not matter.

    What follows the path of a web address (`?download=true`) is no part of the name.

    Any file is read as bytes, one of an unknown suffix also as text or TFRecord. Raises ConfigError for any other
    suffix, naming those that can be read, and for a file of another format than it is to be read as.

    >>> found = detect("gs://b/RC_2023-01.jsonl.gz")
    >>> found.format.value, found.codec
    ('jsonl', 'gzip')
    """
    name = _QUERY.sub("", uri) if uri.startswith(("http://", "https://")) else uri
    _, format, codec, tabs = _split(name)
    if how is not None:
        return _detect_as(uri, name, how, format, codec, tabs)
    if format is None or (format is Format.PARQUET and codec is not None):
        raise ConfigError(
            f"cannot tell how to read {uri!r}: expected a name ending in {', '.join(_FORMATS)}, "
            f"optionally (but for .parquet) followed by {_either(_CODECS)}"
        )
    return Encoding(format, codec, tabs=tabs)


def _detect_as(uri: str, name: str, how: ReadAs, format: Format | None, codec: Codec | None, tabs: bool) -> Encoding:
    lower = name.lower()
    if how.format is Format.BINARY or (how.format is Format.IMAGE and lower.endswith(_IMAGES)):
        return Encoding(how.format, None, how)
    wanted = how.format
    unknown = format is None and not lower.endswith(_IMAGES + _PACKED)
    fits = format is wanted or (unknown and wanted in (Format.TEXT, Format.TFRECORDS))
    if fits and (wanted is not Format.PARQUET or codec is None):
        return Encoding(wanted, codec, how, tabs=tabs)
    named = "a format that curate cannot read" if format is None else f"{format.value}{f', {codec}' if codec else ''}"
    named = f"that it is packed; unpack it, or pack it as {_either(_CODECS)}" if lower.endswith(_PACKED) else named
    endings = _IMAGES if wanted is Format.IMAGE else [name for name, one in _FORMATS.items() if one is wanted]
    raise ConfigError(
        f"{uri!r} should be read as {wanted.value}, but its name says {named}; expected a name ending in "
        f"{', '.join(endings)}: select only such files with a glob, for example 'data/*{endings[0]}'"
    )


def stem(relative_name: str) -> str:
    """Returns the name without the suffixes that `detect` reads; a name with none of them stays as it is.

    >>> stem("2023/RC_2023-01.jsonl.gz")
    '2023/RC_2023-01'
    """
    name, format, *_ = _split(relative_name)
    base = name.rpartition("/")[2]
    return name if format is not None and base else relative_name
