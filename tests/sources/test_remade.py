"""Outputs of another job that was made anew as other files: nothing has the rows of the old and of the new ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import curate
from curate.errors import ConfigError
from curate.ledger.summary import RunState
from tests.job.inline import everything, numbered, output_rows, run_job, write_jsonl
from tests.resume.test_removal import Parted
from tests.sources.test_upstream import Copy

ANEW: dict[str, Any] = {"overwrite": True, "confirm": lambda _: True}
SPLIT = 1_000
"""Bytes of a shard, so that a file of 40 rows has several."""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for number, name in enumerate("am"):
        write_jsonl(tmp_path / "in" / f"{name}.jsonl", numbered(100 * number, 100 * number + 3))
    return tmp_path / "in"


def shuffled(source: Path, first: Path, shards: int) -> None:
    rows = curate.read_json(source).random_shuffle(seed=1, num_shards=shards)
    rows.write_parquet(first, backend="inline", overwrite=True, yes=True)


def other_parts(source: Path, first: Path) -> Callable[[], Any]:
    shuffled(source, first, 2)
    return lambda: shuffled(source, first, 3)


def other_name(source: Path, first: Path) -> Callable[[], Any]:
    def anew() -> None:
        (source / "a.jsonl").rename(source / "b.jsonl")
        run_job(Parted(), source, first, **ANEW)

    run_job(Parted(), source, first)
    return anew


def split_anew(source: Path, first: Path) -> Callable[[], Any]:
    def anew() -> None:
        write_jsonl(source / "m.jsonl", numbered(200, 260))
        run_job(Parted(shard_bytes=SPLIT), source, first, redo_stale=True)

    write_jsonl(source / "m.jsonl", numbered(100, 140))
    run_job(Parted(shard_bytes=SPLIT), source, first)
    return anew


@pytest.mark.parametrize(
    ("made", "folder"),
    [(other_parts, ""), (other_name, ""), (other_name, "_side/copy"), (split_anew, ""), (split_anew, "_side/copy")],
)
@pytest.mark.parametrize("beside", [True, False])
def test_nothing_is_there_twice(source: Path, tmp_path: Path, made: Any, beside: bool, folder: str) -> None:
    """A plain rerun is refused, and changes nothing; what is told to do ends with the rows of now."""
    first, out = tmp_path / "first", tmp_path / "out"
    plain = write_jsonl(tmp_path / "plain" / "x.jsonl", numbered(900, 903)).parent
    anew = made(source, first)
    read = [*[str(plain)] * beside, str(first / folder)]
    assert run_job(Copy(), read, out).state is RunState.COMPLETE
    anew()
    before = everything(out)
    with pytest.raises(ConfigError, match=f"{first} was made anew and has other outputs now") as caught:
        run_job(Copy(), read, out)
    assert everything(out) == before
    told = str(caught.value)
    asked = {"overwrite": True, "confirm": lambda _: True} if "overwrite=True" in told else {"drop_removed": True}
    asked |= {"redo_stale": True} if "redo_stale=True" in told else {}
    assert run_job(Copy(), read, out, **asked).state is RunState.COMPLETE
    now = [row["n"] for one in read for row in _rows(Path(one))]
    assert Counter(row["n"] for row in output_rows(out)) == Counter(now)
    assert run_job(Copy(), read, out).attempts == 0


def _rows(folder: Path) -> Any:
    if folder.name == "plain":
        return numbered(900, 903)
    return [row for path in folder.glob("*.parquet") for row in curate.read_parquet(path).take_all()]


@pytest.mark.parametrize("of_job", [True, False])
def test_what_was_removed_is_kept_beside_new_inputs(source: Path, tmp_path: Path, of_job: bool) -> None:
    """Whether a job reads files or outputs that were made of them: the rows of a removed one are in no other one."""
    first, out = tmp_path / "first", tmp_path / "out"

    def step() -> Any:
        if of_job:
            run_job(Copy(), source, first, drop_removed=True)
        return run_job(Copy(), first if of_job else source, out)

    step()
    (source / "a.jsonl").unlink()
    write_jsonl(source / "z.jsonl", numbered(500, 503))
    ended = step()
    assert (ended.state, ended.missing) == (RunState.COMPLETE, (1, 1))
    assert sorted(row["n"] for row in output_rows(out)) == [0, 1, 2, 100, 101, 102, 500, 501, 502]
