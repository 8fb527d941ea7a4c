"""The program that workers run: shards in, records out; the output as the only truth about a shard."""

from __future__ import annotations

import gzip
import itertools
import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from structlog.testing import capture_logs

from curate.errors import BadRow, ConfigError, CorruptInput, RetryLater
from curate.formats.encoding import Format
from curate.ledger import layout
from curate.ledger.compression import decompress
from curate.ledger.fencing import SURE_S, FencedStore
from curate.ledger.ledger import JOB_FIELDS, Ledger
from curate.log import get_logger
from curate.objects import ahead
from curate.objects.record import OutputFormat
from curate.pipeline.pipeline import Pipeline
from curate.pipeline.shard_books import ShardBooks
from curate.pipeline.step import BatchPosition, Compute
from curate.sources.inputs import FileRows
from curate.sources.split import SHARD_BYTES, whole
from curate.stage import publishing
from curate.stage.job_record import JobRecord
from curate.stage.messages import Probe, Probed, TaskInput
from curate.stage.outputs import Outputs, books_of
from curate.stage.probe import PROBED_BATCHES
from curate.stage.program import StageProgram
from curate.stage.stage import Stage, TaskSettings
from curate.storage.protocol import Calls
from curate.stores.memory import clear
from curate.stores.open import open_store
from curate.tasks.failure import FailureKind, ShardRecord
from curate.tasks.shard import Shard
from curate.testing.clock import FakeClock

ROOT = "memory://stage"
IN = pa.schema([("id", pa.string()), ("n", pa.int64())])
_numbers = itertools.count()
JOB = JobRecord("doubling", {"version": 1}, OutputFormat.PARQUET, "zstd")
OTHER = replace(JOB, identity={"version": 2})
"""Another job."""
SPEC = Stage(JOB, TaskSettings(batch_rows=2, shard_bytes=SHARD_BYTES), Pipeline(()), FileRows(held={Format.JSONL: IN}))


@dataclass
class Doubling:
    """An operator that doubles a column, with marks where a test may make it stumble."""

    name: str = "doubling"
    batch_rows: int | None = None
    compute: Compute | None = None
    num_cpus: float | None = None
    one_schema: bool = False
    setups: int = 0
    fail: dict[str, Exception] = field(default_factory=dict)
    """What is raised at a row with this id, once."""
    bad: set[str] = field(default_factory=set)
    """Rows for which BadRow is raised, always."""
    poison: set[str] = field(default_factory=set)
    """Rows for which ValueError is raised, always."""
    talks: bool = False
    nothing: bool = False
    nulls: bool = False

    def opened(self) -> Doubling:
        self.setups += 1
        if "setup" in self.fail:
            raise self.fail.pop("setup")
        return self

    def apply(self, batch: pa.Table, tally: ShardBooks, place: BatchPosition) -> Iterable[pa.Table]:
        del place
        tally.count("batches")
        for one in batch["id"].to_pylist():
            if one in self.bad:
                raise BadRow(f"it is {one}")
            if one in self.fail:
                raise self.fail.pop(one)
            if one in self.poison:
                raise ValueError(f"not {one}")
        if self.talks:
            get_logger(job="doubling").info("a batch")
        if not self.nothing:
            yield batch.set_column(1, "n", pa.nulls(len(batch)) if self.nulls else pc.multiply(batch["n"], 2))

    def hide(self, text: str) -> str:
        return text


@pytest.fixture(autouse=True, params=[publishing.FIRST_ALONE, 0], ids=["one by one", "beside"])
def _forget(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(publishing, "FIRST_ALONE", request.param)
    if request.param:
        monkeypatch.setattr(ahead, "READ_AHEAD", 0)
    yield
    clear("stage")


def put(name: str, rows: list[dict[str, Any]] | bytes) -> Shard:
    """Publishes an input and returns its shard."""
    store = open_store(ROOT)
    data = rows if isinstance(rows, bytes) else b"".join(pa_json(row) for row in rows)
    made = store.publish(f"{ROOT}/in/{name}", data).object
    return whole(name.partition(".")[0], made.uri, made.size, made.generation)


def pa_json(row: dict[str, Any]) -> bytes:
    return orjson.dumps(row) + b"\n"


def rows(start: int, stop: int) -> list[dict[str, Any]]:
    return [{"id": f"r{k}", "n": k} for k in range(start, stop)]


def program(operator: Doubling | None = None, **settings: Any) -> StageProgram:
    given = ("output", "scratch", "fence")
    where: dict[str, Any] = {name: settings.pop(name) for name in given if name in settings}
    own = {name: settings.pop(name) for name in ("record", "rows") if name in settings}
    tasks = replace(SPEC.tasks, **settings)
    stage = replace(SPEC, operator=Pipeline((operator or Doubling(),)), tasks=tasks, **own)
    # However slow this machine is, no shard takes long enough to say so.
    how: dict[str, Any] = {
        "stage": stage,
        "key": "run-1",
        "output": f"{ROOT}/out",
        "scratch": "/nowhere",
        "clock": FakeClock(),
    }
    return StageProgram(**how | where, beside=True)


def run(made: StageProgram, *shards: Shard, attempt: int = 1, schema: Any = IN) -> list[ShardRecord]:
    return list(made.run(TaskInput(tuple(enumerate(shards)), attempt, schema)))


def read(name: str) -> pa.Table:
    return pq.read_table(pa.BufferReader(open_store(ROOT).read(f"{ROOT}/out/{name}.parquet")))


def names() -> list[str]:
    return [item.uri.removeprefix(f"{ROOT}/out/") for item in open_store(ROOT).list(f"{ROOT}/out/")]


class TestShards:
    def test_each_gives_one_output_and_one_record(self) -> None:
        made = program()
        records = run(made, put("a.jsonl", rows(0, 3)), put("b.jsonl", rows(3, 4)))
        assert names() == ["a.parquet", "b.parquet"]
        assert read("a").to_pylist() == [{"id": f"r{k}", "n": 2 * k} for k in range(3)]
        assert [record.index for record in records] == [0, 1]
        first = records[0]
        assert first.failure is None
        assert first.books is not None
        assert first.books.rows() == {"in": 3, "created": 0, "out": 3, "dropped": {}, "quarantined": 0}
        assert first.books.counters == {"batches": 2}
        seen = open_store(ROOT).stat(f"{ROOT}/out/a.parquet")
        assert (first.generation, first.bytes_out, first.existed) == (seen.generation, seen.size, False)

    def test_calls_are_those_of_the_shard_or_of_others_that_are_published_meanwhile(self) -> None:
        made = program()
        records = run(made, put("a.jsonl", rows(0, 3)), put("b.jsonl", rows(3, 4)))
        calls = [record.calls for record in records if record.calls]
        each = Calls(get=1, put=1)
        assert calls[0].plus(calls[1]) == each.plus(each)
        if publishing.FIRST_ALONE:
            assert calls == [each, each]

    def test_one_that_fails_leaves_nothing_and_the_next_one_runs(self) -> None:
        operator = Doubling(fail={"r2": ValueError("not r2")})
        first, second = run(program(operator), put("a.jsonl", rows(0, 3)), put("b.jsonl", rows(3, 4)))
        assert names() == ["b.parquet"]
        assert first.failure is not None
        assert (first.failure.kind, first.failure.error) == (FailureKind.USER_ERROR, "ValueError: not r2")
        assert "in apply" in first.failure.traceback
        assert second.failure is None

    def test_setup_runs_once(self) -> None:
        operator = Doubling()
        made = program(operator)
        run(made, put("a.jsonl", rows(0, 1)), put("b.jsonl", rows(1, 2)))
        run(made, put("c.jsonl", rows(2, 3)))
        assert operator.setups == 1

    @pytest.mark.parametrize(("error", "setups"), [(OSError("not yet"), 2), (ConfigError("never"), 1)])
    def test_a_setup_that_failed_runs_again_unless_it_said_that_it_cannot_help(
        self, error: Exception, setups: int
    ) -> None:
        """A model that is no model is not loaded once for every shard."""
        operator = Doubling(fail={"setup": error})
        first, second = run(program(operator), put("a.jsonl", rows(0, 1)), put("b.jsonl", rows(1, 2)))
        assert first.failure is not None
        assert str(error) in first.failure.error
        assert operator.setups == setups
        assert (second.failure is None) == (setups == 2)

    def test_a_program_that_arrives_in_another_process_sets_up_there(self) -> None:
        operator = Doubling()
        made = program(operator)
        run(made, put("a.jsonl", rows(0, 1)))
        there = pickle.loads(pickle.dumps(made))
        run(there, put("b.jsonl", rows(0, 1)))
        assert there.stage.operator.steps[0].setups == 2

    def test_the_same_rows_give_the_same_bytes_whatever_ran_before(self) -> None:
        a = put("a.jsonl", rows(0, 5))
        run(program(), a)
        run(program(output=f"{ROOT}/again"), put("b.jsonl", rows(9, 12)), a)
        store = open_store(ROOT)
        assert store.read(f"{ROOT}/out/a.parquet") == store.read(f"{ROOT}/again/a.parquet")

    def test_logs_of_user_code_say_run_shard_and_attempt(self) -> None:
        with capture_logs(processors=[_merge]) as logs:
            run(program(Doubling(talks=True)), put("a.jsonl", rows(0, 1)), attempt=2)
        [event] = [event for event in logs if event["event"] == "a batch"]
        assert (event["job"], event["run"], event["shard"], event["attempt"]) == ("doubling", "run-1", "a", 2)


def _merge(logger: Any, method: str, event: Any) -> Any:
    import structlog

    return structlog.contextvars.merge_contextvars(logger, method, event)


class TestRetries:
    def test_a_first_attempt_does_not_look(self) -> None:
        """It would be a request for every shard of a large job."""
        a = put("a.jsonl", rows(0, 1))
        records = run(program(), a)
        assert records[0].calls is not None
        assert records[0].calls.get == 1

    def test_a_later_one_takes_an_output_that_exists_and_its_books(self) -> None:
        a = put("a.jsonl", rows(0, 3))
        first = run(program(), a)[0]
        operator = Doubling()
        second = run(program(operator), a, attempt=2)[0]
        assert (second.existed, second.different) == (True, False)
        assert second.books == first.books
        assert (second.generation, second.bytes_out) == (first.generation, first.bytes_out)
        assert operator.setups == 0

    def test_who_loses_the_race_with_the_same_bytes_has_done_it(self) -> None:
        a = put("a.jsonl", rows(0, 3))
        first, second = run(program(), a)[0], run(program(), a)[0]
        assert second.failure is None
        assert (second.generation, second.different) == (first.generation, False)

    def test_who_loses_it_with_other_bytes_says_so_and_takes_the_winners_books(self) -> None:
        a = put("a.jsonl", rows(0, 3))
        first = run(program(), a)[0]
        second = run(program(batch_rows=1), a)[0]
        assert second.failure is None
        assert (second.existed, second.different) == (True, True)
        assert second.books == first.books, "not its own: it counted three batches"
        assert second.generation == first.generation

    def test_an_object_of_someone_else_is_not_taken_for_an_output(self) -> None:
        a = put("a.jsonl", rows(0, 3))
        open_store(ROOT).publish(f"{ROOT}/out/a.parquet", b"PAR1 nobody's")
        for attempt in (1, 2):
            record = run(program(), a, attempt=attempt)[0]
            assert record.failure is not None
            assert record.failure.kind is FailureKind.CORRUPT
            assert open_store(ROOT).read(f"{ROOT}/out/a.parquet") == b"PAR1 nobody's"

    def test_the_record_in_an_output_is_what_was_booked(self) -> None:
        first = run(program(), put("a.jsonl", rows(0, 3)))[0]
        store = open_store(ROOT)
        found = store.stat(f"{ROOT}/out/a.parquet")
        assert books_of(store, found, JOB, f"{ROOT}/out") == first.books
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table({"id": ["not ours"]}), sink)
        theirs = store.publish(f"{ROOT}/theirs.parquet", bytes(sink.getvalue())).object
        with pytest.raises(ConfigError, match="was not written by curate"):
            books_of(store, theirs, JOB, ROOT)
        broken = store.publish(f"{ROOT}/broken.parquet", b"PAR1 and no footer").object
        with pytest.raises(CorruptInput, match="its record is damaged"):
            books_of(store, broken, JOB, ROOT)


def owned_by(fingerprint: str) -> None:
    """Makes the output prefix that of a job."""
    told = {**dict.fromkeys(JOB_FIELDS, ""), "identity": {}, "parameters": {}, "suffix": ".parquet"}
    job = {"format_version": layout.FORMAT_VERSION, **told, "fingerprint": fingerprint}
    open_store(ROOT).replace(f"{ROOT}/out/{layout.JOB}", orjson.dumps(job))


class TestForeignOutputs:
    """What a zombie of a job that was overwritten published under a name of this job, or this worker is the zombie."""

    def test_at_a_later_try_it_is_removed_and_the_shard_done_at_once(self) -> None:
        a = put("a.jsonl", rows(0, 3))
        owned_by(JOB.fingerprint)
        run(program(record=OTHER), a)
        [record] = run(program(), a, attempt=2)
        assert (record.failure, record.existed, record.different) == (None, False, False)
        found = open_store(ROOT).stat(f"{ROOT}/out/a.parquet")
        assert books_of(open_store(ROOT), found, JOB, f"{ROOT}/out") == record.books
        assert record.generation == found.generation

    def test_met_by_publishing_it_is_removed_and_the_shard_is_to_run_again(self) -> None:
        a = put("a.jsonl", rows(0, 3))
        owned_by(JOB.fingerprint)
        run(program(record=OTHER), a)
        [record] = run(program(), a)
        assert record.failure is not None
        assert record.failure.kind is FailureKind.FOREIGN
        assert "another identity was removed; the shard runs again" in record.failure.error
        assert "a.parquet" not in names()
        [record] = run(program(), a, attempt=2)
        assert record.failure is None

    @pytest.mark.parametrize("owner", [OTHER.fingerprint, None])
    @pytest.mark.parametrize("attempt", [1, 2])
    def test_who_was_overwritten_changes_nothing(self, attempt: int, owner: str | None) -> None:
        """A zombie finds the outputs of the job that took the prefix over, or a prefix that is being emptied."""
        a = put("a.jsonl", rows(0, 3))
        run(program(record=OTHER), a)
        if owner is not None:
            owned_by(owner)
        there = {item.uri: item.generation for item in open_store(ROOT).list(f"{ROOT}/out/")}
        [record] = run(program(), a, attempt=attempt)
        assert record.failure is not None
        assert record.failure.kind is FailureKind.MISCONFIGURED
        assert "is now the output of another job" in record.failure.error
        assert {item.uri: item.generation for item in open_store(ROOT).list(f"{ROOT}/out/")} == there

    def test_one_that_is_replaced_while_it_is_looked_at_is_left_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        a = put("a.jsonl", rows(0, 3))
        owned_by(JOB.fingerprint)
        run(program(record=OTHER), a)
        store = open_store(ROOT)
        uri = f"{ROOT}/out/a.parquet"
        read_job = Ledger.read_job

        def meanwhile(ledger: Ledger) -> Any:
            store.replace(uri, b"another one")
            return read_job(ledger)

        monkeypatch.setattr(Ledger, "read_job", meanwhile)
        [record] = run(program(), a, attempt=2)
        assert record.failure is not None
        assert record.failure.kind is FailureKind.FOREIGN
        assert "replaced while curate read it" in record.failure.error
        assert store.read(uri) == b"another one"


class TestQuarantine:
    LINES = b'{"id":"a","n":1}\n{"id":"b","n":"x"}\n{"id":\n{"id":"c","n":3}\n'

    def test_it_is_published_before_the_output_which_names_it(self) -> None:
        record = run(program(), put("a.jsonl", self.LINES))[0]
        assert record.books is not None
        assert record.books.rows() == {"in": 4, "created": 0, "out": 2, "dropped": {}, "quarantined": 2}
        quarantine, output = names()
        assert quarantine.startswith("_curate/quarantine/")
        named = pq.read_metadata(pa.BufferReader(open_store(ROOT).read(f"{ROOT}/out/{output}"))).metadata
        assert any(quarantine.encode() in value for value in named.values())

    def test_a_shard_that_fails_leaves_none(self) -> None:
        record = run(program(max_bad_rows="1"), put("a.jsonl", self.LINES))[0]
        assert record.failure is not None
        assert "TooManyBadRows: 2 bad rows before its end, the budget is 1 row" in record.failure.error
        assert names() == []

    def test_a_bad_row_is_in_it_once_and_the_books_balance(self) -> None:
        """What the batch had counted before the row was found is taken back; the row counts as read."""
        operator = Doubling(bad={"r2"}, fail={"r3": RetryLater()})
        made, shard = program(operator, batch_rows=4), put("a.jsonl", rows(0, 6))
        assert run(made, shard)[0].failure is not None, "the service was down during the search"
        record = run(made, shard)[0]
        assert record.books is not None
        assert record.books.rows() == {"in": 6, "created": 0, "out": 5, "dropped": {}, "quarantined": 1}
        assert record.books.counters == {"batches": 2}
        assert [row["id"] for row in read("a").to_pylist()] == ["r0", "r1", "r3", "r4", "r5"]
        [line] = decompress(open_store(ROOT).read(f"{ROOT}/out/{names()[0]}")).splitlines()
        assert orjson.loads(line) == {"line": 3, "reason": "it is r2", "row": '{"id":"r2","n":2}'}

    def test_other_errors_are_searched_for_at_the_last_try_of_a_job_that_opted_in(self) -> None:
        """So that the output does not depend on luck: what goes away when it is tried again is no bad row."""
        shard = put("a.jsonl", rows(0, 4))
        for opted_in, last in itertools.product((False, True), repeat=2):
            made = program(Doubling(poison={"r1"}), quarantine_errors=opted_in)
            [record] = made.run(TaskInput(((0, shard),), 1, IN, last))
            if opted_in and last:
                assert record.failure is None
                assert record.books.quarantined == 1
            else:
                assert record.failure.kind is FailureKind.USER_ERROR
                assert names() == []

    def test_the_schema_is_that_of_the_good_rows(self) -> None:
        """A bad row at the very start of the plan says nothing about the schema."""
        shard = put("a.jsonl", rows(0, 4))
        for operator, settings in [(Doubling(bad={"r0"}), {}), (Doubling(poison={"r0"}), {"quarantine_errors": True})]:
            [answer] = program(operator, **settings).run(Probe(shard))
            assert answer.schema == IN


class TestProbes:
    def ask(self, made: StageProgram, shard: Shard | None) -> Probed:
        answers = list(made.run(Probe(shard)))
        assert len(answers) == 1
        found: Probed = answers[0]
        return found

    def test_the_schema_of_the_first_table(self) -> None:
        answer = self.ask(program(), put("a.jsonl", rows(0, 9)))
        assert (answer.schema, answer.error, answer.typed) == (IN, "", True)
        assert names() == []

    def test_of_an_empty_table_where_there_is_no_row(self) -> None:
        assert self.ask(program(), None).schema == IN

    @pytest.mark.parametrize("data", [b"", b"\n\n"])
    def test_a_shard_without_rows_gives_none(self, data: bytes) -> None:
        assert self.ask(program(), put("a.jsonl", data)) == Probed(ended=True)

    def test_an_error_is_told(self) -> None:
        operator = Doubling(fail={"r0": ValueError("not r0")})
        answer = self.ask(program(operator), put("a.jsonl", rows(0, 3)))
        assert (answer.schema, answer.error) == (None, "ValueError: not r0")

    def test_a_shard_that_gives_no_table_is_left_after_some_batches(self) -> None:
        """A job that drops nearly everything must not be run to learn its schema."""
        answer = self.ask(program(Doubling(nothing=True)), put("a.jsonl", rows(0, 10 * PROBED_BATCHES)))
        assert (answer.schema, answer.rows) == (None, 2 * PROBED_BATCHES)

    def test_a_column_of_nulls_is_not_typed(self) -> None:
        answer = self.ask(program(Doubling(nulls=True)), put("a.jsonl", rows(0, 3)))
        assert answer.schema == pa.schema([("id", pa.string()), ("n", pa.null())])
        assert not answer.typed

    def test_answers_fill_each_other(self) -> None:
        """The first one decides on names and order; types come from whoever knows them."""
        nulls = Probed(pa.schema([("a", pa.null()), ("b", pa.int8())]))
        full = Probed(pa.schema([("b", pa.string()), ("a", pa.int16()), ("c", pa.int8())]))
        assert nulls.filled(full).schema == pa.schema([("a", pa.int16()), ("b", pa.int8())])
        assert Probed().filled(full) is full
        assert full.filled(Probed(error="x")) is full
        assert nulls.filled(Probed()) is nulls


class TestFailures:
    @pytest.mark.parametrize(
        ("name", "data", "error"),
        [
            ("a.jsonl.gz", gzip.compress(b'{"id":"a","n":1}\n' * 999, mtime=0)[:-20], "not a whole gzip stream"),
            ("a.jsonl.gz", b"no gzip at all", "not a whole gzip stream"),
            ("a.jsonl.zst", b"no zstd", "not a whole zstd stream"),
            ("a.parquet", b"PAR1 and no footer", "not a whole Parquet file"),
            ("a.parquet", b"", "not a whole Parquet file"),
        ],
    )
    def test_broken_input_is_corrupt(self, name: str, data: bytes, error: str) -> None:
        made = program(rows=FileRows(held={Format.JSONL: IN, Format.PARQUET: IN}))
        record = run(made, put(name, data))[0]
        assert record.failure is not None
        assert record.failure.kind is FailureKind.CORRUPT
        assert error in record.failure.error
        assert f"{ROOT}/in/{name}" in record.failure.error

    @pytest.mark.parametrize("change", ["delete", "replace"])
    def test_an_input_that_is_gone_or_another_one_is_corrupt(self, change: str) -> None:
        shard = put("a.jsonl", rows(0, 3))
        store = open_store(ROOT)
        if change == "delete":
            store.delete(shard.uri)
        else:
            store.replace(shard.uri, b"other")
        record = run(program(), shard)[0]
        assert record.failure is not None
        assert record.failure.kind is FailureKind.CORRUPT
        assert "after the plan was made" in record.failure.error

    def test_without_a_schema_a_shard_fails_with_what_to_do(self) -> None:
        record = run(program(), put("a.jsonl", rows(0, 3)), schema=None)[0]
        assert record.failure is not None
        assert "declare output_schema in the job" in record.failure.error


def test_paths_do_not_enter_outputs(tmp_path: Path) -> None:
    """The same job over the same bytes elsewhere gives the same outputs."""
    outputs = []
    for folder in ("one", "two"):
        path = tmp_path / folder / "in" / "a.jsonl"
        path.parent.mkdir(parents=True)
        path.write_bytes(b"".join(map(pa_json, rows(0, 3))))
        made = open_store(str(path)).stat(str(path))
        output = tmp_path / folder / "out"
        run(program(output=str(output), scratch=str(output / "tmp")), whole("a", str(path), made.size, made.generation))
        outputs.append((output / "a.parquet").read_bytes())
    assert outputs[0] == outputs[1]


class TestLate:
    """A worker that was paused, or outlives its driver, and the output is another run's by then.

    Of the same job: by its record an output is of that one too, whatever it was made of.
    """

    def begun(self) -> FencedStore:
        """Begins the job, again if it was; returns the fence of its driver."""
        store = open_store(ROOT)
        store.delete(f"{ROOT}/out/{layout.JOB}")
        told = {**dict.fromkeys(JOB_FIELDS, ""), "n": next(_numbers)}
        fence = FencedStore(store, f"{ROOT}/out", FakeClock())
        fence.claim(store.publish(f"{ROOT}/out/{layout.JOB}", orjson.dumps(told)).object.generation, fence.moment())
        return fence

    def late(self, made: StageProgram, *shards: Shard, after_s: float) -> list[ShardRecord]:
        """Runs a task so long after its driver was sure that the output is its own."""
        task = TaskInput(tuple(enumerate(shards)), 1, IN, sure=made.clock.now() - after_s)
        return list(made.run(task))

    @pytest.mark.parametrize("gone", [False, True])
    def test_nothing_is_published_to_the_job_of_another_run(self, gone: bool) -> None:
        mine = self.begun()
        self.begun()
        if gone:
            open_store(ROOT).delete(f"{ROOT}/out/{layout.JOB}")
        shards = [put(f"{n}.jsonl", rows(n, n + 1)) for n in range(3)]
        records = self.late(program(fence=pickle.loads(pickle.dumps(mine))), *shards, after_s=SURE_S + 1)
        assert [record.failure and record.failure.kind for record in records] == [FailureKind.MISCONFIGURED] * 3
        assert records[0].failure is not None
        assert "is now the output of another job" in records[0].failure.error
        left = [one.uri for one in open_store(ROOT).list(f"{ROOT}/out/")]
        assert left == ([] if gone else [f"{ROOT}/out/{layout.JOB}"])

    def test_what_was_published_meanwhile_is_taken_back(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The pause was between the look and the output."""
        mine = self.begun()
        made = program(fence=pickle.loads(pickle.dumps(mine)))

        def paused(*given: Any, **how: Any) -> Any:
            assert isinstance(made.clock, FakeClock)
            made.clock.advance(SURE_S + 1)
            self.begun()
            return publish(*given, **how)

        publish = Outputs.publish
        monkeypatch.setattr(Outputs, "publish", paused)
        [record] = self.late(made, put("a.jsonl", rows(0, 1)), after_s=0)
        assert record.failure is not None
        assert record.failure.kind is FailureKind.MISCONFIGURED
        assert [one.uri for one in open_store(ROOT).list(f"{ROOT}/out/")] == [f"{ROOT}/out/{layout.JOB}"]

    @pytest.mark.parametrize(("after_s", "looks"), [(0, 0), (SURE_S, 0), (SURE_S + 1, 1), (-1, 1)])
    def test_one_look_in_a_while_however_many_shards(self, after_s: float, looks: int) -> None:
        """None while the driver is at work; of a clock that is behind the driver's, nothing can be told."""
        shards = [put(f"{n}.jsonl", rows(n, n + 1)) for n in range(5)]
        calls = []
        for fence in (None, pickle.loads(pickle.dumps(self.begun()))):
            records = self.late(program(fence=fence), *shards, after_s=after_s)
            assert not any(record.failure for record in records)
            calls.append(sum((record.calls or Calls()).get for record in records))
            for n in range(5):
                open_store(ROOT).delete(f"{ROOT}/out/{n}.parquet")
        assert calls[1] - calls[0] == looks
