"""What a task has not begun is taken by slots that are idle, in real processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.harness import Place, balanced, outputs, run

pytestmark = pytest.mark.slow
PATIENT = "tests/e2e/jobs/patient.py"
SHARDS = 40
FIRST_OF_A_BUNDLE = 16
"""Of the shards by their size: as many tasks as a run has at least are launched before a pace is known."""
FILES = {
    f"{n:02}.jsonl": json.dumps({"id": f"{n:02}", "filler": "x" * (100 * (SHARDS - n))}).encode() + b"\n"
    for n in range(SHARDS)
}


@pytest.mark.ray(0)
@pytest.mark.parametrize("backend", ["local", pytest.param("ray", marks=pytest.mark.ray_lane)])
def test_a_task_whose_shard_waits_for_those_behind_it_ends(backend: str, tmp_path: Path) -> None:
    """Each is run once, and the task is no failure."""
    place = Place(str(tmp_path))
    source, begun = place.write("in", FILES), tmp_path / "begun"
    own = ["--begun", str(begun), "--last", f"{FIRST_OF_A_BUNDLE:02}", "--shards", str(SHARDS)]
    ended = run(PATIENT, "--json", "--backend", backend, "--input", source, "--output", f"{place.root}/out", *own)
    assert ended.code == 0, ended.err
    assert ended.json["shards"] == {"total": SHARDS, "done": SHARDS, "skipped": 0, "failed": 0}
    assert balanced(ended.json["rows"])
    assert len(outputs(place.objects("out"))) == SHARDS
    assert {one.name for one in begun.iterdir()} == {name[:2] for name in FILES}
    # Small ones end before word of them arrives: those that were taken over may be run twice, none more often.
    assert max(len(one.read_text().splitlines()) for one in begun.iterdir()) <= 2
    assert ended.json["tasks"]["attempts"] == SHARDS
