"""`curate retry` and `--retry-failed`: the failed shards of a job, and nothing else, as the job was run."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from click import Context

from curate.cli.main import cli
from curate.job.command import command
from curate.job.job import Job
from curate.job.locate import locate
from curate.job.settings import NEUTRAL, TUNABLE
from curate.ledger import layout
from curate.ledger.compression import compress
from curate.ledger.summary import RunState
from tests.cli.running import Curate, curate
from tests.e2e.jobs.choosy import Choosy
from tests.job.inline import everything, outputs, refusing, run_job, write_jsonl
from tests.support.fakes import FakeClock
from tests.support.ledgers import make_ledger

__all__ = ["curate"]

FINE = [{"id": "x", "text": "fine"}]
POISON = [{"id": "y", "text": "fine"}, {"id": "z", "text": "poison"}]
NAMES = ("a", "b", "c", "d", "e")
BAD = ("b", "d")


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    """Inputs of which two have failed and one, `e`, was never run, and the output."""
    source, output = tmp_path / "in", tmp_path / "out"
    for name in NAMES:
        write_jsonl(source / f"{name}.jsonl", POISON if name in BAD else FINE)
    run_job(Choosy(), source, output, clock=FakeClock(), limit=4)
    return source, output


def mend(source: Path, *names: str) -> None:
    for name in names:
        write_jsonl(source / f"{name}.jsonl", FINE)


def done(output: Path) -> str:
    """Returns the names of the outputs, in one word."""
    return "".join(sorted(name.removesuffix(".parquet") for name in outputs(output)))


class TestOption:
    def test_only_what_failed(self, places: tuple[Path, Path]) -> None:
        """Not what was never run, and not what is done; each failed one as often as any shard that fails."""
        again = run_job(Choosy(), *places, clock=FakeClock(), retry_failed=True)
        assert (again.state, again.total, again.failed, again.attempts) == (RunState.FAILED, 2, 2, 8)
        mend(places[0], "b")
        half = run_job(Choosy(), *places, clock=FakeClock(), retry_failed=True)
        assert (half.total, half.done, half.failed, half.attempts) == (2, 1, 1, 5)
        assert done(places[1]) == "abc"
        mend(places[0], "d")
        rest = run_job(Choosy(), *places, clock=FakeClock(), retry_failed=True)
        assert (rest.state, rest.total, rest.attempts) == (RunState.COMPLETE, 1, 1)
        assert done(places[1]) == "abcd"

    def test_with_limit_and_sample(self, places: tuple[Path, Path]) -> None:
        """Of those that failed: the first, or some part of them, at least one."""
        assert run_job(Choosy(), *places, clock=FakeClock(), retry_failed=True, limit=1).total == 1
        assert run_job(Choosy(), *places, clock=FakeClock(), retry_failed=True, sample="1%").total == 1

    def test_what_failed_and_was_done_in_a_later_run(self, places: tuple[Path, Path]) -> None:
        """Has not failed, though its output was removed since: it is to be run as any other shard."""
        mend(places[0], *BAD)
        clock = FakeClock()
        clock.advance(60)
        run_job(Choosy(), *places, clock=clock)
        (places[1] / "b.parquet").unlink()
        assert run_job(Choosy(), *places, clock=clock, retry_failed=True).total == 0
        assert done(places[1]) == "acde"

    def test_nothing_failed(self, places: tuple[Path, Path]) -> None:
        """Then nothing runs, and that is no error."""
        mend(places[0], *BAD)
        run_job(Choosy(), *places)
        before = everything(places[1])
        summary = run_job(Choosy(), *places, retry_failed=True)
        assert (summary.state, summary.total, summary.attempts) == (RunState.COMPLETE, 0, 0)
        assert everything(places[1]) == before

    def test_no_job(self, places: tuple[Path, Path], tmp_path: Path) -> None:
        """A slip in the output's name is not the beginning of a new job."""
        with refusing("has no curate job, so nothing has failed there"):
            run_job(Choosy(), places[0], tmp_path / "uot", retry_failed=True)
        assert not (tmp_path / "uot").exists()

    def test_new_inputs_wait(self, places: tuple[Path, Path]) -> None:
        """They join the plan, and are not run."""
        mend(places[0], *BAD)
        write_jsonl(places[0] / "f.jsonl", FINE)
        summary = run_job(Choosy(), *places, retry_failed=True)
        assert (summary.total, summary.done) == (2, 2)
        assert done(places[1]) == "abcd"
        assert run_job(Choosy(), *places).total == 6


class TestCommand:
    def test_it_is_the_same_job(self, places: tuple[Path, Path], curate: Curate) -> None:
        """Exit codes and results are those of a job: 1 while something fails, 0 when all that had failed is done."""
        mend(places[0], "b")
        # Fails at once, without a backoff.
        write_jsonl(places[0] / "d.jsonl", b"no json\n" * 50)
        first = curate("retry", str(places[1]), "--json")
        assert first.code == 1
        assert first.json["shards"] == {"total": 2, "done": 1, "skipped": 0, "failed": 1}
        mend(places[0], "d")
        dry = curate("retry", str(places[1]), "--dry-run")
        assert (dry.code, "shards   1 of 5 in the plan" in dry.out) == (0, True)
        second = curate("retry", str(places[1]))
        assert second.code == 0
        assert "1 of 1" in second.err
        assert done(places[1]) == "abcd"
        assert curate("retry", str(places[1])).code == 0

    def test_several_drivers(self, places: tuple[Path, Path], curate: Curate) -> None:
        """Each retries its part, and then helps: one whose others never begin does all."""
        mend(places[0], *BAD)
        assert curate("retry", str(places[1]), "--part", "1/2").code == 0
        assert done(places[1]) == "abcd"
        refused = curate("retry", str(places[1]), "--part", "2/2", "--json")
        assert (refused.code, "is out of range" in refused.err) == (2, True)

    def test_nothing_failed(self, places: tuple[Path, Path], curate: Curate) -> None:
        """Then nothing runs, and it is not called complete: `e` is still to be run. For scripts it is a run of none."""
        mend(places[0], *BAD)
        assert curate("retry", str(places[1])).code == 0
        left = f"no shard of {places[1]} has failed; 1 of 5 are not done: curate status {places[1]}\n"
        for args in ([], ["--dry-run"]):
            again = curate("retry", str(places[1]), *args)
            assert (again.code, again.out, again.err) == (0, "", left)
        assert curate("retry", str(places[1]), "--json").json["shards"]["total"] == 0
        assert done(places[1]) == "abcd"
        run_job(Choosy(), *places)
        assert curate("retry", str(places[1])).err == f"no shard of {places[1]} has failed\n"

    def test_parameters_and_settings_are_those_of_the_run(self, tmp_path: Path, curate: Curate) -> None:
        """As they were given, not the defaults."""
        source, output = tmp_path / "in", tmp_path / "out"
        write_jsonl(source / "a.jsonl", [{"id": "1", "text": "venom"}, {"id": "2", "text": "poison"}])
        run_job(Choosy(word="venom", batch_size=1), source, output, clock=FakeClock())
        write_jsonl(source / "a.jsonl", [{"id": "2", "text": "poison"}])
        retried = curate("retry", str(output), "--json")
        assert (retried.code, retried.json["rows"]["out"]) == (0, 1)

    def test_settings_that_change_no_output_may_be_others(self, tmp_path: Path, curate: Curate) -> None:
        """As many bad rows as one allows now; the next retry has the same, if it says nothing."""
        source, output = tmp_path / "in", tmp_path / "out"
        for name in ("a", "b"):
            write_jsonl(source / f"{name}.jsonl", b"no json\n" * 50)
        assert run_job(Choosy(), source, output, clock=FakeClock()).failed == 2
        more = curate("retry", str(output), "--json", "--max-bad-rows", "50", "--limit", "1")
        assert (more.code, more.json["shards"]["done"], more.json["rows"]["quarantined"]) == (0, 1, 50)
        assert curate("retry", str(output)).code == 0
        refused = curate("retry", str(output), "--batch-size", "7")
        assert (refused.code, "No such option" in refused.err) == (2, True)

    def test_it_takes_what_a_run_takes(self) -> None:
        """All that makes no other job of it, by the same names, but for where to read and write and what to remove."""
        run, retry = ({option for one in made.params for option in one.opts} for made in (command(Choosy), _retry()))
        not_taken = {"-i", "--input", "-o", "--output", "--overwrite", "--yes", "--retry-failed", "--redo-stale"}
        not_taken |= {"--drop-removed", "--word"}
        not_taken |= {f"--{name.replace('_', '-')}" for name in TUNABLE if name not in NEUTRAL}
        assert retry - {"output", "--job", "--help", "-h"} == run - not_taken

    def test_relative_paths_are_as_they_were(
        self, tmp_path: Path, curate: Curate, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Inputs that were given relative to where the job was run; the output relative to where one is now."""
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path)
        write_jsonl(tmp_path / "in" / "a.jsonl", POISON)
        run_job(Choosy(), "in/*.jsonl", "out", clock=FakeClock())
        monkeypatch.chdir(tmp_path / "elsewhere")
        mend(tmp_path / "in", "a")
        assert curate("retry", "../out").code == 0
        assert done(tmp_path / "out") == "a"
        assert Path.cwd() == tmp_path / "elsewhere"

    def test_an_older_ledger(self, places: tuple[Path, Path], curate: Curate) -> None:
        """Nothing says where the job comes from; its own command does the same."""
        for path in (places[1] / layout.RUNS).glob("*/run.json"):
            path.write_bytes(orjson.dumps(orjson.loads(path.read_bytes()) | {"origin": {}}))
        refused = curate("retry", str(places[1]))
        assert refused.code == 2
        assert "run the job itself with --retry-failed" in refused.err

    def test_no_job(self, tmp_path: Path, curate: Curate) -> None:
        """Exit code 2, as for all that looks at jobs."""
        refused = curate("retry", str(tmp_path))
        assert refused.code == 2
        assert "no curate job" in refused.err


def _retry() -> Any:
    """Returns the command, with all of its parameters."""
    made = cli.commands["retry"]
    return SimpleNamespace(params=made.get_params(Context(made)))


SCRIPT = """
from curate import Job

class Mine(Job):
    {version}

    def process(self, batch):
        {body}
"""


def load(path: Path) -> Job:
    """Returns the job of a file."""
    return locate({"script": str(path), "module": "", "class": "Mine", "parameters": {}, "settings": {}})


@pytest.fixture
def _as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "modules", sys.modules.copy())
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.mark.usefixtures("_as_before")
class TestChangedCode:
    def run(self, tmp_path: Path, before: str, after: str, version: str) -> tuple[str, str]:
        write_jsonl(tmp_path / "in" / "a.jsonl", FINE)
        write_jsonl(tmp_path / "in" / "b.jsonl", POISON)
        first, second = tmp_path / "first.py", tmp_path / "second.py"
        first.write_text(SCRIPT.format(version=version, body=before))
        second.write_text(SCRIPT.format(version=version, body=after))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "modules", sys.modules.copy())
            run_job(load(first), tmp_path / "in", tmp_path / "out", clock=FakeClock())
        return str(tmp_path / "out"), str(second)

    CHOKES = "return batch if len(batch) < 2 else 1 / 0"

    def test_under_one_version_it_is_accepted_or_refused(self, tmp_path: Path, curate: Curate) -> None:
        """As when the job is run: a mended job goes on with --accept-code-change."""
        output, second = self.run(tmp_path, self.CHOKES, "return batch", "version = '1'")
        refused = curate("retry", output, "--job", second)
        assert refused.code == 2
        assert "Go on with --accept-code-change" in refused.err
        assert curate("retry", output, "--job", second, "--accept-code-change").code == 0
        assert done(tmp_path / "out") == "ab"

    def test_another_identity_is_refused(self, tmp_path: Path, curate: Curate) -> None:
        """Without a version the code is the identity: the outputs that are there are of another job."""
        output, second = self.run(tmp_path, self.CHOKES, "return batch", "batch_size = 10")
        for accepted in ([], ["--accept-code-change"]):
            refused = curate("retry", output, "--job", second, *accepted)
            assert refused.code == 2
            assert "with another identity" in refused.err
            assert "a job without `version` is known by its code" in refused.err
            assert "Put the code back, choose another output, or start over with --overwrite" in refused.err

    @pytest.mark.parametrize("body", [CHOKES, "return batch.to_pylist()"], ids=["raised", "returned"])
    @pytest.mark.parametrize(
        ("version", "advice"),
        [("version = '1'", "the same with --accept-code-change"), ("batch_size = 10", "run it with --overwrite")],
    )
    def test_what_failed_in_the_code_is_told_with_what_goes_on_once_it_is_fixed(
        self, tmp_path: Path, curate: Curate, version: str, advice: str, body: str
    ) -> None:
        """`curate retry` alone is refused then: it was all that was said, and is right where an input is mended."""
        write_jsonl(tmp_path / "in" / "a.jsonl", POISON)
        job, output = tmp_path / "job.py", str(tmp_path / "out")
        job.write_text(SCRIPT.format(version=version, body=body))
        asked = ("run", str(job), "--input", str(tmp_path / "in"), "--output", output, "--backend", "inline")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "modules", sys.modules.copy())
            patch.setattr("curate.graph.entry.SystemClock", FakeClock)
            ended = curate(*asked)
        assert ended.code == 1
        assert f"After a change of the job's code: {advice}" in ended.err
        assert f"after a change of the job's code: {advice}" in curate("failures", output).out
        job.write_text(SCRIPT.format(version=version, body="return batch"))
        go_on = ("retry", output, "--accept-code-change") if version[0] == "v" else (*asked, "--overwrite", "--yes")
        assert curate(*go_on).code == 0
        assert done(tmp_path / "out") == "a"

    def test_a_file_that_is_gone(self, tmp_path: Path, curate: Curate) -> None:
        """As after `ray job submit`, whose copy is gone: where it is now is said with --job."""
        output, second = self.run(tmp_path, self.CHOKES, self.CHOKES, "version = '1'")
        (tmp_path / "first.py").unlink()
        refused = curate("retry", output)
        assert refused.code == 2
        assert "pass its file: curate retry OUTPUT --job PATH" in refused.err
        mend(tmp_path / "in", "b")
        assert curate("retry", output, "--job", second).code == 0


def test_a_ledger_whose_last_run_is_another_job_of_the_same_name(places: tuple[Path, Path]) -> None:
    """Ranks are of the plan that is there: an event beyond it, of a zombie, makes nothing fail."""
    ledger = make_ledger(str(places[1]))
    line = {"index": 99, "outcome": "failed", "time": 9e9, "shard": "x"}
    ledger.store.publish(ledger.uri(layout.events_segment("9", 1)), compress(orjson.dumps(line)))
    assert run_job(Choosy(), *places, clock=FakeClock(), retry_failed=True).total == 2
