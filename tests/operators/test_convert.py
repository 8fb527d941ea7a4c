"""What user code takes and gives: the same values, of types that they fit, and a reason where none does."""

from __future__ import annotations

import datetime
import decimal
import math
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import curate
from curate.arrow.values import Misfit, fitted, inferred
from curate.dataset.dataset import Dataset
from curate.errors import SchemaMismatch
from curate.operators.convert import column_of, formatted, from_columns, rows, rows_to_table, to_numpy
from curate.testing.local import run_local

D = decimal.Decimal
BIG = 2**53 + 1


class TestTypes:
    """A column that comes back keeps its type if each value fits it exactly; else the type is inferred."""

    @pytest.mark.parametrize(
        ("before", "values", "after"),
        [
            (pa.int8(), [1, 127], pa.int8()),
            (pa.int8(), [1, 128], pa.int64()),
            (pa.int8(), [1, 2**63], pa.uint64()),
            (pa.int64(), [1, 0.5], pa.float64()),
            (pa.int64(), [1.0, 2.0], pa.float64()),
            (pa.int64(), [True, False], pa.bool_()),
            (pa.float64(), [1, 2], pa.float64()),
            (pa.float64(), [1, BIG], pa.int64()),
            (pa.float32(), [0.5, math.nan], pa.float32()),
            (pa.float32(), [0.1, math.nan], pa.float64()),
            (pa.float32(), [math.inf, 1e300], pa.float64()),
            (pa.string(), [b"a", b"b"], pa.binary()),
            (pa.large_string(), ["a", None], pa.large_string()),
            (pa.decimal128(12, 2), [D("0.25"), 7], pa.decimal128(12, 2)),
            (pa.decimal128(12, 2), [D("0.255"), D(7)], pa.decimal128(4, 3)),
            (pa.timestamp("ms"), [datetime.datetime(2026, 1, 1, 1, 1, 1, 1000)] * 2, pa.timestamp("ms")),
            (pa.timestamp("ms"), [datetime.datetime(2026, 1, 1, 1, 1, 1, 1)] * 2, pa.timestamp("us")),
            (pa.timestamp("us", "UTC"), [datetime.datetime(2026, 1, 1)] * 2, pa.timestamp("us")),
            (pa.date32(), [datetime.datetime(2026, 1, 1, 5)] * 2, pa.timestamp("us")),
            (pa.list_(pa.int8()), [[1, None], []], pa.list_(pa.int8())),
            (pa.list_(pa.int8()), ["ab", "c"], pa.string()),
            (pa.list_(pa.int8(), 2), [[1, 2], [3]], pa.list_(pa.int64())),
            (pa.struct([("a", pa.int8())]), [{"a": 1}, {}], pa.struct([("a", pa.int8())])),
            (
                pa.struct([("a", pa.int8())]),
                [{"a": 1}, {"b": 2}],
                pa.struct([("a", pa.int64()), ("b", pa.int64())]),
            ),
            (pa.map_(pa.string(), pa.int8()), [{"a": 1}, [("b", 2)]], pa.map_(pa.string(), pa.int8())),
            (pa.dictionary(pa.int8(), pa.string()), ["a", None], pa.dictionary(pa.int8(), pa.string())),
            (pa.dictionary(pa.int8(), pa.string()), [1, None], pa.int64()),
        ],
    )
    def test_of_values(self, before: pa.DataType, values: list[Any], after: pa.DataType) -> None:
        found = rows_to_table("map(f) returned", [{"v": value} for value in values], pa.schema([("v", before)]))["v"]
        assert found.type == after
        for value, back in zip(values, found.to_pylist(), strict=True):
            pairs = dict(value) == dict(back) if pa.types.is_map(after) else False
            padded = isinstance(value, dict) and {k: v for k, v in dict(back).items() if v is not None} == value
            assert pairs or padded or value == back or (value != value and back != back)

    @given(st.lists(st.none() | st.integers(-(2**65), 2**65) | st.floats() | st.booleans() | st.text() | st.binary()))
    def test_no_value_is_ever_another_one(self, values: list[Any]) -> None:
        """Whatever the type that the column had; or there is no type for them, which is said."""

        def same(found: pa.Array) -> bool:
            # A whole number may become the float that it is; nothing else changes its kind.
            kinds = all(
                type(a) is type(b) or (type(a) is int and isinstance(b, float | D))
                for a, b in zip(values, found.to_pylist(), strict=True)
            )
            return kinds and all(a == b or a != a for a, b in zip(values, found.to_pylist(), strict=True))

        for type_ in (pa.int8(), pa.uint64(), pa.float16(), pa.float32(), pa.float64(), pa.bool_(), pa.string()):
            found = fitted(values, type_)
            assert found is None or (found.type == type_ and same(found))
        for type_ in (pa.binary(), pa.decimal128(20, 0), pa.list_(pa.string()), pa.dictionary(pa.int8(), pa.string())):
            found = fitted(values, type_)
            assert found is None or (found.type == type_ and same(found))
        try:
            assert same(inferred(values))
        except Misfit:
            kinds = {type(value) for value in values if value is not None}
            assert len(kinds) > 1 or any(type(value) is int and not -(2**63) <= value < 2**63 for value in values)

    def test_those_of_pandas_have_nanoseconds(self) -> None:
        pd = pytest.importorskip("pandas")
        assert inferred([pd.Timestamp(1)]).cast(pa.int64()).to_pylist() == [1]
        assert inferred([pd.Timedelta(1)]).cast(pa.int64()).to_pylist() == [1]

    @pytest.mark.parametrize("before", [None, pa.list_(pa.string()), pa.large_list(pa.large_string())])
    def test_sets_are_sorted(self, before: pa.DataType | None) -> None:
        """Their own order is another one in each process; null comes first, as there is no value to compare."""
        sets = [set("abcdefgh"), frozenset({"b", None, "a"}), set(), None]
        column = column_of("map(f)", "v", sets, before)
        assert column.to_pylist() == [list("abcdefgh"), [None, "a", "b"], [], None]
        assert column_of("map(f)", "v", [{"in": {3, 1, 2}}]).to_pylist() == [{"in": [1, 2, 3]}]
        with pytest.raises(SchemaMismatch, match="'<' not supported"):
            column_of("map(f)", "v", [{"a", 1}])
        with pytest.raises(SchemaMismatch, match="not a list of values"):
            from_columns("map_batches(f)", {"v": {"a", "b"}})

    def test_arrays_in_rows_are_lists_of_their_numbers(self) -> None:
        """Of as many dimensions as they have, and of their type."""
        found = curate.range(2).map(lambda _: {"x": np.ones((2, 3), np.uint8)}).to_arrow()["x"]
        assert found.type == pa.list_(pa.list_(pa.uint8()))
        assert found.to_pylist() == [[[1, 1, 1]] * 2] * 2


class TestRefused:
    """Values that no type holds are refused with the column, the two values, their rows, and what to do."""

    @pytest.mark.parametrize(
        ("values", "told"),
        [
            ([1, BIG, 2, 0.5], rf"values that do not fit one type: {BIG} \(row 1 of the batch\) and 0\.5 \(row 3\)"),
            ([["x"], ["y"], "abc"], r"\['x'\] \(row 0 of the batch\) and 'abc' \(row 2\): list and str"),
            ([[1], [2, "x"]], r"\[1\] \(row 0 .*\) and \[2, 'x'\]|a value that Arrow has no type for: \[2, 'x'\]"),
            (["a", b"a"], r"'a' \(row 0 of the batch\) and b'a' \(row 1\)"),
            ([True, 1.5], r"True \(row 0 of the batch\) and 1\.5 \(row 1\)"),
            ([1, 2**64], r"Arrow has no type for: 18446744073709551616 \(row 1 of the batch\)"),
            ([1, 1j], r"1j \(row 1 of the batch\)"),
            ([datetime.date(2026, 1, 1), datetime.datetime(2026, 1, 1)], r"date and datetime have no common type"),
            (
                [datetime.datetime(2026, 1, 1), datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)],
                r"times with a time zone and without",
            ),
        ],
    )
    def test_with_both(self, values: list[Any], told: str) -> None:
        with pytest.raises(curate.CurateError, match=rf"^map\(f\) returned column 'v' .*({told}).*; use ") as refused:
            rows_to_table("map(f) returned", [{"v": value} for value in values])
        assert type(refused.value) is SchemaMismatch

    def test_by_every_way(self) -> None:
        with pytest.raises(
            curate.ConfigError, match="from_items was given column 'item' values that do not fit one type: 1 "
        ):
            curate.from_items([1, "a"])
        with pytest.raises(curate.CurateError, match="returned column 'v' values that do not fit one type: 1 "):
            curate.range(2).map_batches(lambda _: {"v": [1, "a"]}).take_all()
        with pytest.raises(curate.CurateError, match=r"map\(<lambda>\) returned column 'v' .* 0\.5"):
            curate.range(2).map(lambda row: {"v": BIG if row["id"] else 0.5}).take_all()

    @pytest.mark.parametrize(
        "rows", [[{"a": 1}, {"b": 1}], [{}], [{1: 2}], [{"\ud800": 2}], [{"a": object()}], [{"a": 1}, {"a": "x"}]]
    )
    def test_rows_that_were_given_are_not_called_returned(self, rows: list[Any]) -> None:
        """Nobody returned them, and the advice is for who wrote them."""
        with pytest.raises(curate.ConfigError, match=r"^from_items was given .*; ") as refused:
            curate.from_items(rows)
        assert "return" not in str(refused.value)

    def test_columns_that_were_given_are_not_called_returned(self) -> None:
        pd = pytest.importorskip("pandas")
        with pytest.raises(curate.ConfigError, match=r"^from_numpy was given column 'data' .*; use "):
            curate.from_numpy(np.array([1, "a"], dtype=object))
        for values, advice in (([1, "a"], "use "), ([1j], "convert it ")):
            with pytest.raises(curate.ConfigError, match=f"^from_pandas was given column 'a' .*; {advice}"):
                curate.from_pandas(pd.DataFrame({"a": values}))

    def test_keys_that_are_no_text(self) -> None:
        """A key is refused, and never taken for its text, which another column may have."""
        with pytest.raises(curate.ConfigError, match="the key 1, which is not text"):
            curate.from_items([{1: 2}])
        with pytest.raises(curate.CurateError, match="the key 1, which is not text"):
            curate.range(1).map(lambda _: {1: 2}).take_all()  # type: ignore[dict-item]
        with pytest.raises(curate.CurateError, match="the key 1, which is not text"):
            curate.range(1).map_batches(lambda _: {1: [2], "1": [3]}).take_all()

    def test_rows_without_a_key(self) -> None:
        """They would be no rows at all."""
        with pytest.raises(curate.CurateError, match="returned a row without a key"):
            curate.range(3).map(lambda _: {}).take_all()

    def test_what_python_has_no_type_for(self) -> None:
        """Rows and totals are refused, and never less than they are: nanoseconds of a time of day, years after 9999."""
        for array in (pa.array([1], pa.int64()).view(pa.time64("ns")), pa.array([10**9], pa.int32()).view(pa.date32())):
            ds = curate.from_arrow(pa.table({"v": array}))
            totals = [partial(ds.aggregate, [("v", function)]) for function in ("min", "max", "first", "list")]
            for take in (ds.take_all, ds.map(lambda row: row).take_all, partial(ds.unique, "v"), *totals):
                with pytest.raises(curate.CurateError, match=r"column 'v\w*' is .* Python cannot represent exactly"):
                    take()
            assert ds.map_batches(lambda batch: batch).to_arrow()["v"].chunk(0).equals(array)


class TestOrder:
    @pytest.mark.slow
    def test_keys_come_in_the_order_of_the_first_row(self, tmp_path: Path) -> None:
        """Wherever batches, pieces and files are cut: the order of later ones says nothing."""

        def turned(row: dict[str, Any]) -> dict[str, Any]:
            return {"a": 1, "b": row["id"]} if row["id"] < 20_000 else {"b": row["id"], "a": 1}

        ds = curate.range(40_000).map(turned)
        assert ds.to_arrow().column_names == ["a", "b"]
        assert {tuple(batch.column_names) for batch in ds.iter_batches(batch_size=None)} == {("a", "b")}
        assert ds.write_parquet(tmp_path / "out", backend="inline").state == "complete"
        assert curate.read_parquet(tmp_path / "out").to_arrow().equals(ds.to_arrow())

    def test_also_of_several_pieces(self) -> None:
        tables = [pa.table({"n": [n]}) for n in (0, 1)]
        ds = curate.from_arrow(tables).map(lambda row: {"a": 1, "b": 2} if row["n"] == 0 else {"b": 2, "a": 1})
        assert [batch.column_names for batch in ds.iter_batches(batch_size=None)] in ([["a", "b"]] * 2, [["a", "b"]])


class TestNumpy:
    """Arrays have the values, nulls among them, and what comes back is what it was, wherever batches are cut."""

    def test_nulls_of_a_dictionary_are_none(self) -> None:
        column = pa.array(["a", None, "b", None]).dictionary_encode()
        assert to_numpy(pa.table({"v": column}))["v"].tolist() == ["a", None, "b", None]

    @pytest.mark.parametrize("size", [1, 2, 3, 6])
    @pytest.mark.parametrize("type", [pa.int64(), pa.uint8(), pa.float32(), pa.bool_(), pa.timestamp("s"), pa.string()])
    def test_nulls_wherever_batches_are_cut(self, type: pa.DataType, size: int, tmp_path: Path) -> None:
        table = pa.table({"v": pa.array([1, 0, 1, None, 0, None]).cast(type)})
        ds = curate.from_arrow(table).map_batches(lambda batch: batch, batch_format="numpy", batch_size=size)
        assert ds.to_arrow().equals(table)
        assert ds.write_parquet(tmp_path / "out", backend="inline").state == "complete"

    @given(st.lists(st.none() | st.floats(width=32), max_size=20), st.randoms(), st.sampled_from([16, 32, 64]))
    def test_a_null_stays_null_and_nan_nan_however_rows_move(self, values: Any, random: Any, bits: int) -> None:
        """Also once they were computed with, doubled, left out, put in another order, and named anew."""
        numbers = pa.array(values, pa.float64()).cast({16: pa.float16(), 32: pa.float32(), 64: pa.float64()}[bits])
        table = pa.table({"v": numbers})
        at = [random.randrange(len(values)) for _ in range(2 * len(values))] if values else []
        given = to_numpy(table)["v"][at]
        with np.errstate(all="ignore"):
            found = from_columns("f", {"v": given, "w": -given * 1, "x": given.astype(np.float64)}, table)
        expected = [numbers[n].as_py() for n in at]
        for name in found.column_names:
            for one, back in zip(expected, found[name].to_pylist(), strict=True):
                assert (one is None) == (back is None)
                assert one is None or (one != one) == (back != back)
        assert found["v"].type == numbers.type

    def test_numbers_that_a_float_would_round_are_objects(self) -> None:
        table = pa.table({"v": [BIG, None]})
        given = to_numpy(table)["v"]
        assert given.tolist() == [BIG, None]
        assert from_columns("f", {"v": given}, table).equals(table)

    def test_whole_numbers_are_whole_again(self) -> None:
        """What is computed of them; fractions, and NaN that is no null, are floats."""
        table = pa.table({"v": pa.array([2, None, 4], pa.int32())})
        given = to_numpy(table)["v"]
        for values, type, expected in (
            (given + 1, pa.int32(), [3, None, 5]),
            (given / 4, pa.float64(), [0.5, None, 1.0]),
            (given * 2.0**40, pa.float64(), [2.0**41, None, 2.0**42]),
            (np.nan_to_num(given), pa.int32(), [2, 0, 4]),
        ):
            found = from_columns("f", {"v": values}, table)["v"]
            assert (found.type, found.to_pylist()) == (type, expected)

    def test_a_type_that_is_said_is_kept(self) -> None:
        """An array says its type; one of another type than it was given as stays what it is."""
        table = pa.table({"v": pa.array([1, 2], pa.int8())})
        for dtype in (np.int8, np.int64, np.float32):
            found = from_columns("f", {"v": to_numpy(table)["v"].astype(dtype)}, table)["v"]
            assert found.type == pa.from_numpy_dtype(dtype)


class TestTensors:
    """They have their shape in rows, arrays and data frames, and keep their type."""

    SHAPE = (3, 2, 2, 3)

    def dataset(self) -> tuple[np.ndarray[Any, Any], Dataset]:
        images = np.arange(36, dtype=np.uint8).reshape(self.SHAPE)
        return images, curate.from_arrow(pa.table({"x": pa.FixedShapeTensorArray.from_numpy_ndarray(images)}))

    def test_in_rows(self) -> None:
        images, ds = self.dataset()
        assert [row["x"].tolist() for row in ds.take_all()] == images.tolist()
        brighter = ds.map(lambda row: {"x": row["x"] + np.uint8(1)})
        assert brighter.schema() == ds.schema()
        assert (brighter.take_batch(3, batch_format="numpy")["x"] == images + 1).all()
        assert ds.map(lambda row: {"x": row["x"].tolist()}).schema() == ds.schema()

    @pytest.mark.parametrize("shape", [(3, 0), (3, 0, 2), (3, 2, 0)])
    def test_rows_of_nothing_are_rows(self, shape: tuple[int, ...]) -> None:
        made = np.zeros(shape, np.float32)
        for ds in (curate.from_numpy(made), curate.range(3).map_batches(lambda _: {"data": made})):
            assert ds.to_arrow()["data"].to_pylist() == made.tolist()

    def test_other_shapes_are_lists(self) -> None:
        _, ds = self.dataset()
        cut = ds.map(lambda row: {"x": row["x"][:1]})
        assert cut.schema().field("x").type == pa.list_(pa.list_(pa.list_(pa.uint8())))

    @pytest.mark.parametrize("form", ["numpy", "pandas"])
    def test_in_batches(self, form: str) -> None:
        pytest.importorskip("pandas")
        _, ds = self.dataset()
        shapes: list[Any] = []

        def seen(batch: Any) -> Any:
            shapes.extend(one.shape for one in batch["x"])
            return batch

        found = ds.map_batches(seen, batch_format=form).to_arrow()
        assert shapes == [self.SHAPE[1:]] * 3
        assert found.equals(ds.to_arrow())

    def test_null_ones(self) -> None:
        """A null is None, and the others have their shape."""
        storage = pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int8(), 2))
        table = pa.table({"x": pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.int8(), (1, 2)), storage)})
        assert [None if row["x"] is None else row["x"].tolist() for row in rows(table)] == [[[1, 2]], None, [[3, 4]]]
        assert from_columns("f", to_numpy(table), table).equals(table)


class TestMoved:
    """Rows of types that Arrow has no kernel to filter or take move all the same."""

    TABLE = pa.table(
        {
            "id": [1, 2, 3],
            "view": pa.array(["a", None, "c"], pa.string_view()),
            "runs": pc.run_end_encode(pa.array(["a", "a", None])),
            "inside": pa.array([{"v": "a"}, None, {"v": "c"}], pa.struct([("v", pa.string_view())])),
            "tensor": pa.FixedShapeTensorArray.from_numpy_ndarray(np.ones((3, 2, 2))),
        }
    )

    @pytest.mark.parametrize(
        "filtered",
        [
            lambda ds: ds.filter(pc.field("id") > 1),
            lambda ds: ds.filter(lambda row: row["id"] > 1),
            lambda ds: ds.join(curate.from_items([{"id": 2}, {"id": 3}]), on="id", how="semi", broadcast=True),
        ],
    )
    def test_filtered(self, filtered: Callable[[Dataset], Dataset]) -> None:
        found = filtered(curate.from_arrow(self.TABLE)).to_arrow()
        assert found.schema == self.TABLE.schema
        assert [row["view"] for row in rows(found)] == [None, "c"]
        assert [row["inside"] for row in rows(found)] == [None, {"v": "c"}]

    def test_shuffled_in_a_buffer(self) -> None:
        batches = curate.from_arrow(self.TABLE).iter_batches(
            batch_size=2, local_shuffle_buffer_size=3, local_shuffle_seed=0
        )
        found = [row for batch in batches for row in rows(batch)]
        assert sorted((row["id"], row["view"]) for row in found) == [(1, "a"), (2, None), (3, "c")]

    def test_columns_are_added(self) -> None:
        found = curate.from_arrow(self.TABLE).with_column("more", pc.field("id") + 1)
        assert found.to_arrow()["more"].to_pylist() == [2, 3, 4]
        assert found.schema().field("tensor").type == self.TABLE["tensor"].type


def test_what_an_exchange_moves_has_the_schema_that_it_says() -> None:
    """Dictionaries, views and runs that run files hold plain are again what they were, also behind user code."""
    ds = curate.from_arrow(TestMoved.TABLE.append_column("d", pa.array(["x", "y", "x"]).dictionary_encode()))
    for one in (ds, ds.map_batches(lambda batch: batch)):
        for moved in (one.sort("id"), one.random_shuffle(seed=1), one.join(ds.select_columns("id"), on="id")):
            assert moved.to_arrow().schema == moved.schema() == ds.schema()


class TestFileJobs:
    """What a file job yields is held to its output_schema: rounded to its floats, and nothing else changed."""

    @pytest.mark.parametrize("value", [0.5, "abc", [0.5], True, 2**40])
    def test_a_value_that_does_not_fit(self, value: Any) -> None:
        summary = self.run(value, pa.int8())
        assert summary.state == "failed"
        assert "for 'v', which does not fit its type in output_schema, int8" in summary.failures[0].error

    def test_numbers_become_the_nearest_float(self) -> None:
        assert self.run(0.1, pa.float32()).state == "complete"

    @staticmethod
    def run(value: Any, type: pa.DataType) -> Any:
        class Given(curate.FileJob):
            version = "1"
            output_schema = pa.schema([("v", type)])

            def process_file(self, file: Any) -> Any:
                del file
                yield {"v": value}

        return run_local(Given, files={"a.bin": b""}).summary


def test_floats_of_rows_become_those_of_a_declared_schema() -> None:
    """The nearest: Python has but one kind of them. Nothing else is rounded."""
    ds = curate.range(2)
    found = ds.map(lambda _: {"v": [0.1]}, output_schema=pa.schema([("v", pa.list_(pa.float32()))])).to_arrow()
    assert found["v"].to_pylist() == [[np.float32(0.1)]] * 2
    with pytest.raises(curate.CurateError, match="'v'"):
        ds.map(lambda _: {"v": 0.1}, output_schema=pa.schema([("v", pa.int64())])).to_arrow()


@pytest.mark.parametrize("format", ["rows", "numpy", "pandas"])
def test_what_only_pandas_has_a_type_for_is_of_pandas_everywhere(format: str) -> None:
    """A period is no number of months since 1970, and an interval says which of its ends are in it."""
    import pandas as pd

    found = {
        "p": [pd.Period("2020-01", "M"), None, pd.Period("2020-03", "M")],
        "i": [pd.Interval(0, 1, closed="left"), None, pd.Interval(1, 2, closed="left")],
    }
    frame = pd.DataFrame({"p": pd.array(found["p"], dtype="period[M]"), "i": pd.arrays.IntervalArray(found["i"])})
    table = pa.Table.from_pandas(frame)
    if format == "rows":
        given: dict[str, Any] = {name: [row[name] for row in rows(table)] for name in found}
    else:
        given = {name: [*values] for name, values in formatted(table, format).items()}
    assert {name: [None if pd.isna(value) else value for value in given[name]] for name in found} == found
    frames = curate.from_arrow(table).map_batches(lambda frame: frame, batch_format="pandas")
    assert frames.to_arrow().equals(table)


def test_what_a_batch_had_is_looked_up_once_for_all_columns() -> None:
    """And not once for each column: a batch of 4,000 columns of numpy took five seconds."""
    table = pa.table({f"c{number}": [number] for number in range(20)})

    class Counted:
        """The batch, which counts how often all of its columns are listed."""

        def __init__(self) -> None:
            self.listed: list[str] = []

        def __getattr__(self, name: str) -> Any:
            self.listed.append(name)
            return getattr(table, name)

    before = Counted()
    columns = {name: np.array([7]) for name in table.column_names}
    assert from_columns("map returned", columns, cast(Any, before)).to_pylist() == [dict.fromkeys(columns, 7)]
    assert sorted(before.listed) == ["column_names", "columns"]


@pytest.mark.parametrize("count", [0, 1, 2, 100, 101, 300])
def test_rows_have_the_names_of_columns_whatever_they_are(count: int) -> None:
    odd = ["a", "", "'", '"', "\\", "{x}", "\n", "v1", "columns", "lambda", "é", "a b", "\x00"]
    names = [*odd[:count], *(f"c{number}" for number in range(count - len(odd)))]
    table = pa.table([pa.array([number, None]) for number in range(count)], names=names)
    wanted = [{name: number for number, name in enumerate(names)}, dict.fromkeys(names)]
    assert rows(table) == (wanted if count else [])
    assert [list(row) for row in rows(table)] == [names] * table.num_rows


@pytest.mark.parametrize("other", [{"a": 1}, {"a": 1, "c": 2}, {"a": 1, "b": 2, "c": 3}, defaultdict(int, a=1, c=2)])
def test_rows_of_other_keys_are_refused_wherever_they_are(other: dict[str, int]) -> None:
    """And none gets a key by it."""
    before = dict(other)
    for made in ([{"a": 1, "b": 2}, other], [{"a": 1, "b": 2}] * 3 + [other] + [{"b": 1, "a": 2}]):
        with pytest.raises(SchemaMismatch, match=r"a row with the keys .* after one with \['a', 'b'\]"):
            rows_to_table("map(f) returned", made)
    assert other == before
    assert rows_to_table("map(f) returned", [{"a": 1, "b": 2}, {"b": 1, "a": 2}])["b"].to_pylist() == [2, 1]
