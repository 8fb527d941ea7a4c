"""What an answer of S3 says: its body read, or the error that it stands for, with the next step.

That a status is 200 does not say that all went well: the completion of an upload answers 200 first and its error later,
and proxies cut answers. So an answer that lacks what it must have is transient.
"""

from __future__ import annotations

from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from urllib.parse import unquote_plus
from xml.etree import ElementTree

from curate.dataclass import dataclass
from curate.errors import ObjectNotFound, PermissionDenied, StorageError, TransientStorageError
from curate.requests.ranges import NOT_PLAIN, plain

Listed = tuple[str, int, str]
"""Key, size and generation of an object."""

_TRANSIENT = frozenset({408, 409, 429, 500, 502, 503, 504})
"""409: a call of others is under way there."""
_TRANSIENT_CODES = frozenset(
    {"BadDigest", "IncompleteBody", "InternalError", "RequestTimeout", "SlowDown", "Throttling"}
    | {"ServiceUnavailable", "TooManyRequests", "XAmzContentSHA256Mismatch"}
    | {"IDPCommunicationError", "RequestLimitExceeded", "ThrottlingException"}
)
"""Whatever their status is; those of the last line are of STS, which gives out keys."""
_WRONG_KEYS = frozenset(
    {"ExpiredToken", "InvalidAccessKeyId", "InvalidToken", "SignatureDoesNotMatch", "TokenRefreshRequired"}
)
_FULL_CODES = frozenset({"QuotaExceeded", "XMinioAdminBucketQuotaExceeded", "XMinioStorageFull"})
"""Of Ceph and MinIO; with 403, 400 and 507."""
_SKEW_S = 900.0
"""By how much clocks may differ."""


@dataclass(frozen=True, slots=True)
class Response:
    """An answer, read whole."""

    status: int
    headers: Mapping[str, str]
    """By name in lower case."""
    body: bytes

    def xml(self, root: str) -> ElementTree.Element:
        """Returns the body, an element of this name. Raises TransientStorageError for any other."""
        try:
            found = ElementTree.fromstring(plain(self.headers.get("content-encoding"), self.body).strip())
        except (ElementTree.ParseError, *NOT_PLAIN) as error:
            raise cut(f"{len(self.body)} bytes are no XML: {error}") from error
        for element in found.iter():
            # Some services have a namespace, some have none.
            element.tag = element.tag.rpartition("}")[2]
        if found.tag != root:
            raise cut(f"found <{found.tag}>, expected <{root}>")
        return found

    @property
    def etag(self) -> str:
        """The ETag of the object that the answer is of. Raises TransientStorageError if there is none."""
        found = plain_etag(self.headers.get("etag", ""))
        if not found:
            raise cut("it has no ETag")
        return found

    @property
    def is_of_s3(self) -> bool:
        """Whether a service that speaks S3 made it, and no proxy or web server. An answer without a body may lack
        what shows it."""
        # Headers first: the body may be 8 MiB of an object.
        return any(name.startswith(("x-amz-", "x-amzn-")) for name in self.headers) or bool(self.failure()[0])

    @property
    def is_page(self) -> bool:
        """Whether a proxy answered with something of its own: whatever its status, it tells nothing of an object. Some
        that speak S3 call what is empty HTML."""
        is_html = self.headers.get("content-type", "").lower().startswith("text/html") and "etag" not in self.headers
        has_content = bool(self.body) or self.headers.get("content-length", "0") != "0"
        return ((is_html and has_content) or (self.status >= 300 and bool(self.body))) and not self.is_of_s3

    def failure(self) -> tuple[str, str, str]:
        """Returns code, message and region of an error's body; proxies answer in other formats, or not at all."""
        try:
            found = self.xml("Error")
        except TransientStorageError:
            return "", " ".join(self.body[:1000].decode(errors="replace").split())[:200], ""
        return found.findtext("Code", ""), found.findtext("Message", ""), found.findtext("Region", "")


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked, and of whom: for messages."""

    what: str
    """What the request does: "read s3://b/k"."""
    uri: str
    endpoint: str
    has_credentials: bool
    has_answered: bool = False
    """Whether S3 has answered there before: what answers in its place now, such as a proxy, will pass."""


def plain_etag(told: str) -> str:
    """Returns an ETag without what proxies add: one that may pack answers calls it weak, in some of them.

    >>> plain_etag('"abc"'), plain_etag('W/"abc"'), plain_etag("abc")
    ('abc', 'abc', 'abc')
    """
    return told.strip().removeprefix("W/").strip('"')


def cut(problem: str) -> TransientStorageError:
    """Returns the error of an answer that did not come in whole, though its status says that all is well."""
    return TransientStorageError(f"the answer of S3 is not what was asked for: {problem}")


def may_pass(status: int, code: str) -> bool:
    """Returns whether a refusal is of the moment only."""
    return status in _TRANSIENT or code in _TRANSIENT_CODES


def error(asked: Asked, response: Response, now_s: float) -> StorageError:
    """Returns the error that a refusing answer stands for. `now_s` is this machine's time."""
    status, (code, message, _) = response.status, response.failure()
    said = f"S3 answered {status}{f' {code}' if code else ''}{f' ({message})' if message else ''}"
    if response.is_page and status not in _TRANSIENT:
        return (TransientStorageError if asked.has_answered or status < 300 else StorageError)(
            f"{asked.what}: what answers at {asked.endpoint} is not S3 (found {status}, {message[:80]!r}; expected "
            "XML); check AWS_ENDPOINT_URL and proxies, then run again"
        )
    if may_pass(status, code):
        return TransientStorageError(f"{said}, at {asked.endpoint}")
    # The answer to HEAD has no body, and so no code: its date tells.
    if code == "RequestTimeTooSkewed" or (status == 403 and not code and abs(_ahead_s(response, now_s)) > _SKEW_S):
        return StorageError(
            f"{asked.what}: {_skew(response, now_s)}; set the clock (timedatectl set-ntp true), then run again"
        )
    if code == "InvalidObjectState":
        return StorageError(
            f"{asked.what}: the object is archived (Glacier) and cannot be read; restore it (aws s3api "
            f"restore-object), or leave it out of the input, then run again; {said}"
        )
    key_bytes = len(asked.uri.split("/", 3)[-1].encode())
    if code == "KeyTooLongError" or (status == 400 and not code and key_bytes > 1024):
        return StorageError(f"{asked.what}: the key has {key_bytes:,} bytes, and S3 takes 1,024; choose shorter names")
    if code == "NoSuchBucket":
        return ObjectNotFound(
            f"{asked.what}: the bucket does not exist at {asked.endpoint}; check its name and AWS_ENDPOINT_URL, or "
            f"make it: aws s3 mb s3://{asked.uri.split('/')[2]}",
            asked.uri,
        )
    if code in _FULL_CODES or status == 507:
        return StorageError(
            f"{asked.what}: {said}: the bucket's quota, or the disk of the service at {asked.endpoint}, is full; free "
            "space there or raise the quota, then run again"
        )
    if status in (401, 403) or code in _WRONG_KEYS:
        return denied(asked, said, code)
    if status == 404:
        return ObjectNotFound(f"{asked.what}: it does not exist, or its bucket does not; {said}", asked.uri)
    if status in (405, 501):
        return StorageError(
            f"{asked.what}: {said}: the service at {asked.endpoint} lacks what curate needs; choose another store"
        )
    why = "" if response.body else "; without a word: credentials may have expired (aws sso login), or a key is needed"
    return (StorageError if response.body else PermissionDenied)(
        f"{asked.what}: {said}, which a retry would not change; expected success from {asked.endpoint}{why}"
    )


def denied(asked: Asked, said: str, code: str = "") -> PermissionDenied:
    """Returns the error of a request that was not allowed, with what to do about it."""
    if not asked.has_credentials:
        step = (
            "no credentials were found: log in (aws sso login, aws configure), or set AWS_PROFILE, or "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    elif code in _WRONG_KEYS:
        step = (
            "the credentials are not valid, or not any more: log in again (aws sso login); check AWS_PROFILE and "
            "AWS_ENDPOINT_URL"
        )
    else:
        rights = (
            "the right: grant s3:ListBucket and s3:GetObject, and for an output s3:PutObject, s3:DeleteObject and "
            "s3:AbortMultipartUpload; if the requester pays, set AWS_REQUEST_PAYER=requester"
        )
        either = "without a word: the credentials are not valid any more, then log in again (aws sso login), or lack "
        step = f"the credentials lack {rights}" if code else f"{either}{rights}"
    return PermissionDenied(f"{asked.what}: {said}; {step}")


def _skew(response: Response, now_s: float) -> str:
    ahead_s = _ahead_s(response, now_s)
    if not ahead_s:
        return "this machine's clock and that of S3 differ by more than 15 minutes"
    way = "ahead of" if ahead_s > 0 else "behind"
    return f"this machine's clock is {abs(ahead_s) / 60:,.0f} minutes {way} that of S3"


def _ahead_s(response: Response, now_s: float) -> float:
    """Returns by how much this machine's clock is ahead of that of S3; 0 if the answer does not tell."""
    try:
        return now_s - parsedate_to_datetime(response.headers.get("date", "")).timestamp()
    except (TypeError, ValueError):
        return 0.0


def folders(response: Response) -> list[str]:
    """Returns the folders of a page of a listing."""
    found = response.xml("ListBucketResult")
    plain = unquote_plus if found.findtext("EncodingType") == "url" else str
    return [plain(one.findtext("Prefix", "")) for one in found.iter("CommonPrefixes")]


def page(response: Response) -> tuple[list[Listed], str | None]:
    """Returns the objects of a page of a listing, and the token of the next one."""
    found = response.xml("ListBucketResult")
    # Asked for; a service that does not know it spells keys as they are.
    plain = unquote_plus if found.findtext("EncodingType") == "url" else str
    objects = []
    for item in found.iter("Contents"):
        key, size, etag = (item.findtext(name, "") for name in ("Key", "Size", "ETag"))
        if not (key and size.isdigit() and plain_etag(etag)):
            raise cut("a page of a listing has an item without Key, Size or ETag")
        objects.append((plain(key), int(size), plain_etag(etag)))
    more, token = found.findtext("IsTruncated", ""), found.findtext("NextContinuationToken", "")
    if more not in ("true", "false") or (more == "true" and not token):
        raise cut("a page of a listing does not say where the next one begins")
    return objects, token if more == "true" else None
