"""Outputs whose input changed since: replaced if asked for, against the object that was seen, wherever a kill hits."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import structlog

from curate.errors import ConfigError
from curate.graph.entry import dry_run
from curate.ledger.summary import RunState
from curate.storage.faults import Fault
from curate.stores.open import open_store
from curate.testing.stores import faulty_stores
from tests.e2e.jobs.curation import Curation
from tests.e2e.test_two_drivers import Meanwhile
from tests.support.harness import (
    CURATION,
    LENGTHS,
    Place,
    Zygote,
    check_same,
    corpus,
    encoded,
    outputs,
    rows,
    strangers,
    totals,
)
from tests.support.sweeps import Sweep
from tests.support.workbench import Bench, NoBackend, complete

FILES = corpus(sizes=(60, 3, 40, 0))
CHANGED = "2020/RC-00.jsonl.gz"
OTHER = "2021/RC-01.jsonl"


def newer(name: str, n: int) -> dict[str, bytes]:
    suffix = name[name.index(".") :]
    return {name: encoded(suffix, rows(name, n, random.Random(99)), bad_lines=True)}


def check_same_as_fresh(bench: Bench) -> None:
    bench.check_as_fresh()
    assert not strangers(bench.objects())
    assert complete(bench.run(backend=NoBackend(), redo_stale=True)).calls.put == 0


def test_stale_outputs_are_replaced(bench: Bench) -> None:
    """They alone are done again; outputs, books and quarantine are those of a job that began with the new inputs."""
    complete(bench.run())
    bench.begun()
    bench.place.write("in", newer(CHANGED, 10))
    ended = complete(bench.run(redo_stale=True))
    assert bench.begun() == [CHANGED]
    assert (ended.skipped, ended.attempts, ended.stale) == (len(FILES) - 1, 1, 0)
    assert bench.status().stale == 0
    check_same_as_fresh(bench)


def test_without_it_they_are_kept_and_it_is_named(bench: Bench) -> None:
    complete(bench.run())
    bench.place.write("in", newer(CHANGED, 10))
    with structlog.testing.capture_logs() as logs:
        assert complete(bench.run(backend=NoBackend())).stale == 1
    (warning,) = [log for log in logs if "out of date" in log["event"]]
    assert "redo_stale=True" in warning["next"]
    options: dict[str, Any] = {"input": bench.source, "output": f"{bench.place.root}/out", "backend": "inline"}
    assert "stale    1: out of date, their input changed; kept (redo_stale=True replaces them)" in words(options)
    text = words(options | {"redo_stale": True})
    assert "redo     1: stale, replaced by what their input is now" in text
    assert "run      1" in text
    assert "stale    " not in text


def words(options: dict[str, Any]) -> str:
    return dry_run(Curation().spec(), Curation.options(**options))[1]


def test_only_within_what_the_run_was_asked_for(bench: Bench) -> None:
    """`--limit` and `--sample` hold for what is removed too."""
    complete(bench.run())
    before = outputs(bench.objects())
    bench.place.write("in", newer(CHANGED, 10) | newer(OTHER, 20))
    bench.begun()
    ended = complete(bench.run(redo_stale=True, limit=1))
    assert (len(bench.begun()), ended.stale) == (1, 1)
    after = outputs(bench.objects())
    assert len([name for name in before if "quarantine" not in name and after[name] != before[name]]) == 1
    assert complete(bench.run(redo_stale=True)).stale == 0
    check_same_as_fresh(bench)


def test_what_curate_did_not_write_is_not_replaced(bench: Bench) -> None:
    """It has the name of an output and is somebody's: named, and nothing is removed."""
    complete(bench.run())
    bench.place.write("in", newer(CHANGED, 10) | newer(OTHER, 20))
    name = f"{CHANGED.split('.')[0]}.parquet"
    bench.place.delete(f"{bench.place.root}/out/{name}")
    bench.place.write("out", {name: FILES["2020/RC-02.parquet"]})
    before = bench.objects()
    with pytest.raises(ConfigError, match=rf"{name} was not written by curate"):
        bench.run(redo_stale=True, backend=NoBackend())
    assert bench.objects() == before


def test_what_another_driver_replaced_meanwhile_stays(bench: Bench) -> None:
    """Both are to replace it; the second one finds another object than it saw, and that nothing is left to do."""
    complete(bench.run())
    bench.place.write("in", newer(CHANGED, 10))
    found: dict[str, bytes] = {}

    def other() -> None:
        complete(bench.run(redo_stale=True))
        found.update(bench.objects())

    ended = complete(bench.run(redo_stale=True, backend=Meanwhile("start", other)))
    assert (ended.skipped, ended.attempts) == (len(FILES), 0)
    assert bench.objects() == found
    check_same_as_fresh(bench)


def test_an_input_that_changed_and_cannot_be_read(bench: Bench) -> None:
    """Its shard fails, and its output stays as it was, and is said to be stale; it is replaced once its input is mended
    and that is asked for again."""
    complete(bench.run())
    before = outputs(bench.objects())
    bench.place.write("in", {CHANGED: FILES[CHANGED][:-20]})
    ended = bench.run(redo_stale=True)
    assert (ended.state, ended.failed, ended.done) == (RunState.FAILED, 1, len(FILES) - 1)
    assert outputs(bench.objects()) == before
    assert "_curate/summary.json" not in bench.objects()
    bench.place.write("in", newer(CHANGED, 10))
    ended = complete(bench.run(backend=NoBackend()))
    assert (ended.attempts, ended.stale) == (0, 1)
    assert outputs(bench.objects()) == before
    assert complete(bench.run(redo_stale=True)).attempts == 1
    check_same_as_fresh(bench)


def test_an_output_is_there_at_all_times(bench: Bench) -> None:
    """The new one takes the place of the old one at once: it is removed at no time, and nothing else is."""
    complete(bench.run())
    bench.place.write("in", newer(CHANGED, 10) | newer(OTHER, 20))
    removed = Fault("delete", name=".parquet")
    with faulty_stores(removed, retry=None):
        complete(bench.run(redo_stale=True))
    assert removed.matched == 0
    check_same_as_fresh(bench)


def test_the_same_bytes_stay_the_same_object(bench: Bench) -> None:
    """An input that was written again, or changed where no row of the output is made of it: its output is not touched,
    so that nothing that is made of that is stale."""
    complete(bench.run())
    before = {one.uri: one for one in open_store(bench.place.root).list(f"{bench.place.root}/out/20")}
    bench.place.write("in", {OTHER: FILES[OTHER]})
    ended = complete(bench.run(redo_stale=True))
    assert (ended.attempts, ended.stale) == (0 if bench.place.root.startswith("s3://") else 1, 0), (
        "in S3, equal bytes have one ETag"
    )
    assert {one.uri: one for one in open_store(bench.place.root).list(f"{bench.place.root}/out/20")} == before
    check_same_as_fresh(bench)


def test_parts_of_an_input_are_kept_unless_that_is_asked_for(local: Place, tmp_path: Path) -> None:
    """How a large input is split was decided from the old one: it is split anew, and the warning says what helps."""
    name = "big.jsonl"
    parameters = {"shard_bytes": 100_000, "max_bad_rows": "5%"}
    bench = Bench(local, tmp_path / "trace", local.write("in", newer(name, 4000)), parameters)
    complete(bench.run())
    before = bench.objects()
    local.write("in", newer(name, 5000))
    for options in ({}, {"redo_stale": True, "limit": 1}):
        with structlog.testing.capture_logs() as logs:
            ended = complete(bench.run(**options, backend=NoBackend()))
        assert ended.stale > 1
        assert outputs(bench.objects()) == outputs(before)
        (warning,) = [log for log in logs if "out of date" in log["event"]]
        assert "redo_stale=True" in warning["next"]
    ended = complete(bench.run(redo_stale=True))
    assert (ended.stale, ended.dropped, ended.attempts) == (0, 0, ended.total)
    check_same_as_fresh(bench)


@pytest.mark.slow
@pytest.mark.parametrize("job", [LENGTHS, pytest.param(CURATION, marks=pytest.mark.nightly)])
def test_killed_at_every_operation(local: Place, sweep: Sweep, tmp_path: Path, job: str) -> None:
    """The next run, asked for it or not, ends complete. What was removed is done again, of the new input; what was not
    yet is kept as it was and said to be stale, until a run is asked to replace it."""
    root = Path(local.root)
    source = local.write("in", FILES)
    common = (job, "--backend", "inline", "--json", "--input", source, "--output")
    with Zygote(tmp_path / "zygote") as zygote:
        assert zygote.run(*common, f"{root}/old").code == 0
        local.write("in", newer(CHANGED, 10) | newer(OTHER, 20))
        whole = zygote.run(*common, f"{root}/whole")
        expected = local.objects("whole")
        for out, where in zygote.killed(root / "old", sweep, 8, *common, options=["--redo-stale"]):
            plain = zygote.run(*common, str(out))
            assert plain.code == 0, f"{where}: {plain.err}"
            for name in (CHANGED, OTHER):
                output = f"{name.split('.')[0]}.parquet"
                new = local.objects(out.name)[output] == expected[output]
                assert new or local.objects(out.name)[output] == local.objects("old")[output], where
            ended = zygote.run(*common, str(out), "--redo-stale")
            assert ended.code == 0, f"{where}: {ended.err}"
            found = local.objects(out.name)
            check_same(found, expected, where)
            assert totals(ended.json) == totals(whole.json), where
            assert not strangers(found), where
        assert outputs(local.objects("count")) == outputs(expected)
