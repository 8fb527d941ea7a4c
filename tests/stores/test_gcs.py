"""GCS when things go wrong: exact requests for scripted faults; no test waits."""

from __future__ import annotations

import gzip
import os
import pickle
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable

import gcsfs
import google_crc32c
import pytest
from gcsfs.retry import HttpError
from google.auth.exceptions import DefaultCredentialsError, RefreshError, TransportError

from curate.errors import ObjectNotFound, PermissionDenied, StorageError, TransientStorageError
from curate.requests.reached import REACHED
from curate.requests.retry import Retry
from curate.storage.protocol import Outcome, Store
from curate.stores import gcs
from curate.stores.gcs import CHUNK_BYTES, SIMPLE_BYTES, GCSStore
from curate.testing.clock import FakeClock
from tests.support.gcs_emulator import GcsEmulator, _Answer

X = "gs://bucket/x"
BIG = os.urandom(CHUNK_BYTES + 1000)
"""Two chunks."""

CALLS: dict[str, tuple[str, Callable[[Store], object]]] = {
    "list": ("list", lambda store: list(store.list("gs://bucket/"))),
    "stat": ("get", lambda store: store.stat(X)),
    "read": ("get", lambda store: store.read(X)),
    "range": ("get", lambda store: store.read(X, 1, 3)),
    "open": ("get", lambda store: store.open(next(store.list(X))).read()),
    "publish": ("put", lambda store: store.publish("gs://bucket/new", b"new")),
    "replace": ("put", lambda store: store.replace(X, b"new")),
    "delete": ("delete", lambda store: store.delete(X)),
}


def publish_large(store: Store, uri: str = X, data: bytes = BIG) -> Outcome:
    with store.writer(uri) as writer:
        writer.write(data)
        return writer.publish().outcome


@pytest.mark.quick(35)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_a_transient_status_is_retried_and_counted(
    emulator: GcsEmulator, gcs: GCSStore, clock: FakeClock, call: str, status: int
) -> None:
    """A 503 and its like cost one request more, and show in the counts and as a transient failure."""
    emulator.put(X, b"content")
    kind, do = CALLS[call]
    fault = emulator.fail(operation=kind, status=status)
    do(gcs)
    assert fault.fired == 1
    assert getattr(gcs.calls, kind) == 2
    assert gcs.calls.as_dict() == emulator.counts()
    assert gcs.transient_failures == len(clock.sleeps) == 1


@pytest.mark.parametrize("call", CALLS)
def test_a_reset_is_retried(emulator: GcsEmulator, gcs: GCSStore, call: str) -> None:
    """A connection that breaks before anything happened is tried again, once for each request seen by the server."""
    emulator.put(X, b"content")
    kind, do = CALLS[call]
    emulator.fail(operation=kind, reset=True, times=2)
    do(gcs)
    assert getattr(gcs.calls, kind) == 3
    assert gcs.calls.as_dict() == emulator.counts()


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("status", "error"),
    [(400, StorageError), (401, PermissionDenied), (403, PermissionDenied), (404, ObjectNotFound), (501, StorageError)],
)
def test_a_permanent_status_is_never_retried(
    emulator: GcsEmulator, gcs: GCSStore, clock: FakeClock, call: str, status: int, error: type[StorageError]
) -> None:
    """What trying again cannot change costs one request and is told with its status."""
    emulator.put(X, b"content")
    kind, do = CALLS[call]
    emulator.fail(operation=kind, status=status, times=99)
    if (call, status) == ("delete", 404):
        assert do(gcs) is False
    else:
        with pytest.raises(error) as caught:
            do(gcs)
        assert type(caught.value) is (ObjectNotFound if status == 404 else error)
        if call != "open" or status != 404:
            assert f"{status}" in str(caught.value)
    assert getattr(gcs.calls, kind) == (2 if (call, status) == ("open", 404) else 1)
    assert clock.sleeps == []


def test_a_refusal_says_how_to_get_in(emulator: GcsEmulator, gcs: GCSStore) -> None:
    """The message of a 403 names the call, the answer and the command that logs in."""
    emulator.fail(status=403)
    with pytest.raises(
        PermissionDenied, match=r"stat gs://bucket/x: GCS answered 403 .*gcloud auth application-default"
    ):
        gcs.stat(X)


@pytest.mark.parametrize(
    ("failure", "error", "requests"),
    [
        (TransportError("metadata server unreachable"), TransientStorageError, 4),  # type: ignore[no-untyped-call]
        (RefreshError("try later", retryable=True), TransientStorageError, 4),  # type: ignore[no-untyped-call]
        (RefreshError("revoked"), PermissionDenied, 1),  # type: ignore[no-untyped-call]
        (DefaultCredentialsError("none found"), PermissionDenied, 1),  # type: ignore[no-untyped-call]
    ],
)
def test_credentials_that_fail_are_told(
    gcs: GCSStore,
    clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
    failure: Exception,
    error: type[StorageError],
    requests: int,
) -> None:
    """A metadata server that stumbles is tried again; credentials that are refused are not.

    Of a store that has never answered for five seconds: waits of half a second, one and two at most fit, whatever the
    jitter.
    """
    attempts = []

    def refresh(*_: object) -> None:
        attempts.append(1)
        if isinstance(failure, RefreshError):
            # As gcsfs raises it.
            raise HttpError({"code": 401, "message": "Invalid Credentials"}) from failure
        raise failure

    monkeypatch.setattr(gcsfs.GCSFileSystem, "_get_headers", refresh)
    with pytest.raises(error, match=str(failure)) as caught:
        gcs.stat(X)
    assert type(caught.value) is error
    assert len(attempts) == len(clock.sleeps) + 1
    assert len(attempts) >= requests


def test_throttling_by_a_403_is_retried(emulator: GcsEmulator, gcs: GCSStore) -> None:
    """Some quotas answer 403 with the reason `rateLimitExceeded`."""
    emulator.put(X, b"x")
    emulator.fail(status=403, reason="rateLimitExceeded")
    assert gcs.read(X) == b"x"
    assert gcs.calls.get == 2


@pytest.mark.parametrize(
    ("reason", "next_step"),
    [
        ("forbidden", "log in with: gcloud auth application-default login"),
        ("quotaExceeded", "a quota of the project is used up: raise it, or wait until it is renewed"),
        ("accountDisabled", "is disabled: enable it"),
        ("retentionPolicyNotMet", "choose an output in a bucket without that"),
        ("objectUnderActiveHold", "is on hold: release it, or choose another output"),
    ],
)
def test_what_to_do_goes_by_the_reason(emulator: GcsEmulator, gcs: GCSStore, reason: str, next_step: str) -> None:
    """Of a 403 that no right would change; it is tried once."""
    emulator.put(X, b"x")
    emulator.fail(status=403, reason=reason)
    with pytest.raises(PermissionDenied, match=next_step):
        gcs.read(X)
    assert gcs.calls.get == 1


@pytest.mark.parametrize(
    "body", [b"", b"<html>invalid</html>", b'{"error": "invalid"}', b'{"error": {}}', b"[]", b"\xff"]
)
@pytest.mark.parametrize(("status", "error"), [(503, TransientStorageError), (400, StorageError)])
def test_the_status_decides_whatever_the_body_says(
    emulator: GcsEmulator,
    clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
    body: bytes,
    status: int,
    error: type[StorageError],
) -> None:
    """Proxies and load balancers answer in formats of their own."""
    monkeypatch.setattr("tests.support.gcs_emulator._refusal", lambda status, *_: _Answer(status, body))
    emulator.fail(status=status, times=10**6)
    with pytest.raises(error, match=f"GCS answered {status}") as caught:
        GCSStore(Retry(deadline_s=3, clock=clock)).stat(X)
    assert type(caught.value) is error


def test_a_missing_bucket_is_not_found(gcs: GCSStore) -> None:
    """A bucket that does not exist is an error for a listing too, unlike a prefix without objects."""
    with pytest.raises(ObjectNotFound, match="list gs://nowhere/: it does not exist, or its bucket does not"):
        list(gcs.list("gs://nowhere/"))


def test_the_deadline_names_the_call(emulator: GcsEmulator, gcs: GCSStore, clock: FakeClock) -> None:
    """When two minutes of retrying did not help, the error says what was tried, how often and for how long."""
    emulator.fail(operation="get", status=503, times=10**6)
    with pytest.raises(
        TransientStorageError, match=r"read gs://bucket/x: \d+ attempts in \d+ s failed.*GCS answered 503"
    ):
        gcs.read(X)
    assert 60 < sum(clock.sleeps) <= 120
    assert gcs.calls.get == len(clock.sleeps) + 1
    assert gcs.calls.as_dict() == emulator.counts()


def test_a_page_is_retried_alone(emulator: GcsEmulator, gcs: GCSStore) -> None:
    """A listing that fails at its third page does not start again."""
    for index in range(2500):
        emulator.put(f"gs://bucket/{index:04}", b"")
    emulator.fail(operation="list", nth=3, times=2)
    assert [found.uri[-4:] for found in gcs.list("gs://bucket/")] == [f"{index:04}" for index in range(2500)]
    assert gcs.calls.list == 5


def test_a_body_that_breaks_off_is_read_again(emulator: GcsEmulator, gcs: GCSStore) -> None:
    """Half an answer is no answer: for objects, ranges and pages."""
    emulator.put(X, b"0123456789")
    emulator.fail(operation="get", truncate=True)
    assert gcs.read(X) == b"0123456789"
    emulator.fail(operation="get", truncate=True)
    assert gcs.read(X, 2) == b"23456789"
    emulator.fail(operation="list", truncate=True)
    assert len(list(gcs.list("gs://bucket/"))) == 1
    assert gcs.calls.as_dict() == {"list": 2, "get": 4, "put": 0, "delete": 0}


def test_a_stalled_answer_is_given_up(emulator: GcsEmulator, clock: FakeClock) -> None:
    """A server that says nothing is a failed attempt, not a hung job."""
    store = GCSStore(Retry(clock=clock, stall_s=0.5))
    emulator.put(X, b"x")
    emulator.fail(operation="get", slow_s=5.0, status=None)
    assert store.read(X) == b"x"
    assert store.calls.get == 2


@pytest.mark.slow
def test_a_server_that_never_answered_is_given_up_sooner(
    emulator: GcsEmulator, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Than one that has, and is slow now."""
    monkeypatch.setattr(REACHED, "_places", set())
    store = GCSStore(Retry(clock=clock, first_answer_s=0.5))
    emulator.put(X, b"x")
    emulator.fail(operation="get", slow_s=1.0, status=None)
    assert store.read(X) == b"x"
    assert store.transient_failures == 1
    emulator.fail(operation="get", slow_s=1.0, status=None)
    assert store.read(X) == b"x"
    assert store.transient_failures == 1


@pytest.mark.parametrize("call", ["list", "stat", "read", "range", "open", "publish", "replace"])
def test_an_answer_that_drips_is_given_up(emulator: GcsEmulator, clock: FakeClock, call: str) -> None:
    """A byte at a time for ever, each well within the time in which something has to come: one failed attempt."""
    store = GCSStore(Retry(clock=clock, stall_s=0.5))
    emulator.put(X, b"0123456789" * 100)
    kind, do = CALLS[call]
    emulator.fail(operation=kind, status=None, drip_s=0.3)
    do(store)
    assert store.transient_failures == 1
    assert getattr(store.calls, kind) == 2


@pytest.mark.slow
def test_a_large_answer_may_take_longer_than_a_stall(emulator: GcsEmulator) -> None:
    """What it moves buys it time: 60 bytes in 1.2 s, or minutes, are enough where one in 10 s is asked for."""
    content = b"0123456789" * 6
    emulator.put(X, content)
    emulator.fail(operation="get", status=None, drip_s=0.02)
    patient = GCSStore(Retry(clock=FakeClock(), stall_s=0.6, slow_bytes_per_s=0.1))
    assert patient.read(X) == content
    assert patient.calls.get == 1
    emulator.fail(operation="get", status=None, drip_s=0.02)
    strict = GCSStore(Retry(clock=FakeClock(), stall_s=0.6, slow_bytes_per_s=1_000_000))
    assert strict.read(X) == content
    assert strict.calls.get >= 2


def test_a_server_that_takes_no_bytes_is_given_up(monkeypatch: pytest.MonkeyPatch, clock: FakeClock) -> None:
    """An upload into a connection that nobody reads ends as one whose answer does not come."""
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{deaf.getsockname()[1]}")
        store = GCSStore(Retry(clock=clock, deadline_s=0.0, stall_s=0.1, slow_bytes_per_s=1 << 30))
        with pytest.raises(
            TransientStorageError, match=r"upload gs://bucket/x.*slower than 1,073,741,824 bytes a second"
        ):
            store.publish(X, b"x" * SIMPLE_BYTES)


def test_a_server_that_is_not_there_is_transient(monkeypatch: pytest.MonkeyPatch, clock: FakeClock) -> None:
    """A refused connection is retried for some seconds: nothing was ever there."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
    with pytest.raises(TransientStorageError, match=r"gs://bucket/x: GCS at .*:9 cannot be .*check STORAGE_EMULATOR_H"):
        GCSStore(Retry(clock=clock)).stat(X)
    assert sum(clock.sleeps) < 5


@pytest.mark.parametrize(
    "how", [{"status": 503}, {"reset": True}, {"truncate": True}], ids=["503", "reset", "truncated"]
)
def test_an_upload_whose_answer_was_lost_is_identical(
    emulator: GcsEmulator, gcs: GCSStore, how: dict[str, object]
) -> None:
    """The upload took effect, its answer never came: the retry is refused, compared, and found to be ours."""
    emulator.fail(operation="put", when="after", **how)  # type: ignore[arg-type]
    published = gcs.publish(X, b"data")
    assert published.outcome is Outcome.IDENTICAL
    assert published.object == gcs.stat(X)
    assert gcs.calls.as_dict() == emulator.counts() == {"list": 0, "get": 2, "put": 2, "delete": 0}


@pytest.mark.quick(2)
@pytest.mark.parametrize("lost", ["put", "chunk"])
@pytest.mark.parametrize("how", [{"status": 503}, {"reset": True}], ids=["503", "reset"])
def test_a_large_upload_whose_answers_were_lost_is_ours(
    emulator: GcsEmulator, gcs: GCSStore, lost: str, how: dict[str, object]
) -> None:
    """A start that took effect leaves a session that nobody sees; the look after a last chunk finds the object made."""
    emulator.fail(operation=lost, nth=2 if lost == "chunk" else 1, when="after", **how)  # type: ignore[arg-type]
    assert publish_large(gcs) is Outcome.CREATED
    assert emulator.objects() == {X: BIG}
    assert gcs.calls.put == (2 if lost == "put" else 1)


def test_an_upload_that_gcs_finished_and_forgot_is_identical(emulator: GcsEmulator, gcs: GCSStore) -> None:
    """The last chunk took effect, its answer was lost, and the session was gone when it was looked at: the new session
    is refused, the object compared, and found to be ours."""
    emulator.fail(operation="chunk", nth=2, when="after", reset=True)
    emulator.fail(operation="chunk", nth=2, status=410)
    assert publish_large(gcs) is Outcome.IDENTICAL
    assert emulator.objects() == {X: BIG}
    assert gcs.calls.as_dict() == {"list": 0, "get": 1, "put": 2, "delete": 0}


def test_a_replacement_whose_answer_was_lost_is_made_again(emulator: GcsEmulator, gcs: GCSStore) -> None:
    """It has no precondition, so the second is as good as the first; what is returned is what is there."""
    emulator.fail(operation="put", when="after", reset=True)
    assert gcs.replace(X, b"beat").generation == str(emulator.generation(X))
    assert gcs.calls.put == 2


def test_a_taken_name_is_compared_by_all_its_checksums(emulator: GcsEmulator, gcs: GCSStore) -> None:
    """Two contents of one size and one CRC-32C are still told apart."""
    one = b"first..."
    two = same_crc(one, b"next")
    assert (len(one), google_crc32c.value(one)) == (len(two), google_crc32c.value(two))
    assert one != two
    emulator.put(X, one)
    assert gcs.publish(X, one).outcome is Outcome.IDENTICAL
    assert gcs.publish(X, two).outcome is Outcome.DIFFERENT


def same_crc(content: bytes, start: bytes) -> bytes:
    """Returns `start` and four bytes such that the checksum is that of `content`.

    A CRC is affine over bits, so the four bytes are found by elimination.
    """
    zero = google_crc32c.value(start + bytes(4))
    basis: dict[int, tuple[int, int]] = {}
    for bit in range(32):
        effect, flips = google_crc32c.value(start + (1 << bit).to_bytes(4, "big")) ^ zero, 1 << bit
        while effect and (high := effect.bit_length()) in basis:
            effect, flips = effect ^ basis[high][0], flips ^ basis[high][1]
        basis[effect.bit_length()] = (effect, flips)
    rest, chosen = google_crc32c.value(content) ^ zero, 0
    while rest:
        effect, flips = basis[rest.bit_length()]
        rest, chosen = rest ^ effect, chosen ^ flips
    return start + chosen.to_bytes(4, "big")


@pytest.mark.quick(2)
@pytest.mark.parametrize("how", [{"status": 503}, {"reset": True}], ids=["503", "reset"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("nth", [1, 2])
def test_a_chunk_that_failed_is_resumed(
    emulator: GcsEmulator, gcs: GCSStore, how: dict[str, object], when: str, nth: int
) -> None:
    """A resumable upload asks how far it got and goes on from there: no byte is sent twice without need."""
    emulator.fail(operation="chunk", when=when, nth=nth, **how)  # type: ignore[arg-type]
    assert publish_large(gcs) is Outcome.CREATED
    assert emulator.objects() == {X: BIG}
    sent = [path for operation, path, _ in emulator.requests if operation == "chunk"]
    # Two chunks, the look, and the chunk again if it was lost; a last chunk that arrived is known by the look.
    assert len(sent) == (4 if when == "before" else 3)
    assert gcs.calls.as_dict() == {"list": 0, "get": 0, "put": 1, "delete": 0}


@pytest.mark.slow
def test_an_upload_that_gcs_forgot_starts_again(emulator: GcsEmulator, gcs: GCSStore) -> None:
    """A session that is gone (404, 410) is replaced by a new one."""
    emulator.fail(operation="chunk", nth=2, status=410)
    assert publish_large(gcs) is Outcome.CREATED
    assert emulator.objects() == {X: BIG}
    assert gcs.calls.put == 2
    emulator.fail(operation="chunk", status=404, times=99)
    with pytest.raises(StorageError, match="GCS forgot 3 resumable uploads"):
        publish_large(gcs, "gs://bucket/y")


def test_a_name_taken_before_a_large_upload_costs_no_bytes(emulator: GcsEmulator, gcs: GCSStore) -> None:
    """The precondition is looked at when the upload starts."""
    emulator.put(X, b"taken")
    assert publish_large(gcs) is Outcome.DIFFERENT
    assert [operation for operation, _, _ in emulator.requests] == ["put", "get"]


def test_a_name_taken_during_a_large_upload_is_not_overwritten(emulator: GcsEmulator, gcs: GCSStore) -> None:
    """And again when it is complete: a zombie's upload of an hour cannot replace what was published meanwhile."""
    for content, outcome in [(b"taken", Outcome.DIFFERENT), (BIG, Outcome.IDENTICAL)]:
        with gcs.writer(X) as writer:
            writer.write(BIG)
            send = gcs._send_chunks
            gcs._send_chunks = lambda *args: (emulator.put(X, content), send(*args))[1]  # type: ignore[method-assign]  # noqa: B023
            assert writer.publish().outcome is outcome
            gcs._send_chunks = send  # type: ignore[method-assign]
        assert emulator.objects() == {X: content}
        assert "chunk" in [operation for operation, _, status in emulator.requests if status == 412]
        emulator.remove(X)
        emulator.reset_counts()


def test_a_name_freed_while_it_is_compared_is_taken(emulator: GcsEmulator, gcs: GCSStore) -> None:
    """Refused as taken, then gone: the upload is made again."""
    emulator.fail(operation="put", status=412)
    assert gcs.publish(X, b"x").outcome is Outcome.CREATED
    emulator.fail(operation="put", status=412, times=99)
    with pytest.raises(StorageError, match="refused 5 times because it exists, but did not exist"):
        gcs.publish("gs://bucket/y", b"x")


def test_a_condition_that_was_not_asked_for(emulator: GcsEmulator, gcs: GCSStore) -> None:
    """Only something in between answers so; nothing is written."""
    emulator.fail(operation="put", status=412)
    with pytest.raises(StorageError, match="412 to a write without a condition"):
        gcs.replace(X, b"x")
    assert (emulator.objects(), gcs.replace(X, b"x").size) == ({}, 1)


def test_uploads_carry_their_checksum(emulator: GcsEmulator, gcs: GCSStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes that were changed on their way never become visible."""
    monkeypatch.setattr("curate.stores.gcs._crc32c", lambda _: "AAAAAA==")
    for publish in (lambda: gcs.publish(X, b"data"), lambda: publish_large(gcs)):
        with pytest.raises(StorageError, match=r"GCS answered 400 .*doesn't match"):
            publish()
    assert emulator.objects() == {}


def test_objects_are_read_as_stored(emulator: GcsEmulator, gcs: GCSStore) -> None:
    """`Content-Encoding: gzip` is the reader's business: size, ranges and bytes are those of the compressed object."""
    stored = gzip.compress(b"text" * 100, mtime=0)
    emulator.put(X, stored, encoding="gzip")
    assert gcs.read(X) == gcs.open(gcs.stat(X)).read() == stored
    assert gcs.read(X, 2, 9) == stored[2:9]
    assert gcs.stat(X).size == len(stored)


def test_the_size_decides_how_to_upload(emulator: GcsEmulator, gcs: GCSStore) -> None:
    """8 MiB go in one request; a byte more goes in chunks."""
    publish_large(gcs, "gs://bucket/simple", b"s" * SIMPLE_BYTES)
    gcs.publish("gs://bucket/chunks", b"c" * (SIMPLE_BYTES + 1))
    assert [operation for operation, _, _ in emulator.requests] == ["put", "put", "chunk"]
    assert {uri: len(content) for uri, content in emulator.objects().items()} == {
        "gs://bucket/simple": SIMPLE_BYTES,
        "gs://bucket/chunks": SIMPLE_BYTES + 1,
    }


@pytest.mark.slow
def test_a_stream_makes_few_requests(emulator: GcsEmulator, gcs: GCSStore) -> None:
    """Reading 33 MiB in small pieces takes 7 requests; a Parquet footer takes one; opening takes none."""
    emulator.put(X, BIG)
    opened = gcs.stat(X)
    emulator.reset_counts()
    stream = gcs.open(opened)
    assert emulator.counts()["get"] == 0
    while stream.read(50_000):
        pass
    assert emulator.counts()["get"] == 7
    emulator.reset_counts()
    with gcs.open(opened) as stream:
        stream.seek(-8, os.SEEK_END)
        stream.read(8)
        stream.seek(-20_000, os.SEEK_END)
        stream.read(19_992)
    assert emulator.counts()["get"] == 1


@pytest.mark.slow
def test_under_random_faults_every_publish_ends_right(emulator: GcsEmulator, gcs: GCSStore) -> None:
    """With one request in four failing, before or after its effect, nothing is lost, doubled or torn."""
    emulator.fail_randomly(one_in=4, seed=1)
    for index in range(200):
        assert gcs.publish(f"gs://bucket/{index:03}", b"%d" % index).outcome is not Outcome.DIFFERENT
    assert {found.uri: gcs.read(found.uri) for found in gcs.list("gs://bucket/")} == emulator.objects()
    assert emulator.objects() == {f"gs://bucket/{index:03}": b"%d" % index for index in range(200)}
    assert gcs.calls.as_dict() == emulator.counts()
    assert gcs.transient_failures > 50


def test_a_store_survives_a_fork(emulator: GcsEmulator, gcs: GCSStore) -> None:
    """A child made by fork uses the store it was born with, as does the parent afterwards."""
    gcs.publish(X, b"parent")
    child = os.fork()
    if child == 0:
        ok = gcs.read(X) == b"parent" and gcs.publish("gs://bucket/y", b"child").outcome is Outcome.CREATED
        os._exit(0 if ok else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert gcs.read("gs://bucket/y") == b"child"
    assert set(emulator.objects()) == {X, "gs://bucket/y"}


@pytest.mark.slow
def test_a_pickled_store_works_in_another_process(emulator: GcsEmulator) -> None:
    """As Ray ships it: pickled here, used there, and back again with nothing but its settings."""
    script = """
        import pickle, sys
        store = pickle.loads(bytes.fromhex(sys.argv[1]))
        store.publish("gs://bucket/x", b"from afar")
        print(store.calls.put, store._retry.deadline_s)
    """
    pickled = pickle.dumps(GCSStore(Retry(deadline_s=7.0))).hex()
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), pickled],
        env=os.environ | emulator.environ,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout == "1 7.0\n"
    assert emulator.objects() == {X: b"from afar"}


def test_leave_to_delete_is_asked_for_by_a_delete_that_cannot_happen(emulator: GcsEmulator, gcs: GCSStore) -> None:
    """Rights may be given for a part of a bucket's names, which no test of the bucket's rights tells: 403 is a no."""
    for name in ("out/a", "out/_curate/b"):
        gcs.publish(f"gs://bucket/{name}", b"x")
    emulator.fail(operation="delete", name="out/a", status=403)
    assert gcs.may_delete("gs://bucket/out/a") is False
    assert gcs.may_delete("gs://bucket/out/_curate/b") is True
    emulator.fail(operation="delete", status=503)
    assert gcs.may_delete("gs://bucket/out/a") is True
    assert sorted(emulator.objects()) == ["gs://bucket/out/_curate/b", "gs://bucket/out/a"]


def test_a_listing_whose_last_page_names_an_empty_token_ends(
    emulator: GcsEmulator, gcs: GCSStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As some look-alikes write that there is no other; with it, the first page would come again, for ever."""
    emulator.put("gs://bucket/a", b"a")
    said = b'{"items": [{"name": "a", "size": "1", "generation": "1"}], "nextPageToken": ""}'
    monkeypatch.setattr(emulator, "_list", lambda _: _Answer(200, said))
    assert [one.uri for one in gcs.list("gs://bucket/")] == ["gs://bucket/a"]
    assert emulator.counts()["list"] == 1


def test_what_is_empty_is_no_page_of_a_proxy() -> None:
    """GCS itself calls an answer without content HTML, as to a delete or to a part of an upload."""
    html = {"Content-Type": "text/html; charset=UTF-8"}
    assert not gcs._is_page(gcs._Response(204, html, b""))
    assert gcs._is_page(gcs._Response(204, html, b"<html>sign in</html>"))
