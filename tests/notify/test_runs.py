"""Runs that tell how they end: exactly once each, after repeats are dropped by their id."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest
import structlog

import curate as api
from curate.chain.chain import Chain
from curate.chain.steps import Step
from curate.driver import stage_run
from curate.errors import ConfigError, RetryLater, TransientStorageError, had_begun
from curate.job.job import Job
from curate.ledger import layout
from curate.ledger.ledger import Ledger
from curate.ledger.run_log import HEARTBEAT_S, RunLog
from curate.notify import marks, post
from tests.cli.running import Curate, curate
from tests.e2e.jobs.choosy import Choosy
from tests.job.inline import everything, numbered, run_job, write_jsonl
from tests.support.fakes import NEVER_S, FakeClock
from tests.support.harness import Zygote
from tests.support.receiver import SECRET, StubReceiver, receiving

__all__ = ["curate"]


@pytest.fixture
def stub() -> Any:
    """A receiver that drops repeats."""
    with receiving() as server:
        yield server


class Copy(Job):
    """Copies its input."""

    version = "1"

    def process(self, batch: pa.Table) -> pa.Table:
        return batch


class Ordered(Job):
    """Sorts its input."""

    version = "1"

    def build(self, ds: Any) -> Any:
        return ds.sort("n")


class Poison(Job):
    """Fails, and quotes the row."""

    version = "1"

    def process(self, batch: pa.Table) -> pa.Table:
        raise ValueError(f"no good: {batch.to_pylist()}")


def inputs(folder: Path, shards: int = 2) -> Path:
    for shard in range(shards):
        write_jsonl(folder / "in" / f"s{shard}.jsonl", numbered(10 * shard, 10 * shard + 10))
    return folder / "in"


def marked(output: Path) -> list[str]:
    """Returns the marks of all runs, in order."""
    return [path.stem for path in sorted(output.glob("_curate/runs/*/notified/*.json"))]


def forget_ends(output: Path) -> None:
    """Leaves what a process leaves that was killed between the post and its mark."""
    for path in output.glob("_curate/runs/*/notified/end.json"):
        path.unlink()


class TestEnds:
    def test_complete_once(self, stub: StubReceiver, tmp_path: Path) -> None:
        """A run that finds nothing to do has no end of its own, and writes nothing."""
        source, output = inputs(tmp_path), tmp_path / "out"
        ended = run_job(Copy(), source, output, notify=stub.url)
        (first,) = stub.posts
        assert (first["id"], first["state"]) == (f"{ended.run_id}/end", "complete")
        assert first["summary"] == orjson.loads(orjson.dumps(ended.as_dict()))
        before = everything(output)
        run_job(Copy(), source, output, notify=stub.url)
        assert len(stub.posts) == 1
        assert everything(output) == before

    def test_failed(self, stub: StubReceiver, tmp_path: Path) -> None:
        """No row is in it, though the error quotes one."""
        run_job(Poison(), inputs(tmp_path), tmp_path / "out", notify=stub.url)
        run_job(Poison(), inputs(tmp_path), tmp_path / "out", notify=stub.url, retry_failed=True)
        assert stub.states == ["failed", "failed"]
        assert len(stub.posts) == 2
        assert "text 3" not in str(stub.posts)

    def test_refused_tells_nothing_and_leaves_nothing(self, stub: StubReceiver, tmp_path: Path) -> None:
        source, output = inputs(tmp_path), tmp_path / "out"
        run_job(Copy(), source, output)
        before = everything(output)
        with pytest.raises(ConfigError):
            run_job(Poison(), source, output, notify=stub.url)
        assert (stub.posts, everything(output)) == ([], before)

    def test_a_bad_url_is_refused_before_anything(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError) as refused:
            run_job(Copy(), inputs(tmp_path), tmp_path / "out", notify=f"gopher://h/{SECRET}")
        assert SECRET not in str(refused.value)
        assert not (tmp_path / "out").exists()

    def test_the_url_is_nowhere(self, stub: StubReceiver, tmp_path: Path, curate: Curate) -> None:
        """Neither in the ledger, nor in the list of jobs, nor in what is printed."""
        inputs(tmp_path)
        script, output = str(Path(__file__).parents[1] / "e2e/jobs/choosy.py"), str(tmp_path / "out")
        stub.answers.extend([404])
        args = ("-i", str(tmp_path / "in"), "-o", output, "--backend", "inline")
        ended = curate("run", script, *args, f"--notify={stub.url}")
        assert ended.code == 0
        assert "a notification was not sent" in ended.err
        assert len(stub.posts) == 1
        shown = ended.out + ended.err + curate("page", output, "--json").out
        assert not any(word in shown for word in (SECRET, "hidden-as-well"))
        left = b"".join(everything(tmp_path / "out").values()) + b"".join(
            path.encode() for path in everything(tmp_path)
        )
        assert SECRET.encode() not in left

    def test_several_jobs_in_one_run(self, stub: StubReceiver, tmp_path: Path) -> None:
        """A checkpoint's end is none of its own; with an exchange, one run tells once."""
        rows = api.range(50).checkpoint(str(tmp_path / "half")).random_shuffle(seed=1, num_shards=2)
        ended = rows.write_parquet(str(tmp_path / "out"), backend="inline", notify=stub.url)
        assert [post["id"] for post in stub.posts] == [f"{ended.run_id}/end"]
        assert stub.posts[0]["summary"]["stages"][-1]["state"] == "complete"
        rows.write_parquet(str(tmp_path / "out"), backend="inline", notify=stub.url)
        shutil.rmtree(tmp_path / "out")
        rows.write_parquet(str(tmp_path / "out"), backend="inline", notify=stub.url)
        assert stub.states == ["complete", "complete"]
        assert len(stub.posts) == 2

    def test_a_chain_tells_of_each_step(self, stub: StubReceiver, tmp_path: Path) -> None:
        inputs(tmp_path)
        steps = [Step("a", Copy(), output="out/a", input="in"), Step("b", Copy(), output="out/b", input_from="a")]
        chain = Chain(steps, folder=tmp_path)
        for _ in range(2):
            assert chain.run(backend="inline", notify=stub.url).complete
        assert [post["output"].rpartition("/")[2] for post in stub.posts] == ["a", "b"]
        with pytest.raises(ConfigError, match="notify") as refused:
            chain.run(backend="inline", notify=f"nothing/{SECRET}")
        assert str(refused.value).count("URL") == 2
        given = Step("c", "quality", output="out/c", input="in", options={"notify": "HOOK"})
        with pytest.raises(ConfigError, match="notify is for one run; take it out of the step"):
            Chain([given], folder=tmp_path).run(backend="inline")

    def test_retry(self, stub: StubReceiver, tmp_path: Path, curate: Curate, monkeypatch: pytest.MonkeyPatch) -> None:
        """By the name of a variable, as any option that is a secret."""
        source = tmp_path / "in"
        write_jsonl(source / "a.jsonl", [{"id": "x", "text": "poison"}])
        monkeypatch.setenv("HOOK", stub.url)
        run_job(Choosy(), source, tmp_path / "out", notify="HOOK")
        write_jsonl(source / "a.jsonl", [{"id": "x", "text": "fine"}])
        assert curate("retry", str(tmp_path / "out"), "--notify", "HOOK").code == 0
        assert stub.states == ["failed", "complete"]

    def test_parts_tell_once_that_the_job_is_complete(self, stub: StubReceiver, tmp_path: Path) -> None:
        """Under the id of the driver that has said so in the ledger, whichever tells it."""
        source, output = inputs(tmp_path, 4), tmp_path / "out"
        first = run_job(Copy(), source, output, part="0/2", notify=stub.url)
        assert stub.taken[0]["id"] == f"{first.run_id}/end"
        forget_ends(output)
        run_job(Copy(), source, output, part="1/2", notify=stub.url)
        assert [post["id"] for post in stub.taken] == [f"{first.run_id}/end"]


class TestNotArrived:
    def test_tried_again(self, stub: StubReceiver, tmp_path: Path) -> None:
        stub.answers.extend([500])
        run_job(Copy(), inputs(tmp_path), tmp_path / "out", notify=stub.url)
        assert [one["answered"] for one in stub.posts] in ([500], [500, 200])
        run_job(Copy(), tmp_path / "in", tmp_path / "out", notify=stub.url)
        assert stub.states == ["complete"]

    def test_what_nobody_took_the_next_run_tells(self, tmp_path: Path) -> None:
        """Also one that finds nothing to do, and that has another URL."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            nobody = f"http://127.0.0.1:{free.getsockname()[1]}/{SECRET}"
        source, output = inputs(tmp_path), tmp_path / "out"
        ended = run_job(Copy(), source, output, notify=nobody)
        assert ended.state == "complete"
        assert marked(output) == ["asked"]
        with receiving() as stub:
            for _ in range(2):
                run_job(Copy(), source, output, notify=stub.url)
            assert [post["id"] for post in stub.posts] == [f"{ended.run_id}/end"]
        assert marked(output) == ["asked", "end"]

    def test_killed_between_the_post_and_its_mark(self, stub: StubReceiver, tmp_path: Path) -> None:
        """Told twice, under one id."""
        source, output = inputs(tmp_path), tmp_path / "out"
        run_job(Copy(), source, output, notify=stub.url)
        forget_ends(output)
        run_job(Copy(), source, output, notify=stub.url)
        assert (len(stub.posts), len(stub.taken), stub.posts[0]["id"]) == (2, 1, stub.posts[1]["id"])

    def test_a_mark_that_cannot_be_written(
        self, stub: StubReceiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Stops no run; what is not noted is told again."""

        def fails(*_: Any) -> None:
            raise TransientStorageError("the bucket is away")

        source, output = inputs(tmp_path), tmp_path / "out"
        monkeypatch.setattr(post, "mark", fails)
        with structlog.testing.capture_logs() as logs:
            assert run_job(Copy(), source, output, notify=stub.url).state == "complete"
        assert [one["event"] for one in logs if one["log_level"] == "warning"] == [
            "cannot record that a notification was sent; it is sent again, with the same id"
        ]
        monkeypatch.undo()
        run_job(Copy(), source, output, notify=stub.url)
        assert (len(stub.posts), len(stub.taken)) == (2, 1)

    @pytest.mark.parametrize("part", [None, "0/1"])
    @pytest.mark.parametrize("job", [Copy, Ordered])
    def test_a_store_that_fails_the_run_is_not_asked_what_to_tell(
        self, job: type[Job], part: str | None, stub: StubReceiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It would keep the run for minutes, and then nobody would be told: in the last stage, and before it."""
        asked = []

        def away(*_: Any) -> None:
            asked.append(1)
            raise TransientStorageError("the bucket is away")

        def conclude(*_: Any) -> None:
            monkeypatch.setattr(Ledger, "read_json", away)
            away()

        monkeypatch.setattr(stage_run._Run, "_conclude", conclude)
        with pytest.raises(stage_run.RunStoppedError, match="the bucket is away"):
            run_job(job(), inputs(tmp_path), tmp_path / "out", notify=stub.url, part=part)
        assert len(asked) == 1
        (post,) = stub.taken
        assert (post["state"], post["summary"]["state"], post.get("part")) == ("failed", "failed", part)
        assert post["summary"]["shards"]["total"] == post["summary"]["shards"]["done"] > 0
        assert "20 rows in, 20 out" in post["text"]
        assert "curate failures" not in post["text"]

    def test_runs_of_which_nobody_asked(self, stub: StubReceiver, tmp_path: Path) -> None:
        source, output = inputs(tmp_path), tmp_path / "out"
        run_job(Poison(), source, output)
        run_job(Poison(), source, output, notify=stub.url)
        assert len(stub.posts) == 1


SCRIPT = "tests/e2e/jobs/choosy.py"
SIGNALLED = """
import os, signal, sys
from tests.notify.test_runs import Copy
class Copy(Copy):
    def process(self, batch):
        os.kill(os.getpid(), getattr(signal, sys.argv[4]))
        return batch
Copy.__module__ = "tests.notify.test_runs"
Copy().run(input=sys.argv[1], output=sys.argv[2], backend="inline", notify=sys.argv[3], handle_signals=True)
"""


def texts(folder: Path) -> Path:
    for shard in range(3):
        write_jsonl(folder / "in" / f"s{shard}.jsonl", [{"id": f"{shard}{n}", "text": "fine"} for n in range(3)])
    return folder / "in"


def as_killed(output: Path, *, complete: bool = False, **more: Any) -> None:
    """Leaves what a run leaves whose process was killed a moment ago; `complete`: after it had said that the job is."""
    forget_ends(output)
    if not complete:
        (output / layout.SUMMARY).unlink()
    (beat,) = output.glob("_curate/runs/*/heartbeat.json")
    value = orjson.loads(beat.read_bytes())
    beat.write_bytes(orjson.dumps(value | {"state": "running", "pid_started": "1", **more}))


class TestKilled:
    @pytest.mark.slow
    @pytest.mark.parametrize("points", [4, pytest.param(60, marks=pytest.mark.nightly)])
    def test_at_any_operation_and_run_again(self, stub: StubReceiver, tmp_path: Path, points: int) -> None:
        """Each run that began has one end, and no other run tells of it: told by itself, or by one after it."""
        source = texts(tmp_path)
        with Zygote(tmp_path / "zygote") as zygote:

            def argv(output: Path) -> tuple[str, ...]:
                where = ("--input", str(source), "--output", str(output), "--backend", "inline")
                return (SCRIPT, *where, "--notify", stub.url)

            last = len(zygote.operations(*argv(tmp_path / "whole")))
            for number in range(points):
                stub.posts.clear()
                output, at = tmp_path / f"out-{number}", 1 + (2 * number + 1) * last // (2 * points)
                for again in range(2):
                    code = zygote.run(*argv(output), kill_operation=at + again, kill_when="after").code
                    assert code in (-signal.SIGKILL, 0)
                assert zygote.run(*argv(output)).code == 0
                ended = zygote.run(*argv(output))
                assert ended.code == 0, ended.err
                begun = {path.parent.name for path in output.glob("_curate/runs/*/run.json")}
                assert sorted(post["id"] for post in stub.taken) == sorted(f"{run_id}/end" for run_id in begun)
                assert stub.states.count("complete") == 1
                assert set(stub.states) <= {"complete", "killed"}

    def test_overwritten_by_the_next_run(self, stub: StubReceiver, tmp_path: Path) -> None:
        """What said that it was killed is removed by then."""
        source, output = inputs(tmp_path), tmp_path / "out"
        run_job(Copy(), source, output, notify=stub.url)
        as_killed(output)
        stub.posts.clear()
        run_job(Copy(), source, output, notify=stub.url, overwrite=True, yes=True)
        assert sorted(stub.states) == ["complete", "killed"]

    def test_once_the_job_was_complete(self, stub: StubReceiver, tmp_path: Path) -> None:
        """Nobody would tell that it is: the next run finds nothing to do."""
        source, output = inputs(tmp_path), tmp_path / "out"
        run_job(Copy(), source, output, notify=stub.url)
        as_killed(output, complete=True, shards={"total": 2, "done": 1})
        stub.posts.clear()
        run_job(Copy(), source, output, notify=stub.url)
        (post,) = stub.posts
        assert (post["state"], post["summary"]["shards"]["done"]) == ("complete", 2)
        assert "2 of 2 shards done; 20 rows in, 20 out" in post["text"]

    def test_before_it_said_anything(self, stub: StubReceiver, tmp_path: Path) -> None:
        """Of a job of several stages: its own record does not count shards."""
        rows = api.range(20).random_shuffle(seed=1, num_shards=2)
        rows.write_parquet(str(tmp_path / "out"), backend="inline", notify=stub.url)
        as_killed(tmp_path / "out")
        (beat,) = tmp_path.glob("out/_curate/runs/*/heartbeat.json")
        beat.unlink()
        (about,) = tmp_path.glob("out/_curate/runs/*/run.json")
        value = orjson.loads(about.read_bytes())
        about.write_bytes(orjson.dumps(value | {"pid_started": "1"}))
        (event,) = marks.earlier_events(str(tmp_path / "out"), value["started"] + 1)
        assert (event.run_id, event.state) == (value["run_id"], "killed")

    def test_a_run_that_may_be_alive_is_not_told_of(self, stub: StubReceiver, tmp_path: Path) -> None:
        """What is unclear today is told by the next one."""
        output = tmp_path / "out"
        run_job(Copy(), inputs(tmp_path), output, notify=stub.url)
        now = FakeClock().now()
        as_killed(output, boot_id="elsewhere", updated=now)
        assert marks.earlier_events(str(output), now + HEARTBEAT_S) == []
        (event,) = marks.earlier_events(str(output), now + 3600.0)
        assert event.state == "killed"

    @pytest.mark.slow
    def test_signals(self, stub: StubReceiver, tmp_path: Path) -> None:
        """Of Ctrl-C the run tells itself; of SIGTERM, which leaves it two seconds, it or the next run does."""
        source, output = inputs(tmp_path), tmp_path / "out"
        root = Path(__file__).parents[2]
        for how, states in (("SIGINT", ["interrupted"]), ("SIGTERM", ["interrupted", "interrupted", "complete"])):
            command = [sys.executable, "-c", SIGNALLED, str(source), str(output), stub.url, how]
            subprocess.run(command, cwd=root, capture_output=True, timeout=NEVER_S, check=False)
            if how == "SIGTERM":
                run_job(Copy(), source, output, notify=stub.url)
            assert stub.states == states


CLOCK = FakeClock()


class Stuck(Job):
    """Stands still for an hour, and quotes a row when its service is busy."""

    version = "1"

    def process(self, batch: pa.Table) -> pa.Table:
        CLOCK.advance(3600.0)
        ADVANCED[0]()
        if BUSY:
            raise RetryLater(1.0, f"no answer for {batch['text'][BUSY.pop()]}")
        return batch


ADVANCED: list[Any] = [lambda: None]
BUSY: list[int] = []


class Sorted(Stuck):
    """The same, before an exchange."""

    def build(self, ds: Any) -> Any:
        return ds.map_batches(stuck).sort("n")

    process = Job.process


def stuck(batch: pa.Table) -> pa.Table:
    """Takes an hour."""
    CLOCK.advance(3600.0)
    ADVANCED[0]()
    return batch


class Stopped(Job):
    """Is interrupted, by nobody that a run would see."""

    version = "1"

    def process(self, batch: pa.Table) -> pa.Table:
        raise KeyboardInterrupt(batch.num_rows)


class TestInterrupted:
    def test_a_run_that_had_begun(self, stub: StubReceiver, tmp_path: Path) -> None:
        """It says so to who asked for it: there is something to resume."""
        with pytest.raises(KeyboardInterrupt, match="run it again to resume"):
            run_job(Stopped(), inputs(tmp_path), tmp_path / "out", notify=stub.url)
        assert stub.states == ["interrupted"]
        assert len(stub.posts) == 1

    def test_one_that_had_not(self, stub: StubReceiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def interrupted(*_: Any) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr("curate.driver.stage_run.prepare", interrupted)
        with pytest.raises(KeyboardInterrupt) as stopped:
            run_job(Copy(), inputs(tmp_path), tmp_path / "out", notify=stub.url)
        assert not had_begun(stopped.value)
        assert stub.posts == []


def opened_logs(monkeypatch: pytest.MonkeyPatch) -> list[RunLog]:
    """Returns a list that has the logs of the runs from now on, once they are opened."""
    logs: list[RunLog] = []
    before = RunLog.open

    def opened(self: RunLog, about: dict[str, Any]) -> None:
        logs.append(self)
        before(self, about)

    monkeypatch.setattr(RunLog, "open", opened)
    return logs


class TestNoProgress:
    def test_in_a_stage_it_is_the_job_that_tells(
        self, stub: StubReceiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Under the run of the job, whose ledger is the one that people know."""
        logs = opened_logs(monkeypatch)
        ADVANCED[0] = lambda: [one.flush() for one in logs]
        ended = run_job(Sorted(), inputs(tmp_path, 2), tmp_path / "out", notify=stub.url, clock=CLOCK)
        assert ended.state == "complete"
        stalls = [post for post in stub.posts if post["event"] == "no-progress"]
        assert stalls
        assert {post["run_id"] for post in stub.posts} == {ended.run_id}
        assert {post["output"] for post in stalls} == {str(tmp_path / "out")}
        assert len(stub.posts) == len({post["id"] for post in stub.posts})

    def test_told_once_for_each_time(self, stub: StubReceiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each heartbeat sees that nothing has ended; the log and the post say it once."""
        logs = opened_logs(monkeypatch)
        ADVANCED[0] = lambda: [logs[-1].flush() for _ in range(3)]
        BUSY.append(0)
        with structlog.testing.capture_logs() as said:
            ended = run_job(Stuck(), inputs(tmp_path, 2), tmp_path / "out", notify=stub.url, clock=CLOCK)
        assert ended.state == "complete"
        stalls = [post for post in stub.taken if post["event"] == "no-progress"]
        # One for each shard: the first one's busy service is the same standstill.
        assert len(stalls) == 2
        assert len({post["id"] for post in stub.posts}) == 3
        assert len(stub.posts) == 3
        assert "text 0" not in str(stub.posts)
        # Which shard, and where; of the first one nobody has looked yet.
        assert stalls[1]["waits_for"] == f"the shard that runs: s1 on {socket.gethostname()}"
        assert stalls[1]["node"] == socket.gethostname()
        warned = [one for one in said if one["event"].startswith("no progress")]
        assert [one["event"] for one in warned] == ["no progress: no shard has ended for 1 h"] * 2
        assert marked(tmp_path / "out") == ["asked", "end", *[f"no-progress-{one['id'][-16:]}" for one in stalls]]

    def test_it_may_be_set(self, stub: StubReceiver, tmp_path: Path) -> None:
        CLOCK.advance(1.0)
        ADVANCED[0] = lambda: None
        ended = run_job(
            Stuck(), inputs(tmp_path, 1), tmp_path / "out", notify=stub.url, clock=CLOCK, no_progress_after="2h"
        )
        assert stub.states == [ended.state]

    @pytest.mark.parametrize("given", ["0", "-1", "soon", "1 year", 0, -5, float("nan"), [], "inf"])
    def test_bad_times(self, given: Any, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"no_progress_after=.* is not a time above 0"):
            run_job(Copy(), inputs(tmp_path), tmp_path / "out", no_progress_after=given)
        assert not (tmp_path / "out" / layout.LEDGER).exists()
