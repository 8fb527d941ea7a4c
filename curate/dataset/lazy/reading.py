"""The functions that make a Dataset: of files, of what is in memory, of nothing. Names are those of ray.data.

Nothing is read here but a listing, and what tells the schema.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from curate.dataset.formats import Format
from curate.dataset.lazy.api import Dataset, check_rows
from curate.dataset.lazy.plan import Scan
from curate.dataset.lazy.sources import Range, Tables, files
from curate.errors import ConfigError

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def read_parquet(paths: Paths, *, columns: Sequence[str] | None = None, filter: Any = None) -> Dataset:
    """Returns the rows of Parquet files, directories or globs, in the order of the paths and of the names below them.

    Lists them and reads one footer, whose schema holds for all files. `columns` are those to keep, `filter` is an
    expression that rows must fulfil; both are pushed into the read. Raises ConfigError for a path that matches nothing,
    files of another format, or an unknown column.

    >>> import pyarrow.compute as pc
    >>> import tempfile, pathlib, pyarrow as pa, pyarrow.parquet as pq
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.parquet"
    >>> pq.write_table(pa.table({"n": [1, 2], "text": ["a", "b"]}), path)
    >>> curate.read_parquet(path, columns=["text"], filter=pc.field("n") > 1).take_all()
    [{'text': 'b'}]
    """
    found = Dataset(Scan(files("read_parquet", Format.PARQUET, _paths(paths))))
    if filter is not None:
        found = found.filter(filter)
    return found if columns is None else found.select_columns(columns)


def read_json(paths: Paths) -> Dataset:
    """Returns the rows of files of JSON lines, plain or compressed (gz, zst).

    The schema is sampled from the first file with rows; a line that does not fit is a bad row, of which 0.1 % of a file
    (at least 10) are left out with a warning, or set aside by a write. Raises ConfigError as `read_parquet` does.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.jsonl"
    >>> _ = path.write_text('{"n": 1}\\n{"n": null}\\n')
    >>> curate.read_json(path).take_all()
    [{'n': 1}, {'n': None}]
    """
    return Dataset(Scan(files("read_json", Format.JSONL, _paths(paths))))


def read_csv(paths: Paths) -> Dataset:
    """Returns the rows of CSV files with a header. Schema, bad rows and errors are as for `read_json`.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.csv"
    >>> _ = path.write_text("n,text\\n1,a\\n")
    >>> curate.read_csv(path).take_all()
    [{'n': 1, 'text': 'a'}]
    """
    return Dataset(Scan(files("read_csv", Format.CSV, _paths(paths))))


def read_text(paths: Paths) -> Dataset:
    """Returns the lines of text files as the column `text`; blank ones are left out. Errors are as for `read_json`.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.txt"
    >>> _ = path.write_text("one\\n\\ntwo\\n")
    >>> curate.read_text(path).take_all()
    [{'text': 'one'}, {'text': 'two'}]
    """
    return Dataset(Scan(files("read_text", Format.TEXT, _paths(paths), wanted=("text",))))


def from_items(items: Sequence[Any]) -> Dataset:
    """Returns rows from a list: dictionaries are rows, all of the same keys; other values become the column `item`.

    Raises ConfigError for rows of other keys, or values of no common type.

    >>> curate.from_items(["a", "b"]).take_all()
    [{'item': 'a'}, {'item': 'b'}]
    """
    rows = [item if isinstance(item, Mapping) else {"item": item} for item in items]
    for row in rows:
        if row.keys() != rows[0].keys():
            raise ConfigError(f"from_items: a row has the keys {list(row)}, and the first one has {list(rows[0])}")
    try:
        table = pa.Table.from_pylist(rows) if rows else pa.table({})
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise ConfigError(f"from_items: values of a column have no common type: {error}") from error
    return Dataset(Scan(Tables("from_items", (table,), table.schema)))


def from_arrow(tables: pa.Table | Sequence[pa.Table]) -> Dataset:
    """Returns the rows of Arrow tables of one schema. Raises ConfigError for what is no table, other schemas, or two
    columns of one name.

    >>> import pyarrow as pa
    >>> curate.from_arrow(pa.table({"n": [1]})).take_all()
    [{'n': 1}]
    """
    given = (tables,) if isinstance(tables, pa.Table) else tuple(tables)
    for table in given:
        if not isinstance(table, pa.Table):
            raise ConfigError(f"from_arrow takes pyarrow.Tables, found {type(table).__name__}")
        if not table.schema.equals(given[0].schema):
            raise ConfigError(f"from_arrow: tables of two schemas: {given[0].schema}; and: {table.schema}")
        for name in table.column_names:
            if table.column_names.count(name) > 1:
                raise ConfigError(f"from_arrow: there are {table.column_names.count(name)} columns called {name!r}")
    plain = tuple(table.replace_schema_metadata(None) for table in given)
    return Dataset(Scan(Tables("from_arrow", plain, plain[0].schema if plain else pa.schema([]))))


def range(n: int) -> Dataset:
    """Returns the numbers from 0 to `n` - 1 as the column `id`. Raises ConfigError for a negative number.

    >>> curate.range(2).take_all()
    [{'id': 0}, {'id': 1}]
    """
    check_rows("range", n, 0)
    return Dataset(Scan(Range(n)))


def _paths(paths: Paths) -> list[str]:
    return [os.fspath(one) for one in ([paths] if isinstance(paths, str | os.PathLike) else paths)]
