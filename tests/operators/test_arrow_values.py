"""Tables, columns and expressions of Arrow, pandas and polars that a function uses are part of what a dataset is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from curate.code.closures import Unhashable, value_text
from tests.job.modules import Modules
from tests.operators.test_what_is_held import computed

IMPORTS = "import collections, types\nimport numpy as np, pandas as pd, polars as pl\n"
IMPORTS += "import pyarrow as pa, pyarrow.compute as pc\n"
ARROW = {
    "an array": "pa.array([read()])",
    "an array in parts": "pa.chunked_array([[1], [read()]])",
    "a table of Arrow": "pa.table({'a': [read()]})",
    "a batch": "pa.record_batch({'a': [read()]})",
    "a name of a column": "pa.table({f'a{read()}': [1]})",
    "the type of a column": "pa.array([1], pa.int8() if read() == 1 else pa.int16())",
    "a scalar": "pa.scalar(read())",
    "an expression": "pc.field('a') == read()",
    "the end of a long expression": "pc.field('a').isin([*range(1000), -read()])",
    "arrays in a dictionary": "{'a': pa.array([read()])}",
    "a column of pandas": "pd.Series([read()])",
    "the index of a column": "pd.Series([1], index=[read()])",
    "the numbers of rows": "pd.DataFrame({'a': [1]}, index=pd.RangeIndex(read(), read() + 1))",
    "an index": "pd.Index([read()])",
    "a table of pandas": "pd.DataFrame({'a': [read()]})",
    "a table of polars": "pl.DataFrame({'a': [read()]})",
    "a column of polars": "pl.Series('a', [read()])",
    "an array of objects": "np.array([read(), None], object)",
}
VIEWS = {
    "a view": "types.MappingProxyType({'a': read()})",
    "a dictionary of Python": "collections.UserDict({'a': read()})",
    "a chain of dictionaries": "collections.ChainMap({'a': 1}, {'b': read()})",
}
USED = {
    "closed over": "def make(v): return lambda row: v\nf = make({})",
    "in a global": "v = {}\ndef f(row): return v",
}


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Modules:
    return Modules(tmp_path / "modules", monkeypatch)


@pytest.mark.parametrize("used", USED.values(), ids=USED)
@pytest.mark.parametrize("value", (ARROW | VIEWS).values(), ids=ARROW | VIEWS)
def test_a_value_counts_by_its_content(value: str, used: str, modules: Modules, tmp_path: Path) -> None:
    """As a global it was left out without a word: rows made with another one were taken for done."""
    one, same, other = computed(modules, f"{IMPORTS}{used.format(value)}", tmp_path)
    assert one == same != other


def test_tables_in_parts_are_those_that_are_whole() -> None:
    """And without what libraries write into them of themselves."""
    whole = pa.table({"a": [1, 2, 3]})
    parts = pa.concat_tables([whole.slice(0, 1), whole.slice(1)]).replace_schema_metadata({"pandas": "version 1"})
    assert value_text("t", parts) == value_text("t", whole)


KINDS = {
    "numbers": (pa.int64(), [1, None, 3, 4]),
    "fractions": (pa.float64(), [1.5, None, 3.0, 4.0]),
    "decisions": (pa.bool_(), [True, None, False, True]),
    "decisions that are all there": (pa.bool_(), [True, False, True, True]),
    "texts": (pa.string(), ["a", None, "", "ccc"]),
    "lists": (pa.list_(pa.int8()), [[1], None, [], [None, 2]]),
    "pairs": (pa.list_(pa.int8(), 2), [[1, 2], None, [3, 4], [5, None]]),
    "tables": (pa.map_(pa.string(), pa.int8()), [[("a", 1)], None, [], [("b", None)]]),
    "records": (pa.struct([("a", pa.int8())]), [{"a": 1}, None, {"a": None}, {"a": 4}]),
    "choices": (pa.dictionary(pa.int8(), pa.string()), ["a", "b", None, "a"]),
    "amounts": (pa.decimal128(9, 2), [1, None, 3, 4]),
}


@pytest.mark.parametrize(("kind", "values"), KINDS.values(), ids=KINDS)
def test_the_same_values_are_told_alike_whatever_bits_they_have(kind: pa.DataType, values: list[object]) -> None:
    """A part of a larger column has the bits of rows beside it: the same rows were those of another function."""
    twice = pa.array([*values, *values], kind)
    columns = [twice[:4], twice[4:], twice.take(pa.array([4, 5, 6, 7])), pa.chunked_array([twice[:2], twice[2:4]])]
    if pa.types.is_int64(kind):
        bits = np.array([one or 99 for one in values])
        columns.append(pa.array(bits, kind, mask=np.array([one is None for one in values])))
    plain = value_text("t", pa.table({"a": pa.array(values, kind)}))
    assert {value_text("t", pa.table({"a": one})) for one in columns} == {plain}
    assert value_text("t", pa.table({"a": twice[1:5]})) != plain


@pytest.mark.parametrize("values", [[True, None, False], [1, None, 3], [[1], None, []], [0.5, None, 1.5]])
def test_rows_of_a_table_of_polars_are_those_of_a_larger_one(values: list[object]) -> None:
    tables = [pl.DataFrame({"a": values}), pl.DataFrame({"a": [*values, *values]})[:3]]
    tables += [pl.DataFrame({"a": [*values, *values]})[3:], pl.concat([tables[0][:1], tables[0][1:]])]
    assert len({value_text("t", one) for one in tables}) == 1


def test_of_a_library_what_has_no_content_is_refused_by_name() -> None:
    """Or whose content is objects of Python, or their code."""
    called = pl.col("a").map_batches(lambda column: column)
    for value in (pl.LazyFrame({"a": [1]}), pl.Series([object()], dtype=pl.Object), pd.Series([object()]), called):
        with pytest.raises(Unhashable, match="t is a"):
            value_text("t", value)
