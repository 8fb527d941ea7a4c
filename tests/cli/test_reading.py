"""`curate verify`, `head`, `quarantine` and `logs`: what they print, fitted to the terminal and safe for it."""

from __future__ import annotations

import datetime
import io
import re
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from rich.cells import cell_len
from rich.console import Console

import curate
from curate.cli import head, logs, quarantine, verify
from curate.cli.logs import show_logs
from curate.cli.main import main
from curate.job.job import Job
from curate.ledger import layout
from curate.ledger.compression import compress
from curate.observe.job import find_job
from curate.stores import memory
from curate.stores.open import open_store
from curate.tasks.books import Books
from tests.cli.running import check_light
from tests.job.inline import numbered, run_job, write_jsonl
from tests.support.fakes import FakeClock
from tests.support.gcs_emulator import GcsEmulator
from tests.support.ledgers import heartbeat, make_job, make_ledger

EVIL = "\x1b]0;owned\x07[red]no\r\x08\u202e[/]"
RUN = "20240101T000000.000Z-abc123"
NEWER = "20240102T000000.000Z-abc123"


class Kept(Job):
    """Keeps rows, sets those aside that are no numbers, and talks about it."""

    version = "1"
    max_bad_rows = "100%"

    def process(self, batch: pa.Table) -> pa.Table:
        for number, n in enumerate(batch["n"].to_pylist()):
            if n % 5 == 4:
                self.quarantine({"n": n}, f"{n % 10} {EVIL}")
                batch = batch.filter(pa.array([value != n for value in batch["n"].to_pylist()]))
            self.log.debug("row", number=number)
        return batch


@pytest.fixture(params=["parquet", "jsonl"])
def format(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def out(tmp_path: Path, format: str) -> str:
    for shard in range(3):
        write_jsonl(tmp_path / "in" / f"s{shard}.jsonl", numbered(10 * shard, 10 * shard + 10))
    assert run_job(Kept(format=format), tmp_path / "in", tmp_path / "out").state == "complete"
    return str(tmp_path / "out")


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `curate` with these arguments in this process; returns exit code, standard output and standard error."""

    def call(*args: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["curate", *args])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), *capsys.readouterr()

    return call


class Terminal:
    """What a terminal of some width is sent."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, columns: int = 80) -> None:
        self.file = io.StringIO()

        def console(**options: Any) -> Console:
            if options.pop("stderr", False):
                return Console(file=io.StringIO())
            return Console(file=self.file, width=columns, force_terminal=True, color_system=None, **options)

        for module in (head, quarantine, logs, verify):
            monkeypatch.setattr(module, "Console", console)

    def lines(self) -> list[str]:
        return self.file.getvalue().split("\n")[:-1]


def harmless(text: str) -> bool:
    return all(character.isprintable() or character == "\n" for character in text)


# curate verify


def test_a_job_that_is_well_is_exit_0(out: str, run: Run) -> None:
    """With what was read, and its books."""
    code, text, err = run("verify", out)
    assert (code, err) == (0, "")
    lines = text.splitlines()
    assert lines[0] == f"kept  ok  {out}"
    assert lines[1].startswith("outputs   3 of 3 read, ")
    assert lines[2:] == ["rows      30 in + 0 created = 24 out + 0 dropped + 6 quarantined"]
    code, text, _ = run("verify", out, "--json")
    assert (code, orjson.loads(text)["state"]) == (0, "ok")


def test_what_is_off_is_told_with_object_and_reason(out: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 1, and what to do about it; many of a kind are counted."""
    for number in range(15):
        (Path(out) / f"{number:02d} {EVIL.replace('/', '')}").write_bytes(b"x")
    (damaged,) = Path(out).glob("s1.*")
    damaged.write_bytes(damaged.read_bytes()[:-20])
    code, text, err = run("verify", out)
    assert (code, err) == (1, "")
    assert harmless(text)
    assert f"kept  damaged  {out}\n" in text
    assert "foreign   objects that are not of this job: 15\n          00 \\x1b]0;owned" in text
    assert "          ... and 5 more\n" in text
    assert f"          {damaged.name}: " in text
    assert text.splitlines()[-2:] == [
        f"next      remove {damaged.name}; then run the job again: it makes only that again",
        "          move the objects that are not of this job elsewhere, because readers of the output read them too",
    ]
    code, text, _ = run("verify", out, "--json")
    assert (code, orjson.loads(text)["problems"]["foreign"]) == (1, 15)
    terminal = Terminal(monkeypatch)
    run("verify", out)
    assert max(map(len, terminal.lines()[1:])) <= 80


def test_an_incomplete_job_is_exit_1_and_says_so(out: str, run: Run) -> None:
    """Whether outputs or only the end are missing."""
    (Path(out) / layout.SUMMARY).unlink()
    code, text, _ = run("verify", out)
    assert code == 1
    assert text.splitlines()[0] == f"kept  incomplete  {out}"
    assert text.splitlines()[-1] == (
        "next      all outputs are there, but no run has finished the job; run it again, which takes a moment"
    )
    next(Path(out).glob("s1.*")).unlink()
    assert "next      1 output is missing; run the job again to produce it" in run("verify", out)[1]


def test_an_output_that_is_gone_is_made_anew(out: str, run: Run) -> None:
    """By the same command as ever."""
    for path in Path(out).glob("s[01].*"):
        path.unlink()
    code, text, _ = run("verify", out)
    assert code == 1
    assert text.splitlines()[-1] == "next      2 outputs are missing; run the job again to produce them"


def test_a_job_that_is_at_work_is_let_go_on(root: str, run: Run) -> None:
    """Nobody is told to run it a second time."""
    ledger = make_ledger(root)
    for shard in ledger.list().objects["name"].to_pylist():
        ledger.store.delete(ledger.uri(shard))
    beat = heartbeat("running", started=time.time(), updated=time.time())
    ledger.store.replace(ledger.uri(layout.run_file(NEWER, "heartbeat.json")), orjson.dumps({**beat, "run_id": NEWER}))
    code, text, _ = run("verify", root)
    assert code == 1
    assert text.splitlines()[-1] == (
        "next      a run is going on and its outputs so far are fine; verify again when it has ended"
    )


@pytest.mark.parametrize("at_work", [False, True])
def test_nothing_is_to_be_removed_while_a_run_is_going_on(out: str, run: Run, at_work: bool) -> None:
    """Rows that a redo has set aside are published before the output that names them: who removed the file as advised
    lost them."""
    (Path(out) / layout.SUMMARY).unlink()
    store = open_store(out, f"{out}/{layout.TMP}1")
    store.publish(f"{out}/{layout.QUARANTINE}0a1b2c3d4e5f6071.jsonl.zst", compress(b"{}\n"))
    beat = heartbeat("running" if at_work else "interrupted", started=time.time(), updated=time.time())
    run_id = "29990101T000000.000Z-abc123"
    store.publish(f"{out}/{layout.run_file(run_id, 'run.json')}", b"{}")
    store.replace(f"{out}/{layout.run_file(run_id, 'heartbeat.json')}", orjson.dumps({**beat, "run_id": run_id}))
    code, text, _ = run("verify", out)
    assert (code, "no output names it" in text) == (1, True)
    assert (": remove nothing; verify again when it has ended" in text, "remove _curate" in text) == (
        at_work,
        not at_work,
    )


@pytest.mark.parametrize("command", ["verify", "head", "quarantine", "logs"])
@pytest.mark.parametrize("bad", ["swift://bucket/x", "/nowhere/at/all"])
def test_no_job_is_exit_2(command: str, bad: str, run: Run) -> None:
    """One line on standard error."""
    code, text, err = run(command, bad)
    assert (code, text, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: ")


# curate head


def test_the_first_rows_are_those_of_the_plan(out: str, run: Run) -> None:
    """Over shards, as a table; nothing is cut where there is no terminal."""
    code, text, err = run("head", out, "-n", "9")
    assert (code, err) == (0, "")
    lines = text.splitlines()
    assert lines[0] == f"kept  {out}"
    assert lines[1].split() == ["id", "text", "n"]
    assert [line.split()[0] for line in lines[2:-1]] == ["r0", "r1", "r2", "r3", "r5", "r6", "r7", "r8", "r10"]
    assert lines[-1] == "rows      9, of s0, s1"


def test_rows_as_json_are_one_object_a_line(out: str, run: Run) -> None:
    """As many as there are; columns and shard as asked."""
    code, text, err = run("head", out, "--json", "-n", "1000")
    assert (code, err) == (0, "")
    expected = [row for row in numbered(0, 30) if row["n"] % 5 != 4]
    assert [orjson.loads(line) for line in text.splitlines()] == expected
    _, text, _ = run("head", out, "--json", "--columns", "n, id", "--shard", "s2", "-n", "2")
    assert text == '{"n":20,"id":"r20"}\n{"n":21,"id":"r21"}\n'


class Parted(Job):
    """Copies odd rows to an extra output."""

    version = "1"
    sides = ("odd",)

    def process(self, batch: pa.Table) -> dict[str, pa.Table]:
        odd = pc.equal(pc.bit_wise_and(batch["n"], 1), 1)
        return {"main": batch.filter(pc.invert(odd)), "odd": batch.filter(odd)}


def test_the_rows_of_an_extra_output(tmp_path: Path, run: Run) -> None:
    """It is named, and shown if it is asked for; of a shard, too."""
    for shard in range(2):
        write_jsonl(tmp_path / "in" / f"s{shard}.jsonl", numbered(4 * shard, 4 * shard + 4))
    out = str(tmp_path / "out")
    assert run_job(Parted(), tmp_path / "in", tmp_path / "out").state == "complete"
    assert "extra     outputs, shown with --side NAME: odd" in run("head", out)[1]
    shown = run("head", out, "--side", "odd", "--columns", "n", "--json")[1]
    assert shown == '{"n":1}\n{"n":3}\n{"n":5}\n{"n":7}\n'
    assert run("head", out, "--side", "odd", "--shard", "s1", "--columns", "n", "--json")[1] == '{"n":5}\n{"n":7}\n'
    code, _, err = run("head", out, "--side", "odds")
    assert (code, "has no extra output 'odds'; did you mean 'odd'?; it has 'odd'" in err) == (2, True)
    (tmp_path / "out" / "_side" / "odd" / "s0.parquet").unlink()
    assert run("head", out, "--side", "odd", "--columns", "n", "--json")[1] == '{"n":5}\n{"n":7}\n'


def test_unknown_columns_and_shards_are_exit_2(out: str, run: Run) -> None:
    """With what was meant."""
    code, text, err = run("head", out, "--columns", "texd")
    assert (code, text) == (2, "")
    assert "there is no column 'texd'; did you mean 'text'?; there are 'id', 'text', 'n'" in err
    code, _, err = run("head", out, "--shard", "s7")
    assert code == 2
    assert "has no shard 's7'; a shard is called like its output without" in err
    assert "for example 's0', 's1'" in err
    next(Path(out).glob("s1.*")).unlink()
    code, _, err = run("head", out, "--shard", "s1")
    assert code == 2
    assert f"shard 's1' of {out} has no output; see: curate failures {out} --shard s1" in err


def test_an_unfinished_job_shows_what_is_there(out: str, run: Run) -> None:
    """In the order of its plan, and says that it is not all."""
    next(Path(out).glob("s0.*")).unlink()
    lines = run("head", out, "-n", "1")[1].splitlines()
    assert lines[2].startswith("r10 ")
    assert lines[-1] == "outputs   2 of 3 are there"


class Odd(Job):
    """Makes rows of everything."""

    version = "1"
    output_schema = pa.schema(
        [
            ("id", pa.int64()),
            (EVIL, pa.string()),
            ("when", pa.timestamp("ns", tz="UTC")),
            ("bytes", pa.binary()),
            ("nested", pa.list_(pa.struct([("x", pa.float64())]))),
        ]
        + [(f"column {number}", pa.string()) for number in range(20)]
    )

    def process(self, batch: pa.Table) -> pa.Table:
        rows = [
            {
                "id": n,
                EVIL: EVIL * 50,
                "when": datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC),
                "bytes": b"\x00\x1b",
                "nested": [{"x": 1.5}],
                **{f"column {number}": "word " * 10 for number in range(20)},
            }
            for n in batch["n"].to_pylist()
        ]
        return pa.Table.from_pylist(rows, schema=self.output_schema)


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_a_table_fits_the_terminal(
    columns: int, format: str, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values are shortened; columns without room are named. Nothing of the data acts on the terminal."""
    write_jsonl(tmp_path / "in" / "s0.jsonl", numbered(0, 3))
    run_job(Odd(format=format), tmp_path / "in", tmp_path / "out")
    terminal = Terminal(monkeypatch, columns)
    assert run("head", str(tmp_path / "out"))[0] == 0
    lines = terminal.lines()
    assert all(harmless(line) and line == line.rstrip() for line in lines)
    table = lines[1:5]
    assert max(map(len, lines[1:])) <= columns
    assert [row.split()[0] for row in table] == ["id", "0", "1", "2"]
    assert "\\x1b]0;own" in table[1]
    left_out = " ".join(line.strip() for line in lines[5:])
    assert "more, choose with --columns A,B: " in left_out
    assert "column 18" in left_out
    assert ("column 0" in left_out) == (columns < 80)


class Wide(Job):
    """Passes through texts whose characters take two columns of a terminal."""

    version = "1"

    def process(self, batch: pa.Table) -> pa.Table:
        return batch


def test_characters_that_take_two_columns_are_shown_whole(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as there is room for them, and no longer: lines fit the terminal all the same."""
    write_jsonl(tmp_path / "in" / "s0.jsonl", [{"題": "日本語テスト", "fox": "🦊🦊", "long": "語" * 100}])
    run_job(Wide(), tmp_path / "in", tmp_path / "out")
    terminal = Terminal(monkeypatch, 80)
    assert run("head", str(tmp_path / "out"))[0] == 0
    head, row = terminal.lines()[1:3]
    assert row.split()[:2] == ["日本語テスト", "🦊🦊"]
    assert row.split()[2].startswith("語" * 20)
    assert cell_len(row) <= 80
    assert cell_len(head[: head.index("fox")]) == cell_len(row[: row.index("🦊")])


def test_an_output_without_rows_is_said(tmp_path: Path, run: Run, format: str) -> None:
    """No table, no error."""
    write_jsonl(tmp_path / "in" / "s0.jsonl", b"")
    run_job(Odd(format=format), tmp_path / "in", tmp_path / "out")
    assert run("head", str(tmp_path / "out"))[1].splitlines()[1:] == ["rows      0"]


# curate quarantine


def test_rows_that_were_set_aside_are_counted_by_reason_and_shown(out: str, run: Run) -> None:
    """The most frequent reason first; then rows with shard, position in its input and reason."""
    code, text, err = run("quarantine", out, "-n", "4")
    assert (code, err) == (0, "")
    assert harmless(text)
    lines = text.splitlines()
    assert lines[1] == "rows      6 set aside, of 3 shards"
    assert lines[2].startswith("reasons   3 x 4 \\x1b]0;owned")
    assert lines[3].startswith("          3 x 9 \\x1b]0;owned")
    assert lines[5].split() == ["shard", "at", "reason", "row"]
    assert [line.split()[0] for line in lines[6:10]] == ["s0", "s0", "s1", "s1"]
    assert lines[10:] == ["... and 2 more: -n 6, or --json"]


def test_rows_are_chosen_by_shard_and_reason(out: str, run: Run) -> None:
    """As JSON all of them, or as many as asked for."""
    rows = [orjson.loads(line) for line in run("quarantine", out, "--json")[1].splitlines()]
    assert [(row["shard"], orjson.loads(row["row"])["n"]) for row in rows] == [
        (f"s{n // 10}", n) for n in range(4, 30, 5)
    ]
    assert all(row.keys() == {"shard", "input", "line", "at", "reason", "row"} for row in rows)
    assert all(row["line"] is None for row in rows), "the job's own code set them aside"
    chosen = run("quarantine", out, "--json", "--shard", "s1", "--reason", "OWNED")[1].splitlines()
    assert [orjson.loads(line)["shard"] for line in chosen] == ["s1", "s1"]
    assert run("quarantine", out, "--json", "--reason", "9 ", "-n", "1")[1].count("\n") == 1
    assert run("quarantine", out, "--reason", "nothing like it")[1].splitlines()[1:] == ["rows      0 of 6 set aside"]
    assert run("quarantine", out, "--shard", "s9")[0] == 2


def test_rows_that_cannot_be_read_are_shown_with_their_place_in_the_input(tmp_path: Path, run: Run) -> None:
    """The line; of a slice of a file, counted from where that begins."""
    good = b'{"n": 1}\n'
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.jsonl").write_bytes(good + b"\n{bad\n" + good)
    (tmp_path / "in/c.jsonl").write_bytes(good * 200 + b"{worse\n")
    run_job(Kept(shard_bytes=1024), tmp_path / "in", tmp_path / "out")
    text = run("quarantine", str(tmp_path / "out"), "--reason", "malformed")[1]
    places = [re.split(r"  +", one)[:2] for one in text.splitlines() if one.startswith(("a ", "c.part"))]
    assert places == [["a", "line 3"], ["c.part-00001-of-00002", "line 100 from byte 903"]]
    rows = map(orjson.loads, run("quarantine", str(tmp_path / "out"), "--json")[1].splitlines())
    found = {Path(row["input"]).name: row for row in rows if row["line"]}
    assert (found["a.jsonl"]["line"], "slice" in found["a.jsonl"]) == (3, False)
    assert found["c.jsonl"]["slice"] == {"kind": "bytes", "start": 903, "stop": 1807}


def test_it_says_which_type_holds_the_values_that_were_set_aside(tmp_path: Path, run: Run) -> None:
    """Declared so, none is; and where there is no such type, that is said. The second of many files is not sampled."""

    def next_of(out: Path) -> list[str]:
        lines = run("quarantine", str(out))[1].splitlines()
        first = next(number for number, one in enumerate(lines) if one.startswith("next"))
        return [one[10:] for one in lines[first : lines.index("")]]

    row = {"n": 1, "f": 0.5, "t": "a", "d": {"x": 1}}
    odd: list[dict[str, Any]] = [{"n": 0.5}, {"n": 2**63}, {"f": "b"}, {"t": 5}, {"d": {"x": 1.5}}, {"d": [1]}]
    for number in range(20):
        rows = [{**row, **one} for one in odd] if number == 1 else [row]
        write_jsonl(tmp_path / f"j/{number:02d}.jsonl", b"".join(orjson.dumps(one) + b"\n" for one in rows))
        (tmp_path / f"{number:02d}.csv").write_text("id,c\n" + ("x,0.5\n007,0.5\n1,none\n" if number == 1 else "1,2\n"))
    for kind, read in (("j", curate.read_json), ("", curate.read_csv)):
        read(tmp_path / kind / "*").write_parquet(tmp_path / f"out{kind}", backend="inline", max_bad_rows="100%")
    declare, alike = next_of(tmp_path / "outj")
    assert declare.startswith("declare the column's type: with schema= of read_json")
    assert declare.endswith("; these rows are read with 'n' as float64 if digits may be lost, 'd.x' as float64")
    assert alike.startswith("write the values of 'f', 't', 'd' alike in the input: JSON has several types there")
    [declare] = next_of(tmp_path / "out")
    assert declare.endswith("; these rows are read with 'id' as string, 'c' as string")
    texts = pa.schema([("id", pa.string()), ("c", pa.string())])
    assert curate.read_csv(f"{tmp_path}/*.csv", schema=texts).count() == 22


def test_a_row_that_is_not_utf8_is_shown(tmp_path: Path, run: Run) -> None:
    """It was called null. As JSON it is base64."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.jsonl").write_bytes(b'{"n": 1}\n{"n": "caf\xe9"}\n')
    run_job(Kept(), tmp_path / "in", tmp_path / "out")
    assert r'invalid UTF-8  {"n": "caf\xe9"}' in run("quarantine", str(tmp_path / "out"))[1]
    [row] = map(orjson.loads, run("quarantine", str(tmp_path / "out"), "--json", "--reason", "UTF-8")[1].splitlines())
    assert row["row_base64"] == "eyJuIjogImNhZukifQ=="


def test_an_output_may_be_called_as_a_chain_is(tmp_path: Path, run: Run) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.jsonl").write_bytes(b'{"n": 1}\n')
    run_job(Kept(), tmp_path / "in", tmp_path / "out.toml")
    assert run("status", str(tmp_path / "out.toml"))[0] == 0


@pytest.mark.parametrize("command", ["status", "failures", "quarantine", "head", "logs", "verify"])
def test_a_width_of_0_is_one_that_is_not_known(
    command: str, out: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some terminals, and what starts programs without one, say that they have no columns."""
    expected = [line for line in run(command, out)[1].splitlines() if not line.startswith("run ")]
    monkeypatch.setenv("COLUMNS", "0")
    assert [line for line in run(command, out)[1].splitlines() if not line.startswith("run ")] == expected
    assert expected


@pytest.mark.parametrize(
    ("columns", "told"), [(40, ["no room for: row; a wider terminal shows all, or", "--json"]), (120, [])]
)
def test_a_narrow_terminal_is_told_what_has_no_room(
    columns: int, told: list[str], out: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `curate head` does."""
    terminal = Terminal(monkeypatch, columns)
    assert run("quarantine", out, "-n", "1")[0] == 0
    lines = [line for line in terminal.lines() if "no room" in line]
    assert " ".join(lines) == " ".join(told)


def test_a_quarantine_that_is_gone_hides_only_itself(out: str, run: Run) -> None:
    """It is told, and the others are shown."""
    next((Path(out) / layout.QUARANTINE).iterdir()).unlink()
    code, text, err = run("quarantine", out)
    assert (code, text.splitlines()[1]) == (0, "rows      4 set aside, of 2 shards")
    assert "a file of quarantined rows is missing" in err


def test_lost_events_are_made_up_for_by_records(out: str, run: Run) -> None:
    """Which shards have set rows aside is known from outputs too."""
    before = run("quarantine", out)[1]
    for segment in Path(out).glob("_curate/runs/*/events-*"):
        segment.unlink()
    assert run("quarantine", out)[1] == before


# curate status, when outputs are not those that a run counted


def rows_of_status(out: str, run: Run) -> str:
    (found,) = [text for text in run("status", out)[1].splitlines() if text.startswith("rows")]
    return found.removeprefix("rows").strip()


@pytest.mark.parametrize("events", [True, False])
def test_rows_are_those_of_the_outputs_that_are_there(out: str, run: Run, events: bool) -> None:
    """Not of those that were removed since; where events are lost too, outputs say it themselves."""
    assert rows_of_status(out, run) == "30 in + 0 created = 24 out + 0 dropped + 6 quarantined"
    for path in Path(out).glob("s[01].*"):
        path.unlink()
    for segment in Path(out).glob("_curate/runs/*/events-*") if not events else ():
        segment.unlink()
    assert rows_of_status(out, run) == "10 in + 0 created = 8 out + 0 dropped + 2 quarantined"


def test_rows_of_a_run_that_was_killed_are_those_of_its_outputs(out: str, run: Run) -> None:
    """Its last heartbeat is older than its last outputs; that its process is gone is seen at once."""
    (Path(out) / layout.SUMMARY).unlink()
    (beat,) = Path(out).glob("_curate/runs/*/heartbeat.json")
    value = orjson.loads(beat.read_bytes())
    shards = {**value["shards"], "done": 0, "running": 3}
    value |= {"state": "running", "shards": shards, "rows": Books().rows(), "pid_started": "1"}
    beat.write_bytes(orjson.dumps(value))
    assert rows_of_status(out, run) == "30 in + 0 created = 24 out + 0 dropped + 6 quarantined"
    text = run("status", out)[1]
    assert f"stalled, process {value['pid']} on {value['host']} is gone; last heartbeat " in text
    assert text.splitlines()[-1] == "next      run the job again; it resumes"
    assert orjson.loads(run("status", out, "--json")[1])["runs"][0]["process_gone"] is True


# curate logs


def line(time_s: float, event: str, shard: str = "s0000000", **more: Any) -> dict[str, Any]:
    return {
        "time": time_s,
        "level": "info",
        "event": event,
        "shard": shard,
        "attempt": 1,
        "stream": "log",
        **more,
    }


def write_log(root: str, worker: str, number: int, *lines: dict[str, Any], run_id: str = RUN) -> None:
    ledger = make_ledger(root)
    data = b"".join(orjson.dumps(one) + b"\n" for one in lines)
    ledger.store.publish(ledger.uri(layout.log_segment(run_id, worker, number)), compress(data))


@pytest.fixture(params=["memory", "local", "gs"])
def root(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The output of a job of two runs, in each of the stores."""
    if request.param == "local":
        yield _with_runs(f"{tmp_path}/out")
    elif request.param == "memory":
        bucket = f"logs-{uuid.uuid4().hex}"
        yield _with_runs(f"memory://{bucket}/out")
        memory.clear(bucket)
    else:
        with GcsEmulator().here(monkeypatch):
            yield _with_runs("gs://bucket/out")


def _with_runs(root: str) -> str:
    beat = heartbeat("failed", started=1.0, updated=2.0)
    make_job(root, total=3, done=1, runs={RUN: beat, NEWER: beat})
    return root


def test_lines_of_all_workers_are_merged_by_time(root: str, run: Run) -> None:
    """Each worker's in their order, over its segments; the newest run that has any, or the one asked for."""
    write_log(root, "host-1", 1, line(10.0, "a"), line(30.0, "d"))
    write_log(root, "host-1", 2, line(40.0, "e"), line(60.0, "g"))
    write_log(root, "host-2", 1, line(20.0, "b"), line(20.0, "c"), line(50.0, "f", "s0000001"))
    code, text, err = run("logs", root)
    assert (code, err) == (0, "")
    assert text.splitlines() == [
        f"toxicity  {root}, run {RUN}",
        *(f"00:00:{at}  info     s0000000: {event}" for at, event in zip((10, 20, 20, 30, 40), "abcde", strict=True)),
        "00:00:50  info     s0000001: f",
        "00:01:00  info     s0000000: g",
    ]
    assert run("logs", root, "--shard", "s0000001", "--json")[1] == orjson.dumps(
        line(50.0, "f", "s0000001")
    ).decode() + "\n"  # fmt: skip
    write_log(root, "host-3", 1, line(5.0, "newer"), run_id=NEWER)
    assert run("logs", root)[1].splitlines()[1:] == ["00:00:05  info     s0000000: newer"]
    assert len(run("logs", root, "--run", RUN)[1].splitlines()) == 8


def test_what_a_line_holds_is_shown_and_cannot_act(tmp_path: Path, run: Run) -> None:
    """Streams, tries, fields and tracebacks; as JSON the lines as they are."""
    root = _with_runs(f"{tmp_path}/out")
    lines = [
        line(1.0, EVIL, stream="stdout", attempt=2),
        line(2.0, "kept", kept=180, why={"a": EVIL}, **{EVIL: 1}),
        line(3.0, "boom", level="error", exception=f"Traceback:\n  File x\n    {EVIL}"),
        line(4.0, "slow", level="warning", stream="curate", stack="  a\n  b"),
        line(5.0, "asked", attempt=0),
    ]
    write_log(root, "host-1", 1, *lines)
    text = run("logs", root)[1]
    assert harmless(text)
    evil = "\\x1b]0;owned\\x07[red]no \\x08\\u202e[/]"
    quoted = '{"a":"\\u001b]0;owned\\u0007[red]no\\r\\b\\u202e[/]"}'
    assert text.splitlines()[1:] == [
        f"00:00:01  stdout   s0000000 (try 2): {evil}",
        f"00:00:02  info     s0000000: kept kept=180 why={quoted} {evil}=1",
        "00:00:03  error    s0000000: boom",
        "    Traceback:",
        "      File x",
        f"        {evil}",
        "00:00:04  warning  s0000000: slow",
        "      a",
        "      b",
        "00:00:05  info     s0000000 (for the schema): asked",
    ]
    assert [orjson.loads(one) for one in run("logs", root, "--json")[1].splitlines()] == lines


def test_no_lines_are_said(tmp_path: Path, run: Run) -> None:
    """Of the job, the run or the shard; and where there are some."""
    root = _with_runs(f"{tmp_path}/out")
    assert run("logs", root)[:2] == (0, f"toxicity  {root}\nno worker has logged or printed anything\n")
    write_log(root, "host-1", 1, line(1.0, "a"))
    assert run("logs", root, "--run", NEWER)[1].splitlines()[1] == (
        f"no worker of this run has logged or printed anything; other runs have: {RUN}"
    )
    assert run("logs", root, "--shard", "s0000002")[1].splitlines()[1] == (
        "no worker of this run has logged or printed anything about s0000002"
    )
    code, _, err = run("logs", root, "--run", RUN[:-1] + "4")
    assert code == 2
    assert f"did you mean {RUN!r}?; the newest are {NEWER}, {RUN}" in err
    assert run("logs", root, "--shard", "s0000009")[0] == 2


@pytest.mark.parametrize(
    "odd", [{"odd": 1}, {"time": 1e308}, {"time": -1e18}, {"time": True}, {"time": 1.5, "attempt": []}]
)
def test_what_cannot_be_read_hides_only_itself(tmp_path: Path, run: Run, odd: Mapping[str, Any]) -> None:
    """A segment that is none, a line that is none: of no time, or of one that no calendar has, or of no attempt."""
    root = _with_runs(f"{tmp_path}/out")
    write_log(root, "host-1", 1, line(1.0, "a"))
    write_log(root, "host-1", 2, odd, line(2.0, "b"))
    ledger = make_ledger(root)
    ledger.store.publish(ledger.uri(layout.log_segment(RUN, "host-2", 1)), b"no zstd")
    code, text, err = run("logs", root)
    assert (code, [one[-1] for one in text.splitlines()[1:]]) == (0, ["a", "b"])
    assert (err.count("cannot read a line of a log"), err.count("cannot read a segment of a log")) == (1, 1)


def test_following_shows_what_comes_until_the_run_has_ended(capsys: pytest.CaptureFixture[str]) -> None:
    """Each segment once, as it is published; also of a run that has none when one begins to look."""
    clock = FakeClock()
    root = f"memory://follow-{uuid.uuid4().hex}/out"
    beat = heartbeat("running", started=clock.now(), updated=clock.now())
    ledger = make_job(root, total=3, done=0, runs={RUN: {}, NEWER: beat})
    write_log(root, "host-1", 1, line(1.0, "older"))

    class Working(FakeClock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            number = len(self.sleeps)
            if number <= 3:
                write_log(root, "host-1", number, line(self.now(), f"at {number}"), run_id=NEWER)
            state = "running" if number < 4 else "failed"
            beat = heartbeat(state, started=clock.now(), updated=self.now())
            uri = ledger.uri(layout.run_file(NEWER, "heartbeat.json"))
            ledger.store.replace(uri, orjson.dumps({**beat, "run_id": NEWER}))

    working = Working(clock.time_s)
    assert show_logs(root, working, shard=None, run=None, follow=True, as_json=True) == 0
    events = [orjson.loads(one)["event"] for one in capsys.readouterr().out.splitlines()]
    assert events == ["at 1", "at 2", "at 3"]
    assert working.sleeps == [2.0] * 4


def test_following_shows_what_is_published_while_the_end_is_looked_for(capsys: pytest.CaptureFixture[str]) -> None:
    """A run publishes its last lines and ends, in this order, at any time."""
    root = f"memory://follow-{uuid.uuid4().hex}/out"
    began = FakeClock().now()
    ledger = make_job(root, total=1, done=0, runs={RUN: heartbeat("running", started=began, updated=began)})

    class Ending(FakeClock):
        looks = 0

        def now(self) -> float:
            self.looks += 1
            if self.looks == 2:
                write_log(root, "host-1", 1, line(began, "last words"))
                beat = heartbeat("failed", started=began, updated=super().now())
                uri = ledger.uri(layout.run_file(RUN, "heartbeat.json"))
                ledger.store.replace(uri, orjson.dumps({**beat, "run_id": RUN}))
            return super().now()

    assert show_logs(root, Ending(began), shard=None, run=None, follow=True, as_json=True) == 0
    assert [orjson.loads(one)["event"] for one in capsys.readouterr().out.splitlines()] == ["last words"]


def test_following_is_left_with_an_interrupt(capsys: pytest.CaptureFixture[str]) -> None:
    """The usual way out."""

    class Impatient(FakeClock):
        def sleep(self, _: float) -> None:
            raise KeyboardInterrupt

    clock = Impatient()
    root = f"memory://follow-{uuid.uuid4().hex}/out"
    make_job(root, total=3, done=0, runs={RUN: heartbeat("running", started=0.0, updated=clock.now())})
    assert show_logs(root, clock, shard=None, run=None, follow=True, as_json=True) == 130
    assert capsys.readouterr().out == ""


def test_what_a_job_logs_is_what_is_shown(tmp_path: Path, run: Run) -> None:
    """From `self.log` in `process` to the terminal."""

    class Talking(Job):
        version = "1"

        def process(self, batch: pa.Table) -> pa.Table:
            self.log.info("kept some", rows=len(batch))
            sys.stdout.write("printed\n")
            return batch

    write_jsonl(tmp_path / "in" / "s0.jsonl", numbered(0, 3))
    run_job(Talking(), tmp_path / "in", tmp_path / "out")
    lines = run("logs", str(tmp_path / "out"), "--shard", "s0")[1].splitlines()
    said = [one.partition(" ")[2].strip() for one in lines[1:]]
    assert "info     s0: kept some rows=3" in said
    assert "stdout   s0: printed" in said


# The program


@pytest.mark.ci(1)
@pytest.mark.slow
def test_they_start_without_ray_gcsfs_or_a_model(out: str) -> None:
    """A look at a job costs no cluster, no cloud library and no model."""
    for args in (["verify", out], ["head", out], ["quarantine", out], ["logs", out]):
        check_light(*args)


def test_a_look_costs_what_it_shows(out: str, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    """The first row of a large job: a listing, job and plan, and the first output alone."""
    store = open_store(out)
    monkeypatch.setattr("curate.observe.place.open_store", lambda _: store)
    before = store.calls.copy()
    find_job(out)
    found = store.calls.since(before)
    before = store.calls.copy()
    assert run("head", out, "-n", "1")[0] == 0
    assert store.calls.since(before).get == found.get + 1
    assert store.calls.since(before).list == found.list == 1


def test_a_column_that_is_asked_for_twice_is_shown_once(tmp_path: Path, run: Run) -> None:
    """Whatever the format; of CSV, which has no types, with those of the ledger."""
    out = str(tmp_path / "out")
    curate.from_items([{"n": 1, "id": "a"}]).write_csv(out, backend="inline")
    most = str(10**30)
    assert run("head", out, "--json", "--columns", "n,id, n", "-n", most) == (0, '{"n":1,"id":"a"}\n', "")
    assert run("quarantine", out, "--json", "-n", most) == (0, "", "")
