"""The S3 of moto, which others wrote, behind one lock: it looks and then writes, so that two creators can both win."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any, Self
from unittest import mock

import pytest

from tests.support.s3_emulator import S3Emulator

OWN_STORES = ("memory", "local", "local-named", "gcs", "s3")
"""Places of the contract of stores that are no server of others."""
many_puts = pytest.mark.parametrize(
    "place", [*OWN_STORES, pytest.param("moto", marks=[pytest.mark.slow, pytest.mark.nightly])], indirect=True
)
"""For a test of the contract that writes thousands of objects: each takes this server ten milliseconds."""


class MotoServer:
    """Serves on 127.0.0.1 while its block lasts, as an `S3Emulator` that counts nothing and fails never."""

    def __init__(self, bucket: str = "bucket", *, locked: bool = True, versioned: bool = False) -> None:
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
        from moto.s3.models import s3_backends
        from werkzeug.serving import make_server

        app, lock = DomainDispatcherApplication(create_backend_app), threading.Lock()

        def one_at_a_time(environ: Any, start: Any) -> Iterable[bytes]:
            with lock:
                # All of the answer: its body could be made later.
                return list(app(environ, start))

        with mock.patch("logging.Logger.info"):
            self._server = make_server("127.0.0.1", 0, one_at_a_time if locked else app, threaded=True)
        self._server.log_startup = lambda: None  # type: ignore[method-assign]
        self._backend = s3_backends["123456789012"]["aws"]
        self._bucket = bucket
        self._versioned = versioned

    def __enter__(self) -> Self:
        self._backend.reset()
        self._backend.create_bucket(self._bucket, "us-east-1")
        if self._versioned:
            self._backend.put_bucket_versioning(self._bucket, "Enabled")
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._backend.reset()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.port}"

    @property
    def environ(self) -> dict[str, str]:
        """What a process must have in its environment to use this server as S3."""
        return S3Emulator.environ.fget(self)  # type: ignore[attr-defined,no-any-return]

    def put(self, uri: str, content: bytes) -> str:
        """Writes an object behind everyone's back; returns its ETag."""
        made = self._backend.put_object(self._bucket, uri.removeprefix(f"s3://{self._bucket}/"), content)
        return str(made.etag).strip('"')

    def objects(self) -> dict[str, bytes]:
        """Returns the contents by URI, in order."""
        keys = self._backend.get_bucket(self._bucket).keys
        # What was removed of a bucket with versions has a mark in its place.
        return {
            f"s3://{self._bucket}/{name}": keys[name].value for name in sorted(keys) if hasattr(keys[name], "value")
        }

    def remove(self, uri: str) -> None:
        """Deletes an object behind everyone's back."""
        self._backend.delete_object(self._bucket, uri.removeprefix(f"s3://{self._bucket}/"))
