"""A strict, scriptable S3 for tests: the part of its REST API that curate uses, over HTTP, path-style.

It stands beside the server of moto, which looks and then writes: of two creators at once both can win there. Here every
effect, with its precondition, happens under one lock.

What it holds to: signatures (Version 4) and the digest of every body; `If-None-Match: *` and `If-Match` on uploads, on
the *completion* of uploads in parts, and on deletes; 412 for what is taken, 404 for what is to be replaced and is gone;
a read of one ETag; parts of at least 5 MiB but the last, of 10,000 at most; ranges; pages of 1,000; keys of 1,024 bytes
at most; archived objects; the region of a bucket.

Look-alikes are scripted: `creates="lax"` ignores the preconditions of uploads, `deletes="lax"` those of deletes;
`deletes="no star"` takes the star of a condition for an ETag there.

    with S3Emulator() as emulator:
        emulator.fail(operation="complete", status=409)
        subprocess.run([...], env=os.environ | emulator.environ)
        assert emulator.objects() == {"s3://bucket/a": b"..."}
"""

from __future__ import annotations

import bisect
import datetime
import hashlib
import hmac
import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler
from typing import Literal
from urllib.parse import parse_qsl, quote, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from tests.support.emulator import Answer, Asked, Bucket, Emulator, Stored, body_of, wanted_range

SMALLEST_PART = 5 << 20
"""Of all parts but the last."""
REGION = "us-east-1"
SECRET = "a-secret"
_CODES = {
    400: "InvalidRequest",
    401: "AccessDenied",
    403: "AccessDenied",
    404: "NoSuchKey",
    408: "RequestTimeout",
    409: "ConditionalRequestConflict",
    412: "PreconditionFailed",
    416: "InvalidRange",
    429: "TooManyRequests",
    500: "InternalError",
    501: "NotImplemented",
    503: "SlowDown",
}


@dataclass(slots=True)
class _Upload:
    """An upload in parts that was neither completed nor given up."""

    bucket: str
    name: str
    headers: Mapping[str, str]
    parts: dict[int, bytes] = field(default_factory=dict)


class S3Emulator(Emulator):
    """S3 on 127.0.0.1 while its block lasts. Contents, counts and faults are reached directly.

    Beside those that are counted, the operations are `part`, `complete`, `abort` and `bucket`.
    """

    SCHEME = "s3"

    def __init__(
        self,
        buckets: Iterable[str] = ("bucket",),
        *,
        creates: Literal["strict", "lax"] = "strict",
        deletes: Literal["strict", "lax", "no star"] = "strict",
        smallest_part: int = SMALLEST_PART,
    ) -> None:
        self.creates, self.deletes, self.smallest_part = creates, deletes, smallest_part
        self.uploads: dict[str, _Upload] = {}
        """Uploads in parts that are neither completed nor given up, by id: what costs money until then."""
        self.regions: dict[str, str] = {}
        """Regions of buckets that are elsewhere."""
        self.clock_is_off_s = 0.0
        """By how much this server's clock is ahead of the client's."""
        self._ids = itertools.count(1)
        super().__init__(buckets)

    @property
    def environ(self) -> dict[str, str]:
        """What a process must have in its environment to use this server as S3."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "a-key",
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": REGION,
            "AWS_CONFIG_FILE": "/nonexistent",
            "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def put(
        self, uri: str, content: bytes, headers: Mapping[str, str] | None = None, encoding: str | None = None
    ) -> str:
        """Writes an object behind everyone's back; returns its ETag. `headers` are those that a read shows."""
        bucket, name = self._split(uri)
        with self._lock:
            self._buckets.setdefault(bucket, Bucket())
            return self._store(bucket, name, content, {**(headers or {})}, _md5(content), encoding)

    # What follows is the server's side.

    def _read(self, handler: BaseHTTPRequestHandler) -> Asked:
        split = urlsplit(handler.path)
        query = dict(parse_qsl(split.query, keep_blank_values=True))
        bucket, _, name = split.path.lstrip("/").partition("/")
        method, name = str(handler.command), unquote(name)
        kinds = {
            "PUT": "part" if "uploadId" in query else "put",
            "POST": "complete" if "uploadId" in query else "put",
            "DELETE": "abort" if "uploadId" in query else "delete",
        }
        operation = kinds.get(method, "get") if name else "list" if "list-type" in query else "bucket"
        headers = {key.lower(): value for key, value in handler.headers.items()}
        # The path and the query as they were sent, for the signature.
        headers[":target"] = handler.path
        return Asked(
            method,
            split.path,
            query,
            headers,
            body_of(handler),
            operation,
            unquote(bucket),
            name or query.get("prefix", ""),
        )

    def _refusal(self, status: int, message: str, reason: str = "") -> Answer:
        code = reason if reason and reason != "rateLimitExceeded" else _CODES.get(status, "InternalError")
        return _error(status, code, message)

    def _effect(self, asked: Asked) -> Answer:
        with self._lock:
            if refused := self._unsigned(asked):
                return refused
            if asked.bucket not in self._buckets:
                return _error(404, "NoSuchBucket", "The specified bucket does not exist")
            region = self.regions.get(asked.bucket, REGION)
            if f"/{region}/s3/" not in asked.headers.get("authorization", f"/{region}/s3/"):
                answer = _error(400, "AuthorizationHeaderMalformed", f"expecting '{region}'", Region=region)
                return Answer(answer.status, answer.body, {"x-amz-bucket-region": region})
            if len(asked.name.encode()) > 1024 and asked.operation != "list":
                return _error(400, "KeyTooLongError", "Your key is too long")
            answer = getattr(self, f"_{asked.operation}")(asked)
        return Answer(answer.status, b"", answer.headers) if asked.method == "HEAD" else answer

    def _unsigned(self, asked: Asked) -> Answer | None:
        """Returns the refusal of a request whose signature or digest is not that of its bytes."""
        headers = asked.headers
        if "authorization" not in headers:
            return None if asked.method in ("GET", "HEAD") else _error(403, "AccessDenied", "Access Denied")
        found = re.fullmatch(
            r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d{8})/([^/]+)/s3/aws4_request, SignedHeaders=([^,]+), "
            r"Signature=([0-9a-f]{64})",
            headers["authorization"],
        )
        if found is None:
            return _error(400, "AuthorizationHeaderMalformed", "The authorization header is malformed")
        _, day, region, signed, signature = found.groups()
        sent = datetime.datetime.strptime(headers["x-amz-date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=datetime.UTC)
        now = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=self.clock_is_off_s)
        if abs((now - sent).total_seconds()) > 900:
            answer = _error(403, "RequestTimeTooSkewed", "The difference between the request time and the server's is")
            return Answer(403, answer.body, {"Date": formatdate(now.timestamp(), usegmt=True)})
        digest = headers["x-amz-content-sha256"]
        path, _, query = headers[":target"].partition("?")
        names = signed.split(";")
        if not {"host", "x-amz-date", "x-amz-content-sha256"} <= set(names):
            return _error(403, "AccessDenied", "There were headers present in the request which were not signed")
        # Each parameter as it was sent, in order of the names.
        pairs = sorted(one.partition("=")[::2] for one in query.split("&") if one)
        canonical = "\n".join(
            [
                *(asked.method, path, "&".join("=".join(pair) for pair in pairs)),
                *(f"{name}:{' '.join(headers[name].split())}" for name in names),
                *("", signed, digest),
            ]
        )
        scope = f"{day}/{region}/s3/aws4_request"
        text = f"AWS4-HMAC-SHA256\n{headers['x-amz-date']}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
        key = f"AWS4{SECRET}".encode()
        for part in (day, region, "s3", "aws4_request", text):
            key = hmac.digest(key, part.encode(), "sha256")
        if key.hex() != signature:
            return _error(403, "SignatureDoesNotMatch", "The request signature we calculated does not match")
        if digest != hashlib.sha256(asked.body).hexdigest():
            return _error(400, "XAmzContentSHA256Mismatch", "The provided header does not match what was computed.")
        return None

    def _bucket(self, asked: Asked) -> Answer:
        return Answer(200, headers={"x-amz-bucket-region": self.regions.get(asked.bucket, REGION)})

    def _list(self, asked: Asked) -> Answer:
        query, held = asked.query, self._buckets[asked.bucket]
        prefix, room = query.get("prefix", ""), max(1, min(int(query.get("max-keys", 1000)), 1000))
        at = bisect.bisect_left(held.names, prefix)
        if "continuation-token" in query:
            at = max(at, bisect.bisect_right(held.names, bytes.fromhex(query["continuation-token"]).decode()))
        if "start-after" in query and "continuation-token" not in query:
            at = max(at, bisect.bisect_right(held.names, query["start-after"]))
        delimiter, names, folders, more, last = query.get("delimiter", ""), list[str](), list[str](), False, ""
        for name in itertools.takewhile(lambda name: name.startswith(prefix), itertools.islice(held.names, at, None)):
            inside = bool(delimiter) and delimiter in name[len(prefix) :]
            folder = prefix + name[len(prefix) :].partition(delimiter)[0] + delimiter if inside else ""
            if not folder or folder not in folders[-1:]:
                # Folders take up room, too.
                more = len(names) + len(folders) == room
                if more:
                    break
                (folders if folder else names).append(folder or name)
            last = name
        spelled = (lambda name: quote(name, safe="/").replace("%20", "+")) if "encoding-type" in query else escape
        items = "".join(
            f"<Contents><Key>{spelled(name)}</Key><ETag>&quot;{held.objects[name].generation}&quot;</ETag>"
            f"<Size>{len(held.objects[name].content)}</Size></Contents>"
            for name in names
        )
        items += "".join(f"<CommonPrefixes><Prefix>{spelled(one)}</Prefix></CommonPrefixes>" for one in folders)
        coded = "<EncodingType>url</EncodingType>" if "encoding-type" in query else ""
        token = f"<NextContinuationToken>{last.encode().hex()}</NextContinuationToken>" if more else ""
        return _xml(
            f"<ListBucketResult>{coded}<IsTruncated>{str(more).lower()}</IsTruncated>{token}{items}</ListBucketResult>"
        )

    def _get(self, asked: Asked) -> Answer:
        stored = self._buckets[asked.bucket].objects.get(asked.name)
        if stored is None:
            return _error(404, "NoSuchKey", "The specified key does not exist.")
        if "if-match" in asked.headers and asked.headers["if-match"] != f'"{stored.generation}"':
            return _error(412, "PreconditionFailed", "At least one of the pre-conditions you specified did not hold")
        content, size = stored.content, len(stored.content)
        headers = {"ETag": f'"{stored.generation}"', "Accept-Ranges": "bytes", **stored.headers}
        if stored.encoding:
            headers["Content-Encoding"] = stored.encoding
        if asked.method == "HEAD":
            return Answer(200, b"", headers | {"Content-Length": str(size)})
        if stored.headers.get("x-amz-storage-class") in ("GLACIER", "DEEP_ARCHIVE"):
            return _error(403, "InvalidObjectState", "The operation is not valid for the object's storage class")
        wanted = wanted_range(asked.headers.get("range", ""), size)
        if wanted is None:
            return Answer(200, content, headers)
        start, stop = wanted
        if stop <= start:
            return _error(416, "InvalidRange", "The requested range is not satisfiable")
        return Answer(206, content[start:stop], headers | {"Content-Range": f"bytes {start}-{stop - 1}/{size}"})

    def _delete(self, asked: Asked) -> Answer:
        stored = self._buckets[asked.bucket].objects.get(asked.name)
        if self.deletes != "lax" and (refused := self._refused(asked)):
            return refused
        if self.deletes == "no star" and asked.headers.get("if-match") == "*":
            return _error(412, "PreconditionFailed", "At least one of the pre-conditions you specified did not hold")
        if stored is not None:
            self._remove(asked.bucket, asked.name)
        return Answer(204)

    def _put(self, asked: Asked) -> Answer:
        kept = {key: value for key, value in asked.headers.items() if key.startswith("x-amz-meta-")}
        if asked.method == "POST":
            upload_id = f"upload-{next(self._ids)}"
            self.uploads[upload_id] = _Upload(asked.bucket, asked.name, kept)
            return _xml(
                f"<InitiateMultipartUploadResult><UploadId>{upload_id}</UploadId></InitiateMultipartUploadResult>"
            )
        if self.creates == "strict" and (refused := self._refused(asked)):
            return refused
        etag = self._store(asked.bucket, asked.name, asked.body, kept, _md5(asked.body))
        return Answer(200, headers={"ETag": f'"{etag}"'})

    def _part(self, asked: Asked) -> Answer:
        upload = self.uploads.get(asked.query["uploadId"])
        number = int(asked.query["partNumber"])
        if upload is None or (upload.bucket, upload.name) != (asked.bucket, asked.name):
            return _error(404, "NoSuchUpload", "The specified upload does not exist.")
        if not 1 <= number <= 10_000:
            return _error(400, "InvalidArgument", "Part number must be an integer between 1 and 10000, inclusive")
        upload.parts[number] = asked.body
        return Answer(200, headers={"ETag": f'"{_md5(asked.body)}"'})

    def _complete(self, asked: Asked) -> Answer:
        upload = self.uploads.get(asked.query["uploadId"])
        if upload is None or (upload.bucket, upload.name) != (asked.bucket, asked.name):
            return _error(404, "NoSuchUpload", "The specified upload does not exist.")
        if self.creates == "strict" and (refused := self._refused(asked)):
            return refused
        asked_for = [
            (int(part.findtext("PartNumber", "0")), part.findtext("ETag", "").strip('"'))
            for part in ElementTree.fromstring(asked.body)
        ]
        parts = [upload.parts.get(number, b"") for number, _ in asked_for]
        if [number for number, _ in asked_for] != sorted({number for number, _ in asked_for}):
            return _error(400, "InvalidPartOrder", "The list of parts was not in ascending order.")
        if not parts or [etag for _, etag in asked_for] != [_md5(part) for part in parts]:
            return _error(400, "InvalidPart", "One or more of the specified parts could not be found.")
        if any(len(part) < self.smallest_part for part in parts[:-1]):
            return _error(400, "EntityTooSmall", "Your proposed upload is smaller than the minimum allowed size")
        digest = hashlib.md5(b"".join(bytes.fromhex(_md5(part)) for part in parts), usedforsecurity=False).hexdigest()
        etag = self._store(asked.bucket, asked.name, b"".join(parts), upload.headers, f"{digest}-{len(parts)}")
        del self.uploads[asked.query["uploadId"]]
        # The real one sends its status first, and white space while it works.
        return _xml(
            f"<CompleteMultipartUploadResult><ETag>&quot;{etag}&quot;</ETag></CompleteMultipartUploadResult>", b"  \n"
        )

    def _abort(self, asked: Asked) -> Answer:
        if self.uploads.pop(asked.query["uploadId"], None) is None:
            return _error(404, "NoSuchUpload", "The specified upload does not exist.")
        return Answer(204)

    def _refused(self, asked: Asked) -> Answer | None:
        """Returns the refusal of a request whose precondition does not hold."""
        stored = self._buckets[asked.bucket].objects.get(asked.name)
        failed = _error(412, "PreconditionFailed", "At least one of the pre-conditions you specified did not hold")
        if "if-none-match" in asked.headers:
            if asked.headers["if-none-match"] != "*":
                return _error(501, "NotImplemented", "A header implies what is not implemented")
            return failed if stored is not None else None
        if "if-match" in asked.headers:
            if stored is None:
                return _error(404, "NoSuchKey", "The specified key does not exist.")
            return None if asked.headers["if-match"] in ("*", f'"{stored.generation}"') else failed
        return None

    def _store(
        self,
        bucket: str,
        name: str,
        content: bytes,
        headers: Mapping[str, str],
        etag: str,
        encoding: str | None = None,
    ) -> str:
        self._keep(bucket, name, Stored(content, etag, encoding, headers))
        return etag


def _md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def _xml(text: str, before: bytes = b"") -> Answer:
    # White space is allowed where there is no declaration.
    head = before or b'<?xml version="1.0" encoding="UTF-8"?>\n'
    return Answer(200, head + text.encode(), {"Content-Type": "application/xml"})


def _error(status: int, code: str, message: str, **fields: str) -> Answer:
    more = "".join(f"<{key}>{escape(value)}</{key}>" for key, value in fields.items())
    text = f"<Error><Code>{code}</Code><Message>{escape(message)}</Message>{more}</Error>"
    return Answer(status, text.encode(), {"Content-Type": "application/xml"})
