"""One poison file among fifty: the others finish, the failure is told whole, and once it is mended one shard runs."""

from __future__ import annotations

import shlex
from collections.abc import Callable

import pytest

from curate.cli.main import cli
from curate.ledger.summary import RunState
from tests.e2e.jobs.choosy import Choosy
from tests.job.inline import run_job
from tests.support.fakes import FakeClock
from tests.support.harness import Ended, Place, outputs, run

FILES = {
    f"part-{n:02}.jsonl": b"".join(b'{"id": "%d-%d", "text": "fine"}\n' % (n, k) for k in range(5)) for n in range(50)
}
POISON = "part-17.jsonl"
POISONED = FILES[POISON].replace(b'"17-3", "text": "fine"', b'"17-3", "text": "poison"')
SCRIPT = "tests/e2e/jobs/choosy.py"

Curate = Callable[..., Ended]


def check_the_failure(curate: Curate, output: str, source: str) -> str:
    """Checks what `curate failures` says of the one shard; returns the command that replays it."""
    found = curate("failures", output, "--json")
    assert found.code == 0
    assert found.json["failed"] == 1
    (group,) = found.json["groups"]
    assert (group["shards"], group["attempts"], group["kinds"]) == (1, 4, {"user_error": 4})
    assert (group["error"], group["message"]) == ("ValueError", "cannot measure '…'")
    assert group["frame"] == "tests/e2e/jobs/choosy.py:31 in measure"
    example = group["example"]
    assert (example["shard"], example["input"]) == ("part-17", f"{source}/{POISON}")
    assert 'raise ValueError(f"cannot measure {text!r}")' in example["traceback"]
    assert example["node"]
    assert example["pid"] > 0
    assert example["peak_bytes"] > 10_000_000
    for_people = curate("failures", output).out
    assert group["replay"] in for_people
    assert f"curate retry {output}" in for_people
    return str(group["replay"])


def check_it_is_mended(curate: Curate, place: Place, replay: list[str], output: str) -> None:
    """Replays the shard as it is and mended, which publishes nothing; retries it, and nothing else."""
    choked = curate(*replay)
    assert choked.code == 1
    assert "ValueError: cannot measure 'poison'" in choked.out
    place.write("in", {POISON: FILES[POISON]})
    assert curate(*replay).code == 0
    assert len(outputs(place.objects("out"))) == 49
    retried = curate("retry", output, "--json")
    assert retried.code == 0, retried.err
    assert retried.json["shards"] == {"total": 1, "done": 1, "skipped": 0, "failed": 0}
    assert retried.json["tasks"]["attempts"] == 1
    assert len(outputs(place.objects("out"))) == 50
    assert curate("failures", output, "--json").json["failed"] == 0
    again = curate("retry", output, "--json")
    assert (again.code, again.json["shards"]["total"]) == (0, 0)


@pytest.mark.ci(2)
def test_inline(place: Place, clock: FakeClock, capsys: pytest.CaptureFixture[str]) -> None:
    """In this process, on disk and in a bucket; the bytes are in the end those of a job in which nothing failed."""

    def curate(*args: str) -> Ended:
        with pytest.raises(SystemExit) as left:
            cli.main(args, prog_name="curate")
        return Ended(int(left.value.code or 0), *capsys.readouterr())

    source, output = place.write("in", FILES | {POISON: POISONED}), f"{place.root}/out"
    failed = run_job(Choosy(), source, output, clock=clock)
    assert (failed.state, failed.state.exit_code) == (RunState.FAILED, 1)
    assert (failed.done, failed.failed, failed.attempts) == (49, 1, 53)
    assert len(outputs(place.objects("out"))) == 49
    replay = shlex.split(check_the_failure(curate, output, source))[1:]
    check_it_is_mended(curate, place, replay, output)
    assert run_job(Choosy(), source, f"{place.root}/fresh").state is RunState.COMPLETE
    assert outputs(place.objects("out")) == outputs(place.objects("fresh"))


@pytest.mark.ci(1)
@pytest.mark.slow
@pytest.mark.usefixtures("on_workers")
@pytest.mark.parametrize(
    "on_workers", ["local", pytest.param("ray", marks=[pytest.mark.ray_lane, pytest.mark.nightly])], indirect=True
)
def test_on_workers(local: Place) -> None:
    """Each command a process of its own; the job is run as a script, and found again as a module."""

    def curate(*args: str) -> Ended:
        return run("-m", "curate.cli.main", *args)

    source, output = local.write("in", FILES | {POISON: POISONED}), f"{local.root}/out"
    failed = run(SCRIPT, "--json", "--input", source, "--output", output)
    assert failed.code == 1, failed.err
    assert (failed.json["shards"]["done"], failed.json["shards"]["failed"]) == (49, 1)
    replay = shlex.split(check_the_failure(curate, output, source))[1:]
    check_it_is_mended(curate, local, replay, output)
