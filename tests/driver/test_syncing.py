# ruff: noqa: PTH115
"""Which folders a run syncs, so that what it wrote survives a crash of the machine."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest

from curate import TextJob


class Copied(TextJob):
    version = "1"

    def process(self, batch: pa.Table) -> pa.Table:
        return batch


def test_a_run_syncs_what_it_wrote_and_no_folder_of_earlier_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An hourly job has 9,000 of them in a year, at 3 ms each on a busy disk."""
    inputs, output = tmp_path / "in", tmp_path / "out"
    inputs.mkdir()
    synced: set[str] = set()
    monkeypatch.setattr(os, "fsync", lambda fd: synced.add(os.readlink(f"/proc/self/fd/{fd}")))
    for number in range(3):
        (inputs / f"{number}.jsonl").write_text('{"id": "1", "text": "a"}\n')
        earlier = {str(one) for one in (output / "_curate/runs").glob("*")}
        synced.clear()
        assert Copied().run(input=inputs, output=output, backend="inline").state == "complete"
        folders = {str(output), *(str(one) for one in output.rglob("*") if one.is_dir())}
        of_earlier = {one for one in folders if any(f"{one}/".startswith(f"{run}/") for run in earlier)}
        assert len(earlier) == number
        assert folders & synced == folders - of_earlier
