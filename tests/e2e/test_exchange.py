"""Writes with an exchange: killed anywhere, cut short, on several nodes; and run again.

What has been done is not done again: each look at a shard leaves a line in a file, and the lines are counted.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.harness import (
    Driver,
    Ended,
    Place,
    Zygote,
    alive,
    balanced,
    check_same,
    files_below,
    outputs,
    run,
    strangers,
    totals,
    wait_until,
    workers,
)
from tests.support.sweeps import Sweep

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
        return sorted(str(path.relative_to(top)) for path in files_below(top))

    def run_files(self, name: str) -> list[str]:
        return [one for one in self.stage_objects(name) if re.fullmatch(r"[0-9a-f]{16}/map-[^/]+", one)]

    def parts(self, name: str) -> set[str]:
        return {one for one in self.place.objects(name) if not one.startswith("_curate/")}


SCHEMA = "_curate/schema/output.arrow"


def undone(bench: Bench, name: str, parts: set[str]) -> dict[str, int]:
    """Returns how many looks it takes to finish what is there: one a shard without its output, and one more for each
    stage whose schema is not known. None where all outputs are there."""
    found = bench.parts(name)
    if found == parts:
        return {"map": 0, "reduce": 0}
    maps, stages = len(bench.run_files(name)), bench.stage_objects(name)
    map_left = MAPS - maps + (not any(one.endswith(f"/{SCHEMA}") for one in stages) if maps < MAPS else 0)
    return {"map": map_left, "reduce": len(parts - found) + (SCHEMA not in bench.place.objects(name))}


# Killed at every operation


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "flags"),
    [
        ("local", ()),
        pytest.param("gcs", ("--shuffle",), marks=pytest.mark.slow),
        pytest.param("local", ("--shuffle",), marks=[pytest.mark.slow, pytest.mark.nightly]),
        pytest.param("gcs", (), marks=[pytest.mark.slow, pytest.mark.nightly]),
    ],
    indirect=["place"],
)
def test_killed_at_every_operation_and_run_again(
    place: Place, sweep: Sweep, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    """Before each ledger object of the job and of its stage, in maps, between map and reduce, in reduces, in
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
        assert len(operations) > 60
        for at, number in enumerate(sweep(operations, 4)):
            name, where = f"killed-{number}", f"before operation {number}, {operations[number]}"
            killed = zygote.run(*bench.argv(name), kill_operation=number, kill_when="before")
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
            check_same(after, expected, where)
            assert totals(again.json) == kept, where
            if at % 4 == 0:
                calls = zygote.run(*bench.argv(name)).json["storage_calls"]
                assert (calls["list"], calls["put"], calls["delete"]) == (1, 0, 0), f"{where}: {calls}"


def _sorted_rows(objects: dict[str, bytes]) -> list[Any]:
    tables = [pq.read_table(pa.BufferReader(data)) for name, data in objects.items() if name.startswith("part-")]
    return sorted(tuple(row.values()) for row in pa.concat_tables(tables).to_pylist())


@pytest.mark.slow
def test_killed_at_every_operation_of_an_overwrite(local: Place, sweep: Sweep, tmp_path: Path) -> None:
    """Other rows come out of the same exchange: the maps that were done are not run again, wherever the kill hits, and
    the next overwrite, or run without it once the old job is gone, ends with the new outputs alone."""
    bench = Bench(local, tmp_path / "bench")
    with Zygote(tmp_path / "zygote", bench.env) as zygote:
        assert zygote.run(*bench.argv("whole", "--again")).code == 0
        expected = outputs(local.objects("whole"))
        again = ("--again", "--overwrite")

        ended = zygote.run(*bench.argv("old", "--keep-stages"))
        assert ended.code == 0, ended.err
        assert len(bench.run_files("old")) == MAPS

        def prepared(name: str) -> None:
            shutil.copytree(f"{local.root}/old", f"{local.root}/{name}")

        prepared("count")
        operations = zygote.operations(*bench.argv("count", *again))
        assert looks(bench.trace("count"))["map"] == 0
        for number in sweep(operations, 8):
            name, where = f"killed-{number}", f"before operation {number}, {operations[number]}"
            prepared(name)
            killed = zygote.run(*bench.argv(name, *again), kill_operation=number, kill_when="before")
            assert killed.code == -9, f"{where}: {killed.code} {killed.err}"
            assert not unknown(local.objects(name)), where
            if bench.run_files(name):
                left = undone(bench, name, set())["map"]
            else:
                left = MAPS + (not any(one.endswith(SCHEMA) for one in bench.stage_objects(name)))
            before = looks(bench.trace(name))
            assert not before["map"], where
            ended = zygote.run(*bench.argv(name, *again))
            assert ended.code == 0, f"{where}: {ended.err}"
            assert outputs(local.objects(name)) == expected, where
            assert not unknown(local.objects(name)), where
            # Killed in the sweep of the job that was complete, the next overwrite makes what it has not kept.
            assert looks(bench.trace(name))["map"] == left, where


# Interrupted


def on_each_backend(ray: str = "") -> list[Any]:
    """Returns backends, each with maps and with reduces; on Ray, with one of them, if any, but for the night."""
    pairs = [(backend, what) for backend in ("inline", "local", "ray") for what in ("map", "reduce")]
    marks = [
        [pytest.mark.ray_lane] * (backend == "ray") + [pytest.mark.nightly] * (backend == "ray" and what != ray)
        for backend, what in pairs
    ]
    return [pytest.param(*pair, marks=some) for pair, some in zip(pairs, marks, strict=True)]


@pytest.mark.slow
class TestSignals:
    """SIGINT and SIGTERM in a stage before the last one, and between two stages. What else they do on Ray, but for the
    night: test_signals.py."""

    @pytest.fixture(params=["inline", "local", pytest.param("ray", marks=[pytest.mark.ray_lane, pytest.mark.nightly])])
    def backend(self, request: pytest.FixtureRequest) -> str:
        found: str = request.param
        return found

    @pytest.fixture
    def bench(self, local: Place, tmp_path: Path) -> Bench:
        return Bench(local, tmp_path / "bench")

    def start(self, bench: Bench, backend: str, what: str = "map") -> Driver:
        """Returns a write that waits in its maps, or in its reduces, after a look at a schema."""
        hold = bench.folder / "hold"
        (bench.folder / f"hold-{what}").write_text("1")
        argv = bench.argv("out", "--hold", str(hold), "--max-in-flight", "1", backend=backend)
        return Driver(argv, bench.env, errors=bench.folder / "errors")

    def release(self, bench: Bench) -> None:
        for path in bench.folder.glob("hold-*"):
            path.unlink()

    def check(self, bench: Bench, ended: Ended) -> None:
        """Checks how it ended, and that the next run makes what an undisturbed one does."""
        assert ended.code == INTERRUPTED, ended.err
        assert "Traceback" not in ended.err
        if ended.out:
            assert ended.json["state"] == "interrupted"
        else:
            assert "run it again to resume" in ended.err
        self.release(bench)
        before, maps = looks(bench.trace("out")), len(bench.run_files("out"))
        again = run(*bench.argv("out"))
        assert again.code == 0, again.err
        assert (looks(bench.trace("out")) - before)["map"] <= MAPS - maps + 1
        assert run(*bench.argv("whole")).code == 0
        assert outputs(bench.place.objects("out")) == outputs(bench.place.objects("whole"))
        assert not unknown(bench.place.objects("out"))

    def begun(self, bench: Bench, driver: Driver, what: str) -> None:
        """Waits until a shard was begun, by a task and not by a look at the first rows."""

        def found() -> bool:
            assert driver.running(), driver.end()
            return looks(bench.trace("out"))[what] > 1

        wait_until(found, f"a {what} begins")

    @pytest.mark.ci(2)
    @pytest.mark.parametrize(("backend", "what"), on_each_backend())
    def test_twice(self, bench: Bench, backend: str, what: str) -> None:
        """What runs is cancelled."""
        with self.start(bench, backend, what) as driver:
            self.begun(bench, driver, what)
            driver.signal(signal.SIGINT)
            driver.wait_for_word("interrupt again to cancel them")
            driver.signal(signal.SIGINT)
            ended = driver.end(QUICKLY_S)
            driver.wait_for_children()
        self.check(bench, ended)

    def test_once(self, bench: Bench, backend: str) -> None:
        """What runs may end; the next stage does not begin."""
        with self.start(bench, backend) as driver:
            self.begun(bench, driver, "map")
            driver.signal(signal.SIGINT)
            driver.wait_for_word("interrupt again to cancel them")
            self.release(bench)
            ended = driver.end(QUICKLY_S)
        assert not looks(bench.trace("out"))["reduce"]
        self.check(bench, ended)

    @pytest.mark.parametrize(("backend", "what"), on_each_backend(ray="reduce"))
    def test_terminated(self, bench: Bench, backend: str, what: str) -> None:
        """It is gone at once; `ray job stop` kills three seconds later."""
        with self.start(bench, backend, what) as driver:
            self.begun(bench, driver, what)
            driver.signal(signal.SIGTERM)
            ended = driver.end(QUICKLY_S)
            driver.wait_for_children()
        self.check(bench, ended)

    def test_while_the_last_map_runs(self, bench: Bench) -> None:
        """All of the stage is done, and still the next one does not begin: the user wants to stop."""
        code = (
            "import os, signal, sys, runpy\n"
            "from curate.driver import stage_run\n"
            "original = stage_run._Run._conclude\n"
            "def conclude(self):\n"
            "    os.kill(os.getpid(), signal.SIGINT)\n"
            "    return original(self)\n"
            "stage_run._Run._conclude = conclude\n"
            f"sys.argv = {bench.argv('out')!r}\n"
            "runpy.run_path(sys.argv[0], run_name='__main__')\n"
        )
        with Driver(["-c", code], bench.env) as driver:
            ended = driver.end(QUICKLY_S)
        assert len(bench.run_files("out")) == MAPS
        assert not looks(bench.trace("out"))["reduce"]
        assert ended.json["stages"][0]["state"] == "complete"
        self.check(bench, ended)

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_between_two_stages(self, bench: Bench, number: signal.Signals) -> None:
        """While the outputs are planned."""
        code = (
            "import os, signal, sys, runpy, time\n"
            "from curate.graph import upstream\n"
            "def outputs(*_):\n"
            f"    os.kill(os.getpid(), signal.{number.name})\n"
            "    time.sleep(60)\n"
            "upstream.outputs_of = outputs\n"
            f"sys.argv = {bench.argv('out')!r}\n"
            "runpy.run_path(sys.argv[0], run_name='__main__')\n"
        )
        with Driver(["-c", code], bench.env) as driver:
            ended = driver.end(QUICKLY_S)
        assert len(bench.run_files("out")) == MAPS
        self.check(bench, ended)


# Two drivers


@pytest.mark.ci(2)
@pytest.mark.slow
def test_two_drivers_at_once(place: Place, tmp_path: Path) -> None:
    """Both say complete, with the bytes of one alone, though one of them sweeps the stages that the other reads."""
    bench = Bench(place, tmp_path / "bench")
    with Zygote(tmp_path / "one", bench.env) as one, Zygote(tmp_path / "two", bench.env) as two:
        assert one.run(*bench.argv("whole")).code == 0
        with ThreadPoolExecutor(2) as pool:
            for number in range(4):
                argv = bench.argv(f"out-{number}", "--allow-concurrent")
                ended = list(pool.map(lambda zygote, argv=argv: zygote.run(*argv), (one, two)))
                assert [each.code for each in ended] == [0, 0], "\n".join(each.err for each in ended)
                assert outputs(place.objects(f"out-{number}")) == outputs(place.objects("whole"))
                last = one.run(*bench.argv(f"out-{number}"))
                assert (last.code, last.json["tasks"]["attempts"]) == (0, 0)
                assert not bench.stage_objects(f"out-{number}")


@pytest.mark.slow
@pytest.mark.parametrize("what", ["map", "reduce"])
def test_a_second_driver_stops(local: Place, tmp_path: Path, what: str) -> None:
    """The first one is at work on a stage: the second says so, and how to help; overwriting is refused."""
    bench = Bench(local, tmp_path / "bench")
    hold = tmp_path / "hold"
    Path(f"{hold}-{what}").touch()
    with Driver(bench.argv("out", "--hold", str(hold)), bench.env) as driver:
        wait_until(lambda: looks(bench.trace("out"))[what] > 0, "it begins")
        second = run(*bench.argv("out"))
        assert second.code == 2
        assert "another driver is running" in second.err
        assert "--allow-concurrent" in second.err
        third = run(*bench.argv("out", "--overwrite", "--again"))
        assert third.code == 2
        assert "--overwrite would remove what it makes" in third.err
        Path(f"{hold}-{what}").unlink()
        assert driver.end().code == 0


# On Ray


LARGE = {f"{number}.parquet": data for number, data in enumerate(files(8, 4000).values())}
RAY = {"RAY_ADDRESS": "local", "SORTING_BYTES": str(64 << 10)}


@dataclass
class Large(Bench):
    """More input, on Ray."""

    inputs: dict[str, bytes] = field(default_factory=lambda: dict(LARGE))

    @property
    def env(self) -> dict[str, str]:
        return super().env | RAY

    def trace_by_process(self, name: str) -> Counter[str]:
        return looks(self.trace(name))


@pytest.mark.slow
@pytest.mark.ray_lane
@pytest.mark.parametrize(
    ("place", "what", "shuffled"),
    [
        ("gcs", "reduce", False),
        pytest.param("local", "map", True, marks=pytest.mark.nightly),
        pytest.param("local", "reduce", True, marks=pytest.mark.nightly),
        pytest.param("gcs", "map", False, marks=pytest.mark.nightly),
    ],
    indirect=["place"],
)
def test_the_driver_is_killed(place: Place, tmp_path: Path, what: str, shuffled: bool) -> None:
    """In the middle of the maps, or of the outputs: nothing that was finished is run again, and the bytes are the
    same."""
    flags = ("--shuffle",) if shuffled else ()
    bench = Large(place, tmp_path / "bench", flags)
    hold = tmp_path / "hold"
    Path(f"{hold}-{what}").write_text("4")
    made_of = {"map": bench.run_files, "reduce": bench.parts}[what]
    with Driver(bench.argv("out", "--hold", str(hold), "--max-in-flight", "2", backend="ray"), bench.env) as driver:
        wait_until(lambda: looks(bench.trace("out"))[what] == 6 and made_of("out"), f"{what}s are made, two wait")
        driver.signal(signal.SIGKILL)
        driver.end()
        driver.wait_for_children()
    Path(f"{hold}-{what}").unlink()
    made, parts, before = len(bench.run_files("out")), bench.parts("out"), looks(bench.trace("out"))
    assert (0 < made < 8) if what == "map" else (made == 8 and parts)
    ended = run(*bench.argv("out", backend="ray"), env=bench.env)
    assert ended.code == 0, ended.err
    after = looks(bench.trace("out")) - before
    probes = 0 if what == "reduce" else 1
    assert 8 - made <= after["map"] <= 8 - made + probes
    # A look at a schema is one at what the first output begins with.
    assert not first_rows(bench, "out", parts) & set(bench.trace("out").read_text().split()[2 * before.total() :: 2])
    assert not bench.stage_objects("out")
    if not shuffled:
        whole = run(*bench.argv("whole"), env=bench.env)
        assert whole.code == 0, whole.err
        assert outputs(place.objects("out")) == outputs(place.objects("whole"))


def first_rows(bench: Bench, name: str, parts: set[str]) -> set[str]:
    """Returns what a look at each of these outputs leaves in the file."""
    found = bench.place.objects(name)
    tables = [pq.read_table(pa.BufferReader(found[part])) for part in parts]
    rows = [one.slice(0, 1).to_pylist()[0] for one in tables]
    return {f"reduce:{row['file']}:{row['id']}" for row in rows}


ONE_CPU = {"num_cpus": 1, "object_store_memory": 100 << 20}


@pytest.mark.slow
@pytest.mark.ray_lane
@pytest.mark.parametrize("what", [pytest.param("map", marks=pytest.mark.nightly), "reduce"])
def test_a_node_is_killed(local: Place, tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two, in the middle of the exchange: no map that was finished runs again, as its rows are in a file."""
    from ray.cluster_utils import Cluster

    bench = Large(local, tmp_path / "bench")
    hold = tmp_path / "hold"
    Path(f"{hold}-{what}").write_text("3")
    # Tasks get the environment of their node.
    monkeypatch.setenv("SORTING_TRACE", str(bench.trace("out")))
    monkeypatch.setenv("SORTING_HOLD", str(hold))
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        nodes = [cluster.add_node(**ONE_CPU) for _ in range(2)]
        cluster.wait_for_nodes()
        env = bench.env | {"RAY_ADDRESS": cluster.address}
        with Driver(bench.argv("out", "--hold", str(hold), backend="ray"), env) as driver:
            wait_until(lambda: looks(bench.trace("out"))[what] == 5, f"{what}s are made, two wait")
            made, before = set(bench.run_files("out")), looks(bench.trace("out"))
            cluster.remove_node(nodes[1], allow_graceful=False)
            wait_until(lambda: not all(alive(pid) for pid in workers(bench.trace("out"))), "it died")
            Path(f"{hold}-{what}").unlink()
            ended = driver.end()
        assert ended.code == 0, ended.err
        again = (looks(bench.trace("out")) - before)["map"]
        assert again <= 8 - len(made)
        if what == "reduce":
            assert (len(made), again) == (8, 0)
    finally:
        cluster.shutdown()
    whole = run(*bench.argv("whole"), env=bench.env | {"SORTING_HOLD": "", "SORTING_TRACE": ""})
    assert whole.code == 0, whole.err
    assert outputs(local.objects("out")) == outputs(local.objects("whole"))


# On the command line


@pytest.mark.slow
def test_a_job_keeps_its_stages_if_it_is_told_to(local: Place, tmp_path: Path) -> None:
    """And the next run, which has nothing to do, removes them. Inputs that are new are refused with exit code 2."""
    bench = Bench(local, tmp_path / "bench")
    argv = ["jobs/shuffle.py", "--backend", "inline", "--json", "--shards", "3", "--input", bench.source]
    argv += ["--output", f"{local.root}/out"]
    first = run(*argv, "--keep-stages")
    assert first.code == 0, first.err
    assert bench.run_files("out")
    second = run(*argv)
    assert (second.code, second.json["tasks"]["attempts"]) == (0, 0), second.err
    assert not bench.stage_objects("out")
    local.write("in", {"new.parquet": next(iter(bench.inputs.values()))})
    third = run(*argv)
    assert third.code == 2
    assert "changed after the job began" in third.err
    assert "in/new.parquet" in third.err
    kept = outputs(local.objects("out"))
    fourth = run(*argv, "--overwrite", "--yes")
    assert fourth.code == 0, fourth.err
    assert outputs(local.objects("out")) != kept


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 600 KB; skipped where none can be had."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(folder)], check=False).returncode:
        pytest.skip("nothing can be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.slow
def test_a_disk_that_is_really_full(small_disk: Path, tmp_path: Path) -> None:
    """The run says what it needs, about as much as the rest of the run files then takes; with room, the rest is
    done."""
    bench = Bench(Place(str(small_disk)), tmp_path / "bench", (), {})
    bench.source = Place(str(tmp_path)).write("in", LARGE)
    env = bench.env | {"SORTING_BYTES": str(64 << 10)}
    full = run(*bench.argv("out"), env=env)
    assert full.code == 1, full.err
    (told,) = [json.loads(line) for line in full.err.splitlines() if '"the disk is full"' in line]
    made = len(bench.run_files("out"))
    assert 0 < made < len(LARGE)
    needed = int(told["needs"].split()[1].replace(",", ""))
    assert needed == pytest.approx((len(LARGE) - made) * 103, rel=0.1), told
    # Less than what was to be written next, which is a page of the disk or a few.
    free, unit = told["free"].split()
    assert unit == "B" or (unit == "KiB" and float(free) < 64), told
    before = looks(bench.trace("out"))
    subprocess.run(["mount", "-o", "remount,size=20m", str(small_disk)], check=True)
    again = run(*bench.argv("out"), env=env)
    assert again.code == 0, again.err
    assert (looks(bench.trace("out")) - before)["map"] == len(LARGE) - made
