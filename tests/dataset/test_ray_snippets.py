"""The examples of ray.data's own documentation run on curate as they stand there, or say in one line what to write.

They are read from the docstrings of the installed ray.data, so that no copy of them grows old.
"""

from __future__ import annotations

import ast
import doctest
import io
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from inspect import getdoc
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict  # noqa: UP035 - as in the examples

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import curate
from curate.errors import ConfigError
from curate.operators.rows import MapBatches
from curate.operators.udf import Udf, format_of

AS_WRITTEN = [
    *("map", "map_batches", "flat_map", "select_columns", "drop_columns", "rename_columns", "repartition"),
    *("groupby", "union", "limit", "take", "take_all", "show", "count", "schema", "iter_rows", "iter_batches"),
    *("materialize", "to_pandas", "train_test_split", "write_parquet"),
]
"""Methods of which all examples run as they are written."""

ANSWERED = {
    "filter": (r"expr=\"id <= 4\"", r"filter: text is not an expression: 'id <= 4'; name a column with curate\.col"),
    "with_column": (
        r"id_plus_",
        r"no equivalent in pyarrow\.compute: .*; use map_batches to call",
    ),
    "add_column": (r"lambda df", r"^the batch is a pyarrow\.Table; write batch_format='numpy' .*, or 'pandas' for a"),
    "sort": (r"boundaries=", r"^sort\(\) has no boundaries in curate: outputs are cut by their bytes; leave it out$"),
    "join": (
        r"\.join\(",
        r"^join\(\) has no join_type in curate: write how='inner'; and no num_partitions in curate: ",
    ),
    "aggregate": (r"\.aggregate\(", r"^aggregate takes pairs like \[\('score', 'mean'\), \('id', 'max'\)\], found "),
    "random_shuffle": (
        r"seed=RandomSeedConfig",
        r"^seed is RandomSeedConfig\(.*\), expected a whole number, at least 0$",
    ),
}
"""Methods of which some examples are answered: what these contain, and the line that says what to write."""

NOT_RUN = re.compile(r"\btorch\b|\.to_pandas_refs\(")
"""Examples of what is not installed here, or that look at Ray's object store."""

Example = tuple[str, str | None]
"""Code, and what it prints; None: the documentation does not say exactly."""


def examples(method: str) -> Iterator[list[Example]]:
    """Yields the blocks of examples in the docstring of a method of ray.data.Dataset."""
    doc = getdoc(getattr(pytest.importorskip("ray.data").Dataset, method)) + "\n"
    block = r"\n((?:\1 +.*\n|\s*\n)*)"
    for found in re.finditer(rf"^( *)\.\. testcode::{block}(?:\1\.\. testoutput::{block})?", doc, re.MULTILINE):
        code, wanted = (re.sub(r"^ *:.*\n", "", one or "", flags=re.MULTILINE) for one in found.groups()[1:])
        exact = wanted.strip() and "+MOCK" not in found[3]
        yield [(textwrap.dedent(code), textwrap.dedent(wanted) if exact else None)]
    if found := doctest.DocTestParser().get_examples(doc):
        yield [(one.source, one.want if one.want and doctest.SKIP not in one.options else None) for one in found]


def shown(value: Any) -> None:
    """Prints what an example ends with, as Python does; a batch is an Arrow table here, and arrays in ray.data."""
    if isinstance(value, pa.Table):
        value = {name: np.array(column) for name, column in zip(value.column_names, value.columns, strict=True)}
    if value is not None:
        sys.stdout.write(f"{value if isinstance(value, pa.Schema) else repr(value)}\n")


def columns(text: str) -> list[str]:
    """Returns the names in what ray.data prints of a schema, or of the rows of a materialized dataset."""
    table = re.search(r"^Column +Type\n-.*\n((?:.+\n?)+)|^│ (\S+)", text.strip(), re.MULTILINE)
    return [] if table is None else [table[2]] if table[2] else [line.split()[0] for line in table[1].splitlines()]


def run(code: str, names: dict[str, Any]) -> str:
    """Runs an example with curate in the place of `ray.data`, and returns what it prints; what else it imports of
    ray.data, such as expressions, is ray.data's."""
    statements = ast.parse(re.sub(r"^ *import ray$", "", code, flags=re.MULTILINE)).body
    printed = io.StringIO()
    with redirect_stdout(printed):
        # As at a prompt, which shows what a statement ends with.
        exec(compile(ast.Interactive(statements), "example", "single"), names)
    return printed.getvalue()


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What examples find: their files, and curate as `ray.data`."""
    image = pytest.importorskip("PIL.Image")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CURATE_BACKEND", "inline")
    monkeypatch.setattr(sys, "displayhook", shown)
    (tmp_path / "images").mkdir()
    image.new("RGB", (32, 32)).save(tmp_path / "images" / "one.png")
    flowers = {f"{part}.{side}": [5.1, 4.9] for part in ("sepal", "petal") for side in ("length", "width")}
    pq.write_table(pa.table({**flowers, "variety": ["Setosa", "Virginica"]}), tmp_path / "iris.parquet")
    return {"ray": SimpleNamespace(data=curate)}


def prepared(code: str, folder: Path) -> str:
    """Returns an example with its files here."""
    code = code.replace("s3://anonymous@ray-example-data/", "").replace("example://", "")
    return code.replace("image-datasets/simple", "images").replace("/tmp/data", str(folder / "data"))


def check(wanted: str | None, printed: str) -> None:
    """Compares what is printed with what the documentation says: of a table of columns, their names."""
    if wanted is None:
        return
    if named := columns(wanted):
        assert re.findall(r"^(?:Dataset\(.*; )?([\w.]+):(?! list<item: u)", printed, re.MULTILINE) == named
    else:
        assert printed.split() == wanted.split()


def test_at_least_fifteen_of_twenty_run_as_written() -> None:
    """Most methods that people use are among those that run, and all of these are there in both."""
    assert len(AS_WRITTEN) >= 15
    assert len({*AS_WRITTEN, *ANSWERED}) == len(AS_WRITTEN) + len(ANSWERED) >= 20
    theirs = pytest.importorskip("ray.data").Dataset
    for name in (*AS_WRITTEN, *ANSWERED):
        assert hasattr(curate.Dataset, name), name
        assert hasattr(theirs, name), name


@pytest.mark.parametrize("method", AS_WRITTEN)
def test_an_example_runs_as_it_is_written(method: str, names: dict[str, Any], tmp_path: Path) -> None:
    """And prints the same values."""
    ran = 0
    for block in examples(method):
        if not NOT_RUN.search("".join(code for code, _ in block)):
            for code, wanted in block:
                check(wanted, run(prepared(code, tmp_path), names))
                ran += 1
    assert ran


@pytest.mark.parametrize("method", ANSWERED)
def test_an_example_is_answered(method: str, names: dict[str, Any], tmp_path: Path) -> None:
    """In one line that says what to write, before the function is called or beside its error; all others run."""
    part, answer = ANSWERED[method]
    answered = 0
    for code, wanted in (one for block in examples(method) for one in block):
        if NOT_RUN.search(code):
            continue
        if not re.search(part, code):
            check(wanted, run(prepared(code, tmp_path), names))
            continue
        with pytest.raises((ConfigError, TypeError)) as raised:
            run(prepared(code, tmp_path), names)
        told = [str(raised.value), *getattr(raised.value, "__notes__", [])]
        assert any(re.search(answer, line) and "\n" not in line for line in told), told
        answered += 1
    assert answered


@pytest.mark.usefixtures("names")
def test_a_class_with_concurrency() -> None:
    """As the guide to transforming batches writes it: the number of actors, or the fewest and the most."""

    class Twice:
        def __call__(self, batch: dict[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
            return {"id": batch["id"] * 2}

    for concurrency in (2, (1, 3)):
        ds = curate.range(3).map_batches(Twice, concurrency=concurrency, batch_size=2)
        assert ds.take_all() == [{"id": 0}, {"id": 2}, {"id": 4}]


@pytest.mark.usefixtures("names")
def test_partition_columns() -> None:
    """As the guide to saving data writes it: a folder for each value, which reads as a column again."""
    curate.read_parquet("iris.parquet").write_parquet("partitioned", partition_cols=["variety"])
    assert {one.parent.name for one in Path("partitioned").rglob("part-*")} == {"variety=Setosa", "variety=Virginica"}
    assert curate.read_parquet("partitioned").count() == 2


class TestFormatOfBatches:
    """A function that declares what it takes is given that, as in the examples; `batch_format` has the last word."""

    def test_by_its_annotation(self) -> None:
        def numpy(batch: Dict[str, np.ndarray[Any, Any]]) -> Any:  # noqa: UP006
            return {"kind": [type(batch).__name__]}

        def mapping(batch: Mapping[str, Any]) -> Any:
            return {"kind": [type(batch).__name__]}

        def pandas(batch: "pd.DataFrame") -> Any:  # type: ignore[name-defined]  # noqa: F821, UP037
            return {"kind": [type(batch).__name__]}

        def polars(batch: "pl.DataFrame") -> Any:  # type: ignore[name-defined]  # noqa: F821, UP037
            return {"kind": [type(batch).__name__]}

        class Called:
            def __call__(self, batch: dict[str, Any]) -> Any:
                return {"kind": [type(batch).__name__]}

        ds = curate.range(1)
        kinds = {numpy: "dict", mapping: "dict", pandas: "DataFrame", polars: "Table", Called: "dict"}
        for fn, kind in kinds.items():
            assert ds.map_batches(fn).take_all() == [{"kind": kind}], fn
            assert ds.groupby("id").map_groups(fn).take_all() == [{"kind": kind}], fn
            assert ds.map_batches(fn, batch_format="pyarrow").take_all() == [{"kind": "Table"}], fn

    def test_it_decides_bytes(self) -> None:
        """So the same function with another annotation is another identity."""
        texts = []
        for annotation in ("dict", "pa.Table"):
            scope: dict[str, Any] = {}
            exec(f"def f(batch: {annotation!r}):\n    return batch", scope)
            texts.append(MapBatches(Udf(scope["f"]), None, format_of(scope["f"], None)).identity())
        assert texts[0] != texts[1]

    def test_an_error_says_what_the_batch_was(self) -> None:
        """Only where nobody said the format."""
        with pytest.raises(TypeError) as raised:
            curate.range(1).map_batches(lambda batch: batch["id"] * 2).take_all()
        assert raised.value.__notes__[0].startswith("the batch is a pyarrow.Table; write batch_format='numpy'")


def test_a_list_of_new_names() -> None:
    """Of all columns, in order: after a function, too."""
    ds = curate.from_items([{"a": 1, "b": 2}]).map(lambda row: row)
    assert ds.rename_columns(["c", "d"]).take_all() == [{"c": 1, "d": 2}]
    for wrong in (["c"], "cd"):
        with pytest.raises(ConfigError, match=r"expected the new names of all 2 columns \(a, b\), or a dictionary"):
            ds.rename_columns(wrong)


def test_all_unknown_arguments_are_answered_at_once() -> None:
    """Not one after the other; a slip is told first."""
    ds = curate.range(1)
    with pytest.raises(
        ConfigError, match=r"^join\(\) has no join_type in curate: .*; and no num_partitions in curate: "
    ):
        ds.join(ds, join_type="inner", num_partitions=2, on="id")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^join\(\) got an unexpected keyword argument 'hwo'"):
        ds.join(ds, join_type="inner", hwo="left", on="id")  # type: ignore[call-arg]


def test_files_of_this_machine_as_ray_data_names_them(tmp_path: Path) -> None:
    """`local://` is a path."""
    curate.range(3).write_parquet(f"local://{tmp_path}/out/", backend="inline")
    assert curate.read_parquet(f"local://{tmp_path}/out").count() == 3
