"""A chain whose outputs are in a bucket, and one whose steps run on Ray: the same bytes as on one machine's disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from curate.chain.chain import Chain
from tests.chain.chains import CHAIN, FILES, STEPS, place, predicted, ran
from tests.cli.running import Curate, curate
from tests.support.gcs_emulator import GcsEmulator
from tests.support.harness import Place as Kept
from tests.support.harness import outputs

__all__ = ["curate", "place"]


@pytest.fixture
def bucket(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kept]:
    """A bucket with the inputs; `bucket.toml` is the chain over them."""
    with GcsEmulator().here(monkeypatch) as emulator:
        found = Kept("gs://bucket/data", emulator)
        found.write("in", {path.name: path.read_bytes() for path in (place / "in").iterdir()})
        text = CHAIN.replace('"in/', f'"{found.root}/in/').replace('"out/', f'"{found.root}/out/')
        (place / "bucket.toml").write_text(text)
        yield found


def on_disk(place: Path) -> dict[str, dict[str, str]]:
    """The outputs of each step, run inline on the disk."""
    assert ran(Chain.read(place / "pipeline.toml").run(backend="inline")) == dict.fromkeys(STEPS, FILES)
    return _outputs(Kept(str(place)))


def _outputs(where: Kept) -> dict[str, dict[str, str]]:
    return {name: outputs(where.objects(f"out/{name}")) for name in STEPS}


@pytest.mark.slow
def test_in_a_bucket(place: Path, bucket: Kept, curate: Curate) -> None:
    """Run, looked at, and run again for one more input and one lost output, by the commands."""
    assert "clean   not begun  0/0    runs: 24 inputs, nothing is done yet" in curate("status", "bucket.toml").out
    assert curate("run", "bucket.toml", "--backend", "inline", "--json").json["state"] == "complete"
    assert curate("status", "bucket.toml").out.startswith("bucket.toml: 5 steps, 5 up to date\n")
    assert _outputs(bucket) == on_disk(place)
    bucket.write("in", {"24.jsonl": b'{"n": 48}\n'})
    bucket.delete(f"{bucket.root}/out/odd/07.parquet")
    chain = Chain.read("bucket.toml")
    assert predicted(chain) == list(STEPS)
    assert ran(chain.run(backend="inline")) == {**dict.fromkeys(STEPS, 1), "odd": 2}
    again = curate("run", "bucket.toml", "--backend", "inline", "--json")
    assert (again.code, ran(chain.run(backend="inline"))) == (0, {})


@pytest.mark.slow
@pytest.mark.ray_lane
def test_on_ray(place: Path, bucket: Kept, request: pytest.FixtureRequest, curate: Curate) -> None:
    """The shards of each step run on Ray, which lacks the jobs of the chain; on a disk and in a bucket."""
    expected = on_disk(place)
    request.getfixturevalue("on_ray")
    (place / "ray.toml").write_text(CHAIN.replace('"out/', f'"{place}/ray/out/'))
    for file, found in (("ray.toml", Kept(str(place / "ray"))), ("bucket.toml", bucket)):
        ended = curate("run", file, "--backend", "ray")
        assert ended.code == 0, ended.err
        assert curate("status", file).out.startswith(f"{file}: 5 steps, 5 up to date\n")
        assert _outputs(found) == expected
