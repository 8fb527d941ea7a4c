"""WebDataset outputs: a sample for each row in a tar archive, a file for each column, called after it.

The name of a file is the row's `__key__`, or its number in the output, and the name of the column. As `ray.data`
encodes them: text and bytes are stored as they are, `cls` as a number, `json` as JSON, and pixels as the image that the
column is called after. Null is a file that the sample lacks.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from curate.arrow.types import is_binary, is_list, is_text
from curate.errors import ConfigError
from curate.formats.read.json_values import json_text, readable
from curate.formats.read.webdataset import IMAGES, KEY, NUMBERS, kind_of
from curate.objects.compress import Envelope, Sink
from curate.objects.tar import END, packed, split_name
from curate.writers.jsonl import json_lines
from curate.writers.lines import refuse_broken_texts
from curate.writers.npy import ndarray
from curate.writers.output import OutputWriter

_PILLOW = {"jpg": "jpeg", "pgm": "ppm", "pbm": "ppm", "pnm": "ppm"}
"""What pillow calls formats, where it has another name for them."""


class WebDatasetOutput(OutputWriter):
    """Writes tables of one schema as samples of an archive; `close` adds its end, and the record behind it."""

    def __init__(self, sink: Sink, schema: pa.Schema, codec: str) -> None:
        """Raises ConfigError for a column whose name or type a file of a sample cannot have."""
        super().__init__(schema)
        self._encoders = [(field.name, _encoder(field)) for field in schema if field.name != KEY]
        if KEY in schema.names and not is_text(schema.field(KEY).type):
            raise ConfigError(f"column {KEY!r} is {schema.field(KEY).type}, expected text: cast it to string")
        self._keys: set[str] = set()
        self._envelope = Envelope(sink, codec)

    def _take(self, table: pa.Table) -> None:
        """Writes samples. Raises ConfigError for keys that are null, there twice or no names, and for rows without a
        value."""
        refuse_broken_texts(table, "a WebDataset", self.rows)
        keys = table[KEY].to_pylist() if KEY in self._schema.names else None
        columns = [encode(table[name]) for name, encode in self._encoders]
        for row in range(table.num_rows):
            key = f"{self.rows + row:09d}" if keys is None else self._checked(keys[row])
            files = [column[row] for column in columns]
            if all(data is None for data in files):
                raise ConfigError(f"the row {key!r} has no value but its key, and a sample has a file; drop such rows")
            for (name, _), data in zip(self._encoders, files, strict=True):
                if data is not None:
                    self._envelope.write(packed(f"{key}.{name}", data))

    def _checked(self, key: str | None) -> str:
        if key is None or "\0" in key or split_name(f"{key}.x") != (key, "x"):
            raise ConfigError(
                f"column {KEY!r} has {key!r}, which cannot be the name of a sample: expected text without a dot behind "
                "the last slash"
            )
        if key in self._keys:
            raise ConfigError(f"column {KEY!r} has {key!r} twice in one output; the name of a sample has to be unique")
        self._keys.add(key)
        return key

    def close(self, record: Mapping[str, Any]) -> None:
        self._envelope.write(END)
        self._envelope.close(record)


Encoder = Callable[[pa.ChunkedArray], list[bytes | None]]
"""Returns the bytes of the file that each row has of a column; None where it has none."""


def _encoder(field: pa.Field) -> Encoder:
    kind, type = kind_of(field.name), field.type
    if split_name(f"x.{field.name}") is None or "\0" in field.name or field.name.startswith("__"):
        raise ConfigError(
            f"a file of a sample cannot be called after the column {field.name!r}; rename it, or leave it out"
        )
    if is_binary(type):
        return _each(bytes)
    if kind == "json" and readable(type) and not json_text(field):
        return partial(_json, field.name)
    if is_text(type):
        return _each(str.encode)
    if kind in NUMBERS and pt.is_integer(type):
        return _each(lambda value: b"%d" % value)
    if kind in IMAGES and _pixels(type):
        return partial(_images, field.name, _PILLOW.get(kind, kind))
    raise ConfigError(
        f"column {field.name!r} is {type}, which a file called .{field.name} cannot store: expected text or bytes; "
        "put it into a column 'json', or make it text"
    )


def _each(encode: Callable[[Any], bytes]) -> Encoder:
    return lambda column: [None if value is None else encode(value) for value in column.to_pylist()]


def _json(name: str, column: pa.ChunkedArray) -> list[bytes | None]:
    lines = json_lines(pa.table({name: column}), exact=True)
    before = len(json_lines(pa.table({name: [0]}))[0]) - len("0}\n")
    values = [line[before : -len("}\n")] for line in lines]
    return [data if valid else None for data, valid in zip(values, column.is_valid().to_pylist(), strict=True)]


def _pixels(type: pa.DataType) -> bool:
    levels = 0
    if isinstance(type, pa.FixedShapeTensorType):
        return type.value_type == pa.uint8() and len(type.shape) in (2, 3)
    while is_list(type):
        type, levels = type.value_type, levels + 1
    return type == pa.uint8() and levels in (2, 3)


def _images(name: str, format: str, column: pa.ChunkedArray) -> list[bytes | None]:
    from PIL import Image

    made: list[bytes | None] = []
    for chunk in column.chunks:
        for row in range(len(chunk)):
            stream = io.BytesIO()
            try:
                if chunk[row].is_valid:
                    Image.fromarray(ndarray(chunk.slice(row, 1))[0]).save(stream, format=format)
            except (ValueError, TypeError, OSError) as error:
                raise ConfigError(f"column {name!r} has pixels that are not an image of {format}: {error}") from None
            made.append(stream.getvalue() or None)
    return made
