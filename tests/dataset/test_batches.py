"""Rows reach the consumer as batches, shares and samples: each once, in order or in an order that a seed decides, made
ahead within bounds, and whoever stops early leaves nothing behind."""

from __future__ import annotations

import contextlib
import contextvars
import gc
import importlib.util
import re
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from itertools import accumulate, chain, pairwise, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import curate
from curate.backends.inline import InlineBackend
from curate.dataset import batches as consuming
from curate.dataset.batches import shuffle_rows
from curate.dataset.dataset import Dataset
from curate.dataset.execute import Options, blocks, side_by_side
from curate.dataset.split import DataIterator
from curate.errors import ConfigError
from curate.operators.sample import RandomSample, random_numbers
from curate.operators.tensors import check_whole, numeric
from curate.pipeline.shard_books import BadRowBudget, ShardBooks
from curate.pipeline.step import BatchPosition
from curate.plan.nodes import schema_of
from curate.plan.physical import End, lower
from curate.streaming import prefetch
from curate.streaming.epochs import Epochs, equal_parts
from curate.streaming.prefetch import Prefetcher, Stopped, prefetched
from tests.support.examples import examples
from tests.support.ray_head import own_ray
from tests.support.sweeps import Mode

PATIENCE_S = 5.0
"""After which a thread that should have done something is taken not to do it."""
CUTS = st.lists(st.integers(1, 40), max_size=8)


def tables_of(cuts: list[int]) -> list[pa.Table]:
    """Numbers from 0 on, in tables of so many rows, with a text beside them."""
    return [numbers(start, stop) for start, stop in pairwise(accumulate(cuts, initial=0))]


def numbers(start: int, stop: int) -> pa.Table:
    return pa.table({"n": pa.array(range(start, stop), pa.int64()), "s": [f"row {n}" for n in range(start, stop)]})


def ends_of(cuts: list[int], total: int) -> list[int]:
    """Where to cut so many rows: at the ends of the cuts that lie within."""
    return [0, *(end for end in accumulate(cuts) if end < total), total]


def of(cuts: list[int]) -> Dataset:
    """The same as a dataset, a block for each table."""
    # However small: blocks are made of what one source gives.
    first, *others = [curate.from_arrow(table) for table in tables_of(cuts) or [numbers(0, 0)]]
    return first.union(*others)


def values(batch: Any) -> list[int]:
    """The numbers of a batch, in whatever format."""
    return batch["n"].to_pylist() if isinstance(batch, pa.Table) else batch["n"].tolist()


def ids(batch: pa.Table) -> list[int]:
    return batch["id"].to_pylist()


def threads() -> set[threading.Thread]:
    return {one for one in threading.enumerate() if one.name == "prefetch"}


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    """Nothing that a test of this module does leaves a thread behind."""
    yield
    gc.collect()
    for thread in threads():
        thread.join(PATIENCE_S)
    assert not threads()


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[InlineBackend]:
    """The backends that were let go of."""
    found: list[InlineBackend] = []
    close = InlineBackend.close

    def watched(self: InlineBackend) -> None:
        found.append(self)
        close(self)

    monkeypatch.setattr(InlineBackend, "close", watched)
    return found


class TestBatches:
    @given(CUTS, st.integers(1, 50), st.sampled_from(["pyarrow", "numpy", "pandas"]), st.booleans(), st.integers(0, 3))
    def test_as_slices_of_a_list(self, cuts: list[int], size: int, form: str, drop_last: bool, ahead: int) -> None:
        """Batches are slices of all rows, whatever the blocks, the format, and how many are made ahead."""
        rows = list(range(sum(cuts)))
        expected = [rows[at : at + size] for at in range(0, len(rows), size)]
        if drop_last:
            expected = [batch for batch in expected if len(batch) == size]
        found = list(
            of(cuts).iter_batches(batch_size=size, batch_format=form, drop_last=drop_last, prefetch_batches=ahead)
        )
        assert [values(batch) for batch in found] == expected
        kind = {"pyarrow": pa.Table, "numpy": dict, "pandas": pd.DataFrame}[form]
        assert all(isinstance(batch, kind) for batch in found)
        if form != "pyarrow":
            assert [list(batch["s"]) for batch in found] == [[f"row {n}" for n in batch] for batch in expected]

    @given(CUTS)
    def test_blocks_as_they_come(self, cuts: list[int]) -> None:
        """Without a size, no row is copied or moved into another block."""
        found = [values(batch) for batch in of(cuts).iter_batches(batch_size=None)]
        assert found == [table["n"].to_pylist() for table in tables_of(cuts)]

    def test_types_are_widened_where_they_meet(self) -> None:
        """Nothing but nulls in one block, numbers in the next, in one batch."""
        parts = [curate.from_arrow(pa.table({"n": column})) for column in (pa.nulls(2), pa.array([1]), pa.array([0.5]))]
        (batch,) = parts[0].union(*parts[1:]).iter_batches(batch_size=4)
        assert batch["n"].to_pylist() == [None, None, 1.0, 0.5]

    def test_nothing_runs_before_the_first_is_asked_for(self, closed: list[InlineBackend]) -> None:
        """No thread, no backend; and what is wrong is said at once."""
        curate.range(3).iter_batches().close()
        assert not closed
        for wrong, message in [
            ({"batch_size": 0}, "batch_size is 0"),
            ({"prefetch_batches": -1}, "prefetch_batches is -1"),
            ({"batch_format": "panda"}, "did you mean 'pandas'"),
            ({"local_shuffle_buffer_size": 0}, "local_shuffle_buffer_size is 0"),
            ({"local_shuffle_buffer_size": 5, "local_shuffle_seed": -1}, "local_shuffle_seed is -1"),
            ({"local_shuffle_buffer_size": 5, "batch_size": None}, "needs a batch_size"),
        ]:
            with pytest.raises(ConfigError, match=message):
                curate.range(3).iter_batches(**wrong)  # type: ignore[arg-type]

    def test_without_pandas(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The extra is named, before anything runs."""
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pandas" else name)
        for ask in (
            lambda: curate.range(1).iter_batches(batch_format="pandas"),
            lambda: curate.range(1).map_batches(len, batch_format="pandas"),
            lambda: curate.range(1).to_pandas(),
        ):
            with pytest.raises(ConfigError, match=re.escape("pip install 'curate[pandas]'")):
                ask()


class TestDataFrames:
    @given(st.lists(st.tuples(st.none() | st.integers(-5, 5), st.none() | st.text("ab", max_size=2)), max_size=20))
    def test_there_and_back(self, rows: list[tuple[int | None, str | None]]) -> None:
        """What a function of frames gives back unchanged is unchanged: numbers beside nulls stay whole numbers."""
        schema = pa.schema([("n", pa.int64()), ("s", pa.string())])
        table = pa.Table.from_pylist([{"n": n, "s": s} for n, s in rows], schema=schema)
        found = curate.from_arrow(table).map_batches(lambda frame: frame, batch_format="pandas", batch_size=3)
        assert found.to_arrow() == table if rows else found.count() == 0
        frame = curate.from_arrow(table).to_pandas()
        assert dict(frame.dtypes) == {"n": pd.ArrowDtype(pa.int64()), "s": pd.ArrowDtype(pa.string())}
        assert pa.Table.from_pandas(frame, preserve_index=False).to_pylist() == table.to_pylist()

    def test_of_other_types(self) -> None:
        """Frames as others make them, of plain dtypes, with an index and names that are no text."""

        def make(_: pa.Table) -> pd.DataFrame:
            return pd.DataFrame({"a": [1.5, np.nan], "l": [[1], None], 0: ["x", None]}, index=[7, 8])

        assert curate.range(2).map_batches(make).take_all() == [
            {"a": 1.5, "l": [1], "0": "x"},
            {"a": None, "l": None, "0": None},
        ]

    def test_that_cannot_be(self) -> None:
        """The operator is named."""
        found = curate.range(2).map_batches(lambda _: pd.DataFrame({"a": [1, "b"]}))
        told = r"map_batches\(<lambda>\) returned column 'a' values that do not fit one type: 1 .*'b'"
        with pytest.raises(curate.CurateError, match=told):
            found.take_all()

    def test_a_limit_that_is_exceeded(self) -> None:
        """It is no way to cut rows off."""
        assert len(curate.range(5).to_pandas(limit=5)) == 5
        with pytest.raises(ConfigError, match="more than 4 rows"):
            curate.range(5).to_pandas(limit=4)


class Source:
    """Gives numbers, notes what happens, and never has more made than is allowed."""

    def __init__(self, items: int, *, allowed: Callable[[int], bool] = lambda _: True) -> None:
        self.items = items
        self.allowed = allowed
        self.made = threading.Semaphore(0)
        self.begun: list[int] = []
        self.refused: list[int] = []
        self.closed = threading.Event()
        self.thread: threading.Thread | None = None

    def __call__(self, _: Stopped) -> Iterator[int]:
        self.thread = threading.current_thread()
        try:
            for number in range(self.items):
                self.begun.append(number)
                if not self.allowed(number):
                    self.refused.append(number)
                self.made.release()
                yield number
        finally:
            assert threading.current_thread() is self.thread
            self.closed.set()

    def wait_for(self, items: int) -> None:
        for _ in range(items):
            assert self.made.acquire(timeout=PATIENCE_S)


class TestAhead:
    @given(st.integers(0, 12), st.integers(1, 4))
    @settings(max_examples=examples(30))
    def test_no_more_than_was_asked_for(self, items: int, ahead: int) -> None:
        """While the consumer has item k, items to k + `ahead` are made without it, and no other is begun."""
        asked = 0
        source = Source(items, allowed=lambda number: number < asked + ahead)
        found = []
        stream = prefetched(source, ahead)
        for number in range(items):
            asked += 1
            found.append(next(stream))
            source.wait_for((ahead + 1 if number == 0 else 1) if number + ahead < items else items if not number else 0)
        asked += 1
        assert next(stream, None) is None
        assert found == list(range(items))
        assert not source.refused
        assert source.closed.is_set()

    def test_none_ahead_is_no_thread(self) -> None:
        """All is done in the thread of the consumer."""
        source = Source(3)
        assert list(prefetched(source, 0)) == [0, 1, 2]
        assert source.thread is threading.current_thread()

    @pytest.mark.ci(6)
    @pytest.mark.quick(1)
    @pytest.mark.parametrize("ahead", [0, 1, 3])
    @pytest.mark.parametrize("end", ["close", "drop", "cycle", "raise"])
    def test_stopping_early_leaves_nothing(self, ahead: int, end: str, closed: list[InlineBackend]) -> None:
        """No thread, no backend, no batch: when it is closed, when it is let go of, when the consumer raises."""
        stream = curate.range(1000).iter_batches(batch_size=10, prefetch_batches=ahead)
        assert ids(next(stream)) == list(range(10))
        assert len(threads()) == bool(ahead)
        assert not closed
        if end == "close":
            stream.close()
        elif end == "cycle":
            holder: dict[str, Any] = {"stream": stream}
            holder["self"] = holder
            del holder
        elif end == "raise":
            with pytest.raises(Unusual):
                raise_for(stream)
        del stream
        gc.collect()
        assert not threads()
        # That of the stream, and that which stays connected around it.
        assert len(closed) == 2

    def test_items_are_let_go_of(self) -> None:
        """What the consumer drops is gone at once, and what it never took when it stops."""

        class Item:
            pass

        alive: list[weakref.ref[Item]] = []
        three = threading.Event()

        def source(_: Stopped) -> Iterator[Item]:
            while True:
                item = Item()
                alive.append(weakref.ref(item))
                if len(alive) == 3:
                    three.set()
                # As `map` does: this frame keeps nothing.
                yield (item, item := None)[0]  # type: ignore[misc]

        stream = prefetched(source, 2)
        item = next(stream)
        assert three.wait(PATIENCE_S)
        assert alive[0]() is item
        del item
        assert alive[0]() is None
        stream.close()
        assert [one() for one in alive] == [None] * len(alive)

    @pytest.mark.quick(1)
    @pytest.mark.parametrize("ahead", [0, 1, 3])
    def test_errors_are_those_of_user_code(self, ahead: int) -> None:
        """Of its type, with its traceback and notes, after the batches before it."""
        found = curate.from_arrow([pa.table({"id": [k]}) for k in range(6)]).map_batches(fails_at_4)
        seen: list[list[int]] = []
        stream = found.iter_batches(batch_size=1, prefetch_batches=ahead)
        with pytest.raises(Unusual, match="at four") as caught:
            seen.extend(map(ids, stream))
        assert seen == [[0], [1], [2], [3]]
        assert "fails_at_4" in [entry.name for entry in caught.traceback]
        assert "in map_batches(fails_at_4), in rows 0 to 0 of its input" in caught.value.__notes__
        assert not threads()

    def test_an_error_that_nobody_came_to(self) -> None:
        """Whoever stops before it does not hear of it."""
        failed = threading.Event()

        def source(_: Stopped) -> Iterator[int]:
            yield 1
            failed.set()
            raise Unusual

        stream = prefetched(source, 3)
        assert next(stream) == 1
        assert failed.wait(PATIENCE_S)
        stream.close()

    def test_an_error_of_what_makes_batches(self, closed: list[InlineBackend]) -> None:
        """All has ended when it is heard of."""

        class Plain(consuming.Batches):
            _blocks = staticmethod(curate.range(9)._blocks)
            _around = staticmethod(contextlib.nullcontext)

        def form(table: pa.Table) -> None:
            raise Unusual(f"{table.num_rows} rows")

        with pytest.raises(Unusual, match="5 rows") as caught:
            next(Plain()._formed(form, 1, 5, False, None, None))
        assert len(closed) == 1
        assert caught.value.__traceback__ is not None  # it is held, and with it all frames

    def test_an_error_of_closing_is_not_lost(self) -> None:
        """What cannot be let go of is said to whoever stops."""

        def source(_: Stopped) -> Iterator[int]:
            try:
                while True:
                    yield 1
            finally:
                raise Unusual("not closed")

        stream = prefetched(source, 1)
        next(stream)
        with pytest.raises(Unusual, match="not closed"):
            stream.close()

    def test_a_source_that_waits_hears_that_it_is_over(self) -> None:
        """It asks whether it is still wanted."""
        waits = threading.Event()

        def source(stopped: Stopped) -> Iterator[int]:
            yield 1
            while not stopped():
                waits.set()
                time.sleep(0.001)

        stream = prefetched(source, 1)
        next(stream)
        assert waits.wait(PATIENCE_S)
        stream.close()
        assert not threads()

    def test_in_the_context_of_the_consumer(self) -> None:
        """Context variables are what they are where the rows are asked for."""
        variable = contextvars.ContextVar("variable", default="elsewhere")
        variable.set("here")
        found = curate.range(1).map(lambda _: {"at": variable.get()})
        assert [batch["at"].to_pylist() for batch in found.iter_batches()] == [["here"]]

    def test_collected_within_its_own_thread(self) -> None:
        """The collector of garbage runs in any thread: also in the one that would be waited for."""
        collected = threading.Event()
        streams: list[Any] = []

        def source(_: Stopped) -> Iterator[int]:
            yield 1
            while not streams:
                time.sleep(0.001)
            streams.clear()
            collected.set()
            yield 2

        @contextmanager
        def around() -> Iterator[None]:
            yield
            left.append(threading.current_thread())

        left: list[threading.Thread] = []
        stream = prefetched(source, 2, around)
        next(stream)
        streams.append(stream)
        thread = next(iter(threads()))
        del stream
        assert collected.wait(PATIENCE_S)
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
        assert left == [thread]


def raise_for(stream: Iterator[Any]) -> None:
    for _ in stream:
        raise Unusual


class Unusual(Exception):
    """An exception of user code."""


def fails_at_4(batch: pa.Table) -> pa.Table:
    """Fails for the batch of the row 4."""
    if batch["id"][0].as_py() == 4:
        raise Unusual("at four")
    return batch


def drawn(cuts: list[int], rows: int, buffer: int, seed: int) -> list[list[int]]:
    return [table["n"].to_pylist() for table in shuffle_rows(iter(tables_of(cuts)), rows, max(rows, buffer), seed)]


class TestLocalShuffle:
    @given(CUTS, st.integers(1, 20), st.integers(1, 80), st.integers(0, 5))
    def test_as_drawn_from_a_list(self, cuts: list[int], rows: int, buffer: int, seed: int) -> None:
        """A buffer that is a list, filled up before each draw, gives the same: every row once."""
        random = np.random.default_rng(seed)
        left, held, expected = list(range(sum(cuts))), list[int](), []
        while left or held:
            space = max(rows, buffer) - len(held)
            held, left = held + left[:space], left[space:]
            places = random.choice(len(held), min(rows, len(held)), replace=False)
            expected.append([held[place] for place in places])
            held = [row for place, row in enumerate(held) if place not in places]
        found = drawn(cuts, rows, buffer, seed)
        assert found == expected
        assert sorted(row for batch in found for row in batch) == list(range(sum(cuts)))

    @given(st.integers(1, 150), CUTS, st.integers(1, 20), st.integers(1, 80))
    def test_however_it_is_cut(self, total: int, cuts: list[int], rows: int, buffer: int) -> None:
        """Blocks of other sizes give the same order; whole rows move, not values."""
        sizes = [stop - start for start, stop in pairwise(ends_of(cuts, total))]
        assert drawn(sizes, rows, buffer, 3) == drawn([total], rows, buffer, 3)
        for table in shuffle_rows(iter(tables_of(sizes)), rows, max(rows, buffer), 3):
            assert table["s"].to_pylist() == [f"row {n}" for n in table["n"].to_pylist()]

    def test_a_seed_is_an_order(self) -> None:
        """One seed gives one order, with any number of batches made ahead; another, or none, gives another."""

        def order(seed: int | None, ahead: int = 1) -> list[int]:
            found = curate.range(200).iter_batches(
                batch_size=16, local_shuffle_buffer_size=100, local_shuffle_seed=seed, prefetch_batches=ahead
            )
            return [number for batch in found for number in ids(batch)]

        assert order(1) == order(1, ahead=0) == order(1, ahead=5)
        assert len({tuple(order(seed)) for seed in (1, 2, None, None)}) == 4
        assert sorted(order(None)) == list(range(200))

    def test_the_last_batch(self) -> None:
        """Left out when it is smaller, as without a shuffle; a seed alone shuffles nothing."""
        found = curate.range(10).iter_batches(batch_size=4, drop_last=True, local_shuffle_buffer_size=5)
        assert [len(batch) for batch in found] == [4, 4]
        (batch,) = curate.range(3).iter_batches(local_shuffle_seed=5)
        assert ids(batch) == [0, 1, 2]

    @pytest.mark.slow
    def test_every_row_is_as_likely_to_be_first(self, mode: Mode) -> None:
        """Of a buffer that holds all eight rows: 4,000 seeds, each row 500 times, give or take five deviations; a
        quarter of them but for the night."""
        seeds = 4000 if mode is Mode.NIGHTLY else 1000
        first = [drawn([8], 1, 8, seed)[0][0] for seed in range(seeds)]
        counts = np.bincount(first, minlength=8)
        assert abs(counts - seeds / 8).max() < 5 * (seeds * 1 / 8 * 7 / 8) ** 0.5


class TestTensors:
    def test_without_torch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The extra is named, before anything runs."""
        monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
        with pytest.raises(ConfigError, match=re.escape("pip install 'curate[embed]'")):
            curate.range(1).iter_torch_batches()

    def test_lists_of_one_length_are_dimensions(self) -> None:
        """Also lists of lists; anything else is refused with the column and what it has."""
        columns = consuming.to_numpy(
            pa.table(
                {
                    "pair": [[1.0, 2.0], [3.0, 4.0]],
                    "matrix": [[[1], [2]], [[3], [4]]],
                    "fixed": pa.array([[1, 2], [3, 4]], pa.list_(pa.int8(), 2)),
                    "ragged": [[1], [1, 2]],
                    "text": ["a", "b"],
                    "none": [[1], None],
                }
            )
        )
        assert numeric("pair", columns["pair"]).tolist() == [[1.0, 2.0], [3.0, 4.0]]
        assert numeric("matrix", columns["matrix"]).shape == (2, 2, 1)
        assert numeric("fixed", columns["fixed"]).tolist() == [[1, 2], [3, 4]]
        for name, found in [("ragged", "ndarray"), ("text", "str"), ("none", "NoneType and ndarray")]:
            with pytest.raises(TypeError, match=f"column '{name}' cannot become a tensor: it has {found};"):
                numeric(name, columns[name])

    @pytest.mark.extras
    def test_batches_are_tensors(self) -> None:
        """Of the types that were asked for, which can be written to."""
        import torch

        found = curate.range(5).with_column("x", pc.field("id") * 0.5).materialize()
        (batch,) = found.iter_torch_batches(dtypes={"x": torch.float16})
        assert batch["id"].tolist() == [0, 1, 2, 3, 4]
        assert (batch["id"].dtype, batch["x"].dtype) == (torch.int64, torch.float16)
        batch["id"] += 1
        assert found.take(1) == [{"id": 0, "x": 0.0}]
        (both,) = found.iter_torch_batches(dtypes=torch.float32)
        assert {tensor.dtype for tensor in both.values()} == {torch.float32}
        (pair,) = found.iter_torch_batches(collate_fn=lambda arrays: [torch.as_tensor(arrays["x"]), "rest"])
        assert pair[0].tolist() == [0.0, 0.5, 1.0, 1.5, 2.0]
        assert pair[1] == "rest"
        pair[0] += 1
        assert found.take(1) == [{"id": 0, "x": 0.0}]
        with pytest.raises(TypeError, match="column 's' cannot become a tensor"):
            next(of([2]).iter_torch_batches())
        with pytest.raises(ConfigError, match="pass one of them"):
            found.iter_torch_batches(dtypes=torch.float32, collate_fn=len)

    @pytest.mark.extras
    def test_numbers_that_a_type_does_not_hold(self) -> None:
        """Null became the least of all whole numbers, and a name that is none was passed over."""
        import torch

        found = curate.from_items([{"n": 1}, {"n": None}, {"n": 300}])
        with pytest.raises(TypeError, match=r"column 'n' has null or NaN, which torch.int64 does not hold; fill or"):
            next(found.iter_torch_batches(dtypes=torch.int64))
        with pytest.raises(TypeError, match=r"column 'n' has 300, which torch.uint8 does not hold"):
            next(found.filter(curate.col("n").is_valid()).iter_torch_batches(dtypes={"n": torch.uint8}))
        with pytest.raises(
            ConfigError, match=r"iter_torch_batches\(dtypes=...\): there is no column 'm'; there are 'n'"
        ):
            next(found.iter_torch_batches(dtypes={"m": torch.uint8}))

    @pytest.mark.parametrize(
        ("numbers", "told"),
        [
            (np.array([1, -129]), "-129"),
            (np.array([128.5]), "128.5"),
            (np.array([1.0, np.nan]), "null or NaN"),
            (np.array([[1, np.inf]]), "inf"),
            (np.array([2**64 - 1], np.uint64), "18446744073709551615"),
            (np.array([1.9, -128.5, 127.9]), ""),
            (np.array([True]), ""),
            (np.empty(0), ""),
        ],
    )
    def test_what_would_be_another_number(self, numbers: np.ndarray[Any, Any], told: str) -> None:
        """Of eight bits; a fraction is cut, as torch does."""
        with pytest.raises(TypeError, match=f"has {told}, which") if told else nullcontext():
            check_whole("n", numbers, "int8", -128, 127)


def consumed(shares: list[DataIterator], consume: Callable[[DataIterator], Any]) -> list[Any]:
    """What each share gives, each consumed in a thread."""
    with ThreadPoolExecutor(len(shares)) as pool:
        return list(pool.map(consume, shares, timeout=PATIENCE_S))


def rows_of_share(share: DataIterator) -> list[int]:
    return [row["n"] for row in share.iter_rows()]


class TestStreamingSplit:
    @given(CUTS, st.integers(1, 4), st.booleans())
    @settings(max_examples=examples(40))
    def test_who_gets_what(self, cuts: list[int], n: int, equal: bool) -> None:
        """Block k goes to number k mod n; or all get the same number of rows, and less than n are left out."""
        found = consumed(of(cuts).streaming_split(n, equal=equal), rows_of_share)
        if not equal:
            tables = [table["n"].to_pylist() for table in tables_of(cuts)]
            assert found == [[row for table in tables[share::n] for row in table] for share in range(n)]
            return
        assert [len(share) for share in found] == [sum(cuts) // n] * n
        assert all(share == sorted(share) for share in found)
        every = [row for share in found for row in share]
        assert len(set(every)) == len(every)
        assert max(every, default=-1) < sum(cuts)

    def test_all_ways_to_consume(self) -> None:
        """Batches, shuffled and not, are those of the share's rows."""
        expected = [[*range(0, 10), *range(20, 30)], [*range(10, 20), *range(30, 40)]]
        shares = of([10] * 4).streaming_split(2)

        def batches(share: DataIterator) -> list[int]:
            return [n for batch in share.iter_batches(batch_size=7, batch_format="numpy") for n in values(batch)]

        def shuffled_batches(share: DataIterator) -> list[int]:
            found = share.iter_batches(batch_size=7, local_shuffle_buffer_size=9, local_shuffle_seed=1, drop_last=True)
            return [n for batch in found for n in values(batch)]

        assert consumed(shares, batches) == expected
        for found, rows in zip(consumed(shares, shuffled_batches), expected, strict=True):
            assert len(found) == 14
            assert set(found) < set(rows)

    def test_again(self) -> None:
        """A second pass runs all again, once all have ended the first."""
        seen: list[int] = []
        found = of([5] * 6).map_batches(lambda batch: (seen.append(1), batch)[1])
        shares = found.streaming_split(3)
        first, second = consumed(shares, rows_of_share), consumed(shares, rows_of_share)
        assert first == second
        assert len(seen) == 12

    def test_a_slow_consumer_holds_up_the_others(self) -> None:
        """One block waits for each, and no other is begun: that of the slow one, when the others have theirs."""
        taken = [0, 0, 0]
        source = Source(30, allowed=lambda number: number // 3 < taken[number % 3] + 1)
        shared: Prefetcher[int] = Prefetcher(source, 3, 1)
        streams = [shared.items(share) for share in range(3)]

        def take(share: int) -> int:
            taken[share] += 1
            return next(streams[share])

        # Number 2 has taken nothing: the others get two each, one of which waited, and the next is that of number 2.
        assert [take(0), take(1), take(0), take(1)] == [0, 1, 3, 4]
        source.wait_for(5)
        with ThreadPoolExecutor(1) as pool:
            held_up = pool.submit(take, 0)
            assert source.begun == [0, 1, 2, 3, 4]
            assert not held_up.done()
            assert take(2) == 2
            assert held_up.result(PATIENCE_S) == 6
        for stream in streams:
            stream.close()
        assert not source.refused
        assert source.closed.is_set()
        assert not threads()

    def test_one_that_stops_is_left_out(self, closed: list[InlineBackend]) -> None:
        """The others get all of theirs; the run ends with the last."""
        shares = of([5] * 12).streaming_split(2)
        stopping = shares[0].iter_batches(batch_size=5)
        next(stopping)
        stopping.close()
        assert not closed
        assert rows_of_share(shares[1]) == [n for k in range(1, 12, 2) for n in range(k * 5, k * 5 + 5)]
        assert len(closed) == 1
        assert not threads()

    def test_one_that_nobody_holds_is_left_out(self) -> None:
        """Of three, the third alone is consumed, again and again."""
        share = of([5] * 12).streaming_split(3)[2]
        gc.collect()
        for _ in range(2):
            assert rows_of_share(share) == [n for k in range(2, 12, 3) for n in range(k * 5, k * 5 + 5)]

    def test_a_share_is_held_by_whoever_iterates(self) -> None:
        """Not only by its name."""
        shares = of([5] * 12).streaming_split(2)
        rows = [share.iter_rows() for share in shares]
        del shares
        gc.collect()
        with ThreadPoolExecutor(2) as pool:
            assert sum(pool.map(lambda stream: len(list(stream)), rows, timeout=PATIENCE_S)) == 60

    def test_stopping_while_another_is_waited_for(self) -> None:
        """Who waits for a block that does not come, because of a slow consumer, can stop all the same."""
        shares = of([5] * 12).streaming_split(2)
        stream = shares[0].iter_batches(batch_size=5, prefetch_batches=4)
        # The second one waits at the outlet; the third has no room before number 1 begins.
        assert [values(next(stream)), values(next(stream))] == [[*range(5)], [*range(10, 15)]]
        stream.close()
        assert len(rows_of_share(shares[1])) == 30

    def test_two_passes_of_one_share(self) -> None:
        """The second would wait for the first for ever."""
        shares = of([5] * 12).streaming_split(2)
        rows = shares[0].iter_rows()
        next(rows)
        with pytest.raises(RuntimeError, match="exhaust or close that one first"):
            next(shares[0].iter_rows())
        rows.close()
        # That pass goes on for the other one; the next begins when it has ended.
        assert len(rows_of_share(shares[1])) == 30
        assert [len(found) for found in consumed(shares, rows_of_share)] == [30, 30]

    def test_all_hear_of_an_error(self) -> None:
        """Each after the blocks that it got before."""
        found = curate.from_arrow([pa.table({"id": [k]}) for k in range(6)]).map_batches(fails_at_4)

        def consume(share: DataIterator) -> list[int]:
            seen: list[int] = []
            with pytest.raises(Unusual, match="at four"):
                seen.extend(row["id"] for row in share.iter_rows())
            return seen

        assert consumed(found.streaming_split(2), consume) == [[0, 2], [1, 3]]

    def test_the_next_pass_waits_for_all(self) -> None:
        """Who has ended its pass begins none before the others have, and can stop while it waits for them."""
        runs: list[int] = []

        def make(_: Stopped) -> Generator[pa.Table]:
            runs.append(1)
            for k in range(4):
                yield numbers(k, k + 1)

        passes = Epochs(make, 2, equal=False)
        first = passes.blocks(0, prefetch.never_stopped)
        assert next(first).num_rows == 1
        first.close()
        # Number 1 has not begun, and the pass goes on for it: number 0 asks twice whether to wait on.
        asked = chain([False, True], repeat(True))
        assert list(passes.blocks(0, lambda: next(asked))) == []
        assert next(asked)
        assert runs == [1]
        assert [table.num_rows for table in passes.blocks(1, prefetch.never_stopped)] == [1, 1]
        assert next(passes.blocks(0, prefetch.never_stopped)).num_rows == 1
        assert runs == [1, 1]
        passes.abandon(1)

    def test_parts_close_what_they_are_cut_from(self) -> None:
        """At once, whoever else holds it."""
        closed = threading.Event()

        def source() -> Generator[pa.Table]:
            try:
                while True:
                    yield numbers(0, 4)
            finally:
                closed.set()

        held = source()
        parts = equal_parts(held, 2)
        assert next(parts).num_rows == 2
        parts.close()
        assert closed.is_set()

    def test_none(self) -> None:
        """Shares are counted from one."""
        with pytest.raises(ConfigError, match="n is 0"):
            curate.range(1).streaming_split(0)


class TestHeld:
    def test_what_is_held_runs_once(self) -> None:
        """Its rows, schema and number are as before, and can be gone through further."""
        seen: list[int] = []
        found = of([3, 4]).map(lambda row: (seen.append(row["n"]), row)[1])
        held = found.materialize()
        assert seen == list(range(7))
        for _ in range(2):
            assert held.take_all() == of([7]).take_all()
        assert held.filter(pc.field("n") > 4).count() == 2
        assert held.schema().names == ["n", "s"]
        assert len(seen) == 7

    def test_types_are_those_of_all_blocks(self) -> None:
        """A column of nulls in one block is of numbers if it is in another."""
        found = curate.from_arrow(pa.table({"n": pa.nulls(1)})).union(curate.from_arrow(pa.table({"n": [1]})))
        assert found.materialize().schema() == pa.schema([("n", pa.int64())])

    def test_nothing(self) -> None:
        """Keeps its columns."""
        assert curate.range(0).materialize().schema().names == ["id"]
        assert [part.count() for part in curate.range(0).split(2)] == [0, 0]

    @given(CUTS, st.integers(1, 9), st.booleans())
    def test_split(self, cuts: list[int], n: int, equal: bool) -> None:
        """Ranges of rows that follow each other; of as many rows each, but one; or of the same number."""
        found = [[row["n"] for row in part.iter_rows()] for part in of(cuts).split(n, equal=equal)]
        each, rest = divmod(sum(cuts), n)
        assert [row for part in found for row in part] == list(range(each * n if equal else sum(cuts)))
        assert sorted(map(len, found)) == [each] * n if equal else [each] * (n - rest) + [each + 1] * rest


class TestRandomSample:
    @given(CUTS, st.integers(1, 60), st.floats(0, 1), st.integers(0, 3))
    def test_row_by_row(self, cuts: list[int], batch: int, fraction: float, seed: int) -> None:
        """Whether a row is kept depends on its shard, its place and the seed, not on the batch it comes in."""
        sample, tally = RandomSample(fraction, seed), ShardBooks(BadRowBudget())
        found = []
        for shard, rows in enumerate(cuts):
            for at in range(0, rows, batch):
                (kept,) = sample.apply(numbers(at, min(rows, at + batch)), tally, BatchPosition(f"shard {shard}", at))
                found.append((shard, kept["n"].to_pylist()))
        expected = {
            shard: [
                row for row in range(rows) if int(random_numbers(seed, f"shard {shard}", row, 1)[0]) / 2**64 < fraction
            ]
            for shard, rows in enumerate(cuts)
        }
        for shard in range(len(cuts)):
            assert [row for one, rows in found if one == shard for row in rows] == expected[shard]
        assert tally.books.dropped.get("random_sample", 0) == sum(cuts) - sum(map(len, expected.values()))

    def test_numbers_are_the_same_for_ever(self) -> None:
        """What was written is resumed by them; each shard and each seed has its own."""
        assert random_numbers(7, "a.parquet", 5, 3).tolist() == [
            1626426395911225216,
            4234222063444144097,
            6850595145088092845,
        ]
        others = [(7, "a.parquet"), (8, "a.parquet"), (7, "b.parquet"), (71, ".parquet"), (7, "1.parquet")]
        assert len({tuple(random_numbers(*one, 0, 4).tolist()) for one in others}) == 5

    def test_how_many(self) -> None:
        """The fraction, give or take five deviations; none, and all; more of them with a larger fraction."""
        rows = 100_000
        samples = {
            fraction: set(curate.range(rows).random_sample(fraction, seed=1).to_arrow()["id"].to_pylist())
            for fraction in (0, 0.1, 0.5, 1)
        }
        for fraction, found in samples.items():
            assert abs(len(found) - fraction * rows) <= 5 * (rows * fraction * (1 - fraction)) ** 0.5
        assert samples[0] < samples[0.1] < samples[0.5] < samples[1]

    def test_seeds(self) -> None:
        """Another seed is another sample; none is one that is chosen when the dataset is made."""
        found = curate.range(1000).random_sample(0.5)
        assert found.take_all() == found.take_all()
        others = [found, curate.range(1000).random_sample(0.5), curate.range(1000).random_sample(0.5, seed=1)]
        assert len({tuple(row["id"] for row in one.iter_rows()) for one in others}) == 3

    def test_between_other_operators(self, tmp_path: Path) -> None:
        """Filters before and after it, columns that are not read, and limits do not change which rows it keeps."""
        pq.write_table(numbers(0, 400), tmp_path / "a.parquet", row_group_size=10)
        path = tmp_path / "a.parquet"
        sample = [row["n"] for row in curate.read_parquet(path).random_sample(0.3, seed=2).iter_rows()]
        found = curate.read_parquet(path).random_sample(0.3, seed=2)
        late = pc.field("n") >= 250
        assert [row["n"] for row in found.filter(late).iter_rows()] == [n for n in sample if n >= 250]
        assert [row["n"] for row in found.select_columns("n").iter_rows()] == sample
        assert [row["n"] for row in found.take(7)] == sample[:7]
        assert found.count() == len(sample)

    def test_a_write_books_it(self, tmp_path: Path) -> None:
        """As dropped, by its name."""
        pq.write_table(numbers(0, 400), tmp_path / "a.parquet")
        found = curate.read_parquet(tmp_path / "a.parquet").random_sample(0.3, seed=2)
        books = found.write_parquet(tmp_path / "out", backend="inline").books
        assert books.dropped == {"random_sample": 400 - books.rows_out}
        assert 60 < books.rows_out < 180

    @pytest.mark.quick(2)
    @pytest.mark.parametrize("fraction", [-0.1, 1.1, "0.5", True, None, float("nan")])
    def test_what_is_no_fraction(self, fraction: Any) -> None:
        """Said when the plan is made."""
        with pytest.raises(ConfigError, match="expected a number from 0 to 1"):
            curate.range(1).random_sample(fraction)
        with pytest.raises(ConfigError, match="seed is -1"):
            curate.range(1).random_sample(0.5, seed=-1)


class TestZip:
    @given(st.integers(0, 60), st.lists(CUTS, min_size=1, max_size=3), st.integers(0, 70))
    def test_as_lists(self, total: int, cuts: list[list[int]], limit: int) -> None:
        """Row k beside row k, however each is cut into blocks; a limit, and what follows, are those of the rows."""
        sources = []
        for one in cuts:
            parts = [numbers(start, stop) for start, stop in pairwise(ends_of(one, total))]
            sources.append(curate.from_arrow(parts).with_column("n", pc.field("n") + len(sources)))
        found = sources[0].zip(*sources[1:])
        names = [("n", "s") if not k else (f"n_{k}", f"s_{k}") for k in range(len(cuts))]
        expected = [
            {name: value for k, pair in enumerate(names) for name, value in zip(pair, (n + k, f"row {n}"), strict=True)}
            for n in range(total)
        ]
        assert found.take_all() == expected
        assert [list(row) for row in found.take(1)] == [list(row) for row in expected[:1]]
        assert found.count() == total
        assert found.schema().names == [name for pair in names for name in pair]
        assert found.limit(limit).take_all() == expected[:limit]
        assert found.filter(pc.field("n") > 5).map(same).take_all() == [row for row in expected if row["n"] > 5]

    def test_with_chains(self) -> None:
        """Its inputs may be unions, limits, zips and functions."""
        found = curate.range(3).union(curate.range(9)).zip(curate.range(100).limit(12).zip(curate.range(12).map(same)))
        assert [tuple(row.values()) for row in found.iter_rows()] == [
            (a, b, b) for a, b in zip([*range(3), *range(9)], range(12), strict=True)
        ]
        assert schema_of(found._plan) is None
        assert found.schema().names == ["id", "id_1", "id_1_1"]

    @pytest.mark.quick(2)
    @pytest.mark.parametrize(
        ("others", "told"),
        [
            ([curate.range(3), curate.range(5)], "4, 3, 5 rows"),
            ([curate.range(5).flat_map(lambda row: [row])], "4, at least 5 rows"),
            ([curate.range(3).flat_map(lambda row: [row])], "4, 3 rows"),
            ([curate.range(0)], "4, 0 rows"),
        ],
    )
    def test_lengths_that_differ(self, others: list[Dataset], told: str) -> None:
        """All are named, as far as they are known without running on."""
        found = curate.range(4).zip(*others)
        for ask in (found.take_all, found.count, found.to_arrow):
            with pytest.raises(ConfigError, match=told):
                ask()

    def test_stopping_early_ends_all(self, closed: list[InlineBackend]) -> None:
        """The streams of all inputs, and what connected them."""
        stream = curate.range(9).zip(curate.range(9)).iter_rows()
        next(stream)
        stream.close()
        assert len(closed) == 3

    def test_an_error_of_one_ends_all(self, closed: list[InlineBackend]) -> None:
        """It is the one that was raised."""
        failing = curate.from_arrow([pa.table({"id": [k]}) for k in range(6)]).map_batches(fails_at_4)
        with pytest.raises(Unusual, match="at four"):
            curate.range(6).zip(failing).take_all()
        assert len(closed) == 3

    def test_looked_at(self) -> None:
        """Both plans say it."""
        found = curate.range(2).zip(curate.range(2)).select_columns("id_1")
        assert "zip\n      range(2)\n      range(2)" in found.explain()
        assert "in this process: select_columns('id_1')\n    side by side, in this process" in found.explain()

    def test_memory_is_shared(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Streams that are consumed at once have one budget together, also those of a zip within a zip."""
        budgets: list[int] = []

        def watched(*_: Any, budget_bytes: int, **__: Any) -> Iterator[pa.Table]:
            budgets.append(budget_bytes)
            yield from ()

        monkeypatch.setattr("curate.dataset.execute.stream_blocks", watched)
        found = curate.range(2).zip(curate.range(2).zip(curate.range(2), curate.range(2)))
        assert not list(blocks(lower(found._plan, End.BLOCKS), Options(memory_budget=1200)))
        assert budgets == [600, 200, 200, 200]

    def test_tables_of_columns_alone(self) -> None:
        """Streams of tables of one length give one table."""
        (table,) = side_by_side([iter([numbers(0, 2)]), iter([numbers(2, 4)])], lambda _: None)
        assert table["n_1"].to_pylist() == [2, 3]


def same(row: dict[str, Any]) -> dict[str, Any]:
    return row


PIECES = 3
"""Of a range of this many times 2^20 rows, each made by a task."""
ROWS = PIECES << 20


@pytest.fixture(scope="class")
def _one_cpu() -> Iterator[None]:
    with own_ray(1):
        yield


@pytest.mark.slow
@pytest.mark.ray_lane
class TestOnRay:
    @pytest.mark.usefixtures("on_ray")
    def test_connected_by_the_consumer(self, capfd: pytest.CaptureFixture[str]) -> None:
        """Not by the thread that works ahead, where Ray would say that it cannot hear signals."""
        found = curate.range(ROWS).using(backend="ray")
        for _ in range(2):
            stream = found.iter_batches(batch_size=1000)
            assert ids(next(stream)) == list(range(1000))
            stream.close()
        assert sum(batch.num_rows for batch in found.iter_batches(batch_size=100_000)) == ROWS
        assert "SIGTERM" not in capfd.readouterr().err

    @pytest.mark.usefixtures("_one_cpu")
    def test_stopping_while_a_task_is_at_work(self) -> None:
        """It is ended, however long it would take for its block."""
        stream = curate.range(ROWS).using(backend="ray").map_batches(stuck_from_a_million).iter_batches(batch_size=None)
        seen = 0
        while seen < 1 << 20:
            seen += next(stream).num_rows
        began_s = time.monotonic()
        stream.close()
        assert time.monotonic() - began_s < 60
        assert not threads()

    @pytest.mark.usefixtures("_one_cpu")
    def test_a_zip_on_one_cpu(self) -> None:
        """Tasks of one stream that stand still leave room for those of the other, also within a zip within a zip."""
        numbers = curate.range(ROWS).using(backend="ray", memory_budget=3 << 20, block_bytes=1 << 20)
        found = numbers.zip(numbers.with_column("id", pc.field("id") + 1).zip(numbers))
        rows = 0
        for batch in found.iter_batches(batch_size=100_000):
            expected = np.arange(rows, rows + batch.num_rows)
            assert np.array_equal(batch["id"], expected)
            assert np.array_equal(batch["id_1"], expected + 1)
            assert np.array_equal(batch["id_1_1"], expected)
            rows += batch.num_rows
        assert rows == ROWS

    @pytest.mark.usefixtures("_one_cpu")
    def test_shares(self) -> None:
        """All rows reach one share each."""
        shares = curate.range(ROWS).using(backend="ray", block_bytes=1 << 20).streaming_split(2)
        with ThreadPoolExecutor(2) as pool:
            found = list(pool.map(lambda share: np.concatenate([b["id"] for b in share.iter_batches()]), shares))
        assert np.array_equal(np.sort(np.concatenate(found)), np.arange(ROWS))


def stuck_from_a_million(batch: pa.Table) -> pa.Table:
    if batch["id"][0].as_py() >= 1 << 20:
        time.sleep(3600)
    return batch
