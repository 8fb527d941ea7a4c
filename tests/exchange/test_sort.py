"""Sort, shuffle and repartition, through files: the same as plain Python, and as even as chance allows."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from functools import cmp_to_key, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import curate
from curate.backends.inline import InlineBackend
from curate.dataset.dataset import Dataset
from curate.errors import ConfigError
from curate.exchange.run_file import RunWriter
from curate.graph.entry import dry_run, run
from curate.ledger.summary import RunState
from curate.objects.record import OutputFormat
from curate.plan import rewrites, stages
from curate.reduce import ranges
from curate.resume.options import RunOptions
from curate.runtime.protocol import BackendEvent
from curate.stage import program
from tests.support.examples import examples
from tests.support.fakes import FakeClock
from tests.support.harness import balanced

SCHEMA = pa.schema([("n", pa.int64()), ("x", pa.float64()), ("s", pa.string()), ("id", pa.int64())])
Row = dict[str, Any]

VALUES = {
    "n": st.none() | st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1),
    "x": st.none() | st.sampled_from([float("nan"), 0.0, -0.0, math.inf, -math.inf, 1.5]) | st.floats(),
    "s": st.none() | st.sampled_from(["", "a", "é", "z", "\U0001f600", "\uffff"]) | st.text(max_size=3),
}
ROWS = st.lists(st.fixed_dictionaries(VALUES), max_size=12)
FILES = st.lists(ROWS, min_size=1, max_size=5)
KEYS = st.lists(
    st.tuples(st.sampled_from(["n", "x", "s"]), st.booleans()), min_size=1, max_size=3, unique_by=lambda k: k[0]
)


@pytest.fixture(autouse=True, scope="module")
def _small() -> Any:
    """Several map shards, outputs and pages of what are a few rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rewrites, "LEAST_MAP_BYTES", 64)
        patch.setattr(ranges, "LEAST_BYTES", 200)
        patch.setattr(program, "RunWriter", partial(RunWriter, chunk_bytes=700, page_bytes=90))
        yield


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Makes an empty folder each time."""
    return lambda: tmp_path_factory.mktemp("place")


def over(folder: Path, files: Sequence[Sequence[Row]]) -> Dataset:
    """Returns rows as files, with their number among all as `id`."""
    number = 0
    for name, rows in enumerate(files):
        numbered = [{**row, "id": number + k} for k, row in enumerate(rows)]
        number += len(rows)
        pq.write_table(pa.Table.from_pylist(numbered, schema=SCHEMA), folder / f"{name:03d}.parquet")
    return curate.read_parquet(folder)


def compared(keys: Sequence[tuple[str, bool]], nulls: str) -> Any:
    """Returns the order that `sort` promises: values, NaN, nulls (or the other way round), whichever way a key goes."""

    def place(value: Any) -> int:
        outer = 2 if value is None else 1 if isinstance(value, float) and math.isnan(value) else 0
        return outer if nulls == "at_end" else -outer

    def compare(one: Row, other: Row) -> int:
        for name, descending in keys:
            left, right = one[name], other[name]
            if place(left) != place(right):
                return place(left) - place(right)
            if place(left) == 0 and left != right:
                return (-1 if left < right else 1) * (-1 if descending else 1)
        return 0

    return cmp_to_key(compare)


def ids(tables: pa.Table | Sequence[Row]) -> list[int]:
    return tables["id"].to_pylist() if isinstance(tables, pa.Table) else [row["id"] for row in tables]


def parts(out: Path) -> list[pa.Table]:
    """Returns what was written, output by output."""
    return [pq.read_table(path) for path in sorted(out.glob("part-*"))]


def written(ds: Dataset, out: Path, backend: Any = None, **options: Any) -> list[pa.Table]:
    spec = stages.stage_of(ds._plan, OutputFormat.PARQUET, None)
    ended = run(
        spec,
        RunOptions(inputs=spec.inputs, output=str(out), backend="inline", **options),
        backend=backend,
        clock=FakeClock(),
    )
    assert ended.state is RunState.COMPLETE, ended.failures
    assert balanced(ended.as_dict()["rows"])
    assert ended.books.rows_out == sum(table.num_rows for table in parts(out))
    return parts(out)


class TestSort:
    @pytest.mark.slow
    @settings(
        max_examples=examples(30), suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
    )
    @given(files=FILES, keys=KEYS, nulls=st.sampled_from(["at_end", "at_start"]))
    def test_as_plain_python_does(
        self, places: Any, files: list[list[Row]], keys: list[tuple[str, bool]], nulls: str
    ) -> None:
        """Nulls, NaN, both zeros, any text, keys that go either way, files without a row: a stable sort of the list of
        all rows, in files as in memory."""
        folder, out = places(), places()
        ds = over(folder, files).sort([name for name, _ in keys], [way for _, way in keys], nulls=nulls)
        rows = [{**row, "id": k} for k, row in enumerate(row for rows in files for row in rows)]
        expected = ids(sorted(rows, key=compared(keys, nulls)))
        assert ids([row for table in written(ds, out) for row in table.to_pylist()]) == expected
        assert ids(ds.take_all()) == expected

    def test_a_heavy_key_goes_on_in_the_next_output(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Nearly all rows have one key: no output is larger than twice another, and rows stay as they came."""
        monkeypatch.setattr(ranges, "LEAST_BYTES", 1500)
        files = [
            [{"n": 7 if k % 20 else number * 100 + k, "x": 0.0, "s": "x" * 10} for k in range(60)]
            for number in range(5)
        ]
        (tmp_path / "in").mkdir()
        made = written(over(tmp_path / "in", files).sort("n"), tmp_path / "out")
        assert len(made) > 5
        sizes = [table.num_rows for table in made]
        assert max(sizes) < 2 * min(sizes)
        assert sum(7 in table["n"].to_pylist() for table in made) > 4
        heavy = [row["id"] for table in made for row in table.to_pylist() if row["n"] == 7]
        assert heavy == sorted(heavy)

    @pytest.mark.parametrize("rows", [0, 1])
    def test_hardly_a_row(self, tmp_path: Path, rows: int) -> None:
        """One output, with the columns that there are."""
        files: list[list[Row]] = [[], [{"n": 1, "x": None, "s": "a"}][:rows], []]
        (tmp_path / "in").mkdir()
        ds = over(tmp_path / "in", files).sort("n")
        (table,) = written(ds, tmp_path / "out")
        assert (table.num_rows, table.schema.names) == (rows, SCHEMA.names)
        assert ds.count() == rows

    def test_what_is_dropped_before_it(self, tmp_path: Path) -> None:
        """All rows, so that there is nothing to sort."""
        (tmp_path / "in").mkdir()
        ds = over(tmp_path / "in", [[{"n": 1, "x": 0.5, "s": "a"}]] * 3)
        assert ds.filter(pc.field("n") > 5, reason="small").sort("n").take_all() == []
        assert sum(one.num_rows for one in written(ds.filter(pc.field("n") > 5).sort("n"), tmp_path / "out")) == 0

    @pytest.mark.slow
    def test_after_another_exchange(self, tmp_path: Path) -> None:
        """Of two sorts the last one decides, and the one before it among equal keys. A shuffle before changes those
        alone."""
        rng = random.Random(1)
        files = [[{"n": rng.randrange(5), "x": float(rng.randrange(4)), "s": "a"} for _ in range(40)] for _ in range(4)]
        (tmp_path / "in").mkdir()
        ds = over(tmp_path / "in", files)
        rows = [{**row, "id": k} for k, row in enumerate(row for rows in files for row in rows)]
        twice = ds.sort("x", descending=True).sort("n")
        expected = ids(sorted(rows, key=lambda row: (row["n"], -row["x"])))
        assert [k for table in written(twice, tmp_path / "out") for k in ids(table)] == expected
        assert ids(twice.take_all()) == expected
        mixed = ds.random_shuffle(seed=1).sort("n").take_all()
        assert [row["n"] for row in mixed] == sorted(row["n"] for row in rows)
        assert ids(mixed) != expected
        assert sorted(ids(mixed)) == list(range(len(rows)))

    def test_over_a_union_of_unlike_parts(self, tmp_path: Path) -> None:
        """Files of two formats, with other steps: the rows of the first part come first among equal keys."""
        (tmp_path / "a").mkdir()
        (tmp_path / "b").mkdir()
        first = over(tmp_path / "a", [[{"n": k % 3, "x": None, "s": "a"} for k in range(20)]] * 2).select_columns(
            ["n", "id"]
        )
        (tmp_path / "b" / "0.jsonl").write_text("".join(f'{{"n": {k % 4}, "id": {100 + k}}}\n' for k in range(30)))
        ds = first.union(curate.read_json(tmp_path / "b").filter(pc.field("n") != 1)).sort("n")
        rows = [*first.take_all(), *({"n": k % 4, "id": 100 + k} for k in range(30) if k % 4 != 1)]
        expected = ids(sorted(rows, key=lambda row: row["n"]))
        assert [k for table in written(ds, tmp_path / "out") for k in ids(table)] == expected
        assert ids(ds.take_all()) == expected

    def test_over_a_limit(self, tmp_path: Path) -> None:
        """The first rows of the input are sorted, and no others."""
        (tmp_path / "in").mkdir()
        files = [[{"n": -k - 10 * number, "x": None, "s": "a"} for k in range(10)] for number in range(4)]
        ds = over(tmp_path / "in", files).limit(25).sort("n")
        assert [k for table in written(ds, tmp_path / "out") for k in ids(table)] == list(range(24, -1, -1))
        assert ids(ds.take_all()) == list(range(24, -1, -1))

    def test_keys_of_other_types_in_two_files(self, tmp_path: Path) -> None:
        """Have no order together: refused before anything runs or is written, naming the file and both types."""
        (tmp_path / "in").mkdir()
        pq.write_table(pa.table({"n": [1, 2]}), tmp_path / "in" / "0.parquet")
        pq.write_table(pa.table({"n": ["a", "b"]}), tmp_path / "in" / "1.parquet")
        spec = stages.stage_of(curate.read_parquet(tmp_path / "in").sort("n")._plan, OutputFormat.PARQUET, None)
        options = RunOptions(inputs=spec.inputs, output=str(tmp_path / "out"), backend="inline")
        with pytest.raises(ConfigError, match=r"the key 'n' is read as int64, and it is string in .*1\.parquet"):
            run(spec, options, clock=FakeClock())
        with pytest.raises(ConfigError, match="keys of several types cannot be sorted"):
            dry_run(spec, options)
        assert not (tmp_path / "out").exists()

    @pytest.mark.parametrize(("key", "message"), [("tag", "did you mean 'tags'"), ("tags", "list")])
    def test_a_key_that_cannot_be(self, tmp_path: Path, key: str, message: str) -> None:
        """Is refused where it is said."""
        (tmp_path / "in").mkdir()
        pq.write_table(pa.table({"n": [1], "tags": [["a"]]}), tmp_path / "in" / "0.parquet")
        with pytest.raises(ConfigError, match=message):
            curate.read_parquet(tmp_path / "in").sort(key)


class AnyOrder(InlineBackend):
    """Works on a random one of its tasks at each poll, and says that it has other CPUs: shards end in any order."""

    def __init__(self, seed: int, slots: int) -> None:
        super().__init__()
        self._rng = random.Random(seed)
        self._slots = slots

    def slots(self) -> int:
        return self._slots

    def poll(self, timeout_s: float) -> list[BackendEvent]:
        self._queue.rotate(self._rng.randrange(max(1, len(self._queue))))
        return super().poll(timeout_s)


class TestShuffle:
    @pytest.fixture
    def ds(self, tmp_path: Path) -> Dataset:
        (tmp_path / "in").mkdir()
        return over(
            tmp_path / "in", [[{"n": k, "x": None, "s": "a"} for k in range(rows)] for rows in (50, 0, 7, 90, 33, 1)]
        )

    @pytest.mark.slow
    @pytest.mark.parametrize("how", ["shuffle", "sort", "repartition"])
    def test_the_same_bytes_whatever_the_schedule(self, ds: Dataset, tmp_path: Path, how: str) -> None:
        """One shard a task or many, one task in flight or all, in any order, on any number of CPUs."""
        made = {
            "shuffle": ds.random_shuffle(seed=4, num_shards=5),
            "sort": ds.sort("n"),
            "repartition": ds.filter(pc.field("n") != 3).repartition(4),
        }[how]
        written(made, tmp_path / "plain")
        expected = {path.name: path.read_bytes() for path in (tmp_path / "plain").glob("part-*")}
        assert len(expected) > 3
        for seed in range(6):
            out = tmp_path / f"out-{seed}"
            slots, target = (1, 2, 3, 8, 32, 100)[seed], (0.001, 120.0)[seed % 2]
            written(made, out, AnyOrder(seed, slots), max_in_flight=(1, 64)[seed % 2], target_task_s=target)
            assert {path.name: path.read_bytes() for path in out.glob("part-*")} == expected, seed

    @pytest.mark.slow
    def test_all_rows_once_in_another_order(self, ds: Dataset, tmp_path: Path) -> None:
        """By another seed, another one; by the same one, the same, written or consumed."""
        rows = sum((50, 0, 7, 90, 33, 1))
        orders = []
        for seed in range(4):
            order = [k for table in written(ds.random_shuffle(seed=seed), tmp_path / f"{seed}") for k in ids(table)]
            assert sorted(order) == list(range(rows))
            assert ids(ds.random_shuffle(seed=seed).take_all()) == order
            orders.append(tuple(order))
        assert len(set(orders)) == 4

    @pytest.mark.slow
    @pytest.mark.quick(3)
    @pytest.mark.parametrize("count", [1, 4, 7, 181, 200])
    def test_equal_parts(self, ds: Dataset, tmp_path: Path, count: int) -> None:
        """As many outputs as were asked for, of as many rows each, to one, all of them there."""
        made = written(ds.random_shuffle(seed=2, num_shards=count), tmp_path / "out")
        sizes = [table.num_rows for table in made]
        assert (len(sizes), sum(sizes), max(sizes) - min(sizes) <= 1) == (count, 181, True)
        assert sorted(k for table in made for k in ids(table)) == list(range(181))

    @pytest.mark.slow
    def test_outputs_of_whole_buckets(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Where no number is asked for: as many as the bytes say, whatever the seed is, and about as large."""
        monkeypatch.setattr(ranges, "LEAST_BYTES", 8 << 10)
        pq.write_table(pa.table({"id": range(10_000)}), tmp_path / "in.parquet", compression="none")
        ds = curate.read_parquet(tmp_path / "in.parquet").using(backend="inline")
        counts = set()
        for seed in range(3):
            made = written(ds.random_shuffle(seed=seed), tmp_path / f"{seed}")
            sizes = [table.num_rows for table in made]
            counts.add(len(sizes))
            # As even as chance allows: 4 standard deviations to each side, beside one bucket of 64 more or less.
            mean = sum(sizes) / len(sizes)
            assert all(abs(size - mean) < mean / 64 + 4 * mean**0.5 for size in sizes), sizes
            assert sorted(k for table in made for k in ids(table)) == list(range(10_000))
        [count] = counts
        assert count > 10

    @pytest.mark.slow
    def test_positions_are_uniform(self, tmp_path: Path) -> None:
        """Over many seeds, where rows of one file come: a chi-square test of their place, and of who is beside whom."""
        (tmp_path / "in").mkdir()
        rows, seeds, bins = 60, 60, 6
        ds = over(tmp_path / "in", [[{"n": k, "x": None, "s": "a"} for k in range(20)] for _ in range(3)])
        places, followers = np.zeros((rows, bins)), np.zeros((3, 3))
        for seed in range(seeds):
            order = np.array(ids(ds.random_shuffle(seed=seed).to_arrow()))
            places[order, np.arange(rows) * bins // rows] += 1
            files = order // 20
            np.add.at(followers, (files[:-1], files[1:]), 1)
        assert chi_square(places, np.full_like(places, seeds / bins)) < upper(rows * (bins - 1))
        pairs = seeds * (rows - 1) / (rows * (rows - 1))
        expected = np.where(np.eye(3, dtype=bool), 20 * 19 * pairs, 20 * 20 * pairs)
        assert chi_square(followers, expected) < upper(8)

    @pytest.mark.slow
    def test_rows_that_are_alike_are_spread(self, tmp_path: Path) -> None:
        """Of a file that is all one value, each output has its share."""
        (tmp_path / "in").mkdir()
        ds = over(tmp_path / "in", [[{"n": number, "x": None, "s": "a"} for _ in range(400)] for number in range(4)])
        made = written(ds.random_shuffle(seed=0, num_shards=4), tmp_path / "out")
        counts = np.array([[Counter(table["n"].to_pylist())[n] for n in range(4)] for table in made])
        assert chi_square(counts, np.full((4, 4), 100.0)) < upper(9)


def chi_square(found: Any, expected: Any) -> float:
    return float(((found - expected) ** 2 / expected).sum())


def upper(freedom: int) -> float:
    """Returns what chi-square exceeds once in some ten thousand times (Wilson and Hilferty)."""
    part = 2 / (9 * freedom)
    return float(freedom * (1 - part + 3.8 * math.sqrt(part)) ** 3)


class TestRepartition:
    @pytest.mark.slow
    @settings(
        max_examples=examples(25), suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
    )
    @given(sizes=st.lists(st.integers(0, 30), min_size=1, max_size=6), count=st.integers(1, 12), step=st.booleans())
    def test_even_parts_in_order(self, places: Any, sizes: list[int], count: int, step: bool) -> None:
        """Rows stay as they came; parts differ by one row at most."""
        folder, out = places(), places()
        ds = over(folder, [[{"n": k, "x": None, "s": "a"} for k in range(size)] for size in sizes])
        if step:
            ds = ds.filter(pc.field("n") != 2)
        expected = [
            k for size, first in zip(sizes, np.cumsum([0, *sizes]), strict=False) for k in range(first, first + size)
        ]
        if step:
            twos = {first + 2 for size, first in zip(sizes, np.cumsum([0, *sizes]), strict=False) if size > 2}
            expected = [k for k in expected if k not in twos]
        made = written(ds.repartition(count), out)
        assert [k for table in made for k in ids(table)] == expected
        rows = [table.num_rows for table in made]
        assert len(rows) == count
        assert max(rows) - min(rows) <= 1
        assert ids(ds.repartition(count).take_all()) == expected

    def test_shuffled(self, tmp_path: Path) -> None:
        """Is a shuffle into as many parts."""
        (tmp_path / "in").mkdir()
        ds = over(tmp_path / "in", [[{"n": k, "x": None, "s": "a"} for k in range(30)]] * 2)
        one = written(ds.repartition(3, shuffle=True, seed=8), tmp_path / "one")
        other = written(ds.random_shuffle(seed=8, num_shards=3), tmp_path / "other")
        assert [table.to_pylist() for table in one] == [table.to_pylist() for table in other]
