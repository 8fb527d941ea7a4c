"""S3 when things go wrong: exact requests for scripted faults, and what is said; no test waits."""

from __future__ import annotations

import gzip
import os
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from botocore.credentials import Credentials, ReadOnlyCredentials
from botocore.exceptions import (
    ClientError,
    CredentialRetrievalError,
    EndpointConnectionError,
    MetadataRetrievalError,
    ReadTimeoutError,
    UnauthorizedSSOTokenError,
)

from curate.errors import (
    ConfigError,
    GenerationMismatch,
    ObjectNotFound,
    PermissionDenied,
    StorageError,
    TransientStorageError,
)
from curate.requests.reached import REACHED
from curate.requests.retry import Retry
from curate.storage.protocol import Outcome, Store
from curate.storage.writer import SIMPLE_BYTES
from curate.stores.s3 import store as s3_store
from curate.stores.s3 import uploads
from curate.stores.s3.answers import Response
from curate.stores.s3.client import Client, Request
from curate.stores.s3.probe import CREATORS, refuse_lax
from curate.stores.s3.store import S3Store
from curate.testing.clock import FakeClock
from tests.support.emulator import Answer, Asked, Cut, page
from tests.support.s3_emulator import SECRET, S3Emulator

X, NEW = "s3://bucket/x", "s3://bucket/new"
CONTENT = b"0123456789"
PART = 256 << 10
LARGE = b"0123456789" * 30_000
"""Two parts of the size that these tests make them."""


def large(store: Store, uri: str = NEW, data: bytes = LARGE) -> Outcome:
    with store.writer(uri) as writer:
        writer.write(data)
        return writer.publish().outcome


CALLS: dict[str, tuple[str, Callable[[Store], Any], Any]] = {
    "list": ("list", lambda store: [one.uri for one in store.list("s3://bucket/")], [X]),
    "stat": ("get", lambda store: store.stat(X).size, 10),
    "read": ("get", lambda store: store.read(X), CONTENT),
    "range": ("get", lambda store: store.read(X, 1, 8), CONTENT[1:8]),
    "end": ("get", lambda store: store.read(X, -4), CONTENT[-4:]),
    "open": ("get", lambda store: store.open(next(store.list(X))).read(), CONTENT),
    "publish": ("put", lambda store: store.publish(NEW, b"new").outcome is not Outcome.DIFFERENT, True),
    "replace": ("put", lambda store: store.replace(X, b"new").size, 3),
    "delete": ("delete", lambda store: store.delete(X), True),
    "begin": ("put", lambda store: large(store) is not Outcome.DIFFERENT, True),
    "part": ("part", lambda store: large(store) is not Outcome.DIFFERENT, True),
    "complete": ("complete", lambda store: large(store) is not Outcome.DIFFERENT, True),
}


@pytest.fixture
def emulator(s3_emulator: S3Emulator, s3: S3Store, monkeypatch: pytest.MonkeyPatch) -> S3Emulator:
    """A server with an object, whose parts are small, and which was asked how it deletes."""
    monkeypatch.setattr(uploads, "PART_BYTES", PART)
    monkeypatch.setattr(uploads, "SIMPLE_BYTES", PART)
    monkeypatch.setitem(s3_store._deletes_by_generation, s3_emulator.url, True)
    s3_emulator.smallest_part = PART
    s3.publish(X, CONTENT)
    s3_emulator.reset_counts()
    s3.calls.put = 0
    return s3_emulator


def _left(emulator: S3Emulator, call: str) -> None:
    """Whatever happened on the way: what is there is what was asked for."""
    expected = {X: b"new"} if call == "replace" else {} if call == "delete" else {X: CONTENT}
    expected |= {NEW: b"new"} if call == "publish" else {}
    expected |= {NEW: LARGE} if call in ("begin", "part", "complete") else {}
    assert emulator.objects() == expected


@pytest.mark.quick(14)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("status", [408, 409, 429, 500, 503])
def test_a_transient_status_is_retried_and_counted(
    emulator: S3Emulator, s3: S3Store, clock: FakeClock, call: str, status: int
) -> None:
    """SlowDown and its like cost one request more, and show in the counts and as a transient failure. But after a
    conflict at its completion, an upload in parts is made anew, as S3 asks."""
    kind, do, result = CALLS[call]
    fault = emulator.fail(operation=kind, status=status)
    assert do(s3) == result
    assert fault.fired == 1
    assert s3.calls.as_dict() == emulator.counts()
    again = call == "complete" and status == 409
    assert s3.transient_failures == len(clock.sleeps) == (0 if again else 1)
    assert emulator.uploads.keys() == set() if call != "begin" else True
    _left(emulator, call)


def test_a_condition_that_was_not_asked_for(emulator: S3Emulator, s3: S3Store) -> None:
    """Only something in between answers so; nothing is written."""
    emulator.fail(operation="put", status=412)
    with pytest.raises(StorageError, match="412 to a write without a condition"):
        s3.replace(NEW, b"x")
    assert NEW not in emulator.objects()
    assert s3.replace(NEW, b"x").size == 1


LOST: dict[str, dict[str, Any]] = {"503": {"status": 503}, "reset": {"reset": True}, "truncated": {"truncate": True}}


@pytest.mark.ci(48)
@pytest.mark.quick(28)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("how", LOST)
@pytest.mark.parametrize("when", ["before", "after"])
def test_what_took_effect_without_an_answer_is_found_again(
    emulator: S3Emulator, s3: S3Store, call: str, times: int, how: str, when: Any
) -> None:
    """Whether the effect was there or not when the answer was lost: what is there in the end is what was asked for."""
    kind, do, result = CALLS[call]
    fault = emulator.fail(operation=kind, times=times, when=when, **LOST[how])
    assert do(s3) == result
    assert fault.fired >= 1
    assert s3.calls.as_dict() == emulator.counts()
    _left(emulator, call)


@pytest.mark.quick(10)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("cut", Cut)
def test_what_does_not_come_in_whole_is_asked_for_again(
    emulator: S3Emulator, s3: S3Store, clock: FakeClock, call: str, cut: Cut
) -> None:
    """A status of 200 with half a body, none, another one, or without its headers."""
    if cut is Cut.CHANGED and call in ("range", "end"):
        pytest.skip("nothing tells that a part of an object was changed: its checksum is that of the whole")
    kind, do, result = CALLS[call]
    emulator.fail(operation=kind, cut=cut)
    assert do(s3) == result
    assert s3.calls.as_dict() == emulator.counts()
    assert len(clock.sleeps) <= 1
    _left(emulator, call)


def test_what_is_empty_is_no_page_of_a_proxy() -> None:
    """Some that speak S3 call an answer without content HTML, as to a HEAD of what is not there: that is gone."""
    html = {"content-type": "text/html; charset=utf-8"}
    assert not Response(404, {**html, "content-length": "0"}, b"").is_page
    assert not Response(204, html, b"").is_page
    assert Response(404, {**html, "content-length": "153"}, b"").is_page  # to a HEAD


@pytest.mark.ci(24)
@pytest.mark.quick(12)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("status", [200, 403, 404, 412])
def test_a_page_of_a_proxy_tells_nothing_of_an_object(
    emulator: S3Emulator, s3: S3Store, monkeypatch: pytest.MonkeyPatch, call: str, status: int
) -> None:
    """Neither that it is what was read, nor that it is gone, or taken, or may not be read: it is asked for again."""
    kind, do, result = CALLS[call]
    emulator.answer_once(kind, page(status), monkeypatch)
    assert do(s3) == result
    assert s3.transient_failures == 1
    _left(emulator, call)


def test_an_error_after_a_status_of_200_is_an_error(
    emulator: S3Emulator, s3: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The completion of an upload answers before it is done: InternalError is tried again, a refusal is one."""
    whole = emulator._complete
    codes = iter(["InternalError", "PreconditionFailed"])

    def late(asked: Any) -> Any:
        answer = whole(asked)
        code = next(codes, None)
        return answer if code is None else emulator._refusal(200, "too late", code)

    monkeypatch.setattr(emulator, "_complete", late)
    assert large(s3) is Outcome.IDENTICAL
    assert emulator.objects()[NEW] == LARGE


def test_the_condition_holds_when_an_upload_is_completed(
    emulator: S3Emulator, s3: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A zombie's upload of an hour cannot replace what was published meanwhile, and leaves no parts behind."""
    send = uploads.send_parts
    for content, outcome in [(b"taken", Outcome.DIFFERENT), (LARGE, Outcome.IDENTICAL)]:

        def then_another(*args: Any, content: bytes = content) -> Any:
            emulator.put(NEW, content)
            return send(*args)

        monkeypatch.setattr(uploads, "send_parts", then_another)
        assert large(s3) is outcome
        assert emulator.objects()[NEW] == content
        assert emulator.uploads == {}
        emulator.remove(NEW)


def test_an_upload_that_is_gone_starts_again(emulator: S3Emulator, s3: S3Store) -> None:
    """As by the bucket's rule for old uploads: twice it is made anew, then the shard is to run again."""
    emulator.fail(operation="part", nth=2, status=404)
    assert large(s3) is Outcome.CREATED
    assert s3.calls.put == 2
    emulator.fail(operation="part", status=404, times=99)
    with pytest.raises(StorageError, match=r"S3 forgot or refused 3 uploads of 300,000 bytes.*run the shard again"):
        large(s3, "s3://bucket/y")
    assert emulator.uploads == {}


def test_an_upload_that_fails_leaves_no_parts(emulator: S3Emulator, s3: S3Store) -> None:
    """Parts of an upload that is not completed are paid for, so it is given up."""
    emulator.fail(operation="part", nth=2, status=403)
    with pytest.raises(PermissionDenied):
        large(s3)
    assert (emulator.uploads, emulator.objects()) == ({}, {X: CONTENT})


def test_an_upload_that_is_interrupted_leaves_no_parts(
    emulator: S3Emulator, s3: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a second Ctrl-C, where tasks run in the process of the driver."""
    send = uploads.send_parts

    def interrupted(*args: Any) -> Any:
        send(*args)
        assert emulator.uploads
        raise KeyboardInterrupt

    monkeypatch.setattr(uploads, "send_parts", interrupted)
    with pytest.raises(KeyboardInterrupt):
        large(s3)
    assert (emulator.uploads, emulator.objects()) == ({}, {X: CONTENT})


def test_objects_of_others_are_compared_by_their_bytes(emulator: S3Emulator, s3: S3Store) -> None:
    """What curate did not write carries no checksum, and an ETag need not be one: it is read."""
    for name, theirs, ours, outcome in [
        ("same", LARGE, LARGE, Outcome.IDENTICAL),
        ("other", LARGE[:-1] + b"x", LARGE, Outcome.DIFFERENT),
        ("size", LARGE[:-1], LARGE, Outcome.DIFFERENT),
    ]:
        emulator.put(f"s3://bucket/{name}", theirs)
        assert s3.publish(f"s3://bucket/{name}", ours).outcome is outcome
        assert emulator.objects()[f"s3://bucket/{name}"] == theirs


def test_an_object_that_changes_under_a_read_is_named(emulator: S3Emulator, s3: S3Store) -> None:
    """The first range is of one ETag, and so is the next, or there is none."""
    emulator.put(X, os.urandom(4 << 20))
    with s3.open(s3.stat(X)) as stream:
        stream.read(10)
        emulator.put(X, b"x" * (4 << 20))
        with pytest.raises(GenerationMismatch, match=r"x is at generation .*: it was replaced; list it again"):
            stream.read()


@pytest.mark.slow
def test_memory_is_bounded_for_large_outputs(s3_emulator: S3Emulator) -> None:
    """200 MiB are written and published in a process whose heap grows by less than half of that."""
    script = """
        import resource, sys
        from curate.stores.open import open_store
        store = open_store("s3://bucket/x")
        store.publish("s3://bucket/small", b"")
        piece = bytes(1 << 20)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with store.writer("s3://bucket/x") as writer:
            for _ in range(200):
                writer.write(piece)
            print(writer.publish().outcome.value, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env=os.environ | s3_emulator.environ,
        capture_output=True,
        text=True,
        check=True,
    )
    outcome, grown_kib = ran.stdout.split()
    assert (outcome, s3_emulator.objects()["s3://bucket/x"] == bytes(200 << 20)) == ("created", True)
    assert int(grown_kib) < 100 << 10


@pytest.mark.parametrize("how", ["lax", "strict"])
def test_a_delete_removes_only_what_was_seen(
    emulator: S3Emulator, s3: S3Store, monkeypatch: pytest.MonkeyPatch, capfd: Any, how: str
) -> None:
    """Where the service looks at If-Match, it does; where it has none, curate looks first, and says so once."""
    monkeypatch.delitem(s3_store._deletes_by_generation, emulator.url)
    emulator.deletes = how  # type: ignore[assignment]
    seen = s3.stat(X)
    emulator.put(X, b"another")
    with pytest.raises(GenerationMismatch, match="expected"):
        s3.delete(X, seen.generation)
    assert s3.may_delete(X)
    assert emulator.objects() == {X: b"another"}
    assert s3.delete(X, s3.stat(X).generation) is True
    assert s3.delete(X) is False
    assert emulator.objects() == {}
    said = "".join(capfd.readouterr())
    assert said.count("cannot delete an object only if it is unchanged") == (1 if how == "lax" else 0)
    assert s3.calls.as_dict() == emulator.counts()


@pytest.mark.parametrize("how", ["lax", "strict", "no star"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_what_is_deleted_after_a_failure_is_gone(
    emulator: S3Emulator, s3: S3Store, monkeypatch: pytest.MonkeyPatch, how: str, when: Any
) -> None:
    """Also where a service takes the star, "whatever is there", for an ETag: a refusal is no sign of a lost answer."""
    monkeypatch.setitem(s3_store._deletes_by_generation, emulator.url, how != "lax")
    emulator.deletes = how  # type: ignore[assignment]
    emulator.fail(operation="delete", status=503, when=when)
    assert s3.delete(X) is True
    assert emulator.objects() == {}


def test_a_refusal_without_a_word_names_credentials(emulator: S3Emulator, s3: S3Store) -> None:
    """AWS answers so to HEAD when a token has expired: an answer to HEAD has no body."""
    emulator.fail(operation="get", status=400)
    with pytest.raises(PermissionDenied, match=r"stat s3://bucket/x: S3 answered 400, .* credentials may have expired"):
        s3.stat(X)


def test_what_answers_in_place_of_a_store_that_has_answered_passes(emulator: S3Emulator, s3: S3Store) -> None:
    """Such as the page of a proxy that is restarted, with any status: it is no word of the store's about an object."""
    assert s3.read(X) == CONTENT
    emulator.fail(operation="get", cut=Cut.PROXY, times=3, name="gone")
    with pytest.raises(ObjectNotFound):
        s3.read("s3://bucket/gone")
    assert s3.transient_failures == 3


def test_keys_that_are_renewed_in_a_file_count_for_a_store_that_there_is(
    emulator: S3Emulator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The new ones are there before the old ones end: nothing fails, and one request more is made."""
    file = tmp_path / "credentials"

    def write(secret: str) -> None:
        file.write_text(f"[default]\naws_access_key_id = a-key\naws_secret_access_key = {secret}\n")

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    write(SECRET)
    store = S3Store(Retry(clock=FakeClock()))
    assert store.read(X) == CONTENT
    monkeypatch.setattr("tests.support.s3_emulator.SECRET", "another")
    write("another")
    assert store.read(X) == store.read(X) == CONTENT
    assert store.calls.get == emulator.counts()["get"] == 4
    # Without new ones, no request more than the one that is refused.
    monkeypatch.setattr("tests.support.s3_emulator.SECRET", "a third")
    with pytest.raises(PermissionDenied, match="SignatureDoesNotMatch"):
        store.read(X)
    assert emulator.counts()["get"] == 5


def _sts(code: str, status: int) -> ClientError:
    said: Any = {"Error": {"Code": code, "Message": "said by STS"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(said, "AssumeRoleWithWebIdentity")


@pytest.mark.ci(20)
@pytest.mark.quick(20)
@pytest.mark.parametrize(
    ("problem", "passes"),
    [
        (_sts("Throttling", 400), True),
        (_sts("ThrottlingException", 400), True),
        (_sts("RequestLimitExceeded", 400), True),
        (_sts("IDPCommunicationError", 400), True),
        (_sts("ServiceUnavailable", 503), True),
        (_sts("", 500), True),
        (_sts("ExpiredTokenException", 400), False),
        (_sts("AccessDenied", 403), False),
        (EndpointConnectionError(endpoint_url="https://sts", error="refused"), True),
        (ReadTimeoutError(endpoint_url="https://sts", error="slow"), True),
        (MetadataRetrievalError(error_msg="no answer"), True),
        (CredentialRetrievalError(provider="iam-role", error_msg="it lacks the keys"), True),
        (CredentialRetrievalError(provider="custom-process", error_msg="exit code 1"), False),
        (UnauthorizedSSOTokenError(), False),
        (RuntimeError("Credentials were refreshed, but are still expired."), False),
    ],
    ids=str,
)
def test_what_gives_out_keys_is_tried_again_or_refuses(
    emulator: S3Emulator, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, problem: Exception, passes: bool
) -> None:
    """Whatever credentials raise when they are renewed: throttled or away, as a store may be, or a login that ended. It
    is one line, and no error of the job."""
    frozen, left = Credentials.get_frozen_credentials, [2 if passes else 9]

    def renew(self: Credentials) -> ReadOnlyCredentials:
        left[0] -= 1
        if left[0] >= 0:
            raise problem
        return frozen(self)

    monkeypatch.setattr(Credentials, "get_frozen_credentials", renew)
    store = S3Store(Retry(clock=clock))
    if passes:
        assert store.read(X) == CONTENT
        assert store.transient_failures == len(clock.sleeps) == 2
    else:
        with pytest.raises(
            PermissionDenied, match=r"read s3://bucket/x: credentials could not be used.*log in"
        ) as told:
            store.read(X)
        assert "\n" not in str(told.value)
        assert clock.sleeps == []
    assert store.calls.as_dict() == emulator.counts()


@pytest.mark.ci(12)
@pytest.mark.quick(12)
@pytest.mark.parametrize("call", CALLS)
def test_a_proxy_that_calls_etags_weak_changes_nothing(
    emulator: S3Emulator, s3: S3Store, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """As nginx does that may pack answers, in some of them: `W/"abc"` is the object that is listed as `"abc"`."""
    effect = emulator._effect

    def weak(asked: Asked) -> Answer:
        answer = effect(asked)
        etag = {"ETag": f"W/{answer.headers['ETag']}"} if "ETag" in answer.headers else {}
        return Answer(answer.status, answer.body.replace(b"<ETag>", b"<ETag>W/"), dict(answer.headers) | etag)

    seen = s3.stat(X)
    monkeypatch.setattr(emulator, "_effect", weak)
    assert s3.stat(X) == seen
    assert (s3.open(seen).read(), s3.calls.get) == (CONTENT, 3)
    _, do, result = CALLS[call]
    assert do(s3) == result
    _left(emulator, call)


@pytest.mark.ci(20)
@pytest.mark.quick(20)
@pytest.mark.parametrize(
    ("settings", "host"),
    [
        ({}, "bkt.s3.us-east-1.amazonaws.com"),
        ({"AWS_REGION": "eu-north-1"}, "bkt.s3.eu-north-1.amazonaws.com"),
        ({"AWS_DEFAULT_REGION": "eu-north-1"}, "bkt.s3.eu-north-1.amazonaws.com"),
        ({"AWS_REGION": "eu-north-1", "AWS_DEFAULT_REGION": "us-west-2"}, "bkt.s3.eu-north-1.amazonaws.com"),
        ({"AWS_REGION": "cn-north-1"}, "bkt.s3.cn-north-1.amazonaws.com.cn"),
        ({"AWS_PROFILE": "north"}, "bkt.s3.eu-north-1.amazonaws.com"),
        ({"AWS_PROFILE": "north", "AWS_REGION": "us-west-2"}, "bkt.s3.us-west-2.amazonaws.com"),
        ({"AWS_USE_FIPS_ENDPOINT": "true"}, "bkt.s3-fips.us-east-1.amazonaws.com"),
        ({"AWS_USE_FIPS_ENDPOINT": "false"}, "bkt.s3.us-east-1.amazonaws.com"),
        ({"AWS_USE_DUALSTACK_ENDPOINT": "true"}, "bkt.s3.dualstack.us-east-1.amazonaws.com"),
        (
            {"AWS_USE_FIPS_ENDPOINT": "true", "AWS_USE_DUALSTACK_ENDPOINT": "true"},
            "bkt.s3-fips.dualstack.us-east-1.amazonaws.com",
        ),
    ],
    ids=str,
)
def test_requests_go_where_the_settings_of_aws_say(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, settings: dict[str, str], host: str
) -> None:
    """As of boto3 and the command line of AWS: the environment before the profile."""
    config = tmp_path / "config"
    config.write_text("[profile north]\nregion = eu-north-1\n")
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in {"AWS_CONFIG_FILE": str(config), "AWS_EC2_METADATA_DISABLED": "true", **settings}.items():
        monkeypatch.setenv(name, value)
    assert Client().url(Request("read it", "get", "GET", "bkt", "a b")) == f"https://{host}/a%20b"


@pytest.mark.ci(12)
@pytest.mark.quick(12)
@pytest.mark.parametrize("call", CALLS)
def test_a_proxy_that_packs_what_s3_says_changes_nothing(
    emulator: S3Emulator, s3: S3Store, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """XML, that is: what an object has is as it was stored."""
    effect, packed = emulator._effect, []

    def pack(asked: Asked) -> Answer:
        answer = effect(asked)
        if not answer.body.lstrip().startswith(b"<"):
            return answer
        packed.append(asked.operation)
        return Answer(answer.status, gzip.compress(answer.body), dict(answer.headers) | {"Content-Encoding": "gzip"})

    monkeypatch.setattr(emulator, "_effect", pack)
    operation, do, result = CALLS[call]
    assert do(s3) == result
    assert s3.transient_failures == 0
    assert ("list" in packed) == (call in ("list", "open"))
    assert ("complete" in packed) == (operation in ("part", "complete") or call == "begin")
    with pytest.raises(ObjectNotFound, match="NoSuchKey"):
        s3.read("s3://bucket/none")
    _left(emulator, call)


def test_who_answered_is_not_looked_for_in_an_object() -> None:
    """S3 names its requests in its headers: to read 8 MiB as words took longer than to fetch them."""

    class Untouched(bytes):
        def strip(self, *_: object) -> bytes:
            raise AssertionError("looked at")

        decode = __getitem__ = strip  # type: ignore[assignment]

    assert Response(200, {"x-amz-request-id": "1"}, Untouched(b"an object")).is_of_s3


class TestProbe:
    """Before the first write to an output, the service shows that it keeps what it is asked to."""

    def test_a_strict_service_passes_and_keeps_nothing(self, emulator: S3Emulator, s3: S3Store, capfd: Any) -> None:
        refuse_lax(s3, "s3://bucket/out/_curate/tmp/20240101T000000.000Z-abcdef")
        assert emulator.objects() == {X: CONTENT}
        assert emulator.uploads == {}
        # Eight creators, of whom seven look at what is there, and an upload in parts; that of another ETag is refused.
        assert emulator.counts() == {"list": 1, "get": CREATORS - 1, "put": CREATORS + 2, "delete": 1}
        assert capfd.readouterr() == ("", "")

    def test_one_that_lets_a_second_through_is_refused(self, emulator: S3Emulator, s3: S3Store) -> None:
        emulator.creates = "lax"
        with pytest.raises(ConfigError, match=rf"at {emulator.url} does not keep If-None-Match: of 8 creators"):
            refuse_lax(s3, "s3://bucket/out/_curate/tmp/20240101T000000.000Z-abcdef")
        assert emulator.objects() == {X: CONTENT}

    def test_one_that_is_lax_with_parts_is_refused(
        self, emulator: S3Emulator, s3: S3Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        strict = emulator._refused
        monkeypatch.setattr(emulator, "_refused", lambda asked: None if asked.method == "POST" else strict(asked))
        with pytest.raises(ConfigError, match="an upload in parts replaced an object"):
            refuse_lax(s3, "s3://bucket/out/_curate/tmp/20240101T000000.000Z-abcdef")

    def test_one_that_lists_late_is_refused(
        self, emulator: S3Emulator, s3: S3Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What is not listed counts as not made: outputs would be taken for lost."""
        monkeypatch.setattr(s3, "list", lambda _: iter(()))
        with pytest.raises(ConfigError, match=rf"at {emulator.url} does not list an object that was created before"):
            refuse_lax(s3, "s3://bucket/out/_curate/tmp/20240101T000000.000Z-abcdef")
        assert emulator.objects() == {X: CONTENT}

    def test_one_that_replaces_whatever_is_there_is_told(
        self, emulator: S3Emulator, s3: S3Store, monkeypatch: pytest.MonkeyPatch, capfd: Any
    ) -> None:
        strict = emulator._refused
        monkeypatch.setattr(
            emulator,
            "_refused",
            lambda asked: None if asked.method == "PUT" and "if-match" in asked.headers else strict(asked),
        )
        refuse_lax(s3, "s3://bucket/out/_curate/tmp/20240101T000000.000Z-abcdef")
        assert "replaces an object even if it changed" in "".join(capfd.readouterr())


@pytest.mark.usefixtures("emulator")
class TestBadInput:
    """One line, with the next step."""

    def test_no_credentials(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What is public is read all the same."""
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        store = S3Store(Retry(clock=FakeClock()))
        assert store.read(X) == CONTENT
        with pytest.raises(PermissionDenied, match=r"upload s3://bucket/new.*no credentials were found: log in"):
            store.publish(NEW, b"")

    def test_wrong_credentials(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
        with pytest.raises(PermissionDenied, match=r"SignatureDoesNotMatch.*credentials are not valid.*AWS_PROFILE"):
            list(S3Store(Retry(clock=FakeClock())).list("s3://bucket/"))

    def test_a_right_that_is_missing(self, emulator: S3Emulator, s3: S3Store) -> None:
        emulator.fail(status=403)
        with pytest.raises(PermissionDenied, match=r"read s3://bucket/x.*grant s3:ListBucket.*AWS_REQUEST_PAYER"):
            s3.read(X)

    @pytest.mark.parametrize("cause", ["keys", "right"])
    def test_a_refusal_without_a_code_has_no_single_cause(
        self, emulator: S3Emulator, monkeypatch: pytest.MonkeyPatch, cause: str
    ) -> None:
        """HEAD is answered without a body: keys that ended and a right that is missing are refused alike."""
        if cause == "keys":
            monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
        else:
            emulator.fail(status=403)
        with pytest.raises(
            PermissionDenied, match=r"stat s3://bucket/x: S3 answered 403; .*log in again.*or lack the r"
        ):
            S3Store(Retry(clock=FakeClock())).stat(X)

    @pytest.mark.quick
    @pytest.mark.parametrize(
        ("status", "code"),
        [(403, "QuotaExceeded"), (400, "XMinioAdminBucketQuotaExceeded"), (507, "XMinioStorageFull"), (507, "Full")],
    )
    def test_no_room_is_no_right_that_is_missing(
        self, emulator: S3Emulator, s3: S3Store, status: int, code: str
    ) -> None:
        emulator.fail(operation="put", status=status, reason=code)
        with pytest.raises(
            StorageError, match=rf"{status} {code}.* is full; free space there or raise the quota"
        ) as told:
            s3.publish(NEW, b"new")
        assert not isinstance(told.value, PermissionDenied | TransientStorageError)
        assert NEW not in emulator.objects()

    def test_who_pays_is_sent(self, emulator: S3Emulator, s3: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
        sent: list[str] = []
        get = emulator._get
        monkeypatch.setattr(
            emulator, "_get", lambda asked: (sent.append(asked.headers.get("x-amz-request-payer", "")), get(asked))[1]
        )
        monkeypatch.setenv("AWS_REQUEST_PAYER", "requester")
        assert (s3.read(X), sent) == (CONTENT, ["requester"])

    def test_a_bucket_that_is_missing(self, emulator: S3Emulator, s3: S3Store) -> None:
        with pytest.raises(ObjectNotFound, match=rf"bucket does not exist at {emulator.url};.*aws s3 mb s3://nowhere"):
            list(s3.list("s3://nowhere/"))

    def test_an_endpoint_where_nobody_is(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        clock = FakeClock()
        with pytest.raises(TransientStorageError, match=r"bucket/x: S3 at .*:9 cannot be .*check AWS_ENDPOINT"):
            S3Store(Retry(clock=clock)).stat(X)
        assert sum(clock.sleeps) < 5

    @pytest.mark.slow
    def test_an_endpoint_that_takes_connections_and_never_answers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It is not waited for as long as a store that has answered once and is slow now."""
        monkeypatch.setattr(REACHED, "_places", set())
        with socket.create_server(("127.0.0.1", 0)) as silent:
            monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
            with pytest.raises(TransientStorageError, match=r"cannot be reached: ReadTimeout.*check AWS_ENDPOINT_URL"):
                S3Store(Retry(clock=FakeClock(), first_answer_s=0.5)).stat(X)

    @pytest.mark.slow
    def test_a_store_that_has_answered_may_be_slow(self, emulator: S3Emulator) -> None:
        store = S3Store(Retry(clock=FakeClock(), first_answer_s=0.5))
        assert store.read(X) == CONTENT
        emulator.fail(operation="get", slow_s=1.0, status=None)
        assert store.read(X) == CONTENT
        assert store.transient_failures == 0

    @pytest.mark.parametrize(
        ("answer", "error", "problem"),
        [
            (Answer(404, b"<html>\nno such page"), StorageError, r"is not S3 \(found 404, '<html> no such page'"),
            (
                Answer(200, b"<html></html>"),
                TransientStorageError,
                r"cannot be reached: .*found <html>, expected <L",
            ),
            (Answer(502, b"Bad Gateway"), TransientStorageError, r"cannot be reached: S3 answered 502 \(Bad Gateway\)"),
            (Answer(503, b"<Error><Code>SlowDown</Code></Error>"), TransientStorageError, "within 120 s"),
        ],
        ids=["404", "200", "502", "503 of S3"],
    )
    def test_an_endpoint_that_is_something_else(
        self, monkeypatch: pytest.MonkeyPatch, answer: Answer, error: type[StorageError], problem: str
    ) -> None:
        """A web server or a proxy; S3 itself is waited for, also if all that it ever said is that it is busy."""
        with S3Emulator() as server:
            monkeypatch.setattr(server, "_effect", lambda _: answer)
            monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
            monkeypatch.setattr(REACHED, "_places", set())
            with pytest.raises(error, match=problem) as caught:
                list(S3Store(Retry(clock=(clock := FakeClock()))).list("s3://bucket/in/"))
        assert "\n" not in str(caught.value)
        assert "then run again" in str(caught.value)
        assert (sum(clock.sleeps) > 60) == ("120" in problem)

    def test_an_endpoint_that_is_no_url(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_ENDPOINT_URL", "minio:9000")
        with pytest.raises(StorageError, match=r"AWS_ENDPOINT_URL is 'minio:9000'; expected a URL such as https://"):
            S3Store().stat(X)

    def test_a_clock_that_is_off(self, emulator: S3Emulator, s3: S3Store) -> None:
        emulator.clock_is_off_s = 3600.0
        for ask in (s3.read, s3.stat, s3.delete, s3.may_delete):
            with pytest.raises(
                StorageError, match="this machine's clock is 60 minutes behind that of S3; set the clock"
            ):
                ask(X)

    def test_an_archived_object(self, emulator: S3Emulator, s3: S3Store) -> None:
        emulator.put(X, CONTENT, headers={"x-amz-storage-class": "DEEP_ARCHIVE"})
        for read in (lambda: s3.read(X), lambda: s3.open(s3.stat(X)).read()):
            with pytest.raises(StorageError, match=r"x: the object is archived.*restore it \(aws s3api"):
                read()

    def test_a_key_that_is_too_long(self, s3: S3Store) -> None:
        """1,024 bytes are taken, whatever characters they are."""
        longest = "s3://bucket/" + "ä" * 512
        assert s3.publish(longest, b"x").object == s3.stat(longest) == next(s3.list(longest))
        with pytest.raises(StorageError, match="the key has 1,025 bytes, and S3 takes 1,024; choose shorter names"):
            s3.publish(f"{longest}b", b"x")
        with pytest.raises(StorageError, match=r"stat s3.*the key has 1,025 bytes"):
            s3.stat(f"{longest}b")

    def test_a_bucket_in_another_region_is_found(self, emulator: S3Emulator, s3: S3Store) -> None:
        """The refusal says where, and costs one request in all."""
        emulator.regions["bucket"] = "eu-north-1"
        assert s3.read(X) == s3.read(X) == CONTENT
        assert s3.calls.get == emulator.counts()["get"] == 3


def test_a_service_that_refuses_too_much_gets_less(emulator: S3Emulator, s3: S3Store) -> None:
    """SlowDown halves what the process sends at once."""
    before = s3.limiter.window.limit
    emulator.fail(operation="get", status=503)
    s3.read(X)
    assert s3.limiter.window.limit == before // 2


@pytest.mark.slow
def test_a_stalled_or_dripping_answer_is_given_up(emulator: S3Emulator) -> None:
    """A server that says nothing, or a byte at a time for ever, is a failed attempt, not a hung job."""
    store = S3Store(Retry(clock=FakeClock(), stall_s=0.5))
    emulator.fail(operation="get", slow_s=5.0, status=None)
    assert store.read(X) == CONTENT
    emulator.fail(operation="get", status=None, drip_s=0.3)
    assert store.read(X) == CONTENT
    assert store.transient_failures == 2


@pytest.mark.usefixtures("emulator")
def test_a_store_survives_a_fork(s3: S3Store) -> None:
    """A child made by fork uses the store it was born with, as does the parent afterwards."""
    s3.publish("s3://bucket/a", b"parent")
    child = os.fork()
    if child == 0:
        ok = s3.read("s3://bucket/a") == b"parent" and s3.publish(NEW, b"child").outcome is Outcome.CREATED
        os._exit(0 if ok else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert s3.read(NEW) == b"child"


@pytest.mark.slow
def test_under_random_faults_every_publish_ends_right(emulator: S3Emulator, s3: S3Store) -> None:
    """With one request in four failing, before or after its effect, nothing is lost, doubled or torn."""
    emulator.fail_randomly(one_in=4, seed=1, operations=("list", "get", "put", "delete", "part", "complete"))
    expected = {X: CONTENT}
    for index in range(60):
        data = LARGE if index % 10 == 0 else b"%d" % index
        assert large(s3, f"s3://bucket/{index:03}", data) is not Outcome.DIFFERENT
        expected[f"s3://bucket/{index:03}"] = data
    assert {found.uri: s3.read(found.uri) for found in s3.list("s3://bucket/")} == emulator.objects() == expected
    assert s3.calls.as_dict() == emulator.counts()


def test_the_size_decides_how_to_upload(s3_emulator: S3Emulator, s3: S3Store) -> None:
    """8 MiB go in one request; a byte more goes in parts."""
    large(s3, X, b"s" * SIMPLE_BYTES)
    large(s3, NEW, b"c" * (SIMPLE_BYTES + 1))
    assert [operation for operation, _, _ in s3_emulator.requests] == ["put", "put", "part", "complete"]
