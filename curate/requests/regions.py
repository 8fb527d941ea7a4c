"""Where buckets and this machine are, as far as that is known without cost: bytes that leave a region are paid for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from curate.units import format_bytes

_TIMEOUT_S = 1.0


def region_of(uri: str, store: object) -> str:
    """Returns where the bucket of a URI is, as "AWS eu-north-1"; empty if that is not known. At most one request."""
    look = getattr(store, "region", None)
    return str(look(uri)) if look is not None else ""


def machine_region() -> str:
    """Returns where this machine is; empty if it is in no cloud that is known here."""
    from http.client import HTTPException

    # Asked of the hardware first: elsewhere the metadata servers are not there, and a look takes long.
    try:
        vendor = Path("/sys/class/dmi/id/sys_vendor").read_text()
    except OSError:
        return ""
    try:
        if "Amazon" in vendor:
            base = "http://169.254.169.254/latest"
            token = _fetch(f"{base}/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "60"}, "PUT")
            region = _fetch(f"{base}/meta-data/placement/region", {"X-aws-ec2-metadata-token": token})
            return f"AWS {region}" if region else ""
        if "Google" in vendor:
            url = "http://169.254.169.254/computeMetadata/v1/instance/zone"
            zone = _fetch(url, {"Metadata-Flavor": "Google"}).rpartition("/")[2]
            region = zone.rpartition("-")[0]
            return f"GCP {region}" if region else ""
    except (OSError, HTTPException, ValueError):
        pass  # whatever answers there is no metadata server
    return ""


def crossings(read_bytes: Mapping[str, int], output: str, regions: Mapping[str, str], machine: str) -> list[str]:
    """Returns what a run would move between regions, a line each; nothing of a place that is not known.

    `read_bytes` has the bytes that are read of each bucket, `regions` where buckets are.

    >>> crossings({"s3://in": 3 << 30}, "s3://out", {"s3://in": "AWS eu-north-1", "s3://out": "AWS us-east-1"}, "")
    ['3.00 GiB are read from s3://in (AWS eu-north-1), and the output s3://out is in AWS us-east-1']
    >>> crossings({"s3://in": 3 << 30}, "/disk", {"s3://in": "AWS eu-north-1"}, "GCP us-east1")
    ['3.00 GiB are read from s3://in (AWS eu-north-1) by this machine (GCP us-east1)']
    """
    target, lines = regions.get(output, ""), []
    for bucket, size in read_bytes.items():
        source, what = regions.get(bucket, ""), f"{format_bytes(size)} are read from {bucket}"
        if source and machine and source != machine:
            lines.append(f"{what} ({source}) by this machine ({machine})")
        elif source and target and source != target and not machine:
            lines.append(f"{what} ({source}), and the output {output} is in {target}")
    if target and machine and target != machine:
        lines.append(f"the output {output} ({target}) is written by this machine ({machine})")
    return lines


def _fetch(url: str, headers: Mapping[str, str], method: str = "GET") -> str:
    import urllib.request

    request = urllib.request.Request(url, headers=dict(headers), method=method)
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=_TIMEOUT_S) as answer:
        return str(answer.read(1000).decode())
