"""An input is replaced before anything is made of it; a worker that had read the old one publishes late, at any moment.

Its output has the name, the identity and the shard of the one that is to be. Whatever is said to be done is made of the
new input, also if the run that planned it anew was killed.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from curate.ledger import layout
from curate.ledger.summary import RunState, Summary
from curate.storage.protocol import Store
from curate.stores.faulty import FaultyStore
from curate.stores.open import wrap_stores
from tests.job.inline import write_jsonl
from tests.resume.test_removal import Parted, check_same_as_fresh, data, rows, run_job

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")

CHANGES = ("publish", "replace", "delete")


class Killed(BaseException):
    """The process is gone."""


class Acting(FaultyStore):
    """A store that has something happen before its changes."""

    def __init__(self, inner: Store, act: Callable[[str], object]) -> None:
        super().__init__(inner)
        self._act = act

    def _call(self, operation: str, uri: str, *how: Any) -> Any:
        if operation in CHANGES and "heartbeat" not in uri:  # a thread of its own writes that
            self._act(uri)
        return super()._call(operation, uri, *how)


class Scene:
    """A job of which nothing is done, though it is planned; and what late workers have made of its inputs."""

    def __init__(self, root: Path, *, split: bool) -> None:
        self.root, self.out, self.source = root, root / "out", root / "in"
        self.job = Parted(shard_bytes=2_000) if split else Parted()
        self.split = split
        self.number = 0
        self.write("old")
        self.run()
        self.late = {name: value for name, value in data(self.out).items() if not name.startswith("_curate/")}
        shutil.copytree(self.out, root / "begun")
        for name in [*self.late, layout.SUMMARY]:
            (root / "begun" / name).unlink()
        self.write("new")

    def write(self, text: str) -> None:
        """Writes the inputs, in the places of what was there."""
        many = [{"id": f"{k}", "text": f"{text} of {k}"} for k in range(120)]
        write_jsonl(self.source / "a.jsonl", many if self.split else [*rows("a"), {"id": text, "text": text}])
        write_jsonl(self.source / "b.jsonl", rows("b"))

    def begin(self) -> None:
        """Puts the job there as it was begun."""
        shutil.rmtree(self.out)
        shutil.copytree(self.root / "begun", self.out)

    def publish_late(self, only: Callable[[str], bool] = lambda _: True) -> int:
        """Publishes the old outputs whose names are free; returns how many. The main one of a shard comes last."""
        count = 0
        for name in sorted(filter(only, self.late), key=lambda name: not name.startswith("_side/")):
            path = self.out / name
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(self.late[name])
                count += 1
        return count

    def run(self, **options: Any) -> Summary:
        return run_job(self.job, self.source, self.out, **options)

    def run_acting(self, act: Callable[[str], object], **options: Any) -> Summary | None:
        """Runs the job; returns nothing if it was killed."""
        with wrap_stores(lambda store: Acting(store, act)):
            try:
                return self.run(**options)
            except Killed:
                return None

    def check(self) -> None:
        """Checks that all is made of the new inputs, once a run says that all is done."""
        assert (ended := self.run()).state is RunState.COMPLETE
        assert ended.stale == 0
        self.number += 1
        check_same_as_fresh(self.job, self.source, self.out, self.root / f"fresh-{self.number}")
        again = self.run()
        assert (again.attempts, again.stale, again.calls.put, again.calls.delete) == (0, 0, 0, 0)


@pytest.fixture(params=["whole", "split"])
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Scene:
    return Scene(tmp_path, split=request.param == "split")


@pytest.mark.ci(2)
@pytest.mark.slow
@pytest.mark.parametrize("only", ["all", "extra"])
def test_late_outputs_beside_the_run_that_planned_anew(scene: Scene, only: str) -> None:
    """Before each of its changes: what is in the way of its own outputs is replaced."""
    published, at = 0, 0
    expected: dict[str, bytes] = {}
    while True:
        at += 1
        scene.begin()
        seen: list[str] = []
        come: list[int] = []

        def act(uri: str, at: int = at, seen: list[str] = seen, come: list[int] = come) -> None:
            seen.append(uri)
            if len(seen) == at:
                come.append(scene.publish_late(lambda name: only == "all" or name.startswith("_side/")))

        ended = scene.run_acting(act)
        assert ended is not None
        expected = expected or data_of_new(scene)
        if not come:
            break
        published += sum(come)
        # What came before the first listing is there: outputs of inputs that changed, as is said.
        if not ended.stale:
            assert ended.state is RunState.COMPLETE, f"before {seen[at - 1]}"
            assert data(scene.out) == expected, f"before {seen[at - 1]}"
            if at % 4 == 0:
                scene.check()
    assert published > 3


def data_of_new(scene: Scene) -> dict[str, bytes]:
    """Returns what a run from nothing makes of the inputs as they are now."""
    fresh = scene.root / "new"
    run_job(scene.job, scene.source, fresh)
    return data(fresh)


@pytest.mark.ci(1)
@pytest.mark.slow
def test_late_outputs_when_the_run_that_planned_anew_was_killed(scene: Scene) -> None:
    """At each of its changes: what no event tells of is made again, and nothing else."""
    kills = 0
    while True:
        scene.begin()
        seen: list[str] = []

        def act(uri: str, at: int = kills + 1, seen: list[str] = seen) -> None:
            seen.append(uri)
            if len(seen) >= at:
                raise Killed

        scene.run_acting(act)
        if len(seen) <= kills:
            break
        kills += 1
        planned = len([*(scene.out / "_curate/plan").iterdir()]) > len([*(scene.root / "begun/_curate/plan").iterdir()])
        if planned:
            scene.publish_late()
            if scene.split and "/plan/" in seen[-1]:
                # Of an input that is no part of it, and was not planned anew by then: it is out of date, as is said.
                assert scene.run(redo_stale=True).state is RunState.COMPLETE
            scene.check()
    assert kills > 5


def test_what_was_made_of_the_new_input_is_not_made_again(scene: Scene) -> None:
    """Its event says so; and a job that is complete has no more to do."""
    scene.begin()
    whole = scene.run(limit=1)
    assert (whole.state, whole.attempts) == (RunState.COMPLETE, 1)
    rest = scene.run()
    assert (rest.state, rest.skipped, rest.attempts) == (RunState.COMPLETE, 1, rest.total - 1)
    scene.check()


@pytest.mark.ci(1)
@pytest.mark.slow
def test_a_driver_that_planned_anew_is_late_itself(scene: Scene) -> None:
    """Before each of its changes the input is replaced once more, and another driver makes all of that: none of it is
    replaced by what is made of the input in between."""
    at = 0
    while True:
        at += 1
        scene.begin()
        scene.write("new")
        seen: list[str] = []

        def act(uri: str, at: int = at, seen: list[str] = seen) -> None:
            seen.append(uri)
            if len(seen) == at:
                scene.write("newer")
                scene.run(allow_concurrent=True)

        scene.run_acting(act, allow_concurrent=True)
        if len(seen) < at:
            break
        if scene.run().stale:
            # Of what the first one had made by then.
            assert scene.run(redo_stale=True).state is RunState.COMPLETE
        scene.check()
    assert at > 5
