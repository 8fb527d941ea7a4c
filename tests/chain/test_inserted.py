"""Steps that come to read other steps than their outputs were made of, or inputs before those that they have."""

from __future__ import annotations

from pathlib import Path

import pytest

from curate.chain.chain import Chain
from curate.errors import ConfigError
from tests.chain.chains import place, predicted, ran
from tests.job.inline import everything, write_jsonl

__all__ = ["place"]

FIRST = '[steps.clean]\njob = "steps_of_test.py:Clean"\ninput = "in/0[0-2].jsonl"\noutput = "out/clean"\n'
BETWEEN = '[steps.between]\njob = "steps_of_test.py:Copied"\ninput_from = "clean"\noutput = "out/between"\n'


def last(reads: str) -> str:
    return f'[steps.last]\njob = "steps_of_test.py:Copied"\ninput_from = {reads}\noutput = "out/last"\n'


def chain(place: Path, *steps: str) -> Chain:
    (place / "pipeline.toml").write_text("".join(steps))
    return Chain.read(place / "pipeline.toml")


def test_one_that_is_put_in_between_is_not_made_where_the_step_behind_it_is_refused(place: Path) -> None:
    """What helps is named: no option that nobody has given. What was made stays as it is."""
    assert ran(chain(place, FIRST, last('"clean"')).run(backend="inline")) == {"clean": 3, "last": 3}
    before = everything(place / "out")
    between = chain(place, FIRST, BETWEEN, last('"between"'))
    said = (
        "step 'last': its output .* was made of files in .*/out/clean, and between, .* anew with overwrite=\\['last'\\]"
    )
    for drop in (False, True):
        with pytest.raises(ConfigError, match=said) as refused:
            between.run(backend="inline", drop_removed=drop)
        assert "drop_removed" not in str(refused.value)
    assert everything(place / "out") == before
    anew = between.run(backend="inline", overwrite=["last"], yes=True)
    assert (anew.state, ran(anew)) == ("complete", {"between": 3, "last": 3})
    assert predicted(between) == []


def test_a_step_that_was_removed_as_a_whole_is_made_again_and_what_reads_it(place: Path) -> None:
    """That none of their inputs is there for a while makes them no others."""
    two = chain(place, FIRST, last('"clean"'))
    two.run(backend="inline")
    for path in sorted((place / "out" / "clean").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    again = two.run(backend="inline")
    assert (again.state, ran(again)) == ("complete", {"clean": 3, "last": 3})


@pytest.mark.parametrize(("new", "between"), [("00", False), ("02.a", True), ("02.z", True)])
def test_what_an_exact_deduplication_would_not_take_is_refused_before_it_is_made(
    place: Path, new: str, between: bool
) -> None:
    """Also where a step in between hands it on. What is said before a run is what the run does."""
    unique = f"""
[steps.unique]
job = "steps_of_test.py:Unique"
input_from = "{"between" if between else "clean"}"
output = "out/unique"
"""
    (place / "in" / "00.jsonl").rename(place / "00.jsonl")
    (place / "in" / "02.jsonl").rename(place / "in" / "02.k.jsonl")
    first = FIRST.replace("in/0[0-2].jsonl", "in/0[0-2]*.jsonl")
    steps = chain(place, first, BETWEEN if between else "", unique)
    assert steps.run(backend="inline").state == "complete"
    write_jsonl(place / "in" / f"{new}.jsonl", [{"n": 1}])
    made = ["clean", *["between"] * between]
    if new != "02.z":
        assert predicted(steps) == made
        before = everything(place / "out")
        with pytest.raises(ConfigError, match=r"step 'unique': .* takes new inputs only behind all others"):
            steps.run(backend="inline")
        assert everything(place / "out") == before
        assert steps.run(backend="inline", overwrite=["unique"], yes=True).state == "complete"
    else:
        assert predicted(steps) == [*made, "unique"]
        assert steps.run(backend="inline").state == "complete"
    assert predicted(steps) == []


def test_what_was_planned_and_not_made_before_others_is_refused_before_it_is_made(place: Path) -> None:
    """As a kill of the step leaves it that the deduplication reads."""
    unique = '[steps.unique]\njob = "steps_of_test.py:Unique"\ninput_from = "clean"\noutput = "out/unique"\n'
    steps = chain(place, FIRST, unique)
    (place / "in" / "00.jsonl").rename(place / "00.jsonl")
    assert steps.run(backend="inline").state == "complete"
    (place / "00.jsonl").rename(place / "in" / "00.jsonl")
    Chain([steps.steps[0]]).run(backend="inline")
    (place / "out" / "clean" / "00.parquet").unlink()
    assert predicted(steps) == ["clean"]
    with pytest.raises(ConfigError, match=r"step 'unique': .* takes new inputs only behind all others"):
        steps.run(backend="inline")
