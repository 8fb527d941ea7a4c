"""Two seams, one behind the other, on Ray: the driver killed while it writes through them, and started again.

Every pair, at every kind of operation, in this process: `tests/graph/test_seams.py`.
"""

from __future__ import annotations

import itertools
import json
import random
import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.e2e.jobs.seams import SEAMS, rows
from tests.support.fakes import NEVER_S
from tests.support.harness import Driver, Place, job_summary, outputs, run, wait_until
from tests.support.sweeps import Mode

SCRIPT = "tests/e2e/jobs/seams.py"
PAIRS = {Mode.CI: 4, Mode.NIGHTLY: 10}
INPUTS = 4


def made(root: Path) -> int:
    """Returns how many files with rows there are: outputs, those of checkpoints, and those of stages."""
    found = itertools.chain(root.rglob("*.parquet"), root.rglob("*.run"))
    return sum(not {"plan", "inputs"} & set(path.parts) for path in found)


@pytest.mark.slow
@pytest.mark.ray_lane
@pytest.mark.nightly
@pytest.mark.usefixtures("on_ray")
def test_pairs_on_ray(local: Place, mode: Mode) -> None:
    """Ten pairs, drawn from a seed; the last four but for the night. Each is written by a driver that is killed on
    its way, after a number of files that is drawn too, and finished by the next one: its bytes and its summary are
    those of an undisturbed write in one process, and no output runs again that was there."""
    rng = random.Random(12)
    pairs = [",".join(pair) for pair in rng.sample([*itertools.product(SEAMS, repeat=2)], 10)][-PAIRS[mode] :]
    files = {}
    for number in range(INPUTS):
        sink = pa.BufferOutputStream()
        pq.write_table(rows(number), sink, compression="none")
        files[f"{number}.parquet"] = sink.getvalue().to_pybytes()
    source = local.write("in", files)
    whole, found = f"{local.root}/whole", f"{local.root}/found"
    assert run(SCRIPT, "inline", source, whole, *pairs).code == 0
    kills = 0
    missing: dict[str, int] = {}
    """Outputs that were not there yet when the driver was killed."""

    def check(pair: str, printed: str) -> None:
        ended = json.loads(printed.splitlines()[0])
        assert ended["tasks"]["attempts"] <= missing[pair], pair
        after, expected = local.objects(f"found/{pair}"), local.objects(f"whole/{pair}")
        assert data(after) == data(expected), pair
        assert summary_of(after) == summary_of(expected), pair

    for number, pair in enumerate(pairs):
        at = Path(found) / pair
        # The files of stages are gone in the end, so that there are fewer then than on the way.
        enough = rng.randint(1, made(Path(whole) / pair))
        with Driver([SCRIPT, "ray", source, found, *pairs[max(0, number - 1) :]]) as driver:
            wait_until(
                lambda a=at, e=enough, d=driver: made(a) >= e or not d.running(), f"{enough} files of {pair}", 180
            )
            assert driver.running(), driver.end().err
            driver.signal(signal.SIGKILL)
            printed, _ = driver.process.communicate(timeout=NEVER_S)
        kills += not (at / "out/_curate/summary.json").exists()
        missing[pair] = len(main_outputs(Path(whole) / pair) - main_outputs(at))
        if number:
            check(pairs[number - 1], printed)
    assert kills >= len(pairs) // 2, f"only {kills} kills hit a write"
    last = run(SCRIPT, "ray", source, found, pairs[-1])
    assert last.code == 0, last.err
    check(pairs[-1], last.out)


def main_outputs(root: Path) -> set[str]:
    """Returns the names of the outputs that are there, without extra ones."""
    return {path.name for path in (root / "out").glob("*.parquet")}


def summary_of(objects: dict[str, bytes]) -> Any:
    """Returns what a summary says of rows and outputs."""
    told = job_summary({name.removeprefix("out/"): data for name, data in objects.items()})
    return {key: told[key] for key in ("rows", "counters", "shards", "bytes")}


def data(objects: dict[str, bytes]) -> dict[str, str]:
    """Returns the digests of outputs and of those of checkpoints."""
    return outputs({name: one for name, one in objects.items() if "/_curate/" not in name})
