"""Services that have answered this process. One that never has is probably a wrong address; the others may be away."""

from __future__ import annotations

from collections.abc import Callable

from curate.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """A service at an address."""

    name: str
    """What it is called in messages: "S3 at http://minio:9000"."""
    check: str
    """What to check if it never answers: "AWS_ENDPOINT_URL"."""


class ReachedPlaces:
    """The places that have answered this process. A program takes it along, so that its workers know them too."""

    def __init__(self) -> None:
        self._places: set[Place] = set()

    def __contains__(self, place: Place) -> bool:
        return place in self._places

    def add(self, *places: Place) -> None:
        """Remembers places that have answered."""
        self._places.update(places)

    def __reduce__(self) -> tuple[Callable[..., ReachedPlaces], tuple[Place, ...]]:
        return _reached_too, tuple(self._places)


REACHED = ReachedPlaces()
"""Those of this process."""


def _reached_too(*places: Place) -> ReachedPlaces:
    REACHED.add(*places)
    return REACHED
