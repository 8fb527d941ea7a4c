"""Several drivers make one output, each beginning with its part: the bytes and books of one driver alone."""

from __future__ import annotations

import random
import re
import signal
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import orjson
import pytest

from curate.clock import SystemClock
from curate.driver.rivals import BETWEEN_LOOKS_S
from curate.errors import ConfigError
from curate.graph.entry import dry_run
from curate.observe.job import read_status
from tests.e2e.jobs.curation import Curation
from tests.e2e.test_exchange import Bench as Sorting
from tests.e2e.test_exchange import files
from tests.e2e.test_two_drivers import OTHER, MovingClock
from tests.support.harness import (
    CURATION,
    Driver,
    Ended,
    Place,
    Zygote,
    check_same,
    corpus,
    executions,
    json_line,
    outputs,
    strangers,
    totals,
    wait_until,
)
from tests.support.ledgers import heartbeat
from tests.support.workbench import Bench, NoBackend, complete

DRIVERS = 4
BUCKETS_AT_NIGHT = pytest.mark.parametrize(
    "place", ["local", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("gcs", "s3"))], indirect=True
)
"""What drivers do for one another is the same in a bucket; `test_same_bytes` has four of them there."""


def parts_of(argv: Sequence[str], **killed: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Returns the requests of a job in as many parts as there are drivers; `part_2` says when that one is killed."""
    return [
        {"argv": (*argv, "--part", f"{number}/{DRIVERS}"), **killed.get(f"part_{number}", {})}
        for number in range(DRIVERS)
    ]


@pytest.fixture
def bench(local: Place, tmp_path: Path) -> Bench:
    return Bench(local, tmp_path / "trace", local.write("in", corpus(sizes=(60, 3, 40, 7, 20, 9))))


# In this process


def test_a_driver_whose_others_do_not_begin_does_all(bench: Bench) -> None:
    """What it does not begin with it does last, and waits for nobody; they find that all is done."""
    first = complete(bench.run(part="1/3"))
    assert (first.part, first.total, first.by_others) == ("1/3", 6, 0)
    assert len(set(bench.begun())) == 6
    complete(bench.run(output="alone"))
    check_same(bench.objects(), bench.objects("alone"))
    for part in ("0/3", "2/3", None):
        calls = complete(bench.run(part=part, backend=NoBackend())).calls
        assert (calls.list, calls.put, calls.delete) == (2, 0, 0)


def test_parts_of_a_part(bench: Bench) -> None:
    """A limit and a sample hold for all drivers together; there may be more drivers than shards."""
    limited = complete(bench.run(part="0/2", limit=2))
    assert (limited.total, limited.pending) == (2, 4)
    complete(bench.run(part="8/9"))
    assert bench.status().state == "complete"


def test_what_a_part_costs(bench: Bench) -> None:
    """One small read for each shard, to see whether its output exists; for a look at the others a listing, their
    heartbeats, and a heartbeat of its own. It looks as often as it takes to halve what is left."""
    alone = complete(bench.run(output="alone")).calls
    only = complete(bench.run(output="only", part="0/1")).calls
    assert (only.list, only.get, only.put) == (alone.list, alone.get + 6, alone.put)
    shared = complete(bench.run(part="0/2")).calls
    assert alone.list < shared.list <= alone.list + 2
    assert alone.put <= shared.put <= alone.put + 3


def test_a_dry_run_tells_the_part(bench: Bench) -> None:
    """And with how many shards it begins; nothing is written."""
    options = Curation.options(input=bench.source, output=f"{bench.place.root}/out", backend="inline", part="0/3")
    text = dry_run(Curation().spec(), options).text
    assert re.search(r"^part     0/3: begins with [12] of these, then helps with the others$", text, re.MULTILINE)
    assert not bench.objects()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"part": "3/3"}, "part='3/3'.*out of range: parts of 3 are 0/3 to 2/3"),
        ({"part": "one"}, "part='one'.*is not K/N"),
        ({"part": "auto"}, "part='auto'.*has no number of Slurm"),
        ({"part": "0/3", "overwrite": True}, "run once with overwrite=True alone, then start the parts"),
        ({"part": "0/3", "redo_stale": True}, "run once with redo_stale=True alone"),
    ],
)
def test_bad_parts_are_refused(bench: Bench, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        bench.run(backend=NoBackend(), **options)
    assert not bench.objects()


class PartElsewhere(MovingClock):
    """A clock on which the driver of a part elsewhere beats."""

    def __init__(self, bench: Bench, part: str) -> None:
        self.part = part
        super().__init__(bench)
        self.beat()

    def beat(self) -> None:
        told = heartbeat("running", started=self.now() - 60, updated=self.now() - 4, shards={"total": 6, "done": 1})
        told |= {"run_id": OTHER, "part": self.part, "at_hand": [0]}
        for name in ("run.json", "heartbeat.json"):
            self.bench.place.write("out", {f"_curate/runs/{OTHER}/{name}": orjson.dumps(told)})

    def sleep(self, seconds: float) -> None:
        super(MovingClock, self).sleep(seconds)
        self.beat()


@pytest.mark.parametrize(
    ("there", "here", "problem"),
    [
        ("1/3", "1/3", "it has part='1/3', this one part='1/3'. All drivers of an output need"),
        ("1/3", "1/4", "it has part='1/3', this one part='1/4'"),
        ("", "1/3", "it makes the whole output, this one part='1/3'"),
        ("1/3", None, "allow_concurrent=True to help it"),
    ],
)
def test_a_driver_in_the_way_is_refused(bench: Bench, there: str, here: str | None, problem: str) -> None:
    """Another one has the same part, or other numbers of parts, while it is alive; nothing is written."""
    bench.run(limit=1)
    clock = PartElsewhere(bench, there)
    with pytest.raises(ConfigError, match=problem):
        bench.run(clock=clock, part=here, backend=NoBackend())
    assert clock.sleeps == [BETWEEN_LOOKS_S]


def test_another_job_is_refused(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drivers of other parameters or of other code do not mix, whatever their parts."""
    bench.run(limit=1, part="0/2")
    bench.parameters = {"short": 25}
    with pytest.raises(ConfigError, match="short"):
        bench.run(part="1/2", backend=NoBackend())
    bench.parameters = {}
    monkeypatch.setattr(Curation, "version", "another")
    with pytest.raises(ConfigError, match="version: made with '1', you asked for 'another'"):
        bench.run(part="1/2", backend=NoBackend())


def test_what_another_driver_runs_is_left_to_it_while_it_beats(bench: Bench) -> None:
    """This one says for what it waits. When the other one is silent for three heartbeats, it is not waited for."""
    bench.run(limit=1, sample="1%")
    clock = PartElsewhere(bench, "0/2")
    seen: list[str] = []

    class Display:
        interval_s = 0.0

        def show(self, progress: Any) -> None:
            if progress.waits and not seen:
                seen.append(progress.waits)
                clock.beat = lambda: None  # type: ignore[method-assign]

        def close(self, last: Any) -> None:
            del last

    began_s = clock.monotonic()
    summary = complete(bench.run(clock=clock, part="1/2", display=Display()))
    assert summary.total == 6
    if not seen:
        pytest.fail("it did not wait")
    assert "waiting for 1 shard of other parts: part 0/2 on elsewhere (process 1); last heartbeat" in seen[0]
    assert 30 < clock.monotonic() - began_s < 90


# Processes


def check(place: Place, ended: list[Ended], alone: Ended) -> None:
    """All of them say complete, with the books of one alone; the bytes are those, and there is nothing else."""
    assert [one.code for one in ended] == [0] * len(ended), "\n".join(one.err for one in ended)
    for one in ended:
        assert totals(one.json) == totals(alone.json)
    found = place.objects("parts")
    check_same(found, place.objects("alone"))
    assert not strangers(found)


@pytest.mark.ci(2)
@pytest.mark.slow
def test_four_at_once(place: Place, tmp_path: Path) -> None:
    """Each shard is done once, but for the few that two begin within a heartbeat. The next run finds nothing to do."""
    source = place.write("in", corpus(sizes=(30, 3, 20, 1) * 10))
    common = (CURATION, "--backend", "inline", "--json", "--pause-s", "0.05", "--input", source)
    with Zygote(tmp_path / "zygote", place.env) as zygote:
        alone = zygote.run(*common, "--output", f"{place.root}/alone")
        assert alone.code == 0, alone.err
        argv = (*common, "--output", f"{place.root}/parts", "--trace", str(tmp_path / "trace"))
        ended = zygote.together(parts_of(argv))
        check(place, ended, alone)
        # Each asks one shard for the schema, and may meet each other one once.
        assert executions(tmp_path / "trace").total() <= 40 + DRIVERS + DRIVERS * (DRIVERS - 1)
        assert len({one.json["part"] for one in ended}) == DRIVERS
        calls = zygote.run(*argv, "--part", "0/4").json["storage_calls"]
        assert (calls["list"], calls["put"], calls["delete"]) == (2, 0, 0)
    shown = {run.part for run in read_status(f"{place.root}/parts", SystemClock().now()).runs}
    # One that came when all was done has left nothing.
    assert len(shown) > 1
    assert shown <= {f"{number}/{DRIVERS}" for number in range(DRIVERS)}


@pytest.mark.slow
@BUCKETS_AT_NIGHT
def test_killed_at_random_moments(place: Place, tmp_path: Path) -> None:
    """Again and again, each of three at another moment, until all get through. Each kill costs what was running."""
    rng = random.Random(3)
    source = place.write("in", corpus(sizes=(30, 3, 20) * 8))
    common = (CURATION, "--backend", "inline", "--json", "--pause-s", "0.2", "--input", source)
    with ExitStack() as stack:
        zygotes = [stack.enter_context(Zygote(tmp_path / f"z{n}", place.env)) for n in range(3)]
        alone = zygotes[0].run(*common, "--output", f"{place.root}/alone")
        assert alone.code == 0, alone.err
        argv = (*common, "--output", f"{place.root}/parts", "--trace", str(tmp_path / "trace"))
        seeds = [rng.random() for _ in zygotes]

        def again_and_again(number: int) -> tuple[Ended, int]:
            moments = random.Random(seeds[number])
            for kills in range(6):
                ended = zygotes[number].run(*argv, "--part", f"{number}/3", kill_after_s=moments.uniform(0.1, 0.9))
                assert ended.code in (-signal.SIGKILL, 0), ended.err
                if ended.code == 0:
                    return ended, kills
            return zygotes[number].run(*argv, "--part", f"{number}/3"), 6

        with ThreadPoolExecutor(3) as pool:
            ended, kills = zip(*pool.map(again_and_again, range(3)), strict=True)
    check(place, list(ended), alone)
    assert sum(kills) > 2
    assert executions(tmp_path / "trace").total() <= 24 + 2 * sum(kills) + 3 + 6


@pytest.mark.slow
@BUCKETS_AT_NIGHT
def test_a_sort_with_exchanges(place: Place, tmp_path: Path) -> None:
    """They do each stage together, and begin the next when all of it is there; one that dies is not waited for."""
    bench = Sorting(place, tmp_path / "bench", ("--twice",), files(12))
    with Zygote(tmp_path / "zygote", bench.env | {"SORTING_BYTES": "2000"}) as zygote:
        alone = zygote.run(*bench.argv("whole"))
        assert alone.code == 0, alone.err
        for name, killed in (("all", {}), ("one-less", {"part_2": {"kill_after_s": 0.4}})):
            ended = zygote.together(parts_of(bench.argv(name), **killed))
            codes = [one.code for number, one in enumerate(ended) if f"part_{number}" not in killed]
            assert set(codes) == {0}, "\n".join(one.err for one in ended)
            assert outputs(place.objects(name)) == outputs(place.objects("whole"))
            assert not [one for one in place.objects(name) if one.startswith("_curate/stages/")]
            last = zygote.run(*bench.argv(name))
            assert (last.code, last.json["tasks"]["attempts"]) == (0, 0)


SHARDS = 400
MINUTE_S = 60.0


@pytest.mark.slow
@pytest.mark.ray_lane
def test_one_is_killed_and_one_stopped_for_a_minute(local: Place, tmp_path: Path) -> None:
    """Of four. The bytes are those of one alone; what is done twice is at most what was running in both, and 5 %."""
    source = local.write("in", corpus(sizes=(12,) * SHARDS))
    common = [CURATION, "--backend", "inline", "--json", "--input", source]
    with Zygote(tmp_path / "zygote") as zygote:
        alone = zygote.run(*common, "--output", f"{local.root}/alone")
        assert alone.code == 0, alone.err
    trace = tmp_path / "trace"
    argv = [*common, "--output", f"{local.root}/parts", "--trace", str(trace), "--pause-s", "0.2"]
    with ExitStack() as stack:
        drivers = [stack.enter_context(Driver([*argv, "--part", f"{n}/{DRIVERS}"])) for n in range(DRIVERS)]
        wait_until(lambda: executions(trace).total() > SHARDS // 8, "they work")
        drivers[1].signal(signal.SIGKILL)
        drivers[2].signal(signal.SIGSTOP)
        stopped_s = SystemClock().monotonic()
        # Those that go on wait for what the one that is stopped was running, and then do it.
        ended = [drivers[n].end() for n in (0, 3)]
        wait_until(lambda: SystemClock().monotonic() - stopped_s > MINUTE_S, "a minute has passed")
        drivers[2].signal(signal.SIGCONT)
        ended.append(drivers[2].end())
    assert [one.code for one in ended] == [0, 0, 0], "\n".join(one.err for one in ended)
    found = local.objects("parts")
    check_same(found, local.objects("alone"))
    for one in ended:
        assert totals(json_line(one.out)) == totals(alone.json)
    # Each asks one shard for the schema.
    assert executions(trace).total() - DRIVERS <= SHARDS + 2 + 0.05 * SHARDS
