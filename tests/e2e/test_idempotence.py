"""Running a job again: what is done is free, and only what is new, gone or mended is done."""

from __future__ import annotations

import gzip
import json
import re
from typing import Any

import pyarrow.parquet as pq
import pytest

from curate.errors import ConfigError
from curate.ledger.summary import RunState
from tests.e2e.jobs.curation import Curation
from tests.support.harness import Place, check_same, corpus, encoded, job_summary, outputs, rows, run, totals
from tests.support.workbench import Bench, NoBackend, complete

FILES = corpus(sizes=(120, 3, 60, 0, 70))
NAMES = [name.split(".")[0] + ".parquet" for name in sorted(FILES)]


def test_a_finished_job_is_free(bench: Bench) -> None:
    """One listing of inputs, one of outputs, at most five small reads; nothing is written, no backend is started."""
    first = complete(bench.run())
    before = bench.objects()
    if bench.place.emulator:
        bench.place.emulator.reset_counts()
    again = complete(bench.run(backend=NoBackend()))
    calls = again.calls.as_dict()
    assert (calls["list"], calls["put"], calls["delete"]) == (2, 0, 0)
    assert calls["get"] <= 5
    if bench.place.emulator:
        assert bench.place.emulator.counts() == calls
    assert bench.objects() == before
    assert totals(again.as_dict()) == totals(first.as_dict())
    assert (again.skipped, again.dispatched, again.attempts) == (again.total, 0, 0)


@pytest.mark.slow
def test_a_finished_job_does_not_even_import_ray(local: Place) -> None:
    """The backend is made when there is something to run on it."""
    source = local.write("in", FILES)
    Curation().run(input=source, output=f"{local.root}/out", backend="inline")
    code = (
        "import sys\nfrom tests.e2e.jobs.curation import Curation\n"
        f"summary = Curation().run(input={source!r}, output='{local.root}/out')\n"
        "assert summary.skipped == summary.total\nassert 'ray' not in sys.modules"
    )
    ended = run("-c", code)
    assert ended.code == 0, ended.err


def test_a_new_input_is_all_that_runs(bench: Bench) -> None:
    """The plan grows, the summary is replaced, and the books are those of a job that had all inputs from the start."""
    complete(bench.run())
    bench.begun()
    bench.place.write("in", {"2022/new.jsonl": encoded(".jsonl", rows("2022/new.jsonl", 30, _rng()))})
    grown = complete(bench.run())
    assert (grown.skipped, grown.total) == (len(FILES), len(FILES) + 1)
    assert bench.begun() == ["2022/new.jsonl"]
    bench.check_as_fresh()
    calls = complete(bench.run(backend=NoBackend())).calls.as_dict()
    assert (calls["list"], calls["put"], calls["delete"]) == (2, 0, 0)
    assert calls["get"] <= 5


def test_an_output_that_was_deleted_is_all_that_runs(bench: Bench) -> None:
    complete(bench.run())
    before = bench.objects()
    bench.begun()
    bench.place.delete(f"{bench.place.root}/out/{NAMES[2]}")
    complete(bench.run())
    assert len(bench.begun()) == 1
    check_same(bench.objects(), before)


def test_an_output_that_was_cut_off_is_not_taken_for_done(bench: Bench) -> None:
    """The sizes of a listing give it away. The summary of a complete job was believed, whatever became of outputs."""
    complete(bench.run())
    name = f"{bench.place.root}/out/{NAMES[2]}"
    whole = bench.objects()[NAMES[2]]
    bench.place.delete(name)
    bench.place.write("out", {NAMES[2]: whole[:-20]})
    with pytest.raises(ConfigError, match=rf"{re.escape(name)}.* it has the name of an output: move it"):
        bench.run()


def test_the_books_are_found_again_without_the_ledger_of_runs(bench: Bench) -> None:
    """Outputs are the truth: without summary and events the books are read from their records, and nothing runs."""
    first = complete(bench.run())
    before = bench.objects()
    for name in before:
        if name.startswith(("_curate/runs/", "_curate/summary")):
            bench.place.delete(f"{bench.place.root}/out/{name}")
    again = complete(bench.run(backend=NoBackend()))
    assert totals(again.as_dict()) == totals(first.as_dict())
    assert job_summary(bench.objects()) == job_summary(before)
    calls = complete(bench.run(backend=NoBackend())).calls.as_dict()
    assert (calls["put"], calls["delete"]) == (0, 0)


def test_a_lost_ledger_is_made_anew_around_the_outputs(bench: Bench) -> None:
    """All of `_curate/` may go: outputs with this job's records count as done, and the ledger tells of them again."""
    first = complete(bench.run())
    before = bench.objects()
    for name in before:
        if name.startswith("_curate/") and not name.startswith("_curate/quarantine/"):
            bench.place.delete(f"{bench.place.root}/out/{name}")
    bench.begun()
    again = complete(bench.run(backend=NoBackend()))
    assert bench.begun() == []
    assert totals(again.as_dict()) == totals(first.as_dict())
    check_same(bench.objects(), before)
    assert bench.status().state == "complete"


def test_an_input_that_changed_after_it_was_done_is_stale(bench: Bench) -> None:
    """It is reported and its output is kept; removing that output is asking for the new one."""
    complete(bench.run())
    before = outputs(bench.objects())
    bench.begun()
    name = "2020/RC-00.jsonl.gz"
    bench.place.write("in", {name: encoded(".jsonl.gz", rows(name, 10, _rng()))})
    again = complete(bench.run(backend=NoBackend()))
    assert again.stale == 1
    assert bench.begun() == []
    assert outputs(bench.objects()) == before
    status = bench.status()
    assert (status.state, status.stale, status.done) == ("complete", 1, len(FILES))

    bench.place.delete(f"{bench.place.root}/out/2020/RC-00.parquet")
    assert complete(bench.run()).stale == 0
    assert bench.begun() == [name]
    bench.check_as_fresh()
    assert bench.status().stale == 0


def test_an_input_that_was_mended_before_it_was_done_runs_as_it_is(bench: Bench) -> None:
    name = "2020/RC-00.jsonl.gz"
    bench.place.write("in", {name: FILES[name][:-20]})
    failed = bench.run()
    assert (failed.state, failed.failed, failed.done) == (RunState.FAILED, 1, len(FILES) - 1)
    assert "_curate/summary.json" not in bench.objects()
    assert bench.status().failed == 1
    bench.begun()
    bench.place.write("in", {name: FILES[name]})
    complete(bench.run())
    assert bench.begun() == [name]
    bench.check_as_fresh()


@pytest.mark.ci(4)
@pytest.mark.parametrize("part", [{"limit": 2}, {"sample": "40%"}, {"sample": "0.001%"}])
def test_a_part_first_and_then_all_of_it(bench: Bench, part: dict[str, Any]) -> None:
    """A full run keeps the outputs of a partial one; a partial one that is done is free; only all of it is complete."""
    some = complete(bench.run(**part))
    assert 1 <= some.total < len(FILES)
    assert len([name for name in bench.objects() if not name.startswith("_")]) == some.total
    assert "_curate/summary.json" not in bench.objects()
    bench.begun()
    before = bench.objects()
    complete(bench.run(**part, backend=NoBackend()))
    assert bench.objects() == before
    assert bench.status().state == "pending"
    whole = complete(bench.run())
    assert whole.skipped == some.total
    assert set(outputs(before).items()) <= set(outputs(bench.objects()).items())
    bench.check_as_fresh()


def test_another_identity_is_refused_with_the_difference(bench: Bench) -> None:
    complete(bench.run())
    before = bench.objects()
    bench.parameters = {"short": 25}
    with pytest.raises(ConfigError, match=r"parameters\.short: made with 20, you asked for 25"):
        bench.run(backend=NoBackend())
    assert bench.objects() == before


def test_overwrite_replaces_the_job_and_keeps_what_is_foreign(bench: Bench) -> None:
    complete(bench.run())
    bench.place.write("out", {"notes.txt": b"mine", "2020/_hidden/x": b"mine too"})
    bench.parameters = {"short": 25}
    with pytest.raises(ConfigError, match=r"overwrite=True was not confirmed: remove 5 outputs"):
        bench.run(overwrite=True)
    asked = []
    complete(bench.run(overwrite=True, confirm=lambda question: asked.append(question) or True))
    assert len(asked) == 1
    complete(bench.run(output="fresh"))
    found = bench.objects()
    assert (found.pop("notes.txt"), found.pop("2020/_hidden/x")) == (b"mine", b"mine too")
    check_same(found, bench.objects("fresh"))
    assert len([name for name in found if name.endswith("run.json")]) == 1


@pytest.mark.parametrize("data", [b"not parquet at all", b"", "parquet"])
def test_a_foreign_object_with_the_name_of_an_output_is_refused(bench: Bench, data: Any) -> None:
    """It is named, and neither taken for done nor removed, not even by --overwrite; nothing else is removed either."""
    if data == "parquet":
        data = FILES["2020/RC-02.parquet"]
    bench.place.write("out", {NAMES[0]: data})
    with pytest.raises(ConfigError, match=rf"out/{NAMES[0]}.*the name of an output"):
        bench.run(backend=NoBackend())
    bench.place.delete(f"{bench.place.root}/out/{NAMES[0]}")
    complete(bench.run())
    bench.place.delete(f"{bench.place.root}/out/{NAMES[0]}")
    bench.place.write("out", {NAMES[0]: data})
    before = bench.objects()
    bench.parameters = {"short": 25}
    with pytest.raises(ConfigError, match=rf"out/{NAMES[0]}.*the name of an output"):
        bench.run(overwrite=True, confirm=lambda _: True, backend=NoBackend())
    assert bench.objects() == before


def test_an_output_of_another_identity_is_removed_and_redone(bench: Bench) -> None:
    """As a zombie of other parameters may leave it: under the right name, with another fingerprint in its record."""
    whole = complete(bench.run())
    expected = bench.objects()
    bench.parameters = {"short": 25}
    complete(bench.run(output="other"))
    bench.parameters = {}
    bench.begun()
    bench.place.delete(f"{bench.place.root}/out/{NAMES[1]}")
    bench.place.delete(f"{bench.place.root}/out/_curate/summary.json")
    bench.place.write("out", {NAMES[1]: bench.objects("other")[NAMES[1]]})
    again = complete(bench.run())
    assert len(bench.begun()) == 1
    # One asks whether it may be removed, before anything is; one removes it.
    assert again.calls.delete == 2
    assert totals(again.as_dict()) == totals(whole.as_dict())
    assert outputs(bench.objects()) == outputs(expected)


def test_a_refused_run_leaves_nothing(bench: Bench) -> None:
    """A job that cannot run as asked writes nothing at all under its output."""
    bench.parameters = {"max_bad_rows": "5"}
    bench.source = f"{bench.place.root}/nothing"
    with pytest.raises(ConfigError, match="no input"):
        bench.run()
    assert bench.objects() == {}


def test_a_summary_that_tells_of_less_is_replaced(bench: Bench) -> None:
    """A driver that did not know of the newest shards may publish its summary last."""
    complete(bench.run())
    old = bench.objects()["_curate/summary.json"]
    bench.place.write("in", {"2022/new.jsonl": encoded(".jsonl", rows("2022/new.jsonl", 30, _rng()))})
    complete(bench.run())
    right = bench.objects()["_curate/summary.json"]
    bench.place.delete(f"{bench.place.root}/out/_curate/summary.json")
    bench.place.write("out", {"_curate/summary.json": old})
    complete(bench.run(backend=NoBackend()))
    assert job_summary(bench.objects()) == {k: v for k, v in json.loads(right).items() if k != "run_id"}
    assert complete(bench.run(backend=NoBackend())).calls.put == 0


def test_outputs_are_plain_files_to_others(bench: Bench) -> None:
    """The rows are those that the job keeps, with one schema in every output, the empty one too."""
    complete(bench.run())
    found = bench.objects()
    tables = {name: pq.read_table(_buffer(data)) for name, data in found.items() if not name.startswith("_")}
    assert sorted(tables) == sorted(NAMES)
    assert len({str(table.schema.remove_metadata()) for table in tables.values()}) == 1
    assert [len(table) for table in tables.values()].count(0) >= 1
    texts = [json.loads(line) for line in gzip.decompress(FILES["2020/RC-00.jsonl.gz"]).splitlines()]
    kept = [
        row["id"]
        for row in texts
        if not row["text"].startswith("aside") and len(row["text"]) >= 20 and row["id"] & 31 != 7
    ]
    assert tables["2020/RC-00.parquet"]["id"].to_pylist() == kept


def _buffer(data: bytes) -> Any:
    import pyarrow as pa

    return pa.BufferReader(data)


def _rng() -> Any:
    import random

    return random.Random(99)
