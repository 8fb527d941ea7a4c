"""Who removes stages may be killed at any file: what is left of one has its `job.json` as long as it has a plan."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from curate.ledger.stages import remove_stages, scratch_of

KEYS = ("0123456789abcdef", "fedcba9876543210")
FILES = (
    "_curate/job.json",
    "_curate/plan/00000.parquet",
    "_curate/plan/00001.parquet",
    "_curate/schema/output.arrow",
    "_curate/summary.json",
    "part-00000-of-00002.run",
    "part-00001-of-00002.run",
)


class Killed(BaseException):
    """In place of SIGKILL."""


def test_a_kill_at_each_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(scratch_of(str(tmp_path / "out")))
    unlink = os.unlink
    left = -1

    def counted(*args: Any, **kwargs: Any) -> None:
        nonlocal left
        if left == 0:
            raise Killed
        left -= 1
        unlink(*args, **kwargs)

    for at in range(len(KEYS) * len(FILES) + 1):
        for key in KEYS:
            for name in FILES:
                (root / key / name).parent.mkdir(parents=True, exist_ok=True)
                (root / key / name).write_bytes(b"x")
        left = at
        with monkeypatch.context() as patched:
            patched.setattr(os, "unlink", counted)
            try:
                remove_stages(str(root))
            except Killed:
                pass
            else:
                assert at == len(KEYS) * len(FILES)
                break
        for key in KEYS:
            there = {str(path.relative_to(root / key)) for path in (root / key).rglob("*") if path.is_file()}
            assert "_curate/job.json" in there or not there, at
            assert "_curate/plan/00000.parquet" in there or "_curate/plan/00001.parquet" not in there, at
            assert len(there & set(FILES[1:3])) == 2 or "_curate/summary.json" not in there, at
    assert not root.exists()
