"""Writes with an exchange: killed anywhere, cut short, on several nodes; and run again.

What has been done is not done again: each look at a shard leaves a line in a file, and the lines are counted.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.e2e.harness import (
    Place,
    Zygote,
    balanced,
    job_summary,
    outputs,
    strangers,
    totals,
)

SORTING = "tests/e2e/jobs/sorting.py"
MAPS = 4
INTERRUPTED = 130
QUICKLY_S = 20


def rows(number: int, count: int) -> pa.Table:
    """Returns the rows of an input, of which many are alike."""
    rng = random.Random(number)
    texts = [f"text {rng.randrange(12)} {'x' * rng.randrange(3)}" for _ in range(count)]
    return pa.table({"file": [f"f{number}"] * count, "id": pa.array(range(count), pa.int64()), "text": texts})


def files(count: int = MAPS, size: int = 40) -> dict[str, bytes]:
    """Returns inputs, each of which becomes a map shard."""
    made = {}
    for number in range(count):
        sink = pa.BufferOutputStream()
        pq.write_table(rows(number, size), sink, compression="none")
        made[f"{number}.parquet"] = sink.getvalue().to_pybytes()
    return made


def looks(trace: Path) -> Counter[str]:
    """Returns how often there was a look at rows on their way into an exchange (map) and out of it (reduce)."""
    lines = trace.read_text().splitlines() if trace.exists() else []
    return Counter(line.partition(":")[0] for line in lines)


def unknown(objects: dict[str, bytes]) -> list[str]:
    """Returns the names that the layout of a ledger does not know; those of stages are looked at as outputs are."""
    found = strangers({name: data for name, data in objects.items() if not name.startswith("_curate/stages/")})
    for name in objects:
        if name.startswith("_curate/stages/"):
            inner = name.removeprefix("_curate/stages/").partition("/")[2]
            found += [name] if strangers({inner: b""}) else []
    return [name for name in found if not re.fullmatch(r"_curate/inputs/[0-9a-f]{16}\.parquet", name)]


@dataclass
class Bench:
    """Inputs, and writes of them that leave word in files of their own."""

    place: Place
    folder: Path
    flags: tuple[str, ...] = ()
    inputs: dict[str, bytes] = field(default_factory=files)

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        self.source = self.place.write("in", self.inputs)

    @property
    def scratch(self) -> Path:
        """Where stages are of an output in a bucket."""
        return self.folder / "scratch"

    @property
    def env(self) -> dict[str, str]:
        return self.place.env | {"CURATE_SCRATCH": str(self.scratch)}

    def argv(self, name: str, *flags: str, backend: str = "inline") -> list[str]:
        """Returns the command line of a write."""
        out = f"{self.place.root}/{name}"
        told = [
            SORTING,
            "--backend",
            backend,
            "--input",
            self.source,
            "--output",
            out,
            "--trace",
            str(self.trace(name)),
        ]
        return [*told, *self.flags, *flags]

    def trace(self, name: str) -> Path:
        return self.folder / f"trace-{name}"

    def stage_objects(self, name: str) -> list[str]:
        """Returns what there is of the stages of an output, each relative to the folder of all stages."""
        if self.place.emulator is None:
            top = Path(self.place.root) / name / "_curate" / "stages"
        else:
            top = self.scratch / hashlib.sha256(f"{self.place.root}/{name}".encode()).hexdigest()[:16]
        return sorted(str(path.relative_to(top)) for path in top.rglob("*") if path.is_file())

    def run_files(self, name: str) -> list[str]:
        return [one for one in self.stage_objects(name) if re.fullmatch(r"[0-9a-f]{16}/map-[^/]+", one)]

    def parts(self, name: str) -> set[str]:
        return {one for one in self.place.objects(name) if not one.startswith("_curate/")}


def undone(bench: Bench, name: str, parts: set[str]) -> dict[str, int]:
    """Returns how many looks it takes to finish what is there: one a shard without its output, and one more for each
    stage whose schema is not known. None where all outputs are there."""
    found = bench.parts(name)
    if found == parts:
        return {"map": 0, "reduce": 0}
    maps, stages = len(bench.run_files(name)), bench.stage_objects(name)
    schema = "_curate/schema/output.arrow"
    map_left = MAPS - maps + (not any(one.endswith(f"/{schema}") for one in stages) if maps < MAPS else 0)
    return {"map": map_left, "reduce": len(parts - found) + (schema not in bench.place.objects(name))}


# Killed at every operation


@pytest.mark.parametrize(
    ("when", "step", "flags"),
    [
        ("before", 11, ()),
        ("after", 17, ("--shuffle",)),
        *(
            pytest.param(when, 1, flags, marks=pytest.mark.slow)
            for flags in ((), ("--shuffle",))
            for when in ("before", "after")
        ),
    ],
)
def test_killed_at_every_operation_and_run_again(
    place: Place, tmp_path: Path, when: str, step: int, flags: tuple[str, ...]
) -> None:
    """Before and after each ledger object of the job and of its stage, in maps, between map and reduce, in reduces, in
    the sweep. The rerun ends complete with the same bytes, names and books; it looks at what has no output, and at
    nothing else; afterwards no stage is left, and the run after that finds nothing to do. A seed that was chosen is the
    seed."""
    bench = Bench(place, tmp_path / "bench", flags)
    with Zygote(tmp_path / "zygote", bench.env) as zygote:
        whole = zygote.run(*bench.argv("whole"))
        assert whole.code == 0, whole.err
        expected, kept = place.objects("whole"), totals(whole.json)
        assert balanced(kept["rows"])
        assert not bench.stage_objects("whole")
        parts = bench.parts("whole")
        assert len(parts) > 2
        assert looks(bench.trace("whole")) == {"map": MAPS + 1, "reduce": len(parts) + 1}
        operations = zygote.operations(*bench.argv("count"))
        assert operations > 60
        for number in range(0, operations, step):
            name, where = f"killed-{number}", f"{when} operation {number} of {operations}"
            killed = zygote.run(*bench.argv(name), kill_operation=number, kill_when=when)
            assert killed.code == -9, f"{where}: {killed.code} {killed.err}"
            left = place.objects(name)
            assert not unknown(left), where
            seed = json.loads(left["_curate/job.json"]).get("seed") if "_curate/job.json" in left else None
            if not flags:
                assert set(outputs(left).items()) <= set(outputs(expected).items()), where
            before, expects = looks(bench.trace(name)), undone(bench, name, parts)
            again = zygote.run(*bench.argv(name))
            assert again.code == 0, f"{where}: {again.err}"
            after = place.objects(name)
            assert not unknown(after), where
            assert not bench.stage_objects(name), where
            assert looks(bench.trace(name)) - before == Counter(expects) - Counter(), where
            if flags:
                assert seed is None or json.loads(after["_curate/job.json"])["seed"] == seed, where
                assert set(outputs(left).items()) <= set(outputs(after).items()), where
                assert _sorted_rows(after) == _sorted_rows(expected), where
                continue
            assert outputs(after) == outputs(expected), where
            assert totals(again.json) == kept, where
            assert job_summary(after) == job_summary(expected), where
            if number % 8 == 0:
                calls = zygote.run(*bench.argv(name)).json["storage_calls"]
                assert (calls["list"], calls["put"], calls["delete"]) == (1, 0, 0), f"{where}: {calls}"


def _sorted_rows(objects: dict[str, bytes]) -> list[Any]:
    tables = [pq.read_table(pa.BufferReader(data)) for name, data in objects.items() if name.startswith("part-")]
    return sorted(tuple(row.values()) for row in pa.concat_tables(tables).to_pylist())


@pytest.mark.parametrize("step", [23, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_at_every_operation_of_an_overwrite(local: Place, tmp_path: Path, step: int) -> None:
    """Other rows come out of the same exchange: the maps that were done are not run again, wherever the kill hits, and
    the next overwrite, or run without it once the old job is gone, ends with the new outputs alone."""
    bench = Bench(local, tmp_path / "bench")
    with Zygote(tmp_path / "zygote", bench.env) as zygote:
        assert zygote.run(*bench.argv("whole", "--again")).code == 0
        expected = outputs(local.objects("whole"))
        again = ("--again", "--overwrite")

        def prepared(name: str) -> None:
            ended = zygote.run(*bench.argv(name, "--keep-stages"))
            assert ended.code == 0, ended.err
            assert len(bench.run_files(name)) == MAPS
            bench.trace(name).unlink()

        prepared("count")
        operations = zygote.operations(*bench.argv("count", *again))
        assert looks(bench.trace("count"))["map"] == 0
        for number in range(0, operations, step):
            name, where = f"killed-{number}", f"before operation {number} of {operations}"
            prepared(name)
            killed = zygote.run(*bench.argv(name, *again), kill_operation=number, kill_when="before")
            assert killed.code == -9, f"{where}: {killed.code} {killed.err}"
            assert not unknown(local.objects(name)), where
            left = undone(bench, name, set()) if bench.run_files(name) else {"map": MAPS + 1}
            before = looks(bench.trace(name))
            assert not before["map"], where
            ended = zygote.run(*bench.argv(name, *again))
            assert ended.code == 0, f"{where}: {ended.err}"
            assert outputs(local.objects(name)) == expected, where
            assert not unknown(local.objects(name)), where
            # Killed in the sweep of the job that was complete, the next overwrite makes what it has not kept.
            assert looks(bench.trace(name))["map"] == left["map"], where
