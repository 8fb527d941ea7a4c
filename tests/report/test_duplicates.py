"""Rows that a deduplication removed are told by the column of ids that it listed them by, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import curate
from curate.report.make import make_report, wanted
from jobs.dedup_exact import DedupExact

TEXTS = [" ".join(f"w{100 * text + at}" for at in range(40)) for text in range(3)]


class Own(curate.RowsJob):
    """Names the column in code alone."""

    version = "1"
    sides = ("duplicates",)

    def build(self, ds: curate.Dataset) -> curate.Dataset:
        return ds.dedup_exact("text", id_column="id")


MAKES: dict[str, Callable[[Path, Path], object]] = {
    "exact": lambda source, out: (
        curate.read_parquet(source).dedup_exact("text", id_column="id").write_parquet(out, backend="inline")
    ),
    "minhash": lambda source, out: (
        curate.read_parquet(source).dedup_minhash("text", id_column="id").write_parquet(out, backend="inline")
    ),
    "job": lambda source, out: DedupExact().run(input=source, output=out, backend="inline"),
    "own job": lambda source, out: Own().run(input=source, output=out, backend="inline"),
}


def duplicates(folder: Path, kind: str, rows: list[dict[str, Any]]) -> Any:
    """Returns what a report tells of the duplicates among some rows."""
    (folder / "in").mkdir()
    pq.write_table(pa.Table.from_pylist(rows), folder / "in" / "1.parquet")
    MAKES[kind](folder / "in", folder / "out")
    return make_report(wanted(str(folder / "out"), by="source", backend="inline"))["job"]["duplicates"]


@pytest.mark.parametrize(
    ("kind", "same"),
    [
        ("exact", False),
        pytest.param("minhash", False, marks=pytest.mark.slow),
        pytest.param("job", False, marks=pytest.mark.slow),
        pytest.param("own job", False, marks=pytest.mark.slow),
        ("own job", True),
    ],
)
def test_of_columns_with_the_same_numbers_the_one_that_was_named(kind: str, same: bool, tmp_path: Path) -> None:
    """A column before it has all ids, too: each that of its row, or of the row at the other end. Where nothing says
    which it is, and both fit, no row is taken for another."""
    rows = [
        {"n": id if same else 8 - id, "id": id, "source": "first" if id < 3 else "copy", "text": TEXTS[id % 3]}
        for id in range(9)
    ]
    told = duplicates(tmp_path, kind, rows)
    assert told["sources"] == ([] if same else [["copy", 6]])
    assert len(told["pairs"]) == (0 if same else 6)
    for pair in told["pairs"]:
        assert int(pair["id"]) % 3 == int(pair["kept_id"])
        assert pair["text"] == pair["kept_text"]


def test_no_source_has_lost_rows_whose_ids_others_have(tmp_path: Path) -> None:
    """Which of the rows with one id was removed is not listed."""
    told = duplicates(tmp_path, "exact", [{"id": "x", "source": one, "text": "t"} for one in "ab"])
    assert (told["rows"], told["sources"]) == (1, [])
