"""A job whose inputs and outputs are in S3, and one that a look-alike is not good enough for."""

from __future__ import annotations

from pathlib import Path

import pytest

import curate
from curate.errors import ConfigError
from curate.stores.s3.probe import CREATORS
from curate.testing.clock import FakeClock
from tests.support.harness import Place, corpus, outputs
from tests.support.moto_server import MotoServer
from tests.support.s3_emulator import S3Emulator
from tests.support.workbench import Bench, NoBackend, complete

FILES = corpus(sizes=(120, 3, 60))


@pytest.fixture
def place(s3_emulator: S3Emulator) -> Place:
    return Place("s3://bucket/data", s3_emulator)


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_bucket_shows_once_what_it_keeps(bench: Bench, s3_emulator: S3Emulator) -> None:
    """In each process, however many outputs it writes there."""
    first, second = (complete(bench.run(output=name)).calls for name in ("first", "second"))
    # Eight creators, of whom seven look at what is there, and two more uploads; one delete that deletes nothing.
    cost = {"list": 1, "get": CREATORS - 1, "put": CREATORS + 2, "delete": 2}
    assert first.since(second).as_dict() == cost
    s3_emulator.reset_counts()
    curate.range(9).sort("id").write_parquet(f"{bench.place.root}/third", backend="inline")
    assert s3_emulator.counts()["delete"] == 0


@pytest.mark.slow
def test_names_of_any_characters(bench: Bench) -> None:
    """Of inputs, and so of outputs. A name that an output cannot have is refused before the run; the others stay."""
    rows = FILES["2021/RC-01.jsonl"]
    odd = ["a b", "c+d", "100%41", "ü/日本", "e?f#g", "x" * 200]
    bench.source = bench.place.write("odd", {f"{name}.jsonl": rows for name in odd})
    complete(bench.run())
    assert {f"{name}.parquet" for name in odd} <= set(bench.objects())
    # 1,024 bytes with "data/odd/" and ".jsonl"; the name of the output is longer.
    longest = "/".join(["ä" * 100] * 5)[:-1] + "x" * 7
    made = bench.objects()
    bench.place.write("odd", {f"{longest}.jsonl": rows})
    with pytest.raises(ConfigError, match=rf"would have 1,026 bytes, and the store takes 1,024: .*{longest}\.jsonl'"):
        bench.run()
    assert bench.objects() == made


@pytest.mark.slow
def test_an_archived_input(bench: Bench, s3_emulator: S3Emulator, clock: FakeClock) -> None:
    """The others are done; it is said what to do; and once it is restored, that one alone is left."""
    uri = f"{bench.source}/2021/RC-01.jsonl"
    s3_emulator.put(uri, FILES["2021/RC-01.jsonl"], headers={"x-amz-storage-class": "GLACIER"})
    ended = bench.run(clock=clock)
    assert (ended.done, ended.failed) == (len(FILES) - 1, 1)
    (group,) = ended.failures
    assert "the object is archived (Glacier) and cannot be read; restore it" in group.error
    s3_emulator.put(uri, FILES["2021/RC-01.jsonl"])
    bench.begun()
    complete(bench.run())
    assert bench.begun() == ["2021/RC-01.jsonl"]


def test_an_output_is_refused_where_two_creators_can_win(bench: Bench, s3_emulator: S3Emulator) -> None:
    """Nothing is left there; inputs may be read from such a service. A job of several stages is refused, too."""
    s3_emulator.creates = "lax"
    with pytest.raises(ConfigError, match="does not keep If-None-Match"):
        curate.range(9).sort("id").write_parquet(f"{bench.place.root}/out", backend="inline")
    with pytest.raises(ConfigError, match=rf"the service at {s3_emulator.url} does not keep If-None-Match"):
        bench.run()
    assert bench.objects() == {}


@pytest.mark.slow
def test_a_bucket_with_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was removed or replaced is there as an older version; its name is free, and no listing has it."""
    monkeypatch.setattr("curate.stores.s3.probe._kept", set())
    with MotoServer(versioned=True) as moto:
        for name, value in moto.environ.items():
            monkeypatch.setenv(name, value)
        place = Place("s3://bucket/data", moto)
        bench = Bench(place, tmp_path / "trace", place.write("in", FILES))
        complete(bench.run())
        gone = "2021/RC-01.parquet"
        place.delete(f"{place.root}/out/{gone}")
        assert gone not in bench.objects()
        assert (complete(bench.run()).skipped, complete(bench.run()).skipped) == (len(FILES) - 1, len(FILES))
        place.write("in", {"2021/RC-01.jsonl": FILES["2021/RC-01.jsonl"] * 2})
        complete(bench.run(redo_stale=True))
        bench.check_as_fresh()
        complete(bench.run(overwrite=True, confirm=lambda _: True))
        bench.check_as_fresh()
