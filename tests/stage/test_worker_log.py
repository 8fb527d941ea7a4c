"""What a worker says reaches `runs/<run>/logs/`: bounded, without secrets, and nothing where nothing is said."""

# ruff: noqa: T201 - user code prints

from __future__ import annotations

import io
import itertools
import json
import logging
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest
import structlog

from curate import log
from curate.errors import PermissionDenied, TransientStorageError
from curate.job.job import Job
from curate.job.params import param
from curate.ledger import layout
from curate.ledger.compression import decompress
from curate.stage import worker_log
from curate.stage.worker_log import (
    BURST_LINES,
    LINE_BYTES,
    LINES_PER_S,
    MOST_TRIES,
    PUBLISH_BYTES,
    PUBLISH_S,
    TokenBucket,
    WorkerLog,
)
from curate.stores.memory import MemoryStore, clear
from tests.job.inline import numbered, run_job, write_jsonl
from tests.support.fakes import After, FakeClock, FlakyStore

OUT = "memory://capture/out"


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    clear("capture")


@pytest.fixture
def _configured() -> Iterator[None]:
    """Events go to standard error, as in a worker."""
    log.configure()
    yield
    structlog.reset_defaults()


class Worker:
    """A worker's log over a memory store, with time that the test passes."""

    def __init__(self, *, background: bool = False, hidden: str = "secret", out: str = OUT) -> None:
        self.out = out
        self.clock = FakeClock()
        self.store = FlakyStore(MemoryStore())
        self.log = WorkerLog(
            lambda: self.store,
            out,
            "run-1",
            self.clock,
            lambda text: text.replace(hidden, "***"),
            background=background,
        )

    def segments(self) -> list[str]:
        return [item.uri.removeprefix(f"{self.out}/") for item in MemoryStore().list(f"{self.out}/")]

    def lines(self) -> list[dict[str, Any]]:
        found = [MemoryStore().read(f"{self.out}/{name}") for name in self.segments()]
        return [orjson.loads(line) for data in found for line in decompress(data).splitlines()]

    def events(self) -> list[str]:
        return [line["event"] for line in self.lines()]

    def say(self, text: str, **fields: Any) -> None:
        self.log.say("info", text, "log", fields)


class TestWhatIsHeard:
    @pytest.mark.usefixtures("_configured")
    def test_events_and_prints_say_when_how_and_of_which_shard(self, capsys: pytest.CaptureFixture[str]) -> None:
        worker = Worker()
        with worker.log.shard("a", 2), log.bound(run="run-1", shard="a", attempt=2):
            log.get_logger(job="toxicity").warning("odd row", row=7)
            print("to stdout")
            print("to stderr", file=sys.stderr)
        worker.log.flush()
        own = {"time": worker.clock.now(), "shard": "a", "attempt": 2}
        assert worker.lines() == [
            own | {"level": "warning", "event": "odd row", "stream": "log", "row": 7},
            own | {"level": "info", "event": "to stdout", "stream": "stdout"},
            own | {"level": "info", "event": "to stderr", "stream": "stderr"},
        ]
        printed = capsys.readouterr()
        # They appear where they would have.
        assert printed.out == "to stdout\n"
        first, second = printed.err.splitlines()
        assert (json.loads(first)["event"], second) == ("odd row", "to stderr")

    @pytest.mark.usefixtures("_configured")
    def test_threads_and_other_loggers_are_heard(self) -> None:
        """Models are run in threads, and libraries log with what Python brings."""
        worker = Worker()
        with worker.log.shard("a", 1):
            handler = logging.StreamHandler()
            logging.getLogger("library").addHandler(handler)
            thread = threading.Thread(target=lambda: (print("in a thread"), log.get_logger().info("there too")))
            thread.start()
            thread.join()
        try:
            # A handler that `setup` made is there for all shards.
            with worker.log.shard("b", 1):
                logging.getLogger("library").warning("from a library")
        finally:
            logging.getLogger("library").removeHandler(handler)
        worker.log.flush()
        assert [(line["event"], line["shard"]) for line in worker.lines()] == [
            ("in a thread", "a"),
            ("there too", "a"),
            ("from a library", "b"),
        ]

    @pytest.mark.usefixtures("_configured")
    def test_an_event_of_a_shard_that_a_thread_publishes_is_that_ones(self) -> None:
        worker = Worker()

        def publish() -> None:
            with log.bound(shard="a"):
                log.get_logger().warning("the store is slow")

        with worker.log.shard("b", 1), log.bound(shard="b"):
            thread = threading.Thread(target=publish)
            thread.start()
            thread.join()
            log.get_logger().info("at work", shard="whatever user code says")
        worker.log.flush()
        assert [(line["event"], line["shard"]) for line in worker.lines()] == [
            ("the store is slow", "a"),
            ("at work", "b"),
        ]

    @pytest.mark.usefixtures("_configured")
    def test_a_traceback_is_text(self) -> None:
        worker = Worker()
        with worker.log.shard("a", 1):
            try:
                raise ValueError("the secret is out")
            except ValueError:
                log.get_logger().exception("caught")
        worker.log.flush()
        [line] = worker.lines()
        assert line["exception"].endswith("ValueError: the *** is out")

    @pytest.mark.parametrize(
        ("printed", "lines"),
        [
            (["a", " ", "b", "\n"], ["a b"]),
            (["a\nb\n\nc"], ["a", "b", "c"]),
            (["10 %\r20 %\r", "30 %\r", "done\n"], ["done"]),
            (["10 %\r20 %\r"], ["20 %"]),
            (["dos\r\n", "dos\r", "\n"], ["dos", "dos"]),
            (["the se", "cret\n"], ["the ***"]),
            (["caf\udce9\n"], ["caf\\udce9"]),
            ([], []),
            (["\n\n"], []),
        ],
    )
    def test_prints_become_lines(self, monkeypatch: pytest.MonkeyPatch, printed: list[str], lines: list[str]) -> None:
        """However they are written; of a progress bar, what it came to."""
        monkeypatch.setattr(sys, "stdout", io.StringIO())
        worker = Worker()
        with worker.log.shard("a", 1):
            for text in printed:
                sys.stdout.write(text)
        worker.log.flush()
        assert worker.events() == lines
        assert sys.stdout.getvalue() == "".join(printed)  # type: ignore[attr-defined]

    def test_outside_of_a_shard_nothing_is_heard_and_the_streams_are_what_they_were(self) -> None:
        worker = Worker()
        before = sys.stdout, sys.stderr
        kept = []

        def fail() -> None:
            with worker.log.shard("a", 1):
                kept.append(sys.stdout)
                raise ValueError("x")

        with pytest.raises(ValueError, match="x"):
            fail()
        assert (sys.stdout, sys.stderr) == before
        print("the driver says something")
        kept[0].write("late\n")
        worker.log.flush()
        assert worker.segments() == []

    def test_a_stream_that_user_code_put_in_place_stays(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "stdout", io.StringIO())
        theirs = io.StringIO()
        worker = Worker()
        with worker.log.shard("a", 1):
            sys.stdout = theirs
        assert sys.stdout is theirs

    def test_a_child_that_user_code_forks_says_nothing_twice(self) -> None:
        """It has a copy of what waits, and no thread that publishes it."""
        worker = Worker()
        worker.say("before")
        child = os.fork()
        if child == 0:
            worker.say("in the child")
            worker.log.flush()
            os._exit(worker.log._lines.count(b"\n") + 10 * len(worker.store.tried))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
        worker.log.flush()
        assert worker.events() == ["before"]


class TestLines:
    def test_values_that_json_has_stay_what_they_are(self) -> None:
        worker = Worker()
        odd = pa.scalar(3)
        worker.say(
            "x", n=1, share=0.5, none=None, names=["a"], counts={"a": {1: 2}}, odd=odd, huge=1 << 80, bad="\udce9"
        )
        worker.log.flush()
        [line] = worker.lines()
        assert {name: line[name] for name in ("n", "share", "none", "names", "counts")} == {
            "n": 1,
            "share": 0.5,
            "none": None,
            "names": ["a"],
            "counts": {"a": {"1": 2}},
        }
        assert (line["odd"], line["huge"], line["bad"]) == (repr(odd), str(1 << 80), "\\udce9")

    def test_a_value_that_cannot_be_shown_stops_nothing(self) -> None:
        class Odd:
            def __repr__(self) -> str:
                raise RuntimeError("no")

        worker = Worker()
        worker.say("x", odd=Odd())
        worker.log.flush()
        assert worker.lines()[0]["odd"] == "<a Odd that cannot be shown>"

    def test_secrets_are_hidden_wherever_they_are(self) -> None:
        worker = Worker()
        worker.say("the secret", deep={"a": ["secret"]}, plain="my secret", **{"a secret": 1})
        worker.log.flush()
        assert b"secret" not in orjson.dumps(worker.lines())

    def test_a_long_line_is_cut_and_says_how_long_it_was(self) -> None:
        """An event keeps its beginning, a stack its end; everything else goes."""
        worker = Worker()
        worker.say("b" * 9000 + "e", exception="b" * 9000 + "e", other=1)
        worker.log.flush()
        [line] = worker.lines()
        assert len(orjson.dumps(line)) <= LINE_BYTES * 1.1
        assert line["event"].startswith("b")
        assert line["exception"].endswith("e")
        assert line["cut_bytes"] > 18_000
        assert "other" not in line

    @pytest.mark.slow
    def test_a_print_without_end_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "stdout", io.StringIO())
        worker = Worker()
        with worker.log.shard("a", 1):
            for _ in range(100_000):
                sys.stdout.write("x")
            assert len(worker.log._stdout._line) < 10_000
        worker.log.flush()
        assert [line["event"].strip("x") for line in worker.lines()] == [""]


class TestHowMuch:
    def test_a_budget_holds_a_burst_and_refills(self) -> None:
        budget = TokenBucket(burst=3, per_s=2)
        assert [budget.take(0.0) for _ in range(5)] == [True, True, True, False, False]
        assert [budget.take(1.0) for _ in range(3)] == [True, True, False]
        assert [budget.take(1000.0) for _ in range(4)] == [True, True, True, False]
        assert not budget.take(999.0), "a clock that goes back gives nothing"

    def test_what_is_too_much_is_counted_and_said_once(self) -> None:
        worker = Worker()
        for _ in range(BURST_LINES + 50):
            worker.say("again")
        worker.clock.advance(2)
        for _ in range(200):
            worker.say("again")
        worker.log.flush()
        events = worker.events()
        assert events.count("again") == BURST_LINES + 2 * LINES_PER_S
        assert events[-1].startswith("150 lines are left out here: a worker may log 1,000 at once, and 50 per second")
        assert worker.lines()[-1]["left_out"] == 150
        assert sum("left out" in event for event in events) == 1

    def test_what_waits_for_a_store_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(worker_log, "WAITING_BYTES", 1000)
        worker = Worker()
        for _ in range(100):
            worker.say("x" * 100)
        assert len(worker.log._lines) < 1300
        worker.log.flush()
        assert worker.lines()[-1]["left_out"] == 100 - (len(worker.lines()) - 1)


class TestWhenItIsPublished:
    def test_nothing_is_written_where_nothing_was_said(self) -> None:
        worker = Worker(background=True)
        with worker.log.shard("a", 1):
            pass
        worker.log.flush()
        assert worker.store.tried == []
        assert worker.log._thread is None

    def test_a_line_waits_ten_seconds(self) -> None:
        worker = Worker()
        worker.say("first")
        worker.clock.advance(PUBLISH_S - 0.1)
        worker.say("second")
        worker.log.publish_due()
        assert worker.segments() == []
        worker.clock.advance(0.2)
        worker.log.publish_due()
        assert worker.events() == ["first", "second"]

    def test_less_if_many_have_come(self) -> None:
        worker = Worker()
        while len(worker.log._lines) < PUBLISH_BYTES:
            worker.log.publish_due()
            assert worker.segments() == []
            worker.say("x" * 1800)
        worker.log.publish_due()
        assert len(worker.segments()) == 1

    def test_segments_are_numbered_by_process(self) -> None:
        worker = Worker()
        for text in ("first", "second"):
            worker.say(text)
            worker.log.flush()
        assert [layout.is_log_segment(name) for name in worker.segments()] == [True, True]
        assert worker.events() == ["first", "second"]
        assert f"-{os.getpid()}-000002.jsonl.zst" in worker.segments()[1]

    def test_a_name_that_is_taken_is_left_alone(self) -> None:
        """Two machines of one name, a process number that comes again."""
        first, second = Worker(), Worker()
        first.say("first")
        first.log.flush()
        second.say("second")
        second.log.flush()
        assert second.events() == ["first", "second"]

    def test_a_shard_that_hangs_shows_its_lines(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """From a thread that is gone when nothing waits."""
        monkeypatch.setattr(worker_log, "PUBLISH_S", 0.0)
        worker = Worker(background=True)
        published = threading.Event()
        worker.store.script.append(published.set)
        with worker.log.shard("a", 1):
            worker.say("before it hangs")
            assert published.wait(30), "while the shard still runs"
            thread = worker.log._thread
        if thread is not None:
            thread.join(30)
        assert worker.log._thread is None
        assert worker.events() == ["before it hangs"]

    def test_the_end_of_a_task_waits_for_it(self) -> None:
        worker = Worker(background=True)
        worker.say("one")
        worker.log.flush()
        assert worker.events() == ["one"]
        worker.say("two")
        worker.log.flush()
        assert worker.events() == ["one", "two"]

    def test_but_not_for_a_store_that_does_not_answer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(worker_log, "FLUSH_S", 0.01)
        worker = Worker(background=True)
        answer = threading.Event()
        worker.store.script.append(lambda: answer.wait(30))
        worker.say("one")
        worker.log.flush()
        assert worker.segments() == []
        thread = worker.log._thread
        answer.set()
        assert thread is not None
        thread.join(30)
        assert worker.events() == ["one"]


class TestStoresThatFail:
    def test_a_segment_is_tried_again_and_nothing_is_raised(self, capsys: pytest.CaptureFixture[str]) -> None:
        worker = Worker()
        worker.store.script.append(TransientStorageError("503"))
        worker.say("first")
        worker.log.flush()
        assert (worker.segments(), worker.log.failures) == ([], 1)
        assert "could not be published" in "".join(capsys.readouterr())
        worker.say("second")
        worker.log.publish_due()
        assert worker.segments() == [], "not at once: the store has just failed"
        worker.clock.advance(PUBLISH_S)
        worker.log.publish_due()
        assert worker.events() == ["first", "second"]

    def test_one_whose_answer_was_lost_is_there_once(self) -> None:
        worker = Worker()
        worker.store.script.append(After(TransientStorageError("reset")))
        worker.say("first")
        worker.log.flush()
        worker.say("second")
        worker.log.flush()
        assert worker.events() == ["first", "second"]

    def test_each_segment_has_its_own_tries(self) -> None:
        worker = Worker()
        for text in ("first", "second"):
            worker.store.script.extend([TransientStorageError("503")] * (MOST_TRIES - 1))
            worker.say(text)
            for _ in range(MOST_TRIES):
                worker.log.flush()
        assert worker.events() == ["first", "second"]

    def test_after_some_tries_its_lines_are_given_up(self, capsys: pytest.CaptureFixture[str]) -> None:
        worker = Worker()
        worker.store.script.extend([PermissionDenied("no")] * MOST_TRIES)
        worker.say("lost")
        for _ in range(MOST_TRIES):
            worker.log.flush()
        assert "is lost" in "".join(capsys.readouterr())
        worker.say("kept")
        worker.log.flush()
        assert worker.events() == ["kept"]
        assert len(worker.store.tried) == MOST_TRIES + 1


class TestHanging:
    def test_shortly_before_its_time_is_up_the_log_says_where_a_shard_is(self) -> None:
        worker = Worker(background=True)
        published = threading.Event()
        worker.store.script.append(published.set)

        def hang_here() -> None:
            assert published.wait(30)

        with worker.log.shard("a", 1, timeout_s=0.05):
            hang_here()
        worker.log.flush()
        [line] = worker.lines()
        assert (line["shard"], line["stream"], line["level"]) == ("a", "curate", "warning")
        assert line["event"].startswith("still running after 0.0")
        assert "in hang_here" in line["stack"]

    @pytest.mark.parametrize("timeout_s", [60, 1e12, 1e39])
    def test_one_that_ends_in_time_says_nothing(self, timeout_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
        """Nor where the time is longer than a thread can wait."""
        raised: list[Any] = []
        monkeypatch.setattr(threading, "excepthook", raised.append)
        worker = Worker(background=True)
        before = set(threading.enumerate())
        with worker.log.shard("a", 1, timeout_s=timeout_s):
            [alarm] = set(threading.enumerate()) - before
            # Until it waits, it has not been asked for more than it can.
            alarm.join(0.05)
            assert (alarm.is_alive(), raised) == (True, [])
        alarm.join(30)
        assert not alarm.is_alive()
        worker.log.flush()
        assert worker.segments() == []


class Talking(Job):
    """Talks as much as the test asks for."""

    version = "1"
    columns = ("id",)
    key: str | None = param(None, secret=True)
    talk: bool = param(True, identity=False)

    def setup(self) -> None:
        if self.talk:
            self.log.info("loading")

    def process(self, batch: pa.Table) -> pa.Table:
        if self.talk:
            print(f"called {self.key}")
            self.log.info("scored", rows=len(batch))
        return batch


def said(root: Path) -> list[dict[str, Any]]:
    """Returns the lines of all logs of a job, by time."""
    files = sorted((root / layout.RUNS).glob("*/logs/*.jsonl.zst"))
    return [orjson.loads(line) for file in files for line in decompress(file.read_bytes()).splitlines()]


class TestJobs:
    def test_what_a_job_says_is_beside_its_outputs_and_on_the_terminal(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SERVICE_KEY", "s3cr3t")
        for name in "ab":
            write_jsonl(tmp_path / "in" / f"{name}.jsonl", numbered(0, 3))
        run_job(Talking(key="SERVICE_KEY"), tmp_path / "in", tmp_path / "out")
        found = {(line["shard"], line["attempt"], line["stream"], line["event"]) for line in said(tmp_path / "out")}
        shards = [("a", 0), ("a", 1), ("b", 1)]  # at first, for the schema
        assert found == {
            ("a", 0, "log", "loading"),
            *((*shard, "stdout", "called [secret]") for shard in shards),
            *((*shard, "log", "scored") for shard in shards),
        }
        assert capsys.readouterr().out == "called s3cr3t\n" * 3

    def test_a_job_that_says_nothing_has_no_log(self, tmp_path: Path) -> None:
        write_jsonl(tmp_path / "in" / "a.jsonl", numbered(0, 3))
        run_job(Talking(talk=False), tmp_path / "in", tmp_path / "out")
        assert not list((tmp_path / "out" / "_curate").rglob("logs"))


@pytest.mark.usefixtures("_configured")
@pytest.mark.parametrize("order", sorted(set(itertools.permutations("AABB"))), ids="".join)
def test_two_runs_in_threads_of_one_process_print_where_it_was(
    order: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """In whichever order their shards begin and end: each line is printed once, nothing runs in circles, one that has a
    shard hears what is logged, and in the end standard output is what it was and nobody hears more."""
    before = sys.stdout, sys.stderr
    workers, within = {name: Worker(out=f"memory://capture/{name}") for name in "AB"}, dict[str, Any]()
    for step, name in enumerate(order * 3):
        if name in within:
            within.pop(name).__exit__(None, None, None)
        else:
            within[name] = workers[name].log.shard(f"{name}{step}", 1)
            within[name].__enter__()
        print(f"step {step}")
        print(f"step {step}", file=sys.stderr)
        log.get_logger().info("logged", step=step)
        for worker in workers.values():
            worker.log.flush()
        heard = [one for one, worker in workers.items() if any(line.get("step") == step for line in worker.lines())]
        assert (len(heard), set(heard) <= set(within)) == (min(len(within), 1), True)
    assert (sys.stdout, sys.stderr) == before
    out, err = capsys.readouterr()
    assert out == "".join(f"step {step}\n" for step in range(12))
    assert [line for line in err.splitlines() if line.startswith("step")] == out.splitlines()
