"""GCS answers that do not come in whole although their status says that all is well, or do not come at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from curate.errors import GenerationMismatch, ObjectNotFound, StorageError, TransientStorageError
from curate.requests.reached import REACHED
from curate.storage.protocol import Object, Outcome, Store
from curate.stores import gcs
from curate.stores.gcs import GCSStore
from curate.testing.clock import FakeClock
from tests.support.emulator import Cut, page
from tests.support.gcs_emulator import GcsEmulator

X, NEW = "gs://bucket/x", "gs://bucket/new"
CONTENT = b"0123456789"
CHUNK = 256 << 10
LARGE = b"0123456789" * 30_000
"""Two chunks, of the smallest size that there is."""
EVERY, JSON, WHOLE = frozenset(Cut), frozenset(Cut) - {Cut.BARE}, frozenset(Cut) - {Cut.BARE}


@dataclass(frozen=True)
class Row:
    """A call, and what can be wrong with its answers."""

    operation: str
    """What the server counts, of which one answer is cut."""
    do: Callable[[Store], Any]
    cuts: frozenset[Cut]
    """How its answer can be cut so that less comes, or something else; by the others it loses nothing."""
    requests: int
    """Of that operation, where nothing goes wrong."""
    nth: int = 1
    """Which of them is cut."""
    compares: bool = False
    """Whether the second try finds what the first one made."""


def large(store: Store) -> Object:
    with store.writer(NEW) as writer:
        writer.write(LARGE)
        published = writer.publish()
        assert published.outcome in (Outcome.CREATED, Outcome.IDENTICAL)
        return published.object


def published(store: Store) -> Object:
    found = store.publish(NEW, b"new")
    assert found.outcome in (Outcome.CREATED, Outcome.IDENTICAL)
    return found.object


TABLE = {
    "list": Row("list", lambda store: [one.uri for one in store.list("gs://bucket/")], JSON, 1),
    "list, second page": Row("list", lambda store: [one.uri for one in store.list("gs://bucket/")], JSON, 2, nth=2),
    "stat": Row("get", lambda store: store.stat(X).size, JSON, 1),
    "read": Row("get", lambda store: store.read(X), WHOLE, 1),
    "read a range": Row("get", lambda store: store.read(X, 1, 8), EVERY - {Cut.CHANGED}, 1),
    "read the end": Row("get", lambda store: store.read(X, -4), EVERY - {Cut.CHANGED}, 1),
    "open": Row("get", lambda store: store.open(next(store.list(X))).read(), EVERY, 1),
    "publish": Row("put", published, JSON, 1, compares=True),
    "replace": Row("put", lambda store: store.replace(X, b"beat").size, JSON, 1),
    "delete": Row("delete", lambda store: store.delete(X), frozenset(), 1),
    "start of an upload": Row("put", large, frozenset({Cut.BARE}), 1),
    "first chunk": Row("chunk", large, frozenset(), 2),
    "last chunk": Row("chunk", large, JSON, 2, nth=2),
}


@pytest.fixture
def emulator(emulator: GcsEmulator, monkeypatch: pytest.MonkeyPatch) -> GcsEmulator:
    """A server with an object, for a store whose pages and chunks are small."""
    monkeypatch.setattr(gcs, "CHUNK_BYTES", CHUNK)
    monkeypatch.setattr(gcs, "SIMPLE_BYTES", CHUNK)
    emulator.put(X, CONTENT)
    return emulator


def prepared(emulator: GcsEmulator, call: str, monkeypatch: pytest.MonkeyPatch) -> Row:
    if call == "list, second page":
        monkeypatch.setattr(gcs, "LIST_PAGE", 1)
        emulator.put("gs://bucket/y", b"")
    return TABLE[call]


@pytest.mark.ci(60)
@pytest.mark.quick(40)
@pytest.mark.parametrize("call", TABLE)
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("cut", Cut)
def test_what_does_not_come_in_whole_is_asked_for_again(
    emulator: GcsEmulator,
    gcs: GCSStore,
    clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    times: int,
    cut: Cut,
) -> None:
    """Whichever call, and however often: one request more each time, the same result, and the same objects, once."""
    row = prepared(emulator, call, monkeypatch)
    noticed = times if cut in row.cuts else 0
    if row.compares:
        # The second try is refused, which the status says.
        noticed = min(noticed, 1)
    elif call == "first chunk":
        # The second one is the last, which is answered with the object.
        noticed = times - 1 if cut in JSON else 0
    elif cut is Cut.CHANGED and call in ("read a range", "read the end"):
        pytest.skip("nothing tells that a part of an object was changed: its checksum is that of the whole")
    emulator.fail(operation=row.operation, cut=cut, nth=row.nth, times=times)
    found = row.do(gcs)
    sent = [operation for operation, *_ in emulator.requests]
    assert sent.count(row.operation) == row.requests + noticed
    assert len(clock.sleeps) == noticed
    # A create that finds its own object compares it.
    looks = 1 if row.compares and noticed else 0
    assert sent.count("get") == (row.requests + noticed if row.operation == "get" else looks)
    assert gcs.calls.as_dict() == emulator.counts()
    match found:
        case Object():
            assert emulator.objects()[found.uri] == (LARGE if row.do is large else b"new")
            assert found == Object(found.uri, len(emulator.objects()[found.uri]), str(emulator.generation(found.uri)))
        case bytes():
            assert found == {"read": CONTENT, "read a range": CONTENT[1:8], "read the end": CONTENT[-4:]}.get(
                call, CONTENT
            )
        case list():
            assert found == list(emulator.objects())
        case _:
            assert found == {"stat": len(CONTENT), "replace": 4, "delete": True}[call]


@pytest.mark.ci(26)
@pytest.mark.quick(13)
@pytest.mark.parametrize("call", TABLE)
@pytest.mark.parametrize("status", [200, 403, 404, 412])
def test_a_page_of_a_proxy_tells_nothing_of_an_object(
    emulator: GcsEmulator, gcs: GCSStore, monkeypatch: pytest.MonkeyPatch, call: str, status: int
) -> None:
    """Neither that it is what was read, nor that it is gone, or taken, or may not be read: it is asked for again."""
    row = prepared(emulator, call, monkeypatch)
    assert gcs.stat(X).size == len(CONTENT)
    expected = {"stat": len(CONTENT), "replace": 4, "delete": True, "read a range": CONTENT[1:8]}
    expected |= {"read the end": CONTENT[-4:], "list, second page": [X, "gs://bucket/y"], "list": [X]}
    emulator.answer_once(row.operation, page(status), monkeypatch)
    found = row.do(gcs)
    assert gcs.transient_failures == 1
    if isinstance(found, Object):
        assert emulator.objects()[found.uri] == (LARGE if row.do is large else b"new")
    else:
        assert found == expected.get(call, CONTENT)
    assert (X in emulator.objects()) == (call != "delete")


def test_a_page_where_gcs_never_answered(emulator: GcsEmulator, gcs: GCSStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a wrong address, which says so at once."""
    monkeypatch.setattr(REACHED, "_places", set())
    emulator.answer_once("get", page(404), monkeypatch)
    with pytest.raises(
        StorageError, match=r"is not GCS at .* \(found 404, .*sign in.* STORAGE_EMULATOR_HOST, then"
    ) as told:
        gcs.read(X)
    assert not isinstance(told.value, ObjectNotFound | TransientStorageError)


LOST: dict[str, dict[str, Any]] = {
    "503": {"status": 503},
    "reset": {"reset": True},
    "truncated": {"truncate": True},
    "conflict": {"status": 409},
}


@pytest.mark.ci(60)
@pytest.mark.quick(33)
@pytest.mark.parametrize("call", TABLE)
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("how", LOST)
@pytest.mark.parametrize("when", ["before", "after"])
def test_what_took_effect_without_an_answer_is_found_again(
    emulator: GcsEmulator,
    gcs: GCSStore,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    times: int,
    how: str,
    when: Any,
) -> None:
    """Whether the effect was there or not when the answer was lost: what is there in the end is what was asked for."""
    if how == "truncated" and call in ("delete", "first chunk", "start of an upload"):
        pytest.skip("its answer has no body that could break off")
    row = prepared(emulator, call, monkeypatch)
    fault = emulator.fail(operation=row.operation, nth=row.nth, times=times, when=when, **LOST[how])
    found = row.do(gcs)
    assert fault.fired >= 1
    match found:
        case Object():
            assert found == Object(found.uri, len(emulator.objects()[found.uri]), str(emulator.generation(found.uri)))
        case list():
            assert found == list(emulator.objects())
        case _:
            assert found == {"replace": 4, "stat": len(CONTENT), "delete": True, "open": CONTENT, "read": CONTENT}.get(
                call, found
            )
    assert (X in emulator.objects()) == (call != "delete")
    assert gcs.calls.as_dict() == emulator.counts()


@pytest.mark.parametrize("how", ["503", "reset"])
def test_a_delete_whose_answer_was_lost_did_what_it_was_asked_to(
    emulator: GcsEmulator, gcs: GCSStore, how: str
) -> None:
    """The generation that was seen is gone: also where another object has its name by the time of the second try. One
    that was refused at the first try is told, and removes nothing."""
    seen = gcs.stat(X)
    emulator.fail(operation="delete", when="after", **LOST[how])
    assert gcs.delete(X, seen.generation) is True
    assert emulator.objects() == {}

    emulator.put(X, b"one")
    seen = gcs.stat(X)
    once = gcs._once

    def then_another(request: Any) -> Any:
        try:
            return once(request)
        finally:
            if request.kind == "delete" and X not in emulator.objects():
                emulator.put(X, b"another")

    gcs._once = then_another  # type: ignore[method-assign]
    emulator.fail(operation="delete", when="after", **LOST[how])
    assert gcs.delete(X, seen.generation) is True
    assert emulator.objects() == {X: b"another"}
    with pytest.raises(GenerationMismatch):
        gcs.delete(X, seen.generation)
    with pytest.raises(ObjectNotFound):
        gcs.stat("gs://bucket/none")


def test_a_conflict_with_another_object_is_no_success(emulator: GcsEmulator, gcs: GCSStore) -> None:
    """409 for a name that is taken by other bytes: compared, and told as different."""
    emulator.fail(operation="put", status=409)
    assert gcs.publish(X, b"other").outcome is Outcome.DIFFERENT
    assert emulator.objects() == {X: CONTENT}
