"""Pools on a real GPU, under a job run as users run it; where there is none, only made-up ones are tried elsewhere."""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from curate.local.machine import gpus
from curate.observe.failures import read_failures
from tests.support.harness import Ended, Place, balanced, check_same, encoded, outputs, run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not gpus() or importlib.util.find_spec("torch") is None, reason="there is no GPU, or no torch"),
]
JOB = "tests/e2e/jobs/on_gpu.py"
FILES, ROWS = 6, 20
BREAKS = "f3.jsonl"


@pytest.fixture(params=["local", *(["ray"] if importlib.util.find_spec("ray") else [])])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def rows(file: str, *, breaks: bool) -> list[dict[str, Any]]:
    texts = [f"text {k} of {file}" for k in range(ROWS)]
    if breaks and file == BREAKS:
        texts[11] = "breaks the GPU"
    return [{"file": file, "id": k, "text": text} for k, text in enumerate(texts)]


class Work:
    """A job over a few files, one of which may have a row that breaks the GPU."""

    def __init__(self, place: Place, backend: str, *, breaks: bool) -> None:
        self.place = place
        self._backend = backend
        names = [f"f{k}.jsonl" for k in range(FILES)]
        self.source = place.write("in", {name: encoded(name, rows(name, breaks=breaks)) for name in names})

    def run(self, *more: str, out: str = "out") -> Ended:
        where = ["--input", self.source, "--output", f"{self.place.root}/{out}", "--backend", self._backend]
        return run(JOB, "--json", *where, *more)

    def written(self, out: str = "out") -> list[dict[str, Any]]:
        folder = Path(f"{self.place.root}/{out}")
        return [row for path in sorted(folder.glob("*.parquet")) for row in pq.read_table(path).to_pylist()]


def test_actors_have_the_gpu_and_share_it(local: Place, backend: str) -> None:
    """Each sees what it holds; four with a quarter each are there at once. The same bytes, whoever had what."""
    work = Work(local, backend, breaks=False)
    whole = work.run()
    assert whole.code == 0, whole.err
    assert Counter(row["gpus"] for row in work.written()) == {gpus()[0]: FILES * ROWS}
    quarters = work.run("--actors", "4", "--share", "0.25", out="quarters")
    assert quarters.code == 0, quarters.err
    found = outputs(local.objects("out"))
    assert found == outputs(local.objects("quarters"))
    again = work.run()
    assert (again.code, again.json["tasks"]["attempts"]) == (0, 0)
    assert outputs(local.objects("out")) == found


def test_more_than_there_are_are_refused_with_the_arithmetic(local: Place) -> None:
    ended = Work(local, "local", breaks=False).run("--share", "100")
    assert ended.code == 2
    assert "100 GPU" in ended.err
    assert not local.objects("out")


def test_a_row_that_breaks_the_gpu_once_costs_no_other_row(local: Place, backend: str, tmp_path: Path) -> None:
    """Its actor is replaced, since nothing works there any more, and all is done as if nothing had happened; no row is
    taken for a bad one."""
    work = Work(local, backend, breaks=True)
    ended = work.run("--once", str(tmp_path / "once"), "--max-bad-rows", "50%", "--quarantine-errors")
    assert ended.code == 0, ended.err
    assert (ended.json["rows"]["out"], ended.json["rows"]["quarantined"]) == (FILES * ROWS, 0)
    (group,) = read_failures(f"{local.root}/out").all_groups()
    assert group.kinds == {"crashed": 1}
    assert work.run("--once", str(tmp_path / "once"), out="whole").code == 0
    check_same(local.objects("out"), local.objects("whole"))


def test_a_row_that_always_breaks_the_gpu_fails_its_shard_alone(local: Place, backend: str) -> None:
    """After as many tries as a shard that kills its worker has; what was raised is told."""
    ended = Work(local, backend, breaks=True).run(
        "--max-bad-rows", "50%", "--quarantine-errors", "--max-failed-shards", "1"
    )
    assert ended.json["shards"]["failed"] == 1, ended.err
    assert (ended.json["rows"]["out"], ended.json["rows"]["quarantined"]) == ((FILES - 1) * ROWS, 0)
    assert balanced(ended.json["rows"])
    (group,) = read_failures(f"{local.root}/out").all_groups()
    assert group.kinds == {"crashed": 3}
    assert "device-side assert" in group.example["error"]
