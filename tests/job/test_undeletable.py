"""What a run is asked to remove and may not is told before it begins."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from curate.errors import ConfigError
from curate.job.job import Job
from curate.ledger.summary import RunState
from curate.resume.removal import MOST_FOLDERS, refuse_undeletable
from curate.storage.protocol import Object
from curate.stores.memory import MemoryStore
from tests.job.inline import numbered, refusing, run_job, write_jsonl
from tests.support.gcs_emulator import GcsEmulator


class Same(Job):
    """Rows as they are."""

    version = "1"
    columns = ("id", "n")
    extra: int = 0

    def process(self, batch: pa.Table) -> pa.Table:
        return batch


class Sorted(Same):
    """Rows in order, through an exchange."""

    def build(self, ds: Any) -> Any:
        return ds.sort("id")


@pytest.fixture
def emulator(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[GcsEmulator]:
    """A bucket in which only what is under `_curate/` may be deleted."""
    monkeypatch.setenv("CURATE_SCRATCH", str(tmp_path / "scratch"))
    with GcsEmulator().here(monkeypatch) as running:
        running.fail(operation="delete", name="out/part-", status=403, times=1000)
        running.fail(operation="delete", name="out/a", status=403, times=1000)
        yield running


@pytest.fixture
def source(tmp_path: Path) -> Path:
    write_jsonl(tmp_path / "in" / "a.jsonl", numbered(0, 5))
    return tmp_path / "in"


@pytest.mark.parametrize("job", [Same, Sorted])
def test_an_overwrite_that_may_not_delete_outputs_is_refused(
    emulator: GcsEmulator, source: Path, job: type[Same]
) -> None:
    """Before it asks, and before anything is gone; the rights to `_curate/` are enough for all else, its sweeps too."""
    first = run_job(job(), source, "gs://bucket/out")
    assert first.state is RunState.COMPLETE
    before = emulator.objects()
    asked: list[str] = []

    def confirm(text: str) -> bool:
        asked.append(text)
        return True

    with refusing("which is not allowed: it lacks storage.objects.delete there; nothing was removed"):
        run_job(job(extra=1), source, "gs://bucket/out", overwrite=True, confirm=confirm)
    assert asked == []
    assert emulator.objects() == before


def test_stale_outputs_that_may_not_be_deleted_are_left(emulator: GcsEmulator, source: Path) -> None:
    """They stay as they are, and the plan does not name the new input."""
    run_job(Same(), source, "gs://bucket/out")
    write_jsonl(source / "a.jsonl", numbered(0, 7))
    before = emulator.objects()
    with refusing("redo_stale=True would remove gs://bucket/out/a"):
        run_job(Same(), source, "gs://bucket/out", redo_stale=True)
    assert emulator.objects() == before
    assert run_job(Same(), source, "gs://bucket/out").stale == 1


def test_one_object_in_each_folder_is_asked_about() -> None:
    """Of as many folders as are worth a request each; the first that may not is named."""

    class Keeper(MemoryStore):
        def may_delete(self, uri: str) -> bool:
            super().may_delete(uri)
            return "/kept/" not in uri

    store = Keeper()
    many = [Object(f"memory://b/{k // 10:03}/{k % 10}", 1, "1") for k in range(1000)]
    refuse_undeletable(store, many, "--overwrite")
    assert store.calls.delete == MOST_FOLDERS
    with pytest.raises(ConfigError, match="--overwrite would remove memory://b/kept/x"):
        refuse_undeletable(store, [many[0], Object("memory://b/kept/x", 1, "1")], "--overwrite")
