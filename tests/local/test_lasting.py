"""Runs of datasets in worker processes, one after the other: who runs their tasks."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import curate
from curate.local import machine
from curate.local.lasting import _taken
from tests.support.writes import failed_write


@pytest.fixture(autouse=True)
def _one_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One worker does everything, so that there is no choice of who."""
    monkeypatch.setattr(machine, "cpus", lambda: 1.0)
    yield
    if (crew := _taken()) is not None:
        crew.processes.close()


def tell(batch: pa.Table) -> pa.Table:
    """Appends the process."""
    return batch.append_column(f"pid_{batch.num_columns}", pa.array([os.getpid()] * batch.num_rows))


def pids(output: Path) -> set[int]:
    """Returns the processes that have had the rows of an output."""
    rows = curate.read_parquet(output).take_all()
    return {value for row in rows for name, value in row.items() if name.startswith("pid")}


@pytest.mark.slow
def test_one_worker_runs_all_stages_of_all_runs(tmp_path: Path) -> None:
    """Before an exchange and behind it, with more memory or less, written or consumed."""
    rows = curate.range(1000).map_batches(tell)
    assert rows.sort("id", descending=True).map_batches(tell).write_parquet(tmp_path / "a", backend="local").state == (
        "complete"
    )
    (worker,) = pids(tmp_path / "a")
    assert worker != os.getpid()
    rows.random_shuffle(seed=1).write_parquet(tmp_path / "b", backend="local")
    assert pids(tmp_path / "b") == {worker}
    assert {row["pid_1"] for row in rows.using(backend="local").take_all()} == {worker}
    curate.range(10).map_batches(tell, num_cpus=0.5).write_parquet(tmp_path / "c", backend="local")
    assert pids(tmp_path / "c") == {worker}


@pytest.mark.slow
def test_a_module_that_another_one_imports_may_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reloaded here, it is that in the next run as well."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    deep, top = tmp_path / "deep_one.py", tmp_path / "top_one.py"
    deep.write_text("def given(n):\n    return n + 1\n")
    top.write_text("import deep_one\ndef made(row):\n    return {'n': deep_one.given(row['id'])}\n")
    modules = [importlib.import_module(name) for name in ("deep_one", "top_one")]
    try:
        for n, text in ((1, ""), (100, "def given(n):\n    return n + 100\n")):
            if text:
                deep.write_text(text)
                for module in modules:
                    importlib.reload(module)
            rows = curate.range(2).map(modules[1].made).using(backend="local").take_all()
            assert [row["n"] for row in rows] == [n, n + 1]
    finally:
        for module in modules:
            del sys.modules[module.__name__]


@pytest.mark.slow
@pytest.mark.usefixtures("no_backoff")
def test_a_worker_of_a_run_that_failed_runs_the_next_one(tmp_path: Path) -> None:
    """An error of user code is no reason to end it."""

    told = tmp_path / "told"

    def fails(batch: pa.Table) -> pa.Table:
        told.write_text(str(os.getpid()))
        raise ValueError(batch.num_rows)

    failed = failed_write(curate.range(10).map_batches(fails).write_parquet, tmp_path / "a", backend="local")
    assert failed.state == "failed"
    curate.range(10).map_batches(tell).write_parquet(tmp_path / "b", backend="local")
    assert pids(tmp_path / "b") == {int(told.read_text())}
