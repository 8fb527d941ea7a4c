"""What is paid for because it leaves a region is said before it is moved; nothing is said of what is not known."""

from __future__ import annotations

from http.client import BadStatusLine, IncompleteRead
from pathlib import Path
from typing import Any

import pytest
import structlog

import curate
from curate.requests import regions
from curate.requests.regions import crossings, machine_region, region_of
from curate.stores import gcs
from curate.stores.gcs import GCSStore
from curate.stores.memory import MemoryStore
from curate.stores.s3.store import S3Store
from tests.support.emulator import Answer
from tests.support.gcs_emulator import GcsEmulator
from tests.support.s3_emulator import S3Emulator

IN, OUT = "s3://in", "gs://out"
EAST, WEST = "AWS us-east-1", "GCP us-west1"


@pytest.mark.parametrize(
    ("known", "machine", "said"),
    [
        ({}, "", 0),
        ({IN: EAST}, "", 0),
        ({IN: EAST, OUT: EAST}, EAST, 0),
        ({IN: EAST, OUT: WEST}, "", 1),
        ({IN: EAST, OUT: WEST}, EAST, 1),
        ({IN: EAST, OUT: EAST}, WEST, 2),
        ({OUT: EAST}, WEST, 1),
        ({}, WEST, 0),
    ],
)
def test_only_what_is_known_to_be_elsewhere_is_said(known: dict[str, str], machine: str, said: int) -> None:
    lines = crossings({IN: 5 << 30}, OUT, known, machine)
    assert len(lines) == said
    assert all("5.00 GiB" in line or line.startswith("the output") for line in lines)


def test_a_bucket_says_where_it_is(s3_emulator: S3Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    """At AWS, by a header that also those get who ask elsewhere; of look-alikes nothing is asked."""
    store = S3Store()
    assert region_of("s3://bucket/x", store) == ""
    s3_emulator.regions["bucket"] = "eu-north-1"
    monkeypatch.setattr(type(store.service), "endpoint", property(lambda _: ""))
    assert region_of("s3://bucket", store) == "AWS eu-north-1"
    assert region_of("s3://nowhere", store) == ""
    assert store.calls.as_dict() == {"list": 0, "get": 0, "put": 0, "delete": 0}
    assert region_of("memory://bucket/x", MemoryStore()) == ""


@pytest.mark.parametrize(
    ("bucket", "region"),
    [
        (b'{"location": "US-EAST1", "locationType": "region"}', "GCP us-east1"),
        (b'{"location": "US", "locationType": "multi-region"}', ""),
        (b"{}", ""),
    ],
)
def test_a_bucket_of_google_says_it_too(
    emulator: GcsEmulator, monkeypatch: pytest.MonkeyPatch, bucket: bytes, region: str
) -> None:
    store = GCSStore()
    assert (region_of("gs://bucket", store), len(emulator.requests)) == ("", 0)
    emulator.put("gs://bucket/x", b"")
    store.stat("gs://bucket/x")
    monkeypatch.setattr(emulator, "_bucket", lambda _: Answer(200, bucket))
    monkeypatch.setattr(gcs, "_is_emulated", lambda: False)
    assert region_of("gs://bucket", store) == region


@pytest.mark.parametrize(("vendor", "region"), [("Google\n", WEST), ("Amazon EC2\n", EAST), ("QEMU\n", ""), (None, "")])
def test_a_machine_of_a_cloud_is_asked(monkeypatch: pytest.MonkeyPatch, vendor: str | None, region: str) -> None:
    """Others are not: a look for a server that is not there takes long."""
    asked: list[str] = []

    def read_text(path: Path) -> str:
        if vendor is None:
            raise FileNotFoundError(path)
        return vendor

    def fetch(url: str, *_: Any) -> str:
        asked.append(url)
        return "projects/1/zones/us-west1-b" if "computeMetadata" in url else "us-east-1"

    monkeypatch.setattr(Path, "read_text", read_text)
    monkeypatch.setattr(regions, "_fetch", fetch)
    assert machine_region() == region
    assert bool(asked) == bool(region)


@pytest.mark.parametrize("vendor", ["Google", "Amazon EC2"])
@pytest.mark.parametrize(
    "answer",
    ["", BadStatusLine("SSH-2.0"), IncompleteRead(b"ab"), UnicodeDecodeError("utf-8", b"x", 0, 1, ""), OSError()],
)
def test_what_is_no_metadata_server_knows_no_region(
    monkeypatch: pytest.MonkeyPatch, vendor: str, answer: str | Exception
) -> None:
    """Whatever answers at its address: a run begins all the same."""

    def fetch(*_: Any) -> str:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(Path, "read_text", lambda _: vendor)
    monkeypatch.setattr(regions, "_fetch", fetch)
    assert machine_region() == ""


def test_it_is_said_before_a_run(s3_emulator: S3Emulator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With the bytes and the next step; not again by a run that has nothing to do."""
    s3_emulator.put("s3://bucket/in/a.jsonl", b'{"text": "x"}\n' * 1000)
    monkeypatch.setattr(S3Store, "region", lambda *_: "AWS eu-north-1")
    monkeypatch.setattr("curate.resume.prepare.machine_region", lambda: WEST)
    for said in (1, 0):
        with structlog.testing.capture_logs() as logs:
            curate.read_json("s3://bucket/in/").write_parquet(f"{tmp_path}/out", backend="inline")
        found = [one for one in logs if "are read from" in one["event"]]
        assert len(found) == said
        for one in found:
            assert one["event"] == f"13.7 KiB are read from s3://bucket (AWS eu-north-1) by this machine ({WEST})"
            assert "run where the data is" in one["next"]
