"""Checks that buckets are in the cluster's region, and whether removed objects still cost money."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as Late
from typing import Any

DEADLINE_S = 10.0
"""For the metadata of all buckets: a laptop without credentials looks for a metadata server for long."""

Metadata = Callable[[str], Mapping[str, Any]]
"""Returns the metadata of a bucket, as the JSON API of Cloud Storage gives them."""

_DUAL_REGIONS = {
    "NAM4": ("us-central1", "us-east1"),
    "EUR4": ("europe-north1", "europe-west4"),
    "EUR5": ("europe-west1", "europe-west2"),
    "EUR7": ("europe-west2", "europe-west3"),
    "EUR8": ("europe-west3", "europe-west6"),
    "ASIA1": ("asia-northeast1", "asia-northeast2"),
}
"""The predefined ones, from the table of locations in Cloud Storage's documentation."""


def buckets_of(words: Iterable[str]) -> list[str]:
    """Returns the buckets that a command line names, each once.

    >>> buckets_of(["--input", "gs://a/x/*.gz", "--output=gs://b/y", "/local"])
    ['a', 'b']
    """
    return list(dict.fromkeys(name for word in words for name in re.findall(r"gs://([-_.a-z0-9]+)", word)))


def look_at(names: Iterable[str], metadata: Metadata, deadline_s: float = DEADLINE_S) -> dict[str, Any]:
    """Returns each bucket's metadata, or the exception in its place; those not known in time are a TimeoutError."""
    names = list(names)
    pool = ThreadPoolExecutor(max_workers=max(1, len(names)))
    asked = {name: pool.submit(metadata, name) for name in names}
    found: dict[str, Any] = {}
    for name, future in asked.items():
        try:
            found[name] = future.result(deadline_s)
        except Late:
            found[name] = TimeoutError(f"no answer within {deadline_s:.0f} s")
        except Exception as error:  # noqa: BLE001
            # Whatever it is, it is said: what could not be looked at is no reason to stop.
            found[name] = error
    pool.shutdown(wait=False, cancel_futures=True)
    return found


def fetch(bucket: str) -> Mapping[str, Any]:
    """Returns the metadata of a bucket from Google's servers, or from the emulator that STORAGE_EMULATOR_HOST names."""
    import gcsfs

    found: Mapping[str, Any] = gcsfs.GCSFileSystem().call("GET", "b/{}", bucket, json_out=True)
    return found


def outside(name: str, found: Mapping[str, Any], region: str) -> str | None:
    """Returns why reading a bucket from a region costs egress, or None where it does not.

    >>> outside("b", {"location": "US-CENTRAL2"}, "us-central2")
    >>> outside("b", {"location": "US", "locationType": "multi-region"}, "us-central2")
    'gs://b is in US (multi-region), and the cluster in us-central2: every byte that is read is paid for'
    """
    location = str(found.get("location", ""))
    custom = found.get("customPlacementConfig", {}).get("dataLocations", ())
    regions = {location.lower(), *_DUAL_REGIONS.get(location.upper(), ()), *(one.lower() for one in custom)}
    if region in regions:
        return None
    kind = found.get("locationType", "region")
    return (
        f"gs://{name} is in {location or 'an unknown place'} ({kind}), and the cluster in {region}: "
        "every byte that is read is paid for"
    )


def soft_delete(name: str, found: Mapping[str, Any]) -> str | None:
    """Returns a warning where removed objects are kept, and billed.

    >>> soft_delete("b", {"softDeletePolicy": {"retentionDurationSeconds": "0"}})
    """
    kept_s = int(found.get("softDeletePolicy", {}).get("retentionDurationSeconds", 0))
    if not kept_s:
        return None
    return (
        f"gs://{name} keeps what is removed for {kept_s / 86400:g} days (soft delete): stages that were swept keep "
        f"billing as long; gcloud storage buckets update gs://{name} --clear-soft-delete ends that"
    )


def judge(found: Mapping[str, Any], region: str, *, allow_cross_region: bool) -> tuple[list[str], list[str]]:
    """Returns what is refused, and what is only said, of the buckets that were looked at."""
    refused, said = [], []
    for name, metadata in found.items():
        if isinstance(metadata, Exception):
            said.append(f"could not look at gs://{name} ({_first_line(metadata)}): its region is unknown")
            continue
        if (reason := outside(name, metadata, region)) is not None:
            if allow_cross_region:
                said.append(reason)
            else:
                refused.append(f"{reason}; --allow-cross-region goes on all the same")
        if (warning := soft_delete(name, metadata)) is not None:
            said.append(warning)
    return refused, said


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).strip().splitlines()[0][:200]
