"""A listing in parts: a service answers many requests at once, but says only with each page where the next one begins.

A million objects are a thousand pages: one after the other, minutes. So past its first pages a listing looks which
folders follow, from the top, and lists ranges between them side by side. Beyond the pages that costs a request for each
folder that is looked at, once, and up to one for each range, a fifth of all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, count, pairwise
from typing import Generic, TypeVar

from curate.dataclass import dataclass
from curate.errors import StorageError
from curate.prefetch import ahead

T = TypeVar("T")

PAGE = 1000
"""Objects that are handed on together: as many as a page of any service has."""
PLAIN_PAGES = 4
"""Pages after which folders are looked at: fewer take a second, and cost what they are."""
AT_ONCE = 8
"""Ranges that are listed side by side; twice as many wait to be taken, some 10 MB of objects."""
RANGE_PAGES = 4
"""Pages of a range, about, as far as the folders tell that were seen."""
MOST_PAGES = 16
"""Of a range that has more, as folders are not of one size, the rest is a listing of its own when its turn comes."""


@dataclass(frozen=True)
class PagedListing(Generic[T]):
    """All objects whose key begins with `prefix`, in code-point order."""

    prefix: str
    page: Callable[[str, str], tuple[list[T], str | None]]
    """Returns objects whose key is behind a key, or is that key, and the token of the next page; None: it was the last.
    Is given the key, and the token of a page that is not the first."""
    folders: Callable[[str, str], list[str]]
    """Returns the names of some folders of objects behind a key, in order: the first part of their keys that begins
    with a prefix and ends with a slash. Is given the prefix and the key."""
    key: Callable[[T], str]
    what: str
    """What it does, for messages: "list s3://b/k at http://minio:9000"."""

    def objects(self) -> Iterator[T]:
        """Yields them. Raises what `page` and `folders` do, and StorageError for pages that are not in order."""
        return chain.from_iterable(self.pages())

    def pages(self) -> Iterator[list[T]]:
        """Yields them, up to a thousand at a time. Raises what `objects` does."""
        return self._behind("", None)

    def _behind(self, after: str, until: str | None) -> Iterator[list[T]]:
        """Yields the objects behind a key, up to another one."""
        looked, ends, token, last = set[str](), list[str](), "", ""
        for pages in count(1):
            found, more, last = self._page(after, token, last)
            yield self._between(found, after, until)
            if more is None or (until is not None and found and self.key(found[-1]) >= until):
                return
            token = more
            ends += [self.key(one) for one in found[:1] + found[-1:]]
            for above in (one for one in self._levels(found) if pages >= PLAIN_PAGES and one not in looked):
                looked.add(above)
                cuts = self._cuts(above, found, ends, after, until)
                if cuts:
                    for (_, end), (objects, reached) in ahead(self._range, pairwise(cuts), AT_ONCE):
                        yield from (objects[at : at + PAGE] for at in range(0, len(objects), PAGE))
                        if reached is not None:
                            yield from self._behind(reached, end)
                    # There may be more of them.
                    after, token, looked, ends = cuts[-1], "", set(), []
                    break

    def _range(self, ends: tuple[str, str]) -> tuple[list[T], str | None]:
        """Returns the objects behind a key, up to another one, and the last of them if there may be more."""
        after, until = ends
        objects, reached, token, last = list[T](), after, "", ""
        for _ in range(MOST_PAGES):
            found, more, last = self._page(after, token, last)
            objects += self._between(found, after, until)
            reached = max(reached, self.key(found[-1])) if found else reached
            if more is None or reached >= until:
                return objects, None
            token = more
        return objects, reached

    def _page(self, after: str, token: str, last: str) -> tuple[list[T], str | None, str]:
        """Returns a page, the token of the next one, and the key that is reached. What a service repeats, the key
        `last` that was reached, is left out."""
        found, more = self.page(after, token)
        last = last if token else ""
        first = self.key(found[0]) if found else ""
        if first and first == last and (len(found) > 1 or more is None):
            found = found[1:]
        elif first and first <= last:
            # It may go on for ever, and ranges of it would lack objects.
            raise StorageError(
                f"{self.what}: a page begins with {first!r}, expected a key behind {last!r}, which the pages before it "
                "reach: the service does not list in order, or repeats its pages; look for a proxy that keeps answers, "
                "or choose another store"
            )
        return found, more, max(last, self.key(found[-1])) if found else last

    def _between(self, found: list[T], after: str, until: str | None) -> list[T]:
        if found and after < self.key(found[0]) and (until is None or self.key(found[-1]) <= until):
            return found
        return [one for one in found if after < self.key(one) and (until is None or self.key(one) <= until)]

    def _levels(self, found: Sequence[T]) -> Iterator[str]:
        """Yields the folders that all of a page lies in, from the top; the first one is the prefix."""
        if not found:
            return
        first, last = self.key(found[0]), self.key(found[-1])
        yield self.prefix
        for place in range(len(self.prefix), min(len(first), len(last))):
            if first[place] != last[place]:
                return
            if first[place] == "/":
                yield first[: place + 1]

    def _cuts(self, above: str, found: Sequence[T], ends: Sequence[str], after: str, until: str | None) -> list[str]:
        """Returns the last key of a page, and some of the folders that follow below another one: with some pages in
        between, if all are like those of this page, or like those where pages up to it have their `ends`. Nothing if
        that is not worth it."""
        # Whatever a service makes of where to begin, and of the order of folders, no object is lost or comes twice.
        last = max(after, self.key(found[-1]))
        names = sorted(one for one in self.folders(above, last) if last < one and (until is None or one <= until))
        here, so_far = (
            len({key[len(above) :].partition("/")[0] for key in keys if key.startswith(above)})
            for keys in (map(self.key, found), ends)
        )
        step = max(1, round(RANGE_PAGES * (here if here > 1 else so_far / (len(ends) / 2))))
        cuts = names[step - 1 :: step]
        return [last, *cuts] if len(cuts) > 1 else []
