"""Uploads to S3 under a condition: in one request, and beyond 8 MiB in parts.

The condition of an upload in parts is looked at when it is completed. One that a kill leaves behind is invisible, and
is paid for until the bucket's rule for incomplete uploads removes it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

from curate.dataclass import dataclass
from curate.errors import StorageError, TransientStorageError
from curate.log import get_logger
from curate.storage.protocol import Object
from curate.storage.writer import SIMPLE_BYTES, Content
from curate.stores.s3.answers import Response, cut, plain_etag
from curate.stores.s3.service import SHA256, Service, request_for

PART_BYTES = 32 << 20
"""One request of an upload in parts; S3 asks for 5 MiB and more, and R2 for parts of one size."""
CREATE = {"If-None-Match": "*"}
"""The condition of a name that has to be free."""
_PARTS = 10_000
"""The most that S3 takes."""
_UPLOADS = 3
"""Uploads in parts started for one object before giving up."""
_REFUSED_CODES = ("PreconditionFailed", "ConditionalRequestConflict", "NoSuchUpload")


@dataclass(frozen=True, slots=True)
class Checked(Content):
    """What is to be uploaded, with its checksum."""

    sha256: str


def checked(data: bytes) -> Checked:
    """Returns bytes in memory as a content."""
    return Checked(None, data, len(data), hashlib.sha256(data).hexdigest())


def upload(service: Service, uri: str, content: Checked, condition: Mapping[str, str]) -> Object | None:
    """Returns the object as uploaded, or None if the condition does not hold."""
    if content.size > SIMPLE_BYTES:
        return _upload_parts(service, uri, content, condition)
    data, headers = content.bytes_at(0, content.size), {SHA256: content.sha256, **condition}
    answers = (404, 412) if "If-Match" in condition else (412,)
    request = request_for(uri, f"upload {uri}", "put", "PUT", None, headers, data, answers)

    def parse(response: Response) -> Object | None:
        return None if response.status in answers else Object(uri, content.size, response.etag)

    return service.ask(request, parse)


def _upload_parts(service: Service, uri: str, content: Checked, condition: Mapping[str, str]) -> Object | None:
    for _ in range(_UPLOADS):
        upload_id = begin(service, uri, content)
        try:
            etags = send_parts(service, uri, content, upload_id)
            made = None if etags is None else complete(service, uri, content, upload_id, etags, condition)
        except BaseException:
            # Also of whoever interrupts a run in this process.
            abort(service, uri, upload_id)
            raise
        if made is not None:
            return made
        abort(service, uri, upload_id)
        if condition and service.stat_or_none(uri) is not None:
            # It is taken: by another, or by this upload, whose answer was lost. Its content tells.
            return None
    raise StorageError(
        f"{uri}: S3 forgot or refused {_UPLOADS} uploads of {content.size:,} bytes before they were complete; run the "
        "shard again, and check the status of the service if it happens again"
    )


def begin(service: Service, uri: str, content: Checked) -> str:
    """Returns the id of a new upload in parts."""

    def parse(response: Response) -> str:
        found = response.xml("InitiateMultipartUploadResult").findtext("UploadId", "")
        if not found:
            raise cut("the answer to the start of an upload has no id")
        return found

    headers = {SHA256: content.sha256}
    return service.ask(request_for(uri, f"start the upload of {uri}", "put", "POST", {"uploads": ""}, headers), parse)


def send_parts(service: Service, uri: str, content: Checked, upload_id: str) -> list[str] | None:
    """Returns the ETags of the parts, or None if the upload is gone."""
    size = max(PART_BYTES, -(-content.size // _PARTS))
    etags: list[str] = []
    for number, start in enumerate(range(0, content.size, size), 1):
        stop = min(content.size, start + size)
        what, data = f"upload bytes {start} to {stop} of {uri}", content.bytes_at(start, stop)
        params = {"partNumber": str(number), "uploadId": upload_id}
        request = request_for(uri, what, None, "PUT", params, None, data, (404,))
        etag = service.ask(request, lambda response: "" if response.status == 404 else response.etag)
        if not etag:
            return None
        etags.append(etag)
    return etags


def complete(
    service: Service, uri: str, content: Checked, upload_id: str, etags: Sequence[str], condition: Mapping[str, str]
) -> Object | None:
    """Returns the object as uploaded, or None if the condition does not hold, or the upload is gone or in conflict."""
    parts = "".join(
        f"<Part><PartNumber>{number}</PartNumber><ETag>&quot;{escape(etag)}&quot;</ETag></Part>"
        for number, etag in enumerate(etags, 1)
    )
    data = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
    # After a conflict (409), S3 asks for a new upload.
    answers = (404, 409, 412)
    what, params = f"complete the upload of {uri}", {"uploadId": upload_id}
    request = request_for(uri, what, None, "POST", params, condition, data, answers)

    def parse(response: Response) -> Object | None:
        # An error can follow a status of 200, because the work takes long.
        code = response.failure()[0]
        if response.status in answers or code in _REFUSED_CODES:
            return None
        if code:
            raise TransientStorageError(f"S3 answered {response.status}, and then {code}")
        etag = plain_etag(response.xml("CompleteMultipartUploadResult").findtext("ETag", ""))
        if not etag:
            raise cut("a completed upload has no ETag")
        return Object(uri, content.size, etag)

    return service.ask(request, parse)


def abort(service: Service, uri: str, upload_id: str) -> None:
    """Gives an upload up, so that its parts cost nothing. Best effort: the bucket's rule removes the rest."""
    params = {"uploadId": upload_id}
    request = request_for(uri, f"give up the upload of {uri}", None, "DELETE", params, answers=(404,))
    try:
        service.once(request)
    except StorageError as error:
        get_logger().warning("an incomplete upload is left in the bucket", uri=uri, error=str(error))
