"""The job of filtering: what a condition may be, what it keeps, and what is refused before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from curate.job.command import command
from curate.testing.local import run_local
from jobs.filter import Condition, Filter
from tests.job.inline import everything, output_rows, refusing, run_job, write_jsonl, write_parquet

ROWS: list[dict[str, Any]] = [
    {"id": 0, "tox": 0.1, "lang": "en", "ok": True, "class": 2, "meta": {"lang": "en", "deep": {"n": 1}}},
    {"id": 1, "tox": 0.5, "lang": "de", "ok": False, "class": 1, "meta": {"lang": "de", "deep": {"n": 2}}},
    {"id": 2, "tox": 0.9, "lang": "it's", "ok": True, "class": 0, "meta": {"lang": None, "deep": None}},
    {"id": 3, "tox": None, "lang": None, "ok": None, "class": None, "meta": None},
]

KEPT = [
    ("tox <= 0.5", [0, 1]),
    ("tox<=.5", [0, 1]),
    ("0.5 >= tox", [0, 1]),
    ("0.1 < tox <= 0.9", [1, 2]),
    ("tox > -1", [0, 1, 2]),
    ("lang == 'en'", [0]),
    ("lang != 'en'", [1, 2]),
    ('lang == "it\'s"', [2]),
    ("lang in ['en', 'de']", [0, 1]),
    ("lang in ('en',)", [0]),
    ("lang not in ['en']", [1, 2]),
    ("not lang in ['en']", [1, 2]),
    ("tox in [0.5, 1]", [1]),
    ("lang is null", [3]),
    ("lang is not null", [0, 1, 2]),
    ("not (tox > 0.5 or lang is null)", [0, 1]),
    ("tox > 0.5 or lang is null", [2, 3]),
    ("tox < 0.9 and lang != 'de'", [0]),
    ("ok", [0, 2]),
    ("not ok", [1]),
    ("ok == false", [1]),
    ("ok in [true]", [0, 2]),
    ("meta.lang == lang", [0, 1]),
    ("meta.deep.n == 2", [1]),
    ("meta.lang is null", [2, 3]),
    ("col('class') == 2", [0]),
    ("col('meta').lang == 'en'", [0]),
    ("id != col('class')", [0, 2]),
]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    write_parquet(tmp_path / "in" / "a.parquet", ROWS)
    return tmp_path / "in"


@pytest.mark.ci(9)
@pytest.mark.parametrize(("where", "ids"), KEPT)
def test_what_a_condition_keeps(where: str, ids: list[int]) -> None:
    """As in SQL: what is compared with a missing value is neither true nor false."""
    ran = run_local(Filter(where=[where]), pa.Table.from_pylist(ROWS))
    assert ran.rows == [ROWS[one] for one in ids]
    dropped = {f"not ({Condition(where).text})": 4 - len(ids)}
    assert ran.summary.books.rows() == {"in": 4, "created": 0, "out": len(ids), "dropped": dropped, "quarantined": 0}


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_all_conditions_are_required(tmp_path: Path, suffix: str) -> None:
    """A row is counted for the first one that it fails; all columns are kept, and the rows in their order."""
    rows = [{"id": n, "tox": n / 10, "lang": "en" if n % 2 else "de"} for n in range(10)]
    write = write_jsonl if suffix == "jsonl" else write_parquet
    write(tmp_path / "in" / f"a.{suffix}", rows)
    summary = run_job(Filter(where=["tox <= 0.5", "lang == 'en'"]), tmp_path / "in", tmp_path / "out")
    assert output_rows(tmp_path / "out") == [rows[1], rows[3], rows[5]]
    assert summary.books.dropped == {"not (tox <= 0.5)": 4, "not (lang == 'en')": 3}


REFUSED = [
    ("a = 3", "--where 'a = 3' is not a condition: write == for ="),
    ("a=3", "write == for ="),
    ("a <> 3", "write != for <>"),
    ("a > 1 AND b > 1", "write and for AND"),
    ("class == 2", "write col('class') for the column class"),
    ("lang in ['en'", "'[' was never closed"),
    ("", "write it as in: toxicity <= 0.5 and lang in ['en', 'de']"),
    ("lang == 'it''s'", "'it''s' is two texts"),
    ("1 == 1", "1 and 1 are both values; compare a column"),
    ("tox + 1 > 2", "tox + 1 is neither a column nor a value"),
    ("len(lang) > 2", "len(lang) is neither a column nor a value"),
    ("__import__('os').system('true')", "is neither true nor false"),
    ("(lambda: 1)()", "is neither true nor false"),
    ("lang == null", "nothing equals null; write: column is null"),
    ("lang in ['en', null]", "nothing equals null"),
    ("lang in []", "[] is no list of values"),
    ("lang in 'en'", "'en' is no list of values"),
    ("lang is 3", "3 is compared with is"),
    ("tox == 99999999999999999999", "is not a condition"),
    ("'en'", "'en' is neither true nor false"),
    ("tox <= 1j", "1j is neither a column nor a value"),
    ("tox; lang", "is not a condition"),
]


@pytest.mark.parametrize(
    ("where", "kept"),
    [
        ("hash != 0", [1, 2, 3]),
        ("hash > 9223372036854775807", [2, 3]),
        ("9223372036854775813 == hash", [2]),
        ("hash in [1, 18446744073709551615]", [1, 3]),
        ("0 < hash <= 9223372036854775813", [1, 2]),
    ],
)
def test_conditions_of_hashes(tmp_path: Path, where: str, kept: list[int]) -> None:
    """Half of them are above what an int64 holds."""
    hashes = pa.array([0, 1, 2**63 + 5, 2**64 - 1], pa.uint64())
    write_parquet(tmp_path / "in" / "a.parquet", pa.table({"id": range(4), "hash": hashes}))
    run_job(Filter(where=[where]), tmp_path / "in", tmp_path / "out")
    assert [row["id"] for row in output_rows(tmp_path / "out")] == kept


@pytest.mark.parametrize(("where", "message"), REFUSED)
def test_what_is_no_condition_is_refused(where: str, message: str) -> None:
    """With the part that is at fault, and what to write; nothing of it is run."""
    with refusing(message):
        Filter(where=[where])


def test_no_condition_is_refused() -> None:
    with refusing("--where is empty, so every row would be kept"):
        Filter(where=[])


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("toxx <= 0.5", "there is no column 'toxx'; did you mean 'tox'?; there are 'id', 'tox', 'lang', 'ok'"),
        ("meta.lng == 'en'", "column 'meta' has no field 'lng'; it is struct<lang: string"),
        ("tox <= 'a'", "the rows have id: int64, tox: double"),
        ("lang", "is string, expected a boolean expression"),
    ],
)
def test_a_condition_that_does_not_fit_the_rows_is_refused(
    source: Path, tmp_path: Path, where: str, message: str
) -> None:
    """Before anything runs: nothing is written."""
    with refusing(message):
        run_job(Filter(where=[where]), source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_identity_is_the_condition_however_it_is_written(source: Path, tmp_path: Path) -> None:
    run_job(Filter(where=["tox<=.50 and lang in ('en',\"de\")"]), source, tmp_path / "out")
    before = everything(tmp_path / "out")
    again = run_job(Filter(where=["tox  <= 0.5   and (lang in ['en', 'de'])"]), source, tmp_path / "out")
    assert (again.dispatched, everything(tmp_path / "out")) == (0, before)
    with refusing("parameters.where"):
        run_job(Filter(where=["tox <= 0.6 and lang in ['en', 'de']"]), source, tmp_path / "out")


def test_on_the_command_line(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A comma does not split a condition; the option can be repeated, and is required."""
    words = ["-i", str(source), "-o", str(tmp_path / "out"), "--backend", "inline"]
    with pytest.raises(SystemExit) as ended:
        command(Filter).main([*words, "--where", "lang in ['en', 'de']", "--where", "tox < 0.5"])
    assert ended.value.code == 0
    assert output_rows(tmp_path / "out") == ROWS[:1]
    with pytest.raises(SystemExit) as ended:
        command(Filter).main(words)
    assert ended.value.code == 2
    assert "Missing option '--where'" in capsys.readouterr().err


def test_a_float_is_compared_with_large_whole_numbers(tmp_path: Path) -> None:
    """Seconds since 1970 are such: shards that had them failed."""
    write_parquet(tmp_path / "in" / "a.parquet", [{"id": at, "utc": 1_500_000_000 + at} for at in (-1, 0, 1)])
    run_job(Filter(where=["utc >= 1.5e9"]), tmp_path / "in", tmp_path / "out")
    assert [row["id"] for row in output_rows(tmp_path / "out")] == [0, 1]
