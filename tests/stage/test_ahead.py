"""Small inputs of the next shards are fetched while one is computed: the same rows, errors and requests, sooner."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any, BinaryIO

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import curate
from curate.errors import TransientStorageError
from curate.formats.encoding import Format
from curate.objects import ahead
from curate.objects.ahead import READ_AHEAD, InputsAhead
from curate.pipeline.pipeline import Pipeline
from curate.sources.inputs import FileRows, InputFiles
from curate.sources.split import SHARD_BYTES, whole
from curate.stage.messages import TaskInput
from curate.stage.program import StageProgram
from curate.stage.stage import Stage, TaskSettings
from curate.storage.protocol import Calls, Object, Store
from curate.stores.local import LocalStore
from curate.stores.memory import MemoryStore, clear
from curate.stores.open import open_store, wrap_stores
from curate.tasks.failure import FailureKind, ShardRecord
from curate.tasks.shard import Shard, SliceKind
from curate.testing.clock import FakeClock
from tests.stage.test_publishing import IN, JOB, WAIT_S, Copy

ROOT = "memory://reading"


@dataclass
class Desk:
    """Who opened what, in which thread; what is held back, and what fails there."""

    fails: set[str] = field(default_factory=set)
    held: threading.Event | None = None
    opened: list[tuple[str, bool]] = field(default_factory=list)
    """Names, each with whether a thread fetched it ahead."""
    changed: threading.Condition = field(default_factory=threading.Condition)

    def open(self, store: Store, object: Object) -> BinaryIO:
        name, ahead = PurePosixPath(object.uri).stem, threading.current_thread().name.startswith("read")
        if ahead and self.held is not None:
            assert self.held.wait(WAIT_S)
        try:
            if ahead and name in self.fails:
                raise TransientStorageError(f"{name} cannot be read")
            return store.open(object)
        finally:
            with self.changed:
                self.opened.append((name, ahead))
                self.changed.notify_all()

    def wait_for(self, names: Iterable[str]) -> None:
        """Waits until these were opened ahead."""
        wanted = {(name, True) for name in names}
        with self.changed:
            assert self.changed.wait_for(lambda: wanted <= set(self.opened), WAIT_S), self.opened

    @property
    def ahead(self) -> list[str]:
        return sorted(name for name, ahead in self.opened if ahead)

    @property
    def in_turn(self) -> list[str]:
        return [name for name, ahead in self.opened if not ahead]


class _Watched:
    def __init__(self, inner: Store, desk: Desk) -> None:
        self._inner, self._desk = inner, desk

    def open(self, object: Object) -> BinaryIO:
        return self._desk.open(self._inner, object)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@pytest.fixture
def desk() -> Iterator[Desk]:
    made = Desk()
    with wrap_stores(lambda inner: _Watched(inner, made)):  # type: ignore[arg-type,return-value]
        yield made
    clear("reading")


def shards(count: int, **sizes: int) -> list[Shard]:
    """Publishes inputs of one row each, shard k of the number k; of some, as many bytes as said."""
    made, store = [], MemoryStore()
    for k in range(count):
        data = orjson.dumps({"n": k}) + b"\n"
        put = store.publish(f"{ROOT}/in/{k:02d}.jsonl", data.ljust(sizes.get(f"s{k}", 0), b"\n")).object
        made.append(whole(f"{k:02d}", put.uri, put.size, put.generation))
    return made


def program(operator: Copy | None = None, *, beside: bool = True, rows: Any = None, **tasks: Any) -> StageProgram:
    settings = replace(TaskSettings(batch_rows=2, shard_bytes=SHARD_BYTES), **tasks)
    stage = Stage(JOB, settings, Pipeline((operator or Copy(),)), rows or FileRows(held={Format.JSONL: IN}))
    return StageProgram(stage, "run-1", f"{ROOT}/out", "/nowhere", clock=FakeClock(), beside=beside)


def run(made: StageProgram, task: list[Shard], attempt: int = 1) -> list[ShardRecord]:
    return list(made.run(TaskInput(tuple(enumerate(task)), attempt, IN)))


def rows() -> dict[str, list[int]]:
    store = MemoryStore()
    return {
        PurePosixPath(one.uri).stem: pq.read_table(pa.BufferReader(store.read(one.uri)))["n"].to_pylist()
        for one in store.list(f"{ROOT}/out/")
    }


def names(first: int, last: int) -> list[str]:
    return [f"{k:02d}" for k in range(first, last)]


class TestWhatIsFetched:
    def test_the_next_ones_are_fetched_while_the_first_is_computed(self, desk: Desk) -> None:
        records = run(program(Copy({0: lambda: desk.wait_for(names(1, 1 + READ_AHEAD))})), shards(20))
        assert rows() == {f"{k:02d}": [k] for k in range(20)}
        assert [record.failure for record in records] == [None] * 20
        assert (desk.ahead, desk.in_turn) == (names(1, 20), ["00"])

    def test_no_more_than_so_many(self, desk: Desk) -> None:
        seen: list[list[str]] = []

        def look() -> None:
            desk.wait_for(names(1, 6 + READ_AHEAD))
            seen.append(desk.ahead)

        run(program(Copy({5: look})), shards(20))
        assert seen == [names(1, 6 + READ_AHEAD)]

    def test_it_is_as_many_requests(self, desk: Desk) -> None:
        task = shards(12)
        records = run(program(), task)
        calls = Calls()
        for record in records:
            calls = calls.plus(record.calls or Calls())
        assert calls == Calls(get=12, put=12)
        assert len(desk.opened) == 12

    @pytest.mark.parametrize(
        ("how", "settings"),
        [
            ("not beside", {"beside": False}),
            ("a time limit", {"task_timeout_s": 60.0}),
            ("files, which are read as far as whoever is given them likes", {"rows": InputFiles()}),
        ],
    )
    def test_nothing_is_where_that_could_do_harm(self, desk: Desk, how: str, settings: dict[str, Any]) -> None:
        del how
        run(program(**settings), shards(4))
        assert desk.ahead == []

    def test_nothing_is_of_what_is_tried_again(self, desk: Desk) -> None:
        run(program(), shards(4), attempt=2)
        assert (desk.ahead, rows()) == ([], {f"{k:02d}": [k] for k in range(4)})

    def test_large_ones_and_slices_are_left_to_their_turn(self, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ahead, "SMALL_BYTES", 100)
        task = shards(6, s1=101, s4=100)
        task[3] = replace(task[3], kind=SliceKind.BYTES, stop=task[3].object_bytes)
        run(program(), task)
        assert (desk.ahead, desk.in_turn) == (["02", "04", "05"], ["00", "01", "03"])
        assert rows() == {f"{k:02d}": [k] for k in range(6)}

    def test_one_shard_alone_costs_no_thread(self, desk: Desk) -> None:
        run(program(), shards(1))
        assert (desk.ahead, desk.in_turn) == ([], ["00"])

    def test_a_disk_is_not_read_ahead(self) -> None:
        made = [Object(f"/data/{k}.jsonl", 10, "1") for k in range(3)]
        with InputsAhead(made, lambda _: LocalStore(None)) as inputs:
            assert isinstance(inputs.store_of("/data/0.jsonl"), LocalStore)

    @pytest.mark.usefixtures("desk")
    def test_one_that_comes_twice_is_there_twice(self) -> None:
        objects = [Object(one.uri, one.object_bytes, one.generation) for one in shards(3)]
        order = [0, 1, 0, 0, 2, 1]
        with InputsAhead([objects[k] for k in order], open_store) as inputs:
            found = [inputs.store_of(ROOT).open(objects[k]).read() for k in order]
        assert found == [b'{"n":%d}\n' % k for k in order]

    @pytest.mark.usefixtures("desk")
    def test_those_that_nobody_opens_are_passed_over(self) -> None:
        objects = [Object(one.uri, one.object_bytes, one.generation) for one in shards(30)]
        with InputsAhead(objects, open_store) as inputs:
            for k in (0, 20, 29):
                assert inputs.store_of(ROOT).open(objects[k]).read() == b'{"n":%d}\n' % k
                assert len(inputs._fetched) <= 1 + READ_AHEAD


class TestWhereRowsAreConsumed:
    @pytest.fixture
    def folder(self) -> str:
        shards(12)
        return f"{ROOT}/in/*.jsonl"

    def test_small_files_of_a_bundle_are_fetched_ahead(self, desk: Desk, folder: str) -> None:
        dataset = curate.read_json(folder, schema=IN)
        desk.opened.clear()
        assert sorted(row["n"] for row in dataset.iter_rows()) == list(range(12))
        # Each is opened once; the first bundles are of one file, so that the first rows come soon.
        assert sorted(desk.ahead + desk.in_turn) == names(0, 12)
        assert desk.ahead

    def test_where_some_rows_are_enough_none_is(self, desk: Desk, folder: str) -> None:
        dataset = curate.read_json(folder, schema=IN)
        desk.opened.clear()
        assert [row["n"] for row in dataset.take(2)] == [0, 1]
        assert desk.ahead == []


class TestWhatGoesWrong:
    def test_ahead_is_asked_again_in_its_turn_and_others_are_not_fetched(self, desk: Desk) -> None:
        desk.fails = set(names(0, 40))
        records = run(program(), shards(40))
        assert [record.failure for record in records] == [None] * 40
        assert rows() == {f"{k:02d}": [k] for k in range(40)}
        assert desk.in_turn == names(0, 40)
        assert set(desk.ahead) <= set(names(1, 2 + READ_AHEAD))

    def test_where_no_thread_is_to_be_had_each_is_read_in_its_turn(
        self, desk: Desk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: object) -> None:
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(ahead.ThreadPoolExecutor, "submit", refuse)
        records = run(program(), shards(12))
        assert [record.failure for record in records] == [None] * 12
        assert (desk.ahead, desk.in_turn) == ([], names(0, 12))

    @pytest.mark.parametrize("what", ["removed", "replaced"])
    @pytest.mark.usefixtures("desk")
    def test_of_an_input_is_said_of_its_shard(self, what: str) -> None:
        task = shards(4)
        if what == "removed":
            MemoryStore().delete(task[2].uri)
        else:
            MemoryStore().replace(task[2].uri, b'{"n": 7}\n')
        ahead, alone = run(program(), task), run(program(beside=False), task)
        assert [one.failure and one.failure.error for one in ahead] == [
            one.failure and one.failure.error for one in alone
        ]
        failure = ahead[2].failure
        assert failure is not None
        assert failure.kind is FailureKind.CORRUPT
        assert f"was {what}" in failure.error

    def test_what_was_there_by_the_plan_is_read_though_it_is_replaced_before_its_turn(self, desk: Desk) -> None:
        task = shards(4)

        def late() -> None:
            desk.wait_for(["03"])
            MemoryStore().replace(task[3].uri, b'{"n": 7}\n')

        records = run(program(Copy({2: late})), task)
        assert [record.failure for record in records] == [None] * 4
        assert rows()["03"] == [3]

    def test_a_task_that_ends_early_waits_for_nothing(self, desk: Desk) -> None:
        desk.held = threading.Event()
        task = shards(4)
        objects = [Object(one.uri, one.object_bytes, one.generation) for one in task]
        with InputsAhead(objects, open_store) as inputs:
            inputs.store_of(ROOT).open(objects[0]).close()
        # Those that have begun are still held, and nobody waited for them.
        desk.held.set()

    def test_a_store_travels_as_the_one_that_it_is_made_of(self) -> None:
        objects = [Object(one.uri, one.object_bytes, one.generation) for one in shards(2)]
        with InputsAhead(objects, lambda _: MemoryStore()) as inputs:
            assert isinstance(pickle.loads(pickle.dumps(inputs.store_of(ROOT))), MemoryStore)
