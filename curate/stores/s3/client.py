"""One HTTP request to S3, signed. The one file that knows botocore.

botocore finds credentials, endpoint and region as every AWS tool does (environment, `~/.aws`, single sign-on, roles of
the machine or the container), signs, and connects. Retries are switched off: each request is made once. Of the names of
the region it knows AWS_DEFAULT_REGION alone; all others read AWS_REGION, which Lambda, ECS and EKS set.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Literal
from urllib.parse import quote, urlsplit

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSPreparedRequest, AWSRequest, HeadersDict
from botocore.configprovider import ConfiguredEndpointProvider
from botocore.credentials import Credentials, ReadOnlyCredentials
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError,
    CredentialRetrievalError,
    HTTPClientError,
    MetadataRetrievalError,
)
from botocore.httpsession import URLLib3Session
from botocore.session import Session
from botocore.utils import get_environ_proxies
from urllib3.exceptions import HTTPError

from curate.dataclass import dataclass, field
from curate.errors import StorageError, TransientStorageError
from curate.requests.reached import REACHED, Place
from curate.requests.retry import Retry
from curate.stores.s3.answers import Asked, Response, denied, error, may_pass

Kind = Literal["list", "get", "put", "delete"]
_CONNECT_S = 5.0
_CONNECTIONS = 64
"""As many as requests at once: the ceiling of `throttle.Bounds`."""
_NO_KEYS = (BotoCoreError, ClientError, RuntimeError)
"""What credentials raise that cannot be renewed. ClientError: what STS answered; RuntimeError: they had expired already
when they came."""
_OF_MACHINE = ("iam-role", "container-role")
"""What gives credentials to a machine or a container that has the right to them: it refuses nobody, but may be away."""
_PIECE_BYTES = 256 << 10
"""What is sent between two looks at how fast it goes."""


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request, ready to be made any number of times."""

    what: str
    """What it does, for messages: "read s3://b/k"."""
    kind: Kind | None
    """The counter it adds to; None for what is not counted by itself, as a part of an upload."""
    method: str
    bucket: str
    key: str = ""
    params: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    data: bytes = b""
    answers: frozenset[int] = frozenset()
    """Statuses from 300 on that are answers to the caller, not errors."""


class Client:
    """Credentials, endpoint and connections of one process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        session = Session({"region": ("region", ["AWS_REGION", "AWS_DEFAULT_REGION"], None, None)})
        try:
            self.endpoint = _endpoint(session)
            self._region = str(session.get_config_variable("region") or "us-east-1")
            fips, dualstack = (session.get_config_variable(f"use_{kind}_endpoint") for kind in ("fips", "dualstack"))
            self._host = f"s3{'-fips' if fips else ''}{'.dualstack' if dualstack else ''}"
            self._verify = session.get_config_variable("ca_bundle") or True
            self._credentials: Credentials | None = session.get_credentials()
        except _NO_KEYS as problem:
            if _passes(problem):
                raise TransientStorageError(f"credentials could not be used: {problem}") from problem
            raise StorageError(f"the settings of AWS cannot be used: {problem}; mend ~/.aws/config") from problem
        self.place = Place(f"S3 at {self.endpoint or 'AWS'}", "AWS_ENDPOINT_URL" if self.endpoint else "AWS_REGION")
        self._who: object = None
        self._regions: dict[str, str] = {}
        """Of buckets that are not in the region of the settings."""
        self._proxies = get_environ_proxies(self.endpoint or "https://s3.amazonaws.com")
        self._sessions: dict[tuple[float, float], URLLib3Session] = {}
        """By how long a connection, and an answer, is waited for."""

    def region(self, bucket: str) -> str:
        """Returns the region of a bucket, as far as it is known."""
        return self._regions.get(bucket, self._region)

    def who(self) -> object:
        """Returns the keys that a request was signed with last; those of the next one if there was none yet."""
        if self._who is None and self._credentials is not None:
            try:
                self._who = self._credentials.get_frozen_credentials()
            except _NO_KEYS as problem:
                # The next request says so.
                return problem
        return self._who

    def answer(self, request: Request, count: Callable[[Kind], None], retry: Retry) -> Response:
        """Makes the request once; again at once if its bucket is in another region. Counted each time."""
        response = self._send(request, count, retry)
        told = ""
        if response.status in (301, 307, 400):
            told = response.headers.get("x-amz-bucket-region") or response.failure()[2]
        if told and told != self.region(request.bucket):
            self._regions[request.bucket] = told
            response = self._send(request, count, retry)
        if response.is_of_s3:
            # Also if it refuses: it is there.
            REACHED.add(self.place)
        if response.is_page or (response.status >= 300 and response.status not in request.answers):
            raise error(self._asked(request), response, time.time())
        return response

    def url(self, request: Request) -> str:
        """Returns where a request goes: the bucket is in the host's name at AWS, and in the path elsewhere.

        So it is in the path where its name has a dot, which no certificate covers.
        """
        if self.endpoint:
            base = f"{self.endpoint}/{request.bucket}"
        else:
            region = self.region(request.bucket)
            host = f"{self._host}.{region}.amazonaws.com{'.cn' if region.startswith('cn-') else ''}"
            base = f"https://{host}/{request.bucket}" if "." in request.bucket else f"https://{request.bucket}.{host}"
        query = "&".join(f"{name}={quote(value, safe='-_.~')}" for name, value in request.params.items())
        return f"{base}/{quote(request.key, safe='/-_.~')}{f'?{query}' if query else ''}"

    def _asked(self, request: Request) -> Asked:
        uri = f"s3://{request.bucket}/{request.key}"
        known = self._credentials is not None, self.place in REACHED
        return Asked(request.what, uri, self.endpoint or "AWS", *known)

    def _send(self, request: Request, count: Callable[[Kind], None], retry: Retry) -> Response:
        try:
            prepared = self._signed(request)
            if request.kind is not None:
                count(request.kind)
            return self._receive(request, prepared, retry)
        except (HTTPError, HTTPClientError, ConnectionError, OSError) as problem:
            if "CERTIFICATE_VERIFY_FAILED" in str(problem):
                raise StorageError(
                    f"{request.what}: the server's certificate is refused: {problem}; check proxies and AWS_CA_BUNDLE"
                ) from problem
            said = f"{type(problem).__name__}: {problem}, at {self.endpoint or 'AWS'}"
            raise TransientStorageError(said) from problem
        except BotoCoreError as problem:
            raise denied(self._asked(request), f"credentials could not be used: {problem}", "ExpiredToken") from problem

    def _signed(self, request: Request) -> AWSPreparedRequest:
        headers = {**request.headers, "Content-Length": str(len(request.data)), "User-Agent": "curate"}
        if payer := os.environ.get("AWS_REQUEST_PAYER"):
            headers["x-amz-request-payer"] = payer
        url = self.url(request)
        asked = AWSRequest(request.method, url, headers, request.data)
        if self._credentials is not None:
            # What is public can be read without.
            S3SigV4Auth(self._keys(request, self._credentials), "s3", self.region(request.bucket)).add_auth(asked)
        return AWSPreparedRequest(request.method, url, HeadersDict(asked.headers.items()), None, True)

    def _keys(self, request: Request, credentials: Credentials) -> ReadOnlyCredentials:
        """Returns what to sign with, renewed by whatever gives it out: STS, single sign-on, the machine."""
        try:
            self._who = found = credentials.get_frozen_credentials()
        except _NO_KEYS as problem:
            said = f"credentials could not be used: {problem}"
            if _passes(problem):
                raise TransientStorageError(said) from problem
            raise denied(self._asked(request), said, "ExpiredToken") from problem
        return found

    def _session(self, retry: Retry, sent_bytes: int) -> URLLib3Session:
        times_s = min(_CONNECT_S, retry.stall_s), retry.silence_s(self.place, sent_bytes)
        found = self._sessions.get(times_s)
        if found is None:
            made = URLLib3Session(self._verify, self._proxies, times_s, _CONNECTIONS)
            found = self._sessions.setdefault(times_s, made)
        return found

    def _receive(self, request: Request, prepared: AWSPreparedRequest, retry: Retry) -> Response:
        """Sends and receives, no slower than the retry's limit."""
        started_s, moved = time.monotonic(), 0

        def progress(size: int) -> None:
            nonlocal moved
            moved += size
            if time.monotonic() - started_s > retry.attempt_s(moved):
                raise TransientStorageError(f"slower than {retry.slow_bytes_per_s:,} bytes a second")

        def pieces() -> Iterator[memoryview]:
            for start in range(0, len(request.data), _PIECE_BYTES):
                yield memoryview(request.data)[start : start + _PIECE_BYTES]
                progress(min(_PIECE_BYTES, len(request.data) - start))

        prepared.body = pieces() if len(request.data) > _PIECE_BYTES else request.data
        answer = self._session(retry, len(request.data)).send(prepared)
        raw, body = answer.raw, []
        try:
            while part := raw.read1(_PIECE_BYTES, decode_content=False):
                body.append(part)
                progress(len(part))
        except BaseException:
            raw.close()
            raise
        raw.release_conn()
        headers = {str(name).lower(): str(value) for name, value in answer.headers.items()}
        expected, found = headers.get("content-length", ""), sum(map(len, body))
        if request.method != "HEAD" and expected.isdigit() and int(expected) != found:
            raise TransientStorageError(f"{found} bytes of an answer arrived, expected {expected}")
        return Response(answer.status_code, headers, b"".join(body))


def _passes(problem: Exception) -> bool:
    """Returns whether what gives out credentials is away or throttled, as a store may be, and has not refused them."""
    if isinstance(problem, ClientError):
        said = problem.response
        status = said.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return may_pass(status, str(said.get("Error", {}).get("Code", "")))
    if isinstance(problem, CredentialRetrievalError):
        return problem.kwargs.get("provider") in _OF_MACHINE
    return isinstance(problem, HTTPClientError | ConnectionError | MetadataRetrievalError)


def _endpoint(session: Session) -> str:
    """Returns the URL of a service that is not AWS itself; empty if none is set."""
    if session.get_config_variable("ignore_configured_endpoint_urls"):
        return ""
    found = ConfiguredEndpointProvider(session.full_config, session.get_scoped_config(), "s3").provide()
    if not found:
        return ""
    split = urlsplit(str(found))
    if split.scheme not in ("http", "https") or not split.netloc or split.query:
        raise StorageError(f"AWS_ENDPOINT_URL is {found!r}; expected a URL such as https://minio.example.com:9000")
    return f"{split.scheme}://{split.netloc}{split.path.rstrip('/')}"
