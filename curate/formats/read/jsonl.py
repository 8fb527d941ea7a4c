"""JSON lines: `orjson.loads` for each line, then columns into Arrow arrays of the held schema.

Not Arrow's own JSON reader: with an explicit schema it crashes the process on a line that is `null`; it also reads
date-like strings as timestamps, and takes two objects on a line, or one over several lines, for rows. orjson is strict,
checks UTF-8 and says which line it was. A name that appears twice in an object has its last value.

A file that is one JSON array has its elements for lines (see `json_array`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, islice
from operator import itemgetter
from typing import Any

import orjson
import pyarrow as pa

from curate.arrow.unknown import all_nullable, find_nulls
from curate.formats.file_slice import FileSlice
from curate.formats.read.json_array import element_blocks, is_array
from curate.formats.read.json_schema import infer_schema
from curate.formats.read.json_values import Column, columns_of, has_beyond_64_bits, loads_for, other_keys
from curate.objects.bad_line import NO_COLUMNS, OnBadRow, OnBlankLine, OnOtherKeys, RejectedRow, ignored
from curate.objects.lines import json_of, lines_of
from curate.objects.stream import BLOCK_BYTES

SAMPLED_BYTES = 64 << 20
SAMPLED_LINES = 250_000
"""Of the beginning of a file, what is looked through at most for a row that tells the schema."""
Parse = Callable[[bytes], Any]
_NAN = "malformed JSON: NaN or Infinity, which JSON does not have; write null"
_NO_NUMBER = re.compile(r"[-:,\[\s]*(NaN|Infinity)\b")
"""What Python writes for numbers that JSON has no word for."""
_UNFINISHED = "unexpected end of data"
_CUT = "malformed JSON: an object without its end: the line was cut off, or the object has several lines (jq -c . FILE)"


def read_jsonl(
    file: FileSlice,
    schema: pa.Schema,
    on_bad_row: OnBadRow,
    on_blank_line: OnBlankLine = ignored,
    on_other_keys: OnOtherKeys | None = None,
) -> Iterator[pa.Table]:
    """Yields the rows of the lines that begin in a slice, a block at a time. Raises CorruptInput.

    A schema without columns has no rows: each one that there is is bad. `on_other_keys` is told of rows with keys that
    no column holds.
    """
    columns = columns_of(schema, typed := file.encoding.typed_of(schema.names))
    nullable = all_nullable(schema)
    parse, floats = loads_for(schema, typed)
    seen = 0  # lines before this block
    for lines in _blocks(file):
        numbers = None
        bad: list[RejectedRow] = []
        if not columns:
            _, numbers = _sort_out(lines, seen, bad, parse, on_blank_line)
            bad += [RejectedRow(seen + number + 1, NO_COLUMNS, lines[number].rstrip(b"\r")) for number in numbers]
            for row in sorted(bad, key=lambda row: row.line):
                on_bad_row(row)
            seen += len(lines)
            continue
        try:
            rows = list(map(parse, lines))
            values = _cells(rows, columns)
        except (orjson.JSONDecodeError, AttributeError, TypeError):
            rows, numbers = _sort_out(lines, seen, bad, parse, on_blank_line)
            values = _cells(rows, columns)
        misfits: dict[int, str] = {}
        arrays = [column.build(cells, misfits) for column, cells in zip(columns, values, strict=True)]
        if any(has_beyond_64_bits(arrays[at]) for at in floats):
            misfits = {}
            rows = [json_of(lines[at]) for at in (range(len(lines)) if numbers is None else numbers)]
            arrays = [
                column.build(cells, misfits) for column, cells in zip(columns, _cells(rows, columns), strict=True)
            ]
        find_nulls(arrays, schema, misfits)
        if on_other_keys is not None:
            # Of a row that is set aside, nothing is left out: all of it is in quarantine.
            whole = [row for at, row in enumerate(rows) if at not in misfits] if misfits else rows
            if (others := other_keys(columns, whole))[0]:
                on_other_keys(*others)
        table = pa.Table.from_arrays(arrays, schema=nullable)
        if misfits:
            for index, reason in misfits.items():
                at = index if numbers is None else numbers[index]
                bad.append(RejectedRow(seen + at + 1, reason, lines[at].rstrip(b"\r")))
            table = table.filter(pa.array([index not in misfits for index in range(len(rows))], pa.bool_()))
        for row in sorted(bad, key=lambda row: row.line):
            on_bad_row(row)
        if table.num_rows:
            yield table
        seen += len(lines)


def _cells(rows: list[dict[str, Any]], columns: Sequence[Column]) -> list[list[Any]]:
    """Returns the values of each column, None in a row without its key. Raises AttributeError or TypeError for a row
    that is no object."""
    try:
        # Most rows have all keys, and to ask for what may be missing takes twice as long.
        return [list(map(itemgetter(column.name), rows)) for column in columns]
    except KeyError:
        return [[row.get(column.name) for row in rows] for column in columns]


def _blocks(file: FileSlice) -> Iterator[list[bytes]]:
    """Yields the lines that begin in a slice, or the elements of a file that is an array, which has no slices."""
    start, stop = file.start, file.stop
    if stop is not None and stop <= start:
        return
    with file.open() as source:
        if start == 0 and stop is None:
            while is_array(source.peek(BLOCK_BYTES)):
                yield from element_blocks(source, file.uri)
        yield from lines_of(source, start, stop)


def _parse(line: bytes, parse: Parse) -> dict[str, Any] | str:
    """Returns the row, or why there is none."""
    try:
        row = parse(line)
    except orjson.JSONDecodeError as error:
        try:
            line.decode()
        except UnicodeDecodeError:
            return "invalid UTF-8"
        if error.msg.startswith(_UNFINISHED) and line.lstrip().startswith(b"{"):
            return _CUT
        if _NO_NUMBER.match(error.doc, max(0, error.pos - 1)):
            return _NAN
        return f"malformed JSON: {error.msg}"
    return row if isinstance(row, dict) else "not an object"


def _sort_out(
    lines: list[bytes], seen: int, bad: list[RejectedRow], parse: Parse, on_blank_line: OnBlankLine = ignored
) -> tuple[list[dict[str, Any]], list[int]]:
    """Returns the rows among the lines and which lines they are, adding the others to `bad`."""
    rows: list[dict[str, Any]] = []
    numbers: list[int] = []
    for number, line in enumerate(lines):
        if not line or line.isspace():
            on_blank_line(seen + number + 1)
            continue
        row = _parse(line, parse)
        if isinstance(row, str):
            bad.append(RejectedRow(seen + number + 1, row, line.rstrip(b"\r")))
        else:
            rows.append(row)
            numbers.append(number)
    return rows, numbers


def sample_jsonl(file: FileSlice, wanted: Mapping[str, pa.DataType | None] | None, most_bytes: int) -> pa.Schema:
    """Returns the schema of the first block of the file that has a row, of the lines in it that begin before so many
    bytes, or of those behind, if these have none; an empty one if there is none."""
    looked_bytes = looked_lines = 0
    blocks = _blocks(file)
    for lines in blocks:
        head = 1 + sum(end < most_bytes for end in accumulate(map(len, lines)))
        for some in (lines[:head], lines[head:]):
            if any(rows := _sort_out(some, 0, [], json_of)[0]):
                if head > len(lines) and file.object.size <= BLOCK_BYTES:
                    match list(islice(blocks, 2)):
                        case [[last]]:  # it comes by itself if nothing ends it
                            rows += _sort_out([last], 0, [], json_of)[0]
                return infer_schema(file.uri, rows, wanted)
        looked_bytes += sum(map(len, lines))
        looked_lines += len(lines)
        if looked_bytes >= SAMPLED_BYTES or looked_lines >= SAMPLED_LINES:
            break
    return pa.schema([])
