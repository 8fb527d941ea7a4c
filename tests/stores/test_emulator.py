"""The emulator is as strict as GCS, seen by raw HTTP and by gcsfs itself; if not, the GCS tests would prove nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from typing import Any

import pytest

from tests.support.gcs_emulator import GcsEmulator

UPLOAD = "/upload/storage/v1/b/bucket/o"
OBJECTS = "/storage/v1/b/bucket/o"


class Raw:
    """Plain HTTP, no client library."""

    def __init__(self, emulator: GcsEmulator) -> None:
        self.connection = HTTPConnection(emulator.url.removeprefix("http://"), timeout=10)

    def __call__(self, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, dict[str, str], bytes]:
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        self.connection.request(method, path, body, named)
        response = self.connection.getresponse()
        return response.status, dict(response.headers), response.read()

    def json(self, path: str) -> Any:
        return json.loads(self("GET", path)[2])


@pytest.fixture
def raw(emulator: GcsEmulator) -> Raw:
    return Raw(emulator)


def test_simple_uploads_keep_their_precondition(emulator: GcsEmulator, raw: Raw) -> None:
    """0 means free; a generation means that one; anything else is 412 and changes nothing."""
    create = f"{UPLOAD}?uploadType=media&name=x&ifGenerationMatch="
    assert raw("POST", f"{create}0", b"one")[0] == 200
    assert raw("POST", f"{create}0", b"two")[0] == 412
    generation = emulator.generation("gs://bucket/x")
    assert raw("POST", f"{create}{generation - 1}", b"two")[0] == 412
    assert emulator.objects() == {"gs://bucket/x": b"one"}
    assert raw("POST", f"{create}{generation}", b"two")[0] == 200
    assert emulator.generation("gs://bucket/x") > generation
    assert raw("POST", f"{UPLOAD}?uploadType=media&name=y&ifGenerationMatch=5", b"y")[0] == 412


def start(raw: Raw, name: str = "x") -> str:
    status, headers, _ = raw("POST", f"{UPLOAD}?uploadType=resumable&name={name}&ifGenerationMatch=0", b"{}")
    assert status == 200
    return headers["Location"].partition("/upload")[1] + headers["Location"].partition("/upload")[2]


def test_resumable_uploads_keep_it_at_the_start_and_at_the_end(emulator: GcsEmulator, raw: Raw) -> None:
    """An upload that began on a free name is refused at its last byte if the name was taken meanwhile."""
    session = start(raw)
    emulator.put("gs://bucket/x", b"meanwhile")
    for _ in range(2):
        assert raw("PUT", session, b"data", Content_Range="bytes 0-3/4")[0] == 412
    assert raw("POST", f"{UPLOAD}?uploadType=resumable&name=x&ifGenerationMatch=0", b"{}")[0] == 412
    assert emulator.objects() == {"gs://bucket/x": b"meanwhile"}


def test_resumable_uploads_go_on_where_they_were(emulator: GcsEmulator, raw: Raw) -> None:
    """Chunks, status, repeated chunks, and the answer again after the end."""
    session = start(raw)
    chunk = b"c" * (256 << 10)
    assert raw("PUT", session, Content_Range="bytes */*")[:1] == (308,)
    status, headers, _ = raw("PUT", session, chunk, Content_Range=f"bytes 0-{len(chunk) - 1}/*")
    assert (status, headers["Range"]) == (308, f"bytes=0-{len(chunk) - 1}")
    assert raw("PUT", session, b"x", Content_Range="bytes 999999-999999/1000000")[0] == 400
    assert raw("PUT", session, b"short", Content_Range=f"bytes {len(chunk)}-{len(chunk) + 4}/*")[0] == 400
    end = f"bytes {len(chunk)}-{len(chunk) + 2}/{len(chunk) + 3}"
    done = raw("PUT", session, b"end", Content_Range=end)
    assert done[0] == 200
    assert raw("PUT", session, Content_Range=f"bytes */{len(chunk) + 3}")[2] == done[2]
    assert emulator.objects() == {"gs://bucket/x": chunk + b"end"}
    cancelled = start(raw, "y")
    assert raw("DELETE", cancelled)[0] == 499
    assert raw("PUT", cancelled, b"y", Content_Range="bytes 0-0/1")[0] == 404


def test_deletes_keep_it_too(emulator: GcsEmulator, raw: Raw) -> None:
    """A delete of another generation is 412, of nothing 404."""
    generation = emulator.put("gs://bucket/x", b"x")
    assert raw("DELETE", f"{OBJECTS}/x?ifGenerationMatch={generation - 1}")[0] == 412
    assert raw("DELETE", f"{OBJECTS}/x?ifGenerationMatch={generation}")[0] == 204
    assert raw("DELETE", f"{OBJECTS}/x")[0] == 404


def test_racing_creators_win_once(emulator: GcsEmulator) -> None:
    """The look and the write are one."""

    def create(index: int) -> int:
        return Raw(emulator)("POST", f"{UPLOAD}?uploadType=media&name=x&ifGenerationMatch=0", b"%d" % index)[0]

    with ThreadPoolExecutor(16) as pool:
        assert sorted(pool.map(create, range(48))) == [200] + [412] * 47


def test_reads_are_of_ranges_and_generations(emulator: GcsEmulator, raw: Raw) -> None:
    """206 with its Content-Range, 416 beyond the end, 404 for what was there before."""
    old = emulator.put("gs://bucket/x", b"older")
    new = emulator.put("gs://bucket/x", b"0123456789")
    media = f"{OBJECTS}/x?alt=media"
    assert raw("GET", media)[2] == b"0123456789"
    status, headers, body = raw("GET", media, Range="bytes=2-4")
    assert (status, headers["Content-Range"], body) == (206, "bytes 2-4/10", b"234")
    assert raw("GET", media, Range="bytes=8-99")[2] == raw("GET", media, Range="bytes=-2")[2] == b"89"
    assert raw("GET", media, Range="bytes=10-")[0] == 416
    assert raw("GET", f"{media}&generation={new}")[0] == 200
    assert raw("GET", f"{media}&generation={old}")[0] == 404
    assert raw("GET", f"{OBJECTS}/nothing")[0] == raw("GET", "/storage/v1/b/nowhere/o")[0] == 404
    assert raw.json(f"{OBJECTS}/x")["md5Hash"] == "eB5eJF1ptWaXm4bijSPyxw=="
    assert raw.json(f"{OBJECTS}/x?fields=size,crc32c") == {"size": "10", "crc32c": "KAwGng=="}


def test_lists_come_in_pages(emulator: GcsEmulator, raw: Raw) -> None:
    """Never more than asked for or than 1,000; the token goes on after the last, whatever happened to it."""
    for index in range(1500):
        emulator.put(f"gs://bucket/{index:04}", b"")
    assert len(raw.json(OBJECTS)["items"]) == len(raw.json(f"{OBJECTS}?maxResults=5000")["items"]) == 1000
    names: list[str] = []
    token = ""
    while True:
        page = raw.json(f"{OBJECTS}?prefix=00&maxResults=30{f'&pageToken={token}' if token else ''}")
        names += [item["name"] for item in page["items"]]
        emulator.remove(f"gs://bucket/{names[-1]}")
        token = page.get("nextPageToken", "")
        if not token:
            break
    assert names == [f"{index:04}" for index in range(100)]
    assert raw.json(f"{OBJECTS}?prefix=zz") == {"kind": "storage#objects"}


def test_faults_hit_what_they_are_aimed_at(emulator: GcsEmulator, raw: Raw) -> None:
    """The nth of a kind, so many times, by name; before its effect or after."""
    fault = emulator.fail(operation="put", name="y", nth=2, times=2, status=429, when="after")
    upload = f"{UPLOAD}?uploadType=media&name="
    assert [raw("POST", upload + name, name.encode())[0] for name in ("y1", "x", "y2", "y3", "y4")] == [
        200,
        200,
        429,
        429,
        200,
    ]
    assert (fault.matched, fault.fired) == (4, 2)
    assert len(emulator.objects()) == 5
    assert emulator.counts() == {"list": 0, "get": 0, "put": 5, "delete": 0}
    emulator.fail(operation="put", status=503)
    assert raw("POST", f"{upload}z", b"z")[0] == 503
    assert "gs://bucket/z" not in emulator.objects()
    emulator.fail(reset=True)
    with pytest.raises(ConnectionError):
        raw("GET", OBJECTS)


def test_random_faults_come_from_their_seed() -> None:
    """The same sequence every time."""

    def statuses(seed: int) -> list[int]:
        with GcsEmulator() as emulator:
            emulator.fail_randomly(3, seed=seed, operations=["list"])
            found = []
            for _ in range(60):
                try:
                    found.append(Raw(emulator)("GET", OBJECTS)[0])
                except ConnectionError:
                    found.append(0)
            return found

    assert statuses(1) == statuses(1) != statuses(2)
    assert 10 < len([status for status in statuses(1) if status != 200]) < 30


@pytest.mark.slow
def test_gcsfs_agrees(emulator: GcsEmulator) -> None:
    """gcsfs, as its users call it, in a process of its own: create-only, small and large, and the plain calls."""
    script = """
        import gcsfs
        fs = gcsfs.GCSFileSystem()
        fs.pipe_file("bucket/a/small", b"one", mode="create")
        with fs.open("bucket/a/large", "xb", block_size=2**18) as f:
            f.write(b"x" * 1_000_000)
        for create in (
            lambda: fs.pipe_file("bucket/a/small", b"two", mode="create"),
            lambda: fs.open("bucket/a/large", "xb", block_size=2**18).__exit__(None, None, None),
        ):
            try:
                create()
            except FileExistsError:
                print("refused")
        print(fs.cat_file("bucket/a/small"), fs.cat_file("bucket/a/large", 999_990, None))
        print(sorted(fs.find("bucket")), fs.ls("bucket", detail=False), fs.info("bucket/a/large")["size"])
        fs.rm_file("bucket/a/small")
    """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env=os.environ | emulator.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [
        "refused",
        "refused",
        "b'one' b'xxxxxxxxxx'",
        "['bucket/a/large', 'bucket/a/small'] ['bucket/a'] 1000000",
    ]
    assert emulator.objects() == {"gs://bucket/a/large": b"x" * 1_000_000}


def test_it_is_fast_enough_to_be_used_freely(emulator: GcsEmulator, raw: Raw) -> None:
    """Hundreds of requests a second on one connection: no stall of 40 ms in any of them."""
    emulator.put("gs://bucket/x", b"x" * 10_000)
    started = time.process_time()
    for _ in range(300):
        assert raw("GET", f"{OBJECTS}/x?alt=media")[0] == 200
    assert time.process_time() - started < 3.0
