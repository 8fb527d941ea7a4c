"""A packed table is what it was made of, whatever its blocks; and what is looked up in it is what a loop finds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.ledger import packed
from curate.ledger.packed import PackedTable, RowBuffer, between, firsts, plain_paths, positions, without_prefix
from curate.ledger.validation import paths_outside

SCHEMA = pa.schema([("name", pa.string()), ("size", pa.int64()), ("generation", pa.string())])
NAMES = st.integers(0, 40).map(lambda number: f"{number:03d}") | st.sampled_from(
    ["ä/ö", "100%", "日本", "🦊", "\U0010ffff"]
)
LISTS = st.lists(NAMES, max_size=30) | st.lists(NAMES, max_size=30).map(sorted)
UNIQUE = st.lists(NAMES, max_size=30, unique=True) | st.lists(NAMES, max_size=30, unique=True).map(sorted)
POOL = pa.proxy_memory_pool(pa.system_memory_pool())
"""Outlives all that was made with it."""
BLOCKS = st.fixed_dictionaries(
    {
        "BLOCK_ROWS": st.sampled_from([1, 2, 3, 5, 4096]),
        "LOOSE_BLOCKS": st.sampled_from([0, 1, 100]),
        "GROUP_BLOCKS": st.integers(1, 3),
        "MOST_LOOKED_THROUGH": st.sampled_from([0, 1, 8]),
    }
)
"""How rows are put into blocks: all packed, some, none; and when a look through many becomes one hash table."""


@contextmanager
def blocks_of(sizes: dict[str, int]) -> Iterator[None]:
    """Tables are made, and looked through, in blocks of that kind."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in sizes.items():
            patch.setattr(packed, name, value)
        yield


def rows_of(names: list[str]) -> list[tuple[str, int, str]]:
    return [(name, number, f"g{number}") for number, name in enumerate(names)]


def packed_of(names: list[str]) -> PackedTable:
    buffer = RowBuffer(SCHEMA)
    half = len(names) // 2
    for row in rows_of(names)[:half]:
        buffer.add(row)
    buffer.extend(iter(rows_of(names)[half:]))
    return buffer.table()


def texts_of(names: list[str], cut: int) -> Iterator[pa.Array]:
    return (pa.array(names[start : start + cut], pa.string()) for start in range(0, len(names), cut))


@given(sizes=BLOCKS, names=LISTS, data=st.data())
def test_blocks_do_not_show(sizes: dict[str, int], names: list[str], data: st.DataObject) -> None:
    """All rows, some in any order, a slice, those of a mask, a column, a cell: as of the rows in a list."""
    with blocks_of(sizes):
        table, rows = packed_of(names), rows_of(names)
        assert (len(table), table.table().to_pylist()) == (
            len(rows),
            [dict(zip(SCHEMA.names, row, strict=True)) for row in rows],
        )
        assert PackedTable.of(table.table()).table().equals(table.table())
        assert table["name"].to_pylist() == names
        assert table.numbers("size").tolist() == list(range(len(rows)))
        some = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=12)) if rows else []
        assert table.take(some, "size", "name").to_pylist() == [{"size": rows[n][1], "name": rows[n][0]} for n in some]
        assert table.reordered(some).table().equals(table.take(some))
        assert [tuple(table.row(n)) for n in some] == [rows[n] for n in some]
        assert [table.row(n, "generation", "name") for n in some] == [[rows[n][2], rows[n][0]] for n in some]
        start, stop = data.draw(st.integers(0, 31)), data.draw(st.integers(0, 31))
        assert table.slice(start, stop, "name")["name"].to_pylist() == names[start:stop]
        mask = np.array(data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))), dtype=bool)
        kept = table.filter(mask)
        assert kept["name"].to_pylist() == [name for name, keep in zip(names, mask, strict=True) if keep]
        assert table.where("name", lambda block: pc.less(block, "020")).tolist() == [name < "020" for name in names]
        assert table.plus(kept, table)["size"].to_pylist() == [
            *range(len(rows)),
            *np.flatnonzero(mask),
            *range(len(rows)),
        ]
        assert set(table.with_text("name", "x")["name"].to_pylist()) <= {"x"}
        for name in ["000", "absent", *names[:3]]:
            assert table.find("name", name) == (names.index(name) if name in names else -1)


@given(sizes=BLOCKS, names=UNIQUE, more=UNIQUE, texts=LISTS, from_row=st.integers(0, 5), cut=st.integers(1, 5))
def test_texts_are_found_where_they_are(
    sizes: dict[str, int], names: list[str], more: list[str], texts: list[str], from_row: int, cut: int
) -> None:
    """In an order of their own, in that of the table, with some before, between and behind; of tables in parts, too."""
    with blocks_of(sizes):
        names = list(dict.fromkeys([*names, *more]))
        table = packed_of(names[: len(names) - len(more)]).plus(packed_of(names[len(names) - len(more) :]))
        for asked in (texts, names[from_row:], [*names[from_row:], *texts], [*texts, *names]):
            expected = [names.index(one) if one in names else -1 for one in asked]
            assert positions(texts_of(asked, cut), table, "name").tolist() == expected


@given(sizes=BLOCKS, parts=st.lists(LISTS, max_size=8))
def test_many_small_tables_are_as_few_blocks_as_one(sizes: dict[str, int], parts: list[list[str]]) -> None:
    """Two of their blocks that follow each other are never one block at most, however they were put together."""
    with blocks_of(sizes):
        at_once = packed_of([]).plus(*map(packed_of, parts))
        one_by_one = packed_of([])
        for part in parts:
            one_by_one = one_by_one.plus(packed_of(part))
        for table in (at_once, one_by_one):
            assert table["name"].to_pylist() == [name for part in parts for name in part]
            of_two = np.diff(table._starts)[:-1] + np.diff(table._starts)[1:]
            assert not len(of_two) or of_two.min() > packed.BLOCK_ROWS


@given(sizes=BLOCKS, parts=st.lists(LISTS, max_size=3))
def test_what_is_there_twice_is_found(sizes: dict[str, int], parts: list[list[str]]) -> None:
    """By the first row of the same text, as in a list; nothing is said of a table whose texts all differ."""
    with blocks_of(sizes):
        names = [name for part in parts for name in part]
        found = firsts(packed_of([]).plus(*map(packed_of, parts)), "name")
        expected = [names.index(name) for name in names]
        assert (list(range(len(names))) if found is None else found.tolist()) == expected
        assert (found is None) == (len(set(names)) == len(names))


@pytest.mark.parametrize(("codec", "part"), [(packed.SMALL, 4), (packed.FAST, 2)])
def test_rows_take_a_fraction_of_what_they_do_as_columns(codec: str, part: int) -> None:
    """Names and numbers that follow each other: what a driver of millions of shards holds, or who looks at one."""
    count = 40 * packed.BLOCK_ROWS
    with blocks_of({"LOOSE_BLOCKS": 0}):
        buffer = RowBuffer(SCHEMA, codec)
        for number in range(count):
            buffer.add(
                (f"crawl/{number // 1000:05d}/RC_{number:08d}.jsonl.gz", 10_000 + number % 977, f"17{number:014d}")
            )
        table = buffer.table()
    assert sum(len(block) for block in table._blocks if isinstance(block, bytes)) < table.table().nbytes / part
    # What is packed in another way is read beside it.
    both = table.plus(packed_of(["a", "b"]))
    assert both["name"].to_pylist()[-3:] == [f"crawl/{(count - 1) // 1000:05d}/RC_{count - 1:08d}.jsonl.gz", "a", "b"]


@pytest.mark.slow
def test_looking_beside_each_other_makes_no_table_of_all() -> None:
    """Two tables in nearly one order are compared in blocks: in the memory of a few, however many rows there are."""
    names = [f"{number:08d}" for number in range(100_000)]
    with blocks_of({"LOOSE_BLOCKS": 0, "GROUP_BLOCKS": 2, "BLOCK_ROWS": 256}):
        table = packed_of(names)
        texts = texts_of([name for number, name in enumerate(names) if number % 3], 200)
        before = pa.default_memory_pool()
        pa.set_memory_pool(POOL)
        try:
            found = positions(texts, table, "name")
        finally:
            pa.set_memory_pool(before)
    assert found.tolist() == [number for number in range(len(names)) if number % 3]
    assert POOL.max_memory() < table["name"].nbytes / 3


PARTS = st.sampled_from(["a", "é", "..", ".", ".b", "_", "_curate", "", "\x7f", "\n", "a.b_c", " "])
PATHS = st.lists(st.lists(PARTS, max_size=3).map("/".join), max_size=6)


@given(paths=PATHS, root=st.sampled_from(["", "/out/", "gs://büro/_x/"]), start=st.integers(0, 3))
def test_a_prefix_is_cut_off_and_what_is_plain_is_nothing_else(paths: list[str], root: str, start: int) -> None:
    """As a loop does it, of a slice of a column too. What is plain is neither hidden nor a way out of a folder."""
    names = without_prefix(pa.array([root + path for path in paths], pa.string())[start:], root)
    names.validate(full=True)
    assert names.to_pylist() == paths[start:]
    parts = [part for path in paths[start:] for part in path.split("/")]
    odd = [part for part in parts if not part or part[0] in "_." or re.search(r"[\x00-\x1f\x7f]", part)]
    assert plain_paths(names) == plain_paths(pa.array(paths, pa.string())[start:]) == (not odd)
    assert not plain_paths(names) or paths_outside(names) is None


@given(
    texts=st.lists(st.text(max_size=6), max_size=8),
    before=st.text(max_size=3),
    after=st.text(max_size=3),
    data=st.data(),
)
def test_texts_get_another_one_before_and_after(texts: list[str], before: str, after: str, data: st.DataObject) -> None:
    """As adding them in Python does, of any part of a column, and of texts of any length."""
    start = data.draw(st.integers(0, len(texts)))
    found = between(before, pa.array(texts, pa.string()).slice(start), after)
    found.validate(full=True)
    assert found.type == pa.string()
    assert found.to_pylist() == [before + one + after for one in texts[start:]]


def test_names_that_are_no_unicode_are_kept_escaped() -> None:
    """A local file may have any bytes for a name: the first one is told of."""
    buffer = RowBuffer(SCHEMA)
    buffer.extend(iter([("a", 1, ""), ("b\udcff", 2, "")]))
    assert buffer.table()["name"].to_pylist() == ["a", "b\\udcff"]
    assert buffer.broken == "b\udcff"
