"""Outputs that an earlier version left half done: this one resumes, shows, verifies and replays them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from curate.job.job import Job
from tests.cli.running import Curate
from tests.job.inline import run_job
from tests.pins.jobs import Lengths, Ordered
from tests.pins.ledgers import INPUTS, OUTPUT, SCRIPT, digests, load, read_expected

WHOLE = f"{OUTPUT}-whole"
JOBS: dict[str, Callable[[], Job]] = {"lengths": Lengths, "ordered": Ordered}


@pytest.fixture
def curate(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Curate:
    return Curate(capsys, monkeypatch)


@pytest.mark.parametrize("name", JOBS)
def test_what_was_left_is_finished(name: str) -> None:
    """A run that was killed under an earlier version is resumed: what is done is not done again, and stays as that
    version made it; the rest is what this version makes of it, under the same names and with the same books."""
    load(name)
    expected = read_expected(name)
    left = digests(OUTPUT)
    assert left.items() < expected["outputs"].items(), "the ledger was kept before it was complete"
    run_job(JOBS[name](), INPUTS, WHOLE)
    summary = run_job(JOBS[name](), INPUTS, OUTPUT)
    assert (summary.state, summary.skipped) == (expected["state"], expected["done_when_killed"])
    done = {one: digest for one, digest in left.items() if one.rpartition("/")[2] in left}
    assert digests(OUTPUT) == digests(WHOLE) | done
    assert digests(OUTPUT).keys() == expected["outputs"].keys()
    assert summary.books.rows() == expected["rows"]


@pytest.mark.parametrize("name", JOBS)
def test_what_was_left_is_shown(name: str, curate: Curate) -> None:
    """Status of a run of an earlier version, while it was at work and once it is done."""
    load(name)
    expected = read_expected(name)
    shown = curate("status", OUTPUT, "--json").json
    assert (shown["job"], shown["shards"]["done"]) == (name, expected["done_when_killed"])
    assert curate("verify", OUTPUT).code == 1, "outputs are missing"
    run_job(JOBS[name](), INPUTS, OUTPUT)
    verified = curate("verify", OUTPUT, "--json").json
    assert (verified["problems"], verified["rows"]["out"]) == ({}, expected["rows"]["out"])


def test_a_failed_shard_is_replayed(curate: Curate) -> None:
    """The failure that an earlier version noted is shown, and its shard is run again by its id."""
    load("lengths")
    assert "ValueError: poison" in curate("failures", OUTPUT).out
    replayed = curate("replay", OUTPUT, "--shard", "0-poison", "--job", str(SCRIPT))
    assert replayed.code == 1
    assert "ValueError: poison" in replayed.out + replayed.err
