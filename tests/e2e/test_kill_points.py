"""A job killed before storage operations of every kind, one after the other, and run again.

To storage, after one operation is before the next: one side is enough.
"""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest

from curate.clock import SystemClock
from curate.observe.job import read_status
from tests.support.harness import (
    CURATION,
    LENGTHS,
    Place,
    Zygote,
    balanced,
    check_same,
    corpus,
    executions,
    job_summary,
    outputs,
    strangers,
    totals,
)
from tests.support.sweeps import Sweep

SIZES = (120, 3, 0)
ROWS = "tests/e2e/jobs/rows.py"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "job"),
    [
        ("local", LENGTHS),
        pytest.param("gcs", CURATION, marks=pytest.mark.slow),
        pytest.param("s3", CURATION, marks=pytest.mark.slow),
        pytest.param("moto", CURATION, marks=[pytest.mark.slow, pytest.mark.nightly]),
        pytest.param("local", CURATION, marks=[pytest.mark.slow, pytest.mark.nightly]),
        pytest.param("gcs", LENGTHS, marks=[pytest.mark.slow, pytest.mark.nightly]),
        pytest.param("s3", LENGTHS, marks=[pytest.mark.slow, pytest.mark.nightly]),
    ],
    indirect=["place"],
)
def test_killed_at_every_operation_and_run_again(place: Place, sweep: Sweep, tmp_path: Path, job: str) -> None:
    """Wherever the kill hits: the rerun ends complete with the same bytes, names and books; it attempts each shard that
    has no output once, and no other, and reads no other but for the schema, if that was not there; nothing lies under
    the output prefix but outputs and the ledger, at no time; and the run after that finds nothing to do. A shard that
    is done has its extra output, at all times."""
    files = corpus(sizes=SIZES)
    source = place.write("in", files)
    common = ("--backend", "inline", "--json", "--input", source)
    with Zygote(tmp_path / "zygote", place.env) as zygote:
        trace = tmp_path / "trace"
        whole = zygote.run(job, *common, "--output", f"{place.root}/whole", "--trace", str(trace))
        assert whole.code == 0, whole.err
        expected, kept = place.objects("whole"), totals(whole.json)
        assert balanced(kept["rows"])
        begun = executions(trace).total()
        # A shard without rows begins nothing that leaves a trace.
        shards = {f"{name.partition('.')[0]}.parquet": int(size > 0) for name, size in zip(files, SIZES, strict=True)}
        operations = zygote.operations(job, *common, "--output", f"{place.root}/count")
        assert len(operations) > 30
        sides = ["_side/lengths/"] if job == LENGTHS else []
        assert set(outputs(expected)) >= {side + name for name in shards for side in sides}

        for at, number in enumerate(sweep(operations, 4)):
            name, trace = f"killed-{number}", tmp_path / f"trace-{number}"
            argv = (job, *common, "--output", f"{place.root}/{name}", "--trace", str(trace))
            where = f"before operation {number}, {operations[number]}"
            killed = zygote.run(*argv, kill_operation=number, kill_when="before")
            assert killed.code == -9, f"{where}: {killed.code} {killed.err}"
            left = place.objects(name)
            assert set(outputs(left).items()) <= set(outputs(expected).items()), where
            assert not strangers(left), where
            undone = set(shards) - set(left)
            assert {side + name for name in set(shards) - undone for side in sides} <= set(left), where
            looks = 0 if "_curate/schema/output.arrow" in left else 1
            first = executions(trace)
            again = zygote.run(*argv)
            assert again.code == 0, f"{where}: {again.err}"
            after = place.objects(name)
            assert outputs(after) == outputs(expected), where
            assert not strangers(after), where
            assert totals(again.json) == kept, where
            assert job_summary(after) == job_summary(expected), where
            assert again.json["tasks"]["attempts"] == len(undone), where
            second = executions(trace) - first
            assert second.total() == sum(shards[name] for name in undone) + looks, f"{where}: {second}"
            assert executions(trace).total() - begun <= 1, f"{where}: {executions(trace)}"
            if at % 4 == 0:
                calls = zygote.run(*argv).json["storage_calls"]
                assert (calls["list"], calls["put"], calls["delete"]) == (2, 0, 0), f"{where}: {calls}"


@pytest.mark.slow
@pytest.mark.parametrize("job", [LENGTHS, pytest.param(CURATION, marks=pytest.mark.nightly)])
def test_killed_at_every_operation_of_an_overwrite(local: Place, sweep: Sweep, tmp_path: Path, job: str) -> None:
    """The next overwrite goes on where the kill hit, and ends with the new outputs alone, beside what is foreign. Run
    without it, the old job is made whole again, or refused because the new one has its place."""
    source = local.write("in", corpus(sizes=SIZES))
    common = (job, "--backend", "inline", "--json", "--input", source, "--output")
    root = Path(local.root)
    with Zygote(tmp_path / "zygote") as zygote:
        old = zygote.run(*common, f"{root}/old")
        new = zygote.run(*common, f"{root}/new", "--short", "25")
        assert (old.code, new.code) == (0, 0), old.err + new.err
        local.write("old", {"notes.txt": b"mine"})
        kept = outputs(local.objects("old"))
        replaced = outputs(local.objects("new")) | {"notes.txt": kept["notes.txt"]}
        again = ("--short", "25", "--overwrite", "--yes")
        for at, (out, where) in enumerate(zygote.killed(root / "old", sweep, 8, *common, options=again)):
            if at % 3 == 0:
                other = zygote.run(*common, str(out))
                if other.code == 0:
                    assert outputs(local.objects(out.name)) == kept, where
                    assert totals(other.json) == totals(old.json), where
                else:
                    assert other.code == 2, where
                    assert "parameters.short: made with 25, you asked for 20" in other.err, where
            ended = zygote.run(*common, str(out), *again)
            assert ended.code == 0, f"{where}: {ended.err}"
            found = local.objects(out.name)
            assert outputs(found) == replaced, where
            assert not strangers(found), where
            assert totals(ended.json) == totals(new.json), where
            assert job_summary(found) == job_summary(local.objects("new")), where


@pytest.mark.slow
def test_killed_at_every_operation_of_a_growth(local: Place, sweep: Sweep, tmp_path: Path) -> None:
    """A finished job with a new input, an output that was deleted and one of another identity ends as if made at once,
    and its status says that it is complete then and not before."""
    files = corpus(sizes=(*SIZES, 40))
    first, last = list(files)[:-1], list(files)[-1]
    source = local.write("in", {name: files[name] for name in first})
    common = (CURATION, "--backend", "inline", "--json", "--input", source, "--output")
    root = Path(local.root)
    with Zygote(tmp_path / "zygote") as zygote:
        assert zygote.run(*common, f"{root}/old").code == 0
        assert zygote.run(*common, f"{root}/other", "--short", "25").code == 0
        local.write("in", {last: files[last]})
        whole = zygote.run(*common, f"{root}/whole")
        expected = local.objects("whole")
        gone, foreign = "2020/RC-00.parquet", "2021/RC-01.parquet"
        (root / "old" / gone).unlink()
        shutil.copy(root / "other" / foreign, root / "old" / foreign)
        for out, where in zygote.killed(root / "old", sweep, 8, *common):
            status = read_status(str(out), SystemClock().now())
            assert status.state != "complete" or outputs(local.objects(out.name)) == outputs(expected), where
            ended = zygote.run(*common, str(out))
            assert ended.code == 0, f"{where}: {ended.err}"
            found = local.objects(out.name)
            check_same(found, expected, where)
            assert totals(ended.json) == totals(whole.json), where


@pytest.mark.slow
def test_killed_at_every_operation_between_the_tries_of_bad_rows(local: Place, sweep: Sweep, tmp_path: Path) -> None:
    """Which rows are set aside depends on the rows: not on which try was the last, nor on which run it was in. Drops
    and counters of a batch that raised half way are those of the rows that stayed."""
    texts = ("fine", "short", "aside", "bad here", "bad", "poison")
    files = {}
    for number, size in enumerate((60, 5, 40)):
        # What the third one holds is only set aside at its last try.
        rows = random.Random(number + 3).choices(texts, (30, 10, 2, 2, 1, 2 if number == 2 else 0), k=size)
        lines = [json.dumps({"id": k, "text": text}).encode() + b"\n" for k, text in enumerate(rows)]
        files[f"{number}.jsonl"] = b"".join(lines)
    source = local.write("in", files)
    with Zygote(tmp_path / "zygote") as zygote:
        whole = zygote.run(ROWS, source, f"{local.root}/whole")
        assert whole.code == 0, whole.err
        expected = local.objects("whole")
        assert balanced(whole.json["rows"])
        assert whole.json["tasks"]["attempts"] == 2 + 4
        operations = zygote.operations(ROWS, source, f"{local.root}/count")
        for number in sweep(operations, 8):
            name, where = f"killed-{number}", f"before operation {number}, {operations[number]}"
            killed = zygote.run(ROWS, source, f"{local.root}/{name}", kill_operation=number, kill_when="before")
            assert killed.code == -9, f"{where}: {killed.code} {killed.err}"
            left = outputs(local.objects(name))
            assert set(left.items()) <= set(outputs(expected).items()), where
            again = zygote.run(ROWS, source, f"{local.root}/{name}")
            assert again.code == 0, f"{where}: {again.err}"
            found = local.objects(name)
            check_same(found, expected, where)
            assert totals(again.json) == totals(whole.json), where
