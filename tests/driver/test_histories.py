"""Whatever came, went and changed between runs of a job, and however these were restricted: in the end its output is
that of a job that never knew of it, in whatever blocks the driver keeps what it knows."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.ledger.summary import RunState
from tests.job.inline import write_jsonl
from tests.ledger.test_packed import BLOCKS, blocks_of
from tests.resume.test_removal import Parted, check_same_as_fresh, rows, run_job
from tests.support.examples import examples

NAMES = ["m", "a", "z", "2024/b", "2024/c", "2023/x", "n", "2025/a", "b"]
ALWAYS = "k"
"""An input that stays: a job without any is none."""
WAYS: list[dict[str, Any]] = [{}, {"limit": 2}, {"sample": "50%"}, {"redo_stale": True}, {"drop_removed": True}]
STEPS = st.one_of(
    st.tuples(st.sampled_from(["write", "remove", "lose"]), st.sampled_from(NAMES)),
    st.tuples(st.just("run"), st.sampled_from(WAYS)),
)


def names_in(root: Path) -> set[str]:
    """Returns what inputs, or outputs, are called, without their suffix."""
    found = (path.relative_to(root) for path in root.rglob("*.*") if path.suffix in (".jsonl", ".parquet"))
    return {str(path.with_suffix("")) for path in found if not str(path).startswith("_")}


@pytest.mark.slow
@settings(max_examples=examples(40))
@given(steps=st.lists(STEPS, min_size=3, max_size=14), sizes=BLOCKS, ahead=st.integers(1, 5), merged=st.integers(1, 5))
def test_in_the_end_a_job_is_as_if_it_had_run_once(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[str, Any]],
    sizes: dict[str, int],
    ahead: int,
    merged: int,
) -> None:
    """Inputs that are added, replaced, removed and come back; outputs that are lost; runs of some shards alone; with
    parts of the plan that are merged."""
    root = tmp_path_factory.mktemp("history")
    source, out = root / "in", root / "out"
    write_jsonl(source / f"{ALWAYS}.jsonl", rows(ALWAYS))
    with blocks_of(sizes), pytest.MonkeyPatch.context() as patch:
        patch.setattr("curate.ledger.manifest.LEAST_AHEAD", ahead)
        patch.setattr("curate.ledger.manifest.COMPARED", ahead)
        patch.setattr("curate.ledger.ledger.MERGED_PARTS", merged)
        patch.setattr("curate.driver.finish.BLOCK_SHARDS", ahead)
        planned: set[str] = set()
        for number, (what, how) in enumerate(steps):
            if what == "write":
                write_jsonl(source / f"{how}.jsonl", rows(how, bad=f"version {number}"))
            elif what == "remove":
                (source / f"{how}.jsonl").unlink(missing_ok=True)
            elif what == "lose":
                (out / f"{how}.parquet").unlink(missing_ok=True)
            else:
                ended = run_job(Parted(), source, out, **how)
                planned |= names_in(source)
                lost = planned - names_in(source) - names_in(out)
                if "drop_removed" in how:
                    planned &= names_in(source)
                # Of what is gone, in and out, nothing can be made; a run of a part of the job may be without it.
                assert ended.failed <= len(lost)
                assert how or ended.failed == len(lost)
        run_job(Parted(), source, out, drop_removed=True)
        assert run_job(Parted(), source, out, redo_stale=True).state is RunState.COMPLETE
        check_same_as_fresh(Parted(), source, out, root / "fresh")
        again = run_job(Parted(), source, out)
        assert (again.attempts, again.calls.put, again.calls.delete) == (0, 0, 0)
    shutil.rmtree(root)


def test_the_steps_name_all_that_a_history_may_have(tmp_path: Path) -> None:
    """A history in which all of it happens, one after the other: what the property draws from is not empty of any."""
    source, out = tmp_path / "in", tmp_path / "out"
    for name in (ALWAYS, "m", "z"):
        write_jsonl(source / f"{name}.jsonl", rows(name))
    assert run_job(Parted(), source, out, limit=2).total == 2
    write_jsonl(source / "a.jsonl", rows("a"))
    assert run_job(Parted(), source, out).skipped == 2
    write_jsonl(source / "z.jsonl", rows("z", bad="another"))
    (source / "m.jsonl").unlink()
    (out / "a.parquet").unlink()
    ended = run_job(Parted(), source, out)
    assert (ended.attempts, ended.stale, ended.missing) == (1, 1, (1, 1))
    assert run_job(Parted(), source, out, drop_removed=True).dropped == 1
    assert run_job(Parted(), source, out, redo_stale=True).attempts == 1
    check_same_as_fresh(Parted(), source, out, tmp_path / "fresh")
