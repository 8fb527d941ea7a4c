"""Plain text: one row per line. A job gets number and text of each line; a dataset gets the text, in any encoding."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Mapping

import pyarrow as pa

from curate.errors import ConfigError, CorruptInput
from curate.formats.encoding import line_feeds
from curate.formats.file_slice import FileSlice
from curate.formats.read.json_schema import missing_column
from curate.objects.bad_line import OnBadRow, OnBlankLine, RejectedRow, ignored
from curate.objects.lines import LARGEST_LINE_BYTES
from curate.objects.stream import BLOCK_BYTES

LINES_SCHEMA = pa.schema([("text", pa.string())])
TEXT_SCHEMA = pa.schema([("line", pa.int64()), ("text", pa.string())])


def sample_text(uri: str, wanted: Mapping[str, pa.DataType | None] | None) -> pa.Schema:
    """Returns the fixed schema, or the wanted part of it. Raises ConfigError for other columns and types."""
    if wanted is None:
        return TEXT_SCHEMA
    fields, names = [], TEXT_SCHEMA.names
    for name, declared in wanted.items():
        if name not in names:
            raise missing_column(uri, name, names)
        field = TEXT_SCHEMA.field(name)
        if declared is not None and declared != field.type:
            raise ConfigError(f"column {name!r} of a text file is {field.type}, found {declared} declared")
        fields.append(field)
    return pa.schema(fields)


def read_text(
    file: FileSlice, schema: pa.Schema, on_bad_row: OnBadRow, on_blank_line: OnBlankLine = ignored
) -> Iterator[pa.Table]:
    """Yields the lines that begin in a slice, numbered from 1 within it; blank ones are left out.

    A line that is not UTF-8 is a bad row. Raises CorruptInput.
    """
    seen = 0
    for lines in file.lines():
        numbers: list[int] = []
        texts: list[str] = []
        for number, line in enumerate(lines, seen + 1):
            if not line or line.isspace():
                on_blank_line(number)
                continue
            try:
                texts.append((line[:-1] if line[-1] == 13 else line).decode())
            except UnicodeDecodeError:
                on_bad_row(RejectedRow(number, "invalid UTF-8", line.rstrip(b"\r")))
            else:
                numbers.append(number)
        if texts:
            table = pa.Table.from_arrays(
                [pa.array(numbers, pa.int64()), pa.array(texts, pa.string())], schema=TEXT_SCHEMA
            )
            yield table.select(schema.names).cast(schema)
        seen += len(lines)


def read_lines(file: FileSlice, on_bad_row: OnBadRow, on_blank_line: OnBlankLine = ignored) -> Iterator[pa.Table]:
    """Yields the lines that begin in a slice as the column `text`; blank ones too, if the file's `how`, which says how
    lines are read, does not drop them.

    A line that its encoding does not have is a bad row. Raises CorruptInput, also for text that cannot be read on in an
    encoding in which lines are not told apart by their bytes.
    """
    how = file.how
    assert how is not None
    encoding = codecs.lookup(how.text_encoding).name
    blocks = _lines(file, encoding, on_bad_row) if line_feeds(encoding) else _decoded(file, encoding)
    seen = 0
    for texts in blocks:
        kept = [text for text in texts if text is not None]
        if how.drop_empty_lines:
            kept = [text for text in kept if text and not text.isspace()]
            if len(kept) < len(texts):
                for number, text in enumerate(texts, seen + 1):
                    if text is not None and (not text or text.isspace()):
                        on_blank_line(number)
        seen += len(texts)
        if kept:
            yield pa.Table.from_arrays([pa.array(kept, pa.string())], schema=LINES_SCHEMA)


def _lines(file: FileSlice, encoding: str, on_bad_row: OnBadRow) -> Iterator[list[str | None]]:
    """Yields the lines; None for one that is a bad row."""
    seen = 0
    for lines in file.lines():
        texts: list[str | None] = []
        for number, line in enumerate(lines, seen + 1):
            try:
                texts.append((line[:-1] if line[-1:] == b"\r" else line).decode(encoding))
            except UnicodeDecodeError:
                on_bad_row(RejectedRow(number, f"not {encoding}", line.rstrip(b"\r")))
                texts.append(None)
        yield texts
        seen += len(lines)


def _decoded(file: FileSlice, encoding: str) -> Iterator[list[str | None]]:
    decoder = codecs.getincrementaldecoder(encoding)()
    rest = ""
    with file.open() as source:
        while True:
            block = source.read(BLOCK_BYTES)
            try:
                rest += decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                raise CorruptInput(f"{file.uri}: is not text of the encoding {encoding}: {error}") from error
            *lines, rest = rest.split("\n")
            if len(rest) > LARGEST_LINE_BYTES:
                raise CorruptInput(f"{file.uri}: a line of more than {LARGEST_LINE_BYTES:,} characters; split it")
            yield [line.removesuffix("\r") for line in lines]
            if not block:
                break
    if rest:
        yield [rest.removesuffix("\r")]
