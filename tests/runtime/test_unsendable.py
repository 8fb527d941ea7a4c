"""What cannot be sent to workers is refused before anything is written, with the variable that holds it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from curate.errors import ConfigError
from curate.runtime.shipping import pickle_value, refuse_unsendable

ROOT = Path(__file__).parents[2]

JOB = """
import sys, threading
import curate

LOCK = threading.Lock()

def guarded(text):
    with LOCK:
        return text * 2

def double(row):
    return {"id": row["id"], "text": guarded(row["text"])}

if __name__ == "__main__":
    ds = curate.from_items([{"id": n, "text": "ab"} for n in range(4)]).map(double)
    ds = ds.sort("id") if sys.argv[2] == "sort" else ds
    print(ds.write_parquet(sys.argv[1], backend=sys.argv[3]))
"""


class NoPickle:
    """Raises when it is asked what it is."""

    def __reduce__(self) -> str:
        raise RuntimeError("I stay here")


LARGE = np.arange(1 << 18)


@pytest.mark.parametrize(
    "value",
    [
        *(
            lambda: None,
            {"a": [1, len, str]},
            NoPickle,
            b"x" * 1000,
            b"x" * (1 << 20),
            bytearray(1 << 20),
            "é" * (1 << 20),
        ),
        *(
            LARGE,
            LARGE[::2],
            LARGE.reshape(512, 512).T,
            lambda: LARGE,
            pa.table({"a": LARGE}),
            pd.DataFrame({"a": LARGE}),
        ),
    ],
    ids=lambda value: f"{type(value).__name__}",
)
def test_what_can_be_sent_is_not_refused(value: object) -> None:
    """However large it is, and wherever its bytes lie."""
    refuse_unsendable("my job", value)
    assert pickle_value(value)


def test_the_variables_that_hold_what_cannot_are_named() -> None:
    """Those of all functions that would travel, however deep; whatever the error."""
    held, fine = NoPickle(), "fine"

    def inner() -> object:
        return held, fine

    def outer() -> object:
        return inner()

    with pytest.raises(ConfigError) as caught:
        refuse_unsendable("my job", {"steps": [outer]})
    said = str(caught.value)
    assert said.startswith("my job cannot be sent to worker processes: I stay here (it is held in ")
    assert "<locals>.inner" in said
    assert "fine in" not in said
    with pytest.raises(ConfigError, match=r"my job cannot be sent to worker processes: I stay here; make that where"):
        refuse_unsendable("my job", [held])


@pytest.mark.ci(1)
@pytest.mark.slow
@pytest.mark.parametrize("what", ["map", "sort"])
def test_nothing_is_written_and_in_this_process_it_runs(tmp_path: Path, what: str) -> None:
    """Once it is done, where it runs does not matter: there is nothing to send."""
    job, out = tmp_path / "job.py", tmp_path / "out"
    job.write_text(JOB)

    def run(backend: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, str(job), str(out), what, backend]
        env = os.environ | {"PYTHONPATH": str(ROOT)}
        return subprocess.run(argv, env=env, capture_output=True, text=True, check=False)

    refused = run("local")
    assert refused.returncode == 1
    assert "cannot pickle '_thread.lock' object (it is LOCK in guarded)" in refused.stderr
    assert not out.exists()
    for backend in ("inline", "local"):
        done = run(backend)
        assert done.returncode == 0, done.stderr
        assert "4 rows in, 4 out" in done.stdout
