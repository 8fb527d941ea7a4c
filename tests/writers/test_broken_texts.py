"""Texts that are not UTF-8, which a Parquet file may have: formats of text refuse them, with column and row."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from curate.errors import ConfigError
from curate.objects.record import OutputFormat
from tests.support.writes import file_of, pieces

TEXTS = [b"a", b"b", b"\xff\xfe", b"\xff"]


def broken(*texts: bytes) -> pa.Array:
    """Returns texts that nobody has looked at."""
    return pa.array(texts, pa.binary()).view(pa.string())


ROWS = broken(*TEXTS)
OFFSETS = pa.array([0, 1, 2, 3, 4], pa.int32())
PLACES: dict[str, pa.Array] = {
    "texts": ROWS,
    "long texts": pa.array(TEXTS, pa.large_binary()).view(pa.large_string()),
    "dictionaries": ROWS.dictionary_encode(),
    "lists": pa.ListArray.from_arrays(OFFSETS, ROWS),
    "structs": pa.StructArray.from_arrays([ROWS], ["x"]),
    "maps": pa.MapArray.from_arrays(OFFSETS, ROWS, ROWS),
    "lists of structs": pa.ListArray.from_arrays(OFFSETS, pa.StructArray.from_arrays([ROWS], ["x"])),
}
FORMATS: dict[OutputFormat, tuple[str, str, set[str]]] = {
    OutputFormat.JSONL: ("JSON lines", "zstd", {*PLACES}),
    OutputFormat.CSV: ("CSV", "zstd", {"texts", "long texts", "dictionaries"}),
    OutputFormat.TFRECORDS: ("a tf.train.Example", "gzip", {"texts", "long texts", "lists"}),
    OutputFormat.WEBDATASET: ("a WebDataset", "none", {*PLACES} - {"long texts", "texts"}),
}
CASES = [(format, place) for format, (*_, places) in FORMATS.items() for place in sorted(places)]


def write(format: OutputFormat, codec: str, column: Any) -> bytes:
    return file_of(pieces(pa.table({"json": column}), [1]), format, codec)


@pytest.mark.parametrize(("format", "place"), CASES)
def test_they_are_refused_at_any_depth_with_column_and_row(format: OutputFormat, place: str) -> None:
    """Of all tables that are written; what no row has is no matter."""
    called, codec, _ = FORMATS[format]
    with pytest.raises(
        ConfigError, match=rf"column 'json' is .* that is not UTF-8 in row 2 of .*xff.*, which {called}"
    ):
        write(format, codec, PLACES[place])
    assert write(format, codec, PLACES[place].slice(0, 2))


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (pa.array([[("k", 1), ("k", 2)]], pa.map_(pa.string(), pa.int8())), "column 'json' is map<.*> and has a map"),
        (
            pa.array([{"t": 2**45}], pa.struct({"t": pa.timestamp("s")})),
            "column 'json' is struct<.*> and has .* s from",
        ),
    ],
)
def test_what_json_in_an_archive_cannot_store_is_told_of_its_column(column: pa.Array, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        write(OutputFormat.WEBDATASET, "none", column)
