"""Ledgers of runs that were killed, as the version that wrote them left them: `lengths.zip` and `ordered.zip` hold all
objects with their generations, and what that version made of the rest.

They stay as they are, also when what is written changes: what is out there does not change either. `python -m
tests.pins.ledgers NAME` keeps one more, under a name that there is not yet.
"""

from __future__ import annotations

import hashlib
import sys
import zipfile
from itertools import count
from pathlib import Path
from typing import Any

import orjson

from curate.ledger import layout
from curate.storage.faults import Fault
from curate.stores import memory
from curate.stores.faulty import FaultyStore
from curate.stores.open import open_store, wrap_stores
from tests.job.inline import run_job
from tests.pins.jobs import Lengths, Ordered

HERE = Path(__file__).parent
SCRIPT = HERE / "jobs.py"
BUCKET = "pinned"
INPUTS, OUTPUT = f"memory://{BUCKET}/in", f"memory://{BUCKET}/out"
LATER = 1_000_000
"""Generations of what is written after the kill start there."""


class Killed(BaseException):
    """The process is gone at this moment: the store was copied as it was."""


def load(name: str) -> None:
    """Fills the memory store with what was left of a run."""
    memory.clear()
    memory._generations = count(LATER)
    with zipfile.ZipFile(HERE / f"{name}.zip") as archive:
        generations = orjson.loads(archive.read("generations.json"))
        memory._buckets[BUCKET] = {key: (archive.read(f"objects/{key}"), told) for key, told in generations.items()}


def read_expected(name: str) -> dict[str, Any]:
    """Returns what the version that was killed made of the same job when it was not."""
    with zipfile.ZipFile(HERE / f"{name}.zip") as archive:
        expected: dict[str, Any] = orjson.loads(archive.read("expected.json"))
        return expected


def digests(output: str) -> dict[str, str]:
    """Returns a digest of each output by name; the ledger left out."""
    store = open_store(output)
    found = {item.uri[len(output) + 1 :]: store.read(item.uri) for item in store.list(f"{output}/")}
    return {name: hashlib.sha256(data).hexdigest()[:16] for name, data in found.items() if layout.LEDGER not in name}


def write_inputs() -> None:
    """Writes six files of four rows, with a row that is set aside, and one that cannot be done."""
    store = open_store(INPUTS)
    bodies = ["", "ab", "abcd", "text"]
    for number, name in enumerate("abcdef"):
        rows = [{"id": f"r{k}", "n": k * 7 % 10, "body": bodies[k % 4]} for k in range(4 * number, 4 * number + 4)]
        rows[2]["body"] = "odd" if name == "b" else rows[2]["body"]
        store.publish(f"{INPUTS}/{name}.jsonl", b"".join(orjson.dumps(row) + b"\n" for row in rows))
    store.publish(f"{INPUTS}/0-poison.jsonl", b'{"id":"p","n":1,"body":"poison"}\n')


def keep(name: str) -> None:
    """Runs a job whole, then again until it is killed, and keeps what was left and what was to come of it."""
    job = {"lengths": Lengths, "ordered": Ordered}[name]
    memory.clear()
    memory._generations = count(1)
    write_inputs()
    whole = run_job(job(), INPUTS, OUTPUT)
    expected = {"state": whole.state, "rows": whole.books.rows(), "outputs": digests(OUTPUT)}
    memory.clear()
    memory._generations = count(1)
    write_inputs()
    left: dict[str, tuple[bytes, str]] = {}

    def kill() -> BaseException:
        left.update(memory._buckets[BUCKET])
        return Killed()

    if name == "lengths":
        run_job(job(), INPUTS, OUTPUT, limit=3)
    last = Fault("publish", name="out/e.parquet" if name == "lengths" else "out/part-00000", error=kill)
    try:
        with wrap_stores(lambda store: FaultyStore(store, last)):
            run_job(job(), INPUTS, OUTPUT)
    except Killed:
        pass
    outputs = [key for key in left if key.startswith("out/") and "/_" not in key]
    expected["done_when_killed"] = len(outputs)
    with zipfile.ZipFile(HERE / f"{name}.zip", "x", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("generations.json", orjson.dumps({key: told for key, (_, told) in left.items()}))
        archive.writestr("expected.json", orjson.dumps(expected, option=orjson.OPT_INDENT_2))
        for key, (data, _) in sorted(left.items()):
            archive.writestr(f"objects/{key}", data)


if __name__ == "__main__":
    keep(sys.argv[1])
