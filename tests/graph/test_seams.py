"""Two seams, one behind the other, in every order: killed at every kind of operation, and with outputs deleted.

What a killed process leaves is what is stored at that moment. So one undisturbed write is enough to have what every
kill of it would leave: the store is copied before each operation that changes it, and a run goes on from the copy.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import curate
from curate.dataset.dataset import Dataset
from curate.exchange import run_file
from curate.graph.entry import run
from curate.job.job import Job
from curate.ledger.summary import RunState, Summary
from curate.objects.record import OutputFormat
from curate.observe.verify import verify
from curate.plan import stages as plan_stages
from curate.resume.options import RunOptions
from curate.storage.faults import Fault
from curate.stores import memory
from curate.stores.memory import MemoryStore
from curate.testing.clock import FakeClock
from curate.testing.stores import faulty_stores
from tests.e2e.jobs.seams import SEAMS, chained
from tests.graph.small import put_inputs, small_limits  # noqa: F401 - a fixture
from tests.support.sweeps import Mode

INPUTS = 2
EVERY = 28
"""Of the kinds of operations of a pair, each of so many is tried; by the next pair, those that come next. There are
thirteen seams, so that those pairs which have one in common begin with other kinds."""
SIDE = "side"
"""An extra output of a job, which is made of what the seam before gives."""
PARTITION = "partition"
"""Outputs in the folders of their values."""
PAIRS = [*itertools.product(SEAMS, repeat=2), *((first, SIDE) for first in SEAMS if first != "limit")]
"""A job's input is not limited, but by who runs it."""
PAIRS += [(first, PARTITION) for first in SEAMS]
_NAME = re.compile(r"(?P<place>out|kept-\d)/(_curate/stages/(?P<stage>[0-9a-f]{16})/)?(?P<rest>.*)")
_numbers = itertools.count()

Stored = dict[str, tuple[bytes, str]]
"""Content and generation of every object, by name."""


class Parted(Job):
    """Rows through a seam, of which those of small `k` are an extra output."""

    version = "1"
    columns = {"id": pa.string(), "k": pa.int64(), "text": pa.string()}  # noqa: RUF012
    through: str = curate.param("sort")
    root: str = curate.param("")

    def build(self, ds: Dataset) -> dict[str, Dataset]:
        ds = chained(ds, (self.through,), self.root)
        small = pc.field("k") < 3
        return {"main": ds.filter(~small, reason="small"), SIDE: ds.filter(small)}


@dataclass
class Watch(Fault):
    """No fault: notes the calls that change something, and what is stored before each."""

    root: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    before: list[Stored] = field(default_factory=list)
    keep: bool = False

    def hits(self, operation: str, uri: str) -> bool:
        if operation in ("publish", "replace", "delete") and uri.startswith(self.root):
            self.calls.append((operation, uri.removeprefix(f"{self.root}/")))
            if self.keep:
                self.before.append(dict(memory._buckets[self.root.removeprefix("memory://")]))
        return False


def what(name: str) -> tuple[str, str, str]:
    """Returns where an object lies, of which stage it is, and what it is."""
    found = _NAME.fullmatch(name)
    assert found is not None, name
    rest = found["rest"]
    if rest.startswith("_side/"):
        kind = "side output"
    elif not rest.startswith("_curate/"):
        kind = "output"
    else:
        kind = re.sub(r"[0-9a-f]{5,}|[0-9TZ.]+-[0-9a-f]+/|\d{5,}", "", rest.removeprefix("_curate/"))
    return found["place"], found["stage"] or "", kind


def is_data(name: str) -> bool:
    """Returns whether an object has rows, and is not of a ledger; those of stages do too."""
    return _NAME.fullmatch(name) is not None and what(name)[2] in ("output", "side output")


@dataclass
class Write:
    """A write through seams, in a bucket of its own."""

    names: tuple[str, ...]
    root: str = field(default_factory=lambda: f"memory://seams-{next(_numbers)}")

    def __post_init__(self) -> None:
        put_inputs(self.root, INPUTS)

    @property
    def stored(self) -> Stored:
        """What is stored now."""
        return dict(memory._buckets[self.root.removeprefix("memory://")])

    @stored.setter
    def stored(self, value: Stored) -> None:
        memory._buckets[self.root.removeprefix("memory://")] = dict(value)

    def run(self, *, keep: bool = False, **options: Any) -> tuple[Summary, Watch]:
        """Runs it, as a process of its own would."""
        run_file.opened.cache_clear()
        watch = Watch(root=self.root, keep=keep)
        given: dict[str, Any] = {"output": f"{self.root}/out", "backend": "inline"} | options
        if self.names[-1] == SIDE:
            job = Parted(through=self.names[0], root=self.root)
            spec, inputs = job.spec(), [f"{self.root}/in"]
        else:
            seams = tuple(name for name in self.names if name != PARTITION)
            ds = chained(curate.read_parquet(f"{self.root}/in"), seams, self.root)
            ds = ds if seams == self.names else ds._partitioned(["k"])
            spec = plan_stages.stage_of(ds._plan, OutputFormat.PARQUET, None)
            inputs = list(spec.inputs)
        with faulty_stores(watch, retry=None):
            ended = run(spec, RunOptions(inputs=tuple(inputs), **given), clock=FakeClock())
        return ended, watch

    def delete(self, name: str) -> None:
        """Removes an object."""
        assert MemoryStore().delete(f"{self.root}/{name}")


def data_of(stored: Stored) -> dict[str, bytes]:
    """Returns all outputs, those of checkpoints and extra ones too."""
    return {name: data for name, (data, _) in stored.items() if is_data(name) and not what(name)[1]}


def summaries(stored: Stored) -> dict[str, Any]:
    """Returns what the job, and each checkpoint, says of itself when it is complete."""
    found = {}
    for name, (data, _) in stored.items():
        if _NAME.fullmatch(name) and what(name)[1:] == ("", "summary.json"):
            value = json.loads(data)
            found[name] = {key: value[key] for key in ("rows", "counters", "shards", "bytes")}
    return found


def kinds(watch: Watch) -> Iterator[tuple[str, int]]:
    """Yields the first call of each kind, and the last one of those that publish or remove rows.

    Heartbeats and events are left out; of stages between the first and the last one, all but that they begin, and their
    first rows.
    """
    stages = list(dict.fromkeys(what(name)[:2] for _, name in watch.calls if what(name)[1]))
    seen: dict[str, list[int]] = {}
    for number, (operation, name) in enumerate(watch.calls):
        place, of, kind = what(name)
        at = stages.index((place, of)) if of else -1
        between = 0 < at < len(stages) - 1
        if (kind.startswith("runs/") and kind != "runs/run.json") or (between and kind not in ("job.json", "output")):
            continue
        calls = seen.setdefault(f"{operation} {place}{f' stage {at}' if of else ''} {kind}", [])
        if not between or not calls:
            calls.append(number)
    for kind, numbers in seen.items():
        yield f"the first {kind}", numbers[0]
        if len(numbers) > 1 and kind.endswith("output"):
            yield f"the last {kind}", numbers[-1]


def undisturbed(names: tuple[str, ...], **options: Any) -> tuple[Write, Watch, Stored]:
    """Writes through seams; returns what was stored before each call, and in the end."""
    write = Write(names)
    ended, watch = write.run(keep=True, **options)
    assert ended.state is RunState.COMPLETE, ended.failures
    assert ended.books.balanced()
    return write, watch, write.stored


def check_resumed(write: Write, left: Stored, whole: Stored, where: str, **options: Any) -> None:
    """Goes on from what is left: the same bytes and books in the end, and what is there is not made again."""
    write.stored = left
    ended, watch = write.run(**options)
    assert ended.state is RunState.COMPLETE, f"{where}: {ended.failures}"
    after = write.stored
    assert data_of(after) == data_of(whole), where
    assert summaries(after) == summaries(whole), where
    if not options.get("keep_stages"):
        assert not [name for name in after if "/_curate/stages/" in name], where
    again = {name for operation, name in watch.calls if operation == "publish" and name in left and is_data(name)}
    # An extra output is published before the main one, which alone says that both are there.
    mains = {re.sub("_side/[^/]+/", "", name) for name in again}
    assert not [name for name in mains if name in left], f"{where}: made again: {sorted(again)}"


def check_killed(write: Write, watch: Watch, whole: Stored, point: tuple[str, int]) -> None:
    """Goes on from what a kill would leave."""
    where, call = point
    check_resumed(write, watch.before[call], whole, f"killed before {where}")


def places(stored: Stored) -> list[str]:
    """Returns where jobs have written: the output, and the checkpoints."""
    return sorted({what(name)[0] for name in stored if _NAME.fullmatch(name)})


def some_outputs(whole: Stored, number: int) -> Iterator[list[str]]:
    """Yields outputs to delete: one of each place, by itself or with its extra one, which it alone says is there."""
    data = sorted(data_of(whole))
    for place in places(whole):
        mains = [name for name in data if what(name)[::2] == (place, "output")]
        name = mains[number % len(mains)]
        sides = [one for one in data if one.startswith(f"{place}/_side/")]
        yield [name]
        if sides:
            yield [name, next(one for one in sides if one.endswith(name.removeprefix(f"{place}/")))]


def check_deleted(write: Write, whole: Stored, gone: list[str]) -> None:
    """Deletes outputs: `verify` says which, and a rerun makes them again, and nothing else."""
    left = {name: data for name, data in whole.items() if name not in gone}
    write.stored = left
    for place in places(whole):
        report = verify(f"{write.root}/{place}")
        told = [finding.object for finding in report.findings if finding.kind == "missing"]
        # Where the main output is gone too, it is that which is missing.
        assert told == [name.removeprefix(f"{place}/") for name in gone[:1] if what(name)[0] == place], gone
    check_resumed(write, left, whole, f"without {gone}")


def check_side_deleted(write: Write, whole: Stored, number: int) -> None:
    """Deletes extra outputs: `verify` says which, and what to do; done as it says, both are made again."""
    for place in places(whole):
        sides = sorted(name for name in data_of(whole) if name.startswith(f"{place}/_side/"))
        if sides:
            side = sides[number % len(sides)]
            write.stored = {name: data for name, data in whole.items() if name != side}
            (found,) = verify(f"{write.root}/{place}").findings
            assert (found.kind, found.object) == ("missing", side.removeprefix(f"{place}/"))
            main = re.sub("_side/[^/]+/", "", side)
            assert (
                f"{main.removeprefix(f'{place}/')} is there, which is published after it; remove that" in found.reason
            )
            left = {name: data for name, data in whole.items() if name not in (side, main)}
            check_resumed(write, left, whole, f"without {side}")


def check_verified(write: Write, whole: Stored) -> None:
    """Nothing of an undisturbed write is foreign or missing; what is added is named."""
    for place in places(whole):
        write.stored = whole
        report = verify(f"{write.root}/{place}")
        assert (report.state, report.findings) == ("ok", []), place
        strangers = ["stranger.parquet", "_side/duplicates/stranger.parquet"]
        for name in strangers:
            MemoryStore().publish(f"{write.root}/{place}/{name}", b"of somebody else")
        report = verify(f"{write.root}/{place}")
        assert (report.state, {one.object for one in report.findings}) == ("damaged", set(strangers)), place


@pytest.mark.ci(12)
@pytest.mark.quick(6)
@pytest.mark.parametrize(
    ("number", "names"),
    [
        pytest.param(number, names, id="-".join(names), marks=[pytest.mark.slow] if number % 5 else [])
        for number, names in enumerate(PAIRS)
    ],
)
def test_killed_and_run_again(number: int, names: tuple[str, ...], mode: Mode) -> None:
    """Killed at one kind of operation, and with an output deleted: the rerun ends with the bytes of an undisturbed
    write, and makes what is missing and nothing else. `verify` names what is missing and what is foreign, an extra
    output too, and nothing that an undisturbed write makes.

    In CI at some kinds of operation, and with an output deleted or an extra one: at all kinds, and with each kind of
    output, by the pairs that a seam is part of.
    """
    write, watch, whole = undisturbed(names)
    check_verified(write, whole)
    points, deleted = list(kinds(watch)), list(some_outputs(whole, number))
    match mode:
        case Mode.QUICK:
            points, deleted = [points[number * 7 % len(points)]], [deleted[number % len(deleted)]]
        case Mode.CI:
            points, deleted = points[number % EVERY :: EVERY], [deleted[number % len(deleted)]][number % 2 :]
    for point in points:
        check_killed(write, watch, whole, point)
    for gone in deleted:
        check_deleted(write, whole, gone)
    if mode is Mode.NIGHTLY or (mode is Mode.CI and number % 2):
        check_side_deleted(write, whole, number)


@pytest.mark.ci(4)
@pytest.mark.quick(3)
@pytest.mark.parametrize("names", PAIRS[::5], ids="-".join)
def test_stages_that_are_kept(names: tuple[str, ...]) -> None:
    """A file of each stage deleted, and an output: a rerun that keeps stages makes those, and nothing else."""
    write, _, whole = undisturbed(names, keep_stages=True)
    stages = {what(name)[:2]: name for name in sorted(whole) if is_data(name) and what(name)[1]}
    gone = [*stages.values(), *next(some_outputs(whole, 1))]
    left = {name: data for name, data in whole.items() if name not in gone}
    check_resumed(write, left, whole, f"without {gone}", keep_stages=True)


@pytest.mark.ci(1)
@pytest.mark.slow
@pytest.mark.quick(1)
@pytest.mark.parametrize("first", [(), ("checkpoint",)])
def test_partitions_killed_at_every_kind_of_operation(first: tuple[str, ...]) -> None:
    """An output of a folder is one shard: what is there is not made again, and what is not there is."""
    write, watch, whole = undisturbed((*first, PARTITION))
    folders = {name.split("/")[1] for name in data_of(whole) if name.startswith("out/")}
    assert folders == {f"k={number}" for number in range(5)}
    check_verified(write, whole)
    for point in kinds(watch):
        check_killed(write, watch, whole, point)
    for gone in some_outputs(whole, 1):
        check_deleted(write, whole, gone)


@pytest.mark.slow
def test_checkpoints_between_deduplications() -> None:
    """A pipeline of six seams, every deduplication between two checkpoints: the same."""
    write, watch, whole = undisturbed(
        ("checkpoint", "dedup_exact", "checkpoint", "dedup_minhash", "checkpoint", "shuffle")
    )
    assert places(whole) == ["kept-0", "kept-2", "kept-4", "out"]
    for point in list(kinds(watch))[::25]:
        check_killed(write, watch, whole, point)
    for gone in some_outputs(whole, 1):
        check_deleted(write, whole, gone)


def test_overwritten_by_a_job_of_one_stage() -> None:
    """What a kill has left of stages, or what was kept of them, goes with the job that had them."""
    first, watch, whole = undisturbed(("sort",), keep_stages=True)
    other, _, expected = undisturbed(("pool",))
    other.root = first.root
    for left in [*(watch.before[call] for _, call in list(kinds(watch))[5::7]), whole]:
        other.stored = left
        ended, _ = other.run(overwrite=True, confirm=lambda _: True)
        assert ended.state is RunState.COMPLETE
        after = other.stored
        assert data_of(after) == data_of(expected)
        assert not [name for name in after if "/_curate/stages/" in name]


def test_a_checkpoint_that_was_removed_as_a_whole() -> None:
    """Is not made again for a complete job, which costs nothing; one that misses outputs is, by the same rerun."""
    write, _, whole = undisturbed(("checkpoint", "sort"))
    left = {name: data for name, data in whole.items() if not name.startswith("kept-0/")}
    write.stored = left
    ended, watch = write.run()
    assert (ended.state, ended.dispatched, watch.calls) == (RunState.COMPLETE, 0, [])
    gone = next(name for name in sorted(whole) if what_is(name) == ("kept-0", "output"))
    check_resumed(write, {name: data for name, data in whole.items() if name != gone}, whole, "without an output of it")


def what_is(name: str) -> tuple[str, str]:
    """Returns where an object lies, and what it is; nothing for an input."""
    return what(name)[::2] if _NAME.fullmatch(name) else ("", "")
