"""CSV with a header, or with names that are given and put above it: Arrow's streaming parser for the bytes, then a
cast of each column to its held type.

Values are read as bytes and cast afterwards, so that one bad value costs its row and not its block; the row is found
by bisection. Blank lines are no rows. An empty value, quoted or not, and the spellings of "no value" (NA, NaN, null,
...) are null in every column but text and bytes, where they are what they are. Where the schema is declared, it is what
`CsvOutput` writes that is read: NaN is a number, and text that is empty and not quoted is null.

A quote that is not closed would make one row of all that follows, which Arrow passes over in silence at the end of a
file. So a row of ours is put behind the file: where it ends up tells whether a quote is open, and each line since that
quote is a bad row.

Arrow cannot report a row with too few fields that is not UTF-8. A file with such bytes anywhere is therefore read as
Latin-1, which has a character for every byte, and its values are turned back into bytes.

Long because what Arrow's parser passes over (open quotes, short rows, bytes that are not UTF-8) is found here, around
one loop.
"""

from __future__ import annotations

import codecs
import csv
import functools
import io
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.types as pt

from curate.arrow.recast import from_text
from curate.arrow.types import is_text_or_binary
from curate.arrow.unknown import all_nullable, exact, find_nulls, of_no_rows, rounds
from curate.errors import ConfigError, CorruptInput
from curate.formats.encoding import Encoding
from curate.formats.file_schema import refuse_mismatch
from curate.formats.file_slice import FileSlice
from curate.formats.read.json_schema import missing_column
from curate.objects.bad_line import NO_COLUMNS, OnBadRow, RejectedRow, RowNumbers
from curate.objects.charset import refuse_no_text
from curate.objects.stream import BLOCK_BYTES, DecompressedStream

_LARGEST_ROW_BYTES = 1 << 28
SAMPLED_BYTES = 64 << 20
SAMPLED_ROWS = 250_000
"""Of the beginning of a file, what is looked through at most for a row that tells the schema."""
_END = b"curate:end-of-file:2f6d1c0e9b7a4583"
"""Begins the row that is put behind a file. No row of the file has it, as far as anybody is concerned."""
_OPEN = "inside a quote that is not closed"
_NULLS = tuple(text.encode() for text in pa_csv.ConvertOptions().null_values)
_NULLS_BUT_NAN = tuple(text for text in _NULLS if b"nan" not in text.lower())
_NAMES = r"^[+-]?0[0-9xX]"
"""007 and 0x1F are names, not numbers: as these they would come out as 7 and 31."""
_WHOLE = r"^-?[0-9]+$"
_ALWAYS_EXACT, _NEVER_EXACT = 15, 310
"""Digits."""
_DELIMITERS = ",;\t|"
"""What values are separated by."""
_TRUTHS = (b"true", b"false", b"True", b"False", b"TRUE", b"FALSE")


class _Parser:
    """The rows of one CSV file as tables of bytes, null where a value is empty and not quoted, however long a row is,
    and the rows that have too few fields.

    Arrow needs a row to fit into a block: if one does not, the file is read again in larger blocks and the rows that
    were handed out are skipped.
    """

    def __init__(self, file: FileSlice, sample: bool = False) -> None:
        """Reads, of a `sample`, no more than the beginning of the file."""
        delimiter = file.encoding.delimiter
        given = None if file.how is None else file.how.column_names
        self._above = b"" if given is None else header_line(given, delimiter)
        self._file = file
        self.names: list[str] | None = None
        """The columns that are read; None: all."""
        self._delimiter = delimiter
        self._sample = sample
        self._block_bytes = BLOCK_BYTES
        self._handed_out = 0
        self._latin1 = False
        self._header: list[str] | None = None
        self._numbers = RowNumbers()
        """Of the rows that cannot be read, all that are before the rows handed out, or more."""
        self.invalid: deque[RejectedRow] = deque()
        """Those of them that were not taken yet."""

    def row_number(self, index: int) -> int:
        """Returns the number of the valid row `index` (0-based) among all rows (1-based)."""
        return self._numbers.number(index)

    def batches(self) -> Iterator[pa.Table]:
        """Yields the valid rows, every column as binary; no row for a block of bad ones. Raises CorruptInput."""
        while True:
            skip = self._handed_out
            try:
                for table in self._attempt():
                    if 0 < skip >= table.num_rows:
                        skip -= table.num_rows
                        continue
                    rest, skip = table.slice(skip), 0
                    self._handed_out += rest.num_rows
                    yield rest
                return
            except _EnoughError:
                return
            except (_NotUtf8, _RowTooLong) as error:
                self._read_otherwise(error)

    def header(self) -> list[str]:
        """Returns the column names; none for an empty file. Raises CorruptInput."""
        while self._header is None:
            try:
                with self._file.open() as source:
                    reader = self._open(source, [], is_header=True)
                    self._header = [] if reader is None else [self._utf8(name) for name in reader.schema.names]
            except _EnoughError:
                return []
            except (_NotUtf8, _RowTooLong) as error:
                self._read_otherwise(error)
        return self._header

    def _read_otherwise(self, error: Exception) -> None:
        """Has the file read in larger blocks, or as Latin-1. Raises CorruptInput for a row that fits into none."""
        if isinstance(error, _NotUtf8):
            self._latin1 = True
            return
        self._block_bytes *= 16
        if self._block_bytes > _LARGEST_ROW_BYTES:
            raise CorruptInput(
                f"{self._file.uri}: a row of more than {_LARGEST_ROW_BYTES >> 20} MiB behind row "
                f"{self._handed_out}; is a quote not closed?"
            ) from None

    def _attempt(self) -> Iterator[pa.Table]:
        names = self.header() if self.names is None else self.names
        with self._file.open() as source:
            reader = self._open(source, names)
            if reader is None:
                return
            while True:
                try:
                    batch = reader.read_next_batch()
                except StopIteration:
                    return
                except pa.ArrowInvalid as error:
                    raise self._named(error) from error
                table = pa.Table.from_batches([batch]).rename_columns(names)
                yield _from_latin1(table) if self._latin1 else table

    def _open(self, source: DecompressedStream, names: list[str], *, is_header: bool = False) -> Any:
        if self._latin1:
            names = [name.encode().decode("latin-1") for name in names]

        def end() -> bytes:
            # Of more fields than rows have, so that Arrow tells of it.
            return b"\n" + _END + b'"' + self._delimiter.encode() * len(self.header()) + b"\n"

        def enough(read_bytes: int) -> bool:
            return self._sample and (read_bytes >= SAMPLED_BYTES or len(self._numbers) >= SAMPLED_ROWS)

        decoded = _Decoded(source, self._latin1, None if is_header else end, enough, self._above)
        try:
            return pa_csv.open_csv(
                pa.PythonFile(decoded, mode="r"),
                read_options=pa_csv.ReadOptions(use_threads=False, block_size=self._block_bytes),
                parse_options=pa_csv.ParseOptions(
                    delimiter=self._delimiter,
                    newlines_in_values=True,
                    invalid_row_handler=(lambda _: "skip") if is_header else self._skip,
                ),
                convert_options=pa_csv.ConvertOptions(
                    include_columns=names,
                    column_types=dict.fromkeys(names, pa.binary()),
                    null_values=[""],
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=False,
                ),
            )
        except pa.ArrowInvalid as error:
            if "Empty CSV" in str(error):
                return self._without_rows(decoded)
            raise self._named(error) from error

    def _without_rows(self, decoded: _Decoded) -> Any:
        """Returns a reader of a header without a line end; None for a file of nothing. Arrow says the same of these and
        of a first block in which the header does not end, or that is blank. Raises _RowTooLong; CorruptInput for a
        header that does not end at all."""
        if decoded.blocks > 1 or decoded.read(1):
            raise _RowTooLong
        if not decoded.head.removeprefix(codecs.BOM_UTF8).strip():
            return None
        try:
            return pa_csv.open_csv(
                pa.BufferReader(decoded.head + b"\n"),
                parse_options=pa_csv.ParseOptions(delimiter=self._delimiter, newlines_in_values=True),
                read_options=pa_csv.ReadOptions(use_threads=False, block_size=len(decoded.head) + 1),
            )
        except pa.ArrowInvalid as error:
            raise CorruptInput(
                f"{self._file.uri}: a quote in the header is not closed; close it, or remove it"
            ) from error

    def _named(self, error: Exception) -> Exception:
        # Of a row that more than two blocks have, Arrow says the one or the other.
        if "straddles two block boundaries" in str(error) or "out of sync with chunker" in str(error):
            return _RowTooLong()
        return CorruptInput(f"{self._file.uri}: not readable as CSV: {error}")

    def _skip(self, row: Any) -> str:
        number = row.number - 1  # the header is Arrow's row 1
        if number > self._numbers.last:
            raw = row.text.encode("latin-1" if self._latin1 else "utf-8")
            data, ended, _ = raw.rpartition(_END + b'"')
            if not ended:
                self._add(number, "wrong number of fields", raw if self._latin1 else row.text)
            elif data:
                lines = data.removesuffix(b"\n").split(b"\n")
                for line, text in enumerate(lines[:-1] if not lines[-1] else lines):
                    self._add(number + line, _OPEN, text)
        return "skip"

    def _add(self, number: int, reason: str, raw: bytes | str) -> None:
        self._numbers.add(number)
        self.invalid.append(RejectedRow(number, reason, raw))

    def _utf8(self, name: str) -> str:
        if not self._latin1:
            return name
        try:
            return name.encode("latin-1").decode()
        except UnicodeDecodeError:
            raise CorruptInput(f"{self._file.uri}: the header is not UTF-8") from None


def header_line(names: Sequence[str], delimiter: str) -> bytes:
    r"""Returns the header that a file would have with these names.

    >>> header_line(["id", "c,d"], ",")
    b'id,"c,d"\n'
    """
    line = io.StringIO()
    csv.writer(line, delimiter=delimiter, lineterminator="\n").writerow(names)
    return line.getvalue().encode()


class _Decoded:
    """The source as Arrow may see it: all of it UTF-8, or else as Latin-1 turned into UTF-8; if it has quotes, with a
    row behind it."""

    closed = False

    def __init__(
        self,
        source: DecompressedStream,
        latin1: bool,
        end: Callable[[], bytes] | None,
        enough: Callable[[int], bool],
        above: bytes,
    ) -> None:
        """`above` is put before the first line, if there is one."""
        self._source = source
        self._above = above
        self._latin1 = latin1
        self._end = end
        self._enough = enough
        self._read_bytes = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._at_start = True
        self._quoted = False
        self.head = b""
        """The first block, until the second one is read."""
        self.blocks = 0

    def read(self, size: int) -> bytes:
        """Returns the next bytes. Raises _NotUtf8; _EnoughError if there are more than are to be looked at."""
        if self._enough(self._read_bytes):
            raise _EnoughError
        data = self._source.read(size)
        # Arrow leaves out a line feed at the start of a block if the one before ends in CR, even within quotes.
        while data.endswith(b"\r") and (more := self._source.read(1)):
            data += more
        if self._at_start:
            refuse_no_text(self._source.uri, data)
        if not self._latin1:
            self._check(data)
        elif self._at_start:
            data = data.removeprefix(codecs.BOM_UTF8)
        if self._at_start and data and self._above:
            data = self._above + data.removeprefix(codecs.BOM_UTF8)
        self._at_start = False
        if not data:
            return b""
        self._quoted = self._quoted or b'"' in data
        data = data.decode("latin-1").encode() if self._latin1 else data
        self.head = b"" if self.blocks else data
        self.blocks += 1
        self._read_bytes += len(data)
        # With the last rows: behind them, a last row without a line end would be in the block of the end.
        end = self._end if self._quoted and not self._source.peek(1) else None
        return data if end is None else data + end()

    def _check(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            # Part by part: as text, a large block would take its memory twice.
            for at in range(0, len(data), BLOCK_BYTES):
                self._decoder.decode(view[at : at + BLOCK_BYTES])
            if not data:
                self._decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            raise _NotUtf8 from None

    def readable(self) -> bool:
        """Arrow asks."""
        return True

    def close(self) -> None:
        """The source is closed by who opened it."""


class _EnoughError(Exception):
    """As much was read as is to be looked at."""


class _NotUtf8(Exception):
    """The file has bytes that are not UTF-8."""


def _from_latin1(table: pa.Table) -> pa.Table:
    columns = [
        pa.array([None if v is None else v.decode().encode("latin-1") for v in column.to_pylist()], pa.binary())
        for column in table.columns
    ]
    return pa.Table.from_arrays(columns, names=table.column_names)


class _RowTooLong(Exception):
    """A row did not fit into a block."""


def _refuse_other_delimiter(uri: str, names: list[str], encoding: Encoding) -> None:
    """Raises ConfigError where the header is one name that another delimiter would make several of, and nobody said
    what separates values: rows would be torn where texts have line ends in quotes, and none of them refused."""
    said = None if encoding.how is None else encoding.how.delimiter or encoding.how.column_names
    for other in _DELIMITERS if len(names) == 1 and said is None else "":
        if other in names[0]:
            raise ConfigError(
                f"{uri}: its header, {names[0]!r}, seems to be separated by {other!r}, not {encoding.delimiter!r}; "
                "write it with commas, or with tabs in a file called .tsv; or read it in Python, by "
                f"curate.read_csv(..., delimiter={other!r})"
            )


def sample_csv(file: FileSlice, wanted: Mapping[str, pa.DataType | None] | None) -> pa.Schema:
    """Returns the schema of the first block of rows; if there are none, as far as is looked, the header's names.

    A column is bool, int64, uint64, float64 or string, the first that all its values are; null if it has none. What
    looks like a date, has a leading zero or is hexadecimal is text, and so are whole numbers that a float would change.
    Raises CorruptInput; ConfigError for a wanted column that is missing, a name that is there twice, and a header that
    seems to have another delimiter.
    """
    parser = _Parser(file, sample=True)
    names = parser.header()
    _refuse_other_delimiter(file.uri, names, file.encoding)
    times = Counter(names)
    for name, count in times.items():
        if count > 1:
            raise ConfigError(
                f"column {name!r} is in the header of {file.uri} {count} times; give each a name of its own there"
            )
    for name in wanted or ():
        if names and name not in times:
            raise missing_column(file.uri, name, names)
    for found in parser.batches():
        if not found.num_rows:
            continue
        table = _of_empties(found)
        fields = []
        for name in names if wanted is None else wanted:
            declared = None if wanted is None else wanted[name]
            fields.append(pa.field(name, declared or _inferred(table.column(name))))
        return pa.schema(fields)
    told = [(name, (wanted or {}).get(name) or pa.null()) for name in (names if wanted is None else wanted)]
    return of_no_rows(pa.schema(told)) if names else pa.schema([])


def _inferred(column: pa.ChunkedArray) -> pa.DataType:
    values = _with_nulls(column)
    if values.null_count == len(values):
        return pa.null()
    if pc.all(_is_one_of(values.drop_null(), _TRUTHS)).as_py():
        return pa.bool_()
    if pc.any(pc.match_substring_regex(values, _NAMES)).as_py():
        return pa.string()
    whole = pc.all(pc.match_substring_regex(values, _WHOLE)).as_py()
    rounded = _is_rounded(values)
    for type in (pa.int64(), pa.uint64(), *(() if whole or rounded else (pa.float64(),))):
        try:
            from_text(values.cast(pa.string()), type)
        except pa.ArrowInvalid:
            continue
        return exact(type) if rounded else type
    return pa.string()


def _is_rounded(column: pa.ChunkedArray) -> bool:
    """Returns whether there is a whole number in it of which a float would have other digits."""
    column = column.filter(pc.greater(pc.binary_length(column), _ALWAYS_EXACT))
    whole = column.filter(pc.match_substring_regex(column, _WHOLE)).to_pylist()
    return any(len(one) > _NEVER_EXACT or rounds(int(one)) for one in whole)


def _with_nulls(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.if_else(_is_one_of(column, _NULLS), None, column)


def read_csv(file: FileSlice, schema: pa.Schema, on_bad_row: OnBadRow) -> Iterator[pa.Table]:
    """Yields the rows with exactly `schema`. The types of columns that none declared are those that the first rows
    have: a value that would have told another one is a bad row.

    Raises CorruptInput; SchemaMismatch for columns that do not fit (see `refuse_mismatch`).
    """
    parser = _opened(file, schema)
    declared = file.how is not None and file.how.schema is not None
    typed = file.encoding.typed_of(schema.names)
    done = 0  # valid rows
    batches = parser.batches()
    while True:
        table = next(batches, None)
        bad: list[RejectedRow] = []
        if table is not None and table.num_rows:
            table = table if declared else _of_empties(table)
            held, misfits = (
                _cast(_filled(table, schema), schema, declared, typed) if len(schema) else _of_no_column(table)
            )
            bad = [
                RejectedRow(parser.row_number(done + index), reason, _csv_text(table, index))
                for index, reason in misfits.items()
            ]
            done += table.num_rows
        # Arrow may have parsed ahead of the rows it handed out; report in row order all the same. If it handed out a
        # block without one, those before the next valid row, so that they are not held until there is one.
        last = None if table is None else parser.row_number(done - 1 if table.num_rows else done)
        while parser.invalid and (last is None or parser.invalid[0].line < last):
            bad.append(parser.invalid.popleft())
        for row in sorted(bad, key=lambda row: row.line):
            on_bad_row(row)
        if table is None:
            return
        if table.num_rows and held.num_rows:
            yield held


def _opened(file: FileSlice, schema: pa.Schema) -> _Parser:
    """Returns a parser of the columns of the schema that are there. Raises SchemaMismatch."""
    parser = _Parser(file)
    # Before any row: one of Arrow's threads asks for the end of the file, and must not wait for another one of them.
    names = parser.header()
    there = frozenset(names)
    if len(schema):
        if names:
            refuse_mismatch(file.uri, _as_schema(names, schema), schema, file.encoding)
        # Rows are rows if none of their columns is held, too.
        parser.names = [name for name in schema.names if name in there] or names[:1]
    return parser


def _as_schema(names: list[str], schema: pa.Schema) -> pa.Schema:
    """Returns a schema of these columns; a file of CSV has no types."""
    types = {field.name: field.type for field in schema}
    return pa.schema([(name, types.get(name, pa.string())) for name in names])


def _filled(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Returns the table with the columns of the schema, null where the file has none."""
    if table.column_names == schema.names:
        return table
    missing = pa.chunked_array([pa.nulls(table.num_rows, pa.binary())])
    there = dict(zip(table.column_names, table.columns, strict=True))
    return pa.Table.from_arrays([there.get(name, missing) for name in schema.names], names=schema.names)


def _of_empties(table: pa.Table) -> pa.Table:
    """Returns the table with nothing for null: where no types are declared, an empty value is what its type makes of
    it, quoted or not."""
    columns = [column.fill_null(b"") if column.null_count else column for column in table.columns]
    return pa.Table.from_arrays(columns, names=table.column_names)


def _cast(table: pa.Table, schema: pa.Schema, declared: bool, typed: frozenset[str]) -> tuple[pa.Table, dict[int, str]]:
    """Returns the rows that fit, and the reason for each of the others."""
    misfits: dict[int, str] = {}
    if declared:
        columns = [_without_nan(table.column(field.name), field) for field in schema]
        table = pa.Table.from_arrays(columns, names=schema.names)
    nulls = not declared
    for field in schema:
        _find_misfits(table.column(field.name), field, 0, misfits, nulls, field.name not in typed)
    find_nulls([_nulls_seen(table.column(field.name), field) for field in schema], schema, misfits)
    if misfits:
        table = table.filter(pa.array([index not in misfits for index in range(table.num_rows)]))
    columns = [_cast_column(table.column(field.name), field.type, nulls) for field in schema]
    return pa.Table.from_arrays(columns, schema=all_nullable(schema)), misfits


def _of_no_column(table: pa.Table) -> tuple[pa.Table, dict[int, str]]:
    """Returns what is held of rows of which no column is: nothing, and why."""
    return table.select([]).slice(0, 0), dict.fromkeys(range(table.num_rows), NO_COLUMNS)


def _without_nan(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    """Returns the column with null where a declared field reads one; spellings of NaN are numbers."""
    if _is_kept(field.type):
        return column if field.nullable else column.fill_null(b"")
    if pt.is_floating(field.type):
        return pc.if_else(_is_one_of(column, _NULLS_BUT_NAN), None, column)
    return _with_nulls(column)


def _is_kept(type: pa.DataType) -> bool:
    """Returns whether values of a type are text or bytes, which are what they are, if empty."""
    if pt.is_dictionary(type):
        return _is_kept(type.value_type)
    return is_text_or_binary(type) and not pt.is_fixed_size_binary(type)


def _nulls_seen(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    """Returns the column with null where its type reads one; text and bytes are what they are, if empty."""
    return column if field.nullable or _is_kept(field.type) else _with_nulls(column)


def _find_misfits(
    column: pa.ChunkedArray, field: pa.Field, offset: int, misfits: dict[int, str], nulls: bool, inferred: bool
) -> None:
    try:
        _cast_column(column, field.type, nulls)
        if inferred and (_is_name(column, field.type) or (pt.is_floating(field.type) and _is_rounded(column))):
            raise pa.ArrowInvalid
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        if len(column) == 1:
            misfits.setdefault(offset, _reason(column, field, inferred))
            return
        middle = len(column) // 2
        _find_misfits(column.slice(0, middle), field, offset, misfits, nulls, inferred)
        _find_misfits(column.slice(middle), field, offset + middle, misfits, nulls, inferred)


def _cast_column(column: pa.ChunkedArray, type: pa.DataType, nulls: bool) -> pa.ChunkedArray:
    """Returns a column as values of a type; `nulls`: with null for what is spelled so."""
    if is_text_or_binary(type):
        return column.cast(type)
    if nulls and not _is_kept(type):
        column = _with_nulls(column)
    return from_text(column.cast(pa.string()), type)


def _is_name(column: pa.ChunkedArray, type: pa.DataType) -> bool:
    """Returns whether a value would have told, at the beginning, that the column is none of numbers or booleans."""
    if pt.is_boolean(type):
        return not pc.all(_is_one_of(column, _TRUTHS + _NULLS)).as_py()
    number = pt.is_integer(type) or pt.is_floating(type)
    return number and bool(pc.any(pc.match_substring_regex(column, _NAMES)).as_py())


def _reason(value: pa.ChunkedArray, field: pa.Field, inferred: bool) -> str:
    try:
        value.cast(pa.string())
    except pa.ArrowInvalid:
        return "invalid UTF-8"
    if pt.is_null(field.type):
        return NO_COLUMNS  # of a header that no row followed
    lost = ""
    if inferred and not pt.is_boolean(field.type):
        lost = "a leading 0 or 0x" if _is_name(value, field.type) else "digits" if _is_rounded(value) else ""
    return f"column {field.name!r} is not {field.type}{lost and f': {lost} would be lost'}"


def _csv_text(table: pa.Table, index: int) -> bytes:
    """Returns the row's columns that were read, as a line of CSV."""
    values = (column[index].as_py() or b"" for column in table.columns)
    return b",".join(
        b'"' + value.replace(b'"', b'""') + b'"' if any(mark in value for mark in b',"\r\n') else value
        for value in values
    )


def _is_one_of(column: pa.Array, texts: tuple[bytes, ...]) -> pa.Array:
    return pc.is_in(column, _binary(texts))


@functools.cache
def _binary(texts: tuple[bytes, ...]) -> pa.Array:
    # Not when this is imported: for the first array of Python values, pyarrow imports pandas, which takes 0.2 s.
    return pa.array(texts, pa.binary())
