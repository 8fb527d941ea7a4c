"""Of a column that has only nulls in the first file, or that it lacks, files behind it tell the type: no row is bad."""

from __future__ import annotations

import io
import itertools
import json
import re
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import structlog.testing
from hypothesis import given, settings
from hypothesis import strategies as st

import curate
from curate.errors import ConfigError, PermissionDenied, SchemaMismatch
from curate.job.job import Job
from curate.pipeline.shard_books import OTHER_KEYS
from curate.sources.columns import MORE_FILES
from curate.storage.faults import Fault
from curate.stores.faulty import FaultyStore
from curate.stores.open import wrap_stores
from tests.support.examples import examples

VALUES: list[tuple[Any, Any, pa.DataType]] = [
    (None, 1, pa.int64()),
    (None, 1.5, pa.float64()),
    (None, True, pa.bool_()),
    (None, "a", pa.string()),
    (None, [1], pa.list_(pa.int64())),
    (None, {"x": 1}, pa.struct([("x", pa.int64())])),
    ([], [1], pa.list_(pa.int64())),
    ([None], [{"x": 1.5}], pa.list_(pa.struct([("x", pa.float64())]))),
    ({"x": None, "y": 1}, {"y": 2, "x": True}, pa.struct([("x", pa.bool_()), ("y", pa.int64())])),
]


def written(folder: Path, *files: list[Any]) -> str:
    """Writes JSON lines with values of one column, a file each; returns what names them all."""
    for number, values in enumerate(files):
        lines = [json.dumps({"id": f"{number}-{at}", "v": value}) for at, value in enumerate(values)]
        (folder / f"{number:03d}.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return f"{folder}/*.jsonl"


def complete(value: Any, like: Any) -> Any:
    """Returns a value with the fields in the order of a type."""
    return {name: value.get(name) for name in like} if isinstance(value, dict) else value


@pytest.mark.parametrize(("first", "then", "type"), VALUES, ids=lambda one: str(one).replace(" ", ""))
@pytest.mark.parametrize("before", [1, MORE_FILES])
def test_json_lines(first: Any, then: Any, type: pa.DataType, before: int, tmp_path: Path) -> None:
    """All rows are there as they were written, and none is left out."""
    found = curate.read_json(written(tmp_path, *([[first]] * before), [then]))
    assert found.schema().field("v").type == type
    assert [row["v"] for row in found.take_all()] == [first] * before + [complete(then, first or then)]


def test_sources_that_follow_each_other(tmp_path: Path) -> None:
    """Files from all over the inputs are looked into: those next to the first one are of the same source."""
    found = curate.read_json(written(tmp_path, *([[None]] * 30), *([[1.5]] * 10)))
    assert [row["v"] for row in found.take_all()] == [None] * 30 + [1.5] * 10
    ended = Kept().run(input=f"{tmp_path}/*.jsonl", output=str(tmp_path / "out"), backend="inline")
    assert (ended.books.rows_out, ended.books.quarantined) == (40, 0)


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("files", "type", "read"),
    [
        ([["NaN"], [1.5]], pa.float64(), [NAN, 1.5]),
        ([[None, "-Infinity"], ["Infinity"], [1.5]], pa.float64(), [None, -INF, INF, 1.5]),
        ([[1], ["NaN"], [1.5]], pa.float64(), [1.0, NAN, 1.5]),
        ([["NaN"], [1], [1.5]], pa.float64(), [NAN, 1.0, 1.5]),
        ([[["NaN"]], [[0.5]]], pa.list_(pa.float64()), [[NAN], [0.5]]),
        ([[{"x": "NaN"}], [{"x": 0.5}]], pa.struct([("x", pa.float64())]), [{"x": NAN}, {"x": 0.5}]),
        ([["NaN"], [1]], pa.float64(), [NAN, 1.0]),
        ([[1], [2], ["NaN"]], pa.float64(), [1.0, 2.0, NAN]),
        ([[[1]], [["NaN"]]], pa.list_(pa.float64()), [[1.0], [NAN]]),
        ([["NaN"], ["a"]], pa.string(), ["NaN", "a"]),
        ([["NaN"], ["Infinity"]], pa.string(), ["NaN", "Infinity"]),
        ([[["NaN"]], [[]]], pa.list_(pa.string()), [["NaN"], []]),
        ([["NaN"], [None]], pa.string(), ["NaN", None]),
    ],
    ids=str,
)
def test_names_of_numbers_alone_are_floats_if_other_files_have_some(
    files: list[list[Any]], type: pa.DataType, read: list[Any], tmp_path: Path
) -> None:
    """As in one file: `write_json` has no other way to write a metric that is no number in a whole shard. Without one,
    they are texts."""
    ds = curate.read_json(written(tmp_path, *files))
    assert ds.schema().field("v").type == type
    assert repr(ds.to_arrow()["v"].to_pylist()) == repr(read)


ROUNDED = 2**53 + 1


@pytest.mark.parametrize("beside", [1.5, "NaN"])
@pytest.mark.parametrize("make", [lambda one: one, lambda one: [one], lambda one: {"x": [one]}])
def test_whole_numbers_that_a_float_would_round_are_json_if_other_files_have_floats(
    beside: Any, make: Any, tmp_path: Path
) -> None:
    """As in one file, whichever is first, and however deep; a job that names the column is told to declare it."""
    for number, files in enumerate(itertools.permutations([ROUNDED, 1, beside])):
        folder = tmp_path / str(number)
        folder.mkdir()
        values = [make(one) for one in files]
        names = written(folder, *([one] for one in values))
        assert [json.loads(one) for one in curate.read_json(names).to_arrow()["v"].to_pylist()] == values
        with pytest.raises(ConfigError, match=r"'v' has no single type: .* declare a type for 'v'"):
            Named().run(input=names, output=f"{folder}/out", backend="inline")


def test_numbers_of_javascript_are_floats_in_any_file(tmp_path: Path) -> None:
    """It writes 1e20 without an exponent: a float has all digits that are not 0."""
    found = curate.read_json(written(tmp_path, [10**20], [1.5], [2**53]))
    assert found.to_arrow()["v"].to_pylist() == [1e20, 1.5, 2.0**53]


@pytest.mark.parametrize("files", list(itertools.permutations([str(ROUNDED), "1", "1.5"])), ids=str)
@pytest.mark.parametrize("count", [1, 3])
def test_whole_numbers_that_a_float_would_round_are_texts_of_csv(
    files: tuple[str, ...], count: int, tmp_path: Path
) -> None:
    """In one file, and in several."""
    for number in range(count):
        lines = files if count == 1 else files[number : number + 1]
        (tmp_path / f"{number}.csv").write_text("v\n" + "".join(f"{line}\n" for line in lines))
    assert curate.read_csv(f"{tmp_path}/*.csv").to_arrow()["v"].to_pylist() == list(files)


def test_what_is_written_of_floats_is_read_as_floats_whatever_shard_is_first(tmp_path: Path) -> None:
    for number, value in enumerate([NAN, 0.5, INF]):
        pq.write_table(pa.table({"v": [value]}), tmp_path / f"{number}.parquet")
    curate.read_parquet(f"{tmp_path}/*.parquet").write_json(tmp_path / "out", backend="inline")
    assert repr(curate.read_json(tmp_path / "out").to_arrow()["v"].to_pylist()) == repr([NAN, 0.5, INF])


def test_parquet(tmp_path: Path) -> None:
    """Files of pandas have the type null for a column without values."""
    for number, column in enumerate([pa.nulls(2), pa.array([None, 1.5]), pa.nulls(1)]):
        pq.write_table(pa.table({"v": column}), tmp_path / f"{number}.parquet")
    found = curate.read_parquet(f"{tmp_path}/*.parquet")
    assert found.schema() == pa.schema([("v", pa.float64())])
    assert [row["v"] for row in found.take_all()] == [None, None, None, 1.5, None]


def test_a_declared_schema_is_compared_with_the_first_file_alone(tmp_path: Path) -> None:
    """What another one has otherwise is said of that one, when it is read."""
    pq.write_table(pa.table({"v": pa.nulls(1)}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"v": [1]}), tmp_path / "b.parquet")
    found = curate.read_parquet(f"{tmp_path}/*.parquet", schema=pa.schema([("v", pa.string())]))
    with pytest.raises(SchemaMismatch, match=r"b\.parquet: column 'v' is int64, expected string"):
        found.take_all()


def test_if_none_tells_json_lines_are_texts_and_parquet_is_what_it_was(tmp_path: Path) -> None:
    """As deep as it is."""
    found = curate.read_json(written(tmp_path, [None, {"a": []}], [{"a": None}]))
    assert found.schema().field("v").type == pa.struct([("a", pa.list_(pa.string()))])
    pq.write_table(pa.table({"v": pa.nulls(1)}), tmp_path / "a.parquet")
    assert curate.read_parquet(str(tmp_path / "a.parquet")).schema() == pa.schema([("v", pa.null())])


def test_values_of_several_types_in_a_file_behind_are_json(tmp_path: Path) -> None:
    """As they are where the first file has them."""
    found = curate.read_json(written(tmp_path, [None], [1, "a", 2]))
    assert [row["v"] for row in found.take_all()] == [None, "1", '"a"', "2"]


def test_what_the_first_file_tells_holds_unless_another_widens_it(tmp_path: Path) -> None:
    """Fields of both are there; text beside numbers in another file is no reason to read all of them as JSON."""
    values: list[list[Any]] = [[{"x": 1, "y": None, "t": 1}], [{"x": 1.5, "y": 2, "z": 3, "t": "a"}]]
    found = curate.read_json(written(tmp_path, *values))
    fields = [("x", pa.float64()), ("y", pa.int64()), ("t", pa.int64()), ("z", pa.int64())]
    assert found.schema().field("v").type == pa.struct(fields)


NUMBERS = st.none() | st.integers(-5, 5) | st.sampled_from([0.5, -1.5, 2.0])
TEXTS = st.none() | st.sampled_from(["", "a", "b"])
LISTS = st.none() | st.lists(NUMBERS, max_size=3)


def objects(**values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Draws objects of one of these keys at least."""
    return st.fixed_dictionaries({}, optional=values).filter(bool)


ROWS = st.lists(
    objects(n=NUMBERS, t=TEXTS, l=LISTS, s=st.none() | objects(n=NUMBERS, t=TEXTS, s=objects(a=LISTS, b=TEXTS))),
    min_size=1,
    max_size=6,
)


def ordered(value: Any) -> Any:
    """Returns a value with the keys of its objects in order."""
    return {key: ordered(value[key]) for key in sorted(value)} if isinstance(value, dict) else value


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(ROWS, min_size=1, max_size=MORE_FILES + 1))
def test_rows_in_files_are_those_of_one_file(files: list[list[dict[str, Any]]]) -> None:
    """Columns and fields that some lack, at any depth, and numbers that are whole or not: as if all were in one."""
    with TemporaryDirectory() as folder:
        some = lines(Path(folder) / "some", *files)
        one = lines(Path(folder) / "one", [row for rows in files for row in rows])
        found, expected = curate.read_json(some).take_all(), curate.read_json(one).take_all()
    assert [ordered(row) for row in found] == [ordered(row) for row in expected]


CELLS = st.lists(st.sampled_from(["", "", "1", "-2", "1.5", "true", "007", "x"]), min_size=1, max_size=3)


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(CELLS, min_size=1, max_size=MORE_FILES + 1))
def test_cells_in_files_are_those_of_one_file(files: list[list[str]]) -> None:
    """Of CSV: a type that holds all of them, which is text at last."""
    with TemporaryDirectory() as folder:
        for number, cells in enumerate(files):
            Path(folder, f"{number}.csv").write_text(
                "".join(f"{line}\n" for line in ["n,v", *(f"0,{c}" for c in cells)])
            )
        found = curate.read_csv(f"{folder}/*.csv")
        rows, schema = found.take_all(), found.schema()
        Path(folder, "one.csv").write_text("n,v\n" + "".join(f"0,{cell}\n" for cells in files for cell in cells))
        one = curate.read_csv(f"{folder}/one.csv")
        assert (rows, schema) == (one.take_all(), one.schema())


@pytest.mark.parametrize("cells", [["", "1"], ["1", ""], ["1", "", "2.5"], ["", ""]])
def test_empty_cells_of_a_file_tell_no_type(cells: list[str], tmp_path: Path) -> None:
    """Those of the others do; text, if there is none."""
    for number, cell in enumerate(cells):
        (tmp_path / f"{number}.csv").write_text(f"n,v\n0,{cell}\n")
    type = pa.string() if not any(cells) else pa.float64() if "2.5" in cells else pa.int64()
    assert curate.read_csv(tmp_path).schema() == pa.schema([("n", pa.int64()), ("v", type)])
    Kept().run(input=f"{tmp_path}/*.csv", output=str(tmp_path / "out"), backend="inline")
    assert pq.read_table(tmp_path / "out").schema.field("v").type == type


def test_what_later_inputs_have_does_not_change_the_columns_of_a_job(tmp_path: Path) -> None:
    """They are those of its first run: what does not fit is told of, and what is there stays as it is."""
    inputs = lines(tmp_path / "in", [{"x": 1}])
    out = tmp_path / "out"
    for run in (
        lambda: Kept().run(input=inputs, output=str(out / "job"), backend="inline"),
        lambda: curate.read_json(inputs).write_parquet(out / "rows", backend="inline"),
    ):
        (tmp_path / "in" / "001.jsonl").unlink(missing_ok=True)
        run()
        (tmp_path / "in" / "001.jsonl").write_text('{"x": 2, "y": 3}\n{"x": 2.5}\n')
        ended = run()
        assert (ended.books.counters, ended.books.quarantined) == ({OTHER_KEYS: 1}, 1)
    for folder in ("job", "rows"):
        tables = [pq.read_table(one) for one in sorted((out / folder).glob("*.parquet"))]
        assert {table.schema.remove_metadata() for table in tables} == {pa.schema([("x", pa.int64())])}
        assert sorted(itertools.chain(*(table["x"].to_pylist() for table in tables))) == [1, 2]


def test_what_is_made_anew_of_more_inputs_is_as_from_nothing(tmp_path: Path) -> None:
    """Stages that are kept are none that were read as other columns."""
    inputs = lines(tmp_path / "in", *([{"x": number}] for number in range(3)))

    def write(out: str, **how: Any) -> list[dict[str, Any]]:
        curate.read_json(inputs).sort("x").write_parquet(tmp_path / out, backend="inline", **how)
        return [row for one in sorted((tmp_path / out).glob("*.parquet")) for row in pq.read_table(one).to_pylist()]

    write("out")
    (tmp_path / "in" / "003.jsonl").write_text('{"x": 1.5, "y": 3}\n')
    expected = [{"x": x, "y": 3 if x == 1.5 else None} for x in (0.0, 1.0, 1.5, 2.0)]
    assert write("out", overwrite=True, yes=True) == write("fresh") == expected


def test_a_column_that_is_quoted_is_told_of_once(tmp_path: Path) -> None:
    """Though several files are looked into; and not at all where it is no JSON, as the first one has texts alone."""
    mixed: list[Any] = ["a", 1, 2]
    with structlog.testing.capture_logs() as logs:
        curate.read_json(written(tmp_path, mixed, mixed, mixed))
    [told] = [one for one in logs if "texts in quotes" in one["event"]]
    assert told["types"].startswith("string, int64 in ")
    with structlog.testing.capture_logs() as logs:
        curate.read_json(written(tmp_path, ["a"], mixed, mixed))
    assert logs == []


def stored(folder: Path, suffix: str, *files: dict[str, Any]) -> str:
    """Writes files of one row each."""
    folder.mkdir()
    for number, row in enumerate(files):
        path = folder / f"{number}.{suffix}"
        match suffix:
            case "parquet":
                pq.write_table(pa.Table.from_pylist([row]), path)
            case "csv":
                path.write_text(f"{','.join(row)}\n{','.join(map(str, row.values()))}\n")
            case "tar":
                with tarfile.open(path, "w") as tar:
                    for name, value in row.items():
                        info = tarfile.TarInfo(f"{number}.{name}")
                        info.size = len(str(value))
                        tar.addfile(info, io.BytesIO(str(value).encode()))
    return f"{folder}/*.{suffix}"


@pytest.mark.parametrize("suffix", ["parquet", "csv", "tar"])
def test_a_job_of_all_columns_loses_none_that_only_a_later_file_has(suffix: str, tmp_path: Path) -> None:
    """It says which, and what to do; one that names its columns leaves others out on purpose."""
    inputs = stored(tmp_path / "in", suffix, {"txt": "a"}, {"txt": "b", "cls": 1})
    ended = Kept(max_bad_rows=0).run(input=inputs, output=str(tmp_path / "out"), backend="inline")
    assert ended.state.exit_code != 0
    [failure] = ended.failures
    assert re.search(r"column 'cls' is in this file only|it has a file 'cls', unlike the first", failure.error)
    ended = OneColumn().run(input=inputs, output=str(tmp_path / "one"), backend="inline")
    assert (ended.state.exit_code, ended.books.rows_out, ended.books.quarantined) == (0, 2, 0)


class Kept(Job):
    """Keeps rows as they are."""

    version = "1"

    def process(self, batch: pa.Table) -> pa.Table:
        return batch


class Named(Kept):
    """The same of one column, whose type is not declared."""

    columns = ("v",)


@pytest.mark.parametrize("job", [Kept, Named])
def test_jobs(job: type[Job], tmp_path: Path) -> None:
    """Also of a column that they name and a file behind does not have, which its shard alone has to say."""
    (tmp_path / "in").mkdir()
    inputs = written(tmp_path / "in", [None], [None], [2.5])
    (tmp_path / "in" / "001.jsonl").write_text('{"id": "1-0"}\n')
    ended = job().run(input=inputs, output=str(tmp_path / "out"), backend="inline")
    assert (ended.books.quarantined, ended.books.rows_out) == (0, 3)
    tables = [pq.read_table(one) for one in sorted((tmp_path / "out").glob("*.parquet"))]
    assert {table.schema.field("v").type for table in tables} == {pa.float64()}
    assert list(itertools.chain(*(table["v"].to_pylist() for table in tables))) == [None, None, 2.5]


class OneColumn(Kept):
    """Names the column that all files have."""

    columns = ("txt",)


class Several(Kept):
    """Names columns that no file has all of."""

    columns = ("id", "url", "pages")


def lines(folder: Path, *files: list[dict[str, Any]]) -> str:
    """Writes JSON lines, a file for each list of rows; returns what names them all."""
    folder.mkdir()
    for number, rows in enumerate(files):
        (folder / f"{number:03d}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return f"{folder}/*.jsonl"


def kept(job: type[Job], inputs: str, out: Path) -> list[dict[str, Any]]:
    """Returns the rows that a job writes, none of which it may set aside or cut."""
    ended = job().run(input=inputs, output=str(out), backend="inline")
    assert (ended.state.exit_code, ended.books.quarantined, ended.books.counters) == (0, 0, {})
    return [row for one in sorted(out.glob("*.parquet")) for row in pq.read_table(one).to_pylist()]


class Typed(Several):
    """The same columns, whose types nothing has to tell."""

    columns = {"id": pa.int64(), "url": pa.string(), "pages": pa.int64()}  # noqa: RUF012


@pytest.mark.parametrize("job", [Several, Typed])
def test_columns_that_the_first_file_lacks(job: type[Job], tmp_path: Path) -> None:
    """As long as one behind it has them: keys that are left out are nulls."""
    inputs = lines(
        tmp_path / "in", [{"id": 1, "pages": 2}], [{"other": 1}], [{"id": 2, "url": "u"}, {"url": "v", "id": 3}]
    )
    found = kept(job, inputs, tmp_path / "out")
    assert [(row["id"], row["url"], row["pages"]) for row in found] == [
        *((1, None, 2), (None, None, None), (2, "u", None), (3, "v", None))
    ]
    assert list(found[0]) == ["id", "url", "pages"]


@pytest.mark.parametrize("rows", [[{"id": 1, "url": "u"}], [{"other": 1}]])
def test_one_that_no_file_has_is_refused(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    """Of the first file, with what it has; also where it has none of all that are named."""
    inputs = lines(tmp_path / "in", rows, [{"other": 2}], [{"id": 2, "url": "u"}])
    with pytest.raises(ConfigError, match=r"no column '(pages|id|url)' in .*000\.jsonl; it has '(id|other)'"):
        Several().run(input=inputs, output=str(tmp_path / "out"), backend="inline")
    with pytest.raises(ConfigError, match=r"no column 'v' in .*000\.jsonl"):
        Named().run(input=inputs, output=str(tmp_path / "out"), backend="inline")


@pytest.mark.usefixtures("no_backoff")
@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_what_is_wrong_with_a_further_file_its_own_shard_says(suffix: str, tmp_path: Path) -> None:
    """And no other one: it is looked into, and cannot be read by who may not, or is damaged."""
    tables = [pa.table({"v": [None, value]}) for value in (None, 1.5, 2.5, 3.5)]
    (tmp_path / "in").mkdir()
    for number, table in enumerate(tables):
        path = tmp_path / "in" / f"{number}.{suffix}"
        if suffix == "parquet":
            pq.write_table(table, path)
        else:
            path.write_text("".join(f"{json.dumps(row)}\n" for row in table.to_pylist()))
    (tmp_path / "in" / f"2.{suffix}").write_bytes(b"PAR1 and no more")
    denied = Fault(name=f"in/1.{suffix}", times=1000, error=lambda: PermissionDenied("not for you"))
    with wrap_stores(lambda real: FaultyStore(real, denied)):
        ended = Kept(max_bad_rows=0).run(input=f"{tmp_path}/in/*", output=str(tmp_path / "out"), backend="inline")
    assert {one.shard for one in ended.failures} == {"1", "2"}
    tables = [pq.read_table(one) for one in sorted((tmp_path / "out").glob("*.parquet"))]
    assert [table.schema.field("v").type for table in tables] == [pa.float64()] * 2


def test_one_without_which_no_row_is_whole_is_refused(tmp_path: Path) -> None:
    """All rows of the first file would be bad ones."""
    inputs = lines(tmp_path / "in", [{"id": 1}], [{"id": 2, "text": "a"}])
    with pytest.raises(ConfigError, match=r"no column 'text' in .*000\.jsonl; it has 'id'"):
        Texts().run(input=inputs, output=str(tmp_path / "out"), backend="inline")


class Texts(curate.TextJob):
    """Reads texts, which may not be null."""

    version = "1"

    def process(self, batch: pa.Table) -> pa.Table:
        return batch
