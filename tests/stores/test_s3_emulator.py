"""The emulator is as strict as S3, seen by signed requests and by boto3; if not, the S3 tests would prove little."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from typing import Any

import boto3
import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

from tests.support.s3_emulator import SECRET, SMALLEST_PART, S3Emulator

X = "s3://bucket/x"
Raw = Callable[..., tuple[int, dict[str, str], bytes]]


@pytest.fixture
def raw(s3_emulator: S3Emulator) -> Raw:
    """Plain HTTP, signed; `spoil` may change what is sent after that."""

    def send(
        method: str, path: str, body: bytes = b"", spoil: Callable[[Any], None] | None = None, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        asked = AWSRequest(method, s3_emulator.url + path, named, body)
        S3SigV4Auth(Credentials("a-key", SECRET), "s3", "us-east-1").add_auth(asked)
        sent = {"body": body, "headers": dict(asked.headers.items()), "path": path}
        if spoil is not None:
            spoil(sent)
        connection = HTTPConnection(s3_emulator.url.removeprefix("http://"), timeout=10)
        connection.request(method, sent["path"], sent["body"], sent["headers"])
        response = connection.getresponse()
        return response.status, dict(response.headers), response.read()

    return send


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (lambda sent: sent.update(body=b"bytes"), b"XAmzContentSHA256Mismatch"),
        (lambda sent: sent.update(path="/bucket/y"), b"SignatureDoesNotMatch"),
        (lambda sent: sent["headers"].update({"If-None-Match": "changed"}), b"SignatureDoesNotMatch"),
        (lambda sent: sent["headers"].update({"X-Amz-Date": "20200101T000000Z"}), b"RequestTimeTooSkewed"),
        (lambda sent: sent["headers"].pop("Authorization"), b"AccessDenied"),
    ],
)
def test_what_was_not_signed_is_refused(s3_emulator: S3Emulator, raw: Raw, spoil: Any, code: bytes) -> None:
    """Body, name, headers, time: all of them are part of the signature, and nothing is written without."""
    status, _, body = raw("PUT", "/bucket/x", b"other", spoil, If_None_Match="*")
    assert (status in (400, 403), code in body) == (True, True), body
    assert s3_emulator.objects() == {}


def test_uploads_keep_their_condition(s3_emulator: S3Emulator, raw: Raw) -> None:
    """A star means free; an ETag means that one; 412 changes nothing, 404 says that there is nothing to replace."""
    assert raw("PUT", "/bucket/x", b"one", If_None_Match="*")[0] == 200
    assert raw("PUT", "/bucket/x", b"two", If_None_Match="*")[0] == 412
    assert raw("PUT", "/bucket/x", b"two", If_Match='"0"')[0] == 412
    assert raw("PUT", "/bucket/y", b"two", If_Match='"0"')[0] == 404
    assert raw("PUT", "/bucket/x", b"two", If_None_Match='"etag"')[0] == 501
    assert s3_emulator.objects() == {X: b"one"}
    etag = s3_emulator.generation(X)
    assert etag == hashlib.md5(b"one", usedforsecurity=False).hexdigest()
    assert raw("PUT", "/bucket/x", b"two", If_Match=f'"{etag}"')[0] == 200
    assert s3_emulator.objects() == {X: b"two"}


def _begin(raw: Raw, name: str = "x") -> str:
    body = raw("POST", f"/bucket/{name}?uploads=")[2].decode()
    return body.partition("<UploadId>")[2].partition("</UploadId>")[0]


def _complete(raw: Raw, upload: str, *parts: bytes, **headers: str) -> tuple[int, dict[str, str], bytes]:
    listed = "".join(
        f"<Part><PartNumber>{number}</PartNumber><ETag>{hashlib.md5(part).hexdigest()}</ETag></Part>"
        for number, part in enumerate(parts, 1)
    )
    body = f"<CompleteMultipartUpload>{listed}</CompleteMultipartUpload>".encode()
    return raw("POST", f"/bucket/x?uploadId={upload}", body, **headers)


def test_uploads_in_parts_keep_it_at_their_completion(s3_emulator: S3Emulator, raw: Raw) -> None:
    """An upload that began on a free name is refused at its end if the name was taken meanwhile."""
    upload, part = _begin(raw), b"p" * SMALLEST_PART
    assert raw("PUT", f"/bucket/x?partNumber=1&uploadId={upload}", part)[0] == 200
    assert raw("PUT", f"/bucket/x?partNumber=2&uploadId={upload}", b"end")[0] == 200
    s3_emulator.put(X, b"meanwhile")
    assert _complete(raw, upload, part, b"end", If_None_Match="*")[0] == 412
    assert _complete(raw, upload, part, b"another")[0] == 400
    assert _complete(raw, upload, b"end", part)[0] == 400
    assert s3_emulator.objects() == {X: b"meanwhile"}
    s3_emulator.remove(X)
    assert _complete(raw, upload, part, b"end", If_None_Match="*")[0] == 200
    assert _complete(raw, upload, part, b"end", If_None_Match="*")[0] == 404
    assert s3_emulator.objects() == {X: part + b"end"}
    assert s3_emulator.generation(X).endswith("-2")


def test_parts_have_their_limits(raw: Raw) -> None:
    """5 MiB at least, but for the last; numbers to 10,000; none of an upload that was given up."""
    upload = _begin(raw)
    for number in (1, 2):
        raw("PUT", f"/bucket/x?partNumber={number}&uploadId={upload}", b"small")
    assert b"EntityTooSmall" in _complete(raw, upload, b"small", b"small")[2]
    assert raw("PUT", f"/bucket/x?partNumber=10001&uploadId={upload}", b"x")[0] == 400
    assert raw("PUT", f"/bucket/other?partNumber=1&uploadId={upload}", b"x")[0] == 404
    assert raw("DELETE", f"/bucket/x?uploadId={upload}")[0] == 204
    assert raw("PUT", f"/bucket/x?partNumber=1&uploadId={upload}", b"x")[0] == 404


def test_deletes_and_reads_keep_it_too(s3_emulator: S3Emulator, raw: Raw) -> None:
    """Of another ETag: 412. A delete of nothing is 204, unless it has a condition."""
    etag = s3_emulator.put(X, b"0123456789")
    assert raw("DELETE", "/bucket/x", If_Match='"0"')[0] == raw("GET", "/bucket/x", If_Match='"0"')[0] == 412
    assert raw("GET", "/bucket/x", If_Match=f'"{etag}"', Range="bytes=2-4")[2] == b"234"
    assert raw("GET", "/bucket/x", Range="bytes=-2")[2] == b"89"
    assert raw("GET", "/bucket/x", Range="bytes=10-")[0] == 416
    assert raw("HEAD", "/bucket/x")[1]["Content-Length"] == "10"
    assert raw("DELETE", "/bucket/x", If_Match=f'"{etag}"')[0] == raw("DELETE", "/bucket/x")[0] == 204
    assert raw("DELETE", "/bucket/x", If_Match="*")[0] == raw("GET", "/bucket/x")[0] == 404


def test_racing_creators_win_once(raw: Raw) -> None:
    """The look and the write are one."""
    with ThreadPoolExecutor(16) as pool:
        found = pool.map(lambda index: raw("PUT", "/bucket/x", b"%d" % index, If_None_Match="*")[0], range(48))
        assert sorted(found) == [200] + [412] * 47


@pytest.mark.slow
def test_boto3_agrees(s3_emulator: S3Emulator) -> None:
    """Amazon's own client: create-only, small and in parts, odd names, pages, and the plain calls."""
    config = Config(
        s3={"addressing_style": "path"}, retries={"max_attempts": 0}, request_checksum_calculation="when_required"
    )
    client = boto3.client("s3", endpoint_url=s3_emulator.url, region_name="us-east-1", config=config)
    name = "a b/+%41~ä/😀"
    client.put_object(Bucket="bucket", Key=name, Body=b"one", IfNoneMatch="*")
    with pytest.raises(ClientError, match="PreconditionFailed"):
        client.put_object(Bucket="bucket", Key=name, Body=b"two", IfNoneMatch="*")
    begun = client.create_multipart_upload(Bucket="bucket", Key=name)
    asked = {"Bucket": "bucket", "Key": name, "UploadId": begun["UploadId"]}
    part = client.upload_part(**asked, PartNumber=1, Body=b"three")
    parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    with pytest.raises(ClientError, match="PreconditionFailed"):
        client.complete_multipart_upload(**asked, MultipartUpload=parts, IfNoneMatch="*")
    for index in range(1200):
        s3_emulator.put(f"s3://bucket/many/{index:04}", b"")
    pages = client.get_paginator("list_objects_v2").paginate(Bucket="bucket")
    assert [len(page["Contents"]) for page in pages] == [1000, 201]
    assert client.list_objects_v2(Bucket="bucket", Prefix="a b")["Contents"][0]["Key"] == name
    assert client.get_object(Bucket="bucket", Key=name)["Body"].read() == b"one"
    client.delete_object(Bucket="bucket", Key=name)
    with pytest.raises(ClientError, match="404"):
        client.head_object(Bucket="bucket", Key=name)
