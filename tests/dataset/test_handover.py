"""Rows that other libraries are handed are the rows, and what others have becomes a dataset."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from datetime import date, datetime
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import curate
from curate.errors import ConfigError

duckdb = pytest.importorskip("duckdb")
pandas = pytest.importorskip("pandas")
polars = pytest.importorskip("polars")
datasets = pytest.importorskip("datasets")

ROWS = [
    {"id": 1, "text": "ä", "list": [[1], None, []], "st": {"a": None, "b": [{"c": 1.5}]}, "none": None, "raw": b"\x00"},
    {"id": None, "text": None, "list": None, "st": None, "none": None, "raw": None},
    {"id": -(2**62), "text": "", "list": [], "st": {"a": None, "b": None}, "none": None, "raw": b""},
]
TIMES = pa.table({"on": [date(2024, 2, 29), None], "at": pa.array([datetime(2024, 1, 1), None], pa.timestamp("us"))})


def by_duckdb(ds: Any) -> list[dict[str, Any]]:
    found = duckdb.from_arrow(ds)
    return [dict(zip(found.columns, row, strict=True)) for row in found.fetchall()]


READERS: dict[str, Callable[[Any], list[dict[str, Any]]]] = {
    "pyarrow": lambda ds: pa.table(ds).to_pylist(),
    "polars": lambda ds: polars.DataFrame(ds).to_dicts(),
    "duckdb": by_duckdb,
    "pandas": lambda ds: pandas.DataFrame.from_arrow(ds).convert_dtypes(dtype_backend="pyarrow").to_dict("records"),
    "datasets": lambda ds: list(ds.to_huggingface()),
    "datasets, streaming": lambda ds: list(ds.to_huggingface(streaming=True)),
}


def plain(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns rows as Python has them: pandas has arrays, and values of its own for null."""

    def value(one: Any) -> Any:
        if isinstance(one, dict):
            return {name: value(each) for name, each in one.items()}
        if hasattr(one, "tolist") and not isinstance(one, bytes):
            one = one.tolist()
        if isinstance(one, list):
            return [value(each) for each in one]
        return None if one is pandas.NA or one is pandas.NaT or one != one else one

    return [{name: value(one) for name, one in row.items()} for row in rows]


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("stored", [False, True])
def test_everyone_reads_the_same_rows(reader: str, stored: bool, tmp_path: Path) -> None:
    """Nested and null types included; from memory, and from what was written."""
    ds = curate.from_items(ROWS)
    if stored:
        ds.write_parquet(tmp_path / "out", backend="inline")
        ds = curate.read_parquet(tmp_path / "out")
    assert plain(READERS[reader](ds)) == ROWS
    assert plain(READERS[reader](curate.from_arrow(TIMES))) == TIMES.to_pylist()


@pytest.mark.parametrize("reader", READERS)
def test_no_row(reader: str) -> None:
    """A stream without rows has its columns."""
    assert READERS[reader](curate.range(3).filter(curate.col("id") > 5)) == []
    made = curate.range(3).filter(curate.col("id") > 5).map_batches(lambda batch: batch.append_column("n", batch["id"]))
    assert READERS[reader](made) == []


class Endless(curate.Datasource):
    """More rows than anyone has time for."""

    ended: ClassVar[list[int]] = []

    def identity(self) -> str:
        return "endless"

    def schema(self) -> pa.Schema:
        return pa.schema([("id", pa.int64())])

    def shards(self) -> list[curate.SourceShard]:
        return [curate.SourceShard("all", 1, None)]

    def read(self, shard: curate.SourceShard) -> Iterator[pa.Table]:
        del shard
        number = 0
        try:
            while True:
                yield pa.table({"id": [number]})
                number += 1
        finally:
            self.ended.append(number)


@pytest.mark.ci(1)
@pytest.mark.slow
@pytest.mark.quick(1)
@pytest.mark.parametrize("known", [False, True])
def test_a_reader_that_stops_ends_the_run(known: bool) -> None:
    """Rows are made as it asks for them; where the schema is known, none before that."""
    Endless.ended.clear()
    ds = curate.read_datasource(Endless()).using(block_bytes=1 << 10)
    ds = (
        ds.with_column("n", curate.col("id"))
        if known
        else ds.map_batches(lambda batch: batch.append_column("n", batch["id"]))
    )
    schema = pa.schema([("id", pa.int64()), ("n", pa.int64())])
    assert pa.RecordBatchReader.from_stream(ds).schema == schema
    assert bool(Endless.ended) is not known
    Endless.ended.clear()
    reader = pa.RecordBatchReader.from_stream(ds)
    assert reader.read_next_batch().slice(0, 1).to_pylist() == [{"id": 0, "n": 0}]
    assert not Endless.ended
    del reader
    assert len(Endless.ended) == 1
    assert duckdb.from_arrow(ds).limit(2).fetchall() == [(0, 0), (1, 1)]
    assert polars.DataFrame(ds.limit(3))["n"].to_list() == [0, 1, 2]


def test_memory_is_bounded() -> None:
    """The rows of a stream are many times what is held of them at once."""
    allocated: list[int] = []
    ds = curate.range(40_000_000).using(block_bytes=1 << 20)
    gc.collect()
    before = pa.total_allocated_bytes()
    rows = 0
    for batch in pa.RecordBatchReader.from_stream(ds):
        rows += batch.num_rows
        allocated.append(pa.total_allocated_bytes() - before)
    assert rows == 40_000_000
    assert max(allocated) < 32 << 20


@pytest.mark.parametrize("reader", READERS)
def test_errors_come_through_with_their_text(reader: str) -> None:
    """Whatever class the reader's own error has."""

    def fails(row: dict[str, Any]) -> dict[str, Any]:
        if row["id"] == 3:
            raise ValueError("row three is bad")
        return row

    with pytest.raises(Exception, match="row three is bad"):
        READERS[reader](curate.range(9).map(fails))


def test_rows_that_do_not_fit_the_first_ones() -> None:
    """A stream has one schema: what is wrong is said, with both types."""

    def made(batch: pa.Table) -> pa.Table:
        return pa.table({"n": pa.array(["x"])}) if batch["id"][0].as_py() else pa.table({"n": [1]})

    two = curate.from_arrow([pa.table({"id": [0]}), pa.table({"id": [1]})]).map_batches(made)
    with pytest.raises(Exception, match="'n' is string, expected int64"):
        pa.table(two)


def test_a_type_that_hugging_face_does_not_have() -> None:
    """Refused with the columns."""
    odd = pa.table({"n": pa.array([None], pa.month_day_nano_interval())})
    with pytest.raises(
        ConfigError, match=r"to_huggingface: the rows have \(n: month_day_nano_interval\), and datasets"
    ):
        curate.from_arrow(odd).to_huggingface()


# From others


def test_from_polars_and_duckdb() -> None:
    """Rows as they are there, nested and null types included."""
    frame = polars.DataFrame(ROWS)
    assert curate.from_polars(frame).take_all() == ROWS
    assert curate.from_polars([frame, frame]).count() == 6
    coloured = polars.DataFrame({"c": polars.Series(["u", None, "u"], dtype=polars.Categorical)})
    assert [row["c"] for row in curate.from_polars(coloured).take_all()] == ["u", None, "u"]
    assert curate.from_duckdb(duckdb.from_arrow(curate.from_items(ROWS))).take_all() == ROWS
    assert curate.from_duckdb(duckdb.sql("select 1 as n union all select null")).take_all() == [{"n": 1}, {"n": None}]


def test_nothing_is_a_dataset_too() -> None:
    """A frame, a relation and a dataset without a row have their columns."""
    made = [
        curate.from_polars(polars.DataFrame(schema={"n": polars.Int64})),
        curate.from_duckdb(duckdb.sql("select 1::bigint as n where false")),
        curate.from_huggingface(datasets.Dataset.from_dict({"n": [1]}).select([])),
        curate.from_polars([polars.DataFrame({"n": [1]}).clear()] * 2),
    ]
    for ds in made:
        assert ds.schema() == pa.schema({"n": pa.int64()})
        assert ds.take_all() == []
    assert made[0].union(curate.from_polars(polars.DataFrame({"n": [1]}))).count() == 1


def test_large_tables_are_several_shards(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The same ones each time: a run goes on."""
    monkeypatch.setattr("curate.dataset.read.libraries.PIECE_BYTES", 80)
    ds = curate.from_polars(polars.DataFrame({"n": list(range(25))}))
    assert (ds.num_blocks(), [row["n"] for row in ds.take_all()]) == (3, list(range(25)))
    assert ds.write_parquet(tmp_path / "out", backend="inline").done == 3
    again = curate.from_polars(polars.DataFrame({"n": list(range(25))}))
    assert again.write_parquet(tmp_path / "out", backend="inline").skipped == 3


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda: curate.from_polars(polars.LazyFrame()),
            r"found polars.LazyFrame; write curate.from_polars\(df.collect\(\)\)",
        ),
        (lambda: curate.from_polars(pandas.DataFrame()), r"found pandas.DataFrame; write curate.from_pandas\(df\)"),
        (
            lambda: curate.from_polars(polars.DataFrame({"o": polars.Series([print, {1}], dtype=polars.Object)})),
            "objects",
        ),
        (
            lambda: curate.from_polars(polars.DataFrame({"w": polars.Series([[1]], dtype=polars.List(polars.Int128))})),
            "cast",
        ),
        (lambda: curate.from_duckdb("select 1"), r"found str; write curate.from_duckdb\(duckdb.sql\(...\)\)"),
        (
            lambda: curate.from_huggingface([1]),
            r"takes a datasets.Dataset, found list; write curate.from_items\(rows\)",
        ),
        (lambda: curate.from_huggingface("imdb"), r"write curate.read_huggingface\('imdb', split='train'\)"),
        (
            lambda: curate.from_huggingface(datasets.DatasetDict(train=datasets.Dataset.from_dict({"n": [1]}))),
            "found DatasetDict; choose one of its splits: 'train'",
        ),
        (
            lambda: curate.from_huggingface(datasets.Dataset.from_dict({"n": [1]}).to_iterable_dataset()),
            r"found datasets.IterableDataset; write curate.read_huggingface\('org/name', split='train'\)",
        ),
    ],
)
def test_what_they_do_not_take(call: Callable[[], Any], said: str) -> None:
    """Says what to write."""
    with pytest.raises(ConfigError, match=said):
        call()


def test_there_and_back_with_hugging_face(tmp_path: Path) -> None:
    """Rows that were selected, shuffled or read from disk are those that are seen there, in their order."""
    there = curate.from_items(ROWS).to_huggingface()
    assert curate.from_huggingface(there).take_all() == ROWS
    assert curate.from_huggingface(there.select([2, 0])).take_all() == [ROWS[2], ROWS[0]]
    there.save_to_disk(tmp_path / "saved")
    loaded = datasets.load_from_disk(tmp_path / "saved").with_format("numpy")
    assert curate.from_huggingface(loaded).take_all() == ROWS


# Repositories


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Path]:
    """The Hub, whose datasets are folders of this machine."""
    import fsspec
    from fsspec.implementations.dirfs import DirFileSystem
    from fsspec.implementations.local import LocalFileSystem
    from fsspec.registry import _registry

    root = tmp_path / "hub"
    root.mkdir()

    class Hub(DirFileSystem):  # type: ignore[misc]  # fsspec has no types
        protocol = "hf"

        def __init__(self, **options: Any) -> None:
            super().__init__(str(root), LocalFileSystem(), **options)

        @classmethod
        def _strip_protocol(cls, path: str) -> str:
            return str(path).removeprefix("hf://").strip("/")

    before = _registry.get("hf")
    fsspec.register_implementation("hf", Hub, clobber=True)
    yield root / "datasets"
    _registry.pop("hf")
    if before is not None:
        _registry["hf"] = before


def fill(folder: Path, *names: str) -> Path:
    """Makes files of one row each, that says its name."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".parquet"):
            pq.write_table(pa.table({"name": [name]}), path)
        elif ".jsonl" in name:
            path.write_text(f'{{"name": "{name}"}}\n')
        else:
            path.write_text(f"name\n{name}\n")
    return folder


def names_of(ds: curate.Dataset) -> list[str]:
    return [row["name"] for row in ds.take_all()]


def test_a_repository_of_the_hub(hub: Path, tmp_path: Path) -> None:
    """Its files are inputs: a write of them resumes; a revision is part of the path."""
    fill(hub / "org/name", "data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet", ".gitattributes")
    fill(hub / "org/name@refs%2Fpr%2F1", "test.jsonl")
    ds = curate.read_huggingface("org/name", split="train")
    assert names_of(ds) == ["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"]
    assert ds.input_files()[0] == "hf://datasets/org/name/data/train-00000-of-00002.parquet"
    assert ds.write_parquet(tmp_path / "out", backend="inline").done == 2
    again = curate.read_huggingface("org/name", columns=["name"])
    assert names_of(again) == names_of(ds)
    assert names_of(curate.read_huggingface("org/name", revision="refs/pr/1")) == ["test.jsonl"]


README = """---
license: mit
configs:
- config_name: small
  default: true
  data_files:
  - split: train
    path: ["a/*.jsonl", "b[1].jsonl"]
  - {split: held-out, path: c.jsonl}
- config_name: all
  data_files: "**/*.jsonl"
- config_name: folder
  data_dir: a
---
# Words
"""


@pytest.mark.parametrize(
    ("files", "wanted", "found"),
    [
        (["data/train-00000-of-00001.parquet", "x.parquet"], {"split": "train"}, ["data/train-00000-of-00001.parquet"]),
        (["data/mine-0-of-1.parquet", "data/train-0-of-1.parquet"], {"split": "mine"}, ["data/mine-0-of-1.parquet"]),
        (["train/1.csv", "train/0.csv", "dev/0.csv"], {"split": "train"}, ["train/0.csv", "train/1.csv"]),
        (["train/1.csv", "dev/0.csv"], {"split": "validation"}, ["dev/0.csv"]),
        (["my-train.jsonl", "eval_part1.jsonl", "constraint.jsonl"], {"split": "test"}, ["eval_part1.jsonl"]),
        (["en/a.jsonl", "de/b.jsonl", "_x/c.jsonl"], {}, ["de/b.jsonl", "en/a.jsonl"]),
        (["README.md", "a/1.jsonl", "a/2.jsonl", "c.jsonl"], {"split": "train"}, ["a/1.jsonl", "a/2.jsonl"]),
        (["README.md", "a/1.jsonl", "c.jsonl"], {"split": "held-out"}, ["c.jsonl"]),
        (["README.md", "a/1.jsonl", "c.jsonl"], {"config": "all"}, ["a/1.jsonl", "c.jsonl"]),
        (["README.md", "a/1.jsonl", "c.jsonl"], {"config": "folder"}, ["a/1.jsonl"]),
        (["a[1]/*.jsonl", "a1/x.csv.txt"], {"split": "train"}, []),
    ],
)
def test_which_files_are_a_split(files: list[str], wanted: dict[str, str], found: list[str], tmp_path: Path) -> None:
    """By README.md, or by their names, as the Hub says."""
    fill(tmp_path, *(one for one in files if one != "README.md"))
    if "README.md" in files:
        (tmp_path / "README.md").write_text(README)
    if not found:
        with pytest.raises(ConfigError, match=r"several formats: text .* and jsonl .*; read them"):
            curate.read_huggingface(tmp_path, **wanted)
        return
    assert names_of(curate.read_huggingface(tmp_path, **wanted)) == found


@pytest.mark.parametrize(
    ("path", "wanted", "said"),
    [
        ("org/name", {}, "leaves out the split; there are: train, test"),
        ("org/name", {"split": "trian"}, r"has no split 'trian'; did you mean 'train'\?; there are: train, test"),
        ("org/none", {"split": "train"}, "hf://datasets/org/none does not exist, or is empty"),
        ("org/other", {}, "has no file that curate reads"),
        ("org/told", {"config": "tiny"}, "config='tiny': README.md names small, all, folder"),
        ("org/told", {"split": "train"}, r"README.md says that 'train' is a/\*.jsonl, b\[1\].jsonl, and no file"),
        ("org/broken", {}, "the YAML at its beginning cannot be read"),
        ("a/b/c", {}, r"expected 'org/name', a folder such as './name', or a URI"),
        ("./x", {"revision": "main"}, "a folder or a URI has none"),
    ],
)
def test_repositories_that_are_refused(hub: Path, path: str, wanted: dict[str, str], said: str) -> None:
    """With what there is."""
    fill(hub / "org/name", "train.jsonl", "test.jsonl")
    fill(hub / "org/other", "x.bin", "README.md")
    fill(hub / "org/told", "c.jsonl")
    (hub / "org/told/README.md").write_text(README)
    fill(hub / "org/broken", "c.jsonl")
    (hub / "org/broken/README.md").write_text("---\nconfigs: [\n---\n")
    with pytest.raises(ConfigError, match=said):
        curate.read_huggingface(path, **wanted)
