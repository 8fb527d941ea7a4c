"""A page that is made again costs a listing, and what is new; what was replaced or removed is never shown as it was."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from curate.ledger import layout
from curate.pages.read import read_page
from curate.pages.serve import remembered
from curate.pages.serve.remembered import Memory
from curate.stores.memory import MemoryStore
from curate.stores.open import wrap_stores
from tests.pages.samples import NOW, RUN
from tests.support.ledgers import heartbeat, make_ledger, segment

Jobs = dict[str, str]
KINDS = ("list", "read", "stat", "open")


class Counting:
    """A store whose calls are noted, with what they are about."""

    def __init__(self, inner: Any, asked: list[tuple[str, str]]) -> None:
        self._inner, self._asked = inner, asked

    def __getattr__(self, name: str) -> Any:
        called = getattr(self._inner, name)
        if name not in KINDS:
            return called

        def noted(about: Any, *rest: Any) -> Any:
            self._asked.append((name, getattr(about, "uri", about)))
            return called(about, *rest)

        return noted


@pytest.fixture
def asked() -> Iterator[Callable[[], list[tuple[str, str]]]]:
    """Remembers all that is read; returns what was asked of the stores beneath since it was last called."""
    noted: list[tuple[str, str]] = []

    def since() -> list[tuple[str, str]]:
        found = noted.copy()
        noted.clear()
        return found

    with wrap_stores(lambda store: Counting(store, noted)), wrap_stores(Memory().of):  # type: ignore[arg-type,return-value]
        yield since


Asked = Callable[[], list[tuple[str, str]]]


def around(home: Path) -> list[tuple[str, str]]:
    """Returns what any page asks for: the list of known jobs, and prices."""
    return [("list", f"{home}/jobs/"), ("read", f"{home}/prices.toml")]


@pytest.mark.parametrize("name", ["finished", "failed", "staged", "hostile", "running"])
def test_nothing_is_read_twice(jobs: Jobs, asked: Asked, home: Path, name: str) -> None:
    """A refresh is one listing of the output, whatever the job; and its page is the same."""
    page = read_page(jobs[name], NOW)
    first = Counter(asked())
    assert first["list", f"{jobs[name]}/"] == 1
    assert not [one for one, count in first.items() if count > 1]
    assert read_page(jobs[name], NOW) == page
    assert sorted(asked()) == sorted([("list", f"{jobs[name]}/"), *around(home)])


def test_of_a_job_that_runs_what_is_new_is_read(jobs: Jobs, asked: Asked, home: Path, tmp_path: Path) -> None:
    """A segment of events, and a heartbeat that was written since: each once."""
    output = str(Path(shutil.copytree(jobs["running"], tmp_path / "out")))
    before = read_page(output, NOW)
    asked()
    ledger = make_ledger(output)
    shards = {"total": 3_000, "scope": 3_000, "done": 1_200, "running": 5, "failed": 2}
    beat = heartbeat("running", started=NOW - 600, updated=NOW - 1, shards=shards)
    ledger.store.replace(ledger.uri(layout.run_file(RUN, "heartbeat.json")), orjson.dumps({**beat, "run_id": RUN}))
    told = {"outcome": "retry", "index": 9, "shard": "s0000009", "attempt": 1, "task": 1, "seconds": 2.0}
    events = [{**told, "time": NOW - 9, "input": "/in/9", "kind": "user_error", "error": "E: no"}]
    ledger.store.publish(ledger.uri(layout.events_segment(RUN, 2)), segment(events))
    page = read_page(output, NOW)
    assert page.head.shards["running"] == 5
    assert before.time is not None
    assert page.time is not None
    assert sum(page.time.retried) == sum(before.time.retried) + 1
    new = [layout.run_file(RUN, "heartbeat.json"), layout.events_segment(RUN, 2)]
    expected = [("list", f"{output}/"), *around(home), *(("read", f"{output}/{name}") for name in new)]
    assert sorted(asked()) == sorted(expected)


def test_what_was_replaced_is_read_again(asked: Asked) -> None:
    """As soon as a listing says so; and what no listing knows, each time."""
    store, root = MemoryStore(), f"memory://replaced-{id(asked)}"
    seen = Memory().of(store)
    assert [*seen.list(f"{root}/")] == []
    store.publish(f"{root}/a", b"one")
    assert seen.read(f"{root}/a") == b"one"
    store.replace(f"{root}/a", b"two")
    assert seen.read(f"{root}/a") == b"two"
    [one] = seen.list(f"{root}/")
    assert (seen.read(f"{root}/a"), seen.stat(f"{root}/a")) == (b"two", one)
    calls = seen.calls.copy()
    assert (seen.read(f"{root}/a"), seen.stat(f"{root}/a")) == (b"two", one)
    assert seen.calls == calls
    store.replace(f"{root}/a", b"three")
    [one] = seen.list(f"{root}/")
    assert (seen.read(f"{root}/a"), seen.read(f"{root}/a", 1, 3), seen.stat(f"{root}/a")) == (b"three", b"hr", one)
    assert seen.open(one).read() == b"three"


def test_it_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was not asked for the longest is forgotten; what is large was never kept."""
    monkeypatch.setattr(remembered, "MOST_BYTES", 3 * (100 + remembered.PER_ENTRY))
    monkeypatch.setattr(remembered, "LARGE_BYTES", 200)
    store, root = MemoryStore(), f"memory://bounded-{id(monkeypatch)}"
    for name in "abcd":
        store.publish(f"{root}/{name}", bytes(100))
    store.publish(f"{root}/large", bytes(200))
    seen = Memory().of(store)
    listed = {one.uri[-1]: one for one in seen.list(f"{root}/")}

    def costs(name: str) -> int:
        before = store.calls.get
        seen.read(f"{root}/{name}")
        return store.calls.get - before

    assert [costs(name) for name in "abcadab"] == [1, 1, 1, 0, 1, 0, 1]
    assert [costs("large"), costs("large")] == [1, 1]
    assert seen.open(listed["e"]).read() == bytes(200)
