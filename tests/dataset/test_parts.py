"""A Dataset is put together from parts, and is one frozen value all the same."""

from __future__ import annotations

import copy
import importlib
import pickle
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields
from inspect import Parameter, isfunction, signature
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import curate
from curate.errors import ConfigError
from curate.operators.foreign import NAMES
from curate.operators.ray_data import ARGUMENTS, FUNCTIONS, FUNCTIONS_OF_OTHERS, METHODS, USING

PARTS = curate.Dataset.__mro__[1:-1]


def test_a_method_is_in_one_part() -> None:
    """So that the order of the parts means nothing."""
    named = Counter(name for part in PARTS for name in vars(part) if not name.startswith("__"))
    assert [name for name, count in named.items() if count > 1] == []
    own = {name for name in vars(curate.Dataset) if not name.startswith("_")}
    assert own == set()


def test_no_part_has_state_of_its_own() -> None:
    """What a dataset is, its first part says: the plan, and how it runs."""
    ds = curate.range(3)
    assert [one.name for one in fields(ds)] == ["_plan", "_how", "_ran"]
    assert list(signature(curate.Dataset).parameters) == ["_plan", "_how"]
    assert not hasattr(ds, "__dict__")
    with pytest.raises(FrozenInstanceError):
        ds._plan = ds.limit(1)._plan  # type: ignore[misc]


def test_what_a_method_returns_is_a_dataset() -> None:
    """Whichever part it is of; equal by plan and options, and whole after pickling."""
    ds = curate.range(3)
    for made in (ds.limit(2), ds.sort("id"), ds.groupby("id").count(), ds.using(), ds.materialize()):
        assert type(made) is curate.Dataset
        assert type(pickle.loads(pickle.dumps(made))) is curate.Dataset
    assert ds.limit(2) == curate.range(3).limit(2) != ds.limit(1)
    assert pickle.loads(pickle.dumps(ds.limit(2))).take_all() == [{"id": 0}, {"id": 1}]


def test_it_says_in_a_line_what_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was asked for, and the columns as far as they are known: of rows on their way, and grouped ones."""
    (tmp_path / "in.jsonl").write_text('{"n": 1}\n')
    monkeypatch.chdir(tmp_path)
    read = curate.read_json("in.jsonl")
    (tmp_path / "in.jsonl").unlink()  # nothing is read for it
    assert str(read) == repr(read) == "Dataset(read_json('in.jsonl'); n: int64)"
    kept = read.filter(curate.col("n") > 2).limit(1)
    assert repr(kept) == "Dataset(read_json('in.jsonl').filter((n > 2)).limit(1); n: int64)"
    assert repr(read.map(len)) == "Dataset(read_json('in.jsonl').map(len); columns are known once it runs)"
    assert repr(read.groupby("n")) == "GroupedData(read_json('in.jsonl').groupby('n'))"
    both = curate.range(2).union(curate.range(3).limit(1)).zip(curate.range(3))
    assert repr(both) == "Dataset(range(2).union(range(3).limit(1)).zip(range(3)); id: int64, id_1: int64)"
    wide = curate.from_arrow(pa.table({f"c{number}": [1] for number in range(11)}))
    assert repr(wide).endswith(
        "; c0: int64, c1: int64, c2: int64, c3: int64, c4: int64, c5: int64, c6: int64, "
        "c7: int64, c8: int64, c9: int64, and 1 column more)"
    )


def test_a_long_plan_is_a_line_all_the_same() -> None:
    """With what it begins with, and how it ends."""
    long = curate.range(2)
    for number in range(200):
        long = long.limit(number)
    assert repr(long).startswith("Dataset(range(2).(190 more).limit(190).")
    assert len(repr(long)) < 300


def test_a_summary_is_a_line(tmp_path: Path) -> None:
    """How it ended; all else is in `as_dict()`."""
    summary = curate.range(3).limit(2).write_parquet(tmp_path / "out", backend="inline")
    told = "complete, 1 of 1 shard done, 3 rows in, 2 out"
    assert repr(summary) == str(summary) == f"Summary(write_parquet: {told}, output {str(tmp_path / 'out')!r})"


def test_a_summary_tells_of_rows_that_were_set_aside(tmp_path: Path) -> None:
    """In its line, too: else rows are gone of which it says nothing."""
    (tmp_path / "in.jsonl").write_text('{"n": 1}\n{"n": \n{"n": 3}\n')
    summary = curate.read_json(tmp_path / "in.jsonl").write_parquet(tmp_path / "out", backend="inline")
    assert "done, 3 rows in, 2 out, 1 quarantined, output" in repr(summary)


def test_every_method_of_ray_data_is_there_or_answered() -> None:
    """In one line that says what to write; and what is there is not answered."""
    theirs = pytest.importorskip("ray.data").Dataset
    public = {name for name in dir(theirs) if not name.startswith("_")}
    assert {name for name in public if not hasattr(curate.Dataset, name)} == METHODS.keys()
    for name, instead in METHODS.items():
        assert not hasattr(curate.range(1), name)
        with pytest.raises(AttributeError, match=f"^a curate.Dataset has no {name}: {re.escape(instead)}$"):
            getattr(curate.range(1), name)


def test_methods_of_other_libraries_are_answered() -> None:
    """Of a dataset that is grouped, too; none of them is there, so that nothing that is there is answered."""
    ds = curate.range(1)
    for name, instead in NAMES.items():
        with pytest.raises(AttributeError, match=f"^a curate.Dataset has no {name}: {re.escape(instead)}$"):
            getattr(ds, name)
    with pytest.raises(AttributeError, match=r"^a curate.GroupedData has no agg: write aggregate\("):
        ds.groupby("id").agg  # noqa: B018
    with pytest.raises(AttributeError, match=r"^a curate.GroupedData has no map_group; did you mean 'map_groups'\?$"):
        ds.groupby("id").map_group  # noqa: B018


def test_every_function_of_ray_data_is_there_or_answered() -> None:
    """Those that make a dataset, in the same way."""
    theirs = pytest.importorskip("ray.data")
    public = {name for name in theirs.__all__ if isfunction(getattr(theirs, name))}
    assert public - set(curate.__all__) == FUNCTIONS.keys()
    for name, instead in FUNCTIONS.items():
        with pytest.raises(AttributeError, match=f"^module 'curate' has no attribute '{name}': {re.escape(instead)}$"):
            getattr(curate, name)
    with pytest.raises(AttributeError, match=r"^module 'curate' has no attribute 'read_it'$"):
        curate.read_it  # noqa: B018


def test_functions_of_other_libraries_are_answered() -> None:
    """Those that make a dataset there; and what a page of the manual calls by its name is there."""
    assert not FUNCTIONS_OF_OTHERS.keys() & {*curate.__all__, *FUNCTIONS}
    for name, instead in FUNCTIONS_OF_OTHERS.items():
        with pytest.raises(AttributeError, match=re.escape(f"has no attribute '{name}': {instead}")):
            getattr(curate, name)
    assert not [name for name in NAMES if hasattr(curate.Dataset, name)]
    bare = "import curate; print(curate.training.TokenShards.__name__, curate.testing.FakeClock.__name__)"
    told = subprocess.run([sys.executable, "-c", bare], capture_output=True, text=True, check=True)
    assert told.stdout == "TokenShards FakeClock\n"


def _shared() -> list[tuple[str, Any, Any]]:
    """Returns what has the same name here and in ray.data."""
    theirs = pytest.importorskip("ray.data")
    grouped = importlib.import_module("ray.data.grouped_data").GroupedData
    found = []
    for place, here in ((theirs.Dataset, curate.Dataset), (grouped, curate.GroupedData), (theirs, curate)):
        for name in dir(place):
            pair = getattr(place, name), getattr(here, name, None)
            if not name.startswith("_") and all(map(isfunction, pair)):
                found.append((name, *pair))
    return found


def test_every_argument_of_ray_data_is_there_or_answered() -> None:
    """In one line that says what to write, before anything is read or run."""
    named = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    answered = 0
    for name, theirs, ours in _shared():
        here = signature(ours).parameters
        if any(one.kind is Parameter.VAR_KEYWORD for one in here.values()):
            continue
        for one in signature(theirs).parameters.values():
            if one.kind in named and one.name not in here and not one.name.startswith("_"):
                with pytest.raises(ConfigError, match=rf"^{name}\(\) has no {one.name} in curate: .+$"):
                    ours(**{one.name: None})
                answered += 1
    assert answered > 200


def test_more_arguments_by_position_than_there_are() -> None:
    """As ray.data takes them: the answer is the call as it is written here."""
    ds = curate.range(3)
    with pytest.raises(TypeError, match=r"^join\(\) got more .*: write join\(other, on=\.\.\., how=\.\.\., right_on"):
        ds.join(ds, "inner", 8, on=("id",))  # type: ignore[misc]
    with pytest.raises(
        TypeError, match=r"^take\(\) got more arguments by position than it takes: write take\(limit\)$"
    ):
        ds.take(1, 2)  # type: ignore[call-arg]


def test_what_the_answers_name_is_there() -> None:
    """Methods of a dataset, or what they return."""
    others = FUNCTIONS_OF_OTHERS.values()
    texts = [*METHODS.values(), *NAMES.values(), *others, *FUNCTIONS.values(), *ARGUMENTS.values(), *USING.values()]
    named = {name for text in texts for name in re.findall(r"\b(\w+)\(", text)}
    beside = {
        "DataFrame",
        "col",
        "cast",
        "fill_null",
        "is_valid",
        "from_generator",
        "list",
        "as_numpy_iterator",
        "table",
        "copy",
        "init",
    }
    assert [name for name in named - beside if not hasattr(curate.Dataset, name) and name not in curate.__all__] == []


def test_any_other_name_is_refused_as_ever() -> None:
    """With the one that was meant; copies ask for names that nobody has."""
    ds = curate.range(1)
    with pytest.raises(AttributeError, match=r"^a curate.Dataset has no mapp; did you mean 'map'\?$"):
        ds.mapp  # noqa: B018
    with pytest.raises(AttributeError, match=r"^a curate.Dataset has no _blocs$"):
        ds._blocs  # noqa: B018
    assert copy.deepcopy(ds) == copy.copy(ds) == ds


@pytest.mark.parametrize("how", [list, lambda ds: ds[0], lambda ds: ds["id"], lambda ds: ds[:2]])
def test_who_takes_it_for_a_list_is_told_what_gives_rows(how: Callable[[Any], Any]) -> None:
    """Loops, too."""
    with pytest.raises(TypeError, match=r"a curate\.Dataset holds no rows: iter_rows\(\), take\(5\)"):
        how(curate.range(3))
