"""The plan is read while a long listing goes on; what is told is that of the listing, whatever changes meanwhile."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from typing import Any

import pytest

from curate.errors import ConfigError, ObjectNotFound
from curate.ledger import layout, ledger
from curate.ledger.ledger import Ledger
from curate.ledger.manifest import shards_table
from curate.storage.listing import Columns, Listing
from curate.storage.protocol import Object, Store
from curate.stores import memory
from tests.support.ledgers import make_ledger, make_shard


class InPages:
    """A store whose listing of the output has a page for each object; behind the first one, something happens."""

    def __init__(self, real: Store, root: str, meanwhile: Callable[[], None]) -> None:
        self._real, self._root, self._meanwhile = real, root, meanwhile

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def list(self, prefix: str) -> Iterator[Object]:
        if prefix != f"{self._root}/":
            return self._real.list(prefix)
        return Listing(self._pages(prefix))

    def _pages(self, prefix: str) -> Iterator[Columns]:
        yield Columns([f"{prefix}!"], [0], [""])
        self._meanwhile()
        for one in self._real.list(prefix):
            yield Columns([one.uri], [one.size], [one.generation])


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(ledger, "LONG_LISTING", 1)
    monkeypatch.setattr(ledger, "LIST_PAGE", 1)
    bucket = f"early-{uuid.uuid4().hex}"
    yield f"memory://{bucket}/out"
    memory.clear(bucket)


def looked_at(root: str, meanwhile: Callable[[Ledger], None]) -> tuple[list[str], int]:
    """Returns the shards of the plan, as read behind a listing while which something happens once the plan was read,
    and how often parts of it were read behind it."""

    def once_read() -> None:
        assert looks._early is not None
        wait([looks._early])
        meanwhile(make_ledger(root))

    real = make_ledger(root)
    looks = Ledger(InPages(real.store, real.root, once_read), real.root)
    listing = looks.list(plan_next=True)
    before = real.store.calls.copy()
    ids = looks.read_plan(listing).ids.to_pylist()
    return ids, real.store.calls.since(before).get


def planned(root: str, *parts: tuple[str, ...]) -> None:
    for ids in parts:
        there = make_ledger(root)
        assert there.append_plan(shards_table([make_shard(one) for one in ids]), there.list())


def test_it_is_not_read_again(root: str) -> None:
    """The listing tells of the parts that were read."""
    planned(root, ("a", "b"), ("c",))
    assert looked_at(root, lambda _: None) == (["a", "b", "c"], 0)


def grown(there: Ledger) -> None:
    planned(there.root, ("d",))


def started_over(there: Ledger) -> None:
    for number in range(2):
        there.store.delete(there.uri(layout.plan_part(number)))
    # As many bytes, under the same names.
    planned(there.root, ("x", "b"), ("c",))


@pytest.mark.parametrize(("meanwhile", "ids"), [(grown, ["a", "b", "c", "d"]), (started_over, ["x", "b", "c"])])
def test_a_plan_that_changed_meanwhile_is_read_again(
    meanwhile: Callable[[Ledger], None], ids: list[str], root: str
) -> None:
    """What was read early is of a plan that is there no more."""
    planned(root, ("a", "b"), ("c",))
    found, reads = looked_at(root, meanwhile)
    assert found == ids
    assert reads


def test_one_that_is_damaged_is_told(root: str) -> None:
    """A read ahead that fails says nothing: who reads the plan then is told what is wrong with it."""
    planned(root, ("a",))
    there = make_ledger(root)
    there.store.replace(there.uri(layout.plan_part(0)), b"no plan")
    with pytest.raises(ConfigError, match=r"00000\.parquet is not a part of a plan"):
        looked_at(root, lambda _: None)


def test_one_that_is_gone_is_told(root: str) -> None:
    """The listing names a part that was removed when it came to be read."""
    planned(root, ("a",))
    real = make_ledger(root)
    listing = real.list(plan_next=True)
    real.store.delete(real.uri(layout.plan_part(0)))
    listing.plan_parts = {name: Object(one.uri, one.size, "older") for name, one in listing.plan_parts.items()}
    with pytest.raises(ObjectNotFound, match="another driver removes this job"):
        real.read_plan(listing)


def test_who_does_not_ask_reads_nothing(root: str) -> None:
    """A look that ends a run has no use for the plan."""
    planned(root, ("a",))
    real = make_ledger(root)
    before = real.store.calls.copy()
    real.list()
    assert real.store.calls.since(before).get == 0
