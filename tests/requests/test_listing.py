"""A listing in parts, held against the sorted keys, over a made-up service that counts what it is asked."""

from __future__ import annotations

import bisect
import threading
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.errors import StorageError
from curate.requests import listing as module
from curate.requests.listing import PagedListing
from tests.support.fakes import NEVER_S

PAGE = 10


class Service:
    """Keys, and what was asked of them."""

    def __init__(self, keys: Sequence[str], *, first_too: bool = False) -> None:
        self.keys = sorted(set(keys))
        self.first_too = first_too
        """Whether a page begins with the key that it is to be behind, as with GCS."""
        self.pages = self.looks = self.ranges = 0
        self._lock = threading.Lock()
        self.least = 0
        """How many requests for ranges have to be there at once, before one is answered."""
        self._waiting, self._met = 0, threading.Event()

    def listing(self, prefix: str = "") -> PagedListing[str]:
        return PagedListing(
            prefix, lambda after, token: self._page(prefix, after, token), self._folders, lambda key: key, "list them"
        )

    def _page(self, prefix: str, after: str, token: str) -> tuple[list[str], str | None]:
        with self._lock:
            self.pages += 1
            self.ranges += bool(after and not token)
        if self.least and after:
            with self._lock:
                self._waiting += 1
                if self._waiting == self.least:
                    self._met.set()
            assert self._met.wait(NEVER_S)
        at = bisect.bisect_left(self.keys, prefix)
        begins = bisect.bisect_left if self.first_too and not token else bisect.bisect_right
        at = max(at, begins(self.keys, token or after)) if token or after else at
        found = [key for key in self.keys[at : at + PAGE] if key.startswith(prefix)]
        more = len(found) == PAGE and self.keys[at + PAGE :][:1] and self.keys[at + PAGE].startswith(prefix)
        return found, found[-1] if more else None

    def _folders(self, prefix: str, after: str) -> list[str]:
        with self._lock:
            self.looks += 1
        found = [key[len(prefix) :].partition("/") for key in self.keys if key.startswith(prefix) and key > after]
        return sorted({f"{prefix}{name}/" for name, slash, _ in found if slash})[:PAGE]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PLAIN_PAGES", 1)
    monkeypatch.setattr(module, "RANGE_PAGES", 1)
    monkeypatch.setattr(module, "MOST_PAGES", 2)


names = st.sampled_from(["a", "b", "b.", "b0", "c", "ä", "\U0001f600", "z-", "."])
keys = st.lists(
    st.lists(names, min_size=1, max_size=4).map("/".join)
    | st.lists(names, min_size=1, max_size=3).map(lambda parts: "/".join(parts) + "/"),
    max_size=200,
)


@given(keys, st.sampled_from(["", "b", "b/", "b/c", "a/a/", "none"]), st.booleans())
def test_all_keys_in_order(keys: list[str], prefix: str, first_too: bool) -> None:
    """Whatever the folders, with marks of folders, which end with a slash, and names that sort around one."""
    service = Service(keys, first_too=first_too)
    assert list(service.listing(prefix).objects()) == [key for key in service.keys if key.startswith(prefix)]


@pytest.mark.parametrize("seed", range(20))
def test_all_keys_in_order_of_many_folders(seed: int) -> None:
    """Of one to a hundred keys, at three levels; most of them are listed by ranges."""
    random = Random(seed)
    keys = []
    for _ in range(60):
        folder = f"{random.choice('ab')}/{random.randrange(40)}/" + random.choice(["", f"{random.randrange(9)}/", "é/"])
        keys += [folder] * (random.random() < 0.2)
        keys += [f"{folder}{random.randrange(10**6)}" for _ in range(random.choice([1, 3, 10, 30, 100]))]
    service = Service(keys, first_too=seed % 2 == 0)
    for prefix in ("", "a/", "b/3", keys[-1][:4]):
        service.pages = service.looks = service.ranges = 0
        expected = [key for key in service.keys if key.startswith(prefix)]
        assert list(service.listing(prefix).objects()) == expected
        assert service.pages + service.looks <= 2.5 * (len(expected) // PAGE + 1) + 3
        assert service.ranges > 20 or len(expected) < 100 * PAGE


@pytest.mark.parametrize(
    ("keys", "plain", "most"),
    [
        ([f"{n:03d}" for n in range(10)], 1, 1),
        ([f"{n:04d}" for n in range(1000)], 100, 101),
        ([f"{n:03d}/{k:03d}" for n in range(100) for k in range(10)], 100, 220),
        ([f"data/{n:03d}/{k:03d}" for n in range(100) for k in range(10)], 100, 220),
        ([f"{n:04d}/x" for n in range(1000)], 100, 240),
    ],
)
def test_what_it_costs(keys: list[str], plain: int, most: int) -> None:
    """One page is one request, a flat folder one more than its pages. Of many folders each range, of one page here, may
    take two."""
    service = Service(keys)
    assert len(list(service.listing().objects())) == len(keys)
    assert plain <= service.pages + service.looks <= most


def test_a_service_that_begins_at_the_beginning() -> None:
    """One that does not know where to begin, and tells folders in another order: each object comes once, in order."""
    service = Service([f"{n:03d}/{k:03d}" for n in range(12) for k in range(10)])
    page, folders = service._page, service._folders
    service._page = lambda prefix, _, token: page(prefix, "", token)  # type: ignore[method-assign]
    service._folders = lambda prefix, _: folders(prefix, "")[::-1]  # type: ignore[method-assign]
    assert list(service.listing().objects()) == service.keys


@pytest.mark.parametrize("folders", [1, 12])
def test_a_service_that_begins_a_page_with_the_last_key_of_the_one_before(folders: int) -> None:
    """Each object comes once, in ranges too."""
    service = Service([f"{n:03d}/{k:03d}" for n in range(folders) for k in range(60)])
    page = service._page

    def repeated(prefix: str, after: str, token: str) -> tuple[list[str], str | None]:
        found, more = page(prefix, after, token)
        return ([token, *found] if token else found), more

    service._page = repeated  # type: ignore[method-assign]
    assert list(service.listing().objects()) == service.keys


def test_ranges_are_listed_side_by_side() -> None:
    """As many as may be: each waits here for the others."""
    service = Service([f"{n:03d}/{k:03d}" for n in range(12) for k in range(10)])
    service.least = module.AT_ONCE
    assert list(service.listing().objects()) == service.keys


def test_few_pages_cost_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """No folder is looked at for them."""
    monkeypatch.setattr(module, "PLAIN_PAGES", 4)
    for folders, looks in ((4, 0), (20, 1)):
        service = Service([f"{n:03d}/{k:03d}" for n in range(folders) for k in range(10)])
        assert list(service.listing().objects()) == service.keys
        assert (service.looks > 0) == (looks > 0)


def test_who_takes_one_page_asks_for_one() -> None:
    """Looking for the first object costs no more than it did."""
    service = Service([f"{n:03d}/{k:03d}" for n in range(100) for k in range(10)])
    assert next(service.listing().objects()) == "000/000"
    assert (service.pages, service.looks) == (1, 0)


def test_what_a_range_raises_is_raised_where_its_turn_comes() -> None:
    """What comes before it is there."""
    service = Service([f"{n:03d}/{k:03d}" for n in range(12) for k in range(10)])
    plain = service._page

    def page(prefix: str, after: str, token: str) -> tuple[list[str], str | None]:
        if after.startswith("005"):
            raise PermissionError(after)
        return plain(prefix, after, token)

    service._page = page  # type: ignore[method-assign]
    found: list[str] = []

    def take() -> None:
        for one in service.listing().objects():
            found.append(one)

    with pytest.raises(PermissionError, match="005"):
        take()
    assert found == [key for key in service.keys if key < "005/"]


@pytest.mark.parametrize("folders", [1, 12])
@pytest.mark.parametrize("how", ["the same page", "one object", "another order"])
def test_a_service_whose_pages_do_not_go_on_is_refused(folders: int, how: str) -> None:
    """One that knows no tokens says the same again for ever, and one that lists in another order would lack objects of
    ranges: what was handed on before that is in order, and comes once."""
    service = Service([f"{n:03d}/{k:03d}" for n in range(folders) for k in range(60)])
    page, asked = service._page, list[str]()
    order = service.keys[30:] + service.keys[:30]

    def odd(prefix: str, after: str, token: str) -> tuple[list[str], str | None]:
        asked.append(token)
        assert len(asked) < 1000
        if how == "another order":
            at = int(token or 0)
            return order[at : at + PAGE], str(at + PAGE) if at + PAGE < len(order) else None
        found, _ = page(prefix, after, "")
        return found[:1] if how == "one object" else found, "more"

    service._page = odd  # type: ignore[method-assign]
    found: list[str] = []
    with pytest.raises(StorageError, match=r"^list them: a page begins with '.*', expected a key behind '.*in order"):
        found.extend(service.listing().objects())
    assert found == sorted(set(found))
    assert len(found) < len(service.keys)
