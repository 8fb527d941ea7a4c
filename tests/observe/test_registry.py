"""The registry of known jobs: newest first, and never in the way."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest
import structlog

import curate
from curate.errors import ConfigError
from curate.observe.registry import home, list_jobs, register
from curate.stores.open import open_store


@pytest.fixture(params=["local", "memory"])
def root(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    uri = f"{tmp_path}/home" if request.param == "local" else f"memory://home-{uuid.uuid4().hex}/curate"
    monkeypatch.setenv("CURATE_HOME", uri)
    return uri


@pytest.mark.usefixtures("root")
def test_nothing_is_known_at_first() -> None:
    """A home that does not exist yet is an empty one."""
    assert list_jobs() == []


@pytest.mark.usefixtures("root")
def test_jobs_are_known_newest_first() -> None:
    """One entry an output: a job that runs again moves to the front."""
    for number, name in enumerate("abc"):
        register(f"gs://b/{name}", f"job-{name}", "run", 100.0 + number)
    assert [entry["output"] for entry in list_jobs()] == ["gs://b/c", "gs://b/b", "gs://b/a"]
    register("gs://b/a", "job-a", "run2", 200.0)
    assert list_jobs() == [
        {"output": "gs://b/a", "job": "job-a", "run_id": "run2", "started": 200.0},
        {"output": "gs://b/c", "job": "job-c", "run_id": "run", "started": 102.0},
        {"output": "gs://b/b", "job": "job-b", "run_id": "run", "started": 101.0},
    ]


@pytest.mark.usefixtures("root")
def test_what_is_written_for_a_consumer_is_no_job() -> None:
    """Exchanges of a dataset that is read and not written: they lie in scratch, and are gone when it is read."""
    rows = curate.range(20).random_shuffle(seed=1).take(3)
    assert len(rows) == 3
    assert list_jobs() == []


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"{}", b'{"output": "x", "job": "y", "started": "soon"}'])
def test_a_damaged_entry_is_left_out(root: str, data: bytes) -> None:
    """The others are listed; which one is damaged is said."""
    register("gs://b/a", "a", "run", 1.0)
    note = f"{root}/jobs/damaged.json"
    open_store(root, f"{root}/tmp").replace(note, data)
    with structlog.testing.capture_logs() as logs:
        assert [entry["output"] for entry in list_jobs()] == ["gs://b/a"]
    assert [(entry["event"], entry["note"]) for entry in logs] == [("cannot read a job's record; remove it", note)]


def test_what_is_no_note_is_ignored(root: str) -> None:
    """Backups and temporaries beside them."""
    store = open_store(root, f"{root}/tmp")
    store.replace(f"{root}/jobs/x.json.bak", b"{")
    store.replace(f"{root}/other/x.json", b"{")
    assert list_jobs() == []


@pytest.mark.parametrize("bad", ["/proc/nowhere", "swift://bucket/home", "gs://", "a\x00b"])
def test_a_home_that_cannot_be_written_never_stops_a_run(bad: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said once, and that is all."""
    monkeypatch.setattr("os.environ", {"CURATE_HOME": bad})
    with structlog.testing.capture_logs() as logs:
        register("gs://b/a", "a", "run", 1.0)
    assert [entry["event"] for entry in logs] == [
        "cannot record the job under CURATE_HOME; `curate status` will not list it"
    ]


def test_a_home_beneath_a_file_never_stops_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does it raise when it is listed."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("CURATE_HOME", f"{tmp_path}/file/home")
    with structlog.testing.capture_logs() as logs:
        register("gs://b/a", "a", "run", 1.0)
    assert len(logs) == 1
    assert list_jobs() == []


def test_home_is_in_the_users_home_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the variable is empty, or was set where no shell expands it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for value, expected in {"": f"{tmp_path}/.curate", "~/x": f"{tmp_path}/x", "gs://b/x/": "gs://b/x"}.items():
        monkeypatch.setenv("CURATE_HOME", value)
        assert home() == expected


def test_no_home_at_all_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's user may have none."""

    def nobody(_: Path) -> Any:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("CURATE_HOME")
    monkeypatch.setattr(Path, "expanduser", nobody)
    with structlog.testing.capture_logs() as logs:
        register("gs://b/a", "a", "run", 1.0)
    assert len(logs) == 1
    with pytest.raises(ConfigError, match="set CURATE_HOME"):
        list_jobs()


def test_what_a_kill_left_is_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the next job that is noted a day later; what is younger may be another's."""
    monkeypatch.setenv("CURATE_HOME", str(tmp_path))
    left = tmp_path / "tmp" / "0123456789abcdef-45-6"
    left.parent.mkdir()
    left.write_bytes(b'{"out')
    now = left.stat().st_mtime
    register("/a", "a", "run", now + 3600)
    assert left.exists()
    register("/a", "a", "run", now + 86_401)
    assert not left.exists()
    assert [entry["output"] for entry in list_jobs()] == ["/a"]
