"""An overwrite of a job whose redo was taken for gone, and wakes up while that is removed: nothing is lost unseen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from curate.errors import ConfigError, CurateError, ObjectNotFound
from curate.ledger.summary import RunState
from curate.observe.job import read_status
from curate.observe.verify import verify
from curate.storage.faults import Fault
from curate.stores.open import wrap_stores
from curate.testing.stores import faulty_stores
from tests.driver.test_redo_beside import CHANGES, InTurn, Turns
from tests.job.inline import outputs, run_job, write_jsonl
from tests.resume.test_removal import Parted
from tests.support.fakes import FakeClock

DAYS_S = 2 * 86_400.0


class Stops(Turns):
    """The redo stops before its `at`th change for days, the overwrite begins, and stops before its `beside`th."""

    def __init__(self, at: int, beside: int, clock: FakeClock) -> None:
        super().__init__(("", ""), ("", ""))
        self.left = {"A": at, "B": beside}
        self._clock = clock

    def before(self, driver: str, operation: str, uri: str) -> None:
        """Waits, the first time, if it is the call."""
        if operation not in CHANGES or "heartbeat" in uri or driver not in self.left:
            return
        self.left[driver] -= 1
        if not self.left[driver]:
            if driver == "A":
                self._clock.advance(DAYS_S)
            self.wait(driver)


POINTS = [(at, beside) for at in range(1, 9) for beside in range(1, 16)]
LOST = [(3, 6), (4, 6), (5, 3), (5, 4), (5, 5), (5, 9)]
"""Where the redo took the extra outputs for whole that the overwrite was about to remove."""


def check(tmp_path: Path, at: int, beside: int) -> None:
    """What is called complete is whole, whichever of them says it; else the next run makes all of it."""
    source, out, clock = tmp_path / "in", tmp_path / "out", FakeClock()
    for name in "ab":
        write_jsonl(source / f"{name}.jsonl", [{"id": f"{name}{k}", "text": "ok"} for k in range(3)])
    assert run_job(Parted(), source, out).state is RunState.COMPLETE
    write_jsonl(source / "a.jsonl", [{"id": "new", "text": "ok"}])
    ended: list[CurateError | RunState] = []

    def driver(**options: Any) -> Callable[[], object]:
        def act() -> None:
            try:
                ended.append(run_job(Parted(), source, out, clock=clock, **options).state)
            except CurateError as error:
                ended.append(error)

        return act

    stops = Stops(at, beside, clock)
    with wrap_stores(lambda store: InTurn(store, stops)):
        stops.run(driver(redo_stale=True), driver(overwrite=True, confirm=lambda _: True))
    assert stops.left["A"] <= 0
    assert RunState.COMPLETE in ended
    assert len(ended) == 2
    try:
        whole = read_status(str(out), clock.now()).state == "complete"
    except ConfigError as error:
        assert "an overwrite is removing it" in str(error)  # noqa: PT017
        whole = False
    if whole:
        assert verify(str(out)).findings == []
    assert run_job(Parted(), source, out, clock=FakeClock(clock.now() + 1)).state is RunState.COMPLETE
    assert verify(str(out)).findings == []
    assert run_job(Parted(), source, tmp_path / "fresh").state is RunState.COMPLETE
    assert outputs(out) == outputs(tmp_path / "fresh")


@pytest.mark.ci(16)
@pytest.mark.slow
@pytest.mark.parametrize(("at", "beside"), POINTS)
def test_nothing_is_lost_unseen(tmp_path: Path, at: int, beside: int) -> None:
    check(tmp_path, at, beside)


@pytest.mark.quick(1)
@pytest.mark.parametrize(("at", "beside"), LOST)
def test_extra_outputs_are_not_lost(tmp_path: Path, at: int, beside: int) -> None:
    """A plan whose beginning is gone counts for nothing, and who removes a job looks whether its runs go on."""
    check(tmp_path, at, beside)


def test_a_plan_that_goes_while_it_is_read(tmp_path: Path) -> None:
    """Another driver begins to remove the job, or to start it over: that is said, and what to do."""
    source, out = tmp_path / "in", tmp_path / "out"
    write_jsonl(source / "a.jsonl", [{"id": "a", "text": "ok"}])
    assert run_job(Parted(), source, out).state is RunState.COMPLETE
    fault = Fault("read", name="plan/00000.parquet", error=ObjectNotFound("it does not exist"))
    with (
        faulty_stores(fault),
        pytest.raises(ObjectNotFound, match="another driver removes this job, or starts it over"),
    ):
        run_job(Parted(), source, out)
