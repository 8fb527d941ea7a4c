"""`curate diff` says what two outputs do not have in common: 0 if they are equal, 1 if not, 2 if one cannot be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

import curate
from curate.cli.main import cli
from curate.errors import ConfigError
from curate.observe.diff import Difference, OutputFacts, compare_outputs, differences, row_difference


class Scored(curate.Job):
    version = "1"
    threshold: float = 0.5

    def process(self, batch: pa.Table) -> pa.Table:
        kept = batch.filter(pa.array([row["score"] >= self.threshold for row in batch.to_pylist()]))
        self.drop(len(batch) - len(kept), "low")
        return kept


def made(folder: Path, name: str, rows: list[dict[str, Any]], **parameters: Any) -> str:
    source = folder / f"{name}-in"
    source.mkdir()
    (source / "a.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    Scored(**parameters).run(input=str(source), output=str(folder / name), backend="inline")
    return str(folder / name)


def diff(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["diff", *arguments])


ROWS = [{"id": f"r{n}", "score": n / 10} for n in range(10)]


def test_equal_outputs(tmp_path: Path) -> None:
    """It says what was compared; rows only if their ids are named."""
    left, right = made(tmp_path, "left", ROWS), made(tmp_path, "right", ROWS)
    found = diff(left, right)
    assert found.exit_code == 0
    told = found.output.splitlines()
    assert told == [
        f"left      scored  complete  {left}",
        f"right     scored  complete  {right}",
        "result    equal; identity, plan, books and schema are equal; rows were not compared: --id-column NAME does",
    ]
    found = diff(left, right, "--id-column", "id")
    assert found.exit_code == 0
    assert found.output.splitlines()[2:] == [
        "ids       5 have equal rows",
        "result    equal; identity, plan, books and schema are equal",
    ]


def test_what_differs_has_a_line(tmp_path: Path) -> None:
    """Parameters, books and rows, each with both values; as JSON the same."""
    other = [{"id": f"r{n}", "score": n / 10 + (n == 9)} for n in range(1, 10)]
    left, right = made(tmp_path, "left", ROWS), made(tmp_path, "right", other, threshold=0.7)
    found = diff(left, right, "--id-column", "id")
    assert found.exit_code == 1
    lines = [line.split() for line in found.output.splitlines()]
    assert ["identity", "parameters.threshold", "0.5", "0.7"] in lines
    assert ["books", "in", "10", "9"] in lines
    assert ["books", "dropped.low", "5", "6"] in lines
    assert "          1 have other rows: r9" in found.output
    assert "          2 are only in left: r5, r6" in found.output
    assert found.output.splitlines()[-1] == "result    different"
    told = orjson.loads(diff(left, right, "--id-column", "id", "--json").output)
    assert not told["equal"]
    assert told["rows"] == {
        **{"equal": 2, "changed": 1, "only_left": 2, "only_right": 0},
        "examples": {"changed": ["r9"], "only_left": ["r5", "r6"], "only_right": []},
    }
    assert {"kind": "books", "name": "out", "left": 5, "right": 3} in told["differences"]


def test_rows_of_other_formats_and_shards(tmp_path: Path) -> None:
    """A row is its values by name: Parquet and JSON lines are compared, in whichever order."""
    ds = curate.from_items(ROWS)
    ds.write_parquet(tmp_path / "left", backend="inline")
    ds.select_columns(["score", "id"]).sort("score", descending=True).write_json(tmp_path / "right", backend="inline")
    told = orjson.loads(diff(f"{tmp_path}/left", f"{tmp_path}/right", "--id-column", "id", "--json").output)
    assert (told["rows"]["equal"], told["rows"]["changed"], told["rows"]["only_left"]) == (10, 0, 0)
    assert {one["kind"] for one in told["differences"]} >= {"identity", "schema"}


@pytest.mark.parametrize("write", ["write_parquet", "write_json"])
def test_ids_that_are_numbers(tmp_path: Path, write: str) -> None:
    """Null is one, too; the order of columns means nothing, and their names do."""
    rows = [{"id": n if n else None, "a": n, "b": [{"c": n}]} for n in range(5)]
    other = [{"id": row["id"], "a": 9 if row["a"] in (0, 3) else row["a"], "b": row["b"]} for row in rows]
    curate.from_items(rows).write_parquet(tmp_path / "left", backend="inline")
    ds = curate.from_items(other).select_columns(["b", "id", "a"])
    getattr(ds, write)(tmp_path / "right", backend="inline")
    getattr(ds.rename_columns({"a": "x"}), write)(tmp_path / "named", backend="inline")
    found = compare_outputs(f"{tmp_path}/left", f"{tmp_path}/right", "id", 0).rows
    assert found is not None
    assert (found.equal, found.examples["changed"]) == (3, ["3", "null"])
    named = compare_outputs(f"{tmp_path}/right", f"{tmp_path}/named", "id", 0).rows
    assert named is not None
    assert named.changed == 5


def test_what_cannot_be_compared(tmp_path: Path) -> None:
    """An output that there is not, and a column that it does not have."""
    left = made(tmp_path, "left", ROWS)
    with pytest.raises(ConfigError, match="no curate job at"):
        CliRunner().invoke(cli, ["diff", left, f"{tmp_path}/nothing"], catch_exceptions=False)
    with pytest.raises(ConfigError, match=r"there is no column 'ids'; did you mean 'id'.* there are 'id', 'score'"):
        CliRunner().invoke(cli, ["diff", left, left, "--id-column", "ids"], catch_exceptions=False)


def test_an_output_without_rows(tmp_path: Path) -> None:
    """It has no schema in JSON lines, and equals itself."""
    left, right = made(tmp_path, "left", ROWS[:1]), made(tmp_path, "right", ROWS[:1])
    assert diff(left, right, "--id-column", "id").exit_code == 0


def test_ids_that_several_rows_have() -> None:
    """They are equal if all of their rows are, in whichever order."""
    schema = pa.schema([("id", pa.string()), ("row", pa.uint64())])
    left = pa.table([["1", "1", "2", "2"], [2**64 - 1, 6, 7, 7]], schema=schema)
    right = pa.table([["2", "1", "1"], [7, 6, 2**64 - 1]], schema=schema)
    found = row_difference(left, right)
    assert (found.equal, found.changed, found.examples["changed"]) == (1, 1, ["2"])


def test_a_value_that_one_does_not_have() -> None:
    """It is null there."""
    left = OutputFacts("a", "/a", "complete", {"version": "1"}, {}, {}, {"n": "int64"})
    right = OutputFacts("a", "/b", "complete", {"version": "1", "parameters.x": 3}, {}, {}, {"n": "int64"})
    assert differences(left, right) == (Difference("identity", "parameters.x", None, 3),)
    assert differences(left, left) == ()


@pytest.mark.parametrize(
    ("ids", "changed"),
    [
        ([[1], [2, None], None, []], "[2,null]"),
        ([b"\xff", b"b", None, b""], "b"),
        ([{"a": 1}, {"a": 2}, None, {"a": None}], '{"a":2}'),
    ],
)
def test_ids_of_any_type(ids: list[Any], changed: str, tmp_path: Path) -> None:
    """Also of those that Arrow makes no text of."""
    for side, second in (("left", 2), ("right", 3)):
        table = pa.table({"id": ids, "score": [1, second, 3, 4]})
        curate.from_arrow(table).write_parquet(f"{tmp_path}/{side}", backend="inline")
    told = orjson.loads(diff(f"{tmp_path}/left", f"{tmp_path}/right", "--id-column", "id", "--json").output)["rows"]
    assert (told["equal"], told["changed"], told["examples"]["changed"]) == (3, 1, [changed])


@pytest.mark.parametrize("write", ["write_parquet", "write_json"])
def test_null_is_another_id_than_its_name(write: str, tmp_path: Path) -> None:
    """Both are shown alike, and each is compared with its own rows."""
    for side, ids in (("left", ["null", None, "a"]), ("right", [None, "null", "a"])):
        table = pa.table({"id": ids, "v": [1, 2, 3]})
        getattr(curate.from_arrow(table), write)(f"{tmp_path}/{side}", backend="inline")
    found = compare_outputs(f"{tmp_path}/left", f"{tmp_path}/right", "id", 0).rows
    assert found is not None
    assert (found.equal, found.changed, found.only_left, found.only_right) == (1, 2, 0, 0)
    assert found.examples["changed"] == ["null", "null"]
