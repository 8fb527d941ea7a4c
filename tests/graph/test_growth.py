"""Jobs with an exchange and inputs that were added: exact deduplication takes them, and ends as a run from nothing.

All others refuse, say what has to be made anew, and make it when they are asked to.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import curate
from curate.dataset.dataset import Dataset
from curate.errors import ConfigError
from curate.exchange import run_file
from curate.exchange.run_file import RunWriter
from curate.graph import start
from curate.graph.entry import dry_run
from curate.graph.entry import run as run_stages
from curate.job.job import Job
from curate.ledger import layout
from curate.ledger.ledger import Ledger
from curate.ledger.summary import Summary
from curate.objects.record import OutputFormat
from curate.observe.job import read_status
from curate.observe.verify import verify
from curate.plan import rewrites
from curate.plan import stages as plan_stages
from curate.reduce import ranges
from curate.sources import files
from curate.stage import program
from curate.storage.faults import Fault
from curate.stores import memory
from curate.stores.memory import MemoryStore
from curate.testing.clock import FakeClock
from curate.testing.stores import faulty_stores
from jobs.dedup_exact import DedupExact
from tests.e2e.jobs.seams import SEAMS, rows
from tests.support.gcs_emulator import GcsEmulator
from tests.support.harness import job_summary, outputs
from tests.support.sweeps import Sweep, Trace
from tests.support.workbench import complete

_numbers = itertools.count()

Rows = Sequence[tuple[str, int]]
"""Texts, and numbers."""


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewrites, "LEAST_MAP_BYTES", 1024)
    monkeypatch.setattr(ranges, "LEAST_BYTES", 300)
    monkeypatch.setattr(program, "RunWriter", partial(RunWriter, page_bytes=150))


def even(batch: pa.Table) -> pa.Table:
    """Keeps some rows; a function of the user."""
    return batch.filter(pc.equal(pc.bit_wise_and(batch["k"], 1), 0))


DATASETS: dict[str, Callable[[Dataset], Dataset]] = {
    "one": lambda ds: ds.dedup_exact("text", id_column="id"),
    "two": lambda ds: ds.dedup_exact(["text", "k"]).filter(pc.field("k") < 3, reason="large").dedup_exact("text"),
    "more steps": lambda ds: (
        ds.random_sample(0.8, seed=1).dedup_exact("text", normalise=True, id_column="id").map_batches(even)
    ),
}
"""Deduplications that take new inputs."""


@dataclass
class World:
    """Inputs and outputs, in a bucket of their own."""

    how: str = "one"
    """One of `DATASETS`, or `job`: that of jobs/."""
    root: str = field(default_factory=lambda: f"memory://growth-{next(_numbers)}")
    clock: FakeClock = field(default_factory=FakeClock)

    def put(self, name: str, found: Rows) -> None:
        """Writes an input, in place of what is there."""
        columns = {"id": [f"{name}-{n}" for n in range(len(found))], "text": [one for one, _ in found]}
        table = pa.table({**columns, "k": pa.array([k for _, k in found], pa.int64())})
        table = table.cast(pa.schema([("id", pa.string()), ("text", pa.string()), ("k", pa.int64())]))
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="none", row_group_size=4)
        self.publish(name, sink.getvalue().to_pybytes())

    def publish(self, name: str, data: bytes) -> None:
        uri = f"{self.root}/in/{name}.parquet"
        MemoryStore().delete(uri)
        MemoryStore().publish(uri, data)

    def stage(
        self, out: str = "out", of: Callable[[Dataset], Dataset] | None = None, **options: Any
    ) -> tuple[Any, Any]:
        """Returns the stage that writes, and its options."""
        given: dict[str, Any] = {"output": f"{self.root}/{out}", "backend": "inline", "yes": True} | options
        inputs = given.pop("inputs", [f"{self.root}/in"])
        if self.how == "job" and of is None:
            job = DedupExact()
            return job.spec(), job.options(input=inputs, **given)
        ds = (of or DATASETS[self.how])(curate.read_parquet(inputs))
        spec = plan_stages.stage_of(ds._plan, OutputFormat.PARQUET, None)
        return spec, DedupExact().options(input=inputs, **given)

    def write(self, out: str = "out", **options: Any) -> Summary:
        """Runs the write, as a process of its own would."""
        run_file.opened.cache_clear()
        return run_stages(*self.stage(out, **options), clock=self.clock)

    def objects(self, out: str = "out") -> dict[str, bytes]:
        start = f"{self.root}/{out}/"
        return {one.uri[len(start) :]: MemoryStore().read(one.uri) for one in MemoryStore().list(start)}

    def generations(self, out: str = "out") -> dict[str, str]:
        """Returns the generations of all outputs, extra ones too."""
        start = f"{self.root}/{out}/"
        found = {one.uri[len(start) :]: one.generation for one in MemoryStore().list(start)}
        return {name: one for name, one in found.items() if not name.startswith("_curate/")}

    @property
    def stored(self) -> dict[str, tuple[bytes, str]]:
        return dict(memory._buckets[self.root.removeprefix("memory://")])

    @stored.setter
    def stored(self, value: dict[str, tuple[bytes, str]]) -> None:
        memory._buckets[self.root.removeprefix("memory://")] = dict(value)

    def check(self) -> None:
        """Checks the output against that of a run from nothing: bytes, books and extra outputs."""
        whole = f"whole-{next(_numbers)}"
        complete(self.write(whole))
        assert outputs(self.objects()) == outputs(self.objects(whole))
        assert books(self.objects()) == books(self.objects(whole))
        assert not [name for name in self.objects() if name.startswith("_curate/stages/")]


def books(objects: dict[str, bytes]) -> dict[str, Any]:
    """Returns what a job says of itself when it is complete, but for its stages: more may have made run files."""
    return {name: value for name, value in job_summary(objects).items() if name != "stages"}


@dataclass
class Watch(Fault):
    """No fault: notes what is stored before each call that changes something below an output."""

    world: World = field(default_factory=World)
    kinds: list[str] = field(default_factory=list)
    before: list[dict[str, tuple[bytes, str]]] = field(default_factory=list)

    def hits(self, operation: str, uri: str) -> bool:
        if operation in ("publish", "replace", "delete") and uri.startswith(f"{self.world.root}/out"):
            name = re.sub(r"[0-9a-f]*[0-9][0-9a-zA-Z-]*", "#", uri.removeprefix(self.world.root))
            self.kinds.append(f"{operation} {name}")
            self.before.append(self.world.stored)
        return False


ROWS = st.lists(st.tuples(st.sampled_from(["a", "A ", "b", "c", "d"]), st.integers(0, 4)), max_size=7)
ADDED = st.lists(ROWS, min_size=1, max_size=3)


class TestGrown:
    @pytest.mark.ci(1)
    @pytest.mark.slow
    @pytest.mark.parametrize("how", [*DATASETS, "job"])
    @settings(max_examples=6)
    @given(
        st.lists(ROWS, max_size=2),
        st.lists(st.tuples(ADDED, st.floats(0, 1), st.booleans(), st.booleans()), min_size=1, max_size=3),
    )
    def test_the_result_is_that_of_a_run_from_nothing(
        self, how: str, first: list[Rows], growths: list[tuple[list[Rows], float, bool, bool]]
    ) -> None:
        """However often inputs were added, wherever a run was killed in between, and whether run files are kept; no
        output is written again."""
        world, number = World(how), itertools.count(1)
        world.put("00", [("a", 1), ("b", 0), ("a", 1)])
        for added in first:
            world.put(f"{next(number):02d}", added)
        complete(world.write(keep_stages=True))
        for some, at, killed, keep in growths:
            before = world.generations()
            for added in some:
                world.put(f"{next(number):02d}", added)
            watch = Watch(world=world)
            with faulty_stores(watch, retry=None):
                complete(world.write(keep_stages=keep))
            if killed:
                # What is added next meets what a kill has left of this.
                world.stored = watch.before[round(at * (len(watch.before) - 1))]
            elif not keep:
                world.check()
            assert before.items() <= world.generations().items()
        complete(world.write())
        world.check()

    @pytest.mark.ci(1)
    @pytest.mark.slow
    @pytest.mark.parametrize("how", ["one", "job"])
    def test_a_kill_while_stages_are_removed_behind_which_inputs_are_added(self, how: str, sweep: Sweep) -> None:
        """Of a stage of which only part is left, the next run needs all, as it has more to compare."""
        world = World(how)
        for number in range(3):
            world.put(f"{number}", [("a", number), ("b", 1), ("c", number)])
        watch = Watch(world=world)
        with faulty_stores(watch, retry=None):
            complete(world.write())
        removed = [at for at, kind in enumerate(watch.kinds) if kind.startswith("delete /out/_curate/stages/")]
        assert len({watch.kinds[at].rpartition("/")[2] for at in removed}) > 4
        for number in sweep([watch.kinds[at] for at in removed], 8):
            at = removed[number]
            world.stored = {name: one for name, one in watch.before[at].items() if not name.startswith("whole")}
            world.put("3", [("a", 3), ("d", 1)])
            complete(world.write())
            world.check()

    @pytest.mark.ci(1)
    @pytest.mark.slow
    @pytest.mark.parametrize("how", ["job", "one"])
    def test_a_kill_before_any_change(self, how: str, sweep: Sweep) -> None:
        """The next run ends with what a run from nothing ends with, and writes only what is not there."""
        world = World(how)
        for number in range(3):
            world.put(f"{number}", [("a", number), ("b", 1), ("c", number)])
        complete(world.write())
        old = world.generations()
        world.put("3", [("a", 3), ("d", 1)])
        world.put("4", [("d", 3), ("d", 1)])
        watch = Watch(world=world)
        with faulty_stores(watch, retry=None):
            complete(world.write())
        world.check()
        whole = world.stored
        assert len(watch.kinds) > 20
        for at in sweep(watch.kinds, 8):
            left = {name: one for name, one in watch.before[at].items() if not name.startswith("whole")}
            world.stored = left
            complete(world.write())
            where = watch.kinds[at]
            assert outputs(world.objects()) == outputs(_below(whole, "out")), where
            assert books(world.objects()) == books(_below(whole, "out")), where
            assert old.items() <= world.generations().items(), where
            there = {name: one for name, (_, one) in left.items() if name.startswith("out/")}
            now = world.generations()
            assert all(now[name[4:]] == one for name, one in there.items() if name[4:] in now), where
            assert verify(f"{world.root}/out").findings == [], where

    def test_what_is_paid(self) -> None:
        """Old inputs are read once more, for their hashes; new ones twice. New outputs alone are written, and only
        their shards run in the last stage."""
        world = World()
        for number in range(4):
            world.put(f"{number}", [("a", number), ("b", 1)])
        first = complete(world.write())
        assert first.dispatched == first.total == 4
        world.put("4", [("b", 1), ("e", 1)])
        reads, written = _Calls(f"{world.root}/in/", ("read", "open")), _Calls(f"{world.root}/out/", ("publish",))
        with faulty_stores(reads, written, retry=None):
            grown = complete(world.write())
        assert (grown.dispatched, grown.skipped, grown.total) == (1, 4, 5)
        once, twice = {reads.count[f"{number}.parquet"] for number in range(4)}, reads.count["4.parquet"]
        assert len(once) == 1 or once == {min(once), max(once)}  # the first is looked at for the schema of all
        assert twice >= 2 * min(once)
        made = [name for name in written.count if not name.startswith("_curate/")]
        assert sorted(made) == ["4.parquet", "_side/duplicates/4.parquet"]
        trace = Trace()
        with faulty_stores(trace, retry=None):
            assert complete(world.write()).dispatched == 0
        assert not [kind for kind in trace.kinds if kind.startswith(("publish", "replace", "delete"))]
        # Twice job.json and the two parts of the plan, once the inputs, who added them, and the summary.
        assert sum(kind.startswith("read") for kind in trace.kinds) == 9

    @pytest.mark.ci(1)
    @pytest.mark.slow
    @pytest.mark.quick(1)
    @pytest.mark.parametrize("how", ["one", "job", "two"])
    def test_what_is_paid_with_kept_stages(self, how: str) -> None:
        """The hashes of old inputs are there: only new ones are read. Of two deduplications, those of the first."""
        world = World(how)
        for number in range(4):
            world.put(f"{number}", [("a", number), ("b", 1)])
        complete(world.write(keep_stages=True))
        reads = _Calls(f"{world.root}/in/", ("read", "open"))
        for number in (4, 5):
            world.put(f"{number}", [("b", 1), ("e", number)])
            reads.count.clear()
            with faulty_stores(reads, retry=None):
                complete(world.write(keep_stages=True))
            looked = {"0.parquet"}  # for the schema of all
            if how == "two":
                assert all(reads.count[f"{old}.parquet"] < reads.count[f"{number}.parquet"] for old in range(1, number))
            else:
                assert reads.count.keys() == {*looked, f"{number}.parquet"}
        stages = orjson.loads(world.objects()[layout.growth(2)])["stages"]
        assert [one["name"].endswith(": map") for one in stages].count(True) == (4 if how == "two" else 3)
        complete(world.write())
        world.check()

    @pytest.mark.slow
    def test_run_files_of_a_damaged_segment_are_made_again(self) -> None:
        """Those that were kept, and are not whole any more."""
        world = World()
        for number in range(4):
            world.put(f"{number}", [("a", number), ("b", 1)] * 9)
        complete(world.write(keep_stages=True))
        runs = [name for name in world.objects() if re.fullmatch(r"_curate/stages/[^/]+/map-.*\.run", name)]
        assert len(runs) > 1
        MemoryStore().delete(f"{world.root}/out/{runs[0]}")
        data = world.objects()[runs[1]]
        MemoryStore().delete(f"{world.root}/out/{runs[1]}")
        MemoryStore().publish(f"{world.root}/out/{runs[1]}", data[:300] + bytes([data[300] ^ 1]) + data[301:])
        world.put("4", [("b", 1), ("e", 1)])
        complete(world.write())
        world.check()

    @pytest.mark.slow
    def test_kept_run_files_of_a_bucket(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """They are on the disk of the machine that runs the job, and are found there."""
        monkeypatch.setenv("CURATE_SCRATCH", str(tmp_path / "scratch"))
        world = World(root="memory://growth-of-a-bucket")
        with GcsEmulator().here(monkeypatch) as emulator:
            reads = _Calls(f"{world.root}/in/", ("read", "open"))
            for number in range(3):
                world.put(f"{number}", [("a", number), ("b", 1)])
                reads.count.clear()
                with faulty_stores(reads, retry=None):
                    complete(world.write(output="gs://bucket/out", keep_stages=number < 2))
                assert reads.count.keys() == {"0.parquet", f"{number}.parquet"}
            assert not list((tmp_path / "scratch").glob("*/*"))
            complete(world.write("whole"))
            found = {uri.removeprefix("gs://bucket/out/"): data for uri, data in emulator.objects().items()}
            assert outputs(found) == outputs(world.objects("whole"))

    @pytest.mark.slow
    def test_there_are_not_ever_more_stages(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Now and then all run files are made anew, by one stage."""
        monkeypatch.setattr(start, "MOST_SEGMENTS", 3)
        world = World()
        found = []
        for number in range(6):
            world.put(f"{number}", [("a", number), ("b", 1)])
            complete(world.write(keep_stages=True))
            found.append(orjson.loads(world.objects()[layout.growth(number)])["segments"] if number else [[0, 1]])
        assert list(map(len, found)) == [1, 2, 3, 1, 2, 3]
        assert found[-1] == [[0, 4], [4, 5], [5, 6]]
        complete(world.write())
        world.check()

    @pytest.mark.slow
    def test_the_ledger_says_which_run_added_what(self) -> None:
        """And its status, and `verify`, know all of it."""
        world = World()
        for number in range(2):
            world.put(f"{number}", [("a", number), ("b", 1)])
        complete(world.write())
        for number in range(2, 4):
            world.put(f"{number}", [("a", number), ("c", 1)])
            world.clock.sleep(60)
            complete(world.write())
        found = world.objects()
        runs = sorted({name.split("/")[2] for name in found if name.startswith("_curate/runs/")})
        told = [orjson.loads(found[layout.growth(number)]) for number in (1, 2)]
        assert [(one["run_id"], one["added"]) for one in told] == [(runs[1], 1), (runs[2], 1)]
        for number, one in enumerate(told, 3):
            listed = pq.read_table(pa.BufferReader(found[one["inputs"]]))["uri"].to_pylist()
            assert list(dict.fromkeys(listed)) == [f"{world.root}/in/{n}.parquet" for n in range(number)]
        status = read_status(f"{world.root}/out", 0.0)
        assert (status.state, status.total, len(status.stages)) == ("complete", 4, 3)
        assert verify(f"{world.root}/out").findings == []

    @pytest.mark.slow
    def test_while_it_grows_it_is_not_complete(self) -> None:
        """From the moment on in which the ledger says so; `--dry-run` says so before, and writes nothing."""
        world = World()
        world.put("0", [("a", 1)])
        complete(world.write())
        world.put("1", [("a", 1)])
        before = world.objects()
        prepared, text, _ = dry_run(*world.stage())
        assert len(prepared.todo)
        assert text.startswith("stage 1 of 3")
        assert f"new      1 input behind the others, such as {world.root}/in/1.parquet" in text
        assert world.objects() == before
        watch = Watch(world=world)
        with faulty_stores(watch, retry=None):
            complete(world.write())
        mapping = next(at for at, kind in enumerate(watch.kinds) if "/stages/" in kind)
        world.stored = watch.before[mapping]
        assert read_status(f"{world.root}/out", 0.0).state != "complete"
        world.put("2", [("a", 1)])
        complete(world.write())
        world.check()

    @pytest.mark.slow
    def test_a_part_of_the_new_ones(self) -> None:
        """`--limit` takes them too; the next run does the rest."""
        world = World()
        world.put("0", [("a", 1)])
        complete(world.write())
        for number in range(1, 4):
            world.put(f"{number}", [("a", 1), ("b", number)])
        assert complete(world.write(limit=2)).dispatched == 1
        assert "_curate/summary.json" not in world.objects()
        assert complete(world.write()).dispatched == 2
        world.check()

    @pytest.mark.ci(4)
    @pytest.mark.slow
    @pytest.mark.quick(3)
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("inputs", "_curate/inputs/../job.json"),
            ("inputs", "_curate/inputs/0123456789abcdef.parquet"),
            ("segments", [[0, 1]]),
            ("segments", [[0, 1], [2, 3]]),
            ("segments", [[1, 2]]),
            ("segments", [[0, 0], [0, 2]]),
            ("segments", "all"),
            ("stages", 7),
        ],
    )
    def test_a_ledger_that_says_what_cannot_be(self, name: str, value: Any) -> None:
        """Is damaged: nothing goes by it."""
        world = World()
        for number in range(2):
            world.put(f"{number}", [("a", number)])
            complete(world.write())
        uri = f"{world.root}/out/{layout.growth(1)}"
        told = orjson.loads(MemoryStore().read(uri)) | {name: value}
        MemoryStore().delete(uri)
        MemoryStore().publish(uri, orjson.dumps(told))
        with pytest.raises(ConfigError, match="damaged"):
            world.write()
        complete(world.write(overwrite=True))
        world.check()

    @pytest.mark.slow
    def test_inputs_that_are_given_behind_others(self) -> None:
        """Whatever they are called: they are read in the order in which they are given."""
        world = World()
        for name in ("7", "5", "3"):
            world.put(name, [("a", 1), (name, 1)])
        given = [f"{world.root}/in/{name}.parquet" for name in ("7", "5", "3")]
        for count in (1, 2, 3):
            complete(world.write(inputs=given[:count]))
        complete(world.write("whole", inputs=given))
        assert outputs(world.objects()) == outputs(world.objects("whole"))
        with pytest.raises(ConfigError, match=r"gone: .*/in/3\.parquet"):
            world.write(inputs=given[:2])

    @pytest.mark.slow
    def test_of_a_job_that_was_killed_before_it_was_complete(self) -> None:
        """What it had written stays; nothing of its stages does."""
        world = World()
        for number in range(3):
            world.put(f"{number}", [("a", number), ("b", 1)])
        watch = Watch(world=world)
        with faulty_stores(watch, retry=None):
            complete(world.write())
        for at in (0, len(watch.before) // 3, len(watch.before) // 2, len(watch.before) - 3):
            world.stored = watch.before[at]
            world.put("3", [("b", 1), ("c", 1)])
            complete(world.write())
            world.check()

    @pytest.mark.slow
    def test_large_inputs_are_cut_as_they_were(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each part of one is a shard; new ones come behind all of them."""
        monkeypatch.setattr(files.FileShards, "in_pieces", lambda self, _: self)
        spec = DedupExact(shard_bytes=600)
        world = World("job")

        def write(out: str) -> Summary:
            options = spec.options(input=[f"{world.root}/in"], output=f"{world.root}/{out}", backend="inline")
            return complete(run_stages(spec.spec(), options, clock=FakeClock()))

        for number in range(3):
            world.put(f"{number}", [(f"text {k % 5} of {number % 2}" * 9, k) for k in range(16)])
            write("out")
            # Complete, and known to be so: nothing is started.
            assert write("out").dispatched == 0
        write("whole")
        assert len([name for name in outputs(world.objects()) if "part-" in name]) > 6
        assert outputs(world.objects()) == outputs(world.objects("whole"))

    @pytest.mark.slow
    def test_two_drivers_that_add_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The same inputs: one takes what the other wrote down. Others: it is refused, and added by the next run."""
        world = World()
        world.put("0", [("a", 1)])
        complete(world.write())
        publish = Ledger.create_json

        def late(ledger: Ledger, name: str, value: Any) -> Any:
            monkeypatch.setattr(Ledger, "create_json", publish)
            for one in meanwhile:
                world.put(one, [("c", 1)])
            complete(world.write())
            return publish(ledger, name, value)

        meanwhile: list[str] = []
        world.put("1", [("b", 1)])
        monkeypatch.setattr(Ledger, "create_json", late)
        complete(world.write())
        assert [name for name in world.objects() if re.fullmatch(r"_curate/inputs/\d+\.json", name)] == [
            layout.growth(1)
        ]
        world.check()

        world.put("2", [("b", 1)])
        meanwhile.append("3")
        monkeypatch.setattr(Ledger, "create_json", late)
        with pytest.raises(ConfigError, match=r"another driver added other inputs .*inputs/00002\.json"):
            world.write()
        complete(world.write())
        world.check()

    def test_a_driver_that_runs_is_not_disturbed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """New inputs are not taken beside it, unless it is to be helped."""
        world = World()
        world.put("0", [("a", 1)])
        complete(world.write())
        world.put("1", [("a", 1)])

        def rival(*_: Any, **how: Any) -> None:
            assert how == {"allow_concurrent": False, "overwrite": False}
            raise ConfigError("another driver is running")

        monkeypatch.setattr(start, "refuse_rivals", rival)
        before = world.objects()
        with pytest.raises(ConfigError, match="another driver is running"):
            world.write()
        assert world.objects() == before


def _below(stored: dict[str, tuple[bytes, str]], out: str) -> dict[str, bytes]:
    return {name[len(out) + 1 :]: data for name, (data, _) in stored.items() if name.startswith(f"{out}/")}


class _Calls(Fault):
    """No fault: counts the calls of some kinds by object."""

    __slots__ = ("count", "kinds", "root")

    def __init__(self, root: str, kinds: tuple[str, ...]) -> None:
        super().__init__()
        self.root, self.kinds = root, kinds
        self.count: dict[str, int] = {}

    def hits(self, operation: str, uri: str) -> bool:
        if operation in self.kinds and uri.startswith(self.root):
            name = uri.removeprefix(self.root)
            self.count[name] = self.count.get(name, 0) + 1
        return False


def behind(world: World) -> None:
    world.put("9", [("z", 1)])


def before_others(world: World) -> None:
    world.put("00", [("z", 1)])


def changed(world: World) -> None:
    world.put("1", [("z", 1), ("y", 1)])
    world.put("9", [("z", 1)])


def removed(world: World) -> None:
    MemoryStore().delete(f"{world.root}/in/0.parquet")
    world.put("9", [("z", 1)])


KEPT = "memory://growth-kept/out"
OTHERS: dict[str, Callable[[Dataset], Dataset]] = {
    "the last of each": lambda ds: ds.dedup_exact("text", "last"),
    "the best of each": lambda ds: ds.dedup_exact("text", priority="k"),
    "of what a function returns": lambda ds: ds.map_batches(even).dedup_exact("text"),
    "of a union": lambda ds: ds.union(ds).dedup_exact("text"),
    "in order": lambda ds: ds.dedup_exact("text").sort("k"),
    "a few": lambda ds: ds.dedup_exact("text").limit(3),
    "of a checkpoint": lambda ds: ds.checkpoint(KEPT).dedup_exact("text"),
    **{name: partial(lambda name, ds: SEAMS[name](ds, ""), name) for name in SEAMS},
}
for _name in ("dedup_exact", "checkpoint", "pool", "limit"):
    del OTHERS[_name]


class Named(Job):
    """Deduplicates columns of types that nobody said."""

    version = "1"
    columns = ("id", "n")

    def build(self, ds: Dataset) -> Dataset:
        return ds.dedup_exact("n")


class TestRefused:
    @pytest.mark.ci(3)
    @pytest.mark.slow
    @pytest.mark.quick(3)
    @pytest.mark.parametrize(
        ("act", "said"),
        [
            (before_others, r"new: .*/in/00\.parquet"),
            (changed, r"(?s)new: .*/in/9\.parquet.*changed: .*/in/1\.parquet"),
            (removed, r"(?s)new: .*/in/9\.parquet.*gone: .*/in/0\.parquet"),
        ],
    )
    @pytest.mark.parametrize("how", ["one", "job"])
    def test_other_inputs_than_those_behind(self, how: str, act: Callable[[World], None], said: str) -> None:
        """It says what has to be made anew, and makes that when it is asked to; until then nothing is changed."""
        world = World(how)
        for number in range(3):
            world.put(f"{number}", [("a", number), ("b", 1)])
        complete(world.write())
        act(world)
        before = world.objects()
        with pytest.raises(ConfigError, match=said) as caught:
            world.write()
        assert "takes new inputs only behind all others" in str(caught.value)
        assert re.search(r"To make anew: 3 shards \(\d.* written so far\), from \d inputs \(\d", str(caught.value))
        assert world.objects() == before
        complete(world.write(overwrite=True))
        world.check()

    @pytest.mark.slow
    @pytest.mark.ci(4)
    @pytest.mark.quick(2)
    @pytest.mark.parametrize("name", OTHERS)
    def test_by_every_other_exchange(self, name: str) -> None:
        """A later row may take the place of an earlier one, or any row may be in any output."""
        memory.clear("growth-kept")
        world, of = World(), OTHERS[name]
        for number in range(3):
            sink = pa.BufferOutputStream()
            pq.write_table(rows(number), sink)
            world.publish(f"{number}", sink.getvalue().to_pybytes())
        complete(world.write(of=of))
        made = len([name for name in world.generations() if not name.startswith("_side/")])
        sink = pa.BufferOutputStream()
        pq.write_table(rows(3), sink)
        world.publish("3", sink.getvalue().to_pybytes())
        before = world.objects()
        with pytest.raises(ConfigError, match=r"new: .*/in/3\.parquet") as caught:
            world.write(of=of)
        assert re.search(
            rf"To make anew: {made} shards? \(\d.* written so far\), from \d inputs? \(.*overwrite=True",
            str(caught.value),
        )
        assert world.objects() == before
        complete(world.write(of=of, overwrite=True))
        complete(world.write("whole", of=of))
        assert outputs(world.objects()) == outputs(world.objects("whole"))

    def test_the_same_inputs_in_another_order(self) -> None:
        """Which of two rows is the first goes by that."""
        world = World()
        for number in range(2):
            world.put(f"{number}", [("a", number), ("b", 1)])
        watch = Watch(world=world)
        in_order = [f"{world.root}/in/0.parquet", f"{world.root}/in/1.parquet"]
        with faulty_stores(watch, retry=None):
            complete(world.write(inputs=in_order))
        world.stored = next(
            left for kind, left in zip(watch.kinds, watch.before, strict=True) if kind == "publish /out/#.parquet"
        )
        with pytest.raises(ConfigError, match=r"in another order: .*/in/1\.parquet, .*/in/0\.parquet"):
            world.write(inputs=in_order[::-1])
        complete(world.write(inputs=in_order))
        # Nothing is left to do, in whichever order.
        assert complete(world.write(inputs=in_order[::-1])).dispatched == 0

    @pytest.mark.slow
    def test_new_inputs_that_change_the_columns(self) -> None:
        """No old one has a row: a run from nothing would take the types of the new ones for all."""
        root = f"memory://growth-{next(_numbers)}"

        def write(out: str, **options: Any) -> Summary:
            how = Named().options(input=f"{root}/in", output=f"{root}/{out}", backend="inline", yes=True, **options)
            return complete(run_stages(Named().spec(), how, clock=FakeClock()))

        MemoryStore().publish(f"{root}/in/0.jsonl", b"")
        write("out")
        MemoryStore().publish(f"{root}/in/1.jsonl", b'{"id": 1, "n": 2}\n')
        with pytest.raises(ConfigError, match="change the columns of all rows: id: int64, n: int64, and id: string, n"):
            write("out")
        write("out", overwrite=True)
