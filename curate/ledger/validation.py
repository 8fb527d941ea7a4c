"""Validates documents of a ledger before they are used. Pure; the reader decides what follows.

Others may write to an output prefix, so its content is untrusted: every field is checked, and no name may lead out of
the prefix. Missing and unknown fields are accepted here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from curate.ledger import layout
from curate.units import LARGEST

Check = Callable[[Any], bool]

LAST_S = 253_402_300_799.0
"""The last second of the year 9999, since 1970: what calendars can tell."""


def text(value: Any) -> bool:
    """Returns whether a value is text."""
    return isinstance(value, str)


def whole(value: Any) -> bool:
    """Returns whether a value is a whole number that other programs can hold too."""
    # By its type: of events there are a hundred thousand, and what JSON says has no other ones.
    return type(value) is int and -LARGEST <= value <= LARGEST


def count(value: Any) -> bool:
    """Returns whether a value is a number of things."""
    return whole(value) and value >= 0


def number(value: Any) -> bool:
    """Returns whether a value is a number, and no infinite one."""
    return (type(value) is float or type(value) is int) and math.isfinite(value)


def moment(value: Any) -> bool:
    """Returns whether a value is a time in seconds since 1970."""
    return number(value) and -LAST_S <= value <= LAST_S and value > -62_135_596_800.0


def mapping(value: Any) -> bool:
    """Returns whether a value is a JSON object."""
    return type(value) is dict or isinstance(value, Mapping)


def one_part(value: Any) -> bool:
    """Returns whether a value can be one part of a path: the name of something in the folder it is looked for in.

    >>> one_part("0a1b"), one_part(".."), one_part("a/b"), one_part("")
    (True, False, False, False)
    """
    return isinstance(value, str) and re.fullmatch(r"[\w.-]{1,200}", value) is not None and value.strip(".") != ""


def maybe(check: Check) -> Check:
    """Returns a check that takes null too."""
    return lambda value: value is None or check(value)


def many(check: Check) -> Check:
    """Returns a check of each item of an array."""
    return lambda value: isinstance(value, list) and all(map(check, value))


def each(check: Check) -> Check:
    """Returns a check of each value of an object."""
    return lambda value: mapping(value) and all(map(check, value.values()))


def fields(**checks: Check) -> Check:
    """Returns a check of an object: of these fields, those that are there."""
    return lambda value: mapping(value) and not wrong(value, checks)


def having(**checks: Check) -> Check:
    """Returns a check of an object that has all of these fields."""
    return lambda value: mapping(value) and checks.keys() <= value.keys() and not wrong(value, checks)


def wrong(value: Mapping[str, Any], checks: Mapping[str, Check]) -> str:
    """Returns the first field that is there and is not valid; empty if all do."""
    # A loop, no generator: a page of a large job checks a hundred thousand lines.
    for name, check in checks.items():
        if name in value and not check(value[name]):
            return name
    return ""


_IN_QUARANTINE = re.compile(rf"{re.escape(layout.QUARANTINE)}[\w-]+\.jsonl\.zst")
_IN_INPUTS = re.compile(rf"{re.escape(layout.INPUTS)}[\w?-]+\.parquet")


def quarantine(value: Any) -> bool:
    """Returns whether a value names a file of rows that were set aside.

    >>> quarantine("_curate/quarantine/0a1b.jsonl.zst"), quarantine("_curate/quarantine/../job.json")
    (True, False)
    """
    return isinstance(value, str) and _IN_QUARANTINE.fullmatch(value) is not None


rows = having(**{"in": whole, "created": whole, "out": whole, "quarantined": whole, "dropped": each(whole)})
counters = each(maybe(lambda value: isinstance(value, int | float) and not isinstance(value, bool)))
_shards = each(whole)
_failed = having(count=whole, error=text, shard=text)
_stage = lambda value: (  # noqa: E731 - one of the shapes
    having(name=text)(value)
    and (value.get("key") == "" or one_part(value.get("key")))
    and fields(
        reads=many(one_part),
        identity=mapping,
        state=text,
        shards=_shards,
        rows=maybe(rows),
        bytes=each(whole),
        seconds=maybe(number),
    )(value)
)
_earlier_books = having(
    rows=rows,
    counters=counters,
    quarantine=many(
        lambda one: isinstance(one, list) and len(one) == 2 and isinstance(one[0], str) and quarantine(one[1])
    ),
)
_incomplete = many(having(output=text, missing=count, planned=count))
_earlier = lambda value: _earlier_books(value) and fields(metrics=counters)(value)  # noqa: E731 - one of the shapes
_side = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_suffix = re.compile(r"(\.[A-Za-z0-9]+)+")


_FORMATS = ["parquet", "jsonl", "csv", "webdataset", "tfrecords", "numpy"]
_FORMATS += ["memmap", "megatron", "datatrove", "mds", "sink", "run"]
JOB: Mapping[str, Check] = {
    "job": text,
    "fingerprint": text,
    # Where a job that did not yet say them apart says its extra outputs.
    "identity": fields(sides=lambda value: mapping(value) and all(_side.fullmatch(name) for name in value)),
    "parameters": mapping,
    "sides": many(lambda value: isinstance(value, str) and _side.fullmatch(value) is not None),
    "code_digest": text,
    "suffix": lambda value: isinstance(value, str) and _suffix.fullmatch(value) is not None,
    "format": lambda value: value in _FORMATS,
    "codec": text,
    "seed": count,
    "inputs": lambda value: isinstance(value, str) and _IN_INPUTS.fullmatch(value) is not None,
    "stages": many(_stage),
    "extensible": lambda value: isinstance(value, bool),
}


def _segments(value: Any) -> bool:
    """Returns whether a value is ranges of numbers, one after another from 0 on, none empty."""
    pairs = many(lambda one: many(count)(one) and len(one) == 2 and one[0] < one[1])
    return pairs(value) and [one[0] for one in value] == [0, *(one[1] for one in value)][: len(value)]


GROWTH: Mapping[str, Check] = {
    "run_id": one_part,
    "added": count,
    "inputs": JOB["inputs"],
    "segments": _segments,
    "stages": JOB["stages"],
}
SUMMARY: Mapping[str, Check] = {
    "fingerprint": text,
    "run_id": text,
    "shards": _shards,
    "rows": rows,
    "counters": counters,
    "metrics": counters,
    "bytes": each(whole),
    "earlier": maybe(_earlier),
    "stages": many(_stage),
    "incomplete_input": _incomplete,
}
BEAT: Mapping[str, Check] = {
    "run_id": text,
    "job": text,
    "state": text,
    "started": moment,
    "updated": moment,
    "host": text,
    "boot_id": text,
    "pid_space": text,
    "pid": count,
    "pid_started": text,
    "shards": _shards,
    "rows": rows,
    "counters": counters,
    "metrics": counters,
    "bytes": each(whole),
    "storage_calls": each(count),
    "tasks": each(count),
    "rate": having(shards_per_s=number, rows_per_s=number, bytes_per_s=number),
    "eta_seconds": maybe(number),
    "eta_range_seconds": maybe(lambda value: many(number)(value) and len(value) == 2),
    "failures": many(_failed),
    "retrying": many(_failed),
    "rows_running": count,
    "stages": many(_stage),
    "incomplete_input": _incomplete,
    "missing_inputs": lambda value: many(count)(value) and len(value) == 2,
    "last_end": moment,
    "waits_since": moment,
    "no_progress_after_s": number,
}
RUN: Mapping[str, Check] = {
    **{name: BEAT[name] for name in ("run_id", "started", "host", "boot_id", "pid_space", "pid", "pid_started")},
    "command": many(text),
    "cwd": text,
    "user": text,
    "versions": each(text),
    "inputs": many(text),
    "backend": text,
    "origin": maybe(
        fields(**{"class": text, "module": text, "script": text, "parameters": mapping, "settings": mapping})
    ),
}
EVENT: Mapping[str, Check] = {
    "seed": count,
    "time": moment,
    "index": count,
    "outcome": text,
    "run_id": text,
    "shard": text,
    "attempt": whole,
    "task": whole,
    "input": text,
    "kind": text,
    "error": text,
    "frame": text,
    "traceback": text,
    "as": text,
    "node": text,
    "pid": count,
    "seconds": number,
    "peak_bytes": whole,
    "generation": text,
    "over": text,
    "checksum": text,
    "rows": rows,
    "counters": counters,
    "metrics": counters,
}
RECORD: Mapping[str, Check] = {
    "job": text,
    "fingerprint": text,
    "seed": count,
    "shard": text,
    "side": text,
    "rows": rows,
    "counters": counters,
    "quarantine": maybe(quarantine),
}


def outcome(value: Any) -> bool:
    """Returns whether a line of a segment tells how an attempt at a shard ended, and when."""
    return having(time=moment, index=count, outcome=text)(value)


def done(value: Any) -> bool:
    """Returns whether a line of a segment of events tells of a shard that was done."""
    tells = having(index=count, outcome=text, generation=text, rows=rows, counters=counters)
    return tells(value) and fields(metrics=counters)(value) and bool(value["outcome"] == "done")


def failure(value: Any) -> bool:
    """Returns whether a line of a segment of events or failures tells of a try that failed."""
    tells = having(time=moment, index=count, outcome=text, shard=text, attempt=whole, task=whole)
    return tells(value) and value["outcome"] in ("failed", "retry", "copy_failed")


def problem(name: str, value: Mapping[str, Any]) -> str:
    """Returns the field of a JSON file of the ledger that is not valid; empty if all do. `name` is the file's."""
    if layout.growth_number(name) is not None:
        return wrong(value, GROWTH)
    last = name.rpartition("/")[2]
    checks = {"job.json": JOB, "summary.json": SUMMARY, "heartbeat.json": BEAT, "run.json": RUN}.get(last, {})
    return wrong(value, checks)


_ESCAPING = r"(^|/)\.{0,2}(/|$)|[\x00-\x1f\x7f]|^(_curate|_side)/"


def paths_outside(names: Any) -> str | None:
    """Returns the first of these names, an Arrow column, under which no output can lie below the output prefix; None if
    all can. One leads out of it (`..`) or to where the job keeps other things, is no name, or acts on terminals.

    >>> import pyarrow as pa
    >>> paths_outside(pa.array(["a/b..c", "2023/..hidden"])), paths_outside(pa.array(["a", "b/../../c"]))
    (None, 'b/../../c')
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    from curate.ledger.packed import BLOCK_ROWS, plain_paths

    chunks = names.chunks if isinstance(names, pa.ChunkedArray) else [names]
    # A block at a time, which fits the processor's cache: of all at once, it takes four times as long.
    blocks = (one.slice(at, BLOCK_ROWS) for one in chunks for at in range(0, len(one), BLOCK_ROWS))
    if all(one.type == pa.string() and plain_paths(one) for one in blocks):
        return None
    found = pc.index(pc.match_substring_regex(names, _ESCAPING), True).as_py()
    return None if found < 0 else str(names[found].as_py())
