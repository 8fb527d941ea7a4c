from __future__ import annotations

import pytest

from curate.errors import ConfigError
from curate.formats.encoding import Encoding, Format, ReadAs, detect, stem


@pytest.mark.parametrize(
    ("uri", "format", "codec"),
    [
        ("gs://b/a.jsonl", Format.JSONL, None),
        ("gs://b/a.ndjson.gz", Format.JSONL, "gzip"),
        ("/d/a.json.zst", Format.JSONL, "zstd"),
        ("/d/A.JSONL.GZ", Format.JSONL, "gzip"),
        ("/d/a.csv", Format.CSV, None),
        ("/d/a.jsonl.zstd", Format.JSONL, "zstd"),
        ("/d/a.txt.bz2", Format.TEXT, "bz2"),
        ("/d/a.csv.XZ", Format.CSV, "xz"),
        ("/d/a.txt.gz", Format.TEXT, "gzip"),
        ("/d/a.b.parquet", Format.PARQUET, None),
        # A query is the address's, and no part of the file's name; elsewhere it is one.
        ("https://h/a.jsonl?download=true", Format.JSONL, None),
        ("https://h/a.csv.gz?x=/b.parquet#c.txt", Format.CSV, "gzip"),
        ("http://h/a.txt#b", Format.TEXT, None),
        ("s3://b/a.csv?x.txt", Format.TEXT, None),
        ("/d/a.csv#x.txt", Format.TEXT, None),
    ],
)
def test_the_suffix_says_how_to_read(uri: str, format: Format, codec: str | None) -> None:
    assert detect(uri) == Encoding(format, codec)


@pytest.mark.parametrize("uri", ["gs://b/a", "gs://b/a.gz", "a.jsonl.lz4", "a.parquet.gz", "jsonl", "", "/d/a.csv?x"])
def test_any_other_suffix_is_refused_with_the_known_ones(uri: str) -> None:
    with pytest.raises(ConfigError, match=r"cannot tell how to read .*\.jsonl, .*\.parquet, .*\.gz, .* or \.xz"):
        detect(uri)


@pytest.mark.parametrize("uri", ["a.txt.lz4", "a.lzma", "a.ZIP", "logs.tgz", "a.txt.br"])
@pytest.mark.parametrize("format", [Format.TEXT, Format.TFRECORDS, Format.CSV])
def test_what_is_packed_in_another_way_is_no_text(uri: str, format: Format) -> None:
    """Its bytes would be lines, or rows that are set aside. They are read as bytes."""
    with pytest.raises(
        ConfigError, match=r"its name says that it is packed; unpack it, or pack it as \.gz, \.zst, .* or \.xz"
    ):
        detect(uri, ReadAs(format))
    assert detect(uri, ReadAs(Format.BINARY)).format is Format.BINARY


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("2023/RC_2023-01.jsonl.gz", "2023/RC_2023-01"),
        ("a.b.parquet", "a.b"),
        ("a.csv.csv", "a.csv"),
        ("plain", "plain"),
        ("a.gz", "a.gz"),
        ("dir/.jsonl", "dir/.jsonl"),
    ],
)
def test_the_stem_drops_only_what_is_read_off_the_name(name: str, expected: str) -> None:
    assert stem(name) == expected


@pytest.mark.parametrize(
    ("uri", "given", "expected"),
    [
        ("a.csv", None, ","),
        ("a.tsv", None, "\t"),
        ("a.TSV.gz", None, "\t"),
        ("a.tsv", "|", "|"),
        ("a.tsv", ",", ","),
        ("a.csv", "\t", "\t"),
        ("a.tsv.csv", None, ","),
    ],
)
def test_the_suffix_says_what_separates_values_unless_that_is_given(uri: str, given: str | None, expected: str) -> None:
    assert detect(uri, ReadAs(Format.CSV, delimiter=given)).delimiter == expected
    if given is None:
        assert detect(uri).delimiter == expected


def test_only_plain_jsonl_text_and_parquet_can_be_split() -> None:
    """Not under compression, and not CSV: a quoted value may hold line ends."""
    assert detect("a.jsonl").splittable
    assert detect("a.txt").splittable
    assert detect("a.parquet").splittable
    assert not detect("a.jsonl.gz").splittable
    assert not detect("a.csv").splittable
