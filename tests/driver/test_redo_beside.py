"""A run beside one that replaces outputs which are out of date: it takes nothing away that these will name."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from curate.ledger import layout
from curate.ledger.compression import compress
from curate.ledger.heartbeat import LONG_SILENT_S
from curate.ledger.summary import RunState
from curate.observe.job import read_status
from curate.observe.verify import verify
from curate.storage.protocol import Object, Store
from curate.stores.faulty import FaultyStore
from curate.stores.open import open_store, wrap_stores
from tests.job.inline import everything, quarantined, run_job, write_jsonl
from tests.resume.test_removal import Parted
from tests.support.fakes import NEVER_S, FakeClock
from tests.support.ledgers import heartbeat

CHANGES = ("publish", "replace", "delete")


class Before(FaultyStore):
    """Has something happen once, before the `at`th change to an output."""

    def __init__(self, inner: Store, at: list[int], act: Callable[[], object]) -> None:
        super().__init__(inner)
        self._at, self._act = at, act

    def _call(self, operation: str, uri: str, *how: Any) -> Any:
        if operation in CHANGES and "heartbeat" not in uri:
            self._at[0] -= 1
            if not self._at[0]:
                self._act()
        return super()._call(operation, uri, *how)


def rows(name: str, bad: str) -> list[dict[str, str]]:
    return [{"id": f"{name}{k}", "text": "ok"} for k in range(3)] + [{"id": bad, "text": "bad"}]


@pytest.mark.parametrize("options", [{}, {"allow_concurrent": True}], ids=["plain", "helps"])
def test_rows_set_aside_stay(tmp_path: Path, options: dict[str, Any]) -> None:
    """Whenever the other one looks: they are published before the output that names them. What is left of the old
    input goes at the end."""
    ran = 0
    for at in itertools.count(1):
        source, out = tmp_path / f"{at}" / "in", tmp_path / f"{at}" / "out"
        for name in "ab":
            write_jsonl(source / f"{name}.jsonl", rows(name, f"bad {name}"))
        assert run_job(Parted(), source, out).state is RunState.COMPLETE
        write_jsonl(source / "a.jsonl", rows("a", "another"))
        left = [at]

        def other(source: Path = source, out: Path = out) -> None:
            nonlocal ran
            ran += 1
            assert run_job(Parted(), source, out, **options).state is RunState.COMPLETE

        with wrap_stores(lambda store, left=left, other=other: Before(store, left, other)):  # type: ignore[misc]
            ended = run_job(Parted(), source, out, redo_stale=True)
        assert ended.state is RunState.COMPLETE
        if left[0] > 0:
            break
        assert verify(str(out)).findings == [], at
        assert sorted(orjson.loads(row["row"])["id"] for row in quarantined(out)) == ["another", "bad b"], at
        assert len([one for one in everything(out) if one.startswith("_curate/quarantine/")]) == 2, at
    assert ran > 5


@pytest.mark.parametrize("name", ["_side/copy/a.parquet", "/out/a.parquet"])
def test_rows_set_aside_stay_where_who_is_about_to_name_them_was_taken_for_gone(tmp_path: Path, name: str) -> None:
    """Its worker slept in between, for so long that another driver swept them."""
    source, out, clock = tmp_path / "in", tmp_path / "out", FakeClock()
    write_jsonl(source / "a.jsonl", rows("a", "bad a"))
    assert run_job(Parted(), source, out).state is RunState.COMPLETE
    write_jsonl(source / "a.jsonl", rows("a", "another"))
    swept = []

    class Sleeps(FaultyStore):
        def _call(self, operation: str, uri: str, *how: Any) -> Any:
            if operation == "publish" and uri.endswith(name) and not swept:
                clock.advance(1 + LONG_SILENT_S)
                swept.append(True)
                assert run_job(Parted(), source, out, clock=FakeClock(clock.now())).state is RunState.COMPLETE
            return super()._call(operation, uri, *how)

    with wrap_stores(Sleeps):
        assert run_job(Parted(), source, out, clock=clock, redo_stale=True).state is RunState.COMPLETE
    assert (swept, verify(str(out)).findings) == ([True], [])
    assert [orjson.loads(row["row"])["id"] for row in quarantined(out)] == ["another"]


class Turns:
    """Two drivers: the first stops before a call, the other one begins, and stops before one of its own if it makes
    it; then each goes on to its end, in the same order. A call is an operation and a part of a name."""

    def __init__(self, *stops: tuple[str, str]) -> None:
        self._stops = dict(zip("AB", stops, strict=True))
        self._there, self._go = ({name: threading.Event() for name in "AB"} for _ in range(2))

    def before(self, driver: str, operation: str, uri: str) -> None:
        """Waits, the first time, if it is the call."""
        if (stop := self._stops.get(driver)) and stop[0] == operation and stop[1] in uri:
            del self._stops[driver]
            self.wait(driver)

    def wait(self, driver: str) -> None:
        """Waits until it is this one's turn again."""
        self._there[driver].set()
        assert self._go[driver].wait(NEVER_S)

    def run(self, first: Callable[[], object], second: Callable[[], object]) -> None:
        """Runs both, each in a thread of its name."""

        def whole(name: str, act: Callable[[], object]) -> None:
            try:
                act()
            finally:
                self._there[name].set()

        acts = (("A", first), ("B", second))
        threads = [threading.Thread(target=whole, args=each, name=each[0]) for each in acts]
        for thread in threads:
            thread.start()
            assert self._there[thread.name].wait(NEVER_S)
        for thread in threads:
            self._go[thread.name].set()
            thread.join(NEVER_S)
            assert not thread.is_alive()


class InTurn(FaultyStore):
    """The store of a driver that is called as the thread that opened it."""

    def __init__(self, inner: Store, turns: Turns) -> None:
        super().__init__(inner)
        self._driver, self._turns = threading.current_thread().name, turns

    def _call(self, operation: str, uri: str, *how: Any) -> Any:
        self._turns.before(self._driver, operation, uri)
        return super()._call(operation, uri, *how)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("second", "stops"),
    [
        ({"drop_removed": True}, (("delete", "_curate/quarantine/"), ("read", "/run.json"))),
        ({"drop_removed": True}, (("read", "schema/output.arrow"), ("publish", "summary.json"))),
        ({"drop_removed": True, "redo_stale": True}, (("open", "in/a.jsonl"), ("delete", "summary.json"))),
        ({"drop_removed": True}, (("publish", "/out/a.parquet"), ("delete", "_side/copy/c.parquet"))),
    ],
    ids=["sweeps", "ends", "replaces", "has seen rows that are named since"],
)
def test_the_last_one_to_end_says_that_all_is_done(
    tmp_path: Path, second: dict[str, Any], stops: tuple[tuple[str, str], tuple[str, str]]
) -> None:
    """Of one that replaces outputs and one that takes some out: both said "complete", and nobody wrote the summary; or
    each left rows that are set aside to the other one, and they stayed."""
    source, out = tmp_path / "in", tmp_path / "out"
    for name in "abc":
        write_jsonl(source / f"{name}.jsonl", rows(name, f"bad {name}"))
    assert run_job(Parted(), source, out).state is RunState.COMPLETE
    write_jsonl(source / "a.jsonl", rows("a", "another"))
    (source / "c.jsonl").unlink()
    ended = []

    def driver(**options: Any) -> Callable[[], object]:
        return lambda: ended.append(run_job(Parted(), source, out, allow_concurrent=True, **options).state)

    turns = Turns(*stops)
    with wrap_stores(lambda store: InTurn(store, turns)):
        turns.run(driver(redo_stale=True, drop_removed=second.get("redo_stale", False)), driver(**second))
    assert ended == [RunState.COMPLETE] * 2
    assert read_status(str(out), FakeClock().now()).state == "complete"
    assert verify(str(out)).findings == []
    assert sorted(orjson.loads(row["row"])["id"] for row in quarantined(out)) == ["another", "bad b"]


def test_what_a_redo_elsewhere_that_was_killed_has_set_aside_goes_in_the_end(tmp_path: Path) -> None:
    """As long as it may be alive, the rows are left to it, and nobody says that all is done: who did swept no more."""
    source, out, clock, run_id = tmp_path / "in", tmp_path / "out", FakeClock(), "20231114T231320.000Z-abc123"
    write_jsonl(source / "a.jsonl", rows("a", "bad a"))
    assert run_job(Parted(), source, out, clock=clock).state is RunState.COMPLETE
    (out / layout.SUMMARY).unlink()
    store, beat = open_store(str(out), f"{out}/{layout.TMP}1"), heartbeat("running", started=0, updated=clock.now())
    beat |= {"run_id": run_id, "replaces": True}
    store.publish(f"{out}/{layout.QUARANTINE}0a1b2c3d4e5f6071.jsonl.zst", compress(b"{}\n"))
    store.publish(f"{out}/{layout.run_file(run_id, 'run.json')}", orjson.dumps({"run_id": run_id, "replaces": True}))
    store.publish(f"{out}/{layout.run_file(run_id, 'heartbeat.json')}", orjson.dumps(beat))
    for silent in (False, True):
        assert run_job(Parted(), source, out, clock=clock).state is RunState.COMPLETE
        assert ((out / layout.SUMMARY).exists(), verify(str(out)).findings == []) == (silent, silent)
        clock.advance(1 + LONG_SILENT_S)


@pytest.mark.parametrize("redo", [False, True])
def test_what_no_output_names_goes_at_the_cost_of_one_read_an_output(tmp_path: Path, redo: bool) -> None:
    """However long listings take, which of millions of outputs is minutes: who lists was not paused. Beside a redo,
    which is to sweep, no output is read for it."""
    source, out, clock, run_id = tmp_path / "in", tmp_path / "out", FakeClock(), "20231114T231320.000Z-abc123"
    for name in "ab":
        write_jsonl(source / f"{name}.jsonl", rows(name, f"bad {name}"))
    assert run_job(Parted(), source, out, clock=clock).state is RunState.COMPLETE
    (out / layout.SUMMARY).unlink()
    for events in out.glob("_curate/runs/*/events*"):
        events.unlink()
    for number in range(3):
        (out / f"{layout.QUARANTINE}0a1b2c3d4e5f607{number}.jsonl.zst").write_bytes(compress(b"{}\n"))
    if redo:
        beat = heartbeat("running", started=0, updated=clock.now()) | {"run_id": run_id, "replaces": True}
        (out / layout.RUNS / run_id).mkdir()
        for name in ("run.json", "heartbeat.json"):
            (out / layout.run_file(run_id, name)).write_bytes(orjson.dumps(beat))
    read: list[str] = []

    class Slow(FaultyStore):
        def list(self, prefix: str) -> Iterator[Object]:
            yield from super().list(prefix)
            clock.advance(60 if prefix == f"{out}/" and not redo else 0)

        def _call(self, operation: str, uri: str, *how: Any) -> Any:
            if operation == "read" and uri in (f"{out}/a.parquet", f"{out}/b.parquet"):
                read.append(uri[-9:])
            return super()._call(operation, uri, *how)

    with wrap_stores(Slow):
        assert run_job(Parted(), source, out, clock=clock, allow_concurrent=redo).state is RunState.COMPLETE
    for_books = for_sweep = ["a.parquet", "b.parquet"]
    assert sorted(read) == sorted(for_books if redo else for_books + for_sweep)
    assert (verify(str(out)).findings == []) == (not redo)
