"""What somebody else put where curate works stays as it is: files, folders, links, whatever a run does beside them."""

from __future__ import annotations

import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pyarrow as pa
import pytest

from curate.dataset.dataset import Dataset
from curate.errors import ConfigError
from curate.graph.entry import dry_run
from curate.job.job import Job
from curate.ledger import layout
from curate.ledger.stages import remove_stages
from curate.ledger.summary import RunState
from curate.stores.local import LocalStore, remove_scratch, sweep_scratch
from curate.stores.open import open_store
from tests.job.inline import run_job, write_jsonl
from tests.support.examples import examples
from tests.support.fakes import FakeClock

OLD_S = 5 * 86_400.0


class Plain(Job):
    """Has an extra output, and sets rows aside."""

    version = "1"
    sides = ("odd",)

    def process(self, batch: pa.Table) -> Any:
        return {"main": batch, "odd": batch.slice(1)}


class Sorted(Job):
    """Has stages."""

    version = "1"

    def build(self, ds: Dataset) -> Dataset:
        return ds.sort("id")


class Kept(Sorted):
    """Has a checkpoint before its stages."""

    path: str = ""

    def build(self, ds: Dataset) -> Dataset:
        return ds.checkpoint(self.path).sort("id")


HASH = "0123456789abcdef"
FOLDERS = ["plan", "runs", "tmp", "quarantine", "stages", "inputs", "schema", "accepted"]
PLACES = [
    *(("out", folder) for folder in ["", "sub", "_side", "_side/odd", "_side/odd/sub", "_curate"]),
    *(("out", f"_curate/{folder}") for folder in FOLDERS),
    ("out", f"_curate/stages/{HASH}"),
    ("out", f"_curate/stages/{HASH}/_curate"),
    ("home", ""),
    ("home", "tmp"),
    ("home", "jobs"),
]
"""Where something is put: in the output, or in $CURATE_HOME."""
NAMES = ["thesis.tex", "notes", "a.parquet.bak", ".hidden", "curate", "x.run", "1.jsonl.zst"]
"""What is put there is called like nothing of curate's."""
OWN = ["summary.json", f"{HASH}.jsonl.zst", f"{HASH}-1-2", "00000.parquet", "begin-01234567", HASH, "odd", "tmp"]
"""Links may be called like something of curate's, as curate makes none."""
KINDS = ["file", "folder", "empty"]
TARGETS = ["precious", "precious/deep/chapter", "nowhere", ".", "..", "itself", "in", "out", "home"]

plantings = st.lists(
    st.tuples(st.sampled_from(PLACES), st.sampled_from(NAMES), st.sampled_from(KINDS).map(lambda kind: (kind, "")))
    | st.tuples(
        st.sampled_from(PLACES),
        st.sampled_from([*NAMES, *OWN]),
        st.sampled_from(TARGETS).map(lambda target: ("link", target)),
    )
    | st.tuples(
        st.sampled_from(PLACES), st.just(""), st.sampled_from(["precious", "nowhere"]).map(lambda to: ("link", to))
    ),
    min_size=1,
    max_size=4,
)


def plant(base: Path, place: tuple[str, str], name: str, what: tuple[str, str]) -> Path | None:
    """Puts one thing there, five days old; without a name, in a folder's place. Returns it, None if that is taken."""
    path = base.joinpath(*place, name) if name else base.joinpath(*place)
    if not name and not place[1]:
        return None  # the roots themselves are the user's, and may be links
    if name.endswith(".run") and place[1].endswith(HASH):
        return None  # run files are called after what they are made of, which may have any name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.parent.resolve().is_relative_to(base / place[0]) or os.path.lexists(path):
            return None
        kind, target = what
        if kind == "link":
            there = base / target if target in ("precious", "precious/deep/chapter", "in", "out", "home") else target
            path.symlink_to(path.name if target == "itself" else there)
        elif kind == "file":
            path.write_bytes(b"mine")
        else:
            path.mkdir()
            if kind == "folder":
                (path / "chapter").write_bytes(b"mine")
                age(path / "chapter")
    except (FileExistsError, NotADirectoryError):
        return None
    age(path)
    return path


def age(path: Path) -> None:
    then = time.time() - OLD_S
    os.utime(path, (then, then), follow_symlinks=False)


def seen(paths: list[Path]) -> dict[str, Any]:
    """Returns all that is below these paths, as it is: what kind, which bytes, where to; links are not followed."""
    found: dict[str, Any] = {}
    for top in paths:
        for path in [top, *(sorted(top.rglob("*")) if top.is_dir() and not top.is_symlink() else ())]:
            status = path.lstat()
            if stat.S_ISLNK(status.st_mode):
                found[str(path)] = os.readlink(path)  # noqa: PTH115
            elif stat.S_ISDIR(status.st_mode):
                found[str(path)] = "folder"
            else:
                found[str(path)] = (path.read_bytes(), status.st_mtime_ns)
    return found


@contextmanager
def world() -> Iterator[Path]:
    """Yields a folder with inputs and something precious, and is where $CURATE_HOME lies meanwhile."""
    with tempfile.TemporaryDirectory() as made, pytest.MonkeyPatch.context() as patch:
        base = Path(made).resolve()
        patch.setenv("CURATE_HOME", str(base / "home"))
        for name in ("a", "sub/b"):
            write_jsonl(base / "in" / f"{name}.jsonl", b'{"id": "2"}\n{broken\n{"id": "1"}\n')
        write_jsonl(base / "precious" / "deep" / "chapter", b"mine")
        for name in (
            f"{HASH}.jsonl.zst",
            f"{HASH}-1-2",
            "job.json",
            "summary.json",
            "00000.parquet",
            "begin-01234567/x",
        ):
            write_jsonl(base / "precious" / name, b"mine")
        for path in (base / "precious").rglob("*"):
            age(path)
        yield base


@pytest.mark.quick(1)
@pytest.mark.parametrize("job", [Plain, Sorted])
@hypothesis.given(plantings, st.booleans())
@hypothesis.settings(max_examples=examples(12), suppress_health_check=list(hypothesis.HealthCheck))
def test_nothing_foreign_is_touched(job: type[Job], planted: list[Any], before: bool) -> None:
    """By a first run, a rerun, an overwrite, a run after an output was lost, or the sweep after a day, whether it was
    there before the first or came after it: it stays byte for byte, or the run is refused and names a link."""
    with world() as base:
        clock = FakeClock(time_s=time.time())
        options: dict[str, Any] = {"clock": clock, "confirm": lambda _: True}
        if not before:
            run_job(job(max_bad_rows=5), base / "in", base / "out", **options)
        mine = [path for one in planted if (path := plant(base, *one)) is not None]
        links = [str(path) for path in mine if path.is_symlink()]
        there = seen([base / "precious", base / "in", *mine])

        def again(**more: Any) -> None:
            try:
                summary = run_job(job(max_bad_rows=5), base / "in", base / "out", **options, **more)
            except ConfigError as error:
                text = str(error)
                if any(f"{link} is a link" in text for link in links):
                    pass
                else:
                    # A file, or a folder, in the place of what curate needs: never gone through, never replaced.
                    assert any(str(path) in text for path in mine), text
            else:
                assert summary.state is RunState.COMPLETE or links
            assert seen([base / "precious", base / "in", *mine]) == there

        again()
        again()
        clock.advance(2 * 86_400)
        for lost in (base / "out").glob("*.parquet"):
            if lost not in mine:
                lost.unlink()
        again()
        again(overwrite=True)
        again(overwrite=True)
        again()


@pytest.mark.quick(4)
@pytest.mark.parametrize("folder", sorted({folder for place, folder in PLACES if place == "out" and folder}))
def test_a_link_in_the_place_of_a_folder_is_refused(folder: str) -> None:
    """Whichever of curate's it takes the place of: a run with something to do, and one that overwrites, names it."""
    with world() as base:
        job = Sorted if "stages" in folder else Plain
        run_job(job(max_bad_rows=5), base / "in", base / "out", keep_stages=True)
        link = base / "out" / folder
        if link.exists():
            link.rename(base / "moved")
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(base / "moved" if (base / "moved").exists() else base / "precious")
        for output in (base / "out").glob("*.parquet"):
            output.unlink()
        there = seen(
            [base / "precious", base / "moved", link] if (base / "moved").exists() else [base / "precious", link]
        )
        for overwrite in (False, True):
            options = job(max_bad_rows=5).options(
                input=base / "in", output=base / "out", backend="inline", overwrite=overwrite
            )
            with pytest.raises(ConfigError, match=rf"{link} is a link"):
                dry_run(job(max_bad_rows=5).spec(), options)
            with pytest.raises(ConfigError, match=rf"{link} is a link"):
                run_job(job(max_bad_rows=5), base / "in", base / "out", overwrite=overwrite, confirm=lambda _: True)
            assert there.items() <= seen([base]).items()


def test_files_and_folders_are_in_nobodys_way() -> None:
    """What is put beside curate's own, and is no link, stays, and every run completes."""
    with world() as base:
        clock = FakeClock(time_s=time.time())
        options: dict[str, Any] = {"clock": clock, "confirm": lambda _: True}
        for job in (Plain, Sorted):
            run_job(job(max_bad_rows=5), base / "in", base / job.name, **options)
            mine = []
            for kind in KINDS:
                for _, folder in PLACES[:-3]:
                    mine.append(plant(base, (job.name, folder), f"foreign {kind}", (kind, "")))
                for folder in ("", "tmp", "jobs"):
                    mine.append(plant(base, ("home", folder), f"{job.name} {kind}", (kind, "")))
            there = seen([path for path in mine if path is not None])
            assert len(mine) == len(KINDS) * len(PLACES)
            for overwrite in (False, True, False):
                clock.advance(2 * 86_400)
                summary = run_job(job(max_bad_rows=5), base / "in", base / job.name, overwrite=overwrite, **options)
                assert summary.state is RunState.COMPLETE
            assert seen([path for path in mine if path is not None]) == there


def test_an_output_may_be_a_link_and_lie_behind_one(tmp_path: Path) -> None:
    """The user's own: what is refused is a link below it."""
    write_jsonl(tmp_path / "in" / "sub" / "a.jsonl", [{"id": "1"}])
    (tmp_path / "disk" / "place").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    (tmp_path / "disk" / "out").symlink_to(tmp_path / "disk" / "place")
    for job in (Plain, Sorted):
        for overwrite in (False, True):
            more = {"overwrite": overwrite, "confirm": lambda _: True}
            output = tmp_path / "link" / "out" / job.name
            assert run_job(job(), tmp_path / "in", output, **more).state is RunState.COMPLETE
    assert (tmp_path / "disk" / "place" / Plain.name / "sub" / "a.parquet").is_file()


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_complete_job_leaves_no_stage_behind(checkpoint: bool, tmp_path: Path) -> None:
    """All that stages are made of has a name that is known for curate's; so has all that a ledger is made of. Behind a
    checkpoint, run files are called after its files, which may lie in folders."""
    write_jsonl(tmp_path / "in" / "sub" / "a.jsonl", b'{"id": "2"}\n{broken\n{"id": "1"}\n')
    sorted_ = Kept(max_bad_rows=5, path=str(tmp_path / "kept")) if checkpoint else Sorted(max_bad_rows=5)
    run_job(sorted_, tmp_path / "in", tmp_path / "out", keep_stages=True)
    run_job(Plain(max_bad_rows=5), tmp_path / "in", tmp_path / "plain")
    names = [
        f"{path.relative_to(root)}{'/' if path.is_dir() else ''}"
        for root in (tmp_path / "out", tmp_path / "plain")
        for path in (root / "_curate").rglob("*")
    ]
    stages = [name.removeprefix(layout.STAGES) for name in names]
    leading = [name for name, own in zip(names, stages, strict=True) if own != name and layout.may_hold_runs(own)]
    assert [name for name in names if not layout.is_own(name) and name not in leading] == []
    run_job(sorted_, tmp_path / "in", tmp_path / "out")
    assert not (tmp_path / "out" / "_curate" / "stages").exists()


@pytest.mark.parametrize("folder", ["_curate", "_curate/tmp", "_curate/tmp/20261122T074903.000Z-a7a9a0", "tmp"])
def test_sweeps_go_through_no_link(folder: str, tmp_path: Path) -> None:
    """Nor does the end of a run, which removes its own temporaries, even if all that is there looks like curate's."""
    root, precious = tmp_path / "root", tmp_path / "precious"
    temporary = f"{HASH}-1-2"
    for below in ("", "20261122T074903.000Z-a7a9a0", "tmp", "tmp/20261122T074903.000Z-a7a9a0"):
        age(write_jsonl(precious / below / temporary, b"mine"))
        age(precious / below)
    (root / folder).parent.mkdir(parents=True)
    (root / folder).symlink_to(precious)
    tmp = root / ("tmp" if folder == "tmp" else "_curate/tmp")
    before = seen([tmp_path])
    if (root / folder).name.startswith("2026"):
        assert sweep_scratch(str(tmp), "", time.time() + OLD_S, 60.0, layout.is_scratch) == 0
    else:
        with pytest.raises(ConfigError, match=f"{root / folder} is a link"):
            sweep_scratch(str(tmp), "", time.time() + OLD_S, 60.0, layout.is_scratch)
    remove_scratch(f"{tmp}/20261122T074903.000Z-a7a9a0")
    remove_stages(f"{root}/_curate/stages")
    assert seen([tmp_path]) == before


CALLS: dict[str, Callable[[LocalStore, str], Any]] = {
    "publish": lambda store, uri: store.publish(uri, b"new"),
    "replace": lambda store, uri: store.replace(uri, b"new"),
    "write": lambda store, uri: _written(store, uri),
    "delete": lambda store, uri: store.delete(uri),
}


def _written(store: LocalStore, uri: str) -> None:
    with store.writer(uri) as writer:
        writer.write(b"new")
        writer.publish()


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("where", ["sub", "sub/deep", "_curate", "_curate/tmp", "_curate/tmp/run"])
def test_a_store_writes_and_removes_nothing_through_a_link(call: str, where: str, tmp_path: Path) -> None:
    """Wherever below its root it is, in the way of the object or of the temporaries; nor does it replace one."""
    root, precious = tmp_path / "out", tmp_path / "precious"
    for folder in ("", "deep", "tmp", "tmp/run", "run"):
        write_jsonl(precious / folder / "x", b"mine")
    (root / where).parent.mkdir(parents=True)
    (root / where).symlink_to(precious)
    store = open_store(str(root), scratch=f"{root}/_curate/tmp/run")
    name = "sub/deep/x" if where.startswith("sub") else f"{where}/x" if call == "delete" else "sub/x"
    before = seen([tmp_path])
    with pytest.raises(ConfigError, match=rf"{root / where} is a link \(to {precious}\).*Remove the link"):
        CALLS[call](store, f"{root}/{name}")  # type: ignore[arg-type]
    assert seen([precious, root / where]) == {
        path: one for path, one in before.items() if path in seen([precious, root / where])
    }
    (root / "y").symlink_to(precious / "x")
    if call in ("replace", "delete") and where.startswith("sub"):
        with pytest.raises(ConfigError, match=rf"{root}/y is a link"):
            CALLS[call](store, f"{root}/y")  # type: ignore[arg-type]
    assert (precious / "x").read_bytes() == b"mine"


@pytest.mark.parametrize(
    ("call", "step"), [("publish", "link"), ("write", "link"), ("replace", "replace"), ("delete", "unlink")]
)
def test_a_link_that_takes_a_folders_place_meanwhile_is_not_followed(
    call: str, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at a folder and what is done there: it is done in the folder that was looked at."""
    root, precious = tmp_path / "out", tmp_path / "precious"
    write_jsonl(precious / "x", b"mine")
    write_jsonl(root / "sub" / "x", b"old")
    name = "x" if call in ("replace", "delete") else "y"
    real = getattr(os, step)

    def swapped(*args: Any, **where: Any) -> None:
        if not (root / "moved").exists():
            (root / "sub").rename(root / "moved")
            (root / "sub").symlink_to(precious)
        real(*args, **where)

    store = open_store(str(root), scratch=f"{root}/_curate/tmp/run")
    monkeypatch.setattr(os, step, swapped)
    CALLS[call](store, f"{root}/sub/{name}")  # type: ignore[arg-type]
    assert {path.name: path.read_bytes() for path in precious.iterdir()} == {"x": b"mine"}
    there = {path.name: path.read_bytes() for path in (root / "moved").iterdir()}
    assert there == {"delete": {}, "replace": {"x": b"new"}}.get(call, {"x": b"old", "y": b"new"})
