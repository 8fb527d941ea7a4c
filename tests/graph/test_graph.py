"""Jobs of several stages: what is there is not made again, what is damaged is, and other inputs are refused."""

from __future__ import annotations

import errno
import gc
import hashlib
import itertools
import json
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from structlog.testing import capture_logs

import curate
from curate.backends.inline import InlineBackend
from curate.dataset.dataset import Dataset
from curate.errors import ConfigError, CurateError, StorageError
from curate.exchange import run_file
from curate.exchange.run_file import RunWriter
from curate.graph import graph, start, upstream
from curate.graph.entry import dry_run, run
from curate.ledger import stages as places
from curate.ledger.compression import decompress
from curate.ledger.summary import RunState, Summary
from curate.objects.record import OutputFormat
from curate.plan import rewrites
from curate.plan import stages as plan_stages
from curate.reduce import ranges
from curate.resume import history
from curate.resume.options import RunOptions
from curate.stage import program
from curate.storage.faults import Fault, lost
from curate.stores.local import LocalWriter
from curate.stores.open import open_store
from curate.testing.clock import FakeClock
from curate.testing.stores import faulty_stores
from tests.support.gcs_emulator import GcsEmulator
from tests.support.harness import check_same, outputs
from tests.support.sweeps import Sweep, Trace
from tests.support.workbench import NoBackend, complete

pytestmark = pytest.mark.ci(1)

MAPS = 5
EVER = 1_000_000_000
_names = itertools.count()

maps: list[str] = []
"""The map shards that were run since the test began, by the file of their first row; a look at a schema is one too."""
reduces: list[str] = []
"""The first row of each output that was made; of each look at a schema too."""


broken = {f"f{number}": threading.Event() for number in range(MAPS)}
"""By file, whether the first step raises: what an event says is no part of an identity."""


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewrites, "LEAST_MAP_BYTES", 1024)
    monkeypatch.setattr(ranges, "LEAST_BYTES", 1500)
    monkeypatch.setattr(program, "RunWriter", partial(RunWriter, page_bytes=150))
    forget()
    mend()


def mend() -> None:
    for one in broken.values():
        one.clear()


def forget() -> None:
    maps.clear()
    reduces.clear()


def _may_break(batch: pa.Table) -> pa.Table:
    if batch.num_rows and broken[batch["file"][0].as_py()].is_set():
        raise ValueError("this was to be expected")
    return _before(batch)


def _before(batch: pa.Table) -> pa.Table:
    if batch.num_rows:
        maps.append(batch["file"][0].as_py())
    return batch


def _after(batch: pa.Table) -> pa.Table:
    if batch.num_rows:
        reduces.append(f"{batch['n'][0].as_py()}")
    return batch


def _after_otherwise(batch: pa.Table) -> pa.Table:
    return _after(batch).rename_columns(["name", "n"])


def table(number: int, rows: int = 60) -> pa.Table:
    return pa.table({"file": [f"f{number}"] * rows, "n": [(number * 37 + k * 11) % 50 for k in range(rows)]})


@dataclass
class Bench:
    """Inputs, and writes of them, in one kind of store."""

    root: str
    clock: FakeClock = field(default_factory=FakeClock)

    def put(self, number: int, rows: int = 60) -> None:
        """Writes an input, which becomes a map shard; in place of what is there."""
        sink = pa.BufferOutputStream()
        pq.write_table(table(number, rows), sink, compression="none")
        uri = f"{self.root}/in/{number}.parquet"
        self.store.delete(uri)
        self.store.publish(uri, sink.getvalue().to_pybytes())

    @property
    def store(self) -> Any:
        return open_store(self.root, scratch="/tmp" if self.root.startswith("memory") else f"{self.root}-tmp")

    def rows(self) -> Dataset:
        """Returns the inputs as they are now, with a step that counts."""
        return curate.read_parquet(f"{self.root}/in").map_batches(_before, batch_size=None)

    def sorted(self, after: Callable[[pa.Table], pa.Table] = _after) -> Dataset:
        return self.rows().sort("n").map_batches(after, batch_size=None)

    def options(self, ds: Dataset, name: str, **options: Any) -> tuple[Any, RunOptions]:
        spec = plan_stages.stage_of(ds._plan, OutputFormat.PARQUET, None)
        out = name if "://" in name or name.startswith("/") else f"{self.root}/{name}"
        given: dict[str, Any] = {"backend": "inline", "confirm": lambda _: True} | options
        return spec, RunOptions(inputs=spec.inputs, output=out, **given)

    def write(self, ds: Dataset | None = None, name: str = "out", *, backend: Any = None, **options: Any) -> Summary:
        """Runs a write; backoff takes no time."""
        spec, how = self.options(ds or self.sorted(), name, **options)
        return run(spec, how, clock=self.clock, backend=backend)

    def objects(self, name: str = "out") -> dict[str, bytes]:
        start = f"{self.root}/{name}/"
        return {one.uri[len(start) :]: self.store.read(one.uri) for one in self.store.list(start)}

    def parts(self, name: str = "out") -> list[str]:
        return [one for one in self.objects(name) if one.startswith("part-")]

    def run_files(self, name: str = "out") -> list[str]:
        """Returns the URIs of the run files of the first exchange, those of an interrupted or kept write."""
        pattern = re.compile(r"_curate/stages/[0-9a-f]{16}/map-[^/]+")
        return [f"{self.root}/{name}/{one}" for one in self.objects(name) if pattern.fullmatch(one)]

    def job(self, name: str = "out") -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.objects(name)["_curate/job.json"])
        return found

    def rewrite(self, uri: str, data: bytes) -> None:
        """Puts other bytes in the place of an object."""
        assert self.store.delete(uri)
        self.store.publish(uri, data)

    def check(self, name: str = "out") -> None:
        """Checks an output against that of a write that nothing disturbed."""
        if not self.objects("whole"):
            seen = (list(maps), list(reduces))
            complete(self.write(name="whole"))
            maps[:], reduces[:] = seen
        whole, found = self.objects("whole"), self.objects(name)
        check_same(found, whole)
        assert not any(one.startswith("_curate/stages/") for one in found)


def breaking(bench: Bench) -> Dataset:
    return curate.read_parquet(f"{bench.root}/in").map_batches(_may_break, batch_size=None).sort("n")


@pytest.fixture(params=["memory", pytest.param("local", marks=pytest.mark.slow)])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    made = Bench(f"memory://staged-{next(_names)}" if request.param == "memory" else str(tmp_path / "data"))
    for number in range(MAPS):
        made.put(number)
    return made


@pytest.fixture
def local(tmp_path: Path) -> Bench:
    made = Bench(str(tmp_path / "data"))
    for number in range(MAPS):
        made.put(number)
    return made


@contextmanager
def dies(nth: int, *, after: bool = False, name: str = "", operation: str | None = None) -> Iterator[Any]:
    """Has the stores answer nothing any more from a call on; with `after`, that call is still made: what is stored is
    what a process leaves that is killed there."""
    error = StorageError("the process is dead")
    first = Fault(operation, nth=nth, when="after" if after else "before", name=name, error=error)
    dead = [False]

    class Dead(Fault):
        __slots__ = ()

        def hits(self, called: str, uri: str) -> bool:
            del called, uri
            self.fired += dead[0]
            return dead[0]

    def die() -> BaseException:
        dead[0] = True
        return error

    first.error = die
    # As in a process of its own: what is opened there is opened again here.
    run_file.opened.cache_clear()
    try:
        with faulty_stores(first, Dead(times=EVER, error=error), retry=None) as faults:
            yield faults
    finally:
        run_file.opened.cache_clear()


def killed(bench: Bench, nth: int, *, after: bool = False, **where: Any) -> None:
    """Writes, and dies at a call."""
    with dies(nth, after=after, **where) as faults:
        with suppress(CurateError):
            bench.write()
        assert sum(fault.fired for fault in faults.scripted)


def expected_looks(bench: Bench, parts: int) -> tuple[int, int]:
    """Returns how often it takes to run maps and reduces to finish what is there."""
    found = bench.objects()
    made = len(bench.parts())
    if made == parts:
        return 0, 0
    there = len(bench.run_files())
    schema = "_curate/schema/output.arrow"
    typed = any(re.fullmatch(rf"_curate/stages/[0-9a-f]+/{schema}", one) for one in found)
    return MAPS - there + (there < MAPS and not typed), parts - made + (schema not in found)


class TestKillPoints:
    @pytest.mark.ci(2)
    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("bench", "after"),
        [
            ("memory", False),
            pytest.param("local", True, marks=pytest.mark.slow),
            pytest.param("memory", True, marks=[pytest.mark.slow, pytest.mark.nightly]),
            pytest.param("local", False, marks=[pytest.mark.slow, pytest.mark.nightly]),
        ],
        indirect=["bench"],
    )
    def test_at_every_call(self, bench: Bench, sweep: Sweep, after: bool) -> None:
        """Of the stores, in the driver and in tasks: the next run ends with the same bytes, and runs the maps and the
        reduces that have no output, and no others."""
        trace = Trace()
        with faulty_stores(trace, retry=None):
            complete(bench.write(name="whole"))
        calls = trace.kinds
        assert len(calls) > 60
        whole = outputs(bench.objects("whole"))
        parts = len(bench.parts("whole"))
        assert parts > 2
        assert (len(maps), len(reduces)) == (MAPS + 1, parts + 1)
        for number in sweep(calls, 4):
            for item in list(bench.store.list(f"{bench.root}/out/")):
                bench.store.delete(item.uri)
            killed(bench, number + 1, after=after)
            assert set(outputs(bench.objects()).items()) <= set(whole.items())
            looks = expected_looks(bench, parts)
            forget()
            complete(bench.write())
            assert (len(maps), len(reduces)) == looks, f"call {number} of {len(calls)}: {calls[number]}"
            bench.check()

    @pytest.mark.slow
    @pytest.mark.ci(2)
    def test_between_two_exchanges(self, bench: Bench) -> None:
        """The first exchange of two is done: neither its maps nor its reduces run again."""
        ds = lambda: bench.sorted().random_shuffle(seed=3)  # noqa: E731
        with dies(1, name="part-00000-of", operation="publish"), pytest.raises(CurateError):
            # The outputs of the second exchange are the first objects of that name outside of stages.
            bench.write(ds())
        forget()
        complete(bench.write(ds()))
        assert len(maps) <= 1
        complete(bench.write(ds(), "whole"))
        assert outputs(bench.objects()) == outputs(bench.objects("whole"))


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "a page": lambda data: flipped(data, 300),
    "the index": lambda data: flipped(data, len(data) - 200),
    "the mark": lambda data: flipped(data, len(data) - 1),
    "cut": lambda data: data[: len(data) // 2],
    "empty": lambda data: data[:0],
}


class Meanwhile(InlineBackend):
    """Does something once a stage is loaded: the second time it is asked to, when the last one begins."""

    def __init__(self, act: Callable[[], None], stage: int = 2) -> None:
        super().__init__()
        self._act, self._left = act, stage

    def load(self, *given: Any, **options: Any) -> None:
        super().load(*given, **options)
        self._left -= 1
        if not self._left:
            self._act()


class TestDamaged:
    @pytest.mark.ci(2)
    @pytest.mark.quick(1)
    @pytest.mark.parametrize("count", [1, 3])
    def test_deleted_between_runs(self, bench: Bench, count: int) -> None:
        """So many run files gone: so many maps run again."""
        killed(bench, 1, name="part-00001-of", operation="publish")
        for uri in bench.run_files()[:count]:
            bench.store.delete(uri)
        forget()
        complete(bench.write())
        assert len(maps) == count
        bench.check()

    @pytest.mark.quick(1)
    @pytest.mark.ci(2)
    @pytest.mark.parametrize("count", [1, 3])
    def test_deleted_while_outputs_are_made(self, bench: Bench, count: int) -> None:
        """The outputs that read them fail, and are made in the same run, after so many maps ran again."""
        gone: list[str] = []

        def act() -> None:
            assert (len(maps), len(bench.run_files())) == (MAPS + 1, MAPS)
            forget()
            run_file.opened.cache_clear()
            gone.extend(bench.run_files()[:count])
            for uri in gone:
                bench.store.delete(uri)

        ended = complete(bench.write(backend=Meanwhile(act)))
        assert len(gone) == len(maps) == count
        assert ended.attempts > ended.total
        bench.check()
        assert any("it is missing" in one["error"] for one in failures(bench))

    @pytest.mark.slow
    def test_a_stage_that_vanishes_before_it_is_read(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        """Is made again: no job is complete that has no rows for want of them."""
        read, left = upstream.outputs_of, [1]

        def vanished(spec: Any, output: str) -> Any:
            if left.pop() if left else 0:
                for item in list(bench.store.list(f"{output}/")):
                    bench.store.delete(item.uri)
            return read(spec, output)

        monkeypatch.setattr(upstream, "outputs_of", vanished)
        complete(bench.write())
        assert len(maps) == 2 * (MAPS + 1)
        bench.check()

    @pytest.mark.ci(3)
    @pytest.mark.quick(1)
    @pytest.mark.parametrize("what", DAMAGES)
    def test_damaged_between_runs(self, bench: Bench, what: str) -> None:
        """Whoever reads it finds that, driver or task; that map alone runs again, in the same run."""
        killed(bench, 1, name="out/part-", operation="publish")
        uri = bench.run_files()[2]
        bench.rewrite(uri, DAMAGES[what](bench.store.read(uri)))
        forget()
        complete(bench.write())
        assert len(maps) == 1
        bench.check()

    def test_it_is_said_in_the_ledger_and_in_the_log(self, bench: Bench) -> None:
        """Which file it was, and what was found there."""
        killed(bench, 1, name="out/part-", operation="publish")
        uri = bench.run_files()[2]
        bench.rewrite(uri, DAMAGES["a page"](bench.store.read(uri)))
        with capture_logs() as said:
            complete(bench.write())
        told = [one["error"] for one in failures(bench)]
        pattern = rf"DamagedRun: {re.escape(uri)}: page \d+ of segment 0, .* has the checksum [0-9a-f]+, expected"
        assert any(re.match(pattern, one) for one in told), told
        assert any(one.get("file") == uri and "was removed" in one["event"] for one in said)

    @pytest.mark.slow
    def test_many_pages_at_once(self, bench: Bench) -> None:
        """All that an output finds are made again before it is tried again."""
        killed(bench, 1, name="part-00000-of", operation="publish")
        for uri in bench.run_files():
            bench.rewrite(uri, DAMAGES["a page"](bench.store.read(uri)))
        forget()
        ended = complete(bench.write())
        assert len(maps) == MAPS
        assert len(failures(bench)) == ended.attempts - (ended.total - ended.skipped)
        bench.check()

    @pytest.mark.ci(2)
    @pytest.mark.quick(1)
    @pytest.mark.parametrize("what", ["a page", "the index"])
    def test_a_disk_that_always_lies(self, bench: Bench, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Is found out after a few rounds. The run ends, and says so; with a disk that does not, the next one goes
        on."""
        spoil = DAMAGES[what]
        with monkeypatch.context() as patch:
            original = upstream.outputs_of

            def lying(spec: Any, output: str) -> Any:
                uri = original(spec, output)[0].uri
                bench.rewrite(uri, spoil(bench.store.read(uri)))
                return original(spec, output)

            patch.setattr(upstream, "outputs_of", lying)
            if what == "a page":
                assert bench.write().state is RunState.FAILED
            else:
                with pytest.raises(StorageError, match="was found damaged or gone 4 times"):
                    bench.write()
            assert len(maps) == MAPS + 1 + graph.MOST_MENDED
        forget()
        complete(bench.write())
        assert len(maps) <= 1
        bench.check()

    @pytest.mark.slow
    def test_rows_that_an_exchange_lost_fail_the_run(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        """No summary calls such an output complete, in this run or the next; it is made anew with `overwrite`."""

        def one_less(stages: Any) -> list[places.ExchangeReport]:
            return [replace(one, rows_out=one.rows_out - 1) for one in places.exchanges(stages)]

        with monkeypatch.context() as patch:
            patch.setattr("curate.driver.run_recorder.exchanges", one_less)
            for _ in range(2):
                with pytest.raises(
                    CurateError, match=r"read 300 rows and wrote 299, .* start over with overwrite=True"
                ):
                    bench.write()
        assert "_curate/summary.json" not in bench.objects()
        complete(bench.write(overwrite=True))
        bench.check()

    def test_what_fails_by_itself_is_not_tried_again(self, bench: Bench) -> None:
        """A step that raises after the exchange fails its output, as in any stage; no map runs again."""
        summary = bench.write(bench.rows().sort("n").map_batches(_raises, batch_size=None))
        assert summary.state is RunState.FAILED
        assert len(maps) == MAPS + 1

    def test_a_map_that_fails(self, bench: Bench) -> None:
        """The run ends there, and says which; no output is made of a part of the rows. Mended, that map alone runs."""
        broken["f2"].set()
        ended = bench.write(breaking(bench))
        assert (ended.state, ended.failed, ended.done) == (RunState.FAILED, 1, MAPS - 1)
        assert ended.output == f"{bench.root}/out"
        (stage, last), (group,) = ended.stages, ended.failures
        assert (stage.state, stage.done, stage.failed, last.state) == ("failed", MAPS - 1, 1, "waiting")
        assert group.shard.startswith(f"{stage.key}/map-")
        assert (len(bench.run_files()), bench.parts()) == (MAPS - 1, [])
        mend()
        forget()
        complete(bench.write(breaking(bench)))
        assert maps == ["f2"]


def _raises(batch: pa.Table) -> pa.Table:
    if batch.num_rows and batch["n"][0].as_py() > 10:
        raise ValueError("this was to be expected")
    return batch


def failures(bench: Bench, name: str = "out") -> list[dict[str, Any]]:
    """Returns the failed tries in the ledger of an output."""
    found = bench.objects(name)
    segments = [one for one in sorted(found) if re.fullmatch(r"_curate/runs/[^/]+/failures/.*", one)]
    return [json.loads(line) for one in segments for line in decompress(found[one]).splitlines()]


class TestFrozenInputs:
    @pytest.mark.slow
    def test_other_inputs_are_refused(self, bench: Bench) -> None:
        """By name, whether the job is complete or not; nothing is changed."""
        killed(bench, 1, name="part-00001-of", operation="publish")
        bench.put(7)
        bench.put(1, rows=61)
        bench.store.delete(f"{bench.root}/in/3.parquet")
        before = bench.objects()
        with pytest.raises(ConfigError, match="changed after the job began") as caught:
            bench.write()
        text = str(caught.value)
        assert f"new: {bench.root}/in/7.parquet" in text
        assert f"gone: {bench.root}/in/3.parquet" in text
        assert f"changed: {bench.root}/in/1.parquet" in text
        assert "another output, or start over with overwrite=True" in text
        assert bench.objects() == before
        with pytest.raises(ConfigError, match="changed after the job began"):
            dry_run(*bench.options(bench.sorted(), "out"))
        complete(bench.write(name="elsewhere"))

    def test_a_complete_job_refuses_too(self, bench: Bench) -> None:
        """With no backend started."""
        complete(bench.write())
        bench.put(7)
        with pytest.raises(ConfigError, match=r"new: .*/in/7\.parquet"):
            bench.write(backend=NoBackend())

    @pytest.mark.slow
    def test_overwritten_with_more_inputs(self, bench: Bench) -> None:
        """The stages are others, and those that were there are removed. What is written is what a first write gives."""
        killed(bench, 1, name="part-00001-of", operation="publish")
        bench.put(7)
        old = {uri.split("/")[-2] for uri in bench.run_files()}
        forget()
        complete(bench.write(overwrite=True, keep_stages=True))
        assert len(maps) == MAPS + 2
        assert not old & {uri.split("/")[-2] for uri in bench.run_files()}
        complete(bench.write())
        bench.check()

    @pytest.mark.ci(2)
    @pytest.mark.slow
    @pytest.mark.quick(1)
    @pytest.mark.parametrize("stopped", [True, False])
    def test_overwritten_with_other_steps_afterwards(self, bench: Bench, stopped: bool) -> None:
        """The exchange is the same one: no map runs again, be the job complete or not."""
        if stopped:
            killed(bench, 1, name="part-00001-of", operation="publish")
        else:
            complete(bench.write(keep_stages=True))
        forget()
        other = bench.sorted(_after_otherwise)
        with pytest.raises(ConfigError, match="another identity"):
            bench.write(other)
        complete(bench.write(other, overwrite=True))
        assert maps == []
        complete(bench.write(other, "whole"))
        assert outputs(bench.objects()) == outputs(bench.objects("whole"))
        assert not bench.run_files()

    @pytest.mark.slow
    def test_an_overwrite_that_is_not_confirmed(self, bench: Bench) -> None:
        """Removes nothing."""
        complete(bench.write())
        before = bench.objects()
        with pytest.raises(ConfigError, match="not confirmed"):
            bench.write(overwrite=True, confirm=lambda _: False)
        assert bench.objects() == before

    def test_what_is_read_may_not_be_what_is_written(self, bench: Bench) -> None:
        """The next run would find itself among its inputs."""
        with pytest.raises(ConfigError, match="a rerun would read its own results"):
            bench.write(name="in")


class TestCheckpoints:
    @pytest.mark.slow
    def test_before_an_exchange(self, bench: Bench) -> None:
        """It is written first, by its own name, and used again by other writes; its inputs are frozen with the job."""
        ds = lambda: bench.rows().checkpoint(f"{bench.root}/kept").sort("n").map_batches(_after, batch_size=None)  # noqa: E731
        complete(bench.write(ds()))
        looked = len(maps)
        complete(bench.write(ds(), "again"))
        assert len(maps) == looked
        assert outputs(bench.objects()) == outputs(bench.objects("again"))
        complete(bench.write(name="plain"))
        assert all_rows(bench, "out") == all_rows(bench, "plain")
        bench.put(7)
        with pytest.raises(ConfigError, match=r"new: .*/in/7\.parquet"):
            bench.write(ds())
        complete(bench.write(ds(), overwrite=True))
        complete(bench.write(name="grown"))
        assert all_rows(bench, "out") == all_rows(bench, "grown")

    @pytest.mark.slow
    def test_an_exchange_over_other_checkpoints_is_another_stage(self, bench: Bench) -> None:
        """A checkpoint of other files lies where another one lay: the stage that was made of that is not used."""
        path = f"{bench.root}/kept"
        complete(bench.write(bench.rows().checkpoint(path).sort("n"), keep_stages=True))
        for item in list(bench.store.list(f"{path}/")):
            bench.store.delete(item.uri)
        bench.put(1, rows=61)
        complete(bench.write(bench.rows().checkpoint(path).sort("n"), overwrite=True))
        assert len(all_rows(bench, "out")) == MAPS * 60 + 1

    @pytest.mark.slow
    def test_one_that_another_job_has_added_to(self, bench: Bench) -> None:
        """A deduplication over it, of which an output is missing, does not read rows that it did not begin with."""
        path = f"{bench.root}/kept"

        def deduplicated(files: str | list[str]) -> Dataset:
            rows = curate.read_parquet(files).map_batches(_before, batch_size=None)
            return rows.checkpoint(path).dedup_exact(["file", "n"])

        first = [f"{bench.root}/in/{number}.parquet" for number in range(MAPS)]
        complete(bench.write(deduplicated(first)))
        bench.put(7)
        complete(bench.write(deduplicated(f"{bench.root}/in"), "grown"))
        gone = next(name for name in bench.objects() if name.endswith("1.parquet"))
        bench.store.delete(f"{bench.root}/out/{gone}")
        with pytest.raises(ConfigError, match=r"has files that .* did not begin with \(1, such as .*7\.parquet"):
            bench.write(deduplicated(first))

    def test_after_an_exchange(self, bench: Bench) -> None:
        """It is a job of its own, whose stages go when it is complete, and is there for all that follow."""
        ds = bench.rows().sort("n").checkpoint(f"{bench.root}/kept")
        complete(bench.write(ds.map_batches(_after, batch_size=None)))
        assert not bench.run_files("kept")
        forget()
        complete(bench.write(ds, "other"))
        assert maps == []
        rows = all_rows(bench, "out")
        assert [row["n"] for row in rows] == sorted(row["n"] for row in rows)
        assert len(rows) == MAPS * 60


def all_rows(bench: Bench, name: str) -> list[dict[str, Any]]:
    """Returns the rows of an output, in order."""
    found = bench.objects(name)
    return [row for one in bench.parts(name) for row in pq.read_table(pa.BufferReader(found[one])).to_pylist()]


class TestCompleteJobs:
    def test_nothing_is_started_and_no_stage_looked_at(self, bench: Bench) -> None:
        """One listing and a few small reads; nothing is written."""
        complete(bench.write())
        forget()
        with faulty_stores(retry=None) as counted:
            again = complete(bench.write(backend=NoBackend()))
        assert (maps, reduces, again.attempts, again.skipped) == ([], [], 0, again.total)
        # One is that of the inputs, when the dataset was made.
        assert counted.calls["list"] == 2
        assert counted.calls["publish"] + counted.calls["replace"] + counted.calls["delete"] == 0
        assert counted.calls["read"] + counted.calls["stat"] + counted.calls["open"] <= 8
        bench.check()

    @pytest.mark.slow
    def test_an_output_that_was_deleted(self, bench: Bench) -> None:
        """The stages were swept: all of them run again, and of the outputs that one, to the same bytes."""
        complete(bench.write())
        bench.store.delete(f"{bench.root}/out/{bench.parts()[1]}")
        forget()
        assert complete(bench.write()).attempts == 1
        assert (len(maps), len(reduces)) == (MAPS + 1, 1)
        bench.check()

    @pytest.mark.slow
    def test_an_output_of_another_job_in_its_place(self, bench: Bench) -> None:
        """Is found by its record, removed, and made again."""
        complete(bench.write())
        complete(bench.write(bench.sorted(_after_otherwise), "other"))
        name = bench.parts()[1]
        bench.rewrite(f"{bench.root}/out/{name}", bench.objects("other")[name])
        bench.store.delete(f"{bench.root}/out/_curate/summary.json")
        assert complete(bench.write()).attempts == 1
        bench.check()

    def test_kept_stages(self, bench: Bench) -> None:
        """Stay until a run that is not asked to keep them; one that keeps them makes what was deleted from them."""
        complete(bench.write(keep_stages=True))
        assert len(bench.run_files()) == MAPS
        bench.store.delete(f"{bench.root}/out/{bench.parts()[1]}")
        forget()
        complete(bench.write(keep_stages=True))
        assert (maps, len(reduces), len(bench.run_files())) == ([], 1, MAPS)
        complete(bench.write(backend=NoBackend(), keep_stages=True))
        assert len(bench.run_files()) == MAPS
        complete(bench.write(backend=NoBackend()))
        bench.check()

    def test_a_part_of_the_outputs(self, bench: Bench) -> None:
        """What was asked for is done, and the job is not: its stages stay for the rest."""
        assert complete(bench.write(limit=1)).total == 1
        assert len(bench.run_files()) == MAPS
        forget()
        complete(bench.write())
        assert maps == []
        bench.check()

    def test_what_failed_in_a_stage(self, bench: Bench) -> None:
        """Is run again with `retry_failed`, and after it all outputs, none of which was tried before."""
        broken["f2"].set()
        assert bench.write(breaking(bench)).state is RunState.FAILED
        mend()
        forget()
        complete(bench.write(breaking(bench), retry_failed=True))
        assert maps == ["f2"]
        assert len(all_rows(bench, "out")) == MAPS * 60

    def test_no_room_is_taken(self, local: Bench) -> None:
        """By files that were removed, and that this process had mapped into memory."""
        complete(local.write())
        gc.collect()
        mapped = Path("/proc/self/maps").read_text().splitlines()
        assert [line for line in mapped if local.root in line] == []

    def test_no_folder_is_left(self, local: Bench) -> None:
        """Where folders are things of their own."""
        complete(local.write())
        empty = [path for path, folders, names in os.walk(f"{local.root}/out") if not folders and not names]
        assert empty == [f"{local.root}/out/_curate/tmp"]
        assert not Path(f"{local.root}/out/_curate/stages").exists()


class TestSeeds:
    @pytest.mark.slow
    def test_chosen_once(self, bench: Bench) -> None:
        """By the first run; a run that goes on has the same one, and says so in `job.json`. Another job has another."""
        ds = lambda: bench.rows().random_shuffle()  # noqa: E731
        with dies(1, name="part-00001-of", operation="publish"), suppress(CurateError):
            bench.write(ds())
        seed = bench.job()["seed"]
        made = {name: bench.objects()[name] for name in bench.parts()}
        forget()
        complete(bench.write(ds()))
        assert len(maps) == 0
        assert bench.job()["seed"] == seed
        assert made.items() <= bench.objects().items()
        complete(bench.write(bench.rows().random_shuffle(seed=seed), "given"))
        assert all_rows(bench, "given") == all_rows(bench, "out")
        complete(bench.write(ds(), "other"))
        assert bench.job("other")["seed"] != seed
        assert all_rows(bench, "other") != all_rows(bench, "out")

    @pytest.mark.slow
    def test_two_drivers_that_begin_at_once(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        """The second one to write `job.json` takes the seed of the first, and both make the same outputs."""
        ds = lambda: bench.rows().random_shuffle()  # noqa: E731
        publish, seeds = start._publish_job, []

        def other_first(job: Any) -> Any:
            monkeypatch.setattr(start, "_publish_job", publish)
            complete(bench.write(ds()))
            seeds.append(bench.job()["seed"])
            return publish(job)

        monkeypatch.setattr(start, "_publish_job", other_first)
        complete(bench.write(ds()))
        assert [bench.job()["seed"]] == seeds
        complete(bench.write(bench.rows().random_shuffle(seed=seeds[0]), "given"))
        assert all_rows(bench, "given") == all_rows(bench, "out")

    @pytest.mark.slow
    def test_an_overwrite_chooses_anew(self, bench: Bench) -> None:
        """Who wants the same order says which."""
        ds = lambda: bench.rows().random_shuffle()  # noqa: E731
        complete(bench.write(ds()))
        seed = bench.job()["seed"]
        complete(bench.write(ds(), overwrite=True))
        assert bench.job()["seed"] != seed


class TestFullDisk:
    def test_in_a_map(self, local: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        """The run stops at the first shard that is given up, and says what is needed and what is there; once there is
        room, the rest is done."""
        append = LocalWriter._append
        room = [2]

        def fills_up(writer: LocalWriter, data: bytes | memoryview) -> int:
            if "/map-" in writer._uri and room[0] <= 0:
                from curate.stores.local import _translated

                full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                raise _translated(full, writer._uri, writer._size + memoryview(data).nbytes)
            return append(writer, data)

        publish = LocalWriter._finish

        def counted(writer: LocalWriter) -> Any:
            room[0] -= "/map-" in writer._uri
            return publish(writer)

        with monkeypatch.context() as patch, capture_logs() as said:
            patch.setattr(LocalWriter, "_append", fills_up)
            patch.setattr(LocalWriter, "_finish", counted)
            ended = local.write(max_in_flight=1)
        assert (ended.state, ended.done, ended.failed) == (RunState.FAILED, 2, 1)
        (group,) = ended.failures
        assert re.search(r"the disk or its quota is full; .* needs [\d,]+ bytes or more, [\d,]+ are free", group.error)
        (told,) = [one for one in said if one["event"] == "the disk is full"]
        assert re.fullmatch(r"about [\d.]+ \w+ more", told["needs"])
        assert re.fullmatch(r"[\d.]+ \w+", told["free"])
        forget()
        complete(local.write())
        assert len(maps) == MAPS - 2
        local.check()


class TestWhereStagesAre:
    @pytest.fixture
    def bucket(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Bench]:
        monkeypatch.setenv("CURATE_SCRATCH", str(tmp_path / "scratch"))
        with GcsEmulator().here(monkeypatch) as emulator:
            made = Bench("gs://bucket/data")
            made.emulator = emulator  # type: ignore[attr-defined]
            for number in range(MAPS):
                made.put(number)
            yield made

    def stages(self, tmp_path: Path) -> list[Path]:
        return sorted((tmp_path / "scratch").glob("*/*"))

    @pytest.mark.slow
    def test_of_a_bucket_on_one_machine(self, bucket: Bench, tmp_path: Path) -> None:
        """In the scratch folder of this machine, by the output's name, where the next run finds them; no row of them
        goes to the bucket."""
        with dies(1, name="out/part-", operation="publish"), suppress(CurateError):
            bucket.write()
        (stage,) = self.stages(tmp_path)
        assert stage.parent.name == hashlib.sha256(b"gs://bucket/data/out").hexdigest()[:16]
        assert len(list(stage.glob("map-*"))) == MAPS
        assert not bucket.run_files()
        forget()
        complete(bucket.write())
        assert (maps, self.stages(tmp_path)) == ([], [])
        bucket.check()

    @pytest.mark.slow
    @pytest.mark.parametrize("root", ["scratch", "data/out/_curate/stages"])
    def test_run_files_are_their_users_alone(self, root: str, bucket: Bench, tmp_path: Path) -> None:
        """Whatever the umask; in scratch so is all else, and outputs are as the umask has them."""
        local = Bench(str(tmp_path / "data"))
        for number in range(MAPS):
            local.put(number)
        bench = bucket if root == "scratch" else local
        before = os.umask(0)
        try:
            complete(bench.write(keep_stages=True))
        finally:
            os.umask(before)
        below = [tmp_path / root, *(tmp_path / root).rglob("*")]
        runs = [path for path in below if path.suffix == ".run"]
        assert len(runs) == MAPS
        assert [path for path in (below if root == "scratch" else runs) if path.stat().st_mode & 0o077] == []
        assert {path.stat().st_mode & 0o777 for path in (tmp_path / "data").glob("out/*.*")} <= {0o666}

    @pytest.mark.ci(2)
    @pytest.mark.parametrize("planted", ["", "0123456789abcdef", "0123456789abcdef/_curate", "x"])
    def test_a_link_in_scratch_is_refused(self, planted: str, bucket: Bench, tmp_path: Path) -> None:
        """In the place of the job's folder there, of a stage's, or anywhere below: named, and nothing is changed."""
        precious = tmp_path / "precious"
        precious.mkdir()
        (precious / "map-0123456789abcdef.run").write_bytes(b"mine")
        link = Path(places.scratch_of("gs://bucket/data/out")) / planted
        link.parent.mkdir(parents=True)
        link.symlink_to(precious)
        before = bucket.emulator.objects()  # type: ignore[attr-defined]
        with pytest.raises(ConfigError, match=rf"{link} is a link"):
            bucket.write()
        assert [path.name for path in precious.iterdir()] == ["map-0123456789abcdef.run"]
        assert bucket.emulator.objects() == before  # type: ignore[attr-defined]

    @pytest.mark.slow
    def test_of_a_bucket_on_several(self, bucket: Bench, tmp_path: Path) -> None:
        """Below the output, which all of them get at."""

        class Cluster(InlineBackend):
            def alone(self) -> bool:
                return False

        complete(bucket.write(backend=Cluster(), keep_stages=True))
        assert self.stages(tmp_path) == []
        assert len(bucket.run_files()) == MAPS
        complete(bucket.write(backend=NoBackend()))
        bucket.check()

    @pytest.mark.slow
    def test_an_overwrite_keeps_those_in_scratch(self, bucket: Bench, tmp_path: Path) -> None:
        """And removes what the new job does not have."""
        complete(bucket.write(keep_stages=True))
        other = self.stages(tmp_path)[0].with_name("0123456789abcdef")
        shutil.copytree(self.stages(tmp_path)[0], other)
        forget()
        complete(bucket.write(bucket.sorted(_after_otherwise), overwrite=True, keep_stages=True))
        assert maps == []
        assert len(self.stages(tmp_path)) == 1
        assert not other.exists()

    def test_the_default(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """Below the system's folder for temporaries; it exists then."""
        monkeypatch.delenv("CURATE_SCRATCH", raising=False)
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        assert places.scratch_root() == str(tmp_path / f"curate-{os.geteuid()}")
        assert (tmp_path / f"curate-{os.geteuid()}").is_dir()
        assert places.stages_root("/data/out", alone=True) == "/data/out/_curate/stages"
        assert places.stages_root("gs://b/out", alone=False) == "gs://b/out/_curate/stages"


class TestRivals:
    def test_an_overwrite_of_a_job_at_work(self, bench: Bench) -> None:
        """Is refused, also while only one of its stages has begun."""
        refused: list[str] = []

        def act() -> None:
            with pytest.raises(ConfigError, match="another driver is running") as caught:
                Bench(bench.root, Moving(bench)).write(overwrite=True)
            refused.append(str(caught.value))

        complete(bench.write(backend=Meanwhile(act, stage=1)))
        assert "/_curate/stages/" in refused[0]
        bench.check()

    def test_one_job_and_two_drivers(self, bench: Bench) -> None:
        """The second one stops at the stage that the first is at, or helps if it is told to."""

        def act() -> None:
            with pytest.raises(ConfigError, match="another driver is running"):
                Bench(bench.root, Moving(bench)).write()
            complete(bench.write(allow_concurrent=True))

        complete(bench.write(backend=Meanwhile(act, stage=1)))
        bench.check()

    @pytest.mark.slow
    def test_a_driver_that_completes_the_job_while_another_looks_at_its_stages(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The stages are gone once it has; what is gone is no output of somebody else, and the job is complete."""
        killed(bench, 1, name="part-00001-of", operation="publish")
        for name in bench.objects():
            # Of what nothing else tells, the outputs are asked.
            if re.search(r"_curate/stages/.*/(summary\.json|runs/)", name):
                bench.store.delete(f"{bench.root}/out/{name}")
        books_of, raced = history.books_of, []

        def late(store: Any, found: Any, *given: Any) -> Any:
            if not raced and "/map-" in found.uri:
                raced.append(found.uri)
                complete(Bench(bench.root, Moving(bench)).write())
            return books_of(store, found, *given)

        monkeypatch.setattr(history, "books_of", late)
        complete(bench.write())
        assert len(raced) == 1
        bench.check()

    def test_a_plan_that_comes_when_another_driver_has_removed_its_stage(self, bench: Bench) -> None:
        """A stage is called by all that decides its plan: that holds, and who needs the stage goes on with it."""

        def overtake() -> BaseException:
            complete(bench.write(allow_concurrent=True))
            bench.store.delete(f"{bench.root}/out/{bench.parts()[0]}")
            return lost()

        with faulty_stores(Fault("publish", name="/_curate/plan/", error=overtake)), suppress(CurateError):
            bench.write()
        left = sorted(
            name.rpartition("/")[2] for name in bench.objects() if re.search("stages/.*(plan/|job.json)", name)
        )
        assert left == ["00000.parquet"]
        complete(bench.write())
        bench.check()

    def test_a_stage_that_fails_once_another_driver_has_completed_the_job(self, bench: Bench) -> None:
        """Whatever it fails of: all outputs are there, and that is what was asked for."""

        def rows() -> Dataset:
            read = curate.read_parquet(f"{bench.root}/in").map_batches(_may_break, batch_size=None)
            return read.sort("n").map_batches(_after, batch_size=None)

        def act() -> None:
            complete(Bench(bench.root, Moving(bench)).write(rows(), allow_concurrent=True))
            broken["f0"].set()

        complete(bench.write(rows(), backend=Meanwhile(act, stage=1)))


class Moving(FakeClock):
    """Time in which the other driver shows that it moves."""

    def __init__(self, bench: Bench) -> None:
        super().__init__()
        self._bench = bench

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        for item in list(self._bench.store.list(f"{self._bench.root}/out/")):
            if item.uri.endswith("/heartbeat.json") or item.uri.endswith("/run.json"):
                value = json.loads(self._bench.store.read(item.uri))
                beat = {**value, "updated": self.now(), "state": "running"}
                self._bench.store.replace(item.uri.replace("run.json", "heartbeat.json"), json.dumps(beat).encode())


@pytest.mark.slow
def test_a_dry_run(bench: Bench) -> None:
    """Says which stage comes next; writes nothing, starts nothing."""
    spec, options = bench.options(bench.sorted(), "out")
    before = bench.objects()
    assert dry_run(spec, options)[1].startswith("stage 1 of 2")
    assert bench.objects() == before
    killed(bench, 1, name="out/part-", operation="publish")
    assert dry_run(spec, options)[1].startswith("stage 2 of 2")
    complete(bench.write())
    assert "run      0" in dry_run(spec, options)[1]
    assert not dry_run(spec, options)[1].startswith("stage ")
    assert dry_run(spec, replace(options, overwrite=True))[1].startswith("stage 1 of 2")


@pytest.mark.slow
def test_outputs_that_another_version_planned(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Are not mixed with those that this one would make."""
    killed(bench, 1, name="part-00001-of", operation="publish")
    monkeypatch.setattr(ranges, "LEAST_BYTES", 700)
    with pytest.raises(
        ConfigError, match=r"planned as 3 outputs, but this version of curate makes different ones .* [4-9] of them"
    ):
        bench.write()
    complete(bench.write(overwrite=True))
