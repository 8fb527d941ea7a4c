"""A chain with an exchange, killed at any removal of an overwrite: the same command goes on, to the same bytes."""

from __future__ import annotations

import contextlib
import itertools
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from curate.chain.chain import Chain
from curate.chain.plan import Action, Asked, verdicts
from curate.errors import ConfigError
from curate.ledger import layout
from curate.storage.faults import Fault
from curate.testing.stores import faulty_stores
from tests.chain.chains import place, predicted, ran
from tests.cli.running import Curate, curate
from tests.job.inline import outputs
from tests.support.sweeps import Mode

__all__ = ["curate", "place"]

CHAIN = """
[steps.clean]
job = "steps_of_test.py:Clean"
input = "in/0[0-2].jsonl"
output = "out/clean"

[steps.sorted]
job = "steps_of_test.py:Ordered"
input_from = "clean"
output = "out/sorted"

[steps.last]
job = "steps_of_test.py:Copied"
input_from = ["sorted"]
output = "out/last"
"""


class Killed(BaseException):
    """In place of SIGKILL."""


@pytest.fixture
def chain(place: Path) -> Chain:
    """The chain, which has been run."""
    (place / "sorted.toml").write_text(CHAIN)
    found = Chain.read("sorted.toml")
    assert found.run(backend="inline").complete
    return found


def rows(place: Path) -> Mapping[str, Any]:
    return {name: table.to_pylist() for name, table in outputs(place / "out").items()}


@pytest.mark.ci(1)
@pytest.mark.slow
@pytest.mark.parametrize("step", ["clean", "sorted"])
def test_the_same_command_goes_on(chain: Chain, place: Path, step: str, mode: Mode) -> None:
    """Wherever it was killed, at every sixth removal but for the night. Without --overwrite the chain goes on too, or
    is refused and says what to overwrite; what its status predicts is what runs."""
    expected = rows(place)
    refused = set()
    for at in itertools.count(1, 1 if mode is Mode.NIGHTLY else 6):
        fault = Fault("delete", nth=at, name=f"{place}/out", error=Killed)
        with faulty_stores(fault), contextlib.suppress(Killed):
            chain.run(backend="inline", overwrite=[step], yes=True)
        if not fault.fired:
            break
        shutil.copytree(place / "out", place / "killed")
        # What is removed once more, for it may have come back, leaves what there was. Names of runs are always others.
        there = frozenset(one.relative_to(place).parts[:4] for one in (place / "out").rglob("*"))
        would = predicted(chain)
        if any(one.action is Action.REFUSED for one in verdicts(chain.status(), Asked())):
            refused.add(there)
            with pytest.raises(ConfigError, match=r"overwrite=\['sorted'\]"):
                chain.run(backend="inline")
        else:
            ended = chain.run(backend="inline")
            said = [str(one.error) for one in ended.steps if one.error is not None]
            assert ended.complete or ("an overwrite was cut off" in said[0] and "overwrite=True" in said[0]), at
            assert set(ran(ended)) <= set(would), at
            refused |= set() if ended.complete else {there}
        shutil.rmtree(place / "out")
        shutil.move(place / "killed", place / "out")
        assert chain.run(backend="inline", overwrite=[step], yes=True).complete, at
        assert (rows(place), predicted(chain)) == (expected, []), at
    assert at > 15
    assert len(refused) <= 3


@pytest.mark.slow
def test_one_step_that_was_made_anew_changes_nothing_for_those_after_it(chain: Chain) -> None:
    """Its outputs have the bytes that they had, and the status says so."""
    assert ran(chain.run(backend="inline", step="clean", overwrite=["clean"], yes=True)) == {"clean": 3}
    assert [one.changed for one in chain.status()] == [0, 0, 0]
    assert predicted(chain) == []
    assert ran(chain.run(backend="inline")) == {}


@pytest.mark.parametrize("damaged", [layout.JOB, f"{layout.PLAN}00000.parquet", layout.inputs_of("*")])
def test_a_damaged_ledger_is_refused_until_its_step_is_made_anew(
    chain: Chain, place: Path, curate: Curate, damaged: str
) -> None:
    """As for a job alone: an overwrite is the remedy, is what the message says, and is asked about."""
    expected = rows(place)
    (file,) = (place / "out" / "sorted").glob(damaged)
    file.write_bytes(file.read_bytes()[:40])
    refused = curate("run", "sorted.toml", "--backend", "inline")
    assert refused.code == 2
    assert "the ledger is damaged" in refused.err
    assert "start over with --overwrite sorted (and what reads it)" in refused.err
    assert [one.action for one in verdicts(chain.status(), Asked())] == [Action.NOTHING, Action.REFUSED, Action.WAIT]
    asked: list[str] = []
    assert ran(chain.run(backend="inline", overwrite=["sorted"], confirm=lambda text: not asked.append(text)))
    assert (len(asked), rows(place)) == (1, expected)
