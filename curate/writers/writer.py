"""Makes the writer of an output, and its suffix."""

from __future__ import annotations

import pyarrow as pa

from curate.errors import ConfigError, did_you_mean
from curate.objects.compress import Sink
from curate.objects.record import OFFERED, OutputFormat
from curate.writers.csv import CsvOutput
from curate.writers.jsonl import JsonlOutput
from curate.writers.npy import NumpyOutput
from curate.writers.output import OutputWriter
from curate.writers.parquet import ParquetOutput
from curate.writers.tfrecords import TFRecordOutput
from curate.writers.webdataset import WebDatasetOutput

_SUFFIXES = {
    OutputFormat.PARQUET: {"zstd": ".parquet", "snappy": ".parquet", "none": ".parquet"},
    OutputFormat.JSONL: {"zstd": ".jsonl.zst", "gzip": ".jsonl.gz"},
    OutputFormat.CSV: {"zstd": ".csv.zst", "gzip": ".csv.gz"},
    OutputFormat.WEBDATASET: {"none": ".tar", "gzip": ".tar.gz"},
    # Uncompressed ones have no place for a record: each byte to the end is read. Their readers know gzip alone.
    OutputFormat.TFRECORDS: {"gzip": ".tfrecords.gz"},
    OutputFormat.NUMPY: {"none": ".npy"},
    OutputFormat.MEMMAP: {"none": ".npy"},
    OutputFormat.MEGATRON: {"none": ".idx"},
    OutputFormat.DATATROVE: {"none": ".ds.metadata"},
    OutputFormat.MDS: {"none": ".mds"},
    OutputFormat.SINK: {"zstd": ".zst", "gzip": ".gz", "none": ""},
    OutputFormat.RUN: {"none": ".run"},
}
DEFAULT_CODEC = "zstd"
"""That of the formats that any output can be asked for in."""


def suffix(format: OutputFormat, codec: str = DEFAULT_CODEC) -> str:
    """Returns the suffix of an output's name. Raises ConfigError for a codec that the format is not written with.

    >>> suffix(OutputFormat.JSONL, "gzip")
    '.jsonl.gz'
    """
    known = _SUFFIXES[format]
    if codec not in known:
        raise ConfigError(
            f"{format} is not written with codec {codec!r}{did_you_mean(codec, known)}; "
            f"expected one of {', '.join(known)}"
        )
    return known[codec]


def default_codec(format: OutputFormat) -> str:
    """Returns the codec that a format is written with unless another one is asked for."""
    return next(iter(_SUFFIXES[format]))


def make_writer(sink: Sink, schema: pa.Schema, format: OutputFormat, codec: str = DEFAULT_CODEC) -> OutputWriter:
    """Returns a writer into `sink` (anything with `write`).

    Raises ConfigError for a codec that the format is not written with, and for types that it has no place for.
    """
    suffix(format, codec)
    match format:
        case OutputFormat.PARQUET:
            return ParquetOutput(sink, schema, codec)
        case OutputFormat.JSONL:
            return JsonlOutput(sink, schema, codec)
        case OutputFormat.CSV:
            return CsvOutput(sink, schema, codec)
        case OutputFormat.WEBDATASET:
            return WebDatasetOutput(sink, schema, codec)
        case OutputFormat.TFRECORDS:
            return TFRecordOutput(sink, schema, codec)
        case OutputFormat.NUMPY:
            return NumpyOutput(sink, schema, codec)
        case _:
            raise ConfigError(f"{format} is not written by itself; expected one of {', '.join(OFFERED)}")
