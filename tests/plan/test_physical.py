"""Whatever can be consumed can be written: the same rows in the same order, resumable, with books that balance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import curate
from curate.dataset.dataset import Dataset
from curate.errors import BadRow, ConfigError
from curate.exchange.kinds import sort
from curate.exchange.run_file import RunWriter
from curate.graph.entry import dry_run
from curate.objects.record import OutputFormat
from curate.plan import rewrites
from curate.plan.stages import stage_of
from curate.reduce import ranges
from curate.resume.options import RunOptions
from curate.stage import program
from tests.support.examples import examples

Row = dict[str, Any]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several map shards, outputs and pages of what are a few rows."""
    monkeypatch.setattr(rewrites, "LEAST_MAP_BYTES", 64)
    monkeypatch.setattr(ranges, "LEAST_BYTES", 200)
    monkeypatch.setattr(program, "RunWriter", partial(RunWriter, chunk_bytes=700, page_bytes=90))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four Parquet files and two of JSON lines, of ten rows each; `k` is in no order."""
    found = tmp_path / "in"
    found.mkdir()
    for number in range(6):
        rows = [{"n": n, "k": n * 7 % 30} for n in range(number * 10, number * 10 + 10)]
        if number < 4:
            pq.write_table(pa.Table.from_pylist(rows), found / f"{number}.parquet")
        else:
            (found / f"{number}.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    for name, number in (("x/a", 0), ("y/a", 1), ("z/sub/a", 2)):
        (found / f"{name}.parquet").parent.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(rows_of(number)), found / f"{name}.parquet")
    return found


def rows_of(*numbers: int) -> list[Row]:
    return [{"n": n, "k": n * 7 % 30} for number in numbers for n in range(number * 10, number * 10 + 10)]


def written(out: Path) -> list[Row]:
    found = [path for path in sorted(out.glob("*.parquet")) if pq.ParquetFile(path).metadata.num_columns]
    return [row for path in found for row in pq.read_table(path).to_pylist()]


def parquet(folder: Path) -> Dataset:
    return curate.read_parquet(folder / "*.parquet")


def lines(folder: Path) -> Dataset:
    return curate.read_json(folder / "*.jsonl")


def by_k(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: row["k"])


def is_even(row: Row) -> bool:
    return row["n"] % 2 == 0


def not_seven(row: Row) -> Row:
    if row["n"] % 10 == 7:
        raise BadRow("seven")
    return row


FIRST, LAST = rows_of(0, 1, 2, 3), rows_of(4, 5)
SHAPES: dict[str, tuple[Callable[[Path], Dataset], list[Row]]] = {
    "files": (parquet, FIRST),
    "a range": (lambda _: curate.range(40), [{"id": n} for n in range(40)]),
    "columns and some rows of files": (
        lambda at: parquet(at).filter(pc.field("n") > 3).rename_columns({"k": "m"}).select_columns("m"),
        [{"m": row["k"]} for row in FIRST if row["n"] > 3],
    ),
    "a function over files": (lambda at: lines(at).filter(is_even), [row for row in LAST if is_even(row)]),
    "a checkpoint": (
        lambda at: parquet(at).sort("k").checkpoint(at / "kept").select_columns("k"),
        [{"k": row["k"]} for row in by_k(FIRST)],
    ),
    "what is deduplicated of a checkpoint": (
        lambda at: parquet(at).checkpoint(at / "kept").dedup_exact("k").filter(is_even),
        [row for n, row in enumerate(FIRST) if row["k"] not in {one["k"] for one in FIRST[:n]} and is_even(row)],
    ),
    "union of files": (lambda at: parquet(at).union(curate.read_parquet(at / "x")), FIRST + rows_of(0)),
    "join": (
        lambda at: parquet(at).sort("n").join(lines(at).select_columns("k"), on="k", how="semi").sort("n"),
        [row for row in FIRST if row["k"] in {one["k"] for one in LAST}],
    ),
    "repartition of columns": (
        lambda at: parquet(at).select_columns("k").repartition(3),
        [{"k": row["k"]} for row in FIRST],
    ),
    "repartition of other names": (
        lambda at: parquet(at).rename_columns({"k": "m"}).repartition(3).filter(pc.field("m") < 9),
        [{"n": row["n"], "m": row["k"]} for row in FIRST if row["k"] < 9],
    ),
    "zip": (
        lambda at: parquet(at).zip(parquet(at).select_columns("k").rename_columns({"k": "m"})),
        [{**row, "m": row["k"]} for row in FIRST],
    ),
    "zip of three": (
        lambda at: lines(at).zip(curate.range(20), curate.from_items(list("abcdefghijklmnopqrst"))),
        [{**row, "id": n, "item": "abcdefghijklmnopqrst"[n]} for n, row in enumerate(LAST)],
    ),
    "zip, then a function": (
        lambda at: parquet(at).zip(curate.range(40)).filter(is_even, reason="odd").drop_columns("id"),
        [row for row in FIRST if is_even(row)],
    ),
    "zip of exchanges": (
        lambda at: parquet(at).sort("k").zip(parquet(at).sort("n", descending=True).select_columns("n")),
        [{**row, "n_1": 39 - n} for n, row in enumerate(by_k(FIRST))],
    ),
    "sort of a zip": (
        lambda at: parquet(at).zip(curate.range(40)).sort("id", descending=True).drop_columns("id"),
        FIRST[::-1],
    ),
    "zip of zips": (
        lambda at: curate.range(40).zip(curate.range(40)).zip(parquet(at)).drop_columns(["id", "id_1"]),
        FIRST,
    ),
    "union of formats": (lambda at: parquet(at).union(lines(at)), FIRST + LAST),
    "union of what is done differently": (
        lambda at: parquet(at).union(parquet(at).filter(pc.field("n") < 5)),
        FIRST + FIRST[:5],
    ),
    "union with an exchange": (lambda at: parquet(at).sort("k").union(lines(at)), by_k(FIRST) + LAST),
    "union with a limit": (lambda at: parquet(at).limit(13).union(lines(at).limit(3)), FIRST[:13] + LAST[:3]),
    "union of unions": (
        lambda at: lines(at).union(parquet(at).union(lines(at))).filter(is_even),
        [row for row in LAST + FIRST + LAST if is_even(row)],
    ),
    "limit of a union of formats": (lambda at: parquet(at).union(lines(at)).limit(45), (FIRST + LAST)[:45]),
    "limit of a sort": (lambda at: parquet(at).sort("k").limit(7), by_k(FIRST)[:7]),
    "nothing of a sort": (lambda at: parquet(at).sort("k").limit(0), []),
    "more than all of a sort": (lambda at: parquet(at).sort("k").limit(1000), by_k(FIRST)),
    "limits of a sort": (lambda at: parquet(at).sort("k").limit(9).limit(11).limit(8), by_k(FIRST)[:8]),
    "limit of columns of a sort": (
        lambda at: parquet(at).sort("k").select_columns("k").limit(7),
        [{"k": row["k"]} for row in by_k(FIRST)[:7]],
    ),
    "limit of some of a sort": (
        lambda at: parquet(at).sort("k").filter(is_even).limit(7).filter(pc.field("n") != 0),
        [row for row in [row for row in by_k(FIRST) if is_even(row)][:7] if row["n"]],
    ),
    "sort of a limit of a sort": (
        lambda at: parquet(at).sort("k").limit(11).sort("n"),
        sorted(by_k(FIRST)[:11], key=lambda row: row["n"]),
    ),
    "limit of a limit": (
        lambda at: parquet(at).limit(20).filter(is_even).limit(4),
        [r for r in FIRST if is_even(r)][:4],
    ),
    "limit of a limit alone": (lambda at: parquet(at).limit(20).limit(4), FIRST[:4]),
    "limit of a zip": (lambda at: parquet(at).zip(curate.range(40)).limit(25).drop_columns("id"), FIRST[:25]),
    "limit of groups": (
        lambda at: parquet(at).groupby("k").count().limit(3),
        [{"k": 0, "count": 2}, {"k": 1, "count": 1}, {"k": 2, "count": 1}],
    ),
    "limit of a repartition": (lambda at: parquet(at).repartition(3).limit(17), FIRST[:17]),
    "limit of what is deduplicated": (
        lambda at: parquet(at).dedup_exact("k").limit(12),
        [row for n, row in enumerate(FIRST) if row["k"] not in {one["k"] for one in FIRST[:n]}][:12],
    ),
    "what is deduplicated of formats": (
        lambda at: parquet(at).union(lines(at)).dedup_exact("k"),
        [row for n, row in enumerate(FIRST + LAST) if row["k"] not in {one["k"] for one in (FIRST + LAST)[:n]}],
    ),
    "sort of what is deduplicated of a union": (
        lambda at: parquet(at).union(parquet(at)).dedup_exact("n").sort("k"),
        by_k(FIRST),
    ),
    "limit of a union of tables": (
        lambda _: curate.from_items([0, 1]).union(curate.from_items([2, 3, 4])).limit(4),
        [{"item": n} for n in range(4)],
    ),
    "limit of a union of ranges": (
        lambda _: curate.range(10).union(curate.range(10)).limit(15),
        [{"id": n % 10} for n in range(15)],
    ),
    "sort of a limit of namesakes": (
        lambda at: curate.read_parquet([at / "x", at / "y"]).limit(13).sort("n", descending=True),
        rows_of(0, 1)[:13][::-1],
    ),
    "zip of a limit of namesakes": (
        lambda at: curate.range(13).zip(curate.read_parquet([at / "x", at / "y"]).limit(13)).drop_columns("id"),
        rows_of(0, 1)[:13],
    ),
    "a file by two names": (
        lambda at: curate.read_parquet(at / "z/sub/a.parquet").union(curate.read_parquet(at / "z")),
        rows_of(2, 2),
    ),
    "the start of a file by two names": (
        lambda at: curate.read_parquet(at / "z/sub/a.parquet").union(curate.read_parquet(at / "z")).limit(15),
        rows_of(2, 2)[:15],
    ),
    "a sample of a union": (
        lambda at: lines(at).union(curate.from_items([{"n": -1, "k": -1}])).random_sample(1.0, seed=1),
        [*LAST, {"n": -1, "k": -1}],
    ),
    "union of types that functions know": (
        lambda _: curate.from_items([{"n": 1}]).union(curate.from_items([{"n": 2}]).map(lambda _: {"n": 2.5})),
        [{"n": 1}, {"n": 2.5}],
    ),
    "sort of columns that functions know": (
        lambda _: (
            curate.from_items([{"n": 1}])
            .union(curate.from_items([0]).map(lambda _: {"k": "a", "n": 0.5}))
            .sort("n")
            .select_columns(["n", "k"])
        ),
        [{"n": 0.5, "k": "a"}, {"n": 1, "k": None}],
    ),
    "union of columns": (
        lambda at: parquet(at).select_columns("n").union(lines(at).select_columns("k")).filter(pc.field("k") < 3),
        [{"n": None, "k": row["k"]} for row in LAST if row["k"] < 3],
    ),
    "union of what may not be null": (
        lambda _: (
            curate.from_arrow(pa.table([[1]], schema=pa.schema([pa.field("n", pa.int64(), nullable=False)])))
            .union(curate.from_items([{"n": None}, {"n": 2}]))
            .sort("n")
        ),
        [{"n": 1}, {"n": 2}, {"n": None}],
    ),
    "limit behind bad rows": (
        lambda at: parquet(at).map(not_seven).limit(9),
        [row for row in FIRST if row["n"] % 10 != 7][:9],
    ),
    "limit of a sort of bad rows": (
        lambda at: parquet(at).map(not_seven).sort("n").map(lambda row: row).limit(9),
        [row for row in FIRST if row["n"] % 10 != 7][:9],
    ),
}


@pytest.mark.ci(5)
@pytest.mark.quick(8)
@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_written_is_what_is_consumed(shape: str, folder: Path, tmp_path: Path) -> None:
    """Which is what plain Python makes of it; what is lost is made again to the same bytes, and nothing else is."""
    made, expected = SHAPES[shape]
    ds = made(folder).using(backend="inline")
    assert ds.take_all() == expected
    assert ds.count() == len(expected)
    out = tmp_path / "out"
    ended = ds.write_parquet(out)
    assert (ended.state, ended.books.balanced()) == ("complete", True)
    assert ended.books.rows_out == len(expected)
    assert written(out) == expected
    assert ds.write_parquet(out).dispatched == 0
    before = {path.name: path.read_bytes() for path in out.glob("*.parquet")}
    (out / sorted(before)[-1]).unlink()
    again = made(folder).using(backend="inline").write_parquet(out)
    assert (again.state, {path.name: path.read_bytes() for path in out.glob("*.parquet")}) == ("complete", before)


@pytest.mark.ci(12)
@pytest.mark.quick(6)
@pytest.mark.parametrize("shape", SHAPES)
def test_what_an_exchange_reads_is_what_is_consumed(shape: str, folder: Path, tmp_path: Path) -> None:
    """The third way that rows can go, into run files; they come out as they went in."""
    made, expected = SHAPES[shape]
    ds = made(folder).repartition(3).using(backend="inline")
    assert ds.take_all() == expected
    assert ds.take(4) == expected[:4]
    assert ds.write_parquet(tmp_path / "out").state == "complete"
    assert written(tmp_path / "out") == expected


@pytest.mark.parametrize("shape", ["zip", "union of formats", "limit of a sort", "limit of some of a sort"])
def test_through_a_checkpoint(shape: str, folder: Path, tmp_path: Path) -> None:
    """It is written there by the same stages; and limited after it."""
    made, expected = SHAPES[shape]
    kept = made(folder).checkpoint(tmp_path / "kept").using(backend="inline")
    assert kept.limit(5).take_all() == expected[:5]
    kept.limit(5).write_json(tmp_path / "out")
    assert curate.read_json(tmp_path / "out").take_all() == expected[:5]


def test_a_limit_of_a_sort_keeps_no_other_rows(folder: Path, tmp_path: Path) -> None:
    """Every map shard writes as many as could be among the first, and no more; the others are dropped for the limit."""
    ds = parquet(folder).sort("k").limit(2)
    ended = ds.write_parquet(tmp_path / "out", backend="inline", keep_stages=True)
    assert ended.books.dropped == {"limit": 38}
    sizes = [path.stat().st_size for path in (tmp_path / "out/_curate/stages").rglob("*.run")]
    whole = parquet(folder).sort("k")
    whole.write_parquet(tmp_path / "whole", backend="inline", keep_stages=True)
    other = [path.stat().st_size for path in (tmp_path / "whole/_curate/stages").rglob("*.run")]
    assert len(sizes) == len(other) == 4
    assert sum(sizes) < sum(other)


@pytest.mark.slow
@settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    st.lists(st.lists(st.none() | st.integers(0, 5), max_size=12), min_size=1, max_size=5),
    st.integers(0, 40),
    st.booleans(),
    st.booleans(),
)
def test_the_first_of_any_sort(
    tmp_path_factory: pytest.TempPathFactory, files: list[list[int | None]], most: int, descending: bool, folded: bool
) -> None:
    """Equal keys in the order of the input, whether map shards leave out rows or the outputs do, however many."""
    at = tmp_path_factory.mktemp("first")
    rows = [{"key": key, "id": 100 * number + n} for number, keys in enumerate(files) for n, key in enumerate(keys)]
    schema = pa.schema([("key", pa.int64()), ("id", pa.int64())])
    for number in range(len(files)):
        own = [row for row in rows if row["id"] // 100 == number]
        pq.write_table(pa.Table.from_pylist(own, schema=schema), at / f"{number}.parquet")
    expected = sorted(rows, key=lambda row: (row["key"] is None, (-1 if descending else 1) * (row["key"] or 0)))[:most]
    ds = curate.read_parquet(at / "*.parquet").sort("key", descending).limit(most)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sort, "FOLDED_ROWS", 1 << 16 if folded else -1)
        ended = ds.write_parquet(at / "out", backend="inline")
    assert (ended.state, ended.books.balanced(), ended.books.rows_in) == ("complete", True, len(rows))
    written = [row for path in sorted((at / "out").glob("*.parquet")) for row in pq.read_table(path).to_pylist()]
    assert written == expected


@pytest.mark.quick(4)
@pytest.mark.parametrize("count", [None, 3, 7])
@pytest.mark.parametrize("most", [0, 1, 5, 19, 60])
def test_the_first_of_a_shuffle(count: int | None, most: int, folder: Path, tmp_path: Path) -> None:
    """They are those that all begin with, in as many outputs as were asked for."""
    whole = parquet(folder).random_shuffle(seed=4, num_shards=count)
    expected = whole.take_all()[:most]
    ended = whole.limit(most).write_parquet(tmp_path / "out", backend="inline")
    assert (ended.state, ended.books.balanced(), ended.books.rows_in) == ("complete", True, 40)
    found = [pq.read_table(path) for path in sorted((tmp_path / "out").glob("*.parquet"))]
    assert [row for one in found for row in one.to_pylist()] == expected
    if count is not None:
        assert len(found) == count
        assert max(map(len, found)) - min(map(len, found)) <= 1


def test_a_zip_of_different_lengths(folder: Path, tmp_path: Path) -> None:
    """Is refused once they are known; what there is of it is nobody's output."""
    with pytest.raises(ConfigError, match="equal numbers of rows, but these have 40, 39 rows"):
        parquet(folder).zip(curate.range(39)).write_parquet(tmp_path / "out", backend="inline")
    assert not list((tmp_path / "out").glob("*.parquet"))


def test_what_is_in_the_way_is_said_in_the_plan(folder: Path) -> None:
    """`explain` says that no more is sorted than is asked for."""
    text = parquet(folder).sort("k").limit(5).explain()
    assert "sort(k), first 5: reads run files" in text
    assert "limit(5)" in text
    assert "\nwritten\n" not in text
    assert "\nwritten\n" not in parquet(folder).limit(5).filter(is_even).explain()
    text = parquet(folder).zip(curate.range(40)).select_columns("n").explain()
    assert "side by side, in this process" in text.split("\nwritten\n")[0]
    assert "  zip: reads run files, then: select_columns('n')\n" in text.split("\nwritten\n")[1]


def test_bad_rows_are_not_counted(folder: Path) -> None:
    """`map` may leave out rows, so that no footer tells how many there are, nor where the first ones end."""
    ds = parquet(folder).map(not_seven)
    assert ds.count() == len(ds.take_all()) == 36
    assert ds.limit(9).take_all() == ds.take_all()[:9]
    assert parquet(folder).union(parquet(folder)).map(not_seven).limit(38).take_all()[-1] == FIRST[1]


def test_a_row_is_mapped_only_if_it_is_asked_for(folder: Path) -> None:
    """The first three of what a function makes are made of three rows."""
    seen: list[int] = []

    def see(row: Row) -> Row:
        seen.append(row["n"])
        return row

    assert len(parquet(folder).map(see).take(3)) == 3
    assert seen == [0, 1, 2]
    seen.clear()
    assert len(parquet(folder).map(see).filter(lambda row: row["n"] > 3).take(2)) == 2
    assert seen == [0, 1, 2, 3, 4, 5, 6, 7]


def test_a_limit_of_unlike_parts_makes_no_more(folder: Path, tmp_path: Path) -> None:
    """Of each part no more rows are made than could be among the first."""
    seen: list[int] = []

    def see(row: Row) -> Row:
        seen.append(row["n"])
        return row

    parts = parquet(folder).map(see).union(lines(folder).map(see))
    parts.limit(3).write_parquet(tmp_path / "out", backend="inline")
    assert set(seen) <= set(range(20)) | set(range(40, 60))
    assert [row["n"] for row in curate.read_parquet(tmp_path / "out").take_all()] == [0, 1, 2]


def test_sides_of_a_zip_are_its_identity(folder: Path, tmp_path: Path) -> None:
    """What is brought together otherwise is another job."""
    x, y, v = parquet(folder), lines(folder), curate.range(20).rename_columns({"id": "n"})
    x.union(y).zip(y.union(v).union(v)).write_parquet(tmp_path / "out", backend="inline")
    with pytest.raises(ConfigError, match="another identity"):
        x.zip(y.union(y).union(v).union(v)).write_parquet(tmp_path / "out", backend="inline")


def test_unlike_parts_are_pruned(folder: Path) -> None:
    """Columns and row groups that nothing needs are not read, though the parts are brought to one schema."""
    pq.write_table(pa.table({"n": [1.5], "m": ["wide"]}), folder / "other.parquet")
    both = parquet(folder / "x").union(curate.read_parquet(folder / "other.parquet"))
    text = both.filter(pc.field("k") > 100).select_columns("n").explain()
    assert "reads 1 of 2 columns: n" in text
    assert "leaves out row groups by: (k > 100)" in text
    assert both.filter(pc.field("k") > 20).select_columns("n").take_all() == [
        {"n": float(row["n"])} for row in rows_of(0) if row["k"] > 20
    ]


REPLACED: list[Callable[[Dataset], Dataset]] = [
    lambda ds: ds.drop_columns("k"),
    lambda ds: ds.rename_columns({"k": "m"}).drop_columns("m"),
    lambda ds: ds.filter(pc.field("k") > 3).drop_columns("k"),
    lambda ds: ds.select_columns(["k", "n"]).drop_columns("k"),
    lambda ds: ds.with_columns({"m": pc.field("k")}).drop_columns(["k", "m"]),
]


@pytest.mark.parametrize("then", REPLACED)
def test_what_replaces_a_column_is_dropped_like_it(then: Callable[[Dataset], Dataset], folder: Path) -> None:
    """Rows of Parquet files, of which only the columns that are needed are read, are as those of tables in memory."""
    found, expected = (
        then(ds.with_column("k", pc.field("n"))) for ds in (parquet(folder), parquet(folder).materialize())
    )
    assert found.to_arrow().equals(expected.to_arrow())
    assert found.to_arrow().schema.equals(found.schema())


@pytest.mark.parametrize(
    "sampled",
    [
        lambda at: parquet(at).random_sample(0.5, seed=3),
        lambda _: curate.range(40).random_sample(0.3, seed=1).union(curate.range(40).random_sample(0.3, seed=1)),
        lambda _: curate.range(40).union(curate.range(40)).random_sample(0.3, seed=1),
        lambda at: curate.read_parquet([at / "x", at / "y"]).random_sample(0.5, seed=1),
        lambda at: parquet(at).union(lines(at)).random_sample(0.5, seed=1),
    ],
)
def test_a_sample_is_the_same_in_every_plan(sampled: Callable[[Path], Dataset], folder: Path, tmp_path: Path) -> None:
    """Whatever follows it, whether it is consumed or written, and however files are cut for an exchange."""
    for number in range(4):
        pq.write_table(pq.read_table(folder / f"{number}.parquet"), folder / f"{number}.parquet", row_group_size=2)
    ds = sampled(folder).using(backend="inline")
    expected = ds.take_all()
    column = next(iter(expected[0]))
    assert ds.repartition(2).take_all() == expected
    assert ds.zip(curate.range(len(expected))).drop_columns("id_1" if column == "id" else "id").take_all() == expected
    assert ds.sort(column).take_all() == sorted(expected, key=lambda row: row[column])
    ds.repartition(3).write_parquet(tmp_path / "out")
    assert curate.read_parquet(tmp_path / "out").take_all() == expected


@pytest.mark.ci(6)
@pytest.mark.slow
@pytest.mark.quick(5)
@pytest.mark.parametrize(
    "sampled",
    [
        lambda at: parquet(at).union(lines(at)).random_sample(0.5, seed=1),
        lambda at: (
            parquet(at).union(curate.from_items([{"n": -n, "k": n} for n in range(9)])).random_sample(0.5, seed=1)
        ),
        lambda at: parquet(at).union(lines(at)).map(half).random_sample(0.5, seed=1).filter(is_even),
        lambda at: curate.range(40).union(lines(at), curate.range(40)).random_sample(0.5, seed=1),
        lambda at: curate.read_parquet(at / "x").union(renamed(at / "y"), lines(at)).random_sample(0.5, seed=1),
        lambda at: (
            curate.read_parquet(at / "x").union(curate.read_parquet(at / "y")).union(renamed(at / "y"))
        ).random_sample(0.5, seed=1),
        lambda at: parquet(at).limit(25).random_sample(0.5, seed=1),
        lambda at: parquet(at).limit(33).limit(25).map(half).random_sample(0.5, seed=1),
        lambda at: parquet(at).union(lines(at)).limit(49).random_sample(0.5, seed=1),
        lambda at: parquet(at).sort("k").random_sample(0.5, seed=1),
        lambda at: parquet(at).sort("k").limit(25).random_sample(0.5, seed=1),
        lambda at: parquet(at).sort("k").select_columns(["n", "k"]).limit(25).map(half).random_sample(0.5, seed=1),
        lambda at: parquet(at).sort("k").filter(is_even).limit(15).random_sample(0.5, seed=1),
        lambda at: parquet(at).random_shuffle(seed=2).limit(25).random_sample(0.5, seed=1),
        lambda at: parquet(at).zip(curate.range(40)).drop_columns("id").random_sample(0.5, seed=1),
        lambda at: parquet(at).limit(25).zip(curate.range(25)).drop_columns("id").random_sample(0.5, seed=1),
        lambda at: parquet(at).zip(curate.range(40)).drop_columns("id").limit(25).random_sample(0.5, seed=1),
        lambda at: parquet(at).limit(25).random_sample(0.7, seed=1).limit(13).random_sample(0.7, seed=2),
        lambda at: parquet(at).limit(25).random_sample(0.7, seed=1).union(lines(at)).random_sample(0.7, seed=2),
        lambda at: parquet(at).dedup_exact("k").random_sample(0.5, seed=1),
        lambda at: parquet(at).union(lines(at)).dedup_exact("k").random_sample(0.5, seed=1),
        lambda at: parquet(at).dedup_exact("k").limit(12).random_sample(0.5, seed=1),
        lambda at: parquet(at).checkpoint(at / "kept").random_sample(0.5, seed=1),
        lambda at: parquet(at).union(lines(at)).checkpoint(at / "kept").limit(45).random_sample(0.5, seed=1),
        lambda at: parquet(at).repartition(3).random_sample(0.5, seed=1),
        lambda at: parquet(at).groupby("k").count().limit(15).random_sample(0.5, seed=1),
    ],
)
def test_a_sample_that_is_written_is_the_one_that_is_consumed(
    sampled: Callable[[Path], Dataset], folder: Path, tmp_path: Path
) -> None:
    """Whatever it is drawn of: which row is in it goes by where the row was read, or by its place behind an exchange,
    and both are the same on every path."""
    ds = sampled(folder).using(backend="inline")
    expected = ds.take_all()
    assert expected
    assert ds.repartition(2).take_all() == expected
    ended = ds.write_parquet(tmp_path / "out")
    assert (ended.state, ended.books.balanced()) == ("complete", True)
    found = [pq.read_table(path) for path in sorted((tmp_path / "out").glob("*.parquet"))]
    assert [row for one in found if one.num_columns for row in one.to_pylist()] == expected


def half(row: Row) -> Row:
    return {"n": row["n"], "k": row["k"] // 2}


def renamed(path: Path) -> Dataset:
    """Returns what is read otherwise than its neighbours, of files of the same names."""
    return curate.read_parquet(path).with_column("k", pc.field("k") + 1)


def test_a_dry_run_writes_nothing(folder: Path, tmp_path: Path) -> None:
    """Also where a stage has to come first."""
    spec = stage_of(parquet(folder).zip(curate.range(40))._plan, OutputFormat.PARQUET, None)
    options = RunOptions(inputs=spec.inputs, output=str(tmp_path / "out"), backend="inline")
    assert "zip: map" in dry_run(spec, options)[1]
    assert not (tmp_path / "out").exists()
