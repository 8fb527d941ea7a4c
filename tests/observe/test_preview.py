"""Rows of outputs are shown and compared as they were written, whatever the first ones of them are."""

from __future__ import annotations

import datetime
import decimal
import math
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import curate
from curate.cli.head import show_head
from curate.errors import ConfigError, CorruptInput
from curate.objects.record import OutputFormat, read_carried
from curate.observe.browse import rows
from curate.observe.diff import compare_outputs
from curate.observe.job import find_job
from curate.observe.verify import verify
from curate.report.make import make_report, wanted
from curate.stores.open import open_store

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


def keyed(later: dict[str, int]) -> pa.Table:
    """Returns samples whose JSON has a key more in the last ones, which have a file more, too."""
    documents = [{"a": number} for number in range(FIRST)] + [{"a": 0, **later}] * MORE
    return pa.table(
        {
            "__key__": [f"{number:05}" for number in range(FIRST + MORE)],
            "json": pa.array([list(one.items()) for one in documents], pa.map_(pa.string(), pa.int64())),
            "cls": pa.array([None] * FIRST + [7] * MORE, pa.int64()),
            "bin": pa.array([b"a"] * FIRST + [b"\xff"] * MORE, pa.binary()),
        }
    )


@pytest.mark.parametrize("known", [False, True])
def test_nothing_is_left_out_of_later_samples(known: bool, tmp_path: Path) -> None:
    """JSON is shown as it stands, and rows that differ in it are different; also where no schema is stored."""
    for name, value in (("left", 1), ("right", 2)):
        curate.from_arrow(keyed({"z": value})).write_webdataset(tmp_path / name, backend="inline")
        if not known:
            (tmp_path / name / "_curate" / "schema" / "output.arrow").unlink()
    found = find_job(str(tmp_path / "left"))
    shown = [orjson.loads(row) for _, row in rows(found)]
    assert shown[-1] == {"__key__": f"{FIRST + MORE - 1:05}", "json": {"a": 0, "z": 1}, "cls": 7, "bin": "/w=="}
    assert shown[0] == {"__key__": "00000", "json": {"a": 0}, "bin": "a"} | ({"cls": None} if known else {})
    told = compare_outputs(f"{tmp_path}/left", f"{tmp_path}/right", "__key__", 0).rows
    assert told is not None
    assert (told.equal, told.changed) == (FIRST, MORE)


def test_samples_are_compared_with_rows_of_parquet(tmp_path: Path) -> None:
    """Values are the same in both, bytes that are text among them."""
    ds = curate.from_arrow(keyed({"z": 1}))
    ds.write_webdataset(tmp_path / "left", backend="inline")
    ds.write_parquet(tmp_path / "right", backend="inline")
    told = compare_outputs(f"{tmp_path}/left", f"{tmp_path}/right", "__key__", 0).rows
    assert told is not None
    assert (told.equal, told.changed) == (FIRST + MORE, 0)


class Thru(curate.RowsJob):
    version = "1"

    def process(self, batch: pa.Table) -> pa.Table:
        return batch


@pytest.mark.parametrize("format", ["parquet", "jsonl", "csv"])
def test_an_output_of_an_input_without_rows(format: str, tmp_path: Path) -> None:
    """It has no columns if it was made before there were rows: those that are asked for are those of the others."""
    (tmp_path / "in").mkdir()
    out = str(tmp_path / "out")
    for name, lines in (("a", ""), ("b", '{"id": 1, "v": 2}\n')):
        (tmp_path / "in" / f"{name}.jsonl").write_text(lines)
        Thru(format=format).run(input=str(tmp_path / "in"), output=out, backend="inline")
    assert verify(out).state == "ok"
    found = find_job(out)
    assert [orjson.loads(row)["v"] for _, row in rows(found, ["v"])] in ([2], ["2"])
    compared = compare_outputs(out, out, "id", 0)
    assert compared.equal
    assert compared.rows is not None
    assert compared.rows.equal == 1
    with pytest.raises(ConfigError, match="no column 'w'"):
        list(rows(found, ["w"]))
    with pytest.raises(ConfigError, match="no column 'w'"):
        compare_outputs(out, out, "w", 0)


class Late(Thru):
    """Keeps what is late enough."""

    least: int = 0

    def process(self, batch: pa.Table) -> pa.Table:
        kept = batch.filter(pc.greater_equal(batch["id"], self.least))
        self.drop(len(batch) - len(kept), "early")
        return kept


class DeclaredLate(Late):
    """Its schema is in its code, and not in the ledger."""

    name = "late"
    output_schema = pa.schema([("id", pa.int64()), ("v", pa.string())])


@pytest.mark.parametrize("job", [Late, DeclaredLate])
@pytest.mark.parametrize("format", ["parquet", "jsonl"])
def test_the_first_output_may_have_no_rows(format: str, job: type[Late], tmp_path: Path) -> None:
    """The columns of an output are those that any of its files tells."""
    (tmp_path / "in").mkdir()
    for number in range(3):
        (tmp_path / "in" / f"{number}.jsonl").write_text(f'{{"id": {number}, "v": "a"}}\n')
    for least in (0, 1):
        out = str(tmp_path / f"out{least}")
        job(least=least, format=format).run(input=str(tmp_path / "in"), output=out, backend="inline")
    differing = compare_outputs(f"{tmp_path}/out0", f"{tmp_path}/out1", None, 0).differences
    assert "identity" in {one.kind for one in differing}
    assert "schema" not in {one.kind for one in differing}


def compared(left: Path, right: Path) -> tuple[int, int]:
    """Returns how many rows of two outputs are equal, and how many are not."""
    told = compare_outputs(str(left), str(right), "id", 0).rows
    assert told is not None
    return told.equal, told.changed + told.only_left + told.only_right


def test_null_is_no_empty_text_in_csv(tmp_path: Path) -> None:
    """It is not quoted there; neither is it shown as one."""
    for name, values in (("left", ["", None]), ("right", [None, ""])):
        curate.from_arrow(pa.table({"id": ["a", "b"], "v": values})).write_csv(tmp_path / name, backend="inline")
    assert compared(tmp_path / "left", tmp_path / "right") == (0, 2)
    assert compared(tmp_path / "left", tmp_path / "left") == (2, 0)
    assert [orjson.loads(row)["v"] for _, row in rows(find_job(str(tmp_path / "left")))] == ["", None]


def test_csv_is_compared_with_other_formats_by_its_types(tmp_path: Path) -> None:
    """The ledger has them."""
    day = datetime.datetime(2020, 1, 1, 2, 3, 4, 5)
    table = pa.table(
        {
            "id": [1, 2],
            "float": [1.5, None],
            "single": pa.array([0.1, math.nan], pa.float32()),
            "decimal": pa.array([decimal.Decimal("1.10"), None]),
            "time": pa.array([day, None], pa.timestamp("us", "Europe/Berlin")),
            "text": ["007", ""],
            "nothing": pa.nulls(2),
        }
    )
    ds = curate.from_arrow(table)
    ds.write_csv(tmp_path / "csv", backend="inline")
    ds.write_parquet(tmp_path / "parquet", backend="inline")
    ds.write_json(tmp_path / "json", backend="inline")
    assert compared(tmp_path / "csv", tmp_path / "parquet") == (2, 0)
    assert compared(tmp_path / "json", tmp_path / "csv") == (2, 0)


def test_csv_of_unknown_types_is_compared_with_csv_alone(tmp_path: Path) -> None:
    """Where a job declares the schema, the ledger has none: all of its numbers would differ."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text('{"id": 1, "v": "a"}\n')
    for name, job in (
        ("csv", DeclaredLate(format="csv")),
        ("other", Late(format="csv")),
        ("json", Late(format="jsonl")),
    ):
        job.run(input=str(tmp_path / "in"), output=str(tmp_path / name), backend="inline")
    assert compared(tmp_path / "csv", tmp_path / "other") == (1, 0)
    with pytest.raises(ConfigError, match=r"csv is CSV, which tells no types, .* write the other output as CSV, or"):
        compared(tmp_path / "json", tmp_path / "csv")


def test_a_report_of_tfrecords_grows_from_nothing(tmp_path: Path) -> None:
    """Their types are known once there is a row; what was made before is made anew."""
    (tmp_path / "in").mkdir()
    out = str(tmp_path / "out")
    reported = []
    for name, lines in (("a", ""), ("b", '{"id": 1}\n'), ("c", '{"id": 2}\n')):
        (tmp_path / "in" / f"{name}.jsonl").write_text(lines)
        curate.read_json(tmp_path / "in").write_tfrecords(out, backend="inline")
        reported.append(make_report(wanted(out, backend="inline"))["rows"])
    assert reported == [0, 1, 2]


def test_a_value_that_cannot_be_shown_is_no_damaged_file(tmp_path: Path) -> None:
    """A text that is none is said to be one; that the file is not whole, only of one that is not."""
    curate.from_items([{"text": "a"}, {"text": "b"}]).write_parquet(tmp_path / "out", backend="inline")
    (path,) = (tmp_path / "out").glob("*.parquet")
    whole = path.read_bytes()
    bytes_ = pa.array([b"a", b"\xff"])
    text = pa.Array.from_buffers(pa.string(), 2, bytes_.buffers())
    pq.write_table(pa.table({"text": text}), path)
    with pytest.raises(CorruptInput, match=r"out/part.*: it has a value that JSON cannot have: .*0xff"):
        list(rows(find_job(str(tmp_path / "out"))))
    path.write_bytes(whole[:-1])
    with pytest.raises(CorruptInput, match="not a whole Parquet file"):
        list(rows(find_job(str(tmp_path / "out"))))


@pytest.mark.parametrize("as_json", [False, True])
def test_json_lines_that_are_damaged_are_told(as_json: bool, tmp_path: Path) -> None:
    """Nothing that is no row is shown for one, whichever byte is another: of zstd, most still unpack."""
    curate.from_items([{"id": number, "text": "é\n" * number} for number in range(4)]).write_json(
        tmp_path / "out", backend="inline"
    )
    (path,) = (one for one in (tmp_path / "out").iterdir() if one.is_file())
    data, told = path.read_bytes(), 0
    store = open_store(str(path))
    size = read_carried(store, store.stat(str(path)), OutputFormat.JSONL, "zstd").data_bytes  # type: ignore[union-attr]
    for at in range(size):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :])
        try:
            show_head(str(tmp_path / "out"), 10, columns=None, shard=None, side=None, as_json=as_json)
        except CorruptInput as error:
            told += "is not JSON" in str(error)
    assert told
