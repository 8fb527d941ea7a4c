"""Inputs that were removed: said, with how many; and taken out, with all that was made of them, if asked for."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest
import structlog

import curate
from curate.clock import SystemClock
from curate.errors import ConfigError, CorruptInput, StorageError
from curate.graph.entry import dry_run
from curate.job.job import Job
from curate.ledger import layout
from curate.ledger.summary import RunState, Summary
from curate.observe.failures import read_failures
from curate.observe.job import read_status
from curate.observe.summary_text import render
from curate.observe.verify import verify
from curate.storage.faults import Fault, lost
from curate.testing.stores import faulty_stores
from tests.job import inline
from tests.job.inline import everything, output_rows, quarantined, write_jsonl
from tests.support.fakes import FakeClock

SENTENCE = (
    "1 input of an earlier run is missing now; its shard is still part of this job (drop_removed=True takes it out)"
)


times_s = itertools.count(1_700_000_000, 100)
"""When runs start: status goes by the newest."""


def run_job(job: Job, source: Path, output: Path, **options: Any) -> Summary:
    return inline.run_job(job, source, output, clock=FakeClock(float(next(times_s))), **options)


class Parted(Job):
    """Sets rows without a text aside, and copies the others to an extra output."""

    version = "1"
    sides = ("copy",)
    max_bad_rows = "100%"

    def process(self, batch: pa.Table) -> Any:
        for row in batch.to_pylist():
            if row["text"] == "bad":
                self.quarantine(row, "bad")
            if row["text"] == "worse":
                raise CorruptInput("worse")
        good = batch.filter(pa.compute.not_equal(batch["text"], "bad"))
        return {"main": good, "copy": good}


class Sorted(Job):
    """Moves rows between shards."""

    version = "1"

    def build(self, ds: Any) -> Any:
        return ds.sort("n")


def rows(name: str, bad: str = "") -> list[dict[str, Any]]:
    """Returns rows that tell which file they are of, the last of them set aside for `bad`."""
    return [{"id": f"{name}{k}", "text": f"text of {name}"} for k in range(3)] + [{"id": bad or name, "text": "bad"}]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for name in "abcd":
        write_jsonl(tmp_path / "in" / f"{name}.jsonl", rows(name))
    return tmp_path / "in"


@pytest.fixture
def out(tmp_path: Path, source: Path) -> Path:
    run_job(Parted(), source, tmp_path / "out")
    return tmp_path / "out"


def data(root: Path) -> dict[str, bytes]:
    """Returns outputs, extra outputs and quarantine by name."""
    return {
        name: value
        for name, value in everything(root).items()
        if not name.startswith("_curate/") or name.startswith("_curate/quarantine/")
    }


def write_bytes(path: Path, value: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(value)


def totals(root: Path) -> dict[str, Any]:
    found = orjson.loads((root / layout.SUMMARY).read_bytes())
    return {name: found[name] for name in ("shards", "rows", "counters", "bytes")}


def check_same_as_fresh(job: Job, source: Path, out: Path, fresh: Path) -> None:
    """Outputs, extra ones, quarantine, books, status and verdict are those of a job that never knew of the input."""
    assert run_job(job, source, fresh).state is RunState.COMPLETE
    assert data(out) == data(fresh)
    assert totals(out) == totals(fresh)
    assert verify(str(out)).state == "ok"
    found, other = (read_status(str(one), SystemClock().now()) for one in (out, fresh))
    assert (found.state, found.total, found.done, found.rows) == (other.state, other.total, other.done, other.rows)
    assert found.missing == (0, 0)


def test_it_is_said_with_the_count(source: Path, out: Path) -> None:
    """By each run, in the log, in what it returns and in the status; the outputs stay."""
    before = data(out)
    (source / "a.jsonl").unlink()
    for _ in range(2):
        with structlog.testing.capture_logs() as logs:
            summary = Parted().run(input=source, output=out, backend="inline")
        assert SENTENCE in [one["event"] for one in logs]
        assert (summary.state, summary.total, summary.missing) == (RunState.COMPLETE, 4, (1, 1))
        assert SENTENCE in render(summary)
        assert read_status(str(out), SystemClock().now()).as_dict()["missing_inputs"] == {"inputs": 1, "shards": 1}
    assert data(out) == before


def test_it_is_taken_out_with_all_that_was_made_of_it(source: Path, out: Path, tmp_path: Path) -> None:
    """Output, extra outputs and the rows set aside; nothing else is touched, and no shard runs again."""
    before = data(out)
    (source / "b.jsonl").unlink()
    summary = run_job(Parted(), source, out, drop_removed=True)
    assert (summary.state, summary.total, summary.attempts, summary.dropped) == (RunState.COMPLETE, 3, 0, 1)
    assert "1 shard taken out of this job" in render(summary)
    assert data(out).items() < before.items()
    assert not [name for name, value in everything(out).items() if name in data(out) and b"text of b" in value]
    check_same_as_fresh(Parted(), source, out, tmp_path / "fresh")
    for _ in range(2):
        again = run_job(Parted(), source, out)
        assert (again.total, again.attempts, again.calls.put, again.calls.delete) == (3, 0, 0, 0)


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("operation", ["stat", "read", "delete"])
def test_another_driver_takes_it_out_at_once(source: Path, out: Path, tmp_path: Path, operation: str, nth: int) -> None:
    """What one of them finds gone, the other has removed: neither fails of that."""
    (source / "b.jsonl").unlink()
    others: list[Summary] = []

    def meanwhile() -> BaseException:
        others.append(run_job(Parted(), source, out, drop_removed=True))
        return lost()

    with faulty_stores(Fault(operation, nth, name=f"{out}/", error=meanwhile)):
        assert run_job(Parted(), source, out, drop_removed=True).state is RunState.COMPLETE
    assert [one.state for one in others] == [RunState.COMPLETE]
    check_same_as_fresh(Parted(), source, out, tmp_path / "fresh")


def test_a_glob_that_was_too_wide_is_narrowed(source: Path, tmp_path: Path) -> None:
    """Inputs that are still there, and no longer asked for, are taken out as those that were removed."""
    out = tmp_path / "narrow"
    run_job(Parted(), source, out)
    narrower = str(source / "[ab].jsonl")
    assert run_job(Parted(), narrower, out).missing == (2, 2)  # type: ignore[arg-type]
    summary = run_job(Parted(), narrower, out, drop_removed=True)  # type: ignore[arg-type]
    assert (summary.state, summary.total, summary.dropped) == (RunState.COMPLETE, 2, 2)
    assert "2 shards taken out of this job, their outputs removed: their inputs are no longer given" in render(summary)
    made = tmp_path / "made at once"
    run_job(Parted(), narrower, made)  # type: ignore[arg-type]
    assert output_rows(out) == output_rows(made)
    assert quarantined(out) == quarantined(made)
    assert read_status(str(out), 2e9).state == "complete"


def test_all_parts_of_a_large_input_are_taken_out(tmp_path: Path) -> None:
    source = tmp_path / "in"
    for name, n in (("small", 5), ("large", 900)):
        write_jsonl(source / f"{name}.jsonl", [{"id": f"{k}", "text": f"text {name} {k}"} for k in range(n)])
    whole = run_job(Parted(shard_bytes=9_000), source, tmp_path / "out")
    (source / "large.jsonl").unlink()
    summary = run_job(Parted(shard_bytes=9_000), source, tmp_path / "out", drop_removed=True)
    assert (summary.total, summary.dropped) == (1, whole.total - 1)
    assert summary.dropped > 2
    check_same_as_fresh(Parted(shard_bytes=9_000), source, tmp_path / "out", tmp_path / "fresh")


def test_rows_set_aside_that_others_name_too_stay(tmp_path: Path) -> None:
    """A quarantine file is named by its content: two shards with the same bad rows have one."""
    source = tmp_path / "in"
    for name in "abc":
        write_jsonl(source / f"{name}.jsonl", rows(name, "same" if name < "c" else "other"))
    run_job(Parted(), source, tmp_path / "out")
    assert len(quarantined(tmp_path / "out")) == 2
    (source / "a.jsonl").unlink()
    run_job(Parted(), source, tmp_path / "out", drop_removed=True)
    assert [row["row"] for row in quarantined(tmp_path / "out")]
    check_same_as_fresh(Parted(), source, tmp_path / "out", tmp_path / "fresh")


def test_rows_set_aside_of_an_earlier_input_do_not_stay(tmp_path: Path) -> None:
    """As many files as outputs that name one, and yet one too many: two of these name the same."""
    source = tmp_path / "in"
    for name in "abc":
        write_jsonl(source / f"{name}.jsonl", rows(name, "same" if name < "c" else "other"))
    run_job(Parted(), source, tmp_path / "out")
    write_jsonl(source / "c.jsonl", rows("c", "another"))
    run_job(Parted(), source, tmp_path / "out", redo_stale=True)
    check_same_as_fresh(Parted(), source, tmp_path / "out", tmp_path / "fresh")


def test_rows_set_aside_of_an_earlier_input_go_though_a_kill_left_no_events(tmp_path: Path) -> None:
    """As many files as outputs of which no event tells, and yet one too many: these name the same one now."""
    source, out = tmp_path / "in", tmp_path / "out"
    for name in "abc":
        write_jsonl(source / f"{name}.jsonl", rows(name))
    run_job(Parted(), source, out)
    before = everything(out)
    for name in "ab":
        write_jsonl(source / f"{name}.jsonl", rows(name, "same"))
    run_job(Parted(), source, out, redo_stale=True)
    # What is there if it is killed when it has removed the first of two, and before it says what it has done.
    _, left = sorted(before.keys() - everything(out).keys() - {layout.SUMMARY})
    (out / left).write_bytes(before[left])
    (out / layout.SUMMARY).unlink()
    for events in sorted((out / layout.RUNS).glob("*/events-*"))[-1:]:
        events.unlink()
    assert run_job(Parted(), source, out).attempts == 0
    check_same_as_fresh(Parted(), source, out, tmp_path / "fresh")


@pytest.mark.parametrize("rerun", [False, True])
def test_one_that_comes_back_is_a_new_shard(source: Path, out: Path, tmp_path: Path, rerun: bool) -> None:
    """It is done as what it is now, with and without a run in between; and can be taken out again."""
    (source / "b.jsonl").unlink()
    run_job(Parted(), source, out, drop_removed=True)
    if rerun:
        run_job(Parted(), source, out)
    write_jsonl(source / "b.jsonl", rows("b")[1:])
    summary = run_job(Parted(), source, out)
    assert (summary.total, summary.attempts, summary.stale) == (4, 1, 0)
    check_same_as_fresh(Parted(), source, out, tmp_path / "fresh")
    (source / "b.jsonl").unlink()
    run_job(Parted(), source, out, drop_removed=True)
    check_same_as_fresh(Parted(), source, out, tmp_path / "fresh2")


def test_one_that_was_renamed(source: Path, out: Path, tmp_path: Path) -> None:
    """The output of what is new may have the name of one that goes: it is made of the new input."""
    (source / "b.jsonl").unlink()
    write_jsonl(source / "b.jsonl.gz", rows("b")[1:])
    with pytest.raises(ConfigError, match="would both be written to the output"):
        run_job(Parted(), source, out)
    summary = run_job(Parted(), source, out, drop_removed=True)
    assert (summary.total, summary.attempts, summary.dropped) == (4, 1, 1)
    check_same_as_fresh(Parted(), source, out, tmp_path / "fresh")


def test_what_is_known_of_others_stays_theirs(source: Path, tmp_path: Path) -> None:
    """Shards behind one that is taken out keep their books, failures and tries, though they move up in the plan."""
    out = tmp_path / "out"
    write_jsonl(source / "c.jsonl", [{"id": "c", "text": "worse"}])
    assert run_job(Parted(), source, out).state is RunState.FAILED
    (source / "a.jsonl").unlink()
    assert run_job(Parted(), source, out, drop_removed=True).state is RunState.FAILED
    found = read_failures(str(out))
    (group,) = found.groups()
    assert (group.shards, group.example["shard"], len(found.tries("c"))) == (1, "c", 2)
    assert [found.plan.shard_id(rank) for rank in range(3)] == ["b", "c", "d"]
    write_jsonl(source / "c.jsonl", rows("c"))
    summary = run_job(Parted(), source, out, retry_failed=True)
    assert (summary.total, summary.attempts) == (1, 1)
    run_job(Parted(), source, out)
    check_same_as_fresh(Parted(), source, out, tmp_path / "fresh")


def test_one_that_was_never_done_does_not_fail_any_more(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run_job(Parted(), source, out, limit=1)
    (source / "b.jsonl").unlink()
    assert run_job(Parted(), source, out).state is RunState.FAILED
    assert run_job(Parted(), source, out, drop_removed=True).state is RunState.COMPLETE
    check_same_as_fresh(Parted(), source, out, tmp_path / "fresh")


def test_another_input_is_not_a_removal(out: Path, tmp_path: Path) -> None:
    """Where nothing that was planned is among the inputs, it is more likely that --input is wrong."""
    before = everything(out)
    write_jsonl(tmp_path / "other" / "x.jsonl", rows("x"))
    with pytest.raises(ConfigError, match=r"would take all 4 shards out of .* look like those of another job"):
        run_job(Parted(), tmp_path / "other", out, drop_removed=True)
    assert everything(out) == before


def test_what_another_job_lost_was_not_removed(source: Path, out: Path, tmp_path: Path) -> None:
    """A chain: an output that is missing by mistake is refused; one that was taken out there is taken out here."""
    run_job(Parted(), out, tmp_path / "second")
    (out / "b.parquet").unlink()
    with pytest.raises(ConfigError, match="lacks 1 of the 4 outputs"):
        run_job(Parted(), out, tmp_path / "second", drop_removed=True)
    run_job(Parted(), source, out)
    (source / "b.jsonl").unlink()
    run_job(Parted(), source, out, drop_removed=True)
    assert run_job(Parted(), out, tmp_path / "second").missing == (1, 1)
    summary = run_job(Parted(), out, tmp_path / "second", drop_removed=True)
    assert (summary.total, summary.dropped) == (3, 1)


def test_what_curate_did_not_write_stays(source: Path, out: Path) -> None:
    """It has the name of an output and is somebody's: named, and nothing is removed."""
    (source / "b.jsonl").unlink()
    (out / "b.parquet").write_bytes(b"mine")
    before = everything(out)
    with pytest.raises(ConfigError, match=r"b.parquet was not written by curate, but it has the name of an output"):
        run_job(Parted(), source, out, drop_removed=True)
    assert everything(out) == before


def test_behind_an_exchange_it_is_refused(source: Path, tmp_path: Path) -> None:
    """With what has to be made anew: every output has rows of every input."""

    class BySize(Sorted):
        def build(self, ds: Any) -> Any:
            return ds.sort("id")

    run_job(BySize(), source, tmp_path / "sorted")
    (source / "b.jsonl").unlink()
    before = everything(tmp_path / "sorted")
    with pytest.raises(ConfigError) as caught:
        run_job(BySize(), source, tmp_path / "sorted", drop_removed=True)
    assert f"drop_removed=True cannot take 1 removed input out of {tmp_path}/sorted" in str(caught.value)
    assert f"gone: {source}/b.jsonl" in str(caught.value)
    assert "To make all outputs again, start over with overwrite=True" in str(caught.value)
    assert everything(tmp_path / "sorted") == before


def test_a_dry_run_says_what_would_go(source: Path, out: Path) -> None:
    before = everything(out)
    (source / "b.jsonl").unlink()

    def words(**options: Any) -> str:
        given = Parted.options(input=str(source), output=str(out), backend="inline", **options)
        return dry_run(Parted().spec(), given)[1]

    assert f"missing  {SENTENCE}" in words()
    assert "drop     1: their input is no longer given; removed with them: 3 objects (drop_removed=True)" in words(
        drop_removed=True
    )
    assert everything(out) == before


def test_what_a_zombie_writes_of_it_is_removed(source: Path, out: Path, tmp_path: Path) -> None:
    """A task of a driver that is gone may publish after the removal: the next run finds that, asked for it or not."""
    late = {name: value for name, value in data(out).items() if name.endswith("b.parquet")}
    (source / "b.jsonl").unlink()
    run_job(Parted(), source, out, drop_removed=True)
    for name, value in late.items():
        write_bytes(out / name, value)
    run_job(Parted(), source, out)
    check_same_as_fresh(Parted(), source, out, tmp_path / "fresh")


@pytest.mark.parametrize("lost", ["the removal", "the plan"])
def test_overwriting_removes_what_the_plan_does_not_name_any_more(
    source: Path, out: Path, tmp_path: Path, lost: str
) -> None:
    """A run was killed between taking a shard out and removing its output; or the plan was deleted. Copies that
    somebody made of outputs stay."""
    mine = {name: (out / "b.parquet").read_bytes() for name in ("copy of b.parquet", "old/b.parquet")}
    for name, value in mine.items():
        write_bytes(out / name, value)
    (source / "b.jsonl").unlink()
    if lost == "the plan":
        (out / layout.plan_part(0)).unlink()
    else:
        fault = Fault("delete", name="b.parquet", times=100, error=StorageError("as scripted"))
        with faulty_stores(fault), pytest.raises(StorageError):
            run_job(Parted(), source, out, drop_removed=True)
    assert (out / "b.parquet").exists()
    write_jsonl(source / "c.jsonl", rows("c", bad="another"))
    assert run_job(Parted(), source, out, overwrite=True, confirm=lambda _: True).attempts == 3
    for name in mine:
        assert (out / name).read_bytes() == mine[name]
        (out / name).unlink()
    check_same_as_fresh(Parted(), source, out, tmp_path / "fresh")


def test_overwriting_removes_merged_parts_of_the_plan(
    source: Path, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what another plan had merged is not taken for a part of the new one."""
    monkeypatch.setattr("curate.ledger.ledger.MERGED_PARTS", 1)
    for name in "efg":
        write_jsonl(source / f"{name}.jsonl", rows(name))
        run_job(Parted(), source, out)
    merged = [one for one in everything(out) if layout.last_merged(one) is not None]
    assert len(merged) == 2
    assert verify(str(out)).findings == []
    old = (out / merged[0]).read_bytes()
    assert run_job(Parted(), source, out, overwrite=True, confirm=lambda _: True).state is RunState.COMPLETE
    assert not [one for one in everything(out) if layout.last_merged(one) is not None]
    write_bytes(out / merged[0], old)
    check_same_as_fresh(Parted(), source, out, tmp_path / "fresh")


def test_through_a_checkpoint(source: Path, tmp_path: Path) -> None:
    """It is taken out of what was kept, and then of what was made of that."""

    def written(**options: Any) -> Any:
        ds = curate.read_json(source).checkpoint(tmp_path / "kept").select_columns(["id"])
        return ds.write_parquet(tmp_path / "out", backend="inline", **options)

    written()
    (source / "b.jsonl").unlink()
    summary = written(drop_removed=True)
    assert (summary.state, summary.total, summary.dropped) == (RunState.COMPLETE, 3, 1)
    assert list(data(tmp_path / "kept")) == ["a.parquet", "c.parquet", "d.parquet"]
    assert verify(str(tmp_path / "kept")).state == verify(str(tmp_path / "out")).state == "ok"


def test_a_limit_was_decided_from_inputs_as_they_were(source: Path, tmp_path: Path) -> None:
    """With others it would reach less far, or further: they are not read; what is there is said to be out of date."""
    out = tmp_path / "out"

    def write(**options: Any) -> Summary:
        return curate.read_json(source).limit(6).write_parquet(out, backend="inline", **options)

    assert write(limit=1).state is RunState.COMPLETE
    write_jsonl(source / "b.jsonl", rows("b")[:1])
    with pytest.raises(ConfigError, match=r"was decided from its inputs as they were, and .*b.jsonl changed since"):
        write()
    assert write(overwrite=True, yes=True).books.rows_out == len(output_rows(out)) == 6
    write_jsonl(source / "a.jsonl", rows("a")[:1])
    with structlog.testing.capture_logs() as logs:
        assert (write().stale, len(output_rows(out))) == (1, 6)
    assert [one["next"] for one in logs if "out of date" in one["event"]] == [
        "how far the limit reaches was decided from the inputs as they were; start over with overwrite=True "
        "(and yes=True where nobody can be asked)"
    ]
    with pytest.raises(ConfigError, match=r"a.jsonl changed since; start over with overwrite=True"):
        write(redo_stale=True)
    assert write(overwrite=True, yes=True, redo_stale=True).books.rows_out == len(output_rows(out)) == 6


def test_a_dataset_says_so_too(source: Path, tmp_path: Path) -> None:
    """A write is a job: its inputs may be removed as well."""
    out = tmp_path / "out"
    curate.read_json(source).write_parquet(out, backend="inline")
    (source / "b.jsonl").unlink()
    assert curate.read_json(source).write_parquet(out, backend="inline").missing == (1, 1)
    summary = curate.read_json(source).write_parquet(out, backend="inline", drop_removed=True)
    assert (summary.total, summary.dropped, len(output_rows(out))) == (3, 1, 12)
    limited = tmp_path / "limited"
    curate.read_json(source).limit(6).write_parquet(limited, backend="inline")
    (source / "a.jsonl").unlink()
    with pytest.raises(ConfigError, match="was decided from all of its inputs"):
        curate.read_json(source).limit(6).write_parquet(limited, backend="inline", drop_removed=True)
