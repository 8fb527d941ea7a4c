"""What a plan becomes at each end: one stage where its rows are written, more than that where they are consumed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import curate
from curate.arrow import expressions
from curate.dataset.dataset import Dataset
from curate.errors import ConfigError
from curate.exchange.kinds.base import Materialize
from curate.exchange.kinds.zip import Zipped
from curate.plan import physical
from curate.plan.nodes import Checkpoint, Exchanged, Limit, Plan, Union, Zip
from curate.plan.physical import MOST_STEPS, End, First, Joined, Local, Physical, StagePlan, ZipRows, apart, lower
from tests.pins.pinning import fresh
from tests.pins.plans import PLANS, from_people, words


@pytest.fixture(autouse=True, scope="module")
def _inputs() -> None:
    fresh()


def numbers() -> Dataset:
    return curate.range(9)


def same(row: dict[str, Any]) -> dict[str, Any]:
    return row


def kind(physical: Physical) -> str:
    """Returns what runs in one word; of what stages write first, by what."""
    match physical:
        case StagePlan(first=int()):
            return "counted"
        case StagePlan(marked=[_, *_]):
            return "marks"
        case StagePlan(Checkpoint()):
            return "checkpoint"
        case StagePlan(Exchanged(how=Materialize(first=first) as how)):
            return how.called if first is None else "first of what is held"
        case StagePlan(Exchanged(how=how)):
            return "zip" if isinstance(how, Zipped) else "exchange"
        case StagePlan(tuple() as scans):
            return f"{len(scans)} scans"
        case First() | Local() | Joined() | ZipRows():
            return type(physical).__name__


WRITTEN = (End.FILES, End.RUNS)
TABLE: dict[str, tuple[Callable[[], Dataset], str, str, str]] = {
    # What it is, and what it becomes: output files, run files, blocks.
    "rows": (numbers, "1 scans", "1 scans", "1 scans"),
    "an exchange": (lambda: numbers().sort("id"), "exchange", "exchange", "exchange"),
    "marks": (lambda: numbers().dedup_exact("id"), "marks", "marks", "marks"),
    "a checkpoint": (lambda: numbers().checkpoint("memory://kept"), "checkpoint", "checkpoint", "checkpoint"),
    "parts alike": (lambda: numbers().union(numbers()), "2 scans", "2 scans", "2 scans"),
    "files of one name": (lambda: from_people().union(from_people()), "union", "2 scans", "2 scans"),
    "parts unlike": (lambda: from_people().union(words()), "union", "union", "2 scans"),
    "a part behind stages": (lambda: numbers().union(numbers().sort("id")), "union", "union", "Joined"),
    "a zip": (lambda: numbers().zip(words().limit(9)), "zip", "zip", "ZipRows"),
    "behind a zip": (lambda: numbers().zip(numbers()).drop_columns("id"), "zip", "zip", "Local"),
    "a limit": (lambda: numbers().limit(3), "counted", "counted", "First"),
    "behind a limit": (lambda: numbers().limit(3).map(same), "counted", "counted", "Local"),
    "a limit of a limit": (lambda: numbers().limit(3).limit(2), "counted", "counted", "First"),
    "a limit behind a limit": (
        lambda: numbers().limit(3).map(same).limit(2),
        "first of what is held",
        "first of what is held",
        "First",
    ),
    "a limit of parts unlike": (
        lambda: from_people().union(words()).limit(3),
        "first of what is held",
        "first of what is held",
        "First",
    ),
    "a limit of an exchange": (lambda: numbers().sort("id").limit(3).map(same), "exchange", "exchange", "exchange"),
    "a sample of a limit": (lambda: numbers().limit(3).random_sample(0.5, seed=1), "hold", "hold", "hold"),
    "a sample of a zip": (lambda: numbers().zip(numbers()).random_sample(0.5, seed=1), "zip", "zip", "zip"),
}


@pytest.mark.parametrize("what", TABLE)
def test_what_a_plan_becomes(what: str) -> None:
    """By where its rows go."""
    make, *expected = TABLE[what]
    assert [kind(lower(make()._plan, end)) for end in End] == expected


@pytest.mark.parametrize("name", PLANS)
def test_what_is_written_is_one_stage(name: str) -> None:
    """Whatever was asked for: no process is there to do what a consumer's does."""
    plan = PLANS[name]()._plan
    assert all(isinstance(lower(plan, end), StagePlan) for end in WRITTEN)
    assert all(isinstance(lower(part, End.RUNS), StagePlan) for part in apart(plan))


def test_parts_that_are_read_alike_are_written_together() -> None:
    """Others are a stage each before an exchange, with what follows on all of them."""
    alike, unlike = numbers().union(numbers()).map(same), from_people().union(words()).map(same)
    assert [len(apart(one._plan)) for one in (alike, unlike)] == [1, 2]


def grown(times: int, step: Callable[[Dataset, int], Dataset]) -> Dataset:
    rows = curate.from_items([{"n": 0}])
    for number in range(times):
        rows = step(rows, number)
    return rows


GROWING: dict[str, Callable[[Dataset, int], Dataset]] = {
    "a step after each": lambda rows, n: rows.union(curate.from_items([{"n": n}])).filter(curate.col("n") >= 0),
    "a column with each": lambda rows, n: rows.union(curate.from_items([{"n": n, f"column{n}": n}])),
    "a limit of each": lambda rows, n: rows.union(curate.from_items([{"n": n}])).limit(50).filter(curate.col("n") >= 0),
}


def counted(monkeypatch: pytest.MonkeyPatch, owner: ModuleType, name: str) -> list[Any]:
    """Returns what grows with each call of a function."""
    calls: list[Any] = []
    function = getattr(owner, name)

    def call(*given: Any) -> Any:
        calls.append(given)
        return function(*given)

    monkeypatch.setattr(owner, name, call)
    return calls


@pytest.mark.parametrize("end", End)
@pytest.mark.parametrize("what", GROWING)
def test_unions_in_unions_are_lowered_in_time(what: str, end: End, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that adds a part and a step at a time: with twice the parts there is twice to do."""
    calls = counted(monkeypatch, physical, "fuse")
    done = []
    for times in (6, 12):
        calls.clear()
        lower(grown(times, GROWING[what])._plan, end)
        done.append(len(calls))
    assert done[1] <= 2 * done[0] + 2


@pytest.mark.parametrize("read", [curate.read_parquet, curate.read_json])
def test_arrow_is_asked_once_of_each_filter(
    read: Callable[[Any], Dataset], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However deep its unions lie: with twice the parts it is asked twice as often. Each time takes 0.1 ms."""
    rows = curate.from_items([{"n": 0}])
    path = tmp_path / "rows"
    (rows.write_parquet if read == curate.read_parquet else rows.write_json)(path, backend="inline")
    calls = counted(monkeypatch, expressions, "_run")
    done = []
    for times in (6, 12):
        calls.clear()
        ds = read(path)
        for _ in range(times):
            ds = ds.union(read(path)).filter(curate.col("n") >= 0)
        lower(ds._plan, End.BLOCKS)
        done.append(len(calls))
    assert done[1] <= 2 * done[0] + 2


def test_a_loop_of_unions_gives_all_rows() -> None:
    rows = grown(12, GROWING["a step after each"]).take_all()
    assert [row["n"] for row in rows] == [0, *range(12)]


def test_hundreds_of_unions_in_unions() -> None:
    """As many as a loop makes of that many files: each takes three places on the stack, of which there are 1,000."""
    rows = numbers()._plan
    plan: Plan = rows
    for _ in range(270):
        plan = Union((plan, rows))
    assert kind(lower(plan, End.RUNS)) == "271 scans"


def chained(steps: int) -> Dataset:
    """Returns a dataset of so many steps."""
    ds = curate.range(3)
    for _ in range(steps):
        ds = ds.map_batches(same)
    return ds


def test_as_many_steps_as_a_task_runs(tmp_path: Path) -> None:
    """They are run, and written; more are refused before anything runs, with what to do."""
    most = chained(MOST_STEPS)
    assert len(most.take_all()) == 3
    assert most.write_parquet(tmp_path / "out", backend="inline").state == "complete"
    more = chained(MOST_STEPS + 1)
    for consume in (more.take_all, more.explain, partial(more.write_parquet, tmp_path / "more", backend="inline")):
        with pytest.raises(ConfigError, match=r"401 steps .* 400 at most; put several into one function .*checkpoint"):
            consume()
    assert not (tmp_path / "more").exists()
    halves = chained(MOST_STEPS - 1).checkpoint(str(tmp_path / "kept")).map_batches(same).map_batches(same)
    assert kind(lower(halves._plan, End.BLOCKS)) == "checkpoint"


LOOPS: dict[str, Callable[[Plan], Plan]] = {
    "union": lambda plan: Union((plan, numbers()._plan)),
    "zip": lambda plan: Zip((plan, numbers()._plan)),
    "limit of a step": lambda plan: Limit(Dataset(plan).map_batches(same)._plan, 3),
}


@pytest.mark.parametrize("what", LOOPS)
def test_more_than_can_be_planned_is_refused_in_a_line(what: str) -> None:
    """It ends in no RecursionError, whatever lies within each other."""
    plan: Plan = numbers()._plan
    for _ in range(1_000):
        plan = LOOPS[what](plan)
    for consume in (Dataset(plan).take_all, Dataset(plan).explain):
        with pytest.raises(ConfigError, match=r"lie within each other, .*first\.union\(\*others\).*checkpoint\(\)"):
            consume()


def test_limits_of_limits() -> None:
    """However many, they are the least of them."""
    ds = curate.range(9)
    for rows in range(2_000, 4, -1):
        ds = ds.limit(rows)
    assert ds.count() == len(ds.take_all()) == 5
