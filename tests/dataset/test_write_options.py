"""A dataset is written with the options of a job's run; messages call them as Python gives them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import curate
from curate.errors import CorruptInput, CurateError, ExchangeFailed, WriteFailed
from curate.observe.summary_text import render
from curate.operators.ray_data import USING
from tests.job.inline import output_rows, refusing, write_jsonl
from tests.support.writes import failed_write


@pytest.fixture
def source(tmp_path: Path) -> Path:
    write_jsonl(tmp_path / "in" / "a.jsonl", [{"n": 1}, {"n": 2}])
    return tmp_path / "in"


def doubled(source: Path, factor: int = 2) -> Any:
    return curate.read_json(source).with_column("n", curate.col("n") * factor)


def test_overwrite_makes_it_anew(source: Path, tmp_path: Path) -> None:
    """What another plan made is refused, and replaced where that is asked for and confirmed."""
    out = tmp_path / "out"
    doubled(source).write_parquet(out, backend="inline")
    with refusing("start over with overwrite=True"):
        doubled(source, 3).write_parquet(out, backend="inline")
    with refusing("overwrite=True was not confirmed"):
        doubled(source, 3).write_parquet(out, backend="inline", overwrite=True)
    assert output_rows(out) == [{"n": 2}, {"n": 4}]
    assert doubled(source, 3).write_parquet(out, backend="inline", overwrite=True, yes=True).state == "complete"
    assert output_rows(out) == [{"n": 3}, {"n": 6}]


def test_what_is_stale_is_made_again(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    doubled(source).write_json(out, backend="inline")
    write_jsonl(source / "a.jsonl", [{"n": 5}])
    assert doubled(source).write_json(out, backend="inline").stale == 1
    ended = doubled(source).write_json(out, backend="inline", redo_stale=True)
    assert (ended.stale, ended.books.rows_out) == (0, 1)


def test_what_failed_is_tried_again(source: Path, tmp_path: Path) -> None:
    with refusing("retry_failed=True"):
        doubled(source).write_csv(tmp_path / "out", backend="inline", retry_failed=True)
    assert not (tmp_path / "out").exists()


def test_rows_in_memory_are_overwritten_too(tmp_path: Path) -> None:
    for number in (1, 2):
        curate.from_items([number]).write_parquet(tmp_path / "out", backend="inline", overwrite=number > 1, yes=True)
        assert output_rows(tmp_path / "out") == [{"item": number}]


def test_an_unknown_option_is_refused(source: Path, tmp_path: Path) -> None:
    """With the one that was meant, before anything is read; one that means nothing for a dataset, with the reason."""
    with pytest.raises(
        TypeError, match=r"write_parquet\(\) got an unexpected .* 'overwite'; did you mean 'overwrite'\?"
    ):
        doubled(source).write_parquet(tmp_path / "out", overwite=True)
    with refusing(
        "write_json() has no accept_code_change in curate: a dataset has no version: it is known by the code"
    ):
        doubled(source).write_json(tmp_path / "out", accept_code_change=True)
    assert not (tmp_path / "out").exists()


def test_a_part_of_the_shards(tmp_path: Path) -> None:
    """As of a job: the rest is done by a write without it."""
    for name in "abc":
        write_jsonl(tmp_path / "in" / f"{name}.jsonl", [{"n": 1}])
    ended = doubled(tmp_path / "in").write_json(tmp_path / "out", backend="inline", limit=2)
    assert (ended.done, ended.pending, ended.only) == (2, 1, "limit=2")
    assert "this run was restricted by limit=2" in render(ended)
    ended = doubled(tmp_path / "in").write_json(tmp_path / "out", backend="inline", sample="100%", max_in_flight=1)
    assert (ended.done, ended.skipped) == (3, 2)


BAD = '{"n": 1}\n' + 30 * "nothing\n" + '{"n": 2}\n'


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    """A file of two rows and thirty lines that are none."""
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "a.jsonl").write_text(BAD)
    return tmp_path / "bad"


def test_how_many_bad_rows_a_write_takes(bad: Path, tmp_path: Path) -> None:
    """By an argument or by `using`, of which the argument holds; it is outside the identity."""
    strict = doubled(bad).using(max_bad_rows=29)
    ended = failed_write(strict.write_parquet, tmp_path / "out", backend="inline")
    assert "30 bad rows before its end, the budget is 29 rows" in ended.failures[0].error
    ended = strict.write_parquet(tmp_path / "out", backend="inline", max_bad_rows="95%")
    assert (ended.state, ended.books.quarantined) == ("complete", 30)


@pytest.mark.parametrize("exchange", [False, True])
@pytest.mark.parametrize("limited", [False, True])
def test_how_many_bad_rows_are_left_out_for_a_consumer(bad: Path, exchange: bool, limited: bool) -> None:
    """Through an exchange, and before a limit, too."""
    ds = doubled(bad).sort("n") if exchange else doubled(bad)
    ds = ds.limit(5) if limited else ds
    with pytest.raises(CurateError, match=r"30 bad rows of 32, the budget is 0\.1% of the rows, at least 10"):
        ds.take_all()
    assert ds.using(max_bad_rows="95%").take_all() == [{"n": 2}, {"n": 4}]
    assert ds.using(max_bad_rows=30).count() == 2
    with refusing("take() has no max_bad_rows in curate: write .using(max_bad_rows=...) before"):
        ds.take(1, max_bad_rows=30)


def test_a_limit_counts_with_them(bad: Path, tmp_path: Path) -> None:
    """What a limit before a write counts, and a checkpoint."""
    ds = doubled(bad).using(max_bad_rows=30)
    ds.limit(1).write_parquet(tmp_path / "out", backend="inline")
    assert output_rows(tmp_path / "out") == [{"n": 2}]
    assert ds.checkpoint(tmp_path / "kept").sort("n", descending=True).take(1) == [{"n": 4}]


@pytest.mark.parametrize("exchange", [False, True])
def test_a_checkpoint_whose_input_changed(source: Path, tmp_path: Path, exchange: bool) -> None:
    """It is made again where that is asked for by `using`; what says that it is out of date says so."""
    kept = doubled(source).checkpoint(tmp_path / "kept")
    ds = kept.sort("n") if exchange else kept
    assert ds.take_all() == [{"n": 2}, {"n": 4}]
    write_jsonl(source / "a.jsonl", [{"n": 5}])
    write_jsonl(source / "b.jsonl", [{"n": 6}])
    again = doubled(source).checkpoint(tmp_path / "kept")
    again = again.sort("n") if exchange else again
    assert again.take_all() == [{"n": 2}, {"n": 4}, {"n": 12}]
    assert again.using(redo_stale=True).take_all() == [{"n": 10}, {"n": 12}]
    (source / "b.jsonl").unlink()
    fewer = doubled(source).checkpoint(tmp_path / "kept").using(drop_removed=True)
    assert fewer.take_all() == [{"n": 10}]


def test_a_checkpoint_before_an_exchange_whose_input_changed(source: Path, tmp_path: Path) -> None:
    """It is made again if that is asked for, with the output; else the write is refused: what was made of old rows
    would be said to be of the new ones, by every run after that."""
    write_jsonl(source / "b.jsonl", [{"n": 3}])

    def write(**options: Any) -> Any:
        ds = doubled(source).checkpoint(tmp_path / "kept").sort("n")
        return ds.write_json(tmp_path / "out", backend="inline", **options)

    again = {"overwrite": True, "yes": True}
    assert write().state == "complete"
    write_jsonl(source / "a.jsonl", [{"n": 5}])
    with refusing("changed after the job began"):
        write(redo_stale=True)
    for output in ("out", "other"):
        with refusing("kept is out of date: the inputs of 1 shard of it, such as 'a', changed since") as caught:
            doubled(source).checkpoint(tmp_path / "kept").sort("n").write_json(
                tmp_path / output, backend="inline", **(again if output == "out" else {})
            )
        asked = "overwrite=True and redo_stale=True" if output == "out" else "redo_stale=True"
        assert str(caught.value).endswith(f"as they are now; run again with {asked}")
    assert curate.read_json(tmp_path / "out").take_all() == [{"n": 2}, {"n": 4}, {"n": 6}]
    assert not (tmp_path / "other").exists()
    assert write(redo_stale=True, **again).state == "complete"
    assert curate.read_json(tmp_path / "out").take_all() == [{"n": 6}, {"n": 10}]
    (source / "b.jsonl").unlink()
    with refusing("'b', are gone since, and an exchange needs the rows of all inputs as they are now"):
        write(**again)
    assert write(drop_removed=True, **again).state == "complete"
    assert curate.read_json(tmp_path / "out").take_all() == [{"n": 10}]


def test_a_checkpoint_that_an_exchange_had_read_before_it_was_made_again(source: Path, tmp_path: Path) -> None:
    """A job that an earlier version began with old rows is not gone on with: its outputs would be of both."""

    def sorted_rows(**options: Any) -> Any:
        ds = doubled(source).checkpoint(tmp_path / "kept").sort("n")
        return ds.write_json(tmp_path / "out", backend="inline", **options)

    doubled(source).checkpoint(tmp_path / "kept").take_all()
    write_jsonl(source / "a.jsonl", [{"n": 5}])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("curate.graph.unready.refuse_outdated", lambda *_, **__: None)
        assert sorted_rows().state == "complete"
    assert sorted_rows().attempts == 0
    with refusing("is out of date") as caught:
        sorted_rows(redo_stale=True)
    assert str(caught.value).partition("as they are now; ")[2].startswith("start over with overwrite=True")
    sorted_rows(redo_stale=True, overwrite=True, yes=True)
    assert curate.read_json(tmp_path / "out").take_all() == [{"n": 10}]


def test_options_that_only_a_write_has(source: Path) -> None:
    ds = doubled(source)
    for name, answer in USING.items():
        with refusing(f"using() has no option {name!r}: {answer}; there are: backend, "):
            ds.using(**{name: 1})
    with refusing("max_failed_shards='-1' is not a number of shards"):
        ds.using(max_failed_shards=-1)
    with refusing("max_bad_rows '1x' is not a number of rows"):
        ds.using(max_bad_rows="1x")


def test_a_checkpoint_of_other_rows(source: Path, tmp_path: Path) -> None:
    """No option overwrites it, whoever reads it: the message says what to do. Done as it says, no old row is left."""

    def kept(factor: int, count: int) -> Any:
        return doubled(source, factor).repartition(count).checkpoint(tmp_path / "kept")

    assert kept(2, 2).write_json(tmp_path / "out", backend="inline").state == "complete"
    other = kept(3, 1)
    advice = "remove this checkpoint, which makes the next run write it anew (with overwrite=True, what reads it too)"
    with refusing(f"choose another output, or {advice}"):
        other.take_all()
    with refusing(f"choose another output, or {advice}"):
        other.write_json(tmp_path / "out", backend="inline", overwrite=True, yes=True)
    shutil.rmtree(tmp_path / "kept")
    assert other.write_json(tmp_path / "out", backend="inline", overwrite=True, yes=True).state == "complete"
    assert curate.read_json(tmp_path / "out").take_all() == other.take_all()


def test_who_is_told_of_a_failure_is_told_where_it_is(tmp_path: Path) -> None:
    """Written, and consumed behind an exchange, which has no ledger that is kept: the line of the function is named."""

    def refuses(row: dict[str, Any]) -> Any:
        raise CorruptInput(f"no {list(row)}")

    line = refuses.__code__.co_firstlineno + 1
    broken = curate.range(3).map(refuses)
    told = rf"CorruptInput: no \[.id.\], at \S*{Path(__file__).name}:{line} in refuses"
    with pytest.raises(WriteFailed, match=rf"1 x {told} [\s\S]*a function, [\s\S]* with overwrite=True, yes=True"):
        broken.write_parquet(tmp_path / "out", backend="inline")
    with pytest.raises(ExchangeFailed, match=rf"1 of 1 shards failed: {told}"):
        broken.sort("id").take(1)
    # That is so: the fixed function is another job, and what was asked for is made.
    fixed = curate.range(3).map(lambda row: row)
    assert fixed.write_parquet(tmp_path / "out", backend="inline", overwrite=True, yes=True).state == "complete"


STDOUT = """
import curate
try:
    curate.range(3).map(lambda row: {"a": row["id"]}).groupby("b").count().take(1)
except curate.ConfigError as error:
    print(error)
"""


def test_standard_output_is_what_a_program_prints() -> None:
    """Events go to standard error, whoever logs the first one; and what is wrong with what was asked for is told as
    that, also if it is found behind an exchange."""
    ended = subprocess.run([sys.executable, "-c", STDOUT], capture_output=True, text=True, check=True)
    assert ended.stdout == "groupby('b').count(): there is no column 'b'; there are 'a'\n"
    assert "shard failed" in ended.stderr
