"""A job whose setup ends or holds up its workers stops at once, and says so: it is the same for every shard."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from curate.errors import SetupFailed
from curate.job.job import Job
from curate.job.params import param
from curate.runtime.protocol import TaskEnd, TaskFinished
from curate.tasks.setup import ENDED, MOST_DEATHS, PATIENCE_S, SetUp, SetupWatch
from curate.testing.clock import FakeClock

DIED = TaskFinished(1, TaskEnd.CRASHED, "the worker died: killed")


def test_what_dies_before_it_is_ready_is_named(clock: FakeClock) -> None:
    """By what is told of its shards; the third in a row is the last."""
    watch = SetupWatch(clock)
    for task in range(MOST_DEATHS - 1):
        watch.started(task, "here")
        assert watch.ended(task, DIED).detail == f"{ENDED}\nthe worker died: killed"
    watch.started(7, "here")
    with pytest.raises(SetupFailed, match=r"setup\(\) ended the worker process, 3 times in a row, before any was"):
        watch.ended(7, DIED)


@pytest.mark.parametrize("end", [TaskEnd.LOST, TaskEnd.OUT_OF_MEMORY, TaskEnd.CANCELLED, TaskEnd.RETURNED])
def test_whatever_else_ends_a_task_is_none_of_its_doing(clock: FakeClock, end: TaskEnd) -> None:
    watch = SetupWatch(clock)
    for task in range(2 * MOST_DEATHS):
        watch.started(task, "here")
        assert watch.ended(task, TaskFinished(task, end, "why")) == TaskFinished(task, end, "why")


def test_one_that_is_ready_ends_the_watch(clock: FakeClock) -> None:
    """What dies or hangs from then on does so of its shard."""
    watch = SetupWatch(clock)
    watch.started(1, "here")
    watch.told(SetUp())
    assert watch.done
    watch.started(2, "here")
    clock.sleep(10 * PATIENCE_S)
    watch.look()
    for task in range(2, 2 + MOST_DEATHS):
        assert watch.ended(task, DIED) == DIED


@pytest.mark.parametrize(("limit_s", "says"), [(None, "10 min"), (30.0, "30 s")])
def test_one_that_does_not_return(clock: FakeClock, limit_s: float | None, says: str) -> None:
    """Ten minutes are enough; less where a shard may take less."""
    watch = SetupWatch(clock, limit_s)
    watch.started(1, "in process 7 on vm")
    clock.sleep((limit_s or PATIENCE_S) - 1)
    watch.look()
    clock.sleep(1)
    with pytest.raises(SetupFailed, match=rf"setup\(\) did not return within {says}.* in process 7 on vm"):
        watch.look()


class Ending(Job):
    """Cannot be set up."""

    version = "1"
    how: str = param("", help="what it does")

    def setup(self) -> None:
        if self.how == "_exit":
            os._exit(3)
        if self.how == "hang":
            import time

            time.sleep(1000)
        if self.how == "raise":
            with open(os.environ["TRIES"], "a") as file:
                file.write("x")
            raise ValueError("no weights")
        sys.exit("the licence has expired")

    def process(self, batch: pa.Table) -> pa.Table:
        return batch


class Declared(Ending):
    """Cannot be set up, and need not be asked for its schema."""

    output_schema = pa.schema([("id", pa.int64())])


@pytest.fixture
def source(tmp_path: Path) -> str:
    for number in range(12):
        (tmp_path / f"in-{number:02d}.jsonl").write_text('{"id": 1}\n')
    return str(tmp_path / "in-*.jsonl")


@pytest.mark.parametrize("job", [Ending, Declared])
def test_an_exit_is_named_at_once(source: str, tmp_path: Path, job: type[Job]) -> None:
    """Whether the schema of the output is asked for first, or is known."""
    with pytest.raises(SetupFailed, match=r"setup\(\) ended the worker process: SystemExit: the licence has expired"):
        job(how="exit").run(input=source, output=tmp_path / "out", backend="inline")
    assert not list((tmp_path / "out").glob("*.parquet"))


@pytest.mark.usefixtures("no_backoff")
def test_what_setup_raises_is_raised_for_one_shard_once(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That it was to say whether it is ready costs no try more."""
    monkeypatch.setenv("TRIES", str(tmp_path / "tries"))
    summary = Declared(how="raise").run(input=source, output=tmp_path / "out", backend="inline", limit=1)
    assert [group.error for group in summary.failures] == ["ValueError: no weights"]
    assert len((tmp_path / "tries").read_text()) == summary.attempts == 4


@pytest.mark.slow
@pytest.mark.ray(0)
@pytest.mark.usefixtures("on_workers")
@pytest.mark.parametrize("job", [Ending, Declared])
def test_on_workers(source: str, tmp_path: Path, job: type[Job]) -> None:
    """Three workers die of `os._exit`, not three for each shard; one that hangs is named with where it is."""
    with pytest.raises(SetupFailed, match=r"ended the worker process, 3 times in a row, before any was ready: the w"):
        job(how="_exit").run(input=source, output=tmp_path / "exit")
    hanging = job(how="hang")
    hanging.task_timeout_s = 2.0
    with pytest.raises(SetupFailed, match=r"did not return within 2\.0 s in process \d+ on "):
        hanging.run(input=source, output=tmp_path / "hang")
