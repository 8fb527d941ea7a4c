"""Two drivers at once on one output: the second one stops, or helps; who loses a race adopts what the winner wrote."""

from __future__ import annotations

import json
import random
import shutil
import signal
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson
import pytest

from curate.backends.inline import InlineBackend
from curate.clock import SystemClock
from curate.driver.rivals import BETWEEN_LOOKS_S
from curate.errors import ConfigError
from curate.graph.entry import dry_run
from curate.resume import prepare
from curate.runtime.protocol import Message, PoolSpec, Resources, TaskFinished
from tests.e2e.jobs.curation import Curation
from tests.support.fakes import FakeClock
from tests.support.harness import (
    CURATION,
    Driver,
    Place,
    Zygote,
    check_same,
    corpus,
    encoded,
    files_below,
    job_summary,
    json_line,
    outputs,
    rows,
    run,
    strangers,
    totals,
    wait_until,
)
from tests.support.ledgers import heartbeat
from tests.support.workbench import Bench, NoBackend, complete

NEW = "2022/new.jsonl"


@pytest.mark.ci(2)
@pytest.mark.slow
def test_both_end_well(place: Place, tmp_path: Path) -> None:
    """Both say complete, with the same books; bytes and names are those of one driver alone, and the next run finds
    nothing to do. Then with inputs that are new to the plan, which both want to append."""
    source = place.write("in", corpus(sizes=(60, 3, 40, 0, 70, 20)))
    common = (CURATION, "--backend", "inline", "--json", "--pause-s", "0.005", "--allow-concurrent", "--input", source)
    with (
        Zygote(tmp_path / "one", place.env) as one,
        Zygote(tmp_path / "two", place.env) as two,
        ThreadPoolExecutor(2) as pool,
    ):
        for number in range(3):
            if number:
                name = f"2022/new-{number}.jsonl"
                place.write("in", {name: encoded(".jsonl", rows(name, 20 * number, random.Random(number)))})
            alone = one.run(*common, "--output", f"{place.root}/alone")
            assert alone.code == 0, alone.err
            both = [pool.submit(zygote.run, *common, "--output", f"{place.root}/both") for zygote in (one, two)]
            for ended in [future.result() for future in both]:
                assert ended.code == 0, ended.err
                assert totals(ended.json) == totals(alone.json)
            found = place.objects("both")
            check_same(found, place.objects("alone"))
            assert not strangers(found)
            calls = one.run(*common, "--output", f"{place.root}/both").json["storage_calls"]
            assert (calls["list"], calls["put"], calls["delete"]) == (2, 0, 0)


class Meanwhile(InlineBackend):
    """An inline backend during whose start, or first poll, something else happens."""

    def __init__(self, when: str, happens: Callable[[], object]) -> None:
        super().__init__()
        self._when = when
        self._happens = happens

    def start(self, resources: Resources, pools: Sequence[PoolSpec] = ()) -> float:
        started_s = super().start(resources, pools)
        self._now("start")
        return started_s

    def poll(self, timeout_s: float) -> list[Message | TaskFinished]:
        self._now("poll")
        return super().poll(timeout_s)

    def _now(self, when: str) -> None:
        if when == self._when:
            self._when = ""
            self._happens()


@pytest.fixture
def bench(place: Place, tmp_path: Path) -> Bench:
    return Bench(place, tmp_path / "trace", place.write("in", corpus(sizes=(60, 3, 40))))


@pytest.mark.parametrize("when", ["start", "poll"])
def test_a_driver_is_overtaken_by_one_that_knows_more(bench: Bench, when: str) -> None:
    """The other one grows the plan and completes all of it: its summary stays."""

    def overtake() -> None:
        bench.place.write("in", {NEW: encoded(".jsonl", rows(NEW, 20, random.Random(1)))})
        complete(bench.run(allow_concurrent=True))

    first = complete(bench.run(backend=Meanwhile(when, overtake)))
    assert first.total == (4 if when == "start" else 3)
    bench.check_as_fresh()
    calls = complete(bench.run(backend=NoBackend())).calls.as_dict()
    assert (calls["put"], calls["delete"]) == (0, 0)


def test_a_plan_that_grows_meanwhile_is_not_complete(bench: Bench) -> None:
    """Another driver has added shards and not done them: whoever ends first does not call the job complete."""

    def grow() -> None:
        bench.place.write("in", {NEW: encoded(".jsonl", rows(NEW, 20, random.Random(1)))})
        complete(bench.run(limit=1, allow_concurrent=True))

    first = complete(bench.run(backend=Meanwhile("poll", grow)))
    assert first.total == 3
    assert "_curate/summary.json" not in bench.objects()
    status = bench.status()
    assert (status.state, status.done, status.total) == ("pending", 3, 4)
    complete(bench.run())
    complete(bench.run(output="fresh"))
    assert job_summary(bench.objects()) == job_summary(bench.objects("fresh"))


def test_new_inputs_that_both_want_to_plan(bench: Bench) -> None:
    """Parts of a plan have one name: who comes second reads what the first one wrote, and plans what is then new."""
    complete(bench.run())

    def plan_other() -> None:
        bench.place.write("in", {"2023/more.jsonl": encoded(".jsonl", rows("2023/more.jsonl", 9, random.Random(2)))})
        complete(bench.run())

    bench.place.write("in", {NEW: encoded(".jsonl", rows(NEW, 20, random.Random(1)))})
    second = complete(bench.run(backend=Meanwhile("start", plan_other)))
    assert (second.total, second.skipped) == (5, 5)
    assert sorted(name for name in bench.objects() if "/plan/" in name) == [
        "_curate/plan/00000.parquet",
        "_curate/plan/00001.parquet",
    ]
    bench.check_as_fresh()


# A second driver looks at the first

OTHER = "20200101T000000.000Z-abcdef"


def begin_elsewhere(bench: Bench, clock: FakeClock, output: str = "out") -> None:
    """Writes what a driver on another host leaves that is at work, or was lost with its host."""
    beat = heartbeat("running", started=clock.now() - 60, updated=clock.now() - 4, shards={"total": 3, "done": 1})
    for name in ("run.json", "heartbeat.json"):
        bench.place.write(output, {f"_curate/runs/{OTHER}/{name}": orjson.dumps(beat | {"run_id": OTHER})})


class MovingClock(FakeClock):
    """A clock on which the driver elsewhere beats while someone sleeps."""

    def __init__(self, bench: Bench) -> None:
        super().__init__()
        self.bench = bench

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        begin_elsewhere(self.bench, self)


def test_a_driver_elsewhere_that_does_not_move_is_gone(bench: Bench, clock: FakeClock) -> None:
    """The second one waits for two heartbeats, once, and goes on."""
    bench.run(limit=1)
    begin_elsewhere(bench, clock)
    complete(bench.run(clock=clock))
    assert clock.sleeps == [BETWEEN_LOOKS_S]


def test_a_driver_elsewhere_that_moves_is_alive(bench: Bench) -> None:
    """The second one stops before it writes anything or starts a backend, and names the first; or helps if told to."""
    bench.run(limit=1)
    clock = MovingClock(bench)
    begin_elsewhere(bench, clock)
    before = bench.objects()
    with pytest.raises(
        ConfigError, match=rf"run {OTHER} on elsewhere \(pid 1\), 1 of 3 shards done.*allow_concurrent=True"
    ):
        bench.run(clock=clock, backend=NoBackend())
    assert {name for name, data in bench.objects().items() if before.get(name) != data} == {
        f"_curate/runs/{OTHER}/{name}" for name in ("run.json", "heartbeat.json")
    }
    complete(bench.run(clock=clock, allow_concurrent=True))
    assert clock.sleeps == [BETWEEN_LOOKS_S]


def test_a_finished_job_is_free_whoever_seems_to_run(bench: Bench, clock: FakeClock) -> None:
    """A driver that was lost with its host says for ever that it runs."""
    complete(bench.run())
    calls = complete(bench.run(backend=NoBackend())).calls
    begin_elsewhere(bench, clock)
    assert complete(bench.run(backend=NoBackend(), clock=clock)).calls == calls
    assert clock.sleeps == []


@pytest.mark.ci(6)
@pytest.mark.parametrize("parameters", [{}, {"short": 25}])
@pytest.mark.parametrize("helping", [False, True])
def test_nothing_is_overwritten_while_a_driver_is_alive(
    bench: Bench, parameters: dict[str, int], helping: bool
) -> None:
    """Whatever the identity, and even to who would help; one that is gone is overwritten, its run with it."""
    complete(bench.run())
    clock = MovingClock(bench)
    begin_elsewhere(bench, clock)
    before = outputs(bench.objects())
    bench.parameters = dict(parameters)
    options = {"overwrite": True, "confirm": lambda _: True, "allow_concurrent": helping}
    with pytest.raises(ConfigError, match=r"overwrite=True would remove what it makes.*on elsewhere: kill 1"):
        bench.run(clock=clock, backend=NoBackend(), **options)
    assert outputs(bench.objects()) == before
    still = FakeClock(clock.now())
    complete(bench.run(clock=still, **options))
    assert still.sleeps == [BETWEEN_LOOKS_S]
    assert not [name for name in bench.objects() if OTHER in name]


def test_one_that_starts_over_while_another_looks(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """An input has changed since. What the first one would say is partly of what was there before: the summary of the
    second one stays."""
    complete(bench.run())
    name = "2020/RC-00.jsonl.gz"
    bench.place.write("in", {name: encoded(".jsonl.gz", rows(name, 9, random.Random(2)))})
    look_back = prepare.look_back

    def overtake(*look: Any) -> Any:
        monkeypatch.setattr(prepare, "look_back", look_back)
        complete(bench.run(overwrite=True, confirm=lambda _: True))
        return look_back(*look)

    monkeypatch.setattr(prepare, "look_back", overtake)
    bench.run(backend=NoBackend())
    bench.check_as_fresh()
    assert complete(bench.run(backend=NoBackend())).calls.put == 0


def test_a_driver_that_begins_while_the_question_is_asked(bench: Bench, clock: FakeClock) -> None:
    """Nothing is removed."""
    complete(bench.run())
    before = bench.objects()

    def confirm(_: str) -> bool:
        begin_elsewhere(bench, clock)
        return True

    with pytest.raises(ConfigError, match=rf"another driver began .*run {OTHER}.*nothing was removed"):
        bench.run(clock=clock, overwrite=True, confirm=confirm)
    assert {name: data for name, data in bench.objects().items() if OTHER not in name} == before


def test_a_dry_run_does_not_wait(bench: Bench) -> None:
    """It says what one look tells, and nothing of a driver where there is nothing to do."""
    bench.run(limit=1)
    now = FakeClock(SystemClock().now())
    begin_elsewhere(bench, now)
    options = Curation.options(input=bench.source, output=f"{bench.place.root}/out", backend="inline")
    text = dry_run(Curation().spec(), options).text
    assert f"driver   another one may be running: run {OTHER} on elsewhere (pid 1), 1 of 3 shards done" in text
    complete(bench.run(allow_concurrent=True))
    assert "driver" not in dry_run(Curation().spec(), options)[1]


def _beats(out: Path) -> list[Path]:
    return [path for path in files_below(out) if path.name == "heartbeat.json"]


@pytest.mark.slow
@pytest.mark.ray_lane
def test_a_driver_that_is_stopped(local: Place, tmp_path: Path) -> None:
    """SIGSTOP in the middle of a run. To this host it is alive: a second driver stops at once, and so does one that is
    to overwrite; one that helps completes the job. SIGCONT: the first one ends complete too; the bytes and books are
    those of a driver alone, and the next run finds nothing to do."""
    source = local.write("in", corpus(sizes=(60, 3, 40, 0, 70, 20)))
    common = (CURATION, "--backend", "inline", "--json", "--input", source)
    alone = run(*common, "--output", f"{local.root}/alone")
    assert alone.code == 0, alone.err
    out, hold = f"{local.root}/out", tmp_path / "hold"
    trace = ("--trace", str(tmp_path / "trace"))
    hold.touch()
    with Driver([*common, "--output", out, *trace, "--hold", str(hold), "--pause-s", "0.05"]) as first:
        # In its first shard, its heartbeat written.
        wait_until(lambda: (tmp_path / "trace").exists() and _beats(Path(out)), "a run")
        first.signal(signal.SIGSTOP)
        hold.unlink()
        second = run(*common, "--output", out)
        assert second.code == 2, second.err
        assert f"on {socket.gethostname()} (pid {first.process.pid})" in second.err
        assert "--allow-concurrent" in second.err
        third = run(*common, "--output", out, "--short", "25", "--overwrite", "--yes", "--allow-concurrent")
        assert third.code == 2, third.err
        assert f"kill {first.process.pid}" in third.err
        helper = run(*common, "--output", out, "--allow-concurrent")
        assert helper.code == 0, helper.err
        found = local.objects("out")
        first.signal(signal.SIGCONT)
        ended = first.end()
    assert ended.code == 0, ended.err
    after = local.objects("out")
    assert totals(json_line(ended.out)) == totals(helper.json) == totals(alone.json)
    assert outputs(after) == outputs(found) == outputs(local.objects("alone"))
    assert job_summary(after) == job_summary(local.objects("alone"))
    assert after["_curate/summary.json"] == found["_curate/summary.json"]
    assert not strangers(after)
    calls = run(*common, "--output", out).json["storage_calls"]
    assert (calls["list"], calls["put"], calls["delete"]) == (2, 0, 0)


@pytest.mark.slow
@pytest.mark.ray_lane
def test_a_driver_that_is_stopped_and_overwritten(local: Place, tmp_path: Path) -> None:
    """On a host that nobody can ask, so that the other one really waits for two heartbeats. When it wakes up, another
    job has the output: it changes nothing there, and says why it ends."""
    source = local.write("in", corpus(sizes=(60, 3, 40, 0, 70, 20)))
    common = (CURATION, "--backend", "inline", "--json", "--input", source)
    out, hold = Path(local.root) / "out", tmp_path / "hold"
    trace = ("--trace", str(tmp_path / "trace"))
    hold.touch()
    with Driver([*common, "--output", str(out), *trace, "--hold", str(hold), "--pause-s", "0.05"]) as first:
        wait_until(lambda: (tmp_path / "trace").exists() and _beats(out), "a run")
        first.signal(signal.SIGSTOP)
        hold.unlink()
        (beat,) = _beats(out)
        value = json.loads(beat.read_bytes())
        beat.write_text(json.dumps(value | {"boot_id": "elsewhere"}))
        other = run(*common, "--output", str(out), "--short", "25", "--overwrite", "--yes")
        assert other.code == 0, other.err
        found = local.objects("out")
        first.signal(signal.SIGCONT)
        ended = first.end()
    assert ended.code == 1, ended.err
    assert "the output now belongs to another run" in ended.err or "is now the output of another job" in ended.err
    # What its workers logged is there to be read, under a run that the ledger does not list.
    logs = f"_curate/runs/{value['run_id']}/logs/"
    assert {name: data for name, data in local.objects("out").items() if not name.startswith(logs)} == found
    shutil.rmtree(out)
