"""Logs and ledgers hold no token, no signed URL, and no dump of the environment, wherever they were planted."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import structlog

from curate import log
from curate.cli.main import main
from curate.errors import ConfigError
from curate.job.command import execute
from curate.job.job import Job
from curate.job.params import param
from tests.job.inline import everything, run_job, write_jsonl

TOKEN = "ray-token-5f1c9be2d0a7"
KEY_FILE = "/home/someone/keys/robot-1f2e3d.json"
SIGNATURE = "9c0ffee1badc0de5"
CREDENTIAL = "robot%40project.iam"
URL = f"https://storage.googleapis.com/b/o.jsonl?X-Goog-Credential={CREDENTIAL}&X-Goog-Expires=60&X-Goog-Signature={SIGNATURE}"
OAUTH = "ya29.a0AfB_byDxxxxxxxxxxxxxxxx"
BEARER = "eyJhbGciOiJSUzI1NiJ9.e30.abc"
PASSWORD = "hunter2-hunter2"
PRIVATE = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC"
ARMOURED = "lQOYBGVxQ1sBCADNiT3VPg5kxuLY"
PLANTED = (
    f"GET {URL} failed; Authorization: Bearer {BEARER}; {OAUTH}; postgres://me:{PASSWORD}@db/x; "
    f"-----BEGIN PRIVATE KEY-----\n{PRIVATE}\n-----END PRIVATE KEY-----"
    f"-----BEGIN PGP PRIVATE KEY BLOCK-----\n\n{ARMOURED}\n-----END PGP PRIVATE KEY BLOCK-----"
)
SECRETS = (TOKEN, KEY_FILE, SIGNATURE, CREDENTIAL, OAUTH, BEARER, PASSWORD, PRIVATE, ARMOURED)


@pytest.fixture(autouse=True)
def _planted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", KEY_FILE)


class Leaky(Job):
    """Tells whatever it knows in every way there is."""

    version = "1"

    def process(self, batch: pa.Table) -> pa.Table:
        structlog.get_logger().warning(PLANTED, token=os.environ["RAY_AUTH_TOKEN"], many=[PLANTED], deep={"a": PLANTED})
        os.write(1, f"{PLANTED} {TOKEN}\n".encode())
        if "fail" in batch["id"].to_pylist():
            try:
                raise KeyError(PLANTED)
            except KeyError as error:
                raise ValueError(f"{PLANTED} {TOKEN} {os.environ}") from error
        return batch


def held(place: Path) -> bytes:
    """Returns all bytes below a folder, compressed ones as they are and unpacked."""
    found = b""
    for data in everything(place).values():
        found += data
        if data.startswith(b"\x28\xb5\x2f\xfd"):
            found += pa.input_stream(pa.py_buffer(data), compression="zstd").read()
    return found


def test_nothing_of_it_is_in_ledgers_or_logs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Job, plan, events, failures, workers' logs, heartbeats, run.json; and standard error."""
    log.configure()
    write_jsonl(tmp_path / "in" / "a.jsonl", [{"id": "a"}])
    write_jsonl(tmp_path / "in" / "b.jsonl", [{"id": "fail"}])
    capfd.readouterr()
    summary = run_job(Leaky(), tmp_path / "in", tmp_path / "out")
    assert summary.failed == 1
    printed = capfd.readouterr().err
    everywhere = held(tmp_path / "out" / "_curate")
    assert b"[secret]" in everywhere
    assert "[secret]" in printed
    for secret in SECRETS:
        assert secret.encode() not in everywhere, secret
        assert secret not in printed, secret
    assert str(summary.as_dict()).count(TOKEN) == 0
    for name in ("PATH", "HOME"):
        assert f"'{name}': '{os.environ[name]}'".encode() not in everywhere, "no dump of the environment"


class Taking(Job):
    """Takes a text."""

    version = "1"
    source: str = param("", help="where from")

    def process(self, batch: pa.Table) -> pa.Table:
        return batch


@pytest.mark.parametrize("value", [URL, f"Bearer {BEARER}", f"postgres://me:{PASSWORD}@db/x", OAUTH])
def test_parameters_that_open_doors_are_refused_unseen(value: str) -> None:
    """They are identity, and so in job.json; the message says what to do, and not what was given."""
    with pytest.raises(ConfigError, match=r"param\(secret=True\)") as refused:
        Taking(source=value)
    assert not any(secret in str(refused.value) for secret in SECRETS)


@pytest.mark.parametrize("value", ["gs://b/a.bin", "https://x/y?q=1", "token", "a secret", "me@x.y", "sig=1"])
def test_parameters_that_open_none_are_taken(value: str) -> None:
    """What only sounds like it is a text like another."""
    assert Taking(source=value).source == value


@pytest.mark.parametrize("option", ["input", "output"])
def test_signed_urls_for_places_are_refused_unseen(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The one line that refuses them is on standard error, and in logs of whoever keeps that."""
    places: dict[str, Any] = {"input": str(tmp_path), "output": str(tmp_path / "out"), option: URL}
    assert execute(lambda: (Taking(), Taking().options(**places, backend="inline")), as_json=False, dry=False) == 2
    printed = capsys.readouterr().err
    assert "X-Goog-Signature=[secret]" in printed
    assert not any(secret in printed for secret in SECRETS)


def test_commands_that_are_given_one_do_not_repeat_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`curate status URL` says that it cannot, and not what the signature was."""
    monkeypatch.setattr("sys.argv", ["curate", "status", URL])
    with pytest.raises(SystemExit):
        main()
    printed = capsys.readouterr().err
    assert not any(secret in printed for secret in SECRETS)


def test_what_is_hidden_leaves_the_rest() -> None:
    """An error is of use still: host, object and all that is no secret are there."""
    assert log.redacted(f"GET {URL} failed") == (
        "GET https://storage.googleapis.com/b/o.jsonl?X-Goog-Credential=[secret]&X-Goog-Expires=60"
        "&X-Goog-Signature=[secret] failed"
    )
    assert log.redacted("nothing to hide: 12 tokens, key=3") == "nothing to hide: 12 tokens, key=3"


UNITS = ["a-", "a.b", "a+://", "x://a:", "Bearer ", "?AWS", "&sig=", "-----BEGIN A ", "environ({", "ya29."]


@pytest.mark.parametrize("unit", UNITS)
def test_a_long_text_takes_no_longer_than_its_length(unit: str) -> None:
    """Whatever it is made of, such as a document in the message of an error: twice as long takes no four times."""

    def took_s(chars: int) -> float:
        text = unit * (chars // len(unit))
        began_s = time.thread_time()
        log.redacted(text)
        return time.thread_time() - began_s

    assert took_s(40_000) < 8 * took_s(10_000) + 0.05
