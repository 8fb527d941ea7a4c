"""What is given in place of rows or of a dataset: each such value is refused with what to write for it."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import duckdb
import numpy as np
import pandas
import polars
import pyarrow as pa
import pytest

import curate
from curate import ConfigError

pytestmark = pytest.mark.quick

COLUMNS = {"a": [1, 2], "b": [3, 4]}
FRAMES = [
    (pandas.DataFrame(COLUMNS), r"found pandas.DataFrame; write curate.from_pandas\(df\)"),
    (polars.DataFrame(COLUMNS), r"found polars.DataFrame; write curate.from_polars\(df\)"),
    (polars.LazyFrame(COLUMNS), r"found polars.LazyFrame; write curate.from_polars\(df.collect\(\)\)"),
    (pa.table(COLUMNS), r"found pyarrow.Table; write curate.from_arrow\(table\)"),
    (pa.table(COLUMNS).to_batches()[0], r"found pyarrow.RecordBatch; write curate.from_arrow\(pyarrow.Table.from_b"),
    (pa.table(COLUMNS).to_reader(), r"found pyarrow.RecordBatchReader; write curate.from_arrow\(reader.read_all\(\)\)"),
    (COLUMNS, r"found dict; write curate.from_items\(\[row\]\) for one row, from_arrow\(pyarrow.table\(columns\)\)"),
    (MappingProxyType(COLUMNS), r"found dict; write curate.from_items\(\[row\]\)"),
    ("ab", r"found str; write curate.from_items\(\[text\]\) for one row, read_parquet\(path\)"),
    (b"ab", r"found bytes; write curate.from_items\(\[value\]\)"),
    (3, "found int"),
    (None, "found NoneType"),
]
"""Values that have columns, or letters, or nothing to iterate; and what is said of them."""


class Frame(pandas.DataFrame):
    """A frame of another library that is one of pandas."""


@pytest.mark.parametrize(
    ("given", "said"), [*FRAMES, (Frame(COLUMNS), r"found pandas.DataFrame; write curate.from_pandas\(df\)")]
)
def test_rows_are_made_of_lists_of_rows(given: Any, said: str) -> None:
    """What is iterated by columns made rows of their names."""
    with pytest.raises(ConfigError, match=f"from_items takes a list of rows or values, {said}"):
        curate.from_items(given)


def test_a_set_has_no_order() -> None:
    """That of a set of texts is another one in each process."""
    with pytest.raises(ConfigError, match="a set has another order in each process"):
        curate.from_items({"a", "b"})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "items",
    [(1, 2), (n for n in (1, 2)), np.array([1, 2]), pandas.Series([1, 2]), polars.Series([1, 2]), {1: 0, 2: 0}.keys()],
    ids=lambda items: type(items).__name__,
)
def test_what_is_iterated_by_rows(items: Any) -> None:
    """Tuples, generators, arrays, series and the keys of a dictionary are lists of values."""
    assert curate.from_items(items).take_all() == [{"item": 1}, {"item": 2}]


@pytest.mark.parametrize(
    ("make", "its_own"),
    [
        (curate.from_arrow, "pyarrow.Table"),
        (curate.from_pandas, "pandas.DataFrame"),
        (curate.from_polars, "polars.DataFrame"),
        (curate.from_numpy, ""),
    ],
)
@pytest.mark.parametrize(("given", "said"), FRAMES)
def test_each_function_names_the_one_that_was_meant(
    make: Callable[..., Any], its_own: str, given: Any, said: str
) -> None:
    """The value is named, not what is iterated of it."""
    if f"found {its_own};" in said:
        assert make(given).count() == 2
        return
    with pytest.raises(ConfigError, match=f"takes .*, {said}"):
        make(given)


@pytest.mark.parametrize("join", [lambda ds, one: ds.join(one, on="id"), curate.Dataset.union, curate.Dataset.zip])
@pytest.mark.parametrize(("given", "said"), [*FRAMES, ([{"id": 1}], r"found list; write curate.from_items\(rows\)")])
def test_what_is_put_beside_a_dataset_is_one(join: Callable[..., Any], given: Any, said: str) -> None:
    """Else it is said which function makes one of it."""
    with pytest.raises(ConfigError, match=f"takes curate.Datasets, {said}"):
        join(curate.range(2), given)


def test_a_list_of_datasets() -> None:
    """Each is an argument, as for ray.data."""
    with pytest.raises(ConfigError, match=r"union takes curate.Datasets, found list; write union\(\*datasets\)"):
        curate.range(2).union([curate.range(2)])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "query",
    [
        "select 340282366920938463463374607431768211455::uhugeint as x",
        "select {'a': [1::uhugeint]} as x",
        "select '101'::bit as x",
        "select [timetz '01:02:03+01'] as x",
        "select '1'::bignum as x",
        "select 170141183460469231731687303715884105727::hugeint as x",
        "select [100000000000000000000000000000000000000::hugeint] as x",
    ],
)
def test_values_that_duckdb_gives_to_arrow_as_others(query: str) -> None:
    """The greatest of all numbers became -1, and a time lost its zone."""
    with pytest.raises(
        ConfigError, match=r"from_duckdb: column 'x' .* which Arrow does not have; cast it in the query"
    ):
        curate.from_duckdb(duckdb.sql(query))


def test_values_of_duckdb_that_arrow_has() -> None:
    """Sums, and times of a day or an instant."""
    query = (
        "select 99999999999999999999999999999999999999::hugeint as h, time '01:02:03' as t, timestamptz '2020-01-01' z"
    )
    (row,) = curate.from_duckdb(duckdb.sql(query)).take_all()
    assert (row["h"], str(row["t"]), row["z"].year) == (10**38 - 1, "01:02:03", 2020)


def test_a_dataset_does_not_change_with_what_it_was_made_of() -> None:
    """Arrays and frames are written in place."""
    array, frame, rows = np.arange(3), pandas.DataFrame({"n": np.arange(3), "f": [0.5] * 3}), [{"n": [1]}]
    made = [curate.from_numpy(array), curate.from_numpy([array]), curate.from_pandas(frame), curate.from_items(rows)]
    before = [one.take_all() for one in made]
    array[:] = 9
    frame.iloc[0, 0] = 9
    frame["f"].array[:] = 9
    rows[0]["n"].append(2)
    rows.append({"n": [3]})
    assert [one.take_all() for one in made] == before


def test_a_series_that_arrow_has_no_type_for_is_named() -> None:
    """With its type and what to do."""
    for values, dtype in ((pandas.arrays.SparseArray([0, 1]), r"Sparse\[int64, 0\]"), ([1 + 2j], "complex128")):
        with pytest.raises(
            ConfigError, match=rf"from_pandas was given column 'x' of {dtype}, .*; convert it first, as in"
        ):
            curate.from_pandas(pandas.DataFrame({"x": values}))
