"""A table of names and numbers in compressed blocks: of millions of files, or shards, some 25 to 60 bytes each.

As columns of Arrow, an input, its shard and its output take 400 bytes together, and a driver that plans ten million of
them 4 GB. Names that follow each other are alike, so that blocks of some thousand rows, each an Arrow stream of zstd,
take a seventh of that, are written in 0.2 µs a row and read in 0.07. What goes through a table reads block by block,
and only the columns that it names; a row in the middle costs a block, which is why whoever takes many takes them at
once.

Two tables are compared without a hash table of either, which would take more than both: where rows follow each other in
both, as in nearly all, they are compared as they are, and elsewhere each block is looked up in those blocks whose least
and greatest text enclose its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curate.late_pandas import numbers, text

BLOCK_ROWS = 4096
"""Rows of a block: twice as many take 2 % less, and twice the time for a row in the middle."""
LOOSE_BLOCKS = 64
"""Blocks of a table, the first ones, that are kept as they are: to look into 250,000 rows or less costs nothing."""
GROUP_BLOCKS = 16
"""Blocks of texts that are looked up at once."""
MOST_LOOKED_THROUGH = 8
"""Rows of a table that are looked through for each row that is looked up, before one hash table of all is cheaper."""
LARGE = pa.large_string()
"""Texts of which there may be more than 2 GiB."""
SMALL, FAST = "zstd", "lz4"
"""How blocks are packed: fast ones take half the time, a third of it to be read, and twice the room. That is for who
looks at a job once, and holds nothing else."""
_WRITE = {codec: pa.ipc.IpcWriteOptions(compression=codec, use_threads=False) for codec in (SMALL, FAST)}
_END = 1 << 62
"""A place behind the end of any text."""
POOL = pa.system_memory_pool()
"""Columns stay for the length of a run; Arrow's own pool, made for what comes and goes, takes twice the room."""


class PackedTable:
    """Rows of one schema, without nulls, that do not change."""

    def __init__(self, schema: pa.Schema, blocks: Sequence[bytes | pa.RecordBatch], rows: Any) -> None:
        """`rows` says how many rows each block has, none 0."""
        self.schema = schema
        self._blocks = tuple(blocks)
        self._starts: Any = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.asarray(rows, np.int64))])
        self._read: dict[tuple[int, tuple[int, ...]], pa.RecordBatch] = {}
        """The blocks that were unpacked last."""
        self._ends: dict[str, tuple[list[str], list[str]]] = {}
        """Of columns that were looked through, the least and the greatest text of each block."""

    @classmethod
    def of(cls, table: pa.Table) -> PackedTable:
        """Returns the rows of a table."""
        packer = Packer(table.schema)
        # A block that stays as it is keeps the whole table.
        packer.loose = LOOSE_BLOCKS if len(table) <= LOOSE_BLOCKS * BLOCK_ROWS else 0
        packer.extend(table)
        return packer.table()

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def blocks(self) -> int:
        """How many blocks there are."""
        return len(self._blocks)

    def __getitem__(self, name: str) -> pa.ChunkedArray:
        """Returns a column, unpacked."""
        return pa.chunked_array([block[name] for block in self.batches(name)], self.schema.field(name).type)

    def table(self) -> pa.Table:
        """Returns all rows, unpacked."""
        return pa.Table.from_batches(self.batches(*self.schema.names), self.schema)

    def batches(self, *names: str) -> Iterator[pa.RecordBatch]:
        """Yields these columns, some thousand rows at a time."""
        for number in range(len(self._blocks)):
            yield self._block(number, names, keep=False)

    def located(self, *names: str) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yields these columns, some thousand rows at a time, each time with the number of the first row."""
        return zip(self._starts[:-1].tolist(), self.batches(*names), strict=True)

    def numbers(self, name: str) -> Any:
        """Returns a column of numbers as an array of NumPy."""
        found = np.empty(len(self), self.schema.field(name).type.to_pandas_dtype())
        for start, block in self.located(name):
            found[start : start + len(block)] = numbers(block[name])
        return found

    def row(self, at: int, *names: str) -> list[Any]:
        """Returns the values of one row in these columns, all where none is named."""
        number = int(np.searchsorted(self._starts, at, "right")) - 1
        block = self._block(number, names or self.schema.names)
        return [column[at - int(self._starts[number])].as_py() for column in block.columns]

    def take(self, rows: Any, *names: str) -> pa.Table:
        """Returns these rows, in their order, unpacked: these columns of them, all where none is named. Raises
        IndexError for a row that is not there."""
        names = names or tuple(self.schema.names)
        schema = pa.schema([self.schema.field(name) for name in names])
        rows = np.asarray(rows, dtype=np.int64)
        if len(rows) and not 0 <= rows.min() <= rows.max() < len(self):
            raise IndexError(f"rows from {rows.min()} to {rows.max()} of a table of {len(self)} rows")
        order = None if np.all(rows[:-1] <= rows[1:]) else np.argsort(rows, kind="stable")
        ascending = rows if order is None else rows[order]
        cuts = np.searchsorted(ascending, self._starts)
        parts = []
        for number in np.flatnonzero(np.diff(cuts)).tolist():
            inside = ascending[cuts[number] : cuts[number + 1]] - self._starts[number]
            block = self._block(number, names)
            whole = len(inside) == len(block) and np.array_equal(inside, np.arange(len(block)))
            parts.append(block if whole else block.take(pa.array(inside, pa.int64())))
        found = pa.Table.from_batches(parts, schema)
        if order is None:
            return found
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        return found.combine_chunks().take(pa.array(back, pa.int64()))

    def slice(self, start: int, stop: int, *names: str) -> pa.Table:
        """Returns the rows from `start` to `stop`, as many as there are of them, unpacked."""
        return self.take(np.arange(start, min(stop, len(self))), *names)

    def filter(self, mask: Any) -> PackedTable:
        """Returns the rows for which an array of booleans says so."""
        packer = Packer(self.schema)
        for number, (start, stop) in enumerate(zip(self._starts[:-1], self._starts[1:], strict=True)):
            if mask[start:stop].all():
                packer.put(self._blocks[number], stop - start)
            elif mask[start:stop].any():
                packer.add(_unpacked(self._blocks[number]).filter(pa.array(mask[start:stop])))
        return packer.table()

    def reordered(self, rows: Any) -> PackedTable:
        """Returns these rows, in their order."""
        packer = Packer(self.schema)
        for start in range(0, len(rows), BLOCK_ROWS):
            packer.extend(self.take(rows[start : start + BLOCK_ROWS]).combine_chunks())
        return packer.table()

    def with_text(self, name: str, value: str) -> PackedTable:
        """Returns all rows with this text in a column."""
        packer, number = Packer(self.schema), self.schema.get_field_index(name)
        for block in self.batches(*self.schema.names):
            packer.add(block.set_column(number, name, pa.array([value] * len(block), pa.string())))
        return packer.table()

    def plus(self, *others: PackedTable) -> PackedTable:
        """Returns the rows of this table and of others of the same columns. Small blocks that follow each other become
        one: a plan has a part for each time that its inputs grew, and looks through it read block by block."""
        tables = [one for one in (self, *others) if len(one)]
        if len(tables) < 2:
            return tables[0] if tables else self
        packer = Packer(self.schema)
        blocks = [block for one in tables for block in one._blocks]
        rows = np.concatenate([np.diff(one._starts) for one in tables]).tolist()
        for together in _small_together(rows):
            if len(together) > 1:
                some = pa.Table.from_batches([_unpacked(blocks[number]) for number in together])
                packer.add(some.combine_chunks(memory_pool=POOL).to_batches()[0])
            else:
                packer.put(blocks[together[0]], rows[together[0]])
        return packer.table()

    def find(self, name: str, value: str) -> int:
        """Returns the first row that has this text in a column; -1 if none has."""
        wanted = text(value)
        for start, block in self.located(name):
            if (at := pc.index(block[name], wanted).as_py()) >= 0:
                return start + int(at)
        return -1

    def where(self, name: str, test: Callable[[pa.Array], pa.Array]) -> Any:
        """Returns one boolean a row: what a function says of the texts of a column, block by block."""
        found = np.zeros(len(self), dtype=bool)
        for start, block in self.located(name):
            found[start : start + len(block)] = numbers(test(block[name]))
        return found

    def enclosing(self, name: str, low: str, high: str) -> list[int]:
        """Returns the numbers of the blocks that may have texts from `low` to `high` in a column."""
        if name not in self._ends:
            ends = [pc.min_max(block[name]).as_py() for block in self.batches(name)]
            self._ends[name] = [one["min"] for one in ends], [one["max"] for one in ends]
        least, greatest = self._ends[name]
        return [number for number in range(len(least)) if least[number] <= high and greatest[number] >= low]

    def looked_up(self, name: str, texts: pa.Array, blocks: Sequence[int]) -> Any:
        """Returns for each text the first row in these blocks that has it in a column; -1 where none has."""
        coded = texts.dictionary_encode()
        first = np.full(len(coded.dictionary), -1, dtype=np.int64)
        # As many rows at a time as there are texts: each time, a hash table of these is made.
        step = 1 + len(first) // BLOCK_ROWS
        for end in range(len(blocks), 0, -step):
            some = blocks[max(0, end - step) : end]
            column = pa.chunked_array([self._block(number, (name,), keep=False)[name] for number in some])
            found = numbers(pc.fill_null(pc.index_in(column.cast(texts.type), value_set=coded.dictionary), -1))
            inside = np.flatnonzero(found >= 0)[::-1]
            rows = np.concatenate([np.arange(self._starts[number], self._starts[number + 1]) for number in some])
            # The last ones first, so that the first one stays.
            first[found[inside]] = rows[inside]
        return first[numbers(coded.indices)]

    def _block(self, number: int, names: Sequence[str], *, keep: bool = True) -> pa.RecordBatch:
        """Returns these columns of a block, which is kept unpacked for a while."""
        block = self._blocks[number]
        if not isinstance(block, bytes):
            return block.select(list(names))
        columns = tuple(self.schema.get_field_index(name) for name in names)
        found = self._read.get((number, columns))
        if found is None:
            # They come in the order of the schema, whatever is asked for.
            found = _unpacked(block, sorted(columns)).select(list(names))
            if keep:
                # Another thread may be in here: what is there is replaced, and never changed.
                kept = self._read if len(self._read) < GROUP_BLOCKS else {}
                self._read = {**kept, (number, columns): found}
        return found


def _packed(block: pa.RecordBatch, codec: str = SMALL) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, block.schema, options=_WRITE[codec]) as writer:
        writer.write_batch(block)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def _unpacked(block: bytes | pa.RecordBatch, columns: list[int] | None = None) -> pa.RecordBatch:
    if not isinstance(block, bytes):
        return block
    options = pa.ipc.IpcReadOptions(included_fields=columns, use_threads=False)
    return pa.ipc.open_stream(pa.py_buffer(block), options=options).read_next_batch()


def _small_together(rows: Sequence[int]) -> Iterator[range]:
    """Yields the numbers of blocks that have these numbers of rows: those together that are one block at most."""
    start = together = 0
    for number, count in enumerate(rows):
        if together + count > BLOCK_ROWS and number > start:
            yield range(start, number)
            start, together = number, 0
        together += count
    yield range(start, len(rows))


class Packer:
    """Makes a packed table of rows as they come."""

    def __init__(self, schema: pa.Schema, codec: str = SMALL) -> None:
        self.loose = LOOSE_BLOCKS
        """Blocks that are kept as they are."""
        self._schema, self._codec = schema, codec
        self._blocks: list[bytes | pa.RecordBatch] = []
        self._rows: list[int] = []

    def add(self, block: pa.RecordBatch) -> None:
        """Adds a block, of `BLOCK_ROWS` rows at most; an empty one is none."""
        if len(block):
            self.put(block, len(block))

    def put(self, block: bytes | pa.RecordBatch, rows: int) -> None:
        """Adds a block of some rows, which may be packed."""
        if not isinstance(block, bytes) and len(self._blocks) >= self.loose:
            block = _packed(block, self._codec)
        self._blocks.append(block)
        self._rows.append(rows)

    def extend(self, table: pa.Table) -> None:
        """Adds the rows of a table."""
        for block in table.to_batches(max_chunksize=BLOCK_ROWS):
            self.add(block)

    def table(self) -> PackedTable:
        """Returns what was added so far."""
        return PackedTable(self._schema, self._blocks, self._rows)


class RowBuffer:
    """Collects rows of one schema, some thousand as Python objects: a listing of 100,000 would take 50 MB as such."""

    def __init__(self, schema: pa.Schema, codec: str = SMALL) -> None:
        self.broken: str | None = None
        """The first text that is no Unicode: a local file may have any bytes for a name. They are kept escaped."""
        self._schema = schema
        self._rows: list[tuple[Any, ...]] = []
        self._packer = Packer(schema, codec)

    def add(self, row: tuple[Any, ...]) -> None:
        """Adds one row."""
        self._rows.append(row)
        if len(self._rows) == BLOCK_ROWS:
            self._flush()

    def extend(self, rows: Iterator[tuple[Any, ...]]) -> None:
        """Adds rows: of very many, in half the time that it takes to add each."""
        while True:
            self._rows += islice(rows, BLOCK_ROWS - len(self._rows))
            if len(self._rows) < BLOCK_ROWS:
                return
            self._flush()

    def add_block(self, *columns: Sequence[Any] | pa.Array) -> None:
        """Adds `BLOCK_ROWS` rows at most, as columns: of very many, a third of what it costs to add each."""
        self._flush()
        self._add(columns)

    def texts(self, values: Sequence[str]) -> pa.Array:
        """Returns texts as a column to add, and notes the first that is no Unicode."""
        return self._array(values, pa.string())

    def table(self) -> PackedTable:
        """Returns all rows."""
        self._flush()
        return self._packer.table()

    def _flush(self) -> None:
        if self._rows:
            self._add(list(zip(*self._rows, strict=True)))
            self._rows = []

    def _add(self, columns: Sequence[Sequence[Any] | pa.Array]) -> None:
        arrays = [
            values if isinstance(values, pa.Array) else self._array(values, type)
            for values, type in zip(columns, self._schema.types, strict=True)
        ]
        self._packer.add(pa.RecordBatch.from_arrays(arrays, schema=self._schema))

    def _array(self, values: Sequence[Any], type: Any) -> Any:
        try:
            if type == pa.int64():
                # Two thirds of what Arrow takes, which looks at each for a null.
                whole = np.fromiter(values, np.int64, len(values))
                return pa.Array.from_buffers(type, len(values), [None, pa.py_buffer(whole)])
            return pa.array(values, type, memory_pool=POOL)
        except UnicodeEncodeError as error:
            self.broken = self.broken or error.object
            return pa.array([value.encode("utf-8", "backslashreplace").decode() for value in values], type)


def without_prefix(texts: pa.Array, prefix: str) -> pa.Array:
    """Returns texts, all of which begin with a prefix, without it: a tenth of what it costs to cut each in Python."""
    cut = len(prefix.encode("utf-8", "backslashreplace"))
    return pc.binary_replace_slice(texts.view(pa.binary()), 0, cut, b"", memory_pool=POOL).view(pa.string())


def between(before: str, texts: pa.Array, after: str) -> pa.Array:
    """Returns texts, each with one before it and one after it: in a sixth of the time that joining them takes.

    >>> between("a/", pa.array(["é", ""]), ".x").to_pylist()
    ['a/é.x', 'a/.x']
    """
    found = texts.view(pa.binary())
    for at, more in ((0, before), (_END, after)):
        if more:
            found = pc.binary_replace_slice(found, at, at, more.encode())
    return found.view(pa.string())


def plain_paths(texts: pa.Array) -> bool:
    """Returns whether it is plain that of each of these paths no part is empty or begins with `_` or `.`, and that none
    has a control character. A tenth of what looking at each costs; of paths in which that might be, it says no.

    >>> plain_paths(pa.array(["a/b", "c"])), plain_paths(pa.array(["a", "b/_c"])), plain_paths(pa.array(["a", ""]))
    (True, False, False)
    """
    _, offsets, data = texts.buffers()
    if data is None or not len(texts):
        return not len(texts)
    ends: Any = np.frombuffer(offsets, np.int32, len(texts) + 1, 4 * texts.offset)
    if texts.null_count or not np.all(ends[:-1] < ends[1:]):
        return False
    letters: Any = np.frombuffer(data, np.uint8)[ends[0] : ends[-1]]
    slash = letters == ord("/")
    odd = (letters == ord("_")) | (letters == ord(".")) | slash
    begins, finishes = ends[:-1] - ends[0], ends[1:] - (ends[0] + 1)
    if odd[begins].any() or slash[finishes].any() or (slash[:-1] & odd[1:]).any():
        return False
    return bool(letters.min() >= ord(" ") and (letters != 0x7F).all())


def positions(texts: Iterable[pa.Array], table: PackedTable, name: str) -> Any:
    """Returns for each text a row of `table` that has it in the column `name`: the only one, where its texts differ;
    -1 where none has it."""
    found: list[Any] = []
    following = looked_through = count = 0
    groups = _grouped(texts)
    for group in groups:
        rows = np.arange(following, following + len(group))
        if not table.slice(following, following + len(group), name)[name].equals(pa.chunked_array([group])):
            blocks = table.enclosing(name, *_ends_of(group))
            looked_through, count = looked_through + len(blocks) * BLOCK_ROWS, count + len(group)
            if looked_through > MOST_LOOKED_THROUGH * (count + BLOCK_ROWS):
                rest = pa.chunked_array([group, *groups]).cast(LARGE).combine_chunks()
                found.append(table.looked_up(name, rest, range(table.blocks)))
                break
            rows = table.looked_up(name, group, blocks)
        found.append(rows)
        following = int(rows.max()) + 1 or following
    return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)


def firsts(table: PackedTable, name: str) -> Any:
    """Returns for each row the first one that has the same text in the column `name`; None if all texts differ."""
    first = np.arange(len(table))
    highest, start, looked_through = "", 0, 0
    for group in _grouped(block[name] for block in table.batches(name)):
        ordered = ascending(group)
        low, high = (group[0].as_py(), group[-1].as_py()) if ordered else _ends_of(group)
        stop = start + len(group)
        if not ordered or (start and low <= highest):
            blocks = table.enclosing(name, low, high)
            looked_through += len(blocks) * BLOCK_ROWS
            if looked_through > MOST_LOOKED_THROUGH * (stop + BLOCK_ROWS):
                coded = table[name].cast(LARGE).combine_chunks().dictionary_encode()
                _, first_of = np.unique(numbers(coded.indices), return_index=True)
                first = first_of[numbers(coded.indices)]
                break
            first[start:stop] = table.looked_up(name, group, blocks)
        highest, start = max(highest, high), stop
    return None if np.array_equal(first, np.arange(len(table))) else first


def ascending(texts: pa.Array) -> bool:
    """Returns whether every text is greater than the one before it."""
    return len(texts) < 2 or bool(pc.all(pc.less(texts[:-1], texts[1:])).as_py())


def _ends_of(texts: pa.Array) -> tuple[str, str]:
    ends = pc.min_max(texts).as_py()
    return ends["min"], ends["max"]


def _grouped(blocks: Iterable[pa.Array]) -> Iterator[pa.Array]:
    """Yields texts, of some blocks together: each look through a table has its price."""
    blocks = iter(blocks)
    while some := list(islice(blocks, GROUP_BLOCKS)):
        if len(group := pa.concat_arrays(some)):
            yield group
