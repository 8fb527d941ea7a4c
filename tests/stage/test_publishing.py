"""What short shards become is published while others are computed: in order, whole, and only where that pays."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest

from curate.errors import StorageError
from curate.formats.encoding import Format
from curate.ledger.compression import decompress
from curate.objects.record import OutputFormat
from curate.pipeline.meters import Meters
from curate.pipeline.pipeline import Pipeline
from curate.pipeline.shard_books import ShardBooks
from curate.pipeline.step import BatchPosition, Compute
from curate.runtime import process_guard
from curate.runtime.process_guard import ProcessSpoiltError
from curate.sources.inputs import FileRows
from curate.sources.split import SHARD_BYTES, whole
from curate.stage import publishing
from curate.stage.job_record import JobRecord
from curate.stage.messages import TaskInput
from curate.stage.outputs import Outputs
from curate.stage.program import PROGRESS_S, StageProgram
from curate.stage.publishing import FIRST_ALONE, MOST_OPEN, Beside, ShardAttempt, WholeShard
from curate.stage.stage import Stage, TaskSettings
from curate.storage.protocol import Calls, Object, Outcome, Published, Writer
from curate.stores.local import LocalStore, LocalWriter
from curate.stores.open import open_store
from curate.tasks.books import Books
from curate.tasks.failure import FailureKind, ShardProgress, ShardRecord
from curate.tasks.shard import Shard
from curate.testing.clock import FakeClock

IN = pa.schema([("n", pa.int64())])
JOB = JobRecord("copy", {"version": 1}, OutputFormat.PARQUET, "zstd")
WAIT_S = 60.0
"""For what happens at once if it happens at all."""


@dataclass
class Copy:
    """An operator that gives what it is given, and does something at some rows."""

    at: dict[int, Any] = field(default_factory=dict)
    seen: list[int] = field(default_factory=list)
    name: str = "copy"
    batch_rows: int | None = None
    compute: Compute | None = None
    num_cpus: float | None = None
    one_schema: bool = False

    def opened(self) -> Copy:
        return self

    def apply(self, batch: pa.Table, tally: ShardBooks, place: BatchPosition) -> Iterable[pa.Table]:
        del tally, place
        for n in batch["n"].to_pylist():
            self.seen.append(n)
            if n in self.at:
                self.at[n]()
        yield batch

    def hide(self, text: str) -> str:
        return text


class Twice(Copy):
    """Gives each batch twice: the same job, by its record, and other bytes."""

    def apply(self, batch: pa.Table, tally: ShardBooks, place: BatchPosition) -> Iterable[pa.Table]:
        yield from [*super().apply(batch, tally, place)] * 2


@dataclass
class Gate:
    """Holds back what outputs are waited for until the test lets them go."""

    opened: threading.Event = field(default_factory=threading.Event)
    held: set[str] = field(default_factory=set)
    fail: set[str] = field(default_factory=set)
    published: list[str] = field(default_factory=list)
    threads: set[str] = field(default_factory=set)

    def before(self, uri: str) -> None:
        name = Path(uri).stem
        self.threads.add(threading.current_thread().name)
        if name in self.held:
            assert self.opened.wait(WAIT_S)
        if name in self.fail:
            raise StorageError(f"{name} cannot be published")


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    made, sync, finish = Gate(), LocalWriter._sync, LocalWriter._finish

    def gated(writer: LocalWriter) -> None:
        if not writer._synced:
            made.before(writer._uri)
        sync(writer)

    def noted(writer: LocalWriter) -> Published:
        published = finish(writer)
        made.published.append(Path(writer._uri).stem)
        return published

    monkeypatch.setattr(LocalWriter, "_sync", gated)
    monkeypatch.setattr(LocalWriter, "_finish", noted)
    return made


@dataclass
class House:
    """A folder of inputs of one row each, shard k of the number k, and a program over it."""

    folder: Path

    def shards(self, count: int) -> tuple[tuple[int, Shard], ...]:
        return tuple(one for k in range(count) for one in self.shard(k, [k]))

    def shard(self, index: int, numbers: Iterable[int]) -> tuple[tuple[int, Shard], ...]:
        store = open_store(str(self.folder), scratch=f"{self.folder}/tmp")
        data = b"".join(orjson.dumps({"n": n}) + b"\n" for n in numbers)
        put = store.publish(f"{self.folder}/in/{index:02d}.jsonl", data).object
        return ((index, whole(f"{index:02d}", put.uri, put.size, put.generation)),)

    def program(self, operator: Copy, *, beside: bool = True, out: str = "out", **tasks: Any) -> StageProgram:
        settings = replace(TaskSettings(batch_rows=2, shard_bytes=SHARD_BYTES), **tasks)
        stage = Stage(JOB, settings, Pipeline((operator,)), FileRows(held={Format.JSONL: IN}))
        # However slow this machine is, no shard takes long enough to say so.
        where = f"{self.folder}/{out}", f"{self.folder}/tmp"
        return StageProgram(stage, "run-1", *where, clock=FakeClock(), beside=beside)

    def names(self, out: str = "out") -> list[str]:
        return sorted(path.stem for path in (self.folder / out).glob("*.parquet"))

    def logged(self) -> list[dict[str, Any]]:
        paths = sorted((self.folder / "out").glob("_curate/runs/*/logs/*"))
        return [orjson.loads(line) for path in paths for line in decompress(path.read_bytes()).splitlines()]

    def bytes(self, out: str) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in (self.folder / out).glob("*.parquet")}


@pytest.fixture(autouse=True)
def _slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow this machine is, shards are short."""
    monkeypatch.setattr(publishing, "SHORT_S", float("inf"))


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


def _no_writer(*_: Any) -> Any:
    raise AssertionError


def indexes(records: Iterable[ShardRecord]) -> list[int]:
    return [record.index for record in records]


COUNT = FIRST_ALONE + MOST_OPEN + 5


class TestOrder:
    def test_one_is_published_while_the_next_ones_are_computed(self, house: House, gate: Gate) -> None:
        """The first that may be is held back until as many more are computed as may be open: these do not wait."""
        first = FIRST_ALONE
        gate.held = {f"{first:02d}"}
        operator = Copy(at={first + MOST_OPEN - 1: gate.opened.set})
        records = list(house.program(operator).run(TaskInput(house.shards(COUNT), 1, IN)))
        assert indexes(records) == list(range(COUNT))
        assert [record.failure for record in records if record.failure is not None] == []
        assert len(house.names()) == COUNT

    def test_no_more_are_open_than_may_be(self, gate: Gate) -> None:
        """Of so many that all wait, the first one is given out: to be waited for."""

        class Waiting(Outputs):
            def wait_ahead(self) -> bool:
                return gate.opened.wait(WAIT_S)

        def publish() -> Published:
            return Published(Outcome.CREATED, Object("/out", 1, "1"))

        task = TaskInput((), 1, IN)
        shards = [
            ShardAttempt(k, whole(f"{k}", f"/in/{k}", 1, "1"), None, task, open_store, None) for k in range(MOST_OPEN)
        ]
        with Beside("run-1", allowed=True) as beside:
            made = [
                WholeShard(
                    one, Waiting(open_store("memory://none"), {}, {}, _no_writer), Books(), Meters(()), publish, ""
                )
                for one in shards
            ]
            for one in made[:-1]:
                beside.add(one)
                assert list(beside.done()) == []
            beside.add(made[-1])
            assert next(beside.done()) is made[0]
            gate.opened.set()
            assert list(beside.done(0)) == made

    def test_each_record_comes_when_its_output_is_there(self, house: House) -> None:
        for record in house.program(Copy()).run(TaskInput(house.shards(COUNT), 1, IN)):
            assert f"{record.index:02d}" in house.names()

    def test_the_same_bytes_as_one_by_one(self, house: House) -> None:
        shards = house.shards(COUNT)
        made = {}
        for beside in (False, True):
            records = list(house.program(Copy(), beside=beside, out=str(beside)).run(TaskInput(shards, 1, IN)))
            made[beside] = house.bytes(str(beside)), [(one.books, one.checksum, one.bytes_out) for one in records]
        assert made[True] == made[False]

    def test_all_calls_are_told(self, house: House) -> None:
        made = house.program(Copy())
        total = Calls()
        for record in made.run(TaskInput(house.shards(COUNT), 1, IN)):
            assert record.calls is not None
            total = total.plus(record.calls)
        assert total == made._stores.calls == Calls(get=COUNT, put=COUNT)


class TestWhere:
    def one_by_one(self, program: StageProgram, task: TaskInput, gate: Gate) -> bool:
        list(program.run(task))
        return gate.threads == {threading.current_thread().name}

    def test_the_first_of_a_task_are_not(self, house: House, gate: Gate) -> None:
        assert self.one_by_one(house.program(Copy()), TaskInput(house.shards(FIRST_ALONE), 1, IN), gate)

    def test_where_it_is_not_allowed(self, house: House, gate: Gate) -> None:
        assert self.one_by_one(house.program(Copy(), beside=False), TaskInput(house.shards(COUNT), 1, IN), gate)

    def test_nor_at_a_later_attempt(self, house: House, gate: Gate) -> None:
        assert self.one_by_one(house.program(Copy()), TaskInput(house.shards(COUNT), 2, IN), gate)

    def test_nor_with_a_time_limit_which_counts_from_the_record_before(self, house: House, gate: Gate) -> None:
        program = house.program(Copy(), task_timeout_s=3600.0)
        assert self.one_by_one(program, TaskInput(house.shards(COUNT), 1, IN), gate)

    @pytest.mark.parametrize(("name", "value"), [("SMALL_BYTES", 10), ("SHORT_S", 0.0)])
    def test_nor_what_is_large_or_long(
        self, house: House, gate: Gate, monkeypatch: pytest.MonkeyPatch, name: str, value: float
    ) -> None:
        monkeypatch.setattr(publishing, name, value)
        assert self.one_by_one(house.program(Copy()), TaskInput(house.shards(COUNT), 1, IN), gate)

    def test_nor_after_user_code_that_changes_its_process(self, house: House, gate: Gate) -> None:
        """What a thread makes would get the umask that user code sets meanwhile."""
        operator = Copy(at={1: lambda: os.umask(0o077)})
        assert self.one_by_one(house.program(operator), TaskInput(house.shards(COUNT), 1, IN), gate)

    def test_all_others_are(self, house: House, gate: Gate) -> None:
        assert not self.one_by_one(house.program(Copy()), TaskInput(house.shards(COUNT), 1, IN), gate)


class TestFailures:
    def test_one_that_cannot_be_published_fails_alone(self, house: House, gate: Gate) -> None:
        bad = FIRST_ALONE + 1
        gate.fail = {f"{bad:02d}"}
        records = list(house.program(Copy()).run(TaskInput(house.shards(COUNT), 1, IN)))
        assert indexes(records) == list(range(COUNT))
        failed = {one.index: one.failure.kind for one in records if one.failure is not None}
        assert failed == {bad: FailureKind.STORAGE}
        assert len(house.names()) == COUNT - 1

    @pytest.mark.parametrize("taken", [False, True])
    def test_the_one_at_hand_does_not_feel_one_that_cannot_be_published(
        self, house: House, gate: Gate, monkeypatch: pytest.MonkeyPatch, taken: bool
    ) -> None:
        """What is around a shard is there for one at a time: the one that is half way through meanwhile goes on in the
        same folder, and what it prints is heard. Of one that failed word comes at once; one whose name is taken is
        looked at when the one at hand has ended."""
        bad, tried, where, go_ahead = FIRST_ALONE + 1, threading.Event(), [], WholeShard.go_ahead

        def gone_ahead(one: WholeShard, uploads: Any, run: str) -> None:
            go_ahead(one, uploads, run)
            if one.attempt.index == bad:
                tried.set()

        def begin() -> None:
            os.chdir(house.folder)
            assert tried.wait(WAIT_S)
            # So long that it says how far it is: then what was published meanwhile is told, too.
            program.clock.sleep(2 * PROGRESS_S)

        def end() -> None:
            sys.stdout.write("at its end\n")
            where.append(Path.cwd())

        monkeypatch.setattr(WholeShard, "go_ahead", gone_ahead)
        shards = house.shards(bad + 1) + house.shard(bad + 1, range(100, 108))
        if taken:
            list(house.program(Twice(), out="before").run(TaskInput(shards[bad : bad + 1], 1, IN)))
            (house.folder / "out").mkdir()
            (house.folder / f"out/{bad:02d}.parquet").write_bytes(house.bytes("before")[f"{bad:02d}.parquet"])
        else:
            gate.fail = {f"{bad:02d}"}
        program = house.program(Copy(at={100: begin, 107: end}))
        said = list(program.run(TaskInput(shards, 1, IN)))
        records = [one for one in said if isinstance(one, ShardRecord)]
        assert indexes(records) == list(range(len(shards)))
        first_word = next(at for at, one in enumerate(said) if isinstance(one, ShardProgress))
        assert (said.index(records[bad]) > first_word) is taken
        failed = {one.index: one.failure.error for one in records if one.failure is not None}
        assert failed == ({} if taken else {bad: f"StorageError: {bad:02d} cannot be published"})
        assert [one.index for one in records if one.different] == [bad] * taken
        assert where == [house.folder]
        assert [line["event"] for line in house.logged() if line["stream"] == "stdout"] == ["at its end"]

    def test_one_that_raises_does_not_keep_those_before_it(self, house: House) -> None:
        bad = FIRST_ALONE + 2

        def stumble() -> None:
            raise ValueError("no")

        records = list(house.program(Copy(at={bad: stumble})).run(TaskInput(house.shards(COUNT), 1, IN)))
        assert indexes(records) == list(range(COUNT))
        assert [one.index for one in records if one.failure is not None] == [bad]
        assert f"{bad:02d}" not in house.names()

    def test_those_before_one_that_spoils_the_process_are_told(self, house: House) -> None:
        bad = FIRST_ALONE + 2
        operator = Copy(at={bad: lambda: process_guard.spoil("its lungs")})
        got: list[ShardRecord] = []
        try:
            with pytest.raises(ProcessSpoiltError):
                got.extend(house.program(operator).run(TaskInput(house.shards(COUNT), 1, IN)))
        finally:
            process_guard._spoilt.clear()
        assert house.names() == [f"{k:02d}" for k in range(bad + 1)]

    def test_those_before_one_that_ends_the_process_are_there(self, house: House) -> None:
        """So that it is the first without an output, which is what a task is thought to have died of."""
        bad = FIRST_ALONE + 2

        def leave() -> None:
            raise SystemExit(3)

        got: list[ShardRecord] = []
        with pytest.raises(SystemExit):
            got.extend(house.program(Copy(at={bad: leave})).run(TaskInput(house.shards(COUNT), 1, IN)))
        assert house.names() == [f"{k:02d}" for k in range(bad)]

    def test_one_that_is_left_off_leaves_nothing_open(self, house: House, gate: Gate) -> None:
        """Whoever stops to listen has waited for what was being published, and no temporary is left."""
        program = house.program(Copy())
        running = program.run(TaskInput(house.shards(COUNT), 1, IN))
        for record in running:
            if record.index == FIRST_ALONE:
                break
        running.close()
        assert sorted(gate.published) == house.names()
        assert not [name for name in threading.enumerate() if name.name.startswith("publish")]

    @pytest.mark.parametrize("threads", [0, 1, 3])
    def test_threads_that_are_not_to_be_had(self, house: House, monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
        """Those that there are publish all of it, as where a limit of processes or of memory is reached; without any,
        each shard is published in turn."""
        started, start = [], threading.Thread.start

        def limited(thread: threading.Thread) -> None:
            if thread.name.startswith("publish"):
                started.append(thread.name)
                if len(started) > threads:
                    raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", limited)
        # As of a store that is no disk.
        monkeypatch.setattr(LocalWriter, "settle", Writer.settle)
        records = list(house.program(Copy()).run(TaskInput(house.shards(COUNT), 1, IN)))
        assert len(started) > threads
        assert indexes(records) == list(range(COUNT))
        assert [record.failure for record in records if record.failure is not None] == []
        assert len(house.names()) == COUNT

    @pytest.mark.parametrize("same", [True, False])
    def test_a_name_that_is_taken_is_looked_at(self, house: House, same: bool) -> None:
        """By the same bytes it is done; by others, of this job, those count and the record says so."""
        at, shards = FIRST_ALONE + 3, house.shards(COUNT)
        list(house.program(Copy() if same else Twice(), out="before").run(TaskInput(shards, 1, IN)))
        (house.folder / "out").mkdir()
        (house.folder / f"out/{at:02d}.parquet").write_bytes(house.bytes("before")[f"{at:02d}.parquet"])
        records = list(house.program(Copy()).run(TaskInput(shards, 1, IN)))
        assert [one.index for one in records if one.different] == ([] if same else [at])
        assert [one.failure for one in records if one.failure is not None] == []


def test_stores_count_calls_of_several_threads(tmp_path: Path) -> None:
    """Calls are told by their sum: none may be lost."""
    store = LocalStore(str(tmp_path / "tmp"))

    def publish(part: int) -> Iterator[None]:
        for k in range(200):
            store.publish(f"{tmp_path}/out/{part}-{k}", b"x")
        yield

    threads = [threading.Thread(target=lambda part=part: list(publish(part))) for part in range(4)]  # type: ignore[misc]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert store.calls == Calls(put=800)
