"""Rules of screens in a terminal: what somebody watches is seen, at any size; nothing is said that is not so."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from curate.cli import status as rendering
from curate.cli.status import show_job
from curate.cli.terminal import prose, show
from curate.observe.job import read_status
from curate.observe.summary_text import render
from tests.cli.running import Curate, curate
from tests.notify.test_message import summary
from tests.support.fakes import FakeClock
from tests.support.ledgers import heartbeat, make_job

__all__ = ["curate"]

RUN = "20231114T210000.000Z-abc123"
CLOCK = FakeClock()
SHARDS = [1, 100, 100_000]
Screen = Callable[..., list[str]]


def beat(total: int, done: int, **more: Any) -> dict[str, Any]:
    """Returns the heartbeat of a run about which there is much to say."""
    shards = {"total": total, "scope": total, "done": done, "running": min(8, total - done), "failed": total // 50}
    return heartbeat("running", started=CLOCK.now() - 3600, updated=CLOCK.now() - 4) | {
        "shards": shards,
        "rows": {"in": 10 * done, "created": 0, "out": 9 * done, "dropped": {"short": done}, "quarantined": 0},
        "counters": {f"counter {number}": 12_345.0 * number for number in range(12)},
        "operators": [
            {"name": f"map({word})", "rows_in": done, "rows_out": done, "wall_s": 300.0, "cpu_s": 150.0}
            for word in ("clean", "score", "keep", "write")
        ],
        "failures": [{"error": f"ValueError: {40 * 'word '}", "count": 2, "shard": "s1"} for _ in range(3)],
        "retrying": [{"error": "service busy (HTTP 429)", "count": 6, "shard": "s2"}],
        "rate": {"shards_per_s": 0.02, "rows_per_s": 0.4, "bytes_per_s": 0.0},
        "eta_range_seconds": [3000, 4000],
        "waits": "tasks wait: a node with 4 CPU exists, but other actors or tasks use it",
        "waits_since": CLOCK.now() - 900,
        **more,
    }


@pytest.fixture(scope="module")
def roots() -> dict[int, str]:
    """Ledgers of jobs of 1, 100 and 100,000 shards."""
    made = {}
    for total in SHARDS:
        made[total] = f"memory://screens/{total}"
        make_job(made[total], total=total, done=4 * total // 10, runs={RUN: beat(total, 4 * total // 10)})
    return made


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    """Returns the lines that a terminal of a size shows of a job; without colour."""

    def shown(root: str, columns: int, rows: int = 24, *, watched: bool = True) -> list[str]:
        file = io.StringIO()

        def console(**options: Any) -> Console:
            return Console(
                file=file, width=columns, height=rows, force_terminal=True, color_system=None, _environ={}, **options
            )

        class Once(FakeClock):
            def sleep(self, seconds: float) -> None:
                del seconds
                raise KeyboardInterrupt

        monkeypatch.setattr(rendering, "Console", console)
        show_job(root, Once(), as_json=False, watch_s=2.0 if watched else None)
        return re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", file.getvalue()).splitlines()

    return shown


@pytest.mark.slow
@pytest.mark.quick(4)
@pytest.mark.parametrize("total", SHARDS)
@pytest.mark.parametrize("columns", [80, 200])
def test_what_is_watched_fits_the_screen(roots: dict[int, str], screen: Screen, total: int, columns: int) -> None:
    """The head is never scrolled off; what has no room is counted, with the command that shows it."""
    lines = screen(roots[total], columns)
    taken = sum(-(-max(1, len(line)) // columns) for line in lines)
    assert taken <= 23
    assert lines[0].startswith("toxicity  running")
    assert re.fullmatch(rf"\.\.\. and \d+ more lines: curate status {roots[total]}", lines[-1])
    labels = [line[:10].strip() for line in lines[2:-1] if not line.startswith(" ")]
    assert labels[:6] == ["shards", "rate", "ETA", "waits", "retrying", "failed"]


@pytest.mark.parametrize("total", SHARDS)
def test_all_of_it_is_shown_once(roots: dict[int, str], screen: Screen, total: int) -> None:
    """Not watched, or on a large screen, nothing is cut."""
    everything = screen(roots[total], 80, watched=False)
    assert screen(roots[total], 80, 200) == everything
    assert everything[-2].startswith(f"run       {RUN} running for 1 h, last heartbeat")


def test_a_screen_of_one_line() -> None:
    """And of names that fill it many times over."""
    file = io.StringIO()
    console = Console(file=file, width=20, height=2, force_terminal=True, color_system=None, _environ={})
    show(console, lambda: console.print("w" * 500, soft_wrap=True), "curate status x")
    assert "more lines: curate status x" in file.getvalue()


@pytest.mark.parametrize(
    ("shards_per_s", "said"), [(0.02, "1.2 shards/min"), (0.0, "0 shards/s"), (50.0, "50 shards/s")]
)
def test_what_is_slow_is_not_shown_as_nothing(screen: Screen, shards_per_s: float, said: str) -> None:
    root = f"memory://screens/rate-{shards_per_s}"
    rate = {"shards_per_s": shards_per_s, "rows_per_s": 0.4, "bytes_per_s": 3.0}
    make_job(root, total=10, done=4, runs={RUN: beat(10, 4, rate=rate)})
    assert f"rate      {said}, 24 rows/min, 3 B/s" in screen(root, 200)


def test_a_run_that_stands_still_has_no_end_in_sight(screen: Screen) -> None:
    """A time left, beside the word that nothing moves, would be a lie."""
    root = "memory://screens/quiet"
    make_job(root, total=10, done=4, runs={RUN: beat(10, 4, last_end=CLOCK.now() - 2520)})
    lines = screen(root, 200)
    assert "ETA       unknown while no shard ends" in lines
    assert "progress  none: no shard has ended for 42 min" in lines
    waits = "waits     tasks wait: a node with 4 CPU exists, but other actors or tasks use it (for 15 min)"
    assert waits in lines
    found = read_status(root, CLOCK.now())
    assert (found.as_dict()["no_progress_seconds"], found.as_dict()["waits_since"]) == (2520.0, CLOCK.now() - 900)
    assert "42 min" in found._repr_html_()


def test_whole_counters_have_no_point(roots: dict[int, str], screen: Screen) -> None:
    """In a status and in a summary."""
    assert "counters  counter 0 = 0" in screen(roots[100], 200, 100)
    assert "          counter 11 = 135,795" in screen(roots[100], 200, 100)
    assert "  counter  half = 2" in render(summary()).splitlines()


def test_failures_and_status_say_the_same(curate: Curate, tmp_path: Path) -> None:
    """Where the ledger lacks what failed, as after a kill, it is not said that nothing has."""
    root = f"{tmp_path}/out"
    make_job(root, total=100, done=40, runs={RUN: beat(100, 40) | {"state": "failed"}})
    assert "58 pending, 2 failed" in curate("status", root).out
    said = "2 shards failed, and the ledger does not record why: run the job again"
    assert curate("failures", root).out.splitlines()[1:] == [said]


def test_sentences_are_wrapped_between_words() -> None:
    file = io.StringIO()
    prose(
        Console(file=file, width=20, force_terminal=True, color_system=None, _environ={}), "one two three four five six"
    )
    assert file.getvalue().splitlines() == ["one two three four", "five six"]
