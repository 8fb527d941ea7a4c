"""Every number of a page adds up: to `summary.json`, to the bytes on the disk, and to what DuckDB counts.

The model is walked: a number that nothing here says the value of fails the test.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import orjson
import pytest

from curate.clock import SystemClock
from curate.ledger import layout
from curate.ledger.compression import decompress
from curate.pages.read import read_page
from tests.pages.samples import NOW, failed, finished, staged

Place = tuple[str | int, ...]
OUT = "read_parquet('{}/*.parquet')"
ENDING = {"quarantined": "% 10 = 7", "dropped": "% 10 = 0"}
"""What becomes of the rows whose number has such an end; the others are kept."""


def numbers(value: Any, place: Place = ()) -> Iterator[tuple[Place, int | float]]:
    """Yields the numbers in JSON values, each with its place."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        yield from numbers(inner, (*place, key))
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield place, value


def asked(output: str, what: str, table: str) -> int:
    """Returns a number that DuckDB finds in the inputs, or the outputs, of a job."""
    [(found,)] = duckdb.sql(f"SELECT {what} FROM {table.format(output)}").fetchall()
    return int(found or 0)


def sizes(paths: Iterator[Path]) -> list[int]:
    return [path.stat().st_size for path in sorted(paths)]


class Truth:
    """What the numbers of a job's page are to be, from everything but what makes the page."""

    def __init__(self, output: str) -> None:
        root = Path(output)
        [run] = (root / "_curate" / "runs").iterdir()
        self.output, self.root = output, root
        self.beat = orjson.loads((run / "heartbeat.json").read_bytes())
        lines = [line for path in sorted(run.glob("events-*")) for line in decompress(path.read_bytes()).splitlines()]
        self.events = [orjson.loads(line) for line in lines]
        self.inputs = sizes((root / ".." / "in").glob("*")) if (root / ".." / "in").exists() else []
        self.outputs = sizes(root.glob("*.parquet"))

    def books(self) -> list[dict[str, Any]]:
        """Returns the books of each stage."""
        summary = self.root / layout.SUMMARY
        if summary.exists() and "stages" in (told := orjson.loads(summary.read_bytes())):
            return [
                stage | {"seconds": self.beat["stages"][at].get("seconds")} for at, stage in enumerate(told["stages"])
            ]
        done = [Path(self.output, f"../in/{path.stem}.jsonl") for path in self.root.glob("*.parquet")]
        table = f"read_json({[str(path) for path in done]}, format = 'newline_delimited')"
        rows = {
            "in": asked(self.output, "count(*)", table),
            "created": 0,
            "out": asked(self.output, "count(*)", OUT),
            "dropped": {"each tenth": asked(self.output, f"count(*) FILTER (n {ENDING['dropped']})", table)},
            "quarantined": asked(self.output, f"count(*) FILTER (n {ENDING['quarantined']})", table),
        }
        ends = Counter(event["outcome"] for event in self.events)
        shards = {"total": len(self.inputs), "done": len(self.outputs), "failed": ends["failed"]}
        size = {"in": sum(sizes(iter(done))), "out": sum(self.outputs)}
        seconds = self.beat["updated"] - self.beat["started"]
        return [{"rows": rows, "shards": shards, "bytes": size, "seconds": seconds}]

    def numbers(self) -> dict[Place, Any]:
        """Returns them by place, but for those of the time."""
        books, beat = self.books(), self.beat
        last = books[-1]
        rows = {**books[0]["rows"], "out": last["rows"]["out"]}
        shards, failed = last["shards"], last["shards"]["failed"]
        calls, seconds = beat["storage_calls"], self.seconds()
        slot_s = sum(sum(one["slots"]) for one in beat["times"].values()) if "times" in beat else sum(seconds.values())
        again = [shard for shard, tries in self.tries().items() if tries > 1]
        done_again = sum(event["outcome"] == "done" and event["shard"] in again for event in self.events)
        head = {
            "shards": {**dict.fromkeys(("running", "pending", "stale"), 0), "failed": failed, "total": shards["total"]}
            | {"done": shards["done"]},
            "rows": rows,
            "counters": {"half": rows["out"] / 2} if self.inputs else {},
            "bytes_in": books[0]["bytes"]["in"],
            "bytes_total": sum(self.inputs) or books[0]["bytes"]["in"],
            "bytes_out": sum(self.outputs),
        }
        told = {
            "made": NOW,
            "head": head,
            "books": [self.of_stage(one) for one in books],
            "bad_rows": [{"line": 0}] * rows["quarantined"],
            "shards": {
                "per_cell": 1,
                "total": shards["total"],
                "counts": {"done": shards["done"] - done_again, "retried": done_again, "failed": failed, "pending": 0},
            },
            "longest": [{"seconds": round(one, 3), "tries": self.tries()[shard], "bytes": self.size(shard)}
                        for shard, one in sorted(seconds.items(), key=lambda one: -one[1])],
            "failures": [{"shards": failed, "tries": self.tries()[shard], **self.when(shard)} for shard in again],
            "lineage": {"inputs": len(self.inputs), "bytes": sum(self.inputs)},
            "runs": [{"started": beat["started"], "updated": beat["updated"], "done": beat["shards"]["done"],
                      "tries": len(self.events), "calls": calls}],
            "costs": {"slot_hours": round(slot_s / 3600, 6), "requests": calls},
            "more_failures": 0,
            "earlier_runs": 0,
        }  # fmt: skip
        return dict(numbers(told))

    def of_stage(self, one: dict[str, Any]) -> dict[str, Any]:
        rows, shards = one["rows"], one["shards"]
        dropped = [[reason, count] for reason, count in sorted(rows["dropped"].items(), key=lambda own: -own[1])]
        return {
            "shards": shards["total"], "done": shards["done"], "failed": shards["failed"], "rows_in": rows["in"],
            "created": rows["created"], "rows_out": rows["out"], "dropped": dropped, "quarantined": rows["quarantined"],
            "bytes_in": one["bytes"]["in"], "bytes_out": one["bytes"]["out"], "seconds": one["seconds"],
        }  # fmt: skip

    def tries(self) -> Counter[str]:
        return Counter(event["shard"] for event in self.events)

    def seconds(self) -> dict[str, float]:
        """Returns the seconds of each shard, all tries together, of those in the plan's order."""
        found: dict[str, float] = dict.fromkeys(sorted(self.tries()), 0.0)
        for event in self.events:
            found[event["shard"]] += event["seconds"]
        return found

    def size(self, shard: str) -> int:
        path = self.root / ".." / "in" / f"{shard}.jsonl"
        # Those of a later stage are ranges of run files, which are gone.
        return path.stat().st_size if path.exists() else -1

    def when(self, shard: str) -> dict[str, float]:
        times = [event["time"] for event in self.events if event["shard"] == shard]
        return {"first": min(times), "last": max(times)}


ROUNDED = {("costs", "slot_hours"): 1.1e-6}
"""What is rounded when it is summed: sums in another order may differ in the last digit."""
MADE = {
    "finished": lambda folder: finished(folder, SystemClock()),
    "failed": lambda folder: failed(folder, SystemClock()),
    "staged": staged,
}
"""By a clock that goes on while shards are at work."""


@pytest.mark.usefixtures("no_backoff")
@pytest.mark.parametrize("name", MADE)
def test_every_number_of_a_page(tmp_path: Path, name: str) -> None:
    output = MADE[name](tmp_path)
    truth = Truth(output)
    expected = truth.numbers()
    model = orjson.loads(orjson.dumps(read_page(output, NOW).as_dict()))
    time = model.pop("time")
    found = dict(numbers(model))
    assert found.keys() == expected.keys()
    later = {place for place, value in expected.items() if value == -1}
    wrong = {
        place: (value, expected[place])
        for place, value in found.items()
        if place not in later
        and not math.isclose(value, expected[place], rel_tol=1e-9, abs_tol=ROUNDED.get(place, 1e-9))
    }
    assert wrong == {}
    # Those of the last stage read what came out of the one before.
    assert sum(found[place] for place in later) in (0, truth.books()[-1]["bytes"]["in"])
    add_up(time, truth, found["costs", "slot_hours"] * 3600)


def add_up(time: dict[str, Any], truth: Truth, slot_s: float) -> None:
    """Looks at the numbers over time: each is a part of a sum that is known."""
    span_s, beat = time["span_s"], truth.beat
    books = truth.books()
    sums = {
        "slots": slot_s / span_s,
        "rows_per_s": sum(one["rows"]["in"] for one in books) / span_s,
        "bytes_per_s": sum(one["bytes"]["in"] for one in books) / span_s,
        "retried": sum(event["outcome"] == "retry" for event in truth.events),
        "failed": sum(event["outcome"] == "failed" for event in truth.events),
        "lost": 0,
    }
    places = {place[0] for place, _ in numbers(time)} - {"stages"}
    assert places == {*sums, "start", "span_s"}
    assert time["start"] == beat["started"]
    assert time["start"] + 160 * span_s == pytest.approx(max(beat["updated"], beat["started"] + 1.0), abs=0.2)
    for name, total in sums.items():
        assert len(time[name]) == 160
        assert sum(time[name]) == pytest.approx(total, rel=0.05, abs=0.05 * 160), name
    begin = time["start"]
    for one in time["stages"]:
        assert begin <= one["start"] <= one["end"] <= time["start"] + 160 * span_s + 1e-6
        begin = one["start"]
