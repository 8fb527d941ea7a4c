"""What a dataset says about how it ran: rows and bytes of each operator, exact; who waited for whom; what is shown."""

from __future__ import annotations

import io
import pickle
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import curate
from curate.backends.make import make_backend
from curate.dataset.stats import NOTHING, NOTHING_LEFT, LastRun, RunStats, stats
from curate.observe.metrics import PipelineMetrics, Role
from curate.pipeline.meters import Meter, MeterReport, packed
from curate.runtime.protocol import Resources, TaskEnd
from curate.streaming.engine import stream_blocks
from curate.streaming.stream_metrics import StreamMetrics
from curate.testing.clock import FakeClock
from tests.streaming.test_engine import Scripted
from tests.support.examples import examples


class Model:
    """What runs in a pool."""

    def __call__(self, batch: pa.Table) -> pa.Table:
        return batch


class Sleepy:
    """A model that takes its time, on something else than this CPU."""

    def __call__(self, batch: pa.Table) -> pa.Table:
        time.sleep(0.1)
        return batch


def same(batch: pa.Table) -> pa.Table:
    return batch


def measured(ds: curate.Dataset) -> PipelineMetrics:
    assert ds._ran.last is not None
    return ds._ran.last.measured()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three files of a thousand rows in ten row groups."""
    for number in range(3):
        start = number * 1000
        table = pa.table({"n": range(start, start + 1000), "text": ["x"] * 1000})
        (tmp_path / "in").mkdir(exist_ok=True)
        pq.write_table(table, tmp_path / "in" / f"{number}.parquet", row_group_size=100)
    return tmp_path / "in"


@pytest.mark.parametrize("how", ["consumed", "written"])
def test_rows_of_each_operator(folder: Path, tmp_path: Path, how: str) -> None:
    """As many as a count by hand, whether the rows are consumed or written."""
    ds = (
        curate.read_parquet(folder)
        .filter(pc.equal(pc.bit_wise_and(pc.field("n"), 1), 0))
        .map_batches(Model, compute=curate.ActorPool(size=1), batch_size=70)
        .flat_map(lambda row: [row, row])
    )
    if how == "consumed":
        ds.take_all()
    else:
        ds.write_parquet(tmp_path / "out", backend="inline")
    found = measured(ds).operators
    expected = [(0, 3000), (3000, 1500), (1500, 1500), (1500, 3000), *([(3000, 0)] if how == "written" else [])]
    assert [(one.meter.rows_in, one.meter.rows_out) for one in found] == expected
    assert [one.pool is not None for one in found] == [False, False, True, False, *([False] * (how == "written"))]
    assert all(one.meter.peak_bytes > 1 << 20 for one in found)
    assert all(one.meter.wall_s > 0 and one.meter.cpu_s > 0 for one in found)
    for one, following in pairwise(found):
        # Bitmaps that are cut into batches have whole bytes again.
        assert one.meter.bytes_out == pytest.approx(following.meter.bytes_in, rel=0.01)


def test_bytes_of_what_is_written(folder: Path, tmp_path: Path) -> None:
    """Those of the files: what was published."""
    ds = curate.read_parquet(folder)
    ds.write_parquet(tmp_path / "out", backend="inline")
    (last,) = (one for one in measured(ds).operators if one.role is Role.WRITE)
    assert last.meter.bytes_out == sum(path.stat().st_size for path in (tmp_path / "out").glob("*.parquet"))


def test_a_write_with_nothing_to_do_says_so(folder: Path, tmp_path: Path) -> None:
    """What an earlier run wrote was not measured by this one."""
    ds = curate.read_parquet(folder)
    ds.write_parquet(tmp_path / "out", backend="inline")
    ds.write_parquet(tmp_path / "out", backend="inline")
    assert ds.stats() == NOTHING_LEFT


def test_what_is_behind_a_limit_is_measured(folder: Path) -> None:
    """It runs in this process, and the rows before it are those that were made for it."""
    ds = curate.read_parquet(folder).map_batches(same).limit(120).map_batches(same)
    assert len(ds.take_all()) == 120
    read, before, after = measured(ds).operators
    assert (after.meter.rows_in, after.meter.rows_out) == (120, 120)
    assert after.behind
    assert read.meter.rows_out >= before.meter.rows_out >= 120


def test_all_parts_are_told(tmp_path: Path, folder: Path) -> None:
    """Those of a union, a zip, and a checkpoint that is written first."""
    ds = curate.read_parquet(folder).checkpoint(tmp_path / "kept").select_columns("n")
    both = ds.zip(curate.range(1000).union(curate.range(2000)))
    assert both.count() == 3000
    both.take_all()
    found = measured(both)
    names = [one.name.partition("(")[0] for one in found.operators]
    assert sorted(names) == ["range", "range", "read", "read_parquet", "select_columns", "write"]
    by_name = {one.name: one.meter.rows_out for one in found.operators}
    assert by_name["range(1,000)"] == 1000
    assert by_name["range(2,000)"] == 2000
    assert found.flow is not None
    assert found.flow.rows == 3000 + 3000


class TestWhichRun:
    def test_before_any(self) -> None:
        """It says that there was none."""
        assert curate.range(3).stats() == NOTHING

    def test_what_is_made_of_it_ran_nothing(self) -> None:
        """An operator makes another dataset; so does a pickle."""
        ds = curate.range(3)
        ds.take_all()
        assert ds.limit(2).stats() == NOTHING
        assert pickle.loads(pickle.dumps(ds._ran)).last is None
        assert ds == curate.range(3)

    @pytest.mark.parametrize(
        "look",
        [
            lambda ds: ds.take(2),
            lambda ds: ds.take_batch(2),
            lambda ds: ds.count(),
            lambda ds: ds.schema(),
            lambda ds: ds.to_arrow(),
            lambda ds: ds.materialize(),
            lambda ds: next(ds.iter_batches(prefetch_batches=0)),
            lambda ds: list(ds.streaming_split(1)[0].iter_rows()),
        ],
    )
    def test_every_way_to_consume_is_one(self, look: Any) -> None:
        """Those that ask another dataset for less as well."""
        ds = curate.range(300).map_batches(same)
        look(ds)
        assert [one.meter.rows_out for one in measured(ds).operators] == [300, 300]

    def test_what_is_held_tells_how_it_was_made(self) -> None:
        """Until it runs itself, which leaves the other one's alone."""
        ds = curate.range(300).map_batches(same)
        held = ds.materialize()
        assert held.stats() == ds.stats()
        held.take_all()
        assert [one.name for one in measured(held).operators] == ["materialize(300 rows)"]
        assert len(measured(ds).operators) == 2


def test_it_can_be_asked_while_it_runs() -> None:
    """Rows so far, and blocks; when the consumer is done, all of them."""
    ds = curate.range(1 << 21).map_batches(same).using(block_bytes=1 << 20)
    batches = ds.iter_batches(batch_size=None, prefetch_batches=0)
    next(batches)
    first = measured(ds)
    assert 0 < first.operators[1].meter.rows_out < 1 << 21
    assert first.flow is not None
    assert (first.flow.blocks, first.flow.budget_bytes) == (1, 512 << 20)
    for _ in batches:
        pass
    last = measured(ds)
    assert last.operators[1].meter.rows_out == 1 << 21
    assert last.flow is not None
    assert (last.flow.rows, last.flow.bytes, last.flow.queued, last.running) == (1 << 21, 8 << 21, 0, 0)


def test_in_words() -> None:
    """Two tables of one line an operator, the blocks, and one sentence."""
    ds = curate.range(1000).map_batches(Model, compute=curate.ActorPool(size=1))
    ds.take_all()
    lines = ds.stats().splitlines()
    assert [line.split("  ")[0] for line in lines] == [
        "operator",
        "range(1,000)",
        "map_batches(Model)",
        "",
        "operator",
        "range(1,000)",
        "map_batches(Model)",
        "",
        lines[8],
        lines[9],
    ]
    assert lines[1].split()[1:] == ["1,000", "7.81", "KiB", "7.81", "KiB", "7.81", "KiB"]
    assert lines[8].startswith("1 block of 7.81 KiB, the largest 7.81 KiB; consumer idle ")
    assert lines[9].startswith("took ")
    assert "bottleneck" in lines[9]
    assert max(map(len, lines[:8])) <= 100


# Streams


@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(0, 3), st.integers(0, 3))
@settings(max_examples=examples(60), deadline=None)
def test_a_piece_that_runs_again_counts_once(seed: int, width: int, deaths: int, losses: int) -> None:
    """Whatever dies, and whichever block is lost: in the end, rows are those that there are."""

    class Telling:
        key = "telling"

        def run(self, piece: tuple[int, int]) -> Iterator[Any]:
            chain, blocks = piece
            for number in range(blocks):
                yield MeterReport(chain, packed([Meter(rows_out=number + 1)]))
                yield pa.table({"n": [number]})
            yield MeterReport(chain, packed([Meter(rows_out=blocks)]))

    clock = FakeClock()
    backend = Scripted(seed, width, clock, deaths=deaths, losses=losses, end=TaskEnd.LOST)
    gauges = StreamMetrics()
    pieces = [(number % 2, number) for number in range(6)]
    found = list(stream_blocks(Telling(), pieces, backend, budget_bytes=20_000, clock=clock, gauges=gauges))
    assert len(found) == sum(range(6))
    assert [gauges.meters(chain, 1)[0].rows_out for chain in (0, 1, 2)] == [0 + 2 + 4, 1 + 3 + 5, 0]
    assert gauges.flow().blocks == sum(range(6))


def test_who_waits_for_whom() -> None:
    """The time in which the consumer has a block is the consumer's; the other is that of those who make them."""
    clock = FakeClock()

    class Slow:
        key = "slow"

        def run(self, piece: int) -> Iterator[pa.Table]:
            for _ in range(3):
                clock.advance(2.0)
                yield pa.table({"n": [piece]})

    backend = make_backend("inline")
    backend.start(Resources())
    gauges = StreamMetrics()
    for _ in stream_blocks(Slow(), [1], backend, budget_bytes=1 << 20, clock=clock, gauges=gauges):
        clock.advance(5.0)
        assert gauges.flow().consumer_s % 5.0 == 0.0
    flow = gauges.flow()
    assert (flow.waited_s, flow.consumer_s, flow.blocked_s) == (6.0, 15.0, 0.0)
    clock.advance(100.0)
    assert gauges.flow() == flow


def test_flows_are_added() -> None:
    """Times and rows are sums, the largest block is the largest."""
    run = RunStats()
    clock = FakeClock()
    for size in (1, 5):
        gauges = run.stream([], inline=True)
        gauges.begin(clock, 100)
        clock.advance(1.0)
        gauges.give(pa.table({"n": pa.array(range(size), pa.int64())}))
        gauges.end()
    flow = run.measured().flow
    assert flow is not None
    assert (flow.blocks, flow.rows, flow.largest_bytes, flow.budget_bytes, flow.waited_s) == (2, 6, 40, 100, 2.0)


# On a terminal


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("switch", "shown"), [("1", True), ("0", False)])
def test_progress_is_shown_on_a_terminal(monkeypatch: pytest.MonkeyPatch, switch: str, shown: bool) -> None:
    """A line an operator, on standard error alone; none where nobody looks, or CURATE_PROGRESS is 0."""
    screen, out = Terminal(), io.StringIO()
    monkeypatch.setenv("CURATE_PROGRESS", switch)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr("curate.observe.progress.QUIET_S", 0.0)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(sys, "stdout", out)
    ds = curate.range(1 << 18).map_batches(Model, compute=curate.ActorPool(size=1)).using(block_bytes=1 << 19)
    assert sum(batch.num_rows for batch in ds.iter_batches(batch_size=None, prefetch_batches=0)) == 1 << 18
    assert ("map_batches(Model)" in screen.getvalue()) is shown
    assert bool(screen.getvalue()) is shown
    assert out.getvalue() == ""


def test_a_stream_in_a_stream_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that draw would draw over each other; when the first has ended, the next is shown."""
    screen = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("curate.observe.progress.QUIET_S", 0.0)
    monkeypatch.setattr(sys, "stderr", screen)
    for _ in curate.range(5).iter_rows():
        curate.range(77).take_all()
    assert "range(5)" in screen.getvalue()
    assert "range(77)" not in screen.getvalue()
    curate.range(77).take_all()
    assert "range(77)" in screen.getvalue()


def test_a_pickle_of_what_ran_is_empty() -> None:
    """Streams, locks and displays stay in their process."""
    ran = LastRun()
    ran.begin().stream([], inline=True)
    assert pickle.loads(pickle.dumps(ran)).told() == NOTHING
    assert stats(PipelineMetrics()) == NOTHING_LEFT


@pytest.mark.slow
@pytest.mark.ray_lane
@pytest.mark.nightly
@pytest.mark.usefixtures("on_ray")
def test_stats_on_ray() -> None:
    """Of tasks and actors in other processes: every row, their times and memory."""
    ds = (
        curate.range(3 << 20)
        .map_batches(same)
        .map_batches(Sleepy, compute=curate.ActorPool(size=1), batch_size=1 << 17)
        .using(backend="ray", block_bytes=1 << 20)
    )
    assert sum(batch.num_rows for batch in ds.iter_batches(batch_size=None)) == 3 << 20
    found = measured(ds)
    assert [one.meter.rows_out for one in found.operators] == [3 << 20] * 3
    assert all(one.meter.peak_bytes > 50 << 20 and one.meter.wall_s > 0 for one in found.operators)
    model = found.operators[2]
    assert model.meter.wall_s >= 24 * 0.1
    assert model.meter.wait_s > 0
    assert 0 < model.busy <= 1
    assert model.actors == 1
    assert found.slot_s > 0
    assert not found.inline
