"""Drivers of one output that go on by turns, in every order: whoever says last that all is done has told the truth."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from curate.ledger.summary import RunState
from curate.storage.protocol import Object, Store
from curate.stores.faulty import FaultyStore
from curate.stores.open import wrap_stores
from tests.job.inline import run_job, write_jsonl
from tests.resume.test_removal import Parted, check_same_as_fresh, rows
from tests.support.fakes import NEVER_S

Next = Callable[[str | None, str, str, Sequence[str]], str]
"""Returns who goes on, of those that have not ended: before a call of a driver, or at the end of one (None)."""
Call = tuple[str, str, str, int]
"""A driver, an operation, how the name ends or begins where it is a list, and which of these calls it is."""
TOGETHER = {"allow_concurrent": True}
REDO = {**TOGETHER, "redo_stale": True}


class ByTurns:
    """Drivers, each in a thread of its name, of which one goes on at a time."""

    def __init__(self, names: str, next_of: Next) -> None:
        self._next_of, self._names = next_of, list(names)
        self._go = {name: threading.Event() for name in names}
        self.ended: list[Any] = []
        """How each ended, the last one last."""

    def before(self, driver: str, operation: str, uri: str) -> None:
        """Waits for the driver's turn to make a call."""
        if driver in self._names and (other := self._next_of(driver, operation, uri, self._names)) != driver:
            self._go[driver].clear()
            self._go[other].set()
            assert self._go[driver].wait(NEVER_S)

    def run(self, acts: Sequence[Callable[[], Any]]) -> None:
        """Runs them, the first one first."""

        def whole(name: str, act: Callable[[], Any]) -> None:
            assert self._go[name].wait(NEVER_S)
            try:
                self.ended.append(act())
            except Exception as error:  # noqa: BLE001 - the test says what it expected instead
                self.ended.append(error)
            finally:
                self._names.remove(name)
                if self._names:
                    self._go[self._next_of(None, "", "", self._names)].set()

        each = zip(self._names, acts, strict=True)
        threads = [threading.Thread(target=whole, args=one, name=one[0], daemon=True) for one in each]
        for thread in threads:
            thread.start()
        self._go[self._names[0]].set()
        for thread in threads:
            thread.join(NEVER_S)
            assert not thread.is_alive()


class OfDriver(FaultyStore):
    """The store of a driver that is called as the thread that opened it; what its other threads call does not wait."""

    def __init__(self, inner: Store, turns: ByTurns) -> None:
        super().__init__(inner)
        self._driver, self._turns = threading.current_thread().name, turns

    def _call(self, operation: str, uri: str, *how: Any) -> Any:
        if threading.current_thread().name == self._driver:
            self._turns.before(self._driver, operation, uri)
        return super()._call(operation, uri, *how)

    def list(self, prefix: str) -> Iterator[Object]:
        yield from super().list(prefix)
        if threading.current_thread().name == self._driver:
            self._turns.before(self._driver, "listed", prefix)


def as_told(*calls: Call) -> Next:
    """Has the driver of the first call go on until it is about to make that, then that of the second one, and so on; in
    the end each goes on to its own, the first one first. A call that is not made is as if it had not been told."""
    left = [list(call) for call in calls]

    def next_of(driver: str | None, operation: str, uri: str, names: Sequence[str]) -> str:
        if left and [driver, operation] == left[0][:2] and uri.endswith(left[0][2]):
            left[0][3] -= 1
            if not left[0][3]:
                del left[0]
        while left and left[0][0] not in names:
            del left[0]
        return left[0][0] if left else names[0]

    return next_of


def by_chance(seed: int) -> Next:
    """Has another one go on now and then: often, or seldom."""
    chance = random.Random(seed)
    share = (0.02, 0.05, 0.15, 0.4)[seed % 4]
    return lambda driver, _operation, _uri, names: (
        driver if driver is not None and chance.random() > share else chance.choice(names)
    )


def check(root: Path, next_of: Next, *drivers: dict[str, Any], begun: bool = True) -> None:
    """Runs drivers by turns: of a job that is complete, if it has `begun`. One of its inputs has changed since, another
    one was removed where that is asked for, and a third one comes where a driver `adds` it."""
    source, out = root / "in", root / "out"
    for name in "abc":
        write_jsonl(source / f"{name}.jsonl", rows(name))
    if begun:
        assert run_job(Parted(), source, out).state is RunState.COMPLETE
        write_jsonl(source / "a.jsonl", rows("a", bad="another"))
    if any("drop_removed" in options for options in drivers):
        (source / "c.jsonl").unlink()

    def driver(*, adds: bool = False, **options: Any) -> RunState:
        if adds:
            write_jsonl(source / "d.jsonl", rows("d"))
        return run_job(Parted(), source, out, **options).state

    turns = ByTurns("ABC"[: len(drivers)], next_of)
    with wrap_stores(lambda store: OfDriver(store, turns)):
        turns.run([lambda options=options: driver(**options) for options in drivers])  # type: ignore[misc]
    assert turns.ended == [RunState.COMPLETE] * len(drivers)
    check_same_as_fresh(Parted(), source, out, root / "fresh")


def test_of_two_that_replace_one_says_that_all_is_done(tmp_path: Path) -> None:
    """Each looked once more, found the other one that did the same, and left it to that one to say so."""
    both: list[Call] = [("A", "publish", "/out/a.parquet", 1), ("B", "publish", "/out/a.parquet", 1)]
    once_more: list[Call] = [("A", "list", "/out/", 1), ("B", "list", "/out/", 3), ("A", "list", "/out/", 2)]
    check(tmp_path, as_told(*both, *once_more, ("B", "read", "/run.json", 1)), REDO, REDO)


def test_what_was_listed_when_another_one_replaced_an_output_is_not_swept(tmp_path: Path) -> None:
    """Rows that had been set aside for the new output, which named them when its driver had ended."""
    turns = as_told(("A", "publish", "/out/a.parquet", 1), ("B", "listed", "/out/", 2))
    check(tmp_path, turns, REDO, TOGETHER)


KINDS: dict[str, list[dict[str, Any]]] = {
    "redo beside redo": [REDO, REDO],
    "redo, drop, plain": [TOGETHER, REDO, {**TOGETHER, "drop_removed": True}],
    "grow, redo, plain": [{**TOGETHER, "adds": True}, REDO, TOGETHER],
    "grow and drop, redo, both": [
        {**TOGETHER, "adds": True, "drop_removed": True},
        REDO,
        {**REDO, "drop_removed": True},
    ],
    "parts and all": [{"part": "0/2"}, {"part": "1/2"}, TOGETHER],
}


@pytest.mark.slow
@pytest.mark.ci(5)
@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("kind", KINDS)
def test_by_chance(tmp_path: Path, kind: str, seed: int) -> None:
    """Verified, complete, the bytes and books of one run from nothing, and no rows set aside that nothing names."""
    check(tmp_path, by_chance(seed), *KINDS[kind], begun=kind != "parts and all")
