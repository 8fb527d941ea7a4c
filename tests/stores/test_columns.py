"""A listing as columns: the same objects as one by one, of every store, and of every store around one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from curate.errors import PermissionDenied
from curate.storage.listing import Columns, Listing, in_columns
from curate.storage.protocol import LINK_TO_NOTHING, LIST_PAGE, Object, Special
from curate.stores import local
from curate.stores.faulty import FaultyStore
from curate.stores.local import LocalStore
from curate.stores.memory import MemoryStore
from curate.testing.contract import StorePlace
from tests.support.moto_server import many_puts


def objects_of(blocks: Iterator[Columns]) -> list[Object]:
    return [one for block in blocks for one in block.objects()]


@pytest.mark.parametrize("least", [1, 3, 10_000])
def test_every_store_lists_columns(place: StorePlace, least: int) -> None:
    """They are the objects that it lists one by one, in blocks that are as large as asked for."""
    names = [f"{folder}/{number}" for folder in ("a", "a-", "é\U0001f600") for number in range(3)] + ["a.b", "z"]
    for name in names:
        place.store.publish(place.root + name, name.encode())
    for prefix in ("", "a", "a/", "none"):
        assert isinstance(place.store.list(place.root + prefix), Listing)
        expected = list(place.store.list(place.root + prefix))
        blocks = list(in_columns(place.store.list(place.root + prefix), least))
        assert objects_of(iter(blocks)) == expected
        assert all(len(block) >= least for block in blocks[:-1])
        assert [block.object(at) for block in blocks for at in range(len(block))] == expected


@pytest.mark.slow
@many_puts
def test_columns_are_listed_once_they_are_asked_for(place: StorePlace) -> None:
    """And cost what the objects do: a request for every page that is reached."""
    for index in range(LIST_PAGE + 1):
        place.store.publish(f"{place.root}{index:04}", b"")
    before = place.store.calls.copy()
    listing = in_columns(place.store.list(place.root), 1)
    assert place.store.calls.since(before).list == 0
    assert len(next(listing)) <= LIST_PAGE
    assert place.store.calls.since(before).list == 1
    assert sum(map(len, listing)) > 0
    assert place.store.calls.since(before).list == 2


class Around:
    """A store around another one, which leaves out what it does not want to be seen."""

    def __init__(self, inner: MemoryStore) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def list(self, prefix: str) -> Iterator[Object]:
        return (one for one in self._inner.list(prefix) if "secret" not in one.uri)


def test_nothing_goes_past_a_store_around_another_one() -> None:
    """What lists objects one by one says what there is: columns are made of these, specials and pages included."""
    store = MemoryStore()
    for name in ("a", "secret", "z"):
        store.publish(f"memory://around/{name}", b"x")
    found = objects_of(in_columns(Around(store).list("memory://around/"), 10))
    assert [one.uri for one in found] == ["memory://around/a", "memory://around/z"]
    assert objects_of(in_columns(FaultyStore(store).list("memory://around/"), 1)) == list(
        store.list("memory://around/")
    )
    many = [Object(f"/{number}", number, str(number)) for number in range(LIST_PAGE)] + [Special("/x", 0, "", "a FIFO")]
    assert objects_of(in_columns(iter(many), 10)) == many


def test_what_is_no_object_keeps_its_kind(tmp_path: Path) -> None:
    """Wherever it is in the columns, and in what is taken of them."""
    (tmp_path / "a").write_bytes(b"a")
    os.mkfifo(tmp_path / "b")
    (tmp_path / "c").symlink_to("nothing")
    (tmp_path / "d").write_bytes(b"d")
    listed = list(LocalStore().list(f"{tmp_path}/"))
    assert [getattr(one, "kind", None) for one in listed] == [None, "a FIFO", LINK_TO_NOTHING, None]
    (block,) = in_columns(LocalStore().list(f"{tmp_path}/"), 10)
    assert list(block.objects()) == listed
    assert list(block.take([3, 1, 0]).objects()) == [listed[3], listed[1], listed[0]]


def test_the_first_file_is_listed_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who looks for one file is not told that a folder behind it cannot be read."""
    (tmp_path / "a").write_bytes(b"a")
    (tmp_path / "a.d").mkdir()
    names = local._names

    def refused(directory: str, start: str = "") -> list[str]:
        if directory.endswith(".d/"):
            raise PermissionDenied(directory)
        return names(directory, start)

    monkeypatch.setattr(local, "_names", refused)
    assert [one.uri for one in islice(LocalStore().list(f"{tmp_path}/a"), 1)] == [f"{tmp_path}/a"]
    with pytest.raises(PermissionDenied):
        list(LocalStore().list(f"{tmp_path}/a"))
