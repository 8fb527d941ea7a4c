"""A chain of five jobs over 24 files: exactly what must run runs, counted; and what a status says would run is that."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from curate.chain.chain import Chain
from curate.chain.plan import Action, Asked, verdicts
from curate.errors import ConfigError
from tests.chain.chains import FILES, STEPS, add_input, place, predicted, ran, seen
from tests.cli.running import Curate, curate
from tests.job.inline import everything, write_jsonl
from tests.support.fakes import NEVER_S

__all__ = ["curate", "place"]

ALL = dict.fromkeys(STEPS, FILES)


@pytest.fixture
def chain(place: Path) -> Chain:
    """The chain, which has been run."""
    found = Chain.read(place / "pipeline.toml")
    assert predicted(found) == list(STEPS)
    assert ran(found.run(backend="inline")) == ALL
    return found


def test_a_chain_that_is_up_to_date_does_nothing(chain: Chain, place: Path) -> None:
    """No task and no write."""
    before = seen(place)
    assert predicted(chain) == []
    again = chain.run(backend="inline")
    assert (again.state, ran(again)) == ("complete", {})
    assert seen(place) == before


@pytest.mark.slow
def test_several_drivers_run_one_chain(place: Path) -> None:
    """Each runs every step with its part of it; the bytes are those of one driver, and nothing is left to do."""
    command = [sys.executable, "-m", "curate.cli.main", "run", "pipeline.toml", "--backend", "inline", "--json"]
    started = [
        subprocess.Popen([*command, "--part", f"{part}/2"], cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for part in range(2)
    ]
    for driver in started:
        out, err = driver.communicate(timeout=NEVER_S)
        assert driver.returncode == 0, err.decode()
        assert orjson.loads(out)["state"] == "complete"
    chain = Chain.read(place / "pipeline.toml")
    assert predicted(chain) == []
    together = {name: data for name, data in everything(place / "out").items() if "_curate" not in name}
    shutil.rmtree(place / "out")
    assert ran(chain.run(backend="inline")) == ALL
    assert together == {name: data for name, data in everything(place / "out").items() if "_curate" not in name}


@pytest.mark.slow
def test_a_second_driver_is_refused_and_helps_as_it_is_told_to(place: Path) -> None:
    """The option that the refusal names is one that a chain takes; both end complete, with the bytes of one driver."""
    for file in sorted((place / "in").iterdir())[2:]:
        file.unlink()
    command = [sys.executable, "-m", "curate", "run", "pipeline.toml", "--backend", "inline"]
    jobs = (place / "steps_of_test.py").read_text()
    while_running = """
        import pathlib, subprocess, sys
        if not pathlib.Path("second").exists():
            pathlib.Path("second").touch()
            for number, words in enumerate(([], ["--allow-concurrent"])):
                ran = subprocess.run([*COMMAND, *words], capture_output=True, text=True)
                pathlib.Path(f"err{number}").write_text(f"{ran.returncode} {ran.stderr}")
""".replace("COMMAND", repr(command))
    (place / "steps_of_test.py").write_text(
        jobs.replace("def process(self, batch):", f"def process(self, batch):{while_running}", 1)
    )
    assert Chain.read(place / "pipeline.toml").run(backend="inline").complete
    refused, helped = ((place / f"err{number}").read_text() for number in range(2))
    assert refused.startswith("2 ")
    assert "--allow-concurrent to help it" in refused
    assert helped.startswith("0 "), helped
    together = {name: data for name, data in everything(place / "out").items() if "_curate" not in name}
    shutil.rmtree(place / "out")
    assert Chain.read(place / "pipeline.toml").run(backend="inline").complete
    assert together == {name: data for name, data in everything(place / "out").items() if "_curate" not in name}


@pytest.mark.nightly
@pytest.mark.slow
def test_several_drivers_replace_nothing(chain: Chain, place: Path, curate: Curate) -> None:
    """What some of them would remove while others read it is for one driver alone."""
    write_jsonl(place / "in" / "03.jsonl", [{"n": 6}, {"n": 8}])
    for words in (("--overwrite", "kept", "--yes"), ("--redo-stale",), ()):
        before = seen(place)
        refused = curate("run", "pipeline.toml", "--backend", "inline", "--part", "0/2", *words)
        if words:
            assert (refused.code, seen(place)) == (2, before)
            assert "then start the parts" in refused.err
        else:
            # Changed inputs that are no outputs of a step are kept, as by one driver.
            assert refused.code == 0
    assert ran(chain.run(backend="inline", redo_stale=True))["clean"] == 1
    add_input(place, FILES)
    assert curate("run", "pipeline.toml", "--backend", "inline", "--part", "0/2").code == 0
    assert predicted(chain) == []


@pytest.mark.slow
def test_an_input_that_was_added_is_all_that_runs(chain: Chain, place: Path) -> None:
    """One shard of each step; and then nothing."""
    add_input(place, FILES)
    assert predicted(chain) == list(STEPS)
    assert ran(chain.run(backend="inline")) == dict.fromkeys(STEPS, 1)
    assert predicted(chain) == []
    assert ran(chain.run(backend="inline")) == {}


@pytest.mark.slow
def test_an_output_that_was_deleted_is_made_again_and_nothing_after_it(chain: Chain, place: Path) -> None:
    """With the same bytes; what was made of it is not out of date."""
    lost = place / "out" / "scored" / "07.parquet"
    before = lost.read_bytes()
    lost.unlink()
    by_name = {one.name: one for one in chain.status()}
    assert (by_name["scored"].done, by_name["kept"].lost, by_name["odd"].lost) == (FILES - 1, 1, 0)
    assert predicted(chain) == ["scored"]
    assert ran(chain.run(backend="inline")) == {"scored": 1}
    assert lost.read_bytes() == before
    assert predicted(chain) == []
    assert ran(chain.run(backend="inline")) == {}


@pytest.mark.slow
@pytest.mark.usefixtures("chain")
def test_a_changed_parameter_is_refused_until_its_step_is_made_anew(place: Path, curate: Curate) -> None:
    """With both values, before anything is written; then that step and those after it run, and no other."""
    file = place / "pipeline.toml"
    file.write_text(file.read_text().replace("least = 4", "least = 6"))
    add_input(place, FILES)
    before = seen(place)
    refused = curate("run", "pipeline.toml", "--backend", "inline")
    assert (refused.code, seen(place)) == (2, before)
    assert "parameters.least: made with 4, you asked for 6" in refused.err
    assert "start over with --overwrite kept (and what reads it)" in refused.err
    assert [one.action for one in verdicts(Chain.read(file).status(), Asked())][3:] == [Action.REFUSED, Action.WAIT]
    (place / "in" / f"{FILES}.jsonl").unlink()
    again = Chain.read(file).run(backend="inline", overwrite=["kept"], yes=True)
    assert ran(again) == {"kept": FILES, "last": FILES}
    assert predicted(Chain.read(file)) == []


@pytest.mark.slow
@pytest.mark.usefixtures("chain")
def test_what_is_made_anew_is_asked_about_once_before_anything_is_removed(place: Path, curate: Curate) -> None:
    """For all steps together: who answered the first question need not wait for a second one."""
    before = seen(place)
    refused = curate("run", "pipeline.toml", "--backend", "inline", "--overwrite", "kept")
    assert (refused.code, seen(place)) == (2, before)
    for step in ("kept", "last"):
        assert f"step {step!r}: {FILES} outputs under " in refused.err
    assert refused.err.rstrip().endswith("answer yes, or add --yes")
    asked: list[str] = []

    def confirm(question: str) -> bool:
        asked.append(question)
        return True

    chain = Chain.read(place / "pipeline.toml")
    assert ran(chain.run(backend="inline", overwrite=["kept"], confirm=confirm)) == {"kept": FILES, "last": FILES}
    assert len(asked) == 1


@pytest.mark.slow
def test_a_step_that_was_killed_is_finished_first(place: Path) -> None:
    """SIGKILL at half of its shards: its outputs stay, and each shard of the chain is paid for once."""
    (place / "kill").write_text(f"{FILES} {signal.SIGKILL.value}")
    command = [sys.executable, "-m", "curate", "run", "pipeline.toml", "--backend", "inline"]
    assert subprocess.run(command, cwd=place, capture_output=True, check=False).returncode == -9
    (place / "kill").unlink()
    done = len(list((place / "out" / "clean").glob("*.parquet")))
    assert 0 < done < FILES
    assert ran(Chain.read("pipeline.toml").run(backend="inline")) == {**ALL, "clean": FILES - done}


@pytest.mark.slow
@pytest.mark.usefixtures("no_backoff")
def test_a_step_whose_input_failed_does_not_run(place: Path) -> None:
    """Nor what reads that; a step that reads none of it does. Exit code and state are those of the job that failed."""
    (place / "poison").write_text("6")
    text = (place / "pipeline.toml").read_text()
    alone = '\n[steps.alone]\njob = "steps_of_test.py:Copied"\ninput = "in"\noutput = "out/alone"\n'
    (place / "pipeline.toml").write_text(text + alone)
    ended = Chain.read("pipeline.toml").run(backend="inline")
    states = {one.name: one.state for one in ended.steps}
    assert states == {**dict.fromkeys(STEPS, "not run"), "clean": "failed", "alone": "complete"}
    assert (ended.state, ended["scored"].after, ended["last"].after) == ("failed", ("clean",), ("kept",))
    (place / "poison").unlink()
    assert ran(Chain.read("pipeline.toml").run(backend="inline")) == {**ALL, "clean": 1}


@pytest.mark.slow
def test_a_changed_input_is_kept_until_it_is_asked_for(chain: Chain, place: Path) -> None:
    """As by a job alone; then it is made again in all steps, for what earlier steps made anew is always taken."""
    write_jsonl(place / "in" / "03.jsonl", [{"n": 6}, {"n": 7}, {"n": 8}])
    assert predicted(chain) == []
    assert [one.changed for one in chain.status()] == [1, 0, 0, 0, 0]
    assert ran(chain.run(backend="inline")) == {}
    assert predicted(chain, redo_stale=True) == list(STEPS)
    assert ran(chain.run(backend="inline", redo_stale=True)) == dict.fromkeys(STEPS, 1)
    assert predicted(chain) == []


@pytest.mark.slow
def test_a_removed_input_is_kept_until_it_is_asked_for(chain: Chain, place: Path) -> None:
    """Then what was made of it is removed in all steps, and nothing runs."""
    (place / "in" / "03.jsonl").unlink()
    assert ran(chain.run(backend="inline")) == {}
    ended = chain.run(backend="inline", drop_removed=True)
    assert (ended.state, ran(ended)) == ("complete", {})
    assert not list((place / "out").rglob("03.parquet"))
    assert predicted(chain) == []


@pytest.mark.usefixtures("chain")
def test_other_code_of_an_unfinished_step_is_refused_before_anything_runs(place: Path, curate: Curate) -> None:
    """Under the same version, as by the job alone; steps before it do not run either."""
    add_input(place, FILES)
    jobs = place / "steps_of_test.py"
    jobs.write_text(jobs.read_text().replace('self.drop(len(batch) - len(kept), "low")', 'self.count("seen")'))
    for name in [one for one in sys.modules if one.startswith("steps_of_test")]:
        del sys.modules[name]
    before = seen(place)
    refused = curate("run", "pipeline.toml", "--backend", "inline")
    assert (refused.code, seen(place)) == (2, before)
    assert "step 'kept': the code of 'kept' changed" in refused.err
    accepted = curate("run", "pipeline.toml", "--backend", "inline", "--accept-code-change", "--json")
    assert [one["summary"]["tasks"]["attempts"] for one in accepted.json["steps"]] == [1] * len(STEPS)


@pytest.mark.usefixtures("chain")
def test_a_step_is_the_job_that_is_run_alone(place: Path, curate: Curate) -> None:
    """The same bytes; and the job alone finds nothing to do in what the chain has made."""
    alone = ["run", "steps_of_test.py:Kept", "-i", "out/scored", "--least", "4", "--backend", "inline", "--json"]
    assert curate(*alone, "-o", "out/kept").json["tasks"]["dispatched"] == 0
    assert curate(*alone, "-o", "alone").json["shards"]["done"] == FILES
    mine, its = everything(place / "out" / "kept"), everything(place / "alone")
    assert {name: data for name, data in mine.items() if "_curate" not in name} == {
        name: data for name, data in its.items() if "_curate" not in name
    }


@pytest.mark.slow
@pytest.mark.usefixtures("chain")
def test_an_exact_deduplication_grows_with_the_step_that_it_reads(place: Path, curate: Curate) -> None:
    """Also if an output of that was deleted and made again; as long as what is new comes behind what is there."""
    text = """
[steps.unique]
job = "steps_of_test.py:Unique"
input_from = "kept"
output = "out/unique"

[steps.after]
job = "steps_of_test.py:Copied"
input_from = "unique"
output = "out/after"
"""
    (place / "pipeline.toml").write_text((place / "pipeline.toml").read_text() + text)
    grown = Chain.read("pipeline.toml")
    assert ran(grown.run(backend="inline")).keys() == {"unique", "after"}
    (place / "out" / "kept" / "05.parquet").unlink()
    assert ran(grown.run(backend="inline")) == {"kept": 1}
    add_input(place, FILES, rows=4)
    add_input(place, FILES + 1)
    assert predicted(grown) == [*STEPS, "unique", "after"]
    assert ran(grown.run(backend="inline")) == dict.fromkeys((*STEPS, "unique", "after"), 2)
    assert predicted(grown) == []
    assert ran(grown.run(backend="inline")) == {}
    alone = ("run", "steps_of_test.py:Unique", "-i", "out/kept", "-o", "alone", "--backend", "inline")
    assert curate(*alone).code == 0
    data = everything(place / "out" / "unique")
    for name, one in everything(place / "alone").items():
        assert name.startswith("_curate") or data.pop(name) == one
    assert all(name.startswith("_curate") for name in data)
    (place / "in" / "00a.jsonl").write_text('{"n": 1}\n')
    assert predicted(grown) == [*STEPS]
    before = seen(place)
    with pytest.raises(ConfigError, match=r"step 'unique': .*behind all others.*\(26 shards, .*overwrite=\['unique'\]"):
        grown.run(backend="inline")
    assert seen(place) == before
    assert grown.run(backend="inline", overwrite=["unique"], yes=True).state == "complete"
    assert predicted(grown) == []


@pytest.mark.slow
@pytest.mark.usefixtures("chain")
def test_an_exchange_after_a_step_that_grows_is_refused_before_anything_runs(place: Path) -> None:
    """It makes every output of all inputs; made anew, it reads what is there now."""
    text = '\n[steps.ordered]\njob = "steps_of_test.py:Ordered"\ninput_from = "kept"\noutput = "out/ordered"\n'
    (place / "pipeline.toml").write_text((place / "pipeline.toml").read_text() + text)
    grown = Chain.read("pipeline.toml")
    assert ran(grown.run(backend="inline")).keys() == {"ordered"}
    (place / "out" / "kept" / "05.parquet").unlink()
    assert ran(grown.run(backend="inline")) == {"kept": 1}
    add_input(place, FILES)
    before = seen(place)
    with pytest.raises(ConfigError, match=r"(?s)step 'ordered': .*what kept will add.*overwrite=\['ordered'\]"):
        grown.run(backend="inline")
    assert seen(place) == before
    ended = grown.run(backend="inline", overwrite=["ordered"], yes=True)
    assert ended.state == "complete"
    assert ended["ordered"].summary is not None
    assert ended["ordered"].summary.books.rows_in == 2 * (FILES + 1) - 4 + 2
    assert predicted(grown) == []
