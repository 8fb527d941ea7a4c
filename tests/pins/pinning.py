"""What is pinned of plans and jobs, and how it is written anew: `python -m tests.pins.pinning`, on purpose, in a commit
that says why. An identity that changes makes every output that exists that of another job."""

from __future__ import annotations

import hashlib
import itertools
import os
import tempfile
from pathlib import Path
from typing import Any

import orjson

from curate.dataset.dataset import Dataset
from curate.ledger import layout
from curate.stores import memory
from curate.stores.open import open_store
from tests.pins.plans import PLANS, WRITES, write_inputs

PINS = Path(__file__).parent / "pins.json"
OUTPUT = "memory://pinned/out"


def fresh() -> None:
    """Empties the memory store, and numbers its generations from one: these are part of what exchanges are told by."""
    memory.clear()
    memory._generations = itertools.count(1)
    write_inputs()


def cases() -> dict[str, tuple[str, str]]:
    """Returns all that is pinned by name: a plan, and the format that it is written in."""
    others = {f"{name}, as {format}": (name, format) for format, names in WRITES.items() for name in names}
    return {name: (name, "parquet") for name in PLANS} | others


def pinned(case: str) -> dict[str, Any]:
    """Returns the plan in words, the identity under which it is written, and a digest of each output."""
    fresh()
    name, format = cases()[case]
    dataset = PLANS[name]()
    explained = dataset.explain().splitlines()
    return {"explain": explained, **written(dataset, format)}


def written(dataset: Dataset, format: str) -> dict[str, Any]:
    """Returns the identity of what a dataset is written as, and a digest of each output."""
    summary = getattr(dataset, f"write_{format}")(OUTPUT, backend="inline")
    assert summary.state == "complete", summary
    return ledger(OUTPUT)


def ledger(output: str) -> dict[str, Any]:
    """Returns what the ledger says of the identity of a job and of its stages, and a digest of each output."""
    store = open_store(output)
    job = orjson.loads(store.read(f"{output}/{layout.JOB}"))
    objects = sorted(item.uri for item in store.list(f"{output}/") if f"/{layout.LEDGER}/" not in item.uri)
    return {
        "fingerprint": job["fingerprint"],
        "identity": job["identity"],
        "stages": job.get("stages", []),
        "outputs": {uri[len(output) + 1 :]: hashlib.sha256(store.read(uri)).hexdigest()[:16] for uri in objects},
    }


def read() -> dict[str, Any]:
    """Returns what was pinned."""
    pins: dict[str, Any] = orjson.loads(PINS.read_bytes())
    return pins


def main() -> None:
    """Writes all pins anew."""
    os.environ["CURATE_HOME"] = tempfile.mkdtemp()
    pins = {case: pinned(case) for case in cases()}
    PINS.write_bytes(orjson.dumps(pins, option=orjson.OPT_INDENT_2) + b"\n")


if __name__ == "__main__":
    main()
