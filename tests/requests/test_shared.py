"""All stores of a process share a service's client, as long as it is for the same place and the same credentials."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from curate.errors import PermissionDenied
from curate.requests.shared import HeldClient, SharedClient
from curate.stores import gcs
from curate.stores.gcs import GCSStore
from curate.stores.open import open_store
from curate.stores.s3 import client as s3_client
from curate.stores.s3.store import S3Store
from tests.support.emulator import Emulator
from tests.support.gcs_emulator import GcsEmulator
from tests.support.s3_emulator import S3Emulator


@dataclass(eq=False)
class Client:
    pid: int = field(default_factory=os.getpid)
    keys: str = ""

    def who(self) -> str:
        return self.keys


def test_it_is_made_once() -> None:
    shared = SharedClient(Client)
    assert shared.get() is shared.get()


def test_of_another_environment_it_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = SharedClient(Client)
    first = shared.get()
    monkeypatch.setenv("AWS_PROFILE", "other")
    assert shared.get() is not first


def test_of_another_process_it_is_another() -> None:
    shared = SharedClient(Client)
    first = shared.get()
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        os.write(write, b"own" if shared.get() is not first and shared.get().pid == os.getpid() else b"not")
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(read, 3) == b"own"
    assert shared.get() is first


def test_one_that_is_forgotten_is_made_anew() -> None:
    shared = SharedClient(Client)
    first = shared.get()
    shared.forget(first)
    second = shared.get()
    shared.forget(first)
    assert second is not first
    assert shared.get() is second


@pytest.fixture(params=[GcsEmulator, S3Emulator])
def service(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulator]:
    """A service of an object, which this process uses."""
    with request.param() as service:
        service.put(f"{service.SCHEME}://bucket/a", b"content")
        yield service.here(monkeypatch)


class TestStores:
    def test_each_counts_its_own_calls(self, service: Emulator) -> None:
        uri = f"{service.SCHEME}://bucket/a"
        one, other = open_store(uri), open_store(uri)
        assert [one.read(uri), other.read(uri), other.read(uri)] == [b"content"] * 3
        assert (one.calls.get, other.calls.get) == (1, 2)
        assert service.counts()["get"] == 3

    def test_they_share_a_client_until_it_is_refused(self, service: Emulator) -> None:
        uri = f"{service.SCHEME}://bucket/a"

        def client() -> object:
            store = open_store(uri)
            with contextlib.suppress(PermissionDenied):
                store.read(uri)
            assert isinstance(store, GCSStore | S3Store)
            held = store._held if isinstance(store, GCSStore) else store.service._held
            return held.client

        first = client()
        assert client() is first
        service.fail(operation="get", status=403)
        # It finds out, and nobody has logged in meanwhile: somebody may have when it asks next.
        second = client()
        assert second is not first
        assert [status for *_, status in service.requests] == [200, 200, 403]
        assert client() is second

    def test_a_store_goes_on_with_who_logged_in_meanwhile(
        self, service: Emulator, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is the same store, whose request is made once more; other stores of the process follow."""
        uri = f"{service.SCHEME}://bucket/a"
        one, other = open_store(uri), open_store(uri)
        logins = itertools.count()
        made = gcs._Client if isinstance(service, GcsEmulator) else s3_client.Client
        monkeypatch.setattr(made, "who", lambda _: next(logins))
        assert [one.read(uri), other.read(uri)] == [b"content"] * 2
        service.fail(operation="get", status=403)
        assert [one.read(uri), other.read(uri)] == [b"content"] * 2
        assert [status for *_, status in service.requests] == [200, 200, 403, 200, 200]
        # No more than once: another refusal is one.
        service.fail(operation="get", status=403, times=2)
        with pytest.raises(PermissionDenied):
            one.read(uri)
        assert [status for *_, status in service.requests][5:] == [403, 403]


class TestHeldClient:
    @pytest.mark.parametrize(
        ("valid", "expected"),
        [
            ({"old"}, ["old"]),
            ({"new"}, ["old", "new"]),
            (set(), ["old", "new", "refused"]),
        ],
    )
    def test_a_request_is_made_again_with_other_keys_once(self, valid: set[str], expected: list[str]) -> None:
        keys, sent = iter(["old", "new", "newer"]), list[str]()
        held = HeldClient(SharedClient(lambda: Client(keys=next(keys))))

        def make(client: Client) -> None:
            sent.append(client.keys)
            if client.keys not in valid:
                raise PermissionDenied(client.keys)

        try:
            held.ask(make)
        except PermissionDenied:
            sent.append("refused")
        assert sent == expected

    def test_a_right_that_is_missing_costs_no_further_request(self) -> None:
        held, sent = HeldClient(SharedClient(lambda: Client(keys="the same"))), list[Client]()

        def make(client: Client) -> None:
            sent.append(client)
            raise PermissionDenied("no")

        for _ in range(2):
            with pytest.raises(PermissionDenied):
                held.ask(make)
        assert len(sent) == 2
        assert sent[0] is not sent[1]

    def test_what_one_store_was_refused_none_goes_on_with(self) -> None:
        """Nor one that was made before; also where clients are equal, as those of gcsfs are."""
        shared = SharedClient(lambda: Equal())
        one, other = HeldClient(shared), HeldClient(shared)
        assert one.client is other.client
        shared.forget(first := one.client)
        assert other.client is one.client
        assert other.client is not first


@dataclass
class Equal(Client):
    """One that equals any other of its kind."""

    __hash__ = None  # type: ignore[assignment]
