"""A listing as columns: of millions of objects, each one that is made takes longer than all that is done with it.

`Store.list` returns an iterator of objects. One that is a `Listing` has them as columns, too, and whoever takes these
makes no objects. What a store around another one returns is its own, so that nothing goes past it: an iterator of
objects, unless it says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice

from curate.dataclass import dataclass, field
from curate.storage.protocol import LIST_PAGE, Object, Special


@dataclass(slots=True)
class Columns:
    """Some objects that follow each other in a listing."""

    uris: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    generations: list[str] = field(default_factory=list)
    kinds: dict[int, str] = field(default_factory=dict)
    """By their places, what those are that are no objects: the `kind` of a `Special`."""

    @classmethod
    def of(cls, root: str, rows: Sequence[tuple[str, int, str]]) -> Columns:
        """Returns objects of which key, size and generation are given, their URIs begin with `root`."""
        return cls([root + key for key, _, _ in rows], [size for _, size, _ in rows], [one for _, _, one in rows])

    def __len__(self) -> int:
        return len(self.uris)

    def object(self, at: int) -> Object:
        """Returns one of them."""
        uri, size, generation = self.uris[at], self.sizes[at], self.generations[at]
        return Special(uri, size, generation, self.kinds[at]) if at in self.kinds else Object(uri, size, generation)

    def objects(self) -> Iterable[Object]:
        """Returns them one by one."""
        return (
            map(self.object, range(len(self))) if self.kinds else map(Object, self.uris, self.sizes, self.generations)
        )

    def add_special(self, uri: str, kind: str) -> None:
        """Adds what is no object."""
        self.kinds[len(self)] = kind
        self.uris.append(uri)
        self.sizes.append(0)
        self.generations.append("")

    def extend(self, other: Columns) -> None:
        """Adds those of `other`."""
        self.kinds |= {len(self) + at: kind for at, kind in other.kinds.items()}
        self.uris += other.uris
        self.sizes += other.sizes
        self.generations += other.generations

    def take(self, places: Iterable[int]) -> Columns:
        """Returns those at some places."""
        found = Columns()
        for at in places:
            if at in self.kinds:
                found.kinds[len(found)] = self.kinds[at]
            found.uris.append(self.uris[at])
            found.sizes.append(self.sizes[at])
            found.generations.append(self.generations[at])
        return found


class Listing(Iterator[Object]):
    """The objects of a listing one by one, or as columns: whatever of them was not taken yet."""

    def __init__(self, pages: Iterator[Columns]) -> None:
        """`pages` have 1,000 objects or fewer, and are made when they are reached."""
        self.pages = pages
        """The objects as columns. Of a page from which one was taken, the others are not among them."""
        self._objects = chain.from_iterable(map(Columns.objects, pages))

    def __iter__(self) -> Iterator[Object]:
        # Not itself: of an iterator without a method in Python, each object is taken in a third of the time.
        return self._objects

    def __next__(self) -> Object:
        return next(self._objects)


def in_columns(objects: Iterable[Object], least: int) -> Iterator[Columns]:
    """Yields the objects of a listing as columns, whole pages together that have so many objects."""
    held = Columns()
    for page in objects.pages if isinstance(objects, Listing) else _paged(iter(objects)):
        held.extend(page)
        if len(held) >= least:
            yield held
            held = Columns()
    if held:
        yield held


def _paged(objects: Iterator[Object]) -> Iterator[Columns]:
    while some := list(islice(objects, LIST_PAGE)):
        page = Columns([one.uri for one in some], [one.size for one in some], [one.generation for one in some])
        if any(issubclass(kind, Special) for kind in set(map(type, some))):
            page.kinds = {at: one.kind for at, one in enumerate(some) if isinstance(one, Special)}
        yield page
