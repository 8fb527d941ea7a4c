"""Ids by which two corpora are compared, of any type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curate.errors import ConfigError
from curate.report.html import document
from curate.report.make import make_report, wanted

PAIRS: dict[str, tuple[Any, Any]] = {
    "bytes": ([b"\xff", b"b"], [b"\xff", b"c"]),
    "bytes of a dictionary": (pa.array([b"a", b"\xfe"]).dictionary_encode(), pa.array([b"a", b"\xff"])),
    "texts that are none": (
        pa.array([b"\xff", b"b"], pa.binary()).view(pa.string()),
        pa.array([b"\xff", b"\xfe"], pa.binary()).view(pa.string()),
    ),
    "times of no known zone": (
        pa.array([1, 2], pa.timestamp("ms", "Etc/GMT+99")),
        pa.array([1, 3], pa.timestamp("ms", "Etc/GMT+99")),
    ),
    "times that Python has none for": (
        pa.array([2**52, 2], pa.timestamp("ms")),
        pa.array([2**52, 3], pa.timestamp("ms")),
    ),
}


def compared(folder: Path, ours: Any, theirs: Any) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    for name, ids in (("a", ours), ("b", theirs)):
        pq.write_table(pa.table({"id": ids}), folder / f"{name}.parquet")
    here, there = (str(folder / f"{name}.parquet") for name in "ab")
    return make_report(wanted(here, against=there, id_column="id", backend="inline"))


@pytest.mark.parametrize("name", PAIRS)
def test_equal_ids_are_equal_whatever_they_are(tmp_path: Path, name: str) -> None:
    """One of two is in both corpora."""
    report = compared(tmp_path, *PAIRS[name])
    ids = report["against"]["ids"]
    assert [ids[state] for state in ("equal", "changed", "appeared", "went")] == [1, 0, 1, 1]
    assert b"compared as texts" not in document(report)


@pytest.mark.parametrize("ids", [[{"a": 1}], [[1]]])
def test_those_that_are_no_single_values_are_refused_before_rows_are_read(tmp_path: Path, ids: Any) -> None:
    for one, other in ((ids, [1]), ([1], ids)):
        with pytest.raises(ConfigError, match=r"comparing rows by id: 'id' is (struct|list)<.*with id_column='COLUMN'"):
            compared(tmp_path, one, other)
    assert not (tmp_path / "_report-a.parquet").exists()


def test_ids_of_two_types_are_said_to_be_so(tmp_path: Path) -> None:
    """Texts of them decide what is equal."""
    report = compared(tmp_path, pa.array([1], pa.decimal128(5, 2)), [1])
    assert (report["against"]["ids"]["appeared"], report["against"]["ids"]["went"]) == (1, 1)
    report_of_bytes = compared(tmp_path / "x", [b"a", b"\xff"], ["a", "b"])
    assert (report_of_bytes["against"]["ids"]["changed"], report_of_bytes["against"]["ids"]["appeared"]) == (1, 1)
    assert b"Ids are decimal128(5, 2) here and int64 there, and compared as texts" in document(report)
