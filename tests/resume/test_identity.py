"""What is said of two identities that differ: something, short, and of each part that is another."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import curate
from curate.errors import ConfigError
from curate.resume.differences import apart, identity_difference
from tests.job.inline import refusing
from tests.support.examples import examples

BODY = ",".join(["Pass()"] * 30)
F = f"FunctionDef(name='f',args=arguments(),body=[{BODY}])"
HELPER = f"FunctionDef(name='helper',args=arguments(),body=[{BODY}])"
COMPILED = "9501970064017c0064021900000000000000000089017a00000069015300 () ('r',) ('k',) (None, 'v', 'id')"


@pytest.mark.parametrize(
    ("one", "other", "says"),
    [
        (F, F.replace("Pass", "Pause", 1), "the code of f ("),
        (f"{F}\n{HELPER}", f"{F}\n{HELPER.replace('Pass', 'Pause', 1)}", "the code of f ("),
        (f"{F}\nk = int 1", f"{F}\nk = int 2", "k = int 1']], you asked for "),
        (f"{F}\nk = str '{'x' * 100}'", f"{F}\nk = str '{'x' * 99}y'", "xxxy'"),
        (f"{F}\nk = dict({'x' * 900} int 1)\nj = 1", f"{F}\nk = dict({'x' * 900} int 2)\nj = 1", "xx int 2)"),
        (COMPILED, COMPILED.replace("9501", "9502"), "the code of a function ("),
        (f"{COMPILED}\nk = int 1", f"{COMPILED}\nk = int 2", "k = int 2"),
        ("a" * 100, "a" * 99 + "b", "aaab"),
        ("type Add\naf4b22e26d8672a9", "type Add\naf4b22e26d8672aa", "the code of Add ("),
        (f"type Add\naf4b22e26d8672a9\n{HELPER}", "type Add\naf4b22e26d8672a9", "the code of Add ("),
        (f"partial {F} list(tuple(int 1))", f"partial {F} list(tuple(int 2))", "with list(tuple(int 2))"),
        (f"partial {F} list(tuple())", f"partial {HELPER} list(tuple())", "a partial of the code of helper ("),
    ],
    ids=[
        *(
            "code",
            "a helper's code",
            "a value",
            "a long value",
            "a longer one",
            "compiled",
            "a value of compiled code",
            "no code",
        ),
        *("class", "a class's helper", "a value of a partial", "code of a partial"),
    ],
)
def test_code_is_told_in_a_few_words_and_both_sides_are_told_apart(one: str, other: str, says: str) -> None:
    text = identity_difference({"operators": [["map", one]]}, {"operators": [["map", other]]})
    theirs, ours = text.split("made with ")[1].split(", you asked for ")
    assert theirs != ours
    assert says in text
    assert len(text) < 300


def test_an_exchange_that_reads_something_else_is_told_so() -> None:
    """What it reads is told by a hash alone, where stages are not."""
    sort = ["sort", {"keys": [["n", False]]}]
    assert identity_difference({"exchange": [sort, ["a"]]}, {"exchange": [sort, ["b"]]}) == (
        "  what the exchange reads is another: its inputs, or a step before it"
    )
    assert "you asked for [['shuffle'" in identity_difference(
        {"exchange": [sort, ["a"]]}, {"exchange": [["shuffle"], ["b"]]}
    )
    assert identity_difference({"exchange": [sort, ["a"]]}, {"exchange": [sort, ["a"]]}) == ""


def test_of_many_steps_those_are_told_that_are_others() -> None:
    """Each by its place, and what is long in it where it differs."""
    steps = [["map", f"{F}\nk = int {number}"] for number in range(9)]
    others = [*steps[:3], ["map", f"{F}\nk = int 30"], *steps[4:8], ["filter", COMPILED, "filter"]]
    lines = identity_difference({"operators": steps}, {"operators": others}).splitlines()
    assert [line.partition(":")[0] for line in lines] == ["  operators[3] map", "  operators[8] map"]
    assert "k = int 3']" in lines[0]
    assert "k = int 30']" in lines[0]
    (line,) = identity_difference({"operators": steps}, {"operators": [*steps[:5], *steps[6:]]}).splitlines()
    assert "k = int 5']], you asked for []" in line


_VALUES = st.recursive(
    st.none()
    | st.integers(-3, 3)
    | st.text("ab\n=( ", max_size=9)
    | st.sampled_from([F, f"{F}\nk = {'y' * 99}", COMPILED]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=20,
)


@settings(max_examples=examples(1000))
@given(_VALUES, _VALUES, st.sampled_from(["", "x" * 300]))
def test_whatever_differs_both_sides_are_told_apart_and_short(one: Any, other: Any, before: str) -> None:
    told = list(apart("a", [before, one], [before, other])) if one != other else [("a", "1", "2")]
    assert told
    for name, theirs, ours in told:
        assert name.startswith("a")
        assert theirs != ours
        assert max(len(theirs), len(ours)) <= 206


def test_what_an_exchange_reads_is_told_by_its_stages(tmp_path: Path) -> None:
    """Also once these were removed, as where the job is complete; not that the first run chose a seed."""

    def run(least: int, parts: int = 2) -> Any:
        rows = curate.from_items([{"n": n} for n in range(9)]).random_shuffle()
        words = rows.filter(lambda row: row["n"] > least)
        rows = words.sort("n").map(lambda row: {"n": row["n"] + 1}).repartition(parts)
        return rows.write_parquet(tmp_path / "out", backend="inline")

    run(2)
    run(2)
    with refusing("  in a step before the exchange, sort(n): map:\n    operators") as caught:
        run(3)
    assert "least = int 2" in str(caught.value)
    assert "least = int 3" in str(caught.value)
    assert "shuffle" not in str(caught.value)
    with refusing("exchange: made with [['repartition', 2]], you asked for [['repartition', 3]]"):
        run(2, parts=3)


@pytest.mark.parametrize("steps", [lambda ds: ds, lambda ds: ds.random_shuffle(seed=1)])
@pytest.mark.parametrize("inner", ["out/a", "out/a/b", "out/part-00000-of-00001.d"])
def test_no_job_begins_inside_of_the_output_of_another(
    tmp_path: Path, inner: str, steps: Callable[[curate.Dataset], curate.Dataset]
) -> None:
    """Who reads that would read both, and verifying calls it damaged. One that is there already goes on, and can be
    made anew; beside it, one begins."""
    rows = steps(curate.range(9))
    rows.write_parquet(tmp_path / inner, backend="inline")
    rows.write_parquet(tmp_path / "out", backend="inline")
    rows.write_parquet(tmp_path / inner, backend="inline")
    rows.write_parquet(tmp_path / inner, backend="inline", overwrite=True, yes=True)
    with refusing(f"the output {tmp_path / inner}2 lies in {tmp_path / 'out'}, the output of another job"):
        rows.write_parquet(tmp_path / f"{inner}2", backend="inline")
    assert not (tmp_path / f"{inner}2").exists()
    rows.write_parquet(tmp_path / "out2", backend="inline")


def test_a_sample_without_a_seed_is_told_with_that_of_before(tmp_path: Path) -> None:
    """Each run of a script draws one, so the next run of it is refused; with the one that is named, it goes on."""

    def run(seed: int | None = None) -> Any:
        rows = curate.range(99).map(lambda row: row).random_sample(0.5, seed=seed)
        return rows.write_parquet(tmp_path / "out", backend="inline")

    run()
    with refusing("  without a seed, random_sample draws one each time: seed=") as caught:
        run()
    found = re.search(r"seed=(\d+) keeps the rows of before", str(caught.value))
    assert found is not None
    run(int(found[1]))
    with pytest.raises(ConfigError) as other:
        run(3)
    assert "without a seed" not in str(other.value)
