"""Jobs chain: what is read of another job's output is all that its plan says, or the reader says that it is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest

import curate
from curate.clock import SystemClock
from curate.errors import ConfigError
from curate.job.job import Job
from curate.ledger import layout
from curate.ledger.ledger import Ledger
from curate.ledger.summary import RunState
from curate.observe.job import read_status
from curate.observe.summary_text import render
from curate.sources import upstream
from curate.sources.listing import list_inputs
from curate.sources.patterns import parse_input
from curate.sources.upstream import holes_in
from curate.stores.open import open_store
from curate.testing.stores import faulty_stores
from tests.job.inline import numbered, output_rows, outputs, run_job, write_jsonl


class Copy(Job):
    """Writes what it reads."""

    version = "1"

    def process(self, batch: pa.Table) -> pa.Table:
        return batch


class Sorted(Copy):
    """Moves rows between shards."""

    def build(self, ds: Any) -> Any:
        return ds.sort("n")


class Parted(Copy):
    """Has an extra output."""

    sides = ("rest",)

    def process(self, batch: pa.Table) -> Any:
        return {"main": batch, "rest": batch.slice(0, 1)}


FOLDERS = ("2022/a", "2022/b", "2023/c", "2023/d")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for number, name in enumerate(FOLDERS):
        write_jsonl(tmp_path / "in" / f"{name}.jsonl", numbered(10 * number, 10 * number + 3))
    return tmp_path / "in"


def read_as_job(job: Callable[[], Job]) -> Callable[..., Any]:
    def read(named: str, out: Path, *, allow: bool = False) -> Any:
        return run_job(job(), named, out, allow_incomplete_input=allow)

    return read


def read_as_dataset(named: str, out: Path, *, allow: bool = False) -> Any:
    return curate.read_parquet(named, allow_incomplete_input=allow).write_parquet(out, backend="inline")


def read_for_an_exchange(named: str, out: Path, *, allow: bool = False) -> Any:
    ds = curate.read_parquet(named, allow_incomplete_input=allow).sort("n")
    return ds.write_parquet(out, backend="inline")


READERS = {
    "job": read_as_job(Copy),
    "job with an exchange": read_as_job(Sorted),
    "dataset": read_as_dataset,
    "dataset with an exchange": read_for_an_exchange,
}
WHOLE = [
    "{}",
    "{}/",
    "{}/**",
    "{}/**/*.parquet",
    "{}/*/*",
    "{}/2022",
    "{}/2022/*.parquet",
    "{}/20*/*",
    "{}/..",
    "{}/*/[ab]*",
]
"""Ways to name an output, or a part of it, that a.parquet is in."""


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_a_complete_output_with_a_hole_is_refused_and_named(source: Path, tmp_path: Path, reader: Any) -> None:
    """By all who read: what is missing, of how many, and the next step. Nothing is written; made whole, it is read."""
    first, out = tmp_path / "first", tmp_path / "out"
    run_job(Copy(), source, first)
    (first / "2022" / "a.parquet").unlink()
    with pytest.raises(ConfigError) as caught:
        reader(str(first), out)
    assert f"input '{first}' lacks 1 of the 4 outputs that its job 'copy' planned" in str(caught.value)
    assert f"such as {first}/2022/a.parquet" in str(caught.value)
    assert "Run that job again" in str(caught.value)
    assert "allow_incomplete_input=True" in str(caught.value)
    assert not out.exists()
    run_job(Copy(), source, first)
    assert reader(str(first), out).state == "complete"
    assert len(output_rows(out)) == 12


@pytest.mark.parametrize("text", WHOLE)
def test_however_it_is_named(source: Path, tmp_path: Path, text: str) -> None:
    """A folder of it, a glob over it, a folder that it lies in: what the pattern would match has to be there."""
    first = tmp_path / "data" / "first"
    run_job(Copy(), source, first)
    (first / "2022" / "a.parquet").unlink()
    for read in (
        lambda: run_job(Copy(), text.format(first), tmp_path / "out"),
        lambda: curate.read_parquet(text.format(first)),
    ):
        with pytest.raises(ConfigError, match=r"lacks 1 of the 4 outputs .* such as .*2022/a.parquet"):
            read()


@pytest.mark.parametrize("text", ["{}/2023", "{}/2023/*", "{}/*/[b-z].parquet", "{}/2022/b.parquet"])
def test_what_is_not_read_may_be_missing(source: Path, tmp_path: Path, text: str) -> None:
    """A part that is whole is whole; and who names a file has it."""
    first = tmp_path / "first"
    run_job(Copy(), source, first)
    (first / "2022" / "a.parquet").unlink()
    assert run_job(Copy(), text.format(first), tmp_path / "out").state is RunState.COMPLETE
    curate.read_parquet(text.format(first))


def test_beside_plain_folders_and_other_outputs(source: Path, tmp_path: Path) -> None:
    """Of several inputs each hole is told; a folder that no job wrote has none."""
    for name in ("one", "two", "three"):
        run_job(Copy(), source, tmp_path / name)
    (tmp_path / "one" / "2022" / "a.parquet").unlink()
    for name in ("2023/c", "2023/d"):
        (tmp_path / "three" / f"{name}.parquet").unlink()
    plain = write_jsonl(tmp_path / "plain" / "x.jsonl", numbered(50, 51)).parent
    inputs = [str(plain), *(str(tmp_path / name) for name in ("one", "two", "three"))]
    with pytest.raises(ConfigError) as caught:
        run_job(Copy(), inputs, tmp_path / "out")
    told = str(caught.value).splitlines()
    assert len(told) == 2
    assert "/one' lacks 1 of the 4 outputs" in told[0]
    assert "/three' lacks 2 of the 4 outputs" in told[1]


def test_one_that_stopped_at_a_limit_is_incomplete(source: Path, tmp_path: Path) -> None:
    """It is all that it was asked for, and not all that it planned: said with how it was asked."""
    run_job(Copy(), source, tmp_path / "limited", limit=3)
    with pytest.raises(
        ConfigError, match=r"1 of the 4 outputs is missing, such as .*; its last run was restricted by limit=3"
    ):
        run_job(Copy(), tmp_path / "limited", tmp_path / "out")
    run_job(Copy(), source, tmp_path / "sampled", sample="1%")
    with pytest.raises(
        ConfigError, match=r"3 of the 4 outputs are missing, .*; its last run was restricted by sample='1%'"
    ):
        curate.read_parquet(tmp_path / "sampled")


def test_a_limit_of_rows_is_all_that_was_asked_for(source: Path, tmp_path: Path) -> None:
    """`Dataset.limit` decides what there is to be: with all of that the output is whole, and with less it is not."""
    curate.read_json(source).limit(5).write_parquet(tmp_path / "first", backend="inline")
    assert curate.read_parquet(tmp_path / "first").count() == 5
    (tmp_path / "first" / "2022" / "b.parquet").unlink()
    with pytest.raises(ConfigError, match="lacks 1 of the 2 outputs"):
        curate.read_parquet(tmp_path / "first")


def test_outputs_of_an_exchange(source: Path, tmp_path: Path) -> None:
    """They are planned late: until then nothing says what is missing, and the job is not complete."""
    first = tmp_path / "first"
    curate.read_json(source).random_shuffle(seed=1, num_shards=3).write_parquet(first, backend="inline")
    assert curate.read_parquet(first).count() == 12
    (first / "part-00001-of-00003.parquet").unlink()
    with pytest.raises(ConfigError, match="lacks 1 of the 3 outputs"):
        curate.read_parquet(first)
    begun = tmp_path / "data" / "begun"
    (begun / "_curate").mkdir(parents=True)
    (begun / layout.JOB).write_bytes((first / layout.JOB).read_bytes())
    write_jsonl(tmp_path / "data" / "x.jsonl", numbered(0, 1))
    with pytest.raises(ConfigError, match=r"'.*/begun' is the output of an incomplete job"):
        run_job(Copy(), tmp_path / "data", tmp_path / "out")


def test_a_hole_in_an_extra_output(source: Path, tmp_path: Path) -> None:
    """Who reads it needs all of it, and nothing of the main one; who reads the main one needs nothing of it."""
    first = tmp_path / "first"
    run_job(Parted(), source, first)
    (first / "_side" / "rest" / "2022" / "a.parquet").unlink()
    assert curate.read_parquet(first).count() == 12
    for text in ("{}/_side/rest", "{}/_side/*/*/*.parquet", "{}/_side/rest/2022"):
        with pytest.raises(ConfigError, match=r"lacks 1 of the 4 outputs .*_side/rest/2022/a.parquet"):
            curate.read_parquet(text.format(first))
    assert curate.read_parquet(f"{first}/_side/rest/2023").count() == 2


def test_one_that_a_run_has_not_closed(source: Path, tmp_path: Path) -> None:
    """All outputs are there, and the last look at them was not taken: a foreign one may be among them."""
    run_job(Copy(), source, tmp_path / "first")
    (tmp_path / "first" / layout.SUMMARY).unlink()
    with pytest.raises(ConfigError, match="is the output of an incomplete job; finish that job first"):
        curate.read_parquet(tmp_path / "first")
    run_job(Copy(), source, tmp_path / "first")
    assert curate.read_parquet(tmp_path / "first").count() == 12


def test_a_checkpoint_that_is_read_by_others(source: Path, tmp_path: Path) -> None:
    """Reused by who made it, it is made whole; read as files are, it has to be."""
    kept = curate.read_json(source).checkpoint(tmp_path / "kept")
    assert kept.count() == 12
    (tmp_path / "kept" / "2022" / "a.parquet").unlink()
    with pytest.raises(ConfigError, match="lacks 1 of the 4 outputs"):
        curate.read_parquet(tmp_path / "kept")
    assert curate.read_json(source).checkpoint(tmp_path / "kept").count() == 12


@pytest.mark.quick(1)
@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_what_was_allowed_is_on_record(source: Path, tmp_path: Path, reader: Any) -> None:
    """In `run.json`, in what the run says of itself, and in the status, also after a run that had nothing to do."""
    first, out = tmp_path / "first", tmp_path / "out"
    run_job(Copy(), source, first)
    (first / "2022" / "a.parquet").unlink()
    hole = {"output": str(first), "job": "copy", "missing": 1, "planned": 4}
    words = f"incomplete: 1 of 4 outputs of {first} was missing (allow_incomplete_input=True)"
    for _ in range(2):
        summary = reader(str(first), out, allow=True)
        assert summary.state is RunState.COMPLETE
        assert summary.as_dict()["incomplete_input"] == [hole]
        assert words in render(summary)
    assert len(output_rows(out)) == 9
    (run,) = [orjson.loads(path.read_bytes()) for path in (out / layout.RUNS).glob("*/run.json")]
    assert (run["allow_incomplete_input"], run["incomplete_input"]) == (True, [hole])
    assert read_status(str(out), SystemClock().now()).as_dict()["incomplete_input"] == [hole]


def test_whole_again_it_is_said_no_more(source: Path, tmp_path: Path) -> None:
    """The reader's plan grows by what was missing, and nothing is on record of it."""
    first, out = tmp_path / "first", tmp_path / "out"
    run_job(Copy(), source, first)
    (first / "2022" / "a.parquet").unlink()
    run_job(Copy(), first, out, allow_incomplete_input=True)
    run_job(Copy(), source, first)
    summary = run_job(Copy(), first, out)
    assert (summary.total, summary.incomplete_input) == (4, ())
    assert "incomplete_input" not in read_status(str(out), SystemClock().now()).as_dict()
    assert "incomplete_input" not in orjson.loads((out / layout.SUMMARY).read_bytes())


def test_a_run_that_goes_on_does_not_forget(source: Path, tmp_path: Path) -> None:
    """A hole is no smaller because an earlier run was allowed to read around it, and ended before the job did."""
    first, out = tmp_path / "first", tmp_path / "out"
    run_job(Copy(), source, first)
    (first / "2022" / "a.parquet").unlink()
    run_job(Copy(), first, out, allow_incomplete_input=True, limit=1)
    with pytest.raises(ConfigError, match="lacks 1 of the 4 outputs"):
        run_job(Copy(), first, out)


def test_what_the_plan_knows_is_not_lost_in_silence(source: Path, tmp_path: Path) -> None:
    """An input that is gone after it was planned: its output is there, or its shard fails; nobody needs to refuse."""
    first, out = tmp_path / "first", tmp_path / "out"
    run_job(Copy(), source, first)
    run_job(Copy(), first, out, limit=1)
    (first / "2022" / "a.parquet").unlink()
    assert run_job(Copy(), first, out).state is RunState.COMPLETE
    assert len(output_rows(out)) == 12


def before_its_plan_is_read(monkeypatch: pytest.MonkeyPatch, others: Sequence[Callable[[], object]]) -> None:
    """Has other drivers do something after an output was listed as an input, before its plan is read; one each time."""
    pending = list(others)

    class Paused(Ledger):
        def read_job(self) -> dict[str, Any]:
            if pending:
                pending.pop(0)()
            return super().read_job()

    monkeypatch.setattr(upstream, "Ledger", Paused)


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_shards_that_were_added_and_made_after_the_listing_are_read(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: Any, times: int
) -> None:
    """A driver that is paused between the two reads all that is there; nothing is said to be missing."""
    first, out = tmp_path / "first", tmp_path / "out"
    run_job(Copy(), source, first)
    numbers = iter(range(times))

    def grow() -> None:
        write_jsonl(source / "2024" / f"{(number := next(numbers))}.jsonl", numbered(100 + number, 101 + number))
        assert run_job(Copy(), source, first).state == "complete"

    before_its_plan_is_read(monkeypatch, [grow] * times)
    assert reader(str(first), out).state == "complete"
    assert [row["n"] for row in output_rows(out)][12:] == [100 + number for number in range(times)]


@pytest.mark.quick(1)
@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_shards_that_were_added_after_the_listing_and_are_not_made(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: Any
) -> None:
    """That job is at work, and what it lacks was not lost."""
    first = tmp_path / "first"
    run_job(Copy(), source, first)

    def grow() -> None:
        write_jsonl(source / "2024" / "e.jsonl", numbered(100, 101))
        run_job(Copy(), source, first, limit=4)

    before_its_plan_is_read(monkeypatch, [grow])
    with pytest.raises(
        ConfigError, match=r"is the output of an incomplete job; finish that job first.* 1 of the 5 out"
    ):
        reader(str(first), tmp_path / "out")


@pytest.mark.parametrize("grown", [False, True])
@pytest.mark.parametrize("limit", [1, 4, 5, 12])
def test_a_limit_that_was_cut_short_goes_on(source: Path, tmp_path: Path, limit: int, grown: bool) -> None:
    """However few of the outputs it reads, and however many there are now: the others are not missing."""
    first, whole, out = tmp_path / "first", tmp_path / "whole", tmp_path / "out"
    run_job(Copy(), source, first)
    for root in (whole, out):
        curate.read_parquet(first).limit(limit).write_parquet(root, backend="inline")
    (out / layout.SUMMARY).unlink()
    (out / "2022" / "a.parquet").unlink()
    if grown:
        write_jsonl(source / "2024" / "e.jsonl", numbered(100, 101))
        run_job(Copy(), source, first)
    assert curate.read_parquet(first).limit(limit).write_parquet(out, backend="inline").state == "complete"
    assert outputs(out) == outputs(whole)


def test_one_that_had_nothing_to_write(tmp_path: Path) -> None:
    """To run it again would help nobody."""
    assert curate.range(0).write_parquet(tmp_path / "first", backend="inline").state is RunState.COMPLETE
    for path in (tmp_path / "first", tmp_path / "fir*" / "*.parquet"):
        with pytest.raises(
            ConfigError, match=r"is the output of a job that is complete and had nothing to write; leave"
        ):
            curate.read_parquet(path)


def test_a_job_of_which_only_its_list_of_inputs_is_there(tmp_path: Path) -> None:
    """Killed before it said what it is: nobody is told to rename what is curate's own."""
    path = tmp_path / "out" / layout.inputs_of("0123456789abcdef")
    path.parent.mkdir(parents=True)
    path.touch()
    with pytest.raises(ConfigError, match=r"is the output of a job that has no output yet; run that job first$"):
        list_inputs([parse_input(str(tmp_path / "out"))], open_store)


def test_one_of_which_nothing_is_there(source: Path, tmp_path: Path) -> None:
    """The job is named, and not the names in its ledger."""
    run_job(Copy(), source, tmp_path / "first")
    for path in tmp_path.glob("first/20*/*.parquet"):
        path.unlink()
    with pytest.raises(ConfigError, match=r"is the output of a job, but has no matching output; run that job first"):
        curate.read_parquet(tmp_path / "first")
    with pytest.raises(ConfigError, match=r"is the output of a job, but has no matching output; run that job first"):
        curate.read_parquet(tmp_path / "fir*/*/*.parquet")
    with pytest.raises(ConfigError, match=r"matches no object \(listed .*\); check the path"):
        curate.read_parquet(tmp_path / "*.parquet")  # which reaches no output of that job


def test_a_ledger_that_cannot_be_read(source: Path, tmp_path: Path) -> None:
    """Whether anything is missing cannot be told; who does not mind reads what is there."""
    run_job(Copy(), source, tmp_path / "first")
    (tmp_path / "first" / layout.JOB).write_bytes(b'{"format_version": 99}')
    with pytest.raises(ConfigError, match=r"its state is unknown: .* format version 99"):
        curate.read_parquet(tmp_path / "first")
    assert curate.read_parquet(tmp_path / "first", allow_incomplete_input=True).count() == 12


@pytest.mark.parametrize("outputs", [3, 60])
def test_what_it_costs(outputs: int) -> None:
    """For each job whose output is read: its ledger's few files, once, however many outputs there are; no request for
    one of these. A listing more would be one for every thousand."""
    root = f"memory://cost-{outputs}"
    store = open_store(root)
    for number in range(outputs):
        store.publish(f"{root}/in/{number:04}.jsonl", b'{"n":1}\n')
    run_job(Copy(), f"{root}/in", f"{root}/first")
    store.delete(f"{root}/first/0001.parquet")
    patterns = [parse_input(f"{root}/first")]
    inputs = list_inputs(patterns, open_store)
    with faulty_stores(retry=None) as counted:
        (hole,) = holes_in(patterns, inputs, open_store)
    assert (hole.missing, hole.planned, hole.example) == (1, outputs, f"{root}/first/0001.parquet")
    # The folder above may be one of a job; job.json; the plan's one part.
    assert (counted.calls["list"], counted.calls["stat"], counted.calls["read"]) == (1, 1, 2)
    assert counted.calls.total() == 4
