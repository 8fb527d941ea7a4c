"""A job whose inputs and outputs are in S3, and one that a look-alike is not good enough for."""

from __future__ import annotations

from pathlib import Path

import pytest

from curate.errors import ConfigError
from tests.support.harness import Place, corpus, outputs
from tests.support.s3_emulator import S3Emulator
from tests.support.workbench import Bench, NoBackend, complete

FILES = corpus(sizes=(120, 3, 60))


@pytest.fixture
def place(s3_emulator: S3Emulator) -> Place:
    return Place("s3://bucket/data", s3_emulator)


@pytest.fixture
def bench(place: Place, tmp_path: Path) -> Bench:
    return Bench(place, tmp_path / "trace", place.write("in", FILES))


def test_a_job_in_a_bucket(bench: Bench, local: Place, tmp_path: Path) -> None:
    """The same bytes as on a disk; run again, two listings and a few small reads, and nothing is written."""
    complete(bench.run())
    on_disk = Bench(local, tmp_path / "trace-2", local.write("in", FILES))
    complete(on_disk.run())
    assert outputs(bench.objects()) == outputs(on_disk.objects())
    assert not [name for name in bench.objects() if name.startswith("_curate/tmp/")]
    assert bench.place.emulator
    bench.place.emulator.reset_counts()
    calls = complete(bench.run(backend=NoBackend())).calls.as_dict()
    assert calls == bench.place.emulator.counts()
    assert (calls["list"], calls["put"], calls["delete"]) == (2, 0, 0)
    assert calls["get"] <= 5


def test_an_output_is_refused_where_two_creators_can_win(bench: Bench, s3_emulator: S3Emulator) -> None:
    """Nothing is left there; inputs may be read from such a service."""
    s3_emulator.creates = "lax"
    with pytest.raises(ConfigError, match=rf"the service at {s3_emulator.url} does not keep If-None-Match"):
        bench.run()
    assert bench.objects() == {}
