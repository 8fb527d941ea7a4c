"""Keys of JSON rows that are no columns, as no file has them that is looked into: counted, not lost in silence."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest
import structlog.testing

import curate
from curate.objects import tar
from curate.pipeline.shard_books import OTHER_KEYS
from curate.sources import columns

Rows = list[dict[str, Any]]


@pytest.fixture(autouse=True)
def _one_is_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "MORE_FILES", 0)


FIRST: Rows = [{"id": "1", "text": "a"}, {"id": "2", "text": "b"}]


def written(folder: Path, *files: Rows) -> str:
    """Writes files of JSON lines, in the order of their names."""
    folder.mkdir()
    for number, rows in enumerate(files):
        (folder / f"{number}.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    return str(folder)


@pytest.mark.parametrize("seed", range(5))
def test_rows_with_more_keys_than_columns_are_counted(seed: int, tmp_path: Path) -> None:
    """Consumed, written, and beside an exchange; by each file as well as in all."""
    draw = random.Random(seed)
    names = ["id", "text", "lang", "more"]
    files = [FIRST, *([dict.fromkeys(draw.sample(names, draw.randint(1, 4)), "x") for _ in range(9)] for _ in "ab")]
    source = written(tmp_path / "in", *files)
    left_out = sum(not row.keys() <= {"id", "text"} for rows in files for row in rows)
    whole = curate.read_json(source)
    with structlog.testing.capture_logs() as logs:
        assert len(whole.take_all()) == 20
    assert any("no columns" in one["event"] for one in logs) == bool(left_out)
    summary = whole.write_parquet(tmp_path / "out", backend="inline")
    assert summary.books.counters == ({OTHER_KEYS: left_out} if left_out else {})
    summary = whole.random_shuffle(seed=1).write_parquet(tmp_path / "shuffled", backend="inline")
    assert summary.books.counters == ({OTHER_KEYS: left_out} if left_out else {})


@pytest.mark.parametrize("packed", [False, True], ids=["jsonl", "webdataset"])
def test_rows_that_are_set_aside_are_not_counted(packed: bool, tmp_path: Path) -> None:
    """Nothing of them is in the output, so that nothing is left out of it."""
    rows: Rows = [
        {"n": number if number % 3 else "x", "m": 1, **({"more": 1} if number % 2 else {})} for number in range(24)
    ]
    (tmp_path / "in").mkdir()
    for number, some in enumerate([[{"n": 1, "m": 1}], rows]):
        if packed:
            files = [tar.packed(f"{at}.json", orjson.dumps(row)) for at, row in enumerate(some)]
            (tmp_path / "in" / f"{number}.tar").write_bytes(b"".join([*files, tar.END]))
        else:
            (tmp_path / "in" / f"{number}.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in some))
    read = curate.read_webdataset if packed else curate.read_json
    books = read(tmp_path / "in").using(max_bad_rows="100%").write_parquet(tmp_path / "out", backend="inline").books
    fit = [row for row in rows if row["n"] != "x"]
    assert (books.quarantined, books.rows_out) == (len(rows) - len(fit), len(fit) + 1)
    assert books.counters == {OTHER_KEYS: sum("more" in row for row in fit)}


def left_out(value: Any, read: Any) -> bool:
    """Returns whether something of a value is not in what was read of it."""
    if isinstance(value, dict):
        return any(key not in read or left_out(item, read[key]) for key, item in value.items())
    return isinstance(value, list) and any(map(left_out, value, read))


@pytest.mark.parametrize("seed", range(8))
def test_keys_within_values_are_counted_like_those_of_rows(seed: int, tmp_path: Path) -> None:
    """A row is counted if and only if something of it is not in what is read, at any depth, once."""
    draw = random.Random(seed)

    def struct(depth: int = 0) -> Any:
        made = {name: draw.choice([1, None]) for name in draw.sample("pqr", draw.randint(1, 3 if depth else 2))}
        if depth < 2:
            made |= draw.choice([{}, {"s": struct(depth + 1)}, {"l": [struct(depth + 1), None]}, {"s": None, "l": []}])
        return made

    first: Any = {"id": 1, "m": {"p": 1, "s": {"q": 1, "l": [{"p": 1}]}, "l": [{"r": 1, "s": {"p": 1}}]}, "n": {"p": 1}}
    rows = [{"id": number, "m": struct(), **draw.choice([{}, {"n": {"p": 2}}])} for number in range(30)]
    ds = curate.read_json(written(tmp_path / "in", [first], rows))
    with structlog.testing.capture_logs() as logs:
        read = ds.take_all()[1:]
    lost = sum(map(left_out, rows, read))
    assert 0 < lost < 30
    named = {key for one in logs for key in one.get("keys", ())}
    assert named
    assert all(key.partition(".")[0] == "m" for key in named)
    assert ds.write_parquet(tmp_path / "out", backend="inline").books.counters == {OTHER_KEYS: lost}


def test_keys_within_values_are_named_by_their_path(tmp_path: Path) -> None:
    first = {"a": {"b": 1}, "l": [{"c": {"d": 1}}], "text": "x"}
    other = {"a": {"b": 1, "x": 1}, "l": [None, {"c": None}, {"c": {"d": 1, "y": 2}}], "text": "x", "z": 0}
    with structlog.testing.capture_logs() as logs:
        curate.read_json(written(tmp_path / "in", [first], [first, other])).take_all()
    assert [one["keys"] for one in logs if "keys" in one] == [["z", "a.x", "l[].c.y"]]


@pytest.mark.parametrize("how", ["schema", "selected", "all"])
def test_nothing_is_counted_where_columns_were_asked_for(how: str, tmp_path: Path) -> None:
    """Others are left out on purpose. Nor where there are no others, and rows lack some."""
    rows: Rows = [{"id": "3", "text": "c", "lang": "de"}] if how != "all" else [{"id": "3"}]
    source = written(tmp_path / "in", FIRST, rows)
    found = curate.read_json(source, schema=pa.schema([("id", pa.string())]) if how == "schema" else None)
    found = found.select_columns(["id"]) if how == "selected" else found
    assert found.write_parquet(tmp_path / "out", backend="inline").books.counters == {}
