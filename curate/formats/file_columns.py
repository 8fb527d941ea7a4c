"""Columns from a file's path: the path itself, and folders like `year=2024`. All rows of a file share them.

    data/year=2024/lang=en/a.parquet  ──▶  path: "data/year=2024/lang=en/a.parquet", year: 2024, lang: "en"

Folders are read as Hive, Spark and pyarrow.dataset write them: `key=value`, both URL-encoded, wherever in the path.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from urllib.parse import unquote

import pyarrow as pa

from curate.errors import SchemaMismatch
from curate.formats.encoding import ReadAs

PATH = "path"
"""The column that says where a file lies."""
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
"""What a folder is called whose rows have no value."""
_NONE = pa.schema([])


def partition_values(uri: str) -> dict[str, str | None]:
    """Returns the values that the folders of a file name, by their keys.

    >>> partition_values("gs://b/year=2024/lang=__HIVE_DEFAULT_PARTITION__/a%20b=c%2Fd/x.parquet")
    {'year': '2024', 'lang': None, 'a b': 'c/d'}
    """
    found = {}
    for folder in uri.split("/")[:-1]:
        key, equals, value = folder.partition("=")
        if key and equals:
            found[_decoded(key)] = None if value == NO_VALUE else _decoded(value)
    return found


def _decoded(text: str) -> str:
    """Returns a text that was URL-encoded; as it is if its bytes would be no text: then it was not, and what differs
    stays different."""
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        return text


def partition_schema(uris: Iterable[str], declared: pa.Schema | None = None) -> pa.Schema:
    """Returns the columns that the folders of files name, in the order in which they are met: of the type that is
    declared, else of 32-bit numbers where all values are such, else of texts; as pyarrow.dataset infers them.

    >>> partition_schema(["year=2024/month=01/a.csv", "year=2024/month=all/b.csv"])
    year: int32
    month: string
    """
    values: dict[str, list[str | None]] = {}
    for folder in dict.fromkeys(uri.rpartition("/")[0] for uri in uris):
        for key, value in partition_values(f"{folder}/").items():
            values.setdefault(key, []).append(value)
    known = {} if declared is None else {field.name: field.type for field in declared}
    return pa.schema([(key, known.get(key) or _inferred(some)) for key, some in values.items()])


def _inferred(values: list[str | None]) -> pa.DataType:
    texts = pa.array(values, pa.string())
    try:
        return texts.cast(pa.int32()).type if texts.null_count < len(texts) else texts.type
    except pa.ArrowInvalid:
        return texts.type


def file_columns(how: ReadAs | None) -> pa.Schema:
    """Returns the columns that rows have of their file, if it is read so."""
    if how is None:
        return _NONE
    path = [pa.field(PATH, pa.string())] if how.include_paths else []
    return pa.schema([*(how.partitions or ()), *path])


def with_file_columns(schema: pa.Schema, how: ReadAs | None) -> pa.Schema:
    """Returns a schema with the columns that rows have of their file: at the end, or where it names them."""
    own, there = file_columns(how), frozenset(schema.names)
    return pa.schema([*schema, *(field for field in own if field.name not in there)])


def filled_in(uri: str, tables: Iterator[pa.Table], schema: pa.Schema, how: ReadAs | None) -> Iterator[pa.Table]:
    """Yields the rows of a file as tables of `schema`, with the columns that they have of the file. Raises
    SchemaMismatch for a folder whose value is not of the type of its column."""
    found = partition_values(uri)
    if how is not None and how.include_paths:
        found[PATH] = uri
    of_file = file_columns(how).names
    own = {one.name: _value(uri, found.get(one.name), one) for one in schema if one.name in of_file}
    for table in tables:
        columns = [pa.repeat(own[name], table.num_rows) if name in own else table.column(name) for name in schema.names]
        yield pa.Table.from_arrays(columns, schema=schema)


def _value(uri: str, text: str | None, field: pa.Field) -> pa.Scalar:
    try:
        return pa.nulls(1, field.type)[0] if text is None else pa.scalar(text, pa.string()).cast(field.type)
    except pa.ArrowException as error:
        raise SchemaMismatch(
            f"{uri}: its folder says {field.name}={text}, and {field.name} is {field.type}: {error}; declare it as "
            "text with schema=, or ignore the folders with partitioning=None"
        ) from error
