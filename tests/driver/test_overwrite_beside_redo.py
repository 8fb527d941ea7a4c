"""An overwrite of a job whose redo was taken for gone, and wakes up while that is removed: nothing is lost unseen."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from curate.errors import ConfigError, CurateError, ObjectNotFound
from curate.ledger.summary import RunState
from curate.observe.job import read_status
from curate.observe.verify import verify
from curate.storage.faults import Fault
from curate.storage.protocol import Store
from curate.stores.faulty import FaultyStore
from curate.stores.open import wrap_stores
from curate.testing.stores import faulty_stores
from tests.job.inline import outputs, run_job, write_jsonl
from tests.resume.test_removal import Parted
from tests.support.fakes import NEVER_S, FakeClock

CHANGES = ("publish", "replace", "delete")
DAYS_S = 2 * 86_400.0


class Stops:
    """Of two drivers the first stops before its `at`th change for days, the second one begins, and stops before its
    `beside`th; the first goes on to its end, and then the second."""

    def __init__(self, at: int, beside: int, clock: FakeClock) -> None:
        self.left = {"redo": at, "overwrite": beside}
        self._clock = clock
        self._there, self._go = ({name: threading.Event() for name in self.left} for _ in range(2))

    def before(self, driver: str, operation: str, uri: str) -> None:
        if operation not in CHANGES or "heartbeat" in uri or driver not in self.left:
            return
        self.left[driver] -= 1
        if not self.left[driver]:
            if driver == "redo":
                self._clock.advance(DAYS_S)
            self._there[driver].set()
            assert self._go[driver].wait(NEVER_S)

    def run(self, redo: Callable[[], object], overwrite: Callable[[], object]) -> None:
        def whole(act: Callable[[], object]) -> None:
            try:
                act()
            finally:
                self._there[threading.current_thread().name].set()

        threads = [
            threading.Thread(target=whole, args=(act,), name=name)
            for name, act in (("redo", redo), ("overwrite", overwrite))
        ]
        for thread in threads:
            thread.start()
            assert self._there[thread.name].wait(NEVER_S)
        for thread in threads:
            self._go[thread.name].set()
            thread.join(NEVER_S)
            assert not thread.is_alive()


class Stopped(FaultyStore):
    """The store of the driver that is called as the thread that opened it."""

    def __init__(self, inner: Store, stops: Stops) -> None:
        super().__init__(inner)
        self._driver, self._stops = threading.current_thread().name, stops

    def _call(self, operation: str, uri: str, *how: Any) -> Any:
        self._stops.before(self._driver, operation, uri)
        return super()._call(operation, uri, *how)


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
    with wrap_stores(lambda store: Stopped(store, stops)):
        stops.run(driver(redo_stale=True), driver(overwrite=True, confirm=lambda _: True))
    assert stops.left["redo"] <= 0
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
