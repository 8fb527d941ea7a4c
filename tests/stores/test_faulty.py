"""A store that fails as it is told to: which calls, how often, with what left behind."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from curate.errors import ConfigError, StorageError, TransientStorageError
from curate.requests.retry import Retry
from curate.storage.faults import OPERATIONS, Fault, Faults, When, parse_faults
from curate.storage.protocol import Outcome, Store
from curate.stores.faulty import FaultyStore
from curate.stores.local import LocalStore
from curate.stores.memory import MemoryStore
from curate.stores.open import open_store
from curate.testing.clock import FakeClock
from curate.testing.stores import faulty_stores

ERROR = StorageError("as scripted")
CALLS: dict[str, Callable[[Store, str], object]] = {
    "list": lambda store, root: [found.uri for found in store.list(root)],
    "stat": lambda store, root: store.stat(f"{root}a").size,
    "read": lambda store, root: store.read(f"{root}a"),
    "open": lambda store, root: store.open(store.inner.stat(f"{root}a")).read(),  # type: ignore[attr-defined]
    "publish": lambda store, root: store.publish(f"{root}new", b"new"),
    "replace": lambda store, root: store.replace(f"{root}a", b"replaced"),
    "delete": lambda store, root: store.delete(f"{root}a"),
    "may_delete": lambda store, root: store.may_delete(f"{root}a"),
}


def write(store: Store, uri: str, data: bytes = b"new") -> Outcome:
    with store.writer(uri) as writer:
        writer.write(data)
        return writer.publish().outcome


@pytest.fixture
def root() -> str:
    """A prefix of the memory store, with two objects."""
    made = f"memory://faulty-{uuid.uuid4().hex}/"
    for name in ("a", "b"):
        MemoryStore().publish(made + name, b"0123456789")
    return made


def contents(root: str) -> dict[str, bytes]:
    store = MemoryStore()
    return {found.uri.removeprefix(root): store.read(found.uri) for found in store.list(root)}


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("when", ["before", "after", "torn"])
def test_a_fault_is_seen_once_and_leaves_what_it_says(root: str, operation: str, when: str) -> None:
    """Before: nothing happened. After: it happened all the same. Torn: nothing that was written is there."""
    untouched = contents(root)
    fault = Fault(operation, when=when, error=ERROR)
    store = FaultyStore(MemoryStore(), fault)
    with pytest.raises(StorageError, match="as scripted"):
        CALLS[operation](store, root)
    assert (fault.matched, fault.fired) == (1, 1)
    left = {
        "publish": untouched | {"new": b"new"},
        "replace": untouched | {"a": b"replaced"},
        "delete": {"b": untouched["b"]},
    }
    assert contents(root) == (left.get(operation, untouched) if when == "after" else untouched)
    if (operation, when) != ("delete", "after"):
        CALLS[operation](store, root)
    assert store.faults.fired == Counter({operation: 1})


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("when", ["before", "after", "torn"])
def test_a_store_that_retries_shows_nothing_of_a_fault(root: str, operation: str, when: str) -> None:
    """As GCS: one attempt more, one wait, and the answer of a store without faults; a publish finds its own object."""
    expected = CALLS[operation](FaultyStore(MemoryStore()), root)
    MemoryStore().delete(f"{root}new")
    for name in ("a", "b"):
        MemoryStore().delete(root + name)
        MemoryStore().publish(root + name, b"0123456789")
    clock = FakeClock()
    store = FaultyStore(MemoryStore(), Fault(operation, when=when), retry=Retry(clock=clock))
    found = CALLS[operation](store, root)
    assert store.faults.calls[operation] == 2
    assert len(clock.sleeps) == 1
    if operation == "publish":
        assert found.outcome is (Outcome.IDENTICAL if when == "after" else Outcome.CREATED)  # type: ignore[attr-defined]
    elif operation == "delete":
        assert found is (when != "after")
    elif operation != "replace":
        assert found == expected


def test_half_of_what_is_torn_comes(root: str) -> None:
    """A listing breaks off after half of its objects, a stream after half of its bytes, wherever it was read from."""
    store = FaultyStore(MemoryStore(), Fault("list", when="torn"), Fault("open", when="torn", times=2))
    listing = store.list(root)
    assert next(listing).uri == f"{root}a"
    with pytest.raises(TransientStorageError):
        next(listing)
    found = store.stat(f"{root}a")
    with store.open(found) as stream:
        assert stream.read(3) == b"012"
        assert stream.read(2) == b"34"
        with pytest.raises(TransientStorageError):
            stream.read(1)
    with store.open(found) as stream:
        stream.seek(-1, os.SEEK_END)
        with pytest.raises(TransientStorageError):
            stream.read(1)
    with store.open(found) as stream:
        assert stream.read() == b"0123456789"


def test_what_is_slow_ends_well(root: str) -> None:
    """By the clock that it was given."""
    clock = FakeClock()
    store = FaultyStore(MemoryStore(), Fault("read", when="slow", slow_s=90.0), clock=clock)
    assert store.read(f"{root}a") == b"0123456789"
    assert clock.sleeps == [90.0]


def test_the_nth_that_matches_and_those_after_it() -> None:
    """Counted by operation and part of the name."""
    fault = Fault("publish", nth=2, times=2, name="/out/")
    store = FaultyStore(MemoryStore(), fault)
    root = f"memory://faulty-{uuid.uuid4().hex}"
    failed = []
    for number in range(6):
        for folder in ("in", "out"):
            try:
                store.publish(f"{root}/{folder}/{number}", b"")
            except TransientStorageError:
                failed.append(f"{folder}/{number}")
    assert failed == ["out/1", "out/2"]
    assert (fault.matched, fault.fired) == (6, 2)
    assert store.faults.calls == Counter({"publish": 12})


@pytest.mark.parametrize("when", list(When))
def test_a_writer_fails_where_it_publishes(tmp_path: Path, when: When) -> None:
    """As `publish` does; with retries it is whole, and without, nothing is left of what was not published."""
    clock = FakeClock()
    for retry in (None, Retry(clock=clock)):
        uri, scratch = f"{tmp_path}/{retry is None}/x", tmp_path / "tmp"
        fault = Fault("publish", when=when)
        store = FaultyStore(LocalStore(str(scratch)), fault, retry=retry, clock=clock)
        if retry is None and when is not When.SLOW:
            with pytest.raises(TransientStorageError):
                write(store, uri)
            assert Path(uri).exists() == (when is When.AFTER)
        else:
            expected = Outcome.IDENTICAL if when is When.AFTER else Outcome.CREATED
            assert write(store, uri) is expected
            assert LocalStore().read(uri) == b"new"
        assert fault.fired == 1
        assert list(scratch.iterdir()) == []
    assert write(store, uri, b"other") is Outcome.DIFFERENT


def test_the_same_seed_gives_the_same_faults() -> None:
    """About as many as the rate says, before and after; another seed gives others."""

    def drawn(seed: int) -> list[When | str | None]:
        faults = Faults(rate=0.1, seed=seed)
        found = [faults.next("stat", "x") for _ in range(2000)]
        assert faults.fired.total() == sum(fault is not None for fault in found)
        return [fault and fault.when for fault in found]

    once = drawn(7)
    assert drawn(7) == once != drawn(8)
    counts = Counter(once)
    assert 150 < counts[When.BEFORE] + counts[When.AFTER] < 250
    assert min(counts[When.BEFORE], counts[When.AFTER]) > 50
    assert all(Faults(rate=0.0).next("stat", "x") is None for _ in range(1000))
    assert all(Faults(rate=1.0).next("stat", "x") for _ in range(1000))


def test_faults_reach_every_store_of_the_process_and_no_other() -> None:
    """While the block lasts, and with one count for all of them."""
    root = f"memory://faulty-{uuid.uuid4().hex}"
    with faulty_stores(Fault("publish", nth=3, error=ERROR)) as faults:
        one, other = open_store(root), open_store(root)
        one.publish(f"{root}/1", b"")
        other.publish(f"{root}/2", b"")
        with pytest.raises(StorageError, match="as scripted"):
            one.publish(f"{root}/3", b"")
        assert (faults.calls, faults.fired) == (Counter(publish=3), Counter(publish=1))
    assert isinstance(open_store(root), MemoryStore)


def test_an_error_in_the_block_ends_it_too() -> None:
    """And blocks nest."""
    with faulty_stores(Fault("stat")):
        with pytest.raises(ZeroDivisionError), faulty_stores():
            raise ZeroDivisionError
        assert isinstance(open_store("memory://x"), FaultyStore)
    assert isinstance(open_store("memory://x"), MemoryStore)


def test_a_process_gets_its_faults_by_the_environment(tmp_path: Path) -> None:
    """Kills included: the third publish of the process is its last, and took effect."""
    script = """
import sys
from curate.stores.open import open_store
for n in range(5):
    open_store(sys.argv[1], sys.argv[1] + "/tmp").publish(f"{sys.argv[1]}/{n}", b"x")
"""

    def ran(faults: str) -> int:
        environment = os.environ | {"CURATE_TESTING_FAULTS": faults}
        return subprocess.run([sys.executable, "-c", script, str(tmp_path)], env=environment, check=False).returncode

    def made() -> list[str]:
        return sorted(path.name for path in tmp_path.iterdir() if path.name != "tmp")

    assert ran("operation=publish,nth=3,when=after,error=kill") == -signal.SIGKILL
    assert made() == ["0", "1", "2"]
    assert ran("operation=publish,nth=5,error=kill") == -signal.SIGKILL
    assert made() == ["0", "1", "2", "3"]
    assert ran("rate=0.5,seed=3") == 0
    assert made() == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rate=2", "rate is 2.0; expected a share of the calls"),
        ("rate=often", "'often'"),
        ("publish", "found 'publish', expected name=value"),
        ("operation=pubish", "did you mean 'publish'"),
        ("operation=stat,when=during", "Fault: when='during'; there are before, after, torn and slow"),
        ("operation=stat,nth=0", "count from 1"),
        ("operation=stat,color=red", "color has no effect there"),
        ("operation=stat,error=oops", "'oops'"),
    ],
)
def test_faults_that_make_no_sense_are_refused(text: str, message: str) -> None:
    """Before anything runs as if without."""
    with pytest.raises(ConfigError, match=message):
        parse_faults(text)


def test_a_store_with_faults_travels() -> None:
    """With what is scripted and what has happened."""
    root = f"memory://faulty-{uuid.uuid4().hex}"
    store = FaultyStore(MemoryStore(), Fault("publish", nth=2))
    store.publish(f"{root}/1", b"")
    copy = pickle.loads(pickle.dumps(store))
    with pytest.raises(TransientStorageError):
        copy.publish(f"{root}/2", b"")
    assert store.faults.calls == Counter(publish=1)


@pytest.mark.slow
def test_importing_takes_no_pytest() -> None:
    """It is no dependency of curate; the contract of a store needs it, and says so."""
    script = (
        "import sys; sys.modules['pytest'] = None\n"
        "from curate.testing import FakeClock, Fault, FaultyStore, faulty_stores, run_local\n"
        "try:\n    from curate.testing import StoreContract\n"
        "except ImportError as error:\n    print('pytest' in str(error))"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "True\n"
