"""Inputs on one kind of store, outputs on another: what a job is on a laptop, reading files and writing to a bucket."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.gcs_emulator import GcsEmulator
from tests.support.harness import CURATION, Place, corpus, outputs, run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "target", "backend"),
    [
        ("files", "bucket", "inline"),
        ("bucket", "files", "inline"),
        pytest.param("files", "bucket", "ray", marks=[pytest.mark.ray_lane, pytest.mark.nightly]),
        pytest.param("bucket", "files", "ray", marks=[pytest.mark.ray_lane, pytest.mark.nightly]),
    ],
)
def test_the_bytes_do_not_depend_on_where_they_come_from_or_go(
    source: str, target: str, backend: str, emulator: GcsEmulator, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The same outputs as where all is in one place; run again, nothing is left to do."""
    if backend == "ray":
        request.getfixturevalue("on_ray")
    places = {"files": Place(str(tmp_path / "data")), "bucket": Place("gs://bucket/data", emulator)}
    inputs = {name: place.write("in", corpus()) for name, place in places.items()}
    alone = run(CURATION, "--backend", "inline", "--input", inputs["files"], "--output", str(tmp_path / "data/alone"))
    assert alone.code == 0, alone.err
    argv = [
        CURATION,
        "--backend",
        backend,
        "--json",
        "--input",
        inputs[source],
        "--output",
        f"{places[target].root}/out",
    ]
    first = run(*argv, env=emulator.environ)
    assert first.code == 0, first.err
    again = run(*argv, env=emulator.environ)
    assert (again.code, again.json["tasks"]["dispatched"]) == (0, 0), again.err
    assert outputs(places[target].objects("out")) == outputs(places["files"].objects("alone"))
