"""Shards whose inputs were removed are taken out, wherever a kill hits."""

from __future__ import annotations

from pathlib import Path

import pytest

from curate.errors import ConfigError
from curate.observe.verify import verify
from tests.e2e.test_two_drivers import Meanwhile, MovingClock, begin_elsewhere
from tests.support.harness import (
    CURATION,
    LENGTHS,
    Place,
    Zygote,
    check_same,
    corpus,
    outputs,
    strangers,
    totals,
)
from tests.support.sweeps import Sweep
from tests.support.workbench import Bench, NoBackend, complete

FILES = corpus(sizes=(60, 3, 40, 0))
REMOVED = ("2020/RC-00.jsonl.gz", "2021/RC-01.jsonl")


@pytest.mark.slow
@pytest.mark.parametrize("job", [LENGTHS, pytest.param(CURATION, marks=pytest.mark.nightly)])
def test_killed_at_every_operation(local: Place, sweep: Sweep, tmp_path: Path, job: str) -> None:
    """The next run ends complete, asked for the removal or not: with the shard and all that was made of it, if the kill
    hit before the plan says that it is out, or with nothing of it. Asked for it again, nothing of it is left, and all
    is as if the inputs had never been there; when they come back, as if they had never been gone."""
    root = Path(local.root)
    source = local.write("in", FILES)
    common = (job, "--backend", "inline", "--json", "--input", source, "--output")
    with Zygote(tmp_path / "zygote") as zygote:
        old = zygote.run(*common, f"{root}/old")
        assert old.code == 0, old.err
        for name in REMOVED:
            local.delete(f"{source}/{name}")
        whole = zygote.run(*common, f"{root}/whole")
        expected, before = local.objects("whole"), local.objects("old")
        for out, where in zygote.killed(root / "old", sweep, 8, *common, options=["--drop-removed"]):
            plain = zygote.run(*common, str(out))
            assert plain.code == 0, f"{where}: {plain.err}"
            assert outputs(local.objects(out.name)) in (outputs(before), outputs(expected)), where
            assert verify(str(out)).state == "ok", where
            ended = zygote.run(*common, str(out), "--drop-removed")
            assert ended.code == 0, f"{where}: {ended.err}"
            found = local.objects(out.name)
            check_same(found, expected, where)
            assert totals(ended.json) == totals(whole.json), where
            assert not strangers(found), where
        assert outputs(local.objects("count")) == outputs(expected)
        for out, where in zygote.killed(root / "old", sweep, 16, *common, options=["--drop-removed"]):
            local.write("in", {name: FILES[name] for name in REMOVED})
            ended = zygote.run(*common, str(out))
            assert ended.code == 0, f"{where}: {ended.err}"
            assert outputs(local.objects(out.name)) == outputs(before), where
            assert totals(ended.json) == totals(old.json), where
            assert verify(str(out)).state == "ok", where
            for name in REMOVED:
                local.delete(f"{source}/{name}")


def test_on_every_store(bench: Bench) -> None:
    """Outputs, books and quarantine are those of a job that never had them; no shard runs, and the next run is free."""
    complete(bench.run())
    bench.begun()
    for name in REMOVED:
        bench.place.delete(f"{bench.source}/{name}")
    assert complete(bench.run(backend=NoBackend())).missing == (2, 2)
    ended = complete(bench.run(backend=NoBackend(), drop_removed=True))
    assert (ended.total, ended.dropped, bench.begun()) == (len(FILES) - 2, 2, [])
    calls = complete(bench.run(backend=NoBackend())).calls
    assert (calls.list, calls.put, calls.delete) == (2, 0, 0)
    bench.check_as_fresh()
    assert not strangers(bench.objects())


def test_what_another_driver_took_out_meanwhile(bench: Bench) -> None:
    """Both are asked to, and write the same to the plan: both end complete, with the same outputs and totals."""
    complete(bench.run(limit=2))
    for name in REMOVED:
        bench.place.delete(f"{bench.source}/{name}")
    found: dict[str, bytes] = {}

    def other() -> None:
        complete(bench.run(drop_removed=True))
        found.update(bench.objects())

    ended = complete(bench.run(drop_removed=True, backend=Meanwhile("start", other)))
    assert ended.total == len(FILES) - 2
    check_same(bench.objects(), found)
    assert len([name for name in bench.objects() if "_curate/plan/" in name]) == 2


def test_not_while_another_driver_is_alive(bench: Bench) -> None:
    """Who is at work may publish what is taken out: refused, and nothing is removed."""
    complete(bench.run())
    for name in REMOVED:
        bench.place.delete(f"{bench.source}/{name}")
    before = outputs(bench.objects())
    clock = MovingClock(bench)
    begin_elsewhere(bench, clock)
    with pytest.raises(ConfigError, match=r"on elsewhere \(pid 1\)"):
        bench.run(drop_removed=True, clock=clock, backend=NoBackend())
    assert outputs(bench.objects()) == before
