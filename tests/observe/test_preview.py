"""Rows of outputs are shown and compared as they were written, whatever the first ones of them are."""

from __future__ import annotations

from pathlib import Path

import orjson
import pyarrow as pa

import curate
from curate.observe.browse import rows
from curate.observe.diff import compare_outputs
from curate.observe.job import find_job
from curate.report.make import make_report, wanted

FIRST = 1_200
"""More rows than are looked at for types where nobody knows them."""
MORE = 50


def test_later_tfrecords_may_have_more_values(tmp_path: Path) -> None:
    """Types are those that the job held its rows to: a list is one where the first rows have one value each, too."""
    out = str(tmp_path / "out")
    table = pa.table(
        {
            "id": [str(number) for number in range(FIRST + MORE)],
            "n": pa.array([[1]] * FIRST + [[1, 2]] * MORE, pa.list_(pa.int64())),
            "late": pa.array([None] * FIRST + [b"\xff"] * MORE, pa.binary()),
        }
    )
    curate.from_arrow(table).write_tfrecords(out, backend="inline")
    shown = [orjson.loads(row) for _, row in rows(find_job(out))]
    assert shown[0] == {"id": "0", "n": [1], "late": None}
    assert shown[-1] == {"id": str(FIRST + MORE - 1), "n": [1, 2], "late": "/w=="}
    assert compare_outputs(out, out, "id", 0).equal
    told = {one["name"]: one for one in make_report(wanted(out, backend="inline"))["columns"]}
    assert (told["id"]["rows"], told["late"]["nulls"]) == (FIRST + MORE, FIRST)
