"""A driver that is paused for an hour, at each of its writes, while another takes its output or finishes its job."""

from __future__ import annotations

import contextlib
import itertools
import random
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from curate.errors import ConfigError, JobReplacedError
from curate.ledger.summary import RunState, Summary
from curate.stores.local import LocalStore
from curate.stores.open import open_store
from tests.support.fakes import FakeClock
from tests.support.harness import Place, check_same, corpus, encoded, job_summary, outputs, rows
from tests.support.workbench import Bench, complete, open_in_driver

HOUR_S = 3600.0
SOURCE = corpus(sizes=(60, 3, 40))
NEW = "2022/new.jsonl"


class PausedStore(LocalStore):
    """The store of one driver: calls `pause` before or after its write number `at`, counting from 0."""

    def __init__(self, scratch: str | None, script: Script) -> None:
        super().__init__(scratch)
        self._script = script

    def publish(self, uri: str, data: bytes) -> Any:
        with self._script.write(uri):
            return super().publish(uri, data)

    def replace(self, uri: str, data: bytes) -> Any:
        with self._script.write(uri):
            return super().replace(uri, data)

    def delete(self, uri: str, generation: str | None = None) -> bool:
        with self._script.write(uri):
            return super().delete(uri, generation)


class Script:
    """When the driver is paused, and what happens meanwhile."""

    def __init__(self, at: int, when: str, pause: Callable[[], None]) -> None:
        self.when, self.at, self._pause = when, at, pause
        self.writes: list[str] = []
        self.paused = False
        # The log of a run writes from a thread of its own.
        self._lock = threading.RLock()

    @contextlib.contextmanager
    def write(self, uri: str) -> Iterator[None]:
        with self._lock:
            number = len(self.writes)
            self.writes.append(uri)
            if (number, self.when) == (self.at, "before"):
                self.pause()
            yield
            if (number, self.when) == (self.at, "after"):
                self.pause()

    def pause(self) -> None:
        self.paused = True
        self._pause()

    @property
    def where(self) -> str:
        """Which write it was."""
        return f"paused {self.when} write {self.at}: {self.writes[self.at]}"


class Scene:
    """One driver that is paused, and another that comes meanwhile; both tell the time by one clock."""

    def __init__(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bench = bench
        self.clock = FakeClock()
        self.pause_s = HOUR_S
        self._monkeypatch = monkeypatch
        self.found: dict[str, bytes] = {}
        """What was there when the other one had ended."""
        self.ended: Summary | Exception | None = None
        """How the driver ended that was paused."""

    def run(self, at: int, when: str, other: Callable[[], object], **options: Any) -> Script:
        """Runs the driver, with its pause."""

        def pause() -> None:
            self.clock.advance(self.pause_s)
            open_in_driver(self._monkeypatch, open_store)
            other()
            self.clock.advance(self.pause_s)
            self.found = self.bench.objects()

        script = Script(at, when, pause)
        self.found, self.ended = {}, None
        open_in_driver(self._monkeypatch, lambda _, scratch: PausedStore(scratch, script))
        try:
            self.ended = self.bench.run(clock=self.clock, **options)
        except (JobReplacedError, ConfigError) as error:
            self.ended = error
        finally:
            open_in_driver(self._monkeypatch, open_store)
        return script

    def each(
        self, when: str, other: Callable[[], object], begin: Callable[[], object], **options: Any
    ) -> Iterator[Script]:
        """Runs the driver with a pause at each of its writes, after `begin`. How many there are is not always the same:
        of its log and its heartbeat, which a thread of its own writes, several become one."""
        for at in itertools.count():
            begin()
            script = self.run(at, when, other, **options)
            if not script.paused:
                assert at >= 8, script.writes
                return
            yield script

    def check_kept(self, script: Script, expected: Mapping[str, bytes] | None = None) -> None:
        """Checks that what was there when the other one had ended is there still, but for what the driver may touch:
        what its own run says, and rows set aside that no output names."""
        after = self.bench.objects()
        own = {run_id for uri in script.writes if (run_id := uri.partition("/_curate/runs/")[2].partition("/")[0])}
        for name, data in self.found.items():
            parts = name.split("/")
            unnamed = expected is not None and parts[1:2] == ["quarantine"] and name not in expected
            if not unnamed and not (len(parts) > 2 and parts[2] in own):
                assert after.get(name) == data, f"{script.where}: {name}"

    def check_complete(self) -> None:
        """Checks that the driver ended well."""
        assert isinstance(self.ended, Summary), self.ended
        complete(self.ended)

    def check_refused(self, script: Script) -> None:
        """Checks that the driver, or all its workers, noticed that the job is another's, unless it was over by then."""
        if any(uri.endswith("/summary.json") for uri in script.writes[: script.at]):
            return
        if isinstance(self.ended, Summary):
            assert self.ended.failed, self.ended
            assert all("is now the output of another job" in group.error for group in self.ended.failures)
        else:
            assert re.search(
                "job.json was replaced while|another driver began on|is running on|with another identity",
                str(self.ended),
            )


@pytest.fixture
def bench(local: Place, tmp_path: Path) -> Bench:
    return Bench(local, tmp_path / "trace", local.write("in", SOURCE))


@pytest.fixture
def scene(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(bench, monkeypatch)


def clean(bench: Bench) -> None:
    shutil.rmtree(Path(bench.place.root) / "out", ignore_errors=True)


def ledger_names(found: dict[str, bytes]) -> set[str]:
    return {name for name in found if not name.startswith("_curate/runs/")}


@pytest.mark.slow
@pytest.mark.quick(1)
@pytest.mark.parametrize("when", ["before", "after"])
def test_another_job_has_the_output_now(scene: Scene, when: str) -> None:
    """Everything that the other one left stays as it is, and nothing is added; the driver ends with an error."""
    bench = scene.bench

    def begin() -> None:
        clean(bench)
        bench.parameters = {}

    def overwrite() -> None:
        bench.parameters = {"short": 25}
        complete(bench.run(clock=scene.clock, overwrite=True, confirm=lambda _: True))

    for script in scene.each(when, overwrite, begin):
        after = bench.objects()
        scene.check_kept(script)
        assert set(after) == set(scene.found), script.where
        scene.check_refused(script)
        bench.parameters = {"short": 25}
        complete(bench.run())


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
def test_the_same_job_was_begun_anew(scene: Scene, when: str) -> None:
    """Overwritten with the same parameters, over other inputs: no output, no plan, no total of the old one returns."""
    bench = scene.bench
    old, new = SOURCE["2021/RC-01.jsonl"], SOURCE["2021/RC-01.jsonl"] * 2

    def begin() -> None:
        clean(bench)
        bench.place.write("in", {"2021/RC-01.jsonl": old})

    def overwrite() -> None:
        bench.place.write("in", {"2021/RC-01.jsonl": new})
        complete(bench.run(clock=scene.clock, overwrite=True, confirm=lambda _: True))

    for script in scene.each(when, overwrite, begin):
        after = bench.objects()
        scene.check_kept(script)
        assert ledger_names(after) == ledger_names(scene.found), script.where
        complete(bench.run())
        assert job_summary(bench.objects()) == job_summary(scene.found), script.where


@pytest.mark.slow
@pytest.mark.quick(1)
@pytest.mark.parametrize("when", ["before", "after"])
def test_another_driver_finished_the_job(scene: Scene, when: str) -> None:
    """The bytes of everything that it left stay; who wakes up finds that all is done, and says so."""
    bench = scene.bench
    complete(bench.run(output="fresh"))
    expected = bench.objects("fresh")

    def other() -> None:
        complete(bench.run(clock=scene.clock, allow_concurrent=True))

    for script in scene.each(when, other, lambda: clean(bench)):
        after = bench.objects()
        scene.check_kept(script, expected)
        check_same(after, expected, script.where)
        scene.check_complete()
        assert complete(bench.run()).calls.put == 0, script.where


@pytest.mark.slow
@pytest.mark.quick(1)
@pytest.mark.parametrize("when", ["before", "after"])
def test_the_driver_of_another_part_finished_the_job(scene: Scene, when: str) -> None:
    """It did the shards of the one that is paused, too, which finds them when it wakes up."""
    bench = scene.bench
    complete(bench.run(output="fresh"))
    expected = bench.objects("fresh")

    def other() -> None:
        complete(bench.run(clock=scene.clock, part="1/2"))

    for script in scene.each(when, other, lambda: clean(bench), part="0/2"):
        after = bench.objects()
        scene.check_kept(script, expected)
        check_same(after, expected, script.where)
        scene.check_complete()
        assert complete(bench.run(part="0/2")).calls.put == 0, script.where


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_growth_that_another_driver_finished(scene: Scene, when: str) -> None:
    """With new inputs, an output to be removed because it is another job's, and a stale one: nothing that the other
    one has made of them is removed again, and its summary stays."""
    bench = scene.bench
    gone = f"{bench.place.root}/out/2020/RC-00.parquet"
    options: dict[str, Any] = {"redo_stale": True}

    def prepare_bench() -> None:
        clean(bench)
        bench.place.write("in", SOURCE)
        Path(f"{bench.place.root}/in/{NEW}").unlink(missing_ok=True)
        complete(bench.run())
        bench.parameters = {"short": 25}
        complete(bench.run(output="other"))
        bench.parameters = {}
        Path(gone).unlink()
        bench.place.write("out", {"2020/RC-00.parquet": bench.objects("other")["2020/RC-00.parquet"]})
        changed = SOURCE["2021/RC-01.jsonl"] * 2
        bench.place.write("in", {NEW: encoded(".jsonl", rows(NEW, 20, random.Random(1))), "2021/RC-01.jsonl": changed})

    def other() -> None:
        complete(bench.run(clock=scene.clock, allow_concurrent=True, redo_stale=True))

    prepare_bench()
    complete(bench.run(**options))
    complete(bench.run(output="fresh"))
    expected = bench.objects("fresh")
    assert outputs(bench.objects()) == outputs(expected)
    for script in scene.each(when, other, prepare_bench, **options):
        after = bench.objects()
        scene.check_kept(script, expected)
        check_same(after, expected, script.where)
        assert complete(bench.run()).calls.put == 0, script.where
        scene.check_complete()


@pytest.mark.parametrize("same", [False, True])
def test_overwritten_in_the_last_moment(scene: Scene, same: bool) -> None:
    """Between the last look and the summary, which takes no time: what is there then is looked at, and not replaced;
    also if the same job was begun anew, over other inputs."""
    bench = scene.bench
    (at,) = [
        number for number, uri in enumerate(scene.run(-1, "", lambda: None).writes) if uri.endswith("/summary.json")
    ]
    clean(bench)
    scene.pause_s = 0.0

    def overwrite() -> None:
        bench.parameters = {} if same else {"short": 25}
        if same:
            bench.place.write("in", {"2021/RC-01.jsonl": SOURCE["2021/RC-01.jsonl"] * 2})
        complete(bench.run(clock=FakeClock(scene.clock.now()), overwrite=True, confirm=lambda _: True))

    script = scene.run(at, "before", overwrite)
    assert isinstance(scene.ended, JobReplacedError)
    scene.check_refused(script)
    assert bench.objects()["_curate/summary.json"] == scene.found["_curate/summary.json"]
    assert set(bench.objects()) == set(scene.found)


@pytest.mark.slow
@pytest.mark.parametrize("settled", [False, True])
def test_an_overwrite_that_began_in_the_last_moment_and_was_killed(scene: Scene, settled: bool) -> None:
    """The outputs are gone, `job.json` is not: whoever wakes up, and says that all is done, has all done again. Also
    if it found all outputs there, and had only that to say."""
    bench = scene.bench

    def begin() -> None:
        clean(bench)
        if settled:
            complete(bench.run())
            (Path(bench.place.root) / "out/_curate/summary.json").unlink()

    begin()
    writes = scene.run(-1, "", lambda: None).writes
    [at] = [number for number, uri in enumerate(writes) if uri.endswith("/summary.json")]
    expected = outputs(bench.objects())
    assert len(expected) > 2

    def overwrite_and_die() -> None:
        # What was set aside is removed behind all outputs.
        for name in sorted(one for one in outputs(bench.objects()) if not one.startswith("_curate/"))[1:]:
            (Path(bench.place.root) / "out" / name).unlink()

    for number in range(at - settled, at + 1):
        begin()
        script = scene.run(number, "before", overwrite_and_die)
        assert isinstance(scene.ended, Summary), script.where
        assert scene.ended.state is RunState.COMPLETE, script.where
        assert outputs(bench.objects()) == expected, script.where
        scene.check_complete()
