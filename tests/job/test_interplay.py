"""What one part of a run means for another: retries and schemas, failures and zombies, one option beside another."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pytest
import structlog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from curate.errors import BadRow, RetryLater
from curate.job.job import Job
from curate.observe.failures import read_failures
from tests.job.inline import everything, numbered, output_rows, outputs, refusing, run_job, write_jsonl
from tests.support.examples import examples
from tests.support.fakes import FakeClock

ROWS = 5
TRIES = 4
"""Of a shard whose `process` raises."""


class World:
    """What the jobs below find: no part of their code, which may not change between two runs."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.down_until_s = 0.0
        self.clock = FakeClock()
        self.broken: set[str] = set()
        self.zombies: dict[str, list[tuple[Path, Path]]] = {}

    def need_service(self) -> None:
        """Raises while the service is down."""
        if self.clock.monotonic() < self.down_until_s:
            raise RetryLater(5, "the service is down")


@pytest.fixture(autouse=True)
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """A world of its own for each test."""
    fresh = World()
    monkeypatch.setitem(globals(), "WORLD", fresh)
    return fresh


WORLD = World()


class NeedsInSetup(Job):
    """Cannot be set up while a service is down."""

    version = "1"

    def setup(self) -> None:
        WORLD.need_service()

    def process(self, batch: Any) -> Any:
        return batch


class NeedsInProcess(Job):
    """Cannot process anything while a service is down."""

    version = "1"

    def process(self, batch: Any) -> Any:
        WORLD.calls["process"] += 1
        WORLD.need_service()
        return batch


class Picky(Job):
    """Raises for the inputs that are broken."""

    version = "1"

    def process(self, batch: Any) -> Any:
        name = batch["text"][0].as_py()
        WORLD.calls[name] += 1
        if name in WORLD.broken:
            raise ValueError("broken")
        return batch


def inputs(root: Path, files: int = 4) -> Path:
    """Writes files whose rows tell the file."""
    for number in range(files):
        rows = [{**row, "text": str(number)} for row in numbered(number * ROWS, (number + 1) * ROWS)]
        write_jsonl(root / "in" / f"{number}.jsonl", rows)
    return root / "in"


class Haunted(Job):
    """Raises for the inputs that are broken; at the last try a zombie publishes what it had made of them."""

    version = "1"

    def process(self, batch: Any) -> Any:
        name = batch["text"][0].as_py()
        WORLD.calls[name] += 1
        if name not in WORLD.broken:
            self.count("rows", len(batch))
            return batch
        if WORLD.calls[name] == TRIES:
            for made, published in WORLD.zombies.get(name, []):
                shutil.copy(made, published)
        raise ValueError(f"{name} is broken")


# One option beside another


def replace_input(source: Path, name: str) -> None:
    """Makes another object of an input."""
    rows = [{**row, "text": name} for row in numbered(100, 100 + ROWS)]
    (source / f"{name}.jsonl").unlink()
    write_jsonl(source / f"{name}.jsonl", rows)


@pytest.mark.parametrize("only", [{"limit": 1}, {"retry_failed": True}])
def test_a_stale_output_that_was_not_asked_for_says_how_it_is_redone(only: dict[str, Any], tmp_path: Path) -> None:
    """--redo-stale goes no further than the other options let it; what it says then does it."""
    source, out = inputs(tmp_path), tmp_path / "out"
    run_job(Picky(), source, out)
    replace_input(source, "2")
    with structlog.testing.capture_logs() as logs:
        summary = run_job(Picky(), source, out, redo_stale=True, **only)
    assert (summary.stale, summary.dispatched) == (1, 0)
    (said,) = [log["next"] for log in logs if "out of date" in log["event"]]
    assert said.endswith("run again with redo_stale=True, without limit=..., sample=... or retry_failed=True")
    assert run_job(Picky(), source, out, redo_stale=True).stale == 0
    assert {row["id"] for row in output_rows(out)} >= {f"r{100 + k}" for k in range(ROWS)}


def test_overwrite_redoes_what_is_stale_too(tmp_path: Path) -> None:
    """With --redo-stale or without: nothing is left that could be stale."""
    source, out = inputs(tmp_path), tmp_path / "out"
    run_job(Picky(), source, out)
    replace_input(source, "2")
    summary = run_job(Picky(), source, out, redo_stale=True, overwrite=True, confirm=lambda _: True)
    assert (summary.stale, summary.done, summary.skipped) == (0, 4, 0)


def test_to_retry_what_failed_and_to_remove_it_is_refused(tmp_path: Path) -> None:
    """Before anything is removed."""
    source, out = inputs(tmp_path), tmp_path / "out"
    run_job(Picky(), source, out)
    before = everything(out)
    with refusing("overwrite=True removes all outputs, so retry_failed=True"):
        run_job(Picky(), source, out, retry_failed=True, overwrite=True, confirm=lambda _: True)
    assert everything(out) == before


def test_what_failed_is_retried_a_part_at_a_time(tmp_path: Path, world: World) -> None:
    """--limit and --sample choose among what failed; a run that retried some of it says nothing of the rest."""
    source, out = inputs(tmp_path), tmp_path / "out"
    world.broken = {"0", "2", "3"}
    assert run_job(Picky(), source, out).failed == 3
    first = run_job(Picky(), source, out, retry_failed=True, limit=1)
    assert (first.total, first.failed) == (1, 1)
    world.broken = set()
    for left in (2, 1, 0):
        done = run_job(Picky(), source, out, retry_failed=True, limit=1)
        assert (done.state, done.total, done.dispatched, done.books.rows_out) == ("complete", 1, 1, (4 - left) * ROWS)
        assert (out / "_curate" / "summary.json").exists() == (left == 0)
    assert run_job(Picky(), source, out, retry_failed=True).total == 0


class Slow(Job):
    """Takes longer than it says."""

    version = "1"
    task_timeout_s = 3.0

    def process(self, batch: Any) -> Any:
        WORLD.clock.advance(100.0)
        return batch


def test_inline_says_that_it_ends_no_shard_in_time(tmp_path: Path, world: World) -> None:
    """One process cannot cancel itself: the shards end when they do, and nobody relies on the limit unknowingly."""
    with structlog.testing.capture_logs() as logs:
        summary = run_job(Slow(), inputs(tmp_path), tmp_path / "out", clock=world.clock)
    assert (summary.state, summary.attempts) == ("complete", 4)
    assert [log["log_level"] for log in logs if log["event"].startswith("task_timeout_s has no effect")] == ["warning"]


# Zombies


@pytest.mark.parametrize("late", [["1"], ["1", "2"]])
def test_what_a_zombie_publishes_after_all_is_not_called_failed(late: list[str], tmp_path: Path, world: World) -> None:
    """An output that exists is work that is done: the run says so, and the next one has nothing to do about it."""
    source, out = inputs(tmp_path), tmp_path / "out"
    whole = run_job(Haunted(), source, tmp_path / "undisturbed")
    world.calls.clear()
    world.broken = {"1", "2"}
    world.zombies = {name: [(tmp_path / "undisturbed" / f"{name}.parquet", out)] for name in late}
    summary = run_job(Haunted(), source, out)
    left = [failure.shard for failure in summary.failures]
    if len(late) == 2:
        assert (summary.state, summary.failed, left) == ("complete", 0, [])
        assert (summary.books, summary.bytes_out) == (whole.books, whole.bytes_out)
        assert (out / "_curate" / "summary.json").exists()
    else:
        assert (summary.state, summary.failed, left) == ("failed", 1, ["2"])
        assert [failure.count for failure in summary.failures] == [1]
        assert (summary.done, summary.books.rows_out) == (3, 3 * ROWS)
    found = read_failures(str(out))
    assert [found.plan.shard_id(rank) for rank in found.failed.nonzero()[0]] == left
    world.broken = set()
    again = run_job(Haunted(), source, out, clock=world.clock)
    assert (again.skipped, again.dispatched) == (4 - len(left), len(left))
    assert again.books == whole.books


def test_what_has_the_name_of_an_output_is_none(tmp_path: Path, world: World) -> None:
    """Of another identity, or no output at all: the shard stays failed."""
    source, out = inputs(tmp_path), tmp_path / "out"

    class Other(Haunted):
        version = "2"

    run_job(Other(), source, tmp_path / "other")
    world.calls.clear()
    (tmp_path / "1.parquet").write_bytes(b"something")
    world.broken = {"1", "2"}
    world.zombies = {"1": [(tmp_path / "1.parquet", out)], "2": [(tmp_path / "other" / "2.parquet", out)]}
    summary = run_job(Haunted(), source, out)
    assert (summary.state, summary.failed, summary.done) == ("failed", 2, 2)


# A service that is down


@pytest.mark.parametrize("job", [NeedsInSetup, NeedsInProcess])
@pytest.mark.parametrize("down_s", [3.0, 200.0])
def test_a_service_that_is_down_at_first_fails_nothing(
    job: type[Job], down_s: float, tmp_path: Path, world: World
) -> None:
    """The schema of the outputs comes from the first rows: they are asked again, not given up with all shards."""
    world.down_until_s = world.clock.monotonic() + down_s
    summary = run_job(job(), inputs(tmp_path), tmp_path / "out", clock=world.clock)
    assert (summary.state, summary.failed, summary.books.rows_out) == ("complete", 0, 4 * ROWS)
    assert world.clock.monotonic() >= world.down_until_s


@pytest.mark.slow
def test_a_service_that_stays_down_ends_the_run(tmp_path: Path, world: World) -> None:
    """As often as is said, the schema is waited for; then each shard its own number of times. No row is set aside."""
    world.down_until_s = float("inf")
    summary = run_job(NeedsInProcess(), inputs(tmp_path, 2), tmp_path / "out", clock=world.clock)
    assert (summary.state, summary.failed) == ("failed", 2)
    assert [failure.error for failure in summary.failures] == ["RetryLater: run again in 5 s: the service is down"]
    # 21 times for the schema of the first shard, once for that of the second and of an empty table, 21 times a shard.
    assert world.calls["process"] == 21 + 2 + 2 * 21


class Busy(Job):
    """Counts, drops, sets a row aside, and raises for inputs that are broken."""

    version = "1"
    batch_size = 3
    max_bad_rows = "50%"

    def process(self, batch: Any) -> Any:
        self.count("rows", len(batch))
        self.drop(1, "first")
        numbers = batch["n"].to_pylist()
        if batch["text"][0].as_py() in WORLD.broken:
            raise ValueError("broken")
        if 7 in numbers:
            raise BadRow("seven")
        return batch.slice(1)


NAMES = ("0", "1", "2")
ONLY = st.sampled_from([{}, {"limit": 1}, {"limit": 3}, {"sample": "40%"}])
RUNS = st.tuples(st.just("run"), ONLY, st.booleans(), st.booleans())
CHANGES = st.tuples(st.sampled_from(["break", "mend", "write", "write", "delete"]), st.sampled_from(NAMES))
STEPS = st.lists(st.one_of(RUNS, CHANGES, CHANGES), min_size=3, max_size=14)


@pytest.mark.slow
@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(STEPS)
def test_whatever_was_run_before_the_end_is_that_of_one_run(
    tmp_path_factory: pytest.TempPathFactory, world: World, steps: list[Any]
) -> None:
    """Inputs come, break, are mended and replaced, outputs are removed, runs see to some of it: in the end there are
    the outputs, the books and the summary of one run over what there is, and no file of rows that no output names."""
    root = tmp_path_factory.mktemp("steps")
    source, out = root / "in", root / "out"
    versions: Counter[str] = Counter()
    world.broken.clear()

    def write(name: str) -> None:
        versions[name] += 1
        start = 5 * versions[name] - 5
        rows = [{**row, "text": name} for row in numbered(start, start + 4 + versions[name])]
        (source / f"{name}.jsonl").unlink(missing_ok=True)
        write_jsonl(source / f"{name}.jsonl", rows)

    for name in NAMES[:2]:
        write(name)
    for step, *rest in steps:
        if step == "run":
            only, retry_failed, redo_stale = rest
            if retry_failed and not (out / "_curate" / "job.json").exists():
                continue
            before = set(outputs(out))
            summary = run_job(Busy(), source, out, retry_failed=retry_failed, redo_stale=redo_stale, **only)
            assert summary.done + summary.failed == summary.total
            assert summary.failed == 0 or world.broken
            # A stale output is removed before it is made again, which may fail.
            assert redo_stale or set(outputs(out)) >= before
            settled = summary.books
            gone = sum(settled.dropped.values()) + settled.quarantined
            assert settled.rows_in + settled.created == settled.rows_out + gone
            assert settled.rows_out == len(output_rows(out))
        elif step == "write":
            write(rest[0])
        elif step == "delete":
            (out / f"{rest[0]}.parquet").unlink(missing_ok=True)
        else:
            (world.broken.add if step == "break" else world.broken.discard)(rest[0])
    world.broken.clear()
    last = run_job(Busy(), source, out, redo_stale=True)
    fresh = run_job(Busy(), source, root / "fresh")
    assert last.state == "complete"
    assert (last.books, last.bytes_in, last.bytes_out) == (fresh.books, fresh.bytes_in, fresh.bytes_out)
    assert told(out) == told(root / "fresh")


def told(out: Path) -> dict[str, Any]:
    """Returns all that lies under an output but the ledger's account of how it came to be."""
    found: dict[str, Any] = {
        name: data
        for name, data in everything(out).items()
        if not name.startswith("_curate/") or name.startswith("_curate/quarantine/")
    }
    summary = orjson.loads((out / "_curate" / "summary.json").read_bytes())
    del summary["run_id"]
    return found | {"summary": summary}
