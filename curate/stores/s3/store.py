"""The store over S3: list, read ranges, publish create-only by `If-None-Match: *`.

An ETag is the generation. It is a checksum of the content, so the same bytes published again have the generation that
they had before. What curate writes carries its SHA-256 as metadata: a create that is refused (412) compares it, and
finds its own object where an answer was lost. Objects of others are read and compared.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterator
from operator import attrgetter, itemgetter
from typing import IO, BinaryIO

from curate.errors import PermissionDenied, StorageError
from curate.log import get_logger
from curate.requests.listing import PagedListing
from curate.requests.ranges import clip, exact_part, part_of, range_header, range_stream
from curate.requests.retry import Retry
from curate.requests.throttle import Limiter
from curate.storage.listing import Columns, Listing
from curate.storage.protocol import LIST_PAGE, Object, Published, mismatch
from curate.storage.uris import bucket_and_key
from curate.storage.writer import SIMPLE_BYTES, SpooledWriter, upload_compared
from curate.stores.s3 import uploads
from curate.stores.s3.answers import Listed, Response, cut, folders, page
from curate.stores.s3.client import Request
from curate.stores.s3.service import SHA256, Service, request_for

_deletes_by_generation: dict[str, bool] = {}
"""Whether the service at an endpoint looks at `If-Match` before it deletes."""


class S3Store:
    """Objects of S3, with the credentials and the endpoint that AWS tools would use.

    Asks nothing and connects nowhere before the first call. Without credentials, what is public can be read.
    """

    def __init__(self, retry: Retry | None = None, limiter: Limiter | None = None) -> None:
        """`limiter` says how many requests are made at once; by default one for all stores of the process."""
        self.service = Service(retry or Retry(), limiter)
        """What it speaks to."""
        self.calls = self.service.calls

    def __reduce__(self) -> tuple[type[S3Store], tuple[Retry]]:
        return S3Store, (self.service.retry,)

    @property
    def transient_failures(self) -> int:
        """Requests that were throttled, timed out or reset so far."""
        return self.service.transient_failures

    @property
    def limiter(self) -> Limiter:
        """What this process lets through to the service: one for all stores that were not given their own."""
        return self.service.limiter

    def region(self, uri: str) -> str:
        """Returns where a bucket of AWS is, as "AWS eu-north-1"; empty if that is not known. Not counted."""
        if self.service.endpoint:
            return ""
        bucket = bucket_and_key(uri, "s3")[0]
        # Also told to who has no rights, or asks elsewhere.
        request = Request(f"look at {uri}", None, "HEAD", bucket, answers=frozenset({301, 307, 400, 403, 404}))
        try:
            found = self.service.once(request).headers.get("x-amz-bucket-region", "")
        except StorageError:
            return ""
        return f"AWS {found}" if found else ""

    def list(self, prefix: str) -> Iterator[Object]:
        bucket, start = bucket_and_key(prefix, "s3")

        def request(begins: str, after: str, **more: str) -> Request:
            params = {"list-type": "2", "prefix": begins, "max-keys": str(LIST_PAGE), "encoding-type": "url"}
            given = {name.replace("_", "-"): value for name, value in more.items() if value}
            after_this = {"start-after": after} if after else {}
            return Request(f"list {prefix}", "list", "GET", bucket, params=params | after_this | given)

        listing = PagedListing[Listed](
            start,
            lambda after, token: self.service.ask(request(start, after, continuation_token=token), page),
            lambda above, after: self.service.ask(request(above, after, delimiter="/"), folders),
            itemgetter(0),
            f"list {prefix} at {self.service.place.name}",
        )
        return Listing(Columns.of(f"s3://{bucket}/", some) for some in listing.pages())

    def stat(self, uri: str) -> Object:
        return self.service.look(uri)[0]

    def read(self, uri: str, start: int = 0, stop: int | None = None) -> bytes:
        clip(start, stop, 0)
        if start >= 0 and stop is not None and stop <= start:
            self.stat(uri)
            return b""
        request = request_for(uri, f"read {uri}", "get", "GET", None, range_header(start, stop), b"", (416,))

        def parse(response: Response) -> bytes:
            if response.status == 416:
                return b""
            if response.status == 206:
                return part_of(response.body, response.headers.get("content-range"), start, stop, cut)
            _compare_checksum(response)
            begin, end = clip(start, stop, len(response.body))
            return response.body[begin:end]

        return self.service.ask(request, parse)

    def open(self, object: Object) -> BinaryIO:
        return range_stream(lambda start, stop: self._read_generation(object, start, stop), object.size)

    def writer(self, uri: str, *, durable: bool = True) -> S3Writer:
        del durable  # all of it is
        bucket_and_key(uri, "s3")
        return S3Writer(self, uri)

    def publish(self, uri: str, data: bytes) -> Published:
        return self._publish(uri, uploads.checked(data), "")

    def replace(self, uri: str, data: bytes) -> Object:
        if (written := uploads.upload(self.service, uri, uploads.checked(data), {})) is None:
            raise StorageError(f"{uri}: 412 to a write without a condition: does a proxy answer for S3? Run it again")
        return written

    def delete(self, uri: str, generation: str | None = None) -> bool:
        if not self._deletes_conditionally(uri):
            found = self.service.stat_or_none(uri)
            if found is None:
                return False
            if generation not in (None, found.generation):
                raise mismatch(uri, str(generation), found.generation)
            self.service.ask(request_for(uri, f"delete {uri}", "delete", "DELETE"), attrgetter("status"))
            return True
        request = _delete(uri, "*" if generation is None else f'"{generation}"')
        tries = 0

        def attempt() -> int:
            nonlocal tries
            tries += 1
            return self.service.once(request).status

        status = self.service.retry.call(request.what, attempt, self.service.place)
        if tries > 1 and (status == 404 or (status == 412 and generation is not None)):
            # The answer of an earlier try was lost, and what was to go is gone, by it or by others.
            return True
        if status != 412:
            return status != 404
        found = self.service.stat_or_none(uri)
        if found is None:
            return tries > 1
        if generation is None:
            # A service that takes the star for an ETag.
            return self.delete(uri, found.generation)
        raise mismatch(uri, generation, found.generation)

    def may_delete(self, uri: str) -> bool:
        try:
            self._delete_nothing(uri)
        except PermissionDenied:
            return False
        return True

    def _deletes_conditionally(self, uri: str) -> bool:
        """Returns whether the service looks at the ETag before it deletes; AWS does, others are asked once."""
        endpoint = self.service.endpoint
        if endpoint and endpoint not in _deletes_by_generation:
            self._delete_nothing(uri)
        return not endpoint or _deletes_by_generation[endpoint]

    def _delete_nothing(self, uri: str) -> None:
        """Deletes what does not exist, beside an object: which tells of rights, and of what the service looks at."""
        status, endpoint = self.service.ask(_delete(_unused(uri), '"0"'), attrgetter("status")), self.service.endpoint
        known = _deletes_by_generation.get(endpoint)
        _deletes_by_generation[endpoint] = status in (404, 412)
        if known is None and not _deletes_by_generation[endpoint]:
            get_logger().warning(
                "this store cannot delete an object only if it is unchanged (If-Match): curate looks at it first; do "
                "not start two runs on one output there",
                endpoint=endpoint,
            )

    def _read_generation(self, object: Object, start: int, stop: int) -> bytes:
        """Returns exactly these bytes of exactly this generation."""
        uri = object.uri
        headers = {"If-Match": f'"{object.generation}"', **range_header(start, stop)}
        request = request_for(uri, f"read {uri}", "get", "GET", None, headers, b"", (404, 412, 416))

        def parse(response: Response) -> bytes | None:
            if response.status >= 400:
                return None
            if response.etag != object.generation:
                # Not all services look at the condition of a read.
                return None
            told = response.headers.get("content-range")
            body = exact_part(response.status, response.body, told, start, stop, object.size, cut)
            if len(response.body) == object.size:
                # The checksum is that of the whole object; of a part there is none.
                _compare_checksum(response)
            return body

        found = self.service.ask(request, parse)
        if found is None:
            raise mismatch(uri, object.generation, self.stat(uri).generation)
        return found

    def _publish(self, uri: str, content: uploads.Checked, over: str) -> Published:
        """Uploads create-only, or in place of the generation `over`; compares checksums if the name is taken."""

        def upload(over: str) -> Object | None:
            condition = {"If-Match": f'"{over}"'} if over else uploads.CREATE
            return uploads.upload(self.service, uri, content, condition)

        def look() -> tuple[Object, Callable[[], bool]]:
            theirs, sha256 = self.service.look(uri)
            same_size = theirs.size == content.size
            return theirs, lambda: same_size and (sha256 or self._sha256(theirs)) == content.sha256

        return upload_compared(uri, over, upload, look)

    def _sha256(self, object: Object) -> str:
        """Returns the checksum of an object that does not carry it."""
        digest = hashlib.sha256()
        with self.open(object) as stream:
            while data := stream.read(SIMPLE_BYTES):
                digest.update(data)
        return digest.hexdigest()


class S3Writer(SpooledWriter):
    """Collects an object's bytes until they are published."""

    def __init__(self, store: S3Store, uri: str) -> None:
        super().__init__(uri)
        self._store = store
        self._sha256 = hashlib.sha256()

    def _digest(self, data: bytes) -> None:
        self._sha256.update(data)

    def _upload(self, file: IO[bytes]) -> Published:
        content = uploads.Checked(file, None, self._size, self._sha256.hexdigest())
        return self._store._publish(self._uri, content, self._over)


def _compare_checksum(response: Response) -> None:
    """Raises TransientStorageError if a whole object is not the one that was written."""
    expected = response.headers.get(SHA256)
    if expected and (found := hashlib.sha256(response.body).hexdigest()) != expected:
        raise cut(f"the bytes that arrived have the SHA-256 {found}, expected {expected}")


def _delete(uri: str, etag: str) -> Request:
    return request_for(uri, f"delete {uri}", "delete", "DELETE", None, {"If-Match": etag}, b"", (404, 412))


def _unused(uri: str) -> str:
    """Returns a name beside an object that no object has."""
    return f"{uri.rpartition('/')[0]}/.curate-{secrets.token_hex(8)}"
