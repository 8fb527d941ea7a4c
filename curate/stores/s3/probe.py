"""Whether a service keeps what create-only publishing needs. Asked before the first write to an output.

Services that speak S3 differ in this: some ignore the conditions of an upload, some look at them and then write, so
that of two creators at once both may win; and some list what was created only some time later. Outputs could be
overwritten there, or taken for lost, so such a service is refused.
"""

from __future__ import annotations

import secrets
import threading
from concurrent.futures import ThreadPoolExecutor

from curate.errors import ConfigError
from curate.log import get_logger
from curate.storage.protocol import Outcome, Store
from curate.storage.uris import bucket_and_key
from curate.stores.s3 import uploads
from curate.stores.s3.service import Service
from curate.stores.s3.store import S3Store

CREATORS = 8
_LIES = {
    "race": f"does not keep If-None-Match: of {CREATORS} creators of one object at once, more than one succeeded, so "
    "outputs could be overwritten there",
    "listing": "does not list an object that was created before, so outputs could be taken for lost there",
    "parts": "does not keep If-None-Match: an upload in parts replaced an object although it had to be new, so outputs "
    "could be overwritten there",
}

_kept: set[tuple[str, str]] = set()
"""Endpoint and bucket of those that were probed by this process: each stage of a job is an output of its own."""


def refuse_lax_bucket(store: Store, scratch: str) -> None:
    """As `refuse_lax`, unless the bucket was asked by this process and kept its word."""
    bucket = store.service.endpoint if isinstance(store, S3Store) else "", bucket_and_key(scratch, "s3")[0]
    if bucket not in _kept:
        refuse_lax(store, scratch)
        _kept.add(bucket)


def refuse_lax(store: Store, scratch: str) -> None:
    """Has eight creators publish one name in `scratch` at once: exactly one may win. Leaves nothing behind.

    Raises ConfigError, with the endpoint, if two win, if an upload in parts replaces what is there, or if it is not
    listed. A service that
    replaces an object although it is another by now is reported with a warning: only `redo_stale` replaces.
    """
    # Called as the temporaries of a local store are, so that what a kill leaves is known to be curate's.
    uri = f"{scratch}/{secrets.token_hex(8)}-0-0"
    start = threading.Barrier(CREATORS)

    def create(number: int) -> Outcome:
        start.wait()
        return store.publish(uri, b"probe %d" % number).outcome

    with ThreadPoolExecutor(CREATORS) as pool:
        created = list(pool.map(create, range(CREATORS))).count(Outcome.CREATED)
    service = store.service if isinstance(store, S3Store) else None
    lie = "race" if created > 1 else "" if any(one.uri == uri for one in store.list(uri)) else "listing"
    if service and not lie and not _completes_create_only(service, uri):
        lie = "parts"
    if service and not lie and uploads.upload(service, uri, uploads.checked(b"other"), {"If-Match": '"0"'}) is not None:
        get_logger().warning(
            "this store replaces an object even if it changed meanwhile (If-Match): do not start two runs that "
            "redo stale shards on one output there",
            endpoint=service.endpoint,
        )
    store.delete(uri)
    if lie:
        where = service.endpoint or "AWS" if service else uri
        raise ConfigError(
            f"the service at {where} {_LIES[lie]}; "
            "nothing was written. Choose AWS, R2, a recent MinIO or Ceph, gs:// or a local disk as output"
        )


def _completes_create_only(service: Service, uri: str) -> bool:
    """Returns whether the completion of an upload in parts leaves the object alone that is there."""
    content = uploads.checked(b"in parts")
    upload_id = uploads.begin(service, uri, content)
    etags = uploads.send_parts(service, uri, content, upload_id) or ()
    if uploads.complete(service, uri, content, upload_id, etags, uploads.CREATE) is not None:
        return False
    uploads.abort(service, uri, upload_id)
    return True
