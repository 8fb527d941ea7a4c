"""A strict, scriptable Google Cloud Storage for tests: the part of the JSON API that curate and gcsfs use, over HTTP.

Written anew rather than put in front of the package `gcp-storage-emulator`, whose gaps are those that matter here: it
knows no preconditions, lists without pages, and reads whatever generation there is. A front could refuse by looking
first, but not atomically with the write behind it, and create-only publishing is all about that moment. Here every
effect, with its precondition, happens under one lock.

What it holds to: 412 for `ifGenerationMatch` on simple uploads, at the start *and* at the completion of resumable ones,
and on deletes; generations that grow and are never reused; 404 for a read of an old generation; checksums, also
compared with those in an upload's metadata; ranges; pages.

    with GcsEmulator() as emulator:
        emulator.fail(operation="put", nth=2, status=503, when="after")
        subprocess.run([...], env=os.environ | emulator.environ)
        assert emulator.objects() == {"gs://bucket/a": b"..."}
"""

from __future__ import annotations

import bisect
import contextlib
import hashlib
import itertools
import json
import re
from base64 import b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import google_crc32c

from tests.support.emulator import Answer as _Answer
from tests.support.emulator import Asked as _Asked
from tests.support.emulator import Bucket, Emulator, Stored, body_of, wanted_range

_BUCKETS = re.compile(r"/storage/v1/b/?")
_BUCKET = re.compile(r"/storage/v1/b/([^/]+)")
_LIST = re.compile(r"/storage/v1/b/([^/]+)/o/?")
_OBJECT = re.compile(r"(?:/download)?/storage/v1/b/([^/]+)/o/([^/]+)")
_UPLOAD = re.compile(r"/upload/storage/v1/b/([^/]+)/o")


@dataclass(slots=True)
class _Upload:
    """A resumable upload in progress, or the answer that it ended with."""

    bucket: str
    name: str
    condition: str | None
    crc32c: str | None
    received: bytearray = field(default_factory=bytearray)
    done: _Answer | None = None


class GcsEmulator(Emulator):
    """Google Cloud Storage on 127.0.0.1 while its block lasts. Contents, counts and faults are reached directly."""

    SCHEME = "gs"

    def __init__(self, buckets: Iterable[str] = ("bucket",)) -> None:
        self._uploads: dict[str, _Upload] = {}
        self._generations = itertools.count(1_700_000_000_000_001)
        super().__init__(buckets)

    @property
    def environ(self) -> dict[str, str]:
        """What a process must have in its environment to use this server as GCS."""
        return {
            "STORAGE_EMULATOR_HOST": self.url,
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
            "NO_GCE_CHECK": "true",
        }

    def put(self, uri: str, content: bytes, encoding: str | None = None) -> int:
        """Writes an object behind everyone's back; returns its generation. `encoding` is its Content-Encoding."""
        bucket, name = self._split(uri)
        with self._lock:
            self._buckets.setdefault(bucket, Bucket())
            generation: int = self._store(bucket, name, content, encoding).generation
            return generation

    # What follows is the server's side.

    def _read(self, handler: BaseHTTPRequestHandler) -> _Asked:
        return _read(handler)

    def _refusal(self, status: int, message: str, reason: str = "backendError") -> _Answer:
        return _refusal(status, message, reason)

    def _effect(self, asked: _Asked) -> _Answer:
        """Does what was asked, in one piece."""
        with self._lock:
            if asked.operation == "bucket":
                return self._bucket(asked)
            if asked.operation == "chunk":
                return self._chunk(asked)
            if asked.bucket not in self._buckets:
                return _refusal(404, "The specified bucket does not exist.", "notFound")
            if asked.operation == "list":
                return self._list(asked)
            if asked.operation == "put":
                return self._upload(asked)
            if asked.operation == "delete":
                return self._delete(asked)
            if asked.operation == "get":
                return self._get(asked)
        return _refusal(501, f"the emulator does not know {asked.method} {asked.path}")

    def _bucket(self, asked: _Asked) -> _Answer:
        name = asked.bucket or json.loads(asked.body or b"{}").get("name", "")
        if asked.method == "POST":
            if name in self._buckets:
                return _refusal(409, "You already own this bucket.", "conflict")
            self._buckets[name] = Bucket()
        if name not in self._buckets:
            return _refusal(404, "The specified bucket does not exist.", "notFound")
        return _json({"kind": "storage#bucket", "name": name, "id": name})

    def _list(self, asked: _Asked) -> _Answer:
        query, held = asked.query, self._buckets[asked.bucket]
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        room = max(1, min(int(query.get("maxResults", 1000)), 1000))
        after = query.get("pageToken")
        at = bisect.bisect_left(held.names, max(prefix, query.get("startOffset", "")))
        if after is not None:
            at = max(at, bisect.bisect_right(held.names, bytes.fromhex(after).decode()))
        items: list[dict[str, object]] = []
        prefixes: list[str] = []
        token, last = None, ""
        for name in itertools.islice(held.names, at, None):
            if not name.startswith(prefix):
                break
            if delimiter and delimiter in name[len(prefix) :]:
                group = prefix + name[len(prefix) :].partition(delimiter)[0] + delimiter
                if prefixes and prefixes[-1] == group:
                    last = name
                    continue
            else:
                group = ""
            # Folders take up room, too.
            if len(items) + len(prefixes) == room:
                token = last.encode().hex()
                break
            last = name
            if group:
                prefixes.append(group)
            else:
                items.append(_resource(asked.bucket, name, held.objects[name]))
        answer: dict[str, object] = {"kind": "storage#objects"}
        if wanted := re.search(r"items\(([^)]*)\)", query.get("fields", "")):
            answer = {}
            items = [{key: item[key] for key in wanted.group(1).split(",") if key in item} for item in items]
        answer |= {"items": items} if items else {}
        answer |= {"prefixes": prefixes} if prefixes else {}
        answer |= {"nextPageToken": token} if token else {}
        return _json(answer)

    def _get(self, asked: _Asked) -> _Answer:
        stored = self._buckets[asked.bucket].objects.get(asked.name)
        if stored is None or asked.query.get("generation", str(stored.generation)) != str(stored.generation):
            return _refusal(404, f"No such object: {asked.bucket}/{asked.name}", "notFound")
        if asked.query.get("alt") != "media":
            return _fields(_resource(asked.bucket, asked.name, stored), asked.query)
        content, size = stored.content, len(stored.content)
        headers = {
            "Content-Type": "application/octet-stream",
            "X-Goog-Generation": str(stored.generation),
            "X-Goog-Hash": f"crc32c={_crc32c(content)},md5={_md5(content)}",
        }
        if stored.encoding:
            headers["Content-Encoding"] = stored.encoding
        wanted = wanted_range(asked.headers.get("Range", ""), size)
        if wanted is None:
            return _Answer(200, content, headers)
        start, stop = wanted
        if stop <= start:
            return _refusal(416, "The requested range cannot be satisfied.", "requestedRangeNotSatisfiable")
        return _Answer(206, content[start:stop], headers | {"Content-Range": f"bytes {start}-{stop - 1}/{size}"})

    def _delete(self, asked: _Asked) -> _Answer:
        stored = self._buckets[asked.bucket].objects.get(asked.name)
        if stored is None:
            return _refusal(404, f"No such object: {asked.bucket}/{asked.name}", "notFound")
        if refused := self._refused(asked.bucket, asked.name, asked.query.get("ifGenerationMatch")):
            return refused
        self._remove(asked.bucket, asked.name)
        return _Answer(204)

    def _upload(self, asked: _Asked) -> _Answer:
        condition = asked.query.get("ifGenerationMatch")
        kind = asked.query.get("uploadType")
        if kind == "media":
            return self._finish(asked, asked.query["name"], condition, asked.body, None)
        if kind == "multipart":
            metadata, content = _parts(asked.headers["Content-Type"], asked.body)
            name = asked.query.get("name") or metadata["name"]
            return self._finish(asked, name, condition, content, metadata.get("crc32c"))
        if kind != "resumable":
            return _refusal(400, f"Unknown uploadType {kind!r}", "invalid")
        metadata = json.loads(asked.body or b"{}")
        name = asked.query.get("name") or metadata["name"]
        if refused := self._refused(asked.bucket, name, condition):
            return refused
        upload_id = f"session-{next(self._generations)}"
        self._uploads[upload_id] = _Upload(asked.bucket, name, condition, metadata.get("crc32c"))
        query = "&".join(f"{key}={quote(value, safe='')}" for key, value in asked.query.items())
        location = f"{self.url}/upload/storage/v1/b/{quote(asked.bucket)}/o?{query}&upload_id={upload_id}"
        return _Answer(200, headers={"Location": location, "X-GUploader-UploadID": upload_id})

    def _chunk(self, asked: _Asked) -> _Answer:
        """Takes a chunk of a resumable upload, or says how far it is. The precondition counts when it is complete."""
        upload = self._uploads.get(asked.query["upload_id"])
        if upload is None:
            return _refusal(404, "No such upload session", "notFound")
        if upload.done is not None:
            return upload.done
        if asked.method == "DELETE":
            del self._uploads[asked.query["upload_id"]]
            return _Answer(499)
        match = re.fullmatch(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)", asked.headers.get("Content-Range", ""))
        if match is None:
            return _refusal(400, "A chunk needs a Content-Range", "invalid")
        first, last, total = match.groups()
        if first is not None:
            if int(last) - int(first) + 1 != len(asked.body) or int(first) > len(upload.received):
                return _refusal(400, f"Chunk {asked.headers['Content-Range']} does not fit", "invalid")
            if (total == "*" or int(last) + 1 < int(total)) and len(asked.body) % (256 << 10):
                return _refusal(400, "A chunk that is not the last must be a multiple of 256 KiB", "invalid")
            upload.received[int(first) :] = asked.body
        if total != "*" and len(upload.received) == int(total):
            content = bytes(upload.received)
            answer = self._finish(asked, upload.name, upload.condition, content, upload.crc32c)
            upload.done, upload.received = answer, bytearray()
            return answer
        held = {"Range": f"bytes=0-{len(upload.received) - 1}"} if upload.received else {}
        return _Answer(308, headers=held)

    def _finish(self, asked: _Asked, name: str, condition: str | None, content: bytes, crc32c: str | None) -> _Answer:
        if refused := self._refused(asked.bucket, name, condition):
            return refused
        if crc32c is not None and crc32c != _crc32c(content):
            return _refusal(400, f'Provided CRC32C "{crc32c}" doesn\'t match "{_crc32c(content)}".', "invalid")
        stored = self._store(asked.bucket, name, content, None)
        return _fields(_resource(asked.bucket, name, stored), asked.query)

    def _refused(self, bucket: str, name: str, condition: str | None) -> _Answer | None:
        if condition is None:
            return None
        stored = self._buckets[bucket].objects.get(name)
        if int(condition) == (stored.generation if stored else 0):
            return None
        return _refusal(412, "At least one of the pre-conditions you specified did not hold.", "conditionNotMet")

    def _store(self, bucket: str, name: str, content: bytes, encoding: str | None) -> Stored:
        return self._keep(bucket, name, Stored(content, next(self._generations), encoding))


def _read(handler: BaseHTTPRequestHandler) -> _Asked:
    """Reads a request whole and finds out what it asks for."""
    split = urlsplit(handler.path)
    query = dict(parse_qsl(split.query, keep_blank_values=True))
    headers = handler.headers
    body = body_of(handler)
    method = str(handler.command)

    def asked(operation: str, bucket: str = "", name: str = "") -> _Asked:
        return _Asked(method, split.path, query, dict(headers.items()), body, operation, unquote(bucket), name)

    if match := _UPLOAD.fullmatch(split.path):
        operation = "chunk" if "upload_id" in query else "put"
        found = query.get("name", "")
        if not found and operation == "put":
            with contextlib.suppress(ValueError, KeyError):
                found = _parts(headers["Content-Type"], body)[0]["name"]
        return asked(operation, match.group(1), found)
    if match := _LIST.fullmatch(split.path):
        return asked("list", match.group(1), query.get("prefix", ""))
    if match := _OBJECT.fullmatch(split.path):
        return asked("delete" if method == "DELETE" else "get", match.group(1), unquote(match.group(2)))
    if match := _BUCKET.fullmatch(split.path):
        return asked("bucket", match.group(1))
    return asked("bucket" if _BUCKETS.fullmatch(split.path) else "unknown")


def _parts(content_type: str, body: bytes) -> tuple[dict[str, Any], bytes]:
    """Returns the metadata and the content of a multipart upload. Raises ValueError."""
    match = re.search(r'boundary="?([^";]+)"?', content_type)
    if match is None:
        raise ValueError(f"no boundary in {content_type!r}")
    line = b"--" + match.group(1).encode()
    # Clients end lines with either; only the breaks around the boundaries are not content.
    head, rest = re.split(rb"\r?\n\r?\n", body.split(line, 1)[1], maxsplit=1)[0:2]
    metadata, rest = re.split(rb"\r?\n" + re.escape(line), rest, maxsplit=1)
    content = re.split(rb"\r?\n\r?\n", rest, maxsplit=1)[1]
    end = content.rindex(b"\n" + line + b"--")
    return json.loads(metadata), content[: end - 1 if b"\r" in head else end]


def _resource(bucket: str, name: str, stored: Stored) -> dict[str, object]:
    resource: dict[str, object] = {
        "kind": "storage#object",
        "id": f"{bucket}/{name}/{stored.generation}",
        "bucket": bucket,
        "name": name,
        "size": str(len(stored.content)),
        "generation": str(stored.generation),
        "metageneration": "1",
        "contentType": "application/octet-stream",
        "timeCreated": "2024-01-01T00:00:00.000Z",
        "updated": "2024-01-01T00:00:00.000Z",
        "md5Hash": _md5(stored.content),
        "crc32c": _crc32c(stored.content),
    }
    return resource | ({"contentEncoding": stored.encoding} if stored.encoding else {})


def _fields(resource: dict[str, object], query: Mapping[str, str]) -> _Answer:
    wanted = query.get("fields")
    return _json({key: resource[key] for key in wanted.split(",") if key in resource} if wanted else resource)


def _json(value: object) -> _Answer:
    return _Answer(200, json.dumps(value).encode(), {"Content-Type": "application/json; charset=UTF-8"})


def _refusal(status: int, message: str, reason: str = "backendError") -> _Answer:
    error = {"code": status, "message": message, "errors": [{"domain": "global", "reason": reason, "message": message}]}
    return _Answer(status, json.dumps({"error": error}).encode(), {"Content-Type": "application/json; charset=UTF-8"})


def _md5(content: bytes) -> str:
    return b64encode(hashlib.md5(content, usedforsecurity=False).digest()).decode()


def _crc32c(content: bytes) -> str:
    return b64encode(google_crc32c.value(content).to_bytes(4, "big")).decode()
