"""Two drivers over one output, which see other inputs: whenever the second one runs, nothing is paid for twice, and
the next run ends with what a run from nothing makes."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from curate.errors import ConfigError
from curate.observe.verify import verify
from curate.storage.protocol import Store
from curate.stores.faulty import FaultyStore
from curate.stores.open import wrap_stores
from tests.job.inline import everything, run_job, write_jsonl
from tests.resume.test_removal import Parted
from tests.support.fakes import FakeClock

BESIDE: dict[str, Any] = {"allow_concurrent": True}
REDO, DROP = {**BESIDE, "redo_stale": True}, {**BESIDE, "drop_removed": True}
ALL = {**REDO, **DROP}


class Paid(Parted):
    """Knows what was made, by the first row of each shard."""

    made: ClassVar[Counter[str]] = Counter()

    def process(self, batch: pa.Table) -> Any:
        count(batch["id"][0].as_py())
        return super().process(batch)


def count(row: str) -> None:
    Paid.made[row] += 1


class Killed(BaseException):
    """Ends a run at once."""


class At(FaultyStore):
    """Has something happen once, before the call of this number by the driver's own thread."""

    def __init__(self, inner: Store, left: list[int], act: Callable[[], object]) -> None:
        super().__init__(inner)
        self._left, self._act = left, act

    def _call(self, operation: str, uri: str, *how: Any) -> Any:
        if "heartbeat" not in uri and threading.current_thread() is threading.main_thread():
            self._left[0] -= 1
            if not self._left[0]:
                self._act()
        return super()._call(operation, uri, *how)


def write(source: Path, name: str, version: str = "") -> None:
    """Writes an input, a row of which is set aside."""
    rows = [{"id": f"{name}{version}{k}", "text": "ok"} for k in range(2 + len(version))]
    write_jsonl(source / f"{name}.jsonl", [*rows, {"id": f"{name}{version}", "text": "bad"}])


def added(source: Path) -> None:
    write(source, "d")


def changed(source: Path) -> None:
    write(source, "b", "2")


def changed_again(source: Path) -> None:
    write(source, "b", "34")


def removed(source: Path) -> None:
    (source / "c.jsonl").unlink()


def nothing(source: Path) -> None:
    pass


@pytest.mark.quick
@pytest.mark.parametrize(
    ("before", "meanwhile", "first", "second"),
    [
        (nothing, added, DROP, BESIDE),
        (nothing, removed, BESIDE, DROP),
        (nothing, changed, REDO, REDO),
        (changed, added, REDO, BESIDE),
        (changed, changed_again, REDO, REDO),
    ],
    ids=lambda one: one.__name__ if callable(one) else "-".join(one),
)
def test_whenever_the_other_one_runs(
    before: Callable[[Path], None],
    meanwhile: Callable[[Path], None],
    first: dict[str, Any],
    second: dict[str, Any],
    tmp_path: Path,
) -> None:
    """The other one takes what the first has not seen: it was taken out as removed, and paid for again; planned again
    when it was gone; or replaced by what it had been."""
    at = 0
    for at in itertools.count(*((1, 1) if before is nothing else (3, 4))):
        source, out, clock = tmp_path / f"{at}/in", tmp_path / f"{at}/out", FakeClock()
        for name in "abc":
            write(source, name)
        assert run_job(Paid(), source, out, clock=clock).state == "complete"
        before(source)
        Paid.made.clear()
        left = [at]

        def other(source: Path = source, out: Path = out, clock: FakeClock = clock) -> None:
            meanwhile(source)
            assert run_job(Paid(), source, out, clock=clock, **second).state == "complete"

        with wrap_stores(lambda store, left=left, other=other: At(store, left, other)):  # type: ignore[misc]
            ended = run_job(Paid(), source, out, clock=clock, **first)
        if left[0] > 0:
            break
        # Or "failed": an input was replaced while it was read.
        assert ended.state == "complete" or meanwhile is changed_again, at
        beside, Paid.made = Paid.made, Counter()
        assert run_job(Paid(), source, out, clock=clock, **ALL).state == "complete", at
        assert not Paid.made & beside, at
        assert run_job(Paid(), source, out, clock=clock, **ALL).attempts == 0, at
        assert verify(str(out)).findings == [], at
        assert run_job(Paid(), source, tmp_path / f"{at}/fresh").state == "complete"
        assert made(out) == made(tmp_path / f"{at}/fresh"), at
    assert at > 3


def test_an_output_of_another_driver_is_not_said_to_be_of_the_input_that_this_one_saw(tmp_path: Path) -> None:
    """The other one read an older input, published first, and was killed before it wrote that to the plan. The plan
    named the newer input for its output, which was out of date for good."""
    source, out, clock = tmp_path / "in", tmp_path / "out", FakeClock()
    write(source, "b")
    run_job(Paid(), source, out, clock=clock)
    changed(source)
    waits, goes_on, killed = threading.Event(), threading.Event(), threading.Event()

    class Met(FaultyStore):
        def _call(self, operation: str, uri: str, *how: Any) -> Any:
            main = operation == "publish" and uri.endswith("/out/b.parquet")
            if threading.current_thread() is other:
                if main:
                    waits.set()
                    assert goes_on.wait(60)
                elif goes_on.is_set():
                    raise Killed
            elif main:
                goes_on.set()
                assert killed.wait(60)
            return super()._call(operation, uri, *how)

    def older() -> None:
        with contextlib.suppress(Killed):
            run_job(Paid(), source, out, clock=clock, handle_signals=False, **REDO)
        killed.set()

    other = threading.Thread(target=older)
    with wrap_stores(Met):
        other.start()
        assert waits.wait(60)
        changed_again(source)
        assert run_job(Paid(), source, out, clock=clock, **REDO).state == "complete"
        other.join()
    assert run_job(Paid(), source, out, clock=clock, **ALL).attempts == 1
    assert verify(str(out)).findings == []
    run_job(Paid(), source, tmp_path / "fresh")
    assert made(out) == made(tmp_path / "fresh")


def test_an_overwrite_takes_no_extra_output_of_a_driver_that_began_meanwhile(tmp_path: Path) -> None:
    """When main outputs were removed, and extra ones were not: these it found as they were to be, and made the main
    ones, so that the shard was done. They were removed all the same, and nobody made them again."""
    for at in range(9, 17, 2):
        source, out, clock = tmp_path / f"{at}/in", tmp_path / f"{at}/out", FakeClock()
        for name in "ab":
            write(source, name)
        assert run_job(Paid(), source, out, clock=clock).state == "complete"
        changed(source)
        left = [at]

        def other(source: Path = source, out: Path = out, clock: FakeClock = clock) -> None:
            run_job(Paid(), source, out, clock=clock, **BESIDE)

        with (
            wrap_stores(lambda store, left=left, other=other: At(store, left, other)),  # type: ignore[misc]
            contextlib.suppress(ConfigError),
        ):
            run_job(Paid(), source, out, clock=clock, overwrite=True, confirm=lambda _: True)
        assert left[0] <= 0
        assert run_job(Paid(), source, out, clock=clock, **ALL).state == "complete", at
        assert verify(str(out)).findings == [], at


def made(out: Path) -> dict[str, bytes]:
    """Returns the outputs, and the rows that were set aside."""
    return {name: data for name, data in everything(out).items() if "_curate" not in name or "quarantine" in name}
