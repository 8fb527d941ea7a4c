"""`curate serve --notify`: tells of runs that cannot tell it themselves, once each, also after it was killed itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from curate.errors import PermissionDenied
from curate.ledger import layout
from curate.ledger.ledger import open_ledger
from curate.notify import watch
from curate.notify.marks import earlier_events
from curate.notify.message import stall_name
from curate.notify.receiver import Receiver
from curate.notify.watch import Watcher
from curate.pages.server import PageServer
from tests.cli.running import Curate, curate
from tests.pages.samples import NOW
from tests.support.fakes import FakeClock
from tests.support.ledgers import heartbeat, make_job, make_ledger
from tests.support.receiver import SECRET, StubReceiver, receiving

__all__ = ["curate"]

RUN, OTHER = "20231114T220000.000Z-abc123", "20231114T221000.000Z-def456"


@pytest.fixture
def stub() -> Iterator[StubReceiver]:
    """A receiver that drops repeats."""
    with receiving() as server:
        yield server


def beat(state: str = "running", *, ago: float = 5.0, **more: Any) -> dict[str, Any]:
    shards = {"total": 10, "scope": 10, "done": 4, "skipped": 0, "running": 2, "failed": 0, "stale": 0}
    return heartbeat(state, started=NOW - 600, updated=NOW - ago, shards=shards, **more)


def goes_on(output: str, run_id: str, value: dict[str, Any]) -> None:
    """Replaces the heartbeat of a run."""
    uri = f"{output}/{layout.run_file(run_id, 'heartbeat.json')}"
    make_ledger(output).store.replace(uri, orjson.dumps({**value, "run_id": run_id}))


def look(stub: StubReceiver, output: str, now: float = NOW, after_s: float | None = None) -> Watcher:
    """Looks once, as a server that was just started."""
    watcher = Watcher(Receiver(stub.url), lambda: [output], FakeClock(now), after_s=after_s)
    watcher.look()
    return watcher


def test_a_run_that_was_seen_and_ended(stub: StubReceiver, tmp_path: Path) -> None:
    """It was started without --notify. The server that sees the end need not be the one that saw it run."""
    output = f"{tmp_path}/out"
    make_job(output, total=10, done=4, runs={RUN: beat()})
    look(stub, output)
    assert stub.posts == []
    goes_on(output, RUN, beat("complete"))
    for _ in range(3):
        look(stub, output)
    (post,) = stub.posts
    assert (post["id"], post["state"], post["told_by"]) == (f"{RUN}/end", "complete", "curate serve")


def test_a_run_that_was_seen_and_killed(stub: StubReceiver, tmp_path: Path) -> None:
    """Nobody there can be asked: after ten minutes of silence it is taken for gone."""
    output = f"{tmp_path}/out"
    make_job(output, total=10, done=4, runs={RUN: beat()})
    look(stub, output)
    look(stub, output, NOW + 300)
    assert stub.posts == []
    watcher = look(stub, output, NOW + 900, after_s=10_000.0)
    watcher.look()
    assert [(post["id"], post["state"]) for post in stub.posts] == [(f"{RUN}/end", "killed")]


def test_what_ended_before_anybody_looked(stub: StubReceiver, tmp_path: Path) -> None:
    """A server that is started does not tell of the runs of a year; but of those that were to be told of."""
    output = f"{tmp_path}/out"
    ledger = make_job(output, total=10, done=4, runs={RUN: beat("failed"), OTHER: beat("failed")})
    ledger.create_json(layout.told_file(OTHER, "asked"), {})
    watcher = look(stub, output)
    watcher.look()
    assert [post["id"] for post in stub.posts] == [f"{OTHER}/end"]


@pytest.mark.parametrize("ended", [2, 1])
def test_parts_that_completed_a_job_have_one_end(stub: StubReceiver, tmp_path: Path, ended: int) -> None:
    """Under the id of the one that said so in the ledger, as they tell it themselves: whichever others could not, and
    whether or not they end at the same look. Whoever tells: a server, or the next run."""
    output, runs = f"{tmp_path}/out", (RUN, OTHER)
    beats = [beat("complete" if part < ended else "running", part=f"{part}/2") for part in range(2)]
    ledger = make_job(output, total=10, done=10, runs=dict(zip(runs, beats, strict=True)))
    ledger.create_json(layout.SUMMARY, {"run_id": OTHER})
    for run_id in runs:
        ledger.create_json(layout.told_file(run_id, "asked"), {})
    assert [one.id for one in earlier_events(output, NOW)] == [f"{OTHER}/end"]
    watcher = look(stub, output)
    goes_on(output, OTHER, beat("complete", part="1/2"))
    watcher.look()
    assert [(post["id"], post["state"]) for post in stub.posts] == [(f"{OTHER}/end", "complete")]
    assert earlier_events(output, NOW) == []


def test_no_progress(stub: StubReceiver, tmp_path: Path) -> None:
    """Once for each time, under the id that the run itself tells it by; as the run says when, or as is asked for."""
    output, last = f"{tmp_path}/out", NOW - 500
    waits = {"waits": "the last shard: s9 on node-3", "waits_since": NOW - 480, "waits_kind": "last"}
    stuck = beat(last_end=last, no_progress_after_s=3600.0, waits_node="node-3", **waits)
    make_job(output, total=10, done=4, runs={RUN: stuck})
    look(stub, output)
    assert stub.posts == []
    for _ in range(2):
        look(stub, output, after_s=400.0)
    (post,) = stub.posts
    assert (post["id"], post["node"]) == (f"{RUN}/{stall_name(last)}", "node-3")
    assert post["waits_for"] == "the last shard: s9 on node-3"
    goes_on(output, RUN, beat(last_end=NOW - 450))
    look(stub, output, after_s=400.0)
    assert len(stub.posts) == 2


def test_an_output_that_cannot_be_written(stub: StubReceiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no marks: one server tells once, and another one repeats the same id."""

    def denied(*_: Any) -> None:
        raise PermissionDenied("only the owner writes here")

    output = f"{tmp_path}/out"
    make_job(output, total=10, done=4, runs={RUN: beat()})
    monkeypatch.setattr(watch, "mark", denied)
    monkeypatch.setattr("curate.notify.post.mark", denied)
    watcher = look(stub, output)
    goes_on(output, RUN, beat("complete"))
    for _ in range(3):
        watcher.look()
    assert [post["id"] for post in stub.posts] == [f"{RUN}/end"]


def test_one_job_hides_no_other(stub: StubReceiver, tmp_path: Path) -> None:
    """One was removed, one is damaged, one has a FIFO; and the receiver was away for a while."""
    import os

    outputs = [f"{tmp_path}/{name}" for name in ("gone", "damaged", "special", "fine")]
    for output in outputs[1:]:
        ledger = make_job(output, total=10, done=4, runs={RUN: beat("complete")})
        ledger.create_json(layout.told_file(RUN, "asked"), {})
    Path(outputs[1], layout.JOB).write_bytes(b"{")
    os.mkfifo(Path(outputs[2], layout.run_file(RUN, "x")))
    watcher = Watcher(Receiver(stub.url), lambda: outputs, FakeClock(NOW))
    stub.answers.extend([404])
    watcher.look()
    watcher.look()
    assert {post["output"].rpartition("/")[2] for post in stub.taken} >= {"fine"}


def test_an_error_of_any_kind_ends_no_watch(
    stub: StubReceiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`curate serve` would go on to say whom it notifies, and tell nobody."""
    output = f"{tmp_path}/out"
    make_job(output, total=10, done=4, runs={RUN: beat("failed")}).create_json(layout.told_file(RUN, "asked"), {})
    asked = iter([RuntimeError("can't start new thread"), ["broken", output]])

    def outputs() -> list[str]:
        found = next(asked, [])
        if isinstance(found, Exception):
            raise found
        return found

    def opened(uri: str) -> Any:
        if uri == "broken":
            raise ValueError("no such thing")
        return open_ledger(uri)

    monkeypatch.setattr(watch, "LOOK_S", 0.01)
    monkeypatch.setattr(watch, "open_ledger", opened)
    watcher = Watcher(Receiver(stub.url), outputs, FakeClock(NOW))
    watcher.start()
    stub.wait_for(1)
    watcher.close()
    assert stub.states == ["failed"]


def test_a_receiver_that_is_away_is_tried_once_a_look(stub: StubReceiver, tmp_path: Path) -> None:
    """The other jobs are looked at meanwhile, and the next look sends what this one did not."""
    outputs = {f"{tmp_path}/{run}": run for run in (RUN, OTHER)}
    for output, run in outputs.items():
        make_job(output, total=10, done=4, runs={run: beat("failed")}).create_json(layout.told_file(run, "asked"), {})
    watcher = Watcher(Receiver(stub.url), lambda: [*outputs], FakeClock(NOW))
    stub.answers.extend([503, 503, 503, 200])
    for posts in (2, 4, 5, 5):
        watcher.look()
        assert len(stub.posts) == posts
    assert [post["run_id"] for post in stub.taken] == [OTHER, RUN]


@pytest.mark.parametrize("asked", [0, 5, 24])
def test_a_run_of_which_somebody_is_to_be_told_is_not_hidden_by_later_ones(
    stub: StubReceiver, tmp_path: Path, asked: int
) -> None:
    """Whoever tells: a server, or the next run. Many runs without --notify may have been made since."""
    runs = [f"20231114T22{number:02}00.000Z-abc123" for number in range(25)]
    output = f"{tmp_path}/out"
    ledger = make_job(output, total=10, done=4, runs={one: beat("failed") for one in runs})
    ledger.create_json(layout.told_file(runs[asked], "asked"), {})
    told = [(one.run_id, one.state) for one in earlier_events(output, NOW)]
    look(stub, output)
    assert told == [(runs[asked], "failed")]
    assert [(post["run_id"], post["state"], post["summary"]["shards"]["done"]) for post in stub.posts] == [
        (runs[asked], "failed", 4)
    ]


def test_the_command(stub: StubReceiver, tmp_path: Path, curate: Curate, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says whom it notifies, by the host alone; a bad URL is refused before anything is served."""
    output = f"{tmp_path}/out"
    ledger = make_job(output, total=10, done=4, runs={RUN: beat("failed")})
    ledger.create_json(layout.told_file(RUN, "asked"), {})

    def forever(_: PageServer) -> None:
        stub.wait_for(1)
        raise KeyboardInterrupt

    monkeypatch.setattr(PageServer, "serve_forever", forever)
    served = curate("serve", output, "--port", "0", "--notify", stub.url)
    assert served.code == 0
    assert "notifying 127.0.0.1; end it" in served.err
    assert SECRET not in served.err
    assert stub.states == ["failed"]
    refused = curate("serve", output, "--port", "0", "--notify", f"https:///{SECRET}")
    assert (refused.code, SECRET in refused.err) == (2, False)
    assert curate("serve", output, "--port", "0", "--no-progress-after", "soon").code == 2
