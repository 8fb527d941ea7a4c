"""A store double that holds bytes, counts what is read and fails on request."""

from __future__ import annotations

import io
from typing import BinaryIO

from curate.errors import GenerationMismatch, ObjectNotFound
from curate.storage.protocol import Object


class FakeStore:
    """Objects by URI. `fail` is raised by every read; `reads` are the ranges that were asked for."""

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, str]] = {}
        self.fail: Exception | None = None
        self.reads: list[tuple[int, int | None]] = []

    def put(self, uri: str, data: bytes, generation: str = "1") -> Object:
        self.objects[uri] = (data, generation)
        return Object(uri, len(data), generation)

    def read(self, uri: str, start: int = 0, stop: int | None = None) -> bytes:
        self.reads.append((start, stop))
        if uri not in self.objects:
            raise ObjectNotFound(f"{uri} does not exist")
        return self.objects[uri][0][start:stop]

    def open(self, object: Object) -> BinaryIO:
        if object.uri not in self.objects:
            raise ObjectNotFound(f"{object.uri} does not exist")
        data, generation = self.objects[object.uri]
        if generation != object.generation:
            raise GenerationMismatch(f"{object.uri} is at generation {generation}")
        return Stream(self, data)


class Stream(io.BytesIO):
    """Bytes whose reads fail when the store's do."""

    def __init__(self, store: FakeStore, data: bytes) -> None:
        super().__init__(data)
        self._store = store

    def read(self, size: int | None = -1, /) -> bytes:
        if self._store.fail is not None:
            raise self._store.fail
        return super().read(size)
