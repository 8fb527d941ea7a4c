"""Corpora of any shape, and texts of any kind: all is counted, and shown as text that acts nowhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curate.errors import CorruptInput
from curate.report.html import document
from curate.report.make import make_report, wanted
from tests.pages.samples import HOSTILE
from tests.pages.test_document import ALLOWED, Read
from tests.report.samples import reports

__all__ = ["reports"]

CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def invalid(*texts: bytes, type: pa.DataType | None = None) -> pa.Array:
    """Returns texts that nobody has looked at."""
    return pa.array([*texts], pa.binary()).cast(pa.large_binary()).view(pa.large_string()).cast(type or pa.string())


SHAPES: dict[str, pa.Table] = {
    "no columns": pa.table({}),
    "no rows": pa.table({"a": pa.array([], pa.int64()), "b": pa.array([], pa.string())}),
    "nulls alone": pa.table({"a": pa.nulls(3), "b": pa.array([None] * 3, pa.string())}),
    "a thousand columns": pa.table({f"c{number}": [number, number + 1] for number in range(1000)}),
    "nested columns": pa.table(
        {
            "s": [{"a": {"b": [1, 2], "c": "x"}}, None],
            "m": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
            "l": [[{"x": 1, "y": [HOSTILE]}], []],
        }
    ),
    "texts that are not UTF-8": pa.table({"a": invalid(b"\xff\xfe", b"ok", b"\xff\xfe", b"\xed\xa0\x80")}),
    "lists of such": pa.table({"a": pa.ListArray.from_arrays([0, 1, 2], invalid(b"\xff", b"x"))}),
    "names that are markup": pa.table({HOSTILE: [1], "": ["x"], "a.b": [HOSTILE]}),
}


@pytest.mark.slow
@pytest.mark.quick(5)
@pytest.mark.parametrize("name", SHAPES)
def test_a_corpus_of_any_shape(tmp_path: Path, name: str) -> None:
    table = SHAPES[name]
    pq.write_table(table, tmp_path / "a.parquet")
    report = make_report(wanted(str(tmp_path / "a.parquet"), backend="inline"))
    assert report["rows"] == table.num_rows
    assert {one["name"].partition(".")[0] for one in report["columns"]} >= {
        one.partition(".")[0] for one in table.column_names
    }
    orjson.dumps(report)
    look(document(report))


@pytest.mark.parametrize("damaged", [lambda data: data[:30] + b"\0" + data[31:], lambda data: bytes(len(data))])
def test_a_part_of_the_report_that_is_damaged(tmp_path: Path, damaged: Any) -> None:
    """It is named, with what to do; and that makes it anew."""
    pq.write_table(pa.table({"a": [1, 2]}), tmp_path / "a.parquet")
    asked = wanted(str(tmp_path / "a.parquet"), backend="inline")
    report = make_report(asked)
    [part] = tmp_path.rglob("*.sketch.json.zst")
    part.write_bytes(damaged(part.read_bytes()))
    with pytest.raises(CorruptInput, match=f"{part} cannot be read as a part of the report .*; remove it and run this"):
        make_report(asked)
    part.unlink()
    assert make_report(asked) == report


def look(data: bytes) -> Read:
    found = Read(data)
    assert {element for element, _ in found.elements} <= ALLOWED
    assert not CONTROLS.search(data.decode())
    assert len(found.texts["script"]) == len(found.texts["style"]) == 1
    return found


def test_the_same_value_however_it_is_broken(tmp_path: Path) -> None:
    """Texts that are not UTF-8 are told apart by their bytes, by source too, and shown as far as they can be read."""
    table = pa.table({"a": invalid(b"\xff", b"\xfe", b"\xff"), "n": [1, 2, 3]})
    pq.write_table(table, tmp_path / "a.parquet")
    report = make_report(wanted(str(tmp_path / "a.parquet"), by="a", backend="inline"))
    [column, _] = report["columns"]
    assert (column["distinct"], column["frequent"]) == (2, [["\ufffd", 2], ["\ufffd", 1]])
    assert sum(one["rows"] for one in report["sources"]) == 3


@pytest.mark.parametrize("name", ["scored", "hostile", "empty"])
def test_whatever_a_corpus_says_is_text(reports: dict[str, dict[str, Any]], name: str) -> None:
    """No element but the page's own, no control, none that turns the direction of a line; each is cut."""
    data = document(reports[name])
    look(data)
    assert len(data) < 200_000


def test_whatever_a_job_says_is_text(reports: dict[str, dict[str, Any]]) -> None:
    """Its name, its reasons, and rows that it set aside."""

    def spoilt(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: spoilt(own) for key, own in value.items()}
        if isinstance(value, list):
            return [spoilt(own) for own in value]
        return HOSTILE if isinstance(value, str) else value

    report = dict(reports["scored"])
    report["job"] = spoilt(report["job"]) | {"rows": {**report["job"]["rows"], "dropped": {HOSTILE: 3}}}
    report["sources"] = spoilt(report["sources"])
    look(document(report))
