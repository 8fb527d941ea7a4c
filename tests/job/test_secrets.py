"""A secret is given by the name of an environment variable. Its value reaches `process`, and nothing written down."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import traceback
from asyncio import CancelledError
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.errors import BadRow, ConfigError, CorruptInput, RetryLater
from curate.job.job import Job
from curate.job.operator import row_json
from curate.job.params import param
from curate.job.secrets import HIDDEN, Secrets
from curate.ledger.compression import decompress
from curate.ledger.summary import RunState
from curate.pipeline.classify import failure_of
from tests.job.inline import everything, failures, numbered, output_rows, quarantined, refusing, run_job, write_jsonl
from tests.support.errors import Frozen

ROOT = Path(__file__).parents[2]
VALUE = "s3cr3t/+value=="
ENCODED = "s3cr3t%2F%2Bvalue%3D%3D"


class Calling(Job):
    """Would call a service; does with its key what the test asks for."""

    version = "1"
    columns = ("id",)
    key: str = param(secret=True, help="key of the service")
    other: str | None = param(None, secret=True)
    mode: str = param("", identity=False)

    def process(self, batch: pa.Table) -> Any:
        if self.mode == "use":
            return batch.append_column("known", pa.array([self.key == VALUE] * len(batch)))
        if self.mode == "raise":
            try:
                raise ConnectionError(f"https://host/?key={ENCODED} refused {self.key!r}")
            except ConnectionError as error:
                raise RuntimeError(f"no answer with {self.key}") from error
        if self.mode == "odd error":
            raise _OddError(self.key)
        if self.mode == "untouchable":
            raise Frozen(f"no answer with {self.key}")  # type: ignore[arg-type]
        if self.mode == "exit":
            sys.exit(f"no answer with {self.key}")
        if self.mode == "cancelled":
            raise CancelledError(f"no answer with {self.key}")
        if self.mode == "odd end":
            raise _OddEnd(self.key)
        if self.mode == "note":
            error = ValueError("bad")
            error.add_note(f"the key was {self.key}")
            raise error
        if self.mode == "later":
            raise RetryLater(7.0, f"refused: {self.key}")
        if self.mode == "odd later":
            raise RetryLater(7.0, "busy") from _OddError(self.key)
        if self.mode == "bad row" and "r1" in batch["id"].to_pylist():
            raise BadRow(f"refused: {self.key}", batch["id"].to_pylist().index("r1"))
        if self.mode == "corrupt":
            raise CorruptInput(f"rejected: {self.key}")
        if self.mode == "book":
            self.drop(1, f"refused with {self.key}")
            self.drop([{"id": "y", "sent": self.key}], "sampled")
            self.count(f"calls with {self.key}")
            self.quarantine({"id": "x", "sent": self.key}, f"answer to {self.key}")
            return batch.slice(3)
        return batch


class _OddError(Exception):
    def __init__(self, key: str) -> None:
        super().__init__()
        self.key = key

    def __str__(self) -> str:
        return f"hidden in here: {self.key}"


class _OddEnd(BaseException):
    def __init__(self, key: str) -> None:
        super().__init__()
        self.key = key

    def __str__(self) -> str:
        return f"hidden in here: {self.key}"


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVICE_KEY", VALUE)


def leaks(root: Path) -> list[str]:
    """Returns the files that hold the value, in any spelling, decompressed where they are compressed."""
    found = []
    for name, data in everything(root).items():
        text = decompress(data) if name.endswith(".zst") else data
        if VALUE.encode() in text or ENCODED.encode() in text:
            found.append(name)
    return found


def test_process_sees_the_value_and_the_ledger_the_name(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in" / "a.jsonl", numbered(0, 2))
    run_job(Calling(key="SERVICE_KEY", mode="use"), tmp_path / "in", tmp_path / "out")
    assert [row["known"] for row in output_rows(tmp_path / "out")] == [True, True]
    job = orjson.loads((tmp_path / "out" / "_curate" / "job.json").read_bytes())
    assert (job["parameters"]["key"], job["parameters"]["other"]) == ("SERVICE_KEY", None)
    assert "key" not in job["identity"]["parameters"]
    assert leaks(tmp_path) == []


@pytest.mark.parametrize(
    ("mode", "error"),
    [
        ("raise", f"RuntimeError: no answer with {HIDDEN}"),
        ("odd error", f"RuntimeError: _OddError: hidden in here: {HIDDEN}"),
        ("note", "ValueError: bad"),
        ("untouchable", f"Frozen: no answer with {HIDDEN}"),
    ],
)
def test_an_exception_that_shows_it_is_recorded_without(
    tmp_path: Path, mode: str, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Message, causes, notes and traceback alike: libraries put what they sent into their errors."""
    write_jsonl(tmp_path / "in" / "a.jsonl", numbered(0, 2))
    summary = run_job(Calling(key="SERVICE_KEY", mode=mode), tmp_path / "in", tmp_path / "out")
    assert summary.failures[0].error == error
    event = failures(tmp_path / "out")[-1]
    assert HIDDEN in event["traceback"]
    assert "in process" in event["traceback"]
    assert leaks(tmp_path) == []
    printed = capsys.readouterr()
    assert VALUE not in printed.err + printed.out


@pytest.mark.parametrize(
    ("mode", "error"),
    [
        ("exit", f"SystemExit: no answer with {HIDDEN}"),
        ("cancelled", f"CancelledError: no answer with {HIDDEN}"),
        ("odd end", f"_OddEnd: hidden in here: {HIDDEN}"),
    ],
)
def test_what_would_end_the_process_is_recorded_without(tmp_path: Path, mode: str, error: str) -> None:
    """By `sys.exit()`, or by what else is no `Exception`: its text is what is told of the end of a worker."""
    write_jsonl(tmp_path / "in" / "a.jsonl", numbered(0, 2))
    summary = run_job(Calling(key="SERVICE_KEY", mode=mode), tmp_path / "in", tmp_path / "out")
    assert error in summary.failures[0].error
    told = failures(tmp_path / "out")[-1]["traceback"]
    assert ("in process" in told) is (mode == "cancelled")
    assert leaks(tmp_path) == []


def test_an_exception_keeps_what_curate_does_next(tmp_path: Path) -> None:
    """Corrupt input is not tried again, whatever was in its message."""
    write_jsonl(tmp_path / "in" / "a.jsonl", numbered(0, 2))
    summary = run_job(Calling(key="SERVICE_KEY", mode="corrupt"), tmp_path / "in", tmp_path / "out")
    assert (summary.attempts, summary.failures[0].error) == (1, f"CorruptInput: rejected: {HIDDEN}")


def test_when_to_try_again_and_which_row_is_bad_are_kept(tmp_path: Path) -> None:
    """Both travel with exceptions whose text is changed."""
    secrets = Secrets([VALUE])
    batch = pa.table({"id": ["r0", "r1"]})
    for mode, text in [
        ("later", f"run again in 7 s: refused: {HIDDEN}"),
        ("odd later", "run again in 7 s: RetryLater: "),
    ]:
        with pytest.raises(RetryLater, match=re.escape(text)) as caught, secrets.hidden():
            Calling(key="SERVICE_KEY", mode=mode).process(batch)
        assert caught.value.after_s == 7
        assert VALUE not in "".join(traceback.format_exception(caught.value))
        assert failure_of(caught.value.with_traceback(None)).frame.endswith("in process" if "odd" in mode else "")
    write_jsonl(tmp_path / "in" / "a.jsonl", numbered(0, 4))
    summary = run_job(Calling(key="SERVICE_KEY", mode="bad row"), tmp_path / "in", tmp_path / "out")
    assert (summary.state, summary.books.quarantined) == (RunState.COMPLETE, 1)
    assert [(row["reason"], row["row"]) for row in quarantined(tmp_path / "out")] == [
        (f"refused: {HIDDEN}", '{"id":"r1"}')
    ]
    assert leaks(tmp_path) == []


def test_reasons_counters_and_rows_set_aside_do_not_show_it(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in" / "a.jsonl", numbered(0, 4))
    summary = run_job(Calling(key="SERVICE_KEY", mode="book"), tmp_path / "in", tmp_path / "out")
    assert summary.state is RunState.COMPLETE
    assert summary.books.dropped == {f"refused with {HIDDEN}": 1, "sampled": 1}
    assert summary.books.counters == {f"calls with {HIDDEN}": 1}
    assert quarantined(tmp_path / "out")[0]["row"] == f'{{"id":"x","sent":"{HIDDEN}"}}'
    assert leaks(tmp_path) == []


def test_another_value_is_the_same_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys are rotated while jobs run."""
    before = Calling(key="SERVICE_KEY").spec().record.fingerprint
    monkeypatch.setenv("SERVICE_KEY", "another one")
    monkeypatch.setenv("OTHER_KEY", "a third one")
    assert Calling(key="SERVICE_KEY").spec().record.fingerprint == before
    assert Calling(key="OTHER_KEY").spec().record.fingerprint == before


@pytest.mark.parametrize("value", [None, ""])
def test_a_variable_that_is_not_set_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    monkeypatch.delenv("SERVICE_KEY")
    if value is not None:
        monkeypatch.setenv("SERVICE_KEY", value)
    write_jsonl(tmp_path / "in" / "a.jsonl", numbered(0, 2))
    with refusing("--key names the environment variable 'SERVICE_KEY', which is not set; export it before"):
        run_job(Calling(key="SERVICE_KEY"), tmp_path / "in", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_whoever_gives_the_secret_itself_does_not_find_it_in_the_message() -> None:
    """The message may end in the log of a cluster."""
    with pytest.raises(ConfigError) as caught:
        Calling(key=VALUE).spec()
    assert VALUE not in str(caught.value)
    assert "--key takes the name of an environment variable" in str(caught.value)


def test_a_secret_may_be_optional() -> None:
    assert Calling(key="SERVICE_KEY").other is None


def test_the_longest_spelling_goes_first() -> None:
    """A secret that contains another one leaves no rest of itself."""
    assert Secrets(["abc", "abcdef"]).hide("abcdef abc") == f"{HIDDEN} {HIDDEN}"


@given(st.text(st.characters(codec="utf-8"), min_size=8), st.text("\"'\\ x", max_size=3))
def test_no_encoding_of_a_text_shows_it(value: str, beside: str) -> None:
    """What is hidden may have been encoded already: rows are JSON, and errors quote them."""
    secrets, text = Secrets([value]), f"{beside}{value}{beside}"
    encoders: list[Callable[[str], str]] = [
        json.dumps,
        lambda text: orjson.dumps(text).decode(),
        repr,
        quote,
        quote_plus,
        lambda text: row_json({"row": text}),
    ]
    for one in encoders:
        assert HIDDEN in secrets.hide(one(text))
        for other in encoders:
            assert HIDDEN in secrets.hide(other(one(text)))


@pytest.mark.parametrize("value", ['pass"word', "pass\\word", "p\u00e4ss/word\x01", "pass'\"word"])
def test_a_row_that_is_set_aside_or_a_sample_shows_no_spelling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("SERVICE_KEY", value)
    write_jsonl(tmp_path / "in" / "a.jsonl", numbered(0, 4))
    run_job(Calling(key="SERVICE_KEY", mode="book"), tmp_path / "in", tmp_path / "out")
    kept = [decompress(data) for name, data in everything(tmp_path / "out").items() if name.endswith(".zst")]
    assert any(HIDDEN.encode() in one for one in kept)
    assert not any(b"word" in one for one in kept)


JOB = """
import pyarrow as pa
from curate import CorruptInput, Job, param

class Calls(Job):
    version = "1"
    columns = ("id",)
    key: str = param(secret=True)

    def process(self, batch):
        if batch["id"][0].as_py() == "r2":
            raise CorruptInput(f"refused: {self.key}")
        return batch

if __name__ == "__main__":
    Calls.main()
"""


@pytest.mark.slow
def test_nothing_of_a_program_run_shows_it(tmp_path: Path) -> None:
    """Ledger with command line, heartbeat and events; registry; both outputs of the program."""
    (tmp_path / "calls.py").write_text(JOB)
    write_jsonl(tmp_path / "in" / "a.jsonl", numbered(0, 2))
    write_jsonl(tmp_path / "in" / "b.jsonl", numbered(2, 4))
    arguments = ["--input", "in", "--output", "out", "--backend", "inline", "--key", "SERVICE_KEY"]
    environ = os.environ | {"PYTHONPATH": str(ROOT), "CURATE_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        [sys.executable, "calls.py", *arguments], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert HIDDEN in done.stderr
    assert VALUE not in done.stdout + done.stderr
    assert leaks(tmp_path) == []
    run = next((tmp_path / "out" / "_curate" / "runs").iterdir())
    about = orjson.loads((run / "run.json").read_bytes())
    assert about["command"][-2:] == ["--key", "SERVICE_KEY"]
    assert (run / "heartbeat.json").exists()
    assert list(run.glob("events-*.zst"))
    assert (tmp_path / "home").exists()
