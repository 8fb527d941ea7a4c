"""What a run shows while it goes on."""

from __future__ import annotations

import io
import sys

import pytest
import structlog

from curate.tasks.progress import LiveDisplay, LogDisplay, NoDisplay, Progress


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


def test_called_from_code_it_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """Neither stream is touched."""
    display = NoDisplay()
    display.show(progress())
    display.close(progress())
    assert capsys.readouterr() == ("", "")


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
