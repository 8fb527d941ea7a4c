"""All stores of a process share a service's client, as long as it is for the same place and the same credentials."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field

import pytest

from curate.errors import PermissionDenied
from curate.requests.shared import SharedClient
from curate.stores.gcs import GCSStore
from curate.stores.open import open_store
from curate.stores.s3.store import S3Store
from tests.support.emulator import Emulator
from tests.support.gcs_emulator import GcsEmulator
from tests.support.s3_emulator import S3Emulator


@dataclass(eq=False)
class Client:
    pid: int = field(default_factory=os.getpid)


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


@pytest.mark.parametrize("emulator", [GcsEmulator, S3Emulator])
class TestStores:
    def test_each_counts_its_own_calls(self, emulator: type[Emulator], monkeypatch: pytest.MonkeyPatch) -> None:
        with emulator() as service:
            uri = f"{service.SCHEME}://bucket/a"
            service.put(uri, b"content")
            service.here(monkeypatch)
            one, other = open_store(uri), open_store(uri)
            assert [one.read(uri), other.read(uri), other.read(uri)] == [b"content"] * 3
            assert (one.calls.get, other.calls.get) == (1, 2)
            assert service.counts()["get"] == 3

    def test_they_share_a_client_until_it_is_refused(
        self, emulator: type[Emulator], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with emulator() as service:
            uri = f"{service.SCHEME}://bucket/a"
            service.put(uri, b"content")
            service.here(monkeypatch)

            def client() -> object:
                store = open_store(uri)
                with contextlib.suppress(PermissionDenied):
                    store.read(uri)
                assert isinstance(store, GCSStore | S3Store)
                return store._client if isinstance(store, GCSStore) else store.service._client

            first = client()
            assert client() is first
            service.fail(operation="get", status=403)
            # It finds out, and has no other: who asks next has, who may have logged in.
            assert client() is first
            assert [status for *_, status in service.requests][-1] == 403
            assert client() is not first
