"""Text from data does nothing to a terminal: whatever command shows it, and wherever it was planted."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest
import structlog
from rich.console import Console

from curate import log
from curate.cli import main
from curate.job.job import Job
from curate.ledger.compression import compress, decompress
from tests.cli.running import Curate
from tests.cli.running import curate as curate_
from tests.job.inline import run_job, write_jsonl

__all__ = ["curate_"]

EVIL = (
    "\x1b]52;c;cm0gLXJmIC8=\x07\x1b[2J\x9b31m[bold red]x[/bold red]\u202egnp.exe\u2066\u061c\u200b\u200f\x7f\x85\ufeff"
    "\r\x00\x08"
)
"""Fills the clipboard (OSC 52), clears the screen, colours by a C1 control, is markup of rich, and turns text round."""
ACTING = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
COMMANDS = ("status", "failures", "verify", "head", "quarantine", "logs")


class Evil(Job):
    """Fails of what it is given, quoting it; sets aside, counts, drops and logs it too."""

    version = "1"

    def process(self, batch: pa.Table) -> pa.Table:
        self.drop(1, "why " + EVIL)
        self.count("how " + EVIL, 1)
        sys.stdout.write(f"says {EVIL}\n")
        structlog.get_logger().warning(EVIL, field=EVIL)
        if "fail" in batch["id"].to_pylist():
            raise ValueError(f"cannot {EVIL}")
        return batch.slice(1)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A job of which one shard has failed, one has a bad row, and all hold what is evil."""
    rows = b"".join(orjson.dumps({"id": one, "text": EVIL}) + b"\n" for one in "ab")
    write_jsonl(tmp_path / "in" / "good.jsonl", rows + b"{broken " + EVIL.encode() + b"\n")
    write_jsonl(tmp_path / "in" / "bad.jsonl", [{"id": "fail", "text": EVIL}])
    run_job(Evil(max_bad_rows=5), tmp_path / "in", tmp_path / "out")
    return tmp_path / "out"


@pytest.mark.ci(6)
@pytest.mark.parametrize("command", [*COMMANDS, "failures --shard bad", "failures --all", "logs --shard good"])
@pytest.mark.parametrize("terminal", [True, False])
def test_commands_show_it_harmless(
    command: str, terminal: bool, place: Path, curate_: Curate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a terminal and elsewhere; the colours of curate's own are left."""
    if terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
    name, *rest = command.split()
    shown = curate_(name, str(place), *rest)
    # A bar of curate's own is drawn in place.
    drawn = re.sub("\x1b\\[[0-9;?]*[a-zA-Z]|\r", "", shown.err) if terminal else shown.err
    text = re.sub("\x1b\\[[0-9;]*m", "", shown.out) + drawn
    assert not ACTING.search(text), ascii(text)
    assert "\\x1b" in text or name == "verify", "it is shown"


AS_JSON = {
    "status": ["status OUTPUT", "status"],
    "failures": ["failures OUTPUT", "failures OUTPUT --all", "failures OUTPUT --shard bad"],
    "retry": ["retry OUTPUT --backend inline", "retry OUTPUT --dry-run"],
    "replay": ["replay OUTPUT --shard good", "replay OUTPUT --shard bad"],
    "verify": ["verify OUTPUT"],
    "head": ["head OUTPUT"],
    "quarantine": ["quarantine OUTPUT"],
    "logs": ["logs OUTPUT"],
    "diff": ["diff OUTPUT OUTPUT"],
    "page": ["page OUTPUT"],
    "report": ["report OUTPUT --backend inline"],
}
"""Every command with --json, and ways to have it print."""


@pytest.mark.usefixtures("no_backoff")
def test_json_is_harmless_and_the_same(
    place: Path, curate_: Curate, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of every command that has --json, a job's own too: nothing that acts is printed raw, and whoever parses it finds
    what was there."""
    assert set(AS_JSON) == {
        name for name, one in main.cli.commands.items() if any("--json" in option.opts for option in one.params)
    }
    printed = {
        way: curate_(*way.replace("OUTPUT", str(place)).split(), "--json").out
        for ways in AS_JSON.values()
        for way in ways
    }
    for flags in ([], ["--dry-run"]):
        name = " ".join(["job", *flags])
        where = ["--input", str(place.parent / "in"), "--output", str(place)]
        monkeypatch.setattr(
            "sys.argv", ["evil", *where, "--backend", "inline", "--max-bad-rows", "5", "--json", *flags]
        )
        with pytest.raises(SystemExit):
            Evil.main()
        printed[name] = capsys.readouterr().out
    # What these tell is nobody's text.
    silent = ["status", "retry OUTPUT --dry-run", "verify OUTPUT", "job --dry-run", "diff OUTPUT OUTPUT"]
    # And this one tells texts as the page shows them.
    silent.append("page OUTPUT")
    for way, text in printed.items():
        assert not ACTING.search(text), (way, ascii(text))
        values = [orjson.loads(line) for line in text.splitlines()]
        assert values, way
        assert way in silent or EVIL in "".join(map(_joined, values)), way


def _joined(value: Any) -> str:
    """Returns all texts in a value."""
    match value:
        case dict():
            return "".join(map(_joined, [*value.keys(), *value.values()]))
        case list():
            return "".join(map(_joined, value))
    return value if isinstance(value, str) else ""


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", ["heartbeat.json", "job.json", "failures", "events"])
def test_ledgers_by_others_are_shown_harmless(name: str, place: Path, curate_: Curate) -> None:
    """Every text of a file of the ledger is evil: it is refused, or shown harmless."""
    for path in place.rglob("*"):
        if name in str(path.relative_to(place)) and path.name.endswith(".json"):
            value = orjson.loads(path.read_bytes())
            keep = ("suffix", "format", "codec", "state", "pid_started")
            path.write_bytes(orjson.dumps({key: one if key in keep else texts(one) for key, one in value.items()}))
        elif name in str(path.relative_to(place)) and path.name.endswith(".jsonl.zst"):
            lines = [orjson.loads(line) for line in decompress(path.read_bytes()).splitlines()]
            keep = ("outcome", "shard", "generation")
            spoiled = [{key: one if key in keep else texts(one) for key, one in line.items()} for line in lines]
            path.write_bytes(compress(b"".join(orjson.dumps(line) + b"\n" for line in spoiled)))
    for command in (*COMMANDS, "failures --shard bad"):
        command_name, *rest = command.split()
        shown = curate_(command_name, str(place), *rest)
        assert shown.code in (0, 1, 2)
        assert not ACTING.search(shown.out + shown.err), ascii(shown.out + shown.err)


def texts(value: Any) -> Any:
    """Returns a value with evil at the end of each text in it."""
    match value:
        case dict():
            return {name: texts(one) for name, one in value.items()}
        case list():
            return [texts(one) for one in value]
        case str():
            return value + EVIL
    return value


def test_errors_are_shown_harmless(tmp_path: Path, curate_: Curate) -> None:
    """An error quotes what was given and what was found."""
    shown = curate_("status", str(tmp_path / "\x1b]0;x\x07"))
    assert shown.code == 2
    assert not ACTING.search(shown.err)
    shown = curate_("head", str(tmp_path), "--shard", EVIL.replace("\x00", ""))
    assert not ACTING.search(shown.err)


class Terminal(io.StringIO):
    """Standard error that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("terminal", [True, False])
def test_logs_are_harmless(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Events, their fields, and tracebacks."""
    screen = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", screen)
    log.configure()
    try:
        raise ValueError(EVIL)
    except ValueError:
        log.get_logger(job=EVIL).warning(EVIL, field=EVIL, many=[EVIL], exc_info=True)
    text = re.sub("\x1b\\[[0-9;]*m", "", screen.getvalue())
    assert "red]x" in text
    assert not ACTING.search(text.replace("\n", "")), ascii(text)


@pytest.mark.parametrize(
    ("variable", "value"),
    [("NO_COLOR", "1"), ("NO_COLOR", ""), ("TERM", "dumb"), ("TERM", "unknown"), ("TERM", "xterm"), ("TERM", "")],
)
def test_logs_have_colours_where_all_else_has(variable: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Events are not printed by rich, which prints all else and knows what people ask for."""
    for one in ("NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(one, raising=False)
    monkeypatch.setenv(variable, value)
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    console = Console(file=screen)
    log.configure()
    log.get_logger(job="a").info("an event", field="b")
    assert ("\x1b" in screen.getvalue()) == (console.color_system is not None and not console.no_color)


def test_a_job_of_an_evil_name_shows_its_progress_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    """Lines that are drawn in place: the job's name, a stage's, an operator's."""
    from curate.observe.metrics import OperatorMetrics, PipelineMetrics, Role
    from curate.observe.progress import LiveDisplay, Progress
    from curate.pipeline.meters import Meter

    rate = {"shards_per_s": 1.0, "rows_per_s": 5.0, "bytes_per_s": 2048.0}
    steps = tuple(OperatorMetrics(EVIL, Role.STEP, Meter(rows_out=1)) for _ in range(2))
    shown = LiveDisplay()
    for stage in (f"stage 1 of 2: {EVIL}", f"stage 2 of 2: {EVIL}"):
        shown.show(Progress(EVIL, 4, 2, 1, 0, 10, rate, (2.0, 3.5), PipelineMetrics(steps), stage))
    shown.close(Progress(EVIL, 4, 4, 0, 0, 10, rate, None, PipelineMetrics(steps), stage))
    text = re.sub("\x1b\\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().err).replace("\r", "")
    assert "red]x" in text
    assert not ACTING.search(text), ascii(text)
