"""The job that splits a corpus into train, validation and test."""

from __future__ import annotations

import math
import random
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.dataset.read.memory import from_items
from curate.errors import ConfigError
from curate.testing.local import LocalRun, run_local
from jobs.split import Split
from tests.job.inline import everything, outputs, quarantined, run_job, write_jsonl, write_parquet

Rows = list[dict[str, Any]]
PARTS = {"train": 0.8, "validation": 0.15, "test": 0.05}


def parts_of(ran: LocalRun, main: str = "train") -> dict[Any, str]:
    """Returns the part of each id. None may be in two."""
    found: dict[Any, str] = {}
    for part, table in {main: ran.table, **ran.sides}.items():
        for id in table["id"].to_pylist():
            assert found.setdefault(id, part) == part
    return found


def numbered(number: int) -> Rows:
    return [{"id": f"d{at}", "text": f"text {at}", "n": at} for at in range(number)]


def test_each_row_is_in_one_part_and_shares_hold() -> None:
    """With all columns, in order; the books have where rows went; chi-square over parts and what nobody asked for."""
    rows = numbered(10_000)
    ran = run_local(Split(parts=PARTS), rows)
    tables = {"train": ran.table, **ran.sides}
    assert sum(table.num_rows for table in tables.values()) == len(rows)
    for table in tables.values():
        assert table.schema == ran.table.schema
        assert table["n"].to_pylist() == sorted(table["n"].to_pylist())
        # Of 9 degrees of freedom, beyond 27.9 one time in a thousand.
        found = Counter(at * 10 // len(rows) for at in table["n"].to_pylist())
        assert sum((found[one] - table.num_rows / 10) ** 2 / (table.num_rows / 10) for one in range(10)) < 27.9
    square = sum((tables[name].num_rows - len(rows) * of) ** 2 / (len(rows) * of) for name, of in PARTS.items())
    assert square < 13.8
    books = ran.summary.books
    assert books.dropped == {f"in {name}": ran.sides[name].num_rows for name in ("test", "validation")}
    assert books.counters == {f"side {name}": ran.sides[name].num_rows for name in ("test", "validation")}


def test_a_document_stays_where_it_is_as_the_corpus_grows(tmp_path: Path) -> None:
    """More files, before and behind: only these are written. In other files, orders and widths of ids, too."""
    rows = [{"id": at, "text": "t"} for at in range(600)]
    source, out, job = tmp_path / "in", tmp_path / "out", Split(parts=PARTS)
    write_parquet(source / "m.parquet", rows[200:400])
    assert run_job(job, source, out).state == "complete"
    before = {name: data for name, data in everything(out).items() if not name.startswith("_curate/")}
    write_parquet(source / "z.parquet", rows[400:])
    write_parquet(source / "a.parquet", rows[:200])
    assert run_job(job, source, out).books.rows_in == 600
    assert before == {name: data for name, data in everything(out).items() if name in before}
    found: dict[int, str] = {}
    for name, table in outputs(out).items():
        part = name.split("/")[1] if name.startswith("_side/") else "train"
        found |= dict.fromkeys(table["id"].to_pylist(), part)
    mixed = random.Random(1).sample(rows, 600)
    assert found == parts_of(run_local(job, mixed))
    narrow = pa.table({"id": pa.array([row["id"] for row in mixed], pa.int16())})
    assert found == parts_of(run_local(job, narrow))


@given(
    st.lists(st.tuples(st.sampled_from("abcde"), st.none() | st.sampled_from("abc")), max_size=30), st.integers(0, 3)
)
def test_rows_of_a_cluster_are_on_one_side(given: list[tuple[str, str | None]], seed: int) -> None:
    """And a row without one goes by its id, as the cluster that is called after it does."""
    rows = [{"at": at, "id": id, "cluster": cluster} for at, (id, cluster) in enumerate(given)]
    ds = from_items([*rows, {"at": -1, "id": "-", "cluster": None}])
    left = ds.split_off({"test": 0.5}, column="id", cluster_column="cluster", seed=seed)
    train = {row["at"] for row in left.iter_rows()}
    sides = defaultdict(set)
    for row in rows:
        sides[row["cluster"] if row["cluster"] is not None else row["id"]].add(row["at"] in train)
    assert all(len(one) == 1 for one in sides.values())


def test_near_copies_are_on_one_side_of_a_split() -> None:
    """With the clusters that deduplication lists: `kept_id` for the rows that are like another, null for that one."""
    rows = [{"id": f"d{at}", "kept_id": None if at % 4 == 0 else f"d{at - at % 4}"} for at in range(400)]
    parts = parts_of(run_local(Split(parts=PARTS, cluster_column="kept_id"), rows))
    assert all(len({parts[f"d{at + of}"] for of in range(4)}) == 1 for at in range(0, 400, 4))
    alone = parts_of(run_local(Split(parts=PARTS), rows))
    assert {id: alone[id] for id in alone if int(id[1:]) % 4 == 0} == {
        id: parts[id] for id in alone if int(id[1:]) % 4 == 0
    }


def test_parts_seeds_and_the_main_one() -> None:
    """Any names; any part is the output; another seed moves rows; a part may be resized at the main one's cost."""
    rows = numbered(2000)
    ran = run_local(Split(parts={"a": 0.5, "b": 0.5}, main_part="b"), rows)
    assert set(ran.sides) == {"a"}
    parts = parts_of(ran, "b")
    other = parts_of(run_local(Split(parts={"a": 0.5, "b": 0.5}, main_part="b", seed=1), rows), "b")
    assert 800 < sum(parts[id] == other[id] for id in parts) < 1200
    small = parts_of(run_local(Split(parts={"test": 0.1, "train": 0.9}), rows))
    large = parts_of(run_local(Split(parts={"test": 0.2, "train": 0.8}), rows))
    assert {id for id, part in small.items() if part == "test"} < {id for id, part in large.items() if part == "test"}


def test_rows_without_an_id_are_set_aside(tmp_path: Path) -> None:
    """With a cluster, too: what has no name cannot be found again."""
    rows = [{"id": "a", "c": None}, {"id": None, "c": "x"}, {"id": "b", "c": "x"}, {"id": None, "c": None}]
    summary = run_job(
        Split(parts=PARTS, cluster_column="c"), write_jsonl(tmp_path / "in.jsonl", rows), tmp_path / "out"
    )
    assert [(row["line"], row["reason"]) for row in quarantined(tmp_path / "out")] == [(2, "no id"), (4, "no id")]
    assert summary.books.rows_in == 4
    assert summary.books.quarantined == 2


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"parts": {"train": 0.98, "test": 0.01}}, "test 0.01 + train 0.98 = 0.99, expected 1; give 0.01 more to one"),
        ({"parts": {"train": 0.98, "test": 0.03}}, "test 0.03 + train 0.98 = 1.01, expected 1; give 0.01 less to one"),
        ({"parts": {}}, "nothing = 0, expected 1; give 1 more"),
        ({"parts": {"train": 1.0, "test": 0.0}}, "the share of 'test' is 0, expected more than 0 and less than 1"),
        ({"parts": {"train": 1.5, "test": -0.5}}, "the share of 'test' is -0.5, expected more than 0"),
        ({"parts": {"train": math.inf, "test": 0.5}}, "the share of 'train' is inf, expected more than 0"),
        (
            {"parts": {"tarin": 0.9, "test": 0.1}},
            "there is no part 'train'; did you mean 'tarin'?; there are tarin, test",
        ),
        ({"parts": {"train": 0.9, "a/b": 0.1}}, "'a/b' cannot be the name of an extra output"),
        (
            {"parts": {"train": 0.8, "Test": 0.1, "test": 0.1}},
            "the extra outputs 'Test' and 'test' differ by small and capital letters alone, and are one folder on some",
        ),
        ({"id_column": "ids"}, "there is no column 'ids'; did you mean 'id'?"),
        ({"cluster_column": "clutser"}, "there is no column 'clutser'"),
        ({"seed": -1}, "seed is -1, expected a whole number, at least 0"),
    ],
)
def test_what_makes_no_parts_is_refused(given: dict[str, Any], said: str) -> None:
    """With the arithmetic, before anything runs."""
    with pytest.raises(ConfigError, match=re.escape(said)):
        run_local(Split(**given), numbered(3))


def test_the_main_part_has_no_folder_that_another_could_be_in() -> None:
    ran = run_local(Split(parts={"Test": 0.5, "test": 0.5}, main_part="test"), numbered(30))
    assert set(parts_of(ran, "test").values()) == {"Test", "test"}


def test_shares_that_are_1_but_for_rounding_are_1() -> None:
    rows = numbered(300)
    parts = {f"p{at}": 0.1 for at in range(10)}
    ran = run_local(Split(parts=parts, main_part="p9"), rows)
    assert set(parts_of(ran, "p9").values()) == set(parts)
    assert run_local(Split(parts={"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}, main_part="c"), rows).summary.state == "complete"


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())]
)
def test_the_kind_of_array_does_not_matter(kind: pa.DataType) -> None:
    ids = [f"d{at}" for at in range(100)]
    table = pa.table(
        {
            "id": pa.array(ids).cast(kind)
            if not pa.types.is_dictionary(kind)
            else pa.array(ids).dictionary_encode().cast(kind)
        }
    )
    assert parts_of(run_local(Split(parts=PARTS), table)) == parts_of(
        run_local(Split(parts=PARTS), [{"id": id} for id in ids])
    )
