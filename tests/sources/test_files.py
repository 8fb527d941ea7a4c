"""Sources are cut as a write cuts them, and cut or whole they give the same rows."""

from __future__ import annotations

import gzip
import json
import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import curate
from curate.dataset.dataset import Dataset
from curate.ledger.manifest import SCHEMA
from curate.pipeline.shard_books import BadRowBudget, ShardBooks
from curate.plan import stages
from curate.plan.nodes import Scan
from curate.sources import files, memory, slice_rows
from curate.sources.files import Files
from curate.sources.protocol import Projection
from curate.sources.split import BUNDLE_BYTES, OPEN_BYTES, bundled, whole
from curate.stores.open import open_store
from curate.tasks.shard import Shard, SliceKind
from curate.units import MIB

ROWS = [{"n": number, "s": f"line {number} " + "é" * (number % 37)} for number in range(400)]


def parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=23)


def jsonl(path: Path, rows: list[dict[str, Any]]) -> None:
    packed(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())


def csv(path: Path, rows: list[dict[str, Any]]) -> None:
    packed(path, ("n,s\n" + "".join(f"{row['n']},{row['s']}\n" for row in rows)).encode())


def text(path: Path, rows: list[dict[str, Any]]) -> None:
    packed(path, "".join(f"{row['s']}\n" for row in rows).encode())


def packed(path: Path, data: bytes) -> None:
    if path.suffix == ".gz":
        data = gzip.compress(data)
    if path.suffix == ".zst":
        data = pa.Codec("zstd").compress(data, asbytes=True)
    path.write_bytes(data)


CASES = [
    ("parquet", parquet, curate.read_parquet, True),
    ("jsonl", jsonl, curate.read_json, True),
    ("jsonl.gz", jsonl, curate.read_json, False),
    ("jsonl.zst", jsonl, curate.read_json, False),
    ("csv", csv, curate.read_csv, False),
    ("csv.gz", csv, curate.read_csv, False),
    ("csv.zst", csv, curate.read_csv, False),
    ("txt", text, curate.read_text, True),
    ("txt.gz", text, curate.read_text, False),
    ("txt.zst", text, curate.read_text, False),
]


def source_of(found: Dataset) -> Files:
    assert isinstance(found._plan, Scan)
    assert isinstance(found._plan.source, Files)
    return found._plan.source


def in_parts(found: Dataset, shard_bytes: int) -> Dataset:
    """Returns the dataset read in shards of that size."""
    return replace(found, _plan=Scan(replace(source_of(found), shard_bytes=shard_bytes)))


def made(folder: Path, ending: str, write: Callable[[Path, Any], None]) -> list[dict[str, Any]]:
    """Writes three files, and returns the rows that they hold."""
    names = ["s"] if write is text else ["n", "s"]
    for number, rows in enumerate((ROWS[:170], ROWS[170:171], ROWS[171:])):
        write(folder / f"{number}.{ending}", rows)
    return [{name: row[name] for name in names} for row in ROWS]


class TestSplit:
    @pytest.mark.ci(5)
    @pytest.mark.quick(10)
    @pytest.mark.parametrize(("ending", "write", "read", "splits"), CASES)
    @pytest.mark.parametrize("shard_bytes", [1, 500, 3000])
    def test_parts_are_the_whole(
        self, tmp_path: Path, ending: str, write: Any, read: Any, splits: bool, shard_bytes: int
    ) -> None:
        """In order, in every format and codec; those that cannot be split are one shard a file."""
        expected = made(tmp_path, ending, write)
        found = read(tmp_path)
        if write is text:
            found = found.rename_columns({"text": "s"})
            parts = in_parts(read(tmp_path), shard_bytes)
            assert parts.rename_columns({"text": "s"}).take_all() == expected
        else:
            parts = in_parts(found, shard_bytes)
            assert parts.take_all() == expected
        assert found.take_all() == expected
        shards = [piece.data for piece in source_of(parts).pieces()]
        assert (len(shards) > 3) == splits
        assert {shard.kind for shard in shards} >= {SliceKind.WHOLE} or splits

    @pytest.mark.parametrize(("ending", "write", "read", "splits"), CASES)
    def test_shards_are_those_of_a_write(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str, write: Any, read: Any, splits: bool
    ) -> None:
        """With its ids, slices and sizes: so a row has one place, wherever it is read."""
        (tmp_path / "in").mkdir()
        made(tmp_path / "in", ending, write)
        monkeypatch.setattr(stages, "SHARD_BYTES", 1500)
        assert read(tmp_path / "in").write_parquet(tmp_path / "out", backend="inline").state == "complete"
        plan = pa.concat_tables(
            [pq.read_table(part) for part in sorted((tmp_path / "out/_curate/plan").glob("*.parquet"))]
        ).to_pylist()
        shards = [piece.data for piece in source_of(in_parts(read(tmp_path / "in"), 1500)).pieces()]
        assert [(one.id, one.uri, one.kind, one.start, one.stop, one.size_bytes) for one in shards] == [
            (row["id"], row["uri"], row["kind"], row["start"], row["stop"], row["size_bytes"]) for row in plan
        ]
        assert (len(shards) > 3) == splits
        assert set(plan[0]) == set(SCHEMA.names)

    def test_a_filter_prunes_within_its_shard(self, tmp_path: Path) -> None:
        """Row groups of other shards are not read twice."""
        parquet(tmp_path / "a.parquet", ROWS)
        expected = [row for row in ROWS if 50 <= row["n"] < 120]
        found = in_parts(curate.read_parquet(tmp_path), 1000).filter((pc.field("n") >= 50) & (pc.field("n") < 120))
        assert found.take_all() == expected

    def test_batches_do_not_cross_shards(self, tmp_path: Path) -> None:
        """Of one file, or of several that share a task."""
        expected = made(tmp_path, "parquet", parquet)
        for shard_bytes in (1000, 10 * MIB):
            found = in_parts(curate.read_parquet(tmp_path), shard_bytes)
            source = source_of(found)
            sizes = []
            for piece in source.pieces():
                tables = source.read(piece.data, Projection(), 7, ShardBooks(BadRowBudget()), open_store)
                sizes.append(sum(map(len, tables)))
            seen: list[int] = []
            rows = found.map_batches(lambda batch, seen=seen: seen.append(len(batch)) or batch, batch_size=7).take_all()
            assert rows == expected
            assert seen == [size for rows in sizes for size in [7] * (rows // 7) + [rows % 7] * (rows % 7 > 0)]

    def test_a_broken_file_is_told_when_it_is_read(self, tmp_path: Path) -> None:
        """Large enough to be split or not; the files before it are read."""
        parquet(tmp_path / "0.parquet", ROWS)
        (tmp_path / "1.parquet").write_bytes(b"PAR1" + b"x" * 5000)
        rows = in_parts(curate.read_parquet(tmp_path), 1000).iter_rows()
        assert next(rows)["n"] == 0
        with pytest.raises(curate.CorruptInput, match=r"1.parquet: not a whole Parquet file"):
            list(rows)


class TestBundles:
    @given(st.lists(st.integers(0, 3 * BUNDLE_BYTES), max_size=200))
    def test_neighbours_in_order_up_to_a_size(self, sizes: list[int]) -> None:
        """Every shard once; none together above the size; and none apart that would have fitted, but at the start."""
        shards = [whole(f"{number}", f"{number}", size, "") for number, size in enumerate(sizes)]
        bundles = list(bundled(shards, lambda shard: shard.size_bytes))
        assert [shard for bundle in bundles for shard in bundle] == shards
        assert all(bundles)
        for number, bundle in enumerate(bundles):
            weight = sum(shard.size_bytes + OPEN_BYTES for shard in bundle)
            most = min(BUNDLE_BYTES, OPEN_BYTES * 2 ** (number // 2))
            assert weight <= most or len(bundle) == 1
            if number + 1 < len(bundles):
                assert weight + bundles[number + 1][0].size_bytes + OPEN_BYTES > most

    @pytest.mark.slow
    def test_many_small_files_share_a_task(self, tmp_path: Path) -> None:
        """Of a thousand files, the first two are read alone, and most are read a hundred at a time."""
        for number in range(1000):
            (tmp_path / f"{number:04d}.txt").write_text(f"{number}\n")
        found = curate.read_text(tmp_path)
        sizes = [len(bundle) for bundle in source_of(found).bundles()]
        assert sizes[:2] == [1, 1]
        assert sum(sizes) == 1000
        assert len(sizes) < 30
        assert [row["text"] for row in found.take_all()] == [f"{number}" for number in range(1000)]

    def test_a_limit_counts_across_the_files_of_a_task(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """What is behind it in the same task is not read."""
        for number in range(100):
            jsonl(tmp_path / f"{number:03d}.jsonl", ROWS[number : number + 1])
        opened: list[str] = []
        whole_read = slice_rows.read

        def read(file: Any, *rest: Any) -> Iterator[Any]:
            opened.append(file.uri)
            return whole_read(file, *rest)

        monkeypatch.setattr(slice_rows, "read", read)
        assert curate.read_json(tmp_path).take(20) == ROWS[:20]
        assert len(opened) < 50

    def test_tasks_are_given_no_listing(self, tmp_path: Path) -> None:
        """What is sent to workers does not grow with the number of files, nor with tables in memory."""
        for number in range(200):
            (tmp_path / f"{number:04d}.txt").write_text("x\n")
        assert len(pickle.dumps(source_of(curate.read_text(tmp_path)).bare())) < 2000
        table = pa.table({"n": range(100_000)})
        plan = curate.from_arrow(table)._plan
        assert isinstance(plan, Scan)
        assert len(pickle.dumps(plan.source.bare())) < 2000


class TestMemory:
    def test_large_tables_are_several_pieces(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each travels alone: a slice does not bring its table along."""
        monkeypatch.setattr(memory, "TABLE_BYTES", 8000)
        tables = [pa.table({"n": range(rows)}, pa.schema([("n", pa.int64())])) for rows in (5000, 0, 3)]
        found = curate.from_arrow(tables)
        assert [row["n"] for row in found.take_all()] == [*range(5000), *range(3)]
        plan = found._plan
        assert isinstance(plan, Scan)
        pieces = list(plan.source.pieces())
        assert [len(piece.data) for piece in pieces] == [1000] * 5 + [3]
        assert max(len(pickle.dumps(piece)) for piece in pieces) < 10_000
        assert [piece.id for piece in pieces[:2]] == [
            "part-00000-of-00006",
            "part-00001-of-00006",
        ]

    def test_a_range_counts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Over the edges of its pieces."""
        monkeypatch.setattr(memory, "RANGE_ROWS", 7)
        assert [row["id"] for row in curate.range(30).take_all()] == [*range(30)]


def test_a_shard_is_named_in_errors(tmp_path: Path) -> None:
    """By its file, and by its part of it."""
    [piece] = source_of(curate.read_json(made_one(tmp_path))).pieces()
    assert piece.label == str(tmp_path / "a.jsonl")
    part = Shard("a.part-00000-of-00002", "/x/a.jsonl", SliceKind.BYTES, 0, 5000, 5000, 10_000, "")
    assert files.label(part) == "/x/a.jsonl, bytes 0 to 5,000,"


def made_one(folder: Path) -> Path:
    jsonl(folder / "a.jsonl", ROWS[:1])
    return folder
