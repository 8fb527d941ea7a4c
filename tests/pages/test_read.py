"""The model of a page: its numbers are those of the ledger and of the outputs, and what cannot be read is said."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import duckdb
import orjson
import pytest

import curate
from curate.errors import ConfigError
from curate.ledger import layout
from curate.ledger.ledger import Ledger
from curate.ledger.stages import StageReport
from curate.objects import samples
from curate.objects.samples import MOST_SAMPLED, DroppedRow, encode_samples, shard_samples
from curate.observe.place import NoJobError
from curate.pages.document import document
from curate.pages.model import Page
from curate.pages.read import DAMAGED, read_page
from curate.tasks.books import Books
from curate.tasks.failure import Failure, FailureKind, ShardRecord
from curate.tasks.times import Times
from tests.job.inline import numbered, run_job, write_jsonl
from tests.pages.samples import NOW, RUN, Tenths
from tests.support.ledgers import heartbeat, make_job, segment
from tests.support.sweeps import Mode
from tests.support.writes import failed_write

Jobs = dict[str, str]


def rows_by_duckdb(output: str) -> int:
    """Returns the rows that lie in the outputs, as another engine counts them."""
    every = f"SELECT count(*) FROM read_parquet('{output}/**/*.parquet', filename = true)"
    [(count,)] = duckdb.sql(f"{every} WHERE filename NOT LIKE '%/_curate/%'").fetchall()
    return int(count)


def balanced(rows: Any) -> bool:
    dropped = rows["dropped"].values() if isinstance(rows["dropped"], dict) else [count for _, count in rows["dropped"]]
    return bool(rows["in"] + rows["created"] == rows["out"] + sum(dropped) + rows["quarantined"])


class TestNumbers:
    """Every number adds up."""

    @pytest.mark.parametrize("name", ["finished", "failed", "staged"])
    def test_rows_are_those_that_another_engine_counts(self, jobs: Jobs, name: str) -> None:
        page = read_page(jobs[name], NOW)
        assert page.head.rows["out"] == page.books[-1].rows_out == rows_by_duckdb(jobs[name])
        assert balanced(page.head.rows)

    @pytest.mark.parametrize("name", ["finished", "staged"])
    def test_they_are_those_of_the_summary(self, jobs: Jobs, name: str) -> None:
        page = read_page(jobs[name], NOW)
        summary = orjson.loads(Path(jobs[name], layout.SUMMARY).read_bytes())
        assert page.head.shards["done"] == summary["shards"]["done"] == page.books[-1].done
        last = page.books[-1]
        assert (last.rows_in, last.created, last.rows_out, last.quarantined) == tuple(
            summary["rows"][one] for one in ("in", "created", "out", "quarantined")
        )
        assert dict(last.dropped) == summary["rows"]["dropped"]
        assert (page.head.bytes_out, last.bytes_in) == (summary["bytes"]["out"], summary["bytes"]["in"])

    @pytest.mark.parametrize("name", ["finished", "failed", "staged", "running", "hostile"])
    def test_each_part_adds_up_with_the_others(self, jobs: Jobs, name: str) -> None:
        page = read_page(jobs[name], NOW)
        shards = page.head.shards
        assert sum(shards[one] for one in ("done", "running", "pending", "failed")) == shards["total"]
        for one in page.books:
            assert one.rows_in + one.created == one.rows_out + sum(n for _, n in one.dropped) + one.quarantined
        told = page.shards
        assert told is not None
        assert sum(told.counts.values()) == told.total == shards["total"]
        assert told.counts["done"] + told.counts["retried"] == shards["done"]
        assert told.counts["failed"] == shards["failed"] == sum(one.shards for one in page.failures)
        assert len(told.cells) in (0, told.total)
        assert sum(map(sum, told.bins)) in (0, told.total)

    def test_time_adds_up_to_what_shards_took(self, jobs: Jobs) -> None:
        """Slots in use over time are the slot-hours; rows read are those of the books."""
        page = read_page(jobs["running"], NOW)
        time, costs = page.time, page.costs
        assert time is not None
        assert costs is not None
        assert sum(time.slots) * time.span_s == pytest.approx(costs.slot_hours * 3600, rel=0.02)
        assert sum(time.rows_per_s) * time.span_s == pytest.approx(page.head.rows["in"], rel=0.02)
        assert (sum(time.lost), sum(time.failed), sum(time.retried)) == (50, 2, 0)
        assert costs.requests == page.runs[0].calls

    def test_time_covers_all_stages(self, jobs: Jobs) -> None:
        """Also of those that were removed when the job was complete, as the newest run's heartbeat has it."""
        page = read_page(jobs["staged"], NOW)
        time = page.time
        assert time is not None
        assert [one.name for one in time.stages] == [
            "stage 1 of 2: random_shuffle(seed=1): map", "stage 2 of 2: write",
        ]  # fmt: skip
        assert time.stages[0].start < time.stages[1].start <= time.stages[1].end <= time.start + 160 * time.span_s
        rows = sum(one.rows_in for one in page.books)
        assert sum(time.rows_per_s) * time.span_s == pytest.approx(rows, rel=0.05)

    def test_time_of_a_stage_that_is_at_work(self, tmp_path: Path) -> None:
        """What it has lost and tried again is known where its own ledger is not: on another machine's disk."""
        times = Times(NOW - 600, 10.0)
        for at, (seconds, rows) in enumerate([(100.0, 1_000), (200.0, 2_000)]):
            end_s = NOW - 400 + 100 * at
            times.done(end_s, at, ShardRecord(at, seconds, books=Books(rows_in=rows)), 10 * rows)
        times.failed(NOW - 450, 9, ShardRecord(3, 5.0, Failure(FailureKind.LOST, "node lost")), final=False)
        stages = [StageReport("0a", "sort: map", state="running", total=9, done=2), StageReport("", "write", ("0a",))]
        told = {"stage": "0a", "stages": [one.as_dict() for one in stages], "times": {"0a": times.as_dict()}}
        beat = heartbeat("running", started=NOW - 600, updated=NOW - 3, shards={"total": 9, "done": 2}, **told)
        make_job(str(tmp_path), total=0, done=0, runs={RUN: beat}, stages=[one.planned() for one in stages])
        time = read_page(str(tmp_path), NOW).time
        assert time is not None
        assert [(one.name, one.start, one.end) for one in time.stages] == [
            ("stage 1 of 2: sort: map", NOW - 500, NOW - 300)
        ]
        assert (sum(time.lost), sum(time.retried), sum(time.failed)) == (1, 0, 0)
        assert sum(time.rows_per_s) * time.span_s == pytest.approx(3_000, rel=0.02)
        assert sum(time.slots) * time.span_s == pytest.approx(305, rel=0.02)

    def test_what_a_run_says_is_there(self, jobs: Jobs) -> None:
        page = read_page(jobs["running"], NOW)
        assert page.head.state == "running"
        assert page.head.waits == "2 tasks wait for a node with 4 CPUs"
        assert page.head.eta_range_s == (3.8, 5.2)
        assert [(one.error, one.shards) for one in page.retrying] == [("service busy (HTTP 429)", 6)]
        assert [one.name for one in page.operators if one.limits] == ["map(clean)"]
        assert page.operators[1].share == 0.75
        assert [one.run_id for one in page.runs] == [RUN]

    def test_what_failed_can_be_run_again(self, jobs: Jobs) -> None:
        [group] = read_page(jobs["failed"], NOW).failures
        assert (group.error, group.shards, group.tries) == ("ValueError: row 25 is poison", 1, 4)
        assert group.commands[1:] == (
            f"curate replay {jobs['failed']} --shard s2",
            f"curate retry {jobs['failed']}",
        )
        assert "poison" in group.traceback

    @pytest.mark.slow
    @pytest.mark.usefixtures("no_backoff")
    def test_what_failed_of_a_dataset_is_shown_with_what_works(self, tmp_path: Path) -> None:
        """No run records where a dataset comes from: no command is offered that would need that."""
        made = curate.range(3).map(lambda row: {"n": 1 // row["id"]}).sort("n")
        out = str(tmp_path / "out")
        assert failed_write(made.write_parquet, out, backend="inline", max_failed_shards=0).state in (
            "failed",
            "aborted",
        )
        page = read_page(out, NOW)
        [group] = page.failures
        assert group.stage == "stage 1 of 2: sort(n): map"
        assert page.time is not None
        assert sum(page.time.failed) == 1
        assert [command.split()[1] for command in group.commands] == ["failures"]

    def test_rows_in_quarantine_are_shown(self, jobs: Jobs) -> None:
        rows = read_page(jobs["finished"], NOW).bad_rows
        assert sorted((one.shard, one.reason) for one in rows) == [(f"s{n}", "it ends in seven") for n in range(4)]

    @pytest.mark.parametrize("name", ["finished", "failed", "staged"])
    def test_rows_that_were_dropped_are_shown_by_reason(self, jobs: Jobs, name: str) -> None:
        """At most 20 of each stage and reason, each a row that was dropped; also of a stage that was removed."""
        page = read_page(jobs[name], NOW)
        known = {(one.key, reason): count for one in page.books for reason, count in one.dropped}
        assert {(one.stage, one.reason) for one in page.sampled} == known.keys()
        for one in page.sampled:
            assert len(one.rows) == min(MOST_SAMPLED, known[one.stage, one.reason])
            numbers = [[*orjson.loads(row.row).values()][-1] for row in one.rows]
            assert all(number % (3 if name == "staged" else 10) == 0 for number in numbers)

    def test_rows_of_one_reason_are_merged_over_shards(self, jobs: Jobs) -> None:
        [sampled] = read_page(jobs["finished"], NOW).sampled
        assert sorted(one.shard for one in sampled.rows) == ["s0", "s1", "s2", "s3"]

    def test_a_sample_that_cannot_be_read_is_said(self, jobs: Jobs, tmp_path: Path) -> None:
        out = tmp_path / "out"
        shutil.copytree(jobs["finished"], out)
        (out / layout.samples(shard_samples("s1"))).write_bytes(b"no zstd")
        page = read_page(str(out), NOW)
        assert sorted(one.shard for one in page.sampled[0].rows) == ["s0", "s2", "s3"]
        assert any("cannot read a sample of dropped rows" in one for one in page.notes)

    def test_numbers_lead_to_rows(self, jobs: Jobs) -> None:
        """And a number that leads nowhere says why."""
        page = read_page(jobs["finished"], NOW)
        assert b'href="#dropped-0"' in document(page)
        bare = document(replace(page, sampled=()))
        assert b"#dropped-0" not in bare
        assert b"the run kept no samples" in bare

    def test_rows_that_an_earlier_stage_set_aside_are_shown(self, tmp_path: Path) -> None:
        """They are known from the summary, when that stage is gone."""

        def odd(row: dict[str, int]) -> dict[str, int]:
            if row["id"] == 3:
                raise curate.BadRow("it is three")
            return row

        out = str(tmp_path / "out")
        curate.range(5).map(odd).sort("id").write_parquet(out, backend="inline")
        page = read_page(out, NOW)
        assert [one.reason for one in page.bad_rows] == ["it is three"]
        assert page.head.rows["quarantined"] == page.books[0].quarantined == 1

    def test_an_input_that_a_job_made_is_known(self, jobs: Jobs, tmp_path: Path) -> None:
        out = str(tmp_path / "after")
        curate.read_parquet(jobs["finished"]).write_parquet(out, backend="inline")
        lineage = read_page(out, NOW).lineage
        assert lineage is not None
        assert [(one.job, one.state, one.done, one.total) for one in lineage.upstream] == [("tenths", "complete", 4, 4)]
        assert (lineage.inputs, lineage.bytes) == (4, read_page(jobs["finished"], NOW).head.bytes_out)

    def test_a_known_job_that_reads_the_output_is_shown(self, jobs: Jobs, tmp_path: Path) -> None:
        out = tmp_path / "after"
        assert run_job(Tenths(), jobs["finished"], out).state == "complete"
        before = read_page(jobs["finished"], NOW).lineage
        assert before is not None
        assert [(one.output, one.state) for one in before.downstream] == [(str(out), "complete")]
        shutil.rmtree(out)
        gone = read_page(jobs["finished"], NOW).lineage
        assert gone is not None
        assert gone.downstream == ()

    def test_the_inputs_of_a_job_with_an_exchange(self, tmp_path: Path) -> None:
        """They are those that it began with, and not what its last stage reads."""
        write_jsonl(tmp_path / "in" / "a.jsonl", numbered(0, 10))
        out = str(tmp_path / "out")
        curate.read_json(str(tmp_path / "in")).sort("n").write_parquet(out, backend="inline")
        lineage = read_page(out, NOW).lineage
        assert lineage is not None
        assert (lineage.inputs, lineage.examples) == (1, (str(tmp_path / "in" / "a.jsonl"),))

    def test_the_model_is_json(self, jobs: Jobs) -> None:
        for output in jobs.values():
            told = orjson.loads(orjson.dumps(read_page(output, NOW).as_dict()))
            assert told["head"]["output"]


@pytest.fixture
def copy(jobs: Jobs, tmp_path: Path) -> Path:
    """A copy of the failed job, to be damaged."""
    return Path(shutil.copytree(jobs["failed"], tmp_path / "copy"))


def shown(output: Path) -> Page:
    """Returns the page of a job, which can be drawn too and says what is missing."""
    page = read_page(str(output), NOW)
    assert ("What this page cannot show" in document(page).decode()) == bool(page.notes)
    return page


class TestDamaged:
    """What can be shown is, with a word on what cannot."""

    @pytest.mark.parametrize(
        ("data", "says"),
        [
            (b'{"job": "ten', "is not JSON"),
            (b'{"format_version": 99, "job": "tenths"}', "format version 99"),
            (b"[]", "list"),
        ],
    )
    def test_a_record_that_is_none(self, copy: Path, data: bytes, says: str) -> None:
        (copy / layout.JOB).write_bytes(data)
        page = shown(copy)
        assert page.head.state == DAMAGED
        assert says in page.notes[-1]
        assert [one.state for one in page.runs] == ["failed"]
        assert page.costs is not None
        assert page.costs.slots == "slot-hours not known"

    def test_a_summary_that_is_none(self, jobs: Jobs, tmp_path: Path) -> None:
        copy = Path(shutil.copytree(jobs["finished"], tmp_path / "copy"))
        (copy / layout.SUMMARY).write_bytes(b'{"rows": 3')
        page = shown(copy)
        assert (page.head.state, page.head.job) == (DAMAGED, "tenths")
        assert "summary.json is not JSON" in page.notes[-1]

    def test_a_plan_that_is_cut_off(self, copy: Path) -> None:
        part = copy / layout.plan_part(0)
        part.write_bytes(part.read_bytes()[:100])
        page = shown(copy)
        assert (page.head.state, page.head.job) == (DAMAGED, "poisoned")
        assert "is not a part of a plan" in page.notes[-1]

    def test_events_that_are_cut_off(self, copy: Path) -> None:
        """Shards and rows are those of the outputs; only times are missing."""
        for path in copy.glob("_curate/runs/*/events-*"):
            path.write_bytes(path.read_bytes()[:20])
        page = shown(copy)
        assert page.head.shards["done"] == 3
        assert any("cannot read a segment of events" in one for one in page.notes)

    def test_runs_that_say_nothing(self, copy: Path) -> None:
        for name in ("run.json", "heartbeat.json"):
            for path in copy.glob(f"_curate/runs/*/{name}"):
                path.write_bytes(b"\x00\xff")
        page = shown(copy)
        assert page.head.shards["done"] == 3
        assert page.runs == ()

    def test_a_run_whose_record_is_gone(self, copy: Path) -> None:
        for path in copy.glob("_curate/runs/*/run.json"):
            path.write_bytes(b"{")
        page = shown(copy)
        assert [(one.who, one.command) for one in page.runs] == [("?", "")]
        assert any("cannot read the record of a run" in one for one in page.notes)

    @pytest.mark.parametrize("times", [None, 3, {"": 3}, {"": {"start": "x"}}, {"no stage": {"start": 1, "span_s": 1}}])
    def test_times_that_make_no_sense(self, jobs: Jobs, tmp_path: Path, times: Any) -> None:
        """Then the time is that of the events that are there: of the last stage."""
        copy = Path(shutil.copytree(jobs["staged"], tmp_path / "copy"))
        [path] = copy.glob("_curate/runs/*/heartbeat.json")
        path.write_bytes(orjson.dumps(orjson.loads(path.read_bytes()) | {"times": times}))
        page = shown(copy)
        assert page.time is not None
        assert [one.name for one in page.time.stages] == ["stage 2 of 2: write"]

    def test_nothing_at_all(self, tmp_path: Path) -> None:
        with pytest.raises(NoJobError, match="no curate job"):
            read_page(str(tmp_path), NOW)


class TestCosts:
    """Slot-hours and requests, in money where prices are given."""

    @pytest.fixture
    def prices(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("CURATE_HOME", str(tmp_path))
        return tmp_path / "prices.toml"

    def test_in_money(self, jobs: Jobs, prices: Path) -> None:
        prices.write_text('currency = "EUR"\nslot_hour = 0.5\n[per_1000_requests]\nget = 0.1\n')
        page = read_page(jobs["running"], NOW)
        assert page.costs is not None
        assert page.costs.currency == "EUR"
        assert page.costs.money == pytest.approx(page.costs.slot_hours * 0.5 + 4_000 / 1000 * 0.1)

    def test_without_prices(self, jobs: Jobs, prices: Path) -> None:
        assert not prices.exists()
        page = read_page(jobs["running"], NOW)
        assert page.costs is not None
        assert page.costs.money is None

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("slot_hour = -1", "not negative"),
            ("slot_hour = nan", "not negative"),
            ("slothour = 1", "unknown name 'slothour'"),
            ("[per_1000_requests]\nhead = 1", "unknown name 'head'"),
            ("per_1000_requests = 3", "not a table"),
            ('currency = ""', "short text"),
            ("=", "Invalid"),
        ],
    )
    def test_what_is_no_price_is_said(self, jobs: Jobs, prices: Path, text: str, says: str) -> None:
        prices.write_text(text)
        page = read_page(jobs["finished"], NOW)
        assert says in page.notes[-1]
        assert page.costs is not None
        assert page.costs.money is None


GOLDEN = Path(__file__).with_name("running.json")


def test_the_golden_model(jobs: Jobs) -> None:
    """The model of a ledger is what it was; where it changes on purpose, what was found is written into the file."""
    told = orjson.dumps(read_page(jobs["running"], NOW).as_dict(), option=orjson.OPT_INDENT_2).decode()
    found = told.replace(jobs["running"], "OUTPUT")
    assert orjson.loads(found) == orjson.loads(GOLDEN.read_bytes())


def test_no_number_of_a_model_is_wild(jobs: Jobs) -> None:
    """None is infinite, or none."""

    def numbers(value: Any) -> list[float]:
        if isinstance(value, dict):
            return [one for inner in value.values() for one in numbers(inner)]
        if isinstance(value, list | tuple):
            return [one for inner in value for one in numbers(inner)]
        return [value] if isinstance(value, int | float) else []

    pages: list[Page] = [read_page(output, NOW) for output in jobs.values()]
    assert all(map(math.isfinite, numbers([page.as_dict() for page in pages])))


def test_prices_that_cannot_be_read_raise() -> None:
    from curate.pages.costs import parse_prices

    with pytest.raises(ConfigError, match="slot_hour"):
        parse_prices({"slot_hour": "much"})


@pytest.mark.slow
class TestLarge:
    """A job of very many shards."""

    @pytest.fixture
    def total(self, mode: Mode) -> int:
        """Shards: a line for each would be many times what a page may have."""
        return 100_000 if mode is Mode.NIGHTLY else 20_000

    def test_its_page_is_small_and_its_events_are_read_once(self, total: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """However many shards, a page has at most 300 KB; each segment of events is read once."""
        root = f"memory://large-{id(self)}/out"
        lines = [event(rank) | {"time": NOW - 1000 + rank / 200} for rank in range(total)]
        beat = heartbeat("failed", started=NOW - 1000, updated=NOW, shards={"total": total, "failed": total})
        ledger = make_job(root, total=total, done=0, runs={RUN: beat})
        names = [layout.events_segment(RUN, number) for number in range(1, 6)]
        for number, name in enumerate(names):
            ledger.store.publish(ledger.uri(name), segment(lines[total // 5 * number : total // 5 * (number + 1)]))
        reads: list[str] = []

        def read(self: Ledger, names: Iterable[str], *wanted: Any) -> Any:
            asked = list(names)
            reads.extend(asked)
            return segments(self, asked, *wanted)

        segments = Ledger.events
        monkeypatch.setattr(Ledger, "events", read)
        page = read_page(root, NOW)
        assert sorted(reads) == names
        assert page.head.shards["failed"] == total
        assert (len(page.failures), page.more_failures) == (20, 6)
        assert len(document(page)) <= 300_000

    def test_some_of_its_samples_are_read(self, total: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """64 files at most, and among them those of a reason that few shards know; however hostile the rows, the page
        stays small."""
        root = f"memory://sampled-{id(self)}/out"
        beat = heartbeat("complete", started=NOW - 1000, updated=NOW, shards={"total": total, "done": total})
        reasons = [f"reason {number}" for number in range(29)]
        dropped = dict.fromkeys(reasons, total)
        beat["rows"] = {"in": 30 * total, "created": 0, "out": total, "dropped": dropped, "quarantined": 0}
        beat["rows"] |= {"dropped": {**dropped, "rare": 3}, "in": 30 * total + 3}
        ledger = make_job(root, total=total, done=total, runs={RUN: beat})
        row = DroppedRow("", 0, 300 * "<&", {"text": 10**7}, 0, "s")
        usual = [replace(row, reason=reason, hash=number) for reason in reasons for number in range(20)]
        files = {True: encode_samples([*usual, replace(row, reason="rare", hash=7)]), False: encode_samples(usual)}
        lines = []
        for rank in range(total):
            rare = rank % (2 * total // 5) == 7
            own = dict.fromkeys(reasons, 1) | ({"rare": 1} if rare else {})
            rows = {"in": 2, "created": 0, "out": 1, "dropped": own, "quarantined": 0}
            lines.append(done_event(rank, rows) | {"time": NOW - 1000 + rank / 200})
            ledger.store.publish(ledger.uri(layout.samples(shard_samples(f"s{rank:07d}"))), files[rare])
        for number in range(5):
            some = lines[total // 5 * number : total // 5 * (number + 1)]
            ledger.store.publish(ledger.uri(layout.events_segment(RUN, number + 1)), segment(some))
        monkeypatch.setattr(samples, "decode_samples", reading := Mock(wraps=samples.decode_samples))
        page = read_page(root, NOW)
        assert reading.call_count <= samples.MOST_FILES
        shown = {one.reason: len(one.rows) for one in page.sampled}
        assert shown["rare"] == 1
        assert len(shown) == 30
        assert len(document(page)) <= 300_000


def done_event(rank: int, rows: dict[str, Any]) -> dict[str, Any]:
    return {
        "outcome": "done", "index": rank, "shard": f"s{rank:07d}", "attempt": 1, "task": rank, "seconds": 1.0,
        "rows": rows, "counters": {}, "bytes_out": 4, "generation": "1",
    }  # fmt: skip


def event(rank: int) -> dict[str, Any]:
    return {
        "outcome": "failed", "index": rank, "shard": f"s{rank:07d}", "attempt": 1, "task": rank, "seconds": 1.0,
        "input": f"/in/{rank}", "kind": "user_error", "error": f"{chr(65 + rank % 26)}Error: no",
    }  # fmt: skip
