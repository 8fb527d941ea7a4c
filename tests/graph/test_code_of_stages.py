"""Stages that are kept for the next run, and code that changed under a version that stayed as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from curate.errors import ConfigError
from curate.job.job import Job
from tests.job.inline import output_rows, run_job, write_jsonl


class Sorted(Job):
    """Sorts numbers."""

    name = "sorted"
    version = "1"

    def process(self, batch: pa.Table) -> pa.Table:
        return batch

    def build(self, ds: Any) -> Any:
        return super().build(ds).sort("n")


class Negated(Sorted):
    """Sorts what numbers are below zero."""

    name = "sorted"

    def process(self, batch: pa.Table) -> pa.Table:
        return batch.set_column(0, "n", pc.negate(batch["n"]))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "in" / "a.jsonl", [{"n": 1}, {"n": 2}]).parent


@pytest.mark.slow
def test_overwriting_makes_stages_of_other_code_anew(source: Path, tmp_path: Path) -> None:
    """And keeps those of the same."""
    out, overwrite = tmp_path / "out", {"overwrite": True, "confirm": lambda _: True, "keep_stages": True}
    run_job(Sorted(), source, out, keep_stages=True)
    run_job(Negated(), source, out, **overwrite)
    assert output_rows(out) == [{"n": -2}, {"n": -1}]
    before = sorted(path.stat().st_mtime_ns for path in out.rglob("*.run"))
    run_job(Negated(), source, out, **overwrite)
    assert sorted(path.stat().st_mtime_ns for path in out.rglob("*.run")) == before
    run_job(Sorted(), source, out, **overwrite)
    assert output_rows(out) == [{"n": 1}, {"n": 2}]


@pytest.mark.slow
def test_stages_that_went_on_with_other_code(source: Path, tmp_path: Path) -> None:
    """They may be of both, whichever it is that overwrites them."""
    out = tmp_path / "out"
    write_jsonl(source / "b.jsonl", b"x\n" * 9)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("curate.plan.rewrites.LEAST_MAP_BYTES", 10)
        assert run_job(Sorted(max_bad_rows="1"), source, out).failed
        with pytest.raises(ConfigError, match=r"the code of 'sorted: sort.n.: map' changed"):
            run_job(Negated(max_bad_rows="1"), source, out)
        run_job(Negated(max_bad_rows="100%"), source, out, accept_code_change=True, keep_stages=True)
        assert output_rows(out) == [{"n": 1}, {"n": 2}]
        for job, expected in ((Sorted, [1, 2]), (Negated, [-2, -1])):
            again: dict[str, Any] = {"overwrite": True, "confirm": lambda _: True, "keep_stages": True}
            run_job(job(max_bad_rows="100%"), source, out, **again)
            assert [row["n"] for row in output_rows(out)] == expected
