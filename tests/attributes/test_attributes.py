"""Attributes are joined to the rows that they are of, whatever was read, left out or cut; or they are refused."""

from __future__ import annotations

import gzip
import json
import random
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import curate
from curate import Dataset
from curate.errors import ConfigError, CurateError
from tests.support.fasttext_model import write_fasttext_model

FILES, ROWS, SHARD_BYTES = 2, 60, 1200
Row = dict[str, Any]


class Length(curate.TextJob):
    """Counts the characters of texts; some texts are bad."""

    version = "1"
    attributes = True
    shard_bytes = SHARD_BYTES
    max_bad_rows = "90%"
    step: int = curate.param(1, help="what a character counts")

    def process(self, batch: pa.Table) -> pa.Table:
        if bad := [at for at, text in enumerate(batch["text"].to_pylist()) if text.startswith("!")]:
            raise curate.BadRow("begins with a mark", bad[0])
        length = pc.multiply(pc.utf8_length(batch["text"]), self.step)
        return self.passed_through(batch, text=True).append_column("length", length)


def rows_of(file: int, seed: int = 0) -> list[Row]:
    rng = random.Random(f"{seed} {file}")
    return [
        {"id": file * ROWS + n, "text": ("!" if n % 13 == 5 else "") + "é" * rng.randrange(9), "n": rng.randrange(100)}
        for n in range(ROWS)
    ]


def jsonl(path: Path, rows: Sequence[Row]) -> None:
    """Writes lines, among them blank and broken ones."""
    lines = []
    for number, row in enumerate(rows):
        lines += [""] * (number % 17 == 3) + ["{broken"] * (number % 19 == 4) + [json.dumps(row)]
    path.write_text("\n".join(lines) + "\n")


def gzipped(path: Path, rows: Sequence[Row]) -> None:
    jsonl(path, rows)
    path.with_suffix(".jsonl.gz").write_bytes(gzip.compress(path.read_bytes(), mtime=0))
    path.unlink()


def parquet(path: Path, rows: Sequence[Row]) -> None:
    pq.write_table(pa.Table.from_pylist(list(rows)), path.with_suffix(".parquet"), row_group_size=7)


def csv(path: Path, rows: Sequence[Row]) -> None:
    # The last column takes any text: a row without it is a bad one.
    path.with_suffix(".csv").write_text(
        "id,text,n\n" + "".join(f'{one["id"]},"{one["text"]}",{one["n"]}\n' for one in rows)
    )


WRITERS: dict[str, tuple[Callable[[Path, Sequence[Row]], None], Callable[..., curate.Dataset]]] = {
    "jsonl": (jsonl, curate.read_json),
    "jsonl.gz": (gzipped, curate.read_json),
    "parquet": (parquet, curate.read_parquet),
    "csv": (csv, curate.read_csv),
}


def fill(folder: Path, kind: str = "jsonl", seed: int = 0) -> curate.Dataset:
    """Writes files of a kind, and returns their rows."""
    folder.mkdir(exist_ok=True)
    write, read = WRITERS[kind]
    for file in range(FILES):
        write(folder / f"{file}.jsonl", rows_of(file, seed))
    return read(folder).using(max_bad_rows="50%")


def scored(tmp_path: Path, name: str = "length", **parameters: Any) -> Path:
    """Runs the attributes job."""
    summary = Length(**parameters).run(input=tmp_path / "in", output=tmp_path / name, backend="inline")
    assert summary.state == "complete"
    return tmp_path / name


def right(rows: Sequence[Row], name: str = "length", step: int = 1) -> None:
    """Looks whether each row has its own attribute, or null where the job has set it aside."""
    assert rows
    for row in rows:
        assert row[name] == (None if row["text"].startswith("!") else len(row["text"]) * step), row


@pytest.mark.ci(4)
@pytest.mark.slow
@pytest.mark.quick(2)
@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("backend", ["inline", "local"])
def test_rows_have_their_own_attributes(kind: str, backend: str, tmp_path: Path) -> None:
    """In files that are cut and compressed ones, with blank, broken and bad lines; consumed, counted and written."""
    if backend == "local" and kind != "jsonl":
        pytest.skip("where tasks run, and what files are, has nothing to do with each other")
    ds = fill(tmp_path / "in", kind)
    path = scored(tmp_path)
    if kind in ("jsonl", "parquet"):
        assert len(list(path.glob("*.parquet"))) > FILES
    with_length = ds.with_attributes(path).using(backend=backend)
    rows = with_length.take_all()
    assert [{name: row[name] for name in ("id", "text", "n")} for row in rows] == ds.take_all()
    right(rows)
    assert with_length.count() == len(rows)
    kept = with_length.filter(curate.col("length") > 4, reason="short").select_columns(["length", "id"])
    wanted = [{"length": row["length"], "id": row["id"]} for row in rows if (row["length"] or 0) > 4]
    assert kept.take_all() == wanted
    assert kept.write_parquet(tmp_path / "out", backend=backend).state == "complete"
    assert curate.read_parquet(tmp_path / "out").take_all() == wanted


def test_what_is_written(tmp_path: Path) -> None:
    """The id, the job's own columns and the place of each row; for each shard of the input one output."""
    fill(tmp_path / "in")
    found = curate.read_parquet(scored(tmp_path))
    assert found.columns() == ["id", "length", "curate_position"]
    lines = (tmp_path / "in/1.jsonl").read_bytes().splitlines(keepends=True)
    ends = [sum(map(len, lines[:n])) for n in range(len(lines))]
    for row in found.filter(pc.field("curate_position", "file") == str(tmp_path / "in/1.jsonl")).take_all():
        place = row["curate_position"]
        first = next(number for number, end in enumerate(ends) if end >= place["start"])
        assert json.loads(lines[first + place["row"]])["id"] == row["id"]


@pytest.mark.quick(1)
@pytest.mark.parametrize(("kind", "cut"), [("jsonl", True), ("parquet", False)])
def test_rows_of_what_was_filtered_are_found_by_their_positions(kind: str, cut: bool, tmp_path: Path) -> None:
    """Cut as the attributes are, or not cut; filtered again, sorted, shuffled, written; by a dataset and by a job."""
    ds = fill(tmp_path / "in", kind)
    path = scored(tmp_path, shard_bytes=SHARD_BYTES if cut else 256 << 20)
    cut_alike = ds.with_attributes(path).drop_columns("length") if cut else ds
    kept = cut_alike.filter(curate.col("n") < 50, reason="n", keep_positions=True)
    kept.write_parquet(tmp_path / "kept", backend="inline")
    stored = curate.read_parquet(tmp_path / "kept")
    right(stored.with_attributes(path, "length").take_all())
    ids = [row["id"] for row in stored.take_all()]
    again = stored.filter(curate.col("n") > 20, keep_positions=True).drop_columns("n")
    again.sort("id", descending=True).write_json(tmp_path / "again", backend="inline")
    rows = curate.read_json(tmp_path / "again").with_attributes(path).take_all()
    right(rows)
    assert [row["id"] for row in rows] == sorted((row["id"] for row in rows), reverse=True)
    right(stored.random_shuffle(seed=3, num_shards=2).with_attributes(path).take_all())
    right(kept.with_attributes(path).take_all())

    class Few(curate.TextJob):
        version = "1"
        keep_positions = True
        max_bad_rows = "90%"

        def process(self, batch: pa.Table) -> pa.Table:
            return self.passed_through(batch.filter(pc.is_in(batch["id"], value_set=pa.array(ids))), text=True)

    assert (
        Few(shard_bytes=SHARD_BYTES if cut else 256 << 20)
        .run(input=tmp_path / "in", output=tmp_path / "few", backend="inline")
        .done
    )
    rows = curate.read_parquet(tmp_path / "few").with_attributes(path).take_all()
    right(rows)
    assert [row["id"] for row in rows] == ids


def test_several_in_a_row(tmp_path: Path) -> None:
    """Each by itself; a filter in between keeps places, and what is read is pruned to what is asked for."""
    ds = fill(tmp_path / "in", "parquet")
    one, two = scored(tmp_path, "one"), scored(tmp_path, "two", step=2)
    both = ds.with_attributes(one).filter(curate.col("length") > 2).rename_columns({"length": "once"})
    both = both.with_attributes(two).using(backend="inline")
    assert both.columns() == ["id", "text", "n", "once", "length"]
    rows = both.take_all()
    right(rows, "once")
    right(rows, step=2)
    narrow = both.select_columns(["once"])
    assert [row["once"] for row in narrow.take_all()] == [row["once"] for row in rows]
    assert narrow.count() == len(rows)


def test_one_pass_serves_many_thresholds(tmp_path: Path) -> None:
    """The model scores once; each threshold is a filter, and gives what the job gives with that threshold."""
    toxicity = pytest.importorskip("curate.jobs.toxicity").Toxicity
    ds = fill(tmp_path / "in", "parquet")
    model = write_fasttext_model(
        tmp_path / "model.bin", ["__label__toxic", "__label__fine"], {"é" * n: (n - 4, 0) for n in range(1, 9)}
    )
    job = toxicity(model=str(model), attributes=True, shard_bytes=SHARD_BYTES)
    assert job.run(input=tmp_path / "in", output=tmp_path / "scores", backend="inline").state == "complete"
    tagged = ds.with_attributes(tmp_path / "scores", columns=["toxicity"])
    for threshold in (0.3, 0.6):
        own = toxicity(model=str(model), threshold=threshold)
        own.run(input=tmp_path / "in", output=tmp_path / f"own {threshold}", backend="inline")
        kept = curate.read_parquet(tmp_path / f"own {threshold}").filter(~pc.field("toxic")).take_all()
        out = tmp_path / f"below {threshold}"
        tagged.filter(curate.col("toxicity") < threshold).write_parquet(out, backend="inline")
        assert [row["id"] for row in curate.read_parquet(out).take_all()] == [row["id"] for row in kept]
        assert 0 < len(kept) < FILES * ROWS


# In jobs


class Long(curate.Job):
    """Keeps rows by attributes."""

    version = "1"
    keep_positions = True
    shard_bytes = SHARD_BYTES
    max_bad_rows = "90%"
    scores: str = curate.param(help="where the attributes are", identity=False)
    least: int = curate.param(5, help="characters")

    def build(self, ds: curate.Dataset) -> curate.Dataset:
        kept = ds.with_attributes(self.scores).filter(curate.col("length") >= self.least)
        return kept.drop_columns("curate_position")


@pytest.mark.slow
def test_in_the_middle_of_a_job(tmp_path: Path) -> None:
    """With the attributes' fingerprint as part of its identity, and behind an exchange."""
    ds = fill(tmp_path / "in")
    one, two = scored(tmp_path, "one"), scored(tmp_path, "two", step=2)
    wanted = [row for row in ds.take_all() if not row["text"].startswith("!") and len(row["text"]) >= 5]

    class Sorted(Long):
        def build(self, ds: curate.Dataset) -> curate.Dataset:
            return super().build(ds).sort("id", descending=True)

    for cls, order in ((Long, wanted), (Sorted, wanted[::-1])):
        out = tmp_path / cls.__name__
        assert cls(scores=str(one)).run(input=tmp_path / "in", output=out, backend="inline").state == "complete"
        rows = curate.read_parquet(out).take_all()
        right(rows)
        assert [row["id"] for row in rows] == [row["id"] for row in order]
        with pytest.raises(ConfigError, match="with_attributes"):
            cls(scores=str(two)).run(input=tmp_path / "in", output=out, backend="inline")
        again = cls(scores=str(one)).run(input=tmp_path / "in", output=out, backend="inline")
        assert again.skipped == again.done > 0


@pytest.mark.slow
def test_a_job_that_cuts_otherwise(tmp_path: Path) -> None:
    """Its shards fail, with both cuts."""
    fill(tmp_path / "in")
    job = Long(scores=str(scored(tmp_path)), shard_bytes=300)
    summary = job.run(input=tmp_path / "in", output=tmp_path / "out", backend="inline")
    assert summary.state == "failed"
    assert any("cut at the same shard_bytes, which are 1,200 there" in one.error for one in summary.failures)


# A write goes on, and is known by its attributes


def test_a_write_is_known_by_its_attributes(tmp_path: Path) -> None:
    """Run again, it is free; with others it is refused, with both."""
    ds = fill(tmp_path / "in")
    one, two = scored(tmp_path, "one"), scored(tmp_path, "two", step=2)
    first = ds.with_attributes(one).write_parquet(tmp_path / "out", backend="inline")
    assert first.done > FILES
    again = ds.with_attributes(one).write_parquet(tmp_path / "out", backend="inline")
    assert again.skipped == first.done
    with pytest.raises(ConfigError, match="with_attributes"):
        ds.with_attributes(two).write_parquet(tmp_path / "out", backend="inline")


def test_a_corpus_that_grows(tmp_path: Path) -> None:
    """New files are tagged and written; what was there stays."""
    fill(tmp_path / "in")
    path = scored(tmp_path)
    first = curate.read_json(tmp_path / "in").using(max_bad_rows="50%").with_attributes(path)
    done = first.write_parquet(tmp_path / "out", backend="inline").done
    jsonl(tmp_path / "in/3.jsonl", rows_of(3))
    with pytest.raises(ConfigError, match=r"has no attributes of .*/in/3.jsonl: 'length' was run over .*/in/0.j"):
        curate.read_json(tmp_path / "in").with_attributes(path)
    scored(tmp_path)
    ds = curate.read_json(tmp_path / "in").using(max_bad_rows="50%").with_attributes(path)
    summary = ds.write_parquet(tmp_path / "out", backend="inline")
    assert (summary.skipped, summary.state) == (done, "complete")
    right(curate.read_parquet(tmp_path / "out").take_all())


# What is refused


def refused(match: str, make: Callable[[], curate.Dataset], *, runs: bool = False) -> None:
    """Looks whether it is refused before anything runs; or when it runs."""
    if not runs:
        with pytest.raises(ConfigError, match=match):
            make()
        return
    ds = make()
    with pytest.raises(CurateError, match=match):
        ds.take_all()


def test_what_no_attributes_are(tmp_path: Path) -> None:
    """No job, another job, one that is not complete; and no such column."""
    ds = fill(tmp_path / "in")
    refused("no curate job at .*/none; run an attributes job", lambda: ds.with_attributes(tmp_path / "none"))
    ds.write_parquet(tmp_path / "rows", backend="inline")
    refused(
        "is the output of 'write_parquet', which is not an attributes job.*attributes=True",
        lambda: ds.with_attributes(tmp_path / "rows"),
    )
    path = scored(tmp_path)
    refused(
        r"has no attribute 'lenght'; did you mean 'length'\?; it has: length",
        lambda: ds.with_attributes(path, ["lenght"]),
    )
    refused(
        "the rows have a column 'id' already; name the attributes with columns=", lambda: ds.with_attributes(path, "id")
    )
    next(path.glob("1*.parquet")).unlink()
    refused(
        "1 output of the .* that 'length' planned at .* missing; run it again",
        lambda: ds.with_attributes(path),
    )


def test_attributes_of_other_data(tmp_path: Path) -> None:
    """Other files, and another version of one: both sides are named, also where only the rows tell."""
    ds = fill(tmp_path / "in")
    path = scored(tmp_path, shard_bytes=256 << 20)
    kept = ds.filter(curate.col("n") < 50, keep_positions=True)
    kept.write_parquet(tmp_path / "kept", backend="inline")
    shutil.copytree(tmp_path / "in", tmp_path / "copy")
    copied = curate.read_json(tmp_path / "copy").using(max_bad_rows="50%")
    refused(rf"{path} has no attributes of {tmp_path}/copy/0.jsonl and 1 more", lambda: copied.with_attributes(path))
    copied.filter(curate.col("n") < 50, keep_positions=True).write_parquet(tmp_path / "other", backend="inline")
    other = curate.read_parquet(tmp_path / "other")
    refused(rf"has no attributes of {tmp_path}/copy/0.jsonl", lambda: other.with_attributes(path), runs=True)
    jsonl(tmp_path / "in/1.jsonl", rows_of(1, seed=7))
    changed = curate.read_json(tmp_path / "in")
    said = (
        r"were made of .*/in/1.jsonl of version (\S+), and the rows are of version (?!\1)\S+; run that job again with"
    )
    refused(said, lambda: changed.with_attributes(path))
    job = Length(shard_bytes=256 << 20)
    made = job.run(input=tmp_path / "in", output=path, backend="inline", redo_stale=True)
    assert made.state == "complete"
    right(curate.read_json(tmp_path / "in").using(max_bad_rows="50%").with_attributes(path).take_all())
    refused(said, lambda: curate.read_parquet(tmp_path / "kept").with_attributes(path), runs=True)


CSV = 'id,text\na,x\nb,xx\nc,"xx\nx"\nd,xxxx\n'


LINES = "x\n\nxx\n"
UNLIKE = [
    ("a.csv", CSV, partial(curate.read_csv, column_names=["id", "text"]), r"column_names=\['id', 'text'\] here.*None"),
    ("a.csv", CSV, partial(curate.read_csv, delimiter=";"), r"delimiter=';' here.*delimiter=','"),
    ("a.tsv", CSV.replace(",", "\t"), partial(curate.read_csv, delimiter=","), r"delimiter=',' here.*delimiter='\\t'"),
    ("a.txt", LINES, partial(curate.read_text, drop_empty_lines=False), "drop_empty_lines=False here.*True"),
    ("a.txt", LINES, partial(curate.read_text, encoding="utf-16"), "encoding='utf-16' here.*encoding='utf-8'"),
    ("a.jsonl", '{"id": "1", "text": "x"}\n', curate.read_binary_files, "format='binary' here.*format='jsonl'"),
]


@pytest.mark.parametrize(("name", "data", "read", "says"), UNLIKE)
def test_files_that_are_read_otherwise(
    name: str, data: str, read: Callable[..., Dataset], says: str, tmp_path: Path
) -> None:
    """Each row would be given the attributes of another one: refused before anything runs, however few rows are asked
    for. What is said again, as the name says it, is no other way."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / name).write_text(data)
    path = scored(tmp_path, id_column="line" if name.endswith(".txt") else "id")
    with pytest.raises(ConfigError, match=f"(?s){says}.*attributes of others; read it as the job did"):
        read(tmp_path / "in").limit(1).with_attributes(path, ["length"])
    if name.endswith(".csv"):
        assert len(curate.read_csv(tmp_path / "in", delimiter=",").with_attributes(path, ["length"]).take_all()) == 4


def test_attributes_of_other_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that the job has neither read nor set aside: the data is read otherwise, in a way that was not foreseen."""
    monkeypatch.setattr("curate.plan.attributes.refuse_other_reading", lambda *_: None)
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.csv").write_text("id,text\n1,a\n2,b\n")
    path = scored(tmp_path)
    ds = curate.read_csv(tmp_path / "in", column_names=["id", "text"]).with_attributes(path, ["length"])
    refused(
        "has the attributes of 2 rows, and 0 were set aside; row 3 of the data is neither: the data is read otherwise",
        lambda: ds,
        runs=True,
    )


def test_rows_whose_places_nobody_knows(tmp_path: Path) -> None:
    """In memory, made by functions, joined, kept in checkpoints, grouped."""
    ds = fill(tmp_path / "in")
    path = scored(tmp_path)
    refused("the rows of range.3. are not read from files", lambda: curate.range(3).with_attributes(path))
    behind = "the places of the rows are not known behind"
    refused(f"{behind} map", lambda: ds.map(lambda row: row).with_attributes(path))
    refused(f"{behind} select_columns", lambda: ds.select_columns(["id"]).with_attributes(path))
    refused(f"{behind} zip", lambda: ds.zip(ds).with_attributes(path))
    refused(f"{behind} checkpoint", lambda: ds.checkpoint(tmp_path / "kept").with_attributes(path))
    refused(f"{behind} ", lambda: ds.groupby("n").count().with_attributes(path))
    refused(f"{behind} ", lambda: ds.join(ds.select_columns(["id"]), on="id", how="inner").with_attributes(path))
    refused(
        r"filter\(keep_positions=True\): the places",
        lambda: ds.map(lambda row: row).filter(curate.col("n") > 1, keep_positions=True),
    )


class Wrong(curate.TextJob):
    """Returns other rows than it was given."""

    version = "1"
    attributes = True
    how: str = curate.param("fewer", help="what is wrong")

    def process(self, batch: pa.Table) -> Any:
        made = self.passed_through(batch).append_column("one", pa.array([1] * len(batch)))
        match self.how:
            case "fewer":
                self.drop(1, "no reason")
                return made.slice(1)
            case "more":
                return [made, made]
            case "nothing":
                return self.passed_through(batch)
            case _:
                return (made.slice(at, 1) for at in range(len(made)))


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("fewer", "returned 59 rows for 60: an attributes job returns a row for each row, in order"),
        ("more", "returned at least 120 rows for 60"),
        ("nothing", "returned no column that its batch does not have: an attributes job adds columns"),
        ("in parts", ""),
    ],
)
def test_a_job_that_writes_no_attributes(how: str, said: str, tmp_path: Path) -> None:
    """A row that is dropped would be null without a reason; rows of several tables are counted together."""
    fill(tmp_path / "in", "parquet")
    summary = Wrong(how=how).run(input=tmp_path / "in", output=tmp_path / "out", backend="inline")
    if said:
        assert summary.state == "failed"
        assert said in summary.failures[0].error
    else:
        assert summary.state == "complete"
        assert curate.read_parquet(tmp_path / "in").with_attributes(tmp_path / "out").sum("one") == FILES * ROWS


class Built(Length):
    """Has a `build` of its own."""

    how: str = curate.param("keeps", help="what it does to the rows of `process`")

    def build(self, ds: curate.Dataset) -> curate.Dataset:
        match self.how:
            case "drops":
                return super().build(ds).filter(curate.col("length") > 3)
            case "sorts":
                return super().build(ds).sort("length")
            case "none":
                return ds
            case _:
                return super().build(ds)


@pytest.mark.parametrize("how", ["keeps", "drops", "sorts", "none"])
def test_a_build_that_keeps_the_rows_of_process(how: str, tmp_path: Path) -> None:
    """Others are refused before anything is written: a row would have the attributes of another one, or none."""
    ds = fill(tmp_path / "in")
    job = Built(how=how)
    if how != "keeps":
        with pytest.raises(ConfigError, match="and it has a `build` that makes other rows of these, or none of them"):
            job.run(input=tmp_path / "in", output=tmp_path / "out", backend="inline")
        assert not (tmp_path / "out").exists()
    else:
        assert job.run(input=tmp_path / "in", output=tmp_path / "out", backend="inline").state == "complete"
        right(ds.with_attributes(tmp_path / "out").take_all())
