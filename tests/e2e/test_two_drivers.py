"""Two drivers at once on one output: the second one stops, or helps; who loses a race adopts what the winner wrote."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from curate.runtime.inline import InlineBackend
from curate.runtime.protocol import Ended, Message, Resources
from tests.e2e.harness import CURATION, Place, Zygote, corpus, encoded, job_summary, outputs, rows, strangers, totals
from tests.e2e.workbench import Bench, NoBackend, complete

NEW = "2022/new.jsonl"


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
            assert outputs(found) == outputs(place.objects("alone"))
            assert job_summary(found) == job_summary(place.objects("alone"))
            assert not strangers(found)
            calls = one.run(*common, "--output", f"{place.root}/both").json["storage_calls"]
            assert (calls["list"], calls["put"], calls["delete"]) == (2, 0, 0)


class Meanwhile(InlineBackend):
    """An inline backend during whose start, or first poll, something else happens."""

    def __init__(self, when: str, happens: Callable[[], object]) -> None:
        super().__init__()
        self._when = when
        self._happens = happens

    def start(self, resources: Resources) -> None:
        super().start(resources)
        self._now("start")

    def poll(self, timeout_s: float) -> list[Message | Ended]:
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
    complete(bench.run(output="fresh"))
    assert outputs(bench.objects()) == outputs(bench.objects("fresh"))
    assert job_summary(bench.objects()) == job_summary(bench.objects("fresh"))
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
    complete(bench.run(output="fresh"))
    assert outputs(bench.objects()) == outputs(bench.objects("fresh"))
    assert job_summary(bench.objects()) == job_summary(bench.objects("fresh"))
