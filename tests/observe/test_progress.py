"""What a run shows while it goes on."""

from __future__ import annotations

import io
import sys
from dataclasses import replace

import pytest
import structlog

from curate.observe.metrics import Flow, OperatorMetrics, PipelineMetrics, Role
from curate.observe.progress import Display, LiveDisplay, LogDisplay, Progress, RowRates, operator_lines
from curate.pipeline.meters import Meter
from curate.runtime.protocol import PoolState


def progress(
    done: int = 620_000, eta: tuple[float, float] | None = (88_765.0, 98_765.0), job: str = "toxicity"
) -> Progress:
    rate = {"shards_per_s": 123.4, "rows_per_s": 1_234_567.0, "bytes_per_s": 123_456_789.0}
    return Progress(job, 1_000_000, done, 16, 3, 10**9, rate, eta)


def test_one_line_says_it_all() -> None:
    """Shards, rows/s, MB/s, running, failed, ETA."""
    assert progress().text() == (
        "620,000/1,000,000 shards, 16 running, 3 failed, 1,234,567 rows/s, 118 MiB/s, ETA 24-28 h"
    )
    assert progress(eta=None).text().endswith("ETA unknown")


def test_without_a_terminal_it_is_a_log_line() -> None:
    """One every 30 s: a log of a week stays readable."""
    with structlog.testing.capture_logs() as logs:
        LogDisplay().show(progress())
    assert LogDisplay.interval_s == 30.0
    assert logs == [{"job": "toxicity", "event": "progress", "log_level": "info", "shards": progress().text()}]


def test_what_there_is_no_place_for_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a log line's own field, and in a line of its own on a terminal; nothing of it while nothing waits."""
    waits = "tasks wait: no node has 1 CPU; no node is alive"
    with structlog.testing.capture_logs() as logs:
        LogDisplay().show(replace(progress(), waits=waits))
    assert [one["waits"] for one in logs] == [waits]
    monkeypatch.setattr("sys.stderr", shown := io.StringIO())
    display = LiveDisplay()
    display.show(replace(progress(), waits=waits))
    display.close(replace(progress(), waits=waits))
    assert waits in shown.getvalue()


def test_it_fits_80_columns_and_says_whole_why_nothing_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long name leaves room for the bar. On which node, and for how long, stands at the end of what it waits for."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr("sys.stderr", shown := io.StringIO())
    waits = "the last 3 shards; longest runs RC_2024-01.jsonl.gz-00012-of-00400 on worker-17.internal (for 12 min)"
    retrying = "6 shards are being retried: service busy (HTTP 429 from https://scores/v1/score); next try in 20 s"
    now = replace(progress(job="deduplicated_comments_of_2024_in_english"), waits=waits, retrying=retrying)
    now = replace(now, rows_running=1)
    display = LiveDisplay()
    display.show(now)
    display.close(now)
    lines = shown.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    text = " ".join(line.strip() for line in lines)
    assert waits in text
    assert retrying in text
    assert "1 row so far" in text
    assert any(line.count("\u2501") >= 10 for line in lines)


def test_called_from_code_it_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """Neither stream is touched."""
    display = Display()
    display.show(progress())
    display.close(progress())
    assert capsys.readouterr() == ("", "")


def test_the_bar_moves_by_bytes() -> None:
    """One large shard is most of the work, however many small ones there are; by shards where inputs have no bytes."""
    shown = replace(progress(), bytes_done=25, bytes_total=100)
    assert (shown.part, progress().part) == (0.25, 0.62)
    assert replace(shown, bytes_done=100).part < 1.0, "the last shard is not done"
    assert replace(shown, done=shown.total, bytes_done=100).part == 1.0


@pytest.mark.parametrize("columns", [80, 120])
def test_on_a_terminal_everything_fits(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In two lines of 80 columns, and nothing on standard output, which belongs to results."""
    screen, out = io.StringIO(), io.StringIO()
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(sys, "stdout", out)
    display = LiveDisplay()
    display.close(progress())
    display.show(progress(job="[red]odd[/red]"))
    display.close(progress(done=999_999, job="[red]odd[/red]"))
    lines = [line.rstrip() for line in screen.getvalue().splitlines() if line.strip()]
    assert len(lines) == 2
    assert " [red]odd[/red] " in lines[0]
    assert lines[0].endswith(" 99% 999,999/1,000,000 shards")
    assert lines[1] == "  16 running, 3 failed, 1,234,567 rows/s, 118 MiB/s, ETA 24-28 h"
    assert max(map(len, lines)) <= columns
    assert out.getvalue() == ""


# Operators


def operators(rows: int, pool: PoolState | None = None) -> tuple[OperatorMetrics, ...]:
    return (
        OperatorMetrics("read", Role.READ, Meter(rows_out=rows)),
        OperatorMetrics(
            "map_batches(A very long name of a model)", Role.STEP, Meter(rows_in=rows, rows_out=rows), pool
        ),
        OperatorMetrics("write", Role.WRITE, Meter(rows_in=rows)),
    )


def test_rates_are_those_of_the_last_seconds() -> None:
    """Of what was written, the rows in. What went on before the last ten seconds, or so, is forgotten."""
    rates = RowRates()
    assert rates.look(0.0, operators(0)) == [0.0, 0.0, 0.0]
    assert rates.look(2.0, operators(200)) == [100.0, 100.0, 100.0]
    for second in range(3, 30):
        last = rates.look(float(second), operators(200))
    assert last == [0.0, 0.0, 0.0]
    assert rates.look(30.0, ()) == []


@pytest.mark.parametrize(("columns", "pooled"), [(80, True), (120, True), (80, False)])
def test_a_run_of_several_operators_has_a_line_for_each(
    columns: int, pooled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below the two, where there is a pool or more than one step; not for a job that is one step in its tasks."""
    screen = io.StringIO()
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(sys, "stderr", screen)
    pool = PoolState("map", 2, 1, 4, 0.97) if pooled else None
    shown = replace(progress(), measured=PipelineMetrics(operators(1_234_567_890, pool)))
    display = LiveDisplay()
    display.show(shown)
    display.close(shown)
    lines = [line.rstrip() for line in screen.getvalue().splitlines() if line.strip()]
    assert max(map(len, lines)) <= columns
    assert len(lines) == (5 if pooled else 2)
    if pooled:
        assert lines[2] == "  read                        1,234,567,890 rows         0/s"
        assert lines[3].startswith("  map_batches(A very long...  1,234,567,890 rows         0/s  2 actors 97 %")
        assert lines[3].endswith("(1 starting), 4 calls queued") is (columns == 120)


def test_what_is_on_its_way_to_a_consumer() -> None:
    """Tasks, blocks and bytes against the budget; before there is a stream, that it starts."""
    flow = Flow(queued=1, queued_bytes=3 << 20, budget_bytes=512 << 20)
    assert list(operator_lines(PipelineMetrics(running=1, flow=flow), [])) == [
        "1 task, 1 block queued, 3.00 MiB of 512 MiB"
    ]
    assert list(operator_lines(PipelineMetrics(flow=Flow()), [])) == ["starting"]
    assert list(operator_lines(PipelineMetrics(), [])) == []
