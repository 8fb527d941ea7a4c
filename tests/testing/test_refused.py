"""Whole jobs whose store refuses them from some moment on: credentials expire, a bucket goes away, a name is locked."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from structlog.testing import capture_logs

import curate
from curate.errors import CorruptInput, StorageError, WriteFailed
from curate.ledger.summary import RunState, Summary
from curate.objects.stream import StoredStream
from curate.observe.job import read_status
from curate.pipeline.classify import failure_of
from curate.stores.open import open_store
from curate.tasks.failure import FailureKind, Refusal
from tests.support.emulator import Emulator
from tests.support.gcs_emulator import GcsEmulator
from tests.support.s3_emulator import S3Emulator

FILES = 60
EVER = 1_000_000


@dataclass
class Bench:
    """A bucket of inputs, and a job on them that notes what it computes."""

    emulator: Emulator
    trace: Path
    backend: str

    @property
    def root(self) -> str:
        return f"{self.emulator.SCHEME}://bucket/data"

    def write(self, **options: Any) -> Summary:
        """Runs the job; returns its summary, however it ended."""
        trace = str(self.trace)

        def noted(batch: pa.Table) -> pa.Table:
            with open(trace, "a") as file:
                file.write(f"{batch['n'][0].as_py()}\n")
            return batch

        made = curate.read_parquet(f"{self.root}/in").map_batches(noted)
        try:
            return made.write_parquet(f"{self.root}/out", backend=self.backend, **options)
        except WriteFailed as error:
            return error.summary

    def computed(self) -> Counter[int]:
        """Returns how often each shard was computed since the last call; looks at the schema are none."""
        found = Counter(map(int, self.trace.read_text().split())) if self.trace.exists() else Counter[int]()
        self.trace.unlink(missing_ok=True)
        return found

    def published(self) -> int:
        return len(self.emulator.objects(f"{self.root}/out/f"))


@pytest.fixture(params=[(GcsEmulator, "inline"), (S3Emulator, "local")], ids=["gs, inline", "s3, local"])
def bench(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Bench]:
    service, backend = request.param
    with service().here(monkeypatch) as emulator:
        yield filled(Bench(emulator, tmp_path / "trace", backend))


def filled(made: Bench) -> Bench:
    for number in range(FILES):
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table({"n": [number]}), sink)
        made.emulator.put(f"{made.root}/in/f{number:02}.parquet", sink.getvalue().to_pybytes())
    return made


def expired(bench: Bench) -> dict[str, Any]:
    """How a service says that credentials have expired."""
    return {"status": 401} if bench.emulator.SCHEME == "gs" else {"status": 400, "reason": "ExpiredToken"}


def check_stopped(bench: Bench, ended: Summary, said: list[Any], what: str) -> None:
    """Checks that a run was stopped with one message, and that what is done is there; then that the next run does the
    rest, once."""
    assert ended.state is RunState.FAILED
    assert ended.failed >= 1
    assert ended.done + ended.failed < FILES
    (told,) = [one for one in said if one["log_level"] == "error"]
    assert what in told["event"]
    assert "run this again" in told["next"]
    assert told["kept"].startswith(f"all that is done, {ended.done:,} of")
    bench.computed()
    before = bench.published()
    assert before == ended.done
    again = bench.write()
    assert (again.state, again.done) == (RunState.COMPLETE, FILES)
    counts = bench.computed()
    assert sum(counts.values()) <= FILES - before + 1  # a look at the schema
    assert bench.published() == FILES


@pytest.mark.ci(1)
@pytest.mark.slow
@pytest.mark.parametrize("denied", [False, True], ids=["expired", "denied"])
def test_outputs_are_refused_from_some_moment_on(bench: Bench, denied: bool) -> None:
    """The run stops after a few, says what is refused, what is kept and what to do; nothing is paid for twice."""
    how = {"status": 403} if denied else expired(bench)
    fault = bench.emulator.fail(operation="put", name="out/f", nth=6, times=EVER, **how)
    with capture_logs() as said:
        ended = bench.write()
    assert fault.fired <= 4 * FILES
    assert ended.done == 5
    status = read_status(f"{bench.root}/out", time.time())
    assert status.runs[0].ended_by == "the store refuses outputs of this run"
    bench.emulator.heal()
    check_stopped(bench, ended, said, "refuses outputs")


@pytest.mark.ci(1)
@pytest.mark.slow
def test_inputs_are_refused_from_some_moment_on(bench: Bench) -> None:
    """As outputs."""
    bench.emulator.fail(operation="get", name="in/f", nth=20, times=EVER, **expired(bench))
    with capture_logs() as said:
        ended = bench.write(max_in_flight=2, target_task_seconds=0.01)
    bench.emulator.heal()
    check_stopped(bench, ended, said, "read its inputs")


@pytest.mark.ci(1)
@pytest.mark.slow
def test_one_output_is_refused(bench: Bench) -> None:
    """Such as a locked name: it fails, after its tries, and all others are done."""
    bench.emulator.fail(operation="put", name="out/f30", times=EVER, status=403)
    ended = bench.write()
    assert (ended.state, ended.done, ended.failed) == (RunState.FAILED, FILES - 1, 1)


@pytest.mark.ci(1)
@pytest.mark.slow
def test_a_folder_of_inputs_is_refused(bench: Bench) -> None:
    """Its shards fail, and all others are done."""
    bench.emulator.fail(operation="get", name="in/f2", times=EVER, status=403)
    ended = bench.write()
    assert (ended.state, ended.done, ended.failed) == (RunState.FAILED, FILES - 10, 10)


@pytest.mark.parametrize("service", [GcsEmulator, S3Emulator])
def test_a_bucket_that_is_gone_is_no_input_that_was_removed(
    service: type[Emulator], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is read there is refused, to all shards; an object that is gone fails its own, for good."""
    with service().here(monkeypatch) as emulator:
        uri = f"{emulator.SCHEME}://bucket/data/in.jsonl"
        emulator.put(uri, b"{}")
        store = open_store(uri)
        (found,) = store.list(uri)
        held = emulator.hide_bucket("bucket")
        with pytest.raises(StorageError, match="its bucket is gone") as raised:
            StoredStream(store, found).read()
        failure = failure_of(raised.value)
        assert (failure.kind, failure.refused) == (FailureKind.STORAGE, Refusal.READ)
        emulator.show_bucket("bucket", held)
        assert StoredStream(store, found).read() == b"{}"
        emulator.remove(uri)
        with pytest.raises(CorruptInput, match="the object was removed") as raised:
            StoredStream(store, found).read()
        failure = failure_of(raised.value)
        assert (failure.kind, failure.refused) == (FailureKind.CORRUPT, None)
