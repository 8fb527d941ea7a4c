"""A job with an exchange, to who looks: one job, whose stages are told apart, and whose next commands work."""

from __future__ import annotations

import os
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest

from curate.clock import SystemClock
from curate.driver.stage_progress import JobProgress
from curate.ledger import layout
from curate.ledger.ledger import Ledger
from curate.ledger.listing import OutputListing
from curate.ledger.manifest import ShardPlan
from curate.ledger.stages import StageReport
from curate.ledger.summary import RunState, Summary
from curate.observe import registry
from curate.observe.summary_text import render
from curate.plan import rewrites
from curate.reduce import ranges
from tests.cli.running import Curate, curate
from tests.e2e.jobs.ordered import Ordered
from tests.job.inline import outputs, run_job, write_parquet
from tests.support.fakes import FakeClock

__all__ = ["curate"]

FILES, ROWS = 4, 30


def texts(file: int) -> list[str]:
    return [f"{(7 * number + file) % 100:02d} of {file}" for number in range(ROWS)]


@dataclass(frozen=True)
class Place:
    """Inputs, each of which becomes a map shard, and an output."""

    root: Path

    @property
    def out(self) -> str:
        return str(self.root / "out")

    @property
    def trouble(self) -> Path:
        return self.root / "trouble"

    def run(self, *bad: str, **options: Any) -> Summary:
        """Runs the job, which cannot take these texts."""
        self.trouble.write_text("\n".join(bad))
        options = {"clock": FakeClock()} | options
        return run_job(Ordered(trouble=str(self.trouble)), self.root / "in", self.out, **options)

    def stage(self) -> Path:
        """Returns the folder of the stage before the last one."""
        (found,) = (self.root / "out" / layout.STAGES).iterdir()
        return found

    def map_of(self, summary: Summary) -> str:
        """Returns what the map shard is called that failed, or one of them."""
        return summary.failures[0].shard


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(rewrites, "LEAST_MAP_BYTES", 1024)
    monkeypatch.setattr(ranges, "LEAST_BYTES", 1024)
    for file in range(FILES):
        rows = [{"text": text, "file": file} for text in texts(file)]
        write_parquet(tmp_path / "in" / f"{file}.parquet", rows, compression="none")
    return Place(tmp_path)


BEFORE, AFTER = "before 07 of 0", "after 07 of 0"


class TestStatus:
    def test_a_map_that_failed(self, place: Place, curate: Curate) -> None:
        """Every stage has its line, also that which is not planned yet; all else is about the stage that failed."""
        failed = place.run(BEFORE)
        shown = curate("status", place.out)
        lines = shown.out.splitlines()
        assert lines[0] == f"ordered  failed  {place.out}"
        assert lines[1].endswith(" 3 of 4 shards (75.0 %)")
        assert lines[2:6] == [
            "stages    1  sort(text): map  failed, 3 of 4 shards, 1 failed, 90 rows in, 90 out",
            "          2  write            waiting",
            "at        stage 1 of 2: sort(text): map",
            "shards    1 failed",
        ]
        assert (
            f"failed    1 x ValueError: cannot take '07 of 0' before the sort (for example {place.map_of(failed)})"
            in lines
        )
        assert lines[-2:] == [
            f"next      curate failures {place.out}",
            "          fix the cause and run the job again; finished shards are skipped",
        ]

    def test_an_output_that_failed(self, place: Place, curate: Curate) -> None:
        """The map stage is complete then."""
        place.run(AFTER)
        lines = curate("status", place.out).out.splitlines()
        assert lines[2] == "stages    1  sort(text): map  complete, 4 of 4 shards, 120 rows in, 120 out"
        assert lines[3].startswith("          2  write            failed, ")
        assert lines[4] == "at        stage 2 of 2: write"

    def test_complete(self, place: Place, curate: Curate) -> None:
        """The stages are told of when they are removed: from the summary, and not from what lies there."""
        done = place.run()
        assert not (place.root / "out" / layout.STAGES).exists()
        lines = curate("status", place.out).out.splitlines()
        assert lines[0] == f"ordered  complete  {place.out}"
        parts = len(outputs(Path(place.out)))
        assert lines[2:6] == [
            "stages    1  sort(text): map  complete, 4 of 4 shards, 120 rows in, 120 out",
            f"          2  write            complete, {parts} of {parts} shards, 120 rows in, 120 out",
            "shards    all done",
            "rows      120 in + 0 created = 120 out + 0 dropped + 0 quarantined",
        ]
        told = curate("status", place.out, "--json").json
        assert told["exchanges"] == [{"name": "sort(text)", "rows_in": 120, "rows_out": 120}]
        assert [one["name"] for one in told["stages"]] == [one.name for one in done.stages]

    def test_json(self, place: Place, curate: Curate) -> None:
        """The shards are those of the stage that it is at, which is named by its key; all stages are listed."""
        place.run(BEFORE)
        told = curate("status", place.out, "--json").json
        assert told["stage"] == place.stage().name
        assert (told["state"], told["shards"]["done"], told["shards"]["failed"]) == ("failed", 3, 1)
        assert [(one["name"], one["state"], one["shards"]["total"]) for one in told["stages"]] == [
            ("sort(text): map", "failed", 4),
            ("write", "waiting", 0),
        ]
        assert told["exchanges"] == []

    def test_stages_that_cannot_be_looked_at(self, place: Place, curate: Curate) -> None:
        """Those of a bucket's job may lie on another machine's disk: its run says how far they are."""
        place.run(BEFORE)
        seen = curate("status", place.out, "--json").json
        shutil.rmtree(place.root / "out" / layout.STAGES)
        told = curate("status", place.out, "--json").json
        for name in ("stage", "state", "shards", "rows", "failures"):
            assert told[name] == seen[name], name
        assert [(one["state"], one["shards"]) for one in told["stages"]] == [
            (one["state"], one["shards"]) for one in seen["stages"]
        ]

    @pytest.mark.parametrize("bad", [(BEFORE,), (AFTER,), ()])
    def test_a_quick_look(self, place: Place, curate: Curate, bad: tuple[str, ...]) -> None:
        """Says the same, whichever stage it is at: the run has said how far they are."""
        place.run(*bad)
        seen, told = (curate("status", place.out, "--json", *more).json for more in ((), ("--quick",)))
        for name in ("stage", "state", "shards", "rows", "failures", "exchanges"):
            assert told.get(name) == seen.get(name), name
        assert [(one["name"], one["state"], one["shards"]) for one in told["stages"]] == [
            (one["name"], one["state"], one["shards"]) for one in seen["stages"]
        ]

    def test_it_is_one_job_in_the_list(self, place: Place) -> None:
        """Stages are no jobs of their own."""
        place.run(BEFORE)
        assert [one["output"] for one in registry.list_jobs()] == [place.out]

    def test_while_it_runs(self, place: Place, curate: Curate, monkeypatch: pytest.MonkeyPatch) -> None:
        """One run, from its first stage to its last; each is seen at work."""
        seen: list[dict[str, Any]] = []

        def look(_: Ordered, when: str, batch: Any) -> Any:
            if len(batch) == ROWS or when == "after":
                seen.append(curate("status", place.out, "--json").json)
            return batch

        monkeypatch.setattr(Ordered, "_looked_at", look)
        # What is heard of a run is heard of it now.
        place.run(clock=SystemClock())
        names = [next(two["name"] for two in one["stages"] if two["key"] == one["stage"]) for one in seen]
        assert sorted(set(names)) == ["sort(text): map", "write"]
        assert {one["state"] for one in seen} <= {"running", "pending"}
        runs = {run["run_id"] for one in seen for run in one["runs"]}
        assert len(runs) == 1


class TestWhatFailed:
    def test_groups(self, place: Place, curate: Curate) -> None:
        """Say of which stage they are, and call the shard as the other commands take it."""
        shard = place.map_of(place.run(BEFORE))
        assert shard.startswith(f"{place.stage().name}/map-")
        shown = curate("failures", place.out)
        lines = shown.out.splitlines()
        assert lines[1] == "1 shard has failed, for one reason"
        assert lines[6:12] == [
            '    raise ValueError(f"cannot take {text!r} {when} the sort")',
            "  at      stage 1 of 2: sort(text): map",
            f"  shard   {shard}",
            f"  input   {place.root}/in/0.parquet #0",
            f"  whole   curate failures {place.out} --shard {shard}",
            f"  replay  curate replay {place.out} --shard {shard}",
        ]
        (group,) = curate("failures", place.out, "--json").json["groups"]
        assert (group["stage"], group["address"]) == tuple(shard.split("/")) or group["address"] == shard

    @pytest.mark.parametrize("whole", [True, False])
    def test_one_shard(self, place: Place, curate: Curate, whole: bool) -> None:
        """By its address, or by its own id as long as that says which."""
        shard = place.map_of(place.run(BEFORE))
        shown = curate("failures", place.out, "--shard", shard if whole else shard.partition("/")[2])
        assert shown.code == 0
        lines = shown.out.splitlines()
        assert lines[0] == f"{shard}  failed"
        assert lines[2] == "  at      stage 1 of 2: sort(text): map"
        assert lines[-3:] == [
            f"  replay  curate replay {place.out} --shard {shard} --pdb",
            f"  logs    curate logs {place.out} --shard {shard}",
            f"  retry   curate retry {place.out}",
        ]

    def test_a_stage_that_is_gone(self, place: Place, curate: Curate) -> None:
        """Is refused with what may have become of it."""
        shard = place.map_of(place.run(BEFORE))
        place.run()
        refused = curate("failures", place.out, "--shard", shard)
        assert refused.code == 2
        assert "stage 1 of 2: sort(text): map" in refused.err
        assert "removed when the job was complete" in refused.err

    def test_replay_of_a_map(self, place: Place, curate: Curate) -> None:
        """Runs it as a run does: with the traceback; mended, with its books and its first rows in their order."""
        shard = place.map_of(place.run(BEFORE))
        failed = curate("replay", place.out, "--shard", shard)
        assert failed.code == 1
        assert "ValueError: cannot take '07 of 0' before the sort" in failed.out
        place.trouble.write_text("")
        done = curate("replay", place.out, "--shard", shard, "--json")
        assert (done.code, done.json["state"], done.json["rows"]["out"], done.json["shard"]) == (0, "done", ROWS, shard)
        first = [row["text"] for row in done.json["first_rows"]]
        assert first == sorted(texts(0))[:5]
        assert len(list(place.stage().glob("map-*"))) == 3

    def test_a_map_is_published(self, place: Place, curate: Curate) -> None:
        """As a run would: the next one skips it."""
        shard = place.map_of(place.run(BEFORE))
        place.trouble.write_text("")
        assert curate("replay", place.out, "--shard", shard, "--publish").code == 0
        assert len(list(place.stage().glob("map-*"))) == 4
        assert place.run().state is RunState.COMPLETE

    def test_replay_of_an_output(self, place: Place, curate: Curate) -> None:
        """Reads the run files that are there; where the stage is not complete, says so and what can be done."""
        shard = place.map_of(place.run(AFTER))
        failed = curate("replay", place.out, "--shard", shard)
        assert (failed.code, "cannot take '07 of 0' after the sort" in failed.out) == (1, True)
        place.trouble.write_text("")
        assert curate("replay", place.out, "--shard", shard).code == 0
        next(place.stage().glob("map-*")).unlink()
        refused = curate("replay", place.out, "--shard", shard)
        assert refused.code == 2
        assert "an input of that shard is damaged" in refused.err or "an input of that shard is missing" in refused.err
        assert "run the job first" in refused.err

    @pytest.mark.parametrize("bad", [BEFORE, AFTER])
    def test_retry(self, place: Place, curate: Curate, bad: str) -> None:
        """The job is made again from what its run wrote down, whichever stage failed, and completed."""
        place.run(bad)
        place.trouble.write_text("")
        done = curate("retry", place.out, "--backend", "inline", "--json")
        assert (done.code, done.json["state"]) == (0, "complete")
        assert done.json["exchanges"] == [{"name": "sort(text)", "rows_in": 120, "rows_out": 120}]

    def test_logs(self, place: Place, curate: Curate) -> None:
        """Stage after stage, each line with the address of its shard; of one shard, its own."""
        shard = place.map_of(place.run(AFTER, BEFORE))
        said = [orjson.loads(line) for line in curate("logs", place.out, "--json").out.splitlines()]
        assert any("looked" in line["event"] for line in said)
        assert {line["shard"].partition("/")[0] for line in said} == {place.stage().name}
        own = [orjson.loads(line) for line in curate("logs", place.out, "--json", "--shard", shard).out.splitlines()]
        assert {line["shard"] for line in own} == {shard}


@pytest.mark.ci(3)
@pytest.mark.parametrize("command", ["status", "page", "verify", "failures", "logs"])
def test_a_stage_that_is_removed_while_it_is_read(
    place: Place, curate: Curate, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """A run completes the job, and removes the stage, between its listing and the read of its plan: it is not there."""
    place.run(AFTER)
    read_plan = Ledger.read_plan

    def late(ledger: Ledger, listing: OutputListing) -> ShardPlan:
        if f"/{layout.STAGES}" in ledger.root:
            monkeypatch.setattr(Ledger, "read_plan", read_plan)
            place.run()
        return read_plan(ledger, listing)

    monkeypatch.setattr(Ledger, "read_plan", late)
    shown = curate(command, place.out, *(["--output", f"{place.root}/page.html"] if command == "page" else []))
    assert Ledger.read_plan is read_plan
    # One output was not there when the job was listed.
    assert (shown.code, "error:" in shown.err) == (1 if command == "verify" else 0, False)


@pytest.mark.parametrize("file", [1, FILES - 1])
def test_an_interrupt_in_a_map_stage(place: Place, curate: Curate, monkeypatch: pytest.MonkeyPatch, file: int) -> None:
    """The result says what is done, also where the stage was just about to end; run again, it goes on from there."""
    looked: list[str] = []

    def look(_: Ordered, when: str, batch: Any) -> Any:
        if when == "before":
            looked.extend(batch["text"].to_pylist())
            if texts(file)[0] in looked and len(looked) < 1000:
                looked.extend([""] * 1000)
                os.kill(os.getpid(), signal.SIGINT)
        return batch

    monkeypatch.setattr(Ordered, "_looked_at", look)
    # Told what comes out, it need not look at rows beforehand.
    ended = place.run(handle_signals=True, max_in_flight=1)
    assert ended.state is RunState.INTERRUPTED
    first, last = ended.stages
    assert first.done == ended.done
    assert (first.state, last.state) == ("complete" if first.done == FILES else "interrupted", "waiting")
    assert render(ended).endswith(f"Run it again to resume; see: curate status {place.out}")
    lines = curate("status", place.out).out.splitlines()
    assert lines[0] == f"ordered  interrupted  {place.out}"
    assert lines[-1] == "next      run the job again; it resumes"
    assert place.run().state is RunState.COMPLETE


class TestVerify:
    def test_run_files_are_read(self, place: Place, curate: Curate) -> None:
        """Those of stages that are there, all pages of them; a changed byte is found, and named."""
        place.run(BEFORE)
        shown = curate("verify", place.out)
        lines = shown.out.splitlines()
        assert (shown.code, lines[0]) == (1, f"ordered  incomplete  {place.out}")
        assert lines[2].startswith("stages    sort(text): map: 3 of 4 read, ")
        assert lines[-1].split(None, 1)[1].startswith("the last stage has not begun")
        path = next(place.stage().glob("map-*"))
        data = bytearray(path.read_bytes())
        data[100] ^= 1
        path.unlink()
        path.write_bytes(data)
        found = curate("verify", place.out, "--json").json
        assert (found["state"], found["problems"]) == ("damaged", {"damaged": 1})
        assert found["findings"][0]["object"] == str(path.relative_to(place.out))
        assert "has the checksum" in found["findings"][0]["reason"]

    def test_complete(self, place: Place, curate: Curate) -> None:
        """Kept stages are verified with the outputs; the summary has the equation of each exchange, and it is held."""
        place.run(keep_stages=True)
        shown = curate("verify", place.out)
        assert (shown.code, shown.out.splitlines()[0]) == (0, f"ordered  ok  {place.out}")
        assert (
            "  120 in + 0 created = 120 out + 0 dropped + 0 quarantined in earlier stages, by the summary" in shown.out
        )
        summary = Path(place.out) / layout.SUMMARY
        value = orjson.loads(summary.read_bytes())
        value["stages"][0]["rows"]["out"] -= 1
        summary.unlink()
        summary.write_bytes(orjson.dumps(value))
        found = curate("verify", place.out, "--json").json
        assert found["problems"] == {"summary": 1}
        assert found["earlier"]["rows"]["out"] == 120
        assert found["findings"][0]["reason"] == "sort(text): 119 rows went into the exchange, and 120 came out"


def test_a_run_that_is_refused_is_none(place: Place) -> None:
    """Nothing says in the ledger that there is a run before a stage has begun to work."""
    course = JobProgress(
        Ordered(trouble="").spec(), Ordered(trouble="").options(input=place.root, output=place.out, backend="inline"),
        None, FakeClock(), (StageReport("0a", "sort: map"), StageReport("", "write")), None,  # type: ignore[arg-type]
    )  # fmt: skip
    with course:
        course.stage("0a", "sort: map")
    assert not (place.root / "out").exists()


@pytest.mark.slow
def test_a_ledger_that_lost_its_runs_and_its_summary(place: Place, curate: Curate) -> None:
    """What is planned of the last stage shows that those before it were complete: shards are counted there."""
    done = place.run().done
    shutil.rmtree(place.root / "out" / layout.LEDGER / "runs")
    (place.root / "out" / layout.SUMMARY).unlink()
    told = orjson.loads(curate("status", place.out, "--json").out)
    assert (told["state"], told["stage"]) == ("pending", "")
    assert (told["shards"]["total"], told["shards"]["done"]) == (done, done)
    assert [one["state"] for one in told["stages"]] == ["complete", "pending"]
    shown = curate("status", place.out).out
    assert "of 0 shards" not in shown
    assert "run the job again" in shown
